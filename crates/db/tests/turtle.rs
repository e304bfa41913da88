//! What only turtle keyspaces have: snapshots (P25), the checkpoint distance, and a pipeline whose
//! errors reach the writers while everybody can go on reading.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use spinney_base::{ErrorKind, Runtime, probe};
use spinney_db::{Batch, Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{Call, CrashMode, Fault, SimDisk};

const MEMORY: u64 = 2 << 20;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(MEMORY)
        .log_bytes_max(64 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

fn turtle() -> KeyspaceOptions {
    KeyspaceOptions::default().engine(EngineKind::Turtle)
}

fn open(disk: &SimDisk, runtime: &Runtime) -> (Db, Keyspace) {
    let db = Db::open(Path::new("/db"), options(disk, runtime)).unwrap();
    let keyspace = db.keyspace("main", turtle()).unwrap();
    (db, keyspace)
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn put(keyspace: &Keyspace, number: u64, value: u64) -> spinney_base::Result<()> {
    let value = value.to_le_bytes().repeat(25);
    keyspace.insert_with(key(number), &value, Durability::Buffered)
}

fn fill(keyspace: &Keyspace, numbers: std::ops::Range<u64>, value: u64) {
    numbers.for_each(|number| put(keyspace, number, value).unwrap());
}

fn steps(runtime: &Runtime, count: usize) {
    (0..count).for_each(|_| _ = runtime.step());
}

#[test]
fn p25_a_snapshot_is_of_one_moment() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    assert!(main.capabilities().snapshots);
    fill(&main, 0..1000, 1);
    let picture = |value: u8| vec![value; 300_000];
    main.insert(b"picture", picture(1)).unwrap();
    let then: BTreeMap<Vec<u8>, Vec<u8>> =
        main.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec())).collect();
    let snapshot = main.snapshot().unwrap();
    // Everything is put again and removed, written and published, several times over.
    for round in 2..5 {
        fill(&main, 0..1000, round);
        main.insert(b"picture", picture(2)).unwrap();
        (0..500).for_each(|number| main.remove(key(number)).unwrap());
        db.checkpoint().unwrap();
        main.remove(b"picture").unwrap();
        steps(&runtime, 50);
    }
    db.checkpoint().unwrap();
    assert_eq!(main.iter().count(), 500);
    let found = snapshot.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec()));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), then);
    let mut back: Vec<_> = snapshot.keys(..).rev().map(Result::unwrap).collect();
    back.reverse();
    assert!(back.iter().eq(then.keys()));
    assert_eq!(snapshot.prefix(b"pict").readers().count(), 1);
    let keys: Vec<&[u8]> = then.keys().map(Vec::as_slice).chain([&b"absent"[..]]).collect();
    let values = snapshot.multi_get(&keys).unwrap();
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(value.as_deref(), then.get(*key).map(Vec::as_slice));
        assert_eq!(snapshot.contains_key(key).unwrap(), then.contains_key(*key));
    }
    let mut reader = snapshot.get_reader(b"picture").unwrap().unwrap();
    let kept = snapshot.clone();
    drop(snapshot);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(read, picture(1));
    assert_eq!(kept.first_key_value().unwrap().unwrap().0, *then.keys().next().unwrap());
    assert_eq!(kept.last_key_value().unwrap().unwrap().0, *then.keys().last().unwrap());
    let turtle = main.stats().turtle.unwrap();
    assert_eq!((turtle.snapshots, turtle.snapshots_ended), (1, 0));
    db.verify().unwrap();
    // What only they kept is given back.
    drop((kept, reader));
    db.checkpoint().unwrap();
    steps(&runtime, 10);
    assert_eq!(main.stats().large_freed_bytes, 0);
    assert_eq!(main.stats().turtle.unwrap().snapshots, 0);
    db.verify().unwrap();
    let last = main.snapshot().unwrap();
    db.drop_keyspace("main").unwrap();
    assert_eq!(last.get(b"a").unwrap_err().kind(), ErrorKind::Closed);
    drop(last);
    db.close().unwrap();
}

/// P25: batches are in a snapshot whole, beside threads and a pipeline that runs.
#[test]
fn p25_batches_are_whole_beside_threads() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    let own = turtle().set("leaf", "16KiB").unwrap().set("chi", "2").unwrap();
    let main = db.keyspace("main", own).unwrap();
    let write = |number: u64| {
        let mut batch = Batch::new();
        (0..4).for_each(|place| {
            batch.insert(&main, key(place), number.to_le_bytes());
        });
        db.write(batch).unwrap();
    };
    write(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (write, stop) = (&write, &stop);
            scope.spawn(move || {
                let mut number = thread;
                while !stop.load(SeqCst) {
                    number += 3;
                    write(number);
                }
            });
        }
        let mut kept = Vec::new();
        for round in 0..300 {
            let snapshot = main.snapshot().unwrap();
            let first = snapshot.get(key(0)).unwrap().unwrap();
            for place in 1..4 {
                assert_eq!(snapshot.get(key(place)).unwrap(), Some(first.clone()), "half a batch");
            }
            kept.push((snapshot, first));
            if round % 10 == 9 {
                for (snapshot, first) in kept.drain(..) {
                    let all: Vec<_> = snapshot.iter().map(Result::unwrap).collect();
                    assert!(all.len() == 4 && all.iter().all(|(_, value)| *value == first));
                }
            }
        }
        stop.store(true, SeqCst);
    });
    db.verify().unwrap();
    db.close().unwrap();
}

