//! Full memory, copies, damage, and what is saved of it.

use std::path::Path;

use spinney_base::{ErrorKind, ValueRef};
use spinney_engine::{
    Engine as _, KeyspaceSalvage as _, LostRange, Maintain as _, Prepared, Versioned as _,
};
use spinney_io::sim::CrashMode;

use super::{KEYSPACE, MUCH, Model, World, key, value};
use crate::image::Payload;
use crate::salvage::IotSalvage;

#[test]
fn full_memory_is_said_and_removals_give_it_back() {
    const MEMORY: u64 = 2 << 20;
    let world = World::new(MEMORY, false);
    let mut model = Model::new();
    let fill = |model: &mut Model, version: u64| {
        for number in 0.. {
            let (key, value) = (key(number * 7919 % 100_003), value(number, version));
            if model.contains_key(&key) {
                continue;
            }
            match world.write(&key, Some(ValueRef::inline(&value)), 0) {
                Ok(_) => _ = model.insert(key, value),
                Err(error) => return error,
            }
        }
        unreachable!("memory is full before")
    };
    let error = fill(&mut model, 1);
    assert_eq!(error.kind(), ErrorKind::Full);
    let text = error.to_string();
    let needed: u64 = text.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!(needed > MEMORY && needed < MEMORY + (64 << 10), "{text}");
    assert!(text.contains(&MEMORY.to_string()), "{text}");
    assert!(world.engine.used() <= MEMORY && model.len() > 6000, "{} records", model.len());
    world.check(&model);
    // Nothing but removals.
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    for key in keys.iter().filter(|key| key.last().unwrap() % 2 == 0) {
        world.remove(key);
        model.remove(key);
    }
    world.check(&model);
    let left = model.len();
    fill(&mut model, 2);
    assert!(model.len() > left * 9 / 5, "{left} records, and then {}", model.len());
    assert!(world.engine.used() <= MEMORY);
    world.check(&model);
    // With as much memory as was asked for there is room.
    let error = fill(&mut model, 2).to_string();
    let needed: u64 = error.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    world.engine.context.memory.set_target(needed);
    world.put(b"one more", &[1; 80]);
}

#[test]
fn a_copy_is_of_the_newest_checkpoint() {
    let world = World::new(MUCH, false);
    let mut model = Model::new();
    for number in 0..5000 {
        model.insert(key(number), value(number, 1));
        world.put(&key(number), &value(number, 1));
    }
    model.insert(b"large".to_vec(), vec![9; 20_000]);
    world.put_large(b"large", &[9; 20_000]);
    world.checkpoint();
    world.disk.create_dir(Path::new("/copy")).unwrap();
    let mut copy = world.engine.begin_backup(&*world.disk.at("/copy"), "k").unwrap();
    copy.copy().unwrap();
    // What comes meanwhile is not in it, and checkpoints do not disturb it.
    for number in 0..5000 {
        world.put(&key(number), &value(number, 2));
    }
    world.checkpoint();
    world.put(b"large", b"small");
    world.checkpoint();
    while copy.copy().unwrap().is_some() {}
    copy.finish().unwrap();
    drop(copy);
    world.disk.sync_dir(Path::new("/copy")).unwrap();
    assert_eq!(world.verify().unwrap(), 5001);
    let disk = world.disk.crash(CrashMode::LoseAll);
    disk.rename(Path::new("/copy/k"), Path::new("/db/k")).unwrap();
    let copied = World::open(disk, MUCH, false).unwrap();
    copied.engine.end_structure_replay().unwrap();
    copied.engine.end_replay().unwrap();
    copied.check(&model);
}

/// A world of some leaves, and what the slot names.
fn written() -> (World, Model, Payload) {
    let (world, mut model) = (World::new(MUCH, false), Model::new());
    for version in 1..3 {
        for number in (0..6000).step_by(version as usize) {
            model.insert(key(number), value(number, version));
            world.put(&key(number), &value(number, version));
        }
        world.checkpoint();
    }
    let payload = world.engine.named.lock().as_ref().clone().unwrap();
    (world, model, payload)
}

