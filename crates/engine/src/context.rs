//! What the database hands to an engine.

use std::path::PathBuf;
use std::sync::Arc;

use spinney_base::{KeyspaceId, MemoryAccount, Poison, Runtime};
use spinney_io::Disk;
use spinney_wal::Log;

/// Everything an engine may use of its database.
#[derive(Clone, Debug)]
pub struct EngineContext {
    /// Where files live.
    pub disk: Arc<dyn Disk>,
    /// The keyspace's own file.
    pub path: PathBuf,
    /// The keyspace's id.
    pub keyspace: KeyspaceId,
    /// Whether the keyspace's data is logged (rule P11); structure always is.
    pub logged: bool,
    /// Whether in-place writes must be protected from tearing.
    pub double_write: bool,
    /// The one log.
    pub log: Arc<Log>,
    /// Background work and time.
    pub runtime: Runtime,
    /// Stops all writing.
    pub poison: Arc<Poison>,
    /// The keyspace's memory: its target may change at any time, and the engine follows.
    pub memory: Arc<MemoryAccount>,
}
