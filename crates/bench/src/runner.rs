//! Runs the workloads of one plan on one engine, in this process, and reports [`Event`]s.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{
    AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use spinney_base::shim::{Mutex, thread};
use spinney_base::{Error, Result, Runtime};

use crate::dataset::{Dataset, OrderedKeys, groups};
use crate::distribution::Chooser;
use crate::driver::{Counters, Driver, OpenConfig, Store, Terms};
use crate::plan::{LoadOrder, Plan, Workload};
use crate::process;
use crate::queue::Windows;
use crate::recovery::{Kill, Recovery};
use crate::row::{Row, io_by_purpose};
use crate::shape::Shape;
use crate::table::grouped;
use crate::turns::{self, Look, Turn};
use crate::worker::{MEASURE, STOP, Shared, Tally, Tickets, WARM, Worker};

/// How often the runner looks at its threads.
const TICK: Duration = Duration::from_millis(20);
/// How often it tells how far they are.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// How many places the hot set of `shift` visits.
const SHIFTS: f64 = 10.0;

/// Report of a run in progress; the child process sends these as lines of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// How far the current workload is.
    Progress {
        /// Which workload.
        workload: String,
        /// From 0 to 1.
        fraction: f64,
        /// Operations a second since the last such event.
        ops_per_second: f64,
    },
    /// One point of the time series.
    Point {
        /// Which workload.
        workload: String,
        /// Seconds since its measurement began, at the end of the interval.
        second: f64,
        /// Operations in the interval.
        operations: u64,
    },
    /// A workload ended.
    Done {
        /// Its result.
        row: Box<Row>,
        /// Writes per flush of the log, where known.
        commits_per_flush: Option<f64>,
        /// What the engine looks like inside and did to itself, where it tells.
        shape: Option<Shape>,
    },
    /// What a killed process left was opened, and the last workload has run on it.
    Recovered {
        /// Seconds that opening took.
        open_seconds: f64,
        /// Seconds from then to 90 % of the rate before, if it was reached.
        seconds: Option<f64>,
        /// Operations that failed or read something wrong.
        errors: u64,
    },
    /// Something a reader of the table must know.
    Note(String),
    /// What an engine did inside; `--explain` shows it.
    Internals(String),
    /// The run cannot go on.
    Failed(String),
}

/// Receives events; an error means that the receiver is gone, and ends the run.
pub type Emit<'a> = dyn FnMut(Event) -> Result<()> + 'a;

/// What one workload leaves to the next.
#[derive(Default)]
struct State {
    records: u64,
    drifts: u64,
    queue_tail: u64,
    queue_head: u64,
    logical_bytes: i64,
    /// Workloads that were begun.
    begun: u64,
}

/// Runs `plan` on `driver`, and reports to `emit`.
///
/// # Errors
/// Whatever the engine says when it is opened, flushed or closed, and what `emit` says. Errors of
/// single operations are counted in the rows.
pub fn run(plan: &Plan, driver: &dyn Driver, emit: &mut Emit<'_>) -> Result<()> {
    plan.check()?;
    let dataset = Arc::new(Dataset::open(&plan.dataset, plan.records, plan.seed)?);
    let clock = Runtime::threads();
    let opens = clock.now();
    let store = driver.open(&OpenConfig {
        directory: plan.directory.clone(),
        memory: plan.memory,
        durability: plan.durability,
        torn_writes: plan.torn_writes,
        threads: plan.threads,
        keyspaces: plan.keyspaces,
        knobs: plan.knobs.clone(),
    })?;
    let opened = clock.now();
    let terms = store.terms();
    for note in &terms.notes {
        emit(Event::Note(format!("{}: {note}", plan.engine)))?;
    }
    if plan.load == LoadOrder::Bulk && !store.has_bulk_load() {
        emit(Event::Note(format!(
            "{}: no bulk load is known here, so one thread inserts in key order",
            plan.engine
        )))?;
    }
    let mut state = State::default();
    let recovery = match plan.kill {
        Some(Kill::Came { ops_per_second }) => Some(Recovery::new(ops_per_second, opened)),
        Some(Kill::Comes) | None => None,
    };
    let mut runner = Runner { plan, dataset, store: store.as_ref(), terms, clock, recovery, emit };
    if runner.recovery.is_some() {
        runner.recover((opened - opens).as_secs_f64())?;
        return store.close();
    }
    if plan.workloads.first() != Some(&Workload::Load) {
        let measured = runner.workload(Workload::Load, &mut state)?;
        runner.tell_errors(&measured)?;
        (runner.emit)(Event::Note(format!("{}: loaded first, not shown", plan.engine)))?;
    }
    for &workload in &plan.workloads {
        let measured = runner.workload(workload, &mut state)?;
        runner.tell_errors(&measured)?;
        let commits_per_flush = measured.commits_per_flush();
        let shape = measured.shape();
        if let Some(shape) = &shape {
            let note = format!("{} {workload}: {}", plan.engine, shape.note());
            (runner.emit)(Event::Internals(note))?;
        }
        if let Some(note) = measured.note() {
            (runner.emit)(Event::Internals(format!("{} {workload}: {note}", plan.engine)))?;
        }
        let row = Box::new(runner.row(workload, &measured, &state)?);
        (runner.emit)(Event::Done { row, commits_per_flush, shape })?;
    }
    store.close()
}

