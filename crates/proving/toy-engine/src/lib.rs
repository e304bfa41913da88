//! The toy: the smallest engine that keeps the contract, and the example of
//! `docs/adding-an-engine.md`. All records are in one ordered map in memory; a checkpoint writes all
//! of them.
//!
//! ```text
//!   put ----> map in memory            store file
//!                 |              +-------+-------------------------+--------------+
//!                 +- checkpoint->| slots | payload: records, extents| large values |
//!                                +-------+-------------------------+--------------+
//! ```
//!
//! | size | field of the payload | meaning |
//! |---|---|---|
//! | 8 | records | how many follow |
//! | n | record | key length `u32`, value length `u32`, large `u8` (0 or 1), key, value or pointer |
//! | 8 | extents | how many follow |
//! | 9 each | large extent | as [`LargeExtent::encode`] writes it |
//!
//! All integers are little-endian; a new keyspace has no payload. Checksums are the store's.
//!
//! **Invariants**
//! 1. Positions of large values are LSNs. A checkpoint holds every record up to its redo LSN, and
//!    perhaps later ones, which replay applies again.
//! 2. No checkpoint is published while the log is replayed: its LSN would be one that was not reached
//!    (P19).
//!
//! **Concurrency.** `publishing` is taken before `records`, and the locks of store and values after it.
//!
//! **Not for use**: a checkpoint costs as much as all data, readers wait while it copies the records,
//! and memory has to hold them whatever the budget says.
#![forbid(unsafe_code)]

mod maintain;
mod payload;
mod salvage;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{Error, Lsn, Result, Stalls, ValueRef, probe};
use spinney_engine::{
    Capabilities, Chunk, Direction, Engine, EngineContext, EngineStats, Found, OwnedValue,
    Prepared, Proving, Resident, Row, ScanRequest, SnapshotNumber, Watched, Write,
};
use spinney_extent::header::BlockKind;
use spinney_extent::values::Owner;
use spinney_extent::{Checkpoint, Store, Values};

/// The toy's row in the registry.
pub const ROW: Row = Row {
    name: "toy",
    number: 250,
    capabilities: Toy::CAPABILITIES,
    record_overhead: RECORD_OVERHEAD_BYTES,
    create: |context, redo| Ok(Arc::new(Toy::create(context, redo)?) as Arc<dyn Engine>),
    open: |context| Ok(Arc::new(Toy::open(context)?) as Arc<dyn Engine>),
    salvage: |directory, name, keyspace, _| {
        Ok(Box::new(salvage::ToySalvage::open(directory, name, keyspace)?))
    },
    check_option,
    // It writes none, but a file of it must not be taken for another engine's.
    blocks: &[BlockKind::new(250, "toy")],
    purposes: &[],
    proving: Proving { options: &[&[]], states: [&[], &[]], watched: Watched::Nowhere },
};

/// Records whose key and value have more bytes keep the value as a large value.
const RECORD_BYTES_MAX: usize = 2048;

/// What a record takes in memory beside its bytes, about.
const RECORD_OVERHEAD_BYTES: u64 = 64;

type Records = BTreeMap<Vec<u8>, OwnedValue>;

/// A keyspace of the toy. Thread-safe.
#[derive(Debug)]
pub struct Toy {
    context: EngineContext,
    values: Arc<Values>,
    records: RwLock<Records>,
    /// Bytes that the records take in memory.
    bytes: AtomicU64,
    /// The newest checkpoint's redo LSN.
    redo: AtomicU64,
    is_dirty: AtomicBool,
    is_replaying: AtomicBool,
    checkpoints: AtomicU64,
    /// Held by whoever publishes a checkpoint.
    publishing: Mutex<()>,
}

/// Positions are LSNs.
#[derive(Debug)]
struct ByLsn(EngineContext);

impl Owner for ByLsn {
    fn position(&self) -> u64 {
        self.0.log.last_lsn().0
    }

    fn position_of_replayed(&self) -> u64 {
        u64::MAX
    }
}

