//! Every step of turtle's pipeline fails in turn: the reads of an apply, the writes of leaves, nodes, payload and
//! slot, the syncs of data, slot and log, room for each, and the writing out of a snapshot. Puts end, what went
//! wrong reaches a caller or is made good, reads go on, and reopening finds what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use spinney::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::{ErrorKind, Result, Runtime, probe};
use spinney_extent::{BlockHeader, BlockKind};
use spinney_io::sim::{CrashMode, Fault, SimDisk, SimView, WriteObserver};
use spinney_proving::roots::{LEAF, NODE};
use spinney_proving::tier;

const KEYS: u64 = 3000;
const PUTS: u64 = 9000;

fn open(disk: &SimDisk, runtime: &Runtime) -> (Db, Keyspace) {
    let options = Options::default()
        .memory(2 << 20)
        .log_bytes_max(64 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone());
    let db = Db::open(Path::new("/db"), options).unwrap();
    let turtle = KeyspaceOptions::default().engine(EngineKind::Turtle);
    let main = db.keyspace("main", turtle.set("leaf", "32KiB").unwrap()).unwrap();
    (db, main)
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(25)
}

/// Says of each write and sync what step of the pipeline it is.
#[derive(Debug, Default)]
struct Steps {
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    writes: Vec<&'static str>,
    syncs: Vec<&'static str>,
    slot_is_written: bool,
}

fn is_log(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "wal")
}

impl WriteObserver for Steps {
    fn before_write(&self, _: &SimView<'_>, path: &Path, offset: u64, bytes: &[u8]) {
        let seen = &mut *self.seen.lock();
        let header =
            bytes.first_chunk::<PAGE_BYTES>().and_then(|block| BlockHeader::decode(block).ok());
        let of_snapshot = probe::current().contains(&"snapshot written");
        let step = match header.map(|header| header.kind) {
            _ if is_log(path) => "log write",
            Some(kind) if kind == LEAF && of_snapshot => "leaf write of a snapshot",
            Some(kind) if kind == NODE && of_snapshot => "node write of a snapshot",
            Some(kind) if kind == LEAF => "leaf write",
            Some(kind) if kind == NODE => "node write",
            Some(kind) if kind == BlockKind::CHECKPOINT => "payload write",
            Some(kind) if kind == BlockKind::SLOT => "slot write",
            _ => "other write",
        };
        if !is_log(path) {
            seen.slot_is_written = offset < 2 * PAGE_BYTES as u64;
        }
        seen.writes.push(step);
    }

    fn after_sync(&self, _: &SimView<'_>, path: &Path) {
        let seen = &mut *self.seen.lock();
        let step = match (is_log(path), seen.slot_is_written) {
            (true, _) => "log sync",
            (false, true) => "slot sync",
            (false, false) => "data sync",
        };
        seen.syncs.push(step);
    }
}

/// What a run saw.
#[derive(Default)]
struct Ran {
    /// Errors that callers had.
    errors: Vec<ErrorKind>,
    snapshots_written: u64,
    /// The state in which the fault struck.
    states: Vec<&'static str>,
    struck: bool,
    /// Reads and requests for room until the load ended.
    reads: u64,
    rooms: u64,
}

/// What keys may hold, by the numbers of their values.
struct Books {
    may: BTreeMap<u64, BTreeSet<u64>>,
    /// Power loss leaves this or something later.
    durable: BTreeMap<u64, u64>,
}

impl Books {
    fn check(&self, main: &Keyspace, when: &str) {
        for (number, may) in &self.may {
            let found = main.get(key(*number)).unwrap_or_else(|it| panic!("{when}: {it:?}"));
            let found = found.unwrap_or_else(|| panic!("{when}: key {number} is gone"));
            let found = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(may.contains(&found), "{when}: key {number} is {found}, may be {may:?}");
        }
        assert_eq!(main.iter().filter(Result::is_ok).count(), self.may.len(), "{when}");
    }

    fn check_after_power_loss(&self, main: &Keyspace) {
        for (number, durable) in &self.durable {
            let found = main.get(key(*number)).unwrap().expect("it was durable");
            let found = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(found >= *durable, "key {number} is {found}, {durable} was durable");
        }
    }
}

