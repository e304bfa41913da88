//! Transactions over keyspaces with versions: old readers, plain writes beside them, and what becomes of what they keep.
#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Batch, Db, EngineKind, ErrorKind, Keyspace, Options, Result, Transaction};
use spinney_io::sim::SimDisk;

const MEMORY: u64 = 16 << 20;

fn database() -> (Db, Runtime) {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let options = Options::default().memory(MEMORY).scrub_bytes_per_second(0);
    let options = options.disk(Arc::new(disk)).runtime(runtime.clone());
    (Db::open("/db", options).unwrap(), runtime)
}

fn get(transaction: &Transaction, keyspace: &Keyspace, key: &str) -> Option<String> {
    let value = transaction.get(keyspace, key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn is_conflict<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Conflict)
}

/// A reader sees the moment at which it began, whatever becomes of the keys, and commits: it comes before the writers.
#[test]
fn a_reader_sees_what_was_when_it_began() {
    let (db, runtime) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    for key in ["a", "b", "c"] {
        main.insert(key, "old").unwrap();
    }
    let reader = db.begin().unwrap();
    assert_eq!(get(&reader, &main, "a").unwrap(), "old");
    for round in 0..50 {
        for key in ["a", "b", "new"] {
            main.insert(key, format!("{round}")).unwrap();
        }
        main.remove("c").unwrap();
        db.transact(|it| it.insert(&main, "c", "back")).unwrap();
        runtime.step();
        if round % 10 == 0 {
            db.checkpoint().unwrap();
        }
        for key in ["a", "b", "c"] {
            assert_eq!(get(&reader, &main, key).unwrap(), "old");
        }
        assert_eq!(get(&reader, &main, "new"), None);
    }
    let records = main.iter().map(Result::unwrap).map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(records, [&b"a"[..], b"b", b"c", b"new"]);
    reader.commit().unwrap();
}

/// A key without a value that is removed gets another version without a value.
#[test]
fn a_reader_sees_keys_that_were_removed_twice() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    main.insert("b", "old").unwrap();
    let reader = db.begin().unwrap();
    assert_eq!(get(&reader, &main, "b").unwrap(), "old");
    for key in ["a", "b"] {
        main.remove(key).unwrap();
        db.transact(|it| it.remove(&main, key)).unwrap();
    }
    assert_eq!(get(&reader, &main, "a"), None);
    assert_eq!(reader.range(&main, ..).count(), 1);
    reader.commit().unwrap();
    assert_eq!(main.iter().count(), 0);
}

/// It may not write, then: it would have to come before and after the others.
#[test]
fn who_reads_what_was_overwritten_may_write_where_nobody_did() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    main.insert("a", "old").unwrap();
    let mut one = db.begin().unwrap();
    assert_eq!(get(&one, &main, "a").unwrap(), "old");
    main.insert("a", "new").unwrap();
    // Of what nobody has read since it may be the writer: it comes before the plain write.
    one.insert(&main, "b", "of one").unwrap();
    one.commit().unwrap();
    let mut other = db.begin().unwrap();
    assert_eq!(get(&other, &main, "a").unwrap(), "new");
    main.insert("a", "newer").unwrap();
    // Somebody has seen the keyspace after that write, and without this one's.
    assert_eq!(main.get("a").unwrap().unwrap(), "newer");
    assert_eq!(main.get("c").unwrap(), None);
    other.insert(&main, "c", "of other").unwrap();
    assert!(is_conflict(other.commit()));
    assert_eq!(main.get("c").unwrap(), None);
}

/// A write that nothing was read for waits for no transaction, and the first of two wins.
#[test]
fn t09_plain_writes_wait_for_nobody() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    main.insert("a", "old").unwrap();
    let mut left_open = db.begin().unwrap();
    assert_eq!(get(&left_open, &main, "a").unwrap(), "old");
    left_open.insert(&main, "a", "mine").unwrap();
    main.insert("a", "plain").unwrap();
    assert!(is_conflict(left_open.commit()));
    assert_eq!(main.get("a").unwrap().unwrap(), "plain");
}

/// What transactions keep goes once they have ended: cells, older images, absent records.
#[test]
fn nothing_stays_of_what_has_ended() {
    let (db, runtime) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    let step = |times: usize| (0..times).for_each(|_| _ = runtime.step());
    (0..2000).for_each(|key: u32| main.insert(key.to_be_bytes(), [1; 100]).unwrap());
    step(200);
    let before = main.stats().cache_bytes + db.stats().memory_used;
    for round in 0..20_u32 {
        let reader = db.begin().unwrap();
        for key in 0..1000_u32 {
            // Half of them are not there.
            reader.get(&main, (key * 4).to_be_bytes()).unwrap();
        }
        for key in 0..500_u32 {
            let key = (key * 7 % 3000).to_be_bytes();
            db.transact(|it| it.update(&main, key, |_| Some(vec![round as u8; 100])).map(drop))
                .unwrap();
        }
        drop(reader);
        step(50);
    }
    for key in 2000..3000_u32 {
        main.remove(key.to_be_bytes()).unwrap();
    }
    step(200);
    assert_eq!(main.iter().count(), 2000);
    let after = main.stats().cache_bytes + db.stats().memory_used;
    // Cells are used again, and keep their memory.
    assert!(after < before + (1 << 20), "{before} bytes before, {after} after");
    assert_eq!(db.verify().unwrap().records, 2000);
}

