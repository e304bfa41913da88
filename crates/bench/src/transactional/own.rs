//! Drivers for transactions on our own engines: `treeline`, `turtle`, and `mixed`, whose tables lie
//! on both. A table is a keyspace.
//!
//! Transactions that write, and those that read little, are [`Db::transact`]'s: strictly
//! serializable. A transaction that reads much ([`Kind::Report`]) is a snapshot.
//!
//! `mixed` is what keyspaces of several engines in one database are for. A workload names the tables
//! that are on `turtle`, which gathers inserts: those that only gain records, in places all over. All
//! others, which are read and updated in place, are on `treeline`. One transaction writes to both.

use std::ops::{Bound, ControlFlow};

use spinney::{Db, DbSnapshot, EngineKind, Keyspace, Options, Transaction};
use spinney_base::{Error, ErrorKind, Result};

use crate::driver::{Counters, Knobs, OpenConfig, Terms};
use crate::own;
use crate::plan::{Durability, TornWrites};
use crate::transactional::{
    Access, Body, Ended, Kind, Scan, TransactionalDriver, TransactionalSession, TransactionalStore,
    Verdict, Visitor,
};

/// Times that a session calls `transact` again after it has answered a conflict, which it does
/// after 64 runs. More would hide that a workload does not get anywhere.
const ROUNDS_MAX: u32 = 1000;

/// One way to lay tables over our engines.
#[derive(Clone, Copy, Debug)]
pub struct OwnTransactional {
    name: &'static str,
    /// The engine of all tables; `None` for both engines.
    kind: Option<EngineKind>,
    /// With both: the tables on `turtle`.
    gathered: &'static [&'static str],
}

/// All of our drivers. Those of `gathered` are the tables that `mixed` keeps on `turtle`.
#[must_use]
pub fn drivers(gathered: &'static [&'static str]) -> Vec<Box<dyn TransactionalDriver>> {
    let one = |kind: EngineKind| OwnTransactional { name: kind.name(), kind: Some(kind), gathered };
    let mixed = OwnTransactional { name: "mixed", kind: None, gathered };
    let all = EngineKind::ALL.into_iter().map(one).chain([mixed]);
    all.map(|driver| Box::new(driver) as Box<dyn TransactionalDriver>).collect()
}

impl OwnTransactional {
    fn engine_of(&self, table: &str) -> EngineKind {
        let gathered = self.gathered.contains(&table);
        self.kind.unwrap_or(if gathered { EngineKind::Turtle } else { EngineKind::TreeLine })
    }
}

struct OwnStore {
    db: Db,
    tables: Vec<Keyspace>,
}

struct OwnSession {
    db: Db,
    tables: Vec<Keyspace>,
}

impl TransactionalDriver for OwnTransactional {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_peer(&self) -> bool {
        false
    }

    fn unprotected(&self) -> &'static str {
        "is strictly serializable, ranges included"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        match (self.kind, knobs.keys().next()) {
            (Some(kind), _) => own::options(kind, knobs).map(|_| ()),
            (None, None) => Ok(()),
            (None, Some(knob)) => {
                Err(Error::invalid(format!("mixed has no options, so none named {knob:?}")))
            }
        }
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        let durability = match config.durability {
            Durability::Sync => spinney::Durability::Sync,
            Durability::Buffered => spinney::Durability::Buffered,
            Durability::None => {
                return Err(Error::invalid("transactions are sync or buffered, not none"));
            }
        };
        let torn_writes = match config.torn_writes {
            TornWrites::Auto => spinney::TornWrites::Auto,
            TornWrites::DoubleWrite => spinney::TornWrites::DoubleWrite,
            TornWrites::Assume4k => spinney::TornWrites::Assume4k,
        };
        let (poll_reads, _) = own::options(self.engine_of(""), &config.knobs)?;
        let options = Options::default()
            .memory(config.memory)
            .poll_reads(poll_reads)
            .durability(durability)
            .torn_writes(torn_writes);
        let db = Db::open(&config.directory, options)?;
        let tables = tables.iter().map(|name| {
            let (_, options) = own::options(self.engine_of(name), &config.knobs)?;
            db.keyspace(name, options)
        });
        let tables = tables.collect::<Result<_>>()?;
        Ok(Box::new(OwnStore { db, tables }))
    }
}

