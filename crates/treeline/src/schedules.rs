//! What write-backs and reorganizations owe each other, under schedules that may stop a thread at
//! any lock or atomic: `cargo test -p spinney-treeline --features shuttle --lib schedules`.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn, yield_now};
use spinney_base::schedules::check;
use spinney_base::shim::atomic::{AtomicBool, Ordering::SeqCst};
use spinney_base::{KeyspaceId, Lsn, MemoryBudget, Poison, Runtime, ValueRef};
use spinney_engine::{
    Chunk, Direction, Engine, EngineContext, Found, ScanRequest, SnapshotNumber, Write,
};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions};

use crate::reorganize::{Outcome, Why};
use crate::tree::TreeLine;
use spinney_records::{RecordId, Scratch, Visit};

const KEYSPACE: KeyspaceId = KeyspaceId(1);

/// Keys of one byte, with values of 100.
const RECORDS: u8 = 120;

/// What a keyspace on this disk is given. It has no log of its own records, so that schedules are
/// of the engine's steps alone.
fn context(disk: &SimDisk) -> EngineContext {
    let log =
        LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };
    let log = Log::create(&*disk.at("/db"), "wal", &log).unwrap();
    EngineContext {
        directory: disk.at("/db"),
        name: "keyspace".into(),
        keyspace: KEYSPACE,
        logged: false,
        double_write: false,
        log,
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(1 << 20).open("keyspace", 1 << 20),
        certifier: spinney_engine::Certifier::above(0),
    }
}

/// A keyspace without dirty records.
fn tree_on(disk: &SimDisk) -> Arc<TreeLine> {
    disk.create_dir(Path::new("/db")).unwrap();
    let tree = TreeLine::create(context(disk), Lsn::ZERO).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    (0..RECORDS).for_each(|key| put(&tree, key, &[0; 100]));
    tree.write_back_everything(&mut |_| false).unwrap();
    Arc::new(tree)
}

fn tree() -> Arc<TreeLine> {
    tree_on(&SimDisk::new(1))
}

fn put(tree: &TreeLine, key: u8, value: &[u8]) {
    let hash = hash_key(KEYSPACE, &[key]);
    let write = Write { key: &[key], hash, value: Some(ValueRef::inline(value)) };
    let prepared = tree.prepare(&write).unwrap();
    tree.apply(&write, prepared, Lsn::ZERO, SnapshotNumber::NONE);
}

fn remove(tree: &TreeLine, key: u8) {
    let write = Write { key: &[key], hash: hash_key(KEYSPACE, &[key]), value: None };
    let prepared = tree.prepare(&write).unwrap();
    tree.apply(&write, prepared, Lsn::ZERO, SnapshotNumber::NONE);
}

fn put_all(tree: &TreeLine, keys: &[u8], value: &[u8]) {
    keys.iter().for_each(|key| put(tree, *key, value));
}

/// A thread that does something with the keyspace.
fn thread(tree: &Arc<TreeLine>, body: impl FnOnce(&TreeLine) + Send + 'static) -> JoinHandle<()> {
    let tree = Arc::clone(tree);
    spawn(move || body(&tree))
}

/// Writes everything back, as a checkpoint does, and checks what the pages hold.
fn check_written_back(tree: &TreeLine, keys: &[u8], version: u8) {
    tree.write_back_everything(&mut |_| false).unwrap();
    assert_eq!(tree.memory.cache.usage().dirty, 0, "a checkpoint would pass records over");
    tree.memory.cache.forget_clean();
    check_values(tree, keys, version);
}

fn check_values(tree: &TreeLine, keys: &[u8], version: u8) {
    for key in keys {
        let mut value = Vec::new();
        let found = tree.get(&[*key], hash_key(KEYSPACE, &[*key]), &mut value).unwrap();
        assert_eq!(found, Found::Inline);
        assert_eq!(value[0], version, "key {key}: a write was lost");
    }
}

/// The keys of two pages of one segment.
fn two_pages(tree: &TreeLine) -> [Vec<u8>; 2] {
    let page = |key: u8| {
        let located = tree.shape.index.find(&[key]);
        (located.segment.base, located.page_of(&[key]))
    };
    let keys = |of: u8| (0..RECORDS).filter(|key| page(*key) == page(of)).collect();
    let apart = |key: &u8| page(*key).0 == page(*key + 1).0 && page(*key) != page(*key + 1);
    let first = (0..RECORDS - 1).find(apart).expect("a segment of several pages");
    [keys(first), keys(first + 1)]
}

