//! Nodes: a header that all kinds share, then one of the layouts, and the words that point to them.
//!
//! ```text
//!           0        8       12   13   14   16       24
//!           +--------+--------+----+----+----+--------+---------------------+
//!  node     | latch  | depth  |kind| -  |cnt | end    | layout, by kind     |
//!           +--------+--------+----+----+----+--------+---------------------+
//!
//!  word     63 ............................ 0
//!           0                                      nothing
//!           leaf, 63 bits                | 1       a leaf: the caller's record reference
//!           address of a node            | 0       a node, aligned to 8
//!
//!  bytes    root 24, 4: 64, 8: 96, 16: 168, 32: 312, 48: 664, 112: 1176, 256: 2072
//! ```
//!
//! `depth` is the index of the key byte that chooses the child; all keys below a node are at least
//! that long and equal up to there. The bytes themselves are not in the node: any leaf below has
//! them. As depths count from the key's start and not from the parent, a node stays as it is when
//! the edge above it is split or joined. `end` is the child at position 0: the key that ends here.
//! `cnt` counts the children with a byte.
//!
//! **Invariants**
//! 1. `depth` and `kind` never change, nor do the first `depth` bytes of the keys below, as long as
//!    the node exists.
//! 2. Depths grow downwards, except that the root has depth 0 and one child, at position 0, that
//!    stands for every key.
//! 3. A node that can be reached and is not latched has at least two children (the root: at most
//!    one).
//! 4. A word that points to a node is found only in nodes that can be reached, or that were retired
//!    no earlier than the node it points to, or later ones than the reader was pinned.
//!
//! **Concurrency.** Fields change only under the latch, or before anybody else knows the node. What
//! a reader finds counts only after it validated the version that it took before. A node that gave
//! way to another is unlinked under the latches of both its parent and itself and freed an epoch
//! later, so a reader that still stands on it can read it and will fail to validate (rule P27).
#![expect(unsafe_code, reason = "children are tagged pointers to nodes of several kinds")]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_epoch::Guard;
use spinney_base::shim::atomic::{AtomicPtr, AtomicU16, Ordering};
use spinney_sync::{Version, VersionLatch};

use crate::direction::Direction;
use crate::layout::{Direct, FIRST, Indexed, Layout, Nothing, Position, Sorted};
use crate::memory::Memory;
use crate::source::LEAF_MAX;

const LEAF_TAG: usize = 1;

const _: () = assert!(usize::BITS == 64, "a word holds a leaf of 63 bits");
const _: () = assert!(align_of::<Header>() > LEAF_TAG);

/// What a slot holds: nothing, a leaf or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(*mut Header);

impl Word {
    pub(crate) const EMPTY: Word = Word(std::ptr::null_mut());

    /// A leaf, at most [`LEAF_MAX`].
    pub(crate) fn leaf(leaf: u64) -> Self {
        debug_assert!(leaf <= LEAF_MAX);
        #[expect(clippy::cast_possible_truncation, reason = "asserted above: usize has 64 bits")]
        Word(std::ptr::without_provenance_mut((leaf << 1) as usize | LEAF_TAG))
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0.is_null()
    }

    #[inline]
    pub(crate) fn as_leaf(self) -> Option<u64> {
        let bits = self.0.addr();
        (bits & LEAF_TAG != 0).then_some(bits as u64 >> 1)
    }
}

/// A word that may be read while it is written. Empty by default.
#[derive(Debug, Default)]
pub(crate) struct Slot(AtomicPtr<Header>);

impl Slot {
    /// Acquires what was written to a node before it was stored here.
    #[inline]
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn store(&self, word: Word) {
        self.0.store(word.0, Ordering::Release);
    }
}

/// Content of a slot, for a pinned reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child<'g> {
    Nothing,
    Leaf(u64),
    Node(NodeRef<'g>),
}

impl Child<'_> {
    /// Says that the child will be wanted soon, if it is a node.
    pub(crate) fn prefetch(self) {
        if let Child::Node(node) = self {
            prefetch(node.0.as_ptr().addr());
        }
    }

    /// The child as a slot holds it.
    pub(crate) fn word(self) -> Word {
        match self {
            Child::Nothing => Word::EMPTY,
            Child::Leaf(leaf) => Word::leaf(leaf),
            Child::Node(node) => node.word(),
        }
    }
}