fn saved(salvage: &mut IotSalvage) -> Model {
    let mut saved = Model::new();
    salvage.read_pages().unwrap();
    let mut show = |_: &spinney_engine::Store, key: &[u8], value: Option<ValueRef<'_>>| {
        saved.insert(key.to_vec(), value.unwrap().bytes.to_vec());
        Ok(())
    };
    salvage.records(&mut show).unwrap();
    saved
}

#[test]
fn a_flipped_bit_is_found_and_the_rest_saved() {
    let (world, model, payload) = written();
    world.verify().unwrap();
    let place = payload.places[payload.places.len() / 2];
    world.disk.flip_bit(Path::new("/db/k"), place.page.offset() + 1777, 3).unwrap();
    assert_eq!(world.verify().unwrap_err().kind(), ErrorKind::Corruption);
    let (mut from, mut damaged, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let seen = world.engine.scrub(&from);
        damaged.extend(seen.damaged);
        pages += seen.pages;
        match seen.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert!(damaged.len() == 1 && damaged[0].offset == place.page.offset());
    assert!(pages >= payload.pages());
    let opened = World::open(world.disk.crash(CrashMode::KeepAll), MUCH, false).unwrap();
    let error = opened.engine.end_structure_replay().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let mut salvage = IotSalvage::open(&*world.disk.at("/db"), "k", KEYSPACE).unwrap();
    let saved = saved(&mut salvage);
    let findings = salvage.findings();
    let [LostRange { lower, upper: Some(upper) }] = &findings.lost[..] else {
        panic!("{findings:?}")
    };
    let is_lost = |key: &Vec<u8>| key >= lower && key < upper;
    let expected: Model = model.into_iter().filter(|(key, _)| !is_lost(key)).collect();
    assert!(saved == expected && expected.len() > 5000);
}

#[test]
fn images_are_salvaged_without_a_slot() {
    let (world, model, _) = written();
    for page in 0..4 {
        world.disk.flip_bit(Path::new("/db/k"), page * 4096 + 100, 3).unwrap();
    }
    let mut salvage = IotSalvage::open(&*world.disk.at("/db"), "k", KEYSPACE).unwrap();
    assert!(salvage.findings().checkpoint.is_some());
    assert!(saved(&mut salvage) == model);
    assert!(salvage.findings().lost.is_empty());
}

#[test]
fn a_large_value_that_is_replaced_is_free_after_a_checkpoint() {
    let world = World::new(MUCH, false);
    for round in 0..40_u8 {
        world.put_large(b"large", &vec![round; 100_000]);
        world.checkpoint();
        assert_eq!(world.get(b"large").unwrap(), vec![round; 100_000]);
    }
    assert_eq!(world.engine.stats().large_values, 1);
    assert!(world.engine.stats().file_bytes < 2 << 20, "{}", world.engine.stats().file_bytes);
    let world = world.after_crash();
    assert_eq!(world.get(b"large").unwrap(), vec![39; 100_000]);
    assert_eq!(world.verify().unwrap(), 1);
}

/// A transaction that looks for keys which are not there changes no image.
#[test]
fn absent_records_are_in_no_image() {
    let world = World::new(MUCH, false);
    (0..4000).for_each(|number| world.put(&key(number), b"value"));
    // Leaves have room for them.
    (0..1000).for_each(|number| world.remove(&key(4 * number)));
    world.checkpoint();
    let cells: Vec<_> = (0..1000)
        .map(|number| world.engine.cell(&key(4 * number), b"value", &mut Prepared::default()))
        .collect();
    assert_eq!(world.engine.tree.changed(), 0);
    assert_eq!((world.engine.tree.records(), world.verify().unwrap()), (3000, 3000));
    drop(cells);
    let running = world.engine.context.certifier.running();
    assert_eq!(world.engine.collect(&running, usize::MAX), 1000);
    assert_eq!((world.engine.tree.changed(), world.engine.tree.cells.used()), (0, 0));
    assert_eq!(world.after_crash().all().len(), 3000);
}
