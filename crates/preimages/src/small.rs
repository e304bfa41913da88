//! A small engine for tests: a record cache over one locked page. Tests have it do something between
//! the steps of a reader.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::shim::{Mutex, MutexGuard, RwLock};
use spinney_base::{
    Error, ErrorKind, KeyspaceId, Lsn, MemoryBudget, Next, Poison, Result, Runtime, ValueRef,
};
use spinney_engine::{
    Bulk, Capabilities, Chunk, Compacted, Direction, Engine, EngineContext, EngineSnapshot,
    EngineStats, Found, KeyspaceBackup, Maintain, Prepared, Resident, ScanRequest, Scrubbed,
    SnapshotNumber, Store, VerifyReport, Watch, Write, overlay,
};
use spinney_extent::Values;
use spinney_extent::values::{LargeList, Owner};
use spinney_io::Directory;
use spinney_io::sim::SimDisk;
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions};

use crate::keep::{Known, PreImages};
use crate::marks::Notes;
use crate::snapshot::{InPlace, begin};

pub(crate) const KEYSPACE: KeyspaceId = KeyspaceId(1);

/// Where a test may have something done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Before a lookup.
    Get,
    /// Between the look at a mark and the lock of the page.
    GetBehind,
    /// Before a scan.
    Scan,
    /// After a scan.
    Scanned,
}

type Deed = Box<dyn FnOnce(&Small) + Send>;

#[derive(Clone, Debug)]
struct Record {
    value: Option<Vec<u8>>,
    is_dirty: bool,
    note: u8,
}

#[derive(Debug, Default)]
struct Records(Mutex<BTreeMap<Vec<u8>, Record>>);

impl Records {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Record>> {
        self.0.lock()
    }
}

impl Notes for Records {
    fn note(&self, key: &[u8], _hash: u64) -> u8 {
        self.lock().get(key).filter(|record| record.is_dirty).map_or(0, |record| record.note)
    }

    fn clear_note(&self, key: &[u8], _hash: u64, note: u8) -> bool {
        let mut records = self.lock();
        let record = records.get_mut(key).filter(|record| record.is_dirty && record.note == note);
        record.map(|record| record.note = 0).is_some()
    }
}

/// What a caller does at the steps of a reader.
#[derive(Default)]
struct Deeds(Mutex<Vec<(Step, Deed)>>);

impl std::fmt::Debug for Deeds {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Deeds")
    }
}

#[derive(Debug)]
pub(crate) struct Small {
    pub(crate) images: PreImages,
    values: Arc<Values>,
    cache: Arc<Records>,
    page: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    deeds: Deeds,
}

#[derive(Debug)]
struct Nobody;

impl Owner for Nobody {}

pub(crate) fn hash(key: &[u8]) -> u64 {
    hash_key(KEYSPACE, key)
}

pub(crate) fn context(disk: &SimDisk) -> EngineContext {
    disk.create_dir(Path::new("/db")).unwrap();
    let log = LogOptions { tag: 7, bytes_max: 1 << 20, segment_bytes: 1 << 16, tail_bytes: 0 };
    EngineContext {
        directory: disk.at("/db"),
        name: "keyspace".into(),
        keyspace: KEYSPACE,
        logged: false,
        double_write: false,
        log: Log::create(&*disk.at("/db"), "wal", &log).unwrap(),
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(1 << 20).open("keyspace", 1 << 20),
        certifier: spinney_engine::Certifier::above(0),
    }
}

pub(crate) fn store(context: &EngineContext) -> Arc<Store> {
    let options = context.store_options();
    Arc::new(Store::create(&*context.directory, &context.name, options, Lsn::ZERO).unwrap())
}

fn unsupported<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "a small engine has none"))
}

impl Small {
    pub(crate) fn new() -> Arc<Small> {
        let context = context(&SimDisk::new(1));
        let store = store(&context);
        let cache = Arc::new(Records::default());
        Arc::new(Small {
            images: PreImages::new(context, store.clone(), cache.clone()),
            values: Values::new(store, 1 << 10, Box::new(Nobody), LargeList::default()),
            cache,
            page: RwLock::new(BTreeMap::new()),
            deeds: Deeds::default(),
        })
    }

    /// Has the page hold `name` and `0` for each of these keys.
    pub(crate) fn with(keys: &[&str]) -> Arc<Small> {
        let small = Small::new();
        for key in keys {
            small.page.write().insert(key.as_bytes().to_vec(), format!("{key}0").into());
        }
        small
    }

