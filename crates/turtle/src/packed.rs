//! The bytes of a node, and what a checkpoint remembers of a tree. All integers are little-endian.
//!
//! A **node**: version `u8` (2), height `u8` (1 above leaves), number of pivots `u8` (1 to 64),
//! number of levels `u8`; then for each pivot, ascending: lower bound (length `u16`, bytes; the
//! first is empty), bytes pending `u64`, tombstones among what is pending `u32`, child (length
//! `u8`, what [`Files`] says of it: a leaf at height 1, else a node); then for each level, newest
//! first: number of segments `u8`, then for each, ascending: active pivots `u64` (pivot 0 is the
//! lowest bit), lower fence (length `u16`, bytes), whether there is an upper fence `u8`, that
//! fence, leaf (length `u8`, bytes).
//!
//! Nodes are read when a database is opened and then stay in memory, 4 to 8 KiB for some hundred
//! leaves; never one by one. So a node takes as many pages as it needs, and its fan-out falls only
//! when keys are so long that it would need more than [`crate::files::Limits::node_bytes`].
//!
//! A **tree**: 0 (nothing), or 1 and a leaf, or 2 and a node, as [`Files`] describes them.
//!
//! Nodes of version 1 lack the tombstones; as many are taken to be there as the bytes may be.
//!
//! Example: a node with the leaves `A` and `B`, the second from key `m` on, and one segment `S` in
//! its only level, with 300 bytes for the second, 3 tombstones among them:
//! `02 01 02 01  00 00 00*12 01 41  01 00 6d 2c 01 00*6 03 00*3 01 42`
//! `01 02 00*7 01 00 6d 00 01 53`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, ErrorKind, Result};

use crate::edit::packed_bytes;
use crate::files::{Files, LEVELS_MAX, PIVOTS_MAX};
use crate::levels::{Key, Level, Part, Segment};
use crate::node::{Child, Leaf, Node};
use crate::tree::Tree;
use crate::update::Activity;

const VERSION: u8 = 2;
/// Version of nodes that do not count their tombstones.
const VERSION_UNCOUNTED: u8 = 1;

const TREE_EMPTY: u8 = 0;
const TREE_LEAF: u8 = 1;
const TREE_NODE: u8 = 2;