struct Runner<'a> {
    plan: &'a Plan,
    dataset: Arc<Dataset>,
    store: &'a dyn Store,
    terms: Terms,
    clock: Runtime,
    /// Of a run after a kill.
    recovery: Option<Recovery>,
    emit: &'a mut Emit<'a>,
}

/// What was seen of one workload.
struct Measured {
    workload: Workload,
    tally: Tally,
    seconds: f64,
    before: Snapshot,
    after: Snapshot,
    /// What the directory takes once all that was written is on stable storage.
    space_bytes: u64,
    /// Operations a second of the first million and of the last, if there are two.
    ends: [Option<f64>; 2],
    /// What first reads of the queue cost.
    queue: Windows,
}

struct Snapshot {
    engine: Counters,
    process: process::ProcessIo,
    shape: Option<Shape>,
}

impl Measured {
    /// What misses cost, and whether the end was as fast as the beginning.
    #[expect(clippy::cast_precision_loss, reason = "ratios are shown with two digits")]
    fn note(&self) -> Option<String> {
        let since = |of: fn(&Counters) -> Option<u64>| {
            Some(of(&self.after.engine)?.saturating_sub(of(&self.before.engine)?))
        };
        let mut sentences = Vec::new();
        if let Some((misses, pages)) =
            since(|one| one.cache_misses).zip(since(|one| one.pages_read))
            && misses > 0
        {
            let each = pages as f64 / misses as f64;
            sentences
                .push(format!("{each:.3} pages read for each of {misses} lookups that missed"));
        }
        if let [Some(first), Some(last)] = self.ends {
            let (share, first, last) = (last / first, grouped(first), grouped(last));
            sentences.push(format!(
                "first million at {first} ops/s, last million at {last} ({share:.2}x)"
            ));
        }
        sentences.extend(self.queue.note());
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }

    fn shape(&self) -> Option<Shape> {
        Some(self.after.shape.as_ref()?.since(self.before.shape.as_ref()?))
    }

    fn commits_per_flush(&self) -> Option<f64> {
        let commits = self.after.engine.commits?.saturating_sub(self.before.engine.commits?);
        let syncs = self.after.engine.log_flushes?.saturating_sub(self.before.engine.log_flushes?);
        #[expect(clippy::cast_precision_loss, reason = "a ratio with two digits is shown")]
        (syncs > 0).then(|| commits as f64 / syncs as f64)
    }
}

