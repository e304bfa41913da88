//! What becomes of a value that a page names no more when the log has no room to say so.

use std::path::Path;
use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, MemoryBudget, Poison, Runtime, ValueRef};
use spinney_engine::{Engine, EngineContext, SnapshotNumber, Write};
use spinney_extent::LargePointer;
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions, RecordKind, ReserveFor};

use crate::tree::TreeLine;

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const LOG: LogOptions =
    LogOptions { tag: 7, bytes_max: 16 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };

fn context(disk: &SimDisk, log: Arc<Log>) -> EngineContext {
    EngineContext {
        directory: disk.at("/db"),
        name: "keyspace".into(),
        keyspace: KEYSPACE,
        logged: true,
        double_write: false,
        log,
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(1 << 20).open("keyspace", 1 << 20),
        certifier: spinney_engine::Certifier::above(0),
    }
}

fn apply(tree: &TreeLine, key: &[u8], pointer: &LargePointer) {
    let mut bytes = Vec::new();
    pointer.encode(&mut bytes);
    let value = Some(ValueRef { bytes: &bytes, large: true });
    let write = Write { key, hash: hash_key(KEYSPACE, key), value };
    let prepared = tree.prepare(&write).unwrap();
    tree.apply(&write, prepared, Lsn::ZERO, SnapshotNumber::NONE);
}

/// Puts a large value, as a database does, whose bytes do not matter.
fn put(tree: &TreeLine, key: &[u8]) -> LargePointer {
    let pointer = tree.large.allocate(10_000).unwrap();
    tree.large.seal(std::slice::from_ref(&pointer)).unwrap();
    let log = &tree.context.log;
    let mut room = log.reserve(1, ReserveFor::User).unwrap().unwrap();
    log.append(&mut room, RecordKind::User, b"1");
    apply(tree, key, &pointer);
    pointer
}

/// P17: pages are written back although the log is full, and the power fails before the checkpoint
/// that they were written for: the values that they named before have no owner, although the
/// checkpoint before names them and no record of the log does.
#[test]
fn p17_a_full_log_leaves_no_leak() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let log = Log::create(&*disk.at("/db"), "wal", &LOG).unwrap();
    let tree = TreeLine::create(context(&disk, log.clone()), Lsn::ZERO).unwrap();
    put(&tree, b"a");
    put(&tree, b"b");
    tree.checkpoint(log.last_lsn()).unwrap();
    // So that a put does not see what it replaces.
    tree.memory.cache.forget_clean();
    let new = put(&tree, b"a");
    let mut taken = Vec::new();
    for bytes in [8192, 1] {
        while let Some(room) = log.reserve(bytes, ReserveFor::Internal).unwrap() {
            taken.push(room);
        }
    }
    tree.write_back_everything(&mut |_| false).unwrap();
    assert_eq!(tree.large.live_pages(), 6, "two values of three pages");
    drop(taken);
    let image = disk.crash(CrashMode::KeepAll);
    drop((tree, log));

    let (log, recovered) = Log::open(&*image.at("/db"), "wal", &LOG).unwrap();
    let tree = TreeLine::open(context(&image, log.clone())).unwrap();
    recovered
        .replay(recovered.first_lsn(), |record| match record.kind {
            RecordKind::Structure(_) => tree.replay_structure(record.lsn, record.payload),
            RecordKind::User => Ok(()),
        })
        .unwrap();
    let mut bytes = Vec::new();
    new.encode(&mut bytes);
    tree.large.replay(&bytes).unwrap();
    tree.end_structure_replay().unwrap();
    apply(&tree, b"a", &new);
    drop(recovered);
    for _ in 0..2 {
        tree.checkpoint(log.last_lsn()).unwrap();
    }
    let counts = tree.large.counts();
    assert_eq!((counts.live_pages, counts.freed_pages), (6, 0));
}