/// P25: where memory is short a snapshot is written out, and where the disk is full as well it
/// ends.
#[test]
fn p25_snapshots_give_memory_back() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    fill(&main, 0..1000, 1);
    let written = main.snapshot().unwrap();
    fill(&main, 0..20_000, 2);
    let stats = main.stats().turtle.unwrap();
    assert!(stats.snapshots_ended == 0 && stats.snapshot_bytes < MEMORY / 2, "{stats:?}");
    assert!(!written.stats().ended);
    assert_eq!(written.iter().count(), 1000);
    assert_eq!(written.get(key(1)).unwrap().as_deref(), Some(&1u64.to_le_bytes().repeat(25)[..]));
    drop(written);
    db.checkpoint().unwrap();
    // Where a batch finds leaves that have to be flushed the write gets the error of the full disk.
    let ended: Vec<bool> = (2..9).map(|half| snapshots_end_on_a_full_disk(half * 500)).collect();
    assert!(ended.contains(&true), "{ended:?}");
}

/// What a snapshot shares with the keyspace counts once, so writers do not wait for it.
#[test]
fn what_a_snapshot_shares_counts_once() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    let held = || db.stats().memory_used;
    for round in 0..25 {
        let number = round * 100;
        fill(&main, number..number + 100, round);
        steps(&runtime, 20);
        // The record between them moves the tree on beside the first one.
        let first = main.snapshot().unwrap();
        put(&main, number, round).unwrap();
        let second = main.snapshot().unwrap();
        steps(&runtime, 20);
        let with_both = held();
        drop((first, second));
        steps(&runtime, 20);
        let kept = with_both.saturating_sub(held());
        assert!(kept < 64 << 10, "round {round}: {kept} of {with_both} bytes");
    }
    db.close().unwrap();
}