impl Runner<'_> {
    /// Runs the last workload on what a killed process left, until it is as fast as before.
    fn recover(&mut self, open_seconds: f64) -> Result<()> {
        let mut state = State { records: self.plan.records, ..State::default() };
        let Some(&workload) = self.plan.workloads.last() else { return Ok(()) };
        let measured = self.workload(workload, &mut state)?;
        self.tell_errors(&measured)?;
        let seconds = self.recovery.as_ref().and_then(Recovery::seconds);
        (self.emit)(Event::Recovered { open_seconds, seconds, errors: measured.tally.errors })
    }

    /// Seconds of a workload before it is measured.
    fn warmup(&self, workload: Workload) -> f64 {
        match workload {
            Workload::Load => 0.0,
            _ if self.recovery.is_some() => 0.0,
            _ => self.plan.warmup_seconds,
        }
    }

    /// Seconds of a measurement, unless something else ends it.
    fn seconds(&self, workload: Workload) -> Option<f64> {
        let ends_itself = workload == Workload::Load || self.plan.operations.is_some();
        let is_last = self.plan.workloads.last() == Some(&workload);
        match self.plan.kill {
            Some(Kill::Comes) if is_last => Some(f64::INFINITY),
            _ => (!ends_itself).then_some(self.plan.seconds),
        }
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot {
            engine: self.store.counters()?,
            process: process::io()?,
            shape: self.store.describe(),
        })
    }

    fn workload(&mut self, workload: Workload, state: &mut State) -> Result<Measured> {
        process::reset_peak_memory();
        state.begun += 1;
        let shared = Arc::new(self.shared(workload, state));
        let warmup = self.warmup(workload);
        let mut threads = Vec::new();
        for index in 0..self.clients(workload) {
            let worker = Worker::new(shared.clone(), index, self.store.session()?)?;
            let quota = self.quota(workload, index);
            let is_bulk = self.is_bulk(workload);
            let run = move || if is_bulk { worker.run_bulk_load() } else { worker.run(quota) };
            let thread = thread::spawn("client", run)
                .map_err(|error| Error::io("start a client thread", error))?;
            threads.push(thread);
        }
        if warmup > 0.0 {
            self.watch(&shared, self.clock.now(), Some(warmup), None)?;
        }
        let before = self.snapshot()?;
        let started = self.clock.now();
        shared.phase.store(MEASURE, SeqCst);
        let seconds = self.seconds(workload);
        let mut queue = Windows::new(self.plan.seconds);
        let ticks = self.watch(&shared, started, seconds, Some(&mut queue))?;
        shared.phase.store(STOP, SeqCst);
        let mut tally = Tally::new()?;
        for thread in threads {
            let one = thread.join().map_err(|_| Error::invalid("a client thread panicked"))?;
            merge(&mut tally, one)?;
        }
        if workload == Workload::Load {
            self.store.flush()?;
        }
        let seconds = (self.clock.now() - started).as_secs_f64();
        let after = self.snapshot()?;
        // What an engine still has in memory takes room too, and what it keeps until then it gives
        // back.
        self.store.settle()?;
        let space_bytes = process::space(&self.plan.directory)?;
        state.records = shared.inserts.next();
        state.drifts = shared.drifts.next();
        state.queue_tail = shared.queue_tail.next();
        state.queue_head = shared.queue_head.next();
        state.logical_bytes += tally.logical_bytes;
        let ends = ends(&ticks);
        Ok(Measured { workload, tally, seconds, before, after, space_bytes, ends, queue })
    }

    /// Whether records go through the engine's bulk load.
    fn is_bulk(&self, workload: Workload) -> bool {
        workload == Workload::Load && self.plan.load == LoadOrder::Bulk
    }

    /// Number of client threads.
    fn clients(&self, workload: Workload) -> usize {
        if self.is_bulk(workload) { 1 } else { self.plan.threads }
    }

    fn shared(&self, workload: Workload, state: &State) -> Shared {
        let (plan, clients) = (self.plan, self.clients(workload));
        // Loading again writes the same records again.
        let first = if workload == Workload::Load { 0 } else { state.records };
        let distribution = plan.distribution_of(workload);
        let is_sorted = workload == Workload::Load && plan.load == LoadOrder::Sorted;
        let choices = match workload {
            Workload::Groups => groups::whole(plan.records),
            _ => state.records,
        };
        Shared {
            workload,
            dataset: self.dataset.clone(),
            chooser: Chooser::new(distribution, plan.zipf, plan.theta, choices.max(1)),
            record_size: plan.record_size,
            scan_length: plan.scan_length_of(workload),
            multi_get: plan.multi_get,
            seed: plan.seed ^ state.begun << 8,
            busy: plan.busy,
            driven: plan.driven(),
            turn: AtomicU64::new(0),
            clock: self.clock.clone(),
            records: plan.records,
            phase: AtomicU8::new(if workload == Workload::Load { MEASURE } else { WARM }),
            salt: AtomicU64::new(0),
            ordered: is_sorted
                .then(|| Mutex::new(OrderedKeys::new(self.dataset.clone(), plan.records))),
            inserts: Tickets::new(first, clients),
            drifts: Tickets::new(state.drifts, clients),
            drift_total: plan.records,
            queue_tail: Tickets::new(state.queue_tail, clients),
            queue_head: Tickets::new(state.queue_head, clients),
            peeks: (0..clients).map(|_| AtomicU64::new(0)).collect(),
            done: (0..clients).map(|_| AtomicU64::new(0)).collect(),
            finished: AtomicUsize::new(0),
        }
    }

    /// How many operations thread `index` measures, when operations and not seconds end the
    /// measurement.
    fn quota(&self, workload: Workload, index: usize) -> Option<u64> {
        let operations = self.plan.operations.filter(|_| workload != Workload::Load)?;
        let (threads, index) = (self.plan.threads as u64, index as u64);
        Some(operations / threads + u64::from(index < operations % threads))
    }

    /// Watches the threads for `seconds`, or until all have ended. Returns when how many operations
    /// were done.
    fn watch(
        &mut self,
        shared: &Shared,
        started: Duration,
        seconds: Option<f64>,
        mut measured: Option<&mut Windows>,
    ) -> Result<Vec<(Duration, u64)>> {
        let is_reopened = if self.recovery.is_some() { "-reopened" } else { "" };
        let workload = format!("{}{is_reopened}", shared.workload);
        let sum = || shared.done.iter().map(|done| done.load(Relaxed)).sum::<u64>();
        let first = sum();
        let (mut told, mut told_sum) = (started, first);
        let (mut point, mut point_sum) = (started, first);
        let mut ticks = vec![(started, 0)];
        let mut turn = Turn::default();
        loop {
            let finished = shared.finished.load(SeqCst) >= shared.done.len();
            let now = self.clock.now();
            let total = sum();
            let elapsed = (now - started).as_secs_f64();
            ticks.push((now, total - first));
            let goal = if shared.workload == Workload::Load {
                Some(self.plan.records)
            } else {
                self.plan.operations
            };
            #[expect(clippy::cast_precision_loss, reason = "a fraction for a progress bar")]
            let fraction = match (seconds, goal) {
                (Some(seconds), _) => elapsed / seconds,
                (None, Some(goal)) => (total - first) as f64 / goal as f64,
                (None, None) => 0.0,
            };
            let is_fast = self.recovery.as_mut().is_some_and(|one| one.tick(now, total - first));
            let over = finished || is_fast || seconds.is_some_and(|seconds| elapsed >= seconds);
            if shared.workload == Workload::Shift {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a small whole number"
                )]
                let place = (fraction * SHIFTS) as u64;
                shared.salt.store(place << 40, Relaxed);
            }
            if now - told >= PROGRESS_EVERY || over {
                let ops_per_second = rate(total - told_sum, now - told);
                (self.emit)(Event::Progress {
                    workload: workload.clone(),
                    fraction: fraction.min(1.0),
                    ops_per_second,
                })?;
                (told, told_sum) = (now, total);
            }
            if shared.workload == Workload::Queue
                && let Some(windows) = measured.as_mut().filter(|windows| windows.is_due(now))
                && let Some(scanned) = self.store.counters()?.scanned
            {
                let peeks = shared.peeks.iter().map(|peeks| peeks.load(Relaxed)).sum();
                windows.mark(now, peeks, scanned);
            }
            if measured.is_some() && (now - point >= Duration::from_secs(1) || over) {
                let operations = total - point_sum;
                (self.emit)(Event::Point {
                    workload: workload.clone(),
                    second: elapsed,
                    operations,
                })?;
                (point, point_sum) = (now, total);
            }
            if self.plan.turns > 0.0 && measured.is_some() && seconds.is_some() {
                self.follow_turn(shared, &mut turn, now, started, total, over)?;
            }
            if over {
                return Ok(ticks);
            }
            self.clock.sleep(TICK);
        }
    }

    /// Looks at the keyspaces whose turn it is, and turns to others when it is over.
    fn follow_turn(
        &mut self,
        shared: &Shared,
        turn: &mut Turn,
        now: Duration,
        started: Duration,
        operations: u64,
        over: bool,
    ) -> Result<()> {
        let number = shared.turn.load(Relaxed);
        let busy: Vec<usize> = turns::busy(number, shared.busy, shared.driven).collect();
        if (turn.is_due(now) || over)
            && let Some(memory) = self.store.memory_of(&busy)
        {
            let counters = self.store.counters()?;
            let reads = counters.io.iter().flat_map(|io| io.by_purpose.iter());
            let read_bytes: u64 = reads.map(|one| one.read_bytes).sum();
            let pages_read = read_bytes / PAGE_BYTES as u64;
            turn.add(Look { at: now, operations, pages_read, memory });
        }
        let ends = started + Duration::from_secs_f64(self.plan.turns).mul_f64((number + 1) as f64);
        if now >= ends || over {
            // A record has a header and its part of a table beside it.
            let bytes = self.plan.record_size as u64 + 16;
            if let Some(note) = std::mem::take(turn).note(bytes) {
                let (engine, workload) = (&self.plan.engine, shared.workload);
                let note =
                    format!("{engine} {workload}, turn {number}, keyspaces {busy:?}: {note}");
                (self.emit)(Event::Note(note))?;
            }
            shared.turn.store(number + 1, Relaxed);
        }
        Ok(())
    }

    fn tell_errors(&mut self, measured: &Measured) -> Result<()> {
        let workload = measured.workload;
        for message in &measured.tally.messages {
            (self.emit)(Event::Note(format!("{} {workload}: error: {message}", self.plan.engine)))?;
        }
        Ok(())
    }

    fn row(&self, workload: Workload, measured: &Measured, state: &State) -> Result<Row> {
        let (plan, tally) = (self.plan, &measured.tally);
        let (before, after) = (&measured.before, &measured.after);
        let process = after.process.since(before.process);
        let engine_io = after.engine.io.as_ref().zip(before.engine.io.as_ref());
        let by_purpose = engine_io.map(|(after, before)| io_by_purpose(before, after));
        let total = by_purpose.as_ref().map(|purposes| {
            purposes.values().fold([0; 4], |sum, one| {
                [
                    sum[0] + one.reads,
                    sum[1] + one.read_bytes,
                    sum[2] + one.writes,
                    sum[3] + one.write_bytes,
                ]
            })
        });
        let [read_ios, read_bytes, write_ios, write_bytes] = total.unwrap_or([
            process.reads,
            process.read_bytes,
            process.writes,
            process.write_bytes,
        ]);
        let since = |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?));
        Ok(Row {
            engine: plan.engine_name(),
            workload: workload.name().to_owned(),
            dataset: plan.dataset.to_string(),
            distribution: plan.distribution_name(workload),
            theta: plan.theta,
            records: plan.records,
            record_size: plan.record_size,
            threads: self.clients(workload),
            memory_bytes: self.terms.memory_limited.then_some(plan.memory),
            durability: plan.durability.name().to_owned(),
            torn_writes: self.terms.torn_writes.clone(),
            seed: plan.seed,
            operations: tally.operations,
            seconds: measured.seconds,
            ops_per_second: rate(tally.operations, Duration::from_secs_f64(measured.seconds)),
            p50_us: microseconds(tally.latencies.value_at_quantile(0.5)),
            p99_us: microseconds(tally.latencies.value_at_quantile(0.99)),
            p999_us: microseconds(tally.latencies.value_at_quantile(0.999)),
            max_us: microseconds(tally.latencies.max()),
            read_ios,
            read_bytes,
            write_ios,
            write_bytes,
            io_by_purpose: by_purpose,
            cache_hits: since(after.engine.cache_hits, before.engine.cache_hits),
            cache_misses: since(after.engine.cache_misses, before.engine.cache_misses),
            pages_read: since(after.engine.pages_read, before.engine.pages_read),
            space_bytes: measured.space_bytes,
            logical_bytes: u64::try_from(state.logical_bytes).unwrap_or(0),
            peak_rss_bytes: process::peak_memory()?,
            stall_ms: after
                .engine
                .stall_ms
                .zip(before.engine.stall_ms)
                .map(|(after, before)| after - before),
            errors: tally.errors,
            version: self.terms.version.clone(),
        })
    }
}

