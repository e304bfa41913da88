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

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Lsn, PageNumber, Result, probe};
use spinney_extent::{BlockHeader, BlockKind, Extent};
use spinney_io::{AlignedBuf, Purpose};
use spinney_sync::hash_key;

use crate::cache::{RecordId, Visit};
use crate::counters::add;
use crate::index::{Change, Located, PageRef, Segment};
use crate::merge::{Dirty, PageBytes, Plan, empty_page, plan};
use crate::tree::TreeLine;

/// Most dirty records that one batch takes of one segment, which bounds its memory.
pub(crate) const TARGET_RECORDS_MAX: usize = 2048;

/// A segment whose dirty records are being brought home.
struct Target {
    located: Located,
    ids: Vec<RecordId>,
    dirty: Vec<Dirty>,
}

/// What one batch writes.
#[derive(Default)]
struct Output {
    in_place: Vec<(PageRef, PageBytes)>,
    fresh: Vec<(PageRef, PageBytes)>,
    changes: Vec<Change>,
    splits: usize,
}

impl TreeLine {
    /// Brings home all dirty records of the segments that `keys` belong to.
    ///
    /// # Errors
    /// `Full` (what fits was brought home), `Poisoned`, `Io`, `Corruption`; the records stay dirty.
    pub(crate) fn write_back(&self, keys: &[Vec<u8>]) -> Result<()> {
        let _inside = probe::enter("write-back");
        let _gate = self.gate.read();
        let mut segments: Vec<Located> = Vec::with_capacity(keys.len());
        for key in keys {
            if !segments.iter().any(|located| located.contains(key)) {
                segments.push(self.index.find(key));
            }
        }
        let _locks =
            self.locks.write_many(segments.iter().map(|located| located.segment.base.page));
        let mut targets = self.take_dirty(&segments);
        if targets.is_empty() {
            return Ok(());
        }
        let result = self.carry_out(&mut targets);
        if result.is_err() {
            self.failures.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            targets.iter().for_each(|target| self.give_back(target));
        }
        result
    }

    /// Takes the dirty records of the segments that still are what they were.
    fn take_dirty(&self, segments: &[Located]) -> Vec<Target> {
        let mut targets = Vec::with_capacity(segments.len());
        for old in segments {
            // The bounds again: the segment above may have changed without this one changing place.
            let located = self.index.find(old.lower.bytes());
            if located.segment != old.segment || located.lower != old.lower {
                continue;
            }
            let mut ids = self.index.take_dirty(located.lower.bytes(), TARGET_RECORDS_MAX);
            ids.sort_unstable();
            ids.dedup();
            let mut dirty: Vec<Dirty> = Vec::with_capacity(ids.len());
            for id in &ids {
                self.cache.visit_dirty(*id, Visit::BeginWrite, &mut |key, value| {
                    let ours = located.contains(key);
                    if ours {
                        dirty.push((key.to_vec(), value.map(<[u8]>::to_vec)));
                    }
                    ours
                });
            }
            dirty.sort_unstable();
            if !dirty.is_empty() {
                targets.push(Target { located, ids, dirty });
            }
        }
        targets
    }

