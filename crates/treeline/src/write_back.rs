//! Write-back: dirty records come home to their pages, all of a page in one write (TreeLine, 4.1,
//! 4.2, 4.5).
//!
//! One batch: lock the pages, take their dirty lists, mark the records as being written, wait until
//! the log is durable up to the last of them (P10), read the pages, [`plan`](crate::merge::plan),
//! write, change the index, make the records clean, unlock. New pages need no protection from
//! tearing; pages rewritten in place do, and the store sees to it.
//!
//! **Invariants**
//! 1. A record becomes clean, and may leave the cache, only after the page that holds it was
//!    written (P23).
//! 2. No page is written before the log records in it are durable, whatever the keyspace's
//!    durability; the page's LSN says up to where (P10).
//! 3. If anything fails, every record that was taken is dirty and listed again, and pages that were
//!    allocated are given back.
//!
//! **Crash.** In-place writes may be lost or mixed with older ones of other pages: every record in
//! them is in the log above the redo LSN, which moves only after a sync. A change of structure is
//! in the log only after its pages were synced ([`publish`](crate::publish)); until then a crash
//! finds the old pages untouched.

use std::ops::Range;
use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Lsn, PageNumber, Result, ValueRef, probe};
use spinney_extent::{BlockHeader, BlockKind, Extent};
use spinney_io::{AlignedBuf, Lent, Purpose};
use spinney_sync::hash_key;

use crate::cache::{RecordId, Scratch, Visit};
use crate::counters::add;
use crate::index::{Change, Located, PageRef, Segment};
use crate::merge::{Dirty, Pages, Plan, plan, superseded};
use crate::tree::TreeLine;

/// Most dirty records that one batch takes of one segment, which bounds its memory.
pub(crate) const TARGET_RECORDS_MAX: usize = 2048;

/// A batch with so many bytes of dirty records takes no further segment, which bounds its memory.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// Most segments that wait to be joined with a neighbour; more are noticed again when they change.
const SPARSE_MAX: usize = 4096;

/// Neighbouring segments, mostly one, whose dirty records are being brought home.
struct Target {
    segments: Vec<Located>,
    ids: Vec<RecordId>,
    dirty: Vec<Taken>,
}

/// A dirty record, by its places in the batch's bytes.
struct Taken {
    key: Range<usize>,
    value: Option<Range<usize>>,
    /// Whether the value is the pointer to a large one.
    large: bool,
}

/// What a write-back did not take along.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    /// Where the first group began that others changed before it was locked.
    pub(crate) changed: Option<Vec<u8>>,
    /// Whether entries of a list were left, because it was long.
    pub(crate) left: bool,
}

/// Targets and the bytes of their dirty records.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    targets: Vec<Target>,
}

