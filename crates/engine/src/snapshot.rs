//! Repeatable views of one keyspace (rule P25).

use std::fmt::Debug;

use spinney_base::Result;

use crate::{Chunk, Found, OwnedValue, ScanRequest};

/// A keyspace as it was at one moment between two batches, until it is dropped. Thread-safe.
///
/// It keeps what it needs of memory and disk. Pointers to large values that it answers can be read
/// by [`Pieces`](spinney_extent::large_io::Pieces) for as long as it lasts. Where memory
/// becomes too short for it and it cannot be written out, it ends: everything answers `SnapshotTooOld`
/// from then on, with what kept it from being written out, and never something of another moment.
pub trait EngineSnapshot: Send + Sync + Debug {
    /// As [`Engine::get`](crate::Engine::get).
    ///
    /// # Errors
    /// `SnapshotTooOld`, `Corruption` or `Io`.
    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found>;

    /// As [`Engine::get_many`](crate::Engine::get_many).
    ///
    /// # Errors
    /// As [`EngineSnapshot::get`], of the first that failed.
    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        OwnedValue::each(keys, |key, hash, out| self.get(key, hash, out))
    }

    /// As [`Engine::scan`](crate::Engine::scan), but that every record is of the snapshot's moment.
    ///
    /// # Errors
    /// As [`EngineSnapshot::get`]; `Unsupported` when keys are not ordered.
    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()>;

    /// What it keeps now.
    fn stats(&self) -> SnapshotStats;
}

/// What a snapshot keeps for itself alone, or with other snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SnapshotStats {
    /// Bytes of memory, at most: what it shares with the keyspace of now is among them.
    pub memory_bytes: u64,
    /// Whether it ended: memory was needed, and it could not be written out.
    pub ended: bool,
}
