//! Which extents of large values are owned, and why (rule P17).
//!
//! ```text
//!   allocate        apply in memtable n       merged away           checkpoint that covers n     no reader left
//!   ------> writing ----------------> live n ------------> freed n ----------------------> ready --------> free map
//! ```
//!
//! A pointer lies in a memtable, in the tree and in log records; the extents that it names lie
//! outside of the tree. It is *merged away* when a newer edit of its key replaces it in its memtable
//! or meets it in the tree. The tree of a checkpoint that covers memtable n has no pointer that was
//! merged away before, and the log is replayed only behind memtable n, so nothing durable names it.
//! Snapshots and readers may: they pin.
//!
//! **Invariants**
//! 1. An extent is in at most one of the lists; its generation makes it unique.
//! 2. The newest tree holds exactly the pointers whose extents are live with a number up to that of
//!    its newest memtable: this is what its checkpoint lists, and what is owned beside the tree when
//!    it is opened. A newer pointer is found again in the log, or was not promised. The tree of the
//!    newest checkpoint holds, beyond these, those that were freed since.
//! 3. A reader who pins before he looks a pointer up finds nothing that was freed before the pin, so
//!    what he finds has the pin's number or a higher one when it is freed, and stays.
//!
//! **Concurrency.** One lock, for memory work only; it is the last in the order of locks. Within the
//! tree pointers are merged away, and checkpoints taken, by one thread at a time.

use std::collections::BTreeMap;

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};
use spinney_extent::{Extent, LargePointer};

/// What an entry of the tables takes, in bytes, at their average fill.
const ENTRY_BYTES: u64 = 40;

/// The number of pointers that the log showed and that were not applied yet.
const REPLAYED: u64 = u64::MAX;

/// One extent of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargeExtent {
    pub(crate) extent: Extent,
    pub(crate) generation: Generation,
    /// Whether the value begins in it: there are as many values as such extents.
    pub(crate) first: bool,
}

/// The extents of a pointer.
pub(crate) fn extents_of(pointer: &LargePointer) -> impl Iterator<Item = LargeExtent> {
    pointer.extents.iter().enumerate().map(|(index, (extent, generation))| LargeExtent {
        extent: *extent,
        generation: *generation,
        first: index == 0,
    })
}

/// Numbers about large values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LargeCounts {
    /// Values whose pointers are live.
    pub(crate) values: u64,
    /// Their pages.
    pub(crate) live_pages: u64,
    /// Pages that are freed or ready.
    pub(crate) freed_pages: u64,
}

/// See the module. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct LargeTable {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By their first pages, with the number of the memtable where there is one.
    writing: BTreeMap<u32, Entry>,
    live: BTreeMap<u32, Entry>,
    freed: Vec<Freed>,
    ready: Vec<Freed>,
    counts: LargeCounts,
    /// The number that the next freed extent gets.
    next: u64,
    /// How many readers pin from a number on.
    pins: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    large: LargeExtent,
    memtable: u64,
}

#[derive(Clone, Copy, Debug)]
struct Freed {
    entry: Entry,
    number: u64,
}

impl LargeTable {
    /// What a checkpoint lists is live.
    pub(crate) fn load(&self, list: &[LargeExtent]) {
        let mut table = self.table.lock();
        list.iter().for_each(|large| table.insert(Entry { large: *large, memtable: 0 }));
    }

    /// These extents were allocated, and nothing names them yet.
    pub(crate) fn allocated(&self, pointer: &LargePointer) {
        let mut table = self.table.lock();
        for large in extents_of(pointer) {
            table.writing.insert(large.extent.page.0, Entry { large, memtable: 0 });
        }
    }

    /// What was allocated will not be named. Returns what may be reused at once.
    pub(crate) fn abandoned(&self, pointer: &LargePointer) -> Vec<Extent> {
        let mut table = self.table.lock();
        let extents = extents_of(pointer).filter(|large| table.end(large));
        extents.map(|large| large.extent).collect()
    }

    /// A record that names these extents is in memtable `memtable` now.
    pub(crate) fn applied(&self, pointer: &LargePointer, memtable: u64) {
        let mut table = self.table.lock();
        for large in extents_of(pointer) {
            table.end(&large);
            table.insert(Entry { large, memtable });
        }
    }

    /// The log names extents that the checkpoint does not know.
    ///
    /// # Errors
    /// `Corruption` when the checkpoint has another owner for one of them.
    pub(crate) fn replayed(&self, pointer: &LargePointer) -> Result<()> {
        let mut table = self.table.lock();
        for large in extents_of(pointer) {
            match table.live.get(&large.extent.page.0) {
                Some(entry) if entry.large != large => {
                    return Err(Error::new(
                        ErrorKind::Corruption,
                        format!("the log names {large:?}, but another is there"),
                    ));
                }
                Some(_) => {}
                None => table.insert(Entry { large, memtable: REPLAYED }),
            }
        }
        Ok(())
    }

