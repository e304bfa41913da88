//! A disk without room for what is written in place, as file systems that copy on write have it: an
//! error and no end of writing, which room lifts (fault B1).
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;

use spinney_base::{ErrorKind, Runtime};
use spinney_db::{Batch, Db, Durability, EngineKind, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};

const ENGINES: [EngineKind; 2] = [EngineKind::TreeLine, EngineKind::Turtle];
const DURABILITIES: [Durability; 2] = [Durability::Sync, Durability::Buffered];

fn open(disk: &SimDisk, runtime: &Runtime, durability: Durability) -> Db {
    let options = Options::default().memory(4 << 20).log_bytes_max(2 << 20);
    let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
    Db::open("/db", options.durability(durability)).unwrap()
}

/// The log is refused its room: each write then is `Full`, reads go on, and with room writes do.
#[test]
fn b1_a_log_without_room_is_full() {
    for (engine, durability) in ENGINES.iter().flat_map(|e| DURABILITIES.map(|d| (*e, d))) {
        let disk = SimDisk::new(1);
        disk.copy_on_write();
        let runtime = Runtime::stepped(1);
        let db = open(&disk, &runtime, durability);
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        let key = |number: u32| number.to_be_bytes();
        (0..300).for_each(|number| keyspace.insert(key(number), [1; 300]).unwrap());
        for round in 0..4 {
            disk.set_capacity(Some(0));
            let first = key(1000 + round);
            let error = keyspace.insert(first, [2; 300]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            for _ in 0..5 {
                runtime.sleep(std::time::Duration::from_millis(300));
                runtime.step();
                let error = keyspace.insert(b"refused", [3; 300]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                assert_eq!(keyspace.get(b"refused").unwrap(), None);
                assert!(keyspace.get(key(7)).unwrap().is_some());
                let checkpoint = db.checkpoint();
                let is_full = |error: &spinney_base::Error| error.kind() == ErrorKind::Full;
                assert!(checkpoint.as_ref().err().is_none_or(is_full), "{checkpoint:?}");
            }
            disk.set_capacity(None);
            keyspace.insert(key(2000 + round), [4; 300]).unwrap();
            // What met the full disk first was said to be kept until there is room.
            for image in [disk.kill(), disk.crash(CrashMode::LoseAll)] {
                if durability == Durability::Sync || image.writes() == 0 {
                    let db = open(&image, &Runtime::stepped(2), durability);
                    let keyspace = db.existing_keyspace("k").unwrap();
                    let found = keyspace.get(key(2000 + round)).unwrap();
                    if found.is_some() {
                        assert!(keyspace.get(first).unwrap().is_some());
                    }
                    assert!(found.is_some() || durability == Durability::Buffered);
                    db.verify().unwrap();
                }
            }
        }
        db.checkpoint().unwrap();
        db.verify().unwrap();
        assert_eq!(keyspace.iter().count(), 300 + 8);
        db.close().unwrap();
    }
}

/// Each two writes of a checkpoint that trims the log are refused, those of both copies of the
/// log's superblock among them.
#[test]
fn b1_every_write_of_a_checkpoint_is_refused_once() {
    let mut refused = 0;
    for at in 1.. {
        let disk = SimDisk::new(1);
        let db = open(&disk, &Runtime::stepped(1), Durability::Sync);
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        let put = |number: u32| keyspace.insert(number.to_be_bytes(), [1; 1000]);
        (0..600).for_each(|number| put(number).unwrap());
        // The reserve is given up piece by piece before a write is refused.
        (0..14)
            .for_each(|next| disk.inject(Fault::NoSpaceInPlace { at: disk.writes() + at + next }));
        let before = db.stats().log.bytes_used;
        let checkpoint = db.checkpoint();
        let is_full = |error: &spinney_base::Error| error.kind() == ErrorKind::Full;
        assert!(checkpoint.as_ref().err().is_none_or(is_full), "{at}: {checkpoint:?}");
        refused += usize::from(checkpoint.is_err());
        if disk.faults_struck() == 0 {
            let used = db.stats().log.bytes_used;
            assert!(at > 5 && used < before, "{at}: {before} to {used}");
            assert_eq!(refused, at as usize - 1, "every write met the full disk");
            break;
        }
        put(600).unwrap();
        db.checkpoint().unwrap();
        assert_eq!(keyspace.iter().count(), 601);
    }
}

/// Each write of a run is refused once, in place or not: what meets it is `Full` or does not
/// notice, and all behind it continues.
#[test]
fn b1_every_write_is_refused_once() {
    for (engine, durability) in ENGINES.iter().flat_map(|e| DURABILITIES.map(|d| (*e, d))) {
        for is_mapped in [true, false] {
            for at in 1.. {
                let disk = SimDisk::new(1);
                if !is_mapped {
                    disk.refuse_mappings();
                }
                let runtime = Runtime::stepped(1);
                let db = open(&disk, &runtime, durability);
                let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
                disk.inject(Fault::NoSpaceInPlace { at: disk.writes() + at });
                let mut kept = 0;
                for number in 0..60u32 {
                    match keyspace.insert(number.to_be_bytes(), [1; 2000]) {
                        Ok(()) => kept += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{at}: {error}"),
                    }
                    if number % 25 == 24 {
                        let checkpoint = db.checkpoint();
                        let is_full = |error: &spinney_base::Error| error.kind() == ErrorKind::Full;
                        assert!(checkpoint.as_ref().err().is_none_or(is_full), "{checkpoint:?}");
                    }
                    runtime.step();
                }
                assert!(kept >= 59, "{at}: {kept}");
                if let Err(error) = db.checkpoint() {
                    assert_eq!(error.kind(), ErrorKind::Full, "{at}: {error}");
                    db.checkpoint().unwrap();
                }
                db.verify().unwrap();
                if let Err(error) = db.close() {
                    assert_eq!(error.kind(), ErrorKind::Full, "{at}: {error}");
                }
                if disk.faults_struck() == 0 {
                    break;
                }
                let db = open(&disk, &Runtime::stepped(2), durability);
                assert!(db.existing_keyspace("k").unwrap().iter().count() >= kept);
            }
        }
    }
}

/// A long log met a full disk. A later checkpoint shortened it, and the next full disk must keep it
/// short again, although it is shorter than it was at the first.
#[test]
fn p29_a_log_is_kept_short_after_one_that_was_not() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let runtime = Runtime::stepped(1);
        let options = Options::default().memory(4 << 20).log_bytes_max(16 << 20);
        let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
        let db = Db::open("/db", options.durability(Durability::Sync)).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        let key = |number: u32| number.to_be_bytes();
        let log = || db.stats().log.bytes_used;
        (0..600).for_each(|number| keyspace.insert(key(number), [1; 2000]).unwrap());
        let long = log();
        assert!(long > 1 << 20, "{long}");

        // No file gets a byte more.
        disk.set_capacity(Some(0));
        let refused = (600..4000).find_map(|number| keyspace.insert(key(number), [2; 2000]).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Full));
        assert!(keyspace.remove(key(0)).err().is_none_or(|error| error.kind() == ErrorKind::Full));
        assert!(log() >= long, "the checkpoint found space");

        disk.set_capacity(None);
        db.checkpoint().unwrap();
        keyspace.insert(key(1), [3; 2000]).unwrap();
        assert!(log() < 256 << 10, "{}", log());

        disk.set_capacity(Some(disk.used()));
        let refused = (0..4000).find_map(|number| keyspace.insert(key(number), [4; 2000]).err());
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Full));
        for number in 0..600 {
            keyspace.remove(key(number)).unwrap();
            assert!(log() < 640 << 10, "{engine:?}: {} after {number} removals", log());
        }
        disk.set_capacity(None);
        db.verify().unwrap();
        db.close().unwrap();
    }
}

