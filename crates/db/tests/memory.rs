//! What memory the database takes, and what it says: a counting allocator under the whole test,
//! which therefore is alone in its program.
#![cfg(not(feature = "shuttle"))]
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};
use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_db::{Batch, Db, Durability, EngineKind, KeyspaceOptions, Options};

struct Counting;

/// Each test counts alone.
static ALONE: Mutex<()> = Mutex::new(());

static BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(layout: Layout) -> isize {
    isize::try_from(layout.size()).unwrap()
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(count(layout), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(count(layout), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The budget, in bytes.
const MEMORY: u64 = 16 << 20;

/// Most bytes per record in the cache beyond those of its key and value.
const OVERHEAD_MAX: f64 = 64.0;

const KEY_BYTES: usize = 8;

/// What the documentation allows for threads, I/O under way and the allocator.
const BESIDE: u64 = 64 << 20;

/// More records than the cache holds.
fn records(value: usize) -> u64 {
    MEMORY * 3 / 2 / (value + KEY_BYTES + 8) as u64
}

/// Bytes that the allocator has given, and those of mappings (rings of the cache, page buffers).
fn given() -> isize {
    BYTES.load(Relaxed) + isize::try_from(spinney_base::mapping::mapped_bytes()).unwrap()
}

/// A database whose cache is full of records with values of one length, and how many bytes it was
/// given.
fn filled(directory: &Path, value: usize) -> (Db, u64) {
    let before = given();
    let db = Db::open(directory, Options::default().memory(MEMORY)).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    for start in (0..records(value)).step_by(500) {
        let mut batch = Batch::new();
        for number in start..start + 500 {
            let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            batch.insert(&main, key, vec![7; value]);
        }
        db.write_with(batch, Durability::Buffered).unwrap();
    }
    db.checkpoint().unwrap();
    // The background tidies, gives back and accounts for what the checkpoint left.
    let is_tidy = || main.stats().overflow_pages * 100 < main.stats().pages;
    (0..60).take_while(|_| !is_tidy()).for_each(|_| std::thread::sleep(Duration::from_millis(500)));
    assert!(is_tidy(), "{:?}", main.stats());
    // Packing looks first for a second at what comes, and has buffers while it continues.
    let written = || main.stats().pages_written_back;
    let still = || {
        let before = written();
        std::thread::sleep(Duration::from_millis(2500));
        written() == before
    };
    assert!((0..20).any(|_| still()), "{:?}", main.stats());
    drop(main);
    let given = u64::try_from(given() - before).unwrap();
    (db, given)
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "bytes of megabytes")]
fn records_take_little_more_than_their_bytes_and_all_is_accounted_for() {
    let _alone = ALONE.lock();
    for value in [8, 500] {
        let directory = tempfile::tempdir().unwrap();
        let (db, given) = filled(directory.path(), value);
        let stats = db.stats();
        let used = stats.memory_used;
        let told = format!("values of {value} bytes: {given} bytes given, {used} accounted for");
        assert!(given.abs_diff(used) * 20 <= given, "{told}");
        assert!(used <= MEMORY, "{told}");
        // What is not accounted for is the records' as well.
        let main = &stats.keyspaces[0];
        let others = used - main.cache_bytes - main.page_cache_bytes - main.index_bytes;
        let each = (given - others) as f64 / main.records_cached as f64;
        let overhead = each - (KEY_BYTES + value) as f64;
        println!("{told}; {overhead:.1} bytes around each of {} records", main.records_cached);
        assert!(main.records_cached < records(value), "{told}: the cache was never full");
        assert!(overhead <= OVERHEAD_MAX, "{told}: {overhead:.1} bytes per record");
    }
}

/// Reads, writes and scans of 16 threads: what is given never goes far beyond the budget, and when
/// they rest the accounts know of it.
#[test]
fn accounts_hold_under_sixteen_threads() {
    const THREADS: u64 = 16;
    let _alone = ALONE.lock();
    for value in [56, 1016] {
        let directory = tempfile::tempdir().unwrap();
        let before = given();
        let given = || u64::try_from(given() - before).unwrap();
        let db = Db::open(directory.path(), Options::default().memory(MEMORY)).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().logged(false)).unwrap();
        let each = 2 * MEMORY / value as u64 / THREADS;
        let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        let work = |thread: u64, mixed: bool| {
            let mut number = thread + 1;
            for step in 0..each {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let any = key((number >> 20) % (each * THREADS));
                match step % 32 {
                    _ if !mixed => {
                        main.insert(key(step * THREADS + thread), vec![7; value]).unwrap();
                    }
                    0 => assert!(main.range(any.to_vec()..).limit(50).count() > 0),
                    step if step % 2 == 1 => main.insert(any, vec![8; value]).unwrap(),
                    _ => assert!(main.get(any).unwrap().is_some()),
                }
            }
        };
        for mixed in [false, true] {
            let mut most = 0;
            std::thread::scope(|scope| {
                let spawn = |thread| scope.spawn(move || work(thread, mixed));
                let workers: Vec<_> = (0..THREADS).map(spawn).collect();
                while !workers.iter().all(|worker| worker.is_finished()) {
                    std::thread::sleep(Duration::from_millis(5));
                    most = most.max(given());
                }
            });
            // Buffers of the last batches go when it is quiet.
            let mut told = String::new();
            let known = (0..400).any(|_| {
                std::thread::sleep(Duration::from_millis(50));
                let (given, used) = (given(), db.stats().memory_used);
                told = format!("{given} bytes given, {used} accounted for, {most} at most");
                given.abs_diff(used) * 20 <= given
            });
            println!("values of {value} bytes, mixed {mixed}: {told}");
            assert!(known && most <= MEMORY + BESIDE, "values of {value} bytes: {told}");
        }
    }
}

/// What a turtle keyspace may take beside its budget, all of which is less than the 64 MiB that the
/// documentation allows: six leaves of a sixteenth of the memory for each of four threads that
/// flush (where leaves have their full size these are accounted for), mappings that the process
/// keeps for their next owners, and a little for threads and the allocator.
const TURTLE_BESIDE: u64 =
    MEMORY / 16 * 6 * 4 + spinney_base::mapping::IDLE_BYTES_MAX as u64 + (2 << 20);
const _: () = assert!(TURTLE_BESIDE < BESIDE);

/// All that was taken from the system but for the allocator's own: what somebody has, and what
/// waits for its next owner.
fn taken() -> isize {
    given() + isize::try_from(spinney_base::mapping::idle_bytes()).unwrap()
}

/// Bytes of the allocator, of mappings, and of those that nobody owns.
fn parts() -> [usize; 3] {
    let allocated = usize::try_from(BYTES.load(Relaxed)).unwrap_or(0);
    [allocated, spinney_base::mapping::mapped_bytes(), spinney_base::mapping::idle_bytes()]
}

/// What the process has in memory, where the system tells.
fn resident() -> Option<u64> {
    let sizes = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = sizes.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// A load of several times the budget, then reads, ranges and writes, with snapshots that are kept
/// for a while: what is taken stays within the budget at every checkpoint distance.
#[test]
fn turtle_holds_its_budget_at_every_checkpoint_distance() {
    const THREADS: u64 = 4;
    let _alone = ALONE.lock();
    for chi in ["1", "16", "1000000", "auto"] {
        let directory = tempfile::tempdir().unwrap();
        let (before, resident_before) = (taken(), resident());
        let taken = || u64::try_from(taken() - before).unwrap_or(0);
        let options = Options::default().memory(MEMORY).durability(Durability::Buffered);
        let db = Db::open(directory.path(), options).unwrap();
        let turtle = KeyspaceOptions::default().engine(EngineKind::Turtle);
        let main = db.keyspace("main", turtle.set("chi", chi).unwrap()).unwrap();
        let each = 2 * MEMORY / 550 / THREADS;
        let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        let value = |number: u64| vec![7; 100 + usize::try_from(number % 900).unwrap()];
        let work = |thread: u64, mixed: bool| {
            let mut number = thread + 1;
            for step in 0..if mixed { each / 2 } else { each } {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let any = key((number >> 20) % (each * THREADS));
                match step % 32 {
                    _ if !mixed => {
                        main.insert(key(step * THREADS + thread), value(number >> 30)).unwrap();
                    }
                    0 => assert!(main.range(any.to_vec()..).limit(50).count() > 0),
                    1 => main.remove(any).unwrap(),
                    step if step % 2 == 1 => main.insert(any, value(number >> 30)).unwrap(),
                    _ => _ = main.get(any).unwrap(),
                }
            }
        };
        let (stop, mut most, mut most_resident) = (AtomicBool::new(false), 0, 0);
        let mut most_of = [0; 3];
        let mut snapshots = 0;
        std::thread::scope(|scope| {
            let keeper = scope.spawn(|| {
                let (mut kept, mut count) = (std::collections::VecDeque::new(), 0);
                while !stop.load(Relaxed) {
                    kept.push_back(main.snapshot().unwrap());
                    count += 1;
                    std::thread::sleep(Duration::from_millis(30));
                    if kept.len() > 3 {
                        let oldest = kept.pop_front().unwrap();
                        assert!(oldest.iter().limit(200).all(|record| record.is_ok()));
                    }
                }
                count
            });
            for mixed in [false, true] {
                let spawn = |thread| scope.spawn(move || work(thread, mixed));
                let workers: Vec<_> = (0..THREADS).map(spawn).collect();
                while !workers.iter().all(|worker| worker.is_finished()) {
                    std::thread::sleep(Duration::from_millis(2));
                    if taken() > most {
                        (most, most_of) = (taken(), parts());
                    }
                    most_resident = most_resident.max(resident().unwrap_or(0));
                }
            }
            stop.store(true, Relaxed);
            snapshots = keeper.join().unwrap();
        });
        let turtle = main.stats().turtle.unwrap();
        let grown = most_resident.saturating_sub(resident_before.unwrap_or(0));
        let told = format!(
            "distance {chi}: {most} bytes taken at most {most_of:?}, {grown} resident; {} batches, {snapshots} snapshots, {} of them written \
             out; {} accounted for",
            turtle.batches_applied,
            turtle.snapshots_written,
            db.stats().memory_used
        );
        println!("{told}");
        assert_eq!(turtle.snapshots_ended, 0, "{told}");
        assert!(turtle.batches_applied > 20 && snapshots > 3, "{told}");
        assert!(db.stats().memory_used <= MEMORY, "{told}");
        assert!(most <= MEMORY + TURTLE_BESIDE, "{told}");
        assert!(grown <= MEMORY + BESIDE, "{told}");
        db.verify().unwrap();
    }
}
