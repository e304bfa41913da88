//! The public face, used the ways users try (the list of what did not compile once).

use std::collections::BTreeMap;
use std::ops::Bound;

use spinney::{
    Batch, CompareAndSwapError, Db, EngineKind, Error, ErrorKind, Keyspace, KeyspaceOptions,
    Options, Result, Value,
};

struct World {
    db: Db,
    fruit: Keyspace,
    _directory: tempfile::TempDir,
}

/// A keyspace of fruit and their colours.
fn world(engine: EngineKind) -> World {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path(), Options::default()).unwrap();
    let fruit = db.keyspace("fruit", KeyspaceOptions::default().engine(engine)).unwrap();
    for (name, colour) in
        [("apple", "red"), ("banana", "yellow"), ("cherry", "red"), ("plum", "blue")]
    {
        fruit.insert(name, colour).unwrap();
    }
    World { db, fruit, _directory: directory }
}

fn names(records: impl Iterator<Item = Result<(Vec<u8>, Value)>>) -> Vec<String> {
    records.map(|record| String::from_utf8(record.unwrap().0).unwrap()).collect()
}

#[test]
fn keys_and_values_are_whatever_lends_bytes() {
    let World { fruit, .. } = world(EngineKind::TreeLine);
    let (text, vector, array) = (String::from("fig"), b"fig".to_vec(), *b"fig");
    fruit.insert(&text, &vector).unwrap();
    fruit.insert(text.as_str(), array).unwrap();
    fruit.insert(&vector, text).unwrap();
    fruit.insert(7u64.to_be_bytes(), [1, 2, 3]).unwrap();
    assert!(fruit.contains_key("fig").unwrap() && fruit.contains_key(&vector).unwrap());
    assert_eq!(fruit.get(b"fig").unwrap().unwrap(), "fig");
    assert_eq!(fruit.get_reader("fig").unwrap().unwrap().len(), 3);
    let mut out = Vec::new();
    assert!(fruit.get_into("apple", &mut out).unwrap());
    fruit.insert_from("kiwi", 5, &b"green"[..]).unwrap();
    fruit.update("kiwi", |old| old.map(<[u8]>::to_ascii_uppercase)).unwrap();
    assert_eq!(fruit.get("kiwi").unwrap().unwrap(), "GREEN");
    fruit.remove("fig").unwrap();
    fruit.remove(vector).unwrap();
}

#[test]
fn many_keys_come_in_any_collection() {
    let World { fruit, .. } = world(EngineKind::TreeLine);
    let vectors: Vec<Vec<u8>> = vec![b"apple".to_vec(), b"pear".to_vec()];
    let found = fruit.multi_get(&vectors).unwrap();
    assert_eq!(found, [Some(Value::from("red")), None]);
    assert_eq!(fruit.multi_get(["apple", "pear"]).unwrap(), found);
    assert_eq!(fruit.multi_get(&["apple", "pear"][..]).unwrap(), found);
    assert_eq!(fruit.multi_get(vectors.iter().map(Vec::as_slice)).unwrap(), found);
}

#[test]
fn ranges_are_written_as_for_a_map() {
    for engine in EngineKind::ALL {
        let World { fruit, .. } = world(engine);
        let (low, high) = (b"b".to_vec(), b"d".to_vec());
        assert_eq!(names(fruit.range(..)), ["apple", "banana", "cherry", "plum"]);
        assert_eq!(names(fruit.range("b".."d")), ["banana", "cherry"]);
        assert_eq!(names(fruit.range(&low..&high)), ["banana", "cherry"]);
        assert_eq!(names(fruit.range(low.clone()..high.clone())), ["banana", "cherry"]);
        assert_eq!(names(fruit.range(&low..)), ["banana", "cherry", "plum"]);
        assert_eq!(names(fruit.range(.."banana")), ["apple"]);
        assert_eq!(names(fruit.range(..="banana")), ["apple", "banana"]);
        assert_eq!(names(fruit.range("banana"..="cherry")), ["banana", "cherry"]);
        let behind = (Bound::Excluded("banana"), Bound::Unbounded);
        assert_eq!(names(fruit.range(behind)), ["cherry", "plum"]);
        assert_eq!(names(fruit.prefix("ch")), ["cherry"]);
        assert_eq!(names(fruit.prefix(String::from("b"))), ["banana"]);
        assert_eq!(fruit.keys(..).count(), 4);
        assert_eq!(
            fruit.keys("c"..).map(Result::unwrap).collect::<Vec<_>>(),
            [&b"cherry"[..], b"plum"]
        );
        let mut all = BTreeMap::new();
        for record in &fruit {
            let (key, value) = record.unwrap();
            all.insert(key, value);
        }
        assert_eq!(all.len(), 4);
    }
}

