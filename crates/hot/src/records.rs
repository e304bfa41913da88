//! Records that were copied out of the tier, in memory of one piece.

use std::ops::Range;

use spinney_base::ValueRef;

use crate::leaf::{DIRTY, Entry, GAP, LARGE, REMOVED};

/// Records in the order of their keys. It is filled again and again, so its memory is kept.
#[derive(Clone, Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

#[derive(Clone, Debug)]
struct Place {
    key: Range<usize>,
    value: Range<usize>,
    flags: u8,
    references: u64,
}

/// A record of [`Records`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value; `None` where the key is known to have none.
    pub value: Option<ValueRef<'a>>,
    /// The cold structure does not hold the record as it is here.
    pub is_dirty: bool,
    /// No cold record lies between this one and the next, or the end of the piece.
    pub ends_gap: bool,
}

impl Records {
    pub(crate) fn with_capacity(records: usize, bytes: usize) -> Records {
        Records { bytes: Vec::with_capacity(bytes), places: Vec::with_capacity(records) }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns them in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Record<'_>> {
        self.places.iter().map(|place| Record {
            key: &self.bytes[place.key.clone()],
            value: (place.flags & REMOVED == 0).then(|| ValueRef {
                bytes: &self.bytes[place.value.clone()],
                large: place.flags & LARGE != 0,
            }),
            is_dirty: place.flags & DIRTY != 0,
            ends_gap: place.flags & GAP != 0,
        })
    }

    /// Adds a record whose key and value the functions append.
    pub(crate) fn push(
        &mut self,
        (flags, references): (u8, u64),
        key: impl FnOnce(&mut Vec<u8>),
        value: impl FnOnce(&mut Vec<u8>),
    ) {
        let begin = self.bytes.len();
        key(&mut self.bytes);
        let middle = self.bytes.len();
        value(&mut self.bytes);
        let (key, value) = (begin..middle, middle..self.bytes.len());
        self.places.push(Place { key, value, flags, references });
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.places[index].key.clone()]
    }

    pub(crate) fn flags(&self, index: usize) -> u8 {
        self.places[index].flags
    }

    pub(crate) fn set_flags(&mut self, index: usize, flags: u8) {
        self.places[index].flags = flags;
    }

    pub(crate) fn references(&self, index: usize) -> u64 {
        self.places[index].references
    }

    /// Bytes of a key and its value.
    pub(crate) fn lengths(&self, index: usize) -> (usize, usize) {
        (self.places[index].key.len(), self.places[index].value.len())
    }

    pub(crate) fn entry(&self, index: usize) -> Entry<'_> {
        let place = &self.places[index];
        let (key, value) = (&self.bytes[place.key.clone()], &self.bytes[place.value.clone()]);
        Entry { key, value, flags: place.flags }
    }
}
