//! The tree and its file as the engine uses them: versions that are cheap to clone, each with its
//! file and with what it keeps in memory counted once.

use std::sync::Arc;

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Error, ErrorKind, Generation, Lsn, Result};
use spinney_cache::{Cache, Kind};
use spinney_engine::{
    Chunk, Direction, Found, OwnedValue, POINTER_BYTES_MAX, PagesByKind, Resident, ScanRequest,
    TurtleStats, VerifyReport, Watch,
};
use spinney_extent::{BlockKind, Extent, LargePointer, PageRun, Store};
use spinney_io::{AlignedBuf, Purpose};

use crate::check::check;
use crate::disk::DiskFiles;
use crate::edit::packed_bytes;
use crate::files::{Files as _, Limits, PIVOTS_MAX, Passed};
use crate::growth::Growth;
use crate::kinds;
use crate::kinds::block;
use crate::leaf::LeafStore;
use crate::levels::Key;
use crate::node::Totals;
use crate::options::{LEAF_BYTES_MIN, Tuning};
use crate::packed::Owned;
use crate::policy::{self, CREW_MAX, EVACUATED_LEAVES, MERGED_LEAVES, SPREAD, remembered_bytes};
use crate::range::KeyRange;
use crate::run::{Item, Run};
use crate::runs::{Kept, Runs};
use crate::tidy::{Goal, Step};
use crate::tree;
use crate::update::Activity;

/// Largest record, key and value together, that is kept in the tree, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = 3072;

/// What an edit takes of a leaf at most: a record, or a key and a pointer.
const EDIT_BYTES_MAX: u64 = {
    let (record, pointer) =
        (packed_bytes(RECORD_BYTES_MAX, 0), packed_bytes(KEY_BYTES_MAX, POINTER_BYTES_MAX));
    if record > pointer { record } else { pointer }
};

const _: () = assert!(EDIT_BYTES_MAX <= LEAF_BYTES_MIN / 4);

/// Bytes of pivots above which a node is split. With the short separators of most keys 64 pivots
/// take about a page.
const NODE_BYTES: usize = 16 * KEY_BYTES_MAX;

/// Pages that are verified at once.
const VERIFY_PAGES: u32 = 64;

/// The bytes of pointers that newer edits replaced.
pub(crate) type MergedAway = Vec<Vec<u8>>;

/// The keyspace's file. Thread-safe.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) store: Arc<Store>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) disk: DiskFiles,
    /// Sums of what updates of all trees have done, and of recent flushes.
    activity: Mutex<(Activity, Growth)>,
}

impl Files {
    pub(crate) fn new(store: Store, tuning: &Tuning, in_order: bool) -> Arc<Files> {
        let (store, cache) = (Arc::new(store), Cache::new(0));
        let leaves = LeafStore::new(Arc::clone(&store), cache.file());
        let threads_max = if in_order { 1 } else { CREW_MAX };
        let limits = limits(tuning.leaf_bytes());
        let disk = DiskFiles::new(leaves, limits, tuning.filter_bits(), threads_max);
        Arc::new(Files { store, cache, disk, activity: Mutex::default() })
    }

    /// Adds what an update has done; how much may be pending for leaves follows it.
    fn note(&self, before: Activity, after: Activity) {
        let (activity, growth) = &mut *self.activity.lock();
        activity.add(before, after);
        let keyspace = self.pages() * PAGE_BYTES as u64;
        let remembered = remembered_bytes(self.disk.limits().leaf_bytes, keyspace);
        let (brought, grown) = (after.brought - before.brought, after.grown - before.grown);
        growth.follow(brought, grown, remembered);
        self.disk.set_pending_percent(growth.pending_percent());
    }

    /// About how many pages of segments and nodes were written: all but those of leaves that
    /// flushes rewrote.
    pub(crate) fn pages_written_above_leaves(&self) -> u64 {
        let of_leaves = self.activity.lock().0.made / PAGE_BYTES as u64;
        self.disk.files.counters.pages_written.load(Relaxed).saturating_sub(of_leaves)
    }

    /// Pages that leaves and nodes own.
    pub(crate) fn pages(&self) -> u64 {
        self.disk.files.counters.pages_owned.load(Relaxed)
    }

    /// Pages that ranges looked into, cached or not.
    pub(crate) fn scan_pages(&self) -> u64 {
        self.disk.files.counters.scan_pages.load(Relaxed)
    }

