//! Real threads on one map: what each may rely on while all write. The seeds only shape the load;
//! the models of `models.rs` replay schedules.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use spinney_art::{Art, ArtMap, Direction, KeySource};
use spinney_base::runtime::SplitMix;
use spinney_sync::RacyWords;

const WRITERS: u64 = 4;

/// Bytes that crowd nodes of every kind; some keys are prefixes of others.
fn key(random: &mut SplitMix, owner: u64) -> Vec<u8> {
    let number = random.below(4096) as u64;
    let mut key = match random.below(3) {
        0 => format!("{number:04}").into_bytes(),
        1 => [vec![b'p'; 200], number.to_be_bytes().to_vec()].concat(),
        _ => vec![b'z'; random.below(64)],
    };
    // Owners part at the last byte, so they share every node.
    key.push(u8::try_from(owner).unwrap());
    key
}

/// Each writer has keys of its own, next to those of all others, and sees only its own changes on
/// them; in the end everything is as all of them left it.
#[test]
fn writers_of_disjoint_keys_do_not_disturb_each_other() {
    let map = ArtMap::new();
    let empty = map.bytes();
    let models: Vec<BTreeMap<Vec<u8>, u64>> = thread::scope(|scope| {
        let map = &map;
        let run = |owner| {
            let mut random = SplitMix(owner);
            let mut model = BTreeMap::new();
            for round in 0..60_000 {
                let key = key(&mut random, owner);
                match random.below(4) {
                    0 => assert_eq!(map.remove(&key), model.remove(&key)),
                    1 => assert_eq!(map.get(&key), model.get(&key).copied()),
                    2 => {
                        // Other writers' keys below it come and go; its own is a floor or is not.
                        let floor = map.floor(&key);
                        let is_key = floor.is_some_and(|(floor, _)| floor == key);
                        assert_eq!(is_key, model.contains_key(&key));
                    }
                    _ => assert_eq!(map.insert(&key, round), model.insert(key, round)),
                }
            }
            model
        };
        let threads: Vec<_> = (0..WRITERS).map(|owner| scope.spawn(move || run(owner))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let expected: BTreeMap<Vec<u8>, u64> = models.into_iter().flatten().collect();
    assert_eq!(map.check().unwrap().leaves, expected.len());
    let all = map.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
    assert!(all.eq(expected.clone()));
    for key in expected.keys() {
        map.remove(key);
    }
    assert_eq!(map.bytes(), empty);
}

/// Writers of the same keys: every insert that found nothing and every remove that found something
/// pair up, per key.
#[test]
fn writers_of_the_same_keys_pair_up() {
    const KEYS: usize = 512;
    let map = ArtMap::new();
    let present: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for seed in 0..WRITERS {
            let (map, present) = (&map, &present);
            scope.spawn(move || {
                let mut random = SplitMix(seed);
                for round in 0..100_000u64 {
                    let at = random.below(KEYS);
                    let key = u16::try_from(at).unwrap().to_be_bytes();
                    let value = round << 8 | seed;
                    let change = match random.below(4) {
                        0 => map.remove(&key).map_or(0, |_| u64::MAX),
                        1 => u64::from(map.insert_if_absent(&key, value).is_ok()),
                        2 => match map.get(&key) {
                            Some(seen) if map.remove_if(&key, seen) => u64::MAX,
                            Some(seen) => {
                                map.replace(&key, seen, value);
                                0
                            }
                            None => 0,
                        },
                        _ => u64::from(map.insert(&key, value).is_none()),
                    };
                    present[at].fetch_add(change, Relaxed);
                }
            });
        }
    });
    map.check().unwrap();
    for (at, present) in present.iter().enumerate() {
        let key = u16::try_from(at).unwrap().to_be_bytes();
        assert_eq!(present.load(Relaxed), u64::from(map.contains_key(&key)), "key {at}");
    }
}

/// Under writers, a range has every key that was there throughout, in order, none twice, and only
/// keys that somebody wrote; a floor never misses a key that stays.
#[test]
fn readers_see_what_stays() {
    const STAYING: u64 = 3000;
    let map = ArtMap::new();
    // Every third key stays; the rest come and go around them.
    let key =
        |number: u64| format!("{:05}{}", number / 3, ["", "-", "-and-longer"][number as usize % 3]);
    let stays = |number: u64| number % 9 == 4;
    for number in (0..STAYING).filter(|number| stays(*number)) {
        map.insert(key(number).as_bytes(), number);
    }
    let staying = map.len();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut random = SplitMix(seed);
                while !stop.load(Relaxed) {
                    let number = random.below(STAYING as usize) as u64;
                    if stays(number) {
                        map.insert(key(number).as_bytes(), number);
                    } else if random.below(2) == 0 {
                        map.remove(key(number).as_bytes());
                    } else {
                        map.insert(key(number).as_bytes(), number);
                    }
                }
            });
        }
        let mut random = SplitMix(9);
        for round in 0..200 {
            let direction = [Direction::Forward, Direction::Backward][round % 2];
            let seen: Vec<_> = map.range(Bound::Unbounded, Bound::Unbounded, direction).collect();
            let ordered = seen.is_sorted_by(|a, b| match direction {
                Direction::Forward => a.0 < b.0,
                Direction::Backward => a.0 > b.0,
            });
            assert!(ordered, "out of order or twice");
            assert!(seen.iter().all(|(bytes, number)| *bytes == key(*number).as_bytes()));
            assert_eq!(seen.iter().filter(|(_, number)| stays(*number)).count(), staying);
            for _ in 0..200 {
                let number = 4 + random.below(STAYING as usize - 9) as u64;
                let stayer = number - (number + 5) % 9;
                assert!(stays(stayer) && stayer <= number);
                let (floor, value) = map.floor(key(number).as_bytes()).unwrap();
                assert!(floor.as_slice() <= key(number).as_bytes());
                assert!(value >= stayer, "floor of {number} is {value}, past {stayer}");
            }
        }
        stop.store(true, Relaxed);
    });
    map.check().unwrap();
}

