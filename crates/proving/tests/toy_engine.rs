//! The toy engine of `docs/adding-an-engine.md`, driven through the contract alone, without a database.
//! `toy-engine/add` gives it a row in a copy of the house and runs the whole suite on it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, MemoryBudget, Poison, Runtime, ValueRef};
use spinney_engine::{
    Chunk, Direction, Engine, EngineContext, Found, Row, ScanRequest, SnapshotNumber, Write,
};
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_io::{Disk as _, IfMissing};
use spinney_wal::{Log, LogOptions};

#[path = "../toy-engine/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a crate of its own in a house that has it")]
mod toy;

const ROW: &Row = &toy::ROW;

fn context(disk: &SimDisk, is_new: bool) -> EngineContext {
    let directory = disk.directory(Path::new("/db"), IfMissing::Create).unwrap();
    let options = LogOptions::sized(7, 1 << 20);
    let log = if is_new {
        Log::create(&*directory, "wal", &options).unwrap()
    } else {
        Log::open(&*directory, "wal", &options).unwrap().0
    };
    EngineContext {
        directory,
        name: "keyspace-00000001.spn".to_owned(),
        keyspace: KeyspaceId(1),
        logged: true,
        double_write: true,
        log,
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(1 << 20).open("toy", 1 << 20),
        certifier: spinney_engine::Certifier::above(0),
    }
}

fn write(engine: &dyn Engine, key: &[u8], value: Option<&[u8]>) {
    let write = Write { key, hash: 0, value: value.map(ValueRef::inline) };
    engine.check(&write).unwrap();
    engine.enter().unwrap();
    let prepared = engine.prepare(&write).unwrap();
    engine.apply(&write, prepared, Lsn(1), SnapshotNumber::NONE);
    engine.leave();
}

fn all(engine: &dyn Engine, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut chunk = Chunk::default();
    let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
    let request = ScanRequest {
        lower,
        upper,
        direction,
        records_wanted: usize::MAX,
        records_max: usize::MAX,
        bytes_max: usize::MAX,
        keys_only: false,
    };
    engine.scan(&request, &mut chunk).unwrap();
    assert!(chunk.finished);
    for index in 0..chunk.len() {
        let (key, value) = chunk.get(index);
        found.push((key.to_vec(), value.bytes.to_vec()));
    }
    found
}

#[test]
fn a_checkpoint_survives_a_crash() {
    let disk = SimDisk::new(1);
    let engine = (ROW.create)(context(&disk, true), Lsn::ZERO).unwrap();
    engine.end_structure_replay().unwrap();
    engine.end_replay().unwrap();
    let mut model = BTreeMap::new();
    for number in 0..1_000u32 {
        let (key, value) = (number.to_be_bytes().to_vec(), vec![number as u8; 40]);
        write(&*engine, &key, Some(&value));
        model.insert(key, value);
    }
    for number in (0..1_000u32).step_by(3) {
        write(&*engine, &number.to_be_bytes(), None);
        model.remove(&number.to_be_bytes()[..]);
    }
    assert!(engine.is_dirty());
    engine.checkpoint(Lsn(1)).unwrap();
    assert!(!engine.is_dirty());
    write(&*engine, b"lost", Some(b"not in a checkpoint"));
    let report = engine.verify(&mut |_| Ok(())).unwrap();
    assert_eq!(report.records, model.len() as u64 + 1);
    drop(engine);
    disk.directory(Path::new("/db"), IfMissing::Fail).unwrap().sync().unwrap();
    let disk = disk.crash(CrashMode::LoseAll);
    let engine = (ROW.open)(context(&disk, false)).unwrap();
    engine.end_structure_replay().unwrap();
    engine.end_replay().unwrap();
    assert_eq!(engine.redo(), Lsn(1));
    let expected: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(all(&*engine, Direction::Forward), expected);
    assert!(all(&*engine, Direction::Reverse).into_iter().rev().eq(expected));
    let mut out = Vec::new();
    assert_eq!(engine.get(&1u32.to_be_bytes(), 0, &mut out).unwrap(), Found::Inline);
    assert_eq!(out, [1; 40]);
    assert_eq!(engine.get(&3u32.to_be_bytes(), 0, &mut out).unwrap(), Found::Absent);
    engine.verify(&mut |_| Ok(())).unwrap();
    let mut seen = engine.scrub(&[]);
    while let Some(next) = seen.next.take() {
        assert!(seen.damaged.is_empty(), "{:?}", seen.damaged);
        seen = engine.scrub(&next);
    }
}

#[test]
fn a_salvage_shows_the_newest_checkpoint() {
    let disk = SimDisk::new(2);
    let context = context(&disk, true);
    let directory = context.directory.clone();
    let engine = (ROW.create)(context, Lsn::ZERO).unwrap();
    engine.end_structure_replay().unwrap();
    engine.end_replay().unwrap();
    write(&*engine, b"key", Some(b"value"));
    engine.checkpoint(Lsn(1)).unwrap();
    drop(engine);
    let open = || (ROW.salvage)(&*directory, "keyspace-00000001.spn", KeyspaceId(1), true).unwrap();
    let mut salvage = open();
    salvage.read_pages().unwrap();
    let mut shown = Vec::new();
    let show = &mut |_: &spinney_extent::Store, key: &[u8], value: Option<ValueRef<'_>>| {
        shown.push((key.to_vec(), value.unwrap().bytes.to_vec()));
        Ok(())
    };
    salvage.records(show).unwrap();
    assert_eq!(shown, [(b"key".to_vec(), b"value".to_vec())]);
    assert_eq!(salvage.redo(), Some(Lsn(1)));
}

#[test]
fn it_has_no_options() {
    assert!((ROW.check_option)("colour", "red").is_err());
    assert_eq!(ROW.name, "toy");
}
