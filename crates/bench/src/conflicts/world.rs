//! A database for one case, its threads, and what is counted of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use spinney::{Db, Durability, EngineKind, ErrorKind, Keyspace, Options, TransactionStats};
use spinney_base::limits::MEMORY_BYTES_MIN;
use spinney_base::runtime::SplitMix;
use spinney_base::{Error, Result, Runtime};

use crate::parent::{Interrupted, OwnDirectory, interrupted};

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 8;

/// Records of a range that is scanned.
pub(super) const RANGE: u64 = 1000;

/// Rest of a paced writer that is ahead of its rate.
pub(super) const REST: Duration = Duration::from_millis(1);

/// What is run.
#[derive(Clone, Debug)]
pub struct ConflictsPlan {
    /// The engine.
    pub engine: EngineKind,
    /// Number of records, from 100,000.
    pub records: u64,
    /// Bytes of key and value, from 16.
    pub record_size: usize,
    /// Threads that run transactions or write.
    pub threads: usize,
    /// The memory budget in bytes. The puts of cold keys have a quarter of the records' bytes instead.
    pub memory: u64,
    /// Seconds of each case that is not counted by puts.
    pub seconds: f64,
    /// Writes a second of all threads together beside a range or the head of a queue.
    pub writes_per_second: u64,
    /// An existing directory for the files, which are removed at the end.
    pub directory: PathBuf,
    /// Seed of the random choices.
    pub seed: u64,
    /// Asked whether to end early.
    pub interrupted: Interrupted,
}

impl ConflictsPlan {
    /// Checks the numbers.
    ///
    /// # Errors
    /// `InvalidArgument` naming what is out of range.
    pub fn check(&self) -> Result<()> {
        let rules = [
            (self.directory.is_dir(), "--dir: there is no such directory"),
            (self.records >= 100_000, "--records must be at least 100K"),
            // The version of each record is kept in memory.
            (self.records < 1 << 32, "--records must be below 2^32"),
            (
                (2 * KEY_BYTES..=1 << 20).contains(&self.record_size),
                "--record-size must be 16 bytes to 1MiB",
            ),
            (
                // The puts of cold keys have a quarter of it as their memory budget.
                self.records.saturating_mul(self.record_size as u64) >= 4 * MEMORY_BYTES_MIN,
                "--records times --record-size must be at least 4MiB",
            ),
            ((1..=1000).contains(&self.threads), "--threads must be 1 to 1000"),
            (self.seconds > 0.0 && self.seconds < 1e6, "--seconds must be above 0"),
            (self.writes_per_second > 0, "--writes-per-second must be at least 1"),
            (self.memory >= MEMORY_BYTES_MIN, "--memory must be at least 1MiB"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }
}

/// A database with one keyspace, for one case.
pub(super) struct World<'a> {
    pub(super) plan: &'a ConflictsPlan,
    pub(super) db: Db,
    pub(super) main: Keyspace,
    /// Tells threads that the case is over.
    done: AtomicBool,
    pub(super) time: Runtime,
}

impl World<'_> {
    pub(super) fn value_bytes(&self) -> usize {
        self.plan.record_size - KEY_BYTES
    }

