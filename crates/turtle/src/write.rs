//! Writing: what a tree has in memory becomes leaves, segments and node pages.
//!
//! ```text
//!   merge   the levels in memory of each node, into one
//!   plan    every run in memory, cut into even parts of a leaf at most, in the tree's order
//!   write   the parts, by several threads: pages and filters are built here and only here
//!   place   the tree once more in the same order, with what was written instead of runs;
//!           nodes are packed after their children
//! ```
//!
//! The first step is left out, nodes are not packed, and only what has settled is taken when a part
//! is written early ([`Tree::write_early`], the streaming of the paper's outlook).
//!
//! Only what is live now is written: levels and leaves that came and went since the last time never
//! were pages (section 3.3). Which leaf holds what does not depend on the number of threads. When a
//! write fails, what was written before it goes with its last reference, and the tree in memory
//! stays what it was.

use std::sync::Arc;

use spinney_base::Result;

use crate::files::{Files, Limits, batches_below, write_parts};
use crate::kinds::purpose;
use crate::levels::{Level, Part, Segment};
use crate::merge::Superseded;
use crate::node::{Child, Leaf, Node};
use crate::packed;
use crate::policy::EARLY_LEVEL_MIN;
use crate::runs::Runs;
use crate::tree::Tree;

impl<F: Files> Tree<F> {
    /// The same tree with everything on pages. Leaves are built by several threads at once.
    /// What merging levels in memory supersedes is appended to `superseded`.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn write(&self, files: &F, superseded: &mut Superseded) -> Result<Tree<F>> {
        let Some(root) = &self.root else { return Ok(self.clone()) };
        let limits = files.limits();
        let root = merge_memory(root, files, &limits, superseded)?;
        let mut parts = Vec::new();
        plan(&root, files, &limits, What::All, &mut parts);
        let mut written = write_parts(files, &parts, purpose::LEAF)?.into_iter();
        drop(parts);
        let root = place(&root, files, &limits, What::All, &mut written)?;
        Ok(Tree { root: Some(root), activity: self.activity })
    }

    /// The same tree with that written early which is likely to be there still when `batches` more
    /// were applied and the tree is written: less memory for few more writes. With no more batches
    /// to come that is everything but the nodes.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn write_early(&self, files: &F, batches: u64) -> Result<Tree<F>> {
        let Some(root) = &self.root else { return Ok(self.clone()) };
        let limits = files.limits();
        let mut parts = Vec::new();
        let what = What::Settled(batches);
        plan(root, files, &limits, what, &mut parts);
        if parts.is_empty() {
            return Ok(self.clone());
        }
        let mut written = write_parts(files, &parts, purpose::EARLY)?.into_iter();
        drop(parts);
        let root = place(root, files, &limits, what, &mut written)?;
        Ok(Tree { root: Some(root), activity: self.activity })
    }
}

/// What of a tree is to be written.
#[derive(Clone, Copy)]
enum What {
    /// Everything, and nodes with it.
    All,
    /// What will still be there after this many batches.
    Settled(u64),
}

impl What {
    /// What of a child of a node: flushes reach it more seldom.
    fn below<F: Files>(self, node: &Node<F>) -> What {
        match self {
            What::All => What::All,
            What::Settled(batches) => What::Settled(batches_below(batches, node.keys.len())),
        }
    }

    /// Whether a level of a node is: the levels above it count batches like digits of a binary
    /// number, and it takes part in a merge when they overflow.
    fn has_level<F: Files>(self, node: &Node<F>, level: usize) -> bool {
        let What::Settled(batches) = self else { return true };
        if batches > 0 && level < EARLY_LEVEL_MIN {
            return false;
        }
        let occupied = |above: &usize| !node.levels[*above].is_vacant();
        let counted: u64 = (0..level).filter(occupied).map(|above| 1 << above).sum();
        batches < (1 << level) - counted
    }

    /// Whether the leaf of a pivot is: it will not be flushed to.
    fn has_leaf<F: Files>(self, node: &Node<F>, pivot: usize, files: &F, limits: &Limits) -> bool {
        let What::Settled(batches) = self else { return true };
        let most = node.pending_max(pivot, files, limits);
        limits.leaf_stays(batches, node.keys.len(), node.pending[pivot], most)
    }
}

impl<F: Files> Node<F> {
    /// Writes the runs of its levels. The node itself is not written.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn write_levels(&mut self, files: &F) -> Result<()> {
        let mut parts = Vec::new();
        plan_levels(self, &files.limits(), What::All, &mut parts);
        let mut written = write_parts(files, &parts, purpose::LEAF)?.into_iter();
        self.levels = place_levels(self, &files.limits(), What::All, &mut written);
        Ok(())
    }
}

/// Merges what is in memory in every node that is to be written.
fn merge_memory<F: Files>(
    child: &Child<F>,
    files: &F,
    limits: &Limits,
    superseded: &mut Superseded,
) -> Result<Child<F>> {
    match child {
        Child::Node(node) if node.pages.is_none() => {
            let mut merged = node.to_change();
            merged.merge_memory(files, limits, superseded)?;
            for child in &mut merged.children {
                *child = merge_memory(child, files, limits, superseded)?;
            }
            Ok(Child::Node(Arc::new(merged)))
        }
        child => Ok(child.clone()),
    }
}

