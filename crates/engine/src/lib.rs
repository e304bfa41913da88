//! The contract between the database and its engines: what an engine must do, and what it may rely
//! on.
//!
//! The database owns the log, the lock table, the manifest and the schedule; an engine owns one
//! keyspace's files and memory. A write reaches an engine in two halves: [`Engine::prepare`] may
//! fail, wait and do I/O, and holds no lock; [`Engine::apply`] runs under the key's stripe after
//! the log has the record, and cannot fail, wait or do I/O (rule P2). The rejected alternative, one
//! fallible `put`, leaves a batch over two keyspaces half-applied when the second engine meets a
//! full disk after the log has said that the batch happened.
//!
//! **Visibility.** What `apply` did is seen by every later `get` of the key. Point reads are
//! validated by the database against the key's stripe, so an engine need only answer with some
//! value that the key had during the call.
//!
//! **The writers' guard.** A batch enters every engine that it writes to before it prepares anything
//! and leaves after the last `apply` or `cancel` ([`Engine::enter`]). An engine that must divide what
//! was written before from what is written later, to seal a memtable or to take a snapshot, waits
//! until nobody is inside: no batch is half on either side then, and every LSN of one side is below
//! every LSN of the other (rules P1 and P25).
//!
//! **Threading.** Every method may be called from any thread at any time after
//! [`Engine::end_structure_replay`]; [`Engine::checkpoint`] by one thread at a time.

mod backup;
mod compact;
mod context;
pub mod covered;
mod journal;
mod maintain;
mod notes;
mod row;
mod salvage;
mod scan;
mod scrub;
mod snapshot;
mod stats;

pub use backup::KeyspaceBackup;
pub use compact::Compacted;
pub use context::EngineContext;
pub use journal::{Journal, log_is_full};
pub use maintain::Maintain;
pub use notes::Notes;
pub use row::{OpenSalvage, OwnOptions, Proving, Row, StateSeen, Watched};
pub use salvage::{KeyspaceSalvage, LostRange, SalvageFindings, Show, Span};
pub use scan::{Chunk, Direction, ScanRequest};
pub use scrub::{DamagedPage, Scrubbed, scrub};
pub use snapshot::{EngineSnapshot, SnapshotStats};
pub use spinney_extent::header::Damage;
pub use spinney_extent::large::POINTER_BYTES_MAX;
pub use spinney_extent::large_io::{CALL_BYTES as LARGE_CALL_BYTES, Pieces as LargePieces};
pub use spinney_extent::values::{Pin, Values};
pub use spinney_extent::{BlockKind, LargePointer, SalvagedValue, Store, mend_copied_slots};
pub use stats::{EngineStats, PagesByKind, TurtleStats, VerifyReport, Watch};

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Generation, Lsn, Result, ValueRef};

/// What a keyspace can do beyond points and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Keys are ordered: ranges, prefixes, first and last.
    pub ordered: bool,
    /// Repeatable views at one moment.
    pub snapshots: bool,
    /// Serializable transactions; without it, atomic batches.
    pub transactions: bool,
    /// Data may be larger than the memory budget.
    pub larger_than_memory: bool,
}

/// One write of one key.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The key.
    pub key: &'a [u8],
    /// `hash_key` of it, computed once for stripes and caches.
    pub hash: u64,
    /// The new value or the pointer to it, or `None` to remove the key.
    pub value: Option<ValueRef<'a>>,
}

/// What [`Engine::prepare`] hands to [`Engine::apply`]: two words whose meaning is the engine's, such as
/// reserved bytes, a pinned leaf or the slot of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "what was prepared is applied or cancelled"]
pub struct Prepared(pub [u64; 2]);

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key has no value.
    Absent,
    /// It has one, which was appended to the output.
    Inline,
    /// It has a large one: the pointer to it was appended.
    Large,
}

/// A value, or the pointer to it, as a lookup of many keys hands it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedValue {
    /// The value, or the encoded pointer.
    pub bytes: Vec<u8>,
    /// Whether the bytes are a pointer.
    pub large: bool,
}

