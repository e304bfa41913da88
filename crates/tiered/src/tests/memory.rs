//! What of the memory is for single records, and what for pages.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use spinney_base::ValueRef;
use spinney_engine::{Chunk, Engine as _, Found, Maintain as _, ScanRequest, SnapshotNumber};

use super::{World, key, value};

const MEMORY: u64 = 8 << 20;
/// Records: five times the memory.
const COUNT: u64 = 300_000;

fn loaded() -> World {
    let world = World::new(MEMORY);
    (0..COUNT).for_each(|number| world.put(&key(number), &value(number, 1)));
    world.empty_tier();
    world.checkpoint();
    world
}

/// Percent of the memory that the tier may have, after some time.
fn of_tier(world: &World) -> u64 {
    world.engine.context.runtime.sleep(Duration::from_millis(600));
    world.engine.background().unwrap();
    world.engine.hot.target() * 100 / MEMORY
}

/// Returns how many of up to 400 records there are.
fn scan(world: &World, from: u64) -> u64 {
    let request = ScanRequest {
        lower: Bound::Included(&key(from)),
        records_wanted: 400,
        records_max: 400,
        bytes_max: usize::MAX,
        keys_only: false,
        ..ScanRequest::FIRST_KEY
    };
    let mut chunk = Chunk::default();
    world.engine.scan(&request, &mut chunk).unwrap();
    chunk.len() as u64
}

/// Long ranges over half as many pages as fit want pages; lookups of single records that lie far apart want records.
#[test]
fn memory_goes_to_where_it_is_worth_more() {
    let world = loaded();
    let mut random = 1_u64;
    let mut draw = |of: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % of
    };
    let begin = of_tier(&world);
    assert!(begin >= 80, "{begin} %");
    for _ in 0..60 {
        (0..60).for_each(|_| assert!(scan(&world, draw(COUNT / 10)) > 0));
        of_tier(&world);
    }
    let scanned = of_tier(&world);
    assert!(scanned <= 60, "{scanned} % for records, though ranges are read");
    for _ in 0..200 {
        for _ in 0..2000 {
            let number = draw(COUNT / 4) * 4;
            assert_eq!(world.get(&key(number)), Some(value(number, 1)));
        }
        of_tier(&world);
    }
    let looked_up = of_tier(&world);
    assert!(looked_up >= 80, "{looked_up} % for records, though only these are asked for");
}

/// With exclusive tiering a promoted record is in the tier alone, also after a power loss, until it leaves that.
#[test]
fn exclusive_records_are_in_one_tier_at_a_time() {
    let world = World::new(MEMORY);
    let mut model = BTreeMap::new();
    for number in 0..2000 {
        world.put(&key(number), &value(number, 1));
        model.insert(key(number), value(number, 1));
    }
    world.empty_tier();
    world.checkpoint();
    for option in [("tiering", "exclusive"), ("promotion", "1")] {
        world.engine.set_option(option.0, option.1).unwrap();
    }
    let of_tree = |number: u64| {
        let tree = world.engine.tree().unwrap();
        tree.get(&key(number), &mut Vec::new()).unwrap() != Found::Absent
    };
    let asked: Vec<u64> = (0..2000).step_by(9).collect();
    for number in &asked {
        assert_eq!(world.get(&key(*number)), Some(value(*number, 1)));
    }
    // Where a leaf of the tier was divided meanwhile, the record is not promoted.
    let gone = asked.iter().filter(|number| !of_tree(**number)).count() as u64;
    assert!(gone * 10 > asked.len() as u64 * 9, "{gone} of {} left the tree", asked.len());
    assert_eq!(world.engine.hot.dirty(), gone);
    world.check(&model);
    world.after_crash(MEMORY).unwrap().check(&model);
    world.checkpoint();
    world.after_crash(MEMORY).unwrap().check(&model);
    // A checkpoint that has its image lets no record leave the tree.
    world.empty_tier();
    world
        .checkpoint_beside(|| {
            assert!(world.get(&key(1)).is_some() && of_tree(1), "it is in neither")
        })
        .unwrap();
    world.after_crash(MEMORY).unwrap().check(&model);
    world.empty_tier();
    assert!(asked.iter().all(|number| of_tree(*number)));
    world.checkpoint();
    world.after_crash(MEMORY).unwrap().check(&model);
}

