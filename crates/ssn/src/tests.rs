//! Random histories step by step on one thread, the same on many threads, and scripts of single
//! rules.

use std::task::Poll;

use spinney_base::runtime::SplitMix;
use spinney_base::shim::thread;
use spinney_base::{ErrorKind, Result, Runtime};

use crate::certify::Phase;
use crate::safe::Taking;
use crate::world::{ALL, Runner, WITH_SNAPSHOTS, World};
use crate::*;

const TRANSACTIONS: usize = 6;
const OPERATIONS: usize = 4;

/// Steps in a row that only wait, after which nothing will ever go on.
const IDLE_MAX: usize = 5_000;

/// Runs one random history; returns how many transactions committed.
fn history(seed: u64, stamp_before_locks: bool) -> Result<usize, String> {
    let mut random = SplitMix(seed);
    let own_bits = [63, 63, 1][random.below(3)];
    let kinds = if seed.is_multiple_of(2) { &ALL[..] } else { &WITH_SNAPSHOTS[..] };
    let mut world = World::new(6, own_bits, kinds, &mut random);
    world.stamp_before_locks = stamp_before_locks;
    let mut running: Vec<Runner> =
        (0..TRANSACTIONS).map(|_| Runner::new(&world, OPERATIONS, &mut random)).collect();
    let mut idle = 0;
    while !running.is_empty() {
        let at = random.below(running.len());
        match running[at].step() {
            Poll::Pending => idle += 1,
            Poll::Ready(is_done) => {
                idle = 0;
                if is_done {
                    running.swap_remove(at);
                }
            }
        }
        if idle > IDLE_MAX {
            return Err("deadlock".to_owned());
        }
    }
    world.check()?;
    Ok(world.committed())
}

/// The graph of every history has no cycle, every transaction sees one moment, and enough commit.
#[test]
fn no_cycle_is_committed() {
    const HISTORIES: usize = 100_000;
    let committed: usize = (0..HISTORIES)
        .map(|seed| history(seed as u64, false).unwrap_or_else(|why| panic!("seed {seed}: {why}")))
        .sum();
    let percent = 100 * committed / (HISTORIES * TRANSACTIONS);
    assert!(percent > 40, "only {percent} % of the transactions committed");
}

/// Transactions that run one after the other all commit.
#[test]
fn no_serial_history_aborts() {
    for seed in 0..2_000 {
        let mut random = SplitMix(seed);
        let world = World::new(6, 63, &ALL, &mut random);
        (0..20).for_each(|_| Runner::new(&world, OPERATIONS, &mut random).run());
        world.check().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert_eq!(world.committed(), 20, "seed {seed}");
    }
}

/// T11: where transactions draw their stamps before they hold all locks, some wait for each other.
#[test]
fn t11_stamps_before_locks_deadlock() {
    let found = (0..20_000).filter_map(|seed| history(seed, true).err());
    assert!(found.take(1).any(|why| why == "deadlock"), "the error that was planted is not found");
}

/// The same transactions on threads, which yield at random.
#[test]
fn no_thread_commits_a_cycle() {
    const THREADS: u64 = 4;
    const EACH: usize = 4_000;
    for own_bits in [63, 2] {
        let world = World::new(8, own_bits, &ALL, &mut SplitMix(7));
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let world = &world;
                scope.spawn(move || {
                    let mut random = SplitMix(seed);
                    for _ in 0..EACH {
                        let mut runner = Runner::new(world, OPERATIONS, &mut random);
                        while runner.step() != Poll::Ready(true) {
                            if random.below(4) == 0 {
                                thread::yield_now();
                            }
                        }
                    }
                });
            }
        });
        world.check().unwrap();
        let percent = 100 * world.committed() / (EACH * 4);
        assert!(percent > 20, "only {percent} % of the transactions committed");
    }
}

type Scripted<'a> = Transaction<&'a Slot>;

fn ready<T>(poll: Poll<T>) -> T {
    match poll {
        Poll::Ready(ready) => ready,
        Poll::Pending => panic!("the script does not wait here"),
    }
}

fn slots<const COUNT: usize>() -> [Slot; COUNT] {
    std::array::from_fn(|_| Slot::new(Version::present(1)))
}

