//! The free map: a buddy allocator over page numbers.
//!
//! An extent of order k is 2^k pages that begin at a multiple of 2^k. Free extents are a set of bits
//! for each order (`extents`), so the lowest is taken first and files stay dense at the front, and
//! millions of free single pages take a bit each. The map is never stored: what is free is what no
//! owner names, so it is rebuilt at open from the owners
//! ([`FreeMap::rebuild`]), and a page with two owners is found there. Before that nobody knows what
//! is free, and what is given back is not noted: the rebuilt map has it free without that, and
//! where it cannot be made because two owners have a page, both give it back.
//!
//! **Invariants**
//! 1. No two free extents overlap, and two free buddies are always merged.
//! 2. Every page from the first data page to the end is owned once, free once, or held back until
//!    its freeing is durable.

use spinney_base::{Error, ErrorKind, PageNumber, Result};

use crate::extents::{Extents, Wanted};

/// Largest order: extents of 2^15 pages, 128 MiB.
pub const ORDER_MAX: u8 = 15;

/// 2^`order` consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// First page, a multiple of the number of pages.
    pub page: PageNumber,
    /// Binary logarithm of the number of pages.
    pub order: u8,
}

impl Extent {
    /// Makes an extent of one page.
    #[must_use]
    pub fn single(page: PageNumber) -> Self {
        Extent { page, order: 0 }
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn pages(self) -> u32 {
        1 << self.order
    }

    /// Returns whether it is a valid extent; a decoded one may not be.
    pub(crate) fn is_aligned(self) -> bool {
        self.order <= ORDER_MAX
            && self.page.0.is_multiple_of(self.pages())
            && self.page.0.checked_add(self.pages()).is_some()
    }
}

/// Free extents of one store file.
#[derive(Debug, Default)]
pub struct FreeMap {
    free: Extents,
    /// Whether the map was built from owners.
    is_rebuilt: bool,
}

impl FreeMap {
    /// Builds the map of a file whose pages from `first` up to, not including, `end` are free
    /// except those of `owned`.
    ///
    /// # Errors
    /// `Corruption` when an owned extent is outside the range or two overlap.
    pub fn rebuild(
        first: PageNumber,
        end: PageNumber,
        owned: impl IntoIterator<Item = Extent>,
    ) -> Result<FreeMap> {
        let mut owned: Vec<Extent> = owned.into_iter().collect();
        owned.sort_unstable();
        let mut map = FreeMap { is_rebuilt: true, ..FreeMap::default() };
        let mut next = first.0;
        for extent in owned {
            let past = u64::from(extent.page.0) + u64::from(extent.pages());
            if extent.page.0 < next || past > u64::from(end.0) {
                return Err(Error::new(
                    ErrorKind::Corruption,
                    format!(
                        "pages {} to {past} have two owners or lie outside the file's {end} pages",
                        extent.page
                    ),
                ));
            }
            map.add_range(next, extent.page.0);
            next = extent.page.0 + extent.pages();
        }
        map.add_range(next, end.0);
        Ok(map)
    }

    /// Returns the number of free pages.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.free.pages()
    }

    /// Takes the lowest free extent of `order`, and splits a larger one if none fits. Returns
    /// `None` when there is none.
    pub fn allocate(&mut self, order: u8) -> Option<Extent> {
        self.free.take(order)
    }

    /// Takes `pages` consecutive pages at any position, from the shortest run of free pages that is
    /// long enough, or the lowest of equals. A single page comes from where single pages are taken.
    /// Returns `None` when there is no such run.
    pub(crate) fn allocate_run(&mut self, pages: u32) -> Option<PageNumber> {
        if pages == 1 {
            return self.allocate(0).map(|extent| extent.page);
        }
        self.free.take_run(pages)
    }

    /// Frees an extent, and merges it with its free buddies. A map that was not rebuilt is
    /// unchanged.
    ///
    /// # Panics
    /// When part of it is free already: its owner gave it back twice.
    pub fn release(&mut self, extent: Extent) {
        if self.is_rebuilt {
            self.free.put(extent);
        }
    }

    /// Takes free extents as `wanted` says, which sees the largest first, and the highest of
    /// equals.
    pub(crate) fn take_largest(&mut self, wanted: impl FnMut(Extent) -> Wanted) -> Vec<Extent> {
        self.free.take_largest(wanted)
    }

    /// Adds the pages from `start` up to, not including, `end`.
    pub fn add_range(&mut self, start: u32, end: u32) {
        self.free.put_range(start, end);
    }

    /// Returns whether a page is free.
    #[must_use]
    pub fn contains(&self, page: PageNumber) -> bool {
        self.free.contains(page)
    }
}

