//! A disk that the database alone has filled, and that is opened again: everything can be removed, and a power loss on
//! the way loses nothing (rule P29).
#![cfg(not(feature = "shuttle"))]

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::{ErrorKind, Runtime};
use spinney_db::{Db, Durability, EngineKind, KeyspaceOptions, Options};
use spinney_io::sim::{CapturePolicy, CrashMode, SimDisk};

/// Writes in a row that are refused before the disk counts as full.
const REFUSALS: usize = 8;
/// Records between two turns of the background.
const TURN: usize = 64;
/// Most images of the disk that are opened after a run.
const IMAGES: usize = 6;
/// Requests inside steps between two images.
const REQUESTS: u64 = 97;

/// What a run is like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    engine: EngineKind,
    seed: u64,
    /// Bytes of the disk, of the memory and of the log.
    disk: u64,
    memory: u64,
    log: u64,
    /// Most bytes of a value.
    value: u64,
    logged: bool,
}

impl Shape {
    fn open(&self, disk: &SimDisk) -> (Db, Runtime) {
        let runtime = Runtime::stepped(self.seed);
        let options = Options::default().memory(self.memory).log_bytes_max(self.log);
        let options = options.disk(Arc::new(disk.clone())).runtime(runtime.clone());
        (Db::open("/db", options.durability(Durability::Sync)).unwrap(), runtime)
    }

    /// Fills the disk and closes the database. Returns the keys that are there.
    fn fill(&self, disk: &SimDisk, random: &mut SplitMix) -> Vec<u64> {
        let (db, runtime) = self.open(disk);
        let options = KeyspaceOptions::default().engine(self.engine).logged(self.logged);
        let keyspace = db.keyspace("k", options).unwrap();
        disk.set_capacity(Some(self.disk));
        let (mut keys, mut refusals) = (Vec::new(), 0);
        while refusals < REFUSALS {
            let key = random.next_u64();
            let length = usize::try_from(20 + random.next_u64() % self.value).unwrap();
            match keyspace.insert(key.to_be_bytes(), vec![7; length]) {
                Ok(()) => {
                    keys.push(key);
                    refusals = 0;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{self:?}: {error}");
                    refusals += 1;
                }
            }
            if keys.len().is_multiple_of(TURN) {
                runtime.step();
            }
        }
        if let Err(error) = db.close() {
            assert_eq!(error.kind(), ErrorKind::Full, "{self:?}: {error}");
        }
        keys
    }

    /// Removes everything after the disk was filled and opened again. Returns how many of the keys were refused, and
    /// how many images of the disk were checked.
    fn check(&self) -> (usize, usize) {
        let mut random = SplitMix(self.seed);
        let disk = SimDisk::new(self.seed);
        let mut keys = self.fill(&disk, &mut random);
        for at in (1..keys.len()).rev() {
            keys.swap(at, usize::try_from(random.next_u64()).unwrap() % (at + 1));
        }
        let (db, runtime) = self.open(&disk);
        let keyspace = db.existing_keyspace("k").unwrap();
        let kept = Arc::new(Kept::default());
        disk.capture_when(kept.policy());
        let mut refused = 0;
        for (number, key) in keys.iter().enumerate() {
            if let Err(error) = keyspace.remove(key.to_be_bytes()) {
                assert_eq!(error.kind(), ErrorKind::Full, "{self:?}: {error}");
                refused += 1;
                if refused > REFUSALS {
                    break;
                }
            }
            kept.removed.store(number + 1, Relaxed);
            if number.is_multiple_of(TURN) {
                runtime.step();
            }
        }
        if let Err(error) = db.checkpoint() {
            assert_eq!(error.kind(), ErrorKind::Full, "{self:?}: {error}");
            refused += 1;
        }
        let captures = disk.take_captures();
        for (capture, removed) in captures.iter().zip(kept.at.lock().iter()) {
            self.check_image(&capture.image, &keys, *removed);
        }
        (refused, captures.len())
    }

