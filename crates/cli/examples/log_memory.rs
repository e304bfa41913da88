//! Inserts records into an `iot` keyspace and prints nanoseconds for each, by what the log promises.
//!
//! ```text
//! log_memory DIRECTORY none|buffered|emulated RECORDS [BYTES]
//! ```
//!
//! `none` logs nothing. `emulated` carries out the instructions of persistent memory on an ordinary
//! mapping, which promises what `buffered` does. Without background work, so that `valgrind
//! --tool=callgrind` counts inserts alone: the instructions of one are the difference of two runs.

use std::error::Error;
use std::path::Path;

use spinney::{Db, Durability, EngineKind, KeyspaceOptions, LogMemory, Options, Runtime};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, promise, records, rest @ ..] = arguments.as_slice() else {
        return Err("log_memory DIRECTORY none|buffered|emulated RECORDS [BYTES]".into());
    };
    let records: u64 = records.parse()?;
    let bytes: usize = rest.first().map_or(Ok(64), |bytes| bytes.parse())?;
    let memory = match promise.as_str() {
        "none" | "buffered" => LogMemory::Off,
        "emulated" => LogMemory::Emulated,
        other => return Err(format!("{other} is not none, buffered or emulated").into()),
    };
    let clock = Runtime::threads();
    let options = Options::default()
        .memory(512 << 20)
        .log_bytes_max(1 << 30)
        .durability(Durability::Buffered)
        .log_memory(memory)
        .runtime(Runtime::stepped(1));
    let db = Db::open(Path::new(directory), options)?;
    let keyspace = KeyspaceOptions::default().engine(EngineKind::Iot).logged(promise != "none");
    let keyspace = db.keyspace("records", keyspace)?;
    let value = vec![7; bytes.saturating_sub(8)];
    let insert = |number: u64| {
        keyspace.insert(number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(), &value)
    };
    // It makes what the first ones need.
    (0..1000).try_for_each(insert)?;
    let (before, log) = (clock.now(), db.stats().log);
    (1000..1000 + records).try_for_each(insert)?;
    let took = clock.now() - before;
    let now = db.stats().log;
    let each = |count: u64| count as f64 / records as f64;
    println!(
        "{promise}{}: {:.0} ns, {:.3} lines, {:.3} fences, {:.4} runs for each of {records} inserts of {bytes} B; tail {}",
        if promise == "emulated" { " persistent memory" } else { "" },
        took.as_nanos() as f64 / records as f64,
        each(now.lines - log.lines),
        each(now.fences - log.fences),
        each(now.flushes - log.flushes),
        now.memory,
    );
    Ok(())
}
