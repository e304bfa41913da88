//! One store file: reading and writing checked pages, space, and checkpoints.
//!
//! **Invariants**
//! 1. A page is read only by a caller that knows its generation, and a page that is not what its
//!    owner expects is an error, never data.
//! 2. Pages reach the file only sealed, and only while the database is not poisoned (P21).
//! 3. What is freed is reused only once its freeing is durable: [`Store::retire`] holds it back
//!    until [`Store::reclaim`] says so (P16).
//!    An engine without structure records has [`Store::let_go`] instead, which waits for a slot.
//!    While somebody has a [`Hold`] nothing freed is reused at all (P26).
//! 4. A checkpoint's payload and all data before it are synced before its slot is written, and the
//!    slot before anything it freed is reused (P14).
//!
//! **Concurrency.** All methods may be called from any thread. Who may write which page is the
//! owner's to order; checkpoints are taken one at a time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::{Mutex, MutexGuard};
use spinney_base::{
    Error, ErrorKind, Generation, KeyspaceId, Lsn, PageNumber, Poison, Result, probe,
};
use spinney_io::{
    AlignedBuf, Directory, File, OpenMode, Purpose, takes_no_reserve, without_reserve,
};

use crate::adjacent::runs_of;
use crate::double_write::{self, DoubleWrite, HALF_PAGES};
use crate::extents::Extents;
use crate::free::{Extent, FreeMap};
use crate::header::{BlockHeader, BlockKind, Damage, HEADER_BYTES};
use crate::holes::Holes;
use crate::let_go::LetGo;
use crate::slot::{EXTENTS_MAX, SLOT_PAGES, Slot, Slots};
use crate::slots::SlotPages;

/// First page that extents may use.
pub const DATA_PAGE_FIRST: u32 = double_write::END_PAGE;

/// Number of pages that a new store file grows by first; later by an eighth of its extents, up to
/// [`GROWTH_PAGES_MAX`]. It is small, because many keyspaces hold little.
const GROWTH_PAGES_MIN: u32 = 8;
const GROWTH_PAGES_MAX: u32 = 8192;

/// Payload bytes of one checkpoint block.
const PIECE_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

/// Largest extent of a payload: 4 MiB, which bounds the buffer that writes and reads it.
const PAYLOAD_ORDER_MAX: u8 = 10;

/// Number of generations that a durable slot reserves ahead. A life begins after those that the one
/// before had reserved, so a page of a lost allocation is never taken for one of this life. When
/// they are used up, a slot is written only to reserve more.
const GENERATIONS_AHEAD: u32 = 4096;

/// Options of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Keyspace of the file.
    pub keyspace: KeyspaceId,
    /// Whether the double-write area protects in-place writes. Otherwise the device is trusted to
    /// write a page whole or not at all.
    pub double_write: bool,
    /// Poison of the database; it stops writing.
    pub poison: Arc<Poison>,
}

/// Content of a checkpoint, beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Recovery replays records above this LSN.
    pub redo: Lsn,
    /// Last structure change in the payload.
    pub structure: u64,
}

/// One store file.
#[derive(Debug)]
pub struct Store {
    pub(crate) file: Arc<dyn File>,
    pub(crate) options: StoreOptions,
    pub(crate) space: Mutex<Space>,
    double_write: Mutex<DoubleWrite>,
    /// Whether the previous life left work in the double-write area.
    recovery_is_due: AtomicBool,
    slots: Mutex<SlotPages>,
    /// Held while the file is synced. It is the innermost lock, except those of the file itself.
    syncing: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) free: FreeMap,
    /// First page beyond the file.
    pub(crate) end: u32,
    pub(crate) next_generation: u32,
    /// Generations below it are reserved by a durable slot.
    reserved: u32,
    /// Freed extents that wait until the record that frees them, at this LSN, is durable; in
    /// ascending order.
    retired: VecDeque<(Lsn, Extent)>,
    /// Payload pages of a checkpoint whose slot may or may not be on disk. They stay owned until
    /// the database is reopened.
    doubtful_pages: u64,
    /// Payload pages of the newest checkpoint. The next one needs about as many.
    payload_pages: u64,
    /// What waits for a slot that does not name it.
    pub(crate) let_go: LetGo,
    /// Number of holds on freed extents, and the extents held.
    holds: u32,
    held: Option<Box<Extents>>,
    /// Free pages that take no disk space; whether the file system supports holes; whether more are
    /// being made.
    pub(crate) holes: Holes,
    pub(crate) can_have_holes: bool,
    /// Pages that are becoming holes just now.
    pub(crate) punched: u64,
    pub(crate) giving_back: bool,
}

