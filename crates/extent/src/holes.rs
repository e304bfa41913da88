//! Free pages whose disk space has gone back to the file system.
//!
//! **Invariants**: ranges do not overlap and do not touch; every page in them is free, or being
//! punched. What is not known to be a hole may be one: after an open nothing is known.

use std::collections::BTreeMap;

use crate::free::Extent;

/// Ranges of pages: the beginning of each, and its end (exclusive).
#[derive(Debug, Default)]
pub(crate) struct Holes {
    ranges: BTreeMap<u32, u32>,
    pages: u64,
}

impl Holes {
    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of pages inside an extent.
    pub(crate) fn pages_of(&self, extent: Extent) -> u32 {
        self.pages_in(bounds(extent))
    }

    fn pages_in(&self, (first, end): (u32, u32)) -> u32 {
        let before = self.ranges.range(..first).next_back();
        let inside = before.into_iter().chain(self.ranges.range(first..end));
        inside.map(|(start, stop)| (*stop).min(end).saturating_sub((*start).max(first))).sum()
    }

    /// Adds the pages from `first` up to, not including, `end`.
    pub(crate) fn insert(&mut self, mut first: u32, mut end: u32) {
        self.remove_range(first, end);
        self.pages += u64::from(end - first);
        if let Some((start, stop)) = self.ranges.range(..first).next_back()
            && *stop == first
        {
            first = *start;
        }
        if let Some(stop) = self.ranges.remove(&end) {
            end = stop;
        }
        self.ranges.insert(first, end);
    }

    pub(crate) fn remove(&mut self, extent: Extent) {
        let (first, end) = bounds(extent);
        self.remove_range(first, end);
    }

    fn remove_range(&mut self, first: u32, end: u32) {
        if self.pages == 0 {
            return;
        }
        self.pages -= u64::from(self.pages_in((first, end)));
        // A range that begins before and overlaps is cut, and may continue after.
        if let Some((start, stop)) = self.ranges.range(..first).next_back()
            && *stop > first
        {
            let (start, stop) = (*start, *stop);
            self.ranges.insert(start, first);
            if stop > end {
                self.ranges.insert(end, stop);
            }
        }
        while let Some((start, stop)) = self.ranges.range(first..end).next() {
            let (start, stop) = (*start, *stop);
            self.ranges.remove(&start);
            if stop > end {
                self.ranges.insert(end, stop);
            }
        }
    }
}

fn bounds(extent: Extent) -> (u32, u32) {
    (extent.page.0, extent.page.0 + extent.pages())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spinney_base::PageNumber;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in proptest::collection::vec((any::<bool>(), 0u8..4, 0u32..64), 1..80)) {
            let mut holes = Holes::default();
            let mut set = BTreeSet::new();
            for (insert, order, place) in steps {
                let extent = Extent { page: PageNumber(place >> order << order), order };
                let (first, end) = bounds(extent);
                if insert {
                    holes.insert(first, end);
                    set.extend(first..end);
                } else {
                    holes.remove(extent);
                    set.retain(|page| !(first..end).contains(page));
                }
                prop_assert_eq!(holes.pages(), set.len() as u64);
                for order in 0..7 {
                    for page in (0..128).step_by(1 << order) {
                        let extent = Extent { page: PageNumber(page), order };
                        let (first, end) = bounds(extent);
                        prop_assert_eq!(holes.pages_of(extent) as usize, set.range(first..end).count());
                    }
                }
                let ranges: Vec<_> = holes.ranges.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
