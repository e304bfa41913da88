//! Background work of a database: checkpoints, the log's timer, and the engines' own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Lsn, Next, Result, Task, events, probe};

use spinney_engine::IDLE;

use crate::jobs::NOTHING_OPEN;
use crate::keyspace_state::KeyspaceState;
use crate::memory::HeapPause;
use crate::state::State;

/// Interval of the log's timer.
const LOG_TICK: Duration = Duration::from_millis(20);
/// Poll interval for a wanted checkpoint when nothing wakes the job.
const CHECKPOINT_LOOK: Duration = Duration::from_millis(100);
/// Time between two checkpoints while anything changes, even if the log is not full. It bounds what
/// a crash takes from keyspaces without a log, and what a recovery replays.
const CHECKPOINT_REST: Duration = Duration::from_secs(30);
/// Time over which such a checkpoint is spread, so that reads and writes hardly notice it. Both
/// times together are less than a minute.
const CHECKPOINT_TIME: Duration = Duration::from_secs(25);
/// Interval at which a spread checkpoint checks whether another thread waits for it.
const CHECKPOINT_NAP: Duration = Duration::from_millis(10);
/// Pause of a background job after an error, before it tries again.
const RETRY: Duration = Duration::from_millis(50);

/// A database without writes for [`QUIET`] takes a checkpoint, if its log has at least
/// [`QUIET_LOG_BYTES`] bytes.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_LOG_BYTES: u64 = 1 << 20;

/// After this time without writes, the log gives back disk space that it does not need.
const LOG_QUIET: Duration = Duration::from_secs(3);

/// Detects when nothing has been written for a while.
#[derive(Default)]
struct Quiet {
    last: Lsn,
    since: Duration,
    said: bool,
}

impl Quiet {
    /// Returns, once, whether the log's end has not moved for `after`, and no write without a log
    /// `came`.
    fn begins(&mut self, last: Lsn, came: bool, now: Duration, after: Duration) -> bool {
        if self.last != last || came {
            *self = Quiet { last, since: now, said: false };
        }
        let begins = !self.said && now.saturating_sub(self.since) >= after;
        self.said |= begins;
        begins
    }
}

/// Cells of versions that a turn of a keyspace's job looks at.
const COLLECTED_AT_ONCE: usize = 4096;

