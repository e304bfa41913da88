//! Cursors: a leaf's items in order, either way, reading only the pages that they fill.
//!
//! A cursor reads the pages of the item at hand. The longer it has read, the more it reads ahead: a
//! short scan reads nothing that it does not need, and a long one reads large pieces. A caller that
//! knows how many records it will ask for says so ([`LeafCursor::expect`]), and their values come
//! in one piece. A caller that asks for no values causes no page of them to be read.
//!
//! The first pages are lent by the cache: a short scan copies only what it delivers. A cursor that
//! reads for long has copies, and nothing of the cache.

use std::ops::{Bound, Range};

use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Result, ValueRef};
use spinney_cache::PageRef;
use spinney_engine::Direction;
use spinney_extent::HEADER_BYTES;
use spinney_extent::header::Damage;
use spinney_io::Purpose;

use super::format::{GROUP, KeyPage, PAYLOAD, Section};
use super::{Leaf, payload};
use crate::policy::{EXPECTED_PAGES_MAX, PAGES_BEFORE_AHEAD, pages_ahead};
use crate::run::Op;

/// Where an item lies: its key in the payload of its page.
#[derive(Clone, Copy, Debug)]
struct ItemPlace {
    key: u16,
    key_length: u16,
    op: Op,
    value: u64,
    value_length: usize,
}

impl ItemPlace {
    const NOWHERE: ItemPlace =
        ItemPlace { key: 0, key_length: 0, op: Op::Delete, value: 0, value_length: 0 };

    /// The pages of its value, which is not empty.
    fn pages(&self) -> Range<u32> {
        let end = self.value + self.value_length as u64;
        value_page(self.value)..value_page(end - 1) + 1
    }
}

/// A place in a leaf, or beyond its end.
#[derive(Debug)]
pub(crate) struct LeafCursor<'a> {
    leaf: &'a Leaf,
    direction: Direction,
    keys: Window<'a>,
    values: Window<'a>,
    /// The page of keys, the index of its first item, how many it has, and which of them this is.
    page: u32,
    first_item: u32,
    items: usize,
    index: usize,
    /// The items of a group of the page: which one, if any, and where they lie.
    group: Option<usize>,
    places: [ItemPlace; GROUP],
    is_beyond: bool,
    /// Records that will be asked for, this one among them.
    expected: usize,
}

impl Drop for LeafCursor<'_> {
    fn drop(&mut self) {
        let pages = self.keys.used + self.values.used;
        self.leaf.files.counters.scan_pages.fetch_add(pages.into(), Relaxed);
    }
}

impl<'a> LeafCursor<'a> {
    /// A cursor at the first item at or behind `from`, in the direction.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn new(
        leaf: &'a Leaf,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<LeafCursor<'a>> {
        let mut cursor = LeafCursor {
            leaf,
            direction,
            keys: Window::new(Section::Keys),
            values: Window::new(Section::Values),
            page: 0,
            first_item: 0,
            items: 0,
            index: 0,
            group: None,
            places: [ItemPlace::NOWHERE; GROUP],
            is_beyond: true,
            expected: 0,
        };
        let items = leaf.description().items;
        let (at, page) = match (direction, from) {
            (Direction::Forward, Bound::Unbounded) => (0, 0),
            (Direction::Reverse, Bound::Unbounded) => (items, leaf.description().key_pages - 1),
            (_, Bound::Included(key) | Bound::Excluded(key)) => {
                let (place, page) = leaf.find_in(key)?;
                cursor.keys.lend(place.page, page);
                let is_included = matches!(from, Bound::Included(_));
                // Behind the key itself, forward if it is excluded, in reverse if it is included.
                let behind = place.found && is_included == (direction == Direction::Reverse);
                (place.item + u32::from(behind), place.page)
            }
        };
        let item = match direction {
            Direction::Forward => Some(at),
            Direction::Reverse => at.checked_sub(1),
        };
        if let Some(item) = item.filter(|item| *item < items) {
            cursor.enter_at(page, item)?;
            cursor.take_item()?;
        }
        Ok(cursor)
    }

    /// Goes to an item that is in this page, or the one next to it.
    fn enter_at(&mut self, page: u32, item: u32) -> Result<()> {
        self.enter(page)?;
        if item < self.first_item && page > 0 {
            self.enter(page - 1)?;
        } else if item as usize >= self.first_item as usize + self.items
            && page + 1 < self.leaf.description().key_pages
        {
            self.enter(page + 1)?;
        }
        let index = item.checked_sub(self.first_item).map(|index| index as usize);
        let Some(index) = index.filter(|index| *index < self.items) else {
            self.is_beyond = true;
            return Err(self.damaged(Damage::new(format!("item {item}"), "others")));
        };
        self.index = index;
        Ok(())
    }

