//! Writing changed pages to new places, side by side.
//!
//! A batch is copied, each page as of one moment, in the order of its keys, and written to places that lie
//! side by side, so a sweep writes sequentially and neighbours lie together. Then each page moves: behind the
//! gate its parent is taken, and in one step the parent names the new place and the cache finds the page there
//! (rule H18). A page that changed meanwhile moves, too, and stays dirty.
//!
//! A page that is fresh is named by nothing on disk, and could be written where it was allocated. It moves with the
//! others all the same: it was allocated alone, while its neighbours lie side by side. Only a checkpoint whose gate is
//! closed writes it there.
//!
//! One thread writes back at a time. It waits for an editor only while it holds nothing.
//!
//! **Invariant.** Level and bounds of a page never change: a page with others is another page.

use spinney_base::{Error, ErrorKind, Result};
use spinney_cache::{DirtyHand, DirtyPage, Look, PageId, Sight, Written};
use spinney_io::{AlignedBuf, Purpose};

use crate::btree::descend::place_at;
use crate::btree::tree::BTree;
use crate::dirty::Dirty;
use crate::pages::{CowPages, PageKind, leaf_of};
use crate::place::Place;

/// Most pages of a batch. With more, the copy takes more memory; with fewer, the disk waits.
const BATCH_PAGES: usize = 64;

/// Which pages move that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moving {
    All,
    /// Fresh ones are written where they were allocated: the gate is closed, or is about to be.
    ButFresh,
}

impl CowPages {
    /// The dirty pages now, in the order of their levels and of their keys.
    pub(crate) fn dirty(&self) -> Vec<Dirty> {
        let (mut hand, mut found) = (DirtyHand::default(), Vec::new());
        while self.file().dirty_pages(&mut hand, usize::MAX, &mut found) {}
        let mut pages: Vec<Dirty> =
            found.iter().filter_map(|page| self.dirty_page(*page)).collect();
        pages.sort_unstable_by(|one, next| (one.level, &one.lower).cmp(&(next.level, &next.lower)));
        pages
    }

    fn dirty_page(&self, page: DirtyPage) -> Option<Dirty> {
        loop {
            let look = self.in_memory(page.id)?;
            let (leaf, mut lower) = (leaf_of(look.words()), Vec::new());
            let level = leaf.owner();
            leaf.lower(&mut lower);
            if self.is_valid(look.sight()) {
                #[expect(clippy::cast_possible_truncation, reason = "levels are few")]
                let level = level as u8;
                if level == 0 {
                    self.note_fill(leaf);
                }
                return Some(Dirty { level, lower, is_fresh: page.is_fresh, id: page.id });
            }
        }
    }

    /// Returns a page that is in memory, once nobody changes it; `None` if it is gone.
    fn in_memory(&self, id: PageId) -> Option<Look<'_>> {
        let gone = |_: &mut [u8]| Err(Error::new(ErrorKind::Closed, "it is gone"));
        self.file().look(id, gone).ok()
    }

    /// Copies a page as of one moment; `None` if it is gone.
    pub(crate) fn copy(&self, id: PageId, out: &mut [u8]) -> Option<Sight> {
        loop {
            if let Some(sight) = self.file().snapshot(id, out) {
                return Some(sight);
            }
            _ = self.in_memory(id)?;
        }
    }
}

impl BTree {
    /// Writes up to `most` dirty pages back, leaves first. Returns how many it wrote.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; what was not written stays dirty.
    pub fn write_back(&self, most: usize) -> Result<usize> {
        let _alone = self.writing.lock();
        let mut pages = self.pages.dirty();
        pages.truncate(most);
        self.write_pages(&pages, Moving::All)
    }

    /// Writes these pages, as far as they are still there. The caller holds `writing`. Returns how many
    /// were written.
    pub(crate) fn write_pages(&self, pages: &[Dirty], moving: Moving) -> Result<usize> {
        let write = |batch: &[Dirty]| match self.write_batch(batch, moving) {
            // Fresh ones have places.
            Err(error) if error.is_full() && moving == Moving::All => {
                self.write_batch(batch, Moving::ButFresh)
            }
            written => written,
        };
        pages.chunks(BATCH_PAGES).try_fold(0, |written, batch| Ok(written + write(batch)?))
    }

