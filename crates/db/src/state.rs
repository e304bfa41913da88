//! What all handles of one open database share.
//!
//! A keyspace is a [`Place`], which its handles hold, and while it is open a [`KeyspaceState`]. See
//! `place`.
//!
//! **Lock order**, first to last: `checkpointing`, [`Place::kept`], `log_part`, `door`, `manifest`,
//! `places`, `sharing`, `keyspaces`, `KeyspaceState::seen_use`, `large_batch`; then the writers'
//! guards of engines in ascending order of keyspace ids, the engine's preparation (which may do
//! I/O), `large_logging`, the stripes, the engine's own latches. Stripes are held for memory work
//! only.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{
    Error, ErrorKind, KeyspaceId, Lsn, MemoryAccount, MemoryBudget, Poison, Process, Result,
    Runtime, Stalls, Task,
};
use spinney_engine::{Engine, EngineContext};
use spinney_io::{Directory, DirectoryLock, Disk, Reserve};
use spinney_sync::{LockTable, Moment};
use spinney_wal::Log;

use crate::backup::LogPart;
use crate::engines::EngineKind;
use crate::governor;
use crate::manifest::Manifest;
use crate::options::{KeptOptions, Options};
use crate::place::{Name, Place, dropped};
use crate::reading::Reading;
use crate::scrub::Scrub;
use crate::transaction;

/// Bytes of the budget that the lock table, buffers and bookkeeping take before keyspaces share the
/// rest.
const OVERHEAD_BYTES: u64 = 768 << 10;

/// Beyond this many bytes of budget, the log's buffers may take one part in [`LOG_SHARE`] of the
/// rest, up to [`LOG_BYTES_MAX`]: for records that gather for a flush, and for buffers kept between
/// flushes.
const SMALL_BUDGET_BYTES: u64 = 16 << 20;
const LOG_SHARE: u64 = 32;
const LOG_BYTES_MAX: u64 = 2 << 20;

/// Least bytes of that for each kind of buffer.
const LOG_SPARE_BYTES_MIN: u64 = 16 << 10;

/// Least memory that a keyspace is opened with, in bytes. It limits the number of open keyspaces.
pub(crate) const KEYSPACE_BYTES_MIN: u64 = 128 << 10;

/// Descriptors that a database needs beside those of keyspaces: for the directory, its locks and
/// the log, and one for a copy by a backup.
const OTHER_DESCRIPTORS: u64 = 16;

/// This many keyspaces may be open even if there are fewer descriptors: where one cannot be opened,
/// another is parked.
const OPEN_MIN: u64 = 8;

/// One keyspace while it is open.
#[derive(Debug)]
pub(crate) struct KeyspaceState {
    pub(crate) id: KeyspaceId,
    pub(crate) name: Name,
    pub(crate) options: KeptOptions,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) memory: Arc<MemoryAccount>,
    /// The log's end when the keyspace was opened: the log has none of its records between its
    /// checkpoint and here.
    opened_at: Lsn,
    /// Set under the exclusive door when it is dropped.
    standing: AtomicU8,
    pub(crate) task: Mutex<Option<Task>>,
    /// [`CHANGED`], [`UNSCRUBBED`] and [`WRITTEN`].
    changes: AtomicU8,
    /// How often it had been entered at the last look, and since when this number is unchanged.
    seen: Mutex<(u64, Duration)>,
    /// When its job last had something to do, in nanoseconds of the runtime.
    busy_at: AtomicU64,
    /// What the memory governor has seen of it.
    pub(crate) seen_use: Mutex<governor::Seen>,
}

/// What happened to an open keyspace: its file may lack something; its last scrub is older than its
/// content; users wrote to it since it was opened.
const CHANGED: u8 = 1;
const UNSCRUBBED: u8 = 2;
const WRITTEN: u8 = 4;
const ALL_CHANGES: u8 = CHANGED | UNSCRUBBED | WRITTEN;

