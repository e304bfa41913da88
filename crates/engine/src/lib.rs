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
//! **Visibility.** Every later `get` of a key sees what `apply` did. The database validates point
//! reads against the key's stripe, so an engine may answer with any value that the key had during
//! the call.
//!
//! **The writers' guard.** A batch enters every engine that it writes to before it prepares
//! anything, and leaves after the last `apply` or `cancel` ([`Engine::enter`]). To seal a memtable
//! or to take a snapshot, an engine must divide earlier writes from later ones. It waits until no
//! batch is inside: no batch is then half on either side, and every LSN of one side is below every
//! LSN of the other (rules P1 and P25).
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
pub mod overlay;
mod patch;
mod row;
mod salvage;
mod scan;
mod scrub;
mod snapshot;
mod stats;
mod versioned;

pub use backup::KeyspaceBackup;
pub use compact::Compacted;
pub use context::EngineContext;
pub use journal::{Journal, log_is_full};
pub use maintain::Maintain;
pub use notes::Notes;
pub use patch::Patch;
pub use row::{OpenSalvage, OwnOptions, Proving, Row, StateSeen, Watched};
pub use salvage::{KeyspaceSalvage, LostRange, SalvageFindings, Show, Span};
pub use scan::{Chunk, Direction, ScanRequest};
pub use scrub::{DamagedPage, Scrubbed, scrub};
pub use snapshot::{ClosedGate, EngineSnapshot, SnapshotNumber, SnapshotStats};
pub use spinney_extent::header::Damage;
pub use spinney_extent::large::POINTER_BYTES_MAX;
pub use spinney_extent::large_io::{CALL_BYTES as LARGE_CALL_BYTES, Pieces as LargePieces};
pub use spinney_extent::values::{Pin, Values};
pub use spinney_extent::{BlockKind, LargePointer, SalvagedValue, Store, mend_copied_slots};
pub use spinney_ssn::Certifier;
pub use stats::{EngineStats, PagesByKind, PreImageStats, TurtleStats, VerifyReport, Watch};
pub use versioned::{Cell, OlderImage, SeenAt, UndoBytes, Versioned, Whereabouts};

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Generation, Lsn, Result, ValueRef};

/// What a keyspace can do beyond points and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether keys are ordered: ranges, prefixes, first and last.
    pub ordered: bool,
    /// Whether it has repeatable views of one moment.
    pub snapshots: bool,
    /// Whether it takes part in serializable transactions.
    pub transactions: bool,
    /// Whether data may be larger than the memory budget.
    pub larger_than_memory: bool,
    /// Whether records have versions: transactions are certified by their stamps ([`Versioned`]).
    pub versions: bool,
}

impl Capabilities {
    /// Points and batches alone, with all data in memory. An engine adds what it can do.
    pub const LEAST: Capabilities = Capabilities {
        ordered: false,
        snapshots: false,
        transactions: false,
        larger_than_memory: false,
        versions: false,
    };
}

/// One write of one key.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The key.
    pub key: &'a [u8],
    /// `hash_key` of the key, computed once for stripes and caches.
    pub hash: u64,
    /// The new value or the pointer to it; `None` removes the key.
    pub value: Option<ValueRef<'a>>,
}

/// What [`Engine::prepare`] passes to [`Engine::apply`]: two words with a meaning of the engine's
/// own, such as reserved bytes, a pinned leaf or the slot of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "what was prepared is applied or cancelled"]
pub struct Prepared(pub [u64; 2]);

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key has no value.
    Absent,
    /// The key has a value, which was appended to the output.
    Inline,
    /// The key has a large value: the pointer to it was appended.
    Large,
}

/// A value, or the pointer to it, as a lookup of many keys returns it.
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
    /// Borrows the value.
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

/// What memory knows of a key, without I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// The key has a value, which was appended to the output.
    Present,
    /// The key has a large value: the pointer to it was appended.
    Large,
    /// The key has no value.
    Absent,
    /// Only the disk knows.
    Unknown,
}

/// Makes the error for a key of a bulk load that does not come behind the last one.
#[cold]
#[must_use]
pub fn not_ascending(last: &[u8], key: &[u8]) -> Error {
    let (key, last) = (key.escape_ascii(), last.escape_ascii());
    Error::invalid(format!("keys of a bulk load ascend, but \"{key}\" follows \"{last}\""))
}

