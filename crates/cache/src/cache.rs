//! The cache and its files: lookups, single loads, eviction.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::AtomicU64;
use spinney_base::shim::{Condvar, Mutex, RwLock, spin_hint};
use spinney_base::{PageNumber, Result};
use spinney_io::BufferPool;

use crate::FRAME_BYTES;
use crate::clock::{Clock, Taken};
use crate::counters::{CacheStats, Counters};
use crate::frames::{Frames, Holds};
use crate::guard::PageRef;
use crate::page::{Kind, PageId};
use crate::state::{Give, Seen};
use crate::table::{ENTRY_BYTES, Named, Table, left_since};

/// Number of polls before a thread sleeps until a page is loaded.
const SPINS: u32 = 64;

/// Number of condition variables on which threads wait for frames, by the frame's number.
const BEDS: usize = 16;

/// A miss counts as a ghost hit if a cache larger by one part in this many would have spared it.
const REGRET_PART: u32 = 16;

/// Most pages of buffers that are kept for loading.
const BUFFER_PAGES_MAX: usize = 256;

/// Table entries that are charged to the budget at once: a page of them.
const ENTRIES_STEP: u32 = 1024;

/// A cache of pages of any number of files, within one budget. Thread-safe.
#[derive(Debug)]
pub struct Cache {
    pub(crate) frames: Frames,
    pub(crate) buffers: BufferPool,
    pub(crate) counters: Counters,
    clock: Mutex<Clock>,
    files: RwLock<Vec<Option<Arc<FileTable>>>>,
    budget: AtomicU64,
    /// Bytes of all tables that are charged.
    tables: AtomicU64,
    beds: [Bed; BEDS],
}

#[derive(Debug, Default)]
struct Bed {
    lock: Mutex<()>,
    woken: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct FileTable {
    table: Table,
    /// First page without a table entry; a multiple of [`ENTRIES_STEP`]. Changed under the clock.
    end: AtomicU64,
}

/// A file whose pages are cached, with its table. Dropping it removes all of them from the cache.
#[derive(Debug)]
pub struct CacheFile {
    cache: Arc<Cache>,
    file: u32,
    table: Arc<FileTable>,
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
    /// Makes a cache of at most `bytes`. See [`FRAME_BYTES`] for the bytes of a page.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Cache> {
        let cache = Arc::new(Cache {
            frames: Frames::default(),
            buffers: BufferPool::new(BUFFER_PAGES_MAX),
            counters: Counters::default(),
            clock: Mutex::new(Clock::default()),
            files: RwLock::new(Vec::new()),
            budget: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            beds: std::array::from_fn(|_| Bed::default()),
        });
        cache.set_bytes(bytes);
        cache
    }

    /// Adds a file whose pages are to be cached.
    #[must_use]
    pub fn file(self: &Arc<Self>) -> CacheFile {
        let table = Arc::new(FileTable::default());
        let mut files = self.files.write();
        let place = files.iter().position(Option::is_none).unwrap_or(files.len());
        if place == files.len() {
            files.push(None);
        }
        files[place] = Some(Arc::clone(&table));
        let file = u32::try_from(place).expect("files are fewer than 2^32");
        CacheFile { cache: Arc::clone(self), file, table }
    }

    /// Changes the budget. Pages above it are evicted at once, the coldest first, and their memory
    /// goes back to the system. Pinned ones go at the first miss after they are unpinned.
    pub fn set_bytes(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
        self.limit(&mut self.clock.lock());
        self.shrink();
    }

