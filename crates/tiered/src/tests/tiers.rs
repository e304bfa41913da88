//! What the two tiers owe each other (rules H1, H4 to H7 and H17).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use spinney_base::runtime::SplitMix;
use spinney_base::shim::thread::spawn;
use spinney_engine::{Chunk, Engine as _, Found, ScanRequest, SnapshotNumber, Write};
use spinney_hot::{Hand, Records};
use spinney_io::Purpose;
use spinney_io::sim::{Call, Fault};
use spinney_sync::hash_key;

use super::{KEYSPACE, World, key, value};
use crate::engine::TIER_BYTES_MIN;

const MEMORY: u64 = 2 << 20;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree that is several times as large as the memory, under an empty tier.
fn cold() -> (World, Model) {
    let world = World::new(MEMORY);
    let model: Model = (0..40_000).map(|number| (key(number), value(number, 1))).collect();
    model.iter().for_each(|(key, value)| world.put(key, value));
    world.empty_tier();
    world.checkpoint();
    (world, model)
}

fn in_tree(world: &World, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = world.engine.tree().unwrap().get(key, &mut out).unwrap();
    (found == Found::Inline).then_some(out)
}

/// A sweep that cannot read the leaves of some of its records loses none of them.
#[test]
fn h1_a_record_stays_until_its_leaf_has_it() {
    let (world, mut model) = cold();
    for number in (0..40_000).step_by(400) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    let mut failed = 0;
    for read in [1, 2, 30, 60] {
        // What is read ahead in vain is read once more.
        let at = world.disk.reads() + read;
        (at..at + 80).for_each(|at| world.disk.inject(Fault::ReadError { at }));
        failed += u64::from(world.engine.bring_all_home().is_err());
        for (key, value) in model.iter().step_by(400) {
            assert_eq!(world.get(key).as_ref(), Some(value), "after read {read} failed");
        }
    }
    assert!(failed > 1, "{failed} sweeps failed");
    while world.engine.bring_all_home().is_err() {}
    world.empty_tier();
    world.check(&model);
}

/// A put needs nothing of the tree: it reads nothing, and what was reserved for it suffices.
#[test]
fn h6_a_put_of_what_only_the_tree_has_cannot_fail() {
    let (world, mut model) = cold();
    let room = world.engine.hot.target();
    let mut prepared = Vec::new();
    for number in (0..40_000).step_by(100) {
        let (key, value) = (key(number), value(number, 2));
        let hash = hash_key(KEYSPACE, &key);
        let write = Write { key: &key, hash, value: Some(spinney_base::ValueRef::inline(&value)) };
        let ready = world.engine.prepare(&write).unwrap();
        prepared.push((key, value, ready));
    }
    let (reads, writes) = (world.disk.reads(), world.disk.writes());
    for (key, value, ready) in prepared {
        let hash = hash_key(KEYSPACE, &key);
        let write = Write { key: &key, hash, value: Some(spinney_base::ValueRef::inline(&value)) };
        world.engine.apply(&write, ready, spinney_base::Lsn::ZERO, SnapshotNumber::NONE);
        model.insert(key, value);
    }
    assert_eq!((world.disk.reads(), world.disk.writes()), (reads, writes));
    assert_eq!(world.engine.hot.dirty(), 400);
    assert!(world.engine.hot.bytes() <= room);
    world.empty_tier();
    assert_eq!(in_tree(&world, &key(100)), Some(value(100, 2)));
    world.check(&model);
}

/// Batches that hold room get no more than there is.
#[test]
fn h6_room_is_promised_once() {
    let world = World::new(MEMORY);
    let bytes = vec![1; 1000];
    let mut promised = 0;
    for number in 0.. {
        let key = key(number);
        let value = Some(spinney_base::ValueRef::inline(&bytes));
        let write = Write { key: &key, hash: hash_key(KEYSPACE, &key), value };
        let Ok(_ready) = world.engine.prepare(&write) else { break };
        promised += 1000;
        assert!(promised <= MEMORY, "nothing was put, so nothing can make room");
    }
    assert!(promised >= TIER_BYTES_MIN / 2, "{promised} bytes");
}

/// A removal hides what the tree has until the tree has lost it, and is not needed any more then.
#[test]
fn h7_a_removal_reaches_the_tree() {
    let (world, mut model) = cold();
    // One that only the tree has, one that the tier has read, one that it has put, and one that is nowhere.
    assert!(world.get(&key(7)).is_some());
    world.put(&key(8), &value(8, 2));
    for number in [6, 7, 8, 50_000] {
        world.remove(&key(number));
        model.remove(&key(number));
        assert_eq!(world.get(&key(number)), None);
    }
    assert_eq!(in_tree(&world, &key(7)), Some(value(7, 1)));
    world.engine.bring_all_home().unwrap();
    for number in [6, 7, 8, 50_000] {
        assert_eq!((in_tree(&world, &key(number)), world.get(&key(number))), (None, None));
    }
    assert_eq!(world.engine.hot.dirty(), 0);
    world.empty_tier();
    world.check(&model);
    world.checkpoint();
    world.after_crash(MEMORY).unwrap().check(&model);
}

