//! A sparse set of numbers below 2^32: words of 64 bits under five levels of summaries.
//!
//! ```text
//! number   31 30 | 29 .. 24 | 23 .. 18 | 17 .. 12 | 11 .. 6 | 5 .. 0
//!          node -> node ----> node ----> node ----> node ---> word
//!
//! node     here = 0b..10010            bit s: part s has a number
//!          parts = [part 1, part 4]    those only, in ascending order
//! ```
//!
//! A node keeps only the parts that have numbers, so a set takes memory for what is in it: a bit a
//! number where numbers lie close together, at most about 8 bytes for one that is alone among 64
//! and about 200 for one that is alone among millions, and an empty set nothing beyond the 32 bytes
//! of the value itself. Every operation on one number visits six levels.
//!
//! **Invariants**
//! 1. Bit `s` of `here` is set exactly if part `s` is in `parts`, and no part in `parts` is empty.
//! 2. Equal sets are equal values: the form depends on the numbers alone.
//!
//! The set does not count its numbers: its owner counts what they stand for.

/// A set of numbers below 2^32.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    root: Node<Node<Node<Node<Node<u64>>>>>,
}

impl Bits {
    /// Returns whether the set has no numbers.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// Adds a number. Returns whether it was new.
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        self.root.insert(number)
    }

    /// Removes a number. Returns whether it was there.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        self.root.remove(number)
    }

    /// Removes the least number, and returns it.
    pub(crate) fn take_first(&mut self) -> Option<u32> {
        self.root.take_first()
    }

    /// Returns whether a number is in the set.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.root.contains(number)
    }

    /// Returns the least number.
    pub(crate) fn first(&self) -> Option<u32> {
        self.root.first()
    }

    /// Returns the greatest number.
    pub(crate) fn last(&self) -> Option<u32> {
        self.root.last()
    }

    /// Returns the least number that is at least `number`.
    pub(crate) fn at_or_after(&self, number: u32) -> Option<u32> {
        self.root.at_or_after(number)
    }

    /// Returns the greatest number that is at most `number`.
    pub(crate) fn at_or_before(&self, number: u32) -> Option<u32> {
        self.root.at_or_before(number)
    }

    /// Returns all numbers, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let mut next = self.first();
        std::iter::from_fn(move || {
            let number = next?;
            next = number.checked_add(1).and_then(|from| self.at_or_after(from));
            Some(number)
        })
    }

    /// Returns all numbers, in descending order.
    pub(crate) fn iter_back(&self) -> impl Iterator<Item = u32> {
        let mut next = self.last();
        std::iter::from_fn(move || {
            let number = next?;
            next = number.checked_sub(1).and_then(|from| self.at_or_before(from));
            Some(number)
        })
    }

    /// Returns the bytes of memory that the set takes beside its own value.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.root.heap_bytes()
    }
}

/// A set of numbers below 2^`BITS`. The numbers given may be greater: bits above are not looked at.
trait Part: Default {
    /// Binary logarithm of the number of numbers.
    const BITS: u32;

    fn is_empty(&self) -> bool;
    fn insert(&mut self, number: u32) -> bool;
    fn remove(&mut self, number: u32) -> bool;
    fn take_first(&mut self) -> Option<u32>;
    fn contains(&self, number: u32) -> bool;
    fn first(&self) -> Option<u32>;
    fn last(&self) -> Option<u32>;
    fn at_or_after(&self, number: u32) -> Option<u32>;
    fn at_or_before(&self, number: u32) -> Option<u32>;
    #[cfg(test)]
    fn heap_bytes(&self) -> usize;
}

/// Returns the place of the lowest bit.
#[inline]
fn lowest(bits: u64) -> Option<u32> {
    (bits != 0).then(|| bits.trailing_zeros())
}

/// Returns the place of the highest bit.
#[inline]
fn highest(bits: u64) -> Option<u32> {
    bits.checked_ilog2()
}

/// Returns the bits of `bits` from `place` on.
#[inline]
fn from(bits: u64, place: u32) -> u64 {
    bits & (u64::MAX << place)
}

