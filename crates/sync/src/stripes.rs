//! Counters that many threads increment: each thread has cells of its own, as far as they last.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of cells; with more threads some share one, which costs time and loses no counts.
const STRIPES: usize = 16;

/// `N` counters. Thread-safe.
///
/// ```
/// let counters = spinney_sync::Stripes::<2>::default();
/// counters.add(1, 40);
/// counters.add(1, 2);
/// assert_eq!((counters.sum(0), counters.sum(1)), (0, 42));
/// ```
#[derive(Debug)]
pub struct Stripes<const N: usize>([Stripe<N>; STRIPES]);

#[derive(Debug)]
#[repr(align(128))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Stripes<N> {
    fn default() -> Self {
        Stripes(std::array::from_fn(|_| Stripe(std::array::from_fn(|_| AtomicU64::new(0)))))
    }
}

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns this thread's number, below [`STRIPES`].
#[inline]
pub(crate) fn mine() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mine = MINE.get();
    if mine < STRIPES {
        return mine;
    }
    let mine = NEXT.fetch_add(1, Relaxed) % STRIPES;
    MINE.set(mine);
    mine
}

impl<const N: usize> Stripes<N> {
    /// Adds to counter `index`.
    ///
    /// # Panics
    /// When there is no such counter.
    #[inline]
    pub fn add(&self, index: usize, more: u64) {
        self.0[mine()].0[index].fetch_add(more, Relaxed);
    }

    /// Returns the sum of counter `index` over all threads, of which some added the negative of what is taken
    /// away: their cells wrap, and the sum does not. Beside writers it may be off by what they add just now, but is
    /// never below 0.
    ///
    /// # Panics
    /// When there is no such counter.
    #[must_use]
    pub fn sum_of_signed(&self, index: usize) -> u64 {
        let cells = self.0.iter().map(|stripe| stripe.0[index].load(Relaxed));
        cells.fold(0, u64::wrapping_add).cast_signed().max(0).cast_unsigned()
    }

    /// Returns the sum of counter `index` over all threads.
    ///
    /// # Panics
    /// When there is no such counter.
    #[must_use]
    pub fn sum(&self, index: usize) -> u64 {
        self.0.iter().map(|stripe| stripe.0[index].load(Relaxed)).sum()
    }
}
