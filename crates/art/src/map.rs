//! A concurrent ordered map that owns its keys: an [`Art`] whose leaves are records of its own.
//!
//! Each key costs its record (4 bytes, the value, the key) and its share of the tree. A new value
//! means a new record. Small values are copied out, here; others are lent while the caller is
//! [`Pinned`](crate::Pinned), see [`entries`](crate::entries).

use std::ops::Bound;
use std::sync::Arc;

use crossbeam_epoch::pin;
use spinney_base::Result;

use crate::direction::Direction;
use crate::memory::Memory;
use crate::record::{Record, Records};
use crate::scan::Chunks;
use crate::tree::{Art, Census};

/// A concurrent ordered map from byte strings to values. Thread-safe; reads take no lock.
///
/// ```
/// use std::ops::Bound;
/// use spinney_art::{ArtMap, Direction};
///
/// let map = ArtMap::new();
/// map.insert(b"ash", 1);
/// map.insert(b"as", 2);
/// assert_eq!(map.get(b"ash"), Some(1));
/// assert_eq!(map.floor(b"asg"), Some((b"as".to_vec(), 2)));
/// let all = map.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
/// assert_eq!(all.map(|(_, value)| value).collect::<Vec<_>>(), [2, 1]);
/// ```
#[derive(Debug)]
pub struct ArtMap<V: Send + Sync + 'static> {
    pub(crate) art: Art<Records<V>>,
    pub(crate) records: Arc<Memory>,
}

impl<V: Send + Sync + 'static> Default for ArtMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Send + Sync + 'static> ArtMap<V> {
    /// Makes a map without keys.
    #[must_use]
    pub fn new() -> Self {
        let records = Arc::new(Memory::default());
        records.allocated(size_of::<Self>() - size_of::<Art<Records<V>>>() + Memory::SHARED_BYTES);
        ArtMap { art: Art::new(Records::default()), records }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.art.len()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.art.is_empty()
    }

    /// Returns the reachable bytes that the map holds, exactly as requested of the allocator.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.art.bytes() + self.records.live()
    }

    /// Returns the bytes that were removed and wait for readers that may still see them.
    #[must_use]
    pub fn retired_bytes(&self) -> usize {
        self.art.retired_bytes() + self.records.retired()
    }

    /// Checks every invariant, and counts the parts of the tree, without the records. The caller
    /// makes sure that no thread writes meanwhile.
    ///
    /// # Errors
    /// `Corruption` that says what is wrong first.
    pub fn check(&self) -> Result<Census> {
        self.art.check()
    }
}

