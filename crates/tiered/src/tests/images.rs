//! Images of checkpoints (rules H9, H12, H23).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, KeyspaceId};
use spinney_engine::{Engine as _, KeyspaceSalvage, Maintain as _};
use spinney_extent::values::LargeList;
use spinney_hot::Records;
use spinney_io::{Disk as _, Purpose};

use super::{World, key, value};
use crate::run::Run;
use crate::salvage::TieredSalvage;

const MEMORY: u64 = 2 << 20;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree of many leaves, and dirty records that are scattered over them.
fn scattered(memory: u64) -> (World, Model) {
    let world = World::new(memory);
    let mut model = Model::new();
    for number in 0..4000 {
        world.put(&key(number), &value(number, 1));
        model.insert(key(number), value(number, 1));
    }
    world.empty_tier();
    world.checkpoint();
    for number in (0..4000).step_by(12) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    (world, model)
}

fn image_of(world: &World) -> Run {
    world.engine.named.lock().as_ref().map(|named| named.dirty.clone()).unwrap_or_default()
}

fn pages_written(world: &World) -> u64 {
    let counts = world.disk.counters().snapshot();
    let of = |purpose: Purpose| counts.by_purpose[purpose.index()].write_bytes / PAGE_BYTES as u64;
    of(Purpose::CHECKPOINT) + of(Purpose::WRITE_BACK)
}

/// Offset of a page of the image that the newest slot names.
fn offset_of_page(world: &World, index: u64) -> u64 {
    let run = image_of(world);
    let mut pages = run.pieces.iter().flat_map(|piece| (0..piece.pages).map(|at| piece.page(at)));
    pages.nth(index.try_into().unwrap()).unwrap().offset()
}

#[test]
fn h12_a_checkpoint_of_scattered_records_writes_their_bytes() {
    let (world, model) = scattered(MEMORY);
    let (dirty, before) = (world.engine.hot.dirty(), pages_written(&world));
    world.checkpoint();
    let written = pages_written(&world) - before;
    // The image, a payload, and a slot with its copy.
    assert!(written <= dirty / 20 && written < 20, "{written} pages for {dirty} records");
    assert_eq!(world.engine.hot.dirty(), dirty, "they stay as they are");
    assert_eq!((image_of(&world).records, dirty), (334, 334));
    world.check(&model);
    let again = world.after_crash(MEMORY).unwrap();
    assert_eq!(again.engine.hot.dirty(), dirty);
    again.check(&model);
}

#[test]
fn few_records_are_merged_and_removals_are_in_images() {
    let (world, mut model) = scattered(MEMORY);
    for number in (6..4000).step_by(24) {
        world.remove(&key(number));
        model.remove(&key(number));
    }
    world.checkpoint();
    assert_eq!(image_of(&world).records, 334 + 167);
    let again = world.after_crash(MEMORY).unwrap();
    again.check(&model);
    again.empty_tier();
    again.put(&key(5), b"one");
    model.insert(key(5), b"one".to_vec());
    again.checkpoint();
    assert_eq!((image_of(&again), again.engine.hot.dirty()), (Run::default(), 0));
    again.after_crash(MEMORY).unwrap().check(&model);
}

/// A record is in the image, or its leaf was changed before leaves are gathered.
#[test]
fn h12_a_record_that_leaves_beside_a_checkpoint_is_in_the_image() {
    let (world, model) = scattered(MEMORY);
    let engine = &world.engine;
    {
        let _one_at_a_time = engine.publishing.lock();
        let cut = engine.values.cut(0);
        let image = engine.take_dirty().unwrap();
        let tree = engine.tree_made().unwrap();
        // Leaves were written by the time that the payload is made.
        let list = || {
            assert!(engine.bring_range_home(&[], Some(&key(500))).unwrap());
            engine.values.list(&cut)
        };
        engine.publish(&tree, engine.redo(), image, list).unwrap();
    }
    world.after_crash(MEMORY).unwrap().check(&model);
}

#[test]
fn h12_a_record_that_a_sweep_has_copied_is_in_the_image() {
    let (world, model) = scattered(MEMORY);
    let (hot, mut victims, mut from) = (&world.engine.hot, Records::default(), Some(Vec::new()));
    while let Some(at) = from {
        from = hot.take_along(&at, None, &mut victims);
    }
    assert_eq!(victims.len(), 334);
    world.checkpoint();
    world.after_crash(MEMORY).unwrap().check(&model);
}

/// Without a log the image is above what the root has, also where that is newer, and it stays so.
#[test]
fn h9_records_of_an_image_are_dirty_again() {
    let (world, mut model) = scattered(MEMORY);
    world
        .checkpoint_beside(|| {
            (0..4000).step_by(12).for_each(|number| world.put(&key(number), &value(number, 3)));
            world.empty_tier();
        })
        .unwrap();
    let again = world.after_crash(MEMORY).unwrap();
    again.check(&model);
    again.empty_tier();
    again.check(&model);
    // A checkpoint that names no image leaves nothing of the one before.
    again.checkpoint();
    again.put(&key(1), b"new");
    model.insert(key(1), b"new".to_vec());
    again.checkpoint();
    let last = again.after_crash(MEMORY).unwrap();
    last.check(&model);
}

