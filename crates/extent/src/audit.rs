//! Check that every page of a store file is owned once or free.

use spinney_base::{Error, ErrorKind, Result};

use crate::free::Extent;
use crate::store::{DATA_PAGE_FIRST, Store};

impl Store {
    /// Checks that no page of `owned` has another owner or is free. Checks too that these pages,
    /// the pages of the checkpoint, free pages and `others` pages with other owners are all pages
    /// of the file. Nothing may be allocated or freed meanwhile. Returns the number of free pages.
    ///
    /// # Errors
    /// `Corruption` naming the first page that is not, or the numbers that differ.
    pub fn audit(&self, mut owned: Vec<Extent>, others: u64) -> Result<u64> {
        let damaged = |text: String| {
            Err(Error::new(ErrorKind::Corruption, format!("{}: {text}", self.path().display())))
        };
        owned.sort_unstable();
        for pair in owned.windows(2) {
            if pair[1].page.0 < pair[0].page.0 + pair[0].pages() {
                return damaged(format!("page {} has two owners", pair[1].page));
            }
        }
        if let Some(free) = owned.iter().find(|extent| self.is_free(extent.page)) {
            return damaged(format!("page {} is owned and free", free.page));
        }
        let space = self.space();
        let accounted = owned.into_iter().map(|extent| u64::from(extent.pages())).sum::<u64>()
            + others
            + space.free_pages
            + space.retired_pages
            + space.checkpoint_pages
            + u64::from(DATA_PAGE_FIRST);
        if accounted != u64::from(space.end_page) {
            let end = space.end_page;
            return damaged(format!("{end} pages, of which {accounted} are accounted for"));
        }
        Ok(space.free_pages)
    }
}
