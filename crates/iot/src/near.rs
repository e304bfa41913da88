//! Where a record was when it was read, or its cell was taken: what is done to it next mostly finds it there, without a
//! search.
//!
//! ```text
//!   Prepared      word 0: 48 bits, bytes that were reserved | 16 bits, index in the leaf    word 1: home of the leaf, or 0
//!   Whereabouts   word 0: home of the leaf, or 0                                            word 1: index in the leaf
//! ```
//!
//! It is a guess. Whatever thread uses it latches the block and compares the incarnation, as one that the index has led there
//! does, and then the key.

use spinney_engine::{Prepared, Whereabouts};

use crate::inner::Home;
use crate::leaf::Leaf;
use crate::tree::{Held, Tree};

const INDEX_AT: u32 = 48;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Near {
    pub(crate) home: Home,
    pub(crate) index: u16,
}

impl Near {
    /// Of a record that a transaction has seen.
    pub(crate) fn seen(home: Home, index: usize) -> Near {
        Near { home, index: u16::try_from(index).expect("a leaf has some hundred records at most") }
    }

    /// The words that a transaction keeps.
    pub(crate) fn whereabouts(self) -> Whereabouts {
        Whereabouts([self.home.word(), u64::from(self.index)])
    }

    /// Returns what a transaction has kept, if it was something.
    pub(crate) fn kept_in(Whereabouts([home, index]): Whereabouts) -> Option<Near> {
        (home != 0).then(|| Near { home: Home::from_word(home), index: index as u16 })
    }

    /// Of a record of a leaf that is latched.
    pub(crate) fn of(held: &Held<'_>, index: usize) -> Near {
        Near::seen(Home::new(held.block, held.leaf.incarnation()), index)
    }

    /// Returns it, if something was noted.
    pub(crate) fn noted_in(prepared: Prepared) -> Option<Near> {
        let Prepared([first, home]) = prepared;
        let index = (first >> INDEX_AT) as u16;
        (home != 0).then(|| Near { home: Home::from_word(home), index })
    }

    /// Notes it beside the bytes that were reserved.
    pub(crate) fn note_in(self, prepared: &mut Prepared) {
        let bytes = reserved_in(*prepared);
        *prepared = Prepared([bytes | u64::from(self.index) << INDEX_AT, self.home.word()]);
    }
}

/// Returns the bytes that were reserved.
pub(crate) fn reserved_in(prepared: Prepared) -> u64 {
    prepared.0[0] & ((1 << INDEX_AT) - 1)
}

/// Returns the index of a key, or the one that it would have; first it is looked for where it was.
pub(crate) fn find(leaf: Leaf<'_>, near: Option<Near>, key: &[u8]) -> Result<usize, usize> {
    match near.map(|near| usize::from(near.index)) {
        Some(index) if leaf.is_at(index, key) => Ok(index),
        _ => leaf.search(key),
    }
}

impl Tree {
    /// Latches the leaf of a key, which may still be where it was.
    pub(crate) fn lock_near(&self, near: Option<Near>, key: &[u8]) -> Held<'_> {
        self.lock_one_of(near, None, key)
    }

    /// Does the same; where that leaf has been divided, the key may lie in another that is named.
    pub(crate) fn lock_one_of(
        &self,
        near: Option<Near>,
        other: Option<Home>,
        key: &[u8],
    ) -> Held<'_> {
        if let Some(held) = near.and_then(|near| self.latch_if(near.home)) {
            return held;
        }
        match other.and_then(|home| self.latch_if(home)) {
            Some(held) if held.leaf.covers(key) => return held,
            Some(held) => held.release_unchanged(),
            None => {}
        }
        self.lock(key)
    }
}