    /// Returns the budget, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Returns the bytes of frames and tables now.
    #[must_use]
    pub fn used(&self) -> u64 {
        u64::from(self.clock.lock().resident()) * FRAME_BYTES + self.tables.load(Relaxed)
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
            regret_bytes: u64::from(near) * FRAME_BYTES,
            private: self.counters.private.load(Relaxed),
            used_bytes: self.used(),
            budget_bytes: self.bytes(),
            hot_pages: u64::from(hot),
            cold_pages: u64::from(cold),
        }
    }

    /// Computes the number of frames from the budget and the tables.
    fn limit(&self, clock: &mut Clock) {
        let room = self.bytes().saturating_sub(self.tables.load(Relaxed));
        // Frames have no higher numbers.
        clock.set_limit(u32::try_from(room / FRAME_BYTES).unwrap_or(u32::MAX).min(u32::MAX >> 1));
    }

    fn shrink(&self) {
        loop {
            let frame = self.clock.lock().surplus(&self.frames, &mut |frame| self.empty(frame));
            let Some(frame) = frame else { return };
            self.frames.give_memory_back(frame);
            self.clock.lock().put_absent(frame);
        }
    }

    /// Removes the page of a held frame; the frame stays held.
    fn empty(&self, frame: u32) {
        #[expect(clippy::cast_possible_truncation, reason = "it is noted modulo 2^31")]
        let left = self.counters.evicted.fetch_add(1, Relaxed) as u32;
        self.unname(frame, Some(left));
    }

    /// Removes the name of a held frame. If the page is evicted for others, notes how many were
    /// evicted before.
    fn unname(&self, frame: u32, left: Option<u32>) {
        let (file, page) = self.frames.content(frame);
        if let Some(Some(table)) = self.files.read().get(file as usize) {
            table.table.clear(page, frame, left);
        }
        self.give(frame, Give::Held);
    }

    fn give(&self, frame: u32, how: Give) {
        if self.frames.state(frame).give(how) {
            let bed = &self.beds[frame as usize % BEDS];
            drop(bed.lock.lock());
            bed.woken.notify_all();
        }
    }

    /// Waits until the holder that was seen has released the frame.
    fn wait(&self, frame: u32, seen: Seen) {
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
        &self.cache
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
                Probe::Busy(frame, seen) => self.cache.wait(frame, seen),
                Probe::Absent => match self.claim(id) {
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
        let cache = &*self.cache;
        let Some(frame) = self.table.table.frame(id.page) else { return false };
        let state = cache.frames.state(frame);
        let seen = state.see();
        if seen.is_exclusive() || cache.frames.holds(frame, self.file, id) != Holds::It {
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
        if let Claim::Claimed(claimed) = self.claim(id) {
            drop(claimed.complete(bytes));
        }
    }

    /// Prefetches the memory that a read at `offset` of the page will touch. Returns whether the
    /// page, of this allocation or another, is cached or being loaded.
    #[inline]
    #[must_use]
    pub fn prefetch(&self, id: PageId, offset: usize) -> bool {
        let Some(frame) = self.table.table.frame(id.page) else { return false };
        self.cache.frames.prefetch(frame, offset);
        true
    }

    /// Removes `pages` pages from `first` on, which no thread may look up any more because their
    /// extent is freed.
    pub fn forget(&self, first: PageNumber, pages: u32) {
        for page in first.0..first.0.saturating_add(pages) {
            if let Some(frame) = self.table.table.frame(PageNumber(page)) {
                // A pinned page is of another generation when its page gets another owner.
                let _ = self.forget_frame(PageNumber(page), frame);
            }
        }
    }

    /// Returns whether the table names a frame for the page, filled or being filled.
    pub(crate) fn is_cached(&self, id: PageId) -> bool {
        self.table.table.frame(id.page).is_some()
    }

    /// Notes that the page was found.
    #[inline]
    fn used(&self, page: &PageRef<'_>, id: PageId) {
        if let Some(frame) = page.frame() {
            self.cache.frames.touch(frame, id.kind);
        }
        self.cache.counters.hit(id.kind);
    }

    #[inline]
    fn probe(&self, id: PageId) -> Probe<'_> {
        let cache = &*self.cache;
        loop {
            let Some(frame) = self.table.table.frame(id.page) else { return Probe::Absent };
            if let Err(seen) = cache.frames.state(frame).pin() {
                // The thread that removes its name then changes the state. So `seen` will change if
                // the name is still there; otherwise no thread may ever touch the frame.
                if self.table.table.frame(id.page) == Some(frame) {
                    return Probe::Busy(frame, seen);
                }
                continue;
            }
            let page = PageRef::pinned(cache, frame);
            match cache.frames.holds(frame, self.file, id) {
                Holds::It => return Probe::Hit(page),
                Holds::AnotherGeneration => return Probe::Stale(frame),
                // It was emptied and filled with another page since the table was read.
                Holds::Another => {}
            }
        }
    }

    /// Claims a frame for a page without one; the caller fills it.
    pub(crate) fn claim(&self, id: PageId) -> Claim<'_> {
        let cache = &*self.cache;
        let (taken, near) = {
            let mut clock = cache.clock.lock();
            self.charge(&mut clock, id.page);
            let near = clock.resident() / REGRET_PART;
            (clock.take(&cache.frames, id.kind, &mut |frame| cache.empty(frame)), near)
        };
        let Taken::Frame(frame) = taken else {
            cache.shrink();
            return Claim::Full;
        };
        cache.frames.set_content(frame, self.file, id);
        let named = self.table.table.claim(id.page, frame);
        if named == Named::Not {
            cache.clock.lock().put_free(frame);
            return Claim::Lost;
        }
        if let Named::Again(left) = named
            && left_since(left, cache.counters.evicted.load(Relaxed)) < near
        {
            cache.counters.regretted.fetch_add(1, Relaxed);
        }
        Claim::Claimed(Claimed { file: self, frame, id, filled: false })
    }

    /// Charges the table's entries up to this page to the budget.
    fn charge(&self, clock: &mut Clock, page: PageNumber) {
        let end = u64::from(page.0 / ENTRIES_STEP + 1) * u64::from(ENTRIES_STEP);
        let before = self.table.end.load(Relaxed);
        if end > before {
            self.table.end.store(end, Relaxed);
            self.cache.tables.fetch_add((end - before) * ENTRY_BYTES, Relaxed);
            self.cache.limit(clock);
        }
    }

    /// Empties a frame that holds this page. Returns `false` if another thread uses it.
    fn forget_frame(&self, page: PageNumber, frame: u32) -> bool {
        let cache = &*self.cache;
        if !cache.frames.state(frame).hold() {
            return false;
        }
        let (file, held) = cache.frames.content(frame);
        if (file, held) != (self.file, page) {
            // It was emptied and filled with another page meanwhile; the next lookup finds that.
            cache.give(frame, Give::Pinned);
            cache.frames.state(frame).unpin();
            return true;
        }
        cache.unname(frame, None);
        cache.clock.lock().put_free(frame);
        true
    }

    /// Reads a page for which there is no frame.
    fn read_privately(
        &self,
        id: PageId,
        load: impl FnOnce(&mut [u8; PAGE_BYTES]) -> Result<()>,
    ) -> Result<PageRef<'_>> {
        let cache = &*self.cache;
        cache.counters.miss(id.kind);
        cache.counters.private.fetch_add(1, Relaxed);
        let mut buffer = cache.buffers.take(1);
        load(buffer.page_mut(0))?;
        Ok(PageRef::private(cache, buffer))
    }
}

