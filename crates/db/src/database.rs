//! The handle of an open database.

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::{KEYSPACES_MAX, PAGE_BYTES};
use spinney_base::mapping::ReleaseIdle;
use spinney_base::{Error, ErrorKind, KeyspaceId, Result, probe};
use spinney_engine::VerifyReport;
use spinney_io::MemoryDisk;

use crate::batch::Batch;
use crate::engines::EngineKind;
use crate::handle::Handle;
use crate::keyspace::Keyspace;
use crate::manifest::{ManifestKeyspace, check_name};
use crate::open;
use crate::options::{Durability, KeptOptions, KeyspaceOptions, Options};
use crate::place::Place;
use crate::state::State;
use crate::stats::{AccountStats, KeyspaceStats, LogStats, Stats};

/// The log keeps one part in this many of its largest size when [`Db::checkpoint`] gives room back:
/// writes continue for a while though the disk is full. More parts keep less.
const LOG_KEPT_PART: u64 = 8;

/// An open database: one directory, one log, one memory budget, many keyspaces. Cheap to clone; any
/// number of threads may use it.
///
/// The last handle (of the database and its keyspaces) that goes away stops background work;
/// [`Db::close`] does that and leaves nothing to recover.
///
/// Handles belong to the process that opened the database. In a child of `fork` they answer `Closed`,
/// and dropping them changes nothing for the parent; a child opens a database of its own, or none.
/// [`Db::stats`] and [`Db::keyspaces`] are not to be asked there: a lock that they need may have been
/// held at the fork.
///
/// ```
/// # fn main() -> spinney_db::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// use spinney_db::{Batch, Db, KeyspaceOptions, Options};
/// let db = Db::open(directory.path(), Options::default())?;
/// let fruit = db.keyspace("fruit", KeyspaceOptions::default())?;
/// fruit.insert(b"apple", b"red")?;
/// let mut batch = Batch::new();
/// batch.insert(&fruit, *b"pear", *b"green");
/// batch.remove(&fruit, *b"apple");
/// db.write(batch)?;
/// assert_eq!(fruit.get(b"pear")?.as_deref(), Some(&b"green"[..]));
/// assert_eq!(fruit.iter().count(), 1);
/// db.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Db {
    pub(crate) handle: Arc<Handle>,
}

/// One keyspace of a database, as the manifest knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// Its id, never used again.
    pub id: KeyspaceId,
    /// Its name.
    pub name: String,
    /// Which engine keeps it.
    pub engine: EngineKind,
    /// Whether its data is logged.
    pub logged: bool,
}

/// How far a verification has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Pages read so far, those of large values among them.
    pub pages: u64,
    /// About how many there are.
    pub pages_expected: u64,
}

/// Passes while a caller's progress function lets an operation go on.
pub(crate) fn go_on(answer: ControlFlow<()>, what: &str) -> Result<()> {
    match answer {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => {
            Err(Error::new(ErrorKind::Cancelled, format!("{what} was cancelled")))
        }
    }
}

