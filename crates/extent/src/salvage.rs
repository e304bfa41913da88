//! Reading a store file without trusting its slots, its checkpoint or any page (rule P22). Nothing
//! is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Generation, KeyspaceId, Lsn, PageNumber, Poison, Result};
use spinney_io::{AlignedBuf, Directory, OpenMode, Purpose};

use crate::double_write::{Age, END_PAGE, oldest_needed};
use crate::header::{BlockHeader, BlockKind, Damage, WIDE_ORDER_MAX};
use crate::run::PageRun;
use crate::slot::{SLOT_PAGES, Slot, Slots};
use crate::slots::SlotPages;
use crate::store::{Checkpoint, DATA_PAGE_FIRST, Store, StoreOptions};

/// Pages that are read at once.
const CHUNK_PAGES: u32 = 256;
// No wide block lies in two chunks.
const _: () = assert!(CHUNK_PAGES.is_multiple_of(1 << WIDE_ORDER_MAX));
const _: () = assert!(DATA_PAGE_FIRST.is_multiple_of(1 << WIDE_ORDER_MAX));

/// The newest checkpoint and its payload, or why it cannot be read.
pub type Newest = Result<(Checkpoint, Vec<u8>)>;

/// A readable slot, and its payload, or why that cannot be read.
pub type FoundSlot = (Slot, Result<Vec<u8>>);

/// What is found in place of a page of a run, or of a wide block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundPage {
    /// The page or block itself.
    Whole,
    /// A sound block of another allocation or another order.
    Other(Damage),
    /// Zeros: it was never written, or was given back.
    Blank(Damage),
    /// A damaged page or block.
    Damaged(Damage),
}

/// A block as it was found.
type Block = [u8; PAGE_BYTES];

/// Copies of pages in the double-write area, from which torn pages are restored.
pub type Copies = BTreeMap<PageNumber, (BlockHeader, Box<Block>)>;

impl Store {
    /// Opens a store file whatever it holds. Returns its newest checkpoint, or why that cannot be
    /// read. Nothing may be written to it.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened at all.
    pub fn open_damaged(
        directory: &dyn Directory,
        name: &str,
        options: StoreOptions,
    ) -> Result<(Store, Newest)> {
        let file = directory.open(name, OpenMode::EXISTING.read_only())?;
        let slots = match SlotPages::read(&*file, options.keyspace, Purpose::TOOL) {
            Ok(slots) => slots,
            Err(error) => return Ok((Store::open_unread(directory, name, options)?, Err(error))),
        };
        // A file that ends early may still have its checkpoint.
        let checkpoint = slots.newest().checkpoint();
        let store = Store::new(file, options, slots);
        let payload = store.read_payload();
        Ok((store, payload.map(|payload| (checkpoint, payload))))
    }

    /// Opens a store file without reading it. Nothing may be written to it.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened.
    pub fn open_unread(
        directory: &dyn Directory,
        name: &str,
        options: StoreOptions,
    ) -> Result<Store> {
        let file = directory.open(name, OpenMode::EXISTING.read_only())?;
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
        let slots =
            Slots { newest: slot, is_released: false, is_settled: true, damaged: Vec::new() };
        Ok(Store::new(file, options, SlotPages::new(slots)))
    }

    /// Returns where the file ends, if its slots say that it was longer.
    #[must_use]
    pub fn early_end(&self) -> Option<(PageNumber, Damage)> {
        let bytes = self.file.len().ok()?;
        let (slots, _) = self.readable_slots();
        let longest = slots.iter().max_by_key(|slot| slot.end)?;
        let page = u32::try_from(bytes / PAGE_BYTES as u64).ok()?;
        longest.too_long_for(bytes).map(|damage| (PageNumber(page), damage))
    }

    /// Returns the readable slots, the newest first, and why an unreadable one that may have been
    /// newer cannot be read.
    #[must_use]
    pub fn found_slots(&self) -> (Vec<FoundSlot>, Option<Error>) {
        let (mut slots, mut lost) = self.readable_slots();
        // Whether an unreadable slot may have been the newest.
        if SlotPages::read(&*self.file, self.keyspace(), Purpose::TOOL).is_ok() {
            lost = None;
        }
        slots.sort_unstable_by_key(|slot| std::cmp::Reverse(slot.generation));
        let with_payload = |slot| {
            let payload = self.read_payload_of(&slot);
            (slot, payload)
        };
        (slots.into_iter().map(with_payload).collect(), lost)
    }

