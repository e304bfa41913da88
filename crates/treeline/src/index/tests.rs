//! The index against a map that says the same in the simplest way, and under real threads.

use super::*;
use crate::marks::Marks;
use crate::segment::{Overflow, Staged};

use proptest::prelude::*;
use spinney_base::runtime::SplitMix;
use spinney_base::{Generation, PageNumber};
use std::collections::{BTreeMap, BTreeSet};

/// What is on a dirty list: first what is due, then the rest.
#[derive(Default)]
struct Ids {
    due: Vec<RecordId>,
    later: Vec<RecordId>,
}

impl Ids {
    fn all(&self) -> Vec<RecordId> {
        self.due.iter().chain(&self.later).copied().collect()
    }
}

type Model = BTreeMap<Vec<u8>, (Segment, Ids)>;

fn segment(page: u32) -> Segment {
    let base = PageRef { page: PageNumber(page), generation: Generation(1) };
    Segment::new(base, 0, None)
}

/// The id of a record is the number in its key, so that an id tells its key.
fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn keys_of(id: RecordId) -> Vec<Vec<u8>> {
    vec![key(id.0)]
}

struct Pair {
    index: SegmentIndex,
    model: Model,
    random: SplitMix,
    pages: u32,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut model = Model::new();
        model.insert(Vec::new(), (segment(1), Ids::default()));
        let index = SegmentIndex::new(vec![(Vec::new(), segment(1))], 7);
        Pair { index, model, random: SplitMix(seed), pages: 1 }
    }

    fn number(&mut self) -> u32 {
        u32::try_from(self.random.below(1000)).unwrap()
    }

    /// Neighbours give way to one to four others.
    fn change(&mut self) {
        let at = key(self.number());
        let first = self.model.range(..=at).next_back().unwrap().0.clone();
        let most = 1 + self.random.below(3);
        let before: Vec<(Vec<u8>, Segment)> = self
            .model
            .range(first.clone()..)
            .take(most)
            .map(|(lower, (segment, _))| (lower.clone(), segment.clone()))
            .collect();
        let end = self.model.range(first.clone()..).nth(before.len()).map(|(end, _)| end.clone());
        let mut bounds = vec![first.clone()];
        for _ in 0..self.random.below(4) {
            let bound = key(self.number());
            if bound > first && end.as_ref().is_none_or(|end| bound < *end) {
                bounds.push(bound);
            }
        }
        bounds.sort();
        bounds.dedup();
        let after: Vec<_> = bounds
            .into_iter()
            .map(|bound| {
                self.pages += 1;
                (bound, segment(self.pages))
            })
            .collect();
        let mut ids = Ids::default();
        for (lower, _) in &before {
            let Ids { due, later } = self.model.remove(lower).unwrap().1;
            ids.due.extend(due);
            ids.later.extend(later);
        }
        for (lower, segment) in &after {
            self.model.insert(lower.clone(), (segment.clone(), Ids::default()));
        }
        let mut seen = BTreeSet::new();
        for id in ids.due.into_iter().filter(|id| seen.insert(id.0)) {
            self.model.range_mut(..=key(id.0)).next_back().unwrap().1.1.due.push(id);
        }
        for id in ids.later.into_iter().filter(|id| seen.insert(id.0)) {
            self.model.range_mut(..=key(id.0)).next_back().unwrap().1.1.later.push(id);
        }
        let sequence = self.index.sequence();
        let mut told = 0;
        let change = Change { before, after };
        self.index.apply(&change, keys_of, |number| told = number).unwrap();
        assert_eq!((told, self.index.sequence()), (sequence + 1, sequence + 1));
    }

    fn overflow(&mut self) {
        let at = key(self.number());
        self.pages += 1;
        let page = PageRef { page: PageNumber(self.pages), generation: Generation(2) };
        let overflow = Overflow { index: 0, at: page };
        let (lower, (segment, _)) = self.model.range_mut(..=at).next_back().unwrap();
        if segment.overflows.is_empty() {
            let changed = segment.with_overflow(overflow);
            let before = std::mem::replace(segment, changed.clone());
            let expected = Change {
                before: vec![(lower.clone(), before.clone())],
                after: vec![(lower.clone(), changed)],
            };
            let recorded = |_, change| assert_eq!(change, expected);
            let with = |segment: &Segment| Some(segment.with_overflow(overflow));
            self.index.add_page(lower, before.base, with, recorded).unwrap();
        }
    }

    fn dirty(&mut self) {
        let number = self.number();
        let list = &mut self.model.range_mut(..=key(number)).next_back().unwrap().1.1;
        list.later.push(RecordId(number));
        assert_eq!(self.index.push_dirty(&key(number), RecordId(number)), list.all().len());
    }

    fn take(&mut self) {
        let at = key(self.number());
        let most = self.random.below(20);
        let (lower, (_, list)) = self.model.range_mut(..=at).next_back().unwrap();
        let of_due = most.min(list.due.len());
        let of_later = (most - of_due).min(list.later.len());
        let taken: Vec<_> = list.due.drain(..of_due).chain(list.later.drain(..of_later)).collect();
        let shown: Vec<_> = self.index.take_dirty(lower, most).iter().map(|one| one.id()).collect();
        assert_eq!(shown, taken);
        if most.is_multiple_of(3) {
            list.due.splice(..0, taken.iter().copied());
            let keys: Vec<_> = taken.iter().map(|id| (key(id.0), *id)).collect();
            let taken = keys.iter().map(|(key, id)| (key.as_slice(), *id));
            self.index.return_dirty(lower, taken);
        }
        assert_eq!(self.index.dirty(lower, &(0..16)), list.all());
    }

    fn mark_due(&mut self) {
        self.index.mark_due();
        for (_, ids) in self.model.values_mut() {
            ids.due.append(&mut ids.later);
        }
    }

    fn check(&mut self) {
        let bounds: Vec<&Vec<u8>> = self.model.keys().collect();
        for (place, lower) in bounds.iter().enumerate() {
            let upper = bounds.get(place + 1).map(|upper| IndexKey::new(upper));
            let segment = self.model[*lower].0.clone();
            let located = Located { lower: IndexKey::new(lower), upper, segment };
            assert_eq!(self.index.find(lower), located);
            let behind = [lower.as_slice(), &[0]].concat();
            assert_eq!(self.index.find(&behind), located);
            let expected = located.segment.place(lower, &behind, 0);
            assert_eq!(self.index.find_place(&behind, 0).0, expected);
            let above = located.upper.as_ref().map(IndexKey::bytes);
            assert_eq!(self.index.find_below(above), Some(located));
        }
        assert_eq!(self.index.find_below(Some(&[])), None);
        let mut shown = Vec::new();
        self.index.for_each(|lower, segment| shown.push((lower.to_vec(), segment.clone())));
        let expected =
            self.model.iter().map(|(lower, (segment, _))| (lower.clone(), segment.clone()));
        assert_eq!(shown, expected.collect::<Vec<_>>());
        let (mut due, mut from) = (Vec::new(), Some(Vec::new()));
        while let Some(here) = from {
            let (found, next) = self.index.due_segments(&here, 3, &mut 0);
            due.extend(found.into_iter().map(|located| located.lower.bytes().to_vec()));
            from = next;
        }
        let expected = self.model.iter().filter(|(_, (_, list))| !list.due.is_empty());
        assert_eq!(due, expected.map(|(lower, _)| lower.clone()).collect::<Vec<_>>());
        let count: usize = self.model.values().map(|(_, list)| list.due.len()).sum();
        assert_eq!(self.index.due.load(Ordering::SeqCst), count);
        let counts = self.index.counts();
        assert_eq!(counts.base_pages(), self.model.len() as u64);
        let overflows = self.model.values().filter(|(segment, _)| !segment.overflows.is_empty());
        assert_eq!(counts.overflow_pages, overflows.count() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_index_is_an_ordered_map_of_segments(seed: u64) {
        let mut pair = Pair::new(seed);
        let empty = pair.index.bytes();
        for _ in 0..300 {
            match pair.random.below(40) {
                0..8 => pair.change(),
                8..12 => pair.overflow(),
                12..20 => pair.take(),
                20 => pair.mark_due(),
                _ => pair.dirty(),
            }
        }
        pair.check();
        // All give way to one without a list again: nothing else is held.
        let before =
            pair.model.iter().map(|(lower, (segment, _))| (lower.clone(), segment.clone()));
        let change = Change { before: before.collect(), after: vec![(Vec::new(), segment(1))] };
        pair.index.apply(&change, keys_of, |_| ()).unwrap();
        pair.index.take_dirty(&[], usize::MAX);
        prop_assert_eq!((pair.index.bytes(), pair.index.is_due()), (empty, false));
        // The same without a number, from any segments to any others.
        let sequence = pair.index.sequence();
        let all = |from: u32| -> Vec<(Vec<u8>, Segment)> {
            let bounds = [vec![], key(from), key(from + 5), key(from + 9)];
            bounds.into_iter().zip(from..).map(|(lower, page)| (lower, segment(page))).collect()
        };
        let before = pair.index.replace_all(all(100));
        prop_assert_eq!(before, vec![(Vec::new(), segment(1))]);
        prop_assert_eq!(pair.index.replace_all(all(105)), all(100));
        let mut places = Vec::new();
        pair.index.for_each_place(|page| places.push(page.0));
        prop_assert_eq!(places, [105, 106, 107, 108]);
        prop_assert_eq!(pair.index.replace_all(Vec::new()), all(105));
        prop_assert!(pair.index.find(&[7]).segment.is_virtual());
        pair.index.replace_all(vec![(Vec::new(), segment(1))]);
        prop_assert_eq!((pair.index.bytes(), pair.index.sequence()), (empty, sequence));
    }
}

#[test]
fn a_change_of_what_is_not_there_is_refused() {
    let index = SegmentIndex::new(Vec::new(), 0);
    let one = |page| vec![(Vec::new(), segment(page))];
    let refused = Change { before: one(1), after: one(2) };
    let error = index.apply(&refused, keys_of, |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert_eq!(index.version(), 0);
    let virtual_one = vec![(Vec::new(), Segment::virtual_one())];
    index.apply(&Change { before: virtual_one, after: one(2) }, keys_of, |_| ()).unwrap();
    assert_eq!((index.version(), index.sequence()), (2, 1));
}

/// Keys that share an id are listed as often as there are keys, however often their segments change: doubled
/// by each change, two of them took a gigabyte.
#[test]
fn keys_that_share_an_id_are_not_listed_again_and_again() {
    let index = SegmentIndex::new(vec![(Vec::new(), segment(1))], 0);
    let id = RecordId(7);
    index.push_dirty(&key(1), id);
    index.push_dirty(&key(2), id);
    index.mark_due();
    for page in 1..16 {
        let one = |page| vec![(Vec::new(), segment(page))];
        let change = Change { before: one(page), after: one(page + 1) };
        index.apply(&change, |_| vec![key(1), key(2)], |_| ()).unwrap();
    }
    assert_eq!(index.dirty(&[], &(0..16)), [id, id]);
}

/// Threads make records dirty while segments split and join: each is on the list of its segment.
#[test]
fn no_dirty_record_is_missed_under_real_threads() {
    let index = SegmentIndex::new(vec![(Vec::new(), segment(1))], 0);
    std::thread::scope(|scope| {
        for thread in 0..2_u32 {
            let index = &index;
            scope.spawn(move || {
                for number in 0..20_000_u32 {
                    let number = (number * 7919 % 20_000) * 2 + thread;
                    index.push_dirty(&key(number), RecordId(number));
                    let (place, version) = index.find_place(&key(number), 0);
                    assert!(version.is_multiple_of(2) && place.page.page.0 > 0);
                }
            });
        }
        let (low, high) = (|page| (Vec::new(), segment(page)), |page| (key(20_000), segment(page)));
        for round in 0..2000 {
            let page = 3 * round + 1;
            let (one, two) = (vec![low(page)], vec![low(page + 1), high(page + 2)]);
            let split = Change { before: one, after: two.clone() };
            index.apply(&split, keys_of, |_| ()).unwrap();
            let join = Change { before: two, after: vec![low(page + 3)] };
            index.apply(&join, keys_of, |_| ()).unwrap();
        }
    });
    let mut ids: Vec<u32> = index.dirty(&[], &(0..16)).into_iter().map(|id| id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..40_000).collect::<Vec<_>>());
}

/// Writers of different pages stage for one segment at the same time, each of which saw room for
/// one more: what a lookup may meet and a record of the log may name is bounded.
#[test]
fn staged_pages_are_no_more_than_may_be() {
    let page = |number| PageRef { page: PageNumber(number), generation: Generation(1) };
    let index = SegmentIndex::new(vec![(Vec::new(), Segment::new(page(9), 0, None))], 0);
    let add = |number| {
        let with =
            |segment: &Segment| segment.with_staged(Staged { at: page(number), marks: Marks::ALL });
        index.add_page(b"", page(9), with, |_, _| ()).unwrap()
    };
    let most = u32::try_from(crate::segment::STAGED_MAX).unwrap();
    assert!((0..most).all(|number| add(20 + number)));
    assert!(!add(30), "there is room for no more");
    assert_eq!(index.sequence(), u64::from(most));
    assert_eq!(index.find(b"k").segment.staged.len(), crate::segment::STAGED_MAX);
    assert_eq!(index.counts().staged_pages, u64::from(most));
}

/// Scans ask for the dirty records of some pages: a list says of each to which page of the segment
/// there is now its key belongs, whichever pages there were when it was listed.
#[test]
fn dirty_records_are_found_by_page() {
    let of = |page, keys_a_page: f64| {
        let model =
            crate::model::Model::line(0, 0, (keys_a_page * f64::from(2u32).powi(32)).recip(), 0.0);
        let base = PageRef { page: PageNumber(page), generation: Generation(1) };
        vec![(Vec::new(), Segment::new(base, 2, Some(model.unwrap())))]
    };
    let index = SegmentIndex::new(of(4, 100.0), 0);
    for number in (0..400).rev() {
        index.push_dirty(&key(number), RecordId(number));
    }
    let numbers = |pages: Range<usize>| {
        let mut numbers: Vec<u32> = index.dirty(&[], &pages).iter().map(|id| id.0).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(1..3), (100..300).collect::<Vec<_>>());
    let change = Change { before: of(4, 100.0), after: of(8, 150.0) };
    index.apply(&change, keys_of, |_| ()).unwrap();
    assert_eq!(numbers(1..2), (150..300).collect::<Vec<_>>());
    assert_eq!(numbers(3..4), []);
    let taken: Vec<_> = index.take_dirty(&[], 200).iter().map(|one| one.id()).collect();
    assert_eq!(numbers(1..2), (150..200).collect::<Vec<_>>());
    let keys: Vec<_> = taken.iter().map(|id| (key(id.0), *id)).collect();
    index.return_dirty(&[], keys.iter().map(|(key, id)| (key.as_slice(), *id)));
    assert_eq!(numbers(1..2), (150..300).collect::<Vec<_>>());
    assert_eq!(numbers(0..16), (0..400).collect::<Vec<_>>());
}