/// Evaluates an expression with `$L` the layout of nodes of a kind: the one place that says which.
macro_rules! by_kind {
    ($kind:expr, $L:ident => $run:expr) => {
        match $kind {
            Kind::Root => {
                type $L = Nothing;
                $run
            }
            Kind::Four => {
                type $L = Sorted<1, 4>;
                $run
            }
            Kind::Eight => {
                type $L = Sorted<1, 8>;
                $run
            }
            Kind::Sixteen => {
                type $L = Sorted<2, 16>;
                $run
            }
            Kind::ThirtyTwo => {
                type $L = Sorted<4, 32>;
                $run
            }
            Kind::FortyEight => {
                type $L = Indexed<48>;
                $run
            }
            Kind::HundredTwelve => {
                type $L = Indexed<112>;
                $run
            }
            Kind::All => {
                type $L = Direct;
                $run
            }
        }
    };
}

/// Which layout a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Root,
    Four,
    Eight,
    Sixteen,
    ThirtyTwo,
    FortyEight,
    HundredTwelve,
    All,
}

impl Kind {
    pub(crate) const NODES: [Kind; 7] = [
        Kind::Four,
        Kind::Eight,
        Kind::Sixteen,
        Kind::ThirtyTwo,
        Kind::FortyEight,
        Kind::HundredTwelve,
        Kind::All,
    ];

    /// Most children with a byte.
    #[inline]
    pub(crate) fn capacity(self) -> usize {
        by_kind!(self, L => L::CAPACITY)
    }

    /// What a node of the kind takes.
    pub(crate) fn bytes(self) -> usize {
        by_kind!(self, L => size_of::<Inner<L>>())
    }

    /// The next kind with more room; a full node has one.
    pub(crate) fn larger(self) -> Kind {
        let larger = Kind::NODES.into_iter().find(|kind| kind.capacity() > self.capacity());
        larger.expect("a node for all bytes is never full")
    }

    /// The kind to give way to when `count` children are left: the next smaller one, if it keeps a
    /// quarter of its room, so that a child that comes and goes does not copy nodes.
    pub(crate) fn smaller_for(self, count: usize) -> Option<Kind> {
        let smaller = Kind::NODES.into_iter().rfind(|kind| kind.capacity() < self.capacity())?;
        (count * 4 <= smaller.capacity() * 3).then_some(smaller)
    }
}

#[derive(Debug)]
#[repr(C)]
struct Header {
    latch: VersionLatch,
    depth: u32,
    kind: Kind,
    count: AtomicU16,
    end: Slot,
}

#[derive(Debug)]
#[repr(C)]
struct Inner<L> {
    header: Header,
    layout: L,
}

#[cfg(not(feature = "shuttle"))]
const _: () = {
    assert!(size_of::<Inner<Nothing>>() == 24);
    assert!(size_of::<Inner<Sorted<1, 4>>>() == 64);
    assert!(size_of::<Inner<Sorted<1, 8>>>() == 96);
    assert!(size_of::<Inner<Sorted<2, 16>>>() == 168);
    assert!(size_of::<Inner<Sorted<4, 32>>>() == 312);
    assert!(size_of::<Inner<Indexed<48>>>() == 664);
    assert!(size_of::<Inner<Indexed<112>>>() == 1176);
    assert!(size_of::<Inner<Direct>>() == 2072);
};

/// The root of a tree, in the tree itself.
#[derive(Debug)]
pub(crate) struct Root(Box<Inner<Nothing>>);

impl Root {
    pub(crate) fn new() -> Self {
        Root(Inner::boxed(Kind::Root, 0))
    }

    pub(crate) fn node<'g>(&'g self, _: &'g Guard) -> NodeRef<'g> {
        NodeRef(NonNull::from(&*self.0).cast(), PhantomData)
    }