/// Refuses every option: the toy has none.
fn check_option(name: &str, _value: &str) -> Result<()> {
    Err(Error::invalid(format!("toy has no option {name:?}; there is none")))
}

fn bytes_of(key: &[u8], value: usize) -> u64 {
    (key.len() + value) as u64 + RECORD_OVERHEAD_BYTES
}

impl Toy {
    /// What toy keyspaces can do.
    pub const CAPABILITIES: Capabilities = {
        let mut it = Capabilities::LEAST;
        it.ordered = true;
        it.transactions = true;
        it
    };

    /// Makes a new keyspace, empty, whose log records all come after `redo`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn create(context: EngineContext, redo: Lsn) -> Result<Toy> {
        let store =
            Store::create(&*context.directory, &context.name, context.store_options(), redo)?;
        Self::assemble(context, store, redo, &[])
    }

    /// Opens a keyspace at its newest checkpoint.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn open(context: EngineContext) -> Result<Toy> {
        let (store, checkpoint, payload) =
            Store::open(&*context.directory, &context.name, context.store_options())?;
        Self::assemble(context, store, checkpoint.redo, &payload)
    }

    fn assemble(context: EngineContext, store: Store, redo: Lsn, payload: &[u8]) -> Result<Toy> {
        let decoded = payload::decode(payload);
        let (records, list) = decoded.map_err(|error| error.context(context.path().display()))?;
        let bytes = records.iter().map(|(key, value)| bytes_of(key, value.bytes.len())).sum();
        let owner = Box::new(ByLsn(context.clone()));
        let values = Values::new(Arc::new(store), RECORD_BYTES_MAX, owner, list);
        context.memory.set_used(bytes);
        Ok(Toy {
            context,
            values,
            records: RwLock::new(records),
            bytes: AtomicU64::new(bytes),
            redo: AtomicU64::new(redo.0),
            is_dirty: AtomicBool::new(false),
            is_replaying: AtomicBool::new(true),
            checkpoints: AtomicU64::new(0),
            publishing: Mutex::new(()),
        })
    }

    /// Publishes these records and the large values that were live up to `redo`. The caller holds
    /// `publishing`.
    fn publish(&self, payload: &[u8], redo: Lsn) -> Result<()> {
        let log = &self.context.log;
        let durable = || log.ensure_durable(log.last_lsn());
        let checkpoint = Checkpoint { redo, structure: 0 };
        self.values.store().publish(checkpoint, payload, durable)?;
        self.redo.store(redo.0, SeqCst);
        self.checkpoints.fetch_add(1, SeqCst);
        Ok(())
    }

    fn count(&self, more: u64, fewer: u64) {
        let before = self.bytes.fetch_add(more.wrapping_sub(fewer), SeqCst);
        self.context.memory.set_used(before.wrapping_add(more).wrapping_sub(fewer));
    }
}

impl Engine for Toy {
    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    fn replays_in_bulk(&self) -> bool {
        true
    }

