//! Buffers aligned to a page, as direct I/O requires.
//!
//! Each is a mapping of its own: their sizes differ, many threads take and free them, and a general
//! allocator would keep the memory between them.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::mapping::Mapping;

/// A buffer of whole pages, aligned to [`PAGE_BYTES`] in memory.
pub struct AlignedBuf {
    bytes: Mapping,
}

impl AlignedBuf {
    /// Makes a buffer of `pages` zeroed pages.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        AlignedBuf { bytes: Mapping::zeroed(pages * PAGE_BYTES) }
    }

    /// Makes a buffer of `pages` pages of any content, perhaps of a dropped one. It is for callers
    /// that fill all of it. Its memory is kept for the next one when it is dropped, as
    /// [`Mapping::reused`] says.
    #[must_use]
    pub fn reused(pages: usize) -> Self {
        AlignedBuf { bytes: Mapping::reused(pages * PAGE_BYTES) }
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.bytes.len() / PAGE_BYTES
    }

    /// Returns the most pages that it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() / PAGE_BYTES
    }

    /// Changes the number of pages. Bytes that were written stay, even if it was shorter in
    /// between.
    ///
    /// # Panics
    /// When it cannot hold as many.
    pub fn set_pages(&mut self, pages: usize) {
        self.bytes.set_length(pages * PAGE_BYTES);
    }

    /// Returns the bytes of page `index`.
    ///
    /// # Panics
    /// When the buffer holds no such page.
    #[inline]
    #[must_use]
    pub fn page(&self, index: usize) -> &[u8; PAGE_BYTES] {
        self.bytes.as_chunks().0.get(index).expect("a page of the buffer")
    }

    /// Returns the bytes of page `index`, to change.
    ///
    /// # Panics
    /// When the buffer holds no such page.
    #[inline]
    pub fn page_mut(&mut self, index: usize) -> &mut [u8; PAGE_BYTES] {
        self.bytes.as_chunks_mut().0.get_mut(index).expect("a page of the buffer")
    }

    /// Returns all bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the memory.
    #[must_use]
    pub fn into_mapping(self) -> Mapping {
        self.bytes
    }

    /// Returns all bytes, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} pages)", self.pages())
    }
}