    /// The key at the place; `None` beyond the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        (!self.is_beyond).then(|| self.key_at_hand())
    }

    /// The item at hand; without meaning beyond the end.
    fn item(&self) -> ItemPlace {
        self.places[self.index % GROUP]
    }

    fn key_at_hand(&self) -> &[u8] {
        let ItemPlace { key, key_length, .. } = self.item();
        &self.keys.payload(self.page)[key as usize..][..key_length as usize]
    }

    /// Whether a tombstone is there.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.item().op == Op::Delete
    }

    /// Announces that about this many records from here on will be asked for; returns the key of
    /// the last one, if this page of keys has it.
    pub(crate) fn expect(&mut self, records: usize) -> Option<Vec<u8>> {
        self.expected = records;
        if self.is_beyond || records == 0 {
            return None;
        }
        let item = self.key_page().ok()?.item(self.far(records)).ok()?;
        Some(item.key.to_vec())
    }

    /// Announces that about all records from here up to a key will be asked for.
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

    /// Where the last of this many items lies, as far as this page of keys has them.
    fn far(&self, records: usize) -> usize {
        let more = records.saturating_sub(1);
        match self.direction {
            Direction::Forward => self.index.saturating_add(more).min(self.items - 1),
            Direction::Reverse => self.index.saturating_sub(more),
        }
    }

    /// The pages of values that are expected to be asked for and not here yet.
    pub(super) fn expected_pages(&self) -> Option<(&Leaf, Range<u32>)> {
        if self.is_beyond || self.expected == 0 || self.item().value_length == 0 {
            return None;
        }
        let pages = self.item().pages();
        if self.values.covers(&pages) {
            return None;
        }
        Some((self.leaf, self.with_expected(pages).ok()?))
    }

    /// Pages of the values that are expected to be asked for, as far as the page of keys at hand
    /// has their items, beside those of this one.
    fn with_expected(&self, pages: Range<u32>) -> Result<Range<u32>> {
        let most = EXPECTED_PAGES_MAX.max(pages.len() as u32);
        let item = self
            .key_page()?
            .item(self.far(self.expected))
            .map_err(|damage| self.damaged(damage))?;
        Ok(match self.direction {
            Direction::Forward => {
                // An item without bytes may lie where the section ends, and no page is there.
                let end = item.value + item.value_length as u64;
                let end = end.checked_sub(1).map_or(0, |last| value_page(last) + 1);
                pages.start..end.clamp(pages.end, pages.start + most)
            }
            Direction::Reverse => {
                value_page(item.value).clamp(pages.end.saturating_sub(most), pages.start)..pages.end
            }
        })
    }

    /// Key and value, or pointer; `None` beyond the end and at a tombstone. Only this reads pages
    /// of values.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>> {
        let item = self.item();
        if self.is_beyond || item.op == Op::Delete {
            return Ok(None);
        }
        let large = item.op == Op::PutLarge;
        if item.value_length == 0 {
            return Ok(Some((self.key_at_hand(), ValueRef { bytes: &[], large })));
        }
        let mut pages = item.pages();
        if !self.values.covers(&pages) {
            if self.expected > 1 {
                pages = self.with_expected(pages)?;
            }
            self.values.cover(self.leaf, pages, self.direction)?;
        }
        self.values.put_together(item.value, item.value_length);
        let bytes = self.values.bytes(item.value, item.value_length);
        Ok(Some((self.key_at_hand(), ValueRef { bytes, large })))
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
        self.keys.cover(self.leaf, page..page + 1, self.direction)?;
        self.page = page;
        let KeyPage { first_item, items, .. } = self.key_page()?;
        (self.first_item, self.items, self.group) = (first_item, items, None);
        self.is_beyond = false;
        Ok(())
    }

    fn key_page(&self) -> Result<KeyPage<'_>> {
        KeyPage::decode(self.keys.payload(self.page)).map_err(|it| self.damaged(it))
    }

    fn damaged(&self, damage: Damage) -> spinney_base::Error {
        self.leaf.damaged(Section::Keys, self.page, damage)
    }

    /// Finds out where the item at hand lies, with those of its group.
    fn take_item(&mut self) -> Result<()> {
        let number = self.index / GROUP;
        if self.group == Some(number) {
            return Ok(());
        }
        self.group = None;
        let payload = self.keys.payload(self.page);
        let mut places = self.places.iter_mut();
        let mut take = || {
            KeyPage::decode(payload)?.group(number)?.items(|item| {
                if let Some(place) = places.next() {
                    *place = ItemPlace {
                        key: (item.key.as_ptr().addr() - payload.as_ptr().addr()) as u16,
                        key_length: item.key.len() as u16,
                        op: item.op,
                        value: item.value,
                        value_length: item.value_length,
                    };
                }
                Ok(())
            })
        };
        if let Err(damage) = take() {
            self.is_beyond = true;
            return Err(self.damaged(damage));
        }
        self.group = Some(number);
        Ok(())
    }
}

