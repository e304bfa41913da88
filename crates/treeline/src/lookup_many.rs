//! Lookups of many keys together: as few reads as possible, all under way at once.
//!
//! ```text
//!   find key 1, lock | find 2, lock | ...   the disk reads the pages of 1 to 4 meanwhile
//!                                           a page has come: its keys are answered
//! ```
//!
//! What a lookup of one key does ([`lookup`](crate::lookup)) is done with each key in turn while
//! the pages of those before it are being read: neither finding places nor answering keeps the disk
//! waiting.
//!
//! **Invariants**
//! 1. All pages that are read stay locked until the last has come (rule P23).
//! 2. A thread that holds locks takes more only without waiting, so their order does not matter. A
//!    key whose locks are taken waits for the next round. The first key of a round waits for its
//!    locks, so each round makes progress.
//! 3. A page is read once, whatever the number of its keys.

use std::slice;

use spinney_base::shim::RwLockReadGuard;
use spinney_base::{Generation, PageNumber, Result, ValueRef};
use spinney_engine::OwnedValue;
use spinney_extent::Wanted;
use spinney_io::{AlignedBuf, Purpose};
use spinney_page::PageView;

use crate::locks::Reading;
use crate::lookup::with_page_buffer;
use crate::segment::{PageRef, Place};
use crate::shape::Shape;
use crate::tree::TreeLine;
use spinney_records::{Cached, RecordId};

/// Keys per round, which bounds the buffer.
const ROUND: usize = 64;

/// Pages for each key of a round; where more are needed a key waits for the next one.
const PAGES_PER_KEY: usize = 2;

/// Pages of the smallest round: more than one key can need.
const PAGES_MIN: usize = 8;

impl TreeLine {
    /// Answers many gets with as few and as parallel reads as can be.
    pub(crate) fn lookup_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        let mut answers: Vec<Option<OwnedValue>> = vec![None; keys.len()];
        let mut missing: Vec<usize> = Vec::new();
        self.memory.cache.prefetch(keys.iter().map(|(_, hash)| RecordId::of(*hash)));
        for (index, (key, hash)) in keys.iter().enumerate() {
            if !self.lookup_cached(key, *hash, &mut answers[index]) {
                missing.push(index);
            }
        }
        while !missing.is_empty() {
            let (round, later) = missing.split_at(missing.len().min(ROUND));
            let mut again = later.to_vec();
            again.append(&mut self.lookup_on_pages(keys, round, &mut answers)?);
            missing = again;
        }
        Ok(answers)
    }

    fn lookup_cached(&self, key: &[u8], hash: u64, answer: &mut Option<OwnedValue>) -> bool {
        let mut bytes = Vec::new();
        match self.memory.cache.get(RecordId::of(hash), key, &mut bytes) {
            Cached::Present => *answer = Some(OwnedValue { bytes, large: false }),
            Cached::Large => *answer = Some(OwnedValue { bytes, large: true }),
            Cached::Absent => *answer = None,
            Cached::Unknown => return false,
        }
        self.workload.accesses.hit();
        true
    }

    /// One round; returns the keys that have to wait for another.
    fn lookup_on_pages(
        &self,
        keys: &[(&[u8], u64)],
        round: &[usize],
        answers: &mut [Option<OwnedValue>],
    ) -> Result<Vec<usize>> {
        let mut buf = self.memory.buffers.lend((PAGES_PER_KEY * round.len()).max(PAGES_MIN));
        let mut round = Round {
            tree: self,
            keys,
            answers,
            left: round.iter(),
            again: Vec::new(),
            locks: Vec::with_capacity(round.len()),
            pages: Vec::with_capacity(buf.pages()),
            pages_max: buf.pages(),
            named: 0,
            asked: Vec::with_capacity(round.len()),
            missed: 0,
        };
        self.shape.store.read_as_found(&mut buf, Purpose::LOOKUP, &mut round)?;
        round.answer_rest(&buf);
        self.workload.accesses.missed(round.missed, round.named as u64);
        // Once there is room for no more pages nobody asks for the next key.
        round.again.extend(round.left);
        Ok(round.again)
    }
}

/// A key that pages are read for.
struct Asked {
    key: usize,
    /// The first of its pages, and how many they are: of these the first that has the key is right.
    first: usize,
    pages: usize,
    answered: bool,
}

