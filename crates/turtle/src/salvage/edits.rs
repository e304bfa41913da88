//! The edits of a leaf or segment of which any page may be damaged, in order, read by single pages.
//!
//! Neither index nor filter is needed: pages of keys say which items they have, and where the
//! values of these lie. Between the last key before a damaged page of keys and the first one behind
//! it there is a *hole*.
//!
//! **Invariant**: keys ascend strictly; what does not is taken for damage. Whatever the pages hold,
//! a few of them are in memory at a time.

use std::collections::VecDeque;

use spinney_base::PageNumber;
use spinney_engine::{Damage, LostRange, Notes};
use spinney_extent::{FoundPage, HEADER_BYTES, PageRun, Store};
use spinney_io::AlignedBuf;

use crate::kinds::block;
use crate::leaf::format::{Description, KeyPage, PAYLOAD, Section};
use crate::run::Op;

/// Pages of a section that are read at once.
const PAGES_AT_ONCE: u32 = 8;

/// One edit, and where its value or pointer lies.
#[derive(Debug)]
pub(super) struct FoundEdit {
    pub(super) key: Vec<u8>,
    pub(super) op: Op,
    value: u64,
    length: usize,
}

/// Whose pages they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A tree's: what is not there whole is damage.
    Named,
    /// Perhaps in use no more: others may have been written over them.
    Stray,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Edits<'a> {
    pages: Pages<'a>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    /// The next page of keys.
    page: u32,
    /// Of the pages before it, what was not taken yet.
    left: VecDeque<FoundEdit>,
    /// The last key that was met, within the bounds or not.
    last: Option<Vec<u8>>,
    /// Where a hole begins whose end was not met yet.
    hole: Option<Vec<u8>>,
    pub(super) holes: Vec<LostRange>,
}

impl<'a> Edits<'a> {
    /// The edits from `lower` on and before `upper`.
    pub(super) fn new(
        store: &'a Store,
        description: Description,
        use_: Use,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Edits<'a> {
        let mut pages = Pages::new(store, description, use_);
        let page = pages.page_of(lower);
        Edits {
            pages,
            lower: lower.to_vec(),
            upper: upper.map(<[u8]>::to_vec),
            page,
            left: VecDeque::new(),
            last: None,
            hole: None,
            holes: Vec::new(),
        }
    }

    /// The next edit.
    pub(super) fn peek(&mut self, notes: &mut Notes) -> Option<&FoundEdit> {
        while self.left.is_empty() && self.page < self.pages.description.key_pages {
            let page = self.page;
            let (items, damage) = self.pages.items(page, self.last.as_deref());
            self.page += 1;
            for item in items {
                self.take_in(item);
            }
            if let Some(found) = damage {
                self.pages.note(notes, Section::Keys, page, &found);
                if self.page > page + 1 {
                    // The upper bound was met before.
                    break;
                }
                let after = self.last.as_ref().map(|last| [last, &[0][..]].concat());
                let lower = after.unwrap_or_default().max(self.lower.clone());
                self.hole.get_or_insert(lower);
            }
        }
        if self.left.is_empty() {
            let upper = self.upper.clone();
            self.close_hole(upper);
        }
        self.left.front()
    }

    /// Takes the edit that [`Edits::peek`] showed.
    pub(super) fn take(&mut self) -> Option<FoundEdit> {
        self.left.pop_front()
    }

    fn take_in(&mut self, item: FoundEdit) {
        if self.upper.as_ref().is_some_and(|upper| item.key >= *upper) {
            self.page = u32::MAX;
            let upper = self.upper.clone();
            return self.close_hole(upper);
        }
        self.close_hole(Some(item.key.clone()));
        self.last = Some(item.key.clone());
        if item.key >= self.lower {
            self.left.push_back(item);
        }
    }

    fn close_hole(&mut self, upper: Option<Vec<u8>>) {
        let Some(lower) = self.hole.take() else { return };
        if upper.as_ref().is_none_or(|upper| lower < *upper) {
            self.holes.push(LostRange { lower, upper });
        }
    }

    /// Reads the value of an edit, or the pointer; `None` if it is not there whole.
    pub(super) fn value(&mut self, edit: &FoundEdit, notes: &mut Notes) -> Option<Vec<u8>> {
        let mut value = Vec::with_capacity(edit.length);
        let mut address = edit.value;
        while value.len() < edit.length {
            let page = u32::try_from(address / PAYLOAD as u64).ok()?;
            let at = usize::try_from(address % PAYLOAD as u64).ok()?;
            let here = (edit.length - value.len()).min(PAYLOAD - at);
            match self.pages.payload(Section::Values, page) {
                Ok(payload) => value.extend_from_slice(payload.get(at..at + here)?),
                Err(found) => {
                    self.pages.note(notes, Section::Values, page, &found);
                    return None;
                }
            }
            address += here as u64;
        }
        Some(value)
    }
}

/// Pages of a leaf, a few at a time.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    store: &'a Store,
    pub(super) description: Description,
    use_: Use,
    windows: [Window; 4],
}

