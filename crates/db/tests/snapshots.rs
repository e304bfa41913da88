//! Snapshots over keyspaces of any engine.

#[path = "common/budget.rs"]
mod budget;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use spinney_base::limits::MEMORY_BYTES_MIN;
use spinney_db::{
    Batch, Db, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options,
    PreImageStats, Snapshot, TornWrites, TreeLineOptions,
};

use budget::with_records;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    of_memory(MEMORY_BYTES_MIN)
}

/// With memory for the records of an engine that keeps all of them there.
fn options_for(engine: EngineKind) -> Options {
    of_memory(with_records(engine, MEMORY_BYTES_MIN))
}

fn of_memory(bytes: u64) -> Options {
    Options::default()
        .memory(bytes)
        .durability(Durability::Buffered)
        .torn_writes(TornWrites::Assume4k)
}

fn keyspace(db: &Db, name: &str, engine: EngineKind) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::default().engine(engine)).unwrap()
}

fn all(snapshot: &Snapshot) -> Model {
    snapshot.iter().map(|record| record.unwrap()).map(|(key, value)| (key, value.into())).collect()
}

/// Lets writers end, also where a check fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Numbers that look random and replay.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Checks a snapshot against what was there: gets, ranges from either end, and many keys at once.
fn check(snapshot: &Snapshot, model: &Model, random: &mut Random, keys: u64) {
    for _ in 0..20 {
        let key = random.below(keys).to_be_bytes();
        let found = snapshot.get(key).unwrap();
        assert_eq!(found.as_deref(), model.get(&key[..]).map(Vec::as_slice), "key {key:?}");
    }
    let some: Vec<[u8; 8]> = (0..30).map(|_| random.below(keys).to_be_bytes()).collect();
    let found = snapshot.multi_get(&some).unwrap();
    for (key, found) in some.iter().zip(found) {
        assert_eq!(found.as_deref(), model.get(&key[..]).map(Vec::as_slice));
    }
    let from = random.below(keys).to_be_bytes();
    let expected: Vec<_> = model.range(from.to_vec()..).take(200).collect();
    let found: Vec<_> = snapshot.range(from..).limit(200).map(|one| one.unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for ((key, value), (wanted, that)) in found.iter().zip(expected) {
        assert_eq!((key, &**value), (wanted, &**that));
    }
    let expected = model.range(..from.to_vec()).next_back().map(|(key, _)| key.clone());
    let found = snapshot.range(..from).rev().next().map(|one| one.unwrap().0);
    assert_eq!(found, expected);
}

/// Waits until no run takes a page: a merge of the background may have had some when the last snapshot
/// went, and gives them back at its end.
fn once_runs_have_gone(keyspace: &Keyspace) -> PreImageStats {
    for _ in 0..4000 {
        let images = keyspace.stats().pre_images;
        if images.run_bytes == 0 {
            return images;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("runs that no snapshot needs stay: {:?}", keyspace.stats().pre_images);
}

/// Random writes, removals and batches beside up to four snapshots, each checked against a copy of the
/// model; data a few times the memory, so that pages are read, written back, reorganized and staged.
fn stays_what_it_was(engine: EngineKind, seed: u64, keys: u64, bytes: usize) -> PreImageStats {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options_for(engine)).unwrap();
    let main = keyspace(&db, "main", engine);
    let mut random = Random(seed);
    let mut model = Model::new();
    let mut kept: Vec<(Snapshot, Model)> = Vec::new();
    for round in 0..2_500_u64 {
        let key = random.below(keys).to_be_bytes();
        if random.below(5) == 0 {
            main.remove(key).unwrap();
            model.remove(&key[..]);
        } else {
            let length = 1 + random.below(bytes as u64) as usize;
            let value = vec![round as u8; length];
            main.insert(key, &value).unwrap();
            model.insert(key.to_vec(), value);
        }
        match random.below(600) {
            0..4 if kept.len() < 4 => kept.push((main.snapshot().unwrap(), model.clone())),
            4 if !kept.is_empty() => {
                let which = random.below(kept.len() as u64) as usize;
                let (snapshot, then) = kept.remove(which);
                assert_eq!(all(&snapshot), then, "seed {seed}, round {round}");
            }
            5 => db.checkpoint().unwrap(),
            6..40 if !kept.is_empty() => {
                let which = random.below(kept.len() as u64) as usize;
                check(&kept[which].0, &kept[which].1, &mut random, keys);
            }
            _ => {}
        }
    }
    for (snapshot, then) in &kept {
        assert_eq!(all(snapshot), *then, "seed {seed}, at the end");
    }
    drop(kept);
    let now: Model =
        main.iter().map(|one| one.unwrap()).map(|(key, value)| (key, value.into())).collect();
    assert_eq!(now, model);
    db.verify().unwrap();
    let stats = db.stats().transactions;
    assert_eq!((stats.snapshots, stats.oldest_snapshot_ns), (0, None));
    let images = once_runs_have_gone(&main);
    assert_eq!((images.snapshots, images.links, images.marks), (0, 0, 0));
    images
}

#[test]
fn snapshots_stay_what_they_were() {
    for engine in EngineKind::ALL {
        let of = |(seed, keys, bytes)| stays_what_it_was(engine, seed, keys, bytes);
        let all = [(1, 300, 100), (2, 4000, 60), (3, 20_000, 900), (4, 3000, 3000)].map(of);
        let sum = |number: fn(&PreImageStats) -> u64| all.iter().map(number).sum::<u64>();
        // With memory for all records there is some for all that snapshots keep.
        let has_little = engine.row().capabilities.larger_than_memory;
        if engine != EngineKind::Turtle && has_little {
            // What it is about has happened.
            assert!(sum(|one| one.spills) > 1 && sum(|one| one.resolved) > 200, "{all:?}");
            assert_eq!(sum(|one| one.ended), 0);
        }
    }
}

/// A batch over all engines is in a snapshot whole or not at all, and what was acknowledged before is.
#[test]
fn s03_batches_over_engines_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    let keyspaces: Vec<Keyspace> = [EngineKind::Turtle, EngineKind::TreeLine, EngineKind::TwoBTree]
        .into_iter()
        .enumerate()
        .map(|(number, engine)| keyspace(&db, &format!("k{number}"), engine))
        .collect();
    let write = |thread: u64, round: u64| {
        let mut batch = Batch::new();
        keyspaces.iter().for_each(|one| {
            batch.insert(one, thread.to_be_bytes(), round.to_be_bytes());
        });
        db.write(&batch).unwrap();
    };
    (0..3).for_each(|thread| write(thread, 0));
    let done = AtomicBool::new(false);
    let acknowledged: [AtomicU64; 3] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (write, done, acknowledged) = (&write, &done, &acknowledged);
            scope.spawn(move || {
                for round in 1.. {
                    write(thread, round);
                    acknowledged[thread as usize].store(round, SeqCst);
                    if done.load(SeqCst) {
                        break;
                    }
                }
            });
        }
        let _ends = Ends(&done);
        for _ in 0..300 {
            let before: Vec<u64> = acknowledged.iter().map(|one| one.load(SeqCst)).collect();
            let snapshot = db.snapshot().unwrap();
            let parts: Vec<_> =
                keyspaces.iter().map(|one| snapshot.keyspace(one).unwrap()).collect();
            let read = || -> Vec<Vec<u64>> {
                let number = |value: &[u8]| u64::from_be_bytes(value.try_into().unwrap());
                let values =
                    |part: &Snapshot| part.iter().map(|one| number(&one.unwrap().1)).collect();
                parts.iter().map(values).collect()
            };
            let first = read();
            assert!(first.iter().all(|values| *values == first[0]), "{first:?}");
            assert!(first[0].iter().zip(before).all(|(seen, before)| *seen >= before));
            assert_eq!(read(), first, "it moved");
        }
    });
}

