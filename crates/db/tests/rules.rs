//! Rules of the write path, recovery and cursors, each by its number, on the simulated disk.
#![cfg(not(feature = "shuttle"))]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{ErrorKind, KeyspaceId, Runtime};
use spinney_db::{Batch, Db, Durability, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_sync::hash_key;

fn options(disk: &SimDisk) -> Options {
    Options::default()
        .memory(2 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1))
}

fn open(disk: &SimDisk) -> Db {
    Db::open(Path::new("/db"), options(disk)).unwrap()
}

fn keyspace(db: &Db, name: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default()).unwrap()
}

fn key(number: usize) -> Vec<u8> {
    format!("key{:06}", number * 7919 % 1_000_000).into_bytes()
}

/// Fills a keyspace until no record can be made clean any more, because the disk is full. Returns
/// how many records it took.
fn fill_up(disk: &SimDisk, keyspace: &Keyspace) -> usize {
    disk.set_capacity(Some(0));
    for number in 0.. {
        if let Err(error) = keyspace.insert(key(number), [7; 500]) {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            return number;
        }
    }
    unreachable!("the range is endless")
}

/// A keyspace without a log, full of dirty records that cannot be written back, because its pages
/// are damaged.
struct Stuck {
    keyspace: Keyspace,
    /// A key that is refused.
    refused: Vec<u8>,
    damaged: (PathBuf, Range<u64>),
}

impl Stuck {
    fn new(disk: &SimDisk, db: &Db, file: &str) -> Stuck {
        let keyspace = db.keyspace("stuck", KeyspaceOptions::default().logged(false)).unwrap();
        (0..4000).for_each(|number| keyspace.insert(key(number), [7; 500]).unwrap());
        db.checkpoint().unwrap();
        let file = Path::new("/db").join(file);
        // Of data, not the slots before them.
        let pages = 128..disk.contents(&file).unwrap().len() as u64 / 4096;
        let mut stuck = Stuck { keyspace, refused: Vec::new(), damaged: (file, pages) };
        stuck.flip(disk);
        // A turn of the cache's hand later there may be room after all.
        let is_refused = |key: &Vec<u8>| {
            let error = || stuck.keyspace.insert(key, [8; 500]).err();
            (0..100).all(|_| error().is_some_and(|error| error.kind() == ErrorKind::Corruption))
        };
        stuck.refused = (0..8000).map(key).find(is_refused).expect("memory ends");
        stuck
    }

    /// Damages its pages, or mends them.
    fn flip(&self, disk: &SimDisk) {
        let (file, pages) = &self.damaged;
        pages.clone().for_each(|page| disk.flip_bit(file, page * 4096 + 40, 3).unwrap());
    }
}

/// A batch over A and B whose part for B finds no room in memory: nothing of it happens, now or
/// after a crash.
#[test]
fn p02_prepare_before_the_log() {
    let disk = SimDisk::new(2);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    a.insert(b"warm", b"the log has a segment").unwrap();
    let b = Stuck::new(&disk, &db, "keyspace-00000002.spn");
    let before = db.stats().log.last_lsn;
    let mut batch = Batch::new();
    batch.insert(&a, *b"k", *b"half");
    batch.insert(&b.keyspace, b.refused.clone(), vec![8; 500]);
    assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(a.get(b"k").unwrap(), None);
    assert_eq!(db.stats().log.last_lsn, before, "nothing was said to the log");
    let after = disk.crash(CrashMode::KeepAll);
    b.flip(&after);
    let db = open(&after);
    assert_eq!(keyspace(&db, "a").get(b"k").unwrap(), None);
    db.verify().unwrap();
}

/// The parts of a batch that were prepared before another part found no room are given back, every
/// time.
#[test]
fn p02_a_refused_batch_gives_its_room_back() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    a.insert(b"k", [1; 3000]).unwrap();
    let b = Stuck::new(&disk, &db, "keyspace-00000002.spn");
    let before = a.stats().cache_bytes;
    for _ in 0..500 {
        let mut batch = Batch::new();
        batch.insert(&a, *b"k", vec![2; 3000]);
        batch.insert(&b.keyspace, b.refused.clone(), vec![8; 500]);
        assert_eq!(db.write(batch).unwrap_err().kind(), ErrorKind::Corruption);
    }
    // Were their room still reserved, the cache would have grown for it.
    assert!(a.stats().cache_bytes <= 2 * before, "{before}");
    a.insert(b"k", [3; 3000]).unwrap();
    assert_eq!(a.get(b"k").unwrap().unwrap(), &[3; 3000][..]);
}

