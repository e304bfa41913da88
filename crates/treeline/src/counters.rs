//! Counters of one keyspace.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use spinney_base::Stalls;
use spinney_base::limits::PAGE_BYTES;
use spinney_sync::Stripes;

use crate::policy::RECORDS_PER_PAGE_EXPECTED;

/// Scanned pages after which both numbers are halved, so that old scans count less.
const SCANNED_PAGES_MAX: u64 = 4096;

const HITS: usize = 0;
const MISSES: usize = 1;
const PAGES_READ: usize = 2;
const PAGES_SCANNED: usize = 3;
const PUTS: usize = 4;
const PUTS_NEW: usize = 5;
const RECORDS_SCANNED: usize = 6;
const REMOVED_SCANNED: usize = 7;

/// Counters of lookups, scans and puts.
#[derive(Debug, Default)]
pub(crate) struct AccessCounters {
    /// Indexed by [`HITS`] and the constants after it.
    counts: Stripes<8>,
    /// Pages (high half) and records (low half) of recent scans.
    scanned: AtomicU64,
    /// Pages (high half) and their used bytes in units of [`USED_UNIT`] (low half), of pages that
    /// scans read or reorganizations made recently.
    filled: AtomicU64,
    /// Pages of the keyspace when they were last counted.
    pages: AtomicU64,
}

/// Fewest pages whose fill is averaged, however small the keyspace is.
const FILLED_PAGES_MIN: u64 = 64;

/// Unit in which the used bytes of pages are counted.
const USED_UNIT: u64 = 64;

impl AccessCounters {
    pub(crate) fn hit(&self) {
        self.counts.add(HITS, 1);
    }

    /// Counts a lookup that the record cache did not answer, and the pages that it read.
    pub(crate) fn miss(&self, pages: u64) {
        self.missed(1, pages);
    }

    /// Counts several such lookups, and the pages that they read together.
    pub(crate) fn missed(&self, lookups: u64, pages: u64) {
        self.counts.add(MISSES, lookups);
        self.counts.add(PAGES_READ, pages);
    }

    /// Counts the pages that a scan read, and the records that it found in them.
    pub(crate) fn scanned(&self, pages: u64, records: u64) {
        self.counts.add(PAGES_SCANNED, pages);
        self.counts.add(RECORDS_SCANNED, records);
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

    /// Counts removals that a scan passed over and that were not written back yet.
    pub(crate) fn passed_removed(&self, removed: u64) {
        if removed > 0 {
            self.counts.add(RECORDS_SCANNED, removed);
            self.counts.add(REMOVED_SCANNED, removed);
        }
    }

    /// A scan for the first record asked for this key by itself, and it was there or had been
    /// removed.
    pub(crate) fn asked_for(&self, removed: bool) {
        self.counts.add(RECORDS_SCANNED, 1);
        self.counts.add(REMOVED_SCANNED, u64::from(removed));
    }

    /// Records that scans looked at, and removals among them.
    pub(crate) fn looked_at(&self) -> (u64, u64) {
        (self.counts.sum(RECORDS_SCANNED), self.counts.sum(REMOVED_SCANNED))
    }

    /// Sets how many pages the keyspace has, which is how many observations of their fill count.
    pub(crate) fn follow_pages(&self, pages: u64) {
        self.pages.store(pages, Relaxed);
    }

    /// Notes how many bytes these pages hold.
    pub(crate) fn filled(&self, pages: u64, bytes: u64) {
        let before = self.filled.load(Relaxed);
        let (mut all_pages, mut all_used) = (before >> 32, before & u64::from(u32::MAX));
        let most = self.pages.load(Relaxed).clamp(FILLED_PAGES_MIN, SCANNED_PAGES_MAX);
        while all_pages > most {
            (all_pages, all_used) = (all_pages / 2, all_used / 2);
        }
        let used = (all_used + bytes / USED_UNIT).min(u64::from(u32::MAX));
        // A lost update is a lost observation.
        self.filled.store((all_pages + pages) << 32 | used, Relaxed);
    }

    /// Notes that `new` pages replaced `old` ones; each is a number of pages and the bytes that
    /// they hold. The keyspace has `pages` pages now.
    pub(crate) fn remade(&self, pages: u64, old: (u64, u64), new: (u64, u64)) {
        self.follow_pages(pages);
        let before = (pages + old.0).saturating_sub(new.0);
        let used = self.filled_part(before * PAGE_BYTES as u64).saturating_sub(old.1) + new.1;
        let shown = pages.clamp(1, SCANNED_PAGES_MAX);
        let used = u128::from(used) * u128::from(shown) / u128::from(pages.max(1));
        let used = u64::try_from(used).unwrap_or(u64::MAX) / USED_UNIT;
        self.filled.store(shown << 32 | used.min(u64::from(u32::MAX)), Relaxed);
    }

    /// Bytes used of `bytes` bytes of pages, estimated from recently seen pages; all if none was
    /// seen.
    pub(crate) fn filled_part(&self, bytes: u64) -> u64 {
        let filled = self.filled.load(Relaxed);
        let (pages, used) = (filled >> 32, (filled & u64::from(u32::MAX)) * USED_UNIT);
        if pages == 0 {
            return bytes;
        }
        let part = u128::from(bytes) * u128::from(used) / u128::from(pages * PAGE_BYTES as u64);
        u64::try_from(part).unwrap_or(bytes).min(bytes)
    }

    /// Pages of all scans.
    pub(crate) fn pages_scanned(&self) -> u64 {
        self.counts.sum(PAGES_SCANNED)
    }

    /// A record was put, of a key that the cache did not know, or did.
    pub(crate) fn put(&self, may_be_new: bool) {
        self.counts.add(PUTS, 1);
        if may_be_new {
            self.counts.add(PUTS_NEW, 1);
        }
    }

    /// Puts, and those of keys that the cache did not know.
    pub(crate) fn puts(&self) -> (u64, u64) {
        (self.counts.sum(PUTS), self.counts.sum(PUTS_NEW))
    }

    /// Hits, misses, pages read.
    pub(crate) fn sum(&self) -> (u64, u64, u64) {
        (self.counts.sum(HITS), self.counts.sum(MISSES), self.counts.sum(PAGES_READ))
    }
}

/// Counters of everything else.
#[derive(Debug, Default)]
pub(crate) struct WriteCounters {
    pub(crate) pages_written_back: AtomicU64,
    pub(crate) records_written_back: AtomicU64,
    pub(crate) foreground_write_backs: AtomicU64,
    pub(crate) stalls: Stalls,
    pub(crate) reorganizations: AtomicU64,
    pub(crate) reorganized_pages_in: AtomicU64,
    pub(crate) reorganized_pages_out: AtomicU64,
    /// Pages that packing made because room was idle ([`tidy`](crate::tidy)).
    pub(crate) packed_pages_out: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) pages_restored: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}
