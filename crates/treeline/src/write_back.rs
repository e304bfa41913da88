//! Write-back: dirty records are written to their pages, all of a page in one write (TreeLine, 4.1,
//! 4.2, 4.5).
//!
//! One batch: lock the segments (IW), see which of their pages have dirty records, lock these
//! pages, take the records off the dirty lists and mark them as being written, wait until the log
//! is durable up to the last of them (P10), read the pages, [edit](crate::merge::edit_in_place)
//! them, write, make the records clean, unlock. Records without room in their page and its overflow
//! page are given back, and their segment is [reorganized](crate::reorganize) afterwards.
//!
//! **Invariants**
//! 1. A record becomes clean, and may leave the cache, only after the page that holds it was
//!    written (P23).
//! 2. No page is written before the log records in it are durable, whatever the keyspace's
//!    durability; the page's LSN says up to where (P10).
//! 3. If anything fails or others are in the way, every record that was taken is dirty and listed
//!    again before the gate is left, and pages that were allocated are given back.
//! 4. Only a thread that holds the record's page exclusively, or its segment in O, marks the record
//!    as being written, so it has one writer at a time.
//!
//! **Crash.** In-place writes may be lost or mixed with older ones of other pages: every record in
//! them is in the log above the redo LSN, which moves only after a sync. A change of structure is
//! in the log only after its pages were synced ([`publish`](crate::publish)); until then a crash
//! finds the old pages untouched.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Lsn, PageNumber, Result, probe};
use spinney_extent::Extent;
use spinney_io::{AlignedBuf, Lent, Purpose};
use spinney_page::PageView;

use crate::counters::add;
use crate::marks::Marks;
use crate::merge::{Dirty, Edit, Pages, edit_in_place};
use crate::policy::BATCH_BYTES_MAX;
use crate::reorganize::Why;
use crate::segment::{Located, Overflow, PageRef, Segment, Staged};
use crate::stage::FilledPage;
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;
use crate::tuning::Staging;

/// A segment whose dirty records are being written back.
struct Target<'p> {
    located: Located,
    /// Ascending by key.
    dirty: Vec<Taken>,
    how: How<'p>,
}

/// How a segment's records are written back.
enum How<'p> {
    /// Into the pages that are there.
    InPlace,
    /// As a staged page.
    Stage(Lent<'p>, Marks),
    /// Together with the staged pages there are, by a reorganization.
    Merge,
}

/// Which of a segment's dirty records a batch takes.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    /// How many of the oldest entries of its list.
    most: usize,
    /// Those of pages that are locked.
    pages: &'a BTreeSet<PageNumber>,
    /// Those with these keys.
    only: Option<&'a BTreeSet<Vec<u8>>>,
}