/// Records go to and fro between the tiers, and are in one of them for every reader.
#[test]
fn h21_records_that_change_tiers_are_never_missed() {
    let world = World::new(MEMORY);
    (0..64).for_each(|number| world.put(&key(number), &value(number, 1)));
    world.empty_tier();
    for option in [("tiering", "exclusive"), ("promotion", "1")] {
        world.engine.set_option(option.0, option.1).unwrap();
    }
    let read = |reader: u64| {
        for round in 0..1_600_000_u64 {
            // All look for the same one, or each for any.
            let number = if round % 8 > 0 { 3 } else { (round / 8 * 7 + reader * 13) % 64 };
            assert_eq!(world.get(&key(number)), Some(value(number, 1)), "round {round}");
            if round % 16 == 0 {
                assert_eq!(scan(&world, number), 64 - number, "round {round}");
            }
        }
    };
    std::thread::scope(|scope| {
        let readers = [0, 1, 2].map(|reader| scope.spawn(move || read(reader)));
        while !readers.iter().all(|reader| reader.is_finished()) {
            world.engine.bring_all_home().unwrap();
            world.engine.hot.let_all_leave();
            // A sweep under way lets no record leave the tree.
            (0..2000).for_each(|_| std::hint::spin_loop());
        }
    });
    println!("{} records left the tree", world.engine.left_tree());
    assert!(world.engine.left_tree() > 100, "{} changed tiers", world.engine.left_tree());
}

/// A keyspace whose share is less than a step needs gives the frames of its steps back.
#[test]
fn frames_above_the_share_are_lent() {
    let share = 400 << 10;
    let world = World::new(share);
    (0..8000).for_each(|number| world.put(&key(number), &value(number, 1)));
    world.empty_tier();
    world.checkpoint();
    let used = || world.engine.hot.bytes() + world.engine.pages.cache().unwrap().used();
    (0..8000).for_each(|number| assert!(world.get(&key(number)).is_some()));
    assert!(used() > share, "{} bytes", used());
    world.engine.background().unwrap();
    assert!(used() <= share, "{} bytes", used());
    assert_eq!(world.verify().unwrap(), 8000);
}

/// H19: the table of a long file takes more than the least memory of pages, which stays what steps need.
#[test]
fn h19_a_long_file_leaves_frames_for_a_step() {
    let world = World::new(1 << 20);
    // Pages behind these have entries in the table behind theirs: 4 bytes for each of 2^20.
    let store = world.engine.store();
    let mut others: Vec<_> = (0..32).map(|_| store.allocate(15).unwrap().0).collect();
    while others[others.len() - 1].page <= others[31].page {
        others.push(store.allocate(0).unwrap().0);
    }
    // Keys whose separators are long, so that inner nodes are many.
    let key = |number: u64| -> Vec<u8> {
        (0..13).rev().flat_map(|bit| [(number >> bit) as u8 & 1; 60]).collect()
    };
    let mut load = world.engine.bulk().unwrap();
    let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    for number in 0..6000 {
        load.push(&key(number), ValueRef::inline(&value(number, 1))).unwrap();
        world.engine.follow_memory();
        model.insert(key(number), value(number, 1));
    }
    load.install(SnapshotNumber::NONE).unwrap();
    for number in (0..6000).step_by(7) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
        world.engine.background().unwrap();
    }
    world.empty_tier();
    others.into_iter().for_each(|extent| store.release(extent));
    world.check(&model);
    world.checkpoint();
    world.after_crash(1 << 20).unwrap().check(&model);
}

/// Leaves of records that come in order are full, and so are the nodes above them: from a load, and from sweeps.
#[test]
fn records_in_order_fill_their_pages() {
    const COUNT: u64 = 40_000;
    let fill = |world: &World| {
        let of_record = key(0).len() + value(0, 1).len();
        let tree = world.engine.tree().unwrap();
        assert_eq!(tree.get(&key(COUNT - 1), &mut Vec::new()).unwrap(), Found::Inline);
        COUNT * of_record as u64 * 100 / (tree.pages() * tree.page_bytes())
    };
    let world = World::new(MEMORY);
    let mut load = world.engine.bulk().unwrap();
    for number in 0..COUNT {
        load.push(&key(number), ValueRef::inline(&value(number, 1))).unwrap();
    }
    load.install(SnapshotNumber::NONE).unwrap();
    assert!(fill(&world) >= 80, "{} %", fill(&world));
    let world = World::new(MEMORY / 4);
    (0..COUNT).for_each(|number| world.put(&key(number), &value(number, 1)));
    world.empty_tier();
    assert!(fill(&world) >= 80, "{} %", fill(&world));
}

/// What is dirty after a load is in the way of what is read: readers merge it themselves, once the background has seen
/// that, and until one in eight is left.
#[test]
fn readers_make_their_own_room() {
    let world = loaded();
    let tier = &world.engine.hot;
    for number in 0..COUNT {
        world.put(&key(number * 7_919 % COUNT), &value(number, 2));
    }
    let read = |numbers: std::ops::Range<u64>| {
        numbers.for_each(|number| assert!(world.get(&key(number * 613 % COUNT)).is_some()));
    };
    world.engine.background().unwrap();
    let before = tier.dirty();
    read(0..80_000);
    assert!(tier.dirty() * 4 > tier.len(), "{} are dirty", tier.dirty());
    assert_eq!(tier.dirty(), before, "nobody has seen that readers lack room");
    world.engine.background().unwrap();
    read(80_000..200_000);
    assert!(tier.dirty() * 6 < tier.len(), "{} of {} are dirty", tier.dirty(), tier.len());
    assert_eq!(world.verify().unwrap(), COUNT);
}
