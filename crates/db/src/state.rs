//! What all handles of one open database share.
//!
//! A keyspace is a [`Place`](crate::place::Place), which its handles hold, and while it is open a
//! [`KeyspaceState`](crate::keyspace_state::KeyspaceState). See `parking`.
//!
//! Each part of the state has a module of its own, takes the other parts that it works on, and does
//! not know the whole. Operations over several parts are methods of [`State`], in the modules that
//! they serve.
//!
//! **Lock order**, first to last: `checkpointing` ([`Checkpoints`]), `Place::kept`, `log_part`
//! ([`Backups`]), `large_batch` and `door` ([`Writers`]), `manifest` and `places` ([`Keyspaces`]),
//! `taking` ([`Moments`]),
//! `sharing` ([`Memory`]), `open` ([`Keyspaces`]), `KeyspaceState::seen_use`; then the writers'
//! guards of engines in ascending order of keyspace ids, the engine's preparation (which may do
//! I/O), `large_logging` ([`Writers`]), the stripes, the engine's own latches. Stripes are held for
//! memory work only.

use std::sync::{Arc, Weak};

use spinney_base::shim::Mutex;
use spinney_base::{Error, Runtime};
use spinney_sync::{LockTable, Moment};
use spinney_wal::Log;

use crate::backup_log::Backups;
use crate::checkpoints::Checkpoints;
use crate::files::Files;
use crate::jobs::Jobs;
use crate::keyspaces::Keyspaces;
use crate::life::Life;
use crate::memory::Memory;
use crate::moments::Moments;
use crate::options::Options;
use crate::room::Room;
use crate::scrub::Scrub;
use crate::versions::Versions;
use crate::writers::Writers;

/// One open database.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) runtime: Runtime,
    pub(crate) life: Life,
    pub(crate) log: Arc<Log>,
    pub(crate) stripes: LockTable,
    pub(crate) writers: Writers,
    pub(crate) moments: Arc<Moments>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) memory: Memory,
    pub(crate) room: Room,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) backups: Backups,
    pub(crate) scrub: Mutex<Scrub>,
    pub(crate) jobs: Jobs,
    /// Reference to this state, for jobs of keyspaces that are opened later.
    pub(crate) me: Mutex<Weak<State>>,
    /// The last: other processes may have the directory when everything else is gone.
    pub(crate) files: Files,
}

impl State {
    /// Notes an error of background work or of a write. An error that stops the log or the files
    /// stops everything.
    pub(crate) fn note(&self, error: &Error) {
        if error.is_poisoned() {
            self.life.poison.set(error.clone());
        }
        if let Err(cause) = self.life.poison.check() {
            self.log.poison(cause);
        }
    }

    /// Returns the present moment: a read that begins after it sees
    /// everything that was written before it.
    pub(crate) fn moment(&self) -> Moment {
        self.stripes.moment(self.log.last_lsn())
    }

    /// Bytes of memory that all accounts, the lock table and the log hold.
    pub(crate) fn memory_used(&self) -> u64 {
        self.memory.budget.used()
            + (self.stripes.bytes() + self.versions.certifier.board_bytes()) as u64
            + self.log.memory_bytes()
    }
}
