//! Loading sorted records (rule P15), on the simulated disk.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;

use spinney_base::{ErrorKind, Runtime};
use spinney_db::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{Capture, CrashMode, Fault, SimDisk};
use spinney_sync::hash_key;

const COUNT: u32 = 20_000;

fn open(disk: &SimDisk) -> Db {
    let options = Options::default()
        .memory(2 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1));
    Db::open(Path::new("/db"), options).unwrap()
}

fn records() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    // Clustered, so that segments of all kinds come about.
    (0..COUNT).map(|number| {
        let key = u64::from(number) * 13 + u64::from(number / 100).pow(2) * 50;
        (key.to_be_bytes().to_vec(), vec![(number % 251) as u8; (number % 90) as usize])
    })
}

fn check_whole(keyspace: &Keyspace) {
    assert!(
        keyspace.iter().map(|record| record.unwrap()).map(|(k, v)| (k, v.to_vec())).eq(records())
    );
}

#[test]
fn p15_a_bulk_load_is_whole_or_not_at_all() {
    let disk = SimDisk::new(3);
    let db = open(&disk);
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    // What was there before and is in the log must not come back over what is loaded: inserted,
    // removed, and absent as the cache knows.
    for (key, _) in records().step_by(500) {
        keyspace.insert(&key, b"old").unwrap();
    }
    db.checkpoint().unwrap();
    for (key, _) in records().step_by(500) {
        keyspace.remove(&key).unwrap();
        assert_eq!(keyspace.get(&key).unwrap(), None);
    }
    disk.capture_when(Arc::new(|step, _| (step % 3 == 0).then_some(CrashMode::Torn512)));
    let before = disk.steps();
    assert_eq!(keyspace.bulk_load(records()).unwrap(), u64::from(COUNT));
    let loaded = disk.steps();
    disk.capture_when(Arc::new(|_, _| None));
    check_whole(&keyspace);
    for (key, value) in records().step_by(97) {
        assert_eq!(keyspace.get(&key).unwrap().as_deref(), Some(&value[..]));
    }
    let stats = keyspace.stats();
    assert!(stats.segments[1..].iter().sum::<u64>() > 50, "{:?}", stats.segments);
    db.verify().unwrap();
    let (mut empty, mut whole) = (0, 0);
    for Capture { step, image, .. } in disk.take_captures() {
        let db = open(&image);
        let keyspace = db.existing_keyspace("k").unwrap();
        if keyspace.first_key_value().unwrap().is_none() {
            empty += 1;
            assert!(step <= loaded, "acknowledged and gone");
        } else {
            whole += 1;
            check_whole(&keyspace);
        }
        db.verify().unwrap();
        // And it continues.
        keyspace.insert(b"later", b"1").unwrap();
        db.close().unwrap();
    }
    assert!(empty > 5 && loaded > before, "{empty} before, {whole} after");
    // After it, writes and another life are as ever.
    keyspace.insert(&records().nth(5).unwrap().0, b"new").unwrap();
    drop((keyspace, db));
    let db = open(&disk.crash(CrashMode::LoseAll));
    let keyspace = db.existing_keyspace("k").unwrap();
    assert_eq!(keyspace.get(&records().nth(5).unwrap().0).unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(keyspace.iter().count(), COUNT as usize);
}

#[test]
fn p15_a_refused_load_leaves_nothing_behind() {
    let disk = SimDisk::new(4);
    let db = open(&disk);
    let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(false)).unwrap();
    // A full disk first, before a load has made the file larger.
    disk.set_capacity(Some(0));
    assert_eq!(keyspace.bulk_load(records()).unwrap_err().kind(), ErrorKind::Full);
    disk.set_capacity(None);
    db.verify().unwrap();
    assert_eq!(keyspace.first_key_value().unwrap(), None);
    let twice = records().chain(records().take(1));
    assert_eq!(keyspace.bulk_load(twice).unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.verify().unwrap();
    keyspace.insert_with(b"k", b"v", Durability::Buffered).unwrap();
    assert_eq!(keyspace.bulk_load(records()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.verify().unwrap();
    keyspace.remove(b"k").unwrap();
    db.checkpoint().unwrap();
    // A disk that fails at any write of the load.
    for nth in (1..60).step_by(7) {
        let trial = disk.kill();
        let db = open(&trial);
        let keyspace = db.existing_keyspace("k").unwrap();
        trial.inject(Fault::WriteError { at: trial.writes() + nth });
        if keyspace.bulk_load(records()).is_err() {
            drop((keyspace, db));
            let db = open(&trial.crash(CrashMode::LoseAll));
            let found = db.existing_keyspace("k").unwrap().iter().count();
            assert!(found == 0 || found == COUNT as usize, "{found}");
            db.verify().unwrap();
        }
    }
    assert_eq!(keyspace.bulk_load(records()).unwrap(), u64::from(COUNT));
    check_whole(&keyspace);
}

/// What `goal` and `epsilon` promise: no page gets more than `goal + 2 * epsilon` records. Keys
/// with gaps at random, so that models are off by what they may be.
#[test]
fn pages_hold_what_goal_and_epsilon_allow() {
    let db = open(&SimDisk::new(5));
    let pinned = |steps: &str| {
        let options = KeyspaceOptions::default().set("goal", "44").unwrap();
        options.set("epsilon", "5").unwrap().set("steps", steps).unwrap()
    };
    for (name, steps) in [("paper", "off"), ("ours", "on")] {
        let keyspace = db.keyspace(name, pinned(steps)).unwrap();
        let keys = (0..u64::from(COUNT)).scan(0, |key, index| {
            *key += 1 + (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 199;
            Some(key.to_be_bytes())
        });
        keyspace.bulk_load(keys.map(|key| (key, [7; 56]))).unwrap();
        let report = db.verify().unwrap();
        assert!((40..=54).contains(&report.page_records_max), "{name}: {report:?}");
        db.drop_keyspace(name).unwrap();
    }
}

/// Values too long for a page are loaded like any others: a crash finds all of them or none, and a
/// load that fails gives their room back (P17).
#[test]
fn p15_large_values_are_loaded() {
    let records = |count: u32| {
        (0..count).map(|number| {
            let large = number % 40 == 7;
            let length = if large { 4_000 + number * 37 % 30_000 } else { number % 90 };
            (number.to_be_bytes(), vec![(number % 251) as u8; length as usize])
        })
    };
    let count = 1_500;
    let large = records(count).filter(|(_, value)| value.len() >= 4_000).count() as u64;
    let is_whole = |keyspace: &Keyspace| {
        keyspace
            .iter()
            .map(|record| record.unwrap())
            .map(|(key, value)| (key, value.to_vec()))
            .eq(records(count).map(|(key, value)| (key.to_vec(), value)))
    };
    for logged in [true, false] {
        let disk = SimDisk::new(7);
        let db = open(&disk);
        let options = || KeyspaceOptions::default().logged(logged);
        let keyspace = db.keyspace("k", options()).unwrap();
        // One that ends in an error first.
        let wrong = records(count).chain([(0u32.to_be_bytes(), vec![0; 9_000])]);
        assert_eq!(keyspace.bulk_load(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let stats = keyspace.stats();
        assert_eq!((stats.large_values, stats.large_freed_bytes), (0, 0));
        db.verify().unwrap();
        let room = stats.file_bytes;
        disk.capture_when(Arc::new(|step, _| (step % 5 == 0).then_some(CrashMode::Torn512)));
        assert_eq!(keyspace.bulk_load(records(count)).unwrap(), u64::from(count));
        disk.capture_when(Arc::new(|_, _| None));
        assert!(is_whole(&keyspace));
        let stats = keyspace.stats();
        assert_eq!((stats.large_values, stats.large_freed_bytes), (large, 0));
        assert!(stats.file_bytes <= room + (1 << 20), "the room of the failed load is used again");
        assert_eq!(db.verify().unwrap().large_values, large);
        let mut last = disk.take_captures();
        last.push(Capture { step: 0, states: Vec::new(), image: disk.crash(CrashMode::LoseAll) });
        for Capture { step, image, .. } in last {
            let db = open(&image);
            let keyspace = db.keyspace("k", options()).unwrap();
            let is_empty = keyspace.first_key_value().unwrap().is_none();
            assert!(if is_empty { step > 0 } else { is_whole(&keyspace) }, "step {step}");
            db.verify().unwrap();
            let held = keyspace.stats().large_values;
            assert_eq!(held, if is_empty { 0 } else { large }, "step {step}");
        }
        keyspace.remove(7u32.to_be_bytes()).unwrap();
        db.close().unwrap();
        let stats = open(&disk).keyspace("k", options()).unwrap().stats();
        assert_eq!((stats.large_values, stats.large_freed_bytes), (large - 1, 0));
    }
}

/// A load between the read and the write of a conditional write is seen, although no write locked a
/// stripe for what came with it.
#[test]
fn p04_a_load_is_no_less_than_a_write() {
    for engine in EngineKind::ALL {
        let db = open(&SimDisk::new(8));
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        let mut seen = Vec::new();
        keyspace
            .update(b"k", |value| {
                if seen.is_empty() {
                    assert_eq!(keyspace.bulk_load([(b"k", b"1")]).unwrap(), 1);
                }
                seen.push(value.map(<[u8]>::to_vec));
                Some(b"2".to_vec())
            })
            .unwrap();
        assert_eq!(seen, [None, Some(b"1".to_vec())], "{engine:?}");
        assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&b"2"[..]));
        db.verify().unwrap();
    }
}

/// What a turtle keyspace noted of a key on disk for a conditional write is not true any more once
/// a load has replaced what was there: "absent" would be taken for what the load brought.
#[test]
fn p04_what_was_noted_before_a_load_is_forgotten() {
    let db = open(&SimDisk::new(9));
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(EngineKind::Turtle)).unwrap();
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    let stripe = hash_key(keyspace.id(), b"k") >> 48;
    let mut keys = (0u32..).map(u32::to_be_bytes);
    let neighbour = keys.find(|key| hash_key(other.id(), key) >> 48 == stripe).unwrap();
    // A leaf on disk would have to say whether the key is there, though nothing is left of its
    // records.
    keyspace.insert(b"gone", b"0").unwrap();
    db.checkpoint().unwrap();
    keyspace.remove(b"gone").unwrap();
    let mut seen = Vec::new();
    keyspace
        .update(b"k", |value| {
            match seen.len() {
                // Memory does not know the key, so what the leaf says is noted.
                0 => other.insert(neighbour, b"hot").unwrap(),
                1 => assert_eq!(keyspace.bulk_load([(b"k", b"1")]).unwrap(), 1),
                _ => {}
            }
            seen.push(value.map(<[u8]>::to_vec));
            Some(b"2".to_vec())
        })
        .unwrap();
    assert_eq!(seen, [None, None, Some(b"1".to_vec())]);
    assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&b"2"[..]));
    db.verify().unwrap();
}

/// Pages in memory may be dirty with what was written before: that is no want of room.
#[test]
fn a_load_after_much_was_written_is_told_what_is_wrong() {
    let disk = SimDisk::new(1);
    let options = Options::default().memory(4 << 20).disk(Arc::new(disk));
    let db = Db::open("/db", options.runtime(Runtime::stepped(1))).unwrap();
    let records = |count: u64| (0..count).map(|number| (number.to_be_bytes(), [1; 1000]));
    for engine in EngineKind::ALL.into_iter().filter(|it| it.row().capabilities.larger_than_memory)
    {
        let keyspace = db.keyspace(engine.name(), engine).unwrap();
        for count in [1000, 3000] {
            keyspace.bulk_load(records(count)).unwrap();
            let error = keyspace.bulk_load(records(10)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{engine}: {error}");
            (0..count).for_each(|number| keyspace.remove(number.to_be_bytes()).unwrap());
        }
        assert_eq!(keyspace.bulk_load(records(20_000)).unwrap(), 20_000, "{engine}");
    }
}
