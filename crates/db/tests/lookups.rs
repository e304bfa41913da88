//! What lookups cost, counted: pages read, one by one and many together.
#![cfg(not(feature = "shuttle"))]

use spinney_base::Runtime;
use spinney_db::{Db, Keyspace, KeyspaceOptions, Options};
use spinney_io::Purpose;

const COUNT: u64 = 20_000;

fn key(number: u64) -> [u8; 8] {
    (number << 40).to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; 50]
}

/// Keys that lie on one page are answered by one read of it, a key asked for twice too; what was
/// read is not read again.
#[test]
fn many_lookups_read_each_page_once() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Options::default().memory(4 << 20);
    {
        let db = Db::open(directory.path(), options()).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
        keyspace.bulk_load((0..COUNT).map(|number| (key(number), value(number)))).unwrap();
        db.close().unwrap();
    }
    let db = Db::open(directory.path(), options()).unwrap();
    let keyspace = db.existing_keyspace("k").unwrap();
    let reads = || db.stats().io.by_purpose[Purpose::LOOKUP.index()];
    let ask = |numbers: &[u64]| {
        let before = reads();
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        for (number, found) in numbers.iter().zip(keyspace.multi_get(&keys).unwrap()) {
            let expected = (*number < COUNT).then(|| value(*number));
            assert_eq!(found.as_deref(), expected.as_deref(), "key {number}");
        }
        let after = reads();
        (after.read_bytes - before.read_bytes) / 4096
    };
    let near: Vec<u64> = (5000..5020).chain(5000..5020).collect();
    let pages = ask(&near);
    assert!((1..=2).contains(&pages), "{pages} pages for 20 neighbours");
    assert_eq!(ask(&near), 0);
    let far: Vec<u64> = (0..64).map(|number| 150 + number * 300).chain([COUNT + 5]).collect();
    let pages = ask(&far);
    assert!((64..=65).contains(&pages), "{pages} pages for 65 keys far apart");
    assert_eq!(ask(&far), 0);
    let stats = keyspace.stats();
    assert_eq!(stats.cache_hits + stats.cache_misses, 2 * 40 + 2 * 65);
}

/// Keys of one page under a page of newer records: each is answered by the newest that has it,
/// whichever of them is asked for first.
#[test]
fn many_lookups_see_staged_pages() {
    let directory = tempfile::tempdir().unwrap();
    // Nothing is done in the background, which would merge what is staged, and every lookup goes to
    // pages.
    let open = || {
        let options = Options::default().memory(4 << 20).runtime(Runtime::stepped(1));
        Db::open(directory.path(), options).unwrap()
    };
    let options = || {
        let choices = [("staging", "on"), ("record-cache", "off"), ("page-cache", "off")];
        let set = |options: KeyspaceOptions, (name, value)| options.set(name, value).unwrap();
        choices.into_iter().fold(KeyspaceOptions::default(), set)
    };
    {
        let db = open();
        let keyspace = db.keyspace("k", options()).unwrap();
        keyspace.bulk_load((0..COUNT).map(|number| (key(number), value(number)))).unwrap();
        // Every other one of some neighbours again, as many as a page of their own is made for.
        for number in (5000..5030).step_by(2) {
            keyspace.insert(key(number), value(number + 1)).unwrap();
        }
        db.close().unwrap();
    }
    let db = open();
    let keyspace = db.keyspace("k", options()).unwrap();
    let staged = |number: u64| (5000..5030).contains(&number) && number.is_multiple_of(2);
    let reads = || db.stats().io.by_purpose[Purpose::LOOKUP.index()].read_bytes / 4096;
    for order in [[5003, 5001, 5000, 5002], [5000, 5001, 5002, 5003], [5002, 5003, 5000, 5001]] {
        let before = reads();
        let keys: Vec<_> = order.iter().chain(&[5028, 5029, 5031]).map(|n| (*n, key(*n))).collect();
        let asked: Vec<&[u8]> = keys.iter().map(|(_, key)| &key[..]).collect();
        for ((number, _), found) in keys.iter().zip(keyspace.multi_get(&asked).unwrap()) {
            let expected = value(number + u64::from(staged(*number)));
            assert_eq!(found.as_deref(), Some(&expected[..]), "key {number}");
        }
        assert_eq!(reads() - before, 7 * 2, "was nothing staged?");
        for (number, key) in &keys {
            let (before, expected) = (reads(), value(number + u64::from(staged(*number))));
            assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&expected[..]));
            assert_eq!(reads() - before, if staged(*number) { 1 } else { 2 }, "key {number}");
        }
    }
}

