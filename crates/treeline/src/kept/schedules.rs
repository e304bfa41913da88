//! Readers of a snapshot beside writers, write-backs and reorganizations, under schedules that may stop
//! a thread at any lock or atomic: `cargo test -p spinney-treeline --features shuttle --lib
//! kept::schedules`.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::schedules::check;
use spinney_base::{KeyspaceId, Lsn, MemoryBudget, Poison, Runtime, ValueRef};
use spinney_engine::{
    Chunk, Direction, Engine, EngineContext, EngineSnapshot, Found, ScanRequest, SnapshotNumber,
    Write,
};
use spinney_io::sim::SimDisk;
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions};

use crate::reorganize::Why;
use crate::tree::TreeLine;

const KEYSPACE: KeyspaceId = KeyspaceId(1);

/// A keyspace with records of `a` to `f`, in pages only.
fn tree() -> Arc<TreeLine> {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let log =
        LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };
    let log = Log::create(&*disk.at("/db"), "wal", &log).unwrap();
    let context = EngineContext {
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
    };
    let tree = TreeLine::create(context, Lsn::ZERO).unwrap();
    (b'a'..=b'f').for_each(|key| write(&tree, key, Some(0), 0));
    tree.write_back_everything(&mut |_| false).unwrap();
    tree.memory.cache.forget_clean();
    Arc::new(tree)
}

fn write(tree: &TreeLine, key: u8, version: Option<u8>, newest: u64) {
    let value = version.map(|version| [version; 20]);
    let value = value.as_ref().map(|value| ValueRef::inline(value));
    let write = Write { key: &[key], hash: hash_key(KEYSPACE, &[key]), value };
    let prepared = tree.prepare(&write).unwrap();
    // As a batch does, between its append and its end.
    let _announced = tree.context.log.announce();
    tree.apply(&write, prepared, Lsn::ZERO, SnapshotNumber(newest));
}

fn begin(tree: &Arc<TreeLine>, number: u64) -> Box<dyn EngineSnapshot> {
    Arc::clone(tree).begin_snapshot(SnapshotNumber(number)).unwrap()
}

fn thread(tree: &Arc<TreeLine>, body: impl FnOnce(&TreeLine) + Send + 'static) -> JoinHandle<()> {
    let tree = Arc::clone(tree);
    spawn(move || body(&tree))
}

/// Checks that a snapshot has version 0 of `a` to `f` and nothing else.
fn is_first(snapshot: &dyn EngineSnapshot, direction: Direction) {
    for key in [b'a', b'b'] {
        let mut value = Vec::new();
        let found = snapshot.get(&[key], hash_key(KEYSPACE, &[key]), &mut value).unwrap();
        assert_eq!((found, &value[..]), (Found::Inline, &[0; 20][..]), "key {key}");
    }
    let request = ScanRequest {
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        direction,
        records_wanted: 100,
        records_max: 100,
        bytes_max: usize::MAX,
        keys_only: false,
    };
    let mut chunk = Chunk::default();
    snapshot.scan(&request, &mut chunk).unwrap();
    let versions: Vec<u8> = (0..chunk.len()).map(|index| chunk.get(index).1.bytes[0]).collect();
    assert_eq!(versions, [0; 6]);
}

/// S5, S8, S9, S10, S12: a snapshot does not move beside a writer and a write-back, whose records leave
/// the cache and are written again.
#[test]
fn s10_snapshots_beside_a_write_back() {
    check(1500, || {
        let tree = tree();
        let snapshot = begin(&tree, 1);
        write(&tree, b'a', Some(1), 1);
        write(&tree, b'b', None, 1);
        write(&tree, b'g', Some(1), 1);
        let home = thread(&tree, |tree| {
            tree.write_back(&[b"a".to_vec()]).unwrap();
            tree.memory.cache.forget_clean();
            write(tree, b'a', Some(2), 1);
            tree.write_back(&[b"a".to_vec()]).unwrap();
        });
        is_first(&*snapshot, Direction::Forward);
        is_first(&*snapshot, Direction::Reverse);
        home.join().unwrap();
        is_first(&*snapshot, Direction::Forward);
    });
}

/// S5: the same beside a writer whose records are in the cache.
#[test]
fn s05_snapshots_beside_a_writer() {
    check(1500, || {
        let tree = tree();
        for key in [b'a', b'b'] {
            tree.make_resident(&[key], hash_key(KEYSPACE, &[key])).unwrap();
        }
        let snapshot = begin(&tree, 1);
        let writer = thread(&tree, |tree| {
            write(tree, b'a', Some(1), 1);
            write(tree, b'b', None, 1);
            write(tree, b'g', Some(1), 1);
        });
        is_first(&*snapshot, Direction::Forward);
        is_first(&*snapshot, Direction::Reverse);
        writer.join().unwrap();
        is_first(&*snapshot, Direction::Forward);
    });
}

/// S10: the same beside a reorganization, which lets readers go on until its end.
#[test]
fn s10_snapshots_beside_a_reorganization() {
    check(1500, || {
        let tree = tree();
        let snapshot = begin(&tree, 1);
        write(&tree, b'a', Some(1), 1);
        write(&tree, b'b', None, 1);
        let home = thread(&tree, |tree| {
            write(tree, b'g', Some(1), 1);
            {
                let _gate = tree.shape.gate.read();
                tree.reorganize(&tree.shape.index.find(b"a"), Why::Compact).unwrap();
            }
            tree.memory.cache.forget_clean();
            write(tree, b'b', Some(2), 1);
        });
        is_first(&*snapshot, Direction::Reverse);
        is_first(&*snapshot, Direction::Forward);
        home.join().unwrap();
        is_first(&*snapshot, Direction::Forward);
    });
}
