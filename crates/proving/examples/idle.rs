//! What idle keyspaces cost: makes many in a directory, writes and reads records in all of them in turn,
//! leaves them alone, and prints threads, descriptors, memory with its peak, and processor time; then
//! opens the database again and says how long that took.
//!
//! ```text
//! (ulimit -n 256; cargo run --release -p spinney-proving --example idle -- DIRECTORY [KEYSPACES [MEBIBYTES [RECORDS]]])
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use spinney::{Db, Durability, EngineKind, KeyspaceOptions, Options};

/// A number of `/proc/self/status`.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Processor time of the process so far.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let mut all: u64 = text.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(0);
    if let Ok(tasks) = std::fs::read_dir("/proc/self/task") {
        all = 0;
        for task in tasks.flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let ran = text.split_whitespace().next().and_then(|it| it.parse::<u64>().ok());
            all += ran.unwrap_or(0);
        }
    }
    Duration::from_nanos(all)
}

fn open(path: &Path, mebibytes: u64) -> spinney::Result<Db> {
    #[expect(clippy::disallowed_methods, reason = "a program that measures")]
    let start = Instant::now();
    let db = Db::open(path, Options::default().memory(mebibytes << 20))?;
    println!("opened in {:?}", start.elapsed());
    Ok(db)
}

/// Waits until nothing is open, and then looks for ten seconds.
fn look(db: &Db) {
    let open = || db.stats().keyspaces.iter().filter(|keyspace| !keyspace.is_parked).count();
    for _ in 0..200 {
        if open() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(5));
    let before = processor();
    std::thread::sleep(Duration::from_secs(10));
    let each = (processor().saturating_sub(before)) / 10;
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) - 1;
    println!(
        "{} threads, {descriptors} descriptors, {} KiB resident ({} at most), {each:?} of processor a second, {} open",
        status("Threads"),
        status("VmRSS"),
        status("VmHWM"),
        open(),
    );
    let stats = db.stats();
    for one in stats.keyspaces.iter().filter(|keyspace| !keyspace.is_parked).take(8) {
        println!("{} ({}) is open, with {} dirty records", one.name, one.engine, one.records_dirty);
    }
}

/// Writes and reads records of 100 bytes, a hundred in one keyspace after the other.
fn work(db: &Db, records: u64) -> spinney::Result<()> {
    let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    for first in (0..records).step_by(100) {
        let name = &names[(first / 100) as usize % names.len()];
        let keyspace = db.existing_keyspace(name)?;
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        for number in first..first + 100 {
            keyspace.insert_with(key(number), [number as u8; 92], Durability::Buffered)?;
        }
        for number in first..first + 100 {
            assert!(keyspace.contains_key(key(number))?);
        }
    }
    Ok(())
}

fn main() -> spinney::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let path = Path::new(arguments.get(1).map_or("idle-keyspaces", String::as_str));
    let (keyspaces, mebibytes) = (number(2, 4096), number(3, 768));
    let db = open(path, mebibytes)?;
    for number in db.keyspaces().len() as u64..keyspaces {
        let engine = EngineKind::ALL[number as usize % EngineKind::ALL.len()];
        let keyspace =
            db.keyspace(&format!("k{number}"), KeyspaceOptions::default().engine(engine))?;
        keyspace.insert_with(b"key", b"value", Durability::Buffered)?;
    }
    work(&db, number(4, 0))?;
    look(&db);
    db.close()?;
    let db = open(path, mebibytes)?;
    look(&db);
    db.close()
}
