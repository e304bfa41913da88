//! The tree: lookups and writers.
//!
//! ```text
//!   root --- node depth 0 --'a'--> node depth 4 --end--> leaf "abcd"
//!                 |                      +------'x'--> leaf "abcdxyz"
//!                 +---------'b'--> leaf "b..." of any length
//! ```
//!
//! A node is where at least two keys part; everything between two nodes is skipped. A lookup goes
//! down by the bytes at the nodes' depths and compares once, at the leaf.
//!
//! *Adding* a key finds out where it parts from the tree (see [`trail`](crate::trail)): in the
//! middle of an edge or at a leaf, which takes a new node of two children there; or at a node,
//! which takes one more child. A full node gives way to a larger one. *Removing* the last but one
//! child joins the edges above and below the node; a node with much room gives way to a smaller
//! one.
//!
//! **Concurrency.** Writers latch only nodes that they change or replace, by an upgrade of the
//! version that they read under: at most two, the parent and the node. An upgrade never waits, so
//! there is no lock order to keep. Nothing else may be called while a latch is held but the
//! allocator. Lookups, writes and neighbours are linearizable; see [`scan`](crate::scan) for
//! ranges.
//!
//! Why an upgrade of the versions read is enough: that a key parts from a leaf after n bytes tells
//! that it parts so from all keys below each node on the way that is deeper than n, for as long as
//! the node exists (node invariant 1). Where the way was, in turn, the parent's latch holds still.
//!
//! Why a lookup that finds nothing is right although the tree may have changed above: a key that is
//! there throughout is always below the node where the lookup stands, since joins, splits and
//! replacements that move it elsewhere change the version of that node or of its parent.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use crossbeam_epoch::{Guard, pin};
use spinney_base::{Error, ErrorKind, Result};

use crate::direction::Direction;
use crate::layout::{FIRST, Position, position};
use crate::memory::Memory;
use crate::node::{Child, Kind, NodeRef, Root, Word};
use crate::source::{KeySource, LEAF_MAX, Parting};
use crate::trail::{Landing, Restart, Step, Trail, lock_both, until_done};

/// An ordered map from byte strings to leaves: 63-bit references of the caller's, whose keys a
/// [`KeySource`] returns. Thread-safe.
///
/// Keys may be anything shorter than 4 GiB: empty, prefixes of each other, long with long common
/// prefixes. The tree never recurses.
#[derive(Debug)]
pub struct Art<S> {
    pub(crate) root: Root,
    memory: Arc<Memory>,
    len: AtomicIsize,
    pub(crate) source: S,
}

/// Parts of a tree; see [`Art::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Number of leaves, that is, of keys.
    pub leaves: usize,
    /// Nodes by capacity: 4, 8, 16, 32, 48, 112, 256 children.
    pub nodes: [usize; 7],
    /// Bytes of all nodes and of the tree itself.
    pub bytes: usize,
    /// Nodes on the longest path from the root to a leaf.
    pub height: usize,
}

/// When a write takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    Absent,
    Is(u64),
}

impl<S: KeySource> Art<S> {
    /// Makes a tree without keys.
    #[must_use]
    pub fn new(source: S) -> Self {
        let memory = Arc::new(Memory::default());
        memory.allocated(Self::own_bytes());
        Art { root: Root::new(), memory, len: AtomicIsize::new(0), source }
    }