/// Snapshots of memory alone, on a disk without room, over this many records; says whether any
/// ended.
fn snapshots_end_on_a_full_disk(records: u64) -> bool {
    // Without a log nothing else needs any.
    let (disk, runtime) = (SimDisk::new(2), Runtime::stepped(2));
    let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
    let main = db.keyspace("main", turtle().logged(false)).unwrap();
    // So many that a batch is applied in memory: it brings little to each leaf.
    fill(&main, 0..records, 2);
    db.checkpoint().unwrap();
    let used: u64 = disk.files().iter().map(|path| disk.contents(path).unwrap().len() as u64).sum();
    disk.set_capacity(Some(used));
    // What is free within the file is taken as well.
    for length in [200_000, 20_000, 4_000] {
        for number in 0.. {
            let key = format!("filler-{length}-{number}");
            if main.insert(key.as_bytes(), vec![1; length]).is_err() {
                break;
            }
        }
    }
    let mut kept = Vec::new();
    for number in 0..40_000 {
        if number % 500 == 0 {
            kept.push(main.snapshot().unwrap());
        }
        match put(&main, number % records, number) {
            Ok(()) => {}
            Err(error) => {
                assert!(error.is_full(), "{error:?}");
                break;
            }
        }
        if kept.iter().any(|one| one.stats().ended) {
            break;
        }
    }
    let ended = kept.iter().filter(|one| one.stats().ended).count();
    let Some(old) = kept.iter().find(|one| one.stats().ended) else { return false };
    let error = old.get(key(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.to_string().ends_with(&cause) && cause.contains("No space"), "{error}");
    assert_eq!(old.iter().next().unwrap().unwrap_err().kind(), ErrorKind::SnapshotTooOld);
    assert_eq!(main.stats().turtle.unwrap().snapshots_ended, ended as u64);
    disk.set_capacity(None);
    assert!(main.snapshot().unwrap().get(key(1)).unwrap().is_some());
    fill(&main, 0..100, 3);
    db.verify().unwrap();
    true
}

#[test]
fn the_checkpoint_distance_is_clamped_and_followed() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    db.keyspace("main", turtle().set("leaf", "16KiB").unwrap()).unwrap();
    let stats = || main.stats().turtle.unwrap();
    let most = main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
    assert!((8..200).contains(&most), "{most}");
    assert_eq!(stats().checkpoint_distance, most);
    assert!(!stats().is_distance_automatic);
    // It begins with as much as memory allows.
    assert_eq!(main.turtle().unwrap().set_automatic_checkpoint_distance().unwrap(), most);
    assert!(stats().is_distance_automatic);
    assert_eq!(
        main.turtle().unwrap().set_checkpoint_distance(0).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    assert_eq!(other.turtle().unwrap_err().kind(), ErrorKind::Unsupported);
    let most = main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
    let mut number = 0;
    while stats().pending_batches < 2 {
        put(&main, number, 1).unwrap();
        steps(&runtime, 2);
        number += 1;
        assert!(number < 100_000, "{:?}", stats());
    }
    let (checkpoints, before) = (main.stats().checkpoints, main.stats().pages);
    // Nobody writes any more, and what is pending goes to the disk.
    assert_eq!(main.turtle().unwrap().set_checkpoint_distance(1).unwrap(), 1);
    steps(&runtime, 20);
    assert_eq!((stats().pending_batches, stats().pending_bytes), (0, 0));
    assert!(main.stats().checkpoints > checkpoints && main.stats().pages > before);
    // With less memory fewer fit, whatever was asked for.
    main.turtle().unwrap().set_checkpoint_distance(most).unwrap();
    db.set_memory(MEMORY / 2).unwrap();
    assert!(stats().checkpoint_distance < most);
    db.verify().unwrap();
    db.close().unwrap();
}

/// As many batches gather as it was said, whether memory or the log allows no more.
#[test]
fn the_checkpoint_distance_that_is_answered_is_reached() {
    let mut answers = Vec::new();
    for log in [2 << 20, 64 << 20] {
        let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
        let options = options(&disk, &runtime).log_bytes_max(log);
        let db = Db::open(Path::new("/db"), options).unwrap();
        let main = db.keyspace("main", turtle().set("leaf", "16KiB").unwrap()).unwrap();
        let most = main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
        let (mut gathered, mut before, mut checkpoints) = (Vec::new(), 0, 0);
        for number in 0.. {
            put(&main, number, number).unwrap();
            // Each step may be one that syncs the log, and what comes then begins a new block.
            if number % 40 == 0 {
                steps(&runtime, 4);
            }
            let pending = main.stats().turtle.unwrap().pending_batches;
            if pending < before {
                gathered.push(before);
                checkpoints += 1;
            }
            before = pending;
            if checkpoints == 8 {
                break;
            }
        }
        println!("a log of {log} bytes, a distance of {most}: {gathered:?}");
        // Some come by time.
        let reached = gathered.iter().filter(|gathered| **gathered >= most * 3 / 4).count();
        let most_gathered = gathered.iter().max().copied();
        assert!(reached > 4 && most_gathered <= Some(most + 1), "{most}: {gathered:?}");
        db.verify().unwrap();
        answers.push(most);
    }
    assert!(answers[0] * 2 < answers[1], "{answers:?}");
}

/// What leaves and batches are cut to where memory is short, so that a distance can be stated in
/// bytes.
#[test]
fn sizes_in_force_are_told() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    let account = || db.stats().accounts.into_iter().find(|one| one.name == "turtle/main").unwrap();
    let sizes = || {
        let turtle = main.stats().turtle.unwrap();
        (turtle.leaf_bytes, turtle.batch_bytes)
    };
    let sixteenth = account().target / 64 * 4;
    assert_eq!(sizes(), (sixteenth, sixteenth), "of 2 MiB");
    db.keyspace("main", turtle().set("leaf", "16KiB").unwrap()).unwrap();
    assert_eq!(sizes(), (16 << 10, 16 << 10));
    db.keyspace("main", turtle().set("leaf", "16MiB").unwrap()).unwrap();
    assert_eq!(sizes(), (sixteenth, sixteenth));
    // About this many bytes are sealed.
    let mut number = 0;
    while main.stats().turtle.unwrap().memtables_sealed == 0 {
        put(&main, number, 1).unwrap();
        number += 1;
    }
    let bytes = number * 208;
    assert!((sixteenth / 2..=sixteenth).contains(&bytes), "{bytes} of {sixteenth}");
    db.close().unwrap();
}

/// What is written is counted by why it was.
#[test]
fn writes_are_counted_by_purpose() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    db.keyspace("main", turtle().set("leaf", "16KiB").unwrap()).unwrap();
    main.turtle().unwrap().set_checkpoint_distance(64).unwrap();
    fill(&main, 0..30_000, 1);
    db.checkpoint().unwrap();
    let counts = db.stats().io.by_purpose;
    let written = |name: &str| {
        let purpose = spinney_db::purposes().find(|purpose| purpose.name() == name).unwrap();
        counts[purpose.index()].write_bytes / 4096
    };
    let own = ["flush", "early", "merge", "tidy", "leaf"];
    let sum: u64 = own.map(written).iter().sum();
    let turtle = main.stats().turtle.unwrap();
    assert_eq!(sum + written("node"), turtle.tree_pages_written);
    assert_eq!(written("node"), turtle.node_pages_written);
    assert_eq!(written("reorganize") + written("tidy"), 0);
    for purpose in ["flush", "early", "leaf", "node"] {
        assert!(written(purpose) > 0, "{purpose}");
    }
    db.close().unwrap();
}