    /// Does something at the next such step.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn at(&self, step: Step, deed: impl FnOnce(&Small) + Send + 'static) {
        self.deeds.0.lock().push((step, Box::new(deed)));
    }

    fn reached(&self, step: Step) {
        let deed = {
            let mut deeds = self.deeds.0.lock();
            let next = deeds.iter().position(|(of, _)| *of == step);
            next.map(|next| deeds.remove(next).1)
        };
        if let Some(deed) = deed {
            deed(self);
        }
    }

    pub(crate) fn begin(self: &Arc<Self>, number: u64) -> Box<dyn EngineSnapshot> {
        begin(Arc::clone(self), SnapshotNumber(number))
    }

    /// Writes as a batch with this number does.
    pub(crate) fn put(&self, newest: u64, key: &str, value: &str) {
        self.write(newest, key, Some(value));
    }

    pub(crate) fn remove(&self, newest: u64, key: &str) {
        self.write(newest, key, None);
    }

    fn write(&self, newest: u64, key: &str, value: Option<&str>) {
        let value = value.map(|value| ValueRef::inline(value.as_bytes()));
        let write = Write { key: key.as_bytes(), hash: hash(key.as_bytes()), value };
        self.apply(&write, Prepared::default(), Lsn::ZERO, SnapshotNumber(newest));
    }

    /// Brings a key's record into the cache.
    pub(crate) fn admit(&self, key: &str) {
        let page = self.page.read();
        let value = page.get(key.as_bytes()).cloned();
        let record = Record { value, is_dirty: false, note: 0 };
        self.cache.lock().entry(key.as_bytes().to_vec()).or_insert(record);
    }

    /// Lets clean records go.
    pub(crate) fn evict(&self) {
        self.cache.lock().retain(|_, record| record.is_dirty);
    }

    /// Writes all dirty records to the page.
    pub(crate) fn write_back(&self) {
        let mut page = self.page.write();
        let taken: Vec<_> = {
            let cache = self.cache.lock();
            let dirty = cache.iter().filter(|(_, record)| record.is_dirty);
            dirty.map(|(key, record)| (key.clone(), record.value.clone())).collect()
        };
        for (key, value) in taken {
            let old = page.get(&key).map(|value| ValueRef::inline(value));
            self.images.bring_home(&key, hash(&key), old);
            match &value {
                Some(value) => _ = page.insert(key.clone(), value.clone()),
                None => _ = page.remove(&key),
            }
            let mut cache = self.cache.lock();
            let record = cache.get_mut(&key).expect("dirty records stay");
            // Unless it was changed meanwhile.
            record.is_dirty = record.value != value;
        }
    }

    /// Writes the largest map out. Returns whether there was one that pays.
    pub(crate) fn spill(&self) -> bool {
        let alone = self.images.spilling.lock();
        self.images.spill(&alone).unwrap()
    }

    fn cached(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.cache.lock().get(key).map(|record| record.value.clone())
    }
}

pub(crate) fn get(snapshot: &dyn EngineSnapshot, key: &str) -> Option<String> {
    let mut value = Vec::new();
    let found = snapshot.get(key.as_bytes(), hash(key.as_bytes()), &mut value).unwrap();
    let value = String::from_utf8(value).expect("values are text");
    (found != Found::Absent).then_some(value)
}

/// All values of a snapshot, in the direction, in chunks of `most`.
pub(crate) fn scan(snapshot: &dyn EngineSnapshot, direction: Direction, most: usize) -> String {
    let mut values = Vec::new();
    let mut from = Some(Bound::Unbounded);
    while let Some(near) = from {
        let near = near.as_ref().map(Vec::as_slice);
        let forward = direction == Direction::Forward;
        let request = ScanRequest {
            lower: if forward { near } else { Bound::Unbounded },
            upper: if forward { Bound::Unbounded } else { near },
            direction,
            records_wanted: most,
            records_max: most,
            bytes_max: usize::MAX,
            keys_only: false,
        };
        let mut chunk = Chunk::default();
        snapshot.scan(&request, &mut chunk).unwrap();
        for index in 0..chunk.len() {
            let value = chunk.get(index).1.bytes.to_vec();
            values.push(String::from_utf8(value).expect("values are text"));
        }
        from = overlay::beyond(&mut chunk);
    }
    if direction == Direction::Reverse {
        values.reverse();
    }
    values.join(" ")
}

fn found(value: Option<Vec<u8>>, out: &mut Vec<u8>) -> Found {
    match value {
        None => Found::Absent,
        Some(value) => {
            out.extend_from_slice(&value);
            Found::Inline
        }
    }
}

impl InPlace for Small {
    fn pre_images(&self) -> &PreImages {
        &self.images
    }