/// Full is an error that goes away: reads go on, and writes again once room returns.
#[test]
fn p02_a_full_disk_goes_away() {
    let disk = SimDisk::new(3);
    let db = open(&disk);
    let a = db.keyspace("a", KeyspaceOptions::default().logged(false)).unwrap();
    let count = fill_up(&disk, &a);
    assert!(count > 1000);
    for number in 0..count {
        assert!(a.contains_key(key(number)).unwrap());
    }
    disk.set_capacity(None);
    a.insert(b"more", b"room").unwrap();
    db.verify().unwrap();
    db.close().unwrap();
    let db = open(&disk);
    let a = db.existing_keyspace("a").unwrap();
    assert_eq!(a.get(b"more").unwrap().unwrap(), b"room");
    assert!((0..count).all(|number| a.contains_key(key(number)).unwrap()));
}

/// Another key of the same stripe: of 64 Ki stripes one in 64 Ki keys shares one.
fn stripe_neighbour(keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    let stripe = |key: &[u8]| hash_key(keyspace, key) >> 48;
    (0u32..)
        .map(|number| format!("n{number}").into_bytes())
        .find(|other| stripe(other) == stripe(key))
        .unwrap()
}

/// A conditional write of a cold key makes progress although another key of its stripe changes
/// between every read and lock; its closure runs outside locks, so it may write itself.
#[test]
fn p04_a_cold_key_beside_a_hot_one() {
    let disk = SimDisk::new(4);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    let neighbour = stripe_neighbour(a.id(), b"cold");
    a.insert(b"cold", b"1").unwrap();
    let mut runs = 0;
    a.update(b"cold", |old| {
        runs += 1;
        assert!(runs < 10, "the write never validates");
        a.insert(&neighbour, format!("hot {runs}").as_bytes()).unwrap();
        old.map(|old| [old, b"2"].concat())
    })
    .unwrap();
    assert_eq!(a.get(b"cold").unwrap().unwrap(), b"12");
    // An absent key is known to be absent, too.
    let absent = stripe_neighbour(a.id(), &neighbour);
    let mut runs = 0;
    a.update(&absent, |old| {
        runs += 1;
        assert!(runs < 10, "the write never validates");
        a.insert(&neighbour, b"hot").unwrap();
        Some(old.unwrap_or(b"new").to_vec())
    })
    .unwrap();
    // A change of the key itself is seen: the closure runs again with it.
    let mut seen = Vec::new();
    a.update(b"cold", |old| {
        seen.push(old.unwrap().to_vec());
        if seen.len() == 1 {
            a.insert(b"cold", b"other").unwrap();
        }
        Some(b"done".to_vec())
    })
    .unwrap();
    assert_eq!(seen, [b"12".to_vec(), b"other".to_vec()]);
}

/// Stripes are taken once each, the last operation on a key wins, and a batch larger than blocks
/// and segments of the log works and comes back.
#[test]
fn p05_batches() {
    let disk = SimDisk::new(5);
    let db = Db::open(Path::new("/db"), options(&disk).memory(16 << 20)).unwrap();
    let a = keyspace(&db, "a");
    let neighbour = stripe_neighbour(a.id(), b"k");
    let mut batch = Batch::new();
    batch.insert(&a, *b"k", *b"first");
    batch.insert(&a, neighbour.clone(), *b"same stripe");
    batch.remove(&a, *b"k");
    batch.insert(&a, *b"k", *b"last");
    batch.insert(&a, *b"gone", *b"x");
    batch.remove(&a, *b"gone");
    // 128 KiB segments at this log size: this one spans several.
    for number in 0..1000 {
        batch.insert(&a, key(number), vec![number as u8; 400]);
    }
    db.write(batch).unwrap();
    for db in [db, open(&disk.crash(CrashMode::LoseAll))] {
        let a = keyspace(&db, "a");
        assert_eq!(a.get(b"k").unwrap().unwrap(), b"last");
        assert_eq!(a.get(&neighbour).unwrap().unwrap(), b"same stripe");
        assert_eq!(a.get(b"gone").unwrap(), None);
        assert_eq!(a.iter().count(), 1002);
        let too_many = (0..=65_536).fold(Batch::new(), |mut batch, _| {
            batch.remove(&a, *b"k");
            batch
        });
        assert!(db.write(too_many).unwrap_err().to_string().contains("BATCH_OPERATIONS_MAX"));
        assert_eq!(a.get(b"k").unwrap().unwrap(), b"last");
    }
}

