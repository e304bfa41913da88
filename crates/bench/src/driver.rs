//! Interface of a measured engine: [`Driver`] opens it, [`Store`] is the open engine, [`Session`]
//! is one client thread.

use std::collections::BTreeMap;
use std::path::PathBuf;

use spinney_base::Result;
use spinney_io::IoSnapshot;

use crate::plan::{Durability, TornWrites};
use crate::shape::Shape;

/// Engine options by name, as `--<engine>.<option>` gives them.
pub type Knobs = BTreeMap<String, String>;

/// How to open an engine.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// A directory of the engine's own: empty, or as a killed process of it left it.
    pub directory: PathBuf,
    /// Bytes of memory that the engine may use for everything together.
    pub memory: u64,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Protection of pages written in place.
    pub torn_writes: TornWrites,
    /// Client threads that will hold a session at the same time.
    pub threads: usize,
    /// Keyspaces to make; 1 for engines that are driven through one.
    pub keyspaces: usize,
    /// Engine options, which [`Driver::check_knobs`] has passed.
    pub knobs: Knobs,
}

/// A record of a bulk load.
pub type Loaded = (Vec<u8>, Vec<u8>);

/// A kind of engine.
pub trait Driver: Send + Sync {
    /// The bare name, as `--engines` takes it.
    fn name(&self) -> &'static str;

    /// Whether it is somebody else's engine, which ours are compared with.
    fn is_peer(&self) -> bool;

    /// Whether all its records are in memory, so that what does not fit is refused. By default they are not.
    fn keeps_all_in_memory(&self) -> bool {
        false
    }

    /// Checks engine options before anything runs.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that the engine does not have or a value out of range.
    fn check_knobs(&self, knobs: &Knobs) -> Result<()>;

    /// Whether it finds after the death of its process what it had flushed before. By default it
    /// does.
    fn reopens(&self) -> bool {
        true
    }

    /// Opens it on a directory that is empty, or on its own.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn open(&self, config: &OpenConfig) -> Result<Box<dyn Store>>;
}

/// An open engine. Shared by all client threads.
pub trait Store: Send + Sync {
    /// A handle for one client thread.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn session(&self) -> Result<Box<dyn Session>>;

    /// Brings everything to the disk; the end of `load`.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn flush(&self) -> Result<()>;

    /// Writes what is in memory or in a log to the engine's own files, before their space is
    /// measured. By default it flushes.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn settle(&self) -> Result<()> {
        self.flush()
    }

    /// Counters since the engine was opened. By default it counts nothing.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn counters(&self) -> Result<Counters> {
        Ok(Counters::default())
    }

    /// What the engine looks like inside, counted since it was opened. By default it has nothing to
    /// tell.
    fn describe(&self) -> Option<Shape> {
        None
    }

    /// The memory of some keyspaces together. By default it does not tell.
    fn memory_of(&self, _keyspaces: &[usize]) -> Option<KeyspaceMemory> {
        None
    }

    /// Whether [`Session::bulk_load`] has a way of the engine's own. By default it has none.
    fn has_bulk_load(&self) -> bool {
        false
    }

    /// What the engine really does, where that differs from what was asked for.
    fn terms(&self) -> Terms;

    /// Closes the engine in order. By default it is dropped.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// One client thread of an open engine.
pub trait Session: Send {
    /// Operations go to this keyspace from now on; to the first one until it is said. By default
    /// there is only one.
    fn turn_to(&mut self, _keyspace: usize) {}

    /// Reads the value of `key` into `value`, which is cleared first; whether it was there.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Reads the values of many keys and shows each, with the place of its key among `keys`. By
    /// default one after the other.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn get_many(
        &mut self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let mut value = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let found = self.get(key, &mut value)?;
            show(place, found.then_some(&value));
        }
        Ok(())
    }

    /// Writes a record that is not there yet.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes records with ascending keys into a keyspace that is empty. By default one after the
    /// other.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn bulk_load(&mut self, records: &mut dyn Iterator<Item = Loaded>) -> Result<()> {
        for (key, value) in records {
            self.insert(&key, &value)?;
        }
        Ok(())
    }

    /// Writes a record that is there.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.insert(key, value)
    }

    /// Removes a record.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn remove(&mut self, key: &[u8]) -> Result<()>;

    /// Shows up to `limit` records from `start` on, in key order, to `visit`.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn scan(
        &mut self,
        start: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()>;

    /// Shows the records whose keys begin with `prefix`, at most `limit`, in key order. By default a
    /// scan of `limit` records of which the others are not shown.
    ///
    /// # Errors
    /// Whatever the engine says.
    fn prefix(
        &mut self,
        prefix: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        self.scan(prefix, limit, &mut |key, value| {
            if key.starts_with(prefix) {
                visit(key, value);
            }
        })
    }
}

/// The least key above all that begin with `prefix`; `None` if there is none.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// What ranges read, since an engine was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Pages, cached or not.
    pub pages: u64,
    /// Records, delivered or skipped.
    pub records: u64,
    /// Removed records that were skipped.
    pub tombstones: u64,
}

/// Memory of some keyspaces together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceMemory {
    /// Bytes that they may hold.
    pub target: u64,
    /// Bytes that they hold.
    pub used: u64,
}

/// Counters since an engine was opened; `None` where unknown.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// I/O by purpose; the process's own counters are used when this is unknown.
    pub io: Option<IoSnapshot>,
    /// Reads answered from memory.
    pub cache_hits: Option<u64>,
    /// Reads that went to the disk.
    pub cache_misses: Option<u64>,
    /// Pages read.
    pub pages_read: Option<u64>,
    /// What ranges looked at.
    pub scanned: Option<Scanned>,
    /// Time that writers waited, in milliseconds.
    pub stall_ms: Option<f64>,
    /// Writes that waited for a sync of the log.
    pub commits: Option<u64>,
    /// Flushes of the log to stable storage.
    pub log_flushes: Option<u64>,
}

/// The terms under which an engine was measured.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The version to print.
    pub version: String,
    /// How torn writes are met, for example `assume-4k` or `copy-on-write`.
    pub torn_writes: String,
    /// Whether the memory budget is kept.
    pub memory_limited: bool,
    /// What a reader of the table must know, a sentence each.
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(&[7, 255, 255]), Some(vec![8]));
        assert_eq!(prefix_end(&[255, 255]), None);
        assert_eq!(prefix_end(&[]), None);
    }
}