fn read<'a>(transaction: &mut Scripted<'a>, slot: &'a Slot) {
    match ready(transaction.look(&slot)).unwrap() {
        Look::Newest(version) => transaction.note(&slot, version).unwrap(),
        Look::Older => {
            let version = slot.version_at(transaction.begin_stamp());
            transaction.note_older(slot.successor(version)).unwrap();
        }
        Look::Own => {}
    }
}

fn write<'a>(transaction: &mut Scripted<'a>, slot: &'a Slot) {
    ready(transaction.poll_own(&slot, None)).unwrap();
}

/// Commits; returns begin stamp, c, pi and eta, and whether it succeeded.
fn commit(mut transaction: Scripted<'_>) -> ([Stamp; 4], bool) {
    let certified = transaction.certify();
    let (pi, eta) = transaction.pi_eta();
    let stamps = [transaction.begin_stamp(), transaction.commit_stamp(), pi, eta];
    if certified.is_ok() {
        publish(transaction);
    }
    (stamps, certified.is_ok())
}

fn publish(mut transaction: Scripted<'_>) {
    transaction.decide();
    transaction.publish(|_| Image::Value);
    transaction.finish();
}

fn is_conflict<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Conflict);
}

/// Of two that read x and y and write one each, the second is refused: pi = eta.
#[test]
fn write_skew() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    for transaction in [&mut one, &mut two] {
        read(transaction, &x);
        read(transaction, &y);
    }
    write(&mut two, &y);
    assert_eq!(commit(two), ([10, 11, 11, 10], true));
    write(&mut one, &x);
    assert_eq!(commit(one), ([10, 12, 11, 11], false));
}

/// A reader that saw the second but not the first in their serial order; also the batch that
/// closes.
#[test]
fn read_only_anomaly() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    read(&mut two, &x);
    read(&mut two, &y);
    read(&mut one, &x);
    write(&mut one, &x);
    assert_eq!(commit(one), ([10, 11, 11, 10], true));
    let mut reader = ssn.begin().unwrap();
    read(&mut reader, &x);
    read(&mut reader, &y);
    assert_eq!(commit(reader), ([11, 12, 12, 11], true));
    write(&mut two, &y);
    assert_eq!(commit(two), ([10, 13, 11, 12], false));
}

/// An insert into a gap that was read by a transaction which committed earlier.
#[test]
fn a_gap_remembers_its_readers() {
    let (ssn, gap) = (Certifier::above(10), Gap::default());
    let (x, key) = (Slot::new(Version::present(1)), Slot::new(Version::absent(0)));
    let (mut inserter, mut updater) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    read(&mut inserter, &x);
    write(&mut updater, &x);
    assert_eq!(commit(updater), ([10, 11, 11, 10], true));
    let mut scanner = ssn.begin().unwrap();
    read(&mut scanner, &x);
    scanner.note_gap(&&gap).unwrap();
    assert_eq!(commit(scanner), ([11, 12, 12, 11], true));
    ready(inserter.poll_own(&&key, Some(&&gap))).unwrap();
    assert_eq!(commit(inserter), ([10, 13, 11, 12], false));
}

/// The immediate overwriter counts, not the latest, which has a greater pi.
#[test]
fn two_overwriters() {
    let (ssn, [x, z, v]) = (Certifier::above(10), slots());
    let (mut s, mut u1, mut q) = (ssn.begin().unwrap(), ssn.begin().unwrap(), ssn.begin().unwrap());
    read(&mut s, &x);
    read(&mut u1, &z);
    write(&mut q, &z);
    assert_eq!(commit(q), ([10, 11, 11, 10], true));
    write(&mut u1, &x);
    assert_eq!(commit(u1), ([10, 12, 11, 10], true));
    let mut r = ssn.begin().unwrap();
    read(&mut r, &z);
    read(&mut r, &v);
    assert_eq!(commit(r), ([12, 13, 13, 12], true));
    let mut u2 = ssn.begin().unwrap();
    write(&mut u2, &x);
    assert_eq!(commit(u2), ([13, 14, 14, 13], true));
    write(&mut s, &v);
    assert_eq!(commit(s), ([10, 15, 11, 13], false));
}