    /// Adds the counts of reading, writing and updating since the keyspace was opened.
    pub(crate) fn count_into(&self, stats: &mut TurtleStats) {
        let counters = &self.disk.files.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        stats.tree_pages_written = load(&counters.pages_written);
        stats.node_pages_written = load(&counters.node_pages_written);
        stats.leaves_written = load(&counters.leaves_written);
        stats.nodes_written = load(&counters.nodes_written);
        stats.loads = load(&counters.loads);
        stats.pages_loaded = load(&counters.pages_loaded);
        stats.filter_probes = load(&counters.filter_probes);
        stats.filter_negatives = load(&counters.filter_negatives);
        stats.filter_false_positives = load(&counters.filter_false_positives);
        stats.filter_damaged = load(&counters.filter_damaged);
        let cached = self.cache.stats();
        stats.pages_cached = by_kind(|kind| cached.of(kind).hits);
        stats.pages_read = by_kind(|kind| load(&counters.pages_read[kind.index()]));
        let (activity, _) = *self.activity.lock();
        stats.flushes = activity.flushes;
        stats.leaves_made = activity.leaves;
        stats.merges = activity.merges;
        stats.splits = activity.splits;
        stats.joins = activity.joins;
    }
}

fn by_kind(count: impl Fn(Kind) -> u64) -> PagesByKind {
    let mut pages = PagesByKind::default();
    pages.node = count(kinds::NODE);
    pages.filter = count(kinds::FILTER);
    pages.index = count(kinds::INDEX);
    pages.keys = count(kinds::KEYS);
    pages.values = count(kinds::VALUES);
    pages
}

/// Limits that shape a tree whose leaves have `leaf_bytes` bytes.
pub(crate) fn limits(leaf_bytes: u64) -> Limits {
    let leaf_bytes = leaf_bytes.max(LEAF_BYTES_MIN);
    Limits {
        leaf_bytes,
        pending_percent: Some(Growth::default().pending_percent()),
        spread: SPREAD,
        merge_bytes: MERGED_LEAVES * leaf_bytes,
        edit_bytes_max: EDIT_BYTES_MAX,
        pivots_max: PIVOTS_MAX,
        node_bytes: NODE_BYTES,
    }
}

/// The part of a tree that is not on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Edits.
    pub(crate) items: u64,
    /// Memory that they keep, in bytes.
    pub(crate) bytes: u64,
    /// Whether much of that is bytes that nothing needs.
    is_sparse: bool,
}

/// Outlook on the time until the tree is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    /// The log is durable up to here, and no batch holds anything above.
    pub(crate) lsn: Lsn,
    /// How many more batches come before.
    pub(crate) left: u64,
}

/// A version of the tree. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tree(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: Arc<Files>,
    tree: tree::Tree<DiskFiles>,
    pending: Pending,
    totals: Totals,
}

impl Tree {
    /// A tree without records, that will write to this file.
    pub(crate) fn empty(files: &Arc<Files>) -> Tree {
        Tree::over(files, tree::Tree::empty())
    }

    fn over(files: &Arc<Files>, tree: tree::Tree<DiskFiles>) -> Tree {
        let pending = tree.pending();
        let items = pending.items * size_of::<Item>() as u64;
        let pending = Pending {
            items: pending.items,
            bytes: pending.pinned,
            is_sparse: policy::is_evacuation_due(
                pending.pinned.saturating_sub(items),
                pending.bytes,
            ),
        };
        let totals = tree.totals(&files.disk);
        Tree(Arc::new(Inner { files: Arc::clone(files), tree, pending, totals }))
    }

    /// Counts the memory that its runs keep.
    pub(crate) fn add_kept(&self, kept: &mut Kept) {
        self.0.tree.each_run(&mut |run| kept.add(run));
    }

