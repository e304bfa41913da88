//! The runtime seam: background tasks and time, real or stepped.
//!
//! Background work is written as *jobs*: closures that do one bounded piece of work and say what
//! comes [`Next`]. The real runtime runs them on a pool of threads (`pool`), and a job that must
//! never be late on a thread of its own. The stepped runtime runs jobs on the
//! caller's thread, one piece at a time, in an order drawn from a seed, with virtual time: the same
//! seed and the same calls replay exactly.
//!
//! **Invariant**: foreground code never waits for a background job without calling
//! [`Runtime::help`] first. In the stepped runtime that call runs the job, and a wait without it
//! would never end.

use std::sync::Arc;
use std::time::Duration;

use crate::pool::{Clock, Kind, Pool};
use crate::shim::{Condvar, Mutex, thread};
use crate::{Error, Result};

/// What a job needs after one piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More work is ready: call again.
    Again,
    /// Nothing to do: call again after this time, or when woken.
    Wait(Duration),
    /// The job is finished.
    Stop,
}

pub(crate) type Job = Box<dyn FnMut() -> Next + Send>;

/// Runs background jobs and tells time. Cheap to clone; thread-safe.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

enum Inner {
    Threads { clock: Clock, pool: Arc<Pool> },
    Stepped(Mutex<Stepped>),
}

struct Stepped {
    random: SplitMix,
    now: Duration,
    jobs: Vec<SteppedJob>,
}

struct SteppedJob {
    id: u64,
    /// `None` while the job runs, so that a nested step passes over it.
    job: Option<Job>,
    due: Duration,
}

/// A handle to a spawned job. Dropping it does not stop the job; [`Task::stop`] does.
pub struct Task {
    kind: TaskKind,
}

enum TaskKind {
    Thread { signal: Arc<Signal>, thread: Mutex<Option<thread::JoinHandle<()>>> },
    Pooled { pool: Arc<Pool>, clock: Clock, id: u64 },
    Stepped { runtime: Runtime, id: u64 },
}

struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    woken: bool,
    stopping: bool,
}

impl Runtime {
    /// Makes a runtime of real threads and real time.
    #[must_use]
    pub fn threads() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the clock that the ban points to")]
        let started = std::time::Instant::now();
        let clock: Clock = Arc::new(move || started.elapsed());
        Runtime { inner: Arc::new(Inner::Threads { clock, pool: Arc::default() }) }
    }

    /// Makes a runtime of one thread, virtual time, and an order of background work drawn from
    /// `seed`.
    #[must_use]
    pub fn stepped(seed: u64) -> Self {
        let stepped = Stepped { random: SplitMix(seed), now: Duration::ZERO, jobs: Vec::new() };
        Runtime { inner: Arc::new(Inner::Stepped(Mutex::new(stepped))) }
    }

    /// Returns whether background work runs only when stepped.
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        matches!(*self.inner, Inner::Stepped(_))
    }

    /// Returns the time since the runtime was made. It is monotonic, and virtual in the stepped
    /// runtime.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &*self.inner {
            Inner::Threads { clock, .. } => clock(),
            Inner::Stepped(stepped) => stepped.lock().now,
        }
    }

    /// Waits for `time`: sleeps, or in the stepped runtime lets virtual time pass.
    pub fn sleep(&self, time: Duration) {
        match &*self.inner {
            Inner::Threads { .. } => std::thread::sleep(time),
            Inner::Stepped(stepped) => stepped.lock().now += time,
        }
    }

    /// Returns an unpredictable number; in the stepped runtime one drawn from the seed.
    #[must_use]
    pub fn random(&self) -> u64 {
        match &*self.inner {
            Inner::Threads { .. } => {
                use std::hash::{BuildHasher, Hasher};
                // Every `RandomState` is keyed by the operating system's randomness.
                std::collections::hash_map::RandomState::new().build_hasher().finish()
            }
            Inner::Stepped(stepped) => stepped.lock().random.next_u64(),
        }
    }

    /// Starts a background job. It is called until it returns [`Next::Stop`] or the task is
    /// stopped. It takes a thread only while it works.
    ///
    /// # Errors
    /// `Io` when the operating system has no room for a thread.
    pub fn spawn(&self, job: impl FnMut() -> Next + Send + 'static) -> Result<Task> {
        self.spawn_of(Kind::Single, job)
    }

    /// Starts a job of which there may be many: only some of them run at once, so none may wait for
    /// another.
    ///
    /// # Errors
    /// As [`Runtime::spawn`].
    pub fn spawn_in_crowd(&self, job: impl FnMut() -> Next + Send + 'static) -> Result<Task> {
        self.spawn_of(Kind::Crowd, job)
    }

    fn spawn_of(&self, kind: Kind, job: impl FnMut() -> Next + Send + 'static) -> Result<Task> {
        match &*self.inner {
            Inner::Threads { clock, pool } => {
                let id = pool.add(kind, Box::new(job), clock)?;
                let (pool, clock) = (pool.clone(), clock.clone());
                Ok(Task { kind: TaskKind::Pooled { pool, clock, id } })
            }
            Inner::Stepped(_) => self.spawn_alone("", job),
        }
    }

    /// Starts a background job that has a thread of its own, named `name`.
    ///
    /// # Errors
    /// `Io` when the operating system has no room for a thread.
    pub fn spawn_alone(
        &self,
        name: &str,
        job: impl FnMut() -> Next + Send + 'static,
    ) -> Result<Task> {
        match &*self.inner {
            Inner::Threads { .. } => {
                let signal = Arc::new(Signal {
                    state: Mutex::new(SignalState::default()),
                    changed: Condvar::new(),
                });
                let mine = signal.clone();
                let thread = thread::spawn(name, move || mine.run(job))
                    .map_err(|error| Error::io(format!("start thread {name}"), error))?;
                Ok(Task { kind: TaskKind::Thread { signal, thread: Mutex::new(Some(thread)) } })
            }
            Inner::Stepped(stepped) => {
                let mut stepped = stepped.lock();
                let id = stepped.jobs.last().map_or(0, |job| job.id + 1);
                let due = stepped.now;
                stepped.jobs.push(SteppedJob { id, job: Some(Box::new(job)), due });
                Ok(Task { kind: TaskKind::Stepped { runtime: self.clone(), id } })
            }
        }
    }

    /// Runs one piece of one due background job, chosen by the seed. When none is due, lets time
    /// pass until one is. Returns whether a job ran; always `false` with real threads.
    pub fn step(&self) -> bool {
        let Inner::Stepped(stepped) = &*self.inner else { return false };
        let (id, mut job) = {
            let mut stepped = stepped.lock();
            let Some(soonest) = stepped.idle_jobs().map(|job| job.due).min() else { return false };
            stepped.now = stepped.now.max(soonest);
            let now = stepped.now;
            let due: Vec<u64> =
                stepped.idle_jobs().filter(|job| job.due <= now).map(|job| job.id).collect();
            let id = due[stepped.random.below(due.len())];
            let slot = stepped.jobs.iter_mut().find(|slot| slot.id == id);
            let Some(job) = slot.and_then(|slot| slot.job.take()) else { return false };
            (id, job)
        };
        let next = job();
        let mut stepped = stepped.lock();
        let now = stepped.now;
        if next == Next::Stop {
            stepped.jobs.retain(|slot| slot.id != id);
        } else if let Some(slot) = stepped.jobs.iter_mut().find(|slot| slot.id == id) {
            slot.job = Some(job);
            slot.due = match next {
                Next::Wait(time) => now + time,
                Next::Again | Next::Stop => now,
            };
        }
        true
    }

    /// Helps background work before a wait for it. In the stepped runtime it runs a piece of work
    /// and returns `true` (check again before waiting); with real threads it returns `false`
    /// (wait).
    pub fn help(&self) -> bool {
        self.step()
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_stepped() { "Runtime::stepped" } else { "Runtime::threads" })
    }
}

