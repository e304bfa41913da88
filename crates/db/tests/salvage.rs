//! Salvage (rule P22), on the simulated disk: manifest, log, checkpoints and pages are lost or
//! damaged, and what is left is saved: every record whose pages are whole, none that was removed,
//! none twice, and what could not be saved is reported.
#![cfg(not(feature = "shuttle"))]

#[path = "common/seeds.rs"]
mod seeds;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_db::{
    Db, Durability, ErrorKind, Keyspace, KeyspaceOptions, LostRange, Options, SalvageReport,
};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use crate::seeds::seeds;

const FILE: &str = "/db/keyspace-00000001.spn";
const NEW: &str = "/new";

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(1 << 20)
        .log_bytes_max(2 << 20)
        .scrub_bytes_per_second(0)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

/// A database with a past: records come, change and go, so that pages were split, merged and freed.
struct Old {
    disk: SimDisk,
    runtime: Runtime,
    db: Db,
    main: Keyspace,
    model: Model,
    /// Every value that a key ever had; `None` when it was removed.
    ever: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
    number: u64,
    /// The key of a number.
    key: fn(u64) -> Vec<u8>,
}

fn short_key(number: u64) -> Vec<u8> {
    format!("key {:06}", number % 3_000).into_bytes()
}

/// Every third key is of a cluster that shares some 900 bytes; the bounds between them are as long.
fn long_key(number: u64) -> Vec<u8> {
    let number = number % 900;
    let short = format!("key {:03}", number / 20);
    let shared = if number.is_multiple_of(3) { "/and so on".repeat(89) } else { String::new() };
    format!("{short}{shared}{number:04}").into_bytes()
}

impl Old {
    fn new(seed: u64, logged: bool) -> Old {
        Old::with_keys(seed, logged, short_key)
    }

    fn with_keys(seed: u64, logged: bool, key: fn(u64) -> Vec<u8>) -> Old {
        let (disk, runtime) = (SimDisk::new(seed), Runtime::stepped(seed));
        let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().logged(logged)).unwrap();
        let (model, ever) = (Model::new(), BTreeMap::new());
        Old { disk, runtime, db, main, model, ever, number: seed * 1_000_000, key }
    }

    fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.number += 1;
            let number = self.number;
            let key = (self.key)(number.wrapping_mul(0x9E37_79B9));
            let value = match number % 7 {
                0 | 1 => None,
                2 if number % 91 == 2 => Some(number.to_be_bytes().repeat(1_500)),
                // As long as a page takes, or nearly so.
                3 if number % 21 == 3 => {
                    let most = 4096 - 80 - 10 - key.len();
                    Some(vec![number as u8; most - (number % 31) as usize])
                }
                _ => Some(number.to_be_bytes().repeat(15 + (number % 60) as usize)),
            };
            match &value {
                Some(value) => {
                    self.main.insert_with(&key, value, Durability::Buffered).unwrap();
                    self.model.insert(key.clone(), value.clone());
                }
                None => {
                    self.main.remove_with(&key, Durability::Buffered).unwrap();
                    self.model.remove(&key);
                }
            }
            self.ever.entry(key).or_default().push(value);
            if number.is_multiple_of(40) {
                (0..4).for_each(|_| _ = self.runtime.step());
            }
        }
    }

    /// Fills some pages beyond their ends with short new records, so that overflow pages take them.
    fn overflow(&mut self) {
        for (place, more) in
            (0..2_900).step_by(290).flat_map(|place| (0..60).map(move |n| (place, n)))
        {
            let key = format!("key {place:06}+{more}").into_bytes();
            let value = Some(vec![more; 60]);
            self.main.insert_with(&key, [more; 60], Durability::Buffered).unwrap();
            self.model.insert(key.clone(), vec![more; 60]);
            self.ever.entry(key).or_default().push(value);
        }
    }

    /// All that a salvage may find.
    fn close(self) -> (SimDisk, Model) {
        self.db.close().unwrap();
        (self.disk, self.model)
    }
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

