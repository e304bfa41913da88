//! Memory follows use: what keyspaces that are not used or empty do not need, others get, and no
//! limit that users meet depends on how many there are.

#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_db::{
    Batch, Db, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceMemory, KeyspaceOptions,
    Options,
};
use spinney_io::sim::SimDisk;

const MIB: u64 = 1 << 20;

/// Engines whose memory is a cache: others give none of it.
fn with_caches() -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.into_iter().filter(|kind| kind.row().capabilities.larger_than_memory)
}

fn open(disk: &SimDisk, memory: u64, park_after: Duration) -> (Db, Runtime) {
    let runtime = Runtime::stepped(1);
    let options = Options::default()
        .memory(memory)
        .durability(Durability::Buffered)
        .park_after(park_after)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone());
    (Db::open(Path::new("/db"), options).unwrap(), runtime)
}

fn make(db: &Db, name: &str, engine: EngineKind) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default().engine(engine)).unwrap()
}

fn memory_of(db: &Db, name: &str) -> Option<KeyspaceMemory> {
    let stats = db.stats();
    let targets: u64 = stats.accounts.iter().map(|account| account.target).sum();
    assert!(targets <= stats.memory_bytes, "{targets} of {}", stats.memory_bytes);
    stats.keyspaces.into_iter().find(|one| one.name == name).unwrap().memory
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// Lets background work run for so long.
fn pass(runtime: &Runtime, time: Duration) {
    let end = runtime.now() + time;
    while runtime.now() < end {
        runtime.step();
    }
}

/// Writes records of 1 KiB of this many bytes together, 64 MiB in a second.
fn fill(db: &Db, runtime: &Runtime, keyspace: &Keyspace, bytes: u64) {
    let mut batch = Batch::new();
    for number in 0..bytes / 1024 {
        batch.insert(keyspace, key(number), vec![7; 1000]);
        if number % 64 == 63 {
            db.write(std::mem::take(&mut batch)).unwrap();
            pass(runtime, Duration::from_millis(1));
        }
    }
    db.write(batch).unwrap();
}

/// Looks ten thousand records up in a second, and lets background work run beside, for so long.
fn read_for(runtime: &Runtime, keyspace: &Keyspace, records: u64, time: Duration) {
    let end = runtime.now() + time;
    let mut number = 1u64;
    while runtime.now() < end {
        for _ in 0..20 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            assert!(keyspace.get(key((number >> 20) % records)).unwrap().is_some());
        }
        pass(runtime, Duration::from_millis(2));
    }
}

/// One keyspace that is used beside 255 empty ones, all open, has nearly all of the memory.
#[test]
fn a_hot_keyspace_beside_255_empty_ones_has_nearly_all() {
    const MEMORY: u64 = 64 * MIB;
    for engine in with_caches() {
        let disk = SimDisk::new(1);
        let (db, runtime) = open(&disk, MEMORY, Duration::from_secs(3600));
        let empty: Vec<Keyspace> =
            (0..255).map(|number| make(&db, &format!("empty{number}"), engine)).collect();
        let hot = make(&db, "hot", engine);
        fill(&db, &runtime, &hot, 80 * MIB);
        // What `2btree` has merged when writing ended is let go, and filled with what is read.
        for _ in 0..8 {
            read_for(&runtime, &hot, 80 * MIB / 1024, Duration::from_secs(1));
            if memory_of(&db, "hot").unwrap().why == "wants" {
                break;
            }
        }
        let stats = db.stats();
        assert!(stats.keyspaces.iter().all(|one| !one.is_parked), "all of them are open");
        let floors: u64 = stats.keyspaces.iter().map(|one| one.memory.unwrap().floor).sum();
        let memory = memory_of(&db, "hot").unwrap();
        let told = format!("{engine}: {memory:?}, floors {floors}");
        assert!(floors < MEMORY / 4, "{told}");
        assert!(memory.target > MEMORY / 4 * 3 && memory.why == "wants", "{told}");
        assert!(memory.worth > 0, "{told}");
        let other = memory_of(&db, "empty7").unwrap();
        assert!(other.why == "gives" && other.target <= other.floor + MIB / 8, "{other:?}");
        drop(empty);
    }
}

/// Two that take turns: each has nearly all within two seconds, though the other has held it a
/// moment before and may be open all the time or parked.
#[test]
fn a_woken_keyspace_has_its_share_back_within_seconds() {
    const MEMORY: u64 = 16 * MIB;
    const RECORDS: u64 = 24 * MIB / 1024;
    for engine in with_caches() {
        for park_after in [5, 3600] {
            let disk = SimDisk::new(1);
            let (db, runtime) = open(&disk, MEMORY, Duration::from_secs(park_after));
            let both = ["one", "other"].map(|name| make(&db, name, engine));
            both.iter().for_each(|keyspace| fill(&db, &runtime, keyspace, 24 * MIB));
            db.checkpoint().unwrap();
            for turn in 0..3 {
                let (keyspace, name) = (&both[turn % 2], ["one", "other"][turn % 2]);
                read_for(&runtime, keyspace, RECORDS, Duration::from_secs(2));
                let soon = memory_of(&db, name).unwrap();
                read_for(&runtime, keyspace, RECORDS, Duration::from_secs(4));
                let steady = memory_of(&db, name).unwrap();
                let told = format!("{engine}, turn {turn}: {soon:?}, then {steady:?}");
                assert!(steady.target > MEMORY / 10 * 8, "{told}");
                assert!(soon.target >= steady.target / 10 * 9, "{told}");
                assert!(steady.used > MEMORY / 3, "{told}");
                let used = db.stats().memory_used;
                assert!(used <= MEMORY + MIB, "{used} of {MEMORY}");
            }
        }
    }
}

