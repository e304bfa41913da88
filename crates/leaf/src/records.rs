//! Records that were copied out of leaves, in memory of one piece.

use std::ops::Range;

use crate::layout::Entry;

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
    about: u64,
}

impl Records {
    /// Reserves room for `records` records of `bytes` bytes together.
    #[must_use]
    pub fn with_capacity(records: usize, bytes: usize) -> Records {
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

    /// Returns the bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a record whose key and value the functions append, with its flags and what the owner keeps
    /// about it.
    pub fn push(
        &mut self,
        (flags, about): (u8, u64),
        key: impl FnOnce(&mut Vec<u8>),
        value: impl FnOnce(&mut Vec<u8>),
    ) {
        let begin = self.bytes.len();
        key(&mut self.bytes);
        let middle = self.bytes.len();
        value(&mut self.bytes);
        let (key, value) = (begin..middle, middle..self.bytes.len());
        self.places.push(Place { key, value, flags, about });
    }

    /// Returns a key.
    ///
    /// # Panics
    /// When there is no such record, as all that take an index.
    #[must_use]
    pub fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.places[index].key.clone()]
    }

    /// Returns the flags of a record.
    #[must_use]
    pub fn flags(&self, index: usize) -> u8 {
        self.places[index].flags
    }

    /// Sets them.
    pub fn set_flags(&mut self, index: usize, flags: u8) {
        self.places[index].flags = flags;
    }

    /// Returns what the owner keeps about a record.
    #[must_use]
    pub fn about(&self, index: usize) -> u64 {
        self.places[index].about
    }

    /// Returns the bytes of a key and of its value.
    #[must_use]
    pub fn lengths(&self, index: usize) -> (usize, usize) {
        (self.places[index].key.len(), self.places[index].value.len())
    }

    /// Returns a record.
    #[must_use]
    pub fn entry(&self, index: usize) -> Entry<'_> {
        let place = &self.places[index];
        let (key, value) = (&self.bytes[place.key.clone()], &self.bytes[place.value.clone()]);
        Entry { key, value, flags: place.flags }
    }

    /// Returns all records in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Entry<'_>> + ExactSizeIterator {
        (0..self.len()).map(|index| self.entry(index))
    }
}
