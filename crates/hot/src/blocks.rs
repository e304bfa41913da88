//! Blocks of leaves ([`spinney_sync::blocks`]), each with its latch and the reference bits of its records.
//!
//! **Reference bits**, two for each slot, are no part of the leaf: readers set them without its latch, and
//! a bit that a late reader sets in the wrong place changes only what leaves the tier next.

use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_leaf::Leaf;
use spinney_sync::{Beside, VersionLatch, ZeroedAtomics};

use crate::leaf::{BLOCK_WORDS, RECORDS_MAX};

/// Words of reference bits of one block.
const REFERENCE_WORDS: usize = (RECORDS_MAX * BITS).div_ceil(64);
/// Reference bits of one record.
const BITS: usize = 2;
const PER_WORD: usize = 64 / BITS;
/// Most that the reference bits of a record say.
pub(crate) const REFERENCE_MAX: u64 = (1 << BITS) - 1;

/// Bytes of memory that a block takes.
pub(crate) const BLOCK_BYTES: u64 =
    ((BLOCK_WORDS + REFERENCE_WORDS) * 8 + size_of::<VersionLatch>() + 4) as u64;

/// What lies beside the blocks of a chunk.
#[derive(Debug)]
pub(crate) struct OfChunk {
    references: ZeroedAtomics<AtomicU64>,
    latches: Box<[VersionLatch]>,
}

impl Beside for OfChunk {
    fn of(blocks: usize) -> OfChunk {
        OfChunk {
            references: ZeroedAtomics::new(blocks * REFERENCE_WORDS),
            latches: (0..blocks).map(|_| VersionLatch::new()).collect(),
        }
    }
}

/// All blocks. Thread-safe.
#[derive(Debug)]
pub(crate) struct Blocks(spinney_sync::Blocks<OfChunk>);

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks(spinney_sync::Blocks::new(BLOCK_WORDS))
    }
}

impl Blocks {
    /// Takes a free block.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    pub(crate) fn take(&self) -> u32 {
        self.0.take()
    }

    /// Gives a block back that is no leaf any more and whose latch nobody holds.
    pub(crate) fn give(&self, block: u32) {
        self.0.give(block);
    }

    /// Number of leaves.
    pub(crate) fn used(&self) -> u64 {
        self.0.used()
    }

    /// Bytes of all leaves.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.used() * BLOCK_BYTES
    }

    /// Returns a block that was taken.
    #[inline]
    pub(crate) fn block(&self, block: u32) -> Block<'_> {
        let (words, beside, index) = self.0.block(block);
        Block {
            leaf: Leaf::new(words),
            latch: &beside.latches[index],
            references: References(
                &beside.references[index * REFERENCE_WORDS..][..REFERENCE_WORDS],
            ),
        }
    }
}

/// A block and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    pub(crate) leaf: Leaf<'a>,
    pub(crate) latch: &'a VersionLatch,
    pub(crate) references: References<'a>,
}

/// The reference bits of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct References<'a>(&'a [AtomicU64]);

impl References<'_> {
    #[inline]
    fn at(slot: usize) -> (usize, usize) {
        (slot / PER_WORD, slot % PER_WORD * BITS)
    }

    pub(crate) fn get(&self, slot: usize) -> u64 {
        let (word, shift) = Self::at(slot);
        self.0[word].load(Relaxed) >> shift & REFERENCE_MAX
    }

    /// Notes a use.
    #[inline]
    pub(crate) fn touch(&self, slot: usize) {
        let (word, shift) = Self::at(slot);
        let most = REFERENCE_MAX << shift;
        // Most uses find the bits set, and then nothing is written.
        if self.0[word].load(Relaxed) & most != most {
            self.0[word].fetch_or(most, Relaxed);
        }
    }

    pub(crate) fn set(&self, slot: usize, value: u64) {
        let (word, shift) = Self::at(slot);
        let cleared = self.0[word].load(Relaxed) & !(REFERENCE_MAX << shift);
        self.0[word].store(cleared | value << shift, Relaxed);
    }

    /// Makes room for a slot among `count`.
    pub(crate) fn insert(&self, slot: usize, value: u64, count: usize) {
        let (first, shift) = Self::at(slot);
        let (last, _) = Self::at(count);
        for word in (first + 1..=last).rev() {
            let (low, high) = (self.0[word - 1].load(Relaxed), self.0[word].load(Relaxed));
            self.0[word].store(high << BITS | low >> (64 - BITS), Relaxed);
        }
        let word = self.0[first].load(Relaxed);
        let below = word & ((1 << shift) - 1);
        self.0[first].store(below | (word & !((1 << shift) - 1)) << BITS | value << shift, Relaxed);
    }

    /// Closes the room of a slot among `count`.
    pub(crate) fn remove(&self, slot: usize, count: usize) {
        let (first, shift) = Self::at(slot);
        let (last, _) = Self::at(count - 1);
        let word = self.0[first].load(Relaxed);
        let (below, above) = (word & ((1 << shift) - 1), word >> shift >> BITS << shift);
        self.0[first].store(below | above, Relaxed);
        for word in first + 1..=last {
            let (low, high) = (self.0[word - 1].load(Relaxed), self.0[word].load(Relaxed));
            self.0[word - 1].store(low | high << (64 - BITS), Relaxed);
            self.0[word].store(high >> BITS, Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn reference_bits_follow_their_slots() {
        let words: Vec<AtomicU64> = (0..REFERENCE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let references = References(&words);
        let (mut model, mut random) = (Vec::new(), spinney_base::runtime::SplitMix(1));
        for _ in 0..4_000 {
            let number = random.next_u64();
            let place = number as usize % (model.len() + 1);
            if number >> 32 & 3 > 0 && model.len() < RECORDS_MAX {
                references.insert(place, number >> 60 & 3, model.len());
                model.insert(place, number >> 60 & 3);
            } else if place < model.len() {
                references.remove(place, model.len());
                model.remove(place);
            }
            let found: Vec<u64> = (0..model.len()).map(|slot| references.get(slot)).collect();
            assert_eq!(found, model);
        }
    }
}
