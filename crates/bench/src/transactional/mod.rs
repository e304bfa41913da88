//! Interface of an engine that is measured by transactions: [`TransactionalDriver`] opens it,
//! [`TransactionalStore`] is the open engine, [`TransactionalSession`] is one client thread, and
//! [`Access`] is what the body of one transaction sees.
//!
//! ```text
//!  driver.open(config, ["warehouse", "district", ...]) -> store        tables are numbers: places in that list
//!      store.load(table, sorted records)                               into an empty table
//!      store.session() -> session                                      one per thread
//!          session.transact(Kind::Write, &mut |access| {
//!              access.get(table, key, &mut value)?;                     own writes are seen
//!              access.put(table, key, value)?;
//!              Ok(Verdict::Commit)                                      or Rollback
//!          }) -> Ended { verdict, retries }
//! ```
//!
//! [`workload`] is what is run, [`threads`] runs it, [`plan`], [`row`] and [`parent`] are for
//! processes: each engine runs in one of its own.
//!
//! **Rules for a driver**
//! 1. Transactions of kind `Write` are as isolated as the engine can make them. What is left
//!    unprotected is said by [`TransactionalDriver::unprotected`], and stands in the table.
//! 2. After a conflict the session runs the body again, in the manner that the engine's own
//!    documentation advises, and counts it in [`Ended::retries`]. A caller never sees a conflict.
//! 3. When `transact` has returned `Commit`, the writes survive what the durability says.
//! 4. An error of the body ends the transaction without its writes, unless the run met a conflict.

pub mod child;
pub mod heap;
pub mod own;
pub mod parent;
pub mod plan;
pub mod row;
pub mod threads;
pub mod workload;

mod table;

use std::ops::ControlFlow;

use spinney_base::Result;
pub use spinney_heap::Chains;

use crate::driver::{Counters, Knobs, OpenConfig, Terms};

/// Records in one transaction of the default [`TransactionalStore::load`]. More would need memory
/// that some engines do not have, fewer would pay for each commit.
const LOAD_BATCH: usize = 500;

/// What a transaction does, which decides how an engine runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads and writes.
    Write,
    /// A few reads of one moment. A body that writes is a mistake of the caller.
    Read,
    /// Reads of much of the database, all of one moment. A body that writes is a mistake.
    Report,
}

/// What the body of a transaction decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The writes are to happen.
    Commit,
    /// They are not.
    Rollback,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What the last run of the body decided.
    pub verdict: Verdict,
    /// How many times the body was run again.
    pub retries: u64,
}

/// The body of a transaction. It may run more than once, and sets what it leaves to its caller
/// afresh in each run.
pub type Body<'a> = dyn FnMut(&mut dyn Access) -> Result<Verdict> + 'a;

/// Receives records of a range in order, and says whether it needs more.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A range to read.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The table.
    pub table: usize,
    /// The lowest key.
    pub from: &'a [u8],
    /// The key above the highest; `None` for no bound.
    pub to: Option<&'a [u8]>,
    /// From the highest key downwards.
    pub reverse: bool,
    /// Most records that are shown.
    pub limit: usize,
}

/// A kind of engine.
pub trait TransactionalDriver: Send + Sync {
    /// The bare name, as `--engines` takes it.
    fn name(&self) -> &'static str;

    /// Whether it is somebody else's engine, which ours are compared with.
    fn is_peer(&self) -> bool;

    /// Whether it is a store of this program that ours are compared with, and that is run only where
    /// it is named. By default it is none.
    fn is_baseline(&self) -> bool {
        false
    }

    /// What its transactions do not protect against, in one sentence that follows its name:
    /// "protects keys that were read, not ranges".
    fn unprotected(&self) -> &'static str;

    /// Checks engine options before anything runs.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that the engine does not have or a value out of range.
    fn check_knobs(&self, knobs: &Knobs) -> Result<()>;

    /// Opens it in a directory that exists, which is empty or holds what an earlier opening with
    /// the same tables left. [`OpenConfig::keyspaces`] is the number of tables.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>>;
}

/// An open engine. Shared by all client threads.
pub trait TransactionalStore: Send + Sync {
    /// A handle for one client thread.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn session(&self) -> Result<Box<dyn TransactionalSession>>;

    /// Puts records in ascending order of their keys into an empty table, and returns how many
    /// there were. By default in transactions of a few hundred.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn load(
        &self,
        table: usize,
        records: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<u64> {
        let mut session = self.session()?;
        let mut count = 0;
        loop {
            let batch: Vec<_> = records.take(LOAD_BATCH).collect();
            if batch.is_empty() {
                return Ok(count);
            }
            session.transact(Kind::Write, &mut |access| {
                batch.iter().try_for_each(|(key, value)| access.put(table, key, value))?;
                Ok(Verdict::Commit)
            })?;
            count += batch.len() as u64;
        }
    }

    /// Brings everything that was acknowledged to stable storage.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn flush(&self) -> Result<()>;

    /// Counters since the engine was opened. By default it counts nothing.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn counters(&self) -> Result<Counters> {
        Ok(Counters::default())
    }

    /// Counts the versions of the records of a table. By default an engine cannot tell.
    fn chains(&self, _table: usize) -> Option<Chains> {
        None
    }

    /// What the engine really does, where that differs from what was asked for.
    fn terms(&self) -> Terms;

    /// Closes the engine in order. By default it is dropped.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// One client thread of an open engine.
pub trait TransactionalSession: Send {
    /// Runs a transaction to its end, again after conflicts.
    ///
    /// # Errors
    /// The body's, or whatever the engine says.
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended>;
}

/// What the body of a transaction reads and writes.
pub trait Access {
    /// Reads the value of `key` into `value`, which is cleared first; whether it was there.
    ///
    /// # Errors
    /// Whatever the engine says, a conflict among it.
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Writes a record, whether its key is there or not.
    ///
    /// # Errors
    /// Whatever the engine says, a conflict among it.
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a record.
    ///
    /// # Errors
    /// Whatever the engine says, a conflict among it.
    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()>;

    /// Shows the records of a range in order until the visitor breaks off.
    ///
    /// # Errors
    /// Whatever the engine says, a conflict among it.
    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()>;
}
