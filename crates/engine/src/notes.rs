//! What a salvage finds beside records.

use std::collections::BTreeMap;

use spinney_base::PageNumber;
use spinney_extent::header::Damage;
use spinney_extent::{FoundPage, Store};

use crate::salvage::{LostRange, SalvageFindings};
use crate::scrub::DamagedPage;

/// Damaged pages, and the key ranges that they affect.
#[derive(Debug, Default)]
pub struct Notes {
    damaged: BTreeMap<PageNumber, String>,
    lost: Ranges,
    older: Ranges,
}

impl Notes {
    /// Notes a page that should belong to something in use.
    pub fn page(&mut self, page: PageNumber, found: &FoundPage) {
        match found {
            FoundPage::Whole => {}
            FoundPage::Other(damage) | FoundPage::Blank(damage) | FoundPage::Damaged(damage) => {
                self.damaged(page, damage);
            }
        }
    }

    /// Notes a damaged page.
    pub fn damaged(&mut self, page: PageNumber, damage: &Damage) {
        let what = || format!("expected {}, found {}", damage.expected, damage.found);
        self.damaged.entry(page).or_insert_with(what);
    }

    /// Notes a range whose records are lost.
    pub fn lost(&mut self, range: LostRange) {
        self.lost.add(range);
    }

    /// Notes a range whose records may be older versions.
    pub fn older(&mut self, range: LostRange) {
        self.older.add(range);
    }

    /// Notes that the newest record of a key is lost, and whether an older one was found.
    pub fn key(&mut self, key: &[u8], is_older: bool) {
        let ranges = if is_older { &mut self.older } else { &mut self.lost };
        ranges.add_key(key);
    }

    /// Notes a sound record: damage after it is a range of its own.
    pub fn whole(&mut self) {
        self.lost.is_open = false;
        self.older.is_open = false;
    }

    /// Adds the notes of another part.
    pub fn add(&mut self, other: Notes) {
        for (page, what) in other.damaged {
            self.damaged.entry(page).or_insert(what);
        }
        other.lost.ranges.into_iter().for_each(|range| self.lost.add(range));
        other.older.ranges.into_iter().for_each(|range| self.older.add(range));
    }

    /// Adds all notes to the findings.
    pub fn tell(self, store: &Store, findings: &mut SalvageFindings) {
        for (page, what) in self.damaged {
            let (file, offset) = (store.path().to_owned(), page.offset());
            findings.damaged.push(DamagedPage { file, offset, what });
        }
        findings.lost.extend(self.lost.ranges);
        findings.older.extend(self.older.ranges);
    }
}

/// Ranges in the order in which they were found; ranges that touch are joined.
#[derive(Debug, Default)]
struct Ranges {
    ranges: Vec<LostRange>,
    /// Whether no sound record came since the last key that was added.
    is_open: bool,
}

impl Ranges {
    fn add(&mut self, range: LostRange) {
        self.is_open = false;
        if range.upper.as_ref().is_some_and(|upper| *upper <= range.lower) {
            return;
        }
        match self.ranges.last_mut() {
            Some(last)
                if last.lower <= range.lower
                    && last.upper.as_ref().is_none_or(|upper| *upper >= range.lower) =>
            {
                last.upper = match (last.upper.take(), range.upper) {
                    (Some(one), Some(other)) => Some(one.max(other)),
                    _ => None,
                };
            }
            _ => self.ranges.push(range),
        }
    }

    fn add_key(&mut self, key: &[u8]) {
        let upper = [key, &[0]].concat();
        match self.ranges.last_mut() {
            Some(last) if self.is_open && last.lower.as_slice() <= key => {
                last.upper = last.upper.take().map(|last| last.max(upper));
            }
            _ => self.add(LostRange { lower: key.to_vec(), upper: Some(upper) }),
        }
        self.is_open = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lower: &str, upper: &str) -> LostRange {
        LostRange { lower: lower.into(), upper: Some(upper.into()) }
    }

    #[test]
    fn what_touches_is_one_range() {
        let mut ranges = Ranges::default();
        ranges.add(range("a", "c"));
        ranges.add(range("c", "d"));
        ranges.add(range("f", "e"));
        ranges.add_key(b"k");
        ranges.add_key(b"m");
        ranges.is_open = false;
        ranges.add_key(b"o");
        let expected = [range("a", "d"), range("k", "m\0"), range("o", "o\0")];
        assert_eq!(ranges.ranges, expected);
    }
}
