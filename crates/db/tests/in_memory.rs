//! Keyspaces of an engine that keeps all records in memory: they grow into the budget at the cost of others' caches, and
//! what does not fit is refused with the number of bytes that it would need.
#![cfg(not(feature = "shuttle"))]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use spinney_base::runtime::SplitMix;
use spinney_base::{Error, Result, Runtime};
use spinney_db::{
    Batch, Db, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options,
};
use spinney_io::sim::{CrashMode, SimDisk};

const MEMORY: u64 = 16 << 20;

fn engines() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.into_iter().filter(|kind| !kind.row().capabilities.larger_than_memory)
}

struct World {
    disk: SimDisk,
    runtime: Runtime,
    engine: EngineKind,
}

impl World {
    fn new(engine: EngineKind) -> World {
        World { disk: SimDisk::new(1), runtime: Runtime::stepped(1), engine }
    }

    fn open(&self, memory: u64) -> Result<Db> {
        let options = Options::default()
            .memory(memory)
            .scrub_bytes_per_second(0)
            .disk(Arc::new(self.disk.clone()))
            .runtime(self.runtime.clone());
        Db::open("/db", options)
    }

    fn make(&self, db: &Db, name: &str) -> Keyspace {
        db.keyspace(name, KeyspaceOptions::default().engine(self.engine)).unwrap()
    }

    /// Inserts records until one is refused. Returns how many there are, and what was said.
    fn fill(&self, main: &Keyspace, from: u64) -> (u64, Error) {
        let mut number = from;
        loop {
            if let Err(error) = main.insert(key(number), [7; 100]) {
                return (number, error);
            }
            number += 1;
            if number.is_multiple_of(256) {
                self.runtime.step();
            }
        }
    }
}

/// In no order, so that leaves are as full as they are at random.
fn key(number: u64) -> [u8; 8] {
    SplitMix(number).next_u64().to_be_bytes()
}

/// The first two numbers of a message: bytes that are needed, and that there are.
fn numbers(error: &Error) -> (u64, u64) {
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let text = error.to_string();
    let text = text.rsplit(": ").next().unwrap();
    let mut found = text.split(' ').filter_map(|word| word.parse().ok());
    (found.next().unwrap(), found.next().unwrap())
}

/// A keyspace whose records are all in memory takes what caches of others hold, but for their floors; then writes are
/// refused, removals and reads are not, and what was removed gives room.
#[test]
fn it_grows_into_what_others_hold() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let cached = db.keyspace("cached", EngineKind::TreeLine).unwrap();
        for number in 0..100_000 {
            cached.insert(key(number), [1; 100]).unwrap();
            if number % 256 == 0 {
                world.runtime.step();
            }
        }
        let main = world.make(&db, "main");
        let (count, error) = world.fill(&main, 0);
        let (needed, there) = numbers(&error);
        assert!(needed > there && needed < MEMORY + (1 << 20), "{error}");
        // Keys and values alone are 108 bytes; the other keyspace keeps its floor.
        assert!(count * 108 > MEMORY / 3, "{engine}: {count} records in {MEMORY} bytes");
        (0..2_000).for_each(|_| _ = world.runtime.step());
        let used = db.stats().memory_used;
        assert!(used <= MEMORY, "{engine}: {used} bytes of {MEMORY}");
        let (count, error) = world.fill(&main, count);
        assert_eq!(error.kind(), ErrorKind::Full);
        for number in 0..count {
            assert_eq!(main.get(key(number)).unwrap().unwrap(), [7; 100]);
        }
        (0..count / 2).for_each(|number| main.remove(key(number)).unwrap());
        for number in count..count + count / 4 {
            main.insert(key(number), [8; 100]).unwrap();
        }
        let (next, error) = world.fill(&main, count + count / 4);
        assert_eq!(error.kind(), ErrorKind::Full);
        drop((main, cached, db));
        let db = world.open(MEMORY).unwrap();
        let main = world.make(&db, "main");
        assert_eq!(main.iter().count() as u64, next - count / 2, "{engine}");
    }
}

