//! Random transactions on many threads, and the exact graph of what they did.
//!
//! Each write leaves a number of its own in two columns. A transaction that began at b must have
//! read of each key the newest version with a stamp of at most b. So the version that it read is
//! known, also where it found nothing, and with it all edges of the graph: from the writer, and to
//! the writer of the next version.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use spinney_base::runtime::SplitMix;
use spinney_base::shim::{Mutex, thread};
use spinney_base::{ErrorKind, Result};

use super::{key, row, schema};
use crate::*;

const KEYS: u8 = 24;
const THREADS: u64 = 4;
const EACH: usize = 6_000;

#[derive(Debug, Default)]
struct Done {
    begin: u64,
    cstamp: u64,
    reads: Vec<(u8, Option<u64>)>,
    writes: BTreeMap<u8, Option<u64>>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A row with a number in the first and the third column.
fn numbered(number: u64) -> Vec<u8> {
    let mut bytes = row(number as u8);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[11..19].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn number_of(values: &[u8]) -> u64 {
    let (one, two) = values.split_at(8);
    assert_eq!(one, two, "two columns of one version");
    u64::from_le_bytes(one.try_into().unwrap())
}

const NUMBERS: Columns = Columns(0b101);

fn body(transaction: &mut Transaction<'_>, done: &mut Done, random: &mut SplitMix) -> Result<()> {
    for _ in 0..4 {
        let at = random.below(usize::from(KEYS)) as u8;
        let number = NEXT.fetch_add(1, SeqCst);
        match random.below(10) {
            0..4 => {
                let mut out = Vec::new();
                let is_there = transaction.get(0, &key(at), NUMBERS, &mut out)?;
                if !done.writes.contains_key(&at) {
                    done.reads.push((at, is_there.then(|| number_of(&out))));
                }
            }
            4..6 => {
                let to = (at + 1 + random.below(6) as u8).min(KEYS);
                let (low, high) = (key(at), key(to));
                let reverse = random.below(2) == 0;
                let scan = Scan {
                    table: 0,
                    from: &low,
                    to: Some(&high),
                    reverse,
                    limit: usize::MAX,
                    columns: NUMBERS,
                };
                let mut found = BTreeMap::new();
                transaction.scan(scan, &mut |key, values| {
                    found.insert(key[7], number_of(values));
                    ControlFlow::Continue(())
                })?;
                let read = (at..to).filter(|at| !done.writes.contains_key(at));
                done.reads.extend(read.map(|at| (at, found.get(&at).copied())));
            }
            6 => {
                transaction.put(0, &key(at), &numbered(number))?;
                done.writes.insert(at, Some(number));
            }
            7 | 8 => {
                let values = [number.to_le_bytes(), number.to_le_bytes()].concat();
                if transaction.update(0, &key(at), NUMBERS, &values)? {
                    done.writes.insert(at, Some(number));
                } else if !done.writes.contains_key(&at) {
                    done.reads.push((at, None));
                }
            }
            _ => {
                if transaction.remove(0, &key(at))? {
                    done.writes.insert(at, None);
                } else if !done.writes.contains_key(&at) {
                    done.reads.push((at, None));
                }
            }
        }
    }
    Ok(())
}

fn run(heap: &Arc<Heap>, each: usize) -> Vec<Done> {
    let history = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let history = &history;
            scope.spawn(move || {
                let (mut session, mut random) = (heap.session(), SplitMix(seed));
                for _ in 0..each {
                    let mut transaction = session.begin().unwrap();
                    let mut done = Done { begin: transaction.begin_stamp(), ..Done::default() };
                    let ended = body(&mut transaction, &mut done, &mut random);
                    if random.below(3) == 0 {
                        thread::yield_now();
                    }
                    match ended.and_then(|()| transaction.commit()) {
                        Ok(cstamp) => history.lock().push(Done { cstamp, ..done }),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                    }
                }
            });
        }
    });
    history.into_inner()
}

/// Checks a whole history over keys that had no value at first.
fn check(history: &[Done]) -> std::result::Result<(), String> {
    type Versions = BTreeMap<u64, (Option<usize>, Option<u64>)>;
    let mut versions: Vec<Versions> =
        (0..KEYS).map(|_| BTreeMap::from([(0, (None, None))])).collect();
    for (name, done) in history.iter().enumerate() {
        for (key, number) in &done.writes {
            versions[usize::from(*key)].insert(done.cstamp, (Some(name), *number));
        }
    }
    let mut edges = vec![Vec::new(); history.len()];
    for (name, done) in history.iter().enumerate() {
        for (key, number) in &done.reads {
            let of = &versions[usize::from(*key)];
            let (stamp, (writer, expected)) = of.range(..=done.begin).next_back().unwrap();
            if expected != number {
                return Err(format!("{number:?} of key {key}, not {expected:?}, by {done:?}"));
            }
            edges[name].extend(of.range(stamp + 1..).next().and_then(|(_, (next, _))| *next));
            if let Some(writer) = writer {
                edges[*writer].push(name);
            }
        }
        for key in done.writes.keys() {
            let of = &versions[usize::from(*key)];
            let (stamp, (writer, _)) = of.range(..done.cstamp).next_back().unwrap();
            if *stamp > done.begin {
                return Err(format!("a second updater of key {key}: {done:?}"));
            }
            if let Some(writer) = writer {
                edges[*writer].push(name);
            }
        }
    }
    acyclic(&mut edges)
}

