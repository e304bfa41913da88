//! All pages of a file, for when nothing leads to its leaves.
//!
//! The first page of a leaf has its description, and pages of a node are known by their kind. A
//! node that is found tells of leaves and segments which they are, and where edits of them were
//! live. Nothing tells of a run of pages whether it is still in use.
//!
//! **Newer and older.** Generations ascend from allocation to allocation, through all lives of a
//! database, so they are the order in which runs were written. The LSN of a later one is never
//! lower, but many have the same. That is not quite the order of their edits: between two
//! checkpoints a segment may be written before the leaf below it whose edits are older. But a node
//! tells what was so when it was written: edits of a segment were live then, above all leaves that
//! there were. So a segment is as new as each node that names it, where that node says; of segments
//! that one node names, levels above are newer. Any other run is as new as its generation.
//!
//! **What was deleted.** Tombstones end at leaves. A leaf, if a node says that it is one, decides
//! its range: what older runs have there does not count any more. Where no node says so, keys that
//! were removed may come back.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use spinney_base::{Generation, Lsn, PageNumber, Result, ValueRef};
use spinney_engine::covered::Covered;
use spinney_engine::{Damage, LostRange, Notes, Show, Span};
use spinney_extent::{BlockKind, HEADER_BYTES, PageRun, Store};

use super::edits::{Edits, Pages, Use};
use super::walk::{RunId, live, read_node};
use crate::kinds::block;
use crate::leaf::blob;
use crate::leaf::format::{Description, Head, read_u32};
use crate::packed::{PackedNode, Root};
use crate::run::Op;

/// Roots that are remembered, the newest.
const ROOTS_MAX: usize = 4;

/// A checkpoint's payload of which no slot is known to point to it.
#[derive(Clone, Debug)]
pub(super) struct FoundRoot {
    pub(super) generation: Generation,
    pub(super) redo: Option<Lsn>,
    pub(super) root: Vec<u8>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Leaves and segments by their first pages.
    heads: Vec<Description>,
    nodes: Vec<PageRun>,
    /// The newest, in descending order.
    pub(super) roots: Vec<FoundRoot>,
    pub(super) damaged: Vec<(PageNumber, Damage)>,
    /// The highest redo LSN that a page of a payload has.
    redo: Lsn,
    /// The highest generation of a page of a tree.
    newest: Generation,
}

impl Scan {
    /// Reads the whole file.
    ///
    /// # Errors
    /// `Io` when its length cannot be read.
    pub(super) fn read(store: &Store) -> Result<Scan> {
        let mut scan = Scan::default();
        store.show_blocks(|page, header, block| {
            let payload = &block[HEADER_BYTES..];
            if let Ok(header) = &header
                && [block::LEAF, block::NODE].contains(&header.kind)
            {
                scan.newest = scan.newest.max(header.generation);
            }
            match header {
                Ok(header) if block::LEAF.reads(header.kind) => {
                    let id = (page, header.generation);
                    scan.heads.extend(head(payload, id));
                }
                Ok(header) if block::NODE.reads(header.kind) => {
                    scan.add_node_page(page, header.generation);
                }
                Ok(header) if BlockKind::CHECKPOINT.reads(header.kind) => {
                    scan.redo = scan.redo.max(header.lsn);
                    if let Some(root) = root(payload) {
                        let (generation, redo) = (header.generation, Some(header.lsn));
                        scan.roots.push(FoundRoot { generation, redo, root: root.to_vec() });
                        scan.roots.sort_by_key(|root| Reverse(root.generation));
                        scan.roots.truncate(ROOTS_MAX);
                    }
                }
                Ok(_) => {}
                Err(damage) => {
                    if damage.is_of_written(block) {
                        scan.damaged.push((page, damage));
                    }
                }
            }
        })?;
        Ok(scan)
    }

    /// Whether any page is younger than this checkpoint.
    pub(super) fn has_younger_than(&self, root: &FoundRoot) -> bool {
        self.newest > root.generation || root.redo.is_none_or(|redo| self.redo > redo)
    }

    fn add_node_page(&mut self, page: PageNumber, generation: Generation) {
        match self.nodes.last_mut() {
            Some(run) if run.generation == generation && run.first.0 + run.pages == page.0 => {
                run.pages += 1;
            }
            _ => self.nodes.push(PageRun { first: page, pages: 1, generation }),
        }
    }
}

