//! Random batches against a map, with leaves of a few edits and nodes of a few pivots.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spinney_base::{ErrorKind, Result, ValueRef};
use spinney_engine::{Chunk, Direction, Found, Resident, ScanRequest};

use super::limits;
use crate::check::check;
use crate::double::Double;
use crate::edit::Edit;
use crate::files::Limits;
use crate::packed::Owned;
use crate::range::KeyRange;
use crate::run::{Item, RunBuilder};
use crate::runs::Runs;
use crate::tidy::{Goal, Step};
use crate::tree::{Pending, Tree};

/// All that is pending is flushed.
const EVERYTHING: Goal<'static> =
    Goal::Range(KeyRange { lower: Bound::Unbounded, upper: Bound::Unbounded });

type Model = BTreeMap<Vec<u8>, Value>;
type Batch = BTreeMap<Vec<u8>, Option<Value>>;

/// A value, or a pointer to a large one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    bytes: Vec<u8>,
    large: bool,
}

impl Value {
    fn as_ref(&self) -> ValueRef<'_> {
        ValueRef { bytes: &self.bytes, large: self.large }
    }
}

/// What keys look like.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// Eight bytes.
    Numbers,
    /// Short ones that are prefixes of each other, with the first and the last byte of all.
    Prefixes,
    /// Ones that differ only at their end.
    Long,
}

