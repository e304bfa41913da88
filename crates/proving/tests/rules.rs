//! Rules of the protocols that only the whole stack can keep, each by its number, on the simulated
//! disk; those of the log, of schedules and of the write path have their tests beside them. Found
//! failures stay here as scenarios.

use std::path::Path;
use std::sync::Arc;

use spinney::{Batch, Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options, TornWrites};
use spinney_base::Runtime;
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_proving::roots::Layout;
use spinney_proving::tier::{self, Random};
use spinney_proving::watch::Watch;

/// A log so large that pages go home for want of memory, not for a checkpoint's sake.
const LARGE_LOG_BYTES: u64 = 64 << 20;

fn options(disk: &SimDisk, runtime: &Runtime, torn: TornWrites) -> Options {
    Options::default()
        .memory(1 << 20)
        .log_bytes_max(LARGE_LOG_BYTES)
        .torn_writes(torn)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

fn open(disk: &SimDisk) -> Db {
    let options = options(disk, &Runtime::stepped(1), TornWrites::DoubleWrite);
    // A log so small that a checkpoint trims it.
    Db::open(Path::new("/db"), options.log_bytes_max(1 << 20)).unwrap()
}

fn main_of(db: &Db) -> Keyspace {
    db.keyspace("main", KeyspaceOptions::default()).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    Random::new(number, 20).next_u64().to_be_bytes().to_vec()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    let length = 60 + usize::try_from(Random::new(number, 21).next_u64() % 600).unwrap();
    let mut value = format!("{number} in version {version} ").into_bytes();
    value.resize(length, b'.');
    value
}

/// Keeps an image of every step, or one in `every`, that `run` makes, and checks each as `check`
/// says: `mode` decides what survives.
fn at_every_step(
    disk: &SimDisk,
    (mode, every): (CrashMode, u64),
    run: impl FnOnce(),
    check: impl Fn(&Db),
) -> usize {
    disk.capture_when(Arc::new(move |step, _| (step % every == 0).then_some(mode)));
    run();
    disk.capture_when(Arc::new(|_, _| None));
    let captures = disk.take_captures();
    for capture in &captures {
        let db = open(&capture.image);
        check(&db);
        db.verify().unwrap();
    }
    captures.len()
}

/// Keys in five places, so that pages there split again and again.
fn crowded(number: u64) -> Vec<u8> {
    let mut key = key(number % 5);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn check_crowded(db: &Db, end: u64) {
    let main = main_of(db);
    for number in 0..end {
        let found = main.get(crowded(number)).unwrap();
        assert!(found.as_deref() == Some(&value(number, 1)[..]), "record {number} is not there");
    }
}

fn check_versions(db: &Db, numbers: std::ops::Range<u64>, versions: &[u64]) {
    let main = main_of(db);
    for number in numbers {
        let found = main.get(key(number)).unwrap();
        let right =
            versions.iter().any(|version| found.as_deref() == Some(&value(number, *version)[..]));
        assert!(
            right,
            "record {number} is {:?}",
            found.map(|value| value.escape_ascii().to_string())
        );
    }
}

/// Dirty records are written home under memory pressure while their log records were only
/// `Buffered`; the watch compares every page with what the log has on the media.
#[test]
fn p10_no_page_before_its_records() {
    let disk = SimDisk::new(1);
    let runtime = Runtime::stepped(1);
    let watch = Arc::new(Watch::default());
    disk.observe(watch.clone());
    let db = Db::open(Path::new("/db"), options(&disk, &runtime, TornWrites::Assume4k)).unwrap();
    let main = main_of(&db);
    for number in 0..3000 {
        main.insert_with(key(number), value(number, 1), Durability::Buffered).unwrap();
        runtime.step();
    }
    watch.check();
    let (pages, _) = watch.checked();
    assert!(pages > 100, "only {pages} pages were written");
    // And what was acknowledged as buffered outlives the process.
    check_versions(&open(&disk.kill()), 0..3000, &[1]);
}

/// Pages split and their structure records go to the log; the watch looks for the named pages on
/// the media.
#[test]
fn p13_what_it_adds_is_durable_before_it() {
    let disk = SimDisk::new(1);
    let runtime = Runtime::stepped(1);
    let watch = Arc::new(Watch::default());
    disk.observe(watch.clone());
    let db = Db::open(Path::new("/db"), options(&disk, &runtime, TornWrites::Assume4k)).unwrap();
    let main = main_of(&db);
    for number in 0..3000 {
        main.insert_with(key(number), value(number, 1), Durability::Buffered).unwrap();
        if number % 50 == 0 {
            db.flush().unwrap();
            // A quiet second, in which pending structure is published.
            for _ in 0..40 {
                runtime.sleep(std::time::Duration::from_millis(25));
                runtime.step();
            }
        }
    }
    db.flush().unwrap();
    watch.check();
    let (_, records) = watch.checked();
    assert!(records > 50, "only {records} structure records were written");
    check_versions(&open(&disk.crash(CrashMode::LoseAll)), 0..3000, &[1]);
}

/// Checkpoints of a turtle keyspace, with large values, removals, snapshots and a changing checkpoint
/// distance; the watch looks for all that a slot names on the media, and at what is overwritten.
#[test]
fn p13_a_slot_names_what_is_durable_and_nobody_writes_there() {
    let disk = SimDisk::new(1);
    let watch = Arc::new(Watch::over_roots(Layout::Turtle));
    disk.observe(watch.clone());
    let mut written = 0;
    for life in 0..3 {
        let runtime = Runtime::stepped(life);
        let db =
            Db::open(Path::new("/db"), options(&disk, &runtime, TornWrites::Assume4k)).unwrap();
        let engine = KeyspaceOptions::default().engine(EngineKind::Turtle);
        let main = db.keyspace("main", engine.set("leaf", "16KiB").unwrap()).unwrap();
        let mut snapshot = None;
        for number in 0..2500 {
            let version = life + 1;
            match number % 40 {
                7 => main.remove_with(key(number / 2), Durability::Buffered).unwrap(),
                8 => main.insert_with(key(number), [8; 9000], Durability::Buffered).unwrap(),
                9 => drop(snapshot.replace(main.snapshot().unwrap())),
                10 => drop(
                    main.turtle().unwrap().set_checkpoint_distance(1 + number / 40 % 9).unwrap(),
                ),
                _ => main
                    .insert_with(key(number), value(number, version), Durability::Buffered)
                    .unwrap(),
            }
            if number % 10 == 0 {
                runtime.step();
            }
            if number % 500 == 0 {
                db.checkpoint().unwrap();
            }
        }
        drop(snapshot);
        written += main.stats().checkpoints;
        db.verify().unwrap();
        db.close().unwrap();
    }
    watch.check();
    assert!(written > 30, "{written} checkpoints");
    assert!(watch.roots_checked() > 5000, "{} pages", watch.roots_checked());
}

/// Checkpoints of a B+tree that splits and shrinks, with large values and snapshots; the watch looks at the
/// same (H11).
#[test]
fn h11_a_root_names_what_is_durable_and_nobody_writes_there() {
    let disk = SimDisk::new(1);
    let watch = Arc::new(Watch::over_roots(Layout::Pages));
    disk.observe(watch.clone());
    for life in 0..3 {
        let runtime = Runtime::stepped(life);
        let db =
            Db::open(Path::new("/db"), options(&disk, &runtime, TornWrites::Assume4k)).unwrap();
        let main = db.keyspace("main", EngineKind::TwoBTree).unwrap();
        let mut snapshot = None;
        for number in 0..2500 {
            let key = key(number * 769 % 2500);
            match number % 40 {
                7 => main.remove_with(key, Durability::Buffered).unwrap(),
                8 => main.insert_with(key, [8; 9000], Durability::Buffered).unwrap(),
                9 => drop(snapshot.replace(main.snapshot().unwrap())),
                _ => main.insert_with(key, value(number, life + 1), Durability::Buffered).unwrap(),
            }
            if number % 10 == 0 {
                runtime.step();
            }
            if number % 100 == 0 {
                db.checkpoint().unwrap();
            }
        }
        drop(snapshot);
        db.verify().unwrap();
        db.close().unwrap();
    }
    watch.check();
    assert!(watch.roots_checked() > 2000, "{} pages", watch.roots_checked());
}

/// A checkpoint is cut at every step; before, within and after it everything is there.
#[test]
fn p14_publish_in_order() {
    tier::for_each_seed(tier::count(10, 40), |seed| {
        let disk = SimDisk::new(seed);
        let db = open(&disk);
        let main = main_of(&db);
        for version in 1..4 {
            for number in 0..150 {
                main.insert_with(key(number), value(number, version), Durability::Buffered)
                    .unwrap();
            }
            db.flush().unwrap();
            let mode =
                [CrashMode::LoseAll, CrashMode::Torn512][usize::try_from(version).unwrap() % 2];
            let steps = at_every_step(
                &disk,
                (mode, 1),
                || db.checkpoint().unwrap(),
                |db| check_versions(db, 0..150, &[version]),
            );
            assert!(steps > 5, "a checkpoint of {steps} steps");
        }
    });
}

/// Large values in batches and alone, over each other, with a log and without; the watch looks for
/// every page of them on the media when a record names it.
#[test]
fn p17_large_values_are_durable_before_they_are_named() {
    let disk = SimDisk::new(1);
    let runtime = Runtime::stepped(1);
    let watch = Arc::new(Watch::default());
    disk.observe(watch.clone());
    let db = Db::open(Path::new("/db"), options(&disk, &runtime, TornWrites::Assume4k)).unwrap();
    let main = main_of(&db);
    let other = db.keyspace("other", KeyspaceOptions::default().logged(false)).unwrap();
    let large = |number: u64| vec![7; 4_000 + usize::try_from(number * 977 % 30_000).unwrap()];
    for number in 0..200 {
        let mut batch = Batch::new();
        for one in 0..number % 4 {
            batch.insert(&main, key(number % 20 + one), large(number + one));
            batch.insert(&other, key(number % 20 + one), large(number));
        }
        db.write_with(batch, Durability::Buffered).unwrap();
        main.insert_with(key(number % 7), large(number), Durability::Buffered).unwrap();
        if number % 30 == 0 {
            db.checkpoint().unwrap();
        }
        runtime.step();
    }
    db.flush().unwrap();
    watch.check();
    assert!(watch.large_checked() > 400, "only {} records", watch.large_checked());
    db.verify().unwrap();
}

/// Pages split again and again, and what a split frees is used by later ones; at every step the
/// recovered structure owns every page once, and each still holds what it held when the structure
/// named it.
#[test]
fn p16_what_is_freed_is_reused_only_when_its_freeing_is_durable() {
    tier::for_each_seed(tier::count(2, 30), |seed| {
        let disk = SimDisk::new(seed);
        let runtime = Runtime::stepped(seed);
        let options = options(&disk, &runtime, TornWrites::DoubleWrite);
        let db = Db::open(Path::new("/db"), options).unwrap();
        let main = main_of(&db);
        let mut random = Random::new(seed, 22);
        let mut last = 0;
        // More than the cache holds, so that pages are written and split without any checkpoint.
        while last < 900 {
            main.insert_with(crowded(last), value(last, 1), Durability::Buffered).unwrap();
            last += 1;
        }
        db.flush().unwrap();
        for round in 0..8 {
            let from = last;
            last += 250;
            let images = at_every_step(
                &disk,
                (if round % 2 == 0 { CrashMode::LoseAll } else { CrashMode::Torn512 }, 7),
                || {
                    for number in from..last {
                        main.insert_with(crowded(number), value(number, 1), Durability::Buffered)
                            .unwrap();
                    }
                    db.flush().unwrap();
                    for _ in 0..random.within(1..60) {
                        runtime.sleep(std::time::Duration::from_millis(20));
                        runtime.step();
                    }
                    if random.one_in(6) {
                        db.checkpoint().unwrap();
                    }
                },
                |db| check_crowded(db, from),
            );
            assert!(images > 0);
        }
        let made = db.stats().keyspaces[0].numbers.reorganized_pages_out;
        assert!(made > 20, "only {made} pages made again");
        db.verify().unwrap();
    });
}

/// The same where no log record of a user forces the log to the media: structure records of a
/// keyspace without a log are not waited for, so a page that a split freed could be written again
/// while the record that frees it is only in memory.
#[test]
fn p16_nor_in_a_keyspace_without_a_log() {
    tier::for_each_seed(tier::count(6, 60), |seed| {
        let disk = SimDisk::new(seed);
        let runtime = Runtime::stepped(seed);
        let options = options(&disk, &runtime, TornWrites::DoubleWrite);
        let db = Db::open(Path::new("/db"), options).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().logged(false)).unwrap();
        for number in 0..900 {
            main.insert(crowded(number), value(number, 1)).unwrap();
        }
        db.checkpoint().unwrap();
        for round in 0..16 {
            // Until structure records are appended and not yet durable, and perhaps the pages that
            // they free are given back.
            for _ in 0..80 {
                runtime.sleep(std::time::Duration::from_millis(20));
                runtime.step();
                let log = db.stats().log;
                if log.last_lsn > log.durable_lsn {
                    runtime.step();
                    break;
                }
            }
            let from = 900 + round * 400;
            at_every_step(
                &disk,
                (if round % 4 == 0 { CrashMode::Torn512 } else { CrashMode::KeepAll }, 9),
                || {
                    for number in from..from + 400 {
                        main.insert(crowded(number), value(number, 1)).unwrap();
                    }
                },
                |db| {
                    let main = db.existing_keyspace("main").unwrap();
                    for number in 0..900 {
                        let found = main.get(crowded(number)).unwrap();
                        assert!(found.as_deref() == Some(&value(number, 1)[..]), "record {number}");
                    }
                },
            );
        }
        let stats = db.stats();
        assert!(stats.log.last_lsn > 40, "only {} structure records", stats.log.last_lsn);
    });
}

/// Records change in place, page by page, and the power goes at every step with sectors of 512
/// bytes torn.
#[test]
fn p18_torn_pages_are_restored() {
    let mut restored = 0;
    for seed in tier::seeds(tier::count(8, 60)) {
        let _announce = tier::Announce(seed);
        let disk = SimDisk::new(seed);
        let db = open(&disk);
        let main = main_of(&db);
        for number in 0..120 {
            main.insert_with(key(number), value(number, 1), Durability::Buffered).unwrap();
        }
        db.checkpoint().unwrap();
        for version in 2..4 {
            for number in 0..120 {
                main.insert_with(key(number), value(number, version), Durability::Buffered)
                    .unwrap();
            }
            db.flush().unwrap();
            disk.capture_when(Arc::new(|_, _| Some(CrashMode::Torn512)));
            db.checkpoint().unwrap();
            disk.capture_when(Arc::new(|_, _| None));
            for capture in disk.take_captures() {
                let db = open(&capture.image);
                check_versions(&db, 0..120, &[version]);
                db.verify().unwrap();
                restored += db.stats().keyspaces[0].numbers.pages_restored;
            }
        }
    }
    assert!(restored > 0, "no page was ever torn");
}

/// A keyspace was created at LSN 3, of which the crash kept 1; the next life's records 2 and 3 were
/// taken for older than the keyspace and never replayed.
#[test]
fn p20_a_keyspace_is_not_older_than_the_log() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let main = main_of(&db);
    main.insert(b"1", b"sync").unwrap();
    main.insert_with(b"2", b"buffered", Durability::Buffered).unwrap();
    main.insert_with(b"3", b"buffered", Durability::Buffered).unwrap();
    db.keyspace("late", KeyspaceOptions::default()).unwrap();
    let second = disk.crash(CrashMode::LoseAll);
    let db = open(&second);
    let late = db.existing_keyspace("late").unwrap();
    late.insert(b"a", b"sync").unwrap();
    let third = second.crash(CrashMode::LoseAll);
    let db = open(&third);
    let late = db.existing_keyspace("late").unwrap();
    assert_eq!(late.get(b"a").unwrap().as_deref(), Some(&b"sync"[..]));
}

