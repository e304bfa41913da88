//! The engine: points, writes, checkpoints and recovery.

use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::{Error, Lsn, Result, Stalls, ValueRef, probe};
use spinney_engine::{
    Capabilities, Chunk, Engine, EngineContext, EngineSnapshot, EngineStats, Found, Maintain as _,
    Prepared, Proving, Resident, Row, ScanRequest, SnapshotNumber, Versioned, Watched, Write,
};
use spinney_extent::values::{LargeList, Owner};
use spinney_extent::{Store, Values};
use spinney_preimages::PreImages;

use crate::gaps::Gaps;
use crate::image::{IMAGE, Payload};
use crate::memory::Memory;
use crate::near::{Near, reserved_in};
use crate::tree::Tree;
use crate::versions::Queue;

/// The row of `iot` in the registry.
pub const ROW: Row = Row {
    name: "iot",
    number: 4,
    capabilities: Iot::CAPABILITIES,
    // Keys and values alone are counted.
    record_overhead: 0,
    create: |context, redo| Ok(Arc::new(Iot::create(context, redo)?) as Arc<dyn Engine>),
    open: |context| Ok(Arc::new(Iot::open(context)?) as Arc<dyn Engine>),
    salvage: |directory, name, keyspace, _| {
        Ok(Box::new(crate::salvage::IotSalvage::open(directory, name, keyspace)?))
    },
    check_option,
    blocks: &[IMAGE],
    purposes: &[],
    proving: Proving {
        options: &[&[]],
        states: [&[("checkpoint", 1), ("leaf image", 1), ("slot", 1)], STATES],
        watched: Watched::Nowhere,
    },
};

/// States in which crashes strike. A split and a collection of versions do no I/O, so none strikes in them; what they leave
/// to a checkpoint is counted.
const STATES: &[(&str, u64)] = &[
    ("checkpoint", 1),
    ("leaf image", 1),
    ("image after a split", 1),
    ("image beside versions", 1),
    ("payload", 1),
    ("slot", 1),
];

/// Records with more bytes of key and value keep the value as a large value. Five of them fit into a leaf, so that a full
/// leaf and one more can be divided between two.
const RECORD_BYTES_MAX: usize = 2560;

/// A keyspace. Thread-safe.
#[derive(Debug)]
pub struct Iot {
    pub(crate) context: EngineContext,
    pub(crate) values: Arc<Values>,
    pub(crate) tree: Tree,
    pub(crate) pre_images: PreImages,
    pub(crate) queue: Queue,
    /// What the newest slot names.
    pub(crate) named: Mutex<Arc<Option<Payload>>>,
    pub(crate) memory: Memory,
    pub(crate) progress: Progress,
    /// Held by whoever publishes a checkpoint.
    pub(crate) publishing: Mutex<()>,
    stalls: Stalls,
}

/// How far checkpoints have come.
#[derive(Debug)]
pub(crate) struct Progress {
    redo: AtomicU64,
    is_dirty: AtomicBool,
    is_replaying: AtomicBool,
    checkpoints: AtomicU64,
    /// Pages of the images that the newest slot names.
    named_pages: AtomicU64,
    /// Images that the opening has not read yet.
    unread: AtomicU64,
}

impl Progress {
    fn new(redo: Lsn) -> Progress {
        Progress {
            redo: AtomicU64::new(redo.0),
            is_dirty: AtomicBool::new(false),
            is_replaying: AtomicBool::new(true),
            checkpoints: AtomicU64::new(0),
            named_pages: AtomicU64::new(0),
            unread: AtomicU64::new(0),
        }
    }

    /// Notes that a slot with this redo LSN was published.
    pub(crate) fn published(&self, redo: Lsn) {
        self.redo.store(redo.0, SeqCst);
        self.checkpoints.fetch_add(1, SeqCst);
    }
}

/// Positions are LSNs.
#[derive(Debug)]
struct ByLsn(EngineContext);

impl Owner for ByLsn {
    fn position(&self) -> u64 {
        self.0.log.last_lsn().0
    }
}

