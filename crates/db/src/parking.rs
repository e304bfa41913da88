//! Keyspaces that cost nothing while they are not used: parking, and opening on demand.
//!
//! ```text
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
//! **Memory.** A keyspace whose engine keeps all records in memory is read only where they have room
//! beside those of the others that are open: the least recently used that are not in use are parked for
//! it, and where that is not enough the use is refused with a budget that is. So records of all such
//! keyspaces together may exceed the budget, as long as those in use at one time do not. Nothing is parked
//! in vain. Before a use is refused it waits for a moment, once a second, for those that only look at a keyspace which
//! nobody uses. A write that lacks memory, and a smaller budget, park what was not used for a second; the
//! scrub parks nothing, and reads later what has no room now.
//!
//! **The log.** The file of a parked keyspace has everything that the log has of it, so it does not
//! hold the log: the log is trimmed up to the least redo LSN of the open keyspaces. The redo LSN in
//! its file may lie far below the log's first record. When the keyspace is opened, the log's end of
//! that moment counts as its redo LSN ([`KeyspaceState::redo`]), because every write to it comes
//! later.
//!
//! **Versions.** What transactions know of each other by the records of a keyspace (stamps, older versions,
//! marks of gaps) is in memory only, and is forgotten when it is parked. Those that have read it keep it
//! open. One that began before it was parked, and touches it first when it is open again, ends with
//! `Conflict`: for it, what was forgotten may matter. For one that began later it says no more than its
//! begin stamp.
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
use std::time::Duration;

use spinney_base::shim::MutexGuard;
use spinney_base::{KeyspaceId, Lsn, Next, Result, probe};
use spinney_engine::EngineContext;

use crate::files::{file_name, lost};
use crate::governor::Seen;
use crate::jobs::NOTHING_OPEN;
use crate::keyspace_state::{KeyspaceState, account_name, dropped};
use crate::manifest::ManifestKeyspace;
use crate::memory::{Read, VAIN_PAUSE};
use crate::options::KeptOptions;
use crate::place::{Kept, Open, Place};
use crate::state::State;

/// Number of looks at an unused keyspace before it is parked.
const LOOKS: u32 = 4;

/// Longest wait of an operation for a running checkpoint, before it opens one keyspace too many.
const PATIENCE: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(1);

/// How long an opening looks for keyspaces that are not in use, if all are: whoever looks at one makes it used for a
/// moment, which takes long where more threads want to run than there are processors.
const LOOKS_WAIT: Duration = Duration::from_millis(200);

/// How often it looks at least, also where another opening has waited in vain.
const TRIES: u32 = 3;

/// How long a keyspace is unused before it is parked for a write of another. With less, a program that writes two in turn
/// reads one of them again with each write, where it should learn that memory is full.
const QUIET: Duration = Duration::from_secs(1);

/// Longest wait of an operation for a descriptor when the process has none left. Other operations
/// use keyspaces for milliseconds. A batch that itself uses all descriptors gets an error.
const DESCRIPTORS_WAIT: Duration = Duration::from_secs(2);

