//! Pages that a copy-on-write structure lets go, against a model that knows which slot names what:
//! no page that is named is handed out, and in the end all are free (P16, P26).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use spinney_base::{Error, ErrorKind, Generation, KeyspaceId, Lsn, PageNumber, Poison};
use spinney_extent::{Checkpoint, Extent, HeldBack, Hold, Store, StoreOptions};
use spinney_io::sim::SimDisk;

fn options() -> StoreOptions {
    StoreOptions { keyspace: KeyspaceId(3), double_write: true, poison: Arc::new(Poison::new()) }
}

#[derive(Clone, Debug)]
enum Step {
    /// Allocates blocks of an order. They come into the structure, or only at the next `Place`.
    Batch(u8, u32, bool),
    Run(u32),
    Place,
    /// Lets this many extents of the structure go, from number `n` on.
    LetGo(usize, usize),
    CloseGate,
    /// Writes a slot with a payload of this length, or fails before it is written.
    Publish(usize, bool),
    Hold(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u8..3, 0u32..9, any::<bool>()).prop_map(|(order, count, now)| Step::Batch(order, count, now)),
        1 => (1u32..20).prop_map(Step::Run),
        1 => Just(Step::Place),
        6 => (0usize..100, 1usize..6).prop_map(|(from, count)| Step::LetGo(from, count)),
        2 => Just(Step::CloseGate),
        3 => (0usize..20_000, prop::bool::weighted(0.7)).prop_map(|(length, works)| Step::Publish(length, works)),
        1 => any::<bool>().prop_map(Step::Hold),
    ];
    prop::collection::vec(step, 1..60)
}

type Owned = (Extent, Generation);

/// What is true, by extents and sets of pages.
#[derive(Default)]
struct Model {
    live: Vec<Owned>,
    /// Allocated, and not in the structure yet.
    unplaced: Vec<Owned>,
    durable: Vec<Owned>,
    on_its_way: Option<Vec<Owned>>,
    /// The last gate, and the one before it while a slot is on its way.
    gate: Generation,
    gate_before: Generation,
    before_gate: BTreeMap<u32, Generation>,
    after_gate: BTreeMap<u32, Generation>,
    /// Freed while there is a hold.
    held: BTreeSet<u32>,
}

fn pages(extent: Extent) -> std::ops::Range<u32> {
    extent.page.0..extent.page.0 + extent.pages()
}

fn pages_of(owned: &[Owned]) -> impl Iterator<Item = u32> {
    owned.iter().flat_map(|(extent, _)| pages(*extent))
}

impl Model {
    /// Pages that must not be handed out, beside those that wait.
    fn named(&self) -> BTreeSet<u32> {
        let slots = self.durable.iter().chain(self.on_its_way.iter().flatten());
        slots.flat_map(|(extent, _)| pages(*extent)).collect()
    }

    fn allocated(&mut self, extents: &[Extent], generation: Generation, placed: bool) {
        let mut taken: BTreeSet<u32> = self.named();
        taken.extend(pages_of(&self.live).chain(pages_of(&self.unplaced)));
        taken.extend(self.held.iter());
        for extent in extents {
            for page in pages(*extent) {
                assert!(taken.insert(page), "page {page} was handed out and has an owner");
            }
        }
        let owned = extents.iter().map(|extent| (*extent, generation));
        if placed { self.live.extend(owned) } else { self.unplaced.extend(owned) }
    }

    fn failed(&mut self) {
        if self.on_its_way.take().is_some() {
            self.after_gate.append(&mut self.before_gate);
            self.gate = self.gate_before;
        }
    }
}

fn audit(store: &Store, model: &Model, is_held: bool) {
    let all = model.live.iter().chain(&model.unplaced);
    store.audit(all.map(|(extent, _)| *extent).collect(), 0).unwrap();
    let [before_gate, after_gate] =
        [&model.before_gate, &model.after_gate].map(|set| set.len() as u64);
    assert_eq!(store.held_back(), HeldBack { before_gate, after_gate });
    let waiting = before_gate + after_gate + model.held.len() as u64;
    let retired = store.space().retired_pages;
    // Payloads of older slots are held, too.
    assert!(retired == waiting || is_held && retired > waiting, "{retired} of {waiting} wait");
}

fn let_go(store: &Store, model: &mut Model, (extent, generation): Owned, is_held: bool) {
    let free = store.space().free_pages;
    store.let_go(extent, generation);
    let named = model.named();
    if generation <= model.gate {
        model.after_gate.extend(pages(extent).map(|page| (page, generation)));
    } else {
        assert!(pages(extent).all(|page| !named.contains(&page)), "the rule itself is wrong");
        if is_held {
            model.held.extend(pages(extent));
        } else {
            assert_eq!(store.space().free_pages, free + u64::from(extent.pages()));
        }
    }
}

