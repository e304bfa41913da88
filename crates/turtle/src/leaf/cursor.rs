//! Cursors: a leaf's items in order, either way, reading only the pages that they fill.
//!
//! A cursor has copies of a few pages of keys and of values and holds nothing of the cache between calls. It
//! reads the pages that the item at hand lies in; the longer it has read the more it reads ahead,
//! so that a short scan reads nothing for nothing and a long one reads large pieces. Who knows how many
//! records he will ask for says so ([`LeafCursor::expect`]), and their values come in one piece. Who
//! does not ask for values causes no page of them to be read.

use std::cell::RefCell;
use std::ops::{Bound, Range};
use std::sync::Arc;

use spinney_base::{Result, ValueRef};
use spinney_engine::Direction;
use spinney_extent::header::Damage;
use spinney_io::Purpose;

use super::Leaf;
use super::format::{KeyPage, PAYLOAD, Section};
use crate::run::Op;

/// A cursor has used so many pages of a section before it reads ahead; then it reads a quarter of
/// what it has used.
const PAGES_BEFORE_AHEAD: u32 = 8;
const AHEAD_SHARE: u32 = 4;
/// Most pages that are read ahead: 256 KiB.
const AHEAD_MAX: u32 = 64;

/// Most pages that are read because of what is expected.
const EXPECTED_PAGES_MAX: u32 = 16;

/// A place in a leaf, or beyond its end.
#[derive(Debug)]
pub(crate) struct LeafCursor {
    leaf: Arc<Leaf>,
    direction: Direction,
    keys: Window,
    values: Window,
    /// The page of keys, its items, and which of them this is.
    page: u32,
    items: usize,
    index: usize,
    /// The item at hand; without meaning beyond the end.
    key: Vec<u8>,
    op: Op,
    value: u64,
    value_length: usize,
    is_beyond: bool,
    /// So many records will be asked for, this one among them.
    expected: usize,
}

impl LeafCursor {
    /// A cursor at the first item at or behind `from`, in the direction.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn new(
        leaf: &Arc<Leaf>,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<LeafCursor> {
        let last = leaf.description().key_pages - 1;
        let (item, page) = match (direction, from) {
            (Direction::Forward, from) => leaf.lower_bound_of(from)?,
            (Direction::Reverse, Bound::Unbounded) => (leaf.description().items, last),
            (Direction::Reverse, Bound::Included(key)) => {
                leaf.lower_bound_of(Bound::Excluded(key))?
            }
            (Direction::Reverse, Bound::Excluded(key)) => {
                leaf.lower_bound_of(Bound::Included(key))?
            }
        };
        let item = match direction {
            Direction::Forward => Some(item),
            Direction::Reverse => item.checked_sub(1),
        };
        let mut cursor = LeafCursor {
            leaf: Arc::clone(leaf),
            direction,
            keys: Window::new(Section::Keys),
            values: Window::new(Section::Values),
            page: 0,
            items: 0,
            index: 0,
            key: Vec::new(),
            op: Op::Delete,
            value: 0,
            value_length: 0,
            is_beyond: true,
            expected: 0,
        };
        if let Some(item) = item.filter(|item| *item < leaf.description().items) {
            cursor.enter_at(page, item)?;
            cursor.take_item()?;
        }
        Ok(cursor)
    }

    /// Goes to an item that is in this page, or the one next to it.
    fn enter_at(&mut self, page: u32, item: u32) -> Result<()> {
        self.enter(page)?;
        let first = self.key_page()?.first_item;
        if item < first && page > 0 {
            self.enter(page - 1)?;
        } else if item as usize >= first as usize + self.items
            && page + 1 < self.leaf.description().key_pages
        {
            self.enter(page + 1)?;
        }
        let index = item.checked_sub(self.key_page()?.first_item).map(|index| index as usize);
        let Some(index) = index.filter(|index| *index < self.items) else {
            self.is_beyond = true;
            return Err(self.damaged(Damage::new(format!("item {item}"), "others")));
        };
        self.index = index;
        Ok(())
    }

