//! Proves that a tree is what it should be: every invariant of [`crate::node`], [`crate::levels`]
//! and [`crate::tree`], by reading everything.

use std::sync::Arc;

use spinney_base::{Error, ErrorKind, Result};

use crate::files::{Files, LEVELS_MAX, Limits, PIVOTS_MAX};
use crate::levels::{Level, Part, by_pivot, set};
use crate::node::{Child, Leaf, Node};
use crate::runs::Runs;
use crate::tree::Tree;

/// What was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) nodes: u64,
    pub(crate) leaves: u64,
    pub(crate) segments: u64,
    /// Edits in leaves and in buffers, superseded ones among them.
    pub(crate) edits: u64,
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corruption, format!("the tree is not sound: {}", what())))
}

/// Checks a whole tree. What was written under other limits may exceed those of now: whether sizes
/// are within them is checked only if `sizes` says so.
///
/// # Errors
/// `Corruption` that says what does not hold; `Io`.
pub(crate) fn check<F: Files>(tree: &Tree<F>, files: &F, sizes: bool) -> Result<Checked> {
    let mut check = Check { files, limits: files.limits(), sizes, checked: Checked::default() };
    if let Some(root) = &tree.root {
        if let Child::Node(node) = root {
            ensure(node.keys.len() >= 2, || "the root has one child".into())?;
        }
        check.child(root, tree.height(), b"", None)?;
    }
    Ok(check.checked)
}

struct Check<'a, F: Files> {
    files: &'a F,
    limits: Limits,
    sizes: bool,
    checked: Checked,
}

impl<F: Files> Check<'_, F> {
    fn child(
        &mut self,
        child: &Child<F>,
        height: u8,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        match child {
            Child::Leaf(leaf) => {
                ensure(height == 0, || format!("a leaf at height {height}"))?;
                self.leaf(leaf, lower, upper)
            }
            Child::Node(node) => {
                ensure(node.height == height && height > 0, || {
                    format!("a node of height {} at height {height}", node.height)
                })?;
                self.node(node, lower, upper)
            }
        }
    }

    fn leaf(&mut self, leaf: &Leaf<F>, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let runs = leaf.load(self.files)?;
        self.checked.leaves += 1;
        self.runs(&runs, lower, upper)?;
        ensure(runs.bytes() == leaf.bytes(self.files), || "a leaf miscounts its bytes".into())?;
        let fits = runs.bytes() <= self.limits.leaf_bytes || !self.sizes;
        ensure(fits, || format!("a leaf of {}", runs.bytes()))?;
        let tombstones = runs.iter().filter(|edit| edit.value.is_none()).count();
        ensure(tombstones == 0, || format!("{tombstones} tombstones in a leaf"))
    }

    /// Keys ascend and lie in a range.
    fn runs(&mut self, runs: &Runs, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        self.checked.edits += runs.len() as u64;
        let mut last: Option<&[u8]> = None;
        for edit in runs.iter() {
            ensure(last.is_none_or(|last| last < edit.key), || "keys do not ascend".into())?;
            last = Some(edit.key);
        }
        let first = runs.first_key().is_none_or(|first| lower <= first);
        let last = last.is_none_or(|last| upper.is_none_or(|upper| last < upper));
        ensure(first && last, || format!("{runs:?} outside of {lower:?}..{upper:?}"))
    }

    fn node(&mut self, node: &Node<F>, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        self.checked.nodes += 1;
        let count = node.keys.len();
        let lists = count >= 1
            && count == node.children.len()
            && count == node.pending.len()
            && count == node.tombstones.len();
        ensure(lists, || "a node's lists differ in length".into())?;
        let most = if self.sizes { self.limits.pivots_max } else { PIVOTS_MAX };
        ensure(count <= most, || format!("{count} pivots"))?;
        let fits = node.packed_bytes() <= self.limits.node_bytes || count < 4;
        ensure(fits || !self.sizes, || "a node has too much in its page".into())?;
        let mut edge = lower;
        for (pivot, key) in node.keys.iter().enumerate().skip(1) {
            ensure(edge < &key[..] && upper.is_none_or(|upper| &key[..] < upper), || {
                format!("pivot {pivot} {key:?} outside of {edge:?}..{upper:?}")
            })?;
            edge = key;
        }
        self.buffer(node, lower, upper)?;
        for (pivot, child) in node.children.iter().enumerate() {
            let (from, to) = node.range(pivot);
            let from = if pivot == 0 { lower } else { from };
            let underfull = count > 1 && child.is_underfull(self.files, &self.limits);
            ensure(!underfull || !self.sizes, || format!("child {pivot} of {count} is too small"))?;
            self.child(child, node.height - 1, from, to.or(upper))?;
        }
        Ok(())
    }

    fn buffer(&mut self, node: &Node<F>, lower: &[u8], upper: Option<&[u8]>) -> Result<()> {
        let segments = node.segments(&self.limits);
        let most = self.limits.segments(node.keys.len());
        ensure(segments <= most || !self.sizes, || format!("{segments} segments, {most} at most"))?;
        // As many as there may be at times; nodes keep them when it changes.
        let at_times = Limits { pending_percent: Some(u64::MAX), ..self.limits }.levels(PIVOTS_MAX);
        let most = if self.sizes { at_times } else { LEVELS_MAX };
        ensure(node.levels.len() <= most, || format!("{} levels", node.levels.len()))?;
        let mut pending = vec![0; node.keys.len()];
        let mut tombstones = vec![0; node.keys.len()];
        for level in &node.levels {
            let live = self.level(node, level)?;
            self.runs(&live, lower, upper)?;
            for run in live.as_slice() {
                by_pivot(run, &node.keys, |pivot, size| {
                    pending[pivot] += size.bytes;
                    tombstones[pivot] += size.tombstones;
                });
            }
        }
        ensure(pending == node.pending, || {
            format!("pending {:?}, in truth {pending:?}", node.pending)
        })?;
        let most = |(told, there): (&u64, &u64)| told == there || told > there && !self.sizes;
        ensure(node.tombstones.iter().zip(&tombstones).all(most), || {
            format!("tombstones {:?}, in truth {tombstones:?}", node.tombstones)
        })?;
        let full = node.full(self.files, &self.limits).next().is_some();
        ensure(!full || !self.sizes, || format!("a leaf's worth is pending: {pending:?}"))
    }

    /// The live edits of a level.
    fn level(&mut self, node: &Node<F>, level: &Level<F>) -> Result<Runs> {
        let mut live: Vec<Runs> = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        for part in &level.parts {
            let runs = match part {
                Part::Run(run) => Runs::from(run.clone()),
                Part::Segment(segment) => {
                    self.checked.segments += 1;
                    let known = segment.active != 0
                        && segment.active & !set(0..node.keys.len()) == 0
                        && Arc::strong_count(&segment.leaf) > 0;
                    ensure(known, || "a segment is active for no or for unknown pivots".into())?;
                    segment.load(self.files, &node.keys, segment.active)?
                }
            };
            let lower = part.lower(&node.keys);
            ensure(last.as_ref().is_none_or(|last| &last[..] < lower), || {
                "parts of a level overlap".into()
            })?;
            if let Some(key) = runs.last_key() {
                last = Some(key.to_vec());
            }
            live.push(runs);
        }
        let mut joined = Runs::default();
        live.into_iter().for_each(|runs| joined.extend(runs));
        Ok(joined)
    }
}
