//! Snapshots of a database: one moment of many keyspaces.

use std::sync::Arc;
use std::time::Duration;

use spinney_base::Result;

use crate::database::Db;
use crate::handle::Handle;
use crate::keyspace::Keyspace;
use crate::moments::Live;
use crate::snapshot::Snapshot;

/// A view of many keyspaces at one moment between two batches, whatever engines keep them. Cheap to
/// clone; any number of threads may read from it. It keeps the database open as a [`Keyspace`] does.
///
/// What it needs is kept until its last clone and the last [`Snapshot`] of it are dropped: pages by
/// engines that never overwrite them, and by engines that update in place the values that later
/// writes replace. Where those need more memory or disk than they may take, the snapshot of that
/// keyspace ends: its reads answer `SnapshotTooOld`, and writers continue.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # use spinney_db::{Db, EngineKind, Options};
/// # let db = Db::open(directory.path(), Options::default())?;
/// let users = db.keyspace("users", EngineKind::TreeLine)?;
/// let by_name = db.keyspace("by name", EngineKind::Turtle)?;
/// users.insert("1", "ada")?;
/// by_name.insert("ada", "1")?;
/// let then = db.snapshot()?;
/// users.remove("1")?;
/// by_name.remove("ada")?;
/// assert_eq!(then.keyspace(&users)?.get("1")?.unwrap(), "ada");
/// assert_eq!(then.keyspace(&by_name)?.iter().count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DbSnapshot {
    live: Arc<Live>,
    handle: Arc<Handle>,
}

impl Db {
    /// Takes a snapshot of all keyspaces that there are now. It holds batches and transactions whole
    /// or not at all, and everything that was acknowledged before.
    ///
    /// Writers are not stopped, but for batches over engines that take views of themselves
    /// (`turtle`): they wait until no such batch is under way, for 10 ms at a time at most.
    ///
    /// # Errors
    /// `Closed`; `Io` or `Poisoned`; `InvalidArgument` from inside of a batch, which only a job of a
    /// stepped runtime can be.
    pub fn snapshot(&self) -> Result<DbSnapshot> {
        let state = &self.handle.state;
        state.life.check_open()?;
        Ok(DbSnapshot { live: state.take_snapshot(None)?, handle: self.handle.clone() })
    }

    /// Takes a snapshot of these keyspaces, as [`Db::snapshot`] does of all.
    ///
    /// # Errors
    /// As [`Db::snapshot`]; `InvalidArgument` for a keyspace of another database; `Unsupported` when
    /// an engine takes no snapshots.
    pub fn snapshot_of(&self, keyspaces: &[&Keyspace]) -> Result<DbSnapshot> {
        let state = &self.handle.state;
        state.check_ours(keyspaces.iter().map(|keyspace| &*keyspace.place))?;
        let pinned = keyspaces.iter().map(|keyspace| Ok(keyspace.enter()?.pin()));
        let pinned = pinned.collect::<Result<_>>()?;
        let live = state.take_snapshot(Some(pinned))?;
        Ok(DbSnapshot { live, handle: self.handle.clone() })
    }
}

impl DbSnapshot {
    /// Returns the snapshot of one keyspace, which is opened if it is parked.
    ///
    /// # Errors
    /// `InvalidArgument` for a keyspace that the snapshot does not cover, because it was not chosen,
    /// was made later, or belongs to another database; `Closed` for one that was dropped or
    /// converted; `Unsupported` when its engine takes no snapshots; else as an opening.
    pub fn keyspace(&self, keyspace: &Keyspace) -> Result<Snapshot> {
        let state = &self.handle.state;
        state.check_ours(std::iter::once(&*keyspace.place))?;
        // It is opened if it is parked, and gets its part then.
        let _open = keyspace.enter()?;
        let part = self.live.part(&keyspace.place)?;
        Ok(Snapshot::of(keyspace, part, self.live.clone()))
    }

    /// Returns for how long the snapshot has lived.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.handle.state.runtime.now().saturating_sub(self.live.since())
    }
}