#[test]
fn what_a_snapshot_covers() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    let [one, two] = [EngineKind::TreeLine, EngineKind::Turtle].map(|engine| {
        let keyspace = keyspace(&db, engine.name(), engine);
        keyspace.insert("a", "1").unwrap();
        keyspace
    });
    let some = db.snapshot_of(&[&one]).unwrap();
    let all = db.snapshot().unwrap();
    assert_eq!(db.stats().transactions.snapshots, 2);
    assert!(db.stats().transactions.oldest_snapshot_ns.is_some());
    let later = keyspace(&db, "later", EngineKind::TreeLine);
    one.insert("a", "2").unwrap();
    two.remove("a").unwrap();
    assert_eq!(some.keyspace(&two).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(all.keyspace(&later).unwrap_err().kind(), ErrorKind::InvalidArgument);
    for snapshot in [&some, &all] {
        assert_eq!(snapshot.keyspace(&one).unwrap().get("a").unwrap().unwrap(), "1");
    }
    assert_eq!(all.keyspace(&two).unwrap().get("a").unwrap().unwrap(), "1");
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Db::open(elsewhere.path(), options()).unwrap();
    let foreign = keyspace(&other, "treeline", EngineKind::TreeLine);
    assert_eq!(all.keyspace(&foreign).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(db.snapshot_of(&[&foreign]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // A part outlives the whole, and a keyspace that is dropped or converted says so.
    let part = all.keyspace(&one).unwrap();
    drop((some, all));
    assert_eq!(part.get("a").unwrap().unwrap(), "1");
    db.drop_keyspace(&one.name()).unwrap();
    assert_eq!(part.get("a").unwrap_err().kind(), ErrorKind::Closed);
    drop(part);
    let part = two.snapshot().unwrap();
    db.convert_keyspace(&two.name(), EngineKind::TreeLine).unwrap();
    assert_eq!(part.get("a").unwrap_err().kind(), ErrorKind::Closed);
    drop(part);
    assert_eq!(db.stats().transactions.snapshots, 0);
}

/// A keyspace that is parked when a snapshot is taken is in it when it is opened, by a write, too.
#[test]
fn parked_keyspaces_are_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let parked = of_memory(MEMORY_BYTES_MIN + (4 << 20)).park_after(Duration::from_millis(20));
    let db = Db::open(directory.path(), parked).unwrap();
    let keyspaces = EngineKind::ALL.map(|engine| {
        let keyspace = keyspace(&db, engine.name(), engine);
        keyspace.insert("a", "1").unwrap();
        keyspace
    });
    let is_open = || db.stats().keyspaces.iter().any(|one| !one.is_parked);
    let mut looked = 0;
    while is_open() {
        assert!(looked < 4000, "nothing is parked");
        std::thread::sleep(Duration::from_millis(5));
        looked += 1;
    }
    let snapshot = db.snapshot().unwrap();
    assert!(db.stats().keyspaces.iter().all(|one| one.is_parked), "it opened some");
    for keyspace in &keyspaces {
        keyspace.insert("a", "2").unwrap();
        keyspace.insert("b", "3").unwrap();
        let then = snapshot.keyspace(keyspace).unwrap();
        assert_eq!(then.get("a").unwrap().unwrap(), "1");
        assert_eq!(then.iter().count(), 1);
    }
}

/// S17: what is loaded in bulk is in no snapshot from before, and what was written since is in none
/// either.
#[test]
fn s17_loads_come_later() {
    for engine in EngineKind::ALL {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path(), options_for(engine)).unwrap();
        let main = keyspace(&db, "main", engine);
        main.insert("k0500", "old").unwrap();
        let before = main.snapshot().unwrap();
        main.remove("k0500").unwrap();
        let empty = main.snapshot().unwrap();
        let records = (0..3000).map(|number| (format!("k{number:04}"), "loaded"));
        main.bulk_load(records).unwrap();
        // What this replaces counts for no snapshot from before the load.
        main.insert("k0009", "newer").unwrap();
        let after = main.snapshot().unwrap();
        main.insert("k0007", "new").unwrap();
        main.remove("k0008").unwrap();
        let old: Model = [(b"k0500".to_vec(), b"old".to_vec())].into();
        assert_eq!(all(&before), old, "{engine}");
        assert_eq!(all(&empty), Model::new(), "{engine}");
        assert_eq!(empty.iter().rev().count(), 0);
        assert_eq!(empty.get("k0007").unwrap(), None);
        assert_eq!(empty.get("k0009").unwrap(), None);
        assert_eq!(before.get("k0009").unwrap(), None);
        assert_eq!(before.get("k0500").unwrap().unwrap(), "old");
        assert_eq!(before.get("k0501").unwrap(), None);
        let loaded = all(&after).values().filter(|value| *value == b"loaded").count();
        assert_eq!(loaded, 2999);
        assert_eq!(after.iter().count(), 3000);
        drop((before, after));
        assert_eq!(all(&empty), Model::new());
    }
}

/// Large values of a snapshot stay readable, whatever becomes of their keys (S18).
#[test]
fn s18_large_values_stay() {
    for engine in EngineKind::ALL {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path(), options_for(engine)).unwrap();
        let main = keyspace(&db, "main", engine);
        let value = |byte: u8| vec![byte; 300_000];
        main.insert("a", value(1)).unwrap();
        db.checkpoint().unwrap();
        let snapshot = main.snapshot().unwrap();
        for byte in 2..12 {
            main.insert("a", value(byte)).unwrap();
            main.insert("b", value(byte)).unwrap();
            db.checkpoint().unwrap();
        }
        assert_eq!(snapshot.get("a").unwrap().unwrap(), value(1));
        assert_eq!(snapshot.get("b").unwrap(), None);
        let mut reader = snapshot.get_reader("a").unwrap().unwrap();
        drop(snapshot);
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
        assert_eq!(read, value(1));
    }
}

