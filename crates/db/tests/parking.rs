//! Idle costs nothing (D4): keyspaces that nobody uses are parked, and opened by the next use.

#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spinney_base::Runtime;
use spinney_db::{
    BackupOptions, Batch, Db, Durability, EngineKind, ErrorKind, Isolation, Keyspace,
    KeyspaceOptions, Options, Transaction, TransactionOptions,
};
use spinney_io::Disk;
use spinney_io::sim::{CrashMode, SimDisk};

const ENGINES: [EngineKind; EngineKind::ALL.len()] = EngineKind::ALL;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    let options = Options::default().memory(8 << 20).log_bytes_max(4 << 20);
    options.disk(Arc::new(disk.clone())).runtime(runtime.clone())
}

fn open(disk: &SimDisk) -> (Db, Runtime) {
    let runtime = Runtime::stepped(1);
    (Db::open(Path::new("/db"), options(disk, &runtime)).unwrap(), runtime)
}

fn kind(engine: EngineKind) -> KeyspaceOptions {
    KeyspaceOptions::default().engine(engine)
}

/// Lets background work run for so long.
fn pass(runtime: &Runtime, time: Duration) {
    let end = runtime.now() + time;
    while runtime.now() < end {
        assert!(runtime.step());
    }
}

const IDLE: Duration = Duration::from_secs(20);

fn parked(db: &Db) -> Vec<bool> {
    db.stats().keyspaces.iter().map(|keyspace| keyspace.is_parked).collect()
}

fn records(keyspace: &Keyspace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    keyspace
        .iter()
        .map(|record| record.map(|(key, value)| (key, value.to_vec())).unwrap())
        .collect()
}

/// A keyspace that nobody uses gives back its descriptor and its memory; the next use of a handle
/// that was there before finds everything, through parkings, crashes and closings.
#[test]
fn d4_an_unused_keyspace_is_parked_and_opened_again() {
    for engine in ENGINES {
        for logged in [true, false] {
            let mut disk = SimDisk::new(1);
            let mut expected = BTreeMap::new();
            for life in 0..4u8 {
                let (db, runtime) = open(&disk);
                let keyspace = db.keyspace("k", kind(engine).logged(logged)).unwrap();
                for round in 0..3u8 {
                    let key = [life, round];
                    keyspace.insert(key, [round; 500]).unwrap();
                    expected.insert(key.to_vec(), vec![round; 500]);
                    let open = disk.descriptors();
                    assert_eq!(parked(&db), [false]);
                    pass(&runtime, IDLE);
                    // The reserve is let go of, too, as nothing is in the log.
                    assert_eq!(parked(&db), [true]);
                    assert!(disk.descriptors() < open);
                    assert!(!db.stats().accounts.iter().any(|one| one.name.ends_with("/k")));
                    assert!(keyspace.stats().file_bytes > 0);
                    assert!(db.stats().log.bytes_used < 64 << 10);
                    if round == 1 {
                        assert_eq!(records(&keyspace), expected);
                    }
                }
                assert_eq!(records(&keyspace), expected);
                match life {
                    0 => db.close().unwrap(),
                    _ => disk = disk.kill(),
                }
            }
            let (db, _) = open(&disk);
            let keyspace = db.existing_keyspace("k").unwrap();
            assert_eq!(records(&keyspace), expected);
            db.verify().unwrap();
        }
    }
}

