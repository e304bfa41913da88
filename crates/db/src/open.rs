//! Opening a database: creation and recovery.
//!
//! 1. Take the directory.
//! 2. Read the manifest, or make a database.
//! 3. Open the log, which decides which records count, and makes that durable (P8, P9).
//! 4. Find the keyspaces that the log names. Open every keyspace at its checkpoint, one after the
//!    other, make the checkpoint durable where it may not be (P9), and close those that are not
//!    named: the next use opens them (see `parking`).
//! 5. Replay structure records, and what user records say of the extents of large values, so that
//!    every engine stands on a consistent shape and knows every page that is owned.
//! 6. Replay the user records above each keyspace's redo LSN, through the ordinary apply path (P15,
//!    P19).
//! 7. Remove files that no keyspace owns.
//! 8. Start background work.
//!
//! **Crash.** A new database gets its log first and its manifest last: without a manifest there is
//! no database. After a crash in recovery, the next recovery finds the same log and the pages that
//! replay wrote back. Replaying over them changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, Result, Runtime, probe};
use spinney_io::{Directory, DirectoryLock, Disk, IfMissing, OpenMode, Overlay, Reserve, Reserved};
use spinney_sync::LockTable;
use spinney_wal::{Log, LogOptions, RecordKind, Recovered, tail_name};

use crate::backup_log::Backups;
use crate::checkpoints::Checkpoints;
use crate::files::{Files, LOG_NAME, file_name, is_keyspace_file, lost, not_found};
use crate::jobs::Jobs;
use crate::keyspace_state::KeyspaceState;
use crate::keyspaces::Keyspaces;
use crate::life::Life;
use crate::manifest::Manifest;
use crate::memory::{Memory, kept};
use crate::moments::Moments;
use crate::options::Options;
use crate::place::{Place, check_end};
use crate::reading::{self, Reading};
use crate::record;
use crate::room::Room;
use crate::state::State;
use crate::target;
use crate::writers::Writers;

/// Opens or creates the database at `path`.
pub(crate) fn open(path: &Path, options: Options) -> Result<Arc<State>> {
    options.check()?;
    let disk = options.open_disk();
    if options.read_only {
        return open_for_reading(disk, path, &options);
    }
    let if_missing = if options.create_if_missing { IfMissing::Create } else { IfMissing::Fail };
    let directory = match disk.directory(path, if_missing) {
        Err(error) if error.kind() == ErrorKind::NotFound && !options.create_if_missing => {
            return Err(not_found(path));
        }
        opened => opened?,
    };
    match open_in(disk.clone(), directory.clone(), None, options.clone()) {
        // The recovery found no space on the disk, even in the reserve. What is there can be read. One that lacks memory says
        // how much: reading takes no less.
        Err(error)
            if error.is_full() && !error.lacks_memory() && Manifest::exists(&*directory)? =>
        {
            open_read_only(disk, directory, &options, Some(error))
        }
        opened => opened,
    }
}

/// Opens or creates the database in `directory`. The caller may hold its lock already.
pub(crate) fn open_in(
    disk: Arc<dyn Disk>,
    directory: Arc<dyn Directory>,
    lock: Option<Box<dyn DirectoryLock>>,
    options: Options,
) -> Result<Arc<State>> {
    options.check()?;
    // Checked before the lock is taken: locking makes a file, and there may be no database to lock.
    if !options.create_if_missing && !is_there(&*directory, &options)? {
        return Err(not_found(directory.path()));
    }
    let lock = match lock {
        Some(lock) => lock,
        None => directory.lock()?,
    };
    assemble(disk, directory, lock, options, None)
}

/// Opens the database at `path` for reading.
fn open_for_reading(disk: Arc<dyn Disk>, path: &Path, options: &Options) -> Result<Arc<State>> {
    let directory = match disk.directory(path, IfMissing::Fail) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_found(path)),
        opened => opened?,
    };
    open_read_only(disk, directory, options, None)
}

/// Opens the database in `directory` for reading; `because` says why, if writing was requested.
fn open_read_only(
    disk: Arc<dyn Disk>,
    directory: Arc<dyn Directory>,
    options: &Options,
    because: Option<Error>,
) -> Result<Arc<State>> {
    options.check()?;
    let lock = directory.lock_shared()?;
    let (part, rest) = reading::divide(options.memory);
    let pages = options.replay_bytes_max.unwrap_or(part);
    let overlay = Arc::new(Overlay::new(directory, pages));
    let beside = options.memory - rest;
    let reading = Reading { overlay: overlay.clone(), because, beside };
    let options = Options { memory: rest, create_if_missing: false, ..options.clone() };
    assemble(disk, overlay, lock, options, Some(reading))
}

