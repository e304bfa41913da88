//! What a lookup, a floor, a range and a write cost against a locked `BTreeMap`, and bytes per key:
//! `cargo run --release -p spinney-art --example compare [keys ...]`. Keys are 8 random bytes.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Bound;
use std::time::Duration;

use spinney_art::{ArtMap, Direction};
use spinney_base::Runtime;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::RwLock;

const OPERATIONS: usize = 2_000_000;
const RANGE_LENGTH: usize = 50;

type Key = [u8; 8];

/// Both maps behind what is measured.
trait Map: Sync {
    fn put(&self, key: &Key, value: u64);
    fn get(&self, key: &Key) -> Option<u64>;
    fn floor(&self, key: &Key) -> Option<u64>;
    fn range(&self, from: &Key) -> u64;
    fn erase(&self, key: &Key);
}

impl Map for ArtMap<u64> {
    fn put(&self, key: &Key, value: u64) {
        self.insert(key, value);
    }
    fn get(&self, key: &Key) -> Option<u64> {
        ArtMap::get(self, key)
    }
    fn floor(&self, key: &Key) -> Option<u64> {
        self.floor_value(key)
    }
    fn range(&self, from: &Key) -> u64 {
        let range =
            ArtMap::range(self, Bound::Included(from), Bound::Unbounded, Direction::Forward);
        range.at_most(RANGE_LENGTH).map(|(_, value)| value).sum()
    }
    fn erase(&self, key: &Key) {
        self.remove(key);
    }
}

impl Map for RwLock<BTreeMap<Vec<u8>, u64>> {
    fn put(&self, key: &Key, value: u64) {
        self.write().insert(key.to_vec(), value);
    }
    fn get(&self, key: &Key) -> Option<u64> {
        self.read().get(key.as_slice()).copied()
    }
    fn floor(&self, key: &Key) -> Option<u64> {
        let bounds = (Bound::Unbounded, Bound::Included(key.as_slice()));
        self.read().range::<[u8], _>(bounds).next_back().map(|(_, value)| *value)
    }
    fn range(&self, from: &Key) -> u64 {
        let bounds = (Bound::Included(from.as_slice()), Bound::Unbounded);
        let map = self.read();
        // The keys are copied out, as a cursor must.
        let range = map.range::<[u8], _>(bounds).take(RANGE_LENGTH);
        range.map(|(key, value)| value + black_box(key.clone()).len() as u64).sum()
    }
    fn erase(&self, key: &Key) {
        self.write().remove(key.as_slice());
    }
}

/// Time is taken of slices, and the slice at the fastest tenth counts: what else runs on the machine
/// would be measured otherwise.
const SLICES: usize = 200;

/// Nanoseconds per operation of one thread, when `threads` do the same.
fn time(threads: u64, operations: usize, run: impl Fn(&mut SplitMix) + Sync) -> f64 {
    let runtime = Runtime::threads();
    let (run, runtime) = (&run, &runtime);
    let slices = |seed| {
        let mut random = SplitMix(seed);
        let slice = |_| {
            let start = runtime.now();
            (0..operations / SLICES).for_each(|_| run(&mut random));
            nanoseconds(runtime.now() - start, operations / SLICES)
        };
        (0..SLICES).map(slice).collect::<Vec<f64>>()
    };
    let mut all: Vec<f64> = std::thread::scope(|scope| {
        let slices = &slices;
        let threads: Vec<_> = (0..threads).map(|seed| scope.spawn(move || slices(seed))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it only measures")).collect()
    });
    all.sort_by(f64::total_cmp);
    all[all.len() / 10]
}

fn nanoseconds(elapsed: Duration, operations: usize) -> f64 {
    elapsed.as_secs_f64() * 1e9 / operations as f64
}

fn measure(name: &str, map: &impl Map, keys: &[Key]) {
    let runtime = Runtime::threads();
    let start = runtime.now();
    for (value, key) in keys.iter().enumerate() {
        map.put(key, value as u64);
    }
    let load = nanoseconds(runtime.now() - start, keys.len());
    let pick = |random: &mut SplitMix| keys[random.below(keys.len())];
    let get = |random: &mut SplitMix| {
        assert!(black_box(map.get(&pick(random))).is_some());
    };
    let floor = |random: &mut SplitMix| {
        black_box(map.floor(&random.next_u64().to_be_bytes()));
    };
    let range = |random: &mut SplitMix| {
        black_box(map.range(&pick(random)));
    };
    let mixed = |random: &mut SplitMix| match random.below(20) {
        0 => map.put(&pick(random), 1),
        _ => get(random),
    };
    let churn = |random: &mut SplitMix| {
        let key = random.next_u64().to_be_bytes();
        map.put(&key, 1);
        map.erase(&key);
    };
    println!(
        "{name:>9} {:>8} | load {load:4.0} | get {:4.0} {:4.0} | floor {:4.0} {:4.0} | range of \
         {RANGE_LENGTH} {:5.0} | 5% puts, 2 threads {:4.0} | put and remove {:4.0} {:4.0}",
        keys.len(),
        time(1, OPERATIONS, get),
        time(2, OPERATIONS, get),
        time(1, OPERATIONS, floor),
        time(2, OPERATIONS, floor),
        time(1, OPERATIONS / 20, range),
        time(2, OPERATIONS, mixed),
        time(1, OPERATIONS / 4, churn),
        time(2, OPERATIONS / 4, churn),
    );
}

fn main() {
    let mut sizes: Vec<usize> = std::env::args().skip(1).flat_map(|size| size.parse()).collect();
    if sizes.is_empty() {
        sizes = vec![100_000, 1_000_000];
    }
    println!("nanoseconds per operation, with 1 and with 2 threads");
    for size in sizes {
        let mut random = SplitMix(size as u64);
        let keys: Vec<Key> = (0..size).map(|_| random.next_u64().to_be_bytes()).collect();
        let art = ArtMap::new();
        measure("art", &art, &keys);
        let census = art.check().expect("the tree is sound");
        println!(
            "{:>18} | {:.1} bytes a key in nodes, {:.1} with records; {census:?}",
            "",
            census.bytes as f64 / size as f64,
            art.bytes() as f64 / size as f64,
        );
        drop(art);
        measure("btreemap", &RwLock::new(BTreeMap::new()), &keys);
    }
}
