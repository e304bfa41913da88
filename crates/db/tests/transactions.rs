//! Transactions over keyspaces of any engines: what one reads is of one moment, and it commits only if that is still so.

use spinney_db::{
    Batch, Db, Durability, EngineKind, Error, ErrorKind, Keyspace, KeyspaceOptions, Options,
};

fn database() -> (tempfile::TempDir, Db) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::default().memory(8 << 20).durability(Durability::Buffered);
    let db = Db::open(directory.path(), options).unwrap();
    (directory, db)
}

/// One keyspace of each engine, and one that is not logged.
fn keyspaces(db: &Db) -> [Keyspace; 3] {
    let unlogged = KeyspaceOptions::default().logged(false);
    [
        db.keyspace("treeline", EngineKind::TreeLine).unwrap(),
        db.keyspace("turtle", EngineKind::Turtle).unwrap(),
        db.keyspace("unlogged", unlogged).unwrap(),
    ]
}

fn is_conflict(result: spinney_db::Result<impl std::fmt::Debug>) -> bool {
    result.unwrap_err().kind() == ErrorKind::Conflict
}

#[test]
fn it_sees_its_own_writes_and_nobody_else_does_before_the_commit() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        keyspace.insert("a", "1").unwrap();
        let mut transaction = db.begin().unwrap();
        transaction.insert(keyspace, "a", "2").unwrap();
        transaction.insert(keyspace, "b", "3").unwrap();
        assert!(!transaction.insert_new(keyspace, "b", "4").unwrap());
        assert!(transaction.insert_new(keyspace, "c", "5").unwrap());
        assert_eq!(transaction.get(keyspace, "a").unwrap().unwrap(), "2");
        transaction.remove(keyspace, "a").unwrap();
        assert!(!transaction.contains_key(keyspace, "a").unwrap());
        let added = transaction.update(keyspace, "b", |it| Some([it.unwrap(), b"!"].concat()));
        assert_eq!(added.unwrap().unwrap(), "3!");
        let many = transaction.multi_get(keyspace, ["a", "b", "d"]).unwrap();
        assert_eq!(many.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(keyspace.get("a").unwrap().unwrap(), "1");
        assert!(!keyspace.contains_key("b").unwrap());
        transaction.commit().unwrap();
        assert!(!keyspace.contains_key("a").unwrap());
        assert_eq!(keyspace.get("b").unwrap().unwrap(), "3!");
    }
    let mut dropped = db.begin().unwrap();
    let keyspace = db.existing_keyspace("turtle").unwrap();
    dropped.insert(&keyspace, "b", "4").unwrap();
    dropped.rollback();
    assert_eq!(keyspace.get("b").unwrap().unwrap(), "3!");
}