/// A load of sorted records into an empty keyspace (rule P15). Dropping it leaves nothing behind.
pub trait Bulk: Debug {
    /// Adds the next record. The caller wrote what a pointer names with [`Values::write`]; from
    /// here on it belongs to the load.
    ///
    /// # Errors
    /// `InvalidArgument` when its key does not follow the one before or it is too large; `Full`,
    /// `Poisoned` or `Io`. The load is to be dropped then; only where the engine has told its account what it lacks
    /// ([`MemoryAccount::set_lacked`](spinney_base::MemoryAccount::set_lacked)), nothing has changed.
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()>;

    /// Makes all records visible and durable at once. It is called while no write and no checkpoint
    /// is under way. `number` is drawn for the load; snapshots with lesser numbers do not see the
    /// records (rule S17).
    ///
    /// # Errors
    /// `InvalidArgument` when the keyspace is not empty; `Full`, `Poisoned` or `Io`: the keyspace
    /// is as it was.
    fn install(self: Box<Self>, number: SnapshotNumber) -> Result<()>;
}

/// How long [`Maintain::background`] asks to wait when it found nothing to do, and only then.
pub const IDLE: Duration = Duration::from_millis(20);

/// The engine of one keyspace: points, ranges, writes, checkpoints and recovery. [`Maintain`] has
/// its maintenance.
pub trait Engine: Maintain + Send + Sync + Debug {
    /// Returns what the engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns whether replaying more log than fits into memory costs about as much as writing it
    /// did, because the engine writes back in bulk. Otherwise the log is kept short enough for
    /// memory.
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

    /// Appends the key's value, or the pointer to a large one, to `out`, and says which.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found>;

    /// Does the same from memory only; it may be called under a stripe.
    fn get_resident(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Resident;

    /// Answers many gets, in parallel where the engine can. The results are in the order of the
    /// keys.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of the first that failed.
    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        OwnedValue::each(keys, |key, hash, out| self.get(key, hash, out))
    }

    /// Enters the engine for a batch that writes to this keyspace, once for all keys of the batch.
    /// Each success is followed by exactly one [`Engine::leave`]. A batch enters its engines in
    /// ascending order of keyspace ids, and holds no lock except the door. It may wait here for as
    /// long as the background is behind. [`Engine::prepare`] asks for everything else that the
    /// batch needs.
    ///
    /// # Errors
    /// As [`Engine::prepare`], when what was written before has no room left for more; nothing has
    /// changed, and it was not entered.
    fn enter(&self) -> Result<()> {
        Ok(())
    }

    /// Leaves the engine: everything that the batch prepared was applied or cancelled. It cannot
    /// fail or wait.
    fn leave(&self) {}

