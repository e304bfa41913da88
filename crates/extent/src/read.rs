//! Reading blocks of a store file: alone, in batches, and in batches whose blocks are named while
//! those before them are under way.
//!
//! A block has 2^order pages ([`header`](crate::header)); data pages are blocks of order 0, and are
//! read by the same code. All blocks of a batch have one order.
//!
//! ```text
//! order 1, blocks 0, 1 and 3 of a buffer:   file    [ 200 201 ][ 202 203 ]     [ 320 321 ]
//!                                                        |         |               |
//! two transfers, for 0 and 1 are adjacent   buffer  [    0    ][   1   ][  2  ][   3    ]
//! ```
//!
//! **Invariant.** No block is shown that is not the one its owner expects; of several that fail the
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
    /// Returns the next block to read, by its first page, if there is one.
    fn next(&mut self) -> Option<(PageNumber, Generation)>;

    /// Receives the checked block that was named as number `index`, counted from 0; in any order.
    ///
    /// # Errors
    /// Any further fault of the block.
    fn came(&mut self, index: usize, block: &[u8]) -> Result<()>;
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
        self.read_wide(page, 0, generation, BlockKind::DATA, buf, purpose)
    }

    /// Reads one block of 2^`order` pages, and checks that it is the one its owner expects.
    ///
    /// # Errors
    /// `Corruption` naming file, offset, and what was expected and found; `Io`.
    ///
    /// # Panics
    /// When `buf` has not just the bytes of such a block.
    pub fn read_wide(
        &self,
        page: PageNumber,
        order: u8,
        generation: Generation,
        kind: BlockKind,
        buf: &mut [u8],
        purpose: Purpose,
    ) -> Result<BlockHeader> {
        assert_eq!(buf.len(), PAGE_BYTES << order, "bytes of a block of order {order}");
        self.file.read_at(buf, page.offset(), purpose)?;
        self.check(buf, page, generation, kind)
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
        self.read_many_wide(pages, 0, BlockKind::DATA, buf, purpose, &mut |index, block| {
            also(index, block.first_chunk().expect("a block of order 0"))
        })
    }

    /// Does the same for blocks of 2^`order` pages, each into the block of `buf` that is given:
    /// number n begins 2^`order` times n pages behind the beginning.
    ///
    /// # Errors
    /// As [`Store::read_many`].
    ///
    /// # Panics
    /// When `buf` has no such block.
    pub fn read_many_wide(
        &self,
        blocks: &[(usize, PageNumber, Generation)],
        order: u8,
        kind: BlockKind,
        buf: &mut AlignedBuf,
        purpose: Purpose,
        also: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let bytes = PAGE_BYTES << order;
        let mut batch: Vec<Transfer<'_>> = Vec::with_capacity(blocks.len());
        // Positions of the blocks of each transfer.
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(blocks.len());
        let mut left = &mut buf.bytes_mut()[..];
        let mut passed = 0;
        let follows = |one: &(usize, PageNumber, Generation),
                       next: &(usize, PageNumber, Generation)| {
            one.0 + 1 == next.0 && one.1.0.checked_add(1 << order) == Some(next.1.0)
        };
        for run in blocks.chunk_by(follows) {
            let (first, page, _) = run[0];
            let (_, rest) = left.split_at_mut((first - passed) * bytes);
            let (target, rest) = rest.split_at_mut(run.len() * bytes);
            batch.push(Transfer::read(target, page.offset()));
            let before = runs.last().map_or(0, |run| run.end);
            runs.push(before..before + run.len());
            left = rest;
            passed = first + run.len();
        }
        let mut failed = FirstFailure::default();
        let mut steps = WhenRead(|index: usize, read: &[u8]| {
            failed.note(index, || {
                let read = read.chunks_exact(bytes);
                runs[index].clone().zip(read).try_for_each(|(place, block)| {
                    let (index, page, generation) = blocks[place];
                    self.check(block, page, generation, kind)?;
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
        self.read_as_found_wide(0, BlockKind::DATA, buf, purpose, wanted)
    }

    /// Does the same for blocks of 2^`order` pages, as many as `buf` has.
    ///
    /// # Errors
    /// As [`Store::read_as_found`].
    pub fn read_as_found_wide(
        &self,
        order: u8,
        kind: BlockKind,
        buf: &mut AlignedBuf,
        purpose: Purpose,
        wanted: &mut dyn Wanted,
    ) -> Result<()> {
        let chunks = buf.bytes_mut().chunks_exact_mut(PAGE_BYTES << order);
        let mut batch: Vec<_> = chunks.map(|block| Transfer::read(block, 0)).collect();
        let blocks = Vec::with_capacity(batch.len());
        let failed = FirstFailure::default();
        let mut steps = AsFound { store: self, kind, wanted, blocks, failed };
        self.file.transfer_in_steps(&mut batch, purpose, &mut steps);
        let AsFound { failed, blocks, .. } = steps;
        batch.truncate(blocks.len());
        failed.or_of(batch)
    }

    pub(crate) fn check(
        &self,
        block: &[u8],
        page: PageNumber,
        generation: Generation,
        kind: BlockKind,
    ) -> Result<BlockHeader> {
        let keyspace = self.options.keyspace;
        BlockHeader::check(block, self.file.path(), kind, keyspace, page, generation)
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

/// Returns the bytes that a transfer has read, if it succeeded.
fn bytes_of<'a>(transfer: &'a Transfer<'_>) -> Option<&'a [u8]> {
    match (&transfer.buf, &transfer.result) {
        (TransferBuf::Read(bytes), Ok(())) => Some(bytes),
        _ => None,
    }
}

/// Passes on what was read.
struct WhenRead<F>(F);

impl<F: FnMut(usize, &[u8])> Steps for WhenRead<F> {
    fn ended(&mut self, index: usize, transfer: &Transfer<'_>) {
        if let Some(read) = bytes_of(transfer) {
            (self.0)(index, read);
        }
    }
}

struct AsFound<'a> {
    store: &'a Store,
    kind: BlockKind,
    wanted: &'a mut dyn Wanted,
    blocks: Vec<(PageNumber, Generation)>,
    failed: FirstFailure,
}

impl Steps for AsFound<'_> {
    fn begin(&mut self, _index: usize, offset: &mut u64) -> bool {
        let Some((page, generation)) = self.wanted.next() else { return false };
        *offset = page.offset();
        self.blocks.push((page, generation));
        true
    }

    fn ended(&mut self, index: usize, transfer: &Transfer<'_>) {
        let Some(block) = bytes_of(transfer) else { return };
        let (page, generation) = self.blocks[index];
        self.failed.note(index, || {
            self.store.check(block, page, generation, self.kind)?;
            self.wanted.came(index, block)
        });
    }
}
