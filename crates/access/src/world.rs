//! A tree on a simulated disk, for tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use spinney_base::{KeyspaceId, Lsn, Poison, Result, ValueRef};
use spinney_cache::Cache;
use spinney_extent::{Checkpoint, Store, StoreOptions};
use spinney_io::sim::SimDisk;
use spinney_wal::{Log, LogOptions};

use crate::btree::{BTree, Change};
use crate::place::{Place, TreeRoot};

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A tree on a simulated disk.
pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) store: Arc<Store>,
    pub(crate) tree: BTree,
}

fn store_options() -> StoreOptions {
    StoreOptions { keyspace: KeyspaceId(1), double_write: false, poison: Arc::new(Poison::new()) }
}

fn log(disk: &SimDisk) -> Arc<Log> {
    let options =
        LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };
    Log::create(&*disk.at("/log"), "wal", &options).unwrap()
}

fn payload(root: TreeRoot) -> Vec<u8> {
    [&root.place.encode()[..], &[root.level]].concat()
}

impl World {
    pub(crate) fn new(seed: u64, order: u8, frames: u64) -> World {
        let disk = SimDisk::new(seed);
        for path in ["/db", "/log"] {
            disk.create_dir(Path::new(path)).unwrap();
        }
        let store = Store::create(&*disk.at("/db"), "k", store_options(), Lsn::ZERO).unwrap();
        disk.sync_dir(Path::new("/db")).unwrap();
        store.adopt(&[]).unwrap();
        let store = Arc::new(store);
        let tree = BTree::create(store.clone(), &cache(order, frames), order, log(&disk)).unwrap();
        let world = World { disk, store, tree };
        world.checkpoint().unwrap();
        world
    }

    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.tree.checkpoint(|root| {
            let checkpoint = Checkpoint { redo: Lsn::ZERO, structure: 0 };
            self.store.publish(checkpoint, &payload(root), || Ok(()))
        })
    }

    /// Opens what a crash left.
    pub(crate) fn reopened(&self, disk: SimDisk, order: u8, frames: u64) -> World {
        let (store, _, payload) = Store::open(&*disk.at("/db"), "k", store_options()).unwrap();
        let (place, level) = payload.split_first_chunk::<8>().unwrap();
        let root = TreeRoot { place: Place::decode(*place), level: level[0] };
        let store = Arc::new(store);
        disk.create_dir(Path::new("/log")).ok();
        let tree = BTree::open(store.clone(), &cache(order, frames), order, log_again(&disk), root);
        let mut owned = Vec::new();
        tree.owned(&mut |extent, generation| owned.push((extent, generation))).unwrap();
        store.adopt(&owned).unwrap();
        World { disk, store, tree }
    }

    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn check(&self, model: &Model) {
        let mut found = Model::new();
        let walked = self
            .tree
            .walk(&mut |key, value, flags| {
                assert_eq!(flags, 0);
                assert!(found.insert(key.to_vec(), value.to_vec()).is_none());
            })
            .unwrap();
        assert_eq!(walked.records, model.len() as u64);
        assert!(found == *model, "another map");
        // Every page is owned by the tree, free, or waits for a slot.
        let mut owned = Vec::new();
        self.tree.owned(&mut |extent, _| owned.push(extent)).unwrap();
        self.store.audit(owned, 0).unwrap();
    }

    /// Brings changes home that ascend, and applies those to the model that came.
    pub(crate) fn merge_into(&self, model: &mut Model, changes: &Changes) -> Result<()> {
        let all: Vec<Change<'_>> = changes
            .iter()
            .map(|(key, value)| Change { key, value: value.as_deref().map(ValueRef::inline) })
            .collect();
        let mut home = 0;
        let merged = self.tree.merge(&all, &mut |change, replaced| {
            assert_eq!((change.key, replaced), (all[home].key, None));
            home += 1;
            match change.value {
                Some(value) => _ = model.insert(change.key.to_vec(), value.bytes.to_vec()),
                None => _ = model.remove(change.key),
            }
        });
        assert!(home == all.len() || merged.is_err());
        merged.map(|_| ())
    }
}

fn cache(order: u8, frames: u64) -> Arc<Cache> {
    Cache::with_frames(frames * ((4096 << order) + 64) + 8192, order.into())
}

fn log_again(disk: &SimDisk) -> Arc<Log> {
    let name = format!("/log{}", disk.files().len());
    disk.create_dir(Path::new(&name)).unwrap();
    let options =
        LogOptions { tag: 7, bytes_max: 8 * 4 * 4096, segment_bytes: 4 * 4096, tail_bytes: 0 };
    Log::create(&*disk.at(&name), "wal", &options).unwrap()
}
