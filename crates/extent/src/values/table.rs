//! The states of the extents of large values.
//!
//! ```text
//!   allocate          apply            supersede          checkpoint that covers it       no reader left
//!   ------> writing ------> live, since -------> freed, at ------------------------> ready ------------> free map
//! ```
//!
//! A pointer lies in log records, in memory and in pages; the extents that it names lie outside of
//! them. An extent is *writing* from its allocation until the record that names it is applied,
//! *live* while some record or page may show it, *freed* once its record was superseded, *ready*
//! once nothing durable names it. It is free when, beyond that, no reader is left that may have
//! found it before.
//!
//! **Positions.** An engine counts its own past in `u64`: TreeLine in LSNs, turtle in memtables. A
//! checkpoint covers everything up to a position. An extent is live *since* the position of the
//! record that names it, and freed *at* that position or the one of the record that superseded it,
//! whichever is later.
//!
//! **Invariants** (P17)
//! 1. An extent is in at most one of the lists. Its generation makes it unique, so a second freeing
//!    does nothing: every place that meets a superseded pointer may say so.
//! 2. Freed extents have ascending numbers, in the order in which they were freed.
//! 3. A freed extent becomes ready only by a checkpoint that began after it was freed and that
//!    covers the position of its freeing. Then neither the checkpoint nor a record that is still
//!    replayed names it.
//! 4. A checkpoint names everything that is live since a position that it covers. An engine whose
//!    pages may name superseded values also names what is freed and does not become ready by it.
//! 5. A reader that pins before it looks a pointer up finds nothing that was freed before the pin.
//!    So what it finds has the pin's number or a higher one when it is freed, and stays.
//!
//! **Concurrency.** One lock, for memory work only. It is the last in the order of locks.

use std::collections::{BTreeMap, HashSet};

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};

use crate::free::Extent;
use crate::header::u32_at;
use crate::large::LargePointer;

/// Bit in the order of a listed extent: a value begins in it.
const FIRST: u8 = 1 << 7;

/// Bytes of an entry of the maps, at their average fill.
const ENTRY_BYTES: u64 = 40;

/// One extent of a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LargeExtent {
    /// Position and size of the extent.
    pub extent: Extent,
    /// Generation of its pages.
    pub generation: Generation,
    /// Whether the value begins in it. There are as many such extents as values.
    pub first: bool,
}

impl LargeExtent {
    /// Returns the extents of a pointer.
    pub fn all_of(pointer: &LargePointer) -> impl Iterator<Item = LargeExtent> {
        pointer.extents.iter().enumerate().map(|(index, (extent, generation))| LargeExtent {
            extent: *extent,
            generation: *generation,
            first: index == 0,
        })
    }

    /// Appends its encoding in a list: page `u32`, order `u8` with bit 7 set where a value begins,
    /// generation `u32`, all little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.extent.page.0.to_le_bytes());
        out.push(self.extent.order | if self.first { FIRST } else { 0 });
        out.extend_from_slice(&self.generation.0.to_le_bytes());
    }

    /// Decodes the next `count` of a list; `None` if they are not whole and aligned.
    #[must_use]
    pub fn decode(left: &mut &[u8], count: u64) -> Option<Vec<LargeExtent>> {
        let (bytes, rest) = left.split_at_checked(usize::try_from(count).ok()?.checked_mul(9)?)?;
        *left = rest;
        let decode = |entry: &[u8; 9]| {
            let (page, order) = (u32_at(entry, 0), entry[4]);
            let extent = Extent { page: PageNumber(page), order: order & !FIRST };
            let generation = Generation(u32_at(entry, 5));
            extent.is_aligned().then_some(LargeExtent {
                extent,
                generation,
                first: order & FIRST != 0,
            })
        };
        bytes.as_chunks().0.iter().map(decode).collect()
    }
}

/// Large values in a checkpoint: extents that are owned although its tree names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LargeList {
    /// Extents that records name.
    pub live: Vec<LargeExtent>,
    /// Extents whose records were superseded, which the checkpoint does not prove yet.
    pub freed: Vec<LargeExtent>,
}