/// Records of 1,000 bytes, one key in four; others come between them.
const LONG_COUNT: u64 = 3000;

fn old(number: u64) -> [u8; 8] {
    key(4 * number)
}

fn long(number: u64) -> Vec<u8> {
    vec![number as u8; 1000]
}

/// Every sixth from `from` on.
fn some(from: u64) -> impl Iterator<Item = u64> {
    (from..LONG_COUNT).step_by(6)
}

/// Nothing is done in the background, which would merge what is staged.
fn open_stepped(directory: &std::path::Path) -> Db {
    let options = Options::default().memory(2 << 20).runtime(Runtime::stepped(1));
    Db::open(directory, options).unwrap()
}

/// Loads long records, writes new ones back, and then, when it is known that they are new, others,
/// which are staged without being asked for.
fn stage_long_records(db: &Db, keyspace: &Keyspace) {
    keyspace.bulk_load((0..LONG_COUNT).map(|number| (old(number), long(number)))).unwrap();
    for (from, offset) in [(0, 1), (3, 2)] {
        for number in some(from) {
            keyspace.insert(key(4 * number + offset), long(number + offset)).unwrap();
        }
        db.checkpoint().unwrap();
    }
    assert!(keyspace.stats().staged_pages > 50, "{:?}", keyspace.stats());
}

/// Lookups of long records read one page though others are staged, and two only where nobody knows
/// what is staged, as after an opening.
#[test]
fn lookups_read_no_staged_page_in_vain() {
    let directory = tempfile::tempdir().unwrap();
    let options = || KeyspaceOptions::default().set("page-cache", "off").unwrap();
    let db = open_stepped(directory.path());
    let keyspace = db.keyspace("k", options()).unwrap();
    stage_long_records(&db, &keyspace);
    let reads = |db: &Db| db.stats().io.by_purpose[Purpose::LOOKUP.index()].read_bytes / 4096;
    let pages_of_all = |db: &Db, offset: u64, from: u64| {
        let keyspace = db.keyspace("k", options()).unwrap();
        // The record cache has forgotten those that are asked for.
        for number in (0..LONG_COUNT).filter(|number| !number.is_multiple_of(3)) {
            keyspace.get(old(number)).unwrap();
        }
        let before = reads(db);
        for number in some(from) {
            let found = keyspace.get(key(4 * number + offset)).unwrap();
            assert_eq!(found.as_deref(), Some(&long(number + offset)[..]), "{number}");
        }
        reads(db) - before
    };
    assert_eq!(pages_of_all(&db, 2, 3), 500, "of staged records");
    let others = pages_of_all(&db, 0, 3);
    assert!((500..=505).contains(&others), "{others} pages beside the staged ones");
    let overwritten = key(4 * 3 + 2);
    keyspace.insert(overwritten, b"newer").unwrap();
    db.checkpoint().unwrap();
    assert_eq!(keyspace.get(overwritten).unwrap().as_deref(), Some(&b"newer"[..]));
    db.verify().unwrap();
    drop(keyspace);
    db.close().unwrap();
    let db = open_stepped(directory.path());
    let keyspace = db.keyspace("k", options()).unwrap();
    assert!(keyspace.stats().staged_pages > 50);
    // More pages than keys, and than there is room for at once.
    let keys: Vec<_> = (0..LONG_COUNT).step_by(2).map(old).collect();
    let asked: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let found = keyspace.multi_get(&asked).unwrap();
    let lost = found.iter().filter(|value| value.is_none()).count();
    assert_eq!(lost, 0, "of {}", keys.len());
    let others = pages_of_all(&db, 0, 9);
    assert!(others > 550, "{others} pages where nobody knows what is staged");
}
