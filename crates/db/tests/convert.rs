//! Keyspaces that get another name or another engine, on the simulated disk: whatever fails or crashes, the keyspace has
//! one name, one engine and all its records.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spinney_base::Runtime;
use spinney_db::{Db, Durability, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    // An engine that keeps all records in memory takes part.
    Options::default()
        .memory(4 << 20)
        .log_bytes_max(2 << 20)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

fn open(disk: &SimDisk) -> Db {
    Db::open("/db", options(disk, &Runtime::stepped(3))).unwrap()
}

/// Records of all lengths, large ones too, some of them removed again.
fn fill(keyspace: &Keyspace, seed: u64, count: u64) -> Model {
    let mut model = Model::new();
    for number in 0..count {
        let key = format!("key {:05}", number.wrapping_mul(7919).wrapping_add(seed) % 5000);
        let length = if number % 97 == 5 { 20_000 } else { 10 + (number % 200) as usize };
        let value = vec![(number + seed) as u8; length];
        keyspace.insert_with(&key, &value, Durability::Buffered).unwrap();
        model.insert(key.clone().into_bytes(), value);
        if number % 11 == 3 {
            keyspace.remove_with(&key, Durability::Buffered).unwrap();
            model.remove(key.as_bytes());
        }
    }
    model
}

fn contents(keyspace: &Keyspace) -> Model {
    keyspace.iter().map(Result::unwrap).map(|(key, value)| (key, value.to_vec())).collect()
}

fn other(engine: EngineKind) -> impl Iterator<Item = EngineKind> {
    EngineKind::ALL.into_iter().filter(move |other| *other != engine)
}

fn files(disk: &SimDisk) -> usize {
    disk.files().iter().filter(|path| path.extension().is_some_and(|end| end == "spn")).count()
}

#[test]
fn every_engine_takes_the_keyspaces_of_every_other() {
    let pairs = EngineKind::ALL.into_iter().flat_map(|from| other(from).map(move |to| (from, to)));
    for ((from, to), logged) in pairs.flat_map(|pair| [(pair, true), (pair, false)]) {
        let context = format!("{from} to {to}, logged: {logged}");
        let disk = SimDisk::new(1);
        let db = open(&disk);
        let kept = KeyspaceOptions::default().engine(from).logged(logged);
        let old = db.keyspace("main", kept).unwrap();
        let beside = db.keyspace("beside", KeyspaceOptions::default()).unwrap();
        let mut model = fill(&old, 1, 3000);
        let apart = fill(&beside, 2, 100);
        let new = db.convert_keyspace("main", to).unwrap();
        assert_eq!((new.engine(), new.name().as_str()), (to, "main"), "{context}");
        assert!(contents(&new) == model, "{context}");
        for error in
            [old.get("x").err(), old.insert("x", "y").err(), old.iter().next().unwrap().err()]
        {
            assert_eq!(error.unwrap().kind(), ErrorKind::Closed, "{context}");
        }
        assert_eq!(files(&disk), 2, "{context}: the original's file is gone");
        let info = db.keyspaces().into_iter().find(|one| one.name == "main").unwrap();
        assert_eq!((info.engine, info.logged), (to, logged));
        let more = fill(&new, 3, 500);
        for number in 0..500_u64 {
            let key = format!("key {:05}", number.wrapping_mul(7919).wrapping_add(3) % 5000);
            model.remove(key.as_bytes());
        }
        model.extend(more);
        assert!(contents(&new) == model, "{context}");
        db.verify().unwrap();
        db.flush().unwrap();
        drop((old, new, beside, db));
        let image = disk.kill();
        let db = open(&image);
        let main = db.existing_keyspace("main").unwrap();
        assert_eq!(main.engine(), to);
        if logged {
            assert!(contents(&main) == model, "{context}, after a crash");
        }
        assert!(contents(&db.existing_keyspace("beside").unwrap()) == apart);
        // And back, after which another keyspace is made and dropped.
        db.convert_keyspace("main", from).unwrap();
        db.keyspace("third", to).unwrap();
        db.drop_keyspace("third").unwrap();
        let there = contents(&db.existing_keyspace("main").unwrap());
        db.close().unwrap();
        let db = open(&image);
        assert!(contents(&db.existing_keyspace("main").unwrap()) == there, "{context}, and back");
        db.verify().unwrap();
    }
}

#[test]
fn a_crash_in_a_conversion_leaves_one_engine_and_all_records() {
    for from in EngineKind::ALL {
        for to in other(from) {
            let mut seen = [0, 0];
            for seed in 0..4_u64 {
                let disk = SimDisk::new(seed);
                let db = open(&disk);
                let kept = KeyspaceOptions::default().engine(from).logged(seed % 2 == 0);
                let model = fill(&db.keyspace("main", kept).unwrap(), seed, 600);
                db.checkpoint().unwrap();
                disk.capture_when(Arc::new(move |step, states| {
                    let here = states.contains(&"keyspace convert") && (step + seed) % 3 == 0;
                    let modes = [CrashMode::LoseAll, CrashMode::Torn512, CrashMode::KeepAll];
                    here.then_some(modes[(step % 3) as usize])
                }));
                db.convert_keyspace("main", to).unwrap();
                for capture in disk.take_captures() {
                    let db = open(&capture.image);
                    let main = db.existing_keyspace("main").unwrap();
                    seen[usize::from(main.engine() == to)] += 1;
                    assert!(contents(&main) == model, "{from} to {to}, seed {seed}");
                    assert_eq!((db.keyspaces().len(), files(&capture.image)), (1, 1));
                    main.insert("after", "it").unwrap();
                    db.verify().unwrap();
                    db.close().unwrap();
                }
            }
            assert!(seen[0] > 10 && seen[1] > 0, "{from} to {to}: {seen:?} crashes");
        }
    }
}

#[test]
fn a_conversion_that_fails_leaves_the_keyspace_as_it_was() {
    for from in EngineKind::ALL {
        let to = other(from).next().unwrap();
        let made = |seed| {
            let disk = SimDisk::new(seed);
            let db = open(&disk);
            let model = fill(&db.keyspace("main", from).unwrap(), seed, 600);
            db.checkpoint().unwrap();
            (disk, db, model)
        };
        let counts =
            |disk: &SimDisk| [disk.writes(), disk.syncs(), disk.room_requests(), disk.reads()];
        let (disk, db, _) = made(1);
        let before = counts(&disk);
        db.convert_keyspace("main", to).unwrap();
        let ends = counts(&disk);
        let (mut kept, mut poisoned) = (0, 0);
        for kind in 0..4 {
            let step = ((ends[kind] - before[kind]) / 12 + 1) as usize;
            for at in (before[kind] + 1..=ends[kind]).step_by(step) {
                let (disk, db, model) = made(1);
                disk.inject(match kind {
                    0 => Fault::WriteError { at },
                    1 => Fault::SyncError { at },
                    2 => Fault::NoSpace { at },
                    _ => Fault::ReadError { at },
                });
                let converted = db.convert_keyspace("main", to);
                let context = format!("{from}, {kind} {at}: {converted:?}");
                let main = db.existing_keyspace("main").unwrap();
                assert!(contents(&main) == model, "{context}");
                if converted.is_err() {
                    match main.insert("after", "it") {
                        Ok(()) => {
                            kept += 1;
                            assert_eq!(main.engine(), from, "{context}");
                            assert_eq!(files(&disk), 1, "{context}: the copy takes no room");
                            main.remove("after").unwrap();
                            let again = db.convert_keyspace("main", to).unwrap();
                            assert!(contents(&again) == model, "{context}, again");
                            db.verify().unwrap();
                        }
                        Err(error) => {
                            assert!(error.is_poisoned(), "{context}: {error}");
                            poisoned += 1;
                        }
                    }
                }
                drop((main, db));
                let db = open(&disk.kill());
                let main = db.existing_keyspace("main").unwrap();
                assert!(contents(&main) == model, "{context}, reopened");
            }
        }
        assert!(kept > 5 && poisoned > 0, "{from}: {kept} kept, {poisoned} poisoned");
    }
}

/// Writers beside a conversion are refused, and what they were answered is true; readers read.
#[test]
fn nothing_is_lost_beside_a_conversion() {
    for from in EngineKind::ALL {
        let to = other(from).next().unwrap();
        let disk = SimDisk::new(5);
        let options = options(&disk, &Runtime::threads()).memory(64 << 20);
        let db = Db::open("/db", options).unwrap();
        let main = db.keyspace("main", from).unwrap();
        fill(&main, 1, 2000);
        let (ended, refused) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let write = |thread: u64| {
                let (mut main, mut done) = (db.existing_keyspace("main").unwrap(), 0_u64);
                while !ended.load(Ordering::Acquire) {
                    let key = format!("{thread} {done}");
                    match main.insert_with(&key, key.as_bytes(), Durability::Buffered) {
                        Ok(()) => done += 1,
                        Err(error) if error.kind() == ErrorKind::Conflict => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            assert!(
                                main.contains_key("key 00001").is_ok() || main.get("x").is_err()
                            );
                        }
                        Err(error) if error.kind() == ErrorKind::Closed => {
                            main = db.existing_keyspace("main").unwrap();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                done
            };
            let writers = [0, 1].map(|thread| scope.spawn(move || write(thread)));
            for engine in [to, from, to] {
                std::thread::sleep(std::time::Duration::from_millis(20));
                db.convert_keyspace("main", engine).unwrap();
            }
            ended.store(true, Ordering::Release);
            let main = db.existing_keyspace("main").unwrap();
            for (thread, writer) in writers.into_iter().enumerate() {
                for number in 0..writer.join().unwrap() {
                    let key = format!("{thread} {number}");
                    assert!(main.contains_key(&key).unwrap(), "{from}: {key} is lost");
                }
            }
        });
        assert!(refused.load(Ordering::Relaxed) > 0, "no writer came during a conversion");
        db.verify().unwrap();
    }
}

#[test]
fn what_cannot_be_converted_says_so() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let main = db.keyspace("main", EngineKind::Turtle).unwrap();
    main.insert("a", "1").unwrap();
    assert_eq!(
        db.convert_keyspace("none", EngineKind::Turtle).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    // It has the engine.
    let same = db.convert_keyspace("main", EngineKind::Turtle).unwrap();
    assert_eq!(same.get("a").unwrap(), main.get("a").unwrap());
    let snapshot = main.snapshot().unwrap();
    let new = db.convert_keyspace("main", EngineKind::TreeLine).unwrap();
    assert_eq!(snapshot.get("a").unwrap_err().kind(), ErrorKind::Closed);
    drop(snapshot);
    assert_eq!(new.get("a").unwrap().unwrap(), "1");
    db.close().unwrap();
    let reading = options(&disk, &Runtime::stepped(1)).read_only(true);
    let db = Db::open("/db", reading).unwrap();
    let refused = [
        db.convert_keyspace("main", EngineKind::Turtle).map(|_| ()),
        db.rename_keyspace("main", "other"),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}

#[test]
fn a_name_changes_at_once_or_not_at_all() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    db.keyspace("taken", KeyspaceOptions::default()).unwrap();
    let model = fill(&main, 1, 300);
    db.flush().unwrap();
    for (from, to, kind) in [
        ("none", "x", ErrorKind::NotFound),
        ("main", "taken", ErrorKind::InvalidArgument),
        ("main", "", ErrorKind::InvalidArgument),
        ("main", "a\nb", ErrorKind::InvalidArgument),
    ] {
        assert_eq!(db.rename_keyspace(from, to).unwrap_err().kind(), kind, "{from} to {to}");
    }
    db.rename_keyspace("main", "main").unwrap();
    disk.capture_when(Arc::new(|step, states| {
        let modes = [CrashMode::LoseAll, CrashMode::Torn512, CrashMode::KeepAll];
        states.contains(&"keyspace rename").then_some(modes[(step % 3) as usize])
    }));
    db.rename_keyspace("main", "people").unwrap();
    let captures = disk.take_captures();
    disk.capture_when(Arc::new(|_, _| None));
    let mut seen = [0, 0];
    for capture in &captures {
        let db = open(&capture.image);
        let name = db.keyspaces()[0].name.clone();
        seen[usize::from(name == "people")] += 1;
        assert!(name == "people" || name == "main");
        assert!(contents(&db.existing_keyspace(&name).unwrap()) == model);
    }
    assert!(seen[0] > 0, "{seen:?}");
    assert_eq!(main.name(), "people");
    main.insert("later", "1").unwrap();
    assert_eq!(db.existing_keyspace("main").unwrap_err().kind(), ErrorKind::NotFound);
    let stats = db.stats();
    assert!(stats.accounts.iter().any(|account| account.name.ends_with("/people")));
    assert_eq!(stats.keyspaces[0].name, "people");
    // The old name is free.
    db.keyspace("main", KeyspaceOptions::default()).unwrap();
    db.flush().unwrap();
    drop((main, db));
    let db = open(&disk.kill());
    let names: Vec<_> = db.keyspaces().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["people", "taken", "main"]);
    let people = db.existing_keyspace("people").unwrap();
    assert_eq!(
        (people.get("later").unwrap().unwrap(), contents(&people).len()),
        ("1".into(), model.len() + 1)
    );
}