fn is_being_written(tree: &TreeLine, key: u8) -> bool {
    let id = RecordId::of(hash_key(KEYSPACE, &[key]));
    let mut seen = [false; 2];
    for (visit, seen) in [Visit::Look, Visit::BeginWrite].into_iter().zip(&mut seen) {
        tree.memory.cache.visit_dirty(id, visit, &mut Scratch::default(), &mut |_, _| {
            *seen = true;
            false
        });
    }
    seen == [true, false]
}

/// P14: two write-backs of one segment take records of different pages off its list, while other
/// threads make them dirty again. None is left dirty and not listed: a checkpoint would pass it
/// over.
#[test]
fn p14_what_two_writers_meet_stays_listed() {
    check(1000, || {
        let tree = tree();
        let [ours, others] = two_pages(&tree);
        put_all(&tree, &others, &[1; 100]);
        let key = vec![others[0]];
        let other = thread(&tree, move |tree| tree.write_back(&[key]).unwrap());
        tree.write_back(&[vec![others[0]]]).unwrap();
        put_all(&tree, &ours, &[1; 100]);
        let keys = ours.clone();
        let putter = thread(&tree, move |tree| put_all(tree, &keys, &[2; 100]));
        tree.write_back(&[vec![ours[0]]]).unwrap();
        other.join().unwrap();
        putter.join().unwrap();
        check_written_back(&tree, &ours, 2);
    });
}

/// P14: a write-back that others began stands between taking its records and writing them; a
/// checkpoint does not publish past them.
#[test]
fn p14_a_checkpoint_waits_for_write_backs() {
    check(1000, || {
        let disk = SimDisk::new(1);
        let tree = tree_on(&disk);
        let [keys, _] = two_pages(&tree);
        put_all(&tree, &keys, &[1; 100]);
        let key = vec![keys[0]];
        let ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&ended);
        let other = thread(&tree, move |tree| {
            tree.write_back(&[key]).unwrap();
            ends.store(true, SeqCst);
        });
        while !is_being_written(&tree, keys[0]) && !ended.load(SeqCst) {
            yield_now();
        }
        tree.publish_checkpoint(Lsn(1), &mut |_| false).unwrap();
        let image = disk.crash(CrashMode::LoseAll);
        other.join().unwrap();
        let tree = TreeLine::open(context(&image)).unwrap();
        tree.end_structure_replay().unwrap();
        check_values(&tree, &keys, 1);
    });
}

/// P14: the same where the other write-back meets a full disk and gives its records back: the
/// checkpoint that waited for it writes them back, or fails.
#[test]
fn p14_a_checkpoint_begins_again_beside_write_backs_that_fail() {
    check(1000, || {
        let disk = SimDisk::new(1);
        let tree = tree_on(&disk);
        let [keys, _] = two_pages(&tree);
        put_all(&tree, &keys, &[1; 100]);
        disk.inject(Fault::NoSpaceInPlace { at: disk.writes() + 1 });
        let key = vec![keys[0]];
        let other = thread(&tree, move |tree| _ = tree.write_back(&[key]));
        while !is_being_written(&tree, keys[0]) && disk.faults_struck() == 0 {
            yield_now();
        }
        let published = tree.publish_checkpoint(Lsn(1), &mut |_| false);
        let image = disk.crash(CrashMode::LoseAll);
        other.join().unwrap();
        assert_eq!(disk.faults_struck(), 1);
        if published.is_ok() {
            let tree = TreeLine::open(context(&image)).unwrap();
            tree.end_structure_replay().unwrap();
            check_values(&tree, &keys, 1);
        }
    });
}

/// P14: the same where records find no room in their page, and the reorganization that is to make
/// room is given up, because another write-back gave the segment a page meanwhile: nobody failed,
/// and the records are dirty again. (Found by power losses beside threads: half of an acknowledged
/// batch was gone.)
#[test]
fn p14_a_checkpoint_begins_again_beside_write_backs_that_give_back() {
    check(6000, || {
        let disk = SimDisk::new(1);
        let tree = tree_on(&disk);
        let [full, others] = two_pages(&tree);
        let full = full[..3].to_vec();
        put_all(&tree, &full, &[1; 3000]);
        let ended = Arc::new(AtomicBool::new(false));
        let (key, ends) = (full[0], Arc::clone(&ended));
        let refused = thread(&tree, move |tree| {
            tree.write_back(&[vec![key]]).unwrap();
            ends.store(true, SeqCst);
        });
        let (key, other, ends) = (full[0], others[0], Arc::clone(&ended));
        let enlarges = thread(&tree, move |tree| {
            while !is_being_written(tree, key) && !ends.load(SeqCst) {
                yield_now();
            }
            put(tree, other, &[1; 3000]);
            tree.write_back(&[vec![other]]).unwrap();
            ends.store(true, SeqCst);
        });
        while !is_being_written(&tree, others[0]) && !ended.load(SeqCst) {
            yield_now();
        }
        tree.publish_checkpoint(Lsn(1), &mut |_| false).unwrap();
        let image = disk.crash(CrashMode::LoseAll);
        refused.join().unwrap();
        enlarges.join().unwrap();
        let tree = TreeLine::open(context(&image)).unwrap();
        tree.end_structure_replay().unwrap();
        check_values(&tree, &full, 1);
    });
}

