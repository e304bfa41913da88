//! Rules that only a schedule can break, under shuttle: the database itself on the simulated disk,
//! its threads stopped at any lock or atomic. Run with `cargo test -p spinney-db --features shuttle
//! --test schedules`.
#![cfg(feature = "shuttle")]

#[path = "schedules/versions.rs"]
mod versions;

use std::path::Path;
use std::sync::Arc;

use shuttle::thread::JoinHandle;
use spinney_base::Runtime;
use spinney_base::schedules::check;
use spinney_db::{
    Batch, Db, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options, Snapshot,
    TornWrites,
};
use spinney_io::sim::{CrashMode, SimDisk};

/// Small, so that caches fill up.
const MEMORY: u64 = 1 << 20;

fn options(disk: &SimDisk, runtime: Runtime, memory: u64) -> Options {
    Options::default()
        .memory(memory)
        .log_bytes_max(1 << 20)
        .torn_writes(TornWrites::Assume4k)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime)
}

fn open_with(disk: &SimDisk, logged: bool, runtime: Runtime, memory: u64) -> (Db, Keyspace) {
    let db = Db::open(Path::new("/db"), options(disk, runtime, memory)).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(logged)).unwrap();
    (db, keyspace)
}

/// The database on a disk and its one keyspace.
fn open(disk: &SimDisk) -> (Db, Keyspace) {
    open_with(disk, true, Runtime::stepped(1), MEMORY)
}

/// A new disk and a database on it.
fn fresh() -> (SimDisk, Db, Keyspace) {
    let disk = SimDisk::new(1);
    let (db, keyspace) = open(&disk);
    (disk, db, keyspace)
}

/// A new database with so many dirty records of one page, numbers of two bytes, that the background
/// writes them back at once, in a thread of its own.
fn beside_the_background() -> (SimDisk, Db, Keyspace, JoinHandle<()>) {
    let disk = SimDisk::new(1);
    let runtime = Runtime::stepped(1);
    // The batch is to fit, though shuttle's atomics take much of the cache.
    let (db, keyspace) = open_with(&disk, true, runtime.clone(), 2 * MEMORY);
    let mut batch = Batch::new();
    for number in 0..1024u16 {
        batch.insert(&keyspace, number.to_be_bytes(), *b"1");
    }
    db.write_with(batch, Durability::Buffered).unwrap();
    let thread = shuttle::thread::spawn(move || {
        for _ in 0..6 {
            runtime.step();
        }
    });
    (disk, db, keyspace, thread)
}

/// P1: a writer is stopped between its append and its apply; a checkpoint must not publish past it.
#[test]
fn p01_checkpoint_beside_a_writer() {
    check(400, || {
        let (disk, db, keyspace) = fresh();
        keyspace.insert(b"before", b"1").unwrap();
        let writer = keyspace.clone();
        let thread = shuttle::thread::spawn(move || writer.insert(b"beside", b"2").unwrap());
        db.checkpoint().unwrap();
        thread.join().unwrap();
        let (_db, keyspace) = open(&disk.crash(CrashMode::LoseAll));
        assert_eq!(keyspace.get(b"before").unwrap().unwrap(), b"1");
        assert_eq!(keyspace.get(b"beside").unwrap().unwrap(), b"2");
    });
}

