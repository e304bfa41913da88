//! redb: one transaction writes at a time, any number reads beside it.

use std::ops::ControlFlow;
use std::sync::Arc;

use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};
use spinney_base::Result;
use spinney_bench::driver::{Knobs, OpenConfig, Terms};
use spinney_bench::transactional::{
    Access, Body, Ended, Kind, Scan, TransactionalDriver, TransactionalSession, TransactionalStore,
    Verdict, Visitor,
};

use super::common::{bounds, check_durability, only_reads};
use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::redb::{failed, kept};
use crate::refuse_knobs;

/// redb.
#[derive(Clone, Copy, Debug)]
pub(super) struct Redb;

struct RedbStore {
    db: Arc<Database>,
    names: Arc<[String]>,
    durability: redb::Durability,
    limit: Limited,
}

struct RedbSession {
    db: Arc<Database>,
    names: Arc<[String]>,
    durability: redb::Durability,
}

fn definition(name: &str) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

impl TransactionalDriver for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn unprotected(&self) -> &'static str {
        "is serializable, with one writer at a time; buffered is its durability None, which a crash of the process loses, too"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("redb", knobs, &[MEMORY_LIMIT])
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        check_durability(config.durability)?;
        let limit = Limited::enter("redb", config)?;
        // The rest is for the page cache and what it allocates beside its own.
        let cache = usize::try_from(config.memory / 4 * 3).unwrap_or(usize::MAX);
        let path = config.directory.join("tables.redb");
        let db = Builder::new().set_cache_size(cache).create(path).map_err(failed)?;
        let transaction = db.begin_write().map_err(failed)?;
        for name in tables {
            transaction.open_table(definition(name)).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        let names = tables.iter().map(|name| (*name).to_owned()).collect();
        let durability = kept(config.durability);
        Ok(Box::new(RedbStore { db: Arc::new(db), names, durability, limit }))
    }
}

impl TransactionalStore for RedbStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        let (db, names) = (self.db.clone(), self.names.clone());
        Ok(Box::new(RedbSession { db, names, durability: self.durability }))
    }

    fn flush(&self) -> Result<()> {
        self.db.begin_write().map_err(failed)?.commit().map_err(failed)
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: "redb crate 4".to_owned(),
            torn_writes: "copy-on-write".to_owned(),
            memory_limited,
            notes: vec!["buffered is its durability None".to_owned(), memory],
        }
    }
}

impl TransactionalSession for RedbSession {
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended> {
        let names = &self.names[..];
        if kind != Kind::Write {
            let transaction = self.db.begin_read().map_err(failed)?;
            let tables = names.iter().map(|_| None).collect();
            let verdict = body(&mut Reading { transaction: &transaction, names, tables })?;
            return Ok(Ended { verdict, retries: 0 });
        }
        let mut transaction = self.db.begin_write().map_err(failed)?;
        transaction.set_durability(self.durability).map_err(failed)?;
        let tables = names.iter().map(|_| None).collect();
        let verdict = body(&mut Writing { transaction: &transaction, names, tables })?;
        match verdict {
            Verdict::Commit => transaction.commit().map_err(failed)?,
            Verdict::Rollback => transaction.abort().map_err(failed)?,
        }
        Ok(Ended { verdict, retries: 0 })
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool> {
    value.clear();
    let found = table.get(key).map_err(failed)?;
    if let Some(found) = &found {
        value.extend_from_slice(found.value());
    }
    Ok(found.is_some())
}

fn scan_table(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    scan: &Scan<'_>,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    let mut records = table.range::<&[u8]>(bounds(scan)).map_err(failed)?;
    for _ in 0..scan.limit {
        let record = if scan.reverse { records.next_back() } else { records.next() };
        let Some(record) = record else { break };
        let (key, value) = record.map_err(failed)?;
        if visit(key.value(), value.value()) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

/// A transaction that reads, with the tables that it has opened.
struct Reading<'a> {
    transaction: &'a ReadTransaction,
    names: &'a [String],
    tables: Vec<Option<redb::ReadOnlyTable<&'static [u8], &'static [u8]>>>,
}

impl Reading<'_> {
    fn table(
        &mut self,
        number: usize,
    ) -> Result<&redb::ReadOnlyTable<&'static [u8], &'static [u8]>> {
        let slot = &mut self.tables[number];
        Ok(match slot {
            Some(table) => table,
            None => {
                let definition = definition(&self.names[number]);
                slot.insert(self.transaction.open_table(definition).map_err(failed)?)
            }
        })
    }
}

impl Access for Reading<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.table(table)?, key, value)
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        Err(only_reads())
    }

    fn remove(&mut self, _: usize, _: &[u8]) -> Result<()> {
        Err(only_reads())
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan_table(self.table(scan.table)?, &scan, visit)
    }
}

/// The transaction that writes, with the tables that it has opened.
struct Writing<'a> {
    transaction: &'a WriteTransaction,
    names: &'a [String],
    tables: Vec<Option<redb::Table<'a, &'static [u8], &'static [u8]>>>,
}

impl<'a> Writing<'a> {
    fn table(
        &mut self,
        number: usize,
    ) -> Result<&mut redb::Table<'a, &'static [u8], &'static [u8]>> {
        let slot = &mut self.tables[number];
        Ok(match slot {
            Some(table) => table,
            None => {
                let definition = definition(&self.names[number]);
                slot.insert(self.transaction.open_table(definition).map_err(failed)?)
            }
        })
    }
}

impl Access for Writing<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        get(self.table(table)?, key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.table(table)?.insert(key, value).map(drop).map_err(failed)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.table(table)?.remove(key).map(drop).map_err(failed)
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan_table(self.table(scan.table)?, &scan, visit)
    }
}
