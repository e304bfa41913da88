//! Memory mapped from the system: for large pieces that come and go from many threads, which a
//! general allocator would keep in parts.
//!
//! A mapping takes memory only for the pages written, is zeroed by the system on first use, begins
//! at a page, and goes back whole when it is dropped.
//!
//! Faulting in pages, zeroing them, and announcing their removal to every processor takes longer
//! than filling them. So mappings whose owners fill them anyway ([`Mapping::reused`]) are kept when
//! they are dropped, for the next owner. The latest ones are kept, up to [`IDLE_BYTES_MAX`] beyond
//! what is set aside for them ([`SetAside`]). A component that has a budget for mappings takes
//! nothing from others while they wait for it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memmap2::MmapMut;
// Not the shim's: this lock outlives what shuttle schedules, and nothing is scheduled while it is
// held.
use parking_lot::Mutex;

use crate::limits::PAGE_BYTES;

/// Most bytes of unused mappings that the process keeps beyond those set aside.
pub const IDLE_BYTES_MAX: usize = 16 << 20;

static MAPPED: AtomicUsize = AtomicUsize::new(0);

static IDLE: Mutex<Idle> = Mutex::new(Idle::new(IDLE_BYTES_MAX));

/// Returns the bytes of all mappings that have an owner. The general allocator does not count them.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// Returns the bytes of mappings without an owner, which are kept for the next one.
#[must_use]
pub fn idle_bytes() -> usize {
    IDLE.lock().bytes
}

/// A part of a memory budget that is set aside for such mappings: unused ones may be kept up to it.
/// It is 0 at first, and again when it is dropped.
#[derive(Debug, Default)]
pub struct SetAside(AtomicUsize);

impl SetAside {
    /// Sets the part to `bytes`.
    pub fn set(&self, bytes: usize) {
        let gone = {
            let mut idle = IDLE.lock();
            // If two threads set it at once, one of the two values stays.
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

/// Gives unused mappings back to the system. Call it when [`idle_moves`] no longer changes.
pub fn release_idle() {
    let maps = IDLE.lock().clear();
    drop(maps);
}

/// Gives unused mappings back when it is dropped. Make it the last field of a large user.
#[derive(Debug)]
pub struct ReleaseIdle;

impl Drop for ReleaseIdle {
    fn drop(&mut self) {
        release_idle();
    }
}

/// Returns how many mappings have become unused, or were reused, in this process.
#[must_use]
pub fn idle_moves() -> u64 {
    IDLE.lock().moves
}

/// Mappings for the next owner, in the order in which they came.
#[derive(Debug)]
struct Idle {
    maps: VecDeque<MmapMut>,
    /// Bytes of these.
    bytes: usize,
    /// Bytes of mappings that have an owner and will be kept when dropped.
    owned: usize,
    /// Bytes set aside for both.
    set_aside: usize,
    /// Bytes that may be kept beyond that.
    beside_max: usize,
    /// Number of mappings that came or left.
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

    /// Gives an owner of `capacity` bytes a mapping that is kept, or makes room for a new one.
    fn own(&mut self, capacity: usize) -> Option<MmapMut> {
        self.owned += capacity;
        self.take(capacity)
    }

    /// Takes the latest one of `capacity` bytes. Never a longer one: what an owner counts of a
    /// mapping must follow from what it asked for, not from what others of the process dropped.
    fn take(&mut self, capacity: usize) -> Option<MmapMut> {
        let place = self.maps.iter().rposition(|map| map.len() == capacity)?;
        self.moves += 1;
        let map = self.maps.remove(place)?;
        self.bytes -= map.len();
        Some(map)
    }

    /// Keeps a mapping that had an owner. Returns the ones that it replaces.
    fn put(&mut self, map: MmapMut) -> Vec<MmapMut> {
        self.moves += 1;
        self.owned -= map.len();
        self.bytes += map.len();
        self.maps.push_back(map);
        self.trim()
    }

    /// Takes the oldest mappings beyond the limit.
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

/// A private memory mapping, aligned to a page of the system.
#[derive(Debug)]
pub struct Mapping {
    /// Present until the drop.
    map: Option<MmapMut>,
    length: usize,
    is_kept: bool,
}

impl Mapping {
    /// Maps `length` zeroed bytes.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Mapping::new(length, None, length, false)
    }

    /// Maps `length` bytes of any content, perhaps of a dropped mapping. It is for owners that
    /// write before they read, and that fill most of it.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn reused(length: usize) -> Self {
        // Lengths are rounded up, by a quarter at most, so that one mapping serves for others. With
        // steps half as long, a load has a tenth to a half more page faults; with steps twice as
        // long, a fifth less, but up to half of a mapping is room that nobody asked for.
        let step = length.next_power_of_two() / 8;
        let capacity = length.max(1).next_multiple_of(step.max(PAGE_BYTES));
        let idle = IDLE.lock().own(capacity);
        Mapping::new(length, idle, capacity, true)
    }

    fn new(length: usize, idle: Option<MmapMut>, capacity: usize, is_kept: bool) -> Self {
        // A mapping is never empty.
        let fresh = || MmapMut::map_anon(capacity.max(1)).expect("there is memory");
        let map = idle.unwrap_or_else(fresh);
        MAPPED.fetch_add(map.len(), Relaxed);
        Mapping { map: Some(map), length, is_kept }
    }

    /// Gives the memory of whole pages back to the system; their bytes are zeros from now on.
    ///
    /// # Safety
    /// Nobody borrows these bytes; they are accessed as atomics, if at all.
    ///
    /// # Panics
    /// When these are not whole pages of the mapping.
    #[expect(unsafe_code, reason = "bytes change behind a shared reference")]
    pub unsafe fn give_back(&self, offset: usize, bytes: usize) {
        assert!(offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES));
        assert!(offset + bytes <= self.length);
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the caller's. The range lies within the mapping, which is private and has no file.
        let given = unsafe { self.map().unchecked_advise_range(advice, offset, bytes) };
        debug_assert!(given.is_ok(), "whole pages of a private mapping");
    }

    #[inline]
    fn map(&self) -> &MmapMut {
        self.map.as_ref().expect("it is there until it is dropped")
    }

    /// Returns the length up to which it can grow, in bytes.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.map().len()
    }

