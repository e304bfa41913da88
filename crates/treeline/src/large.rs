//! Large values: kept outside of pages, in extents of their own (rule P17).
//!
//! A put of a large value has four steps, and only the last two are an ordinary write:
//!
//! 1. [`allocate_large`](TreeLine::allocate_large) takes extents.
//! 2. The bytes are written to them, piece by piece, and synced
//!    ([`seal_large`](TreeLine::seal_large)); several values of a batch share the sync. In a keyspace
//!    whose data is not logged a structure record says that they are owned.
//! 3. The pointer to them is logged as the key's value.
//! 4. The pointer is applied: the [`table`] says from then on that the extents are live.
//!
//! When the record is superseded, its extents are freed, and reused only after a checkpoint beyond
//! it: until then a page on disk or a record that a crash would replay may still name them. Before a
//! page is written that names a value no more, a structure record says so. A put frees the value that
//! it replaces last of all, when its own record is on a dirty list: a checkpoint that begins later
//! writes that record back.
//!
//! **Crash.** Before step 3 nothing names the extents, so the free map, which is derived at open,
//! has them again. After it replay finds the record in the log, or a page and the checkpoint's list
//! name them. What replay shows again of values that were superseded before the crash, it
//! supersedes again. Without a log the pages alone say at open what is live: a keyspace that was not
//! closed cleanly reads them all, if it had large values that the checkpoint does not settle. Whatever
//! they name is owned. A page older than the checkpoint's list names values that were not settled,
//! so the list has them; a newer one also names values whose structure record (step 2) was durable
//! before the page was written.

mod table;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use std::collections::HashSet;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Generation, Lsn, PageNumber, Result};
use spinney_extent::{Extent, LargePointer};
use spinney_io::Purpose;
use spinney_page::PageView;
use spinney_wal::{RecordKind, ReserveFor};

use crate::codec::{LargeChange, encode_large};
use crate::merge::{Dirty, Pages, Records, superseded, superseded_by};
use crate::segment::PageRef;
use crate::tree::TreeLine;

pub(crate) use table::{LargeExtent, LargeList, LargeTable, extents_of};

/// Freed pages at which a checkpoint is worth taking for their sake: 32 MiB.
const CHECKPOINT_FREED_PAGES: u64 = 8192;

/// Pages read together when all are read after a crash.
const SWEEP_PAGES: usize = 64;

impl TreeLine {
    /// Takes extents for a value of `length` bytes.
    pub(crate) fn allocate_large(&self, length: u64) -> Result<LargePointer> {
        // So that who accounts for all pages sees them either free or being written.
        let _gate = self.gate.read();
        self.store.reclaim(self.context.log.durable_lsn());
        self.reuse_large();
        let extents = self.store.allocate_large(length)?;
        let pointer = LargePointer { length, hash: 0, extents };
        self.large.allocated(&pointer);
        Ok(pointer)
    }

    /// Makes values durable that were written whole. In a keyspace whose data is not logged they
    /// are live from here on.
    pub(crate) fn seal_large(&self, pointers: &[LargePointer]) -> Result<()> {
        self.large_syncs.join(|| self.store.sync(Purpose::LargeValue))?;
        if self.context.logged {
            return Ok(());
        }
        let extents: Vec<LargeExtent> = pointers.iter().flat_map(extents_of).collect();
        let record = encode_large(LargeChange::Allocated, &extents);
        let log = &self.context.log;
        let Some(mut room) = log.reserve(record.len(), ReserveFor::Internal)? else {
            return Err(Error::new(ErrorKind::Full, "the log is full until the next checkpoint"));
        };
        // Live before the record has its place in the log: a checkpoint beyond the record then
        // names them.
        pointers.iter().for_each(|pointer| self.large.applied(pointer));
        log.append(&mut room, RecordKind::Structure(self.context.keyspace), &record);
        Ok(())
    }

    /// Gives back what will not be named after all.
    pub(crate) fn release_large(&self, pointer: &LargePointer) {
        let _gate = self.gate.read();
        for extent in self.large.abandoned(pointer) {
            self.store.release(extent);
        }
        // Without a log it is live already, and the record that says so may be durable.
        self.large.superseded(extents_of(pointer), self.context.log.last_lsn());
    }

    /// Lets go what was freed and is ready.
    pub(crate) fn reuse_large(&self) {
        self.large.take_ready().into_iter().for_each(|extent| self.store.release(extent));
    }

    /// Lets go what was freed and is ready, in the background.
    pub(crate) fn reuse_large_in_background(&self) {
        let _gate = self.gate.read();
        self.reuse_large();
    }

    /// Whether a checkpoint would give much space back.
    pub(crate) fn large_wants_checkpoint(&self) -> bool {
        let (live, freed) = self.large.pages();
        freed >= CHECKPOINT_FREED_PAGES && freed >= live / 4
    }

    /// A record that points to a large value was applied.
    pub(crate) fn own_large(&self, pointer: &[u8]) {
        if let Ok(pointer) = LargePointer::decode(pointer) {
            self.large.applied(&pointer);
        }
    }

    /// Neither cache nor pages show the record with this pointer any more.
    pub(crate) fn supersede_large(&self, pointer: &[u8]) {
        // Pointers were decoded when they were made or replayed; one that was damaged since, in a
        // page whose checksum holds, names nothing that could be freed.
        if let Ok(pointer) = LargePointer::decode(pointer) {
            self.large.superseded(extents_of(&pointer), self.context.log.last_lsn());
        }
    }

