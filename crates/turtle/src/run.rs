//! Runs: sorted edits in memory, by pointer.
//!
//! ```text
//!   Run (a range)          Items                                sources, shared
//!  +----------------+     +---------------------------------+   +--------------------------+
//!  | start end bytes| --> | head key value length op source | ->| a sealed memtable's bytes|
//!  +----------------+     |  24 bytes each, ascending       |   +--------------------------+
//!       another --------> |                                 | ->| a leaf that was read     |
//!                         +---------------------------------+   +--------------------------+
//! ```
//!
//! Batches that are applied in memory move items, never the bytes of keys and values: those stay
//! where they were, in memory that the run shares and so keeps alive (section 4.1, "operate on
//! pointers"). The head, the first eight bytes of the key, lets most comparisons stay inside the
//! items.
//!
//! **Invariants**
//! 1. Keys ascend strictly, in a [`Run`].
//! 2. An item names bytes that exist: checked when it is made, so that no accessor can fail.
//! 3. `size` is the sum of [`packed_bytes`], and the number of tombstones, over the range.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::Arc;

use spinney_base::mapped_vec::MappedVec;
use spinney_base::{Error, ErrorKind, Result, ValueRef};
use spinney_engine::Direction;

use crate::edit::{Edit, head, packed_bytes};
use crate::range::KeyRange;
use crate::source::{Bytes, Source};

/// How many sources the items of one run can name.
pub(crate) const SOURCES_MAX: usize = u16::MAX as usize - 1;

/// Edits by which the processor is asked ahead for the bytes of one. With fewer they are not there
/// in time; with more they are evicted again.
const AHEAD: usize = 8;
/// Cache lines that are asked for of one edit: the processor itself asks for those that follow.
const LINES_MAX: usize = 4;

const OP_SHIFT: u32 = 30;
const LENGTH_MASK: u32 = (1 << OP_SHIFT) - 1;
const PUT: u32 = 0;
const PUT_LARGE: u32 = 1;
const DELETE: u32 = 2;

/// Where an edit lies in its source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The first eight bytes of the key, zeroes behind a shorter one.
    head: u64,
    key: u32,
    value: u32,
    /// The operation in the highest two bits.
    value_length: u32,
    key_length: u16,
    pub(crate) source: u16,
}

const _: () = assert!(size_of::<Item>() == 24);

impl Item {
    pub(crate) fn packed_bytes(&self) -> u64 {
        packed_bytes(self.key_length as usize, (self.value_length & LENGTH_MASK) as usize)
    }

    /// Bytes of its key, what it does, and bytes of its value or pointer.
    pub(crate) fn shape(&self) -> (usize, Op, usize) {
        let op = match self.value_length >> OP_SHIFT {
            PUT => Op::Put,
            PUT_LARGE => Op::PutLarge,
            _ => Op::Delete,
        };
        (self.key_length as usize, op, (self.value_length & LENGTH_MASK) as usize)
    }

    /// The item in a run that counts its sources otherwise.
    pub(crate) fn of_source(&self, source: u16) -> Item {
        Item { source, ..*self }
    }

    /// Bytes of its key and value, or pointer.
    pub(crate) fn source_bytes(&self) -> usize {
        self.key_length as usize + (self.value_length & LENGTH_MASK) as usize
    }

    /// The item with its bytes appended to what will be source `number`.
    pub(crate) fn copied_to(
        &self,
        sources: &[Source],
        copy: &mut MappedVec<u8>,
        number: u16,
    ) -> Item {
        let key = copy.len() as u32;
        let edit = self.edit(sources);
        copy.extend_from_slice(edit.key);
        copy.extend_from_slice(edit.value.unwrap_or(ValueRef::EMPTY).bytes);
        Item { key, value: key + u32::from(self.key_length), source: number, ..*self }
    }

    /// Asks for its bytes if they lie anywhere: those of leaves follow each other.
    #[inline]
    fn prefetch(&self, sources: &[Source]) {
        if let Bytes::Chunk(bytes) = &*sources[self.source as usize] {
            let end = (self.value + (self.value_length & LENGTH_MASK)) as usize;
            let lines = (self.key as usize..end).step_by(64).take(LINES_MAX);
            lines.for_each(|at| spinney_sync::prefetch(&bytes[at]));
        }
    }

