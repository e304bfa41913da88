//! The cache and its files: lookups, single loads, eviction.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::AtomicU64;
use spinney_base::shim::{Condvar, Mutex, RwLock, spin_hint};
use spinney_base::{PageNumber, Result};
use spinney_io::BufferPool;

use crate::clock::Clock;
use crate::counters::{CacheStats, Counters};
use crate::editable::EditableFile;
use crate::frame_bytes;
use crate::frames::{Frames, Holds};
use crate::guard::PageRef;
use crate::handle::{Claim, FileTable, Handle};
use crate::page::{KINDS_MAX, Kind, PageId};
use crate::state::{Give, Given, Out, Seen};

/// Number of polls before a thread sleeps until a page is loaded.
const SPINS: u32 = 64;

/// Number of condition variables on which threads wait for frames, by the frame's number.
const BEDS: usize = 16;

/// A miss counts as a ghost hit if a cache larger by one part in this many would have spared it.
pub(crate) const REGRET_PART: u32 = 16;

/// Most pages of buffers that are kept for loading.
const BUFFER_PAGES_MAX: usize = 256;

/// A cache of pages of any number of files, within one budget. Thread-safe.
#[derive(Debug)]
pub struct Cache {
    pub(crate) frames: Frames,
    pub(crate) buffers: BufferPool,
    pub(crate) counters: Counters,
    pub(crate) clock: Mutex<Clock>,
    pub(crate) files: RwLock<Vec<Option<Arc<FileTable>>>>,
    budget: AtomicU64,
    /// Frames that stay as long as dirty pages need them, though the budget has shrunk.
    floor: AtomicU64,
    /// Frames that there are whatever tables take.
    least: AtomicU64,
    /// Bytes of all tables that are charged.
    pub(crate) tables: AtomicU64,
    /// Whether its files are editable; a cache has files of one sort.
    is_editable: OnceLock<bool>,
    /// Kinds of pages by number, of editable files.
    pub(crate) kinds: [OnceLock<Kind>; KINDS_MAX],
    beds: [Bed; BEDS],
}

#[derive(Debug, Default)]
struct Bed {
    lock: Mutex<()>,
    woken: Condvar,
}

/// A file whose pages are cached, with its table. Dropping it removes all of them from the cache.
#[derive(Debug)]
pub struct CacheFile {
    handle: Handle,
}

/// State of a page before anything is done about it.
enum Probe<'a> {
    Hit(PageRef<'a>),
    Absent,
    /// Its frame is being filled or emptied.
    Busy(u32, Seen),
    /// Its frame holds another allocation of the page.
    Stale(u32),
}

