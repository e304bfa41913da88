//! Records that lookups found in the tree, kept one by one beside the pages that they lie on.
//!
//! ```text
//!   a get:  ticket -> memtables -> records -> tree: what is pending -> leaves, by cached pages
//!                                     ^                                  |
//!                                     +---- the one record, by the ticket+
//! ```
//!
//! What is pending is kept as well: it lies on pages soon, and is asked for then as it was before.
//!
//! Where lookups have favourites these lie on pages of their own each, and a page that is cached for one of them keeps thirty
//! others in memory. The memory that reads have is therefore divided: nothing is kept here before lookups read
//! from leaves, and from then on what the bytes at the margin of either side are worth decides ([`Share`]).
//! The paper's prototype caches pages alone.
//!
//! **Invariant**: a record here is the newest version of its key, or the key's stripe is locked. A put that is in the
//! memtable changes what is here ([`Records::changed`]), and a lookup that it overtook keeps nothing (the
//! tickets of [`RecordCache`]). A cache is put in place while nobody writes, so every put after that is
//! told to it. Snapshots do not look here.
//!
//! **Concurrency**: lookups take no lock; puts, and lookups that keep a record, one of a shard.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use spinney_base::ValueRef;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_engine::Write;
use spinney_records::{
    CACHE_BYTES_MIN, Cached, More, RecordCache, RecordId, Rules, Share, Side, Ticket, Usage, Worth,
};

use crate::core::{Core, MISSES, RECORD_HITS};

/// Records are kept only where each shard of their cache gets this many bytes: with less, what is kept leaves before it is
/// asked for again.
const RECORD_SHARD_BYTES: u64 = 8 << 10;

/// Fewest bytes that a record cache gets.
fn least(cache: &RecordCache) -> u64 {
    cache.shards() as u64 * RECORD_SHARD_BYTES
}

/// Records have ten sixteenths of the memory at most: without pages of keys each lookup would read one of them more.
/// Of 8M records of 128 B in 340 MiB lookups of `f` read 0.131 pages each with 9, and 0.128 with 10.
const SHARES: Rules = Rules { ratio: 1.5, step: 2, most: 10 };

/// So many lookups must have gone to the tree before any record is kept.
const LOOKUPS_MIN: u64 = 64;

/// Records follow by so large a part of the memory: moving them costs a copy.
const STEP_PART: u64 = 32;

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Records {
    cache: ArcSwapOption<RecordCache>,
    division: Mutex<Division>,
    /// What the cache takes.
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
    /// Of lookups, since the start, and of the cache that there is; what was last seen of them.
    hits: u64,
    worth: u64,
    /// What of these counted.
    sum: u64,
}

impl Default for Division {
    fn default() -> Self {
        Division { share: Share::new(SHARES), hits: 0, worth: 0, sum: 0 }
    }
}

/// What a lookup looks into. Made before it looks anywhere else.
pub(crate) struct Reader {
    cache: Guard<Option<Arc<RecordCache>>>,
}

impl Records {
    pub(crate) fn reader(&self) -> Reader {
        Reader { cache: self.cache.load() }
    }

    /// A memtable has this now, and the writer is still inside of the gate.
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

    /// Follows what the last bytes of pages and records were worth, which are counted in the order of the
    /// arguments.
    pub(crate) fn follow_worth(&self, pages: Side) -> u64 {
        let usage = self.usage();
        // Before the hand has passed all it is not known which records are cold.
        let is_settled = usage.passed >= usage.filled;
        let worth = if is_settled { usage.worth } else { 0 };
        self.worth.lock().follow(&[pages, Side { worth, bytes: usage.filled }])
    }

    /// What is kept.
    pub(crate) fn usage(&self) -> Usage {
        self.cache.load().as_ref().map_or_else(Usage::default, |cache| cache.usage())
    }
}

impl Reader {
    /// What [`Reader::keep`] goes by; to be taken before memtables are looked at.
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

impl Core {
    /// Divides what reads may have between records and pages. For the background.
    pub(crate) fn follow_records(&self) {
        let now = self.context.runtime.now();
        let all = self.left_for_reads();
        let mut division = self.records.division.lock();
        let Some(cache) = self.records.cache.load_full() else {
            drop(division);
            return self.open_records(all);
        };
        let mut bytes = self.records.bytes();
        if division.share.is_due(now) {
            let (usage, pages) = (cache.usage(), self.files.cache.stats());
            let spare = pages.used_bytes <= all.saturating_sub(division.share.of_second_next(all));
            let more = if spare { More::Spare } else { More::Wanted };
            let of_pages = Side { worth: pages.regretted, bytes: pages.regret_bytes };
            // A record whose page is cached as well would not be missed much.
            let data = (self.files.pages() * PAGE_BYTES as u64).max(1);
            let cold = data.saturating_sub(pages.used_bytes).max(1);
            let hits = self.counters.reads.sum(RECORD_HITS);
            let of_records = division.of_records(hits, &usage, data, cold);
            division.share.follow(of_pages, of_records, more, now);
            if usage.filled > usage.bytes / 16 * 13 {
                // Pages give what records fill, no more.
                bytes += (bytes / 8).max(all / STEP_PART);
            }
        }
        let wanted = bytes.min(division.share.of_second(all)).max(least(&cache));
        let step = all / STEP_PART;
        if wanted > self.records.bytes() || wanted + step < self.records.bytes() {
            if wanted > self.records.bytes() {
                // Pages leave before records come.
                self.records.bytes.store(wanted, Relaxed);
                self.follow_limits();
            }
            cache.resize(wanted);
            let mut bytes = cache.usage().bytes;
            if bytes > all / 4 * 3 {
                // Far above its share, and it cannot be smaller; one with fewer shards is made when lookups ask for it.
                self.records.cache.store(None);
                bytes = 0;
            }
            self.records.bytes.store(bytes, Relaxed);
            self.follow_limits();
        }
    }

    /// Begins to keep records, if lookups read any.
    fn open_records(&self, all: u64) {
        let looked = self.counters.reads.sum(MISSES);
        if looked < LOOKUPS_MIN || all / 4 < CACHE_BYTES_MIN || self.is_replaying() {
            return;
        }
        self.begin_records(all);
    }

    /// Begins to keep records, in the least that a cache needs; they have part of so many bytes later.
    pub(crate) fn begin_records(&self, all: u64) {
        let cache = RecordCache::new(0, self.context.memory.most());
        if least(&cache) > all / 2 {
            return;
        }
        cache.resize(CACHE_BYTES_MIN);
        let bytes = cache.usage().bytes;
        // Nobody writes meanwhile.
        let begun = self.between(|| self.records.cache.store(Some(Arc::new(cache))));
        if begun.is_some() {
            self.records.division.lock().begin();
            self.records.bytes.store(bytes, Relaxed);
            self.follow_limits();
        }
    }
}

impl Division {
    /// A cache is there that has counted nothing yet.
    fn begin(&mut self) {
        self.worth = 0;
    }

    /// What records are worth: those that would leave next, once the hand has passed all; before, which ones
    /// that are is not known, and all of them count.
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