/// Opens or creates the database in `directory`, which is an overlay if `reading`.
pub(crate) fn assemble(
    disk: Arc<dyn Disk>,
    directory: Arc<dyn Directory>,
    directory_lock: Box<dyn DirectoryLock>,
    options: Options,
    reading: Option<Reading>,
) -> Result<Arc<State>> {
    let runtime = options.runtime.clone().unwrap_or_else(Runtime::threads);
    let (directory, reserve) = match &reading {
        Some(_) => (directory, None),
        None => {
            let reserve = Arc::new(Reserve::open(directory)?);
            (Arc::new(Reserved::new(reserve.clone())) as Arc<dyn Directory>, Some(reserve))
        }
    };
    let exists = is_there(&*directory, &options)?;
    if !exists && !options.create_if_missing {
        return Err(not_found(directory.path()));
    }
    let _inside = probe::enter(if exists { "recovery" } else { "create" });
    if exists {
        // A killed process may have left names that are not durable: the manifest's, and those of
        // files that it lists or no longer lists (P9).
        directory.sync()?;
    } else {
        create(&*directory, &runtime, &options)?;
    }
    let manifest = Manifest::read(&*directory)?;
    let (log, recovered) = open_log(&*directory, manifest.tag, &options, reading.is_some())?;
    let opened_at = runtime.now();
    let beside = reading.as_ref().map(|reading| reading.beside);
    let state = State {
        life: Life::begin(reading)?,
        files: Files::new(disk, directory, directory_lock, options.torn_writes)?,
        log,
        stripes: LockTable::new(),
        writers: Writers::new(),
        moments: Arc::new(Moments::default()),
        versions: Arc::default(),
        keyspaces: Keyspaces::new(manifest, recovered.last_lsn()),
        memory: Memory::new(options.memory, beside),
        room: Room::new(reserve),
        checkpoints: Checkpoints::new(opened_at),
        backups: Backups::default(),
        scrub: Mutex::default(),
        jobs: Jobs::none(),
        me: Mutex::new(Weak::new()),
        options,
        runtime,
    };
    state.memory.limit_log(&state.log);
    let records = (recovered.last_lsn().0 + 1).saturating_sub(recovered.first_lsn().0);
    state.room.with_last_room(|| state.recover(recovered))?;
    let took = state.runtime.now().saturating_sub(opened_at);
    spinney_base::events::opened(state.files.directory.path(), records, took);
    let state = Arc::new(state);
    *state.me.lock() = Arc::downgrade(&state);
    if state.life.reading.is_none() {
        state.start_jobs()?;
    }
    Ok(state)
}

/// Opens the log of a database.
fn open_log(
    directory: &dyn Directory,
    tag: u64,
    options: &Options,
    is_reading: bool,
) -> Result<(Arc<Log>, Recovered)> {
    let opened = Log::open(directory, LOG_NAME, &log_options(tag, options));
    if let Ok((log, _)) = &opened {
        log.keep_tail_in(options.log_memory);
    }
    match opened {
        Err(error) if error.is_full() && is_reading => {
            let mode = OpenMode::EXISTING.cached().read_only();
            let bytes =
                [LOG_NAME, &tail_name(LOG_NAME)].map(|name| directory.open(name, mode)?.len());
            let [log, tail] = bytes;
            Err(reading::too_small(error, reading::budget_for_file(log? + tail?)))
        }
        opened => opened.map_err(lost),
    }
}

/// Returns whether the directory holds a database that is to be opened with these options.
fn is_there(directory: &dyn Directory, options: &Options) -> Result<bool> {
    if options.salvaging { Manifest::exists(directory) } else { is_database(directory) }
}

/// Returns whether a directory holds a database, whole or damaged.
///
/// # Errors
/// `Corruption` when there is a part of one: what a backup, a restore or a salvage never finished,
/// or files of keyspaces whose manifest was lost. `Io`.
pub(crate) fn is_database(directory: &dyn Directory) -> Result<bool> {
    let damaged = |what: String| {
        let path = directory.path().display();
        Err(Error::new(ErrorKind::Corruption, format!("{path} {what}")))
    };
    if target::is_being_salvaged(directory)? {
        return damaged("holds what a salvage never finished".to_owned());
    }
    if Manifest::exists(directory)? {
        return Ok(true);
    }
    if target::is_unfinished(directory)? {
        return damaged("holds a copy that was never finished".to_owned());
    }
    match directory.list()?.iter().find(|name| is_keyspace_file(name)) {
        Some(orphan) => damaged(format!("has {orphan} but no manifest: it was lost")),
        None => Ok(false),
    }
}