    fn write_batch(&self, batch: &[Dirty], moving: Moving) -> Result<usize> {
        let stays = |page: &Dirty| page.is_fresh && moving == Moving::ButFresh;
        let (mut buf, bytes) = (self.pages.buffer(batch.len()), self.pages.page_bytes());
        let mut copied: Vec<(&Dirty, Sight)> = Vec::with_capacity(batch.len());
        // Before they are copied: one that is replaced from here on keeps its place until it is written.
        let staying = batch.iter().filter(|page| stays(page)).map(Dirty::place);
        let _under_way = self.pages.begin_write(staying);
        for page in batch {
            let at = copied.len() * bytes;
            let sight = self.pages.copy(page.id, &mut buf.bytes_mut()[at..at + bytes]);
            copied.extend(sight.map(|sight| (page, sight)));
        }
        let count = copied.iter().filter(|(page, _)| !stays(page)).count();
        let mut new = self.pages.allocate(count)?.into_iter();
        let places: Vec<Place> = (copied.iter())
            .map(|(page, _)| match stays(page) {
                true => page.place(),
                false => new.next().expect("as many were allocated"),
            })
            .collect();
        let mut written = self.write_copies(&copied, &places, &mut buf);
        for ((page, sight), place) in copied.iter().zip(&places) {
            if stays(page) {
                if written.is_ok() {
                    self.pages.file().written_back(*sight, Written::InPlace);
                }
                continue;
            }
            let moved = match &written {
                Ok(()) => self.move_page(page, *place),
                Err(_) => Ok(false),
            };
            match moved {
                Ok(true) => _ = self.pages.file().written_back(*sight, Written::Elsewhere),
                Ok(false) => self.pages.let_go(*place),
                Err(error) => {
                    self.pages.let_go(*place);
                    written = Err(error);
                }
            }
        }
        written.map(|()| copied.len())
    }

    /// Seals copies, which lie one behind the other in `buf`, and writes them to these places.
    pub(crate) fn write_copies(
        &self,
        copied: &[(&Dirty, Sight)],
        places: &[Place],
        buf: &mut AlignedBuf,
    ) -> Result<()> {
        let (bytes, lsn) = (self.pages.page_bytes(), self.log.last_lsn());
        let blocks = buf.bytes_mut().chunks_mut(bytes);
        for (((page, _), place), block) in copied.iter().zip(places).zip(blocks) {
            self.pages.seal(*place, PageKind::of_level(page.level), lsn, block);
        }
        self.pages.write(places, buf, Purpose::WRITE_BACK)
    }

    /// Lets a page lie at a new place, to which it was written. Returns whether it does: it may be gone,
    /// or its parent may be in no frame.
    fn move_page(&self, page: &Dirty, to: Place) -> Result<bool> {
        loop {
            let seen = self.root.see();
            if seen.level == page.level {
                let _shape = self.pages.gate.enter();
                let Some(root) = self.root.edit(seen) else { continue };
                if seen.place != page.place() {
                    root.release_unchanged();
                    return Ok(false);
                }
                self.pages.rename(page, to);
                root.set(to, seen.level);
                self.pages.let_go(page.place());
                return Ok(true);
            }
            let Some(parent) = self.descend(&page.lower, page.level + 1)? else { return Ok(false) };
            if !parent.look.is_cached() {
                return Ok(false);
            }
            let _shape = self.pages.gate.enter();
            let Some(mut edit) = self.pages.edit(parent.look.sight()) else { continue };
            if !self.name_anew(&edit, page, to) {
                edit.release_unchanged();
                return Ok(false);
            }
            edit.mark_dirty();
            drop(edit);
            self.pages.let_go(page.place());
            return Ok(true);
        }
    }

    /// Lets a held parent name another place of a page. Returns whether it names it at all.
    pub(crate) fn name_anew(
        &self,
        parent: &spinney_cache::Edit<'_>,
        page: &Dirty,
        to: Place,
    ) -> bool {
        let node = leaf_of(parent.words());
        let Ok(index) = node.search(&page.lower) else { return false };
        if place_at(node, index) != Some(page.place()) {
            return false;
        }
        self.pages.rename(page, to);
        node.set_value(index, &to.encode());
        true
    }
}
