//! Updates: a batch goes into a node's buffer, full pivots are flushed, and what became too large
//! or too small is split or joined.
//!
//! ```text
//!   batch -> insert -> [ too large? split in two, and settle both ]
//!                      [ a pivot has as much pending as it may? flush it: all goes to the child    ]
//!                      [ more segments than pivots? merge the levels; still? flush the fullest     ]
//!                      [ a child is too small? flush it and a neighbour, join the two              ]
//! ```
//!
//! Each step is taken on a copy until none is needed. Afterwards no more is pending for any pivot
//! than [`Limits::pending_max`] allows, less than two leaves, so flushes stay small without cutting
//! one (compare section 3.2, where a leaf's worth is cut off whatever is pending). A flush, a merge
//! of levels and a rebuild are the only steps that read; when one fails, the copy is thrown away
//! and the tree is what it was.
//!
//! **Why it ends.** A flush lessens what is pending in this node and below it in height; merging
//! happens once between flushes; a split halves; a join has one child less, or two that are not too
//! small.
//!
//! **A full disk** has no room for a merge of all levels, which rewrites a buffer. So a *sparing*
//! update only puts the batch on top ([`Node::insert_on_top`]), as a level more where the topmost
//! holds much, and writes nothing. Small steps flush what is pending there to one leaf each
//! ([`tidy`](crate::tidy)); a checkpoint after each step gives back what it replaced. Sizes may be
//! exceeded meanwhile, and the next update with room settles the node.
//!
//! **Tombstones** end where a flush reaches leaves: all that is pending for the leaf is merged with
//! all of the leaf, so nothing older is anywhere.
//!
//! Pivots are joined only when nothing is pending for either, and split only by flushes: so no cut
//! needs the place of a key inside of a segment, and the key of a cut is the same in parent, levels
//! and children because there is only one.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use spinney_base::Result;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_io::Purpose;

use crate::edit::separator;
use crate::files::{Files, Limits, batches_below};
use crate::kinds::purpose;
use crate::levels::Key;
use crate::merge::{Superseded, Tombstones, merge};
use crate::node::{Child, Leaf, Node, Replacement};
use crate::parallel;
use crate::policy::KEPT_LEAVES_MAX;
use crate::runs::Runs;

/// Counts of what updates have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Batches that went into a node's buffer.
    pub(crate) batches: u64,
    /// Pivots flushed.
    pub(crate) flushes: u64,
    /// Leaves rewritten by flushes.
    pub(crate) leaves: u64,
    /// Buffers whose levels were made one because they had too many segments.
    pub(crate) merges: u64,
    /// Nodes split in two.
    pub(crate) splits: u64,
    /// Neighbours joined.
    pub(crate) joins: u64,
    /// Packed bytes that were flushed to leaves.
    pub(crate) brought: u64,
    /// Packed bytes by which leaves grew: what was new, and did not overwrite anything.
    pub(crate) grown: u64,
    /// Packed bytes of the leaves that flushes rewrote.
    pub(crate) made: u64,
}

impl Activity {
    /// Adds what an update has done that began with `before` and ended with `after`.
    pub(crate) fn add(&mut self, before: Activity, after: Activity) {
        self.batches += after.batches - before.batches;
        self.flushes += after.flushes - before.flushes;
        self.leaves += after.leaves - before.leaves;
        self.merges += after.merges - before.merges;
        self.splits += after.splits - before.splits;
        self.joins += after.joins - before.joins;
        self.brought += after.brought - before.brought;
        self.grown += after.grown - before.grown;
        self.made += after.made - before.made;
    }
}

/// Nodes that replace one, each with its lower bound; the first's is the old one's.
pub(crate) type Siblings<F> = Vec<(Key, Node<F>)>;

/// One update of a tree.
pub(crate) struct Update<'a, F: Files> {
    pub(crate) files: &'a F,
    pub(crate) limits: Limits,
    pub(crate) activity: Activity,
    pub(crate) superseded: &'a mut Superseded,
    pub(crate) ahead: Ahead,
    /// What leaves that it writes itself are for.
    pub(crate) purpose: Purpose,
    /// How many may work on it at once.
    pub(crate) threads: usize,
    /// Whether it makes as few new pages as it can, because the disk is full: see
    /// [`Update::sparing`].
    pub(crate) is_sparing: bool,
}

/// What an update writes itself: new leaves that no batch will reach again before the tree is
/// written, and those for which it should not take memory.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    /// Batches that will still come to the node that is updated; unknown, and nothing is written.
    batches: Option<u64>,
    /// Packed bytes of new leaves that stay in memory.
    kept: Arc<AtomicU64>,
}

