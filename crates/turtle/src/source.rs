//! Bytes that items of runs point into: of a sealed memtable, of a leaf that was read, or copied.
//!
//! **Invariant**: they do not change while anybody has them.

use std::ops::Deref;
use std::sync::Arc;

use spinney_art::Chunk;
use spinney_base::mapped_vec::{MAPPED_BYTES_MIN, MappedVec};
use spinney_base::mapping::Mapping;

/// Bytes that items point into.
pub(crate) type Source = Arc<Bytes>;

/// Bytes of a source.
#[derive(Debug)]
pub(crate) enum Bytes {
    Copied(MappedVec<u8>),
    /// Of a leaf that was read.
    Mapped(Mapping),
    /// Of a memtable.
    Chunk(Chunk),
}

impl Bytes {
    /// Memory that they take, in bytes: a mapping that was used before may be resident to its end.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Bytes::Copied(bytes) => bytes.memory_bytes(),
            Bytes::Mapped(bytes) => bytes.capacity(),
            Bytes::Chunk(bytes) => bytes.memory_bytes(),
        }
    }
}

impl From<Chunk> for Bytes {
    fn from(bytes: Chunk) -> Self {
        Bytes::Chunk(bytes)
    }
}

impl From<Mapping> for Bytes {
    fn from(bytes: Mapping) -> Self {
        if bytes.len() < MAPPED_BYTES_MIN {
            return Bytes::from(&*bytes);
        }
        Bytes::Mapped(bytes)
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::Copied(MappedVec::default())
    }
}

impl From<MappedVec<u8>> for Bytes {
    fn from(bytes: MappedVec<u8>) -> Self {
        Bytes::Copied(bytes)
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = MappedVec::with_capacity(bytes.len());
        copy.extend_from_slice(bytes);
        Bytes::Copied(copy)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Copied(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
            Bytes::Chunk(bytes) => bytes,
        }
    }
}
