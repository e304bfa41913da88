//! How a node keeps its children: three layouts, each one atomic words only.
//!
//! ```text
//! Sorted<W, N>   keys: W words of 8 bytes, ascending | children: N slots, in the order of the keys
//! Indexed<N>     index: 256 bytes, 0 = none, else child + 1 | children: N slots, in any order
//! Direct         children: 256 slots, by byte
//! ```
//!
//! Children are found by *position*: 0 is the end of the key, `byte + 1` a byte. So a key sorts
//! right before those it is a prefix of. Position 0 is kept by the node's header; the layouts here
//! know bytes only.
//!
//! **Invariants**
//! 1. In `Sorted` exactly the first `count` lanes and slots are in use, strictly ascending.
//! 2. A slot that is not in use is empty: nothing that was unlinked can be read from it.
//!
//! **Concurrency.** Whoever changes a layout holds its node's latch. Readers hold nothing: what
//! they find while it changes is some child that the node had or has, or none, and the latch's
//! version tells them to forget it.

use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

use crate::node::{Slot, Word};

/// Position in a node at which a key continues: 0 where the key ends, else its byte plus one. -1
/// and 257 are before the first and after the last.
pub(crate) type Position = i16;

/// The first position: the key ends.
pub(crate) const FIRST: Position = 0;

/// The last position: the byte 255.
pub(crate) const LAST: Position = 256;

/// The position of `key` at `depth`, which is at most its length.
#[inline]
pub(crate) fn position(key: &[u8], depth: usize) -> Position {
    key.get(depth).map_or(FIRST, |byte| Position::from(*byte) + 1)
}

/// What a layout can do. `count` is how many children it has.
pub(crate) trait Layout {
    /// Most children.
    const CAPACITY: usize;

    /// The child of a byte.
    fn find(&self, count: usize, byte: u8) -> Option<&Slot>;

    /// The first child whose byte is at least `byte`.
    fn at_or_after(&self, count: usize, byte: u8) -> Option<(u8, &Slot)>;

    /// The last child whose byte is at most `byte`.
    fn at_or_before(&self, count: usize, byte: u8) -> Option<(u8, &Slot)>;

    /// Adds the child of a byte that has none; there is room.
    fn insert(&self, count: usize, byte: u8, child: Word);

    /// Removes the child of a byte that has one.
    fn remove(&self, count: usize, byte: u8);
}

/// Keys in ascending order and their children beside them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Sorted<const W: usize, const N: usize> {
    keys: [AtomicU64; W],
    children: [Slot; N],
}

impl<const W: usize, const N: usize> Default for Sorted<W, N> {
    fn default() -> Self {
        const { assert!(N <= W * LANES) };
        Sorted {
            keys: std::array::from_fn(|_| AtomicU64::new(0)),
            children: std::array::from_fn(|_| Slot::default()),
        }
    }
}

const LANES: usize = 8;
const ONES: u64 = 0x0101_0101_0101_0101;
const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// The top bit of each lane that is zero, and no other bit.
#[inline]
fn zero_lanes(word: u64) -> u64 {
    !(((word & LOW_BITS) + LOW_BITS) | word | LOW_BITS)
}

