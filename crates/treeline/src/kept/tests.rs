//! Snapshots of a keyspace against a model of what there was, step by step in one thread.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use spinney_base::{ErrorKind, KeyspaceId, Lsn, MemoryBudget, Poison, Runtime, ValueRef};
use spinney_engine::{
    Chunk, Direction, Engine, EngineContext, EngineSnapshot, Found, OwnedValue, ScanRequest,
    SnapshotNumber, Write, overlay,
};
use spinney_io::sim::SimDisk;
use spinney_sync::hash_key;
use spinney_wal::{Log, LogOptions};

use crate::reorganize::Why;
use crate::tree::TreeLine;

const KEYSPACE: KeyspaceId = KeyspaceId(1);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// An empty keyspace without a log of its records.
fn empty() -> Arc<TreeLine> {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/db")).unwrap();
    let log = LogOptions { tag: 7, bytes_max: 16 << 20, segment_bytes: 1 << 20, tail_bytes: 0 };
    let log = Log::create(&*disk.at("/db"), "wal", &log).unwrap();
    let context = EngineContext {
        directory: disk.at("/db"),
        name: "keyspace".into(),
        keyspace: KEYSPACE,
        logged: false,
        double_write: false,
        log,
        runtime: Runtime::stepped(1),
        poison: Arc::new(Poison::new()),
        memory: MemoryBudget::new(1 << 20).open("keyspace", 1 << 20),
        certifier: spinney_engine::Certifier::above(0),
    };
    Arc::new(TreeLine::create(context, Lsn::ZERO).unwrap())
}

fn hash(key: &[u8]) -> u64 {
    hash_key(KEYSPACE, key)
}

fn write(tree: &TreeLine, key: &[u8], value: Option<&[u8]>, newest: u64) {
    let write = Write { key, hash: hash(key), value: value.map(ValueRef::inline) };
    let prepared = tree.prepare(&write).unwrap();
    tree.apply(&write, prepared, Lsn::ZERO, SnapshotNumber(newest));
}

fn begin(tree: &Arc<TreeLine>, number: u64) -> Box<dyn EngineSnapshot> {
    Arc::clone(tree).begin_snapshot(SnapshotNumber(number)).unwrap()
}

fn get(snapshot: &dyn EngineSnapshot, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let found = snapshot.get(key, hash(key), &mut value).unwrap();
    (found != Found::Absent).then_some(value)
}

/// What a snapshot has in a range, read in chunks of `most` records.
fn scan(
    snapshot: &dyn EngineSnapshot,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    most: usize,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let forward = direction == Direction::Forward;
    let mut records = Vec::new();
    let mut from = Some(if forward { lower } else { upper }.map(<[u8]>::to_vec));
    while let Some(near) = from {
        let near = near.as_ref().map(Vec::as_slice);
        let request = ScanRequest {
            lower: if forward { near } else { lower },
            upper: if forward { upper } else { near },
            direction,
            records_wanted: most,
            records_max: most,
            bytes_max: usize::MAX,
            keys_only: false,
        };
        let mut chunk = Chunk::default();
        snapshot.scan(&request, &mut chunk).unwrap();
        for index in 0..chunk.len() {
            let (key, value) = chunk.get(index);
            records.push((key.to_vec(), value.bytes.to_vec()));
        }
        from = overlay::beyond(&mut chunk);
    }
    records
}

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

fn all(snapshot: &dyn EngineSnapshot) -> Vec<(Vec<u8>, Vec<u8>)> {
    let forward = scan(snapshot, ALL, Direction::Forward, 1000);
    let mut reversed = scan(snapshot, ALL, Direction::Reverse, 7);
    reversed.reverse();
    assert_eq!(forward, reversed);
    forward
}

/// Writes everything back and lets the record cache go.
fn go_home(tree: &TreeLine) {
    tree.write_back_everything(&mut |_| false).unwrap();
    tree.memory.cache.forget_clean();
}

/// A keyspace with two records in pages only.
fn of_two() -> Arc<TreeLine> {
    let tree = empty();
    write(&tree, b"a", Some(b"a0"), 0);
    write(&tree, b"b", Some(b"b0"), 0);
    go_home(&tree);
    tree
}

fn pair(key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), value.to_vec())
}

