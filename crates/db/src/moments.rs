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
use spinney_base::{Error, ErrorKind, KeyspaceId, Result, probe};
use spinney_engine::{ClosedGate, EngineSnapshot, SnapshotNumber};

use crate::handle::Handle;
use crate::keyspace::Keyspace;
use crate::keyspace_state::KeyspaceState;
use crate::place::Place;
use crate::state::State;

/// How long the gates of a snapshot are closed while some batch is still inside of one. Then they
/// are opened for a while, because batches wait.
const PATIENCE: Duration = Duration::from_millis(10);
/// Number of such tries. The next one waits for as long as it takes.
const TRIES: usize = 8;

/// The snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    newest: AtomicU64,
    taking: Mutex<Taking>,
}

/// What changes when a snapshot is taken or ends.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    /// The number drawn last.
    last: u64,
    live: BTreeMap<SnapshotNumber, Weak<Live>>,
}

/// A snapshot that lives. It keeps the database open.
#[derive(Debug)]
pub(crate) struct Live {
    number: SnapshotNumber,
    since: Duration,
    /// The keyspaces that it is of, open or not.
    covered: BTreeSet<KeyspaceId>,
    /// Its parts in the keyspaces that are open, or were since it was taken.
    parts: Mutex<BTreeMap<KeyspaceId, Arc<Part>>>,
    pub(crate) handle: Arc<Handle>,
}

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

    /// Excludes that a snapshot is taken, and that one begins or ends in a keyspace.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Taking> {
        self.taking.lock()
    }

    /// Loads records with a number of their own (S17). The caller has drained the door.
    pub(crate) fn load<T>(&self, install: impl FnOnce(SnapshotNumber) -> Result<T>) -> Result<T> {
        let mut taking = self.taking.lock();
        let number = taking.draw();
        let installed = install(number)?;
        if !taking.live.is_empty() {
            self.newest.store(number.0, SeqCst);
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
    fn draw(&mut self) -> SnapshotNumber {
        self.last += 1;
        SnapshotNumber(self.last)
    }

    fn alive(&self) -> impl Iterator<Item = Arc<Live>> + '_ {
        self.live.values().filter_map(Weak::upgrade)
    }
}

impl Live {
    /// Returns the part in a keyspace that the caller has entered.
    ///
    /// # Errors
    /// `InvalidArgument` when the snapshot does not cover it; `Unsupported` when its engine takes no
    /// snapshots.
    pub(crate) fn part(&self, keyspace: &Keyspace) -> Result<Arc<Part>> {
        let place = &keyspace.place;
        if !self.covered.contains(&place.id) {
            let text = format!("the snapshot does not cover keyspace {:?}", keyspace.name());
            return Err(Error::invalid(text));
        }
        self.parts.lock().get(&place.id).cloned().ok_or_else(|| {
            let (name, engine) = (keyspace.name(), place.options.engine);
            let text = format!("the engine of keyspace {name:?} ({engine}) takes no snapshots");
            Error::new(ErrorKind::Unsupported, text)
        })
    }

    /// Returns for how long it has lived.
    pub(crate) fn age(&self) -> Duration {
        self.handle.state.runtime.now().saturating_sub(self.since)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let state = &self.handle.state;
        if !state.life.is_of_this_process() {
            // Dropping the parts takes locks that a thread of the parent may have held at the fork.
            std::mem::forget(std::mem::take(self.parts.get_mut()));
            return;
        }
        let mut taking = state.moments.taking.lock();
        taking.live.remove(&self.number);
        if taking.live.is_empty() {
            state.moments.newest.store(0, SeqCst);
        }
    }
}

/// Begins a snapshot in a keyspace whose engine updates in place.
fn begin(keyspace: &Arc<KeyspaceState>, number: SnapshotNumber) -> Result<Arc<Part>> {
    let engine = keyspace.engine.clone().begin_snapshot(number)?;
    Ok(Arc::new(Part { engine, open: keyspace.clone() }))
}

fn inside_of_a_batch() -> Error {
    let text = "a snapshot cannot be taken from inside of a batch";
    Error::new(ErrorKind::InvalidArgument, text)
}

