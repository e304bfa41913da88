//! RocksDB's optimistic transactions: a column family for each table, a snapshot at the beginning, from which all is read,
//! and `get_for_update` for what is read, so that the commit fails when it has changed since.

use std::ops::ControlFlow;
use std::sync::Arc;

use rocksdb::statistics::Ticker;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, Direction, IteratorMode, OptimisticTransactionDB,
    OptimisticTransactionOptions, Options, ReadOptions, SnapshotWithThreadMode, Transaction,
    WriteOptions,
};
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Counters, Knobs, OpenConfig, Terms};
use spinney_bench::plan::Durability;
use spinney_bench::transactional::{
    Access, Body, Ended, Kind, Scan, TransactionalDriver, TransactionalSession, TransactionalStore,
    Verdict, Visitor,
};

use super::common::{check_durability, conflict, only_reads};
use crate::refuse_knobs;
use crate::rocks::{failed, options};

/// RocksDB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rocks;

struct RocksStore {
    db: Arc<OptimisticTransactionDB>,
    options: Options,
    names: Arc<[String]>,
    durability: Durability,
}

struct RocksSession {
    db: Arc<OptimisticTransactionDB>,
    names: Arc<[String]>,
    write: WriteOptions,
}

fn refused(error: &rocksdb::Error) -> Error {
    match error.kind() {
        rocksdb::ErrorKind::Busy | rocksdb::ErrorKind::TryAgain => conflict(),
        _ => failed(error),
    }
}

impl TransactionalDriver for Rocks {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn unprotected(&self) -> &'static str {
        "is snapshot isolation with the keys that were read protected, and not ranges: phantoms are not found"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("rocksdb", knobs, &[])
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        check_durability(config.durability)?;
        let mut options = options(config);
        options.create_missing_column_families(true);
        let families =
            tables.iter().map(|name| ColumnFamilyDescriptor::new(*name, options.clone()));
        let db =
            OptimisticTransactionDB::open_cf_descriptors(&options, &config.directory, families)
                .map_err(|error| failed(&error))?;
        Ok(Box::new(RocksStore {
            db: Arc::new(db),
            options,
            names: tables.iter().map(|name| (*name).to_owned()).collect(),
            durability: config.durability,
        }))
    }
}

impl TransactionalStore for RocksStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        let mut write = WriteOptions::default();
        write.set_sync(self.durability == Durability::Sync);
        let (db, names) = (self.db.clone(), self.names.clone());
        Ok(Box::new(RocksSession { db, names, write }))
    }

    fn flush(&self) -> Result<()> {
        self.db.flush_wal(true).map_err(|error| failed(&error))
    }

    fn counters(&self) -> Result<Counters> {
        if self.durability != Durability::Sync {
            return Ok(Counters::default());
        }
        let own = self.options.get_ticker_count(Ticker::WriteDoneBySelf);
        let others = self.options.get_ticker_count(Ticker::WriteDoneByOther);
        let log_flushes = Some(self.options.get_ticker_count(Ticker::WalFileSynced));
        Ok(Counters { commits: Some(own + others), log_flushes, ..Counters::default() })
    }

    fn terms(&self) -> Terms {
        Terms {
            version: "rocksdb crate 0.25".to_owned(),
            torn_writes: "log-structured".to_owned(),
            memory_limited: true,
            notes: vec!["optimistic transactions, get_for_update on what is read".to_owned()],
        }
    }
}

impl RocksSession {
    fn families(&self) -> Result<Vec<&ColumnFamily>> {
        let missing = |name: &String| {
            Error::new(ErrorKind::NotFound, format!("rocksdb: no column family {name}"))
        };
        let families = self.names.iter();
        families.map(|name| self.db.cf_handle(name).ok_or_else(|| missing(name))).collect()
    }

    fn read(&self, body: &mut Body<'_>) -> Result<Verdict> {
        body(&mut Then { snapshot: self.db.snapshot(), families: self.families()? })
    }

    fn run(&self, body: &mut Body<'_>) -> Result<Verdict> {
        let families = self.families()?;
        let mut options = OptimisticTransactionOptions::default();
        // A key that was written is then protected from the beginning on, not from its first use.
        options.set_snapshot(true);
        let transaction = self.db.transaction_opt(&self.write, &options);
        let verdict = {
            let snapshot = transaction.snapshot();
            body(&mut Inside { transaction: &transaction, snapshot: &snapshot, families })?
        };
        match verdict {
            Verdict::Commit => transaction.commit().map_err(|error| refused(&error))?,
            Verdict::Rollback => transaction.rollback().map_err(|error| failed(&error))?,
        }
        Ok(verdict)
    }
}

impl TransactionalSession for RocksSession {
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended> {
        let mut retries = 0;
        loop {
            let ended = if kind == Kind::Write { self.run(body) } else { self.read(body) };
            match ended {
                Ok(verdict) => return Ok(Ended { verdict, retries }),
                Err(error) if error.kind() == ErrorKind::Conflict => retries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Where an iterator begins and where it may end.
fn mode<'a>(scan: &Scan<'a>, read: &mut ReadOptions) -> IteratorMode<'a> {
    read.set_iterate_lower_bound(scan.from);
    if let Some(to) = scan.to {
        read.set_iterate_upper_bound(to);
    }
    match scan.reverse {
        true => IteratorMode::End,
        false => IteratorMode::From(scan.from, Direction::Forward),
    }
}

type Record = std::result::Result<(Box<[u8]>, Box<[u8]>), rocksdb::Error>;

fn show(
    records: impl Iterator<Item = Record>,
    limit: usize,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    for record in records.take(limit) {
        let (key, value) = record.map_err(|error| refused(&error))?;
        if visit(&key, &value) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

/// A snapshot.
struct Then<'a> {
    snapshot: SnapshotWithThreadMode<'a, OptimisticTransactionDB>,
    families: Vec<&'a ColumnFamily>,
}

impl Access for Then<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.snapshot.get_pinned_cf(self.families[table], key);
        let found = found.map_err(|error| failed(&error))?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        Err(only_reads())
    }

    fn remove(&mut self, _: usize, _: &[u8]) -> Result<()> {
        Err(only_reads())
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut read = ReadOptions::default();
        let mode = mode(&scan, &mut read);
        let records = self.snapshot.iterator_cf_opt(self.families[scan.table], read, mode);
        show(records, scan.limit, visit)
    }
}

/// A transaction.
struct Inside<'a> {
    transaction: &'a Transaction<'a, OptimisticTransactionDB>,
    snapshot: &'a SnapshotWithThreadMode<'a, Transaction<'a, OptimisticTransactionDB>>,
    families: Vec<&'a ColumnFamily>,
}

impl Access for Inside<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut read = ReadOptions::default();
        read.set_snapshot(self.snapshot);
        let family = self.families[table];
        let found = self.transaction.get_pinned_for_update_cf_opt(&family, key, true, &read);
        let found = found.map_err(|error| refused(&error))?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let put = self.transaction.put_cf(&self.families[table], key, value);
        put.map_err(|error| refused(&error))
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        let removed = self.transaction.delete_cf(&self.families[table], key);
        removed.map_err(|error| refused(&error))
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut read = ReadOptions::default();
        let mode = mode(&scan, &mut read);
        let records = self.snapshot.iterator_cf_opt(&self.families[scan.table], read, mode);
        show(records, scan.limit, visit)
    }
}
