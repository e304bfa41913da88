//! How long a recovery takes: a process loads a database, updates it at random until its log is long, and is
//! killed; this one opens it again and looks at the clock.
//!
//!     cargo run --release -p spinney --example recovery -- DIRECTORY [RECORD_BYTES [RECORDS [MEMORY_MIB [LOG_MIB [ENGINE]]]]]
//!
//! DIRECTORY must not exist; it is removed at the end. The log is written until LOG_MIB (100) of it would be
//! replayed or, if checkpoints keep it shorter than that, until it is about as long as it was ever seen. A log that may have
//! more than 100 MiB has no checkpoint meanwhile.
//!
//! With `--killed` before DIRECTORY it only writes, and dies. What that leaves can be copied, and opened with the same
//! arguments: a DIRECTORY that exists is opened alone.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use spinney::{Batch, Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_base::Runtime;

const THREADS: u64 = 4;
/// After so many updates the longest log was seen.
const UPDATES: u64 = 3_000_000;
const CHILD: &str = "--killed";
/// What the log may have by default.
const DEFAULT_BYTES: u64 = 100 << 20;

/// What was asked for, in the order of the command line.
struct Setup {
    directory: String,
    record_bytes: usize,
    records: u64,
    memory: u64,
    log_bytes: u64,
    engine: EngineKind,
}

impl Setup {
    fn parse(arguments: &[String]) -> Option<Setup> {
        let number = |index: usize, default: u64| match arguments.get(index) {
            Some(text) => text.parse().ok(),
            None => Some(default),
        };
        Some(Setup {
            directory: arguments.first()?.clone(),
            record_bytes: usize::try_from(number(1, 64)?).ok()?.clamp(9, 4000),
            records: number(2, 1_000_000)?.max(1),
            memory: number(3, 85)? << 20,
            log_bytes: number(4, 100)? << 20,
            engine: match arguments.get(5) {
                Some(name) => name.parse().ok()?,
                None => EngineKind::TreeLine,
            },
        })
    }

    fn open(&self) -> spinney::Result<Db> {
        let mut options = Options::default().memory(self.memory);
        if self.log_bytes > DEFAULT_BYTES {
            options = options.log_bytes_max(4 * self.log_bytes);
        }
        Db::open(Path::new(&self.directory), options)
    }

    fn keyspace(&self, db: &Db) -> spinney::Result<Keyspace> {
        db.keyspace("k", KeyspaceOptions::default().engine(self.engine))
    }
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number ^ (number >> 27)
}

/// Loads, updates, and ends as by a kill.
fn write_and_die(setup: &Setup) -> spinney::Result<()> {
    let db = setup.open()?;
    let keyspace = setup.keyspace(&db)?;
    let value = vec![7; setup.record_bytes - 8];
    for start in (0..setup.records).step_by(500) {
        let mut batch = Batch::new();
        for number in start..(start + 500).min(setup.records) {
            batch.insert(&keyspace, key(number), value.clone());
        }
        db.write_with(batch, Durability::Buffered)?;
    }
    db.checkpoint()?;
    let (next, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let write = || -> spinney::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let key = key(mix(number) % setup.records);
            keyspace.insert_with(key, &value, Durability::Buffered)?;
            if number % 1000 > 0 {
                continue;
            }
            let used = db.stats().log.bytes_used;
            let longest = longest.fetch_max(used, Ordering::Relaxed).max(used);
            let is_as_long = || setup.log_bytes <= DEFAULT_BYTES && used * 20 >= longest * 19;
            if used >= setup.log_bytes || number > UPDATES && is_as_long() {
                std::process::abort();
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(write)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}

#[expect(clippy::cast_precision_loss, reason = "some MiB")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let child = arguments.first().is_some_and(|first| first == CHILD);
    if child {
        arguments.remove(0);
    }
    let setup = Setup::parse(&arguments)
        .ok_or("DIRECTORY [RECORD_BYTES [RECORDS [MEMORY_MIB [LOG_MIB [ENGINE]]]]]")?;
    if child {
        write_and_die(&setup)?;
        return Ok(());
    }
    if !Path::new(&setup.directory).exists() {
        let status = Command::new(std::env::current_exe()?).arg(CHILD).args(&arguments).status()?;
        println!("the writer ended with {status}");
    }
    let clock = Runtime::threads();
    let db = setup.open()?;
    let seconds = clock.now().as_secs_f64();
    let used = db.stats().log.bytes_used as f64 / f64::from(1 << 20);
    println!(
        "records of {} B: opened in {seconds:.2} s with {used:.0} MiB of log, {:.2} s for 100 MiB",
        setup.record_bytes,
        seconds * 100.0 / used
    );
    let keyspace = setup.keyspace(&db)?;
    for number in (0..setup.records).step_by(997) {
        if keyspace.get(key(number))?.is_none() {
            return Err(format!("record {number} is lost").into());
        }
    }
    db.close()?;
    std::fs::remove_dir_all(&setup.directory)?;
    Ok(())
}