/// The part of a batch for an unlogged keyspace is not logged; after a crash each of its keys is as
/// at the checkpoint or later, and the logged part is whole.
#[test]
fn p11_unlogged_keyspaces() {
    let disk = SimDisk::new(6);
    let db = open(&disk);
    let logged = keyspace(&db, "logged");
    let unlogged = db.keyspace("unlogged", KeyspaceOptions::default().logged(false)).unwrap();
    let before = db.stats().log.last_lsn;
    unlogged.insert(b"k", b"1").unwrap();
    assert_eq!(db.stats().log.last_lsn, before, "a write of an unlogged keyspace reached the log");
    db.checkpoint().unwrap();
    let mut batch = Batch::new();
    batch.insert(&logged, *b"k", *b"2");
    batch.insert(&unlogged, *b"k", *b"2");
    db.write(batch).unwrap();
    let db = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(db.existing_keyspace("logged").unwrap().get(b"k").unwrap().unwrap(), b"2");
    // Nothing wrote it back: were the batch's part for it in the log, replay would have.
    assert_eq!(db.existing_keyspace("unlogged").unwrap().get(b"k").unwrap().unwrap(), b"1");
}

/// Each keyspace is replayed from its own redo LSN, though another's lies higher, because its
/// checkpoint failed.
#[test]
fn p15_each_keyspace_has_its_own_redo() {
    let disk = SimDisk::new(7);
    let db = open(&disk);
    // Made in this order, so that the second one's checkpoint fails.
    let (first, second) = (keyspace(&db, "first"), keyspace(&db, "second"));
    for number in 0..300 {
        first.insert(key(number), b"1").unwrap();
        second.insert(key(number), b"1").unwrap();
    }
    let mut nth = 0;
    let failed = loop {
        nth += 1;
        assert!(nth < 100, "no failing write lets exactly one checkpoint through");
        let trial = disk.kill();
        let db = open(&trial);
        let checkpoints =
            || db.stats().keyspaces.iter().map(|keyspace| keyspace.checkpoints).collect::<Vec<_>>();
        let before = checkpoints();
        trial.inject(Fault::WriteError { at: trial.writes() + nth });
        let result = db.checkpoint();
        let after = checkpoints();
        if result.is_err() && after[0] > before[0] && after[1] == before[1] {
            break trial;
        }
    };
    let image = failed.crash(CrashMode::LoseAll);
    let db = open(&image);
    for name in ["first", "second"] {
        let keyspace = db.existing_keyspace(name).unwrap();
        assert!((0..300).all(|number| keyspace.contains_key(key(number)).unwrap()), "{name}");
    }
}

