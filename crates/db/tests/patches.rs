//! Parts of values, read and replaced: on each engine, in transactions, for old readers, and after power losses.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use spinney_base::Runtime;
use spinney_base::runtime::SplitMix;
use spinney_db::{Batch, Db, Durability, EngineKind, ErrorKind, Keyspace, Options, Result};
use spinney_db::{Snapshot, Transaction};
use spinney_io::sim::{CrashMode, SimDisk};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(disk: &SimDisk, runtime: &Runtime) -> Db {
    let options = Options::default().memory(32 << 20).scrub_bytes_per_second(0);
    let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
    Db::open("/db", options.durability(Durability::Sync)).unwrap()
}

fn database() -> (Db, SimDisk, Runtime) {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    (open(&disk, &runtime), disk, runtime)
}

fn is_invalid<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::InvalidArgument)
}

fn get(transaction: &Transaction, keyspace: &Keyspace, key: &str) -> Option<String> {
    let value = transaction.get(keyspace, key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

#[test]
fn parts_of_values_of_each_engine() {
    let (db, ..) = database();
    for engine in EngineKind::ALL {
        let main = db.keyspace(engine.row().name, engine).unwrap();
        let large = vec![b'x'; 20_000];
        main.insert("a", "0123456789").unwrap();
        main.insert("large", &large).unwrap();
        main.insert("empty", "").unwrap();
        assert!(main.patch("a", 3, "abc").unwrap());
        assert!(main.patch("a", 9, "z").unwrap());
        assert!(main.patch("a", 10, "").unwrap() && main.patch("empty", 0, "").unwrap());
        assert!(main.patch("large", 19_999, "y").unwrap());
        assert!(!main.patch("none", 0, "abc").unwrap());
        assert!(
            is_invalid(main.patch("a", 8, "abc")) && is_invalid(main.patch("a", usize::MAX, "a"))
        );
        assert!(
            is_invalid(main.patch("large", 20_000, "a")) && is_invalid(main.patch("empty", 0, "a"))
        );
        let mut out = Vec::new();
        let mut part = |key: &str, part| {
            let is_there = main.get_part(key, part, &mut out);
            is_there.map(|is_there| is_there.then(|| String::from_utf8(out.clone()).unwrap()))
        };
        assert_eq!(part("a", 0..10).unwrap().unwrap(), "012abc678z");
        assert_eq!(part("a", 2..4).unwrap().unwrap(), "2a");
        assert_eq!(part("a", 10..10).unwrap().unwrap(), "");
        assert_eq!(part("large", 19_998..20_000).unwrap().unwrap(), "xy");
        assert_eq!(part("none", 5..9).unwrap(), None);
        assert!(is_invalid(part("a", 9..11)));
        let (end, start) = (4, 5);
        assert!(is_invalid(part("a", start..end)));
    }
}

#[test]
fn a_transaction_sees_its_patches() {
    for engine in EngineKind::ALL {
        let (db, ..) = database();
        let main = db.keyspace("main", engine).unwrap();
        for key in ["a", "b", "c", "d"] {
            main.insert(key, "0123456789abcdefghijABCDEFGHIJ").unwrap();
        }
        let mut it = db.begin().unwrap();
        assert!(it.patch(&main, "a", 0, "-").unwrap());
        assert!(it.patch(&main, "a", 20, "--").unwrap());
        assert!(it.patch(&main, "a", 4, "---").unwrap());
        assert!(is_invalid(it.patch(&main, "a", 30, "-")));
        // Over an own put, and a put over an own patch.
        it.insert(&main, "b", "short").unwrap();
        assert!(it.patch(&main, "b", 1, "HO").unwrap());
        assert!(is_invalid(it.patch(&main, "b", 6, "-")));
        assert!(it.patch(&main, "c", 1, "-").unwrap());
        it.insert(&main, "c", "put").unwrap();
        it.remove(&main, "d").unwrap();
        assert!(!it.patch(&main, "d", 0, "-").unwrap());
        assert!(!it.patch(&main, "e", 0, "-").unwrap());
        let savepoint = it.savepoint();
        assert!(it.patch(&main, "a", 10, "+").unwrap());
        assert!(it.patch(&main, "b", 0, "+").unwrap());
        it.insert(&main, "d", "back").unwrap();
        assert!(it.patch(&main, "d", 3, "!").unwrap());
        assert_eq!(get(&it, &main, "d").unwrap(), "bac!");
        it.rollback_to(&savepoint).unwrap();
        let a = "-123---789abcdefghij--CDEFGHIJ";
        assert_eq!(get(&it, &main, "a").unwrap(), a);
        let mut out = Vec::new();
        assert!(it.get_part(&main, "a", 19..23, &mut out).unwrap());
        assert_eq!(out, b"j--C");
        assert!(!it.get_part(&main, "d", 0..1, &mut out).unwrap());
        assert!(is_invalid(it.get_part(&main, "a", 0..31, &mut out)));
        let all: Vec<_> = it.range(&main, ..).map(|one| one.unwrap().1.to_vec()).collect();
        let expected = [a.as_bytes(), b"sHOrt", b"put"];
        assert_eq!(all, expected);
        assert_eq!(main.get("a").unwrap().unwrap(), "0123456789abcdefghijABCDEFGHIJ");
        it.commit().unwrap();
        let all: Vec<_> = main.iter().map(|one| one.unwrap().1.to_vec()).collect();
        assert_eq!(all, expected);
        db.verify().unwrap();
    }
}

/// A patch reads whether there is a value, and how long it is.
#[test]
fn a_patch_is_a_read() {
    for engine in EngineKind::ALL {
        let (db, ..) = database();
        let main = db.keyspace("main", engine).unwrap();
        let other = db.keyspace("other", engine).unwrap();
        main.insert("a", "0123456789").unwrap();
        // Of two that patch different parts the second conflicts.
        let mut late = db.begin().unwrap();
        assert!(late.patch(&main, "a", 0, "x").unwrap());
        db.transact(|it| it.patch(&main, "a", 9, "y").map(|_| ())).unwrap();
        assert_eq!(late.commit().unwrap_err().kind(), ErrorKind::Conflict);
        // Neither may see that the other has written nothing: skew.
        main.remove("b").unwrap();
        let mut one = db.begin().unwrap();
        assert!(!one.patch(&main, "b", 0, "x").unwrap());
        one.insert(&other, "c", "1").unwrap();
        let mut two = db.begin().unwrap();
        assert_eq!(get(&two, &other, "c"), None);
        two.insert(&main, "b", "1").unwrap();
        two.commit().unwrap();
        assert_eq!(one.commit().unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(main.get("a").unwrap().unwrap(), "012345678y");
    }
}

/// Draws what is done to a key.
fn change(random: &mut SplitMix, model: &Model) -> (Vec<u8>, Change) {
    let mut draw = |most: u64| random.next_u64() % most;
    let key = draw(24).to_be_bytes()[7 - draw(2) as usize..].to_vec();
    let change = match (draw(10), model.get(&key)) {
        (0, _) => Change::Remove,
        (3.., Some(value)) if !value.is_empty() => {
            let most = value.len() as u64 / [1, 8][draw(2) as usize];
            let length = draw(most + 1) as usize;
            let offset = draw((value.len() - length) as u64 + 1) as usize;
            Change::Patch(offset, vec![draw(250) as u8; length])
        }
        _ => {
            let most = [40, 500, 3000][draw(3) as usize];
            Change::Put(vec![draw(250) as u8; draw(most) as usize])
        }
    };
    (key, change)
}

enum Change {
    Remove,
    Put(Vec<u8>),
    Patch(usize, Vec<u8>),
}

impl Change {
    fn apply(&self, model: &mut Model, key: &[u8]) {
        match self {
            Change::Remove => _ = model.remove(key),
            Change::Put(value) => _ = model.insert(key.to_vec(), value.clone()),
            Change::Patch(offset, bytes) => {
                let value = model.get_mut(key).unwrap();
                value[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

/// Whether a value is in extents of its own, and has no versions.
fn is_large(value: &[u8]) -> bool {
    value.len() > 2500
}

fn check(reader: &Transaction, main: &Keyspace, model: &Model, random: &mut SplitMix) {
    let (number, mut out) = (random.next_u64(), Vec::new());
    for (key, value) in model.iter().skip(number as usize % 24).take(4) {
        assert!(reader.get_into(main, key, &mut out).unwrap());
        assert!(out == *value, "key {key:?}");
        let (from, to) = (value.len() / 3, value.len() / 2);
        assert!(reader.get_part(main, key, from..to, &mut out).unwrap());
        assert!(out == value[from..to]);
    }
    let mut cursor = reader.range(main, ..);
    if number & 1 == 0 {
        cursor = cursor.rev();
    }
    let found: Model =
        cursor.map(|one| one.map(|(key, value)| (key, value.to_vec())).unwrap()).collect();
    assert!(found == *model, "a range at an older moment");
}

fn whole(keyspace: &Keyspace) -> Model {
    keyspace.iter().map(|one| one.map(|(key, value)| (key, value.to_vec())).unwrap()).collect()
}

fn whole_of(snapshot: &Snapshot) -> Model {
    snapshot.iter().map(|one| one.map(|(key, value)| (key, value.to_vec())).unwrap()).collect()
}

/// Writes one change by one of the ways that there are.
fn write(db: &Db, main: &Keyspace, key: &[u8], change: &Change, way: u64) {
    match (change, way % 3) {
        (Change::Remove, 0) => db.transact(|it| it.remove(main, key)).unwrap(),
        (Change::Remove, _) => main.remove(key).unwrap(),
        (Change::Put(value), 0) => db.transact(|it| it.insert(main, key, value)).unwrap(),
        (Change::Put(value), 1) => db.write(Batch::new().insert(main, key, value)).unwrap(),
        (Change::Put(value), _) => main.insert(key, value).unwrap(),
        (Change::Patch(offset, bytes), 0) => {
            assert!(main.patch(key, *offset, bytes).unwrap());
        }
        (Change::Patch(offset, bytes), _) => {
            // In two parts.
            let (one, two) = bytes.split_at(bytes.len() / 2);
            let patch = |it: &mut Transaction| -> Result<()> {
                assert!(it.patch(main, key, offset + one.len(), two)?);
                assert!(it.patch(main, key, *offset, one)?);
                Ok(())
            };
            db.transact(patch).unwrap();
        }
    }
}

/// Random changes beside readers of older moments, compared with maps of those moments.
#[test]
fn old_readers_see_what_was_before_patches() {
    for seed in 0..12 {
        let (mut random, (db, _, runtime)) = (SplitMix(seed), database());
        let main = db.keyspace("main", EngineKind::Iot).unwrap();
        let mut model = Model::new();
        let mut readers: Vec<(Transaction, Model)> = Vec::new();
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        for step in 0..1500_u64 {
            let (key, change) = change(&mut random, &model);
            // Readers of large values that are replaced conflict.
            let is_in_the_way = model.get(&key).is_some_and(|value| is_large(value));
            if is_in_the_way {
                readers.clear();
            }
            write(&db, &main, &key, &change, random.next_u64());
            change.apply(&mut model, &key);
            if step % 16 == 0 {
                runtime.step();
            }
            match random.next_u64() % 40 {
                0 if readers.len() < 6 => {
                    let reader = db.begin().unwrap();
                    _ = reader.get(&main, "begins").unwrap();
                    readers.push((reader, model.clone()));
                }
                1 if readers.len() > 3 => {
                    let at = random.next_u64() as usize % readers.len();
                    let (reader, model) = readers.swap_remove(at);
                    check(&reader, &main, &model, &mut random);
                    reader.commit().unwrap();
                }
                2 => snapshots.push((main.snapshot().unwrap(), model.clone())),
                3 if snapshots.len() > 2 => {
                    let at = random.next_u64() as usize % snapshots.len();
                    let (snapshot, model) = snapshots.swap_remove(at);
                    assert!(whole_of(&snapshot) == model, "a snapshot, seed {seed}, step {step}");
                }
                4 => db.checkpoint().unwrap(),
                5..8 => assert!(whole(&main) == model, "seed {seed}, step {step}"),
                8..20 => {
                    for (reader, model) in &readers {
                        check(reader, &main, model, &mut random);
                    }
                }
                _ => {}
            }
        }
        assert!(whole(&main) == model);
        drop((readers, snapshots));
        db.verify().unwrap();
    }
}

/// What is logged leads to the same value, whatever an image has of it, and however often it is replayed.
#[test]
fn patches_survive_power_losses() {
    for seed in 0..24 {
        let (mut random, (mut db, mut disk, mut runtime)) = (SplitMix(seed), database());
        let mut model = Model::new();
        for round in 0..4 {
            let main = db.keyspace("main", EngineKind::Iot).unwrap();
            assert!(whole(&main) == model, "seed {seed}, round {round}");
            for _ in 0..random.next_u64() % 300 {
                let (key, change) = change(&mut random, &model);
                write(&db, &main, &key, &change, random.next_u64());
                change.apply(&mut model, &key);
                if random.next_u64().is_multiple_of(100) {
                    db.checkpoint().unwrap();
                }
            }
            // Opened twice: the first opening replays and writes nothing.
            let crashed = disk.crash(CrashMode::LoseAll);
            let again = Runtime::stepped(1);
            let first = open(&crashed, &again);
            assert!(whole(&first.existing_keyspace("main").unwrap()) == model, "seed {seed}");
            (disk, runtime) = (crashed.crash(CrashMode::LoseAll), Runtime::stepped(1));
            drop((main, first));
            db = open(&disk, &runtime);
        }
        db.verify().unwrap();
        drop((db, runtime));
    }
}

/// A record of the log may be older than the image that it is replayed over.
#[test]
fn backups_and_salvage_have_patches() {
    let (db, disk, runtime) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    let mut model = Model::new();
    let mut random = SplitMix(5);
    for step in 0..400 {
        let (key, change) = change(&mut random, &model);
        write(&db, &main, &key, &change, random.next_u64());
        change.apply(&mut model, &key);
        if step == 200 {
            db.checkpoint().unwrap();
        }
    }
    db.backup("/backup").unwrap();
    drop((main, db));
    let options = |runtime: &Runtime| {
        let options = Options::default().memory(32 << 20).runtime(runtime.clone());
        options.disk(Arc::new(disk.clone())).scrub_bytes_per_second(0)
    };
    for place in ["/restored", "/salvaged"] {
        let fresh = Runtime::stepped(2);
        if place == "/restored" {
            Db::restore("/backup", place, options(&fresh)).unwrap();
        } else {
            Db::salvage("/backup", place, options(&fresh)).unwrap();
        }
        let db = Db::open(place, options(&fresh)).unwrap();
        assert!(whole(&db.existing_keyspace("main").unwrap()) == model, "{place}");
    }
    drop(runtime);
}

/// What is logged is as small as the change.
#[test]
fn the_log_has_the_part_only() {
    let used = |patch: bool| {
        let (db, ..) = database();
        let main = db.keyspace("main", EngineKind::Iot).unwrap();
        main.insert("a", [7; 2000]).unwrap();
        let before = db.stats().log.bytes_used;
        for round in 0..2000_u64 {
            let bytes = round.to_be_bytes();
            if !patch {
                let mut value = [7; 2000];
                value[1000..1008].copy_from_slice(&bytes);
                main.insert_with("a", value, Durability::Buffered).unwrap();
            } else if round % 2 == 0 {
                assert!(main.patch_with("a", 1000, bytes, Durability::Buffered).unwrap());
            } else {
                let mut it = db.begin().unwrap();
                assert!(it.patch(&main, "a", 1000, bytes).unwrap());
                assert!(it.patch(&main, "a", 0, "a").unwrap());
                it.commit_with(Durability::Buffered).unwrap();
            }
        }
        assert_eq!(main.get("a").unwrap().unwrap()[1000..1008], 1999_u64.to_be_bytes());
        db.stats().log.bytes_used - before
    };
    let (patches, puts) = (used(true), used(false));
    assert!(patches * 8 < puts, "{patches} bytes of patches, {puts} of puts");
}

/// Threads patch two columns of a record together, at the ends of its value, and readers of all kinds see both or
/// neither, always of their moment.
#[test]
fn columns_that_change_together_are_seen_together() {
    const COLUMNS: usize = 24;
    let options = Options::default().memory(64 << 20).durability(Durability::Buffered);
    let db = Db::in_memory(options).unwrap();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    for key in 0..8_u8 {
        main.insert([key], [0; 2 * 8 * COLUMNS]).unwrap();
    }
    let check = |value: &[u8]| {
        let (one, two) = value.split_at(8 * COLUMNS);
        assert!(one == two, "columns of two moments");
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|writer| {
            let (db, main) = (&db, &main);
            scope.spawn(move || {
                let mut random = SplitMix(writer);
                for round in 1..6000_u64 {
                    let key = [(random.next_u64() % 8) as u8];
                    let column = random.next_u64() as usize % COLUMNS * 8;
                    let number = (2 * round + writer).to_be_bytes();
                    db.transact(|it| -> Result<()> {
                        assert!(it.patch(main, key, column, number)?);
                        assert!(it.patch(main, key, 8 * COLUMNS + column, number)?);
                        Ok(())
                    })
                    .unwrap();
                }
            })
        });
        for reader in 0..2 {
            let (db, main, is_done) = (&db, &main, &is_done);
            scope.spawn(move || {
                let mut random = SplitMix(100 + reader);
                let (mut one, mut two) = (Vec::new(), Vec::new());
                while !is_done.load(SeqCst) {
                    let key = [(random.next_u64() % 8) as u8];
                    main.get_into(key, &mut one).unwrap();
                    check(&one);
                    let again = random.next_u64() % 60;
                    let mut look = || -> Result<()> {
                        let it = db.begin()?;
                        it.get_into(main, key, &mut one)?;
                        check(&one);
                        for _ in 0..again {
                            std::thread::yield_now();
                            it.get_into(main, key, &mut two)?;
                            assert!(one == two, "it moved");
                        }
                        it.range(main, ..).try_for_each(|record| record.map(|it| check(&it.1)))?;
                        it.commit()
                    };
                    if let Err(error) = look() {
                        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    }
                }
            });
        }
        let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_done.store(true, SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    main.iter().for_each(|record| check(&record.unwrap().1));
}
