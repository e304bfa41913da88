//! Background work of a database: checkpoints, the log's timer, and the engines' own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Lsn, Next, Result, Task, probe};

use crate::state::{KeyspaceState, State};

/// How often the log's timer looks.
const LOG_TICK: Duration = Duration::from_millis(20);
/// How often it is looked whether a checkpoint is wanted, if nobody wakes the job.
const CHECKPOINT_LOOK: Duration = Duration::from_millis(100);
/// A checkpoint is taken after this time if anything changed, though the log is not full: it
/// bounds what a crash takes from keyspaces that are not logged, and what a recovery replays.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// How long a background job waits after an error before it tries again.
const RETRY: Duration = Duration::from_millis(50);

/// A database in which nothing was written for so long takes a checkpoint, if its log has so many
/// bytes.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_LOG_BYTES: u64 = 1 << 20;

/// And after so long the log gives back the room that it does not need then.
const LOG_QUIET: Duration = Duration::from_secs(3);

/// Notices when nothing was written for a while.
#[derive(Default)]
struct Quiet {
    last: Lsn,
    since: Duration,
    said: bool,
}

impl Quiet {
    /// Whether the log's end has not moved for a while; says so once.
    fn begins(&mut self, last: Lsn, now: Duration, after: Duration) -> bool {
        if self.last != last {
            *self = Quiet { last, since: now, said: false };
        }
        let begins = !self.said && now.saturating_sub(self.since) >= after;
        self.said |= begins;
        begins
    }
}

impl State {
    /// Publishes a checkpoint of every keyspace and trims the log (P14).
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock();
        self.checkpoint_held()
    }

    /// The same for who holds `checkpointing`.
    pub(crate) fn checkpoint_held(&self) -> Result<()> {
        self.poison.check()?;
        // Everything up to the bound has been applied (P1), so it is in the engines' caches or
        // beyond.
        let bound = self.log.applied_watermark();
        let keyspaces = self.keyspaces();
        for keyspace in &keyspaces {
            keyspace.engine.checkpoint(bound).inspect_err(|error| self.note(error))?;
        }
        self.trim(&keyspaces, bound)
    }

    /// Trims the log up to where all of these keyspaces are; `bound` is for a database that has none.
    fn trim(&self, keyspaces: &[Arc<KeyspaceState>], bound: Lsn) -> Result<()> {
        self.copy_log();
        let _inside = probe::enter("trim");
        // A keyspace made meanwhile has nothing below its own redo LSN, which lies above the bound.
        let redo = keyspaces.iter().map(|keyspace| keyspace.engine.redo()).min().unwrap_or(bound);
        self.log.trim(redo).inspect_err(|error| self.note(error))
    }

    /// Whether a checkpoint that was asked for is needed still. Engines that publish on their own account may
    /// have moved on since the log was last trimmed, and trimming it may be all there is to do.
    fn needs_checkpoint(&self) -> Result<bool> {
        let _one_at_a_time = self.checkpointing.lock();
        self.poison.check()?;
        let keyspaces = self.keyspaces();
        if keyspaces.iter().any(|keyspace| keyspace.engine.wants_checkpoint()) {
            return Ok(true);
        }
        let before = self.log.stats().bytes_used;
        self.trim(&keyspaces, self.log.applied_watermark())?;
        let trimmed = self.log.stats().bytes_used < before;
        Ok(!trimmed || self.is_log_full())
    }

    /// Starts the database's own jobs.
    pub(crate) fn start_jobs(self: &Arc<Self>) -> Result<()> {
        let state = self.clone();
        let mut quiet = Quiet::default();
        *self.log_task.lock() = Some(self.spawn("spinney-log", move || {
            state.log.tick()?;
            if quiet.begins(state.log.last_lsn(), state.runtime.now(), LOG_QUIET) {
                state.log.give_back()?;
            }
            Ok(Next::Wait(LOG_TICK))
        })?);
        let state = self.clone();
        let mut last = self.runtime.now();
        let mut quiet = Quiet::default();
        *self.checkpoint_task.lock() = Some(self.spawn("spinney-checkpoint", move || {
            let waited = state.runtime.now().saturating_sub(last) >= CHECKPOINT_INTERVAL;
            let quiet = quiet.begins(state.log.last_lsn(), state.runtime.now(), QUIET);
            let wanted = state.checkpoint_wanted.load(Ordering::Acquire);
            let wanted = wanted && state.needs_checkpoint()?
                || quiet && state.log.stats().bytes_used > QUIET_LOG_BYTES;
            if !(wanted || waited && state.has_news()) {
                state.checkpoint_wanted.store(false, Ordering::Release);
                return Ok(Next::Wait(CHECKPOINT_LOOK));
            }
            let result = state.checkpoint();
            last = state.runtime.now();
            *state.checkpoint_error.lock() = result.as_ref().err().cloned();
            state.checkpoint_wanted.store(false, Ordering::Release);
            result.map(|()| Next::Wait(CHECKPOINT_LOOK))
        })?);
        let rate = self.options.scrub_bytes_per_second;
        if rate > 0 {
            let state = self.clone();
            *self.scrub_task.lock() =
                Some(self.spawn("spinney-scrub", move || state.scrub_piece(rate))?);
        }
        self.keyspaces().iter().try_for_each(|keyspace| self.start_keyspace_job(keyspace))
    }

    /// Whether a checkpoint would bring anything home.
    fn has_news(&self) -> bool {
        let last = self.log.last_lsn();
        self.keyspaces().iter().any(|keyspace| {
            keyspace.engine.redo() < last || keyspace.engine.stats().records_dirty > 0
        })
    }

    /// Starts a keyspace's job.
    pub(crate) fn start_keyspace_job(
        self: &Arc<Self>,
        keyspace: &Arc<KeyspaceState>,
    ) -> Result<()> {
        let engine = keyspace.engine.clone();
        let task = self.spawn("spinney-keyspace", move || engine.background())?;
        *keyspace.task.lock() = Some(task);
        Ok(())
    }

    /// Stops all jobs and waits for them to end.
    pub(crate) fn stop_jobs(&self) {
        let own = [&self.log_task, &self.checkpoint_task, &self.scrub_task];
        let own = own.map(|task| task.lock().take());
        own.into_iter().flatten().for_each(|task| task.stop());
        for keyspace in self.keyspaces() {
            let task = keyspace.task.lock().take();
            if let Some(task) = task {
                task.stop();
            }
        }
    }

    /// Starts a job whose errors are noted and whose panics poison (P21).
    fn spawn(
        self: &Arc<Self>,
        name: &str,
        mut job: impl FnMut() -> Result<Next> + Send + 'static,
    ) -> Result<Task> {
        let state = self.clone();
        self.runtime.spawn(name, move || match catch_unwind(AssertUnwindSafe(&mut job)) {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => {
                state.note(&error);
                Next::Wait(RETRY)
            }
            Err(_) => {
                state.note(&Error::new(ErrorKind::Poisoned, "a background job panicked"));
                Next::Stop
            }
        })
    }
}
