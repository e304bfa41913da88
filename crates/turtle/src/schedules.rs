//! What writers, readers and the pipeline owe each other, under schedules that may stop a thread at
//! any lock or atomic: `cargo test -p spinney-turtle --features shuttle --lib schedules`.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use shuttle::thread::spawn;
use spinney_base::schedules::check;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::{KeyspaceId, Lsn, MemoryBudget, Poison, Runtime, ValueRef};
use spinney_engine::{
    Chunk, Direction, Engine, EngineContext, Found, Maintain, Resident, ScanRequest,
    SnapshotNumber, Write,
};
use spinney_io::sim::SimDisk;
use spinney_wal::{Log, LogOptions};

use crate::Turtle;
use crate::gate::Gate;

/// A keyspace without a log of its own records, so that schedules are of the engine's steps alone.
fn turtle() -> Arc<Turtle> {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let log =
        LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };
    let log = Log::create(&*disk.at("/db"), "wal", &log).unwrap();
    let context = EngineContext {
        directory: disk.at("/db"),
        name: "keyspace".into(),
        keyspace: KeyspaceId(1),
        logged: false,
        double_write: false,
        log,
        runtime: Runtime::threads(),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(1 << 20).open("keyspace", 1 << 20),
        certifier: spinney_engine::Certifier::above(0),
    };
    let turtle = Turtle::create(context, Lsn::ZERO).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
    turtle.end_structure_replay().unwrap();
    turtle.end_replay().unwrap();
    Arc::new(turtle)
}

fn hash(key: &[u8]) -> u64 {
    spinney_sync::hash_key(KeyspaceId(1), key)
}

fn write<'a>(key: &'a [u8], value: &'a [u8]) -> Write<'a> {
    Write { key, hash: hash(key), value: Some(ValueRef::inline(value)) }
}

/// Writes the same value at some keys, as one batch.
fn put(turtle: &Turtle, keys: &[&[u8]], value: u8) {
    turtle.enter().unwrap();
    let prepare = |key: &&[u8]| turtle.prepare(&write(key, &[value])).unwrap();
    let prepared: Vec<_> = keys.iter().map(prepare).collect();
    for (key, prepared) in keys.iter().zip(prepared) {
        turtle.apply(&write(key, &[value]), prepared, Lsn(1), SnapshotNumber::NONE);
    }
    turtle.leave();
}

fn get(turtle: &Turtle, key: &[u8]) -> u8 {
    let mut out = Vec::new();
    assert_eq!(turtle.get(key, hash(key), &mut out).unwrap(), Found::Inline);
    out[0]
}

/// P1: no thread is between entering and leaving while the gate is closed, and none waits forever.
#[test]
fn p01_the_gate() {
    check(3000, || {
        let state = Arc::new((Gate::default(), AtomicU64::new(0)));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let state = state.clone();
                spawn(move || {
                    for _ in 0..3 {
                        state.0.enter();
                        state.1.fetch_add(1, SeqCst);
                        state.1.fetch_sub(1, SeqCst);
                        state.0.leave();
                    }
                })
            })
            .collect();
        let closers: Vec<_> = [true, false]
            .map(|waits| {
                let state = state.clone();
                spawn(move || {
                    for _ in 0..2 {
                        let look = || assert_eq!(state.1.load(SeqCst), 0);
                        if waits { state.0.closed(look) } else { _ = state.0.try_closed(look) }
                    }
                })
            })
            .into();
        writers.into_iter().chain(closers).for_each(|thread| thread.join().unwrap());
    });
}

/// What was written is never gone nor old again, whatever is sealed, applied, written and published
/// meanwhile.
#[test]
fn reads_go_forwards_beside_the_pipeline() {
    check(400, || {
        let turtle = turtle();
        put(&turtle, &[b"a", b"b"], 0);
        let writer = turtle.clone();
        let writer = spawn(move || (1..6).for_each(|value| put(&writer, &[b"a"], value)));
        let pipeline = turtle.clone();
        let pipeline = spawn(move || {
            for _ in 0..3 {
                pipeline.checkpoint(Lsn::ZERO).unwrap();
                pipeline.background().unwrap();
            }
        });
        let mut last = 0;
        for _ in 0..6 {
            let now = get(&turtle, b"a");
            assert!(now >= last, "{now} after {last}");
            last = now;
            assert_eq!(get(&turtle, b"b"), 0);
        }
        writer.join().unwrap();
        pipeline.join().unwrap();
        assert_eq!(get(&turtle, b"a"), 5);
        turtle.verify(&mut |_| Ok(())).unwrap();
    });
}

/// P25: a batch is in a snapshot whole or not at all, and what is in it stays.
#[test]
fn p25_snapshots_hold_whole_batches() {
    check(400, || {
        let turtle = turtle();
        put(&turtle, &[b"a", b"b"], 0);
        let writer = turtle.clone();
        let writer = spawn(move || (1..5).for_each(|value| put(&writer, &[b"a", b"b"], value)));
        let pipeline = turtle.clone();
        let pipeline = spawn(move || {
            pipeline.checkpoint(Lsn::ZERO).unwrap();
            pipeline.checkpoint(Lsn::ZERO).unwrap();
        });
        let mut kept: Vec<(_, u8)> = Vec::new();
        for _ in 0..3 {
            let snapshot = turtle.close_gate(None).unwrap().snapshot().unwrap();
            let get = |key: &[u8]| {
                let mut out = Vec::new();
                assert_eq!(snapshot.get(key, hash(key), &mut out).unwrap(), Found::Inline);
                out[0]
            };
            let (a, b) = (get(b"a"), get(b"b"));
            assert_eq!(a, b, "half a batch");
            kept.push((snapshot, a));
        }
        writer.join().unwrap();
        pipeline.join().unwrap();
        for (snapshot, then) in kept {
            let mut out = Vec::new();
            snapshot.get(b"a", hash(b"a"), &mut out).unwrap();
            assert_eq!(out, [then]);
        }
        turtle.checkpoint(Lsn::ZERO).unwrap();
        turtle.verify(&mut |_| Ok(())).unwrap();
    });
}

