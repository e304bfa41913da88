//! Lookups of keys that are not there: what they read, what they leave in memory, and that they
//! find what came since.
#![cfg(not(feature = "shuttle"))]

#[path = "common/seeds.rs"]
mod seeds;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::runtime::SplitMix;
use spinney_db::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::Purpose;
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_sync::hash_key;

use crate::seeds::seeds;

fn open(disk: &SimDisk, memory: u64) -> (Db, Runtime) {
    let runtime = Runtime::stepped(1);
    let options = Options::default()
        .memory(memory)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone());
    (Db::open(Path::new("/db"), options).unwrap(), runtime)
}

fn pages_looked_up(db: &Db) -> u64 {
    db.stats().io.by_purpose[Purpose::LOOKUP.index()].read_bytes / 4096
}

/// Keys in any order, those of even numbers apart from those of odd ones.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

const COUNT: u64 = 100_000;

/// Puts records of 64 bytes with the keys of even numbers.
fn fill(keyspace: &Keyspace, runtime: &Runtime) {
    for number in 0..COUNT {
        keyspace.insert_with(key(2 * number), [7; 56], Durability::Buffered).unwrap();
        if number.is_multiple_of(1000) {
            runtime.step();
        }
    }
}

/// Looks up keys that are not there; returns pages read for each lookup.
#[expect(clippy::cast_precision_loss, reason = "a ratio of small numbers")]
fn ask_in_vain(
    (db, runtime): &(Db, Runtime),
    keyspace: &Keyspace,
    random: &mut SplitMix,
    lookups: u64,
) -> f64 {
    let before = pages_looked_up(db);
    for lookup in 0..lookups {
        let absent = key(random.next_u64() | 1);
        assert_eq!(keyspace.get(absent).unwrap(), None);
        if lookup.is_multiple_of(50) {
            runtime.step();
        }
    }
    (pages_looked_up(db) - before) as f64 / lookups as f64
}

/// With memory for all data, and for a third of it, whatever was asked for before, and after an
/// opening.
#[test]
fn absent_keys_read_hardly_a_page() {
    for engine in [EngineKind::TreeLine, EngineKind::Turtle] {
        for (memory, most) in [(256 << 20, 0.02), (9 << 18, 0.3)] {
            let disk = SimDisk::new(1);
            let database = open(&disk, memory);
            let options = || KeyspaceOptions::default().engine(engine);
            let keyspace = database.0.keyspace("main", options()).unwrap();
            fill(&keyspace, &database.1);
            database.0.checkpoint().unwrap();
            let random = &mut SplitMix(1);
            let warm = ask_in_vain(&database, &keyspace, random, 50_000);
            let then = ask_in_vain(&database, &keyspace, random, 100_000);
            for _ in 0..100_000 {
                let there = key(2 * (random.next_u64() % COUNT));
                assert!(keyspace.get(there).unwrap().is_some());
            }
            let again = ask_in_vain(&database, &keyspace, random, 200_000);
            drop(keyspace);
            database.0.close().unwrap();
            let database = open(&disk, memory);
            let keyspace = database.0.existing_keyspace("main").unwrap();
            let opened = ask_in_vain(&database, &keyspace, random, 200_000);
            println!("{engine}, {memory} bytes: {warm:.3}, {then:.3}, {again:.3}, {opened:.3}");
            assert!(then <= most && again <= most && opened <= most, "{engine}, {memory} bytes");
        }
    }
}

/// Inserts on the condition that the key is absent: asking costs hardly a page, with memory for all
/// data and for a part.
#[test]
#[expect(clippy::cast_precision_loss, reason = "a ratio of small numbers")]
fn inserts_that_ask_first_read_hardly_a_page() {
    for (memory, most) in [(256 << 20, 0.1), (9 << 18, 0.5)] {
        let (db, runtime) = open(&SimDisk::new(1), memory);
        let keyspace = db.keyspace("main", KeyspaceOptions::default()).unwrap();
        for number in 0..2 * COUNT {
            let value = [7; 56];
            keyspace.compare_and_swap(key(number), None, Some(&value)).unwrap().unwrap();
            if number.is_multiple_of(200) {
                runtime.step();
            }
        }
        let pages = pages_looked_up(&db) as f64 / (2 * COUNT) as f64;
        println!("{memory} bytes: {pages:.3} pages for each insert");
        assert!(pages <= most, "{memory} bytes: {pages:.3}");
    }
}

/// A keyspace whose lookups go to pages or filters alone, and what it should hold.
struct Compared {
    database: (Db, Runtime),
    keyspace: Keyspace,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What keyspaces that were open before have refused.
    refused: u64,
}

