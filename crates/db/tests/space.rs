//! Space goes back to the file system when data is gone, and comes again when it is needed; on a
//! full disk that is an error that goes away.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::{ErrorKind, Runtime};
use spinney_db::{Db, Durability, Keyspace, KeyspaceOptions, Options, TornWrites};
use spinney_io::sim::{CrashMode, SimDisk};

fn key(number: u64) -> Vec<u8> {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes().to_vec()
}

fn value(number: u64, length: usize) -> Vec<u8> {
    number.to_be_bytes().repeat(length / 8 + 1)[..length].to_vec()
}

fn fill(keyspace: &Keyspace, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let length = if number % 500 == 0 { 50_000 } else { 600 };
        keyspace.insert_with(key(number), value(number, length), Durability::Buffered).unwrap();
    }
}

/// Blocks on disk after 90 % of the data was removed and nothing was done for some seconds.
#[test]
fn removed_data_takes_no_room_on_a_real_disk() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(8 << 20).log_bytes_max(16 << 20);
    let options = options.torn_writes(TornWrites::Assume4k);
    let db = Db::open(directory.path(), options).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    fill(&main, 0..60_000);
    db.checkpoint().unwrap();
    let blocks = || -> u64 {
        let files = std::fs::read_dir(directory.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
    };
    let full = blocks();
    for number in 6_000..60_000 {
        main.remove_with(key(number), Durability::Buffered).unwrap();
    }
    // Pages in use, an eighth of them or 1 MiB that is free, and a few segments of the log.
    let expected = || {
        let stats = main.stats();
        let used = stats.file_bytes - stats.free_pages * 4096;
        used + (used / 8).max(1 << 20) + (3 << 20)
    };
    let clock = Runtime::threads();
    // It takes a few seconds; a machine that is busy with other tests may take many.
    while (blocks() > expected() || blocks() > full / 4) && clock.now() < Duration::from_secs(60) {
        clock.sleep(Duration::from_millis(100));
    }
    let left = blocks();
    let stats = db.stats();
    assert!(left <= expected() && left <= full / 4, "{left} bytes of {full} are taken: {stats:?}");
    db.verify().unwrap();
    assert_eq!(main.iter().map(Result::unwrap).count(), 6_000);
    fill(&main, 6_000..20_000);
    db.verify().unwrap();
    db.close().unwrap();
}

fn open(disk: &SimDisk, runtime: &Runtime) -> Db {
    let options = Options::default()
        .memory(1 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone());
    Db::open(Path::new("/db"), options).unwrap()
}

fn pass_time(runtime: &Runtime, time: Duration) {
    let end = runtime.now() + time;
    while runtime.now() < end {
        assert!(runtime.step());
    }
}

const FILE: &str = "/db/keyspace-00000001.spn";

/// A database that was large and is small, and has given back what it could.
fn shrunk(seed: u64) -> (SimDisk, Runtime, Db, Keyspace) {
    let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
    let db = open(&disk, &runtime);
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    fill(&main, 0..12_000);
    for number in 1_000..12_000 {
        main.remove_with(key(number), Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    pass_time(&runtime, Duration::from_secs(10));
    (disk, runtime, db, main)
}

/// Holes are reused. Where there is no room for that, writes are refused, nothing is lost, nothing
/// is poisoned, and a crash at any such moment changes nothing.
#[test]
fn p02_holes_on_a_full_disk() {
    for seed in 0..6 {
        let (disk, _runtime, db, main) = shrunk(seed);
        let stats = main.stats();
        let room = disk.room(Path::new(FILE)).unwrap();
        assert!(stats.hole_bytes > stats.file_bytes / 2, "{stats:?}");
        assert!(room + stats.hole_bytes <= stats.file_bytes + (1 << 20), "{room}: {stats:?}");
        db.verify().unwrap();
        let all: u64 = disk.files().iter().map(|file| disk.room(file).unwrap()).sum();
        disk.set_capacity(Some(all + seed * 30_000));
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = main
            .iter()
            .map(|record| record.unwrap())
            .map(|(key, value)| (key, value.to_vec()))
            .collect();
        let mut full = 0;
        for number in 20_000..30_000 {
            let (key, value) = (key(number), value(number, 300));
            match main.insert(&key, &value) {
                Ok(()) => _ = model.insert(key, value),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    full += 1;
                    if full == 20 {
                        break;
                    }
                }
            }
        }
        assert!(full == 20, "the disk had room for everything");
        let check = |db: &Db| {
            let main = db.existing_keyspace("main").unwrap();
            let found: BTreeMap<_, _> =
                main.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec())).collect();
            assert!(found == model, "seed {seed}: records differ");
        };
        check(&db);
        let image = disk.crash(CrashMode::Torn512);
        image.set_capacity(None);
        check(&open(&image, &Runtime::stepped(seed)));
        disk.set_capacity(None);
        main.insert(b"more", b"room").unwrap();
        model.insert(b"more".to_vec(), b"room".to_vec());
        db.checkpoint().unwrap();
        db.verify().unwrap();
        let found: BTreeMap<_, _> =
            main.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec())).collect();
        assert!(found == model, "seed {seed}: records differ after room came back");
        db.close().unwrap();
    }
}

