//! What files of both sorts have: their table, and the claiming of frames for pages that are
//! loaded.
//!
//! A claim names a held frame in the table before the page is read, so that other threads that miss
//! the page wait for this load. The names of frames and the entries of tables are stored under the
//! clock.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::AtomicU64;
use spinney_base::{PageNumber, Result};

use crate::cache::{Cache, REGRET_PART};
use crate::clock::{Clock, Taken};
use crate::guard::PageRef;
use crate::page::{Kind, PageId};
use crate::state::{Give, Seen};
use crate::table::{ENTRY_BYTES, Named, Table, left_since};

/// Table entries that are charged to the budget at once: a page of them.
const ENTRIES_STEP: u32 = 1024;

#[derive(Debug, Default)]
pub(crate) struct FileTable {
    pub(crate) table: Table,
    /// First unit without a table entry; a multiple of [`ENTRIES_STEP`]. Changed under the clock.
    end: AtomicU64,
}

/// A file of a cache. Dropping it removes all of its pages from the cache.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) cache: Arc<Cache>,
    pub(crate) file: u32,
    pub(crate) table: Arc<FileTable>,
}

impl Handle {
    /// Adds a file to the cache.
    pub(crate) fn new(cache: &Arc<Cache>) -> Handle {
        let table = Arc::new(FileTable::default());
        let mut files = cache.files.write();
        let place = files.iter().position(Option::is_none).unwrap_or(files.len());
        if place == files.len() {
            files.push(None);
        }
        files[place] = Some(Arc::clone(&table));
        let file = u32::try_from(place).expect("files are fewer than 2^32");
        Handle { cache: Arc::clone(cache), file, table }
    }

    /// Claims a frame for a page without one; the caller fills it.
    pub(crate) fn claim(&self, id: PageId) -> Claim<'_> {
        let cache = &*self.cache;
        let unit = cache.frames.unit(id.page);
        let mut clock = cache.clock.lock();
        if self.table.table.frame(unit).is_some() {
            return Claim::Lost;
        }
        self.charge(&mut clock, unit);
        if cache.has_floor() {
            cache.limit(&mut clock);
        }
        let near = clock.resident() / REGRET_PART;
        let taken = clock.take(&cache.frames, id.kind, &mut |frame| cache.empty(frame));
        let Taken::Frame(frame) = taken else {
            drop(clock);
            cache.shrink();
            return Claim::Full;
        };
        cache.kinds[id.kind.index()].get_or_init(|| id.kind);
        cache.frames.state(frame).begin_load();
        cache.frames.set_content(frame, self.file, id);
        let named = self.table.table.claim(unit, frame);
        debug_assert_ne!(named, Named::Not, "entries are stored under the clock");
        drop(clock);
        if let Named::Again(left) = named
            && left_since(left, cache.counters.evicted.load(Relaxed)) < near
        {
            cache.counters.regretted.fetch_add(1, Relaxed);
        }
        Claim::Claimed(Claimed { file: self, frame, id, filled: false })
    }

    /// Charges the table's entries up to this unit to the budget.
    pub(crate) fn charge(&self, clock: &mut Clock, unit: PageNumber) {
        let end = u64::from(unit.0 / ENTRIES_STEP + 1) * u64::from(ENTRIES_STEP);
        let before = self.table.end.load(Relaxed);
        if end > before {
            self.table.end.store(end, Relaxed);
            self.cache.tables.fetch_add((end - before) * ENTRY_BYTES, Relaxed);
            self.cache.limit(clock);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let end = self.table.end.load(Relaxed);
        for unit in (0..u32::try_from(end).unwrap_or(u32::MAX)).map(PageNumber) {
            if self.table.table.frame(unit).is_some() {
                // A hand at one of its pages is done with it when it releases the clock.
                let mut clock = self.cache.clock.lock();
                if let Some(frame) = self.table.table.frame(unit) {
                    self.table.table.set(unit, None);
                    self.cache.throw_out(&mut clock, frame);
                }
            }
        }
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
    file: &'a Handle,
    frame: u32,
    id: PageId,
    filled: bool,
}

impl<'a> Claimed<'a> {
    pub(crate) fn kind(&self) -> Kind {
        self.id.kind
    }

    /// Returns the frame.
    pub(crate) fn frame(&self) -> u32 {
        self.frame
    }

    pub(crate) fn load(
        self,
        load: impl FnOnce(&mut [u8; PAGE_BYTES]) -> Result<()>,
    ) -> Result<PageRef<'a>> {
        let cache = &*self.file.cache;
        cache.counters.miss(self.id.kind);
        // Not into the frame itself, because optimistic readers may be reading its bytes.
        let mut buffer = cache.buffers.lend(1);
        load(buffer.page_mut(0))?;
        Ok(self.complete(buffer.page(0)))
    }

    /// Fills the frame and makes it visible, pinned.
    pub(crate) fn complete(mut self, bytes: &[u8; PAGE_BYTES]) -> PageRef<'a> {
        let cache = &*self.file.cache;
        cache.frames.store(self.frame, bytes);
        self.filled = true;
        cache.give(self.frame, Give::Pinned);
        PageRef::pinned(cache, self.frame)
    }

    /// Fills the frame, of an editable file, and makes it visible, unless it was thrown out
    /// meanwhile: the page's number has another owner, and nothing is put into the cache.
    pub(crate) fn complete_editable(mut self, bytes: &[u8]) -> Option<Seen> {
        let cache = &*self.file.cache;
        cache.frames.store(self.frame, bytes);
        self.filled = true;
        cache.release(self.frame, true, false)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.file.cache.discard(self.frame);
        }
    }
}