/// Options are the engine's that is chosen last, or nothing is made.
#[test]
fn options_of_another_engine_are_refused_before_anything_is_made() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, _main) = open(&disk, &runtime);
    let files = disk.files();
    for options in [
        turtle().set("chi", "8").unwrap().engine(EngineKind::TreeLine),
        KeyspaceOptions::default().set("staging", "on").unwrap().engine(EngineKind::Turtle),
    ] {
        let error = db.keyspace("other", options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!((db.keyspaces().len(), disk.files().len()), (1, files.len()));
    }
    db.close().unwrap();
}

/// A disk without room stops writers, not readers, and room that returns is all they need.
#[test]
fn a_full_disk_is_an_error_that_goes_away() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    fill(&main, 0..2000, 1);
    db.checkpoint().unwrap();
    let used: u64 = disk.files().iter().map(|path| disk.contents(path).unwrap().len() as u64).sum();
    disk.set_capacity(Some(used));
    let mut model: BTreeMap<u64, u64> = (0..2000).map(|number| (number, 1)).collect();
    let mut fulls = 0;
    for number in 0..100_000 {
        match put(&main, number, 2) {
            Ok(()) => _ = model.insert(number, 2),
            Err(error) => {
                assert!(error.is_full(), "{error:?}");
                fulls += 1;
                if fulls == 3 {
                    break;
                }
            }
        }
        steps(&runtime, 1);
    }
    assert_eq!(fulls, 3);
    let agree = |main: &Keyspace, model: &BTreeMap<u64, u64>| {
        for (number, value) in model {
            let found = main.get(key(*number)).unwrap().expect("it was put");
            assert_eq!(found[..8], value.to_le_bytes(), "{number}");
        }
    };
    agree(&main, &model);
    disk.set_capacity(None);
    for number in 0..500 {
        put(&main, number, 3).unwrap();
        model.insert(number, 3);
    }
    db.checkpoint().unwrap();
    agree(&main, &model);
    db.verify().unwrap();
    db.close().unwrap();
}

/// One call of the system after another fails while a pipeline works beside threads: puts end, with
/// an error that says what happened or without, reads go on, and what was acknowledged is there
/// when it is opened again.
#[test]
fn no_put_hangs_whatever_fails() {
    let kinds: [fn(u64) -> Fault; 4] = [
        |at| Fault::WriteError { at },
        |at| Fault::NoSpaceInPlace { at },
        |at| Fault::NoSpace { at },
        |at| Fault::SyncError { at },
    ];
    let mut struck = 0;
    for (kind, make) in kinds.into_iter().enumerate() {
        for at in [1, 2, 3, 5, 8, 13, 30, 60] {
            let (disk, runtime) = (SimDisk::new(at), Runtime::threads());
            let (db, main) = open(&disk, &runtime);
            main.turtle().unwrap().set_checkpoint_distance(2).unwrap();
            let past = [disk.writes(), disk.writes(), disk.room_requests(), disk.syncs()][kind];
            disk.inject(make(past + at));
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for number in 0..4000_u64 {
                let value = number.to_le_bytes().repeat(25);
                match main.insert_with(key(number % 1500), &value, Durability::Sync) {
                    Ok(()) => _ = model.insert(number % 1500, number),
                    Err(error) => {
                        let kind = error.kind();
                        let known = [ErrorKind::Full, ErrorKind::Io, ErrorKind::Poisoned];
                        assert!(known.contains(&kind), "{error:?}");
                        // Its outcome is unknown.
                        model.remove(&(number % 1500));
                        if kind == ErrorKind::Poisoned {
                            break;
                        }
                    }
                }
            }
            struck += disk.faults_struck();
            for (number, value) in &model {
                let found = main.get(key(*number)).unwrap().expect("it was put");
                assert_eq!(found[..8], value.to_le_bytes(), "{number}");
            }
            _ = db.close();
            drop(main);
            let again = disk.kill();
            let (db, main) = open(&again, &Runtime::threads());
            for (number, value) in &model {
                let found = main.get(key(*number)).unwrap().expect("it was put");
                assert_eq!(found[..8], value.to_le_bytes(), "{number}");
            }
            db.verify().unwrap();
        }
    }
    assert!(struck >= 16, "only {struck} faults struck");
}

