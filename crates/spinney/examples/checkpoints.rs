//! What checkpoints cost commits beside them, and what they write.
//!
//!     cargo run --release -p spinney --example checkpoints -- DIRECTORY [RECORDS [SECONDS]]
//!
//! DIRECTORY must not exist; it is removed at the end. Threads commit transactions that each read and write four of RECORDS
//! (1000000) records of 100 bytes of an `iot` keyspace: for SECONDS (8) with a log that is long enough for all of them, so
//! that no checkpoint comes, and again with one of 128 MiB. Before, they do so for twice as long: a log that grows costs
//! commits more than one whose segments are used again. Then a few records are changed, or many, and the bytes are counted
//! that a checkpoint writes.

use std::path::Path;
use std::time::Duration;

use spinney::{Db, Durability, EngineKind, Keyspace, Options};
use spinney_base::Runtime;

const MIB: u64 = 1 << 20;
const AT_ONCE: u64 = 4;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number ^ (number >> 27)
}

/// Commits transactions until the time is up. Returns how long each took, in nanoseconds.
fn commit(db: &Db, keyspace: &Keyspace, records: u64, thread: u64, until: Duration) -> Vec<u64> {
    let (clock, mut took) = (Runtime::threads(), Vec::new());
    let mut number = thread << 40;
    while clock.now() < until {
        let begun = clock.now();
        let done: spinney::Result<()> = db.transact(|transaction| {
            for at in 0..AT_ONCE {
                let key = key(mix(number + at) % records);
                let mut value = transaction.get(keyspace, key)?.expect("it is there").to_vec();
                value[..8].copy_from_slice(&number.to_be_bytes());
                transaction.insert(keyspace, key, value)?;
            }
            Ok(())
        });
        done.expect("the disk has room");
        number += AT_ONCE;
        took.push(u64::try_from((clock.now() - begun).as_nanos()).expect("it is short"));
    }
    took
}

/// Does the same with some threads.
fn commit_all(db: &Db, keyspace: &Keyspace, records: u64, threads: u64, seconds: u64) -> Vec<u64> {
    std::thread::scope(|scope| {
        let until = Duration::from_secs(seconds);
        let one = |thread| scope.spawn(move || commit(db, keyspace, records, thread, until));
        let threads: Vec<_> = (0..threads).map(one).collect();
        let took = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        took.flatten().collect()
    })
}

/// Bytes that were written, for whatever purpose.
fn written(db: &Db) -> u64 {
    db.stats().io.by_purpose.iter().map(|counts| counts.write_bytes).sum()
}

#[expect(clippy::cast_precision_loss, reason = "some MiB, and less than a minute")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("DIRECTORY [RECORDS [SECONDS]]")?;
    let number =
        |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let (records, seconds) = (number(1, 1_000_000)?, number(2, 8)?);
    if Path::new(directory).exists() {
        return Err(format!("{directory} exists").into());
    }
    println!("| threads | log, MiB | checkpoints | commits/s | p50 us | p99 us | p99.9 us |");
    println!("|---------|----------|-------------|-----------|--------|--------|----------|");
    let mut ends = None;
    for (threads, log) in [(1, 4096), (1, 128), (2, 4096), (2, 128)] {
        drop(ends.take());
        let options = Options::default().memory(2048 * MIB).durability(Durability::Buffered);
        let db = Db::open(Path::new(directory), options.log_bytes_max(log * MIB))?;
        let keyspace = db.keyspace("k", EngineKind::Iot)?;
        (0..records).try_for_each(|number| keyspace.insert(key(number), [7; 92]))?;
        db.checkpoint()?;
        commit_all(&db, &keyspace, records, threads, 2 * seconds);
        db.checkpoint()?;
        let before = keyspace.stats().checkpoints;
        let mut took = commit_all(&db, &keyspace, records, threads, seconds);
        took.sort_unstable();
        let part = |per_mille: usize| took[took.len() * per_mille / 1000] as f64 / 1000.0;
        println!(
            "| {threads} | {log} | {} | {} | {:.1} | {:.1} | {:.1} |",
            keyspace.stats().checkpoints - before,
            took.len() as u64 / seconds,
            part(500),
            part(990),
            part(999),
        );
        ends = Some((db, keyspace));
    }
    let (db, keyspace) = ends.expect("there were some");
    println!("\n| records changed | leaves changed at most | MiB written by a checkpoint |");
    println!("|-----------------|------------------------|-----------------------------|");
    for changed in [0, 10, 1000, 100_000] {
        db.checkpoint()?;
        for number in 0..changed {
            keyspace.insert(key(mix(number) % records), [8; 92])?;
        }
        let before = written(&db);
        db.checkpoint()?;
        let written = (written(&db) - before) as f64 / MIB as f64;
        println!("| {changed} | {changed} | {written:.2} |");
    }
    drop(keyspace);
    db.close()?;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