struct World {
    rng: StdRng,
    keys: Keys,
    files: Double,
    tree: Tree<Double>,
    model: Model,
    /// Of 100 edits, how many are removals.
    removals: u32,
    stamp: u32,
    /// Pointers that were put and not superseded.
    pointers: BTreeSet<Vec<u8>>,
    /// Whether all was written under the limits of now.
    sizes: bool,
    /// Whether the disk is full, so that updates spare it.
    is_full: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = [Keys::Numbers, Keys::Prefixes, Keys::Long][rng.random_range(0..3)];
        let leaf = if matches!(keys, Keys::Long) { 1500 } else { rng.random_range(200..600) };
        let pending_percent = [None, Some(50), Some(12), Some(170)][rng.random_range(0..4)];
        let pivots_max = rng.random_range(4..9);
        let spread = [0, 40, 100][rng.random_range(0..3)];
        let merge_bytes = [u64::MAX, leaf, 3 * leaf][rng.random_range(0..3)];
        let mut limits =
            Limits { pending_percent, spread, merge_bytes, ..limits(leaf, pivots_max) };
        if matches!(keys, Keys::Long) && rng.random_bool(0.5) {
            // Pages are full of keys long before there are so many pivots.
            limits = Limits { node_bytes: 3500, pivots_max: 64, ..limits };
        }
        World {
            rng,
            keys,
            files: Double::of_threads(limits, 1 + seed as usize % 3),
            tree: Tree::empty(),
            model: Model::new(),
            removals: 20,
            stamp: 0,
            pointers: BTreeSet::new(),
            sizes: true,
            is_full: false,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        match self.keys {
            Keys::Numbers => {
                let number: u64 = rng.random_range(0..1500);
                (number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes().to_vec()
            }
            Keys::Prefixes => {
                let length = rng.random_range(0..7);
                (0..length).map(|_| [0, b'a', b'b', 0xff][rng.random_range(0..4)]).collect()
            }
            Keys::Long => {
                let mut key = vec![b'x'; 200];
                key.truncate(rng.random_range(190..=200));
                key.extend(rng.random_range(0..1000u16).to_be_bytes());
                key
            }
        }
    }

    fn batch(&mut self) -> Runs {
        let count = self.rng.random_range(1..30);
        let mut batch = Batch::new();
        for _ in 0..count {
            let key = self.key();
            let removes = self.rng.random_range(0..100) < self.removals;
            self.stamp += 1;
            let mut bytes = self.stamp.to_le_bytes().to_vec();
            let large = self.rng.random_bool(0.3);
            bytes.resize(self.rng.random_range(if large { 4..30 } else { 0..30 }), 7);
            if large && !removes {
                // One that the same batch overwrites was never in the tree.
                self.pointers.insert(bytes.clone());
            }
            let value = (!removes).then_some(Value { bytes, large });
            if let Some(Some(before)) = batch.insert(key, value) {
                self.pointers.remove(&before.bytes);
            }
        }
        self.run(batch)
    }

    fn run(&mut self, batch: Batch) -> Runs {
        let mut builder = RunBuilder::default();
        for (key, value) in &batch {
            builder.push(Edit { key, value: value.as_ref().map(Value::as_ref) });
        }
        for (key, value) in batch {
            match value {
                Some(value) => self.model.insert(key, value),
                None => self.model.remove(&key),
            };
        }
        Runs::from(builder.finish().unwrap())
    }

    fn step(&mut self) {
        let batch = self.batch();
        self.apply_run(&batch);
    }

    fn apply(&mut self, batch: Batch) {
        let batch = self.run(batch);
        self.apply_run(&batch);
    }

    /// How many batches come before the tree is written, as somebody would say who does not know.
    fn left(&mut self) -> Option<u64> {
        [None, Some(0), Some(1), Some(5), Some(u64::MAX)][self.rng.random_range(0..5)]
    }

    fn apply_run(&mut self, batch: &Runs) {
        let mut superseded = Vec::new();
        let left = self.left();
        self.tree = if self.is_full {
            let written = self.files.counts.bytes_written.load(Relaxed);
            let tree = self.tree.apply_sparingly(&self.files, batch, &mut superseded).unwrap();
            assert_eq!(self.files.counts.bytes_written.load(Relaxed), written);
            tree
        } else {
            self.tree.apply(&self.files, batch, left, &mut superseded).unwrap()
        };
        self.supersede(&superseded);
    }

    /// Each pointer is superseded once, and none that is needed.
    fn supersede(&mut self, superseded: &[Vec<u8>]) {
        for pointer in superseded {
            assert!(self.pointers.remove(pointer), "{pointer:?} is superseded again");
        }
        let values = self.model.values().filter(|value| value.large);
        values.for_each(|value| assert!(self.pointers.contains(&value.bytes), "{value:?} is lost"));
    }

    fn compare(&mut self) {
        check(&self.tree, &self.files, self.sizes).unwrap();
        for _ in 0..20 {
            let key = self.key();
            self.compare_key(&key);
        }
        let keys: Vec<_> = (0..10).map(|_| self.key()).collect();
        let hashed: Vec<_> = keys.iter().map(|key| (&key[..], 0)).collect();
        let values = self.tree.get_many(&self.files, &hashed).unwrap();
        for (key, value) in keys.iter().zip(values) {
            let value = value.map(|value| Value { bytes: value.bytes, large: value.large });
            assert_eq!(value.as_ref(), self.model.get(key));
        }
        for _ in 0..4 {
            self.compare_scan();
        }
    }

    fn compare_key(&self, key: &[u8]) {
        let mut out = b"before".to_vec();
        let found = self.tree.get(&self.files, key, 0, &mut out).unwrap();
        let mut resident_out = Vec::new();
        match (self.tree.get_resident(key, &mut resident_out), self.model.get(key)) {
            (Resident::Unknown, _) | (Resident::Absent, None) => assert!(resident_out.is_empty()),
            (Resident::Present, Some(Value { bytes, large: false }))
            | (Resident::Large, Some(Value { bytes, large: true })) => {
                assert_eq!(resident_out, *bytes);
            }
            (other, value) => panic!("{key:?}: {other:?}, {value:?}"),
        }
        match self.model.get(key) {
            Some(value) => {
                let expected = if value.large { Found::Large } else { Found::Inline };
                assert_eq!(found, expected, "{key:?}");
                assert_eq!(out, [b"before", &value.bytes[..]].concat());
            }
            None => assert_eq!((found, &out[..]), (Found::Absent, &b"before"[..]), "{key:?}"),
        }
    }

    fn compare_all(&mut self) {
        let keys: Vec<_> = self.model.keys().cloned().collect();
        keys.iter().for_each(|key| self.compare_key(key));
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut expected: Vec<_> = self.model.clone().into_iter().collect();
            if direction == Direction::Reverse {
                expected.reverse();
            }
            assert_eq!(self.scan_all(direction).unwrap(), expected);
        }
    }

    fn scan_all(&self, direction: Direction) -> Result<Vec<(Vec<u8>, Value)>> {
        let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
        let mut cursor = self.tree.cursor(&self.files, lower, upper, direction)?;
        let mut found = Vec::new();
        while let Some(key) = cursor.key().map(<[u8]>::to_vec) {
            let (same, value) = cursor.record()?.unwrap();
            assert_eq!(same, key);
            found.push((key, Value { bytes: value.bytes.to_vec(), large: value.large }));
            cursor.advance()?;
        }
        Ok(found)
    }

