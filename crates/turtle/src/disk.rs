//! Leaves and nodes in a store file, read through the page cache: what the tree asks for by
//! [`Files`], on a real disk.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use spinney_base::{Lsn, Result, ValueRef};
use spinney_engine::Direction;
use spinney_io::Purpose;
use spinney_sync::{Gap, Stripes};

use crate::edit::Hit;
use crate::files::{Files, LeafCursor, Limits, Load, Lookup, Passed};
use crate::leaf::blob::NodePages;
use crate::leaf::cursor::LeafCursor as PageCursor;
use crate::leaf::{Leaf, LeafStore, load, warm};
use crate::policy::{LOOKS_A_MISS, PASSED_TOMBSTONES_MIN, ahead_pages};
use crate::run::Run;
use crate::runs::Runs;
use crate::sync_ahead::SyncAhead;

/// A keyspace's store, its part of the page cache, and how leaves are written.
#[derive(Debug)]
pub(crate) struct DiskFiles {
    pub(crate) files: Arc<LeafStore>,
    /// The most that may work at once, and how many do now.
    threads_max: usize,
    threads: AtomicUsize,
    limits: Limits,
    /// Those of `limits` that may change: bytes of a leaf, and what may be pending for one in
    /// percent of it.
    leaf_bytes: AtomicU64,
    pending_percent: AtomicU64,
    filter_bits: AtomicU32,
    /// No record above it is in what is written from now on.
    lsn: AtomicU64,
    sync_ahead: SyncAhead,
    /// Pages that it syncs at once.
    ahead_pages: AtomicU64,
    /// Segments that ranges looked into beside leaves; a page of them that they had to read counts
    /// for several.
    beside: AtomicU64,
    /// Lookups that were answered by what is pending in memory.
    in_memory: AtomicU64,
    /// What ranges looked at: [`EDITS`] and [`TOMBSTONES`].
    passed: Stripes<2>,
    /// Where nothing is, among what was removed.
    pub(crate) gap: Gap,
}

const EDITS: usize = 0;
const TOMBSTONES: usize = 1;

impl DiskFiles {
    /// Makes a store with `filter_bits` bits of a filter for each key, 0 for no filters. For
    /// `threads_max` see [`DiskFiles::set_threads`].
    pub(crate) fn new(
        files: Arc<LeafStore>,
        limits: Limits,
        filter_bits: u32,
        threads_max: usize,
    ) -> DiskFiles {
        let leaf_bytes = AtomicU64::new(limits.leaf_bytes);
        let pending_percent = AtomicU64::new(limits.pending_percent.unwrap_or(100));
        let filter_bits = AtomicU32::new(filter_bits);
        DiskFiles {
            files,
            threads_max,
            threads: AtomicUsize::new(1),
            limits,
            leaf_bytes,
            pending_percent,
            filter_bits,
            lsn: AtomicU64::new(0),
            sync_ahead: SyncAhead::default(),
            ahead_pages: AtomicU64::new(ahead_pages(u64::MAX)),
            beside: AtomicU64::new(0),
            in_memory: AtomicU64::new(0),
            passed: Stripes::default(),
            gap: Gap::default(),
        }
    }

    /// Sets how much memory the keyspace has, how large leaves are, and the bits of filters for
    /// each key, from now on.
    pub(crate) fn shape(&self, memory: u64, leaf_bytes: u64, filter_bits: u32) {
        self.ahead_pages.store(ahead_pages(memory), Relaxed);
        self.leaf_bytes.store(leaf_bytes, Relaxed);
        self.filter_bits.store(filter_bits, Relaxed);
    }

    /// Sets how many threads work on an update or checkpoint from now on; no more than are allowed.
    pub(crate) fn set_threads(&self, threads: usize) {
        self.threads.store(threads.clamp(1, self.threads_max), Relaxed);
    }

    /// Sets how much may be pending for a leaf from now on, in percent of it.
    pub(crate) fn set_pending_percent(&self, percent: u64) {
        self.pending_percent.store(percent, Relaxed);
    }

    /// Sets up to which record the tree that is written next has applied all.
    pub(crate) fn set_lsn(&self, lsn: Lsn) {
        self.lsn.store(lsn.0, Relaxed);
    }

    /// Number of lookups that were answered by what is pending in memory.
    pub(crate) fn in_memory(&self) -> u64 {
        self.in_memory.load(Relaxed)
    }

    /// Number of segments that ranges have looked into beside leaves; a page that they read for it
    /// counts for several.
    pub(crate) fn beside(&self) -> u64 {
        self.beside.load(Relaxed)
    }

    /// What ranges have looked at, those of memtables included.
    pub(crate) fn all_passed(&self) -> Passed {
        Passed { edits: self.passed.sum(EDITS), tombstones: self.passed.sum(TOMBSTONES) }
    }

    fn lsn(&self) -> Lsn {
        Lsn(self.lsn.load(Relaxed))
    }
}

