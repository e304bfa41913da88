//! A set of pages as extents, for what is free and for what waits to be free.
//!
//! For each order one set of bits ([`bits`](crate::bits)), of which bit `n` says that the extent of
//! 2^order pages at page `n << order` is in the set:
//!
//! ```text
//! pages     0  1  2  3  4  5  6  7  8  9 10 11     in the set: 1, 2, 3, 4..12
//! order 0      1                                   bit 1
//! order 1            1                             bit 1
//! order 2                  1           1           bits 1 and 2; no buddies, so not one of order 3
//! ```
//!
//! Where all is scattered over single pages that is a bit a page and its share of summaries, and
//! all orders together have at most twice as many bits as there are pages.
//!
//! **Invariants**
//! 1. Extents of the set do not overlap, and two buddies are always one extent of the next order.
//! 2. So the same pages always make the same extents, whatever the order in which they came.

use spinney_base::PageNumber;

use crate::bits::Bits;
use crate::free::{Extent, ORDER_MAX, extents_of};

/// What to do with an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Take it.
    Take,
    /// Skip it.
    Pass,
    /// Skip it and all others.
    Stop,
}

/// A set of pages of one store file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents {
    by_order: [Bits; ORDER_MAX as usize + 1],
    pages: u64,
}

impl Extents {
    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds an extent, and merges it with its buddies.
    ///
    /// # Panics
    /// When its first page is in the set already: its owner gave it back twice.
    pub(crate) fn put(&mut self, extent: Extent) {
        assert!(!self.contains(extent.page), "page {} was freed twice", extent.page);
        self.pages += u64::from(extent.pages());
        let (mut page, mut order) = (extent.page.0, extent.order);
        while order < ORDER_MAX {
            let buddy = (page >> order) ^ 1;
            if !self.by_order[usize::from(order)].remove(buddy) {
                break;
            }
            page &= !(1 << order);
            order += 1;
        }
        self.by_order[usize::from(order)].insert(page >> order);
    }

    /// Adds the pages from `start` up to, not including, `end`.
    pub(crate) fn put_range(&mut self, start: u32, end: u32) {
        extents_of(start, end).for_each(|extent| self.put(extent));
    }

    /// Adds all pages of another set, which this one has none of.
    pub(crate) fn join(&mut self, mut other: Extents) {
        // The smaller one moves.
        if other.pages > self.pages {
            std::mem::swap(self, &mut other);
        }
        other.iter().for_each(|extent| self.put(extent));
    }

