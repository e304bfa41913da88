//! The engine: points, writes, checkpoints and recovery.

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};

use spinney_access::{BTree, TreeRoot};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::{Error, Lsn, Result, Stalls, probe};
use spinney_engine::{
    Capabilities, Chunk, Engine, EngineContext, EngineSnapshot, EngineStats, Found, Maintain as _,
    Prepared, Proving, Resident, Row, ScanRequest, SnapshotNumber, Watched, Write,
};
use spinney_extent::values::{LargeList, Owner};
use spinney_extent::{BlockKind, Checkpoint, Store, Values};
use spinney_hot::{Cached, HotTier, Replaced};
use spinney_preimages::PreImages;

use crate::image::Image;
use crate::images::Images;
use crate::options::{self, Choice, check_option};
use crate::pages::{ORDER_DEFAULT, Pages};
use crate::payload::Payload;
use crate::promote::Chosen;
use crate::run::{self, Run};
use crate::sweep::Sweeps;
use crate::warm::Warm;

/// The row of `2btree` in the registry.
pub const ROW: Row = Row {
    name: "2btree",
    number: 3,
    capabilities: Tiered::CAPABILITIES,
    record_overhead: 12,
    create: |context, redo| Ok(Arc::new(Tiered::create(context, redo)?) as Arc<dyn Engine>),
    open: |context| Ok(Arc::new(Tiered::open(context)?) as Arc<dyn Engine>),
    salvage: |directory, name, keyspace, _| {
        Ok(Box::new(crate::salvage::TieredSalvage::open(directory, name, keyspace)?))
    },
    check_option,
    blocks: &[BlockKind::wide(8, "tree leaf"), BlockKind::wide(9, "inner node"), run::IMAGE],
    purposes: &[],
    proving: Proving {
        options: &[
            &[],
            &[("tiers", "1")],
            &[("promotion", "1")],
            &[("image", "dirty"), ("tiering", "exclusive"), ("promotion", "1")],
            &[("tier", "40"), ("promotion", "0.5"), ("page", "16")],
        ],
        states: [
            &[("checkpoint", 1), ("sweep", 1), ("reshape", 1), ("image", 1)],
            &[("checkpoint", 1), ("sweep", 1), ("repack", 1), ("image", 1)],
        ],
        watched: Watched::Pages,
    },
};

/// Records with more bytes of key and value keep the value as a large value.
const RECORD_BYTES_MAX: usize = 1300;
/// Least memory of the tier, in bytes.
pub(crate) const TIER_BYTES_MIN: u64 = 192 << 10;
/// A keyspace. Thread-safe.
#[derive(Debug)]
pub struct Tiered {
    pub(crate) context: EngineContext,
    pub(crate) values: Arc<Values>,
    pub(crate) pages: Pages,
    pub(crate) hot: HotTier,
    pub(crate) pre_images: PreImages,
    /// Made when the first record is merged; replaced by a bulk load.
    pub(crate) tree: OnceLock<ArcSwap<BTree>>,
    /// Held by whoever makes it.
    making: Mutex<()>,
    /// Trees that were replaced, until no reader is in them.
    pub(crate) replaced: Mutex<Vec<Arc<BTree>>>,
    /// What the newest slot names.
    pub(crate) named: Mutex<Option<Payload>>,
    pub(crate) sweeps: Sweeps,
    pub(crate) chosen: Chosen,
    pub(crate) progress: Progress,
    pub(crate) images: Images,
    /// Held by whoever publishes a checkpoint.
    pub(crate) publishing: Mutex<()>,
    pub(crate) stalls: Stalls,
}

/// How far checkpoints have come.
#[derive(Debug)]
pub(crate) struct Progress {
    redo: AtomicU64,
    is_dirty: AtomicBool,
    is_replaying: AtomicBool,
    pub(crate) checkpoints: AtomicU64,
}

impl Progress {
    fn new(redo: Lsn) -> Progress {
        Progress {
            redo: AtomicU64::new(redo.0),
            is_dirty: AtomicBool::new(false),
            is_replaying: AtomicBool::new(true),
            checkpoints: AtomicU64::new(0),
        }
    }

