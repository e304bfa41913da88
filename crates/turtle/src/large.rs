//! The owner of a keyspace's large values ([`Values`](spinney_extent::Values), rule P17).
//!
//! Positions are numbers of memtables. A pointer lies in a memtable or in the tree, and is *merged
//! away* when a newer edit of its key replaces it in its memtable or meets it in the tree. The tree
//! of a checkpoint that covers memtable n has no pointer that was merged away before, and the log
//! is replayed only behind memtable n: nothing durable names it. Snapshots and readers may, and
//! pin.
//!
//! **Invariant.** The newest tree holds exactly the pointers whose extents are live since a
//! memtable up to its newest one: this is what its checkpoint lists. A newer pointer is found again
//! in the log, or was not promised. Within the tree pointers are merged away, and checkpoints
//! taken, by one thread at a time.

use spinney_extent::values::Owner;

/// Of the values of one keyspace.
#[derive(Debug)]
pub(crate) struct ByMemtable;

impl Owner for ByMemtable {
    /// No checkpoint covers it before it is applied.
    fn position_of_replayed(&self) -> u64 {
        u64::MAX
    }
}
