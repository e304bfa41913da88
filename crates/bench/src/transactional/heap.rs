//! Drivers for transactions on the stores that `iot` is compared with: `row`, `column` and
//! `row+column`, each with a column for each [field](crate::fields) of a record.
//!
//! A workload reads and writes whole values, so all fields of a record are read. Of those that are
//! written, the store keeps the ones that differ.
//!
//! **What they are not.** They have no recovery. Tables stay in the driver's memory between closing
//! and opening, so a check after reopening says nothing of a restart.

use std::ops::ControlFlow;
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::{Error, Result};
use spinney_heap::{Heap, Layout, Schema, Session, Transaction};
use spinney_io::{Disk, IfMissing, RealDisk};

use super::{
    Access, Body, Chains, Ended, Kind, Scan, TransactionalDriver, TransactionalSession,
    TransactionalStore, Verdict, Visitor,
};
use crate::columns::heap::LOG_BYTES;
use crate::driver::{Counters, Knobs, OpenConfig, Terms};
use crate::fields::TableFields;
use crate::plan::Durability;

/// A layout of the tables of a workload.
#[derive(Debug)]
struct HeapDriver {
    layout: Layout,
    fields: &'static [TableFields],
    /// The tables, once they were opened.
    heap: Mutex<Option<Arc<Heap>>>,
}

/// The drivers of all layouts, for the tables of a workload.
#[must_use]
pub fn drivers(fields: &'static [TableFields]) -> Vec<Box<dyn TransactionalDriver>> {
    let driver = |layout| HeapDriver { layout, fields, heap: Mutex::default() };
    let all = Layout::ALL.into_iter().map(driver);
    all.map(|driver| Box::new(driver) as Box<dyn TransactionalDriver>).collect()
}

impl TransactionalDriver for HeapDriver {
    fn name(&self) -> &'static str {
        self.layout.name()
    }

    fn is_peer(&self) -> bool {
        false
    }

    fn is_baseline(&self) -> bool {
        true
    }

    fn unprotected(&self) -> &'static str {
        "is strictly serializable, ranges included, and is not recovered: reopened is the same memory"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        match knobs.keys().next() {
            None => Ok(()),
            Some(knob) => {
                let name = self.name();
                Err(Error::invalid(format!("{name} has no options, so none named {knob:?}")))
            }
        }
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        if config.durability != Durability::Buffered {
            return Err(Error::invalid("row, column and row+column have durability buffered only"));
        }
        let mut opened = self.heap.lock();
        let heap = if let Some(heap) = &*opened {
            heap.clone()
        } else {
            let schemas = self
                .fields
                .iter()
                .take(tables.len())
                .map(|table| Schema::new(table.key, &table.widths()));
            let schemas = schemas.collect::<Result<Vec<_>>>()?;
            let directory = RealDisk::new().directory(&config.directory, IfMissing::Fail)?;
            let log = Some((&*directory, LOG_BYTES));
            opened.insert(Heap::new(self.layout, &schemas, config.memory, log)?).clone()
        };
        Ok(Box::new(HeapStore { heap, fields: self.fields }))
    }
}

struct HeapStore {
    heap: Arc<Heap>,
    fields: &'static [TableFields],
}

struct HeapSession {
    session: Session,
    fields: &'static [TableFields],
    row: Vec<u8>,
}

impl TransactionalStore for HeapStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        let (session, row) = (self.heap.session(), Vec::new());
        Ok(Box::new(HeapSession { session, fields: self.fields, row }))
    }

    fn load(
        &self,
        table: usize,
        records: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<u64> {
        let fields = self.fields[table];
        self.heap.load(table, |key, row| {
            let Some((next, value)) = records.next() else { return Ok(false) };
            key.extend_from_slice(&next);
            fields.split(&value, row)?;
            Ok(true)
        })
    }

    fn flush(&self) -> Result<()> {
        self.heap.flush()
    }

    fn counters(&self) -> Result<Counters> {
        let stats = self.heap.log().map(|log| log.stats());
        let of_log = stats.map(|stats| (Some(stats.commits), Some(stats.flushes)));
        let (commits, log_flushes) = of_log.unwrap_or_default();
        Ok(Counters { commits, log_flushes, ..Counters::default() })
    }

    fn chains(&self, table: usize) -> Option<Chains> {
        Some(self.heap.chains(table))
    }

    fn terms(&self) -> Terms {
        Terms {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            torn_writes: "none: nothing but the log is written".to_owned(),
            memory_limited: true,
            notes: vec!["no checkpoints are written, and a full log is trimmed".to_owned()],
        }
    }
}