/// Opening a database opens the keyspaces that its log names, and no other; a missing file is
/// damage all the same.
#[test]
fn d4_an_opening_parks_what_the_log_does_not_name() {
    let disk = SimDisk::new(1);
    let (db, _) = open(&disk);
    for number in 0..10u8 {
        let keyspace = db.keyspace(&format!("k{number}"), kind(ENGINES[usize::from(number) % 2]));
        keyspace.unwrap().insert(b"k", [number]).unwrap();
    }
    db.close().unwrap();
    let (db, _) = open(&disk);
    assert_eq!(parked(&db), [true; 10]);
    let three = db.existing_keyspace("k3").unwrap();
    three.insert(b"k", b"new").unwrap();
    assert_eq!(parked(&db).iter().filter(|parked| !**parked).count(), 1);
    let image = disk.kill();
    let (db, _) = open(&image);
    let mut expected = vec![true; 10];
    expected[3] = false;
    assert_eq!(parked(&db), expected);
    for number in 0..10u8 {
        let keyspace = db.existing_keyspace(&format!("k{number}")).unwrap();
        let value = if number == 3 { b"new".to_vec() } else { vec![number] };
        assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&*value));
    }
    db.close().unwrap();
    image.remove(Path::new("/db/keyspace-00000005.spn")).unwrap();
    let error = Db::open(Path::new("/db"), options(&image, &Runtime::stepped(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
}

/// What is known to be durable is not synced: no file after a close, neither by the opening nor by
/// a first read.
#[test]
fn d4_an_opening_after_a_close_syncs_nothing() {
    const KEYSPACES: usize = 12;
    let disk = SimDisk::new(1);
    let syncs = |disk: &SimDisk| {
        disk.counters().snapshot().by_purpose.iter().map(|counts| counts.syncs).sum::<u64>()
    };
    let (db, _) = open(&disk);
    for number in 0..KEYSPACES {
        let engine = kind(ENGINES[number % 2]).logged(number % 3 > 0);
        db.keyspace(&format!("k{number}"), engine).unwrap().insert(b"k", b"v").unwrap();
    }
    db.close().unwrap();
    let before = syncs(&disk);
    let (db, _) = open(&disk);
    for number in 0..KEYSPACES {
        let keyspace = db.existing_keyspace(&format!("k{number}")).unwrap();
        assert_eq!(&*keyspace.get(b"k").unwrap().unwrap(), b"v");
    }
    assert_eq!(syncs(&disk), before);
}

/// A process is killed amid a checkpoint. The next one may never use the keyspace, while it writes
/// to another one, trims the log and closes; then power is lost, and with it every slot that was
/// not synced.
#[test]
fn p09_what_a_killed_process_left_outlasts_a_life_that_does_not_use_it() {
    for (engine, logged) in ENGINES.into_iter().flat_map(|one| [(one, true), (one, false)]) {
        let mut seen = BTreeMap::new();
        for step in 1.. {
            let disk = SimDisk::new(step);
            let (db, _) = open(&disk);
            let keyspace = db.keyspace("k", kind(engine).logged(logged)).unwrap();
            let other = db.keyspace("other", kind(engine)).unwrap();
            keyspace.insert(b"a", [1; 500]).unwrap();
            other.insert(b"a", [1; 500]).unwrap();
            db.checkpoint().unwrap();
            keyspace.insert(b"b", [2; 500]).unwrap();
            disk.cut_power_at(disk.steps() + step);
            let is_whole = db.checkpoint().is_ok();
            drop((keyspace, other, db));
            let killed = disk.kill();
            let (db, _) = open(&killed);
            let was_parked = parked(&db)[0];
            let other = db.existing_keyspace("other").unwrap();
            other.insert(b"b", [3; 500]).unwrap();
            db.checkpoint().unwrap();
            drop(other);
            db.close().unwrap();
            for mode in [CrashMode::LoseAll, CrashMode::Torn512] {
                let (db, _) = open(&killed.crash(mode));
                db.verify().unwrap();
                let found = records(&db.existing_keyspace("k").unwrap());
                let at = format!("{engine} {logged} step {step}");
                assert_eq!(found[&b"a"[..]], [1; 500], "{at}");
                assert!(!logged || found.len() == 2, "{at}");
                assert_eq!(records(&db.existing_keyspace("other").unwrap()).len(), 2, "{at}");
                *seen.entry((was_parked, found.len())).or_insert(0) += 1;
            }
            if is_whole {
                break;
            }
        }
        let parked = seen.keys().filter(|(parked, _)| *parked).count();
        assert!(parked > 0, "{engine} {logged}: {seen:?}");
    }
}

/// Parked keyspaces do not hold the log, others trim it far beyond their redo LSNs, and crashes
/// strike right after a parking, right after an opening, and twice: nothing that was acknowledged
/// is lost.
#[test]
fn d4_crashes_amid_parking() {
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut disk = SimDisk::new(seed);
        let mut model: BTreeMap<(u8, Vec<u8>), Vec<u8>> = BTreeMap::new();
        for _ in 0..6 {
            let runtime = Runtime::stepped(random.random());
            let options = options(&disk, &runtime).park_after(Duration::from_millis(200));
            let db = Db::open(Path::new("/db"), options).unwrap();
            let keyspaces: Vec<Keyspace> = (0..4u8)
                .map(|number| {
                    let engine = ENGINES[usize::from(number) % 2];
                    db.keyspace(&number.to_string(), kind(engine)).unwrap()
                })
                .collect();
            for (number, keyspace) in (0..).zip(&keyspaces) {
                if random.random_bool(0.5) {
                    let own = |(of, _): &(&(u8, Vec<u8>), _)| of.0 == number;
                    let own = model.iter().filter(own);
                    let own = own.map(|((_, key), value)| (key.clone(), value.clone()));
                    assert_eq!(records(keyspace), own.collect(), "seed {seed}");
                }
            }
            for _ in 0..random.random_range(1..40) {
                let number: u8 = random.random_range(0..4);
                let keyspace = &keyspaces[usize::from(number)];
                let key = vec![random.random_range(0..30u8)];
                match random.random_range(0..10) {
                    0 => db.checkpoint().unwrap(),
                    1..4 => pass(&runtime, Duration::from_millis(random.random_range(1..2000))),
                    4 => {
                        keyspace.remove(&key).unwrap();
                        model.remove(&(number, key));
                    }
                    5 => {
                        let mut batch = Batch::new();
                        for (number, keyspace) in (0..).zip(&keyspaces) {
                            batch.insert(keyspace, key.clone(), [number; 700]);
                            model.insert((number, key.clone()), vec![number; 700]);
                        }
                        db.write(batch).unwrap();
                    }
                    6 => {
                        let found = keyspace.get(&key).unwrap().map(|value| value.to_vec());
                        assert_eq!(found.as_ref(), model.get(&(number, key)), "seed {seed}");
                    }
                    _ => {
                        let length = if random.random_bool(0.2) { 20_000 } else { 300 };
                        let value = vec![random.random(); length];
                        keyspace.insert(&key, &value).unwrap();
                        model.insert((number, key), value);
                    }
                }
            }
            if random.random_bool(0.3) {
                db.verify().unwrap();
            }
            disk = disk.kill();
        }
    }
}

/// Memory for a few keyspaces is enough for many, made, written, read, verified, copied and
/// recovered, also when the log names more than may be open.
#[test]
fn d4_more_keyspaces_than_may_be_open() {
    const ALL: u8 = 60;
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let few = |disk: &SimDisk, path: &str| {
            let options = Options::default().memory(2 << 20).log_bytes_max(16 << 20);
            let options = options.disk(Arc::new(disk.clone())).runtime(Runtime::stepped(1));
            Db::open(Path::new(path), options)
        };
        let db = few(&disk, "/db").unwrap();
        let most = |db: &Db| parked(db).iter().filter(|parked| !**parked).count();
        for number in 0..ALL {
            let keyspace = db.keyspace(&number.to_string(), kind(engine)).unwrap();
            keyspace.insert(b"k", [number]).unwrap();
            assert!(most(&db) <= 10, "{}", most(&db));
        }
        db.verify().unwrap();
        db.backup("/copy").unwrap();
        // A batch is inside of all of its keyspaces at once, and the log names them all then.
        let mut batch = Batch::new();
        for number in 0..ALL {
            let keyspace = db.existing_keyspace(&number.to_string()).unwrap();
            batch.insert(&keyspace, *b"batch", [number]);
        }
        db.write(batch).unwrap();
        let image = disk.kill();
        drop(db);
        let check = |db: &Db, batch: bool| {
            for number in 0..ALL {
                let keyspace = db.existing_keyspace(&number.to_string()).unwrap();
                assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&[number][..]));
                let found = keyspace.get(b"batch").unwrap();
                assert_eq!(found.as_deref(), batch.then_some(&[number][..]));
            }
            db.verify().unwrap();
        };
        let db = few(&image, "/db").unwrap();
        assert!(most(&db) <= 10, "{}", most(&db));
        check(&db, true);
        db.close().unwrap();
        check(&few(&image, "/db").unwrap(), true);
        check(&few(&image, "/copy").unwrap(), false);
    }
}

