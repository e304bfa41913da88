//! Rules that only a schedule can break, under shuttle: the database itself on the simulated disk,
//! its threads stopped at any lock or atomic. Run with `cargo test -p spinney-db --features shuttle
//! --test schedules`.
#![cfg(feature = "shuttle")]

use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Batch, Db, KeyspaceOptions, Options, TornWrites};
use spinney_io::sim::{CrashMode, SimDisk};

fn open(disk: &SimDisk) -> Db {
    let options = Options::default()
        .memory(1 << 20)
        .log_bytes_max(1 << 20)
        .torn_writes(TornWrites::Assume4k)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1));
    Db::open(Path::new("/db"), options).unwrap()
}

fn check(iterations: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 16 << 20;
    config.max_steps = shuttle::MaxSteps::None;
    let runner = shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(iterations), config);
    runner.run(body);
}

/// P1: a writer is stopped between its append and its apply; a checkpoint must not publish past it.
#[test]
fn p01_checkpoint_beside_a_writer() {
    check(150, || {
        let disk = SimDisk::new(1);
        let db = open(&disk);
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        keyspace.insert(b"before", b"1").unwrap();
        let writer = keyspace.clone();
        let thread = shuttle::thread::spawn(move || writer.insert(b"beside", b"2").unwrap());
        db.checkpoint().unwrap();
        thread.join().unwrap();
        let db = open(&disk.crash(CrashMode::LoseAll));
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        assert_eq!(keyspace.get(b"before").unwrap().unwrap(), b"1");
        assert_eq!(keyspace.get(b"beside").unwrap().unwrap(), b"2");
    });
}

/// P3: who saw the new value of one key of a batch sees the new value of the other.
#[test]
fn p03_batches_are_seen_whole() {
    check(1500, || {
        let disk = SimDisk::new(1);
        let db = open(&disk);
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        let (writer, writing) = (db.clone(), keyspace.clone());
        let thread = shuttle::thread::spawn(move || {
            let mut batch = Batch::new();
            batch.insert(&writing, *b"a", *b"new");
            batch.insert(&writing, *b"b", *b"new");
            writer.write(batch).unwrap();
        });
        for (first, second) in [(b"a", b"b"), (b"b", b"a")].repeat(8) {
            let saw = keyspace.get(first).unwrap().is_some();
            let sees = keyspace.get(second).unwrap().is_some();
            assert!(sees || !saw, "half a batch");
        }
        thread.join().unwrap();
    });
}

/// P23: a record that is brought home and leaves the cache while a scan or a lookup is under way is
/// seen all the same.
#[test]
fn p23_records_on_their_way_home_are_seen() {
    check(60, || {
        let disk = SimDisk::new(1);
        let db = open(&disk);
        let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(false)).unwrap();
        for number in 0..20u8 {
            keyspace.insert(&[number], &[1; 300]).unwrap();
        }
        db.checkpoint().unwrap();
        for number in (0..20u8).step_by(2) {
            keyspace.insert(&[number], &[2; 300]).unwrap();
        }
        let home = db.clone();
        let evict = keyspace.clone();
        let thread = shuttle::thread::spawn(move || {
            home.checkpoint().unwrap();
            // Fills the cache, so that what is clean now leaves.
            for number in 0..120u8 {
                evict.insert(&[100, number], &[3; 3000]).unwrap();
            }
        });
        for _ in 0..2 {
            let records: Vec<_> = keyspace
                .range([0].as_slice()..[20].as_slice())
                .map(|record| record.unwrap())
                .collect();
            assert_eq!(records.len(), 20);
            for (key, value) in records {
                assert_eq!(
                    value[0],
                    1 + u8::from(key[0].is_multiple_of(2)),
                    "an older version came back"
                );
            }
            for number in 0..20u8 {
                let value = keyspace.get(&[number]).unwrap().unwrap();
                assert_eq!(
                    value[0],
                    1 + u8::from(number.is_multiple_of(2)),
                    "an older version came back"
                );
            }
        }
        thread.join().unwrap();
    });
}

/// P14, P15: background work publishes changes of structure while a checkpoint takes its snapshot;
/// a crash right after finds each change exactly once.
#[test]
fn p15_structure_beside_a_checkpoint() {
    check(60, || {
        let disk = SimDisk::new(1);
        let db = open(&disk);
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        let writer = keyspace.clone();
        let thread = shuttle::thread::spawn(move || {
            for number in 0..40u8 {
                writer
                    .insert_with(&[number], &[number; 1000], spinney_db::Durability::Buffered)
                    .unwrap();
            }
        });
        let home = db.clone();
        let other = shuttle::thread::spawn(move || home.checkpoint().unwrap());
        db.checkpoint().unwrap();
        other.join().unwrap();
        thread.join().unwrap();
        db.flush().unwrap();
        db.verify().unwrap();
        let db = open(&disk.crash(CrashMode::LoseAll));
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        for number in 0..40u8 {
            assert_eq!(keyspace.get(&[number]).unwrap().unwrap(), &[number; 1000]);
        }
        db.verify().unwrap();
    });
}
