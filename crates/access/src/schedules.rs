//! What readers, mergers, write-backs and checkpoints owe each other, under schedules that may stop a thread at
//! any lock, atomic or word: `cargo test -p spinney-access --features shuttle --lib schedules`.

use std::collections::BTreeMap;
use std::sync::Arc;

use shuttle::thread::{JoinHandle, spawn};
use spinney_base::schedules::check;
use spinney_engine::Found;
use spinney_io::sim::CrashMode;

use crate::world::{Changes, Model, World};

const FRAMES: u64 = 32;
/// So many that every merge has to write pages back.
const FEW_FRAMES: u64 = 12;

/// Values of half a leaf's fourth, so that few records fill one.
fn value(version: u8) -> Vec<u8> {
    vec![version; 900]
}

fn put(keys: &[u8], version: u8) -> Changes {
    keys.iter().map(|key| (vec![*key], Some(value(version)))).collect()
}

/// A tree of two leaves: keys 10 to 60, in tens.
fn world() -> Arc<World> {
    let world = World::new(1, 0, FRAMES);
    world.merge_into(&mut Model::new(), &put(&[10, 20, 30, 40, 50, 60], 0)).unwrap();
    world.checkpoint().unwrap();
    assert!(world.tree.walk(&mut |_, _, _| {}).unwrap().leaves > 1);
    Arc::new(world)
}

fn thread(world: &Arc<World>, body: impl FnOnce(&World) + Send + 'static) -> JoinHandle<()> {
    let world = Arc::clone(world);
    spawn(move || body(&world))
}

fn get(world: &World, key: u8) -> Option<u8> {
    let mut out = Vec::new();
    match world.tree.get(&[key], &mut out).unwrap() {
        Found::Absent => None,
        _ => {
            assert!(out.len() == 900 && out.iter().all(|byte| *byte == out[0]), "a mixture");
            Some(out[0])
        }
    }
}

fn contents(world: &World) -> BTreeMap<u8, u8> {
    let mut found = BTreeMap::new();
    world.tree.walk(&mut |key, value, _| _ = found.insert(key[0], value[0])).unwrap();
    found
}

/// H10: a reader misses no key while its leaf is divided, and sees no older value after a newer one.
#[test]
fn h10_readers_beside_a_split() {
    check(2000, || {
        let world = world();
        let reader = thread(&world, |world| {
            let mut newest = 0;
            for _ in 0..2 {
                assert_eq!(get(world, 60), Some(0));
                let version = get(world, 20).expect("it is always there");
                assert!(version >= newest);
                newest = version;
            }
        });
        world.merge_into(&mut Model::new(), &put(&[15, 20, 25, 35], 1)).unwrap();
        reader.join().unwrap();
        assert_eq!(get(&world, 20), Some(1));
    });
}

/// H18: a page that moves is found, and an edit beside it is not lost.
#[test]
fn h18_a_page_moves_beside_changes() {
    check(2000, || {
        let world = world();
        world.merge_into(&mut Model::new(), &put(&[10, 60], 1)).unwrap();
        let writer = thread(&world, |world| _ = world.tree.write_back(9).unwrap());
        let reader = thread(&world, |world| assert_eq!(get(world, 30), Some(0)));
        world.merge_into(&mut Model::new(), &put(&[10, 50], 2)).unwrap();
        writer.join().unwrap();
        reader.join().unwrap();
        world.checkpoint().unwrap();
        let left = world.reopened(world.disk.crash(CrashMode::LoseAll), 0, FRAMES);
        let expected = [(10, 2), (20, 0), (30, 0), (40, 0), (50, 2), (60, 1)];
        assert_eq!(contents(&left), BTreeMap::from(expected));
    });
}

/// H10, H12: a checkpoint beside splits names a tree in which every key is that was there before it, and what
/// came home before it began.
#[test]
fn h12_a_checkpoint_beside_splits() {
    check(2000, || {
        let world = world();
        world.merge_into(&mut Model::new(), &put(&[20], 1)).unwrap();
        let merger = thread(&world, |world| {
            world.merge_into(&mut Model::new(), &put(&[15, 20, 25, 35], 2)).unwrap();
            world.merge_into(&mut Model::new(), &put(&[45, 55], 2)).unwrap();
        });
        world.checkpoint().unwrap();
        let left = world.reopened(world.disk.crash(CrashMode::LoseAll), 0, FRAMES);
        merger.join().unwrap();
        let found = contents(&left);
        for key in [10, 20, 30, 40, 50, 60] {
            assert!(found.contains_key(&key), "key {key} is nowhere: {found:?}");
        }
        assert!(found[&20] >= 1, "what was merged before is not there");
    });
}

/// H10: a change in a leaf that another thread divides is not lost.
#[test]
fn h10_two_changes_of_one_leaf() {
    check(2000, || {
        let world = world();
        let other = thread(&world, |world| {
            world.merge_into(&mut Model::new(), &put(&[10], 1)).unwrap();
            world.merge_into(&mut Model::new(), &put(&[30], 1)).unwrap();
        });
        world.merge_into(&mut Model::new(), &put(&[12, 15, 25], 1)).unwrap();
        other.join().unwrap();
        assert_eq!((get(&world, 10), get(&world, 30)), (Some(1), Some(1)), "a change was lost");
        assert_eq!(contents(&world).len(), 9);
    });
}

/// Two threads divide neighbouring leaves under one parent.
#[test]
fn two_splits_under_one_parent() {
    check(2000, || {
        let world = world();
        let other = thread(&world, |world| {
            world.merge_into(&mut Model::new(), &put(&[41, 45, 55, 65], 1)).unwrap();
        });
        world.merge_into(&mut Model::new(), &put(&[5, 12, 15, 25], 1)).unwrap();
        other.join().unwrap();
        assert_eq!(contents(&world).len(), 14);
    });
}

/// H20: with few frames, which are all dirty, a split needs a write-back, which needs the gate: it holds none
/// meanwhile, so a checkpoint that closes it waits for nobody who waits for it.
#[test]
fn h20_a_split_without_a_frame_beside_a_checkpoint() {
    check(1000, || {
        let world = Arc::new(World::new(1, 0, FEW_FRAMES));
        let keys: Vec<u8> = (1..60).map(|number| number * 4).collect();
        keys.chunks(6).for_each(|some| world.merge_into(&mut Model::new(), &put(some, 0)).unwrap());
        let merger = thread(&world, |world| {
            world.merge_into(&mut Model::new(), &put(&[9, 11, 13, 15], 1)).unwrap();
        });
        world.checkpoint().unwrap();
        merger.join().unwrap();
        assert_eq!(contents(&world).len(), 59 + 4);
    });
}