    /// The value of a version of a record.
    pub(super) fn value(&self, key: u64, version: u64) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes()];
        let mut random = SplitMix(key ^ (version << 40));
        for word in value.chunks_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes()[..word.len()]);
        }
        value
    }

    /// Loads the first version of every record.
    pub(super) fn load(&self) -> Result<()> {
        let keys = (0..self.plan.records).take_while(|_| !(self.plan.interrupted)());
        let records = keys.map(|key| (key.to_be_bytes(), self.value(key, 0)));
        self.main.bulk_load(records)?;
        self.go_on()
    }

    pub(super) fn random(&self, thread: u64) -> SplitMix {
        SplitMix(self.plan.seed ^ (thread << 32))
    }

    /// Whether the case is over, or nobody waits for its end any more.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(SeqCst) || (self.plan.interrupted)()
    }

    /// Ends a case that was interrupted.
    pub(super) fn go_on(&self) -> Result<()> {
        if (self.plan.interrupted)() { Err(interrupted("the run was interrupted")) } else { Ok(()) }
    }

    /// Calls `write` at a thread's share of the rate until the case is over, and counts the calls.
    pub(super) fn write_paced(
        &self,
        counter: &AtomicU64,
        mut write: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let rate = float(self.plan.writes_per_second) / self.plan.threads as f64;
        let (begun, mut written) = (self.time.now(), 0_u64);
        while !self.is_done() {
            let due = self.time.now().saturating_sub(begun).as_secs_f64() * rate;
            if float(written) >= due {
                self.time.sleep(REST);
                continue;
            }
            write()?;
            written += 1;
            counter.fetch_add(1, SeqCst);
        }
        Ok(())
    }

    /// Runs `worker` in every thread of the plan, and `observe` beside them. The case is over when that
    /// ends, or when a worker fails.
    pub(super) fn beside<T>(
        &self,
        worker: impl Fn(u64) -> Result<()> + Sync,
        observe: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.done.store(false, SeqCst);
        std::thread::scope(|scope| {
            let threads = 0..self.plan.threads as u64;
            let worker = &worker;
            let workers: Vec<_> = threads
                .map(|thread| {
                    scope.spawn(move || {
                        worker(thread).inspect_err(|_| self.done.store(true, SeqCst))
                    })
                })
                .collect();
            let observed = observe();
            self.done.store(true, SeqCst);
            for worker in workers {
                worker.join().expect("a worker did not panic")?;
            }
            self.go_on()?;
            observed
        })
    }

    /// Waits until `seconds` are over, or a thread failed.
    pub(super) fn wait(&self, seconds: f64) {
        let end = self.time.now() + Duration::from_secs_f64(seconds);
        while self.time.now() < end && !self.is_done() {
            self.time.sleep(end.saturating_sub(self.time.now()).min(10 * REST));
        }
    }
}

/// What was found, and whether transactions and values were right.
pub(super) struct Finding {
    pub(super) text: String,
    pub(super) is_right: bool,
}

/// A number for a ratio that is shown with a few digits.
#[expect(clippy::cast_precision_loss, reason = "ratios are shown with a few digits")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

/// What was counted of transactions from one moment to another.
pub(super) fn counted(from: &TransactionStats, to: &TransactionStats) -> String {
    let conflicts = |stats: &TransactionStats| {
        [stats.conflicts_changed, stats.conflicts_busy, stats.conflicts_loaded]
    };
    let [before, after] = [conflicts(from), conflicts(to)];
    let [changed, busy, loaded] = std::array::from_fn(|cause| after[cause] - before[cause]);
    let begun = to.begun - from.begun;
    let each = |count: u64| float(count) / float(begun.max(1));
    format!(
        "{begun} begun, {} committed, {} conflicts ({changed} changed, {busy} busy, {loaded} loaded), {:.2} in 10,000, {:.3} extensions each",
        to.committed - from.committed,
        changed + busy + loaded,
        1e4 * each(changed + busy + loaded),
        each(to.extensions - from.extensions),
    )
}

/// Transactions that were to commit at the first try.
#[derive(Default)]
pub(super) struct Tries {
    transactions: u64,
    first: u64,
}

impl Tries {
    /// Runs a transaction until it commits, and counts whether the first try did.
    pub(super) fn run(&mut self, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
        self.transactions += 1;
        let mut is_first = true;
        loop {
            match attempt() {
                Ok(()) => {
                    self.first += u64::from(is_first);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Conflict => is_first = false,
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn text(&self) -> String {
        format!(
            "{} of {} committed at the first try ({:.3} in 100)",
            self.first,
            self.transactions,
            100.0 * float(self.first) / float(self.transactions.max(1)),
        )
    }
}

pub(super) fn write_error(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

/// Runs something in a database of its own.
pub(super) fn in_a_database<T>(
    plan: &ConflictsPlan,
    memory: u64,
    run: impl FnOnce(&World<'_>) -> Result<T>,
) -> Result<T> {
    let directory = OwnDirectory::create(&plan.directory, false)?;
    // A scrub reads by the clock, so its pages are not the puts'.
    let options = Options::default()
        .memory(memory)
        .durability(Durability::Buffered)
        .scrub_bytes_per_second(0);
    let db = Db::open(directory.path.join("db"), options)?;
    let main = db.keyspace("main", plan.engine)?;
    let (done, time) = (AtomicBool::new(false), Runtime::threads());
    run(&World { plan, db, main, done, time })
}