/// T9: the owner went to lunch, and a plain write takes its slot.
#[test]
fn t09_plain_writes_wait_for_no_user() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let mut owner = ssn.begin().unwrap();
    write(&mut owner, &x);
    let mut plain = ssn.begin_plain().unwrap();
    write(&mut plain, &x);
    assert_eq!(commit(plain), ([10, 11, 11, 10], true));
    is_conflict(owner.note(&&y, Version::present(1)));
    is_conflict(owner.certify());
    drop(owner);
    assert_eq!(x.version(), Version::present(11));
    assert!(x.is_quiet());
}

/// T9: an owner that commits is waited for, and overwritten.
#[test]
fn t09_plain_writes_wait_for_commits() {
    let (ssn, [x]) = (Certifier::above(10), slots());
    let mut owner = ssn.begin().unwrap();
    write(&mut owner, &x);
    owner.certify().unwrap();
    let mut plain = ssn.begin_plain().unwrap();
    assert!(plain.poll_own(&&x, None).is_pending());
    publish(owner);
    write(&mut plain, &x);
    assert_eq!(commit(plain), ([11, 12, 12, 11], true));
}

/// T10: reads outside leave no trace in eta, so a cycle through them passes the test.
#[test]
fn t10_mixed_transactions_are_current() {
    let (ssn, [i]) = (Certifier::above(10), slots());
    let (mut mixed, mut updater) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    read(&mut mixed, &i);
    write(&mut updater, &i);
    assert!(commit(updater).1);
    let mut reader = ssn.begin().unwrap();
    // It reads `o` elsewhere, too, which `mixed` writes.
    read(&mut reader, &i);
    assert_eq!(commit(reader), ([11, 12, 12, 11], true));
    let ([_, c, pi, eta], passes) = commit(mixed);
    assert_eq!((c, pi, eta, passes), (13, 11, 10, true));
    assert!(!reads_are_current(pi, c));
}

/// T12: a transaction moves to now, unless what it has read was overwritten.
#[test]
fn t12_begin_stamps_move_over_what_is_current() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let mut transaction = ssn.begin().unwrap();
    read(&mut transaction, &x);
    let mut writer = ssn.begin().unwrap();
    write(&mut writer, &y);
    writer.certify().unwrap();
    ready(transaction.extend()).unwrap();
    assert_eq!(transaction.begin_stamp(), 11);
    assert!(transaction.look(&&y).is_pending());
    publish(writer);
    assert_eq!(ready(transaction.look(&&y)).unwrap(), Look::Newest(Version::present(11)));

    let mut writer = ssn.begin().unwrap();
    write(&mut writer, &x);
    writer.certify().unwrap();
    assert!(transaction.extend().is_pending());
    publish(writer);
    is_conflict(ready(transaction.extend()));
    is_conflict(transaction.certify());
}

/// T12: a version that was older when it was read has no note, and is remembered.
#[test]
fn t12_older_versions_hold_the_begin_stamp() {
    let (ssn, [x]) = (Certifier::above(10), slots());
    let (mut transaction, mut writer) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    write(&mut writer, &x);
    assert!(commit(writer).1);
    read(&mut transaction, &x);
    is_conflict(ready(transaction.extend()));
}

/// T13: a snapshot that draws its stamp after a plain write did is no reason to refuse the write.
#[test]
fn t13_floors_above_refuse_no_plain_write() {
    let (ssn, [x]) = (Certifier::above(10), slots());
    let mut plain = ssn.begin_plain().unwrap();
    write(&mut plain, &x);
    while plain.phase() != Phase::Floor {
        ready(plain.step()).unwrap();
    }
    let mut taking = Taking::new(&ssn);
    (0..4).for_each(|_| assert!(taking.poll().is_pending()));
    assert_eq!(ready(ssn.shared.floor.poll()), 12);
    assert_eq!(commit(plain), ([10, 11, 11, 10], true));
    assert_eq!(
        std::iter::repeat_with(|| taking.poll()).find(Poll::is_ready),
        Some(Poll::Ready(12))
    );
}