/// Replay appends no user records, keeps their LSNs, and a crash in it loses nothing, nor does
/// another in the next.
#[test]
fn p19_replay_keeps_lsns_and_may_crash() {
    let disk = SimDisk::new(8);
    let count = 3000;
    let open = |disk: &SimDisk| {
        Db::open(Path::new("/db"), options(disk).memory(1 << 20).log_bytes_max(64 << 20))
    };
    let last = {
        let db = open(&disk).unwrap();
        let a = keyspace(&db, "a");
        for number in 0..count {
            a.insert_with(key(number), [number as u8; 300], Durability::Buffered).unwrap();
        }
        db.flush().unwrap();
        db.stats().log.last_lsn
    };
    let image = disk.crash(CrashMode::LoseAll);
    // Replay runs inside the budget: it writes back what does not fit, so it writes, and the power
    // fails in the middle, twice.
    let mut image = image;
    for share in [3, 2] {
        let trial = image.crash(CrashMode::LoseAll);
        drop(open(&trial).unwrap());
        let steps = trial.steps();
        assert!(steps > 20, "replay had to write");
        image.cut_power_at(steps / share);
        assert!(open(&image).is_err());
        image = image.crash(CrashMode::Torn512);
    }
    let db = open(&image).unwrap();
    assert!(db.stats().log.last_lsn >= last);
    let a = keyspace(&db, "a");
    for number in 0..count {
        let value = a.get(key(number)).unwrap();
        assert_eq!(value.as_deref(), Some(&[number as u8; 300][..]), "{number}");
    }
    db.verify().unwrap();
    a.insert(b"goes", b"on").unwrap();
}

/// Ids are never used again: neither after a drop nor after a reopen; dropped keyspaces' records in
/// the log are passed over.
#[test]
fn p20_ids_are_never_reused() {
    let disk = SimDisk::new(9);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    a.insert(b"k", b"old").unwrap();
    db.drop_keyspace("a").unwrap();
    let again = keyspace(&db, "a");
    assert!(again.id() > a.id());
    assert_eq!(again.get(b"k").unwrap(), None);
    let image = disk.crash(CrashMode::LoseAll);
    let db = open(&image);
    let again = keyspace(&db, "a");
    assert_eq!(
        again.get(b"k").unwrap(),
        None,
        "the log's records of the dropped keyspace are not this one's"
    );
    db.drop_keyspace("a").unwrap();
    drop(db);
    let db = open(&image.crash(CrashMode::LoseAll));
    assert!(keyspace(&db, "a").id() > again.id());
}

/// A process is killed when the manifest has a new name list that is not durable; the next one goes
/// by it, writes and removes; then power is lost.
#[test]
fn p09_names_that_a_killed_process_left_are_durable_before_anything_rests_on_them() {
    let mut found = std::collections::BTreeSet::new();
    for step in 1..60 {
        let disk = SimDisk::new(step);
        let db = open(&disk);
        keyspace(&db, "a").insert(b"k", b"v").unwrap();
        let begun = disk.steps();
        disk.cut_power_at(begun + step);
        let made = db.keyspace("b", KeyspaceOptions::default());
        let dropped = made.and_then(|_| db.drop_keyspace("a"));
        drop(db);
        let killed = disk.kill();
        let db = open(&killed);
        let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
        for name in &names {
            db.existing_keyspace(name).unwrap().insert(b"again", b"v").unwrap();
        }
        for mode in [CrashMode::LoseAll, CrashMode::Torn512] {
            let db = open(&killed.crash(mode));
            let again: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
            assert_eq!(again, names, "step {step}");
            for name in &names {
                let keyspace = db.existing_keyspace(name).unwrap();
                assert!(keyspace.contains_key(b"again").unwrap(), "step {step}");
            }
        }
        found.insert(names);
        if dropped.is_ok() {
            break;
        }
    }
    assert!(found.len() >= 3, "{found:?}");
}

/// After a failed sync writes answer with the cause, reads go on, nothing more is written, and
/// reopening recovers what was promised.
#[test]
fn p21_a_failed_sync_stops_writing() {
    let disk = SimDisk::new(10);
    let db = open(&disk);
    let (a, b) =
        (keyspace(&db, "a"), db.keyspace("b", KeyspaceOptions::default().logged(false)).unwrap());
    a.insert(b"k", b"promised").unwrap();
    b.insert(b"k", b"v").unwrap();
    disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
    let error = a.insert(b"k", b"unknown").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    for error in [
        a.insert(b"k", b"more").unwrap_err(),
        b.insert(b"k", b"more").unwrap_err(),
        db.checkpoint().unwrap_err(),
        db.flush().unwrap_err(),
        db.keyspace("c", KeyspaceOptions::default()).unwrap_err(),
        db.drop_keyspace("b").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        assert!(error.to_string().contains("sync"), "the cause is named: {error}");
    }
    assert!(a.contains_key(b"k").unwrap());
    assert_eq!(b.get(b"k").unwrap().unwrap(), b"v");
    let writes = disk.writes();
    for _ in 0..50 {
        // Background work is stepped by any thread that waits; nothing of it may write.
        let _ = a.insert(b"k", b"more");
    }
    assert_eq!(disk.writes(), writes);
    assert!(db.close().is_err());
    let db = open(&disk.crash(CrashMode::LoseAll));
    let value = keyspace(&db, "a").get(b"k").unwrap().unwrap();
    assert!(value == b"promised" || value == b"unknown");
}

