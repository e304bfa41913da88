//! Rules of recovery and of failures, each by its number, on the simulated disk: what is replayed
//! (P15, P19), keyspaces in the manifest (P20), poison (P21), and records whose write-back failed
//! (P2, P23).
#![cfg(not(feature = "shuttle"))]

#[path = "common/seeds.rs"]
mod seeds;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spinney_base::{ErrorKind, Runtime};
use spinney_db::{
    Batch, Db, Durability, EngineKind, Keyspace, KeyspaceOptions, LogMemory, Options,
};
use spinney_io::sim::{CrashMode, Fault, SimDisk, SimView, WriteObserver};
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use crate::seeds::seeds;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(2 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

fn try_open(disk: &SimDisk) -> spinney_db::Result<Db> {
    Db::open(Path::new("/db"), options(disk, &Runtime::stepped(1)))
}

fn open(disk: &SimDisk) -> Db {
    try_open(disk).unwrap()
}

fn keyspace(db: &Db, name: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default()).unwrap()
}

fn key(number: usize) -> Vec<u8> {
    format!("key{:06}", number * 7919 % 1_000_000).into_bytes()
}

/// Lets background work run while time passes.
fn idle(runtime: &Runtime) {
    for _ in 0..100 {
        runtime.sleep(Duration::from_millis(10));
        runtime.step();
    }
}

/// Much more is written than the log holds: checkpoints are asked for in time, so that no writer
/// waits for long, and none forever.
#[test]
fn p12_writers_outlive_a_small_log() {
    let disk = SimDisk::new(9);
    let runtime = Runtime::stepped(1);
    let db = Db::open(Path::new("/db"), options(&disk, &runtime).log_bytes_max(1 << 20)).unwrap();
    let a = keyspace(&db, "a");
    for number in 0..3000 {
        a.insert_with(key(number % 500), [1; 100], Durability::Buffered).unwrap();
    }
    let stats = db.stats();
    assert!(stats.log.bytes_used <= 1 << 20);
    let longest = Duration::from_nanos(stats.longest_stall_ns);
    assert!(longest < Duration::from_secs(1), "a writer waited for {longest:?}");
    assert!(runtime.now() < Duration::from_secs(30), "it took {:?}", runtime.now());
}

/// A checkpoint is asked for when the log has about what memory can replay without writing it back,
/// or so few segments that trimming frees one, however long the log may become.
#[test]
fn p12_the_log_is_no_longer_than_memory_replays() {
    let disk = SimDisk::new(9);
    let runtime = Runtime::stepped(1);
    let db = Db::open(Path::new("/db"), options(&disk, &runtime).log_bytes_max(16 << 20)).unwrap();
    let a = keyspace(&db, "a");
    let mut longest = 0;
    for number in 0..60_000 {
        a.insert_with(key(number % 5000), [1; 100], Durability::Buffered).unwrap();
        if number % 500 == 0 {
            runtime.sleep(Duration::from_millis(20));
            runtime.step();
            longest = longest.max(db.stats().log.bytes_used);
        }
    }
    assert!((1 << 20..5 << 20).contains(&longest), "{longest} bytes");
}

/// The power fails between a checkpoint and the trimming of the log, which still has the records of
/// changes that the checkpoint holds. They are not made again over what came after.
#[test]
fn p15_changes_that_a_checkpoint_holds_are_not_replayed() {
    let disk = SimDisk::new(2);
    let runtime = Runtime::stepped(1);
    let large = options(&disk, &runtime).memory(1 << 20).log_bytes_max(64 << 20);
    // Parking would take a checkpoint before the changes are logged.
    let large = large.park_after(Duration::from_secs(3600));
    let db = Db::open(Path::new("/db"), large).unwrap();
    let a = keyspace(&db, "a");
    let mut count = 0;
    for round in 0..4 {
        // More than the cache holds, so that pages are split and their records logged.
        let mut batch = Batch::new();
        while count < 3000 * (round + 1) {
            batch.insert(&a, key(count), vec![round as u8; 300]);
            count += 1;
            if count % 50 == 0 {
                db.write_with(std::mem::take(&mut batch), Durability::Buffered).unwrap();
            }
        }
        let before = db.stats().log.last_lsn;
        let logged = (0..50).any(|_| {
            idle(&runtime);
            db.stats().log.last_lsn > before
        });
        assert!(logged, "changes of structure reach the log in time");
        // The checkpoint stands, and the log is not trimmed yet.
        disk.capture_when(Arc::new(|_, states| {
            states.contains(&"trim").then_some(CrashMode::LoseAll)
        }));
        db.checkpoint().unwrap();
        disk.capture_when(Arc::new(|_, _| None));
        let captures = disk.take_captures();
        assert!(!captures.is_empty());
        for image in captures.into_iter().map(|capture| capture.image) {
            let runtime = Runtime::stepped(1);
            let options = options(&image, &runtime).log_bytes_max(64 << 20);
            let db = Db::open(Path::new("/db"), options).unwrap();
            let a = keyspace(&db, "a");
            assert!((0..count).all(|number| a.contains_key(key(number)).unwrap()));
            db.verify().unwrap();
        }
    }
}

