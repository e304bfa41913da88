//! Tests of tables as a whole: against a model, by the graph of histories, by anomalies, and of what
//! is collected.

mod anomalies;
mod history;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;

use crate::*;

/// Widths of the columns of tests: numbers, a text that is no multiple of words, and a long one.
const WIDTHS: [usize; 4] = [8, 3, 8, 100];

pub(super) fn schema() -> Schema {
    Schema::new(24, &WIDTHS).unwrap()
}

/// A row of which each byte tells the number.
pub(super) fn row(number: u8) -> Vec<u8> {
    (0..WIDTHS.iter().sum::<usize>()).map(|at| number.wrapping_add(at as u8)).collect()
}

/// A key of 8 bytes, or one of 20 that does not fit into an entry.
pub(super) fn key(number: u8) -> Vec<u8> {
    let bytes = u64::from(number).to_be_bytes().to_vec();
    if number.is_multiple_of(3) { [&bytes[..], b"a long ending"].concat() } else { bytes }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Insert(u8, u8),
    Update(u8, u64, u8),
    Remove(u8),
    Get(u8, u64),
    Scan { from: u8, to: Option<u8>, reverse: bool, limit: usize, columns: u64 },
    Commit,
    Rollback,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let scan = (any::<u8>(), any::<Option<u8>>(), any::<bool>(), 1..300_usize, 0..16_u64);
    let step = prop_oneof![
        8 => (any::<u8>(), any::<u8>()).prop_map(|(key, row)| Step::Put(key, row)),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(key, row)| Step::Insert(key, row)),
        6 => (any::<u8>(), 0..16_u64, any::<u8>()).prop_map(|(key, set, row)| Step::Update(key, set, row)),
        4 => any::<u8>().prop_map(Step::Remove),
        4 => (any::<u8>(), 0..16_u64).prop_map(|(key, set)| Step::Get(key, set)),
        2 => scan.prop_map(|(from, to, reverse, limit, columns)| {
            Step::Scan { from, to, reverse, limit, columns }
        }),
        4 => Just(Step::Commit),
        1 => Just(Step::Rollback),
    ];
    proptest::collection::vec(step, 1..400)
}

/// The values of some columns of a row.
fn part(row: &[u8], columns: Columns) -> Vec<u8> {
    let (mut at, mut out) = (0, Vec::new());
    for (column, width) in WIDTHS.iter().enumerate() {
        if columns.has(column) {
            out.extend_from_slice(&row[at..at + width]);
        }
        at += width;
    }
    out
}

fn patch(target: &mut [u8], columns: Columns, from: &[u8]) {
    let mut at = 0;
    for (column, width) in WIDTHS.iter().enumerate() {
        if columns.has(column) {
            target[at..at + width].copy_from_slice(&from[at..at + width]);
        }
        at += width;
    }
}

fn step(transaction: &mut Transaction<'_>, model: &mut Model, step: &Step) {
    let mut out = Vec::new();
    match step {
        Step::Put(at, new) => {
            transaction.put(0, &key(*at), &row(*new)).unwrap();
            model.insert(key(*at), row(*new));
        }
        Step::Insert(at, new) => {
            let is_new = transaction.insert(0, &key(*at), &row(*new)).unwrap();
            assert_eq!(is_new, !model.contains_key(&key(*at)));
            model.entry(key(*at)).or_insert_with(|| row(*new));
        }
        Step::Update(at, columns, new) => {
            let columns = Columns(*columns);
            let values = part(&row(*new), columns);
            let was_there = transaction.update(0, &key(*at), columns, &values).unwrap();
            let target = model.get_mut(&key(*at));
            assert_eq!(was_there, target.is_some());
            if let Some(target) = target {
                patch(target, columns, &row(*new));
            }
        }
        Step::Remove(at) => {
            let was_there = transaction.remove(0, &key(*at)).unwrap();
            assert_eq!(was_there, model.remove(&key(*at)).is_some());
        }
        Step::Get(at, columns) => {
            let columns = Columns(*columns);
            let is_there = transaction.get(0, &key(*at), columns, &mut out).unwrap();
            let expected = model.get(&key(*at)).map(|row| part(row, columns));
            assert_eq!(is_there.then_some(out), expected);
        }
        Step::Scan { from, to, reverse, limit, columns } => {
            let (from, to) = (key(*from), to.map(key));
            let columns = Columns(*columns);
            let scan = Scan {
                table: 0,
                from: &from,
                to: to.as_deref(),
                reverse: *reverse,
                limit: *limit,
                columns,
            };
            let mut found = Vec::new();
            transaction
                .scan(scan, &mut |key, row| {
                    found.push((key.to_vec(), row.to_vec()));
                    ControlFlow::Continue(())
                })
                .unwrap();
            let inside = model
                .iter()
                .filter(|(key, _)| **key >= from && to.as_ref().is_none_or(|to| **key < *to));
            let mut all: Vec<_> =
                inside.map(|(key, row)| (key.clone(), part(row, columns))).collect();
            if *reverse {
                all.reverse();
            }
            all.truncate(*limit);
            assert_eq!(found, all);
        }
        Step::Commit | Step::Rollback => unreachable!("ends the transaction"),
    }
}

