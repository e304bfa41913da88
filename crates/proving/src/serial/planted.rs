//! Lists in a real database, by transactions with a planted fault: what checkers of histories are
//! tried on.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use spinney::{Batch, DbSnapshot, Durability, Error, ErrorKind, Result, Transaction};
use spinney_base::Runtime;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::shim::thread;
use spinney_bench::append::lists::{InKeyspaces, ListTransaction, Lists, decode, encode, name};

/// What is wrong with the transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nothing that was read is checked: updates are lost.
    Unchecked,
    /// Reads are of the moment of the beginning, and only what is written is checked: write skew.
    Snapshots,
    /// Reads are plain, and only what is written is checked: reads do not fit together.
    Unrepeatable,
    /// Writes show at once, and some transactions fail afterwards.
    Dirty,
    /// Some transactions read a moment that is long gone.
    Stale,
    /// A commit shows key by key.
    KeyByKey,
    /// Some commits write nothing.
    Lost,
    /// Some commits answer a conflict.
    FalseConflicts,
    /// Transactions that only read check nothing.
    Readers,
    /// Some commits append once more what they have appended.
    Twice,
}

/// All faults.
pub const FAULTS: [Fault; 10] = [
    Fault::Unchecked,
    Fault::Snapshots,
    Fault::Unrepeatable,
    Fault::Dirty,
    Fault::Stale,
    Fault::KeyByKey,
    Fault::Lost,
    Fault::FalseConflicts,
    Fault::Readers,
    Fault::Twice,
];

/// Commits, or transactions, of which one is hit by a fault that hits some.
const ONE_IN: u64 = 16;

/// Transactions after which stale reads see a later moment.
const STALE: u64 = 64;

/// Transactions of which one rests after each read. Without rests the threads of a short run may
/// come one after the other, and then there is nothing to be found.
const RESTS: u64 = 4;
const REST: Duration = Duration::from_micros(50);

/// Lists whose transactions have a fault.
#[derive(Debug)]
pub struct Planted {
    lists: InKeyspaces,
    fault: Fault,
    time: Runtime,
    /// Transactions begun.
    begun: AtomicU64,
    /// Held while a transaction without one of the database's commits.
    commits: Mutex<Commits>,
}

#[derive(Debug, Default)]
struct Commits {
    count: u64,
    /// The last commit that wrote a key.
    of_key: HashMap<u64, u64>,
    stale: Option<DbSnapshot>,
}

/// Where a transaction reads.
#[derive(Debug)]
enum Source {
    /// A transaction of the database, which checks all.
    Checked(Transaction),
    /// A moment, and the commits up to it.
    Moment(DbSnapshot, u64),
    /// What is there now.
    Plain,
}

/// A transaction with a fault.
#[derive(Debug)]
pub struct PlantedTransaction<'a> {
    planted: &'a Planted,
    number: u64,
    source: Source,
    writes: BTreeMap<u64, Vec<u64>>,
    /// What was read first of each key.
    reads: HashMap<u64, Option<Vec<u64>>>,
}

fn conflict() -> Error {
    Error::new(ErrorKind::Conflict, "planted")
}

impl Planted {
    /// Plants a fault.
    #[must_use]
    pub fn new(lists: InKeyspaces, fault: Fault) -> Self {
        Planted {
            lists,
            fault,
            time: Runtime::threads(),
            begun: AtomicU64::new(0),
            commits: Mutex::default(),
        }
    }

    fn plain(&self, key: u64) -> Result<Option<Vec<u64>>> {
        let value = self.lists.keyspace(key).get(name(key))?;
        value.map(|bytes| decode(&bytes)).transpose()
    }

    fn write<'a>(&self, writes: impl IntoIterator<Item = (&'a u64, &'a Vec<u64>)>) -> Result<()> {
        let mut batch = Batch::new();
        for (key, list) in writes {
            batch.insert(self.lists.keyspace(*key), name(*key), encode(list));
        }
        self.lists.db.write_with(&batch, Durability::Buffered)
    }

    /// The moment that a stale transaction reads.
    fn stale(&self, number: u64) -> Result<DbSnapshot> {
        let mut commits = self.commits.lock();
        if number % STALE < 2 {
            commits.stale = None;
        }
        let stale = match commits.stale.take() {
            Some(stale) => stale,
            None => self.lists.db.snapshot()?,
        };
        Ok(commits.stale.insert(stale).clone())
    }
}

impl Lists for Planted {
    type Transaction<'a> = PlantedTransaction<'a>;

