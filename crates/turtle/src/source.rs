//! Bytes that items of runs point into: of a sealed memtable, of a leaf that was read, or copied.
//!
//! **Invariant**: they do not change while anybody has them.

use std::ops::Deref;
use std::sync::Arc;

use spinney_art::Chunk;
use spinney_base::mapping::Mapping;

/// Bytes that items point into.
pub(crate) type Source = Arc<Bytes>;

/// Bytes of a source. Long ones are mappings of their own: a general allocator keeps what such pieces leave
/// when they are freed, in whichever order that is.
#[derive(Debug)]
pub(crate) enum Bytes {
    Allocated(Vec<u8>),
    Mapped(Mapping),
    /// Of a memtable.
    Chunk(Chunk),
}

/// From so many bytes on they are mapped.
const MAPPED_BYTES_MIN: usize = 64 << 10;

impl Bytes {
    /// Memory that they take, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Bytes::Allocated(bytes) => bytes.capacity(),
            Bytes::Mapped(bytes) => bytes.len(),
            Bytes::Chunk(bytes) => bytes.len(),
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
            return Bytes::Allocated(bytes.to_vec());
        }
        Bytes::Mapped(bytes)
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::Allocated(Vec::new())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() < MAPPED_BYTES_MIN {
            return Bytes::Allocated(bytes);
        }
        let mut mapped = Mapping::zeroed(bytes.len());
        mapped.copy_from_slice(&bytes);
        Bytes::Mapped(mapped)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Allocated(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
            Bytes::Chunk(bytes) => bytes,
        }
    }
}
