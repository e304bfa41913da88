//! **Spinney**: an embedded key-value storage engine. A database is one directory with one log and
//! one memory budget. It holds many keyspaces; an engine that suits its workload keeps each.
//!
//! ```
//! # fn main() -> spinney::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! use spinney::{Db, KeyspaceOptions, Options};
//! let db = Db::open(directory.path(), Options::default().memory(64 << 20))?;
//! let users = db.keyspace("users", KeyspaceOptions::default())?;
//! users.insert(b"ada", b"1815")?;
//! assert_eq!(users.get(b"ada")?.as_deref(), Some(&b"1815"[..]));
//! for record in users.prefix(b"a") {
//!     let (key, value) = record?;
//!     println!("{} was born in {}", key.escape_ascii(), value.escape_ascii());
//! }
//! db.close()
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod guide;

/// Compiles the snippet of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use spinney_db::{
    AccountStats, BackupOptions, BackupProgress, BackupReport, Batch, Capabilities,
    CompactProgress, CompactReport, CompareAndSwapError, Cursor, DamagedPage, Db, DbSnapshot, Disk,
    Durability, EngineKind, EngineStats, Error, ErrorKind, IoSnapshot, Isolation, KeyRange, Keys,
    Keyspace, KeyspaceId, KeyspaceInfo, KeyspaceMemory, KeyspaceOptions, KeyspaceStats,
    LOG_BYTES_MAX, LOG_BYTES_MIN, LogMemory, LogStats, LostRange, Options, PagesByKind,
    PreImageStats, Readers, RestoreProgress, RestoreReport, Result, Runtime, SalvageProgress,
    SalvageReport, SalvagedKeyspace, Savepoint, ScrubStats, Snapshot, SnapshotStats, Staging,
    Stats, TornWrites, Transaction, TransactionCursor, TransactionKeys, TransactionOptions,
    TransactionStats, TreeLineOptions, TurtleKeyspace, TurtleOptions, TurtleStats, TwoBTreeOptions,
    Value, ValueReader, VerifyProgress, VerifyReport,
};

/// Limits of keys, values, batches and databases.
pub use spinney_base::limits;
/// Parsing and formatting of sizes and counts, such as `64MiB`.
pub use spinney_base::size;
#[doc(hidden)]
pub use spinney_db::purposes;
