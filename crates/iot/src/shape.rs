//! Changes of bounds: splits of full leaves, and joins of sparse ones.
//!
//! ```text
//!   split   [a .. m]              ->  [a .. g] [g .. m]      one new block, and one new lower bound
//!   join    [a .. g] [g .. m]     ->  [a .. m]               either neighbour, if both fit into one
//! ```
//!
//! The caller holds `changing`. All leaves that take part are latched, so readers and writers wait, and then meet other
//! incarnations. The first leaf keeps its block and its place in the index.

use std::ops::{Bound, Range};

use spinney_leaf::{Bounds, Entry, Records, separator};

use crate::inner::Home;
use crate::leaf::{ABSENT, BLOCK_WORDS, Leaf, least_bytes, moved, words_of};
use crate::tree::{Held, Replaced, SPARSE_WORDS, Tree, replaced_at};

/// Words that two leaves take together at most when they are joined because one is sparse. With more, the next records split
/// the leaf again.
const JOINED_WORDS: usize = BLOCK_WORDS / 4 * 3;
/// The same when memory is short.
const DENSE_WORDS: usize = BLOCK_WORDS / 16 * 15;

impl Tree {
    /// Puts a record for which its leaf has no room: one half of the leaf moves to a new block.
    pub(crate) fn split(&self, held: Held<'_>, entry: Entry<'_>) -> Replaced {
        let (lower, upper) = held.bounds();
        let scratch = held.leaf.scratch();
        let source = Leaf::new(&scratch);
        let found = source.search(entry.key);
        let replaced = replaced_at(source, found);
        let all = Picked { source, found, entry };
        let bounds = Bounds { lower: &lower, upper: upper.as_deref() };
        // Where keys ascend, what is before the new one stays together, and full.
        let ascends = upper.is_none() && found == Err(all.len() - 1);
        let run = found.err().filter(|place| ascends || source.is_run(*place));
        let (cut, middle) = cut(&all, bounds, run);
        let right = Bounds { lower: &middle, ..bounds };
        let home = self.make_by(None, |leaf| all.write(leaf, right, cut..all.len()));
        let new = self.latch(home.block());
        let gap = held.leaf.gap();
        let is_quiet = self.gaps.is_quiet(gap);
        if !is_quiet {
            new.leaf.set_gap(gap);
        }
        self.index.insert(&middle, home);
        let left = Bounds { upper: Some(&middle), ..bounds };
        all.write(held.leaf, left, 0..cut);
        self.rewritten(&held, &lower);
        if run == Some(cut) {
            new.leaf.set_run(0);
        }
        if is_quiet {
            held.leaf.set_gap(held.leaf.incarnation());
        }
        let is_there = entry.flags & ABSENT == 0;
        self.count_records(usize::from(replaced.was_there), usize::from(is_there));
        drop(new);
        replaced
    }

    /// Enters a leaf that was written with other bounds in the index. Its lower bound stays.
    fn rewritten(&self, held: &Held<'_>, lower: &[u8]) {
        held.leaf.set_fresh();
        self.mark_changed(held.leaf);
        let home = Home::new(held.block, self.next_incarnation());
        self.index.insert(lower, home);
        held.leaf.set_incarnation(home.incarnation());
    }

    /// Joins the leaf of a key with a neighbour, if it has fewer words than these and both fit into one. Returns whether
    /// it did. The caller holds `changing`.
    pub(crate) fn join(&self, key: &[u8], sparse: usize) -> bool {
        let held = self.lock(key);
        if held.leaf.live_words() >= sparse {
            held.release_unchanged();
            return false;
        }
        let most = if sparse > SPARSE_WORDS { DENSE_WORDS } else { JOINED_WORDS };
        let (lower, upper) = held.bounds();
        let index = &self.index;
        let right = upper.as_deref().and_then(|upper| index.get(upper));
        let Err(held) = self.join_with(held, right, most) else { return true };
        let left = index.before(Bound::Excluded(&lower));
        let block = held.block;
        held.release_unchanged();
        let Some(left) = left else { return false };
        let left = self.latch(left.block());
        // Nobody else changes bounds.
        let home = index.get(&lower).filter(|home| home.block() == block);
        match self.join_with(left, home, most) {
            Ok(()) => true,
            Err(left) => {
                left.release_unchanged();
                false
            }
        }
    }

