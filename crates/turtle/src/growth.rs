//! How much of what is flushed to leaves is new, and how much may be pending for a leaf because of
//! that.
//!
//! What is pending above a leaf is either a record that the leaf does not have, which takes the
//! same space wherever it is, or one that overwrites another, which takes space twice until it is
//! flushed. So where records are new more may be pending: flushes are larger, and less of a leaf is
//! rewritten for each record. Each flush that rewrites a leaf tells which it was, by the bytes that
//! it flushed and those by which the leaf grew. The part of what may be pending that is not new is
//! [`SPACE_PERCENT`](policy::SPACE_PERCENT) of the leaf.

use crate::policy;

/// What was flushed recently, in packed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    brought: u64,
    grown: u64,
}

impl Growth {
    /// Adds a flush, or several; about `remembered` bytes of them count.
    pub(crate) fn follow(&mut self, brought: u64, grown: u64, remembered: u64) {
        self.brought += brought;
        self.grown += grown.min(brought);
        if self.brought > remembered {
            self.brought /= 2;
            self.grown /= 2;
        }
    }

    /// What may be pending for a leaf, in percent of the leaf.
    pub(crate) fn pending_percent(&self) -> u64 {
        policy::pending_percent(self.brought, self.grown)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::policy::{PENDING_PERCENT, PENDING_PERCENT_MAX, SPACE_PERCENT, remembered_bytes};

    #[test]
    fn more_may_wait_where_records_are_new() {
        let mut growth = Growth::default();
        assert_eq!(growth.pending_percent(), PENDING_PERCENT, "nothing is known");
        let remembered = remembered_bytes(1000, 100_000);
        let after = |growth: &mut Growth, flushes: u64, grown| {
            (0..flushes).for_each(|_| growth.follow(500, grown, remembered));
            growth.pending_percent()
        };
        assert_eq!(after(&mut growth, 10, 500), PENDING_PERCENT_MAX);
        // One flush in between says little; many of them all.
        after(&mut growth, 800, 500);
        let once = after(&mut growth, 1, 0);
        assert_eq!(once, PENDING_PERCENT_MAX);
        let half = after(&mut growth, 400, 250);
        assert!(half.abs_diff(2 * SPACE_PERCENT) < 3, "{half}");
        assert!(after(&mut growth, 400, 0) < SPACE_PERCENT + 3);
        // Leaves may grow by more than was brought when they are joined.
        assert_eq!(after(&mut growth, 4000, 5000), PENDING_PERCENT_MAX);
    }
}