impl LargeList {
    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.freed.is_empty()
    }

    /// Returns all extents in it.
    pub fn all(&self) -> impl Iterator<Item = LargeExtent> {
        self.live.iter().chain(&self.freed).copied()
    }
}

/// The line that a checkpoint draws: everything freed before it began and up to a position, against
/// the rest.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    mark: u64,
    covers: u64,
}

impl Cut {
    /// The cut of a checkpoint for which nothing was written back.
    pub const NOTHING: Cut = Cut { mark: 0, covers: u64::MAX };

    fn settles(&self, freed: &Freed) -> bool {
        freed.number < self.mark && freed.at <= self.covers
    }
}

/// Counts of large values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargeCounts {
    /// Number of live values.
    pub values: u64,
    /// Pages of live values.
    pub live_pages: u64,
    /// Pages that are freed and not yet ready.
    pub freed_pages: u64,
    /// Pages that are ready and not yet free.
    pub ready_pages: u64,
}

/// See the module. Thread-safe.
#[derive(Debug, Default)]
pub(super) struct Table {
    lists: Mutex<Lists>,
    /// The counts of the lists, for callers that must not wait.
    live_pages: AtomicU64,
    freed_pages: AtomicU64,
    ready_pages: AtomicU64,
}

#[derive(Debug, Default)]
struct Lists {
    /// By first page, as the live ones.
    writing: BTreeMap<u32, Live>,
    live: BTreeMap<u32, Live>,
    freed: Vec<Freed>,
    ready: Vec<Freed>,
    /// Number of the next extent that is freed.
    next_number: u64,
    /// How many readers pinned at each number.
    pins: BTreeMap<u64, usize>,
    counts: LargeCounts,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    large: LargeExtent,
    since: u64,
}

#[derive(Clone, Copy, Debug)]
struct Freed {
    live: Live,
    at: u64,
    number: u64,
}

impl Table {
    fn with<T>(&self, body: impl FnOnce(&mut Lists) -> T) -> T {
        let mut lists = self.lists.lock();
        let result = body(&mut lists);
        self.live_pages.store(lists.counts.live_pages, Relaxed);
        self.freed_pages.store(lists.counts.freed_pages, Relaxed);
        self.ready_pages.store(lists.counts.ready_pages, Relaxed);
        result
    }

    /// Takes in what the checkpoint names that was opened at position `now`.
    pub(super) fn load(&self, list: LargeList, now: u64) {
        self.with(|lists| {
            list.live.into_iter().for_each(|large| lists.insert(Live { large, since: 0 }));
            list.freed.into_iter().for_each(|large| lists.free(Live { large, since: 0 }, now));
        });
    }

    /// These extents were allocated, and nothing names them yet.
    pub(super) fn allocated(&self, pointer: &LargePointer) {
        self.with(|lists| {
            for large in LargeExtent::all_of(pointer) {
                lists.writing.insert(large.extent.page.0, Live { large, since: 0 });
            }
        });
    }

    /// What was allocated will not be named. Returns what may be reused at once.
    pub(super) fn abandoned(&self, pointer: &LargePointer) -> Vec<Extent> {
        self.with(|lists| {
            let writing = LargeExtent::all_of(pointer).filter(|large| lists.end(large));
            writing.map(|large| large.extent).collect()
        })
    }

    /// A record that names these extents was applied, or will be although it is not in the log.
    pub(super) fn applied(&self, pointer: &LargePointer, since: u64) {
        self.with(|lists| {
            for large in LargeExtent::all_of(pointer) {
                if !lists.end(&large) && !lists.is_live(&large) {
                    // Replay shows again what a page already shows and what a record before it,
                    // shown again as well, seemed to supersede there.
                    lists.unfree(&large);
                }
                lists.insert(Live { large, since });
            }
        });
    }

