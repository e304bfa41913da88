//! The tree over real pages of a simulated disk: what a map says, no page of nobody, and the same
//! after the database was killed, or lost its power, and opened again.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng, rngs::StdRng};

use spinney_base::{KeyspaceId, Lsn, PageNumber, Poison};
use spinney_cache::Cache;
use spinney_engine::{Direction, Found};
use spinney_extent::store::DATA_PAGE_FIRST;
use spinney_extent::{Checkpoint, Store, StoreOptions};
use spinney_io::Purpose;
use spinney_io::sim::{CrashMode, SimDisk};

use super::limits;
use crate::check::check;
use crate::disk::DiskFiles;
use crate::files::Files as _;
use crate::kinds::purpose;
use crate::leaf::LeafStore;
use crate::leaf::format::Description;
use crate::packed::{Owned, PackedNode, PackedPivot, Root};
use crate::runs::Runs;
use crate::tree::Tree;

const KEYSPACE: KeyspaceId = KeyspaceId(1);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct World {
    rng: StdRng,
    disk: SimDisk,
    cache: Arc<Cache>,
    files: DiskFiles,
    tree: Tree<DiskFiles>,
    model: Model,
    published: (Tree<DiskFiles>, Model),
    filter_bits: u32,
}

fn options() -> StoreOptions {
    StoreOptions { keyspace: KEYSPACE, double_write: false, poison: Arc::new(Poison::new()) }
}

fn files_over(store: Store, cache: &Arc<Cache>, filter_bits: u32) -> DiskFiles {
    let leaves = LeafStore::new(Arc::new(store), cache.file());
    DiskFiles::new(leaves, limits(6000, 6), filter_bits, 2)
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = StdRng::seed_from_u64(seed);
        let disk = SimDisk::new(seed);
        disk.create_dir(Path::new("/db")).unwrap();
        let store = Store::create(&*disk.at("/db"), "turtle", options(), Lsn::ZERO).unwrap();
        disk.sync_dir(Path::new("/db")).unwrap();
        store.adopt(&[]).unwrap();
        let cache = Cache::new([0, 100_000, 1 << 20][rng.random_range(0..3)]);
        let filter_bits = [0, 12][rng.random_range(0..2)];
        let files = files_over(store, &cache, filter_bits);
        let published = (Tree::empty(), Model::new());
        let (tree, model) = (Tree::empty(), Model::new());
        World { rng, disk, cache, files, tree, model, published, filter_bits }
    }

    fn key(&mut self) -> Vec<u8> {
        let length = self.rng.random_range(0..12);
        (0..length).map(|_| [0, b'a', b'b', 0xff][self.rng.random_range(0..4)]).collect()
    }

    fn apply(&mut self) {
        let mut batch: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for _ in 0..self.rng.random_range(1..120) {
            let value = vec![self.rng.random(); self.rng.random_range(0..200)];
            let value = self.rng.random_bool(0.7).then_some(value);
            batch.insert(self.key(), value);
        }
        let run = super::run(batch.iter().map(|(key, value)| (&key[..], value.as_deref())));
        self.tree = self.tree.apply(&self.files, &Runs::from(run), None, &mut Vec::new()).unwrap();
        for (key, value) in batch {
            match value {
                Some(value) => self.model.insert(key, value),
                None => self.model.remove(&key),
            };
        }
    }

    /// A checkpoint, as the engine takes one.
    fn publish(&mut self) {
        self.tree = self.tree.write(&self.files, &mut Vec::new()).unwrap();
        let payload = self.tree.describe(&self.files).unwrap();
        let store = &self.files.files.store;
        store.sync(Purpose::CHECKPOINT).unwrap();
        let checkpoint = Checkpoint { redo: Lsn::ZERO, structure: 0 };
        store.publish(checkpoint, &payload, || Ok(())).unwrap();
        self.published = (self.tree.clone(), self.model.clone());
    }

    fn crash(&mut self, mode: Option<CrashMode>) {
        self.disk = mode.map_or_else(|| self.disk.kill(), |mode| self.disk.crash(mode));
        let (store, _, payload) = Store::open(&*self.disk.at("/db"), "turtle", options()).unwrap();
        let files = files_over(store, &self.cache, self.filter_bits);
        let tree =
            if payload.is_empty() { Tree::empty() } else { Tree::open(&files, &payload).unwrap() };
        self.model = self.published.1.clone();
        let mut all = Vec::new();
        tree.walk(|it| match it {
            Owned::Leaf(leaf) => all.extend(leaf.run().extents()),
            Owned::Node(pages) => all.extend(pages.run().extents()),
        });
        all.sort_unstable_by_key(|(extent, _)| *extent);
        all.dedup();
        files.files.store.adopt(&all).unwrap();
        check(&tree, &files, true).unwrap();
        self.published.0 = tree.clone();
        self.tree = tree;
        self.files = files;
    }

    /// Every page is free, of a tree or of the checkpoint.
    fn compare_owners(&self) {
        let mut all = Vec::new();
        for tree in [&self.tree, &self.published.0] {
            tree.walk(|it| match it {
                Owned::Leaf(leaf) => all.push((leaf.run().first, leaf.run().pages)),
                Owned::Node(pages) => all.push((pages.run().first, pages.run().pages)),
            });
        }
        all.sort_unstable();
        all.dedup();
        let pages: u64 = all.iter().map(|(_, pages)| u64::from(*pages)).sum();
        let space = self.files.files.store.space();
        let used = u64::from(space.end_page - DATA_PAGE_FIRST) - space.free_pages;
        assert_eq!(used, pages + space.checkpoint_pages);
        assert!(self.cache.used() <= self.cache.bytes().max(8192));
    }

    fn compare(&mut self) {
        for _ in 0..30 {
            let key = self.key();
            let hash = spinney_sync::hash_key(KEYSPACE, &key);
            let mut out = Vec::new();
            let found = self.tree.get(&self.files, &key, hash, &mut out).unwrap();
            match self.model.get(&key) {
                Some(value) => assert!(found == Found::Inline && out == *value, "{key:?}"),
                None => assert!(found == Found::Absent, "{key:?}"),
            }
        }
        let keys: Vec<Vec<u8>> = (0..30).map(|_| self.key()).collect();
        let hashed: Vec<(&[u8], u64)> =
            keys.iter().map(|key| (&key[..], spinney_sync::hash_key(KEYSPACE, key))).collect();
        let values = self.tree.get_many(&self.files, &hashed).unwrap();
        for (key, value) in keys.iter().zip(values) {
            assert_eq!(value.map(|value| value.bytes).as_ref(), self.model.get(key));
        }
        let lower = self.key();
        let lower = Bound::Included(&lower[..]);
        let expected = self.model.range::<[u8], _>((lower, Bound::Unbounded));
        let direction = Direction::Forward;
        let mut cursor = self.tree.cursor(&self.files, lower, Bound::Unbounded, direction).unwrap();
        for (key, value) in expected.take(300) {
            let (found, bytes) = cursor.record().unwrap().expect("a record");
            assert_eq!((found, bytes.bytes), (&key[..], &value[..]));
            cursor.advance().unwrap();
        }
    }
}