    /// Returns the source of the leaves' keys.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        // A writer counts after it wrote, so another may have uncounted the key first.
        usize::try_from(self.len.load(Relaxed)).unwrap_or(0)
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the reachable bytes of the tree: its nodes and itself, exactly as requested of the
    /// allocator. The caller owns the leaves.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.live()
    }

    /// Returns the bytes of replaced nodes that wait for readers that may still see them.
    #[must_use]
    pub fn retired_bytes(&self) -> usize {
        self.memory.retired()
    }

    fn own_bytes() -> usize {
        size_of::<Self>() + Memory::SHARED_BYTES + Kind::Root.bytes()
    }

    /// Returns the leaf of `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<u64> {
        let guard = pin();
        until_done(|| self.try_get(key, &guard))
    }

    fn try_get(&self, key: &[u8], guard: &Guard) -> std::result::Result<Option<u64>, Restart> {
        let node = self.root.node(guard);
        let mut step = Step::new(node, node.version(), 0);
        loop {
            match step.node.find(step.position) {
                Child::Node(child) => {
                    step.version = step.enter(child)?;
                    step.node = child;
                    if child.depth() > key.len() {
                        return Ok(None);
                    }
                    step.position = position(key, child.depth());
                }
                Child::Leaf(leaf) => {
                    let matches = self.source.matches(leaf, key);
                    step.validate()?;
                    return Ok(matches.then_some(leaf));
                }
                Child::Nothing => {
                    step.validate()?;
                    return Ok(None);
                }
            }
        }
    }

    /// Makes `leaf` the leaf of `key`, and returns the old one. From now on the source must return
    /// the leaf's key.
    ///
    /// # Panics
    /// When the leaf is greater than [`LEAF_MAX`] or the key is 4 GiB or longer.
    pub fn upsert(&self, key: &[u8], leaf: u64) -> Option<u64> {
        self.write(key, leaf, When::Always)
    }

    /// Makes `leaf` the leaf of `key` if the key has none.
    ///
    /// # Errors
    /// The leaf that the key has.
    ///
    /// # Panics
    /// As [`upsert`](Self::upsert).
    pub fn insert_if_absent(&self, key: &[u8], leaf: u64) -> std::result::Result<(), u64> {
        self.write(key, leaf, When::Absent).map_or(Ok(()), Err)
    }

    /// Makes `leaf` the leaf of `key` if that is `expected` now. Returns whether it did.
    ///
    /// # Panics
    /// As [`upsert`](Self::upsert).
    pub fn replace(&self, key: &[u8], expected: u64, leaf: u64) -> bool {
        self.write(key, leaf, When::Is(expected)) == Some(expected)
    }

    /// Removes `key`, and returns its leaf.
    pub fn remove(&self, key: &[u8]) -> Option<u64> {
        self.erase(key, None)
    }

    /// Removes `key` if its leaf is `expected`. Returns whether it did.
    pub fn remove_if(&self, key: &[u8], expected: u64) -> bool {
        self.erase(key, Some(expected)) == Some(expected)
    }

    /// Removes all keys, and passes their leaves to `each_leaf`, in no order.
    pub fn clear(&mut self, each_leaf: impl FnMut(u64)) {
        self.root.clear(&self.memory, each_leaf);
        self.len.store(0, Relaxed);
    }

    /// The leaf that the key had; whether that meant a write is in `when`.
    fn write(&self, key: &[u8], leaf: u64, when: When) -> Option<u64> {
        assert!(leaf <= LEAF_MAX, "a leaf has 63 bits");
        assert!(u32::try_from(key.len()).is_ok(), "keys are shorter than 4 GiB");
        let guard = pin();
        let mut trail = Trail::new(&self.root, &guard);
        until_done(|| self.try_write(key, leaf, when, &mut trail, &guard))
    }

    fn try_write<'g>(
        &self,
        key: &[u8],
        leaf: u64,
        when: When,
        trail: &mut Trail<'g>,
        guard: &'g Guard,
    ) -> std::result::Result<Option<u64>, Restart> {
        let landing = trail.follow(key, Direction::Forward, &self.source)?;
        let last = trail.last();
        match landing {
            Landing::Leaf { leaf: old, parting } if parting.order() == Ordering::Equal => {
                if when == When::Always || when == When::Is(old) {
                    let _latch = last.lock()?;
                    last.node.replace(last.position, Word::leaf(leaf));
                }
                return Ok(Some(old));
            }
            _ if matches!(when, When::Is(_)) => return Ok(None),
            Landing::Empty => {
                let _latch = last.lock()?;
                last.node.insert(FIRST, Word::leaf(leaf));
            }
            Landing::Leaf { leaf: old, parting } => {
                let (above, below) = match trail.first_beyond(parting.common()) {
                    Some(index) => (trail.step(index - 1), Child::Node(trail.step(index).node)),
                    None => (last, Child::Leaf(old)),
                };
                self.split(above, below, key, leaf, parting, guard)?;
            }
            Landing::Gap { parting } => match trail.first_beyond(parting.common()) {
                Some(index) => {
                    let below = Child::Node(trail.step(index).node);
                    self.split(trail.step(index - 1), below, key, leaf, parting, guard)?;
                }
                None => {
                    debug_assert_eq!(parting.common(), last.node.depth());
                    self.add(trail, leaf, guard)?;
                }
            },
        }
        self.len.fetch_add(1, Relaxed);
        Ok(None)
    }

    /// Puts a node between a step's node and the child at its position, where the key parts.
    fn split<'g>(
        &self,
        above: &Step<'g>,
        below: Child<'g>,
        key: &[u8],
        leaf: u64,
        parting: Parting,
        guard: &'g Guard,
    ) -> std::result::Result<(), Restart> {
        let depth = u32::try_from(parting.common()).expect("keys are shorter than 4 GiB");
        let _latch = above.lock()?;
        let node = NodeRef::new(Kind::Four, depth, &self.memory, guard);
        node.insert(parting.leaf_position(), below.word());
        node.insert(position(key, parting.common()), Word::leaf(leaf));
        above.node.replace(above.position, Child::Node(node).word());
        Ok(())
    }

    /// Gives the last step's node a child at its position, where it has none.
    fn add<'g>(
        &self,
        trail: &Trail<'g>,
        leaf: u64,
        guard: &'g Guard,
    ) -> std::result::Result<(), Restart> {
        let last = trail.last();
        if last.node.has_room(last.position) {
            let _latch = last.lock()?;
            last.node.insert(last.position, Word::leaf(leaf));
            return Ok(());
        }
        let above = trail.step(last.parent);
        let (_above_latch, _latch) = lock_both(above, last)?;
        let kind = last.node.kind().larger();
        let larger = self.give_way(above, last.node, kind, None, guard);
        larger.insert(last.position, Word::leaf(leaf));
        Ok(())
    }

    /// Replaces `node` by a node of another kind, without the child at `except`. Both the node and
    /// the one above are latched.
    fn give_way<'g>(
        &self,
        above: &Step<'g>,
        node: NodeRef<'g>,
        kind: Kind,
        except: Option<Position>,
        guard: &'g Guard,
    ) -> NodeRef<'g> {
        let depth = u32::try_from(node.depth()).expect("it came from one");
        let other = NodeRef::new(kind, depth, &self.memory, guard);
        other.copy_from(node, except);
        above.node.replace(above.position, Child::Node(other).word());
        node.retire(&self.memory, guard);
        other
    }

    /// The leaf that the key had; it is removed if it is the one expected.
    fn erase(&self, key: &[u8], expected: Option<u64>) -> Option<u64> {
        let guard = pin();
        let mut trail = Trail::new(&self.root, &guard);
        until_done(|| self.try_erase(key, expected, &mut trail, &guard))
    }

    fn try_erase<'g>(
        &self,
        key: &[u8],
        expected: Option<u64>,
        trail: &mut Trail<'g>,
        guard: &'g Guard,
    ) -> std::result::Result<Option<u64>, Restart> {
        let Landing::Leaf { leaf, parting } =
            trail.follow(key, Direction::Forward, &self.source)?
        else {
            return Ok(None);
        };
        if parting.order() != Ordering::Equal {
            return Ok(None);
        }
        if expected.is_some_and(|expected| expected != leaf) {
            return Ok(Some(leaf));
        }
        let last = trail.last();
        let node = last.node;
        let bytes_left = node.count() - usize::from(last.position != FIRST);
        if node.kind() == Kind::Root {
            let _latch = last.lock()?;
            node.remove(FIRST);
        } else if node.len() == 2 {
            let above = trail.step(last.parent);
            let (_above_latch, _latch) = lock_both(above, last)?;
            let other = match node.at_or_after(FIRST).expect("it has two children") {
                (at, _) if at == last.position => {
                    node.at_or_after(at + 1).expect("it has two children").1
                }
                (_, other) => other,
            };
            above.node.replace(above.position, other.word());
            node.retire(&self.memory, guard);
        } else if let Some(kind) = node.kind().smaller_for(bytes_left) {
            let above = trail.step(last.parent);
            let (_above_latch, _latch) = lock_both(above, last)?;
            self.give_way(above, node, kind, Some(last.position), guard);
        } else {
            let _latch = last.lock()?;
            node.remove(last.position);
        }
        self.len.fetch_sub(1, Relaxed);
        Ok(Some(leaf))
    }

    /// Checks every invariant of the tree, and counts its parts. The caller makes sure that no
    /// thread writes meanwhile.
    ///
    /// # Errors
    /// `Corruption` that says what is wrong first.
    pub fn check(&self) -> Result<Census> {
        let guard = pin();
        let wrong = |what: String| Error::new(ErrorKind::Corruption, format!("radix tree: {what}"));
        let mut census = Census { bytes: Self::own_bytes(), ..Census::default() };
        let mut previous: Option<Vec<u8>> = None;
        // Depth at which the next leaf must part from the one before.
        let mut parted = 0;
        let mut way: Vec<(NodeRef<'_>, Position)> = vec![(self.root.node(&guard), FIRST)];
        while let Some((node, next)) = way.last_mut() {
            let depth = node.depth();
            let Some((at, child)) = node.at_or_after(*next) else {
                way.pop();
                continue;
            };
            *next = at + 1;
            if at != FIRST || census.leaves > 0 {
                parted = parted.min(depth);
            }
            match child {
                Child::Nothing => return Err(wrong(format!("an empty child at depth {depth}"))),
                Child::Node(below) => {
                    if way.len() > 1 && below.depth() <= depth {
                        return Err(wrong(format!("depth {} is below {depth}", below.depth())));
                    }
                    census.take_node(below).map_err(wrong)?;
                    way.push((below, FIRST));
                    census.height = census.height.max(way.len() - 1);
                }
                Child::Leaf(leaf) => {
                    let mut key = Vec::new();
                    self.source.read_key(leaf, &mut key);
                    let astray = way[1..].iter().find(|(node, next)| {
                        node.depth() > key.len() || position(&key, node.depth()) + 1 != *next
                    });
                    if let Some((node, _)) = astray {
                        return Err(wrong(format!("leaf {leaf} is astray at {}", node.depth())));
                    }
                    if let Some(previous) = &previous {
                        let parting = Parting::of(previous, &key);
                        if parting.order() != Ordering::Less || parting.common() != parted {
                            return Err(wrong(format!("leaf {leaf} is out of order")));
                        }
                    }
                    previous = Some(key);
                    parted = usize::MAX;
                    census.leaves += 1;
                }
            }
        }
        if (census.leaves, census.bytes) != (self.len(), self.bytes()) {
            let counted = (self.len(), self.bytes());
            return Err(wrong(format!("it counts {counted:?} keys and bytes, and has {census:?}")));
        }
        Ok(census)
    }
}

impl Census {
    fn take_node(&mut self, node: NodeRef<'_>) -> std::result::Result<(), String> {
        let kind = Kind::NODES.iter().position(|kind| *kind == node.kind());
        self.nodes[kind.ok_or("a second root")?] += 1;
        self.bytes += node.kind().bytes();
        let mut children = 0;
        let mut next = FIRST;
        while let Some((at, _)) = node.at_or_after(next) {
            if at < next || node.at_or_before(at).map(|found| found.0) != Some(at) {
                return Err(format!("children at depth {} are out of order", node.depth()));
            }
            children += 1;
            next = at + 1;
        }
        if children != node.len() || children < 2 {
            return Err(format!("{children} children, counted as {}", node.len()));
        }
        Ok(())
    }
}

impl<S> Drop for Art<S> {
    fn drop(&mut self) {
        self.root.clear(&self.memory, |_| {});
    }
}
