//! Writing and reading large values in pieces, so that none is whole in memory (rule P17).
//!
//! The owner of the extents writes a value before anything names them. So a torn page is never
//! read, and nothing needs protection from tearing. A reader holds a pointer and knows that the
//! extents were not reused; each block says so itself.

use spinney_base::{Error, Generation, Lsn, PageNumber, Result};
use spinney_io::{AlignedBuf, Purpose};
use xxhash_rust::xxh3::Xxh3;

use crate::free::Extent;
use crate::header::{BlockHeader, BlockKind, HEADER_BYTES};
use crate::large::{LargePointer, PIECE_BYTES};
use crate::store::Store;

/// Pages that one call writes or reads: 256 KiB.
pub const CALL_PAGES: usize = 64;

/// Bytes of a value that one call writes or reads.
pub const CALL_BYTES: usize = CALL_PAGES * PIECE_BYTES;

impl Store {
    /// Allocates extents for a value of `length` bytes.
    ///
    /// # Errors
    /// As [`Store::allocate`]; nothing is taken then.
    pub fn allocate_large(&self, length: u64) -> Result<Vec<(Extent, Generation)>> {
        let mut extents = Vec::new();
        for order in LargePointer::orders(length) {
            match self.allocate(order) {
                Ok(extent) => extents.push(extent),
                Err(error) => {
                    extents.iter().for_each(|(extent, _)| self.release(*extent));
                    return Err(error);
                }
            }
        }
        Ok(extents)
    }

    /// Writes the bytes of a value from `offset` on, at most [`CALL_BYTES`]. `offset` is a multiple
    /// of [`PIECE_BYTES`], and so is the number of bytes unless the value ends with them. Nothing
    /// is durable before [`Store::sync`].
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    ///
    /// # Panics
    /// When the extents do not have these bytes.
    pub fn write_large(
        &self,
        extents: &[(Extent, Generation)],
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let mut pieces = bytes.chunks(PIECE_BYTES);
        for Run { page, pages, generation } in runs(extents, offset, bytes.len()) {
            let mut buf = AlignedBuf::new(pages);
            for (index, piece) in (0..pages).zip(&mut pieces) {
                let block = buf.page_mut(index);
                block[HEADER_BYTES..HEADER_BYTES + piece.len()].copy_from_slice(piece);
                let header = BlockHeader {
                    kind: BlockKind::LARGE,
                    page: nth(page, index),
                    generation,
                    keyspace: self.keyspace(),
                    lsn: Lsn::ZERO,
                };
                header.seal(block);
            }
            self.options.poison.check()?;
            self.file.write_at(buf.bytes(), page.offset(), Purpose::LARGE_VALUE)?;
        }
        Ok(())
    }

    /// Appends the bytes of a value from `offset` on to `out`, at most [`CALL_BYTES`]; none at its
    /// end. `offset` is a multiple of [`PIECE_BYTES`]. It checks every block. A caller that reads
    /// the whole value checks it against the pointer's hash.
    ///
    /// # Errors
    /// `Corruption` naming file, offset, and what was expected and found; `Io`.
    pub fn read_large(&self, pointer: &LargePointer, offset: u64, out: &mut Vec<u8>) -> Result<()> {
        let left = pointer.length.saturating_sub(offset).min(CALL_BYTES as u64);
        #[expect(clippy::cast_possible_truncation, reason = "at most CALL_BYTES")]
        let mut left = left as usize;
        for Run { page, pages, generation } in runs(&pointer.extents, offset, left) {
            let mut buf = AlignedBuf::new(pages);
            self.file.read_at(buf.bytes_mut(), page.offset(), Purpose::LARGE_VALUE)?;
            for index in 0..pages {
                let block = buf.page(index);
                let (path, keyspace) = (self.path(), self.keyspace());
                let page = nth(page, index);
                BlockHeader::check(block, path, BlockKind::LARGE, keyspace, page, generation)?;
                let piece = left.min(PIECE_BYTES);
                out.extend_from_slice(&block[HEADER_BYTES..HEADER_BYTES + piece]);
                left -= piece;
            }
        }
        Ok(())
    }
}

