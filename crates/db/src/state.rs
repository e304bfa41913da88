//! What all handles of one open database share.
//!
//! **Lock order**, first to last: `checkpointing`, `log_part`, `door`, `manifest`, `keyspaces`, `large_batch`;
//! then the writers' guards of engines in ascending order of keyspace ids, the engine's preparation (which may do I/O), `large_logging`, the stripes, the engine's own latches. Stripes
//! are held for memory work only.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{
    Error, ErrorKind, KeyspaceId, Lsn, MemoryAccount, MemoryBudget, Poison, Process, Result,
    Runtime, Task,
};
use spinney_engine::{Engine, EngineContext};
use spinney_io::{Directory, DirectoryLock, Disk, Reserve};
use spinney_sync::LockTable;
use spinney_treeline::TreeLine;
use spinney_turtle::Turtle;
use spinney_wal::Log;

use crate::backup::LogPart;
use crate::manifest::{Manifest, ManifestKeyspace};
use crate::options::{EngineKind, KeptOptions, Options};
use crate::reading::Reading;
use crate::scrub::Scrub;

/// What the lock table, buffers and bookkeeping take of the budget before keyspaces share the rest.
const OVERHEAD_BYTES: u64 = 768 << 10;

/// Of a budget beyond so many bytes the buffers of the log may take one in [`LOG_SHARE`], up to
/// [`LOG_BYTES_MAX`]: what gathers for a flush, and what is kept from one to the next.
const SMALL_BUDGET_BYTES: u64 = 16 << 20;
const LOG_SHARE: u64 = 32;
const LOG_BYTES_MAX: u64 = 2 << 20;

/// Of that, what each kind of buffer keeps, at least.
const LOG_SPARE_BYTES_MIN: u64 = 16 << 10;

/// Least memory of one keyspace.
const KEYSPACE_BYTES_MIN: u64 = 128 << 10;

/// One keyspace, shared by its handles.
#[derive(Debug)]
pub(crate) struct KeyspaceState {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    pub(crate) options: KeptOptions,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) memory: Arc<MemoryAccount>,
    /// Which open database it belongs to.
    pub(crate) owner: u64,
    /// Set under the exclusive door when it is dropped.
    pub(crate) dropped: AtomicBool,
    pub(crate) task: Mutex<Option<Task>>,
}

impl KeyspaceState {
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Closed,
                format!("keyspace {:?} was dropped", self.name),
            ));
        }
        Ok(())
    }
}

/// One open database.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) owner: u64,
    /// The process that opened it; a child that was forked from it has none of its threads.
    pub(crate) process: Process,
    /// Open for as long as the database is: every name is looked up in it.
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) options: Options,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) runtime: Runtime,
    pub(crate) poison: Arc<Poison>,
    pub(crate) log: Arc<Log>,
    pub(crate) stripes: LockTable,
    pub(crate) budget: MemoryBudget,
    pub(crate) double_write: bool,
    /// Held shared by every write from its check to its apply; exclusively to close or to drop a
    /// keyspace.
    pub(crate) door: RwLock<()>,
    pub(crate) closed: AtomicBool,
    pub(crate) manifest: Mutex<Manifest>,
    pub(crate) keyspaces: RwLock<Vec<Arc<KeyspaceState>>>,
    /// One checkpoint, drop or verification at a time.
    pub(crate) checkpointing: Mutex<()>,
    /// How many wait for that: a checkpoint that takes its time ends at once for them.
    pub(crate) hurried: AtomicUsize,
    /// When the last checkpoint ended.
    pub(crate) last_checkpoint: Mutex<Duration>,
    /// One large batch at a time, so that two do not wait for room that the other has reserved.
    pub(crate) large_batch: Mutex<()>,
    /// Held shared while the pointer to a large value is logged and applied; exclusively by a backup
    /// from the end of its copies to the log's cut.
    pub(crate) large_logging: RwLock<()>,
    pub(crate) checkpoint_task: Mutex<Option<Task>>,
    pub(crate) log_task: Mutex<Option<Task>>,
    /// Why the last background checkpoint failed, until one succeeds.
    pub(crate) checkpoint_error: Mutex<Option<Error>>,
    pub(crate) checkpoint_wanted: AtomicBool,
    /// Whether something was written that is not logged, since it was last looked.
    pub(crate) unlogged_came: AtomicBool,
    /// Whether a backup runs, and how many bytes of pages it has copied.
    pub(crate) backup_running: AtomicBool,
    pub(crate) backup_bytes: AtomicU64,
    /// The log's part in the backup.
    pub(crate) log_part: Mutex<LogPart>,
    pub(crate) scrub: Mutex<Scrub>,
    pub(crate) scrub_task: Mutex<Option<Task>>,
    pub(crate) stall_ns: AtomicU64,
    pub(crate) longest_stall_ns: AtomicU64,
    pub(crate) directory_lock: Mutex<Option<Box<dyn DirectoryLock>>>,
    /// Set when the database is open for reading: `directory` is an overlay then.
    pub(crate) reading: Option<Reading>,
    /// The room that recovery, removals and a checkpoint may take on a full disk; `directory` takes
    /// from it. None when the database is open for reading.
    pub(crate) reserve: Option<Arc<Reserve>>,
}

static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// A number that no other open database of this process has.
pub(crate) fn next_owner() -> u64 {
    NEXT_OWNER.fetch_add(1, Ordering::Relaxed)
}

