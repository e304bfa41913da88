//! Keys and values of a map as they lie in memory, lent while the thread is pinned: for values that
//! are not copied, such as ones with a lock in them.
//!
//! **Invariant**: what is lent lives as long as both the map and the pin that it was lent under.
//! The map frees its records with itself, or an epoch after they were removed, and a pin holds the
//! epoch. So only this module's [`Pinned`] will do: a guard of a collector of the caller's own
//! holds no epoch of the map's.
//!
//! A removed value may still be lent to others. A thread that writes to values through a lock in
//! them must mark them as removed.

use std::ops::Bound;

use crossbeam_epoch::{Guard, pin};

use crate::direction::Direction;
use crate::map::ArtMap;
use crate::record::Record;
use crate::scan::Chunks;

/// Keeps what a map lends alive. It delays the freeing of everything that is removed from any map
/// meanwhile, so it should be short. Pinning again while pinned costs next to nothing.
#[derive(Debug)]
pub struct Pinned(Guard);

impl Default for Pinned {
    fn default() -> Self {
        Self::new()
    }
}

impl Pinned {
    /// Pins the thread.
    #[must_use]
    pub fn new() -> Self {
        Pinned(pin())
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.0
    }
}

/// Methods that lend. They are linearizable, as those that copy are.
impl<V: Send + Sync + 'static> ArtMap<V> {
    /// Returns the value of `key`.
    #[must_use]
    pub fn lend<'a>(&'a self, key: &[u8], pinned: &'a Pinned) -> Option<&'a V> {
        self.art.get(key).map(|leaf| self.record(leaf, pinned.guard()).value())
    }

    /// Returns the first entry from a bound on, in either direction.
    #[must_use]
    pub fn lend_neighbour<'a>(
        &'a self,
        from: Bound<&[u8]>,
        direction: Direction,
        pinned: &'a Pinned,
    ) -> Option<(&'a [u8], &'a V)> {
        let leaf = self.art.neighbour(from, direction, None)?;
        let record = self.record(leaf, pinned.guard());
        Some((record.key(), record.value()))
    }

    /// Returns the entry with the greatest key that is at most `key`.
    #[must_use]
    pub fn lend_floor<'a>(&'a self, key: &[u8], pinned: &'a Pinned) -> Option<(&'a [u8], &'a V)> {
        self.lend_neighbour(Bound::Included(key), Direction::Backward, pinned)
    }

    /// Returns the entries from one bound to another, in either direction: when going backward,
    /// `from` is the greater one. As for [`ArtMap::range`], each chunk is of one moment.
    #[must_use]
    pub fn lend_range<'a>(
        &'a self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        pinned: &'a Pinned,
    ) -> Entries<'a, V> {
        let chunks = Chunks::new(from, to, direction);
        Entries { map: self, pinned, chunks, records: Vec::new() }
    }

    /// Gives `key` a value, and lends its old one.
    pub fn put<'a>(&'a self, key: &[u8], value: V, pinned: &'a Pinned) -> Option<&'a V> {
        let record = Record::new(key, value, &self.records, pinned.guard());
        let old = self.art.upsert(key, record.leaf())?;
        Some(self.retire(old, pinned.guard()).value())
    }

    /// Removes `key`, and lends its value.
    pub fn take<'a>(&'a self, key: &[u8], pinned: &'a Pinned) -> Option<&'a V> {
        self.art.remove(key).map(|leaf| self.retire(leaf, pinned.guard()).value())
    }
}

/// A range in progress; see [`ArtMap::lend_range`].
#[derive(Debug)]
pub struct Entries<'a, V: Send + Sync + 'static> {
    map: &'a ArtMap<V>,
    pinned: &'a Pinned,
    chunks: Chunks,
    /// The records of the chunk, last first.
    records: Vec<Record<'a, V>>,
}

impl<V: Send + Sync + 'static> Entries<'_, V> {
    /// Ends the range after `entries` entries, which saves reading ahead. Must be called before the
    /// first entry.
    #[must_use]
    pub fn at_most(mut self, entries: usize) -> Self {
        self.chunks.at_most(entries);
        self
    }
}

