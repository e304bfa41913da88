//! Versions: records get [cells](spinney_ssn::Cells) when transactions touch them, and lose them again.
//!
//! ```text
//!   leaf     .. [key | value | cell 7] ..     [key | absent | cell 9] ..
//!   cells    7: stamps, older images                9: stamps of "no value"
//!   queue    (7, key) (9, key) ..                   looked at in turn by `collect`
//! ```
//!
//! **A key without a value** that a transaction reads or writes gets a record that is absent. No image on disk has
//! it, no scan sees it, and it goes with its cell. So does a removed record that has a cell: its tombstone.
//!
//! **Invariants**
//! 1. The leaf's latch is held while a cell is found by its record, or given back.
//! 2. Each cell in use has one entry in the queue.

use std::collections::VecDeque;

use spinney_base::shim::Mutex;
use spinney_engine::{Cell, Found, OlderImage, OwnedValue, Versioned};
use spinney_ssn::{Stamp, Version};

use crate::engine::Iot;
use crate::tree::SPARSE_WORDS;

/// Cells in use, with the keys of their records. The first was looked at longest ago.
pub(crate) type Queue = Mutex<VecDeque<(u32, Box<[u8]>)>>;

/// Bytes of memory of an older image, beside the vector of its cell.
pub(crate) fn bytes_of(image: &OlderImage) -> u64 {
    image.as_ref().map_or(0, |value| value.bytes.capacity() as u64)
}

impl Iot {
    /// Keeps the image that a write is about to replace, if the owner of its cell publishes.
    #[inline]
    pub(crate) fn keep_version(&self, key: &[u8]) {
        if self.cells.used() > 0 {
            self.keep_version_of(key);
        }
    }

    #[cold]
    fn keep_version_of(&self, key: &[u8]) {
        let held = self.tree.lock(key);
        if let Ok(index) = held.leaf.search(key)
            && let Some(cell) = held.leaf.cell(index)
        {
            let data = held.leaf.data(index);
            self.cells.hold(cell).keep_image(|| {
                let mut bytes = Vec::new();
                held.leaf.value(data, &mut bytes);
                (!data.is_absent()).then_some(OwnedValue { bytes, large: data.is_large() })
            });
        }
        held.release_unchanged();
    }

    /// Returns the bytes of memory of cells, and of what they keep.
    pub(crate) fn version_bytes(&self) -> u64 {
        self.cells.bytes() + self.cells.older_bytes()
    }
}

impl Versioned for Iot {
    fn cell(&self, key: &[u8]) -> Cell {
        loop {
            let held = self.tree.lock(key);
            let Ok(index) = held.leaf.search(key) else {
                held.release_unchanged();
                self.tree.add_absent(key);
                continue;
            };
            let cell = match held.leaf.cell(index) {
                Some(cell) => self.cells.hold(cell),
                None => {
                    let is_absent = held.leaf.data(index).is_absent();
                    let version = if is_absent { Version::absent } else { Version::present };
                    let cell = self.cells.take(version(0));
                    held.leaf.set_cell(index, Some(cell.index()));
                    self.queue.lock().push_back((cell.index(), key.into()));
                    cell
                }
            };
            // Readers do not look at cells.
            held.release_unchanged();
            return cell;
        }
    }

    fn copy(&self, key: &[u8], cell: &Cell, version: Version, out: &mut Vec<u8>) -> Option<Found> {
        let start = out.len();
        let is_newest = || cell.version() == Some(version);
        if is_newest() {
            let found = self.tree.get(key, out);
            if is_newest() {
                return Some(found);
            }
        }
        out.truncate(start);
        None
    }

    fn collect(&self, horizon: Stamp, most: usize) -> usize {
        let (mut taken, before) = (0, self.version_bytes());
        let count = self.queue.lock().len();
        for _ in 0..count.min(most) {
            let next = self.queue.lock().pop_front();
            let Some((cell, key)) = next else { break };
            if self.collect_one(cell, &key, horizon) {
                taken += 1;
            } else {
                self.queue.lock().push_back((cell, key));
            }
        }
        if self.version_bytes() < before {
            self.follow_memory();
        }
        taken
    }

    fn older_bytes(&self) -> u64 {
        self.cells.older_bytes()
    }
}

impl Iot {
    /// Gives a cell back if nobody needs it, and takes an absent record out with it. Returns whether it did.
    fn collect_one(&self, cell: u32, key: &[u8], horizon: Stamp) -> bool {
        let held = self.tree.lock(key);
        let named = held.leaf.search(key).ok().filter(|index| held.leaf.cell(*index) == Some(cell));
        if !self.cells.release(cell, horizon) {
            held.release_unchanged();
            return false;
        }
        // A load may have replaced the leaf.
        let Some(index) = named else {
            held.release_unchanged();
            return true;
        };
        held.leaf.set_cell(index, None);
        if !held.leaf.data(index).is_absent() {
            held.release_unchanged();
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