/// T13: a writer with a greater stamp than a snapshot waits for the floor, and counts it as a
/// reader.
#[test]
fn t13_writers_wait_for_the_floor() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    read(&mut two, &x);
    read(&mut two, &y);
    write(&mut one, &x);
    assert!(commit(one).1);
    let mut taking = Taking::new(&ssn);
    // Busy, and its stamp drawn.
    (0..2).for_each(|_| assert!(taking.poll().is_pending()));
    write(&mut two, &y);
    while two.phase() != Phase::Floor {
        ready(two.step()).unwrap();
    }
    assert!(two.step().is_pending());
    assert!(taking.poll().is_pending());
    // The snapshot at 12 has the new x and the old y.
    assert_eq!(commit(two), ([10, 13, 11, 12], false));
}

/// A second updater gives up, also where time stands still; the first commits.
#[test]
fn second_updaters_give_up() {
    for runtime in [Runtime::threads(), Runtime::stepped(1)] {
        let (ssn, [x]) = (Certifier::above(10), slots());
        let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
        one.own(&&x, None, &runtime).unwrap();
        one.own(&&x, None, &runtime).unwrap();
        let mut late = ssn.begin().unwrap();
        is_conflict(two.own(&&x, None, &runtime));
        assert!(commit(one).1);
        is_conflict(late.own(&&x, None, &runtime));
        drop((two, late));
        assert!(x.is_quiet());
    }
}

/// A tombstone is a version: its readers are found by the next insert.
#[test]
fn tombstones_have_readers() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let mut remover = ssn.begin().unwrap();
    write(&mut remover, &x);
    remover.certify().unwrap();
    remover.decide();
    remover.publish(|_| Image::Tombstone);
    remover.finish();
    assert_eq!(x.version(), Version::absent(11));
    let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    for transaction in [&mut one, &mut two] {
        read(transaction, &x);
        read(transaction, &y);
    }
    write(&mut two, &y);
    assert!(commit(two).1);
    write(&mut one, &x);
    assert!(!commit(one).1);
}

/// As many transactions as there are contexts, and then one more when one has ended.
#[test]
fn contexts_run_out() {
    let ssn = Certifier::above(10);
    let begin = |_| ssn.begin().ok();
    let mut running: Vec<Scripted> = (0..2 * CONTEXTS).map_while(begin).collect();
    assert_eq!(running.len(), CONTEXTS - 64);
    is_conflict(ssn.begin::<&Slot>());
    assert!(ssn.begin_plain::<&Slot>().is_ok(), "some are left to plain writes");
    running.pop();
    assert!(ssn.begin::<&Slot>().is_ok());
}

/// The shared bit stands for all contexts from 63 on.
#[test]
fn late_contexts_share_a_bit() {
    let (ssn, [x, y]) = (Certifier::above(10), slots());
    let _running: Vec<Scripted> = (0..70).map(|_| ssn.begin().unwrap()).collect();
    let (mut one, mut two) = (ssn.begin().unwrap(), ssn.begin().unwrap());
    for transaction in [&mut one, &mut two] {
        read(transaction, &x);
        read(transaction, &y);
    }
    write(&mut two, &y);
    two.certify().unwrap();
    two.decide();
    write(&mut one, &x);
    assert!(one.certify().is_err());
    two.publish(|_| Image::Value);
    two.finish();
    assert!(!x.is_quiet(), "the shared bit stays");
    assert!(y.is_quiet(), "a new version has no readers");
}

/// What a begin stamp may move to stays, for it is not known yet.
#[test]
fn running_is_careful_about_begin_stamps_that_move() {
    let ssn = Certifier::above(10);
    let mut reader: Transaction<&Slot> = ssn.begin().unwrap();
    assert_eq!((ssn.clock().draw(), ssn.clock().draw()), (11, 12));
    let moment = reader.moment();
    assert_eq!((moment, ssn.clock().draw(), ssn.clock().draw()), (12, 13, 14));
    assert!(ssn.running().may_see(12, 14), "it may be about to begin there");
    reader.extend_to(moment).unwrap();
    let running = ssn.running();
    assert!(running.may_see(12, 14) && !running.may_see(10, 12) && !running.may_see(13, 14));
    assert!(running.may_see(14, 15), "what begins now sees it");
    drop(reader);
    assert!(!ssn.running().may_see(12, 14));
}