    /// Checks what a power loss leaves when this many keys were removed, and one was being removed.
    fn check_image(&self, image: &SimDisk, keys: &[u64], removed: usize) {
        let (db, _runtime) = self.open(image);
        let report = db.verify();
        assert!(report.is_ok(), "{self:?}: {report:?}");
        let keyspace = db.existing_keyspace("k").unwrap();
        for (number, key) in keys.iter().enumerate() {
            let is_there = keyspace.get(key.to_be_bytes()).unwrap().is_some();
            let is_right = match number.cmp(&removed) {
                // Without a log removals are durable with a checkpoint.
                Ordering::Less => !is_there || !self.logged,
                Ordering::Equal => true,
                Ordering::Greater => is_there,
            };
            assert!(is_right, "{self:?}: number {number} when {removed} were removed");
        }
    }
}

/// When images of the disk were taken.
#[derive(Debug, Default)]
struct Kept {
    removed: AtomicUsize,
    /// Requests so far inside a step that makes room.
    inside: AtomicU64,
    /// How many keys were removed at each image.
    at: Mutex<Vec<usize>>,
}

impl Kept {
    fn policy(self: &Arc<Self>) -> Arc<CapturePolicy> {
        let this = self.clone();
        Arc::new(move |_, states| {
            if !states.contains(&"step") {
                return None;
            }
            let mut at = this.at.lock();
            let number = this.inside.fetch_add(1, Relaxed);
            let is_kept = number.is_multiple_of(REQUESTS) && at.len() < IMAGES;
            is_kept.then(|| {
                at.push(this.removed.load(Relaxed));
                CrashMode::Torn4K
            })
        })
    }
}

const SHAPE: Shape = Shape {
    engine: EngineKind::TwoBTree,
    seed: 1,
    disk: 24 << 20,
    memory: 1 << 20,
    log: 2 << 20,
    value: 1500,
    logged: true,
};

fn all_of(shapes: &[Shape]) -> usize {
    let mut images = 0;
    for shape in shapes {
        let (refused, checked) = shape.check();
        assert_eq!(refused, 0, "{shape:?}");
        images += checked;
    }
    images
}

#[test]
fn p29_after_a_full_disk_is_opened_a_treeline_can_be_emptied() {
    all_of(&[Shape { engine: EngineKind::TreeLine, seed: 2, ..SHAPE }]);
}

#[test]
fn p29_after_a_full_disk_is_opened_a_turtle_can_be_emptied() {
    let shape = Shape { engine: EngineKind::Turtle, log: 1 << 20, ..SHAPE };
    all_of(&[
        Shape { memory: 4 << 20, value: 60, seed: 16, ..shape },
        Shape { value: 300, disk: 12 << 20, seed: 2, ..shape },
        // The topmost level is large when the first removals come, and a step needs more room than there is.
        Shape { disk: 24_195_637, memory: 2 << 20, logged: false, seed: 56, ..shape },
    ]);
}

/// Removals of so many records that the topmost levels hold all that the disk had room for, before steps flush them.
#[test]
fn p29_after_a_full_disk_is_opened_a_turtle_of_many_records_can_be_emptied() {
    let (disk, memory, log) = (30_561_554, 8 << 20, 1 << 20);
    all_of(&[Shape { engine: EngineKind::Turtle, disk, memory, log, value: 60, seed: 3, ..SHAPE }]);
}

/// In steps: a power loss between two of them finds a newer tree under an older image and log.
#[test]
fn p29_after_a_full_disk_is_opened_a_2btree_can_be_emptied() {
    let images = all_of(&[
        SHAPE,
        Shape { memory: 2 << 20, log: 4 << 20, seed: 2, ..SHAPE },
        Shape { disk: 12 << 20, log: 1 << 20, value: 300, seed: 3, ..SHAPE },
        Shape { disk: 12 << 20, value: 300, logged: false, seed: 4, ..SHAPE },
        // Removals would take what is left of the disk here, if nothing were reserved for them.
        Shape { disk: 12 << 20, memory: 2 << 20, log: 4 << 20, value: 300, logged: false, ..SHAPE },
    ]);
    assert!(images >= 3 * IMAGES, "{images} images were taken inside steps");
}