fn log_options(tag: u64, options: &Options) -> LogOptions {
    let log = LogOptions::sized(tag, options.log_bytes_max);
    LogOptions { tail_bytes: log.tail_bytes.min(Memory::tail_bytes(options.memory)), ..log }
}

fn create(directory: &dyn Directory, runtime: &Runtime, options: &Options) -> Result<()> {
    let manifest = Manifest::new(runtime.random());
    Log::create(directory, LOG_NAME, &log_options(manifest.tag, options))?;
    manifest.write_new(directory)
}

impl State {
    fn recover(&self, recovered: Recovered) -> Result<()> {
        match self.replay(&recovered) {
            Err(error)
                if error.is_full() && !error.lacks_memory() && self.life.reading.is_some() =>
            {
                let bytes = reading::budget_for(&recovered)?;
                Err(reading::too_small(error, bytes))
            }
            replayed => replayed,
        }
    }

    fn replay(&self, recovered: &Recovered) -> Result<()> {
        let manifest = self.keyspaces.manifest.lock().clone();
        let places: Vec<_> =
            manifest.keyspaces.iter().map(|entry| Place::new(entry, self.life.owner)).collect();
        places.clone_into(&mut self.keyspaces.places.write());
        let mut named = self.named(recovered, manifest.next_id)?;
        // One after the other, so that a few descriptors are enough for many keyspaces.
        for place in &places {
            if named.contains(&place.id) {
                continue;
            }
            let opened = self.open_recovered(place, recovered, 1)?;
            if opened.engine.is_unproven() {
                // The next checkpoint adds the proof, and must do so before the log is trimmed.
                named.insert(place.id);
            } else {
                place.kept.lock().leave_unopened(&opened);
            }
            self.memory.budget.close(&opened.memory);
        }
        let named: Vec<&Arc<Place>> =
            places.iter().filter(|place| named.contains(&place.id)).collect();
        self.replay_groups(&named, recovered)?;
        self.remove_orphans(&manifest)
    }

    /// Replays keyspaces, as many together as may be open at once. Those before the last group are written back and parked.
    fn replay_groups(&self, named: &[&Arc<Place>], recovered: &Recovered) -> Result<()> {
        // What was replayed for reading cannot be parked.
        let is_reading = self.life.reading.is_some();
        let mut most = if is_reading { usize::MAX } else { self.open_max() };
        let mut rest = named;
        while !rest.is_empty() {
            let replayed = match self.replay_group(rest, most, recovered) {
                // Keyspaces whose records are all in memory, and that were not open at the same time: one after the other.
                Err(error) if error.lacks_memory() && most > 1 && !is_reading => {
                    most = 1;
                    continue;
                }
                replayed => replayed?,
            };
            let (group, others) = rest.split_at(replayed);
            rest = others;
            if !rest.is_empty() {
                group.iter().try_for_each(|place| self.park(place).map(|_| ()))?;
            }
        }
        Ok(())
    }

    /// The keyspaces that the log names.
    fn named(&self, recovered: &Recovered, next_id: KeyspaceId) -> Result<BTreeSet<KeyspaceId>> {
        let mut named = BTreeSet::new();
        let mut name = |id: KeyspaceId| {
            // An id below the next one that nobody has was dropped (P20).
            if id >= next_id || id == KeyspaceId(0) {
                return Err(Error::new(
                    ErrorKind::Corruption,
                    format!("the log names keyspace {id}, which the manifest does not know"),
                ));
            }
            named.insert(id);
            Ok(())
        };
        recovered.replay(recovered.first_lsn(), |entry| match entry.kind {
            RecordKind::Structure(id) => name(id),
            RecordKind::User => record::decode(entry.payload, entry.lsn, |id, _, _| name(id)),
        })?;
        Ok(named)
    }