/// A budget in which the records have no room is refused, by a database that is open and by one that opens; nothing is
/// lost.
#[test]
fn a_budget_without_room_is_refused() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let main = world.make(&db, "main");
        (0..30_000).for_each(|number| main.insert(key(number), [7; 100]).unwrap());
        let (needed, there) = numbers(&db.set_memory(2 << 20).unwrap_err());
        assert!(needed > 30_000 * 108 && there == 2 << 20, "{needed}, {there}");
        assert_eq!(db.stats().memory_bytes, MEMORY);
        main.insert("later", "value").unwrap();
        // With what it says, writes go on.
        db.set_memory(needed).unwrap();
        main.insert("later still", "value").unwrap();
        db.close().unwrap();
        let open = || -> Result<u64> {
            let db = world.open(2 << 20)?;
            // A parked keyspace is opened when it is used.
            let main = db.keyspace("main", KeyspaceOptions::default().engine(engine))?;
            main.get("later").map(|_| 0)
        };
        let (needed, there) = numbers(&open().unwrap_err());
        assert!(needed > 30_000 * 108 && there <= 2 << 20, "{needed}, {there}");
        let db = world.open(needed + (2 << 20)).unwrap();
        assert_eq!(world.make(&db, "main").iter().count(), 30_002, "{engine}");
    }
}

/// What the log says is refused, too, where it does not fit, and is there with more memory.
#[test]
fn a_log_without_room_is_refused() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let main = world.make(&db, "main");
        (0..30_000).for_each(|number| main.insert(key(number), [7; 100]).unwrap());
        db.flush().unwrap();
        // Without a checkpoint.
        let world = World { disk: world.disk.crash(CrashMode::KeepAll), ..world };
        drop((main, db));
        let error = world.open(2 << 20).map(drop).unwrap_err();
        let (needed, there) = numbers(&error);
        assert!(needed > 30_000 * 108 && there == 2 << 20, "{error}");
        // It names no other budget.
        assert!(!error.to_string().contains("would do"), "{error}");
        let db = world.open(MEMORY).unwrap();
        assert_eq!(world.make(&db, "main").iter().count(), 30_000, "{engine}");
    }
}

/// What was in memory when the process was killed opens under the budget that it had, though the threads that replay the log
/// bring records in another order than writers did, so that leaves are divided elsewhere.
#[test]
fn full_memory_opens_again_after_a_kill() {
    for engine in engines() {
        for (memory, length) in [(2 << 20, 10), (3 << 20, 0), (3 << 20, 100)] {
            let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let options = Options::default().memory(memory).durability(Durability::Buffered);
            let db = Db::open(directory.path(), options.clone()).unwrap();
            let main = db.keyspace("main", engine).unwrap();
            let (mut refused, mut number) = (0, 0);
            while refused < 3_000 {
                number += 1;
                // Evenly spread, so that leaves are divided at about the same time.
                let key = u64::wrapping_mul(number, 0x9E37_79B9_7F4A_7C15).to_be_bytes();
                match main.insert(key, vec![1; length]) {
                    Ok(()) => refused = 0,
                    Err(error) if error.is_full() => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            let count = main.keys(..).count();
            // As a kill leaves it.
            db.flush().unwrap();
            for file in std::fs::read_dir(directory.path()).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), killed.path().join(file.file_name())).unwrap();
            }
            drop((main, db));
            let db = Db::open(killed.path(), options).unwrap();
            let main = db.existing_keyspace("main").unwrap();
            assert_eq!(main.keys(..).count(), count, "{engine}, {memory} bytes, {length}");
        }
    }
}