    /// Frees all nodes and tells all leaves, in no order.
    pub(crate) fn clear(&mut self, memory: &Memory, mut each_leaf: impl FnMut(u64)) {
        let root = NodeRef(NonNull::from(&*self.0).cast(), PhantomData);
        let mut nodes = vec![root];
        while let Some(node) = nodes.pop() {
            let mut next = FIRST;
            while let Some((position, child)) = node.at_or_after(next) {
                match child {
                    Child::Leaf(leaf) => each_leaf(leaf),
                    Child::Node(below) => nodes.push(below),
                    Child::Nothing => {}
                }
                next = position + 1;
            }
            if node == root {
                root.remove(FIRST);
            } else {
                memory.freed(node.kind().bytes());
                // SAFETY: `&mut self` means that nobody else uses the tree; its nodes form a tree,
                // so each comes up once, and the node's children were taken down above.
                unsafe { node.free() };
            }
        }
    }
}

/// Asks the processor for the memory at an address, which need not be one.
#[inline]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that can be seen, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The byte of a position, if it is one of a byte.
#[inline]
fn byte(position: Position) -> Option<u8> {
    u8::try_from(position - 1).ok()
}

impl<L: Default> Inner<L> {
    fn boxed(kind: Kind, depth: u32) -> Box<Self> {
        let header = Header {
            latch: VersionLatch::new(),
            depth,
            kind,
            count: AtomicU16::new(0),
            end: Slot::default(),
        };
        Box::new(Inner { header, layout: L::default() })
    }

    fn leak(kind: Kind, depth: u32) -> NonNull<Header> {
        NonNull::from(Box::leak(Self::boxed(kind, depth))).cast()
    }
}

/// A node that cannot be freed while the thread is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef<'g>(NonNull<Header>, PhantomData<&'g Guard>);

/// Evaluates an expression with the layout of a node.
macro_rules! with_layout {
    ($node:expr, $layout:ident => $run:expr) => {
        by_kind!($node.kind(), L => {
            // SAFETY: the node was made as an `Inner<L>`, which is what its kind says.
            let $layout = unsafe { $node.layout::<L>() };
            $run
        })
    };
}

impl<'g> NodeRef<'g> {
    /// A new node that nobody else knows.
    pub(crate) fn new(kind: Kind, depth: u32, memory: &Memory, _: &'g Guard) -> Self {
        memory.allocated(kind.bytes());
        let header = by_kind!(kind, L => Inner::<L>::leak(kind, depth));
        NodeRef(header, PhantomData)
    }

