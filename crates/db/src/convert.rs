//! Keyspaces that get another name or another engine.
//!
//! A keyspace's file is named by its id, so a new name is one change of the manifest. Another engine
//! is a copy under a new id and one change of the manifest, which replaces the original by the copy:
//!
//! ```text
//!   freeze original (P20) --> copy into a file of a new id --> install, manifest --> drop original
//!                             a crash here leaves a file       a crash here leaves the file of
//!                             of no keyspace                   the original, of no keyspace then
//! ```
//!
//! **Invariants**
//! 1. No write reaches the original between the freeze and the change of the manifest: the freeze
//!    waits for writes that have passed their check, as a drop does, and later ones are refused.
//! 2. The manifest names either the original or the copy, under the same name.
//! 3. The original stays open and frozen until then: its state is pinned, so it is not parked.

use std::sync::Arc;

use spinney_base::{Error, Result, probe};
use spinney_engine::Bulk;

use crate::database::Db;
use crate::engines::EngineKind;
use crate::keyspace::Keyspace;
use crate::keyspace_state::{KeyspaceState, account_name};
use crate::manifest::{ManifestKeyspace, check_name};
use crate::options::KeptOptions;
use crate::place::Place;
use crate::state::State;

/// Thaws a keyspace whose conversion failed.
struct Thaw<'a>(&'a KeyspaceState);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.thaw();
    }
}

impl Db {
    /// Gives a keyspace another name. Open handles stay valid and show the new name.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// users.insert("ada", "1815")?;
    /// db.rename_keyspace("users", "people")?;
    /// assert_eq!(users.name(), "people");
    /// assert!(db.existing_keyspace("people")?.contains_key("ada")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` when `to` is unusable or the name of another keyspace;
    /// `Corruption` when the manifest in the directory is no longer this database's; `Full`,
    /// `Poisoned`, `ReadOnly` or `Closed`. After `Io` either name may be there when the database is
    /// next opened.
    pub fn rename_keyspace(&self, name: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let state = &self.handle.state;
        let _no_checkpoint = state.checkpoints.hold();
        state.life.check_writable()?;
        let place = self.place(name)?;
        if name == to {
            return Ok(());
        }
        if state.keyspaces.by_name(to).is_some() {
            return Err(Error::invalid(format!("there is a keyspace {to:?} already")));
        }
        let _inside = probe::enter("keyspace rename");
        let mut manifest = state.keyspaces.manifest.lock();
        let mut next = manifest.clone();
        let entry = next.keyspaces.iter_mut().find(|entry| entry.id == place.id);
        to.clone_into(&mut entry.expect("the manifest has every place").name);
        next.write(&*state.files.directory, &state.life.poison)?;
        *manifest = next;
        place.name.set(to);
        if let Some(open) = state.keyspaces.open_one(place.id) {
            open.memory.rename(account_name(place.options.engine, to));
        }
        Ok(())
    }