#[test]
fn h11_an_image_is_free_when_the_next_slot_is_durable() {
    let (world, model) = scattered(MEMORY);
    world.checkpoint();
    let engine = &world.engine;
    let old = image_of(&world);
    let free = || {
        let pages = old.pieces.iter().flat_map(|piece| (0..piece.pages).map(|at| piece.page(at)));
        pages.filter(|page| engine.store().is_free(*page)).count() as u64
    };
    world.put(&key(3), &value(3, 1));
    {
        let _one_at_a_time = engine.publishing.lock();
        let image = engine.take_dirty().unwrap();
        let list = || {
            assert_eq!(free(), 0, "the durable slot names it");
            LargeList::default()
        };
        engine.publish(&engine.tree_made().unwrap(), engine.redo(), image, list).unwrap();
    }
    assert_eq!(free(), old.pages());
    world.check(&model);
}

/// Keys whose values are large: leaves name the first three, and the image the others.
fn with_large() -> (World, [Vec<u8>; 6]) {
    let (world, _) = scattered(MEMORY);
    let keys = std::array::from_fn(|number| key(number as u64 * 600 + 1));
    keys.iter().for_each(|key| world.put_large(key, 1));
    world.engine.bring_range_home(&[], Some(&key(1500))).unwrap();
    (1500..4000).step_by(12).for_each(|number| world.put(&key(number), &value(number, 2)));
    (world, keys)
}

fn is_as_before(value: Option<Vec<u8>>) -> bool {
    value.is_some_and(|value| value == vec![1; 9000])
}

/// What is superseded while a slot is made may be named by the image, or by leaves that were written before.
#[test]
fn h23_large_values_that_go_beside_a_checkpoint_stay_for_its_root() {
    let (world, keys) = with_large();
    let engine = &world.engine;
    let take_room = |world: &World, from: u64| {
        world.engine.values.reuse();
        (from..from + 12).for_each(|number| world.put_large(&key(number), 9));
    };
    {
        let _one_at_a_time = engine.publishing.lock();
        let cut = engine.values.cut(0);
        let image = engine.take_dirty().unwrap();
        assert!(image.run.records > 3);
        let tree = engine.tree_made().unwrap();
        let list = || {
            keys.iter().for_each(|key| world.put(key, b"small"));
            engine.bring_range_home(&[], Some(&key(1500))).unwrap();
            engine.values.list(&cut)
        };
        engine.publish(&tree, engine.redo(), image, list).unwrap();
        engine.values.settle(&cut);
    }
    take_room(&world, 10_000);
    let again = world.after_crash(MEMORY).unwrap();
    assert!(keys.iter().all(|key| is_as_before(again.get(key))), "bytes of another");
    // They live on, also after later slots, and after it was found out what leaves name.
    for round in 0..4 {
        again.put(&key(2), &value(1, round));
        again.checkpoint();
        take_room(&again, 20_000 + round * 100);
        assert!(keys.iter().all(|key| is_as_before(again.get(key))), "bytes of another");
        if round == 1 {
            again.verify().unwrap();
        }
    }
    again.empty_tier();
    again.checkpoint();
    assert!(keys.iter().all(|key| is_as_before(again.get(key))), "bytes of another");
    again.verify().unwrap();
}

/// The tree names what a clean record names, so a put over it frees nothing: the merge does, once.
#[test]
fn h23_a_put_over_a_clean_record_frees_nothing() {
    let world = World::new(MEMORY);
    world.put_large(&key(1), 7);
    world.empty_tier();
    world.checkpoint();
    assert!(world.get(&key(1)).is_some());
    assert_eq!((world.engine.hot.len(), world.engine.hot.dirty()), (1, 0), "it was promoted");
    let live = || world.engine.values.counts().values;
    world.put(&key(1), b"small");
    assert_eq!(live(), 1, "the tree names it");
    world.engine.bring_all_home().unwrap();
    world.checkpoint();
    assert_eq!(live(), 0);
    assert_eq!(world.get(&key(1)).unwrap(), b"small");
    world.verify().unwrap();
}

/// What no leaf names after a crash is free once a verification has read them.
#[test]
fn h23_what_no_leaf_names_is_found_out() {
    let (world, keys) = with_large();
    world
        .checkpoint_beside(|| {
            keys.iter().for_each(|key| world.put(key, b"small"));
            world.engine.bring_range_home(&[], Some(&key(1500))).unwrap();
        })
        .unwrap();
    let again = world.after_crash(MEMORY).unwrap();
    let live = || again.engine.values.counts().values;
    assert_eq!(live(), 6, "leaves may name the first three");
    again.verify().unwrap();
    assert_eq!(live(), 3, "the image names the others");
    assert!(keys[3..].iter().all(|key| is_as_before(again.get(key))));
}