impl Store {
    /// Copies pages of a large value's extent to the same positions of another store, from page
    /// `from` of the extent on, at most [`CALL_PAGES`]. Each page is checked. Returns their number.
    ///
    /// # Errors
    /// `Corruption` naming the damage; `Io` or `Full` from either side.
    pub fn copy_large(
        &self,
        (extent, generation): (Extent, Generation),
        from: u32,
        target: &Store,
    ) -> Result<u32> {
        let pages = (extent.pages() - from).min(CALL_PAGES as u32);
        let first = PageNumber(extent.page.0 + from);
        let mut buf = AlignedBuf::new(pages as usize);
        self.file.read_at(buf.bytes_mut(), first.offset(), Purpose::TOOL)?;
        for index in 0..pages as usize {
            let (path, keyspace) = (self.path(), self.keyspace());
            let page = nth(first, index);
            BlockHeader::check(
                buf.page(index),
                path,
                BlockKind::LARGE,
                keyspace,
                page,
                generation,
            )?;
        }
        target.file.write_at(buf.bytes(), first.offset(), Purpose::TOOL)?;
        Ok(pages)
    }

    /// Reads pages of a large value's extent from page `from` of it on, at most [`CALL_PAGES`], and
    /// shows whether each is sound, or what is wrong. Returns their number.
    pub fn check_large(
        &self,
        (extent, generation): (Extent, Generation),
        from: u32,
        mut show: impl FnMut(PageNumber, Result<()>),
    ) -> u32 {
        let pages = extent.pages().saturating_sub(from).min(CALL_PAGES as u32);
        let first = PageNumber(extent.page.0 + from);
        let mut buf = AlignedBuf::new(pages as usize);
        if let Err(error) = self.file.read_at(buf.bytes_mut(), first.offset(), Purpose::TOOL) {
            show(first, Err(error));
            return pages;
        }
        for index in 0..pages as usize {
            let (path, keyspace, page) = (self.path(), self.keyspace(), nth(first, index));
            let block = buf.page(index);
            let checked =
                BlockHeader::check(block, path, BlockKind::LARGE, keyspace, page, generation);
            show(page, checked.map(|_| ()));
        }
        pages
    }
}

/// A large value that is read in pieces, from front to back.
pub struct Pieces {
    pointer: LargePointer,
    offset: u64,
    hasher: Xxh3,
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pieces({} of {} bytes)", self.offset, self.pointer.length)
    }
}

impl Pieces {
    /// Makes a reader for the value that a pointer names. The caller keeps the extents from being
    /// reused.
    #[must_use]
    pub fn new(pointer: LargePointer) -> Pieces {
        Pieces { pointer, offset: 0, hasher: Xxh3::new() }
    }

    /// Returns to the beginning.
    pub fn rewind(&mut self) {
        (self.offset, self.hasher) = (0, Xxh3::new());
    }

    /// Returns the length of the whole value, in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.pointer.length
    }

    /// Returns the number of bytes not read yet.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.pointer.length - self.offset
    }

    /// Appends the next piece. The last one is delivered only if the whole value matches its hash.
    ///
    /// # Errors
    /// `Corruption` naming file, offset, and what was expected and found; `Io`.
    pub fn next(&mut self, store: &Store, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        store.read_large(&self.pointer, self.offset, out)?;
        self.hasher.update(&out[start..]);
        self.offset += (out.len() - start) as u64;
        let (expected, found) = (self.pointer.hash, self.hasher.digest());
        if self.left() > 0 || expected == found {
            return Ok(());
        }
        out.truncate(start);
        let first = self.pointer.extents.first();
        Err(Error::corruption(
            store.path().display(),
            first.map_or(0, |(extent, _)| extent.page.offset()),
            format!("a large value with hash {expected:016x}"),
            format!("{found:016x}"),
        ))
    }
}

/// Adjacent pages of one extent.
struct Run {
    page: PageNumber,
    pages: usize,
    generation: Generation,
}

#[expect(clippy::cast_possible_truncation, reason = "an index within an extent")]
fn nth(page: PageNumber, index: usize) -> PageNumber {
    PageNumber(page.0 + index as u32)
}

/// Returns the runs that hold `length` bytes of a value from `offset` on.
fn runs(extents: &[(Extent, Generation)], offset: u64, length: usize) -> Vec<Run> {
    let mut skip = offset / PIECE_BYTES as u64;
    let mut left = length.div_ceil(PIECE_BYTES);
    let mut runs = Vec::new();
    for (extent, generation) in extents {
        let inside = u64::from(extent.pages());
        if skip >= inside {
            skip -= inside;
            continue;
        }
        #[expect(clippy::cast_possible_truncation, reason = "an extent has at most 2^15 pages")]
        let pages = ((inside - skip) as usize).min(left);
        if pages == 0 {
            break;
        }
        #[expect(clippy::cast_possible_truncation, reason = "an index within an extent")]
        let page = PageNumber(extent.page.0 + skip as u32);
        runs.push(Run { page, pages, generation: *generation });
        left -= pages;
        skip = 0;
    }
    assert_eq!(left, 0, "a pointer has the pages of its length");
    runs
}