    /// Moves a keyspace to another engine and returns a handle of it: a copy of all records, then one
    /// change of the manifest. A crash leaves the keyspace with one engine or the other, with all its
    /// records. The copy takes as much disk as the keyspace until the original's file is removed at
    /// the end.
    ///
    /// Meanwhile the keyspace can be read, and writes to it are refused with `Conflict`. Handles,
    /// cursors and snapshots from before answer `Closed` afterwards. Whether the keyspace is logged
    /// stays as it is. A keyspace that already has the engine stays as it is.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// use spinney_db::EngineKind;
    /// db.keyspace("events", EngineKind::TreeLine)?.insert("1", "began")?;
    /// let events = db.convert_keyspace("events", EngineKind::Turtle)?;
    /// assert_eq!(events.engine(), EngineKind::Turtle);
    /// assert_eq!(events.get("1")?.unwrap(), "began");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the keyspace is being converted already; `Corruption` when a record
    /// of the keyspace cannot be read; `Full`, `Io`, `Poisoned`, `ReadOnly` or `Closed`. The keyspace
    /// stays as it was, except that after `Poisoned` or `Io` from the manifest's sync, which stop all
    /// writing, the next opening may find it converted.
    pub fn convert_keyspace(&self, name: &str, engine: EngineKind) -> Result<Keyspace> {
        let state = &self.handle.state;
        state.life.check_writable()?;
        let old = self.place(name)?;
        let handle = |place| Keyspace { handle: self.handle.clone(), place };
        if old.options.engine == engine {
            return Ok(handle(old));
        }
        let _inside = probe::enter("keyspace convert");
        let original = state.enter(&old)?.pin();
        {
            // No write is between its check and its apply (P20).
            let _drained = state.writers.door.write();
            original.freeze()?;
        }
        let thaw = Thaw(&original);
        let (new, made) = {
            let _no_checkpoint = state.checkpoints.hold();
            let options = KeptOptions { engine, logged: old.options.logged };
            state.make_keyspace(&old.name.get(), options)?
        };
        let filled = {
            let _counted = state.memory.count(made.clone());
            self.fill_copy(&handle(old.clone()), &made)
        };
        let converted =
            filled.and_then(|bulk| state.put_copy((&old, &original), (&new, &made), bulk));
        if let Err(error) = converted {
            let manifest = state.keyspaces.manifest.lock().clone();
            if manifest.keyspaces.iter().any(|entry| entry.id == new.id) {
                state.memory.budget.close(&made.memory);
            } else {
                state.unmake_keyspace(made);
            }
            return Err(error);
        }
        std::mem::forget(thaw);
        state.share_out();
        drop(original);
        drop(old.open.take_idle(|_| false));
        // Nobody needs it, and the next opening removes what is left.
        let _ = state.files.remove(old.id);
        Ok(handle(new))
    }

    fn place(&self, name: &str) -> Result<Arc<Place>> {
        self.handle.state.keyspaces.by_name(name).ok_or_else(|| self.no_keyspace(name))
    }
}

/// A load that has all records of the original and is not installed yet.
type Filled<'a> = Box<dyn Bulk + 'a>;

impl Db {
    /// Copies all records of a frozen keyspace.
    fn fill_copy<'a>(&self, original: &Keyspace, copy: &'a KeyspaceState) -> Result<Filled<'a>> {
        let state = &self.handle.state;
        let mut bulk = copy.engine.bulk()?;
        for record in original.iter() {
            let (key, value) = record?;
            state.life.check_writable()?;
            state
                .push_to_bulk(copy, &key, &value, |value| bulk.push(&key, value))
                .inspect_err(|error| state.note(error))?;
        }
        Ok(bulk)
    }
}

impl State {
    /// Replaces the original by its copy.
    fn put_copy(
        &self,
        (old, original): (&Arc<Place>, &Arc<KeyspaceState>),
        (new, copy): (&Arc<Place>, &Arc<KeyspaceState>),
        bulk: Filled<'_>,
    ) -> Result<()> {
        let _no_backup = self.exclude_backup()?;
        let _no_checkpoint = self.checkpoints.hold();
        // Nobody drops it meanwhile.
        let _kept = old.kept.lock();
        old.check_alive()?;
        self.add_new(new, copy.clone(), || {
            self.switch((old, original), new, bulk)?;
            original.job.stop();
            Ok(())
        })
    }

    /// Installs a copy and changes the manifest, while nobody writes.
    fn switch(
        &self,
        (old, original): (&Arc<Place>, &Arc<KeyspaceState>),
        new: &Arc<Place>,
        bulk: Filled<'_>,
    ) -> Result<()> {
        let _no_writes = self.writers.door.write();
        self.life.check_writable()?;
        self.moments
            .load(self.versions.certifier.clock(), |number| bulk.install(number))
            .inspect_err(|error| self.note(error))?;
        self.log.ensure_durable(self.log.last_lsn())?;
        self.files.directory.sync()?;
        let mut manifest = self.keyspaces.manifest.lock();
        let name = old.name.get();
        new.name.set(&name);
        let mut next = manifest.clone();
        next.keyspaces.retain(|entry| entry.id != old.id);
        next.keyspaces.push(ManifestKeyspace { id: new.id, name, options: new.options });
        // Ids ascend, and another keyspace may have come meanwhile.
        next.keyspaces.sort_unstable_by_key(|entry| entry.id);
        next.write(&*self.files.directory, &self.life.poison)?;
        *manifest = next;
        self.keyspaces.list(new);
        self.forget(old, Some(original));
        Ok(())
    }
}
