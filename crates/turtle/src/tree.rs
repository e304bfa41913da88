//! The tree: batches go in, lookups and scans come out. A value, shared by its readers.
//!
//! ```text
//!   nothing | a leaf | a node -> nodes -> leaves
//! ```
//!
//! [`Tree::apply`] makes a new tree from an old one and a batch; both are whole and may be read,
//! and share all they have in common. What a tree has in memory becomes pages only by
//! [`Tree::write`](crate::write), after as many batches as the checkpoint distance says (section
//! 3.3): what batches in between had made and undone is never written.
//!
//! **Invariants**
//! 1. A tree never changes: an update that fails leaves nothing behind.
//! 2. The root may have any number of children from 2 on; no other node is so small that it should
//!    be joined, and none is too large ([`crate::update`]).

use spinney_base::Result;
use spinney_engine::{Found, OwnedValue, Resident};

use crate::edit::{Edit, Hit};
use crate::files::{Files, Lookup};
use crate::levels::{Key, Part, pivot_of};
use crate::merge::Superseded;
use crate::node::{Child, Leaf, Totals};
use crate::policy::BATCH_LEAVES_MAX;
use crate::run::Run;
use crate::runs::{Kept, Runs};
use crate::update::{Activity, Update, as_children, parents};

/// See the module.
#[derive(Debug)]
pub(crate) struct Tree<F: Files> {
    pub(crate) root: Option<Child<F>>,
    pub(crate) activity: Activity,
}

impl<F: Files> Clone for Tree<F> {
    fn clone(&self) -> Self {
        Tree { root: self.root.clone(), activity: self.activity }
    }
}

/// What of a tree is not on pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Edits.
    pub(crate) items: u64,
    /// Their packed bytes.
    pub(crate) bytes: u64,
    /// Memory that they keep, in bytes: items, and whole sources of which they may need little.
    pub(crate) pinned: u64,
}

impl<F: Files> Tree<F> {
    pub(crate) fn empty() -> Tree<F> {
        Tree { root: None, activity: Activity::default() }
    }

    /// The tree with a batch applied. If it is known how many more will be before the tree is
    /// written, new leaves that they will not reach are written at once. Pointers to large values
    /// that it does not hold any more, but the old one may, are appended to `superseded`; they mean
    /// nothing if it fails.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of a leaf that had to be read; `Full`, `Poisoned` or `Io`, of one that
    /// was written.
    pub(crate) fn apply(
        &self,
        files: &F,
        batch: &Runs,
        left: Option<u64>,
        superseded: &mut Superseded,
    ) -> Result<Tree<F>> {
        self.apply_in_pieces(files, batch, superseded, |tree, piece, superseded| {
            tree.apply_piece(Update::new(files, tree.activity, superseded, left), piece)
        })
    }

    /// The tree with a batch on top, for a full disk; see [`Update::sparing`]. Writes nothing.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of what had to be read.
    pub(crate) fn apply_sparingly(
        &self,
        files: &F,
        batch: &Runs,
        superseded: &mut Superseded,
    ) -> Result<Tree<F>> {
        self.apply_in_pieces(files, batch, superseded, |tree, piece, superseded| {
            tree.apply_piece(Update::sparing(files, tree.activity, superseded), piece)
        })
    }

    fn apply_in_pieces(
        &self,
        files: &F,
        batch: &Runs,
        superseded: &mut Superseded,
        apply: impl Fn(&Tree<F>, Runs, &mut Superseded) -> Result<Tree<F>>,
    ) -> Result<Tree<F>> {
        let mut tree = self.clone();
        let piece = files.limits().leaf_bytes * BATCH_LEAVES_MAX;
        for piece in batch.full_parts(piece) {
            tree = apply(&tree, piece, superseded)?;
        }
        Ok(tree)
    }

    fn apply_piece(&self, mut update: Update<'_, F>, batch: Runs) -> Result<Tree<F>> {
        let children = match &self.root {
            Some(Child::Node(node)) => as_children(update.apply(node, batch)?),
            Some(Child::Leaf(leaf)) => update.leaves(vec![batch, leaf.load(update.files)?], 1)?,
            None => update.leaves(vec![batch], 1)?,
        };
        self.of_children(update, children)
    }

    /// The tree after an update of which these are the children of what may be a new root.
    pub(crate) fn of_children(
        &self,
        mut update: Update<'_, F>,
        children: Vec<(Key, Child<F>)>,
    ) -> Result<Tree<F>> {
        let root = grow(&mut update, children, self.height())?;
        let root = shrink(&mut update, root)?;
        Ok(Tree { root, activity: update.activity })
    }

    /// Levels of nodes.
    pub(crate) fn height(&self) -> u8 {
        match &self.root {
            Some(Child::Node(node)) => node.height,
            _ => 0,
        }
    }