impl Compared {
    fn open(disk: &SimDisk, model: BTreeMap<Vec<u8>, Vec<u8>>, refused: u64) -> Compared {
        let database = open(disk, 4 << 20);
        let choices = [("record-cache", "off"), ("page-cache", "off")];
        let set = |options: KeyspaceOptions, (name, value)| options.set(name, value).unwrap();
        let options = choices.into_iter().fold(KeyspaceOptions::default(), set);
        let keyspace = database.0.keyspace("main", options).unwrap();
        Compared { database, keyspace, model, refused }
    }

    /// As another process finds it after a crash.
    fn crashed(self, disk: &SimDisk) -> (Compared, SimDisk) {
        let disk = disk.crash(CrashMode::LoseAll);
        let refused = self.refused();
        (Compared::open(&disk, self.model, refused), disk)
    }

    fn refused(&self) -> u64 {
        self.refused + self.keyspace.stats().page_filter_refusals
    }

    fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => {
                self.keyspace.insert(&key, &value).unwrap();
                self.model.insert(key, value);
            }
            None => {
                self.keyspace.remove(&key).unwrap();
                self.model.remove(&key);
            }
        }
    }

    fn step(&self, steps: usize) {
        (0..steps).for_each(|_| _ = self.database.1.step());
    }

    /// Every key of the model and others are looked up, one by one and many at once.
    fn check(&self, others: impl Iterator<Item = Vec<u8>>) {
        let there = self.model.keys().cloned();
        let keys: Vec<Vec<u8>> = there.chain(others).collect();
        for key in &keys {
            let found = self.keyspace.get(key).unwrap();
            assert_eq!(found.as_deref(), self.model.get(key).map(|value| &value[..]), "{key:?}");
        }
        for some in keys.chunks(100) {
            let asked: Vec<&[u8]> = some.iter().map(|key| &key[..]).collect();
            for (key, found) in some.iter().zip(self.keyspace.multi_get(&asked).unwrap()) {
                let expected = self.model.get(key).map(|value| &value[..]);
                assert_eq!(found.as_deref(), expected, "{key:?} of many");
            }
        }
    }
}

/// P23: what lookups in vain leave in memory refuses no key that came to the page since: in place,
/// in an overflow page, by a staged page, by a reorganization.
#[test]
fn p23_filters_follow_what_is_written() {
    let disk = SimDisk::new(1);
    let mut compared = Compared::open(&disk, BTreeMap::new(), 0);
    // Between any two of these others come.
    let key = |number: u64, of: u64| (number * 64 + of).to_be_bytes().to_vec();
    let absent = || (0..2000).map(|number| key(number, 63));
    (0..2000).for_each(|number| compared.put(key(number, 0), Some(vec![0; 50])));
    compared.database.0.checkpoint().unwrap();
    let mut shapes = [false; 3];
    for of in 1..20u8 {
        // What is staged is merged when nothing is done for a while.
        let staging = if of % 4 == 0 { "on" } else { "off" };
        let options = KeyspaceOptions::default().set("staging", staging).unwrap();
        drop(compared.database.0.keyspace("main", options).unwrap());
        // Filters of all pages, those of keys that will come among them.
        let coming = || (0..2000).step_by(3).map(|number| key(number, of.into()));
        for _ in 0..2 {
            compared.check(absent().chain(coming()));
            compared.step(3);
        }
        let before = compared.refused();
        compared.check(absent().chain(coming()));
        assert!(compared.refused() - before > 2000, "nothing is left in memory");
        let stats = compared.keyspace.stats();
        for key in coming().collect::<Vec<_>>() {
            compared.put(key, Some(vec![of; 50]));
        }
        if of % 3 == 0 {
            (0..2000).step_by(11).for_each(|number| compared.put(key(number, 2), None));
        }
        compared.check(absent());
        compared.database.0.checkpoint().unwrap();
        let now = compared.keyspace.stats();
        shapes[0] |= now.overflow_pages > stats.overflow_pages;
        shapes[1] |= now.staged_pages > stats.staged_pages;
        shapes[2] |= now.reorganizations > stats.reorganizations;
        compared.check(absent().chain(coming()));
        compared.step(if of % 5 == 0 { 2000 } else { 5 });
        compared.check(absent().chain(coming()));
    }
    assert_eq!(shapes, [true; 3], "overflow pages, staged pages, reorganizations");
    compared.database.0.verify().unwrap();
    let (compared, _) = compared.crashed(&disk);
    for _ in 0..3 {
        compared.check(absent());
        compared.step(3);
    }
}