impl KeyspaceState {
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
    /// observed.
    pub(crate) fn unused_since(&self, place: &Place, now: Duration) -> Duration {
        let entries = place.open.entries();
        let is_idle = place.open.is_idle();
        let mut seen = self.seen.lock();
        if seen.0 != entries || !is_idle {
            *seen = (entries, now);
        }
        seen.1.max(Duration::from_nanos(self.busy_at.load(Ordering::Relaxed)))
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

/// Name of the memory account of a keyspace.
pub(crate) fn account_name(engine: EngineKind, name: &str) -> String {
    format!("{engine}/{name}")
}

#[cold]
fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

/// One open database.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) owner: u64,
    /// Process that opened the database. A forked child has none of its threads.
    pub(crate) process: Process,
    /// Open for as long as the database is. Every name is looked up in it.
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) options: Options,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) runtime: Runtime,
    pub(crate) poison: Arc<Poison>,
    pub(crate) log: Arc<Log>,
    pub(crate) stripes: LockTable,
    pub(crate) transactions: transaction::Counters,
    /// Held while the budget is shared out.
    pub(crate) sharing: Mutex<()>,
    pub(crate) budget: MemoryBudget,
    pub(crate) double_write: bool,
    /// Held shared by every write from its check to its apply; held exclusively to close the
    /// database or to drop a keyspace.
    pub(crate) door: RwLock<()>,
    pub(crate) closed: AtomicBool,
    pub(crate) manifest: Mutex<Manifest>,
    /// All keyspaces, in the order of their creation.
    pub(crate) places: RwLock<Vec<Arc<Place>>>,
    /// The open keyspaces, in the same order.
    pub(crate) keyspaces: RwLock<Vec<Arc<KeyspaceState>>>,
    /// One checkpoint, drop or verification at a time.
    pub(crate) checkpointing: Mutex<()>,
    /// Number of threads that wait for it. A checkpoint that takes its time ends at once for them.
    pub(crate) hurried: AtomicUsize,
    /// When the last checkpoint ended.
    pub(crate) last_checkpoint: Mutex<Duration>,
    /// One large batch at a time, so that two do not wait for space that the other has reserved.
    pub(crate) large_batch: Mutex<()>,
    /// Held shared while the pointer to a large value is logged and applied; held exclusively by a
    /// backup from the end of its copies to the cut of the log.
    pub(crate) large_logging: RwLock<()>,
    /// Reference to this state, for jobs of keyspaces that are opened later.
    pub(crate) me: Mutex<Weak<State>>,
    /// The log's end when the database was opened.
    pub(crate) recovered_to: Lsn,
    pub(crate) park_task: Mutex<Option<Task>>,
    pub(crate) memory_task: Mutex<Option<Task>>,
    pub(crate) checkpoint_task: Mutex<Option<Task>>,
    pub(crate) log_task: Mutex<Option<Task>>,
    /// Why the last background checkpoint failed, until one succeeds.
    pub(crate) checkpoint_error: Mutex<Option<Error>>,
    pub(crate) checkpoint_wanted: AtomicBool,
    /// Whether any write without a log came since the last look.
    pub(crate) unlogged_came: AtomicBool,
    /// Whether a backup runs, and how many bytes of pages it has copied.
    pub(crate) backup_running: AtomicBool,
    pub(crate) backup_bytes: AtomicU64,
    /// The log's part in the backup.
    pub(crate) log_part: Mutex<LogPart>,
    pub(crate) scrub: Mutex<Scrub>,
    pub(crate) scrub_task: Mutex<Option<Task>>,
    pub(crate) stalls: Stalls,
    pub(crate) directory_lock: Mutex<Option<Box<dyn DirectoryLock>>>,
    /// Set when the database is open for reading: `directory` is an overlay then.
    pub(crate) reading: Option<Reading>,
    /// Disk space that recovery, removals and a checkpoint may take on a full disk; `directory`
    /// takes from it. `None` when the database is open for reading.
    pub(crate) reserve: Option<Arc<Reserve>>,
    /// Fullness of the log at which the reserve is checked again: the bits of an `f64`.
    pub(crate) covered: AtomicU64,
    /// Disk space that engines need beside the log's, at the last check.
    pub(crate) engine_room: AtomicU64,
    /// Disk space of the data, at the last check.
    pub(crate) data_bytes: AtomicU64,
    /// Bytes of the log when a checkpoint to shorten it found no space; 0 since one did.
    pub(crate) log_without_room: AtomicU64,
}

static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// Returns a number that no other open database of this process has.
pub(crate) fn next_owner() -> u64 {
    NEXT_OWNER.fetch_add(1, Ordering::Relaxed)
}