/// What one batch writes.
#[derive(Default)]
struct Output<'p> {
    in_place: Vec<(PageRef, Lent<'p>)>,
    fresh: Vec<(PageRef, Lent<'p>)>,
    changes: Vec<Change>,
    splits: usize,
    /// Lower bounds of segments that should be joined with a neighbour.
    sparse: Vec<Vec<u8>>,
    /// Pointers to large values that the pages do not hold any more.
    superseded: Vec<Vec<u8>>,
}

impl TreeLine {
    /// Brings home the dirty records of the segments that `keys` belong to.
    ///
    /// # Errors
    /// `Full` (what fits was brought home), `Poisoned`, `Io`, `Corruption`; the records stay dirty.
    pub(crate) fn write_back(&self, keys: &[Vec<u8>]) -> Result<()> {
        let mut segments: Vec<Vec<Located>> = Vec::with_capacity(keys.len());
        for key in keys {
            if !segments.iter().flatten().any(|located| located.contains(key)) {
                segments.push(vec![self.index.find(key)]);
            }
        }
        self.write_back_groups(&segments).map(|_| ())
    }

    /// Makes one segment of two neighbours that have become sparse; says whether any waited.
    pub(crate) fn join_sparse(&self) -> Result<bool> {
        let Some(key) = self.sparse.lock().pop_first() else { return Ok(false) };
        let located = self.index.find(&key);
        let pair = match &located.upper {
            Some(upper) => {
                let right = self.index.find(upper.bytes());
                vec![located, right]
            }
            None => match self.index.find_below(Some(located.lower.bytes())) {
                Some(left) => vec![left, located],
                None => return Ok(true),
            },
        };
        let _inside = probe::enter("join");
        // Before and after, so that a checkpoint beside any part of it notices.
        self.joins.fetch_add(1, Ordering::SeqCst);
        let result = self.write_back_groups(&[pair]);
        self.joins.fetch_add(1, Ordering::SeqCst);
        result.map(|_| true)
    }

    /// Brings home the dirty records of groups of neighbouring segments, and makes each group of
    /// several anew. Groups that others changed before they were locked are passed over.
    pub(crate) fn write_back_groups(&self, groups: &[Vec<Located>]) -> Result<Missed> {
        let mut missed = Missed::default();
        if groups.is_empty() {
            return Ok(missed);
        }
        let _inside = probe::enter("write-back");
        let _gate = self.gate.read();
        let pages = groups.iter().flatten().map(|located| located.segment.base.page);
        let _locks = self.locks.write_many(pages);
        let mut left = groups;
        while !left.is_empty() {
            let mut batch = self.take_dirty(&mut left, &mut missed);
            if batch.targets.is_empty() {
                continue;
            }
            if let Err(error) = self.carry_out(&mut batch) {
                self.failures.fetch_add(1, Ordering::SeqCst);
                batch.targets.iter().for_each(|target| self.give_back(&batch.bytes, target));
                return Err(error);
            }
        }
        Ok(missed)
    }

    /// Takes the dirty records of the groups that still are what they were, until there are enough
    /// for one batch; what is not looked at stays in `groups`.
    fn take_dirty(&self, groups: &mut &[Vec<Located>], missed: &mut Missed) -> Batch {
        let mut batch = Batch::default();
        let mut scratch = Scratch::default();
        while let Some((group, rest)) = groups.split_first()
            && batch.bytes.len() < BATCH_BYTES_MAX
        {
            *groups = rest;
            // The bounds again: a neighbour may have changed without this one changing place.
            let now: Vec<Located> =
                group.iter().map(|old| self.index.find(old.lower.bytes())).collect();
            let unchanged = now
                .iter()
                .zip(group)
                .all(|(now, old)| now.segment == old.segment && now.lower == old.lower)
                && now.last().map(|now| &now.upper) == group.last().map(|old| &old.upper);
            let adjacent =
                now.windows(2).all(|pair| pair[0].upper.as_ref() == Some(&pair[1].lower));
            if !unchanged || !adjacent {
                let lower = group.first().map(|old| old.lower.bytes().to_vec());
                missed.changed = missed.changed.take().or(lower);
                continue;
            }
            let mut target = Target { segments: now, ids: Vec::new(), dirty: Vec::new() };
            missed.left |= self.take_target(&mut target, &mut batch.bytes, &mut scratch);
            // A group of several is made anew in any case.
            if !target.dirty.is_empty() || target.segments.len() > 1 {
                batch.targets.push(target);
            }
        }
        batch
    }

    /// Takes the dirty records of one target; says whether a list was too long to be taken whole.
    fn take_target(&self, target: &mut Target, bytes: &mut Vec<u8>, scratch: &mut Scratch) -> bool {
        let Target { segments, ids, dirty } = target;
        let mut left = false;
        for located in segments.iter() {
            let taken = self.index.take_dirty(located.lower.bytes(), TARGET_RECORDS_MAX);
            left |= taken.len() == TARGET_RECORDS_MAX;
            ids.extend(taken);
        }
        ids.sort_unstable();
        ids.dedup();
        for id in ids.iter() {
            self.cache.visit_dirty(*id, Visit::BeginWrite, scratch, &mut |key, value| {
                let ours = segments.iter().any(|located| located.contains(key));
                if ours {
                    let start = bytes.len();
                    bytes.extend_from_slice(key);
                    let middle = bytes.len();
                    bytes.extend_from_slice(value.unwrap_or(ValueRef::EMPTY).bytes);
                    let large = value.is_some_and(|value| value.large);
                    let value = value.map(|_| middle..bytes.len());
                    dirty.push(Taken { key: start..middle, value, large });
                }
                ours
            });
        }
        dirty.sort_unstable_by(|a, b| bytes[a.key.clone()].cmp(&bytes[b.key.clone()]));
        left
    }

    /// The keys of dirty records that bear an id.
    fn dirty_keys(&self, id: RecordId) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        self.cache.visit_dirty(id, Visit::Look, &mut Scratch::default(), &mut |key, _| {
            keys.push(key.to_vec());
            false
        });
        keys
    }

    /// Undoes `take_dirty`.
    fn give_back(&self, bytes: &[u8], target: &Target) {
        self.end_write(bytes, target, false);
        for id in &target.ids {
            // Of several segments each gets what it had; a stranger's id does no harm.
            for located in &target.segments {
                self.index.push_dirty(located.lower.bytes(), *id);
            }
        }
    }

    fn end_write(&self, bytes: &[u8], target: &Target, written: bool) {
        for Taken { key, .. } in &target.dirty {
            let key = &bytes[key.clone()];
            let id = RecordId::of(hash_key(self.context.keyspace, key));
            self.cache.end_write(id, key, written);
        }
    }

    fn carry_out(&self, batch: &mut Batch) -> Result<()> {
        let Batch { bytes, targets } = batch;
        // Every record taken was applied, so it has been appended: its LSN is at most this.
        let lsn = if self.context.logged { self.context.log.last_lsn() } else { Lsn::ZERO };
        let segments = || targets.iter().flat_map(|target| &target.segments);
        let pages: Vec<PageRef> = segments().flat_map(|located| located.segment.pages()).collect();
        let mut buf = self.buffers.lend(pages.len().max(1));
        self.read_pages(&pages, &mut buf, Purpose::WriteBack)?;
        let mut output = Output::default();
        let refused = self.plan_all(bytes, targets, &buf, &mut output);
        let _inside = (!output.changes.is_empty()).then(|| probe::enter("split"));
        // The extents of large values are in the log even when their records are not (P16).
        let large = targets.iter().flat_map(|target| &target.dirty).any(|taken| taken.large);
        let durable = match (self.context.logged, large) {
            (true, _) => self.context.log.ensure_durable(lsn),
            (false, true) => self.context.log.ensure_durable(self.context.log.last_lsn()),
            (false, false) => Ok(()),
        };
        if let Err(error) = durable.and_then(|()| self.write_output(&mut output, lsn)) {
            output.fresh.iter().for_each(|(page, _)| self.store.release(Extent::single(page.page)));
            targets.extend(refused.into_iter().flat_map(|(refused, _)| refused));
            return Err(error);
        }
        for change in &output.changes {
            let record = |sequence| self.pending.lock().push(sequence, change.clone());
            self.index.apply(change, |id| self.dirty_keys(id), record)?;
        }
        output.superseded.iter().for_each(|pointer| self.supersede_large(pointer));
        self.note_sparse(std::mem::take(&mut output.sparse));
        add(&self.writes.splits, output.splits);
        add(&self.writes.pages_written_back, output.in_place.len() + output.fresh.len());
        let records = targets.iter().map(|target| target.dirty.len()).sum();
        add(&self.writes.records_written_back, records);
        targets.iter().for_each(|target| self.end_write(bytes, target, true));
        targets.clear();
        let Some((refused, error)) = refused else { return Ok(()) };
        targets.extend(refused);
        Err(error)
    }

    fn note_sparse(&self, lowers: Vec<Vec<u8>>) {
        if lowers.is_empty() {
            return;
        }
        let mut sparse = self.sparse.lock();
        for lower in lowers {
            if sparse.len() < SPARSE_MAX {
                sparse.insert(lower);
            }
        }
    }

    /// Plans every target. Those for which there is no room on the disk are taken out of `targets`
    /// and returned with the reason.
    fn plan_all<'p>(
        &'p self,
        bytes: &[u8],
        targets: &mut Vec<Target>,
        buf: &AlignedBuf,
        output: &mut Output<'p>,
    ) -> Option<(Vec<Target>, Error)> {
        let mut next_page = 0;
        let mut refused = Vec::new();
        let mut reason = None;
        let mut kept = Vec::with_capacity(targets.len());
        for target in targets.drain(..) {
            let mut pages = Vec::with_capacity(target.segments.len());
            for located in &target.segments {
                let first = next_page;
                next_page += located.segment.pages().count();
                let mine: Vec<_> = (first..next_page).map(|index| buf.page(index)).collect();
                pages.push(Pages::new(&mine));
            }
            match self.plan_one(bytes, &target, &pages, output) {
                Ok(()) => kept.push(target),
                Err(error) => {
                    refused.push(target);
                    reason.get_or_insert(error);
                }
            }
        }
        *targets = kept;
        reason.map(|reason| (refused, reason))
    }

    fn plan_one<'p>(
        &'p self,
        bytes: &[u8],
        target: &Target,
        pages: &[Pages<'_>],
        output: &mut Output<'p>,
    ) -> Result<()> {
        let bounded = |located: &Located| (located.lower.bytes().to_vec(), located.segment);
        let before: Vec<(Vec<u8>, Segment)> = target.segments.iter().map(bounded).collect();
        let dirty: Vec<Dirty<'_>> = target
            .dirty
            .iter()
            .map(|Taken { key, value, large }| {
                let value = value.clone().map(|value| &bytes[value]);
                let value = value.map(|bytes| ValueRef { bytes, large: *large });
                (&bytes[key.clone()], value)
            })
            .collect();
        output.superseded.append(&mut superseded(pages, &dirty));
        let plan = plan(&self.buffers, &target.segments, pages, &dirty);
        let (lower, segment) = before[0].clone();
        if plan.leaves_sparse(pages[0]) {
            output.sparse.push(lower.clone());
        }
        match plan {
            Plan::InPlace { base, overflow, new_overflow } => {
                if let Some(page) = new_overflow {
                    let overflow = self.allocate()?;
                    output.fresh.push((overflow, page));
                    let after = vec![(lower, Segment { overflow: Some(overflow), ..segment })];
                    output.changes.push(Change { before, after });
                }
                output.in_place.extend(base.map(|page| (segment.base, page)));
                output.in_place.extend(segment.overflow.zip(overflow));
            }
            Plan::Replace(pages) => {
                let mut after = Vec::with_capacity(pages.len());
                let mut fresh = Vec::with_capacity(pages.len());
                for (lower, page) in pages {
                    match self.allocate() {
                        Ok(base) => {
                            after.push((lower, Segment { base, overflow: None }));
                            fresh.push((base, page));
                        }
                        Err(error) => {
                            fresh.iter().for_each(|(page, _)| {
                                self.store.release(Extent::single(page.page));
                            });
                            return Err(error);
                        }
                    }
                }
                output.fresh.append(&mut fresh);
                output.splits += 1;
                output.changes.push(Change { before, after });
            }
        }
        Ok(())
    }

    fn allocate(&self) -> Result<PageRef> {
        self.store.reclaim(self.context.log.durable_lsn());
        let (extent, generation) = self.store.allocate(0)?;
        Ok(PageRef { page: extent.page, generation })
    }

    fn write_output(&self, output: &mut Output<'_>, lsn: Lsn) -> Result<()> {
        let keyspace = self.context.keyspace;
        for (pages, fresh) in [(&mut output.fresh, true), (&mut output.in_place, false)] {
            for (page, buf) in pages.iter_mut() {
                let PageRef { page, generation } = *page;
                BlockHeader { kind: BlockKind::Data, page, generation, keyspace, lsn }
                    .seal(buf.page_mut(0));
            }
            let blocks: Vec<(PageNumber, &[u8; PAGE_BYTES])> =
                pages.iter().map(|(page, buf)| (page.page, buf.page(0))).collect();
            if blocks.is_empty() {
                continue;
            }
            if fresh {
                self.store.write_fresh(&blocks, Purpose::Reorganize)?;
            } else {
                self.store.write_in_place(&blocks, Purpose::WriteBack)?;
            }
        }
        Ok(())
    }
}
