//! Snapshots: views without an active memtable, kept while their handles live (rule P25).
//!
//! ```text
//!   taken          between two batches: seal, then keep (sealed memtables, tree)
//!   as time goes   the tree in which they all are takes their place, and the same tree on disk its
//!   under pressure its own view is written out; where even that fails, it ends
//! ```
//!
//! 1. A snapshot holds a pin of large values from before its view was looked at, so what its view
//!    points to stays.
//! 2. Any view that replaces its own has the same records.
//! 3. Once it has ended it answers `SnapshotTooOld` with the reason, never something else.
//!
//! **Memory.** What it shares with the newest view costs nothing more. What only snapshots keep
//! counts as held for writes: the whole view of each, which is an upper bound.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Error, ErrorKind, Result, probe};
use spinney_engine::{
    Chunk, ClosedGate, EngineSnapshot, Found, OwnedValue, ScanRequest, SnapshotStats,
};

use crate::core::{Core, count};
use crate::gate::Closed;
use crate::pinned::Pinned;
use crate::version::Tree;
use crate::view::View;

/// The handle that reads from a snapshot. Dropping it ends the snapshot.
#[derive(Debug)]
pub(crate) struct TurtleSnapshot {
    core: Arc<Core>,
    pinned: Arc<Pinned>,
}

impl Drop for TurtleSnapshot {
    fn drop(&mut self) {
        self.pinned.view.store(None);
        self.core.snapshots.count(&self.core.view.load());
    }
}

/// A keyspace with no batch inside.
struct Still<'a> {
    core: &'a Arc<Core>,
    _closed: Closed<'a>,
}

impl ClosedGate for Still<'_> {
    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>> {
        let core = self.core;
        let _inside = probe::enter("snapshot");
        let pin = core.large.pin();
        let (memtable, _) = core.seal_alone();
        let view = core.view.load();
        let view = View::new(view.tables[1..].to_vec(), view.tree.clone());
        let view = ArcSwapOption::from_pointee(view);
        let ended = OnceLock::new();
        let pinned = Arc::new(Pinned { memtable, view, ended, _pin: pin });
        // Before anything is written, so that no upgrade is missed.
        core.snapshots.add(&pinned);
        core.wanted.store(true, Relaxed);
        Ok(Box::new(TurtleSnapshot { core: Arc::clone(core), pinned }))
    }
}

impl Core {
    /// As [`spinney_engine::Engine::close_gate`].
    pub(crate) fn close_gate(
        self: &Arc<Self>,
        patience: Option<Duration>,
    ) -> Option<Box<dyn ClosedGate + '_>> {
        let closed = match self.context.runtime.is_stepped() {
            true => self.gate.try_close(),
            false => self.gate.close_within(patience),
        };
        closed.map(|closed| Box::new(Still { core: self, _closed: closed }) as Box<dyn ClosedGate>)
    }
}

impl TurtleSnapshot {
    fn view(&self) -> Result<Arc<View>> {
        self.pinned.view.load_full().ok_or_else(|| {
            let text = "the snapshot ended (take a new one): its memory was needed, and writing it out failed";
            let cause = self.pinned.ended.get().cloned();
            cause.map_or_else(
                || Error::new(ErrorKind::SnapshotTooOld, text),
                |cause| cause.wrap(ErrorKind::SnapshotTooOld, text),
            )
        })
    }
}

impl EngineSnapshot for TurtleSnapshot {
    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        self.view()?.get(key, hash, out)
    }

    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        self.view()?.get_many(keys, |_, _| false)
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.view()?.scan(request, chunk)
    }

    fn stats(&self) -> SnapshotStats {
        let view = self.pinned.view.load();
        let memory_bytes = view.as_ref().map_or(0, |view| view.memory_bytes());
        SnapshotStats::new(memory_bytes, view.is_none())
    }
}

impl Core {
    /// Gives back memory that only snapshots keep: writes out the view of the oldest that has any,
    /// or ends it. Returns whether there was one.
    pub(crate) fn relieve(&self) -> Result<bool> {
        if self.snapshots.bytes() == 0 {
            return Ok(false);
        }
        // So that the keyspace's own tree does not move on meanwhile.
        let work = self.progress.work.lock();
        let now = self.view.load_full();
        for one in self.snapshots.all() {
            let Some(view) = one.view.load_full() else { continue };
            let shared = view.tree.is(&now.tree) || one.memtable > work.applied;
            if shared || view.memory_bytes() == 0 {
                continue;
            }
            let _inside = probe::enter("snapshot written");
            let written = self.write_out(&view);
            count(match written {
                Ok(_) => &self.counters.snapshots_written,
                Err(_) => &self.counters.snapshots_ended,
            });
            let view = match &written {
                Ok(tree) => Some(Arc::new(View::new(Vec::new(), tree.clone()))),
                Err(error) => {
                    // It has none yet: only the thread that holds `work` ends snapshots.
                    _ = one.ended.set(error.clone());
                    None
                }
            };
            one.view.store(view);
            self.snapshots.count(&self.view.load());
            return match written {
                Err(error) if error.is_poisoned() => Err(error),
                _ => Ok(true),
            };
        }
        Ok(false)
    }

    /// Writes a view of an earlier moment out, as a tree of its own.
    fn write_out(&self, view: &View) -> Result<Tree> {
        let log = &self.context.log;
        let end = log.last_lsn();
        log.ensure_durable(end)?;
        let mut tree = view.tree.clone();
        // The keyspace's own tree notes what is merged away here, or has noted it.
        for table in view.tables.iter().rev() {
            tree = tree.apply(table.batch()?, None, &mut Vec::new())?;
        }
        tree.write(end, &mut Vec::new())
    }
}
