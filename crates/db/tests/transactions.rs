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

/// Each anomaly as a script of two transactions, over keyspaces of one engine and of two.
#[test]
fn anomalies_are_conflicts() {
    let (_directory, db) = database();
    let all = keyspaces(&db);
    for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
        let reset = || {
            one.insert("x", "0").unwrap();
            other.insert("y", "0").unwrap();
        };
        let begin = || db.begin().unwrap();
        // Lost update.
        reset();
        let (mut first, mut second) = (begin(), begin());
        first.get(one, "x").unwrap();
        second.get(one, "x").unwrap();
        first.insert(one, "x", "1").unwrap();
        second.insert(one, "x", "2").unwrap();
        first.commit().unwrap();
        assert!(is_conflict(second.commit()), "lost update");
        assert_eq!(one.get("x").unwrap().unwrap(), "1");
        // Write skew.
        reset();
        let (mut first, mut second) = (begin(), begin());
        for transaction in [&first, &second] {
            transaction.get(one, "x").unwrap();
            transaction.get(other, "y").unwrap();
        }
        first.insert(one, "x", "1").unwrap();
        second.insert(other, "y", "1").unwrap();
        first.commit().unwrap();
        assert!(is_conflict(second.commit()), "write skew");
        // Read skew.
        reset();
        let (reader, mut writer) = (begin(), begin());
        reader.get(one, "x").unwrap();
        writer.insert(one, "x", "1").unwrap();
        writer.insert(other, "y", "1").unwrap();
        writer.commit().unwrap();
        assert!(is_conflict(reader.get(other, "y")), "read skew");
        // The read-only anomaly: the reader saw y without x, so the first must not commit.
        reset();
        let mut first = begin();
        first.get(one, "x").unwrap();
        first.get(other, "y").unwrap();
        let mut second = begin();
        second.get(other, "y").unwrap();
        second.insert(other, "y", "20").unwrap();
        second.commit().unwrap();
        let reader = begin();
        assert_eq!(reader.get(one, "x").unwrap().unwrap(), "0");
        assert_eq!(reader.get(other, "y").unwrap().unwrap(), "20");
        reader.commit().unwrap();
        first.insert(one, "x", "-11").unwrap();
        assert!(is_conflict(first.commit()), "read-only anomaly");
        // Dirty writes: the last of two blind writers has both keys.
        reset();
        let (mut first, mut second) = (begin(), begin());
        for (transaction, value) in [(&mut first, "1"), (&mut second, "2")] {
            transaction.insert(one, "x", value).unwrap();
            transaction.insert(other, "y", value).unwrap();
        }
        second.commit().unwrap();
        first.commit().unwrap();
        assert_eq!(one.get("x").unwrap().unwrap(), other.get("y").unwrap().unwrap());
        // An insert of a key that was read as absent.
        reset();
        one.remove("z").unwrap();
        let (mut first, mut second) = (begin(), begin());
        assert!(first.insert_new(one, "z", "1").unwrap());
        assert!(second.insert_new(one, "z", "2").unwrap());
        first.commit().unwrap();
        assert!(is_conflict(second.commit()), "two that were first");
        // A removal of what was read.
        let mut first = begin();
        assert!(first.contains_key(one, "z").unwrap());
        first.insert(other, "y", "z is there").unwrap();
        one.remove("z").unwrap();
        assert!(is_conflict(first.commit()), "removed");
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
    for engine in [EngineKind::TreeLine, EngineKind::Turtle] {
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
        assert_eq!(reader.get(&keyspace, "b").unwrap_err().kind(), ErrorKind::Closed);
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
    for number in 0..70_000u32 {
        transaction.insert(&keyspace, number.to_be_bytes(), "").unwrap();
    }
    invalid(transaction.commit());
    assert!(keyspace.iter().next().is_none());
    // Of a read-only transaction what it read is made durable when that is asked for.
    let reader = db.begin().unwrap();
    reader.get(&keyspace, "a").unwrap();
    reader.commit_with(Durability::Sync).unwrap();
    let (open, closed) = (db.begin().unwrap(), db.clone());
    db.close().unwrap();
    assert_eq!(open.get(&keyspace, "a").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(closed.begin().unwrap_err().kind(), ErrorKind::Closed);
}
