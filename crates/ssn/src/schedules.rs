//! What transactions owe each other, under schedules that may stop a thread at any atomic: `cargo
//! test -p spinney-ssn --features shuttle --lib schedules`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

use shuttle::thread::spawn;
use spinney_base::runtime::SplitMix;
use spinney_base::schedules::check;
use spinney_base::shim::atomic::{AtomicBool, Ordering::SeqCst};
use spinney_base::shim::{Mutex, thread};

use crate::certify::wait;
use crate::world::{ALL, Kind, Runner, Step, WITH_SNAPSHOTS, World};
use crate::*;

/// Runs transactions on threads of their own and checks their history.
fn run(world: World, programs: impl Iterator<Item = impl FnOnce(&World) + Send + 'static>) {
    let world = Arc::new(world);
    let threads = programs.map(|program| {
        let world = Arc::clone(&world);
        spawn(move || program(&world))
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    world.check().unwrap();
}

/// Runs scripts of two keys, which exist.
fn scripts(scripts: &'static [(Kind, &[Step])]) {
    let mut random = SplitMix(0);
    let world = loop {
        let world = World::new(2, 63, &ALL, &mut random);
        if world.all_exist() {
            break world;
        }
    };
    let programs = scripts
        .iter()
        .map(|(kind, steps)| move |world: &World| Runner::with(world, *kind, None, steps).run());
    run(world, programs);
}

const READ_X: Step = Step::Read(0);
const READ_Y: Step = Step::Read(1);
const WRITE_X: Step = Step::Write(0, Image::Value);
const WRITE_Y: Step = Step::Write(1, Image::Value);

/// Random programs: each history has another seed.
fn histories(iterations: u64, kinds: &'static [Kind], transactions: usize) {
    let seeds = Counter::new(0);
    check(iterations, move || {
        let mut random = SplitMix(seeds.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let world = World::new(4, [63, 1][random.below(2)], kinds, &mut random);
        let programs = (0..transactions).map(|_| {
            let seed = random.next_u64();
            move |world: &World| Runner::new(world, 3, &mut SplitMix(seed)).run()
        });
        run(world, programs);
    });
}

#[test]
fn no_history_has_a_cycle() {
    histories(20_000, &ALL, 4);
}

#[test]
fn no_history_beside_snapshots_has_a_cycle() {
    histories(20_000, &WITH_SNAPSHOTS, 4);
}

/// COMMITTING against c: both commit at once, and one at most may.
#[test]
fn two_commits_of_a_skew() {
    check(20_000, || {
        scripts(&[
            (Kind::Updates, &[READ_X, READ_Y, WRITE_X]),
            (Kind::Updates, &[READ_X, READ_Y, WRITE_Y]),
        ]);
    });
}

/// Reads a slot, if it has its first version, or if not; commits, and returns the stamp of the
/// version, c and pi.
fn read_newer(ssn: &Certifier, x: &Slot, is_first: bool, pauses: usize) -> Option<[Stamp; 3]> {
    let mut transaction = ssn.begin().unwrap();
    let Look::Newest(version) = wait(|| transaction.look(&x)).ok()? else { return None };
    if (version.stamp() == 1) != is_first {
        return None;
    }
    transaction.note(&x, version).ok()?;
    transaction.certify().ok()?;
    let (c, (pi, _)) = (transaction.commit_stamp(), transaction.pi_eta());
    // Time for others while only the bit tells of this reader.
    (0..pauses).for_each(|_| thread::yield_now());
    publish(transaction);
    Some([version.stamp(), c, pi])
}

/// Overwrites a slot; returns c, pi and eta.
fn overwrite(ssn: &Certifier, x: &Slot) -> [Stamp; 3] {
    let mut transaction = ssn.begin_plain().unwrap();
    wait(|| transaction.poll_own(&x, None)).unwrap();
    transaction.certify().unwrap();
    let (c, (pi, eta)) = (transaction.commit_stamp(), transaction.pi_eta());
    publish(transaction);
    [c, pi, eta]
}

/// A reader commits and leaves while an overwriter of what it read looks for it.
fn leave_beside_an_overwriter(of_first: bool, pauses: usize) {
    let (ssn, x) = (Certifier::sized(4, 63), Slot::new(Version::present(1)));
    let ([c, pi, eta], read) = thread::scope(|scope| {
        let read = || (0..3).find_map(|_| read_newer(&ssn, &x, of_first, pauses));
        let reader = scope.spawn(read);
        if !of_first {
            scope.spawn(|| overwrite(&ssn, &x));
        }
        while !of_first && x.version().stamp() == 1 {
            thread::yield_now();
        }
        (overwrite(&ssn, &x), reader.join().unwrap())
    });
    match read {
        Some([_, reader_c, _]) if reader_c < c => {
            assert!(eta >= reader_c, "the overwriter missed its reader");
        }
        Some([version, _, reader_pi]) if version < c => {
            assert!(reader_pi <= pi, "the reader missed its overwriter");
        }
        _ => {}
    }
    assert!(x.is_quiet());
}

/// A bit against pstamp: of the version that was there first.
#[test]
fn a_reader_leaves_beside_an_overwriter() {
    check(20_000, || leave_beside_an_overwriter(true, 0));
}

/// A bit against pstamp: of a version that was published a moment before.
#[test]
fn a_reader_of_a_new_version_leaves_beside_an_overwriter() {
    check(160_000, || leave_beside_an_overwriter(false, 0));
    check(160_000, || leave_beside_an_overwriter(false, 4));
}

fn publish<S: Stamps>(mut transaction: Transaction<S>) {
    transaction.decide();
    transaction.publish(|_| Image::Value);
    transaction.finish();
}

/// A wound against a commit: the slot has the versions of all that committed, each over the one
/// before.
#[test]
fn t09_a_wound_beside_a_commit() {
    check(20_000, || {
        scripts(&[
            (Kind::Updates, &[WRITE_X, WRITE_Y]),
            (Kind::Plain, &[WRITE_X]),
            (Kind::Plain, &[WRITE_Y]),
        ]);
    });
}

/// T12: what was read before the begin stamp moves, and what is read after it, are of one moment.
#[test]
fn t12_a_begin_stamp_moves_beside_a_commit() {
    check(20_000, || {
        scripts(&[
            (Kind::Mixed, &[READ_X, Step::Extend, READ_Y]),
            (Kind::Updates, &[WRITE_X, WRITE_Y]),
        ]);
    });
}

/// T13, the floor: the read-only anomaly with a snapshot as the reader.
#[test]
fn t13_a_snapshot_beside_commits() {
    check(20_000, || {
        scripts(&[
            (Kind::Updates, &[READ_X, READ_Y, WRITE_Y]),
            (Kind::Updates, &[READ_X, WRITE_X]),
            (Kind::Snapshot, &[READ_X, READ_Y]),
        ]);
    });
}

/// A context gets another transaction while somebody still looks at it for the one before.
#[test]
fn contexts_are_reused_beside_late_readers() {
    check(100_000, || {
        let ssn = Certifier::sized(4, 63);
        let [x, y] = &[1, 1].map(|stamp| Slot::new(Version::present(stamp)));
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let committed = skew(&ssn, &x, &y, &y, &Mutex::new(()));
                (0..2).for_each(|_| drop(ssn.begin::<&Slot>().unwrap()));
                committed
            });
            (skew(&ssn, &x, &y, &x, &Mutex::new(())), other.join().unwrap())
        });
        assert!(!(one && other), "a write skew");
    });
}