impl TransactionalStore for OwnStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        Ok(Box::new(OwnSession { db: self.db.clone(), tables: self.tables.clone() }))
    }

    fn load(
        &self,
        table: usize,
        records: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<u64> {
        self.tables[table].bulk_load(records)
    }

    fn flush(&self) -> Result<()> {
        self.db.flush()
    }

    fn counters(&self) -> Result<Counters> {
        let stats = self.db.stats();
        let (commits, log_flushes) = (Some(stats.log.commits), Some(stats.log.flushes));
        Ok(Counters { io: Some(stats.io), commits, log_flushes, ..Counters::default() })
    }

    fn terms(&self) -> Terms {
        let stats = self.db.stats();
        Terms {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            torn_writes: stats.torn_writes.to_owned(),
            memory_limited: true,
            notes: vec![format!("I/O by {}, torn writes: {}", stats.io_backend, stats.torn_writes)],
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        let OwnStore { db, tables } = *self;
        drop(tables);
        db.close()
    }
}

/// Why a body ended without a commit.
enum Stop {
    RolledBack,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl TransactionalSession for OwnSession {
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended> {
        if kind == Kind::Report {
            let snapshot = self.db.snapshot_of(&self.tables.iter().collect::<Vec<_>>())?;
            let verdict = body(&mut Then { snapshot, tables: &self.tables })?;
            return Ok(Ended { verdict, retries: 0 });
        }
        let (mut runs, mut rounds) = (0, 0);
        loop {
            let ended = self.db.transact(|transaction| {
                runs += 1;
                match body(&mut Inside { transaction, tables: &self.tables })? {
                    Verdict::Commit => Ok(()),
                    Verdict::Rollback => Err(Stop::RolledBack),
                }
            });
            rounds += 1;
            let verdict = match ended {
                Ok(()) => Verdict::Commit,
                Err(Stop::RolledBack) => Verdict::Rollback,
                Err(Stop::Failed(error))
                    if error.kind() == ErrorKind::Conflict && rounds < ROUNDS_MAX =>
                {
                    continue;
                }
                Err(Stop::Failed(error)) => return Err(error),
            };
            return Ok(Ended { verdict, retries: runs - 1 });
        }
    }
}

/// The bounds of a range.
fn bounds<'a>(scan: &Scan<'a>) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Included(scan.from), scan.to.map_or(Bound::Unbounded, Bound::Excluded))
}

/// Shows records until the visitor breaks off.
fn show<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    records: impl Iterator<Item = Result<(K, V)>>,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    for record in records {
        let (key, value) = record?;
        if visit(key.as_ref(), value.as_ref()) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

/// A transaction.
struct Inside<'a> {
    transaction: &'a mut Transaction,
    tables: &'a [Keyspace],
}

impl Access for Inside<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.transaction.get_into(&self.tables[table], key, value)
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.transaction.insert(&self.tables[table], key, value)
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.transaction.remove(&self.tables[table], key)
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut cursor = self.transaction.range(&self.tables[scan.table], bounds(&scan));
        if scan.limit != usize::MAX {
            cursor = cursor.limit(scan.limit);
        }
        if scan.reverse { show(cursor.rev(), visit) } else { show(cursor, visit) }
    }
}

/// A snapshot.
struct Then<'a> {
    snapshot: DbSnapshot,
    tables: &'a [Keyspace],
}

impl Then<'_> {
    fn refuse(&self) -> Result<()> {
        Err(Error::invalid("a transaction that only reads has no writes"))
    }
}

impl Access for Then<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        self.snapshot.keyspace(&self.tables[table])?.get_into(key, value)
    }

    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<()> {
        self.refuse()
    }

    fn remove(&mut self, _: usize, _: &[u8]) -> Result<()> {
        self.refuse()
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut cursor = self.snapshot.keyspace(&self.tables[scan.table])?.range(bounds(&scan));
        if scan.limit != usize::MAX {
            cursor = cursor.limit(scan.limit);
        }
        if scan.reverse {
            return show(cursor.rev(), visit);
        }
        while let Some((key, value)) = cursor.next_ref()? {
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}
