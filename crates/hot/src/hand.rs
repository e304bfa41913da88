//! Who leaves: the hand, which goes through the tier in the order of the keys, and what a sweep does with
//! the records that it takes along.

use spinney_base::shim::atomic::Ordering::Relaxed;

use crate::leaf::{DIRTY, GAP, REMOVED, TierLeaf, WRITING};
use crate::records::{Record, Records};
use crate::tier::{Held, HotTier, PRIORITY_PUT};

/// What the hand met in one leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Records that it passed.
    pub records: u64,
    /// Those that were read or written since it last passed them.
    pub asked: u64,
    /// Those of them that were not just put: a load asks for nothing again.
    pub again: u64,
    /// Clean records that left.
    pub left: u64,
    /// Dirty records that were taken for the cold structure.
    pub taken: u64,
}

/// Where the hand of a tier is, and how far the leaves before it are marked.
#[derive(Clone, Debug, Default)]
pub struct Hand {
    at: Vec<u8>,
    marked_to: Vec<u8>,
    /// Leaves between the two.
    ahead: u64,
}

impl Hand {
    /// The hand meets soon what lies in the next part of the tier, one in this many. With more, fewer
    /// hits say what memory is worth; with fewer, they say it of records that are not the next to leave.
    pub const SOON_PART: u64 = 8;

    /// Returns the key from which on it goes next.
    #[must_use]
    pub fn at(&self) -> &[u8] {
        &self.at
    }
}

impl HotTier {
    /// Moves the hand over one leaf. Priorities fall by one. Of records that had none left, clean ones
    /// leave, and dirty ones are copied to `victims`, if `takes_dirty`. Behind the last key it begins
    /// again.
    pub fn advance(&self, hand: &mut Hand, takes_dirty: bool, victims: &mut Records) -> Passed {
        let (passed, next) = self.pass(&hand.at, takes_dirty, victims);
        hand.at = next.unwrap_or_default();
        hand.ahead = hand.ahead.saturating_sub(1);
        if hand.ahead == 0 {
            hand.marked_to.clone_from(&hand.at);
        }
        let soon = self.blocks.used() / Hand::SOON_PART;
        while hand.ahead < soon {
            let held = self.lock(&hand.marked_to);
            held.leaf.set_soon(true);
            let mut upper = Vec::new();
            hand.marked_to = if held.leaf.upper(&mut upper) { upper } else { Vec::new() };
            hand.ahead += 1;
        }
        passed
    }

    /// As [`HotTier::advance`], from `from` on. Returns where the next leaf begins, `None` at the end of
    /// all keys.
    pub fn pass(
        &self,
        from: &[u8],
        takes_dirty: bool,
        victims: &mut Records,
    ) -> (Passed, Option<Vec<u8>>) {
        let held = self.lock(from);
        let (leaf, references) = (held.leaf, held.references);
        let mut passed = Passed::default();
        leaf.set_soon(false);
        let mut index = leaf.search(from).unwrap_or_else(|at| at);
        while index < leaf.len() {
            passed.records += 1;
            let slot = leaf.slot(index);
            let priority = references.get(index);
            if priority > 0 {
                references.set(index, priority - 1);
                passed.asked += 1;
                passed.again += u64::from(priority > PRIORITY_PUT || !slot.is(DIRTY));
            } else if !slot.is(DIRTY) {
                self.let_leave(&held, index);
                passed.left += 1;
                continue;
            } else if takes_dirty && !slot.is(WRITING) {
                take(&held, index, victims);
                passed.taken += 1;
            }
            index += 1;
        }
        let mut upper = Vec::new();
        let next = leaf.upper(&mut upper).then_some(upper);
        self.fill(held);
        (passed, next)
    }