#[test]
fn savepoints_take_back_writes_and_keep_reads() {
    let (_directory, db) = database();
    let [keyspace, ..] = keyspaces(&db);
    keyspace.insert("read", "1").unwrap();
    let mut transaction = db.begin().unwrap();
    transaction.insert(&keyspace, "a", "1").unwrap();
    let first = transaction.savepoint();
    transaction.insert(&keyspace, "a", "2").unwrap();
    let second = transaction.savepoint();
    transaction.remove(&keyspace, "a").unwrap();
    transaction.insert(&keyspace, "b", "2").unwrap();
    transaction.get(&keyspace, "read").unwrap();
    transaction.rollback_to(&second).unwrap();
    assert_eq!(transaction.get(&keyspace, "a").unwrap().unwrap(), "2");
    assert!(!transaction.contains_key(&keyspace, "b").unwrap());
    transaction.rollback_to(&first).unwrap();
    assert_eq!(transaction.get(&keyspace, "a").unwrap().unwrap(), "1");
    assert_eq!(transaction.rollback_to(&second).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // Gone for good, whatever is written afterwards.
    transaction.insert(&keyspace, "c", "1").unwrap();
    transaction.insert(&keyspace, "d", "1").unwrap();
    assert_eq!(transaction.rollback_to(&second).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let other = db.begin().unwrap().savepoint();
    assert_eq!(transaction.rollback_to(&other).unwrap_err().kind(), ErrorKind::InvalidArgument);
    keyspace.insert("read", "2").unwrap();
    assert!(is_conflict(transaction.commit()), "what was read before the rollback counts");
    assert!(!keyspace.contains_key("a").unwrap());
}

#[test]
fn t08_what_was_read_is_of_one_moment_or_a_conflict_that_stays() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        let both = |value: &str| {
            let mut batch = Batch::new();
            batch.insert(keyspace, "a", value).insert(keyspace, "b", value);
            db.write(batch).unwrap();
        };
        both("1");
        let mut transaction = db.begin().unwrap();
        assert_eq!(transaction.get(keyspace, "a").unwrap().unwrap(), "1");
        both("2");
        assert!(is_conflict(transaction.get(keyspace, "b")), "old a and new b never were");
        assert!(is_conflict(transaction.get(keyspace, "c")));
        assert!(is_conflict(transaction.insert(keyspace, "c", "1")));
        assert!(is_conflict(transaction.commit()));
        // The moment moves while all that was read is as it was.
        let transaction = db.begin().unwrap();
        assert_eq!(transaction.get(keyspace, "a").unwrap().unwrap(), "2");
        keyspace.insert("b", "3").unwrap();
        assert_eq!(transaction.get(keyspace, "b").unwrap().unwrap(), "3");
        transaction.commit().unwrap();
    }
    let stats = db.stats().transactions;
    assert_eq!((stats.begun, stats.committed, stats.conflicts_changed), (6, 3, 3));
    assert!(stats.extensions >= 6);
}

#[test]
fn a_value_that_comes_back_is_no_conflict() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        keyspace.insert("a", "1").unwrap();
        let mut transaction = db.begin().unwrap();
        transaction.get(keyspace, "a").unwrap();
        transaction.insert(keyspace, "b", "1").unwrap();
        keyspace.insert("a", "2").unwrap();
        keyspace.insert("a", "1").unwrap();
        transaction.commit().unwrap();
    }
}

#[test]
fn bodies_are_run_until_they_commit() {
    let (_directory, db) = database();
    let [one, other, _] = keyspaces(&db);
    one.insert("n", 0u64.to_be_bytes()).unwrap();
    other.insert("n", 0u64.to_be_bytes()).unwrap();
    let number = |value: Option<&[u8]>| u64::from_be_bytes(value.unwrap().try_into().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let count = db.transact(|transaction| {
                        let add = |it: Option<&[u8]>| Some((number(it) + 1).to_be_bytes().to_vec());
                        let mine = transaction.update(&one, "n", add)?.unwrap();
                        let others = transaction.update(&other, "n", add)?.unwrap();
                        assert_eq!(mine, others, "a state that no moment had");
                        Ok::<_, Error>(number(Some(&mine)))
                    });
                    assert!(count.unwrap() <= 800);
                }
            });
        }
    });
    assert_eq!(number(one.get("n").unwrap().as_deref()), 800);
    assert_eq!(number(other.get("n").unwrap().as_deref()), 800);
    // An error of the body's own ends it, unless a conflict made it answer that.
    let mut runs = 0;
    let refused = db.transact(|transaction| {
        runs += 1;
        transaction.get(&one, "n")?;
        if runs == 1 {
            one.insert("n", "changed")?;
            transaction.get(&one, "n").map_err(|_| Error::new(ErrorKind::Io, "mine"))?;
        }
        Err::<(), _>(Error::new(ErrorKind::Io, "no"))
    });
    assert_eq!((refused.unwrap_err().kind(), runs), (ErrorKind::Io, 2));
    // A body that swallows a conflict does not commit.
    let mut runs = 0;
    db.transact(|transaction| {
        runs += 1;
        transaction.get(&one, "n")?;
        if runs == 1 {
            one.insert("n", "again")?;
            let _ = transaction.get(&one, "n");
        }
        transaction.insert(&other, "n", format!("{runs}"))
    })
    .unwrap();
    assert_eq!(other.get("n").unwrap().unwrap(), "2");
}

