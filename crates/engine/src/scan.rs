//! Range requests and their answers.

use std::ops::Bound;

use crate::OwnedValue;

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
    /// anyway. At least one is delivered if the range has any, and no more than one if one is asked
    /// for.
    pub records_max: usize,
    /// Stop after about this many bytes of keys and values; a large value counts by its pointer.
    pub bytes_max: usize,
}

/// One record of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value, or the pointer to a large one.
    pub value: OwnedValue,
}

/// Records copied out of a range.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// Keys and values, in the direction of the request.
    pub records: Vec<Record>,
    /// Whether the range holds nothing beyond them.
    pub finished: bool,
    /// Where the part of the range that was not read begins (or, in reverse, ends), if that is not
    /// right beyond the last record.
    pub resume: Option<Bound<Vec<u8>>>,
}

impl ScanRequest<'_> {
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
