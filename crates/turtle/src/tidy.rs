//! Bringing down what waits, when ranges pay for it.
//!
//! A buffer saves writes and costs reads: a range looks into each of its levels beside the leaf, and the
//! pages of segments take memory from those of leaves. While writes are many that is the bargain of
//! the tree (section 3.2). When they are few, it is paid for again and again by who only reads.
//!
//! So the background *tidies*, a bounded step at a time: pivots for which an eighth of a leaf is pending
//! ([`Limits::tidy_bytes`], in the place of a half or more) are flushed, from the root down, and what is left in a
//! node's buffer is made one level if it has more than two. It begins when ranges since the last time have looked into so many
//! segments beside leaves as it will cost pages to make the leaves anew, so that never more is spent
//! than was paid ([`Core::wants_tidying`]); and it goes on only while no batch waits. Each step is written, with what
//! was pending: the checkpoint distance is for writes, of which there are few then.
//!
//! The paper leaves the buffers as the last batch left them.
//!
//! **Invariant**: a tidied tree has the same records; only where they lie changes.

use std::ops::ControlFlow;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Result, probe};
use spinney_io::Purpose;

use crate::core::Core;
use crate::crew::CREW_MAX;
use crate::files::{Files, Limits};
use crate::merge::Superseded;
use crate::node::{Child, Node, Replacement};
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

impl<F: Files> Node<F> {
    /// Whether so much is pending for one of its pivots.
    fn is_full_of(&self, bytes: u64) -> bool {
        self.pending.iter().any(|pending| *pending >= bytes)
    }

    fn has_many_levels(&self) -> bool {
        self.levels.iter().filter(|level| !level.is_vacant()).count() > LEVELS_MAX
    }
}

impl<F: Files> Child<F> {
    fn is_untidy(&self, limits: &Limits) -> bool {
        let Child::Node(node) = self else { return false };
        node.is_full_of(limits.tidy_bytes())
            || node.has_many_levels()
            || node.children.iter().any(|child| child.is_untidy(limits))
    }
}

impl<F: Files> Update<'_, F> {
    /// A step towards less that reads have to look into; `None` if there is nothing that is worth it.
    pub(crate) fn tidy(&mut self, node: &Node<F>) -> Result<Option<Siblings<F>>> {
        let mut node = node.to_change();
        if node.is_full_of(self.limits.tidy_bytes()) {
            return self.flush_some(node).map(Some);
        }
        if node.has_many_levels() {
            node.merge_all(self.files, &self.limits, self.superseded)?;
            self.activity.merges += 1;
            return self.settle(node).map(Some);
        }
        let untidy = node.children.iter().position(|child| child.is_untidy(&self.limits));
        let Some(pivot) = untidy else { return Ok(None) };
        let replacement = match &node.children[pivot] {
            Child::Node(child) if node.pending[pivot] == 0 => {
                let child = Arc::clone(child);
                let siblings = self.tidy(&child)?;
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

    /// Flushes pivots for which so much is pending that it is worth it.
    fn flush_some(&mut self, node: Node<F>) -> Result<Siblings<F>> {
        let most = self.limits.tidy_bytes();
        let full = |pivot: &usize| node.pending[*pivot] >= most;
        let at_once = if node.height > 1 { NODES_AT_ONCE } else { LEAVES_AT_ONCE };
        let pivots: Vec<usize> = (0..node.keys.len()).filter(full).take(at_once).collect();
        match self.flush_many(node, &pivots)? {
            ControlFlow::Continue(node) => self.settle(node),
            ControlFlow::Break(siblings) => Ok(siblings),
        }
    }
}

impl<F: Files> Tree<F> {
    /// The tree after a step towards less that reads have to look into; `None` if nothing is worth
    /// it. Pointers to large values that it does not hold any more are appended to `superseded`.
    ///
    /// # Errors
    /// `Corruption`, `Full`, `Poisoned` or `Io`; this tree is as it was.
    pub(crate) fn tidy(&self, files: &F, superseded: &mut Superseded) -> Result<Option<Tree<F>>> {
        let Some(Child::Node(node)) = &self.root else { return Ok(None) };
        // What it makes is written at once: no batch comes before.
        let mut update = Update::new(files, self.activity, superseded, Some(0));
        update.threads = update.threads.min(THREADS_MAX);
        update.purpose = Purpose::Tidy;
        let Some(siblings) = update.tidy(node)? else { return Ok(None) };
        self.of_children(update, as_children(siblings)).map(Some)
    }
}

impl Core {
    /// Whether ranges have paid for it by now, and for writing what is pending before the checkpoint distance
    /// says so.
    pub(crate) fn wants_tidying(&self) -> bool {
        let looks = self.files.disk.beside() - self.tidied.load(Relaxed);
        let pending = self.view.load().tree.pending().bytes / PAGE_BYTES as u64;
        looks > (self.files.pages() + pending).saturating_mul(LOOKS_A_PAGE)
    }

    /// Makes a step, and writes it; says whether there was one to be made.
    pub(crate) fn tidy(&self) -> Result<bool> {
        let mut work = self.work.lock();
        let _inside = probe::enter("tidying");
        // For the memory: what nodes merge is in it until the step is written.
        self.call_crew(CREW_MAX);
        let view = self.view.load_full();
        let log = &self.context.log;
        let end = log.last_lsn();
        log.ensure_durable(end)?;
        let mut merged_away = Vec::new();
        let tidied = match view.tree.tidy(end, &mut merged_away) {
            // Nobody needs it so much that he should hear of it.
            Err(error) if error.is_full() => None,
            tidied => tidied?,
        };
        let Some(tree) = tidied else {
            self.tidied.store(self.files.disk.beside(), Relaxed);
            return Ok(false);
        };
        // Else what the step took the place of would outlive the checkpoint.
        drop(view);
        self.put_tree(&work, tree, merged_away);
        self.write(&mut work)?;
        Ok(true)
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
        while let Some(tidied) = tree.tidy(&files, &mut Vec::new()).unwrap() {
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
