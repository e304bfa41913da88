//! Giving memory back that runs keep for little: what is left of sparse pieces moves out of them.
//!
//! Runs share the bytes of memtables and of leaves that were read whole. Once most edits of such a
//! piece were overwritten or written to disk, the rest still keeps all of it. The rest is copied
//! then, as in a copying collector: at most as much as is given back.

use std::collections::HashMap;
use std::sync::Arc;

use crate::files::Files;
use crate::levels::Part;
use crate::node::{Child, Leaf};
use crate::run::{Item, Items, Run};
use crate::runs::Runs;
use crate::source::Source;
use crate::tree::Tree;

/// Of a piece of memory, how much is needed and how much there is.
#[derive(Default)]
struct Use {
    live: u64,
    all: u64,
}

impl Use {
    fn is_sparse(&self) -> bool {
        self.live * 2 < self.all
    }
}

/// What is needed of every piece that runs keep, by its address.
#[derive(Default)]
struct Census {
    pieces: HashMap<usize, Use>,
}

fn address<T>(piece: &T) -> usize {
    std::ptr::from_ref(piece) as usize
}

impl Census {
    fn count(&mut self, run: &Run) {
        let all = run.all().items.capacity() as u64;
        let items = self.pieces.entry(address(run.all())).or_default();
        *items = Use { live: items.live + run.len() as u64, all };
        let mut live = vec![0; run.sources().len()];
        for item in run.items() {
            live[item.source as usize] += item.source_bytes() as u64;
        }
        for (source, live) in run.sources().iter().zip(live) {
            let bytes = self.pieces.entry(address(&**source)).or_default();
            *bytes = Use { live: bytes.live + live, all: source.memory_bytes() as u64 };
        }
    }

    fn is_sparse(&self, address: usize) -> bool {
        self.pieces.get(&address).is_some_and(Use::is_sparse)
    }

    /// The run without sparse pieces.
    fn evacuate(&self, run: &Run) -> Run {
        let sparse: Vec<bool> =
            run.sources().iter().map(|source| self.is_sparse(address(&**source))).collect();
        if !sparse.contains(&true) && !self.is_sparse(address(run.all())) {
            return run.clone();
        }
        let moves = |item: &&Item| sparse[item.source as usize];
        let moved = run.items().iter().filter(moves).map(Item::source_bytes).sum();
        let mut copy: Vec<u8> = Vec::with_capacity(moved);
        let mut sources: Vec<Source> = Vec::new();
        let mut numbers: Vec<Option<u16>> = vec![None; sparse.len()];
        let mut items = Vec::with_capacity(run.len());
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
        Run::new(Items { items, sources }, run.bytes())
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
    /// The same tree without pieces of memory of which less than half is needed. Copies less than it
    /// frees, once the tree that it comes from is dropped.
    pub(crate) fn evacuate(&self) -> Tree<F> {
        let mut census = Census::default();
        self.each_run(&mut |run| census.count(run));
        if !census.pieces.values().any(Use::is_sparse) {
            return self.clone();
        }
        let root = self.root.as_ref().map(|root| census.evacuate_child(root));
        Tree { root, activity: self.activity }
    }
}
