//! Shuttle models of the latch, the lock table and racy words: the code itself under a scheduler
//! that may stop any thread at any atomic. Run with `cargo test -p spinney-sync --features
//! shuttle`.
#![cfg(feature = "shuttle")]

use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn};
use spinney_sync::{LockTable, Parkable, RacyWords, Stamp, VersionLatch, hash_key};

/// P27: a reader never accepts a mixture of two writes.
#[test]
fn p27_validated_copies_are_whole() {
    shuttle::check_random(
        || {
            let shared = Arc::new((VersionLatch::new(), RacyWords::new(3)));
            let writer = shared.clone();
            let thread = shuttle::thread::spawn(move || {
                for fill in 1..3u8 {
                    let guard = writer.0.lock();
                    writer.1.write_from(0, &[fill; 24]);
                    drop(guard);
                }
            });
            for _ in 0..2 {
                let version = shared.0.version();
                let mut copy = Vec::new();
                shared.1.read_into(0, 24, &mut copy);
                if shared.0.validate(version) {
                    assert!(copy.iter().all(|byte| *byte == copy[0]), "torn copy {copy:?}");
                }
            }
            thread.join().unwrap();
        },
        5000,
    );
}

/// P3: a reader that validates each key's stripe and saw the new value of a batch's first key sees
/// the new value of its last.
#[test]
fn p03_a_batch_is_seen_whole() {
    shuttle::check_random(
        || {
            let shared = Arc::new((LockTable::with_stripes(8), RacyWords::new(2)));
            let hashes = [hash_key(KeyspaceId(1), b"a"), hash_key(KeyspaceId(1), b"b")];
            let writer = shared.clone();
            let thread = shuttle::thread::spawn(move || {
                let guards = writer.0.lock_all(hashes.into_iter());
                writer.1.store(0, 1);
                writer.1.store(1, 1);
                guards.unlock(Stamp::logged(Lsn(1)));
            });
            let read = |index: usize| loop {
                let stripe = shared.0.stripe(hashes[index]);
                let stamp = stripe.stamp();
                let word = shared.1.load(index);
                if stripe.validate(stamp) {
                    return word;
                }
            };
            let first = read(0);
            let second = read(1);
            assert!(second >= first, "saw half a batch");
            thread.join().unwrap();
        },
        5000,
    );
}

/// Writers with overlapping stripes neither deadlock nor overlap.
#[test]
fn writers_of_overlapping_stripes_exclude_each_other() {
    shuttle::check_random(
        || {
            let shared = Arc::new((LockTable::with_stripes(2), RacyWords::new(1)));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let shared = shared.clone();
                    shuttle::thread::spawn(move || {
                        let hashes = [0, u64::MAX];
                        let guards = shared.0.lock_all(hashes.into_iter());
                        shared.1.store(0, shared.1.load(0) + 1);
                        drop(guards);
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(shared.1.load(0), 3);
        },
        2000,
    );
}

/// Who enters finds a value that nobody has taken away, however the two meet.
#[test]
fn a_parkable_is_not_taken_beside_an_entry() {
    use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
    shuttle::check_random(
        || {
            let shared = Arc::new(Parkable::default());
            shared.put(Arc::new(AtomicBool::new(true)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            if let Some(is_there) = shared.enter() {
                                assert!(is_there.load(SeqCst), "it was taken beside an entry");
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                if let Some(taken) = shared.take_idle(|_| false) {
                    taken.store(false, SeqCst);
                    shared.put(Arc::new(AtomicBool::new(true)));
                }
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        },
        5000,
    );
}
