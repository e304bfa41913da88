//! A memtable: the newest edits of a keyspace, sorted while they come.
//!
//! ```text
//!   ArtMap: key -> Slot { operation, value }          seal: no more edits; batch(): one packed piece
//! ```
//!
//! Edits of one key replace each other, so what counts is what it holds, not what was put. The log
//! grows meanwhile and says itself when it has too much. Values lie in allocations of their own,
//! which the map frees an epoch after they were replaced.
//!
//! **Invariants**
//! 1. A memtable is written only by who is inside the keyspace's [gate](crate::gate), and it is
//!    sealed while nobody is: a sealed one never changes.
//! 2. Its number is above those of all before: the edit of the highest number is the newest.
//!
//! **Concurrency.** Any number of threads read and write. Writers of one key are ordered by the
//! key's stripe.

use std::ops::Bound;

use spinney_art::{ArtMap, Direction, Entries, Pinned};
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Result, ValueRef};
use spinney_engine::Found;

use crate::edit::Edit;
use crate::run::{Run, RunBuilder};

/// What an edit takes beside key and value, about: its record's header and its share of the tree.
pub(crate) const EDIT_BYTES: u64 = 72;

/// What an edit does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put,
    PutLarge,
    Remove,
}

impl Operation {
    fn of(value: Option<ValueRef<'_>>) -> Self {
        match value {
            None => Operation::Remove,
            Some(value) if value.large => Operation::PutLarge,
            Some(_) => Operation::Put,
        }
    }
}

/// One memtable. Thread-safe.
#[derive(Debug)]
pub(crate) struct Memtable {
    map: ArtMap<Slot>,
    /// Bytes of values.
    values: AtomicU64,
    number: u64,
}

#[derive(Debug)]
struct Slot {
    value: Box<[u8]>,
    operation: Operation,
}

impl Slot {
    fn value(&self) -> Option<ValueRef<'_>> {
        match self.operation {
            Operation::Put => Some(ValueRef::inline(&self.value)),
            Operation::PutLarge => Some(ValueRef::large(&self.value)),
            Operation::Remove => None,
        }
    }
}

impl Memtable {
    pub(crate) fn new(number: u64) -> Self {
        Memtable { map: ArtMap::new(), values: AtomicU64::new(0), number }
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

    /// Bytes that it holds: to the byte what can be reached. What was replaced a moment ago is not
    /// among them.
    pub(crate) fn bytes(&self) -> u64 {
        self.map.bytes() as u64 + self.values.load(Relaxed)
    }

    /// Puts an edit in the place of the key's one before. Answers the pointer to a large value that
    /// it replaced, if it did.
    pub(crate) fn put(&self, key: &[u8], value: Option<ValueRef<'_>>) -> Option<Vec<u8>> {
        let operation = Operation::of(value);
        let value: Box<[u8]> = value.unwrap_or(ValueRef::EMPTY).bytes.into();
        self.values.fetch_add(value.len() as u64, Relaxed);
        let pinned = Pinned::new();
        let old = self.map.put(key, Slot { value, operation }, &pinned)?;
        self.values.fetch_sub(old.value.len() as u64, Relaxed);
        (old.operation == Operation::PutLarge).then(|| old.value.to_vec())
    }

    /// What it knows of a key: `None` is nothing, `Absent` that it was removed. A value or a pointer
    /// is appended to `out`.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Option<Found> {
        let pinned = Pinned::new();
        let slot = self.map.lend(key, &pinned)?;
        out.extend_from_slice(&slot.value);
        Some(match slot.operation {
            Operation::Put => Found::Inline,
            Operation::PutLarge => Found::Large,
            Operation::Remove => Found::Absent,
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
        Range(self.map.lend_range(from, to, direction, pinned))
    }

    /// All edits of a sealed memtable in one piece.
    ///
    /// # Errors
    /// `Corruption` when keys do not ascend, which they do.
    pub(crate) fn batch(&self) -> Result<Run> {
        let pinned = Pinned::new();
        let mut packer = RunBuilder::default();
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.range(all.0, all.1, Direction::Forward, &pinned).for_each(|edit| packer.push(edit));
        packer.finish()
    }
}

/// See [`Memtable::range`].
#[derive(Debug)]
pub(crate) struct Range<'a>(Entries<'a, Slot>);

impl<'a> Iterator for Range<'a> {
    type Item = Edit<'a>;

    fn next(&mut self) -> Option<Edit<'a>> {
        self.0.next().map(|(key, slot)| Edit { key, value: slot.value() })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Whatever is put, it answers as a map does, and so does its batch.
        #[test]
        fn it_is_a_map(
            edits in prop::collection::vec(
                (prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xFF]), 0..5),
                 prop::option::of((prop::collection::vec(any::<u8>(), 0..40), any::<bool>()))),
                0..300),
        ) {
            let (table, mut model) = (Memtable::new(3), BTreeMap::new());
            for (key, value) in &edits {
                let value = value.as_ref().map(|(bytes, large)| ValueRef { bytes, large: *large });
                let replaced = table.put(key, value);
                let before = model.insert(key.clone(), value).flatten();
                let large = before.filter(|value: &ValueRef<'_>| value.large);
                prop_assert_eq!(replaced, large.map(|value| value.bytes.to_vec()));
            }
            let expected: Vec<Edit<'_>> =
                model.iter().map(|(key, value)| Edit { key, value: *value }).collect();
            let batch = table.batch().unwrap();
            prop_assert_eq!(batch.iter().collect::<Vec<_>>(), expected.clone());
            let values: usize = expected.iter().map(|edit| edit.value.map_or(0, ValueRef::len)).sum();
            prop_assert_eq!(table.bytes(), table.map.bytes() as u64 + values as u64);
            for edit in &expected {
                let mut out = Vec::new();
                let found = table.get(edit.key, &mut out).unwrap();
                prop_assert_eq!(found == Found::Absent, edit.value.is_none());
                prop_assert_eq!(found == Found::Large, edit.value.is_some_and(|value| value.large));
                prop_assert_eq!(batch.get(edit.key), Some(*edit));
            }
            prop_assert_eq!(table.get(b"absent", &mut Vec::new()), None);
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
