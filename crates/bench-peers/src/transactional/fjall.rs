//! fjall's optimistic transactions: conflicts among keys and ranges are found at the commit, under one lock of the
//! database. Each table has memtables of an eighth of the memory, at most 64 MiB.

use std::ops::ControlFlow;

use fjall::{
    OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx, PersistMode, Readable, Snapshot,
};
use spinney_base::{ErrorKind, Result};
use spinney_bench::driver::{Knobs, OpenConfig, Terms};
use spinney_bench::plan::Durability;
use spinney_bench::transactional::{
    Access, Body, Ended, Kind, Scan, TransactionalDriver, TransactionalSession, TransactionalStore,
    Verdict, Visitor,
};

use super::common::{bounds, check_durability, conflict, only_reads};
use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::fjall::{MEMTABLE_BYTES_MAX, failed, keyspace_options};
use crate::refuse_knobs;

/// fjall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fjall;

struct FjallStore {
    session: FjallSession,
    limit: Limited,
}

#[derive(Clone)]
struct FjallSession {
    db: OptimisticTxDatabase,
    tables: Vec<OptimisticTxKeyspace>,
    mode: PersistMode,
}

impl TransactionalDriver for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn unprotected(&self) -> &'static str {
        "is serializable, ranges included"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("fjall", knobs, &[MEMORY_LIMIT])
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        check_durability(config.durability)?;
        let limit = Limited::enter("fjall", config)?;
        let memtable = (config.memory / 8).min(MEMTABLE_BYTES_MAX);
        let db = OptimisticTxDatabase::builder(&config.directory)
            .cache_size(config.memory / 2)
            .open()
            .map_err(failed)?;
        let options = || keyspace_options(memtable);
        let tables = tables.iter().map(|name| db.keyspace(name, options).map_err(failed));
        let tables = tables.collect::<Result<_>>()?;
        let mode = match config.durability {
            Durability::Sync => PersistMode::SyncData,
            Durability::Buffered | Durability::None => PersistMode::Buffer,
        };
        Ok(Box::new(FjallStore { session: FjallSession { db, tables, mode }, limit }))
    }
}

impl TransactionalStore for FjallStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        Ok(Box::new(self.session.clone()))
    }

    fn flush(&self) -> Result<()> {
        self.session.db.persist(PersistMode::SyncAll).map_err(failed)
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: "fjall crate 3".to_owned(),
            torn_writes: "log-structured".to_owned(),
            memory_limited,
            notes: vec![memory],
        }
    }
}

impl TransactionalSession for FjallSession {
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended> {
        if kind != Kind::Write {
            let mut then = Then { snapshot: self.db.read_tx(), tables: &self.tables };
            return Ok(Ended { verdict: body(&mut then)?, retries: 0 });
        }
        let mut retries = 0;
        loop {
            match self.write(body) {
                Ok(verdict) => return Ok(Ended { verdict, retries }),
                Err(error) if error.kind() == ErrorKind::Conflict => retries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

impl FjallSession {
    fn write(&self, body: &mut Body<'_>) -> Result<Verdict> {
        let transaction = self.db.write_tx().map_err(failed)?.durability(Some(self.mode));
        let mut inside = Inside { transaction, tables: &self.tables };
        let verdict = body(&mut inside)?;
        match verdict {
            Verdict::Commit => {
                inside.transaction.commit().map_err(failed)?.map_err(|_| conflict())?;
            }
            Verdict::Rollback => inside.transaction.rollback(),
        }
        Ok(verdict)
    }
}

fn get(
    reader: &impl Readable,
    table: &OptimisticTxKeyspace,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool> {
    value.clear();
    let found = reader.get(table, key).map_err(failed)?;
    if let Some(found) = &found {
        value.extend_from_slice(found);
    }
    Ok(found.is_some())
}

fn scan_table(
    reader: &impl Readable,
    table: &OptimisticTxKeyspace,
    scan: &Scan<'_>,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    let mut records = reader.range::<&[u8], _>(table, bounds(scan));
    for _ in 0..scan.limit {
        let record = if scan.reverse { records.next_back() } else { records.next() };
        let Some(record) = record else { break };
        let (key, value) = record.into_inner().map_err(failed)?;
        if visit(&key, &value) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

/// A snapshot.
struct Then<'a> {
    snapshot: Snapshot,
    tables: &'a [OptimisticTxKeyspace],
}

impl Access for Then<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(&self.snapshot, &self.tables[table], key, value)
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        Err(only_reads())
    }

    fn remove(&mut self, _: usize, _: &[u8]) -> Result<()> {
        Err(only_reads())
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan_table(&self.snapshot, &self.tables[scan.table], &scan, visit)
    }
}

/// A transaction.
struct Inside<'a> {
    transaction: OptimisticWriteTx,
    tables: &'a [OptimisticTxKeyspace],
}

impl Access for Inside<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(&self.transaction, &self.tables[table], key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.insert(&self.tables[table], key, value);
        Ok(())
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.transaction.remove(&self.tables[table], key);
        Ok(())
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan_table(&self.transaction, &self.tables[scan.table], &scan, visit)
    }
}
