//! The database under Spinney's face: a directory, a log, a budget, and keyspaces kept by engines.
//!
//! Reading order: [`Db`] and [`Keyspace`] (what users see), `write` (the path of a write), `large`
//! (values in pieces), `cursor` (ranges), `snapshot` (views of one moment), `open` (recovery), `maintain` (background work), `backup`
//! and `restore` (with `target`, where they put things), `manifest` and `record` (bytes),
//! `state` (what handles share, and the lock order).
#![forbid(unsafe_code)]

mod backup;
mod batch;
mod cursor;
mod database;
mod keyspace;
mod large;
mod maintain;
mod manifest;
mod open;
mod options;
mod record;
mod restore;
mod salvage;
mod scrub;
mod snapshot;
mod state;
mod stats;
mod target;
mod value;
mod write;

pub use backup::{BackupOptions, BackupProgress, BackupReport};
pub use batch::Batch;
pub use cursor::{Cursor, Keys, Readers};
pub use database::{Db, KeyspaceInfo};
pub use keyspace::{CompareAndSwapError, Keyspace};
pub use large::ValueReader;
pub use options::{
    Durability, EngineKind, KeyspaceOptions, LOG_BYTES_MAX, LOG_BYTES_MIN, Options, TornWrites,
};
pub use restore::RestoreReport;
pub use salvage::{SalvageReport, SalvagedKeyspace};
pub use scrub::ScrubStats;
pub use snapshot::Snapshot;
pub use stats::{AccountStats, KeyspaceStats, LogStats, Stats};
pub use value::Value;

pub use spinney_base::{Error, ErrorKind, KeyspaceId, Result};
pub use spinney_engine::{
    Capabilities, DamagedPage, EngineStats, LostRange, PagesByKind, SnapshotStats, TurtleStats,
    VerifyReport,
};

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from disk, for fuzzing.
    pub use crate::manifest::manifest_round_trips;
    pub use crate::record::decode_anything;
    pub use spinney_turtle::fuzzing::decode_payload as decode_turtle_payload;
}