    #[inline]
    fn header(self) -> &'g Header {
        // SAFETY: invariant 4: a node that a pinned reader found is not freed before the reader is
        // unpinned, and `'g` does not outlive the guard. The header is only shared: what changes in
        // it is atomic.
        unsafe { self.0.as_ref() }
    }

    /// The node's layout.
    ///
    /// # Safety
    /// The node was made as an `Inner<L>`.
    #[inline]
    unsafe fn layout<L>(self) -> &'g L {
        // SAFETY: as in `header`, and the pointer was made from the whole `Inner<L>`, as the caller
        // promises.
        let inner = unsafe { self.0.cast::<Inner<L>>().as_ref() };
        &inner.layout
    }

    /// A word that was read from this node.
    #[inline]
    fn child(self, word: Word) -> Child<'g> {
        match (word.as_leaf(), NonNull::new(word.0)) {
            (Some(leaf), _) => Child::Leaf(leaf),
            (None, Some(node)) => Child::Node(NodeRef(node, PhantomData)),
            (None, None) => Child::Nothing,
        }
    }

    fn word(self) -> Word {
        Word(self.0.as_ptr())
    }

    #[inline]
    pub(crate) fn latch(self) -> &'g VersionLatch {
        &self.header().latch
    }

    /// The version to read the node under.
    #[inline]
    pub(crate) fn version(self) -> Version {
        self.latch().version()
    }

    #[inline]
    pub(crate) fn depth(self) -> usize {
        self.header().depth as usize
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        self.header().kind
    }

    /// How many children have a byte.
    #[inline]
    pub(crate) fn count(self) -> usize {
        usize::from(self.header().count.load(Ordering::Relaxed))
    }

    /// How many children there are.
    pub(crate) fn len(self) -> usize {
        self.count() + usize::from(!self.header().end.load().is_empty())
    }

    /// Whether there is room at `position`, which has no child.
    pub(crate) fn has_room(self, position: Position) -> bool {
        position == FIRST || self.count() < self.kind().capacity()
    }

    #[inline]
    fn slot(self, position: Position) -> Option<&'g Slot> {
        match byte(position) {
            Some(byte) => with_layout!(self, layout => layout.find(self.count(), byte)),
            None => Some(&self.header().end),
        }
    }

    /// The child at `position`.
    #[inline]
    pub(crate) fn find(self, position: Position) -> Child<'g> {
        self.child(self.slot(position).map_or(Word::EMPTY, Slot::load))
    }

    /// The first child at or after `position`.
    pub(crate) fn at_or_after(self, position: Position) -> Option<(Position, Child<'g>)> {
        if position <= FIRST {
            let end = self.header().end.load();
            if !end.is_empty() {
                return Some((FIRST, self.child(end)));
            }
        }
        let byte = if position <= FIRST { 0 } else { byte(position)? };
        let found = with_layout!(self, layout => layout.at_or_after(self.count(), byte));
        found.map(|(byte, slot)| (Position::from(byte) + 1, self.child(slot.load())))
    }

    /// The last child at or before `position`.
    pub(crate) fn at_or_before(self, position: Position) -> Option<(Position, Child<'g>)> {
        if let Some(byte) = byte(position) {
            let found = with_layout!(self, layout => layout.at_or_before(self.count(), byte));
            if let Some((byte, slot)) = found {
                return Some((Position::from(byte) + 1, self.child(slot.load())));
            }
        }
        let end = self.header().end.load();
        (position >= FIRST && !end.is_empty()).then(|| (FIRST, self.child(end)))
    }

    /// The first child from `position` on, in either direction.
    pub(crate) fn next(
        self,
        position: Position,
        direction: Direction,
    ) -> Option<(Position, Child<'g>)> {
        match direction {
            Direction::Forward => self.at_or_after(position),
            Direction::Backward => self.at_or_before(position),
        }
    }

    /// Adds a child at `position`, which has none and where there is room. Under the latch.
    pub(crate) fn insert(self, position: Position, word: Word) {
        let Some(byte) = byte(position) else {
            return self.header().end.store(word);
        };
        let count = self.count();
        with_layout!(self, layout => layout.insert(count, byte, word));
        self.set_count(count + 1);
    }

    /// Removes the child at `position`. Under the latch.
    pub(crate) fn remove(self, position: Position) {
        let Some(byte) = byte(position) else {
            return self.header().end.store(Word::EMPTY);
        };
        let count = self.count();
        with_layout!(self, layout => layout.remove(count, byte));
        self.set_count(count - 1);
    }

    /// Puts another child in place of the one at `position`. Under the latch.
    pub(crate) fn replace(self, position: Position, word: Word) {
        self.slot(position).expect("the position has a child").store(word);
    }

    /// Adds all children of `source` but the one at `except`; there is room. `self` is new and
    /// `source` is latched.
    pub(crate) fn copy_from(self, source: NodeRef<'_>, except: Option<Position>) {
        let mut next = FIRST;
        while let Some((position, child)) = source.at_or_after(next) {
            if Some(position) != except {
                self.insert(position, child.word());
            }
            next = position + 1;
        }
    }

    fn set_count(self, count: usize) {
        let count = u16::try_from(count).expect("a node has at most 256 children with a byte");
        self.header().count.store(count, Ordering::Relaxed);
    }

    /// Frees the node once nobody can see it. It has been unlinked, under its latch and its
    /// parent's.
    pub(crate) fn retire(self, memory: &Arc<Memory>, guard: &Guard) {
        let bytes = self.kind().bytes();
        memory.unlinked(bytes);
        let memory = Arc::clone(memory);
        let node = NodeRef(self.0, PhantomData);
        let reclaim = move || {
            // SAFETY: as below; the closure runs once.
            unsafe { node.free() };
            memory.reclaimed(bytes);
        };
        // SAFETY: the node was unlinked by the caller, once, so whoever still holds it was pinned
        // before, and the closure runs after they are all unpinned. What it holds may be dropped by
        // any thread.
        unsafe { guard.defer_unchecked(reclaim) };
    }

    /// Frees the node.
    ///
    /// # Safety
    /// Nobody uses the node any more, it is not the root, and it is freed once.
    unsafe fn free(self) {
        by_kind!(self.kind(), L => {
            let inner = self.0.cast::<Inner<L>>().as_ptr();
            // SAFETY: the pointer came from a box of this type, which is what the kind says, and
            // the caller has the last use of it.
            drop(unsafe { Box::from_raw(inner) });
        });
    }
}
