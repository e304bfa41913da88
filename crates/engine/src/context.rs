//! What the database passes to an engine.

use std::path::PathBuf;
use std::sync::Arc;

use spinney_base::{KeyspaceId, MemoryAccount, Poison, Runtime};
use spinney_extent::StoreOptions;
use spinney_io::Directory;
use spinney_ssn::Certifier;
use spinney_wal::Log;

/// Everything that an engine may use of its database.
#[derive(Clone, Debug)]
pub struct EngineContext {
    /// Directory of the database.
    pub directory: Arc<dyn Directory>,
    /// Name of the keyspace's own file in it.
    pub name: String,
    /// Id of the keyspace.
    pub keyspace: KeyspaceId,
    /// Whether the keyspace's data is logged (rule P11); structure always is.
    pub logged: bool,
    /// Whether in-place writes must be protected from tearing.
    pub double_write: bool,
    /// The database's one log.
    pub log: Arc<Log>,
    /// Background work and time.
    pub runtime: Runtime,
    /// Poison of the database; it stops all writing.
    pub poison: Arc<Poison>,
    /// The keyspace's memory. Its target may change at any time, and the engine follows.
    pub memory: Arc<MemoryAccount>,
    /// What certifies transactions over versions.
    pub certifier: Certifier,
}

impl EngineContext {
    /// Returns the path of the keyspace's file, for messages.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Returns the options with which the keyspace's file is opened.
    #[must_use]
    pub fn store_options(&self) -> StoreOptions {
        StoreOptions {
            keyspace: self.keyspace,
            double_write: self.double_write,
            poison: self.poison.clone(),
        }
    }
}