    fn check(&self, write: &Write<'_>) -> Result<()> {
        write.value.map_or(Ok(()), |value| self.values.check(write.key.len(), value))
    }

    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        Ok(match self.get_resident(key, hash, out) {
            Resident::Present => Found::Inline,
            Resident::Large => Found::Large,
            Resident::Absent | Resident::Unknown => Found::Absent,
        })
    }

    fn get_resident(&self, key: &[u8], _hash: u64, out: &mut Vec<u8>) -> Resident {
        let records = self.records.read();
        let Some(value) = records.get(key) else { return Resident::Absent };
        out.extend_from_slice(&value.bytes);
        if value.large { Resident::Large } else { Resident::Present }
    }

    fn prepare(&self, _write: &Write<'_>) -> Result<Prepared> {
        self.context.poison.check()?;
        Ok(Prepared::default())
    }

    fn cancel(&self, _write: &Write<'_>, _prepared: Prepared) {}

    fn apply(&self, write: &Write<'_>, _prepared: Prepared, lsn: Lsn, _newest: SnapshotNumber) {
        let mut records = self.records.write();
        if let Some(pointer) = write.value.filter(|value| value.large) {
            self.values.applied(pointer.bytes, lsn.0);
        }
        let replaced = match write.value {
            Some(value) => records.insert(write.key.to_vec(), value.into()),
            None => records.remove(write.key),
        };
        let new = write.value.map_or(0, |value| bytes_of(write.key, value.len()));
        let old = replaced.as_ref().map_or(0, |old| bytes_of(write.key, old.bytes.len()));
        self.count(new, old);
        self.is_dirty.store(true, SeqCst);
        // A record that is replayed twice replaces itself.
        if let Some(old) = replaced.filter(|old| old.large)
            && write.value.is_none_or(|value| value.bytes != old.bytes)
        {
            self.values.superseded(&old.bytes);
        }
    }

    fn make_resident(&self, _key: &[u8], _hash: u64) -> Result<()> {
        Ok(())
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let records = self.records.read();
        if is_empty(request.lower, request.upper) {
            chunk.finished = true;
            return Ok(());
        }
        let mut range = records.range::<[u8], _>((request.lower, request.upper));
        loop {
            if chunk.len() >= request.records_wanted.min(request.records_max)
                || (chunk.bytes() >= request.bytes_max && !chunk.is_empty())
            {
                return Ok(());
            }
            let next = match request.direction {
                Direction::Forward => range.next(),
                Direction::Reverse => range.next_back(),
            };
            let Some((key, value)) = next else {
                chunk.finished = true;
                return Ok(());
            };
            let value = ValueRef { bytes: &value.bytes, large: value.large };
            chunk.push(&[key], request.delivered(value));
        }
    }

    fn checkpoint(&self, redo: Lsn) -> Result<()> {
        if self.is_replaying.load(SeqCst) {
            return Ok(());
        }
        let _inside = probe::enter("checkpoint");
        let _one_at_a_time = self.publishing.lock();
        self.context.poison.check()?;
        let (payload, cut) = {
            let records = self.records.read();
            let cut = self.values.cut(redo.0);
            self.is_dirty.store(false, SeqCst);
            (payload::encode(&records, &self.values.list(&cut).live), cut)
        };
        self.publish(&payload, redo).inspect_err(|_| self.is_dirty.store(true, SeqCst))?;
        self.values.settle(&cut);
        Ok(())
    }

    fn is_dirty(&self) -> bool {
        self.is_dirty.load(SeqCst)
    }

    fn redo(&self) -> Lsn {
        Lsn(self.redo.load(SeqCst))
    }

    fn values(&self) -> &Arc<Values> {
        &self.values
    }

    fn replay_structure(&self, _lsn: Lsn, _payload: &[u8]) -> Result<()> {
        let path = self.context.path();
        Err(Error::corruption(path.display(), 0, "no structure records", "one in the log"))
    }

    fn end_structure_replay(&self) -> Result<()> {
        let owned: Vec<_> = self.values.owned().collect();
        self.values.store().adopt(&owned).map(|_| ())
    }

    fn end_replay(&self) -> Result<()> {
        self.is_replaying.store(false, SeqCst);
        Ok(())
    }

    fn set_option(&self, name: &str, value: &str) -> Result<()> {
        check_option(name, value)
    }

    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let bounds = (Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded));
        if is_empty(bounds.0, bounds.1) {
            return 0;
        }
        let records = self.records.read();
        let (all, here) = (records.len().max(1), records.range::<[u8], _>(bounds).count());
        self.bytes.load(SeqCst) * here as u64 / all as u64
    }

    fn stats(&self) -> EngineStats {
        let records = self.records.read().len() as u64;
        let bytes = self.bytes.load(SeqCst);
        let mut stats = EngineStats::of(&self.values, &Stalls::default());
        stats.records_cached = records;
        stats.records_dirty = if self.is_dirty() { records } else { 0 };
        stats.cache_bytes = bytes;
        stats.live_bytes = bytes;
        stats.checkpoints = self.checkpoints.load(SeqCst);
        stats
    }
}

/// Whether no key lies between two bounds, which a map's `range` refuses to be asked.
fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
        _ => false,
    }
}