/// An opening for reading sets a part of its budget aside; the budget that it names is enough all the same.
#[test]
fn a_budget_that_is_named_is_enough_for_reading() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(64 << 20).unwrap();
        let main = world.make(&db, "main");
        main.bulk_load((0..150_000_u64).map(|number| (number.to_be_bytes(), [5; 100]))).unwrap();
        db.close().unwrap();
        let read = |memory: u64| -> Result<usize> {
            let options = Options::default().memory(memory).read_only(true);
            let options = options.disk(Arc::new(world.disk.clone())).runtime(world.runtime.clone());
            let db = Db::open("/db", options)?;
            let main = db.existing_keyspace("main")?;
            main.keys(..).try_fold(0, |count, key| key.map(|_| count + 1))
        };
        // Less than the records, and less than what is set aside leaves.
        for memory in [2 << 20, 16 << 20, 20 << 20] {
            let (needed, there) = numbers(&read(memory).unwrap_err());
            assert!(needed > 150_000 * 108 && there == memory, "{needed}, {there}");
            assert_eq!(read(needed).unwrap(), 150_000, "{engine}, {needed} bytes");
        }
    }
}

/// Loads and conversions are lent what they lack, and leave nothing behind where it is not there.
#[test]
fn loads_grow_into_what_others_hold() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let cached = db.keyspace("cached", EngineKind::TreeLine).unwrap();
        for number in 0..100_000 {
            cached.insert(key(number), [1; 100]).unwrap();
            if number % 256 == 0 {
                world.runtime.step();
            }
        }
        let records = |count: u64| (0..count).map(|number| (number.to_be_bytes(), [5; 100]));
        let main = world.make(&db, "main");
        let error = main.bulk_load(records(200_000)).unwrap_err();
        assert!(numbers(&error).0 > MEMORY / 2, "{error}");
        assert_eq!(main.iter().count(), 0);
        assert_eq!(main.bulk_load(records(70_000)).unwrap(), 70_000);
        assert_eq!(main.iter().count(), 70_000);
        db.drop_keyspace("main").unwrap();
        let small = db.keyspace("small", EngineKind::Turtle).unwrap();
        (0..70_000).for_each(|number| small.insert(key(number), [6; 100]).unwrap());
        let small = db.convert_keyspace("small", engine).unwrap();
        assert_eq!((small.engine(), small.iter().count()), (engine, 70_000));
        let error = db.convert_keyspace("cached", engine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(cached.iter().count(), 100_000);
        (0..2_000).for_each(|_| _ = world.runtime.step());
        let used = db.stats().memory_used;
        assert!(used <= MEMORY, "{engine}: {used} bytes of {MEMORY}");
    }
}

/// Threads that lack memory at once are each lent it, and none is refused what another was lent.
#[test]
fn threads_that_lack_memory_are_all_lent_it() {
    // Threads lack memory at the same time in most of the rounds.
    for engine in engines().flat_map(|engine| [engine; 4]) {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
        let db = Db::open(directory.path(), options).unwrap();
        let cached = db.keyspace("cached", EngineKind::TreeLine).unwrap();
        (0..60_000).for_each(|number| cached.insert(key(number), [1; 100]).unwrap());
        let main = db.keyspace("main", engine).unwrap();
        // 8 threads, and some 8 MiB of memory in the end.
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (cached, main) = (&cached, &main);
                scope.spawn(move || {
                    for number in 0..4_000 {
                        let number = number * 8 + thread;
                        main.insert(key(number), [7; 100]).unwrap();
                        cached.get(key(number)).unwrap();
                    }
                });
            }
        });
    }
}

/// Older images are kept as long as others have memory to give.
#[test]
fn an_open_reader_is_not_ended_while_others_can_give_memory() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    let cached = db.keyspace("cached", EngineKind::TreeLine).unwrap();
    (0..60_000).for_each(|number| cached.insert(key(number), [1; 100]).unwrap());
    let written = db.keyspace("written", EngineKind::Iot).unwrap();
    let growing = db.keyspace("growing", EngineKind::Iot).unwrap();
    (0..2_000).for_each(|number| written.insert(key(number), [1; 100]).unwrap());
    let mut reader = db.begin().unwrap();
    assert_eq!(reader.get(&written, key(0)).unwrap().unwrap()[..], [1; 100]);
    for number in 0..3_000 {
        let mut batch = Batch::new();
        batch.insert(&written, key(number % 2_000), [2; 100]);
        batch.insert(&growing, key(number), [3; 1000]);
        db.write(batch).unwrap();
    }
    for number in 0..100 {
        assert_eq!(reader.get(&written, key(number)).unwrap().unwrap()[..], [1; 100]);
    }
    reader.insert(&growing, "other", "").unwrap();
    reader.commit().unwrap();
}