    /// A newer edit took the place of this pointer in the newest tree or in its memtable.
    pub(crate) fn merged_away(&self, pointer: &LargePointer) {
        let mut table = self.table.lock();
        extents_of(pointer).for_each(|large| table.free(&large));
    }

    /// The newest tree has no records any more.
    pub(crate) fn all_merged_away(&self) {
        let mut table = self.table.lock();
        let live: Vec<LargeExtent> = table.live.values().map(|entry| entry.large).collect();
        live.iter().for_each(|large| table.free(large));
    }

    /// Whether a pointer of the newest tree or of a memtable may be read.
    pub(crate) fn owns(&self, pointer: &LargePointer) -> bool {
        let table = self.table.lock();
        let owned = |large: LargeExtent| {
            let live = table.live.get(&large.extent.page.0);
            let gone = table.freed.iter().chain(&table.ready);
            live.is_some_and(|entry| entry.large == large)
                || gone.into_iter().any(|freed| freed.entry.large == large)
        };
        extents_of(pointer).all(owned)
    }

    /// What a checkpoint of the newest tree, which is up to `memtable`, has to list.
    pub(crate) fn list(&self, memtable: u64) -> Vec<LargeExtent> {
        let table = self.table.lock();
        let live = table.live.values().filter(|entry| entry.memtable <= memtable);
        live.map(|entry| entry.large).collect()
    }

    /// What the newest durable checkpoint, which is up to `memtable`, has listed.
    pub(crate) fn published(&self, memtable: u64) -> Vec<LargeExtent> {
        let table = self.table.lock();
        let freed = table.freed.iter().map(|freed| &freed.entry);
        let all = table.live.values().chain(freed).filter(|entry| entry.memtable <= memtable);
        all.map(|entry| entry.large).collect()
    }

    /// A checkpoint of the tree up to `memtable` is durable, and nothing was merged away since it
    /// was listed: what it did not list is ready.
    pub(crate) fn settle(&self, memtable: u64) {
        let mut table = self.table.lock();
        let freed = std::mem::take(&mut table.freed);
        let (ready, freed) = freed.into_iter().partition(|freed| freed.entry.memtable <= memtable);
        table.freed = freed;
        table.ready.extend::<Vec<Freed>>(ready);
    }

    /// Whether [`LargeTable::settle`] would make anything ready.
    pub(crate) fn has_unsettled(&self, memtable: u64) -> bool {
        self.table.lock().freed.iter().any(|freed| freed.entry.memtable <= memtable)
    }

    /// Takes out what is ready and cannot be read by anybody any more.
    pub(crate) fn take_ready(&self) -> Vec<Extent> {
        let mut table = self.table.lock();
        let pinned = table.pins.first_key_value().map_or(u64::MAX, |(number, _)| *number);
        let ready = std::mem::take(&mut table.ready);
        let (free, ready): (Vec<Freed>, Vec<Freed>) =
            ready.into_iter().partition(|freed| freed.number < pinned);
        table.ready = ready;
        let free: Vec<Extent> = free.into_iter().map(|freed| freed.entry.large.extent).collect();
        let pages: u64 = free.iter().map(|extent| u64::from(extent.pages())).sum();
        table.counts.freed_pages -= pages;
        free
    }

    /// Holds back what is freed from now on, until [`LargeTable::unpin`] with the same number.
    pub(crate) fn pin(&self) -> u64 {
        let mut table = self.table.lock();
        let next = table.next;
        *table.pins.entry(next).or_default() += 1;
        next
    }

    /// Holds back everything that is not reused yet, until [`LargeTable::unpin`] with the answer.
    pub(crate) fn pin_everything(&self) -> u64 {
        *self.table.lock().pins.entry(0).or_default() += 1;
        0
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, pin: u64) {
        let mut table = self.table.lock();
        if let Some(readers) = table.pins.get_mut(&pin) {
            *readers -= 1;
            if *readers == 0 {
                table.pins.remove(&pin);
            }
        }
    }

    /// Everything that was put and is not reused yet.
    pub(crate) fn put(&self) -> Vec<LargeExtent> {
        let table = self.table.lock();
        let gone = table.freed.iter().chain(&table.ready).map(|freed| freed.entry);
        table.live.values().copied().chain(gone).map(|entry| entry.large).collect()
    }

    /// Everything that is owned.
    pub(crate) fn owned(&self) -> Vec<LargeExtent> {
        let mut owned = self.put();
        owned.extend(self.table.lock().writing.values().map(|entry| entry.large));
        owned
    }

