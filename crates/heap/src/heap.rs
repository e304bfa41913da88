//! The database: tables, one certifier, one log, and the memory of all.

use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_io::Directory;
use spinney_ssn::{Certifier, Version};
use spinney_wal::{Log, LogOptions};

use crate::collect::Ended;
use crate::heads::RecordRef;
use crate::schema::{Layout, Schema};
use crate::session::Session;
use crate::table::Table;
use crate::undo::Undo;

/// Name of the log.
const LOG: &str = "heap-wal";

/// Keys of a range that a load makes: half of what a range has when it is split, as splits leave it.
const LOADED_KEYS: usize = 32;

/// A database of tables in main memory. Thread-safe; shared in an `Arc`.
#[derive(Debug)]
pub struct Heap {
    pub(crate) tables: Vec<Table>,
    pub(crate) certifier: Certifier,
    pub(crate) undo: Undo,
    pub(crate) log: Option<Arc<Log>>,
    pub(crate) runtime: Runtime,
    /// Most bytes of memory.
    memory: u64,
    /// What sessions that are gone have left to be collected.
    pub(crate) left: Mutex<Vec<Ended>>,
    /// Whether reads are noted: always, but in a test that wants to see what is broken otherwise.
    pub(crate) is_certified: bool,
}

/// Bytes of memory, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapMemory {
    /// Tables: indexes, indirection arrays, tile groups, ranges.
    pub tables: u64,
    /// Older versions: all memory that was taken for them.
    pub versions: u64,
    /// Part of `versions` that holds some.
    pub versions_used: u64,
    /// Buffers of the log.
    pub log: u64,
}

/// Versions of the records of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chains {
    /// Records.
    pub records: u64,
    /// Records that have older versions.
    pub with_older: u64,
    /// Older versions of all.
    pub older: u64,
}

impl HeapMemory {
    /// Returns the sum.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.tables + self.versions + self.log
    }
}

impl Heap {
    /// Makes empty tables. With a directory, transactions are logged to a file in it.
    ///
    /// # Errors
    /// Those of [`Log::create`].
    pub fn new(
        layout: Layout,
        schemas: &[Schema],
        memory: u64,
        log: Option<(&dyn Directory, u64)>,
    ) -> Result<Arc<Heap>> {
        let tables = schemas.iter().map(|schema| Table::new(schema.clone(), layout)).collect();
        let create = |(directory, bytes)| Log::create(directory, LOG, &LogOptions::sized(1, bytes));
        let log = log.map(create).transpose()?;
        Ok(Arc::new(Heap {
            tables,
            certifier: Certifier::above(1),
            undo: Undo::new(),
            log,
            runtime: Runtime::threads(),
            memory,
            left: Mutex::default(),
            is_certified: true,
        }))
    }

    /// A heap whose transactions are not certified: to see whether tests find that.
    #[cfg(test)]
    pub(crate) fn uncertified(layout: Layout, schemas: &[Schema]) -> Result<Arc<Heap>> {
        let mut heap = Heap::new(layout, schemas, u64::MAX, None)?;
        Arc::get_mut(&mut heap).expect("nobody else has it").is_certified = false;
        Ok(heap)
    }

    /// Returns a handle for one thread.
    #[must_use]
    pub fn session(self: &Arc<Self>) -> Session {
        Session::new(self.clone())
    }

    /// Returns the log.
    #[must_use]
    pub fn log(&self) -> Option<&Arc<Log>> {
        self.log.as_ref()
    }

    /// Returns the bytes of memory.
    #[must_use]
    pub fn memory(&self) -> HeapMemory {
        let tables = self.tables.iter().map(Table::bytes).sum();
        let (versions, versions_used) = (self.undo.bytes(), self.undo.used_bytes());
        let log = self.log.as_ref().map_or(0, |log| log.memory_bytes());
        HeapMemory { tables, versions, versions_used, log }
    }

    /// Checks that there is memory.
    ///
    /// # Errors
    /// `Full`.
    pub(crate) fn check_memory(&self) -> Result<()> {
        let used = self.memory().bytes();
        if used <= self.memory {
            return Ok(());
        }
        let text = format!("the tables take {used} bytes of memory, and may take {}", self.memory);
        Err(Error::new(ErrorKind::Full, text))
    }

    pub(crate) fn record(&self, table: usize, record: u32) -> RecordRef<'_> {
        RecordRef { head: self.tables[table].store().head(record), undo: &self.undo }
    }

    /// Puts records into an empty table in any order, without a log. No other thread uses the table.
    /// `key` and `row` are valid until the next call.
    ///
    /// # Errors
    /// `Full`, `InvalidArgument`; the first error of `next`.
    pub fn load(
        self: &Arc<Self>,
        table: usize,
        mut next: impl FnMut(&mut Vec<u8>, &mut Vec<u8>) -> Result<bool>,
    ) -> Result<u64> {
        let (mut session, of) = (self.session(), &self.tables[table]);
        let (mut key, mut row, mut count) = (Vec::new(), Vec::new(), 0);
        loop {
            key.clear();
            row.clear();
            if !next(&mut key, &mut row)? {
                break;
            }
            of.check_key(&key)?;
            if row.len() != of.schema.bytes_of(of.schema.all()) {
                return Err(Error::invalid("a record has not the bytes of the table's columns"));
            }
            let record = session.local.new_record(self, table, &key, Version::present(0))?;
            let (store, mut rest) = (of.store(), &row[..]);
            for column in of.schema.all().iter() {
                let (value, more) = rest.split_at(of.schema.width(column));
                store.tiles.store(store.head(record).place(), column, value);
                rest = more;
            }
            of.index.upsert(&key, u64::from(record));
            store.head(record).thaw();
            count += 1;
        }
        let (mut every, mut at) = (of.every(), 0_usize);
        while let Some((key, _)) = every.next() {
            if at > 0 && at.is_multiple_of(LOADED_KEYS) {
                of.gaps.append(key);
            }
            at += 1;
        }
        Ok(count)
    }

    /// Writes everything that was logged to stable storage.
    ///
    /// # Errors
    /// Those of the log.
    pub fn flush(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        log.ensure_durable(log.last_lsn())
    }

    /// Counts the versions of a table. Beside transactions the numbers are of no one moment.
    #[must_use]
    pub fn chains(&self, table: usize) -> Chains {
        let of = &self.tables[table];
        let (mut every, mut chains) = (of.every(), Chains::default());
        while let Some((_, leaf)) = every.next() {
            let head = of.store().head(u32::try_from(leaf).unwrap_or(0));
            let older = self.undo.length(head.older());
            chains.records += 1;
            chains.with_older += u64::from(older > 0);
            chains.older += older;
        }
        chains
    }

    /// Returns how many records a table has that a transaction may find, removed ones included
    /// that were not collected yet.
    #[must_use]
    pub fn entries(&self, table: usize) -> usize {
        self.tables[table].index.len()
    }
}
