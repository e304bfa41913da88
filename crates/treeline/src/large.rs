//! What the engine says of its large values ([`Values`](spinney_extent::Values), rule P17): which
//! structure records name them, and what its pages name no more.
//!
//! Positions are LSNs. What is superseded is freed at the log's end, and reused only after a
//! checkpoint with a redo LSN at or above it: until then a page on disk or a record that a crash
//! would replay may still name it. A checkpoint that began after an extent was freed has written
//! the record back that replaced it, because that was on a dirty list or in its page before: a put
//! frees the value that it replaces last of all. Before a page is written that names a value no
//! more, a structure record says so.
//!
//! **Crash.** What replay shows again of values that were superseded before the crash, it
//! supersedes again. Without a log of its data a keyspace says by a structure record that what was
//! synced is owned, and after a crash the pages alone say what is live: a keyspace that was not
//! closed cleanly reads them all, if it had large values that the checkpoint does not settle.
//! Whatever they name is owned. A page older than the checkpoint's list names values that were not
//! settled, so the list has them; a newer one also names values whose structure record was durable
//! before the page was written.

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use std::collections::HashSet;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, PageNumber, Result};
use spinney_extent::LargePointer;
use spinney_extent::values::LargeExtent;
use spinney_io::Purpose;
use spinney_page::PageView;

use crate::codec::{LargeChange, encode_large};
use crate::merge::{Dirty, Pages, Records, superseded, superseded_by};
use crate::segment::PageRef;
use crate::tree::TreeLine;

/// Pages read together when all are read after a crash.
const SWEEP_PAGES: usize = 64;

impl TreeLine {
    /// Logs that pages are about to stop naming these large values; returns the record's LSN, or
    /// zero if none has to be waited for. Replay could not find that out by itself: a page that was
    /// written before a crash names the new value already, and the checkpoint's list still has the
    /// old one.
    ///
    /// The record is worth waiting for only together with the pages. The pages must be written back
    /// even if the log has no room for the record, because that makes room in the log. Then a
    /// checkpoint that writes nothing back says it. If the disk is full as well, a crash before the
    /// next checkpoint may leave extents owned that nothing names.
    pub(crate) fn log_superseded_large(&self, superseded: &[Vec<u8>]) -> Result<Lsn> {
        if superseded.is_empty() {
            return Ok(Lsn::ZERO);
        }
        let pointers = superseded.iter().filter_map(|pointer| LargePointer::decode(pointer).ok());
        let extents: Vec<LargeExtent> = pointers
            .flat_map(|pointer| LargeExtent::all_of(&pointer).collect::<Vec<_>>())
            .collect();
        let record = encode_large(LargeChange::Superseded, &extents);
        if let Some(lsn) = self.context.log_structure(&record, || ())? {
            return Ok(lsn);
        }
        // Without a log of its data a keyspace asks its pages after a crash.
        if self.context.logged {
            self.large.supersede(extents);
            match self.publish_again() {
                Err(error) if !error.is_full() => return Err(error),
                _ => {}
            }
        }
        Ok(Lsn::ZERO)
    }

    /// Replays a structure record about large values.
    pub(crate) fn replay_large_change(
        &self,
        change: LargeChange,
        extents: Vec<LargeExtent>,
    ) -> Result<()> {
        match change {
            LargeChange::Allocated => self.large.replay_extents(extents)?,
            LargeChange::Superseded => self.large.supersede(extents),
        }
        Ok(())
    }

    /// Pointers that these pages hold and that `dirty` replaces or removes.
    pub(crate) fn superseded_by(&self, pages: &[Pages<'_>], dirty: &[Dirty<'_>]) -> Vec<Vec<u8>> {
        if self.large.is_empty() { Vec::new() } else { superseded(pages, dirty) }
    }

    /// Pointers that these pages hold and that their merged records do not.
    pub(crate) fn superseded_by_merge<'a>(
        &self,
        pages: impl Iterator<Item = &'a [u8; PAGE_BYTES]>,
        records: &Records<'_>,
    ) -> Vec<Vec<u8>> {
        if self.large.is_empty() { Vec::new() } else { superseded_by(pages, records) }
    }

    /// After a crash of a keyspace whose data is not logged: asks the pages what is live.
    pub(crate) fn reconcile_large(&self) -> Result<()> {
        let mut pages: Vec<PageRef> = Vec::new();
        self.shape.index.for_each(|_, segment| pages.extend(segment.all()));
        let mut named: HashSet<(PageNumber, Generation)> = HashSet::new();
        for pages in pages.chunks(SWEEP_PAGES) {
            let mut buf = self.memory.buffers.lend(pages.len());
            self.shape.read_pages(pages, &mut buf, Purpose::RECOVERY)?;
            for index in 0..pages.len() {
                let view = PageView::trusted(buf.page(index));
                for value in (0..view.len()).map(|index| view.value(index)) {
                    if value.large {
                        let pointer = self.large.decode(value.bytes)?;
                        let extents = pointer.extents.iter();
                        named.extend(extents.map(|(extent, made)| (extent.page, *made)));
                    }
                }
            }
        }
        self.large.reconcile(&named);
        Ok(())
    }
}
