//! Snapshots of the database: their numbers, and when a batch belongs to one.
//!
//! ```text
//!   take                                              write
//!     engines in place: begin (a table for number k)    enter gates, prepare, lock stripes
//!     gated engines: close all gates                    announce, touch guards
//!     newest := k                                       e := newest      k > e: the snapshot has it
//!     gated engines: take views, open gates             validate, append, apply(e)
//!     wait for all writers that are announced
//! ```
//!
//! **Invariants** (S1 to S4 of the rules)
//! 1. `newest` is the number drawn last while a snapshot lives, else 0. Numbers never come back.
//! 2. A batch loads it once, under all its stripes, after its announcement and before it validates.
//!    The order of these loads is a serial order of all batches, transactions and snapshots.
//! 3. It is stored while all covered gates are closed, and after every covered engine that updates in
//!    place has a table for it. So a batch over engines of both kinds is in the snapshot or is not.
//! 4. A snapshot is handed out after every writer that may have loaded less has applied.
//! 5. A keyspace that is opened, or made, gets its part of every snapshot that covers it before its
//!    first write: `taking` is held until writers can find it. Parking holds it while it looks
//!    whether anybody is inside.
//!
//! **Lock order**: `taking` comes after the door, and before gates. A thread inside a gate never
//! takes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::shim::{Mutex, MutexGuard};
use spinney_base::{Error, ErrorKind, KeyspaceId, Process, Result};
use spinney_engine::{EngineSnapshot, SnapshotNumber};
use spinney_ssn::{Clock, Stamp};

use crate::keyspace_state::KeyspaceState;
use crate::place::Place;

/// The snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    newest: AtomicU64,
    /// The commit stamps of versions at which numbers were stored, both ascending, as far back as the oldest snapshot
    /// that lives.
    stamps: Mutex<Vec<(Stamp, SnapshotNumber)>>,
    taking: Mutex<Taking>,
}

/// What changes when a snapshot is taken or ends.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    /// The number drawn last.
    last: u64,
    live: BTreeMap<SnapshotNumber, Weak<Live>>,
}

/// A snapshot that lives.
#[derive(Debug)]
pub(crate) struct Live {
    number: SnapshotNumber,
    since: Duration,
    /// The keyspaces that it is of, open or not.
    covered: BTreeSet<KeyspaceId>,
    /// Its parts in the keyspaces that are open, or were since it was taken.
    parts: Mutex<Parts>,
    process: Process,
    moments: Arc<Moments>,
}

/// The parts of a snapshot.
pub(crate) type Parts = BTreeMap<KeyspaceId, Arc<Part>>;

/// A snapshot's part in one keyspace, which stays open.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) engine: Box<dyn EngineSnapshot>,
    pub(crate) open: Arc<KeyspaceState>,
}

impl Moments {
    /// Returns the number of the newest snapshot. A batch calls it under its stripes, after its
    /// announcement and before it validates anything (S1).
    #[inline]
    pub(crate) fn newest(&self) -> SnapshotNumber {
        SnapshotNumber(self.newest.load(SeqCst))
    }

    /// Returns the number of the newest snapshot that comes before a commit stamp: that is the one which such a
    /// batch bears.
    pub(crate) fn before(&self, stamp: Stamp) -> SnapshotNumber {
        let stamps = self.stamps.lock();
        let found = stamps.iter().rev().find(|(of, _)| *of < stamp);
        found.map_or(SnapshotNumber::NONE, |(_, number)| *number)
    }

    /// Stores a number that was drawn: batches bear it from now on, those with versions if their commit stamp is
    /// above this one. The caller has closed the gates (S3).
    pub(crate) fn store(&self, number: SnapshotNumber, stamp: Stamp) {
        self.stamps.lock().push((stamp, number));
        self.newest.store(number.0, SeqCst);
    }

