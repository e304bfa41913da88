//! Many pages at once: what is missing is read in one batch, as deep as the disk can.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Result};
use spinney_io::AlignedBuf;

use crate::cache::{CacheFile, Claim, Claimed};
use crate::page::PageId;

/// A page of a batch that has to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its page of the buffer.
    pub place: usize,
    /// Which page.
    pub id: PageId,
}

impl CacheFile {
    /// Brings pages into the cache that are not in it, as far as there are frames to be had: `load`
    /// fills the pages of a buffer in one batch. What another thread is loading is left to it. Nothing is
    /// pinned afterwards; a page is then looked up by [`CacheFile::get`], which loads it alone
    /// should it have gone again. Answers how many were loaded.
    ///
    /// # Errors
    /// What `load` answers; none of the batch was added then.
    pub fn prefetch_many(
        &self,
        ids: &[PageId],
        load: impl FnOnce(&[Missing], &mut AlignedBuf) -> Result<(), Error>,
    ) -> Result<usize> {
        let mut claims: Vec<Claimed<'_>> = Vec::new();
        let mut missing = Vec::new();
        for id in ids {
            if self.is_cached(*id) {
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
