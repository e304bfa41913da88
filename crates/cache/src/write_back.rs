//! Fresh pages, write-back, and pages that get another place.
//!
//! ```text
//!             fresh                 edit, mark_dirty
//!  (absent) ----------> dirty, fresh <-----> dirty <----------------- clean <---- look, load
//!                             |                |                        ^
//!                             |   snapshot; the caller writes the copy  |
//!                             +----------------+------------------------+
//!                              written_back, if nothing was edited since
//! ```
//!
//! A page of a copy-on-write tree is never written where something durable names it. So its owner
//! takes a copy of a dirty page ([`EditableFile::snapshot`]), writes the copy to a new place, and
//! says so ([`EditableFile::rename`]) while it holds the page that names this one; then
//! [`EditableFile::written_back`] makes the page clean, unless it was edited since the copy.
//!
//! **Invariants**
//! 1. A dirty page stays in the cache until it was written back or forgotten.
//! 2. [`EditableFile::fresh`] and [`EditableFile::rename`] take the table entry of the number that
//!    they give out: a frame found there, of an earlier allocation, is thrown out, and a load into
//!    it that ends later puts nothing into the cache. Taking pages out when their numbers are freed
//!    is not enough: a reader with an old pointer may begin a load afterwards.
//! 3. Nothing here waits for a load or for an edit, and nothing reads or writes a file.

use std::sync::atomic::Ordering::Relaxed;

use spinney_sync::racy;

use crate::cache::Cache;
use crate::clock::{Clock, Taken};
use crate::editable::{Edit, EditableFile, Sight};
use crate::frames::Name;
use crate::page::PageId;

/// A page that was dirty when it was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyPage {
    /// Id of the page.
    pub id: PageId,
    /// Whether it was never written at its place.
    pub is_fresh: bool,
}

/// Position in a lap over all frames of a cache, for [`EditableFile::dirty_pages`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyHand(u32);

/// Where the copy of a page was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// At the place that the page's id names.
    InPlace,
    /// Elsewhere: what lies at the page's place is as it was.
    Elsewhere,
}

impl Cache {
    /// Returns the id that a name is of.
    pub(crate) fn id(&self, name: Name) -> Option<PageId> {
        let kind = *self.kinds[name.kind].get()?;
        Some(PageId { page: name.page, generation: name.generation, kind })
    }
}