/// P3: who saw the new value of one key of a batch sees the new value of the other.
#[test]
fn p03_batches_are_seen_whole() {
    check(1500, || {
        let (_disk, db, keyspace) = fresh();
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

/// P23: a record that is written back and leaves the cache while a scan or a lookup is under way is
/// seen all the same.
#[test]
fn p23_records_on_their_way_home_are_seen() {
    check(100, || {
        let disk = SimDisk::new(1);
        let (db, keyspace) = open_with(&disk, false, Runtime::stepped(1), MEMORY);
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
    check(300, || {
        let (disk, db, keyspace) = fresh();
        let writer = keyspace.clone();
        let thread = shuttle::thread::spawn(move || {
            for number in 0..40u8 {
                writer.insert_with(&[number], &[number; 1000], Durability::Buffered).unwrap();
            }
        });
        let home = db.clone();
        let other = shuttle::thread::spawn(move || home.checkpoint().unwrap());
        db.checkpoint().unwrap();
        other.join().unwrap();
        thread.join().unwrap();
        db.flush().unwrap();
        db.verify().unwrap();
        let (db, keyspace) = open(&disk.crash(CrashMode::LoseAll));
        for number in 0..40u8 {
            assert_eq!(keyspace.get(&[number]).unwrap().unwrap(), &[number; 1000]);
        }
        db.verify().unwrap();
    });
}

/// P14: the background splits a segment while a checkpoint waits for its page; what became dirty
/// after the background had taken the segment's list must not be passed over (found by power losses
/// beside threads: half of an acknowledged batch was gone).
#[test]
fn p14_a_checkpoint_goes_back_to_segments_that_split() {
    check(15, || {
        let (disk, db, keyspace, thread) = beside_the_background();
        let late: Vec<[u8; 3]> = [0, 1, 2, 3].map(|high| [high, 128, 0]).to_vec();
        for key in &late {
            keyspace.insert(key, b"late").unwrap();
        }
        db.checkpoint().unwrap();
        let image = disk.crash(CrashMode::LoseAll);
        thread.join().unwrap();
        let (_db, keyspace) = open(&image);
        for key in &late {
            assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&b"late"[..]), "{key:?}");
        }
    });
}

/// A large value whose bytes say their version.
fn large(version: u8) -> Vec<u8> {
    vec![version; 9_000 + usize::from(version)]
}

fn is_large(value: &[u8]) -> bool {
    value.first().is_some_and(|version| value == large(*version))
}

/// P17: any thread that reads a large value reads it whole, though it is overwritten meanwhile and
/// checkpoints give its room to others.
#[test]
fn p17_readers_beside_room_that_is_given_back() {
    use std::io::Read;
    check(250, || {
        let (_disk, db, keyspace) = fresh();
        keyspace.insert(b"a", &large(1)).unwrap();
        let (writer, writing) = (db.clone(), keyspace.clone());
        let thread = shuttle::thread::spawn(move || {
            for version in 2..5 {
                writing.insert(b"a", &large(version)).unwrap();
                writer.checkpoint().unwrap();
                // Takes what the checkpoint gave back.
                writing.insert(b"b", &large(version + 100)).unwrap();
            }
        });
        for _ in 0..3 {
            assert!(is_large(&keyspace.get(b"a").unwrap().unwrap()));
            let mut found = Vec::new();
            let mut reader = keyspace.get_reader(b"a").unwrap().unwrap();
            reader.read_to_end(&mut found).unwrap();
            assert!(is_large(&found));
        }
        for record in keyspace.iter() {
            assert!(is_large(&record.unwrap().1));
        }
        thread.join().unwrap();
        db.verify().unwrap();
    });
}

/// P17: a large value is put beside a checkpoint: whichever of them comes first at any step, a
/// crash finds it, and every page is owned once or free.
#[test]
fn p17_a_checkpoint_beside_large_values() {
    large_values_beside_a_checkpoint(true, 200);
}

/// The same in a keyspace without a log: no LSN says there which puts a checkpoint covers.
#[test]
fn p17_a_checkpoint_beside_large_values_without_a_log() {
    large_values_beside_a_checkpoint(false, 800);
}

fn large_values_beside_a_checkpoint(logged: bool, iterations: u64) {
    check(iterations, move || {
        let disk = SimDisk::new(1);
        let open = |disk: &SimDisk| open_with(disk, logged, Runtime::stepped(1), MEMORY);
        let (db, keyspace) = open(&disk);
        keyspace.insert(b"a", &large(1)).unwrap();
        db.checkpoint().unwrap();
        let writing = keyspace.clone();
        let thread = shuttle::thread::spawn(move || {
            writing.insert(b"a", &large(2)).unwrap();
            writing.insert(b"b", &large(3)).unwrap();
        });
        db.checkpoint().unwrap();
        let early = disk.crash(CrashMode::KeepAll);
        thread.join().unwrap();
        for (disk, whole) in [(early, false), (disk.crash(CrashMode::LoseAll), logged)] {
            let (db, keyspace) = open(&disk);
            let (a, b) = (keyspace.get(b"a").unwrap(), keyspace.get(b"b").unwrap());
            if whole {
                assert!(a.unwrap() == *large(2) && b.unwrap() == *large(3));
            } else {
                let a = a.unwrap();
                assert!(a == *large(1) || a == *large(2));
                assert!(b.is_none_or(|b| b == *large(3)));
            }
            check_large_values(&db, &keyspace);
        }
    });
}

/// Every page is owned once or free, and after checkpoints only live values have pages.
fn check_large_values(db: &Db, keyspace: &Keyspace) {
    db.verify().unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    db.verify().unwrap();
    let stats = keyspace.stats();
    let values = keyspace.iter().map(|record| record.unwrap().1);
    assert_eq!(stats.large_values, values.filter(|value| is_large(value)).count() as u64);
    assert_eq!(stats.large_freed_bytes, 0);
}

/// P17: without a log large values are overwritten, replaced by small ones and removed beside
/// checkpoints and beside background write-back, and their room is used again. Whenever the power
/// fails, each key has a value that it had, whole.
#[test]
fn p17_room_is_used_again_without_a_log() {
    check(250, || room_is_used_again_without_a_log(EngineKind::TreeLine, 0));
    // A dirty list so long that the background writes it back at once.
    check(40, || room_is_used_again_without_a_log(EngineKind::TreeLine, 1023));
    check(60, || room_is_used_again_without_a_log(EngineKind::Turtle, 0));
}

fn room_is_used_again_without_a_log(engine: EngineKind, small: u16) {
    let disk = SimDisk::new(1);
    let runtime = Runtime::stepped(1);
    let kind = KeyspaceOptions::default().engine(engine).logged(false);
    let open = |disk: &SimDisk, runtime| {
        let db = Db::open(Path::new("/db"), options(disk, runtime, 2 * MEMORY)).unwrap();
        let keyspace = db.keyspace("k", kind.clone()).unwrap();
        (db, keyspace)
    };
    let (db, keyspace) = open(&disk, runtime.clone());
    keyspace.insert(b"a", &large(1)).unwrap();
    keyspace.insert(b"b", &large(2)).unwrap();
    db.checkpoint().unwrap();
    let mut batch = Batch::new();
    for number in 0..small {
        batch.insert(&keyspace, number.to_be_bytes(), "small");
    }
    db.write(batch).unwrap();
    let (writing, crashing) = (keyspace.clone(), disk.clone());
    let writer = shuttle::thread::spawn(move || {
        let mut images = Vec::new();
        let mut crash = |mode| images.push(crashing.crash(mode));
        writing.insert(b"a", &large(3)).unwrap();
        crash(CrashMode::KeepAll);
        writing.remove(b"b").unwrap();
        writing.insert(b"b", &large(4)).unwrap();
        crash(CrashMode::LoseAll);
        writing.insert(b"b", b"small").unwrap();
        writing.insert(b"a", &large(5)).unwrap();
        crash(CrashMode::Torn4K);
        images
    });
    let background = shuttle::thread::spawn(move || (0..3).for_each(|_| _ = runtime.step()));
    let mut images = Vec::new();
    for mode in [CrashMode::KeepAll, CrashMode::LoseAll] {
        db.checkpoint().unwrap();
        images.push(disk.crash(mode));
    }
    images.extend(writer.join().unwrap());
    background.join().unwrap();
    images.push(disk.crash(CrashMode::KeepAll));
    for image in images {
        let (db, keyspace) = open(&image, Runtime::stepped(1));
        let a = keyspace.get(b"a").unwrap().unwrap();
        assert!([1, 3, 5].iter().any(|version| a == *large(*version)));
        let b = keyspace.get(b"b").unwrap();
        assert!(b.is_none_or(|b| b == b"small"[..] || b == *large(2) || b == *large(4)));
        check_large_values(&db, &keyspace);
    }
}

/// P17: threads that put large values share syncs of the file; each one's value is on stable
/// storage when its put returns.
#[test]
fn p17_shared_syncs_cover_everybody() {
    check(300, || {
        let (disk, _db, keyspace) = fresh();
        let threads: Vec<_> = (1..4)
            .map(|version| {
                let (keyspace, disk) = (keyspace.clone(), disk.clone());
                shuttle::thread::spawn(move || {
                    keyspace.insert(&[version], &large(version)).unwrap();
                    disk.crash(CrashMode::LoseAll)
                })
            })
            .collect();
        for (thread, version) in threads.into_iter().zip(1..) {
            let (_db, keyspace) = open(&thread.join().unwrap());
            assert!(keyspace.get(&[version]).unwrap().unwrap() == *large(version));
        }
    });
}

/// S4: keyspaces that update in place have their tables before any batch finds the number: a batch over
/// two of them is in a snapshot whole or not at all, and the snapshot does not move.
#[test]
fn s04_tables_come_before_the_number() {
    check(400, || {
        let (_disk, db, one) = fresh();
        let options = KeyspaceOptions::default().engine(EngineKind::TreeLine);
        let two = db.keyspace("two", options).unwrap();
        one.insert("a", "1").unwrap();
        two.insert("a", "1").unwrap();
        let (writer, ones, twos) = (db.clone(), one.clone(), two.clone());
        let thread = shuttle::thread::spawn(move || {
            let mut batch = Batch::new();
            batch.insert(&ones, "a", "2").insert(&twos, "a", "2");
            writer.write(batch).unwrap();
        });
        let snapshot = db.snapshot().unwrap();
        let seen = || {
            [&one, &two].map(|keyspace| {
                let part = snapshot.keyspace(keyspace).unwrap();
                part.get("a").unwrap().unwrap().as_ref().to_vec()
            })
        };
        let first = seen();
        thread.join().unwrap();
        assert_eq!(first[0], first[1], "half a batch");
        assert_eq!(seen(), first, "it moved");
    });
}

/// D4: reads, writes and scans beside repeated parking find what was acknowledged, and so does the
/// next life.
#[test]
fn d4_operations_beside_parking() {
    check(300, || {
        let disk = SimDisk::new(1);
        let runtime = Runtime::stepped(1);
        let options = Options::default()
            .memory(MEMORY)
            .log_bytes_max(1 << 20)
            .torn_writes(TornWrites::Assume4k)
            .park_after(std::time::Duration::ZERO)
            .disk(Arc::new(disk.clone()))
            .runtime(runtime.clone());
        let db = Db::open(Path::new("/db"), options).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        let thread = shuttle::thread::spawn(move || {
            for _ in 0..12 {
                runtime.step();
            }
        });
        for number in 0..4u8 {
            keyspace.insert(&[number], &[number]).unwrap();
            assert_eq!(keyspace.get(&[number / 2]).unwrap().unwrap(), &[number / 2]);
            assert_eq!(keyspace.iter().count(), usize::from(number) + 1);
        }
        thread.join().unwrap();
        drop(db);
        let (_db, keyspace) = open(&disk.crash(CrashMode::LoseAll));
        assert_eq!(keyspace.iter().count(), 4);
    });
}

/// T1, T2: of two transactions that read what the other writes, one commits at most.
#[test]
fn t01_write_skew_has_a_loser() {
    check(600, || {
        let (_disk, db, keyspace) = fresh();
        let run = |mine: &'static str| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            move || {
                let mut transaction = db.begin().unwrap();
                let is_free = ["x", "y"].map(|key| transaction.contains_key(&keyspace, key));
                let is_free = is_free.into_iter().all(|is_there| is_there.is_ok_and(|it| !it));
                is_free
                    && transaction.insert(&keyspace, mine, "taken").is_ok()
                    && transaction.commit().is_ok()
            }
        };
        let other = shuttle::thread::spawn(run("y"));
        let mine = run("x")();
        let others = other.join().unwrap();
        assert!(!(mine && others), "both read that nothing was taken");
    });
}

/// T7: a writer has unlocked one key of its batch and still holds the other, of which a reader knows
/// the old value. What came after the first key must not be read beside that.
#[test]
fn t07_a_reader_waits_for_the_rest_of_a_batch() {
    check(600, || {
        let (_disk, db, keyspace) = fresh();
        let (writer, writing) = (db.clone(), keyspace.clone());
        let batch = shuttle::thread::spawn(move || {
            let mut batch = Batch::new();
            batch.insert(&writing, "a", "new").insert(&writing, "b", "new");
            writer.write(batch).unwrap();
        });
        let (follower, following) = (db.clone(), keyspace.clone());
        let after = shuttle::thread::spawn(move || {
            let mut transaction = follower.begin().unwrap();
            if transaction.contains_key(&following, "a").unwrap() {
                transaction.insert(&following, "after a", "new").unwrap();
                transaction.commit().unwrap();
            }
        });
        for (first, second) in [("a", "b"), ("b", "a")] {
            let transaction = db.begin().unwrap();
            let (one, next) = (
                transaction.contains_key(&keyspace, first).unwrap(),
                transaction.contains_key(&keyspace, "after a"),
            );
            if let Ok(next) = next {
                assert!(one || !next, "what came after {first}, beside what was before it");
                if let Ok(two) = transaction.contains_key(&keyspace, second) {
                    assert_eq!(one, two, "half a batch");
                }
            }
        }
        batch.join().unwrap();
        after.join().unwrap();
    });
}

/// T4, T5: of two transactions that count a range and write into it, one commits at most.
#[test]
fn t04_of_two_that_count_a_range_one_writes_into_it() {
    check(6000, || {
        let (_disk, db, keyspace) = fresh();
        let run = |mine: &'static str| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            move || {
                let mut transaction = db.begin().unwrap();
                let first = transaction.range(&keyspace, "a".."z").next();
                first.is_none()
                    && transaction.insert(&keyspace, mine, "counted none").is_ok()
                    && transaction.commit().is_ok()
            }
        };
        let other = shuttle::thread::spawn(run("q"));
        let mine = run("p")();
        let others = other.join().unwrap();
        assert!(!(mine && others), "both counted none");
        assert_eq!(db.stats().transactions.guards, 0);
    });
}