/// Writes the slot that is on its way, or fails before that.
fn publish(store: &Store, model: &mut Model, length: usize, works: bool, is_held: bool) {
    let Some(copy) = model.on_its_way.take() else { return store.published() };
    let checkpoint = Checkpoint { redo: Lsn(0), structure: 0 };
    let failure = || Err(Error::new(ErrorKind::Io, "the log cannot be written"));
    let result =
        store.publish(checkpoint, &vec![7; length], || if works { Ok(()) } else { failure() });
    assert_eq!(result.is_ok(), works);
    if works {
        // The old slot's names end when this one is durable, and only then is anything freed.
        model.durable = copy;
        store.published();
        let freed = std::mem::take(&mut model.before_gate);
        let named = model.named();
        assert!(freed.keys().all(|page| !named.contains(page)), "the rule itself is wrong");
        if is_held {
            model.held.extend(freed.keys());
        } else {
            assert!(freed.keys().all(|page| store.is_free(PageNumber(*page))));
        }
    } else {
        store.failed();
        model.on_its_way = Some(copy);
        model.failed();
    }
}

fn close_gate(store: &Store, model: &mut Model) {
    let gate = store.close_gate().unwrap();
    model.failed();
    model.before_gate = std::mem::take(&mut model.after_gate);
    model.gate_before = model.gate;
    model.gate = gate;
    model.on_its_way = Some(model.live.clone());
}

fn step(store: &Store, model: &mut Model, step: &Step, is_held: bool) {
    match step {
        Step::Batch(order, count, placed) => {
            let (first, generation) = store.allocate_batch(*order, *count).unwrap();
            assert_eq!(first.len(), *count as usize);
            assert!(first.is_sorted());
            let extents: Vec<_> =
                first.into_iter().map(|page| Extent { page, order: *order }).collect();
            assert!(extents.iter().all(|extent| extent.page.0.is_multiple_of(extent.pages())));
            model.allocated(&extents, generation, *placed);
        }
        Step::Run(pages) => {
            let run = store.allocate_run(*pages).unwrap();
            let extents: Vec<_> = run.extents().map(|(extent, _)| extent).collect();
            model.allocated(&extents, run.generation, true);
        }
        Step::Place => model.live.append(&mut model.unplaced),
        Step::LetGo(from, count) => {
            for _ in 0..*count {
                if model.live.is_empty() {
                    break;
                }
                let gone = model.live.swap_remove(from % model.live.len());
                let_go(store, model, gone, is_held);
            }
        }
        Step::CloseGate => close_gate(store, model),
        Step::Publish(length, works) => publish(store, model, *length, *works, is_held),
        Step::Hold(_) => {}
    }
}

/// One opening of the file. Ends with what the durable slot names.
fn life(store: &Store, durable: Vec<Owned>, steps: &[Step]) -> Vec<Owned> {
    let mut model = Model { live: durable.clone(), durable, ..Model::default() };
    model.gate = Generation(store.next_generation().0 - 1);
    let mut hold: Option<Hold<'_>> = None;
    for next in steps {
        match next {
            Step::Hold(true) if hold.is_none() => hold = Some(store.hold()),
            Step::Hold(_) => {
                hold = None;
                model.held.clear();
            }
            _ => step(store, &mut model, next, hold.is_some()),
        }
        audit(store, &model, hold.is_some());
    }
    model.durable
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn p16_what_a_slot_names_is_not_handed_out(lives in prop::collection::vec(steps(), 1..3)) {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/db")).unwrap();
        let directory = disk.at("/db");
        let mut store = Store::create(&*directory, "store", options(), Lsn(0)).unwrap();
        store.adopt(&[]).unwrap();
        let mut durable = Vec::new();
        for steps in &lives {
            durable = life(&store, durable, steps);
            drop(store);
            store = Store::open(&*directory, "store", options()).unwrap().0;
            store.adopt(&durable).unwrap();
        }
        // All is let go: when a slot that names nothing is durable, all is free.
        for (extent, generation) in durable {
            store.let_go(extent, generation);
        }
        store.close_gate().unwrap();
        store.publish(Checkpoint { redo: Lsn(0), structure: 0 }, &[], || Ok(())).unwrap();
        store.published();
        prop_assert_eq!(store.held_back(), HeldBack::default());
        prop_assert_eq!(store.space().retired_pages, 0);
        prop_assert!(store.audit(Vec::new(), 0).is_ok());
    }
}

