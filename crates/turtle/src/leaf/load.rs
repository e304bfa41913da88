//! Reading many pages of a leaf at once: all of it for a merge, or what a range of keys needs.
//!
//! A large read takes the cached pages from the cache, reads those between the first and the last
//! that is not cached in one transfer, and adds none to the cache: what a merge reads once must not
//! evict what lookups need.
//!
//! What was read of a whole leaf is what its run points into: the payloads are moved together where
//! they lie, and neither keys nor values are copied one by one.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;
use spinney_cache::PageRef;
use spinney_extent::HEADER_BYTES;
use spinney_extent::header::Damage;
use spinney_io::{AlignedBuf, Purpose};

use super::format::{Item, KeyPage, PAYLOAD, Section};
use super::{Leaf, LeafStore, payload};
use crate::kinds::block;
use crate::policy::{LOADS_AT_ONCE, SINGLES_MAX};
use crate::run::{Position, Run, RunOver};
use crate::source::Bytes;

/// A range of a leaf that is to be read: from key `lower` on up to, not including, key `upper`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) leaf: &'a Leaf,
    pub(crate) lower: &'a [u8],
    pub(crate) upper: Option<&'a [u8]>,
}

/// What of a leaf a load reads.
#[derive(Debug)]
struct Plan<'a> {
    leaf: &'a Leaf,
    items: Range<u32>,
    /// Pages of keys.
    pages: Range<u32>,
    /// All of it: then keys and values are read together.
    is_whole: bool,
}

/// Pages of a leaf, by their indexes in it.
type Span<'a> = (&'a Leaf, Range<u32>);

