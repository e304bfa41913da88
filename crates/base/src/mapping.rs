//! Memory straight from the system: for what is large, comes and goes from many threads, and would be kept
//! in pieces by a general allocator.
//!
//! A mapping costs what was written of it, is zeroed by the system when it is touched first, begins at a
//! page, and goes back whole when it is dropped.
//!
//! To fault its pages in, zero them, and tell every processor when they are gone takes longer than to fill them. So
//! those whose owners fill them anyway ([`Mapping::reused`]) are kept for the next owner when they are dropped, the latest,
//! up to [`IDLE_BYTES_MAX`] beyond what is set aside for them ([`SetAside`]): who has memory for so much takes nothing
//! from anybody while it waits for him.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memmap2::MmapMut;
// Not the shim's: this one outlives what shuttle schedules, and nothing is scheduled while it is held.
use parking_lot::Mutex;

use crate::limits::PAGE_BYTES;

/// Bytes of mappings that this process keeps though nobody owns them and nobody has set memory aside, at most.
pub const IDLE_BYTES_MAX: usize = 16 << 20;

static MAPPED: AtomicUsize = AtomicUsize::new(0);

static IDLE: Mutex<Idle> = Mutex::new(Idle::new(IDLE_BYTES_MAX));

/// Bytes of all mappings in this process that somebody owns, which the general allocator does not know of.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// Bytes of mappings that nobody owns and that are kept for the next owner.
#[must_use]
pub fn idle_bytes() -> usize {
    IDLE.lock().bytes
}

/// Memory that somebody has set aside for such mappings: what of it nobody owns may be kept. Nothing at first, and
/// again when it is dropped.
#[derive(Debug, Default)]
pub struct SetAside(AtomicUsize);

impl SetAside {
    /// Sets so many bytes aside, in the place of what it was before.
    pub fn set(&self, bytes: usize) {
        let gone = {
            let mut idle = IDLE.lock();
            // Two that set it at once leave what one of them said.
            idle.set_aside = idle.set_aside + bytes - self.0.swap(bytes, Relaxed);
            idle.trim()
        };
        drop(gone);
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Gives back what nobody owns: for whoever sees that [`idle_moves`] stands still.
pub fn release_idle() {
    let maps = IDLE.lock().clear();
    drop(maps);
}

/// Does so when it is dropped: the last field of whoever used much.
#[derive(Debug)]
pub struct ReleaseIdle;

impl Drop for ReleaseIdle {
    fn drop(&mut self) {
        release_idle();
    }
}

/// How many mappings have come to those that nobody owns, or gone from there to a new owner, in this process.
#[must_use]
pub fn idle_moves() -> u64 {
    IDLE.lock().moves
}

/// Mappings for the next owner, in the order in which they came.
#[derive(Debug)]
struct Idle {
    maps: VecDeque<MmapMut>,
    /// Of these.
    bytes: usize,
    /// Of those that have an owner and will come.
    owned: usize,
    /// For both.
    set_aside: usize,
    /// Beside that.
    beside_max: usize,
    /// How many have come and gone.
    moves: u64,
}

impl Idle {
    const fn new(beside_max: usize) -> Self {
        Idle { maps: VecDeque::new(), bytes: 0, owned: 0, set_aside: 0, beside_max, moves: 0 }
    }

    fn clear(&mut self) -> VecDeque<MmapMut> {
        self.bytes = 0;
        std::mem::take(&mut self.maps)
    }

    /// One for an owner: one that is kept, or room for a new one of `capacity` bytes.
    fn own(&mut self, length: usize, capacity: usize) -> Option<MmapMut> {
        let map = self.take(length);
        self.owned += map.as_ref().map_or(capacity, |map| map.len());
        map
    }

    /// The shortest that is as long, the latest of these, and no much longer one: all of it may be resident.
    fn take(&mut self, length: usize) -> Option<MmapMut> {
        let fits = |map: &MmapMut| map.len() >= length && map.len() <= length + length / 4;
        let fitting = self.maps.iter().enumerate().rev().filter(|(_, map)| fits(map));
        let (place, _) = fitting.min_by_key(|(_, map)| map.len())?;
        self.moves += 1;
        let map = self.maps.remove(place)?;
        self.bytes -= map.len();
        Some(map)
    }

    /// Keeps one that had an owner, and answers the ones that it takes the place of.
    fn put(&mut self, map: MmapMut) -> Vec<MmapMut> {
        self.moves += 1;
        self.owned -= map.len();
        self.bytes += map.len();
        self.maps.push_back(map);
        self.trim()
    }

    /// Takes the oldest that are too many.
    fn trim(&mut self) -> Vec<MmapMut> {
        let bytes_max = self.beside_max + self.set_aside.saturating_sub(self.owned);
        let mut gone = Vec::new();
        while self.bytes > bytes_max
            && let Some(oldest) = self.maps.pop_front()
        {
            self.bytes -= oldest.len();
            gone.push(oldest);
        }
        gone
    }
}

/// Memory of its own, aligned to a page of the system.
#[derive(Debug)]
pub struct Mapping {
    /// Always there, until it is dropped.
    map: Option<MmapMut>,
    length: usize,
    is_kept: bool,
}

impl Mapping {
    /// `length` zeroed bytes.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Mapping::new(length, None, length, false)
    }

    /// `length` bytes of any content, perhaps of a mapping that was dropped: for owners that write before they read,
    /// and that fill most of it.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn reused(length: usize) -> Self {
        // Lengths that differ little are the same, so that one serves for the other.
        let step = length.next_power_of_two() / 16;
        let capacity = length.max(1).next_multiple_of(step.max(PAGE_BYTES));
        let idle = IDLE.lock().own(length, capacity);
        Mapping::new(length, idle, capacity, true)
    }

