//! T3: the fence between the locks of a writer and its looks at others, under `loom`, which tries every
//! outcome that the memory model allows. No processor of today shows most of them, and `shuttle` knows only
//! sequential consistency. Run with `cargo test -p spinney-sync --features loom --test fence`.
#![cfg(feature = "loom")]

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use spinney_base::Lsn;
use spinney_sync::{LockTable, Stamp};

/// Hashes of keys in different stripes of a table of two.
const FIRST: u64 = 0;
const SECOND: u64 = u64::MAX;

/// Writes one key if what was read of another is still so.
fn commit(table: &LockTable, own: u64, other: u64, noted: Stamp, lsn: u64) -> bool {
    let guards = table.lock(own);
    guards.before_looking_at_others();
    let is_still = guards.is_still(other, noted);
    if is_still {
        guards.unlock(Stamp::logged(Lsn(lsn)));
    } else {
        guards.unlock_unchanged();
    }
    is_still
}

/// Two transactions that write what the other has read: not both commit (write skew).
#[test]
fn t03_two_writers_that_read_each_other() {
    loom::model(|| {
        let table = Arc::new(LockTable::with_stripes(2));
        let [first, second] = [FIRST, SECOND].map(|key| table.stripe(key).stamp());
        let other = table.clone();
        let thread = loom::thread::spawn(move || commit(&other, FIRST, SECOND, second, 1));
        let committed = commit(&table, SECOND, FIRST, first, 2);
        assert!(!(thread.join().unwrap() && committed), "write skew");
    });
}

/// The same with ranges: each touches the guard of the other, and then asks whether its own was touched.
#[test]
fn t03_two_writers_into_each_others_ranges() {
    fn commit(table: &LockTable, own: u64, theirs: &AtomicBool, mine: &AtomicBool) -> bool {
        let guards = table.lock(own);
        theirs.store(true, SeqCst);
        guards.before_looking_at_others();
        let is_still = !mine.load(SeqCst);
        guards.unlock_unchanged();
        is_still
    }
    loom::model(|| {
        let table = Arc::new(LockTable::with_stripes(2));
        let touched = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let (other, guards) = (table.clone(), touched.clone());
        let thread = loom::thread::spawn(move || commit(&other, FIRST, &guards[1], &guards[0]));
        let committed = commit(&table, SECOND, &touched[0], &touched[1]);
        assert!(!(thread.join().unwrap() && committed), "each wrote into what the other has read");
    });
}