/// Reads x and y, if they are as at first, and writes one of them, under a latch; returns whether
/// it committed.
fn skew<S: Stamps>(ssn: &Certifier, x: &S, y: &S, write: &S, latch: &Mutex<()>) -> bool {
    let mut transaction = ssn.begin().unwrap();
    for slot in [x, y] {
        let look = wait(|| transaction.look(slot));
        if look.ok() != Some(Look::Newest(Version::present(1)))
            || transaction.note(slot, Version::present(1)).is_err()
        {
            return false;
        }
    }
    let owned = wait(|| transaction.poll_own(write, None));
    if owned.is_err() || transaction.certify().is_err() {
        return false;
    }
    transaction.decide();
    {
        let _latch = latch.lock();
        transaction.publish(|_| Image::Value);
    }
    transaction.finish();
    true
}

/// A slot that is moved once.
#[derive(Debug)]
struct Moving {
    places: [Slot; 2],
    frozen: AtomicBool,
    copied: AtomicBool,
    /// A slot that is being published does not move.
    latch: Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    slot: &'a Moving,
    at: usize,
}

impl Moving {
    fn new() -> Self {
        let places = [1, 1].map(|stamp| Slot::new(Version::present(stamp)));
        let (frozen, copied) = (AtomicBool::new(false), AtomicBool::new(false));
        Moving { places, frozen, copied, latch: Mutex::new(()) }
    }

    fn freeze(&self) {
        let _latch = self.latch.lock();
        let [from, to] = &self.places;
        self.frozen.store(true, SeqCst);
        for (from, to) in [
            (&from.pstamp, &to.pstamp),
            (&from.readers, &to.readers),
            (&from.owner, &to.owner),
            (&from.cstamp, &to.cstamp),
        ] {
            to.store(from.load(SeqCst), SeqCst);
        }
        self.copied.store(true, SeqCst);
    }
}

impl Place<'_> {
    /// Where it is once it was moved.
    fn moved(&self) -> Option<Self> {
        if self.at == 1 || !self.slot.frozen.load(SeqCst) {
            return None;
        }
        while !self.slot.copied.load(SeqCst) {
            thread::yield_now();
        }
        Some(Place { at: 1, ..*self })
    }
}

impl Readable for Place<'_> {
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        self.visit_slot(&mut |words| act(words.marks));
    }
}

impl<'a> Stamps for Place<'a> {
    type Gap = &'a Gap;

    fn visit_slot(&self, act: &mut dyn FnMut(Words<'_>)) {
        act(self.slot.places[self.at].words());
        if let Some(moved) = self.moved() {
            moved.visit_slot(act);
        }
    }

    fn keep(&self, version: Version, successor: Successor) {
        (&self.slot.places[0]).keep(version, successor);
    }

    fn successor(&self, version: Version) -> Successor {
        (&self.slot.places[0]).successor(version)
    }
}

/// A bit against the mark of a slot that moves: it is in the copy, or the reader sets it there.
#[test]
fn bits_reach_a_slot_that_moves() {
    check(20_000, || {
        let ssn = Certifier::sized(4, 63);
        let slots = [Moving::new(), Moving::new()];
        let [x, y] = [&slots[0], &slots[1]].map(|slot| Place { slot, at: 0 });
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| skew(&ssn, &x, &y, &y, &y.slot.latch));
            scope.spawn(|| x.slot.freeze());
            (skew(&ssn, &x, &y, &x, &x.slot.latch), other.join().unwrap())
        });
        assert!(!(one && other), "a write skew");
        let places = [&x.slot.places[1], &y.slot.places[0]];
        assert!(
            places.iter().all(|place| place.is_quiet()),
            "a bit or an owner stays: {x:?} {y:?}"
        );
    });
}
