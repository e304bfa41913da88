//! Writing blocks that no reader can reach yet, side by side.
//!
//! A torn one is never read, so they need no protection, and adjacent ones are one transfer.
//! Overwriting pages in place is the [`store`](crate::store)'s.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{PageNumber, Result};
use spinney_io::{AlignedBuf, Purpose, Transfer};

use crate::adjacent::runs_of;
use crate::header::BlockHeader;
use crate::store::Store;

impl Store {
    /// Writes sealed pages that no reader can reach yet, which lie in `buf` in this ascending
    /// order. A torn one is never read, so they need no protection. Adjacent pages are written
    /// together.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub fn write_fresh(
        &self,
        pages: &[PageNumber],
        buf: &AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        self.write_adjacent(pages, 0, buf, purpose)
    }

    /// Does the same for blocks of 2^`order` pages, in any order: those that follow each other both here and in `buf`
    /// are written together.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub fn write_adjacent(
        &self,
        blocks: &[PageNumber],
        order: u8,
        buf: &AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let bytes = &buf.bytes()[..blocks.len() * (PAGE_BYTES << order)];
        self.write_runs(&runs_of(blocks, order, bytes), purpose)
    }

    /// Seals blocks of 2^`order` pages, each with its own header, and writes them. They lie in `buf`
    /// in this order, without headers. Like pages of [`Store::write_fresh`], they are named by
    /// nothing yet, and adjacent ones are written together.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    ///
    /// # Panics
    /// When `buf` has fewer blocks than headers, or their kind is not [wide](BlockHeader::seal).
    pub fn write_wide(
        &self,
        headers: &[BlockHeader],
        order: u8,
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let bytes = &mut buf.bytes_mut()[..headers.len() * (PAGE_BYTES << order)];
        let blocks = bytes.chunks_exact_mut(PAGE_BYTES << order);
        headers.iter().zip(blocks).for_each(|(header, block)| header.seal(block));
        let pages: Vec<PageNumber> = headers.iter().map(|header| header.page).collect();
        self.write_runs(&runs_of(&pages, order, bytes), purpose)
    }

    /// Does the same as [`Store::write_fresh`] for runs of adjacent pages.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub fn write_runs(&self, runs: &[(PageNumber, &[u8])], purpose: Purpose) -> Result<()> {
        self.options.poison.check()?;
        let mut batch: Vec<Transfer<'_>> =
            runs.iter().map(|(page, blocks)| Transfer::write(blocks, page.offset())).collect();
        self.file.transfer(&mut batch, purpose);
        batch.into_iter().try_for_each(|transfer| transfer.result)
    }
}