/// P17: a checkpoint does not list the large values that it lets go. After a crash their pages may
/// be those of a value that only the log names.
#[test]
fn p17_a_checkpoint_lists_no_value_that_it_lets_go() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    let picture = |value: u8| vec![value; 300_000];
    for value in 1..3 {
        main.insert(b"picture", picture(value)).unwrap();
        db.checkpoint().unwrap();
    }
    main.insert(b"another", picture(3)).unwrap();
    let image = disk.kill();
    let (db, main) = open(&image, &Runtime::stepped(2));
    assert_eq!(main.get(b"picture").unwrap().as_deref(), Some(&picture(2)[..]));
    assert_eq!(main.get(b"another").unwrap().as_deref(), Some(&picture(3)[..]));
    db.verify().unwrap();
    db.checkpoint().unwrap();
    assert_eq!(main.stats().large_values, 2);
    db.close().unwrap();
}

/// P19: what a replay has applied so far is published only when it is known how far that is. A
/// crash at any step after it finds everything.
#[test]
fn p19_a_replay_is_published_when_it_is_over() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    let value = |number: u64| number.to_le_bytes().repeat(if number % 40 == 7 { 600 } else { 25 });
    for number in 0..6000 {
        main.insert_with(key(number % 1700), value(number), Durability::Buffered).unwrap();
        if number == 300 {
            db.checkpoint().unwrap();
        }
    }
    let newest = |place: u64| (0..6000).rev().find(|number| number % 1700 == place).unwrap();
    let check = |image: &SimDisk| {
        let (db, main) = open(image, &Runtime::stepped(2));
        for place in 0..1700 {
            let found = main.get(key(place)).unwrap();
            assert!(found.as_deref() == Some(&value(newest(place))[..]), "record {place}");
        }
        db.verify().unwrap();
    };
    let again = disk.kill();
    let runtime = Runtime::stepped(3);
    let (db, main) = open(&again, &runtime);
    // Each batch is worth a checkpoint, if it can have one.
    main.turtle().unwrap().set_checkpoint_distance(1).unwrap();
    let sealed = main.stats().turtle.unwrap().memtables_sealed;
    assert!(sealed > 2, "the replay sealed {sealed} memtables");
    let redo = |main: &Keyspace| main.stats().checkpoints;
    let mut published = 0;
    for _ in 0..60 {
        steps(&runtime, 1);
        if redo(&main) > published {
            published = redo(&main);
            check(&again.crash(CrashMode::LoseAll));
        }
    }
    db.checkpoint().unwrap();
    check(&again.crash(CrashMode::LoseAll));
    // Memory was kept to while it was replayed.
    let account = db.stats().accounts.into_iter().find(|one| one.name == "turtle/main").unwrap();
    assert!(account.used <= account.target, "{account:?}");
}

/// Back-pressure delays each put a little while the background is behind, and says so.
#[test]
fn delays_are_counted_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(4 << 20).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    let main = db.keyspace("main", turtle().set("leaf", "16KiB").unwrap()).unwrap();
    fill(&main, 0..60_000, 1);
    let (stats, turtle) = (main.stats(), main.stats().turtle.unwrap());
    assert!(turtle.memtables_sealed > 10 && turtle.batches_applied > 5, "{turtle:?}");
    assert!(stats.checkpoints > 0);
    // Each was slept or worked for; how long the system lets a thread sleep is not for a test to
    // say.
    assert_eq!(stats.stall_ns > 0, turtle.writes_delayed + stats.foreground_write_backs > 0);
    assert!(stats.stall_ns >= 500_000 * turtle.writes_delayed, "{turtle:?} {}", stats.stall_ns);
    assert!(stats.longest_stall_ns <= stats.stall_ns);
    let account = db.stats().accounts.into_iter().find(|one| one.name == "turtle/main").unwrap();
    assert!(account.used <= account.target, "{account:?}");
    Runtime::threads().sleep(Duration::from_millis(1));
    assert_eq!(main.iter().count(), 60_000);
    db.verify().unwrap();
    db.close().unwrap();
}

