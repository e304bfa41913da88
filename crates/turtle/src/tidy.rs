//! Flushing what is pending, when ranges pay for it, when removed records take room, or when a caller
//! asks for it.
//!
//! A buffer saves writes and costs reads: a range looks into each of its levels beside the leaf, and the
//! pages of segments take memory from those of leaves. While writes are many that is the bargain of
//! the tree (section 3.2). When they are few, every range pays for it again. And a removal is a tombstone
//! of some twenty bytes that keeps a record of any size in its leaf.
//!
//! So the background *tidies*, one bounded step at a time, from the root down, for one [`Goal`]:
//!
//! ```text
//!   goal     begins when                                        flushes pivots
//!   Reads    ranges looked into as many segments beside leaves  for which an eighth of a leaf is pending
//!            as rebuilding the leaves costs pages
//!   Room     no write came for [`QUIET`], or ranges passed as   whose tombstones remove an eighth (a 64th)
//!            many tombstones as flushing these costs            of what lies below them
//!   Range    a caller compacts a range                          for which anything is pending in it
//!   Settled  a full disk kept batches in the topmost levels     for which much is pending, one by one
//! ```
//!
//! `Reads` and `Room` also merge the levels of a buffer, the first where ranges look into more than two, the
//! second where most of what its segments hold was flushed. A step of the background begins only while no batch
//! waits. Each step is written with what was pending: the checkpoint distance is for writes, of which
//! there are few then.
//!
//! **Dead space** is bounded: in a quiet keyspace less than an eighth of the bytes below a pivot is removed by
//! tombstones that are pending for it, in each level of nodes. Tombstones are counted ([`Node::tombstones`]);
//! how much each removes is taken to be the average record below.
//!
//! The paper leaves the buffers as the last batch left them.
//!
//! **Invariants**
//! 1. A tidied tree has the same records; only where they lie changes. A holder of another version of
//!    the tree (a snapshot, a reader) keeps its pages.
//! 2. A step lessens what its goal asks for, so steps come to an end while no batch comes.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::Ordering::{Relaxed, SeqCst};
use spinney_base::{Result, probe};
use spinney_engine::Compacted;
use spinney_io::without_reserve;

use crate::core::Core;
use crate::crew::CREW_MAX;
use crate::files::{Files, Limits};
use crate::kinds::purpose;
use crate::levels::{Key, Part, pivot_of};
use crate::merge::Superseded;
use crate::node::{Child, Node, Replacement, TOMBSTONE_BYTES};
use crate::range::KeyRange;
use crate::tree::Tree;
use crate::update::{Siblings, Update, as_children};

/// Pivots that one step flushes to leaves: some 60 MiB that are read and written.
const LEAVES_AT_ONCE: usize = 16;

/// The same for pivots above nodes: what comes into their buffers, and levels that are made one there, is in
/// memory until the step is written.
const NODES_AT_ONCE: usize = 2;

/// Threads of a step: ranges that it is for wait for the same disk and processors.
const THREADS_MAX: usize = 2;

/// Levels of a buffer that a range may look into when all is tidy.
const LEVELS_MAX: usize = 2;

/// A look into one segment more costs a range about a third of a page that is read alone when nothing has to be read for
/// it, and making a page of a leaf anew (it is read and written, with others) as much as half of one.
const LOOKS_A_PAGE: u64 = 2;

/// A keyspace is quiet when nothing was written to it for this long. Shorter, and a pause of a writer costs
/// flushes that the next batches would have shared.
const QUIET: Duration = Duration::from_secs(1);

/// The share of what lies below a pivot, as one in this many bytes, that tombstones for it may remove in a
/// quiet keyspace. Fewer flushes of larger shares write less and keep more room taken.
const QUIET_PART: u64 = 8;

/// The same where ranges passed many tombstones: they do so again each time.
const PASSED_PART: u64 = 64;

/// Rebuilding a page of a leaf costs about as much as passing this many tombstones, of some 50 ns each.
const TOMBSTONES_A_PAGE: u64 = 128;

