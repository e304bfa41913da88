//! Nodes: pivots with their children, and the levels of the buffer before them.
//!
//! ```text
//!   keys       -inf      g       p          the first stands for the node's own lower bound,
//!   children   leaf    leaf    leaf         which only its parent knows
//!   pending     3 KB    9 KB    1 KB        what the levels hold for each
//!   levels     newest .. oldest, all newer than the children
//! ```
//!
//! A node is a value: an update makes a new one that shares with the old one what did not change,
//! and readers continue with the old one.
//!
//! **Invariants** (the numbers of the house's notes on the paper)
//! 1. I1: pivot keys ascend strictly; a child's range is half-open.
//! 2. I3: what is in the buffer is newer than the same key below.
//! 3. I5: `pending` is exactly the packed bytes of the live edits of a pivot, over all levels;
//!    `tombstones` is the number of tombstones among them, or more where the page of a node did not
//!    say it ([`crate::packed`]).
//! 4. I9: all leaves are at the same depth; `height` is 1 above leaves.
//! 5. `pages` is set only while nothing in the node or below it is in memory alone.
//! 6. `totals` is asked for only of nodes that will not change any more.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use spinney_base::Result;

use crate::edit::packed_bytes;
use crate::files::{Files, LEVELS_MAX, Limits, Load};
use crate::levels::{Key, Level, Merging, Part, Pivots, by_pivot};
use crate::merge::Superseded;
use crate::policy::{self, MERGED_ON_TOP};
use crate::run::Run;
use crate::runs::Runs;

/// About how many bytes a child takes in a node's page beside its key: [`Files`] describes it.
const CHILD_BYTES: usize = 48;

fn pivot_bytes(key: &Key) -> usize {
    CHILD_BYTES + key.len()
}

/// A leaf, before and after it is written.
#[derive(Debug)]
pub(crate) enum Leaf<F: Files> {
    Memory(Runs),
    Written(Arc<F::Leaf>),
}

/// What a pivot leads to.
#[derive(Debug)]
pub(crate) enum Child<F: Files> {
    Leaf(Leaf<F>),
    Node(Arc<Node<F>>),
}

impl<F: Files> Clone for Leaf<F> {
    fn clone(&self) -> Self {
        match self {
            Leaf::Memory(runs) => Leaf::Memory(runs.clone()),
            Leaf::Written(leaf) => Leaf::Written(Arc::clone(leaf)),
        }
    }
}

impl<F: Files> Clone for Child<F> {
    fn clone(&self) -> Self {
        match self {
            Child::Leaf(leaf) => Child::Leaf(leaf.clone()),
            Child::Node(node) => Child::Node(Arc::clone(node)),
        }
    }
}

impl<F: Files> Leaf<F> {
    pub(crate) fn bytes(&self, files: &F) -> u64 {
        match self {
            Leaf::Memory(runs) => runs.bytes(),
            Leaf::Written(leaf) => files.leaf_bytes(leaf),
        }
    }

    /// Sums over the leaf.
    pub(crate) fn totals(&self, files: &F) -> Totals {
        let (pages, edits) = match self {
            Leaf::Memory(runs) => (0, runs.len() as u64),
            Leaf::Written(leaf) => (files.leaf_pages(leaf), files.leaf_edits(leaf)),
        };
        Totals { pages, edits, bytes: self.bytes(files), ..Totals::default() }
    }

    /// What has to be read to have it in memory.
    pub(crate) fn to_load(&self) -> Option<Load<'_, F>> {
        match self {
            Leaf::Memory(_) => None,
            Leaf::Written(leaf) => Some(Load { leaf: &**leaf, lower: b"", upper: None }),
        }
    }

    pub(crate) fn load(&self, files: &F) -> Result<Runs> {
        match self {
            Leaf::Memory(runs) => Ok(runs.clone()),
            Leaf::Written(leaf) => files.load(leaf, b"", None).map(Runs::from),
        }
    }
}

