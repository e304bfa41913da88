//! The double-write area: pages 4 to 127, where a page that will be overwritten in place is written
//! first (rule P18).
//!
//! Two halves of [`HALF_PAGES`] raw copies, used in turn. A batch is copied into a half, synced,
//! and only then written in place; the sync of the next batch covers those in-place writes too, so
//! a half is reused only after the pages it protects are safe. A copy needs no directory: its own
//! block header says where it belongs, and the number of its batch.
//!
//! ```text
//!   batch 1: a b c d   batch 2: b c   batch 3: d       first half:  d3 b1 c1 d1    second half:  b2 c2
//! ```
//!
//! A short batch leaves copies of older ones behind it, so there may be several of one page, in
//! both halves and within one. Their LSNs do not order them: pages of a keyspace without a log bear
//! none, and others bear the same as long as nobody appends.
//!
//! **Crash.** A page torn in place fails its checksum and is restored from a copy with the same
//! keyspace, page and generation, of one of the last two batches; of several the one of the latest.
//! A page that is whole keeps what it says. A page that fails its checksum and was in neither batch
//! was not torn: its copies may be older than what was written last, and it stays damaged (P28).
//!
//! So an opening writes torn pages only. What else is *due* from the life before waits until
//! something is allocated, written in place or synced: all pages of the last two batches are
//! written once more, as they are, because the sync that was to keep them may have failed, and then
//! no later one does, unless they are written again (P21). Then both halves are zeroed, so that a
//! copy of one life never meets a page of the next. In files of an earlier format the area begins
//! at page 2.
//!
//! **Invariant**: of two copies the one with the higher number is the later one. When numbers run
//! out, the pages in place are synced and both halves are zeroed before they begin again.

use std::collections::BTreeMap;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, KeyspaceId, Lsn, PageNumber, Result};
use spinney_io::{AlignedBuf, File, Purpose, Transfer};

use crate::header::{BlockHeader, BlockKind};
use crate::slot::SLOT_PAGES;

/// First page of the area.
pub const FIRST_PAGE: u32 = SLOT_PAGES;
/// First page of the area in files of an earlier format, whose slots have no copies.
const FIRST_PAGE_RELEASED: u32 = 2;
/// Pages of each half: the most that one batch protects.
pub const HALF_PAGES: usize = 62;
/// First page after the area.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
pub const END_PAGE: u32 = FIRST_PAGE + 2 * HALF_PAGES as u32;

/// Number of a copy's batch, 0 in files without numbers, and its LSN. The greater is the later.
pub(crate) type Age = (u16, Lsn);

/// The halves of one store file. Not thread-safe: the store holds it under a lock for a whole
/// batch.
#[derive(Debug, Default)]
pub struct DoubleWrite {
    second_half: bool,
    /// Number of the last batch.
    number: u16,
    /// Work that the previous life left.
    due: Option<Due>,
}

#[derive(Debug)]
struct Due {
    /// Pages in place of its last two batches, in ascending order.
    pages: Vec<PageNumber>,
    /// First page of the area.
    first: u32,
}

impl DoubleWrite {
    /// Returns whether no number is left for another batch.
    pub fn is_used_up(&self) -> bool {
        self.number == u16::MAX
    }

    /// Does what is due from the previous life, if anything. `sync` is as for
    /// [`DoubleWrite::begin_anew`]; `wrote` gets the result of the writing.
    ///
    /// # Errors
    /// `Io` from reading, and it is due as before; what `wrote` makes of an error.
    pub fn end_recovery(
        &mut self,
        file: &dyn File,
        sync: impl Fn() -> Result<()>,
        wrote: impl FnOnce(Result<()>) -> Result<()>,
    ) -> Result<()> {
        let Some(Due { pages, first }) = &self.due else { return Ok(()) };
        let mut blocks = AlignedBuf::new(pages.len().max(1));
        let places = || pages.iter().map(|page| page.offset());
        let all = blocks.bytes_mut().chunks_exact_mut(PAGE_BYTES).zip(places());
        let mut reads: Vec<_> = all.map(|(block, at)| Transfer::read(block, at)).collect();
        file.transfer(&mut reads, Purpose::RECOVERY);
        reads.into_iter().try_for_each(|read| read.result)?;
        let mut area = AlignedBuf::new((END_PAGE - first) as usize);
        file.read_at(area.bytes_mut(), PageNumber(*first).offset(), Purpose::RECOVERY)?;
        let all = blocks.bytes().chunks_exact(PAGE_BYTES).zip(places());
        let mut writes: Vec<_> = all.map(|(block, at)| Transfer::write(block, at)).collect();
        file.transfer(&mut writes, Purpose::RECOVERY);
        let written = writes.into_iter().try_for_each(|write| write.result);
        let clear = |()| clear(file, *first, &mut area, Purpose::RECOVERY, sync);
        wrote(written.and_then(clear))?;
        self.due = None;
        Ok(())
    }

    /// Returns whether something is due from the previous life.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Restarts with the first number and both halves empty. `sync` makes everything written to the
    /// file durable, and poisons if that fails.
    ///
    /// # Errors
    /// `Full` or `Io`, and no number is left as before; what `sync` answers.
    pub fn begin_anew(&mut self, file: &dyn File, sync: impl Fn() -> Result<()>) -> Result<()> {
        let mut area = AlignedBuf::new(2 * HALF_PAGES);
        file.read_at(area.bytes_mut(), PageNumber(FIRST_PAGE).offset(), Purpose::DOUBLE_WRITE)?;
        clear(file, FIRST_PAGE, &mut area, Purpose::DOUBLE_WRITE, sync)?;
        self.number = 0;
        Ok(())
    }

