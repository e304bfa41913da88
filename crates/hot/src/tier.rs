//! The tier: leaves found by their lower bounds, and what is done with single records.

use std::ops::Bound;

use spinney_base::ValueRef;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::shim::thread;
use spinney_leaf::{Bounds, Entry, Leaf};
use spinney_sync::racy::WORD_BYTES;
use spinney_sync::{LatchGuard, Stripes};

use crate::blocks::{BLOCK_BYTES, Block, Blocks, REFERENCE_MAX, References};
#[cfg(doc)]
use crate::hand::Hand;
use crate::index::Index;
use crate::leaf::{
    BLOCK_WORDS, DIRTY, GAP, GENERATION_BITS, LARGE, RECORDS_MAX, REMOVED, TierLeaf, WRITING,
};
use crate::records::Records;

/// Priority of a record that was put, and of one that was promoted, which leaves as soon as the hand
/// passes unless it is read again.
pub(crate) const PRIORITY_PUT: u64 = 1;
const PRIORITY_PROMOTED: u64 = 0;

/// Part of the tier that promoted records leave to puts, one in this many. With less, most puts sweep.
const FOR_PUTS_PART: u64 = 32;

/// The hot tier. Thread-safe.
#[derive(Debug)]
pub struct HotTier {
    /// Leaves by their lower bounds, of which the first is empty.
    pub(crate) index: Index,
    pub(crate) blocks: Blocks,
    generations: AtomicU64,
    target: AtomicU64,
    reserved: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) dirty: AtomicU64,
    /// Hits on records that the hand meets soon.
    soon_hits: Stripes<1>,
}

/// Which way a range goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Keys ascend.
    Forward,
    /// Keys descend.
    Backward,
}

/// Which block a leaf is in, and the generation of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u64);

impl Home {
    pub(crate) fn new(block: u32, generation: u64) -> Home {
        Home(u64::from(block) << GENERATION_BITS | generation)
    }

    pub(crate) fn block(self) -> u32 {
        (self.0 >> GENERATION_BITS) as u32
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 & ((1 << GENERATION_BITS) - 1)
    }
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// The key has a value, which was appended.
    Present,
    /// The key has a large value; the pointer was appended.
    Large,
    /// The key is known to have none.
    Absent,
    /// The tier does not have the key.
    Unknown,
}

/// What a put replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The tier did not have the key.
    Nothing,
    /// A clean record.
    Clean,
    /// A dirty record.
    Dirty,
    /// A dirty record that a sweep has copied.
    Writing,
}

/// A moment of one leaf: to admit what was read since (rule H3), and to set gap bits for it (rule H8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    home: Home,
    removals: u32,
}

/// Why nothing of a range enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Something has left the leaf since it was seen, or it is for other keys.
    Changed,
    /// There is no room.
    Full,
    /// It is as good as a page.
    Long,
}

/// Part of a range that one leaf has.
#[derive(Debug, Default)]
pub struct Piece {
    /// Its records, which ascend by key.
    pub records: Records,
    /// No cold record lies between the begin of the piece and its first record, or its end.
    pub starts_gap: bool,
    /// Bound up to which the piece goes forward; `None` at the end of all keys.
    pub upper: Option<Vec<u8>>,
    /// Bound down to which the leaf goes.
    pub lower: Vec<u8>,
    /// Moment of the leaf.
    pub seen: Option<Seen>,
    /// Slot of the first record.
    first: usize,
}

/// A leaf whose latch is held.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) block: u32,
    pub(crate) leaf: Leaf<'a>,
    pub(crate) references: References<'a>,
    pub(crate) guard: LatchGuard<'a>,
    #[cfg(test)]
    before: u64,
}

