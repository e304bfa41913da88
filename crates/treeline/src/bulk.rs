//! Loading sorted records into an empty keyspace, past cache and log (rule P15).
//!
//! ```text
//!   sorted records --> window --> pieces --> pages, written in order --> [ door closed: index and
//!                      of records             nobody's yet                checkpoint change at once ]
//! ```
//!
//! Segments are cut as in a reorganization and written one behind the other. Until
//! [`Bulk::install`] no index names their pages: if the load is dropped, or a crash comes, they are
//! free again. To install them, the database keeps writers out and takes a checkpoint, so that the
//! redo LSN lies at the log's end. Then it publishes another checkpoint, with the index of the
//! load. A crash finds one of the two, so no record that was logged before is replayed over the
//! loaded ones.
//!
//! **Invariants**
//! 1. While the index of the load is published, no other change of structure is under way or
//!    pending, and it takes no number: it is in no log record, only in the checkpoint.
//! 2. If publishing fails, the index is what it was.
//! 3. From the beginning of a load to its end only the load writes pages of the keyspace, so its
//!    pages are the newest, and salvage takes them (decision 0006). A load is refused if the
//!    keyspace was written meanwhile, even if it is empty again.

use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, PageNumber, Result, ValueRef, probe};
use spinney_engine::{Bulk, Chunk, Engine, ScanRequest, SnapshotNumber, Write, not_ascending};
use spinney_extent::values::Loaded;
use spinney_io::Purpose;
use spinney_sync::hash_key;

use crate::build::{NewSegment, Region};
use crate::fit::{Fill, Fit, Piece, Sized, Start};
use crate::merge::Records;
use crate::segment::{PageRef, Segment};
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;

/// Pages that are gathered for one write.
const WRITE_PAGES: usize = 64;

/// Bytes of records from which segments are cut: many times what the longest one takes, so that
/// little is looked at twice.
const WINDOW_BYTES: usize = 1 << 20;

/// A load under way.
pub(crate) struct BulkLoad<'a> {
    tree: &'a TreeLine,
    /// What [`TreeLine::written`] said when it began.
    begun: (u64, u64),
    /// Records that are in no segment yet, in order.
    bytes: Bytes<'a>,
    window: Vec<Taken>,
    /// The lower bound of the segment that begins with them.
    lower: Vec<u8>,
    last: Option<Vec<u8>>,
    segments: Vec<(Vec<u8>, Segment)>,
    /// Pages of the segments, in memory and on disk.
    pages: u64,
    gathered: Vec<(PageRef, NewSegment<'a>)>,
    /// Large values that the records point to.
    large: Loaded,
}

impl std::fmt::Debug for BulkLoad<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BulkLoad({} segments so far)", self.segments.len())
    }
}

impl TreeLine {
    pub(crate) fn begin_bulk(&self) -> Result<BulkLoad<'_>> {
        self.background.loads.fetch_add(1, Ordering::SeqCst);
        let mut load = BulkLoad {
            tree: self,
            begun: (0, 0),
            bytes: Bytes::new(&self.memory.buffers),
            window: Vec::new(),
            lower: Vec::new(),
            last: None,
            segments: Vec::new(),
            pages: 0,
            gathered: Vec::new(),
            large: Loaded::new(&self.large),
        };
        self.write_back_everything(&mut |_| false)?;
        load.begun = self.written();
        Ok(load)
    }

    /// Changes whenever a page is written that is not a load's.
    fn written(&self) -> (u64, u64) {
        (
            self.shape.index.sequence(),
            self.workload.writes.pages_written_back.load(Ordering::Relaxed),
        )
    }

    fn is_empty(&self) -> Result<bool> {
        let mut chunk = Chunk::default();
        self.scan_chunk(&ScanRequest::FIRST_KEY, &mut chunk)?;
        Ok(chunk.is_empty())
    }
}

impl<'a> BulkLoad<'a> {
    /// Cuts segments off the window: all of it, or as long as what follows cannot change them.
    fn advance(&mut self, all: bool) -> Result<()> {
        let bytes = std::mem::replace(&mut self.bytes, Bytes::new(&self.tree.memory.buffers));
        let window = std::mem::take(&mut self.window);
        let lower = std::mem::take(&mut self.lower);
        let dirty: Vec<_> = window.iter().map(|one| bytes.dirty(one)).collect();
        let records = Records::merge(&[], &dirty);
        let upper = window.last().filter(|_| !all).map(|last| bytes.key(last));
        let region = Region { lower: &lower, upper, records: &records };
        let fit = Fit { even: false, ..self.tree.fit(&region, Fill::Packed, false) };
        let mut pieces = cut(&region, &fit, all);
        // The last one's upper bound is not known unless it is the last of all.
        let next = if all { None } else { pieces.pop() };
        let upper = next.as_ref().map(|next| next.lower.as_slice());
        let region = Region { upper, ..region };
        for segment in region.build(&self.tree.memory.buffers, pieces) {
            self.gather(segment)?;
        }
        let from = next.as_ref().map_or(window.len(), |next| next.records.start);
        for one in &window[from..] {
            let (key, value) = bytes.dirty(one);
            self.window.push(self.bytes.push(key, value, 0));
        }
        self.lower = next.map_or_else(Vec::new, |next| next.lower);
        if all { self.write_gathered() } else { Ok(()) }
    }

