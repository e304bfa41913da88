//! Keys that newer parts have decided, while a salvage goes from new to old.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::salvage::LostRange;

/// Key ranges that newer parts have decided. They neither overlap nor touch.
#[derive(Debug, Default)]
pub struct Covered {
    ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Covered {
    /// Returns whether a newer part has decided this key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let floor = self.ranges.range::<[u8], _>((Unbounded, Included(key))).next_back();
        floor.is_some_and(|(_, upper)| upper.as_deref().is_none_or(|upper| key < upper))
    }

    /// Returns the parts of a range that are not covered.
    #[must_use]
    pub fn free(&self, lower: &[u8], upper: Option<&[u8]>) -> Vec<LostRange> {
        let mut free = Vec::new();
        let mut from = lower.to_vec();
        let floor = self.ranges.range::<[u8], _>((Unbounded, Included(lower))).next_back();
        let above = (Excluded(lower), Unbounded);
        for (start, end) in floor.into_iter().chain(self.ranges.range::<[u8], _>(above)) {
            if upper.is_some_and(|upper| start.as_slice() >= upper) {
                break;
            }
            if *start > from {
                free.push(LostRange { lower: from.clone(), upper: Some(start.clone()) });
            }
            match end {
                None => return free,
                Some(end) if *end > from => from.clone_from(end),
                Some(_) => {}
            }
        }
        if upper.is_none_or(|upper| from.as_slice() < upper) {
            free.push(LostRange { lower: from, upper: upper.map(<[u8]>::to_vec) });
        }
        free
    }

    /// Marks a range as decided.
    pub fn add(&mut self, mut lower: Vec<u8>, mut upper: Option<Vec<u8>>) {
        let later = |one: Option<Vec<u8>>, other: Option<Vec<u8>>| match (one, other) {
            (Some(one), Some(other)) => Some(one.max(other)),
            _ => None,
        };
        let floor =
            self.ranges.range::<[u8], _>((Unbounded, Included(lower.as_slice()))).next_back();
        let reaches = |end: &Option<Vec<u8>>| end.as_ref().is_none_or(|end| *end >= lower);
        let floor = floor.filter(|(_, end)| reaches(end)).map(|(start, _)| start.clone());
        if let Some((start, end)) = floor.and_then(|start| self.ranges.remove_entry(&start)) {
            lower = start;
            upper = later(upper, end);
        }
        while let Some((start, _)) = self.ranges.range(lower.clone()..).next()
            && upper.as_ref().is_none_or(|upper| start <= upper)
        {
            let start = start.clone();
            let end = self.ranges.remove(&start).flatten();
            upper = later(upper, end);
        }
        self.ranges.insert(lower, upper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Ranges of single bytes, beside a set of bytes.
        #[test]
        fn covered_ranges_agree_with_a_set(ranges in proptest::collection::vec((0u8..30, 0u8..32), 1..20)) {
            let mut covered = Covered::default();
            let mut set = BTreeSet::new();
            for (lower, upper) in ranges {
                let end = (upper < 30).then(|| vec![upper.max(lower + 1)]);
                let last = end.as_ref().map_or(40, |end| end[0]);
                let free = covered.free(&[lower], end.as_deref());
                let expected: Vec<u8> = (lower..last).filter(|key| !set.contains(key)).collect();
                let found: Vec<u8> = free
                    .iter()
                    .flat_map(|range| range.lower[0]..range.upper.as_ref().map_or(40, |upper| upper[0]))
                    .collect();
                prop_assert_eq!(found, expected);
                covered.add(vec![lower], end);
                set.extend(lower..last);
                for key in 0..40 {
                    prop_assert_eq!(covered.contains(&[key]), set.contains(&key));
                }
                let all: Vec<_> = covered.ranges.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].1.as_ref().is_some_and(|end| end < pair[1].0)));
            }
        }
    }
}
