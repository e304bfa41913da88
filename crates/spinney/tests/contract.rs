//! The contract on the real disk: what every user relies on, in small, with every engine.

use spinney::{
    Batch, Db, Durability, EngineKind, ErrorKind, KeyspaceOptions, Options, TornWrites, limits,
};

fn options() -> Options {
    Options::default().memory(4 << 20).log_bytes_max(4 << 20).durability(Durability::Buffered)
}

/// A budget: with what all records take beside it, for an engine that keeps them in memory.
fn memory(engine: EngineKind, bytes: u64) -> u64 {
    if engine.row().capabilities.larger_than_memory { bytes } else { bytes + (32 << 20) }
}

fn key(number: u32) -> Vec<u8> {
    format!("key{:08}", u64::from(number).wrapping_mul(2_654_435_761) % 100_000_000).into_bytes()
}

#[test]
fn data_larger_than_memory_comes_back() {
    EngineKind::ALL.into_iter().for_each(comes_back);
}

fn comes_back(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let options = || options().memory(memory(engine, 4 << 20));
    let count = 80_000u32;
    let value = |number: u32, round: u32| vec![(number ^ round) as u8; 80];
    {
        let db = Db::open(directory.path(), options()).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        for number in 0..count {
            keyspace.insert(key(number), value(number, 0)).unwrap();
        }
        for number in (0..count).step_by(3) {
            keyspace.insert(key(number), value(number, 1)).unwrap();
        }
        for number in (0..count).step_by(7) {
            keyspace.remove(key(number)).unwrap();
        }
        let report = db.verify().unwrap();
        assert!(report.pages > 1000, "{report:?}");
    }
    // Without close: the log brings back what only memory held.
    let db = Db::open(directory.path(), options()).unwrap();
    let keyspace = db.existing_keyspace("k").unwrap();
    let expected = |number: u32| {
        (!number.is_multiple_of(7)).then(|| value(number, u32::from(number.is_multiple_of(3))))
    };
    for number in 0..count {
        let found = keyspace.get(key(number)).unwrap();
        assert_eq!(found.as_deref(), expected(number).as_deref(), "key {number}");
    }
    let keys: Vec<Vec<u8>> = (0..1000).map(key).collect();
    let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for (number, found) in keyspace.multi_get(&borrowed).unwrap().into_iter().enumerate() {
        assert_eq!(found.as_deref(), expected(number as u32).as_deref());
    }
    let mut sorted: Vec<_> = (0..count)
        .filter_map(|number| expected(number).map(|value| (key(number), value)))
        .collect();
    sorted.sort();
    let forward: Vec<_> =
        keyspace.iter().map(|r| r.unwrap()).map(|(k, v)| (k, Vec::from(v))).collect();
    assert!(forward == sorted, "forward scan differs");
    let mut reverse: Vec<_> =
        keyspace.iter().rev().map(|r| r.unwrap()).map(|(k, v)| (k, Vec::from(v))).collect();
    reverse.reverse();
    assert!(reverse == sorted, "reverse scan differs");
    assert_eq!(keyspace.first_key_value().unwrap().unwrap().0, sorted[0].0);
    assert_eq!(keyspace.last_key_value().unwrap().unwrap().0, sorted[sorted.len() - 1].0);
    db.verify().unwrap();
    db.close().unwrap();
}

#[test]
fn limits_are_errors_that_name_them() {
    EngineKind::ALL.into_iter().for_each(limits_are_named);
}

fn limits_are_named(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
    let long_key = vec![0; limits::KEY_BYTES_MAX + 1];
    for (error, limit) in [
        (keyspace.insert(&long_key, b"").unwrap_err(), "KEY_BYTES_MAX"),
        (keyspace.get(&long_key).unwrap_err(), "KEY_BYTES_MAX"),
        (
            keyspace.insert(b"k", vec![0; limits::VALUE_BYTES_MAX + 1]).unwrap_err(),
            "VALUE_BYTES_MAX",
        ),
        (db.keyspace("", KeyspaceOptions::default().engine(engine)).unwrap_err(), "empty"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(limit), "{error}");
    }
    assert_eq!(keyspace.iter().count(), 0);
    keyspace.insert(b"", b"the empty key").unwrap();
    assert_eq!(keyspace.get(b"").unwrap().unwrap(), b"the empty key");
}

#[test]
fn an_empty_database_is_small() {
    EngineKind::ALL.into_iter().for_each(is_small_when_empty);
}

fn is_small_when_empty(engine: EngineKind) {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), Options::default()).unwrap();
    db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
    db.close().unwrap();
    let bytes: u64 = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().blocks() * 512)
        .sum();
    assert!(bytes < 64 << 10, "{bytes} bytes");
}

