//! Images that were found among all pages of a file.

use std::collections::BTreeMap;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, PageNumber, Result};
use spinney_engine::Show;
use spinney_extent::{BlockHeader, PageRun, Store};
use spinney_io::{AlignedBuf, Purpose};

use crate::run::{IMAGE, Pages, What};

/// Of when something is: the LSN of its pages, and the allocation.
pub(super) type Moment = (Lsn, Generation);

/// All images, by their numbers.
#[derive(Debug, Default)]
pub(super) struct FoundImages(BTreeMap<Generation, FoundImage>);

/// An image of which pages were found.
#[derive(Debug, Default)]
struct FoundImage {
    /// Its pages by their index, and the allocation of each.
    pages: BTreeMap<u32, (PageNumber, Generation)>,
    /// Index of the last one, if that was found.
    last: Option<u32>,
    /// The lowest that a page has.
    lsn: Option<Lsn>,
}

impl FoundImage {
    fn is_whole(&self) -> bool {
        let count = self.pages.len() as u64;
        self.last.is_some_and(|last| u64::from(last) + 1 == count)
    }
}

impl FoundImages {
    /// Notes a page of an image.
    pub(super) fn note(
        &mut self,
        page: PageNumber,
        header: &BlockHeader,
        block: &[u8; PAGE_BYTES],
    ) {
        let head = Pages::new(1).copy(block).ok();
        let Some(head) = head.filter(|head| head.what == What::Dirty as u8) else { return };
        let image = self.0.entry(head.run).or_default();
        image.pages.insert(head.index, (page, header.generation));
        image.last = image.last.or(head.is_last.then_some(head.index));
        image.lsn = Some(image.lsn.map_or(header.lsn, |lsn| lsn.min(header.lsn)));
    }

    /// Returns whether the newest image is whole, or there is none.
    pub(super) fn is_newest_whole(&self) -> bool {
        self.0.last_key_value().is_none_or(|(_, image)| image.is_whole())
    }

    /// Shows the records of the newest image that is whole, except those that `is_passed` takes as decided by
    /// something later than its moment.
    pub(super) fn show_newest(
        &self,
        store: &Store,
        show: &mut Show<'_>,
        is_passed: &mut dyn FnMut(&[u8], Moment) -> bool,
    ) -> Result<()> {
        let Some((number, image)) = self.0.iter().rev().find(|(_, image)| image.is_whole()) else {
            return Ok(());
        };
        let moment = (image.lsn.unwrap_or_default(), *number);
        let (mut buf, mut pages) = (AlignedBuf::new(1), Pages::new(1));
        for (page, generation) in image.pages.values() {
            let place = PageRun { first: *page, pages: 1, generation: *generation };
            // It was sound a moment ago.
            store.read_run_page(&place, 0, IMAGE, buf.page_mut(0), Purpose::TOOL)?;
            pages.copy(buf.page(0)).map_err(|damage| damage.at(store.path(), *page))?;
            for (key, value) in pages.records() {
                if !is_passed(key, moment) {
                    show(store, key, value)?;
                }
            }
        }
        Ok(())
    }
}