/// Lookups that are under way together.
struct Round<'a> {
    tree: &'a TreeLine,
    keys: &'a [(&'a [u8], u64)],
    answers: &'a mut [Option<OwnedValue>],
    /// Keys that were not looked for yet.
    left: slice::Iter<'a, usize>,
    /// Keys that wait for the next round.
    again: Vec<usize>,
    locks: Vec<(Reading<'a>, RwLockReadGuard<'a, ()>)>,
    /// Pages by their place in the buffer; of those the first `named` are being read or have come.
    pages: Vec<PageRef>,
    pages_max: usize,
    named: usize,
    asked: Vec<Asked>,
    /// Keys that the record cache did not know.
    missed: u64,
}

impl<'a> Round<'a> {
    /// Finds out which pages are to be read for a key, if any.
    fn look_for(&mut self, index: usize) {
        let (key, hash) = self.keys[index];
        let (place, version) = self.tree.shape.index.find_place(key, hash);
        let Some(locks) = self.lock(place) else { return self.again.push(index) };
        if !self.tree.is_still(key, hash, place, version) {
            return self.again.push(index);
        }
        // A record that became dirty meanwhile cannot leave the cache while the page is locked
        // (P23).
        if self.tree.lookup_cached(key, hash, &mut self.answers[index]) {
            return;
        }
        if place.pages().all(|page| self.tree.memory.filters.refuse(page, hash)) {
            self.missed += 1;
            return;
        }
        let pages = place.pages().count();
        // Staged pages come before it, and belong to other pages of the segment as well.
        let home = place.is_home();
        let known = self.pages.iter().position(|page| home && *page == place.page);
        if known.is_none() && home && pages == 1 && self.answer_cached(index, place.page) {
            return;
        }
        if known.is_none() && self.pages.len() + pages > self.pages_max {
            return self.again.push(index);
        }
        let first = known.unwrap_or(self.pages.len());
        if known.is_none() {
            self.pages.extend(place.pages());
        }
        self.missed += 1;
        self.locks.push(locks);
        self.asked.push(Asked { key: index, first, pages, answered: false });
    }

    fn lock(&self, place: Place) -> Option<(Reading<'a>, RwLockReadGuard<'a, ()>)> {
        let Shape { segment_locks, page_locks, .. } = &self.tree.shape;
        let (segment, page) = (place.segment.page, place.page.page);
        if self.locks.is_empty() {
            return Some((segment_locks.read(segment), page_locks.read(page)));
        }
        Some((segment_locks.try_read(segment)?, page_locks.try_read(page)?))
    }

    /// Answers from a page that is cached; says whether it is.
    fn answer_cached(&mut self, index: usize, page: PageRef) -> bool {
        with_page_buffer(|buf| {
            let cached = self.tree.memory.pages.get(page, buf.page_mut(0));
            if cached {
                self.missed += 1;
                self.answer(index, PageView::trusted(buf.page(0)).find(self.keys[index].0));
            }
            cached
        })
    }

    fn answer(&mut self, index: usize, value: Option<ValueRef<'_>>) {
        let (key, hash) = self.keys[index];
        if value.is_none() {
            self.tree.memory.filters.want();
        }
        self.answers[index] = value.map(OwnedValue::from);
        self.tree.admit(RecordId::of(hash), key, value);
    }

    /// Answers the keys that several pages have a say in, and those whose page had come before they
    /// were looked for.
    fn answer_rest(&mut self, buf: &AlignedBuf) {
        for Asked { key, first, pages, answered } in std::mem::take(&mut self.asked) {
            if !answered {
                let found = |page: usize| {
                    let view = PageView::trusted(buf.page(page));
                    let value = view.find(self.keys[key].0);
                    if value.is_none() {
                        self.tree.memory.keep_filter(
                            self.tree.context.keyspace,
                            self.pages[page],
                            view,
                        );
                    }
                    value
                };
                self.answer(key, (first..first + pages).find_map(found));
            }
        }
    }
}

impl Wanted for Round<'_> {
    fn next(&mut self) -> Option<(PageNumber, Generation)> {
        while self.named == self.pages.len() {
            let index = *self.left.next()?;
            self.look_for(index);
        }
        let PageRef { page, generation } = self.pages[self.named];
        self.named += 1;
        Some((page, generation))
    }

    fn came(&mut self, index: usize, block: &[u8]) -> Result<()> {
        let block = block.first_chunk().expect("data pages are blocks of one page");
        let view = self.tree.shape.check_layout(self.pages[index], block)?;
        for asked in 0..self.asked.len() {
            let Asked { key, first, pages, answered } = &mut self.asked[asked];
            if (*first, *pages) == (index, 1) {
                *answered = true;
                let key = *key;
                let value = view.find(self.keys[key].0);
                if value.is_none() {
                    self.tree.memory.keep_filter(
                        self.tree.context.keyspace,
                        self.pages[index],
                        view,
                    );
                }
                self.answer(key, value);
            }
        }
        Ok(())
    }
}