impl State {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the database is closed"));
        }
        self.process.check()
    }

    /// Passes while writes may go on: open and not poisoned. A failure of the log poisons all else,
    /// and the other way round (P21).
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_sound()?;
        self.reading.as_ref().map_or(Ok(()), |reading| Err(reading.refusal()))
    }

    /// Passes while the files can be relied upon: open and not poisoned.
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.check_open()?;
        self.poison.check()
    }

    /// Notes an error that something in the background or under a write met; one that stops the log
    /// or the files stops everything.
    pub(crate) fn note(&self, error: &Error) {
        if error.is_poisoned() {
            self.poison.set(error.clone());
        }
        if let Err(cause) = self.poison.check() {
            self.log.poison(cause);
        }
    }

    /// All keyspaces now.
    pub(crate) fn keyspaces(&self) -> Vec<Arc<KeyspaceState>> {
        self.keyspaces.read().clone()
    }

    pub(crate) fn keyspace_by_name(&self, name: &str) -> Option<Arc<KeyspaceState>> {
        self.keyspaces.read().iter().find(|keyspace| keyspace.name == name).cloned()
    }

    /// The path of a keyspace's file, for messages.
    pub(crate) fn file_of(&self, id: KeyspaceId) -> PathBuf {
        self.directory.path().join(file_name(id))
    }

    /// Opens the files of a keyspace of the manifest, or makes them when `created_at` says from
    /// which LSN on it exists.
    pub(crate) fn assemble(
        &self,
        entry: &ManifestKeyspace,
        created_at: Option<Lsn>,
        share: u64,
    ) -> Result<Arc<KeyspaceState>> {
        let memory = self.budget.open(format!("{}/{}", entry.options.engine, entry.name), share);
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
        let made = make(entry.options.engine, context, created_at);
        let engine = made.inspect_err(|_| self.budget.close(&memory))?;
        Ok(Arc::new(KeyspaceState {
            id: entry.id,
            name: entry.name.clone(),
            options: entry.options,
            engine,
            memory,
            owner: self.owner,
            dropped: AtomicBool::new(false),
            task: Mutex::new(None),
        }))
    }

    /// What each of `count` keyspaces gets of a budget of `total` bytes.
    ///
    /// # Errors
    /// `InvalidArgument` when that is less than a keyspace can work with.
    pub(crate) fn share(total: u64, count: usize) -> Result<u64> {
        let overhead = OVERHEAD_BYTES + Self::log_bytes(total) + Self::tail_bytes(total);
        let share = total.saturating_sub(overhead) / count.max(1) as u64;
        if share < KEYSPACE_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a memory budget of {total} bytes is too small for {count} keyspaces, which need {KEYSPACE_BYTES_MIN} each and \
                 {overhead} together"
            )));
        }
        Ok(share)
    }

    /// What a budget leaves to the buffers of the log, beyond what is always there.
    fn log_bytes(total: u64) -> u64 {
        (total.saturating_sub(SMALL_BUDGET_BYTES) / LOG_SHARE).min(LOG_BYTES_MAX)
    }

    /// What a budget leaves to the mapped tail of the log, beyond a few pages.
    pub(crate) fn tail_bytes(total: u64) -> u64 {
        Self::log_bytes(total) / 2
    }

    /// Tells the log what its buffers may keep.
    pub(crate) fn limit_log(&self, total: u64) {
        let spare = (Self::log_bytes(total) / 4).max(LOG_SPARE_BYTES_MIN);
        self.log.keep_spare(usize::try_from(spare).unwrap_or(usize::MAX));
    }

    /// Bytes of memory that all hold who have an account, the lock table and the log.
    pub(crate) fn memory_used(&self) -> u64 {
        self.budget.used() + self.stripes.bytes() as u64 + self.log.memory_bytes()
    }

    /// Shares the budget out among all keyspaces.
    pub(crate) fn share_out(&self, total: u64) -> Result<()> {
        let keyspaces = self.keyspaces();
        let share = Self::share(total, keyspaces.len())?;
        self.budget.set_total(total);
        self.limit_log(total);
        for keyspace in keyspaces {
            keyspace.memory.set_target(share);
            if let Some(task) = &*keyspace.task.lock() {
                task.wake();
            }
        }
        Ok(())
    }
}

/// Makes or opens a keyspace's engine.
fn make(
    kind: EngineKind,
    context: EngineContext,
    created_at: Option<Lsn>,
) -> Result<Arc<dyn Engine>> {
    fn shared<E: Engine + 'static>(engine: E) -> Arc<dyn Engine> {
        Arc::new(engine)
    }
    match (kind, created_at) {
        (EngineKind::TreeLine, Some(redo)) => TreeLine::create(context, redo).map(shared),
        (EngineKind::TreeLine, None) => TreeLine::open(context).map(shared),
        (EngineKind::Turtle, Some(redo)) => Turtle::create(context, redo).map(shared),
        (EngineKind::Turtle, None) => Turtle::open(context).map(shared),
    }
}

/// The file of a keyspace in the database directory.
pub(crate) fn file_name(id: KeyspaceId) -> String {
    format!("keyspace-{:08}.spn", id.0)
}

/// Whether a file name is that of a keyspace's file.
pub(crate) fn is_keyspace_file(name: &str) -> bool {
    name.strip_prefix("keyspace-").and_then(|rest| rest.strip_suffix(".spn")).is_some()
}
