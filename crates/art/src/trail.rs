//! The way from the root to where a key is or belongs, with the version of each node on it.
//!
//! Nodes store no prefixes, so the descent is blind: it follows the key's bytes at the nodes'
//! depths to some leaf, and only that leaf's key shows how far the path was the key's own. If no
//! child fits, it continues to any leaf below, because all leaves below a node share the node's
//! prefix.
//!
//! **Invariants**
//! 1. A step's version was taken before its parent was validated, so at that moment the step's node
//!    was the parent's child.
//! 2. If all steps validate at the end, the trail and all that was read from its nodes are the
//!    tree's state at one moment.
//!
//! **Concurrency.** A trail belongs to one thread and lives as long as its pin.

use crossbeam_epoch::Guard;
use spinney_base::shim::{spin_hint, thread};
use spinney_sync::{LatchGuard, Version};

use crate::direction::Direction;
use crate::layout::{FIRST, Position, position};
use crate::node::{Child, NodeRef, Root};
use crate::source::{KeySource, Parting};

/// What was read may be inconsistent: begin again. Not an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart;

const RESTARTS_BEFORE_YIELD: u32 = 8;

/// Runs `attempt` until it does not ask for a restart. Each restart means that some writer got
/// something done, or that one is at work and may need the processor.
pub(crate) fn until_done<T>(mut attempt: impl FnMut() -> Result<T, Restart>) -> T {
    let mut restarts = 0;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(Restart) if restarts < RESTARTS_BEFORE_YIELD => {
                restarts += 1;
                spin_hint();
            }
            Err(Restart) => thread::yield_now(),
        }
    }
}

/// A node on the path, and the position at which the path continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'g> {
    pub(crate) node: NodeRef<'g>,
    pub(crate) version: Version,
    pub(crate) position: Position,
    /// Index of the step above it; the root's is its own.
    pub(crate) parent: usize,
    /// In a range: up to which position the children were asked for ahead of their turn.
    pub(crate) asked: Option<Position>,
}

/// How many children are asked for ahead: enough to cover the wait for one of them.
const ASK_AHEAD: usize = 8;

impl<'g> Step<'g> {
    /// A step whose position is yet to be found.
    #[inline]
    pub(crate) fn new(node: NodeRef<'g>, version: Version, parent: usize) -> Self {
        Step { node, version, position: FIRST, parent, asked: None }
    }

    /// Asks the processor for the nodes that come after `position`, unless it was done: a range
    /// would otherwise wait for one after the other.
    pub(crate) fn ask_ahead(&mut self, position: Position, direction: Direction) {
        if self.asked.is_some_and(|asked| direction.is_before(position, asked)) {
            return;
        }
        let mut next = direction.after(position);
        for _ in 0..ASK_AHEAD {
            let Some((at, child)) = self.node.next(next, direction) else { break };
            child.prefetch();
            next = direction.after(at);
        }
        self.asked = Some(next);
    }

    /// Whether the node is as it was.
    #[inline]
    pub(crate) fn validate(&self) -> Result<(), Restart> {
        if self.node.latch().validate(self.version) { Ok(()) } else { Err(Restart) }
    }

    /// Latches the node if it is as it was.
    pub(crate) fn lock(&self) -> Result<LatchGuard<'g>, Restart> {
        self.node.latch().try_upgrade(self.version).ok_or(Restart)
    }

    /// Goes down to a child that was read from this node.
    #[inline]
    pub(crate) fn enter(&self, child: NodeRef<'g>) -> Result<Version, Restart> {
        let version = child.version();
        self.validate()?;
        Ok(version)
    }
}

/// Latches two nodes that are as they were, or none.
pub(crate) fn lock_both<'g>(
    above: &Step<'g>,
    below: &Step<'g>,
) -> Result<(LatchGuard<'g>, LatchGuard<'g>), Restart> {
    let first = above.lock()?;
    match below.lock() {
        Ok(second) => Ok((first, second)),
        Err(restart) => {
            first.release_unchanged();
            Err(restart)
        }
    }
}

/// Where the blind descent for a key ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Landing {
    /// The tree has no keys.
    Empty,
    /// At a leaf that is where the key would be: the child at the last step's position.
    Leaf { leaf: u64, parting: Parting },
    /// Nothing is where the key would be. Some leaf below the last step parts from it so.
    Gap { parting: Parting },
}

/// Steps kept without an allocation: trees of random keys are less than ten levels high.
const INLINE_STEPS: usize = 12;

