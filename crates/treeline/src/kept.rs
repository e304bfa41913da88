//! Snapshots of a keyspace: what the engine does for its [pre-images](spinney_preimages).
//!
//! `apply` keeps what the record cache has of a key, or marks the key; a write-back or a reorganization
//! resolves marks, that is, keeps what the pages hold of marked keys, before it replaces that; scans of a snapshot pass over
//! dirty records of marked keys.
//!
//! **Invariant** (S11): a marked record is never staged, because what its page shows would change and
//! nobody would have read the old value.

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Found, ScanRequest};
use spinney_preimages::{InPlace, Known, LinkRoom, Notes, PreImages};
use spinney_records::{Cached, RecordCache, RecordId};
use spinney_sync::hash_key;

use crate::merge::{Dirty, Pages, Records};
use crate::policy::BATCH_PAGES;
use crate::scan::Position;
use crate::segment::Located;
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;

/// What the cache knows of a key.
pub(crate) fn known_in(cached: Cached) -> Known {
    match cached {
        Cached::Present => Known::Value,
        Cached::Large => Known::Large,
        Cached::Absent => Known::Absent,
        Cached::Unknown => Known::Unknown,
    }
}

/// The record cache, which has the notes of marked records.
#[derive(Debug)]
pub(crate) struct CacheNotes(pub(crate) Arc<RecordCache>);

impl Notes for CacheNotes {
    fn note(&self, key: &[u8], hash: u64) -> u8 {
        self.0.note(RecordId::of(hash), key)
    }

    fn clear_note(&self, key: &[u8], hash: u64, note: u8) -> bool {
        self.0.clear_note(RecordId::of(hash), key, note)
    }
}

impl InPlace for TreeLine {
    fn pre_images(&self) -> &PreImages {
        &self.pre_images
    }

    fn get_behind(
        &self,
        key: &[u8],
        hash: u64,
        holds: &dyn Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>> {
        loop {
            let (place, version) = self.shape.index.find_place(key, hash);
            let _segment = self.shape.segment_locks.read(place.segment.page);
            let _page = self.shape.page_locks.read(place.page.page);
            if !self.is_still(key, hash, place, version) {
                continue;
            }
            // While the page is locked nobody writes the record into it (S9).
            if !holds() {
                return Ok(None);
            }
            return self.look_in_pages(key, hash, place, false, out).map(|seen| Some(seen.found));
        }
    }

    fn scan_behind(
        &self,
        request: &ScanRequest<'_>,
        hidden: &dyn Fn(&[u8]) -> bool,
        chunk: &mut Chunk,
    ) -> Result<()> {
        // Not by what is known of the first key: that passes over marked removals.
        self.scan_from(Position::start(request), request, Some(hidden), chunk)
    }
}

impl TreeLine {
    /// Keeps the values that pages hold of these records, which are about to be replaced there, where
    /// the records are marked. The caller has the pages or their segments for itself (S10).
    pub(crate) fn bring_home(
        &self,
        pages: &[Pages<'_>],
        staged: &[&[u8; PAGE_BYTES]],
        dirty: &[Dirty<'_>],
    ) {
        if !self.pre_images.has_marks() {
            return;
        }
        let hash = |key: &[u8]| hash_key(self.context.keyspace, key);
        let marked: Vec<&[u8]> = dirty
            .iter()
            .map(|(key, _)| *key)
            .filter(|key| self.pre_images.is_marked(key, hash(key)))
            .collect();
        if marked.is_empty() {
            return;
        }
        let records = Records::merge_staged(pages, staged, &[]);
        for key in marked {
            let old: Option<ValueRef<'_>> = records.find(key);
            self.pre_images.bring_home(key, hash(key), old);
        }
    }

    /// Splits off as many segments as one write-back may have of those that are left, and takes room
    /// for what it will keep of their pages.
    pub(crate) fn with_room_for_links<'s>(
        &self,
        left: &mut &'s [Located],
    ) -> Result<(&'s [Located], Option<LinkRoom<'_>>)> {
        let mut links = 0;
        let mut count = left.len();
        // Marks that no snapshot needs become no links.
        if !self.pre_images.is_empty() && self.pre_images.has_marks() {
            let most = self.pre_images.links_at_once();
            let dirty = |at: &Located| self.shape.index.dirty_len(at.lower.bytes()) as u64;
            count = 0;
            for more in left.iter().map(dirty) {
                if count > 0 && links + more > most {
                    break;
                }
                count += 1;
                links += more;
            }
        }
        let (some, rest) = left.split_at(count);
        *left = rest;
        let room = (links > 0).then(|| self.pre_images.room_for_links(links));
        Ok((some, room.transpose()?))
    }

    /// Whether one of these records is marked.
    pub(crate) fn has_marked(&self, bytes: &Bytes<'_>, dirty: &[Taken]) -> bool {
        self.pre_images.has_marks()
            && dirty
                .iter()
                .map(|taken| bytes.key(taken))
                .any(|key| self.pre_images.is_marked(key, hash_key(self.context.keyspace, key)))
    }

    /// Makes pre-images take less memory, if a writer should.
    #[inline]
    pub(crate) fn relieve_pre_images(&self) -> Result<()> {
        if self.pre_images.is_empty() {
            return Ok(());
        }
        self.pre_images.relieve()?;
        self.write_back_marked().map(|_| ())
    }

    /// Writes marked records back if there are too many; says whether there were.
    fn write_back_marked(&self) -> Result<bool> {
        let marked = self.pre_images.marked_too_many(BATCH_PAGES);
        if marked.is_empty() {
            return Ok(false);
        }
        self.write_back(&marked)?;
        Ok(true)
    }

    /// What the background does for pre-images; says whether it did something.
    pub(crate) fn tend_pre_images(&self) -> Result<bool> {
        Ok(self.pre_images.background()? | self.write_back_marked()?)
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