#[test]
fn a_load_a_drop_and_a_conversion_end_who_read_before() {
    let (_directory, db) = database();
    for engine in EngineKind::ALL {
        let keyspace = db.keyspace("loaded", engine).unwrap();
        let loaded = db.begin().unwrap();
        assert!(!loaded.contains_key(&keyspace, "a").unwrap());
        keyspace.bulk_load([("a", "1")]).unwrap();
        assert!(is_conflict(loaded.get(&keyspace, "b")));
        let mut writer = db.begin().unwrap();
        assert_eq!(writer.get(&keyspace, "a").unwrap().unwrap(), "1");
        writer.insert(&keyspace, "b", "1").unwrap();
        let reader = db.begin().unwrap();
        reader.get(&keyspace, "a").unwrap();
        db.drop_keyspace("loaded").unwrap();
        for _ in 0..2 {
            assert_eq!(reader.get(&keyspace, "b").unwrap_err().kind(), ErrorKind::Closed);
        }
        assert_eq!(reader.commit().unwrap_err().kind(), ErrorKind::Closed);
        assert!(writer.commit().is_err());
    }
    let keyspace = db.keyspace("converted", EngineKind::TreeLine).unwrap();
    keyspace.insert("a", "1").unwrap();
    let transaction = db.begin().unwrap();
    transaction.get(&keyspace, "a").unwrap();
    db.convert_keyspace("converted", EngineKind::Turtle).unwrap();
    assert_eq!(transaction.get(&keyspace, "a").unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn large_values_count_by_their_pointers() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        let value = |fill: u8| vec![fill; 300_000];
        keyspace.insert("a", value(1)).unwrap();
        let mut transaction = db.begin().unwrap();
        assert_eq!(transaction.get(keyspace, "a").unwrap().unwrap(), value(1));
        transaction.insert(keyspace, "b", value(2)).unwrap();
        transaction.commit().unwrap();
        assert_eq!(keyspace.get("b").unwrap().unwrap(), value(2));
        let mut transaction = db.begin().unwrap();
        transaction.get(keyspace, "a").unwrap();
        keyspace.insert("a", value(3)).unwrap();
        transaction.insert(keyspace, "b", "1").unwrap();
        assert!(is_conflict(transaction.commit()));
    }
}

