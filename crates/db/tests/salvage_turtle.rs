//! Salvage (rule P22) of turtle keyspaces, beside one of TreeLine, on the simulated disk: single
//! pages, slots, the head of the file and pages at random are damaged. Every record that no damaged
//! page holds is saved with its newest value, what is not is reported, and what is saved was once
//! true.
#![cfg(not(feature = "shuttle"))]

#[path = "common/seeds.rs"]
mod seeds;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use spinney_base::Runtime;
use spinney_db::{
    Db, Durability, EngineKind, Keyspace, KeyspaceOptions, LostRange, Options, SalvageReport,
    SalvagedKeyspace,
};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use crate::seeds::seeds;

const FILE: &str = "/db/keyspace-00000001.spn";
const NEW: &str = "/new";
const PAGE: usize = 4096;
const PAYLOAD: u32 = 4064;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(3 << 20)
        .log_bytes_max(16 << 20)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

/// A keyspace of each engine with the same past.
struct Old {
    disk: SimDisk,
    runtime: Runtime,
    db: Db,
    turtle: Keyspace,
    treeline: Keyspace,
    model: Model,
    /// Every value that a key ever had; `None` when it was removed.
    ever: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
    number: u64,
    keys: u64,
}

impl Old {
    fn new(seed: u64, chi: u64) -> Old {
        let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
        let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
        let of_turtle = KeyspaceOptions::default().engine(EngineKind::Turtle);
        let of_turtle = of_turtle.set("leaf", "16KiB").unwrap();
        let turtle = db.keyspace("turtle", of_turtle).unwrap();
        turtle.turtle().unwrap().set_checkpoint_distance(chi).unwrap();
        let treeline = db.keyspace("treeline", KeyspaceOptions::default()).unwrap();
        let (model, ever, number) = (Model::new(), BTreeMap::new(), seed * 1_000_000);
        Old { disk, runtime, db, turtle, treeline, model, ever, number, keys: 4_000 }
    }

    fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.number += 1;
            let number = self.number;
            let key = number.wrapping_mul(0x9E37_79B9) % self.keys;
            let key = format!("key {key:06}").into_bytes();
            let value = match number % 7 {
                0 | 1 => None,
                2 if number % 182 == 2 => Some(number.to_be_bytes().repeat(1_500)),
                _ => Some(number.to_be_bytes().repeat(5 + (number % 40) as usize)),
            };
            for keyspace in [&self.turtle, &self.treeline] {
                match &value {
                    Some(value) => keyspace.insert_with(&key, value, Durability::Buffered).unwrap(),
                    None => keyspace.remove_with(&key, Durability::Buffered).unwrap(),
                }
            }
            match &value {
                Some(value) => _ = self.model.insert(key.clone(), value.clone()),
                None => _ = self.model.remove(&key),
            }
            self.ever.entry(key).or_default().push(value);
            if number.is_multiple_of(20) {
                (0..4).for_each(|_| _ = self.runtime.step());
            }
        }
    }

    /// What is in pages alone, or else in the log on top.
    fn end(self, with_log: bool) -> Ended {
        let Old { disk, db, turtle, treeline, model, ever, .. } = self;
        let disk = if with_log {
            db.flush().unwrap();
            disk.kill()
        } else {
            drop((turtle, treeline));
            db.close().unwrap();
            disk
        };
        Ended { disk, model, ever }
    }
}

struct Ended {
    disk: SimDisk,
    model: Model,
    ever: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
}

fn an_old_one(seed: u64, chi: u64, with_log: bool) -> Ended {
    let mut old = Old::new(seed, chi);
    old.write(9_000);
    old.db.checkpoint().unwrap();
    old.write(if with_log { 700 } else { 3_000 });
    old.end(with_log)
}

fn salvage(disk: &SimDisk) -> SalvageReport {
    Db::salvage("/db", NEW, options(disk, &Runtime::stepped(1))).unwrap()
}

fn contents(disk: &SimDisk, name: &str) -> Model {
    let db = Db::open(Path::new(NEW), options(disk, &Runtime::stepped(2))).unwrap();
    db.verify().unwrap();
    let keyspace = db.existing_keyspace(name).unwrap();
    let all = keyspace.iter().map(Result::unwrap);
    all.map(|(key, value)| (key, value.to_vec())).collect()
}

