//! The index: which leaf a key lies in. The keys of its nodes never change, so readers neither latch nor validate them.
//!
//! ```text
//!   root -> [ "" | cat | mole ]                        each entry: where it begins, and what is below
//!              |      \      \
//!              v       v       v
//!      ["" | ant | bee] [cat | cow | dog]  [mole | ..]      the lowest: homes of leaves
//!
//!   insert "cup":   root' -> [ "" | cat' | mole ]      new nodes from the root down to where it belongs;
//!                                   v                  all others are shared by both trees
//!                            [cat | cow | cup | dog]
//! ```
//!
//! A node has for each entry the *head* of its key, 8 bytes behind what all keys of the node but the first share, side by
//! side. A search is binary over heads, and compares keys only where heads are equal. The first entry counts as one that
//! begins before all keys, so its key is not looked at.
//!
//! **Invariants**
//! 1. A node never changes, but for the homes of the lowest: one word each. A change of keys makes new nodes on one way from
//!    the root, and puts a new root in place in one step. A reader of the tree before meets a leaf of another incarnation.
//! 2. The key of an entry is the first key of the node below it.
//! 3. One thread changes the index at a time: it holds `changing` of the tree. Any number read it meanwhile.
//!
//! **Memory**: a node goes with the last tree that has it, and a tree with its last reader.
//!
//! Sections 4.3 and 4.5 of the paper. **Differs from it**: its nodes are replaced by an atomic change of several words in
//! the parent, and freed by epochs, from an allocator of two layers. Here a path is copied, some 3 KiB a level
//! at each split of a leaf; a split comes with dozens of inserts.

use std::ops::Bound;
use std::sync::Arc;

use arc_swap::ArcSwap;
use spinney_base::shim::atomic::AtomicU64;
use spinney_base::shim::atomic::Ordering::{Acquire, Relaxed, Release};

/// A block, in 24 bits, and the incarnation of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u64);

const BLOCK_BITS: u32 = 24;

impl Home {
    pub(crate) fn new(block: u32, incarnation: u64) -> Home {
        Home(incarnation << BLOCK_BITS | u64::from(block))
    }

    pub(crate) fn block(self) -> u32 {
        (self.0 & ((1 << BLOCK_BITS) - 1)) as u32
    }

    pub(crate) fn incarnation(self) -> u64 {
        self.0 >> BLOCK_BITS
    }

    /// The word that it is kept as; never 0, for incarnations begin at 1.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> Home {
        Home(word)
    }
}

/// Most entries of a node. With more, a change copies more; with fewer, a search goes through more levels.
const FANOUT: usize = 128;
/// A node with fewer is put together with a neighbour, if both have at most [`JOINED`].
const SPARSE: usize = FANOUT / 4;
const JOINED: usize = FANOUT / 4 * 3;
const HEAD_BYTES: usize = 8;

#[derive(Debug)]
enum Below {
    Leaves(Box<[HomeWord]>),
    Nodes(Box<[Arc<Node>]>),
}

/// A home that may be replaced.
#[derive(Debug)]
struct HomeWord(AtomicU64);

impl HomeWord {
    fn new(home: Home) -> HomeWord {
        HomeWord(AtomicU64::new(home.0))
    }

    #[inline]
    fn get(&self) -> Home {
        Home(self.0.load(Acquire))
    }

    fn set(&self, home: Home) {
        self.0.store(home.0, Release);
    }
}

#[derive(Debug)]
struct Node {
    /// Bytes that all keys but the first share.
    prefix: usize,
    heads: Box<[u64]>,
    /// Where each key ends in `keys`.
    ends: Box<[u32]>,
    keys: Box<[u8]>,
    below: Below,
}

/// What an entry leads to.
#[derive(Clone, Debug)]
enum Child {
    Leaf(Home),
    Node(Arc<Node>),
}

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Index {
    root: ArcSwap<Node>,
    bytes: AtomicU64,
}

fn head_of(suffix: &[u8]) -> u64 {
    if let Some(head) = suffix.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let mut bytes = [0; HEAD_BYTES];
    bytes[..suffix.len()].copy_from_slice(suffix);
    u64::from_be_bytes(bytes)
}

