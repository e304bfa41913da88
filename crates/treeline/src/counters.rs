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
    pages_scanned: AtomicU64,
}

/// Records that a page is taken to hold before any was scanned.
const RECORDS_PER_PAGE_EXPECTED: u64 = 16;

/// So many scanned pages count; then both numbers are halved, so that old ones count less.
const SCANNED_PAGES_MAX: u64 = 4096;

/// Counters of the read path.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    cells: [Padded; CELLS],
    /// Pages in the high half, records in the low one: of scans, not long ago.
    scanned: AtomicU64,
}

impl ReadCounters {
    pub(crate) fn hit(&self) {
        self.cells[mine()].hits.fetch_add(1, Relaxed);
    }

    /// A lookup went to pages and read so many of them.
    pub(crate) fn miss(&self, pages: u64) {
        self.missed(1, pages);
    }

    /// The same for several lookups together.
    pub(crate) fn missed(&self, lookups: u64, pages: u64) {
        let cell = &self.cells[mine()];
        cell.misses.fetch_add(lookups, Relaxed);
        cell.pages_read.fetch_add(pages, Relaxed);
    }

    /// A scan found so many records in so many pages.
    pub(crate) fn scanned(&self, pages: u64, records: u64) {
        self.cells[mine()].pages_scanned.fetch_add(pages, Relaxed);
        let before = self.scanned.load(Relaxed);
        let (mut all_pages, mut all_records) = (before >> 32, before & u64::from(u32::MAX));
        if all_pages > SCANNED_PAGES_MAX {
            (all_pages, all_records) = (all_pages / 2, all_records / 2);
        }
        let records = (all_records + records).min(u64::from(u32::MAX));
        // A lost update is a lost observation.
        self.scanned.store((all_pages + pages) << 32 | records, Relaxed);
    }

    /// Records that a page holds on average, as scans found lately; at least 1.
    pub(crate) fn records_per_scanned_page(&self) -> usize {
        let scanned = self.scanned.load(Relaxed);
        let (pages, records) = (scanned >> 32, scanned & u64::from(u32::MAX));
        let average = if pages == 0 { RECORDS_PER_PAGE_EXPECTED } else { records.div_ceil(pages) };
        usize::try_from(average.max(1)).unwrap_or(usize::MAX)
    }

    /// Pages of all scans.
    pub(crate) fn pages_scanned(&self) -> u64 {
        self.cells.iter().map(|cell| cell.pages_scanned.load(Relaxed)).sum()
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
    pub(crate) reorganizations: AtomicU64,
    pub(crate) reorganized_pages_in: AtomicU64,
    pub(crate) reorganized_pages_out: AtomicU64,
    /// Those of them that were packed because room was idle ([`tidy`](crate::tidy)).
    pub(crate) packed_pages_out: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) pages_restored: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
