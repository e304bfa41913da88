//! One keyspace while it is open: its engine, its memory, and what has happened to it since.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, MemoryAccount, Result};
use spinney_engine::Engine;
use spinney_ssn::Stamp;
use spinney_sync::Parkable;

use crate::engines::EngineKind;
use crate::governor::Seen;
use crate::guards::Guards;
use crate::jobs::Job;
use crate::options::KeptOptions;

/// The name of a keyspace, which may change. Its clones are one name.
#[derive(Clone, Debug)]
pub(crate) struct Name(Arc<Mutex<String>>);

impl Name {
    pub(crate) fn new(name: &str) -> Name {
        Name(Arc::new(Mutex::new(name.to_owned())))
    }

    pub(crate) fn get(&self) -> String {
        self.0.lock().clone()
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        *self.0.lock() == name
    }

    pub(crate) fn set(&self, name: &str) {
        name.clone_into(&mut self.0.lock());
    }
}

/// One keyspace while it is open.
#[derive(Debug)]
pub(crate) struct KeyspaceState {
    pub(crate) id: KeyspaceId,
    pub(crate) name: Name,
    pub(crate) options: KeptOptions,
    pub(crate) engine: Arc<dyn Engine>,
    /// Whether its records have versions.
    pub(crate) has_versions: bool,
    pub(crate) memory: Arc<MemoryAccount>,
    /// Those of its place.
    pub(crate) guards: Arc<Guards>,
    /// The log's end when the keyspace was opened: the log has none of its records between its
    /// checkpoint and here.
    opened_at: Lsn,
    /// When it was parked, versions with stamps up to this one were forgotten, and the stamps of their readers and
    /// successors.
    forgotten: AtomicU64,
    /// Set under the exclusive door when it is dropped.
    standing: AtomicU8,
    pub(crate) job: Job,
    /// [`CHANGED`], [`UNSCRUBBED`] and [`WRITTEN`].
    changes: AtomicU8,
    /// How often it had been entered at the last look, and since when this number is unchanged.
    seen: Mutex<(u64, Duration)>,
    /// When its job last had something to do, in nanoseconds of the runtime.
    busy_at: AtomicU64,
    /// What the memory governor has seen of it.
    pub(crate) seen_use: Mutex<Seen>,
    /// Until when its writes do not wait for memory of others, in nanoseconds of the runtime: one has waited in vain.
    patience: AtomicU64,
}

/// What happened to an open keyspace: its file may lack something; its last scrub is older than its
/// content; users wrote to it since it was opened.
const CHANGED: u8 = 1;
const UNSCRUBBED: u8 = 2;
const WRITTEN: u8 = 4;
const ALL_CHANGES: u8 = CHANGED | UNSCRUBBED | WRITTEN;

impl KeyspaceState {
    /// Makes the state of a keyspace that an engine has opened, and that no other thread knows yet.
    /// `seen` is how often it has been entered, and the time now.
    pub(crate) fn new(
        (id, name, options): (KeyspaceId, Name, KeptOptions),
        (engine, memory): (Arc<dyn Engine>, Arc<MemoryAccount>),
        guards: Arc<Guards>,
        opened_at: Lsn,
        seen: (u64, Duration),
        seen_use: Seen,
    ) -> KeyspaceState {
        KeyspaceState {
            id,
            name,
            has_versions: options.engine.row().capabilities.versions,
            options,
            engine,
            memory,
            guards,
            opened_at,
            forgotten: AtomicU64::new(0),
            standing: AtomicU8::new(ALIVE),
            job: Job::none(),
            changes: AtomicU8::new(0),
            seen: Mutex::new(seen),
            busy_at: AtomicU64::new(0),
            seen_use: Mutex::new(seen_use),
            patience: AtomicU64::new(0),
        }
    }

    /// Whether its writes wait for memory of others.
    pub(crate) fn is_patient(&self, now: Duration) -> bool {
        now.as_nanos() >= u128::from(self.patience.load(Ordering::Relaxed))
    }

    /// Lets them refuse at once until then.
    pub(crate) fn lose_patience(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.patience.store(until, Ordering::Relaxed);
    }

    /// Notes that something was written.
    #[inline]
    pub(crate) fn set_changed(&self) {
        // It is usually set already, and then the line stays in every processor's cache.
        if self.changes.load(Ordering::Relaxed) != ALL_CHANGES {
            self.changes.store(ALL_CHANGES, Ordering::Release);
        }
    }

    /// Returns whether anything was written or moved since the keyspace was opened.
    pub(crate) fn has_changed(&self) -> bool {
        self.changes.load(Ordering::Acquire) & CHANGED != 0
    }

