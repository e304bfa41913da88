//! The keys of a data set in their order: all at once in memory, or part by part.
//!
//! [`OrderedKeys`] is for loads of any size beside an engine whose memory is measured. It computes
//! every key once for each part and keeps those of the part:
//!
//! ```text
//!  sample of keys, sorted   |----s1----s2----s3----|     parts: below s1, s1 to s2, s2 to s3, from s3 on
//!  all keys, computed again for each part; those of the part are sorted and handed out
//! ```
//!
//! Invariant: splits ascend, so each key is in exactly one part.

use std::sync::Arc;

use crate::dataset::Dataset;

/// Keys of a part, on average: 16 MiB of memory at eight bytes a key.
const PART_KEYS: u64 = 1 << 19;
/// Keys of the sample for each part: parts differ by a sixteenth from their average, mostly.
const SAMPLE_KEYS: u64 = 256;

/// Keys in order, end to end in memory: 24 bytes each and what they are long.
#[derive(Debug, Default)]
pub struct SortedKeys {
    bytes: Vec<u8>,
    places: Vec<KeyPlace>,
}

#[derive(Clone, Copy, Debug)]
struct KeyPlace {
    /// The first eight bytes, filled up with zeros: keys that differ there are not looked up.
    head: u64,
    start: usize,
    length: u16,
}

impl SortedKeys {
    pub(super) fn push(&mut self, key: &[u8]) {
        let mut head = [0; 8];
        let length = key.len().min(8);
        head[..length].copy_from_slice(&key[..length]);
        self.places.push(KeyPlace {
            head: u64::from_be_bytes(head),
            start: self.bytes.len(),
            length: u16::try_from(key.len()).expect("keys are shorter than 64 KiB"),
        });
        self.bytes.extend_from_slice(key);
    }

    pub(super) fn sort(&mut self) {
        let SortedKeys { bytes, places } = self;
        places.sort_unstable_by(|a, b| {
            a.head.cmp(&b.head).then_with(|| a.of(bytes).cmp(b.of(bytes)))
        });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        self.places.get(index).map(|place| place.of(&self.bytes))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|place| place.of(&self.bytes))
    }
}

impl KeyPlace {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start..self.start + usize::from(self.length)]
    }
}

/// Keys in order, with a part of them in memory at a time.
#[derive(Debug)]
pub struct OrderedKeys {
    dataset: Arc<Dataset>,
    records: u64,
    /// First keys of the parts after the first.
    splits: Vec<Vec<u8>>,
    /// Parts that were made.
    parts: usize,
    part: SortedKeys,
    /// Keys of the part that were handed out.
    taken: usize,
}

impl OrderedKeys {
    /// The keys of the first `records` records.
    #[must_use]
    pub fn new(dataset: Arc<Dataset>, records: u64) -> Self {
        Self::in_parts_of(dataset, records, PART_KEYS)
    }

    pub(super) fn in_parts_of(dataset: Arc<Dataset>, records: u64, part_keys: u64) -> Self {
        let parts = records.div_ceil(part_keys).max(1);
        // Ordinals are in shuffled order, so the first ones are a sample.
        let sample = dataset.sorted_keys(records.min(parts.saturating_mul(SAMPLE_KEYS)));
        let split = |part: u64| {
            let at = u128::from(part) * sample.len() as u128 / u128::from(parts);
            sample.get(usize::try_from(at).unwrap_or(usize::MAX)).map(<[u8]>::to_vec)
        };
        let splits = (1..parts).filter_map(split).collect();
        let part = SortedKeys::default();
        OrderedKeys { dataset, records, splits, parts: 0, part, taken: 0 }
    }

    /// Makes `key` the next one; false when there is none.
    pub fn next_into(&mut self, key: &mut Vec<u8>) -> bool {
        while self.taken == self.part.len() {
            if self.parts > self.splits.len() {
                return false;
            }
            self.next_part();
        }
        key.clear();
        key.extend_from_slice(self.part.get(self.taken).unwrap_or_default());
        self.taken += 1;
        true
    }

    fn next_part(&mut self) {
        let from = self.parts.checked_sub(1).and_then(|before| self.splits.get(before));
        let to = self.splits.get(self.parts);
        self.part.clear();
        let mut key = Vec::new();
        for ordinal in 0..self.records {
            self.dataset.key(ordinal, &mut key);
            if from.is_none_or(|from| *from <= key) && to.is_none_or(|to| key < *to) {
                self.part.push(&key);
            }
        }
        self.part.sort();
        self.parts += 1;
        self.taken = 0;
    }
}