impl<V: Copy + Send + Sync + 'static> ArtMap<V> {
    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<V> {
        let guard = pin();
        self.art.get(key).map(|leaf| *self.record(leaf, &guard).value())
    }

    /// Returns whether `key` is present.
    #[must_use]
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.art.get(key).is_some()
    }

    /// Gives `key` a value, and returns its old one.
    pub fn insert(&self, key: &[u8], value: V) -> Option<V> {
        let guard = pin();
        let record = Record::new(key, value, &self.records, &guard);
        let old = self.art.upsert(key, record.leaf())?;
        Some(*self.retire(old, &guard).value())
    }

    /// Gives `key` a value if it has none.
    ///
    /// # Errors
    /// The value that it has.
    pub fn insert_if_absent(&self, key: &[u8], value: V) -> std::result::Result<(), V> {
        let guard = pin();
        // Mostly the caller expects the key to be absent; a record that is not needed is freed.
        let record = Record::new(key, value, &self.records, &guard);
        self.art.insert_if_absent(key, record.leaf()).map_err(|leaf| {
            self.discard(record);
            *self.record(leaf, &guard).value()
        })
    }

    /// Replaces the value of `key` if it is `expected`. Returns whether it did.
    pub fn replace(&self, key: &[u8], expected: V, value: V) -> bool
    where
        V: PartialEq,
    {
        let guard = pin();
        let record = Record::new(key, value, &self.records, &guard);
        while let Some(leaf) = self.art.get(key) {
            if *self.record(leaf, &guard).value() != expected {
                break;
            }
            if self.art.replace(key, leaf, record.leaf()) {
                self.retire(leaf, &guard);
                return true;
            }
        }
        self.discard(record);
        false
    }

    /// Removes `key`, and returns its value.
    pub fn remove(&self, key: &[u8]) -> Option<V> {
        let guard = pin();
        self.art.remove(key).map(|leaf| *self.retire(leaf, &guard).value())
    }

    /// Removes `key` if its value is `expected`. Returns whether it did.
    pub fn remove_if(&self, key: &[u8], expected: V) -> bool
    where
        V: PartialEq,
    {
        let guard = pin();
        while let Some(leaf) = self.art.get(key) {
            if *self.record(leaf, &guard).value() != expected {
                return false;
            }
            if self.art.remove_if(key, leaf) {
                self.retire(leaf, &guard);
                return true;
            }
        }
        false
    }

    /// Returns the greatest key that is at most `key`, and its value.
    #[must_use]
    pub fn floor(&self, key: &[u8]) -> Option<(Vec<u8>, V)> {
        self.neighbour(Bound::Included(key), Direction::Backward)
    }

    /// Returns the least key that is at least `key`, and its value.
    #[must_use]
    pub fn ceiling(&self, key: &[u8]) -> Option<(Vec<u8>, V)> {
        self.neighbour(Bound::Included(key), Direction::Forward)
    }

    /// Returns the least key and its value.
    #[must_use]
    pub fn first(&self) -> Option<(Vec<u8>, V)> {
        self.neighbour(Bound::Unbounded, Direction::Forward)
    }

    /// Returns the greatest key and its value.
    #[must_use]
    pub fn last(&self) -> Option<(Vec<u8>, V)> {
        self.neighbour(Bound::Unbounded, Direction::Backward)
    }

    /// Returns the first key from a bound on, in either direction, and its value.
    #[must_use]
    pub fn neighbour(&self, from: Bound<&[u8]>, direction: Direction) -> Option<(Vec<u8>, V)> {
        let guard = pin();
        let leaf = self.art.neighbour(from, direction, None)?;
        let record = self.record(leaf, &guard);
        Some((record.key().to_vec(), *record.value()))
    }

    /// Returns the value of the greatest key that is at most `key`, without copying that key.
    #[must_use]
    pub fn floor_value(&self, key: &[u8]) -> Option<V> {
        let guard = pin();
        self.art.floor(key).map(|leaf| *self.record(leaf, &guard).value())
    }

    /// Returns the keys from one bound to another and their values, in either direction: when going
    /// backward, `from` is the greater one. Every key that is present throughout comes, in order,
    /// none twice. The iterator holds nothing of the map between calls.
    #[must_use]
    pub fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
    ) -> Range<'_, V> {
        Range { map: self, chunks: Chunks::new(from, to, direction), values: Vec::new() }
    }
}

/// A range in progress; see [`ArtMap::range`].
#[derive(Debug)]
pub struct Range<'a, V: Copy + Send + Sync + 'static> {
    map: &'a ArtMap<V>,
    chunks: Chunks,
    /// The values of the chunk, last first.
    values: Vec<V>,
}

impl<V: Copy + Send + Sync + 'static> Range<'_, V> {
    /// Ends the range after `entries` entries, which saves reading ahead. Must be called before the
    /// first entry.
    #[must_use]
    pub fn at_most(mut self, entries: usize) -> Self {
        self.chunks.at_most(entries);
        self
    }
}

impl<V: Copy + Send + Sync + 'static> Iterator for Range<'_, V> {
    type Item = (Vec<u8>, V);

    fn next(&mut self) -> Option<Self::Item> {
        if self.chunks.wants_more() {
            let guard = pin();
            self.chunks.refill(&self.map.art, &guard);
            let leaves = self.chunks.chunk().leaves().rev();
            self.values.clear();
            self.values.extend(leaves.map(|leaf| *self.map.record(leaf, &guard).value()));
        }
        let (key, _) = self.chunks.take()?;
        Some((key.to_vec(), self.values.pop()?))
    }
}
