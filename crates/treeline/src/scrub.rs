//! Scrubbing: reads a few owned pages and checks them, so that damage is known before somebody needs
//! what it took.
//!
//! A place is a byte 0 and the lowest key not yet seen, or, behind all segments, a byte 1 and the number of the first
//! page that an extent of a large value not yet seen may have. The first piece of a pass reads the newest checkpoint
//! as well.
//!
//! **Concurrency.** A piece locks one segment as a lookup does, each of its pages in turn, and pins
//! large values as a reader does; a page that fails has not moved meanwhile.

use std::sync::atomic::Ordering;

use spinney_base::{PageNumber, Result};
use spinney_engine::{DamagedPage, Scrubbed};
use spinney_io::Purpose;

use crate::lookup::with_page_buffer;
use crate::segment::PageRef;
use crate::tree::TreeLine;

/// Before a key in a place.
const SEGMENTS: u8 = 0;
/// Before a page number in a place.
const VALUES: u8 = 1;

impl TreeLine {
    /// Reads the piece at a place; an empty one is the start.
    pub(crate) fn scrub_piece(&self, from: &[u8]) -> Scrubbed {
        match from.split_first() {
            None => {
                let mut seen = self.scrub_segment(&[]);
                self.scrub_checkpoint(&mut seen);
                seen
            }
            Some((&VALUES, page)) => {
                let page = page.first_chunk().map_or(0, |page| u32::from_be_bytes(*page));
                self.scrub_value(PageNumber(page))
            }
            Some((_, key)) => self.scrub_segment(key),
        }
    }

    fn note_page(&self, seen: &mut Scrubbed, page: PageNumber, result: Result<()>) {
        seen.pages += 1;
        if let Err(error) = result {
            let (file, what) = (self.store.path().to_owned(), error.to_string());
            seen.damaged.push(DamagedPage { file, offset: page.offset(), what });
        }
    }

    fn scrub_checkpoint(&self, seen: &mut Scrubbed) {
        let count = || self.writes.checkpoints.load(Ordering::Acquire);
        let before = count();
        let result = self.store.verify_checkpoint().map(|_| ());
        // One that ended meanwhile has given the pages to others.
        if count() == before {
            self.note_page(seen, PageNumber(0), result);
        }
    }

    fn scrub_segment(&self, key: &[u8]) -> Scrubbed {
        let mut seen = Scrubbed::default();
        let located = self.index.find(key);
        let segment = &located.segment;
        let _segment = self.segment_locks.read(segment.base.page);
        if self.index.find(key) != located {
            // What came instead is seen next.
            seen.next = Some([&[SEGMENTS][..], key].concat());
            return seen;
        }
        let mut read = |page: PageRef| {
            let result =
                with_page_buffer(|buf| self.read_page(page, buf.page_mut(0), Purpose::Tool));
            self.note_page(&mut seen, page.page, result);
        };
        for index in 0..segment.base_pages() {
            let _page = self.page_locks.read(segment.base_page(index).page);
            read(segment.base_page(index));
            segment.overflow(index).into_iter().for_each(&mut read);
        }
        for staged in &segment.staged {
            read(staged.at);
        }
        seen.next = Some(match &located.upper {
            Some(upper) => [&[SEGMENTS][..], upper.bytes()].concat(),
            None => vec![VALUES],
        });
        seen
    }

    /// Reads a piece of the first large extent at or behind a page.
    fn scrub_value(&self, from: PageNumber) -> Scrubbed {
        let mut seen = Scrubbed::default();
        let pin = self.large.pin();
        if let Some(large) = self.large.live_from(from) {
            let first = from.0.saturating_sub(large.extent.page.0);
            let place = (large.extent, large.generation);
            let pages = self.store.check_large(place, first, |page, result| {
                self.note_page(&mut seen, page, result);
            });
            let next = large.extent.page.0 + first + pages;
            seen.next = Some([&[VALUES][..], &next.to_be_bytes()].concat());
        }
        self.large.unpin(pin);
        seen
    }
}
