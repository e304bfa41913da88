//! Tidying: when nothing else is to be done, overflow pages are merged into their segments, and
//! pages with more room than inserts need are packed (TreeLine, section 4.5, merges only overflow
//! pages, and only full ones).
//!
//! A load in random order leaves every third page with an overflow page: until that is full,
//! writing it costs less than rewriting the segment. The load also leaves room for inserts that may
//! never come. Reads pay for both: an overflow page is a second read for absent keys and one more
//! page for every scan, and a half-empty page is half a page too much. So once a keyspace has been
//! quiet for a moment, the background goes through the index in key order, in two ways. It rests
//! after each reorganization, to leave the disk to readers.
//!
//! ```text
//!   packing   |  region of up to 64 pages  |  next  |     reads all; writes if a tenth fewer do
//!   merging   | segment with many overflow pages |  ->    the next such segment
//! ```
//!
//! *Packing* goes first, because it also merges the overflow pages that it meets. It is worth it
//! when pages were made since the last pass ([`REMADE_SHARE`](crate::policy::REMADE_SHARE)) and the
//! room in them is of no use ([`tidying`](crate::tidying)): hardly any inserts come, or scans read
//! far more pages than inserts fill. The index does not say how full each page is, so packing finds
//! out by reading. After a region that was full enough it skips some, more each time: it hardly
//! reads again what is packed, and still meets what is not.
//!
//! *Merging* is done in passes, over [staged](crate::stage) pages only where room is of no use.
//! While inserts come, a pass begins only when one page in
//! [`OVERFLOW_SHARE`](crate::policy::OVERFLOW_SHARE) has something to merge: each insert into a
//! page without room costs an overflow page, and merging at once would write the whole segment for
//! it. While very many inserts come, as in a load whose background rests for a moment, nothing is
//! merged, because overflow pages would soon be back.
//!
//! **Invariants**
//! 1. Nothing is tidied while the background writes records back
//!    ([`QUIET_ROUNDS`](crate::policy::QUIET_ROUNDS)).
//! 2. Nothing is tidied while the keyspace is copied, because the copy would have to follow.
//! 3. Tidying ends: merging rests after a pass that changed nothing until there are more overflow
//!    pages, and packing rests after each pass until other pages were made.

use std::cell::Cell;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, Result};
use spinney_engine::Compacted;

use crate::policy::{self, REGION_PAGES_MAX};
use crate::reorganize::{Outcome, Why};
use crate::segment::{Located, Segment};
use crate::tidying::{Tidying, What};
use crate::tree::TreeLine;

/// Whether a segment has many overflow pages, and staged ones if they count (`staged`).
fn is_untidy(segment: &Segment, staged: bool) -> bool {
    let beside = segment.overflows.len() + if staged { segment.staged.len() } else { 0 };
    policy::is_untidy(beside, segment.base_pages())
}

impl TreeLine {
    /// Reorganizes one region if one is due, and returns how long to rest after it.
    ///
    /// # Errors
    /// `Poisoned`, `Io`, `Corruption`. A full disk is no error: an untidy keyspace is correct.
    pub(crate) fn tidy(&self) -> Result<Option<Duration>> {
        if self.shape.store.is_held() {
            return Ok(None);
        }
        let counts = self.shape.index.counts();
        let pages = counts.base_pages();
        self.workload.accesses.follow_pages(pages);
        let beside = |staged| counts.overflow_pages + if staged { counts.staged_pages } else { 0 };
        let made = (self.workload.writes.reorganized_pages_out.load(Ordering::Relaxed))
            .saturating_sub(self.workload.writes.packed_pages_out.load(Ordering::Relaxed));
        let start = self.context.runtime.now();
        let (what, from) = {
            let mut tidying = self.background.tidying.lock();
            let (_, inserted) = self.workload.accesses.puts();
            tidying.watch.look(start, inserted, self.workload.accesses.pages_scanned(), pages);
            if !tidying.is_quiet() || pages == 0 {
                return Ok(None);
            }
            let Tidying { merging, packing, watch, .. } = &mut *tidying;
            if watch.room_is_idle() && packing.is_due(made, pages) {
                packing.begin(made);
                (What::Pack, packing.from.clone())
            } else if merging.is_due(beside(watch.room_is_idle()), pages, watch.inserts) {
                (What::Merge { staged: watch.room_is_idle() }, merging.from.clone())
            } else {
                return Ok(None);
            }
        };
        match what {
            What::Pack => self.pack_next(&from)?,
            What::Merge { staged } => self.merge_next(&from, staged)?,
        }
        let took = self.context.runtime.now().saturating_sub(start);
        let rest = if what == What::Pack { took / policy::PACKING_PER_REST } else { took };
        Ok(Some(rest.max(policy::REST_MIN)))
    }

