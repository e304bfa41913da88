//! Giving memory back that runs keep for little: what is left of sparse pieces moves out of them.
//!
//! Runs share the bytes of memtables and of leaves that were read whole. Once most edits of such a
//! piece were overwritten or written to disk, the rest still keeps all of it. The rest is copied
//! then, as in a copying collector: at most as much as is given back, the sparsest pieces first,
//! and not too much at once, for what is copied is there twice until the tree before is dropped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use spinney_base::mapped_vec::MappedVec;

use crate::files::Files;
use crate::levels::Part;
use crate::node::{Child, Leaf};
use crate::policy;
use crate::run::{Item, Items, Run};
use crate::runs::Runs;
use crate::source::Source;
use crate::tree::Tree;

/// Of a piece of memory, how many bytes are needed and how many there are.
struct Use {
    live: u64,
    all: u64,
    /// How many pieces were found before it: an order that does not depend on addresses.
    place: usize,
}

impl Use {
    fn is_sparse(&self) -> bool {
        policy::is_sparse(self.live, self.all)
    }
}

/// What is needed of every piece that runs keep, by its address.
#[derive(Default)]
struct Census {
    pieces: HashMap<usize, Use>,
    /// Those that are moved out of.
    chosen: HashSet<usize>,
}

fn address<T>(piece: &T) -> usize {
    std::ptr::from_ref(piece) as usize
}

impl Census {
    fn count(&mut self, run: &Run) {
        let all = run.all().items.memory_bytes() as u64;
        let live = (run.len() * size_of::<Item>()) as u64;
        self.add(address(run.all()), live, all);
        let mut live = vec![0; run.sources().len()];
        for item in run.items() {
            live[item.source as usize] += item.source_bytes() as u64;
        }
        for (source, live) in run.sources().iter().zip(live) {
            self.add(address(&**source), live, source.memory_bytes() as u64);
        }
    }

    fn add(&mut self, address: usize, live: u64, all: u64) {
        let place = self.pieces.len();
        self.pieces.entry(address).or_insert(Use { live: 0, all, place }).live += live;
    }

    /// Chooses the sparsest pieces, of which not more than `most` bytes are needed in all; one at
    /// least, if any is sparse. Says whether there is one.
    fn choose(&mut self, most: u64) -> bool {
        let sparse = self.pieces.iter().filter(|(_, piece)| piece.is_sparse());
        let mut sparse: Vec<(&usize, &Use)> = sparse.collect();
        sparse.sort_by_key(|(_, piece)| (piece.live * 1024 / piece.all, piece.place));
        let mut copied = 0;
        let chosen = sparse.iter().take_while(|(_, piece)| {
            let is_first = copied == 0;
            copied += piece.live;
            is_first || copied <= most
        });
        self.chosen = chosen.map(|(address, _)| **address).collect();
        !self.chosen.is_empty()
    }

    fn is_chosen(&self, address: usize) -> bool {
        self.chosen.contains(&address)
    }

    /// The run without sparse pieces.
    fn evacuate(&self, run: &Run) -> Run {
        let sparse: Vec<bool> =
            run.sources().iter().map(|source| self.is_chosen(address(&**source))).collect();
        if !sparse.contains(&true) && !self.is_chosen(address(run.all())) {
            return run.clone();
        }
        let moves = |item: &&Item| sparse[item.source as usize];
        let moved = run.items().iter().filter(moves).map(Item::source_bytes).sum();
        let mut copy: MappedVec<u8> = MappedVec::with_capacity(moved);
        let mut sources: Vec<Source> = Vec::new();
        let mut numbers: Vec<Option<u16>> = vec![None; sparse.len()];
        let mut items = MappedVec::with_capacity(run.len());
        // The copy is source 0 once it is made; it is put in its place at the end.
        if moved > 0 {
            sources.push(Source::default());
        }
        for item in run.items() {
            let from = item.source as usize;
            items.push(if sparse[from] && item.source_bytes() > 0 {
                item.copied_to(run.sources(), &mut copy, 0)
            } else {
                let number = *numbers[from].get_or_insert_with(|| {
                    sources.push(Arc::clone(&run.sources()[from]));
                    (sources.len() - 1) as u16
                });
                item.of_source(number)
            });
        }
        if moved > 0 {
            sources[0] = Arc::new(copy.into());
        }
        Run::new(Items { items, sources }, run.size())
    }