    /// Notes that a slot with this redo LSN was published.
    fn published(&self, redo: Lsn) {
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

impl Tiered {
    /// What keyspaces can do.
    pub const CAPABILITIES: Capabilities = {
        let mut it = Capabilities::LEAST;
        it.ordered = true;
        it.transactions = true;
        it.larger_than_memory = true;
        it.snapshots = true;
        it
    };

    /// Makes a new keyspace, empty, whose log records all come after `redo`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn create(context: EngineContext, redo: Lsn) -> Result<Tiered> {
        let store =
            Store::create(&*context.directory, &context.name, context.store_options(), redo)?;
        Ok(Self::assemble(context, store, redo, None))
    }

    /// Opens a keyspace at its newest checkpoint.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn open(context: EngineContext) -> Result<Tiered> {
        let (store, checkpoint, payload) =
            Store::open(&*context.directory, &context.name, context.store_options())?;
        let payload =
            Payload::decode(&payload).map_err(|error| error.context(context.path().display()))?;
        Ok(Self::assemble(context, store, checkpoint.redo, payload))
    }

    fn assemble(
        context: EngineContext,
        store: Store,
        redo: Lsn,
        mut payload: Option<Payload>,
    ) -> Tiered {
        let order = payload.as_ref().map_or(ORDER_DEFAULT, |payload| payload.order);
        let images = Images::default();
        let clean = payload.as_mut().and_then(|payload| payload.clean.take());
        *images.warm.lock() = Warm::open(clean);
        let mut list =
            payload.as_ref().map_or_else(LargeList::default, |payload| payload.large.clone());
        if !context.logged {
            images.doubt(&mut list);
        }
        let owner = Box::new(ByLsn(context.clone()));
        let store = Arc::new(store);
        let pre_images = PreImages::without_notes(context.clone(), store.clone());
        let values = Values::new(store, RECORD_BYTES_MAX, owner, list);
        let tiered = Tiered {
            values,
            pages: Pages::new(order),
            hot: HotTier::new(TIER_BYTES_MIN),
            pre_images,
            tree: OnceLock::new(),
            making: Mutex::new(()),
            replaced: Mutex::new(Vec::new()),
            named: Mutex::new(payload),
            sweeps: Sweeps::default(),
            chosen: Chosen::default(),
            progress: Progress::new(redo),
            images,
            publishing: Mutex::new(()),
            stalls: Stalls::default(),
            context,
        };
        tiered.follow_memory();
        tiered
    }

    /// Returns the tree, if there is one: an empty keyspace has none.
    #[inline]
    pub(crate) fn tree(&self) -> Option<Guard<Arc<BTree>>> {
        self.tree.get().map(ArcSwap::load)
    }

