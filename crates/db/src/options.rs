//! What a user chooses. Few things: the rest follows from the budget and the data.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::MEMORY_BYTES_MIN;
use spinney_base::{Error, Result, Runtime};
use spinney_io::{Disk, RealDisk, machine_memory_bytes};

use crate::engines::EngineKind;
pub use spinney_wal::{Durability, LogMemory};

/// How pages that are rewritten in place are protected from tearing when the power fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TornWrites {
    /// Ask the device; unless it promises to write a page whole or not at all, as
    /// [`TornWrites::DoubleWrite`].
    #[default]
    Auto,
    /// Every page goes through the double-write area first.
    DoubleWrite,
    /// Trust the device to write 4 KiB whole or not at all.
    Assume4k,
}

impl TornWrites {
    /// The name that options and output use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TornWrites::Auto => "auto",
            TornWrites::DoubleWrite => "double-write",
            TornWrites::Assume4k => "assume-4k",
        }
    }
}

impl FromStr for TornWrites {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [TornWrites::Auto, TornWrites::DoubleWrite, TornWrites::Assume4k]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| {
                Error::invalid(format!("{text:?} is not auto, double-write or assume-4k"))
            })
    }
}

/// How a database is opened.
///
/// ```
/// use spinney_db::{Durability, Options};
/// let options = Options::default().memory(64 << 20).durability(Durability::Buffered);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) memory: u64,
    pub(crate) durability: Durability,
    pub(crate) torn_writes: TornWrites,
    pub(crate) log_bytes_max: u64,
    pub(crate) log_memory: LogMemory,
    pub(crate) scrub_bytes_per_second: u64,
    pub(crate) create_if_missing: bool,
    pub(crate) poll_reads: bool,
    pub(crate) read_only: bool,
    /// Most bytes of pages that an opening for reading may write to memory, if not a part of the budget.
    pub(crate) replay_bytes_max: Option<u64>,
    /// A keyspace that nobody has used for so long is parked.
    pub(crate) park_after: Duration,
    /// Whether this is a salvage's own new database.
    pub(crate) salvaging: bool,
    pub(crate) disk: Option<Arc<dyn Disk>>,
    pub(crate) runtime: Option<Runtime>,
}

/// Smallest log, in bytes.
pub const LOG_BYTES_MIN: u64 = 1 << 20;

/// Largest log, in bytes: 16 TiB, the longest file of the file systems that are common.
pub const LOG_BYTES_MAX: u64 = 1 << 44;

/// A keyspace that nobody has used for so long is parked: long enough for the background to have tidied up, as it
/// begins to do after a second, and short enough that many keyspaces used in turn are not all open.
const PARK_AFTER: Duration = Duration::from_secs(5);

impl Default for Options {
    fn default() -> Self {
        Options {
            memory: 64 << 20,
            durability: Durability::Sync,
            torn_writes: TornWrites::Auto,
            log_bytes_max: 256 << 20,
            log_memory: LogMemory::Automatic,
            scrub_bytes_per_second: 1 << 20,
            create_if_missing: true,
            poll_reads: true,
            read_only: false,
            replay_bytes_max: None,
            park_after: PARK_AFTER,
            salvaging: false,
            disk: None,
            runtime: None,
        }
    }
}

impl Options {
    /// The memory budget in bytes, at least [`MEMORY_BYTES_MIN`] and at most what the machine has with its swap;
    /// default 64 MiB. Caches, indexes and buffers together stay under it, and take what the data needs of it.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// How safe a write is when it returns, unless it says otherwise itself; default
    /// [`Durability::Sync`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How pages are protected from tearing; default [`TornWrites::Auto`].
    #[must_use]
    pub fn torn_writes(mut self, mode: TornWrites) -> Self {
        self.torn_writes = mode;
        self
    }

    /// Most bytes that the log takes on disk, from [`LOG_BYTES_MIN`] to [`LOG_BYTES_MAX`]; default 256 MiB. It
    /// bounds how much a recovery has to replay.
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> Self {
        self.log_bytes_max = bytes;
        self
    }

    /// Whether the log uses persistent memory; default [`LogMemory::Automatic`]: where the directory is
    /// on a file system with direct access to it (DAX). A write with [`Durability::Sync`] then writes back the cache
    /// lines of its log record instead of a block, and waits for no device. Everywhere else this changes nothing.
    #[must_use]
    pub fn log_memory(mut self, memory: LogMemory) -> Self {
        self.log_memory = memory;
        self
    }

    /// About how many bytes per second a background job reads of all that is kept, to find damage
    /// before what it took is needed; default 1 MiB, 0 for none. It reads less while lookups read
    /// much.
    #[must_use]
    pub fn scrub_bytes_per_second(mut self, bytes: u64) -> Self {
        self.scrub_bytes_per_second = bytes;
        self
    }

    /// Whether a database is made where none is; default yes.
    #[must_use]
    pub fn create_if_missing(mut self, yes: bool) -> Self {
        self.create_if_missing = yes;
        self
    }