impl<'a> Held<'a> {
    pub(crate) fn new(
        block: u32,
        leaf: Leaf<'a>,
        references: References<'a>,
        guard: LatchGuard<'a>,
    ) -> Held<'a> {
        Held {
            block,
            leaf,
            references,
            guard,
            #[cfg(test)]
            before: leaf.sum(),
        }
    }

    /// Gives the latch back. What is read beside is as good as before, so nothing of the leaf may have changed.
    pub(crate) fn release_unchanged(self) {
        #[cfg(test)]
        assert_eq!(self.leaf.sum(), self.before, "readers beside a change would not look again");
        self.guard.release_unchanged();
    }

    /// Whether the leaf is for the same keys as at that moment, and nothing has left it since.
    fn is_as(&self, seen: Seen) -> bool {
        self.leaf.generation() == seen.home.generation() && self.leaf.removals() == seen.removals
    }

    /// Whether the leaf is for a key.
    fn is_for(&self, key: &[u8]) -> bool {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        self.leaf.lower(&mut lower);
        key >= &lower[..] && (!self.leaf.upper(&mut upper) || key < &upper[..])
    }

    /// Whether the keys of another leaf begin where those of this one end.
    pub(crate) fn lies_before(&self, next: &Held<'_>) -> bool {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        next.leaf.lower(&mut lower);
        self.leaf.upper(&mut upper) && upper == lower
    }
}

impl HotTier {
    /// Makes an empty tier that may have about `bytes` bytes.
    #[must_use]
    pub fn new(bytes: u64) -> HotTier {
        let (blocks, generation) = (Blocks::default(), 1);
        let block = blocks.take();
        let all = Bounds { lower: &[], upper: None };
        blocks.block(block).leaf.write_all(all, (generation, false), std::iter::empty());
        HotTier {
            index: Index::new(Home::new(block, generation)),
            blocks,
            generations: AtomicU64::new(generation),
            target: AtomicU64::new(bytes),
            reserved: AtomicU64::new(0),
            records: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            soon_hits: Stripes::default(),
        }
    }

    /// Follows a new size in bytes. Records above it leave as the hand passes.
    pub fn resize(&self, bytes: u64) {
        self.target.store(bytes, Relaxed);
    }

    /// Returns the bytes that it may have.
    #[must_use]
    pub fn target(&self) -> u64 {
        self.target.load(Relaxed)
    }