impl Node {
    fn new(entries: &[(&[u8], Child)]) -> Node {
        let shared = match entries {
            [_, (first, _), .., (last, _)] => {
                first.iter().zip(*last).take_while(|(one, other)| one == other).count()
            }
            [_, (only, _)] => only.len(),
            _ => 0,
        };
        let mut keys = Vec::with_capacity(entries.iter().map(|(key, _)| key.len()).sum());
        let mut ends = Vec::with_capacity(entries.len());
        for (key, _) in entries {
            keys.extend_from_slice(key);
            ends.push(u32::try_from(keys.len()).expect("keys are short"));
        }
        let heads = entries.iter().map(|(key, _)| head_of(key.get(shared..).unwrap_or_default()));
        let is_lowest = entries.first().is_none_or(|(_, child)| matches!(child, Child::Leaf(_)));
        let below = if is_lowest {
            let home = |(_, child): &(_, Child)| match child {
                Child::Leaf(home) => HomeWord::new(*home),
                Child::Node(_) => unreachable!("all entries of a node are of one level"),
            };
            Below::Leaves(entries.iter().map(home).collect())
        } else {
            let node = |(_, child): &(_, Child)| match child {
                Child::Node(node) => node.clone(),
                Child::Leaf(_) => unreachable!("all entries of a node are of one level"),
            };
            Below::Nodes(entries.iter().map(node).collect())
        };
        let (heads, ends, keys) = (heads.collect(), ends.into(), keys.into());
        Node { prefix: shared, heads, ends, keys, below }
    }

    fn len(&self) -> usize {
        self.heads.len()
    }

    fn bytes(&self) -> u64 {
        (size_of::<Node>() + self.len() * (8 + 4 + 8) + self.keys.len()) as u64
    }

    #[inline]
    fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start as usize..self.ends[index] as usize]
    }

    fn child(&self, index: usize) -> Child {
        match &self.below {
            Below::Leaves(homes) => Child::Leaf(homes[index].get()),
            Below::Nodes(nodes) => Child::Node(nodes[index].clone()),
        }
    }

    fn entries(&self) -> Vec<(&[u8], Child)> {
        (0..self.len()).map(|index| (self.key(index), self.child(index))).collect()
    }

    /// Returns the last entry that begins at or before a key; the first, if none does.
    #[inline]
    fn find(&self, key: &[u8]) -> usize {
        let count = self.len();
        if count < 2 {
            return 0;
        }
        let prefix = &self.key(1)[..self.prefix];
        let shared = &key[..self.prefix.min(key.len())];
        match shared.cmp(prefix) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return count - 1,
            std::cmp::Ordering::Equal => {}
        }
        let head = head_of(&key[self.prefix..]);
        // The last whose head is less, or the first: without branches, which nobody could foresee.
        let (mut low, mut size) = (0, count);
        while size > 1 {
            let half = size / 2;
            let middle = low + half;
            low = if self.heads[middle] < head { middle } else { low };
            size -= half;
        }
        let rest = &self.heads[low + 1..];
        if rest.first() != Some(&head) {
            return low;
        }
        // Some keys have this head, mostly one.
        let (mut from, mut to) = (low + 1, low + 1 + rest.partition_point(|one| *one == head));
        while from < to {
            let middle = usize::midpoint(from, to);
            if self.key(middle) <= key {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from - 1
    }

    fn last_home(&self) -> Option<Home> {
        match &self.below {
            Below::Leaves(homes) => homes.last().map(HomeWord::get),
            Below::Nodes(nodes) => nodes.last()?.last_home(),
        }
    }

    /// Returns the last leaf that begins before a key.
    fn home_before(&self, key: &[u8]) -> Option<Home> {
        let at = self.find(key);
        let before = at.checked_sub(1);
        match &self.below {
            Below::Leaves(homes) if self.len() > 0 && self.key(at) < key => Some(homes[at].get()),
            Below::Leaves(homes) => before.map(|before| homes[before].get()),
            Below::Nodes(nodes) => nodes[at]
                .home_before(key)
                .or_else(|| before.and_then(|before| nodes[before].last_home())),
        }
    }

    /// Returns the index of the first child that has leaves which begin at or behind a key.
    fn first_from(&self, lower: &[u8]) -> usize {
        let at = self.find(lower);
        let is_before = |homes: &[HomeWord]| at < homes.len() && self.key(at) < lower;
        let is_before = matches!(&self.below, Below::Leaves(homes) if is_before(homes));
        at + usize::from(is_before)
    }

    /// Appends the leaves that begin at or behind one key, and before another.
    fn homes(&self, lower: &[u8], upper: Option<&[u8]>, out: &mut Vec<Home>) {
        let within = |index: &usize| upper.is_none_or(|upper| self.key(*index) < upper);
        for index in (self.first_from(lower)..self.len()).take_while(within) {
            match &self.below {
                Below::Leaves(homes) => out.push(homes[index].get()),
                Below::Nodes(nodes) => nodes[index].homes(lower, upper, out),
            }
        }
    }

    /// Appends those that begin at or behind a key until there are so many. Returns where the next one begins.
    fn some_homes(&self, lower: &[u8], most: usize, out: &mut Vec<Home>) -> Option<&[u8]> {
        for index in self.first_from(lower)..self.len() {
            match &self.below {
                Below::Leaves(_) if out.len() == most => return Some(self.key(index)),
                Below::Leaves(homes) => out.push(homes[index].get()),
                Below::Nodes(nodes) => {
                    let next = nodes[index].some_homes(lower, most, out);
                    if next.is_some() {
                        return next;
                    }
                }
            }
        }
        None
    }
}

