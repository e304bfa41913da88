//! Reading many pages of a leaf at once: all of it for a merge, or what a range of keys needs.
//!
//! A large read takes the pages that are in the cache from there, reads those between the first and the last
//! that are not in one transfer, and adds none to the cache: what a merge reads once must not push
//! out what lookups need.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::Result;
use spinney_extent::BlockKind;
use spinney_extent::header::Damage;
use spinney_io::{AlignedBuf, Purpose};

use super::format::{Item, KeyPage, PAYLOAD, Section};
use super::{Leaf, payload};
use crate::run::Position;

/// So many pages or fewer are read one by one, through the cache.
const SINGLES: u32 = 2;

/// The edits of a leaf, or of a range of it, in memory: each key followed by its value.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) positions: Vec<Position>,
}

impl Leaf {
    /// Reads the edits from key `lower` on up to, not including, key `upper`; if they bound nothing,
    /// in one transfer.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn load(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Loaded> {
        self.files.counters.loads.fetch_add(1, Relaxed);
        let description = *self.description();
        if lower.is_empty() && upper.is_none() {
            return self.load_all();
        }
        let (from, from_page) = match lower {
            [] => (0, 0),
            key => self.place(key)?,
        };
        let (to, to_page) = match upper {
            None => (description.items, description.key_pages - 1),
            Some(key) => self.place(key)?,
        };
        if from >= to || from_page > to_page {
            return Ok(Loaded::default());
        }
        let mut keys = Vec::new();
        let pages = from_page..to_page + 1;
        self.read_pages(Section::Keys, pages.clone(), Purpose::Reorganize, &mut keys)?;
        let mut range: Option<Range<u64>> = None;
        self.items(&keys, pages.clone(), |index, item| {
            if (from..to).contains(&index) {
                let end = item.value + item.value_length as u64;
                range = Some(range.take().map_or(item.value, |range| range.start)..end);
            }
            Ok(())
        })?;
        let range = range.unwrap_or(0..0);
        let piece = PAYLOAD as u64;
        let small = |page: u64| u32::try_from(page).unwrap_or(u32::MAX);
        let value_pages = small(range.start / piece)..small(range.end.div_ceil(piece));
        let mut values = Vec::new();
        self.read_pages(Section::Values, value_pages.clone(), Purpose::Reorganize, &mut values)?;
        let base = u64::from(value_pages.start) * piece;
        self.collect(&keys, pages, from..to, &values, base)
    }

    fn load_all(&self) -> Result<Loaded> {
        let description = *self.description();
        let (first, pages) = self.section(Section::Keys);
        let all = self.run().pages;
        let mut payloads = Vec::new();
        self.read_span(first..all, Purpose::Reorganize, &mut payloads)?;
        let (keys, values) = payloads.split_at(pages as usize * PAYLOAD);
        self.collect(keys, 0..pages, 0..description.items, values, 0)
    }

    /// The first item that is not below the key, and the page of keys where it was looked for.
    fn place(&self, key: &[u8]) -> Result<(u32, u32)> {
        let place = self.find(key)?;
        Ok((place.item, place.page))
    }

    /// Copies the items of a range together; `base` is the address of the first byte of `values`.
    fn collect(
        &self,
        keys: &[u8],
        pages: Range<u32>,
        wanted: Range<u32>,
        values: &[u8],
        base: u64,
    ) -> Result<Loaded> {
        let capacity = if pages.len() as u32 == self.description().key_pages {
            keys.len() + values.len()
        } else {
            0
        };
        let mut loaded = Loaded {
            bytes: Vec::with_capacity(capacity),
            positions: Vec::with_capacity(wanted.len().min(keys.len())),
        };
        let mut seen = 0;
        self.items(keys, pages, |index, item| {
            if !wanted.contains(&index) {
                return Ok(());
            }
            seen += 1;
            let start = item.value.checked_sub(base).and_then(|start| usize::try_from(start).ok());
            let value = start.and_then(|start| values.get(start..start + item.value_length));
            let value = value.ok_or_else(|| Damage::new("a value within the leaf", item.value))?;
            let key = loaded.bytes.len() as u32;
            loaded.bytes.extend_from_slice(item.key);
            loaded.bytes.extend_from_slice(value);
            loaded.positions.push(Position {
                key,
                key_length: item.key.len() as u16,
                value: key + item.key.len() as u32,
                value_length: value.len() as u32,
                op: item.op,
            });
            Ok(())
        })?;
        if seen != wanted.len() {
            let damage = Damage::new(format!("{} items", wanted.len()), seen);
            return Err(self.damaged(Section::Keys, 0, damage));
        }
        loaded.bytes.shrink_to_fit();
        Ok(loaded)
    }

    /// Shows all items of pages of keys, whose payloads are given, with their indexes.
    fn items(
        &self,
        keys: &[u8],
        pages: Range<u32>,
        mut show: impl FnMut(u32, &Item<'_>) -> Result<(), Damage>,
    ) -> Result<()> {
        let mut next = None;
        for (page, payload) in pages.zip(keys.chunks(PAYLOAD)) {
            let mut page_items = || {
                let keys = KeyPage::decode(payload)?;
                if next.is_some_and(|next| next != keys.first_item) {
                    return Err(Damage::new("items that follow each other", keys.first_item));
                }
                let mut index = keys.first_item;
                for group in 0..keys.groups() {
                    let group = keys.group(group)?;
                    group.items(|item| {
                        show(index, item)?;
                        index = index.saturating_add(1);
                        Ok(())
                    })?;
                }
                next = Some(index);
                Ok(())
            };
            page_items().map_err(|damage| self.damaged(Section::Keys, page, damage))?;
        }
        Ok(())
    }

    /// Appends the payloads of pages of a section: a few through the cache, many in one transfer.
    ///
    /// # Errors
    /// `Corruption`, also when the section does not have them; `Io`.
    pub(crate) fn read_pages(
        &self,
        section: Section,
        pages: Range<u32>,
        purpose: Purpose,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (first, count) = self.section(section);
        if pages.len() as u32 <= SINGLES || pages.end > count {
            for page in pages {
                let page = self.page(section, page, purpose)?;
                out.extend_from_slice(payload(&page));
            }
            return Ok(());
        }
        self.read_span(first + pages.start..first + pages.end, purpose, out)
    }

    /// Appends the payloads of pages, by their indexes in the leaf.
    fn read_span(&self, pages: Range<u32>, purpose: Purpose, out: &mut Vec<u8>) -> Result<()> {
        let run = self.run();
        let cached = |index: u32| {
            let (section, page) = self.section_of(index);
            self.files.cache.peek(self.page_id(section, page))
        };
        let mut missing = pages.clone().filter(|index| cached(*index).is_none());
        let first = missing.next();
        let span = first.map_or(0..0, |first| first..missing.next_back().unwrap_or(first) + 1);
        let mut buf = AlignedBuf::new(span.len());
        let store = &self.files.store;
        store.read_run(&run, span.start, BlockKind::Leaf, &mut buf, purpose)?;
        out.reserve(pages.len() * PAYLOAD);
        for index in pages {
            if span.contains(&index) {
                out.extend_from_slice(payload(buf.page((index - span.start) as usize)));
            } else if let Some(page) = cached(index) {
                out.extend_from_slice(payload(&page));
            } else {
                // It went in the meantime.
                let (section, page) = self.section_of(index);
                out.extend_from_slice(payload(&*self.page(section, page, purpose)?));
            }
        }
        Ok(())
    }

    /// The section of a page, and which of its pages it is.
    fn section_of(&self, index: u32) -> (Section, u32) {
        let sections = [Section::Values, Section::Keys, Section::Filter];
        let within = |section: &Section| self.section(*section).0 <= index;
        let section = sections.into_iter().find(within).unwrap_or(Section::Index);
        (section, index - self.section(section).0)
    }
}
