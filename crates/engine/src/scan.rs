//! Requests for ranges and their results.

use std::borrow::Cow;
use std::ops::Bound;

use spinney_base::ValueRef;

/// End of a range that comes first.
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
    /// Lower bound of the range.
    pub lower: Bound<&'a [u8]>,
    /// Upper bound of the range.
    pub upper: Bound<&'a [u8]>,
    /// End to read from.
    pub direction: Direction,
    /// Stop after about this many records. An engine may deliver the rest of a page that it has
    /// read. It delivers at least one record if the range has any.
    pub records_wanted: usize,
    /// Deliver at most this many records.
    pub records_max: usize,
    /// Stop after about this many bytes of keys and values; a large value counts with its pointer.
    pub bytes_max: usize,
    /// Deliver only keys: every value is empty, and no page is read for it.
    pub keys_only: bool,
}

impl ScanRequest<'static> {
    /// Request for the first key of all.
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
    /// Ends of each record, in the direction of the request.
    ends: Vec<Ends>,
    /// Whether the range holds no further records.
    pub finished: bool,
    /// Where the unread part of the range begins (or, in reverse, ends), if it is not right after
    /// the last record.
    pub resume: Option<Bound<Vec<u8>>>,
}

/// Ends of the key and the value of a record. It begins where the record before ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    key: usize,
    value: usize,
    large: bool,
}

impl Chunk {
    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the bytes of keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a record whose key is the concatenation of these parts.
    pub fn push(&mut self, key: &[&[u8]], value: ValueRef<'_>) {
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let key = self.bytes.len();
        self.bytes.extend_from_slice(value.bytes);
        self.ends.push(Ends { key, value: self.bytes.len(), large: value.large });
    }

    /// Appends a record whose key and value are written by these, each behind what is there.
    #[inline]
    pub fn push_by(
        &mut self,
        key: impl FnOnce(&mut Vec<u8>),
        value: impl FnOnce(&mut Vec<u8>),
        large: bool,
    ) {
        key(&mut self.bytes);
        let end = self.bytes.len();
        value(&mut self.bytes);
        self.ends.push(Ends { key: end, value: self.bytes.len(), large });
    }

    /// Keeps only the first `records`: the scan continues after the last of them.
    pub fn truncate(&mut self, records: usize) {
        if records < self.len() {
            self.ends.truncate(records);
            self.bytes.truncate(self.ends.last().map_or(0, |last| last.value));
            self.finished = false;
            self.resume = None;
        }
    }

    /// Reserves memory for `records` more records of the average length so far.
    pub fn expect(&mut self, records: usize) {
        let each = self.bytes.len() / self.len().max(1);
        self.bytes.reserve(records * each);
        self.ends.reserve(records);
    }

    /// Returns key and value, or the pointer to a large value, of record `index`.
    ///
    /// # Panics
    /// When there is no such record.
    #[must_use]
    pub fn get(&self, index: usize) -> (&[u8], ValueRef<'_>) {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].value);
        let Ends { key, value, large } = self.ends[index];
        (&self.bytes[start..key], ValueRef { bytes: &self.bytes[key..value], large })
    }

    /// Returns the bytes of memory that the chunk holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<Ends>()
    }

    /// Removes all records, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.finished = false;
        self.resume = None;
    }
}

impl ScanRequest<'_> {
    /// Returns the least key that may be the answer, if only the first record of a range is
    /// requested.
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

    /// Returns the part of a value that is delivered.
    #[inline]
    #[must_use]
    pub fn delivered<'v>(&self, value: ValueRef<'v>) -> ValueRef<'v> {
        if self.keys_only { ValueRef::EMPTY } else { value }
    }

    /// Returns whether a key lies in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match self.lower {
            Bound::Included(lower) => key >= lower,
            Bound::Excluded(lower) => key > lower,
            Bound::Unbounded => true,
        };
        above && !self.is_past_upper(key)
    }

    /// Returns whether a key lies beyond the upper bound.
    #[must_use]
    pub fn is_past_upper(&self, key: &[u8]) -> bool {
        match self.upper {
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
            Bound::Unbounded => false,
        }
    }
}
