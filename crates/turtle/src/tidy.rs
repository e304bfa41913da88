//! Flushing what is pending, when ranges pay for it, when removed records take room, or when a
//! caller asks for it.
//!
//! A buffer saves writes and costs reads: a range looks into each of its levels beside the leaf,
//! and the pages of segments take memory from those of leaves. While writes are many that is the
//! bargain of the tree (section 3.2); when they are few, every range pays for it again. And a
//! removal is a tombstone of some twenty bytes that keeps a record of any size in its leaf.
//!
//! So the background *tidies*, one bounded step at a time, from the root down, for one [`Goal`]:
//!
//! ```text
//!   goal     begins when                                     flushes pivots
//!   Reads    ranges looked into as many segments beside      for which an eighth of a leaf is
//!            leaves as rebuilding the leaves costs pages     pending
//!   Room     no write came for a second, or ranges passed   whose tombstones remove an eighth
//!            as many tombstones as flushing these costs      (a 64th) of what lies below them
//!   Range    a caller compacts a range                       for which anything is pending in it
//!   Settled  a full disk kept batches in the topmost levels  for which much is pending, singly
//! ```
//!
//! `Reads` and `Room` also merge the levels of a buffer: `Reads` where ranges look into more than
//! two, `Room` where most of what the segments hold was flushed. A step of the background begins
//! only while no batch waits. Each step is written together with what was pending: chi is for
//! writes, of which there are few then. [`crate::tidying`] decides when, and [`crate::steps`] makes
//! the steps.
//!
//! **Dead space** is bounded: in a quiet keyspace, tombstones that are pending for a pivot remove
//! less than an eighth of the bytes below it, in each level of nodes. Tombstones are counted
//! ([`Node::tombstones`]); each is taken to remove a record of average size.
//!
//! The paper leaves the buffers as the last batch left them.
//!
//! **Invariants**
//! 1. A tidied tree has the same records; only where they lie changes. A holder of another version
//!    of the tree (a snapshot, a reader) keeps its pages.
//! 2. A step lessens what its goal asks for, so steps come to an end while no batch comes.

use std::ops::ControlFlow;
use std::sync::Arc;

use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;

use crate::files::{Files, Limits};
use crate::kinds::purpose;
use crate::levels::{Key, Part, pivot_of};
use crate::merge::Superseded;
use crate::node::{Child, Node, Replacement, TOMBSTONE_BYTES};
use crate::policy::{LEAVES_AT_ONCE, NODES_AT_ONCE, TIDY_LEVELS_MAX, TIDYING_THREADS_MAX};
use crate::range::KeyRange;
use crate::tree::Tree;
use crate::update::{Siblings, Update, as_children};

/// What a tree is tidied for; see the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal<'a> {
    Reads,
    /// Tombstones remove one byte of what lies below in this many, at most.
    Room(u64),
    Range(KeyRange<'a>),
    /// What a full disk kept from being flushed and merged is flushed.
    Settled,
}

/// A step towards a goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) goal: Goal<'a>,
    /// Whether it flushes one pivot and merges nothing, because the disk is full.
    pub(crate) is_sparing: bool,
}

