//! Threads beside each other: nobody reads what cannot be there, or misses what is.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use spinney_base::runtime::SplitMix;
use spinney_engine::Direction;

use super::{MUCH, World};

const KEYS: u64 = 2400;

/// Values are numbers that count up, each with padding that follows from it.
struct Counting {
    world: World,
    /// The newest number of each key that is visible, and the newest that may be. Odd: the key is removed.
    known: Vec<[AtomicU64; 2]>,
    is_done: AtomicBool,
}

fn padded(number: u64, of: u64) -> Vec<u8> {
    let mut value = of.to_be_bytes().to_vec();
    value.resize(8 + (of * 37 + number) as usize % 300, of as u8);
    value
}

/// Keys that have much in common: every third is in each part.
fn key(number: u64) -> Vec<u8> {
    let prefix = [&b"a"[..], &[b'm'; 200], b"z/"][(number % 3) as usize];
    [prefix, &number.to_be_bytes()].concat()
}

fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(*key.last_chunk().unwrap())
}

impl Counting {
    fn new() -> Counting {
        let known = (0..KEYS).map(|_| [AtomicU64::new(1), AtomicU64::new(1)]).collect();
        Counting { world: World::new(MUCH, false), known, is_done: AtomicBool::new(false) }
    }

    /// Gives a key its next number; or removes it. Each key has one writer.
    fn write(&self, number: u64, removes: bool) {
        let [visible, may_be] = &self.known[number as usize];
        let before = visible.load(SeqCst);
        let next = if removes { before | 1 } else { (before | 1) + 1 };
        may_be.store(next, SeqCst);
        match removes {
            true => self.world.remove(&key(number)),
            false => self.world.put(&key(number), &padded(number, next)),
        }
        visible.store(next, SeqCst);
    }

    /// Says what may be there: the numbers before a read and after it.
    fn check(&self, number: u64, before: u64, found: Option<&[u8]>) {
        let after = self.known[number as usize][1].load(SeqCst);
        match found {
            Some(found) => {
                let of = u64::from_be_bytes(*found.first_chunk().unwrap());
                assert!(found == padded(number, of) && of % 2 == 0, "a torn value of {number}");
                assert!((before..=after).contains(&of), "{of} of {number}, {before} to {after}");
            }
            // It was removed at some time of the read.
            None => assert!(before % 2 == 1 || after > before, "{number} is missed at {before}"),
        }
    }

    fn read(&self, number: u64) {
        let before = self.known[number as usize][0].load(SeqCst);
        let found = self.world.get(&key(number));
        self.check(number, before, found.as_deref());
    }

    fn scan(&self, random: &mut SplitMix) {
        let part = random.next_u64() % 3;
        let from = random.next_u64() % (KEYS - 240) / 3 * 3 + part;
        let (lower, upper) = (key(from), key(from + 240));
        let numbers = || (from..from + 240).step_by(3);
        let before: Vec<u64> =
            numbers().map(|number| self.known[number as usize][0].load(SeqCst)).collect();
        let forward = random.next_u64().is_multiple_of(2);
        let direction = if forward { Direction::Forward } else { Direction::Reverse };
        let bounds = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
        let mut found = self.world.range(bounds, direction, 1 + random.next_u64() as usize % 50);
        if !forward {
            found.reverse();
        }
        assert!(found.is_sorted_by(|one, next| one.0 < next.0), "in order, and none twice");
        let mut found = found.iter().peekable();
        for (number, before) in numbers().zip(before) {
            let here = found.next_if(|(key, _)| number_of(key) == number);
            self.check(number, before, here.map(|(_, value)| &value[..]));
        }
        assert!(found.next().is_none());
    }
}

fn run(writers: u64, steps: u64, checkpoints: bool) {
    let counting = Counting::new();
    let counting = &counting;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..writers)
            .map(|worker| {
                scope.spawn(move || {
                    let mut random = SplitMix(worker);
                    for step in 0..steps {
                        let number = random.next_u64() % (KEYS / writers) * writers + worker;
                        // Waves of removals, so that leaves are joined.
                        let removes =
                            random.next_u64() % 10 < if step / 3000 % 2 == 0 { 2 } else { 8 };
                        counting.write(number, removes);
                    }
                })
            })
            .collect();
        for reader in 0..2 {
            scope.spawn(move || {
                let mut random = SplitMix(77 + reader);
                while !counting.is_done.load(SeqCst) {
                    (0..20).for_each(|_| counting.read(random.next_u64() % KEYS));
                    counting.scan(&mut random);
                }
            });
        }
        scope.spawn(move || {
            while !counting.is_done.load(SeqCst) {
                if checkpoints {
                    counting.world.checkpoint();
                }
                counting.world.engine.tree.join_some(&[], usize::MAX);
                std::thread::yield_now();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        counting.is_done.store(true, SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    (0..KEYS).for_each(|number| counting.read(number));
    counting.world.check(&counting.world.all());
    if checkpoints {
        counting.world.checkpoint();
        counting.world.after_crash().check(&counting.world.all());
    }
}

#[test]
fn readers_see_what_may_be_there_beside_splits_and_joins() {
    run(3, 20_000, false);
}

#[test]
fn checkpoints_beside_writers_have_all() {
    run(3, 12_000, true);
}
