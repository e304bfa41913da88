//! Full disks and disks that may not be written (rule P29), on the simulated disk: a restart on a
//! full disk reads, removes, checkpoints and drops; an opening for reading changes no byte.
#![cfg(not(feature = "shuttle"))]

#[path = "common/budget.rs"]
mod budget;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{
    Batch, Db, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options,
};
use spinney_io::sim::{CrashMode, SimDisk};

use crate::budget::with_records;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(disk: &SimDisk) -> Options {
    Options::default()
        .memory(2 << 20)
        .log_bytes_max(2 << 20)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1))
}

fn made(disk: &SimDisk, engine: EngineKind) -> (Db, Keyspace) {
    let options = options(disk).memory(with_records(engine, 2 << 20));
    let db = Db::open("/db", options).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
    (db, keyspace)
}

fn key(number: u32) -> Vec<u8> {
    number.wrapping_mul(0x9E37_79B1).to_be_bytes().to_vec()
}

fn records(db: &Db) -> Model {
    let keyspace = db.existing_keyspace("k").unwrap();
    let all = keyspace.iter().map(Result::unwrap);
    all.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let ours = disk.files().into_iter().filter(|path| path.starts_with("/db"));
    ours.map(|path| (path.clone(), disk.contents(&path).unwrap())).collect()
}

/// A database with records in pages and in the log, as a process or the power left it.
fn crashed(engine: EngineKind, mode: Option<CrashMode>) -> (SimDisk, Model) {
    let disk = SimDisk::new(3);
    let (db, keyspace) = made(&disk, engine);
    let mut model = Model::new();
    for number in 0..4000u32 {
        let (key, value) = (key(number % 2500), vec![number as u8; 60 + (number % 80) as usize]);
        let durability = if mode.is_some() { Durability::Sync } else { Durability::Buffered };
        if number % 7 == 3 {
            keyspace.remove_with(&key, durability).unwrap();
            model.remove(&key);
        } else {
            keyspace.insert_with(&key, &value, durability).unwrap();
            model.insert(key, value);
        }
        if number == 2000 {
            db.checkpoint().unwrap();
        }
    }
    (mode.map_or_else(|| disk.kill(), |mode| disk.crash(mode)), model)
}

