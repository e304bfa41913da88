//! Merging changes into leaves: all changes of a leaf's keys at once, in the order of the keys.

use spinney_base::shim::thread;
use spinney_base::{Result, ValueRef, probe};
use spinney_cache::Sight;
use spinney_leaf::{Entry, Image, Leaf, Records};

use crate::btree::descend::{Node, entry_for, place_at};
use crate::btree::reshape::{Reshaped, compact};
use crate::btree::tree::BTree;
use crate::pages::{LARGE, PageKind, leaf_of};
use crate::place::Place;

/// Part of a page below which it is joined with a neighbour, one in this many.
const SPARSE_PART: usize = 4;

/// Pages that the changes of one leaf fill in one step, at most.
const PARTS_MAX: usize = 4;

/// Most times that a step writes pages back because others have changed all that were clean.
const ROUNDS_MAX: u32 = 3;

/// A change for the tree.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new value, or the pointer to it; `None` removes the key.
    pub value: Option<ValueRef<'a>>,
}

/// Result of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Leaves that changed.
    pub leaves: u64,
    /// Records that came or went, less those that were there before.
    pub records: i64,
}

/// Called for each change once its page in memory has it, with the pointer to the large value that it replaced,
/// if it did.
pub type Home<'h> = dyn FnMut(&Change<'_>, Option<&[u8]>) + 'h;

/// Learns what changes replace while the page is taken that still holds it, and before the page changes.
pub trait Keep {
    /// Returns whether it has to know of this key.
    fn wants(&self, key: &[u8]) -> bool;

    /// Gets the value that a key has, or the pointer to it. It may come again for one key, and then for a
    /// change that is not made.
    fn keep(&self, key: &[u8], old: Option<ValueRef<'_>>);
}

/// Has to know nothing.
impl Keep for () {
    fn wants(&self, _key: &[u8]) -> bool {
        false
    }

    fn keep(&self, _key: &[u8], _old: Option<ValueRef<'_>>) {}
}

/// Whose changes are merged.
struct Owner<'o, 'h> {
    keep: &'o dyn Keep,
    home: &'o mut Home<'h>,
}

/// How a leaf took changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Took {
    /// All of them.
    All,
    /// So many; the next has no room.
    UpTo(usize),
    /// All, and it is sparse now.
    Sparse,
    /// None: it has changed meanwhile, or is in no frame.
    Nothing,
}

/// Neighbours under one parent, as they were seen, and all that they hold.
struct Pair {
    old: [(Sight, Place); 2],
    image: Image,
}

/// Leaves that become new ones with changes.
struct Step<'c> {
    old: Vec<(Sight, Place)>,
    before: Records,
    changes: &'c [Change<'c>],
    /// What the new ones hold.
    image: Image,
    /// Pointers that each change replaces.
    replaced: Vec<Option<Vec<u8>>>,
    /// Records that come or go.
    more: i64,
}