impl<'a> Step<'a> {
    pub(crate) fn with_room(goal: Goal<'a>) -> Step<'a> {
        Step { goal, is_sparing: false }
    }

    pub(crate) fn sparing(goal: Goal<'a>) -> Step<'a> {
        Step { goal, is_sparing: true }
    }
}

impl Goal<'_> {
    /// Whether a pivot of a node is to be flushed.
    fn flushes<F: Files>(&self, node: &Node<F>, pivot: usize, files: &F, limits: &Limits) -> bool {
        let pending = node.pending[pivot];
        match self {
            Goal::Reads => pending >= limits.tidy_bytes(),
            Goal::Room(part) => {
                let tombstones = node.tombstones[pivot];
                if tombstones == 0 || pending == 0 {
                    return false;
                }
                let below = node.children[pivot].totals(files);
                let dead = below.removed_by(tombstones) + tombstones * TOMBSTONE_BYTES;
                dead >= (below.bytes / part).max(PAGE_BYTES as u64)
            }
            Goal::Range(range) => pending > 0 && Goal::meets(range, node, pivot),
            Goal::Settled => {
                // Neighbours in turn, so that the segments that they share are gone soon.
                let most = || node.pending.iter().max().copied().unwrap_or(0);
                pending >= node.pending_max(pivot, files, limits)
                    || (pending > 0 && node.is_crowded(limits) && 2 * pending >= most())
            }
        }
    }

    /// Whether the levels of a node are to be made one.
    fn merges<F: Files>(&self, node: &Node<F>, files: &F, limits: &Limits) -> bool {
        match self {
            Goal::Reads => {
                node.levels.iter().filter(|level| !level.is_vacant()).count() > TIDY_LEVELS_MAX
            }
            Goal::Room(_) => {
                let parts = node.levels.iter().flat_map(|level| &level.parts);
                let held: u64 = parts
                    .map(|part| match part {
                        Part::Run(_) => 0,
                        Part::Segment(segment) => files.leaf_bytes(&segment.leaf),
                    })
                    .sum();
                held > 2 * node.pending.iter().sum::<u64>() + limits.leaf_bytes
            }
            Goal::Range(_) | Goal::Settled => false,
        }
    }

    /// Whether it asks for anything below a pivot of a node.
    fn reaches<F: Files>(&self, node: &Node<F>, pivot: usize) -> bool {
        match self {
            Goal::Range(range) => Goal::meets(range, node, pivot),
            Goal::Reads | Goal::Room(_) | Goal::Settled => true,
        }
    }

    /// Whether a range has keys in common with a pivot's, as far as the node knows that.
    fn meets<F: Files>(range: &KeyRange<'_>, node: &Node<F>, pivot: usize) -> bool {
        let (lower, upper) = node.range(pivot);
        !range.within(lower, upper).is_empty()
    }

    fn is_untidy<F: Files>(&self, child: &Child<F>, files: &F, limits: &Limits) -> bool {
        let Child::Node(node) = child else { return false };
        (0..node.keys.len()).any(|pivot| self.flushes(node, pivot, files, limits))
            || self.merges(node, files, limits)
            || node.children.iter().enumerate().any(|(pivot, child)| {
                self.reaches(node, pivot) && self.is_untidy(child, files, limits)
            })
    }
}

impl<F: Files> Update<'_, F> {
    /// A step towards a goal; `None` if it is reached.
    fn tidy(&mut self, node: &Node<F>, goal: Goal<'_>) -> Result<Option<Siblings<F>>> {
        let mut node = node.to_change();
        let at_once = match (self.is_sparing, node.height) {
            (true, _) => 1,
            (false, 1) => LEAVES_AT_ONCE,
            (false, _) => NODES_AT_ONCE,
        };
        let wanted = |pivot: &usize| goal.flushes(&node, *pivot, self.files, &self.limits);
        let pivots: Vec<usize> = (0..node.keys.len()).filter(wanted).take(at_once).collect();
        if !pivots.is_empty() {
            return match self.flush_many(node, &pivots)? {
                ControlFlow::Continue(node) => self.settle(node),
                ControlFlow::Break(siblings) => Ok(siblings),
            }
            .map(Some);
        }
        if !self.is_sparing && goal.merges(&node, self.files, &self.limits) {
            node.merge_all(self.files, &self.limits, self.superseded)?;
            self.activity.merges += 1;
            return self.settle(node).map(Some);
        }
        let untidy = |pivot: &usize| {
            let child = &node.children[*pivot];
            goal.reaches(&node, *pivot) && goal.is_untidy(child, self.files, &self.limits)
        };
        let Some(pivot) = (0..node.keys.len()).find(untidy) else { return Ok(None) };
        let replacement = match &node.children[pivot] {
            Child::Node(child) if node.pending[pivot] == 0 => {
                let child = Arc::clone(child);
                let siblings = self.tidy(&child, goal)?;
                let siblings = siblings.map_or_else(
                    || vec![(node.keys[pivot].clone(), Child::Node(child))],
                    as_children,
                );
                Replacement { old: pivot..pivot + 1, new: siblings }
            }
            // So that the child may split; its turn comes with the next step.
            _ => self.flush(&mut node, pivot)?,
        };
        if !node.has_room(&replacement) {
            return self.burst(node, replacement).map(Some);
        }
        node.replace(replacement);
        self.settle(node).map(Some)
    }
}

impl<F: Files> Tree<F> {
    /// The tree after a step towards a goal; `None` if it is reached. Pointers to large values that
    /// it does not hold any more are appended to `superseded`.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; this tree is as it was.
    pub(crate) fn tidy(
        &self,
        files: &F,
        step: Step<'_>,
        superseded: &mut Superseded,
    ) -> Result<Option<Tree<F>>> {
        let Some(Child::Node(node)) = &self.root else { return Ok(None) };
        // What it makes is written at once: no batch comes before.
        let mut update = Update::new(files, self.activity, superseded, Some(0));
        update.is_sparing = step.is_sparing;
        update.threads = update.threads.min(TIDYING_THREADS_MAX);
        update.purpose = purpose::TIDY;
        let Some(siblings) = update.tidy(node, step.goal)? else { return Ok(None) };
        self.of_children(update, as_children(siblings)).map(Some)
    }

    /// Whether a step towards a goal is left.
    pub(crate) fn is_untidy(&self, files: &F, goal: Goal<'_>) -> bool {
        self.root.as_ref().is_some_and(|root| goal.is_untidy(root, files, &files.limits()))
    }

