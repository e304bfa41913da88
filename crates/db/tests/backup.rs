//! Backup and restore (rule P26), on the simulated disk: while writers, reorganizations and
//! checkpoints go on, through faults and through crashes.
#![cfg(not(feature = "shuttle"))]

#[path = "common/seeds.rs"]
mod seeds;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spinney_base::Runtime;
use spinney_base::shim::thread;
use spinney_db::{
    BackupOptions, Batch, Db, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options,
};
use spinney_io::sim::{CrashMode, Fault, SimDisk};

use crate::seeds::seeds;

const COPY: &str = "/copy";

fn options(disk: &SimDisk, seed: u64) -> Options {
    Options::default()
        .memory(2 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(seed))
}

fn open_at(disk: &SimDisk, path: &str, seed: u64) -> Db {
    Db::open(Path::new(path), options(disk, seed)).unwrap()
}

fn keyspace(db: &Db, name: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default()).unwrap()
}

/// What a keyspace holds.
fn contents(keyspace: &Keyspace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    keyspace.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec())).collect()
}

/// Batches over two keyspaces, each with its number, so that a copy tells after which it was taken.
struct Story {
    a: Keyspace,
    b: Keyspace,
    written: u64,
}

const NUMBER: &[u8] = b"number";

impl Story {
    fn new(db: &Db) -> Story {
        Story { a: keyspace(db, "a"), b: keyspace(db, "b"), written: 0 }
    }

    /// What batch `number` does: mostly it writes, in phases it removes, so that pages split and
    /// join.
    fn operation(number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
        let key = number.wrapping_mul(0x9E37_79B9) % 4_000;
        let removes = number / 1_500 % 3 == 2;
        let value = vec![u8::try_from(number % 251).unwrap(); 100 + (number % 300) as usize];
        (format!("key {key:08}").into_bytes(), (!removes).then_some(value))
    }

    fn write(&mut self, db: &Db, count: u64) {
        for _ in 0..count {
            self.written += 1;
            let (key, value) = Story::operation(self.written);
            let mut batch = Batch::new();
            for keyspace in [&self.a, &self.b] {
                match &value {
                    Some(value) => batch.insert(keyspace, key.clone(), value.clone()),
                    None => batch.remove(keyspace, key.clone()),
                };
                batch.insert(keyspace, NUMBER, self.written.to_be_bytes());
            }
            db.write(batch).unwrap();
        }
    }

    /// The state after batch `number`.
    fn after(number: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut state = BTreeMap::new();
        for number in 1..=number {
            let (key, value) = Story::operation(number);
            match value {
                Some(value) => state.insert(key, value),
                None => state.remove(&key),
            };
            state.insert(NUMBER.to_vec(), number.to_be_bytes().to_vec());
        }
        state
    }

    /// Checks that a database holds the first batches, whole, and at least `least` of them; answers
    /// how many.
    fn check(db: &Db, least: u64) -> u64 {
        db.verify().unwrap();
        let a = contents(&db.existing_keyspace("a").unwrap());
        let number = a.get(NUMBER).map_or(0, |n| u64::from_be_bytes(n[..].try_into().unwrap()));
        assert!(number >= least, "{number} batches are there, {least} were acknowledged before");
        assert!(a == Story::after(number), "keyspace a is not as it was after batch {number}");
        let b = contents(&db.existing_keyspace("b").unwrap());
        assert!(b == a, "batch {number} is there in part");
        number
    }
}