impl TransactionalSession for HeapSession {
    fn transact(&mut self, _: Kind, body: &mut Body<'_>) -> Result<Ended> {
        let HeapSession { session, fields, row } = self;
        let ran = session.transact(|transaction| {
            let verdict = body(&mut Inside { transaction, fields, row })?;
            Ok(verdict == Verdict::Commit)
        })?;
        let verdict = if ran.is_committed { Verdict::Commit } else { Verdict::Rollback };
        Ok(Ended { verdict, retries: ran.retries })
    }
}

/// A transaction.
struct Inside<'a, 't> {
    transaction: &'a mut Transaction<'t>,
    fields: &'static [TableFields],
    row: &'a mut Vec<u8>,
}

impl Inside<'_, '_> {
    fn all(&self, table: usize) -> spinney_heap::Columns {
        spinney_heap::Columns::first(self.fields[table].fields.len())
    }
}

impl Access for Inside<'_, '_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.row.clear();
        let all = self.all(table);
        let is_there = self.transaction.get(table, key, all, self.row)?;
        if is_there {
            self.fields[table].join(self.row, value);
        }
        Ok(is_there)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.fields[table].split(value, self.row)?;
        self.transaction.put(table, key, self.row)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.transaction.remove(table, key).map(drop)
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let Scan { table, from, to, reverse, limit } = scan;
        let (columns, fields, mut value) = (self.all(table), self.fields[table], Vec::new());
        let scan = spinney_heap::Scan { table, from, to, reverse, limit, columns };
        self.transaction.scan(scan, &mut |key, row| -> ControlFlow<()> {
            fields.join(row, &mut value);
            visit(key, &value)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::TornWrites;
    use crate::smallbank::SmallBankPlan;
    use crate::tpcc::run::{Mix, TpccPlan};
    use crate::transactional::plan::WorkloadPlan;
    use crate::transactional::threads::{Round, measure};

    /// What must hold after transactions of several threads holds on each layout.
    #[test]
    fn workloads_leave_what_must_hold() {
        let tpcc = |mix| WorkloadPlan::Tpcc(TpccPlan { mix, warehouses: 2, scale: 300 });
        let bank = SmallBankPlan { accounts: 200, hot_accounts: 10, hot_share: 0.5 };
        for plan in [tpcc(Mix::Full), tpcc(Mix::Rc), WorkloadPlan::SmallBank(bank)] {
            for driver in drivers(plan.fields()) {
                let directory = tempfile::tempdir().unwrap();
                let workload = plan.make(1);
                let config = OpenConfig {
                    directory: directory.path().to_owned(),
                    memory: 256 << 20,
                    durability: Durability::Buffered,
                    torn_writes: TornWrites::Auto,
                    threads: 3,
                    keyspaces: workload.tables().len(),
                    knobs: Knobs::new(),
                };
                let store = driver.open(&config, workload.tables()).unwrap();
                workload.load(&*store).unwrap();
                let round = Round {
                    number: 0,
                    threads: 3,
                    warmup: Duration::ZERO,
                    time: Duration::from_secs(1),
                    operations: Some(600),
                };
                let measured = measure(&*store, &*workload, round, &mut |_, _| Ok(())).unwrap();
                let committed: u64 = measured.kinds.iter().map(|kind| kind.committed).sum();
                assert!(committed > 500, "{committed} of 600");
                store.close().unwrap();
                // Reopened is the same memory.
                let store = driver.open(&config, workload.tables()).unwrap();
                let found = workload.check(&mut *store.session().unwrap()).unwrap();
                assert_eq!(found, None, "{} on {}", plan.name(), driver.name());
            }
        }
    }
}
