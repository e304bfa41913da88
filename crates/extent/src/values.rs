//! Large values of one keyspace: kept outside of pages, in extents of their own (rule P17).
//!
//! A put of a large value has four steps, and only the last two are an ordinary write:
//!
//! 1. [`Values::allocate`] takes extents.
//! 2. The bytes are written to them piece by piece ([`Values::write`]) and synced
//!    ([`Values::seal`]). Several values of a batch share the sync.
//! 3. The pointer to them is logged as the key's value.
//! 4. The engine applies the record and calls [`Values::applied`]: the extents are live.
//!
//! When the record is superseded, the engine calls [`Values::superseded`]. The extents are freed
//! then and reused only after a checkpoint beyond it: until then a page on disk, or a record that a
//! crash would replay, may still name them. `table` is the home of the lists and their invariants.
//!
//! **Crash.** Before step 3 nothing names the extents, so the free map, which is derived when a
//! file is opened, has them again. After it replay finds the record in the log
//! ([`Values::replay`]), or the tree and the checkpoint's list name them.
//!
//! **Concurrency.** All methods may be called from any thread. `moving` is held shared while
//! extents go from the free map to the table or back, and exclusively by [`Values::still`]; after
//! it come the store's locks and the table's.

mod table;

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use spinney_base::shim::{RwLock, RwLockWriteGuard};
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result, ValueRef};
use spinney_io::Purpose;

use crate::free::Extent;
use crate::large::LargePointer;
use crate::large_io::Pieces;
use crate::shared_sync::SharedSync;
use crate::store::Store;

use table::Table;
pub use table::{Cut, LargeCounts, LargeExtent, LargeList};

/// Freed pages from which on a checkpoint pays for their sake: 32 MiB.
const CHECKPOINT_FREED_PAGES: u64 = 8192;

/// An engine's answers about its own large values. The defaults are for an engine whose checkpoints
/// name exactly the values of their trees.
pub trait Owner: Debug + Send + Sync {
    /// Frees in the store what may be reused by now. It is called before extents are taken.
    fn reclaim(&self) {}

    /// Returns the position at which a value is superseded now. 0 where the position of its naming
    /// is enough.
    fn position(&self) -> u64 {
        0
    }

    /// Returns the position of a record in the log that was not applied yet.
    fn position_of_replayed(&self) -> u64 {
        0
    }

    /// Notes that values were synced. An engine that does not log its data records durably that
    /// they are owned, and calls `live` before that record has its position in the log.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    fn sealed(
        &self,
        _extents: &mut dyn Iterator<Item = LargeExtent>,
        _live: &dyn Fn(),
    ) -> Result<()> {
        Ok(())
    }
}

/// Large values of one keyspace. Thread-safe.
#[derive(Debug)]
pub struct Values {
    store: Arc<Store>,
    /// Most bytes of a record, key and value, in pages.
    record_bytes_max: u64,
    owner: Box<dyn Owner>,
    table: Table,
    syncs: SharedSync,
    moving: RwLock<()>,
}

/// Keeps the bytes of values that are looked up while it lives, even if their keys are overwritten.
#[derive(Debug)]
#[must_use = "a pin that is dropped holds nothing"]
pub struct Pin {
    values: Arc<Values>,
    number: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.values.table.unpin(self.number);
    }
}