/// A background checkpoint met a full disk. There is room again, whether a requested checkpoint
/// found it or none was tried: a log that a batch fills is no reason to refuse the batch.
#[test]
fn b1_a_checkpoint_that_failed_once_is_forgotten() {
    for (engine, is_requested) in ENGINES.iter().flat_map(|e| [true, false].map(|is| (*e, is))) {
        let disk = SimDisk::new(1);
        let runtime = Runtime::stepped(1);
        let options = Options::default().memory(8 << 20).log_bytes_max(1 << 20);
        let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
        let db = Db::open("/db", options).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        let fill_to = |part: u64| {
            for number in 0..1000u32 {
                if db.stats().log.bytes_used >= (768 << 10) / 8 * part {
                    break;
                }
                keyspace.insert(number.to_be_bytes(), [1; 3000]).unwrap();
            }
        };
        fill_to(5);
        disk.set_capacity(Some(0));
        let before = db.stats().log.bytes_used;
        runtime.sleep(std::time::Duration::from_secs(70));
        (0..20).for_each(|_| _ = runtime.step());
        assert!(db.stats().log.bytes_used >= before, "the background checkpoint found space");

        disk.set_capacity(None);
        if is_requested {
            db.checkpoint().unwrap();
            fill_to(3);
        }
        let mut batch = Batch::new();
        (0..175u32).for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), [2; 3000]));
        db.write(batch).unwrap_or_else(|error| panic!("{engine:?}, {is_requested}: {error}"));
        db.close().unwrap();
    }
}

