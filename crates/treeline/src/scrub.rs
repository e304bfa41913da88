//! Scrubbing: reads a few owned pages and checks them, so that damage is known before the damaged
//! records are needed. The engine's own place is the lowest key not yet seen.
//!
//! **Concurrency.** A piece locks one segment as a lookup does, and each of its pages in turn; a
//! page that fails has not moved meanwhile.

use spinney_engine::{Scrubbed, scrub};
use spinney_io::Purpose;

use crate::lookup::with_page_buffer;
use crate::segment::PageRef;
use crate::tree::TreeLine;

impl TreeLine {
    /// Reads the piece at a place; an empty one is the start.
    pub(crate) fn scrub_piece(&self, from: &[u8]) -> Scrubbed {
        scrub(&self.large, from, |key, seen| self.scrub_segment(key, seen))
    }

    /// Reads the segment that a key belongs to; returns where the next one begins.
    fn scrub_segment(&self, key: &[u8], seen: &mut Scrubbed) -> Option<Vec<u8>> {
        let located = self.shape.index.find(key);
        let segment = &located.segment;
        let _segment = self.shape.segment_locks.read(segment.base.page);
        if self.shape.index.find(key) != located {
            // The segment that replaced it is seen next.
            return Some(key.to_vec());
        }
        let mut read = |page: PageRef| {
            let result =
                with_page_buffer(|buf| self.shape.read_page(page, buf.page_mut(0), Purpose::TOOL));
            seen.note(self.shape.store.path(), page.page, result);
        };
        for index in 0..segment.base_pages() {
            let _page = self.shape.page_locks.read(segment.base_page(index).page);
            read(segment.base_page(index));
            segment.overflow(index).into_iter().for_each(&mut read);
        }
        for staged in &segment.staged {
            read(staged.at);
        }
        located.upper.as_ref().map(|upper| upper.bytes().to_vec())
    }
}
