//! Records that lookups found in the tree, kept one by one beside the pages that they lie on.
//!
//! ```text
//!   a get:  ticket -> memtables -> records -> tree: what is pending -> leaves, by cached pages
//!                                     ^                                  |
//!                                     +---- the one record, by the ticket+
//! ```
//!
//! What is pending is kept as well: it lies on pages soon, and is asked for then as before.
//!
//! Where lookups have favourites, these lie on a page of their own each, and a page that is cached
//! for one of them keeps thirty other records in memory. The memory of reads is therefore divided:
//! no record is kept before lookups read from leaves, and from then on the worth of the last bytes
//! of either side decides ([`Share`]). The paper's prototype caches pages alone.
//!
//! **Invariant**: a record here is the newest version of its key, or the key's stripe is locked. A
//! put that is in the memtable changes what is here ([`Records::changed`]), and a lookup that it
//! overtook keeps nothing (the tickets of [`RecordCache`]). A cache is put in place while nothing
//! is written, so it sees every put after that. Snapshots do not look here.
//!
//! **Concurrency**: lookups take no lock; puts, and lookups that keep a record, one of a shard.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use spinney_base::ValueRef;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_engine::Write;
use spinney_records::{
    CACHE_BYTES_MIN, Cached, More, RecordCache, RecordId, Share, Side, Ticket, Usage, Worth,
};

use crate::policy::{
    SHARES, are_records_many, fits_records, is_record_cache_too_large, record_bytes_min,
    record_growth, record_step,
};

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Records {
    cache: ArcSwapOption<RecordCache>,
    division: Mutex<Division>,
    /// Bytes that the cache takes.
    bytes: AtomicU64,
    worth: Mutex<Worth>,
}

impl Default for Records {
    fn default() -> Self {
        let division = Mutex::default();
        let (cache, worth) = (ArcSwapOption::empty(), Mutex::default());
        Records { cache, division, bytes: AtomicU64::new(0), worth }
    }
}

/// The division between records and pages, and what it has seen.
#[derive(Debug)]
struct Division {
    share: Share,
    /// Hits of lookups since the start, and worth of the cache that there is, at the last look.
    hits: u64,
    worth: u64,
    /// Sum of those of them that counted.
    sum: u64,
}

impl Default for Division {
    fn default() -> Self {
        Division { share: Share::new(SHARES), hits: 0, worth: 0, sum: 0 }
    }
}

/// A record cache of the least bytes that it needs, which may get `most`; none if these are too
/// much of the `all` bytes of reads.
pub(crate) fn smallest_cache(all: u64, most: u64) -> Option<Arc<RecordCache>> {
    let cache = RecordCache::new(0, most);
    if !fits_records(record_bytes_min(cache.shards()), all) {
        return None;
    }
    cache.resize(CACHE_BYTES_MIN);
    Some(Arc::new(cache))
}

/// Counts of the page cache for the division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    /// Worth of its last bytes.
    pub(crate) side: Side,
    /// Bytes of cached pages.
    pub(crate) used: u64,
    /// Bytes of all pages.
    pub(crate) data: u64,
    /// Lookups that records have answered since the start.
    pub(crate) record_hits: u64,
}

/// The records as a lookup sees them. Made before it looks anywhere else.
pub(crate) struct Reader {
    cache: Guard<Option<Arc<RecordCache>>>,
}

impl Records {
    pub(crate) fn reader(&self) -> Reader {
        Reader { cache: self.cache.load() }
    }

