//! The tree against a map: over random changes, write-backs and checkpoints, with few frames, after crashes,
//! and beside readers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use spinney_engine::{Chunk, Direction, Found, ScanRequest};
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_io::{Disk as _, Purpose};

use crate::pages::PageKind;
use crate::world::{Changes, Model, World};

/// Numbers that look random and replay.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn key(random: &mut Random, keys: u64) -> Vec<u8> {
    let number = random.below(keys);
    let mut key = format!("k{:03}/", number % 40).into_bytes();
    key.extend(number.to_be_bytes());
    // Some are long, so that parents fill up.
    key.extend(std::iter::repeat_n(b'x', if number.is_multiple_of(50) { 400 } else { 0 }));
    key
}

fn changes(random: &mut Random, (keys, bytes): (u64, u64), removes: u64) -> Changes {
    let count = 1 + random.below(60);
    (0..count)
        .map(|_| {
            let key = key(random, keys);
            let length = random.below(bytes) as usize;
            let value = (random.below(10) >= removes).then(|| vec![length as u8; length]);
            (key, value)
        })
        .collect()
}

/// Changes, write-backs, checkpoints and crashes: the tree is the map, and after a crash what it was at some
/// moment since the last checkpoint began, for each leaf alone.
fn model_test(seed: u64, order: u8, frames: u64, rounds: usize) {
    let mut random = Random(seed);
    let mut world = World::new(seed, order, frames);
    let mut model = Model::new();
    let (keys, bytes) =
        ([200, 3000, 20_000][seed as usize % 3], [20, 150, 700][seed as usize / 3 % 3]);
    let mut durable = Model::new();
    for round in 0..rounds {
        // It grows, and shrinks again.
        let removes = if round % 400 < 250 { 2 } else { 9 };
        match random.below(100) {
            0..3 => _ = world.tree.fill(&key(&mut random, keys)).unwrap(),
            3..70 => {
                let some = changes(&mut random, (keys, bytes), removes);
                world.merge_into(&mut model, &some).unwrap();
            }
            70..78 => check_range(&world, &model, &mut random, keys),
            78..90 => _ = world.tree.write_back(random.below(30) as usize).unwrap(),
            90..95 => {
                world.checkpoint().unwrap();
                durable.clone_from(&model);
            }
            95..97 if round > 20 => {
                let modes =
                    [CrashMode::Torn512, CrashMode::Torn4K, CrashMode::KeepAll, CrashMode::LoseAll];
                let mode = modes[random.below(4) as usize];
                // Nothing is lost of a checkpoint, and nothing comes back from later.
                let disk = world.disk.crash(mode);
                world = world.reopened(disk, order, frames);
                model.clone_from(&durable);
                world.check(&model);
            }
            _ => {
                let key = key(&mut random, keys);
                let mut value = Vec::new();
                let found = world.tree.get(&key, &mut value).unwrap();
                let expected = model.get(&key);
                assert_eq!(
                    found == Found::Inline,
                    expected.is_some(),
                    "seed {seed}, round {round}"
                );
                assert_eq!(value, expected.cloned().unwrap_or_default());
            }
        }
        if round % 50 == 0 {
            world.check(&model);
        }
    }
    world.check(&model);
    world.checkpoint().unwrap();
    world.checkpoint().unwrap();
    assert_eq!(world.store.held_back().sum(), 0);
    world.check(&model);
}

