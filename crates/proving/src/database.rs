//! The door: what the proving ground asks of a database, so that one suite runs on every engine, on
//! the toy, and on two at once.
//!
//! The methods mirror the public face; keyspaces go by name. Errors are the product's own.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{Result, Runtime};
use spinney_io::Disk;

use crate::model::{show, show_value};
use crate::watch::Watch;

/// Bytes of a key or a value.
pub type Bytes = Vec<u8>;

/// An end of a range of keys.
pub type KeyBound = Bound<Bytes>;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// On stable storage.
    Sync,
    /// With the kernel: outlives the process, not the power.
    Buffered,
}

/// One write of a batch; `value` is `None` to remove.
#[derive(Clone, PartialEq, Eq)]
pub struct Write {
    /// The keyspace's name.
    pub keyspace: String,
    /// The key.
    pub key: Bytes,
    /// The value, or `None` to remove.
    pub value: Option<Bytes>,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (key, value) = (show(&self.key), show_value(self.value.as_deref()));
        write!(f, "{} {key} = {value}", self.keyspace)
    }
}

/// Items of a range in order, from both ends.
pub type Items<'a> = Box<dyn DoubleEndedIterator<Item = Result<(Bytes, Bytes)>> + 'a>;

/// Keys of a range in order, from both ends.
pub type Keys<'a> = Box<dyn DoubleEndedIterator<Item = Result<Bytes>> + 'a>;

/// A function that makes a new value out of the current one, as an update takes it.
pub type Change<'a> = dyn FnMut(Option<&[u8]>) -> Option<Bytes> + 'a;

/// How a compare-and-swap fared: done, or what the value is instead.
pub type Swapped = std::result::Result<(), Option<Bytes>>;

