//! Tidying: when nothing else is to be done, overflow pages are merged into their segments and pages
//! that have more room than anybody needs any more are packed (TreeLine, section 4.5, which only
//! does the one, and only when they are full).
//!
//! A load in random order leaves every third page with an overflow page: until that is full, writing
//! it costs less than making the segment anew. And it leaves room for inserts that may never come.
//! Reading does not agree: an overflow page is a second read for absent keys and one more page for
//! every scan, and a page half empty is half a page too much. So once a keyspace has been quiet for
//! a moment, the background goes through the index in the order of keys, in two ways, and rests after
//! each reorganization, for whoever reads meanwhile.
//!
//! ```text
//!   packing   |  region of up to 64 pages  |  next  |     reads all; writes if a tenth fewer do
//!   merging   | segment with many overflow pages |  ->    the next such segment
//! ```
//!
//! *Packing* goes first, as it merges what it meets. It is worth it when pages were made since the
//! last time ([`REMADE_SHARE`]) and the room in them is of no use ([`Watch`]): hardly any inserts
//! come, or scans read far more pages than inserts fill. Nobody notes how full pages are, so it
//! finds out by reading; behind a region that was full enough it passes some by, more each time, so
//! that what is packed already is hardly read again, and what is not is met all the same.
//!
//! *Merging* is done in passes, of [staged](crate::stage) pages only where room is of no use: while inserts come a pass begins only when there is something to
//! merge for one page in [`OVERFLOW_SHARE`], as each insert into a page without room costs an
//! overflow page, and merging at once would write the whole segment for it. While very many come,
//! as in a load whose background has a moment's rest, nothing is merged: it would not stay so.
//!
//! **Invariants**
//! 1. Nothing is tidied while the background brings records home ([`QUIET_ROUNDS`]).
//! 2. Nothing is tidied while a copy of the keyspace is made, which would have to follow.
//! 3. There is an end: merging rests after a pass that changed nothing until there are more overflow
//!    pages, and packing after each pass until other pages were made.

use std::cell::Cell;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, Result};
use spinney_engine::Compacted;

use crate::reorganize::{Outcome, REGION_PAGES_MAX, Why};
use crate::segment::{Located, Segment};
use crate::tree::TreeLine;

/// So often in a row the background must have found nothing to do.
const QUIET_ROUNDS: u32 = 4;

/// Shortest rest between two reorganizations.
const REST_MIN: Duration = Duration::from_millis(1);

/// Packing rests so much shorter: it ends, and what waits behind it in the disk's queue for a moment
/// has its pages back soon.
const PACKING_PER_REST: u32 = 4;

/// While inserts come, overflow pages are merged when there is one for so many pages.
const OVERFLOW_SHARE: u64 = 128;

/// Pages are packed when one in so many was made since by others.
const REMADE_SHARE: u64 = 8;

/// Regions that are passed by behind one that is full enough, at most.
const PASSED_BY_MAX: usize = 31;

/// How long is looked at what comes before it counts.
const WATCH_MIN: Duration = Duration::from_secs(1);

/// Inserts are few if there is one for each page in so many seconds.
const FEW_SECONDS: u128 = 1000;

/// Inserts are many if there is one for each page in so few seconds: pages that were just made
/// would have overflow pages again.
const MANY_SECONDS: u128 = 16;

/// Scans are many if they read so many pages for each insert: one costs as much as a page read and
/// a segment made anew, and packing saves a scan a fourth of its pages.
const SCANNED_PER_INSERT: u64 = 16;

/// How often a region is compacted that writers change meanwhile.
const TRIES_MAX: usize = 3;

/// Where tidying is.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    quiet_rounds: u32,
    merging: Merging,
    packing: Packing,
    watch: Watch,
}

#[derive(Debug, Default)]
struct Merging {
    /// The lower bound to go on from; empty between two passes.
    from: Vec<u8>,
    /// Whether this pass has changed something.
    changed: bool,
    /// How many overflow pages there were when a pass changed nothing.
    settled: Option<u64>,
}

impl Merging {
    fn is_due(&self, overflow_pages: u64, pages: u64, inserts: Inserts) -> bool {
        let settled = self.settled.is_some_and(|settled| overflow_pages <= settled);
        let under_way = !self.from.is_empty();
        let enough = match inserts {
            Inserts::Few => true,
            Inserts::Some => under_way || overflow_pages * OVERFLOW_SHARE >= pages,
            Inserts::Many => false,
        };
        overflow_pages > 0 && !settled && enough
    }
}

#[derive(Debug, Default)]
struct Packing {
    /// The lower bound to go on from; empty between two passes.
    from: Vec<u8>,
    /// Regions to pass by behind the next one that is full enough.
    pass_by: usize,
    /// What had been made when this pass began, and when the last one that ended did.
    made_before: u64,
    packed: Option<u64>,
}

impl Packing {
    /// Whether there is something to pack, as far as can be told. `made` counts the pages that were
    /// made by anything else, of this life: what earlier ones left nobody knows.
    fn is_due(&self, made: u64, pages: u64) -> bool {
        let due = |packed: u64| made.saturating_sub(packed) * REMADE_SHARE >= pages.max(1);
        !self.from.is_empty() || self.packed.is_none_or(due)
    }

