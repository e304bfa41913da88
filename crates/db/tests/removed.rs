//! Space and time that removed records took come back: by themselves when a keyspace is quiet or is
//! read, and at once by `compact`. With either engine, and counted, never timed.
#![cfg(not(feature = "shuttle"))]

#[path = "common/first_read.rs"]
mod first_read;

#[path = "common/budget.rs"]
mod budget;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_db::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::SimDisk;

use first_read::first_read;

const ENGINES: [EngineKind; 2] = [EngineKind::TreeLine, EngineKind::Turtle];
const MINUTE: Duration = Duration::from_secs(60);

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn pass_time(runtime: &Runtime, time: Duration) {
    let end = runtime.now() + time;
    while runtime.now() < end {
        runtime.step();
    }
}

struct World {
    disk: SimDisk,
    memory: u64,
    runtime: Runtime,
    db: Db,
    main: Keyspace,
}

impl World {
    fn new(engine: EngineKind, memory: u64) -> World {
        World::open(engine, memory, SimDisk::new(1))
    }

    fn open(engine: EngineKind, memory: u64, disk: SimDisk) -> World {
        let runtime = Runtime::stepped(1);
        let options = Options::default()
            .memory(budget::with_records(engine, memory))
            .scrub_bytes_per_second(0)
            .disk(Arc::new(disk.clone()))
            .runtime(runtime.clone());
        let db = Db::open(Path::new("/db"), options).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().engine(engine)).unwrap();
        World { disk, memory, runtime, db, main }
    }

    /// As another process finds it after this one was killed.
    fn killed(self, engine: EngineKind) -> World {
        World::open(engine, self.memory, self.disk.kill())
    }

    fn fill(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.main.insert_with(key(number), [7; 300], Durability::Buffered).unwrap();
        }
    }

    fn remove(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.main.remove_with(key(number), Durability::Buffered).unwrap();
        }
    }

    /// Bytes of the keyspace's file that take room.
    fn bytes(&self) -> u64 {
        let stats = self.main.stats();
        stats.file_bytes - stats.hole_bytes
    }
}

/// 200,000 records of 300 bytes, all of them removed: after a quiet minute the file takes next to
/// nothing.
#[test]
fn d1_what_was_removed_takes_no_room_after_a_quiet_minute() {
    for engine in ENGINES {
        let world = World::new(engine, 64 << 20);
        world.fill(0..200_000);
        world.db.checkpoint().unwrap();
        let full = world.bytes();
        world.remove(0..200_000);
        pass_time(&world.runtime, MINUTE);
        let left = world.bytes();
        assert!(full > 60 << 20 && left <= 2 << 20, "{engine:?}: {left} of {full} bytes");
        assert_eq!(world.main.iter().count(), 0);
        world.db.verify().unwrap();
    }
}

/// The same where the process that removed them was killed, before it was quiet.
#[test]
fn d1_what_was_removed_before_a_crash_takes_no_room_either() {
    for engine in ENGINES {
        let world = World::new(engine, 16 << 20);
        world.fill(0..50_000);
        world.db.checkpoint().unwrap();
        let full = world.bytes();
        world.remove(0..50_000);
        world.db.checkpoint().unwrap();
        let world = world.killed(engine);
        assert_eq!(world.main.iter().count(), 0);
        pass_time(&world.runtime, MINUTE);
        let left = world.bytes();
        assert!(full > 15 << 20 && left <= 2 << 20, "{engine:?}: {left} of {full} bytes");
        world.db.verify().unwrap();
    }
}

/// On a full disk, too: what is made of what is left takes less room than what is freed.
#[test]
fn d1_what_was_removed_gives_room_back_on_a_full_disk() {
    for engine in ENGINES {
        let world = World::new(engine, 16 << 20);
        world.fill(0..50_000);
        world.db.checkpoint().unwrap();
        world.remove((0..50_000).filter(|number| number % 16 > 0));
        world.db.checkpoint().unwrap();
        let taken = |disk: &SimDisk| -> u64 {
            disk.files().iter().map(|file| disk.room(file).unwrap()).sum()
        };
        world.disk.set_capacity(Some(taken(&world.disk) + (64 << 10)));
        let before = world.bytes();
        pass_time(&world.runtime, MINUTE);
        let after = world.bytes();
        assert!(after < before / 2, "{engine:?}: {before} bytes before, {after} after");
        world.fill(60_000..62_000);
        assert_eq!(world.main.iter().count(), 5_125);
        world.disk.set_capacity(None);
        world.db.verify().unwrap();
    }
}