#[test]
fn one_handle_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    assert_eq!(Db::open(directory.path(), options()).unwrap_err().kind(), ErrorKind::Locked);
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    let clone = db.clone();
    db.close().unwrap();
    assert_eq!(keyspace.get(b"k").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(keyspace.insert(b"k", b"v").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(clone.close().unwrap_err().kind(), ErrorKind::Closed);
    Db::open(directory.path(), options()).unwrap();
    let missing = directory.path().join("missing");
    let error = Db::open(&missing, options().create_if_missing(false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(!missing.exists());
}

#[test]
fn conditional_writes_and_batches() {
    EngineKind::ALL.into_iter().for_each(writes_under_conditions);
}

fn writes_under_conditions(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    let a = db.keyspace("a", KeyspaceOptions::default().engine(engine)).unwrap();
    let b = db.keyspace("b", KeyspaceOptions::default().engine(engine).logged(false)).unwrap();
    assert!(a.compare_and_swap(b"k", None, Some(b"1")).unwrap().is_ok());
    let refused = a.compare_and_swap(b"k", None, Some(b"2")).unwrap().unwrap_err();
    assert_eq!(refused.current.unwrap(), b"1");
    assert!(a.compare_and_swap(b"k", Some(b"1"), None).unwrap().is_ok());
    assert_eq!(a.get(b"k").unwrap(), None);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let a = a.clone();
            std::thread::Builder::new()
                .spawn(move || {
                    for _ in 0..500 {
                        a.update(b"count", |old| {
                            let old =
                                old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
                            Some((old + 1).to_le_bytes().to_vec())
                        })
                        .unwrap();
                    }
                })
                .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(a.get(b"count").unwrap().unwrap(), &2000u64.to_le_bytes());
    let mut batch = Batch::new();
    batch.insert(&a, *b"x", *b"first");
    batch.insert(&b, *b"y", *b"other");
    batch.insert(&a, *b"x", *b"last");
    db.write(batch).unwrap();
    assert_eq!(a.get(b"x").unwrap().unwrap(), b"last");
    assert_eq!(b.get(b"y").unwrap().unwrap(), b"other");
    db.drop_keyspace("b").unwrap();
    assert_eq!(b.get(b"y").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(db.keyspaces().len(), 1);
    db.close().unwrap();
    let db = Db::open(directory.path(), options()).unwrap();
    assert!(db.existing_keyspace("b").is_err());
    let b = db.keyspace("b", KeyspaceOptions::default().engine(engine)).unwrap();
    assert_eq!(b.id().0, 3, "ids are never used again");
}

fn round_two(number: u32) -> Vec<u8> {
    vec![(number % 251) as u8; 80]
}

/// Threads that insert neighbouring keys bring pages of the same segments home at the same time.
#[test]
fn threads_insert_more_than_memory_holds() {
    EngineKind::ALL.into_iter().for_each(holds_what_threads_insert);
}

fn holds_what_threads_insert(engine: EngineKind) {
    const THREADS: u32 = 8;
    const EACH: u32 = 6_000;
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default()
        .memory(memory(engine, limits::MEMORY_BYTES_MIN))
        .durability(Durability::Buffered)
        .torn_writes(TornWrites::Assume4k);
    let db = Db::open(directory.path(), options).unwrap();
    let keyspace =
        db.keyspace("k", KeyspaceOptions::default().engine(engine).logged(false)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for number in 0..EACH {
                    let number = number * THREADS + thread;
                    keyspace.insert(key(number), round_two(number)).unwrap();
                }
            });
        }
    });
    // Where memory keeps as good as nothing a lookup of turtle reads seven pages.
    let every = if engine == EngineKind::Turtle { 8 } else { 1 };
    for number in (0..THREADS * EACH).step_by(every) {
        let found = keyspace.get(key(number)).unwrap();
        assert_eq!(found.as_deref(), Some(&round_two(number)[..]), "key {number}");
    }
    assert_eq!(keyspace.iter().count(), (THREADS * EACH) as usize);
    db.verify().unwrap();
}

/// A queue whose head is removed while its tail grows: any thread that looks for the first element never
/// sees one that is gone, though pages are reorganized meanwhile (P23).
#[test]
fn scans_beside_reorganizations_see_what_memory_knows() {
    EngineKind::ALL.into_iter().for_each(scans_beside_background_work);
}

fn scans_beside_background_work(engine: EngineKind) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default()
        .memory(memory(engine, limits::MEMORY_BYTES_MIN))
        .durability(Durability::Buffered)
        .torn_writes(TornWrites::Assume4k);
    let db = Db::open(directory.path(), options).unwrap();
    let keyspace =
        db.keyspace("k", KeyspaceOptions::default().engine(engine).logged(false)).unwrap();
    let key = |number: u32| number.to_be_bytes();
    let insert = |number: u32| keyspace.insert(key(number), [7; 60]).unwrap();
    (0..2000).for_each(insert);
    std::thread::scope(|scope| {
        // Fills pages elsewhere, so that there is background work.
        let noise = scope.spawn(|| {
            for number in 0..10_000u32 {
                let number = 1 << 31 | number.wrapping_mul(2_654_435_761) >> 1;
                keyspace.insert(key(number), [8; 60]).unwrap();
            }
        });
        for head in 0..3000 {
            insert(head + 2000);
            keyspace.remove(key(head)).unwrap();
            let (first, _) = keyspace.first_key_value().unwrap().unwrap();
            assert_eq!(first, key(head + 1), "element {head} was removed");
            if head % 64 == 0 {
                let some: Vec<_> = keyspace.range(key(head + 1)..).limit(300).collect();
                let expected = (head + 1..).map(|number| key(number).to_vec());
                assert!(some.into_iter().map(|record| record.unwrap().0).eq(expected.take(300)));
            }
        }
        noise.join().unwrap();
    });
    db.verify().unwrap();
}
