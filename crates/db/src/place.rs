//! Keyspaces that cost nothing while they are not used: parking, and opening on demand.
//!
//! ```text
//!   Place (id, name, what was chosen)          what handles and batches hold, for as long as they like
//!     `- KeyspaceState (engine, memory, job)   there only while the keyspace is open
//!
//!   unopened --- first use ---> open --- nobody used it for a while, or others need ---> parked
//!                                ^         its descriptor: checkpoint, let go              |
//!                                `------------------------ next use -----------------------'
//! ```
//!
//! An operation enters its keyspaces once, at its start and before it takes any lock
//! ([`State::enter`]). Snapshots, readers of large values, backups, bulk loads and compactions last
//! longer, and pin their keyspaces.
//!
//! **Parking** never waits for another thread. It gives up when an operation is inside, has pinned
//! the keyspace, or came during its checkpoint. The order is: a checkpoint, while other threads
//! continue; stop the job; close the door to operations; a last checkpoint of what the job did
//! meanwhile; drop the engine.
//!
//! **The log.** The file of a parked keyspace has everything that the log has of it, so it does not
//! hold the log: the log is trimmed up to the least redo LSN of the open keyspaces. The redo LSN in
//! its file may lie far below the log's first record. When the keyspace is opened, the log's end of
//! that moment counts as its redo LSN ([`KeyspaceState::redo`]), because every write to it comes
//! later.
//!
//! **Invariants**
//! 1. A keyspace that is not open has no record in the log, or in memory, that its file does not
//!    hold.
//! 2. One engine at a time has the file of a keyspace.
//! 3. A keyspace is among the open ones before its first record gets its LSN, and until its last
//!    record is in its file. So a trim that reads the log's end first and the open keyspaces
//!    afterwards trims nothing that is needed.
//!
//! **Crash.** Recovery opens the keyspaces that the log names, and replays above the redo LSN in
//! their files. All others stay as they are. A crash right after parking finds records that the
//! file has already: replaying them changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spinney_base::shim::{Mutex, MutexGuard};
use spinney_base::{Error, ErrorKind, Generation, KeyspaceId, Lsn, Next, Result, probe};
use spinney_engine::EngineStats;
use spinney_sync::{Entry, Parkable};

use crate::manifest::ManifestKeyspace;
use crate::options::KeptOptions;
use crate::scrub::SOUND_FOR;
use crate::state::{KeyspaceState, State, file_name};

/// Number of looks at an unused keyspace before it is parked.
const LOOKS: u32 = 4;

/// Poll interval of the job when nothing is open. Opening a keyspace wakes it.
pub(crate) const NOTHING_OPEN: Duration = Duration::from_secs(10);

/// Longest wait of an operation for a running checkpoint, before it opens one keyspace too many.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(1);

/// Longest wait of an operation for a descriptor when the process has none left. Other operations
/// use keyspaces for milliseconds. A batch that itself uses all descriptors gets an error.
const DESCRIPTORS_WAIT: Duration = Duration::from_secs(2);

/// Number of references to a keyspace that is neither pinned nor among the open ones: its place,
/// and the thread that parks it.
const HOLDERS: usize = 2;

/// A keyspace, entered for one operation.
pub(crate) type Open<'a> = Entry<'a, KeyspaceState>;

/// The name of a keyspace, which may change. Its clones are one name.
#[derive(Clone, Debug)]
pub(crate) struct Name(Arc<Mutex<String>>);

impl Name {
    fn new(name: &str) -> Name {
        Name(Arc::new(Mutex::new(name.to_owned())))
    }

    pub(crate) fn get(&self) -> String {
        self.0.lock().clone()
    }

    fn is(&self, name: &str) -> bool {
        *self.0.lock() == name
    }

    pub(crate) fn set(&self, name: &str) {
        name.clone_into(&mut self.0.lock());
    }
}

