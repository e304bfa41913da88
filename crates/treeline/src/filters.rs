//! Page filters: a lookup that reads a page in vain leaves a filter, so that later ones need not
//! read the page.
//!
//! A lookup of an absent key has to read the key's page to find that it is not there. A page that
//! was read in vain gets a filter: 12 bits for each of its keys. While the filter exists, all but
//! one in 200 lookups of other absent keys of that page are answered from memory. A keyspace whose
//! lookups find their keys has no filters and pays nothing for them.
//!
//! ```text
//!   shard of a page number       filters, under CLOCK
//!   +------------------+     +--------------------------+----
//!   | page -> place    | --> | page, generation, asked  |
//!   +------------------+     | blocks of 32 bytes       | ...
//!                            +--------------------------+----
//! ```
//!
//! The CLOCK hand keeps each filter that has refused a key since it last passed, and drops the
//! others. How much memory all filters may take follows from the reads that they spare, compared
//! with the reads that the record cache would spare with as many bytes
//! ([`Share`](spinney_records::Share)).
//!
//! **Invariants**
//! 1. A filter describes the page as it is on disk: it refuses no key that the page holds. The
//!    holder of the page's lock puts it in, from the bytes that were read or written under that
//!    lock. Before a page is written in place, under its exclusive lock, its filter is taken out.
//! 2. A filter of an older generation is never asked: the generation is compared.
//! 3. A filter knows nothing of records that are dirty. The record cache is asked first, under the
//!    page's lock, which keeps dirty records from leaving it (rule P23).
//! 4. Filters take no more memory than they were given last.
//!
//! **Concurrency.** One lock for each shard, held for a probe; nothing is locked inside.
//!
//! **Differs from the paper**, where each lookup of an absent key reads its page.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use spinney_base::PageNumber;
use spinney_base::shim::Mutex;
use spinney_filter::{BLOCK_BYTES, build, may_contain};

use crate::policy;
use crate::segment::PageRef;

/// Bytes of memory that a filter takes beside its blocks: its place in the list and in the table,
/// and what both leave unused. Too small a number would let the account be exceeded.
const FILTER_BYTES: u64 = 96;

#[derive(Debug)]
struct Filter {
    page: PageRef,
    /// Whether it has refused a key since it was made, or since the hand passed.
    asked: bool,
    blocks: Box<[u8]>,
}

impl Filter {
    fn bytes(&self) -> u64 {
        self.blocks.len() as u64 + FILTER_BYTES
    }
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<PageNumber, u32>,
    filters: Vec<Filter>,
    bytes: u64,
    bytes_max: u64,
    hand: usize,
    /// Keys that its filters have refused.
    refused: u64,
}

/// The filters of a keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct PageFilters {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes that all filters take; while it is zero, lookups skip the shards' locks.
    bytes: AtomicU64,
    /// Bytes that they may take; zero until a lookup reads pages for an absent key.
    bytes_max: AtomicU64,
    /// Whether a lookup has read pages for an absent key since the keyspace was opened.
    wanted: AtomicBool,
}

impl PageFilters {
    /// None, of a keyspace with this many bytes of memory, and no room for any.
    pub(crate) fn new(memory: u64) -> Self {
        PageFilters {
            shards: (0..policy::filter_shards(memory)).map(|_| Mutex::default()).collect(),
            bytes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
        }
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Whether any memory should be set aside for them: without lookups of absent keys they would
    /// only spare base pages of keys in overflow pages, which are few and soon merged.
    pub(crate) fn are_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Keys that they have refused since the keyspace was opened.
    pub(crate) fn refused(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().refused).sum()
    }

    /// Sets how many bytes they may take; drops filters beyond that at once.
    pub(crate) fn resize(&self, bytes: u64) {
        if self.bytes_max.swap(bytes, Relaxed) == bytes {
            return;
        }
        for shard in &self.shards {
            self.change(&mut shard.lock(), |shard| shard.resize(bytes / self.shards.len() as u64));
        }
    }

    /// Whether a page certainly does not hold the key with this hash. The caller has locked the
    /// page and asked the record cache.
    pub(crate) fn refuse(&self, page: PageRef, hash: u64) -> bool {
        self.bytes() > 0 && self.shard(page).lock().refuses(page, hash)
    }

    /// Notes that a lookup read pages for a key that is not there.
    pub(crate) fn want(&self) {
        if !self.are_wanted() {
            self.wanted.store(true, Relaxed);
        }
    }

