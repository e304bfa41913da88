//! The page cache: pages that scans read, kept whole for the scans after them.
//!
//! The record cache serves lookups and is of no use to a scan, which cannot tell from the cached
//! records which ones are missing. So scans keep what they read as pages. How much of the
//! keyspace's memory the pages may take follows from what they are worth beside the records
//! ([`Share`](spinney_records::Share)). A keyspace without scans has almost none.
//!
//! ```text
//!   shard of a page number          frames, under CLOCK
//!   +--------------------+     +-------+-------+-------+----
//!   | page -> frame      | --> | 4 KiB | 4 KiB | 4 KiB | ..     in mappings of 16 frames
//!   +--------------------+     +-------+-------+-------+----
//!                                page, generation, uses
//! ```
//!
//! A hit adds a use to its frame, up to [`USES_MAX`]. The CLOCK hand takes one use from each frame
//! that it passes, and gives the first frame without uses to the new page. When all frames are
//! taken, a page gets one only if it was turned away not long before: most pages of a scan are not
//! asked for again, and would only displace others.
//!
//! **Invariants**
//! 1. A page is here as it is on disk. The holder of the page's lock puts it in. A writer in place
//!    holds that lock exclusively, takes the page out before the write, and may put it back after
//!    it.
//! 2. A page of an older generation is never found: the generation is compared.
//! 3. There are never more frames than [`PageCache::resize`] allows, which may lower their number.
//!
//! **Concurrency.** One lock for each shard, held while one page is copied; nothing is locked
//! inside.
//!
//! **Differs from the paper**, which caches records alone: its scans read every page, and lose to
//! any engine with a page cache where scans have favourites.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use spinney_base::PageNumber;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::mapping::Mapping;
use spinney_base::shim::Mutex;

use crate::policy;
use crate::segment::PageRef;

/// Highest number of uses of a frame.
const USES_MAX: u8 = 3;

/// Frames of one mapping.
const MAPPING_FRAMES: usize = 16;

/// Pages that are remembered for each frame because they were turned away recently.
const SEEN_FOR_FRAME: usize = 4;

/// What one frame costs, with its share of the tables, in bytes.
const FRAME_BYTES: u64 = PAGE_BYTES as u64 + 80;

/// Fewest frames of a cache: for a caller that asks for the first record again and again.
const FRAMES_MIN: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Frame {
    /// `None` for an empty frame.
    page: Option<PageRef>,
    uses: u8,
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<PageNumber, usize>,
    frames: Vec<Frame>,
    mappings: Vec<Mapping>,
    hand: usize,
    frames_max: usize,
    /// Pages that were turned away recently, each at a place that follows from its number. There
    /// are [`SEEN_FOR_FRAME`] places for each frame that exists; frames that are only allowed take
    /// none.
    seen: Vec<PageNumber>,
}

/// Pages as they are on disk. Thread-safe.
#[derive(Debug)]
pub(crate) struct PageCache {
    shards: Box<[Mutex<Shard>]>,
    hits: AtomicU64,
    /// Hits on frames without uses, which would have been the next to be evicted.
    worth: AtomicU64,
}

impl PageCache {
    /// An empty cache with the fewest frames, for a keyspace that may get `most` bytes of memory.
    pub(crate) fn new(most: u64) -> Self {
        let cache = PageCache {
            shards: (0..policy::page_shards(most)).map(|_| Mutex::default()).collect(),
            hits: AtomicU64::new(0),
            worth: AtomicU64::new(0),
        };
        cache.resize(0);
        cache
    }

    /// Fewest bytes that a cache may take.
    pub(crate) fn bytes_min(&self) -> u64 {
        self.shards.len().max(FRAMES_MIN) as u64 * FRAME_BYTES
    }

