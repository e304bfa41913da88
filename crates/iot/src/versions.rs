//! Versions: records get [cells](spinney_ssn::Cells) when they are written while transactions run, and lose them again.
//!
//! ```text
//!   leaf     .. [key | value | cell 7] ..     [key | absent | cell 9] ..
//!   cells    7: stamps, older images                9: stamps of "no value"
//!   queue    (7, key) (9, key) ..                   looked at in turn by `collect`
//! ```
//!
//! **A key without a value** that is written while transactions run gets a record that is absent. No image on disk has
//! it, no scan sees it, and it goes with its cell. Its bytes are those that are to be written, so that they find room
//! later. So does a removed record that has a cell: its tombstone.
//!
//! **Collection** looks at some cells together: they are fetched at once, then the headers of the leaves of those that go,
//! then their slots. It finds a record by its cell where it was when it got it; where the leaf has been divided since, in
//! the leaf of the record before, which was mostly written with it; else by the index.
//!
//! **Invariants**
//! 1. The leaf's latch is held while a cell is taken, or given back. A reader that looks at one otherwise validates the latch.
//! 2. Each cell in use has one entry in the queue, or is being looked at.
//! 3. A cell that is released is given back, and so taken for another record, once no record names it.

use std::collections::VecDeque;
use std::ops::Bound;

use spinney_base::Result;
use spinney_base::shim::Mutex;
use spinney_engine::{
    Cell, Chunk, Engine as _, Patch, Prepared, ScanRequest, SeenAt, SnapshotNumber, Versioned,
    Whereabouts, Write,
};
use spinney_leaf::Entry;
use spinney_ssn::{Running, Sight, Stamp, Successor, Version};
use spinney_sync::prefetch;

use crate::engine::Iot;
use crate::inner::Home;
use crate::leaf::ABSENT;
use crate::near::Near;
use crate::tree::SPARSE_WORDS;

/// Older versions from which on those that nobody sees go before the record comes to rest. With more, old readers cost memory; with
/// fewer, most records are looked at twice.
const LONG: usize = 3;

/// Cells that are looked at together. With more, what was fetched first may be gone again; with fewer, each look waits for
/// memory.
const TOGETHER: usize = 32;

/// Cells in use, with the keys of their records, which lie one behind the other: threads that allocate often wait for
/// each other. The first was looked at longest ago.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<Queued>);

#[derive(Debug, Default)]
struct Queued {
    cells: VecDeque<Entered>,
    keys: VecDeque<u8>,
}

/// A cell, where its record was when it got it, and the bytes of the key.
#[derive(Clone, Copy, Debug)]
struct Entered {
    near: Near,
    key_bytes: u16,
    cell: u32,
}

/// What is looked at together.
#[derive(Debug, Default)]
struct Turn {
    entered: Vec<Entered>,
    keys: Vec<u8>,
    /// Cells that were released, and are not given back yet.
    released: Vec<u32>,
    /// The leaf of the last one. Records that were written together lie together, also where the leaf in which they were
    /// has been divided since.
    last: Option<Home>,
}

impl Queue {
    fn push(&self, cell: u32, near: Near, key: &[u8]) {
        let mut queued = self.0.lock();
        let key_bytes = u16::try_from(key.len()).expect("keys are short");
        queued.cells.push_back(Entered { near, key_bytes, cell });
        queued.keys.extend(key);
    }

    /// Takes the first ones, `most` at most. They replace those of `turn`.
    fn pop(&self, most: usize, turn: &mut Turn) {
        let mut queued = self.0.lock();
        let count = most.min(queued.cells.len());
        turn.entered.clear();
        turn.entered.extend(queued.cells.drain(..count));
        turn.keys.clear();
        let bytes: usize = turn.entered.iter().map(|it| usize::from(it.key_bytes)).sum();
        turn.keys.extend(queued.keys.drain(..bytes));
    }

    fn len(&self) -> usize {
        self.0.lock().cells.len()
    }

    fn bytes(&self) -> u64 {
        let queued = self.0.lock();
        (queued.cells.capacity() * size_of::<Entered>() + queued.keys.capacity()) as u64
    }
}

impl Iot {
    /// Returns the bytes of memory of cells, and of what they keep.
    pub(crate) fn version_bytes(&self) -> u64 {
        self.tree.cells.bytes() + self.tree.cells.older_bytes() + self.queue.bytes()
    }
}

impl Versioned for Iot {
    fn cell(&self, key: &[u8], value: &[u8], prepared: &mut Prepared) -> Cell {
        loop {
            let held = self.tree.lock(key);
            let found = held.leaf.search(key);
            if found.is_err() {
                let absent = Entry { key, value, flags: ABSENT };
                if self.tree.put_held(&held, found, absent).is_none() {
                    drop(held);
                    // The leaf is full.
                    self.tree.add_absent(key, value);
                    continue;
                }
            }
            let (Ok(index) | Err(index)) = found;
            let near = Near::of(&held, index);
            near.note_in(prepared);
            let cell = match held.leaf.cell(index) {
                Some(cell) => self.tree.cells.hold(cell),
                None => {
                    let is_absent = held.leaf.data(index).is_absent();
                    let version = if is_absent { Version::absent } else { Version::present };
                    let cell = self.tree.cells.take(version(0));
                    held.leaf.set_cell(index, Some(cell.index()));
                    self.queue.push(cell.index(), near, key);
                    cell
                }
            };
            if found.is_ok() {
                // A reader of the leaf without the cell has seen the same image.
                held.release_unchanged();
            }
            return cell;
        }
    }

