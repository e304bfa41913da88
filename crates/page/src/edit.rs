//! Changes of a slotted page.

use spinney_base::ValueRef;
use spinney_base::limits::PAGE_BYTES;

use crate::layout::{
    COUNT, HEAP_LIVE, HEAP_START, HINT_COUNT, HINTS, LARGE, ORIGIN_LENGTH, PREFIX_LENGTH, Page,
    SLOT_BYTES, SLOTS, head_of, set_u16, slot_at, u16_at,
};
use crate::view::PageView;

/// Result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Put {
    /// The record is in the page.
    Done,
    /// It does not fit; the page is unchanged.
    Full,
}

/// Changes a page that a [`PageView`] parsed or that [`PageEditor::format`] began. Dropping it
/// updates the hints. The block header is untouched: the writer of the page seals it.
#[derive(Debug)]
pub struct PageEditor<'a> {
    page: &'a mut Page,
}

impl<'a> PageEditor<'a> {
    /// Formats an empty page for keys that all begin with `prefix`. The page stores `origin`, which
    /// says where it belongs, and which takes space from the records.
    ///
    /// # Panics
    /// When the prefix is longer than a key may be, or both together longer than a page.
    pub fn format(page: &'a mut [u8; PAGE_BYTES], prefix: &[u8], origin: &[u8]) -> Self {
        page.fill(0);
        let prefix_start = PAGE_BYTES - prefix.len();
        let heap_start = prefix_start - origin.len();
        page[prefix_start..].copy_from_slice(prefix);
        page[heap_start..prefix_start].copy_from_slice(origin);
        set_u16(page, HEAP_START, heap_start);
        set_u16(page, HEAP_LIVE, prefix.len() + origin.len());
        set_u16(page, PREFIX_LENGTH, prefix.len());
        set_u16(page, ORIGIN_LENGTH, origin.len());
        PageEditor { page }
    }

    /// Edits a page that [`PageView::parse`] accepted.
    pub fn edit(page: &'a mut [u8; PAGE_BYTES]) -> Self {
        PageEditor { page }
    }

