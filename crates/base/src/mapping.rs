//! Memory straight from the system: for what is large, comes and goes from many threads, and would be kept
//! in pieces by a general allocator.
//!
//! A mapping costs what was written of it, is zeroed by the system when it is touched first, begins at a
//! page, and goes back whole when it is dropped.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all mappings in this process, which the general allocator does not know of.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed)
}

/// Zeroed memory of its own, aligned to a page of the system.
#[derive(Debug)]
pub struct Mapping {
    map: memmap2::MmapMut,
    length: usize,
}

impl Mapping {
    /// `length` zeroed bytes.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        // A mapping is never empty.
        let map = memmap2::MmapMut::map_anon(length.max(1)).expect("there is memory");
        MAPPED.fetch_add(map.len(), Relaxed);
        Mapping { map, length }
    }

    /// How long it can be.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Makes it shorter or longer. What was written to it stays, though it was shorter between.
    ///
    /// # Panics
    /// When `length` is above its capacity.
    pub fn set_length(&mut self, length: usize) {
        assert!(length <= self.map.len(), "{length} bytes of {}", self.map.len());
        self.length = length;
    }
}

impl Deref for Mapping {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.map[..self.length]
    }
}

impl DerefMut for Mapping {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.length]
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.map.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_zeroed_and_counted() {
        let mut mapping = Mapping::zeroed(10_000);
        assert!(mapping.iter().all(|byte| *byte == 0) && mapping.len() == 10_000);
        mapping[9_999] = 1;
        // More than the mappings of all tests beside this one.
        let large = Mapping::zeroed(1 << 30);
        assert!(mapped_bytes() >= large.len());
        drop(large);
        assert!(mapped_bytes() < 1 << 30);
        assert!(Mapping::zeroed(0).is_empty());
        mapping.set_length(5);
        assert_eq!(mapping[..], [0; 5]);
        mapping.set_length(mapping.capacity());
        assert_eq!(mapping[9_999], 1);
    }
}
