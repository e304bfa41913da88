//! Clean records after a restart (rule H9).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use spinney_base::ErrorKind;
use spinney_engine::{Engine as _, Maintain as _};
use spinney_hot::Cached;
use spinney_io::{Disk as _, Purpose};

use super::{World, key, value};

const MEMORY: u64 = 2 << 20;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree, some of whose records are in the tier, clean, and in a run that the slot names.
fn with_clean() -> (World, Model) {
    let world = World::new(MEMORY);
    let mut model = Model::new();
    for number in 0..3000 {
        world.put(&key(number), &value(number, 1));
        model.insert(key(number), value(number, 1));
    }
    world.empty_tier();
    world.checkpoint();
    for number in hot() {
        assert!(world.get(&key(number)).is_some());
    }
    let records = world.engine.hot.len();
    assert!(records > 400, "{records}");
    assert!(world.engine.write_clean().unwrap());
    world.checkpoint();
    (world, model)
}

fn hot() -> impl Iterator<Item = u64> {
    (0..3000).step_by(6)
}

fn is_loading(world: &World) -> bool {
    world.engine.images.warm.lock().loading().is_some()
}

fn has_clean(world: &World) -> bool {
    world.engine.images.warm.lock().named().is_some()
}

fn load(world: &World) {
    for _ in 0..100 {
        world.engine.background().unwrap();
    }
    assert!(!is_loading(world));
}

fn check(world: &World, model: &Model) {
    world.check(model);
    world.empty_tier();
    world.check(model);
}

#[test]
fn a_hot_key_needs_no_leaf_after_a_restart() {
    let (world, model) = with_clean();
    let is_there = |world: &World, number: &u64| {
        world.engine.hot.peek(&key(*number), &mut Vec::new()) != Cached::Unknown
    };
    let kept: Vec<u64> = hot().filter(|number| is_there(&world, number)).collect();
    let again = world.after_crash(MEMORY).unwrap();
    assert!(is_loading(&again) && again.engine.hot.is_empty() && kept.len() > 400);
    load(&again);
    let reads = || {
        let counts = again.disk.counters().snapshot().by_purpose;
        counts[Purpose::LOOKUP.index()].reads
    };
    let before = reads();
    for number in kept {
        assert_eq!(again.get(&key(number)).as_ref(), Some(&model[&key(number)]));
    }
    assert_eq!(reads(), before);
    check(&again, &model);
}

#[test]
fn h9_what_was_merged_since_the_run_is_not_loaded() {
    let (world, mut model) = with_clean();
    for number in hot().step_by(3) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    for number in hot().skip(1).step_by(3) {
        world.remove(&key(number));
        model.remove(&key(number));
    }
    world.empty_tier();
    world.checkpoint();
    let again = world.after_crash(MEMORY).unwrap();
    assert!(is_loading(&again));
    load(&again);
    assert!((100..200).contains(&again.engine.hot.len()), "a third of them");
    for number in hot().skip(1).step_by(3) {
        assert_eq!(again.get(&key(number)), None);
    }
    check(&again, &model);
}

/// A root has what is merged until its last leaf is written, and its notes say so.
#[test]
fn h9_a_root_has_the_notes_of_its_last_leaf() {
    let (world, mut model) = with_clean();
    world
        .checkpoint_beside(|| {
            for number in hot().step_by(2) {
                world.put(&key(number), &value(number, 2));
                model.insert(key(number), value(number, 2));
            }
            world.empty_tier();
            assert!(!world.engine.write_clean().unwrap(), "no run is written beside a checkpoint");
        })
        .unwrap();
    let again = world.after_crash(MEMORY).unwrap();
    load(&again);
    check(&again, &model);
}