#[test]
fn limits_and_strangers_are_refused_and_nothing_is_lost() {
    let (_directory, db) = database();
    let (_other_directory, other) = database();
    let [keyspace, ..] = keyspaces(&db);
    let [foreign, ..] = keyspaces(&other);
    let mut transaction = db.begin().unwrap();
    let invalid = |result: spinney_db::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    };
    invalid(transaction.insert(&foreign, "a", "1"));
    invalid(transaction.get(&foreign, "a").map(drop));
    invalid(transaction.insert(&keyspace, vec![0; 1025], "1"));
    invalid(transaction.contains_key(&keyspace, vec![0; 1025]).map(drop));
    for number in 0..65_536u32 {
        transaction.insert(&keyspace, number.to_be_bytes(), "").unwrap();
    }
    transaction.insert(&keyspace, 7u32.to_be_bytes(), "again").unwrap();
    invalid(transaction.insert(&keyspace, "one more", ""));
    transaction.insert(&keyspace, "large", vec![0; 5 << 20]).unwrap_err();
    transaction.rollback();
    let mut transaction = db.begin().unwrap();
    for number in 0..2000u32 {
        transaction.insert(&keyspace, number.to_be_bytes(), [7; 1000]).unwrap();
    }
    invalid(transaction.commit());
    assert!(keyspace.iter().next().is_none());
    // Of a read-only transaction what it read is made durable when that is asked for.
    let reader = db.begin().unwrap();
    reader.get(&keyspace, "a").unwrap();
    reader.commit_with(Durability::Sync).unwrap();
    let (mut open, closed) = (db.begin().unwrap(), db.clone());
    open.insert(&keyspace, "own", "1").unwrap();
    db.close().unwrap();
    assert_eq!(open.get(&keyspace, "a").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(open.get(&keyspace, "own").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(closed.begin().unwrap_err().kind(), ErrorKind::Closed);
}

fn keys_of(
    cursor: impl Iterator<Item = spinney_db::Result<(Vec<u8>, spinney_db::Value)>>,
) -> String {
    let keys = cursor.map(|record| String::from_utf8(record.unwrap().0).unwrap());
    keys.collect::<Vec<_>>().join(" ")
}

#[test]
fn ranges_have_the_transactions_own_writes() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        for key in ["a", "c", "e", "g"] {
            keyspace.insert(key, "old").unwrap();
        }
        let mut transaction = db.begin().unwrap();
        for key in ["b", "c", "h"] {
            transaction.insert(keyspace, key, "new").unwrap();
        }
        transaction.remove(keyspace, "e").unwrap();
        transaction.remove(keyspace, "f").unwrap();
        let all = || transaction.range(keyspace, ..);
        assert_eq!(keys_of(all()), "a b c g h");
        assert_eq!(keys_of(all().rev()), "h g c b a");
        assert_eq!(keys_of(all().limit(3)), "a b c");
        assert_eq!(keys_of(all().rev().limit(2)), "h g");
        assert_eq!(keys_of(transaction.range(keyspace, "b".."g")), "b c");
        assert_eq!(keys_of(transaction.prefix(keyspace, "h")), "h");
        let keys = transaction.keys(keyspace, "c"..).collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(keys, [b"c", b"g", b"h"]);
        let mut both = all();
        assert_eq!(both.next().unwrap().unwrap().0, b"a");
        assert_eq!(both.next_back().unwrap().unwrap().0, b"h");
        both.seek("c");
        assert_eq!(both.next().unwrap().unwrap().1, "new");
        assert_eq!(transaction.first_key_value(keyspace).unwrap().unwrap().0, b"a");
        assert_eq!(transaction.last_key_value(keyspace).unwrap().unwrap().0, b"h");
        transaction.commit().unwrap();
        assert_eq!(keys_of(keyspace.iter()), "a b c g h");
    }
    // Many chunks, of which the transaction removes whole ones.
    let [keyspace, other, _] = keyspaces(&db);
    for keyspace in [&keyspace, &other] {
        let name = |number: u32| format!("n{number:05}");
        (0..3000).for_each(|number| keyspace.insert(name(number), "old").unwrap());
        let mut transaction = db.begin().unwrap();
        (500..2500).for_each(|number| transaction.remove(keyspace, name(number)).unwrap());
        assert_eq!(transaction.prefix(keyspace, "n").count(), 1000);
        assert_eq!(transaction.prefix(keyspace, "n").rev().count(), 1000);
        let found = keys_of(transaction.range(keyspace, name(499)..).limit(2));
        assert_eq!(found, "n00499 n02500");
    }
    assert_eq!(db.stats().transactions.guards, 0, "those of transactions that ended are gone");
}

/// What another writes into a range.
type Phantom = fn(&Keyspace);