/// A cursor holds nothing between calls: its thread may write, reorganize, drop and close
/// meanwhile.
#[test]
fn p24_a_cursor_holds_nothing() {
    let disk = SimDisk::new(11);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    for number in 0..2000 {
        a.insert_with(key(number), [1; 100], Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    let mut seen = 0;
    for (turn, record) in a.iter().enumerate() {
        let (key, _) = record.unwrap();
        // Behind the cursor, so that it ends; enough of it to split pages.
        let behind = [b"a".as_slice(), &key].concat();
        a.insert_with(&behind, [2; 200], Durability::Buffered).unwrap();
        if turn % 500 == 0 {
            db.checkpoint().unwrap();
        }
        seen += 1;
    }
    assert_eq!(seen, 2000);
    let mut cursor = a.iter();
    assert!(cursor.next().unwrap().is_ok());
    db.drop_keyspace("a").unwrap();
    // What was copied before is still there; what was not is not.
    let error = cursor.by_ref().find_map(Result::err).expect("the keyspace is gone");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(cursor.next().is_none(), "the iterator ends");
    assert_eq!(cursor.next_ref().unwrap_err().kind(), ErrorKind::Closed, "errors stay");
    db.close().unwrap();
}

/// Deleting nearly everything makes sparse neighbours one again, page by page, and what is left is
/// where it should be.
#[test]
fn an_emptied_keyspace_gives_its_pages_back() {
    let disk = SimDisk::new(12);
    let runtime = Runtime::stepped(1);
    let db = Db::open(Path::new("/db"), options(&disk).runtime(runtime.clone())).unwrap();
    let a = keyspace(&db, "a");
    for number in 0..5000 {
        a.insert_with(key(number), [1; 100], Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    let full = a.stats();
    assert!(full.pages + full.overflow_pages > 150, "{full:?}");
    for number in (0..5000).filter(|number| number % 50 != 0) {
        a.remove_with(key(number), Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    for _ in 0..3000 {
        runtime.step();
    }
    db.checkpoint().unwrap();
    let emptied = a.stats();
    assert!(emptied.pages * 10 < full.pages, "{} of {} pages", emptied.pages, full.pages);
    assert!(emptied.free_pages > full.pages / 2, "{emptied:?}");
    db.verify().unwrap();
    for db in [db, open(&disk.crash(CrashMode::LoseAll))] {
        let a = keyspace(&db, "a");
        assert_eq!(a.iter().count(), 100);
        assert!((0..5000).step_by(50).all(|number| a.contains_key(key(number)).unwrap()));
    }
}

/// P23: what a scan keeps of pages is not what the next one finds after they were rewritten.
#[test]
fn p23_cached_pages_follow_what_is_written() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let keyspace = keyspace(&db, "k");
    for turn in 0..4u8 {
        for number in 0..100 {
            keyspace.insert(key(number), [turn; 50]).unwrap();
        }
        db.checkpoint().unwrap();
        for again in 0..2 {
            let before = db.stats().keyspaces[0].page_cache_hits;
            let records = keyspace.range(key(1)..).take(20).map(Result::unwrap);
            assert_eq!(records.filter(|(_, value)| *value == [turn; 50][..]).count(), 20);
            let hits = db.stats().keyspaces[0].page_cache_hits - before;
            assert!(again == 0 || hits > 0, "a page that was scanned is in memory");
        }
    }
}
