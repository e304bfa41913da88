//! Buffers aligned to a page, as direct I/O wants them.
//!
//! A buffer is a vector of page-aligned, page-sized pieces, so alignment is the type's and no
//! `unsafe` allocation is needed.
#![expect(unsafe_code, reason = "a vector of aligned pages is seen as one slice of bytes")]

use spinney_base::limits::PAGE_BYTES;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct AlignedPage([u8; PAGE_BYTES]);

const _: () =
    assert!(size_of::<AlignedPage>() == PAGE_BYTES && align_of::<AlignedPage>() == PAGE_BYTES);

/// A zero-filled buffer of whole pages, aligned to [`PAGE_BYTES`] in memory.
pub struct AlignedBuf {
    pages: Vec<AlignedPage>,
}

impl AlignedBuf {
    /// A buffer of `pages` zeroed pages.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        AlignedBuf { pages: vec![AlignedPage([0; PAGE_BYTES]); pages] }
    }

    /// How many pages it holds.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The bytes of page `index` alone.
    ///
    /// # Panics
    /// When the buffer holds no such page.
    #[must_use]
    pub fn page(&self, index: usize) -> &[u8; PAGE_BYTES] {
        &self.pages[index].0
    }

    /// The bytes of page `index` alone, to change.
    ///
    /// # Panics
    /// When the buffer holds no such page.
    pub fn page_mut(&mut self, index: usize) -> &mut [u8; PAGE_BYTES] {
        &mut self.pages[index].0
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let length = self.pages.len() * PAGE_BYTES;
        let start = self.pages.as_ptr().cast::<u8>();
        // SAFETY: as in `bytes_mut`, with a shared borrow.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// All bytes, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.pages.len() * PAGE_BYTES;
        let start = self.pages.as_mut_ptr().cast::<u8>();
        // SAFETY: `AlignedPage` is `repr(C)` around a byte array of exactly its own size (asserted
        // above), so the vector's elements are `length` initialized, contiguous bytes, borrowed
        // mutably for as long as the result lives.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} pages)", self.pages.len())
    }
}