    fn bound(&mut self) -> Bound<Vec<u8>> {
        match self.rng.random_range(0..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(self.key()),
            _ => Bound::Excluded(self.key()),
        }
    }

    fn compare_scan(&mut self) {
        let direction = [Direction::Forward, Direction::Reverse][self.rng.random_range(0..2)];
        let (lower, upper) = (self.bound(), self.bound());
        let (records_max, bytes_max) =
            (self.rng.random_range(1..60), self.rng.random_range(1..2000));
        let request = ScanRequest {
            lower: lower.as_ref().map(Vec::as_slice),
            upper: upper.as_ref().map(Vec::as_slice),
            direction,
            records_wanted: self.rng.random_range(1..=records_max),
            records_max,
            bytes_max,
            keys_only: self.rng.random_ratio(1, 4),
        };
        let mut chunk = Chunk::default();
        self.tree.scan(&self.files, &request, &mut chunk).unwrap();
        let inside = self.model.iter().filter(|(key, _)| request.contains(key));
        let mut expected: Vec<_> =
            inside.map(|(key, value)| (&key[..], request.delivered(value.as_ref()))).collect();
        if direction == Direction::Reverse {
            expected.reverse();
        }
        let found: Vec<_> = (0..chunk.len()).map(|at| chunk.get(at)).collect();
        assert_eq!(found, expected[..found.len()], "{request:?}");
        let all = found.len() == expected.len();
        assert!(chunk.finished <= all && chunk.resume.is_none());
        assert!(all || found.len() == request.records_wanted || chunk.bytes() >= bytes_max);
        assert!(!found.is_empty() || (all && chunk.finished));
    }
}

impl World {
    /// What the tree refers to is what the disk holds: nothing leaks, nothing goes too early.
    fn compare_owners(&self, others: &[&Tree<Double>]) {
        let (mut leaves, mut nodes) = (Vec::new(), Vec::new());
        for tree in others.iter().copied().chain([&self.tree]) {
            tree.walk(|owned| match owned {
                Owned::Leaf(leaf) => leaves.push(leaf.number()),
                Owned::Node(pages) => nodes.push(pages.number()),
            });
        }
        for numbers in [&mut leaves, &mut nodes] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        assert_eq!(self.files.alive(), (leaves, nodes));
    }

    /// After evacuation no more is kept than twice what is needed.
    fn compare_memory(&self) {
        let mut runs = 0;
        self.tree.each_run(&mut |run| runs += 1 + run.sources().len() as u64);
        let pending = self.tree.pending();
        let needed = pending.bytes + pending.items * size_of::<Item>() as u64;
        assert!(pending.pinned <= 2 * needed + 100 * runs, "{pending:?} in {runs} runs");
    }

    fn write(&mut self) {
        let mut superseded = Vec::new();
        self.tree = self.tree.write(&self.files, &mut superseded).unwrap();
        self.supersede(&superseded);
        assert_eq!(self.tree.pending(), Pending::default());
    }

    /// Crashes: what was written since `published` is nobody's, and what was applied is lost.
    fn crash(&mut self, published: (Vec<u8>, Model, BTreeSet<Vec<u8>>)) {
        self.files.crash(std::mem::replace(&mut self.tree, Tree::empty()));
        self.tree = Tree::open(&self.files, &published.0).unwrap();
        self.model = published.1;
        self.pointers = published.2;
        let (mut leaves, mut nodes) = (Vec::new(), Vec::new());
        self.tree.walk(|owned| match owned {
            Owned::Leaf(leaf) => leaves.push(leaf.number()),
            Owned::Node(pages) => nodes.push(pages.number()),
        });
        self.files.keep_only(&leaves, &nodes);
    }

    /// Tidies, at most so many steps.
    fn tidy(&mut self, steps: usize) {
        for _ in 0..steps {
            let mut superseded = Vec::new();
            let goal = [Goal::Reads, Goal::Room(8), EVERYTHING][self.rng.random_range(0..3)];
            let step = Step { goal, is_sparing: self.is_full };
            let tidied = self.tree.tidy(&self.files, step, &mut superseded).unwrap();
            let Some(tree) = tidied else { return };
            self.tree = tree;
            self.supersede(&superseded);
        }
    }

