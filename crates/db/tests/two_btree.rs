//! What `2btree` keeps in memory, by the pages that are read.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{Db, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::Purpose;
use spinney_io::sim::SimDisk;

const MEMORY: u64 = 4 << 20;

struct World {
    db: Db,
    main: Keyspace,
    runtime: Runtime,
}

fn key(number: u64) -> Vec<u8> {
    format!("{:04}:{}", number / 5 * 7_919 % 10_000, number % 5).into_bytes()
}

/// A keyspace of 50,000 records, five to a group, whose groups come in no order; twice the memory.
fn world(options: &[(&str, &str)]) -> World {
    let runtime = Runtime::stepped(1);
    let all = Options::default()
        .memory(MEMORY)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(SimDisk::new(1)))
        .runtime(runtime.clone());
    let db = Db::open(Path::new("/db"), all).unwrap();
    let mut own = KeyspaceOptions::default().engine(EngineKind::TwoBTree).logged(false);
    for (name, value) in options {
        own = own.set(name, value).unwrap();
    }
    let main = db.keyspace("main", own).unwrap();
    for number in 0..50_000 {
        main.insert(key(number), [7; 150]).unwrap();
        if number % 100 == 0 {
            runtime.step();
        }
    }
    db.checkpoint().unwrap();
    // After a quiet while what is dirty is merged.
    (0..6_000).for_each(|_| _ = runtime.step());
    World { db, main, runtime }
}

impl World {
    /// Pages that a body reads from disk.
    fn pages(&self, body: impl FnOnce()) -> u64 {
        let read = || self.db.stats().io.by_purpose[Purpose::LOOKUP.index()].read_bytes / 4096;
        let before = read();
        body();
        read() - before
    }

    /// Reads these records, and lets background work run.
    fn read(&self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            assert_eq!(self.main.get(key(number)).unwrap().unwrap().len(), 150);
            if number % 64 == 0 {
                self.runtime.step();
            }
        }
    }

    /// Reads a group whole.
    fn group(&self, number: u64) {
        let begin = key(number * 5);
        let found: Vec<_> =
            self.main.prefix(&begin[..5]).map(|record| record.unwrap().0.to_vec()).collect();
        assert_eq!(found, (0..5).map(|one| key(number * 5 + one)).collect::<Vec<_>>());
    }
}

/// Records that lie far apart are kept singly: as many pages would not fit. With one tier they are not.
#[test]
fn what_is_read_again_is_kept_singly() {
    let spread = || (0..50_000).step_by(10).map(|number| number / 10 * 10);
    let again = |options| {
        let world = world(options);
        (0..3).for_each(|_| world.read(spread()));
        world.pages(|| world.read(spread()))
    };
    let (two, one) = (again(&[("promotion", "1")]), again(&[("tiers", "1")]));
    assert!(two * 4 < one, "{two} pages with two tiers, {one} with one");
    let none = again(&[("promotion", "0")]);
    assert!(none > two * 4, "{none} pages without promotion");
}

/// Groups that were read come from the tier alone (rule H8); a record that comes later is seen.
#[test]
fn short_ranges_end_in_memory() {
    let some = || (0..10_000).step_by(20);
    let again = |world: &World| {
        (0..3).for_each(|_| some().for_each(|number| world.group(number)));
        // Other pages push theirs out.
        world.read((0..50_000).step_by(3).take(4_000));
        world.pages(|| some().for_each(|number| world.group(number)))
    };
    let (promotes, never) = (world(&[("promotion", "1")]), world(&[("promotion", "0")]));
    let (kept, read) = (again(&promotes), again(&never));
    assert!(kept * 3 < read, "{kept} pages for 500 groups, {read} where nothing is promoted");
    let world = promotes;
    let group = key(400 * 5)[..5].to_vec();
    world.main.insert([&group[..], b"9"].concat(), "late").unwrap();
    world.main.remove(key(400 * 5)).unwrap();
    let expected: Vec<_> =
        (1..5).map(|one| key(400 * 5 + one)).chain([[&group[..], b"9"].concat()]).collect();
    for round in 0..3 {
        let found: Vec<_> =
            world.main.prefix(&group).map(|record| record.unwrap().0.to_vec()).collect();
        assert_eq!(found, expected, "round {round}");
        world.db.checkpoint().unwrap();
        (0..50).for_each(|_| _ = world.runtime.step());
    }
}

/// Of a group without a record the tier knows that it has none, as long as it is asked for.
#[test]
fn ranges_without_a_record_end_in_memory() {
    let again = |promotion| {
        let world = world(&[("promotion", promotion)]);
        let read = || {
            for number in 0..300 {
                let group = [&key(number * 100)[..5], b"none"].concat();
                assert!(world.main.prefix(&group).next().is_none());
            }
        };
        (0..3).for_each(|_| read());
        world.read((0..50_000).step_by(3).take(1_000));
        world.pages(read)
    };
    let (kept, read) = (again("1"), again("0"));
    assert!(kept * 3 < read, "{kept} pages for 300 groups, {read} where nothing is promoted");
}

#[test]
fn options_are_checked() {
    let options = || KeyspaceOptions::default().engine(EngineKind::TwoBTree);
    for (name, value) in [("tiers", "3"), ("tier", "9"), ("promotion", "2"), ("page", "8KiB")] {
        let db = Db::in_memory(Options::default()).unwrap();
        let made = options().set(name, value).and_then(|options| db.keyspace("k", options));
        let error = made.unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