/// P3: records that lookups read are kept by themselves, within the keyspace's memory, and follow
/// whatever is written; scans get the memory back.
#[test]
fn favourites_are_kept_and_stay_new() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    fill(&main, 0..20_000, 1);
    db.checkpoint().unwrap();
    let mut favourites: BTreeMap<u64, Option<Vec<u8>>> =
        (0..200).map(|number| (number * 91, Some(1u64.to_le_bytes().repeat(25)))).collect();
    let look = |favourites: &BTreeMap<u64, Option<Vec<u8>>>| {
        for (number, value) in favourites {
            assert_eq!(main.get(key(*number)).unwrap().map(|value| value.to_vec()), *value);
        }
        let keys: Vec<_> = favourites.keys().map(|number| key(*number)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let found = main.multi_get(&keys).unwrap();
        let found = found.iter().map(|value| value.as_ref().map(|value| value.to_vec()));
        assert!(found.eq(favourites.values().cloned()));
        // Lookups without favourites come between, so pages leave.
        (0..400).for_each(|number| _ = main.get(key(number * 37 % 20_000)).unwrap());
        steps(&runtime, 20);
    };
    (0..60).for_each(|_| look(&favourites));
    let stats = || main.stats();
    let kept = stats();
    assert!(kept.records_cached >= 200, "{kept:?}");
    assert!(kept.cache_bytes + kept.page_cache_bytes <= MEMORY, "{kept:?}");
    let pages = kept.pages_read;
    favourites.keys().for_each(|number| _ = main.get(key(*number)).unwrap());
    assert_eq!(stats().pages_read, pages, "favourites are read again and again");

    // As long as before, longer, out of line, gone, and there again.
    for round in 0..6usize {
        for (number, value) in &mut favourites {
            let kind = (*number as usize / 91 + round) % 5;
            let new = match kind {
                0 => Some(vec![round as u8; 200]),
                1 => Some(vec![round as u8; 300 + round]),
                2 if number % 10 == 0 => Some(vec![round as u8; 20_000]),
                3 => None,
                _ => continue,
            };
            match &new {
                Some(new) => main.insert(key(*number), new).unwrap(),
                None => main.remove(key(*number)).unwrap(),
            }
            *value = new;
        }
        look(&favourites);
        db.checkpoint().unwrap();
        look(&favourites);
    }
    // Short ranges without favourites miss pages that left for records.
    let before = stats().cache_bytes;
    for round in 0..40 {
        for start in 0..100 {
            let start = key(start * 199 + round);
            assert!(main.range(&start[..]..).limit(20).count() <= 20);
        }
        steps(&runtime, 50);
    }
    assert!(stats().cache_bytes < before, "{before}");
    db.verify().unwrap();
}

/// What threads that flush would have under way is kept free only while some are needed.
#[test]
fn reads_have_what_nobody_writes_with() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    fill(&main, 0..20_000, 1);
    db.checkpoint().unwrap();
    let cached = || main.stats().cache_bytes + main.stats().page_cache_bytes;
    let account = || db.stats().accounts.into_iter().find(|one| one.name == "turtle/main").unwrap();
    let memory = account().target;
    let read = || {
        for second in 0..80 {
            (0..300).for_each(|number| _ = main.get(key(number * 61 + second)).unwrap());
            runtime.sleep(Duration::from_secs(1));
            steps(&runtime, 5);
        }
        cached()
    };
    let most = read();
    assert!(memory / 16 * 15 < most && most <= memory, "{most} of {memory}");
    // Some memtables, while lookups fill what there is.
    for number in 0..2_000 {
        put(&main, number, 2).unwrap();
        _ = main.get(key(number * 7)).unwrap();
    }
    assert!(account().used <= memory, "{:?}", account());
    db.checkpoint().unwrap();
    let most = read();
    assert!(memory / 16 * 15 < most && most <= memory, "{most} of {memory}");
}

/// Lookups of many keys at once have records kept as well.
#[test]
fn favourites_of_many_lookups_at_once_are_kept() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    fill(&main, 0..5_000, 1);
    db.checkpoint().unwrap();
    let keys: Vec<_> = (0..100).map(|number| key(number * 41)).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let before = main.stats();
    for _ in 0..20 {
        assert!(main.multi_get(&keys).unwrap().iter().all(Option::is_some));
        // What writes had is given to reads in time.
        runtime.sleep(Duration::from_secs(1));
        steps(&runtime, 20);
    }
    let after = main.stats();
    assert_eq!(after.records_cached, 100);
    assert_eq!(
        after.cache_hits + after.cache_misses - before.cache_hits - before.cache_misses,
        2000
    );
}

#[test]
fn ranges_that_paid_for_it_find_little_beside_leaves() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    // A batch is 128 KiB, so some gather for the distance, which nobody writes enough to end.
    assert_eq!(main.turtle().unwrap().set_checkpoint_distance(8).unwrap(), 8);
    let mut number = 0;
    while number < 40_000 || main.stats().turtle.unwrap().pending_batches < 2 {
        put(&main, number, 1).unwrap();
        runtime.step();
        number += 1;
        assert!(number < 100_000, "{:?}", main.stats());
    }
    let range = || {
        let before = main.stats().turtle.unwrap().pages_read;
        (0..64).for_each(|number| assert_eq!(main.range(&key(number)[..]..).take(50).count(), 50));
        let pages = main.stats().turtle.unwrap().pages_read;
        pages.keys + pages.values - before.keys - before.values
    };
    let before = range();
    let flushes = main.stats().turtle.unwrap().flushes;
    (0..60).for_each(|_| _ = range());
    // At once, not with the next checkpoint that the time asks for.
    steps(&runtime, 20);
    let turtle = main.stats().turtle.unwrap();
    assert!(turtle.flushes > flushes && turtle.pending_bytes == 0, "{turtle:?}");
    for _ in 0..100 {
        range();
        steps(&runtime, 20);
    }
    let after = range();
    assert!(after * 10 < before * 9, "{before} pages before, {after} after");
    // And then there is peace.
    steps(&runtime, 1000);
    let flushes = main.stats().turtle.unwrap().flushes;
    range();
    steps(&runtime, 1000);
    assert_eq!(main.stats().turtle.unwrap().flushes, flushes);
    db.verify().unwrap();
    db.close().unwrap();
}

