//! The set of bits against sets of page numbers in trees, which say what must be taken.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Extents of each order in a sorted set, and all of them in a list to find runs.
#[derive(Default)]
struct Model {
    by_order: [BTreeSet<u32>; ORDER_MAX as usize + 1],
}

impl Model {
    fn put(&mut self, extent: Extent) {
        let (mut page, mut order) = (extent.page.0, extent.order);
        while order < ORDER_MAX && self.by_order[usize::from(order)].remove(&(page ^ (1 << order)))
        {
            page = page.min(page ^ (1 << order));
            order += 1;
        }
        self.by_order[usize::from(order)].insert(page);
    }

    fn put_range(&mut self, start: u32, end: u32) {
        extents_of(start, end).for_each(|extent| self.put(extent));
    }

    fn take(&mut self, order: u8) -> Option<Extent> {
        let from =
            (order..=ORDER_MAX).find(|from| !self.by_order[usize::from(*from)].is_empty())?;
        let page = self.by_order[usize::from(from)].pop_first()?;
        for half in (order..from).rev() {
            self.by_order[usize::from(half)].insert(page + (1 << half));
        }
        Some(Extent { page: PageNumber(page), order })
    }

    fn runs(&self) -> Vec<(u32, u32)> {
        let mut extents: Vec<(u32, u32)> =
            self.list().into_iter().map(|extent| (extent.page.0, extent.pages())).collect();
        extents.sort_unstable();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (first, pages) in extents {
            match runs.last_mut() {
                Some(run) if run.0 + run.1 == first => run.1 += pages,
                _ => runs.push((first, pages)),
            }
        }
        runs
    }

    fn take_run(&mut self, pages: u32) -> Option<PageNumber> {
        let runs = self.runs();
        let (first, length) =
            runs.into_iter().filter(|run| run.1 >= pages).min_by_key(|run| run.1)?;
        for extent in self.list() {
            if (first..first + length).contains(&extent.page.0) {
                self.by_order[usize::from(extent.order)].remove(&extent.page.0);
            }
        }
        self.put_range(first + pages, first + length);
        Some(PageNumber(first))
    }

    /// All extents, the largest last and the highest of equals last.
    fn list(&self) -> Vec<Extent> {
        let orders = (0u8..).zip(&self.by_order);
        orders
            .flat_map(|(order, pages)| {
                pages.iter().map(move |page| Extent { page: PageNumber(*page), order })
            })
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u8),
    TakeRun(u32),
    /// Gives back what was taken as number `n` of what is held.
    Put(usize),
    /// Takes every `of` extent of the largest, this many.
    Largest(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..4).prop_map(Step::Take),
        2 => (1u32..40).prop_map(Step::TakeRun),
        5 => (0usize..1000).prop_map(Step::Put),
        1 => (1usize..4, 0usize..5).prop_map(|(of, most)| Step::Largest(of, most)),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    /// Of whatever is taken and given back, the same extents are taken as from sorted sets.
    #[test]
    fn takes_what_sorted_sets_take(steps in steps(), first in 120u32..140) {
        let (mut set, mut model) = (Extents::default(), Model::default());
        set.put_range(first, first + 300);
        model.put_range(first, first + 300);
        let mut held: Vec<(u32, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Take(order) => {
                    let taken = set.take(order);
                    prop_assert_eq!(taken, model.take(order));
                    held.extend(taken.map(|extent| (extent.page.0, extent.pages())));
                }
                Step::TakeRun(pages) => {
                    let taken = set.take_run(pages);
                    prop_assert_eq!(taken, model.take_run(pages));
                    held.extend(taken.map(|page| (page.0, pages)));
                }
                Step::Put(number) if !held.is_empty() => {
                    let (page, pages) = held.swap_remove(number % held.len());
                    set.put_range(page, page + pages);
                    model.put_range(page, page + pages);
                }
                Step::Put(_) => {}
                Step::Largest(of, most) => {
                    let mut seen = Vec::new();
                    let taken = set.take_largest(|extent| {
                        if seen.len() / of == most {
                            return Wanted::Stop;
                        }
                        seen.push(extent);
                        if seen.len() % of == 0 { Wanted::Take } else { Wanted::Pass }
                    });
                    let wanted: Vec<_> = model.list().into_iter().rev().take(seen.len()).collect();
                    prop_assert_eq!(&seen, &wanted);
                    for extent in taken {
                        model.by_order[usize::from(extent.order)].remove(&extent.page.0);
                        held.push((extent.page.0, extent.pages()));
                    }
                }
            }
            prop_assert!(set.iter().eq(model.list()));
            prop_assert!(set.runs(0).eq(model.runs()));
            let pages: u32 = model.list().iter().map(|extent| extent.pages()).sum();
            prop_assert_eq!(set.pages(), u64::from(pages));
        }
    }

    /// Two sets that have no page in common are one set.
    #[test]
    fn sets_are_joined(here in prop::collection::vec(0u8..3, 1..300)) {
        let mut sets = [Extents::default(), Extents::default(), Extents::default()];
        for (page, set) in (0u32..).zip(here.iter().copied()) {
            sets[usize::from(set)].put(Extent::single(PageNumber(page)));
        }
        let [mut one, other, rest] = sets;
        one.join(other);
        one.join(rest);
        let mut all = Extents::default();
        all.put_range(0, u32::try_from(here.len()).unwrap());
        prop_assert_eq!(one, all);
    }
}

/// Memory of a file's free map: nothing where nothing is free, and two bits a page at worst.
#[test]
fn memory_is_for_what_is_in_it() {
    let mut set = Extents::default();
    assert!(size_of::<Extents>() <= 520, "{}", size_of::<Extents>());
    assert_eq!(set.heap_bytes(), 0);
    // A new file: seven pages of the first eight.
    set.put_range(129, 136);
    assert!(set.heap_bytes() <= 3 * 136, "{}", set.heap_bytes());
    // Every other page of 4 GiB: half a million single pages.
    let mut set = Extents::default();
    (0..1 << 19).for_each(|page| set.put(Extent::single(PageNumber(2 * page))));
    assert!(set.heap_bytes() * 8 <= (1 << 20) * 11 / 10, "{}", set.heap_bytes());
}
