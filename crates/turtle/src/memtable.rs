//! A memtable: the newest edits of a keyspace, sorted as they come.
//!
//! ```text
//!   AppendedMap: key -> operation, value    seal: no more edits; batch(): a run over its chunks
//!   Hints: word 0 | word 1 | ...            three bits for each key, in one word: a filter
//! ```
//!
//! Edits are appended to memory that is freed whole; the room of an edit that another one of its
//! key replaced is used again for one of the same size. The log grows meanwhile and asks for a
//! checkpoint itself when it is too full. A sealed memtable becomes a batch where it lies: items
//! point into its chunks, which stay until no run needs them any more. Only where most of a chunk
//! is not used, what is left is copied.
//!
//! 1. A memtable is written only by threads inside the keyspace's [gate](crate::gate), and it is
//!    sealed while none is: a sealed one never changes.
//! 2. Its number is above those of all before: the edit of the highest number is the newest.
//! 3. A key's bits are set before it is put, and stay: a key whose bits are not all there is not in
//!    the map. So a lookup passes over most of the memtables that do not have its key; the authors
//!    ask each one.
//!
//! **Concurrency.** Any number of threads read and write. Writers of one key are ordered by the
//! key's stripe.

use std::ops::Bound;
use std::sync::Arc;

use spinney_art::{Appended, AppendedMap, AppendedRange, Direction, Pinned};
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Result, ValueRef};
use spinney_engine::Found;

use crate::edit::Edit;
use crate::run::{Op, Position, Run, RunBuilder, RunOver};
use crate::source::{Bytes, Source};

/// What an edit takes beside key and value, about: its record's header and its share of the tree.
pub(crate) const EDIT_BYTES: u64 = 40;

/// A batch of fewer bytes is copied: chunks are pages of the system, at least.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// Bytes of edits for each word of hints. With keys of 16 bytes and values of 112 that is 4 keys,
/// and one lookup in 150 that could be spared is not. With more, more lookups ask in vain; with
/// fewer, the hints take more memory.
const HINTED_BYTES: usize = 512;

/// Most words of hints: more than the largest memtable needs.
const HINTS_MAX: usize = 1 << 16;

/// One memtable. Thread-safe.
#[derive(Debug)]
pub(crate) struct Memtable {
    hints: Hints,
    map: AppendedMap,
    number: u64,
    /// Removals that were put, those of one key each time.
    tombstones: AtomicU64,
}

/// Hints which keys there may be, by their hashes.
#[derive(Debug)]
struct Hints(Box<[AtomicU64]>);