/// Records of which two keyspaces do not fit into the budget together.
const HALF: u64 = 60_000;

impl World {
    /// Lets background work run for so many seconds, in which these are used. After 20, others are parked.
    fn pass(&self, used: &[&Keyspace], seconds: u64) {
        let end = self.runtime.now() + Duration::from_secs(seconds);
        while self.runtime.now() < end {
            used.iter().for_each(|keyspace| _ = keyspace.get("used").unwrap());
            assert!(self.runtime.step());
        }
    }

    /// Fills a keyspace with records that take more than half of the budget.
    fn half(&self, keyspace: &Keyspace, value: u8) {
        self.put(keyspace, 0..HALF, value);
    }

    fn put(&self, keyspace: &Keyspace, numbers: Range<u64>, value: u8) {
        for number in numbers {
            keyspace.insert(key(number), [value; 100]).unwrap();
            if number.is_multiple_of(256) {
                self.runtime.step();
            }
        }
    }
}

fn check_half(keyspace: &Keyspace, value: u8) {
    for number in (0..HALF).step_by(100) {
        assert_eq!(keyspace.get(key(number)).unwrap().unwrap()[..], [value; 100]);
    }
    assert_eq!(keyspace.get(key(HALF)).unwrap(), None);
}

fn is_parked(db: &Db, name: &str) -> bool {
    db.stats().keyspaces.iter().find(|keyspace| keyspace.name == name).unwrap().is_parked
}

/// A parked keyspace that is used is read into memory where others hold what they do not use: those are parked. Nothing is
/// read beyond the budget, and nothing is parked in vain, where they are in use; what is said then is enough.
#[test]
fn what_is_not_used_makes_way_for_what_is() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let (first, second) = (world.make(&db, "first"), world.make(&db, "second"));
        let small = world.make(&db, "small");
        world.half(&first, 1);
        world.pass(&[], 20);
        assert!(is_parked(&db, "first"), "{engine}");
        world.half(&second, 2);
        for _ in 0..3 {
            small.insert("used", "").unwrap();
            check_half(&first, 1);
            assert!(is_parked(&db, "second"), "{engine}");
            check_half(&second, 2);
            assert!(is_parked(&db, "first") && !is_parked(&db, "small"), "{engine}");
            let used = db.stats().memory_used;
            assert!(used <= MEMORY, "{engine}: {used} bytes");
        }
        // A snapshot uses its keyspace.
        let snapshot = second.snapshot().unwrap();
        let (needed, there) = numbers(&first.get(key(0)).unwrap_err());
        assert!(needed > 2 * HALF * 108 && there == MEMORY, "{needed}, {there}");
        for refused in [
            first.insert("other", "").unwrap_err(),
            first.keys(..).next().unwrap().unwrap_err(),
            db.verify().unwrap_err(),
        ] {
            assert_eq!(numbers(&refused).1, MEMORY, "{refused}");
        }
        assert!(!is_parked(&db, "small") && !is_parked(&db, "second"), "{engine}");
        // A keyspace on its own is enough for the other engine.
        db.set_memory(needed).unwrap();
        check_half(&first, 1);
        assert!(!is_parked(&db, "second"), "{engine}");
        let error = db.set_memory(MEMORY).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        world.pass(&[&first], 20);
        assert_eq!(snapshot.get(key(0)).unwrap().unwrap()[..], [2; 100]);
        drop(snapshot);
        second.get(key(0)).unwrap();
        world.pass(&[&first], 3);
        assert!(!is_parked(&db, "second"), "{engine}");
        db.set_memory(MEMORY).unwrap();
        assert!(is_parked(&db, "second"), "{engine}");
        check_half(&second, 2);
        db.verify().unwrap();
    }
}