    fn begin(&mut self, made: u64) {
        if self.from.is_empty() {
            (self.made_before, self.pass_by) = (made, 0);
        }
    }

    /// Goes on at `next`, or ends there.
    fn go_on(&mut self, next: Option<Vec<u8>>) {
        if next.is_none() {
            self.packed = Some(self.made_before);
        }
        self.from = next.unwrap_or_default();
    }

    /// How many regions to pass by now.
    fn found(&mut self, worth_it: bool) -> usize {
        self.pass_by = if worth_it { 0 } else { (2 * self.pass_by + 1).min(PASSED_BY_MAX) };
        self.pass_by
    }
}

/// What is tidied.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Pack,
    /// Overflow pages, and staged ones or not.
    Merge {
        staged: bool,
    },
}

/// How many inserts come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Inserts {
    Few,
    Some,
    /// Or nothing is known yet.
    #[default]
    Many,
}

/// What came lately: inserts, and pages that scans read.
#[derive(Debug, Default)]
struct Watch {
    since: Duration,
    /// What had been counted then.
    inserted: u64,
    scanned: u64,
    inserts: Inserts,
    scans_outweigh: bool,
}

impl Watch {
    /// Looks at the time and at what was counted up to it; `pages` are those of the keyspace.
    fn look(&mut self, now: Duration, inserted: u64, scanned: u64, pages: u64) {
        let time = now.saturating_sub(self.since);
        if time < WATCH_MIN {
            return;
        }
        let (new, read) = (inserted.saturating_sub(self.inserted), scanned - self.scanned);
        // One for each page in so many seconds would be so many.
        let in_seconds = |seconds| u128::from(pages) * time.as_millis() / (seconds * 1000);
        self.inserts = match u128::from(new) {
            few if few <= in_seconds(FEW_SECONDS) => Inserts::Few,
            some if some <= in_seconds(MANY_SECONDS) => Inserts::Some,
            _ => Inserts::Many,
        };
        self.scans_outweigh = read > 0 && read >= new.saturating_mul(SCANNED_PER_INSERT);
        (self.since, self.inserted, self.scanned) = (now, inserted, scanned);
    }

    /// Whether room in pages is of no use.
    fn room_is_idle(&self) -> bool {
        self.inserts == Inserts::Few || self.scans_outweigh
    }
}

/// Whether a segment has so many pages beside its extent that it is worth to make it anew: one for every four
/// pages. Staged ones count or not.
fn is_untidy(segment: &Segment, staged: bool) -> bool {
    let beside = segment.overflows.len() + if staged { segment.staged.len() } else { 0 };
    beside > 0 && 4 * beside >= segment.base_pages()
}

impl TreeLine {
    /// Somebody has written: tidying waits.
    pub(crate) fn disturb_tidying(&self) {
        self.tidying.lock().quiet_rounds = 0;
    }