impl LeafStore {
    /// Reads ranges of leaves, whose transfers go together; the results are in the order of the
    /// loads. The leaves are this store's.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of the first that failed.
    pub(crate) fn load_many(&self, loads: &[Load<'_>]) -> Result<Vec<Run>> {
        let mut loaded = Vec::with_capacity(loads.len());
        for loads in loads.chunks(LOADS_AT_ONCE) {
            self.load_at_once(loads, &mut loaded)?;
        }
        self.counters.loads.fetch_add(loads.len() as u64, Relaxed);
        Ok(loaded)
    }

    fn load_at_once(&self, loads: &[Load<'_>], loaded: &mut Vec<Run>) -> Result<()> {
        let plans: Vec<Plan<'_>> = loads.iter().map(Plan::of).collect::<Result<_>>()?;
        let spans: Vec<Span<'_>> = plans.iter().map(Plan::first_span).collect();
        let mut read: Vec<Payloads> = spans.iter().map(|span| Payloads::of(span.1.len())).collect();
        self.read_spans(&spans, &mut read, Purpose::REORGANIZE)?;
        let ranges: Vec<Range<u32>> = plans
            .iter()
            .zip(&read)
            .map(|(plan, read)| plan.value_pages(read.bytes()))
            .collect::<Result<_>>()?;
        let spans: Vec<Span<'_>> = plans
            .iter()
            .zip(&ranges)
            .map(|(plan, pages)| plan.value_span(pages))
            .collect::<Result<_>>()?;
        for (read, values) in read.iter_mut().zip(&ranges) {
            read.reserve(values.len());
        }
        self.read_spans(&spans, &mut read, Purpose::REORGANIZE)?;
        for ((plan, read), values) in plans.into_iter().zip(read).zip(ranges) {
            let base = u64::from(values.start) * PAYLOAD as u64;
            loaded.push(plan.leaf.collect(read.into(), plan.pages, plan.items, base)?);
        }
        Ok(())
    }

    /// Appends the payloads of each span to what was read before it: what is in the cache from
    /// there, and all between the first and the last page that is not in one transfer.
    fn read_spans(
        &self,
        spans: &[Span<'_>],
        read: &mut [Payloads],
        purpose: Purpose,
    ) -> Result<()> {
        let mut parts = Vec::with_capacity(spans.len());
        let mut missing = Vec::with_capacity(spans.len());
        for ((leaf, pages), read) in spans.iter().zip(&mut *read) {
            let mut absent = pages.clone().filter(|index| leaf.cached(*index).is_none());
            let first = absent.next();
            let span = first.map_or(0..0, |first| first..absent.next_back().unwrap_or(first) + 1);
            self.count_read(leaf.section_of(span.start).0, span.len(), purpose);
            let before = span.start.saturating_sub(pages.start) as usize;
            let bytes = read.append(pages.len());
            let bytes = &mut bytes[before * PAGE_BYTES..][..span.len() * PAGE_BYTES];
            parts.push((leaf.run(), span.start, bytes));
            missing.push(span);
        }
        self.store.read_runs(&mut parts, block::LEAF, purpose)?;
        for (((leaf, pages), read), missing) in spans.iter().zip(read).zip(missing) {
            let cached = pages.clone().zip(read.appended()).filter(|(at, _)| !missing.contains(at));
            for (index, to) in cached {
                if let Some(page) = leaf.cached(index) {
                    to.copy_from_slice(&*page);
                } else {
                    // It was evicted in the meantime.
                    let (section, page) = leaf.section_of(index);
                    to.copy_from_slice(&*leaf.page(section, page, purpose)?);
                }
            }
            read.close_up();
        }
        Ok(())
    }
}

/// Payloads of pages, one behind the other, in the memory that the pages were read into.
#[derive(Debug)]
struct Payloads {
    buf: AlignedBuf,
    /// How many there are; those of the pages behind are still between headers.
    closed_up: usize,
}

impl Payloads {
    /// Memory for this many pages, all of which will be appended.
    fn of(pages: usize) -> Payloads {
        let mut buf = AlignedBuf::reused(pages);
        buf.set_pages(0);
        Payloads { buf, closed_up: 0 }
    }

    /// Makes room for this many pages more than were appended; they will be appended, too.
    fn reserve(&mut self, pages: usize) {
        let pages = self.closed_up + pages;
        if self.buf.capacity() >= pages {
            return;
        }
        let mut larger = Payloads::of(pages);
        larger.buf.set_pages(self.closed_up);
        larger.buf.bytes_mut()[..self.bytes().len()].copy_from_slice(self.bytes());
        larger.closed_up = self.closed_up;
        *self = larger;
    }

    /// Room for this many pages more.
    fn append(&mut self, pages: usize) -> &mut [u8] {
        self.buf.set_pages(self.closed_up + pages);
        &mut self.buf.bytes_mut()[self.closed_up * PAGE_BYTES..]
    }

    /// The pages that were appended.
    fn appended(&mut self) -> &mut [[u8; PAGE_BYTES]] {
        self.buf.bytes_mut()[self.closed_up * PAGE_BYTES..].as_chunks_mut().0
    }

    /// Moves the payloads of what was appended together.
    fn close_up(&mut self) {
        let pages = self.buf.pages();
        for index in self.closed_up..pages {
            let page = index * PAGE_BYTES;
            let payload = page + HEADER_BYTES..page + PAGE_BYTES;
            self.buf.bytes_mut().copy_within(payload, index * PAYLOAD);
        }
        self.closed_up = pages;
    }

    fn bytes(&self) -> &[u8] {
        &self.buf.bytes()[..self.closed_up * PAYLOAD]
    }
}

impl From<Payloads> for Bytes {
    fn from(payloads: Payloads) -> Bytes {
        let mut bytes = payloads.buf.into_mapping();
        bytes.set_length(payloads.closed_up * PAYLOAD);
        Bytes::from(bytes)
    }
}

impl<'a> Plan<'a> {
    fn of(load: &Load<'a>) -> Result<Plan<'a>> {
        let Load { leaf, lower, upper } = *load;
        let description = leaf.description();
        let (from, first) = if lower.is_empty() { (0, 0) } else { leaf.place(lower)? };
        let (to, last) = match upper {
            None => (description.items, description.key_pages - 1),
            Some(key) => leaf.place(key)?,
        };
        let is_whole = lower.is_empty() && upper.is_none();
        let is_empty = from >= to || first > last;
        let (items, pages) = if is_empty { (0..0, 0..0) } else { (from..to, first..last + 1) };
        Ok(Plan { leaf, items, pages, is_whole })
    }

    fn first_span(&self) -> Span<'a> {
        let (first, _) = self.leaf.section(Section::Keys);
        let end = if self.is_whole { self.leaf.run().pages } else { first + self.pages.end };
        (self.leaf, first + self.pages.start..end)
    }

    /// The pages of values that the items need beside what was read with the keys.
    fn value_pages(&self, keys: &[u8]) -> Result<Range<u32>> {
        if self.is_whole {
            return Ok(0..0);
        }
        let mut range: Option<Range<u64>> = None;
        self.leaf.items(keys, self.pages.clone(), |index, item| {
            if self.items.contains(&index) && item.value_length > 0 {
                let end = item.value + item.value_length as u64;
                range = Some(range.take().map_or(item.value, |range| range.start)..end);
            }
            Ok(())
        })?;
        let range = range.unwrap_or(0..0);
        let small = |page: u64| u32::try_from(page).unwrap_or(u32::MAX);
        let piece = PAYLOAD as u64;
        Ok(small(range.start / piece)..small(range.end.div_ceil(piece)))
    }

    fn value_span(&self, pages: &Range<u32>) -> Result<Span<'a>> {
        let (first, count) = self.leaf.section(Section::Values);
        if pages.start > pages.end || pages.end > count {
            let damage = Damage::new(format!("{count} pages of values"), format!("{pages:?}"));
            return Err(self.leaf.damaged(Section::Keys, self.pages.start, damage));
        }
        Ok((self.leaf, first + pages.start..first + pages.end))
    }
}

impl Leaf {
    /// Reads the edits from key `lower` on up to, not including, key `upper`; if they bound
    /// nothing, in one transfer.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn load(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Run> {
        let mut loaded = self.files.load_many(&[Load { leaf: self, lower, upper }])?;
        Ok(loaded.swap_remove(0))
    }

    /// The first item that is not below the key, and the page of keys where it was looked for.
    fn place(&self, key: &[u8]) -> Result<(u32, u32)> {
        let place = self.find(key)?;
        Ok((place.item, place.page))
    }

    /// A page by its index in the leaf, if it is cached.
    fn cached(&self, index: u32) -> Option<PageRef<'_>> {
        let (section, page) = self.section_of(index);
        self.files.cache.peek(self.page_id(section, page))
    }