    /// Merges the overflow pages, and the staged pages if they count, of the next segment with
    /// many.
    fn merge_next(&self, from: &[u8], staged: bool) -> Result<()> {
        let (found, next) = self.shape.index.segments_where(from, 1, |one| is_untidy(one, staged));
        let mut changed = false;
        let mut full = false;
        if let Some(located) = found.first() {
            let _gate = self.shape.gate.read();
            match self.reorganize(located, Why::Tidy) {
                Err(error) if error.kind() == ErrorKind::Full => full = true,
                done => changed = done? == Outcome::Done,
            }
        }
        let mut tidying = self.background.tidying.lock();
        let merging = &mut tidying.merging;
        merging.changed |= changed;
        let ended = next.is_none();
        merging.from = next.unwrap_or_default();
        if full || ended && !std::mem::take(&mut merging.changed) {
            let counts = self.shape.index.counts();
            merging.settled = Some(counts.overflow_pages + counts.staged_pages);
        } else if changed {
            merging.settled = None;
        }
        Ok(())
    }

    /// The segments that are packed together, from the one that a key belongs to on, at least one;
    /// and where the next ones begin.
    fn region_from(&self, from: &[u8]) -> (Vec<Located>, Option<Vec<u8>>) {
        let (mut found, mut next) =
            self.shape.index.segments_where(from, REGION_PAGES_MAX, |_| true);
        let mut pages = 0;
        let end = found.iter().position(|located| {
            pages += located.segment.pages();
            pages > REGION_PAGES_MAX
        });
        let segments = end.unwrap_or(found.len()).max(1);
        if let Some(behind) = found.get(segments) {
            next = Some(behind.lower.bytes().to_vec());
        }
        found.truncate(segments);
        (found, next)
    }

    /// Rewrites the segments of a region, from the one that holds a key on, if they take fewer
    /// pages then: merges overflow pages and staged ones, and fills pages.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io`, `Corruption`; the records are as they were.
    pub(crate) fn compact_region(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        let (mut found, mut next) = self.region_from(from);
        let pages: usize = found.iter().map(|located| located.segment.pages()).sum();
        let bytes = (pages * PAGE_BYTES) as u64;
        for _ in 0..policy::COMPACT_TRIES_MAX {
            let seed = found.first().filter(|located| !located.segment.is_virtual());
            let Some(seed) = seed else { break };
            let outcome = {
                let _gate = self.shape.gate.read();
                self.reorganize(seed, Why::Compact)?
            };
            if outcome != Outcome::Changed {
                break;
            }
            // A writer was there first.
            (found, next) = self.region_from(from);
        }
        let is_within = |next: &Vec<u8>| match upper {
            Bound::Included(upper) => &next[..] <= upper,
            Bound::Excluded(upper) => &next[..] < upper,
            Bound::Unbounded => true,
        };
        Ok(Compacted { bytes, next: next.filter(is_within) })
    }

    /// Bytes of the pages of the segments from the one that a key belongs to up to a bound.
    pub(crate) fn bytes_of_range(&self, from: &[u8], upper: Bound<&[u8]>) -> u64 {
        let mut from = Some(from.to_vec());
        let mut pages = 0;
        while let Some(key) = from {
            let (found, next) = self.shape.index.segments_where(&key, REGION_PAGES_MAX, |_| true);
            let is_within = |lower: &[u8]| match upper {
                Bound::Included(upper) | Bound::Excluded(upper) => lower <= upper,
                Bound::Unbounded => true,
            };
            let within = found.iter().take_while(|located| is_within(located.lower.bytes()));
            pages += within.map(|located| located.segment.pages()).sum::<usize>();
            from = next.filter(|next| is_within(next));
        }
        (pages * PAGE_BYTES) as u64
    }

    /// Packs the next region, if that is worth it.
    fn pack_next(&self, from: &[u8]) -> Result<()> {
        let (found, mut next) = self.region_from(from);
        let segments = found.len();
        let seed = found.first().filter(|located| !located.segment.is_virtual());
        let mut done = Ok(Outcome::NotWorthIt);
        if let Some(located) = seed {
            let _gate = self.shape.gate.read();
            done = self.reorganize(located, Why::Pack);
        }
        if done.as_ref().is_err_and(spinney_base::Error::is_full) {
            self.background.tidying.lock().packing.go_on(None);
            return Ok(());
        }
        let pass_by =
            self.background.tidying.lock().packing.found(done? == Outcome::Done) * segments;
        if let (Some(from), 1..) = (&next, pass_by) {
            let left = Cell::new(pass_by);
            let is_behind = |_: &Segment| left.replace(left.get().max(1) - 1) == 0;
            let (behind, _) = self.shape.index.segments_where(from, 1, is_behind);
            next = behind.first().map(|located| located.lower.bytes().to_vec());
        }
        self.background.tidying.lock().packing.go_on(next);
        Ok(())
    }
}