#[derive(Debug)]
struct Window {
    first: u32,
    buf: AlignedBuf,
    found: Vec<FoundPage>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(store: &'a Store, description: Description, use_: Use) -> Pages<'a> {
        let window = |_| Window { first: 0, buf: AlignedBuf::new(0), found: Vec::new() };
        Pages { store, description, use_, windows: [0; 4].map(window) }
    }

    /// Where a section begins, as an index of the leaf's pages, and how many pages it has.
    fn section(&self, section: Section) -> (u32, u32) {
        let pages = self.description.section_pages();
        let first = pages[..section as usize].iter().sum();
        (first, pages[section as usize])
    }

    fn run(&self) -> PageRun {
        self.description.run()
    }

    /// What a page of a section holds, or what is there instead.
    fn payload(&mut self, section: Section, page: u32) -> Result<&[u8], FoundPage> {
        let (first, count) = self.section(section);
        if page >= count {
            let found = format!("page {page}");
            return Err(FoundPage::Damaged(Damage::new(
                format!("{count} pages of {section:?}"),
                found,
            )));
        }
        let run = self.run();
        let window = &mut self.windows[section as usize];
        let within = page.checked_sub(window.first).map(|at| at as usize);
        if within.is_none_or(|at| at >= window.found.len()) {
            window.buf = AlignedBuf::new((count - page).min(PAGES_AT_ONCE) as usize);
            window.first = page;
            let from = first + page;
            window.found = self.store.read_found(&run, from, block::LEAF, &mut window.buf);
        }
        let at = (page - window.first) as usize;
        match &window.found[at] {
            FoundPage::Whole => Ok(&window.buf.page(at)[HEADER_BYTES..]),
            found => Err(found.clone()),
        }
    }

    /// Notes damage of a page. A page that was written over is not damaged if nothing says that it
    /// is in use.
    fn note(&self, notes: &mut Notes, section: Section, page: u32, found: &FoundPage) {
        let (first, count) = self.section(section);
        if self.use_ == Use::Named || matches!(found, FoundPage::Damaged(_)) {
            // It need not have such a page.
            let page = first.saturating_add(page.min(count.saturating_sub(1)));
            notes.page(PageNumber(self.run().first.0.saturating_add(page)), found);
        }
    }

    /// The items of a page of keys that ascend from `last` on, and what ends them before its end.
    fn items(&mut self, page: u32, last: Option<&[u8]>) -> (Vec<FoundEdit>, Option<FoundPage>) {
        let payload = match self.payload(Section::Keys, page) {
            Ok(payload) => payload,
            Err(found) => return (Vec::new(), Some(found)),
        };
        let mut items: Vec<FoundEdit> = Vec::new();
        let mut all = || {
            let keys = KeyPage::decode(payload)?;
            for group in 0..keys.groups() {
                keys.group(group)?.items(|item| {
                    let before = items.last().map(|item| &item.key[..]).or(last);
                    if before.is_some_and(|before| before >= item.key) {
                        return Err(Damage::new("keys that ascend", "others"));
                    }
                    items.push(FoundEdit {
                        key: item.key.to_vec(),
                        op: item.op,
                        value: item.value,
                        length: item.value_length,
                    });
                    Ok(())
                })?;
            }
            Ok(())
        };
        let damage = all().err();
        (items, damage.map(FoundPage::Damaged))
    }

    fn first_key(&mut self, page: u32) -> Option<Vec<u8>> {
        let payload = self.payload(Section::Keys, page).ok()?;
        Some(KeyPage::decode(payload).ok()?.item(0).ok()?.key.to_vec())
    }

    /// A page of keys before which all keys are below this one.
    fn page_of(&mut self, key: &[u8]) -> u32 {
        let (mut low, mut high) = (0, self.description.key_pages);
        while !key.is_empty() && high - low > 1 {
            let middle = low + (high - low) / 2;
            let known = (middle..high).find_map(|page| Some((page, self.first_key(page)?)));
            match known {
                Some((page, first)) if &first[..] <= key => low = page,
                // Pages before it may hold the key all the same: they are looked through.
                _ => high = middle,
            }
        }
        low
    }

    /// The first and the last key that can be read.
    pub(super) fn ends(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let pages = self.description.key_pages;
        let first = (0..pages).find_map(|page| self.items(page, None).0.into_iter().next())?;
        let last = (0..pages).rev().find_map(|page| self.items(page, None).0.pop())?;
        Some((first.key, last.key))
    }

    /// Whether each page of keys and values is there.
    pub(super) fn is_whole(&mut self) -> bool {
        [Section::Keys, Section::Values].into_iter().all(|section| {
            let count = self.section(section).1;
            (0..count).all(|page| self.payload(section, page).is_ok())
        })
    }

    /// Whether a page of keys is there, as far as a few of them tell.
    pub(super) fn may_have_keys(&mut self) -> bool {
        let count = self.section(Section::Keys).1;
        let step = (count / PAGES_AT_ONCE).max(1) as usize;
        (0..count).step_by(step).any(|page| self.payload(Section::Keys, page).is_ok())
    }

    /// Notes damage of pages that no record lies in.
    pub(super) fn check_front(&mut self, notes: &mut Notes) {
        for section in [Section::Index, Section::Filter] {
            for page in 0..self.section(section).1 {
                if let Err(found) = self.payload(section, page) {
                    self.note(notes, section, page, &found);
                }
            }
        }
    }
}
