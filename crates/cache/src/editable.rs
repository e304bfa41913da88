//! Reading and editing pages that change in memory.
//!
//! ```text
//!   look(id) ---> read words ---> is_valid(sight)?  no: what was read is thrown away
//!                     |
//!                     +---------> edit(sight)?      no: the page changed since it was read
//!                                    | held: readers wait, or read again
//!                                    v
//!                                 store words, mark_dirty, drop: the version grows
//! ```
//!
//! Readers take no latch and write nothing shared. A thread that wants to change what it has read
//! asks for the frame exactly as it saw it; nothing that it read has to be validated besides.
//!
//! **Concurrency.** [`EditableFile::look`] waits while another thread loads or edits the page, so a
//! thread that holds an [`Edit`] must not look at the same page, and threads that look at a page
//! while they hold another must agree on an order. [`EditableFile::find`] and
//! [`EditableFile::edit`] wait for nobody.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::Result;
use spinney_base::shim::spin_hint;
use spinney_sync::racy::{self, Word};

use crate::cache::Cache;
use crate::frames::Holds;
use crate::handle::{Claim, Claimed, Handle};
use crate::page::PageId;
use crate::state::Seen;

/// Frame of a sight of a page that has none.
const PRIVATE: u32 = u32::MAX;

/// A file whose pages are cached and changed in memory, with its table. Dropping it removes all of
/// them from the cache, dirty ones too.
#[derive(Debug)]
pub struct EditableFile {
    pub(crate) handle: Handle,
}

/// What a reader saw of a page: its frame, and the version of the content. See
/// [`EditableFile::is_valid`]. It is meant for the cache that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    pub(crate) frame: u32,
    pub(crate) seen: Seen,
}

/// A page to be read optimistically.
#[derive(Debug)]
#[must_use]
pub struct Look<'a> {
    words: Words<'a>,
    sight: Sight,
}

#[derive(Debug)]
enum Words<'a> {
    Frame(&'a [Word]),
    Private(Box<[Word]>),
}

impl Sight {
    /// Returns whether it is of a page in a frame.
    #[inline]
    pub(crate) fn is_cached(self) -> bool {
        self.frame != PRIVATE
    }
}

impl Look<'_> {
    /// Returns the words of the page, which other threads may be changing: nothing may be concluded
    /// from them before [`EditableFile::is_valid`] (rule P27; `spinney_sync::racy` copies them).
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[Word] {
        match &self.words {
            Words::Frame(words) => words,
            Words::Private(words) => words,
        }
    }

    /// Returns what was seen, to validate or edit it.
    #[inline]
    #[must_use]
    pub fn sight(&self) -> Sight {
        self.sight
    }

    /// Returns whether the page is in the cache. If it is not, no frame was available, or another
    /// page took its number while it was loaded; it cannot be edited.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.sight.is_cached()
    }
}

/// State of a page before anything is done about it.
enum Probe<'a> {
    Found(Look<'a>),
    Absent,
    /// Its frame is being filled, edited or emptied.
    Busy(u32, Seen),
    /// Its frame seems to hold another allocation of the page.
    Stale,
}

impl EditableFile {
    pub(crate) fn new(handle: Handle) -> Self {
        EditableFile { handle }
    }