/// What leaves that were written early took the place of is kept for the last checkpoint; much of
/// it makes the next one due.
#[test]
fn a_large_distance_does_not_keep_the_file_growing() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    db.keyspace("main", turtle().set("leaf", "16KiB").unwrap()).unwrap();
    let distance = main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
    fill(&main, 0..4_000, 1);
    db.checkpoint().unwrap();
    let before = main.stats().pages;
    let mut most = before;
    for round in 2..16 {
        for number in 0..4_000 {
            put(&main, number, round).unwrap();
            runtime.step();
            most = most.max(main.stats().pages);
        }
    }
    let batches = main.stats().turtle.unwrap().batches_applied;
    assert!(batches > 5 * distance, "{batches} batches at a distance of {distance}");
    assert!(most < before * 5 / 2, "{most} pages where {before} were enough");
    db.verify().unwrap();
    db.close().unwrap();
}

/// Of which the state is known that a sync ahead of a checkpoint is in.
const AHEAD: &str = "sync ahead";

/// A sync that goes ahead of a checkpoint has no thread that waits for it. One that fails reaches
/// writers all the same, reads go on, and what was durable is there afterwards.
#[test]
fn a_sync_ahead_that_fails_stops_writers_alone() {
    let mut struck = 0;
    for at in 1..100 {
        let (disk, runtime) = (SimDisk::new(at), Runtime::threads());
        let (db, main) = open(&disk, &runtime);
        main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
        disk.inject(Fault::SyncError { at: disk.syncs() + at });
        let (mut newest, mut poisoned) = (BTreeMap::new(), false);
        for number in 0..20_000 {
            match put(&main, number % 3000, number) {
                Ok(()) => _ = newest.insert(number % 3000, number),
                Err(error) => {
                    assert!(error.is_poisoned(), "{error:?}");
                    poisoned = true;
                    // Its outcome is unknown.
                    newest.remove(&(number % 3000));
                    break;
                }
            }
        }
        if !disk.states_at_fault().contains(&AHEAD) {
            continue;
        }
        struck += 1;
        assert!(poisoned, "sync {at} failed, and no writer got the error");
        assert!(put(&main, 1, 1).unwrap_err().is_poisoned());
        assert!(db.checkpoint().unwrap_err().is_poisoned());
        for (number, value) in &newest {
            let found = main.get(key(*number)).unwrap().expect("it was put");
            assert_eq!(found[..8], value.to_le_bytes(), "{number}");
        }
        assert!(main.iter().all(|record| record.is_ok()));
        assert!(db.close().is_err());
        drop(main);
        // No slot names what the failed sync has lost.
        for image in [disk.kill(), disk.crash(CrashMode::LoseAll)] {
            let (db, _main) = open(&image, &Runtime::stepped(1));
            db.verify().unwrap();
        }
        if struck == 3 {
            return;
        }
    }
    panic!("only {struck} syncs ahead of a checkpoint failed");
}

/// The thread of a sync ahead of a checkpoint is gone once its database is.
#[test]
fn no_sync_ahead_outlives_its_database() {
    fn catch(disk: &SimDisk, began: Arc<AtomicBool>, ended: Arc<AtomicBool>) {
        let again = disk.clone();
        disk.act_inside(Call::Sync, move || {
            if !probe::current().contains(&AHEAD) {
                return catch(&again, began, ended);
            }
            began.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(200));
            ended.store(true, SeqCst);
        });
    }
    let (disk, runtime) = (SimDisk::new(1), Runtime::threads());
    let (db, main) = open(&disk, &runtime);
    main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
    let (began, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    catch(&disk, began.clone(), ended.clone());
    for number in 0.. {
        put(&main, number % 3000, number).unwrap();
        if began.load(SeqCst) {
            break;
        }
        assert!(number < 200_000, "nothing was synced ahead");
    }
    drop((db, main));
    assert!(ended.load(SeqCst), "a thread is left behind");
    let (db, _main) = open(&disk.kill(), &Runtime::stepped(1));
    db.verify().unwrap();
}

