//! Loading of many pages at once, in one batch of reads.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Result};
use spinney_io::AlignedBuf;

use crate::cache::CacheFile;
use crate::editable::EditableFile;
use crate::handle::{Claim, Claimed, Handle};
use crate::page::PageId;

/// A page of a batch that must be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Index of its page in the buffer.
    pub place: usize,
    /// Id of the page.
    pub id: PageId,
}

impl CacheFile {
    /// Loads pages that are not cached, as far as frames are available: `load` fills the pages of a
    /// buffer in one batch. Pages that another thread is loading are left to it. Nothing is pinned
    /// afterwards: [`CacheFile::get`] looks a page up, and loads it alone if it was evicted again.
    /// Returns the number of pages loaded.
    ///
    /// # Errors
    /// Errors of `load`; none of the batch is then added.
    pub fn prefetch_many(
        &self,
        ids: &[PageId],
        load: impl FnOnce(&[Missing], &mut AlignedBuf) -> Result<(), Error>,
    ) -> Result<usize> {
        let (claims, missing) = self.handle().claim_missing(ids, |id| self.is_cached(id));
        if missing.is_empty() {
            return Ok(0);
        }
        let mut buffer = self.cache().buffers.lend(missing.len());
        load(&missing, &mut buffer)?;
        let (pages, _) = buffer.bytes().as_chunks::<PAGE_BYTES>();
        for (claimed, page) in claims.into_iter().zip(pages) {
            self.cache().counters.miss(claimed.kind());
            drop(claimed.complete(page));
        }
        Ok(missing.len())
    }
}

impl EditableFile {
    /// Loads pages that are not cached, as [`CacheFile::prefetch_many`] does; the buffer has a frame's
    /// bytes for each. A page whose number gets another owner meanwhile does not enter.
    ///
    /// # Errors
    /// Errors of `load`; none of the batch is then added.
    pub fn prefetch_many(
        &self,
        ids: &[PageId],
        load: impl FnOnce(&[Missing], &mut AlignedBuf) -> Result<(), Error>,
    ) -> Result<usize> {
        let (claims, missing) = self.handle.claim_missing(ids, |id| self.peek(id).is_some());
        if missing.is_empty() {
            return Ok(0);
        }
        let order = self.cache().frames.order();
        let mut buffer = self.cache().buffers.lend(missing.len() << order);
        load(&missing, &mut buffer)?;
        for (claimed, page) in claims.into_iter().zip(buffer.bytes().chunks(PAGE_BYTES << order)) {
            self.cache().counters.miss(claimed.kind());
            _ = claimed.complete_editable(page);
        }
        Ok(missing.len())
    }
}

impl Handle {
    /// Claims frames for pages that are not cached, as far as there are any.
    fn claim_missing(
        &self,
        ids: &[PageId],
        is_cached: impl Fn(PageId) -> bool,
    ) -> (Vec<Claimed<'_>>, Vec<Missing>) {
        let (mut claims, mut missing) = (Vec::new(), Vec::new());
        for id in ids {
            if is_cached(*id) {
                continue;
            }
            match self.claim(*id) {
                Claim::Claimed(claimed) => {
                    missing.push(Missing { place: claims.len(), id: *id });
                    claims.push(claimed);
                }
                Claim::Lost => {}
                Claim::Full => break,
            }
        }
        (claims, missing)
    }
}
