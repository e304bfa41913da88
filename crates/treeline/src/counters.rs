//! Counters that many threads bump: each thread has a cell of its own, as far as cells go.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const CELLS: usize = 16;

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

fn mine() -> usize {
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) % CELLS);
        }
        mine.get()
    })
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Padded {
    hits: AtomicU64,
    misses: AtomicU64,
    pages_read: AtomicU64,
}

/// Counters of the read path.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    cells: [Padded; CELLS],
}

impl ReadCounters {
    pub(crate) fn hit(&self) {
        self.cells[mine()].hits.fetch_add(1, Relaxed);
    }

    pub(crate) fn miss(&self, pages: u64) {
        let cell = &self.cells[mine()];
        cell.misses.fetch_add(1, Relaxed);
        cell.pages_read.fetch_add(pages, Relaxed);
    }

    /// Hits, misses, pages read.
    pub(crate) fn sum(&self) -> (u64, u64, u64) {
        self.cells.iter().fold((0, 0, 0), |sum, cell| {
            (
                sum.0 + cell.hits.load(Relaxed),
                sum.1 + cell.misses.load(Relaxed),
                sum.2 + cell.pages_read.load(Relaxed),
            )
        })
    }
}

/// Counters of everything else.
#[derive(Debug, Default)]
pub(crate) struct WriteCounters {
    pub(crate) pages_written_back: AtomicU64,
    pub(crate) records_written_back: AtomicU64,
    pub(crate) foreground_write_backs: AtomicU64,
    pub(crate) stall_ns: AtomicU64,
    pub(crate) longest_stall_ns: AtomicU64,
    pub(crate) splits: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) pages_restored: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
