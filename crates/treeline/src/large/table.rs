//! Which extents of large values are owned, and why.
//!
//! ```text
//!   allocated          applied            superseded           checkpoint behind it      no reader left
//!   ---------> writing -------> live -----------------> freed ----------------> ready ----------------> free map
//! ```
//!
//! A pointer lives in a page, in the cache and in log records; the extents that it names lie
//! outside of the tree. An extent is *writing* from its allocation until the record that names it
//! is applied, *live* while some record or page may show it, *freed* once its record was
//! superseded, *ready* once no page and no retained log record names it; it is free when, beyond
//! that, no reader is left who may have found it before.
//!
//! **Invariants** (P17)
//! 1. An extent is in at most one of the lists; its generation makes it unique, so freeing what is
//!    not live is nothing: whoever meets a superseded pointer says so, in the cache and again in the
//!    page.
//! 2. Freed extents are in the order of their numbers, and so of their LSNs.
//! 3. A freed extent becomes ready only by a checkpoint that began after it was freed and whose redo
//!    LSN is at or above the log's end at that time. Then no record that is still replayed names it.
//!    Nor does a page: the record that replaced it was on a dirty list, or in its page, before the
//!    extent was freed, so the checkpoint has written it back. A keyspace without a log has only
//!    this order, because its records have no LSN that a checkpoint could be compared with.
//! 4. Checkpoints name everything that is live or freed and does not become ready by them.
//! 5. A reader who pins before he looks a pointer up finds nothing that was freed before the pin, so
//!    what he finds has the pin's number or a higher one when it is freed, and stays.
//!
//! **Concurrency.** One lock, for memory work only; it is the last in the order of locks.

use std::collections::{BTreeMap, HashSet, VecDeque};

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, Generation, Lsn, PageNumber, Result};
use spinney_extent::{Extent, LargePointer};

/// What an entry of the tables takes, in bytes, at their average fill.
const ENTRY_BYTES: u64 = 24;

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

/// Numbers about large values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LargeCounts {
    /// Values whose records are live.
    pub(crate) values: u64,
    /// Their pages.
    pub(crate) live_pages: u64,
    /// Pages that are freed and not yet ready.
    pub(crate) freed_pages: u64,
    /// Pages that are ready and not yet free.
    pub(crate) ready_pages: u64,
}