    /// Forgets everything in memory and opens the tree from its pages, as after a kill.
    fn reopen(&mut self) {
        let description = self.tree.describe(&self.files).unwrap();
        let checked = check(&self.tree, &self.files, self.sizes).unwrap();
        self.files.crash(std::mem::replace(&mut self.tree, Tree::empty()));
        self.tree = Tree::open(&self.files, &description).unwrap();
        assert_eq!(check(&self.tree, &self.files, self.sizes).unwrap(), checked);
    }
}

#[test]
fn trees_on_pages_are_what_a_map_says() {
    for seed in 0..100 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let mut published = Tree::empty();
        let (mut model, mut pointers) = (Model::new(), BTreeSet::new());
        for _ in 0..60 {
            if world.rng.random_bool(0.05) {
                world.removals = [20, 80, 0][world.rng.random_range(0..3)];
            }
            match world.rng.random_range(0..11) {
                0..6 => world.step(),
                6 => world.write(),
                7 => {
                    let batches = [0, 1, 2, 5, 20][world.rng.random_range(0..5)];
                    world.tree = world.tree.write_early(&world.files, batches).unwrap();
                    assert!(batches > 0 || world.tree.pending() == Pending::default());
                    world.tree = world.tree.evacuate(world.rng.random_range(0..1 << 16));
                    world.tree = world.tree.evacuate(u64::MAX);
                    world.compare_memory();
                }
                8 => {
                    world.write();
                    published = world.tree.clone();
                    model = world.model.clone();
                    pointers = world.pointers.clone();
                }
                9 => {
                    let steps = [1, 3, usize::MAX][world.rng.random_range(0..3)];
                    world.tidy(steps);
                    check(&world.tree, &world.files, world.sizes).unwrap();
                }
                10 if world.rng.random_bool(0.3) => {
                    let description = published.describe(&world.files).unwrap();
                    world.files.crash(std::mem::replace(&mut published, Tree::empty()));
                    world.crash((description, model.clone(), pointers.clone()));
                    published = world.tree.clone();
                }
                _ => {
                    world.write();
                    drop(std::mem::replace(&mut published, Tree::empty()));
                    world.reopen();
                    published = world.tree.clone();
                    model = world.model.clone();
                    pointers = world.pointers.clone();
                }
            }
            world.compare();
            world.compare_owners(&[&published]);
        }
        world.compare_all();
        drop(published);
        world.tree = Tree::empty();
        assert_eq!(world.files.alive(), (vec![], vec![]), "seed {seed}: pages of nobody");
    }
}

/// Batches wait in the topmost levels while the disk is full, small steps take them down, and what
/// comes afterwards finds the tree as it should be but for sizes.
#[test]
fn a_disk_may_be_full_for_a_while() {
    for seed in 0..64 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.sizes = false;
        for _ in 0..6 {
            world.is_full ^= true;
            world.removals = if world.is_full { 90 } else { 10 };
            for _ in 0..world.rng.random_range(0..25) {
                match world.rng.random_range(0..4) {
                    0 => world.write(),
                    1 if world.is_full => world.tidy(2),
                    _ => world.step(),
                }
                world.compare();
                world.compare_owners(&[]);
            }
            world.write();
            world.reopen();
        }
        world.tidy(usize::MAX);
        world.compare_all();
        // All of it goes while the disk is full, and small steps make its room free.
        world.is_full = true;
        while !world.model.is_empty() {
            let keys: Vec<_> = world.model.keys().cloned().collect();
            let gone = keys.into_iter().filter(|_| world.rng.random_bool(0.4));
            let gone = gone.map(|key| (key, None)).collect();
            world.apply(gone);
            world.write();
            world.tidy(3);
            world.compare();
        }
        let everything = Step { goal: EVERYTHING, is_sparing: true };
        loop {
            world.write();
            let mut superseded = Vec::new();
            let tidied = world.tree.tidy(&world.files, everything, &mut superseded).unwrap();
            world.supersede(&superseded);
            let Some(tree) = tidied else { break };
            world.tree = tree;
        }
        assert!(world.tree.root.is_none(), "seed {seed}: {:?}", world.tree);
        assert_eq!(world.files.alive(), (vec![], vec![]), "seed {seed}");
    }
}