    /// The pointer to a large value, if it puts one.
    pub(crate) fn pointer<'a>(&self, sources: &'a [Source]) -> Option<&'a [u8]> {
        if self.value_length >> OP_SHIFT != PUT_LARGE {
            return None;
        }
        self.edit(sources).value.map(|value| value.bytes)
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.value_length >> OP_SHIFT == DELETE
    }

    fn key<'a>(&self, sources: &'a [Source]) -> &'a [u8] {
        let start = self.key as usize;
        &sources[self.source as usize][start..start + self.key_length as usize]
    }

    fn edit<'a>(&self, sources: &'a [Source]) -> Edit<'a> {
        let start = self.value as usize;
        let end = start + (self.value_length & LENGTH_MASK) as usize;
        let bytes = || &sources[self.source as usize][start..end];
        let value = match self.value_length >> OP_SHIFT {
            PUT => Some(ValueRef::inline(bytes())),
            PUT_LARGE => Some(ValueRef::large(bytes())),
            _ => None,
        };
        Edit { key: self.key(sources), value }
    }
}

/// The order of the keys of two items.
#[inline]
pub(crate) fn compare(a: &Item, a_sources: &[Source], b: &Item, b_sources: &[Source]) -> Ordering {
    if a.head != b.head {
        return a.head.cmp(&b.head);
    }
    // Equal heads of keys that fit into them: the shorter is the longer without zeroes at its end.
    if a.key_length <= 8 && b.key_length <= 8 {
        return a.key_length.cmp(&b.key_length);
    }
    a.key(a_sources).cmp(b.key(b_sources))
}

/// Where the items are that may have this head: those before have smaller ones, those behind
/// larger.
///
/// Guessed a few times from the heads at both ends, and widened from there: where keys come about
/// evenly that is a few cache lines, while a binary search touches one for each step.
fn near(items: &[Item], wanted: u64) -> Range<usize> {
    let (Some(first), Some(last)) = (items.first(), items.last()) else { return 0..0 };
    if wanted < first.head || wanted > last.head {
        return if wanted < first.head { 0..0 } else { items.len()..items.len() };
    }
    let (mut low, mut high) = (0, items.len() - 1);
    let mut at = low;
    for _ in 0..GUESSES {
        let (lowest, highest) = (items[low].head, items[high].head);
        if wanted <= lowest || wanted >= highest {
            break;
        }
        let part = u128::from(wanted - lowest) * (high - low) as u128;
        at = low + (part / u128::from(highest - lowest)) as usize;
        if items[at].head < wanted { low = at } else { high = at }
    }
    let (mut start, mut end, mut step) = (at, at, 2);
    while start > 0 && items[start].head >= wanted {
        start = start.saturating_sub(step);
        step *= 2;
    }
    step = 2;
    while end < items.len() && items[end].head <= wanted {
        end = (end + step).min(items.len());
        step *= 2;
    }
    start..end
}

/// Guesses after which the place is closer than another guess is likely to be.
const GUESSES: usize = 2;

#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) items: MappedVec<Item>,
    pub(crate) sources: Vec<Source>,
}

/// A range of sorted edits. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Run {
    of: Arc<Items>,
    start: u32,
    end: u32,
    size: Size,
}

/// Number and bytes of some edits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// What they take of a leaf's capacity, in packed bytes.
    pub(crate) bytes: u64,
    /// How many of them are tombstones.
    pub(crate) tombstones: u64,
}

impl Size {
    #[inline]
    pub(crate) fn add(&mut self, item: &Item) {
        self.bytes += item.packed_bytes();
        self.tombstones += u64::from(item.is_tombstone());
    }
}

/// Where an edit lies in a source, as its reader found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) key: u32,
    pub(crate) key_length: u16,
    /// Offset and length of the value or the pointer; without meaning for a tombstone.
    pub(crate) value: u32,
    pub(crate) value_length: u32,
    pub(crate) op: Op,
}

/// What an edit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put,
    PutLarge,
    Delete,
}

impl Run {
    /// A run of all these items, whose size is `size`.
    pub(crate) fn new(items: Items, size: Size) -> Run {
        let end = u32::try_from(items.items.len()).expect("items are cut into runs long before");
        Run { of: Arc::new(items), start: 0, end, size }
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// What its edits take of a leaf's capacity.
    pub(crate) fn bytes(&self) -> u64 {
        self.size.bytes
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.of.items[self.start as usize..self.end as usize]
    }

    /// What it is a range of, and keeps in memory.
    pub(crate) fn all(&self) -> &Items {
        &self.of
    }

    pub(crate) fn sources(&self) -> &[Source] {
        &self.of.sources
    }

    pub(crate) fn edit(&self, index: usize) -> Edit<'_> {
        self.items()[index].edit(self.sources())
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        self.items()[index].key(self.sources())
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Edit<'_>> {
        self.items().iter().map(|item| item.edit(self.sources()))
    }

