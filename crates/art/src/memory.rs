//! What a tree holds, to the byte: bytes reachable from its root, and bytes that are unlinked and
//! wait for the last reader who may still see them.
//!
//! The counters are atomics of the standard library, not the shim's: retired memory is freed by
//! whichever thread advances the epoch, which under shuttle may be outside of any schedule. Nothing
//! is decided by them.
//!
//! **Invariant**: every allocation is in exactly one of the two sums from before it can be reached
//! until after it is freed.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The sums. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    live: AtomicUsize,
    retired: AtomicUsize,
}

impl Memory {
    /// What the sums take themselves, behind an `Arc` and its two counts.
    pub(crate) const SHARED_BYTES: usize = size_of::<Self>() + 2 * size_of::<usize>();

    /// Bytes reachable.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Relaxed)
    }

    /// Bytes that wait for readers.
    pub(crate) fn retired(&self) -> usize {
        self.retired.load(Relaxed)
    }

    pub(crate) fn allocated(&self, bytes: usize) {
        self.live.fetch_add(bytes, Relaxed);
    }

    /// Freed with no reader to wait for.
    pub(crate) fn freed(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn unlinked(&self, bytes: usize) {
        self.retired.fetch_add(bytes, Relaxed);
        self.live.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn reclaimed(&self, bytes: usize) {
        self.retired.fetch_sub(bytes, Relaxed);
    }
}