/// What users said is applied again and not said again: each record keeps its LSN, and the log does
/// not grow.
#[test]
fn p19_replay_appends_nothing() {
    let disk = SimDisk::new(3);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    for number in 0..50 {
        a.insert(key(number), b"1").unwrap();
    }
    let last = db.stats().log.last_lsn;
    let mut disk = disk;
    for _ in 0..3 {
        disk = disk.crash(CrashMode::LoseAll);
        let db = open(&disk);
        assert_eq!(db.stats().log.last_lsn, last);
        assert_eq!(keyspace(&db, "a").iter().count(), 50);
    }
}

/// The manifest is of yesterday, the log of today: records of a keyspace that nobody knows are not
/// passed over.
#[test]
fn p20_an_unknown_id_is_corruption() {
    let disk = SimDisk::new(4);
    let manifest = Path::new("/db/MANIFEST");
    let db = open(&disk);
    keyspace(&db, "a").insert(b"k", b"v").unwrap();
    let old = disk.contents(manifest).unwrap();
    keyspace(&db, "b").insert(b"k", b"promised").unwrap();
    drop(db);
    let image = disk.crash(CrashMode::LoseAll);
    let file = image.open(manifest, OpenMode::EXISTING.cached()).unwrap();
    let mut buf = AlignedBuf::new(old.len() / 4096);
    buf.bytes_mut().copy_from_slice(&old);
    file.write_at(buf.bytes(), 0, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
    let error = try_open(&image).unwrap_err();
    assert!(error.is_corruption(), "{error}");
}

/// Keyspaces are made and dropped, and the power fails at every step: each is there with all that
/// it had, or is not there.
#[test]
fn p20_keyspaces_come_and_go_whole() {
    for seed in seeds(12) {
        let disk = SimDisk::new(seed);
        let db = open(&disk);
        let stays = keyspace(&db, "stays");
        stays.insert(b"k", b"v").unwrap();
        let mode = [CrashMode::Torn512, CrashMode::LoseAll, CrashMode::KeepAll][seed as usize % 3];
        disk.capture_when(Arc::new(move |_, _| Some(mode)));
        let goes = keyspace(&db, "goes");
        let made = disk.steps();
        for number in 0..20 {
            goes.insert(key(number), b"v").unwrap();
        }
        let filled = disk.steps();
        db.drop_keyspace("goes").unwrap();
        let dropped = disk.steps();
        keyspace(&db, "next").insert(b"k", b"v").unwrap();
        disk.capture_when(Arc::new(|_, _| None));
        for capture in disk.take_captures() {
            let db = open(&capture.image);
            assert!(keyspace(&db, "stays").contains_key(b"k").unwrap());
            // A capture is taken before its step.
            let taken = capture.step - 1;
            match db.existing_keyspace("goes") {
                Ok(found) => {
                    assert!(taken < dropped, "a dropped keyspace is back");
                    let count = found.iter().inspect(|record| assert!(record.is_ok())).count();
                    assert!(taken < filled || count == 20, "only {count} records are left");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound);
                    assert!(taken < made || taken >= filled, "a keyspace that was made is gone");
                }
            }
            // No id of this past is given out again to one that is made now.
            let id = keyspace(&db, "new").id();
            assert!(db.keyspaces().iter().all(|other| other.id <= id));
            if taken >= made {
                assert!(id > goes.id());
            }
            db.verify().unwrap();
        }
    }
}

/// A store file's sync fails under a checkpoint: writing ends for everybody, the log included.
#[test]
fn p21_a_store_that_cannot_sync_stops_everything() {
    let disk = SimDisk::new(5);
    let runtime = Runtime::stepped(1);
    let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
    let (a, b) = (keyspace(&db, "a"), keyspace(&db, "b"));
    a.insert(b"k", b"v").unwrap();
    b.insert(b"k", b"v").unwrap();
    // Nothing of the log waits for a sync, so the next one is a store's.
    disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
    let error = db.checkpoint().unwrap_err();
    assert!(error.to_string().contains("keyspace-"), "{error}");
    let (writes, syncs) = (disk.writes(), disk.syncs());
    for answer in [
        a.insert(b"k", b"w"),
        b.insert_with(b"k", b"w", Durability::Buffered),
        db.checkpoint(),
        db.flush(),
    ] {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Poisoned);
    }
    idle(&runtime);
    assert_eq!((disk.writes(), disk.syncs()), (writes, syncs), "something is still being written");
    assert_eq!(a.get(b"k").unwrap().unwrap(), b"v");
    let db = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(keyspace(&db, "b").get(b"k").unwrap().unwrap(), b"v");
}

/// Panics at the first write of a file with this in its name, once armed.
struct Bomb {
    name: &'static str,
    armed: AtomicBool,
}

impl Bomb {
    fn plant(disk: &SimDisk, name: &'static str) -> Arc<Bomb> {
        let bomb = Arc::new(Bomb { name, armed: AtomicBool::new(false) });
        disk.observe(bomb.clone());
        bomb
    }
}