#[test]
fn leaves_and_nodes_may_be_of_other_sizes_when_a_tree_is_opened_again() {
    for seed in 0..64 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.removals = 10;
        world.keys = Keys::Numbers;
        for _ in 0..8 {
            for _ in 0..world.rng.random_range(0..100) {
                world.step();
            }
            world.compare();
            world.write();
            let leaf = [200, 400, 4000, 30_000][world.rng.random_range(0..4)];
            let edit_bytes_max = 50;
            let pivots_max = [4, 8, 64][world.rng.random_range(0..3)];
            world.sizes = false;
            world.files.limits = Limits { edit_bytes_max, ..limits(leaf, pivots_max) };
            world.reopen();
        }
        world.compare_all();
    }
}

#[test]
fn deleting_everything_leaves_nothing() {
    for seed in 0..64 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.removals = 0;
        for _ in 0..40 {
            world.step();
            if world.rng.random_bool(0.3) {
                world.write();
            }
        }
        assert!(world.tree.height() > 0);
        world.removals = 100;
        while !world.model.is_empty() {
            // Some of what is there, in no order.
            let mut batch = Batch::new();
            for key in world.model.keys() {
                if world.rng.random_bool(0.1) {
                    batch.insert(key.clone(), None);
                }
            }
            world.apply(batch);
            if world.rng.random_bool(0.3) {
                world.write();
            }
            world.compare();
        }
        // Tombstones are flushed when there are enough of them: the same removals come again and
        // again.
        for _ in 0..1000 {
            if world.tree.root.is_none() {
                break;
            }
            let batch = (0..30).map(|_| (world.key(), None)).collect();
            world.apply(batch);
            check(&world.tree, &world.files, true).unwrap();
        }
        assert!(world.tree.root.is_none(), "seed {seed}: {:?}", world.tree);
        assert!(world.pointers.is_empty(), "seed {seed}: {:?} of nobody", world.pointers);
        assert_eq!(world.files.alive(), (vec![], vec![]));
    }
}

#[test]
fn a_failed_step_leaves_the_tree_whole() {
    let mut failures = 0;
    for seed in 0..64 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..80 {
            let before = (world.tree.clone(), world.model.clone());
            let (pointers, mut superseded) = (world.pointers.clone(), Vec::new());
            world.files.fails_after.store(world.rng.random_range(0..40), Relaxed);
            let (batch, left) = (world.batch(), world.left());
            let outcome = match world.rng.random_range(0..4) {
                0 => world.tree.apply(&world.files, &batch, left, &mut superseded),
                1 => {
                    (world.model, world.pointers) = (before.1.clone(), pointers.clone());
                    world.tree.write(&world.files, &mut superseded)
                }
                2 => {
                    (world.model, world.pointers) = (before.1.clone(), pointers.clone());
                    let step = Step { goal: EVERYTHING, is_sparing: world.rng.random_bool(0.3) };
                    world.sizes &= !step.is_sparing;
                    let tidied = world.tree.tidy(&world.files, step, &mut superseded);
                    tidied.map(|tidied| tidied.unwrap_or_else(|| world.tree.clone()))
                }
                _ => {
                    let tree = world.tree.apply(&world.files, &batch, left, &mut superseded);
                    tree.and_then(|tree| tree.write(&world.files, &mut superseded))
                }
            };
            world.files.fails_after.store(-1, Relaxed);
            match outcome {
                Ok(tree) => {
                    world.tree = tree;
                    world.supersede(&superseded);
                    drop(before);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io);
                    failures += 1;
                    (world.tree, world.model) = before;
                    world.pointers = pointers;
                }
            }
            world.compare();
            world.compare_owners(&[]);
        }
        world.compare_all();
        // A lookup that cannot read says so.
        world.write();
        world.files.fails_after.store(0, Relaxed);
        if world.tree.root.is_some() {
            let key = world.key();
            assert!(world.tree.get(&world.files, &key, 0, &mut Vec::new()).is_err());
            world.files.fails_after.store(0, Relaxed);
            assert!(world.scan_all(Direction::Forward).is_err());
        }
        world.files.fails_after.store(-1, Relaxed);
    }
    assert!(failures > 500, "{failures} failures");
}

#[test]
fn batches_in_memory_are_what_a_map_says() {
    for seed in 0..100 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for round in 0..60 {
            if round % 20 == 0 {
                world.removals = [20, 80, 0][world.rng.random_range(0..3)];
            }
            world.step();
            world.compare();
        }
        world.compare_all();
    }
}