/// The loader asks what was merged since the opening, too, and looks at the tier.
#[test]
fn h9_the_loader_knows_what_was_merged_before_it() {
    let (world, mut model) = with_clean();
    let again = world.after_crash(MEMORY).unwrap();
    for number in hot().step_by(2) {
        again.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    again.empty_tier();
    for number in hot().skip(1).step_by(4) {
        again.put(&key(number), &value(number, 3));
        model.insert(key(number), value(number, 3));
    }
    assert!(is_loading(&again));
    load(&again);
    check(&again, &model);
    // The notes go on.
    again.checkpoint();
    let last = again.after_crash(MEMORY).unwrap();
    load(&last);
    check(&last, &model);
}

/// What leaves the tier between the look of the loader and the end of its step stays away.
#[test]
fn h9_a_new_run_knows_what_was_merged_while_it_was_written() {
    let (world, mut model) = with_clean();
    let engine = &world.engine;
    engine.images.warm.lock().begin(Duration::ZERO, 0);
    let run = engine.clean_run().unwrap();
    for number in hot().step_by(2) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    world.empty_tier();
    let before = engine.images.warm.lock().install(run);
    crate::loader::let_go(engine.store(), before);
    world.checkpoint();
    world.check(&model);
    let again = world.after_crash(MEMORY).unwrap();
    load(&again);
    check(&again, &model);
}

#[test]
fn h9_a_damaged_clean_run_is_void() {
    let (world, model) = with_clean();
    let page = {
        let warm = world.engine.images.warm.lock();
        warm.named().unwrap().run.pieces[0].page(0)
    };
    world.disk.flip_bit(Path::new("/db/k"), page.offset() + 999, 1).unwrap();
    for (key, value) in &model {
        assert_eq!(world.get(key).as_ref(), Some(value), "{key:?}");
    }
    assert_eq!(world.verify().unwrap_err().kind(), ErrorKind::Corruption);
    let (mut from, mut damaged) = (Some(Vec::new()), Vec::new());
    while let Some(at) = from {
        let mut seen = world.engine.scrub(&at);
        damaged.append(&mut seen.damaged);
        from = seen.next;
    }
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    let again = world.after_crash(MEMORY).unwrap();
    load(&again);
    assert!(!has_clean(&again));
    check(&again, &model);
    again.put(&key(0), &value(0, 1));
    again.checkpoint();
    again.check(&model);
}

#[test]
fn h9_a_run_is_void_once_too_much_was_merged() {
    let (world, mut model) = with_clean();
    for round in 2..6 {
        for number in 0..3000 {
            world.put(&key(number), &value(number, round));
            model.insert(key(number), value(number, round));
        }
        world.checkpoint();
    }
    assert!(!has_clean(&world));
    world.check(&model);
    check(&world.after_crash(MEMORY).unwrap(), &model);
}

#[test]
fn runs_are_written_behind_and_not_where_it_is_not_wanted() {
    let (world, model) = with_clean();
    let number = |world: &World| {
        world.engine.images.warm.lock().named().and_then(|clean| clean.run.number())
    };
    let (before, runtime) = (number(&world), world.engine.context.runtime.clone());
    for at in (1..3000).step_by(6) {
        world.get(&key(at)).unwrap();
    }
    world.engine.background().unwrap();
    assert_eq!(number(&world), before, "not so soon");
    runtime.sleep(Duration::from_secs(301));
    world.engine.background().unwrap();
    assert_ne!(number(&world), before);
    assert!(world.engine.is_dirty(), "a slot that names it is due");
    world.checkpoint();
    world.check(&model);
    world.engine.set_option("image", "dirty").unwrap();
    world.engine.background().unwrap();
    assert!(!has_clean(&world));
    world.checkpoint();
    world.check(&model);
    assert!(!is_loading(&world.after_crash(MEMORY).unwrap()));
}

/// A load drops what the run says of keys that were not there.
#[test]
fn h24_a_load_drops_the_run() {
    let (world, model) = with_clean();
    model.keys().for_each(|key| world.remove(key));
    world.empty_tier();
    // Ranges keep what they know to be absent.
    for number in hot() {
        let (_, seen) = world.engine.hot.look(&key(number), &mut Vec::new());
        world.engine.hot.admit(&key(number), None, seen);
    }
    assert!(world.engine.write_clean().unwrap());
    world.checkpoint();
    let mut bulk = world.engine.bulk().unwrap();
    for number in hot() {
        let value = value(number, 7);
        bulk.push(&key(number), spinney_base::ValueRef::inline(&value)).unwrap();
    }
    bulk.install(spinney_engine::SnapshotNumber::NONE).unwrap();
    let loaded: Model = hot().map(|number| (key(number), value(number, 7))).collect();
    assert!(!has_clean(&world));
    check(&world, &loaded);
    let again = world.after_crash(MEMORY).unwrap();
    load(&again);
    check(&again, &loaded);
}
