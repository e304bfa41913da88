//! Random batches against a map, with leaves of a few edits and nodes of a few pivots.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use spinney_base::ValueRef;
use spinney_engine::Found;

use super::limits;
use crate::check::check;
use crate::double::Double;
use crate::edit::Edit;
use crate::run::{RunBuilder, Runs};
use crate::tree::Tree;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Batch = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

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
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let keys = [Keys::Numbers, Keys::Prefixes, Keys::Long][rng.random_range(0..3)];
        let leaf = if matches!(keys, Keys::Long) { 1500 } else { rng.random_range(200..600) };
        let limits = limits(leaf, rng.random_range(4..9));
        World {
            rng,
            keys,
            files: Double::new(limits),
            tree: Tree::empty(),
            model: Model::new(),
            removals: 20,
            stamp: 0,
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
            let mut value = self.stamp.to_le_bytes().to_vec();
            value.resize(self.rng.random_range(0..30), 7);
            batch.insert(key, (!removes).then_some(value));
        }
        let mut builder = RunBuilder::default();
        for (key, value) in &batch {
            builder.push(Edit { key, value: value.as_deref().map(ValueRef::inline) });
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
        self.tree = self.tree.apply(&self.files, &batch).unwrap();
    }

    fn compare(&mut self) {
        check(&self.tree, &self.files).unwrap();
        for _ in 0..20 {
            let key = self.key();
            self.compare_key(&key);
        }
    }

    fn compare_key(&self, key: &[u8]) {
        let mut out = b"before".to_vec();
        let found = self.tree.get(&self.files, key, 0, &mut out).unwrap();
        match self.model.get(key) {
            Some(value) => {
                assert_eq!(found, Found::Inline, "{key:?}");
                assert_eq!(out, [b"before", &value[..]].concat());
            }
            None => assert_eq!((found, &out[..]), (Found::Absent, &b"before"[..]), "{key:?}"),
        }
    }

    fn compare_all(&mut self) {
        let keys: Vec<_> = self.model.keys().cloned().collect();
        keys.iter().for_each(|key| self.compare_key(key));
    }
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
