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
mod salvage;
mod scan;
mod scrub;
mod snapshot;
mod stats;

pub use backup::KeyspaceBackup;
pub use compact::Compacted;
pub use context::EngineContext;
pub use salvage::{KeyspaceSalvage, LostRange, SalvageFindings, Show};
pub use scan::{Chunk, Direction, ScanRequest};
pub use scrub::{DamagedPage, Scrubbed};
pub use snapshot::{EngineSnapshot, SnapshotStats};
pub use spinney_extent::header::Damage;
pub use spinney_extent::large::POINTER_BYTES_MAX;
pub use spinney_extent::large_io::CALL_BYTES as LARGE_CALL_BYTES;
pub use spinney_extent::{BlockKind, LargePointer, SalvagedValue, Store, mend_copied_slots};
pub use stats::{EngineStats, PagesByKind, TurtleStats, VerifyReport, Watch};

use std::fmt::Debug;
use std::ops::Bound;
use std::time::Duration;

use spinney_base::{Error, ErrorKind, Generation, Lsn, Next, Result, ValueRef};
use spinney_io::Directory;

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

impl From<ValueRef<'_>> for OwnedValue {
    fn from(value: ValueRef<'_>) -> Self {
        OwnedValue { bytes: value.bytes.to_vec(), large: value.large }
    }
}

/// Holds the bytes of large values that a reader found; see [`Engine::pin_large`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pin that is not ended holds space back for ever"]
pub struct LargePin(pub u64);

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
    /// Takes the next record. What a pointer names was written by [`Engine::write_large`], and is the
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

/// How long [`Engine::background`] asks to wait when it found nothing to do, and only then.
pub const IDLE: Duration = Duration::from_millis(20);