/// What a tree begins with, and what describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root<'a> {
    Empty,
    Leaf(&'a [u8]),
    Node(&'a [u8]),
}

impl<'a> Root<'a> {
    /// What describes a tree that begins with this node.
    pub(crate) fn of_node(description: &[u8]) -> Vec<u8> {
        [&[TREE_NODE], description].concat()
    }

    /// # Errors
    /// `Corruption` when it is nothing that describes a tree.
    pub(crate) fn decode(description: &'a [u8]) -> Result<Root<'a>> {
        let (kind, description) =
            description.split_first().ok_or_else(|| damaged("a description of a tree"))?;
        match *kind {
            TREE_EMPTY => Ok(Root::Empty),
            TREE_LEAF => Ok(Root::Leaf(description)),
            TREE_NODE => Ok(Root::Node(description)),
            _ => Err(damaged("a known kind of tree")),
        }
    }
}

/// A node as its page describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedNode {
    pub(crate) height: u8,
    pub(crate) pivots: Vec<PackedPivot>,
    pub(crate) levels: Vec<Vec<PackedSegment>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedPivot {
    pub(crate) lower: Vec<u8>,
    pub(crate) pending: u64,
    /// Of version 1 none is known.
    pub(crate) tombstones: Option<u32>,
    pub(crate) child: Vec<u8>,
}

impl PackedPivot {
    /// How many tombstones are pending for it, at most.
    pub(crate) fn tombstones_max(&self) -> u64 {
        self.tombstones.map_or(self.pending / packed_bytes(0, 0), u64::from)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedSegment {
    pub(crate) active: u64,
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) leaf: Vec<u8>,
}

impl PackedNode {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let is_counted = self.pivots.iter().all(|pivot| pivot.tombstones.is_some());
        let version = if is_counted { VERSION } else { VERSION_UNCOUNTED };
        let mut out = vec![version, self.height, self.pivots.len() as u8, self.levels.len() as u8];
        for pivot in &self.pivots {
            put_key(&mut out, &pivot.lower);
            out.extend_from_slice(&pivot.pending.to_le_bytes());
            let tombstones = pivot.tombstones.filter(|_| is_counted);
            out.extend(tombstones.iter().flat_map(|count| count.to_le_bytes()));
            put_description(&mut out, &pivot.child);
        }
        for level in &self.levels {
            out.push(level.len() as u8);
            for segment in level {
                out.extend_from_slice(&segment.active.to_le_bytes());
                put_key(&mut out, &segment.lower);
                out.push(u8::from(segment.upper.is_some()));
                segment.upper.iter().for_each(|upper| put_key(&mut out, upper));
                put_description(&mut out, &segment.leaf);
            }
        }
        out
    }

    /// # Errors
    /// `Corruption` when it is not what [`PackedNode::encode`] makes of a sound node.
    pub(crate) fn decode(payload: &[u8]) -> Result<PackedNode> {
        let (node, rest) = PackedNode::decode_first(payload)?;
        ensure(rest.is_empty(), "its end")?;
        Ok(node)
    }

    /// The same for a node with something behind it.
    ///
    /// # Errors
    /// As [`PackedNode::decode`].
    pub(crate) fn decode_first(payload: &[u8]) -> Result<(PackedNode, &[u8])> {
        let mut reader = Reader { rest: payload };
        let [version, height, pivots, levels] = *reader.array::<4>()?;
        ensure([VERSION_UNCOUNTED, VERSION].contains(&version), "version 1 or 2")?;
        ensure(height > 0, "a height above leaves")?;
        ensure((1..=PIVOTS_MAX).contains(&(pivots as usize)), "1 to 64 pivots")?;
        ensure(levels as usize <= LEVELS_MAX, "at most 16 levels")?;
        let known = u64::MAX >> (PIVOTS_MAX - pivots as usize);
        let pivot = |_| reader.pivot(version == VERSION);
        let pivots = (0..pivots).map(pivot).collect::<Result<Vec<_>>>()?;
        ensure(pivots[0].lower.is_empty(), "an empty first bound")?;
        ensure(pivots.is_sorted_by(|a, b| a.lower < b.lower), "ascending pivots")?;
        let levels = (0..levels).map(|_| reader.level(known)).collect::<Result<_>>()?;
        Ok((PackedNode { height, pivots, levels }, reader.rest))
    }
}

fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
}

fn put_description(out: &mut Vec<u8>, description: &[u8]) {
    out.push(description.len() as u8);
    out.extend_from_slice(description);
}

fn ensure(holds: bool, expected: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(damaged(expected)) }
}