    /// Finds where a key can be, newest first. `written` gets the leaves and segments on disk, and
    /// whether each is a leaf, below which there is none; below them comes what is in memory, if it
    /// is.
    fn locate<'a>(
        &'a self,
        key: &[u8],
        mut written: impl FnMut(&'a F::Leaf, bool),
    ) -> Option<Edit<'a>> {
        let mut child = self.root.as_ref();
        while let Some(Child::Node(node)) = child {
            let pivot = pivot_of(&node.keys, key);
            for level in &node.levels {
                match level.part(&node.keys, pivot, key) {
                    Some(Part::Run(run)) => {
                        if let Some(edit) = run.get(key) {
                            return Some(edit);
                        }
                    }
                    Some(Part::Segment(segment)) => written(&segment.leaf, false),
                    None => {}
                }
            }
            child = Some(&node.children[pivot]);
        }
        match child? {
            Child::Leaf(Leaf::Memory(runs)) => runs.get(key),
            Child::Leaf(Leaf::Written(leaf)) => {
                written(leaf, true);
                None
            }
            Child::Node(_) => None,
        }
    }

    /// Looks a key up. A value or pointer is appended to `out`.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of a leaf that would have to say.
    pub(crate) fn get(&self, files: &F, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        let mut written = Vec::new();
        let edit = self.locate(key, |leaf, is_last| {
            written.push(Lookup { leaf, key, hash, is_last });
        });
        if edit.is_some() {
            files.answered_in_memory();
        }
        if written.len() > 1 {
            files.warm(&written);
        }
        look_up(files, &written, edit, out)
    }

    /// Looks many keys up, with their hashes; the answers are in their order.
    ///
    /// # Errors
    /// As [`Tree::get`], of the first that failed.
    pub(crate) fn get_many(
        &self,
        files: &F,
        keys: &[(&[u8], u64)],
    ) -> Result<Vec<Option<OwnedValue>>> {
        let mut lookups = Vec::new();
        let mut located = Vec::with_capacity(keys.len());
        for &(key, hash) in keys {
            let first = lookups.len();
            let edit = self.locate(key, |leaf, is_last| {
                lookups.push(Lookup { leaf, key, hash, is_last });
            });
            located.push((first..lookups.len(), edit));
        }
        files.warm(&lookups);
        let mut values = Vec::with_capacity(keys.len());
        for (written, edit) in located {
            let mut bytes = Vec::new();
            let found = look_up(files, &lookups[written], edit, &mut bytes)?;
            let large = found == Found::Large;
            values.push((found != Found::Absent).then_some(OwnedValue { bytes, large }));
        }
        Ok(values)
    }

    /// Looks a key up in memory: `Unknown` if something on disk would have to say.
    pub(crate) fn get_resident(&self, key: &[u8], out: &mut Vec<u8>) -> Resident {
        let mut is_written = false;
        let edit = self.locate(key, |_, _| is_written = true);
        if is_written {
            return Resident::Unknown;
        }
        match edit.map(|edit| edit.hit(out)) {
            Some(Hit::Inline) => Resident::Present,
            Some(Hit::Large) => Resident::Large,
            Some(Hit::Deleted) | None => Resident::Absent,
        }
    }

    /// The part that a crash would lose, and the memory that it keeps.
    pub(crate) fn pending(&self) -> Pending {
        let mut pending = Pending::default();
        let mut pinned = Kept::default();
        self.each_run(&mut |run| {
            pending.items += run.len() as u64;
            pending.bytes += run.bytes();
            pinned.add(run);
        });
        Pending { pinned: pinned.bytes(), ..pending }
    }

    /// Sums over its nodes and leaves. Versions of a tree share most of it.
    pub(crate) fn totals(&self, files: &F) -> Totals {
        match &self.root {
            None => Totals::default(),
            Some(Child::Leaf(leaf)) => leaf.totals(files),
            Some(Child::Node(node)) => node.totals(files),
        }
    }

    /// Visits every run in memory.
    pub(crate) fn each_run(&self, each: &mut impl FnMut(&Run)) {
        if let Some(root) = &self.root {
            each_run(root, each);
        }
    }
}

/// The value of the first of these places that has one, newest first.
fn look_up<F: Files>(
    files: &F,
    written: &[Lookup<'_, F>],
    edit: Option<Edit<'_>>,
    out: &mut Vec<u8>,
) -> Result<Found> {
    for lookup in written {
        if let Some(hit) = files.get(lookup, out)? {
            return Ok(found(hit));
        }
    }
    Ok(edit.map_or(Found::Absent, |edit| found(edit.hit(out))))
}

fn found(hit: Hit) -> Found {
    match hit {
        Hit::Inline => Found::Inline,
        Hit::Large => Found::Large,
        Hit::Deleted => Found::Absent,
    }
}

/// Visits every run in memory below a child.
fn each_run<F: Files>(child: &Child<F>, each: &mut impl FnMut(&Run)) {
    match child {
        Child::Leaf(Leaf::Memory(runs)) => runs.as_slice().iter().for_each(each),
        Child::Leaf(Leaf::Written(_)) => {}
        Child::Node(node) if node.pages.is_some() => {}
        Child::Node(node) => {
            for part in node.levels.iter().flat_map(|level| &level.parts) {
                if let Part::Run(run) = part {
                    each(run);
                }
            }
            node.children.iter().for_each(|child| each_run(child, each));
        }
    }
}

/// Puts nodes above siblings until there is one.
fn grow<F: Files>(
    update: &mut Update<'_, F>,
    mut siblings: Vec<(Key, Child<F>)>,
    mut height: u8,
) -> Result<Child<F>> {
    while siblings.len() > 1 {
        height += 1;
        let parents = parents(siblings, height, update.limits.pivots_max);
        siblings = as_children(update.settle_all(parents)?);
    }
    Ok(siblings.swap_remove(0).1)
}

/// Takes roots away that have one child, and a leaf that holds nothing.
fn shrink<F: Files>(update: &mut Update<'_, F>, mut root: Child<F>) -> Result<Option<Child<F>>> {
    loop {
        match root {
            Child::Node(node) if node.keys.len() == 1 => {
                if node.pending[0] == 0 {
                    root = node.children[0].clone();
                } else {
                    let siblings = as_children(update.flush_only(&node)?);
                    root = grow(update, siblings, node.height)?;
                }
            }
            Child::Leaf(Leaf::Memory(runs)) if runs.is_empty() => return Ok(None),
            root => return Ok(Some(root)),
        }
    }
}