/// The description of the leaf or segment that begins with this page, if one does.
fn head(payload: &[u8], (first, generation): RunId) -> Option<Description> {
    let description = payload.get(8..8 + Description::BYTES)?;
    let description = Description::decode(description).ok()?;
    let is_here = (description.first, description.generation) == (first, generation);
    Head::decode(payload, &description).ok().filter(|_| is_here).map(|_| description)
}

/// What describes the tree, if this is the beginning of a checkpoint's payload.
fn root(payload: &[u8]) -> Option<&[u8]> {
    let is_it = payload.first() == Some(&crate::payload::VERSION);
    let length = read_u32(payload, 1).filter(|_| is_it)? as usize;
    let root = payload.get(5..)?.get(..length)?;
    let sound = match Root::decode(root).ok()? {
        Root::Empty => root.len() == 1,
        Root::Leaf(leaf) => Description::decode(leaf).is_ok(),
        Root::Node(node) => blob::decode(node).is_ok(),
    };
    sound.then_some(root)
}

/// The role of a run, by a node that names it.
#[derive(Debug)]
struct Role {
    by: Generation,
    /// Of which level it is a segment; else it is a leaf.
    level: Option<usize>,
    /// Where its edits are live. An empty lower bound or no upper one is none of the node's own.
    live: Vec<LostRange>,
}

/// A run that nodes name.
#[derive(Debug)]
struct Told {
    description: Description,
    /// Of each node that says that it is a segment; of a leaf one.
    roles: Vec<Role>,
}

/// The roles that the found nodes give to runs.
#[derive(Debug, Default)]
pub(super) struct Roles {
    of: HashMap<RunId, Told>,
    /// The newest node, if none is higher.
    pub(super) top: Option<FoundRoot>,
}

impl Roles {
    pub(super) fn read(store: &Store, scan: &Scan) -> Roles {
        let mut roles = Roles::default();
        let (mut tallest, mut newest) = (0, None);
        for run in &scan.nodes {
            let Some(node) = read_node(store, run, None, &mut |_, _| {}) else { continue };
            tallest = node.height.max(tallest);
            if newest.as_ref().is_none_or(|(before, ..): &(PageRun, u8, usize)| {
                before.generation < run.generation
            }) {
                newest = Some((*run, node.height, node.encode().len()));
            }
            roles.add(run.generation, &node);
        }
        roles.top = newest.filter(|(_, height, _)| *height == tallest).map(|(run, _, length)| {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            let root = Root::of_node(&blob::encode(&run, length));
            FoundRoot { generation: run.generation, redo: None, root }
        });
        roles
    }

    fn add(&mut self, by: Generation, node: &PackedNode) {
        let uppers = node.pivots.iter().skip(1).map(|pivot| Some(&pivot.lower[..])).chain([None]);
        let spans: Vec<Span<'_>> = node
            .pivots
            .iter()
            .zip(uppers)
            .map(|(pivot, upper)| Span { lower: &pivot.lower, upper })
            .collect();
        if node.height == 1 {
            for (pivot, span) in node.pivots.iter().zip(&spans) {
                self.add_role(by, &pivot.child, None, vec![span.to_range()]);
            }
        }
        for (number, level) in node.levels.iter().enumerate() {
            for segment in level {
                let live = spans.iter().enumerate();
                let live = live.filter_map(|(pivot, span)| live_range(segment, pivot, *span));
                self.add_role(by, &segment.leaf, Some(number), live.collect());
            }
        }
    }

    fn add_role(
        &mut self,
        by: Generation,
        description: &[u8],
        level: Option<usize>,
        live: Vec<LostRange>,
    ) {
        let Ok(description) = Description::decode(description) else { return };
        let id = (description.first, description.generation);
        let told = self.of.entry(id).or_insert(Told { description, roles: Vec::new() });
        if level.is_some() || told.roles.is_empty() {
            told.roles.push(Role { by, level, live });
        }
    }
}

fn live_range(
    segment: &crate::packed::PackedSegment,
    pivot: usize,
    span: Span<'_>,
) -> Option<LostRange> {
    live(segment, pivot, span).map(Span::to_range)
}

/// What a run that no tree names has by one of its roles.
#[derive(Debug)]
struct Stray<'a> {
    /// Age, the newest greatest: the generation as of which its edits are known to be the newest,
    /// their level, and the generation in which it was written.
    age: (Generation, Reverse<usize>, Generation),
    description: Description,
    role: Option<&'a Role>,
    /// Its first and its last key.
    ends: Arc<(Vec<u8>, Vec<u8>)>,
}