/// T5, T6: a plain write into a range that a transaction has read, and that somebody has seen
/// together with the absence of what the transaction writes.
#[test]
fn t06_plain_writes_take_part_in_the_order() {
    check(800, || {
        let (_disk, db, keyspace) = fresh();
        let (writer, writing) = (db.clone(), keyspace.clone());
        let range = shuttle::thread::spawn(move || {
            let mut transaction = writer.begin().unwrap();
            let is_empty = transaction.range(&writing, "a".."c").next().is_none();
            is_empty
                && transaction.insert(&writing, "x", "none in the range").is_ok()
                && transaction.commit().is_ok()
        });
        let plain = keyspace.clone();
        let put = shuttle::thread::spawn(move || plain.insert("b", "1").unwrap());
        let reader = db.begin().unwrap();
        let b = reader.contains_key(&keyspace, "b");
        let x = reader.contains_key(&keyspace, "x");
        let saw_only_b = matches!((b, x), (Ok(true), Ok(false)));
        let committed = range.join().unwrap();
        put.join().unwrap();
        // The transaction came before the put, for it read the range without it; so one that sees the
        // put sees what the transaction wrote.
        assert!(!(committed && saw_only_b), "put, reader, transaction, put");
    });
}

/// T1, T3: of two batches that each expect both keys to be absent and write one, one is written.
#[test]
fn t01_of_batches_that_expect_each_others_key_one_is_written() {
    check(600, || {
        let (_disk, db, keyspace) = fresh();
        let run = |mine: &'static str| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            move || {
                let mut batch = Batch::new();
                batch.expect(&keyspace, "x", None).expect(&keyspace, "y", None);
                db.write(batch.insert(&keyspace, mine, "taken")).is_ok()
            }
        };
        let other = shuttle::thread::spawn(run("y"));
        let mine = run("x")();
        assert!(mine != other.join().unwrap(), "one is written");
    });
}

