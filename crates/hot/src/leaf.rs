//! What the tier keeps in a [`Leaf`]: flags of records, gap bits, and the generation of its bounds.
//!
//! | where | bits | field |
//! |---|---|---|
//! | owner's word | 40 | generation of the bounds; 0 while the block is free |
//! | owner's word | 24 | count of removals, which gap bits are set against |
//! | notes | 1 | gap bit of the leaf: no cold record lies between the lower bound and the first record |
//! | notes | 1 | the hand comes soon |
//!
//! **Invariants**, beside those of the leaf
//! 1. The bounds of a generation never change.
//! 2. A gap bit says that no cold record lies between its record and the next one in this leaf, or the
//!    upper bound if there is none (rule H8). It speaks of one leaf only, so one latch guards it.

use spinney_leaf::{Bounds, Entry, Leaf};

/// Words of a block: 16 KiB. With less, long records leave more of a block unused; with more, rewriting
/// a leaf takes longer. Offsets have bits for as many. Models have less to do.
pub(crate) const BLOCK_WORDS: usize = if cfg!(feature = "shuttle") { 64 } else { 2048 };
/// Most records of a leaf.
pub(crate) const RECORDS_MAX: usize = spinney_leaf::records_max(BLOCK_WORDS);

/// The cold structure does not hold the record as it is here.
pub(crate) const DIRTY: u8 = 1;
/// A sweep has copied the record, and nothing changed it since.
pub(crate) const WRITING: u8 = 2;
/// The key has no value.
pub(crate) const REMOVED: u8 = 4;
/// The value is the pointer to a large one.
pub(crate) const LARGE: u8 = 8;
/// No cold record lies between this one and the next.
pub(crate) const GAP: u8 = 16;

/// Bits of a generation.
pub(crate) const GENERATION_BITS: u32 = 40;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
const REMOVALS_MASK: u64 = (1 << (64 - GENERATION_BITS)) - 1;

const STARTS_GAP: u16 = 1;
const SOON: u16 = 2;

/// A leaf of the tier. Who may call what is as for the leaf.
pub(crate) trait TierLeaf {
    fn generation(&self) -> u64;
    fn removals(&self) -> u32;
    /// Makes the block one that is no leaf.
    fn free(&self);
    fn starts_gap(&self) -> bool;
    fn set_starts_gap(&self, is_set: bool);
    /// Returns whether the hand comes soon, as far as is known: a leaf that is rewritten forgets it.
    fn is_soon(&self) -> bool;
    fn set_soon(&self, is_soon: bool);
    /// Counts a removal where no record leaves. The holder's.
    fn count_removal(&self);
    /// Notes that the record at a place leaves for the cold structure: nothing is known any more of
    /// what lies before it. The holder's.
    fn open_gap(&self, index: usize);
    /// Writes all of the leaf. The holder's. Gap bits that are set stay, and none may be set for what
    /// was read before.
    fn write_all<'e>(
        &self,
        bounds: Bounds<'_>,
        about: (u64, bool),
        entries: impl Iterator<Item = Entry<'e>>,
    );
}

/// Counts a removal, after which no gap bit may be set for what was read before, and nothing of it enters.
fn count_removal(leaf: Leaf<'_>, generation: u64) {
    let removals = (u64::from(leaf.removals()) + 1) & REMOVALS_MASK;
    leaf.set_owner(generation | removals << GENERATION_BITS);
}

fn note(leaf: Leaf<'_>, note: u16, is_set: bool) {
    leaf.set_notes(leaf.notes() & !note | if is_set { note } else { 0 });
}

impl TierLeaf for Leaf<'_> {
    #[inline]
    fn generation(&self) -> u64 {
        self.owner() & GENERATION_MASK
    }

    fn removals(&self) -> u32 {
        (self.owner() >> GENERATION_BITS) as u32
    }

    fn free(&self) {
        self.set_owner(self.owner() & !GENERATION_MASK);
    }

    fn starts_gap(&self) -> bool {
        self.notes() & STARTS_GAP != 0
    }

    fn set_starts_gap(&self, is_set: bool) {
        note(*self, STARTS_GAP, is_set);
    }

    #[inline]
    fn is_soon(&self) -> bool {
        self.notes() & SOON != 0
    }

    fn set_soon(&self, is_soon: bool) {
        note(*self, SOON, is_soon);
    }

    fn count_removal(&self) {
        count_removal(*self, self.generation());
    }

    fn open_gap(&self, index: usize) {
        match index.checked_sub(1) {
            Some(before) => self.set_flags(before, self.slot(before).flags() & !GAP),
            None => self.set_starts_gap(false),
        }
        self.count_removal();
    }

    fn write_all<'e>(
        &self,
        bounds: Bounds<'_>,
        (generation, starts_gap): (u64, bool),
        entries: impl Iterator<Item = Entry<'e>>,
    ) {
        self.write(bounds, if starts_gap { STARTS_GAP } else { 0 }, entries);
        count_removal(*self, generation);
    }
}