/// Takes off nodes without predecessors until none is left.
fn acyclic(edges: &mut [Vec<usize>]) -> std::result::Result<(), String> {
    let mut into = vec![0; edges.len()];
    for (from, to) in edges.iter_mut().enumerate() {
        to.retain(|to| *to != from);
        to.iter().for_each(|to| into[*to] += 1);
    }
    let mut free: Vec<usize> = (0..edges.len()).filter(|at| into[*at] == 0).collect();
    let mut taken = 0;
    while let Some(at) = free.pop() {
        taken += 1;
        for to in &edges[at] {
            into[*to] -= 1;
            if into[*to] == 0 {
                free.push(*to);
            }
        }
    }
    let left = edges.len() - taken;
    if left == 0 { Ok(()) } else { Err(format!("{left} transactions on or behind a cycle")) }
}

#[test]
fn histories_have_no_cycle() {
    for layout in Layout::ALL {
        let heap = Heap::new(layout, &[schema()], u64::MAX, None).unwrap();
        let history = run(&heap, EACH);
        check(&history).unwrap();
        let percent = 100 * history.len() / (THREADS as usize * EACH);
        assert!(percent > 20, "only {percent} % of the transactions committed");
        let mut session = heap.session();
        session.collect();
        session.collect();
        assert_eq!(heap.memory().versions_used, 0, "everything is collected");
        heap.tables[0].index.check().unwrap();
    }
}

/// The same where all transactions share one reader bit, for others have those of their own.
#[test]
fn histories_of_many_transactions_have_no_cycle() {
    let heap = Heap::new(Layout::Column, &[schema()], u64::MAX, None).unwrap();
    let mut sessions: Vec<Session> = (0..70).map(|_| heap.session()).collect();
    let idle: Vec<Transaction<'_>> =
        sessions.iter_mut().map(|session| session.begin().unwrap()).collect();
    let history = run(&heap, EACH / 4);
    check(&history).unwrap();
    let percent = 100 * history.len() / (THREADS as usize * (EACH / 4));
    assert!(percent > 10, "only {percent} % of the transactions committed");
    drop(idle);
    drop(sessions);
    // Nothing stays but removed records that one of the others has read.
    let mut session = heap.session();
    session.collect();
    session.collect();
    assert_eq!(heap.memory().versions_used, 0);
}

/// Without the certifier there are cycles, which the check finds; its other rules still hold.
#[test]
fn histories_without_a_certifier_have_cycles() {
    let heap = Heap::uncertified(Layout::Row, &[schema()]).unwrap();
    let found = check(&run(&heap, EACH)).unwrap_err();
    assert!(found.ends_with("cycle"), "{found}");
}

/// Keys are added and removed everywhere, so ranges are split and records leave the index all the
/// time.
#[test]
fn scans_beside_splits_see_one_moment() {
    const SPAN: usize = 4_000;
    let heap = Heap::new(Layout::Row, &[schema()], u64::MAX, None).unwrap();
    let at = |number: usize| (number as u64).to_be_bytes();
    thread::scope(|scope| {
        for seed in 0..3 {
            let heap = &heap;
            scope.spawn(move || {
                let (mut session, mut random) = (heap.session(), SplitMix(seed));
                let mut committed = 0;
                while committed < 8_000 {
                    // A pair of keys far apart is there or not.
                    let number = random.below(SPAN);
                    let mut transaction = session.begin().unwrap();
                    let mut pair = || {
                        let (one, two) = (at(number), at(number + SPAN));
                        if transaction.remove(0, &one)? {
                            assert!(transaction.remove(0, &two)?);
                        } else {
                            assert!(transaction.insert(0, &two, &row(1))?);
                            transaction.put(0, &one, &row(1))?;
                        }
                        Ok::<_, spinney_base::Error>(())
                    };
                    let ended = pair();
                    committed += usize::from(ended.and_then(|()| transaction.commit()).is_ok());
                }
            });
        }
        let (mut session, mut random) = (heap.session(), SplitMix(9));
        for _ in 0..300 {
            let mut transaction = session.begin().unwrap();
            let from = random.below(SPAN - 500);
            let mut counts = [0; 2];
            for half in 0..2 {
                let count = &mut counts[half];
                let (low, high) = (at(from + half * SPAN), at(from + half * SPAN + 500));
                let scan = Scan {
                    table: 0,
                    from: &low,
                    to: Some(&high),
                    reverse: half == 1,
                    limit: usize::MAX,
                    columns: Columns(1),
                };
                let scanned = transaction.scan(scan, &mut |_, _| {
                    *count += 1;
                    ControlFlow::Continue(())
                });
                if scanned.is_err() {
                    break;
                }
                if half == 1 {
                    assert_eq!(counts[1], counts[0], "of one moment");
                    break;
                }
            }
            let _ = transaction.commit();
        }
    });
}