impl OwnedValue {
    /// Answers many gets one by one.
    ///
    /// # Errors
    /// Of the first that failed.
    pub fn each(
        keys: &[(&[u8], u64)],
        mut get: impl FnMut(&[u8], u64, &mut Vec<u8>) -> Result<Found>,
    ) -> Result<Vec<Option<OwnedValue>>> {
        keys.iter()
            .map(|(key, hash)| {
                let mut bytes = Vec::new();
                let found = get(key, *hash, &mut bytes)?;
                let large = found == Found::Large;
                Ok((found != Found::Absent).then_some(OwnedValue { bytes, large }))
            })
            .collect()
    }
}

impl OwnedValue {
    /// The same, borrowed.
    #[must_use]
    pub fn as_value(&self) -> ValueRef<'_> {
        ValueRef { bytes: &self.bytes, large: self.large }
    }
}

impl From<ValueRef<'_>> for OwnedValue {
    fn from(value: ValueRef<'_>) -> Self {
        OwnedValue { bytes: value.bytes.to_vec(), large: value.large }
    }
}

/// What is known of a key without I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// It has a value, which was appended to the output.
    Present,
    /// It has a large value: the pointer to it was appended.
    Large,
    /// It has no value.
    Absent,
    /// Only the disk knows.
    Unknown,
}

/// A load of sorted records into an empty keyspace (rule P15). Dropped, it leaves nothing behind.
pub trait Bulk: Debug {
    /// Takes the next record. What a pointer names was written by [`Values::write`], and is the
    /// load's from here on.
    ///
    /// # Errors
    /// `InvalidArgument` when its key does not follow the one before or it is too large; `Full`,
    /// `Poisoned` or `Io`. The load is to be dropped then.
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()>;

    /// Makes all records visible and durable at once. Called while no write is under way anywhere
    /// and no checkpoint is.
    ///
    /// # Errors
    /// `InvalidArgument` when the keyspace is not empty; `Full`, `Poisoned` or `Io`: the keyspace is
    /// as it was.
    fn install(self: Box<Self>) -> Result<()>;
}

/// How long [`Maintain::background`] asks to wait when it found nothing to do, and only then.
pub const IDLE: Duration = Duration::from_millis(20);

/// One keyspace's engine: points, ranges, writes, checkpoints and recovery. What keeps it in order is
/// in [`Maintain`].
pub trait Engine: Maintain + Send + Sync + Debug {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether replay of more of the log than memory holds costs about what writing it did: the engine brings home in bulk
    /// what it must. Else the log is kept short enough for memory.
    fn replays_in_bulk(&self) -> bool {
        false
    }

    /// Checks the engine's own limits, beyond those of the contract.
    ///
    /// # Errors
    /// `InvalidArgument` naming the limit.
    fn check(&self, write: &Write<'_>) -> Result<()> {
        write.value.map_or(Ok(()), |value| self.values().check(write.key.len(), value))
    }

    /// Appends the key's value, or the pointer to a large one, to `out`; says which.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found>;

    /// As [`Engine::get`], from memory only: may be called under a stripe.
    fn get_resident(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Resident;

    /// Answers many gets, in parallel where the engine can. The outputs are in the order of the
    /// keys.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of the first that failed.
    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        OwnedValue::each(keys, |key, hash, out| self.get(key, hash, out))
    }

    /// A batch begins that writes to this keyspace, once however many of its keys it writes. Each
    /// success is followed by exactly one [`Engine::leave`]. A batch enters its engines in ascending
    /// order of keyspace ids and holds no lock but the door. It may wait here for as long as the
    /// background is behind; what it needs beyond that is asked for by [`Engine::prepare`].
    ///
    /// # Errors
    /// As [`Engine::prepare`], when what was written before has no room left for more; nothing has
    /// changed, and it was not entered.
    fn enter(&self) -> Result<()> {
        Ok(())
    }

    /// Everything that the batch prepared was applied or cancelled. Cannot fail or wait.
    fn leave(&self) {}