/// Refuses every option: there is none.
fn check_option(name: &str, _value: &str) -> Result<()> {
    Err(Error::invalid(format!("iot has no option {name:?}; there is none")))
}

impl Iot {
    /// What keyspaces can do.
    pub const CAPABILITIES: Capabilities = {
        let mut it = Capabilities::LEAST;
        it.ordered = true;
        it.transactions = true;
        it.snapshots = true;
        it.versions = true;
        it
    };

    /// Makes a new keyspace, empty, whose log records all come after `redo`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn create(context: EngineContext, redo: Lsn) -> Result<Iot> {
        let store =
            Store::create(&*context.directory, &context.name, context.store_options(), redo)?;
        Ok(Self::assemble(context, store, redo, None))
    }

    /// Opens a keyspace at its newest checkpoint.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn open(context: EngineContext) -> Result<Iot> {
        let (store, checkpoint, payload) =
            Store::open(&*context.directory, &context.name, context.store_options())?;
        let payload =
            Payload::decode(&payload).map_err(|error| error.context(context.path().display()))?;
        Ok(Self::assemble(context, store, checkpoint.redo, payload))
    }

    fn assemble(context: EngineContext, store: Store, redo: Lsn, payload: Option<Payload>) -> Iot {
        let mut list =
            payload.as_ref().map_or_else(LargeList::default, |named| named.large.clone());
        if !context.logged {
            // Leaves may have been copied before a value of theirs was superseded. They tell once they are read.
            list.live.append(&mut list.freed);
        }
        let store = Arc::new(store);
        let pre_images = PreImages::without_notes(context.clone(), store.clone());
        let owner = Box::new(ByLsn(context.clone()));
        let iot = Iot {
            values: Values::new(store, RECORD_BYTES_MAX, owner, list),
            tree: Tree::new(Gaps::new(context.certifier.clone(), context.keyspace.0)),
            pre_images,
            queue: Queue::default(),
            progress: Progress::new(redo),
            named: Mutex::new(Arc::new(None)),
            memory: Memory::default(),
            publishing: Mutex::new(()),
            stalls: Stalls::default(),
            context,
        };
        iot.set_unread(payload.as_ref().map_or(0, |payload| payload.places.len() as u64));
        iot.set_named(payload);
        iot.follow_memory();
        iot
    }

    /// Notes the number of images that are still to be read.
    pub(crate) fn set_unread(&self, images: u64) {
        self.progress.unread.store(images, SeqCst);
    }

    pub(crate) fn unread(&self) -> u64 {
        self.progress.unread.load(SeqCst)
    }

    /// Notes what the newest slot names.
    pub(crate) fn set_named(&self, payload: Option<Payload>) {
        let pages = payload.as_ref().map_or(0, Payload::pages);
        self.progress.named_pages.store(pages, SeqCst);
        *self.named.lock() = Arc::new(payload);
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        self.values.store()
    }

    /// Pages of the images that the newest slot names.
    pub(crate) fn named_pages(&self) -> u64 {
        self.progress.named_pages.load(SeqCst)
    }

    pub(crate) fn set_dirty(&self, is_dirty: bool) {
        self.progress.is_dirty.store(is_dirty, SeqCst);
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.progress.is_replaying.load(SeqCst)
    }
}

impl Engine for Iot {
    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    fn replays_in_bulk(&self) -> bool {
        true
    }

    fn get(&self, key: &[u8], _hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        Ok(self.tree.get(key, out))
    }

    fn get_resident(&self, key: &[u8], _hash: u64, out: &mut Vec<u8>) -> Resident {
        match self.tree.get(key, out) {
            Found::Inline => Resident::Present,
            Found::Large => Resident::Large,
            Found::Absent => Resident::Absent,
        }
    }

    fn prepare(&self, write: &Write<'_>) -> Result<Prepared> {
        self.context.poison.check()?;
        self.pre_images.relieve()?;
        let Some(value) = write.value else { return Ok(Prepared::default()) };
        let reserved = self.reserve((write.key.len() + value.len()) as u64)?;
        Ok(Prepared([reserved, 0]))
    }