impl State {
    /// Publishes a checkpoint of every keyspace and trims the log (P14).
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one_at_a_time = self.checkpoints.hold();
        self.checkpoint_held()
    }

    /// Publishes a checkpoint spread over `time`, unless another thread waits for it.
    pub(crate) fn checkpoint_slowly(&self, time: Duration) -> Result<()> {
        let _one_at_a_time = self.checkpoints.hold();
        let start = self.runtime.now();
        self.checkpoint_resting(&mut |done| {
            let until = start + time.mul_f64(done.clamp(0.0, 1.0));
            while !self.is_hurried() {
                let left = until.saturating_sub(self.runtime.now());
                if left.is_zero() {
                    return true;
                }
                self.runtime.sleep(left.min(CHECKPOINT_NAP));
            }
            false
        })
    }

    /// Returns whether a checkpoint must not take its time. Where background work is stepped, no
    /// other thread runs meanwhile.
    fn is_hurried(&self) -> bool {
        self.checkpoints.is_hurried()
            || self.life.is_closed()
            || self.life.poison.is_set()
            || self.runtime.is_stepped()
    }

    /// Publishes a checkpoint. The caller holds `checkpointing`.
    pub(crate) fn checkpoint_held(&self) -> Result<()> {
        self.checkpoint_resting(&mut |_| false)
    }

    /// Does the same, and rests in between as [`Engine::checkpoint_slowly`] says.
    fn checkpoint_resting(&self, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        let begin = self.runtime.now();
        let result = self.publish_all(rest);
        let end = self.runtime.now();
        self.checkpoints.set_last(end);
        if result.is_ok() {
            // Whoever asked for it: a writer that waits for space need not hear of an older failure.
            self.checkpoints.set_error(None);
        }
        events::checkpoint(end.saturating_sub(begin), result.as_ref().err());
        result
    }

    fn publish_all(&self, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        self.life.poison.check()?;
        // Everything up to the bound has been applied (P1), so it is in the engines' caches or
        // beyond.
        let bound = self.log.applied_watermark();
        let keyspaces = self.keyspaces.open();
        #[expect(clippy::cast_precision_loss, reason = "there are few keyspaces")]
        let share = |place: usize, done: f64| (place as f64 + done) / keyspaces.len() as f64;
        let mut full = Ok(());
        for (place, keyspace) in keyspaces.iter().enumerate() {
            let rest = &mut |done| rest(share(place, done));
            let result = keyspace.engine.checkpoint_slowly(bound, rest);
            match result.inspect_err(|error| self.note(error)) {
                // Other keyspaces may need less, and give space back.
                Err(error) if error.is_full() => full = full.and(Err(error)),
                published => published?,
            }
        }
        self.follow_engines();
        self.trim().and(full)
    }

    /// Trims the log up to the least redo LSN of all open keyspaces. The caller holds
    /// `checkpointing`.
    pub(crate) fn trim(&self) -> Result<()> {
        self.backups.copy_log(&self.log);
        let _inside = probe::enter("trim");
        // A keyspace that is opened after this read of the log's end has all its records behind it,
        // even if the others have moved on when they are asked.
        let end = self.log.applied_watermark();
        let redo = self.keyspaces.least_redo(end);
        self.log.trim(redo).inspect_err(|error| self.note(error))?;
        self.room.note_trim(self.log.bytes_at(self.log.fullness()));
        Ok(())
    }

    /// Returns whether a requested checkpoint is still needed. Engines that publish by themselves
    /// may have moved on since the log was last trimmed, and then trimming may be enough.
    fn needs_checkpoint(&self) -> Result<bool> {
        let _one_at_a_time = self.checkpoints.hold();
        self.life.poison.check()?;
        let keyspaces = self.keyspaces.open();
        if keyspaces.iter().any(|keyspace| keyspace.engine.values().wants_checkpoint()) {
            return Ok(true);
        }
        let before = self.log.stats().bytes_used;
        self.trim()?;
        let trimmed = self.log.stats().bytes_used < before;
        Ok(!trimmed || self.is_log_full(keyspaces.iter().map(|keyspace| &**keyspace)))
    }

    /// Starts the database's own jobs.
    pub(crate) fn start_jobs(self: &Arc<Self>) -> Result<()> {
        let state = self.clone();
        let mut quiet = Quiet::default();
        self.jobs.log.start(|| {
            self.spawn_alone("spinney-log", move || {
                state.log.tick()?;
                let now = state.runtime.now();
                if quiet.begins(state.log.last_lsn(), false, now, LOG_QUIET) {
                    state.log.give_back(0)?;
                    state.keep_room_in_quiet()?;
                }
                Ok(Next::Wait(state.until_needed(LOG_TICK)))
            })
        })?;
        let state = self.clone();
        let mut quiet = Quiet::default();
        let checkpoint = move || state.checkpoint_if_wanted(&mut quiet);
        self.jobs.checkpoint.start(|| self.spawn(checkpoint))?;
        let rate = self.options.scrub_bytes_per_second;
        if rate > 0 {
            let state = self.clone();
            self.jobs.scrub.start(|| self.spawn(move || state.scrub_piece(rate)))?;
        }
        let state = self.clone();
        self.jobs.park.start(|| self.spawn(move || state.park_unused()))?;
        let (state, mut soon, mut pause) = (self.clone(), 0, HeapPause::default());
        let govern = move || {
            let parts = (&state.keyspaces, &state.runtime);
            Ok(state.memory.govern(parts, &mut soon, &mut pause))
        };
        self.jobs.memory.start(|| self.spawn(govern))?;
        let open = self.keyspaces.open();
        open.iter().try_for_each(|keyspace| self.start_keyspace_job(keyspace))
    }

    /// Runs the job: takes a checkpoint if one is wanted or due.
    fn checkpoint_if_wanted(&self, quiet: &mut Quiet) -> Result<Next> {
        let last = self.checkpoints.last();
        let waited = self.runtime.now().saturating_sub(last) >= CHECKPOINT_REST;
        let came = self.writers.take_unlogged();
        let quiet = quiet.begins(self.log.last_lsn(), came, self.runtime.now(), QUIET);
        let wanted = self.checkpoints.is_wanted();
        let wanted = wanted && self.needs_checkpoint()?
            || quiet && self.log.stats().bytes_used > QUIET_LOG_BYTES;
        if !(wanted || waited && self.has_news()) {
            self.checkpoints.unwant();
            return Ok(Next::Wait(self.until_needed(CHECKPOINT_LOOK)));
        }
        let result = match wanted {
            true => self.checkpoint(),
            false => self.checkpoint_slowly(CHECKPOINT_TIME),
        };
        if let Err(error) = &result {
            self.checkpoints.set_error(Some(error.clone()));
        }
        self.checkpoints.unwant();
        result.map(|()| Next::Wait(CHECKPOINT_LOOK))
    }

    /// Wait of a job that polls every `look` while anything is open. Opening a keyspace wakes it.
    fn until_needed(&self, look: Duration) -> Duration {
        let is_open = !self.keyspaces.none_open();
        let is_durable = self.log.durable_lsn() >= self.log.last_lsn();
        if is_open || !is_durable { look } else { NOTHING_OPEN }
    }

    /// Returns whether a checkpoint would write back anything.
    fn has_news(&self) -> bool {
        let last = self.log.last_lsn();
        self.keyspaces
            .open()
            .iter()
            .any(|keyspace| keyspace.redo() < last || keyspace.engine.is_dirty())
    }

    /// Starts a keyspace's job, if the database has jobs by now.
    pub(crate) fn start_keyspace_job(&self, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        if self.life.reading.is_some() {
            return Ok(());
        }
        let Some(me) = self.me.lock().upgrade() else { return Ok(()) };
        // The reference is weak, so that parking can drop the keyspace and see whether it is in
        // use.
        let (state, engine, weak) = (me.clone(), keyspace.engine.clone(), Arc::downgrade(keyspace));
        let job = me.guarded(move || {
            let mut next = engine.background()?;
            if let Some(versioned) = engine.versioned()
                && versioned.collect(&state.versions.certifier.running(), COLLECTED_AT_ONCE) > 0
            {
                next = Next::Again;
            }
            let room = engine.unwritten_bytes() + engine.step_bytes();
            state.room.note_need(room);
            if next != Next::Wait(IDLE)
                && let Some(keyspace) = weak.upgrade()
            {
                keyspace.set_busy(state.runtime.now());
            }
            Ok(next)
        });
        keyspace.job.start(|| me.runtime.spawn_in_crowd(job))
    }

    /// Stops all jobs and waits for them to end.
    pub(crate) fn stop_jobs(&self) {
        self.jobs.stop();
        self.keyspaces.open().iter().for_each(|keyspace| keyspace.job.stop());
    }

    /// Starts a job whose errors are noted and whose panics poison (P21).
    fn spawn(self: &Arc<Self>, job: impl FnMut() -> Result<Next> + Send + 'static) -> Result<Task> {
        self.runtime.spawn(self.guarded(job))
    }

    /// Starts a job with a thread of its own: other jobs must not delay it.
    fn spawn_alone(
        self: &Arc<Self>,
        name: &str,
        job: impl FnMut() -> Result<Next> + Send + 'static,
    ) -> Result<Task> {
        self.runtime.spawn_alone(name, self.guarded(job))
    }

    fn guarded(
        self: &Arc<Self>,
        mut job: impl FnMut() -> Result<Next> + Send + 'static,
    ) -> impl FnMut() -> Next + Send + 'static {
        let state = self.clone();
        move || match catch_unwind(AssertUnwindSafe(&mut job)) {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => {
                state.note(&error);
                Next::Wait(RETRY)
            }
            Err(_) => {
                state.note(&Error::new(ErrorKind::Poisoned, "a background job panicked"));
                Next::Stop
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::path::Path;

    use spinney_base::Runtime;
    use spinney_base::shim::thread;
    use spinney_io::sim::SimDisk;

    use super::*;
    use crate::{Db, KeyspaceOptions, Options};

    /// Writes without a log do not move the log's end, and the database is not quiet all the same.
    /// A checkpoint at that moment would write back every page for the few records that came since
    /// the last.
    #[test]
    fn writes_that_are_not_logged_are_no_quiet() {
        let runtime = Runtime::stepped(1);
        let disk = Arc::new(SimDisk::new(1));
        let options = Options::default().memory(64 << 20).disk(disk).runtime(runtime.clone());
        let db = Db::open(Path::new("/db"), options).unwrap();
        let logged = db.keyspace("logged", KeyspaceOptions::default()).unwrap();
        let unlogged = db.keyspace("unlogged", KeyspaceOptions::default().logged(false)).unwrap();
        let checkpoints = || db.stats().keyspaces[0].numbers.checkpoints;
        for number in 0..3000u32 {
            logged.insert(number.to_be_bytes(), [1; 1000]).unwrap();
        }
        let before = checkpoints();
        let end = runtime.now() + 5 * QUIET;
        while runtime.now() < end {
            unlogged.insert(b"key", b"value").unwrap();
            runtime.step();
        }
        assert_eq!(checkpoints(), before);
        let end = runtime.now() + 2 * QUIET;
        while runtime.now() < end {
            runtime.step();
        }
        assert_eq!(checkpoints(), before + 1);
    }

    /// A checkpoint that is spread over an hour ends as soon as another is wanted, and each has its
    /// redo LSN.
    #[test]
    fn a_checkpoint_that_takes_its_time_ends_when_somebody_waits() {
        let options = Options::default().memory(4 << 20).disk(Arc::new(SimDisk::new(1)));
        let db = Db::open(Path::new("/db"), options.runtime(Runtime::threads())).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(false)).unwrap();
        let key = |number: u32| number.wrapping_mul(0x9e37_79b1).to_be_bytes();
        let put_all = |value: &[u8; 100]| {
            (0..10_000).for_each(|number| keyspace.insert(key(number), value).unwrap());
        };
        put_all(&[1; 100]);
        db.checkpoint().unwrap();
        put_all(&[2; 100]);
        let state = db.handle.state.clone();
        let slow = thread::spawn("slow", move || {
            state.checkpoint_slowly(Duration::from_secs(3600)).unwrap();
        });
        let state = &db.handle.state;
        while state.checkpoints.try_hold().is_some() {
            thread::yield_now();
        }
        db.checkpoint().unwrap();
        assert_eq!(db.stats().keyspaces[0].numbers.records_dirty, 0);
        slow.unwrap().join().unwrap();
        assert!(!state.checkpoints.is_hurried());
    }
}
