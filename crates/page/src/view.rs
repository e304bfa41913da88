//! Reads of a slotted page.

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use spinney_base::ValueRef;
use spinney_base::limits::PAGE_BYTES;
use spinney_extent::header::Damage;

use crate::layout::{
    COUNT, HEAP_LIVE, HEAP_START, HINT_COUNT, HINTED_COUNT_MIN, HINTS, LARGE, ORIGIN_LENGTH,
    PREFIX_LENGTH, Page, RESERVED, SLOT_BYTES, SLOTS, head_of, hinted_slot, slot_at, u16_at,
    u32_at,
};

/// A view of a page whose layout was checked. Cheap to copy.
#[derive(Clone, Copy)]
pub struct PageView<'a> {
    page: &'a Page,
}

impl<'a> PageView<'a> {
    /// Checks every invariant of the layout. The caller checks the block header.
    ///
    /// # Errors
    /// What was expected and found.
    pub fn parse(page: &'a [u8; PAGE_BYTES]) -> Result<PageView<'a>, Damage> {
        let view = PageView { page };
        let heap_start = u16_at(page, HEAP_START);
        let prefix_length = u16_at(page, PREFIX_LENGTH);
        let count = view.len();
        let slots_end = SLOTS + count * SLOT_BYTES;
        let origin_length = u16_at(page, ORIGIN_LENGTH);
        let heap_end = PAGE_BYTES.checked_sub(prefix_length + origin_length);
        let Some(heap_end) = heap_end.filter(|end| (slots_end..=*end).contains(&heap_start)) else {
            return Err(Damage::new(
                "slots, heap, origin and prefix in this order",
                format!(
                    "slots to {slots_end}, heap from {heap_start}, origin of {origin_length}, \
                     prefix of {prefix_length}"
                ),
            ));
        };
        if page[RESERVED..HINTS].iter().any(|byte| *byte != 0) {
            return Err(Damage::new("zero in reserved bytes", "something else"));
        }
        let mut live = prefix_length + origin_length;
        let mut before: Option<(u32, &[u8])> = None;
        for index in 0..count {
            let (offset, suffix, value) = view.slot(index);
            if offset < heap_start || offset + suffix + value > heap_end {
                return Err(Damage::new(
                    format!("record {index} inside the heap"),
                    format!("{} bytes at {offset}", suffix + value),
                ));
            }
            live += suffix + value;
            let (head, suffix) = (view.head(index), &page[offset..offset + suffix]);
            // Heads that are right and ascend are of suffixes that do.
            let ascending = before.is_none_or(|(head_before, suffix_before)| {
                head_before < head || head_before == head && suffix_before < suffix
            });
            if !ascending || head != head_of(suffix) {
                return Err(Damage::new(
                    format!("key {index} above the one before"),
                    "another order",
                ));
            }
            before = Some((head, suffix));
        }
        if live != u16_at(page, HEAP_LIVE) {
            return Err(Damage::new(format!("{live} live heap bytes"), u16_at(page, HEAP_LIVE)));
        }
        for index in 0..HINT_COUNT {
            let expected = view.hint_for(index);
            let found = u32_at(page, HINTS + index * 4);
            if found != expected {
                return Err(Damage::new(
                    format!("hint {index} {expected:08x}"),
                    format!("{found:08x}"),
                ));
            }
        }
        Ok(view)
    }

    /// Views a page that [`PageView::parse`] accepted before, or that a
    /// [`PageEditor`](crate::PageEditor) made, without checks. Any other bytes may cause a panic
    /// later.
    #[must_use]
    pub fn trusted(page: &'a [u8; PAGE_BYTES]) -> PageView<'a> {
        PageView { page }
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        u16_at(self.page, COUNT)
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the prefix of all keys.
    #[must_use]
    pub fn prefix(&self) -> &'a [u8] {
        &self.page[PAGE_BYTES - u16_at(self.page, PREFIX_LENGTH)..]
    }

    /// Returns the origin that [`PageEditor::format`](crate::PageEditor::format) stored.
    #[must_use]
    pub fn origin(&self) -> &'a [u8] {
        let end = PAGE_BYTES - u16_at(self.page, PREFIX_LENGTH);
        &self.page[end - u16_at(self.page, ORIGIN_LENGTH)..end]
    }

    /// Returns the bytes that records, their slots, the origin and the prefix use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        u16_at(self.page, HEAP_LIVE) + self.len() * SLOT_BYTES
    }

