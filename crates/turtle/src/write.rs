//! Writing: what a tree has in memory becomes leaves, segments and node pages.
//!
//! ```text
//!   merge   the levels in memory of each node, into one
//!   plan    every run in memory, cut into even parts of a leaf at most, in the tree's order
//!   write   the parts, by several threads: pages and filters are built here and only here
//!   place   the tree once more in the same order, with what was written in the place of runs;
//!           nodes are packed after their children
//! ```
//!
//! Only what is live now is written: levels and leaves that came and went since the last time never
//! were pages (section 3.3). Which leaf holds what does not depend on the number of threads. When a
//! write fails, what was written before it goes with its last reference, and the tree in memory
//! stays what it was.

use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicUsize, Ordering};
use spinney_base::{Error, Result};

use crate::edit::separator;
use crate::files::{Files, Limits};
use crate::levels::{Key, Level, Part, Segment, by_pivot, pivot_of, set};
use crate::node::{Child, Leaf, Node};
use crate::packed;
use crate::run::Run;
use crate::runs::Runs;
use crate::tree::Tree;

impl<F: Files> Tree<F> {
    /// The same tree with everything on pages. Leaves are built by up to `threads` threads at once.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn write(&self, files: &F, threads: usize) -> Result<Tree<F>> {
        let Some(root) = &self.root else { return Ok(self.clone()) };
        let limits = files.limits();
        let root = merge_memory(root, files, &limits)?;
        let mut parts = Vec::new();
        plan(&root, &limits, &mut parts);
        let mut written = write_parts(files, &parts, threads)?.into_iter();
        drop(parts);
        let root = place(&root, files, &mut written)?;
        Ok(Tree { root: Some(root), activity: self.activity })
    }

    /// The same tree with leaves written, in the order of keys, until about `bytes` are less in
    /// memory. No node is: what is written here is lost with the tree, and is not written again by
    /// [`Tree::write`] unless it changes.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn write_leaves(&self, files: &F, bytes: u64) -> Result<Tree<F>> {
        let mut left = bytes;
        let root = match &self.root {
            Some(root) => Some(write_leaves(root, files, &mut left)?),
            None => None,
        };
        Ok(Tree { root, activity: self.activity })
    }
}

impl<F: Files> Node<F> {
    /// Writes the runs of its levels. The node itself is not written.
    #[cfg(test)]
    pub(crate) fn write_levels(&mut self, files: &F) -> Result<()> {
        let mut parts = Vec::new();
        plan_levels(self, &files.limits(), &mut parts);
        let mut written = write_parts(files, &parts, 1)?.into_iter();
        self.levels = place_levels(self, &files.limits(), &mut written);
        Ok(())
    }
}

/// Merges what is in memory in every node that is to be written.
fn merge_memory<F: Files>(child: &Child<F>, files: &F, limits: &Limits) -> Result<Child<F>> {
    match child {
        Child::Node(node) if node.pages.is_none() => {
            let mut merged = node.to_change();
            merged.merge_memory(files, limits)?;
            for child in &mut merged.children {
                *child = merge_memory(child, files, limits)?;
            }
            Ok(Child::Node(Arc::new(merged)))
        }
        child => Ok(child.clone()),
    }
}

fn plan<F: Files>(child: &Child<F>, limits: &Limits, parts: &mut Vec<Runs>) {
    match child {
        Child::Leaf(Leaf::Memory(runs)) => parts.push(runs.clone()),
        Child::Node(node) if node.pages.is_none() => {
            plan_levels(node, limits, parts);
            node.children.iter().for_each(|child| plan(child, limits, parts));
        }
        _ => {}
    }
}

fn plan_levels<F: Files>(node: &Node<F>, limits: &Limits, parts: &mut Vec<Runs>) {
    for group in node.levels.iter().flat_map(groups) {
        if let Group::Runs(runs) = group {
            parts.extend(runs.full_parts(limits.leaf_bytes));
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
    written: &mut impl Iterator<Item = Arc<F::Leaf>>,
) -> Result<Child<F>> {
    match child {
        Child::Leaf(Leaf::Memory(_)) => {
            Ok(Child::Leaf(Leaf::Written(written.next().expect("every part was written"))))
        }
        Child::Node(node) if node.pages.is_none() => {
            let mut placed = node.to_change();
            placed.levels = place_levels(node, &files.limits(), written);
            placed.children = node
                .children
                .iter()
                .map(|child| place(child, files, written))
                .collect::<Result<_>>()?;
            placed.pages = Some(files.write_node(&packed::pack(&placed, files)?.encode())?);
            Ok(Child::Node(Arc::new(placed)))
        }
        child => Ok(child.clone()),
    }
}

fn place_levels<F: Files>(
    node: &Node<F>,
    limits: &Limits,
    written: &mut impl Iterator<Item = Arc<F::Leaf>>,
) -> Vec<Level<F>> {
    let place_level = |level: &Level<F>| {
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
                let first = part.first_key().expect("no part is empty");
                let lower = match &last {
                    Some(last) => separator(last, first).into(),
                    None => fence(node, placed.parts.last(), first),
                };
                last = part.last_key().map(<[u8]>::to_vec);
                let active = active(node, part.as_slice());
                placed.parts.push(Part::Segment(Segment { leaf, lower, upper: None, active }));
            }
        }
        placed
    };
    node.levels.iter().map(place_level).collect()
}

/// A short lower fence for a segment that begins with `first`, behind `before`.
fn fence<F: Files>(node: &Node<F>, before: Option<&Part<F>>, first: &[u8]) -> Key {
    let pivot = pivot_of(&node.keys, first);
    match before {
        Some(Part::Segment(before)) if before.active & !set(0..pivot) != 0 => first.into(),
        _ => Arc::clone(&node.keys[pivot]),
    }
}

fn active<F: Files>(node: &Node<F>, runs: &[Run]) -> u128 {
    let mut active = 0;
    for run in runs {
        by_pivot(run, &node.keys, |pivot, _| active |= set(pivot..pivot + 1));
    }
    active
}

/// Writes leaves, in order; all or none.
fn write_parts<F: Files>(files: &F, parts: &[Runs], threads: usize) -> Result<Vec<Arc<F::Leaf>>> {
    if threads < 2 || parts.len() < 2 {
        return parts.iter().map(|part| files.write_leaf(part)).collect();
    }
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let written: Mutex<Vec<Option<Arc<F::Leaf>>>> = Mutex::new(vec![None; parts.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(parts.len()) {
            scope.spawn(|| {
                while let Some((index, part)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|at| Some((at, parts.get(at)?)))
                {
                    if failed.lock().is_some() {
                        return;
                    }
                    match files.write_leaf(part) {
                        Ok(leaf) => written.lock()[index] = Some(leaf),
                        Err(error) => *failed.lock() = Some(error),
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    Ok(written.into_inner().into_iter().flatten().collect())
}

fn write_leaves<F: Files>(child: &Child<F>, files: &F, left: &mut u64) -> Result<Child<F>> {
    match child {
        Child::Leaf(Leaf::Memory(runs)) if *left > 0 => {
            *left = left.saturating_sub(runs.bytes());
            Ok(Child::Leaf(Leaf::Written(files.write_leaf(runs)?)))
        }
        Child::Node(node) if *left > 0 && node.pages.is_none() => {
            let mut changed = node.to_change();
            for child in &mut changed.children {
                *child = write_leaves(child, files, left)?;
            }
            Ok(Child::Node(Arc::new(changed)))
        }
        child => Ok(child.clone()),
    }
}
