//! Where the keys of leaves are: in the caller's records.
//!
//! The tree keeps a 63-bit reference for each key and no copy of the key. Whenever it must know a
//! leaf's key it asks the [`KeySource`].

use std::cmp::Ordering;

use crate::layout::{Position, position};

/// Greatest leaf that a tree can hold: one bit tells leaves from nodes.
pub const LEAF_MAX: u64 = (1 << 63) - 1;

/// Gives the tree the keys of leaves.
///
/// The tree asks while its thread is pinned ([`crossbeam_epoch::pin`]), with no latch held, and
/// only about leaves that were in the tree at some time since it was pinned. By the time it asks,
/// the leaf may have been removed and its record be in use for something else. Any answer will do
/// then, for the tree checks afterwards that the leaf was still there and else throws the answer
/// away; but an answer there must be, without a panic and soon. So either records outlive their
/// removal by an epoch, or their bytes are [`RacyWords`](spinney_sync::RacyWords).
///
/// While a leaf is in the tree its key must not change.
pub trait KeySource {
    /// Appends the leaf's key to `out`.
    fn read_key(&self, leaf: u64, out: &mut Vec<u8>);

    /// Prefetches the leaf's key, which will be needed soon. It has no visible effect.
    fn prefetch(&self, _leaf: u64) {}

    /// Returns where the leaf's key and `key` differ.
    fn compare(&self, leaf: u64, key: &[u8]) -> Parting {
        let mut own = Vec::new();
        self.read_key(leaf, &mut own);
        Parting::of(&own, key)
    }

    /// Returns whether the leaf's key is `key`.
    fn matches(&self, leaf: u64, key: &[u8]) -> bool {
        self.compare(leaf, key).order == Ordering::Equal
    }
}

/// Where the key of a leaf and a searched key differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parting {
    common: usize,
    leaf_position: Position,
    order: Ordering,
}

impl Parting {
    /// Compares a leaf's key with the key searched for.
    #[inline]
    #[must_use]
    pub fn of(leaf_key: &[u8], key: &[u8]) -> Self {
        let common = common_bytes(leaf_key, key);
        let leaf_position = position(leaf_key, common);
        let order = leaf_position.cmp(&position(key, common));
        Parting { common, leaf_position, order }
    }

    /// How many bytes both keys begin with.
    pub(crate) fn common(&self) -> usize {
        self.common
    }

    /// The leaf's position right after the common bytes.
    pub(crate) fn leaf_position(&self) -> Position {
        self.leaf_position
    }

    /// Returns the order of the leaf's key relative to the searched key.
    #[must_use]
    pub fn order(&self) -> Ordering {
        self.order
    }
}

/// Length of the longest common prefix, eight bytes at a time: keys may share hundreds.
fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    for (index, (a_word, b_word)) in a_words.iter().zip(b_words).enumerate() {
        let differ = u64::from_le_bytes(*a_word) ^ u64::from_le_bytes(*b_word);
        if differ != 0 {
            return index * 8 + differ.trailing_zeros() as usize / 8;
        }
    }
    let whole = a_words.len().min(b_words.len());
    if a_words.len() == b_words.len() {
        return whole * 8 + a_rest.iter().zip(b_rest).take_while(|(a, b)| a == b).count();
    }
    let (a_rest, b_rest) = (&a[whole * 8..], &b[whole * 8..]);
    whole * 8 + a_rest.iter().zip(b_rest).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_part_where_they_differ_or_end() {
        let long = [7; 40];
        for common in 0..40 {
            let mut other = long;
            other[common] = 9;
            let parting = Parting::of(&other, &long);
            assert_eq!((parting.common(), parting.order()), (common, Ordering::Greater));
            let parting = Parting::of(&long[..common], &long);
            assert_eq!((parting.common(), parting.order()), (common, Ordering::Less));
            assert_eq!(parting.leaf_position(), 0);
        }
        assert_eq!(Parting::of(&long, &long).order(), Ordering::Equal);
        assert_eq!(Parting::of(&[], &[]).order(), Ordering::Equal);
    }
}