impl<F: Files> Child<F> {
    /// What it and all below it come to.
    pub(crate) fn totals(&self, files: &F) -> Totals {
        match self {
            Child::Node(node) => node.totals(files),
            Child::Leaf(leaf) => leaf.totals(files),
        }
    }

    /// About how many packed bytes live below it from `lower` to below `upper`. A leaf that a bound
    /// cuts counts half.
    pub(crate) fn live_between(&self, files: &F, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let node = match self {
            Child::Leaf(leaf) => {
                let cuts = u32::from(!lower.is_empty()) + u32::from(upper.is_some());
                return leaf.bytes(files) >> cuts;
            }
            Child::Node(node) => node,
        };
        let mut live = 0;
        for (pivot, child) in node.children.iter().enumerate() {
            let (from, to) = node.range(pivot);
            if upper.is_some_and(|upper| from >= upper) || to.is_some_and(|to| to <= lower) {
                continue;
            }
            let lower = if from < lower { lower } else { b"" };
            let upper = upper.filter(|upper| to.is_none_or(|to| to > *upper));
            let cuts = u32::from(!lower.is_empty()) + u32::from(upper.is_some());
            let removed = node.tombstones[pivot] * TOMBSTONE_BYTES;
            live += node.pending[pivot].saturating_sub(removed) >> cuts;
            live += match cuts {
                0 => child.totals(files).live(),
                _ => child.live_between(files, lower, upper),
            };
        }
        live
    }

    /// Packed bytes of a leaf; none for a node.
    pub(crate) fn leaf_bytes(&self, files: &F) -> Option<u64> {
        match self {
            Child::Leaf(leaf) => Some(leaf.bytes(files)),
            Child::Node(_) => None,
        }
    }

    /// Whether no leaf of it holds a record.
    pub(crate) fn is_empty(&self, files: &F) -> bool {
        match self {
            Child::Leaf(leaf) => leaf.bytes(files) == 0,
            Child::Node(node) => node.children.len() == 1 && node.children[0].is_empty(files),
        }
    }

    /// Whether it is so small that it should be joined with a neighbour.
    pub(crate) fn is_underfull(&self, files: &F, limits: &Limits) -> bool {
        match self {
            Child::Leaf(leaf) => leaf.bytes(files) < limits.leaf_bytes_min(),
            Child::Node(node) => {
                let (pivots, bytes) = (node.keys.len(), || node.packed_bytes());
                policy::is_node_small(pivots, limits.pivots_max, bytes, limits.node_bytes)
            }
        }
    }
}

/// Children that replace others; there is at least one of either.
#[derive(Debug)]
pub(crate) struct Replacement<F: Files> {
    pub(crate) old: Range<usize>,
    /// With their lower bounds, but for the first, which takes over that of the old ones.
    pub(crate) new: Vec<(Key, Child<F>)>,
}

/// Sums over a node and all below it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// About how much memory nodes take, beside runs and what files keep, in bytes.
    pub(crate) resident_bytes: u64,
    /// Pages of written leaves and segments. A segment of two nodes counts twice.
    pub(crate) pages: u64,
    /// Edits of leaves, all of which put something.
    pub(crate) edits: u64,
    /// Their packed bytes.
    pub(crate) bytes: u64,
    /// About how many of these bytes are of records that tombstones above them remove.
    pub(crate) removed: u64,
    /// Packed bytes that are pending in buffers.
    pub(crate) pending: u64,
    /// Packed bytes of segments, flushed parts included. A segment of two nodes counts twice.
    pub(crate) segments: u64,
    /// How many tombstones are pending.
    pub(crate) tombstones: u64,
}

/// What a tombstone takes itself, in packed bytes: one with a key of 16 bytes.
pub(crate) const TOMBSTONE_BYTES: u64 = packed_bytes(16, 0);

impl Totals {
    /// About how many packed bytes hold nothing that is needed.
    pub(crate) fn dead(&self) -> u64 {
        let flushed = self.segments.saturating_sub(self.pending);
        self.removed + (self.tombstones * TOMBSTONE_BYTES).min(self.pending) + flushed
    }

