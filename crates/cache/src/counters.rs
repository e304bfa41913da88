//! Hits and misses by kind, counted in stripes so that threads do not share a cache line.

use std::sync::atomic::AtomicU64;

use spinney_sync::Stripes;

use crate::page::{KINDS_MAX, Kind};

/// Counters of one cache. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Hits of each kind.
    hits: Stripes<KINDS_MAX>,
    misses: Stripes<KINDS_MAX>,
    pub(crate) evicted: AtomicU64,
    pub(crate) regretted: AtomicU64,
    pub(crate) private: AtomicU64,
    /// Dirty frames, modulo 2^64: a thread may take one off before another has counted it.
    pub(crate) dirty: AtomicU64,
    pub(crate) written_back: AtomicU64,
}

/// Lookups of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Pages that were cached, or that another thread was loading.
    pub hits: u64,
    /// Pages that were loaded.
    pub misses: u64,
}

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// The counts of each kind at its [`Kind::index`].
    pub by_kind: [KindCounts; KINDS_MAX],
    /// Pages evicted for others, or for a smaller budget.
    pub evicted: u64,
    /// Ghost hits: misses that a cache larger by `regret_bytes` would have spared. Hardly any other
    /// page was evicted since theirs was.
    pub regretted: u64,
    /// Bytes by which the larger cache of `regretted` is larger.
    pub regret_bytes: u64,
    /// Misses that found no available frame.
    pub private: u64,
    /// Bytes of frames and tables.
    pub used_bytes: u64,
    /// Budget, in bytes.
    pub budget_bytes: u64,
    /// Bytes of frames whose pages are dirty; part of `used_bytes`.
    pub dirty_bytes: u64,
    /// Dirty pages that became clean because they were written back.
    pub written_back: u64,
    /// Frames of the hot region.
    pub hot_pages: u64,
    /// Frames of the cold region.
    pub cold_pages: u64,
}

impl CacheStats {
    /// Returns the counts of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> KindCounts {
        self.by_kind[kind.index()]
    }

    /// Returns the sum over all kinds.
    #[must_use]
    pub fn total(&self) -> KindCounts {
        self.by_kind.iter().fold(KindCounts::default(), |sum, one| KindCounts {
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
        })
    }
}

impl Counters {
    #[inline]
    pub(crate) fn hit(&self, kind: Kind) {
        self.hits.add(kind.index(), 1);
    }

    pub(crate) fn miss(&self, kind: Kind) {
        self.misses.add(kind.index(), 1);
    }

    pub(crate) fn by_kind(&self) -> [KindCounts; KINDS_MAX] {
        std::array::from_fn(|kind| KindCounts {
            hits: self.hits.sum(kind),
            misses: self.misses.sum(kind),
        })
    }
}
