//! A batch: what one memtable held, sorted and packed, as the tree takes it.
//!
//! ```text
//!  bytes (one Arc):  key value | key value | key | ...          items: at, key length, value length, operation
//! ```
//!
//! **Invariant**: keys ascend and are unique. It never changes; clones share it.

use std::sync::Arc;

use spinney_base::ValueRef;

/// What an edit does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Puts the value.
    Put,
    /// Puts the pointer to a large value.
    PutLarge,
    /// Removes the key.
    Remove,
}

impl Operation {
    pub(crate) fn of(value: Option<ValueRef<'_>>) -> Self {
        match value {
            None => Operation::Remove,
            Some(value) if value.large => Operation::PutLarge,
            Some(_) => Operation::Put,
        }
    }

    /// The value that an edit of this kind puts, of these bytes.
    pub(crate) fn value(self, bytes: &[u8]) -> Option<ValueRef<'_>> {
        match self {
            Operation::Put => Some(ValueRef::inline(bytes)),
            Operation::PutLarge => Some(ValueRef::large(bytes)),
            Operation::Remove => None,
        }
    }
}

/// A key and its new value; `None` removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edit<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: Option<ValueRef<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    at: u32,
    value_bytes: u32,
    key_bytes: u16,
    operation: Operation,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    bytes: Arc<[u8]>,
    items: Arc<[Item]>,
}

/// Packs a batch.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

impl Packer {
    pub(crate) fn with_capacity(items: usize, bytes: usize) -> Self {
        Packer { bytes: Vec::with_capacity(bytes), items: Vec::with_capacity(items) }
    }

    /// Appends an edit whose key is above all before.
    ///
    /// # Panics
    /// When a batch comes to 4 GiB; memtables are far smaller.
    pub(crate) fn push(&mut self, Edit { key, value }: Edit<'_>) {
        let at = u32::try_from(self.bytes.len()).expect("a memtable is below 4 GiB");
        let bytes = value.unwrap_or(ValueRef::EMPTY).bytes;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(bytes);
        self.items.push(Item {
            at,
            value_bytes: u32::try_from(bytes.len()).expect("values are below 4 GiB"),
            key_bytes: u16::try_from(key.len()).expect("keys have at most KEY_BYTES_MAX bytes"),
            operation: Operation::of(value),
        });
    }

    pub(crate) fn finish(self) -> Batch {
        Batch { bytes: self.bytes.into(), items: self.items.into() }
    }

    /// Bytes of keys and values so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Batch {
    /// How many edits.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Edit `index`.
    pub(crate) fn get(&self, index: usize) -> Edit<'_> {
        let Item { at, value_bytes, key_bytes, operation } = self.items[index];
        let (_, rest) = self.bytes.split_at(at as usize);
        let (key, rest) = rest.split_at(usize::from(key_bytes));
        Edit { key, value: operation.value(&rest[..value_bytes as usize]) }
    }

    /// The first edit whose key is not below `key`.
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        let mut range = 0..self.len();
        while !range.is_empty() {
            let middle = range.start.midpoint(range.end);
            if self.get(middle).key < key { range.start = middle + 1 } else { range.end = middle }
        }
        range.start
    }

    /// What it does to a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Edit<'_>> {
        let index = self.lower_bound(key);
        (index < self.len()).then(|| self.get(index)).filter(|edit| edit.key == key)
    }

    pub(crate) fn edits(&self) -> impl DoubleEndedIterator<Item = Edit<'_>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + size_of_val(&*self.items)) as u64
    }
}