/// Writes take the memory of what has not been used for a second; what is used in turn learns that memory is full.
#[test]
fn writes_take_the_memory_of_what_is_not_used() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let (first, second) = (world.make(&db, "first"), world.make(&db, "second"));
        let mut number = 0;
        let error = loop {
            let main = [&first, &second][number as usize % 2];
            if let Err(error) = main.insert(key(number), [1; 100]) {
                break error;
            }
            number += 1;
            if number.is_multiple_of(256) {
                world.runtime.step();
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        let full = |keyspace: &Keyspace| {
            let error = keyspace.insert("other", [1; 10_000]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full);
        };
        full(&first);
        full(&second);
        assert!(!is_parked(&db, "first") && !is_parked(&db, "second"), "{engine}");
        world.pass(&[&second], 3);
        assert!(!is_parked(&db, "first"), "{engine}");
        let (count, _) = world.fill(&second, number);
        assert!(is_parked(&db, "first"), "{engine}");
        assert!(count > number + number / 3, "{engine}: {number}, then {count}");
        let used: u64 = db.stats().accounts.iter().map(|account| account.used).sum();
        assert!(used <= MEMORY, "{engine}: {used} bytes");
        for number in (0..number).filter(|number| number.is_multiple_of(50)) {
            assert_eq!(first.get(key(number)).unwrap().unwrap()[..], [1; 100]);
        }
        assert!(is_parked(&db, "second"), "{engine}");
    }
}

/// The scrub parks nothing to read a keyspace, and reads it when there is memory.
#[test]
fn the_scrub_waits_for_memory() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let (first, second) = (world.make(&db, "first"), world.make(&db, "second"));
        world.half(&first, 1);
        world.pass(&[], 20);
        world.half(&second, 2);
        second.insert("used", "").unwrap();
        db.close().unwrap();
        let options = Options::default()
            .memory(MEMORY)
            .scrub_bytes_per_second(1 << 30)
            .disk(Arc::new(world.disk.clone()))
            .runtime(world.runtime.clone());
        let db = Db::open("/db", options).unwrap();
        let second = world.make(&db, "second");
        second.get("used").unwrap();
        let end = world.runtime.now() + Duration::from_secs(600);
        while world.runtime.now() < end {
            second.get("used").unwrap();
            assert!(is_parked(&db, "first"), "{engine}");
            assert!(world.runtime.step());
        }
        let scrubbed = db.stats().scrub.pages;
        let until = world.runtime.now() + Duration::from_secs(3_600);
        while db.stats().scrub.pages < scrubbed + 300 {
            assert!(world.runtime.step() && world.runtime.now() < until, "{engine}: not read");
        }
    }
}

/// Keyspaces that were not open at the same time, and that the log names all the same, open again after a kill: what their
/// images say does not fit together, or does so until the log is replayed.
#[test]
fn what_was_not_open_together_opens_after_a_kill() {
    for engine in engines() {
        let world = World::new(engine);
        let db = world.open(MEMORY).unwrap();
        let (first, second) = (world.make(&db, "first"), world.make(&db, "second"));
        world.put(&first, 0..HALF, 1);
        world.pass(&[], 20);
        assert!(is_parked(&db, "first"), "{engine}");
        world.put(&second, 0..HALF / 2, 2);
        let mut count = HALF / 2;
        while count < HALF {
            db.checkpoint().unwrap();
            world.pass(&[], 4);
            first.insert("later", count.to_be_bytes()).unwrap();
            // It has to make way, once it was not used for a second.
            world.pass(&[&second], 4);
            world.put(&second, count..count + 2_500, 2);
            count += 2_500;
            db.flush().unwrap();
            let world = World {
                disk: world.disk.crash(CrashMode::KeepAll),
                runtime: Runtime::stepped(1),
                engine,
            };
            // Twice, for the first recovery parks some.
            for _ in 0..2 {
                let db = world.open(MEMORY).unwrap();
                let (first, second) = (world.make(&db, "first"), world.make(&db, "second"));
                assert_eq!(first.keys(..).count() as u64, HALF + 1, "{engine}, {count}");
                assert_eq!(second.keys(..).count() as u64, count, "{engine}");
                let later = (count - 2_500).to_be_bytes();
                assert_eq!(first.get("later").unwrap().unwrap()[..], later, "{engine}");
            }
        }
    }
}