    /// Bytes of memory that it takes now.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().frames.len() as u64 * FRAME_BYTES).sum()
    }

    /// Hits, and how many of them were on pages that would have been the next to be evicted.
    pub(crate) fn hits(&self) -> (u64, u64) {
        (self.hits.load(Relaxed), self.worth.load(Relaxed))
    }

    /// Sets how many bytes the cache may take from now on, and drops frames beyond that.
    pub(crate) fn resize(&self, bytes: u64) {
        let bytes = bytes.max(self.bytes_min());
        let each = usize::try_from(bytes / FRAME_BYTES).unwrap_or(usize::MAX) / self.shards.len();
        self.shards.iter().for_each(|shard| shard.lock().resize(each));
    }

    /// Copies a page to `to` if it is here.
    pub(crate) fn get(&self, page: PageRef, to: &mut [u8; PAGE_BYTES]) -> bool {
        let mut shard = self.shard(page);
        let Some(frame) = shard.find(page) else { return false };
        to.copy_from_slice(shard.block(frame));
        let uses = &mut shard.frames[frame].uses;
        if *uses == 0 {
            self.worth.fetch_add(1, Relaxed);
        }
        *uses = (*uses + 1).min(USES_MAX);
        self.hits.fetch_add(1, Relaxed);
        true
    }

    /// Keeps a page, whose lock the caller holds.
    pub(crate) fn put(&self, page: PageRef, block: &[u8; PAGE_BYTES]) {
        let mut shard = self.shard(page);
        if let Some(frame) = shard.place(page) {
            shard.block(frame).copy_from_slice(block);
        }
    }

    /// Takes a page out, which the caller is about to write; says whether it was here.
    pub(crate) fn forget(&self, page: PageRef) -> bool {
        let mut shard = self.shard(page);
        let Some(frame) = shard.places.remove(&page.page) else { return false };
        shard.frames[frame] = Frame { page: None, uses: 0 };
        true
    }

    fn shard(&self, page: PageRef) -> impl std::ops::DerefMut<Target = Shard> + '_ {
        let spread = page.page.0.wrapping_mul(0x9E37_79B1) >> 16;
        self.shards[spread as usize & (self.shards.len() - 1)].lock()
    }
}

impl Shard {
    fn find(&self, page: PageRef) -> Option<usize> {
        let frame = *self.places.get(&page.page)?;
        (self.frames[frame].page == Some(page)).then_some(frame)
    }

    /// The bytes of a frame.
    fn block(&mut self, frame: usize) -> &mut [u8; PAGE_BYTES] {
        let start = frame % MAPPING_FRAMES * PAGE_BYTES;
        let mapping = &mut self.mappings[frame / MAPPING_FRAMES];
        (&mut mapping[start..start + PAGE_BYTES]).try_into().expect("a whole page")
    }

    /// A frame for a page, if there may be any.
    fn place(&mut self, page: PageRef) -> Option<usize> {
        if let Some(frame) = self.places.get(&page.page).copied() {
            // Where it is of an older generation nobody wants that any more.
            self.frames[frame].page = Some(page);
            return Some(frame);
        }
        let frame = if self.frames.len() < self.frames_max {
            let frame = self.frames.len();
            if frame.is_multiple_of(MAPPING_FRAMES) {
                self.mappings.push(Mapping::zeroed(MAPPING_FRAMES * PAGE_BYTES));
            }
            self.frames.push(Frame { page: None, uses: 0 });
            frame
        } else if self.came_before(page.page) {
            self.evict()?
        } else {
            return None;
        };
        self.frames[frame] = Frame { page: Some(page), uses: 0 };
        self.places.insert(page.page, frame);
        Some(frame)
    }

    /// Whether a page came lately; it will be known when it comes again. All frames are there.
    fn came_before(&mut self, page: PageNumber) -> bool {
        self.seen.resize(SEEN_FOR_FRAME * self.frames.len(), PageNumber::NONE);
        if self.seen.is_empty() {
            return false;
        }
        let spread = u64::from(page.0.wrapping_mul(0x9E37_79B1));
        let place = usize::try_from((spread * self.seen.len() as u64) >> 32).unwrap_or(0);
        std::mem::replace(&mut self.seen[place], page) == page
    }