    /// Whether a filter may be kept.
    pub(crate) fn have_room(&self) -> bool {
        self.bytes_max.load(Relaxed) > 0
    }

    /// Keeps the filter of a page that the caller has locked and whose keys have these hashes.
    pub(crate) fn put(&self, page: PageRef, hashes: &[u64]) {
        let blocks = match hashes {
            // Without a block it would refuse nothing.
            [] => vec![0; BLOCK_BYTES],
            _ => build(hashes, policy::FILTER_BITS_PER_KEY),
        };
        let filter = Filter { page, asked: false, blocks: blocks.into() };
        self.change(&mut self.shard(page).lock(), |shard| shard.put(filter));
    }

    /// Takes a page's filter out, since the caller is about to write the page; says whether it has
    /// refused a key since it was made, or since the hand passed.
    pub(crate) fn forget(&self, page: PageRef) -> bool {
        self.bytes() > 0
            && self.change(&mut self.shard(page).lock(), |shard| shard.forget(page.page))
    }

    fn shard(&self, page: PageRef) -> &Mutex<Shard> {
        let spread = page.page.0.wrapping_mul(0x9E37_79B1) >> 16;
        &self.shards[spread as usize & (self.shards.len() - 1)]
    }

    /// Changes a shard and counts its bytes.
    fn change<T>(&self, shard: &mut Shard, change: impl FnOnce(&mut Shard) -> T) -> T {
        let before = shard.bytes;
        let result = change(shard);
        // Wraps where they become fewer.
        self.bytes.fetch_add(shard.bytes.wrapping_sub(before), Relaxed);
        result
    }
}

impl Shard {
    fn refuses(&mut self, page: PageRef, hash: u64) -> bool {
        let Some(place) = self.places.get(&page.page) else { return false };
        let filter = &mut self.filters[*place as usize];
        let refuses = filter.page == page && !may_contain(&filter.blocks, hash);
        filter.asked |= refuses;
        self.refused += u64::from(refuses);
        refuses
    }

    fn put(&mut self, filter: Filter) {
        self.forget(filter.page.page);
        if filter.bytes() > self.bytes_max {
            return;
        }
        while self.bytes + filter.bytes() > self.bytes_max {
            self.evict();
        }
        let Ok(place) = u32::try_from(self.filters.len()) else { return };
        self.bytes += filter.bytes();
        self.places.insert(filter.page.page, place);
        self.filters.push(filter);
    }

    fn forget(&mut self, page: PageNumber) -> bool {
        let Some(place) = self.places.get(&page).copied() else { return false };
        self.remove(place as usize)
    }

    /// Moves the hand to a filter that has refused nothing since it came by before, and drops it.
    /// There is at least one filter.
    fn evict(&mut self) {
        loop {
            self.hand %= self.filters.len();
            let filter = &mut self.filters[self.hand];
            if !std::mem::take(&mut filter.asked) {
                self.remove(self.hand);
                return;
            }
            self.hand += 1;
        }
    }

    /// Removes a filter, in whose place the last one comes; says whether it was asked.
    fn remove(&mut self, place: usize) -> bool {
        let filter = self.filters.swap_remove(place);
        self.places.remove(&filter.page.page);
        if let Some(moved) = self.filters.get(place)
            && let Some(of_moved) = self.places.get_mut(&moved.page.page)
        {
            *of_moved = u32::try_from(place).expect("a place is the index of a page's filter");
        }
        self.bytes -= filter.bytes();
        filter.asked
    }