    /// Returns the tree, which is made if there is none.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn tree_made(&self) -> Result<Guard<Arc<BTree>>> {
        if self.tree.get().is_none() {
            let _alone = self.making.lock();
            if self.tree.get().is_none() {
                self.set_tree(self.empty_tree()?);
            }
        }
        Ok(self.tree().expect("it was made"))
    }

    /// Returns a new tree that nothing names yet.
    pub(crate) fn empty_tree(&self) -> Result<BTree> {
        let (cache, order) = self.make_frames();
        BTree::create(self.store().clone(), cache, order, self.context.log.clone())
    }

    fn set_tree(&self, tree: BTree) {
        self.set_tree_to(Arc::new(tree));
    }

    /// Lets this be the tree. The one before goes once nobody reads it.
    pub(crate) fn set_tree_to(&self, tree: Arc<BTree>) {
        match self.tree.get() {
            Some(kept) => self.replaced.lock().push(kept.swap(tree)),
            None => {
                let is_set = self.tree.set(ArcSwap::new(tree)).is_ok();
                debug_assert!(is_set, "one thread makes it");
            }
        }
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        self.values.store()
    }

    /// Opens the tree that the slot names, if it names one.
    fn open_tree(&self) -> Result<()> {
        let (store, log) = (self.store().clone(), self.context.log.clone());
        let named = self.named.lock().clone();
        let mut owned: Vec<_> = self.values.owned().collect();
        owned.extend(named.iter().flat_map(|payload| payload.dirty.extents()));
        owned.extend(self.clean_extents());
        let tree = named.map(|payload| {
            let (cache, order) = self.make_frames();
            BTree::open(store, cache, order, log, payload.root)
        });
        if let Some(tree) = &tree {
            tree.owned(&mut |extent, generation| owned.push((extent, generation)))?;
        }
        self.store().adopt(&owned)?;
        tree.into_iter().for_each(|tree| self.set_tree(tree));
        Ok(())
    }

    /// Writes all that was applied before, and publishes it. The caller holds `publishing`. `beside` is called once the
    /// image was taken: whatever happens then and until the slot is durable may be in it or not.
    pub(crate) fn publish_all(&self, redo: Lsn, beside: impl FnOnce()) -> Result<()> {
        // Before the image: what is superseded from here on may be named by it, or by leaves of the root.
        let cut = self.values.cut(redo.0);
        let image = self.take_dirty()?;
        beside();
        if self.tree().is_none() && self.values.is_empty() && self.pages.order() == ORDER_DEFAULT {
            // Nothing was ever merged, so nothing is named.
            return self.publish_nothing(redo);
        }
        self.publish(&*self.tree_made()?, redo, image, || self.values.list(&cut))?;
        self.values.settle(&cut);
        Ok(())
    }

    /// Publishes an empty keyspace without a tree.
    fn publish_nothing(&self, redo: Lsn) -> Result<()> {
        if redo > self.redo() {
            let log = &self.context.log;
            let durable = || log.ensure_durable(log.last_lsn());
            self.store().publish(Checkpoint { redo, structure: 0 }, &[], durable)?;
            self.progress.published(redo);
        }
        Ok(())
    }

    /// Writes a tree and publishes it, with an image and these large values. The caller holds `publishing`.
    pub(crate) fn publish(
        &self,
        tree: &BTree,
        redo: Lsn,
        image: Image<'_>,
        large: impl FnOnce() -> LargeList,
    ) -> Result<()> {
        let before = self.publish_root(tree, redo, image.run.clone(), large)?;
        image.keep();
        before.into_iter().for_each(|before| before.dirty.release(self.store()));
        self.progress.published(redo);
        Ok(())
    }

    /// Writes a tree and publishes it, with a run of dirty records and these large values. Returns what the slot before
    /// named. The caller holds `publishing`, and frees what nothing names any more.
    pub(crate) fn publish_root(
        &self,
        tree: &BTree,
        redo: Lsn,
        dirty: Run,
        large: impl FnOnce() -> LargeList,
    ) -> Result<Option<Payload>> {
        let log = &self.context.log;
        let mut named = None;
        tree.checkpoint(|root: TreeRoot| {
            // After the last leaf was written (rule H9).
            let clean = self.images.warm.lock().named().cloned();
            let payload = Payload { order: tree.order(), root, large: large(), dirty, clean };
            let checkpoint = Checkpoint { redo, structure: 0 };
            let durable = || log.ensure_durable(log.last_lsn());
            self.store().publish(checkpoint, &payload.encode(), durable)?;
            // Notes of the run are kept once.
            named = Some(Payload { clean: None, ..payload });
            Ok(())
        })?;
        Ok(std::mem::replace(&mut *self.named.lock(), named))
    }

    /// Lets pages have 2^`order` times 4 KiB if there are none yet, and writes that down: replay comes before options.
    fn choose_page_order(&self, order: u8) -> Result<()> {
        let _one_at_a_time = self.publishing.lock();
        let is_new = self.pages.choose(order) && self.tree().is_none();
        match is_new && order != ORDER_DEFAULT {
            true => self.publish_all(self.redo(), || ()),
            false => Ok(()),
        }
    }

    pub(crate) fn set_dirty(&self, is_dirty: bool) {
        self.progress.is_dirty.store(is_dirty, SeqCst);
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.progress.is_replaying.load(SeqCst)
    }
}

