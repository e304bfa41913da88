//! What is counted of transactions.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Numbers about the transactions of a database since it was opened, and its snapshots now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TransactionStats {
    /// Transactions that began.
    pub begun: u64,
    /// Transactions that committed, with writes or without.
    pub committed: u64,
    /// Conflicts because a value that was read has changed.
    pub conflicts_changed: u64,
    /// Conflicts because what was read was never at rest for long enough to be looked at whole.
    pub conflicts_busy: u64,
    /// Conflicts because a keyspace was loaded, dropped or converted meanwhile.
    pub conflicts_loaded: u64,
    /// Times that a transaction looked again at what it had read, to move to a later moment.
    pub extensions: u64,
    /// Ranges that open transactions have read and guard now.
    pub guards: u64,
    /// Snapshots that live. What they keep is among the numbers of each keyspace.
    pub snapshots: u64,
    /// Age of the oldest snapshot, in nanoseconds.
    pub oldest_snapshot_ns: Option<u64>,
}

/// Why a transaction cannot commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Changed,
    Busy,
    Loaded,
}

/// Counts for [`TransactionStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    begun: AtomicU64,
    committed: AtomicU64,
    conflicts: [AtomicU64; 3],
    extensions: AtomicU64,
}

impl Counters {
    pub(crate) fn count_begin(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_commit(&self) {
        self.committed.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_conflict(&self, cause: Cause) {
        self.conflicts[cause as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_extension(&self) {
        self.extensions.fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> TransactionStats {
        let conflicts = |cause: Cause| self.conflicts[cause as usize].load(Relaxed);
        TransactionStats {
            begun: self.begun.load(Relaxed),
            committed: self.committed.load(Relaxed),
            conflicts_changed: conflicts(Cause::Changed),
            conflicts_busy: conflicts(Cause::Busy),
            conflicts_loaded: conflicts(Cause::Loaded),
            extensions: self.extensions.load(Relaxed),
            guards: 0,
            snapshots: 0,
            oldest_snapshot_ns: None,
        }
    }
}