/// A lookup, for the leaf.
fn page_lookup<'a>(it: &Lookup<'a, DiskFiles>) -> warm::Lookup<'a> {
    warm::Lookup { leaf: it.leaf, key: it.key, hash: it.hash, is_last: it.is_last }
}

impl Files for DiskFiles {
    type Leaf = Leaf;
    type Pages = NodePages;
    type Cursor<'a> = PageCursor<'a>;

    fn limits(&self) -> Limits {
        let leaf_bytes = self.leaf_bytes.load(Relaxed);
        let pending_percent = Some(self.pending_percent.load(Relaxed));
        let merge_bytes =
            self.limits.merge_bytes / self.limits.leaf_bytes * leaf_bytes * self.threads() as u64;
        Limits { leaf_bytes, pending_percent, merge_bytes, ..self.limits }
    }

    fn threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    fn write_leaf(&self, edits: &Runs, purpose: Purpose) -> Result<Arc<Leaf>> {
        let filter_bits = self.filter_bits.load(Relaxed);
        let leaf = Leaf::write(&self.files, edits, filter_bits, self.lsn(), purpose)?;
        if self.threads_max > 1 {
            let written = self.files.counters.pages_written.load(Relaxed);
            let worth_it = self.ahead_pages.load(Relaxed);
            self.sync_ahead.follow(&self.files.store, written, worth_it);
        }
        Ok(Arc::new(leaf))
    }

    fn leaf_bytes(&self, leaf: &Leaf) -> u64 {
        leaf.description().packed_bytes.into()
    }

    fn leaf_pages(&self, leaf: &Leaf) -> u64 {
        leaf.run().pages.into()
    }

    fn leaf_edits(&self, leaf: &Leaf) -> u64 {
        leaf.description().items.into()
    }

    fn load(&self, leaf: &Leaf, lower: &[u8], upper: Option<&[u8]>) -> Result<Run> {
        leaf.load(lower, upper)
    }

    fn load_many(&self, loads: &[Load<'_, Self>]) -> Result<Vec<Run>> {
        let loads: Vec<_> = loads
            .iter()
            .map(|load| load::Load { leaf: load.leaf, lower: load.lower, upper: load.upper })
            .collect();
        self.files.load_many(&loads)
    }

    fn warm(&self, lookups: &[Lookup<'_, Self>]) {
        let lookups: Vec<_> = lookups.iter().map(page_lookup).collect();
        self.files.warm(&lookups);
    }

    fn get(&self, lookup: &Lookup<'_, Self>, out: &mut Vec<u8>) -> Result<Option<Hit>> {
        Ok(page_lookup(lookup).get(out)?.map(|(_, hit)| hit))
    }

    fn answered_in_memory(&self) {
        self.in_memory.fetch_add(1, Relaxed);
    }

    fn looks_beside(&self, more: usize) {
        self.beside.fetch_add(more as u64, Relaxed);
    }

    fn passed(&self, passed: Passed) {
        self.passed.add(EDITS, passed.edits);
        self.passed.add(TOMBSTONES, passed.tombstones);
        if passed.tombstones >= PASSED_TOMBSTONES_MIN {
            self.gap.passed_much();
        }
    }

    fn cursor<'a>(
        &'a self,
        leaf: &'a Arc<Leaf>,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<PageCursor<'a>> {
        PageCursor::new(leaf, from, direction)
    }

    fn bring_in(&self, cursors: &[&PageCursor<'_>]) {
        let missed = self.files.bring_in(cursors);
        self.looks_beside(missed * LOOKS_A_MISS);
    }

    fn write_node(&self, payload: &[u8]) -> Result<Arc<NodePages>> {
        Ok(Arc::new(NodePages::write(&self.files, payload, self.lsn())?))
    }

    fn open_node(&self, description: &[u8]) -> Result<(Arc<NodePages>, Vec<u8>)> {
        let (pages, payload) = NodePages::open(&self.files, description)?;
        Ok((Arc::new(pages), payload))
    }

    fn open_leaf(&self, description: &[u8]) -> Result<Arc<Leaf>> {
        Ok(Arc::new(Leaf::open(&self.files, description)?))
    }

    fn describe_leaf(&self, leaf: &Leaf, out: &mut Vec<u8>) {
        out.extend_from_slice(&leaf.describe());
    }

    fn describe_node(&self, pages: &NodePages, out: &mut Vec<u8>) {
        out.extend_from_slice(&pages.describe());
    }
}

impl LeafCursor for PageCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        PageCursor::key(self)
    }

    fn is_tombstone(&self) -> bool {
        PageCursor::is_tombstone(self)
    }

    fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>> {
        PageCursor::record(self)
    }

    fn expect(&mut self, records: usize) -> Option<Vec<u8>> {
        PageCursor::expect(self, records)
    }

    fn expect_up_to(&mut self, key: &[u8]) {
        PageCursor::expect_up_to(self, key);
    }

    fn advance(&mut self) -> Result<()> {
        PageCursor::advance(self)
    }
}
