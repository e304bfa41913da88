//! Snapshots beside writes.

use std::ops::Bound;
use std::sync::Arc;

use spinney_base::ValueRef;
use spinney_base::runtime::SplitMix;
use spinney_engine::{
    Chunk, Direction, Engine as _, EngineSnapshot, Found, ScanRequest, SnapshotNumber,
};
use spinney_sync::hash_key;

use super::{KEYSPACE, MUCH, Model, World, key};

fn all(snapshot: &dyn EngineSnapshot, direction: Direction) -> Model {
    let (mut found, mut near): (Model, Bound<Vec<u8>>) = (Model::new(), Bound::Unbounded);
    loop {
        let from = near.as_ref().map(Vec::as_slice);
        let is_forward = direction == Direction::Forward;
        let request = ScanRequest {
            lower: if is_forward { from } else { Bound::Unbounded },
            upper: if is_forward { Bound::Unbounded } else { from },
            direction,
            records_wanted: 30,
            records_max: 30,
            bytes_max: usize::MAX,
            keys_only: false,
        };
        let mut chunk = Chunk::default();
        snapshot.scan(&request, &mut chunk).unwrap();
        found.extend((0..chunk.len()).map(|index| {
            let (key, value) = chunk.get(index);
            (key.to_vec(), value.bytes.to_vec())
        }));
        match spinney_engine::overlay::beyond(&mut chunk) {
            Some(beyond) => near = beyond,
            None => return found,
        }
    }
}

#[test]
fn snapshots_stay_as_they_were() {
    for seed in 0..10 {
        let (world, mut model, mut random) =
            (World::new(MUCH, false), Model::new(), SplitMix(seed));
        let mut snapshots = Vec::new();
        for number in 0..8_u64 {
            for step in 0..1500_u64 {
                let key = key(random.next_u64() % 2000);
                if random.next_u64().is_multiple_of(3) {
                    world.write(&key, None, number).unwrap();
                    model.remove(&key);
                } else {
                    let value = vec![step as u8; (random.next_u64() % 200) as usize];
                    world.write(&key, Some(ValueRef::inline(&value)), number).unwrap();
                    model.insert(key, value);
                }
            }
            let engine = Arc::clone(&world.engine);
            let snapshot = engine.begin_snapshot(SnapshotNumber(number + 1)).unwrap();
            snapshots.push((snapshot, model.clone()));
            world.checkpoint();
            if random.next_u64().is_multiple_of(3) {
                let gone = random.next_u64() as usize % snapshots.len();
                snapshots.swap_remove(gone);
            }
        }
        for (snapshot, model) in &snapshots {
            assert!(all(&**snapshot, Direction::Forward) == *model);
            assert!(all(&**snapshot, Direction::Reverse) == *model);
            for number in 0..2000 {
                let (key, mut out) = (key(number), Vec::new());
                let found = snapshot.get(&key, hash_key(KEYSPACE, &key), &mut out).unwrap();
                assert_eq!(model.get(&key), (found != Found::Absent).then_some(&out));
            }
        }
        drop(snapshots);
        world.check(&model);
    }
}