/// One keyspace, open or not; shared by its handles.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: KeyspaceId,
    pub(crate) name: Name,
    pub(crate) options: KeptOptions,
    /// The open database that it belongs to.
    pub(crate) owner: u64,
    pub(crate) open: Parkable<KeyspaceState>,
    /// Number of visits by the scrub.
    scrubs: AtomicU64,
    dropped: AtomicBool,
    /// Bulk loads that began and ended: odd while one becomes visible. Parking keeps it.
    loads: AtomicU64,
    /// Held while the keyspace is opened, parked or dropped.
    pub(crate) kept: Mutex<Kept>,
}

/// What is kept of a keyspace while it is not open.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Options of the engine's own that were chosen since the database was opened.
    own: Vec<(String, String)>,
    /// Statistics when it was parked, or what its file says.
    stats: EngineStats,
    /// Whether it was open in this life of the log.
    was_open: bool,
    /// Generation of its next page, if it was parked in this process.
    next_generation: Option<Generation>,
    /// When the scrub of its current content began.
    scrubbed: Option<Duration>,
}

impl Place {
    pub(crate) fn new(entry: &ManifestKeyspace, owner: u64) -> Arc<Place> {
        Arc::new(Place {
            id: entry.id,
            name: Name::new(&entry.name),
            options: entry.options,
            owner,
            open: Parkable::default(),
            scrubs: AtomicU64::new(0),
            dropped: AtomicBool::new(false),
            loads: AtomicU64::new(0),
            kept: Mutex::default(),
        })
    }

    /// Number of uses, including operations about to enter. The scrub does not count, because it
    /// visits all keyspaces alike.
    pub(crate) fn uses(&self) -> u64 {
        self.open.entries().saturating_sub(self.scrubs.load(Ordering::Relaxed))
    }

    /// Counts a visit of the scrub that is about to enter.
    pub(crate) fn count_scrub(&self) {
        self.scrubs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the beginning or the end of a bulk load's becoming visible. The caller has drained the
    /// door.
    pub(crate) fn count_load(&self) {
        self.loads.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns a number that differs before, during and after a bulk load became visible, odd while
    /// it does; and again once the keyspace was dropped or converted.
    pub(crate) fn loads(&self) -> u64 {
        let loads = self.loads.load(Ordering::SeqCst);
        if self.dropped.load(Ordering::SeqCst) { u64::MAX } else { loads }
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(dropped(&self.name.get()));
        }
        Ok(())
    }

    /// Marks it as dropped; its handles answer `Closed` from now on.
    pub(crate) fn set_dropped(&self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[cold]
pub(crate) fn dropped(name: &str) -> Error {
    Error::new(
        ErrorKind::Closed,
        format!("this handle's keyspace {name:?} was dropped or converted"),
    )
}

/// The keyspaces of a batch, entered.
pub(crate) struct OpenAll<'a>(Vec<(KeyspaceId, Open<'a>)>);

impl OpenAll<'_> {
    /// Returns one of them.
    pub(crate) fn of(&self, id: KeyspaceId) -> &KeyspaceState {
        let found = self.0.binary_search_by_key(&id, |(id, _)| *id);
        &self.0[found.expect("every keyspace of the batch was entered")].1
    }
}

impl State {
    pub(crate) fn places(&self) -> Vec<Arc<Place>> {
        self.places.read().clone()
    }

    pub(crate) fn place_by_name(&self, name: &str) -> Option<Arc<Place>> {
        self.places.read().iter().find(|place| place.name.is(name)).cloned()
    }

    fn place(&self, id: KeyspaceId) -> Option<Arc<Place>> {
        let places = self.places.read();
        let found = places.binary_search_by_key(&id, |place| place.id).ok()?;
        Some(places[found].clone())
    }

    /// Makes the files of a keyspace that no manifest names yet. A file of that name is left from a
    /// failed creation, and is replaced. The caller holds `checkpointing`.
    pub(crate) fn make_files(&self, place: &Place) -> Result<Arc<KeyspaceState>> {
        let file = file_name(place.id);
        if self.directory.exists(&file)? {
            self.directory.remove(&file)?;
        }
        // The keyspace begins at the log's end. Were that end not durable, a crash could take it
        // back while the keyspace stays, and the next life's records would lie at or below the
        // keyspace's redo LSN, where replay passes over them.
        let redo = self.log.last_lsn();
        self.log.ensure_durable(redo)?;
        self.assemble(place, Some(redo), redo, self.opening_share()).inspect_err(|_| {
            if self.poison.check().is_ok() {
                let _ = self.directory.remove(&file);
            }
        })
    }