    /// Changes the length. Bytes that were written stay, even if it was shorter in between.
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
    fn only_one_of_the_same_length_is_used_again_and_the_oldest_go() {
        let page = 4096;
        let mut idle = Idle::new(100 * page);
        let mapped = |idle: &mut Idle, pages: usize| {
            let new = || MmapMut::map_anon(pages * page).unwrap();
            idle.own(pages * page).unwrap_or_else(new)
        };
        let [one, two, three] = [40, 41, 10].map(|pages| mapped(&mut idle, pages));
        assert_eq!((idle.owned, idle.bytes), (91 * page, 0));
        for map in [one, two, three] {
            assert!(idle.put(map).is_empty());
        }
        // Neither shorter nor longer.
        assert!(idle.take(11 * page).is_none() && idle.take(9 * page).is_none());
        assert_eq!((idle.take(39 * page).is_none(), idle.bytes), (true, 91 * page));
        assert_eq!(mapped(&mut idle, 40).len(), 40 * page);
        assert_eq!(mapped(&mut idle, 10).len(), 10 * page);
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
        // What it can grow to follows from the length, whatever else was dropped.
        let grown = |pages: usize| Mapping::reused(pages * PAGE_BYTES).capacity() / PAGE_BYTES;
        let capacities: Vec<usize> = (113..=129).map(grown).collect();
        assert_eq!(capacities, [vec![128; 16], vec![160]].concat());
        assert_eq!((129..=161).rev().map(grown).filter(|pages| *pages == 160).count(), 32);
        // What must be zeros is not from there.
        let mut dirty = Mapping::reused(length);
        dirty.fill(7);
        drop(dirty);
        assert!(Mapping::zeroed(length).iter().all(|byte| *byte == 0));
    }
}
