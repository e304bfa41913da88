//! Client threads: transactions of look-ups and updates, or of one scan.

use std::ops::ControlFlow;
use std::time::Duration;

use hdrhistogram::Histogram;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::{ColumnAccess, ColumnSession, ColumnStore, Columns, Shape, key_of};
use crate::distribution::Chooser;
use crate::parent::{Interrupted, interrupted};

/// Poll interval for the end of a measurement and for an interrupt.
const TICK: Duration = Duration::from_millis(20);

/// Longest latency that a histogram tells from longer ones: a minute.
const NANOS_MAX: u64 = 60_000_000_000;

const WARM: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// What transactions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Look-ups and updates, of which this many in a hundred are updates.
    Points {
        /// Percent of updates.
        updates: u32,
    },
    /// One scan of this many records.
    Scans {
        /// Most records.
        records: usize,
    },
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Round {
    /// What transactions do.
    pub work: Work,
    /// Which record next.
    pub chooser: Chooser,
    /// Client threads.
    pub threads: usize,
    /// Look-ups and updates of a transaction.
    pub operations: usize,
    /// Columns of a look-up, an update and a scanned record.
    pub columns: Widths,
    /// Time before the measurement, and of it.
    pub times: [Duration; 2],
    /// Seed of all choices.
    pub seed: u64,
}

/// Columns that operations touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// Columns that a look-up reads, from the first.
    pub read: usize,
    /// Columns that an update changes: this many side by side, of which the first is drawn.
    pub update: usize,
    /// Columns that a scan reads, from the first.
    pub scan: usize,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Look-ups and updates, or scanned records.
    pub operations: u64,
    /// Transactions that committed.
    pub committed: u64,
    /// Runs after conflicts.
    pub retries: u64,
    /// Seconds.
    pub seconds: f64,
    /// Latencies of transactions in nanoseconds, with all runs.
    pub times: Histogram<u64>,
}

impl Measured {
    fn new() -> Result<Measured> {
        let times = Histogram::new_with_bounds(1, NANOS_MAX, 3)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))?;
        Ok(Measured { operations: 0, committed: 0, retries: 0, seconds: 0.0, times })
    }

    /// Adds what another thread did in the same time.
    fn add(&mut self, other: &Measured) {
        self.operations += other.operations;
        self.committed += other.committed;
        self.retries += other.retries;
        self.seconds = other.seconds;
        // Both have the same bounds.
        let _ = self.times.add(&other.times);
    }

    /// Operations per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate with few digits")]
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    /// Runs that ended by a conflict, of all runs.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share with few digits")]
    pub fn aborts(&self) -> f64 {
        self.retries as f64 / (self.retries + self.committed).max(1) as f64
    }
}

/// Runs a measurement.
///
/// # Errors
/// The first error of a thread, `Corruption` for a value that was never written, or `Cancelled`.
pub fn measure(
    store: &dyn ColumnStore,
    round: &Round,
    is_interrupted: Interrupted,
) -> Result<Measured> {
    let mut all = Measured::new()?;
    for one in measure_each(store, &vec![round; round.threads], is_interrupted)? {
        all.add(&one);
    }
    Ok(all)
}

/// Runs a measurement in which each thread has work of its own, of the times of the first. Returns
/// what each did.
///
/// # Errors
/// As [`measure`].
pub fn measure_each(
    store: &dyn ColumnStore,
    rounds: &[&Round],
    is_interrupted: Interrupted,
) -> Result<Vec<Measured>> {
    let (phase, clock, shape) = (AtomicU8::new(WARM), Runtime::threads(), store.shape());
    let mut sessions = Vec::new();
    for round in rounds {
        sessions.push((*round, store.session()?));
    }
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let (phase, clock) = (&phase, &clock);
        let threads: Vec<_> = (0..)
            .zip(sessions)
            .map(|(thread, (round, mut session))| {
                scope.spawn(move || {
                    let mut client = Client::new(round, shape, thread);
                    let ended = client.run(&mut *session, phase, clock);
                    if ended.is_err() {
                        phase.store(STOP, SeqCst);
                    }
                    ended
                })
            })
            .collect();
        let wait = |time: Duration| {
            let begun = clock.now();
            while clock.now() - begun < time && phase.load(SeqCst) != STOP && !is_interrupted() {
                clock.sleep(TICK.min(time));
            }
            (clock.now() - begun).as_secs_f64()
        };
        let [warmup, time] = rounds.first().map_or([Duration::ZERO; 2], |first| first.times);
        wait(warmup);
        let _ = phase.compare_exchange(WARM, MEASURE, SeqCst, SeqCst);
        let seconds = wait(time);
        phase.store(STOP, SeqCst);
        for thread in threads {
            let panicked = |_| Err(Error::new(ErrorKind::Io, "a client thread panicked"));
            all.push(Measured { seconds, ..thread.join().unwrap_or_else(panicked)? });
        }
        Ok::<(), Error>(())
    })?;
    if is_interrupted() { Err(interrupted("the run was interrupted")) } else { Ok(all) }
}

/// A look-up or an update.
#[derive(Clone, Copy, Debug)]
struct Point {
    record: u64,
    /// The first column and the byte of an update.
    update: Option<(usize, u8)>,
}

/// A client thread.
struct Client<'a> {
    round: &'a Round,
    shape: Shape,
    random: SplitMix,
    points: Vec<Point>,
    out: Vec<u8>,
}

