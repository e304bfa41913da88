//! Scripts of anomalies, each with the transaction that must be refused.

use std::ops::ControlFlow;

use spinney_base::{ErrorKind, Result};

use super::{key, row, schema};
use crate::*;

fn heap_with(keys: &[u8]) -> std::sync::Arc<Heap> {
    let heap = Heap::new(Layout::Row, &[schema()], u64::MAX, None).unwrap();
    let mut session = heap.session();
    let mut transaction = session.begin().unwrap();
    keys.iter().for_each(|at| transaction.put(0, &key(*at), &row(*at)).unwrap());
    transaction.commit().unwrap();
    heap
}

fn read(transaction: &mut Transaction<'_>, at: u8) -> bool {
    transaction.get(0, &key(at), Columns(1), &mut Vec::new()).unwrap()
}

fn count(transaction: &mut Transaction<'_>, from: u8, to: u8) -> usize {
    let mut found = 0;
    let (from, to) = (key(from), key(to));
    let scan = Scan {
        table: 0,
        from: &from,
        to: Some(&to),
        reverse: false,
        limit: usize::MAX,
        columns: Columns(1),
    };
    transaction
        .scan(scan, &mut |_, _| {
            found += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn is_conflict<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn write_skew() {
    let heap = heap_with(&[1, 2]);
    let (mut a, mut b) = (heap.session(), heap.session());
    let (mut one, mut two) = (a.begin().unwrap(), b.begin().unwrap());
    for transaction in [&mut one, &mut two] {
        assert!(read(transaction, 1) && read(transaction, 2));
    }
    one.update(0, &key(1), Columns(1), &[0; 8]).unwrap();
    two.update(0, &key(2), Columns(1), &[0; 8]).unwrap();
    one.commit().unwrap();
    is_conflict(two.commit());
}

/// Both find a range empty, and each adds a key to it.
#[test]
fn phantoms() {
    for keys in [vec![], vec![1, 200]] {
        let heap = heap_with(&keys);
        let (mut a, mut b) = (heap.session(), heap.session());
        let (mut one, mut two) = (a.begin().unwrap(), b.begin().unwrap());
        for transaction in [&mut one, &mut two] {
            assert_eq!(count(transaction, 10, 20), 0);
        }
        let result = one.put(0, &key(11), &row(0)).and_then(|()| one.commit().map(drop));
        let other = two.put(0, &key(12), &row(0)).and_then(|()| two.commit().map(drop));
        assert_eq!(u8::from(result.is_ok()) + u8::from(other.is_ok()), 1);
    }
}

/// Each looks up a key that is absent, and adds the other's.
#[test]
fn absent_keys_have_readers() {
    let heap = heap_with(&[1]);
    let (mut a, mut b) = (heap.session(), heap.session());
    let (mut one, mut two) = (a.begin().unwrap(), b.begin().unwrap());
    assert!(!read(&mut one, 11) && !read(&mut two, 12));
    let result = one.put(0, &key(12), &row(0)).and_then(|()| one.commit().map(drop));
    let other = two.put(0, &key(11), &row(0)).and_then(|()| two.commit().map(drop));
    assert_eq!(u8::from(result.is_ok()) + u8::from(other.is_ok()), 1);
}

/// A scan that committed before the insert that has to come before it.
#[test]
fn a_gap_remembers_a_scan_that_has_ended() {
    let heap = heap_with(&[1, 100]);
    let (mut a, mut b, mut c) = (heap.session(), heap.session(), heap.session());
    let (mut inserter, mut updater) = (a.begin().unwrap(), b.begin().unwrap());
    assert!(read(&mut inserter, 1));
    updater.update(0, &key(1), Columns(1), &[9; 8]).unwrap();
    updater.commit().unwrap();
    let mut scanner = c.begin().unwrap();
    assert!(read(&mut scanner, 1));
    assert_eq!(count(&mut scanner, 50, 60), 0);
    scanner.commit().unwrap();
    let written = inserter.put(0, &key(55), &row(0)).and_then(|()| inserter.commit().map(drop));
    is_conflict(written);
}

/// The same, where the range was split between: both halves remember.
#[test]
fn split_gaps_remember_a_scan_that_has_ended() {
    let heap = heap_with(&[1, 100]);
    let (mut a, mut b, mut c) = (heap.session(), heap.session(), heap.session());
    let (mut inserter, mut updater) = (a.begin().unwrap(), b.begin().unwrap());
    assert!(read(&mut inserter, 1));
    updater.update(0, &key(1), Columns(1), &[9; 8]).unwrap();
    updater.commit().unwrap();
    let mut scanner = c.begin().unwrap();
    assert!(read(&mut scanner, 1));
    assert_eq!(count(&mut scanner, 55, 60), 0);
    scanner.commit().unwrap();
    for at in (2..55).chain(150..180) {
        let mut transaction = b.begin().unwrap();
        transaction.put(0, &key(at), &row(at)).unwrap();
        transaction.commit().unwrap();
    }
    let gaps = &heap.tables[0].gaps;
    let (left, right) = (gaps.find(&key(1)), gaps.find(&key(56)));
    assert!(!left.is_of(right.version().0), "the range was split");
    is_conflict(inserter.put(0, &key(56), &row(0)).and_then(|()| inserter.commit().map(drop)));
}

/// A removed key is read as absent, by one that a second insert has to come after.
#[test]
fn removed_keys_have_readers_also_after_they_left_the_index() {
    let heap = heap_with(&[1, 2]);
    let mut remover = heap.session();
    let mut transaction = remover.begin().unwrap();
    assert!(transaction.remove(0, &key(2)).unwrap());
    transaction.commit().unwrap();
    let (mut a, mut b, mut c) = (heap.session(), heap.session(), heap.session());
    let (mut inserter, mut updater) = (a.begin().unwrap(), b.begin().unwrap());
    assert!(read(&mut inserter, 1));
    updater.update(0, &key(1), Columns(1), &[9; 8]).unwrap();
    updater.commit().unwrap();
    let mut reader = c.begin().unwrap();
    assert!(read(&mut reader, 1) && !read(&mut reader, 2));
    reader.commit().unwrap();
    remover.collect();
    assert_eq!(heap.entries(0), 1, "its entry has left the index");
    is_conflict(inserter.put(0, &key(2), &row(0)).and_then(|()| inserter.commit().map(drop)));
}

/// Serial transactions never conflict, and a plain reader never blocks a writer.
#[test]
fn what_must_commit_commits() {
    let heap = heap_with(&[1, 2, 3]);
    let (mut a, mut b) = (heap.session(), heap.session());
    let mut idle = b.begin().unwrap();
    assert!((1..=3).all(|at| read(&mut idle, at)));
    for number in 0..100 {
        let mut transaction = a.begin().unwrap();
        assert_eq!(count(&mut transaction, 0, 9), 3);
        transaction.put(0, &key(number % 3 + 1), &row(number)).unwrap();
        transaction.remove(0, &key(number % 3 + 1)).unwrap();
        transaction.put(0, &key(number % 3 + 1), &row(number)).unwrap();
        transaction.put(0, &key(100 + number), &row(number)).unwrap();
        transaction.commit().unwrap();
    }
    assert!((1..=3).all(|at| read(&mut idle, at)));
    idle.commit().unwrap();
}

/// An insert beside what was read, in the same range, is no reason for a conflict; one inside is.
#[test]
fn ranges_are_exact() {
    let heap = heap_with(&[1, 50, 100]);
    for (inserted, conflicts) in [(49, true), (60, false), (101, false), (20, true)] {
        let (mut a, mut b) = (heap.session(), heap.session());
        let mut reader = a.begin().unwrap();
        assert_eq!(count(&mut reader, 5, 51), 1);
        // One that the visitor breaks off at its first record.
        let (from, to) = (key(61), key(255));
        let scan = Scan {
            table: 0,
            from: &from,
            to: Some(&to),
            reverse: false,
            limit: 1,
            columns: Columns(1),
        };
        reader.scan(scan, &mut |_, _| ControlFlow::Break(())).unwrap();
        assert!(!read(&mut reader, 59));
        reader.put(0, &key(200), &row(1)).unwrap();
        let mut inserter = b.begin().unwrap();
        inserter.put(0, &key(inserted), &row(1)).unwrap();
        inserter.commit().unwrap();
        assert_eq!(reader.commit().is_err(), conflicts, "{inserted}");
        let mut remover = b.begin().unwrap();
        for at in [inserted, 200] {
            remover.remove(0, &key(at)).unwrap();
        }
        remover.commit().unwrap();
        b.collect();
    }
}