    /// Joins a leaf with the one that follows, if both fit into `most` words. Gives it back otherwise.
    fn join_with<'a>(
        &self,
        held: Held<'a>,
        right: Option<Home>,
        most: usize,
    ) -> Result<(), Held<'a>> {
        let Some(right) = right else { return Err(held) };
        let right = self.latch(right.block());
        if held.leaf.live_words() + right.leaf.live_words() > most {
            right.release_unchanged();
            return Err(held);
        }
        let mut all = Records::default();
        held.leaf.copy(&mut all);
        right.leaf.copy(&mut all);
        let ((lower, _), (middle, upper)) = (held.bounds(), right.bounds());
        let bounds = Bounds { lower: &lower, upper: upper.as_deref() };
        // Keys of both share less than those of one.
        if words_of(bounds, (0..all.len()).map(|index| all.lengths(index))) > most {
            right.release_unchanged();
            return Err(held);
        }
        let Some(gap) = self.joined_gap(held.leaf.gap(), right.leaf.gap()) else {
            right.release_unchanged();
            return Err(held);
        };
        held.leaf.set_gap(gap);
        self.index.remove(&middle);
        held.leaf.write(bounds, moved(&all, 0..all.len()));
        self.rewritten(&held, bounds.lower);
        let image = self.discard(right);
        self.gone.lock().extend(image);
        Ok(())
    }

    /// Returns the gap that has the marks of both that matter, if there is one.
    fn joined_gap(&self, left: u64, right: u64) -> Option<u64> {
        if left == right || self.gaps.is_quiet(right) {
            return Some(left);
        }
        self.gaps.is_quiet(left).then_some(right)
    }

    /// Joins leaves that are not full from a key on, and looks at `most` of them.
    pub(crate) fn join_some(&self, from: &[u8], most: usize) -> Joined {
        let mut all = Joined { next: Some(from.to_vec()), looked: 0, joined: 0 };
        while all.looked < most
            && let Some(at) = all.next.take()
        {
            all.looked += 1;
            let _alone = self.changing.lock();
            if self.join(&at, DENSE_WORDS) {
                all.joined += 1;
                all.next = Some(at);
                continue;
            }
            let held = self.lock(&at);
            let (_, upper) = held.bounds();
            held.release_unchanged();
            all.next = upper;
        }
        all
    }
}

/// What was done to leaves that follow each other.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Where the next one begins; `None` at the end of all keys.
    pub(crate) next: Option<Vec<u8>>,
    pub(crate) looked: usize,
    pub(crate) joined: usize,
}

/// The records of a leaf with one more, or with another value of one.
#[derive(Debug)]
struct Picked<'a> {
    source: Leaf<'a>,
    /// Where the one is, or would be.
    found: Result<usize, usize>,
    entry: Entry<'a>,
}

impl Picked<'_> {
    fn len(&self) -> usize {
        self.source.len() + usize::from(self.found.is_err())
    }

    /// Returns the index in the leaf; `None` for the one.
    fn pick(&self, index: usize) -> Option<usize> {
        match self.found {
            Ok(place) | Err(place) if index == place => None,
            Err(place) if index > place => Some(index - 1),
            _ => Some(index),
        }
    }

    fn lengths(&self, index: usize) -> (usize, usize) {
        let new = (self.entry.key.len(), self.entry.value.len());
        self.pick(index).map_or(new, |at| self.source.lengths(at))
    }

    fn key(&self, index: usize) -> Vec<u8> {
        let Some(at) = self.pick(index) else { return self.entry.key.to_vec() };
        let mut key = Vec::new();
        self.source.key(at, &mut key);
        key
    }

    fn write(&self, leaf: Leaf<'_>, bounds: Bounds<'_>, which: Range<usize>) {
        let about = self.found.map_or(0, |index| self.source.about(index));
        let picks = which.map(|index| self.pick(index));
        leaf.write_picked(bounds, self.source, picks, (self.entry, about));
    }
}

/// Returns where the second half begins, and what divides the halves. In a run it begins with the new record.
fn cut(all: &Picked<'_>, bounds: Bounds<'_>, run: Option<usize>) -> (usize, Vec<u8>) {
    let lengths = |from: usize, to: usize| (from..to).map(|index| all.lengths(index));
    let divided = |cut: usize| -> Option<Vec<u8>> {
        let middle = separator(&all.key(cut - 1), &all.key(cut));
        let left = words_of(Bounds { upper: Some(&middle), ..bounds }, lengths(0, cut));
        let right = words_of(Bounds { lower: &middle, ..bounds }, lengths(cut, all.len()));
        (left <= BLOCK_WORDS && right <= BLOCK_WORDS).then_some(middle)
    };
    let last = all.len() - 1;
    if let Some(cut) = run.filter(|cut| *cut > 0)
        && let Some(middle) = divided(cut)
    {
        return (cut, middle);
    }
    let weight = |(key, value): (usize, usize)| least_bytes(key, value);
    let total: usize = lengths(0, all.len()).map(weight).sum();
    let mut before = 0;
    let half = lengths(0, last).position(|lengths| {
        before += weight(lengths);
        before >= total / 2
    });
    let half = half.map_or(last, |index| index + 1);
    // The nearest cut that divides it into halves that fit.
    let near = (0..all.len()).flat_map(|away| [half.checked_sub(away), Some(half + away)]);
    let mut cuts = near.flatten().filter(|cut| (1..=last).contains(cut));
    let found = cuts.find_map(|cut| divided(cut).map(|middle| (cut, middle)));
    found.expect("a record takes at most a fifth of a leaf")
}