/// A write-back of much that is marked goes part by part, and writes out in between what it has kept:
/// 1.4 MB of values in 64 KiB of memory, beyond which there may be 1 MiB.
#[test]
fn a_long_write_back_ends_no_snapshot() {
    let tree = empty();
    let keys: Vec<Vec<u8>> = (0..700_u32).map(|key| key.to_be_bytes().to_vec()).collect();
    let old = [7; 2000];
    for key in &keys {
        write(&tree, key, Some(&old), 0);
    }
    go_home(&tree);
    let snapshot = begin(&tree, 1);
    for key in &keys {
        write(&tree, key, Some(b"new"), 1);
    }
    let stats = tree.pre_images.stats();
    assert!(stats.marks > 650, "only {} marks", stats.marks);
    tree.write_back(&keys).unwrap();
    let stats = tree.pre_images.stats();
    assert_eq!((stats.ended, stats.marks), (0, 0));
    assert!(stats.memory_bytes < 128 << 10, "{} bytes", stats.memory_bytes);
    let wanted: Vec<_> = keys.iter().map(|key| pair(key, &old)).collect();
    assert!(scan(&*snapshot, ALL, Direction::Forward, 1000) == wanted);
}

/// More tables have marks than there are notes: what has no note is found as well, before and after its
/// record was written back.
#[test]
fn marks_of_many_tables() {
    let tree = empty();
    let keys: Vec<Vec<u8>> = (0..40_u8).map(|key| vec![key]).collect();
    for key in &keys {
        write(&tree, key, Some(b"old"), 0);
    }
    go_home(&tree);
    let mut snapshots = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        snapshots.push(begin(&tree, number as u64 + 1));
        write(&tree, key, Some(b"new"), number as u64 + 1);
    }
    let stats = tree.pre_images.stats();
    assert_eq!((stats.links, stats.marks), (0, 40));
    assert!(stats.memory_bytes > 0, "all marks are notes");
    for _ in 0..2 {
        for (number, snapshot) in snapshots.iter().enumerate() {
            let value = |at: usize| if at < number { b"new" } else { b"old" };
            let wanted = keys.iter().enumerate().map(|(at, key)| pair(key, value(at)));
            assert_eq!(all(&**snapshot), wanted.collect::<Vec<_>>());
            let found = get(&**snapshot, &keys[number]);
            assert_eq!(found.as_deref(), Some(&b"old"[..]));
        }
        go_home(&tree);
    }
    let stats = tree.pre_images.stats();
    assert_eq!((stats.links, stats.marks), (40, 0));
}

/// S5: the pre-image is what was there before the put.
#[test]
fn s05_what_is_kept_is_from_before_the_put() {
    let tree = of_two();
    let snapshot = begin(&tree, 1);
    assert_eq!(get(&*snapshot, b"a").unwrap(), b"a0");
    // In memory now, so that it is copied.
    write(&tree, b"a", Some(b"a1"), 1);
    assert_eq!(tree.pre_images.stats().links, 1);
    assert_eq!(get(&*snapshot, b"a").unwrap(), b"a0");
    write(&tree, b"a", Some(b"a2"), 1);
    assert_eq!(get(&*snapshot, b"a").unwrap(), b"a0");
    assert_eq!(all(&*snapshot), [pair(b"a", b"a0"), pair(b"b", b"b0")]);
}

/// S8: a record that was dirty before the snapshot is copied, because its page is older.
#[test]
fn s08_dirty_records_are_copied() {
    let tree = of_two();
    write(&tree, b"a", Some(b"a1"), 0);
    write(&tree, b"b", None, 0);
    let snapshot = begin(&tree, 1);
    write(&tree, b"a", Some(b"a2"), 1);
    write(&tree, b"b", Some(b"b2"), 1);
    assert_eq!((tree.pre_images.stats().links, tree.pre_images.stats().marks), (2, 0));
    for _ in 0..2 {
        assert_eq!(get(&*snapshot, b"a").unwrap(), b"a1");
        assert_eq!(get(&*snapshot, b"b"), None);
        assert_eq!(all(&*snapshot), [pair(b"a", b"a1")]);
        go_home(&tree);
    }
}