impl Db {
    /// Opens the database in a directory, or makes one there. The path is resolved once: whatever
    /// becomes of it or of the working directory later, the database stays in the directory that was
    /// found.
    ///
    /// # Errors
    /// `Locked` when another process or handle has it; `NotFound` when there is none and none is to
    /// be made; `InvalidArgument` for options out of range; `Unsupported` for an unknown format;
    /// `Corruption` when something that was promised is damaged or gone; `Full` or `Io` from the
    /// system.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        open::open(path.as_ref(), options).map(Db::of)
    }

    /// Makes a database whose files lie in memory and end with its last handle, for tests and caches.
    /// Everything else is as on a disk: engines, limits, transactions, background work. The files come
    /// on top of the budget ([`Stats::files_in_memory_bytes`]). Three options do not apply to a new
    /// database in memory: [`Options::disk`], [`Options::read_only`], [`Options::create_if_missing`].
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// use spinney_db::{Db, KeyspaceOptions, Options};
    /// let db = Db::in_memory(Options::default().memory(8 << 20))?;
    /// let fruit = db.keyspace("fruit", KeyspaceOptions::default())?;
    /// fruit.insert("apple", "red")?;
    /// assert_eq!(fruit.get("apple")?.unwrap(), "red");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for options out of range.
    pub fn in_memory(options: Options) -> Result<Db> {
        let options = options.create_if_missing(true).read_only(false);
        Db::open("/in-memory", options.disk(Arc::new(MemoryDisk::new())))
    }

    pub(crate) fn of(state: Arc<State>) -> Db {
        Db { handle: Arc::new(Handle { state, idle: Some(ReleaseIdle) }) }
    }

    /// Opens a keyspace, or makes it. `options` are [`KeyspaceOptions`], an [`EngineKind`], or the
    /// options of one engine: [`TreeLineOptions`](crate::TreeLineOptions),
    /// [`TurtleOptions`](crate::TurtleOptions), [`TwoBTreeOptions`](crate::TwoBTreeOptions).
    ///
    /// # Errors
    /// `InvalidArgument` when the name is unusable, an option is not one of the engine's, the keyspace
    /// exists with another engine or durability, or there are as many as there may be; `Corruption`
    /// when the manifest in the directory is not this database's any more; `Io`, also when the process
    /// has no descriptor left; `Full`, `Poisoned` or `Closed`.
    pub fn keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        self.open_keyspace(name, &options.into())
    }

    fn open_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Keyspace> {
        check_name(name)?;
        options.check()?;
        let state = &self.handle.state;
        state.life.check_open()?;
        // Taken before the manifest, so that no two make the same one and no checkpoint runs
        // half-way.
        let _no_checkpoint = state.checkpoints.hold();
        if let Some(found) = state.keyspaces.by_name(name) {
            let KeptOptions { engine, logged } = options.kept;
            if found.options != options.kept {
                return Err(Error::invalid(format!(
                    "keyspace {name:?} exists with engine {} and logged {}, not {engine} and {logged}: existing_keyspace opens it as it is",
                    found.options.engine, found.options.logged
                )));
            }
            state.keyspaces.set_own(&found, &options.own)?;
            return Ok(self.handle_of(found));
        }
        state.life.check_writable()?;
        let made = match self.make_keyspace(name, options.kept) {
            Err(error) if error.is_out_of_descriptors() && state.make_way_held(true) => {
                self.make_keyspace(name, options.kept)?
            }
            made => made?,
        };
        state.keyspaces.set_own(&made, &options.own)?;
        Ok(self.handle_of(made))
    }

    fn make_keyspace(&self, name: &str, options: KeptOptions) -> Result<Arc<Place>> {
        let state = &self.handle.state;
        let _inside = probe::enter("keyspace create");
        if state.keyspaces.manifest.lock().keyspaces.len() == KEYSPACES_MAX {
            return Err(Error::invalid(format!(
                "a database has at most {KEYSPACES_MAX} keyspaces (KEYSPACES_MAX)"
            )));
        }
        // The file first, then the manifest that names it: a crash between leaves a file that
        // nobody owns.
        let (place, made) = state.make_keyspace(name, options)?;
        let mut manifest = state.keyspaces.manifest.lock();
        let mut next = manifest.clone();
        next.keyspaces.push(ManifestKeyspace { id: place.id, name: name.to_owned(), options });
        let directory = &*state.files.directory;
        let durable = directory.sync().and_then(|()| next.write(directory, &state.life.poison));
        if let Err(error) = durable {
            state.unmake_keyspace(made);
            return Err(error);
        }
        *manifest = next;
        drop(manifest);
        state.add_new(&place, made, || {
            state.keyspaces.list(&place);
            Ok(())
        })?;
        Ok(place)
    }

    /// Opens a keyspace that exists.
    ///
    /// # Errors
    /// `NotFound` or `Closed`.
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let state = &self.handle.state;
        state.life.check_open()?;
        match state.keyspaces.by_name(name) {
            Some(found) => Ok(self.handle_of(found)),
            None => Err(self.no_keyspace(name)),
        }
    }

    /// Says that there is no such keyspace, and which there are.
    pub(crate) fn no_keyspace(&self, name: &str) -> Error {
        const NAMED: usize = 8;
        let keyspaces = self.handle.state.keyspaces.places();
        let names: Vec<String> =
            keyspaces.iter().take(NAMED).map(|one| format!("{:?}", one.name.get())).collect();
        let there_are = match keyspaces.len() {
            0 => "the database has none".to_owned(),
            1 => format!("there is only {}", names[0]),
            2..=NAMED => format!("there are {}", names.join(", ")),
            all => format!("there are {} and {} more", names.join(", "), all - NAMED),
        };
        Error::new(ErrorKind::NotFound, format!("there is no keyspace {name:?}; {there_are}"))
    }

    fn handle_of(&self, place: Arc<Place>) -> Keyspace {
        Keyspace { handle: self.handle.clone(), place }
    }

    /// All keyspaces, in the order they were made.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let describe = |keyspace: &Arc<Place>| KeyspaceInfo {
            id: keyspace.id,
            name: keyspace.name.get(),
            engine: keyspace.options.engine,
            logged: keyspace.options.logged,
        };
        self.handle.state.keyspaces.places().iter().map(describe).collect()
    }

    /// Drops a keyspace and everything in it. Writes under way end first; handles that are left
    /// answer `Closed`.
    ///
    /// # Errors
    /// `NotFound`, `Corruption` when the manifest in the directory is not this database's any more,
    /// `Full`, `Io`, `Poisoned` or `Closed`; after `Io` the keyspace may be gone when the database is
    /// next opened.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        let state = &self.handle.state;
        let _no_checkpoint = state.checkpoints.hold();
        state.life.check_writable()?;
        let Some(place) = state.keyspaces.by_name(name) else {
            return Err(self.no_keyspace(name));
        };
        let _inside = probe::enter("keyspace drop");
        // Nobody opens it meanwhile.
        let _kept = place.kept.lock();
        let open = state.keyspaces.open_one(place.id);
        open.iter().for_each(|open| open.job.stop());
        {
            // No write is between its check and its apply (P20).
            let _drained = state.writers.door.write();
            let mut manifest = state.keyspaces.manifest.lock();
            let mut next = manifest.clone();
            next.keyspaces.retain(|entry| entry.id != place.id);
            // It gives the room of a keyspace back, so it may take the last there is.
            let written = state
                .room
                .with_last_room(|| next.write(&*state.files.directory, &state.life.poison));
            if let Err(error) = written {
                open.map_or(Ok(()), |open| state.start_keyspace_job(&open))?;
                return Err(error);
            }
            *manifest = next;
            state.forget(&place, open.as_ref());
        }
        state.share_out();
        // The engine goes now or, when somebody is inside, with the last handle.
        drop(open);
        drop(place.open.take_idle(|_| false));
        state.files.remove(place.id)
    }

    /// Writes a batch with the database's durability: all of it or nothing.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn write(&self, batch: impl Borrow<Batch>) -> Result<()> {
        self.write_with(batch, self.handle.state.options.durability)
    }

    /// Writes a batch with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::insert`].
    pub fn write_with(&self, batch: impl Borrow<Batch>, durability: Durability) -> Result<()> {
        let (batch, state) = (batch.borrow(), &self.handle.state);
        let lsn = if batch.conditions.is_empty() {
            state.write_batch(&batch.operations, durability)
        } else {
            state.write_expecting(&batch.conditions, &batch.operations, durability)
        };
        lsn.map(|_| ())
    }

    /// Makes everything acknowledged so far, in whatever durability, durable in the log.
    ///
    /// # Errors
    /// `Poisoned` or `Closed`.
    pub fn flush(&self) -> Result<()> {
        let state = &self.handle.state;
        state.life.check_writable()?;
        state.log.ensure_durable(state.log.last_lsn()).inspect_err(|error| state.note(error))
    }

    /// Brings everything written so far into the keyspaces' own files and trims the log, which gives the file system back
    /// the room that it does not need now, but for an eighth of its most: writes go on for a while though the disk is full.
    /// While a backup holds the log it keeps all of it.
    ///
    /// # Errors
    /// `Full` (nothing is lost; it goes away when room returns), `Poisoned`, `Io`, `Corruption` or
    /// `Closed`.
    pub fn checkpoint(&self) -> Result<()> {
        let state = &self.handle.state;
        state.life.check_writable()?;
        state.room.with_last_room(|| state.checkpoint())?;
        if state.backups.is_running() {
            // The log is held and will need it.
            return Ok(());
        }
        let kept = state.log.stats().bytes_max / LOG_KEPT_PART;
        state.log.give_back(kept).inspect_err(|error| state.note(error))
    }

    /// Reads everything and proves that it is consistent. Counts the records that scans would find.
    ///
    /// # Errors
    /// `Corruption` naming the first damage; `Io` or `Closed`.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_with(|_| ControlFlow::Continue(()))
    }

    /// Verifies as [`Db::verify`] does, and tells `progress` after every piece how far it is, which may
    /// end it. Checkpoints wait for the verification, so `progress` must not ask for one.
    ///
    /// # Errors
    /// As [`Db::verify`]; `Cancelled` when `progress` ended it.
    pub fn verify_with(
        &self,
        mut progress: impl FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifyReport> {
        let state = &self.handle.state;
        state.life.check_open()?;
        let held = state.checkpoints.hold();
        let places = state.keyspaces.places();
        let pages_of = |place: &Arc<Place>| {
            let stats = state.keyspaces.stats_of(place).0;
            let large = stats.large_bytes / PAGE_BYTES as u64;
            stats.pages + stats.overflow_pages + stats.staged_pages + large
        };
        let pages_expected = places.iter().map(pages_of).sum();
        let mut so_far = VerifyProgress { pages: 0, pages_expected };
        let mut report = VerifyReport::default();
        for place in places {
            let was_open = state.keyspaces.open_one(place.id).is_some();
            let keyspace = state.enter_held(&place, &held)?;
            report += keyspace.engine.verify(&mut |pages| {
                so_far.pages += pages;
                go_on(progress(so_far), "the verification")
            })?;
            drop(keyspace);
            if !was_open {
                state.park(&place)?;
            }
        }
        Ok(report)
    }

    /// Changes the memory budget; caches follow in the background. Each open keyspace needs 128 KiB of
    /// it. Where there is less, the background parks the keyspaces that were used least recently. A
    /// program that uses more keyspaces in turn opens one again on almost every use, at milliseconds
    /// each.
    ///
    /// # Errors
    /// `InvalidArgument` when it is out of range; `Full` when the records of keyspaces in use, of an engine that keeps all of
    /// them in memory, do not fit into it, with the number of bytes that they need; `Closed`.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        let state = &self.handle.state;
        state.life.check_open()?;
        state.options.clone().memory(bytes).check()?;
        state.make_budget(bytes);
        state.memory.set_total(&state.keyspaces, bytes)?;
        state.memory.limit_log(&state.log);
        // Keyspaces are parked in the background where it is too small for all that are open.
        state.jobs.park.wake();
        state.share_out();
        Ok(())
    }

    /// Whether the database is open for reading only: because that was asked for
    /// ([`Options::read_only`]), or because the disk has no room for its recovery, which
    /// [`Stats::read_only`] tells.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.handle.state.life.reading.is_some()
    }

    /// Numbers about the database now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = &self.handle.state;
        let keyspaces: Vec<KeyspaceStats> = state
            .keyspaces
            .places()
            .iter()
            .map(|place| {
                let (numbers, is_parked) = state.keyspaces.stats_of(place);
                let engine = place.options.engine.name();
                let memory = state.keyspaces.open_one(place.id).map(|open| open.memory_stats());
                KeyspaceStats { name: place.name.get(), engine, is_parked, memory, numbers }
            })
            .collect();
        let account = |account: Arc<spinney_base::MemoryAccount>| AccountStats {
            name: account.name(),
            used: account.used(),
            target: account.target(),
            worth: account.worth(),
        };
        let stalls: u64 = keyspaces.iter().map(|keyspace| keyspace.numbers.stall_ns).sum();
        let longest =
            keyspaces.iter().map(|keyspace| keyspace.numbers.longest_stall_ns).max().unwrap_or(0);
        let (snapshots, oldest) = state.moments.live();
        let age = oldest.map(|since| state.runtime.now().saturating_sub(since));
        let mut transactions = state.writers.transactions.stats();
        transactions.snapshots = snapshots as u64;
        transactions.oldest_snapshot_ns =
            age.map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        transactions.guards =
            state.keyspaces.places().iter().map(|it| it.guards.len() as u64).sum();
        Stats {
            memory_bytes: state.memory.budget.total(),
            memory_used: state.memory_used(),
            files_in_memory_bytes: state.files.disk.memory_bytes(),
            accounts: state.memory.budget.accounts().into_iter().map(account).collect(),
            io: state.files.disk.counters().snapshot(),
            io_backend: state.files.disk.backend(),
            torn_writes: if state.files.double_write { "double-write" } else { "assume-4k" },
            log: LogStats::from(state.log.stats()),
            read_only: state.life.reading.as_ref().map(|reading| reading.refusal().to_string()),
            replay_bytes: state.life.reading.as_ref().map_or(0, |it| it.overlay.memory_bytes()),
            reserved_bytes: state.room.reserve.as_ref().map_or(0, |reserve| reserve.bytes()),
            backup_bytes: state.backups.bytes(),
            scrub: state.scrub.lock().stats(state.runtime.now()),
            transactions,
            stall_ns: stalls + state.writers.stalls.ns(),
            longest_stall_ns: longest.max(state.writers.stalls.longest_ns()),
            keyspaces,
        }
    }

    /// Ends writing, takes a checkpoint, leaves nothing to recover, and lets the directory go.
    /// Other handles answer `Closed` from then on.
    ///
    /// # Errors
    /// What kept the checkpoint from being taken: the database is closed all the same, and the next
    /// open recovers what the log holds. What was written to keyspaces without a log since their last
    /// checkpoint is gone then. Where that matters, call [`Db::checkpoint`] until it succeeds, and close after it.
    pub fn close(self) -> Result<()> {
        let state = &self.handle.state;
        state.life.check_process()?;
        {
            let _drained = state.writers.door.write();
            if state.life.close() {
                return Err(Error::new(ErrorKind::Closed, "the database is closed already"));
            }
        }
        state.stop_jobs();
        if state.life.reading.is_some() {
            state.files.unlock();
            return Ok(());
        }
        // What the checkpoint itself found to be superseded, a second one gives back.
        let checkpoints = || {
            state.checkpoint()?;
            if state.keyspaces.has_freed_large() { state.checkpoint() } else { Ok(()) }
        };
        let result = state
            .life
            .poison
            .check()
            .and_then(|()| state.room.with_last_room(checkpoints))
            .and_then(|()| state.log.close())
            .and_then(|()| state.keep_room_in_quiet());
        // Whether the reserve comes back after a power loss changes nothing.
        let _ = state.files.directory.sync();
        state.files.unlock();
        result
    }
}
