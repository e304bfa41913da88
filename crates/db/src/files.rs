//! The files of a database: where they lie, their names, and the errors for those that are missing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, KeyspaceId, Result};
use spinney_io::{Directory, DirectoryLock, Disk};

use crate::options::TornWrites;

/// Name of the log.
pub(crate) const LOG_NAME: &str = "wal";

/// Name of the copy of the log during the salvage.
pub(crate) const LOG_COPY: &str = "wal.salvaged";

/// Name of a keyspace's file in the database directory.
pub(crate) fn file_name(id: KeyspaceId) -> String {
    format!("keyspace-{:08}.spn", id.0)
}

/// Returns whether a file name is that of a keyspace's file.
pub(crate) fn is_keyspace_file(name: &str) -> bool {
    name.strip_prefix("keyspace-").and_then(|rest| rest.strip_suffix(".spn")).is_some()
}

/// Makes the error for a missing file of a database that the manifest lists.
pub(crate) fn lost(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => error.wrap(ErrorKind::Corruption, "a file of the database was lost"),
        _ => error,
    }
}

pub(crate) fn not_found(directory: &Path) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("there is no Spinney database in {}", directory.display()),
    )
}

/// Descriptors that a database needs beside those of keyspaces: for the directory, its locks and
/// the log, and one for a copy by a backup.
const OTHER_DESCRIPTORS: u64 = 16;

/// This many keyspaces may be open even if there are fewer descriptors: where one cannot be opened,
/// another is parked.
const OPEN_MIN: u64 = 8;

/// Where the files of an open database lie.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) disk: Arc<dyn Disk>,
    /// Open for as long as the database is. Every name is looked up in it.
    pub(crate) directory: Arc<dyn Directory>,
    lock: Mutex<Option<Box<dyn DirectoryLock>>>,
    /// Whether pages that are rewritten in place go through the double-write area first.
    pub(crate) double_write: bool,
}

impl Files {
    /// Takes a directory that this process has locked.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        directory: Arc<dyn Directory>,
        lock: Box<dyn DirectoryLock>,
        torn_writes: TornWrites,
    ) -> Result<Files> {
        let double_write = match torn_writes {
            TornWrites::DoubleWrite => true,
            TornWrites::Assume4k => false,
            TornWrites::Auto => !directory.writes_pages_atomically()?,
        };
        Ok(Files { disk, directory, lock: Mutex::new(Some(lock)), double_write })
    }

    /// Returns the path of a keyspace's file, for messages.
    pub(crate) fn path_of(&self, id: KeyspaceId) -> PathBuf {
        self.directory.path().join(file_name(id))
    }

    /// Number of keyspaces that may be open at once, as far as the descriptors allow.
    pub(crate) fn open_max(&self) -> usize {
        let most = match self.disk.descriptors_max() {
            Some(all) => (all / 2).saturating_sub(OTHER_DESCRIPTORS).max(OPEN_MIN),
            None => u64::MAX,
        };
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Removes the file of a dropped keyspace.
    pub(crate) fn remove(&self, id: KeyspaceId) -> Result<()> {
        match self.directory.remove(&file_name(id)) {
            // Another process has removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed?,
        }
        self.directory.sync()
    }

    /// Lets other processes have the directory.
    pub(crate) fn unlock(&self) {
        self.lock.lock().take();
    }

    /// Drops the descriptor of the lock that a child of `fork` has inherited, unless a thread of
    /// the parent was using it at the fork.
    pub(crate) fn unlock_inherited(&self) {
        if let Some(mut lock) = self.lock.try_lock() {
            lock.take();
        }
    }
}