/// An open database.
pub trait Database: Send + Sync {
    /// Makes a keyspace, or opens the one of that name.
    ///
    /// # Errors
    /// The product's own, as for all methods.
    fn create_keyspace(&self, name: &str, logged: bool) -> Result<()>;
    /// Drops a keyspace with all it holds.
    fn drop_keyspace(&self, name: &str) -> Result<()>;
    /// Names of all keyspaces, and whether they are logged, sorted.
    fn keyspaces(&self) -> Vec<(String, bool)>;
    /// The value of a key.
    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>>;
    /// Whether a key is there.
    fn contains_key(&self, keyspace: &str, key: &[u8]) -> Result<bool>;
    /// The values of many keys.
    fn multi_get(&self, keyspace: &str, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;
    /// Writes: one alone as an insert or a removal, several as a batch.
    fn write(&self, writes: &[Write], promise: Promise) -> Result<()>;
    /// Replaces a value if it is the expected one.
    fn compare_and_swap(
        &self,
        keyspace: &str,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped>;
    /// Replaces a value by a function of it, and answers the new one.
    fn update(&self, keyspace: &str, key: &[u8], change: &mut Change<'_>) -> Result<Option<Bytes>>;
    /// Records in key order.
    fn range(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Items<'_>;
    /// Records whose keys begin with `prefix`.
    fn prefix(&self, keyspace: &str, prefix: &[u8]) -> Items<'_>;
    /// Keys in order.
    fn keys(&self, keyspace: &str, from: KeyBound, to: KeyBound) -> Keys<'_>;
    /// The record of the least key.
    fn first(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>>;
    /// The record of the greatest key.
    fn last(&self, keyspace: &str) -> Result<Option<(Bytes, Bytes)>>;
    /// Everything acknowledged is durable afterwards.
    fn flush(&self) -> Result<()>;
    /// Everything is in the keyspaces' own files afterwards.
    fn checkpoint(&self) -> Result<()>;
    /// Compacts a range of a keyspace. Everything is in the keyspaces' own files afterwards.
    ///
    /// # Errors
    /// The product's own.
    fn compact(&self, _keyspace: &str, _from: &KeyBound, _to: &KeyBound) -> Result<()> {
        self.checkpoint()
    }
    /// Looks for damage.
    fn verify(&self) -> Result<()>;
    /// Copies everything into a directory, in place of what is there.
    fn backup(&self, directory: &Path) -> Result<()>;
    /// Loads records in ascending order into an empty keyspace, all or none.
    ///
    /// # Errors
    /// The product's own.
    fn bulk_load(&self, keyspace: &str, records: &[(Bytes, Bytes)]) -> Result<()> {
        let write = |(key, value): &(Bytes, Bytes)| Write {
            keyspace: keyspace.to_owned(),
            key: key.clone(),
            value: Some(value.clone()),
        };
        self.write(&records.iter().map(write).collect::<Vec<_>>(), Promise::Sync)
    }
    /// Takes a view of a keyspace as it is now, where the product has such.
    ///
    /// # Errors
    /// The product's own.
    fn snapshot(&self, _keyspace: &str) -> Result<Option<Box<dyn View>>> {
        Ok(None)
    }
    /// Sets how many batches of a keyspace gather in memory, where the product has such.
    ///
    /// # Errors
    /// The product's own.
    fn set_checkpoint_distance(&self, _keyspace: &str, _batches: u64) -> Result<()> {
        Ok(())
    }
    /// States that it is in between two operations.
    fn states(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// Changes the memory budget.
    fn set_memory(&self, bytes: u64) -> Result<()>;
    /// Bytes of the memory budget in use, and the budget, where the product tells.
    fn memory(&self) -> Option<(u64, u64)> {
        None
    }
    /// How many keyspaces share the memory budget now, where the product tells.
    fn open_keyspaces(&self) -> usize {
        0
    }
    /// Ends cleanly.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A keyspace as it was at one moment.
pub trait View: Send {
    /// The value that a key had.
    ///
    /// # Errors
    /// The product's own, as for all methods.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;
    /// The values that many keys had.
    fn multi_get(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;
    /// Records in key order.
    fn range(&self, from: KeyBound, to: KeyBound) -> Items<'_>;
}

/// Options of a product's own, by name.
pub type Knobs = &'static [(&'static str, &'static str)];

/// How a database is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its directory.
    pub path: PathBuf,
    /// The memory budget in bytes.
    pub memory_bytes: u64,
    /// The log's maximum size in bytes.
    pub log_bytes_max: u64,
    /// Whether to trust the device with writes of 4 KiB.
    pub assume_4k: bool,
    /// Options of the product's own that every keyspace gets.
    pub knobs: Knobs,
}

impl Config {
    /// Where backups go.
    #[must_use]
    pub fn backup_path(&self) -> PathBuf {
        self.path.with_extension(BACKUP)
    }
}

impl Config {
    /// Where salvages go.
    #[must_use]
    pub fn salvage_path(&self) -> PathBuf {
        self.path.with_extension("salvaged")
    }
}

/// How the directories of backups end.
pub(crate) const BACKUP: &str = "backup";

/// Something that opens databases.
pub trait Product: Sync {
    /// Opens the database of `config.path` on `disk`, or makes it.
    ///
    /// # Errors
    /// The product's own.
    fn open(
        &self,
        disk: Arc<dyn Disk>,
        runtime: Runtime,
        config: &Config,
    ) -> Result<Box<dyn Database>>;

    /// Saves what can be read of a database that nobody has open into `to`, and answers whether that
    /// was everything; `None` when it cannot do such a thing.
    ///
    /// # Errors
    /// The product's own.
    fn salvage(
        &self,
        _disk: Arc<dyn Disk>,
        _runtime: Runtime,
        _config: &Config,
        _to: &Path,
    ) -> Result<Option<bool>> {
        Ok(None)
    }

    /// Options of its own that the run of a seed gets, most often none.
    fn knobs(&self, _seed: u64) -> Knobs {
        &[]
    }

    /// States of its own that crashes must strike: in small databases and in large ones, each with how
    /// many times as often as others.
    fn states(&self) -> [&'static [(&'static str, u64)]; 2] {
        [&[], &[]]
    }

    /// Whether it logs changes of structure.
    fn logs_structure(&self) -> bool {
        true
    }

    /// Whether its databases take snapshots and have a checkpoint distance.
    fn takes_snapshots(&self) -> bool {
        false
    }

    /// Whether it writes pages twice: where such a write is lost in silence, what was in the page before
    /// shows again.
    fn rewrites_pages(&self) -> bool {
        true
    }

    /// Whether its databases take backups.
    fn takes_backups(&self) -> bool {
        true
    }

    /// What watches the simulated disk while the database is open, if the product has rules to be
    /// watched.
    fn watch(&self) -> Option<Arc<Watch>> {
        None
    }
}