impl Values {
    /// Makes the values of a keyspace whose pages hold records of up to `record_bytes_max` bytes,
    /// as its checkpoint lists them.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        record_bytes_max: usize,
        owner: Box<dyn Owner>,
        list: LargeList,
    ) -> Arc<Values> {
        let table = Table::default();
        table.load(list, owner.position());
        Arc::new(Values {
            store,
            record_bytes_max: record_bytes_max as u64,
            owner,
            table,
            syncs: SharedSync::default(),
            moving: RwLock::new(()),
        })
    }

    /// Returns the store that holds them.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns whether a value of `value` bytes at a key of `key` bytes is large.
    #[inline]
    #[must_use]
    pub fn is_large(&self, key: usize, value: u64) -> bool {
        key as u64 + value > self.record_bytes_max
    }

    /// Checks that pages, or the extents that a pointer names, can hold a record.
    ///
    /// # Errors
    /// `InvalidArgument` naming the limit; `Corruption` for bytes that are no pointer.
    #[inline]
    pub fn check(&self, key: usize, value: ValueRef<'_>) -> Result<()> {
        if value.large {
            return self.decode(value.bytes).map(drop);
        }
        let (bytes, most) = ((key + value.len()) as u64, self.record_bytes_max);
        if bytes <= most {
            return Ok(());
        }
        let text = "is larger than the engine keeps in pages (RECORD_BYTES_MAX,";
        Err(Error::invalid(format!("a record of {bytes} bytes {text} {most})")))
    }

    /// Allocates extents for a value of `length` bytes, at least 1. The caller fills in the hash of
    /// the pointer. Then a record names the extents, or [`Values::release`] frees them.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; nothing has changed.
    pub fn allocate(&self, length: u64) -> Result<LargePointer> {
        let _moving = self.moving.read();
        self.owner.reclaim();
        self.reuse_ready();
        let extents = self.store.allocate_large(length)?;
        let pointer = LargePointer { length, hash: 0, extents };
        self.table.allocated(&pointer);
        Ok(pointer)
    }

    /// Writes bytes of a value from `offset` on, in pieces of
    /// [`CALL_BYTES`](crate::large_io::CALL_BYTES) but for the last. No reader sees them yet.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub fn write(&self, pointer: &LargePointer, offset: u64, bytes: &[u8]) -> Result<()> {
        self.store.write_large(&pointer.extents, offset, bytes)
    }

    /// Makes values durable that were written whole. Their pointers may then be logged.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub fn seal(&self, pointers: &[LargePointer]) -> Result<()> {
        self.syncs.join(|| self.store.sync(Purpose::LARGE_VALUE))?;
        let live = || pointers.iter().for_each(|pointer| self.table.applied(pointer, 0));
        self.owner.sealed(&mut pointers.iter().flat_map(LargeExtent::all_of), &live)
    }

    /// Frees the extents of a value whose pointer was not and will not be logged.
    pub fn release(&self, pointer: &LargePointer) {
        let _moving = self.moving.read();
        for extent in self.table.abandoned(pointer) {
            self.store.release(extent);
        }
        // Without a log it may be live already, and the record that says so durable.
        self.table.superseded(LargeExtent::all_of(pointer), self.owner.position());
    }

    /// Pins large values: bytes behind any pointer looked up from now on stay readable until the
    /// pin ends.
    pub fn pin(self: &Arc<Self>) -> Pin {
        Pin { values: Arc::clone(self), number: self.table.pin(false) }
    }

    /// Pins everything that is not reused yet.
    pub fn pin_everything(self: &Arc<Self>) -> Pin {
        Pin { values: Arc::clone(self), number: self.table.pin(true) }
    }

    /// Decodes a pointer from the log, a page or a caller.
    ///
    /// # Errors
    /// `Corruption` naming the file.
    pub fn decode(&self, pointer: &[u8]) -> Result<LargePointer> {
        LargePointer::decode_in(self.store.path(), pointer)
    }

    /// Replays a record beyond the checkpoint that names this pointer.
    ///
    /// # Errors
    /// `Corruption` when it does not fit what came before.
    pub fn replay(&self, pointer: &[u8]) -> Result<()> {
        self.replay_extents(LargeExtent::all_of(&self.decode(pointer)?).collect())
    }

    /// Replays a record that says that these extents are owned.
    ///
    /// # Errors
    /// `Corruption` when it does not fit what came before.
    pub fn replay_extents(&self, extents: Vec<LargeExtent>) -> Result<()> {
        let replayed = self.table.replayed(extents, self.owner.position_of_replayed());
        replayed.map_err(|error| error.context(self.store.path().display()))
    }

    /// Notes that a record with this pointer was applied at position `since`.
    pub fn applied(&self, pointer: &[u8], since: u64) {
        // Pointers were decoded when they were made or replayed. One that was damaged since, in a
        // page whose checksum holds, names nothing that could be owned.
        if let Ok(pointer) = LargePointer::decode(pointer) {
            self.table.applied(&pointer, since);
        }
    }

    /// Notes that no lookup from now on finds the record with this pointer.
    pub fn superseded(&self, pointer: &[u8]) {
        if let Ok(pointer) = LargePointer::decode(pointer) {
            self.supersede(LargeExtent::all_of(&pointer));
        }
    }

    /// Does the same for these extents.
    pub fn supersede(&self, extents: impl IntoIterator<Item = LargeExtent>) {
        self.table.superseded(extents, self.owner.position());
    }

    /// Notes that no record is left that names any.
    pub fn supersede_all(&self) {
        self.table.superseded_all(self.owner.position());
    }

    /// Keeps only the extents in `named`, by first page and generation, as live, because only pages
    /// say what is live. Frees the rest.
    pub fn reconcile(&self, named: &HashSet<(PageNumber, Generation)>) {
        self.table.reconcile(named, self.owner.position());
    }

    /// Begins a checkpoint that will cover everything up to position `covers`.
    #[must_use]
    pub fn cut(&self, covers: u64) -> Cut {
        self.table.cut(covers)
    }

    /// Returns whether a checkpoint would make anything reusable.
    #[must_use]
    pub fn settles(&self, cut: &Cut) -> bool {
        self.table.settles(cut)
    }

    /// Returns what a checkpoint must name.
    #[must_use]
    pub fn list(&self, cut: &Cut) -> LargeList {
        self.table.list(cut)
    }

    /// Returns what the durable checkpoint that covers `covers` named as live.
    #[must_use]
    pub fn listed(&self, covers: u64) -> Vec<LargeExtent> {
        self.table.listed(covers)
    }

    /// Returns everything that was named and is not reused yet.
    #[must_use]
    pub fn everything(&self) -> LargeList {
        self.table.everything()
    }

    /// Notes that a checkpoint is durable: what it does not name may be reused.
    pub fn settle(&self, cut: &Cut) {
        self.table.settle(cut);
        self.reuse();
    }

    /// Frees what no checkpoint, record or reader needs.
    pub fn reuse(&self) {
        let _moving = self.moving.read();
        self.reuse_ready();
    }

    fn reuse_ready(&self) {
        self.table.take_ready().into_iter().for_each(|extent| self.store.release(extent));
    }

    /// Keeps extents from becoming owned or free while the result lives.
    pub fn still(&self) -> RwLockWriteGuard<'_, ()> {
        self.moving.write()
    }

    /// Returns all owned extents.
    pub fn owned(&self) -> impl Iterator<Item = (Extent, Generation)> + use<> {
        self.table.owned().into_iter().map(|large| (large.extent, large.generation))
    }

    /// Returns whether a checkpoint would free much space.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        let (live, freed) = self.table.pages();
        freed >= CHECKPOINT_FREED_PAGES && freed >= live / 4
    }

    /// Returns the pages of live values, without waiting.
    #[must_use]
    pub fn live_pages(&self) -> u64 {
        self.table.pages().0
    }

    /// Returns whether no value is live or freed, without waiting: then no page names one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.pages() == (0, 0)
    }

    /// Returns the counts now.
    #[must_use]
    pub fn counts(&self) -> LargeCounts {
        self.table.counts()
    }

    /// Returns the bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Checks that a pointer of a record, looked up under a pin, names owned extents.
    ///
    /// # Errors
    /// `Corruption` naming the pointer.
    pub fn check_owned(&self, pointer: &LargePointer) -> Result<()> {
        if self.table.owns(pointer) {
            return Ok(());
        }
        let text = format!("expected large values that somebody owns, found {pointer:?}");
        let path = self.store.path().display();
        Err(Error::new(ErrorKind::Corruption, format!("{path}: {text}")))
    }

    /// Reads a value to its end and checks it, without keeping it. Returns the number of its pages.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn verify(&self, pointer: &LargePointer) -> Result<u64> {
        let (mut pieces, mut piece) = (Pieces::new(pointer.clone()), Vec::new());
        while pieces.left() > 0 {
            piece.clear();
            pieces.next(&self.store, &mut piece)?;
        }
        Ok(pointer.pages())
    }

    /// Reads a piece of the first live extent that has pages at or after `from`, and shows the
    /// state of each page. Returns the page after the piece; `None` when there is no such extent.
    pub fn scrub(
        self: &Arc<Self>,
        from: PageNumber,
        show: impl FnMut(PageNumber, Result<()>),
    ) -> Option<PageNumber> {
        let _pin = self.pin();
        let LargeExtent { extent, generation, .. } = self.table.live_from(from)?;
        let first = from.0.saturating_sub(extent.page.0);
        let pages = self.store.check_large((extent, generation), first, show);
        Some(PageNumber(extent.page.0 + first + pages))
    }
}

/// Large values that a bulk load has written and that no record names. Dropping it frees them.
#[derive(Debug)]
pub struct Loaded {
    values: Arc<Values>,
    pointers: Vec<LargePointer>,
}

impl Loaded {
    /// Makes it without values.
    #[must_use]
    pub fn new(values: &Arc<Values>) -> Loaded {
        Loaded { values: Arc::clone(values), pointers: Vec::new() }
    }

    /// Takes over what a pointer names.
    ///
    /// # Errors
    /// `Corruption` for bytes that are no pointer.
    pub fn push(&mut self, pointer: &[u8]) -> Result<()> {
        self.pointers.push(self.values.decode(pointer)?);
        Ok(())
    }

    /// Returns their extents.
    #[must_use]
    pub fn extents(&self) -> Vec<LargeExtent> {
        self.pointers.iter().flat_map(LargeExtent::all_of).collect()
    }

    /// Notes that the load's records name them, at position `since`.
    pub fn apply(&self, since: u64) {
        self.pointers.iter().for_each(|pointer| self.values.table.applied(pointer, since));
    }

    /// Gives them to the keyspace.
    pub fn keep(&mut self) {
        self.pointers.clear();
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.pointers.iter().for_each(|pointer| self.values.release(pointer));
    }
}