/// Snapshots, readers of large values and what a closure of a conditional write holds keep a
/// keyspace open; what was chosen for an engine is chosen when it is opened again.
#[test]
fn d4_what_is_in_use_is_not_parked() {
    let disk = SimDisk::new(1);
    let (db, runtime) = open(&disk);
    let turtle = db.keyspace("turtle", kind(EngineKind::Turtle)).unwrap();
    let tree = db.keyspace("tree", kind(EngineKind::TreeLine)).unwrap();
    turtle.turtle().unwrap().set_checkpoint_distance(2).unwrap();
    turtle.insert(b"k", b"1").unwrap();
    tree.insert(b"large", [5; 100_000]).unwrap();
    let snapshot = turtle.snapshot().unwrap();
    let mut reader = tree.get_reader(b"large").unwrap().unwrap();
    pass(&runtime, IDLE);
    assert_eq!(parked(&db), [false, false]);
    turtle.insert(b"k", b"2").unwrap();
    tree.remove(b"large").unwrap();
    pass(&runtime, IDLE);
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
    assert_eq!(read, [5; 100_000]);
    assert_eq!(snapshot.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
    drop((reader, snapshot));
    let changed = tree.update(b"k", |_| {
        pass(&runtime, IDLE);
        Some(b"new".to_vec())
    });
    assert_eq!(changed.unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(parked(&db), [true, false]);
    pass(&runtime, IDLE);
    assert_eq!(parked(&db), [true, true]);
    assert_eq!(turtle.get(b"k").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(turtle.stats().turtle.unwrap().checkpoint_distance, 2);
    assert!(!turtle.stats().turtle.unwrap().is_distance_automatic);
    db.drop_keyspace("tree").unwrap();
    assert_eq!(tree.get(b"k").unwrap_err().kind(), ErrorKind::Closed);
    db.drop_keyspace("turtle").unwrap();
    assert_eq!(turtle.get(b"k").unwrap_err().kind(), ErrorKind::Closed);
}

/// A database that is open for reading opens what its log does not name when it is asked for, and
/// writes nothing.
#[test]
fn d4_parked_keyspaces_are_read() {
    let disk = SimDisk::new(1);
    let (db, runtime) = open(&disk);
    for (number, engine) in (0..6u8).zip(ENGINES.into_iter().cycle()) {
        db.keyspace(&number.to_string(), kind(engine)).unwrap().insert(b"k", [number]).unwrap();
    }
    pass(&runtime, IDLE);
    db.existing_keyspace("1").unwrap().insert(b"k", b"new").unwrap();
    let image = disk.kill();
    let before = image.files();
    let options = options(&image, &Runtime::stepped(1)).read_only(true);
    let db = Db::open(Path::new("/db"), options).unwrap();
    for number in 0..6u8 {
        let keyspace = db.existing_keyspace(&number.to_string()).unwrap();
        let value = if number == 1 { b"new".to_vec() } else { vec![number] };
        assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&*value));
    }
    db.verify().unwrap();
    db.backup("/copy").unwrap();
    drop(db);
    assert!(before.iter().all(|file| image.files().contains(file)));
}

/// A keyspace that was copied while it was parked, and is written to before the backup ends, is
/// copied once more: its log records may point to large values that the first copy lacks.
#[test]
fn d4_a_backup_copies_what_was_parked() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let (db, runtime) = open(&disk);
        let names = ["a", "b", "c"];
        for name in names {
            db.keyspace(name, kind(engine)).unwrap().insert(b"old", name.as_bytes()).unwrap();
        }
        let dropped = db.keyspace("dropped", kind(engine)).unwrap();
        dropped.insert(b"k", b"v").unwrap();
        pass(&runtime, IDLE);
        assert_eq!(parked(&db), [true; 4]);
        // The log continues without those that are parked, and one of them is opened behind it.
        let b = db.existing_keyspace("b").unwrap();
        (0..300u32).for_each(|number| b.insert(number.to_be_bytes(), [1; 900]).unwrap());
        db.checkpoint().unwrap();
        assert!(db.existing_keyspace("a").unwrap().get(b"old").unwrap().is_some());
        assert_eq!(parked(&db), [false, false, true, true]);
        let last = Path::new("/copy/keyspace-00000004.spn");
        let mut is_written = false;
        let report = db.backup_with("/copy", &BackupOptions::default(), |_| {
            if disk.files().iter().any(|file| file == last) && !is_written {
                is_written = true;
                let mut batch = Batch::new();
                for name in names {
                    batch.insert(&db.existing_keyspace(name).unwrap(), *b"new", vec![7; 50_000]);
                }
                db.write(batch).unwrap();
                db.drop_keyspace("dropped").unwrap();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(report.unwrap().keyspaces, 3);
        assert!(is_written);
        let options = options(&disk, &Runtime::stepped(1));
        let copy = Db::open(Path::new("/copy"), options).unwrap();
        for name in names {
            let keyspace = copy.existing_keyspace(name).unwrap();
            assert_eq!(keyspace.get(b"old").unwrap().as_deref(), Some(name.as_bytes()));
            assert_eq!(keyspace.get(b"new").unwrap().as_deref(), Some(&[7; 50_000][..]));
        }
        copy.verify().unwrap();
    }
}

/// Opening a keyspace again and again uses up no generations that it does not need: there are 2^32.
#[test]
fn d4_generations_last() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let (db, runtime) = open(&disk);
        let keyspace = db.keyspace("k", kind(engine)).unwrap();
        for round in 0..40u8 {
            keyspace.insert(b"k", [round; 100]).unwrap();
            pass(&runtime, IDLE);
            assert_eq!(parked(&db), [true]);
        }
        let next = spinney_db::fuzzing::next_generation(&db, "k");
        assert!(next < 5_000, "{next}");
    }
}