/// What was let go before a slot that failed and after it is free when the next slot is durable.
#[test]
fn p16_a_failed_slot_frees_nothing() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let store = Store::create(&*disk.at("/db"), "store", options(), Lsn(0)).unwrap();
    store.adopt(&[]).unwrap();
    let publish = |works: bool| {
        let failure = || Err(Error::new(ErrorKind::Io, "the log cannot be written"));
        let log_durable = || if works { Ok(()) } else { failure() };
        let checkpoint = Checkpoint { redo: Lsn(0), structure: 0 };
        assert_eq!(store.publish(checkpoint, &[], log_durable).is_ok(), works);
        if works { store.published() } else { store.failed() }
    };
    let held_back = |before_gate, after_gate| {
        assert_eq!(store.held_back(), HeldBack { before_gate, after_gate });
    };
    let (pages, old) = store.allocate_batch(0, 4).unwrap();
    store.close_gate().unwrap();
    publish(true);
    store.let_go(Extent::single(pages[0]), old);
    let gate = store.close_gate().unwrap();
    store.let_go(Extent::single(pages[1]), old);
    held_back(1, 1);
    publish(false);
    held_back(0, 2);
    // The gate of the failed slot took its generation back: of what came later nothing is named.
    let free = store.space().free_pages;
    let (page, new) = store.allocate_batch(0, 1).unwrap();
    assert!(new > gate);
    store.let_go(Extent::single(page[0]), new);
    assert_eq!(store.space().free_pages, free);
    store.close_gate().unwrap();
    store.let_go(Extent::single(pages[2]), old);
    held_back(2, 1);
    publish(true);
    held_back(0, 1);
    assert!(store.is_free(pages[2]) && !store.is_free(pages[3]));
    assert_eq!(store.space().free_pages, free + 2);
}

/// A batch lies side by side where free pages do, and leaves nothing behind when it fails.
#[test]
fn a_batch_lies_side_by_side() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let store = Store::create(&*disk.at("/db"), "store", options(), Lsn(0)).unwrap();
    store.adopt(&[]).unwrap();
    let (first, _) = store.allocate_batch(2, 50).unwrap();
    assert!(first.windows(2).all(|pair| pair[1].0 == pair[0].0 + 4), "{first:?}");
    first.iter().step_by(2).for_each(|page| store.release(Extent { page: *page, order: 2 }));
    // 25 scattered blocks and what follows the last: of the batch as much as can be lies together.
    let end = store.space().end_page;
    let (second, generation) = store.allocate_batch(2, 20).unwrap();
    assert_eq!(store.space().end_page, end, "grown beside free pages");
    assert!(second.is_sorted());
    let before = (store.space().free_pages, store.next_generation());
    assert_eq!(before.1, Generation(generation.0 + 1), "more than one generation");
    disk.set_capacity(Some(disk.used()));
    assert!(store.allocate_batch(0, 1 << 15).unwrap_err().is_full());
    assert_eq!(store.space().free_pages, before.0);
    let (pages, _) = store.allocate_batch(0, u32::try_from(before.0).unwrap()).unwrap();
    assert_eq!((pages.len() as u64, store.space().free_pages), (before.0, 0));
}

/// A batch that fits into one extent lies there, though less would fit elsewhere.
#[test]
fn a_batch_takes_one_extent_if_it_can() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let store = Store::create(&*disk.at("/db"), "store", options(), Lsn(0)).unwrap();
    store.adopt(&[]).unwrap();
    let (pages, _) = store.allocate_batch(0, 64).unwrap();
    let first = pages[0].0;
    let rest = u32::try_from(store.space().free_pages).unwrap();
    assert_eq!(store.allocate_batch(0, rest).unwrap().0.len(), rest as usize);
    let release = |from: u32, order: u8| {
        store.release(Extent { page: PageNumber(first + from), order });
    };
    let batch = |count: u32| {
        let pages = store.allocate_batch(0, count).unwrap().0;
        pages.into_iter().map(|page| page.0 - first).collect::<Vec<_>>()
    };
    [(2, 1), (8, 3), (18, 0)].into_iter().for_each(|(from, order)| release(from, order));
    assert_eq!(batch(7), [8, 9, 10, 11, 12, 13, 14]);
    assert_eq!(batch(4), [2, 3, 15, 18]);
    [(2, 1), (8, 2), (14, 1), (16, 2)].into_iter().for_each(|(from, order)| release(from, order));
    assert_eq!(batch(7), [8, 9, 10, 11, 16, 17, 18]);
}
