//! How much of what flushes bring to leaves is new, and how much may wait for a leaf therefore.
//!
//! What waits above a leaf is either a record that the leaf does not have, which takes the same space wherever
//! it is, or one in the place of another, which takes space twice until it is brought down. So where
//! records are new more may wait: flushes are larger, and less is made anew for each record. Each flush that
//! made a leaf anew knows what it was, by the bytes that it brought and those by which the leaf grew.

use std::ops::RangeInclusive;

/// What may wait for a leaf, in percent of the leaf, when nothing is new and when everything is.
const PENDING: RangeInclusive<u64> = 90..=190;

/// The last so many leaves' worth of flushes count, about.
const REMEMBERED_LEAVES: u64 = 128;

/// What flushes have brought of late, in packed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    brought: u64,
    grown: u64,
}

impl Growth {
    /// Adds a flush, or several; leaves have so many bytes.
    pub(crate) fn follow(&mut self, brought: u64, grown: u64, leaf_bytes: u64) {
        self.brought += brought;
        self.grown += grown.min(brought);
        if self.brought > leaf_bytes.saturating_mul(REMEMBERED_LEAVES) {
            self.brought /= 2;
            self.grown /= 2;
        }
    }

    /// What may wait for a leaf, in percent of the leaf.
    pub(crate) fn pending_percent(&self) -> u64 {
        let (least, most) = PENDING.into_inner();
        let part = u128::from(most - least) * u128::from(self.grown);
        let more = part / u128::from(self.brought.max(1));
        least + u64::try_from(more).unwrap_or(most - least)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn more_may_wait_where_records_are_new() {
        let mut growth = Growth::default();
        assert_eq!(growth.pending_percent(), *PENDING.start(), "nothing is known");
        let leaf = 1000;
        let after = |growth: &mut Growth, flushes: u64, grown| {
            (0..flushes).for_each(|_| growth.follow(500, grown, leaf));
            growth.pending_percent()
        };
        assert_eq!(after(&mut growth, 10, 500), *PENDING.end());
        // One flush in between says little; many of them all.
        let before = after(&mut growth, 800, 500);
        let once = after(&mut growth, 1, 0);
        assert!(once < before && before - once < 4, "{before} {once}");
        let half = after(&mut growth, 4000, 250);
        assert!(half.abs_diff((PENDING.start() + PENDING.end()) / 2) < 3, "{half}");
        assert!(after(&mut growth, 4000, 0) < PENDING.start() + 3);
        // Leaves may grow by more than was brought when they are joined.
        assert!(after(&mut growth, 4000, 5000) <= *PENDING.end());
    }
}
