//! Ranges in both directions, over keys and records that make uncommon segments.
#![cfg(not(feature = "shuttle"))]

#[path = "common/budget.rs"]
mod budget;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::runtime::SplitMix;
use spinney_db::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::SimDisk;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// What iterators say, whole and from every key on.
fn agrees(keyspace: &Keyspace, model: &Model) {
    let owned: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let found_pair = |(key, value): (Vec<u8>, spinney_db::Value)| (key, value.to_vec());
    let found = |pair: spinney_db::Result<_>| found_pair(pair.unwrap());
    let forward: Vec<_> = keyspace.iter().map(found).collect();
    assert!(forward == owned, "forward");
    let backward: Vec<_> = keyspace.iter().rev().map(found).collect();
    assert!(backward.iter().eq(owned.iter().rev()), "backward: {} records", backward.len());
    let last = keyspace.last_key_value().unwrap().map(found_pair);
    assert!(last.as_ref() == owned.last(), "last");
    for (key, _) in owned.iter().step_by(7) {
        let found = keyspace.range(..key.clone()).next_back().map(|pair| pair.unwrap().0);
        let right = model.range(..key.clone()).next_back().map(|(key, _)| key.clone());
        assert!(found == right, "below {}", key.escape_ascii());
    }
}

/// A database with little memory, and a keyspace.
fn small(engine: EngineKind) -> (Runtime, Db, Keyspace) {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let options = Options::default()
        .memory(budget::with_records(engine, 1 << 20))
        .log_bytes_max(4 << 20)
        .disk(Arc::new(disk))
        .runtime(runtime.clone());
    let db = Db::open(Path::new("/db"), options).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default().engine(engine)).unwrap();
    (runtime, db, main)
}

/// Records that take a page, alone and beside others, have a second page that holds no key; so has
/// the last segment of all, whose keys go on forever.
#[test]
fn pages_that_hold_no_key_do_not_end_a_range() {
    let (runtime, db, main) = small(EngineKind::default());
    let mut model = Model::new();
    for number in 0..900_u64 {
        let number = number.wrapping_mul(0x9E37_79B9) % 1_009;
        let key = match number % 3 {
            0 => vec![0xFF; number as usize],
            _ => format!("key {number:04}").into_bytes(),
        };
        let length = if number.is_multiple_of(5) { 4096 - 90 - key.len() } else { 300 };
        let value = vec![number as u8; length];
        main.insert_with(&key, &value, Durability::Buffered).unwrap();
        model.insert(key, value);
        (0..2).for_each(|_| _ = runtime.step());
    }
    for round in 0..40 {
        db.checkpoint().unwrap();
        agrees(&main, &model);
        // Every segment is the last one in turn.
        if let Some((key, _)) = model.pop_last() {
            main.remove_with(&key, Durability::Buffered).unwrap();
            if round % 2 == 0 {
                main.insert_with(&key, vec![7; 4096 - 90 - key.len()], Durability::Buffered)
                    .unwrap();
                model.insert(key.clone(), vec![7; 4096 - 90 - key.len()]);
            }
        }
    }
    db.verify().unwrap();
}

/// A range whose bounds are equal or cross each other has nothing, one between two neighbours too, and each ends,
/// whatever was read before: short ranges leave gaps in memory that answer alone.
#[test]
fn ranges_without_a_record_end() {
    for engine in EngineKind::ALL {
        let (runtime, db, main) = small(engine);
        let key = |number: u64| format!("{number:06}").into_bytes();
        let mut model = Model::new();
        for number in 0..20_000 {
            main.insert_with(key(2 * number), [7; 100], Durability::Buffered).unwrap();
            model.insert(key(2 * number), vec![7; 100]);
            (0..number % 2).for_each(|_| _ = runtime.step());
        }
        db.checkpoint().unwrap();
        let mut random = SplitMix(9);
        for round in 0..20_000 {
            let from = random.next_u64() % 2_000 * 20;
            let width = random.next_u64() % 12;
            let to = if round % 3 == 0 { from.saturating_sub(width) } else { from + width };
            let bound = |key: &Vec<u8>, draw: u64| match draw % 3 {
                0 => Bound::Excluded(key.clone()),
                _ => Bound::Included(key.clone()),
            };
            let (from, to) = (key(from), key(to));
            let range = (bound(&from, random.next_u64()), bound(&to, random.next_u64()));
            // What the model refuses has nothing.
            let is_empty = from > to
                || from == to
                    && matches!(&range, (Bound::Excluded(_), _) | (_, Bound::Excluded(_)));
            let right: Vec<_> = match is_empty {
                true => Vec::new(),
                false => model.range(range.clone()).map(|(key, _)| key.clone()).collect(),
            };
            let of = || main.range(range.clone());
            let mut found: Vec<_> = match round % 2 {
                0 => of().map(|record| record.unwrap().0).collect(),
                _ => of().rev().map(|record| record.unwrap().0).collect(),
            };
            if round % 2 == 1 {
                found.reverse();
            }
            assert!(found == right, "{engine:?}, round {round}: {range:?}");
        }
    }
}
