//! A keyspace, whether open or not: what its handles hold, and what is kept of it while it is parked.
//!
//! ```text
//!   Place (id, name, what was chosen)          what handles and batches hold, for as long as they like
//!     `- KeyspaceState (engine, memory, job)   there only while the keyspace is open
//! ```
//!
//! [`parking`](crate::parking) says when a keyspace is opened and parked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Generation, KeyspaceId, Lsn, Result};
use spinney_engine::EngineStats;
use spinney_ssn::Stamp;
use spinney_sync::{Entry, Parkable};

use crate::guards::Guards;
use crate::keyspace_state::{KeyspaceState, Name, dropped};
use crate::manifest::ManifestKeyspace;
use crate::options::KeptOptions;
use crate::scrub::SOUND_FOR;

/// A keyspace, entered for one operation.
pub(crate) type Open<'a> = Entry<'a, KeyspaceState>;

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
    /// The ranges that transactions have read. Parking keeps them.
    pub(crate) guards: Arc<Guards>,
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
    /// Bytes of memory that its records take once it is open, of an engine that keeps all of them there.
    in_memory: u64,
    /// All stamps of its records at the moment when it was parked are at or below this one.
    forgotten: Stamp,
    /// Until when it is not waited for others that keep its memory: an opening has waited in vain.
    impatient_until: Duration,
}

impl Kept {
    /// Returns whether an opening at this time waits for memory.
    pub(crate) fn is_patient(&self, now: Duration) -> bool {
        now >= self.impatient_until
    }

    /// Notes that an opening has waited for memory in vain.
    pub(crate) fn lose_patience(&mut self, until: Duration) {
        self.impatient_until = until;
    }

    /// Returns the statistics when it was parked, or what its file says.
    pub(crate) fn stats(&self) -> EngineStats {
        self.stats.clone()
    }

    /// Bytes of memory that it always takes while it is open.
    pub(crate) fn in_memory(&self) -> u64 {
        self.in_memory
    }

    /// Notes options of the engine's own that were chosen.
    pub(crate) fn set_own(&mut self, own: &[(String, String)]) {
        for (name, value) in own {
            self.own.retain(|(other, _)| other != name);
            self.own.push((name.clone(), value.clone()));
        }
    }

    /// Returns whether the scrub of its content began long ago, or never.
    pub(crate) fn is_scrub_old(&self, now: Duration) -> bool {
        self.scrubbed.is_none_or(|then| now.saturating_sub(then) >= SOUND_FOR)
    }

    /// Notes that a scrub of its content begins.
    pub(crate) fn set_scrubbed(&mut self, now: Duration) {
        self.scrubbed = Some(now);
    }

    /// Notes that it is open, in this life of the log.
    pub(crate) fn set_open(&mut self) {
        self.was_open = true;
    }

    /// Notes what is known of a keyspace that recovery does not open.
    pub(crate) fn leave_unopened(&mut self, keyspace: &KeyspaceState) {
        self.stats = keyspace.engine.stats();
        self.in_memory = keyspace.kept_bytes();
    }

    /// Readies an engine that was opened again: checks that the log, whose end is `end`, goes as
    /// far as its file says, and gives it what was chosen for it. Without an opening in this life
    /// of the log, `recovered_to` is the log's end that counts.
    pub(crate) fn ready(
        &self,
        place: &Place,
        keyspace: &KeyspaceState,
        (end, recovered_to): (Lsn, Lsn),
    ) -> Result<()> {
        check_end(place, keyspace, if self.was_open { end } else { recovered_to })?;
        let engine = &keyspace.engine;
        if let Some(next) = self.next_generation {
            engine.resume_generations(next);
        }
        keyspace.forget(self.forgotten);
        keyspace.end_replays()?;
        self.own.iter().try_for_each(|(name, value)| engine.set_option(name, value))
    }

    /// Keeps what is needed of a keyspace that is parked now. Stamps up to `now` are forgotten.
    pub(crate) fn keep(&mut self, keyspace: &KeyspaceState, now: Stamp) {
        self.forgotten = now;
        self.stats = keyspace.engine.stats();
        self.in_memory = keyspace.kept_bytes();
        self.next_generation = Some(keyspace.engine.next_generation());
        if keyspace.is_unscrubbed() {
            self.scrubbed = None;
        }
    }
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
            guards: Arc::default(),
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

    /// Notes that the keyspace is damaged, so that each pass of the scrub reports it.
    pub(crate) fn scrub_again(&self) {
        self.kept.lock().scrubbed = None;
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