/// Steps from the root down; a scan also keeps those it has left behind, to validate them.
#[derive(Debug)]
pub(crate) struct Trail<'g> {
    inline: [Step<'g>; INLINE_STEPS],
    length: usize,
    spilled: Vec<Step<'g>>,
}

impl<'g> Trail<'g> {
    /// A trail of one step, the root.
    pub(crate) fn new(root: &'g Root, guard: &'g Guard) -> Self {
        let node = root.node(guard);
        let step = Step::new(node, node.version(), 0);
        Trail { inline: [step; INLINE_STEPS], length: 1, spilled: Vec::new() }
    }

    /// Goes back to the root, as it is now.
    pub(crate) fn restart(&mut self) {
        self.length = 1;
        self.spilled.clear();
        let root = &mut self.inline[0];
        root.version = root.node.version();
        root.position = FIRST;
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn last(&self) -> &Step<'g> {
        self.step(self.length - 1)
    }

    pub(crate) fn step(&self, index: usize) -> &Step<'g> {
        match index.checked_sub(INLINE_STEPS) {
            None => &self.inline[index],
            Some(index) => &self.spilled[index],
        }
    }

    pub(crate) fn step_mut(&mut self, index: usize) -> &mut Step<'g> {
        match index.checked_sub(INLINE_STEPS) {
            None => &mut self.inline[index],
            Some(index) => &mut self.spilled[index],
        }
    }

    pub(crate) fn push(&mut self, step: Step<'g>) {
        if self.length < INLINE_STEPS {
            self.inline[self.length] = step;
        } else {
            self.spilled.push(step);
        }
        self.length += 1;
    }

    /// Forgets all steps from `length` on.
    pub(crate) fn truncate(&mut self, length: usize) {
        debug_assert!(length > 0);
        self.length = self.length.min(length);
        self.spilled.truncate(self.length.saturating_sub(INLINE_STEPS));
    }

    /// Whether all steps are as they were.
    pub(crate) fn validate(&self) -> Result<(), Restart> {
        (0..self.length).try_for_each(|index| self.step(index).validate())
    }

    /// Index of the first step whose node lies below where the key parts from the tree: none of the
    /// keys below that node share more than `common` bytes with the key, nor do any of them less.
    pub(crate) fn first_beyond(&self, common: usize) -> Option<usize> {
        // Depths grow downwards, and the way rarely leaves the tree high up.
        let within =
            (0..self.length).rev().take_while(|index| self.step(*index).node.depth() > common);
        within.last()
    }

    /// Starts at the root and follows the key. Where nothing is, the nearest leaf in the direction
    /// is looked at, for it is likely to be the one that is wanted in the end.
    pub(crate) fn follow(
        &mut self,
        key: &[u8],
        direction: Direction,
        source: &impl KeySource,
    ) -> Result<Landing, Restart> {
        self.restart();
        loop {
            let index = self.length - 1;
            let step = *self.last();
            let node = step.node;
            if node.depth() > key.len() {
                return gap(step, key, direction, source);
            }
            // The root has one child for all keys, at the first position.
            let position = if index == 0 { FIRST } else { position(key, node.depth()) };
            self.step_mut(index).position = position;
            match node.find(position) {
                Child::Node(child) => {
                    let version = step.enter(child)?;
                    self.push(Step::new(child, version, index));
                }
                Child::Leaf(leaf) => {
                    let parting = source.compare(leaf, key);
                    step.validate()?;
                    return Ok(Landing::Leaf { leaf, parting });
                }
                Child::Nothing if index == 0 => return Ok(Landing::Empty),
                Child::Nothing => return gap(Step { position, ..step }, key, direction, source),
            }
        }
    }
}

/// Compares the key with a leaf below the last step of its way.
fn gap(
    last: Step<'_>,
    key: &[u8],
    direction: Direction,
    source: &impl KeySource,
) -> Result<Landing, Restart> {
    let mut step = last;
    let ahead = step.node.next(step.position, direction);
    let behind = || step.node.next(step.position, direction.back());
    // A node without a child is one that a writer is changing.
    let (_, mut child) = ahead.or_else(behind).ok_or(Restart)?;
    loop {
        match child {
            Child::Node(node) => {
                step.version = step.enter(node)?;
                step.node = node;
                child = node.next(direction.start(), direction).ok_or(Restart)?.1;
            }
            Child::Leaf(leaf) => {
                let parting = source.compare(leaf, key);
                step.validate()?;
                return Ok(Landing::Gap { parting });
            }
            Child::Nothing => return Err(Restart),
        }
    }
}