    /// Returns the bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.bytes() + self.index.bytes()
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.records.load(Relaxed)
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns about how many bytes the dirty records of a range take, if all are as long as those of its first leaf.
    #[must_use]
    pub fn dirty_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let (within, all) = self.index.count(lower, upper);
        let held = self.lock(lower);
        let count = held.leaf.len();
        let bytes = (held.leaf.live() + count) * WORD_BYTES + count * held.leaf.prefix_bytes();
        held.release_unchanged();
        self.dirty() * within as u64 / all.max(1) as u64 * (bytes / count.max(1)) as u64
    }

    /// Returns the number of dirty records.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    /// Returns the hits so far on records that the hand was about to meet, of one record in
    /// [`Hand::SOON_PART`]: what a tier that is smaller by this part would have missed, and about what
    /// one that is larger would gain.
    #[must_use]
    pub fn soon_hits(&self) -> u64 {
        self.soon_hits.sum(0)
    }

    /// Reserves room for a record. Returns `false` where a sweep has to make some first.
    #[must_use]
    pub fn reserve(&self, key: usize, value: usize) -> bool {
        let bytes = Self::bytes_of(key, value);
        let reserved = self.reserved.fetch_add(bytes, Relaxed) + bytes;
        let fits = self.bytes() + reserved <= self.target.load(Relaxed);
        if !fits {
            self.reserved.fetch_sub(bytes, Relaxed);
        }
        fits
    }

    /// Gives reserved room back, after the put or instead of it.
    pub fn release(&self, key: usize, value: usize) {
        self.reserved.fetch_sub(Self::bytes_of(key, value), Relaxed);
    }

    /// Bytes that a record takes at most, with its share of what leaves leave unused.
    fn bytes_of(key: usize, value: usize) -> u64 {
        (key + value + 24) as u64 * 5 / 4
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Relaxed) + 1
    }

    /// Looks a key up, which makes it more likely to stay.
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.look_up(key, out, true).0
    }

    /// Looks a key up without that.
    pub fn peek(&self, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.look_up(key, out, false).0
    }

    /// As [`HotTier::get`]; also returns the moment of the look-up, to admit what is read next.
    #[inline]
    pub fn look(&self, key: &[u8], out: &mut Vec<u8>) -> (Cached, Seen) {
        self.look_up(key, out, true)
    }

    #[inline]
    fn look_up(&self, key: &[u8], out: &mut Vec<u8>, is_use: bool) -> (Cached, Seen) {
        let start = out.len();
        loop {
            let home = self.index.find(key);
            let Block { leaf, latch, references } = self.blocks.block(home.block());
            let version = latch.version();
            if leaf.generation() == home.generation() {
                let (found, is_soon) = (leaf.search(key), leaf.is_soon());
                let seen = Seen { home, removals: leaf.removals() };
                let slot = found.ok().map(|index| leaf.slot(index));
                if let Some(slot) = slot.filter(|slot| !slot.is(REMOVED)) {
                    leaf.value(slot, out);
                }
                if latch.validate(version) {
                    let (Ok(index), Some(slot)) = (found, slot) else {
                        return (Cached::Unknown, seen);
                    };
                    if is_use {
                        references.touch(index);
                        if is_soon {
                            self.soon_hits.add(0, 1);
                        }
                    }
                    let cached = match slot.flags() & (REMOVED | LARGE) {
                        0 => Cached::Present,
                        LARGE => Cached::Large,
                        _ => Cached::Absent,
                    };
                    return (cached, seen);
                }
                out.truncate(start);
            } else {
                // Its bounds change just now.
                thread::yield_now();
            }
        }
    }

    /// Latches the leaf for a key.
    pub(crate) fn lock(&self, key: &[u8]) -> Held<'_> {
        loop {
            let home = self.index.find(key);
            let held = self.latch(home.block());
            if held.leaf.generation() == home.generation() {
                debug_assert!(held.is_for(key), "the index leads to another leaf");
                return held;
            }
            held.release_unchanged();
            thread::yield_now();
        }
    }

    /// Latches a block, whatever it is.
    pub(crate) fn latch(&self, block: u32) -> Held<'_> {
        let Block { leaf, latch, references } = self.blocks.block(block);
        Held::new(block, leaf, references, latch.lock())
    }

    /// Puts a dirty record, for which room was reserved. Returns what it replaced; if that is the
    /// pointer to a large value, it is appended to `replaced`.
    pub fn put(&self, key: &[u8], value: Option<ValueRef<'_>>, replaced: &mut Vec<u8>) -> Replaced {
        let entry = entry_of(key, value, DIRTY);
        let held = self.lock(key);
        let Ok(index) = held.leaf.search(key) else {
            let held = self.with_room(held, key, |leaf| words_of(leaf, entry));
            self.insert(&held, entry);
            self.dirty.fetch_add(1, Relaxed);
            return Replaced::Nothing;
        };
        let slot = held.leaf.slot(index);
        if slot.is(LARGE) {
            held.leaf.value(slot, replaced);
        }
        self.replace(held, index, entry);
        match slot.flags() & (DIRTY | WRITING) {
            0 => {
                self.dirty.fetch_add(1, Relaxed);
                Replaced::Clean
            }
            DIRTY => Replaced::Dirty,
            _ => Replaced::Writing,
        }
    }

    /// Admits a clean record that was read from the cold structure after a look that missed it, whose moment
    /// is `seen` (rule H3). Whatever replaced it since is here, or has left the leaf, which is
    /// counted. Returns whether it has entered.
    pub fn admit(&self, key: &[u8], value: Option<ValueRef<'_>>, seen: Seen) -> bool {
        matches!(self.admit_all(&[(key, value)], seen), Ok((_, 1)))
    }

    /// Admits all of what was read from the cold structure from the bound `from` up to `to`, of which `None` is the
    /// end of all keys, and sets gap bits between (rule H8): all that is not here yet enters, or nothing. Keys
    /// ascend, and so few bytes are asked for that a short range takes less memory than its page: those of
    /// [`RECORD_BYTES_MAX`] at most, about. Of a key that is excluded nothing is known.
    ///
    /// Returns how many have entered.
    ///
    /// # Errors
    /// Why none has.
    pub fn admit_run(
        &self,
        records: &[(&[u8], Option<ValueRef<'_>>)],
        (from, to): (Bound<&[u8]>, Option<&[u8]>),
        seen: Seen,
    ) -> Result<u64, Refused> {
        let (held, entered) = self.admit_all(records, seen)?;
        close_gaps(held.leaf, from, to);
        Ok(entered)
    }

    /// Admits what is not here yet of what was read. Returns the leaf, and how many have entered: where it had to be
    /// divided, only those that are its own now.
    fn admit_all(
        &self,
        records: &[(&[u8], Option<ValueRef<'_>>)],
        seen: Seen,
    ) -> Result<(Held<'_>, u64), Refused> {
        let held = self.latch(seen.home.block());
        if !held.is_as(seen) {
            held.release_unchanged();
            return Err(Refused::Changed);
        }
        let is_new = |leaf: Leaf<'_>, key: &[u8]| leaf.search(key).is_err();
        let all = records.iter().map(|(key, value)| entry_of(key, *value, 0));
        let new: Vec<Entry<'_>> = all.filter(|entry| is_new(held.leaf, entry.key)).collect();
        let words = |leaf: Leaf<'_>| new.iter().map(|entry| words_of(leaf, *entry)).sum();
        let asked: usize = words(held.leaf);
        let refused = match held.leaf.spare_words() < asked {
            _ if new.len() > 1 && asked > RUN_WORDS_MAX => Some(Refused::Long),
            true if self.is_full() => Some(Refused::Full),
            _ => None,
        };
        if let Some(refused) = refused {
            held.release_unchanged();
            return Err(refused);
        }
        let Some(first) = new.first() else { return Ok((held, 0)) };
        let mut held = held;
        loop {
            // Keys of several leaves share less than those of one, so after a division it may be as long as a page.
            let words = words_within(held.leaf, &new);
            if held.leaf.free_words() >= words {
                break;
            }
            if new.len() > 1 && words > RUN_WORDS_MAX {
                return Err(Refused::Long);
            }
            held = self.make_room(held, words, first.key);
        }
        let mut entered = 0;
        for entry in within(held.leaf, &new) {
            self.insert(&held, *entry);
            entered += 1;
        }
        Ok((held, entered))
    }

    /// Makes a clean record dirty, because the cold structure is about to lose it. Returns whether it was here, and
    /// clean.
    pub fn own(&self, key: &[u8]) -> bool {
        let held = self.lock(key);
        let leaf = held.leaf;
        let found = leaf.search(key).ok().map(|index| (index, leaf.slot(index).flags()));
        let Some((index, flags)) =
            found.filter(|(_, flags)| flags & (DIRTY | WRITING | REMOVED) == 0)
        else {
            held.release_unchanged();
            return false;
        };
        leaf.set_flags(index, flags | DIRTY);
        self.dirty.fetch_add(1, Relaxed);
        true
    }

    /// Returns whether there is no room for another leaf of clean records: some is kept for puts.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let target = self.target.load(Relaxed);
        let taken = self.bytes() + self.reserved.load(Relaxed) + BLOCK_BYTES;
        taken > target - target / FOR_PUTS_PART
    }

    /// Sees to it that words are free in a leaf for a key and what comes with it. Returns the leaf that is for the key
    /// now: as long as it is latched, what was known of its keys is so still.
    fn with_room<'a>(
        &'a self,
        held: Held<'a>,
        key: &[u8],
        words: impl Fn(Leaf<'_>) -> usize,
    ) -> Held<'a> {
        let mut held = held;
        loop {
            // Keys of several leaves share less than those of one.
            let words = words(held.leaf);
            if held.leaf.free_words() >= words {
                return held;
            }
            held = self.make_room(held, words, key);
        }
    }

    /// Inserts a record that is not there, for which words are free.
    fn insert(&self, held: &Held<'_>, entry: Entry<'_>) {
        let leaf = held.leaf;
        let index = leaf.search(entry.key).unwrap_or_else(|at| at);
        let gap = match index.checked_sub(1) {
            Some(before) => leaf.slot(before).flags() & GAP,
            None if leaf.starts_gap() => GAP,
            None => 0,
        };
        let is_put = entry.flags & DIRTY != 0;
        let priority = if is_put { PRIORITY_PUT } else { PRIORITY_PROMOTED };
        held.references.insert(index, priority, leaf.len());
        leaf.insert(index, Entry { flags: entry.flags | gap, ..entry });
        self.records.fetch_add(1, Relaxed);
    }

    /// Replaces a record, in one step; nothing changes of the gap behind it.
    fn replace(&self, held: Held<'_>, index: usize, entry: Entry<'_>) {
        held.references.touch(index);
        let (mut held, mut index) = (held, index);
        loop {
            let (leaf, slot) = (held.leaf, held.leaf.slot(index));
            let entry = Entry { flags: entry.flags | slot.flags() & GAP, ..entry };
            if leaf.overwrite(index, entry) {
                return;
            }
            let words = words_of(leaf, entry);
            if leaf.spare_words() + 1 + slot.words() >= words {
                leaf.take_out(index);
                if leaf.free_words() < words {
                    self.compact(&held);
                }
                leaf.insert(index, entry);
                return;
            }
            held = self.make_room(held, words, entry.key);
            index = held.leaf.search(entry.key).expect("what is latched stays");
        }
    }

    /// Looks at the part of a range that one leaf has: from `from` on forward, or below it backward,
    /// where `None` is the end of all keys; at most `most` records.
    pub fn range(&self, from: Option<&[u8]>, direction: Direction, most: usize, piece: &mut Piece) {
        self.range_to((from, None), direction, most, piece);
    }

    /// Does the same; forward, it ends with the first record at or above the second bound: a short range copies little
    /// of its leaf.
    pub fn range_to(
        &self,
        (from, to): (Option<&[u8]>, Option<&[u8]>),
        direction: Direction,
        most: usize,
        piece: &mut Piece,
    ) {
        loop {
            let home = match (direction, from) {
                (Direction::Forward, from) => self.index.find(from.unwrap_or_default()),
                (Direction::Backward, Some(key)) => {
                    let Some((_, home)) = self.index.before(key, false) else {
                        // Nothing lies below the first key.
                        *piece = Piece { starts_gap: true, ..Piece::default() };
                        return;
                    };
                    home
                }
                (Direction::Backward, None) => self.index.last(),
            };
            let Block { leaf, latch, references } = self.blocks.block(home.block());
            let version = latch.version();
            if leaf.generation() == home.generation() {
                look(leaf, references, (from, to, direction, most), piece);
                piece.seen = Some(Seen { home, removals: leaf.removals() });
                if latch.validate(version) {
                    return;
                }
            } else {
                thread::yield_now();
            }
        }
    }

    /// Notes a use of the first `count` records of a piece, in its direction, which makes them more likely to
    /// stay.
    pub fn touch(&self, piece: &Piece, direction: Direction, count: usize) {
        let Some(seen) = piece.seen else { return };
        let Block { leaf, references, .. } = self.blocks.block(seen.home.block());
        if leaf.generation() != seen.home.generation() {
            return;
        }
        let (first, end) = (piece.first, piece.first + piece.records.len());
        let touched = match direction {
            Direction::Forward => first..end.min(first + count),
            Direction::Backward => first.max(end.saturating_sub(count))..end,
        };
        if leaf.is_soon() {
            self.soon_hits.add(0, touched.len() as u64);
        }
        // Slots may have moved since: a bit in the wrong place changes only what leaves next.
        touched.filter(|slot| *slot < RECORDS_MAX).for_each(|slot| references.touch(slot));
    }
}

/// Sets the gap bits of all that lies between two keys in a leaf: nothing has left it since the cold structure was read
/// from the bound `from` up to `to`, and it has all that was found.
fn close_gaps(leaf: Leaf<'_>, from: Bound<&[u8]>, to: Option<&[u8]>) {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    leaf.lower(&mut lower);
    let has_upper = leaf.upper(&mut upper);
    // Span 0 lies before the first record, span n behind the n-th one.
    let count = leaf.len();
    let behind = |key: &[u8]| match has_upper && key >= &upper[..] {
        true => count + 1,
        false => leaf.search(key).unwrap_or_else(|at| at) + 1,
    };
    let first = match from {
        Bound::Unbounded => 0,
        Bound::Included(key) if key <= &lower[..] => 0,
        Bound::Excluded(key) if key < &lower[..] => 0,
        Bound::Included(key) | Bound::Excluded(key) => behind(key),
    };
    let end = match to {
        Some(to) if to <= &lower[..] => 0,
        Some(to) if !has_upper || to < &upper[..] => match leaf.search(to) {
            Ok(at) => at + 1,
            Err(at) => at,
        },
        _ => count + 1,
    };
    for span in first..end.max(first) {
        match span.checked_sub(1) {
            None => leaf.set_starts_gap(true),
            Some(index) => leaf.set_flags(index, leaf.slot(index).flags() | GAP),
        }
    }
}

/// The first of these records, whose keys ascend, that a leaf is for.
fn within<'e>(leaf: Leaf<'_>, records: &'e [Entry<'e>]) -> &'e [Entry<'e>] {
    let mut upper = Vec::new();
    let has_upper = leaf.upper(&mut upper);
    let count = records.partition_point(|entry| !has_upper || entry.key < &upper[..]);
    &records[..count]
}