    /// Writes at most [`HALF_PAGES`] sealed pages to the next half. They lie at an aligned address,
    /// and are unchanged afterwards. The caller syncs the file before it writes any of them in
    /// place, and poisons if that fails. A number must be left.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn protect(&mut self, file: &dyn File, pages: &mut [u8]) -> Result<()> {
        debug_assert!(pages.len() <= HALF_PAGES * PAGE_BYTES, "more than a half holds");
        let half = if self.second_half { HALF_PAGES } else { 0 };
        let offset = (FIRST_PAGE as usize + half) * PAGE_BYTES;
        self.number += 1;
        name_batch(pages, self.number);
        let written = file.write_at(pages, offset as u64, Purpose::DOUBLE_WRITE);
        name_batch(pages, 0);
        written?;
        self.second_half = !self.second_half;
        Ok(())
    }
}

fn name_batch(pages: &mut [u8], number: u16) {
    let pages = pages.as_chunks_mut().0.iter_mut();
    pages.for_each(|page| BlockHeader::name_batch(page, number));
}

/// Makes the pages in place durable, and then empties the area, which begins at page `first` and
/// whose content is in the buffer. Empty pages are not written, because they may have no space on
/// the disk.
fn clear(
    file: &dyn File,
    first: u32,
    area: &mut AlignedBuf,
    purpose: Purpose,
    sync: impl Fn() -> Result<()>,
) -> Result<()> {
    sync()?;
    for (number, page) in (first..).zip(area.bytes_mut().chunks_exact_mut(PAGE_BYTES)) {
        if page.iter().any(|byte| *byte != 0) {
            page.fill(0);
            file.write_at(page, PageNumber(number).offset(), purpose)?;
        }
    }
    sync()
}

/// Returns the oldest batch whose copies may be needed, of those that are `found` in the area. When
/// a batch is in the area and synced, the pages in place of all batches but the one before it are
/// on stable storage. Files without numbers of batches have only 0.
pub(crate) fn oldest_needed(found: impl Iterator<Item = u16>) -> u16 {
    found.max().unwrap_or(0).saturating_sub(1)
}

/// Restores torn pages. `owned` returns the generation of an owned page, or `None`. Returns the
/// area, with what is due, and the number of restored pages.
///
/// # Errors
/// `Io` from reading or writing; `Full`.
pub fn recover(
    file: &dyn File,
    keyspace: KeyspaceId,
    is_released: bool,
    owned: impl Fn(PageNumber) -> Option<Generation>,
) -> Result<(DoubleWrite, usize)> {
    if file.len()? < PageNumber(END_PAGE).offset() {
        return Ok((DoubleWrite::default(), 0));
    }
    let first = if is_released { FIRST_PAGE_RELEASED } else { FIRST_PAGE };
    let pages = (END_PAGE - first) as usize;
    let mut area = AlignedBuf::new(pages);
    file.read_at(area.bytes_mut(), PageNumber(first).offset(), Purpose::RECOVERY)?;
    let found: Vec<(usize, BlockHeader, u16)> = (0..pages)
        .filter_map(|index| {
            let (header, batch) = BlockHeader::decode_copy(area.page(index)).ok()?;
            Some((index, header, batch))
        })
        .collect();
    let oldest = oldest_needed(found.iter().map(|(_, _, batch)| *batch));
    // In page order, so that a simulated run does the same every time.
    let mut copies: BTreeMap<PageNumber, (Age, usize)> = BTreeMap::new();
    for (index, header, batch) in &found {
        let is_data = BlockKind::DATA.reads(header.kind);
        // Other blocks name no batch; a wide one was misdirected here.
        if is_data {
            BlockHeader::name_batch(area.page_mut(*index), 0);
        }
        let ours = is_data
            && header.keyspace == keyspace
            && *batch >= oldest
            && owned(header.page) == Some(header.generation);
        if ours {
            let age = (*batch, header.lsn);
            let best = copies.entry(header.page).or_insert((age, *index));
            if age > best.0 {
                *best = (age, *index);
            }
        }
    }
    let restored = restore(file, keyspace, &area, &copies, owned)?;
    let due = Due { pages: copies.into_keys().collect(), first };
    Ok((
        DoubleWrite { due: (!found.is_empty()).then_some(due), ..DoubleWrite::default() },
        restored,
    ))
}

fn restore(
    file: &dyn File,
    keyspace: KeyspaceId,
    area: &AlignedBuf,
    copies: &BTreeMap<PageNumber, (Age, usize)>,
    owned: impl Fn(PageNumber) -> Option<Generation>,
) -> Result<usize> {
    let mut restored = 0;
    let mut page = AlignedBuf::new(1);
    for (number, (_, index)) in copies {
        let Some(generation) = owned(*number) else { continue };
        file.read_at(page.bytes_mut(), number.offset(), Purpose::RECOVERY)?;
        let whole = BlockHeader::check(
            page.page(0),
            file.path(),
            BlockKind::DATA,
            keyspace,
            *number,
            generation,
        );
        if whole.is_err() {
            let mut write = [Transfer::write(area.page(*index), number.offset())];
            file.transfer(&mut write, Purpose::RECOVERY);
            let [write] = write;
            write.result?;
            restored += 1;
        }
    }
    Ok(restored)
}