/// Records that are written over again and again: after a quiet minute the file takes no more than
/// twice what the records take, and 8 MiB.
#[test]
fn d1_what_was_overwritten_takes_little_room_after_a_quiet_minute() {
    for engine in ENGINES {
        let world = World::new(engine, 8 << 20);
        for round in 0..4 {
            // In another order each time, and each time something else.
            for number in 0..60_000_u64 {
                let number = (number.wrapping_mul(7_919) + round) % 60_000;
                let value = [round as u8; 300];
                world.main.insert_with(key(number), value, Durability::Buffered).unwrap();
            }
        }
        pass_time(&world.runtime, MINUTE);
        let (live, taken) = (60_000 * 308, world.bytes());
        assert!(taken <= 2 * live + (8 << 20), "{engine:?}: {taken} bytes for {live}");
        world.db.verify().unwrap();
    }
}

/// On a real disk: blocks of the keyspace's file after all of it was removed, while it is open and
/// closed.
#[test]
fn d1_what_was_removed_takes_no_room_on_a_real_disk() {
    for engine in ENGINES {
        let directory = tempfile::tempdir().unwrap();
        let db = Db::open(directory.path(), Options::default().memory(64 << 20)).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().engine(engine)).unwrap();
        for number in 0..200_000 {
            main.insert_with(key(number), [7; 300], Durability::Buffered).unwrap();
        }
        db.checkpoint().unwrap();
        for number in 0..200_000 {
            main.remove_with(key(number), Durability::Buffered).unwrap();
        }
        let blocks = || -> u64 {
            let files = std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
            let ours = files.filter(|file| file.path().extension().is_some_and(|end| end == "spn"));
            ours.map(|file| file.metadata().unwrap().blocks() * 512).sum()
        };
        let clock = Runtime::threads();
        let end = clock.now() + MINUTE;
        while blocks() > 2 << 20 && clock.now() < end {
            clock.sleep(Duration::from_millis(100));
        }
        assert!(blocks() <= 2 << 20, "{engine:?}: {} bytes while it is open", blocks());
        assert_eq!(main.iter().count(), 0);
        drop(main);
        db.close().unwrap();
        assert!(blocks() <= 2 << 20, "{engine:?}: {} bytes after it was closed", blocks());
    }
}

/// A queue that is never quiet takes no more than twice what its records take, and 8 MiB, though
/// the background hardly gets to run. (`turtle` frees what its flushes and checkpoints pass over.)
#[test]
fn d2_a_busy_queue_of_treeline_takes_bounded_room() {
    const LENGTH: u64 = 20_000;
    let world = World::new(EngineKind::TreeLine, 2 << 20);
    world.fill(0..LENGTH);
    for number in 0..8 * LENGTH {
        world.fill(number + LENGTH..number + LENGTH + 1);
        world.remove([number]);
        if number % 10 == 0 {
            assert_eq!(first_read(&world.main, key(0)).0.as_deref(), Some(&key(number + 1)[..]));
        }
        if number % 256 == 0 {
            world.runtime.step();
        }
        if number % (LENGTH / 4) == 0 {
            world.db.checkpoint().unwrap();
        }
    }
    let (taken, live) = (world.bytes(), LENGTH * 308);
    assert!(taken <= 2 * live + (8 << 20), "{taken} bytes for {live}");
}

/// A first read of a queue whose records are in memory looks at pages once in many removals, and at
/// few records, however long the queue is.
#[test]
fn d1_first_reads_of_a_queue_look_at_few_pages_and_records() {
    for length in [1, 100, 1_500, 10_000] {
        let world = World::new(EngineKind::TreeLine, 16 << 20);
        world.fill(0..length);
        let (mut sums, mut reads) = ([0; 3], 0);
        for number in 0..6_000 {
            world.fill(number + length..number + length + 1);
            world.remove([number]);
            let (first, counts) = first_read(&world.main, key(0));
            assert_eq!(first.as_deref(), Some(&key(number + 1)[..]));
            if number >= 1_000 {
                reads += 1;
                (0..3).for_each(|index| sums[index] += counts[index]);
            }
            if number % 64 == 0 {
                world.runtime.step();
            }
        }
        let [pages, records, removed] = sums;
        // Where the queue is one record long there is nothing to list; a page holds a dozen.
        let pages_most = if length == 1 { reads } else { reads / 8 };
        assert!(pages <= pages_most, "{pages} pages for {reads} reads of {length} records");
        assert!(records <= 8 * reads, "{records} records for {reads} reads of {length}");
        assert!(removed <= 4 * reads, "{removed} removed ones for {reads} reads of {length}");
    }
}

/// A hundred thousand records below a live one are removed: after a quiet minute the first record
/// costs no more than twice what it costs where it was always alone.
#[test]
fn d1_the_first_record_above_many_removed_costs_as_much_as_one_alone() {
    for engine in ENGINES {
        let alone = World::new(engine, 64 << 20);
        alone.fill(100_000..100_001);
        alone.db.checkpoint().unwrap();
        pass_time(&alone.runtime, MINUTE);
        let world = World::new(engine, 64 << 20);
        world.fill(0..100_001);
        world.remove(0..100_000);
        pass_time(&world.runtime, MINUTE);
        let expected = first_read(&alone.main, key(0));
        let found = first_read(&world.main, key(0));
        assert_eq!(found.0.as_deref(), Some(&key(100_000)[..]));
        for (found, expected) in found.1.into_iter().zip(expected.1) {
            assert!(found <= 2 * expected, "{engine:?}: {found} where {expected} would do");
        }
    }
}