/// Writers beside readers of several snapshots: each snapshot answers the same for ever.
#[test]
fn snapshots_do_not_move_beside_writers() {
    const KEYS: u64 = 2000;
    for engine in EngineKind::ALL {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path(), options_for(engine)).unwrap();
        let main = keyspace(&db, "main", engine);
        for key in 0..KEYS {
            main.insert(key.to_be_bytes(), [0; 120]).unwrap();
        }
        let done = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (main, done) = (main.clone(), done.clone());
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for round in 1_u64.. {
                        let key = random.below(KEYS).to_be_bytes();
                        match random.below(4) {
                            0 => main.remove(key).unwrap(),
                            _ => main.insert(key, [round as u8; 120]).unwrap(),
                        }
                        if done.load(SeqCst) {
                            break;
                        }
                    }
                });
            }
            let _ends = Ends(&done);
            let mut random = Random(77);
            for _ in 0..2 {
                let snapshot = main.snapshot().unwrap();
                // The first reading is the model of the later ones.
                let first = all(&snapshot);
                let other = main.snapshot().unwrap();
                let then = all(&other);
                for _ in 0..2 {
                    check(&snapshot, &first, &mut random, KEYS);
                    check(&other, &then, &mut random, KEYS);
                }
                drop(other);
                assert_eq!(all(&snapshot), first, "{engine}");
                let reversed: Vec<_> = snapshot.iter().rev().map(|one| one.unwrap().0).collect();
                assert!(reversed.iter().rev().eq(first.keys()));
            }
        });
        db.verify().unwrap_or_else(|error| panic!("{engine}: {error}"));
    }
}