/// The bits of the lanes below `lane`.
#[inline]
fn lanes_below(lane: usize) -> u64 {
    (1 << (8 * lane)) - 1
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lane is cut out of the word")]
fn lane(word: u64, lane: usize) -> u8 {
    (word >> (8 * lane)) as u8
}

impl<const W: usize, const N: usize> Sorted<W, N> {
    fn key(&self, index: usize) -> u8 {
        lane(self.keys[index / LANES].load(Relaxed), index % LANES)
    }

    /// How many of the first `count` keys are less than `byte`.
    fn rank(&self, count: usize, byte: u8) -> usize {
        let count = count.min(N);
        for (index, word) in self.keys.iter().enumerate().take(count.div_ceil(LANES)) {
            let word = word.load(Relaxed);
            let lanes = LANES.min(count - index * LANES);
            if let Some(at) = (0..lanes).find(|at| lane(word, *at) >= byte) {
                return index * LANES + at;
            }
        }
        count
    }
}

impl<const W: usize, const N: usize> Layout for Sorted<W, N> {
    const CAPACITY: usize = N;

    #[inline]
    fn find(&self, count: usize, byte: u8) -> Option<&Slot> {
        for (index, word) in self.keys.iter().enumerate() {
            let zeros = zero_lanes(word.load(Relaxed) ^ (u64::from(byte) * ONES));
            if zeros != 0 {
                // A lane that is not in use looks like the byte 0, but lies behind a real one.
                let index = index * LANES + zeros.trailing_zeros() as usize / 8;
                return if index < count { self.children.get(index) } else { None };
            }
        }
        None
    }

    fn at_or_after(&self, count: usize, byte: u8) -> Option<(u8, &Slot)> {
        let index = self.rank(count, byte);
        (index < count.min(N)).then(|| (self.key(index), &self.children[index]))
    }

    fn at_or_before(&self, count: usize, byte: u8) -> Option<(u8, &Slot)> {
        let above = byte.checked_add(1).map_or(count.min(N), |next| self.rank(count, next));
        let index = above.checked_sub(1)?;
        Some((self.key(index), &self.children[index]))
    }

    fn insert(&self, count: usize, byte: u8, child: Word) {
        assert!(count < N, "the node is full");
        let index = self.rank(count, byte);
        for at in (index..count).rev() {
            self.children[at + 1].store(self.children[at].load());
        }
        self.children[index].store(child);
        let mut carry = byte;
        for at in index / LANES..W {
            let word = self.keys[at].load(Relaxed);
            let from = if at == index / LANES { index % LANES } else { 0 };
            let low = lanes_below(from);
            let moved = (word & !low) << 8 | u64::from(carry) << (8 * from);
            self.keys[at].store(word & low | moved, Relaxed);
            carry = lane(word, LANES - 1);
        }
    }

    fn remove(&self, count: usize, byte: u8) {
        let index = self.rank(count, byte);
        assert!(index < count && self.key(index) == byte, "the child is there");
        for at in index..count - 1 {
            self.children[at].store(self.children[at + 1].load());
        }
        self.children[count - 1].store(Word::EMPTY);
        for at in index / LANES..W {
            let word = self.keys[at].load(Relaxed);
            let next = self.keys.get(at + 1).map_or(0, |next| next.load(Relaxed));
            let low = lanes_below(if at == index / LANES { index % LANES } else { 0 });
            self.keys[at].store(word & low | (word >> 8) & !low | next << 56, Relaxed);
        }
    }
}

/// A byte for each key that tells where its child is.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Indexed<const N: usize> {
    index: [AtomicU64; 256 / LANES],
    children: [Slot; N],
}

impl<const N: usize> Default for Indexed<N> {
    fn default() -> Self {
        const { assert!(N < 256) };
        Indexed {
            index: std::array::from_fn(|_| AtomicU64::new(0)),
            children: std::array::from_fn(|_| Slot::default()),
        }
    }
}

impl<const N: usize> Indexed<N> {
    fn set(&self, byte: u8, entry: u8) {
        let word = &self.index[usize::from(byte) / LANES];
        let shift = 8 * (usize::from(byte) % LANES);
        let rest = word.load(Relaxed) & !(0xff << shift);
        word.store(rest | u64::from(entry) << shift, Relaxed);
    }

    fn child(&self, entry: u8) -> Option<&Slot> {
        self.children.get(usize::from(entry).checked_sub(1)?)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are 256 lanes")]
fn byte_of(word: usize, lane: u32) -> u8 {
    (word * LANES + lane as usize) as u8
}

impl<const N: usize> Layout for Indexed<N> {
    const CAPACITY: usize = N;

    #[inline]
    fn find(&self, _: usize, byte: u8) -> Option<&Slot> {
        let word = self.index[usize::from(byte) / LANES].load(Relaxed);
        self.child(lane(word, usize::from(byte) % LANES))
    }

    fn at_or_after(&self, _: usize, byte: u8) -> Option<(u8, &Slot)> {
        let first = usize::from(byte) / LANES;
        for at in first..self.index.len() {
            let mut word = self.index[at].load(Relaxed);
            if at == first {
                word &= !lanes_below(usize::from(byte) % LANES);
            }
            if word != 0 {
                let found = word.trailing_zeros() / 8;
                let slot = self.child(lane(word, found as usize))?;
                return Some((byte_of(at, found), slot));
            }
        }
        None
    }

    fn at_or_before(&self, _: usize, byte: u8) -> Option<(u8, &Slot)> {
        let last = usize::from(byte) / LANES;
        for at in (0..=last).rev() {
            let mut word = self.index[at].load(Relaxed);
            if at == last && usize::from(byte) % LANES + 1 < LANES {
                word &= lanes_below(usize::from(byte) % LANES + 1);
            }
            if word != 0 {
                let found = 7 - word.leading_zeros() / 8;
                let slot = self.child(lane(word, found as usize))?;
                return Some((byte_of(at, found), slot));
            }
        }
        None
    }

    fn insert(&self, count: usize, byte: u8, child: Word) {
        assert!(count < N, "the node is full");
        let free = self.children.iter().position(|slot| slot.load().is_empty());
        let free = free.expect("fewer slots are in use than there are");
        self.children[free].store(child);
        self.set(byte, u8::try_from(free + 1).expect("asserted in `default`"));
    }

    fn remove(&self, count: usize, byte: u8) {
        let slot = self.find(count, byte).expect("the child is there");
        slot.store(Word::EMPTY);
        self.set(byte, 0);
    }
}

/// A child for each byte.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Direct {
    children: [Slot; 256],
}

impl Default for Direct {
    fn default() -> Self {
        Direct { children: std::array::from_fn(|_| Slot::default()) }
    }
}

impl Layout for Direct {
    const CAPACITY: usize = 256;