    /// Builds a run from the items of a range, over the payloads of pages of keys and, behind them,
    /// of values; the first byte has the address `base`.
    fn collect(
        &self,
        bytes: Bytes,
        pages: Range<u32>,
        wanted: Range<u32>,
        base: u64,
    ) -> Result<Run> {
        let source = Arc::new(bytes);
        let keys_length = pages.len() * PAYLOAD;
        let (keys, values) = source.split_at(keys_length);
        let mut run = RunOver::new(vec![Arc::clone(&source)], wanted.len().min(keys.len()));
        let mut seen = 0;
        self.items(keys, pages, |index, item| {
            if !wanted.contains(&index) {
                return Ok(());
            }
            seen += 1;
            let start = item.value.checked_sub(base).and_then(|start| usize::try_from(start).ok());
            // Nothing may have been read for those that have none.
            let start = match item.value_length {
                0 => Some(0),
                length => start.filter(|start| values.len().checked_sub(length) >= Some(*start)),
            };
            let start = start.ok_or_else(|| Damage::new("a value within the leaf", item.value))?;
            let position = Position {
                key: (item.key.as_ptr().addr() - keys.as_ptr().addr()) as u32,
                key_length: item.key.len() as u16,
                value: (keys_length + start) as u32,
                value_length: item.value_length as u32,
                op: item.op,
            };
            run.push(0, &position).map_err(|broken| Damage::new(broken.0, "something else"))
        })?;
        if seen != wanted.len() {
            let damage = Damage::new(format!("{} items", wanted.len()), seen);
            return Err(self.damaged(Section::Keys, 0, damage));
        }
        Ok(run.finish())
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

    /// Appends the payloads of pages of a section, through the cache; those that are missing are
    /// read together.
    ///
    /// # Errors
    /// `Corruption`, also when the section does not have them; `Io`.
    pub(crate) fn read_cached(
        &self,
        section: Section,
        pages: Range<u32>,
        purpose: Purpose,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if pages.len() > 1 {
            self.bring_in(section, pages.clone(), purpose);
        }
        for page in pages {
            let page = self.page(section, page, purpose)?;
            out.extend_from_slice(payload(&page));
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
        if pages.len() as u32 <= SINGLES_MAX || pages.end > count {
            return self.read_cached(section, pages, purpose, out);
        }
        let mut read = [Payloads::of(pages.len())];
        let span = (self, first + pages.start..first + pages.end);
        self.files.read_spans(&[span], &mut read, purpose)?;
        out.extend_from_slice(read[0].bytes());
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