/// What others write into a range that was read is a conflict, whatever they write; beside it is none.
#[test]
fn t04_phantoms_are_conflicts_and_neighbours_are_none() {
    let (_directory, db) = database();
    let all = keyspaces(&db);
    for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
        let reset = || {
            for keyspace in [one, other] {
                let keys: Vec<_> = keyspace.keys(..).map(Result::unwrap).collect();
                keys.iter().for_each(|key| keyspace.remove(key).unwrap());
            }
            for key in ["b", "d", "f"] {
                one.insert(key, "0").unwrap();
            }
        };
        let phantoms: [(&str, Phantom); 5] = [
            ("by insert", |it| it.insert("c", "1").unwrap()),
            ("by removal", |it| it.remove("d").unwrap()),
            ("by re-insert", |it| {
                it.remove("d").unwrap();
                it.insert("d", "0").unwrap();
            }),
            ("by update", |it| it.insert("b", "1").unwrap()),
            ("in a gap at the end", |it| it.insert("ez", "1").unwrap()),
        ];
        for (name, phantom) in phantoms {
            reset();
            let mut reader = db.begin().unwrap();
            assert_eq!(keys_of(reader.range(one, "b".."f")), "b d");
            reader.insert(other, "z", "1").unwrap();
            assert_eq!(db.stats().transactions.guards, 1);
            phantom(one);
            assert!(is_conflict(reader.commit()), "phantom {name}");
            assert!(!other.contains_key("z").unwrap());
        }
        // Beside what was read.
        reset();
        let mut reader = db.begin().unwrap();
        assert_eq!(keys_of(reader.range(one, "b".."f")), "b d");
        for key in ["a", "f", "g"] {
            one.insert(key, "1").unwrap();
        }
        reader.insert(one, "c", "own").unwrap();
        reader.commit().unwrap();
        // A range of which only the beginning was read.
        reset();
        let mut reader = db.begin().unwrap();
        assert_eq!(keys_of(reader.range(one, "a"..).limit(2)), "b d");
        one.insert("x", "1").unwrap();
        assert_eq!(reader.first_key_value(one).unwrap().unwrap().0, b"b");
        one.insert("y", "1").unwrap();
        reader.insert(other, "z", "1").unwrap();
        reader.commit().unwrap();
        // Write skew over ranges: each counts, and writes what the other counted.
        reset();
        let (mut first, mut second) = (db.begin().unwrap(), db.begin().unwrap());
        for transaction in [&first, &second] {
            assert_eq!(transaction.range(one, ..).count(), 3);
        }
        first.insert(one, "p", "3").unwrap();
        second.insert(one, "q", "3").unwrap();
        first.commit().unwrap();
        assert!(is_conflict(second.commit()), "two counted the same");
        // Batch processing: a report of a batch that was closed must not miss a record of it.
        reset();
        other.insert("batch", "1").unwrap();
        let mut late = db.begin().unwrap();
        let batch = late.get(other, "batch").unwrap().unwrap();
        db.transact(|it| it.insert(other, "batch", "2")).unwrap();
        let report = db.begin().unwrap();
        assert_eq!(report.get(other, "batch").unwrap().unwrap(), "2");
        assert_eq!(report.prefix(one, "1 ").count(), 0);
        report.commit().unwrap();
        late.insert(one, format!("{batch:?} late"), "").unwrap();
        assert!(is_conflict(late.commit()), "into a batch that was reported");
    }
    assert_eq!(db.stats().transactions.guards, 0);
}

/// What is written behind the last record of a limited range is outside of it, wherever that lies in a page
/// and though it is the last of all.
#[test]
fn limited_ranges_end_with_the_last_record_that_they_give() {
    let (_directory, db) = database();
    let result = db.keyspace("result", EngineKind::TreeLine).unwrap();
    for keyspace in &keyspaces(&db) {
        let name = |number: usize| format!("n{number:04}");
        keyspace.bulk_load((0..300).map(|number| (name(number), [7; 100]))).unwrap();
        for limit in 1..=300 {
            let mut forward = db.begin().unwrap();
            assert_eq!(forward.range(keyspace, ..).limit(limit).count(), limit);
            let mut back = db.begin().unwrap();
            assert_eq!(back.keys(keyspace, ..).rev().limit(limit).count(), limit);
            keyspace.insert(name(limit - 1) + "+", "behind the last").unwrap();
            keyspace.remove(name(limit - 1) + "+").unwrap();
            forward.insert(&result, "forward", "1").unwrap();
            forward.commit().unwrap_or_else(|error| panic!("limit {limit}: {error}"));
            if limit > 150 {
                back.insert(&result, "back", "1").unwrap();
                assert!(is_conflict(back.commit()), "limit {limit} from the other end");
            }
        }
        // The head of a queue with one record, beside a push.
        (1..300).for_each(|number| keyspace.remove(name(number)).unwrap());
        let mut taker = db.begin().unwrap();
        let (head, _) = taker.first_key_value(keyspace).unwrap().unwrap();
        keyspace.insert("pushed", "1").unwrap();
        taker.remove(keyspace, head).unwrap();
        taker.commit().unwrap();
    }
}