    /// Inserts or replaces a record.
    ///
    /// # Panics
    /// When the key does not begin with the page's prefix: it belongs to another page.
    pub fn put<'v>(&mut self, key: &[u8], value: impl Into<ValueRef<'v>>) -> Put {
        let value = value.into();
        match self.view().search_without_hints(key) {
            Ok(index) => self.replace(index, value),
            Err(index) => {
                let suffix =
                    key.strip_prefix(self.view().prefix()).expect("the key belongs to this page");
                let size = suffix.len() + value.len();
                if !self.make_room(size, SLOT_BYTES) {
                    return Put::Full;
                }
                let count = self.count();
                self.page.copy_within(slot_at(index)..slot_at(count), slot_at(index + 1));
                set_u16(self.page, COUNT, count + 1);
                self.fill_slot(index, suffix, value);
                self.add_live(size);
                Put::Done
            }
        }
    }

    /// Returns whether the page holds a key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.view().search_without_hints(key).is_ok()
    }

    /// Removes a record. Returns whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let Ok(index) = self.view().search_without_hints(key) else { return false };
        let (_, suffix, value) = self.view().slot(index);
        let count = self.count();
        self.page.copy_within(slot_at(index + 1)..slot_at(count), slot_at(index));
        self.page[slot_at(count - 1)..slot_at(count)].fill(0);
        set_u16(self.page, COUNT, count - 1);
        let live = u16_at(self.page, HEAP_LIVE) - suffix - value;
        set_u16(self.page, HEAP_LIVE, live);
        true
    }

    fn replace(&mut self, index: usize, value: ValueRef<'_>) -> Put {
        let (offset, suffix_length, old) = self.view().slot(index);
        if value.len() <= old {
            let at = offset + suffix_length;
            self.page[at..at + value.len()].copy_from_slice(value.bytes);
            set_u16(self.page, slot_at(index) + 4, length_of(value));
            set_u16(self.page, HEAP_LIVE, u16_at(self.page, HEAP_LIVE) - old + value.len());
            return Put::Done;
        }
        // The old record becomes dead space. When only compaction makes space, it must not be
        // carried along.
        let live_without = u16_at(self.page, HEAP_LIVE) - suffix_length - old;
        let size = suffix_length + value.len();
        if SLOTS + self.count() * SLOT_BYTES + live_without + size > PAGE_BYTES {
            return Put::Full;
        }
        let suffix = self.view().suffix(index).to_vec();
        set_u16(self.page, slot_at(index) + 2, 0);
        set_u16(self.page, slot_at(index) + 4, 0);
        set_u16(self.page, HEAP_LIVE, live_without);
        let fits = self.make_room(size, 0);
        debug_assert!(fits, "the sizes were compared above");
        self.fill_slot(index, &suffix, value);
        self.add_live(size);
        Put::Done
    }

    /// Makes sure that `size` heap bytes and `slots` slot bytes are free in the middle, by
    /// compaction if that helps.
    fn make_room(&mut self, size: usize, slots: usize) -> bool {
        let slots_end = SLOTS + self.count() * SLOT_BYTES + slots;
        if slots_end + size <= u16_at(self.page, HEAP_START) {
            return true;
        }
        if slots_end + u16_at(self.page, HEAP_LIVE) + size > PAGE_BYTES {
            return false;
        }
        self.compact();
        true
    }

    /// Moves the records together at the end of the page, in their present order of keys. All
    /// header fields but the heap start stay.
    fn compact(&mut self) {
        let old = *self.page;
        let view = PageView::trusted(&old);
        let mut heap_start = PAGE_BYTES - u16_at(&old, PREFIX_LENGTH) - u16_at(&old, ORIGIN_LENGTH);
        for index in 0..view.len() {
            let (offset, suffix, value) = view.slot(index);
            heap_start -= suffix + value;
            let record = &old[offset..offset + suffix + value];
            self.page[heap_start..heap_start + record.len()].copy_from_slice(record);
            set_u16(self.page, slot_at(index), heap_start);
        }
        let free_from = slot_at(view.len());
        self.page[free_from..heap_start].fill(0);
        set_u16(self.page, HEAP_START, heap_start);
    }

    fn fill_slot(&mut self, index: usize, suffix: &[u8], value: ValueRef<'_>) {
        let offset = u16_at(self.page, HEAP_START) - suffix.len() - value.len();
        self.page[offset..offset + suffix.len()].copy_from_slice(suffix);
        self.page[offset + suffix.len()..][..value.len()].copy_from_slice(value.bytes);
        set_u16(self.page, HEAP_START, offset);
        let at = slot_at(index);
        set_u16(self.page, at, offset);
        set_u16(self.page, at + 2, suffix.len());
        set_u16(self.page, at + 4, length_of(value));
        self.page[at + 6..at + 10].copy_from_slice(&head_of(suffix).to_le_bytes());
    }

    /// Returns a view of the page. Its hints are out of date until the editor is dropped.
    fn view(&self) -> PageView<'_> {
        PageView::trusted(self.page)
    }

    fn add_live(&mut self, bytes: usize) {
        set_u16(self.page, HEAP_LIVE, u16_at(self.page, HEAP_LIVE) + bytes);
    }

    fn count(&self) -> usize {
        u16_at(self.page, COUNT)
    }

    fn refresh_hints(&mut self) {
        for index in 0..HINT_COUNT {
            let hint = self.view().hint_for(index);
            self.page[HINTS + index * 4..][..4].copy_from_slice(&hint.to_le_bytes());
        }
    }
}

/// The length field of a slot with this value.
fn length_of(value: ValueRef<'_>) -> usize {
    value.len() | if value.large { LARGE } else { 0 }
}

impl Drop for PageEditor<'_> {
    fn drop(&mut self) {
        self.refresh_hints();
    }
}
