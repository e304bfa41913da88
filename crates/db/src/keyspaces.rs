//! The keyspaces of one open database: the manifest, a [`Place`] for each, and those that are open.
//!
//! **Lock order**, first to last: `Place::kept`, `manifest`, the list of all keyspaces, the list of
//! open ones.

use std::sync::Arc;
use std::time::Duration;

use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{KeyspaceId, Lsn, Result};
use spinney_engine::EngineStats;
use spinney_io::Directory;

use crate::keyspace_state::KeyspaceState;
use crate::manifest::Manifest;
use crate::place::Place;

/// The keyspaces of one open database.
#[derive(Debug)]
pub(crate) struct Keyspaces {
    pub(crate) manifest: Mutex<Manifest>,
    /// All keyspaces, in the order of their creation.
    pub(crate) places: RwLock<Vec<Arc<Place>>>,
    /// The open keyspaces, in the same order.
    pub(crate) open: RwLock<Vec<Arc<KeyspaceState>>>,
    /// The log's end when the database was opened.
    pub(crate) recovered_to: Lsn,
}

impl Keyspaces {
    /// Makes the lists of a database that is being opened. Recovery fills them.
    pub(crate) fn new(manifest: Manifest, recovered_to: Lsn) -> Keyspaces {
        Keyspaces {
            manifest: Mutex::new(manifest),
            places: RwLock::new(Vec::new()),
            open: RwLock::new(Vec::new()),
            recovered_to,
        }
    }

    /// Takes an id for a new keyspace. It is not given out again, whatever becomes of the keyspace.
    ///
    /// # Errors
    /// As [`Manifest::check_there`].
    pub(crate) fn take_id(&self, directory: &dyn Directory) -> Result<KeyspaceId> {
        let mut manifest = self.manifest.lock();
        manifest.check_there(directory)?;
        let id = manifest.next_id;
        manifest.next_id = KeyspaceId(id.0 + 1);
        Ok(id)
    }

    /// Returns all keyspaces.
    pub(crate) fn places(&self) -> Vec<Arc<Place>> {
        self.places.read().clone()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<Arc<Place>> {
        self.places.read().iter().find(|place| place.name.is(name)).cloned()
    }

    pub(crate) fn by_id(&self, id: KeyspaceId) -> Option<Arc<Place>> {
        let places = self.places.read();
        let found = places.binary_search_by_key(&id, |place| place.id).ok()?;
        Some(places[found].clone())
    }

    /// Lists a keyspace, in the order of ids.
    pub(crate) fn list(&self, place: &Arc<Place>) {
        let mut places = self.places.write();
        let at = places.partition_point(|other| other.id < place.id);
        places.insert(at, place.clone());
    }

    /// Takes a keyspace off the list of all.
    pub(crate) fn unlist(&self, id: KeyspaceId) {
        self.places.write().retain(|other| other.id != id);
    }

    /// Returns the keyspaces that are open now.
    pub(crate) fn open(&self) -> Vec<Arc<KeyspaceState>> {
        self.open.read().clone()
    }

    /// Returns the open keyspace with this id.
    pub(crate) fn open_one(&self, id: KeyspaceId) -> Option<Arc<KeyspaceState>> {
        let open = self.open.read();
        let found = open.binary_search_by_key(&id, |keyspace| keyspace.id).ok()?;
        Some(open[found].clone())
    }

    /// Returns whether no keyspace is open.
    pub(crate) fn none_open(&self) -> bool {
        self.open.read().is_empty()
    }

    /// Number of open keyspaces.
    pub(crate) fn count_open(&self) -> usize {
        self.open.read().len()
    }

    /// Lists a keyspace as open, in the order of ids. Returns whether it is the only one.
    pub(crate) fn list_open(&self, keyspace: Arc<KeyspaceState>) -> bool {
        let mut open = self.open.write();
        let at = open.partition_point(|other| other.id < keyspace.id);
        open.insert(at, keyspace);
        open.len() == 1
    }

    /// Takes a keyspace off the list of open ones.
    pub(crate) fn unlist_open(&self, id: KeyspaceId) {
        self.open.write().retain(|other| other.id != id);
    }

    /// Returns the least redo LSN of the open keyspaces, `end` at most.
    pub(crate) fn least_redo(&self, end: Lsn) -> Lsn {
        let redo = self.open().iter().map(|keyspace| keyspace.redo()).min();
        redo.unwrap_or(end).min(end)
    }

    /// Returns whether a checkpoint would free extents of large values.
    pub(crate) fn has_freed_large(&self) -> bool {
        self.open().iter().any(|one| one.engine.stats().large_freed_bytes > 0)
    }

    /// Returns the statistics of a keyspace, and whether it is parked.
    pub(crate) fn stats_of(&self, place: &Place) -> (EngineStats, bool) {
        match self.open_one(place.id) {
            Some(keyspace) => (keyspace.engine.stats(), false),
            None => (place.kept.lock().stats(), true),
        }
    }

    /// Sets options of the engine's own, which hold until the database is closed.
    pub(crate) fn set_own(&self, place: &Place, own: &[(String, String)]) -> Result<()> {
        if own.is_empty() {
            return Ok(());
        }
        let mut kept = place.kept.lock();
        if let Some(keyspace) = self.open_one(place.id) {
            own.iter().try_for_each(|(name, value)| keyspace.engine.set_option(name, value))?;
        }
        kept.set_own(own);
        Ok(())
    }

    /// Returns whether a keyspace was written to since its last scrub began, or that is long ago.
    pub(crate) fn is_scrub_due(&self, place: &Place, now: Duration) -> bool {
        let is_old = place.kept.lock().is_scrub_old(now);
        is_old || self.open_one(place.id).is_some_and(|open| open.is_unscrubbed())
    }

    /// Notes that a scrub of a keyspace begins.
    pub(crate) fn scrub_begins(&self, place: &Place, now: Duration) {
        let mut kept = place.kept.lock();
        kept.set_scrubbed(now);
        if let Some(open) = self.open_one(place.id) {
            open.begin_scrub();
        }
    }
}