    /// Lets all clean records leave, whatever their priority: what they say is not so any more. What was read
    /// before enters no leaf afterwards (rule H24).
    pub fn let_all_leave(&self) {
        let mut from = Some(Vec::new());
        while let Some(at) = from {
            let held = self.lock(&at);
            held.leaf.set_starts_gap(false);
            held.leaf.count_removal();
            let mut index = 0;
            while index < held.leaf.len() {
                if held.leaf.slot(index).is(DIRTY) {
                    held.leaf.set_flags(index, held.leaf.slot(index).flags() & !GAP);
                    index += 1;
                } else {
                    self.let_leave(&held, index);
                }
            }
            let mut upper = Vec::new();
            from = held.leaf.upper(&mut upper).then_some(upper);
            self.fill(held);
        }
    }

    /// Copies all dirty records of the leaf for `from` that lie below `to` and that no sweep has taken
    /// yet, whatever their priority. Returns where to go on, `None` at the end of the range.
    pub fn take_along(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        victims: &mut Records,
    ) -> Option<Vec<u8>> {
        let held = self.lock(from);
        let leaf = held.leaf;
        let mut upper = Vec::new();
        let next = leaf.upper(&mut upper).then_some(upper);
        let next = next.filter(|next| to.is_none_or(|to| &next[..] < to));
        let begin = leaf.search(from).unwrap_or_else(|at| at);
        let end = match to {
            Some(to) if next.is_none() && is_within(&held, to) => {
                leaf.search(to).unwrap_or_else(|at| at)
            }
            _ => leaf.len(),
        };
        for index in begin..end {
            if leaf.slot(index).flags() & (DIRTY | WRITING) == DIRTY {
                take(&held, index, victims);
            }
        }
        next
    }

    /// Ends the sweep of these records, of which the cold structure has the first `written` now. Those
    /// that nothing changed meanwhile become clean, and leave if nobody asked for them, or if they are
    /// removals (rules H1, H2).
    /// `lost` is called for each that was replaced meanwhile and that the cold structure does not have:
    /// nothing names its value any more (rule H23).
    pub fn finish(&self, victims: &Records, written: usize, lost: &mut dyn FnMut(Record<'_>)) {
        let mut rest = victims.iter().enumerate().peekable();
        while let Some((number, victim)) = rest.next() {
            let held = self.lock(victim.key);
            let leaf = held.leaf;
            let found = leaf.search(victim.key).ok();
            let flags = found.map_or(0, |index| leaf.slot(index).flags());
            let Some(index) = found.filter(|_| flags & WRITING != 0) else {
                held.release_unchanged();
                if number >= written {
                    lost(victim);
                }
                continue;
            };
            if number >= written {
                leaf.set_flags(index, flags & !WRITING);
                continue;
            }
            leaf.set_flags(index, flags & !(WRITING | DIRTY));
            self.dirty.fetch_sub(1, Relaxed);
            // Ranges would pass over removals that nobody asked for.
            if flags & REMOVED != 0 || held.references.get(index) == 0 {
                self.let_leave(&held, index);
                // Once for each leaf: what others are refused for want of blocks would find room in its gaps only.
                let is_last = rest.peek().is_none_or(|(_, next)| !is_within(&held, next.key));
                if is_last {
                    self.fill(held);
                }
            }
        }
    }

    /// Takes a clean record out.
    fn let_leave(&self, held: &Held<'_>, index: usize) {
        held.leaf.open_gap(index);
        held.references.remove(index, held.leaf.len());
        held.leaf.take_out(index);
        self.records.fetch_sub(1, Relaxed);
    }
}

/// Whether a key lies below the upper bound of a leaf.
fn is_within(held: &Held<'_>, key: &[u8]) -> bool {
    let mut upper = Vec::new();
    !held.leaf.upper(&mut upper) || key < &upper[..]
}

/// Copies a dirty record for the cold structure.
fn take(held: &Held<'_>, index: usize, victims: &mut Records) {
    let leaf = held.leaf;
    let slot = leaf.slot(index);
    leaf.set_flags(index, slot.flags() | WRITING);
    let about = (slot.flags(), held.references.get(index));
    victims.0.push(about, |out| leaf.key(slot, out), |out| leaf.value(slot, out));
}
