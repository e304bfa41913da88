//! Reading pages of a store file: alone, in batches, and in batches whose pages are named while
//! those before them are under way.
//!
//! **Invariant.** No page is shown that is not the one its owner expects; of several that fail the
//! first is the error.

use std::ops::Range;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Generation, PageNumber, Result};
use spinney_io::{AlignedBuf, Purpose, Steps, Transfer, TransferBuf};

use crate::header::{BlockHeader, BlockKind};
use crate::store::Store;

/// A source of pages to read that does not know all of them beforehand. See
/// [`Store::read_as_found`].
pub trait Wanted {
    /// Returns the next page to read, if there is one.
    fn next(&mut self) -> Option<(PageNumber, Generation)>;

    /// Receives the checked page that was named as number `index`, counted from 0; in any order.
    ///
    /// # Errors
    /// Any further fault of the page.
    fn came(&mut self, index: usize, block: &[u8; PAGE_BYTES]) -> Result<()>;
}

impl Store {
    /// Reads one data page and checks that it is the one its owner expects.
    ///
    /// # Errors
    /// `Corruption` naming file, offset, and what was expected and found; `Io`.
    pub fn read(
        &self,
        page: PageNumber,
        generation: Generation,
        buf: &mut [u8; PAGE_BYTES],
        purpose: Purpose,
    ) -> Result<BlockHeader> {
        self.file.read_at(buf, page.offset(), purpose)?;
        self.check(buf, page, generation)
    }

    /// Reads many data pages in one batch, each into the page of `buf` that is given; these ascend.
    /// Pages that are adjacent in the file and in `buf` are read together. Each page is checked
    /// when it arrives, while others are under way. `also` gets its position in `buf` for further
    /// checks.
    ///
    /// # Errors
    /// As [`Store::read`], and what `also` answers; of the first page that failed.
    pub fn read_many(
        &self,
        pages: &[(usize, PageNumber, Generation)],
        buf: &mut AlignedBuf,
        purpose: Purpose,
        also: &mut dyn FnMut(usize, &[u8; PAGE_BYTES]) -> Result<()>,
    ) -> Result<()> {
        let mut batch: Vec<Transfer<'_>> = Vec::with_capacity(pages.len());
        // Positions of the pages of each transfer.
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(pages.len());
        let mut left = &mut buf.bytes_mut()[..];
        let mut passed = 0;
        let follows = |one: &(usize, PageNumber, Generation),
                       next: &(usize, PageNumber, Generation)| {
            one.0 + 1 == next.0 && one.1.0.checked_add(1) == Some(next.1.0)
        };
        for run in pages.chunk_by(follows) {
            let (first, page, _) = run[0];
            let (_, rest) = left.split_at_mut((first - passed) * PAGE_BYTES);
            let (target, rest) = rest.split_at_mut(run.len() * PAGE_BYTES);
            batch.push(Transfer::read(target, page.offset()));
            let before = runs.last().map_or(0, |run| run.end);
            runs.push(before..before + run.len());
            left = rest;
            passed = first + run.len();
        }
        let mut failed = FirstFailure::default();
        let mut steps = WhenRead(|index: usize, blocks: &[[u8; PAGE_BYTES]]| {
            failed.note(index, || {
                runs[index].clone().zip(blocks).try_for_each(|(place, block)| {
                    let (index, page, generation) = pages[place];
                    self.check(block, page, generation)?;
                    also(index, block)
                })
            });
        });
        self.file.transfer_in_steps(&mut batch, purpose, &mut steps);
        failed.or_of(batch)
    }

    /// Reads pages in one batch, each into the next page of `buf`. `wanted` names them one after
    /// the other while earlier ones are under way, and receives them when they have arrived and are
    /// checked.
    ///
    /// # Errors
    /// As [`Store::read`], and what `wanted` answers; of the first page that failed.
    pub fn read_as_found(
        &self,
        buf: &mut AlignedBuf,
        purpose: Purpose,
        wanted: &mut dyn Wanted,
    ) -> Result<()> {
        let chunks = buf.bytes_mut().chunks_mut(PAGE_BYTES);
        let mut batch: Vec<_> = chunks.map(|page| Transfer::read(page, 0)).collect();
        let pages = Vec::with_capacity(batch.len());
        let mut steps = AsFound { store: self, wanted, pages, failed: FirstFailure::default() };
        self.file.transfer_in_steps(&mut batch, purpose, &mut steps);
        let AsFound { failed, pages, .. } = steps;
        batch.truncate(pages.len());
        failed.or_of(batch)
    }

    pub(crate) fn check(
        &self,
        block: &[u8; PAGE_BYTES],
        page: PageNumber,
        generation: Generation,
    ) -> Result<BlockHeader> {
        let keyspace = self.options.keyspace;
        BlockHeader::check(block, self.file.path(), BlockKind::DATA, keyspace, page, generation)
    }
}

/// The failure of the first transfer of a batch whose checks failed.
#[derive(Debug, Default)]
struct FirstFailure(Option<(usize, Error)>);

impl FirstFailure {
    /// Checks what transfer `index` has read, unless an earlier one failed.
    fn note(&mut self, index: usize, check: impl FnOnce() -> Result<()>) {
        if self.0.as_ref().is_some_and(|(first, _)| *first < index) {
            return;
        }
        if let Err(error) = check() {
            self.0 = Some((index, error));
        }
    }

    /// Returns the failure of the batch's first failed transfer, of whatever kind.
    fn or_of(mut self, batch: Vec<Transfer<'_>>) -> Result<()> {
        for (index, transfer) in batch.into_iter().enumerate() {
            transfer.result?;
            if let Some((_, error)) = self.0.take_if(|(failed, _)| *failed == index) {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the pages that a transfer has read, if it succeeded.
fn blocks<'a>(transfer: &'a Transfer<'_>) -> Option<&'a [[u8; PAGE_BYTES]]> {
    match (&transfer.buf, &transfer.result) {
        (TransferBuf::Read(bytes), Ok(())) => Some(bytes.as_chunks().0),
        _ => None,
    }
}

/// Passes on what was read.
struct WhenRead<F>(F);

impl<F: FnMut(usize, &[[u8; PAGE_BYTES]])> Steps for WhenRead<F> {
    fn ended(&mut self, index: usize, transfer: &Transfer<'_>) {
        if let Some(blocks) = blocks(transfer) {
            (self.0)(index, blocks);
        }
    }
}

struct AsFound<'a> {
    store: &'a Store,
    wanted: &'a mut dyn Wanted,
    pages: Vec<(PageNumber, Generation)>,
    failed: FirstFailure,
}

impl Steps for AsFound<'_> {
    fn begin(&mut self, _index: usize, offset: &mut u64) -> bool {
        let Some((page, generation)) = self.wanted.next() else { return false };
        *offset = page.offset();
        self.pages.push((page, generation));
        true
    }

    fn ended(&mut self, index: usize, transfer: &Transfer<'_>) {
        let Some([block]) = blocks(transfer) else { return };
        let (page, generation) = self.pages[index];
        self.failed.note(index, || {
            self.store.check(block, page, generation)?;
            self.wanted.came(index, block)
        });
    }
}