impl WriteObserver for Bomb {
    fn before_write(&self, _: &SimView<'_>, path: &Path, _: u64, _: &[u8]) {
        let meant = path.to_string_lossy().contains(self.name);
        assert!(!meant || !self.armed.swap(false, Ordering::SeqCst), "a bug, for the test's sake");
    }

    fn after_sync(&self, _: &SimView<'_>, _: &Path) {}
}

/// A thread panics while it flushes the log, and takes with it what others had said: no writer
/// learns that anything after it is safe.
#[test]
fn p21_a_panic_in_a_flush_poisons() {
    let disk = SimDisk::new(8);
    let db = open(&disk);
    let a = keyspace(&db, "a");
    let bomb = Bomb::plant(&disk, "wal");
    a.insert(b"before", b"v").unwrap();
    bomb.armed.store(true, Ordering::SeqCst);
    catch_unwind(AssertUnwindSafe(|| a.insert(b"lost", b"v"))).unwrap_err();
    let error = a.insert(b"after", b"v").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(error.to_string().contains("panicked"), "{error}");
    let db = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(keyspace(&db, "a").iter().count(), 1);
}

/// Background work panics in the middle of something: nobody knows what is half-done, so writing
/// ends.
#[test]
fn p21_a_panic_in_the_background_poisons() {
    let disk = SimDisk::new(6);
    let runtime = Runtime::stepped(1);
    let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
    let a = keyspace(&db, "a");
    let bomb = Bomb::plant(&disk, "keyspace-");
    // So many dirty records of one page that the background writes them back at once.
    let mut batch = Batch::new();
    for number in 0..1024 {
        batch.insert(&a, key(number), *b"v");
    }
    db.write(batch).unwrap();
    bomb.armed.store(true, Ordering::SeqCst);
    idle(&runtime);
    assert!(!bomb.armed.load(Ordering::SeqCst), "the background wrote");
    let error = a.insert(b"k", b"v").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(error.to_string().contains("panicked"), "{error}");
    let db = open(&disk.crash(CrashMode::LoseAll));
    assert_eq!(keyspace(&db, "a").iter().count(), 1024);
}

/// A write-back fails; the records it took are dirty still, and the next checkpoint writes them
/// back.
#[test]
fn p23_a_failed_write_back_keeps_its_records() {
    let disk = SimDisk::new(7);
    for at in 1..30 {
        let disk = disk.crash(CrashMode::LoseAll);
        let db = open(&disk);
        let a = db.keyspace("a", KeyspaceOptions::default().logged(false)).unwrap();
        for number in 0..100 {
            a.insert(key(number), [1; 200]).unwrap();
        }
        db.checkpoint().unwrap();
        for number in 0..100 {
            a.insert(key(number), [2; 200]).unwrap();
        }
        disk.inject(Fault::WriteError { at: disk.writes() + at });
        let failed = db.checkpoint();
        if failed.as_ref().is_err_and(|error| error.is_poisoned()) {
            continue;
        }
        db.checkpoint().unwrap();
        let db = open(&disk.crash(CrashMode::LoseAll));
        let a = db.existing_keyspace("a").unwrap();
        for number in 0..100 {
            let value = a.get(key(number)).unwrap().unwrap();
            assert_eq!(value, &[2; 200][..], "write {at}: {failed:?}");
        }
    }
}

/// In persistent memory a write that waits for stable storage syncs nothing and survives the power,
/// on each engine, unless that is turned off.
#[test]
fn p07_sync_writes_survive_in_persistent_memory() {
    for memory in [LogMemory::Automatic, LogMemory::Off] {
        let disk = SimDisk::new(17);
        disk.map_persistently(true);
        let runtime = Runtime::stepped(1);
        let options = options(&disk, &runtime).log_memory(memory);
        let db = Db::open(Path::new("/db"), options).unwrap();
        let names = EngineKind::ALL.map(EngineKind::name);
        let all = EngineKind::ALL.map(|engine| {
            let options = KeyspaceOptions::default().engine(engine);
            db.keyspace(engine.name(), options).unwrap()
        });
        // The first write of each makes what it needs.
        all.iter().for_each(|one| one.insert(b"first", b"1").unwrap());
        let (syncs, before) = (disk.syncs(), db.stats().log);
        for number in 0..5 {
            all.iter().for_each(|one| one.insert(key(number), b"value").unwrap());
        }
        let now = db.stats().log;
        let writes = 5 * all.len() as u64;
        match memory {
            LogMemory::Off => {
                assert_eq!((now.memory, now.lines), ("none", 0));
                assert!(disk.syncs() - syncs >= writes);
            }
            _ => {
                assert_eq!((now.memory, now.fences - before.fences), ("persistent", writes));
                assert_eq!(disk.syncs(), syncs);
            }
        }
        let lost = disk.crash(CrashMode::LoseAll);
        let db = open(&lost);
        for name in names {
            let one = db.existing_keyspace(name).unwrap();
            assert_eq!(one.iter().count(), 6, "{name}");
        }
    }
}