/// Returns the bits of `bits` up to and including `place`.
#[inline]
fn up_to(bits: u64, place: u32) -> u64 {
    bits & (u64::MAX >> (63 - place))
}

impl Part for u64 {
    const BITS: u32 = 6;

    fn is_empty(&self) -> bool {
        *self == 0
    }

    fn insert(&mut self, number: u32) -> bool {
        let before = *self;
        *self |= 1 << (number % 64);
        *self != before
    }

    fn remove(&mut self, number: u32) -> bool {
        let before = *self;
        *self &= !(1 << (number % 64));
        *self != before
    }

    fn take_first(&mut self) -> Option<u32> {
        let place = lowest(*self)?;
        *self &= *self - 1;
        Some(place)
    }

    fn contains(&self, number: u32) -> bool {
        *self & (1 << (number % 64)) != 0
    }

    fn first(&self) -> Option<u32> {
        lowest(*self)
    }

    fn last(&self) -> Option<u32> {
        highest(*self)
    }

    fn at_or_after(&self, number: u32) -> Option<u32> {
        lowest(from(*self, number % 64))
    }

    fn at_or_before(&self, number: u32) -> Option<u32> {
        highest(up_to(*self, number % 64))
    }

    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Up to 64 parts, those that are not empty.
#[derive(Debug, PartialEq, Eq)]
struct Node<P> {
    here: u64,
    parts: Vec<P>,
}

impl<P> Default for Node<P> {
    fn default() -> Self {
        Node { here: 0, parts: Vec::new() }
    }
}

impl<P: Part> Node<P> {
    /// Returns the place of the part that has `number`.
    #[inline]
    fn place(number: u32) -> u32 {
        (number >> P::BITS) % 64
    }

    /// Returns where the part at `place` lies in `parts`, or would.
    #[inline]
    fn index(&self, place: u32) -> usize {
        (self.here & !(u64::MAX << place)).count_ones() as usize
    }

    #[inline]
    fn part(&self, place: u32) -> Option<&P> {
        if self.here & (1 << place) == 0 {
            return None;
        }
        self.parts.get(self.index(place))
    }

    /// Returns a number of the part at a place, as `which` chooses it.
    #[inline]
    fn of_part(&self, place: Option<u32>, which: impl Fn(&P) -> Option<u32>) -> Option<u32> {
        let place = place?;
        Some((place << P::BITS) + which(self.part(place)?)?)
    }

    /// Removes a part that has become empty.
    fn drop_part(&mut self, place: u32, index: usize) {
        self.here &= !(1 << place);
        self.parts.remove(index);
        if self.parts.len() <= self.parts.capacity() / 4 {
            self.parts.shrink_to(self.parts.len() * 2);
        }
    }
}

impl<P: Part> Part for Node<P> {
    const BITS: u32 = P::BITS + 6;

    fn is_empty(&self) -> bool {
        self.here == 0
    }

    fn insert(&mut self, number: u32) -> bool {
        let place = Self::place(number);
        let index = self.index(place);
        if self.here & (1 << place) == 0 {
            self.here |= 1 << place;
            // A vector's own first step is to four, and most of these have one part.
            if self.parts.len() == self.parts.capacity() {
                self.parts.reserve_exact(self.parts.len().max(1));
            }
            self.parts.insert(index, P::default());
        }
        self.parts[index].insert(number)
    }

    fn remove(&mut self, number: u32) -> bool {
        let place = Self::place(number);
        if self.here & (1 << place) == 0 {
            return false;
        }
        let index = self.index(place);
        let was_there = self.parts[index].remove(number);
        if self.parts[index].is_empty() {
            self.drop_part(place, index);
        }
        was_there
    }

    fn take_first(&mut self) -> Option<u32> {
        let place = lowest(self.here)?;
        let number = self.parts[0].take_first()?;
        if self.parts[0].is_empty() {
            self.drop_part(place, 0);
        }
        Some((place << P::BITS) + number)
    }

    fn contains(&self, number: u32) -> bool {
        self.part(Self::place(number)).is_some_and(|part| part.contains(number))
    }