    /// About how many pages of leaves the steps towards a goal rebuild.
    pub(crate) fn pages_to_tidy(&self, files: &F, goal: Goal<'_>) -> u64 {
        fn of<F: Files>(child: &Child<F>, files: &F, goal: Goal<'_>, limits: &Limits) -> u64 {
            let Child::Node(node) = child else { return 0 };
            let of_pivot = |pivot: usize| match &node.children[pivot] {
                child @ Child::Leaf(_) if goal.flushes(node, pivot, files, limits) => {
                    child.totals(files).pages.max(1)
                }
                child => of(child, files, goal, limits),
            };
            (0..node.keys.len()).map(of_pivot).sum()
        }
        self.root.as_ref().map_or(0, |root| of(root, files, goal, &files.limits()))
    }

    /// Pages of the leaves that have keys in a range.
    pub(crate) fn pages_in(&self, files: &F, range: &KeyRange<'_>) -> u64 {
        fn of<F: Files>(child: &Child<F>, files: &F, range: &KeyRange<'_>) -> u64 {
            let Child::Node(node) = child else { return child.totals(files).pages };
            let meets = |pivot: &usize| Goal::meets(range, node, *pivot);
            let pivots = (0..node.keys.len()).filter(meets);
            pivots.map(|pivot| of(&node.children[pivot], files, range)).sum()
        }
        self.root.as_ref().map_or(0, |root| of(root, files, range))
    }

    /// Where `count` leaves from the one that has a key end, if not at the end of the tree.
    pub(crate) fn end_of_leaves(&self, from: &[u8], mut count: usize) -> Option<Key> {
        end_of_leaves(self.root.as_ref()?, from, &mut count)
    }
}

/// See [`Tree::end_of_leaves`]; `left` is how many are left of them.
fn end_of_leaves<F: Files>(child: &Child<F>, from: &[u8], left: &mut usize) -> Option<Key> {
    let Child::Node(node) = child else {
        *left -= 1;
        return None;
    };
    for pivot in pivot_of(&node.keys, from)..node.keys.len() {
        if *left == 0 {
            // Some leaf came before it.
            return Some(Arc::clone(&node.keys[pivot]));
        }
        let end = end_of_leaves(&node.children[pivot], from, left);
        if end.is_some() {
            return end;
        }
    }
    None
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use spinney_base::shim::atomic::Ordering::Relaxed;

    use super::*;
    use crate::check::check;
    use crate::double::Double;
    use crate::runs::Runs;
    use crate::tests::{limits, run};

    /// Segments beside the leaf on the path to each, summed; and the leaves.
    fn segments(node: &Node<Double>, above: usize) -> (usize, usize) {
        let (mut beside, mut leaves) = (0, 0);
        for (pivot, child) in node.children.iter().enumerate() {
            let levels = node.levels.iter().map(|level| &level.parts);
            let here = levels.filter(|parts| {
                parts.iter().any(|part| match part {
                    crate::levels::Part::Segment(segment) => segment.is_active(pivot),
                    crate::levels::Part::Run(_) => true,
                })
            });
            let above = above + here.count();
            let (more, below) = match child {
                Child::Node(node) => segments(node, above),
                Child::Leaf(_) => (above, 1),
            };
            (beside, leaves) = (beside + more, leaves + below);
        }
        (beside, leaves)
    }

    #[test]
    fn what_waits_is_brought_down_to_little() {
        let limits = Limits { edit_bytes_max: 64, ..limits(4096, 16) };
        let files = Double::new(limits);
        let mut tree = Tree::empty();
        let mut rng = StdRng::seed_from_u64(11);
        for _ in 0..400 {
            let mut keys: Vec<[u8; 8]> =
                (0..90).map(|_| rng.random::<u64>().to_be_bytes()).collect();
            keys.sort_unstable();
            let edits = Runs::from(run(keys.iter().map(|key| (&key[..], Some(&[7; 24][..])))));
            tree = tree.apply(&files, &edits, None, &mut Vec::new()).unwrap();
        }
        tree = tree.write(&files, &mut Vec::new()).unwrap();
        let beside = |tree: &Tree<Double>| {
            let Some(Child::Node(root)) = &tree.root else { panic!("a tree of one leaf") };
            let (beside, leaves) = segments(root, 0);
            beside as f64 / leaves as f64
        };
        let before = beside(&tree);
        let written = files.counts.bytes_written.load(Relaxed);
        let mut steps = 0;
        while let Some(tidied) =
            tree.tidy(&files, Step::with_room(Goal::Reads), &mut Vec::new()).unwrap()
        {
            // What is made is on pages, but for nodes and what a merge of levels left.
            tree = tidied.write(&files, &mut Vec::new()).unwrap();
            steps += 1;
        }
        check(&tree, &files, true).unwrap();
        let after = beside(&tree);
        let pages = (files.counts.bytes_written.load(Relaxed) - written) as f64;
        let all = files.bytes() as f64;
        println!(
            "{before:.1} segments beside a leaf before, {after:.1} after {steps} steps that wrote \
             {:.1} times what there is",
            pages / all
        );
        assert!(before > 2.0 && after < before / 4.0 && pages < 1.5 * all);
    }
}