#[test]
fn trees_on_a_disk_are_what_a_map_says() {
    let mut highest = 0;
    for seed in 0..100 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..40 {
            match world.rng.random_range(0..10) {
                0..6 => world.apply(),
                6 => world.tree = world.tree.write(&world.files, &mut Vec::new()).unwrap(),
                7 | 8 => world.publish(),
                _ => {
                    let mode = [None, Some(CrashMode::LoseAll), Some(CrashMode::Torn512)];
                    let mode = mode[world.rng.random_range(0..3)];
                    world.crash(mode);
                }
            }
            world.compare();
            world.compare_owners();
            highest = highest.max(world.tree.height());
        }
        world.tree = Tree::empty();
        world.published.0 = Tree::empty();
        world.compare_owners();
    }
    assert!(highest >= 2, "trees of {highest} levels of nodes try little");
}

/// Pages that a checkpoint gives to two leaves are damage, and nobody gives them back twice: also
/// when they are not described alike, have only some pages in common, or more is wrong with the
/// tree.
#[test]
fn pages_of_two_leaves_are_damage() {
    let World { disk, cache, files, .. } = World::new(7);
    let run = super::run([(&b"a"[..], Some(&b"value"[..])), (b"b", Some(b"value"))]);
    let leaf = files.write_leaf(&Runs::from(run), purpose::LEAF).unwrap();
    let description = *leaf.description();
    let packed_bytes = description.packed_bytes + 1;
    let alike = Description { packed_bytes, ..description }.encode().to_vec();
    let first = PageNumber(description.first.0 + 1);
    let beside = Description { first, ..description }.encode().to_vec();
    for (others, is_whole) in
        [(vec![alike.clone()], true), (vec![beside], true), (vec![alike, b"?".to_vec()], false)]
    {
        let children = std::iter::once(leaf.describe().to_vec()).chain(others);
        let pivot = |(number, child)| PackedPivot {
            lower: vec![b'k'; number],
            pending: 0,
            tombstones: Some(0),
            child,
        };
        let pivots = children.enumerate().map(pivot).collect();
        let payload = PackedNode { height: 1, pivots, levels: Vec::new() }.encode();
        let node = files.write_node(&payload).unwrap();
        let store = &files.files.store;
        store.sync(Purpose::CHECKPOINT).unwrap();
        let checkpoint = Checkpoint { redo: Lsn::ZERO, structure: 0 };
        store.publish(checkpoint, &Root::of_node(&node.describe()), || Ok(())).unwrap();
        let image = disk.crash(CrashMode::LoseAll);
        let (store, _, root) = Store::open(&*image.at("/db"), "turtle", options()).unwrap();
        let opened = files_over(store, &cache, 0);
        let tree = Tree::open(&opened, &root);
        assert_eq!(tree.is_ok(), is_whole);
        if let Ok(tree) = &tree {
            let mut owned = Vec::new();
            tree.walk(|it| match it {
                Owned::Leaf(leaf) => owned.extend(leaf.run().extents()),
                Owned::Node(pages) => owned.extend(pages.run().extents()),
            });
            assert!(opened.files.store.adopt(&owned).unwrap_err().is_corruption());
        }
        assert!(tree.err().is_none_or(|error| error.is_corruption()));
    }
}