    /// Notes that a memtable has this edit now. The writer is still inside the gate.
    pub(crate) fn changed(&self, write: &Write<'_>) {
        if let Some(cache) = &*self.cache.load() {
            let value = write.value.filter(|value| !value.large);
            cache.change(RecordId::of(write.hash), write.key, value);
        }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Follows the worth of the last bytes of pages and records, and returns that of the
    /// keyspace's.
    pub(crate) fn follow_worth(&self, pages: Side) -> u64 {
        let usage = self.usage();
        // Before the CLOCK hand has passed all it is not known which records are cold.
        let is_settled = usage.passed >= usage.filled;
        let worth = if is_settled { usage.worth } else { 0 };
        self.worth.lock().follow(&[pages, Side { worth, bytes: usage.filled }])
    }

    /// Divides the `all` bytes of reads between records and pages. `pages` is asked only when the
    /// share is due; `give` is called when the records' bytes have changed, so that pages get the
    /// rest.
    pub(crate) fn follow(
        &self,
        all: u64,
        now: Duration,
        pages: impl FnOnce() -> Pages,
        give: impl Fn(),
    ) {
        let mut division = self.division.lock();
        let Some(cache) = self.cache.load_full() else { return };
        let mut bytes = self.bytes();
        if division.share.is_due(now) {
            let (usage, pages) = (cache.usage(), pages());
            let spare = pages.used <= all.saturating_sub(division.share.of_second_next(all));
            let more = if spare { More::Spare } else { More::Wanted };
            // A record whose page is cached as well would not be missed much.
            let data = pages.data.max(1);
            let cold = data.saturating_sub(pages.used).max(1);
            let of_records = division.of_records(pages.record_hits, &usage, data, cold);
            division.share.follow(pages.side, of_records, more, now);
            if are_records_many(usage.filled, usage.bytes) {
                bytes += record_growth(bytes, all);
            }
        }
        let wanted = bytes.min(division.share.of_second(all)).max(record_bytes_min(cache.shards()));
        if wanted > self.bytes() || wanted + record_step(all) < self.bytes() {
            if wanted > self.bytes() {
                // Pages are evicted before records come.
                self.bytes.store(wanted, Relaxed);
                give();
            }
            cache.resize(wanted);
            let mut bytes = cache.usage().bytes;
            if is_record_cache_too_large(bytes, all) {
                // Lookups ask for one with fewer shards when they need it.
                self.cache.store(None);
                bytes = 0;
            }
            self.bytes.store(bytes, Relaxed);
            give();
        }
    }

    /// Whether any records are kept.
    pub(crate) fn are_kept(&self) -> bool {
        self.cache.load().is_some()
    }

    /// Begins to keep records in this cache. No write is under way.
    pub(crate) fn put_in_place(&self, cache: Arc<RecordCache>) {
        self.cache.store(Some(cache));
    }

    /// Notes the bytes of a cache that is in place now, and that it has counted nothing yet.
    pub(crate) fn note_begun(&self, bytes: u64) {
        self.division.lock().begin();
        self.bytes.store(bytes, Relaxed);
    }

    /// What is kept.
    pub(crate) fn usage(&self) -> Usage {
        self.cache.load().as_ref().map_or_else(Usage::default, |cache| cache.usage())
    }
}

impl Reader {
    /// Returns the ticket that [`Reader::keep`] needs; to be taken before memtables are looked at.
    pub(crate) fn ticket(&self, hash: u64) -> Option<Ticket> {
        self.cache.as_ref().map(|cache| cache.ticket(RecordId::of(hash)))
    }

    /// Appends the value of a key, if it is here.
    pub(crate) fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> bool {
        let of = |cache: &Arc<RecordCache>| cache.get(RecordId::of(hash), key, out);
        self.cache.as_ref().map(of) == Some(Cached::Present)
    }

    /// Offers what was read from a leaf to be kept, unless the key has changed since the ticket.
    pub(crate) fn keep(&self, key: &[u8], hash: u64, value: &[u8], ticket: Option<Ticket>) {
        if let (Some(cache), Some(ticket)) = (&*self.cache, ticket) {
            cache.admit_unchanged(RecordId::of(hash), key, ValueRef::inline(value), ticket);
        }
    }
}

impl Division {
    /// A cache is there that has counted nothing yet.
    fn begin(&mut self) {
        self.worth = 0;
    }

    /// Worth of records: of those that would be evicted next, once the CLOCK hand has passed all.
    /// Before, it is not known which ones these are, and all of them count.
    fn of_records(&mut self, hits: u64, usage: &Usage, data: u64, cold: u64) -> Side {
        let is_settled = usage.passed >= usage.filled;
        let new_hits = hits - std::mem::replace(&mut self.hits, hits);
        let new_worth = usage.worth - std::mem::replace(&mut self.worth, usage.worth);
        self.sum += if is_settled { new_worth } else { new_hits };
        let bytes = u128::from(usage.filled) * u128::from(data) / u128::from(cold);
        Side { worth: self.sum, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn records_are_worth_what_would_be_missed() {
        let mut division = Division::default();
        let mut worth = |hits, worth, passed, begins| {
            if begins {
                division.begin();
            }
            let usage = Usage { worth, passed, filled: 1000, ..Usage::default() };
            division.of_records(hits, &usage, 4000, 1000)
        };
        let filling = worth(50, 0, 10, false);
        assert_eq!(
            (filling.worth, filling.bytes),
            (50, 4000),
            "three of four pages are cached too"
        );
        assert_eq!(worth(90, 3, 1000, false).worth, 53, "the hand has passed all");
        assert_eq!(worth(95, 7, 1100, false).worth, 57);
        // Another cache, of which nothing is known.
        assert_eq!(worth(95, 0, 0, true).worth, 57);
        assert_eq!(worth(99, 2, 1000, false).worth, 59);
    }
}