/// All runs that no tree names.
#[derive(Debug)]
pub(super) struct Strays<'a> {
    store: &'a Store,
    /// The newest first.
    all: Vec<Stray<'a>>,
}

/// Ranges of a run in which its edits count.
type Planned = (Description, Vec<LostRange>);

impl<'a> Strays<'a> {
    pub(super) fn new(
        store: &'a Store,
        scan: &Scan,
        roles: &'a Roles,
        named: &HashSet<RunId>,
    ) -> Strays<'a> {
        let id = |it: &Description| (it.first, it.generation);
        let heads: HashSet<RunId> = scan.heads.iter().map(id).collect();
        let told = roles.of.values().map(|told| told.description);
        // Of what has lost its first page the keys may be there.
        let headless = told.filter(|it| {
            !heads.contains(&id(it)) && Pages::new(store, *it, Use::Stray).may_have_keys()
        });
        let strays =
            scan.heads.iter().copied().chain(headless).filter(|it| !named.contains(&id(it)));
        let mut all: Vec<Stray<'a>> = Vec::new();
        for description in strays {
            // Without a key that can be read there is nothing to show.
            let Some(ends) = Pages::new(store, description, Use::Stray).ends() else { continue };
            let ends = Arc::new(ends);
            let stray = |role: Option<&'a Role>| {
                let written = description.generation;
                let segment = role.and_then(|role| Some((role.by, Reverse(role.level?))));
                let (known, level) = segment.unwrap_or((written, Reverse(0)));
                Stray { age: (known, level, written), description, role, ends: Arc::clone(&ends) }
            };
            match roles.of.get(&id(&description)) {
                Some(told) => all.extend(told.roles.iter().map(|role| stray(Some(role)))),
                None => all.push(stray(None)),
            }
        }
        all.sort_by_key(|stray| Reverse(stray.age));
        Strays { store, all }
    }

    /// Edits of a range in the runs with a generation below this one, the oldest first.
    fn plan(&self, range: &LostRange, below: Option<Generation>) -> Vec<Planned> {
        let mut covered = Covered::default();
        let mut planned = Vec::new();
        let wanted = Span { lower: &range.lower, upper: range.upper.as_deref() };
        for stray in &self.all {
            let (first, last) = &*stray.ends;
            if below.is_some_and(|below| stray.description.generation >= below) {
                continue;
            }
            let behind = [&last[..], &[0]].concat();
            let Some(own) = wanted.meet(first, Some(&behind)) else { continue };
            let all = [Span::ALL.to_range()];
            let live = stray.role.map_or(&all[..], |role| &role.live);
            let spans = live.iter().filter_map(|it| own.meet(&it.lower, it.upper.as_deref()));
            let free: Vec<LostRange> =
                spans.flat_map(|span| covered.free(span.lower, span.upper)).collect();
            if free.is_empty() {
                continue;
            }
            planned.push((stray.description, free));
            if let Some(Role { level: None, live, .. }) = stray.role
                && Pages::new(self.store, stray.description, Use::Stray).is_whole()
            {
                // What the node does not bound is bounded by the leaf's own keys.
                for decided in live {
                    let lower = if decided.lower.is_empty() { first } else { &decided.lower };
                    let upper = decided.upper.as_ref().unwrap_or(&behind);
                    if lower < upper {
                        covered.add(lower.clone(), Some(upper.clone()));
                    }
                }
            }
        }
        planned.reverse();
        planned
    }

    /// Shows the edits of a range in the runs with a generation below this one; returns whether
    /// there was a run.
    ///
    /// # Errors
    /// Errors of `show`.
    pub(super) fn show(
        &self,
        range: &LostRange,
        below: Option<Generation>,
        notes: &mut Notes,
        show: &mut Show<'_>,
    ) -> Result<bool> {
        let planned = self.plan(range, below);
        for (description, ranges) in &planned {
            for LostRange { lower, upper } in ranges {
                let (store, upper) = (self.store, upper.as_deref());
                let mut edits = Edits::new(store, *description, Use::Stray, lower, upper);
                while edits.peek(notes).is_some() {
                    let Some(edit) = edits.take() else { break };
                    if edit.op == Op::Delete {
                        show(store, &edit.key, None)?;
                    } else if let Some(bytes) = edits.value(&edit, notes) {
                        let large = edit.op == Op::PutLarge;
                        show(store, &edit.key, Some(ValueRef { bytes: &bytes, large }))?;
                    }
                }
            }
        }
        Ok(!planned.is_empty())
    }
}