    /// The key at the place; `None` beyond the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        (!self.is_beyond).then_some(&self.key[..])
    }

    /// Whether a tombstone is there.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.op == Op::Delete
    }

    /// So many records from here on will be asked for, about; answers the key of the last one, if this page of
    /// keys has it.
    pub(crate) fn expect(&mut self, records: usize) -> Option<Vec<u8>> {
        self.expected = records;
        if self.is_beyond || records == 0 {
            return None;
        }
        let item = self.key_page().ok()?.item(self.far(records)).ok()?;
        Some(item.key.to_vec())
    }

    /// All records from here up to a key will be asked for, about.
    pub(crate) fn expect_up_to(&mut self, key: &[u8]) {
        self.expected = 0;
        while !self.is_beyond && self.expected < self.items {
            let far = self.far(self.expected + 1);
            let Ok(item) = self
                .key_page()
                .and_then(|page| page.item(far).map_err(|damage| self.damaged(damage)))
            else {
                return;
            };
            let is_past = match self.direction {
                Direction::Forward => item.key > key,
                Direction::Reverse => item.key < key,
            };
            if is_past {
                return;
            }
            self.expected += 1;
            if far == self.far(self.expected + 1) {
                // The last one of the page.
                return;
            }
        }
    }

    /// Where the last of so many items lies, as far as this page of keys has them.
    fn far(&self, records: usize) -> usize {
        let more = records.saturating_sub(1);
        match self.direction {
            Direction::Forward => self.index.saturating_add(more).min(self.items - 1),
            Direction::Reverse => self.index.saturating_sub(more),
        }
    }

    /// The pages of values that are expected to be asked for and not here yet.
    pub(super) fn expected_pages(&self) -> Option<(&Leaf, Range<u32>)> {
        if self.is_beyond || self.expected == 0 || self.value_length == 0 {
            return None;
        }
        let pages = self.pages_at();
        if self.values.covers(&pages) {
            return None;
        }
        Some((&self.leaf, self.with_expected(pages).ok()?))
    }

    /// The pages of the value at the place, which is not empty.
    fn pages_at(&self) -> Range<u32> {
        let end = self.value + self.value_length as u64;
        value_page(self.value)..value_page(end - 1) + 1
    }

    /// Pages of the values that are expected to be asked for, as far as the page of keys at hand has their
    /// items, beside those of this one.
    fn with_expected(&self, pages: Range<u32>) -> Result<Range<u32>> {
        let most = EXPECTED_PAGES_MAX.max(pages.len() as u32);
        let item = self
            .key_page()?
            .item(self.far(self.expected))
            .map_err(|damage| self.damaged(damage))?;
        Ok(match self.direction {
            Direction::Forward => {
                let end = value_page(item.value + (item.value_length as u64).saturating_sub(1)) + 1;
                pages.start..end.clamp(pages.end, pages.start + most)
            }
            Direction::Reverse => {
                value_page(item.value).clamp(pages.end.saturating_sub(most), pages.start)..pages.end
            }
        })
    }

    /// Key and value, or pointer; `None` beyond the end and at a tombstone. Only this reads pages of
    /// values.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>> {
        if self.is_beyond || self.op == Op::Delete {
            return Ok(None);
        }
        let large = self.op == Op::PutLarge;
        if self.value_length == 0 {
            return Ok(Some((&self.key, ValueRef { bytes: &[], large })));
        }
        let mut pages = self.pages_at();
        if self.expected > 1 && !self.values.covers(&pages) {
            pages = self.with_expected(pages)?;
        }
        self.values.cover(&self.leaf, pages, self.direction)?;
        let start = (self.value - u64::from(self.values.pages.start) * PAYLOAD as u64) as usize;
        let bytes = &self.values.bytes[start..start + self.value_length];
        Ok(Some((&self.key, ValueRef { bytes, large })))
    }

    /// Goes to the next place in the direction.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn advance(&mut self) -> Result<()> {
        if self.is_beyond {
            return Ok(());
        }
        self.expected = self.expected.saturating_sub(1);
        match self.direction {
            Direction::Forward if self.index + 1 < self.items => self.index += 1,
            Direction::Reverse if self.index > 0 => self.index -= 1,
            Direction::Forward if self.page + 1 < self.leaf.description().key_pages => {
                self.enter(self.page + 1)?;
                self.index = 0;
            }
            Direction::Reverse if self.page > 0 => {
                self.enter(self.page - 1)?;
                self.index = self.items - 1;
            }
            _ => {
                self.is_beyond = true;
                return Ok(());
            }
        }
        self.take_item()
    }

    fn enter(&mut self, page: u32) -> Result<()> {
        // What was there before is no place any more if this fails.
        self.is_beyond = true;
        self.keys.cover(&self.leaf, page..page + 1, self.direction)?;
        self.page = page;
        self.items = self.key_page()?.items;
        self.is_beyond = false;
        Ok(())
    }

    fn key_page(&self) -> Result<KeyPage<'_>> {
        KeyPage::decode(self.keys.payload(self.page)).map_err(|it| self.damaged(it))
    }

    fn damaged(&self, damage: Damage) -> spinney_base::Error {
        self.leaf.damaged(Section::Keys, self.page, damage)
    }

    fn take_item(&mut self) -> Result<()> {
        let look = || KeyPage::decode(self.keys.payload(self.page))?.item(self.index);
        let item = look().map_err(|damage| self.damaged(damage))?;
        self.key.clear();
        self.key.extend_from_slice(item.key);
        self.op = item.op;
        self.value = item.value;
        self.value_length = item.value_length;
        Ok(())
    }
}