impl<'a, V: Send + Sync + 'static> Iterator for Entries<'a, V> {
    type Item = (&'a [u8], &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunks.wants_more() {
            self.chunks.refill(&self.map.art, self.pinned.guard());
            let leaves = self.chunks.chunk().leaves().rev();
            self.records.clear();
            self.records.extend(leaves.map(|leaf| self.map.record(leaf, self.pinned.guard())));
        }
        self.chunks.take()?;
        let record = self.records.pop()?;
        Some((record.key(), record.value()))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// Counts those of it that live.
    struct Live(u64, Arc<AtomicUsize>);

    impl Live {
        fn new(number: u64, living: &Arc<AtomicUsize>) -> Live {
            living.fetch_add(1, SeqCst);
            Live(number, Arc::clone(living))
        }
    }

    impl Drop for Live {
        fn drop(&mut self) {
            self.1.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn values_are_lent_and_dropped_once() {
        let living = Arc::new(AtomicUsize::new(0));
        let map = ArtMap::new();
        let pinned = Pinned::new();
        for number in 0..1000_u64 {
            assert!(map.put(&number.to_be_bytes(), Live::new(number, &living), &pinned).is_none());
        }
        assert_eq!(living.load(SeqCst), 1000);
        let old = map.put(&7_u64.to_be_bytes(), Live::new(70, &living), &pinned);
        let taken = map.take(&8_u64.to_be_bytes(), &pinned);
        // What is gone from the map is lent until the pin goes.
        assert_eq!((old.unwrap().0, taken.unwrap().0), (7, 8));
        assert_eq!(map.lend(&7_u64.to_be_bytes(), &pinned).unwrap().0, 70);
        assert!(map.lend(&8_u64.to_be_bytes(), &pinned).is_none());
        assert_eq!(map.lend_floor(&8_u64.to_be_bytes(), &pinned).unwrap().1.0, 70);
        assert_eq!(living.load(SeqCst), 1001);
        drop(pinned);
        let pinned = Pinned::new();
        let (low, high) = (5_u64.to_be_bytes(), 500_u64.to_be_bytes());
        let bounds = (Bound::Excluded(&low[..]), Bound::Included(&high[..]));
        let forward: Vec<u64> = map
            .lend_range(bounds.0, bounds.1, Direction::Forward, &pinned)
            .map(|(key, value)| {
                assert!(value.0 == 70 || key == value.0.to_be_bytes());
                value.0
            })
            .collect();
        let expected: Vec<u64> =
            (6..=500).filter(|key| *key != 8).map(|key| if key == 7 { 70 } else { key }).collect();
        assert_eq!(forward, expected);
        let backward = map.lend_range(bounds.1, bounds.0, Direction::Backward, &pinned);
        assert_eq!(backward.map(|(_, value)| value.0).collect::<Vec<_>>(), {
            let mut expected = expected;
            expected.reverse();
            expected
        });
        let some = map.lend_range(Bound::Unbounded, Bound::Unbounded, Direction::Forward, &pinned);
        assert_eq!(some.at_most(3).count(), 3);
        drop(pinned);
        while map.retired_bytes() > 0 {
            pin().flush();
        }
        assert_eq!(living.load(SeqCst), 999);
        drop(map);
        assert_eq!(living.load(SeqCst), 0);
    }

    /// Readers hold what writers throw away.
    #[test]
    fn what_is_lent_stays_while_others_remove_it() {
        let living = Arc::new(AtomicUsize::new(0));
        let map = ArtMap::new();
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let (map, living) = (&map, &living);
                scope.spawn(move || {
                    for round in 0..20_000_u64 {
                        let pinned = Pinned::new();
                        let key = (round * 7 % 64).to_be_bytes();
                        if (round + thread).is_multiple_of(3) {
                            map.put(&key, Live::new(round * 7 % 64, living), &pinned);
                        } else if round.is_multiple_of(5) {
                            map.take(&key, &pinned);
                        } else if let Some((key, value)) = map.lend_floor(&key, &pinned) {
                            assert_eq!(key, value.0.to_be_bytes());
                        }
                    }
                });
            }
        });
        drop(map);
        while living.load(SeqCst) > 0 {
            pin().flush();
        }
    }
}