/// Records of a length and at most 24 bytes of key in memory that is used again at once, so that the tree sees the keys of
/// strangers, and mixtures of two.
struct Slab(RacyWords);

const SLAB_WORDS: usize = 4;

impl Slab {
    fn write(&self, slot: u64, key: &[u8]) {
        let word = usize::try_from(slot).unwrap() * SLAB_WORDS;
        self.0.store(word, key.len() as u64);
        self.0.write_from(word + 1, key);
    }
}

impl KeySource for Slab {
    fn read_key(&self, leaf: u64, out: &mut Vec<u8>) {
        let word = usize::try_from(leaf).unwrap() * SLAB_WORDS;
        let length = usize::try_from(self.0.load(word)).unwrap().min(24);
        self.0.read_into(word + 1, length, out);
    }
}

/// Records are used for another key as soon as they are removed, without an epoch in between: what the tree reads of a removed leaf is never
/// believed.
#[test]
fn records_are_used_again_at_once() {
    const OWN: u64 = 64;
    let art = Art::new(Slab(RacyWords::new((4 * OWN) as usize * SLAB_WORDS)));
    let stop = AtomicBool::new(false);
    let key = |number: u64, owner: u64| {
        let mut key = vec![b'k'; number as usize % 20];
        key.extend([(number >> 5) as u8 % 8, owner as u8]);
        key
    };
    // Owner 0 has the keys that stay.
    let mut staying: Vec<Vec<u8>> = (0..OWN).map(|number| key(number * 37, 0)).collect();
    staying.sort();
    staying.dedup();
    for (slot, key) in staying.iter().enumerate() {
        art.source().write(slot as u64, key);
        assert_eq!(art.upsert(key, slot as u64), None);
    }
    thread::scope(|scope| {
        for owner in 1..4 {
            let (art, stop) = (&art, &stop);
            scope.spawn(move || {
                let mut random = SplitMix(owner);
                let mut keys: Vec<Option<Vec<u8>>> = vec![None; OWN as usize];
                while !stop.load(Relaxed) {
                    let at = random.below(OWN as usize);
                    let slot = owner * OWN + at as u64;
                    if let Some(old) = keys[at].take() {
                        assert!(art.remove_if(&old, slot));
                    }
                    let key = key(random.next_u64() % 1024, owner);
                    art.source().write(slot, &key);
                    if art.insert_if_absent(&key, slot).is_ok() {
                        keys[at] = Some(key);
                    }
                }
            });
        }
        let mut random = SplitMix(99);
        for round in 0..3000 {
            let at = random.below(staying.len());
            assert_eq!(art.get(&staying[at]), Some(at as u64));
            let mut floor = Vec::new();
            let probe = key(random.next_u64() % 1024, 0);
            let below = staying.partition_point(|key| *key <= probe).checked_sub(1);
            let from = Bound::Included(probe.as_slice());
            let found = art.neighbour(from, Direction::Backward, Some(&mut floor));
            assert!(below.is_none_or(|below| found.is_some() && floor >= staying[below]));
            assert!(found.is_none() || floor <= probe);
            if round % 20 == 0 {
                let mut scan = art.scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
                let (mut before, mut seen) = (None, 0);
                while let Some((key, leaf)) = scan.next() {
                    assert!(before.as_deref() < Some(key), "out of order");
                    let owner = u64::from(*key.last().unwrap());
                    assert_eq!(owner, leaf / OWN, "the key of another record");
                    seen += usize::from(owner == 0);
                    before = Some(key.to_vec());
                }
                assert_eq!(seen, staying.len());
            }
        }
        stop.store(true, Relaxed);
    });
    art.check().unwrap();
}