/// Copies of consecutive pages of a section.
#[derive(Debug)]
struct Window {
    section: Section,
    pages: Range<u32>,
    /// Their payloads.
    bytes: Vec<u8>,
    /// Pages that were read so far.
    used: u32,
}

/// A thread keeps so many buffers of windows for its next cursors, none larger than this: those of
/// one short scan.
const KEPT_MAX: usize = 8;
const KEPT_BYTES_MAX: usize = 8 * PAYLOAD;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() == 0 || bytes.capacity() > KEPT_BYTES_MAX {
            return;
        }
        // A cursor may end with its thread.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                bytes.clear();
                kept.push(bytes);
            }
        });
    }
}

impl Window {
    fn new(section: Section) -> Self {
        Window { section, pages: 0..0, bytes: Vec::new(), used: 0 }
    }

    /// The payload of a page that is covered.
    fn payload(&self, page: u32) -> &[u8] {
        &self.bytes[(page - self.pages.start) as usize * PAYLOAD..][..PAYLOAD]
    }

    fn covers(&self, pages: &Range<u32>) -> bool {
        self.pages.start <= pages.start && pages.end <= self.pages.end
    }

    /// Makes it cover these pages, and some ahead.
    fn cover(&mut self, leaf: &Leaf, wanted: Range<u32>, direction: Direction) -> Result<()> {
        if self.covers(&wanted) {
            return Ok(());
        }
        let old = self.pages.clone();
        let ahead = if self.used < PAGES_BEFORE_AHEAD { 0 } else { self.used / AHEAD_SHARE };
        let ahead = ahead.min(AHEAD_MAX);
        // It covers nothing if this fails.
        self.pages = 0..0;
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() == 0 {
            bytes =
                KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        }
        let pages = match direction {
            Direction::Forward => {
                let count = leaf.section(self.section).1;
                let end = wanted.end.max(wanted.end.saturating_add(ahead).min(count));
                // A value may begin in the last page that is there.
                let kept = if old.contains(&wanted.start) { wanted.start..old.end } else { 0..0 };
                let from = if kept.is_empty() { wanted.start } else { kept.end };
                let gone = if kept.is_empty() { bytes.len() } else { offset(&old, kept.start) };
                bytes.drain(..gone);
                self.read(leaf, from..end, &mut bytes)?;
                wanted.start..end
            }
            Direction::Reverse => {
                let start = wanted.start.saturating_sub(ahead);
                let kept =
                    if old.contains(&(wanted.end - 1)) { old.start..wanted.end } else { 0..0 };
                let to = if kept.is_empty() { wanted.end } else { kept.start };
                bytes.truncate(if kept.is_empty() { 0 } else { offset(&old, kept.end) });
                let behind = if bytes.is_empty() { Vec::new() } else { bytes.clone() };
                bytes.clear();
                self.read(leaf, start..to, &mut bytes)?;
                bytes.extend_from_slice(&behind);
                start..wanted.end
            }
        };
        self.pages = pages;
        self.bytes = bytes;
        Ok(())
    }

    fn read(&mut self, leaf: &Leaf, pages: Range<u32>, bytes: &mut Vec<u8>) -> Result<()> {
        let before = self.used;
        self.used = before.saturating_add(pages.len() as u32);
        bytes.reserve(pages.len() * PAYLOAD);
        if before < PAGES_BEFORE_AHEAD {
            return leaf.read_cached(self.section, pages, Purpose::Scan, bytes);
        }
        leaf.read_pages(self.section, pages, Purpose::Scan, bytes)
    }
}

/// Which page of values has this byte.
fn value_page(address: u64) -> u32 {
    u32::try_from(address / PAYLOAD as u64).unwrap_or(u32::MAX - 1)
}

/// Where a page's payload begins in a window of pages.
fn offset(pages: &Range<u32>, page: u32) -> usize {
    (page - pages.start) as usize * PAYLOAD
}