#[test]
fn h9_a_damaged_image_is_an_error() {
    let (world, model) = scattered(MEMORY);
    world.checkpoint();
    let offset = offset_of_page(&world, 2);
    world.disk.flip_bit(Path::new("/db/k"), offset + 2000, 3).unwrap();
    let error = world.verify().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    let (mut from, mut damaged) = (Some(Vec::new()), Vec::new());
    while let Some(at) = from {
        let mut seen = world.engine.scrub(&at);
        damaged.append(&mut seen.damaged);
        from = seen.next;
    }
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    let error = world.after_crash(MEMORY).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    // What can be saved is all but the records of one page, of which the tree has older ones.
    let mut salvage = TieredSalvage::open(&*world.disk.at("/db"), "k", KeyspaceId(1)).unwrap();
    let saved = saved(&mut salvage);
    let older = saved.iter().filter(|(key, value)| model[*key] != **value).count();
    assert_eq!(saved.len(), 4000);
    assert!((10..60).contains(&older), "{older}");
    let findings = salvage.findings();
    assert_eq!((findings.damaged.len(), findings.older.len(), findings.lost.len()), (1, 1, 0));
    let is_told = |key: &[u8]| {
        let span = findings.older[0].span();
        span.lower <= key && span.upper.is_none_or(|upper| key < upper)
    };
    assert!(saved.iter().all(|(key, value)| model[key] == *value || is_told(key)));
}

fn saved(salvage: &mut TieredSalvage) -> Model {
    let mut saved = Model::new();
    salvage.read_pages().unwrap();
    salvage
        .records(&mut |_, key, value| {
            match value {
                Some(value) => saved.insert(key.to_vec(), value.bytes.to_vec()),
                None => saved.remove(key),
            };
            Ok(())
        })
        .unwrap();
    saved
}

#[test]
fn images_are_salvaged_by_their_pages() {
    let (world, mut model) = scattered(MEMORY);
    world.remove(&key(24));
    model.remove(&key(24));
    world.checkpoint();
    for page in 0..4 {
        world.disk.flip_bit(Path::new("/db/k"), page * 4096 + 100, 3).unwrap();
    }
    let mut salvage = TieredSalvage::open(&*world.disk.at("/db"), "k", KeyspaceId(1)).unwrap();
    assert!(salvage.findings().checkpoint.is_some());
    assert!(saved(&mut salvage) == model);
    assert_eq!(salvage.findings().lost, []);
}

/// Dirty records that do not fit any more are merged while they are loaded.
#[test]
fn an_image_is_loaded_into_a_smaller_tier() {
    let world = World::new(8 << 20);
    let mut model = Model::new();
    for number in 0..20_000 {
        world.put(&key(number), &value(number, 1));
        model.insert(key(number), value(number, 1));
    }
    world.empty_tier();
    world.checkpoint();
    for number in (0..20_000).step_by(3) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    world.checkpoint();
    assert!(image_of(&world).records > 6000);
    let small = world.after_crash(600 << 10).unwrap();
    let dirty = small.engine.hot.dirty();
    assert!((1..6000).contains(&dirty), "{dirty}");
    small.check(&model);
    small.checkpoint();
    small.after_crash(8 << 20).unwrap().check(&model);
}

#[test]
fn a_copy_holds_the_image() {
    let (world, model) = scattered(MEMORY);
    world.checkpoint();
    world.disk.create_dir(Path::new("/copy")).unwrap();
    {
        let mut copy = world.engine.begin_backup(&*world.disk.at("/copy"), "k").unwrap();
        // The image goes while it is copied.
        world.empty_tier();
        world.checkpoint();
        world.put(&key(3), b"later");
        while copy.copy().unwrap().is_some() {}
        copy.finish().unwrap();
    }
    world.verify().unwrap();
    world.disk.remove(Path::new("/db/k")).unwrap();
    world.disk.rename(Path::new("/copy/k"), Path::new("/db/k")).unwrap();
    World::open(world.disk.clone(), MEMORY).unwrap().check(&model);
}

/// An image takes nothing of the reserve, and a full disk is none's end.
#[test]
fn a_full_disk_merges() {
    let (world, model) = scattered(MEMORY);
    let length = world.disk.contents(Path::new("/db/k")).unwrap().len() as u64;
    world.checkpoint();
    let pages = image_of(&world).pages();
    assert!(pages > 0);
    for step in 0..6 {
        (0..4000).step_by(12).for_each(|number| world.put(&key(number), &value(number, 2)));
        world.disk.set_capacity(Some(length + step * 100_000));
        let written = world.checkpoint_beside(|| ());
        assert!(written.is_ok() || written.is_err_and(|error| error.is_full()));
        world.disk.set_capacity(None);
        world.check(&model);
        world.after_crash(MEMORY).unwrap().check(&model);
    }
}

#[test]
fn what_is_dirty_is_merged_in_quiet() {
    let (world, model) = scattered(MEMORY);
    world.checkpoint();
    let runtime = world.engine.context.runtime.clone();
    for _ in 0..200 {
        world.engine.background().unwrap();
        runtime.sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(world.engine.hot.dirty(), 0);
    assert!(world.engine.is_dirty(), "a slot without an image is due");
    world.checkpoint();
    assert_eq!(image_of(&world), Run::default());
    world.after_crash(MEMORY).unwrap().check(&model);
    let _ = Arc::strong_count(&world.engine.values);
}
