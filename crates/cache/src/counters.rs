//! Hits and misses by kind, counted in stripes so that threads do not share a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::page::{KINDS, Kind};

const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    hits: [AtomicU64; KINDS.len()],
    misses: [AtomicU64; KINDS.len()],
}

/// Counters of one cache. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    stripes: [Stripe; STRIPES],
    pub(crate) evicted: AtomicU64,
    pub(crate) regretted: AtomicU64,
    pub(crate) private: AtomicU64,
}

/// Lookups of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Pages that were there, or that another thread was loading.
    pub hits: u64,
    /// Pages that were loaded.
    pub misses: u64,
}

/// What a cache holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// By kind, in the order values, keys, index, filter, node.
    pub by_kind: [KindCounts; KINDS.len()],
    /// Pages that had to leave for others, or for a smaller budget.
    pub evicted: u64,
    /// Misses that a cache larger by `regret_bytes` would have been spared: of pages that had left
    /// when hardly any others had since.
    pub regretted: u64,
    /// See `regretted`.
    pub regret_bytes: u64,
    /// Misses that found no frame to be had.
    pub private: u64,
    /// Bytes of frames and tables.
    pub used_bytes: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// Pages of the hot region.
    pub hot_pages: u64,
    /// Pages of the cold region.
    pub cold_pages: u64,
}

impl CacheStats {
    /// Lookups of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> KindCounts {
        self.by_kind[kind as usize]
    }

    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> KindCounts {
        self.by_kind.iter().fold(KindCounts::default(), |sum, one| KindCounts {
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
        })
    }
}

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mine = STRIPE.get();
    if mine < STRIPES {
        return mine;
    }
    let mine = NEXT.fetch_add(1, Relaxed) % STRIPES;
    STRIPE.set(mine);
    mine
}

impl Counters {
    #[inline]
    pub(crate) fn hit(&self, kind: Kind) {
        self.stripes[stripe()].hits[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn miss(&self, kind: Kind) {
        self.stripes[stripe()].misses[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn by_kind(&self) -> [KindCounts; KINDS.len()] {
        let mut counts = [KindCounts::default(); KINDS.len()];
        for stripe in &self.stripes {
            for (count, (hits, misses)) in
                counts.iter_mut().zip(stripe.hits.iter().zip(&stripe.misses))
            {
                count.hits += hits.load(Relaxed);
                count.misses += misses.load(Relaxed);
            }
        }
        counts
    }
}
