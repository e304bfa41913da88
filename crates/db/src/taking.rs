//! Taking snapshots of the database; [`moments`](crate::moments) has the picture and the invariants.

use std::sync::Arc;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Result, probe};
use spinney_engine::{ClosedGate, SnapshotNumber};

use crate::keyspace_state::KeyspaceState;
use crate::moments::{Live, Part, Parts, Taking};
use crate::place::Place;
use crate::state::State;

/// How long the gates of a snapshot are closed while some batch is still inside of one. Then they
/// are opened for a while, because batches wait.
const PATIENCE: Duration = Duration::from_millis(10);
/// Number of such tries. The next one waits for as long as it takes.
const TRIES: usize = 8;

/// Begins a snapshot in a keyspace whose engine updates in place.
fn begin(keyspace: &Arc<KeyspaceState>, number: SnapshotNumber) -> Result<Part> {
    let engine = keyspace.engine.clone().begin_snapshot(number)?;
    Ok(Part { engine, open: keyspace.clone() })
}

fn inside_of_a_batch() -> Error {
    let text = "a snapshot cannot be taken from inside of a batch";
    Error::new(ErrorKind::InvalidArgument, text)
}

impl State {
    /// Takes a snapshot of these keyspaces, which the caller has pinned, or of all.
    pub(crate) fn take_snapshot(&self, only: Option<Vec<Arc<KeyspaceState>>>) -> Result<Arc<Live>> {
        let _inside = probe::enter("take snapshot");
        // No load becomes visible meanwhile.
        let _door = self.writers.door.read();
        // One that is made or converted meanwhile is not in it.
        let places = if only.is_none() { self.keyspaces.places() } else { Vec::new() };
        let mut taking = self.moments.hold();
        let covered = match &only {
            Some(these) => these.iter().map(|keyspace| keyspace.id).collect(),
            None => places.iter().map(|place| place.id).collect(),
        };
        let has_versions = match &only {
            Some(these) => these.iter().any(|keyspace| keyspace.has_versions),
            None => places.iter().any(|place| place.options.engine.row().capabilities.versions),
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
        let mut parts = Parts::new();
        let begun = in_place.iter().try_for_each(|keyspace| {
            parts.insert(keyspace.id, Arc::new(begin(keyspace, number)?));
            Ok(())
        });
        let gates = begun.and_then(|()| self.close_gates(&gated));
        // Also where it fails: no batch after this bears a lesser number than the tables there are. These
        // may have taken in the tables of earlier snapshots when the parts have gone.
        if has_versions {
            // Transactions that come after it find out before they certify (T13).
            self.versions.certifier.mark(|stamp| self.moments.store(number, stamp));
        } else {
            self.moments.store(number, self.versions.certifier.clock().draw());
        }
        let gates = gates.inspect_err(|_| self.give_up(&taking))?;
        let viewed: Result<()> = gated.iter().zip(&gates).try_for_each(|(keyspace, gate)| {
            let part = Part { engine: gate.snapshot()?, open: keyspace.clone() };
            parts.insert(keyspace.id, Arc::new(part));
            Ok(())
        });
        drop(gates);
        viewed.inspect_err(|_| self.give_up(&taking))?;
        let since = self.runtime.now();
        let live = taking.add(&self.moments, (number, since), covered, parts);
        let live = live.inspect_err(|_| self.give_up(&taking))?;
        // Writers that loaded less may not have applied (S2).
        self.log.quiesce();
        Ok(live)
    }

    /// Waits for all writers that bear a lesser number, before the tables of a snapshot that was not
    /// taken go.
    fn give_up(&self, taking: &Taking) {
        self.moments.rest(taking);
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
        let taking = self.moments.hold();
        alive = taking.alive().filter(|live| live.covers(place)).collect();
        if keyspace.engine.capabilities().snapshots {
            for live in &alive {
                let part = if keyspace.engine.has_gate() {
                    let gate = keyspace.engine.close_gate(None).ok_or_else(inside_of_a_batch)?;
                    Part { engine: gate.snapshot()?, open: keyspace.clone() }
                } else {
                    begin(&keyspace, live.number())?
                };
                live.add(place, part);
            }
        }
        place.open.put(keyspace);
        Ok(())
    }
}