/// Records of one key each, whose versions count up.
struct Counting {
    world: World,
    known: Vec<AtomicU64>,
    is_done: AtomicBool,
}

impl Counting {
    fn version(bytes: &[u8]) -> u64 {
        let digits = bytes.split(|byte| *byte == b'/').next().unwrap();
        std::str::from_utf8(digits).unwrap().parse().unwrap()
    }

    fn known(&self, number: u64) -> u64 {
        self.known[usize::try_from(number).unwrap()].load(SeqCst)
    }

    fn put_next(&self, number: u64) {
        let next = self.known(number) + 1;
        self.world.put(&key(number), &value(number, next));
        self.known[usize::try_from(number).unwrap()].store(next, SeqCst);
    }

    fn read(&self, number: u64) {
        let known = self.known(number);
        let found = self.world.get(&key(number)).map_or(0, |found| Self::version(&found));
        assert!(found >= known, "key {number}: version {found} of {known}");
    }

    fn scan(&self, numbers: std::ops::Range<u64>) {
        let known: Vec<u64> = numbers.clone().map(|number| self.known(number)).collect();
        let lower = key(numbers.start);
        let request = ScanRequest {
            lower: Bound::Included(&lower),
            records_wanted: known.len(),
            records_max: known.len(),
            bytes_max: usize::MAX,
            keys_only: false,
            ..ScanRequest::FIRST_KEY
        };
        let mut chunk = Chunk::default();
        self.world.engine.scan(&request, &mut chunk).unwrap();
        assert_eq!(chunk.len(), known.len());
        for (index, number) in numbers.enumerate() {
            let (of, value) = chunk.get(index);
            assert_eq!(of, key(number));
            let found = Self::version(value.bytes);
            assert!(found >= known[index], "key {number}: version {found} of {}", known[index]);
        }
    }

    fn sweep(&self) {
        self.world.engine.bring_all_home().unwrap();
        self.world.engine.hot.let_all_leave();
    }
}

/// A sweep has copied a record, which is put again while it reads leaves of others. Another sweep that takes the new one
/// along must not bring it home before the first has ended.
#[test]
fn h17_a_sweep_waits_for_another_of_the_same_records() {
    let (world, mut model) = cold();
    let world = Arc::new(world);
    for number in (0..40_000).step_by(200) {
        world.put(&key(number), &value(number, 2));
        model.insert(key(number), value(number, 2));
    }
    // In the same sweep as the first ones, but its leaf is not read together with theirs.
    let late = 60 * 200;
    let (sender, ended) = channel();
    let beside = world.clone();
    world.disk.act_inside(Call::Read(Purpose::WRITE_BACK), move || {
        beside.put(&key(late), &value(late, 3));
        let done = sender.clone();
        let sweep = move || {
            beside.engine.bring_all_home().unwrap();
            done.send(()).ok();
        };
        _ = spawn("sweep", sweep).unwrap();
        // It waits for the one in whose read this is.
        std::thread::sleep(Duration::from_millis(300));
    });
    world.engine.bring_all_home().unwrap();
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
    model.insert(key(late), value(late, 3));
    world.empty_tier();
    assert_eq!(in_tree(&world, &key(late)), Some(value(late, 3)));
    world.check(&model);
}

/// Points and ranges look at the tier and then at the tree: what leaves the tier meanwhile is in its leaf. Two that
/// sweep beside each other never bring an older version home after a newer one.
fn nobody_reads_backwards(sweepers: usize, rounds: u64) {
    let known = (0..64).map(|_| AtomicU64::new(0)).collect();
    let counting = Counting { world: World::new(MEMORY), known, is_done: AtomicBool::new(false) };
    let counting = &counting;
    (0..64).for_each(|number| counting.put_next(number));
    std::thread::scope(|scope| {
        for _ in 0..sweepers {
            scope.spawn(|| {
                while !counting.is_done.load(SeqCst) {
                    counting.sweep();
                }
            });
        }
        let reader = scope.spawn(move || {
            for round in 0..rounds {
                // Half of the time the one that the writer changes.
                counting.read(if round % 2 == 0 { 5 } else { round % 64 });
                if round % 16 == 15 {
                    counting.scan(round % 47..round % 47 + 16);
                } else if round % 2 == 1 {
                    // Short, so that most of its time is between the two looks.
                    counting.scan(4..7);
                }
            }
        });
        for round in 0_u64.. {
            if reader.is_finished() {
                break;
            }
            counting.put_next(if round.is_multiple_of(2) { 5 } else { round % 64 });
        }
        counting.is_done.store(true, SeqCst);
        reader.join().unwrap();
    });
    counting.sweep();
    for number in 0..64 {
        let found = in_tree(&counting.world, &key(number)).unwrap();
        assert_eq!(Counting::version(&found), counting.known(number), "key {number}");
    }
}