/// Reads a range in chunks, and compares it with what the map has.
fn check_range(world: &World, model: &Model, random: &mut Random, keys: u64) {
    let bound = |random: &mut Random| match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key(random, keys)),
        _ => Bound::Excluded(key(random, keys)),
    };
    let (lower, upper) = (bound(random), bound(random));
    let direction = if random.below(2) == 0 { Direction::Forward } else { Direction::Reverse };
    let (wanted, most) = (1 + random.below(80) as usize, 1 + random.below(100) as usize);
    let keys_only = random.below(4) == 0;
    let (mut from, mut to) = (lower.clone(), upper.clone());
    let (mut found, mut chunk) = (Vec::new(), Chunk::default());
    loop {
        let request = ScanRequest {
            lower: from.as_ref().map(Vec::as_slice),
            upper: to.as_ref().map(Vec::as_slice),
            direction,
            records_wanted: wanted,
            records_max: most,
            bytes_max: usize::MAX,
            keys_only,
        };
        chunk.clear();
        world.tree.scan(&request, &mut chunk).unwrap();
        assert!(chunk.len() <= wanted.min(most));
        for index in 0..chunk.len() {
            let (key, value) = chunk.get(index);
            found.push((key.to_vec(), value.bytes.to_vec()));
        }
        if chunk.finished {
            break;
        }
        let last = || Bound::Excluded(found.last().expect("it is not finished").0.clone());
        let next = chunk.resume.take().unwrap_or_else(last);
        if direction == Direction::Forward { from = next } else { to = next }
    }
    let all = ScanRequest {
        lower: lower.as_ref().map(Vec::as_slice),
        upper: upper.as_ref().map(Vec::as_slice),
        ..ScanRequest::FIRST_KEY
    };
    let value = |value: &Vec<u8>| if keys_only { Vec::new() } else { value.clone() };
    let mut expected: Vec<_> = (model.iter())
        .filter(|(key, _)| all.contains(key))
        .map(|(key, bytes)| (key.clone(), value(bytes)))
        .collect();
    if direction == Direction::Reverse {
        expected.reverse();
    }
    assert_eq!(found, expected, "{lower:?} to {upper:?}, {direction:?}");
}

#[test]
fn the_tree_is_the_map() {
    for seed in 0..12 {
        model_test(seed, (seed % 3) as u8, [32, 80, 400][seed as usize / 4], 500);
    }
}

/// Keys of the test beside each other.
const KEYS: u64 = 1200;

fn name(number: u64) -> Vec<u8> {
    format!("{:05}", number * 7).into_bytes()
}

/// Every fourth key comes and goes.
fn stays(number: u64) -> bool {
    number % 4 != 3
}

/// Notes the version that a value shows, which is no older than before.
fn see(seen: &mut BTreeMap<Vec<u8>, u64>, key: &[u8], bytes: &[u8]) {
    let version = u64::from_be_bytes(bytes[..8].try_into().unwrap());
    let is_whole = bytes.iter().zip(version.to_be_bytes().iter().cycle()).all(|(a, b)| a == b);
    assert!(is_whole, "a mixture");
    let before = seen.insert(key.to_vec(), version).unwrap_or(0);
    assert!(version >= before, "{key:?}: {version} after {before}");
}

/// Reads some keys, and a range from either end.
fn look(world: &World, random: &mut Random, seen: &mut BTreeMap<Vec<u8>, u64>) {
    for _ in 0..20 {
        let number = random.below(KEYS);
        let mut bytes = Vec::new();
        match world.tree.get(&name(number), &mut bytes).unwrap() {
            Found::Absent => assert!(!stays(number), "key {number} is missing"),
            _ => see(seen, &name(number), &bytes),
        }
    }
    let first = random.below(KEYS - 100);
    let (lower, upper) = (name(first), name(first + 100));
    let mut request = ScanRequest {
        lower: Bound::Included(&lower),
        upper: Bound::Excluded(&upper),
        records_wanted: 1000,
        records_max: 1000,
        bytes_max: usize::MAX,
        keys_only: false,
        ..ScanRequest::FIRST_KEY
    };
    if random.below(2) == 0 {
        request.direction = Direction::Reverse;
    }
    let mut chunk = Chunk::default();
    world.tree.scan(&request, &mut chunk).unwrap();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for index in 0..chunk.len() {
        let (key, value) = chunk.get(index);
        see(seen, key, value.bytes);
        keys.push(key.to_vec());
    }
    if request.direction == Direction::Reverse {
        keys.reverse();
    }
    assert!(keys.is_sorted_by(|one, next| one < next));
    let there = (first..first + 100).filter(|number| stays(*number));
    there.for_each(|number| assert!(keys.binary_search(&name(number)).is_ok()));
}

