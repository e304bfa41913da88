//! Merging in steps: where the disk is full (rule P29), and where much of the file waits for a slot.
//!
//! Changed pages go to new places, and the old ones are free once a slot is durable that does not name them. So a
//! checkpoint that has changed all leaves takes as much room as the tree. Where the disk has less, it goes in steps,
//! each of which takes the room of a few pages:
//!
//! ```text
//!   merge the changes of a few leaves -> write them -> slot: root as it is now, redo LSN and image of the slot before
//!      ^                                                                        |
//!      '----------------- the places that they had are free <------------------'
//! ```
//!
//! **Why a step is right.** With a log, a crash after it finds leaves that are newer than the redo LSN. The image that
//! was taken then and all records since lie over them, and end at the same state. Without a log, each key has the value
//! of the last checkpoint or a later one. Either way the slot names every large value that is live or superseded, because image and log
//! may name any of them.
//!
//! Where promoted records are in the tier alone (the option `tiering=exclusive`), there are no steps: the image before lacks those
//! that left their leaves since.

use std::cell::Cell;

use spinney_access::{BTree, Change};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::MutexGuard;
use spinney_base::{Error, Result, probe};
use spinney_engine::Engine as _;
use spinney_extent::values::Cut;
use spinney_io::without_reserve;

use crate::claims::Alone;
use crate::engine::Tiered;

/// Leaves of the tree that a step changes, at most. With more, a step takes more room; with fewer, more slots are written.
const STEP_LEAVES: u64 = 16;
/// Pages that a step takes beside them: inner nodes, where leaves divide.
const STEP_NODES: u64 = 24;
/// The background publishes a step when more than one part in this many of the tree's pages waits for a slot, and more
/// than this number. With a smaller part, more slots are written; with a larger one, the file is longer.
const HELD_PART: u64 = 16;
const HELD_PAGES_MIN: u64 = 64;

impl Tiered {
    /// Returns the 4 KiB pages that can be written: free pages of the file that take disk space already, and what the
    /// file system has, without the reserve.
    fn room_pages(&self) -> u64 {
        self.store().solid_pages() + self.context.directory.free_bytes() / PAGE_BYTES as u64
    }

    /// Returns whether there seems to be room for an image and, later, for what merging it takes: see
    /// [`Tiered::room_pages`]. Where there is none, merging must not be put off: it is what gives space back.
    pub(crate) fn has_room_for_image(&self) -> bool {
        let dirty = self.dirty();
        dirty.pages + dirty.leaves <= self.room_pages()
    }

    /// Merges changes, whose records the caller has taken from the tier: in steps where there is little room. `home`
    /// counts those that are merged, which are the first ones.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`.
    pub(crate) fn merge_in_steps(
        &self,
        tree: &BTree,
        changes: &[Change<'_>],
        home: &Cell<usize>,
        alone: Alone,
    ) -> Result<()> {
        let mut left = changes;
        while !left.is_empty() {
            let mut at_once = self.merged_at_once(left.len());
            if at_once < left.len() {
                self.give_up_clean();
                self.step(tree, alone)?;
                at_once = self.merged_at_once(left.len());
            }
            let (some, rest) = left.split_at(at_once.min(left.len()));
            self.merge_home(tree, some, home)?;
            left = rest;
        }
        Ok(())
    }

    /// Returns how many of these changes may be merged before a step: all where there is room for them and, later,
    /// for the pages that are dirty already.
    fn merged_at_once(&self, changes: usize) -> usize {
        let (Some(tree), Some(cache)) = (self.tree(), self.pages.cache()) else { return changes };
        let leaves = tree.pages().min(changes as u64);
        let bytes = cache.dirty_bytes() + (2 * leaves + STEP_NODES) * tree.page_bytes();
        let has_room = bytes / PAGE_BYTES as u64 <= self.room_pages();
        if has_room || !self.may_step() {
            return changes;
        }
        let each = self.hot.dirty() / tree.pages().max(1) + 1;
        usize::try_from(each * STEP_LEAVES).unwrap_or(changes)
    }

    /// Publishes a step once much of the file waits for a slot; says whether it did. Otherwise pages that move between
    /// two checkpoints lengthen the file, and on many file systems reads wait for each first write to a block.
    ///
    /// # Errors
    /// As [`Tiered::step`].
    pub(crate) fn step_in_background(&self) -> Result<bool> {
        let Some(tree) = self.tree() else { return Ok(false) };
        let pages = tree.pages() * tree.page_bytes() / PAGE_BYTES as u64;
        let is_due = self.store().held_back().sum() > HELD_PAGES_MIN.max(pages / HELD_PART);
        // It may wait, so it takes nothing from the reserve.
        if is_due && self.may_step() {
            without_reserve(|| self.step(&tree, Alone::Try))
        } else {
            Ok(false)
        }
    }

    /// Returns whether steps are right now: not during replay (P19), nor where the tier alone may have records.
    fn may_step(&self) -> bool {
        !self.is_replaying() && self.left_tree() == 0
    }

    /// Publishes a step, so that places that pages have left are free; says whether it did.
    ///
    /// # Errors
    /// `Poisoned`, `Io` or `Corruption`. A full disk is no error: what is merged next may find room.
    fn step(&self, tree: &BTree, alone: Alone) -> Result<bool> {
        if self.store().held_back().sum() == 0 {
            return Ok(false);
        }
        let _one_at_a_time: Option<MutexGuard<'_, ()>> = match alone {
            Alone::Held => None,
            Alone::Try => match self.publishing.try_lock() {
                Some(guard) => Some(guard),
                None => return Ok(false),
            },
        };
        let _inside = probe::enter("step");
        let image = self.named.lock().as_ref().map(|named| named.dirty.clone());
        let large = || self.values.list(&Cut::NOTHING);
        let published = self.publish_root(tree, self.redo(), image.unwrap_or_default(), large);
        match published {
            Err(error) if !error.is_full() => Err(error),
            published => Ok(published.is_ok()),
        }
    }

    /// Returns the disk space that a step takes, in bytes.
    pub(crate) fn bytes_of_step(&self) -> u64 {
        let pages =
            |tree: &BTree| (2 * STEP_LEAVES).min(tree.pages()) + STEP_NODES.min(tree.pages());
        self.tree().map_or(0, |tree| pages(&tree) * tree.page_bytes())
    }

    /// Merges what is dirty, and publishes a root without an image or clean records: on a full disk these take room, and
    /// dirty records keep that of removed ones.
    ///
    /// # Errors
    /// `Poisoned`, `Io` or `Corruption`. A full disk is no error.
    pub(crate) fn give_runs_up(&self) -> Result<()> {
        if self.is_replaying() || self.hot.dirty() == 0 && self.image_pages() == 0 {
            return Ok(());
        }
        self.give_up_clean();
        let Some(_one_at_a_time) = self.publishing.try_lock() else { return Ok(()) };
        // Records that came since the last checkpoint may be in the root, too.
        let published = self.bring_all_home().and_then(|()| self.publish_all(self.redo(), || ()));
        if published.as_ref().is_err_and(Error::is_full) { Ok(()) } else { published }
    }
}
