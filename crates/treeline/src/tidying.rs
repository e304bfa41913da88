//! When a quiet keyspace is tidied, and what: pure decisions, carried out by [`tidy`](crate::tidy).

use std::time::Duration;

use crate::policy::{
    FEW_SECONDS, MANY_SECONDS, OVERFLOW_SHARE, PASSED_BY_MAX, QUIET_ROUNDS, REMADE_SHARE,
    SCANNED_PER_INSERT, WATCH_MIN,
};

/// Where tidying is.
#[derive(Debug, Default)]
pub(crate) struct Tidying {
    quiet_rounds: u32,
    pub(crate) merging: Merging,
    pub(crate) packing: Packing,
    pub(crate) watch: Watch,
}

impl Tidying {
    /// Notes that something was written: tidying waits.
    pub(crate) fn disturb(&mut self) {
        self.quiet_rounds = 0;
    }

    /// Whether the background has found nothing to do for long enough, this turn included.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.quiet_rounds = (self.quiet_rounds + 1).min(QUIET_ROUNDS + 1);
        self.quiet_rounds > QUIET_ROUNDS
    }
}

#[derive(Debug, Default)]
pub(crate) struct Merging {
    /// The lower bound to go on from; empty between two passes.
    pub(crate) from: Vec<u8>,
    /// Whether this pass has changed something.
    pub(crate) changed: bool,
    /// How many overflow pages there were when a pass changed nothing.
    pub(crate) settled: Option<u64>,
}

impl Merging {
    pub(crate) fn is_due(&self, overflow_pages: u64, pages: u64, inserts: Inserts) -> bool {
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
pub(crate) struct Packing {
    /// The lower bound to go on from; empty between two passes.
    pub(crate) from: Vec<u8>,
    /// Regions to skip after the next one that is full enough.
    pass_by: usize,
    /// Pages made when this pass began, and when the last one that ended did.
    made_before: u64,
    packed: Option<u64>,
}

impl Packing {
    /// Whether there may be something to pack. `made` counts the pages that were made in this life
    /// other than by packing; how many earlier lives left is unknown.
    pub(crate) fn is_due(&self, made: u64, pages: u64) -> bool {
        let due = |packed: u64| made.saturating_sub(packed) * REMADE_SHARE >= pages.max(1);
        !self.from.is_empty() || self.packed.is_none_or(due)
    }

    pub(crate) fn begin(&mut self, made: u64) {
        if self.from.is_empty() {
            (self.made_before, self.pass_by) = (made, 0);
        }
    }

    /// Continues at `next`, or ends the pass if it is `None`.
    pub(crate) fn go_on(&mut self, next: Option<Vec<u8>>) {
        if next.is_none() {
            self.packed = Some(self.made_before);
        }
        self.from = next.unwrap_or_default();
    }

    /// Notes whether a region was worth packing, and returns how many to skip after it.
    pub(crate) fn found(&mut self, worth_it: bool) -> usize {
        self.pass_by = if worth_it { 0 } else { (2 * self.pass_by + 1).min(PASSED_BY_MAX) };
        self.pass_by
    }
}

/// What is tidied.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum What {
    Pack,
    /// Overflow pages, and staged ones or not.
    Merge {
        staged: bool,
    },
}

/// How many inserts come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Inserts {
    Few,
    Some,
    /// Or nothing is known yet.
    #[default]
    Many,
}

/// Recent inserts, and pages that scans read recently.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    since: Duration,
    /// What had been counted then.
    inserted: u64,
    scanned: u64,
    pub(crate) inserts: Inserts,
    scans_outweigh: bool,
}

impl Watch {
    /// Looks at the time and at what was counted up to it; `pages` are those of the keyspace.
    pub(crate) fn look(&mut self, now: Duration, inserted: u64, scanned: u64, pages: u64) {
        let time = now.saturating_sub(self.since);
        if time < WATCH_MIN {
            return;
        }
        let (new, read) = (inserted.saturating_sub(self.inserted), scanned - self.scanned);
        // As many inserts as one for each page in this many seconds.
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
    pub(crate) fn room_is_idle(&self) -> bool {
        self.inserts == Inserts::Few || self.scans_outweigh
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
        assert!(packing.is_due(0, 800), "what earlier lives left is unknown");
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
        assert!(merging.is_due(1, 1280, Inserts::Some), "the pass continues");
        assert!(!merging.is_due(1000, 1280, Inserts::Many), "but not for now");
        merging.settled = Some(5);
        assert!(!merging.is_due(5, 1280, Inserts::Few));
        assert!(merging.is_due(6, 1280, Inserts::Few));
    }
}
