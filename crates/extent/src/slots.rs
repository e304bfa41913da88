//! The four slot pages of an open store file: which slot counts, and the order in which pages are
//! written (rules P14 and P28).
//!
//! A slot is written into its copy, synced, then into its own page, and synced:
//!
//! ```text
//!   copy of 1    page 1      what a crash here leaves
//!   ---------    ------      ------------------------
//!   torn         n - 1       slot n in the other pair counts
//!   n + 1        torn        slot n + 1 counts: its copy is whole
//!   n + 1        n + 1       n + 1 is promised
//! ```
//!
//! **Invariants**
//! 1. Of each pair at least one page holds a slot at any moment, so a pair without any was damaged.
//! 2. A checkpoint is promised only once both pages of its pair hold its slot. So no single damaged
//!    page hides it. The one exception is a file system that needs room for a write over what is
//!    there, and has none for the second page: that page is *due*, and the next slot waits for it.
//! 3. What a slot found in its copy alone names is not relied on before the slot was written once
//!    more: its sync may have failed, and then what can be read is not on stable storage, and no
//!    later sync puts it there (rules P9 and P21). Where its own page was written, were it torn by
//!    that, its copy was synced before. Its own page may be what a sync that failed was to keep, so
//!    it is written once more before a slot goes to the other pair.
//! 4. In a file of an earlier format both pairs are of the new one before a checkpoint is promised:
//!    a program of that format then refuses the file, where it would fall back to an older slot.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{KeyspaceId, PageNumber, Result};
use spinney_io::{AlignedBuf, File, Purpose};

use crate::header::Damage;
use crate::slot::{SLOT_PAGES, Slot, Slots};

/// State of the slot pages of an open file. The store holds it under a lock while it writes any of
/// them.
#[derive(Debug)]
pub(crate) struct SlotPages {
    found: Slots,
    /// Pages to be written before the next slot, and with what: the last one first.
    due: Vec<(PageNumber, Slot)>,
    /// The page whose writing failed, which stopped the store, and the slot that it may hold since.
    doubtful: Option<(PageNumber, Slot)>,
}

/// Restores slot pages without a slot, where the others show which slot they should hold. It is for
/// a copy of a store file that is not open.
///
/// # Errors
/// `Corruption` when the newest slot is damaged, or may be; `Full` or `Io`.
pub fn mend_copied_slots(file: &dyn File, keyspace: KeyspaceId) -> Result<()> {
    SlotPages::read(file, keyspace, Purpose::TOOL)?.write_due(|slot, page| {
        let mut buf = AlignedBuf::new(1);
        slot.encode(keyspace, page, buf.page_mut(0));
        file.write_at(buf.bytes(), page.offset(), Purpose::TOOL)?;
        file.sync(Purpose::TOOL)
    })
}

impl SlotPages {
    pub(crate) fn new(found: Slots) -> SlotPages {
        let newest = &found.newest;
        let [page, copy] = [Slot::page(newest.generation), Slot::copy_page(newest.generation)];
        let mut due: Vec<(PageNumber, Slot)> = Vec::new();
        if !found.is_released {
            due.push((page, newest.clone()));
            if !found.is_settled {
                due.push((copy, newest.clone()));
            }
        }
        for (damaged, slot, _) in &found.damaged {
            if let Some(slot) = slot
                && due.iter().all(|(page, _)| page != damaged)
            {
                due.push((*damaged, slot.clone()));
            }
        }
        SlotPages { found, due, doubtful: None }
    }

    /// Reads the slot pages of a file.
    ///
    /// # Errors
    /// `Corruption` when the newest slot is damaged, or may be; `Io`.
    pub(crate) fn read(
        file: &dyn File,
        keyspace: KeyspaceId,
        purpose: Purpose,
    ) -> Result<SlotPages> {
        let mut buf = AlignedBuf::new(SLOT_PAGES as usize);
        // A file of an earlier format that never held data has but two pages.
        let pages = (file.len()? / PAGE_BYTES as u64).clamp(2, u64::from(SLOT_PAGES));
        #[expect(clippy::cast_possible_truncation, reason = "four pages at most")]
        file.read_at(&mut buf.bytes_mut()[..pages as usize * PAGE_BYTES], 0, purpose)?;
        let blocks = [0, 1, 2, 3].map(|page| buf.page(page));
        let found = Slots::choose(blocks, keyspace);
        found.map(SlotPages::new).map_err(|(page, damage)| damage.at(file.path(), page))
    }