/// Gathers what is to be written, in the order in which [`place`] takes it. The same limits go to
/// both: those of the keyspace may change meanwhile.
fn plan<F: Files>(child: &Child<F>, files: &F, limits: &Limits, what: What, parts: &mut Vec<Runs>) {
    match child {
        Child::Leaf(Leaf::Memory(runs)) => parts.push(runs.clone()),
        Child::Node(node) if node.pages.is_none() => {
            plan_levels(node, limits, what, parts);
            for (pivot, child) in node.children.iter().enumerate() {
                if matches!(child, Child::Node(_)) || what.has_leaf(node, pivot, files, limits) {
                    plan(child, files, limits, what.below(node), parts);
                }
            }
        }
        _ => {}
    }
}

fn plan_levels<F: Files>(node: &Node<F>, limits: &Limits, what: What, parts: &mut Vec<Runs>) {
    for (number, level) in node.levels.iter().enumerate() {
        if what.has_level(node, number) {
            for group in groups(level) {
                if let Group::Runs(runs) = group {
                    parts.extend(runs.full_parts(limits.leaf_bytes));
                }
            }
        }
    }
}

/// A segment, or runs with no segment between them.
enum Group<F: Files> {
    Runs(Runs),
    Segment(Segment<F>),
}

fn groups<F: Files>(level: &Level<F>) -> Vec<Group<F>> {
    let mut groups: Vec<Group<F>> = Vec::new();
    for part in &level.parts {
        match (part, groups.last_mut()) {
            (Part::Run(run), Some(Group::Runs(runs))) => runs.push(run.clone()),
            (Part::Run(run), _) => groups.push(Group::Runs(Runs::from(run.clone()))),
            (Part::Segment(segment), _) => groups.push(Group::Segment(segment.clone())),
        }
    }
    groups
}

fn place<F: Files>(
    child: &Child<F>,
    files: &F,
    limits: &Limits,
    what: What,
    written: &mut impl Iterator<Item = Arc<F::Leaf>>,
) -> Result<Child<F>> {
    match child {
        Child::Leaf(Leaf::Memory(_)) => {
            Ok(Child::Leaf(Leaf::Written(written.next().expect("every part was written"))))
        }
        Child::Node(node) if node.pages.is_none() => {
            let mut placed = node.to_change();
            placed.levels = place_levels(node, limits, what, written);
            for (pivot, child) in placed.children.iter_mut().enumerate() {
                if matches!(child, Child::Node(_)) || what.has_leaf(node, pivot, files, limits) {
                    *child = place(child, files, limits, what.below(node), written)?;
                }
            }
            if matches!(what, What::All) {
                placed.pages = Some(files.write_node(&packed::pack(&placed, files)?.encode())?);
            }
            Ok(Child::Node(Arc::new(placed)))
        }
        child => Ok(child.clone()),
    }
}

fn place_levels<F: Files>(
    node: &Node<F>,
    limits: &Limits,
    what: What,
    written: &mut impl Iterator<Item = Arc<F::Leaf>>,
) -> Vec<Level<F>> {
    let place_level = |(number, level): (usize, &Level<F>)| {
        if !what.has_level(node, number) {
            return level.clone();
        }
        let mut placed: Level<F> = Level::default();
        for group in groups(level) {
            let runs = match group {
                Group::Runs(runs) => runs,
                Group::Segment(segment) => {
                    placed.parts.push(Part::Segment(segment));
                    continue;
                }
            };
            let mut last: Option<Vec<u8>> = None;
            for part in runs.full_parts(limits.leaf_bytes) {
                let leaf = written.next().expect("every part was written");
                placed.push_written(&node.keys, &part, leaf, &mut last);
            }
        }
        placed
    };
    node.levels.iter().enumerate().map(place_level).collect()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use spinney_engine::Found;

    use super::*;
    use crate::check::check;
    use crate::double::Double;
    use crate::tests::{limits, run};

    /// Another thread gives memory, or a flush tells what is new, while a tree is being written.
    #[test]
    fn limits_that_change_meanwhile_change_nothing_of_what_is_written() {
        let limits = Limits { edit_bytes_max: 64, ..limits(4096, 4) };
        let mut files = Double::new(limits);
        files.wavers = true;
        let mut tree = Tree::empty();
        let mut rng = StdRng::seed_from_u64(12);
        let mut keys: std::collections::BTreeSet<[u8; 8]> = std::collections::BTreeSet::new();
        for batch in 0..300u64 {
            let mut batch_keys: Vec<[u8; 8]> =
                (0..90).map(|_| rng.random::<u64>().to_be_bytes()).collect();
            batch_keys.sort_unstable();
            keys.extend(&batch_keys);
            let edits = batch_keys.iter().map(|key| (&key[..], Some(&[7; 24][..])));
            let left = 7 - batch % 8;
            let edits = Runs::from(run(edits));
            tree = tree.apply(&files, &edits, None, &mut Vec::new()).unwrap();
            tree = tree.write_early(&files, left).unwrap();
            if left == 0 {
                tree = tree.write(&files, &mut Vec::new()).unwrap();
            }
        }
        assert!(tree.height() > 2, "one node has nothing to disagree about");
        check(&tree, &files, false).unwrap();
        for key in &keys {
            assert_eq!(tree.get(&files, key, 0, &mut Vec::new()).unwrap(), Found::Inline);
        }
    }
}