impl Cache {
    /// Makes a cache of at most `bytes`, with frames of one page. See
    /// [`FRAME_BYTES`](crate::FRAME_BYTES) for the bytes of a page.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Cache> {
        Self::with_frames(bytes, 0)
    }

    /// Makes a cache of at most `bytes`, with frames of 2^`order` pages: 4, 8 or 16 KiB. See
    /// [`frame_bytes`] for the bytes that each is charged.
    ///
    /// # Panics
    /// When `order` is above [`ORDER_MAX`](crate::ORDER_MAX).
    #[must_use]
    pub fn with_frames(bytes: u64, order: u32) -> Arc<Cache> {
        assert!(order <= crate::ORDER_MAX, "frames have 1, 2 or 4 pages");
        let cache = Arc::new(Cache {
            frames: Frames::new(order),
            buffers: BufferPool::new(BUFFER_PAGES_MAX),
            counters: Counters::default(),
            clock: Mutex::new(Clock::default()),
            files: RwLock::new(Vec::new()),
            budget: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            least: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            is_editable: OnceLock::new(),
            kinds: std::array::from_fn(|_| OnceLock::new()),
            beds: std::array::from_fn(|_| Bed::default()),
        });
        cache.set_bytes(bytes);
        cache
    }

    /// Adds a file whose single pages are to be cached, which nobody changes in memory.
    ///
    /// # Panics
    /// When the frames have more than one page, or the cache has had an editable file.
    #[must_use]
    pub fn file(self: &Arc<Self>) -> CacheFile {
        assert_eq!(self.frames.order(), 0, "pages are pinned in frames of one page");
        assert!(!*self.is_editable.get_or_init(|| false), "its files are editable ones");
        CacheFile { handle: Handle::new(self) }
    }

    /// Adds a file whose pages, each as long as a frame, are to be cached and changed in memory.
    ///
    /// # Panics
    /// When the cache has had a file whose pages are pinned ([`Cache::file`]).
    #[must_use]
    pub fn editable_file(self: &Arc<Self>) -> EditableFile {
        assert!(*self.is_editable.get_or_init(|| true), "its files are not editable");
        EditableFile::new(Handle::new(self))
    }

    /// Returns the bytes that the budget is charged for a frame.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        frame_bytes(self.frames.order())
    }

    /// Changes the budget. Pages above it are evicted at once, the coldest first, and their memory
    /// goes back to the system. Pinned and dirty ones go at the first miss after they were unpinned
    /// or written back; where dirty ones take more than three quarters, a quarter of what stays is for others
    /// until then.
    pub fn set_bytes(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
        self.floor.store(self.frames_for_dirty(), Relaxed);
        self.limit(&mut self.clock.lock());
        self.shrink();
    }

    /// Lets there be this many frames, whatever tables and budget say: what the work of an owner needs.
    pub fn keep_frames(&self, least: u64) {
        self.least.store(least, Relaxed);
        self.limit(&mut self.clock.lock());
    }

    /// Returns the bytes of all tables: 4 for each page of a file up to the last that was cached.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.tables.load(Relaxed)
    }

    /// Returns the budget, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Returns the bytes of frames and tables now.
    #[must_use]
    pub fn used(&self) -> u64 {
        u64::from(self.clock.lock().resident()) * self.frame_bytes() + self.tables.load(Relaxed)
    }

    /// Returns the statistics of the cache.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let (hot, cold, near) = {
            let clock = self.clock.lock();
            (clock.regions().0, clock.regions().1, clock.resident() / REGRET_PART)
        };
        CacheStats {
            by_kind: self.counters.by_kind(),
            evicted: self.counters.evicted.load(Relaxed),
            regretted: self.counters.regretted.load(Relaxed),
            regret_bytes: u64::from(near) * self.frame_bytes(),
            private: self.counters.private.load(Relaxed),
            used_bytes: self.used(),
            budget_bytes: self.bytes(),
            dirty_bytes: self.dirty_bytes(),
            written_back: self.counters.written_back.load(Relaxed),
            hot_pages: u64::from(hot),
            cold_pages: u64::from(cold),
        }
    }

    /// Returns the bytes of frames whose pages are dirty.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_frames() * self.frame_bytes()
    }

    /// Returns the number of frames whose pages are dirty.
    fn dirty_frames(&self) -> u64 {
        let frames = self.counters.dirty.load(Relaxed);
        // Beyond the middle, one was taken off before it was counted.
        if frames <= u64::MAX / 2 { frames } else { 0 }
    }

    /// Frames of dirty pages, and of those that lead to them.
    fn frames_for_dirty(&self) -> u64 {
        let dirty = self.dirty_frames();
        dirty + dirty.div_ceil(3)
    }

    /// Returns whether there may be more frames than the budget has room for.
    pub(crate) fn has_floor(&self) -> bool {
        self.floor.load(Relaxed) > 0
    }

    /// Returns how many frames the budget has room for beside the tables, and at least those that are kept.
    fn frames_of_budget(&self) -> u64 {
        let room = self.bytes().saturating_sub(self.tables.load(Relaxed)) / self.frame_bytes();
        room.max(self.least.load(Relaxed))
    }

    /// Returns whether more than `quarters` quarters of the frames are dirty, or would be with `more` others.
    #[must_use]
    pub fn is_dirty_beyond(&self, quarters: u64, more: u64) -> bool {
        self.dirty_frames() + more > self.frames_of_budget() / 4 * quarters
    }

    /// Computes the number of frames that there may be.
    pub(crate) fn limit(&self, clock: &mut Clock) {
        let for_dirty = match self.floor.load(Relaxed) {
            0 => 0,
            floor => floor.min(self.frames_for_dirty()),
        };
        let most = self.frames_of_budget().max(for_dirty);
        // Frames have no higher numbers.
        clock.set_limit(u32::try_from(most).unwrap_or(u32::MAX).min(u32::MAX >> 1));
    }

    pub(crate) fn shrink(&self) {
        self.evict(None);
    }

    /// Evicts pages, the coldest first, until frames and tables take at most this number of bytes. The budget stays: what is
    /// missed next may take it up again. Pinned and dirty pages stay.
    pub fn evict_to(&self, bytes: u64) {
        let room = bytes.saturating_sub(self.tables.load(Relaxed)) / self.frame_bytes();
        self.evict(Some(u32::try_from(room).unwrap_or(u32::MAX >> 1)));
    }

    /// Evicts pages above the limit, or above another number of frames.
    fn evict(&self, most: Option<u32>) {
        loop {
            let frame = {
                let mut clock = self.clock.lock();
                most.into_iter().for_each(|most| clock.set_limit(most));
                let frame = clock.surplus(&self.frames, &mut |frame| self.empty(frame));
                if most.is_some() {
                    self.limit(&mut clock);
                }
                frame
            };
            let Some(frame) = frame else { return };
            self.frames.give_memory_back(frame);
            self.clock.lock().put_absent(frame);
        }
    }

    /// Removes the page of a held frame; the frame stays held.
    pub(crate) fn empty(&self, frame: u32) {
        #[expect(clippy::cast_possible_truncation, reason = "it is noted modulo 2^31")]
        let left = self.counters.evicted.fetch_add(1, Relaxed) as u32;
        self.unname(frame, Some(left));
    }

    /// Removes the name of a held frame. If the page is evicted for others, notes how many were
    /// evicted before.
    fn unname(&self, frame: u32, left: Option<u32>) {
        let (file, page) = self.frames.content(frame);
        if let Some(Some(table)) = self.files.read().get(file as usize) {
            table.table.clear(self.frames.unit(page), frame, left);
        }
        self.frames.clear_name(frame);
        self.give(frame, Give::Held);
    }

    /// Frees a held frame, whose page the table names unless the frame was thrown out.
    pub(crate) fn discard(&self, frame: u32) {
        let mut clock = self.clock.lock();
        if self.frames.name(frame).is_some() {
            self.unname(frame, None);
            clock.put_free(frame);
        } else {
            self.free_held(&mut clock, frame);
        }
    }

    /// Takes the page out of a frame of an editable file that the table names no longer: at once,
    /// or when the thread that holds the frame releases it.
    pub(crate) fn throw_out(&self, clock: &mut Clock, frame: u32) {
        self.frames.clear_name(frame);
        if self.frames.state(frame).throw_out() == Out::Held {
            self.free_held(clock, frame);
        }
    }

    /// Frees a held frame that the table names no longer.
    pub(crate) fn free_held(&self, clock: &mut Clock, frame: u32) {
        self.frames.clear_name(frame);
        self.give(frame, Give::Held);
        clock.put_free(frame);
    }

    /// Releases a held frame of an editable file. Returns its state, or `None` if the frame was
    /// thrown out meanwhile; it is free then.
    pub(crate) fn release(&self, frame: u32, is_changed: bool, is_dirty: bool) -> Option<Seen> {
        let Ok(given) = self.frames.state(frame).release(is_changed, is_dirty) else {
            self.discard(frame);
            return None;
        };
        if is_dirty && !given.was_dirty {
            self.counters.dirty.fetch_add(1, Relaxed);
        }
        self.wake(frame, given);
        Some(given.now)
    }

    pub(crate) fn give(&self, frame: u32, how: Give) {
        let given = self.frames.state(frame).give(how);
        if given.was_dirty {
            self.counters.dirty.fetch_sub(1, Relaxed);
        }
        self.wake(frame, given);
    }

    fn wake(&self, frame: u32, given: Given) {
        if given.is_waited_for {
            let bed = &self.beds[frame as usize % BEDS];
            drop(bed.lock.lock());
            bed.woken.notify_all();
        }
    }

    /// Waits until the holder that was seen has released the frame.
    pub(crate) fn wait(&self, frame: u32, seen: Seen) {
        let state = self.frames.state(frame);
        for _ in 0..SPINS {
            if state.see() != seen {
                return;
            }
            spin_hint();
        }
        let bed = &self.beds[frame as usize % BEDS];
        let mut lock = bed.lock.lock();
        while state.ask_to_be_woken(seen) {
            bed.woken.wait(&mut lock);
        }
    }
}