    fn get_behind(
        &self,
        key: &[u8],
        _hash: u64,
        holds: &dyn Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>> {
        self.reached(Step::GetBehind);
        let page = self.page.read();
        Ok(holds().then(|| found(page.get(key).cloned(), out)))
    }

    fn scan_behind(
        &self,
        request: &ScanRequest<'_>,
        hidden: &dyn Fn(&[u8]) -> bool,
        chunk: &mut Chunk,
    ) -> Result<()> {
        self.reached(Step::Scan);
        {
            let page = self.page.read();
            let mut records: BTreeMap<Vec<u8>, Option<Vec<u8>>> =
                page.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
            let cache = self.cache.lock().clone();
            for (key, record) in cache {
                if record.is_dirty && !hidden(&key) {
                    records.insert(key, record.value);
                }
            }
            let mut records: Vec<_> = records.into_iter().collect();
            if request.direction == Direction::Reverse {
                records.reverse();
            }
            chunk.finished = true;
            for (key, value) in records {
                let Some(value) = value.filter(|_| request.contains(&key)) else { continue };
                if chunk.len() == request.records_max {
                    chunk.finished = false;
                    break;
                }
                chunk.push(&[&key], request.delivered(ValueRef::inline(&value)));
            }
        }
        self.reached(Step::Scanned);
        Ok(())
    }
}

impl Engine for Small {
    fn capabilities(&self) -> Capabilities {
        Capabilities::LEAST
    }

    fn get(&self, key: &[u8], _hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        self.reached(Step::Get);
        if let Some(value) = self.cached(key) {
            return Ok(found(value, out));
        }
        let page = self.page.read();
        let value = self.cached(key).unwrap_or_else(|| page.get(key).cloned());
        Ok(found(value, out))
    }

    fn get_resident(&self, _key: &[u8], _hash: u64, _out: &mut Vec<u8>) -> Resident {
        Resident::Unknown
    }

    fn prepare(&self, _write: &Write<'_>) -> Result<Prepared> {
        Ok(Prepared::default())
    }

    fn cancel(&self, _write: &Write<'_>, _prepared: Prepared) {}

    fn apply(&self, write: &Write<'_>, _prepared: Prepared, _lsn: Lsn, newest: SnapshotNumber) {
        let know = |old: &mut Vec<u8>| match self.cached(write.key) {
            None => Known::Unknown,
            Some(None) => Known::Absent,
            Some(Some(value)) => {
                old.extend_from_slice(&value);
                Known::Value
            }
        };
        let note = self.images.keep(newest, (write.key, write.hash), know);
        let value = write.value.map(|value| value.bytes.to_vec());
        let mut cache = self.cache.lock();
        let before = cache.get(write.key).filter(|before| before.is_dirty);
        let note = before.map_or(note, |before| before.note);
        cache.insert(write.key.to_vec(), Record { value, is_dirty: true, note });
    }

    fn make_resident(&self, _key: &[u8], _hash: u64) -> Result<()> {
        Ok(())
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.scan_behind(request, &|_| false, chunk)
    }

    fn checkpoint(&self, _redo: Lsn) -> Result<()> {
        unsupported()
    }

    fn is_dirty(&self) -> bool {
        false
    }

    fn redo(&self) -> Lsn {
        Lsn::ZERO
    }

    fn values(&self) -> &Arc<Values> {
        &self.values
    }

    fn replay_structure(&self, _lsn: Lsn, _payload: &[u8]) -> Result<()> {
        unsupported()
    }

    fn end_structure_replay(&self) -> Result<()> {
        unsupported()
    }

    fn set_option(&self, _name: &str, _value: &str) -> Result<()> {
        unsupported()
    }

    fn approximate_bytes(&self, _lower: &[u8], _upper: Option<&[u8]>) -> u64 {
        0
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

impl Maintain for Small {
    fn background(&self) -> Result<Next> {
        Ok(Next::Wait(Duration::from_secs(1)))
    }

    fn memory_floor(&self) -> u64 {
        0
    }

    fn takes_wish(&self) -> bool {
        false
    }

    fn verify(&self, _watch: &mut Watch<'_>) -> Result<VerifyReport> {
        unsupported()
    }

    fn bulk(&self) -> Result<Box<dyn Bulk + '_>> {
        unsupported()
    }

    fn scrub(&self, _from: &[u8]) -> Scrubbed {
        Scrubbed::default()
    }

    fn compact(&self, _from: &[u8], _upper: Bound<&[u8]>) -> Result<Compacted> {
        unsupported()
    }

    fn compact_bytes(&self, _from: &[u8], _upper: Bound<&[u8]>) -> u64 {
        0
    }

    fn begin_backup(
        &self,
        _directory: &dyn Directory,
        _name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>> {
        unsupported()
    }

    fn data_bytes(&self) -> u64 {
        0
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }

    fn step_bytes(&self) -> u64 {
        0
    }

    fn make_room(&self) -> Result<()> {
        unsupported()
    }
}