/// Consecutive pages of a section: lent by the cache, all of them, or copies.
#[derive(Debug)]
struct Window<'a> {
    section: Section,
    pages: Range<u32>,
    /// With their numbers, in order; empty if there are copies.
    lent: Vec<(u32, PageRef<'a>)>,
    /// The payloads; empty if pages are lent, but for the value that was last put together of
    /// theirs.
    copied: Vec<u8>,
    /// Pages that were read so far.
    used: u32,
}

impl<'a> Window<'a> {
    fn new(section: Section) -> Self {
        Window { section, pages: 0..0, lent: Vec::new(), copied: Vec::new(), used: 0 }
    }

    /// The payload of a page that is covered.
    fn payload(&self, page: u32) -> &[u8] {
        let index = (page - self.pages.start) as usize;
        match self.lent.get(index) {
            Some((_, page)) => payload(page),
            None => &self.copied[index * PAYLOAD..][..PAYLOAD],
        }
    }

    /// Bytes of the section, of pages that are covered; if they lie on several that are lent, after
    /// [`Window::put_together`].
    fn bytes(&self, address: u64, length: usize) -> &[u8] {
        let start = self.place(address);
        if self.lent.is_empty() {
            return &self.copied[start..start + length];
        }
        match self.lent[start / PAYLOAD].1[HEADER_BYTES..].get(start % PAYLOAD..) {
            Some(here) if length <= here.len() => &here[..length],
            _ => &self.copied[..length],
        }
    }

    /// Copies bytes that lie on several pages that are lent.
    fn put_together(&mut self, address: u64, length: usize) {
        let start = self.place(address);
        let (first, mut at) = (start / PAYLOAD, start % PAYLOAD);
        if self.lent.is_empty() || at + length <= PAYLOAD {
            return;
        }
        self.copied.clear();
        for (_, page) in &self.lent[first..] {
            let here = (PAYLOAD - at).min(length - self.copied.len());
            self.copied.extend_from_slice(&payload(page)[at..at + here]);
            at = 0;
        }
    }

    /// Where a byte lies from the first page's on.
    fn place(&self, address: u64) -> usize {
        (address - u64::from(self.pages.start) * PAYLOAD as u64) as usize
    }

    fn covers(&self, pages: &Range<u32>) -> bool {
        self.pages.start <= pages.start && pages.end <= self.pages.end
    }

    /// Makes it cover these pages, and some ahead.
    fn cover(&mut self, leaf: &'a Leaf, wanted: Range<u32>, direction: Direction) -> Result<()> {
        if self.covers(&wanted) {
            return Ok(());
        }
        // It covers nothing if this fails.
        let old = std::mem::replace(&mut self.pages, 0..0);
        self.pages = if self.used < PAGES_BEFORE_AHEAD {
            self.borrow(leaf, &wanted)?;
            wanted
        } else {
            self.copy(leaf, old, wanted, direction)?
        };
        Ok(())
    }

    /// Covers a page that was borrowed already, instead of all others.
    fn lend(&mut self, page: u32, lent: PageRef<'a>) {
        self.used += 1;
        self.pages = page..page + 1;
        self.lent = vec![(page, lent)];
    }

    /// Borrows pages of the cache; those that are missing are read together.
    fn borrow(&mut self, leaf: &'a Leaf, wanted: &Range<u32>) -> Result<()> {
        self.lent.retain(|(page, _)| wanted.contains(page));
        if wanted.len() - self.lent.len() > 1 {
            leaf.bring_in(self.section, wanted.clone(), Purpose::SCAN);
        }
        for page in wanted.clone() {
            if self.lent.iter().all(|(there, _)| *there != page) {
                self.used += 1;
                self.lent.push((page, leaf.page(self.section, page, Purpose::SCAN)?));
            }
        }
        self.lent.sort_unstable_by_key(|(page, _)| *page);
        Ok(())
    }

    /// Copies pages, and some ahead; returns which it has then. It has had those of `old`.
    fn copy(
        &mut self,
        leaf: &Leaf,
        old: Range<u32>,
        wanted: Range<u32>,
        direction: Direction,
    ) -> Result<Range<u32>> {
        if !self.lent.is_empty() {
            self.copied.clear();
            for (_, page) in self.lent.drain(..) {
                self.copied.extend_from_slice(payload(&page));
            }
        }
        let ahead = pages_ahead(self.used);
        let mut bytes = std::mem::take(&mut self.copied);
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
        self.copied = bytes;
        Ok(pages)
    }

    fn read(&mut self, leaf: &Leaf, pages: Range<u32>, bytes: &mut Vec<u8>) -> Result<()> {
        self.used = self.used.saturating_add(pages.len() as u32);
        bytes.reserve(pages.len() * PAYLOAD);
        leaf.read_pages(self.section, pages, Purpose::SCAN, bytes)
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
