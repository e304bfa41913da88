//! All leaves, and the index that leads to them.
//!
//! ```text
//!   index: lower bound -> block       block 0            block 7              block 3
//!   "" -> 0, "cat" -> 7, "dog" -> 3   [ant .. bee]  ->   [cat .. cow]   ->    [dog .. yak]
//! ```
//!
//! The index says for each leaf the block and the *incarnation* of its bounds, and the block says its incarnation too.
//! Bounds of an incarnation never change, so a thread that the index leads to a block compares the two, and looks
//! again where they differ.
//!
//! **Readers** take the version of the leaf's latch, check the incarnation, read, and validate the version.
//! **Writers** of records hold the latch of one leaf. **Changes of bounds** (`shape`) hold `changing` and the latches of
//! all leaves that take part: lower bounds that are no longer ones leave the index first, then new ones enter, and
//! the first leaf, whose lower bound stays, gets its new incarnation last, while all are latched.
//!
//! **Lock order**: `changing`, then latches. A thread without `changing` holds one latch at most and waits for
//! nothing while it does.

use std::sync::Arc;

use spinney_base::ValueRef;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::shim::{Mutex, thread};
use spinney_engine::{Found, OlderImage, Patch};
use spinney_leaf::{Bounds, Entry};
use spinney_ssn::Cells;
use spinney_sync::{Beside, Blocks, LatchGuard, Stripes, VersionLatch};

use crate::gaps::Gaps;
use crate::inner::{Home, Index};
use crate::leaf::{ABSENT, BLOCK_BYTES, BLOCK_WORDS, Data, Leaf, Moved, flags_of};
use crate::near::{Near, find};
use crate::older::{keep_image, keep_replaced, keep_undo};
use crate::place::Place;

/// Words in use up to which a leaf is sparse. With more, leaves are joined and split for little; with less, removed
/// records leave memory unused.
pub(crate) const SPARSE_WORDS: usize = BLOCK_WORDS / 4;

/// Counters of the tree.
const RECORDS: usize = 0;
const CHANGED: usize = 1;

/// Latches of the blocks of a chunk.
#[derive(Debug)]
pub(crate) struct Latches(Box<[VersionLatch]>);

impl Beside for Latches {
    fn of(blocks: usize) -> Latches {
        Latches((0..blocks).map(|_| VersionLatch::new()).collect())
    }
}

/// Headers that are fetched ahead of the one that is looked at. With more, those that are fetched first may be gone again;
/// with fewer, each is waited for.
const FETCHED_AHEAD: usize = 16;

/// A leaf whose latch is held.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) leaf: Leaf<'a>,
    pub(crate) block: u32,
    pub(crate) guard: LatchGuard<'a>,
}

impl Held<'_> {
    /// Gives it back as it was.
    pub(crate) fn release_unchanged(self) {
        self.guard.release_unchanged();
    }

    /// Returns its bounds.
    pub(crate) fn bounds(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut lower = Vec::new();
        self.leaf.lower(&mut lower);
        (lower, self.upper())
    }

    /// Returns its upper bound, `None` at the end of all keys.
    pub(crate) fn upper(&self) -> Option<Vec<u8>> {
        let mut upper = Vec::new();
        self.leaf.upper(&mut upper).then_some(upper)
    }
}

/// What a write has replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replaced {
    /// Whether the key had a value.
    pub(crate) was_there: bool,
    /// The pointer to a large one; empty if it was none.
    pub(crate) pointer: Vec<u8>,
}

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) blocks: Blocks<Latches>,
    /// A bulk load brings one of its own.
    pub(crate) index: Index,
    /// Held while bounds change.
    pub(crate) changing: Mutex<()>,
    incarnations: AtomicU64,
    counts: Stripes<2>,
    pub(crate) gaps: Gaps,
    /// Stamps and older images of records that were written while transactions ran.
    pub(crate) cells: Arc<Cells<OlderImage>>,
    /// Images of leaves that were joined to others. Nothing but slots names them.
    pub(crate) gone: Mutex<Vec<Place>>,
}

impl Tree {
    /// Makes a tree without records, which has one leaf.
    pub(crate) fn new(gaps: Gaps) -> Tree {
        let tree = Tree {
            blocks: Blocks::new(BLOCK_WORDS),
            index: Index::new(),
            changing: Mutex::new(()),
            incarnations: AtomicU64::new(0),
            counts: Stripes::default(),
            gaps,
            cells: Arc::default(),
            gone: Mutex::new(Vec::new()),
        };
        let home = tree.make(Bounds { lower: &[], upper: None }, std::iter::empty(), None);
        tree.index.insert(&[], home);
        tree
    }