    /// The log names extents that the checkpoint does not know.
    pub(super) fn replayed(&self, extents: Vec<LargeExtent>, since: u64) -> Result<()> {
        self.with(|lists| {
            for large in extents {
                match lists.live.get(&large.extent.page.0) {
                    Some(live) if live.large != large => {
                        return Err(Error::new(
                            ErrorKind::Corruption,
                            format!("the log names {large:?}, but another is there"),
                        ));
                    }
                    Some(_) => {}
                    None if lists.freed.iter().any(|freed| freed.live.large == large) => {}
                    None => lists.insert(Live { large, since }),
                }
            }
            Ok(())
        })
    }

    /// The record that named these extents was superseded.
    pub(super) fn superseded(&self, extents: impl IntoIterator<Item = LargeExtent>, at: u64) {
        self.with(|lists| {
            for large in extents {
                if let Some(live) = lists.remove(&large) {
                    lists.free(live, at);
                }
            }
        });
    }

    /// No record is left that names any.
    pub(super) fn superseded_all(&self, at: u64) {
        self.superseded(self.list(&Cut::NOTHING).live, at);
    }

    /// Pages alone say what is live: `named` are the extents that they name, by first page and
    /// generation. The rest is freed.
    pub(super) fn reconcile(&self, named: &HashSet<(PageNumber, Generation)>, at: u64) {
        self.with(|lists| {
            let is_named =
                |large: &LargeExtent| named.contains(&(large.extent.page, large.generation));
            let freed: Vec<Live> = lists.freed.iter().map(|freed| freed.live).collect();
            for live in freed.into_iter().filter(|live| is_named(&live.large)) {
                lists.unfree(&live.large);
                lists.insert(live);
            }
            let live: Vec<LargeExtent> = lists.live.values().map(|live| live.large).collect();
            for large in live.into_iter().filter(|large| !is_named(large)) {
                if let Some(live) = lists.remove(&large) {
                    lists.free(live, at);
                }
            }
        });
    }

    /// Whether a record may show this pointer, or a pin keep it.
    pub(super) fn owns(&self, pointer: &LargePointer) -> bool {
        let lists = self.lists.lock();
        LargeExtent::all_of(pointer)
            .all(|large| lists.is_live(&large) || lists.gone().any(|gone| gone.large == large))
    }

    /// Divides what was freed before from what is freed later, for a checkpoint that begins now.
    pub(super) fn cut(&self, covers: u64) -> Cut {
        Cut { mark: self.lists.lock().next_number, covers }
    }

    /// Whether this checkpoint would make anything ready.
    pub(super) fn settles(&self, cut: &Cut) -> bool {
        self.lists.lock().freed.iter().any(|freed| cut.settles(freed))
    }

    /// What this checkpoint has to name.
    pub(super) fn list(&self, cut: &Cut) -> LargeList {
        let lists = self.lists.lock();
        let live = lists.live.values().filter(|live| live.since <= cut.covers);
        let freed = lists.freed.iter().filter(|freed| !cut.settles(freed));
        LargeList {
            live: live.map(|live| live.large).collect(),
            freed: freed.map(|freed| freed.live.large).collect(),
        }
    }

    /// What the durable checkpoint that covers `covers` has named as live.
    pub(super) fn listed(&self, covers: u64) -> Vec<LargeExtent> {
        let lists = self.lists.lock();
        let all = lists.live.values().copied().chain(lists.freed.iter().map(|freed| freed.live));
        all.filter(|live| live.since <= covers).map(|live| live.large).collect()
    }

    /// Everything that was named and is not reused yet.
    pub(super) fn everything(&self) -> LargeList {
        let lists = self.lists.lock();
        LargeList {
            live: lists.live.values().map(|live| live.large).collect(),
            freed: lists.gone().map(|gone| gone.large).collect(),
        }
    }

    /// Everything that is owned.
    pub(super) fn owned(&self) -> Vec<LargeExtent> {
        let lists = self.lists.lock();
        let named = lists.live.values().chain(lists.gone());
        named.chain(lists.writing.values()).map(|live| live.large).collect()
    }