/// A keyspace that holds dirty records gives their memory as well: they are written back first.
#[test]
fn what_is_dirty_is_written_back_and_given() {
    const MEMORY: u64 = 16 * MIB;
    for engine in with_caches() {
        let disk = SimDisk::new(1);
        let (db, runtime) = open(&disk, MEMORY, Duration::from_secs(3600));
        let (hot, written) = (make(&db, "hot", engine), make(&db, "written", engine));
        fill(&db, &runtime, &hot, 24 * MIB);
        fill(&db, &runtime, &written, 8 * MIB);
        read_for(&runtime, &hot, 24 * MIB / 1024, Duration::from_secs(5));
        let (hot, written) = (memory_of(&db, "hot").unwrap(), memory_of(&db, "written").unwrap());
        let told = format!("{engine}: {hot:?}, {written:?}");
        assert!(hot.target > MEMORY / 10 * 8, "{told}");
        assert!(written.used < MEMORY / 8, "{told}");
    }
}

/// A batch of 4 MiB is written whichever of 256 keyspaces it is for, and to all of them at once.
#[test]
fn a_batch_does_not_depend_on_the_number_of_keyspaces() {
    const BATCH: usize = 4 << 20;
    for engine in EngineKind::ALL {
        let mut disk = SimDisk::new(1);
        let (db, runtime) = open(&disk, 64 * MIB, Duration::from_secs(3600));
        let all: Vec<Keyspace> =
            (0..256).map(|number| make(&db, &format!("k{number}"), engine)).collect();
        let value = vec![5; 3000];
        let count = BATCH / (value.len() + 100);
        let batch_of = |mark: u64, choose: &dyn Fn(usize) -> usize| {
            let mut batch = Batch::new();
            for number in 0..count {
                batch.insert(&all[choose(number)], key(mark + number as u64), value.clone());
            }
            batch
        };
        for one in [3, 200] {
            db.write(batch_of(0, &|_| one)).unwrap();
        }
        db.write(batch_of(1 << 32, &|number| number % 256)).unwrap();
        // Any thread that was lent memory gives it back.
        let until = runtime.now() + Duration::from_secs(3);
        while runtime.now() < until {
            all[7].get(b"absent").unwrap();
            runtime.step();
        }
        let used = db.stats().memory_used;
        assert!(used < 64 * MIB, "{used}");
        drop((db, all));
        disk = disk.kill();
        let (db, _) = open(&disk, 64 * MIB, Duration::from_secs(3600));
        for one in [3, 200] {
            let keyspace = db.existing_keyspace(&format!("k{one}")).unwrap();
            let here = (0..count).filter(|number| {
                keyspace.get(key(*number as u64)).unwrap().as_deref() == Some(&value[..])
            });
            assert_eq!(here.count(), count, "{engine}");
        }
        let spread = db.existing_keyspace("k77").unwrap();
        assert!(spread.contains_key(key((1 << 32) + 77)).unwrap());
        db.verify().unwrap();
    }
}

/// What bounds a batch is the budget, and the message says so.
#[test]
fn a_batch_is_bounded_by_the_budget() {
    let disk = SimDisk::new(1);
    let (db, _) = open(&disk, 8 * MIB, Duration::from_secs(5));
    let keyspace = make(&db, "k", EngineKind::TreeLine);
    let batch_of = |bytes: u64| {
        let mut batch = Batch::new();
        (0..bytes / 1008).for_each(|number| {
            batch.insert(&keyspace, key(number), vec![1; 1000]);
        });
        batch
    };
    db.write(batch_of(MIB - 2048)).unwrap();
    let error = db.write(batch_of(MIB + 8192)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("an eighth of the memory budget"), "{error}");
}

/// As many keyspaces as there may be are made, written, and found again in 64 MiB.
#[test]
fn as_many_keyspaces_as_there_may_be_fit_into_64_mib() {
    const COUNT: usize = 4096;
    let disk = SimDisk::new(1);
    let (db, _) = open(&disk, 64 * MIB, Duration::from_secs(5));
    for number in 0..COUNT {
        let engine = EngineKind::ALL[number % EngineKind::ALL.len()];
        let keyspace = make(&db, &format!("k{number}"), engine);
        keyspace.insert(b"number", number.to_be_bytes()).unwrap();
        if number % 512 == 0 {
            let stats = db.stats();
            assert!(stats.memory_used <= 64 * MIB, "{} at {number}", stats.memory_used);
        }
    }
    let refused = db.keyspace("one more", KeyspaceOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    db.close().unwrap();
    let (db, _) = open(&disk, 64 * MIB, Duration::from_secs(5));
    for number in (0..COUNT).step_by(7) {
        let keyspace = db.existing_keyspace(&format!("k{number}")).unwrap();
        let value = keyspace.get(b"number").unwrap();
        assert_eq!(value.as_deref(), Some(&number.to_be_bytes()[..]));
    }
    assert!(disk.descriptors() < COUNT as u64);
}