    /// Edits in order, for a caller that reads every byte: the processor is asked for them ahead.
    pub(crate) fn iter_ahead(&self) -> impl Iterator<Item = Edit<'_>> {
        let (items, sources) = (self.items(), self.sources());
        items.iter().enumerate().map(move |(index, item)| {
            if let Some(later) = items.get(index + AHEAD) {
                later.prefetch(sources);
            }
            item.edit(sources)
        })
    }

    /// Index of the first edit whose key is not below `key`.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        let wanted = head(key);
        let near = near(self.items(), wanted);
        let below = |item: &Item| match item.head.cmp(&wanted) {
            Ordering::Equal => item.key(self.sources()) < key,
            order => order == Ordering::Less,
        };
        near.start + self.items()[near].partition_point(below)
    }

    /// The edit of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Edit<'_>> {
        let index = self.lower_bound(key);
        (index < self.len()).then(|| self.edit(index)).filter(|edit| edit.key == key)
    }

    /// Which edits are in a range.
    pub(crate) fn within(&self, range: &KeyRange<'_>) -> Range<usize> {
        let above = |key: &[u8]| {
            let index = self.lower_bound(key);
            index + usize::from(index < self.len() && self.key(index) == key)
        };
        let from = match range.near(Direction::Forward) {
            Bound::Unbounded => 0,
            Bound::Included(key) => self.lower_bound(key),
            Bound::Excluded(key) => above(key),
        };
        let to = match range.near(Direction::Reverse) {
            Bound::Unbounded => self.len(),
            Bound::Included(key) => above(key),
            Bound::Excluded(key) => self.lower_bound(key),
        };
        from..to.max(from)
    }

    /// The edits from index `from` up to `to`.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Run {
        let part = &self.items()[from..to];
        let mut size = Size::default();
        if part.len() == self.len() {
            size = self.size;
        } else {
            part.iter().for_each(|item| size.add(item));
        }
        let start = self.start + from as u32;
        Run { of: Arc::clone(&self.of), start, end: self.start + to as u32, size }
    }

    /// The edits from key `lower` on up to, not including, key `upper`.
    pub(crate) fn between(&self, lower: &[u8], upper: Option<&[u8]>) -> Run {
        let from = self.lower_bound(lower);
        let to = upper.map_or(self.len(), |upper| self.lower_bound(upper)).max(from);
        self.slice(from, to)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|edit| edit.key.escape_ascii().to_string())).finish()
    }
}

fn item_at(position: &Position, source: &[u8]) -> Option<Item> {
    let start = position.key as usize;
    let key = source.get(start..start.checked_add(position.key_length as usize)?)?;
    let (op, value, length) = match position.op {
        Op::Put => (PUT, position.value, position.value_length),
        Op::PutLarge => (PUT_LARGE, position.value, position.value_length),
        Op::Delete => (DELETE, 0, 0),
    };
    let end = (value as usize).checked_add(length as usize)?;
    if length > LENGTH_MASK || end > source.len() {
        return None;
    }
    Some(Item {
        head: head(key),
        key: position.key,
        value,
        value_length: op << OP_SHIFT | length,
        key_length: position.key_length,
        source: 0,
    })
}

/// Edits do not make a run: this was expected of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken(pub(crate) &'static str);

impl From<Broken> for Error {
    fn from(broken: Broken) -> Error {
        Error::new(ErrorKind::Corruption, format!("edits do not have {}", broken.0))
    }
}

/// Builds a run over bytes that lie somewhere already, such as a sealed memtable's or those of a
/// leaf that was read whole.
#[derive(Debug)]
pub(crate) struct RunOver {
    sources: Vec<Source>,
    items: MappedVec<Item>,
    size: Size,
}

impl RunOver {
    /// A builder for about this many edits.
    pub(crate) fn new(sources: Vec<Source>, edits: usize) -> RunOver {
        RunOver { sources, items: MappedVec::with_capacity(edits), size: Size::default() }
    }

