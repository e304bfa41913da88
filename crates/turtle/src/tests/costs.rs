//! What lookups and scans read, by kind of page: counted on a real file whose page cache is cold.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rand::{RngExt as _, SeedableRng, rngs::StdRng, seq::SliceRandom};

use spinney_base::{KeyspaceId, Lsn, Poison};
use spinney_cache::{Cache, Kind};
use spinney_engine::{Chunk, Direction, Found, ScanRequest};
use spinney_extent::{Store, StoreOptions};
use spinney_io::sim::SimDisk;

use super::{limits, run};
use crate::disk::DiskFiles;
use crate::kinds;
use crate::leaf::LeafStore;
use crate::leaf::format::PAYLOAD;
use crate::leaf::read::Place;
use crate::levels::{Part, pivot_of};
use crate::node::{Child, Leaf};
use crate::runs::Runs;
use crate::tree::Tree;

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const VALUE_BYTES: usize = 120;
const CACHE_BYTES: u64 = 256 << 20;
const FILTER_BITS: u32 = 12;

/// A filter of 12 bits for each key answers wrongly for one absent key in this many.
const FALSE_POSITIVE_ONE_IN: u64 = 185;

struct World {
    cache: Arc<Cache>,
    files: DiskFiles,
    tree: Tree<DiskFiles>,
    /// Those that are there, ascending. None was written twice.
    keys: Vec<[u8; 8]>,
}

/// A child with the range of its keys.
type Below<'a> = (&'a Child<DiskFiles>, &'a [u8], Option<&'a [u8]>);

/// A tree all on pages, with two levels of nodes whose buffers hold segments.
fn world() -> World {
    let disk = SimDisk::new(3);
    let poison = Arc::new(Poison::new());
    let options = StoreOptions { keyspace: KEYSPACE, double_write: false, poison };
    let store = Store::create(&*disk.at("/"), "turtle", options, Lsn::ZERO).unwrap();
    store.adopt(&[]).unwrap();
    let cache = Cache::new(CACHE_BYTES);
    let leaves = LeafStore::new(Arc::new(store), cache.file());
    let files = DiskFiles::new(leaves, limits(128 << 10, 8), FILTER_BITS, 1);
    let mut tree = Tree::empty();
    let mut rng = StdRng::seed_from_u64(5);
    // Even numbers, so that odd ones are absent.
    let mut keys: Vec<u64> = (0..80_000).map(|_| rng.random::<u64>() & !1).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.shuffle(&mut rng);
    for batch in keys.chunks(900) {
        let mut batch: Vec<[u8; 8]> = batch.iter().map(|key| key.to_be_bytes()).collect();
        batch.sort_unstable();
        let edits = batch.iter().map(|key| (&key[..], Some(&[7; VALUE_BYTES][..])));
        tree = tree.apply(&files, &Runs::from(run(edits)), None, &mut Vec::new()).unwrap();
        tree = tree.write(&files, &mut Vec::new()).unwrap();
    }
    assert!(tree.height() >= 2);
    keys.sort_unstable();
    World { cache, files, tree, keys: keys.iter().map(|key| key.to_be_bytes()).collect() }
}

impl World {
    fn cool(&self) {
        self.cache.set_bytes(0);
        self.cache.set_bytes(CACHE_BYTES);
        assert_eq!(self.cache.stats().cold_pages + self.cache.stats().hot_pages, 0);
    }

    fn read(&self, kind: Kind) -> u64 {
        self.files.files.counters.pages_read[kind.index()].load(Relaxed)
    }

    /// Pages of keys and values that were looked into, wherever they were.
    fn data_pages(&self) -> u64 {
        let hits = |kind| self.cache.stats().of(kind).hits;
        let both = [kinds::KEYS, kinds::VALUES];
        both.iter().map(|kind| self.read(*kind) + hits(*kind)).sum()
    }

    /// What a scan from one key up to another may read at most: of each leaf and segment whose live
    /// range it touches the pages of the index on the path to where it begins, the pages that
    /// records fill, and two more.
    fn allowed(&self, first: &[u8], last: &[u8]) -> (u64, u64) {
        let mut spans = Vec::new();
        let mut left: Vec<Below<'_>> =
            self.tree.root.iter().map(|root| (root, &b""[..], None)).collect();
        while let Some((child, lower, upper)) = left.pop() {
            match child {
                Child::Leaf(Leaf::Written(leaf)) => spans.push((leaf, lower, upper)),
                Child::Leaf(Leaf::Memory(_)) => panic!("all of it is on pages"),
                Child::Node(node) => {
                    let pivots = pivot_of(&node.keys, first)..pivot_of(&node.keys, last) + 1;
                    for part in node.levels.iter().flat_map(|level| &level.parts) {
                        let Part::Segment(segment) = part else { panic!("all of it is on pages") };
                        for pivot in pivots.clone().filter(|pivot| segment.is_active(*pivot)) {
                            let (lower, upper) = segment.span(&node.keys, pivot..pivot + 1);
                            spans.push((&segment.leaf, lower, upper));
                        }
                    }
                    for pivot in pivots {
                        let upper = node.keys.get(pivot + 1).map_or(upper, |key| Some(key));
                        left.push((&node.children[pivot], &node.keys[pivot], upper));
                    }
                }
            }
        }
        let (mut pages, mut touched) = (0, 0);
        for (leaf, lower, upper) in spans {
            let from = first.max(lower);
            let is_outside = from > last || upper.is_some_and(|upper| upper <= from);
            if is_outside {
                continue;
            }
            touched += 1;
            self.cool();
            let before = self.read(kinds::INDEX);
            let begin = leaf.find(from).unwrap();
            pages += self.read(kinds::INDEX) - before;
            let end = match upper.filter(|upper| *upper <= last) {
                Some(upper) => leaf.find(upper).unwrap(),
                None => {
                    let place = leaf.find(last).unwrap();
                    Place { item: place.item + u32::from(place.found), ..place }
                }
            };
            if begin.item < end.item {
                pages += u64::from(end.page - begin.page) + 1;
                let page = |byte: usize| (byte / PAYLOAD) as u64;
                let (begin, end) =
                    (begin.item as usize * VALUE_BYTES, end.item as usize * VALUE_BYTES);
                pages += page(end - 1) - page(begin) + 1;
            }
        }
        (pages + 2 * touched, touched)
    }
}