    fn first(&self) -> Option<u32> {
        Some((lowest(self.here)? << P::BITS) + self.parts.first()?.first()?)
    }

    fn last(&self) -> Option<u32> {
        Some((highest(self.here)? << P::BITS) + self.parts.last()?.last()?)
    }

    fn at_or_after(&self, number: u32) -> Option<u32> {
        let place = Self::place(number);
        let same = self.of_part(Some(place), |part| part.at_or_after(number));
        same.or_else(|| {
            // Not `from(.., place + 1)`, which would shift by 64 at the last place.
            self.of_part(lowest(from(self.here, place) & !(1 << place)), P::first)
        })
    }

    fn at_or_before(&self, number: u32) -> Option<u32> {
        let place = Self::place(number);
        let same = self.of_part(Some(place), |part| part.at_or_before(number));
        same.or_else(|| self.of_part(highest(up_to(self.here, place) & !(1 << place)), P::last))
    }

    #[cfg(test)]
    fn heap_bytes(&self) -> usize {
        let inside: usize = self.parts.iter().map(P::heap_bytes).sum();
        self.parts.capacity() * size_of::<P>() + inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Numbers close together, at the ends of parts of every level, and anywhere.
    fn numbers() -> impl Strategy<Value = u32> {
        prop_oneof![
            0u32..200,
            (0u32..6, 0u32..4, 0u32..3)
                .prop_map(|(level, times, off)| (times << (6 * level).min(30))
                    .wrapping_add(off)
                    .wrapping_sub(1)),
            any::<u32>(),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((any::<bool>(), numbers()), 1..200)) {
            let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
            for (insert, number) in &steps {
                if *insert {
                    prop_assert_eq!(bits.insert(*number), set.insert(*number));
                } else {
                    prop_assert_eq!(bits.remove(*number), set.remove(number));
                }
                prop_assert_eq!(bits.iter().count(), set.len());
                prop_assert_eq!(bits.is_empty(), set.is_empty());
                prop_assert_eq!(bits.first(), set.first().copied());
                prop_assert_eq!(bits.last(), set.last().copied());
            }
            let mut rest = Bits::default();
            set.iter().for_each(|number| assert!(rest.insert(*number)));
            prop_assert!(std::iter::from_fn(|| rest.take_first()).eq(set.iter().copied()));
            prop_assert_eq!((rest.heap_bytes(), &rest), (0, &Bits::default()));
            for (_, number) in &steps {
                prop_assert_eq!(bits.contains(*number), set.contains(number));
                prop_assert_eq!(bits.at_or_after(*number), set.range(number..).next().copied());
                prop_assert_eq!(bits.at_or_before(*number), set.range(..=number).next_back().copied());
            }
            prop_assert!(bits.iter().eq(set.iter().copied()));
            prop_assert!(bits.iter_back().eq(set.iter().rev().copied()));
            let mut same = Bits::default();
            set.iter().rev().for_each(|number| assert!(same.insert(*number)));
            prop_assert_eq!(&same, &bits);
            set.iter().for_each(|number| assert!(bits.remove(*number)));
            prop_assert_eq!((bits.heap_bytes(), &bits), (0, &Bits::default()));
        }
    }

    /// Memory follows what is in the set, not what a file has.
    #[test]
    fn memory_is_for_numbers() {
        let mut bits = Bits::default();
        assert_eq!((size_of::<Bits>(), bits.heap_bytes()), (32, 0));
        bits.insert(u32::MAX);
        assert!(bits.heap_bytes() <= 4 * 32 + 8, "{}", bits.heap_bytes());
        bits.remove(u32::MAX);
        (0..1 << 20).for_each(|number| assert!(bits.insert(number)));
        // A bit each, and 32 bytes for 4,096 of them.
        assert!(bits.heap_bytes() * 8 <= (1 << 20) * 11 / 10, "{}", bits.heap_bytes());
        (64..1 << 20).for_each(|number| assert!(bits.remove(number)));
        assert!(bits.heap_bytes() <= 400, "{}", bits.heap_bytes());
    }
}
