//! Reading a store file of which nothing is taken for granted (rule P22): not its slots, not its
//! checkpoint, no page. Nothing is written.

use std::collections::BTreeMap;
use std::path::Path;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, PageNumber, Result};
use spinney_io::{AlignedBuf, Disk, OpenMode, Purpose};

use crate::double_write::{Age, END_PAGE, FIRST_PAGE};
use crate::header::{BlockHeader, BlockKind, Damage};
use crate::slot::Slot;
use crate::store::{Checkpoint, DATA_PAGE_FIRST, Store, StoreOptions};

/// Pages that are read at once.
const CHUNK_PAGES: u32 = 256;

/// The newest checkpoint and its payload, or why it cannot be read.
pub type Newest = Result<(Checkpoint, Vec<u8>)>;

/// A block as it was found.
type Block = [u8; PAGE_BYTES];

/// Copies of pages in the double-write area, which a torn page can be taken from.
pub type Copies = BTreeMap<PageNumber, (BlockHeader, Box<Block>)>;

impl Store {
    /// Opens a store file whatever is in it; answers its newest checkpoint, if that can be read, or else why not.
    /// Nothing may be written to it.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened at all.
    pub fn open_damaged(
        disk: &dyn Disk,
        path: &Path,
        options: StoreOptions,
    ) -> Result<(Store, Newest)> {
        match Store::open(disk, path, options.clone()) {
            Ok((store, checkpoint, payload)) => Ok((store, Ok((checkpoint, payload)))),
            Err(error) => {
                let file = disk.open(path, OpenMode::EXISTING.read_only())?;
                let slot = Slot {
                    generation: 0,
                    redo: Lsn::ZERO,
                    structure: 0,
                    payload_length: 0,
                    payload_hash: 0,
                    next_generation: Generation(0),
                    end: PageNumber(0),
                    extents: Vec::new(),
                };
                Ok((Store::new(file, options, slot), Err(error)))
            }
        }
    }

    /// Shows every block behind the double-write area, in order: the header of one that is whole and at its place, or
    /// what is wrong with it; a page of zeros was never written.
    ///
    /// # Errors
    /// `Io` when the file's length cannot be told.
    pub fn show_blocks(
        &self,
        mut show: impl FnMut(PageNumber, Result<BlockHeader, Damage>, &Block),
    ) -> Result<()> {
        let pages = self.file.len()? / PAGE_BYTES as u64;
        let end = u32::try_from(pages).unwrap_or(u32::MAX);
        let mut buf = AlignedBuf::new(CHUNK_PAGES as usize);
        let mut first = DATA_PAGE_FIRST;
        while first < end {
            let count = CHUNK_PAGES.min(end - first);
            let bytes = &mut buf.bytes_mut()[..count as usize * PAGE_BYTES];
            let whole = self.file.read_at(bytes, PageNumber(first).offset(), Purpose::Tool).is_ok();
            for index in 0..count {
                let page = PageNumber(first + index);
                let block = buf.page_mut(index as usize);
                if !whole && let Err(error) = self.file.read_at(block, page.offset(), Purpose::Tool)
                {
                    block.fill(0);
                    show(page, Err(Damage::new("a page that can be read", error)), block);
                    continue;
                }
                show(page, self.header_at(page, block), block);
            }
            first += count;
        }
        Ok(())
    }

    /// Reads one data page if it is whole and of this generation, in place or else in `copies`.
    #[must_use]
    pub fn read_salvaged(
        &self,
        page: PageNumber,
        generation: Generation,
        copies: &Copies,
        block: &mut Block,
    ) -> bool {
        let mut buf = AlignedBuf::new(1);
        let read = self.file.read_at(buf.bytes_mut(), page.offset(), Purpose::Tool);
        let is_it = |header: &BlockHeader| {
            header.kind == BlockKind::Data && header.generation == generation
        };
        if read.is_ok() && self.header_at(page, buf.page(0)).is_ok_and(|header| is_it(&header)) {
            block.copy_from_slice(buf.page(0));
            return true;
        }
        match copies.get(&page) {
            Some((header, copy)) if is_it(header) => {
                block.copy_from_slice(&**copy);
                true
            }
            _ => false,
        }
    }

    /// The copies in the double-write area, of several of one page the newest.
    #[must_use]
    pub fn double_written(&self) -> Copies {
        let mut copies: BTreeMap<PageNumber, (Age, BlockHeader, Box<Block>)> = BTreeMap::new();
        let mut buf = AlignedBuf::new(1);
        for number in FIRST_PAGE..END_PAGE {
            let offset = PageNumber(number).offset();
            if self.file.read_at(buf.bytes_mut(), offset, Purpose::Tool).is_err() {
                continue;
            }
            let Ok((header, batch)) = BlockHeader::decode_copy(buf.page(0)) else { continue };
            let age = (batch, header.lsn);
            let older = copies.get(&header.page).is_some_and(|(found, ..)| *found >= age);
            if header.kind == BlockKind::Data && header.keyspace == self.keyspace() && !older {
                BlockHeader::name_batch(buf.page_mut(0), 0);
                copies.insert(header.page, (age, header, Box::new(*buf.page(0))));
            }
        }
        copies.into_iter().map(|(page, (_, header, block))| (page, (header, block))).collect()
    }

    fn header_at(&self, page: PageNumber, block: &Block) -> Result<BlockHeader, Damage> {
        let header = BlockHeader::decode(block)?;
        if header.page != page || header.keyspace != self.keyspace() {
            return Err(Damage::new(
                format!("page {page} of keyspace {}", self.keyspace()),
                format!("page {} of keyspace {} (misdirected)", header.page, header.keyspace),
            ));
        }
        Ok(header)
    }
}