/// However many ranges are open, a write beside them all is a conflict for none.
#[test]
fn ranges_are_kept_apart_however_many_are_open() {
    let (_directory, db) = database();
    let result = db.keyspace("result", EngineKind::TreeLine).unwrap();
    for keyspace in &keyspaces(&db) {
        let name = |number: usize| format!("n{number:05}");
        keyspace.bulk_load((0..6000).map(|number| (name(number), "old"))).unwrap();
        let mut open: Vec<_> = (0..600)
            .map(|number| {
                let transaction = db.begin().unwrap();
                let range = name(10 * number)..name(10 * number + 5);
                assert_eq!(transaction.range(keyspace, range).count(), 5);
                transaction
            })
            .collect();
        assert_eq!(db.stats().transactions.guards, 600);
        for number in 0..600 {
            keyspace.insert(name(10 * number + 5), "beside").unwrap();
        }
        assert_eq!(db.stats().transactions.guards, 600);
        keyspace.insert(name(10 * 300 + 4), "inside").unwrap();
        for (number, mut transaction) in open.drain(..).enumerate() {
            transaction.insert(&result, name(number), "1").unwrap();
            assert_eq!(transaction.commit().is_ok(), number != 300, "range {number}");
        }
        assert_eq!(db.stats().transactions.guards, 0);
    }
}

#[test]
fn a_range_and_points_are_of_one_moment() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        let both = |value: &str| {
            let mut batch = Batch::new();
            batch.insert(keyspace, "a", value).insert(keyspace, "b", value);
            db.write(batch).unwrap();
        };
        both("1");
        let transaction = db.begin().unwrap();
        assert_eq!(transaction.get(keyspace, "a").unwrap().unwrap(), "1");
        both("2");
        let read = transaction.range(keyspace, "b"..).next().unwrap();
        assert!(is_conflict(read), "a range of a later moment");
        let transaction = db.begin().unwrap();
        assert_eq!(transaction.range(keyspace, "a".."b").next().unwrap().unwrap().1, "2");
        both("3");
        assert!(is_conflict(transaction.get(keyspace, "b")));
    }
}

#[test]
fn batches_are_written_if_all_that_they_expect_holds() {
    let (_directory, db) = database();
    let all = keyspaces(&db);
    for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
        one.insert("a", "1").unwrap();
        other.remove("b").unwrap();
        let mut batch = Batch::new();
        batch.expect(one, "a", Some(b"1")).expect(other, "b", None);
        batch.insert(one, "a", "2").insert(other, "b", "2").insert(one, "large", vec![7; 100_000]);
        db.write(&batch).unwrap();
        assert_eq!(other.get("b").unwrap().unwrap(), "2");
        let refused = db.write(&batch).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let text = format!("key \"a\" of keyspace {:?} has another value", one.name());
        assert!(refused.to_string().contains(&text), "{refused}");
        one.insert("a", "1").unwrap();
        let refused = db.write(&batch).unwrap_err().to_string();
        let text = format!("key \"b\" of keyspace {:?} has a value", other.name());
        assert!(refused.contains(&text), "{refused}");
        // A condition alone, and a large value that is expected.
        let large = vec![7; 100_000];
        db.write(Batch::new().expect(one, "large", Some(&large))).unwrap();
        assert!(is_conflict(db.write(Batch::new().expect(one, "large", None))));
        batch.clear();
        assert!(batch.is_empty());
        db.write(&batch).unwrap();
    }
    // Two that expect each other's key, from two threads: one of each pair of batches is written.
    let [one, other, _] = all;
    for round in 0..100u32 {
        let round = round.to_be_bytes();
        let take = |mine: &Keyspace, others: &Keyspace| {
            let mut batch = Batch::new();
            batch
                .expect(mine, round, None)
                .expect(others, round, None)
                .insert(mine, round, "taken");
            match db.write(batch) {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::Conflict => false,
                Err(error) => panic!("{error}"),
            }
        };
        let taken = std::thread::scope(|scope| {
            let first = scope.spawn(|| take(&one, &other));
            let second = take(&other, &one);
            u8::from(first.join().unwrap()) + u8::from(second)
        });
        assert_eq!(taken, 1);
    }
}