    fn patch(&self, write: &Write<'_>, prepared: Prepared, newest: SnapshotNumber) -> bool {
        let patch = write.value.and_then(|value| Patch::parse(value.bytes));
        let patch = patch.expect("the value of the write is a patch");
        self.keep_before_put(write, newest);
        let is_laid_over = self.tree.patch(write.key, patch, Near::noted_in(prepared));
        self.cancel(write, prepared);
        self.set_dirty(true);
        is_laid_over
    }

    fn read_at(&self, key: &[u8], sight: Sight, out: &mut Vec<u8>) -> Result<SeenAt> {
        self.read_version(key, sight, out)
    }

    fn scan_at(
        &self,
        request: &ScanRequest<'_>,
        sight: Sight,
        note: &mut dyn FnMut(u64),
        chunk: &mut Chunk,
    ) -> Result<Option<Successor>> {
        self.scan_versions(request, sight, note, chunk)
    }

    fn overwritten(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        sight: Sight,
        limit: Stamp,
    ) -> Stamp {
        self.overwritten_in(range, sight, limit)
    }

    fn overwritten_at(&self, key: &[u8], place: Whereabouts, sight: Sight, limit: Stamp) -> Stamp {
        self.overwritten_key(key, Near::kept_in(place), sight, limit)
    }

    fn gap_of(&self, key: &[u8]) -> u64 {
        let gap = self.tree.read(|index| index.floor(key), |leaf| leaf.gap());
        self.tree.gaps.place(gap.expect("the first leaf begins before all keys"))
    }

    fn collect(&self, running: &Running, most: usize) -> usize {
        let (mut taken, before) = (0, self.version_bytes());
        let mut left = self.queue.len().min(most);
        let mut turn = Turn::default();
        while left > 0 {
            self.queue.pop(left.min(TOGETHER), &mut turn);
            // Others may collect as well.
            left = if turn.entered.is_empty() { 0 } else { left - turn.entered.len() };
            self.fetch(&turn.entered, running);
            taken += self.collect_some(&mut turn, running);
        }
        if self.version_bytes() < before {
            self.follow_memory();
        }
        taken
    }

    fn older_bytes(&self) -> u64 {
        self.tree.cells.older_bytes()
    }
}

impl Iot {
    /// Lets the processor fetch what is looked at, all at once: each look would wait for memory several times.
    fn fetch(&self, entered: &[Entered], running: &Running) {
        let cells = &self.tree.cells;
        entered.iter().for_each(|entered| cells.fetch_cell(entered.cell));
        let goes = |entered: &&Entered| cells.may_release(entered.cell, running);
        for Entered { near, .. } in entered.iter().filter(goes) {
            let (leaf, latch) = self.tree.block(near.home.block());
            prefetch(latch);
            leaf.fetch_place(near.index.into());
        }
        for Entered { near, .. } in entered.iter().filter(goes) {
            self.tree.block(near.home.block()).0.fetch_data(near.index.into());
        }
    }

    /// Gives cells back that nobody needs, and drops versions that nobody sees. Returns how many records had some.
    fn collect_some(&self, turn: &mut Turn, running: &Running) -> usize {
        let (mut taken, mut begin) = (0, 0);
        turn.released.clear();
        for Entered { near, key_bytes, cell } in &turn.entered {
            let key = &turn.keys[begin..][..usize::from(*key_bytes)];
            begin += key.len();
            if self.collect_one((*cell, *near), key, running, &mut turn.last) {
                turn.released.push(*cell);
                continue;
            }
            taken += usize::from(self.tree.cells.thin(*cell, running, LONG));
            self.queue.push(*cell, *near, key);
        }
        self.tree.cells.give_back(&turn.released);
        taken + turn.released.len()
    }

    /// Takes a cell from its record if nobody needs it, and an absent record out of its leaf. Returns whether the cell was
    /// released.
    fn collect_one(
        &self,
        (cell, near): (u32, Near),
        key: &[u8],
        running: &Running,
        last: &mut Option<Home>,
    ) -> bool {
        if !self.tree.cells.may_release(cell, running) {
            return false;
        }
        self.tree.cells.thin(cell, running, 1);
        let held = self.tree.lock_one_of(Some(near), *last, key);
        *last = Some(Home::new(held.block, held.leaf.incarnation()));
        let has_it = |index: &usize| held.leaf.cell(*index) == Some(cell);
        // One that has the cell is that of the key.
        let there = Some(usize::from(near.index)).filter(|index| *index < held.leaf.len());
        let there = there.filter(has_it);
        let named = there.or_else(|| held.leaf.search(key).ok().filter(has_it));
        if !self.tree.cells.release(cell, running) {
            held.release_unchanged();
            return false;
        }
        // A load may have replaced the leaf.
        let Some(index) = named else {
            held.release_unchanged();
            return true;
        };
        // A reader that looks at the cell without a handle reads the leaf again.
        held.leaf.set_cell(index, None);
        if !held.leaf.data(index).is_absent() {
            return true;
        }
        held.leaf.remove(index);
        let is_sparse = held.leaf.live_words() < SPARSE_WORDS;
        drop(held);
        if is_sparse {
            self.tree.try_join(key);
        }
        true
    }
}