/// P23: a record is changed while its segment is rewritten. A write-back of the new segment takes
/// it, finds no room for it and gives it back. The reorganization, which wrote the version before,
/// does not make it clean.
#[test]
fn p23_a_reorganization_ends_no_mark_but_its_own() {
    check(5000, || {
        let tree = tree();
        let located = tree.shape.index.find(&two_pages(&tree)[0]);
        let keys: Vec<u8> = (0..RECORDS).filter(|key| located.contains(&[*key])).collect();
        put_all(&tree, &keys, &[1; 100]);
        let before = tree.shape.index.version();
        // The one that is made clean last. So long its page has no room for it.
        let last = keys[keys.len() - 1];
        let putter = thread(&tree, move |tree| {
            while tree.shape.index.version() == before && !is_being_written(tree, last) {
                yield_now();
            }
            put(tree, last, &[2; 3000]);
        });
        let other = thread(&tree, move |tree| {
            while tree.shape.index.version() == before {
                yield_now();
            }
            tree.write_back(&[vec![last]]).unwrap();
        });
        assert_eq!(tree.reorganize(&located, Why::Full).unwrap(), Outcome::Done);
        other.join().unwrap();
        putter.join().unwrap();
        check_written_back(&tree, &[last], 2);
    });
}

/// P23: a scan beside a reorganization finds what is on its way to the new pages: in memory before
/// these are the segment's, in them afterwards.
#[test]
fn p23_a_scan_beside_a_reorganization() {
    check(1000, || {
        let tree = tree();
        let located = tree.shape.index.find(&two_pages(&tree)[0]);
        let keys: Vec<u8> = (0..RECORDS).filter(|key| located.contains(&[*key])).collect();
        put_all(&tree, &keys, &[1; 100]);
        let (first, last) = ([keys[0]], [keys[keys.len() - 1]]);
        let reader = thread(&tree, move |tree| {
            let request = ScanRequest {
                lower: Bound::Included(&first),
                upper: Bound::Included(&last),
                direction: Direction::Forward,
                records_wanted: usize::from(RECORDS),
                records_max: usize::from(RECORDS),
                bytes_max: usize::MAX,
                keys_only: false,
            };
            for _ in 0..3 {
                let mut chunk = Chunk::default();
                tree.scan(&request, &mut chunk).unwrap();
                assert_eq!(chunk.len(), keys.len());
                let newest = (0..chunk.len()).all(|index| chunk.get(index).1.bytes[0] == 1);
                assert!(newest, "an older version came back");
            }
        });
        assert_eq!(tree.reorganize(&located, Why::Full).unwrap(), Outcome::Done);
        reader.join().unwrap();
    });
}

/// The first key from one on.
fn first(tree: &TreeLine, from: u8) -> u8 {
    let request = ScanRequest {
        lower: Bound::Included(&[from]),
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        records_wanted: 1,
        records_max: 1,
        bytes_max: usize::MAX,
        keys_only: true,
    };
    let mut chunk = Chunk::default();
    tree.scan(&request, &mut chunk).unwrap();
    assert_eq!(chunk.len(), 1);
    chunk.get(0).0[0]
}

/// A thread that inserted a record finds it or one before it, and one that removed the head finds
/// another, whatever other readers list meanwhile.
#[test]
fn d1_first_reads_miss_no_insert() {
    check(500, || {
        let tree = tree();
        // A range over keys that are listed.
        (0..20).for_each(|key| remove(&tree, key));
        tree.memory.gap.passed_much();
        (0..2).for_each(|_| assert_eq!(first(&tree, 0), 20));
        let reader = thread(&tree, |tree| {
            remove(tree, 20);
            assert_ne!(first(tree, 0), 20);
            (0..2).for_each(|_| _ = first(tree, 0));
        });
        remove(&tree, 21);
        remove(&tree, 22);
        assert_ne!(first(&tree, 21), 21);
        for key in [22, 15, 12] {
            put(&tree, key, &[1; 100]);
            assert!(first(&tree, 11) <= key);
        }
        reader.join().unwrap();
        assert_eq!(first(&tree, 0), 12);
        remove(&tree, 12);
        remove(&tree, 15);
        assert_eq!(first(&tree, 0), 22);
    });
}
