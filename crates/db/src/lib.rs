//! The database behind the crate `spinney`: a directory, a log, a memory budget, and keyspaces that
//! engines keep.
//!
//! Reading order: [`Db`] and [`Keyspace`] (what users see), `write` (the path of a write), `large`
//! (values in pieces), `cursor` (ranges), `snapshot` (views of one moment), `compact` (compaction
//! on request), `open` (recovery), `place` (keyspaces that are parked and opened), `maintain`
//! (background work), `reading` and `room` (read-only databases and full disks), `backup` and
//! `restore` (with `target`, the directory of the copy), `manifest` and `record` (bytes), `state`
//! (what handles share, and the lock order).
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
mod engine_options;
mod engines;
mod files;
mod full_disk;
mod governor;
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
mod open;
mod options;
mod parking;
mod place;
mod range;
mod reader;
mod reading;
mod record;
mod restore;
mod room;
mod salvage;
mod scrub;
mod scrubbing;
mod snapshot;
mod state;
mod stats;
mod target;
mod turtle;
mod value;
mod write;
mod writers;

pub use backup::{BackupOptions, BackupProgress, BackupReport};
pub use batch::Batch;
pub use compact::{CompactProgress, CompactReport};
pub use cursor::{Cursor, Keys, Readers};
pub use database::{Db, KeyspaceInfo, VerifyProgress};
pub use engine_options::{Staging, TreeLineOptions, TurtleOptions};
pub use engines::{EngineKind, purposes};
pub use keyspace::{CompareAndSwapError, Keyspace};
pub use options::{Durability, KeyspaceOptions, LOG_BYTES_MAX, LOG_BYTES_MIN, Options, TornWrites};
pub use range::KeyRange;
pub use reader::ValueReader;
pub use restore::{RestoreProgress, RestoreReport};
pub use salvage::{SalvageProgress, SalvageReport, SalvagedKeyspace};
pub use scrub::ScrubStats;
pub use snapshot::Snapshot;
pub use stats::{AccountStats, KeyspaceMemory, KeyspaceStats, LogStats, Stats};
pub use turtle::TurtleKeyspace;
pub use value::Value;

pub use spinney_base::{Error, ErrorKind, KeyspaceId, Result, Runtime};
pub use spinney_engine::{
    Capabilities, DamagedPage, EngineStats, LostRange, PagesByKind, SnapshotStats, TurtleStats,
    VerifyReport,
};
pub use spinney_io::{Disk, IoSnapshot};

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from disk, for fuzzing.
    pub use crate::manifest::manifest_round_trips;
    pub use crate::record::decode_anything;
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
