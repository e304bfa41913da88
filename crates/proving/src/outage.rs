//! Power losses beside real threads: writers, checkpoints and background jobs run as they do in the
//! product, on the simulated disk, and images are kept at moments that the disk's steps choose.
//!
//! Each image is kept together with what was acknowledged at that moment. Seeds shape the load; the
//! schedule is the machine's.

use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_io::sim::{CrashMode, SimDisk};

use crate::database::{Config, Database, Product, Promise, Write};
use crate::kill::{KEYSPACES, key, value};
use crate::tier::Random;

const THREADS: usize = 4;
const SLOTS: usize = 60;

/// Acknowledged and begun numbers of every slot of every thread.
struct Counters {
    acknowledged: Vec<AtomicU64>,
    begun: Vec<AtomicU64>,
}

impl Counters {
    fn new() -> Self {
        let zeros = || (0..THREADS * SLOTS).map(|_| AtomicU64::new(0)).collect();
        Counters { acknowledged: zeros(), begun: zeros() }
    }

    fn snapshot(cells: &[AtomicU64]) -> Vec<u64> {
        cells.iter().map(|cell| cell.load(SeqCst)).collect()
    }
}

/// Runs four writers with `Sync` for `rounds` batches each and checks some dozens of images.
///
/// # Panics
/// When an image lacks what was acknowledged, or holds half a batch.
pub fn run(product: &dyn Product, config: &Config, rounds: u64, seed: u64) {
    let disk = SimDisk::new(seed);
    let watch = product.watch();
    if let Some(watch) = &watch {
        disk.observe(watch.clone());
    }
    let database = product
        .open(Arc::new(disk.clone()), Runtime::threads(), config)
        .expect("a new database opens");
    for name in KEYSPACES {
        database.create_keyspace(name, true).expect("a good disk");
    }
    let counters = Arc::new(Counters::new());
    // What was acknowledged when each image was kept, in the order of the images.
    let seen: Arc<Mutex<Vec<Vec<u64>>>> = Arc::default();
    let (counting, noted) = (counters.clone(), seen.clone());
    let random = Mutex::new(Random::new(seed, 40));
    // Writers share flushes, so there are about as many steps as each has rounds.
    let one_in = usize::try_from(rounds / 20).unwrap_or(1).max(1);
    disk.capture_when(Arc::new(move |_, _| {
        let mut random = random.lock();
        if !random.one_in(one_in) {
            return None;
        }
        noted.lock().push(Counters::snapshot(&counting.acknowledged));
        Some(*random.pick(&[CrashMode::LoseAll, CrashMode::Torn512, CrashMode::Torn512]))
    }));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, counters) = (&*database, &*counters);
            scope.spawn(move || write(database, counters, thread, rounds, seed));
        }
        scope.spawn(|| {
            for _ in 0..rounds / 100 {
                database.checkpoint().expect("a good disk");
            }
        });
    });
    disk.capture_when(Arc::new(|_, _| None));
    if let Some(watch) = watch {
        watch.check();
    }
    let begun = Counters::snapshot(&counters.begun);
    let captures = disk.take_captures();
    assert!(!captures.is_empty(), "no image was kept");
    for (capture, acknowledged) in captures.iter().zip(&*seen.lock()) {
        let step = capture.step;
        let recovered = product
            .open(Arc::new(capture.image.clone()), Runtime::stepped(seed), config)
            .unwrap_or_else(|error| panic!("the image of step {step} does not open: {error:?}"));
        check(&*recovered, acknowledged, &begun, step);
        recovered.verify().expect("a good disk");
    }
}

fn write(database: &dyn Database, counters: &Counters, thread: usize, rounds: u64, seed: u64) {
    let mut random = Random::new(seed, 41 + thread as u64);
    for number in 1..=rounds {
        let slot = random.below(SLOTS);
        let cell = thread * SLOTS + slot;
        let writes = KEYSPACES.map(|keyspace| Write {
            keyspace: keyspace.into(),
            key: key(thread, slot),
            value: Some(value(number)),
        });
        counters.begun[cell].store(number, SeqCst);
        database.write(&writes, Promise::Sync).expect("a good disk");
        counters.acknowledged[cell].store(number, SeqCst);
    }
}

fn check(database: &dyn Database, acknowledged: &[u64], begun: &[u64], step: u64) {
    for cell in 0..THREADS * SLOTS {
        let key = key(cell / SLOTS, cell % SLOTS);
        let [one, two] = KEYSPACES.map(|keyspace| {
            let found = database.get(keyspace, &key).expect("a good disk");
            found.map_or(0, |found| {
                let number = u64::from_be_bytes(found[..8].try_into().expect("it has a number"));
                assert!(found == value(number), "step {step}: a value is wrong");
                number
            })
        });
        assert!(
            one == two,
            "step {step}: half a batch: {one} and {two}, {} was acknowledged, {} was the last begun",
            acknowledged[cell],
            begun[cell]
        );
        assert!(
            one >= acknowledged[cell] && one <= begun[cell],
            "step {step}: {one} is there, {} was acknowledged, {} was the last begun",
            acknowledged[cell],
            begun[cell]
        );
    }
}