#[test]
fn c2_an_opening_for_reading_changes_no_byte() {
    for engine in EngineKind::ALL {
        for mode in [None, Some(CrashMode::Torn512), Some(CrashMode::LoseAll)] {
            let (disk, model) = crashed(engine, mode);
            let (before, writes) = (files(&disk), disk.writes());
            let one = Db::open("/db", options(&disk).read_only(true)).unwrap();
            let other = Db::open("/db", options(&disk).read_only(true)).unwrap();
            for db in [&one, &other] {
                assert!(records(db) == model, "{engine} {mode:?}");
                assert!(db.is_read_only() && db.stats().read_only.is_some());
                db.verify().unwrap();
            }
            let keyspace = one.existing_keyspace("k").unwrap();
            let refused = |error: spinney_db::Error| assert_eq!(error.kind(), ErrorKind::ReadOnly);
            refused(keyspace.insert(b"a", b"b").unwrap_err());
            refused(keyspace.remove(b"a").unwrap_err());
            refused(keyspace.bulk_load([(b"a", b"b")]).unwrap_err());
            refused(keyspace.insert_from(b"a", 5000, &mut [0; 5000].as_slice()).unwrap_err());
            refused(one.checkpoint().unwrap_err());
            refused(one.flush().unwrap_err());
            refused(one.drop_keyspace("k").unwrap_err());
            refused(one.keyspace("new", KeyspaceOptions::default()).unwrap_err());
            assert_eq!(disk.writes(), writes);
            one.backup("/copy").unwrap();
            let locked = Db::open("/db", options(&disk)).unwrap_err();
            assert_eq!(locked.kind(), ErrorKind::Locked);
            one.close().unwrap();
            drop((keyspace, other));
            assert!(files(&disk) == before, "{engine} {mode:?}: the files changed");
            assert!(records(&Db::open("/copy", options(&disk)).unwrap()) == model);
            let writer = Db::open("/db", options(&disk)).unwrap();
            let locked = Db::open("/db", options(&disk).read_only(true)).unwrap_err();
            assert_eq!(locked.kind(), ErrorKind::Locked);
            assert!(records(&writer) == model);
        }
    }
    let missing = Db::open("/no", options(&SimDisk::new(1)).read_only(true)).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

/// What the budget cannot replay is `Full`, and says which budget can; that one does.
#[test]
fn c2_a_budget_that_is_too_small_names_one_that_does() {
    let mut refused = 0;
    for engine in EngineKind::ALL {
        let disk = SimDisk::new(4);
        let db = Db::open("/db", options(&disk).memory(32 << 20).log_bytes_max(32 << 20)).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        let mut model = Model::new();
        for number in 0..40_000u32 {
            let value = vec![number as u8; 200];
            keyspace.insert_with(key(number), &value, Durability::Buffered).unwrap();
            model.insert(key(number), value);
        }
        drop((keyspace, db));
        let disk = disk.kill();
        for pages in [64 << 10, 1 << 20, 4 << 20] {
            let small = options(&disk).memory(1 << 20).read_only(true).replay_bytes_max(pages);
            match Db::open("/db", small) {
                Ok(db) => assert!(records(&db) == model),
                Err(error) => {
                    assert!(error.is_full(), "{error}");
                    let text = error.to_string();
                    let words: Vec<&str> = text.split_whitespace().collect();
                    let at = words.windows(3).position(|words| {
                        words == ["bytes", "would", "do:"] || words == ["bytes", "of", "memory"]
                    });
                    let bytes: u64 =
                        words[at.unwrap_or_else(|| panic!("{text}")) - 1].parse().unwrap();
                    let db = Db::open("/db", options(&disk).memory(bytes).read_only(true)).unwrap();
                    assert!(records(&db) == model, "{engine}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 2, "{refused}");
}

/// Fills the disk at many sizes, kills the process, and begins again on the full disk.
#[test]
fn c1_a_restart_on_a_full_disk_reads_removes_checkpoints_and_drops() {
    let (mut writable, mut checkpointed, mut all) = (0, 0, 0);
    for engine in EngineKind::ALL {
        let options = |disk: &SimDisk| options(disk).memory(with_records(engine, 2 << 20));
        for durability in [Durability::Sync, Durability::Buffered] {
            for step in (0..25u64).step_by(2) {
                let capacity = (1 << 20) + step * 253_000;
                let disk = SimDisk::new(step);
                disk.set_capacity(Some(capacity));
                let (db, keyspace) = made(&disk, engine);
                let mut model = Model::new();
                let full = (0..100_000u32).find_map(|number| {
                    let value = vec![number as u8; 100 + (number % 300) as usize];
                    let result = keyspace.insert_with(key(number % 20_000), &value, durability);
                    if result.is_ok() {
                        model.insert(key(number % 20_000), value);
                    }
                    result.err()
                });
                let context = format!("{engine} {durability:?} {capacity}");
                let full = full.expect("the disk is full some time");
                assert!(full.is_full(), "{context}: {full}");
                // Another write refused, and the process ends.
                let again = keyspace.insert_with(b"once more", [1; 3000], durability);
                assert!(again.is_ok() || again.unwrap_err().is_full(), "{context}");
                drop((keyspace, db));
                model.remove(&b"once more"[..]);

                let disk = disk.kill();
                disk.set_capacity(Some(capacity));
                let db = Db::open("/db", options(&disk)).unwrap();
                let mut found = records(&db);
                found.remove(&b"once more"[..]);
                assert!(found == model, "{context}: {} of {}", found.len(), model.len());
                db.verify().unwrap();
                all += 1;
                if db.is_read_only() {
                    let keyspace = db.existing_keyspace("k").unwrap();
                    assert!(keyspace.remove(key(1)).unwrap_err().is_full(), "{context}");
                } else {
                    writable += 1;
                    let keyspace = db.existing_keyspace("k").unwrap();
                    if std::env::var_os("SPINNEY_TRACE").is_some() {
                        let stats = db.stats();
                        println!(
                            "{context}: log {:?} reserved {} file {:?}",
                            stats.log, stats.reserved_bytes, stats.keyspaces[0].numbers
                        );
                    }
                    for number in 0..200 {
                        keyspace
                            .remove_with(key(number), durability)
                            .unwrap_or_else(|error| panic!("{context}: remove {number}: {error}"));
                        model.remove(&key(number));
                    }
                    match db.checkpoint() {
                        Ok(()) => checkpointed += 1,
                        Err(error) => println!("{context}: {error}"),
                    }
                    let mut found = records(&db);
                    found.remove(&b"once more"[..]);
                    assert!(found == model, "{context}");
                }
                // To a disk with room.
                disk.set_capacity(None);
                db.backup(Path::new("/elsewhere")).unwrap();
                let mut found = records(&Db::open("/elsewhere", options(&disk)).unwrap());
                found.remove(&b"once more"[..]);
                assert!(found == model, "{context}");
                disk.remove_directory(Path::new("/elsewhere")).unwrap();
                if !db.is_read_only() {
                    disk.set_capacity(Some(capacity));
                    db.drop_keyspace("k").unwrap_or_else(|error| panic!("{context}: {error}"));
                    let (_, keyspace) =
                        (&db, db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap());
                    keyspace.insert(b"there is room", b"again").unwrap();
                    db.close().unwrap();
                }
            }
        }
    }
    println!("{writable} of {all} could be written after the restart, {checkpointed} checkpointed");
    assert_eq!((writable, checkpointed), (all, all));
}

/// What may wait takes nothing from the reserve on a full disk, though sparse pages could be
/// joined.
#[test]
fn c1_tidying_on_a_full_disk_leaves_the_reserve() {
    for engine in EngineKind::ALL {
        let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
        let options = options(&disk).memory(with_records(engine, 2 << 20));
        let db = Db::open("/db", options.runtime(runtime.clone())).unwrap();
        let kept = KeyspaceOptions::default().engine(engine);
        let keyspace = db.keyspace("k", kept).unwrap();
        (0..30_000u32).for_each(|number| keyspace.insert(key(number), [7; 300]).unwrap());
        for number in (0..30_000u32).filter(|number| number % 8 != 0) {
            keyspace.remove(key(number)).unwrap();
        }
        db.checkpoint().unwrap();
        let full = disk.used();
        disk.set_capacity(Some(full));
        let before = db.stats().reserved_bytes;
        assert!(before > 512 << 10, "{engine}: {before}");
        for _ in 0..2000 {
            runtime.step();
            // After a quiet while it is less, and then the disk has more room. What is taken from it is not.
            let (reserved, used) = (db.stats().reserved_bytes, disk.used());
            assert!(
                before.saturating_sub(reserved) <= full.saturating_sub(used),
                "{engine}: reserve of {before} and now {reserved}, {full} used and now {used}"
            );
        }
        assert_eq!(keyspace.iter().count(), 3750, "{engine}");
    }
}

/// A full disk takes every removal, whatever the background does between them, and what was removed
/// makes room for as much again: the log stays short until there is a reserve for a longer one, and what may wait takes no page that the next
/// checkpoint needs.
#[test]
fn c1_a_full_disk_takes_every_removal() {
    let batches = [(1, 4), (32, 9)];
    for (engine, (batch, seed)) in EngineKind::ALL.iter().flat_map(|e| batches.map(|b| (*e, b))) {
        takes_every_removal(engine, batch, seed, 3, 2 << 20, (6 << 20) + seed * 377_000);
    }
}

/// Nor does what waits in a large memory take more than the disk has.
#[test]
fn c1_a_full_disk_takes_every_removal_of_a_large_memory() {
    // The last disk is full when a batch in memory would rewrite more than it has room for.
    let disks = [25_000_000, 36_500_000];
    for (engine, bytes) in EngineKind::ALL.iter().flat_map(|e| disks.map(|bytes| (*e, bytes))) {
        takes_every_removal(engine, 1, 0, 1, 16 << 20, bytes);
    }
}

fn takes_every_removal(
    engine: EngineKind,
    batch: usize,
    seed: u64,
    rounds: usize,
    memory: u64,
    capacity: u64,
) {
    let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
    disk.set_capacity(Some(capacity));
    let options = options(&disk).memory(with_records(engine, memory));
    let db = Db::open("/db", options.runtime(runtime.clone())).unwrap();
    let kept = KeyspaceOptions::default().engine(engine);
    let keyspace = db.keyspace("k", kept).unwrap();
    let context = format!("{engine} {batch} {seed} {memory} {capacity}");
    for round in 0..rounds {
        let mut refused = 0;
        for number in 0.. {
            let value = vec![number as u8; 100 + (number % 300) as usize];
            if number % 16 == 0 {
                runtime.step();
            }
            match keyspace.insert(key(number), &value) {
                Ok(()) => refused = 0,
                Err(error) if error.is_full() && refused < 8 => refused += 1,
                Err(error) if error.is_full() => break,
                Err(error) => panic!("{context}: {error}"),
            }
        }
        let keys: Vec<_> = keyspace.keys(..).map(Result::unwrap).collect();
        let bytes = keys.len() as u64 * 250;
        assert!(bytes > capacity / 6, "{context}, round {round}: {} records", keys.len());
        let longest = db.stats().log.bytes_used + (512 << 10);
        for (at, keys) in keys.chunks(batch).enumerate() {
            let mut writes = Batch::new();
            keys.iter().for_each(|key| {
                writes.remove(&keyspace, key.clone());
            });
            let removed = db.write(writes);
            removed.unwrap_or_else(|e| panic!("{context}, round {round}, {at}: {e}"));
            if at % 4 == 0 {
                runtime.step();
            }
            let (log, reserved) = (db.stats().log.bytes_used, db.stats().reserved_bytes);
            let is_covered = log <= longest || reserved >= 3 * log;
            assert!(is_covered, "{context}, round {round}, {at}: a log of {log} bytes");
        }
        assert_eq!(keyspace.iter().count(), 0, "{context}");
        db.checkpoint().unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    db.verify().unwrap();
}