impl Ahead {
    pub(crate) fn new(batches: Option<u64>) -> Ahead {
        Ahead { batches, kept: Arc::default() }
    }
}

impl<'a, F: Files> Update<'a, F> {
    /// An update of a tree whose updates have come to `activity`; `left` batches will come until
    /// the tree is written, if that is known.
    pub(crate) fn new(
        files: &'a F,
        activity: Activity,
        superseded: &'a mut Superseded,
        left: Option<u64>,
    ) -> Update<'a, F> {
        let (mut limits, ahead) = (files.limits(), Ahead::new(left));
        if left.is_none() {
            limits.merge_bytes = u64::MAX;
        }
        let (purpose, threads) = (purpose::FLUSH, files.threads());
        Update { files, limits, activity, superseded, ahead, purpose, threads, is_sparing: false }
    }

    /// An update for a full disk: a batch stays in the topmost levels, however much is pending
    /// there. Nothing is flushed, merged or joined except what a step asks for and what holds
    /// nothing. Steps with room move what is pending further.
    pub(crate) fn sparing(
        files: &'a F,
        activity: Activity,
        superseded: &'a mut Superseded,
    ) -> Update<'a, F> {
        Update { is_sparing: true, ..Update::new(files, activity, superseded, None) }
    }

    /// Applies a batch to a node.
    pub(crate) fn apply(&mut self, node: &Node<F>, batch: Runs) -> Result<Siblings<F>> {
        let mut node = node.to_change();
        if self.is_sparing {
            node.insert_on_top(self.files, &self.limits, batch, self.superseded)?;
        } else {
            node.insert(self.files, &self.limits, batch, self.superseded)?;
        }
        self.activity.batches += 1;
        self.settle(node)
    }

    /// Takes the steps that a node needs.
    pub(crate) fn settle(&mut self, mut node: Node<F>) -> Result<Siblings<F>> {
        let mut merged = false;
        loop {
            let pivots = node.keys.len();
            let large = node.packed_bytes() > self.limits.node_bytes;
            if pivots > self.limits.pivots_max || (large && pivots >= 4) {
                return self.split(node);
            }
            let full: Vec<usize> = if self.is_sparing {
                Vec::new()
            } else {
                node.full(self.files, &self.limits).collect()
            };
            if !full.is_empty() {
                merged = false;
                match self.flush_many(node, &full)? {
                    ControlFlow::Continue(flushed) => node = flushed,
                    ControlFlow::Break(siblings) => return Ok(siblings),
                }
                continue;
            }
            let segments_max =
                if self.is_sparing { usize::MAX } else { self.limits.segments(pivots) };
            let replacement = if node.segments(&self.limits) > segments_max {
                if !merged {
                    node.merge_all(self.files, &self.limits, self.superseded)?;
                    self.activity.merges += 1;
                    merged = true;
                    continue;
                }
                merged = false;
                let fullest = (0..pivots).max_by_key(|pivot| node.pending[*pivot]).unwrap_or(0);
                self.flush(&mut node, fullest)?
            } else if let Some(pair) = self.underfull(&node) {
                self.join(&mut node, pair)?
            } else {
                return Ok(vec![(Key::from(&b""[..]), node)]);
            };
            if !node.has_room(&replacement) {
                return self.burst(node, replacement);
            }
            node.replace(replacement);
        }
    }

    /// Flushes the only child of a node, and settles the result.
    pub(crate) fn flush_only(&mut self, node: &Node<F>) -> Result<Siblings<F>> {
        let mut node = node.to_change();
        let replacement = self.flush(&mut node, 0)?;
        self.burst(node, replacement)
    }

    fn split(&mut self, node: Node<F>) -> Result<Siblings<F>> {
        self.activity.splits += 1;
        let middle = node.middle(&self.limits);
        let (left, key, right) = node.split(middle);
        self.settle_all(vec![(Key::from(&b""[..]), left), (key, right)])
    }

    /// Flushes several children, each with its lower bound, and settles the result.
    pub(crate) fn settle_all(&mut self, nodes: Siblings<F>) -> Result<Siblings<F>> {
        let mut siblings = Vec::with_capacity(nodes.len());
        for (key, node) in nodes {
            let first = siblings.len();
            siblings.extend(self.settle(node)?);
            siblings[first].0 = key;
        }
        Ok(siblings)
    }

    /// Replaces children by more than a node has bits for: they get nodes of their own, between
    /// what is left of it on either side. Only a leaf size that has become much smaller since the
    /// tree was written leads to that many.
    pub(crate) fn burst(
        &mut self,
        node: Node<F>,
        replacement: Replacement<F>,
    ) -> Result<Siblings<F>> {
        self.activity.splits += 1;
        let Replacement { old, mut new } = replacement;
        let height = node.height;
        let (count, mut node) = (node.keys.len(), node);
        let mut siblings: Siblings<F> = Vec::new();
        let (mut after, mut key) = (None, Key::from(&b""[..]));
        if old.end < count {
            let (left, key, right) = node.split(old.end);
            after = Some((key, right));
            node = left;
        }
        if old.start > 0 {
            let (left, middle, _) = node.split(old.start);
            siblings.push((key, left));
            key = middle;
        }
        new[0].0 = key;
        siblings.extend(parents(new, height, self.limits.pivots_max));
        siblings.extend(after);
        self.settle_all(siblings)
    }

    /// Takes out everything that is pending for a child and gives it to the child; returns what
    /// replaces the child.
    pub(crate) fn flush(&mut self, node: &mut Node<F>, pivot: usize) -> Result<Replacement<F>> {
        self.activity.flushes += 1;
        let Child::Node(child) = &node.children[pivot] else {
            return self.rebuild(node, pivot..pivot + 1);
        };
        let child = Arc::clone(child);
        let lines = node.take(self.files, pivot..pivot + 1)?;
        let run_bytes = self.limits.leaf_bytes;
        let batch = merge(lines, Tombstones::Keep, run_bytes, self.superseded);
        // An update that fails is thrown away, so the number need not come back then.
        let batches = self.ahead.batches;
        self.ahead.batches = batches.map(|batches| batches_below(batches, node.keys.len()));
        let siblings = self.apply(&child, batch)?;
        self.ahead.batches = batches;
        Ok(Replacement { old: pivot..pivot + 1, new: as_children(siblings) })
    }

    /// Flushes several pivots. They do not concern each other, so one can be read while another is
    /// built or written. Returns the node with what replaces the children, or siblings if it burst.
    pub(crate) fn flush_many(
        &mut self,
        mut node: Node<F>,
        pivots: &[usize],
    ) -> Result<ControlFlow<Siblings<F>, Node<F>>> {
        let (files, limits, ahead) = (self.files, self.limits, &self.ahead);
        let (purpose, is_sparing) = (self.purpose, self.is_sparing);
        // Threads that are not needed here may work further down.
        let threads = (self.threads / pivots.len().max(1)).max(1);
        let made = parallel::each(self.threads, pivots.len(), |place| {
            let mut superseded = Superseded::new();
            let mut alone = Update {
                files,
                limits,
                activity: Activity::default(),
                superseded: &mut superseded,
                ahead: ahead.clone(),
                purpose,
                threads,
                is_sparing,
            };
            let replacement = alone.flush(&mut node.to_change(), pivots[place])?;
            Ok((replacement, alone.activity, superseded))
        })?;
        // From the last on, so that the others' places stay.
        for (replacement, activity, superseded) in made.into_iter().rev() {
            self.activity.add(Activity::default(), activity);
            self.superseded.extend(superseded);
            node.drop_pending(replacement.old.clone());
            if !node.has_room(&replacement) {
                // What else was made is made again, of what is pending still.
                return self.burst(node, replacement).map(ControlFlow::Break);
            }
            node.replace(replacement);
        }
        Ok(ControlFlow::Continue(node))
    }

    /// Rewrites leaves from themselves and everything that is pending for them.
    fn rebuild(&mut self, node: &mut Node<F>, pivots: Range<usize>) -> Result<Replacement<F>> {
        let leaves: Vec<Leaf<F>> = node.children[pivots.clone()]
            .iter()
            .filter_map(|child| match child {
                Child::Leaf(leaf) => Some(leaf.clone()),
                Child::Node(_) => None,
            })
            .collect();
        let beside = leaves.iter().filter_map(Leaf::to_load).collect();
        let (mut lines, loaded) = node.take_beside(self.files, pivots.clone(), beside)?;
        let mut loaded = loaded.into_iter();
        let mut old = Runs::default();
        for leaf in &leaves {
            match leaf {
                Leaf::Memory(runs) => old.extend(runs.clone()),
                Leaf::Written(_) => old.extend(loaded.by_ref().take(1).collect()),
            }
        }
        let brought: u64 = lines.iter().map(Runs::bytes).sum();
        let before = old.bytes();
        lines.push(old);
        let new = self.leaves(lines, node.keys.len())?;
        let after: u64 = new.iter().filter_map(|(_, child)| child.leaf_bytes(self.files)).sum();
        self.activity.brought += brought;
        self.activity.grown += after.saturating_sub(before);
        self.activity.made += after;
        Ok(Replacement { old: pivots, new })
    }

    /// The leaves that lines make below a node of `pivots` pivots, with their lower bounds but for
    /// the first; an empty one if nothing is left.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`, of what is written ahead.
    pub(crate) fn leaves(
        &mut self,
        lines: Vec<Runs>,
        pivots: usize,
    ) -> Result<Vec<(Key, Child<F>)>> {
        let run_bytes = self.limits.leaf_bytes;
        let merged = merge(lines, Tombstones::Drop, run_bytes, self.superseded);
        let parts = merged.even_parts(self.limits.leaf_bytes, self.limits.edit_bytes_max);
        self.activity.leaves += parts.len() as u64;
        let mut leaves: Vec<(Key, Child<F>)> = Vec::with_capacity(parts.len().max(1));
        let mut last: Option<Vec<u8>> = None;
        for part in parts {
            let key = match (&last, part.first_key()) {
                (Some(last), Some(first)) => Key::from(separator(last, first)),
                _ => Key::from(&b""[..]),
            };
            last = part.last_key().map(<[u8]>::to_vec);
            leaves.push((key, Child::Leaf(self.leaf(part, pivots)?)));
        }
        if leaves.is_empty() {
            leaves.push((Key::from(&b""[..]), Child::Leaf(Leaf::Memory(Runs::default()))));
        }
        Ok(leaves)
    }

    /// A new leaf, below a node of `pivots` pivots.
    fn leaf(&mut self, edits: Runs, pivots: usize) -> Result<Leaf<F>> {
        let limits = &self.limits;
        let stays = |batches| limits.new_leaf_stays(batches, pivots, edits.bytes());
        let kept_max = KEPT_LEAVES_MAX * limits.leaf_bytes;
        let kept = &self.ahead.kept;
        let is_kept = match self.ahead.batches {
            Some(batches) if stays(batches) => false,
            None => true,
            Some(_) => {
                let more = |kept: u64| Some(kept + edits.bytes()).filter(|kept| *kept <= kept_max);
                kept.fetch_update(Relaxed, Relaxed, more).is_ok()
            }
        };
        if is_kept {
            return Ok(Leaf::Memory(edits));
        }
        self.files.write_leaf(&edits, self.purpose).map(Leaf::Written)
    }

    /// A child that should be joined, with its neighbour.
    fn underfull(&self, node: &Node<F>) -> Option<Range<usize>> {
        let count = node.children.len();
        if count < 2 {
            return None;
        }
        let small = |child: &Child<F>| {
            if self.is_sparing {
                // Nothing has no page to be written to.
                child.is_empty(self.files)
            } else {
                child.is_underfull(self.files, &self.limits)
            }
        };
        let pivot = node.children.iter().position(small)?;
        let first = pivot.min(count - 2);
        Some(first..first + 2)
    }

    /// One step towards joining two children: flushes one of them, or joins them.
    fn join(&mut self, node: &mut Node<F>, pair: Range<usize>) -> Result<Replacement<F>> {
        let (Child::Node(left), Child::Node(right)) =
            (&node.children[pair.start], &node.children[pair.start + 1])
        else {
            self.activity.joins += 1;
            return self.rebuild(node, pair);
        };
        // A flushed child may come back as several, so the pair is looked for again afterwards.
        if let Some(pivot) = pair.clone().find(|pivot| node.pending[*pivot] > 0) {
            return self.flush(node, pivot);
        }
        self.activity.joins += 1;
        let mut joined = left.to_change();
        joined.join(&node.keys[pair.start + 1], right);
        let siblings = self.settle(joined)?;
        Ok(Replacement { old: pair, new: as_children(siblings) })
    }
}

/// Nodes above siblings, with even shares, so that none is too small.
pub(crate) fn parents<F: Files>(
    mut children: Vec<(Key, Child<F>)>,
    height: u8,
    pivots_max: usize,
) -> Siblings<F> {
    let nodes = children.len().div_ceil(pivots_max);
    let mut parents = Vec::with_capacity(nodes);
    for node in 0..nodes {
        let rest = children.split_off(children.len().div_ceil(nodes - node));
        let share = std::mem::replace(&mut children, rest);
        parents.push((Arc::clone(&share[0].0), Node::new(height, share)));
    }
    parents
}

/// Nodes as the children of another.
pub(crate) fn as_children<F: Files>(siblings: Siblings<F>) -> Vec<(Key, Child<F>)> {
    siblings.into_iter().map(|(key, node)| (key, Child::Node(Arc::new(node)))).collect()
}