    /// Returns the readable slots, and why the last one of the others cannot be read.
    fn readable_slots(&self) -> (Vec<Slot>, Option<Error>) {
        let mut slots: Vec<Slot> = Vec::new();
        let mut lost = None;
        for page in (0..SLOT_PAGES).map(PageNumber) {
            let mut buf = AlignedBuf::new(1);
            let read = self.file.read_at(buf.bytes_mut(), page.offset(), Purpose::TOOL);
            let slot = read.and_then(|()| {
                let slot = Slot::decode(buf.page(0), self.keyspace(), page);
                slot.map_err(|damage| damage.at(self.path(), page))
            });
            match slot {
                Ok(slot) if slots.contains(&slot) => {}
                Ok(slot) => slots.push(slot),
                Err(error) => lost = Some(error),
            }
        }
        (slots, lost)
    }

    /// Returns the kind of the first block of a keyspace's file that only engines write, if there
    /// is one. Engines unknown to this program write unknown kinds.
    ///
    /// # Errors
    /// `NotFound` or `Io` when the file cannot be opened or its length cannot be read.
    pub fn kind_of_data(
        directory: &dyn Directory,
        name: &str,
        keyspace: KeyspaceId,
    ) -> Result<Option<BlockKind>> {
        let poison = Arc::new(Poison::new());
        let options = StoreOptions { keyspace, double_write: false, poison };
        let store = Store::open_unread(directory, name, options)?;
        let mut found = None;
        store.each_block(|_, header, _| {
            found = header.ok().map(|header| header.kind).filter(|kind| kind.is_of_engine());
            found.is_none()
        })?;
        Ok(found)
    }

    /// Reads pages of a run from index `from` on, as many as `buf` has, and says of each what was
    /// found.
    pub fn read_found(
        &self,
        run: &PageRun,
        from: u32,
        kind: BlockKind,
        buf: &mut AlignedBuf,
    ) -> Vec<FoundPage> {
        let first = PageNumber(run.first.0.saturating_add(from));
        let unread = self.read_all(first, buf.bytes_mut());
        let pages = (0..).zip(buf.bytes().chunks_exact(PAGE_BYTES));
        pages
            .map(|(index, block)| match unread.get(&index) {
                Some(error) => FoundPage::Damaged(unreadable(error)),
                None => {
                    let page = PageNumber(first.0.saturating_add(index));
                    self.found(page, run.generation, kind, block)
                }
            })
            .collect()
    }

    /// Reads one block of 2^`order` pages, and says what was found.
    ///
    /// # Panics
    /// When `buf` has not just the bytes of such a block.
    pub fn read_found_wide(
        &self,
        page: PageNumber,
        order: u8,
        generation: Generation,
        kind: BlockKind,
        buf: &mut [u8],
    ) -> FoundPage {
        assert_eq!(buf.len(), PAGE_BYTES << order, "bytes of a block of order {order}");
        match self.read_all(page, buf).into_values().next() {
            Some(error) => FoundPage::Damaged(unreadable(&error)),
            None => self.found(page, generation, kind, buf),
        }
    }

    fn found(
        &self,
        page: PageNumber,
        generation: Generation,
        kind: BlockKind,
        block: &[u8],
    ) -> FoundPage {
        let (header, pages) = self.block_at(page, block);
        match header {
            _ if pages * PAGE_BYTES < block.len() && header.is_ok() => {
                let damage = self.header_at(page, block).err();
                FoundPage::Other(damage.unwrap_or_else(|| Damage::new("one block", "another")))
            }
            Ok(header) if kind.reads(header.kind) && header.generation == generation => {
                FoundPage::Whole
            }
            Ok(BlockHeader { kind: other, generation: found, .. }) => {
                FoundPage::Other(Damage::new(
                    format!("a page of kind {kind:?} and generation {generation}"),
                    format!("one of kind {other:?} and generation {found}"),
                ))
            }
            Err(damage) if block.iter().all(|byte| *byte == 0) => FoundPage::Blank(damage),
            Err(damage) => FoundPage::Damaged(damage),
        }
    }

    /// Shows every block after the double-write area, in order: the header of a sound one at its
    /// position, or what is wrong with it, and its bytes, whose length says its order. A damaged
    /// wide block whose header names its place is shown up to its end or the next sound block. A
    /// page of zeros was never written.
    ///
    /// # Errors
    /// `Io` when the file's length cannot be read.
    pub fn show_blocks(
        &self,
        mut show: impl FnMut(PageNumber, Result<BlockHeader, Damage>, &[u8]),
    ) -> Result<()> {
        self.each_block(|page, header, block| {
            show(page, header, block);
            true
        })
    }

    /// Does the same, until `show` has enough.
    fn each_block(
        &self,
        mut show: impl FnMut(PageNumber, Result<BlockHeader, Damage>, &[u8]) -> bool,
    ) -> Result<()> {
        let pages = self.file.len()? / PAGE_BYTES as u64;
        let end = u32::try_from(pages).unwrap_or(u32::MAX);
        let mut buf = AlignedBuf::new(CHUNK_PAGES as usize);
        let mut first = DATA_PAGE_FIRST;
        while first < end {
            let count = CHUNK_PAGES.min(end - first);
            let bytes = &mut buf.bytes_mut()[..count as usize * PAGE_BYTES];
            let unread = self.read_all(PageNumber(first), bytes);
            let mut index = 0;
            while index < count {
                let page = PageNumber(first + index);
                let rest = &bytes[index as usize * PAGE_BYTES..];
                let (header, pages) = self.block_at(page, rest);
                let next = index + pages as u32;
                let header = match unread.range(index..next).next() {
                    Some((_, error)) => Err(unreadable(error)),
                    None => header,
                };
                if !show(page, header, &rest[..pages * PAGE_BYTES]) {
                    return Ok(());
                }
                index = next;
            }
            first += count;
        }
        Ok(())
    }