    /// Lets batches bear no number if no snapshot lives.
    pub(crate) fn rest(&self, taking: &Taking) {
        let mut stamps = self.stamps.lock();
        match taking.live.first_key_value() {
            Some((oldest, _)) => stamps.retain(|(_, number)| number >= oldest),
            None => {
                stamps.clear();
                self.newest.store(0, SeqCst);
            }
        }
    }

    /// Excludes that a snapshot is taken, and that one begins or ends in a keyspace.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Taking> {
        self.taking.lock()
    }

    /// Loads records with a number of their own (S17). The caller has drained the door.
    pub(crate) fn load<T>(
        &self,
        clock: &Clock,
        install: impl FnOnce(SnapshotNumber) -> Result<T>,
    ) -> Result<T> {
        let mut taking = self.taking.lock();
        let number = taking.draw();
        let installed = install(number)?;
        if !taking.live.is_empty() {
            self.store(number, clock.draw());
        }
        Ok(installed)
    }

    /// Returns how many snapshots live, and since when the oldest does.
    pub(crate) fn live(&self) -> (usize, Option<Duration>) {
        // Dropped after the lock: the last handle of a snapshot takes it.
        let alive: Vec<Arc<Live>>;
        let taking = self.taking.lock();
        alive = taking.alive().collect();
        drop(taking);
        (alive.len(), alive.first().map(|oldest| oldest.since))
    }
}

impl Taking {
    /// Draws the next number.
    pub(crate) fn draw(&mut self) -> SnapshotNumber {
        self.last += 1;
        SnapshotNumber(self.last)
    }

    /// Returns the snapshots that live, oldest first. The caller drops them after the lock, because the
    /// last handle of a snapshot takes it.
    pub(crate) fn alive(&self) -> impl Iterator<Item = Arc<Live>> + '_ {
        self.live.values().filter_map(Weak::upgrade)
    }

    /// Adds a snapshot that was taken.
    pub(crate) fn add(
        &mut self,
        moments: &Arc<Moments>,
        (number, since): (SnapshotNumber, Duration),
        covered: BTreeSet<KeyspaceId>,
        parts: Parts,
    ) -> Result<Arc<Live>> {
        let (process, moments) = (Process::current()?, moments.clone());
        let live = Live { number, since, covered, parts: Mutex::new(parts), process, moments };
        let live = Arc::new(live);
        self.live.insert(number, Arc::downgrade(&live));
        Ok(live)
    }
}

impl Live {
    /// Returns the part in a keyspace that the caller has entered.
    ///
    /// # Errors
    /// `InvalidArgument` when the snapshot does not cover it; `Unsupported` when its engine takes no
    /// snapshots.
    pub(crate) fn part(&self, place: &Place) -> Result<Arc<Part>> {
        if !self.covers(place) {
            let text = format!("the snapshot does not cover keyspace {:?}", place.name.get());
            return Err(Error::invalid(text));
        }
        self.parts.lock().get(&place.id).cloned().ok_or_else(|| {
            let (name, engine) = (place.name.get(), place.options.engine);
            let text = format!("the engine of keyspace {name:?} ({engine}) takes no snapshots");
            Error::new(ErrorKind::Unsupported, text)
        })
    }

    /// Returns whether a keyspace was there, and was chosen, when the snapshot was taken.
    pub(crate) fn covers(&self, place: &Place) -> bool {
        self.covered.contains(&place.id)
    }

    /// Adds the part in a keyspace that is being opened.
    pub(crate) fn add(&self, place: &Place, part: Part) {
        self.parts.lock().insert(place.id, Arc::new(part));
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> SnapshotNumber {
        self.number
    }

    /// Returns when it was taken.
    pub(crate) fn since(&self) -> Duration {
        self.since
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Dropping the parts takes locks that a thread of the parent may have held at the fork.
            std::mem::forget(std::mem::take(self.parts.get_mut()));
            return;
        }
        let mut taking = self.moments.taking.lock();
        taking.live.remove(&self.number);
        self.moments.rest(&taking);
    }
}