/// The value of a key in a snapshot; 0 where it has none.
fn number(snapshot: &Snapshot, key: &[u8]) -> u8 {
    snapshot.get(key).unwrap().map_or(0, |value| value[0])
}

/// S1, S2: a batch is in a snapshot whole or not at all, what was acknowledged before is, and what it has
/// answered it answers again.
#[test]
fn s01_s02_batches_are_before_or_after() {
    check(1500, || {
        let (_disk, db, keyspace) = fresh();
        let (writer, writing) = (db.clone(), keyspace.clone());
        let done = Arc::new(shuttle::sync::atomic::AtomicU8::new(0));
        let told = done.clone();
        let thread = shuttle::thread::spawn(move || {
            for round in 1..4u8 {
                let mut batch = Batch::new();
                batch.insert(&writing, *b"a", [round]);
                batch.insert(&writing, *b"b", [round]);
                writer.write_with(batch, Durability::Buffered).unwrap();
                told.store(round, shuttle::sync::atomic::Ordering::SeqCst);
            }
        });
        for _ in 0..2 {
            let least = done.load(shuttle::sync::atomic::Ordering::SeqCst);
            let snapshot = keyspace.snapshot().unwrap();
            let first = [number(&snapshot, b"a"), number(&snapshot, b"b")];
            assert_eq!(first[0], first[1], "half a batch");
            assert!(first[0] >= least, "what was acknowledged is missing");
            for _ in 0..3 {
                shuttle::thread::yield_now();
                assert_eq!([number(&snapshot, b"a"), number(&snapshot, b"b")], first, "it moved");
            }
        }
        thread.join().unwrap();
    });
}

