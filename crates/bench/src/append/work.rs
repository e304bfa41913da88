//! Threads that run random list-append transactions, and the history of what they did.
//!
//! A key takes [`Work::appends`] appends; the next ones go to a new key, so that lists stay short.
//! At the end one process reads the last keys, so that an append that was lost is missed.

use std::time::Duration;

use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::history::{Event, History, Kind, Operation};
use super::lists::{ListTransaction, Lists};

/// What is run.
#[derive(Clone, Debug)]
pub struct Work {
    /// Number of threads, at least 1.
    pub threads: u64,
    /// Number of transactions of all threads.
    pub transactions: u64,
    /// Number of keys in use at a time, at least 1.
    pub keys: u64,
    /// Number of appends that a key takes, at least 1.
    pub appends: u64,
    /// Most operations of a transaction, at least 1.
    pub longest: u64,
    /// Seed of the random choices.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was done.
    pub history: History,
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that ended with a conflict.
    pub conflicts: u64,
    /// Transactions whose outcome is unknown.
    pub unknown: u64,
    /// Error that ended the run early.
    pub error: Option<Error>,
}

/// Error of a transaction, and whether it may have committed all the same.
struct Failed {
    error: Error,
    is_unknown: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed { error, is_unknown: false }
    }
}

/// Reads of an earlier key: one of this many appends ago, so that lists are seen whole.
const BEHIND: u64 = 8;

struct Ground<'a, L> {
    lists: &'a L,
    work: &'a Work,
    time: Runtime,
    began: Duration,
    /// Appends that each place has had. A place has one key at a time.
    places: Vec<AtomicU64>,
    /// Transactions that have begun.
    transactions: AtomicU64,
    /// The next process to take the place of one whose outcome is unknown.
    processes: AtomicU64,
    has_failed: AtomicBool,
    outcome: Mutex<Outcome>,
}

/// Runs random transactions over `lists`, whose keys are absent. `is_stopped` is asked before each.
///
/// # Panics
/// When a number of `work` that has to be at least 1 is 0.
pub fn run<L: Lists>(lists: &L, work: &Work, is_stopped: &(dyn Fn() -> bool + Sync)) -> Outcome {
    let time = Runtime::threads();
    let ground = Ground {
        lists,
        work,
        began: time.now(),
        time,
        places: (0..work.keys).map(|_| AtomicU64::new(0)).collect(),
        transactions: AtomicU64::new(0),
        processes: AtomicU64::new(work.threads),
        has_failed: AtomicBool::new(false),
        outcome: Mutex::default(),
    };
    thread::scope(|scope| {
        for thread in 0..work.threads {
            let ground = &ground;
            scope.spawn(move || ground.drive(thread, is_stopped));
        }
    });
    ground.read_last(is_stopped);
    ground.outcome.into_inner()
}

impl<L: Lists> Ground<'_, L> {
    /// Runs transactions of one thread until all have begun.
    fn drive(&self, thread: u64, is_stopped: &(dyn Fn() -> bool + Sync)) {
        let mut random = SplitMix(self.work.seed ^ thread.wrapping_mul(0xA076_1D64_78BD_642F));
        let mut process = thread;
        while !self.has_failed.load(SeqCst)
            && !is_stopped()
            && self.transactions.fetch_add(1, SeqCst) < self.work.transactions
        {
            let operations = self.draw(&mut random);
            process = self.transaction(process, operations, &mut random);
        }
    }

    /// Reads the last two keys of each place.
    fn read_last(&self, is_stopped: &(dyn Fn() -> bool + Sync)) {
        let mut process = self.processes.fetch_add(1, SeqCst);
        let mut random = SplitMix(self.work.seed);
        for (place, appends) in (0..).zip(&self.places) {
            let last = appends.load(SeqCst) / self.work.appends;
            if self.has_failed.load(SeqCst) || is_stopped() {
                return;
            }
            let read = |turn| Operation::Read { key: turn * self.work.keys + place, list: None };
            let operations = (last.saturating_sub(1)..=last).map(read).collect();
            process = self.transaction(process, operations, &mut random);
        }
    }

    /// Draws the operations of a transaction.
    fn draw(&self, random: &mut SplitMix) -> Vec<Operation> {
        let count = 1 + random.next_u64() % self.work.longest;
        (0..count)
            .map(|_| {
                let place = random.below(self.places.len());
                let appends = &self.places[place];
                let key = |number| number / self.work.appends * self.work.keys + place as u64;
                if random.below(2) == 0 {
                    let number = appends.fetch_add(1, SeqCst);
                    Operation::Append { key: key(number), value: number % self.work.appends + 1 }
                } else {
                    let behind = random.next_u64() % BEHIND;
                    let number = appends.load(SeqCst).saturating_sub(behind);
                    Operation::Read { key: key(number), list: None }
                }
            })
            .collect()
    }

    /// Runs a transaction and notes it. Returns the process that may run the next one.
    fn transaction(&self, process: u64, operations: Vec<Operation>, random: &mut SplitMix) -> u64 {
        let note = |outcome: &mut Outcome, kind, operations| {
            let time = self.time.now().saturating_sub(self.began);
            outcome.history.events.push(Event { kind, process, time, operations });
        };
        note(&mut self.outcome.lock(), Kind::Invoke, operations.clone());
        let attempted = self.attempt(&operations, random);
        let mut outcome = self.outcome.lock();
        match attempted {
            Ok(done) => {
                outcome.committed += 1;
                note(&mut outcome, Kind::Ok, done);
                process
            }
            Err(Failed { error, is_unknown: false }) => {
                note(&mut outcome, Kind::Fail, operations);
                if error.kind() == ErrorKind::Conflict {
                    outcome.conflicts += 1;
                } else {
                    self.has_failed.store(true, SeqCst);
                    outcome.error.get_or_insert(error);
                }
                process
            }
            Err(Failed { error, is_unknown: true }) => {
                note(&mut outcome, Kind::Info, operations);
                outcome.unknown += 1;
                // Nothing can be written until it is opened again.
                if error.kind() == ErrorKind::Poisoned {
                    self.has_failed.store(true, SeqCst);
                    outcome.error.get_or_insert(error);
                }
                self.processes.fetch_add(1, SeqCst)
            }
        }
    }

    /// Runs a transaction. Returns its operations with what was read.
    fn attempt(
        &self,
        operations: &[Operation],
        random: &mut SplitMix,
    ) -> Result<Vec<Operation>, Failed> {
        let mut transaction = self.lists.begin()?;
        let mut done = Vec::with_capacity(operations.len());
        for operation in operations {
            match *operation {
                Operation::Append { key, value } => {
                    let mut list = transaction.read(key)?.unwrap_or_default();
                    list.push(value);
                    transaction.write(key, &list)?;
                    done.push(operation.clone());
                }
                Operation::Read { key, .. } => {
                    done.push(Operation::Read { key, list: transaction.read(key)? });
                }
            }
            if random.below(4) == 0 {
                // Others get to run in the middle of this one, on few processors too.
                thread::yield_now();
            }
        }
        let committed = transaction.commit();
        committed.map(|()| done).map_err(|error| {
            let is_unknown = !matches!(
                error.kind(),
                ErrorKind::Conflict
                    | ErrorKind::Full
                    | ErrorKind::InvalidArgument
                    | ErrorKind::ReadOnly
            );
            Failed { error, is_unknown }
        })
    }
}