    /// Returns all extents, order by order, and those of one order ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.orders(0).flat_map(|(order, bits)| {
            bits.iter().map(move |place| Extent { page: PageNumber(place << order), order })
        })
    }

    /// Returns whether a page is in the set.
    pub(crate) fn contains(&self, page: PageNumber) -> bool {
        self.orders(0).any(|(order, bits)| bits.contains(page.0 >> order))
    }

    /// Takes the lowest extent of `order`, and splits a larger one if there is none. Returns `None`
    /// when there is no such, either.
    pub(crate) fn take(&mut self, order: u8) -> Option<Extent> {
        let orders = (order..=ORDER_MAX).zip(&mut self.by_order[usize::from(order)..]);
        let (from, place) = { orders }.find_map(|(from, bits)| Some((from, bits.take_first()?)))?;
        let page = place << from;
        for half in order..from {
            self.by_order[usize::from(half)].insert((page >> half) + 1);
        }
        self.pages -= 1 << order;
        Some(Extent { page: PageNumber(page), order })
    }

    /// Takes `pages` consecutive pages at any position, from the shortest run that is long enough,
    /// or the lowest of equals. Returns `None` when there is no such run.
    pub(crate) fn take_run(&mut self, pages: u32) -> Option<PageNumber> {
        let (first, _) = self.best_run(pages)?;
        let end = first + pages;
        let mut next = first;
        while next < end {
            // Each extent of a run begins where the one before ends.
            let extent = self.beginning_at(next).expect("a run is made of extents");
            self.by_order[usize::from(extent.order)].remove(next >> extent.order);
            self.pages -= u64::from(extent.pages());
            next += extent.pages();
        }
        self.put_range(end, next);
        Some(PageNumber(first))
    }

    fn best_run(&self, pages: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        for (first, length) in self.runs(order_within(pages)) {
            if length >= pages && best.is_none_or(|(_, shortest)| length < shortest) {
                best = Some((first, length));
                if length == pages {
                    break;
                }
            }
        }
        best
    }

    /// Returns all runs of pages in which there is an extent of `order` or more, as first page and
    /// length, in ascending order.
    pub(crate) fn runs(&self, order: u8) -> impl Iterator<Item = (u32, u32)> {
        // The next extent of each order, from which the runs are found.
        let mut next: Vec<_> =
            self.orders(order).filter_map(|(of, bits)| Some((bits.first()? << of, of))).collect();
        std::iter::from_fn(move || {
            let (seed, _) = next.iter().min()?;
            let run = self.run_around(*seed);
            next.retain_mut(|(page, of)| {
                if *page >= run.1 {
                    return true;
                }
                // Rounded up: an extent that begins in the run is a part of it.
                let from = (run.1 >> *of) + u32::from(run.1 & ((1 << *of) - 1) > 0);
                let place = self.by_order[usize::from(*of)].at_or_after(from);
                *page = place.map_or(0, |place| place << *of);
                place.is_some()
            });
            Some((run.0, run.1 - run.0))
        })
    }

    /// Returns the beginning and the end of the longest run that has the extent at page `first`.
    fn run_around(&self, mut first: u32) -> (u32, u32) {
        let mut end = first;
        while let Some(extent) = self.beginning_at(end) {
            end += extent.pages();
        }
        while let Some(extent) = self.ending_at(first) {
            first -= extent.pages();
        }
        (first, end)
    }

    fn beginning_at(&self, page: u32) -> Option<Extent> {
        let fits = |order: &u8| page & ((1 << order) - 1) == 0;
        let mut orders = (0..=ORDER_MAX).take_while(fits);
        let order =
            orders.find(|order| self.by_order[usize::from(*order)].contains(page >> order))?;
        Some(Extent { page: PageNumber(page), order })
    }

    fn ending_at(&self, end: u32) -> Option<Extent> {
        let fits = |order: &u8| end & ((1 << order) - 1) == 0 && end > 0;
        let mut orders = (0..=ORDER_MAX).take_while(fits);
        let before = |order: u8| (end >> order) - 1;
        let order =
            orders.find(|order| self.by_order[usize::from(*order)].contains(before(*order)))?;
        Some(Extent { page: PageNumber(before(order) << order), order })
    }

    /// Takes extents as `wanted` says, which sees the largest first, and the highest of equals.
    pub(crate) fn take_largest(&mut self, mut wanted: impl FnMut(Extent) -> Wanted) -> Vec<Extent> {
        let mut taken = Vec::new();
        'all: for order in (0..=ORDER_MAX).rev() {
            for place in self.by_order[usize::from(order)].iter_back() {
                let extent = Extent { page: PageNumber(place << order), order };
                match wanted(extent) {
                    Wanted::Take => taken.push(extent),
                    Wanted::Pass => {}
                    Wanted::Stop => break 'all,
                }
            }
        }
        for extent in &taken {
            self.by_order[usize::from(extent.order)].remove(extent.page.0 >> extent.order);
            self.pages -= u64::from(extent.pages());
        }
        taken
    }

    /// Returns the sets of bits of orders from `order` on that are not empty.
    fn orders(&self, order: u8) -> impl Iterator<Item = (u8, &Bits)> {
        (0..).zip(&self.by_order).skip(usize::from(order)).filter(|(_, bits)| !bits.is_empty())
    }

    /// Returns the bytes of memory that the set takes beside its own value.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.by_order.iter().map(Bits::heap_bytes).sum()
    }
}

/// Returns the order of an extent that lies in every run of `pages` pages, wherever it begins:
/// 2^k aligned pages lie within any 2^(k+1) - 1.
fn order_within(pages: u32) -> u8 {
    let order = u64::from(pages).saturating_add(1).ilog2().saturating_sub(1);
    #[expect(clippy::cast_possible_truncation, reason = "at most ORDER_MAX")]
    let order = order.min(u32::from(ORDER_MAX)) as u8;
    order
}

#[cfg(test)]
mod tests;
