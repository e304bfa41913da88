//! The image of a checkpoint: all dirty records of the tier as one run (Tiered-Indexing, 3.6).
//!
//! ```text
//!   checkpoint   (1) image: dirty records, in order     (2) leaves that are dirty     (3) slot: root and image
//!                    K dirty  -> the image has it
//!                    K merged -> its leaf was changed before (2), so the root has it
//!
//!   opening      root -> tree      image -> tier, dirty      log -> tier
//! ```
//!
//! Merging a record for a checkpoint would rewrite its leaf; as a part of an image it takes its own bytes. An image is
//! complete by itself: it does not build on the one before, so that a record that left the tier needs no note.
//!
//! The image is taken before changed leaves are gathered (rule H12), leaf by leaf of the tier, each as of one moment, and
//! nothing is held meanwhile. A record that a sweep is merging is dirty until its leaf has it, and belongs to the
//! image. A large value that is superseded from here on is listed by the root, since image or leaves may name it (H23).
//!
//! **When.** [`Images::wants_image`] decides. An image takes no space of the reserve (P29): where the disk has no other,
//! the records are merged, which is what gives space back on a full disk.
//!
//! **Invariants**
//! 1. The pages of the image before are free when the slot that does not name it is durable, and no earlier.
//! 2. Records of an image enter the tier dirty: what the tree has may be newer only where nothing is logged, and then
//!    it belongs to writes after the checkpoint (H9).

use std::sync::Arc;

use spinney_access::BTree;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Result, probe};
use spinney_engine::Scrubbed;
use spinney_extent::{Extent, Store};
use spinney_hot::{Direction, Piece};
use spinney_io::{Purpose, without_reserve};

use crate::claims::Alone;
use crate::engine::Tiered;
#[cfg(doc)]
use crate::images::Images;
use crate::images::{Dirty, note_named};
use crate::run::{Run, RunReader, RunWriter, TOGETHER, What};

/// Leaves of the tier that the background merges at once while nothing is put, and those that it looks at.
const MERGED_AT_ONCE: usize = 4;
const LOOKED_AT_ONCE: usize = 256;

/// An image that no slot names yet. Dropping it frees its pages, unless the slot may be on the disk.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    store: &'a Store,
    pub(crate) run: Run,
}

impl Image<'_> {
    /// Makes one without records.
    pub(crate) fn none(store: &Store) -> Image<'_> {
        Image { store, run: Run::default() }
    }

    /// Gives the run to the slot that names it now.
    pub(crate) fn keep(mut self) -> Run {
        std::mem::take(&mut self.run)
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        // Its generations are above the gate of the slot that stands; if one that names it may be on the disk, below.
        self.run.extents().for_each(|(extent, generation)| self.store.let_go(extent, generation));
    }
}