/// Past its bound the oldest snapshot of a keyspace ends, and says so; writers and parts in other
/// keyspaces go on, and everything that it kept is given back.
#[test]
fn s16_past_its_bound_a_snapshot_ends() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    let main =
        db.keyspace("main", TreeLineOptions::default().snapshot_bytes(Some(64 << 10))).unwrap();
    let other = keyspace(&db, "other", EngineKind::Turtle);
    for key in 0..4000_u32 {
        main.insert(key.to_be_bytes(), [1; 200]).unwrap();
    }
    other.insert("a", "1").unwrap();
    let snapshot = db.snapshot().unwrap();
    let then = snapshot.keyspace(&main).unwrap();
    let mut random = Random(5);
    let mut ended = None;
    for round in 0..200_000_u32 {
        let key = (random.below(4000) as u32).to_be_bytes();
        main.insert(key, [2; 200]).unwrap();
        if round % 16 == 0 {
            match then.get((random.below(4000) as u32).to_be_bytes()) {
                Ok(value) => assert_eq!(value.unwrap(), [1; 200]),
                Err(error) => {
                    ended = Some(error);
                    break;
                }
            }
        }
    }
    let ended = ended.expect("it kept within its bound all that was replaced");
    assert_eq!(ended.kind(), ErrorKind::SnapshotTooOld, "{ended}");
    assert!(ended.to_string().contains("65536 bytes of disk"), "{ended}");
    assert!(then.stats().ended);
    assert_eq!(then.iter().next().unwrap().unwrap_err().kind(), ErrorKind::SnapshotTooOld);
    assert_eq!(then.multi_get(["a"]).unwrap_err().kind(), ErrorKind::SnapshotTooOld);
    assert_eq!(snapshot.keyspace(&other).unwrap().get("a").unwrap().unwrap(), "1");
    let images = once_runs_have_gone(&main);
    assert_eq!((images.snapshots, images.ended), (0, 1), "{images:?}");
    let later = main.snapshot().unwrap();
    main.insert(0_u32.to_be_bytes(), "new").unwrap();
    assert_ne!(later.get(0_u32.to_be_bytes()).unwrap().unwrap(), "new");
    db.verify().unwrap();
}