    /// Returns the slot that counts.
    pub(crate) fn newest(&self) -> &Slot {
        &self.found.newest
    }

    /// Returns whether the newest slot was known to be on stable storage when it was read
    /// (invariant 3).
    pub(crate) fn is_settled(&self) -> bool {
        self.found.is_settled
    }

    /// Returns whether the file has format version 1, whose slots have no copies.
    pub(crate) fn is_released(&self) -> bool {
        self.found.is_released
    }

    /// Checks the file against the known state. Returns the slot that counts in the file. It may be
    /// the one whose writing failed: that one is whole, whether or not it is durable.
    ///
    /// # Errors
    /// A page that should hold a slot, and holds none or another one.
    pub(crate) fn check<'s>(
        &self,
        stored: &'s SlotPages,
    ) -> Result<&'s Slot, (PageNumber, Damage)> {
        let torn = self.doubtful.as_ref().map(|(page, _)| *page);
        let mut damaged = stored.found.damaged.iter();
        if let Some((page, _, damage)) = damaged.find(|(page, ..)| Some(*page) != torn) {
            return Err((*page, damage.clone()));
        }
        let (newest, found) = (self.newest(), stored.newest());
        let failed = self.doubtful.as_ref().map(|(_, slot)| slot);
        if found != newest && Some(found) != failed {
            let expected = format!("slot generation {}", newest.generation);
            return Err((Slot::page(newest.generation), Damage::new(expected, found.generation)));
        }
        Ok(found)
    }

    /// Returns whether an interrupted write of a slot may have left the pages as they were found:
    /// its copy torn before its page was touched, or its page torn and its copy whole.
    pub(crate) fn may_be_torn(&self) -> bool {
        let newest = self.found.newest.generation;
        let mut damaged = self.found.damaged.iter();
        damaged.any(|(page, slot, _)| {
            let is_copy = page.0 >= 2;
            slot.as_ref().is_some_and(|slot| is_copy != (slot.generation == newest))
        })
    }

    /// Writes pages that are due. `write` writes a slot into a page and makes it durable.
    ///
    /// # Errors
    /// Errors of `write`.
    pub(crate) fn write_due(
        &mut self,
        write: impl Fn(&Slot, PageNumber) -> Result<()>,
    ) -> Result<()> {
        while let Some((page, slot)) = self.due.last().cloned() {
            self.write(&slot, page, &write)?;
            self.due.pop();
        }
        Ok(())
    }

    fn write(
        &mut self,
        slot: &Slot,
        page: PageNumber,
        write: &impl Fn(&Slot, PageNumber) -> Result<()>,
    ) -> Result<()> {
        let written = write(slot, page);
        if written.as_ref().is_err_and(|error| !error.is_full()) {
            self.doubtful.get_or_insert_with(|| (page, slot.clone()));
        }
        written
    }

    /// Makes `next` the newest slot.
    ///
    /// # Errors
    /// Errors of `write`. After `Full`, the slot before still counts.
    pub(crate) fn put(
        &mut self,
        next: Slot,
        write: impl Fn(&Slot, PageNumber) -> Result<()>,
    ) -> Result<()> {
        self.write_due(&write)?;
        self.write(&next, Slot::copy_page(next.generation), &write)?;
        let page = Slot::page(next.generation);
        let before = std::mem::replace(&mut self.found.newest, next);
        if std::mem::take(&mut self.found.is_released) {
            let generation = before.generation;
            self.due.push((Slot::page(generation), before.clone()));
            self.due.push((Slot::copy_page(generation), before));
        }
        self.due.push((page, self.found.newest.clone()));
        match self.write_due(write) {
            // The copy is durable, so the new slot counts.
            Err(error) if error.is_full() => Ok(()),
            written => written,
        }
    }
}