/// Names the test that a process was started for, and where.
const CHILD: &str = "SPINNEY_TEST_CHILD";

/// Descriptors, and threads, of this process.
fn open_now() -> (usize, usize) {
    let count = |path| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Many more keyspaces than the process may have descriptors are made, used and left alone: then
/// hardly a descriptor or thread is taken for them, and an opening takes none for them either. In a
/// process of its own, because it lowers a limit of the process.
#[test]
fn d4_many_keyspaces_with_few_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    use std::process::Command;
    const ALL: u32 = 150;
    let test = "d4_many_keyspaces_with_few_descriptors";
    let Some(place) = std::env::var_os(CHILD) else {
        let place = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, place.path())
            .status();
        assert!(status.unwrap().success());
        return;
    };
    let limit = rustix::process::Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let options = || Options::default().memory(64 << 20).park_after(Duration::from_millis(200));
    let path = Path::new(&place).join("db");
    let (before, threads) = open_now();
    let db = Db::open(&path, options()).unwrap();
    let name = |number: u32| format!("k{number}");
    for number in 0..ALL {
        let keyspace = db.keyspace(&name(number), kind(ENGINES[number as usize % 2])).unwrap();
        keyspace.insert_with(b"k", number.to_le_bytes(), Durability::Buffered).unwrap();
        assert!(open_now().0 <= 64);
    }
    let is_idle = |db: &Db| parked(db).iter().all(|parked| *parked);
    while !is_idle(&db) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let few = |now: (usize, usize)| now.0 <= before + 12 && now.1 <= threads + 6;
    while !few(open_now()) {
        // Threads that have nothing to do end after a while.
        std::thread::sleep(Duration::from_millis(20));
    }
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    assert!(is_idle(&db) && few(open_now()), "{:?}", open_now());
    for number in 0..ALL {
        let keyspace = db.existing_keyspace(&name(number)).unwrap();
        assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&number.to_le_bytes()[..]));
    }
    db.verify().unwrap();
}