    /// Reserves space for a write, so that [`Engine::apply`] cannot fail, and returns what apply
    /// needs. Each success is followed by exactly one `apply` or [`Engine::cancel`] of an equal
    /// write with the returned value.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; nothing has changed.
    fn prepare(&self, write: &Write<'_>) -> Result<Prepared>;

    /// Gives back what [`Engine::prepare`] reserved.
    fn cancel(&self, write: &Write<'_>, prepared: Prepared);

    /// Makes the write visible. It is called under the key's stripe, after the log has the write at
    /// `lsn`; in a keyspace without a log `lsn` is [`Lsn::ZERO`]. Replay passes the LSN of the
    /// record that it replays. `newest` is the number of the newest snapshot that the batch follows,
    /// [`SnapshotNumber::NONE`] while none lives. It cannot fail, wait or do I/O.
    fn apply(&self, write: &Write<'_>, prepared: Prepared, lsn: Lsn, newest: SnapshotNumber);

    /// Loads a key's value, or the knowledge that it has none, into memory, so that
    /// [`Engine::get_resident`] is likely to know (rule P4).
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn make_resident(&self, key: &[u8], hash: u64) -> Result<()>;

    /// Returns what an engine does for transactions that keeps versions of its records. Others are validated by
    /// what they have read.
    fn versioned(&self) -> Option<&dyn Versioned> {
        None
    }

    /// Appends records of the range to the chunk, in order, until the chunk is full or the range
    /// ends (rule P24). Each record has some value that its key had during the call. No key is
    /// missed that was present throughout.
    ///
    /// # Errors
    /// `Unsupported` when keys are not ordered; `Corruption` or `Io`.
    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()>;

    /// Writes everything that was applied up to `redo` to the keyspace's own files, and publishes
    /// it (rule P14). [`Engine::redo`] says how far it came: beyond `redo` where the engine knows
    /// more, and short of it where the caller itself is inside a batch.
    ///
    /// # Errors
    /// `Full` (the checkpoint before stands), `Poisoned`, `Io` or `Corruption`.
    fn checkpoint(&self, redo: Lsn) -> Result<()>;

    /// Takes a checkpoint that may last. Between pieces of the work it calls `rest` with the
    /// finished share, from 0 to 1. `rest` waits, and says whether the checkpoint may still take
    /// its time. An engine with little to do never calls it.
    ///
    /// # Errors
    /// As [`Engine::checkpoint`].
    fn checkpoint_slowly(&self, redo: Lsn, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        let _ = rest;
        self.checkpoint(redo)
    }

    /// Returns whether memory holds writes that the keyspace's own files lack. It waits for no I/O.
    fn is_dirty(&self) -> bool;

    /// Returns the LSN up to which the keyspace's own files hold everything.
    fn redo(&self) -> Lsn;

    /// Returns the generation of the next page, for [`Engine::resume_generations`].
    fn next_generation(&self) -> Generation {
        self.values().store().next_generation()
    }

    /// Continues the generations of an earlier opening in this process. It is called before the
    /// replay of structure ends. Earlier allocations have generations below `next`.
    fn resume_generations(&self, next: Generation) {
        self.values().store().resume_generations(next);
    }

    /// Returns whether nothing but the newest slot itself shows that it is the newest. That is so
    /// in a file of format version 1, until its first checkpoint (rule P28).
    fn is_unproven(&self) -> bool {
        self.values().store().is_unproven()
    }

    /// Returns the large values of the keyspace (rule P17). Between the structure replay and
    /// [`Engine::end_structure_replay`], the database calls [`Values::replay`] for each pointer of
    /// a record above [`Engine::redo`].
    fn values(&self) -> &Arc<Values>;

    /// Replays one structure record of this keyspace, in the order of the log, before anything else
    /// is called.
    ///
    /// # Errors
    /// `Corruption` when it does not fit what came before.
    fn replay_structure(&self, lsn: Lsn, payload: &[u8]) -> Result<()>;

    /// Ends the replay of structure. The engine restores torn pages, rebuilds what it derives, and
    /// serves reads.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn end_structure_replay(&self) -> Result<()>;

    /// Ends the replay: everything that the log has above [`Engine::redo`] went through
    /// [`Engine::apply`], and later writes lie above the log's present end. Before this call
    /// nothing may be published, because the engine cannot tell how far the replay has come (rule
    /// P19).
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    fn end_replay(&self) -> Result<()> {
        Ok(())
    }

    /// Sets an option of the engine, from now on.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that it does not have or a value out of range.
    fn set_option(&self, name: &str, value: &str) -> Result<()>;

    /// Closes the gate of an engine that takes views of itself, and waits until no batch is inside,
    /// for `patience` at most where that is given. Engines are closed in ascending order of keyspace
    /// ids. Returns `None` when a batch was inside to the end. From inside of a batch, which only a
    /// job of a stepped runtime can be, that is at once.
    fn close_gate(&self, patience: Option<Duration>) -> Option<Box<dyn ClosedGate + '_>> {
        let _ = patience;
        None
    }

    /// Returns whether the engine takes views of itself behind [`Engine::close_gate`].
    fn has_gate(&self) -> bool {
        false
    }

    /// Begins snapshot `number` in an engine that updates in place: from now on it keeps what later
    /// batches replace, those to which [`Engine::apply`] passes `number` or a greater one. It is
    /// called before any batch can have the number, and numbers ascend.
    ///
    /// # Errors
    /// `Unsupported` when the engine takes no snapshots ([`Capabilities::snapshots`]).
    fn begin_snapshot(self: Arc<Self>, number: SnapshotNumber) -> Result<Box<dyn EngineSnapshot>> {
        let _ = number;
        Err(Error::new(ErrorKind::Unsupported, "the engine of this keyspace takes no snapshots"))
    }

    /// Returns about how many bytes the records with keys from `lower` to below `upper` take,
    /// without large values. It reads no page, and may be off by a leaf or a segment at either end.
    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64;

    /// Returns the statistics of the engine.
    fn stats(&self) -> EngineStats;
}