/// Number of references to a keyspace that is neither pinned nor among the open ones: its place,
/// and the thread that parks it.
const HOLDERS: usize = 2;

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
    /// Number of keyspaces that may be open at once: as many as the budget and the descriptors
    /// allow.
    pub(crate) fn open_max(&self) -> usize {
        self.memory.open_max().min(self.files.open_max()).max(1)
    }

    /// Divides the budget among the open keyspaces after one came or went, or the budget changed.
    pub(crate) fn share_out(&self) {
        self.memory.share_out(&self.keyspaces);
    }

    /// Opens the files of a keyspace, or creates them when `created_at` says from which LSN on it
    /// exists. Its files hold everything that the log has of it up to `opened_at`.
    pub(crate) fn assemble(
        &self,
        entry: &Place,
        created_at: Option<Lsn>,
        opened_at: Lsn,
        share: u64,
    ) -> Result<Arc<KeyspaceState>> {
        let memory =
            self.memory.budget.open(account_name(entry.options.engine, &entry.name.get()), share);
        let context = EngineContext {
            directory: self.files.directory.clone(),
            name: file_name(entry.id),
            keyspace: entry.id,
            logged: entry.options.logged,
            double_write: self.files.double_write,
            log: self.log.clone(),
            runtime: self.runtime.clone(),
            poison: self.life.poison.clone(),
            memory: memory.clone(),
            certifier: self.versions.certifier.clone(),
        };
        let row = entry.options.engine.row();
        let made = match created_at {
            Some(redo) => (row.create)(context, redo),
            None => (row.open)(context),
        };
        let engine = made.inspect_err(|_| self.memory.budget.close(&memory))?;
        let seen = (entry.open.entries(), self.runtime.now());
        let identity = (entry.id, entry.name.clone(), entry.options);
        let seen_use = Seen::new(entry.uses());
        let keyspace = KeyspaceState::new(
            identity,
            (engine, memory),
            entry.guards.clone(),
            opened_at,
            seen,
            seen_use,
        );
        Ok(Arc::new(keyspace))
    }

    /// Makes an empty keyspace that no manifest names yet. The caller holds `checkpointing`.
    ///
    /// # Errors
    /// `Corruption` when the manifest in the directory is not this database's any more; `Full`,
    /// `Io`, `Poisoned`.
    pub(crate) fn make_keyspace(
        &self,
        name: &str,
        options: KeptOptions,
    ) -> Result<(Arc<Place>, Arc<KeyspaceState>)> {
        self.make_way_held(false);
        let id = self.keyspaces.take_id(&*self.files.directory)?;
        let entry = ManifestKeyspace { id, name: name.to_owned(), options };
        let place = Place::new(&entry, self.life.owner);
        let made = self.make_files(&place)?;
        match made.end_replays() {
            Ok(()) => Ok((place, made)),
            Err(error) => {
                self.unmake_keyspace(made);
                Err(error)
            }
        }
    }

    /// Makes the files of a keyspace that no manifest names yet. A file of that name is left from a
    /// failed creation, and is replaced.
    fn make_files(&self, place: &Place) -> Result<Arc<KeyspaceState>> {
        let file = file_name(place.id);
        if self.files.directory.exists(&file)? {
            self.files.directory.remove(&file)?;
        }
        // The keyspace begins at the log's end. Were that end not durable, a crash could take it
        // back while the keyspace stays, and the next life's records would lie at or below the
        // keyspace's redo LSN, where replay passes over them.
        let redo = self.log.last_lsn();
        self.log.ensure_durable(redo)?;
        let share = self.memory.opening_share(&self.keyspaces);
        self.assemble(place, Some(redo), redo, share).inspect_err(|_| self.remove_unnamed(&file))
    }

    /// Gives up a keyspace that was made and that no manifest names.
    pub(crate) fn unmake_keyspace(&self, made: Arc<KeyspaceState>) {
        self.memory.budget.close(&made.memory);
        let file = file_name(made.id);
        drop(made);
        self.remove_unnamed(&file);
    }

    /// Removes a file that no manifest names, unless that is unknown now: it takes no space until
    /// the next opening.
    fn remove_unnamed(&self, file: &str) {
        if self.life.poison.check().is_ok() {
            let _ = self.files.directory.remove(file);
        }
    }

    /// Drops a keyspace that the manifest no longer names. The caller holds `checkpointing`, the
    /// place's `kept` and the door.
    pub(crate) fn forget(&self, place: &Place, open: Option<&Arc<KeyspaceState>>) {
        place.set_dropped();
        self.keyspaces.unlist(place.id);
        if let Some(open) = open {
            open.set_dropped();
            self.keyspaces.unlist_open(place.id);
            self.memory.budget.close(&open.memory);
        }
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
        self.life.check_open()?;
        let (mut tried, mut tries) = (false, 0..TRIES);
        let begun = self.runtime.now();
        let until = begun + DESCRIPTORS_WAIT;
        loop {
            self.make_way(held.is_some(), tried);
            let mut kept = place.kept.lock();
            if let Some(open) = place.open.enter() {
                return Ok(open);
            }
            place.check_alive()?;
            let in_memory = kept.in_memory();
            let being_read = match self.memory.begin_reading(&self.keyspaces, in_memory) {
                Ok(being_read) => being_read,
                Err(error) => {
                    let wait = if kept.is_patient(begun) { LOOKS_WAIT } else { Duration::ZERO };
                    drop(kept);
                    let is_made = self.make_memory_for(place, in_memory, held.is_some());
                    let now = self.runtime.now();
                    // In simulations time stands still.
                    let looks_on =
                        tries.next().is_some() || now < begun + wait && !self.runtime.is_stepped();
                    if !is_made && !looks_on || now >= until {
                        place.kept.lock().lose_patience(now + VAIN_PAUSE);
                        return Err(error);
                    }
                    continue;
                }
            };
            // A read may need it, and a full disk must not refuse a read.
            match self.room.with_last_room(|| self.open_place(place, &mut kept, being_read)) {
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
    fn open_place<'a>(
        &self,
        place: &'a Place,
        kept: &mut Kept,
        being_read: Read<'_>,
    ) -> Result<Open<'a>> {
        let _inside = probe::enter("keyspace open");
        // Checks that no other program has put another database's files there.
        self.keyspaces.manifest.lock().check_there(&*self.files.directory)?;
        // All earlier writes to it lie at or below this, and are in its file.
        let opened_at = self.log.last_lsn();
        let opened =
            self.assemble(place, None, opened_at, self.memory.opening_share(&self.keyspaces));
        let keyspace = opened.map_err(lost)?;
        kept.ready(place, &keyspace, (opened_at, self.keyspaces.recovered_to))
            .inspect_err(|_| self.memory.budget.close(&keyspace.memory))?;
        kept.set_open();
        self.add_open(place, keyspace, Some(being_read))?;
        // It cannot be parked meanwhile, because that takes `kept`.
        place.open.enter().ok_or_else(|| dropped(&place.name.get()))
    }

    /// Adds a keyspace to the open ones. The caller holds its [`Place::kept`], or no other thread
    /// knows the keyspace.
    fn add_open(
        &self,
        place: &Place,
        keyspace: Arc<KeyspaceState>,
        being_read: Option<Read<'_>>,
    ) -> Result<()> {
        let list = || self.keyspaces.list_open(keyspace.clone());
        let is_first = match being_read {
            Some(being_read) => being_read.end(list),
            None => list(),
        };
        self.share_out();
        if let Err(error) = self.start_keyspace_job(&keyspace) {
            self.keyspaces.unlist_open(keyspace.id);
            self.memory.budget.close(&keyspace.memory);
            self.share_out();
            return Err(error);
        }
        if self.life.is_closed() {
            // The jobs are being stopped, or have stopped.
            keyspace.job.stop();
        }
        if let Err(error) = self.put_open(place, keyspace.clone()) {
            keyspace.job.stop();
            self.keyspaces.unlist_open(keyspace.id);
            self.memory.budget.close(&keyspace.memory);
            self.share_out();
            return Err(error);
        }
        if is_first {
            self.jobs.wake();
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
        kept.set_open();
        self.add_open(place, keyspace, None)
    }

    /// Does the same for a keyspace that recovery has opened: there are no jobs yet.
    pub(crate) fn add_recovered(&self, place: &Place, keyspace: Arc<KeyspaceState>) -> Result<()> {
        place.kept.lock().set_open();
        self.add_open(place, keyspace, None)
    }

    /// Parks keyspaces until one more may be open, as far as possible, and at least one if `one`.
    /// While all are in use, there may be too many.
    fn make_way(&self, is_held: bool, one: bool) {
        if !one && self.keyspaces.count_open() < self.open_max() {
            return;
        }
        if is_held {
            self.make_way_held(one);
            return;
        }
        let held = self.checkpoints.hold_within(&self.runtime, PATIENCE);
        if held.is_some() {
            self.make_way_held(one);
        }
    }

    /// Does the same; the caller holds `checkpointing`. Returns whether it parked any.
    pub(crate) fn make_way_held(&self, one: bool) -> bool {
        let mut has_parked = false;
        while (one && !has_parked) || self.keyspaces.count_open() >= self.open_max() {
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
        self.longest_unused().iter().any(|place| self.park(place).unwrap_or(false))
    }

    /// The places of open keyspaces, the least recently used first.
    fn longest_unused(&self) -> Vec<Arc<Place>> {
        let now = self.runtime.now();
        let open = self.keyspaces.open();
        let with_place = |keyspace: &Arc<KeyspaceState>| {
            let place = self.keyspaces.by_id(keyspace.id)?;
            Some((keyspace.unused_since(&place.open, now), place))
        };
        let mut places: Vec<_> = open.iter().filter_map(with_place).collect();
        places.sort_by_key(|(since, place)| (*since, place.id));
        places.into_iter().map(|(_, place)| place).collect()
    }

    /// Lets a keyspace have the memory that one of its writes has lacked. Returns whether the write may be tried again; `None`
    /// if another thread has asked for this meanwhile. No lock is held.
    pub(crate) fn lend_lacked(&self, keyspace: &KeyspaceState) -> Option<bool> {
        let lends =
            |lacked, freed| self.memory.could_lend(&self.keyspaces, keyspace, (lacked, freed));
        let make = |lacked| self.make_memory(false, false, |freed| lends(lacked, freed));
        self.memory.lend_lacked((&self.keyspaces, &self.runtime), keyspace, make)
    }

    /// Parks keyspaces that have not been used for a while, if a budget of `total` bytes has room for the others only.
    pub(crate) fn make_budget(&self, total: u64) {
        let is_enough = |freed| self.memory.is_enough(&self.keyspaces, total, freed);
        self.make_memory(false, false, is_enough);
    }

    /// Parks what is not in use, so that a parked keyspace can be read. Returns whether to look again: there is room, or
    /// another thread has opened it, or does.
    fn make_memory_for(&self, place: &Place, bytes: u64, is_held: bool) -> bool {
        let is_others =
            || place.kept.try_lock().is_none() || self.keyspaces.open_one(place.id).is_some();
        let enough = |freed| is_others() || self.memory.would_fit(&self.keyspaces, bytes, freed);
        self.make_memory(is_held, true, enough)
    }

    /// Parks keyspaces that keep their records in memory and are not in use, the least recently used first, until there is
    /// enough memory; `enough` says whether there is if they keep a number of bytes less. Parks none in vain, and only what has
    /// been quiet for a while where it is not for a read. Returns whether there is enough.
    fn make_memory(&self, is_held: bool, is_for_read: bool, enough: impl Fn(u64) -> bool) -> bool {
        let quiet = if is_for_read { Duration::ZERO } else { QUIET };
        if enough(0) {
            return true;
        }
        let _held = match is_held {
            true => None,
            false => match self.checkpoints.hold_within(&self.runtime, PATIENCE) {
                None => return enough(0),
                held => held,
            },
        };
        // Another thread may have made it meanwhile.
        if enough(0) {
            return true;
        }
        let entries = |place: &Place| place.open.entries();
        let before: Vec<_> =
            self.longest_unused().into_iter().map(|place| (entries(&place), place)).collect();
        if !self.runtime.is_stepped() {
            // Whoever uses one often uses it meanwhile.
            self.runtime.sleep(NAP);
        }
        let now = self.runtime.now();
        let unused = |(before, place): (u64, Arc<Place>)| {
            let open = self.keyspaces.open_one(place.id)?;
            let is_pinned = Arc::strong_count(&open) > HOLDERS + 1;
            let is_quiet = now.saturating_sub(open.unused_since(&place.open, now)) >= quiet;
            let is_unused = is_quiet && place.open.is_idle() && entries(&place) == before;
            let is_unused = is_unused && !is_pinned;
            (is_unused && open.kept_bytes() > 0).then_some((place, open.kept_bytes()))
        };
        let unused: Vec<_> = before.into_iter().filter_map(unused).collect();
        if !enough(unused.iter().map(|(_, bytes)| bytes).sum()) {
            return false;
        }
        for (place, _) in unused {
            if enough(0) {
                break;
            }
            // Failures are noted, and then it stays open.
            let _ = match is_for_read {
                true => self.room.with_last_room(|| self.park(&place)),
                false => self.park(&place),
            };
        }
        enough(0)
    }

    /// Runs the job: parks keyspaces that have not been used for a while.
    pub(crate) fn park_unused(&self) -> Result<Next> {
        let after = self.options.park_after;
        let now = self.runtime.now();
        let is_unused = |place: &Arc<Place>| {
            let keyspace = self.keyspaces.open_one(place.id);
            keyspace
                .is_some_and(|one| now.saturating_sub(one.unused_since(&place.open, now)) >= after)
        };
        let open = self.keyspaces.open();
        let ids: Vec<KeyspaceId> = open.iter().map(|keyspace| keyspace.id).collect();
        drop(open);
        let unused: Vec<_> = ids.iter().filter_map(|id| self.keyspaces.by_id(*id)).collect();
        let mut parked = false;
        // Another thread may hold it for a while; the next look is soon.
        if let Some(_one_at_a_time) = self.checkpoints.try_hold() {
            for place in unused.iter().filter(|place| is_unused(place)) {
                parked |= self.park(place)?;
            }
            // The scrub, a verification or an operation that needed its place may have parked the
            // last one.
            let is_left = || self.keyspaces.none_open() && self.has_records();
            if parked || is_left() {
                parked = true;
                if self.keyspaces.none_open() {
                    // Nothing else makes it durable now, and what is not durable is not trimmed.
                    self.log.ensure_durable(self.log.last_lsn())?;
                }
                self.trim()?;
            }
        }
        // The budget became smaller. Parks one at a time: an opening or a checkpoint waits for
        // each.
        if self.keyspaces.count_open() > self.open_max()
            && let Some(_one_at_a_time) = self.checkpoints.try_hold()
            && self.park_longest_unused()
        {
            return Ok(Next::Again);
        }
        if !self.keyspaces.none_open() {
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
        let Some(keyspace) = self.keyspaces.open_one(place.id) else { return Ok(false) };
        // Operations that enter after this are counted. Those before have left, so the engine has
        // their writes.
        let entries = place.open.entries();
        // Records that were replayed in memory are nowhere else.
        let must_stay = self.life.reading.is_some() && keyspace.has_changed();
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
        keyspace.job.stop();
        // Nothing is trimmed meanwhile, because that takes `checkpointing`.
        self.keyspaces.unlist_open(keyspace.id);
        let taken = {
            // A snapshot that is being taken finds it open, or covers it when it is opened again.
            let _no_snapshot = self.moments.hold();
            place.open.take_idle(|taken| {
                place.open.entries() != entries
                    || Arc::strong_count(taken) > HOLDERS
                    // In the stepped runtime its job may be what is waiting here.
                    || Arc::strong_count(&taken.engine) > 1
            })
        };
        // Writes back what the job did since, if anything.
        let home = match &taken {
            Some(taken) if taken.has_changed() => taken.engine.checkpoint(bound),
            _ => Ok(()),
        };
        let Some(taken) = taken.filter(|_| home.is_ok()) else {
            return self.unpark(place, keyspace, home);
        };
        // No writer is inside, so all that were have drawn their stamps.
        kept.keep(&taken, self.versions.certifier.clock().now());
        self.memory.budget.close(&taken.memory);
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
        self.keyspaces.list_open(keyspace.clone());
        self.start_keyspace_job(&keyspace)?;
        if home.is_err() {
            self.put_open(place, keyspace)?;
        }
        match home {
            Err(error) if error.is_full() => Ok(false),
            home => home.inspect_err(|error| self.note(error)).map(|()| false),
        }
    }
}