    fn gather(&mut self, segment: NewSegment<'a>) -> Result<()> {
        let (extent, generation) = self.tree.allocate(segment.order)?;
        let base = PageRef { page: extent.page, generation };
        let made = Segment::new(base, segment.order, segment.model);
        self.pages += u64::from(extent.pages());
        self.tree.background.loading_pages.fetch_add(u64::from(extent.pages()), Ordering::Relaxed);
        self.segments.push((segment.lower.clone(), made));
        self.gathered.push((base, segment));
        let pages: usize = self.gathered.iter().map(|(_, segment)| segment.page_count()).sum();
        if pages >= WRITE_PAGES { self.write_gathered() } else { Ok(()) }
    }

    fn write_gathered(&mut self) -> Result<()> {
        let lsn = self.tree.lsn_of_taken();
        self.tree.ensure_durable(lsn, std::iter::empty(), &[])?;
        for (base, segment) in &mut self.gathered {
            self.tree.seal_segment(*base, lsn, segment);
        }
        let runs: Vec<(PageNumber, &[u8])> =
            self.gathered.iter().map(|(base, segment)| (base.page, segment.blocks())).collect();
        self.tree.shape.store.write_runs(&runs, Purpose::REORGANIZE)?;
        self.gathered.clear();
        Ok(())
    }

    /// Replaces all segments of the keyspace by the loaded ones, and publishes that.
    fn publish(&mut self) -> Result<()> {
        let tree = self.tree;
        let mut bases = Vec::new();
        tree.shape.index.for_each_place(|base| bases.push(base));
        let held = tree.shape.segment_locks.reorganize(bases.into_iter());
        held.upgrade();
        let redo = tree.shape.redo_lsn();
        // The large values are in the checkpoint's list; writing it makes their bytes durable too.
        self.large.apply(0);
        let before = tree.shape.index.replace_all(std::mem::take(&mut self.segments));
        let published = tree.publish_index(redo, &tree.large.cut(redo.0));
        // What the cache knows to be absent may be there now.
        tree.memory.cache.forget_clean();
        tree.memory.gap.forget();
        if published.is_err() {
            self.segments = tree.shape.index.replace_all(before);
            return published;
        }
        tree.background.loading_pages.fetch_sub(std::mem::take(&mut self.pages), Ordering::Relaxed);
        self.large.keep();
        let freed = before.iter().flat_map(|(_, segment)| segment.extents());
        freed.for_each(|(extent, _)| tree.shape.store.release(extent));
        Ok(())
    }
}

/// Cuts pieces off the records of a window.
fn cut(region: &Region<'_>, fit: &Fit, all: bool) -> Vec<Piece> {
    let records = region.records;
    let sizes: Vec<Sized<'_>> = (0..records.len())
        .map(|index| (records.get(index).0, region.record_bytes(index)))
        .collect();
    let mut left: usize = sizes.iter().map(|(_, bytes)| bytes).sum();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut from = 0;
    while from < sizes.len() && (all || left > fit.window_bytes() + PAGE_BYTES) {
        let start = match pieces.last() {
            None => Start::At(region.lower),
            Some(last) => last.next(sizes[from - 1].0, sizes[from].0),
        };
        let mut piece = fit.first_piece(start, region.upper, &sizes[from..]);
        piece.records = from..from + piece.records.end;
        left -= sizes[piece.records.clone()].iter().map(|(_, bytes)| bytes).sum::<usize>();
        from = piece.records.end;
        pieces.push(piece);
    }
    pieces
}

impl Bulk for BulkLoad<'_> {
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        if let Some(last) = self.last.as_deref().filter(|last| *last >= key) {
            return Err(not_ascending(last, key));
        }
        let hash = hash_key(self.tree.context.keyspace, key);
        self.tree.check(&Write { key, hash, value: Some(value) })?;
        if value.large {
            self.large.push(value.bytes)?;
        }
        self.last = Some(key.to_vec());
        self.window.push(self.bytes.push(key, Some(value), 0));
        if self.bytes.len() >= WINDOW_BYTES { self.advance(false) } else { Ok(()) }
    }

    fn install(mut self: Box<Self>, number: SnapshotNumber) -> Result<()> {
        let _inside = probe::enter("bulk load");
        let tree = self.tree;
        if self.last.is_none() {
            return Ok(());
        }
        self.advance(true)?;
        // Writes back the removals, and moves the redo LSN to the log's end (P15).
        tree.publish_checkpoint(tree.context.log.last_lsn(), &mut |_| false)?;
        let _no_write_back = tree.shape.gate.write();
        tree.shape.journal.publish(&tree.context, &tree.shape.store)?;
        if !tree.is_empty()? {
            return Err(Error::invalid("a bulk load needs an empty keyspace"));
        }
        if tree.written() != self.begun {
            return Err(Error::invalid("the keyspace was written while it was loaded"));
        }
        tree.pre_images.before_load(number);
        self.publish()
    }
}

impl Drop for BulkLoad<'_> {
    fn drop(&mut self) {
        self.tree.background.loads.fetch_sub(1, Ordering::SeqCst);
        // Nothing is left of what was installed.
        for (_, segment) in &self.segments {
            segment.extents().for_each(|(extent, _)| self.tree.shape.store.release(extent));
        }
        self.tree.background.loading_pages.fetch_sub(self.pages, Ordering::Relaxed);
    }
}