impl Tiered {
    /// Takes what is dirty for a checkpoint: as an image, or merged into the tree. The caller holds `publishing`.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`.
    pub(crate) fn take_dirty(&self) -> Result<Image<'_>> {
        if self.images.wants_image(self.dirty()) && self.has_room_for_image() {
            match without_reserve(|| self.write_image()) {
                Err(error) if error.is_full() => {}
                written => return written,
            }
        }
        self.bring_all_home()?;
        Ok(Image::none(self.store()))
    }

    /// About what is dirty in the tier.
    pub(crate) fn dirty(&self) -> Dirty {
        let records = self.hot.dirty();
        let bytes = self.hot.bytes() * records / self.hot.len().max(1);
        let pages = (bytes / PAGE_BYTES as u64).max(1);
        let of_leaves = |tree: &BTree| tree.pages().min(records) * tree.page_bytes();
        let leaves = self.tree().map_or(0, |tree| of_leaves(&tree)) / PAGE_BYTES as u64;
        Dirty { records, pages, leaves }
    }

    /// Writes all dirty records of the tier as a run.
    fn write_image(&self) -> Result<Image<'_>> {
        let _inside = probe::enter("image");
        let lsn = || self.context.log.last_lsn();
        let about = (lsn(), Purpose::CHECKPOINT);
        let mut writer = RunWriter::new(self.store(), What::Dirty, about, self.dirty().pages);
        let (mut from, mut piece) = (Vec::new(), Piece::default());
        loop {
            self.hot.range(Some(&from), Direction::Forward, usize::MAX, &mut piece);
            writer.follow(lsn());
            for record in piece.records.iter().filter(|record| record.is_dirty) {
                writer.push(record.key, record.value)?;
            }
            match &piece.upper {
                Some(upper) => from.clone_from(upper),
                None => break,
            }
        }
        Ok(Image { store: self.store(), run: writer.finish()? })
    }

    /// Loads the image that the slot names into the tier. Where the tier has become too small for it, records are merged
    /// meanwhile.
    ///
    /// # Errors
    /// `Corruption`, `Full` or `Io`.
    pub(crate) fn load_image(&self) -> Result<()> {
        let Some(run) = self.named.lock().as_ref().map(|named| named.dirty.clone()) else {
            return Ok(());
        };
        let mut reader = RunReader::new(self.store(), &run, What::Dirty, Purpose::RECOVERY);
        let mut unnamed = self.images.in_doubt();
        while reader.next()? {
            for (key, value) in reader.records() {
                let bytes = value.map_or(0, |value| value.len());
                self.reserve(key.len(), bytes)?;
                if let Some(pointer) = value.filter(|value| value.large) {
                    // It may have been superseded while the image was written.
                    self.values.applied(pointer.bytes, 0);
                    note_named(pointer.bytes, &mut unnamed);
                }
                self.hot.put(key, value, &mut Vec::new());
                self.hot.release(key.len(), bytes);
            }
        }
        self.images.set_in_doubt(unnamed);
        Ok(())
    }

    /// Returns whether nothing was put for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.images.is_quiet(self.context.runtime.now())
    }

    /// Merges a piece of what is dirty, once nothing was put for a while; says whether it did.
    pub(crate) fn merge_in_quiet(&self) -> Result<bool> {
        if !self.is_quiet() || self.hot.dirty() == 0 {
            return Ok(false);
        }
        self.merge_some()?;
        if self.hot.dirty() == 0 {
            // The next slot names no image, and frees what removed records took.
            self.set_dirty(true);
        }
        Ok(true)
    }

    /// Merges the dirty records of some leaves of the tier, where the last call ended.
    fn merge_some(&self) -> Result<()> {
        let mut next = self.images.next.lock();
        // The background waits for no verification.
        if self.sweeps.claims.try_lock().is_none_or(|sweepers| sweepers.is_claimed(&next)) {
            return Ok(());
        }
        let mut merged = 0;
        for _ in 0..LOOKED_AT_ONCE {
            let (claim, behind) = self.take_range((&next, None), &|_| true);
            merged += usize::from(!claim.victims.is_empty());
            self.bring_home(&claim.victims, Alone::Try)?;
            *next = behind.unwrap_or_default();
            if merged >= MERGED_AT_ONCE || next.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Merges the dirty records of a range; says whether there were any.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`.
    pub(crate) fn bring_range_home(&self, from: &[u8], to: Option<&[u8]>) -> Result<bool> {
        let mut has_merged = false;
        let mut from = (self.hot.dirty() > 0).then(|| from.to_vec());
        while let Some(at) = from {
            let claim;
            (claim, from) = self.take_range((&at, to), &|victims| self.is_enough(victims));
            self.bring_home(&claim.victims, Alone::Try)?;
            has_merged |= !claim.victims.is_empty();
        }
        Ok(has_merged)
    }

    /// Returns the pages of the image that the newest slot names, and of clean records.
    pub(crate) fn image_pages(&self) -> u64 {
        let clean = self.images.warm.lock().named().map_or(0, |clean| clean.run.pages());
        self.named.lock().as_ref().map_or(0, |named| named.dirty.pages()) + clean
    }

    /// Returns the extents of the run of clean records.
    pub(crate) fn clean_extents(&self) -> Vec<(Extent, Generation)> {
        let warm = self.images.warm.lock();
        warm.named().map_or_else(Vec::new, |clean| clean.run.extents().collect())
    }

    /// Returns its extents.
    pub(crate) fn image_extents(&self) -> impl Iterator<Item = (Extent, Generation)> {
        let run = self.named.lock().as_ref().map(|named| named.dirty.clone()).unwrap_or_default();
        run.pieces.into_iter().flat_map(|piece| piece.extents())
    }

    /// Reads and checks both runs. The caller keeps checkpoints and merges away.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn verify_runs(&self) -> Result<()> {
        for what in [What::Dirty, What::Clean] {
            let Some(run) = self.run_of(what) else { continue };
            let mut reader = RunReader::new(self.store(), &run, what, Purpose::TOOL);
            while reader.next()? {
                for (key, value) in reader.records() {
                    value.map_or(Ok(()), |value| self.values.check(key.len(), value))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the run that the newest slot names.
    fn run_of(&self, what: What) -> Option<Arc<Run>> {
        match what {
            What::Dirty => self.named.lock().as_ref().map(|named| Arc::new(named.dirty.clone())),
            What::Clean => self.images.warm.lock().named().map(|clean| clean.run.clone()),
        }
    }

    /// Reads a piece of a run for the scrub: from a place that this has returned, or from the begin. A run that goes
    /// meanwhile is passed over; the next scrub reads the one after.
    pub(crate) fn scrub_run(
        &self,
        what: What,
        from: &[u8],
        seen: &mut Scrubbed,
    ) -> Option<Vec<u8>> {
        // What is freed from here on stays as it is until the piece was read.
        let _hold = self.store().hold();
        let run = self.run_of(what)?;
        let number = run.number()?;
        let mut places = from.as_chunks::<4>().0.iter().map(|place| u32::from_le_bytes(*place));
        let (of, index) = (places.next(), places.next().unwrap_or(0));
        if of.is_some_and(|of| of != number.0) {
            return None;
        }
        let mut reader = RunReader::new(self.store(), &run, what, Purpose::TOOL);
        reader.skip_to(index);
        let first = reader.place()?;
        match reader.read(TOGETHER) {
            Ok(None) => return None,
            Ok(Some(part)) => {
                (0..part.pages)
                    .for_each(|index| seen.note(self.store().path(), part.page(index), Ok(())));
            }
            Err(error) => seen.note(self.store().path(), first, Err(error)),
        }
        let next = [number.0.to_le_bytes(), reader.index().to_le_bytes()].concat();
        Some(next)
    }
}
