//! Looking keys up by single pages.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::Result;
use spinney_cache::PageRef;
use spinney_extent::HEADER_BYTES;
use spinney_extent::header::Damage;
use spinney_io::Purpose;

use super::format::{GroupAt, Head, IndexNode, KeyPage, PAYLOAD, Section, Target};
use super::warm::Lookup;
use super::{Leaf, Loading, Reach, payload};
use crate::edit::Hit;
use crate::run::Op;

/// More steps than any search takes: a leaf has less than 2^32 groups and its index is balanced.
const STEPS_MAX: u32 = 64;

/// A key's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The page of keys.
    pub(crate) page: u32,
    /// The item, in the whole leaf; one behind the last when all keys are lower.
    pub(crate) item: u32,
    /// Whether the item has the key that was looked for.
    pub(crate) found: bool,
}

impl Lookup<'_> {
    /// Looks the key up; answers the index of its item and what it is. A value or pointer is
    /// appended to `out`.
    ///
    /// # Errors
    /// `Corruption` or `Io`; `out` is as it was.
    pub(crate) fn get(&self, out: &mut Vec<u8>) -> Result<Option<(u32, Hit)>> {
        self.get_within(out, &Loading)
    }

    /// Whether the filter is worth asking.
    #[inline]
    pub(super) fn asks_filter(&self) -> bool {
        !self.is_last || self.leaf.files.absences.are_many()
    }

    /// Looks the key up as [`Lookup::get`] does, as far as `reach` goes.
    pub(super) fn get_within<R: Reach>(
        &self,
        out: &mut Vec<u8>,
        reach: &R,
    ) -> Result<Option<(u32, Hit)>, R::Stop> {
        let Lookup { leaf, key, hash, is_last } = *self;
        let asks_filter = self.asks_filter();
        let note = |is_absent| {
            if R::COUNTS && is_last {
                leaf.files.absences.note(is_absent);
            }
        };
        if asks_filter && !leaf.may_contain(hash, reach)? {
            note(true);
            return Ok(None);
        }
        let at = leaf.search(key, reach)?;
        let page = reach.page(leaf, Section::Keys, at.page)?;
        let look = || {
            let group = KeyPage::decode(payload(&page))?.group(at.group as usize)?;
            let (index, found) = group.search(key)?;
            let item = if found { Some(group.item(index)?) } else { None };
            Ok(item.map(|item| (group.first.saturating_add(index as u32), item)))
        };
        let found = look().map_err(|damage| leaf.damaged(Section::Keys, at.page, damage))?;
        note(found.is_none());
        let Some((index, item)) = found else {
            if R::COUNTS && asks_filter && leaf.description().filter_blocks > 0 {
                leaf.files.counters.filter_false_positives.fetch_add(1, Relaxed);
            }
            return Ok(None);
        };
        let hit = match item.op {
            Op::Put => Hit::Inline,
            Op::PutLarge => Hit::Large,
            Op::Delete => return Ok(Some((index, Hit::Deleted))),
        };
        let (value, length) = (item.value, item.value_length);
        drop(page);
        leaf.read_value(value, length, out, reach)?;
        Ok(Some((index, hit)))
    }
}

impl Leaf {
    /// Looks a key up as in a leaf that older ones follow.
    #[cfg(test)]
    pub(crate) fn get(
        &self,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<(u32, Hit)>> {
        Lookup { leaf: self, key, hash, is_last: false }.get(out)
    }

    /// Index of the first item whose key is not below `key`.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look with it"))]
    pub(crate) fn lower_bound(&self, key: &[u8]) -> Result<u32> {
        Ok(self.find(key)?.item)
    }

    /// The place of a key, or where it would be.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Place> {
        self.find_in(key).map(|(place, _)| place)
    }

    /// Returns the place of a key, with the page of keys where it was looked for.
    pub(crate) fn find_in(&self, key: &[u8]) -> Result<(Place, PageRef<'_>)> {
        let at = self.search(key, &Loading)?;
        let page = self.page(Section::Keys, at.page, Purpose::LOOKUP)?;
        let look = || {
            let group = KeyPage::decode(payload(&page))?.group(at.group as usize)?;
            let (index, found) = group.search(key)?;
            let item = group.first.saturating_add(index as u32);
            if item > self.description().items {
                return Err(Damage::new("an item of the leaf", item));
            }
            Ok(Place { page: at.page, item, found })
        };
        let place = look().map_err(|damage| self.damaged(Section::Keys, at.page, damage))?;
        Ok((place, page))
    }

    /// The group that has the key if the leaf has it.
    fn search<R: Reach>(&self, key: &[u8], reach: &R) -> Result<GroupAt, R::Stop> {
        let damaged = |page, damage| self.damaged(Section::Index, page, damage);
        let mut number = 0;
        let mut page = reach.page(self, Section::Index, 0)?;
        let head = Head::decode(payload(&page), self.description()).map_err(|it| damaged(0, it))?;
        let mut target = head.root;
        let before = key.len().min(head.prefix.len());
        let beside = key[..before].cmp(&head.prefix[..before]);
        // A key that does not begin as all do is below all or above all.
        let beside =
            beside.then(if before < head.prefix.len() { Ordering::Less } else { Ordering::Equal });
        let rest = key.get(head.prefix.len()..).unwrap_or_default();
        for _ in 0..STEPS_MAX {
            let address = match target {
                Target::Group(at) => return Ok(at),
                Target::Node(address) => address as usize,
            };
            let on = u32::try_from(address / PAYLOAD).unwrap_or(u32::MAX);
            if on != number {
                page = reach.page(self, Section::Index, on)?;
                number = on;
            }
            let node = IndexNode::decode(payload(&page), address % PAYLOAD)
                .map_err(|it| damaged(on, it))?;
            let left = match beside {
                Ordering::Less => true,
                Ordering::Equal => rest < node.separator,
                Ordering::Greater => false,
            };
            target = if left { node.left } else { node.right };
        }
        Err(damaged(0, Damage::new("an index without circles", "one")).into())
    }

    /// Appends bytes of the section of values.
    fn read_value<R: Reach>(
        &self,
        address: u64,
        length: usize,
        out: &mut Vec<u8>,
        reach: &R,
    ) -> Result<(), R::Stop> {
        let pages = address / PAYLOAD as u64..(address + length as u64).div_ceil(PAYLOAD as u64);
        if pages.end - pages.start > 1 {
            reach.expect(self, pages);
        }
        let before = out.len();
        out.resize(before + length, 0);
        let result = self.read_value_to(address, &mut out[before..], reach);
        if result.is_err() {
            out.truncate(before);
        }
        result
    }

    fn read_value_to<R: Reach>(
        &self,
        mut address: u64,
        mut out: &mut [u8],
        reach: &R,
    ) -> Result<(), R::Stop> {
        while !out.is_empty() {
            let page = u32::try_from(address / PAYLOAD as u64).unwrap_or(u32::MAX);
            let at = (address % PAYLOAD as u64) as usize;
            let here = out.len().min(PAYLOAD - at);
            let (now, rest) = out.split_at_mut(here);
            let at = HEADER_BYTES + at;
            let is_there = page < self.section(Section::Values).1
                && self.files.cache.copy(self.page_id(Section::Values, page), at, now);
            if !is_there {
                let page = reach.page(self, Section::Values, page)?;
                now.copy_from_slice(&page[at..at + here]);
            }
            address += here as u64;
            out = rest;
        }
        Ok(())
    }
}