    /// The keys of dirty records that bear an id.
    fn dirty_keys(&self, id: RecordId) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        self.cache.visit_dirty(id, Visit::Look, &mut |key, _| {
            keys.push(key.to_vec());
            false
        });
        keys
    }

    /// Undoes `take_dirty`.
    fn give_back(&self, target: &Target) {
        self.end_write(target, false);
        for id in &target.ids {
            self.index.push_dirty(target.located.lower.bytes(), *id);
        }
    }

    fn end_write(&self, target: &Target, written: bool) {
        for (key, _) in &target.dirty {
            let id = RecordId::of(hash_key(self.context.keyspace, key));
            self.cache.end_write(id, key, written);
        }
    }

    fn carry_out(&self, targets: &mut Vec<Target>) -> Result<()> {
        // Every record taken was applied, so it has been appended: its LSN is at most this.
        let lsn = if self.context.logged { self.context.log.last_lsn() } else { Lsn::ZERO };
        let pages: Vec<PageRef> =
            targets.iter().flat_map(|target| target.located.segment.pages()).collect();
        let mut buf = self.buffers.lend(pages.len());
        self.read_pages(&pages, &mut buf, Purpose::WriteBack)?;
        let mut output = Output::default();
        let refused = self.plan_all(targets, &buf, &mut output);
        let _inside = (!output.changes.is_empty()).then(|| probe::enter("split"));
        let durable =
            if self.context.logged { self.context.log.ensure_durable(lsn) } else { Ok(()) };
        if let Err(error) = durable.and_then(|()| self.write_output(&output, lsn)) {
            output.fresh.iter().for_each(|(page, _)| self.store.release(Extent::single(page.page)));
            targets.extend(refused.into_iter().flat_map(|(refused, _)| refused));
            return Err(error);
        }
        for change in &output.changes {
            let record = |sequence| self.pending.lock().push(sequence, change.clone());
            self.index.apply(change, |id| self.dirty_keys(id), record)?;
        }
        add(&self.writes.splits, output.splits);
        add(&self.writes.pages_written_back, output.in_place.len() + output.fresh.len());
        add(
            &self.writes.records_written_back,
            targets.iter().map(|target| target.dirty.len()).sum(),
        );
        targets.iter().for_each(|target| self.end_write(target, true));
        targets.clear();
        let Some((refused, error)) = refused else { return Ok(()) };
        targets.extend(refused);
        Err(error)
    }

    /// Plans every target. Those for which there is no room on the disk are taken out of `targets`
    /// and returned with the reason.
    fn plan_all(
        &self,
        targets: &mut Vec<Target>,
        buf: &AlignedBuf,
        output: &mut Output,
    ) -> Option<(Vec<Target>, Error)> {
        let mut next_page = 0;
        let mut refused = Vec::new();
        let mut reason = None;
        let mut kept = Vec::with_capacity(targets.len());
        for target in targets.drain(..) {
            let first = next_page;
            next_page += target.located.segment.pages().count();
            let planned = self.plan_one(&target, &buf_pages(buf, first, next_page), output);
            match planned {
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

    fn plan_one(
        &self,
        target: &Target,
        pages: &[&[u8; PAGE_BYTES]],
        output: &mut Output,
    ) -> Result<()> {
        let Target { located, dirty, .. } = target;
        let segment = located.segment;
        let empty;
        let base = match pages.first() {
            Some(base) => *base,
            None => {
                empty = empty_page();
                &*empty
            }
        };
        match plan(located, base, pages.get(1).copied(), dirty) {
            Plan::InPlace { base, overflow, new_overflow } => {
                if let Some(page) = new_overflow {
                    let overflow = self.allocate()?;
                    output.fresh.push((overflow, page));
                    let after = Segment { overflow: Some(overflow), ..segment };
                    let lower = located.lower.bytes().to_vec();
                    let after = vec![(lower.clone(), after)];
                    output.changes.push(Change { lower, before: segment, after });
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
                                self.store.release(Extent::single(page.page))
                            });
                            return Err(error);
                        }
                    }
                }
                output.fresh.append(&mut fresh);
                output.splits += 1;
                let lower = located.lower.bytes().to_vec();
                output.changes.push(Change { lower, before: segment, after });
            }
        }
        Ok(())
    }

    fn allocate(&self) -> Result<PageRef> {
        self.store.reclaim(self.context.log.durable_lsn());
        let (extent, generation) = self.store.allocate(0)?;
        Ok(PageRef { page: extent.page, generation })
    }

    fn write_output(&self, output: &Output, lsn: Lsn) -> Result<()> {
        let keyspace = self.context.keyspace;
        for (pages, fresh) in [(&output.fresh, true), (&output.in_place, false)] {
            if pages.is_empty() {
                continue;
            }
            let mut buf = self.buffers.lend(pages.len());
            for (index, (page, bytes)) in pages.iter().enumerate() {
                let block = buf.page_mut(index);
                block.copy_from_slice(&bytes[..]);
                let PageRef { page, generation } = *page;
                BlockHeader { kind: BlockKind::Data, page, generation, keyspace, lsn }.seal(block);
            }
            let blocks: Vec<(PageNumber, &[u8; PAGE_BYTES])> = pages
                .iter()
                .enumerate()
                .map(|(index, (page, _))| (page.page, buf.page(index)))
                .collect();
            if fresh {
                self.store.write_fresh(&blocks, Purpose::Reorganize)?;
            } else {
                self.store.write_in_place(&blocks, Purpose::WriteBack)?;
            }
        }
        Ok(())
    }
}

fn buf_pages(buf: &AlignedBuf, first: usize, end: usize) -> Vec<&[u8; PAGE_BYTES]> {
    (first..end).map(|index| buf.page(index)).collect()
}