#[test]
fn h4_readers_look_at_the_tier_first() {
    nobody_reads_backwards(1, 400_000);
}

#[test]
fn h17_sweeps_beside_each_other_keep_the_newest() {
    nobody_reads_backwards(2, 100_000);
}

/// Pages that a write-back has allocated, and that nothing names yet, are no damage.
#[test]
fn h25_a_verification_beside_write_backs_finds_nothing() {
    let (world, _) = cold();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 2.. {
                for number in (0..40_000).step_by(500) {
                    world.put(&key(number), &value(number, round));
                }
                world.engine.bring_all_home().unwrap();
                while world.engine.tree().unwrap().write_back(4).unwrap() > 0 {}
                if is_done.load(SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..15 {
            let verified = world.verify();
            is_done.store(verified.is_err(), SeqCst);
            assert_eq!(verified.unwrap(), 40_000);
        }
        is_done.store(true, SeqCst);
    });
}

/// Short ranges close gaps, whatever their bounds are, and what leaves opens them: each range has what the model has.
#[test]
fn h8_ranges_over_gaps_miss_nothing() {
    for seed in 0..20 {
        let world = World::new(MEMORY);
        world.engine.set_option("promotion", "1").unwrap();
        let mut random = SplitMix(seed);
        let mut draw = |of: u64| random.next_u64() % of;
        // The first key of all is the empty one; others begin leaves of the tier.
        let key = |number: u64| if number == 0 { Vec::new() } else { key(number) };
        let mut model: Model = (0..300).map(|number| (key(number), value(number, 1))).collect();
        model.iter().for_each(|(key, value)| world.put(key, value));
        world.empty_tier();
        for _ in 0..600 {
            let (from, count) = (draw(300), 1 + draw(20) as usize);
            match draw(12) {
                0 => {
                    world.put(&key(from), &value(from, 2));
                    model.insert(key(from), value(from, 2));
                }
                1 => {
                    world.remove(&key(from));
                    model.remove(&key(from));
                }
                2 => {
                    let mut hand = Hand::default();
                    (0..draw(9)).for_each(|_| {
                        world.engine.hot.advance(&mut hand, false, &mut Records::default());
                    });
                }
                3 => world.engine.bring_all_home().unwrap(),
                _ => {}
            }
            let (lower, upper) = (key(from), key(from + draw(30)));
            let lower = match draw(5) {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Included(&lower[..]),
                _ => Bound::Excluded(&lower[..]),
            };
            let upper = match draw(3) {
                0 => Bound::Unbounded,
                1 => Bound::Included(&upper[..]),
                _ => Bound::Excluded(&upper[..]),
            };
            let request = ScanRequest {
                lower,
                upper,
                records_wanted: count,
                records_max: count,
                bytes_max: usize::MAX,
                keys_only: false,
                ..ScanRequest::FIRST_KEY
            };
            let mut chunk = Chunk::default();
            world.engine.scan(&request, &mut chunk).unwrap();
            let found: Vec<_> = (0..chunk.len()).map(|index| chunk.get(index).0.to_vec()).collect();
            let all = model.keys().filter(|key| request.contains(key)).take(count).cloned();
            assert_eq!(found, all.take(found.len().max(1)).collect::<Vec<_>>(), "seed {seed}");
            assert!(!chunk.finished || found.len() <= count);
        }
    }
}

/// Long keys that share all but their ends, before a short one: a page has room for one or two of them, so there may be
/// no number of pages of which each takes about as much as the others.
#[test]
fn uneven_records_with_long_keys_divide() {
    for seed in 0..400 {
        let mut random = SplitMix(seed);
        let mut draw = |most: u64| random.next_u64() % most;
        let (world, mut model) = (World::new(MEMORY), Model::new());
        let mut put = |key: Vec<u8>, length: usize| {
            world.put(&key, &vec![7; length]);
            model.insert(key, vec![7; length]);
        };
        (0..100).for_each(|number| put(format!("y{number:02}").into_bytes(), 100));
        for end in 0..80_u16 {
            put(
                [&[1; 902][..], &end.to_be_bytes()].concat(),
                [26, 26, 26, 395, 361, 328][draw(6) as usize],
            );
            if draw(16) > 0 {
                continue;
            }
            world.engine.bring_all_home().unwrap();
        }
        world.check(&model);
    }
}
