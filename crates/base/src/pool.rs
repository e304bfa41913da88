//! A few threads that run the background jobs of many keyspaces.
//!
//! ```text
//!   jobs:   1 waits until 12.3 s   2 runs   3 waits until 12.1 s   4 runs
//!   idle threads wait on one condition, until the earliest job is due or somebody is woken
//! ```
//!
//! A job takes a thread while it works and none while it waits. **No job waits for another**: when
//! the last idle thread takes a job, another thread is started, so a job that blocks, however long,
//! keeps no other from running. Threads beyond [`IDLE_MAX`] end after a while without work.
//!
//! The exception is the *crowd*: jobs of which there may be thousands, one for each keyspace. At
//! most [`crowd_max`] of them run at once, the one that has been due longest first. Each thread has
//! buffers, a ring and an allocator's arena of its own, so the process's memory and descriptors
//! would grow with the number of keyspaces that are written at once. A job of the crowd therefore
//! waits for no other of it.
//!
//! **Invariants**
//! 1. A job is either running (its closure is with a thread) or has a time at which it is due.
//! 2. While there are jobs, some thread is idle or about to be started, unless the operating system
//!    refuses one: then jobs wait for those that run.
//! 3. No more than [`crowd_max`] jobs of the crowd run.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::runtime::{Job, Next};
use crate::shim::{Condvar, Mutex, MutexGuard, thread};
use crate::{Error, Result};

/// Number of threads that stay without work: one that waits for the next job, and one that is there
/// when the first works.
const IDLE_MAX: usize = 2;

/// Time for which a thread beyond them waits for work.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// Most jobs of the crowd that run at once: two for each processor, for half of them wait for the
/// device at any time; at least four, so that a few that take long do not hold up all others.
fn crowd_max() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
    *MOST.get_or_init(|| (2 * processors()).clamp(4, 16))
}

/// Whether there may be many jobs like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Runs whenever it is due.
    Single,
    /// Runs as one of the crowd.
    Crowd,
}

/// Threads and the jobs that they run.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    /// Signals that a job is due sooner, or that all jobs have gone.
    changed: Condvar,
    /// Signals that a job which is being stopped has ended its piece of work.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<u64, Slot>,
    /// Due times of jobs that do not run now: single ones, and those of the crowd.
    due: [BTreeSet<(Duration, u64)>; 2],
    /// Number of crowd jobs that run now.
    crowd: usize,
    next_id: u64,
    threads: usize,
    idle: usize,
}

struct Slot {
    kind: Kind,
    /// `None` while it runs.
    job: Option<Job>,
    due: Duration,
    woken: bool,
    stopping: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs, {} threads", self.jobs.len(), self.threads)
    }
}

/// Clock of a runtime.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

impl State {
    /// Returns the job that is due next and may run: when, which, and of which kind.
    fn first(&self) -> Option<(Duration, u64, Kind)> {
        let [single, crowd] = &self.due;
        let crowd = crowd.first().filter(|_| self.crowd < crowd_max());
        let single = single.first().map(|(due, id)| (*due, *id, Kind::Single));
        single.into_iter().chain(crowd.map(|(due, id)| (*due, *id, Kind::Crowd))).min()
    }

    fn set_due(&mut self, kind: Kind, due: Duration, id: u64) {
        self.due[kind as usize].insert((due, id));
    }

    fn take_due(&mut self, kind: Kind, due: Duration, id: u64) {
        self.due[kind as usize].remove(&(due, id));
    }
}

impl Pool {
    /// Adds a job, which is due at once.
    ///
    /// # Errors
    /// `Io` when there is no thread to run it, and none can be started.
    pub(crate) fn add(self: &Arc<Self>, kind: Kind, job: Job, clock: &Clock) -> Result<u64> {
        let mut state = self.state.lock();
        if state.idle == 0
            && let Err(error) = self.start(&mut state, clock)
            && state.threads == 0
        {
            return Err(error);
        }
        let id = state.next_id;
        state.next_id += 1;
        let due = clock();
        state.jobs.insert(id, Slot { kind, job: Some(job), due, woken: false, stopping: false });
        state.set_due(kind, due, id);
        drop(state);
        self.changed.notify_one();
        Ok(id)
    }