/// What replaces a node that has changed: one node, two, or none.
type Parts = Vec<Arc<Node>>;

/// A change of one entry.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Of a key that is not there.
    Put(Home),
    Remove,
}

impl Default for Index {
    fn default() -> Self {
        Index::new()
    }
}

impl Index {
    pub(crate) fn new() -> Index {
        let root = Node::new(&[]);
        let bytes = AtomicU64::new(root.bytes());
        Index { root: ArcSwap::from_pointee(root), bytes }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the leaf that a key lies in: the last that begins at or before it.
    #[inline]
    pub(crate) fn floor(&self, key: &[u8]) -> Option<Home> {
        let root = self.root.load();
        let mut node: &Node = &root;
        loop {
            let at = node.find(key);
            match &node.below {
                Below::Leaves(homes) => return homes.get(at).map(HomeWord::get),
                Below::Nodes(nodes) => node = &nodes[at],
            }
        }
    }

    /// Returns the leaf that begins at a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Home> {
        self.with_home(key, HomeWord::get)
    }

    /// Calls `act` with the home of the leaf that begins at a key, if there is one.
    fn with_home<T>(&self, key: &[u8], act: impl FnOnce(&HomeWord) -> T) -> Option<T> {
        let root = self.root.load();
        let mut node: &Node = &root;
        loop {
            let at = node.find(key);
            match &node.below {
                Below::Leaves(homes) => {
                    return homes.get(at).filter(|_| node.key(at) == key).map(act);
                }
                Below::Nodes(nodes) => node = &nodes[at],
            }
        }
    }

    /// Returns the last leaf that begins before a bound, or at one that is included; the last of all without a bound.
    pub(crate) fn before(&self, bound: Bound<&[u8]>) -> Option<Home> {
        match bound {
            Bound::Included(key) => self.floor(key),
            Bound::Excluded(key) => self.root.load().home_before(key),
            Bound::Unbounded => self.root.load().last_home(),
        }
    }

    /// Returns the leaves that begin at or behind one key, and before another, in order.
    pub(crate) fn homes(&self, lower: &[u8], upper: Option<&[u8]>) -> Vec<Home> {
        let mut out = Vec::new();
        self.root.load().homes(lower, upper, &mut out);
        out
    }

