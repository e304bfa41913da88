//! Gaps: where readers of ranges leave their marks.
//!
//! ```text
//!   leaf [a .. m]  gap 7  --->  board[hash of 7]    bits and stamp of the readers of any part of it
//!
//!   split          quiet:  [a .. g] gap 8, [g .. m] gap 9          else both keep gap 7
//!   join           one of them quiet: the other's                  else the leaves stay apart
//! ```
//!
//! A transaction that reads a range marks the gap of each leaf, and remembers the range. At its commit it looks at the
//! records that have cells, for the stamps of later writers: absent ones too, so an insert is
//! found as the overwriter of "no value". A writer, once it has drawn its stamp, comes after all that have marked the
//! gap that its key lies in. So a range needs no stamp for each record.
//!
//! **Invariants**
//! 1. A gap may have the marks of many leaves: that makes an eta greater than it has to be. It never lacks one that a
//!    running transaction has made, or that a running transaction would come after.
//! 2. A leaf's gap changes under its latch, where it is quiet: no transaction that runs has marked it, and its stamp is
//!    at or below all begin stamps. A reader marks first and validates the latch behind it, so one whose mark was missed
//!    reads again, and marks the new gap.
//! 3. Gaps are incarnations, so no two leaves get the same one.
//!
//! **Differs from the paper**, whose scans set a bit for each record; and from a node set, which aborts a reader at
//! each insert into a leaf that it has read.

use spinney_engine::Certifier;

/// The gaps of a keyspace. Thread-safe.
#[derive(Clone, Debug)]
pub(crate) struct Gaps {
    pub(crate) certifier: Certifier,
    salt: u64,
}

/// A multiplier that spreads neighbouring numbers over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Gaps {
    pub(crate) fn new(certifier: Certifier, keyspace: u32) -> Gaps {
        Gaps { certifier, salt: u64::from(keyspace) << 40 }
    }

    /// Returns the place of a gap on the board.
    #[inline]
    pub(crate) fn place(&self, gap: u64) -> u64 {
        (self.salt ^ gap).wrapping_add(1).wrapping_mul(SPREAD)
    }

    /// Whether leaves of this gap may get others. The holder of their latches asks.
    pub(crate) fn is_quiet(&self, gap: u64) -> bool {
        self.certifier.is_quiet(self.place(gap))
    }
}
