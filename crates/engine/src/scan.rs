//! Range requests and their answers.

use std::borrow::Cow;
use std::ops::Bound;

use spinney_base::ValueRef;

/// Which end of a range comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// A range to read from one end.
#[derive(Clone, Copy, Debug)]
pub struct ScanRequest<'a> {
    /// Where the range begins.
    pub lower: Bound<&'a [u8]>,
    /// Where it ends.
    pub upper: Bound<&'a [u8]>,
    /// From which end to read.
    pub direction: Direction,
    /// Stop after about this many records: an engine may deliver the rest of a page that it has read
    /// anyway. At least one is delivered if the range has any.
    pub records_wanted: usize,
    /// Deliver no more than this many.
    pub records_max: usize,
    /// Stop after about this many bytes of keys and values; a large value counts by its pointer.
    pub bytes_max: usize,
    /// Deliver keys alone: every value is empty, and nothing is read for it.
    pub keys_only: bool,
}

impl ScanRequest<'static> {
    /// The first key of all.
    pub const FIRST_KEY: Self = ScanRequest {
        lower: Bound::Unbounded,
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        records_wanted: 1,
        records_max: 1,
        bytes_max: 1,
        keys_only: true,
    };
}

/// Records copied out of a range, in one piece of memory.
///
/// ```
/// # use spinney_engine::Chunk;
/// # use spinney_base::ValueRef;
/// let mut chunk = Chunk::default();
/// chunk.push(&[b"pre", b"fix"], ValueRef::inline(b"value"));
/// assert_eq!(chunk.get(0), (&b"prefix"[..], ValueRef::inline(b"value")));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// Of each record, in the direction of the request.
    ends: Vec<Ends>,
    /// Whether the range holds nothing beyond them.
    pub finished: bool,
    /// Where the part of the range that was not read begins (or, in reverse, ends), if that is not
    /// right beyond the last record.
    pub resume: Option<Bound<Vec<u8>>>,
}

/// Where the key and the value of a record end; it begins where the one before ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    key: usize,
    value: usize,
    large: bool,
}

impl Chunk {
    /// How many records it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a record whose key is these parts, one after the other.
    pub fn push(&mut self, key: &[&[u8]], value: ValueRef<'_>) {
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let key = self.bytes.len();
        self.bytes.extend_from_slice(value.bytes);
        self.ends.push(Ends { key, value: self.bytes.len(), large: value.large });
    }

    /// Keeps the first `records` and no more: the scan goes on behind the last of them.
    pub fn truncate(&mut self, records: usize) {
        if records < self.len() {
            self.ends.truncate(records);
            self.bytes.truncate(self.ends.last().map_or(0, |last| last.value));
            self.finished = false;
            self.resume = None;
        }
    }

    /// Makes room for `records` more that are as long as those that it holds.
    pub fn expect(&mut self, records: usize) {
        let each = self.bytes.len() / self.len().max(1);
        self.bytes.reserve(records * each);
        self.ends.reserve(records);
    }

    /// Key and value, or the pointer to a large one, of record `index`.
    ///
    /// # Panics
    /// When there is no such record.
    #[must_use]
    pub fn get(&self, index: usize) -> (&[u8], ValueRef<'_>) {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].value);
        let Ends { key, value, large } = self.ends[index];
        (&self.bytes[start..key], ValueRef { bytes: &self.bytes[key..value], large })
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<Ends>()
    }

    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.finished = false;
        self.resume = None;
    }
}

impl ScanRequest<'_> {
    /// The least key that may be the answer, if the first record of a range is asked for and no other.
    #[must_use]
    pub fn first_key_from(&self) -> Option<Cow<'_, [u8]>> {
        if self.direction != Direction::Forward || self.records_max != 1 {
            return None;
        }
        Some(match self.lower {
            Bound::Included(key) => Cow::Borrowed(key),
            Bound::Excluded(key) => Cow::Owned([key, &[0]].concat()),
            Bound::Unbounded => Cow::Borrowed(&[]),
        })
    }

    /// What is delivered of a value.
    #[inline]
    #[must_use]
    pub fn delivered<'v>(&self, value: ValueRef<'v>) -> ValueRef<'v> {
        if self.keys_only { ValueRef::EMPTY } else { value }
    }

    /// Whether a key lies in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match self.lower {
            Bound::Included(lower) => key >= lower,
            Bound::Excluded(lower) => key > lower,
            Bound::Unbounded => true,
        };
        above && !self.is_past_upper(key)
    }

    /// Whether a key lies beyond the upper end.
    #[must_use]
    pub fn is_past_upper(&self, key: &[u8]) -> bool {
        match self.upper {
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
            Bound::Unbounded => false,
        }
    }
}