/// S1: of two transactions that read what the other writes, a snapshot between them has the one that
/// came first in the order of their checks: no write skew that only the snapshot shows.
#[test]
fn s01_a_snapshot_is_of_one_moment_of_transactions() {
    check(3000, || {
        let (_disk, db, keyspace) = fresh();
        // First reads x and writes y; second writes x without reading. Who sees the second's x without the
        // first's y has seen an order in which the first comes after the second, though it read the x
        // from before.
        let (one, first) = (db.clone(), keyspace.clone());
        let reader = shuttle::thread::spawn(move || {
            let mut transaction = one.begin().unwrap();
            let seen = transaction.get(&first, b"x").unwrap().is_some();
            transaction.insert(&first, b"y", [1]).unwrap();
            (seen, transaction.commit().is_ok())
        });
        let second = keyspace.clone();
        let writer = shuttle::thread::spawn(move || {
            second.insert_with(b"x", [1], Durability::Buffered).unwrap();
        });
        let snapshot = keyspace.snapshot().unwrap();
        let [x, y] = [number(&snapshot, b"x"), number(&snapshot, b"y")];
        let (saw_x, committed) = reader.join().unwrap();
        writer.join().unwrap();
        if committed && !saw_x {
            assert!(x == 0 || y == 1, "the snapshot has the later write without the earlier one");
        }
        if committed && saw_x {
            assert!(y == 0 || x == 1, "the snapshot has a write without what it was made from");
        }
    });
}