fn zero(disk: &SimDisk, pages: std::ops::Range<u64>) {
    let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
    let count = usize::try_from(pages.end - pages.start).unwrap();
    file.write_at(AlignedBuf::new(count).bytes(), pages.start * 4096, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
}

fn remove(disk: &SimDisk, path: &str) {
    disk.remove(Path::new(path)).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
}

fn same(found: &Model, expected: &Model, when: &str) {
    for (key, value) in expected {
        assert!(found.get(key) == Some(value), "{when}: {} is wrong", key.escape_ascii());
    }
    let more = found.keys().find(|key| !expected.contains_key(*key));
    assert!(more.is_none(), "{when}: {} came back", more.unwrap().escape_ascii());
}

fn within(ranges: &[LostRange], key: &[u8]) -> bool {
    ranges.iter().any(|range| {
        range.lower.as_slice() <= key && range.upper.as_deref().is_none_or(|upper| key < upper)
    })
}

/// What is not as it was is reported, and was once so; answers how many records that are.
fn check(old: &Ended, found: &Model, one: &SalvagedKeyspace, when: &str) -> usize {
    let mut wrong = 0;
    for (key, all) in &old.ever {
        let now = found.get(key).cloned();
        if now.as_ref() == old.model.get(key) {
            continue;
        }
        wrong += 1;
        let told =
            within(&one.lost, key) || within(&one.older, key) || one.lost_values.contains(key);
        assert!(told, "{when}: {} is wrong, {one:#?}", key.escape_ascii());
        assert!(now.is_none() || all.contains(&now), "{when}: {}", key.escape_ascii());
    }
    assert!(found.keys().all(|key| old.ever.contains_key(key)), "{when}: a new key");
    wrong
}

/// Pages of a file by what they are, found as salvage finds them.
#[derive(Default)]
struct Kinds {
    index: Vec<u64>,
    filter: Vec<u64>,
    keys: Vec<u64>,
    values: Vec<u64>,
    nodes: Vec<u64>,
    large: Vec<u64>,
}

fn kinds(disk: &SimDisk) -> Kinds {
    let bytes = disk.contents(Path::new(FILE)).unwrap();
    let mut kinds = Kinds::default();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    for page in 128..bytes.len() / PAGE {
        let block = page * PAGE;
        match bytes[block + 8] {
            4 => kinds.large.push(page as u64),
            6 => kinds.nodes.push(page as u64),
            5 if number(block + 40) == page as u32 && number(block + 44) == number(block + 16) => {
                let field = |index: usize| number(block + 40 + 4 * index);
                let sections = [
                    (&mut kinds.index, field(3).div_ceil(PAYLOAD)),
                    (&mut kinds.filter, field(4).div_ceil(127)),
                    (&mut kinds.keys, field(5)),
                    (&mut kinds.values, field(6).div_ceil(PAYLOAD)),
                ];
                let mut at = page as u64;
                for (pages, count) in sections {
                    pages.extend(at..at + u64::from(count));
                    at += u64::from(count);
                }
            }
            _ => {}
        }
    }
    kinds
}

fn flip(disk: &SimDisk, page: u64) {
    disk.flip_bit(Path::new(FILE), page * PAGE as u64 + 700, 3).unwrap();
}

/// Damages a copy of the disk and salvages it; what is not told must be as it was, of both engines.
fn damaged(old: &Ended, when: &str, damage: impl Fn(&SimDisk)) -> (usize, SalvageReport) {
    let disk = old.disk.kill();
    damage(&disk);
    let report = salvage(&disk);
    let wrong = check(old, &contents(&disk, "turtle"), &report.keyspaces[0], when);
    same(&contents(&disk, "treeline"), &old.model, when);
    (wrong, report)
}

/// Every record of a healthy database, closed or killed, with the log on top.
#[test]
fn p22_a_healthy_turtle_is_saved_whole() {
    for seed in seeds(8) {
        let old = an_old_one(seed, 1 + seed % 4 * 3, seed % 2 == 0);
        let (wrong, report) = damaged(&old, "healthy", |_| {});
        assert!(report.is_whole() && wrong == 0, "{report:#?}");
        let one = &report.keyspaces[0];
        assert!(one.damaged.is_empty() && one.checkpoint.is_none(), "{report:#?}");
    }
}

/// One page is damaged: keys, values, index, filter. Only records that lie there are lost, or older
/// ones.
#[test]
fn p22_a_damaged_page_loses_its_records_alone() {
    let (mut lost, mut silent) = (0, 0);
    for seed in seeds(4) {
        let old = an_old_one(seed, 1 + seed * 2, seed % 2 == 1);
        let kinds = kinds(&old.disk);
        for (what, pages) in [
            ("index", &kinds.index),
            ("filter", &kinds.filter),
            ("keys", &kinds.keys),
            ("values", &kinds.values),
        ] {
            assert!(!pages.is_empty(), "{what}");
            for nth in [0, pages.len() / 2, pages.len() - 1] {
                let when = format!("seed {seed}, {what} {nth}");
                let (wrong, report) = damaged(&old, &when, |disk| flip(disk, pages[nth]));
                let one = &report.keyspaces[0];
                assert!(one.checkpoint.is_none() && one.damaged.len() <= 1, "{when}: {one:#?}");
                // A page that is not in use is none of anybody's business.
                silent += usize::from(one.damaged.is_empty());
                let told = one.lost.len() + one.older.len();
                if one.damaged.is_empty() || ["index", "filter"].contains(&what) {
                    assert!(wrong == 0 && told == 0 && report.is_whole(), "{when}: {one:#?}");
                } else {
                    assert!(
                        told > 0 && wrong < 600 && !report.is_whole(),
                        "{when}: {wrong}, {one:#?}"
                    );
                }
                lost += wrong;
            }
        }
    }
    // Of the first, middle and last pages of each kind about half are of older checkpoints.
    assert!(lost > 50 && silent < 36, "{lost} lost, {silent} of 48 without a trace");
}

/// A node is damaged: what is below is found by what its pages say.
#[test]
fn p22_a_damaged_node_loses_next_to_nothing() {
    let (mut hurt, mut right, mut all) = (0, 0, 0);
    for seed in seeds(4) {
        let old = an_old_one(seed, 1 + seed * 2, seed % 2 == 1);
        for page in kinds(&old.disk).nodes {
            let when = format!("seed {seed}, node in page {page}");
            let (wrong, report) = damaged(&old, &when, |disk| flip(disk, page));
            let one = &report.keyspaces[0];
            hurt += usize::from(!one.damaged.is_empty());
            assert_eq!(one.damaged.is_empty(), report.is_whole(), "{when}: {one:#?}");
            all += old.ever.len();
            right += old.ever.len() - wrong;
        }
    }
    assert!(hurt >= seeds(4).count(), "{hurt} nodes in use");
    assert!(right * 100 > all * 99, "{right} of {all}");
}

/// The same in a tree of several nodes: only the ranges below the damaged one may have suffered.
#[test]
fn p22_what_is_not_below_a_damaged_node_is_as_it_was() {
    let mut old = Old::new(7, 3);
    old.keys = 40_000;
    old.write(50_000);
    old.db.checkpoint().unwrap();
    old.write(10_000);
    let old = old.end(false);
    // The newest, for those are in use.
    let bytes = old.disk.contents(Path::new(FILE)).unwrap();
    let generation = |page: &u64| {
        let at = *page as usize * PAGE + 16;
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    };
    let mut nodes = kinds(&old.disk).nodes;
    nodes.sort_by_key(generation);
    let (mut below, mut wrong_below, mut roots) = (0, 0, 0);
    for page in nodes.iter().rev().take(6) {
        let (wrong, report) =
            damaged(&old, &format!("node in page {page}"), |disk| flip(disk, *page));
        let one = &report.keyspaces[0];
        match &one.older[..] {
            [] => assert!(report.is_whole() && wrong == 0, "{one:#?}"),
            [range] if range.lower.is_empty() && range.upper.is_none() => roots += 1,
            _ => {
                below += 1;
                wrong_below += wrong;
            }
        }
    }
    assert!(below > 0 && roots > 0, "{below} nodes and {roots} pages of the root of {nodes:?}");
    assert!(wrong_below < below * 500, "{wrong_below} wrong");
}

/// Slots, the head of the file: the newest checkpoint is found without them.
#[test]
fn p22_slots_are_not_needed() {
    for seed in seeds(8) {
        let old = an_old_one(seed, 1 + seed % 4, seed % 2 == 1);
        for (what, pages) in
            [("slot 0", 0..1), ("slot 1", 1..2), ("slots", 0..4), ("the head of the file", 0..128)]
        {
            let when = format!("seed {seed}, {what}");
            let (wrong, report) = damaged(&old, &when, |disk| zero(disk, pages.clone()));
            let one = &report.keyspaces[0];
            assert!(wrong == 0 && one.lost.is_empty() && one.older.is_empty(), "{when}: {one:#?}");
            assert!(one.checkpoint.is_some() || pages.end == pages.start + 1, "{when}: {one:#?}");
            assert!(one.damaged.is_empty(), "{when}: {one:#?}");
        }
    }
}

/// Manifest and log are lost as well as slots: the pages say which engine's they are, and have
/// everything that they had.
#[test]
fn p22_turtle_pages_alone_have_everything() {
    for seed in seeds(6) {
        let old = an_old_one(seed, 1 + seed % 3, false);
        let disk = old.disk.kill();
        remove(&disk, "/db/MANIFEST");
        remove(&disk, "/db/wal");
        if seed % 2 == 0 {
            zero(&disk, 0..4);
        }
        let report = salvage(&disk);
        assert!(report.manifest.is_some() && report.log.is_some(), "{report:#?}");
        for name in ["keyspace-00000001", "keyspace-00000002"] {
            same(&contents(&disk, name), &old.model, name);
        }
        let db = Db::open(Path::new(NEW), options(&disk, &Runtime::stepped(2))).unwrap();
        assert!(db.existing_keyspace("keyspace-00000001").unwrap().stats().turtle.is_some());
    }
}

/// Nothing leads to leaves any more: slots, checkpoints and nodes are all gone. What the leaves
/// have is saved, the newest of each key, and that it may be older is reported. What is lost are
/// records that only a checkpoint or a node had: by seed none to 3.4 % of all, 0.3 to 0.7 % of 24
/// seeds together.
#[test]
fn p22_leaves_alone_have_nearly_everything() {
    let (mut right, mut all) = (0, 0);
    for seed in seeds(6) {
        let old = an_old_one(seed, 1 + seed, seed % 2 == 1);
        let nodes = kinds(&old.disk).nodes;
        let bytes = old.disk.contents(Path::new(FILE)).unwrap();
        let payloads: Vec<u64> = (128..bytes.len() / PAGE)
            .filter(|page| bytes[page * PAGE + 8] == 3)
            .map(|page| page as u64)
            .collect();
        let when = format!("seed {seed}");
        let (wrong, report) = damaged(&old, &when, |disk| {
            zero(disk, 0..4);
            nodes.iter().chain(&payloads).for_each(|page| flip(disk, *page));
        });
        let one = &report.keyspaces[0];
        assert!(one.checkpoint.is_some() && !one.older.is_empty(), "{when}: {one:#?}");
        assert!(wrong * 20 < old.ever.len(), "{when}: {wrong} of {}", old.ever.len());
        all += old.ever.len();
        right += old.ever.len() - wrong;
    }
    assert!(right * 100 > all * 98, "{right} of {all}");
}

/// Damaged large values are lost alone, and named.
#[test]
fn p22_damaged_large_values_of_a_turtle_are_named() {
    let old = an_old_one(3, 3, true);
    let disk = old.disk.kill();
    kinds(&disk).large.iter().for_each(|page| flip(&disk, *page));
    let report = salvage(&disk);
    let one = &report.keyspaces[0];
    assert!(!report.is_whole() && !one.lost_values.is_empty() && one.lost.is_empty());
    let mut model = old.model.clone();
    let lost = one.lost_values.iter();
    for key in lost {
        assert!(model.remove(key).is_some_and(|value| value.len() > 4_000));
    }
    assert!(model.values().all(|value| value.len() < 4_000));
    same(&contents(&disk, "turtle"), &model, "without large values");
}

/// Pages at random, bits or all of them: never a panic, and what is saved was once true.
#[test]
fn p22_random_damage_brings_nothing_that_never_was() {
    let mut hurt = 0;
    let all: Vec<Ended> = (0..4).map(|seed| an_old_one(seed, 1 + seed, seed % 2 == 1)).collect();
    for seed in seeds(40) {
        let old = &all[seed as usize % 4];
        let disk = old.disk.kill();
        let mut random = StdRng::seed_from_u64(seed);
        let pages = disk.contents(Path::new(FILE)).unwrap().len() as u64 / PAGE as u64;
        let share = [2, 20, 200][seed as usize % 3];
        for page in (0..pages).filter(|page| (1..2).contains(page) || *page >= 128 || page % 2 == 0)
        {
            if random.random_range(0..share) > 0 {
                continue;
            }
            match random.random_range(0..3) {
                0 => zero(&disk, page..page + 1),
                1 => disk
                    .flip_bit(Path::new(FILE), page * 4096 + random.random_range(0..4096), 1)
                    .unwrap(),
                // A page of another place.
                _ => {
                    let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
                    let mut buf = AlignedBuf::new(1);
                    let from = random.random_range(0..pages) * 4096;
                    file.read_at(buf.bytes_mut(), from, Purpose::TOOL).unwrap();
                    file.write_at(buf.bytes(), page * 4096, Purpose::TOOL).unwrap();
                    file.sync(Purpose::TOOL).unwrap();
                }
            }
        }
        let without_log = seed % 8 >= 4;
        if without_log {
            remove(&disk, "/db/wal");
        }
        let report = salvage(&disk);
        let one = &report.keyspaces[0];
        let found = contents(&disk, "turtle");
        for (key, value) in &found {
            let once = old.ever.get(key).is_some_and(|all| all.contains(&Some(value.clone())));
            assert!(once, "seed {seed}: {} never had this", key.escape_ascii());
        }
        if !without_log {
            hurt += check(old, &found, one, &format!("seed {seed}"));
        }
    }
    assert!(hurt > 1000, "{hurt} records were hurt");
}

/// A crash at any step: with the log everything that was promised is saved.
#[test]
fn p22_crashes_of_a_turtle() {
    let mut images = 0;
    for seed in seeds(3) {
        let mut old = Old::new(seed, 1 + seed * 2);
        old.write(6_000);
        // What a crash of the first round must leave.
        old.db.flush().unwrap();
        old.disk.capture_when(Arc::new(move |step, states| {
            let here = ["checkpoint build", "root publish", "batch apply"];
            let here = states.iter().any(|state| here.contains(state));
            (here && (step + seed).is_multiple_of(5)).then_some(CrashMode::Torn512)
        }));
        for round in 0..40 {
            let marks: BTreeMap<_, _> =
                old.ever.iter().map(|(key, all)| (key.clone(), all.len())).collect();
            old.write(60);
            old.db.flush().unwrap();
            if round % 8 == 7 {
                old.db.checkpoint().unwrap();
            }
            for capture in old.disk.take_captures().into_iter().take(1) {
                images += 1;
                let image = capture.image;
                let report = salvage(&image);
                assert!(report.is_whole(), "{report:#?}");
                let found = contents(&image, "turtle");
                for (key, all) in &old.ever {
                    let now = found.get(key).cloned();
                    let settled_at = marks.get(key).map_or(0, |mark| mark.saturating_sub(1));
                    let none = !marks.contains_key(key) && now.is_none();
                    assert!(none || all[settled_at..].contains(&now), "{}", key.escape_ascii());
                }
            }
        }
    }
    assert!(images > 20, "{images} images");
}

/// Reads of the old files fail: what they held is reported, or nothing was lost.
#[test]
fn p22_faults_while_a_turtle_is_salvaged() {
    let old = an_old_one(2, 3, false);
    let whole = old.disk.kill();
    assert!(salvage(&whole).is_whole());
    let end = whole.reads();
    let mut told = 0;
    for at in (1..=end).step_by(usize::try_from(end / 25 + 1).unwrap()) {
        let disk = old.disk.kill();
        disk.inject(Fault::ReadError { at });
        let Ok(report) = Db::salvage("/db", NEW, options(&disk, &Runtime::stepped(1))) else {
            continue;
        };
        let one = &report.keyspaces[0];
        let found = contents(&disk, &one.name);
        if report.is_whole() {
            same(&found, &old.model, "whole");
            continue;
        }
        told += 1;
        for (key, value) in found {
            assert!(old.ever[&key].contains(&Some(value)), "{report:#?}");
        }
    }
    assert!(told > 0);
}

/// A file that ends early, at any place: either all records are saved, or it is told that some are not;
/// and where there are none, that they are lost.
#[test]
fn p22_a_turtle_file_that_ends_early_is_told() {
    let old = an_old_one(3, 4, false);
    let pages = old.disk.contents(Path::new(FILE)).unwrap().len() as u64 / 4096;
    for page in (0..pages).step_by(pages as usize / 25 + 1) {
        let cut = |disk: &SimDisk| {
            let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
            file.truncate(page * 4096).unwrap();
            file.sync(Purpose::TOOL).unwrap();
        };
        let (_, report) = damaged(&old, &format!("{page} of {pages} pages"), cut);
        let one = report.keyspaces.iter().find(|one| one.name == "turtle").unwrap();
        assert!(!report.is_whole() || page > 4, "{page} of {pages} pages: {report:#?}");
        assert!(
            one.records > 0 || one.older.is_empty(),
            "{page} of {pages} pages: older of nothing"
        );
    }
}
