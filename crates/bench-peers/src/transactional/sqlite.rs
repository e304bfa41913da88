//! SQLite with a write-ahead log: one transaction writes at a time, any number reads beside it. A table of two blobs without
//! row numbers for each table.
//!
//! `sync` is `synchronous = FULL`, which syncs the log at each commit; `buffered` is `NORMAL`, which syncs it at
//! checkpoints. Three quarters of the memory are divided among the page caches of the connections, one for each
//! thread and one to open with; the rest is for the page cache of the system, which a control group limits with them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use spinney_base::{Error, ErrorKind, Result};
use spinney_bench::driver::{Knobs, OpenConfig, Terms};
use spinney_bench::plan::Durability;
use spinney_bench::transactional::{
    Access, Body, Ended, Kind, Scan, TransactionalDriver, TransactionalSession, TransactionalStore,
    Verdict, Visitor,
};

use super::common::{check_durability, only_reads};
use crate::cgroup::{Limited, MEMORY_LIMIT};
use crate::refuse_knobs;

/// How long a transaction waits for the one that writes.
const WAIT: Duration = Duration::from_secs(60);

/// Statements that a connection keeps prepared: seven for each table, and those that begin and end.
const STATEMENTS: usize = 128;

/// SQLite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sqlite;

struct SqliteStore {
    path: PathBuf,
    tables: Vec<Statements>,
    durability: Durability,
    cache_bytes: u64,
    limit: Limited,
}

struct SqliteSession {
    connection: Connection,
    tables: Vec<Statements>,
}

/// The statements of one table.
#[derive(Clone)]
struct Statements {
    get: String,
    put: String,
    remove: String,
    /// By whether the range has an upper bound, then by whether it goes downwards.
    scans: [[String; 2]; 2],
}

impl Statements {
    fn new(table: &str) -> Self {
        let scan = |bound: &str, order: &str| {
            format!(
                "SELECT key, value FROM \"{table}\" WHERE key >= ?1{bound} ORDER BY key {order} LIMIT ?3"
            )
        };
        let both = |bound| [scan(bound, "ASC"), scan(bound, "DESC")];
        Statements {
            get: format!("SELECT value FROM \"{table}\" WHERE key = ?1"),
            put: format!("INSERT OR REPLACE INTO \"{table}\" (key, value) VALUES (?1, ?2)"),
            remove: format!("DELETE FROM \"{table}\" WHERE key = ?1"),
            scans: [both(" AND ?2 IS NULL"), both(" AND key < ?2")],
        }
    }
}

fn failed(error: rusqlite::Error) -> Error {
    Error::new(ErrorKind::Io, format!("sqlite: {error}"))
}

fn connect(path: &Path, durability: Durability, cache_bytes: u64) -> Result<Connection> {
    let connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(WAIT).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let synchronous = if durability == Durability::Sync { "FULL" } else { "NORMAL" };
    let kibibytes = i64::try_from(cache_bytes / 1024).unwrap_or(i64::MAX).max(1);
    let set = |name: &str, value: &dyn rusqlite::ToSql| {
        connection.pragma_update(None, name, value).map_err(failed)
    };
    set("journal_mode", &"WAL")?;
    set("synchronous", &synchronous)?;
    // A negative number is in KiB.
    set("cache_size", &-kibibytes)?;
    Ok(connection)
}

impl TransactionalDriver for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn is_peer(&self) -> bool {
        true
    }

    fn unprotected(&self) -> &'static str {
        "is serializable, with one writer at a time"
    }

    fn check_knobs(&self, knobs: &Knobs) -> Result<()> {
        refuse_knobs("sqlite", knobs, &[MEMORY_LIMIT])
    }

    fn open(&self, config: &OpenConfig, tables: &[&str]) -> Result<Box<dyn TransactionalStore>> {
        check_durability(config.durability)?;
        let limit = Limited::enter("sqlite", config)?;
        let connections = config.threads as u64 + 1;
        let cache_bytes = config.memory / 4 * 3 / connections;
        let path = config.directory.join("tables.sqlite");
        let connection = connect(&path, config.durability, cache_bytes)?;
        for name in tables {
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS \"{name}\" (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
            );
            connection.execute(&sql, ()).map_err(failed)?;
        }
        Ok(Box::new(SqliteStore {
            path,
            tables: tables.iter().map(|name| Statements::new(name)).collect(),
            durability: config.durability,
            cache_bytes,
            limit,
        }))
    }
}

impl TransactionalStore for SqliteStore {
    fn session(&self) -> Result<Box<dyn TransactionalSession>> {
        let connection = connect(&self.path, self.durability, self.cache_bytes)?;
        Ok(Box::new(SqliteSession { connection, tables: self.tables.clone() }))
    }

    fn flush(&self) -> Result<()> {
        let connection = connect(&self.path, Durability::Sync, self.cache_bytes)?;
        let sql = "PRAGMA wal_checkpoint(FULL)";
        connection.query_row(sql, (), |_| Ok(())).map_err(failed)
    }

    fn terms(&self) -> Terms {
        let (memory_limited, memory) = self.limit.terms();
        Terms {
            version: format!("SQLite {}", rusqlite::version()),
            torn_writes: "copies in its log".to_owned(),
            memory_limited,
            notes: vec![memory],
        }
    }
}

impl SqliteSession {
    fn say(&self, sql: &str) -> Result<()> {
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        statement.execute(()).map(drop).map_err(failed)
    }
}

impl TransactionalSession for SqliteSession {
    fn transact(&mut self, kind: Kind, body: &mut Body<'_>) -> Result<Ended> {
        let writes = kind == Kind::Write;
        // A transaction that takes the lock for writing only when it writes finds out too late.
        self.say(if writes { "BEGIN IMMEDIATE" } else { "BEGIN" })?;
        let ended =
            body(&mut Inside { connection: &self.connection, tables: &self.tables, writes });
        let commits = matches!(ended, Ok(Verdict::Commit));
        let closed = self.say(if commits { "COMMIT" } else { "ROLLBACK" });
        let verdict = ended?;
        closed?;
        Ok(Ended { verdict, retries: 0 })
    }
}

/// A transaction.
struct Inside<'a> {
    connection: &'a Connection,
    tables: &'a [Statements],
    writes: bool,
}

impl Inside<'_> {
    fn change(&self, sql: &str, values: &[&dyn rusqlite::ToSql]) -> Result<()> {
        if !self.writes {
            return Err(only_reads());
        }
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        statement.execute(values).map(drop).map_err(failed)
    }
}

impl Access for Inside<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let mut statement =
            self.connection.prepare_cached(&self.tables[table].get).map_err(failed)?;
        let found = statement.query_row([key], |row| {
            value.extend_from_slice(row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        Ok(found.optional().map_err(failed)?.is_some())
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(&self.tables[table].put, &[&key, &value])
    }

    fn remove(&mut self, table: usize, key: &[u8]) -> Result<()> {
        self.change(&self.tables[table].remove, &[&key])
    }

    fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let sql = &self.tables[scan.table].scans[usize::from(scan.to.is_some())]
            [usize::from(scan.reverse)];
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![scan.from, scan.to, limit]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let blob = |column| row.get_ref(column)?.as_blob().map_err(rusqlite::Error::from);
            let (key, value) = (blob(0).map_err(failed)?, blob(1).map_err(failed)?);
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}
