//! The database behind the crate `spinney`: a directory, a log, a memory budget, and keyspaces that
//! engines keep.
//!
//! Reading order, from what users see to the ground:
//!
//! * Handles: [`Db`] and [`Keyspace`], `snapshot` (views of one moment), `cursor` (ranges),
//!   `reader` (one value in pieces).
//! * Operations over the whole state: `write` (the path of a write), `large` (values in extents),
//!   `parking` (keyspaces that are parked and opened), `open` (recovery), `maintain` (checkpoints
//!   and jobs), `full_disk`, `scrubbing`, `convert`, `compact`, `backup`, `restore` and `salvage`
//!   (with `target`, the directory of the copy).
//! * `state` (what handles share, and the lock order) and its parts: `life`, `files`, `writers`,
//!   `keyspaces`, `memory`, `room`, `checkpoints`, `backup_log`, `scrub`, `jobs`. A part does not
//!   know the state.
//! * What parts are made of: `place` and `keyspace_state` (one keyspace), `governor` (the division
//!   of memory), `reading` (read-only databases), `manifest` and `record` (bytes).
#![forbid(unsafe_code)]

mod approximate;
mod backup;
mod backup_log;
mod batch;
mod checkpoints;
mod compact;
mod convert;
mod cursor;
mod database;
mod db_snapshot;
mod engine_options;
mod engines;
mod files;
mod full_disk;
mod governor;
mod guards;
mod handle;
mod jobs;
mod keyspace;
mod keyspace_state;
mod keyspaces;
mod large;
mod life;
mod maintain;
mod manifest;
mod memory;
mod moments;
mod open;
mod options;
mod parking;
mod part;
mod patch;
mod place;
mod range;
mod reader;
mod reading;
mod record;
mod replay;
mod restore;
mod room;
mod salvage;
mod scrub;
mod scrubbing;
mod snapshot;
mod state;
mod stats;
mod taking;
mod target;
mod transaction;
mod transaction_stats;
mod turtle;
mod value;
mod versions;
mod write;
mod writers;

pub use backup::{BackupOptions, BackupProgress, BackupReport};
pub use batch::Batch;
pub use compact::{CompactProgress, CompactReport};
pub use cursor::{Cursor, Keys, Readers};
pub use database::{Db, KeyspaceInfo, VerifyProgress};
pub use db_snapshot::DbSnapshot;
pub use engine_options::{Staging, TreeLineOptions, TurtleOptions, TwoBTreeOptions};
pub use engines::{EngineKind, purposes};
pub use keyspace::{CompareAndSwapError, Keyspace};
pub use options::{
    Durability, Isolation, KeyspaceOptions, LOG_BYTES_MAX, LOG_BYTES_MIN, LogMemory, Options,
    TornWrites,
};
pub use range::KeyRange;
pub use reader::ValueReader;
pub use restore::{RestoreProgress, RestoreReport};
pub use salvage::{SalvageProgress, SalvageReport, SalvagedKeyspace};
pub use scrub::ScrubStats;
pub use snapshot::Snapshot;
pub use stats::{AccountStats, KeyspaceMemory, KeyspaceStats, LogStats, Stats};
pub use transaction::{
    Savepoint, Transaction, TransactionCursor, TransactionKeys, TransactionOptions,
};
pub use transaction_stats::TransactionStats;
pub use turtle::TurtleKeyspace;
pub use value::Value;

pub use spinney_base::{Error, ErrorKind, KeyspaceId, Result, Runtime};
pub use spinney_engine::{
    Capabilities, DamagedPage, EngineStats, LostRange, PagesByKind, PreImageStats, SnapshotStats,
    TurtleStats, VerifyReport,
};
pub use spinney_io::{Disk, IoSnapshot};

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from disk, for fuzzing.
    pub use crate::manifest::manifest_round_trips;
    pub use crate::record::decode_anything;
    /// Commits a transaction. Returns the LSN of its record, 0 if it wrote nothing.
    ///
    /// # Errors
    /// As [`Transaction::commit`](crate::Transaction::commit).
    pub fn commit(mut transaction: crate::Transaction) -> crate::Result<u64> {
        transaction.try_commit().map(|lsn| lsn.0)
    }
    /// Writes a batch. Returns the LSN of its record.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub fn write(
        db: &crate::Db,
        batch: &crate::Batch,
        durability: crate::Durability,
    ) -> crate::Result<u64> {
        db.handle.state.write_batch(&batch.operations, durability).map(|lsn| lsn.0)
    }
    /// Returns the generation of the next page of a keyspace, for tests.
    #[must_use]
    pub fn next_generation(db: &crate::Db, keyspace: &str) -> u32 {
        let keyspace = db
            .existing_keyspace(keyspace)
            .and_then(|it| it.enter().map(|it| it.engine.next_generation().0));
        keyspace.unwrap_or(u32::MAX)
    }
    pub use spinney_turtle::fuzzing::decode_payload as decode_turtle_payload;
}