/// P4: what is known of a key without I/O is what it has, for the holder of the key's stripe.
#[test]
fn p04_residents_are_never_old() {
    check(1000, || {
        let turtle = turtle();
        put(&turtle, &[b"a"], 0);
        turtle.checkpoint(Lsn::ZERO).unwrap();
        // Stands for the stripe.
        let stripe = Arc::new((spinney_base::shim::Mutex::new(0), AtomicBool::new(false)));
        let (writer, locked) = (turtle.clone(), stripe.clone());
        let writer = spawn(move || {
            for value in 1..3 {
                let mut now = locked.0.lock();
                put(&writer, &[b"a"], value);
                *now = value;
                drop(now);
                writer.checkpoint(Lsn::ZERO).unwrap();
            }
            locked.1.store(true, SeqCst);
        });
        loop {
            let over = stripe.1.load(SeqCst);
            turtle.make_resident(b"a", hash(b"a")).unwrap();
            let now = stripe.0.lock();
            let mut out = Vec::new();
            if turtle.get_resident(b"a", hash(b"a"), &mut out) == Resident::Present {
                assert_eq!(out, [*now]);
            }
            drop(now);
            if over {
                break;
            }
        }
        writer.join().unwrap();
    });
}

/// P4: a write ends what is kept of its key, even when the write itself has left memory again.
#[test]
fn p04_a_write_ends_what_is_kept() {
    check(1, || {
        let turtle = turtle();
        put(&turtle, &[b"a"], 0);
        turtle.checkpoint(Lsn::ZERO).unwrap();
        let kept = || turtle.get_resident(b"a", hash(b"a"), &mut Vec::new());
        assert_eq!(kept(), Resident::Unknown, "only a page has it");
        turtle.make_resident(b"a", hash(b"a")).unwrap();
        assert_eq!(kept(), Resident::Present);
        put(&turtle, &[b"a"], 1);
        turtle.checkpoint(Lsn::ZERO).unwrap();
        assert_eq!(kept(), Resident::Unknown, "the value of before");
    });
}

/// P3: a record that is kept is the newest, whatever is written and brought to disk while lookups
/// read it.
#[test]
fn p03_records_are_never_old() {
    check(1500, || {
        let turtle = turtle();
        put(&turtle, &[b"a", b"b"], 0);
        turtle.checkpoint(Lsn::ZERO).unwrap();
        turtle.begin_records();
        let writer = turtle.clone();
        let writer = spawn(move || {
            for value in 1..4 {
                put(&writer, &[b"a"], value);
                // So that only leaves have it, and what is kept.
                writer.checkpoint(Lsn::ZERO).unwrap();
            }
        });
        let others = turtle.clone();
        let others = spawn(move || (0..3).for_each(|_| assert_eq!(get(&others, b"b"), 0)));
        let mut last = 0;
        for round in 0..4 {
            let now = if round % 2 == 0 {
                get(&turtle, b"a")
            } else {
                let values = turtle.get_many(&[(b"a", hash(b"a")), (b"b", hash(b"b"))]).unwrap();
                values[0].as_ref().unwrap().bytes[0]
            };
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        writer.join().unwrap();
        others.join().unwrap();
        assert_eq!(get(&turtle, b"a"), 3);
        assert_eq!(get(&turtle, b"a"), 3, "what the lookup before has kept");
    });
}

/// The same where one lookup meets one put.
#[test]
fn p03_a_put_overtakes_a_lookup() {
    for many in [false, true] {
        check(1500, move || {
            let turtle = turtle();
            put(&turtle, &[b"a"], 0);
            turtle.checkpoint(Lsn::ZERO).unwrap();
            turtle.begin_records();
            let reader = turtle.clone();
            let reader = spawn(move || {
                if many {
                    reader.get_many(&[(b"a", hash(b"a"))]).unwrap();
                } else {
                    get(&reader, b"a");
                }
            });
            put(&turtle, &[b"a"], 1);
            reader.join().unwrap();
            turtle.checkpoint(Lsn::ZERO).unwrap();
            assert_eq!(get(&turtle, b"a"), 1);
        });
    }
}

/// A thread that inserted a record finds it or one before it, whatever other readers find
/// meanwhile.
#[test]
fn d1_first_reads_miss_no_insert() {
    check(1500, || {
        let turtle = turtle();
        put(&turtle, &[b"z"], 0);
        turtle.passed_much();
        let reader = turtle.clone();
        let reader = spawn(move || (0..3).for_each(|_| _ = first(&reader, b"a")));
        for key in [b"p", b"k", b"g"] {
            put(&turtle, &[key], 0);
            assert_eq!(first(&turtle, b"b"), key);
        }
        reader.join().unwrap();
        assert_eq!(first(&turtle, b"a"), b"g");
    });
}

/// The first key from one on.
fn first(turtle: &Turtle, from: &[u8]) -> Vec<u8> {
    let request = ScanRequest {
        lower: Bound::Included(from),
        upper: Bound::Unbounded,
        direction: Direction::Forward,
        records_wanted: 1,
        records_max: 1,
        bytes_max: usize::MAX,
        keys_only: true,
    };
    let mut chunk = Chunk::default();
    turtle.scan(&request, &mut chunk).unwrap();
    chunk.get(0).0.to_vec()
}