fn zero(disk: &SimDisk, path: &str, pages: std::ops::Range<u64>) {
    let file = disk.open(Path::new(path), OpenMode::EXISTING).unwrap();
    let count = usize::try_from(pages.end - pages.start).unwrap();
    file.write_at(AlignedBuf::new(count).bytes(), pages.start * 4096, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
}

fn remove(disk: &SimDisk, path: &str) {
    disk.remove(Path::new(path)).unwrap();
    disk.sync_dir(Path::new("/db")).unwrap();
}

fn files(disk: &SimDisk) -> Vec<(PathBuf, Vec<u8>)> {
    let ours = disk.files().into_iter().filter(|path| path.parent() == Some(Path::new("/db")));
    ours.map(|path| (path.clone(), disk.contents(&path).unwrap())).collect()
}

fn same(found: &Model, expected: &Model, when: &str) {
    for (key, value) in expected {
        assert!(found.get(key) == Some(value), "{when}: {} is wrong", key.escape_ascii());
    }
    let more = found.keys().find(|key| !expected.contains_key(*key));
    assert!(more.is_none(), "{when}: {} came back", more.unwrap().escape_ascii());
}

/// Every record of a healthy database, closed or killed, with a log or without, and nothing of the
/// old one changes.
#[test]
fn p22_a_healthy_database_is_saved_whole() {
    for seed in seeds(6) {
        let logged = seed % 3 != 2;
        let mut old = Old::new(seed, logged);
        old.write(9_000);
        let disk = if seed % 2 == 0 && logged {
            old.db.flush().unwrap();
            old.disk.kill()
        } else {
            old.db.checkpoint().unwrap();
            old.disk.kill()
        };
        let before = files(&disk);
        let report = salvage(&disk);
        assert!(report.is_whole() && report.manifest.is_none(), "{report:#?}");
        assert!(files(&disk) == before, "the old database has changed");
        same(&contents(&disk, "main"), &old.model, &format!("seed {seed}"));
        let again = Db::salvage("/db", NEW, options(&disk, &Runtime::stepped(1)));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

/// Manifest, log and both slots are lost after a clean end: the pages alone have everything, and of
/// freed pages nothing comes back.
#[test]
fn p22_pages_alone_have_everything() {
    for seed in seeds(12) {
        let mut old = Old::new(seed, seed % 4 != 3);
        old.write(3_000 + seed * 1_000);
        if seed % 2 == 0 {
            old.db.checkpoint().unwrap();
            old.write(1_500);
        }
        let (disk, model) = old.close();
        remove(&disk, "/db/MANIFEST");
        remove(&disk, "/db/wal");
        if seed % 3 != 0 {
            zero(&disk, FILE, 0..4);
        }
        let report = salvage(&disk);
        assert!(report.manifest.is_some() && report.log.is_some(), "{report:#?}");
        assert_eq!(report.keyspaces[0].checkpoint.is_some(), seed % 3 != 0);
        let one = &report.keyspaces[0];
        assert!(one.damaged.is_empty() && one.lost.is_empty(), "seed {seed}: {one:#?}");
        same(&contents(&disk, "keyspace-00000001"), &model, &format!("seed {seed}"));
    }
}

/// Keys whose bounds take a fourth of a page, and records that take a page: the pages alone have
/// everything all the same.
#[test]
fn p22_pages_alone_have_everything_whatever_the_keys() {
    for seed in seeds(12) {
        let mut old = Old::with_keys(seed, seed % 4 != 3, long_key);
        old.write(2_000 + seed * 300);
        if seed % 2 == 0 {
            old.db.checkpoint().unwrap();
            old.write(600);
        }
        let (disk, model) = old.close();
        remove(&disk, "/db/MANIFEST");
        remove(&disk, "/db/wal");
        if seed % 3 != 0 {
            zero(&disk, FILE, 0..4);
        }
        let report = salvage(&disk);
        let one = &report.keyspaces[0];
        let told = (one.damaged.len(), one.lost.len(), one.older.len());
        same(&contents(&disk, "keyspace-00000001"), &model, &format!("seed {seed}"));
        assert_eq!(told, (0, 0, 0), "seed {seed}");
    }
}

/// Killed anywhere, with index and log whole: everything is saved, and nothing is reported lost.
#[test]
fn p22_nothing_is_lost_where_index_and_log_are_whole() {
    for seed in seeds(12) {
        let mut old = Old::with_keys(seed, seed % 4 != 3, long_key);
        for _ in 0..6 {
            old.write(300);
            old.db.flush().unwrap();
            let disk = old.disk.kill();
            let report = salvage(&disk);
            assert!(report.is_whole(), "seed {seed}: {} lost", report.keyspaces[0].lost.len());
            if seed % 4 != 3 {
                same(&contents(&disk, "main"), &old.model, &format!("seed {seed}"));
            }
        }
    }
}

/// A keyspace that rests does not hold the log. When it changes again the log begins beyond what
/// its checkpoint has, and tells of all changes since: pages that these freed may hold anything.
#[test]
fn p22_nothing_is_lost_of_a_keyspace_that_had_rested() {
    let mut torn = 0;
    for seed in seeds(4) {
        let mut old = Old::with_keys(seed, true, long_key);
        old.write(1_500);
        let Old { disk, runtime, db, main, model, ever, number, key } = old;
        drop(main);
        db.close().unwrap();
        // No log that is long asks for a checkpoint of the keyspace.
        let options = options(&disk, &runtime).log_bytes_max(64 << 20);
        let db = Db::open(Path::new("/db"), options).unwrap();
        let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
        for round in 0..3_u64 {
            for number in 0..300_u64 {
                let value = [round as u8; 1_000];
                other.insert_with(number.to_be_bytes(), value, Durability::Buffered).unwrap();
            }
            db.checkpoint().unwrap();
        }
        let main = db.existing_keyspace("main").unwrap();
        let mut old = Old { disk, runtime, db, main, model, ever, number, key };
        let before = old.disk.contents(Path::new(FILE)).unwrap();
        old.write(600);
        old.db.flush().unwrap();
        let disk = old.disk.kill();
        let after = disk.contents(Path::new(FILE)).unwrap();
        let blocks = (0_u64..).zip(before.chunks(4096).zip(after.chunks(4096)));
        let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
        for (page, (old, new)) in blocks {
            if old[8] == 1 && new.iter().all(|byte| *byte == 0) {
                // As a crash leaves it that tears the first write of any thread that takes it next.
                torn += 1;
                let mut block = AlignedBuf::new(1);
                block.bytes_mut().copy_from_slice(old);
                block.bytes_mut()[512..1024].fill(0xA5);
                file.write_at(block.bytes(), page * 4096, Purpose::TOOL).unwrap();
            }
        }
        let report = salvage(&disk);
        assert!(report.is_whole(), "seed {seed}: {report:#?}");
        same(&contents(&disk, "main"), &old.model, &format!("seed {seed}"));
    }
    assert!(torn > 10, "{torn} pages were freed");
}

/// Where in a data page begins what it says of where it comes from.
fn origin_of(page: &[u8]) -> Option<usize> {
    let field = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
    (page[8] == 1 && field(40) > 0).then(|| 4096 - field(38) - field(40))
}

/// Whether it is no overflow page, as far as it says.
fn is_of_extent(page: &[u8]) -> bool {
    origin_of(page).is_none_or(|origin| page[origin + 1] & 1 == 0)
}

/// Pages that are `chosen` by number, and by whether they are no overflow pages, tell no longer
/// where they come from, as those of older databases do not.
fn forget_origins(disk: &SimDisk, chosen: impl Fn(usize, bool) -> bool) {
    let bytes = disk.contents(Path::new(FILE)).unwrap();
    let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
    let mut block = AlignedBuf::new(1);
    for (number, page) in bytes.chunks_exact(4096).enumerate().skip(128) {
        let Some(origin) = origin_of(page).filter(|_| chosen(number, is_of_extent(page))) else {
            continue;
        };
        block.bytes_mut().copy_from_slice(page);
        // A version of origins that there is not.
        block.bytes_mut()[origin] = 0xFF;
        let hash = xxhash_rust::xxh3::xxh3_64(&block.bytes()[8..]);
        block.bytes_mut()[..8].copy_from_slice(&hash.to_le_bytes());
        file.write_at(block.bytes(), number as u64 * 4096, Purpose::TOOL).unwrap();
    }
    file.sync(Purpose::TOOL).unwrap();
}

/// Pages that do not tell where they come from are placed by index and log; without these they give
/// what they hold, and older pages of the same keys do not win.
#[test]
fn p22_pages_without_origins() {
    for seed in seeds(8) {
        let mut old = Old::with_keys(seed, seed % 4 != 3, long_key);
        old.write(1_500);
        if seed % 2 == 0 {
            old.db.checkpoint().unwrap();
            old.write(900);
        }
        old.db.flush().unwrap();
        let disk = old.disk.kill();
        forget_origins(&disk, |_, _| true);
        let report = salvage(&disk);
        assert!(report.is_whole(), "seed {seed}: {} lost", report.keyspaces[0].lost.len());
        if seed % 4 != 3 {
            same(&contents(&disk, "main"), &old.model, &format!("seed {seed}"));
        }
        let (disk, model) = old.close();
        // Overflow pages tell always, or nothing does.
        forget_origins(&disk, |page, of_extent| seed % 3 == 0 || of_extent && page % 3 == 0);
        remove(&disk, "/db/MANIFEST");
        remove(&disk, "/db/wal");
        zero(&disk, FILE, 0..4);
        salvage(&disk);
        let found = contents(&disk, "keyspace-00000001");
        for (key, value) in &model {
            assert!(found.get(key) == Some(value), "seed {seed}: {}", key.escape_ascii());
        }
    }
}

fn within(ranges: &[LostRange], key: &[u8]) -> bool {
    ranges.iter().any(|range| {
        range.lower.as_slice() <= key && range.upper.as_deref().is_none_or(|upper| key < upper)
    })
}

/// Pages are damaged: their records are lost or older ones, and told so; all others are as they
/// were.
#[test]
fn p22_damaged_pages_are_told() {
    let (mut told, mut overflowed) = (0, 0);
    for seed in seeds(12) {
        let mut old = Old::new(seed, true);
        old.write(6_000);
        old.overflow();
        let ever = old.ever.clone();
        let (disk, model) = old.close();
        let db = Db::open(Path::new("/db"), options(&disk, &Runtime::stepped(9))).unwrap();
        db.backup("/sound").unwrap();
        db.close().unwrap();
        let sound = disk.contents(Path::new("/sound/keyspace-00000001.spn")).unwrap();
        let kind = |page: usize| sound[page * 4096 + 8];
        let data: Vec<usize> = (128..sound.len() / 4096).filter(|page| kind(*page) == 1).collect();
        let nth = [1, data.len() / 3, data.len() - 2].map(|nth| data[nth]);
        let is_overflow = |page: &&usize| !is_of_extent(&sound[**page * 4096..][..4096]);
        let overflows = data.iter().filter(is_overflow).take(3).copied();
        // Each once: a bit that is flipped twice is as it was.
        overflowed += overflows.clone().count();
        let pages: BTreeSet<usize> = nth.into_iter().chain(overflows).collect();
        for page in pages {
            disk.flip_bit(Path::new(FILE), page as u64 * 4096 + 1000 + seed, 2).unwrap();
        }
        if seed % 2 == 1 {
            zero(&disk, FILE, 0..4);
        }
        let report = salvage(&disk);
        let one = &report.keyspaces[0];
        assert!(!report.is_whole() && one.damaged.len() >= 3, "seed {seed}: {one:#?}");
        let found = contents(&disk, "main");
        for key in ever.keys() {
            let (now, right) = (found.get(key), model.get(key));
            if now != right {
                // Without a checkpoint nobody knows whose overflow page a damaged one was.
                let unknown = one.checkpoint.is_some();
                let damaged = unknown || within(&one.lost, key) || within(&one.older, key);
                assert!(damaged, "seed {seed}: {} is wrong, {one:#?}", key.escape_ascii());
                let once = ever[key].iter().any(|value| value.as_ref() == now);
                assert!(once || now.is_none(), "{} never had this", key.escape_ascii());
                told += 1;
            }
        }
        assert!(found.len() * 10 > model.len() * 8, "too much is lost: {one:#?}");
        assert!(found.keys().all(|key| ever.contains_key(key)));
    }
    assert!(told > 0, "no damage has hurt");
    assert!(overflowed >= 12, "{overflowed} overflow pages damaged");
}

/// A file that ends early, at any place: either all records are saved, or it is told that some are not.
#[test]
fn p22_a_file_that_ends_early_is_told() {
    for seed in 0..3 {
        let mut old = Old::new(seed, true);
        old.write([60, 700, 3_000][seed as usize]);
        let (disk, model) = old.close();
        let pages = disk.contents(Path::new(FILE)).unwrap().len() as u64 / 4096;
        for page in (0..pages).step_by(pages as usize / 25 + 1) {
            let disk = disk.kill();
            let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
            file.truncate(page * 4096).unwrap();
            file.sync(Purpose::TOOL).unwrap();
            let report = salvage(&disk);
            let found = contents(&disk, "main").len();
            let when = format!("seed {seed}, {page} of {pages} pages");
            assert!(
                found == model.len() || !report.is_whole(),
                "{when}: {found} records, {report:#?}"
            );
            let one = &report.keyspaces[0];
            assert!(found > 0 || one.older.is_empty(), "{when}: older ones of nothing");
        }
    }
}

/// A crash in the middle of reorganizations: with the log everything that was promised is saved;
/// without it each key has a value that it had since the last checkpoint.
#[test]
fn p22_crashes_in_reorganizations() {
    let mut images = 0;
    for seed in seeds(5) {
        let mut old = Old::new(seed, true);
        old.write(4_000);
        old.db.checkpoint().unwrap();
        let settled = old.model.clone();
        let marks: BTreeMap<_, _> =
            old.ever.iter().map(|(key, all)| (key.clone(), all.len())).collect();
        old.disk.capture_when(Arc::new(move |step, states| {
            let here = states.contains(&"reorganize") || states.contains(&"publish structure");
            (here && (step + seed).is_multiple_of(9)).then_some(CrashMode::Torn512)
        }));
        for _ in 0..60 {
            old.write(40);
            old.db.flush().unwrap();
            for capture in old.disk.take_captures().into_iter().take(1) {
                images += 1;
                let image = capture.image;
                let without_log = image.kill();
                let report = salvage(&image);
                assert!(
                    report.log.is_none() && report.keyspaces[0].damaged.is_empty(),
                    "{report:#?}"
                );
                let found = contents(&image, "main");
                // What was in flight may be there or not: those keys are the last of the story.
                for (key, all) in &old.ever {
                    let now = found.get(key).cloned();
                    let settled_at = marks.get(key).map_or(0, |mark| mark.saturating_sub(1));
                    let none = !marks.contains_key(key) && now.is_none();
                    assert!(none || all[settled_at..].contains(&now), "{}", key.escape_ascii());
                }
                remove(&without_log, "/db/wal");
                remove(&without_log, "/db/MANIFEST");
                let report = salvage(&without_log);
                assert!(report.keyspaces[0].lost.is_empty(), "{report:#?}");
                let found = contents(&without_log, "keyspace-00000001");
                for (key, all) in &old.ever {
                    let now = found.get(key).cloned();
                    let settled_at = marks.get(key).map_or(0, |mark| mark.saturating_sub(1));
                    let before = settled.get(key).cloned() == now;
                    assert!(before || all[settled_at..].contains(&now), "{}", key.escape_ascii());
                }
            }
        }
    }
    assert!(images > 10, "{images} images");
}

/// Everything acknowledged before the power went is saved when the log is there, whatever became of
/// manifest and slots.
#[test]
fn p22_the_log_has_what_pages_lack() {
    for seed in seeds(6) {
        let mut old = Old::new(seed, true);
        old.write(3_000);
        old.db.checkpoint().unwrap();
        old.write(900);
        old.db.flush().unwrap();
        let disk = old.disk.crash(CrashMode::LoseAll);
        if seed % 2 == 0 {
            remove(&disk, "/db/MANIFEST");
        }
        if seed % 3 == 0 {
            zero(&disk, FILE, 0..4);
        }
        let report = salvage(&disk);
        assert!(report.log.is_none() && report.log_operations > 0, "{report:#?}");
        let name = if seed % 2 == 0 { "keyspace-00000001" } else { "main" };
        same(&contents(&disk, name), &old.model, &format!("seed {seed}"));
    }
}

/// What was acknowledged before the process was killed is saved, though no run of the log has the
/// last of it.
#[test]
fn p22_the_tail_has_what_the_log_lacks() {
    for seed in seeds(6) {
        let mut old = Old::new(seed, true);
        old.write(500 + seed * 3);
        let disk = old.disk.kill();
        if seed % 2 == 0 {
            remove(&disk, "/db/MANIFEST");
        }
        let before = files(&disk);
        let report = salvage(&disk);
        assert!(report.log.is_none() && report.log_operations > 0, "{report:#?}");
        let of_old = |(path, _): &(PathBuf, Vec<u8>)| path.starts_with("/db");
        assert!(files(&disk).into_iter().filter(of_old).eq(before), "the old one stays as it is");
        let name = if seed % 2 == 0 { "keyspace-00000001" } else { "main" };
        same(&contents(&disk, name), &old.model, &format!("seed {seed}"));
    }
}

/// A damaged large value is lost alone, and named.
#[test]
fn p22_damaged_large_values_are_named() {
    let mut old = Old::new(3, true);
    old.write(2_000);
    let (disk, mut model) = old.close();
    let bytes = disk.contents(Path::new(FILE)).unwrap();
    let large = bytes.chunks(4096).enumerate().skip(128).filter(|(_, block)| block[8] == 4);
    for (page, _) in large.collect::<Vec<_>>() {
        disk.flip_bit(Path::new(FILE), page as u64 * 4096 + 50, 1).unwrap();
    }
    let report = salvage(&disk);
    let lost = &report.keyspaces[0].lost_values;
    assert!(!report.is_whole() && !lost.is_empty());
    assert!(lost.iter().all(|key| model.remove(key).is_some_and(|value| value.len() > 4_000)));
    assert!(model.values().all(|value| value.len() < 4_000));
    same(&contents(&disk, "main"), &model, "without large values");
}

/// Power goes inside a salvage: the old database is as it was, and what was made refuses to open,
/// or is whole.
#[test]
fn p22_a_crash_inside_a_salvage() {
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..3 {
        let mut old = Old::new(seed, true);
        old.write(2_000);
        let (disk, model) = old.close();
        // What the log's tail has is worth nothing after a clean close, and was never synced.
        let old_files = |disk: &SimDisk| {
            let mut files = files(disk);
            files.retain(|(path, _)| !path.ends_with("wal-tail") && !path.ends_with("reserve"));
            files
        };
        let before = old_files(&disk);
        disk.capture_when(Arc::new(move |step, states| {
            let here = states.contains(&"salvage") && (step + seed).is_multiple_of(23);
            here.then_some(CrashMode::Torn512)
        }));
        let report = salvage(&disk);
        assert!(report.is_whole(), "{report:#?}");
        for capture in disk.take_captures() {
            let image = capture.image;
            assert!(old_files(&image) == before, "the old database has changed");
            let begun = image.files().iter().any(|path| path.parent() == Some(Path::new(NEW)));
            match Db::open(Path::new(NEW), options(&image, &Runtime::stepped(4))) {
                Ok(db) if begun => {
                    whole += 1;
                    drop(db);
                    same(&contents(&image, "main"), &model, "after a crash");
                }
                Ok(db) => drop(db),
                Err(error) => {
                    refused += 1;
                    assert!(error.is_corruption(), "{error}");
                    let restored = Db::restore(NEW, "/back", options(&image, &Runtime::stepped(4)));
                    assert!(restored.is_err());
                }
            }
        }
    }
    assert!(refused > 20, "{refused} refused, {whole} whole");
}

#[test]
fn salvage_wants_a_closed_database_and_an_empty_place() {
    let mut old = Old::new(1, true);
    old.write(100);
    let try_it = |disk: &SimDisk, from: &str, to: &str| {
        Db::salvage(from, to, options(disk, &Runtime::stepped(1))).unwrap_err().kind()
    };
    assert_eq!(try_it(&old.disk, "/db", NEW), ErrorKind::Locked);
    let (disk, _) = old.close();
    assert_eq!(try_it(&disk, "/nowhere", NEW), ErrorKind::NotFound);
    assert_eq!(try_it(&disk, "/db", "/db"), ErrorKind::InvalidArgument);
    disk.create_dir(Path::new("/empty")).unwrap();
    assert_eq!(try_it(&disk, "/empty", NEW), ErrorKind::NotFound);
    // No room: an error, and nothing is left.
    disk.set_capacity(Some(0));
    assert_eq!(try_it(&disk, "/db", NEW), ErrorKind::Full);
    assert!(!disk.files().iter().any(|path| path.parent() == Some(Path::new(NEW))));
}

/// Segments and overflow pages that crashes left behind are of a later production than pages that
/// were written again since, and yet do not win: after several crashes and a clean end the pages
/// alone have exactly what was there.
#[test]
fn p22_what_crashes_left_behind_does_not_win() {
    after_crashes(true, 0..10, |disk| {
        remove(disk, "/db/MANIFEST");
        remove(disk, "/db/wal");
        zero(disk, FILE, 0..4);
    });
}

/// Pages of a keyspace without a log bear no LSN, so nothing but its checkpoint tells which are in
/// use.
#[test]
fn p22_what_crashes_left_behind_does_not_win_without_a_log() {
    // One seed of forty leaves something behind whose place a page has that was written since.
    after_crashes(false, seeds(150), |disk| remove(disk, "/db/MANIFEST"));
    after_crashes(false, 0..10, |disk| {
        remove(disk, "/db/MANIFEST");
        remove(disk, "/db/wal");
    });
}

fn after_crashes(logged: bool, seeds: Range<u64>, damage: impl Fn(&SimDisk)) {
    let mut crashes = 0;
    for seed in seeds {
        let mut old = Old::new(seed, logged);
        for life in 0..4 {
            let written = old.number;
            old.disk.capture_when(Arc::new(move |step, states| {
                let here = ["reorganize", "publish structure", "write-back"];
                let here = states.iter().any(|state| here.contains(state));
                (here && (step + life + seed).is_multiple_of(61)).then_some(CrashMode::Torn512)
            }));
            old.write(1_200);
            let Some(capture) = old.disk.take_captures().pop() else { continue };
            crashes += 1;
            let Old { db, main, ever, key, .. } = old;
            drop((db, main));
            let (disk, runtime) = (capture.image, Runtime::stepped(seed + life));
            let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
            let main = db.existing_keyspace("main").unwrap();
            let all = main.iter().map(Result::unwrap);
            let model = all.map(|(key, value)| (key, value.to_vec())).collect();
            // Not the same again.
            let number = written + 1_000_000;
            old = Old { disk, runtime, db, main, model, ever, number, key };
        }
        old.write(300);
        let (disk, model) = old.close();
        damage(&disk);
        let report = salvage(&disk);
        assert!(report.keyspaces[0].lost.is_empty(), "seed {seed}: {report:#?}");
        same(&contents(&disk, "keyspace-00000001"), &model, &format!("seed {seed}"));
    }
    assert!(crashes > 20, "{crashes} crashes");
}

/// Reads of the old files fail: what they held is reported lost, or nothing was lost; writes and
/// syncs of the new ones fail: an error, and nothing is left.
#[test]
fn p22_faults_while_salvaging() {
    let mut old = Old::new(5, true);
    old.write(1_500);
    let ever = old.ever.clone();
    let (disk, model) = old.close();
    let counts = |disk: &SimDisk| [disk.reads(), disk.writes(), disk.syncs(), disk.room_requests()];
    let whole = disk.kill();
    assert!(salvage(&whole).is_whole());
    let ends = counts(&whole);
    let (mut told, mut failed) = (0, 0);
    for (kind, end) in ends.into_iter().enumerate() {
        for at in (1..=end).step_by(usize::try_from(end / 20 + 1).unwrap()) {
            let disk = disk.kill();
            disk.inject(match kind {
                0 => Fault::ReadError { at },
                1 => Fault::WriteError { at },
                2 => Fault::SyncError { at },
                _ => Fault::NoSpace { at },
            });
            let saved = Db::salvage("/db", NEW, options(&disk, &Runtime::stepped(1)));
            match saved {
                Ok(report) if report.is_whole() => same(&contents(&disk, "main"), &model, "whole"),
                Ok(report) => {
                    told += 1;
                    for (key, value) in contents(&disk, &report.keyspaces[0].name) {
                        assert!(ever[&key].contains(&Some(value)), "{report:#?}");
                    }
                }
                Err(_) => {
                    failed += 1;
                    let left = disk.files().into_iter().find(|file| file.starts_with(NEW));
                    assert!(left.is_none(), "{left:?} was left by a fault at {at} of kind {kind}");
                }
            }
        }
    }
    assert!(failed > 20 && told > 0, "{failed} failed, {told} told");
}

/// Without a manifest a file of an engine that this program does not have is refused, and not taken
/// for one of the engine that is the default.
#[test]
fn p22_a_file_of_an_unknown_engine_is_refused() {
    let mut old = Old::new(4, true);
    old.write(2_000);
    let Old { disk, db, .. } = old;
    db.close().unwrap();
    let mut bytes = disk.contents(Path::new(FILE)).unwrap();
    let mut blocks = 0;
    for block in bytes.chunks_exact_mut(4096).filter(|block| block[8] == 1) {
        block[8] = 77;
        let checksum = xxhash_rust::xxh3::xxh3_64(&block[8..]);
        block[..8].copy_from_slice(&checksum.to_le_bytes());
        blocks += 1;
    }
    assert!(blocks > 10);
    let mut buf = AlignedBuf::new(bytes.len() / 4096);
    buf.bytes_mut().copy_from_slice(&bytes);
    let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
    file.write_at(buf.bytes(), 0, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
    let try_it = || Db::salvage("/db", NEW, options(&disk, &Runtime::stepped(1)));
    // The manifest says whose it is; its pages are damaged then.
    let report = try_it().unwrap();
    assert!(!report.is_whole(), "{report:#?}");
    for path in disk.files().into_iter().filter(|path| path.starts_with(NEW)) {
        disk.remove(&path).unwrap();
    }
    remove(&disk, "/db/MANIFEST");
    let error = try_it().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("keyspace-00000001.spn holds blocks of kind 77"), "{error}");
    assert!(!disk.files().iter().any(|path| path.starts_with(NEW)));
}