impl Space {
    /// Frees an extent, unless a reader may still need it.
    pub(crate) fn free(&mut self, extent: Extent) {
        if self.holds == 0 {
            self.free.release(extent);
        } else {
            self.held.get_or_insert_default().put(extent);
        }
    }

    /// Returns the free pages that the calling thread must leave. A thread that takes nothing from
    /// the reserve takes nothing from the next checkpoint, either (rule P29).
    pub(crate) fn left(&self) -> u64 {
        if takes_no_reserve() { self.payload_pages } else { 0 }
    }
}

/// Keeps freed extents from being reused until it is dropped (rule P26).
#[derive(Debug)]
pub struct Hold<'a> {
    store: &'a Store,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut space = self.store.space.lock();
        space.holds -= 1;
        if space.holds == 0 {
            let held = space.held.take();
            held.iter().flat_map(|held| held.iter()).for_each(|extent| space.free.release(extent));
        }
    }
}

impl Store {
    /// Creates the file of a new keyspace: two empty slots and their copies. On return it is
    /// durable except for the directory entry.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn create(
        directory: &dyn Directory,
        name: &str,
        options: StoreOptions,
        redo: Lsn,
    ) -> Result<Store> {
        let file = directory.open(name, OpenMode::CREATE)?;
        let mut slot = Slot {
            generation: 0,
            redo,
            structure: 0,
            payload_length: 0,
            payload_hash: xxh3_64(&[]),
            next_generation: Generation(1 + GENERATIONS_AHEAD),
            end: PageNumber(SLOT_PAGES),
            extents: Vec::new(),
        };
        let mut buf = AlignedBuf::new(SLOT_PAGES as usize);
        // All four pages, so that from here on only damage can leave one without a slot (P28).
        for generation in [0, 1] {
            slot.generation = generation;
            for page in [Slot::page(generation), Slot::copy_page(generation)] {
                slot.encode(options.keyspace, page, buf.page_mut(page.0 as usize));
            }
        }
        file.write_at(buf.bytes(), 0, Purpose::CHECKPOINT)?;
        options.poison.guard(file.sync(Purpose::CHECKPOINT))?;
        let slots =
            Slots { newest: slot, is_released: false, is_settled: true, damaged: Vec::new() };
        let store = Self::new(file, options, SlotPages::new(slots));
        store.space.lock().next_generation = 1;
        Ok(store)
    }

    /// Opens the file of a keyspace and reads its newest checkpoint. Nothing may be allocated
    /// before [`Store::adopt`].
    ///
    /// # Errors
    /// `Corruption` when the newest slot or its payload is damaged or the file is shorter than its
    /// checkpoint says; `Io`.
    pub fn open(
        directory: &dyn Directory,
        name: &str,
        options: StoreOptions,
    ) -> Result<(Store, Checkpoint, Vec<u8>)> {
        let file = directory.open(name, OpenMode::EXISTING)?;
        let (store, checkpoint, payload) = Self::open_file(file, options)?;
        store.settle()?;
        Ok((store, checkpoint, payload))
    }

    /// Makes the newest slot durable if it may not be: a killed process, or one whose sync failed,
    /// may have left it. Pages that only the slot before it names are free from here on, so that
    /// slot must not come back (P9, P21).
    fn settle(&self) -> Result<()> {
        let mut slots = self.slots.lock();
        // A poisoned database writes nothing that could rely on it, and its reads continue.
        if slots.is_settled() || self.options.poison.is_set() {
            return Ok(());
        }
        // Slots of version 1 have no copies to keep one whole while it is overwritten.
        if !slots.is_released() {
            self.write_due(&mut slots)?;
        }
        // For version 1, and for a disk without space for an overwrite.
        self.sync(Purpose::RECOVERY)
    }

    /// Opens a file that is not written.
    pub(crate) fn open_file(
        file: Arc<dyn File>,
        options: StoreOptions,
    ) -> Result<(Store, Checkpoint, Vec<u8>)> {
        let slots = SlotPages::read(&*file, options.keyspace, Purpose::RECOVERY)?;
        let slot = slots.newest();
        let length = file.len()?;
        if let Some(Damage { expected, found }) = slot.too_long_for(length) {
            return Err(Error::corruption(file.path().display(), length, expected, found));
        }
        let checkpoint = slot.checkpoint();
        let store = Self::new(file, options, slots);
        let payload = store.read_payload()?;
        Ok((store, checkpoint, payload))
    }

    pub(crate) fn new(file: Arc<dyn File>, options: StoreOptions, slots: SlotPages) -> Store {
        let slot = slots.newest();
        let space = Space {
            free: FreeMap::default(),
            end: slot.end.0.max(DATA_PAGE_FIRST),
            next_generation: slot.next_generation.0,
            reserved: slot.next_generation.0,
            retired: VecDeque::new(),
            doubtful_pages: 0,
            payload_pages: slot.pages(),
            let_go: LetGo::default(),
            holds: 0,
            held: None,
            holes: Holes::default(),
            can_have_holes: true,
            punched: 0,
            giving_back: false,
        };
        Store {
            file,
            options,
            space: Mutex::new(space),
            double_write: Mutex::new(DoubleWrite::default()),
            recovery_is_due: AtomicBool::new(false),
            slots: Mutex::new(slots),
            syncing: Mutex::new(()),
        }
    }

    /// Ends recovery of the structure: `owned` are all extents of the engine, with their
    /// generations. Restores torn pages and rebuilds the free map. Returns the number of restored
    /// pages.
    ///
    /// # Errors
    /// `Corruption` when a page has two owners; `Io`.
    pub fn adopt(&self, owned: &[(Extent, Generation)]) -> Result<usize> {
        let (slot, is_released) = {
            let slots = self.slots.lock();
            (slots.newest().clone(), slots.is_released())
        };
        #[expect(clippy::cast_possible_truncation, reason = "files hold at most 2^32 pages")]
        let file_pages = (self.file.len()? / PAGE_BYTES as u64) as u32;
        let highest =
            owned.iter().map(|(extent, _)| extent.page.0.saturating_add(extent.pages())).max();
        let end = file_pages.max(highest.unwrap_or(0)).max(DATA_PAGE_FIRST);
        let all = owned.iter().chain(&slot.extents).map(|(extent, _)| *extent);
        let free = FreeMap::rebuild(PageNumber(DATA_PAGE_FIRST), PageNumber(end), all)
            .map_err(|error| error.wrap(ErrorKind::Corruption, self.file.path().display()))?;
        {
            let mut space = self.space.lock();
            let used = owned.iter().map(|(_, generation)| generation.0).max().unwrap_or(0);
            space.next_generation = space.next_generation.max(used.saturating_add(1));
            space.free = free;
            space.end = end;
            space.nothing_is_new();
        }
        let by_page: std::collections::BTreeMap<u32, (u32, Generation)> = owned
            .iter()
            .map(|(extent, generation)| (extent.page.0, (extent.pages(), *generation)))
            .collect();
        let owned = |page: PageNumber| {
            let (first, (pages, generation)) = by_page.range(..=page.0).next_back()?;
            (page.0 - first < *pages).then_some(*generation)
        };
        // A failure here fails the opening, so there is nothing left to poison, and its own kind
        // says more.
        let (area, restored) =
            double_write::recover(&*self.file, self.options.keyspace, is_released, owned)?;
        self.recovery_is_due.store(area.is_due(), Ordering::Release);
        *self.double_write.lock() = area;
        Ok(restored)
    }

    /// Does the work that the previous life left in the double-write area, and for the pages that
    /// it protects. Before it, nothing is allocated or written in place, and nothing is promised
    /// durable.
    fn end_recovery(&self) -> Result<()> {
        if !self.recovery_is_due.load(Ordering::Acquire) {
            return Ok(());
        }
        self.options.poison.check()?;
        let mut area = self.double_write.lock();
        let sync = || self.options.poison.guard(self.file.sync(Purpose::RECOVERY));
        // As for any write in place, half a page may be left.
        let wrote = |written: Result<()>| match written {
            Err(error) if !error.is_full() => self.options.poison.guard(Err(error)),
            written => written,
        };
        area.end_recovery(&*self.file, sync, wrote)?;
        self.recovery_is_due.store(false, Ordering::Release);
        Ok(())
    }

    /// Continues the generations of an earlier opening of the file in this process, which
    /// [`Store::next_generation`] returned at its end. Otherwise each opening would use up all
    /// reserved ones. It is called before the first allocation.
    pub fn resume_generations(&self, next: Generation) {
        let mut space = self.space.lock();
        space.next_generation = space.next_generation.min(next.0);
        space.nothing_is_new();
    }

    /// Returns whether nothing but the newest slot itself shows that it is the newest (rule P28).
    /// That is so in a file of version 1 without a checkpoint since.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        self.slots.lock().is_released()
    }

    /// Returns the keyspace of the file.
    #[must_use]
    pub fn keyspace(&self) -> KeyspaceId {
        self.options.keyspace
    }

    /// Returns the path of the file, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Allocates an extent and a generation, and grows the file when no free extent fits.
    ///
    /// # Errors
    /// `Full` when the disk has no room (nothing changed), `Poisoned`, or `Io`.
    pub fn allocate(&self, order: u8) -> Result<(Extent, Generation)> {
        let mut space = self.space_to_take()?;
        let left = space.left();
        self.allocate_from(&mut space, order, left)
    }

    /// Locks the space to take pages from it. Due work goes first, without locks: in a file of
    /// version 1 the area includes the pages of slots' copies, which a new generation may need.
    pub(crate) fn space_to_take(&self) -> Result<MutexGuard<'_, Space>> {
        self.end_recovery()?;
        Ok(self.space.lock())
    }

    fn allocate_from(
        &self,
        space: &mut Space,
        order: u8,
        left: u64,
    ) -> Result<(Extent, Generation)> {
        self.options.poison.check()?;
        let generation = self.take_generation(space)?;
        let extent = self.take(space, 1 << order, left, |free| free.allocate(order))?;
        space.holes.remove(extent);
        Ok((extent, generation))
    }

    /// Takes `pages` free pages by `allocate`, and leaves `left` free ones. The file grows when it
    /// has too few.
    pub(crate) fn take<T>(
        &self,
        space: &mut Space,
        pages: u32,
        left: u64,
        allocate: impl Fn(&mut FreeMap) -> Option<T>,
    ) -> Result<T> {
        let has_enough = |space: &Space| space.free.free_pages() >= u64::from(pages) + left;
        // A step of growth may be smaller than what must be left.
        while left > 0 && !has_enough(space) {
            self.grow(space, pages.next_power_of_two())?;
        }
        loop {
            if let Some(taken) = allocate(&mut space.free) {
                return Ok(taken);
            }
            self.grow(space, pages.next_power_of_two())?;
        }
    }

    /// Returns a generation that no page of the file has or will have, whatever crashes.
    pub(crate) fn take_generation(&self, space: &mut Space) -> Result<Generation> {
        if space.next_generation >= space.reserved {
            self.reserve_generations(space)?;
        }
        let generation = Generation(space.next_generation);
        space.next_generation += 1;
        Ok(generation)
    }

    /// Writes the newest slot again, with more generations reserved.
    fn reserve_generations(&self, space: &mut Space) -> Result<()> {
        let reserved = space.next_generation.checked_add(GENERATIONS_AHEAD).ok_or_else(|| {
            let name = self.file.path().display();
            Error::new(ErrorKind::Full, format!("{name} has had 2^32 generations"))
        })?;
        let mut slots = self.slots.lock();
        let mut next = slots.newest().clone();
        next.generation += 1;
        next.next_generation = Generation(reserved.max(next.next_generation.0));
        let reserved = next.next_generation.0;
        match self.write_slot(&mut slots, next) {
            // Nothing was written.
            Err(error) if error.is_full() => return Err(error),
            written => self.options.poison.guard(written)?,
        }
        space.reserved = reserved;
        Ok(())
    }

    /// Writes a slot and its copy, and makes them durable. `Full` means that nothing was written: a
    /// sync without space (where space is promised first and found later) fails as any sync does.
    fn write_slot(&self, slots: &mut SlotPages, next: Slot) -> Result<()> {
        slots.put(next, |slot, page| {
            self.options.poison.check()?;
            let mut buf = AlignedBuf::new(1);
            slot.encode(self.options.keyspace, page, buf.page_mut(0));
            self.file.write_at(buf.bytes(), page.offset(), Purpose::CHECKPOINT)?;
            self.sync(Purpose::CHECKPOINT)
        })
    }

    /// Rewrites slot pages that a crash may have torn. It is for an opening that knows of an
    /// interrupted process. A full disk leaves them to the next checkpoint.
    ///
    /// # Errors
    /// `Poisoned` or `Io`.
    pub fn mend_slots(&self) -> Result<()> {
        let mut slots = self.slots.lock();
        if !slots.may_be_torn() || self.options.poison.is_set() {
            return Ok(());
        }
        self.write_due(&mut slots)
    }

    /// Writes the slot pages that are due, as far as there is space.
    fn write_due(&self, slots: &mut SlotPages) -> Result<()> {
        let written = slots.write_due(|slot, page| {
            self.options.poison.check()?;
            let mut buf = AlignedBuf::new(1);
            slot.encode(self.options.keyspace, page, buf.page_mut(0));
            self.file.write_at(buf.bytes(), page.offset(), Purpose::RECOVERY)?;
            self.sync(Purpose::RECOVERY)
        });
        match written {
            Err(error) if error.is_full() => Ok(()),
            written => written,
        }
    }

    pub(crate) fn grow(&self, space: &mut Space, pages_min: u32) -> Result<()> {
        let _inside = probe::enter("file growth");
        if space.end == DATA_PAGE_FIRST && self.file.len()? < PageNumber(DATA_PAGE_FIRST).offset() {
            // The double-write area takes space page by page, when it is written.
            let last = PageNumber(DATA_PAGE_FIRST - 1).offset();
            self.file.write_at(AlignedBuf::new(1).bytes(), last, Purpose::DOUBLE_WRITE)?;
        }
        let wanted = (space.end - DATA_PAGE_FIRST) / 8;
        let wanted = wanted.clamp(GROWTH_PAGES_MIN, GROWTH_PAGES_MAX);
        // An extent begins at a multiple of its size. When the disk is nearly full, the smallest
        // step may still fit. Only that step may take from the reserve.
        let needed = (space.end.wrapping_neg() & (pages_min - 1)) + pages_min;
        let mut grow_by = |pages: u32| -> Result<()> {
            let end = space.end.checked_add(pages).ok_or_else(|| {
                Error::new(
                    ErrorKind::Full,
                    format!("{} holds 2^32 pages", self.file.path().display()),
                )
            })?;
            self.file.allocate(u64::from(end) * PAGE_BYTES as u64)?;
            space.free.add_range(space.end, end);
            space.end = end;
            Ok(())
        };
        match without_reserve(|| grow_by(wanted.max(needed))) {
            Err(error) if error.is_full() => grow_by(needed),
            grown => grown,
        }
    }

    /// Frees an extent that was allocated and that no record and no checkpoint names.
    pub fn release(&self, extent: Extent) {
        self.space.lock().free(extent);
    }

    /// Retires extents that the record at `lsn` frees: they are reused once it is durable.
    pub fn retire(&self, extents: impl IntoIterator<Item = Extent>, lsn: Lsn) {
        let mut space = self.space.lock();
        space.retired.extend(extents.into_iter().map(|extent| (lsn, extent)));
    }

    /// Frees what records up to `durable` retired.
    pub fn reclaim(&self, durable: Lsn) {
        let mut space = self.space.lock();
        while let Some((lsn, extent)) = space.retired.front().copied() {
            if lsn > durable {
                break;
            }
            space.retired.pop_front();
            space.free(extent);
        }
    }

    /// Keeps extents that are freed from now on from being reused until the result is dropped. What
    /// a page names stays what it was, however long its reader takes (rule P26).
    pub fn hold(&self) -> Hold<'_> {
        self.space.lock().holds += 1;
        Hold { store: self }
    }

    /// Returns whether any hold exists.
    pub fn is_held(&self) -> bool {
        self.space.lock().holds > 0
    }

    /// Returns the generation of the next extent; all before it have lower ones.
    #[must_use]
    pub fn next_generation(&self) -> Generation {
        Generation(self.space.lock().next_generation)
    }

    /// Returns the payload pages of the newest checkpoint. Unlike [`Store::space`], it waits for no
    /// slot that is being written.
    #[must_use]
    pub fn payload_pages(&self) -> u64 {
        self.space.lock().payload_pages
    }

    /// Returns the numbers of free pages, of pages waiting to be freed, and of pages of the file.
    #[must_use]
    pub fn space(&self) -> SpaceStats {
        // Before the space is locked: a checkpoint holds the slot across its sync, and allocations
        // must not wait for that.
        let checkpoint_pages = self.checkpoint_pages();
        let space = self.space.lock();
        let retired =
            space.retired.iter().map(|(_, extent)| u64::from(extent.pages())).sum::<u64>();
        let held = space.held.as_ref().map_or(0, |held| held.pages());
        SpaceStats {
            free_pages: space.free.free_pages(),
            retired_pages: retired + held + space.let_go.pages().sum() + space.punched,
            checkpoint_pages: checkpoint_pages + space.doubtful_pages,
            end_page: space.end,
            hole_pages: space.holes.pages(),
        }
    }

    /// Returns the free pages that take disk space, without waiting for a checkpoint that is being published.
    #[must_use]
    pub fn solid_pages(&self) -> u64 {
        let space = self.space.lock();
        space.free.free_pages().saturating_sub(space.holes.pages())
    }

    fn checkpoint_pages(&self) -> u64 {
        self.slots.lock().newest().pages()
    }

    /// Returns whether a page is free or waits to be freed, for verification.
    #[must_use]
    pub fn is_free(&self, page: PageNumber) -> bool {
        let space = self.space.lock();
        let covers =
            |extent: &Extent| (extent.page.0..extent.page.0 + extent.pages()).contains(&page.0);
        space.free.contains(page)
            || space.let_go.contains(page)
            || space.held.as_ref().is_some_and(|held| held.contains(page))
            || space.retired.iter().any(|(_, extent)| covers(extent))
    }

    /// Overwrites sealed pages in place, protected from tearing. They lie as [`Store::write_fresh`]
    /// says, and the buffer is unchanged on return.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; any of the pages may have been written.
    pub fn write_in_place(
        &self,
        pages: &[PageNumber],
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        self.end_recovery()?;
        let bytes = &mut buf.bytes_mut()[..pages.len() * PAGE_BYTES];
        if !self.options.double_write {
            return self.write_over(&runs_of(pages, 0, bytes), purpose);
        }
        let chunks = pages.chunks(HALF_PAGES).zip(bytes.chunks_mut(HALF_PAGES * PAGE_BYTES));
        for (pages, bytes) in chunks {
            self.options.poison.check()?;
            // Held over the in-place writes, so that the sync of the next batch covers them.
            let mut double_write = self.double_write.lock();
            if double_write.is_used_up() {
                double_write.begin_anew(&*self.file, || self.sync(Purpose::DOUBLE_WRITE))?;
            }
            double_write.protect(&*self.file, bytes)?;
            self.sync(Purpose::DOUBLE_WRITE)?;
            self.write_over(&runs_of(pages, 0, bytes), purpose)?;
        }
        Ok(())
    }

    /// Overwrites pages. A failure in the middle may leave half a page, which only recovery
    /// restores, so it poisons. On a full disk nothing was written.
    fn write_over(&self, runs: &[(PageNumber, &[u8])], purpose: Purpose) -> Result<()> {
        match self.write_runs(runs, purpose) {
            Err(error) if !error.is_full() => self.options.poison.guard(Err(error)),
            result => result,
        }
    }

    /// Makes everything written so far durable. One sync at a time: the system reports an error to
    /// only one of concurrent syncs, and a later one must know of it before it relies on its own
    /// (P21).
    ///
    /// # Errors
    /// `Poisoned`: a failed sync stops all writing. `Full` when the recovery could not be ended,
    /// and nothing has changed.
    pub fn sync(&self, purpose: Purpose) -> Result<()> {
        self.end_recovery()?;
        let _one_at_a_time = self.syncing.lock();
        self.options.poison.check()?;
        self.options.poison.guard(self.file.sync(purpose))
    }

    /// Publishes a checkpoint (P14): writes the payload, syncs it with all data written before,
    /// calls `log_durable`, writes the slot, syncs, and frees the payload of the previous
    /// checkpoint. The caller has written all changes up to `checkpoint.redo`.
    ///
    /// # Errors
    /// `Full` (the checkpoint before still stands), `Poisoned` or `Io`.
    pub fn publish(
        &self,
        checkpoint: Checkpoint,
        payload: &[u8],
        log_durable: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let extents = self.allocate_payload(payload.len())?;
        // Before the sync: what the file grows by from here on may be lost with the power while the slot is not.
        let end = self.space.lock().end;
        let inside = probe::enter("payload");
        let written = self.write_payload(payload, &extents, checkpoint.redo);
        let written =
            written.and_then(|()| self.sync(Purpose::CHECKPOINT)).and_then(|()| log_durable());
        drop(inside);
        if let Err(error) = written {
            // No slot names them.
            extents.iter().for_each(|(extent, _)| self.release(*extent));
            return Err(error);
        }
        let next_generation = self.space.lock().next_generation;
        let mut slots = self.slots.lock();
        let before = slots.newest().clone();
        let next = Slot {
            generation: before.generation + 1,
            redo: checkpoint.redo,
            structure: checkpoint.structure,
            payload_length: payload.len() as u64,
            payload_hash: xxh3_64(payload),
            next_generation: Generation(
                next_generation.saturating_add(GENERATIONS_AHEAD).max(before.next_generation.0),
            ),
            // A file that never held data stays as long as its slots.
            end: PageNumber(if end > DATA_PAGE_FIRST { end } else { SLOT_PAGES }),
            extents: extents.clone(),
        };
        let (pages, reserved) = (next.pages(), next.next_generation.0);
        let written = {
            let _inside = probe::enter("slot");
            self.write_slot(&mut slots, next)
        };
        let is_newest = slots.newest().generation != before.generation;
        drop(slots);
        if let Err(error) = &written
            && error.is_full()
        {
            // Nothing was written: the previous checkpoint stands.
            extents.iter().for_each(|(extent, _)| self.release(*extent));
            return Err(error.clone());
        }
        // From here on either slot may be the newest on disk. A failure leaves both payloads owned,
        // so it poisons.
        if written.is_err() {
            // One of the two is counted as the newest's.
            let other = if is_newest { before.pages() } else { pages };
            self.space.lock().doubtful_pages += other;
            return self.options.poison.guard(written);
        }
        {
            let mut space = self.space.lock();
            space.reserved = space.reserved.max(reserved);
            space.payload_pages = pages;
        }
        before.extents.iter().for_each(|(extent, _)| self.release(*extent));
        Ok(())
    }

    /// Allocates extents for a payload, as large as possible. A full disk may lack a large one that
    /// smaller free extents of the file make up. Only where they do not is the reserve used.
    fn allocate_payload(&self, length: usize) -> Result<Vec<(Extent, Generation)>> {
        match without_reserve(|| self.take_payload(length)) {
            Err(error) if error.is_full() => self.take_payload(length),
            taken => taken,
        }
    }

    fn take_payload(&self, length: usize) -> Result<Vec<(Extent, Generation)>> {
        let mut extents = Vec::new();
        let mut pages = length.div_ceil(PIECE_BYTES);
        let mut order_max = PAYLOAD_ORDER_MAX;
        while pages > 0 {
            #[expect(clippy::cast_possible_truncation, reason = "an order is below 64")]
            let order = (pages.ilog2() as u8).min(order_max);
            let allocated = if extents.len() == EXTENTS_MAX {
                Err(Error::new(
                    ErrorKind::Full,
                    "a checkpoint needs more extents than a slot names",
                ))
            } else {
                self.space_to_take().and_then(|mut space| self.allocate_from(&mut space, order, 0))
            };
            match allocated {
                Ok(extent) => extents.push(extent),
                Err(error) if error.is_full() && order > 0 && extents.len() < EXTENTS_MAX => {
                    order_max = order - 1;
                    continue;
                }
                Err(error) => {
                    extents.iter().for_each(|(extent, _)| self.release(*extent));
                    return Err(error);
                }
            }
            pages -= 1 << order;
        }
        Ok(extents)
    }

    fn write_payload(
        &self,
        payload: &[u8],
        extents: &[(Extent, Generation)],
        lsn: Lsn,
    ) -> Result<()> {
        let mut pieces = payload.chunks(PIECE_BYTES);
        for (extent, generation) in extents {
            let mut buf = AlignedBuf::new(extent.pages() as usize);
            for index in 0..extent.pages() {
                let block = buf.page_mut(index as usize);
                let piece = pieces.next().unwrap_or(&[]);
                block[HEADER_BYTES..HEADER_BYTES + piece.len()].copy_from_slice(piece);
                let page = PageNumber(extent.page.0 + index);
                let keyspace = self.options.keyspace;
                let header = BlockHeader {
                    kind: BlockKind::CHECKPOINT,
                    page,
                    generation: *generation,
                    keyspace,
                    lsn,
                };
                header.seal(block);
            }
            self.options.poison.check()?;
            self.file.write_at(buf.bytes(), extent.page.offset(), Purpose::CHECKPOINT)?;
        }
        Ok(())
    }

    pub(crate) fn read_payload(&self) -> Result<Vec<u8>> {
        let slot = self.slots.lock().newest().clone();
        self.read_payload_of(&slot)
    }

    /// Reads and checks what a slot points to.
    pub(crate) fn read_payload_of(&self, slot: &Slot) -> Result<Vec<u8>> {
        let pages = slot.pages();
        let path = self.file.path();
        if slot.payload_length > pages * PIECE_BYTES as u64 {
            let damage =
                Damage::new(format!("at most {pages} pages of payload"), slot.payload_length);
            return Err(damage.at(path, Slot::page(slot.generation)));
        }
        let mut payload = Vec::new();
        for (extent, generation) in &slot.extents {
            let mut buf = AlignedBuf::new(extent.pages() as usize);
            self.file.read_at(buf.bytes_mut(), extent.page.offset(), Purpose::RECOVERY)?;
            for index in 0..extent.pages() {
                let page = PageNumber(extent.page.0 + index);
                let block = buf.page(index as usize);
                let kind = BlockKind::CHECKPOINT;
                BlockHeader::check(block, path, kind, self.options.keyspace, page, *generation)?;
                payload.extend_from_slice(&block[HEADER_BYTES..]);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the pages read")]
        payload.truncate(slot.payload_length as usize);
        let hash = xxh3_64(&payload);
        if hash != slot.payload_hash {
            let damage = Damage::new(
                format!("payload hash {:016x}", slot.payload_hash),
                format!("{hash:016x}"),
            );
            return Err(damage.at(path, Slot::page(slot.generation)));
        }
        Ok(payload)
    }

    /// Reads all slots and the newest one's payload again from the file, and checks them. Returns
    /// the extents of the payload.
    ///
    /// # Errors
    /// `Corruption`, of a slot that is not the newest as well (P28), but not of the page whose
    /// writing has failed and stopped the store; `Io`.
    pub fn verify_checkpoint(&self) -> Result<Vec<Extent>> {
        let slot = {
            // No slot is written meanwhile.
            let slots = self.slots.lock();
            let stored = SlotPages::read(&*self.file, self.options.keyspace, Purpose::TOOL)?;
            let at = |(page, damage): (PageNumber, Damage)| damage.at(self.file.path(), page);
            let newest = slots.check(&stored).map_err(at)?;
            newest.clone()
        };
        self.read_payload_of(&slot)?;
        Ok(slot.extents.iter().map(|(extent, _)| *extent).collect())
    }

    /// Does the same beside checkpoints: one that is published meanwhile has given the pages to
    /// others, and then nothing is reported.
    ///
    /// # Errors
    /// As [`Store::verify_checkpoint`].
    pub fn scrub_checkpoint(&self) -> Result<()> {
        let newest = || self.slots.lock().newest().generation;
        let before = newest();
        let result = self.verify_checkpoint().map(drop);
        if newest() == before { result } else { Ok(()) }
    }
}

/// Number of pages of a store file by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Free pages.
    pub free_pages: u64,
    /// Pages whose freeing is not durable yet, that were let go and wait for a slot, or that a
    /// backup holds.
    pub retired_pages: u64,
    /// Pages of the newest checkpoint's payload.
    pub checkpoint_pages: u64,
    /// Pages of the file, including slots and double-write area.
    pub end_page: u32,
    /// Free pages that are known to be holes.
    pub hole_pages: u64,
}