/// S1: as before, of a transaction that has read already and that commits beside a write and a snapshot.
#[test]
fn s01_a_commit_beside_a_snapshot_is_before_or_after_it() {
    check(3000, || {
        let (_disk, db, keyspace) = fresh();
        let mut transaction = db.begin().unwrap();
        assert!(transaction.get(&keyspace, b"x").unwrap().is_none());
        transaction.insert(&keyspace, b"y", [1]).unwrap();
        let (second, third) = (keyspace.clone(), keyspace.clone());
        let thread = shuttle::thread::spawn(move || {
            second.insert_with(b"x", [1], Durability::Buffered).unwrap();
            third.snapshot().unwrap()
        });
        let committed = transaction.commit().is_ok();
        let snapshot = thread.join().unwrap();
        let y = number(&snapshot, b"y");
        assert_eq!(number(&snapshot, b"x"), 1);
        // It read x from before, so it comes before the write of x, which the snapshot has.
        assert_eq!(y == 1, committed, "the snapshot has the later write without the earlier one");
    });
}

/// S3: a batch over engines of both kinds is in a snapshot of both whole or not at all; and who has read
/// one of them sees no older state of the other.
#[test]
fn s03_batches_over_engines_are_whole() {
    check(3000, || {
        let (_disk, db, keyspace) = fresh();
        let turtles = ["t", "u"].map(|name| {
            let options = KeyspaceOptions::default().engine(EngineKind::Turtle);
            db.keyspace(name, options).unwrap()
        });
        let (writer, writing, batched) = (db.clone(), keyspace.clone(), turtles.clone());
        let thread = shuttle::thread::spawn(move || {
            for round in 1..4u8 {
                let mut batch = Batch::new();
                batch.insert(&batched[0], *b"a", [round]);
                batch.insert(&writing, *b"a", [round]);
                batch.insert(&batched[1], *b"a", [round]);
                writer.write_with(batch, Durability::Buffered).unwrap();
            }
        });
        for _ in 0..2 {
            // In the stepped runtime a gate with a batch inside is not waited for.
            let snapshot = loop {
                match db.snapshot() {
                    Ok(snapshot) => break snapshot,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument),
                }
                shuttle::thread::yield_now();
            };
            let parts =
                [&turtles[0], &keyspace, &turtles[1]].map(|one| snapshot.keyspace(one).unwrap());
            let first = parts.each_ref().map(|part| number(part, b"a"));
            assert!(first.iter().all(|one| *one == first[0]), "a part of a batch: {first:?}");
            shuttle::thread::yield_now();
            assert_eq!(parts.each_ref().map(|part| number(part, b"a")), first, "it moved");
        }
        thread.join().unwrap();
    });
}
