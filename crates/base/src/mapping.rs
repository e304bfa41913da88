//! Memory straight from the system: for what is large, comes and goes from many threads, and would be kept
//! in pieces by a general allocator.
//!
//! A mapping costs what was written of it, is zeroed by the system when it is touched first, begins at a
//! page, and goes back whole when it is dropped.
//!
//! To fault its pages in, zero them, and tell every processor when they are gone takes longer than to fill them. So
//! those whose owners fill them anyway ([`Mapping::reused`]) are kept for the next owner when they are dropped, up to
//! [`IDLE_BYTES_MAX`] of them, the latest.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memmap2::MmapMut;
// Not the shim's: this one outlives what shuttle schedules, and nothing is scheduled while it is held.
use parking_lot::Mutex;

/// Bytes of mappings that this process keeps, at most, though nobody owns them.
pub const IDLE_BYTES_MAX: usize = 24 << 20;

static MAPPED: AtomicUsize = AtomicUsize::new(0);

static IDLE: Mutex<Idle> = Mutex::new(Idle::new(IDLE_BYTES_MAX));

/// Bytes of all mappings in this process that somebody owns, which the general allocator does not know of.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// Gives back what nobody owns: for whoever sees that [`idle_moves`] stands still.
pub fn release_idle() {
    let maps = std::mem::take(&mut IDLE.lock().maps);
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
    bytes_max: usize,
    /// How many have come and gone.
    moves: u64,
}

impl Idle {
    const fn new(bytes_max: usize) -> Self {
        Idle { maps: VecDeque::new(), bytes_max, moves: 0 }
    }

    fn bytes(&self) -> usize {
        self.maps.iter().map(|map| map.len()).sum()
    }

    /// The latest that is as long, and hardly longer: all of it may be resident.
    fn take(&mut self, length: usize) -> Option<MmapMut> {
        let fits = |map: &MmapMut| map.len() >= length && map.len() <= length + length / 4;
        let place = self.maps.iter().rposition(fits)?;
        self.moves += 1;
        self.maps.remove(place)
    }

    /// Keeps one, and answers the ones that it takes the place of.
    fn put(&mut self, map: MmapMut) -> Vec<MmapMut> {
        self.moves += 1;
        self.maps.push_back(map);
        let mut over = self.bytes().saturating_sub(self.bytes_max);
        let mut gone = Vec::new();
        while over > 0 {
            let oldest = self.maps.pop_front().expect("it holds more than none");
            over = over.saturating_sub(oldest.len());
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
        Mapping::new(length, None, false)
    }

    /// `length` bytes of any content, perhaps of a mapping that was dropped: for owners that write before they read,
    /// and that fill most of it.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn reused(length: usize) -> Self {
        let idle = IDLE.lock().take(length);
        Mapping::new(length, idle, true)
    }

    fn new(length: usize, idle: Option<MmapMut>, is_kept: bool) -> Self {
        // A mapping is never empty.
        let fresh = || MmapMut::map_anon(length.max(1)).expect("there is memory");
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
    fn the_latest_that_fits_is_used_again_and_the_oldest_go() {
        let page = 4096;
        let mapped = |pages: usize| MmapMut::map_anon(pages * page).unwrap();
        let mut idle = Idle::new(100 * page);
        assert!(idle.take(page).is_none());
        for pages in [40, 41, 10] {
            assert!(idle.put(mapped(pages)).is_empty());
        }
        // Neither shorter nor much longer.
        assert!(idle.take(11 * page).is_none() && idle.take(7 * page).is_none());
        assert_eq!(idle.take(40 * page - 5).unwrap().len(), 41 * page, "the latest of two");
        assert_eq!(idle.take(8 * page).unwrap().len(), 10 * page);
        assert_eq!(idle.bytes(), 40 * page);
        assert!(idle.put(mapped(60)).is_empty());
        let gone = idle.put(mapped(70));
        assert_eq!(
            gone.iter().map(|map| map.len()).sum::<usize>(),
            100 * page,
            "the two before it"
        );
        assert_eq!(idle.put(mapped(101)).len(), 2, "what is too long itself is not kept, either");
        assert_eq!(idle.bytes(), 0);
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
        assert!(IDLE.lock().bytes() <= IDLE_BYTES_MAX);
        // What must be zeros is not from there.
        let mut dirty = Mapping::reused(length);
        dirty.fill(7);
        drop(dirty);
        assert!(Mapping::zeroed(length).iter().all(|byte| *byte == 0));
    }
}