/// Two threads bring changes of their own keys home, one writes back, one takes checkpoints, and readers see
/// each version whole, none older than before, and no key missing that is always there.
fn beside_each_other(seed: u64, order: u8, frames: u64) {
    let world = World::new(seed, order, frames);
    let value = |number: u64, version: u64| {
        let length = 8 + (number * 31 + version * 57) % 300;
        (version.to_be_bytes().into_iter().cycle().take(length as usize)).collect::<Vec<u8>>()
    };
    let merge = |changes: &Changes| world.merge_into(&mut Model::new(), changes).unwrap();
    merge(
        &(0..KEYS).filter(|number| stays(*number)).map(|n| (name(n), Some(value(n, 0)))).collect(),
    );
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for half in 0..2_u64 {
            let (value, merge, done) = (&value, &merge, &done);
            scope.spawn(move || {
                let mut random = Random(seed * 2 + half);
                for version in 1..400_u64 {
                    let first = half * KEYS / 2 + random.below(KEYS / 2 - 40);
                    let some = (0..=random.below(60)).map(|_| first + random.below(40));
                    let changes = some.map(|number| {
                        let is_put = stays(number) || random_bit(number, version);
                        (name(number), is_put.then(|| value(number, version)))
                    });
                    merge(&changes.collect());
                }
                done.store(true, SeqCst);
            });
        }
        let (world, done) = (&world, &done);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                world.tree.write_back(20).unwrap();
            }
        });
        scope.spawn(move || {
            while !done.load(SeqCst) {
                world.checkpoint().unwrap();
            }
        });
        for reader in 0..2 {
            scope.spawn(move || {
                let mut random = Random(seed + 100 + reader);
                let mut seen = BTreeMap::new();
                while !done.load(SeqCst) {
                    look(world, &mut random, &mut seen);
                }
            });
        }
    });
    let mut last = Model::new();
    world.tree.walk(&mut |key, value, _| _ = last.insert(key.to_vec(), value.to_vec())).unwrap();
    world.check(&last);
    world.checkpoint().unwrap();
    let reopened = world.reopened(world.disk.crash(CrashMode::LoseAll), order, frames);
    reopened.check(&last);
}

/// New pages and changed ones lie side by side in the order of their keys, so few requests write them, and read them
/// again.
#[test]
fn pages_that_are_written_lie_side_by_side() {
    for order in [0, 2] {
        let world = World::new(1, order, 300);
        let (mut model, mut random) = (Model::new(), Random(9));
        for _ in 0..90 {
            world.merge_into(&mut model, &changes(&mut random, (4000, 300), 0)).unwrap();
        }
        let before = world.disk.writes();
        let pages = world.tree.write_back(usize::MAX).unwrap() as u64;
        let requests = world.disk.writes() - before;
        assert!(
            pages >= 30 && requests * 4 <= pages,
            "{order}: {pages} pages in {requests} writes"
        );
        world.check(&model);
    }
}

/// Who waits at the gate with new pages in hand is not waited for.
#[test]
fn a_checkpoint_waits_for_no_page_that_nothing_names() {
    let world = World::new(1, 0, 32);
    let held = world.tree.pages.fresh(PageKind::Leaf, 2).unwrap();
    world.checkpoint().unwrap();
    assert_eq!(world.tree.write_back(9).unwrap(), 0);
    drop(held);
    world.check(&Model::new());
}

fn random_bit(number: u64, version: u64) -> bool {
    (number ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15)).count_ones().is_multiple_of(2)
}