/// One that is left open keeps others from no memory: it ends with a conflict.
#[test]
fn who_keeps_too_much_ends() {
    let (db, runtime) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    (0..20_000).for_each(|key: u32| main.insert(key.to_be_bytes(), [1; 200]).unwrap());
    let left_open = db.begin().unwrap();
    left_open.get(&main, 0_u32.to_be_bytes()).unwrap();
    for round in 0..10_u8 {
        for key in 0..20_000_u32 {
            main.insert(key.to_be_bytes(), [round; 200]).unwrap();
            if key % 512 == 0 {
                runtime.step();
            }
        }
    }
    assert!(is_conflict(left_open.get(&main, 1_u32.to_be_bytes())));
    assert!(is_conflict(left_open.commit()));
    assert_eq!(main.iter().count(), 20_000);
}

/// A snapshot has read everything, so a writer may have to come after it (T13). A reader has not, nor has a writer that
/// nothing was overwritten for, nor does a snapshot of other keyspaces count.
#[test]
fn t13_snapshots_keep_readers_from_nothing() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    let other = db.keyspace("other", EngineKind::TreeLine).unwrap();
    for round in 0..4 {
        main.insert("a", "old").unwrap();
        let mut early = db.begin().unwrap();
        assert_eq!(get(&early, &main, "a").unwrap(), "old");
        main.insert("a", "new").unwrap();
        let is_writer = round % 2 == 1;
        let snapshot = if round < 2 { other.snapshot().unwrap() } else { main.snapshot().unwrap() };
        if is_writer {
            early.insert(&main, "b", "early").unwrap();
        }
        let is_refused = is_writer && round >= 2;
        assert_eq!(early.commit().is_err(), is_refused, "{round}");
        drop(snapshot);
    }
}

/// More transactions than there are contexts, all left open: the last ones conflict, and plain writes go on.
#[test]
fn more_transactions_than_contexts() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    main.insert("a", "1").unwrap();
    let all: Vec<Transaction> = (0..1100).map(|_| db.begin().unwrap()).collect();
    let read = all.iter().filter(|it| it.get(&main, "a").is_ok()).count();
    assert!((900..1024).contains(&read), "{read} could read");
    main.insert("a", "2").unwrap();
    assert_eq!(main.get("a").unwrap().unwrap(), "2");
    drop(all);
    db.transact(|it| it.insert(&main, "a", "3")).unwrap();
}

/// A reader that has seen the later of two writers, and not the earlier one, keeps that from committing: by a range, and by
/// a key of an engine without versions (T10).
#[test]
fn t10_a_writer_does_not_come_before_what_others_have_seen() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    let other = db.keyspace("other", EngineKind::Turtle).unwrap();
    for is_range in [true, false] {
        main.insert("a", "old").unwrap();
        let mut early = db.begin().unwrap();
        assert_eq!(get(&early, &main, "a").unwrap(), "old");
        main.insert("a", "new").unwrap();
        let reader = db.begin().unwrap();
        if is_range {
            let seen: Vec<_> = reader.range(&main, ..).map(|one| one.unwrap().0).collect();
            assert_eq!(seen, [b"a"]);
            early.insert(&main, "c", "early").unwrap();
        } else {
            assert_eq!(get(&reader, &main, "a").unwrap(), "new");
            assert_eq!(get(&reader, &other, "c"), None);
            early.insert(&other, "c", "early").unwrap();
        }
        reader.commit().unwrap();
        assert!(is_conflict(early.commit()), "{is_range}");
        assert_eq!((main.get("c").unwrap(), other.get("c").unwrap()), (None, None));
    }
}

/// A batch writes the last of its values for a key, so what it keeps for older readers leads from that. Values that are as long as those
/// before leave what differs alone.
#[test]
fn a_batch_that_writes_a_key_again_leaves_what_was() {
    let (db, _) = database();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    let value = |of: &str, at: usize| {
        let mut value = "-".repeat(100);
        value.replace_range(at..at + of.len(), of);
        value
    };
    let old = value("old", 10);
    for key in ["a", "b", "c", "d"] {
        main.insert(key, &old).unwrap();
    }
    let reader = db.begin().unwrap();
    assert_eq!(get(&reader, &main, "d").unwrap(), old);
    let mut batch = Batch::new();
    batch.insert(&main, "a", value("one", 50)).insert(&main, "a", value("two", 90));
    batch.insert(&main, "b", value("one", 50)).insert(&main, "b", "short");
    batch.insert(&main, "c", value("one", 50)).remove(&main, "c").insert(&main, "c", &old);
    batch.insert(&main, "d", &old).insert(&main, "d", value("one", 10));
    db.write(&batch).unwrap();
    let later = db.begin().unwrap();
    assert_eq!(get(&later, &main, "a").unwrap(), value("two", 90));
    main.insert("a", value("three", 0)).unwrap();
    for key in ["a", "b", "c", "d"] {
        assert_eq!(get(&reader, &main, key).unwrap(), old, "{key}");
    }
    assert_eq!(get(&later, &main, "a").unwrap(), value("two", 90));
    assert_eq!(main.get("a").unwrap().unwrap()[..], *value("three", 0).as_bytes());
}