    /// Appends the edit at a position of a source.
    ///
    /// # Errors
    /// When the position lies outside of the source or its key is not above the one before.
    #[inline]
    pub(crate) fn push(
        &mut self,
        source: u16,
        position: &Position,
    ) -> std::result::Result<(), Broken> {
        let bytes = self.sources.get(source as usize);
        let item = bytes.and_then(|bytes| item_at(position, bytes));
        let item = item.ok_or(Broken("places of items within their bytes"))?.of_source(source);
        if let Some(before) = self.items.last()
            && compare(before, &self.sources, &item, &self.sources) != Ordering::Less
        {
            return Err(Broken("keys in ascending order"));
        }
        self.size.add(&item);
        self.items.push(item);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Run {
        self.items.shrink_to_fit();
        Run::new(Items { items: self.items, sources: self.sources }, self.size)
    }
}

/// A run over the bytes of one source.
///
/// # Errors
/// `Corruption` when a position lies outside of the source or keys do not ascend.
pub(crate) fn over(source: impl Into<Bytes>, positions: &[Position]) -> Result<Run> {
    let mut run = RunOver::new(vec![Arc::new(source.into())], positions.len());
    positions.iter().try_for_each(|position| run.push(0, position))?;
    Ok(run.finish())
}

/// Copies sorted edits into one source and builds a run from them.
#[derive(Debug, Default)]
pub(crate) struct RunBuilder {
    bytes: MappedVec<u8>,
    positions: Vec<Position>,
}

impl RunBuilder {
    /// Appends an edit, whose key is above all before it.
    pub(crate) fn push(&mut self, edit: Edit<'_>) {
        let value = edit.value.unwrap_or(ValueRef::EMPTY);
        let key = self.bytes.len() as u32;
        self.bytes.extend_from_slice(edit.key);
        self.bytes.extend_from_slice(value.bytes);
        self.positions.push(Position {
            key,
            key_length: edit.key.len() as u16,
            value: key + edit.key.len() as u32,
            value_length: value.len() as u32,
            op: match edit.value {
                None => Op::Delete,
                Some(value) if value.large => Op::PutLarge,
                Some(_) => Op::Put,
            },
        });
    }

    /// # Errors
    /// `Corruption` when keys did not ascend.
    pub(crate) fn finish(mut self) -> Result<Run> {
        self.bytes.shrink_to_fit();
        over(self.bytes, &self.positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Edit<'a> {
        Edit { key, value: Some(ValueRef::inline(value)) }
    }

    fn run(keys: &[&[u8]]) -> Run {
        let mut builder = RunBuilder::default();
        keys.iter().for_each(|key| builder.push(put(key, b"value")));
        builder.finish().unwrap()
    }

    /// Keys that differ only where heads end, by zeroes, or not before byte nine.
    const AWKWARD: [&[u8]; 10] = [
        b"",
        b"\0",
        b"\0\0",
        b"a",
        b"a\0\0\0\0\0\0\0",
        b"a\0\0\0\0\0\0\0\0",
        b"a\0\0\0\0\0\0\x01",
        b"aaaaaaaa",
        b"aaaaaaaab",
        b"aaaaaaaac\xff\xff",
    ];

    #[test]
    fn awkward_keys_are_found_in_their_places() {
        let run = run(&AWKWARD);
        for (index, key) in AWKWARD.iter().enumerate() {
            assert_eq!(run.lower_bound(key), index, "{key:?}");
            assert_eq!(run.get(key), Some(put(key, b"value")));
            let mut above = key.to_vec();
            above.push(0);
            assert_eq!(run.lower_bound(&above), index + 1, "above {key:?}");
        }
        let between = run.between(b"\0\0", Some(b"aaaaaaaa"));
        assert_eq!(between.len(), 5);
        assert_eq!(between.key(0), b"\0\0");
        assert_eq!(between.bytes(), between.iter().map(|edit| edit.packed_bytes()).sum::<u64>());
    }

    #[test]
    fn a_run_over_damaged_places_is_refused() {
        let place = Position { key: 0, key_length: 2, value: 2, value_length: 2, op: Op::Put };
        assert!(over(&[0; 4][..], &[place]).is_ok());
        for broken in [
            Position { key: 3, ..place },
            Position { key: u32::MAX, ..place },
            Position { value: 3, ..place },
            Position { value: u32::MAX, value_length: u32::MAX, ..place },
        ] {
            assert!(over(&[0; 4][..], &[broken]).unwrap_err().is_corruption());
        }
        assert!(over(&[0; 4][..], &[place, place]).unwrap_err().is_corruption());
    }

    #[test]
    fn places_are_found_however_keys_are_spread() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand::rngs::StdRng::seed_from_u64(3);
        for spread in 0..64 {
            // Even, or ever more crowded at the low end; every other with all heads equal.
            let mut key = || {
                let number = rng.random::<u64>() >> rng.random_range(0..=spread);
                let prefix: &[u8] = if spread % 2 == 0 { b"" } else { b"all alike" };
                [prefix, &number.to_be_bytes()].concat()
            };
            let keys: std::collections::BTreeSet<Vec<u8>> = (0..500).map(|_| key()).collect();
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            let run = run(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for wanted in (0..500).map(|_| key()).chain(keys.clone()) {
                let expected = keys.partition_point(|key| *key < wanted);
                assert_eq!(run.lower_bound(&wanted), expected, "spread {spread}: {wanted:?}");
            }
        }
    }
}