#[test]
fn readers_miss_nothing_beside_changes() {
    for (seed, order, frames) in [(1, 0, 48), (2, 0, 200), (3, 2, 48), (4, 1, 60)] {
        beside_each_other(seed, order, frames);
    }
}

/// Random steps until the power goes, at each of many moments: what is there afterwards is the last
/// checkpoint, or the one that was under way.
#[test]
fn a_crash_leaves_a_checkpoint() {
    let mut states = BTreeMap::new();
    for seed in 0..60 {
        let (order, frames) = ((seed % 3) as u8, [32, 80, 400][seed as usize / 3 % 3]);
        let mut random = Random(seed);
        let world = World::new(seed, order, frames);
        world
            .disk
            .cut_power_at(world.disk.steps() + random.below(if seed % 2 == 0 { 60 } else { 900 }));
        let (mut model, mut durable) = (Model::new(), [Model::new(), Model::new()]);
        loop {
            let result = match random.below(20) {
                0 => {
                    durable[1].clone_from(&model);
                    world.checkpoint().map(|()| durable[0].clone_from(&model))
                }
                1..4 => world.tree.write_back(random.below(30) as usize).map(|_| ()),
                _ => {
                    let some = changes(&mut random, (3000, 300), 3);
                    world.merge_into(&mut model, &some)
                }
            };
            if let Err(error) = result {
                assert!(SimDisk::is_power_cut(&error) || world.disk.power_is_off(), "{error}");
                break;
            }
        }
        world
            .disk
            .states_at_power_cut()
            .into_iter()
            .for_each(|state| *states.entry(state).or_insert(0) += 1);
        let modes = [CrashMode::Torn512, CrashMode::Torn4K, CrashMode::KeepAll, CrashMode::LoseAll];
        for mode in modes {
            let left = world.reopened(world.disk.crash(mode), order, frames);
            let mut found = Model::new();
            left.tree
                .walk(&mut |key, value, _| _ = found.insert(key.to_vec(), value.to_vec()))
                .unwrap();
            assert!(durable.contains(&found), "seed {seed}, {mode:?}: {} records", found.len());
            left.check(&found);
            // And it goes on.
            left.merge_into(&mut found, &changes(&mut random, (3000, 300), 3)).unwrap();
            left.checkpoint().unwrap();
            left.check(&found);
        }
    }
}

/// A disk that is full for a while loses nothing, and goes on when there is room.
#[test]
fn a_full_disk_loses_nothing() {
    let mut refused = 0;
    for seed in 0..12 {
        let (order, frames) = ((seed % 3) as u8, [32, 80, 400][seed as usize / 4]);
        let mut random = Random(seed);
        let world = World::new(seed, order, frames);
        let mut model = Model::new();
        for round in 0..300 {
            match round % 60 {
                20 => world.disk.set_capacity(Some(world.disk.used() + random.below(200_000))),
                50 => {
                    world.disk.set_capacity(None);
                    world.checkpoint().unwrap();
                    world.check(&model);
                }
                _ => {}
            }
            let result = match random.below(10) {
                0 => world.checkpoint(),
                1 => world.tree.write_back(20).map(|_| ()),
                _ => {
                    let some = changes(&mut random, (3000, 300), 3);
                    world.merge_into(&mut model, &some)
                }
            };
            if let Err(error) = result {
                assert!(error.is_full(), "{error}");
                refused += 1;
            }
            check_range(&world, &model, &mut random, 3000);
        }
        world.disk.set_capacity(None);
        world.check(&model);
        world.checkpoint().unwrap();
        let left = world.reopened(world.disk.crash(CrashMode::LoseAll), order, frames);
        left.check(&model);
    }
    assert!(refused > 30, "{refused}");
}