fn damaged(expected: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("a node of the tree does not hold {expected}"))
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let (array, rest) = self.rest.split_first_chunk().ok_or_else(|| damaged("enough bytes"))?;
        self.rest = rest;
        Ok(array)
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let (bytes, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| damaged("enough bytes"))?;
        self.rest = rest;
        Ok(bytes.to_vec())
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    fn key(&mut self) -> Result<Vec<u8>> {
        let length = u16::from_le_bytes(*self.array()?) as usize;
        ensure(length <= KEY_BYTES_MAX, "keys of at most 1024 bytes")?;
        self.bytes(length)
    }

    fn description(&mut self) -> Result<Vec<u8>> {
        let [length] = *self.array()?;
        self.bytes(length as usize)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    fn pivot(&mut self, is_counted: bool) -> Result<PackedPivot> {
        let (lower, pending) = (self.key()?, self.u64()?);
        let tombstones = if is_counted { Some(self.u32()?) } else { None };
        Ok(PackedPivot { lower, pending, tombstones, child: self.description()? })
    }

    fn level(&mut self, known: u64) -> Result<Vec<PackedSegment>> {
        let [count] = *self.array()?;
        let segments: Vec<_> = (0..count).map(|_| self.segment(known)).collect::<Result<_>>()?;
        let ascending = |a: &PackedSegment, b: &PackedSegment| a.lower < b.lower;
        ensure(segments.is_sorted_by(ascending), "ascending segments")?;
        Ok(segments)
    }

    fn segment(&mut self, known: u64) -> Result<PackedSegment> {
        let active = self.u64()?;
        ensure(active != 0 && active & !known == 0, "segments active for its pivots")?;
        let lower = self.key()?;
        let upper = match self.array()? {
            [0] => None,
            [1] => Some(self.key()?),
            _ => return Err(damaged("an upper fence or none")),
        };
        ensure(upper.as_ref().is_none_or(|upper| lower < *upper), "fences in order")?;
        Ok(PackedSegment { active, lower, upper, leaf: self.description()? })
    }
}

/// Packs a node for its page, once everything below it is on pages.
///
/// # Errors
/// `InvalidArgument` when something is in memory alone.
pub(crate) fn pack<F: Files>(node: &Node<F>, files: &F) -> Result<PackedNode> {
    let pivot = |(pivot, lower): (usize, &Key)| {
        let child = describe_child(&node.children[pivot], files)?;
        let tombstones = Some(u32::try_from(node.tombstones[pivot]).unwrap_or(u32::MAX));
        let pending = node.pending[pivot];
        Ok(PackedPivot { lower: lower.to_vec(), pending, tombstones, child })
    };
    let segment = |part: &Part<F>| {
        let Part::Segment(segment) = part else { return Err(in_memory()) };
        let mut leaf = Vec::new();
        files.describe_leaf(&segment.leaf, &mut leaf);
        Ok(PackedSegment {
            active: u64::try_from(segment.active).map_err(|_| in_memory())?,
            lower: part.lower(&node.keys).to_vec(),
            upper: segment.upper.as_ref().map(|upper| upper.to_vec()),
            leaf,
        })
    };
    let level = |level: &Level<F>| level.parts.iter().map(segment).collect::<Result<_>>();
    Ok(PackedNode {
        height: node.height,
        pivots: node.keys.iter().enumerate().map(pivot).collect::<Result<_>>()?,
        levels: node.levels.iter().map(level).collect::<Result<_>>()?,
    })
}

fn in_memory() -> Error {
    Error::invalid("a part of the tree is in memory only")
}

fn describe_child<F: Files>(child: &Child<F>, files: &F) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match child {
        Child::Leaf(Leaf::Written(leaf)) => files.describe_leaf(leaf, &mut out),
        Child::Node(node) => {
            files.describe_node(node.pages.as_ref().ok_or_else(in_memory)?, &mut out);
        }
        Child::Leaf(Leaf::Memory(_)) => return Err(in_memory()),
    }
    Ok(out)
}