/// Ranges that pass over what was removed again and again have it tidied, though the keyspace is
/// never quiet.
#[test]
fn d1_ranges_that_find_nothing_are_tidied_for() {
    for engine in ENGINES {
        let world = World::new(engine, 16 << 20);
        world.fill(0..20_000);
        world.db.checkpoint().unwrap();
        world.remove(5_000..15_000);
        let range = || {
            let before = world.main.stats().scan_tombstones;
            assert_eq!(world.main.range(key(5_000)..key(15_000)).count(), 0);
            world.main.stats().scan_tombstones - before
        };
        let first = range();
        for number in 0..400 {
            world.fill(30_000 + number..30_001 + number);
            range();
            world.runtime.step();
        }
        let last = range();
        assert!(last <= 100, "{engine:?}: {last} tombstones passed, {first} at first");
        assert_eq!(world.main.iter().count(), 10_400);
        world.db.verify().unwrap();
    }
}

/// Most records are removed here and there. A compaction brings what is left together at once, and
/// says how far it is; its records are the same.
#[test]
fn d1_compact_gives_back_the_room_of_removed_records() {
    for engine in ENGINES {
        let world = World::new(engine, 16 << 20);
        world.fill(0..50_000);
        world.db.checkpoint().unwrap();
        let stays = |number: &u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60 == 0;
        world.remove((0..50_000).filter(|number| !stays(number)));
        let mut seen = Vec::new();
        let report = world
            .main
            .compact_with(.., |progress| {
                seen.push(progress);
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        let left: Vec<u64> = (0..50_000).filter(stays).collect();
        let live = left.len() as u64 * 308;
        assert!(report.bytes_before > 10 << 20);
        assert!(report.bytes_after <= 2 * live + (1 << 20), "{engine:?}: {report:?} for {live}");
        assert!(seen.is_sorted_by_key(|progress| progress.bytes) && !seen.is_empty());
        assert_eq!(seen.last().unwrap().bytes, report.bytes);
        let stats = world.main.stats();
        assert_eq!(stats.tombstones, 0);
        assert!(stats.live_bytes.abs_diff(live) < live / 3, "{} {live}", stats.live_bytes);
        assert!(stats.dead_bytes < live / 2, "{} {live}", stats.dead_bytes);
        let keys = world.main.keys(..).map(Result::unwrap);
        assert!(keys.eq(left.iter().map(|number| key(*number).to_vec())));
        world.db.verify().unwrap();
    }
}

/// Of two ranges that are removed one is compacted, and the other waits.
#[test]
fn d1_compact_range_leaves_other_ranges_alone() {
    for engine in EngineKind::ALL {
        let world = World::new(engine, 16 << 20);
        world.fill(0..50_000);
        world.db.checkpoint().unwrap();
        world.remove((0..50_000).filter(|number| number % 4 > 0));
        let report = world.main.compact_range(key(10_000)..key(20_000)).unwrap();
        assert!(report.bytes < report.bytes_before / 2, "{engine:?}: {report:?}");
        assert!(report.bytes > 2 << 20, "{engine:?}: {report:?}");
        let empty = world.main.compact_range(key(60_000)..).unwrap();
        assert!(empty.bytes <= 1 << 20, "{engine:?}: {empty:?}");
        let none = world.main.compact_range(key(3)..key(2)).unwrap();
        assert!(none.bytes <= 1 << 20, "{engine:?}: {none:?}");
        assert_eq!(world.main.iter().count(), 12_500);
        world.db.verify().unwrap();
    }
}

/// What a snapshot sees outlives what drains and compacts it away.
#[test]
fn d1_a_snapshot_keeps_what_is_drained() {
    let world = World::new(EngineKind::Turtle, 16 << 20);
    world.fill(0..30_000);
    world.db.checkpoint().unwrap();
    let snapshot = world.main.snapshot().unwrap();
    world.remove(0..30_000);
    pass_time(&world.runtime, MINUTE);
    world.fill(0..10);
    world.main.compact().unwrap();
    world.fill(40_000..60_000);
    world.db.checkpoint().unwrap();
    assert_eq!(world.main.iter().count(), 20_010);
    assert_eq!(
        snapshot.iter().map(Result::unwrap).filter(|(_, v)| **v == [7; 300]).count(),
        30_000
    );
    drop(snapshot);
    world.db.checkpoint().unwrap();
    world.db.verify().unwrap();
    let stats = world.main.stats();
    let used = stats.file_bytes - stats.free_pages * 4096;
    assert!(used < 9 << 20, "{used} bytes for 20,010 records");
}