    /// Reads pages from `first` on. Returns why single ones cannot be read, by their index; these
    /// are zeros.
    fn read_all(&self, first: PageNumber, bytes: &mut [u8]) -> BTreeMap<u32, Error> {
        let mut unread = BTreeMap::new();
        if self.file.read_at(bytes, first.offset(), Purpose::TOOL).is_err() {
            for (index, block) in (0..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
                let page = PageNumber(first.0.saturating_add(index));
                if let Err(error) = self.file.read_at(block, page.offset(), Purpose::TOOL) {
                    block.fill(0);
                    unread.insert(index, error);
                }
            }
        }
        unread
    }

    /// Returns the header of the block that begins at `page`, or what is wrong with it, and the
    /// number of its pages. Of `bytes` any number may be behind it.
    fn block_at(&self, page: PageNumber, bytes: &[u8]) -> (Result<BlockHeader, Damage>, usize) {
        let order = BlockHeader::stored_order(bytes);
        let pages = 1 << order;
        let narrow = &bytes[..PAGE_BYTES];
        if order == 0 || !page.0.is_multiple_of(pages) || bytes.len() < PAGE_BYTES << order {
            return (self.header_at(page, narrow), 1);
        }
        let pages = pages as usize;
        let damage = match BlockHeader::decode(&bytes[..pages * PAGE_BYTES]) {
            Ok(header) => return (self.placed(page, header), pages),
            Err(damage) => damage,
        };
        if !BlockHeader::says_page(narrow, page, self.keyspace()) {
            return (self.header_at(page, narrow), 1);
        }
        // Where it has been, others may be by now.
        let begins = |next: &usize| {
            let page = PageNumber(page.0 + *next as u32);
            self.block_at(page, &bytes[next * PAGE_BYTES..]).0.is_ok()
        };
        (Err(damage), (1..pages).find(begins).unwrap_or(pages))
    }

    /// Reads one data page if it is sound and of this generation, in place or else in `copies`.
    #[must_use]
    pub fn read_salvaged(
        &self,
        page: PageNumber,
        generation: Generation,
        copies: &Copies,
        block: &mut Block,
    ) -> bool {
        let mut buf = AlignedBuf::new(1);
        let read = self.file.read_at(buf.bytes_mut(), page.offset(), Purpose::TOOL);
        let is_it = |header: &BlockHeader| {
            BlockKind::DATA.reads(header.kind) && header.generation == generation
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

    /// Returns the copies in the double-write area, the newest of each page.
    #[must_use]
    pub fn double_written(&self) -> Copies {
        let mut found: Vec<(Age, BlockHeader, Box<Block>)> = Vec::new();
        let mut buf = AlignedBuf::new(1);
        // From behind the slots of an earlier format, which have no copies.
        for number in 2..END_PAGE {
            let offset = PageNumber(number).offset();
            if self.file.read_at(buf.bytes_mut(), offset, Purpose::TOOL).is_err() {
                continue;
            }
            let Ok((header, batch)) = BlockHeader::decode_copy(buf.page(0)) else { continue };
            if BlockKind::DATA.reads(header.kind) && header.keyspace == self.keyspace() {
                BlockHeader::name_batch(buf.page_mut(0), 0);
                found.push(((batch, header.lsn), header, Box::new(*buf.page(0))));
            }
        }
        let oldest = oldest_needed(found.iter().map(|(age, ..)| age.0));
        found.retain(|(age, ..)| age.0 >= oldest);
        found.sort_by_key(|(age, ..)| *age);
        found.into_iter().map(|(_, header, block)| (header.page, (header, block))).collect()
    }

    fn header_at(&self, page: PageNumber, block: &[u8]) -> Result<BlockHeader, Damage> {
        self.placed(page, BlockHeader::decode(block)?)
    }

    fn placed(&self, page: PageNumber, header: BlockHeader) -> Result<BlockHeader, Damage> {
        if header.page != page || header.keyspace != self.keyspace() {
            return Err(Damage::new(
                format!("page {page} of keyspace {}", self.keyspace()),
                format!("page {} of keyspace {} (misdirected)", header.page, header.keyspace),
            ));
        }
        Ok(header)
    }
}

fn unreadable(error: &Error) -> Damage {
    Damage::new("a page that can be read", error)
}