/// Small steps that one writer waits for whom a full disk refused: each flushes to one leaf.
const ROOM_STEPS_MAX: usize = 64;

/// Steps of one piece of a compaction: more than the leaves of a piece need in a tree of any height.
const COMPACT_STEPS_MAX: usize = 64;

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
    fn with_room(goal: Goal<'a>) -> Step<'a> {
        Step { goal, is_sparing: false }
    }

    fn sparing(goal: Goal<'a>) -> Step<'a> {
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
                node.levels.iter().filter(|level| !level.is_vacant()).count() > LEVELS_MAX
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
        update.threads = update.threads.min(THREADS_MAX);
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

/// Since when nothing came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastWrite {
    /// The active memtable and its bytes, as they were when that was last looked at.
    seen: (u64, u64),
    since: Duration,
}

impl Core {
    /// Whether ranges have paid for it by now, and for writing what is pending before the checkpoint distance
    /// says so.
    fn wants_tidying(&self) -> bool {
        let looks = self.files.disk.beside() - self.tidied.load(Relaxed);
        let pending = self.view.load().tree.pending().bytes / PAGE_BYTES as u64;
        looks > (self.files.pages() + pending).saturating_mul(LOOKS_A_PAGE)
    }

    /// Whether nothing was written for [`QUIET`].
    fn is_quiet(&self) -> bool {
        let (view, now) = (self.view.load(), self.context.runtime.now());
        let seen = (view.tables[0].number(), view.tables[0].bytes());
        let mut last = self.last_write.lock();
        if last.seen != seen {
            *last = LastWrite { seen, since: now };
        }
        now.saturating_sub(last.since) >= QUIET
    }

    /// Whether ranges have passed as many tombstones as it costs to flush them.
    fn wants_fewer_tombstones(&self) -> bool {
        let all = self.files.disk.all_passed().tombstones;
        if all < self.passed_next.load(Relaxed) {
            return false;
        }
        let passed = all - self.passed.load(Relaxed);
        let view = self.view.load();
        let pages = view.tree.pages_to_tidy(Goal::Room(PASSED_PART));
        let pages = pages.max(view.tables[0].bytes() / PAGE_BYTES as u64).max(1);
        let price = pages.saturating_mul(TOMBSTONES_A_PAGE);
        let next = price.saturating_sub(passed) / 8 + TOMBSTONES_A_PAGE;
        self.passed_next.store(all + next, Relaxed);
        passed > price
    }

    /// Makes a step, if there is time for one and something to gain; says whether it did. For the background.
    ///
    /// # Errors
    /// `Corruption`, `Poisoned` or `Io`.
    pub(crate) fn tidy_in_background(&self) -> Result<bool> {
        // A backup would have to follow, and nothing that is freed is reused meanwhile.
        if self.files.store.is_held() {
            return Ok(false);
        }
        if self.is_crowded.load(SeqCst) && self.is_quiet() {
            match self.tidy_if_room(Goal::Settled)? {
                Some(true) => return Ok(true),
                Some(false) => self.is_crowded.store(false, SeqCst),
                None => self.last_write.lock().since = self.context.runtime.now(),
            }
        }
        let applied = self.counters.applied.load(Relaxed);
        if self.drained.load(Relaxed) != applied && self.is_quiet() {
            match self.tidy_if_room(Goal::Room(QUIET_PART))? {
                Some(true) => return Ok(true),
                Some(false) => self.drained.store(applied, Relaxed),
                // What the steps before have freed may be reused a little later.
                None => self.last_write.lock().since = self.context.runtime.now(),
            }
        }
        if self.wants_fewer_tombstones() {
            if self.tidy_if_room(Goal::Room(PASSED_PART))? == Some(true) {
                // Until there are none: what was passed has paid for all of them.
                self.passed_next.store(0, Relaxed);
                return Ok(true);
            }
            self.passed.store(self.files.disk.all_passed().tombstones, Relaxed);
            // Those of the memtable come next.
            return Ok(self.seal_for_reads());
        }
        if !self.wants_tidying() {
            return Ok(false);
        }
        let tidied = self.tidy_if_room(Goal::Reads)? == Some(true);
        if !tidied {
            self.tidied.store(self.files.disk.beside(), Relaxed);
        }
        Ok(tidied)
    }

    /// A step that nobody needs so badly that he should hear of a full disk; nothing if that had no room for it.
    fn tidy_if_room(&self, goal: Goal<'_>) -> Result<Option<bool>> {
        match self.tidy(goal) {
            Err(error) if error.is_full() => Ok(None),
            tidied => tidied.map(Some),
        }
    }

    /// Makes a step towards a goal, and writes it; says whether there was one to be made. It is a small one where
    /// the disk is full.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; all is as it was.
    fn tidy(&self, goal: Goal<'_>) -> Result<bool> {
        match without_reserve(|| self.make_step(Step::with_room(goal))) {
            Err(error) if error.is_full() => {
                self.files.store.give_all_back()?;
                self.make_step(Step::sparing(goal))
            }
            made => made,
        }
    }

    /// Makes room in the file by small steps, while there is something to gain and the disk has the room that they take.
    ///
    /// # Errors
    /// `Corruption`, `Poisoned` or `Io`.
    pub(crate) fn make_room_on_disk(&self) -> Result<()> {
        self.make_small_steps(Goal::Room(QUIET_PART)).map(drop)
    }

    /// Flushes by small steps what a full disk made wait in the topmost levels.
    ///
    /// # Errors
    /// `Corruption`, `Poisoned` or `Io`.
    pub(crate) fn settle_in_steps(&self) -> Result<()> {
        if self.is_crowded.load(SeqCst) && self.make_small_steps(Goal::Settled)? {
            self.is_crowded.store(false, SeqCst);
        }
        Ok(())
    }

    /// Makes small steps towards a goal; says whether it is reached.
    fn make_small_steps(&self, goal: Goal<'_>) -> Result<bool> {
        for _ in 0..ROOM_STEPS_MAX {
            match self.make_step(Step::sparing(goal)) {
                Ok(true) => self.files.store.give_all_back()?,
                Ok(false) => return Ok(true),
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        self.files.store.give_all_back()?;
        Ok(false)
    }

    fn make_step(&self, step: Step<'_>) -> Result<bool> {
        let mut work = self.work.lock();
        let _inside = probe::enter("tidying");
        let view = self.view.load_full();
        if !view.tree.is_untidy(step.goal) {
            return Ok(false);
        }
        // For the memory: what nodes merge is in it until the step is written. Caches give it up, so not before it
        // is needed.
        self.call_crew(CREW_MAX);
        let log = &self.context.log;
        let end = log.last_lsn();
        log.ensure_durable(end)?;
        let mut merged_away = Vec::new();
        let tidied = view.tree.tidy(end, step, &mut merged_away)?;
        let Some(tree) = tidied else { return Ok(false) };
        // Else what the step took the place of would outlive the checkpoint.
        drop(view);
        self.put_tree(&work, tree, merged_away);
        self.write(&mut work)?;
        Ok(true)
    }

    /// Flushes all that is pending for some leaves of a range, from the one with `from` on.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; the records are as they were.
    pub(crate) fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        let tree = self.view.load().tree.clone();
        let end = tree.end_of_leaves(from, LEAVES_AT_ONCE);
        let beyond = KeyRange { lower: Bound::Included(from), upper };
        let beyond = end.filter(|end| !beyond.within(end, None).is_empty());
        let upper = beyond.as_deref().map_or(upper, Bound::Excluded);
        let range = KeyRange { lower: Bound::Included(from), upper };
        let bytes = tree.pages_in(&range) * PAGE_BYTES as u64;
        // Else what a step takes the place of would outlive its checkpoint.
        drop(tree);
        // Bounded: a fast writer could keep this busy for ever.
        for _ in 0..COMPACT_STEPS_MAX {
            if !self.tidy(Goal::Range(range))? {
                break;
            }
        }
        Ok(Compacted { bytes, next: beyond.map(|key| key.to_vec()) })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

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
