//! Random operations beside a map.

use std::ops::Bound;

use spinney_base::ValueRef;
use spinney_base::runtime::SplitMix;
use spinney_engine::{Direction, Engine as _, Maintain as _, SnapshotNumber};

use super::{MUCH, Model, World};

/// Draws a key: short or long, many with long parts in common.
fn draw_key(random: &mut SplitMix, keys: u64) -> Vec<u8> {
    let number = random.next_u64() % keys;
    let mut key = match number % 5 {
        0 => Vec::new(),
        1 => vec![b'a'; 900],
        2 => b"common/prefix/of/many/keys/".to_vec(),
        3 => vec![0; (number / 5 % 12) as usize],
        _ => vec![255; 40],
    };
    let tail = (number / 5).to_be_bytes();
    key.extend_from_slice(&tail[tail.len() - (1 + number % 4) as usize..]);
    key
}

fn draw_bound(random: &mut SplitMix, keys: u64) -> Bound<Vec<u8>> {
    match random.next_u64() % 3 {
        0 => Bound::Unbounded,
        1 => Bound::Included(draw_key(random, keys)),
        _ => Bound::Excluded(draw_key(random, keys)),
    }
}

fn range_of(
    model: &Model,
    lower: &Bound<Vec<u8>>,
    upper: &Bound<Vec<u8>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let is_above = |key: &Vec<u8>| match lower {
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
        Bound::Unbounded => true,
    };
    let is_below = |key: &Vec<u8>| match upper {
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
        Bound::Unbounded => true,
    };
    let records = model.iter().filter(|(key, _)| is_above(key) && is_below(key));
    records.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[test]
fn operations_agree_with_a_map() {
    for seed in 0..40 {
        let mut random = SplitMix(seed);
        let (mut world, mut model) = (World::new(MUCH, false), Model::new());
        let keys = 200 << (seed % 5);
        // Some runs have more and more records, some fewer.
        for step in 0..3000_u64 {
            let removes = if step / 600 % 2 == 0 { 2 } else { 7 };
            let key = draw_key(&mut random, keys);
            match random.next_u64() % 20 {
                at if at < removes => {
                    world.remove(&key);
                    model.remove(&key);
                }
                at if at < 14 => {
                    let length = random.next_u64() % if step % 50 == 0 { 1600 } else { 200 };
                    let value = vec![step as u8; length as usize];
                    world.put(&key, &value);
                    model.insert(key, value);
                }
                14 if step % 8 == 0 => {
                    let value = vec![step as u8; 5000];
                    world.put_large(&key, &value);
                    model.insert(key, value);
                }
                14..17 => assert_eq!(world.get(&key).as_ref(), model.get(&key)),
                17 | 18 => {
                    let bounds = [0, 1].map(|_| draw_bound(&mut random, keys));
                    let [lower, upper] =
                        bounds.each_ref().map(|bound| bound.as_ref().map(Vec::as_slice));
                    let mut expected = range_of(&model, &bounds[0], &bounds[1]);
                    let most = 1 + random.next_u64() as usize % 40;
                    let found = world.range((lower, upper), Direction::Forward, most);
                    assert!(found == expected, "seed {seed}, step {step}");
                    expected.reverse();
                    let found = world.range((lower, upper), Direction::Reverse, most);
                    assert!(found == expected, "seed {seed}, step {step}, reverse");
                }
                _ if step % 40 < 2 => {
                    world.checkpoint();
                    if random.next_u64().is_multiple_of(3) {
                        world.check(&model);
                        world = world.after_crash();
                        world.check(&model);
                    }
                }
                _ if step % 40 == 5 => _ = world.engine.tree.join_some(&[], usize::MAX),
                _ => {}
            }
        }
        world.check(&model);
        for key in model.keys() {
            world.remove(key);
        }
        world.check(&Model::new());
        let joined = world.engine.tree.join_some(&[], usize::MAX);
        assert!(world.engine.tree.leaves() <= 2, "{joined:?} joined at the end, seed {seed}");
    }
}

#[test]
fn ascending_keys_leave_full_leaves() {
    let world = World::new(MUCH, false);
    for number in 0..20_000_u64 {
        world.put(&number.to_be_bytes(), &[7; 100]);
    }
    // 72 bytes of a slot and its head, and 104 of data.
    let least = 20_000 * 176 / (16 << 10);
    let leaves = world.engine.tree.leaves();
    assert!(leaves <= least * 11 / 10, "{leaves} leaves, at least {least}");
    assert_eq!(world.verify().unwrap(), 20_000);
}

/// As orders of districts come in.
#[test]
fn keys_that_ascend_in_many_places_leave_full_leaves() {
    let world = World::new(MUCH, false);
    for number in 0..2_000_u64 {
        for district in 0..10_u64 {
            let key = [district.to_be_bytes(), number.to_be_bytes()].concat();
            world.put(&key, &[7; 100]);
        }
    }
    // 72 bytes of a slot and its head, and 112 of data.
    let least = 20_000 * 184 / (16 << 10);
    let leaves = world.engine.tree.leaves();
    assert!(leaves <= least * 12 / 10, "{leaves} leaves, at least {least}");
    assert_eq!(world.verify().unwrap(), 20_000);
}

#[test]
fn a_bulk_load_is_there_at_once() {
    for count in [0, 1, 100, 20_000] {
        let world = World::new(MUCH, false);
        let model: Model = (0..count).map(|at| (super::key(at), super::value(at, 3))).collect();
        world.put(b"gone", b"1");
        world.checkpoint();
        world.remove(b"gone");
        let mut loading = world.engine.bulk().unwrap();
        for (key, value) in &model {
            loading.push(key, ValueRef::inline(value)).unwrap();
        }
        drop(loading);
        world.check(&Model::new());
        let mut loading = world.engine.bulk().unwrap();
        for (key, value) in &model {
            loading.push(key, ValueRef::inline(value)).unwrap();
        }
        assert_eq!(world.engine.tree.records(), 0);
        loading.install(SnapshotNumber(1)).unwrap();
        world.check(&model);
        assert!(count == 0 || world.engine.bulk().is_err());
        let world = world.after_crash();
        world.check(&model);
        world.put(b"another", b"2");
        world.checkpoint();
        assert_eq!(world.verify().unwrap(), count + 1);
        assert!(world.engine.stats().file_bytes < (2 << 20) + count * 500);
    }
}