    /// Returns the cache of this file's pages.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.handle.cache
    }

    /// Returns the page, and loads it if it is not cached: `load` fills a buffer as long as a
    /// frame, aligned for direct I/O. When several threads miss a page at once, one loads it and
    /// the others wait for it; a page that another thread edits is waited for as well. It counts as
    /// a use.
    ///
    /// A miss that finds every frame in use or dirty, or whose page's number has another owner or
    /// gets one meanwhile, is served from memory of its own, which is always valid: it shows what
    /// `load` read. If the number has no other owner, that is the page as it was at some moment
    /// after the call began.
    ///
    /// # Errors
    /// Errors of `load`; the page is as absent as before.
    #[inline]
    pub fn look(&self, id: PageId, load: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Look<'_>> {
        match self.find(id) {
            Some(look) => Ok(look),
            None => self.look_slowly(id, load),
        }
    }

    #[cold]
    fn look_slowly(
        &self,
        id: PageId,
        load: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Look<'_>> {
        loop {
            match self.probe(id) {
                Probe::Found(look) => {
                    self.used(look.sight.frame, id);
                    return Ok(look);
                }
                Probe::Busy(frame, seen) => self.handle.cache.wait(frame, seen),
                Probe::Absent => match self.handle.claim(id) {
                    Claim::Claimed(claimed) => return self.load(claimed, load),
                    Claim::Full => return self.look_privately(id, load),
                    Claim::Lost => {}
                },
                Probe::Stale => {
                    if !self.throw_out_stale(id) {
                        return self.look_privately(id, load);
                    }
                }
            }
        }
    }

    /// Returns the page if it is cached and no thread is loading or editing it. It counts as a use,
    /// and waits for nobody.
    #[inline]
    #[must_use]
    pub fn find(&self, id: PageId) -> Option<Look<'_>> {
        let look = self.peek(id)?;
        self.used(look.sight.frame, id);
        Some(look)
    }

    /// Returns the page if it is cached and no thread is loading or editing it. It does not count
    /// as a use, and waits for nobody.
    #[inline]
    #[must_use]
    pub fn peek(&self, id: PageId) -> Option<Look<'_>> {
        let cache = &*self.handle.cache;
        let frame = self.handle.table.table.frame(cache.frames.unit(id.page))?;
        // If the name is not of the time of `seen`, the look will not be valid.
        let (seen, words, holds) = cache.frames.see(frame, self.handle.file, id)?;
        let look = || Look { words: Words::Frame(words), sight: Sight { frame, seen } };
        (holds == Holds::It).then(look)
    }

    /// Returns whether the page is what it was: what was read since is of one moment, and the page
    /// is in the cache still.
    #[inline]
    #[must_use]
    pub fn is_valid(&self, sight: Sight) -> bool {
        !sight.is_cached() || self.handle.cache.frames.state(sight.frame).validate(sight.seen)
    }

    /// Holds the page exclusively, if nothing changed since it was seen; so what was read before is
    /// valid. `None` if it changed, if another thread is editing it, or if it is not in the cache.
    #[must_use]
    pub fn edit(&self, sight: Sight) -> Option<Edit<'_>> {
        let cache = &*self.handle.cache;
        let is_held = sight.is_cached() && cache.frames.state(sight.frame).hold_as_seen(sight.seen);
        is_held.then(|| Edit { cache, frame: sight.frame, is_dirty: false, is_fresh: false })
    }

    #[inline]
    fn at(&self, frame: u32, seen: Seen) -> Look<'_> {
        let words = Words::Frame(self.handle.cache.frames.words(frame));
        Look { words, sight: Sight { frame, seen } }
    }

    /// Notes that the page was found.
    #[inline]
    fn used(&self, frame: u32, id: PageId) {
        self.handle.cache.frames.touch(frame, id.kind);
        self.handle.cache.counters.hit(id.kind);
    }

    fn probe(&self, id: PageId) -> Probe<'_> {
        let cache = &*self.handle.cache;
        let unit = cache.frames.unit(id.page);
        loop {
            let Some(frame) = self.handle.table.table.frame(unit) else { return Probe::Absent };
            let state = cache.frames.state(frame);
            let seen = state.see();
            if seen.is_exclusive() {
                // A frame is thrown out after its entry was changed, and a free one is filled after
                // it got its entry. So `seen` will change if the name is still there.
                if self.handle.table.table.frame(unit) == Some(frame) {
                    return Probe::Busy(frame, seen);
                }
                continue;
            }
            match cache.frames.holds(frame, self.handle.file, id) {
                Holds::It => return Probe::Found(self.at(frame, seen)),
                Holds::AnotherGeneration if state.validate(seen) => return Probe::Stale,
                // It is getting another name, or got another page since the table was read.
                _ => spin_hint(),
            }
        }
    }

    /// Takes another allocation of the page out of the cache, if it is there and clean. Returns
    /// `false` if it is dirty: the number is its own, and the caller's is out of date.
    fn throw_out_stale(&self, id: PageId) -> bool {
        let cache = &*self.handle.cache;
        let unit = cache.frames.unit(id.page);
        let mut clock = cache.clock.lock();
        let Some(frame) = self.handle.table.table.frame(unit) else { return true };
        if cache.frames.name(frame).is_none_or(|name| name.is(self.handle.file, id)) {
            return true;
        }
        let state = cache.frames.state(frame);
        if state.hold() {
            self.handle.table.table.set(unit, None);
            cache.free_held(&mut clock, frame);
        }
        !state.see().is_dirty()
    }

    fn load<'a>(
        &'a self,
        claimed: Claimed<'a>,
        load: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Look<'a>> {
        let cache = &*self.handle.cache;
        cache.counters.miss(claimed.kind());
        // Not into the frame itself, because optimistic readers may be reading its bytes.
        let mut buffer = cache.buffers.lend(1 << cache.frames.order());
        load(buffer.bytes_mut())?;
        let frame = claimed.frame();
        match claimed.complete_editable(buffer.bytes()) {
            Some(seen) => Ok(self.at(frame, seen)),
            None => Ok(private(buffer.bytes())),
        }
    }

    /// Reads a page for which there is no frame.
    fn look_privately(
        &self,
        id: PageId,
        load: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Look<'_>> {
        let cache = &*self.handle.cache;
        cache.counters.miss(id.kind);
        cache.counters.private.fetch_add(1, Relaxed);
        let mut buffer = cache.buffers.lend(1 << cache.frames.order());
        load(buffer.bytes_mut())?;
        Ok(private(buffer.bytes()))
    }
}