impl Stepped {
    fn idle_jobs(&self) -> impl Iterator<Item = &SteppedJob> {
        self.jobs.iter().filter(|slot| slot.job.is_some())
    }
}

impl Signal {
    fn run(&self, mut job: impl FnMut() -> Next) {
        loop {
            {
                let mut state = self.state.lock();
                if state.stopping {
                    return;
                }
                state.woken = false;
            }
            match job() {
                Next::Again => {}
                Next::Stop => return,
                Next::Wait(time) => {
                    let mut state = self.state.lock();
                    if !state.woken && !state.stopping {
                        self.changed.wait_for(&mut state, time);
                    }
                }
            }
        }
    }
}

impl Task {
    /// Makes a waiting job run now.
    pub fn wake(&self) {
        match &self.kind {
            TaskKind::Thread { signal, .. } => {
                signal.state.lock().woken = true;
                signal.changed.notify_all();
            }
            TaskKind::Pooled { pool, clock, id } => pool.wake(*id, clock()),
            TaskKind::Stepped { runtime, id } => {
                if let Inner::Stepped(stepped) = &*runtime.inner {
                    let mut stepped = stepped.lock();
                    let now = stepped.now;
                    if let Some(slot) = stepped.jobs.iter_mut().find(|slot| slot.id == *id) {
                        slot.due = slot.due.min(now);
                    }
                }
            }
        }
    }

    /// Stops the job after its current piece of work and waits for it to end. Calling it again does
    /// nothing.
    pub fn stop(&self) {
        match &self.kind {
            TaskKind::Thread { signal, thread } => {
                signal.state.lock().stopping = true;
                signal.changed.notify_all();
                let thread = thread.lock().take();
                if let Some(thread) = thread {
                    // A job that panicked has already reported it through its own hook.
                    let _ = thread.join();
                }
            }
            TaskKind::Pooled { pool, id, .. } => pool.stop(*id),
            TaskKind::Stepped { runtime, id } => {
                if let Inner::Stepped(stepped) = &*runtime.inner {
                    stepped.lock().jobs.retain(|slot| slot.id != *id);
                }
            }
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Task")
    }
}

/// SplitMix64: a small generator for seeded choices that need no statistical quality.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below a usize")]
        let below = (self.next_u64() % bound as u64) as usize;
        below
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn threads_run_wake_and_stop() {
        let runtime = Runtime::threads();
        let count = |counted: Arc<AtomicU32>| {
            move || {
                counted.fetch_add(1, SeqCst);
                Next::Wait(Duration::from_secs(3600))
            }
        };
        let (pooled, alone) = (Arc::default(), Arc::default());
        runs_wakes_and_stops(runtime.spawn(count(Arc::clone(&pooled))).unwrap(), &pooled);
        let task = runtime.spawn_alone("test", count(Arc::clone(&alone))).unwrap();
        runs_wakes_and_stops(task, &alone);
    }

