//! Replay of user records on all cores.
//!
//! ```text
//!  log:  [r1] [r2] [r3] ...          one thread reads, checks and decodes
//!          |    |    |
//!          v    v    v               by stripe of the key
//!   parts of 64 KiB of operations -> worker 0:  prepare, apply, prepare, apply ..
//!                                 -> worker 1:  ..
//! ```
//!
//! **Why the order is right.** All operations of a key have one stripe, so one worker has them, in the order of the log:
//! that is all that replay needs (P15). What engines keep from each other by stripes they keep here, too. Nothing is
//! published before all workers have ended (P19), so an operation that was applied before an earlier one of another
//! key is in no file alone.
//!
//! A simulation replays on the thread that reads, so that each seed does the same every time.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, ValueRef};
use spinney_engine::SnapshotNumber;
use spinney_sync::hash_key;
use spinney_wal::{RecordKind, Recovered};

use crate::keyspace_state::KeyspaceState;
use crate::record::{self, Change};
use crate::state::State;
use crate::write::KeyspaceWrite;

/// Keyspaces by id.
type ById = BTreeMap<KeyspaceId, Arc<KeyspaceState>>;

/// Most workers. With more, the thread that reads cannot keep them busy.
const WORKERS_MAX: usize = 8;
/// Bytes of operations that a worker gets at once. With fewer, threads wake each other more often; with more, the last
/// worker ends later.
const PART_BYTES: usize = 64 << 10;
/// Parts that wait for a worker, at most.
const PARTS_WAITING: usize = 2;

/// Operations for one worker.
#[derive(Debug, Default)]
struct Part {
    operations: Vec<Operation>,
    bytes: Vec<u8>,
}

/// One operation, whose key and value lie in the bytes of its part.
#[derive(Debug)]
struct Operation {
    keyspace: KeyspaceId,
    lsn: Lsn,
    key: usize,
    /// Where the value ends, and whether it is large; `None` for a removal.
    value: Option<(usize, bool)>,
    is_patch: bool,
}

impl Part {
    fn push(&mut self, (keyspace, lsn): (KeyspaceId, Lsn), key: &[u8], change: Change<'_>) {
        let Change { value, is_patch } = change;
        self.bytes.extend_from_slice(key);
        let key = self.bytes.len();
        let value = value.map(|value| {
            self.bytes.extend_from_slice(value.bytes);
            (self.bytes.len(), value.large)
        });
        self.operations.push(Operation { keyspace, lsn, key, value, is_patch });
    }

    /// Applies all of them in order.
    fn apply(&self, keyspaces: &ById) -> Result<()> {
        let mut begin = 0;
        for operation in &self.operations {
            let key = &self.bytes[begin..operation.key];
            let value = operation
                .value
                .map(|(end, large)| ValueRef { bytes: &self.bytes[operation.key..end], large });
            begin = operation.value.map_or(operation.key, |(end, _)| end);
            let change = Change { value, is_patch: operation.is_patch };
            apply(&keyspaces[&operation.keyspace], operation.lsn, key, change)?;
        }
        Ok(())
    }
}

/// Applies one operation by the ordinary path.
fn apply(keyspace: &KeyspaceState, lsn: Lsn, key: &[u8], change: Change<'_>) -> Result<()> {
    let engine = &keyspace.engine;
    let write = KeyspaceWrite::of(keyspace, key, change);
    let checked = write.check().and_then(|()| engine.check(&write.write));
    checked.map_err(|error| {
        error.wrap(ErrorKind::Corruption, format!("log record {lsn} cannot be applied"))
    })?;
    engine.enter()?;
    let applied = engine.prepare(&write.write).map(|prepared| {
        // One that does not fit is of a value that a later record replaces, and its image has that.
        _ = write.apply(prepared, lsn, SnapshotNumber::NONE);
    });
    engine.leave();
    applied
}

impl State {
    /// Replays the user records from `first` on into these keyspaces, above the redo LSN of each.
    pub(crate) fn replay_users(
        &self,
        recovered: &Recovered,
        first: Lsn,
        keyspaces: &ById,
    ) -> Result<()> {
        let workers = self.replay_workers();
        if workers < 2 {
            return each_operation(recovered, first, keyspaces, |(id, lsn), key, change| {
                apply(&keyspaces[&id], lsn, key, change)
            });
        }
        std::thread::scope(|scope| {
            let (senders, handles): (Vec<_>, Vec<_>) = (0..workers)
                .map(|_| {
                    let (sender, receiver) = sync_channel(PARTS_WAITING);
                    (sender, scope.spawn(move || work(&receiver, keyspaces)))
                })
                .unzip();
            let read = self.hand_out(recovered, first, keyspaces, &senders);
            // Workers end once nothing comes any more.
            drop(senders);
            let worked = handles.into_iter().map(|handle| match handle.join() {
                Ok(worked) => worked,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are waited for. What a worker says is why the reader could not go on.
            worked.fold(Ok(()), Result::and).and(read)
        })
    }

    /// How many threads apply what is replayed.
    fn replay_workers(&self) -> usize {
        if self.runtime.is_stepped() || cfg!(feature = "shuttle") {
            return 1;
        }
        std::thread::available_parallelism().map_or(1, NonZero::get).min(WORKERS_MAX)
    }

    /// Hands operations out to workers, each key to the one of its stripe.
    fn hand_out(
        &self,
        recovered: &Recovered,
        first: Lsn,
        keyspaces: &ById,
        workers: &[SyncSender<Part>],
    ) -> Result<()> {
        let mut parts: Vec<Part> = workers.iter().map(|_| Part::default()).collect();
        each_operation(recovered, first, keyspaces, |(id, lsn), key, change| {
            let at = self.stripes.index(hash_key(id, key)) % workers.len();
            parts[at].push((id, lsn), key, change);
            if parts[at].bytes.len() < PART_BYTES {
                return Ok(());
            }
            workers[at].send(std::mem::take(&mut parts[at])).map_err(|_| has_ended())
        })?;
        for (worker, part) in workers.iter().zip(parts) {
            worker.send(part).map_err(|_| has_ended())?;
        }
        Ok(())
    }
}

/// Applies parts until none comes any more, or one cannot be applied.
fn work(parts: &Receiver<Part>, keyspaces: &ById) -> Result<()> {
    parts.iter().try_for_each(|part| part.apply(keyspaces))
}

/// What the reader says when a worker has ended early; the worker says why.
fn has_ended() -> Error {
    Error::new(ErrorKind::Closed, "a thread that replays has ended")
}

/// Calls `visit` with each operation of the log that one of these keyspaces lacks.
fn each_operation(
    recovered: &Recovered,
    first: Lsn,
    keyspaces: &ById,
    mut visit: impl FnMut((KeyspaceId, Lsn), &[u8], Change<'_>) -> Result<()>,
) -> Result<()> {
    recovered.replay(first, |entry| {
        if entry.kind != RecordKind::User {
            return Ok(());
        }
        record::decode(entry.payload, entry.lsn, |id, key, change| match keyspaces.get(&id) {
            Some(keyspace) if entry.lsn > keyspace.engine.redo() => {
                visit((id, entry.lsn), key, change)
            }
            _ => Ok(()),
        })
    })
}