/// Threads use more keyspaces at once than the process has descriptors for: they wait for each
/// other, and none is refused. One whose own batch needs them all gets an error what helps.
#[test]
fn b2_threads_wait_for_descriptors() {
    let disk = SimDisk::new(1);
    let db = Db::open(Path::new("/db"), options(&disk, &Runtime::threads())).unwrap();
    let name = |number: usize| format!("k{number}");
    let all: Vec<Keyspace> = (0..40)
        .map(|number| db.keyspace(&name(number), kind(ENGINES[number % 2])).unwrap())
        .collect();
    all.iter().for_each(|keyspace| keyspace.insert(b"k", b"v").unwrap());
    db.close().unwrap();
    let db = Db::open(Path::new("/db"), options(&disk, &Runtime::threads())).unwrap();
    let all: Vec<Keyspace> =
        (0..40).map(|number| db.existing_keyspace(&name(number)).unwrap()).collect();
    disk.limit_descriptors(Some(disk.descriptors() + 4));
    std::thread::scope(|scope| {
        for thread in 0..12 {
            let all = &all;
            scope.spawn(move || {
                for step in 0..60 {
                    let keyspace = &all[(step * 31 + thread * 7) % all.len()];
                    assert_eq!(keyspace.get(b"k").unwrap().unwrap(), b"v");
                }
            });
        }
    });
    let mut batch = Batch::new();
    for keyspace in &all {
        batch.insert(keyspace, "k", "w");
    }
    let error = db.write(batch).unwrap_err();
    assert!(error.is_out_of_descriptors() && error.to_string().contains("ulimit -n"), "{error}");
    disk.limit_descriptors(None);
    assert_eq!(all[0].get(b"k").unwrap().unwrap(), b"v");
    db.close().unwrap();
}