impl State {
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        self.process.check()
    }

    /// Passes while writes are allowed: open and not poisoned. A failure of the log poisons
    /// everything else, and vice versa (P21).
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_sound()?;
        self.reading.as_ref().map_or(Ok(()), |reading| Err(reading.refusal()))
    }

    /// Passes while the files can be relied upon: open and not poisoned.
    #[inline]
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.check_open()?;
        self.poison.check()
    }

    /// Notes an error of background work or of a write. An error that stops the log or the files
    /// stops everything.
    pub(crate) fn note(&self, error: &Error) {
        if error.is_poisoned() {
            self.poison.set(error.clone());
        }
        if let Err(cause) = self.poison.check() {
            self.log.poison(cause);
        }
    }

    /// Returns the present moment: what was written before it is seen by who reads after it.
    pub(crate) fn moment(&self) -> Moment {
        self.stripes.moment(self.log.last_lsn())
    }

    /// Returns the keyspaces that are open now.
    pub(crate) fn keyspaces(&self) -> Vec<Arc<KeyspaceState>> {
        self.keyspaces.read().clone()
    }

    /// Returns the path of a keyspace's file, for messages.
    pub(crate) fn file_of(&self, id: KeyspaceId) -> PathBuf {
        self.directory.path().join(file_name(id))
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
        let memory = self.budget.open(account_name(entry.options.engine, &entry.name.get()), share);
        let context = EngineContext {
            directory: self.directory.clone(),
            name: file_name(entry.id),
            keyspace: entry.id,
            logged: entry.options.logged,
            double_write: self.double_write,
            log: self.log.clone(),
            runtime: self.runtime.clone(),
            poison: self.poison.clone(),
            memory: memory.clone(),
        };
        let row = entry.options.engine.row();
        let made = match created_at {
            Some(redo) => (row.create)(context, redo),
            None => (row.open)(context),
        };
        let engine = made.inspect_err(|_| self.budget.close(&memory))?;
        Ok(Arc::new(KeyspaceState {
            id: entry.id,
            name: entry.name.clone(),
            options: entry.options,
            engine,
            memory,
            opened_at,
            standing: AtomicU8::new(ALIVE),
            task: Mutex::new(None),
            changes: AtomicU8::new(0),
            seen: Mutex::new((entry.open.entries(), self.runtime.now())),
            busy_at: AtomicU64::new(0),
            seen_use: governor::Seen::new(entry.uses()),
        }))
    }

    /// Bytes of the budget that keyspaces share.
    pub(crate) fn shareable(&self) -> u64 {
        let total = self.budget.total();
        let overhead = OVERHEAD_BYTES + Self::log_bytes(total) + Self::tail_bytes(total);
        total.saturating_sub(overhead)
    }

    /// Bytes of a budget for the buffers of the log, beyond what is always there.
    fn log_bytes(total: u64) -> u64 {
        (total.saturating_sub(SMALL_BUDGET_BYTES) / LOG_SHARE).min(LOG_BYTES_MAX)
    }

    /// Bytes of a budget for the mapped tail of the log, beyond a few pages.
    pub(crate) fn tail_bytes(total: u64) -> u64 {
        Self::log_bytes(total) / 2
    }

    /// Tells the log how much its buffers may keep.
    pub(crate) fn limit_log(&self, total: u64) {
        let spare = (Self::log_bytes(total) / 4).max(LOG_SPARE_BYTES_MIN);
        self.log.keep_spare(usize::try_from(spare).unwrap_or(usize::MAX));
    }

    /// Bytes of memory that all accounts, the lock table and the log hold.
    pub(crate) fn memory_used(&self) -> u64 {
        self.budget.used() + self.stripes.bytes() as u64 + self.log.memory_bytes()
    }

    /// Share of each of `count` keyspaces that recovery opens together, when it is not known which
    /// of them will be used.
    pub(crate) fn first_share(&self, count: usize) -> u64 {
        (self.shareable() / count.max(1) as u64).max(KEYSPACE_BYTES_MIN)
    }

    /// Number of keyspaces that may be open at once: as many as the budget and the descriptors
    /// allow.
    pub(crate) fn open_max(&self) -> usize {
        let by_memory = self.shareable() / KEYSPACE_BYTES_MIN;
        let by_memory = usize::try_from(by_memory).unwrap_or(usize::MAX);
        let by_descriptors = match self.disk.descriptors_max() {
            Some(all) => (all / 2).saturating_sub(OTHER_DESCRIPTORS).max(OPEN_MIN),
            None => u64::MAX,
        };
        let by_descriptors = usize::try_from(by_descriptors).unwrap_or(usize::MAX);
        by_memory.min(by_descriptors).max(1)
    }
}

/// Name of a keyspace's file in the database directory.
pub(crate) fn file_name(id: KeyspaceId) -> String {
    format!("keyspace-{:08}.spn", id.0)
}

/// Returns whether a file name is that of a keyspace's file.
pub(crate) fn is_keyspace_file(name: &str) -> bool {
    name.strip_prefix("keyspace-").and_then(|rest| rest.strip_suffix(".spn")).is_some()
}