impl Engine for Tiered {
    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    fn replays_in_bulk(&self) -> bool {
        true
    }

    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        let start = out.len();
        loop {
            let left = self.left_tree();
            let (cached, seen) = self.hot.look(key, out);
            match cached {
                Cached::Present => return Ok(Found::Inline),
                Cached::Large => return Ok(Found::Large),
                Cached::Absent => return Ok(Found::Absent),
                Cached::Unknown => {}
            }
            let Some(tree) = self.tree() else { return Ok(Found::Absent) };
            let found = tree.get(key, out)?;
            if found == Found::Absent && self.left_tree() != left {
                // It may have been in neither when it was looked for.
                continue;
            }
            if self.promotes() {
                self.promote(key, hash, (found, &out[start..]), seen);
            }
            return Ok(found);
        }
    }

    fn get_resident(&self, key: &[u8], _hash: u64, out: &mut Vec<u8>) -> Resident {
        let left = self.left_tree();
        match self.hot.get(key, out) {
            Cached::Present => Resident::Present,
            Cached::Large => Resident::Large,
            Cached::Absent => Resident::Absent,
            Cached::Unknown => match self.tree() {
                Some(tree) => match tree.get_resident(key, out) {
                    Resident::Absent if self.left_tree() != left => Resident::Unknown,
                    found => found,
                },
                None => Resident::Absent,
            },
        }
    }

    fn prepare(&self, write: &Write<'_>) -> Result<Prepared> {
        self.context.poison.check()?;
        self.relieve_pre_images()?;
        let value = write.value.map_or(0, spinney_base::ValueRef::len);
        self.reserve(write.key.len(), value)?;
        Ok(Prepared([write.key.len() as u64, value as u64]))
    }

    fn cancel(&self, _write: &Write<'_>, prepared: Prepared) {
        let Prepared([key, value]) = prepared;
        self.hot.release(key as usize, value as usize);
    }

    fn apply(&self, write: &Write<'_>, prepared: Prepared, _lsn: Lsn, newest: SnapshotNumber) {
        self.keep_before_put(write, newest);
        if let Some(pointer) = write.value.filter(|value| value.large) {
            self.values.applied(pointer.bytes, 0);
        }
        let mut pointer = Vec::new();
        let replaced = self.hot.put(write.key, write.value, &mut pointer);
        self.images.count_put();
        self.cancel(write, prepared);
        self.set_dirty(true);
        // What a clean record names the tree names, too, and the merge that replaces it there supersedes it; what
        // a sweep has copied either comes to the tree or is lost, which the sweep tells (rule H23). A record that is
        // replayed twice replaces itself.
        let is_same = || write.value.is_some_and(|value| value.bytes == pointer);
        if replaced == Replaced::Dirty && !pointer.is_empty() && !is_same() {
            self.values.superseded(&pointer);
        }
    }

    fn make_resident(&self, key: &[u8], hash: u64) -> Result<()> {
        self.get(key, hash, &mut Vec::new()).map(drop)
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.scan_both(request, None, chunk)
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
        self.open_tree()?;
        self.load_image()
    }

    fn end_replay(&self) -> Result<()> {
        self.progress.is_replaying.store(false, SeqCst);
        Ok(())
    }

    fn set_option(&self, name: &str, value: &str) -> Result<()> {
        match options::parse(name, value)? {
            Choice::PageOrder(order) => self.choose_page_order(order)?,
            other => self.chosen.tuning.choose(other),
        }
        self.follow_memory();
        Ok(())
    }

    fn begin_snapshot(self: Arc<Self>, number: SnapshotNumber) -> Result<Box<dyn EngineSnapshot>> {
        Ok(spinney_preimages::begin(self, number))
    }

    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let of_tree = self.tree().map_or(0, |tree| tree.approximate_bytes(lower, upper));
        of_tree + self.sweeps.novelty.of(self.hot.dirty_bytes(lower, upper))
    }

    fn stats(&self) -> EngineStats {
        let mut stats = EngineStats::of(&self.values, &self.stalls);
        stats.pre_images = self.pre_images.stats();
        stats.records_cached = self.hot.len();
        stats.records_dirty = self.hot.dirty();
        let page_cache_bytes = self.pages.cache().map_or(0, |cache| cache.used());
        stats.cache_bytes = self.hot.bytes() + page_cache_bytes;
        let pages = self.tree().map_or(0, |tree| tree.pages() * tree.page_bytes());
        let others = self.store().payload_pages() + self.image_pages();
        stats.pages = pages / PAGE_BYTES as u64 + others;
        stats.page_cache_bytes = page_cache_bytes;
        stats.live_bytes = self.data_bytes();
        stats.checkpoints = self.progress.checkpoints.load(SeqCst);
        stats
    }
}
