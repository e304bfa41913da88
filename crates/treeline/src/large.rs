//! Who owns the extents of large values (rule P17).
//!
//! ```text
//!   allocated          applied            superseded           checkpoint behind it      no reader left
//!   ---------> writing -------> live -----------------> freed ----------------> ready ----------------> free map
//! ```
//!
//! A pointer lives in a page, in the cache and in log records; the extents that it names lie
//! outside of the tree. This table says which extents are owned and why. An extent is *writing*
//! from its allocation until the record that names it is applied, *live* while some record or page
//! may show it, *freed* once its record was superseded, *ready* once no page and no retained log
//! record names it; it is free when, beyond that, no reader is left who found it before.
//!
//! **Invariants**
//! 1. An extent is in at most one of the lists; its generation makes it unique, so freeing what is
//!    not live is nothing: whoever meets a superseded pointer says so, in the cache and again in the
//!    page.
//! 2. Freed extents are in the order of their numbers, and those of their LSNs.
//! 3. A freed extent becomes ready only by a checkpoint that began after it was freed and whose redo
//!    LSN is at or above the log's end at that time: then no page names it (all were brought home)
//!    and no record that is still replayed.
//! 4. Checkpoints name everything that is live or freed and does not become ready by them.
//!
//! **Concurrency.** One lock, for memory work only; it is the last in the order of locks.

use std::collections::{BTreeMap, VecDeque};

use spinney_base::shim::Mutex;
use spinney_base::{Error, ErrorKind, Generation, Lsn, PageNumber, Result};
use spinney_extent::Extent;
use spinney_extent::large::LargePointer;

use crate::tree::TreeLine;

/// One extent of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargeExtent {
    pub(crate) extent: Extent,
    pub(crate) generation: Generation,
    /// Whether the value begins in it: there are as many values as such extents.
    pub(crate) first: bool,
}

/// What a checkpoint says of large values: which extents are owned though no segment names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LargeList {
    /// Records name them.
    pub(crate) live: Vec<LargeExtent>,
    /// Their records were superseded, and the checkpoint does not yet prove it.
    pub(crate) freed: Vec<LargeExtent>,
}

impl LargeList {
    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty() && self.freed.is_empty()
    }
}

/// The extents of a pointer.
pub(crate) fn extents_of(pointer: &LargePointer) -> impl Iterator<Item = LargeExtent> {
    pointer.extents.iter().enumerate().map(|(index, (extent, generation))| LargeExtent {
        extent: *extent,
        generation: *generation,
        first: index == 0,
    })
}

/// The table of one keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct LargeValues {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By first page.
    live: BTreeMap<u32, Owned>,
    freed: VecDeque<Freed>,
    ready: VecDeque<Freed>,
    /// Number of the next extent that is freed.
    next_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    generation: Generation,
    order: u8,
    first: bool,
}

#[derive(Clone, Copy, Debug)]
struct Freed {
    large: LargeExtent,
    /// The log's end when it was freed.
    lsn: Lsn,
    number: u64,
}

impl LargeValues {
    /// The table as a checkpoint has it; `end` is the log's end when the keyspace opened.
    pub(crate) fn new(list: LargeList, end: Lsn) -> Self {
        let mut table = Table::default();
        list.live.into_iter().for_each(|large| table.insert(large));
        list.freed.into_iter().for_each(|large| table.free(large, end));
        LargeValues { table: Mutex::new(table) }
    }

    /// A record that names these extents was applied.
    pub(crate) fn applied(&self, pointer: &LargePointer) {
        let mut table = self.table.lock();
        for large in extents_of(pointer) {
            // Replay may show again what a page already shows and what a record before it, shown
            // again as well, seemed to supersede there.
            table.freed.retain(|freed| freed.large != large);
            table.insert(large);
        }
    }

    /// The log names extents that the checkpoint does not know.
    ///
    /// # Errors
    /// `Corruption` when the checkpoint has another owner for one of them.
    pub(crate) fn replayed(&self, extents: impl IntoIterator<Item = LargeExtent>) -> Result<()> {
        let mut table = self.table.lock();
        for large in extents {
            match table.live.get(&large.extent.page.0) {
                Some(owned) if owned.generation != large.generation => {
                    return Err(Error::new(
                        ErrorKind::Corruption,
                        format!("the log names {large:?}, but the checkpoint has {owned:?} there"),
                    ));
                }
                _ if table.freed.iter().any(|freed| freed.large == large) => {}
                _ => table.insert(large),
            }
        }
        Ok(())
    }

    /// The record that named these extents was superseded; `end` is the log's end now.
    pub(crate) fn superseded(&self, pointer: &LargePointer, end: Lsn) {
        let mut table = self.table.lock();
        for large in extents_of(pointer) {
            let found = table.live.get(&large.extent.page.0);
            if found.is_some_and(|owned| owned.generation == large.generation) {
                table.live.remove(&large.extent.page.0);
                table.free(large, end);
            }
        }
    }

    /// A mark that divides what was freed before from what is freed later.
    pub(crate) fn mark(&self) -> u64 {
        self.table.lock().next_number
    }

    /// Whether a checkpoint that began at `mark` would make anything ready.
    pub(crate) fn has_settled(&self, mark: u64, redo: Lsn) -> bool {
        self.table.lock().settled(mark, redo) > 0
    }

    /// What a checkpoint that began at `mark` has to name.
    pub(crate) fn list(&self, mark: u64, redo: Lsn) -> LargeList {
        let table = self.table.lock();
        let settled = table.settled(mark, redo);
        LargeList {
            live: table.live().collect(),
            freed: table.freed.iter().skip(settled).map(|freed| freed.large).collect(),
        }
    }

    /// A checkpoint that began at `mark` is durable: what it did not name is nobody's. Returns what
    /// may be reused.
    pub(crate) fn settle(&self, mark: u64, redo: Lsn) -> Vec<Extent> {
        let mut table = self.table.lock();
        let settled = table.settled(mark, redo);
        let ready: Vec<Freed> = table.freed.drain(..settled).collect();
        table.ready.extend(ready);
        table.ready.drain(..).map(|freed| freed.large.extent).collect()
    }

    /// Everything that is owned.
    pub(crate) fn owned(&self) -> Vec<LargeExtent> {
        let table = self.table.lock();
        let freed = table.freed.iter().chain(&table.ready).map(|freed| freed.large);
        table.live().chain(freed).collect()
    }
}

impl Table {
    fn live(&self) -> impl Iterator<Item = LargeExtent> {
        self.live.iter().map(|(page, owned)| LargeExtent {
            extent: Extent { page: PageNumber(*page), order: owned.order },
            generation: owned.generation,
            first: owned.first,
        })
    }

    fn insert(&mut self, large: LargeExtent) {
        let LargeExtent { extent, generation, first } = large;
        self.live.insert(extent.page.0, Owned { generation, order: extent.order, first });
    }

    fn free(&mut self, large: LargeExtent, lsn: Lsn) {
        self.freed.push_back(Freed { large, lsn, number: self.next_number });
        self.next_number += 1;
    }

    /// How many of the freed extents a checkpoint that began at `mark` makes ready.
    fn settled(&self, mark: u64, redo: Lsn) -> usize {
        self.freed.partition_point(|freed| freed.number < mark && freed.lsn <= redo)
    }
}

impl TreeLine {
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
            self.large.superseded(&pointer, self.context.log.last_lsn());
        }
    }
}