    #[inline]
    fn find(&self, _: usize, byte: u8) -> Option<&Slot> {
        let slot = &self.children[usize::from(byte)];
        (!slot.load().is_empty()).then_some(slot)
    }

    fn at_or_after(&self, count: usize, byte: u8) -> Option<(u8, &Slot)> {
        (byte..=255).find_map(|byte| self.find(count, byte).map(|slot| (byte, slot)))
    }

    fn at_or_before(&self, count: usize, byte: u8) -> Option<(u8, &Slot)> {
        (0..=byte).rev().find_map(|byte| self.find(count, byte).map(|slot| (byte, slot)))
    }

    fn insert(&self, _: usize, byte: u8, child: Word) {
        self.children[usize::from(byte)].store(child);
    }

    fn remove(&self, _: usize, byte: u8) {
        self.children[usize::from(byte)].store(Word::EMPTY);
    }
}

/// No children but the one at position 0, whatever the key: the root.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Nothing;

impl Layout for Nothing {
    const CAPACITY: usize = 0;

    fn find(&self, _: usize, _: u8) -> Option<&Slot> {
        None
    }

    fn at_or_after(&self, _: usize, _: u8) -> Option<(u8, &Slot)> {
        None
    }

    fn at_or_before(&self, _: usize, _: u8) -> Option<(u8, &Slot)> {
        None
    }

    fn insert(&self, _: usize, _: u8, _: Word) {
        unreachable!("the root has one slot, at position 0");
    }

    fn remove(&self, _: usize, _: u8) {
        unreachable!("the root has one slot, at position 0");
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Fills a layout in a scattered order, empties it in another, and compares every answer.
    fn behaves<L: Layout + Default>() {
        let layout = L::default();
        let mut model = BTreeMap::new();
        for round in 0..2 * L::CAPACITY {
            let byte = u8::try_from((round * 167 + 255) % 256).unwrap();
            let count = model.len();
            if model.remove(&byte).is_some() {
                layout.remove(count, byte);
            } else if count < L::CAPACITY {
                layout.insert(count, byte, Word::leaf(u64::from(byte) + 1));
                model.insert(byte, u64::from(byte) + 1);
            } else {
                let victim = *model.keys().nth(round % count).unwrap();
                model.remove(&victim);
                layout.remove(count, victim);
            }
            let count = model.len();
            let leaf = |found: Option<(u8, &Slot)>| {
                found.map(|(byte, slot)| (byte, slot.load().as_leaf().unwrap()))
            };
            for probe in 0..=255 {
                let exact = layout.find(count, probe).map(|slot| slot.load().as_leaf().unwrap());
                assert_eq!(exact, model.get(&probe).copied());
                let after = model.range(probe..).next().map(|(byte, leaf)| (*byte, *leaf));
                assert_eq!(leaf(layout.at_or_after(count, probe)), after);
                let before = model.range(..=probe).next_back().map(|(byte, leaf)| (*byte, *leaf));
                assert_eq!(leaf(layout.at_or_before(count, probe)), before);
            }
        }
    }

    #[test]
    fn every_layout_is_an_ordered_map() {
        behaves::<Sorted<1, 4>>();
        behaves::<Sorted<1, 8>>();
        behaves::<Sorted<2, 16>>();
        behaves::<Sorted<4, 32>>();
        behaves::<Indexed<48>>();
        behaves::<Indexed<112>>();
        behaves::<Direct>();
    }
}