/// Threads that use more than fits at once get what is there, or are refused; never are more records in memory than fit.
#[test]
fn threads_share_what_fits() {
    for engine in engines() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
        let db = Db::open(directory.path(), options.clone().memory(8 * MEMORY)).unwrap();
        for name in 0..6_u64 {
            let keyspace = db.keyspace(&name.to_string(), engine).unwrap();
            let records = (0..25_000_u64).map(|number| (number.to_be_bytes(), [5; 100]));
            keyspace.bulk_load(records).unwrap();
        }
        db.close().unwrap();
        let db = Db::open(directory.path(), options).unwrap();
        let start = Barrier::new(6);
        let answered = std::thread::scope(|scope| {
            let read = |name: u64| {
                let (db, start) = (&db, &start);
                scope.spawn(move || {
                    let keyspace = db.existing_keyspace(&name.to_string()).unwrap();
                    let (mut random, mut answered) = (SplitMix(name), 0);
                    start.wait();
                    for _ in 0..200 {
                        let number = random.next_u64() % 25_000;
                        match keyspace.get(number.to_be_bytes()) {
                            Ok(value) => {
                                assert_eq!(value.unwrap()[..], [5; 100]);
                                answered += 1;
                            }
                            Err(error) => assert!(error.lacks_memory(), "{error}"),
                        }
                        let used = db.stats().memory_used;
                        assert!(used <= MEMORY + (4 << 20), "{used} bytes");
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    answered
                })
            };
            let threads: Vec<_> = (0..6).map(read).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u64>>()
        });
        assert!(answered.iter().sum::<u64>() > 0, "{engine}: {answered:?}");
        for name in 0..6_u64 {
            let keyspace = db.existing_keyspace(&name.to_string()).unwrap();
            assert_eq!(keyspace.keys(..).count(), 25_000, "{engine}, {name}");
        }
    }
}

/// A database with two keyspaces, `first` and `second`, whose records do not fit beside each other, and its directory.
fn two_too_many(engine: EngineKind) -> (tempfile::TempDir, Db) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options.clone().memory(4 * MEMORY)).unwrap();
    for name in ["first", "second"] {
        let records = (0..80_000_u64).map(|number| (number.to_be_bytes(), [5; 100]));
        db.keyspace(name, engine).unwrap().bulk_load(records).unwrap();
    }
    db.close().unwrap();
    let db = Db::open(directory.path(), options).unwrap();
    (directory, db)
}

/// Threads that use the same keyspace first at the same time both find it open, however little room there was.
#[test]
fn threads_that_open_the_same_keyspace_are_not_refused() {
    for engine in engines() {
        let (_directory, db) = two_too_many(engine);
        for round in 0..20 {
            let keyspace = db.existing_keyspace(["first", "second"][round % 2]).unwrap();
            let start = Barrier::new(3);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        start.wait();
                        assert_eq!(
                            keyspace.get(7_u64.to_be_bytes()).unwrap().unwrap()[..],
                            [5; 100]
                        );
                    });
                }
            });
        }
    }
}

/// Somebody who looks at a keyspace that nobody uses keeps it open for a moment, and the use of another waits for that.
#[test]
fn looks_at_keyspaces_refuse_nothing() {
    for engine in engines() {
        let (_directory, db) = two_too_many(engine);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        assert!(db.stats().memory_used > 0);
                    }
                });
            }
            for round in 0..20 {
                let keyspace = db.existing_keyspace(["first", "second"][round % 2]).unwrap();
                let value = keyspace.get(7_u64.to_be_bytes());
                over.store(value.is_err() || round == 19, Ordering::Relaxed);
                assert_eq!(value.unwrap().unwrap()[..], [5; 100], "{engine}, round {round}");
            }
        });
    }
}