/// A background checkpoint could not read a page, once. A batch that fills the log later is not refused
/// for that: a writer tries itself before it gives up.
#[test]
fn b1_a_checkpoint_that_could_not_read_is_forgotten() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let runtime = Runtime::stepped(1);
        let options = Options::default().memory(5 << 20).log_bytes_max(1 << 20);
        let options = options.scrub_bytes_per_second(0);
        let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
        let db = Db::open("/db", options).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        // Five times the memory, ten records a page, so that a checkpoint reads.
        for number in 0..64_000u32 {
            keyspace.insert(number.to_be_bytes(), [1; 300]).unwrap();
        }
        db.checkpoint().unwrap();
        for number in (0..64_000u32).step_by(17) {
            if db.stats().log.bytes_used >= 480 << 10 {
                break;
            }
            keyspace.insert(number.to_be_bytes(), [2; 300]).unwrap();
        }
        let before = db.stats().log.bytes_used;
        disk.inject(Fault::ReadError { at: disk.reads() + 1 });
        runtime.sleep(std::time::Duration::from_secs(70));
        (0..20).for_each(|_| _ = runtime.step());
        assert_eq!(disk.faults_struck(), 1, "{engine:?}: nothing was read");
        assert!(db.stats().log.bytes_used >= before, "{engine:?}: the checkpoint succeeded");

        let mut batch = Batch::new();
        (0..175u32).for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), [3; 3000]));
        db.write(batch).unwrap_or_else(|error| panic!("{engine:?}: {error}"));
        db.close().unwrap();
    }
}

/// Updates on a disk that has less than what is kept where there is room: what they ask the disk for
/// is little more than on one that has it.
#[test]
fn p29_updates_beside_little_room_ask_for_it_seldom() {
    for engine in [EngineKind::TreeLine, EngineKind::Turtle, EngineKind::TwoBTree, EngineKind::Iot]
    {
        let requests = |room: Option<u64>| {
            let disk = SimDisk::new(1);
            let runtime = Runtime::stepped(1);
            let options = Options::default().memory(16 << 20).log_bytes_max(16 << 20);
            let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
            let db = Db::open("/db", options.durability(Durability::Buffered)).unwrap();
            let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
            let put = |number: u64| {
                keyspace.insert((number % 2000).to_be_bytes(), [number as u8; 1000]).unwrap();
                if number.is_multiple_of(64) {
                    runtime.step();
                }
            };
            (0..2000).for_each(put);
            db.checkpoint().unwrap();
            disk.set_capacity(room.map(|room| disk.used() + room));
            let before = disk.room_requests();
            (0..20_000).for_each(|number| put(number * 7919));
            let requests = disk.room_requests() - before;
            db.verify().unwrap();
            requests
        };
        let (with, beside) = (requests(None), requests(Some(12 << 20)));
        assert!(beside < 8 * with, "{engine:?}: {with} {beside}");
    }
}