    fn resize(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        let before = self.filters.len();
        while self.bytes > bytes_max {
            self.evict();
        }
        if self.filters.len() < before {
            self.filters.shrink_to_fit();
            self.places.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spinney_base::Generation;
    use spinney_base::runtime::SplitMix;

    fn page(number: u32) -> PageRef {
        PageRef { page: PageNumber(number), generation: Generation(1) }
    }

    /// The hashes of 40 keys of a page.
    fn keys(number: u32) -> Vec<u64> {
        let mut random = SplitMix(u64::from(number));
        (0..40).map(|_| random.next_u64()).collect()
    }

    const OTHERS: std::ops::Range<u64> = 0..1000;

    fn other(number: u64) -> u64 {
        SplitMix(number << 32 | 1).next_u64()
    }

    /// How many hashes that no page holds are refused for a page.
    fn refused(filters: &PageFilters, page: PageRef) -> usize {
        OTHERS.filter(|number| filters.refuse(page, other(*number))).count()
    }

    /// Bytes of one filter of [`keys`].
    const EACH: u64 = 2 * BLOCK_BYTES as u64 + FILTER_BYTES;

    fn filters(memory: u64) -> PageFilters {
        let filters = PageFilters::new(memory);
        assert!(!filters.have_room() && !filters.are_wanted());
        filters.want();
        assert!(!filters.have_room() && filters.are_wanted());
        filters.resize(memory);
        assert!(filters.have_room());
        filters
    }

    #[test]
    fn absent_keys_are_refused_and_others_never() {
        let filters = filters(1 << 20);
        (0..1000).for_each(|number| filters.put(page(number), &keys(number)));
        for number in 0..1000 {
            assert!(keys(number).iter().all(|hash| !filters.refuse(page(number), *hash)));
        }
        assert_eq!(filters.refused(), 0);
        let of_all = (0..100).map(|number| refused(&filters, page(number))).sum::<usize>();
        assert!(of_all > 99_000, "{of_all} of 100,000");
        assert_eq!(filters.refused(), of_all as u64);
        assert_eq!(filters.bytes(), 1000 * EACH);
        assert_eq!(refused(&filters, page(1000)), 0, "of which nothing is known");
    }

    #[test]
    fn pages_without_keys_refuse_all() {
        let filters = filters(1 << 20);
        filters.put(page(1), &[]);
        assert_eq!(refused(&filters, page(1)), 1000);
    }

    #[test]
    fn what_is_written_or_of_another_generation_is_not_asked() {
        let filters = filters(1 << 20);
        filters.put(page(1), &keys(1));
        assert!(!filters.forget(page(1)), "nobody asked");
        assert_eq!((refused(&filters, page(1)), filters.bytes()), (0, 0));
        filters.put(page(1), &keys(1));
        let newer = PageRef { generation: Generation(2), ..page(1) };
        assert_eq!(refused(&filters, newer), 0);
        filters.put(newer, &keys(2));
        assert_eq!((refused(&filters, page(1)), filters.bytes()), (0, EACH));
        assert!(refused(&filters, newer) > 980 && filters.forget(newer));
    }

    #[test]
    fn filters_that_are_asked_outlive_others_within_the_memory() {
        let filters = filters(100 * EACH);
        // A few pages let the first of these pass.
        let ask = |number| (0..8).any(|of| filters.refuse(page(number), other(of)));
        let asked = || (0..20).filter(|number| ask(*number)).count();
        (0..100).for_each(|number| filters.put(page(number), &keys(number)));
        assert_eq!((filters.bytes(), asked()), (100 * EACH, 20));
        for number in 100..1000 {
            filters.put(page(number), &keys(number));
            assert!(filters.bytes() <= 100 * EACH && asked() == 20);
        }
        filters.resize(30 * EACH);
        assert!(filters.bytes() <= 30 * EACH && asked() == 20);
        filters.resize(0);
        assert_eq!((filters.bytes(), asked()), (0, 0));
        let shard = filters.shards[0].lock();
        assert_eq!((shard.places.capacity(), shard.filters.capacity()), (0, 0));
        drop(shard);
        filters.put(page(1), &keys(1));
        assert_eq!(filters.bytes(), 0);
    }

    proptest! {
        /// Whatever is put, dropped, asked and resized, in whatever order.
        #[test]
        fn places_stay_right(
            steps in proptest::collection::vec((0u32..40, 0u8..8, 0u64..30), 0..300),
        ) {
            let filters = filters(20 * EACH);
            for (number, what, size) in steps {
                match what {
                    0..4 => filters.put(page(number), &keys(number)),
                    4 => drop(filters.forget(page(number))),
                    5 => filters.resize(size * EACH),
                    _ => drop(filters.refuse(page(number), other(size))),
                }
                let mut bytes = 0;
                for shard in &filters.shards {
                    let shard = shard.lock();
                    prop_assert!(shard.bytes <= shard.bytes_max);
                    prop_assert_eq!(shard.filters.len(), shard.places.len());
                    bytes += shard.filters.iter().map(Filter::bytes).sum::<u64>();
                    for (place, filter) in shard.filters.iter().enumerate() {
                        prop_assert_eq!(shard.places[&filter.page.page] as usize, place);
                        let of_page = keys(filter.page.page.0);
                        prop_assert!(of_page.iter().all(|hash| may_contain(&filter.blocks, *hash)));
                    }
                }
                prop_assert_eq!(filters.bytes(), bytes);
            }
        }
    }
}