    /// Makes one region anew, if it is time and there is one to be; says how long to rest after it.
    ///
    /// # Errors
    /// `Poisoned`, `Io`, `Corruption`. A full disk is none: what is not tidy is right all the same.
    pub(crate) fn tidy(&self) -> Result<Option<Duration>> {
        if self.store.is_held() {
            return Ok(None);
        }
        let counts = self.index.counts();
        let pages = counts.base_pages();
        self.accesses.follow_pages(pages);
        let beside = |staged| counts.overflow_pages + if staged { counts.staged_pages } else { 0 };
        let made = (self.writes.reorganized_pages_out.load(Ordering::Relaxed))
            .saturating_sub(self.writes.packed_pages_out.load(Ordering::Relaxed));
        let start = self.context.runtime.now();
        let (what, from) = {
            let mut tidying = self.tidying.lock();
            let (_, inserted) = self.accesses.puts();
            tidying.watch.look(start, inserted, self.accesses.pages_scanned(), pages);
            tidying.quiet_rounds += 1;
            if tidying.quiet_rounds <= QUIET_ROUNDS || pages == 0 {
                return Ok(None);
            }
            tidying.quiet_rounds = QUIET_ROUNDS;
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
        let rest = if what == What::Pack { took / PACKING_PER_REST } else { took };
        Ok(Some(rest.max(REST_MIN)))
    }

    /// Merges the overflow pages, and if so wanted the staged pages, of the next segment that has many.
    fn merge_next(&self, from: &[u8], staged: bool) -> Result<()> {
        let (found, next) = self.index.segments_where(from, 1, |one| is_untidy(one, staged));
        let mut changed = false;
        let mut full = false;
        if let Some(located) = found.first() {
            let _gate = self.gate.read();
            match self.reorganize(located, Why::Tidy) {
                Err(error) if error.kind() == ErrorKind::Full => full = true,
                done => changed = done? == Outcome::Done,
            }
        }
        let mut tidying = self.tidying.lock();
        let merging = &mut tidying.merging;
        merging.changed |= changed;
        let ended = next.is_none();
        merging.from = next.unwrap_or_default();
        if full || ended && !std::mem::take(&mut merging.changed) {
            let counts = self.index.counts();
            merging.settled = Some(counts.overflow_pages + counts.staged_pages);
        } else if changed {
            merging.settled = None;
        }
        Ok(())
    }

    /// The segments that are packed together, from the one that a key belongs to on, at least one; and where
    /// the next ones begin.
    fn region_from(&self, from: &[u8]) -> (Vec<Located>, Option<Vec<u8>>) {
        let (mut found, mut next) = self.index.segments_where(from, REGION_PAGES_MAX, |_| true);
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

    /// Rebuilds the segments of a region, from the one that holds a key on, if they take fewer pages then: merges
    /// overflow pages and staged ones, and fills pages.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io`, `Corruption`; the records are as they were.
    pub(crate) fn compact_region(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        let (mut found, mut next) = self.region_from(from);
        let pages: usize = found.iter().map(|located| located.segment.pages()).sum();
        let bytes = (pages * PAGE_BYTES) as u64;
        for _ in 0..TRIES_MAX {
            let seed = found.first().filter(|located| !located.segment.is_virtual());
            let Some(seed) = seed else { break };
            let outcome = {
                let _gate = self.gate.read();
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
            let (found, next) = self.index.segments_where(&key, REGION_PAGES_MAX, |_| true);
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
            let _gate = self.gate.read();
            done = self.reorganize(located, Why::Pack);
        }
        if done.as_ref().is_err_and(spinney_base::Error::is_full) {
            self.tidying.lock().packing.go_on(None);
            return Ok(());
        }
        let pass_by = self.tidying.lock().packing.found(done? == Outcome::Done) * segments;
        if let (Some(from), 1..) = (&next, pass_by) {
            let left = Cell::new(pass_by);
            let is_behind = |_: &Segment| left.replace(left.get().max(1) - 1) == 0;
            let (behind, _) = self.index.segments_where(from, 1, is_behind);
            next = behind.first().map(|located| located.lower.bytes().to_vec());
        }
        self.tidying.lock().packing.go_on(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn room_is_idle_when_inserts_are_few_or_scans_outweigh_them() {
        let mut watch = Watch::default();
        assert!(!watch.room_is_idle(), "nothing is known");
        watch.look(SECOND / 2, 0, 0, 1000);
        assert!(!watch.room_is_idle(), "too early");
        // A thousand pages take an insert a second; 62 are many.
        for (seconds, inserted, scanned, inserts, outweigh) in [
            (2, 0, 0, Inserts::Few, false),
            (4, 2, 0, Inserts::Few, false),
            (6, 5, 0, Inserts::Some, false),
            (8, 105, 1599, Inserts::Some, false),
            (10, 205, 3199, Inserts::Some, true),
            (12, 405, 3199, Inserts::Many, false),
            (14, 405, 3199, Inserts::Few, false),
            (16, 405, 3200, Inserts::Few, true),
        ] {
            watch.look(seconds * SECOND, inserted, scanned, 1000);
            assert_eq!((watch.inserts, watch.scans_outweigh), (inserts, outweigh), "{seconds}");
            watch.look(seconds * SECOND + SECOND / 2, inserted + 1000, scanned, 1000);
            assert_eq!((watch.inserts, watch.scans_outweigh), (inserts, outweigh), "{seconds}");
        }
    }

    #[test]
    fn packing_is_due_once_and_when_pages_were_made() {
        let mut packing = Packing::default();
        assert!(packing.is_due(0, 800), "who knows what was left");
        packing.begin(50);
        packing.go_on(Some(vec![1]));
        packing.begin(120);
        assert!(packing.is_due(120, 800));
        packing.go_on(None);
        // Pages that were made during the pass may be behind it.
        assert!(!packing.is_due(149, 800));
        assert!(packing.is_due(150, 800));
    }

    #[test]
    fn packed_regions_are_passed_by_and_others_met() {
        let mut packing = Packing::default();
        let passed: Vec<usize> = (0..7).map(|_| packing.found(false)).collect();
        assert_eq!(passed, [1, 3, 7, 15, 31, 31, 31]);
        assert_eq!(packing.found(true), 0);
        assert_eq!(packing.found(false), 1);
    }

    #[test]
    fn merging_waits_for_many_while_inserts_come() {
        let mut merging = Merging::default();
        assert!(!merging.is_due(0, 1280, Inserts::Few));
        assert!(merging.is_due(1, 1280, Inserts::Few));
        assert!(!merging.is_due(9, 1280, Inserts::Some));
        assert!(merging.is_due(10, 1280, Inserts::Some));
        assert!(!merging.is_due(1000, 1280, Inserts::Many));
        merging.from = vec![1];
        assert!(merging.is_due(1, 1280, Inserts::Some), "the pass goes on");
        assert!(!merging.is_due(1000, 1280, Inserts::Many), "but not for now");
        merging.settled = Some(5);
        assert!(!merging.is_due(5, 1280, Inserts::Few));
        assert!(merging.is_due(6, 1280, Inserts::Few));
    }
}
