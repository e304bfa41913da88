//! The engine on a simulated disk, beside a model.

mod care;
mod crashes;
mod model;
mod patches;
mod snapshots;
mod threads;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, MemoryBudget, Poison, Result, Runtime, ValueRef};
use spinney_engine::{
    Chunk, Direction, Engine as _, EngineContext, Found, Maintain as _, ScanRequest,
    SnapshotNumber, Write,
};
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions, RecordKind, ReserveFor};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::Iot;

const KEYSPACE: KeyspaceId = KeyspaceId(1);
/// Memory that no test fills but those of full memory.
const MUCH: u64 = 256 << 20;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Record = (Vec<u8>, Vec<u8>);

/// A keyspace on a simulated disk.
pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) engine: Arc<Iot>,
    is_logged: bool,
}

fn context(disk: &SimDisk, memory: u64, logged: bool) -> EngineContext {
    let name = format!("/log{}", disk.files().len());
    for path in ["/db", &name] {
        disk.create_dir(Path::new(path)).ok();
    }
    let of_log = LogOptions { tag: 7, bytes_max: 64 << 20, segment_bytes: 64 << 10, tail_bytes: 0 };
    EngineContext {
        directory: disk.at("/db"),
        name: "k".to_owned(),
        keyspace: KEYSPACE,
        logged,
        double_write: false,
        log: Log::create(&*disk.at(&name), "wal", &of_log).unwrap(),
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(memory).open("k", memory),
        certifier: spinney_engine::Certifier::above(0),
    }
}

impl World {
    pub(crate) fn new(memory: u64, is_logged: bool) -> World {
        World::on(SimDisk::new(7), memory, is_logged)
    }

    pub(crate) fn on(disk: SimDisk, memory: u64, is_logged: bool) -> World {
        let engine = Iot::create(context(&disk, memory, is_logged), Lsn::ZERO).unwrap();
        World::made(disk, engine, is_logged)
    }

    fn made(disk: SimDisk, engine: Iot, is_logged: bool) -> World {
        engine.end_structure_replay().unwrap();
        engine.end_replay().unwrap();
        disk.sync_dir(Path::new("/db")).unwrap();
        World { disk, engine: Arc::new(engine), is_logged }
    }

    /// Opens what a power loss leaves, before anything is replayed.
    pub(crate) fn open(disk: SimDisk, memory: u64, is_logged: bool) -> Result<World> {
        let engine = Iot::open(context(&disk, memory, is_logged))?;
        Ok(World { disk, engine: Arc::new(engine), is_logged })
    }

    /// Opens what a power loss leaves, without a log.
    pub(crate) fn after_crash(&self) -> World {
        let disk = self.disk.crash(CrashMode::LoseAll);
        disk.set_capacity(None);
        let world = World::open(disk, MUCH, false).unwrap();
        world.engine.end_structure_replay().unwrap();
        world.engine.end_replay().unwrap();
        world
    }

    fn next_lsn(&self) -> Lsn {
        if !self.is_logged {
            return Lsn::ZERO;
        }
        let log = &self.engine.context.log;
        let mut room = log.reserve(8, ReserveFor::User).unwrap().expect("the log is long");
        log.append(&mut room, RecordKind::User, &[0; 8])
    }

    /// Writes as a batch of one does that follows snapshot `newest`.
    pub(crate) fn write(
        &self,
        key: &[u8],
        value: Option<ValueRef<'_>>,
        newest: u64,
    ) -> Result<Lsn> {
        let write = Write { key, hash: hash_key(KEYSPACE, key), value };
        let prepared = self.engine.prepare(&write)?;
        let lsn = self.next_lsn();
        self.engine.apply(&write, prepared, lsn, SnapshotNumber(newest));
        Ok(lsn)
    }

    /// Applies a record of the log again.
    pub(crate) fn replay(&self, key: &[u8], value: Option<ValueRef<'_>>) {
        let write = Write { key, hash: hash_key(KEYSPACE, key), value };
        let prepared = self.engine.prepare(&write).unwrap();
        self.engine.apply(&write, prepared, Lsn(1), SnapshotNumber::NONE);
    }