    /// Returns the leaves that begin at or behind a key, in order, `most` at most, and where the next one begins.
    pub(crate) fn some_homes(&self, lower: &[u8], most: usize) -> (Vec<Home>, Option<Vec<u8>>) {
        let mut out = Vec::new();
        let root = self.root.load();
        let next = root.some_homes(lower, most, &mut out).map(<[u8]>::to_vec);
        (out, next)
    }

    /// Gives a key a leaf.
    pub(crate) fn insert(&self, key: &[u8], home: Home) {
        // Where the key has one, its word changes.
        if self.with_home(key, |word| word.set(home)).is_none() {
            self.change(key, Change::Put(home));
        }
    }

    /// Takes a key out.
    pub(crate) fn remove(&self, key: &[u8]) {
        self.change(key, Change::Remove);
    }

    /// Lets another index be this one. Returns this one as it was.
    pub(crate) fn replace(&self, other: Index) -> Index {
        let bytes = self.bytes.swap(other.bytes(), Relaxed);
        let root = self.root.swap(other.root.load_full());
        Index { root: ArcSwap::new(root), bytes: AtomicU64::new(bytes) }
    }

    fn change(&self, key: &[u8], change: Change) {
        let mut parts = self.changed(&self.root.load(), key, change);
        let mut root = match parts.len() {
            0 => self.made(Node::new(&[])),
            1 => parts.remove(0),
            _ => {
                let entries: Vec<_> =
                    parts.iter().map(|node| (node.key(0), Child::Node(node.clone()))).collect();
                self.made(Node::new(&entries))
            }
        };
        while let Below::Nodes(nodes) = &root.below
            && let [only] = &nodes[..]
        {
            let only = only.clone();
            self.lost(&root);
            root = only;
        }
        self.root.store(root);
    }

    fn made(&self, node: Node) -> Arc<Node> {
        self.bytes.fetch_add(node.bytes(), Relaxed);
        Arc::new(node)
    }

    fn lost(&self, node: &Node) {
        self.bytes.fetch_sub(node.bytes(), Relaxed);
    }

    /// Makes what replaces a node.
    fn changed(&self, node: &Node, key: &[u8], change: Change) -> Parts {
        let at = node.find(key);
        let mut entries = node.entries();
        self.lost(node);
        let Below::Nodes(nodes) = &node.below else {
            let is_there = entries.get(at).is_some_and(|(known, _)| *known == key);
            // The first entry may begin behind the key.
            let behind = at + usize::from(entries.get(at).is_some_and(|(known, _)| *known < key));
            match change {
                Change::Put(home) => entries.insert(behind, (key, Child::Leaf(home))),
                Change::Remove if is_there => {
                    entries.remove(at);
                }
                Change::Remove => {}
            }
            return self.parted(&entries);
        };
        let mut parts = self.changed(&nodes[at], key, change);
        let mut place = at..at + 1;
        // A sparse one goes together with a neighbour.
        if let [sparse] = &parts[..]
            && sparse.len() < SPARSE
        {
            let (left, right) = if at > 0 { (at - 1, at) } else { (at, at + 1) };
            if let Some(other) = nodes.get(if at > 0 { left } else { right })
                && sparse.len() + other.len() <= JOINED
            {
                let (first, second) = if at > 0 { (other, sparse) } else { (sparse, other) };
                let both: Vec<_> = first.entries().into_iter().chain(second.entries()).collect();
                let joined = self.made(Node::new(&both));
                self.lost(first);
                self.lost(second);
                parts = vec![joined];
                place = left..right + 1;
            }
        }
        let new = parts.iter().map(|part| (part.key(0), Child::Node(part.clone())));
        entries.splice(place, new);
        self.parted(&entries)
    }

