//! The engine on a simulated disk: what its images hold, and what becomes of them.

mod images;
mod memory;
mod tiers;
mod warm;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use spinney_base::{Error, KeyspaceId, Lsn, MemoryBudget, Poison, Result, Runtime, ValueRef};
use spinney_engine::{Engine as _, EngineContext, Found, Maintain as _, SnapshotNumber, Write};
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::Tiered;

const KEYSPACE: KeyspaceId = KeyspaceId(1);

/// A keyspace on a simulated disk. It has no log: it is what its newest checkpoint says.
pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) engine: Tiered,
}

fn context(disk: &SimDisk, memory: u64) -> EngineContext {
    let name = format!("/log{}", disk.files().len());
    for path in ["/db", &name] {
        disk.create_dir(Path::new(path)).ok();
    }
    let of_log =
        LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };
    EngineContext {
        directory: disk.at("/db"),
        name: "k".to_owned(),
        keyspace: KEYSPACE,
        logged: false,
        double_write: false,
        log: Log::create(&*disk.at(&name), "wal", &of_log).unwrap(),
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(memory).open("k", memory),
        certifier: spinney_engine::Certifier::above(0),
    }
}

impl World {
    pub(crate) fn new(memory: u64) -> World {
        let disk = SimDisk::new(7);
        let engine = Tiered::create(context(&disk, memory), Lsn::ZERO).unwrap();
        engine.end_structure_replay().unwrap();
        engine.end_replay().unwrap();
        disk.sync_dir(Path::new("/db")).unwrap();
        World { disk, engine }
    }

    /// Opens what a power loss leaves.
    pub(crate) fn after_crash(&self, memory: u64) -> Result<World> {
        World::open(self.disk.crash(CrashMode::LoseAll), memory)
    }

    pub(crate) fn open(disk: SimDisk, memory: u64) -> Result<World> {
        let engine = Tiered::open(context(&disk, memory))?;
        engine.end_structure_replay()?;
        engine.end_replay()?;
        Ok(World { disk, engine })
    }

    fn write(&self, key: &[u8], value: Option<ValueRef<'_>>) {
        let write = Write { key, hash: hash_key(KEYSPACE, key), value };
        let prepared = self.engine.prepare(&write).unwrap();
        self.engine.apply(&write, prepared, Lsn::ZERO, SnapshotNumber::NONE);
    }

    pub(crate) fn put(&self, key: &[u8], value: &[u8]) {
        self.write(key, Some(ValueRef::inline(value)));
    }

    pub(crate) fn remove(&self, key: &[u8]) {
        self.write(key, None);
    }

    /// Puts a large value of this byte.
    pub(crate) fn put_large(&self, key: &[u8], byte: u8) {
        let bytes = vec![byte; 9000];
        let mut pointer = self.engine.values.allocate(bytes.len() as u64).unwrap();
        self.engine.values.write(&pointer, 0, &bytes).unwrap();
        pointer.hash = xxh3_64(&bytes);
        self.engine.values.seal(std::slice::from_ref(&pointer)).unwrap();
        let mut encoded = Vec::new();
        pointer.encode(&mut encoded);
        self.write(key, Some(ValueRef { bytes: &encoded, large: true }));
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match self.engine.get(key, hash_key(KEYSPACE, key), &mut out).unwrap() {
            Found::Absent => None,
            Found::Inline => Some(out),
            Found::Large => {
                let pointer = self.engine.values.decode(&out).unwrap();
                let mut pieces = spinney_engine::LargePieces::new(pointer);
                out.clear();
                while pieces.left() > 0 {
                    pieces.next(self.engine.store(), &mut out).unwrap();
                }
                Some(out)
            }
        }
    }

    pub(crate) fn checkpoint(&self) {
        self.checkpoint_beside(|| ()).unwrap();
    }

    pub(crate) fn checkpoint_beside(&self, beside: impl FnOnce()) -> Result<(), Error> {
        let _one_at_a_time = self.engine.publishing.lock();
        self.engine.publish_all(Lsn::ZERO, beside)
    }

    pub(crate) fn verify(&self) -> Result<u64> {
        self.engine.verify(&mut |_| Ok(())).map(|report| report.records)
    }

    pub(crate) fn check(&self, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
        for (key, value) in model {
            assert_eq!(self.get(key).as_ref(), Some(value), "{key:?}");
        }
        assert_eq!(self.verify().unwrap(), model.len() as u64);
    }

    /// Lets everything leave the tier, dirty or not.
    pub(crate) fn empty_tier(&self) {
        self.engine.bring_all_home().unwrap();
        self.engine.hot.let_all_leave();
        assert!(self.engine.hot.is_empty());
    }
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key/{number:06}").into_bytes()
}

pub(crate) fn value(number: u64, version: u64) -> Vec<u8> {
    format!("{version}/{number}/{:0>80}", number * 7).into_bytes()
}
