//! The background scrub: damage is found without anybody reading what it took, and nothing sound is
//! called damaged while everything moves.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_db::{Db, Keyspace, KeyspaceOptions, Options};
use spinney_io::Purpose;
use spinney_io::sim::SimDisk;

const FILE: &str = "/db/keyspace-00000001.spn";

fn open(disk: &SimDisk, runtime: &Runtime, rate: u64) -> Db {
    let options = Options::default()
        .memory(1 << 20)
        .log_bytes_max(2 << 20)
        .scrub_bytes_per_second(rate)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone());
    Db::open(Path::new("/db"), options).unwrap()
}

fn fill(keyspace: &Keyspace, from: u64, to: u64) {
    for number in from..to {
        let key = format!("key {:08}", number.wrapping_mul(7919) % 10_000);
        let length = if number.is_multiple_of(97) { 30_000 } else { 300 };
        keyspace.insert(key.as_bytes(), vec![number as u8; length]).unwrap();
    }
}

/// Lets background work run for some time.
fn pass_time(runtime: &Runtime, time: Duration) {
    let end = runtime.now() + time;
    while runtime.now() < end {
        assert!(runtime.step());
    }
}

/// A sound database with records in pages and beside them, nothing of it in memory.
fn prepared(seed: u64) -> (SimDisk, Runtime) {
    let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
    let db = open(&disk, &runtime, 0);
    fill(&db.keyspace("main", KeyspaceOptions::default()).unwrap(), 0, 4_000);
    db.close().unwrap();
    // What the last double writes have copies of would be restored.
    let db = open(&disk, &runtime, 0);
    fill(&db.existing_keyspace("main").unwrap(), 0, 1);
    db.close().unwrap();
    (disk, runtime)
}

/// Offsets of blocks of a kind that are in use: a backup has no others.
fn in_use(disk: &SimDisk, runtime: &Runtime, kind: u8) -> Vec<u64> {
    let db = open(disk, runtime, 0);
    db.backup("/sound").unwrap();
    db.close().unwrap();
    let bytes = disk.contents(Path::new("/sound/keyspace-00000001.spn")).unwrap();
    let blocks = bytes.chunks(4096).enumerate().skip(128);
    blocks.filter(|(_, block)| block[8] == kind).map(|(page, _)| page as u64 * 4096).collect()
}

#[test]
fn damage_is_found_that_nobody_read() {
    for (seed, kind) in [(1, 1), (2, 4)] {
        let (disk, runtime) = prepared(seed);
        let places = in_use(&disk, &runtime, kind);
        let damaged = [places[3], places[places.len() / 2], places[places.len() - 2]];
        for offset in damaged {
            disk.flip_bit(Path::new(FILE), offset + 100, 5).unwrap();
        }
        let db = open(&disk, &runtime, 1 << 20);
        pass_time(&runtime, Duration::from_secs(10));
        let stats = db.stats();
        let lookups = stats.io.by_purpose[Purpose::LOOKUP.index()].reads;
        assert_eq!((lookups, stats.scrub.damaged_pages), (0, 3), "{:?}", stats.scrub);
        let mut found: Vec<u64> = stats.scrub.damaged.iter().map(|page| page.offset).collect();
        found.sort_unstable();
        assert_eq!(found, damaged);
        assert!(stats.scrub.damaged.iter().all(|page| page.file == Path::new(FILE)));
        assert!(stats.scrub.passes >= 1 && stats.scrub.last_pass < Some(Duration::from_secs(9)));
        // It stops nothing, and what is whole again is reported so after the next pass.
        let main = db.existing_keyspace("main").unwrap();
        main.insert(b"more", b"of it").unwrap();
        for offset in damaged {
            disk.flip_bit(Path::new(FILE), offset + 100, 5).unwrap();
        }
        pass_time(&runtime, Duration::from_secs(20));
        assert_eq!(db.stats().scrub.damaged_pages, 0);
        assert_eq!(db.stats().scrub.damaged, []);
        db.verify().unwrap();
    }
}

/// The newest checkpoint is read as well: only the next open would miss it.
#[test]
fn a_damaged_checkpoint_is_found() {
    let (disk, runtime) = prepared(3);
    let db = open(&disk, &runtime, 1 << 20);
    let bytes = disk.contents(Path::new(FILE)).unwrap();
    let blocks = bytes.chunks(4096).enumerate().skip(128);
    for (page, _) in blocks.filter(|(_, block)| block[8] == 3) {
        disk.flip_bit(Path::new(FILE), page as u64 * 4096 + 500, 1).unwrap();
    }
    pass_time(&runtime, Duration::from_secs(10));
    assert_eq!(db.stats().scrub.damaged_pages, 1);
}

#[test]
fn a_rate_is_kept_and_none_is_none() {
    let (disk, runtime) = prepared(4);
    let db = open(&disk, &runtime, 0);
    pass_time(&runtime, Duration::from_secs(5));
    assert_eq!(db.stats().scrub, spinney_db::ScrubStats::default());
    db.close().unwrap();
    let db = open(&disk, &runtime, 64 << 10);
    let begun = runtime.now();
    pass_time(&runtime, Duration::from_secs(21));
    let most = (runtime.now() - begun).as_secs() * 16 + 100;
    let pages = db.stats().scrub.pages;
    assert!(pages > 200 && pages <= most, "{pages} pages, at most {most}");
}

/// Splits, merges, large values that come and go, checkpoints: no false alarm.
#[test]
fn nothing_sound_is_called_damaged() {
    for seed in 10..20 {
        let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
        let db = open(&disk, &runtime, 64 << 20);
        let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
        for round in 0..60 {
            fill(&main, round * 100, round * 100 + 100);
            for number in 0..60 {
                let key = format!("key {:08}", (round * 100 + number * 3) * 7919 % 10_000);
                main.remove(key.as_bytes()).unwrap();
            }
            (0..30).for_each(|_| _ = runtime.step());
            if round % 10 == 9 {
                db.checkpoint().unwrap();
            }
        }
        pass_time(&runtime, Duration::from_secs(5));
        let scrub = db.stats().scrub;
        assert!(scrub.pages > 500 && scrub.passes > 1, "{scrub:?}");
        assert_eq!(scrub.damaged, []);
    }
}

/// The same beside threads.
#[test]
fn nothing_sound_is_called_damaged_beside_threads() {
    let (disk, runtime) = (SimDisk::new(30), Runtime::threads());
    let db = open(&disk, &runtime, 1 << 30);
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    let mut round = 0;
    while db.stats().scrub.passes < 3 || round < 30 {
        fill(&main, round * 200, round * 200 + 200);
        let first = format!("key {:08}", round * 200 % 9_000);
        let keys: Vec<_> = main.keys(first.as_bytes()..).take(150).map(Result::unwrap).collect();
        keys.iter().for_each(|key| main.remove(key).unwrap());
        round += 1;
        if round % 8 == 0 {
            db.checkpoint().unwrap();
        }
    }
    assert_eq!(db.stats().scrub.damaged, []);
}