    /// Returns the part of key `index` after the prefix.
    ///
    /// # Panics
    /// When there is no such record.
    #[must_use]
    pub fn suffix(&self, index: usize) -> &'a [u8] {
        let (offset, suffix, _) = self.slot(index);
        &self.page[offset..offset + suffix]
    }

    /// Returns key `index`, whole.
    ///
    /// # Panics
    /// When there is no such record.
    #[must_use]
    pub fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    /// Returns value `index`, or the pointer to it.
    ///
    /// # Panics
    /// When there is no such record.
    #[must_use]
    pub fn value(&self, index: usize) -> ValueRef<'a> {
        let (offset, suffix, value) = self.slot(index);
        let bytes = &self.page[offset + suffix..offset + suffix + value];
        let large = u16_at(self.page, slot_at(index) + 4) & LARGE != 0;
        ValueRef { bytes, large }
    }

    /// Returns the index of `key`.
    ///
    /// # Errors
    /// The index of the first greater key when `key` is absent; this is an answer, not a failure.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_in(key, |head| self.hinted_range(head))
    }

    /// As [`PageView::search`], for a page whose hints are out of date.
    pub(crate) fn search_without_hints(&self, key: &[u8]) -> Result<usize, usize> {
        self.search_in(key, |_| (0, self.len()))
    }

    fn search_in(
        &self,
        key: &[u8],
        range: impl FnOnce(u32) -> (usize, usize),
    ) -> Result<usize, usize> {
        let prefix = self.prefix();
        let Some(suffix) = key.strip_prefix(prefix) else {
            // A key outside the page's range: before or after all of it.
            return Err(if key < prefix { 0 } else { self.len() });
        };
        let head = head_of(suffix);
        let (mut low, mut high) = range(head);
        while low < high {
            let middle = usize::midpoint(low, high);
            let order = self.head(middle).cmp(&head).then_with(|| self.suffix(middle).cmp(suffix));
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns the indexes of the records in a range of keys.
    #[must_use]
    pub fn range(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<usize> {
        let at = |key: &[u8], after: bool| match self.search(key) {
            Ok(index) => index + usize::from(after),
            Err(index) => index,
        };
        let start = match lower {
            Bound::Included(key) => at(key, false),
            Bound::Excluded(key) => at(key, true),
            Bound::Unbounded => 0,
        };
        let end = match upper {
            Bound::Included(key) => at(key, true),
            Bound::Excluded(key) => at(key, false),
            Bound::Unbounded => self.len(),
        };
        start..end.max(start)
    }

    /// Returns the value of `key`, or the pointer to it.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<ValueRef<'a>> {
        self.search(key).ok().map(|index| self.value(index))
    }

    fn hinted_range(&self, head: u32) -> (usize, usize) {
        let count = self.len();
        if count < HINTED_COUNT_MIN {
            return (0, count);
        }
        let hints = (0..HINT_COUNT).map(|index| u32_at(self.page, HINTS + index * 4));
        let below = hints.clone().take_while(|hint| *hint < head).count();
        let not_above = hints.take_while(|hint| *hint <= head).count();
        let low = if below == 0 { 0 } else { hinted_slot(below - 1, count) };
        let high = if not_above == HINT_COUNT { count } else { hinted_slot(not_above, count) };
        (low, high)
    }

    /// Returns what hint `index` should be.
    pub(crate) fn hint_for(&self, index: usize) -> u32 {
        let count = self.len();
        if count < HINTED_COUNT_MIN { 0 } else { self.head(hinted_slot(index, count)) }
    }

    pub(crate) fn head(&self, index: usize) -> u32 {
        u32_at(self.page, slot_at(index) + 6)
    }

    /// Offset, suffix length, value length.
    pub(crate) fn slot(&self, index: usize) -> (usize, usize, usize) {
        let at = slot_at(index);
        (u16_at(self.page, at), u16_at(self.page, at + 2), u16_at(self.page, at + 4) & !LARGE)
    }
}

impl std::fmt::Debug for PageView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageView({} records, {} bytes used)", self.len(), self.used_bytes())
    }
}