/// A page owner that a tree holds.
#[derive(Debug)]
pub(crate) enum Owned<'a, F: Files> {
    Leaf(&'a Arc<F::Leaf>),
    Node(&'a Arc<F::Pages>),
}

impl<F: Files> Tree<F> {
    /// What a checkpoint has to remember to open the tree again.
    ///
    /// # Errors
    /// `InvalidArgument` when a part of it is in memory only.
    pub(crate) fn describe(&self, files: &F) -> Result<Vec<u8>> {
        let Some(root) = &self.root else { return Ok(vec![TREE_EMPTY]) };
        let kind = if matches!(root, Child::Leaf(_)) { TREE_LEAF } else { TREE_NODE };
        let mut out = vec![kind];
        out.extend(describe_child(root, files)?);
        Ok(out)
    }

    /// Reads all nodes of a tree that was described, and owns all pages of it.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn open(files: &F, description: &[u8]) -> Result<Tree<F>> {
        let mut opening = Opening { files, leaves: HashMap::new(), nodes: HashSet::new() };
        let root = match Root::decode(description)? {
            Root::Empty => None,
            Root::Leaf(leaf) => Some(Child::Leaf(Leaf::Written(opening.leaf(leaf)?))),
            Root::Node(node) => Some(Child::Node(Arc::new(opening.node(node, None)?))),
        };
        Ok(Tree { root, activity: Activity::default() })
    }

    /// Visits every owner of pages once.
    pub(crate) fn walk<'a>(&'a self, mut each: impl FnMut(Owned<'a, F>)) {
        let mut seen = HashSet::new();
        let mut left: Vec<&Child<F>> = self.root.iter().collect();
        while let Some(child) = left.pop() {
            let mut leaf = |leaf: &'a Arc<F::Leaf>| {
                if seen.insert(Arc::as_ptr(leaf)) {
                    each(Owned::Leaf(leaf));
                }
            };
            match child {
                Child::Leaf(Leaf::Memory(_)) => {}
                Child::Leaf(Leaf::Written(written)) => leaf(written),
                Child::Node(node) => {
                    for part in node.levels.iter().flat_map(|level| &level.parts) {
                        if let Part::Segment(segment) = part {
                            leaf(&segment.leaf);
                        }
                    }
                    if let Some(pages) = &node.pages {
                        each(Owned::Node(pages));
                    }
                    left.extend(&node.children);
                }
            }
        }
    }
}

/// Opens a tree: one owner for each leaf, however many nodes share it.
struct Opening<'a, F: Files> {
    files: &'a F,
    leaves: HashMap<Vec<u8>, Arc<F::Leaf>>,
    nodes: HashSet<Vec<u8>>,
}

impl<F: Files> Opening<'_, F> {
    fn leaf(&mut self, description: &[u8]) -> Result<Arc<F::Leaf>> {
        if let Some(leaf) = self.leaves.get(description) {
            return Ok(Arc::clone(leaf));
        }
        let leaf = self.files.open_leaf(description)?;
        self.leaves.insert(description.to_vec(), Arc::clone(&leaf));
        Ok(leaf)
    }

    /// `height` is the height that its parent requires.
    fn node(&mut self, description: &[u8], height: Option<u8>) -> Result<Node<F>> {
        ensure(self.nodes.insert(description.to_vec()), "children of its own")?;
        let (pages, payload) = self.files.open_node(description)?;
        let packed = PackedNode::decode(&payload)?;
        ensure(height.is_none_or(|height| height == packed.height), "one height for all leaves")?;
        let mut children = Vec::with_capacity(packed.pivots.len());
        for pivot in &packed.pivots {
            children.push(match packed.height {
                1 => Child::Leaf(Leaf::Written(self.leaf(&pivot.child)?)),
                height => Child::Node(Arc::new(self.node(&pivot.child, Some(height - 1))?)),
            });
        }
        let mut levels = Vec::with_capacity(packed.levels.len());
        for level in packed.levels {
            let mut parts = Vec::with_capacity(level.len());
            for segment in level {
                parts.push(Part::Segment(Segment {
                    leaf: self.leaf(&segment.leaf)?,
                    lower: segment.lower.into(),
                    upper: segment.upper.map(Key::from),
                    active: segment.active.into(),
                }));
            }
            levels.push(Level { parts });
        }
        Ok(Node {
            totals: OnceLock::new(),
            height: packed.height,
            pending: packed.pivots.iter().map(|pivot| pivot.pending).collect(),
            tombstones: packed.pivots.iter().map(PackedPivot::tombstones_max).collect(),
            keys: packed.pivots.into_iter().map(|pivot| pivot.lower.into()).collect(),
            children,
            levels,
            pages: Some(pages),
        })
    }
}