/// P23: the same with operations in any order, and crashes, less memory and bulk loads among them.
#[test]
fn p23_filters_agree_with_a_model() {
    let mut refused = 0;
    for seed in seeds(6) {
        let random = &mut SplitMix(seed);
        let mut disk = SimDisk::new(seed);
        let mut compared = Compared::open(&disk, BTreeMap::new(), 0);
        if seed % 2 == 0 {
            let sorted: BTreeMap<Vec<u8>, Vec<u8>> =
                (0..3000).map(|number: u64| (key(number).to_vec(), vec![1; 40])).collect();
            compared.keyspace.bulk_load(&sorted).unwrap();
            compared.model = sorted;
        }
        for _ in 0..150 {
            let from = random.next_u64() % 6000;
            let some = || (from..from + 200).map(|number| key(number).to_vec());
            match random.next_u64() % 12 {
                0..3 => {
                    let length = (random.next_u64() % 120) as usize;
                    some().for_each(|key| compared.put(key, Some(vec![length as u8; length])));
                }
                3 => some().for_each(|key| compared.put(key, None)),
                4 | 5 => compared.check(some()),
                6 | 7 => compared.database.0.checkpoint().unwrap(),
                8 | 9 => compared.step((random.next_u64() % 200) as usize),
                10 => {
                    let memory = (2 << 20) + random.next_u64() % (2 << 20);
                    compared.database.0.set_memory(memory).unwrap();
                }
                _ => (compared, disk) = compared.crashed(&disk),
            }
        }
        compared.check((0..6200).map(|number| key(number).to_vec()));
        refused += compared.refused();
    }
    assert!(refused > 10_000, "{refused}");
}

/// Memory that filters have goes back to records that are asked for again and again, and at once
/// when the keyspace is to have less; the account is never above what it may have.
#[test]
fn filters_give_their_memory_back() {
    const MEMORY: u64 = 3 << 20;
    let disk = SimDisk::new(1);
    let database = open(&disk, MEMORY);
    let (db, runtime) = &database;
    let keyspace = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    fill(&keyspace, runtime);
    db.checkpoint().unwrap();
    let random = &mut SplitMix(1);
    let accounted = || {
        let account = db.stats().accounts.into_iter().find(|one| one.name.contains("main"));
        let account = account.expect("the account of the keyspace");
        assert!(account.used <= account.target, "{account:?}");
        (keyspace.stats().page_filter_bytes, account.target)
    };
    assert_eq!(accounted().0, 0, "nobody asked in vain");
    let grown = |random: &mut SplitMix| {
        for _ in 0..50 {
            ask_in_vain(&database, &keyspace, random, 4000);
            accounted();
        }
        let (bytes, target) = accounted();
        assert!(bytes > target / 8, "{bytes} of {target}");
        bytes
    };
    grown(random);
    // More than there is room for, half of what is asked for always the same.
    for step in 0..2_000_000u64 {
        let records = if step.is_multiple_of(2) { COUNT / 20 } else { COUNT };
        let there = key(2 * (random.next_u64() % records));
        assert!(keyspace.get(there).unwrap().is_some());
        if step.is_multiple_of(50) {
            runtime.step();
        }
        if step.is_multiple_of(10_000) {
            let (bytes, target) = accounted();
            if bytes <= target / 128 {
                break;
            }
        }
    }
    let (bytes, target) = accounted();
    assert!(bytes <= target / 128, "{bytes} of {target}");
    let before = grown(random);
    db.set_memory(2 << 20).unwrap();
    // The target is what is asked for; what is used follows with the next look at it.
    (0..20).for_each(|_| _ = runtime.step());
    let (bytes, target) = accounted();
    assert!(bytes < before && bytes <= target / 2, "{bytes} of {target}, before {before}");
}

/// P4: a write on the condition that a key is absent makes progress beside a hot key of its stripe,
/// also where a filter says that it is absent.
#[test]
fn p04_refused_keys_become_resident() {
    let disk = SimDisk::new(1);
    let database = open(&disk, 64 << 20);
    let keyspace = database.0.keyspace("main", KeyspaceOptions::default()).unwrap();
    fill(&keyspace, &database.1);
    database.0.checkpoint().unwrap();
    ask_in_vain(&database, &keyspace, &mut SplitMix(1), 100_000);
    let refused = || keyspace.stats().page_filter_refusals;
    let absent = (0..)
        .map(|number: u32| format!("absent{number}").into_bytes())
        .find(|absent| {
            let before = refused();
            assert_eq!(keyspace.get(absent).unwrap(), None);
            refused() > before
        })
        .expect("most are refused");
    let stripe = |key: &[u8]| hash_key(keyspace.id(), key) >> 48;
    let neighbour = (0u32..)
        .map(|number| format!("n{number}").into_bytes())
        .find(|other| stripe(other) == stripe(&absent))
        .expect("one key of 64 Ki");
    let mut runs = 0;
    let update = keyspace.update(&absent, |old| {
        runs += 1;
        assert!(runs < 10, "the write never validates");
        keyspace.insert(&neighbour, b"hot").unwrap();
        assert_eq!(old, None);
        Some(b"new".to_vec())
    });
    update.unwrap();
    assert_eq!(keyspace.get(&absent).unwrap().as_deref(), Some(&b"new"[..]));
}