    /// About how many packed bytes the records take.
    pub(crate) fn live(&self) -> u64 {
        let of_tombstones = self.tombstones * TOMBSTONE_BYTES;
        self.bytes - self.removed + self.pending.saturating_sub(of_tombstones)
    }

    /// About how many bytes are removed by this many tombstones above: each removes a record of
    /// average size.
    pub(crate) fn removed_by(&self, tombstones: u64) -> u64 {
        let average = self.bytes / self.edits.max(1);
        (tombstones * average).min(self.bytes.saturating_sub(self.removed))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Node<F: Files> {
    pub(crate) height: u8,
    /// Lower bounds of the children; the first is empty.
    pub(crate) keys: Vec<Key>,
    pub(crate) children: Vec<Child<F>>,
    /// Of each child, in packed bytes.
    pub(crate) pending: Vec<u64>,
    /// How many tombstones of that are for each child.
    pub(crate) tombstones: Vec<u64>,
    /// Newest first.
    pub(crate) levels: Vec<Level<F>>,
    /// Where it is written.
    pub(crate) pages: Option<Arc<F::Pages>>,
    /// What [`Node::totals`] found.
    pub(crate) totals: OnceLock<Totals>,
}

impl<F: Files> Node<F> {
    /// A node with nothing in its buffer. The first key is taken for its lower bound.
    pub(crate) fn new(height: u8, mut children: Vec<(Key, Child<F>)>) -> Node<F> {
        children[0].0 = Key::from(&b""[..]);
        let pending = vec![0; children.len()];
        let tombstones = pending.clone();
        let (keys, children) = children.into_iter().unzip();
        let (levels, pages, totals) = (Vec::new(), None, OnceLock::new());
        Node { height, keys, children, pending, tombstones, levels, pages, totals }
    }

    /// A copy of the node that may be changed.
    pub(crate) fn to_change(&self) -> Node<F> {
        Node {
            height: self.height,
            keys: self.keys.clone(),
            children: self.children.clone(),
            pending: self.pending.clone(),
            tombstones: self.tombstones.clone(),
            levels: self.levels.clone(),
            pages: None,
            totals: OnceLock::new(),
        }
    }

    /// The lower bound of a pivot and its upper one, as far as the node knows.
    pub(crate) fn range(&self, pivot: usize) -> (&[u8], Option<&[u8]>) {
        (&self.keys[pivot], self.keys.get(pivot + 1).map(|key| &key[..]))
    }

    /// How many segments the buffer has or will have when it is written.
    pub(crate) fn segments(&self, limits: &Limits) -> usize {
        self.levels.iter().map(|level| level.segments(limits)).sum()
    }

    /// What is pending for a pivot when it is flushed, at the latest.
    pub(crate) fn pending_max(&self, pivot: usize, files: &F, limits: &Limits) -> u64 {
        limits.pending_max(pivot, self.keys.len(), self.children[pivot].leaf_bytes(files))
    }

    /// Pivots for which as much is pending as may be.
    pub(crate) fn full(&self, files: &F, limits: &Limits) -> impl Iterator<Item = usize> {
        let pivots = 0..self.keys.len();
        pivots.filter(|pivot| self.pending[*pivot] >= self.pending_max(*pivot, files, limits))
    }

    /// What its pivots take of its page, about. Segments do not count: there are fewer of them, and
    /// what they take changes when they are written.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.keys.iter().map(pivot_bytes).sum()
    }

    /// Sums over the node and all below it. Only what is new is looked at.
    pub(crate) fn totals(&self, files: &F) -> Totals {
        *self.totals.get_or_init(|| {
            let resident_bytes = self.resident_bytes();
            let mut totals = Totals { resident_bytes, ..Totals::default() };
            for (pivot, child) in self.children.iter().enumerate() {
                let below = child.totals(files);
                let tombstones = self.tombstones[pivot];
                totals.resident_bytes += below.resident_bytes;
                totals.pages += below.pages;
                totals.edits += below.edits;
                totals.bytes += below.bytes;
                totals.removed += below.removed + below.removed_by(tombstones);
                totals.pending += below.pending + self.pending[pivot];
                totals.segments += below.segments;
                totals.tombstones += below.tombstones + tombstones;
            }
            for part in self.levels.iter().flat_map(|level| &level.parts) {
                if let Part::Segment(segment) = part {
                    totals.pages += files.leaf_pages(&segment.leaf);
                    totals.segments += files.leaf_bytes(&segment.leaf);
                }
            }
            totals
        })
    }

    /// About how much memory it takes itself, beside runs and what files keep, in bytes.
    fn resident_bytes(&self) -> u64 {
        let key = |key: &Key| key.len() + 16;
        let keys: usize = self.keys.iter().map(key).sum();
        let pivot = size_of::<Key>() + size_of::<Child<F>>() + 2 * size_of::<u64>();
        let parts = self.levels.iter().flat_map(|level| &level.parts);
        let parts: usize = parts
            .map(|part| match part {
                Part::Run(_) => size_of::<Part<F>>(),
                Part::Segment(segment) => {
                    size_of::<Part<F>>()
                        + key(&segment.lower)
                        + segment.upper.as_ref().map_or(0, key)
                }
            })
            .sum();
        (size_of::<Self>() + keys + pivot * self.keys.len() + parts) as u64
    }

    /// Puts a batch into the buffer: it is merged with the occupied levels from the top down to the
    /// first vacant one, and becomes that level. The last level takes what has no other place.
    pub(crate) fn insert(
        &mut self,
        files: &F,
        limits: &Limits,
        batch: Runs,
        superseded: &mut Superseded,
    ) -> Result<()> {
        self.count_pending(&batch);
        let vacant = self.levels.iter().position(Level::is_vacant).unwrap_or(self.levels.len());
        let last = limits.levels(self.keys.len()).max(self.levels.len()) - 1;
        let level = self.merge(files, limits, vacant, Some(batch), superseded)?;
        self.put(vacant.min(last), level);
        Ok(())
    }

    /// Whether the next batch finds every level occupied, or there are more segments than there
    /// should be.
    pub(crate) fn is_crowded(&self, limits: &Limits) -> bool {
        let pivots = self.keys.len();
        let is_vacant =
            self.levels.len() < limits.levels(pivots) || self.levels.iter().any(Level::is_vacant);
        !is_vacant || self.segments(limits) > limits.segments(pivots)
    }

    /// Puts a batch above all levels. The others move down where one is vacant; where none is, the
    /// topmost ones that hold little are merged. Where the topmost holds much, there is a level more: a merge
    /// would need room for all of it.
    pub(crate) fn insert_on_top(
        &mut self,
        files: &F,
        limits: &Limits,
        batch: Runs,
        superseded: &mut Superseded,
    ) -> Result<()> {
        self.count_pending(&batch);
        let most = limits.levels(self.keys.len());
        let vacant = self.levels.iter().position(Level::is_vacant);
        if vacant.is_some() || self.levels.len() < most {
            vacant.map(|vacant| self.levels.remove(vacant));
            self.levels.insert(0, Level::from(batch));
            return Ok(());
        }
        let mut bytes = batch.bytes();
        let is_little = |level: &&Level<F>| {
            bytes += level.bytes(files);
            bytes <= MERGED_ON_TOP * limits.leaf_bytes
        };
        let merged = self.levels.iter().take_while(is_little).count();
        if merged == 0 && self.levels.len() < LEVELS_MAX {
            self.levels.insert(0, Level::from(batch));
            return Ok(());
        }
        let merged = merged.max(1);
        let level = self.merge(files, limits, merged, Some(batch), superseded)?;
        self.put(merged - 1, level);
        Ok(())
    }

    fn count_pending(&mut self, batch: &Runs) {
        for run in batch.as_slice() {
            by_pivot(run, &self.keys, |pivot, size| {
                self.pending[pivot] += size.bytes;
                self.tombstones[pivot] += size.tombstones;
            });
        }
    }

    /// Makes all levels one, and as few segments of it as it takes.
    pub(crate) fn merge_all(
        &mut self,
        files: &F,
        limits: &Limits,
        superseded: &mut Superseded,
    ) -> Result<()> {
        let levels = self.levels.len();
        let level = self.merge(files, limits, levels, None, superseded)?;
        self.put(levels.saturating_sub(1), level);
        Ok(())
    }

    /// Makes the levels that are in memory, from the top down to the first with a segment, one.
    ///
    /// Writing them costs the same, and reading less. It also puts the levels above at their start:
    /// if a checkpoint met them in the middle of filling up, the next would too, and each would
    /// write what the batch after it merges.
    pub(crate) fn merge_memory(
        &mut self,
        files: &F,
        limits: &Limits,
        superseded: &mut Superseded,
    ) -> Result<()> {
        let in_memory =
            |level: &&Level<F>| level.parts.iter().all(|part| matches!(part, Part::Run(_)));
        let levels = self.levels.iter().take_while(in_memory).count();
        let occupied = self.levels[..levels].iter().filter(|level| !level.is_vacant()).count();
        let last = self.levels[..levels].iter().rposition(|level| !level.is_vacant());
        if let Some(last) = last
            && occupied > 1
        {
            let newest = Some(Runs::default());
            let level = self.merge(files, limits, last + 1, newest, superseded)?;
            self.put(last, level);
        }
        Ok(())
    }

    /// Takes out the first levels and merges them below `newest`; all of each, whether they overlap
    /// or not, if there is none.
    fn merge(
        &mut self,
        files: &F,
        limits: &Limits,
        levels: usize,
        newest: Option<Runs>,
        superseded: &mut Superseded,
    ) -> Result<Level<F>> {
        let whole = newest.is_none();
        let mut lines = vec![Level::from(newest.unwrap_or_default())];
        lines.extend(self.levels[..levels].iter_mut().map(std::mem::take));
        if levels == 0 {
            return Ok(lines.swap_remove(0));
        }
        let (pending, tombstones) = (&mut self.pending[..], &mut self.tombstones[..]);
        let Limits { leaf_bytes: run_bytes, merge_bytes, .. } = *limits;
        let keys = &self.keys[..];
        Merging { files, keys, pending, tombstones, run_bytes, merge_bytes, superseded }
            .merge(lines, whole)
    }

    fn put(&mut self, at: usize, level: Level<F>) {
        self.levels.resize_with(self.levels.len().max(at + 1), Level::default);
        self.levels[at] = level;
        self.forget_vacant();
    }

    fn forget_vacant(&mut self) {
        while self.levels.last().is_some_and(Level::is_vacant) {
            self.levels.pop();
        }
    }

    /// Takes everything out of the buffer that is pending for these pivots, newest level first.
    pub(crate) fn take(&mut self, files: &F, pivots: Range<usize>) -> Result<Vec<Runs>> {
        self.take_beside(files, pivots, Vec::new()).map(|(lines, _)| lines)
    }

    /// Takes everything out that is pending for these pivots, and reads `beside` together with it.
    pub(crate) fn take_beside(
        &mut self,
        files: &F,
        pivots: Range<usize>,
        beside: Vec<Load<'_, F>>,
    ) -> Result<(Vec<Runs>, Vec<Run>)> {
        let keys = &self.keys[..];
        let count = beside.len();
        // What lies beside is read whole, so it goes first.
        let mut loads = beside;
        loads.extend(self.levels.iter().flat_map(|level| level.loads(keys, pivots.clone())));
        let mut loaded = files.load_many(&loads)?;
        drop(loads);
        let mut of_levels = loaded.split_off(count).into_iter();
        let lines = self.cut_out(pivots, &mut of_levels);
        Ok((lines, loaded))
    }

    /// Drops everything that is pending for these pivots out of the buffer.
    pub(crate) fn drop_pending(&mut self, pivots: Range<usize>) {
        self.cut_out(pivots, &mut std::iter::empty());
    }

    fn cut_out(
        &mut self,
        pivots: Range<usize>,
        loaded: &mut impl Iterator<Item = Run>,
    ) -> Vec<Runs> {
        let keys = &self.keys[..];
        let levels = self.levels.iter_mut();
        let lines = levels.map(|level| level.take(keys, pivots.clone(), loaded)).collect();
        self.pending[pivots.clone()].fill(0);
        self.tombstones[pivots].fill(0);
        self.forget_vacant();
        lines
    }

    /// Whether it has bits for its children after this replacement.
    pub(crate) fn has_room(&self, replacement: &Replacement<F>) -> bool {
        self.keys.len() - replacement.old.len() + replacement.new.len() <= Pivots::BITS as usize
    }

    /// Replaces some children, for which nothing is pending, by others. The first takes over the
    /// lower bound.
    pub(crate) fn replace(&mut self, replacement: Replacement<F>) {
        debug_assert!(self.has_room(&replacement));
        let Replacement { old, mut new } = replacement;
        debug_assert!(self.pending[old.clone()].iter().all(|pending| *pending == 0));
        new[0].0 = Arc::clone(&self.keys[old.start]);
        for level in &mut self.levels {
            level.replace_pivots(old.clone(), new.len());
        }
        for counts in [&mut self.pending, &mut self.tombstones] {
            counts.splice(old.clone(), std::iter::repeat_n(0, new.len()));
        }
        let (keys, children): (Vec<Key>, Vec<Child<F>>) = new.into_iter().unzip();
        self.keys.splice(old.clone(), keys);
        self.children.splice(old, children);
    }

    /// Cuts it in two before a pivot, not the first; the one key of the cut is the right one's
    /// lower bound.
    pub(crate) fn split(mut self, middle: usize) -> (Node<F>, Key, Node<F>) {
        let mut right = Node {
            height: self.height,
            children: self.children.split_off(middle),
            pending: self.pending.split_off(middle),
            tombstones: self.tombstones.split_off(middle),
            keys: self.keys[middle..].to_vec(),
            levels: Vec::new(),
            pages: None,
            totals: OnceLock::new(),
        };
        for level in &mut self.levels {
            let (left, cut) = std::mem::take(level).split(&self.keys, middle);
            *level = left;
            right.levels.push(cut);
        }
        let key = std::mem::replace(&mut right.keys[0], Key::from(&b""[..]));
        self.keys.truncate(middle);
        self.pages = None;
        self.forget_vacant();
        right.forget_vacant();
        (self, key, right)
    }

    /// The pivot before which it is cut: the middle one, or where half of the keys' bytes are if
    /// those are what made it too large.
    pub(crate) fn middle(&self, limits: &Limits) -> usize {
        let count = self.keys.len();
        if count > limits.pivots_max {
            return count / 2;
        }
        let total = self.packed_bytes();
        let mut sum = 0;
        let below = self.keys.iter().take_while(|key| {
            sum += pivot_bytes(key);
            sum * 2 <= total
        });
        below.count().clamp(1, count - 1)
    }

    /// Appends a node of the same height that begins at `key`.
    pub(crate) fn join(&mut self, key: &Key, right: &Node<F>) {
        let pivots = self.keys.len();
        let levels = self.levels.len().max(right.levels.len());
        self.levels.resize_with(levels, Level::default);
        for (level, other) in self.levels.iter_mut().zip(&right.levels) {
            level.join(other.clone(), pivots);
        }
        self.keys.push(Arc::clone(key));
        self.keys.extend_from_slice(&right.keys[1..]);
        self.children.extend_from_slice(&right.children);
        self.pending.extend_from_slice(&right.pending);
        self.tombstones.extend_from_slice(&right.tombstones);
        self.pages = None;
    }
}