/// A keyspace of 8 MiB with small batches, and as many records as take three times that.
fn large(disk: &SimDisk, runtime: &Runtime) -> (Db, Keyspace, u64) {
    let db = Db::open(Path::new("/db"), options(disk, runtime).memory(8 << 20)).unwrap();
    let main = db.keyspace("main", turtle().set("leaf", "64KiB").unwrap()).unwrap();
    let records = 120_000;
    for number in 0..records {
        put(&main, number, 1).unwrap();
        if number % 50 == 0 {
            runtime.step();
        }
    }
    db.checkpoint().unwrap();
    (db, main, records)
}

/// Looks up so many keys, any of them.
fn look_up(main: &Keyspace, random: &mut u64, count: u64, records: u64) {
    for _ in 0..count {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        assert!(main.get(key((*random >> 33) % records)).unwrap().is_some());
    }
}

/// What gathers is written at once when the distance is lowered, and its memory is for reads: bit
/// by bit as long as batches come.
#[test]
fn a_lower_distance_gives_memory_to_reads() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main, records) = large(&disk, &runtime);
    let pending = || main.stats().turtle.unwrap().pending_bytes;
    let cached = || main.stats().cache_bytes + main.stats().page_cache_bytes;
    main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
    let mut number = 0;
    while pending() < 2 << 20 {
        number += 1;
        put(&main, number, 2).unwrap();
        runtime.step();
        assert!(number < 100_000, "{:?}", main.stats());
    }
    let mut random = 1;
    look_up(&main, &mut random, records / 2, records);
    let (gathered, before) = (pending(), cached());
    // Though it is less than the new distance, too.
    let lower = main.stats().turtle.unwrap().pending_batches + 1;
    assert_eq!(main.turtle().unwrap().set_checkpoint_distance(lower).unwrap(), lower);
    steps(&runtime, 20);
    assert_eq!(pending(), 0);
    assert_eq!(main.turtle().unwrap().set_checkpoint_distance(1).unwrap(), 1);
    // So that it is not idle.
    let mut trickle = |seconds: u64, puts: u64| {
        for _ in 0..10 * seconds {
            for _ in 0..puts {
                number += 1;
                put(&main, number, 3).unwrap();
            }
            look_up(&main, &mut random, 500, records);
            runtime.sleep(Duration::from_millis(100));
            steps(&runtime, 4);
        }
        cached().saturating_sub(before)
    };
    let (early, late) = (trickle(1, 60), trickle(24, 60));
    let idle = trickle(6, 0);
    println!(
        "of {gathered} bytes reads had {early} after a second, {late} in time, {idle} when none came"
    );
    assert!(early < gathered / 2, "{early} of {gathered} at once");
    // Not all: a checkpoint is built by two threads where a batch was applied by one, and they have
    // some memory each.
    assert!(late > gathered / 2, "{late} of {gathered}");
    assert!(idle > gathered / 20 * 19, "{idle} of {gathered}");
    let account = db.stats().accounts.into_iter().find(|one| one.name == "turtle/main").unwrap();
    assert!(account.used <= account.target, "{account:?}");
    db.verify().unwrap();
}

/// The distance that sets itself: all that memory allows while nobody reads, little when reads need
/// the memory, and all again.
#[test]
fn auto_follows_what_is_done() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main, records) = large(&disk, &runtime);
    let most = main.turtle().unwrap().set_checkpoint_distance(1_000_000).unwrap();
    let auto = || db.keyspace("main", turtle().set("chi", "auto").unwrap()).unwrap();
    auto();
    let distance = || main.stats().turtle.unwrap().checkpoint_distance;
    let (mut number, mut random) = (0, 1);
    // What the distance was in each second.
    let mut pass = |seconds: u64, puts: u64, gets: u64| -> Vec<u64> {
        let mut seen = Vec::new();
        for tenth in 0..10 * seconds {
            for _ in 0..puts {
                number += 1;
                put(&main, number * 31 % records, number).unwrap();
            }
            look_up(&main, &mut random, gets, records);
            runtime.sleep(Duration::from_millis(100));
            steps(&runtime, 8);
            assert!((1..=most).contains(&distance()), "{} of {most}", distance());
            if tenth % 10 == 9 {
                seen.push(distance());
            }
        }
        seen
    };
    let loaded = pass(3, 300, 0);
    let mixed = pass(15, 60, 1000);
    let read = pass(15, 0, 1000);
    let again = pass(15, 300, 0);
    println!(
        "of {most}: {loaded:?} loaded, {mixed:?} mixed, {read:?} read, {again:?} loaded again"
    );
    assert_eq!(loaded.last(), Some(&most));
    assert!(*mixed.last().unwrap() <= most / 4, "{mixed:?} of {most}");
    assert_eq!(read.last(), Some(&1));
    assert_eq!(again.last(), Some(&most), "{again:?}");
    // With less memory fewer fit.
    db.set_memory(2 << 20).unwrap();
    steps(&runtime, 20);
    assert!((1..=most / 2).contains(&distance()), "{} of {most}", distance());
    db.verify().unwrap();
}