    fn runs_wakes_and_stops(task: Task, count: &AtomicU32) {
        while count.load(SeqCst) < 1 {
            thread::yield_now();
        }
        task.wake();
        while count.load(SeqCst) < 2 {
            task.wake();
        }
        task.stop();
        let after = count.load(SeqCst);
        task.wake();
        task.stop();
        assert_eq!(count.load(SeqCst), after);
    }

    /// However many jobs of the crowd are due, only some run at once, all of them do, and a single
    /// one is kept from running by none.
    #[test]
    fn d4_a_crowd_takes_few_threads() {
        const JOBS: u32 = 300;
        let runtime = Runtime::threads();
        let (most, now, done) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let counts = Arc::new((most, now, done));
        let open = Arc::new(Mutex::new(()));
        let closed = open.lock();
        let job = || {
            let (counts, open) = (Arc::clone(&counts), Arc::clone(&open));
            move || {
                let (most, now, done) = &*counts;
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                drop(open.lock());
                now.fetch_sub(1, SeqCst);
                done.fetch_add(1, SeqCst);
                Next::Stop
            }
        };
        let all: Vec<Task> = (0..JOBS).map(|_| runtime.spawn_in_crowd(job()).unwrap()).collect();
        while counts.1.load(SeqCst) < 4 {
            thread::yield_now();
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let single = runtime.spawn(move || {
            sender.send(()).expect("somebody waits");
            Next::Stop
        });
        receiver.recv().expect("it runs beside a crowd that is blocked");
        drop((single, closed));
        while counts.2.load(SeqCst) < JOBS {
            thread::yield_now();
        }
        let most = counts.0.load(SeqCst);
        assert!((4..=16).contains(&most), "{most} ran at once");
        drop(all);
    }

    /// However many jobs block, one more runs; and a thousand that wait have hardly a thread.
    #[test]
    fn d4_no_job_waits_for_another() {
        let runtime = Runtime::threads();
        let (blocked, open) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(())));
        let closed = open.lock();
        let blocks = |blocked: &Arc<AtomicU32>| {
            let (blocked, open) = (blocked.clone(), open.clone());
            move || {
                blocked.fetch_add(1, SeqCst);
                drop(open.lock());
                Next::Stop
            }
        };
        let all: Vec<Task> = (0..20).map(|_| runtime.spawn(blocks(&blocked)).unwrap()).collect();
        while blocked.load(SeqCst) < 20 {
            thread::yield_now();
        }
        let count = Arc::new(AtomicU32::new(0));
        let ticks = count.clone();
        let ticking = runtime.spawn(move || {
            ticks.fetch_add(1, SeqCst);
            Next::Wait(Duration::from_micros(100))
        });
        let ticking = ticking.unwrap();
        while count.load(SeqCst) < 10 {
            thread::yield_now();
        }
        drop(closed);
        all.iter().for_each(Task::stop);
        let waiting: Vec<Task> = (0..1000)
            .map(|_| runtime.spawn(|| Next::Wait(Duration::from_secs(3600))).unwrap())
            .collect();
        let Inner::Threads { pool, .. } = &*runtime.inner else { unreachable!() };
        while pool.threads() > 3 {
            thread::yield_now();
        }
        let before = count.load(SeqCst);
        while count.load(SeqCst) < before + 10 {
            thread::yield_now();
        }
        ticking.stop();
        waiting.iter().for_each(Task::stop);
        while pool.threads() > 0 {
            thread::yield_now();
        }
    }

    /// A job that panics is over, and the others go on.
    #[test]
    fn a_job_that_panics_takes_no_other_along() {
        let runtime = Runtime::threads();
        let task = runtime.spawn(|| std::panic::resume_unwind(Box::new("a test"))).unwrap();
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let other = runtime.spawn(move || {
            counted.fetch_add(1, SeqCst);
            Next::Again
        });
        while count.load(SeqCst) < 10 {
            thread::yield_now();
        }
        task.stop();
        other.unwrap().stop();
    }

    #[test]
    fn a_seed_replays() {
        let order = |seed| {
            let runtime = Runtime::stepped(seed);
            let log = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = Vec::new();
            for name in 0..3 {
                let log = log.clone();
                tasks.push(runtime.spawn(move || {
                    log.lock().push(name);
                    Next::Wait(Duration::from_millis(name + 1))
                }));
            }
            for _ in 0..50 {
                assert!(runtime.step());
            }
            let order = log.lock().clone();
            (order, runtime.now())
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1).0, order(2).0);
    }
}