    fn evacuate_all(&self, runs: &Runs) -> Runs {
        let mut evacuated = Runs::default();
        runs.as_slice().iter().for_each(|run| evacuated.push(self.evacuate(run)));
        evacuated
    }

    fn evacuate_child<F: Files>(&self, child: &Child<F>) -> Child<F> {
        match child {
            Child::Leaf(Leaf::Memory(runs)) => Child::Leaf(Leaf::Memory(self.evacuate_all(runs))),
            Child::Node(node) if node.pages.is_none() => {
                let mut evacuated = node.to_change();
                for part in evacuated.levels.iter_mut().flat_map(|level| &mut level.parts) {
                    if let Part::Run(run) = part {
                        *run = self.evacuate(run);
                    }
                }
                for child in &mut evacuated.children {
                    *child = self.evacuate_child(child);
                }
                Child::Node(Arc::new(evacuated))
            }
            child => child.clone(),
        }
    }
}

impl<F: Files> Tree<F> {
    /// The same tree without some pieces of memory of which less than half is needed. Copies about
    /// `most` bytes at most, and less than it frees, once the tree that it comes from is dropped.
    pub(crate) fn evacuate(&self, most: u64) -> Tree<F> {
        let mut census = Census::default();
        self.each_run(&mut |run| census.count(run));
        if !census.choose(most) {
            return self.clone();
        }
        let root = self.root.as_ref().map(|root| census.evacuate_child(root));
        Tree { root, activity: self.activity }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::double::Double;
    use crate::tests::{limits, run};

    /// Eight batches of long values, of each of which an edit that comes later leaves more than of
    /// the one before.
    fn overwritten(files: &Double) -> Tree<Double> {
        let mut tree = Tree::empty();
        let mut apply = |keys: Vec<[u8; 2]>, value: &[u8]| {
            let edits = Runs::from(run(keys.iter().map(|key| (&key[..], Some(value)))));
            tree = tree.apply(files, &edits, None, &mut Vec::new()).unwrap();
        };
        for batch in 0..8u8 {
            apply((0..64).map(|n| [batch, n]).collect(), &[1; 100]);
        }
        apply((0..8u8).flat_map(|batch| (0..64 - batch).map(move |n| [batch, n])).collect(), b"2");
        tree
    }

    #[test]
    fn a_little_at_a_time_comes_to_the_same() {
        let files = Double::new(limits(1 << 20, 16));
        let tree = overwritten(&files);
        let before = tree.pending();
        let whole = tree.evacuate(u64::MAX).pending();
        assert!(whole.pinned < before.pinned / 2 && whole.bytes == before.bytes);
        let (mut steps, mut left) = (0, tree);
        loop {
            let next = left.evacuate(1);
            if next.pending().pinned == left.pending().pinned {
                break;
            }
            assert!(next.pending().pinned < left.pending().pinned);
            (steps, left) = (steps + 1, next);
        }
        assert!(steps > 4, "{steps} steps");
        assert_eq!(left.pending().bytes, whole.bytes);
        assert!(left.pending().pinned <= whole.pinned + whole.pinned / 8);
    }

    #[test]
    fn of_pieces_that_are_as_sparse_the_same_is_chosen_again() {
        let files = Double::new(limits(1 << 20, 16));
        let left = || {
            let mut tree = Tree::empty();
            // Of each batch the same part is left, of values that are longer from batch to batch.
            for (keys, shortest) in [(0..64u8, 100), (0..60, 1)] {
                for batch in 0..8u8 {
                    let value = vec![batch; shortest * usize::from(batch + 1)];
                    let keys: Vec<[u8; 2]> = keys.clone().map(|n| [batch, n]).collect();
                    let edits = keys.iter().map(|key| (&key[..], Some(&value[..])));
                    let edits = Runs::from(run(edits));
                    tree = tree.apply(&files, &edits, None, &mut Vec::new()).unwrap();
                }
            }
            (tree.pending().pinned, tree.evacuate(1).pending().pinned)
        };
        let first = left();
        assert!(first.1 < first.0);
        for _ in 0..16 {
            assert_eq!(left(), first);
        }
    }
}