    /// Returns an incarnation that no leaf has had.
    pub(crate) fn next_incarnation(&self) -> u64 {
        self.incarnations.fetch_add(1, Relaxed) + 1
    }

    /// Makes a leaf that no index leads to yet. It is as on disk at the place, or changed. Its records are not counted.
    pub(crate) fn make<'e>(
        &self,
        bounds: Bounds<'_>,
        entries: impl Iterator<Item = Moved<'e>>,
        image: Option<Place>,
    ) -> Home {
        self.make_by(image, |leaf| leaf.write(bounds, entries))
    }

    /// Does the same with what `write` writes.
    pub(crate) fn make_by(&self, image: Option<Place>, write: impl FnOnce(Leaf<'_>)) -> Home {
        let held = self.latch(self.blocks.take());
        write(held.leaf);
        held.leaf.set_image(image);
        held.leaf.set_changed(false);
        if image.is_none() {
            self.mark_changed(held.leaf);
        }
        let home = Home::new(held.block, self.next_incarnation());
        held.leaf.set_gap(home.incarnation());
        held.leaf.set_incarnation(home.incarnation());
        home
    }

    /// Frees a leaf that no index leads to any more. Returns its image.
    pub(crate) fn discard(&self, held: Held<'_>) -> Option<Place> {
        let (leaf, block) = (held.leaf, held.block);
        self.clear_changed(leaf);
        leaf.set_incarnation(0);
        let image = leaf.image();
        drop(held);
        self.blocks.give(block);
        image
    }

    /// Notes that the image of a leaf lacks a change. The holder's.
    pub(crate) fn mark_changed(&self, leaf: Leaf<'_>) {
        if !leaf.is_changed() {
            leaf.set_changed(true);
            self.counts.add(CHANGED, 1);
        }
    }

    /// Notes that the image of a leaf has all of it. The holder's.
    pub(crate) fn clear_changed(&self, leaf: Leaf<'_>) {
        if leaf.is_changed() {
            leaf.set_changed(false);
            self.counts.add(CHANGED, 1_u64.wrapping_neg());
        }
    }

    /// Counts that there are `after` records where there were `before`.
    pub(crate) fn count_records(&self, before: usize, after: usize) {
        self.counts.add(RECORDS, (after as u64).wrapping_sub(before as u64));
    }

    /// Number of records.
    pub(crate) fn records(&self) -> u64 {
        self.counts.sum_of_signed(RECORDS)
    }

    /// Number of leaves whose images lack changes.
    pub(crate) fn changed(&self) -> u64 {
        self.counts.sum_of_signed(CHANGED)
    }

    /// Number of leaves.
    pub(crate) fn leaves(&self) -> u64 {
        self.blocks.used()
    }

    /// Bytes of memory of leaves.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        self.leaves() * (BLOCK_BYTES + size_of::<VersionLatch>()) as u64
    }

    /// Bytes of memory of the index.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.leaf_bytes() + self.index_bytes()
    }

    /// Returns a block and its latch.
    #[inline]
    pub(crate) fn block(&self, block: u32) -> (Leaf<'_>, &VersionLatch) {
        let (words, latches, index) = self.blocks.block(block);
        (Leaf::new(words), &latches.0[index])
    }

    /// Latches a block, whatever its incarnation.
    pub(crate) fn latch(&self, block: u32) -> Held<'_> {
        let (leaf, latch) = self.block(block);
        Held { leaf, block, guard: latch.lock() }
    }

    /// Latches a block if its incarnation is still this one.
    pub(crate) fn latch_if(&self, home: Home) -> Option<Held<'_>> {
        let held = self.latch(home.block());
        held.leaf.fetch_fences();
        if held.leaf.incarnation() == home.incarnation() {
            return Some(held);
        }
        held.release_unchanged();
        None
    }

    /// Returns the leaf that the index has for a key.
    #[inline]
    fn home_of(&self, key: &[u8]) -> Home {
        self.index.floor(key).expect("the first leaf begins before all keys")
    }

    /// Latches the leaf of a key.
    pub(crate) fn lock(&self, key: &[u8]) -> Held<'_> {
        loop {
            if let Some(held) = self.latch_if(self.home_of(key)) {
                return held;
            }
            thread::yield_now();
        }
    }

    /// Calls `read` with the leaf that `find` names until nothing has changed meanwhile. `None` if there is none.
    pub(crate) fn read<T>(
        &self,
        find: impl Fn(&Index) -> Option<Home>,
        mut read: impl FnMut(Leaf<'_>) -> T,
    ) -> Option<T> {
        self.read_home(find, |leaf, _| read(leaf))
    }

    /// Does the same with the home of the leaf.
    pub(crate) fn read_home<T>(
        &self,
        find: impl Fn(&Index) -> Option<Home>,
        mut read: impl FnMut(Leaf<'_>, Home) -> T,
    ) -> Option<T> {
        loop {
            let home = find(&self.index)?;
            let (leaf, latch) = self.block(home.block());
            leaf.fetch_fences();
            let version = latch.version();
            if leaf.incarnation() == home.incarnation() {
                let answer = read(leaf, home);
                if latch.validate(version) {
                    return Some(answer);
                }
            } else {
                thread::yield_now();
            }
        }
    }

    /// Calls `read` with the leaf of a home. `None` if it is none any more, or changes meanwhile.
    pub(crate) fn try_read<T>(&self, home: Home, read: impl FnOnce(Leaf<'_>) -> T) -> Option<T> {
        let (leaf, latch) = self.block(home.block());
        let version = latch.version();
        if leaf.incarnation() != home.incarnation() {
            return None;
        }
        let answer = read(leaf);
        latch.validate(version).then_some(answer)
    }

    /// Appends the value of a key, or the pointer to it.
    pub(crate) fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Found {
        let start = out.len();
        let found = self.read(
            |index| index.floor(key),
            |leaf| {
                out.truncate(start);
                let Ok(index) = leaf.search(key) else { return Found::Absent };
                let data = leaf.data(index);
                if data.is_absent() {
                    return Found::Absent;
                }
                leaf.value(data, out);
                if data.is_large() { Found::Large } else { Found::Inline }
            },
        );
        found.expect("the first leaf begins before all keys")
    }

    /// Gives a key a value.
    pub(crate) fn put(&self, key: &[u8], value: ValueRef<'_>, near: Option<Near>) -> Replaced {
        self.put_entry(Entry { key, value: value.bytes, flags: flags_of(value) }, near)
    }

    /// Adds an absent record for a key, unless the leaf has one of it.
    pub(crate) fn add_absent(&self, key: &[u8], value: &[u8]) {
        self.put_entry(Entry { key, value, flags: ABSENT }, None);
    }

    fn put_entry(&self, entry: Entry<'_>, near: Option<Near>) -> Replaced {
        let held = self.lock_near(near, entry.key);
        if let Some(replaced) = self.put_held(&held, find(held.leaf, near, entry.key), entry) {
            return replaced;
        }
        drop(held);
        let _alone = self.changing.lock();
        // Others may have made room meanwhile; from here on none changes bounds.
        let held = self.lock(entry.key);
        match self.put_held(&held, held.leaf.search(entry.key), entry) {
            Some(replaced) => replaced,
            None => self.split(held, entry),
        }
    }

    /// Puts a record into its leaf, at its index or where it would be, if there is room. An absent one replaces none.
    pub(crate) fn put_held(
        &self,
        held: &Held<'_>,
        index: Result<usize, usize>,
        entry: Entry<'_>,
    ) -> Option<Replaced> {
        let is_absent = entry.flags & ABSENT != 0;
        if is_absent && index.is_ok() {
            return Some(Replaced::default());
        }
        let replaced = replaced_at(held.leaf, index);
        if let Ok(index) = index {
            keep_replaced(&self.cells, held.leaf, index, entry);
        }
        if !held.leaf.put(index, entry) {
            return None;
        }
        if is_absent {
            // No image has it.
            return Some(replaced);
        }
        self.mark_changed(held.leaf);
        self.count_records(usize::from(replaced.was_there), 1);
        Some(replaced)
    }

    /// Replaces parts of a key's value. Returns false, and changes nothing, if it is not in the leaf or the patch does
    /// not fit.
    pub(crate) fn patch(&self, key: &[u8], patch: Patch<'_>, near: Option<Near>) -> bool {
        let held = self.lock_near(near, key);
        let place = find(held.leaf, near, key).map(|index| (index, held.leaf.data(index)));
        let fits = |data: Data| data.is_inline() && patch.end() <= data.value_bytes();
        let Some((index, data)) = place.ok().filter(|(_, data)| fits(*data)) else {
            held.release_unchanged();
            return false;
        };
        keep_undo(&self.cells, held.leaf, index, patch);
        held.leaf.patch(data, patch);
        self.mark_changed(held.leaf);
        true
    }

    /// Takes a key's record away.
    pub(crate) fn remove(&self, key: &[u8], near: Option<Near>) -> Replaced {
        let held = self.lock_near(near, key);
        let index = find(held.leaf, near, key);
        let replaced = replaced_at(held.leaf, index);
        if let Ok(index) = index {
            // Older readers ask for "no value", too.
            keep_image(&self.cells, held.leaf, index);
        }
        let Some(index) = index.ok().filter(|_| replaced.was_there) else {
            held.release_unchanged();
            return replaced;
        };
        if held.leaf.cell(index).is_some() {
            let is_in = held.leaf.put(Ok(index), Entry { key, value: &[], flags: ABSENT });
            assert!(is_in, "without a value it is shorter");
        } else {
            held.leaf.remove(index);
        }
        self.mark_changed(held.leaf);
        self.count_records(1, 0);
        let is_sparse = held.leaf.live_words() < SPARSE_WORDS;
        drop(held);
        if is_sparse {
            self.try_join(key);
        }
        replaced
    }

    /// Joins a sparse leaf, unless another thread changes bounds now: that may do it as well.
    pub(crate) fn try_join(&self, key: &[u8]) {
        if let Some(_alone) = self.changing.try_lock() {
            self.join(key, SPARSE_WORDS);
        }
    }

    /// Calls `see` with each leaf, latched, until it answers false.
    pub(crate) fn walk(&self, mut see: impl FnMut(Held<'_>) -> bool) {
        let mut at = Some(Vec::new());
        while let Some(from) = at {
            let held = self.lock(&from);
            let upper = held.upper();
            at = see(held).then_some(upper).flatten();
        }
    }

    /// Returns all leaves in order, each with its image unless it is fresh.
    pub(crate) fn all(&self) -> Vec<(Home, Option<Place>)> {
        let leaves = self.index.homes(&[], None);
        let image = |leaf: Leaf<'_>| leaf.image().filter(|_| !leaf.is_fresh());
        self.headers(&leaves).map(|(home, leaf)| (home, image(leaf))).collect()
    }

    /// Goes through leaves, of which only headers are looked at: they are fetched ahead. Without their latches, they may be
    /// others by now.
    pub(crate) fn headers<'t>(
        &'t self,
        homes: &'t [Home],
    ) -> impl Iterator<Item = (Home, Leaf<'t>)> {
        let leaf = |home: &Home| self.block(home.block()).0;
        homes.iter().enumerate().map(move |(index, home)| {
            if let Some(later) = homes.get(index + FETCHED_AHEAD) {
                leaf(later).fetch_header();
            }
            (*home, leaf(home))
        })
    }

    /// Lets another index be the one, and frees the leaves of the one before. No write is under way. Returns their
    /// images.
    pub(crate) fn replace(&self, index: Index) -> Vec<Place> {
        let _alone = self.changing.lock();
        let new = index.homes(&[], None);
        let before = self.index.replace(index).homes(&[], None);
        let records = |homes: &[Home]| -> usize {
            homes.iter().map(|home| self.block(home.block()).0.present()).sum()
        };
        self.count_records(records(&before), records(&new));
        before.iter().filter_map(|home| self.discard(self.latch(home.block()))).collect()
    }

    /// Returns about how many bytes keys and values of a range take: all of a leaf or nothing.
    pub(crate) fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let bytes = |home: Home| self.block(home.block()).0.approximate_bytes();
        // The leaf in which the range begins counts half.
        let first = self.index.floor(lower).map_or(0, |home| bytes(home) / 2);
        first + self.index.homes(lower, upper).into_iter().map(bytes).sum::<u64>()
    }

    /// Checks every leaf, and that they are for all keys together. No writer is beside it in a leaf that it looks at.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut expected, mut wrong) = (Some(Vec::new()), None);
        self.walk(|held| {
            let (lower, upper) = held.bounds();
            if let Err(text) = held.leaf.check() {
                wrong = Some(text);
            }
            // Leaves may be split or joined between two steps, but what is ahead begins where this one ends.
            if expected.as_ref().is_none_or(|expected| *expected < lower) {
                wrong = Some(format!("a leaf begins at {lower:?}, expected {expected:?}"));
            }
            expected = upper;
            held.release_unchanged();
            wrong.is_none()
        });
        wrong.map_or(Ok(()), Err)
    }
}

pub(crate) fn replaced_at(leaf: Leaf<'_>, index: Result<usize, usize>) -> Replaced {
    let mut replaced = Replaced::default();
    if let Ok(index) = index {
        let data = leaf.data(index);
        replaced.was_there = !data.is_absent();
        if data.is_large() {
            leaf.value(data, &mut replaced.pointer);
        }
    }
    replaced
}