/// A loop over a cursor that has failed ends.
#[test]
fn a_cursor_gives_an_error_once() {
    let (_directory, db) = database();
    for keyspace in &keyspaces(&db) {
        (0..100u8).for_each(|number| keyspace.insert([number], "1").unwrap());
        let transaction = db.begin().unwrap();
        transaction.get(keyspace, [1]).unwrap();
        keyspace.insert([1], "2").unwrap();
        assert!(is_conflict(transaction.get(keyspace, [1])));
        assert_eq!(transaction.keys(keyspace, ..).count(), 1, "the conflict");
        assert_eq!(transaction.range(keyspace, ..).rev().flatten().count(), 0);
        let mut lending = transaction.range(keyspace, ..);
        assert!(lending.next_ref().is_err() && lending.next_ref().is_err());
    }
    let dropped = db.keyspace("dropped", EngineKind::Turtle).unwrap();
    (0..100u8).for_each(|number| dropped.insert([number], "1").unwrap());
    let (mut records, mut keys) = (dropped.iter(), dropped.keys(..));
    assert!(records.next().unwrap().is_ok() && keys.next().unwrap().is_ok());
    db.drop_keyspace("dropped").unwrap();
    assert_eq!(records.filter(Result::is_err).count(), 1);
    assert_eq!(keys.filter(Result::is_err).count(), 1);
    assert_eq!(dropped.iter().readers().count(), 1);
}

/// A cursor gives an error as an item, and `count()` counts it: what came of that is not written.
#[test]
fn an_error_of_a_range_ends_the_transaction() {
    let (_directory, db) = database();
    let kept = db.keyspace("kept", EngineKind::TreeLine).unwrap();
    for engine in EngineKind::ALL {
        let gone = db.keyspace("gone", engine).unwrap();
        gone.insert("a", "1").unwrap();
        db.drop_keyspace("gone").unwrap();
        let counted = db.transact(|transaction| -> spinney_base::Result<()> {
            let count = transaction.range(&gone, ..).count();
            transaction.insert(&kept, "count", count.to_string())
        });
        assert_eq!(counted.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(kept.get("count").unwrap(), None);
    }
    let (_other_directory, other) = database();
    let strange = other.keyspace("strange", EngineKind::TreeLine).unwrap();
    let mut transaction = db.begin().unwrap();
    let count = transaction.range(&strange, ..).count();
    _ = transaction.insert(&kept, "count", count.to_string());
    assert_eq!(transaction.commit().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(kept.get("count").unwrap(), None);
}

/// A thread that panics runs its destructors, which may write: no code of ours has panicked.
#[test]
fn destructors_write_during_a_panic() {
    struct Last(Keyspace, Db);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.insert_with("last", "1", Durability::Sync).unwrap();
            self.1.checkpoint().unwrap();
        }
    }
    let (_directory, db) = database();
    for (name, engine) in [("a", EngineKind::TreeLine), ("b", EngineKind::Turtle)] {
        let keyspace = db.keyspace(name, engine).unwrap();
        let last = Last(keyspace.clone(), db.clone());
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let _last = last;
                panic!("not of the database");
            });
            thread.join().is_err()
        });
        assert!(panicked);
        keyspace.insert_with("next", "1", Durability::Sync).unwrap();
        assert_eq!(keyspace.get("last").unwrap().unwrap(), "1");
    }
}

/// In the destructors of what a thread keeps for itself, other such things are gone.
#[test]
fn destructors_of_a_thread_take_snapshots() {
    struct Last(Db);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.snapshot().unwrap();
            self.0.checkpoint().unwrap();
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let (_directory, db) = database();
    let keyspace = db.keyspace("a", EngineKind::TreeLine).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            LAST.set(Some(Last(db)));
            keyspace.insert("a", "1").unwrap();
            drop(keyspace.snapshot().unwrap());
        });
        thread.join().unwrap();
    });
}

#[test]
fn conditions_count_as_operations() {
    let (_directory, db) = database();
    let keyspace = db.keyspace("a", EngineKind::TreeLine).unwrap();
    let mut batch = Batch::new();
    assert!(batch.is_empty());
    batch.expect(&keyspace, "a", None);
    assert_eq!((batch.len(), batch.is_empty()), (1, false));
}