/// Groups of keys that share nearly all of the longest key that there is, and nothing with other groups:
/// separators are as long as keys.
#[test]
fn long_separators_fit() {
    for order in 0..3 {
        let world = World::new(1, order, 120);
        let mut model = Model::new();
        for step in 0..200_u8 {
            let group = step.wrapping_mul(77);
            let key = |number: u8| [&[group][..], &[b'p'; 1022], &[number]].concat();
            let some = (0..12).map(|number| (key(number * 16), Some(vec![number; 300])));
            world.merge_into(&mut model, &some.collect()).unwrap();
        }
        world.check(&model);
        let pages = || {
            let walked = world.tree.walk(&mut |_, _, _| {}).unwrap();
            walked.leaves + walked.nodes
        };
        let before = pages();
        let removed: Changes = model.keys().step_by(2).map(|key| (key.clone(), None)).collect();
        world.merge_into(&mut model, &removed).unwrap();
        world.checkpoint().unwrap();
        world.check(&model);
        let removed: Changes = model.keys().map(|key| (key.clone(), None)).collect();
        world.merge_into(&mut model, &removed).unwrap();
        world.check(&model);
        // Where two entries fill a node, some nodes find no neighbour with room.
        assert!(pages() * 3 < before, "{} pages of {before}", pages());
    }
}

#[test]
fn a_scrub_reads_every_page() {
    let world = World::new(1, 0, 400);
    let mut model = Model::new();
    for group in 0..200_u8 {
        let key = |number: u8| [&[group][..], &[b'p'; 400], &[number]].concat();
        let some = (0..40).map(|number| (key(number), Some(vec![number; 300])));
        world.merge_into(&mut model, &some.collect()).unwrap();
    }
    world.checkpoint().unwrap();
    assert!(world.tree.root.see().level > 2);
    let (mut read, mut from) = (BTreeMap::new(), Some(Vec::new()));
    while let Some(at) = from {
        from = (world.tree)
            .scrub(&at, &mut |place, result| {
                result.unwrap();
                *read.entry(place.page).or_insert(0) += 1;
            })
            .unwrap();
    }
    let mut owned = BTreeMap::new();
    world.tree.owned(&mut |extent, _| _ = owned.insert(extent.page, 1)).unwrap();
    assert_eq!(read, owned, "each page once");
}

/// A fresh page is replaced while it is being written to its own place: whoever gets that place next would
/// find the late write upon what is there.
#[test]
fn places_stay_while_they_are_written() {
    let world = World::new(1, 0, 200);
    let pages = &world.tree.pages;
    let fresh = pages.allocate(3).unwrap();
    let under_way = pages.begin_write(fresh.iter().copied());
    fresh.iter().for_each(|place| pages.let_go(*place));
    let others = pages.allocate(64).unwrap();
    assert!(others.iter().all(|place| fresh.iter().all(|kept| kept.page != place.page)));
    drop(under_way);
    let later = pages.allocate(64).unwrap();
    assert!(fresh.iter().all(|gone| later.iter().any(|place| gone.page == place.page)));
}

/// What divides leaves spreads them over their neighbours, so that they are three quarters full.
#[test]
fn leaves_that_are_divided_are_repacked() {
    for (order, at_once) in [(0, 1), (0, 300), (2, 40)] {
        let mut random = Random(order.into());
        let world = World::new(3, order, 4000);
        let mut model = Model::new();
        while model.len() < 20_000 {
            let new = || (random.below(1 << 31).to_be_bytes()[4..].to_vec(), Some(vec![7; 112]));
            let some = std::iter::repeat_with(new).take(at_once).collect();
            world.merge_into(&mut model, &some).unwrap();
        }
        world.checkpoint().unwrap();
        let walked = world.tree.walk(&mut |_, _, _| {}).unwrap();
        let room = walked.leaves * (4096 << order) / 8;
        let fill = walked.words * 100 / room;
        println!("pages of order {order}, {at_once} at once: {fill} %");
        assert!(fill >= 74, "pages of order {order}, {at_once} at once: {fill} %");
        world.check(&model);
    }
}