/// A drop fails at any of its calls; what the keyspace then acknowledges is not lost with it.
#[test]
fn p20_a_failed_drop_takes_no_later_write_with_it() {
    let steps_of_a_drop = 12;
    for at in 0..3 * steps_of_a_drop {
        for survivors in [CrashMode::KeepAll, CrashMode::LoseAll] {
            let disk = SimDisk::new(1);
            let db = open(&disk);
            let main = main_of(&db);
            main.insert(b"before", b"1").unwrap();
            let nth = 1 + at / 3;
            disk.inject(match at % 3 {
                0 => Fault::WriteError { at: disk.writes() + nth },
                1 => Fault::NoSpace { at: disk.room_requests() + nth },
                _ => Fault::SyncError { at: disk.syncs() + nth },
            });
            if db.drop_keyspace("main").is_ok() || disk.faults_struck() == 0 {
                continue;
            }
            let later = main.insert(b"later", b"2");
            let image = disk.crash(survivors);
            let db = open(&image);
            if later.is_ok() {
                let main = db.existing_keyspace("main");
                let main = main.unwrap_or_else(|error| panic!("fault {at}: {error:?}"));
                assert_eq!(main.get(b"later").unwrap().as_deref(), Some(&b"2"[..]), "fault {at}");
                assert_eq!(main.get(b"before").unwrap().as_deref(), Some(&b"1"[..]), "fault {at}");
            }
        }
    }
}