    /// This checkpoint is durable: what it does not name is ready.
    pub(super) fn settle(&self, cut: &Cut) {
        self.with(|lists| {
            let freed = std::mem::take(&mut lists.freed);
            let (ready, freed): (Vec<_>, _) =
                freed.into_iter().partition(|freed| cut.settles(freed));
            let pages = pages_of(&ready);
            lists.freed = freed;
            lists.ready.extend(ready);
            lists.counts.freed_pages -= pages;
            lists.counts.ready_pages += pages;
        });
    }

    /// Takes out what is ready and cannot be read by anybody any more.
    pub(super) fn take_ready(&self) -> Vec<Extent> {
        if self.ready_pages.load(Relaxed) == 0 {
            return Vec::new();
        }
        self.with(|lists| {
            let pinned = lists.pins.first_key_value().map_or(u64::MAX, |(number, _)| *number);
            let ready = std::mem::take(&mut lists.ready);
            let (free, ready): (Vec<_>, _) =
                ready.into_iter().partition(|freed| freed.number < pinned);
            lists.ready = ready;
            lists.counts.ready_pages -= pages_of(&free);
            free.into_iter().map(|freed| freed.live.large.extent).collect()
        })
    }

    /// The first live extent that has pages at or behind this one.
    pub(super) fn live_from(&self, page: PageNumber) -> Option<LargeExtent> {
        let lists = self.lists.lock();
        let before = lists.live.range(..page.0).next_back().map(|(first, _)| *first);
        let mut here = lists.live.range(before.unwrap_or(page.0)..).map(|(_, live)| live.large);
        here.find(|large| large.extent.page.0 + large.extent.pages() > page.0)
    }

    /// Holds back what is freed from now on, or `everything` that is not reused yet, until
    /// [`Table::unpin`] with the answer.
    pub(super) fn pin(&self, everything: bool) -> u64 {
        let mut lists = self.lists.lock();
        let number = if everything { 0 } else { lists.next_number };
        *lists.pins.entry(number).or_default() += 1;
        number
    }

    /// Ends a pin.
    pub(super) fn unpin(&self, pin: u64) {
        let mut lists = self.lists.lock();
        if let Some(readers) = lists.pins.get_mut(&pin) {
            *readers -= 1;
            if *readers == 0 {
                lists.pins.remove(&pin);
            }
        }
    }

    /// Numbers now.
    pub(super) fn counts(&self) -> LargeCounts {
        self.lists.lock().counts
    }

    /// Pages that are live and pages that are freed, without waiting.
    pub(super) fn pages(&self) -> (u64, u64) {
        (self.live_pages.load(Relaxed), self.freed_pages.load(Relaxed))
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let lists = self.lists.lock();
        let entries = (lists.writing.len() + lists.live.len()) as u64 * ENTRY_BYTES;
        entries + ((lists.freed.len() + lists.ready.len()) * size_of::<Freed>()) as u64
    }
}

fn pages_of(freed: &[Freed]) -> u64 {
    freed.iter().map(|freed| u64::from(freed.live.large.extent.pages())).sum()
}

impl Lists {
    /// What is freed or ready.
    fn gone(&self) -> impl Iterator<Item = &Live> {
        self.freed.iter().chain(&self.ready).map(|freed| &freed.live)
    }

    /// Ends the writing of an extent; says whether it was being written.
    fn end(&mut self, large: &LargeExtent) -> bool {
        let page = large.extent.page.0;
        let found = self.writing.get(&page).is_some_and(|writing| writing.large == *large);
        if found {
            self.writing.remove(&page);
        }
        found
    }

    fn insert(&mut self, live: Live) {
        if self.live.insert(live.large.extent.page.0, live).is_none() {
            self.counts.live_pages += u64::from(live.large.extent.pages());
            self.counts.values += u64::from(live.large.first);
        }
    }

    fn is_live(&self, large: &LargeExtent) -> bool {
        self.live.get(&large.extent.page.0).is_some_and(|live| live.large == *large)
    }

    /// Takes an extent out of the live ones if it is there.
    fn remove(&mut self, large: &LargeExtent) -> Option<Live> {
        if !self.is_live(large) {
            return None;
        }
        self.counts.live_pages -= u64::from(large.extent.pages());
        self.counts.values -= u64::from(large.first);
        self.live.remove(&large.extent.page.0)
    }