    /// Reads the tree that [`Tree::root`] described.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn open(files: &Arc<Files>, root: &[u8]) -> Result<Tree> {
        if root.is_empty() {
            return Ok(Tree::empty(files));
        }
        let tree = tree::Tree::open(&files.disk, root);
        let tree = tree.map_err(|error| error.context(files.store.path().display()))?;
        Ok(Tree::over(files, tree))
    }

    /// The bytes from which the tree is opened again.
    ///
    /// # Errors
    /// `InvalidArgument` when something is pending.
    pub(crate) fn root(&self) -> Result<Vec<u8>> {
        self.0.tree.describe(&self.0.files.disk)
    }

    /// The tree with a batch on top. If it is known how many more come before it is written, what
    /// they will leave alone is written now.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; this tree is as it was.
    pub(crate) fn apply(
        &self,
        batch: Run,
        outlook: Option<Outlook>,
        merged_away: &mut MergedAway,
    ) -> Result<Tree> {
        let files = &self.0.files;
        let left = outlook.map(|outlook| outlook.left);
        if let Some(outlook) = outlook {
            files.disk.set_lsn(outlook.lsn);
        }
        let mut tree = self.0.tree.apply(&files.disk, &Runs::from(batch), left, merged_away)?;
        files.note(self.0.tree.activity, tree.activity);
        if let Some(left) = left.filter(|left| *left > 0) {
            tree = tree.write_early(&files.disk, left)?;
        }
        let applied = Tree::over(files, tree);
        if !applied.0.pending.is_sparse {
            return Ok(applied);
        }
        let most = EVACUATED_LEAVES * files.disk.limits().leaf_bytes;
        Ok(Tree::over(files, applied.0.tree.evacuate(most)))
    }

    /// The tree with a batch on top, for a full disk: see [`crate::update::Update::sparing`].
    /// Writes nothing.
    ///
    /// # Errors
    /// `Corruption` or `Io`; this tree is as it was.
    pub(crate) fn apply_sparingly(&self, batch: Run, merged_away: &mut MergedAway) -> Result<Tree> {
        let files = &self.0.files;
        let tree = self.0.tree.apply_sparingly(&files.disk, &Runs::from(batch), merged_away)?;
        files.note(self.0.tree.activity, tree.activity);
        Ok(Tree::over(files, tree))
    }

    /// The tree after a step towards a goal, which reads leaves and segments and writes others;
    /// `None` if it is reached. The log is durable up to `lsn`, and it holds nothing above.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; this tree is as it was.
    pub(crate) fn tidy(
        &self,
        lsn: Lsn,
        step: Step<'_>,
        merged_away: &mut MergedAway,
    ) -> Result<Option<Tree>> {
        let files = &self.0.files;
        files.disk.set_lsn(lsn);
        let tidied = self.0.tree.tidy(&files.disk, step, merged_away)?;
        Ok(tidied.map(|tree| {
            files.note(self.0.tree.activity, tree.activity);
            Tree::over(files, tree)
        }))
    }

    /// See [`tree::Tree::is_untidy`].
    pub(crate) fn is_untidy(&self, goal: Goal<'_>) -> bool {
        self.0.tree.is_untidy(&self.0.files.disk, goal)
    }

    /// See [`tree::Tree::pages_to_tidy`].
    pub(crate) fn pages_to_tidy(&self, goal: Goal<'_>) -> u64 {
        self.0.tree.pages_to_tidy(&self.0.files.disk, goal)
    }

    /// See [`tree::Tree::pages_in`].
    pub(crate) fn pages_in(&self, range: &KeyRange<'_>) -> u64 {
        self.0.tree.pages_in(&self.0.files.disk, range)
    }

    /// See [`tree::Tree::end_of_leaves`].
    pub(crate) fn end_of_leaves(&self, from: &[u8], count: usize) -> Option<Key> {
        self.0.tree.end_of_leaves(from, count)
    }

    /// Sums over all that the tree holds.
    pub(crate) fn totals(&self) -> Totals {
        self.0.totals
    }

    /// About how many packed bytes live from `lower` to below `upper`.
    pub(crate) fn live_between(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let root = self.0.tree.root.as_ref();
        root.map_or(0, |root| root.live_between(&self.0.files.disk, lower, upper))
    }

    /// Returns the same tree, on disk. The log is durable up to `lsn`, and it holds nothing above.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; this tree is as it was.
    pub(crate) fn write(&self, lsn: Lsn, merged_away: &mut MergedAway) -> Result<Tree> {
        if self.0.pending.items == 0 && self.root().is_ok() {
            return Ok(self.clone());
        }
        let files = &self.0.files;
        files.disk.set_lsn(lsn);
        let tree = self.0.tree.write(&files.disk, merged_away)?;
        Ok(Tree::over(files, tree))
    }

    /// The part that is not on disk.
    pub(crate) fn pending(&self) -> Pending {
        self.0.pending
    }

    /// Bytes of memory of its nodes.
    pub(crate) fn node_bytes(&self) -> u64 {
        self.0.totals.resident_bytes
    }

    /// Pages of its leaves and segments.
    pub(crate) fn pages(&self) -> u64 {
        self.0.totals.pages
    }

    /// Pages of the file that belong to other versions, or to nodes.
    pub(crate) fn pages_beside(&self) -> u64 {
        self.0.files.pages().saturating_sub(self.0.totals.pages)
    }

    /// Whether both are the same version.
    pub(crate) fn is(&self, other: &Tree) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Appends the value of a key, or the pointer to a large one; returns which.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        self.0.tree.get(&self.0.files.disk, key, hash, out)
    }

    /// Looks many keys up; cold ones are read together.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        self.0.tree.get_many(&self.0.files.disk, keys)
    }

    /// What memory alone knows of a key.
    pub(crate) fn get_resident(&self, key: &[u8], out: &mut Vec<u8>) -> Resident {
        self.0.tree.get_resident(key, out)
    }

    /// As [`spinney_engine::Engine::scan`], of this version.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.0.tree.scan(&self.0.files.disk, request, chunk)
    }

    /// Counts what a range over memtables and this tree looked at in memtables.
    pub(crate) fn passed(&self, passed: Passed) {
        if passed.edits > 0 {
            self.0.files.disk.passed(passed);
        }
    }

    /// The pages that this version owns on disk, and of what kind they are.
    pub(crate) fn runs(&self) -> Vec<(PageRun, BlockKind)> {
        let mut runs = Vec::new();
        self.0.tree.walk(|owned| {
            runs.push(match owned {
                Owned::Leaf(leaf) => (leaf.run(), block::LEAF),
                Owned::Node(pages) => (pages.run(), block::NODE),
            });
        });
        runs
    }

    /// The extents that this version owns on disk.
    pub(crate) fn owned(&self) -> Vec<(Extent, Generation)> {
        self.runs().iter().flat_map(|(run, _)| run.extents()).collect()
    }

    /// Reads everything and proves that it is consistent; shows the keys in order, and the pointers
    /// to large values in it.
    ///
    /// # Errors
    /// `Corruption` naming the first damage; `Io`; errors of `watch` or `large`.
    pub(crate) fn verify(
        &self,
        report: &mut VerifyReport,
        watch: &mut Watch<'_>,
        key: &mut dyn FnMut(&[u8]),
        large: &mut dyn FnMut(&LargePointer) -> Result<()>,
    ) -> Result<()> {
        let files = &self.0.files;
        // Every page, for merges and ranges from end to end look at no index and no filter.
        for (run, kind) in self.runs() {
            report.pages += u64::from(run.pages);
            for from in (0..run.pages).step_by(VERIFY_PAGES as usize) {
                let mut buf = AlignedBuf::new((run.pages - from).min(VERIFY_PAGES) as usize);
                files.store.read_run(&run, from, kind, &mut buf, Purpose::TOOL)?;
                watch(u64::from((run.pages - from).min(VERIFY_PAGES)))?;
            }
        }
        check(&self.0.tree, &files.disk, false)?;
        let unbounded = std::ops::Bound::Unbounded;
        let (tree, disk, forward) = (&self.0.tree, &files.disk, Direction::Forward);
        let mut cursor = tree.cursor(disk, unbounded, unbounded, forward)?;
        while let Some((found, value)) = cursor.record()? {
            key(found);
            if value.large {
                let pointer = LargePointer::decode(value.bytes).map_err(|damage| {
                    let path = files.store.path().display();
                    let text = format!("{path}: a pointer in the tree: {damage:?}");
                    Error::new(ErrorKind::Corruption, text)
                })?;
                large(&pointer)?;
            }
            cursor.advance()?;
        }
        Ok(())
    }
}

/// A file on a simulated disk.
#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) fn simulated() -> Arc<Files> {
    use spinney_base::{KeyspaceId, Poison};
    let disk = spinney_io::sim::SimDisk::new(1);
    let poison = Arc::new(Poison::new());
    let options =
        spinney_extent::StoreOptions { keyspace: KeyspaceId(1), double_write: false, poison };
    let store = Store::create(&*disk.at("/"), "keyspace", options, Lsn::ZERO);
    let store = store.unwrap();
    store.adopt(&[]).unwrap();
    Files::new(store, &Tuning::default(), true)
}