    /// Opens a keyspace at its checkpoint, and checks that it fits the log. It is one of `count`
    /// that are open together.
    fn open_recovered(
        &self,
        place: &Place,
        recovered: &Recovered,
        count: usize,
    ) -> Result<Arc<KeyspaceState>> {
        // What the log has of it is replayed.
        let share = self.memory.first_share(count);
        let keyspace = self.assemble(place, None, Lsn::ZERO, share).map_err(lost)?;
        let redo = keyspace.engine.redo();
        // A parked keyspace does not hold the log. Where slots have copies, its slot is known to be
        // the newest (P28), and its file holds whatever the log was trimmed of.
        if redo.next() < recovered.first_lsn() && keyspace.engine.is_unproven() {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!(
                    "the log begins at record {}, but keyspace {:?} needs those after {redo}",
                    recovered.first_lsn(),
                    place.name.get(),
                ),
            ));
        }
        check_end(place, &keyspace, recovered.last_lsn())?;
        Ok(keyspace)
    }

    /// Opens as many of these keyspaces as have room together, and replays what the log has of them. Returns their number.
    fn replay_group(
        &self,
        places: &[&Arc<Place>],
        most: usize,
        recovered: &Recovered,
    ) -> Result<usize> {
        // In the order of ids, so that a simulated recovery does the same every time.
        let mut by_id: BTreeMap<KeyspaceId, Arc<KeyspaceState>> = BTreeMap::new();
        let replayed = self
            .open_group(&mut by_id, places, most, recovered)
            .and_then(|()| self.replay_opened(&by_id, recovered));
        if let Err(error) = replayed {
            by_id.values().for_each(|keyspace| self.memory.budget.close(&keyspace.memory));
            return Err(error);
        }
        let group = &places[..by_id.len()];
        for (place, keyspace) in group.iter().zip(by_id.into_values()) {
            self.add_recovered(place, keyspace)?;
        }
        Ok(group.len())
    }

    /// Opens the first of these keyspaces, and those after it that have room beside it.
    fn open_group(
        &self,
        by_id: &mut BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
        places: &[&Arc<Place>],
        most: usize,
        recovered: &Recovered,
    ) -> Result<()> {
        let count = places.len().min(most);
        for place in &places[..count] {
            let keyspace = self.open_recovered(place, recovered, count)?;
            let together = kept(by_id.values().chain([&keyspace]));
            let fits = self.memory.check_fits(&self.keyspaces, together);
            if fits.is_err() && !by_id.is_empty() && self.life.reading.is_none() {
                self.memory.budget.close(&keyspace.memory);
                break;
            }
            keyspace.set_changed();
            by_id.insert(place.id, keyspace);
        }
        // Before anything is read.
        self.memory.check_fits(&self.keyspaces, kept(by_id.values()))
    }

    /// Replays what the log has of these keyspaces.
    fn replay_opened(
        &self,
        by_id: &BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
        recovered: &Recovered,
    ) -> Result<()> {
        recovered.replay(recovered.first_lsn(), |entry| match entry.kind {
            RecordKind::Structure(id) => match by_id.get(&id) {
                Some(keyspace) => keyspace.engine.replay_structure(entry.lsn, entry.payload),
                None => Ok(()),
            },
            // Extents of large values that the checkpoints do not know (P17).
            RecordKind::User => record::decode(entry.payload, entry.lsn, |id, _, change| {
                match (by_id.get(&id), change.value) {
                    (Some(keyspace), Some(pointer))
                        if pointer.large && entry.lsn > keyspace.engine.redo() =>
                    {
                        keyspace.engine.values().replay(pointer.bytes)
                    }
                    _ => Ok(()),
                }
            }),
        })?;
        by_id.values().try_for_each(|keyspace| keyspace.engine.end_structure_replay())?;
        let first = by_id.values().map(|keyspace| keyspace.engine.redo().next()).min();
        if let Some(first) = first {
            self.replay_users(recovered, first.max(recovered.first_lsn()), by_id)?;
        }
        by_id.values().try_for_each(|keyspace| keyspace.engine.end_replay())?;
        self.memory.check_fits(&self.keyspaces, kept(by_id.values()))
    }

    /// Removes files of keyspaces that were dropped, or that the manifest never listed.
    fn remove_orphans(&self, manifest: &Manifest) -> Result<()> {
        let mut removed = false;
        for name in self.files.directory.list()? {
            let owned = manifest.keyspaces.iter().any(|entry| file_name(entry.id) == name);
            if is_keyspace_file(&name) && !owned {
                self.files.directory.remove(&name)?;
                removed = true;
            }
        }
        if removed { self.files.directory.sync() } else { Ok(()) }
    }
}