    /// Says in the log that pages are about to name these no more, and where. Replay could not find
    /// them out by itself: a page that was written before a crash names the new value already, and
    /// the checkpoint's list has the old one still.
    ///
    /// The record is worth waiting for only together with the pages, and these must go home also
    /// when the log has no room for it, for that is what makes room in the log. Then a checkpoint
    /// says it, one that brings nothing home. Where the disk is full as well, a crash before the
    /// next one may leave extents owned that nothing names.
    pub(crate) fn log_superseded_large(&self, superseded: &[Vec<u8>]) -> Result<Lsn> {
        if superseded.is_empty() {
            return Ok(Lsn::ZERO);
        }
        let pointers = superseded.iter().filter_map(|pointer| LargePointer::decode(pointer).ok());
        let extents: Vec<LargeExtent> =
            pointers.flat_map(|pointer| extents_of(&pointer).collect::<Vec<_>>()).collect();
        let record = encode_large(LargeChange::Superseded, &extents);
        let log = &self.context.log;
        if let Some(mut room) = log.reserve(record.len(), ReserveFor::Internal)? {
            let kind = RecordKind::Structure(self.context.keyspace);
            return Ok(log.append(&mut room, kind, &record));
        }
        // Without a log of its data a keyspace asks its pages after a crash.
        if self.context.logged {
            self.large.superseded(extents, log.last_lsn());
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
            LargeChange::Allocated => self.large.replayed(extents),
            LargeChange::Superseded => {
                self.large.superseded(extents, self.context.log.last_lsn());
                Ok(())
            }
        }
    }

    /// Pointers that these pages hold and that `dirty` puts others in the place of.
    pub(crate) fn superseded_by(&self, pages: &[Pages<'_>], dirty: &[Dirty<'_>]) -> Vec<Vec<u8>> {
        // What a page names is in the table.
        if self.large.pages() == (0, 0) { Vec::new() } else { superseded(pages, dirty) }
    }

    /// Pointers that these pages hold and that their merged records do not.
    pub(crate) fn superseded_by_merge<'a>(
        &self,
        pages: impl Iterator<Item = &'a [u8; PAGE_BYTES]>,
        records: &Records<'_>,
    ) -> Vec<Vec<u8>> {
        if self.large.pages() == (0, 0) { Vec::new() } else { superseded_by(pages, records) }
    }

    /// What the log says of a pointer that a checkpoint may not know.
    pub(crate) fn replay_large_pointer(&self, pointer: &[u8]) -> Result<()> {
        let pointer = self.decode_pointer(pointer)?;
        let path = self.context.path();
        let path = path.display();
        let replayed = self.large.replayed(extents_of(&pointer));
        replayed.map_err(|error| error.wrap(ErrorKind::Corruption, path))
    }

    pub(crate) fn decode_pointer(&self, pointer: &[u8]) -> Result<LargePointer> {
        LargePointer::decode(pointer).map_err(|damage| {
            let text = format!("expected {}, found {}", damage.expected, damage.found);
            Error::new(ErrorKind::Corruption, text)
                .wrap(ErrorKind::Corruption, self.context.path().display())
        })
    }

    /// What the free map must not have, at the end of the replay of structure.
    pub(crate) fn owned_large(&self) -> impl Iterator<Item = (Extent, Generation)> {
        self.large.owned().into_iter().map(|large| (large.extent, large.generation))
    }

    /// After a crash of a keyspace whose data is not logged: asks the pages what is live.
    pub(crate) fn reconcile_large(&self) -> Result<()> {
        let mut pages: Vec<PageRef> = Vec::new();
        self.index.for_each(|_, segment| pages.extend(segment.all()));
        let mut named: HashSet<(PageNumber, Generation)> = HashSet::new();
        for pages in pages.chunks(SWEEP_PAGES) {
            let mut buf = self.buffers.lend(pages.len());
            self.read_pages(pages, &mut buf, Purpose::Recovery)?;
            for index in 0..pages.len() {
                let view = PageView::trusted(buf.page(index));
                for value in (0..view.len()).map(|index| view.value(index)) {
                    if value.large {
                        let pointer = self.decode_pointer(value.bytes)?;
                        let extents = pointer.extents.iter();
                        named.extend(extents.map(|(extent, made)| (extent.page, *made)));
                    }
                }
            }
        }
        self.large.reconcile(&named, self.context.log.last_lsn());
        Ok(())
    }

    /// Reads a large value to its end and checks it, without keeping it.
    pub(crate) fn verify_large(&self, pointer: &LargePointer) -> Result<()> {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let mut offset = 0;
        let mut piece = Vec::new();
        while offset < pointer.length {
            piece.clear();
            self.store.read_large(pointer, offset, &mut piece)?;
            hasher.update(&piece);
            offset += piece.len() as u64;
        }
        if hasher.digest() != pointer.hash {
            let page = pointer.extents.first().map_or(PageNumber::NONE, |(extent, _)| extent.page);
            return Err(Error::corruption(
                self.store.path().display(),
                page.offset(),
                format!("a large value with hash {:016x}", pointer.hash),
                format!("{:016x}", hasher.digest()),
            ));
        }
        Ok(())
    }
}