    /// The first live extent that has pages at or behind this one.
    pub(crate) fn live_from(&self, page: PageNumber) -> Option<LargeExtent> {
        let table = self.table.lock();
        let before = table.live.range(..page.0).next_back().map(|(first, _)| *first);
        let mut here = table.live.range(before.unwrap_or(page.0)..).map(|(_, entry)| entry.large);
        here.find(|large| large.extent.page.0 + large.extent.pages() > page.0)
    }

    /// Numbers now.
    pub(crate) fn counts(&self) -> LargeCounts {
        self.table.lock().counts
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let table = self.table.lock();
        let entries = table.writing.len() + table.live.len();
        let freed = (table.freed.len() + table.ready.len()) * size_of::<Freed>();
        entries as u64 * ENTRY_BYTES + freed as u64
    }
}

impl Table {
    /// Ends the writing of an extent; says whether it was being written.
    fn end(&mut self, large: &LargeExtent) -> bool {
        let page = large.extent.page.0;
        let found = self.writing.get(&page).is_some_and(|entry| entry.large == *large);
        if found {
            self.writing.remove(&page);
        }
        found
    }

    fn insert(&mut self, entry: Entry) {
        if self.live.insert(entry.large.extent.page.0, entry).is_none() {
            self.counts.live_pages += u64::from(entry.large.extent.pages());
            self.counts.values += u64::from(entry.large.first);
        }
    }

    /// Frees an extent that is live.
    fn free(&mut self, large: &LargeExtent) {
        let Some(entry) = self.remove(large) else { return };
        self.freed.push(Freed { entry, number: self.next });
        self.next += 1;
        self.counts.freed_pages += u64::from(large.extent.pages());
    }

    /// Takes an extent out of the live ones if it is there.
    fn remove(&mut self, large: &LargeExtent) -> Option<Entry> {
        let page = large.extent.page.0;
        let entry = self.live.get(&page).copied().filter(|entry| entry.large == *large)?;
        self.live.remove(&page);
        self.counts.live_pages -= u64::from(large.extent.pages());
        self.counts.values -= u64::from(large.first);
        Some(entry)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn pointer(page: u32) -> LargePointer {
        let extents = vec![(Extent { page: PageNumber(page), order: 1 }, Generation(page + 9))];
        LargePointer { length: 5000, hash: 1, extents }
    }

    fn pages(extents: &[LargeExtent]) -> Vec<u32> {
        extents.iter().map(|large| large.extent.page.0).collect()
    }

    /// P17: what a checkpoint covers is reused only once it is durable and nobody reads it.
    #[test]
    fn p17_from_writing_to_free() {
        let table = LargeTable::default();
        let (one, two, three) = (pointer(10), pointer(20), pointer(30));
        [&one, &two, &three].into_iter().for_each(|pointer| table.allocated(pointer));
        assert_eq!(table.abandoned(&three).len(), 1);
        table.applied(&one, 1);
        table.applied(&two, 2);
        assert_eq!((pages(&table.list(1)), pages(&table.list(2))), (vec![10], vec![10, 20]));
        let before = table.pin();
        table.merged_away(&one);
        table.merged_away(&one);
        // The tree that is durable has it still.
        assert_eq!((pages(&table.published(1)), pages(&table.list(1))), (vec![10], vec![]));
        assert!(table.owns(&one) && table.has_unsettled(1) && !table.has_unsettled(0));
        table.settle(0);
        assert!(table.take_ready().is_empty());
        table.settle(2);
        assert!(table.take_ready().is_empty(), "a reader has it");
        let after = table.pin();
        table.unpin(before);
        assert_eq!(table.take_ready(), [one.extents[0].0]);
        table.unpin(after);
        assert_eq!(table.counts(), LargeCounts { values: 1, live_pages: 2, freed_pages: 0 });
        // Overwritten in a memtable that no checkpoint covers: the log names it.
        table.applied(&three, 3);
        table.merged_away(&three);
        table.settle(2);
        assert!(table.take_ready().is_empty());
        assert_eq!(pages(&table.list(2)), [20]);
    }

    #[test]
    fn the_log_shows_what_the_checkpoint_does_not_list() {
        let table = LargeTable::default();
        table.load(&extents_of(&pointer(10)).collect::<Vec<_>>());
        table.replayed(&pointer(20)).unwrap();
        let mut other = pointer(10);
        other.extents[0].1 = Generation(77);
        assert_eq!(table.replayed(&other).unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(pages(&table.owned()), [10, 20]);
        assert_eq!(pages(&table.list(REPLAYED - 1)), [10]);
        table.applied(&pointer(20), 5);
        assert_eq!(pages(&table.list(5)), [10, 20]);
        assert_eq!(pages(&[table.live_from(PageNumber(11)).unwrap()]), [10]);
        assert_eq!(pages(&[table.live_from(PageNumber(12)).unwrap()]), [20]);
    }
}