    fn cancel(&self, _write: &Write<'_>, prepared: Prepared) {
        self.memory.release(reserved_in(prepared));
    }

    fn apply(&self, write: &Write<'_>, prepared: Prepared, _lsn: Lsn, newest: SnapshotNumber) {
        self.keep_before_put(write, newest);
        if let Some(pointer) = write.value.filter(|value| value.large) {
            self.values.applied(pointer.bytes, 0);
        }
        let near = Near::noted_in(prepared);
        let replaced = match write.value {
            Some(value) => self.tree.put(write.key, value, near),
            None => self.tree.remove(write.key, near),
        };
        self.cancel(write, prepared);
        self.set_dirty(true);
        if write.value.is_none() && replaced.was_there {
            self.memory.count_removed();
        }
        // A record that is replayed twice replaces itself.
        let is_same = |value: ValueRef<'_>| value.bytes == replaced.pointer;
        if !replaced.pointer.is_empty() && !write.value.is_some_and(is_same) {
            self.values.superseded(&replaced.pointer);
        }
    }

    fn make_resident(&self, _key: &[u8], _hash: u64) -> Result<()> {
        Ok(())
    }

    fn versioned(&self) -> Option<&dyn Versioned> {
        Some(self)
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.tree.scan(request, chunk);
        Ok(())
    }

    fn checkpoint(&self, redo: Lsn) -> Result<()> {
        if self.is_replaying() {
            return Ok(());
        }
        let _inside = probe::enter("checkpoint");
        let _one_at_a_time = self.publishing.lock();
        self.context.poison.check()?;
        self.set_dirty(false);
        self.publish_all(redo, || ()).inspect_err(|_| self.set_dirty(true))
    }

    fn checkpoint_slowly(&self, redo: Lsn, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        if self.is_replaying() {
            return Ok(());
        }
        let _inside = probe::enter("checkpoint");
        self.set_dirty(false);
        self.publish_slowly(redo, rest).inspect_err(|_| self.set_dirty(true))
    }

    fn is_dirty(&self) -> bool {
        self.progress.is_dirty.load(SeqCst)
    }

    fn redo(&self) -> Lsn {
        Lsn(self.progress.redo.load(SeqCst))
    }

    fn values(&self) -> &Arc<Values> {
        &self.values
    }

    fn replay_structure(&self, _lsn: Lsn, _payload: &[u8]) -> Result<()> {
        let path = self.context.path();
        Err(Error::corruption(path.display(), 0, "no structure records", "one in the log"))
    }

    fn end_structure_replay(&self) -> Result<()> {
        self.load()
    }

    fn end_replay(&self) -> Result<()> {
        self.progress.is_replaying.store(false, SeqCst);
        self.follow_memory();
        if self.used() > self.context.memory.target() {
            // The replay refuses nothing, and may have divided leaves elsewhere.
            if self.tree.join_some(&[], usize::MAX).joined > 0 {
                self.set_dirty(true);
            }
            self.follow_memory();
        }
        Ok(())
    }

    fn set_option(&self, name: &str, value: &str) -> Result<()> {
        check_option(name, value)
    }

    fn begin_snapshot(self: Arc<Self>, number: SnapshotNumber) -> Result<Box<dyn EngineSnapshot>> {
        Ok(spinney_preimages::begin(self, number))
    }

    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        self.tree.approximate_bytes(lower, upper)
    }

    fn stats(&self) -> EngineStats {
        let mut stats = EngineStats::of(&self.values, &self.stalls);
        stats.pre_images = self.pre_images.stats();
        stats.records_cached = self.tree.records();
        stats.cache_bytes = self.tree.bytes();
        stats.pages = self.store().payload_pages() + self.named_pages();
        stats.live_bytes = self.data_bytes();
        stats.checkpoints = self.progress.checkpoints.load(SeqCst);
        stats
    }
}