impl Hints {
    /// Hints for about this many bytes of edits.
    fn new(bytes: usize) -> Hints {
        let words = (bytes / HINTED_BYTES).clamp(1, HINTS_MAX);
        Hints((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// The word of a key and its bits there.
    fn of(&self, hash: u64) -> (&AtomicU64, u64) {
        let word = ((hash >> 32) * self.0.len() as u64) >> 32;
        let bits = (0..3).fold(0, |bits, nth| bits | 1 << (hash >> (6 * nth) & 63));
        (&self.0[word as usize], bits)
    }

    fn add(&self, hash: u64) {
        let (word, bits) = self.of(hash);
        if word.load(Relaxed) & bits != bits {
            word.fetch_or(bits, Relaxed);
        }
    }

    fn may_have(&self, hash: u64) -> bool {
        let (word, bits) = self.of(hash);
        word.load(Relaxed) & bits == bits
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Code of an edit's operation in the map.
const PUT: u8 = 0;
const PUT_LARGE: u8 = 1;
const REMOVE: u8 = 2;

fn tag(value: Option<ValueRef<'_>>) -> u8 {
    match value {
        None => REMOVE,
        Some(value) if value.large => PUT_LARGE,
        Some(_) => PUT,
    }
}

fn op(entry: &Appended<'_>) -> Op {
    match entry.tag() {
        PUT => Op::Put,
        PUT_LARGE => Op::PutLarge,
        _ => Op::Delete,
    }
}

fn edit<'a>(entry: &Appended<'a>) -> Edit<'a> {
    let value = match op(entry) {
        Op::Put => Some(ValueRef::inline(entry.value())),
        Op::PutLarge => Some(ValueRef::large(entry.value())),
        Op::Delete => None,
    };
    Edit { key: entry.key(), value }
}

impl Memtable {
    /// A memtable that is sealed when it has about `bytes` bytes.
    pub(crate) fn new(number: u64, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Memtable::of(AppendedMap::with_room(bytes), bytes, number)
    }

    /// The memtable after this one, which is about to be sealed: for as many bytes. Its edits are
    /// likely to take as much as here beside the tree over them. What was set aside for them and is
    /// not filled is memory all the same.
    pub(crate) fn next(&self, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let appended = self.map.appended_bytes();
        let is_whole = appended >= bytes / 2;
        let room = if is_whole { (appended + appended / 32).min(bytes) } else { bytes };
        let map = AppendedMap::with_room(room);
        Memtable::of(map, bytes, self.number + 1)
    }

    fn of(map: AppendedMap, bytes: usize, number: u64) -> Self {
        Memtable { hints: Hints::new(bytes), map, number, tombstones: AtomicU64::new(0) }
    }

    /// How many removals were put, those of one key each time.
    pub(crate) fn tombstones(&self) -> u64 {
        self.tombstones.load(Relaxed)
    }

    /// Its place in the order of memtables.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Bytes that its edits hold, those of replaced ones that were not used again included.
    pub(crate) fn bytes(&self) -> u64 {
        self.map.bytes() as u64
    }

    /// Memory that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes() + self.hints.bytes() as u64
    }

    /// Puts an edit, which replaces the key's one before. Returns the pointer to a large value that
    /// it replaced, if it did.
    pub(crate) fn put(
        &self,
        key: &[u8],
        hash: u64,
        value: Option<ValueRef<'_>>,
    ) -> Option<Vec<u8>> {
        self.hints.add(hash);
        if value.is_none() {
            self.tombstones.fetch_add(1, Relaxed);
        }
        let bytes = value.unwrap_or(ValueRef::EMPTY).bytes;
        let pinned = Pinned::new();
        let old = self.map.put(key, tag(value), bytes, &pinned);
        let old = old.expect("nobody writes to a sealed memtable");
        old.filter(|old| old.tag() == PUT_LARGE).map(|old| old.value().to_vec())
    }

    /// What it knows of a key: `None` is nothing, `Absent` that it was removed. A value or a
    /// pointer is appended to `out`.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Option<Found> {
        if self.hints.may_have(hash) { self.look_up(key, out) } else { None }
    }

    fn look_up(&self, key: &[u8], out: &mut Vec<u8>) -> Option<Found> {
        let pinned = Pinned::new();
        let entry = self.map.get(key, &pinned)?;
        // Memory of just the right size costs less than growing a vector that has none.
        if out.capacity() == 0 {
            *out = entry.value().to_vec();
        } else {
            out.extend_from_slice(entry.value());
        }
        Some(match op(&entry) {
            Op::Put => Found::Inline,
            Op::PutLarge => Found::Large,
            Op::Delete => Found::Absent,
        })
    }

    /// Edits from one bound to another; backward, `from` is the upper one.
    pub(crate) fn range<'a>(
        &'a self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
        pinned: &'a Pinned,
    ) -> Range<'a> {
        Range(self.map.range(from, to, direction, pinned))
    }

    /// About how many packed bytes its values from `lower` to below `upper` take.
    pub(crate) fn bytes_between(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
        let pinned = Pinned::new();
        let edits = self.range(Bound::Included(lower), upper, Direction::Forward, &pinned);
        edits.filter(|edit| edit.value.is_some()).map(|edit| edit.packed_bytes()).sum()
    }

    /// All edits of a sealed memtable.
    ///
    /// # Errors
    /// `Corruption` when keys do not ascend, which they do.
    pub(crate) fn batch(&self) -> Result<Run> {
        let pinned = Pinned::new();
        let all = self.map.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward, &pinned);
        let (held, unused) = (self.map.appended_bytes(), self.map.unused_bytes());
        if held < CHUNK_BYTES_MIN || unused * 2 > held {
            let mut packer = RunBuilder::default();
            all.for_each(|entry| packer.push(edit(&entry)));
            return packer.finish();
        }
        let chunks = self.map.seal().into_iter();
        let sources: Vec<Source> = chunks.map(|chunk| Arc::new(Bytes::from(chunk))).collect();
        let mut run = RunOver::new(sources, self.map.len());
        for entry in all {
            let place = entry.place();
            let key_length = entry.key().len();
            let key = place.key as u32;
            let value = key + key_length as u32;
            let (key_length, value_length) = (key_length as u16, entry.value().len() as u32);
            let op = op(&entry);
            let position = Position { key, key_length, value, value_length, op };
            run.push(place.chunk as u16, &position)?;
        }
        Ok(run.finish())
    }
}

