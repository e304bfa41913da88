//! canopydb: copy-on-write B-trees under a log. Its transactions write one at a time and are serializable, or, with
//! `--canopydb.concurrent on`, side by side under snapshot isolation, where two that wrote to one page are a conflict.
//!
//! Half of the memory is its page cache; what was committed since its last checkpoint takes up to a quarter, at which
//! writers are slowed down, and a checkpoint begins at half of that.

use std::ops::ControlFlow;
use std::sync::Arc;

use canopydb::{Database, DbOptions, EnvOptions, Transaction, Tree};
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Knobs, OpenConfig, Terms};
use spinney_bench::plan::Durability;
use spinney_bench::transactional::{
    Access, Body, Ended, Kind, Scan, TransactionalDriver, TransactionalSession, TransactionalStore,
    Verdict, Visitor,
};

use super::common::{bounds, check_durability, conflict, only_reads};
use crate::refuse_knobs;

/// The option that lets transactions write side by side.
const CONCURRENT: &str = "concurrent";

/// canopydb.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canopy;

/// The open database, and a session of it.
#[derive(Clone)]
struct CanopyStore {
    db: Arc<Database>,
    names: Vec<String>,
    syncs: bool,
    is_concurrent: bool,
}

fn failed(error: canopydb::Error) -> Error {
    match error {
        canopydb::Error::WriteConflict => conflict(),
        error => Error::new(ErrorKind::Io, format!("canopydb: {error}")),
    }
}

impl TransactionalDriver for Canopy {
    fn name(&self) -> &'static str {
        "canopydb"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn unprotected(&self) -> &'static str {
        "is serializable, with one writer at a time; with canopydb.concurrent on it is snapshot isolation, so write skew is not found"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("canopydb", knobs, &[CONCURRENT])
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        check_durability(config.durability)?;
        let bytes = |share: u64| usize::try_from(config.memory / share).unwrap_or(usize::MAX);
        let mut environment = EnvOptions::new(&config.directory);
        environment.page_cache_size = bytes(2);
        let mut options = DbOptions::new();
        options.checkpoint_target_size = bytes(8);
        (options.throttle_memory_limit, options.stall_memory_limit) = (bytes(4), bytes(4));
        let db = Database::with_options(environment, options).map_err(failed)?;
        let transaction = db.begin_write().map_err(failed)?;
        for name in tables {
            transaction.get_or_create_tree(name.as_bytes()).map(drop).map_err(failed)?;
        }
        transaction.commit_with(true).map_err(failed)?;
        Ok(Box::new(CanopyStore {
            db: Arc::new(db),
            names: tables.iter().map(|name| (*name).to_owned()).collect(),
            syncs: config.durability == Durability::Sync,
            is_concurrent: config.knobs.get(CONCURRENT).is_some_and(|value| value == "on"),
        }))
    }
}

impl TransactionalStore for CanopyStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        Ok(Box::new(self.clone()))
    }

    fn flush(&self) -> Result<()> {
        self.db.sync().map_err(failed)
    }

    fn terms(&self) -> Terms {
        let mode = match self.is_concurrent {
            true => "writers side by side under snapshot isolation",
            false => "one writer at a time",
        };
        Terms {
            version: "canopydb crate 0.2".to_owned(),
            torn_writes: "copy-on-write".to_owned(),
            memory_limited: true,
            notes: vec![mode.to_owned()],
        }
    }
}

impl TransactionalSession for CanopyStore {
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended> {
        if kind != Kind::Write {
            let transaction = self.db.begin_read().map_err(failed)?;
            let verdict = body(&mut Inside::new(&transaction, &self.names, false))?;
            return Ok(Ended { verdict, retries: 0 });
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

impl CanopyStore {
    fn write(&self, body: &mut Body<'_>) -> Result<Verdict> {
        let transaction = self.db.begin_write_with(self.is_concurrent).map_err(failed)?;
        let verdict = body(&mut Inside::new(&transaction, &self.names, true))?;
        match verdict {
            Verdict::Commit => transaction.commit_with(self.syncs).map(drop).map_err(failed)?,
            Verdict::Rollback => transaction.rollback().map_err(failed)?,
        }
        Ok(verdict)
    }
}

/// A transaction, with the trees that it has opened.
struct Inside<'a> {
    transaction: &'a Transaction,
    names: &'a [String],
    trees: Vec<Option<Tree<'a>>>,
    writes: bool,
}

impl<'a> Inside<'a> {
    fn new(transaction: &'a Transaction, names: &'a [String], writes: bool) -> Self {
        Inside { transaction, names, trees: names.iter().map(|_| None).collect(), writes }
    }

    fn tree(&mut self, number: usize) -> Result<&mut Tree<'a>> {
        let slot = &mut self.trees[number];
        if slot.is_none() {
            *slot = self.transaction.get_tree(self.names[number].as_bytes()).map_err(failed)?;
        }
        let name = &self.names[number];
        slot.as_mut().ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no tree {name}")))
    }

    fn check_writes(&self) -> Result<()> {
        if self.writes { Ok(()) } else { Err(only_reads()) }
    }
}

impl Access for Inside<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tree(table)?.get(key).map_err(failed)?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_writes()?;
        self.tree(table)?.insert(key, value).map_err(failed)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.check_writes()?;
        self.tree(table)?.delete(key).map(drop).map_err(failed)
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let tree = self.tree(scan.table)?;
        let mut records = tree.range::<&[u8]>(bounds(&scan)).map_err(failed)?;
        for _ in 0..scan.limit {
            let record = if scan.reverse { records.next_back() } else { records.next() };
            let Some(record) = record else { break };
            let (key, value) = record.map_err(failed)?;
            if visit(&key, &value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}