fn run(layout: Layout, program: &[Step]) {
    let heap = Heap::new(layout, &[schema()], u64::MAX, None).unwrap();
    let (mut session, mut other) = (heap.session(), heap.session());
    let mut committed = Model::new();
    let mut at = 0;
    // A reader of the state some transactions ago.
    let (mut old, mut seen) = (other.begin().unwrap(), committed.clone());
    let mut ended = 0;
    while at < program.len() {
        let (mut transaction, mut model) = (session.begin().unwrap(), committed.clone());
        let is_committed = loop {
            match program.get(at) {
                Some(Step::Rollback) => break false,
                Some(Step::Commit) | None => break true,
                Some(one) => step(&mut transaction, &mut model, one),
            }
            at += 1;
        };
        at += 1;
        if is_committed {
            transaction.commit().unwrap();
            committed = model;
        } else {
            transaction.rollback();
        }
        ended += 1;
        let scan = |limit| Step::Scan { from: 0, to: None, reverse: false, limit, columns: 15 };
        if ended % 4 == 0 {
            step(&mut old, &mut seen, &scan(1000));
            drop(old);
            (old, seen) = (other.begin().unwrap(), committed.clone());
        }
    }
    drop(old);
    let mut transaction = session.begin().unwrap();
    let all = Step::Scan { from: 0, to: None, reverse: true, limit: 1000, columns: 15 };
    step(&mut transaction, &mut committed, &all);
    drop(transaction);
    session.collect();
    session.collect();
    assert_eq!((heap.entries(0), heap.memory().versions_used), (committed.len(), 0));
    heap.tables[0].index.check().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_heap_is_an_ordered_map_in_each_layout(program in steps()) {
        for layout in Layout::ALL {
            run(layout, &program);
        }
    }
}

/// Updates, and records that come and go, take no more memory after a while.
#[test]
fn memory_is_flat_under_updates() {
    let heap = Heap::new(Layout::RowColumn, &[schema()], u64::MAX, None).unwrap();
    let mut session = heap.session();
    let mut round = |number: u8| {
        for at in 0..=255 {
            let mut transaction = session.begin().unwrap();
            transaction.put(0, &key(at), &row(number)).unwrap();
            transaction.update(0, &key(at.wrapping_add(1)), Columns(8), &[number; 100]).unwrap();
            if at.is_multiple_of(4) {
                transaction.remove(0, &key(at)).unwrap();
            }
            transaction.commit().unwrap();
        }
    };
    (0..20).for_each(&mut round);
    let before = heap.memory();
    (20..200).for_each(&mut round);
    let after = heap.memory();
    assert!(after.versions <= before.versions, "{before:?}, then {after:?}");
    // Ranges are split, and not joined.
    assert!(after.tables <= before.tables + (64 << 10), "{before:?}, then {after:?}");
    session.collect();
    session.collect();
    assert_eq!(heap.memory().versions_used, 0);
}

/// A reader holds what it sees, and only that, however long it stays.
#[test]
fn old_readers_see_their_moment() {
    let heap = Heap::new(Layout::Column, &[schema()], u64::MAX, None).unwrap();
    let (mut session, mut other) = (heap.session(), heap.session());
    let put = |session: &mut Session, number| {
        let mut transaction = session.begin().unwrap();
        transaction.put(0, &key(1), &row(number)).unwrap();
        transaction.commit().unwrap()
    };
    put(&mut session, 0);
    let mut reader = other.begin().unwrap();
    for number in 1..100 {
        put(&mut session, number);
    }
    let mut out = Vec::new();
    assert!(reader.get(0, &key(1), Columns(0b1010), &mut out).unwrap());
    assert_eq!(out, part(&row(0), Columns(0b1010)));
    assert!(heap.memory().versions_used > 0);
    // It read what was overwritten, so it may not write what comes after.
    let written = reader.update(0, &key(1), Columns(1), &[0; 8]);
    assert_eq!(written.unwrap_err().kind(), spinney_base::ErrorKind::Conflict);
    drop(reader);
    session.collect();
    assert_eq!(heap.memory().versions_used, 0);
}