    fn new(length: usize, idle: Option<MmapMut>, capacity: usize, is_kept: bool) -> Self {
        // A mapping is never empty.
        let fresh = || MmapMut::map_anon(capacity.max(1)).expect("there is memory");
        let map = idle.unwrap_or_else(fresh);
        MAPPED.fetch_add(map.len(), Relaxed);
        Mapping { map: Some(map), length, is_kept }
    }

    #[inline]
    fn map(&self) -> &MmapMut {
        self.map.as_ref().expect("it is there until it is dropped")
    }

    /// How long it can be.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.map().len()
    }

    /// Makes it shorter or longer. What was written to it stays, though it was shorter between.
    ///
    /// # Panics
    /// When `length` is above its capacity.
    pub fn set_length(&mut self, length: usize) {
        assert!(length <= self.capacity(), "{length} bytes of {}", self.capacity());
        self.length = length;
    }
}

impl Deref for Mapping {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.map()[..self.length]
    }
}

impl DerefMut for Mapping {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let map = self.map.as_mut().expect("it is there until it is dropped");
        &mut map[..self.length]
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.capacity(), Relaxed);
        if let Some(map) = self.map.take().filter(|_| self.is_kept) {
            let gone = IDLE.lock().put(map);
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_zeroed_and_counted() {
        let mut mapping = Mapping::zeroed(10_000);
        assert!(mapping.iter().all(|byte| *byte == 0) && mapping.len() == 10_000);
        mapping[9_999] = 1;
        // More than the mappings of all tests beside this one.
        let large = Mapping::zeroed(1 << 30);
        assert!(mapped_bytes() >= large.len());
        drop(large);
        assert!(mapped_bytes() < 1 << 30);
        assert!(Mapping::zeroed(0).is_empty() && Mapping::reused(0).is_empty());
        mapping.set_length(5);
        assert_eq!(mapping[..], [0; 5]);
        mapping.set_length(mapping.capacity());
        assert_eq!(mapping[9_999], 1);
    }

    #[test]
    fn the_shortest_that_fits_is_used_again_and_the_oldest_go() {
        let page = 4096;
        let mut idle = Idle::new(100 * page);
        let mapped = |idle: &mut Idle, pages: usize| {
            let new = || MmapMut::map_anon(pages * page).unwrap();
            idle.own(pages * page, pages * page).unwrap_or_else(new)
        };
        let [one, two, three] = [40, 41, 10].map(|pages| mapped(&mut idle, pages));
        assert_eq!((idle.owned, idle.bytes), (91 * page, 0));
        for map in [one, two, three] {
            assert!(idle.put(map).is_empty());
        }
        // Neither shorter nor much longer.
        assert!(idle.take(11 * page).is_none() && idle.take(7 * page).is_none());
        assert_eq!(mapped(&mut idle, 39).len(), 40 * page, "the shorter of two");
        assert_eq!(mapped(&mut idle, 8).len(), 10 * page);
        assert_eq!((idle.owned, idle.bytes), (50 * page, 41 * page));
        let [one, two] = [59, 70].map(|pages| mapped(&mut idle, pages));
        assert!(idle.put(one).is_empty());
        let gone = idle.put(two);
        let bytes = |maps: &[MmapMut]| maps.iter().map(|map| map.len()).sum::<usize>();
        assert_eq!(bytes(&gone), 100 * page, "the two before it");
        let long = mapped(&mut idle, 101);
        assert_eq!(idle.put(long).len(), 2, "what is too long itself is not kept, either");
        assert_eq!((idle.bytes, idle.owned), (0, 50 * page));
        // Of what is set aside that may be kept which has no owner.
        idle.set_aside = 110 * page;
        let [one, two] = [90, 60].map(|pages| mapped(&mut idle, pages));
        assert!(idle.put(one).is_empty() && idle.put(two).is_empty());
        assert_eq!(idle.bytes, 150 * page, "of 100 and 60");
        let more = mapped(&mut idle, 20);
        assert_eq!(bytes(&idle.trim()), 90 * page, "what has an owner takes the room");
        assert!(idle.put(more).is_empty());
        assert_eq!(idle.bytes, 80 * page);
        idle.set_aside = 0;
        let more = mapped(&mut idle, 30);
        assert_eq!((bytes(&idle.put(more)), idle.bytes), (60 * page, 50 * page));
        assert_eq!((idle.clear().len(), idle.bytes), (2, 0));
    }

    #[test]
    fn what_is_used_again_is_as_long_as_was_asked_and_counted_while_it_is_owned() {
        let length = 3 << 20;
        for round in 0..100u8 {
            let mut mapping = Mapping::reused(length + usize::from(round));
            assert_eq!(mapping.len(), length + usize::from(round));
            assert!(mapped_bytes() >= mapping.len());
            mapping.fill(round);
            assert!(mapping.iter().all(|byte| *byte == round));
        }
        let moves = idle_moves();
        drop(ReleaseIdle);
        assert!(moves >= 100, "each of these gave one back: {moves}");
        assert!(idle_bytes() <= IDLE_BYTES_MAX);
        // What must be zeros is not from there.
        let mut dirty = Mapping::reused(length);
        dirty.fill(7);
        drop(dirty);
        assert!(Mapping::zeroed(length).iter().all(|byte| *byte == 0));
    }
}