impl<'a> Client<'a> {
    fn new(round: &'a Round, shape: Shape, thread: u64) -> Client<'a> {
        let random = SplitMix(round.seed ^ (thread + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Client { round, shape, random, points: Vec::new(), out: Vec::new() }
    }

    fn run(
        &mut self,
        session: &mut dyn ColumnSession,
        phase: &AtomicU8,
        clock: &Runtime,
    ) -> Result<Measured> {
        let mut measured = Measured::new()?;
        loop {
            let before = phase.load(Relaxed);
            if before == STOP {
                return Ok(measured);
            }
            let begun = clock.now();
            let (operations, retries) = match self.round.work {
                Work::Points { updates } => self.points(session, updates)?,
                Work::Scans { records } => self.scan(session, records)?,
            };
            // What ends after the measurement does not count.
            if before != MEASURE || phase.load(Relaxed) != MEASURE {
                continue;
            }
            measured.operations += operations;
            measured.committed += 1;
            measured.retries += retries;
            let time = (clock.now() - begun).as_nanos();
            measured.times.saturating_record(u64::try_from(time).unwrap_or(u64::MAX));
        }
    }

    fn next(&mut self) -> u64 {
        let count = self.round.chooser.count();
        self.round.chooser.next(&mut self.random, || count, 0)
    }

    /// Runs a transaction of look-ups and updates. Returns how many, and the runs after conflicts.
    fn points(&mut self, session: &mut dyn ColumnSession, updates: u32) -> Result<(u64, u64)> {
        let Widths { read, update, .. } = self.round.columns;
        self.points.clear();
        for _ in 0..self.round.operations {
            let record = self.next();
            let is_update = self.random.below(100) < updates as usize;
            let first = self.random.below(self.shape.columns() - update + 1);
            let byte = self.random.next_u64().to_le_bytes()[0];
            self.points.push(Point { record, update: is_update.then_some((first, byte)) });
        }
        let Client { points, out, shape, .. } = self;
        let retries = session.transact(&mut |access| {
            points.iter().try_for_each(|point| point.run(access, *shape, (read, update), out))
        })?;
        Ok((self.points.len() as u64, retries))
    }

    /// Runs a scan. Returns how many records it read, and the runs after conflicts.
    fn scan(&mut self, session: &mut dyn ColumnSession, records: usize) -> Result<(u64, u64)> {
        let columns = Columns::first(self.round.columns.scan);
        let last = self.round.chooser.count().saturating_sub(records as u64);
        let (from, shape) = (self.next().min(last), self.shape);
        let mut count = 0;
        let retries = session.transact(&mut |access| {
            count = 0;
            let mut found = Ok(());
            access.scan(&key_of(from), records, columns, &mut |key, values| {
                found = if *key == key_of(from + count) {
                    shape.check(from + count, columns, values)
                } else {
                    Err(Error::new(ErrorKind::Corruption, "a scan passed over a record"))
                };
                count += 1;
                if found.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            found
        })?;
        Ok((count, retries))
    }
}

impl Point {
    fn run(
        &self,
        access: &mut dyn ColumnAccess,
        shape: Shape,
        (read, update): (usize, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let key = key_of(self.record);
        let is_there = match self.update {
            Some((first, byte)) => {
                out.clear();
                (first..first + update)
                    .for_each(|column| shape.fill(self.record, column, byte, out));
                let columns = Columns(Columns::first(update).0 << first);
                access.update(&key, columns, out)?
            }
            None => {
                let columns = Columns::first(read);
                let is_there = access.read(&key, columns, out)?;
                if is_there {
                    shape.check(self.record, columns, out)?;
                }
                is_there
            }
        };
        if is_there {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corruption, format!("record {} is gone", self.record)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{Load, Order, heap, own};
    use crate::distribution::{Distribution, Generator};

    #[test]
    fn all_stores_run_all_work() {
        const RECORDS: u64 = 2_000;
        for (number, order) in (0..).zip([Order::Key, Order::Random]) {
            let directory = tempfile::tempdir().unwrap();
            let memory = 256 << 20;
            let mut stores: Vec<_> = spinney_heap::Layout::ALL
                .into_iter()
                .map(|layout| {
                    let own = made(&directory, layout.name());
                    heap::open(layout, Shape::TEN, memory, &own).unwrap()
                })
                .collect();
            stores.push(own::open(Shape::TEN, memory, &made(&directory, "own")).unwrap());
            for store in stores {
                store.load(Load { records: RECORDS, order, seed: 1 }).unwrap();
                assert!(store.used_bytes() > RECORDS * 1000);
                for work in [Work::Points { updates: 50 }, Work::Scans { records: 300 }] {
                    let zipf = Distribution::Zipfian;
                    let round = Round {
                        work,
                        chooser: Chooser::new(zipf, Generator::Exact, 0.9, RECORDS),
                        threads: 3,
                        operations: 10,
                        columns: Widths { read: 4, update: 2, scan: 3 },
                        times: [Duration::ZERO, Duration::from_millis(100)],
                        seed: number,
                    };
                    // On a busy machine none may end in time.
                    let measured = (0..100)
                        .map(|_| measure(&*store, &round, || false).unwrap())
                        .find(|measured| measured.committed > 0);
                    let measured = measured.expect("some transaction ends");
                    assert!(measured.rate() > 0.0 && measured.aborts() < 1.0);
                }
                store.close().unwrap();
            }
        }
    }

    fn made(directory: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }
}