/// See [`Memtable::range`].
#[derive(Debug)]
pub(crate) struct Range<'a>(AppendedRange<'a>);

impl<'a> Iterator for Range<'a> {
    type Item = Edit<'a>;

    fn next(&mut self) -> Option<Edit<'a>> {
        self.0.next().map(|entry| edit(&entry))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spinney_base::KeyspaceId;
    use std::collections::BTreeMap;

    #[test]
    fn most_keys_that_it_does_not_have_are_not_looked_for() {
        const KEYS: u64 = 10_000;
        let hash = |key: u64| spinney_sync::hash_key(KeyspaceId(7), &key.to_be_bytes());
        let table = Memtable::new(3, 144 * KEYS);
        for key in 0..KEYS {
            table.put(&key.to_be_bytes(), hash(key), None);
            assert!(table.hints.may_have(hash(key)));
        }
        let asked = (KEYS..11 * KEYS).filter(|key| table.hints.may_have(hash(*key))).count();
        assert!(asked as u64 <= KEYS / 10, "{asked} of {}", 10 * KEYS);
        // However few bytes are expected, and however many more come.
        assert!(!Hints::new(0).may_have(hash(1)) && Hints::new(usize::MAX).bytes() == 8 << 16);
    }

    proptest! {
        /// Whatever is put, it answers as a map does, and so does its batch.
        #[test]
        fn it_is_a_map(
            edits in prop::collection::vec(
                (prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xFF]), 0..5),
                 prop::option::of((prop::collection::vec(any::<u8>(), 0..40), any::<bool>()))),
                0..300),
        ) {
            let (table, mut model) = (Memtable::new(3, 100), BTreeMap::new());
            let hash = |key: &[u8]| spinney_sync::hash_key(KeyspaceId(7), key);
            for (key, value) in &edits {
                let value = value.as_ref().map(|(bytes, large)| ValueRef { bytes, large: *large });
                let replaced = table.put(key, hash(key), value);
                let before = model.insert(key.clone(), value).flatten();
                let large = before.filter(|value: &ValueRef<'_>| value.large);
                prop_assert_eq!(replaced, large.map(|value| value.bytes.to_vec()));
            }
            let expected: Vec<Edit<'_>> =
                model.iter().map(|(key, value)| Edit { key, value: *value }).collect();
            let batch = table.batch().unwrap();
            prop_assert_eq!(batch.iter().collect::<Vec<_>>(), expected.clone());
            for edit in &expected {
                let mut out = Vec::new();
                let found = table.get(edit.key, hash(edit.key), &mut out).unwrap();
                prop_assert_eq!(found == Found::Absent, edit.value.is_none());
                prop_assert_eq!(found == Found::Large, edit.value.is_some_and(|value| value.large));
                prop_assert_eq!(batch.get(edit.key), Some(*edit));
            }
            prop_assert_eq!(table.get(b"absent", hash(b"absent"), &mut Vec::new()), None);
            prop_assert_eq!(batch.get(b"absent"), None);
            let pinned = Pinned::new();
            let (low, high) = (Bound::Excluded(&[0u8][..]), Bound::Included(&[1u8, 1][..]));
            let inside = |key: &[u8]| key > &[0][..] && key <= &[1, 1][..];
            let mut expected: Vec<Edit<'_>> =
                expected.into_iter().filter(|edit| inside(edit.key)).collect();
            let found: Vec<_> = table.range(low, high, Direction::Forward, &pinned).collect();
            prop_assert_eq!(&found, &expected);
            expected.reverse();
            let found: Vec<_> = table.range(high, low, Direction::Backward, &pinned).collect();
            prop_assert_eq!(&found, &expected);
        }
    }
}