impl Drop for CacheFile {
    fn drop(&mut self) {
        let end = self.table.end.load(Relaxed);
        self.forget(PageNumber(0), u32::try_from(end).unwrap_or(u32::MAX));
        // A hand at one of its pages is done with it when it releases the clock.
        let mut clock = self.cache.clock.lock();
        self.cache.files.write()[self.file as usize] = None;
        self.cache.tables.fetch_sub(end * ENTRY_BYTES, Relaxed);
        self.cache.limit(&mut clock);
    }
}

/// A frame for a page, or why there is none.
pub(crate) enum Claim<'a> {
    Claimed(Claimed<'a>),
    /// The page has a frame by now.
    Lost,
    /// No frame is available.
    Full,
}

/// A held frame that the table names for a page and that is not filled yet. Dropping it unfilled
/// undoes the claim.
pub(crate) struct Claimed<'a> {
    file: &'a CacheFile,
    frame: u32,
    id: PageId,
    filled: bool,
}

impl<'a> Claimed<'a> {
    pub(crate) fn kind(&self) -> Kind {
        self.id.kind
    }

    fn load(self, load: impl FnOnce(&mut [u8; PAGE_BYTES]) -> Result<()>) -> Result<PageRef<'a>> {
        let cache = &*self.file.cache;
        cache.counters.miss(self.id.kind);
        // Not into the frame itself, because optimistic readers may be reading its bytes.
        let mut buffer = cache.buffers.lend(1);
        load(buffer.page_mut(0))?;
        Ok(self.complete(buffer.page(0)))
    }

    /// Fills the frame and makes it visible.
    pub(crate) fn complete(mut self, bytes: &[u8; PAGE_BYTES]) -> PageRef<'a> {
        let cache = &*self.file.cache;
        cache.frames.store(self.frame, bytes);
        self.filled = true;
        cache.give(self.frame, Give::Pinned);
        PageRef::pinned(cache, self.frame)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if !self.filled {
            let cache = &*self.file.cache;
            cache.unname(self.frame, None);
            cache.clock.lock().put_free(self.frame);
        }
    }
}
