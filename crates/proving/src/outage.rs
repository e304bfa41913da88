//! Power losses beside real threads: writers, checkpoints and background jobs run as they do in the
//! product, on the simulated disk, and images are kept at moments that the disk's steps choose.
//!
//! Each image is kept together with what was acknowledged at that moment. Seeds shape the load; the
//! schedule is the machine's.

use std::ops::Bound;
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_io::sim::{CrashMode, Fault, SimDisk};

use crate::database::{Config, Database, Product, Promise, Write};
use crate::kill::{key, value};
use crate::tier::{self, Random};

const THREADS: usize = 4;

/// Every batch writes the same number into each.
const KEYSPACES: [&str; 2] = ["one", "two"];

/// Every so many numbers a key is removed instead of written.
const REMOVAL: u64 = 5;

/// Acknowledged and begun numbers of every slot of every thread.
struct Counters {
    slots: usize,
    acknowledged: Vec<AtomicU64>,
    begun: Vec<AtomicU64>,
}

/// The counters at one moment: what each slot holds lies between the two.
struct Snapshot {
    acknowledged: Vec<u64>,
    begun: Vec<u64>,
}

impl Counters {
    fn new(slots: usize) -> Self {
        let zeros = || (0..THREADS * slots).map(|_| AtomicU64::new(0)).collect();
        Counters { slots, acknowledged: zeros(), begun: zeros() }
    }

    fn snapshot(&self) -> Snapshot {
        let all = |cells: &[AtomicU64]| cells.iter().map(|cell| cell.load(SeqCst)).collect();
        // In this order: a write that is acknowledged in between was begun before.
        let acknowledged = all(&self.acknowledged);
        Snapshot { acknowledged, begun: all(&self.begun) }
    }
}

fn start(product: &dyn Product, disk: &SimDisk, config: &Config) -> Box<dyn Database> {
    let database = product
        .open(Arc::new(disk.clone()), Runtime::threads(), config)
        .expect("a new database opens");
    for name in KEYSPACES {
        database.create_keyspace(name, true).expect("a good disk");
    }
    // What is open is all that reads, writes and checkpoints need.
    disk.limit_descriptors(Some(disk.descriptors()));
    database
}

/// Runs four writers with `Sync` for `rounds` batches each and checks some dozens of images.
///
/// # Panics
/// When an image lacks what was acknowledged, or holds half a batch.
pub fn run(product: &dyn Product, config: &Config, rounds: u64, seed: u64) {
    let disk = SimDisk::new(seed);
    tier::choose_medium(&disk, seed);
    let watch = product.watch();
    if let Some(watch) = &watch {
        disk.observe(watch.clone());
    }
    let database = start(product, &disk, config);
    // Few slots are written again and again; many fill pages, which split and are joined.
    let slots = if seed.is_multiple_of(2) { 60 } else { 1500 };
    let counters = Arc::new(Counters::new(slots));
    // The counters when each image was kept, in the order of the images.
    let seen: Arc<Mutex<Vec<Snapshot>>> = Arc::default();
    let (counting, noted) = (counters.clone(), seen.clone());
    let random = Mutex::new(Random::new(seed, 40));
    // Writers share flushes, so there are about as many steps as each has rounds.
    // An image of many slots takes longer to check.
    let images = if slots > 100 { 6 } else { 20 };
    let one_in = usize::try_from(rounds / images).unwrap_or(1).max(1);
    disk.capture_when(Arc::new(move |_, _| {
        let mut random = random.lock();
        if !random.one_in(one_in) {
            return None;
        }
        noted.lock().push(counting.snapshot());
        Some(*random.pick(&[CrashMode::LoseAll, CrashMode::Torn512, CrashMode::Torn512]))
    }));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, counters) = (&*database, &*counters);
            scope.spawn(move || {
                write(database, counters, thread, rounds, seed).expect("a good disk");
            });
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
    let captures = disk.take_captures();
    assert!(!captures.is_empty(), "no image was kept");
    for (capture, snapshot) in captures.iter().zip(&*seen.lock()) {
        check_image(product, &capture.image, config, snapshot, &format!("step {}", capture.step));
    }
}