/// Returns the extents that make up the pages from `start` up to, not including, `end`, in order.
pub(crate) fn extents_of(start: u32, end: u32) -> impl Iterator<Item = Extent> {
    let mut page = start;
    std::iter::from_fn(move || {
        let fits = end.checked_sub(page).filter(|left| *left > 0)?.ilog2();
        let aligned = if page == 0 { 31 } else { page.trailing_zeros() };
        let order = fits.min(aligned).min(u32::from(ORDER_MAX));
        #[expect(clippy::cast_possible_truncation, reason = "at most ORDER_MAX")]
        let extent = Extent { page: PageNumber(page), order: order as u8 };
        page += extent.pages();
        Some(extent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn all_free(first: u32, end: u32) -> FreeMap {
        FreeMap::rebuild(PageNumber(first), PageNumber(end), []).unwrap()
    }

    #[test]
    fn two_owners_are_found() {
        let extents = |list: &[(u32, u8)]| {
            let owned =
                list.iter().map(|(page, order)| Extent { page: PageNumber(*page), order: *order });
            FreeMap::rebuild(PageNumber(8), PageNumber(64), owned.collect::<Vec<_>>())
        };
        assert_eq!(extents(&[(16, 3), (9, 0)]).unwrap().free_pages(), 56 - 9);
        assert!(extents(&[(16, 3), (17, 0)]).unwrap_err().is_corruption());
        assert!(extents(&[(9, 0), (9, 0)]).unwrap_err().is_corruption());
        assert!(extents(&[(4, 0)]).unwrap_err().is_corruption());
        assert!(extents(&[(64, 0)]).unwrap_err().is_corruption());
        assert!(extents(&[(u32::MAX, 3)]).unwrap_err().is_corruption());
    }

    #[test]
    fn what_is_free_is_not_known_before_owners_are() {
        let mut map = FreeMap::default();
        (0..2).for_each(|_| map.release(Extent::single(PageNumber(3))));
        assert_eq!((map.free_pages(), map.allocate(0)), (0, None));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_a_bug() {
        let mut map = all_free(0, 8);
        map.release(Extent::single(PageNumber(3)));
    }

    #[test]
    fn a_run_is_taken_where_it_fits_best() {
        let owned = [8, 9, 30].map(|page| Extent::single(PageNumber(page)));
        let mut map = FreeMap::rebuild(PageNumber(8), PageNumber(64), owned).unwrap();
        assert_eq!(map.free.runs(0).collect::<Vec<_>>(), [(10, 20), (31, 33)]);
        assert_eq!(map.allocate_run(34), None);
        assert_eq!(map.allocate_run(21), Some(PageNumber(31)));
        assert_eq!(map.allocate_run(11), Some(PageNumber(52)));
        assert_eq!(map.allocate_run(7), Some(PageNumber(10)));
        assert_eq!(map.free.runs(0).collect::<Vec<_>>(), [(17, 13), (63, 1)]);
        assert_eq!(map.free_pages(), 14);
    }

    proptest! {
        /// Runs and extents together: nothing is owned twice, and all merges again.
        #[test]
        fn runs_never_overlap(sizes in proptest::collection::vec((1u32..40, any::<bool>()), 1..100)) {
            let mut map = all_free(128, 128 + 512);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (pages, give_back) in sizes {
                if give_back && !held.is_empty() {
                    let (first, pages) = held.swap_remove(pages as usize % held.len());
                    map.add_range(first, first + pages);
                } else if let Some(first) = map.allocate_run(pages) {
                    let mine = first.0..first.0 + pages;
                    prop_assert!(held.iter().all(|(at, pages)| mine.end <= *at || at + pages <= mine.start));
                    prop_assert!(mine.clone().all(|page| !map.contains(PageNumber(page))));
                    held.push((first.0, pages));
                }
                let owned: u32 = held.iter().map(|(_, pages)| pages).sum();
                prop_assert_eq!(map.free_pages() + u64::from(owned), 512);
            }
            for (first, pages) in held {
                map.add_range(first, first + pages);
            }
            let fresh = all_free(128, 128 + 512);
            prop_assert_eq!(format!("{map:?}"), format!("{fresh:?}"));
        }

        /// Whatever is taken and given back, pages are taken once, extents are aligned, and all
        /// merge again in the end.
        #[test]
        fn allocations_never_overlap(orders in proptest::collection::vec((0u8..5, any::<bool>()), 1..200)) {
            let mut map = all_free(128, 128 + 512);
            let mut held: Vec<Extent> = Vec::new();
            let mut taken = BTreeSet::new();
            for (order, give_back) in orders {
                if give_back && !held.is_empty() {
                    let extent = held.swap_remove(usize::from(order) % held.len());
                    for page in extent.page.0..extent.page.0 + extent.pages() {
                        prop_assert!(taken.remove(&page));
                    }
                    map.release(extent);
                } else if let Some(extent) = map.allocate(order) {
                    prop_assert!(extent.page.0.is_multiple_of(extent.pages()));
                    for page in extent.page.0..extent.page.0 + extent.pages() {
                        prop_assert!(taken.insert(page));
                    }
                    held.push(extent);
                }
                prop_assert_eq!(map.free_pages() + taken.len() as u64, 512);
            }
            for extent in held {
                map.release(extent);
            }
            let fresh = all_free(128, 128 + 512);
            prop_assert_eq!(format!("{map:?}"), format!("{fresh:?}"));
        }
    }
}