    pub(crate) fn put(&self, key: &[u8], value: &[u8]) {
        self.write(key, Some(ValueRef::inline(value)), 0).unwrap();
    }

    pub(crate) fn remove(&self, key: &[u8]) {
        self.write(key, None, 0).unwrap();
    }

    /// Writes a large value, and returns the pointer to it.
    pub(crate) fn large(&self, bytes: &[u8]) -> Vec<u8> {
        let mut pointer = self.engine.values.allocate(bytes.len() as u64).unwrap();
        self.engine.values.write(&pointer, 0, bytes).unwrap();
        pointer.hash = xxh3_64(bytes);
        self.engine.values.seal(std::slice::from_ref(&pointer)).unwrap();
        let mut encoded = Vec::new();
        pointer.encode(&mut encoded);
        encoded
    }

    pub(crate) fn put_large(&self, key: &[u8], bytes: &[u8]) {
        let pointer = self.large(bytes);
        self.write(key, Some(ValueRef::large(&pointer)), 0).unwrap();
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let found = self.engine.get(key, hash_key(KEYSPACE, key), &mut out).unwrap();
        (found != Found::Absent)
            .then(|| self.whole(ValueRef { bytes: &out, large: found == Found::Large }))
    }

    fn whole(&self, value: ValueRef<'_>) -> Vec<u8> {
        if !value.large {
            return value.bytes.to_vec();
        }
        let pointer = self.engine.values.decode(value.bytes).unwrap();
        let (mut pieces, mut out) = (spinney_engine::LargePieces::new(pointer), Vec::new());
        while pieces.left() > 0 {
            pieces.next(self.engine.store(), &mut out).unwrap();
        }
        out
    }

    /// Reads a range in chunks of `most` records.
    pub(crate) fn range(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        most: usize,
    ) -> Vec<Record> {
        let (mut found, mut near): (Vec<Record>, Option<Vec<u8>>) = (Vec::new(), None);
        loop {
            let from = near.as_deref().map(Bound::Excluded);
            let is_forward = direction == Direction::Forward;
            let request = ScanRequest {
                lower: from.filter(|_| is_forward).unwrap_or(lower),
                upper: from.filter(|_| !is_forward).unwrap_or(upper),
                direction,
                records_wanted: most,
                records_max: most,
                bytes_max: usize::MAX,
                keys_only: false,
            };
            let mut chunk = Chunk::default();
            self.engine.scan(&request, &mut chunk).unwrap();
            for index in 0..chunk.len() {
                let (key, value) = chunk.get(index);
                found.push((key.to_vec(), self.whole(value)));
            }
            if chunk.finished {
                return found;
            }
            assert!(!chunk.is_empty() && chunk.len() <= most);
            near = found.last().map(|(key, _)| key.clone());
        }
    }

    pub(crate) fn all(&self) -> Model {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.range(all, Direction::Forward, 1000).into_iter().collect()
    }

    pub(crate) fn checkpoint(&self) {
        self.checkpoint_beside(|| ()).unwrap();
    }

    pub(crate) fn checkpoint_beside(&self, beside: impl FnOnce()) -> Result<()> {
        let redo = self.engine.context.log.last_lsn();
        let _one_at_a_time = self.engine.publishing.lock();
        self.engine.publish_all(redo, beside)
    }

    pub(crate) fn verify(&self) -> Result<u64> {
        self.engine.verify(&mut |_| Ok(())).map(|report| report.records)
    }

    pub(crate) fn check(&self, model: &Model) {
        for (key, value) in model {
            assert_eq!(self.get(key).as_ref(), Some(value), "{key:?}");
        }
        assert!(self.all() == *model, "a range has what the model has");
        assert_eq!(self.verify().unwrap(), model.len() as u64);
        assert_eq!(self.engine.tree.records(), model.len() as u64);
    }
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key/{number:06}").into_bytes()
}

pub(crate) fn value(number: u64, version: u64) -> Vec<u8> {
    format!("{version}/{number}/{:0>80}", number * 7).into_bytes()
}