/// Says what else is found of a key that one keyspace lacks: by a range, by a second look, and by a
/// verification.
fn tell(database: &dyn Database, key: &[u8]) {
    for keyspace in KEYSPACES {
        let bound = || Bound::Included(key.to_vec());
        let in_range = database.range(keyspace, bound(), bound()).count();
        let again = database.get(keyspace, key).map(|found| found.is_some());
        let all = database.range(keyspace, Bound::Unbounded, Bound::Unbounded).count();
        eprintln!("{keyspace}: {in_range} in a range of one, {all} in all, again {again:?}");
    }
    eprintln!("verified: {:?}", database.verify());
}

/// Four writers meet a failed sync, a failed write or a full disk: each ends with an error or not at all
/// hindered, none waits forever, reads go on, and nothing acknowledged is lost.
///
/// # Panics
/// When it is.
pub fn run_with_fault(product: &dyn Product, config: &Config, rounds: u64, seed: u64) {
    let disk = SimDisk::new(seed);
    tier::choose_medium(&disk, seed);
    let database = start(product, &disk, config);
    let counters = Counters::new(60);
    let mut random = Random::new(seed, 42);
    let later = 1 + random.below(usize::try_from(rounds).unwrap_or(1)) as u64;
    disk.inject(match random.below(3) {
        0 => Fault::SyncError { at: disk.syncs() + later },
        1 => Fault::WriteError { at: disk.writes() + later },
        _ => Fault::NoSpace { at: disk.room_requests() + 1 + later % 10 },
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, counters) = (&*database, &counters);
            scope.spawn(move || {
                let ended = write(database, counters, thread, rounds, seed);
                let named = |error: &Error| {
                    matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned | ErrorKind::Full)
                };
                assert!(ended.as_ref().err().is_none_or(named), "{ended:?}");
                database.get(KEYSPACES[0], &key(thread, 0)).expect("reads go on");
            });
        }
    });
    drop(database);
    let snapshot = counters.snapshot();
    check_image(product, &disk.kill(), config, &snapshot, "after a kill");
    check_image(product, &disk.crash(CrashMode::LoseAll), config, &snapshot, "after a power loss");
}

fn write(
    database: &dyn Database,
    counters: &Counters,
    thread: usize,
    rounds: u64,
    seed: u64,
) -> Result<()> {
    let mut random = Random::new(seed, 43 + thread as u64);
    for number in 1..=rounds {
        let slot = random.below(counters.slots);
        let cell = thread * counters.slots + slot;
        let writes = KEYSPACES.map(|keyspace| Write {
            keyspace: keyspace.into(),
            key: key(thread, slot),
            value: (!number.is_multiple_of(REMOVAL)).then(|| value(number)),
        });
        counters.begun[cell].store(number, SeqCst);
        database.write(&writes, Promise::Sync)?;
        counters.acknowledged[cell].store(number, SeqCst);
    }
    Ok(())
}

fn check_image(
    product: &dyn Product,
    image: &SimDisk,
    config: &Config,
    snapshot: &Snapshot,
    when: &str,
) {
    let database = product
        .open(Arc::new(image.clone()), Runtime::stepped(1), config)
        .unwrap_or_else(|error| panic!("{when}: the image does not open: {error:?}"));
    let slots = snapshot.begun.len() / THREADS;
    for (cell, (acknowledged, begun)) in
        snapshot.acknowledged.iter().zip(&snapshot.begun).enumerate()
    {
        let key = key(cell / slots, cell % slots);
        let [one, two] = KEYSPACES.map(|keyspace| {
            let found = database.get(keyspace, &key).expect("a good disk");
            found.map(|found| {
                let number = u64::from_be_bytes(found[..8].try_into().expect("it has a number"));
                assert!(found == value(number), "{when}: a value is wrong");
                number
            })
        });
        let books = format!("{acknowledged} was acknowledged, {begun} was the last begun");
        if one != two {
            tell(&*database, &key);
        }
        assert!(one == two, "{when}: half a batch: {one:?} and {two:?}, {books}");
        let right = match one {
            Some(number) => (*acknowledged..=*begun).contains(&number),
            None => {
                *acknowledged == 0 || (*acknowledged..=*begun).any(|n| n.is_multiple_of(REMOVAL))
            }
        };
        assert!(right, "{when}: {one:?} is there, {books}");
    }
    database.verify().expect("a good disk");
}