#[test]
fn a_scan_of_50_on_a_cold_cache_reads_what_its_records_fill_and_little_more() {
    const RECORDS: usize = 50;
    let world = world();
    let mut rng = StdRng::seed_from_u64(6);
    let (mut all, mut all_allowed, mut all_touched) = (0, 0, 0);
    for _ in 0..400 {
        let at = rng.random_range(0..world.keys.len() - RECORDS);
        let (first, last) = (&world.keys[at], &world.keys[at + RECORDS - 1]);
        let (allowed, touched) = world.allowed(first, last);
        for direction in [Direction::Forward, Direction::Reverse] {
            world.cool();
            let kinds = [kinds::NODE, kinds::FILTER, kinds::INDEX, kinds::KEYS, kinds::VALUES];
            let before = kinds.map(|kind| world.read(kind));
            let (lower, upper) = match direction {
                Direction::Forward => (Bound::Included(&first[..]), Bound::Unbounded),
                Direction::Reverse => (Bound::Unbounded, Bound::Included(&last[..])),
            };
            let request = ScanRequest {
                lower,
                upper,
                direction,
                records_wanted: RECORDS,
                records_max: RECORDS,
                bytes_max: 1 << 20,
                keys_only: false,
            };
            let mut chunk = Chunk::default();
            world.tree.scan(&world.files, &request, &mut chunk).unwrap();
            assert_eq!(chunk.len(), RECORDS);
            let mut read = kinds.map(|kind| world.read(kind));
            read.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
            assert_eq!((read[0], read[1]), (0, 0), "a scan asks neither nodes nor filters");
            let sum: u64 = read.iter().sum();
            assert!(
                sum <= allowed,
                "{direction:?} at {at}: read {read:?} of {kinds:?}, allowed are {allowed} in {touched}"
            );
            (all, all_allowed, all_touched) =
                (all + sum, all_allowed + allowed, all_touched + touched);
        }
    }
    println!("{all} pages read, {all_allowed} allowed, {all_touched} leaves and segments touched");
}

#[test]
fn a_scan_of_keys_reads_no_page_of_values() {
    let world = world();
    world.cool();
    let (keys_before, values_before) = (world.read(kinds::KEYS), world.read(kinds::VALUES));
    for direction in [Direction::Forward, Direction::Reverse] {
        let request = ScanRequest {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            direction,
            records_wanted: usize::MAX,
            records_max: usize::MAX,
            bytes_max: usize::MAX,
            keys_only: true,
        };
        let mut chunk = Chunk::default();
        world.tree.scan(&world.files, &request, &mut chunk).unwrap();
        assert!(chunk.finished && chunk.len() == world.keys.len());
        assert!((0..chunk.len()).all(|at| chunk.get(at).1.bytes.is_empty()));
    }
    assert_eq!(world.read(kinds::VALUES), values_before);
    assert!(world.read(kinds::KEYS) > keys_before, "they were not cached");
}

#[test]
fn a_lookup_of_an_absent_key_reads_data_only_where_a_filter_is_wrong() {
    const LOOKUPS: u64 = 20_000;
    let world = world();
    let mut rng = StdRng::seed_from_u64(7);
    let counters = &world.files.files.counters;
    let probes = || counters.filter_probes.load(Relaxed);
    let (data, probed) = (world.data_pages(), probes());
    for _ in 0..LOOKUPS {
        let key = (rng.random::<u64>() | 1).to_be_bytes();
        let hash = spinney_sync::hash_key(KEYSPACE, &key);
        let found = world.tree.get(&world.files, &key, hash, &mut Vec::new()).unwrap();
        assert_eq!(found, Found::Absent);
    }
    let (data, probed) = (world.data_pages() - data, probes() - probed);
    println!("{LOOKUPS} lookups asked {probed} filters and looked into {data} pages of data");
    assert!(probed >= 2 * LOOKUPS, "few segments try little: {probed}");
    assert!(2 * FALSE_POSITIVE_ONE_IN * data <= 3 * probed, "{data} pages, {probed} filters");
    assert_eq!(
        counters.filter_probes.load(Relaxed),
        counters.filter_negatives.load(Relaxed) + counters.filter_false_positives.load(Relaxed),
    );
}