impl State {
    /// Takes a snapshot of these keyspaces, which the caller has pinned, or of all.
    pub(crate) fn take_snapshot(
        &self,
        handle: &Arc<Handle>,
        only: Option<Vec<Arc<KeyspaceState>>>,
    ) -> Result<Arc<Live>> {
        let _inside = probe::enter("take snapshot");
        // No load becomes visible meanwhile.
        let _door = self.writers.door.read();
        // One that is made or converted meanwhile is not in it.
        let places = if only.is_none() { self.keyspaces.places() } else { Vec::new() };
        let mut taking = self.moments.taking.lock();
        let covered = match &only {
            Some(these) => these.iter().map(|keyspace| keyspace.id).collect(),
            None => places.iter().map(|place| place.id).collect(),
        };
        let is_all = only.is_none();
        let mut keyspaces = only.unwrap_or_else(|| {
            places.iter().filter_map(|place| Some(place.open.enter()?.pin())).collect()
        });
        keyspaces.sort_unstable_by_key(|keyspace| keyspace.id);
        keyspaces.dedup_by_key(|keyspace| keyspace.id);
        if is_all {
            keyspaces.retain(|keyspace| keyspace.engine.capabilities().snapshots);
        }
        let number = taking.draw();
        let (gated, in_place): (Vec<_>, Vec<_>) =
            keyspaces.into_iter().partition(|keyspace| keyspace.engine.has_gate());
        let mut parts = BTreeMap::new();
        for keyspace in &in_place {
            parts.insert(keyspace.id, begin(keyspace, number)?);
        }
        let gates = self.close_gates(&gated);
        // Also where it fails: no batch after this bears a lesser number than the tables there are.
        self.moments.newest.store(number.0, SeqCst);
        let gates = gates.inspect_err(|_| self.give_up(&taking))?;
        let viewed: Result<()> = gated.iter().zip(&gates).try_for_each(|(keyspace, gate)| {
            let part = Part { engine: gate.snapshot()?, open: keyspace.clone() };
            parts.insert(keyspace.id, Arc::new(part));
            Ok(())
        });
        drop(gates);
        viewed.inspect_err(|_| self.give_up(&taking))?;
        let live = Arc::new(Live {
            number,
            since: self.runtime.now(),
            covered,
            parts: Mutex::new(parts),
            handle: handle.clone(),
        });
        taking.live.insert(number, Arc::downgrade(&live));
        // Writers that loaded less may not have applied (S2).
        self.log.quiesce();
        Ok(live)
    }

    /// Waits for all writers that bear a lesser number, before the tables of a snapshot that was not
    /// taken go.
    fn give_up(&self, taking: &Taking) {
        if taking.live.is_empty() {
            self.moments.newest.store(0, SeqCst);
        }
        self.log.quiesce();
    }

    /// Closes the gates of these keyspaces, whose ids ascend, all at once (S3).
    fn close_gates<'a>(
        &self,
        gated: &'a [Arc<KeyspaceState>],
    ) -> Result<Vec<Box<dyn ClosedGate + 'a>>> {
        for tried in 0.. {
            let begun = self.runtime.now();
            let mut gates = Vec::with_capacity(gated.len());
            for keyspace in gated {
                let spent = self.runtime.now().saturating_sub(begun);
                let patience = (tried < TRIES).then(|| PATIENCE.saturating_sub(spent));
                match keyspace.engine.close_gate(patience) {
                    Some(gate) => gates.push(gate),
                    None => break,
                }
            }
            if gates.len() == gated.len() {
                return Ok(gates);
            }
            if self.runtime.is_stepped() {
                break;
            }
        }
        Err(inside_of_a_batch())
    }

    /// Lets operations find a keyspace that was opened or made, with its parts of the snapshots that
    /// cover it. Nothing was written to it since they were taken.
    pub(crate) fn put_open(&self, place: &Place, keyspace: Arc<KeyspaceState>) -> Result<()> {
        // Dropped after the lock: the last handle of a snapshot takes it.
        let alive: Vec<Arc<Live>>;
        let taking = self.moments.taking.lock();
        alive = taking.alive().filter(|live| live.covered.contains(&place.id)).collect();
        if keyspace.engine.capabilities().snapshots {
            for live in &alive {
                let part = if keyspace.engine.has_gate() {
                    let gate = keyspace.engine.close_gate(None).ok_or_else(inside_of_a_batch)?;
                    Arc::new(Part { engine: gate.snapshot()?, open: keyspace.clone() })
                } else {
                    begin(&keyspace, live.number)?
                };
                live.parts.lock().insert(place.id, part);
            }
        }
        place.open.put(keyspace);
        Ok(())
    }
}
