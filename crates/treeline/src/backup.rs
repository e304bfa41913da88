//! Copying a keyspace while it is written to (rule P26).
//!
//! Passes go over the segments in key order, a few at a time: their pages are locked, read in the
//! order of the file, checked, and written to the same places of the new file. A segment is copied
//! as a whole, so its pages agree with each other. The first pass takes every segment, each later
//! one those with a page that was allocated since the pass before began; the last one runs while no
//! write-back does, and with it the index is written out as the copy's checkpoint.
//!
//! **Invariants**
//! 1. When a pass begins, every page of a generation below [`Copying::next_since`] is in the index
//!    or given back. So a segment that changed after the pass copied it has a page of a later
//!    generation, and the next pass takes it.
//! 2. The copy's index names only pages that were copied after they were last part of a change. A
//!    page that changed in place after it was copied lacks what the log has above the copy's redo
//!    LSN. What a page holds beyond that LSN, replay repeats key by key in the same order.
//! 3. No freed extent is reused meanwhile, so what a copied page names stays what it was.
//! 4. The copy has every large value that its pages or its log may name: all that were live when it
//!    began or later. Their bytes never change, so each extent is copied once, and after the pages
//!    that may name it. None is put between the end of the copy and the log's cut; the database
//!    sees to that.
//!
//! The double-write area is not copied: pages are read whole, under their lock. For a keyspace
//! without a log each key has its value of the redo LSN or a later one (P11).
//!
//! **Concurrency.** Page locks are held while a few segments are read, as a lookup does; the
//! write-back gate exclusively between passes, for a moment, and through the last one.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, PageNumber, Result};
use spinney_engine::KeyspaceBackup;
use spinney_extent::StoreCopy;
use spinney_io::{Directory, Purpose};

use crate::codec::SegmentsEncoder;
use crate::segment::{Located, PageRef, Segment};
use crate::tree::TreeLine;

/// Pages from which on a step takes no more segments: bounds what it locks and reads at once.
const PAGES_AT_ONCE: usize = 64;

/// Most segments that one step looks at: a later pass skips most of them.
const LOOK_MAX: usize = 4096;

/// A copy of one keyspace under construction.
#[derive(Debug)]
pub(crate) struct Copying<'a> {
    tree: &'a TreeLine,
    copy: StoreCopy<'a>,
    /// This pass copies segments with a page of this generation or a later one.
    since: Generation,
    /// As `since`, for the next pass.
    next_since: Generation,
    /// The key from which the pass continues; `None` once it has seen all segments.
    next: Option<Vec<u8>>,
    passing: bool,
}

impl TreeLine {
    /// Begins a copy of this keyspace in a new file.
    pub(crate) fn copy_to(&self, directory: &dyn Directory, name: &str) -> Result<Copying<'_>> {
        let redo = || (self.shape.redo_lsn(), ());
        let (copy, ()) = StoreCopy::begin(&self.large, directory, name, redo)?;
        let none = Generation(0);
        let passing = false;
        Ok(Copying { tree: self, copy, since: none, next_since: none, next: None, passing })
    }
}

impl Copying<'_> {
    fn begin_pass(&mut self) {
        // No write-back is under way, so none has pages that it did not put into the index yet.
        let _no_write_back = self.tree.shape.gate.write();
        self.since = self.next_since;
        self.next_since = self.tree.shape.store.next_generation();
        self.next = Some(Vec::new());
        self.passing = true;
    }

    fn has_moved(&self, segment: &Segment) -> bool {
        segment.all().any(|page| page.generation >= self.since)
    }

    /// Copies the next few segments of the pass.
    fn copy_segments(&mut self, from: Vec<u8>) -> Result<u64> {
        let tree = self.tree;
        let mut segments = Vec::new();
        let mut pages = 0;
        let mut next = Some(from);
        for _ in 0..LOOK_MAX {
            let Some(key) = &next else { break };
            let located = tree.shape.index.find(key);
            next = located.upper.as_ref().map(|upper| upper.bytes().to_vec());
            if self.has_moved(&located.segment) {
                pages += located.segment.pages();
                segments.push(located);
            }
            if pages >= PAGES_AT_ONCE {
                break;
            }
        }
        let bases = segments.iter().map(|located| located.segment.base.page);
        let _segments = tree.shape.segment_locks.read_many(bases);
        let all = segments.iter().flat_map(|Located { segment, .. }| {
            (0..segment.base_pages()).map(|index| segment.base_page(index).page)
        });
        let _pages = tree.shape.page_locks.read_many(all);
        // One that has moved again has newer pages now, and the next pass meets it.
        segments.retain(|located| tree.shape.index.find(located.lower.bytes()) == *located);
        let pages = segments.iter().flat_map(|located| located.segment.all()).collect();
        let bytes = self.copy_pages(pages)?;
        self.next = next;
        Ok(bytes)
    }

    /// Copies pages that do not change meanwhile.
    fn copy_pages(&self, mut pages: Vec<PageRef>) -> Result<u64> {
        if pages.is_empty() {
            return Ok(0);
        }
        pages.sort_unstable();
        let mut buf = self.tree.memory.buffers.lend(pages.len());
        self.tree.shape.read_pages(&pages, &mut buf, Purpose::TOOL)?;
        let numbers: Vec<PageNumber> = pages.iter().map(|page| page.page).collect();
        self.copy.target().write_fresh(&numbers, &buf, Purpose::TOOL)?;
        Ok((pages.len() * PAGE_BYTES) as u64)
    }
}

impl KeyspaceBackup for Copying<'_> {
    fn copy(&mut self) -> Result<Option<u64>> {
        if !self.passing {
            self.begin_pass();
        }
        match self.next.take() {
            Some(from) => self.copy_segments(from).map(Some),
            None => {
                let copied = self.copy.copy_values()?;
                self.passing = copied.is_some();
                Ok(copied)
            }
        }
    }

    fn finish(&mut self) -> Result<u64> {
        let tree = self.tree;
        let no_write_back = tree.shape.gate.write();
        // A pass that was not ended has seen nothing for sure.
        if !self.passing {
            self.since = self.next_since;
        }
        let mut payload = SegmentsEncoder::default();
        let mut owned = Vec::new();
        let mut moved = Vec::new();
        let structure = tree.shape.index.for_each(|lower, segment| {
            payload.push(lower, segment);
            owned.extend(segment.extents());
            if self.has_moved(segment) {
                moved.extend(segment.all());
            }
        });
        let mut bytes = 0;
        for pages in moved.chunks(PAGES_AT_ONCE) {
            bytes += self.copy_pages(pages.to_vec())?;
        }
        // All freed extents are listed: the copy finds out which checkpoint proves that each may be
        // reused.
        let mut large = tree.large.everything();
        drop(no_write_back);
        if !tree.context.logged {
            // In a copy without a log only its pages tell what is live. A list of freed extents
            // makes recovery read them.
            large.freed.append(&mut large.live);
        }
        Ok(bytes + self.copy.finish(owned, structure, &payload.finish(&large))?)
    }
}