    fn start(self: &Arc<Self>, state: &mut State, clock: &Clock) -> Result<()> {
        let (pool, clock) = (self.clone(), clock.clone());
        thread::spawn("spinney-background", move || pool.work(&clock))
            .map_err(|error| Error::io("start a thread for background work", error))?;
        state.threads += 1;
        state.idle += 1;
        Ok(())
    }

    /// Runs jobs on a thread of the pool.
    fn work(self: &Arc<Self>, clock: &Clock) {
        let mut state = self.state.lock();
        let mut idle_since = clock();
        loop {
            let now = clock();
            let first = state.first();
            if let Some((due, id, kind)) = first.filter(|(due, ..)| *due <= now) {
                state.take_due(kind, due, id);
                let Some(job) = state.jobs.get_mut(&id).and_then(|slot| slot.job.take()) else {
                    continue;
                };
                state.crowd += usize::from(kind == Kind::Crowd);
                state.idle -= 1;
                if state.idle == 0 {
                    // Starts a thread for jobs that become due meanwhile, so that none waits.
                    let _ = self.start(&mut state, clock);
                }
                drop(state);
                state = self.run(id, job, clock);
                if kind == Kind::Crowd {
                    state.crowd -= 1;
                    // A job of the crowd that had to wait may run now.
                    self.changed.notify_one();
                }
                state.idle += 1;
                idle_since = clock();
                continue;
            }
            let spare = state.idle > IDLE_MAX && now.saturating_sub(idle_since) >= IDLE_TIME;
            if spare || state.jobs.is_empty() {
                break;
            }
            let until_due = first.map_or(IDLE_TIME, |(due, ..)| due - now);
            let wait = if state.idle > IDLE_MAX { until_due.min(IDLE_TIME) } else { until_due };
            self.changed.wait_for(&mut state, wait);
        }
        state.idle -= 1;
        state.threads -= 1;
    }

    /// Runs one piece of a job.
    fn run(&self, id: u64, mut job: Job, clock: &Clock) -> MutexGuard<'_, State> {
        // A job that panics has reported it through its own hook; it is over.
        let next = catch_unwind(AssertUnwindSafe(&mut job)).unwrap_or(Next::Stop);
        let is_over = next == Next::Stop;
        let job = if is_over {
            // Dropping what the job holds may take a while.
            drop(job);
            None
        } else {
            Some(job)
        };
        let now = clock();
        let mut state = self.state.lock();
        let Some(slot) = state.jobs.get_mut(&id) else { return state };
        if is_over || slot.stopping {
            // Dropped below, after the lock is released.
            slot.job = job;
            let gone = state.jobs.remove(&id);
            drop(state);
            drop(gone);
            self.ended.notify_all();
            self.changed.notify_all();
            return self.state.lock();
        }
        let due = match next {
            Next::Wait(time) if !slot.woken => now + time,
            Next::Wait(_) | Next::Again | Next::Stop => now,
        };
        slot.woken = false;
        slot.due = due;
        slot.job = job;
        let kind = slot.kind;
        state.set_due(kind, due, id);
        state
    }

    /// Makes a job due now.
    pub(crate) fn wake(&self, id: u64, now: Duration) {
        let mut state = self.state.lock();
        let Some(slot) = state.jobs.get_mut(&id) else { return };
        if slot.job.is_none() {
            slot.woken = true;
            return;
        }
        let before = std::mem::replace(&mut slot.due, now);
        if before <= now {
            slot.due = before;
            return;
        }
        let kind = slot.kind;
        state.take_due(kind, before, id);
        state.set_due(kind, now, id);
        drop(state);
        self.changed.notify_one();
    }

    /// Ends a job, after its current piece of work.
    pub(crate) fn stop(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(slot) = state.jobs.get_mut(&id) else { return };
        if slot.job.is_some() {
            let (kind, due) = (slot.kind, slot.due);
            state.take_due(kind, due, id);
            let gone = state.jobs.remove(&id);
            let is_last = state.jobs.is_empty();
            drop(state);
            drop(gone);
            if is_last {
                self.changed.notify_all();
            }
            return;
        }
        slot.stopping = true;
        while state.jobs.contains_key(&id) {
            self.ended.wait(&mut state);
        }
    }

    /// Returns the number of threads now.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }
}