/// The table of one keyspace. Thread-safe.
#[derive(Debug)]
pub(crate) struct LargeTable {
    table: Mutex<Table>,
    /// The counts of the table, for who must not wait.
    live_pages: AtomicU64,
    freed_pages: AtomicU64,
    ready_pages: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    /// By first page, as the live ones.
    writing: BTreeMap<u32, Owned>,
    live: BTreeMap<u32, Owned>,
    freed: VecDeque<Freed>,
    ready: VecDeque<Freed>,
    /// Number of the next extent that is freed.
    next_number: u64,
    /// How many readers pinned at each number.
    pins: BTreeMap<u64, usize>,
    counts: LargeCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl LargeTable {
    /// The table as a checkpoint has it; `end` is the log's end when the keyspace opened.
    pub(crate) fn new(list: LargeList, end: Lsn) -> Self {
        let this = LargeTable {
            table: Mutex::default(),
            live_pages: AtomicU64::new(0),
            freed_pages: AtomicU64::new(0),
            ready_pages: AtomicU64::new(0),
        };
        this.with(|table| {
            list.live.into_iter().for_each(|large| table.insert(large));
            list.freed.into_iter().for_each(|large| table.free(large, end));
        });
        this
    }

    fn with<T>(&self, body: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let result = body(&mut table);
        self.live_pages.store(table.counts.live_pages, Relaxed);
        self.freed_pages.store(table.counts.freed_pages, Relaxed);
        self.ready_pages.store(table.counts.ready_pages, Relaxed);
        result
    }

    /// These extents were allocated, and nothing names them yet.
    pub(crate) fn allocated(&self, pointer: &LargePointer) {
        self.with(|table| extents_of(pointer).for_each(|large| table.begin(large)));
    }

    /// What was allocated will not be named. Returns what may be reused at once.
    pub(crate) fn abandoned(&self, pointer: &LargePointer) -> Vec<Extent> {
        self.with(|table| {
            let writing = extents_of(pointer).filter(|large| table.end(*large));
            writing.map(|large| large.extent).collect()
        })
    }

    /// A record that names these extents was applied, or will be although it is not in the log.
    pub(crate) fn applied(&self, pointer: &LargePointer) {
        self.with(|table| {
            for large in extents_of(pointer) {
                if !table.end(large) && !table.is_live(large) {
                    // Replay shows again what a page already shows and what a record before it,
                    // shown again as well, seemed to supersede there.
                    table.unfree(large);
                }
                table.insert(large);
            }
        });
    }

    /// The log names extents that the checkpoint does not know.
    ///
    /// # Errors
    /// `Corruption` when the checkpoint has another owner for one of them.
    pub(crate) fn replayed(&self, extents: impl IntoIterator<Item = LargeExtent>) -> Result<()> {
        self.with(|table| {
            for large in extents {
                match table.live.get(&large.extent.page.0) {
                    Some(_) if !table.is_live(large) => {
                        return Err(Error::new(
                            ErrorKind::Corruption,
                            format!("the log names {large:?}, but another is there"),
                        ));
                    }
                    _ if table.freed.iter().any(|freed| freed.large == large) => {}
                    _ => table.insert(large),
                }
            }
            Ok(())
        })
    }

    /// The record that named these extents was superseded; `end` is the log's end now.
    pub(crate) fn superseded(&self, extents: impl IntoIterator<Item = LargeExtent>, end: Lsn) {
        self.with(|table| {
            extents.into_iter().for_each(|large| {
                if table.remove(large) {
                    table.free(large, end);
                }
            });
        });
    }

    /// After a crash of a keyspace whose data is not logged, pages alone say what is live: `named`
    /// are the extents that they name, by first page and generation. The rest is freed.
    pub(crate) fn reconcile(&self, named: &HashSet<(PageNumber, Generation)>, end: Lsn) {
        self.with(|table| {
            let freed: Vec<LargeExtent> = table.freed.iter().map(|freed| freed.large).collect();
            let is_named =
                |large: &LargeExtent| named.contains(&(large.extent.page, large.generation));
            for large in freed.into_iter().filter(is_named) {
                table.unfree(large);
                table.insert(large);
            }
            let live: Vec<LargeExtent> = table.live().collect();
            for large in live.into_iter().filter(|large| !is_named(large)) {
                table.remove(large);
                table.free(large, end);
            }
        });
    }

    /// Whether a pointer's extents may be shown by a page.
    pub(crate) fn owns(&self, pointer: &LargePointer) -> bool {
        self.with(|table| {
            extents_of(pointer).all(|large| {
                table.is_live(large) || table.freed.iter().any(|freed| freed.large == large)
            })
        })
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

    /// What the copy of a keyspace has to name when nothing was reused since before its redo LSN:
    /// beside what is live all that was freed, because records of its log may name it.
    pub(crate) fn list_everything(&self) -> LargeList {
        let table = self.table.lock();
        LargeList {
            live: table.live().collect(),
            freed: table.freed.iter().chain(&table.ready).map(|freed| freed.large).collect(),
        }
    }

    /// The lowest generation that is being written, if any is.
    pub(crate) fn first_writing(&self) -> Option<Generation> {
        self.table.lock().writing.values().map(|owned| owned.generation).min()
    }

    /// A checkpoint that began at `mark` is durable: what it did not name is ready.
    pub(crate) fn settle(&self, mark: u64, redo: Lsn) {
        self.with(|table| {
            let settled = table.settled(mark, redo);
            let ready: Vec<Freed> = table.freed.drain(..settled).collect();
            let pages =
                ready.iter().map(|freed| u64::from(freed.large.extent.pages())).sum::<u64>();
            table.counts.freed_pages -= pages;
            table.counts.ready_pages += pages;
            table.ready.extend(ready);
        });
    }

    /// Takes out what is ready and cannot be read by anybody any more.
    pub(crate) fn take_ready(&self) -> Vec<Extent> {
        if self.ready_pages.load(Relaxed) == 0 {
            return Vec::new();
        }
        self.with(|table| {
            let pinned = table.pins.first_key_value().map_or(u64::MAX, |(number, _)| *number);
            let free = table.ready.partition_point(|freed| freed.number < pinned);
            let free: Vec<Extent> =
                table.ready.drain(..free).map(|freed| freed.large.extent).collect();
            let pages: u64 = free.iter().map(|extent| u64::from(extent.pages())).sum();
            table.counts.ready_pages -= pages;
            free
        })
    }

    /// The first live extent that has pages at or behind this one.
    pub(crate) fn live_from(&self, page: PageNumber) -> Option<LargeExtent> {
        let table = self.table.lock();
        let before = table.live.range(..page.0).next_back().map(|(first, _)| *first);
        let here = table.live.range(before.unwrap_or(page.0)..);
        here.map(|(first, owned)| owned.at(*first))
            .find(|large| large.extent.page.0 + large.extent.pages() > page.0)
    }

    /// Holds back what is freed from now on, until [`LargeTable::unpin`] with the same number.
    pub(crate) fn pin(&self) -> u64 {
        self.with(|table| {
            *table.pins.entry(table.next_number).or_default() += 1;
            table.next_number
        })
    }

    /// Holds back everything that is not reused yet, until [`LargeTable::unpin`] with the answer.
    pub(crate) fn pin_everything(&self) -> u64 {
        self.with(|table| *table.pins.entry(0).or_default() += 1);
        0
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, pin: u64) {
        self.with(|table| {
            if let Some(readers) = table.pins.get_mut(&pin) {
                *readers -= 1;
                if *readers == 0 {
                    table.pins.remove(&pin);
                }
            }
        });
    }

    /// Everything that is owned.
    pub(crate) fn owned(&self) -> Vec<LargeExtent> {
        let table = self.table.lock();
        let freed = table.freed.iter().chain(&table.ready).map(|freed| freed.large);
        table.live().chain(freed).chain(extents(&table.writing)).collect()
    }

    /// Numbers now.
    pub(crate) fn counts(&self) -> LargeCounts {
        self.table.lock().counts
    }

    /// Pages that are live and pages that are freed, without waiting.
    pub(crate) fn pages(&self) -> (u64, u64) {
        (self.live_pages.load(Relaxed), self.freed_pages.load(Relaxed))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let table = self.table.lock();
        let entries = table.writing.len() + table.live.len();
        let freed = (table.freed.len() + table.ready.len()) * size_of::<Freed>();
        entries as u64 * ENTRY_BYTES + freed as u64
    }
}

fn extents(table: &BTreeMap<u32, Owned>) -> impl Iterator<Item = LargeExtent> {
    table.iter().map(|(page, owned)| owned.at(*page))
}

impl Owned {
    fn at(&self, page: u32) -> LargeExtent {
        let extent = Extent { page: PageNumber(page), order: self.order };
        LargeExtent { extent, generation: self.generation, first: self.first }
    }
}

fn owned(large: LargeExtent) -> (u32, Owned) {
    let LargeExtent { extent, generation, first } = large;
    (extent.page.0, Owned { generation, order: extent.order, first })
}

impl Table {
    fn live(&self) -> impl Iterator<Item = LargeExtent> {
        extents(&self.live)
    }

    fn begin(&mut self, large: LargeExtent) {
        let (page, owned) = owned(large);
        self.writing.insert(page, owned);
    }

    /// Ends the writing of an extent; says whether it was being written.
    fn end(&mut self, large: LargeExtent) -> bool {
        let (page, owned) = owned(large);
        let found = self.writing.get(&page) == Some(&owned);
        if found {
            self.writing.remove(&page);
        }
        found
    }

    fn insert(&mut self, large: LargeExtent) {
        let (page, owned) = owned(large);
        if self.live.insert(page, owned).is_none() {
            self.counts.live_pages += u64::from(large.extent.pages());
            self.counts.values += u64::from(large.first);
        }
    }

    fn is_live(&self, large: LargeExtent) -> bool {
        let (page, owned) = owned(large);
        self.live.get(&page) == Some(&owned)
    }

    /// Takes an extent out of the live ones; says whether it was there.
    fn remove(&mut self, large: LargeExtent) -> bool {
        let found = self.is_live(large);
        if found {
            self.live.remove(&large.extent.page.0);
            self.counts.live_pages -= u64::from(large.extent.pages());
            self.counts.values -= u64::from(large.first);
        }
        found
    }

    /// Frees an extent at the log's end `lsn`, as its caller saw it a moment ago.
    fn free(&mut self, large: LargeExtent, lsn: Lsn) {
        let lsn = self.freed.back().map_or(lsn, |last| lsn.max(last.lsn));
        self.freed.push_back(Freed { large, lsn, number: self.next_number });
        self.next_number += 1;
        self.counts.freed_pages += u64::from(large.extent.pages());
    }

    fn unfree(&mut self, large: LargeExtent) {
        let Some(at) = self.freed.iter().position(|freed| freed.large == large) else { return };
        self.freed.remove(at);
        self.counts.freed_pages -= u64::from(large.extent.pages());
    }

    /// How many of the freed extents a checkpoint that began at `mark` makes ready.
    fn settled(&self, mark: u64, redo: Lsn) -> usize {
        self.freed.partition_point(|freed| freed.number < mark && freed.lsn <= redo)
    }
}
