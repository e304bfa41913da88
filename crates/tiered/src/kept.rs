//! Snapshots of a keyspace: what the engine does for its [pre-images](spinney_preimages).
//!
//! ```text
//!   put of a key that the tier has   -> link: a copy of what the tier has
//!   put of any other key             -> mark: what the tree has counts, not the record over it
//!   merge into a leaf                -> link what the leaf has of marked keys, then change it
//! ```
//!
//! A mark is resolved while the leaf is held that is about to change (S10), or while all leaves are held that new ones
//! replace. A reader of a marked key reads the leaf, asks for the mark, and validates the leaf after that, so the
//! mark was there while the leaf was as it was read (S9). A scan chooses what it passes over between its look
//! at the tier and its look at the tree (S12).
//!
//! Slots of the tier have no room for notes, so marks take memory of their own; where it is too much, marked records
//! are merged.
//!
//! **Invariants**
//! 1. A marked key has a dirty record in the tier, or gets it next, under its stripe (H25).
//! 2. Room for links is taken before a page is held; claims come before it.

use std::cell::Cell;

use spinney_access::{BTree, Change, Keep};
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Found, ScanRequest, SnapshotNumber, Write};
use spinney_hot::Cached;
use spinney_preimages::{InPlace, Known, LinkRoom, PreImages};
use spinney_sync::hash_key;

use crate::engine::Tiered;

/// Least bytes of disk that pre-images may take, however little the keyspace has.
const SNAPSHOT_BYTES_MIN: u64 = 16 << 20;
/// Marked keys that a writer merges at once where marks take too much memory. Each may merge a leaf of the tier.
const MARKED_AT_ONCE: usize = 32;

impl InPlace for Tiered {
    fn pre_images(&self) -> &PreImages {
        &self.pre_images
    }

    fn get_behind(
        &self,
        key: &[u8],
        _hash: u64,
        holds: &dyn Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>> {
        // What a snapshot looks for here stays here: no record leaves the tree beside one (rule H21).
        match self.tree() {
            Some(tree) => tree.get_while(key, holds, out),
            None => Ok(holds().then_some(Found::Absent)),
        }
    }

    fn scan_behind(
        &self,
        request: &ScanRequest<'_>,
        hidden: &dyn Fn(&[u8]) -> bool,
        chunk: &mut Chunk,
    ) -> Result<()> {
        self.scan_both(request, Some(hidden), chunk)
    }
}

/// Links what leaves have of marked keys.
impl Keep for Tiered {
    fn wants(&self, key: &[u8]) -> bool {
        self.is_marked(key)
    }

    fn keep(&self, key: &[u8], old: Option<ValueRef<'_>>) {
        self.pre_images.bring_home(key, hash_key(self.context.keyspace, key), old);
    }
}

impl Tiered {
    fn is_marked(&self, key: &[u8]) -> bool {
        self.pre_images.has_marks()
            && self.pre_images.is_marked(key, hash_key(self.context.keyspace, key))
    }

    /// Most bytes of disk that pre-images may take: as many as the tree.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        let pages = self.tree().map_or(0, |tree| tree.pages() * tree.page_bytes());
        pages.max(SNAPSHOT_BYTES_MIN)
    }

    /// Keeps what a write is about to replace. A reader that finds the new value finds this, too (S5).
    #[inline]
    pub(crate) fn keep_before_put(&self, write: &Write<'_>, newest: SnapshotNumber) {
        let know = |old: &mut Vec<u8>| match self.hot.peek(write.key, old) {
            Cached::Present => Known::Value,
            Cached::Large => Known::Large,
            Cached::Absent => Known::Absent,
            Cached::Unknown => Known::Unknown,
        };
        // The tier has no room for the note.
        _ = self.pre_images.keep(newest, (write.key, write.hash), know);
    }

    /// Merges changes, whose records the caller has taken from the tier, and keeps what snapshots need of what they
    /// replace.
    /// `home` counts those that are merged, which are the first ones.
    pub(crate) fn merge_home(
        &self,
        tree: &BTree,
        changes: &[Change<'_>],
        home: &Cell<usize>,
    ) -> Result<()> {
        let mut left = changes;
        while !left.is_empty() {
            let (some, _room) = self.with_room_for_links(&mut left)?;
            let merged = tree.merge_keeping(some, self, &mut |change, replaced| {
                home.set(home.get() + 1);
                let is_same =
                    |pointer: &[u8]| change.value.is_some_and(|value| value.bytes == pointer);
                if let Some(pointer) = replaced.filter(|pointer| !is_same(pointer)) {
                    self.values.superseded(pointer);
                }
            })?;
            self.sweeps.merged_leaves.fetch_add(merged.leaves, Relaxed);
            self.sweeps.novelty.note(merged.records, some.len());
        }
        Ok(())
    }

    /// Splits off as many changes as may be merged together, and takes room for the links that they may make.
    fn with_room_for_links<'c>(
        &self,
        left: &mut &'c [Change<'c>],
    ) -> Result<(&'c [Change<'c>], Option<LinkRoom<'_>>)> {
        let (mut links, mut count) = (0, left.len());
        // Marks that no snapshot needs become no links.
        if !self.pre_images.is_empty() && self.pre_images.has_marks() {
            let most = self.pre_images.links_at_once();
            let has_room = |change: &&Change<'_>| {
                let is_marked = self.is_marked(change.key);
                let fits = !is_marked || links < most;
                links += u64::from(is_marked && fits);
                fits
            };
            count = left.iter().take_while(has_room).count();
        }
        let (some, rest) = left.split_at(count);
        *left = rest;
        let room = (links > 0).then(|| self.pre_images.room_for_links(links));
        Ok((some, room.transpose()?))
    }

    /// Makes pre-images take less memory, if a writer should.
    #[inline]
    pub(crate) fn relieve_pre_images(&self) -> Result<()> {
        if self.pre_images.is_empty() {
            return Ok(());
        }
        self.pre_images.relieve()?;
        self.merge_marked().map(|_| ())
    }

    /// Merges marked records if marks take too much memory; says whether they did.
    fn merge_marked(&self) -> Result<bool> {
        let marked = self.pre_images.marked_too_many(MARKED_AT_ONCE);
        self.sweep_keys(&marked)?;
        Ok(!marked.is_empty())
    }

    /// What the background does for pre-images; says whether it did something.
    pub(crate) fn tend_pre_images(&self) -> Result<bool> {
        Ok(self.pre_images.background()? | self.merge_marked()?)
    }
}