/// S10: what pages hold of marked keys is kept before they are rewritten, in place or by a
/// reorganization.
#[test]
fn s10_marked_records_are_brought_home() {
    for reorganizes in [false, true] {
        let tree = of_two();
        let snapshot = begin(&tree, 1);
        write(&tree, b"a", Some(b"a1"), 1);
        write(&tree, b"b", None, 1);
        write(&tree, b"c", Some(b"c1"), 1);
        assert_eq!((tree.pre_images.stats().links, tree.pre_images.stats().marks), (0, 3));
        let wanted = [pair(b"a", b"a0"), pair(b"b", b"b0")];
        assert_eq!(all(&*snapshot), wanted);
        if reorganizes {
            let _gate = tree.shape.gate.read();
            tree.reorganize(&tree.shape.index.find(b"a"), Why::Compact).unwrap();
        } else {
            tree.write_back(&[b"a".to_vec()]).unwrap();
        }
        tree.memory.cache.forget_clean();
        assert_eq!((tree.pre_images.stats().links, tree.pre_images.stats().marks), (3, 0));
        assert_eq!(all(&*snapshot), wanted);
        assert_eq!(get(&*snapshot, b"a").unwrap(), b"a0");
        assert_eq!(get(&*snapshot, b"b").unwrap(), b"b0");
        assert_eq!(get(&*snapshot, b"c"), None);
    }
}

/// S11: a marked record is not staged. What is staged counts as the page of a key that is marked
/// later.
#[test]
fn s11_marked_records_are_not_staged() {
    let tree = empty();
    let key = |number: u8| [number];
    let value = |version: u8| vec![version; if version == 0 { 150 } else { 40 }];
    for number in 0..200 {
        write(&tree, &key(number), Some(&value(0)), 0);
    }
    go_home(&tree);
    tree.set_option("staging", "on").unwrap();
    let write_some = |version: u8, newest: u64| {
        for number in (0..200).step_by(2) {
            write(&tree, &key(number), Some(&value(version)), newest);
        }
        go_home(&tree);
    };
    write_some(1, 0);
    let staged = tree.shape.index.counts().staged_pages;
    assert!(staged > 0, "nothing was staged");
    let snapshot = begin(&tree, 1);
    write_some(2, 1);
    for number in 0..200 {
        let wanted = value(u8::from(number % 2 == 0));
        assert_eq!(get(&*snapshot, &key(number)).unwrap(), wanted, "key {number}");
    }
    assert_eq!(tree.pre_images.stats().marks, 0, "their marks were not resolved");
    drop(snapshot);
    write_some(3, 0);
    let again = begin(&tree, 2);
    write_some(4, 2);
    assert_eq!(get(&*again, &key(20)).unwrap(), value(3));
}

/// S12: a scan passes over dirty records of marked keys, and lays links over the rest.
#[test]
fn s12_scans_show_the_pages_of_marked_keys() {
    let tree = of_two();
    write(&tree, b"c", Some(b"c0"), 0);
    let snapshot = begin(&tree, 1);
    // Marked: a, b and d. Linked: c.
    write(&tree, b"a", Some(b"a1"), 1);
    write(&tree, b"b", None, 1);
    write(&tree, b"c", Some(b"c1"), 1);
    write(&tree, b"d", Some(b"d1"), 1);
    assert_eq!((tree.pre_images.stats().links, tree.pre_images.stats().marks), (1, 3));
    let later = begin(&tree, 2);
    write(&tree, b"a", Some(b"a2"), 2);
    write(&tree, b"d", None, 2);
    for _ in 0..2 {
        let wanted = [pair(b"a", b"a0"), pair(b"b", b"b0"), pair(b"c", b"c0")];
        assert_eq!(all(&*snapshot), wanted);
        assert_eq!(all(&*later), [pair(b"a", b"a1"), pair(b"c", b"c1"), pair(b"d", b"d1")]);
        go_home(&tree);
    }
}

/// Numbers that look random and replay.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A snapshot, and what it is to answer.
struct Kept {
    number: u64,
    /// Where its number stands in `words`.
    since: usize,
    snapshot: Box<dyn EngineSnapshot>,
    model: Model,
    /// Whether every batch of a lesser number has been applied.
    is_handed_out: bool,
}

/// A keyspace, its snapshots, and models of both.
struct World {
    tree: Arc<TreeLine>,
    random: Random,
    now: Model,
    kept: Vec<Kept>,
    drawn: u64,
    /// Numbers that batches found, in the order of time. Those from the last but one on may be under
    /// way.
    words: Vec<u64>,
    /// Where in `words` the number of a key's last write stands.
    written: BTreeMap<Vec<u8>, usize>,
    keys: usize,
    bytes: usize,
}