/// What one batch writes.
#[derive(Default)]
struct Output<'p> {
    in_place: Vec<(PageRef, Lent<'p>)>,
    fresh: Vec<(PageRef, Lent<'p>)>,
    overflows: Vec<(Located, Overflow)>,
    /// By the targets whose records are in them.
    staged: Vec<(usize, Staged)>,
    /// Pointers to large values that the pages do not hold any more.
    superseded: Vec<Vec<u8>>,
    /// Records that found no room, and why.
    refused: Vec<(Vec<u8>, Vec<Taken>)>,
    error: Option<Error>,
    /// What is to be reorganized afterwards.
    wanted: Vec<(Located, Why)>,
}

impl TreeLine {
    /// Writes back the dirty records of the segments that `keys` belong to.
    ///
    /// # Errors
    /// `Full` (what fits was written back), `Poisoned`, `Io`, `Corruption`; the records stay dirty.
    pub(crate) fn write_back(&self, keys: &[Vec<u8>]) -> Result<()> {
        let mut segments: Vec<Located> = Vec::with_capacity(keys.len());
        for key in keys {
            if !segments.iter().any(|located| located.contains(key)) {
                segments.push(self.shape.index.find(key));
            }
        }
        // Without this option only the records that must leave are written, for measurements.
        let only = (!self.tuning.batch_writeout()).then(|| keys.iter().cloned().collect());
        self.write_back_part(&segments, only.as_ref())
    }

    /// Writes back the dirty records of segments. Skips segments that other threads changed before
    /// they were locked.
    pub(crate) fn write_back_segments(&self, segments: &[Located]) -> Result<()> {
        self.write_back_part(segments, None)
    }

    /// The same for records with these keys only, if some are given.
    fn write_back_part(
        &self,
        segments: &[Located],
        only: Option<&BTreeSet<Vec<u8>>>,
    ) -> Result<()> {
        let mut left = segments;
        while !left.is_empty() {
            // For marks that become copies in memory: here nothing is locked yet.
            let (some, _room) = self.with_room_for_links(&mut left)?;
            self.write_back_some(some, only)?;
        }
        Ok(())
    }

    fn write_back_some(
        &self,
        segments: &[Located],
        only: Option<&BTreeSet<Vec<u8>>>,
    ) -> Result<()> {
        let _inside = probe::enter("write-back");
        let _gate = self.shape.gate.read();
        let mut wanted = Vec::new();
        self.write_in_place(segments, only, &mut wanted)?;
        for (located, why) in wanted {
            match why {
                Why::Shrink | Why::JoinRight | Why::JoinLeft => {
                    self.background.note_sparse(located.lower.bytes())
                }
                Why::Full | Why::Merge | Why::Tidy | Why::Pack | Why::Compact => {
                    self.reorganize(&located, why)?;
                }
            }
        }
        Ok(())
    }

    fn write_in_place(
        &self,
        segments: &[Located],
        only: Option<&BTreeSet<Vec<u8>>>,
        wanted: &mut Vec<(Located, Why)>,
    ) -> Result<()> {
        let bases = segments.iter().map(|located| located.segment.base.page);
        let _held = self.shape.segment_locks.write_many(bases);
        let mut left = Vec::with_capacity(segments.len());
        for old in segments {
            let now = self.shape.index.find(old.lower.bytes());
            // The bounds too: a neighbour may have changed without this one changing place.
            let same = now.segment.base == old.segment.base;
            if !(same && now.lower == old.lower && now.upper == old.upper) {
                continue;
            }
            if now.segment.is_virtual() {
                wanted.push((now, Why::Full));
            } else {
                left.push(now);
            }
        }
        let mut left = &left[..];
        while !left.is_empty() {
            let (batch, pages) = self.choose_batch(&mut left);
            let _pages = self.shape.page_locks.write_many(pages.iter().copied());
            let mut bytes = Bytes::new(&self.memory.buffers);
            let mut targets = Vec::with_capacity(batch.len());
            for (located, most) in batch {
                // Another writer may have added overflow pages before these pages were locked.
                let located = self.shape.index.find(located.lower.bytes());
                let chosen = Chosen { most, pages: &pages, only };
                let dirty = self.take_dirty(&located, chosen, &mut bytes);
                if !dirty.is_empty() {
                    self.targets_of(located, &bytes, dirty, &mut targets);
                }
            }
            if targets.is_empty() {
                continue;
            }
            if let Err(error) = self.carry_out(&bytes, &mut targets, wanted) {
                for Target { located, dirty, .. } in &targets {
                    self.give_back(&bytes, located.lower.bytes(), dirty);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Chooses segments for one batch, how many entries of each dirty list, and the pages that
    /// these belong to; what is not chosen stays in `left`.
    fn choose_batch(&self, left: &mut &[Located]) -> (Vec<(Located, usize)>, BTreeSet<PageNumber>) {
        let mut batch = Vec::new();
        let mut pages = BTreeSet::new();
        let mut bytes = 0;
        while let Some((located, rest)) = left.split_first()
            && bytes < BATCH_BYTES_MAX
        {
            *left = rest;
            let segment = &located.segment;
            let mut room = BATCH_BYTES_MAX - bytes;
            let most = self.oldest_within(located, &mut room, |key| {
                pages.insert(segment.base_page(located.page_of(key)).page);
            });
            bytes = BATCH_BYTES_MAX - room;
            batch.push((located.clone(), most));
        }
        (batch, pages)
    }

    /// Takes the oldest entries off the dirty list of a segment and marks their records as being
    /// written, as far as they are chosen.
    fn take_dirty(
        &self,
        located: &Located,
        chosen: Chosen<'_>,
        bytes: &mut Bytes<'_>,
    ) -> Vec<Taken> {
        let Chosen { most, pages, only } = chosen;
        let lower = located.lower.bytes();
        // Held from reading the list until entries are taken off. If two writers of one segment did
        // this together, each would take off entries that the other has marked, and those that were
        // listed in between.
        let _one_at_a_time = self.shape.taking.lock();
        let mut elsewhere = Vec::new();
        let (shown, taken) = self.mark_dirty(located, most, bytes, |id, key| {
            let page = located.page_of(key);
            let locked = pages.contains(&located.segment.base_page(page).page);
            if !locked || only.is_some_and(|only| !only.contains(key)) {
                elsewhere.push(id);
                return None;
            }
            Some(page)
        });
        // Another writer took what was looked at, if these came in its stead.
        self.shape.index.forget_dirty(lower, &shown, &elsewhere);
        taken
    }

    /// Decides how the dirty records of a segment are written back.
    fn targets_of<'p>(
        &'p self,
        located: Located,
        bytes: &Bytes<'_>,
        dirty: Vec<Taken>,
        targets: &mut Vec<Target<'p>>,
    ) {
        let mut how = if located.segment.staged.is_empty() { How::InPlace } else { How::Merge };
        if self.is_to_stage(&located, bytes, &dirty) {
            let records: Vec<Dirty<'_>> = dirty.iter().map(|taken| bytes.dirty(taken)).collect();
            if let Some(pages) = self.fill_staged(&located, &records) {
                let mut left = &dirty[..];
                for FilledPage { page, records, marks } in pages {
                    let (here, behind) = left.split_at(records);
                    let (located, how) = (located.clone(), How::Stage(page, marks));
                    targets.push(Target { located, dirty: here.to_vec(), how });
                    left = behind;
                }
                return;
            }
            if self.tuning.staging() == Staging::Auto {
                // Hardly a page would be left as it is.
                how = How::Merge;
            }
        }
        targets.push(Target { located, dirty, how });
    }

    fn carry_out<'p>(
        &'p self,
        bytes: &Bytes<'_>,
        targets: &mut Vec<Target<'p>>,
        wanted: &mut Vec<(Located, Why)>,
    ) -> Result<()> {
        let lsn = self.lsn_of_taken();
        let buf = self.read_targets(targets)?;
        let mut output = Output::default();
        let mut next = 0;
        for (index, target) in targets.iter_mut().enumerate() {
            match std::mem::replace(&mut target.how, How::InPlace) {
                How::InPlace => self.edit_target(bytes, target, &buf, &mut next, &mut output),
                How::Stage(page, marks) => {
                    self.stage_target((index, target), page, marks, &mut output);
                }
                How::Merge => {
                    let lower = target.located.lower.bytes().to_vec();
                    output.refused.push((lower, std::mem::take(&mut target.dirty)));
                    output.wanted.push((target.located.clone(), Why::Merge));
                }
            }
        }
        let _inside = (!output.staged.is_empty()).then(|| probe::enter("stage"));
        let taken = targets.iter().flat_map(|target| &target.dirty);
        let durable = self.ensure_durable(lsn, taken, &output.superseded);
        if let Err(error) = durable.and_then(|()| self.write_output(&mut output, lsn)) {
            output
                .fresh
                .iter()
                .for_each(|(page, _)| self.shape.store.release(Extent::single(page.page)));
            for (lower, taken) in &output.refused {
                self.give_back(bytes, lower, taken);
            }
            return Err(error);
        }
        for (located, overflow) in &output.overflows {
            let record = |sequence, change| self.note_change(sequence, &change);
            let Located { lower, segment, .. } = located;
            let with = |segment: &Segment| Some(segment.with_overflow(*overflow));
            self.shape.index.add_page(lower.bytes(), segment.base, with, record)?;
        }
        for (index, staged) in &output.staged {
            let record = |sequence, change| self.note_change(sequence, &change);
            let target = &mut targets[*index];
            let Located { lower, segment, .. } = &target.located;
            let with = |segment: &Segment| segment.with_staged(*staged);
            if self.shape.index.add_page(lower.bytes(), segment.base, with, record)? {
                continue;
            }
            // Others staged pages of the same segment meanwhile: there is room for no more.
            self.shape.store.release(Extent::single(staged.at.page));
            output.wanted.push((target.located.clone(), Why::Merge));
            let dirty = std::mem::take(&mut target.dirty);
            output.refused.push((lower.bytes().to_vec(), dirty));
        }
        let written = output.in_place.len() + output.fresh.len();
        add(&self.workload.writes.pages_written_back, written);
        let records = targets.iter().map(|target| target.dirty.len()).sum();
        add(&self.workload.writes.records_written_back, records);
        targets.iter().for_each(|target| self.end_write(bytes, &target.dirty, true));
        targets.clear();
        for (lower, taken) in &output.refused {
            self.give_back(bytes, lower, taken);
        }
        output.superseded.iter().for_each(|pointer| self.large.superseded(pointer));
        wanted.append(&mut output.wanted);
        output.error.map_or(Ok(()), Err)
    }

    /// Reads the pages that are to be edited, in the order of the targets and their records.
    fn read_targets(&self, targets: &[Target<'_>]) -> Result<Lent<'_>> {
        let mut pages: Vec<PageRef> = Vec::new();
        for Target { located, dirty, how } in targets {
            if !matches!(how, How::InPlace) {
                continue;
            }
            for run in dirty.chunk_by(|a, b| a.page() == b.page()) {
                let place = located.segment.base_page(run[0].page());
                pages.push(place);
                pages.extend(located.segment.overflow(run[0].page()));
            }
        }
        let mut buf = self.memory.buffers.lend(pages.len().max(1));
        let missing = self.memory.missing_pages(&pages, &mut buf);
        self.shape.read_some(&missing, &mut buf, Purpose::WRITE_BACK)?;
        Ok(buf)
    }

    /// Makes a staged page of the records of one target.
    fn stage_target<'p>(
        &self,
        (index, target): (usize, &mut Target<'p>),
        page: Lent<'p>,
        marks: Marks,
        output: &mut Output<'p>,
    ) {
        match self.allocate(0) {
            Ok((extent, generation)) => {
                let at = PageRef { page: extent.page, generation };
                output.fresh.push((at, page));
                output.staged.push((index, Staged { at, marks }));
            }
            Err(error) => {
                output.error.get_or_insert(error);
                let lower = target.located.lower.bytes().to_vec();
                output.refused.push((lower, std::mem::take(&mut target.dirty)));
            }
        }
    }

    /// Edits the pages of one target; the records that find no room are moved from the target to
    /// those refused.
    fn edit_target<'p>(
        &'p self,
        bytes: &Bytes<'_>,
        target: &mut Target<'p>,
        buf: &AlignedBuf,
        next: &mut usize,
        output: &mut Output<'p>,
    ) {
        let Target { located, dirty, .. } = target;
        let mut refused = Vec::new();
        let mut kept = Vec::with_capacity(dirty.len());
        let mut why = None;
        for run in dirty.chunk_by(|a, b| a.page() == b.page()) {
            let page = run[0].page();
            let base = *next;
            *next += 1 + usize::from(located.segment.overflow(page).is_some());
            let overflow = (base + 1..*next).next().map(|at| buf.page(at));
            let pages = Pages { base: Some(buf.page(base)), overflow };
            let records: Vec<Dirty<'_>> = run.iter().map(|taken| bytes.dirty(taken)).collect();
            let places = std::iter::once(located.segment.base_page(page));
            let mut places = places.chain(located.segment.overflow(page)).zip(base..*next);
            let ours = places
                .try_for_each(|(at, index)| self.shape.check_bounds(located, at, buf.page(index)));
            if let Err(error) = ours {
                output.error.get_or_insert(error);
                refused.extend_from_slice(run);
                continue;
            }
            let edit = edit_in_place(&self.memory.buffers, located, page, pages, &records);
            let edit = edit.map(|edit| self.with_doubtful_pages(edit, pages));
            let inserted = edit.as_ref().map_or(0, |edit| edit.inserted);
            match edit.map(|edit| self.note_edit(located, page, edit, output)) {
                Some(Ok(may_shrink)) => {
                    if may_shrink {
                        why = why.or(Some(Why::Shrink));
                    }
                    self.bring_home(&[pages], &[], &records);
                    output.superseded.append(&mut self.superseded_by(&[pages], &records));
                    self.workload.novelty.lock().were_written_back(inserted, records.len());
                    kept.extend_from_slice(run);
                }
                Some(Err(error)) => {
                    output.error.get_or_insert(error);
                    refused.extend_from_slice(run);
                }
                None => {
                    why = Some(Why::Full);
                    refused.extend_from_slice(run);
                }
            }
        }
        let lower = located.lower.bytes();
        output.wanted.extend(why.map(|why| (located.clone(), why)));
        if !refused.is_empty() {
            output.refused.push((lower.to_vec(), refused));
        }
        *dirty = kept;
    }

    /// Has pages written as they are that an edit left as they were, if no sync may have kept what
    /// was replayed into them before (rule P21): a removal finds nothing to do there.
    fn with_doubtful_pages<'p>(&'p self, mut edit: Edit<'p>, pages: Pages<'_>) -> Edit<'p> {
        if self.shape.pages_in_doubt.load(Ordering::Relaxed) {
            let copy = |page: &[u8; PAGE_BYTES]| {
                let mut copied = self.memory.buffers.lend(1);
                copied.page_mut(0).copy_from_slice(page);
                copied
            };
            edit.base = edit.base.or_else(|| pages.base.map(copy));
            edit.overflow = edit.overflow.or_else(|| pages.overflow.map(copy));
        }
        edit
    }

    fn note_edit<'p>(
        &self,
        located: &Located,
        index: usize,
        edit: Edit<'p>,
        output: &mut Output<'p>,
    ) -> Result<bool> {
        let segment = &located.segment;
        if let Some(page) = edit.new_overflow {
            let (extent, generation) = self.allocate(0)?;
            let at = PageRef { page: extent.page, generation };
            let index = u8::try_from(index).expect("a segment has at most 16 pages");
            output.fresh.push((at, page));
            output.overflows.push((located.clone(), Overflow { index, at }));
        }
        if let Some(page) = &edit.base {
            let used = PageView::trusted(page.page(0)).used_bytes();
            self.workload.accesses.filled(1, used as u64);
        }
        output.in_place.extend(edit.base.map(|page| (segment.base_page(index), page)));
        output.in_place.extend(segment.overflow(index).zip(edit.overflow));
        Ok(edit.may_shrink)
    }

    /// Writes new pages, then those that are changed, each run of neighbours in one piece.
    fn write_output(&self, output: &mut Output<'_>, lsn: Lsn) -> Result<()> {
        for (pages, fresh) in [(&mut output.fresh, true), (&mut output.in_place, false)] {
            if pages.is_empty() {
                continue;
            }
            pages.sort_unstable_by_key(|(page, _)| page.page);
            let mut buf = self.memory.buffers.lend(pages.len());
            for (index, (page, block)) in pages.iter_mut().enumerate() {
                self.seal(*page, lsn, block.page_mut(0));
                buf.page_mut(index).copy_from_slice(block.page(0));
            }
            let numbers: Vec<PageNumber> = pages.iter().map(|(page, _)| page.page).collect();
            if fresh {
                self.shape.store.write_fresh(&numbers, &buf, Purpose::REORGANIZE)?;
                continue;
            }
            // Until it is known what became of them nobody may find them.
            let cached: Vec<bool> =
                pages.iter().map(|(page, _)| self.memory.pages.forget(*page)).collect();
            let filtered: Vec<bool> =
                pages.iter().map(|(page, _)| self.memory.filters.forget(*page)).collect();
            self.shape.store.write_in_place(&numbers, &mut buf, Purpose::WRITE_BACK)?;
            for (index, (page, _)) in pages.iter().enumerate().filter(|(index, _)| cached[*index]) {
                self.memory.pages.put(*page, buf.page(index));
            }
            for (index, (page, _)) in pages.iter().enumerate().filter(|(index, _)| filtered[*index])
            {
                self.memory.keep_filter(
                    self.context.keyspace,
                    *page,
                    PageView::trusted(buf.page(index)),
                );
            }
        }
        Ok(())
    }
}