/// Returns a look at a copy of the bytes.
fn private<'a>(bytes: &[u8]) -> Look<'a> {
    let words: Box<[Word]> = (0..bytes.len() / racy::WORD_BYTES).map(|_| Word::new(0)).collect();
    racy::store_bytes(&words, bytes);
    Look { words: Words::Private(words), sight: Sight { frame: PRIVATE, seen: Seen::NONE } }
}

/// A page that is held exclusively. Dropping it releases the page with another version, so that
/// what readers read meanwhile is not valid.
///
/// Its holder stores to the words with `Relaxed` order; the fences are the cache's. A thread that
/// changed what is on disk calls [`Edit::mark_dirty`], or the change is lost when the page is
/// evicted.
#[derive(Debug)]
#[must_use = "the page is held until the edit is dropped"]
pub struct Edit<'a> {
    cache: &'a Cache,
    /// [`PRIVATE`] once it was released.
    frame: u32,
    is_dirty: bool,
    /// The page is fresh, and nobody has seen it yet.
    is_fresh: bool,
}

impl<'a> Edit<'a> {
    /// Makes an edit of a held frame with a fresh page.
    pub(crate) fn of_fresh(cache: &'a Cache, frame: u32) -> Self {
        Edit { cache, frame, is_dirty: true, is_fresh: true }
    }

    /// Returns the words of the page, which only this thread stores to.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[Word] {
        self.cache.frames.words(self.frame)
    }

    /// Returns the id of the page: its newest, if it was renamed meanwhile, or `None` if it was
    /// forgotten or its number has another owner.
    #[must_use]
    pub fn id(&self) -> Option<PageId> {
        let _names = self.cache.clock.lock();
        self.cache.frames.name(self.frame).and_then(|name| self.cache.id(name))
    }

    /// Marks the page dirty: it differs from what is on disk.
    pub fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Releases the page. Returns what it is now, to be read or edited again; `None` if the page
    /// was forgotten, or its number has another owner.
    pub fn release(mut self) -> Option<Sight> {
        self.give(true)
    }

    /// Releases the page to which nothing was stored; what readers saw before stays valid. If it
    /// was marked dirty, or is fresh, this is [`Edit::release`].
    pub fn release_unchanged(mut self) {
        let is_changed = self.is_dirty || self.is_fresh;
        self.give(is_changed);
    }

    fn give(&mut self, is_changed: bool) -> Option<Sight> {
        let frame = std::mem::replace(&mut self.frame, PRIVATE);
        let seen = self.cache.release(frame, is_changed, self.is_dirty)?;
        Some(Sight { frame, seen })
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        if self.frame != PRIVATE {
            self.give(true);
        }
    }
}