impl BTree {
    /// Merges changes, whose keys ascend strictly, into their leaves. Nobody else changes records in their ranges
    /// meanwhile (rule H17).
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`. `home` was called for those that were merged before.
    pub fn merge(&self, changes: &[Change<'_>], home: &mut Home<'_>) -> Result<Merged> {
        self.merge_keeping(changes, &(), home)
    }

    /// As [`BTree::merge`]; `keep` learns what is replaced.
    ///
    /// # Errors
    /// As [`BTree::merge`].
    pub fn merge_keeping(
        &self,
        changes: &[Change<'_>],
        keep: &dyn Keep,
        home: &mut Home<'_>,
    ) -> Result<Merged> {
        debug_assert!(changes.is_sorted_by(|one, next| one.key < next.key), "keys ascend");
        let (mut rest, mut merged) = (changes, Merged::default());
        let owner = &mut Owner { keep, home };
        // So many are left once those are merged whose leaves were read ahead.
        let mut unread = rest.len();
        while let Some(first) = rest.first() {
            if self.pages.is_crowded() {
                self.write_back(usize::MAX)?;
            }
            if rest.len() <= unread {
                unread = rest.len() - self.read_ahead(rest.iter().map(|change| change.key));
            }
            let node = self.descend(first.key, 0)?.expect("every tree has leaves");
            let Some(count) = self.count_of_leaf(&node, rest) else { continue };
            let (mine, others) = rest.split_at(count);
            match self.merge_in_place(&node, mine, owner, &mut merged) {
                Took::All => rest = others,
                Took::Sparse => {
                    rest = others;
                    self.join(first.key, 0)?;
                    self.lower_roots(first.key)?;
                }
                Took::UpTo(done) => {
                    let done = done + self.merge_anew(&mine[done..], owner, &mut merged)?;
                    rest = &rest[done..];
                }
                Took::Nothing => self.make_editable(&node)?,
            }
        }
        Ok(merged)
    }

    /// The number of changes, of the first ones, whose keys a leaf is for; `None` if it has changed.
    fn count_of_leaf(&self, node: &Node<'_>, changes: &[Change<'_>]) -> Option<usize> {
        let mut upper = Vec::new();
        let has_upper = node.leaf().upper(&mut upper);
        let count = changes.partition_point(|change| !has_upper || change.key < &upper[..]);
        self.pages.is_valid(node.look.sight()).then_some(count)
    }

    /// Changes a leaf where it lies.
    fn merge_in_place(
        &self,
        node: &Node<'_>,
        changes: &[Change<'_>],
        owner: &mut Owner<'_, '_>,
        merged: &mut Merged,
    ) -> Took {
        let Some(mut edit) = self.pages.edit(node.look.sight()) else { return Took::Nothing };
        let leaf = leaf_of(edit.words());
        let (mut replaced, mut done) = (Vec::new(), 0);
        for change in changes {
            replaced.clear();
            keep_of_leaf(leaf, change.key, owner.keep);
            let Some(more) = put(leaf, change, &mut replaced) else { break };
            (owner.home)(change, (!replaced.is_empty()).then_some(&replaced));
            merged.records += more;
            done += 1;
        }
        if done == 0 {
            edit.release_unchanged();
            return Took::UpTo(0);
        }
        let took = match done == changes.len() {
            false => Took::UpTo(done),
            true if is_sparse(leaf) => Took::Sparse,
            true => Took::All,
        };
        merged.leaves += 1;
        edit.mark_dirty();
        took
    }

    /// Merges the first changes whose leaf has no room for them, by new leaves. Returns how many.
    fn merge_anew(
        &self,
        changes: &[Change<'_>],
        owner: &mut Owner<'_, '_>,
        merged: &mut Merged,
    ) -> Result<usize> {
        let (mut most, mut repacks) = (self.count_for_parts(changes), true);
        let mut rounds = 0;
        loop {
            let node = self.descend(changes[0].key, 0)?.expect("every tree has leaves");
            let before = Image::of(node.leaf(), |_| 0);
            if !self.pages.is_valid(node.look.sight()) {
                continue;
            }
            let alone = self.step(vec![node.seen()], before, &changes[..most]);
            let step = if repacks { self.with_neighbour(alone, &changes[..most])? } else { alone };
            let _inside = (step.old.len() > 1).then(|| probe::enter("repack"));
            let keep = || keep_of_records(&step.before, step.changes, owner.keep);
            match self.reshape(0, &step.old, step.image, &keep) {
                // A step that holds fewer pages may have room.
                Err(error) if error.is_full() && (repacks || step.changes.len() > 1) => {
                    most = if repacks { most } else { step.changes.len() / 2 };
                    repacks = false;
                }
                // Those who merge elsewhere have changed the pages that were clean.
                Err(error) if error.is_full() && rounds < ROUNDS_MAX => {
                    rounds += 1;
                    self.write_back(usize::MAX)?;
                }
                Err(error) => return Err(error),
                Ok(why @ (Reshaped::Again | Reshaped::NoFrame)) => {
                    // The neighbour may have no frame; the pages of the step may have taken all.
                    repacks = false;
                    if why == Reshaped::NoFrame {
                        most = (step.changes.len() / 2).max(1);
                    }
                    self.make_editable(&node)?;
                }
                Ok(Reshaped::Done) => {
                    for (change, replaced) in step.changes.iter().zip(&step.replaced) {
                        (owner.home)(change, replaced.as_deref());
                    }
                    merged.leaves += step.old.len() as u64;
                    merged.records += step.more;
                    return Ok(step.changes.len());
                }
            }
        }
    }

    /// Prepares a step over neighbours with the first changes, which are for them.
    fn step<'c>(
        &self,
        old: Vec<(Sight, Place)>,
        before: Image,
        changes: &'c [Change<'c>],
    ) -> Step<'c> {
        let upper = before.upper.as_deref();
        let is_mine = |change: &Change<'_>| upper.is_none_or(|upper| change.key < upper);
        let changes = &changes[..changes.partition_point(is_mine)];
        let (records, replaced) = with_changes(&before.records, changes);
        let more = records.len() as i64 - before.records.len() as i64;
        let image = Image::new(records, before.bounds(), self.pages.leaf_words());
        Step { old, before: before.records, changes, image, replaced, more }
    }

    /// Takes a neighbour into a step that would leave two leaves that are half full (3.2). Both are spread over two
    /// leaves, or over three, evenly. With more changes, leaves are full without it.
    fn with_neighbour<'c>(&self, alone: Step<'c>, changes: &'c [Change<'c>]) -> Result<Step<'c>> {
        if self.leaves_of(&alone.image) != 2 {
            return Ok(alone);
        }
        let Some(Pair { old, image }) = self.pair(changes[0].key, 0)? else { return Ok(alone) };
        let both = self.step(old.to_vec(), image, changes);
        Ok(if self.leaves_of(&both.image) <= 3 { both } else { alone })
    }

    /// The number of changes, of the first ones, that are merged in one step: a step holds all new pages.
    fn count_for_parts(&self, changes: &[Change<'_>]) -> usize {
        let mut bytes = PARTS_MAX * self.pages.page_bytes();
        let fits = |change: &&Change<'_>| {
            let length = change.key.len() + change.value.map_or(0, ValueRef::len);
            bytes = bytes.saturating_sub(length);
            bytes > 0
        };
        changes.iter().take_while(fits).count().max(1)
    }

    /// Waits for whoever changes a page; where it has no frame, changed pages are written, so that it gets
    /// one.
    fn make_editable(&self, node: &Node<'_>) -> Result<()> {
        if !node.look.is_cached() {
            self.write_back(usize::MAX)?;
        }
        thread::yield_now();
        Ok(())
    }

    /// Joins a sparse page with a neighbour, if both fit into one. An only child has none: its parent is
    /// joined with another first, or its root goes. Whatever has changed meanwhile is left for the next change.
    /// Returns whether there is one page less.
    fn join(&self, key: &[u8], level: u8) -> Result<bool> {
        let Some(parent) = self.descend(key, level + 1)? else { return Ok(false) };
        if parent.leaf().len() == 1 {
            let child = place_at(parent.leaf(), 0);
            let is_valid = self.pages.is_valid(parent.look.sight());
            if let Some(child) = child.filter(|_| is_valid)
                && self.lower_root(&parent, child)
            {
                return Ok(true);
            }
            return Ok(self.join(key, level + 1)? && self.join_neighbours(key, level)?);
        }
        let is_done = self.join_neighbours(key, level)?;
        if let Some(parent) = self.descend(key, level + 1)?.filter(|_| is_done)
            && (parent.leaf().len() == 1 || is_sparse(parent.leaf()))
        {
            self.join(key, level + 1)?;
        }
        Ok(is_done)
    }

    /// Joins the page of a level for a key, if it is sparse or has one child, and takes roots away that have one.
    pub(crate) fn join_sparse(&self, key: &[u8], level: u8) -> Result<()> {
        if let Some(node) = self.descend(key, level)?
            && (node.leaf().len() == 1 || is_sparse(node.leaf()))
        {
            self.join(key, level)?;
        }
        self.lower_roots(key)
    }

    /// Joins a page with a neighbour under the same parent, if both fit into one.
    fn join_neighbours(&self, key: &[u8], level: u8) -> Result<bool> {
        let Some(Pair { old, image }) = self.pair(key, level)? else { return Ok(false) };
        if !self.is_one(level, &image) {
            return Ok(false);
        }
        match self.reshape(level, &old, image, &|| ()) {
            // They stay as they are.
            Err(error) if error.is_full() => Ok(false),
            reshaped => Ok(reshaped? == Reshaped::Done),
        }
    }

    /// Copies the page of a level for a key and its neighbour under the same parent: the one behind it, or before it
    /// if it is the last. `None` where there is none, and where something has changed meanwhile.
    fn pair(&self, key: &[u8], level: u8) -> Result<Option<Pair>> {
        let Some(parent) = self.descend(key, level + 1)? else { return Ok(None) };
        let (node, at) = (parent.leaf(), entry_for(parent.leaf(), key));
        let left = if at + 1 < node.len() { at } else { at.saturating_sub(1) };
        let (first, second) = (place_at(node, left), place_at(node, left + 1));
        let (Some(first), Some(second)) = (first, second) else { return Ok(None) };
        if !self.pages.is_valid(parent.look.sight()) {
            return Ok(None);
        }
        let kind = PageKind::of_level(level);
        let looked = (self.pages.look(first, kind), self.pages.look(second, kind));
        if !self.pages.is_valid(parent.look.sight()) {
            return Ok(None);
        }
        let looks = (looked.0?, looked.1?);
        let mut image = Image::of(leaf_of(looks.0.words()), |_| 0);
        image.add(leaf_of(looks.1.words()), |_| 0);
        let sights = (looks.0.sight(), looks.1.sight());
        let is_valid = self.pages.is_valid(sights.0) && self.pages.is_valid(sights.1);
        Ok(is_valid.then_some(Pair { old: [(sights.0, first), (sights.1, second)], image }))
    }

    /// Takes roots away that have one child.
    fn lower_roots(&self, key: &[u8]) -> Result<()> {
        loop {
            let level = self.root.see().level;
            let Some(node) = self.descend(key, level)?.filter(|_| level > 0) else { return Ok(()) };
            let child = place_at(node.leaf(), 0).filter(|_| node.leaf().len() == 1);
            let is_valid = self.pages.is_valid(node.look.sight());
            match child.filter(|_| is_valid) {
                Some(child) if self.lower_root(&node, child) => {}
                _ => return Ok(()),
            }
        }
    }

    /// Lets the only child of a root be the root. Returns whether it is now.
    fn lower_root(&self, node: &Node<'_>, child: Place) -> bool {
        let seen = self.root.see();
        if seen.place != node.place || node.level == 0 {
            return false;
        }
        let _shape = self.pages.gate.enter();
        let Some(root) = self.root.edit(seen) else { return false };
        let Some(edit) = self.pages.edit(node.look.sight()) else {
            root.release_unchanged();
            return false;
        };
        root.set(child, node.level - 1);
        drop(root);
        self.pages.remove(edit, node.place, node.level);
        true
    }
}

/// Whether a page uses little of its block.
fn is_sparse(leaf: Leaf<'_>) -> bool {
    leaf.live() + leaf.len() < leaf.block_words() / SPARSE_PART
}

/// Makes a change in a held leaf, and appends the pointer that it replaces. Returns how many records came;
/// `None` where there is no room, and nothing has changed.
fn put(leaf: Leaf<'_>, change: &Change<'_>, replaced: &mut Vec<u8>) -> Option<i64> {
    let found = leaf.search(change.key);
    let Some(value) = change.value else {
        let Ok(index) = found else { return Some(0) };
        take_pointer(leaf, index, replaced);
        leaf.take_out(index);
        return Some(-1);
    };
    let flags = if value.large { LARGE } else { 0 };
    let entry = Entry { key: change.key, value: value.bytes, flags };
    let words = leaf.words_for(change.key.len(), value.bytes.len());
    let old = found.map_or(0, |index| 1 + leaf.slot(index).words());
    if leaf.spare_words() + old < words {
        return None;
    }
    let index = match found {
        Ok(index) => {
            take_pointer(leaf, index, replaced);
            if leaf.overwrite(index, entry) {
                return Some(0);
            }
            leaf.take_out(index);
            index
        }
        Err(index) => index,
    };
    if leaf.free_words() < words {
        compact(leaf);
    }
    leaf.insert(index, entry);
    Some(i64::from(found.is_err()))
}

/// Shows what a held leaf has of a key, if `keep` wants it.
fn keep_of_leaf(leaf: Leaf<'_>, key: &[u8], keep: &dyn Keep) {
    if !keep.wants(key) {
        return;
    }
    let mut old = Vec::new();
    let slot = leaf.search(key).ok().map(|index| leaf.slot(index));
    let large = slot.is_some_and(|slot| slot.is(LARGE));
    if let Some(slot) = slot {
        leaf.value(slot, &mut old);
    }
    keep.keep(key, slot.map(|_| ValueRef { bytes: &old, large }));
}

/// The same of all keys that change, of records of a leaf that is held since they were copied.
fn keep_of_records(before: &Records, changes: &[Change<'_>], keep: &dyn Keep) {
    let mut kept = before.iter().peekable();
    for Change { key, .. } in changes {
        while kept.next_if(|entry| entry.key < *key).is_some() {}
        if keep.wants(key) {
            let old = kept.peek().filter(|entry| entry.key == *key);
            let value = |entry: &Entry<'_>| entry.flags & LARGE != 0;
            let old = old.map(|old| ValueRef { bytes: old.value, large: value(old) });
            keep.keep(key, old);
        }
    }
}

/// Appends the pointer to a large value.
fn take_pointer(leaf: Leaf<'_>, index: usize, out: &mut Vec<u8>) {
    if leaf.slot(index).is(LARGE) {
        leaf.value(leaf.slot(index), out);
    }
}

/// Records with changes laid over them, and the pointers that each change replaces.
fn with_changes(before: &Records, changes: &[Change<'_>]) -> (Records, Vec<Option<Vec<u8>>>) {
    let mut after = Records::with_capacity(before.len() + changes.len(), 0);
    let mut add = |entry: Entry<'_>| {
        let append = |bytes| move |out: &mut Vec<u8>| out.extend_from_slice(bytes);
        after.push((entry.flags, 0), append(entry.key), append(entry.value));
    };
    let (mut replaced, mut kept) = (Vec::with_capacity(changes.len()), before.iter().peekable());
    for change in changes {
        while let Some(entry) = kept.next_if(|entry| entry.key < change.key) {
            add(entry);
        }
        let old = kept.next_if(|entry| entry.key == change.key);
        let pointer = old.filter(|old| old.flags & LARGE != 0).map(|old| old.value.to_vec());
        replaced.push(pointer);
        if let Some(value) = change.value {
            let flags = if value.large { LARGE } else { 0 };
            add(Entry { key: change.key, value: value.bytes, flags });
        }
    }
    kept.for_each(add);
    (after, replaced)
}