    /// Drops a keyspace that the manifest no longer names. The caller holds `checkpointing`, the
    /// place's `kept` and the door.
    pub(crate) fn forget(&self, place: &Place, open: Option<&Arc<KeyspaceState>>) {
        place.set_dropped();
        self.places.write().retain(|other| other.id != place.id);
        if let Some(open) = open {
            open.set_dropped();
            self.keyspaces.write().retain(|keyspace| keyspace.id != place.id);
            self.budget.close(&open.memory);
        }
    }

    /// Removes the file of a dropped keyspace.
    pub(crate) fn remove_file_of(&self, id: KeyspaceId) -> Result<()> {
        match self.directory.remove(&file_name(id)) {
            // Another process has removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed?,
        }
        self.directory.sync()
    }

    /// Returns the open keyspace with this id.
    pub(crate) fn open_one(&self, id: KeyspaceId) -> Option<Arc<KeyspaceState>> {
        let open = self.keyspaces.read();
        let found = open.binary_search_by_key(&id, |keyspace| keyspace.id).ok()?;
        Some(open[found].clone())
    }

    /// Enters a keyspace for one operation, and opens it if it is parked. No lock is held.
    ///
    /// # Errors
    /// Errors of opening it: `Corruption`, `Full`, `Io`; `Closed`.
    #[inline]
    pub(crate) fn enter<'a>(&self, place: &'a Place) -> Result<Open<'a>> {
        match place.open.enter() {
            Some(open) => Ok(open),
            None => self.open_parked(place, None),
        }
    }

    /// Does the same; the caller holds `checkpointing`.
    pub(crate) fn enter_held<'a>(
        &self,
        place: &'a Place,
        held: &MutexGuard<'_, ()>,
    ) -> Result<Open<'a>> {
        match place.open.enter() {
            Some(open) => Ok(open),
            None => self.open_parked(place, Some(held)),
        }
    }

    /// Enters each of these keyspaces once.
    pub(crate) fn enter_all<'a>(
        &self,
        places: impl Iterator<Item = &'a Place>,
    ) -> Result<OpenAll<'a>> {
        let mut all: Vec<(KeyspaceId, Open<'a>)> = Vec::new();
        for place in places {
            if let Err(at) = all.binary_search_by_key(&place.id, |(id, _)| *id) {
                all.insert(at, (place.id, self.enter(place)?));
            }
        }
        Ok(OpenAll(all))
    }

    #[cold]
    fn open_parked<'a>(
        &self,
        place: &'a Place,
        held: Option<&MutexGuard<'_, ()>>,
    ) -> Result<Open<'a>> {
        self.check_open()?;
        let mut tried = false;
        let until = self.runtime.now() + DESCRIPTORS_WAIT;
        loop {
            self.make_way(held.is_some(), tried);
            let mut kept = place.kept.lock();
            if let Some(open) = place.open.enter() {
                return Ok(open);
            }
            place.check_alive()?;
            // A read may need it, and a full disk must not refuse a read.
            match self.with_last_room(|| self.open_place(place, &mut kept)) {
                Ok(open) => return Ok(open),
                Err(error) if !error.is_out_of_descriptors() => return Err(error),
                Err(_) if !tried => tried = true,
                // All open keyspaces are in use, for as long as an operation takes.
                Err(_) if !self.runtime.is_stepped() && self.runtime.now() < until => {
                    drop(kept);
                    self.runtime.sleep(NAP);
                }
                Err(error) => {
                    let text = "a keyspace cannot be opened beside those in use (more descriptors help: ulimit -n)";
                    return Err(error.context(text));
                }
            }
        }
    }

    /// Opens a parked keyspace and enters it.
    fn open_place<'a>(&self, place: &'a Place, kept: &mut Kept) -> Result<Open<'a>> {
        let _inside = probe::enter("keyspace open");
        // Checks that no other program has put another database's files there.
        self.manifest.lock().check_there(&*self.directory)?;
        // All earlier writes to it lie at or below this, and are in its file.
        let opened_at = self.log.last_lsn();
        let opened = self.assemble(place, None, opened_at, self.opening_share());
        let keyspace = opened.map_err(crate::open::lost)?;
        let ready = || {
            let end = if kept.was_open { opened_at } else { self.recovered_to };
            check_end(place, &keyspace, end)?;
            if let Some(next) = kept.next_generation {
                keyspace.engine.resume_generations(next);
            }
            keyspace.engine.end_structure_replay()?;
            keyspace.engine.end_replay()?;
            self.set_kept(&keyspace, kept)
        };
        ready().inspect_err(|_| self.budget.close(&keyspace.memory))?;
        kept.was_open = true;
        self.add_open(place, keyspace)?;
        // It cannot be parked meanwhile, because that takes `kept`.
        place.open.enter().ok_or_else(|| dropped(&place.name.get()))
    }

    /// Gives an engine the options that were chosen for its keyspace.
    fn set_kept(&self, keyspace: &KeyspaceState, kept: &Kept) -> Result<()> {
        let engine = &keyspace.engine;
        kept.own.iter().try_for_each(|(name, value)| engine.set_option(name, value))
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
        for (name, value) in own {
            kept.own.retain(|(other, _)| other != name);
            kept.own.push((name.clone(), value.clone()));
        }
        Ok(())
    }

    /// Adds a keyspace to the open ones. The caller holds its [`Place::kept`], or no other thread
    /// knows the keyspace.
    pub(crate) fn add_open(&self, place: &Place, keyspace: Arc<KeyspaceState>) -> Result<()> {
        let is_first = {
            let mut open = self.keyspaces.write();
            let at = open.partition_point(|other| other.id < keyspace.id);
            open.insert(at, keyspace.clone());
            open.len() == 1
        };
        self.share_out();
        if let Err(error) = self.start_keyspace_job(&keyspace) {
            self.remove_open(&keyspace);
            return Err(error);
        }
        if self.closed.load(Ordering::Acquire) {
            // The jobs are being stopped, or have stopped.
            let task = keyspace.task.lock().take();
            task.inspect(|task| task.stop());
        }
        place.open.put(keyspace);
        if is_first {
            self.wake_jobs();
        }
        Ok(())
    }

    /// Makes a new keyspace known, which is open. A thread that finds it waits until it is listed
    /// as open; otherwise it would take it for a parked one.
    pub(crate) fn add_new(
        &self,
        place: &Arc<Place>,
        keyspace: Arc<KeyspaceState>,
        publish: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut kept = place.kept.lock();
        publish()?;
        kept.was_open = true;
        self.add_open(place, keyspace)
    }

    /// Lists a keyspace, in the order of ids.
    pub(crate) fn list(&self, place: &Arc<Place>) {
        let mut places = self.places.write();
        let at = places.partition_point(|other| other.id < place.id);
        places.insert(at, place.clone());
    }

    /// Does the same for a keyspace that recovery has opened: there are no jobs yet.
    pub(crate) fn add_recovered(&self, place: &Place, keyspace: Arc<KeyspaceState>) -> Result<()> {
        place.kept.lock().was_open = true;
        self.add_open(place, keyspace)
    }

    fn remove_open(&self, keyspace: &KeyspaceState) {
        self.keyspaces.write().retain(|other| other.id != keyspace.id);
        self.budget.close(&keyspace.memory);
        self.share_out();
    }

    /// Notes what is known of a keyspace that recovery does not open.
    pub(crate) fn leave_unopened(&self, place: &Place, stats: EngineStats) {
        place.kept.lock().stats = stats;
    }

    /// Returns the statistics of a keyspace, and whether it is parked.
    pub(crate) fn stats_of(&self, place: &Place) -> (EngineStats, bool) {
        match self.open_one(place.id) {
            Some(keyspace) => (keyspace.engine.stats(), false),
            None => (place.kept.lock().stats.clone(), true),
        }
    }

    /// Returns whether a keyspace was written to since its last scrub began, or that is long ago.
    pub(crate) fn is_scrub_due(&self, place: &Place) -> bool {
        let now = self.runtime.now();
        let is_old = match place.kept.lock().scrubbed {
            Some(then) => now.saturating_sub(then) >= SOUND_FOR,
            None => true,
        };
        is_old || self.open_one(place.id).is_some_and(|open| open.is_unscrubbed())
    }

    /// Notes that a scrub of a keyspace begins.
    pub(crate) fn scrub_begins(&self, place: &Place) {
        let now = self.runtime.now();
        let mut kept = place.kept.lock();
        kept.scrubbed = Some(now);
        if let Some(open) = self.open_one(place.id) {
            open.begin_scrub();
        }
    }

    /// Notes that a keyspace is damaged, so that each pass reports it.
    pub(crate) fn scrub_again(&self, place: &Place) {
        place.kept.lock().scrubbed = None;
    }

    /// Parks keyspaces until one more may be open, as far as possible, and at least one if `one`.
    /// While all are in use, there may be too many.
    fn make_way(&self, is_held: bool, one: bool) {
        if !one && self.keyspaces.read().len() < self.open_max() {
            return;
        }
        if is_held {
            self.make_way_held(one);
            return;
        }
        let until = self.runtime.now() + PATIENCE;
        self.hurried.fetch_add(1, Ordering::SeqCst);
        let held = loop {
            match self.checkpointing.try_lock() {
                // Where background work is stepped, this thread itself may hold it.
                None if !self.runtime.is_stepped() && self.runtime.now() < until => {
                    self.runtime.sleep(NAP);
                }
                held => break held,
            }
        };
        self.hurried.fetch_sub(1, Ordering::SeqCst);
        if held.is_some() {
            self.make_way_held(one);
        }
    }

    /// Does the same; the caller holds `checkpointing`. Returns whether it parked any.
    pub(crate) fn make_way_held(&self, one: bool) -> bool {
        let mut has_parked = false;
        while (one && !has_parked) || self.keyspaces.read().len() >= self.open_max() {
            if !self.park_longest_unused() {
                break;
            }
            has_parked = true;
        }
        has_parked
    }

    /// Parks the least recently used keyspace that can be parked; the caller holds `checkpointing`.
    /// Returns whether there was one.
    fn park_longest_unused(&self) -> bool {
        let now = self.runtime.now();
        let mut open: Vec<_> = self.keyspaces();
        let since = |keyspace: &Arc<KeyspaceState>| {
            let place = self.place(keyspace.id);
            place.map_or(now, |place| keyspace.unused_since(&place, now))
        };
        open.sort_by_cached_key(since);
        let ids: Vec<KeyspaceId> = open.drain(..).map(|keyspace| keyspace.id).collect();
        let parked = |id: &KeyspaceId| {
            self.place(*id).is_some_and(|place| self.park(&place).unwrap_or(false))
        };
        ids.iter().any(parked)
    }

    /// Runs the job: parks keyspaces that have not been used for a while.
    pub(crate) fn park_unused(&self) -> Result<Next> {
        let after = self.options.park_after;
        let now = self.runtime.now();
        let is_unused = |place: &Arc<Place>| {
            let keyspace = self.open_one(place.id);
            keyspace.is_some_and(|one| now.saturating_sub(one.unused_since(place, now)) >= after)
        };
        let open = self.keyspaces();
        let ids: Vec<KeyspaceId> = open.iter().map(|keyspace| keyspace.id).collect();
        drop(open);
        let unused: Vec<_> = ids.iter().filter_map(|id| self.place(*id)).collect();
        let mut parked = false;
        // Another thread may hold it for a while; the next look is soon.
        if let Some(_one_at_a_time) = self.checkpointing.try_lock() {
            for place in unused.iter().filter(|place| is_unused(place)) {
                parked |= self.park(place)?;
            }
            // The scrub, a verification or an operation that needed its place may have parked the
            // last one.
            let is_left = || self.keyspaces.read().is_empty() && self.has_records();
            if parked || is_left() {
                parked = true;
                if self.keyspaces.read().is_empty() {
                    // Nothing else makes it durable now, and what is not durable is not trimmed.
                    self.log.ensure_durable(self.log.last_lsn())?;
                }
                self.trim()?;
            }
        }
        // The budget became smaller. Parks one at a time: an opening or a checkpoint waits for
        // each.
        if self.keyspaces.read().len() > self.open_max()
            && let Some(_one_at_a_time) = self.checkpointing.try_lock()
            && self.park_longest_unused()
        {
            return Ok(Next::Again);
        }
        if !self.keyspaces.read().is_empty() {
            return Ok(Next::Wait(after / LOOKS));
        }
        if parked {
            self.log.give_back(0)?;
            self.keep_room_in_quiet()?;
        }
        Ok(Next::Wait(NOTHING_OPEN))
    }

    /// Parks a keyspace; the caller holds `checkpointing`. Returns whether it did.
    ///
    /// # Errors
    /// Errors of its checkpoint, and then it stays open. `Full` is no error.
    pub(crate) fn park(&self, place: &Place) -> Result<bool> {
        let Some(mut kept) = place.kept.try_lock() else { return Ok(false) };
        let Some(keyspace) = self.open_one(place.id) else { return Ok(false) };
        // Operations that enter after this are counted. Those before have left, so the engine has
        // their writes.
        let entries = place.open.entries();
        // Records that were replayed in memory are nowhere else.
        let must_stay = self.reading.is_some() && keyspace.has_changed();
        if must_stay || !place.open.is_idle() || Arc::strong_count(&keyspace) > HOLDERS + 1 {
            return Ok(false);
        }
        let _inside = probe::enter("park");
        let bound = self.log.applied_watermark();
        if keyspace.has_changed() {
            match keyspace.engine.checkpoint(bound) {
                Err(error) if error.is_full() => return Ok(false),
                done => done.inspect_err(|error| self.note(error))?,
            }
        }
        let task = keyspace.task.lock().take();
        task.inspect(|task| task.stop());
        // Nothing is trimmed meanwhile, because that takes `checkpointing`.
        self.keyspaces.write().retain(|other| other.id != keyspace.id);
        let taken = place.open.take_idle(|taken| {
            place.open.entries() != entries
                || Arc::strong_count(taken) > HOLDERS
                // In the stepped runtime its job may be what is waiting here.
                || Arc::strong_count(&taken.engine) > 1
        });
        // Writes back what the job did since, if anything.
        let home = match &taken {
            Some(taken) if taken.has_changed() => taken.engine.checkpoint(bound),
            _ => Ok(()),
        };
        let Some(taken) = taken.filter(|_| home.is_ok()) else {
            return self.unpark(place, keyspace, home);
        };
        kept.stats = taken.engine.stats();
        kept.next_generation = Some(taken.engine.next_generation());
        if taken.is_unscrubbed() {
            kept.scrubbed = None;
        }
        self.budget.close(&taken.memory);
        drop((taken, keyspace));
        self.share_out();
        Ok(true)
    }

    /// Undoes the parking of a keyspace.
    fn unpark(
        &self,
        place: &Place,
        keyspace: Arc<KeyspaceState>,
        home: Result<()>,
    ) -> Result<bool> {
        {
            let mut open = self.keyspaces.write();
            let at = open.partition_point(|other| other.id < keyspace.id);
            open.insert(at, keyspace.clone());
        }
        self.start_keyspace_job(&keyspace)?;
        if home.is_err() {
            place.open.put(keyspace);
        }
        match home {
            Err(error) if error.is_full() => Ok(false),
            home => home.inspect_err(|error| self.note(error)).map(|()| false),
        }
    }
}

/// Checks that the log goes as far as a keyspace's file says.
pub(crate) fn check_end(place: &Place, keyspace: &KeyspaceState, end: Lsn) -> Result<()> {
    let redo = keyspace.engine.redo();
    if redo > end {
        let name = place.name.get();
        return Err(Error::new(
            ErrorKind::Corruption,
            format!(
                "the log ends at record {end}, but keyspace {name:?} already holds those up to {redo}"
            ),
        ));
    }
    Ok(())
}