impl World {
    fn new(seed: u64, keys: usize, bytes: usize) -> World {
        World {
            tree: empty(),
            random: Random(seed),
            now: Model::new(),
            kept: Vec::new(),
            drawn: 0,
            words: vec![0],
            written: BTreeMap::new(),
            keys,
            bytes,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        (self.random.below(self.keys) as u16).to_be_bytes().to_vec()
    }

    /// Writes values of many keys, which may be staged where they are in memory or no snapshot lives.
    fn burst(&mut self) {
        for _ in 0..60 {
            let key = self.key();
            if self.random.below(8) > 0 {
                self.tree.make_resident(&key, hash(&key)).unwrap();
            }
            let byte = self.random.below(256) as u8;
            self.write_value(key, Some(vec![byte; 20]));
        }
        self.tree.write_back_everything(&mut |_| false).unwrap();
    }

    fn write(&mut self, key: Vec<u8>) {
        let length = 1 + self.random.below(self.bytes);
        let byte = self.random.below(256) as u8;
        let value = (self.random.below(5) > 0).then(|| vec![byte; length]);
        self.write_value(key, value);
    }

    /// Writes with the number of this moment, or, while a snapshot is being taken, with the one before.
    fn write_value(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let last = self.words.len() - 1;
        let is_late = self.kept.last().is_some_and(|kept| !kept.is_handed_out);
        let first = if is_late && self.random.below(2) == 0 { last - 1 } else { last };
        let word = first.max(self.written.get(&key).copied().unwrap_or(0));
        self.written.insert(key.clone(), word);
        let newest = self.words[word];
        write(&self.tree, &key, value.as_deref(), newest);
        let of_later = self.kept.iter_mut().filter(|kept| word < kept.since);
        for model in of_later.map(|kept| &mut kept.model).chain([&mut self.now]) {
            match &value {
                Some(value) => _ = model.insert(key.clone(), value.clone()),
                None => _ = model.remove(&key),
            }
        }
    }

    fn take(&mut self) {
        self.drawn += 1;
        let snapshot = begin(&self.tree, self.drawn);
        self.words.push(self.drawn);
        let (number, since, model) = (self.drawn, self.words.len() - 1, self.now.clone());
        self.kept.push(Kept { number, since, snapshot, model, is_handed_out: false });
    }

    fn drop_one(&mut self) {
        let which = self.random.below(self.kept.len());
        if !self.kept[which].is_handed_out {
            return;
        }
        drop(self.kept.remove(which));
        if self.kept.is_empty() {
            self.words.push(0);
        }
    }

    fn check(&mut self, which: usize) {
        let Kept { snapshot, model, is_handed_out, number, .. } = &self.kept[which];
        if !is_handed_out {
            return;
        }
        let snapshot = &**snapshot;
        if snapshot.stats().ended {
            let error = snapshot.get(b"a", hash(b"a"), &mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
            return;
        }
        let random = &mut self.random;
        let keys: Vec<Vec<u8>> =
            (0..20).map(|_| (random.below(self.keys) as u16).to_be_bytes().to_vec()).collect();
        for key in &keys {
            assert_eq!(get(snapshot, key).as_ref(), model.get(key), "{key:?} in {number}");
        }
        let hashed: Vec<_> = keys.iter().map(|key| (key.as_slice(), hash(key))).collect();
        for (key, found) in keys.iter().zip(snapshot.get_many(&hashed).unwrap()) {
            let wanted =
                model.get(key).map(|bytes| OwnedValue { bytes: bytes.clone(), large: false });
            assert_eq!(found, wanted, "{key:?} of many in {number}");
        }
        let mut ends = [&keys[0], &keys[1]];
        ends.sort();
        let [lower, upper] = ends;
        let chunk = 1 + random.below(30);
        let wanted: Vec<_> = model
            .range(lower.clone()..upper.clone())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let range = (Bound::Included(lower.as_slice()), Bound::Excluded(upper.as_slice()));
        let forward = scan(snapshot, range, Direction::Forward, chunk);
        assert_eq!(forward, wanted, "forward in {number}");
        let mut reversed = scan(snapshot, range, Direction::Reverse, chunk);
        reversed.reverse();
        assert_eq!(reversed, wanted, "reversed in {number}");
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..60 => {
                let key = self.key();
                match self.random.below(4) {
                    // So that the cache has it.
                    0 => _ = self.tree.make_resident(&key, hash(&key)),
                    1 => self.tree.memory.cache.forget_clean(),
                    _ => {}
                }
                self.write(key);
            }
            60..66 => {
                let keys = [self.key(), self.key()];
                self.tree.write_back(&keys).unwrap();
            }
            66..68 => self.tree.write_back_everything(&mut |_| false).unwrap(),
            68..72 => {
                let why = [Why::Tidy, Why::Full, Why::Compact][self.random.below(3)];
                let key = self.key();
                let located = self.tree.shape.index.find(&key);
                let _gate = self.tree.shape.gate.read();
                self.tree.reorganize(&located, why).unwrap();
            }
            72 if self.random.below(4) == 0 => _ = self.tree.merge_staged().unwrap(),
            72 => self.burst(),
            73 => {
                let staging = ["on", "on", "off", "auto"][self.random.below(4)];
                self.tree.set_option("staging", staging).unwrap();
            }
            74..78 => self.tree.memory.cache.forget_clean(),
            78..82 => _ = self.tree.tend_pre_images().unwrap(),
            82 if self.kept.len() < 6 && self.kept.iter().all(|kept| kept.is_handed_out) => {
                self.take();
            }
            83..86 => {
                if let Some(kept) = self.kept.last_mut() {
                    kept.is_handed_out = true;
                }
            }
            86 if !self.kept.is_empty() => self.drop_one(),
            87..100 if !self.kept.is_empty() => {
                let which = self.random.below(self.kept.len());
                self.check(which);
            }
            _ => {}
        }
    }
}

/// What happened in some worlds.
#[derive(Debug, Default)]
struct Happened {
    spills: u64,
    resolved: u64,
    staged: u64,
    ended: u64,
}

/// Random steps of writers, write-backs, staging, reorganizations, evictions, spills, folds, snapshots
/// and readers, in one thread, beside a model of each snapshot.
fn random_steps(seeds: std::ops::Range<u64>, run_bytes_max: u64) -> Happened {
    let mut happened = Happened::default();
    let shapes = [(20, 50), (300, 100), (300, 900), (1500, 200), (2000, 60), (800, 2500)];
    for seed in seeds {
        let (keys, bytes) = shapes[seed as usize % shapes.len()];
        let mut world = World::new(seed, keys, bytes);
        world.tree.pre_images.follow(0, run_bytes_max);
        let mut staged = 0;
        for _ in 0..3000 {
            world.step();
            let now = world.tree.shape.index.counts().staged_pages;
            happened.staged += u64::from(now > staged);
            staged = now;
        }
        for which in 0..world.kept.len() {
            world.check(which);
            let Kept { snapshot, model, is_handed_out, .. } = &world.kept[which];
            if *is_handed_out && !snapshot.stats().ended {
                let found: Model = all(&**snapshot).into_iter().collect();
                assert!(found == *model, "seed {seed}");
            }
        }
        let stats = world.tree.pre_images.stats();
        happened.spills += stats.spills;
        happened.resolved += stats.resolved;
        happened.ended += stats.ended;
        world.kept.clear();
        assert!(world.tree.pre_images.is_empty());
        assert_eq!(world.tree.pre_images.stats().memory_bytes, 0);
        // No note outlives its record's write-back.
        go_home(&world.tree);
        assert!(!world.tree.pre_images.has_marks());
    }
    happened
}

#[test]
fn snapshots_are_what_the_model_says() {
    let happened = random_steps(0..18, u64::MAX);
    assert!(happened.spills > 20 && happened.resolved > 1000, "{happened:?}");
    assert!(happened.staged > 20 && happened.ended == 0, "{happened:?}");
}

/// S16: with few bytes for runs, or none, a snapshot answers right or `SnapshotTooOld`.
#[test]
fn s16_snapshots_are_right_or_too_old() {
    let happened = [0, 40 << 10].map(|most| random_steps(20..26, most));
    assert!(happened.iter().all(|one| one.ended > 3), "{happened:?}");
    assert!(happened[0].spills == 0 && happened[1].spills > 0, "{happened:?}");
}