/// The copy is the state after some batch at or after the last one before it began, whatever
/// happens meanwhile.
#[test]
fn p26_backup_while_writers_run() {
    for seed in seeds(12) {
        let disk = SimDisk::new(seed);
        let db = open_at(&disk, "/db", seed);
        let mut story = Story::new(&db);
        story.write(&db, 1_000 + seed * 500);
        let least = story.written;
        let mut calls = 0;
        let report = db
            .backup_with(COPY, &BackupOptions::default(), |progress| {
                calls += 1;
                story.write(&db, 60 + seed * 20);
                if calls % 5 == 0 {
                    db.checkpoint().unwrap();
                }
                assert_eq!(db.stats().backup_bytes, Some(progress.bytes));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(calls > 3 && report.keyspaces == 2 && report.bytes > 0);
        assert_eq!(db.stats().backup_bytes, None);
        let end = story.written;
        story.write(&db, 500);
        let copy = open_at(&disk, COPY, seed + 100);
        let number = Story::check(&copy, least);
        assert!(number <= end && number > least, "{number} of {least} to {end}");
        // The copy is a database like any other.
        copy.existing_keyspace("a").unwrap().insert(b"more", b"of it").unwrap();
        copy.close().unwrap();
        let copy = open_at(&disk, COPY, seed + 200);
        assert!(copy.existing_keyspace("a").unwrap().contains_key(b"more").unwrap());
        Story::check(&db, story.written);
        db.close().unwrap();
    }
}

/// The log is held for no longer than it takes to copy it: writers who fill it many times over do
/// not wait for the backup's end. And it is held for so long.
#[test]
fn p26_the_log_is_held_until_it_is_copied() {
    let disk = SimDisk::new(7);
    let db = open_at(&disk, "/db", 7);
    let mut story = Story::new(&db);
    story.write(&db, 2_000);
    let least = story.written;
    let before = db.stats().log;
    let report = db
        .backup_with(COPY, &BackupOptions::default(), |_| {
            story.write(&db, 1_500);
            db.checkpoint().unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    let after = db.stats().log;
    assert!(report.log_bytes > 2 * after.bytes_max, "{} of {before:?}", report.log_bytes);
    assert!(after.bytes_used < after.bytes_max / 2, "{after:?}");
    Story::check(&open_at(&disk, COPY, 1), least);
}

/// What is freed while a backup runs is reused after it, not before; also when the backup fails.
#[test]
fn p26_nothing_freed_is_reused() {
    let disk = SimDisk::new(8);
    let runtime = Runtime::stepped(8);
    let db = Db::open(Path::new("/db"), options(&disk, 8).runtime(runtime.clone())).unwrap();
    let mut story = Story::new(&db);
    story.write(&db, 2_900);
    db.checkpoint().unwrap();
    let used = |db: &Db| {
        let pages = |one: &spinney_db::KeyspaceStats| one.file_bytes / 4096 - one.free_pages;
        db.stats().keyspaces.iter().map(pages).sum::<u64>()
    };
    let mut most = used(&db);
    db.backup_with(COPY, &BackupOptions::default(), |_| {
        // Removals, so that segments are joined and pages freed.
        story.write(&db, 300);
        db.checkpoint().unwrap();
        (0..20).for_each(|_| _ = runtime.step());
        let now = used(&db);
        assert!(now >= most, "{now} pages are in use, and {most} were");
        most = now;
        ControlFlow::Continue(())
    })
    .unwrap();
    let now = used(&db);
    assert!(now + 20 < most, "{now} pages are in use, and {most} were while it ran");
    db.verify().unwrap();
    // A backup that fails gives back as well.
    let failed = db.backup_with("/other", &BackupOptions::default(), |_| {
        story.write(&db, 100);
        db.checkpoint().unwrap();
        disk.set_capacity(Some(0));
        ControlFlow::Continue(())
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Full);
    disk.set_capacity(None);
    assert_eq!(db.stats().backup_bytes, None);
    db.backup("/other").unwrap();
    db.verify().unwrap();
}

/// A keyspace without a log is in the copy as it was when the backup began, or later, key by key.
#[test]
fn p26_keyspaces_without_a_log() {
    let disk = SimDisk::new(9);
    let db = open_at(&disk, "/db", 9);
    let cache = db.keyspace("cache", KeyspaceOptions::default().logged(false)).unwrap();
    let key = |n: u64| format!("key {:06}", n.wrapping_mul(7919) % 3_000).into_bytes();
    let value = |round: u64| [&round.to_be_bytes()[..], &[7; 300]].concat();
    for number in 0..3_000 {
        cache.insert(key(number), value(0)).unwrap();
    }
    let mut written = 0;
    db.backup_with(COPY, &BackupOptions::default(), |_| {
        for _ in 0..200 {
            cache.insert(key(written * 31), value(1 + written)).unwrap();
            written += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let copy = open_at(&disk, COPY, 10);
    copy.verify().unwrap();
    let copied = copy.existing_keyspace("cache").unwrap();
    for number in 0..3_000 {
        let found = copied.get(key(number)).unwrap().expect("it was there all the time");
        let round = u64::from_be_bytes(found[..8].try_into().unwrap());
        assert!(found.len() == 308 && round <= written);
    }
}

/// One keyspace is made and another dropped meanwhile: the copy has the first and not the second.
#[test]
fn p26_keyspaces_come_and_go_meanwhile() {
    let disk = SimDisk::new(11);
    let db = open_at(&disk, "/db", 11);
    let mut story = Story::new(&db);
    let gone = keyspace(&db, "gone");
    story.write(&db, 1_500);
    for number in 0..500_u32 {
        gone.insert(number.to_be_bytes(), [1; 200]).unwrap();
    }
    let mut calls = 0_u32;
    db.backup_with(COPY, &BackupOptions::default(), |_| {
        calls += 1;
        match calls {
            2 => drop(keyspace(&db, "new")),
            3 => db.drop_keyspace("gone").unwrap(),
            _ => {}
        }
        if calls > 2 {
            keyspace(&db, "new").insert(calls.to_be_bytes(), b"new").unwrap();
        }
        story.write(&db, 20);
        ControlFlow::Continue(())
    })
    .unwrap();
    let copy = open_at(&disk, COPY, 12);
    Story::check(&copy, 1_500);
    let names: Vec<_> = copy.keyspaces().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["a", "b", "new"]);
    let new = contents(&copy.existing_keyspace("new").unwrap());
    let all = (3..=calls).map(|call| (call.to_be_bytes().to_vec(), b"new".to_vec()));
    assert_eq!(new, all.collect());
    // Ids go on where the original's did.
    keyspace(&copy, "another").insert(b"k", b"v").unwrap();
    copy.close().unwrap();
    assert!(!disk.files().iter().any(|file| file.ends_with("UNFINISHED")));
}

/// Files of a directory but for the lock.
fn left_in(disk: &SimDisk, directory: &str) -> Vec<PathBuf> {
    disk.files().into_iter().filter(|file| file.parent() == Some(Path::new(directory))).collect()
}

/// The data pages of a store file.
fn data_pages(disk: &SimDisk, file: &str) -> Vec<u64> {
    let bytes = disk.contents(Path::new(file)).unwrap();
    let pages = 128..bytes.len() / 4096;
    pages.filter(|page| bytes[page * 4096 + 8] == 1).map(|page| page as u64).collect()
}

/// One of them.
fn data_page(disk: &SimDisk, file: &str) -> u64 {
    data_pages(disk, file)[0]
}

/// Every read, write, sync and request for room of a backup fails in turn: an error, nothing
/// half-made, and the database continues, unless it was its own file that failed.
#[test]
fn p26_faults_leave_nothing_half_made() {
    let disk = SimDisk::new(13);
    let db = open_at(&disk, "/db", 13);
    let mut story = Story::new(&db);
    story.write(&db, 700);
    db.close().unwrap();
    let written = story.written;
    let whole = {
        let disk = disk.kill();
        let db = open_at(&disk, "/db", 14);
        let counts =
            |disk: &SimDisk| [disk.reads(), disk.writes(), disk.syncs(), disk.room_requests()];
        let before = counts(&disk);
        db.backup(COPY).unwrap();
        let after = counts(&disk);
        std::array::from_fn::<_, 4, _>(|index| before[index] + 1..=after[index])
    };
    let fault = |kind: usize, at: u64| match kind {
        0 => Fault::ReadError { at },
        1 => Fault::WriteError { at },
        2 => Fault::SyncError { at },
        _ => Fault::NoSpace { at },
    };
    let mut failures = 0;
    for (kind, range) in whole.into_iter().enumerate() {
        for at in range {
            let disk = disk.kill();
            let db = open_at(&disk, "/db", 14);
            disk.inject(fault(kind, at));
            let result = db.backup(COPY);
            if disk.faults_struck() == 0 {
                // Which of a batch of writes makes a file grow is left to chance.
                continue;
            }
            match &result {
                Ok(_) => drop(open_at(&disk, COPY, 15)),
                Err(_) => {
                    failures += 1;
                    assert_eq!(left_in(&disk, COPY), [] as [PathBuf; 0], "{:?}", fault(kind, at));
                }
            }
            if !db.flush().is_err_and(|error| error.is_poisoned()) {
                db.existing_keyspace("a").unwrap().insert(NUMBER, written.to_be_bytes()).unwrap();
                db.backup(if result.is_ok() { "/second" } else { COPY }).unwrap();
            }
            drop(db);
            Story::check(&open_at(&disk, "/db", 16), written);
        }
    }
    assert!(failures > 20, "{failures} faults were noticed");
}

/// A damaged page is found while it is copied; the copy is given up.
#[test]
fn p26_damage_is_reported() {
    let disk = SimDisk::new(17);
    let db = open_at(&disk, "/db", 17);
    let mut story = Story::new(&db);
    story.write(&db, 1_000);
    db.close().unwrap();
    let db = open_at(&disk, "/db", 17);
    // The copy holds pages in use and no others.
    db.backup("/sound").unwrap();
    // All of them: the background may bring the records of one page to another meanwhile.
    for page in data_pages(&disk, "/sound/keyspace-00000001.spn") {
        disk.flip_bit(Path::new("/db/keyspace-00000001.spn"), page * 4096 + 77, 3).unwrap();
    }
    let error = db.backup(COPY).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("keyspace-00000001"), "{error}");
    assert_eq!(left_in(&disk, COPY), [] as [PathBuf; 0]);
}

/// One damaged page of a slot in a backup leaves its other copy: what is restored has both, and the
/// backup is as it was. Where both are damaged nothing is restored.
#[test]
fn a1_a_restored_database_has_both_copies_of_its_slots() {
    for engine in EngineKind::ALL {
        let disk = SimDisk::new(18);
        let db = open_at(&disk, "/db", 18);
        let kept = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        for number in 0..300u32 {
            kept.insert(number.to_be_bytes(), [7; 200]).unwrap();
        }
        db.backup(COPY).unwrap();
        let file = Path::new(COPY).join("keyspace-00000001.spn");
        let before = disk.contents(&file).unwrap();
        let damaged: Vec<u64> = (0..4)
            .filter(|page| {
                disk.flip_bit(&file, page * 4096 + 40, 3).unwrap();
                let target = format!("/restored-{page}");
                let restored = Db::restore(COPY, &target, options(&disk, 19));
                restored.unwrap_or_else(|error| panic!("{engine}, page {page}: {error}"));
                assert_eq!(keyspace_of(&disk, &target), contents(&kept), "{engine}, page {page}");
                disk.flip_bit(&file, page * 4096 + 40, 3).unwrap();
                let copied = disk.contents(&Path::new(&target).join("keyspace-00000001.spn"));
                copied.unwrap()[..4 * 4096] == before[..4 * 4096]
            })
            .collect();
        assert_eq!(damaged, [0, 1, 2, 3], "{engine}: every page is what it was");
        assert!(disk.contents(&file).unwrap() == before, "{engine}: the backup is as it was");
        let mut refused = 0;
        for pair in [[0, 2], [1, 3]] {
            pair.iter().for_each(|page| disk.flip_bit(&file, page * 4096 + 40, 3).unwrap());
            match Db::restore(COPY, "/none", options(&disk, 19)) {
                Ok(_) => {
                    assert_eq!(keyspace_of(&disk, "/none"), contents(&kept), "{engine}");
                    disk.remove_directory(Path::new("/none")).unwrap();
                }
                Err(error) => {
                    assert!(error.is_corruption(), "{engine}: {error}");
                    assert_eq!(left_in(&disk, "/none"), [] as [PathBuf; 0]);
                    refused += 1;
                }
            }
            pair.iter().for_each(|page| disk.flip_bit(&file, page * 4096 + 40, 3).unwrap());
        }
        assert!(refused > 0, "{engine}: the newest slot is in one of the pairs");
    }
}

fn keyspace_of(disk: &SimDisk, path: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    contents(&open_at(disk, path, 20).existing_keyspace("k").unwrap())
}

/// Power goes at any step of a backup: the database recovers, and the copy is whole or says that it
/// is none.
#[test]
fn p26_a_crash_harms_neither() {
    let (mut whole, mut unfinished) = (0, 0);
    for seed in seeds(6) {
        let disk = SimDisk::new(seed);
        let db = open_at(&disk, "/db", seed);
        let mut story = Story::new(&db);
        story.write(&db, 800);
        let least = story.written;
        disk.capture_when(Arc::new(move |step, states| {
            let here = states.contains(&"backup") && (step + seed).is_multiple_of(6);
            here.then_some(CrashMode::Torn512)
        }));
        db.backup_with(COPY, &BackupOptions::default(), |_| {
            story.write(&db, 20);
            ControlFlow::Continue(())
        })
        .unwrap();
        for capture in disk.take_captures() {
            let image = capture.image;
            Story::check(&open_at(&image, "/db", seed), least);
            match Db::open(Path::new(COPY), options(&image, seed).create_if_missing(false)) {
                Ok(copy) => {
                    whole += 1;
                    Story::check(&copy, least);
                }
                Err(error) => {
                    unfinished += 1;
                    let begun = !left_in(&image, COPY).is_empty();
                    let expected = if begun { ErrorKind::Corruption } else { ErrorKind::NotFound };
                    assert_eq!(error.kind(), expected, "{error}");
                    let made = Db::open(Path::new(COPY), options(&image, seed));
                    assert!(!begun || made.is_err_and(|error| error.is_corruption()));
                    let restored = Db::restore(COPY, "/back", options(&image, seed));
                    assert!(restored.is_err(), "what was never finished was restored");
                }
            }
        }
    }
    assert!(unfinished > 20, "{whole} whole, {unfinished} unfinished");
}

/// Real threads write, remove and take checkpoints beside it.
#[test]
fn p26_beside_threads() {
    let disk = SimDisk::new(21);
    let threaded = options(&disk, 0).runtime(Runtime::threads());
    let db = Db::open(Path::new("/db"), threaded.clone()).unwrap();
    let a = keyspace(&db, "a");
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
    let pair = |writer: usize, key: u64, side: u8| {
        let mut bytes = vec![side];
        bytes.extend_from_slice(&(key.wrapping_mul(0x9E37_79B9) % 700).to_be_bytes());
        bytes.push(u8::try_from(writer).unwrap());
        bytes
    };
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (db, a) = (db.clone(), a.clone());
            let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
            thread::spawn("writer", move || {
                for number in 1_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut batch = Batch::new();
                    for side in [0, 1] {
                        let value = [&number.to_be_bytes()[..], &[9; 250]].concat();
                        batch.insert(&a, pair(writer, number, side), value);
                    }
                    batch.insert(&a, [2, u8::try_from(writer).unwrap()], number.to_be_bytes());
                    db.write(batch).unwrap();
                    acknowledged[writer].store(number, Ordering::Release);
                }
            })
            .unwrap()
        })
        .collect();
    while acknowledged.iter().any(|number| number.load(Ordering::Acquire) < 500) {
        thread::yield_now();
    }
    for round in 0..4 {
        let before: Vec<u64> =
            acknowledged.iter().map(|number| number.load(Ordering::Acquire)).collect();
        let place = format!("/copy{round}");
        let slow = BackupOptions::default().bytes_per_second(16 << 20);
        db.backup_with(&place, &slow, |_| ControlFlow::Continue(())).unwrap();
        let copy = Db::open(Path::new(&place), options(&disk, 3)).unwrap();
        copy.verify().unwrap();
        let copied = contents(&copy.existing_keyspace("a").unwrap());
        for (writer, before) in before.into_iter().enumerate() {
            let last = &copied[&vec![2, u8::try_from(writer).unwrap()]];
            let last = u64::from_be_bytes(last[..].try_into().unwrap());
            assert!(last >= before, "writer {writer} was at {before}, the copy is at {last}");
            let mut newest = BTreeMap::new();
            (1..=last).for_each(|number| _ = newest.insert(pair(writer, number, 0), number));
            for (key, number) in newest {
                for side in [0, 1] {
                    let found = &copied[&[&[side], &key[1..]].concat()];
                    assert_eq!(found[..8], number.to_be_bytes(), "writer {writer} at {last}");
                }
            }
        }
        db.checkpoint().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    db.close().unwrap();
}

/// A rate limit is kept, and time passes for everybody else meanwhile.
#[test]
fn a_rate_limit_is_kept() {
    let disk = SimDisk::new(23);
    let runtime = Runtime::stepped(23);
    let db = Db::open(Path::new("/db"), options(&disk, 0).runtime(runtime.clone())).unwrap();
    let mut story = Story::new(&db);
    story.write(&db, 1_200);
    db.checkpoint().unwrap();
    let begun = runtime.now();
    let slow = BackupOptions::default().bytes_per_second(100 << 10);
    let report = db.backup_with(COPY, &slow, |_| ControlFlow::Continue(())).unwrap();
    let least = Duration::from_secs(report.bytes / (100 << 10));
    let took = runtime.now() - begun;
    assert!(took >= least && took < least * 2, "{took:?} for {} bytes", report.bytes);
    Story::check(&open_at(&disk, COPY, 1), 1_200);
}

#[test]
fn a_target_must_be_empty_and_one_backup_runs() {
    let disk = SimDisk::new(25);
    let db = open_at(&disk, "/db", 25);
    let mut story = Story::new(&db);
    story.write(&db, 200);
    let error = db.backup("/db").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    db.backup(COPY).unwrap();
    let error = db.backup(COPY).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    Story::check(&open_at(&disk, COPY, 1), 200);
    db.backup_with("/again", &BackupOptions::default(), |_| {
        assert_eq!(db.backup("/nested").unwrap_err().kind(), ErrorKind::Locked);
        ControlFlow::Continue(())
    })
    .unwrap();
    let other = db.clone();
    let error = db.backup_with("/closed", &BackupOptions::default(), |_| {
        _ = other.clone().close();
        ControlFlow::Continue(())
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(left_in(&disk, "/closed"), [] as [PathBuf; 0]);
}

/// An empty database, and one whose keyspaces are empty.
#[test]
fn empty_databases_are_backed_up() {
    let disk = SimDisk::new(27);
    let db = open_at(&disk, "/db", 27);
    db.backup("/none").unwrap();
    drop(keyspace(&db, "a"));
    db.backup("/empty").unwrap();
    assert_eq!(open_at(&disk, "/none", 1).keyspaces().len(), 0);
    let copy = open_at(&disk, "/empty", 1);
    assert_eq!(copy.existing_keyspace("a").unwrap().iter().count(), 0);
    keyspace(&copy, "a").insert(b"k", b"v").unwrap();
    copy.verify().unwrap();
    copy.close().unwrap();
}

/// A restore is a verified copy; it takes closed databases only, and refuses damaged ones.
#[test]
fn p26_restore_verifies() {
    let disk = SimDisk::new(29);
    let db = open_at(&disk, "/db", 29);
    let mut story = Story::new(&db);
    story.write(&db, 1_300);
    db.backup_with(COPY, &BackupOptions::default(), |_| {
        story.write(&db, 10);
        ControlFlow::Continue(())
    })
    .unwrap();
    let back = |from: &str, to: &str| Db::restore(from, to, options(&disk, 30));
    let report = back(COPY, "/back").unwrap();
    assert!(report.keyspaces == 2 && report.verified.records > 0 && report.bytes > 0);
    Story::check(&open_at(&disk, "/back", 31), 1_300);
    assert_eq!(back("/db", "/open").unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(back("/nowhere", "/open").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(back(COPY, "/back").unwrap_err().kind(), ErrorKind::InvalidArgument);
    let file = Path::new("/copy/keyspace-00000002.spn");
    let page = data_page(&disk, "/copy/keyspace-00000002.spn");
    disk.flip_bit(file, page * 4096 + 99, 1).unwrap();
    let error = back(COPY, "/damaged").unwrap_err();
    assert!(error.is_corruption(), "{error}");
    assert_eq!(left_in(&disk, "/damaged"), [] as [PathBuf; 0]);
    disk.flip_bit(file, page * 4096 + 99, 1).unwrap();
    // The log's last block: rot in it is no torn tail.
    let wal = disk.contents(Path::new("/copy/wal")).unwrap();
    let blocks = wal.chunks(4096).filter(|block| block[8..12] == *b"SPWB").count() as u64;
    disk.flip_bit(Path::new("/copy/wal"), (2 + blocks - 2) * 4096 + 100, 1).unwrap();
    assert!(back(COPY, "/rotten").unwrap_err().is_corruption());
}

/// Large values come and go while the backup runs: the copy has those of its records, whole, and no
/// extents that nobody names once it has taken a checkpoint. With a log the copy is the state after
/// some write; without one each key has a value that it had since the backup began.
#[test]
fn p26_large_values() {
    let engines = EngineKind::ALL.into_iter().cycle();
    for ((seed, logged), engine) in (0..12).map(|seed| (seed, seed / 2 % 2 == 0)).zip(engines) {
        let disk = SimDisk::new(seed);
        let runtime = Runtime::stepped(seed);
        let db = Db::open(Path::new("/db"), options(&disk, 0).runtime(runtime.clone())).unwrap();
        let chosen = KeyspaceOptions::default().engine(engine).logged(logged);
        let big = db.keyspace("big", chosen).unwrap();
        let value = |number: u64| {
            let length = 4_000 + usize::try_from(number * 7919 % 60_000).unwrap();
            let mut value = number.to_be_bytes().repeat(length / 8);
            value.extend_from_slice(&[1; 7]);
            value
        };
        let key = |number: u64| format!("key {:03}", number * 31 % 40).into_bytes();
        let mut written = 0;
        let mut write = |count: u64| {
            for _ in 0..count {
                written += 1;
                if written % 11 == 0 {
                    big.remove(key(written)).unwrap();
                } else {
                    big.insert(key(written), value(written)).unwrap();
                }
            }
            written
        };
        let least = write(150);
        let mut calls = 0;
        let mut end = 0;
        db.backup_with(COPY, &BackupOptions::default(), |_| {
            calls += 1;
            end = write(6);
            if calls % 3 == 0 {
                db.checkpoint().unwrap();
            }
            (0..4).for_each(|_| _ = runtime.step());
            ControlFlow::Continue(())
        })
        .unwrap();
        write(60);
        db.verify().unwrap();
        let copy = open_at(&disk, COPY, 100 + seed);
        copy.verify().unwrap();
        let big = contents(&copy.existing_keyspace("big").unwrap());
        let found: BTreeMap<Vec<u8>, u64> = big
            .iter()
            .map(|(key, found)| (key.clone(), u64::from_be_bytes(found[..8].try_into().unwrap())))
            .collect();
        assert!(found.iter().all(|(key, number)| big[key] == value(*number)), "seed {seed}");
        let state = |number: u64| {
            let mut state = BTreeMap::new();
            for number in 1..=number {
                match number % 11 {
                    0 => state.remove(&key(number)),
                    _ => state.insert(key(number), number),
                };
            }
            state
        };
        if logged {
            assert!((least..=end).any(|number| state(number) == found), "seed {seed}");
        } else {
            let states: Vec<_> = (least..=end).map(state).collect();
            for key in (0..40).map(key) {
                let may = states.iter().any(|state| state.get(&key) == found.get(&key));
                assert!(may, "seed {seed}");
            }
        }
        // Twice: what the first frees, the second proves.
        copy.checkpoint().unwrap();
        copy.existing_keyspace("big").unwrap().insert(b"small", b"value").unwrap();
        copy.checkpoint().unwrap();
        let numbers = copy.existing_keyspace("big").unwrap().stats();
        let bytes: usize = big.values().map(|value| value.len().div_ceil(4064) * 4096).sum();
        assert_eq!((numbers.large_values, numbers.large_bytes), (big.len() as u64, bytes as u64));
        copy.close().unwrap();
    }
}