/// Operations a second of the first million and of the last, as near as the watch saw.
fn ends(ticks: &[(Duration, u64)]) -> [Option<f64>; 2] {
    const MILLION: u64 = 1_000_000;
    let (Some(&(start, _)), Some(&(end, total))) = (ticks.first(), ticks.last()) else {
        return [None; 2];
    };
    if total < 2 * MILLION {
        return [None; 2];
    }
    let first = ticks.iter().find(|(_, done)| *done >= MILLION);
    let last = ticks.iter().rfind(|(_, done)| *done <= total - MILLION);
    [
        first.map(|&(at, done)| rate(done, at - start)),
        last.map(|&(at, done)| rate(total - done, end - at)),
    ]
}

fn merge(tally: &mut Tally, one: Tally) -> Result<()> {
    tally
        .latencies
        .add(&one.latencies)
        .map_err(|error| Error::invalid(format!("merge latency histograms: {error}")))?;
    tally.operations += one.operations;
    tally.errors += one.errors;
    tally.messages.extend(one.messages);
    tally.logical_bytes += one.logical_bytes;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
fn rate(operations: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { operations as f64 / time.as_secs_f64() }
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^53 nanoseconds")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_million_is_compared_with_the_last() {
        // Two million a second, then one.
        let tick = |second: u64| {
            (Duration::from_secs(second), second * 1_000_000 + second.min(2) * 1_000_000)
        };
        let ticks: Vec<_> = (0..=5).map(tick).collect();
        assert_eq!(ends(&ticks), [Some(2e6), Some(1e6)]);
        assert_eq!(ends(&ticks[..1]), [None; 2]);
        assert_eq!(ends(&[]), [None; 2]);
    }
}