/// What is loaded is found, by key and in order; memory that is not there is refused.
#[test]
fn loads_are_found_and_limits_hold() {
    let heap = Heap::new(Layout::Row, &[schema()], 1 << 20, None).unwrap();
    let mut next = 0;
    let loaded = heap.load(0, |into, values| {
        into.extend_from_slice(&key((next * 37 % 256) as u8));
        values.extend_from_slice(&row((next * 37 % 256) as u8));
        next += 1;
        Ok(next <= 256)
    });
    assert_eq!(loaded.unwrap(), 256);
    let mut session = heap.session();
    let mut transaction = session.begin().unwrap();
    let mut model: Model = (0..=255).map(|number| (key(number), row(number))).collect();
    for limit in [1, 31, 32, 33, 200, 300] {
        for reverse in [false, true] {
            let scan = Step::Scan { from: 7, to: Some(250), reverse, limit, columns: 5 };
            step(&mut transaction, &mut model, &scan);
        }
    }
    drop(transaction);
    let mut fill = || {
        for number in 0..100_000_u64 {
            let mut transaction = session.begin()?;
            transaction.put(0, &number.to_le_bytes(), &row(0))?;
            transaction.commit()?;
        }
        Ok::<_, spinney_base::Error>(())
    };
    assert_eq!(fill().unwrap_err().kind(), spinney_base::ErrorKind::Full);
}

/// Copies are whole, though records are overwritten while they are copied.
#[test]
fn copies_are_of_one_version() {
    const WIDTHS: [usize; 3] = [10_000, 12_000, 10_000];
    let heap = Heap::new(Layout::RowColumn, &[Schema::new(8, &WIDTHS).unwrap()], u64::MAX, None);
    let (heap, row) = (heap.unwrap(), |byte: u8| vec![byte; WIDTHS.iter().sum()]);
    let put = |session: &mut Session, byte| {
        session
            .transact(|transaction| transaction.put(0, b"a", &row(byte)).map(|()| true))
            .unwrap();
    };
    put(&mut heap.session(), 0);
    spinney_base::shim::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = heap.session();
            (0..3_000_u32).for_each(|byte| put(&mut session, byte as u8));
        });
        let (mut session, mut out) = (heap.session(), Vec::new());
        for _ in 0..3_000 {
            let read = session.transact(|transaction| {
                out.clear();
                assert!(transaction.get(0, b"a", Columns(0b111), &mut out)?);
                assert!(out.iter().all(|byte| *byte == out[0]), "of one version");
                Ok(true)
            });
            read.unwrap();
        }
    });
}

/// An entry that is not in the index yet is not collected by a session that knew its number before.
#[test]
fn older_versions_are_counted() {
    for layout in Layout::ALL {
        let heap = Heap::new(layout, &[schema()], u64::MAX, None).unwrap();
        let (mut reader, mut writer) = (heap.session(), heap.session());
        let mut numbers = 0..5;
        let load = heap.load(0, |next, values| {
            let Some(number) = numbers.next() else { return Ok(false) };
            next.extend_from_slice(&key(number));
            values.extend_from_slice(&row(0));
            Ok(true)
        });
        assert_eq!(load.unwrap(), 5);
        let mut put = |number: u8, value: u8| {
            let mut transaction = writer.begin().unwrap();
            transaction.put(0, &key(number), &row(value)).unwrap();
            transaction.commit().unwrap();
        };
        let transaction = reader.begin().unwrap();
        // Nothing that ended is collected while it runs.
        (1..4).for_each(|value| put(1, value));
        put(3, 1);
        let chains = Chains { records: 5, with_older: 2, older: 4 };
        assert_eq!(heap.chains(0), chains, "{layout:?}");
        drop(transaction);
    }
}

#[test]
fn entries_are_not_collected_before_they_are_linked() {
    let heap = Heap::new(Layout::Row, &[schema()], u64::MAX, None).unwrap();
    let (mut one, mut other) = (heap.session(), heap.session());
    let version = spinney_ssn::Version::absent(0);
    let number = one.local.new_record(&heap, 0, &key(1), version).unwrap();
    other.local.ended.push_back(crate::collect::Ended::new(0, number, 0));
    other.collect();
    assert_eq!(heap.tables[0].store().head(number).version(), Some(version));
}