impl EditableFile {
    /// Returns a zeroed page, held, for a page that was just allocated and never written. It is
    /// dirty and fresh. A page of an earlier allocation of the number leaves the cache, whatever it
    /// is and even if a thread is loading or editing it.
    ///
    /// `None` if every frame is in use or dirty: write pages back and try again.
    #[must_use]
    pub fn fresh(&self, id: PageId) -> Option<Edit<'_>> {
        let cache = &*self.handle.cache;
        let unit = cache.frames.unit(id.page);
        let mut clock = cache.clock.lock();
        self.handle.charge(&mut clock, unit);
        self.take_entry(&mut clock, id, None);
        let taken = clock.take(&cache.frames, id.kind, &mut |frame| cache.empty(frame));
        let Taken::Frame(frame) = taken else {
            drop(clock);
            cache.shrink();
            return None;
        };
        cache.kinds[id.kind.index()].get_or_init(|| id.kind);
        cache.frames.set_content(frame, self.handle.file, id);
        cache.frames.state(frame).begin_fresh();
        cache.counters.dirty.fetch_add(1, Relaxed);
        self.handle.table.table.set(unit, Some(frame));
        drop(clock);
        cache.frames.zero(frame);
        Some(Edit::of_fresh(cache, frame))
    }

    /// Lists dirty pages of this file that the hand meets, at most `most`, and moves the hand on.
    /// Returns `false` once the hand has passed all frames. A lap from [`DirtyHand::default`] on
    /// lists every page that was marked dirty and released before it began, and was not written
    /// back or forgotten meanwhile; pages that become dirty beside it may be missing. A fresh page
    /// that was never released is not listed: a thread that waits for its holder may be waited for.
    pub fn dirty_pages(&self, hand: &mut DirtyHand, most: usize, out: &mut Vec<DirtyPage>) -> bool {
        let cache = &*self.handle.cache;
        let end = cache.clock.lock().frames();
        let full = out.len().saturating_add(most);
        while hand.0 < end && out.len() < full {
            let state = cache.frames.state(hand.0);
            if state.see().is_dirty() {
                let _names = cache.clock.lock();
                let seen = state.see();
                let name = cache.frames.name(hand.0).filter(|name| name.file == self.handle.file);
                if seen.is_dirty()
                    && !seen.is_new()
                    && let Some(id) = name.and_then(|name| cache.id(name))
                {
                    out.push(DirtyPage { id, is_fresh: seen.is_fresh() });
                }
            }
            hand.0 += 1;
        }
        hand.0 < end
    }

    /// Copies a cached page, dirty or clean, to be written. `None` if it is not cached, or a thread
    /// is loading or editing it. It does not count as a use.
    ///
    /// # Panics
    /// When `out` is not as long as a frame.
    #[must_use]
    pub fn snapshot(&self, id: PageId, out: &mut [u8]) -> Option<Sight> {
        let look = self.peek(id)?;
        assert_eq!(out.len(), look.words().len() * racy::WORD_BYTES);
        racy::copy_bytes(look.words(), 0, out);
        self.is_valid(look.sight()).then_some(look.sight())
    }

    /// Notes that the copy of which `sight` is the [snapshot](EditableFile::snapshot) was written.
    /// The page becomes clean if nothing changed since, and `true` is returned. Otherwise it stays
    /// dirty, and if it was written in place it is no longer fresh.
    ///
    /// Call it after [`EditableFile::rename`] or before; a rename changes no version. Between a call
    /// before and the rename the page may be evicted, so its place must be readable.
    pub fn written_back(&self, sight: Sight, place: Written) -> bool {
        let cache = &*self.handle.cache;
        if !sight.is_cached() {
            return false;
        }
        let state = cache.frames.state(sight.frame);
        if let Some(was_dirty) = state.mark_clean(sight.seen) {
            if was_dirty {
                cache.counters.dirty.fetch_sub(1, Relaxed);
                cache.counters.written_back.fetch_add(1, Relaxed);
            }
            return true;
        }
        if place == Written::InPlace {
            state.mark_written(|_| cache.frames.is_same_page(sight.frame, sight.seen));
        }
        false
    }

    /// Notes that the page `from` lies at `to` from now on. The caller holds the page that names it
    /// and changes the pointer before it releases that. Returns whether the page is cached; a load
    /// of it that another thread has begun at the old place is thrown away.
    ///
    /// A page of an earlier allocation of the number `to` leaves the cache, as with
    /// [`EditableFile::fresh`]. A reader that has the old pointer finds the page, or loads it from
    /// its old place; it must validate the page that it has the pointer from after it has looked,
    /// and that fails. Another thread may edit the page meanwhile, and keeps it.
    pub fn rename(&self, from: PageId, to: PageId) -> bool {
        let cache = &*self.handle.cache;
        let table = &self.handle.table.table;
        let mut clock = cache.clock.lock();
        let (old, new) = (cache.frames.unit(from.page), cache.frames.unit(to.page));
        let held = table.frame(old).filter(|frame| {
            cache.frames.name(*frame).is_some_and(|name| name.is(self.handle.file, from))
        });
        self.take_entry(&mut clock, to, held);
        let Some(frame) = held else { return false };
        if cache.frames.state(frame).see().is_loading() {
            table.set(old, None);
            cache.throw_out(&mut clock, frame);
            return false;
        }
        self.handle.charge(&mut clock, new);
        cache.kinds[to.kind.index()].get_or_init(|| to.kind);
        table.set(new, Some(frame));
        cache.frames.rename(frame, self.handle.file, to);
        if old != new {
            table.set(old, None);
        }
        true
    }

    /// Removes the page from the cache, even if it is dirty, because its place is freed. If a thread
    /// is loading or editing it, it leaves when that thread is done; the caller may be that thread.
    pub fn forget(&self, id: PageId) {
        let cache = &*self.handle.cache;
        let mut clock = cache.clock.lock();
        let unit = cache.frames.unit(id.page);
        let Some(frame) = self.handle.table.table.frame(unit) else { return };
        if cache.frames.name(frame).is_some_and(|name| name.is(self.handle.file, id)) {
            self.handle.table.table.set(unit, None);
            cache.throw_out(&mut clock, frame);
        }
    }

    /// Empties the table entry of a number that gets another owner, but for one frame.
    fn take_entry(&self, clock: &mut Clock, id: PageId, but: Option<u32>) {
        let cache = &*self.handle.cache;
        let unit = cache.frames.unit(id.page);
        let stale = self.handle.table.table.frame(unit).filter(|frame| Some(*frame) != but);
        if let Some(stale) = stale {
            self.handle.table.table.set(unit, None);
            cache.throw_out(clock, stale);
        }
    }
}