    fn begin(&self) -> Result<PlantedTransaction<'_>> {
        let number = self.begun.fetch_add(1, SeqCst);
        let source = match self.fault {
            Fault::Unchecked | Fault::Unrepeatable | Fault::Dirty => Source::Plain,
            Fault::Readers if number.is_multiple_of(2) => Source::Plain,
            Fault::Stale if number.is_multiple_of(2) => Source::Moment(self.stale(number)?, 0),
            Fault::Snapshots => {
                let commits = self.commits.lock();
                Source::Moment(self.lists.db.snapshot()?, commits.count)
            }
            _ => Source::Checked(self.lists.db.begin()?),
        };
        Ok(PlantedTransaction {
            planted: self,
            number,
            source,
            writes: BTreeMap::new(),
            reads: HashMap::new(),
        })
    }
}

impl ListTransaction for PlantedTransaction<'_> {
    fn read(&mut self, key: u64) -> Result<Option<Vec<u64>>> {
        if let Some(own) = self.writes.get(&key) {
            return Ok(Some(own.clone()));
        }
        let keyspace = self.planted.lists.keyspace(key);
        let value = match &self.source {
            Source::Checked(transaction) => transaction.get(keyspace, name(key))?,
            Source::Moment(snapshot, _) => snapshot.keyspace(keyspace)?.get(name(key))?,
            Source::Plain => keyspace.get(name(key))?,
        };
        let list = value.map(|bytes| decode(&bytes)).transpose()?;
        self.reads.entry(key).or_insert_with(|| list.clone());
        if self.number.is_multiple_of(RESTS) {
            self.planted.time.sleep(REST);
        }
        Ok(list)
    }

    fn write(&mut self, key: u64, list: &[u64]) -> Result<()> {
        if matches!(self.planted.fault, Fault::Stale | Fault::Readers)
            && !matches!(self.source, Source::Checked(_))
        {
            return Err(conflict());
        }
        self.writes.insert(key, list.to_vec());
        match self.planted.fault {
            Fault::Dirty => self.planted.write([(&key, &list.to_vec())]),
            _ => Ok(()),
        }
    }

    fn commit(self) -> Result<()> {
        let is_hit = self.number.is_multiple_of(ONE_IN) && !self.writes.is_empty();
        match self.planted.fault {
            Fault::Unchecked => self.planted.write(&self.writes),
            Fault::Snapshots | Fault::Unrepeatable => self.commit_what_is_written(),
            Fault::Dirty if is_hit => {
                let before = self.writes.keys().filter_map(|key| {
                    let list = self.reads.get(key)?;
                    Some((key, list.clone().unwrap_or_default()))
                });
                let before: Vec<_> = before.collect();
                self.planted.write(before.iter().map(|(key, list)| (*key, list)))?;
                Err(conflict())
            }
            Fault::Dirty => Ok(()),
            Fault::KeyByKey => self.commit_by_key(),
            Fault::Lost if is_hit => Ok(()),
            Fault::FalseConflicts if is_hit => self.commit_checked().and(Err(conflict())),
            Fault::Twice if is_hit => {
                let mut twice = self;
                for list in twice.writes.values_mut() {
                    list.extend(list.last().copied());
                }
                twice.commit_checked()
            }
            _ => self.commit_checked(),
        }
    }
}

impl PlantedTransaction<'_> {
    /// Commits as a transaction of the database.
    fn commit_checked(self) -> Result<()> {
        let Source::Checked(mut transaction) = self.source else { return Ok(()) };
        for (key, list) in &self.writes {
            let keyspace = self.planted.lists.keyspace(*key);
            transaction.insert(keyspace, name(*key), encode(list))?;
        }
        transaction.commit()
    }

    /// Commits the first key, and the others one by one.
    fn commit_by_key(mut self) -> Result<()> {
        let rest = match self.writes.keys().nth(1) {
            Some(second) => {
                let second = *second;
                self.writes.split_off(&second)
            }
            None => BTreeMap::new(),
        };
        let planted = self.planted;
        self.commit_checked()?;
        rest.iter().try_for_each(|write| {
            thread::yield_now();
            planted.write([write])
        })
    }

    /// Commits if what is written is as it was read.
    fn commit_what_is_written(self) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let mut commits = self.planted.commits.lock();
        for key in self.writes.keys() {
            let is_still = match &self.source {
                Source::Moment(_, moment) => {
                    commits.of_key.get(key).is_none_or(|last| last <= moment)
                }
                _ => self.reads.get(key) == Some(&self.planted.plain(*key)?),
            };
            if !is_still {
                return Err(conflict());
            }
        }
        self.planted.write(&self.writes)?;
        commits.count += 1;
        let count = commits.count;
        commits.of_key.extend(self.writes.keys().map(|key| (*key, count)));
        Ok(())
    }
}