/// Words that these of them take in it.
fn words_within(leaf: Leaf<'_>, records: &[Entry<'_>]) -> usize {
    within(leaf, records).iter().map(|entry| words_of(leaf, *entry)).sum()
}

/// Words that a record takes in a leaf that is for it, with its slot.
fn words_of(leaf: Leaf<'_>, entry: Entry<'_>) -> usize {
    leaf.words_for(entry.key.len(), entry.value.len())
}

/// Copies what a leaf has of a range.
fn look(
    leaf: Leaf<'_>,
    references: References<'_>,
    (from, to, direction, most): (Option<&[u8]>, Option<&[u8]>, Direction, usize),
    piece: &mut Piece,
) {
    piece.records.clear();
    piece.lower.clear();
    leaf.lower(&mut piece.lower);
    let mut upper = piece.upper.take().unwrap_or_default();
    upper.clear();
    piece.upper = leaf.upper(&mut upper).then_some(upper);
    let count = leaf.len();
    // A leaf is searched only for keys that it may have: others do not begin as its keys do.
    let at = |key: &[u8]| match piece.upper.as_deref() {
        Some(upper) if key >= upper => count,
        _ if key <= &piece.lower[..] => 0,
        _ => leaf.search(key).unwrap_or_else(|at| at),
    };
    let places = match direction {
        Direction::Forward => {
            let begin = from.map_or(0, at);
            // One record at least: without any, a range that goes on behind the piece comes no further.
            let end = to.map_or(count, |to| at(to).max(begin) + 1);
            begin..count.min(begin.saturating_add(most)).min(end)
        }
        Direction::Backward => {
            let end = from.map_or(count, at);
            end.saturating_sub(most)..end
        }
    };
    piece.starts_gap = match places.start.checked_sub(1) {
        Some(before) => leaf.slot(before).is(GAP),
        None => leaf.starts_gap(),
    };
    // Where `most` ends the piece, it ends before the next record, or begins with the last one.
    if direction == Direction::Forward && places.end < count {
        let mut key = Vec::new();
        leaf.key(leaf.slot(places.end), &mut key);
        piece.upper = Some(key);
    }
    if direction == Direction::Backward && places.start > 0 {
        piece.lower.clear();
        leaf.key(leaf.slot(places.start), &mut piece.lower);
        piece.starts_gap = true;
    }
    piece.first = places.start;
    for index in places {
        let slot = leaf.slot(index);
        let priority = references.get(index);
        piece.records.0.push(
            (slot.flags(), priority),
            |out| leaf.key(slot, out),
            |out| leaf.value(slot, out),
        );
    }
}

/// The record of a key with this value.
fn entry_of<'a>(key: &'a [u8], value: Option<ValueRef<'a>>, flags: u8) -> Entry<'a> {
    let (value, more): (&[u8], u8) = match value {
        None => (&[], REMOVED),
        Some(ValueRef { bytes, large: true }) => (bytes, LARGE),
        Some(ValueRef { bytes, large: false }) => (bytes, 0),
    };
    Entry { key, value, flags: flags | more }
}

/// Longest key and value together, in bytes: a quarter of a block less what bounds may take.
pub const RECORD_BYTES_MAX: usize = 4_040;
const _: () = assert!(cfg!(feature = "shuttle") || RECORD_BYTES_MAX / 8 < BLOCK_WORDS / 4);
/// Most words of several records that enter at once: a leaf can be divided for any record, so for as many words.
const RUN_WORDS_MAX: usize =
    if cfg!(feature = "shuttle") { BLOCK_WORDS } else { RECORD_BYTES_MAX / WORD_BYTES };
const _: () = assert!(PRIORITY_PUT <= REFERENCE_MAX);
