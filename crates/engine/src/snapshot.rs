//! Repeatable views of one keyspace (rule P25).

use std::fmt::Debug;

use spinney_base::Result;

use crate::{Chunk, Found, OwnedValue, ScanRequest};

/// Number of a snapshot of the database. Later ones are greater, and none comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotNumber(pub u64);

impl SnapshotNumber {
    /// No snapshot lives.
    pub const NONE: SnapshotNumber = SnapshotNumber(0);
}

/// A keyspace whose batches are all ahead of a closed gate, or through it, for as long as this
/// lives.
pub trait ClosedGate {
    /// Takes the view of this moment.
    ///
    /// # Errors
    /// `Io` or `Poisoned`.
    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>>;
}

/// A view of a keyspace at one moment between two batches, until it is dropped. It is thread-safe.
///
/// It keeps the memory and pages that it needs. [`Pieces`](spinney_extent::large_io::Pieces) can
/// read the pointers to large values that it returns for as long as it lives. Where memory becomes
/// too short for it and it cannot be written out, it ends. From then on every call answers
/// `SnapshotTooOld` with the cause, and never data of another moment.
pub trait EngineSnapshot: Send + Sync + Debug {
    /// As [`Engine::get`](crate::Engine::get), at the snapshot's moment.
    ///
    /// # Errors
    /// `SnapshotTooOld`, `Corruption` or `Io`.
    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found>;

    /// As [`Engine::get_many`](crate::Engine::get_many), at the snapshot's moment.
    ///
    /// # Errors
    /// As [`EngineSnapshot::get`], of the first that failed.
    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        OwnedValue::each(keys, |key, hash, out| self.get(key, hash, out))
    }

    /// As [`Engine::scan`](crate::Engine::scan), with every record of the snapshot's moment.
    ///
    /// # Errors
    /// As [`EngineSnapshot::get`]; `Unsupported` when keys are not ordered.
    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()>;

    /// Returns what the snapshot keeps now.
    fn stats(&self) -> SnapshotStats;
}

/// What a snapshot keeps, alone or together with other snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Most bytes of memory that it keeps, including what it shares with the present keyspace.
    pub memory_bytes: u64,
    /// Whether it ended, because memory was needed and it could not be written out.
    pub ended: bool,
}

impl SnapshotStats {
    /// Makes the numbers of a snapshot that keeps `memory_bytes`, and has `ended` or not.
    #[must_use]
    pub fn new(memory_bytes: u64, ended: bool) -> SnapshotStats {
        SnapshotStats { memory_bytes, ended }
    }
}