#[test]
fn cursors_turn_around_and_go_to_keys() {
    for engine in EngineKind::ALL {
        let World { fruit, .. } = world(engine);
        assert_eq!(names(fruit.iter().rev()), ["plum", "cherry", "banana", "apple"]);
        assert_eq!(names(fruit.iter().rev().limit(2)), ["plum", "cherry"]);
        assert_eq!(names(fruit.iter().limit(2).rev()), ["plum", "cherry"]);
        assert_eq!(names(fruit.range("b"..).rev().rev()), ["banana", "cherry", "plum"]);
        let last = fruit.keys(..).rev().limit(1).map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(last, [b"plum"]);
        let mut cursor = fruit.range("b".."p");
        assert_eq!(cursor.next().unwrap().unwrap().0, b"banana");
        cursor.seek("c");
        assert_eq!(cursor.next().unwrap().unwrap().0, b"cherry");
        cursor.seek("a");
        assert_eq!(names(&mut cursor), ["banana", "cherry"], "it stays in its range");
        cursor.seek("x");
        assert!(cursor.next().is_none());
        let mut cursor = fruit.iter().rev();
        cursor.seek("c");
        assert_eq!(names(&mut cursor), ["banana", "apple"]);
        cursor.seek("zebra");
        let (key, value) = cursor.next_ref().unwrap().unwrap();
        assert_eq!((key, value), (&b"plum"[..], &b"blue"[..]));
        assert_eq!(cursor.next_back_ref().unwrap().unwrap().0, b"apple");
        let mut keys = fruit.keys("b"..);
        keys.seek("c");
        assert_eq!(keys.next().unwrap().unwrap(), b"cherry");
        // What was read before does not come again.
        let mut cursor = fruit.iter();
        assert_eq!(cursor.next_back().unwrap().unwrap().0, b"plum");
        cursor.seek("cherry");
        assert_eq!(names(&mut cursor), ["cherry", "plum"]);
    }
}

#[test]
fn values_convert_and_compare() {
    let World { fruit, .. } = world(EngineKind::TreeLine);
    let value = fruit.get("apple").unwrap().unwrap();
    let text = String::from("red");
    assert!(value == "red" && value == text && value == *text);
    assert!(value == b"red" && value == *b"red" && value == b"red"[..] && value == b"red".to_vec());
    let same: [bool; 4] =
        ["red" == value, text == value, b"red" == value, b"red".to_vec() == value];
    assert_eq!(same, [true; 4]);
    assert_eq!(fruit.get("apple").unwrap(), Some(Value::from("red")));
    assert_eq!(String::from_utf8(value.clone().into_vec()).unwrap(), "red");
    assert_eq!(String::try_from(value.clone()).unwrap(), "red");
    assert_eq!(Vec::from(value.clone()), b"red");
    assert_eq!(<[u8; 3]>::try_from(&value).unwrap(), *b"red");
    assert!(<[u8; 8]>::try_from(value).is_err());
    fruit.insert("number", 7u64.to_be_bytes()).unwrap();
    let eight: [u8; 8] = fruit.get("number").unwrap().unwrap().try_into().unwrap();
    assert_eq!(u64::from_be_bytes(eight), 7);
}

#[test]
fn conditions_and_errors_pass_through_the_question_mark() {
    let World { fruit, .. } = world(EngineKind::TreeLine);
    let swap = |expected: &str| -> Result<()> {
        fruit.compare_and_swap("apple", Some(expected.as_bytes()), Some(b"green"))??;
        Ok(())
    };
    assert_eq!(swap("blue").unwrap_err().kind(), ErrorKind::Conflict);
    swap("red").unwrap();
    let refused = fruit.compare_and_swap("apple", None, Some(b"green")).unwrap();
    assert_eq!(refused, Err(CompareAndSwapError { current: Some(Value::from("green")) }));
    let as_io = || -> std::io::Result<()> {
        fruit.insert(vec![7; 5000], "")?;
        Ok(())
    };
    assert_eq!(as_io().unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    let missing = Db::open("/dev/null/no", Options::default()).unwrap_err();
    assert!(std::io::Error::from(missing).get_ref().unwrap().is::<Error>());
}

#[test]
fn batches_chain_and_are_used_again() {
    let World { db, fruit, .. } = world(EngineKind::TreeLine);
    let mut batch = Batch::new();
    batch.insert(&fruit, "fig", "purple").remove(&fruit, "plum").insert(&fruit, vec![1], [2]);
    assert_eq!(batch.len(), 3);
    db.write(&batch).unwrap();
    batch.clear();
    assert!(batch.is_empty());
    batch.insert(&fruit, "fig", "green");
    db.write(batch).unwrap();
    assert_eq!(fruit.get("fig").unwrap().unwrap(), "green");
    assert_eq!(fruit.get("plum").unwrap(), None);
    assert_eq!(fruit.engine(), EngineKind::TreeLine);
}
