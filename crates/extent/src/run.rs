//! Runs: any number of consecutive pages of one allocation, at any position.
//!
//! What is written whole and read whole or by single pages, such as a leaf of many megabytes, needs
//! its pages to follow each other and nothing more. A run takes exactly as many as it needs, so
//! that no file is padded to powers of two; to the free map it is the extents that it is made of.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, PageNumber, Result};
use spinney_io::{AlignedBuf, Purpose, Transfer};

use crate::free::{Extent, extents_of};
use crate::header::{BlockHeader, BlockKind};
use crate::store::Store;

/// Most pages of a run: 128 MiB.
pub const RUN_PAGES_MAX: u32 = 1 << 15;

/// Consecutive pages of one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRun {
    /// First page.
    pub first: PageNumber,
    /// Number of pages.
    pub pages: u32,
    /// Allocation of the pages.
    pub generation: Generation,
}

impl PageRun {
    /// Returns the page of the run with this index.
    ///
    /// # Panics
    /// When the run has no such page.
    #[inline]
    #[must_use]
    pub fn page(&self, index: u32) -> PageNumber {
        assert!(index < self.pages, "page {index} of {}", self.pages);
        PageNumber(self.first.0 + index)
    }

    /// Returns the extents that make up the run, for [`Store::adopt`].
    pub fn extents(&self) -> impl Iterator<Item = (Extent, Generation)> + use<> {
        let generation = self.generation;
        let end = self.first.0.saturating_add(self.pages);
        extents_of(self.first.0, end).map(move |extent| (extent, generation))
    }
}

impl Store {
    /// Allocates `pages` consecutive pages, 1 to [`RUN_PAGES_MAX`], with a generation, and grows
    /// the file when no free run is long enough.
    ///
    /// # Errors
    /// `Full` when the disk has no room (nothing changed), `Poisoned`, or `Io`.
    ///
    /// # Panics
    /// When `pages` is out of range.
    pub fn allocate_run(&self, pages: u32) -> Result<PageRun> {
        assert!((1..=RUN_PAGES_MAX).contains(&pages), "{pages} pages");
        self.options.poison.check()?;
        let mut space = self.space_to_take()?;
        let generation = self.take_generation(&mut space)?;
        let left = space.left();
        let first = self.take(&mut space, pages, left, |free| free.allocate_run(pages))?;
        let run = PageRun { first, pages, generation };
        run.extents().for_each(|(extent, _)| space.holes.remove(extent));
        Ok(run)
    }

    /// Frees a run that no record and no checkpoint names.
    pub fn release_run(&self, run: PageRun) {
        let mut space = self.space.lock();
        run.extents().for_each(|(extent, _)| space.free(extent));
    }

    /// Reads one page of a run, and checks its kind and its run.
    ///
    /// # Errors
    /// `Corruption` naming file, offset, and what was expected and found; `Io`.
    pub fn read_run_page(
        &self,
        run: &PageRun,
        index: u32,
        kind: BlockKind,
        buf: &mut [u8; PAGE_BYTES],
        purpose: Purpose,
    ) -> Result<()> {
        self.read_wide(run.page(index), 0, run.generation, kind, buf, purpose).map(drop)
    }

    /// Reads pages of a run from index `from` on, as many as `buf` has, in one transfer, and checks
    /// each.
    ///
    /// # Errors
    /// As [`Store::read_run_page`].
    pub fn read_run(
        &self,
        run: &PageRun,
        from: u32,
        kind: BlockKind,
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        self.read_runs(&mut [(*run, from, buf.bytes_mut())], kind, purpose)
    }

    /// Reads pages of several runs, in one batch of transfers, into whole pages of memory.
    ///
    /// # Errors
    /// As [`Store::read_run_page`]; of the first page that failed.
    pub fn read_runs(
        &self,
        parts: &mut [(PageRun, u32, &mut [u8])],
        kind: BlockKind,
        purpose: Purpose,
    ) -> Result<()> {
        let mut batch: Vec<Transfer<'_>> = parts
            .iter_mut()
            .filter(|(.., buf)| !buf.is_empty())
            .map(|(run, from, buf)| Transfer::read(buf, run.page(*from).offset()))
            .collect();
        self.file.transfer(&mut batch, purpose);
        batch.into_iter().try_for_each(|transfer| transfer.result)?;
        for (run, from, buf) in parts {
            for (index, block) in (*from..).zip(buf.as_chunks::<PAGE_BYTES>().0) {
                self.check(block, run.page(index), run.generation, kind)?;
            }
        }
        Ok(())
    }

    /// Reads single pages of runs in one batch, each into the page of `buf` with its position in
    /// the list. Adjacent pages of the file are read together.
    ///
    /// # Errors
    /// As [`Store::read_run_page`]; of the first page that failed.
    ///
    /// # Panics
    /// When `buf` has fewer pages than are listed.
    pub fn read_run_pages(
        &self,
        pages: &[(PageRun, u32)],
        kind: BlockKind,
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let mut batch: Vec<Transfer<'_>> = Vec::with_capacity(pages.len());
        let mut left = buf.bytes_mut();
        let number = |page: &(PageRun, u32)| page.0.page(page.1);
        for run in pages.chunk_by(|one, next| number(one).0 + 1 == number(next).0) {
            let (here, rest) = left.split_at_mut(run.len() * PAGE_BYTES);
            batch.push(Transfer::read(here, number(&run[0]).offset()));
            left = rest;
        }
        self.file.transfer(&mut batch, purpose);
        batch.into_iter().try_for_each(|transfer| transfer.result)?;
        for ((run, index), block) in pages.iter().zip(buf.bytes().as_chunks::<PAGE_BYTES>().0) {
            self.check(block, run.page(*index), run.generation, kind)?;
        }
        Ok(())
    }

    /// Seals consecutive pages of a run from index `from` on, which are in `buf` without headers.
    pub fn seal_run(
        &self,
        run: &PageRun,
        from: u32,
        kind: BlockKind,
        buf: &mut AlignedBuf,
        lsn: Lsn,
    ) {
        let (generation, keyspace) = (run.generation, self.keyspace());
        for (index, block) in (from..).zip(buf.bytes_mut().as_chunks_mut::<PAGE_BYTES>().0) {
            let page = run.page(index);
            BlockHeader { kind, page, generation, keyspace, lsn }.seal(block);
        }
    }
}