/// A keyspace is opened once, though somebody finds it the moment it is made.
#[test]
fn p20_a_keyspace_is_opened_once_while_it_is_made() {
    const KEYSPACES: usize = 800;
    let disk = SimDisk::new(5);
    let options = options(&disk, &Runtime::threads()).memory(64 << 20);
    let db = Db::open("/db", options).unwrap();
    std::thread::scope(|scope| {
        let finders: Vec<_> = (0..3)
            .map(|thread| {
                let db = &db;
                scope.spawn(move || {
                    for number in 0..KEYSPACES {
                        let found = loop {
                            match db.existing_keyspace(&format!("k{number}")) {
                                Ok(found) => break found,
                                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                            }
                        };
                        found.insert_with(format!("{thread}"), "x", Durability::Buffered).unwrap();
                    }
                })
            })
            .collect();
        for number in 0..KEYSPACES {
            let engine = EngineKind::ALL[number % EngineKind::ALL.len()];
            db.keyspace(&format!("k{number}"), engine).unwrap();
        }
        finders.into_iter().for_each(|finder| finder.join().unwrap());
    });
    for info in db.keyspaces() {
        assert_eq!(db.existing_keyspace(&info.name).unwrap().iter().count(), 3, "{}", info.name);
    }
    db.verify().unwrap();
}
