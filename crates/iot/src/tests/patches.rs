//! Patches: what they leave to older readers, and what a replay makes of them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::task::Poll;

use spinney_base::runtime::SplitMix;
use spinney_base::{Lsn, ValueRef};
use spinney_engine::{
    Cell, Chunk, Engine as _, Found, Patch, Prepared, ScanRequest, SnapshotNumber, Versioned as _,
    Write,
};
use spinney_ssn::{Image, Sight, Transaction};
use spinney_sync::hash_key;

use super::{KEYSPACE, MUCH, Model, World, key};

/// What is done to a key.
#[derive(Clone, Debug)]
enum Change {
    Put(Vec<u8>),
    Remove,
    /// Parts: where each begins, and its bytes.
    Patch(Vec<(usize, Vec<u8>)>),
}

impl Change {
    fn encoded(&self) -> Option<Vec<u8>> {
        match self {
            Change::Put(value) => Some(value.clone()),
            Change::Remove => None,
            Change::Patch(parts) => {
                let mut patch = Vec::new();
                parts.iter().for_each(|(offset, bytes)| Patch::push(&mut patch, *offset, bytes));
                Some(patch)
            }
        }
    }

    fn apply(&self, model: &mut Model, key: &[u8]) {
        match self {
            Change::Put(value) => _ = model.insert(key.to_vec(), value.clone()),
            Change::Remove => _ = model.remove(key),
            Change::Patch(parts) => {
                let value = model.get_mut(key).unwrap();
                for (offset, bytes) in parts {
                    value[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
    }
}

/// Applies a change as the database does. Says whether it was one of what is there.
fn apply(world: &World, key: &[u8], change: &Change) -> bool {
    apply_near(world, key, change, Prepared::default())
}

/// Does the same with what was noted of where the record is.
fn apply_near(world: &World, key: &[u8], change: &Change, noted: Prepared) -> bool {
    let value = change.encoded();
    let value = value.as_deref().map(ValueRef::inline);
    let write = Write { key, hash: hash_key(KEYSPACE, key), value };
    let Prepared([bytes, _]) = world.engine.prepare(&write).unwrap();
    let prepared = Prepared([bytes | noted.0[0], noted.0[1]]);
    if let Change::Patch(_) = change {
        return world.engine.patch(&write, prepared, SnapshotNumber::NONE);
    }
    world.engine.apply(&write, prepared, Lsn::ZERO, SnapshotNumber::NONE);
    true
}

/// Writes while transactions run.
fn write(world: &World, key: &[u8], change: &Change) {
    let certifier = &world.engine.context.certifier;
    let mut writer: Transaction<Cell> = certifier.begin_plain().unwrap();
    let value = change.encoded().unwrap_or_default();
    let mut noted = Prepared::default();
    let cell = world.engine.cell(key, &value, &mut noted);
    assert!(matches!(writer.poll_own(&cell, None), Poll::Ready(Ok(()))));
    writer.draw().unwrap();
    writer.certify().unwrap();
    writer.decide();
    writer.publish(|_| {
        assert!(apply_near(world, key, change, noted), "it fits");
        if let Change::Remove = change { Image::Tombstone } else { Image::Value }
    });
    writer.finish();
}

fn read(world: &World, key: &[u8], sight: Sight) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let seen = world.engine.read_at(key, sight, &mut out).unwrap();
    (seen.found != Found::Absent).then_some(out)
}

fn range(world: &World, sight: Sight) -> Model {
    let request = ScanRequest {
        lower: Bound::Unbounded,
        records_wanted: usize::MAX,
        records_max: usize::MAX,
        bytes_max: usize::MAX,
        keys_only: false,
        ..ScanRequest::FIRST_KEY
    };
    let mut chunk = Chunk::default();
    world.engine.scan_at(&request, sight, &mut |_| {}, &mut chunk).unwrap();
    let record = |index| {
        let (key, value) = chunk.get(index);
        (key.to_vec(), value.bytes.to_vec())
    };
    (0..chunk.len()).map(record).collect()
}

fn begin(world: &World) -> Transaction<Cell> {
    world.engine.context.certifier.begin().unwrap()
}

fn collect(world: &World) {
    world.engine.collect(&world.engine.context.certifier.running(), usize::MAX);
}

#[test]
fn what_is_kept_is_as_small_as_the_part() {
    let world = World::new(MUCH, false);
    let before = vec![1; 2000];
    world.put(b"k", &before);
    let reader = begin(&world);
    let patch = |length: usize| Change::Patch(vec![(1500 - length, vec![2; length])]);
    write(&world, b"k", &patch(8));
    let small = world.engine.older_bytes();
    assert!(small < 128, "{small} bytes of an older image of 16");
    write(&world, b"k", &patch(900));
    assert_eq!(world.engine.older_bytes(), 2 * small + 908);
    // The whole value, where parts are half of it.
    write(&world, b"k", &patch(1000));
    assert_eq!(world.engine.older_bytes(), 3 * small + 908 + 2000);
    assert_eq!(read(&world, b"k", reader.sight()).unwrap(), before);
    assert_eq!(range(&world, reader.sight())[&b"k"[..]], before);
    drop(reader);
    collect(&world);
    assert_eq!(world.engine.older_bytes(), 0);
    assert_eq!(world.get(b"k").unwrap()[..1500], [&[1; 500][..], &[2; 1000]].concat());
}

/// A record that was read is in another leaf when it is overwritten.
#[test]
fn overwriters_are_found_where_a_record_went() {
    let world = World::new(MUCH, false);
    (0..40).for_each(|number| world.put(&key(10 * number), &[1; 20]));
    let reader = begin(&world);
    let read = |number: u64| {
        let seen = world.engine.read_at(&key(10 * number), reader.sight(), &mut Vec::new());
        seen.unwrap().place
    };
    let places: Vec<_> = (0..40).map(read).collect();
    (0..200).for_each(|number| world.put(&key(2 * number + 1), &[2; 400]));
    (0..40).for_each(|number| write(&world, &key(10 * number), &Change::Put(vec![3])));
    let now = world.engine.context.certifier.clock().now();
    for (number, place) in (0..).zip(places) {
        let key = key(10 * number);
        let pi = world.engine.overwritten_at(&key, place, reader.sight(), now);
        assert!(pi <= now, "nobody has overwritten {key:?}");
    }
}

/// Versions that came and went between two readers are seen by nobody, whatever begins later.
#[test]
fn what_is_between_readers_goes() {
    for is_patched in [false, true] {
        let (world, mut value) = (World::new(MUCH, false), vec![0; 200]);
        world.put(b"k", &value);
        let mut readers = Vec::new();
        for round in 1..=400_u64 {
            if round % 100 == 7 {
                readers.push((begin(&world), value.clone()));
            }
            let (at, bytes) = ((round % 5 * 8) as usize, round.to_le_bytes());
            value[at..at + 8].copy_from_slice(&bytes);
            let patch = Change::Patch(vec![(at, bytes.to_vec())]);
            let put = Change::Put(value.clone());
            write(&world, b"k", if is_patched { &patch } else { &put });
            if round % 30 == 0 {
                collect(&world);
                let most = 300 * (readers.len() as u64).max(3);
                let kept = world.engine.older_bytes();
                assert!(kept <= most, "{kept} bytes in round {round}");
            }
        }
        for (reader, value) in &readers {
            assert_eq!(read(&world, b"k", reader.sight()).as_ref(), Some(value));
        }
        drop(readers);
        collect(&world);
        assert_eq!((world.engine.older_bytes(), world.engine.tree.cells.used()), (0, 0));
    }
}

/// Draws what is done to a key: patches of one part or several, of a value that is there.
fn draw(random: &mut SplitMix, value: Option<&Vec<u8>>) -> Change {
    let mut draw = |most: usize| random.next_u64() as usize % most;
    match value {
        Some(value) if draw(20) == 0 => Change::Put(value.clone()),
        Some(value) if value.len() >= 16 && draw(8) > 0 => {
            let third = value.len() / 3;
            let parts = (0..1 + draw(3)).map(|number| {
                let most = if draw(3) > 0 { third.min(12) } else { third };
                let length = 1 + draw(most);
                let offset = number * third + draw(third - length + 1);
                (offset, vec![draw(250) as u8; length])
            });
            let patch = Change::Patch(parts.collect());
            match draw(3) {
                0 => {
                    // A put that differs in so much.
                    let key = b"key";
                    let mut model = Model::from([(key.to_vec(), value.clone())]);
                    patch.apply(&mut model, key);
                    Change::Put(model.remove(&key[..]).unwrap())
                }
                _ => patch,
            }
        }
        _ if draw(4) == 0 => Change::Remove,
        _ => {
            let most = [30, 300, 2000][draw(3)];
            Change::Put(vec![draw(250) as u8; draw(most)])
        }
    }
}

/// Random changes, splits, joins and collections beside readers at several begin stamps, compared with maps of them.
#[test]
fn readers_of_many_moments_agree_with_maps() {
    for seed in 0..30 {
        let (world, mut model) = (World::new(MUCH, false), Model::new());
        let mut random = SplitMix(seed);
        let keys = [1, 8, 60][seed as usize % 3];
        let mut readers: Vec<(Transaction<Cell>, Model)> = vec![(begin(&world), Model::new())];
        for step in 0..2000 {
            let key = key(random.next_u64() % keys);
            let change = draw(&mut random, model.get(&key));
            write(&world, &key, &change);
            change.apply(&mut model, &key);
            let at = random.next_u64() as usize % (readers.len() + 1);
            match random.next_u64() % 24 {
                0..3 if readers.len() < 12 => readers.push((begin(&world), model.clone())),
                3..5 if at < readers.len() => drop(readers.swap_remove(at)),
                5..9 if at < readers.len() => {
                    let (reader, model) = &readers[at];
                    let found = range(&world, reader.sight());
                    assert!(found == *model, "seed {seed}, step {step}");
                    for number in 0..keys {
                        let key = super::key(number);
                        let found = read(&world, &key, reader.sight());
                        assert_eq!(found.as_ref(), model.get(&key), "seed {seed}, step {step}");
                    }
                }
                9 => collect(&world),
                10 => _ = world.engine.tree.join_some(&[], usize::MAX),
                11 if step % 7 == 0 => world.checkpoint(),
                _ => {}
            }
        }
        assert!(world.all() == model, "seed {seed}");
        drop(readers);
        collect(&world);
        assert_eq!((world.engine.older_bytes(), world.engine.tree.cells.used()), (0, 0));
        world.check(&model);
        world.checkpoint();
        world.after_crash().check(&model);
    }
}

/// Where a record was noted there may be others by now: neighbours came, or its leaf was divided, or joined again.
#[test]
fn what_moved_since_its_cell_was_taken_is_found() {
    for moves in 0..4 {
        let (world, mut model) = (World::new(MUCH, false), Model::new());
        let put = |model: &mut Model, number: u64, value: &[u8]| {
            world.put(&key(number), value);
            model.insert(key(number), value.to_vec());
        };
        (0..40).for_each(|number| put(&mut model, 10 * number, &[1; 20]));
        let noted = (0..40).map(|number| {
            let mut noted = Prepared::default();
            let cell = world.engine.cell(&key(10 * number), b"", &mut noted);
            (key(10 * number), cell, noted)
        });
        let noted: Vec<(Vec<u8>, Cell, Prepared)> = noted.collect();
        let neighbours = [0, 4, 200, 200][moves];
        (0..neighbours).for_each(|number| put(&mut model, 2 * number + 1, &[2; 400]));
        assert_eq!(world.engine.tree.leaves() > 1, moves > 1);
        if moves == 3 {
            let before = world.engine.tree.leaves();
            for number in 0..neighbours {
                world.remove(&key(2 * number + 1));
                model.remove(&key(2 * number + 1));
            }
            world.engine.tree.join_some(&[], usize::MAX);
            assert!(world.engine.tree.leaves() < before);
        }
        for (number, (key, _, noted)) in noted.iter().enumerate() {
            let change = match number % 3 {
                0 => Change::Put(vec![3; number]),
                1 => Change::Remove,
                _ => Change::Patch(vec![(5, vec![4; 2])]),
            };
            assert!(apply_near(&world, key, &change, *noted));
            change.apply(&mut model, key);
        }
        world.check(&model);
        drop(noted);
        collect(&world);
        assert_eq!(world.engine.tree.cells.used(), 0);
        world.check(&model);
    }
}

/// An image has any of the states from its redo LSN on. What is replayed above that leads to the last one.
#[test]
fn a_replay_over_later_images_ends_with_the_last_state() {
    for seed in 0..60 {
        let mut random = SplitMix(seed);
        let (mut model, mut log, mut states) = (Model::new(), Vec::new(), vec![Model::new()]);
        for _ in 0..60 {
            let key = key(random.next_u64() % 4);
            let change = match random.next_u64() % 12 {
                0 => Change::Remove,
                _ => draw(&mut random, model.get(&key)),
            };
            change.apply(&mut model, &key);
            log.push((key, change));
            states.push(model.clone());
        }
        let redo = random.next_u64() as usize % log.len();
        let world = World::new(MUCH, false);
        // Each key as of some moment of its own.
        let mut image: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for number in 0..4 {
            let at = redo + random.next_u64() as usize % (log.len() - redo + 1);
            let key = key(number);
            image.insert(key.clone(), states[at].get(&key).cloned());
        }
        for (key, value) in image {
            if let Some(value) = value {
                world.put(&key, &value);
            }
        }
        for _ in 0..2 {
            for (key, change) in &log[redo..] {
                apply(&world, key, change);
            }
            assert!(world.all() == model, "seed {seed}");
        }
        world.check(&model);
    }
}

/// The bytes of a pointer are no value.
#[test]
fn pointers_are_not_patched() {
    let world = World::new(MUCH, false);
    world.put_large(b"k", &[7; 9000]);
    assert!(!apply(&world, b"k", &Change::Patch(vec![(0, vec![1; 8])])));
    assert!(!apply(&world, b"other", &Change::Patch(vec![(0, vec![1])])));
    assert_eq!(world.get(b"k").unwrap(), [7; 9000]);
    world.put(b"short", b"abc");
    assert!(!apply(&world, b"short", &Change::Patch(vec![(0, vec![1]), (2, vec![1, 2])])));
    assert_eq!(world.get(b"short").unwrap(), b"abc");
}
