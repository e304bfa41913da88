//! What the log has is replayed by many threads: each key has its last value, whatever its engine.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::runtime::SplitMix;
use spinney_db::{Batch, Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, SimDisk};

type Model = BTreeMap<(usize, u64), Vec<u8>>;

fn open(disk: &SimDisk) -> (Db, Vec<Keyspace>) {
    let options = Options::default()
        .memory(24 << 20)
        .log_bytes_max(64 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::threads());
    let db = Db::open("/db", options).unwrap();
    let make = |kind: EngineKind| {
        db.keyspace(kind.name(), KeyspaceOptions::default().engine(kind)).unwrap()
    };
    let keyspaces = EngineKind::ALL.into_iter().map(make).collect();
    (db, keyspaces)
}

/// A few keys are written again and again, in batches over all engines, with removals and large values.
#[test]
fn p15_each_key_has_its_last_value() {
    let disk = SimDisk::new(1);
    let (db, keyspaces) = open(&disk);
    let (mut random, mut model) = (SplitMix(7), Model::new());
    for round in 0..4_000_u64 {
        let mut batch = Batch::new();
        for _ in 0..1 + random.next_u64() % 8 {
            let at = random.next_u64() as usize % keyspaces.len();
            let number = random.next_u64() % 400;
            let length = if random.next_u64() % 300 == 0 { 9_000 } else { 200 };
            let value = [&round.to_be_bytes()[..], &vec![3; length]].concat();
            if random.next_u64() % 5 == 0 {
                batch.remove(&keyspaces[at], number.to_be_bytes());
                model.remove(&(at, number));
            } else {
                batch.insert(&keyspaces[at], number.to_be_bytes(), &value);
                model.insert((at, number), value);
            }
        }
        db.write(batch).unwrap();
    }
    db.flush().unwrap();
    let after = disk.crash(CrashMode::KeepAll);
    drop((db, keyspaces));
    let (db, keyspaces) = open(&after);
    let mut found = Model::new();
    for (at, keyspace) in keyspaces.iter().enumerate() {
        for record in keyspace.iter() {
            let (key, value) = record.unwrap();
            found.insert((at, u64::from_be_bytes(*key.first_chunk().unwrap())), value.to_vec());
        }
    }
    assert!(found == model, "{} records, {} expected", found.len(), model.len());
    db.verify().unwrap();
}

/// While the log is replayed nothing works in the background, so no operation waits for it.
#[test]
fn p19_a_replay_of_many_batches_is_not_delayed() {
    let disk = SimDisk::new(1);
    let options = |disk: &SimDisk| {
        let options = Options::default().memory(16 << 20).log_bytes_max(256 << 20);
        options.durability(Durability::Buffered).disk(Arc::new(disk.clone()))
    };
    let db = Db::open("/db", options(&disk)).unwrap();
    let keyspace = db.keyspace("k", EngineKind::Turtle).unwrap();
    (0..100_000_u64).for_each(|number| keyspace.insert(number.to_be_bytes(), [7; 100]).unwrap());
    db.flush().unwrap();
    let disk = disk.kill();
    let db = Db::open("/db", options(&disk)).unwrap();
    let keyspace = db.existing_keyspace("k").unwrap();
    let turtle = keyspace.stats().turtle.expect("it is one");
    assert_eq!(turtle.writes_delayed, 0, "{turtle:?}");
    assert_eq!(keyspace.iter().count(), 100_000);
}