impl CacheFile {
    /// Returns the cache of this file's pages.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.handle.cache
    }

    /// Returns the page, and loads it if it is not cached: `load` fills a buffer aligned for direct
    /// I/O. When several threads miss a page at once, one loads it and the others wait for it.
    ///
    /// # Errors
    /// What `load` answers; the page is as absent as before.
    #[inline]
    pub fn get(
        &self,
        id: PageId,
        load: impl FnOnce(&mut [u8; PAGE_BYTES]) -> Result<()>,
    ) -> Result<PageRef<'_>> {
        if let Probe::Hit(page) = self.probe(id) {
            self.used(&page, id);
            return Ok(page);
        }
        self.get_slowly(id, load)
    }

    #[cold]
    fn get_slowly(
        &self,
        id: PageId,
        load: impl FnOnce(&mut [u8; PAGE_BYTES]) -> Result<()>,
    ) -> Result<PageRef<'_>> {
        loop {
            match self.probe(id) {
                Probe::Hit(page) => {
                    self.used(&page, id);
                    return Ok(page);
                }
                Probe::Busy(frame, seen) => self.handle.cache.wait(frame, seen),
                Probe::Absent => match self.handle.claim(id) {
                    Claim::Claimed(claimed) => return claimed.load(load),
                    Claim::Full => return self.read_privately(id, load),
                    Claim::Lost => {}
                },
                Probe::Stale(frame) => {
                    if !self.forget_frame(id.page, frame) {
                        return self.read_privately(id, load);
                    }
                }
            }
        }
    }

    /// Copies bytes from `offset` of the page if it is cached, without pinning it. Returns `false`
    /// if it is not cached or is being changed.
    ///
    /// # Panics
    /// When the bytes do not lie within a page.
    #[inline]
    #[must_use]
    pub fn copy(&self, id: PageId, offset: usize, out: &mut [u8]) -> bool {
        assert!(offset + out.len() <= PAGE_BYTES);
        let cache = &*self.handle.cache;
        let Some(frame) = self.handle.table.table.frame(id.page) else { return false };
        let state = cache.frames.state(frame);
        let seen = state.see();
        if seen.is_exclusive() || cache.frames.holds(frame, self.handle.file, id) != Holds::It {
            return false;
        }
        cache.frames.copy(frame, offset, out);
        if !state.validate(seen) {
            return false;
        }
        cache.frames.touch(frame, id.kind);
        cache.counters.hit(id.kind);
        true
    }

    /// Returns the page if it is cached, which counts as a use. It is for callers with another way
    /// if it is not.
    #[inline]
    #[must_use]
    pub fn find(&self, id: PageId) -> Option<PageRef<'_>> {
        let Probe::Hit(page) = self.probe(id) else { return None };
        self.used(&page, id);
        Some(page)
    }

    /// Returns the page if it is cached. It does not count as a use: a reader of a whole extent
    /// takes what is there and leaves the cache unchanged.
    #[inline]
    #[must_use]
    pub fn peek(&self, id: PageId) -> Option<PageRef<'_>> {
        match self.probe(id) {
            Probe::Hit(page) => Some(page),
            _ => None,
        }
    }

    /// Puts a page that was just written into the cache, if a frame is available and no thread is
    /// using the page's.
    pub fn insert(&self, id: PageId, bytes: &[u8; PAGE_BYTES]) {
        if let Probe::Stale(frame) = self.probe(id)
            && !self.forget_frame(id.page, frame)
        {
            return;
        }
        if let Claim::Claimed(claimed) = self.handle.claim(id) {
            drop(claimed.complete(bytes));
        }
    }

    /// Prefetches the memory that a read at `offset` of the page will touch. Returns whether the
    /// page, of this allocation or another, is cached or being loaded.
    #[inline]
    #[must_use]
    pub fn prefetch(&self, id: PageId, offset: usize) -> bool {
        let Some(frame) = self.handle.table.table.frame(id.page) else { return false };
        self.handle.cache.frames.prefetch(frame, offset);
        true
    }

    /// Removes `pages` pages from `first` on, which no thread may look up any more because their
    /// extent is freed.
    pub fn forget(&self, first: PageNumber, pages: u32) {
        for page in first.0..first.0.saturating_add(pages) {
            if let Some(frame) = self.handle.table.table.frame(PageNumber(page)) {
                // A pinned page is of another generation when its page gets another owner.
                let _ = self.forget_frame(PageNumber(page), frame);
            }
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns whether the table names a frame for the page, filled or being filled.
    pub(crate) fn is_cached(&self, id: PageId) -> bool {
        self.handle.table.table.frame(id.page).is_some()
    }

    /// Notes that the page was found.
    #[inline]
    fn used(&self, page: &PageRef<'_>, id: PageId) {
        if let Some(frame) = page.frame() {
            self.handle.cache.frames.touch(frame, id.kind);
        }
        self.handle.cache.counters.hit(id.kind);
    }

    #[inline]
    fn probe(&self, id: PageId) -> Probe<'_> {
        let cache = &*self.handle.cache;
        loop {
            let Some(frame) = self.handle.table.table.frame(id.page) else { return Probe::Absent };
            if let Err(seen) = cache.frames.state(frame).pin() {
                // The thread that removes its name then changes the state. So `seen` will change if
                // the name is still there; otherwise no thread may ever touch the frame.
                if self.handle.table.table.frame(id.page) == Some(frame) {
                    return Probe::Busy(frame, seen);
                }
                continue;
            }
            let page = PageRef::pinned(cache, frame);
            match cache.frames.holds(frame, self.handle.file, id) {
                Holds::It => return Probe::Hit(page),
                Holds::AnotherGeneration => return Probe::Stale(frame),
                // It was emptied and filled with another page since the table was read.
                Holds::Another => {}
            }
        }
    }

    /// Empties a frame that holds this page. Returns `false` if another thread uses it.
    fn forget_frame(&self, page: PageNumber, frame: u32) -> bool {
        let cache = &*self.handle.cache;
        if !cache.frames.state(frame).hold() {
            return false;
        }
        let (file, held) = cache.frames.content(frame);
        if (file, held) != (self.handle.file, page) {
            // It was emptied and filled with another page meanwhile; the next lookup finds that.
            cache.give(frame, Give::Pinned);
            cache.frames.state(frame).unpin();
            return true;
        }
        cache.discard(frame);
        true
    }

    /// Reads a page for which there is no frame.
    fn read_privately(
        &self,
        id: PageId,
        load: impl FnOnce(&mut [u8; PAGE_BYTES]) -> Result<()>,
    ) -> Result<PageRef<'_>> {
        let cache = &*self.handle.cache;
        cache.counters.miss(id.kind);
        cache.counters.private.fetch_add(1, Relaxed);
        let mut buffer = cache.buffers.take(1);
        load(buffer.page_mut(0))?;
        Ok(PageRef::private(cache, buffer))
    }
}
