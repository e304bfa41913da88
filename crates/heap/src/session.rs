//! Sessions: what one thread keeps between transactions, and the runs of a transaction until it
//! commits.

use std::collections::VecDeque;
use std::sync::Arc;

use std::time::Duration;

use spinney_base::runtime::SplitMix;
use spinney_base::{ErrorKind, Result};
use spinney_ssn::{Stamp, Version};

use crate::collect::{Ended, Retired};
use crate::heads::BATCH;
use crate::heap::Heap;
use crate::transaction::Transaction;
use crate::undo::Pool;

/// Commits between two looks at the memory in use. With more, a session may take more than there is.
pub(crate) const MEMORY_EVERY: u64 = 256;

/// Mean rest before the second run of a transaction; it doubles up to [`REST_MAX`]. Both are those
/// of `Db::transact`, so that conflicts cost the same.
const REST_MIN: Duration = Duration::from_micros(5);
const REST_MAX: Duration = Duration::from_millis(5);

/// How a transaction ended that was run again after conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Whether it was committed; else its body ended it.
    pub is_committed: bool,
    /// Runs that ended by a conflict.
    pub retries: u64,
}

/// What transactions of a session use one after the other.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) pool: Pool,
    /// Entries of each table that the session took: the next one, and the one behind the last.
    cursors: Vec<(u32, u32)>,
    /// Entries of each table that were used before.
    pub(crate) free: Vec<Vec<u32>>,
    /// Versions that ended, first ones first.
    pub(crate) ended: VecDeque<Ended>,
    /// Entries that left the index.
    pub(crate) retired: VecDeque<Retired>,
    /// The horizon when it was last looked at.
    pub(crate) horizon: Stamp,
    pub(crate) commits: u64,
    /// New values of the transaction.
    pub(crate) values: Vec<u8>,
    /// Its record of the log.
    pub(crate) record: Vec<u8>,
    /// Buffers of scans.
    pub(crate) keys: Vec<u8>,
    pub(crate) found: Vec<(usize, u32)>,
    pub(crate) row: Vec<u8>,
    /// Values of a row that differ.
    pub(crate) changed: Vec<u8>,
}

impl Local {
    fn new(tables: usize) -> Local {
        Local {
            pool: Pool::new(),
            cursors: vec![(0, 0); tables],
            free: vec![Vec::new(); tables],
            ended: VecDeque::new(),
            retired: VecDeque::new(),
            horizon: 0,
            commits: 0,
            values: Vec::new(),
            record: Vec::new(),
            keys: Vec::new(),
            found: Vec::new(),
            row: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Makes an entry that nothing leads to yet.
    pub(crate) fn new_record(
        &mut self,
        heap: &Heap,
        table: usize,
        key: &[u8],
        version: Version,
    ) -> Result<u32> {
        let store = heap.tables[table].store();
        let free = &mut self.free[table];
        if free.is_empty() {
            store.heads.reuse(free);
        }
        let record = if let Some(record) = free.pop() {
            record
        } else {
            let (next, end) = &mut self.cursors[table];
            if next == end {
                heap.check_memory()?;
                (*next, *end) = store.heads.take();
                store.tiles.reach(*end - 1);
            }
            *next += 1;
            *next - 1
        };
        // A record lies where its number says.
        store.tiles.store_key(record as usize, key);
        store.head(record).begin(version, key, record);
        Ok(record)
    }
}

/// A handle for one thread, which runs one transaction at a time.
#[derive(Debug)]
pub struct Session {
    heap: Arc<Heap>,
    pub(crate) local: Local,
}

impl Session {
    pub(crate) fn new(heap: Arc<Heap>) -> Session {
        let local = Local::new(heap.tables.len());
        Session { heap, local }
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// `Conflict` when too many run.
    pub fn begin(&mut self) -> Result<Transaction<'_>> {
        Transaction::begin(&self.heap, &mut self.local)
    }

    /// Runs `body` in a transaction, and again after conflicts. It answers whether to commit.
    ///
    /// # Errors
    /// The body's, but conflicts; or as [`Transaction::commit`].
    pub fn transact(
        &mut self,
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<bool>,
    ) -> Result<Ran> {
        let mut rest = REST_MIN;
        for retries in 0.. {
            let mut transaction = self.begin()?;
            let seed = transaction.begin_stamp();
            let ended = match body(&mut transaction) {
                Ok(false) => return Ok(Ran { is_committed: false, retries }),
                Ok(true) => transaction.commit(),
                Err(error) => {
                    drop(transaction);
                    Err(error)
                }
            };
            match ended {
                Ok(_) => return Ok(Ran { is_committed: true, retries }),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            let part = SplitMix(seed ^ std::ptr::from_ref(self).addr() as u64).next_u64() % 1024;
            self.heap.runtime.sleep(rest * u32::try_from(part).unwrap_or(0) / 512);
            rest = (rest * 2).min(REST_MAX);
        }
        unreachable!("it runs until it ends")
    }

    /// Collects what nobody sees any more. Commits do so, too.
    pub fn collect(&mut self) {
        self.local.collect(&self.heap, usize::MAX);
    }

    /// Returns the heap.
    #[must_use]
    pub fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.local.collect(&self.heap, usize::MAX);
        self.heap.undo.empty(&mut self.local.pool);
        for (table, free) in self.heap.tables.iter().zip(&mut self.local.free) {
            table.store().heads.give(free.drain(..));
        }
        for (table, (next, end)) in self.heap.tables.iter().zip(&self.local.cursors) {
            debug_assert!(end - next <= BATCH);
            table.store().heads.give(*next..*end);
        }
        let retired = self.local.retired.drain(..).map(Ended::from);
        self.heap.left.lock().extend(self.local.ended.drain(..).chain(retired));
    }
}