    /// Notes that a scrub of the keyspace begins.
    pub(crate) fn begin_scrub(&self) {
        self.changes.fetch_and(!UNSCRUBBED, Ordering::AcqRel);
    }

    /// Returns whether anything was written or moved since the last scrub began.
    pub(crate) fn is_unscrubbed(&self) -> bool {
        self.changes.load(Ordering::Acquire) & UNSCRUBBED != 0
    }

    /// Notes that its job had something to do. Work of a job after an opening, without writes of
    /// users, makes no scrub due: the scrub would open the keyspace again, and the cycle would
    /// never end.
    pub(crate) fn set_busy(&self, now: Duration) {
        let is_written = self.changes.fetch_or(CHANGED, Ordering::AcqRel) & WRITTEN != 0;
        if is_written {
            self.changes.fetch_or(UNSCRUBBED, Ordering::AcqRel);
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.busy_at.fetch_max(now, Ordering::Relaxed);
    }

    /// Returns since when no operation used it and its job had nothing to do, as far as was
    /// observed. `open` is that of its place.
    pub(crate) fn unused_since(&self, open: &Parkable<KeyspaceState>, now: Duration) -> Duration {
        let entries = open.entries();
        let is_idle = open.is_idle();
        let mut seen = self.seen.lock();
        if seen.0 != entries || !is_idle {
            *seen = (entries, now);
        }
        seen.1.max(Duration::from_nanos(self.busy_at.load(Ordering::Relaxed)))
    }

    /// Notes that stamps up to this one were forgotten when it was parked.
    pub(crate) fn forget(&self, stamp: Stamp) {
        self.forgotten.store(stamp, Ordering::SeqCst);
    }

    /// Checks that it still has what a transaction with this begin stamp may have to know of others' versions.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn check_remembers(&self, begin: Stamp) -> Result<()> {
        if begin >= self.forgotten.load(Ordering::SeqCst) {
            return Ok(());
        }
        let text = "a keyspace was parked since the transaction began, and has no older versions";
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// Ends the replay of the log, or says that there is nothing to replay.
    pub(crate) fn end_replays(&self) -> Result<()> {
        self.engine.end_structure_replay()?;
        self.engine.end_replay()
    }

    /// Returns the LSN up to which its own files hold everything that the log has of it.
    pub(crate) fn redo(&self) -> Lsn {
        self.engine.redo().max(self.opened_at)
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.standing.load(Ordering::Acquire) == DROPPED { Err(self.refusal()) } else { Ok(()) }
    }

    #[cold]
    fn refusal(&self) -> Error {
        match self.standing.load(Ordering::Acquire) {
            DROPPED => dropped(&self.name.get()),
            _ => frozen(&self.name.get()),
        }
    }

    /// Whether it may be written to. A caller holds the door.
    ///
    /// # Errors
    /// `Closed` when it was dropped, `Conflict` while it is frozen.
    #[inline]
    pub(crate) fn check_thawed(&self) -> Result<()> {
        if self.standing.load(Ordering::Acquire) == ALIVE { Ok(()) } else { Err(self.refusal()) }
    }

    /// Refuses writes from now on. A caller has drained the door.
    ///
    /// # Errors
    /// As [`KeyspaceState::check_thawed`].
    pub(crate) fn freeze(&self) -> Result<()> {
        self.check_thawed()?;
        self.standing.store(FROZEN, Ordering::Release);
        Ok(())
    }

    /// Takes writes again, unless it was dropped.
    pub(crate) fn thaw(&self) {
        let _ = self.standing.compare_exchange(FROZEN, ALIVE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// From now on it has gone.
    pub(crate) fn set_dropped(&self) {
        self.standing.store(DROPPED, Ordering::Release);
    }
}

/// What a keyspace's state stands for: it takes reads and writes, reads only, or nothing.
const ALIVE: u8 = 0;
const FROZEN: u8 = 1;
const DROPPED: u8 = 2;

#[cold]
fn frozen(name: &str) -> Error {
    let text =
        format!("keyspace {name:?} is being converted to another engine, and can only be read");
    Error::new(ErrorKind::Conflict, text)
}

#[cold]
pub(crate) fn dropped(name: &str) -> Error {
    Error::new(
        ErrorKind::Closed,
        format!("this handle's keyspace {name:?} was dropped or converted"),
    )
}

/// Name of the memory account of a keyspace.
pub(crate) fn account_name(engine: EngineKind, name: &str) -> String {
    format!("{engine}/{name}")
}