    /// Moves the hand to a frame without uses and empties it.
    fn evict(&mut self) -> Option<usize> {
        if self.frames.is_empty() {
            return None;
        }
        loop {
            let hand = self.hand % self.frames.len();
            self.hand = hand + 1;
            let frame = &mut self.frames[hand];
            if frame.uses > 0 {
                frame.uses -= 1;
                continue;
            }
            if let Some(old) = frame.page.take() {
                self.places.remove(&old.page);
            }
            return Some(hand);
        }
    }

    fn resize(&mut self, frames_max: usize) {
        self.frames_max = frames_max;
        self.seen.truncate(SEEN_FOR_FRAME.saturating_mul(frames_max));
        self.seen.shrink_to_fit();
        if self.frames.len() <= frames_max {
            return;
        }
        for frame in self.frames.drain(frames_max..) {
            frame.page.map(|page| self.places.remove(&page.page));
        }
        self.frames.shrink_to_fit();
        self.places.shrink_to_fit();
        self.mappings.truncate(frames_max.div_ceil(MAPPING_FRAMES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinney_base::Generation;

    fn page(number: u32) -> PageRef {
        PageRef { page: PageNumber(number), generation: Generation(1) }
    }

    fn block(number: u32) -> [u8; PAGE_BYTES] {
        let mut block = [0; PAGE_BYTES];
        block[..4].copy_from_slice(&number.to_le_bytes());
        block
    }

    fn has(cache: &PageCache, number: u32) -> bool {
        let mut buf = [0; PAGE_BYTES];
        let here = cache.get(page(number), &mut buf);
        assert!(!here || buf == block(number), "another page's bytes");
        here
    }

    #[test]
    fn pages_that_are_used_outlive_others() {
        let cache = PageCache::new(0);
        cache.resize(20 * FRAME_BYTES);
        (0..20).for_each(|number| cache.put(page(number), &block(number)));
        assert!((0..5).all(|number| has(&cache, number)));
        assert_eq!(cache.hits(), (5, 5));
        for number in 20..35 {
            cache.put(page(number), &block(number));
            assert!(!has(&cache, number), "a page that comes once displaces none");
            cache.put(page(number), &block(number));
        }
        assert!((0..5).all(|number| has(&cache, number)), "used ones are passed over once");
        assert!((5..20).all(|number| !has(&cache, number)));
        assert!((20..35).all(|number| has(&cache, number)));
        assert_eq!(cache.bytes(), 20 * FRAME_BYTES);
    }

    #[test]
    fn what_is_written_or_made_anew_is_not_found() {
        let cache = PageCache::new(0);
        cache.put(page(1), &block(1));
        assert!(cache.forget(page(1)) && !cache.forget(page(1)) && !has(&cache, 1));
        cache.put(page(1), &block(1));
        let newer = PageRef { generation: Generation(2), ..page(1) };
        assert!(!cache.get(newer, &mut [0; PAGE_BYTES]));
        cache.put(newer, &block(7));
        let mut buf = [0; PAGE_BYTES];
        assert!(cache.get(newer, &mut buf) && buf == block(7));
        assert!(!has(&cache, 1), "the older one is gone");
    }

    #[test]
    fn memory_follows_at_once() {
        let cache = PageCache::new(64 << 20);
        cache.resize(1000 * FRAME_BYTES);
        (0..5000).for_each(|number| cache.put(page(number), &block(number)));
        let full = cache.bytes();
        assert!((980 * FRAME_BYTES..=1000 * FRAME_BYTES).contains(&full), "{full}");
        cache.resize(100 * FRAME_BYTES);
        assert!(cache.bytes() <= 100 * FRAME_BYTES);
        let here = (0..5000).filter(|number| has(&cache, *number)).count();
        assert!((80..=100).contains(&here), "{here} are left");
        assert!((0..16).all(|shard| cache.shards[shard].lock().mappings.len() == 1));
        cache.resize(0);
        assert_eq!(cache.bytes(), cache.bytes_min());
        (0..5000).for_each(|number| cache.put(page(number), &block(number)));
        assert_eq!(cache.bytes(), cache.bytes_min());
    }
}