    /// Makes a node of entries, or two if they are too many.
    fn parted(&self, entries: &[(&[u8], Child)]) -> Parts {
        match entries.len() {
            0 => Vec::new(),
            1..=FANOUT => vec![self.made(Node::new(entries))],
            count => {
                let (left, right) = entries.split_at(count / 2);
                vec![self.made(Node::new(left)), self.made(Node::new(right))]
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::BTreeMap;

    use spinney_base::runtime::SplitMix;

    use super::*;

    fn check(index: &Index, model: &BTreeMap<Vec<u8>, Home>, key: &[u8]) {
        let last = |bound: Bound<&[u8]>| {
            model.range::<[u8], _>((Bound::Unbounded, bound)).next_back().map(|(_, home)| *home)
        };
        // A key before all others is in the first leaf; in a tree there is none.
        let floor = last(Bound::Included(key)).or_else(|| model.values().next().copied());
        assert_eq!(index.floor(key), floor, "floor of {key:?}");
        assert_eq!(index.before(Bound::Excluded(key)), last(Bound::Excluded(key)), "{key:?}");
        assert_eq!(index.before(Bound::Unbounded), model.values().next_back().copied());
        assert_eq!(index.get(key), model.get(key).copied());
        let from = model.range::<[u8], _>((Bound::Included(key), Bound::Unbounded));
        let from: Vec<Home> = from.map(|(_, home)| *home).collect();
        assert_eq!(index.homes(key, None), from, "from {key:?}");
        let (mut pieces, mut next) = (Vec::new(), Some(key.to_vec()));
        while let Some(from) = next.take() {
            let (some, further) = index.some_homes(&from, 1 + key.len() * 7);
            assert!(further.is_none() || some.len() == 1 + key.len() * 7);
            pieces.extend(some);
            next = further;
        }
        assert_eq!(pieces, from, "from {key:?} in pieces");
        let end = [key, b"5"].concat();
        let within = model.range::<[u8], _>((Bound::Included(key), Bound::Excluded(&end[..])));
        let within: Vec<Home> = within.map(|(_, home)| *home).collect();
        assert_eq!(index.homes(key, Some(&end)), within);
    }

    /// Keys that share much, in part with equal heads, and of all lengths.
    fn some_key(random: &mut SplitMix, shape: u64) -> Vec<u8> {
        let number = random.next_u64();
        match shape {
            0 => (number % 5000).to_be_bytes().to_vec(),
            1 => format!("a long beginning that all have {}", number % 3000).into_bytes(),
            2 => number.to_be_bytes()[..(number % 4) as usize].to_vec(),
            _ => format!("{:b}", number % 4096).into_bytes(),
        }
    }

    #[test]
    fn it_agrees_with_a_map() {
        for shape in 0..4 {
            let (index, mut model) = (Index::new(), BTreeMap::new());
            let mut random = SplitMix(shape);
            // It grows, then shrinks to nothing.
            for round in 0..12_000_u32 {
                let key = some_key(&mut random, shape);
                let grows = random.next_u64() % 8 < if round < 6_000 { 6 } else { 1 };
                if grows {
                    let home = Home::new(round, u64::from(round));
                    index.insert(&key, home);
                    model.insert(key, home);
                } else if let Some((known, _)) = model.range(key..).next() {
                    let known = known.clone();
                    index.remove(&known);
                    model.remove(&known);
                }
                if round % 37 == 0 {
                    check(&index, &model, &some_key(&mut random, shape));
                }
            }
            let all: Vec<Home> = model.values().copied().collect();
            assert_eq!(index.homes(&[], None), all);
            for key in model.into_keys() {
                index.remove(&key);
            }
            assert_eq!((index.floor(b"x"), index.bytes()), (None, Index::new().bytes()));
        }
    }

    #[test]
    fn ascending_keys_and_another_index() {
        let index = Index::new();
        for number in 0..20_000_u32 {
            index.insert(&number.to_be_bytes(), Home::new(number, 1));
        }
        for number in (0..20_000_u32).step_by(7) {
            let key = [&number.to_be_bytes()[..], b"more"].concat();
            assert_eq!(index.floor(&key), Some(Home::new(number, 1)));
        }
        let other = Index::new();
        other.insert(b"", Home::new(3, 2));
        let before = index.replace(other);
        assert_eq!(before.homes(&[], None).len(), 20_000);
        assert_eq!(index.homes(&[], None), [Home::new(3, 2)]);
    }
}
