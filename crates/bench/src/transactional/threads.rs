//! Client threads of a round: a warm-up, then a measurement by time or by number of transactions.

use std::time::Duration;

use hdrhistogram::Histogram;
use spinney_base::shim::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::workload::{Client, Step, TransactionalWorkload};
use super::{TransactionalSession, TransactionalStore, Verdict};

/// How often the threads are looked at.
const TICK: Duration = Duration::from_millis(20);
/// Longest latency that a histogram tells from longer ones: a minute.
const NANOS_MAX: u64 = 60_000_000_000;

const WARM: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// One round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Its number, from 0 over the life of the tables.
    pub number: u64,
    /// Client threads.
    pub threads: usize,
    /// Time before the measurement.
    pub warmup: Duration,
    /// Time of the measurement, unless `operations` is given.
    pub time: Duration,
    /// Ends the measurement after this many transactions instead.
    pub operations: Option<u64>,
}

/// What was seen of one kind of transactions.
#[derive(Clone, Debug)]
pub struct OfKind {
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that their body rolled back.
    pub rolled_back: u64,
    /// Runs after conflicts.
    pub retries: u64,
    /// Latencies in nanoseconds, with all runs.
    pub times: Histogram<u64>,
}

/// What was seen of a round.
#[derive(Clone, Debug)]
pub struct Measured {
    /// By kind.
    pub kinds: Vec<OfKind>,
    /// Length of the measurement.
    pub seconds: f64,
}

impl OfKind {
    fn new() -> Result<Self> {
        let times = Histogram::new_with_bounds(1, NANOS_MAX, 3)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        Ok(OfKind { committed: 0, rolled_back: 0, retries: 0, times })
    }

    fn add(&mut self, other: &OfKind) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.retries += other.retries;
        // Both have the same bounds.
        let _ = self.times.add(&other.times);
    }
}

/// What threads share.
struct Shared<'a> {
    phase: AtomicU8,
    /// Transactions that were begun while it was measured.
    begun: AtomicU64,
    operations: u64,
    committed: AtomicU64,
    clock: &'a Runtime,
}

/// Runs a round. `watch` is called when the measurement begins, and then about every 20 ms with the
/// part of it that is done (0 to 1) and the transactions that committed so far.
///
/// # Errors
/// The first error of a thread, or of `watch`; all threads have ended then.
pub fn measure(
    store: &dyn TransactionalStore,
    workload: &dyn TransactionalWorkload,
    round: Round,
    watch: &mut dyn FnMut(f64, u64) -> Result<()>,
) -> Result<Measured> {
    let kinds = workload.kinds().len();
    let clock = Runtime::threads();
    let shared = Shared {
        phase: AtomicU8::new(WARM),
        begun: AtomicU64::new(0),
        operations: round.operations.unwrap_or(u64::MAX),
        committed: AtomicU64::new(0),
        clock: &clock,
    };
    let mut sessions = Vec::new();
    for thread in 0..round.threads {
        sessions.push((store.session()?, workload.client(round.number, thread)));
    }
    let mut measured =
        Measured { kinds: (0..kinds).map(|_| OfKind::new()).collect::<Result<_>>()?, seconds: 0.0 };
    if round.warmup.is_zero() {
        // Every transaction counts.
        watch(0.0, 0)?;
        shared.phase.store(MEASURE, SeqCst);
    }
    std::thread::scope(|scope| {
        let shared = &shared;
        let threads: Vec<_> = sessions
            .into_iter()
            .map(|(mut session, mut client)| {
                scope.spawn(move || {
                    let ended = work(shared, &mut *session, &mut *client, kinds);
                    if ended.is_err() {
                        shared.phase.store(STOP, SeqCst);
                    }
                    ended
                })
            })
            .collect();
        let watched = conduct(shared, round, watch);
        shared.phase.store(STOP, SeqCst);
        for thread in threads {
            let tally = thread
                .join()
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "a client thread panicked")))?;
            measured.kinds.iter_mut().zip(&tally).for_each(|(all, one)| all.add(one));
        }
        measured.seconds = watched?;
        Ok(measured)
    })
}

/// Waits for the warm-up and the measurement. Returns the seconds of the latter.
fn conduct(
    shared: &Shared<'_>,
    round: Round,
    watch: &mut dyn FnMut(f64, u64) -> Result<()>,
) -> Result<f64> {
    let clock = shared.clock;
    if !round.warmup.is_zero() {
        while clock.now() < round.warmup && shared.phase.load(SeqCst) != STOP {
            clock.sleep(TICK.min(round.warmup));
        }
        watch(0.0, 0)?;
        // A thread that failed has stopped all.
        let _ = shared.phase.compare_exchange(WARM, MEASURE, SeqCst, SeqCst);
    }
    let begun = clock.now();
    loop {
        clock.sleep(TICK.min(round.time));
        let time = clock.now().saturating_sub(begun);
        if shared.phase.load(SeqCst) == STOP {
            return Ok(time.as_secs_f64());
        }
        #[expect(clippy::cast_precision_loss, reason = "a part of a bar")]
        let part = match round.operations {
            Some(all) => shared.begun.load(Relaxed) as f64 / all as f64,
            None => time.as_secs_f64() / round.time.as_secs_f64(),
        };
        watch(part.min(1.0), shared.committed.load(Relaxed))?;
        if part >= 1.0 {
            return Ok(clock.now().saturating_sub(begun).as_secs_f64());
        }
    }
}

/// The work of one thread.
fn work(
    shared: &Shared<'_>,
    session: &mut dyn TransactionalSession,
    client: &mut dyn Client,
    kinds: usize,
) -> Result<Vec<OfKind>> {
    let mut tally: Vec<OfKind> = (0..kinds).map(|_| OfKind::new()).collect::<Result<_>>()?;
    loop {
        let phase = shared.phase.load(Relaxed);
        let is_measured = phase == MEASURE;
        let is_over = is_measured && shared.begun.fetch_add(1, Relaxed) >= shared.operations;
        if phase == STOP || is_over {
            return Ok(tally);
        }
        let begun = shared.clock.now();
        let date = u64::try_from(begun.as_micros()).unwrap_or(u64::MAX - 2) + 2;
        let Step { kind, ended } = client.step(session, date)?;
        // What ends after the measurement does not count, unless transactions are counted out.
        let is_late = shared.operations == u64::MAX && shared.phase.load(Relaxed) != MEASURE;
        if !is_measured || is_late {
            continue;
        }
        let one = &mut tally[kind];
        let time = shared.clock.now().saturating_sub(begun);
        one.times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        one.retries += ended.retries;
        match ended.verdict {
            Verdict::Commit => {
                one.committed += 1;
                shared.committed.fetch_add(1, Relaxed);
            }
            Verdict::Rollback => one.rolled_back += 1,
        }
    }
}