/// The same load each time, but for the fault.
fn run(watch: Option<Arc<Steps>>, fault: impl FnOnce(&SimDisk) -> Option<Fault>) -> Ran {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let (db, main) = open(&disk, &runtime);
    let mut books = Books { may: BTreeMap::new(), durable: BTreeMap::new() };
    for number in 0..KEYS {
        main.insert_with(key(number), value(0), Durability::Buffered).unwrap();
        books.may.insert(number, BTreeSet::from([0]));
        books.durable.insert(number, 0);
    }
    db.checkpoint().unwrap();
    let mut ran = Ran::default();
    if let Some(watch) = watch {
        disk.observe(watch);
    }
    let fault = fault(&disk);
    fault.iter().for_each(|fault| disk.inject(fault.clone()));
    let mut kept = Vec::new();
    for put in 1..=PUTS {
        let number = put.wrapping_mul(7919) % KEYS;
        let durability = if put % 100 == 0 { Durability::Sync } else { Durability::Buffered };
        let may = books.may.get_mut(&number).unwrap();
        match main.insert_with(key(number), value(put), durability) {
            Ok(()) => {
                *may = BTreeSet::from([put]);
                if durability == Durability::Sync {
                    books.durable.insert(number, put);
                }
            }
            Err(error) => {
                ran.errors.push(error.kind());
                if !error.is_full() {
                    may.insert(put);
                }
                if error.is_poisoned() {
                    break;
                }
            }
        }
        if put % 20 == 0 {
            runtime.step();
        }
        if put % 1500 == 700 {
            match main.snapshot() {
                Ok(snapshot) => kept.push((put, snapshot)),
                Err(error) => ran.errors.push(error.kind()),
            }
        }
        if put == PUTS / 2 {
            main.turtle().unwrap().set_checkpoint_distance(1).unwrap();
        }
        if put == PUTS / 2 + 500 {
            main.turtle().unwrap().set_checkpoint_distance(1000).unwrap();
        }
        if put % 2500 == 0
            && let Err(error) = db.checkpoint()
        {
            ran.errors.push(error.kind());
        }
    }
    // An error that was returned once is not in the way of the next attempt, unless it stopped everything.
    if let Err(error) = db.checkpoint() {
        ran.errors.push(error.kind());
    }
    (ran.reads, ran.rooms) = (disk.reads(), disk.room_requests());
    let known = [ErrorKind::Full, ErrorKind::Io, ErrorKind::Poisoned];
    assert!(ran.errors.iter().all(|kind| known.contains(kind)), "{fault:?}: {:?}", ran.errors);
    books.check(&main, &format!("{fault:?}"));
    for (at, snapshot) in &kept {
        let number = at.wrapping_mul(7919) % KEYS;
        match snapshot.get(key(number)) {
            Ok(found) => {
                let found = found.expect("it was there");
                assert!(u64::from_le_bytes(found[..8].try_into().unwrap()) <= *at);
                assert_eq!(snapshot.iter().filter(Result::is_ok).count() as u64, KEYS);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{fault:?}"),
        }
    }
    ran.snapshots_written = main.stats().turtle.unwrap().snapshots_written;
    ran.struck = disk.faults_struck() > 0;
    ran.states = disk.states_at_fault();
    drop(kept);
    drop((db, main));
    let (db, main) = open(&disk.kill(), &Runtime::stepped(2));
    // What a failed sync should have made durable never will be, and is not read back either (P9).
    if matches!(fault, Some(Fault::SyncError { .. })) {
        books.check_after_power_loss(&main);
    } else {
        books.check(&main, &format!("{fault:?}, after a kill"));
    }
    db.verify().unwrap();
    let (db, main) = open(&disk.crash(CrashMode::LoseAll), &Runtime::stepped(2));
    books.check_after_power_loss(&main);
    db.verify().unwrap();
    ran
}

/// The last place of each step, in the full tier the first and the middle one as well.
fn places(steps: &[&'static str]) -> BTreeMap<&'static str, BTreeSet<u64>> {
    let mut all: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    for (place, step) in (1..).zip(steps) {
        all.entry(step).or_default().push(place);
    }
    let some = |places: Vec<u64>| {
        let last = places[places.len() - 1];
        let all = BTreeSet::from([places[0], places[places.len() / 2], last]);
        if tier::is_full() { all } else { BTreeSet::from([last]) }
    };
    all.into_iter().map(|(step, places)| (step, some(places))).collect()
}

#[test]
fn every_step_of_the_pipeline_fails_once() {
    let watch = Arc::new(Steps::default());
    let mut before = (0, 0, 0, 0);
    let calm = run(Some(watch.clone()), |disk| {
        before = (disk.reads(), disk.writes(), disk.room_requests(), disk.syncs());
        None
    });
    assert!(calm.errors.is_empty() && calm.snapshots_written > 0, "{:?}", calm.errors);
    let (writes, syncs) = {
        let seen = watch.seen.lock();
        (places(&seen.writes), places(&seen.syncs))
    };
    let mut struck: BTreeMap<String, u64> = BTreeMap::new();
    let mut errors = 0;
    let mut fail = |step: &str, fault: Fault| {
        let ran = run(None, |_| Some(fault.clone()));
        assert!(ran.struck, "{step}: {fault:?} met nothing");
        let is_fatal = matches!(fault, Fault::SyncError { .. });
        assert!(!is_fatal || !ran.errors.is_empty(), "{step}: nobody heard of {fault:?}");
        errors += u64::from(!ran.errors.is_empty());
        *struck.entry(step.to_owned()).or_default() += 1;
        for state in ran.states {
            let kind = format!("{fault:?}");
            let kind = kind.split(' ').next().unwrap_or_default();
            *struck.entry(format!("{kind} in {state}")).or_default() += 1;
        }
    };
    for (step, places) in writes {
        for at in places.into_iter().map(|at| before.1 + at) {
            fail(step, Fault::WriteError { at });
            fail(step, Fault::NoSpaceInPlace { at });
        }
    }
    for (step, places) in syncs {
        places.into_iter().for_each(|at| fail(step, Fault::SyncError { at: before.3 + at }));
    }
    let reads = before.0 + 1..=calm.reads;
    for at in reads.clone().step_by((reads.count() / tier::count(8, 80) as usize).max(1)) {
        fail("read", Fault::ReadError { at });
    }
    let rooms = before.2 + 1..=calm.rooms;
    for at in rooms.clone().step_by((rooms.count() / tier::count(24, 60) as usize).max(1)) {
        fail("room", Fault::NoSpace { at });
    }
    println!("{errors} faults reached a caller; {struck:#?}");
    for step in [
        "leaf write",
        "node write",
        "payload write",
        "slot write",
        "log write",
        "leaf write of a snapshot",
        "data sync",
        "slot sync",
        "log sync",
        "ReadError in batch apply",
        "NoSpace in checkpoint build",
        "WriteError in snapshot written",
        "NoSpaceInPlace in snapshot written",
        "NoSpaceInPlace in root publish",
        "SyncError in root publish",
    ] {
        assert!(struck.contains_key(step), "{step} was not struck: {struck:#?}");
    }
}
