//! redb: copy-on-write B-trees under a cache of its own and the page cache, which a control group
//! limits together where one can be made.
//!
//! Every write is a transaction of its own, as for the other engines. What is not to survive a
//! power failure is committed with its durability `None`: redb has nothing between that and a sync
//! at each commit, so `buffered` promises less here than elsewhere.

use std::sync::Arc;

use redb::{Builder, Database, ReadableDatabase, TableDefinition};
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Driver, Knobs, OpenConfig, Session, Store, Terms, prefix_end};
use spinney_bench::plan::Durability;

use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::refuse_knobs;

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// redb.
#[derive(Clone, Copy, Debug)]
pub struct Redb;

struct RedbStore {
    db: Arc<Database>,
    durability: Durability,
    limit: Limited,
}

struct RedbSession {
    db: Arc<Database>,
    durability: redb::Durability,
}

pub(crate) fn failed(error: impl Into<redb::Error>) -> Error {
    let error = error.into();
    let kind = match &error {
        redb::Error::Corrupted(_) => ErrorKind::Corruption,
        redb::Error::ValueTooLarge(_) => ErrorKind::InvalidArgument,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("redb: {error}"))
}

pub(crate) fn kept(durability: Durability) -> redb::Durability {
    match durability {
        Durability::Sync => redb::Durability::Immediate,
        Durability::Buffered | Durability::None => redb::Durability::None,
    }
}

/// Runs a transaction that writes.
fn write(
    db: &Database,
    durability: redb::Durability,
    body: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<()>,
) -> Result<()> {
    let mut transaction = db.begin_write().map_err(failed)?;
    transaction.set_durability(durability).map_err(failed)?;
    body(&mut transaction.open_table(RECORDS).map_err(failed)?)?;
    transaction.commit().map_err(failed)
}

impl Driver for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("redb", knobs, &[MEMORY_LIMIT])
    }

    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>> {
        let limit = Limited::enter("redb", config)?;
        // The rest is for the page cache and what it allocates beside its own.
        let cache = usize::try_from(config.memory / 4 * 3).unwrap_or(usize::MAX);
        let path = config.directory.join("records.redb");
        let db = Builder::new().set_cache_size(cache).create(path).map_err(failed)?;
        write(&db, redb::Durability::Immediate, |_| Ok(()))?;
        Ok(Box::new(RedbStore { db: Arc::new(db), durability: config.durability, limit }))
    }
}

impl Store for RedbStore {
    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(RedbSession { db: self.db.clone(), durability: kept(self.durability) }))
    }

    fn flush(&self) -> Result<()> {
        write(&self.db, redb::Durability::Immediate, |_| Ok(()))
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: "redb crate 4".to_owned(),
            torn_writes: "copy-on-write".to_owned(),
            memory_limited,
            notes: vec!["buffered and none are its durability None".to_owned(), memory],
        }
    }
}

impl Session for RedbSession {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let transaction = self.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(RECORDS).map_err(failed)?;
        let found = table.get(key).map_err(failed)?;
        if let Some(found) = &found {
            value.extend_from_slice(found.value());
        }
        Ok(found.is_some())
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        write(&self.db, self.durability, |table| {
            table.insert(key, value).map(|_| ()).map_err(failed)
        })
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        write(&self.db, self.durability, |table| table.remove(key).map(|_| ()).map_err(failed))
    }

    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let transaction = self.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(RECORDS).map_err(failed)?;
        for record in table.range(start..).map_err(failed)?.take(limit) {
            let (key, value) = record.map_err(failed)?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let transaction = self.db.begin_read().map_err(failed)?;
        let table = transaction.open_table(RECORDS).map_err(failed)?;
        let end = prefix_end(prefix);
        let records = match &end {
            Some(end) => table.range(prefix..&end[..]),
            None => table.range(prefix..),
        };
        for record in records.map_err(failed)?.take(limit) {
            let (key, value) = record.map_err(failed)?;
            visit(key.value(), value.value());
        }
        Ok(())
    }
}