/// A compaction fills leaves and lays them side by side, step by step, and changes no record; with few frames,
/// too. A second one finds little to do.
#[test]
fn a_compaction_fills_leaves() {
    for (order, frames) in [(0, 40), (0, 4000), (2, 120)] {
        let mut random = Random(7);
        let world = World::new(3, order, frames);
        let mut model = Model::new();
        for round in 0..300 {
            let some = changes(&mut random, (20_000, 150), if round < 200 { 1 } else { 6 });
            world.merge_into(&mut model, &some).unwrap();
        }
        let every_other = model.keys().step_by(2).map(|key| (key.clone(), None)).collect();
        world.merge_into(&mut model, &every_other).unwrap();
        world.checkpoint().unwrap();
        let leaves = || {
            let walked = world.tree.walk(&mut |_, _, _| {}).unwrap();
            (walked.leaves, walked.words)
        };
        let fill = || {
            let (mut from, mut looked) = (Some(Vec::new()), 0);
            while let Some(key) = from {
                let filled = world.tree.fill(&key).unwrap();
                assert!(filled.leaves > 0 && filled.next.as_ref().is_none_or(|next| *next > key));
                (from, looked) = (filled.next, looked + filled.leaves);
            }
            looked
        };
        let before = leaves().0;
        assert_eq!(fill(), before);
        world.check(&model);
        world.checkpoint().unwrap();
        let (after, words) = leaves();
        let room = after * ((4096 << order) / 8 - 4);
        assert!(words * 10 > room * 7, "{words} words of {room}, {before} leaves and then {after}");
        assert!(after < before, "{before} leaves, and then {after}");
        let (mut pages, step) = (Vec::new(), 1 << order);
        world.tree.owned(&mut |extent, _| pages.push(extent.page.0)).unwrap();
        let beside = pages.windows(2).filter(|pair| pair[1].abs_diff(pair[0]) == step).count();
        assert!(beside * 2 > pages.len(), "{beside} of {} lie side by side", pages.len());
        // Regions begin elsewhere then.
        fill();
        let again = leaves().0;
        assert!(again <= after + after / 20, "{after} leaves, and then {again}");
        world.checkpoint().unwrap();
        world.check(&model);
    }
}

/// H19: memory that becomes less under changed pages leaves frames for the nodes above them; without, nobody finds a
/// leaf, and nothing is written any more.
#[test]
fn h19_less_memory_under_changed_pages() {
    let (order, frames, few) = (0, 600, 60);
    let (world, mut model) = (World::new(1, order, frames), Model::new());
    let all: Changes = (0..6000).map(|number| (name(number), Some(vec![1; 200]))).collect();
    world.merge_into(&mut model, &all).unwrap();
    world.checkpoint().unwrap();
    let cache = world.tree.pages.file().cache();
    let some = (0..6000).step_by(20).map(|number| (name(number), Some(vec![2; 200]))).collect();
    world.merge_into(&mut model, &some).unwrap();
    let (dirty, less) = (cache.dirty_bytes(), few * cache.frame_bytes());
    assert!(dirty > 3 * less, "{dirty} bytes are dirty");
    cache.set_bytes(less);
    for (key, value) in &model {
        let mut out = Vec::new();
        assert_eq!(world.tree.get(key, &mut out).unwrap(), Found::Inline);
        assert_eq!(out, *value);
    }
    assert_eq!(cache.dirty_bytes(), dirty);
    assert!(cache.used() <= dirty / 2 * 3, "{} bytes for {dirty} dirty ones", cache.used());
    // The next change has them written first.
    world.merge_into(&mut model, &Changes::from([(name(3), Some(vec![3; 200]))])).unwrap();
    cache.set_bytes(less);
    assert!(cache.used() <= less, "{} bytes", cache.used());
    world.checkpoint().unwrap();
    world.check(&model);
}