/// What transactions know of each other by the records of a keyspace is forgotten when it is parked. One that began before
/// conflicts when it touches such a keyspace, whatever it does; it would see a later moment there.
#[test]
fn d4_a_transaction_sees_no_later_moment_in_what_was_parked() {
    type Touch = fn(&mut Transaction, &Keyspace) -> spinney_db::Result<()>;
    let touches: [(&str, Touch); 6] = [
        ("get", |it, keyspace| it.get(keyspace, b"k").map(drop)),
        ("multi_get", |it, keyspace| it.multi_get(keyspace, [b"k"]).map(drop)),
        ("range", |it, keyspace| it.range(keyspace, ..).try_for_each(|record| record.map(drop))),
        ("get_part", |it, keyspace| it.get_part(keyspace, b"k", 0..1, &mut Vec::new()).map(drop)),
        ("insert", |it, keyspace| it.insert(keyspace, b"k", b"3")),
        ("remove", |it, keyspace| it.remove(keyspace, b"other")),
    ];
    let versioned = ENGINES.into_iter().filter(|engine| engine.row().capabilities.versions);
    for (engine, (name, touch)) in versioned.flat_map(|engine| touches.map(|one| (engine, one))) {
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let (db, runtime) = open(&SimDisk::new(1));
            let make = |name: &str| db.keyspace(name, kind(engine)).unwrap();
            let (read, touched) = (make("read"), make("touched"));
            read.insert(b"k", b"1").unwrap();
            touched.insert(b"k", b"1").unwrap();
            let begin = || {
                let options = TransactionOptions::default().isolation(isolation);
                let transaction = db.begin_with(options).unwrap();
                assert_eq!(transaction.get(&read, b"k").unwrap().unwrap()[..], b"1"[..]);
                transaction
            };
            let (mut before, unharmed) = (begin(), begin());
            assert_eq!(unharmed.get(&touched, b"k").unwrap().unwrap()[..], b"1"[..]);
            pass(&runtime, IDLE);
            // It keeps open what it has read.
            assert_eq!(parked(&db), [false, false], "{engine}, {name}");
            unharmed.commit().unwrap();
            let mut batch = Batch::new();
            batch.insert(&read, *b"k", *b"2");
            batch.insert(&touched, *b"k", *b"2");
            db.write(batch).unwrap();
            pass(&runtime, IDLE);
            assert_eq!(parked(&db), [false, true], "{engine}, {name}");
            let ended = touch(&mut before, &touched).and_then(|()| before.commit());
            let error = ended.expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Conflict, "{engine}, {name}: {error}");
            // One that begins later does not.
            let mut after =
                db.begin_with(TransactionOptions::default().isolation(isolation)).unwrap();
            assert_eq!(after.get(&read, b"k").unwrap().unwrap()[..], b"2"[..]);
            touch(&mut after, &touched).unwrap();
            after.commit().unwrap();
        }
    }
}