    fn free(&mut self, live: Live, at: u64) {
        self.freed.push(Freed { live, at: at.max(live.since), number: self.next_number });
        self.next_number += 1;
        self.counts.freed_pages += u64::from(live.large.extent.pages());
    }

    fn unfree(&mut self, large: &LargeExtent) {
        let Some(at) = self.freed.iter().position(|freed| freed.live.large == *large) else {
            return;
        };
        self.freed.remove(at);
        self.counts.freed_pages -= u64::from(large.extent.pages());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(page: u32) -> LargePointer {
        let extents = vec![(Extent { page: PageNumber(page), order: 1 }, Generation(page + 9))];
        LargePointer { length: 5000, hash: 1, extents }
    }

    fn extents(page: u32) -> Vec<LargeExtent> {
        LargeExtent::all_of(&pointer(page)).collect()
    }

    fn pages(extents: &[LargeExtent]) -> Vec<u32> {
        extents.iter().map(|large| large.extent.page.0).collect()
    }

    /// P17: what a checkpoint covers is reused only once it is durable and nobody reads it.
    #[test]
    fn p17_from_writing_to_free() {
        let table = Table::default();
        let live = |covers| pages(&table.list(&table.cut(covers)).live);
        [10, 20, 30].into_iter().for_each(|page| table.allocated(&pointer(page)));
        assert_eq!(table.abandoned(&pointer(30)).len(), 1);
        table.applied(&pointer(10), 1);
        table.applied(&pointer(20), 2);
        assert_eq!((live(1), live(2)), (vec![10], vec![10, 20]));
        let (before, early) = (table.pin(false), table.cut(2));
        table.superseded(extents(10), 0);
        table.superseded(extents(10), 0);
        // The checkpoint that is durable has it still.
        assert_eq!((pages(&table.listed(1)), live(1)), (vec![10], vec![]));
        assert!(table.owns(&pointer(10)));
        assert!(table.settles(&table.cut(1)) && !table.settles(&table.cut(0)));
        // What it was freed after, what does not cover it, and what nothing was written back for.
        for cut in [early, table.cut(0), Cut::NOTHING] {
            table.settle(&cut);
            assert_eq!(pages(&table.list(&cut).freed), [10]);
        }
        table.settle(&table.cut(2));
        assert!(table.take_ready().is_empty(), "a reader has it");
        let after = table.pin(false);
        table.unpin(before);
        assert_eq!(table.take_ready(), [pointer(10).extents[0].0]);
        table.unpin(after);
        let counts = LargeCounts { values: 1, live_pages: 2, ..LargeCounts::default() };
        assert_eq!(table.counts(), counts);
        // Superseded at a position that no checkpoint covers: the log names it.
        table.applied(&pointer(30), 3);
        table.superseded(extents(30), 0);
        table.superseded(extents(20), 5);
        table.settle(&table.cut(2));
        assert!(table.take_ready().is_empty());
        assert_eq!(pages(&table.everything().freed), [30, 20]);
        table.settle(&table.cut(3));
        assert_eq!(table.take_ready(), [pointer(30).extents[0].0]);
    }

    #[test]
    fn the_log_shows_what_the_checkpoint_does_not_list() {
        let table = Table::default();
        table.load(LargeList { live: extents(10), freed: Vec::new() }, 0);
        table.replayed(extents(20), u64::MAX).unwrap();
        let mut other = pointer(10);
        other.extents[0].1 = Generation(77);
        let other = table.replayed(LargeExtent::all_of(&other).collect(), 0);
        assert_eq!(other.unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(pages(&table.owned()), [10, 20]);
        assert_eq!(pages(&table.list(&table.cut(u64::MAX - 1)).live), [10]);
        table.applied(&pointer(20), 5);
        assert_eq!(pages(&table.list(&table.cut(5)).live), [10, 20]);
        assert_eq!(pages(&[table.live_from(PageNumber(11)).unwrap()]), [10]);
        assert_eq!(pages(&[table.live_from(PageNumber(12)).unwrap()]), [20]);
    }
}