    /// Makes room for a write, so that [`Engine::apply`] cannot fail, and returns what apply needs.
    /// Each success is followed by exactly one `apply` or [`Engine::cancel`] of an equal write with what
    /// was returned.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; nothing has changed.
    fn prepare(&self, write: &Write<'_>) -> Result<Prepared>;

    /// Gives back what [`Engine::prepare`] took.
    fn cancel(&self, write: &Write<'_>, prepared: Prepared);

    /// Makes the write visible. Called under the key's stripe, after the log has the write at `lsn`,
    /// or has none of it where that is [`Lsn::ZERO`]: the keyspace is not logged. Replay passes the
    /// LSN of the record that it replays. Cannot fail, wait or do I/O.
    fn apply(&self, write: &Write<'_>, prepared: Prepared, lsn: Lsn);

    /// Brings a key into memory with its value or the knowledge that it has none, so that
    /// [`Engine::get_resident`] is likely to know (rule P4).
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn make_resident(&self, key: &[u8], hash: u64) -> Result<()>;

    /// Appends records of the range to the chunk, in order, until the chunk is full or the range
    /// ends (rule P24). Each record is some value that its key had during the call; no key is
    /// missed that was there throughout.
    ///
    /// # Errors
    /// `Unsupported` when keys are not ordered; `Corruption` or `Io`.
    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()>;

    /// Brings everything that was applied up to `redo` into the keyspace's own files and publishes
    /// it (rule P14). [`Engine::redo`] says how far it came: beyond `redo` where the engine knows
    /// more, and short of it where the caller itself is inside a batch.
    ///
    /// # Errors
    /// `Full` (the checkpoint before stands), `Poisoned`, `Io` or `Corruption`.
    fn checkpoint(&self, redo: Lsn) -> Result<()>;

    /// The same for who is in no hurry: between pieces of the work `rest` is called with the share of it
    /// that is done, from 0 to 1, takes its time, and says whether there is more of it. An engine that has little to do never calls it.
    ///
    /// # Errors
    /// As [`Engine::checkpoint`].
    fn checkpoint_slowly(&self, redo: Lsn, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        let _ = rest;
        self.checkpoint(redo)
    }

    /// Whether memory holds writes that the keyspace's own files lack. Waits for no I/O.
    fn is_dirty(&self) -> bool;

    /// Up to which LSN the keyspace's own files hold everything.
    fn redo(&self) -> Lsn;

    /// The generation that its next page gets, for [`Engine::resume_generations`].
    fn next_generation(&self) -> Generation {
        self.values().store().next_generation()
    }

    /// Goes on with the generations of an earlier opening in this process, before the replay of structure
    /// ends. What was allocated then has generations below `next`.
    fn resume_generations(&self, next: Generation) {
        self.values().store().resume_generations(next);
    }

    /// Whether nothing beside its newest slot tells that it is the newest: in a file of a released format,
    /// until its first checkpoint (rule P28).
    fn is_unproven(&self) -> bool {
        self.values().store().is_unproven()
    }

    /// Its large values (rule P17). Between the structure replay and [`Engine::end_structure_replay`]
    /// the database calls [`Values::replay`] for each pointer of a record above [`Engine::redo`].
    fn values(&self) -> &Arc<Values>;

    /// Replays one structure record of this keyspace, in the order of the log, before anything else
    /// is called.
    ///
    /// # Errors
    /// `Corruption` when it does not fit what came before.
    fn replay_structure(&self, lsn: Lsn, payload: &[u8]) -> Result<()>;

    /// Ends the replay of structure: the engine restores torn pages, rebuilds what it derives, and
    /// serves.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn end_structure_replay(&self) -> Result<()>;

    /// Everything that the log has above [`Engine::redo`] was replayed through [`Engine::apply`]: what
    /// is written from here on lies above the log's end of now. Until then nothing may be published,
    /// for the engine cannot tell how far the replay has come (rule P19).
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    fn end_replay(&self) -> Result<()> {
        Ok(())
    }

    /// Sets an option of the engine's own, which holds from now on.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that it does not have or a value out of range.
    fn set_option(&self, name: &str, value: &str) -> Result<()>;

    /// Takes a view of the keyspace as it is at one moment between two batches (rule P25).
    ///
    /// # Errors
    /// `Unsupported` when the engine has none ([`Capabilities::snapshots`]); `InvalidArgument` from
    /// inside of a batch, where the engine cannot wait for its end.
    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>> {
        Err(Error::new(ErrorKind::Unsupported, "the engine of this keyspace takes no snapshots"))
    }

    /// About how many bytes the records take whose keys lie from `lower` to below `upper`, large
    /// values not counted. Reads no page; it may be off by what a leaf or a segment holds at either
    /// end.
    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64;

    /// Numbers about the engine now.
    fn stats(&self) -> EngineStats;
}