/// One keyspace's engine.
pub trait Engine: Send + Sync + Debug {
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
    fn check(&self, write: &Write<'_>) -> Result<()>;

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

    /// Makes sure that [`Engine::apply`] of this write will find room; each success is followed by
    /// exactly one `apply` or [`Engine::cancel`] of an equal write.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; nothing has changed.
    fn prepare(&self, write: &Write<'_>) -> Result<()>;

    /// Gives back what [`Engine::prepare`] took.
    fn cancel(&self, write: &Write<'_>);

    /// Makes the write visible. Called under the key's stripe, after the log has it. Cannot fail,
    /// wait or do I/O.
    fn apply(&self, write: &Write<'_>);

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

    /// Up to which LSN the keyspace's own files hold everything.
    fn redo(&self) -> Lsn;

    /// The generation that its next page gets, for [`Engine::resume_generations`].
    fn next_generation(&self) -> Generation;

    /// Goes on with the generations of an earlier opening in this process, before the replay of structure
    /// ends. What was allocated then has generations below `next`.
    fn resume_generations(&self, next: Generation);

    /// Whether nothing beside its newest slot tells that it is the newest: in a file of a released format,
    /// until its first checkpoint (rule P28).
    fn is_unproven(&self) -> bool;

    /// Whether a value of `value` bytes at a key of `key` bytes is kept outside of pages: it is to be
    /// written by [`Engine::allocate_large`], [`Engine::write_large`] and [`Engine::seal_large`], and
    /// the pointer to it put in its place (rule P17).
    fn is_large(&self, key: usize, value: u64) -> bool;

    /// Takes room for a large value of `length` bytes, at least 1. The hash of the pointer is for
    /// the caller to fill in. What was taken is put, or given back by [`Engine::release_large`].
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; nothing has changed.
    fn allocate_large(&self, length: u64) -> Result<LargePointer>;

    /// Writes bytes of a large value from `offset` on, in pieces of [`LARGE_CALL_BYTES`] but for the
    /// last. Nobody sees them yet.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    fn write_large(&self, pointer: &LargePointer, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes large values durable that were written whole. After it their pointers may be logged and
    /// put.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    fn seal_large(&self, pointers: &[LargePointer]) -> Result<()>;

    /// Gives back the room of a large value whose pointer was not logged and will not be.
    fn release_large(&self, pointer: &LargePointer);

    /// Appends bytes of a large value from `offset` on to `out`, [`LARGE_CALL_BYTES`] at most, none
    /// at its end. The pointer was looked up under a pin.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn read_large(&self, pointer: &LargePointer, offset: u64, out: &mut Vec<u8>) -> Result<()>;

    /// Keeps the bytes of all large values whose pointers are looked up from now on, though they be
    /// overwritten, until [`Engine::unpin_large`].
    fn pin_large(&self) -> LargePin;

    /// Ends a pin.
    fn unpin_large(&self, pin: LargePin);

    /// Replays that a record above [`Engine::redo`] names this pointer, in the pass of structure.
    ///
    /// # Errors
    /// `Corruption` when it does not fit what came before.
    fn replay_large(&self, pointer: &[u8]) -> Result<()>;

    /// Whether a checkpoint would give much space back.
    fn wants_checkpoint(&self) -> bool;

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

    /// Does a bounded piece of background work: write-back, publishing of structure, giving back
    /// memory.
    ///
    /// # Errors
    /// What stopped it; it is tried again later.
    fn background(&self) -> Result<Next>;

    /// Bytes of memory that it keeps though others want them: what it cannot do without now, such as its
    /// index, and the least that its caches work with. It changes with the data. Waits for no I/O.
    fn memory_floor(&self) -> u64;

    /// Whether foreground writers would like [`Engine::background`] to run now.
    fn wants_background(&self) -> bool;

    /// Reads everything and proves that it is consistent: every block, every order, and that every
    /// page is owned once or free. Counts what a scan would find. Calls `watch` after each piece, while
    /// no page is locked, with the number of its pages.
    ///
    /// # Errors
    /// `Corruption` naming the first damage; `Io`; what `watch` answers, which ends it.
    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport>;

    /// Begins a load of sorted records.
    ///
    /// # Errors
    /// `Unsupported` when the engine has none, `Poisoned`.
    fn bulk(&self) -> Result<Box<dyn Bulk + '_>>;

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

    /// Sets how many batches gather in memory before they are written, or leaves that to the engine, and
    /// answers what it is now: no more than memory and, where the keyspace is logged, the log allow.
    ///
    /// # Errors
    /// `Unsupported` when the engine has no such thing; `InvalidArgument` for 0.
    fn set_checkpoint_distance(&self, _batches: Option<u64>) -> Result<u64> {
        let message = "the engine of this keyspace has no checkpoint distance";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Reads a bounded piece of what the keyspace owns from a place on and checks it; an empty place
    /// is the start, others are what a piece before answered.
    fn scrub(&self, from: &[u8]) -> Scrubbed;

    /// Compacts a bounded piece of the records from key `from` up to the bound `upper`: what is pending
    /// for their pages is merged with them, removed records go, and pages are filled. It follows
    /// a checkpoint; what came since may stay as it is. The records and what others see of them stay the same,
    /// and what the piece frees is reused and given back as after any other change (rules P14 and P16).
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; the records are as they were.
    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted>;

    /// How much room its pages take that are in use, large values included, in bytes. Like the two below it, this is
    /// asked by writers, so it waits for no I/O.
    fn data_bytes(&self) -> u64;

    /// About how much room a checkpoint takes for what is in memory already in the form of pages, in bytes.
    fn unwritten_bytes(&self) -> u64;

    /// About how much room the smallest step takes that makes room, in bytes.
    fn step_bytes(&self) -> u64;

    /// Makes pages free on a full disk by bounded steps, each with less room than [`Engine::step_bytes`], where removed
    /// records take room that nothing else gives back.
    ///
    /// # Errors
    /// `Io`, `Corruption` or `Poisoned`. A full disk is none: what it has no room for is not done.
    fn make_room(&self) -> Result<()>;

    /// Gives the room of free pages back to the file system, where it knows holes.
    ///
    /// # Errors
    /// `Io` or `Poisoned`; the pages are free as before.
    fn give_back_room(&self) -> Result<()>;

    /// About how many bytes of pages [`Engine::compact`] goes through for a range.
    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64;

    /// Begins to copy the keyspace into a new file `name` of a directory. The copy holds everything up to the
    /// redo LSN of now. Until the result is dropped nothing that is freed is reused (rule P26).
    ///
    /// # Errors
    /// `Full` or `Io`.
    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>>;

    /// Numbers about the engine now.
    fn stats(&self) -> EngineStats;
}