    /// Whether the database is opened for reading only; default no. No byte of its files changes, and
    /// nothing is made: it may lie on a file system that is mounted read-only, and belong to somebody
    /// else. Any number of processes may read it so at once; one that writes keeps them out, and they
    /// it. After a crash the log is replayed in memory. Writes answer
    /// [`ReadOnly`](spinney_base::ErrorKind::ReadOnly).
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// use spinney_db::{Db, ErrorKind, KeyspaceOptions, Options};
    /// let db = Db::open(directory.path(), Options::default())?;
    /// db.keyspace("fruit", KeyspaceOptions::default())?.insert(b"apple", b"red")?;
    /// db.close()?;
    /// let one = Db::open(directory.path(), Options::default().read_only(true))?;
    /// let other = Db::open(directory.path(), Options::default().read_only(true))?;
    /// let fruit = one.existing_keyspace("fruit")?;
    /// assert!(other.existing_keyspace("fruit")?.contains_key(b"apple")?);
    /// assert_eq!(fruit.remove(b"apple").unwrap_err().kind(), ErrorKind::ReadOnly);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Most bytes of memory that an opening for reading may take for pages that the replay of the log
    /// writes; default a quarter of the budget, which the budget then lacks. Bytes given here come on
    /// top of the budget.
    #[must_use]
    pub fn replay_bytes_max(mut self, bytes: u64) -> Self {
        self.replay_bytes_max = Some(bytes);
        self
    }

    /// Whether a thread that has to read from the device polls for the end of it, for up to a quarter of a
    /// millisecond, before it sleeps; default yes. What it read then arrives some 30 us sooner where a processor that
    /// has nothing to do is slow to come back, as in most virtual machines. Only time that no other thread wants goes
    /// into it, and none where a control group limits the process; turn it off where the processor's rest is worth more
    /// to you than that, as on a battery. A disk given by [`Options::disk`] decides for itself.
    #[must_use]
    pub fn poll_reads(mut self, yes: bool) -> Self {
        self.poll_reads = yes;
        self
    }

    /// After how long without use a keyspace is parked; 5 s if nothing is said. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn park_after(mut self, time: Duration) -> Self {
        self.park_after = time;
        self
    }

    /// Where files live; default the operating system's. For tests that simulate a disk.
    #[must_use]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = Some(disk);
        self
    }

    /// What runs background work and tells time; default threads. For tests that step them.
    #[must_use]
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// The disk that was given, or the operating system's.
    pub(crate) fn open_disk(&self) -> Arc<dyn Disk> {
        let own = || Arc::new(RealDisk::new().poll_reads(self.poll_reads)) as Arc<dyn Disk>;
        self.disk.clone().unwrap_or_else(own)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.memory < MEMORY_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a memory budget of {} bytes is below the smallest (MEMORY_BYTES_MIN, {MEMORY_BYTES_MIN})",
                self.memory
            )));
        }
        let most = machine_memory_bytes();
        if self.memory > most {
            return Err(Error::invalid(format!(
                "a memory budget of {} bytes is more than this machine has, {most} bytes with its swap",
                self.memory
            )));
        }
        if self.log_bytes_max < LOG_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a log of {} bytes is below the smallest (LOG_BYTES_MIN, {LOG_BYTES_MIN})",
                self.log_bytes_max
            )));
        }
        if self.log_bytes_max > LOG_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a log of {} bytes is above the largest (LOG_BYTES_MAX, {LOG_BYTES_MAX})",
                self.log_bytes_max
            )));
        }
        Ok(())
    }
}

/// How a keyspace is made. An existing keyspace keeps its engine and whether it is logged: [`Db::keyspace`](crate::Db::keyspace)
/// refuses other ones, and [`Db::existing_keyspace`](crate::Db::existing_keyspace) opens it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceOptions {
    pub(crate) kept: KeptOptions,
    /// Options of the engine's own, by name.
    pub(crate) own: Vec<(String, String)>,
}

/// What a keyspace is for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptOptions {
    pub(crate) engine: EngineKind,
    pub(crate) logged: bool,
}

impl Default for KeptOptions {
    fn default() -> Self {
        KeptOptions { engine: EngineKind::default(), logged: true }
    }
}

impl KeyspaceOptions {
    /// Which engine keeps it; default TreeLine.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.kept.engine = engine;
        self
    }

    /// Whether writes are logged; default yes. Without, a crash takes each key back to its value at
    /// the last checkpoint or some later one, and nothing is promised across keys (rule P11).
    #[must_use]
    pub fn logged(mut self, yes: bool) -> Self {
        self.kept.logged = yes;
        self
    }

    /// Sets an option of the engine's own by name, for programs that take options as text, as
    /// `spinney bench --<engine>.<option>` does. Others use [`TreeLineOptions`](crate::TreeLineOptions),
    /// [`TurtleOptions`](crate::TurtleOptions) and [`TwoBTreeOptions`](crate::TwoBTreeOptions), which list
    /// the options. Choose the engine first. An option holds from the opening of the keyspace until the
    /// database is closed.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// use spinney_db::KeyspaceOptions;
    /// let options = KeyspaceOptions::default().set("page-grouping", "off")?;
    /// assert!(KeyspaceOptions::default().set("colour", "red").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a name that the engine does not have or a value out of range.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self> {
        self.check_own(name, value)?;
        self.own.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Options of the engine's own, checked when the keyspace is opened.
    pub(crate) fn own(mut self, own: Vec<(String, String)>) -> Self {
        self.own = own;
        self
    }

    fn check_own(&self, name: &str, value: &str) -> Result<()> {
        (self.kept.engine.row().check_option)(name, value)
    }

    /// Checks that all options are the engine's, which may have been chosen after them.
    pub(crate) fn check(&self) -> Result<()> {
        self.own.iter().try_for_each(|(name, value)| self.check_own(name, value))
    }
}

/// What a transaction is protected from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Everything: it is as if transactions ran one after the other.
    #[default]
    Serializable,
    /// It sees one moment, and conflicts if another transaction has written first what it writes. Two that each read
    /// what the other writes may both commit (write skew), and serializable ones are not protected from it. For
    /// keyspaces with versions (`iot`) only; meant for comparison.
    Snapshot,
}
