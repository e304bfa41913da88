//! Changes of bounds: splits of full leaves, and joins of sparse ones.
//!
//! ```text
//!   split   [a .. m]              ->  [a .. g] [g .. m]      one new block, and one new lower bound
//!   join    [a .. g] [g .. m]     ->  [a .. m]               either neighbour, if both fit into one
//! ```
//!
//! The caller holds `changing`. All leaves that take part are latched, so readers and writers wait, and then meet other
//! incarnations. The first leaf keeps its block and its place in the index.

use std::ops::Bound;

use spinney_art::Direction;
use spinney_leaf::{Bounds, Entry, Records, separator};

use crate::leaf::{ABSENT, BLOCK_WORDS, Moved, moved, words_of};
use crate::tree::{Held, Home, Replaced, SPARSE_WORDS, Tree, replaced_at};

/// Words that two leaves take together at most when they are joined because one is sparse. With more, the next records split
/// the leaf again.
const JOINED_WORDS: usize = BLOCK_WORDS / 4 * 3;
/// The same when memory is short.
const DENSE_WORDS: usize = BLOCK_WORDS / 16 * 15;
/// Bytes of the head and the slot of a record.
const RECORD_BYTES: usize = 72;

impl Tree {
    /// Puts a record for which its leaf has no room: one half of the leaf moves to a new block.
    pub(crate) fn split(&self, held: Held<'_>, entry: Entry<'_>) -> Replaced {
        let (lower, upper) = held.bounds();
        let (all, replaced) = with(&held, entry);
        let bounds = Bounds { lower: &lower, upper: upper.as_deref() };
        let ascends = upper.is_none() && all.key(all.len() - 1) == entry.key;
        let (cut, middle) = cut(&all, bounds, ascends);
        let right = Bounds { lower: &middle, ..bounds };
        let home = self.make(right, moved(&all, cut..all.len()), None);
        let new = self.latch(home.block());
        self.index.load().insert(&middle, home);
        let left = Bounds { upper: Some(&middle), ..bounds };
        self.rewrite(&held, left, moved(&all, 0..cut));
        let is_there = entry.flags & ABSENT == 0;
        self.count_records(usize::from(replaced.was_there), usize::from(is_there));
        drop(new);
        replaced
    }

    /// Writes a leaf with other bounds, and enters it in the index. Its lower bound stays.
    fn rewrite<'e>(
        &self,
        held: &Held<'_>,
        bounds: Bounds<'_>,
        entries: impl Iterator<Item = Moved<'e>>,
    ) {
        held.leaf.write(bounds, entries);
        held.leaf.set_fresh();
        self.mark_changed(held.leaf);
        let home = Home::new(held.block, self.next_incarnation());
        self.index.load().insert(bounds.lower, home);
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
        let index = self.index.load();
        let right = upper.as_deref().and_then(|upper| index.get(upper));
        let Err(held) = self.join_with(held, right, most) else { return true };
        let left = index.neighbour(Bound::Excluded(&lower), Direction::Backward);
        let block = held.block;
        held.release_unchanged();
        let Some((_, left)) = left else { return false };
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
        self.index.load().remove(&middle);
        self.rewrite(&held, bounds, moved(&all, 0..all.len()));
        let image = self.discard(right);
        self.gone.lock().extend(image);
        Ok(())
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

/// Copies the records of a leaf with one more, or with another value of one.
fn with(held: &Held<'_>, entry: Entry<'_>) -> (Records, Replaced) {
    let (leaf, found) = (held.leaf, held.leaf.search(entry.key));
    let (mut before, mut all) = (Records::default(), Records::default());
    leaf.copy(&mut before);
    let push = |all: &mut Records, entry: Entry<'_>, cell: u64| {
        let key = |out: &mut Vec<u8>| out.extend_from_slice(entry.key);
        all.push((entry.flags, cell), key, |out| out.extend_from_slice(entry.value));
    };
    let (Ok(place) | Err(place)) = found;
    for index in 0..before.len() {
        if index == place {
            push(&mut all, entry, if found.is_ok() { before.about(index) } else { 0 });
        }
        if found != Ok(index) {
            push(&mut all, before.entry(index), before.about(index));
        }
    }
    if place == before.len() {
        push(&mut all, entry, 0);
    }
    (all, replaced_at(leaf, found))
}

/// Returns where the second half begins, and what divides the halves. Where keys ascend, the first half stays full.
fn cut(all: &Records, bounds: Bounds<'_>, ascends: bool) -> (usize, Vec<u8>) {
    let lengths = |from: usize, to: usize| (from..to).map(|index| all.lengths(index));
    let divided = |cut: usize| -> Option<Vec<u8>> {
        let middle = separator(all.key(cut - 1), all.key(cut));
        let left = words_of(Bounds { upper: Some(&middle), ..bounds }, lengths(0, cut));
        let right = words_of(Bounds { lower: &middle, ..bounds }, lengths(cut, all.len()));
        (left <= BLOCK_WORDS && right <= BLOCK_WORDS).then_some(middle)
    };
    let last = all.len() - 1;
    if ascends && let Some(middle) = divided(last) {
        return (last, middle);
    }
    let weight = |(key, value): (usize, usize)| (key + value) + RECORD_BYTES;
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