/// The leaves of a range are read together, and none beyond it.
#[test]
fn ranges_read_ahead() {
    for order in [0, 2] {
        let (world, mut model) = (World::new(1, order, 400), Model::new());
        let all: Changes = (0..9000).map(|number| (name(number), Some(vec![1; 200]))).collect();
        world.merge_into(&mut model, &all).unwrap();
        world.checkpoint().unwrap();
        let world = world.reopened(world.disk.crash(CrashMode::LoseAll), order, 400);
        // Calls and bytes that read what a range needs, and its records.
        let read = |direction: Direction, (from, to): (u64, u64), records: usize| {
            let cache = world.tree.pages.file().cache();
            cache.evict_to(0);
            let (lower, upper) = (name(from), name(to));
            let request = ScanRequest {
                lower: Bound::Included(&lower),
                upper: Bound::Excluded(&upper),
                direction,
                records_wanted: records,
                records_max: records,
                bytes_max: usize::MAX,
                keys_only: false,
            };
            let counts = || {
                let counts = world.disk.counters().snapshot();
                let of = counts.by_purpose[Purpose::LOOKUP.index()];
                (of.reads, of.read_bytes >> (12 + order))
            };
            let before = counts();
            let mut chunk = Chunk::default();
            world.tree.scan(&request, &mut chunk).unwrap();
            let after = counts();
            (after.0 - before.0, after.1 - before.1, chunk.len())
        };
        for direction in [Direction::Forward, Direction::Reverse] {
            // The first range learns how long leaves are.
            read(direction, (0, 9000), 100);
            let (calls, pages, records) = read(direction, (100, 8000), 1000);
            assert_eq!(records, 1000);
            let leaves = 1000 * 220 / (4096 << order) as u64;
            assert!(pages >= leaves, "{pages} pages of {leaves}");
            assert!(pages <= leaves * 2 + 8, "{pages} pages of {leaves}");
            assert!(calls * 4 <= pages * 3, "order {order}: {calls} calls for {pages} pages");
            let (_, pages, records) = read(direction, (4000, 4030), 1000);
            assert_eq!(records, 30);
            assert!(
                pages <= 30 * 220 / (4096 << order) as u64 * 2 + 4,
                "{pages} pages for 30 records"
            );
        }
    }
}

/// Walks and checkpoints read pages whose frames others take meanwhile: what they have read counts if it is still there (P27).
#[test]
fn p27_walks_beside_readers_see_no_other_page() {
    let (order, frames) = (0, 64);
    let (world, mut model) = (World::new(1, order, frames), Model::new());
    // Few records to a page, so that nodes are many.
    let name = |number: u32| format!("{number:0>300}").into_bytes();
    let all: Changes = (0..3000).map(|number| (name(number), Some(vec![1; 300]))).collect();
    world.merge_into(&mut model, &all).unwrap();
    world.checkpoint().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (world, is_done) = (&world, &is_done);
            scope.spawn(move || {
                let mut random = spinney_base::runtime::SplitMix(thread);
                while !is_done.load(SeqCst) {
                    let key = name(random.below(3000) as u32);
                    let found = world.tree.get(&key, &mut Vec::new());
                    assert_eq!(found.unwrap(), Found::Inline);
                }
            });
        }
        let mut work = || -> spinney_base::Result<()> {
            for round in 0..120 {
                assert_eq!(world.tree.walk(&mut |_, _, _| ())?.records, 3000);
                let mut owned = 0;
                world.tree.owned(&mut |_, _| owned += 1)?;
                assert_eq!(owned, world.tree.pages());
                if round % 4 == 0 {
                    let some =
                        (round..3000).step_by(90).map(|number| (name(number), Some(vec![2; 300])));
                    world.merge_into(&mut model, &some.collect())?;
                    world.checkpoint()?;
                }
            }
            Ok(())
        };
        let result = work();
        is_done.store(true, SeqCst);
        result.unwrap();
    });
    world.check(&model);
}