/// A checkpoint that was asked for leaves the log an eighth of its most: so much can be written
/// when the disk is full, and what lies beyond is an error that goes away.
#[test]
fn p12_a_checkpoint_leaves_the_log_an_eighth() {
    let (disk, runtime) = (SimDisk::new(41), Runtime::stepped(41));
    let db = open(&disk, &runtime);
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    let room = || disk.room(Path::new("/db/wal")).unwrap();
    let log = db.stats().log;
    let mut number = 0;
    while room() < log.bytes_max / 2 {
        main.insert_with(key(number), value(number, 600), Durability::Sync).unwrap();
        number += 1;
    }
    db.checkpoint().unwrap();
    // Beside it the segment that is written and one that is ready, superblocks and the tail.
    let left = (room(), log.bytes_max / 16 * 5);
    assert!((log.bytes_max / 8..=left.1).contains(&left.0), "{left:?}");
    let all: u64 = disk.files().iter().map(|file| disk.room(file).unwrap()).sum();
    disk.set_capacity(Some(all));
    let begin = number;
    let full = loop {
        match main.insert_with(key(number), value(number, 600), Durability::Sync) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        // Checkpoints that the log asks for find no room either.
        runtime.step();
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let came = (number - begin) * 600;
    assert!(came >= log.bytes_max / 8, "{came} bytes came: {full}");
    disk.set_capacity(None);
    main.insert(b"more", b"room").unwrap();
    db.checkpoint().unwrap();
    db.verify().unwrap();
    assert_eq!(main.iter().map(Result::unwrap).count() as u64, number + 1);
}

/// Power that goes while room is given back.
#[test]
fn p16_a_crash_while_room_is_given_back() {
    let mut images = 0;
    for seed in 0..4 {
        let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
        let db = open(&disk, &runtime);
        let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
        fill(&main, 0..6_000);
        for number in 500..6_000 {
            main.remove_with(key(number), Durability::Buffered).unwrap();
        }
        db.checkpoint().unwrap();
        disk.capture_when(Arc::new(|step, states| {
            let here = states.contains(&"give back") && step.is_multiple_of(3);
            here.then_some(CrashMode::Torn512)
        }));
        pass_time(&runtime, Duration::from_secs(8));
        for capture in disk.take_captures() {
            images += 1;
            let db = open(&capture.image, &Runtime::stepped(seed));
            db.verify().unwrap();
            let main = db.existing_keyspace("main").unwrap();
            assert_eq!(main.iter().map(Result::unwrap).count(), 500);
            fill(&main, 500..700);
            db.checkpoint().unwrap();
            db.verify().unwrap();
        }
    }
    assert!(images > 10, "{images} images");
}

/// On a file system without holes nothing changes.
#[test]
fn files_without_holes() {
    let (disk, runtime) = (SimDisk::new(9), Runtime::stepped(9));
    disk.refuse_holes();
    let db = open(&disk, &runtime);
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    fill(&main, 0..6_000);
    (500..6_000).for_each(|number| main.remove(key(number)).unwrap());
    pass_time(&runtime, Duration::from_secs(8));
    assert_eq!(main.stats().hole_bytes, 0);
    fill(&main, 500..900);
    db.verify().unwrap();
    db.close().unwrap();
}
