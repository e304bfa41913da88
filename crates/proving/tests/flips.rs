//! Flipped bytes in every place that exists twice (rule P28): the checkpoint slots of store files,
//! the superblocks of the log, the header of its tail, and beside them the manifest. Databases of
//! every kind are made, one byte is flipped in a copy of each, and the copy is opened.
//!
//! The answer must be the records that were promised, or `Corruption` that names a file and an
//! offset. Fewer records, older values or another error are failures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::limits::PAGE_BYTES;
use spinney_db::{Db, Durability, EngineKind, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_io::{AlignedBuf, OpenMode, Purpose};
use spinney_proving::tier;

/// Pages at the front of a store file that hold slots.
const SLOT_PAGES: u64 = 4;
/// Pages at the front of the log that hold superblocks.
const SUPERBLOCKS: u64 = 2;

type Records = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options(disk: &SimDisk) -> Options {
    Options::default()
        .memory(2 << 20)
        .log_bytes_max(2 << 20)
        .scrub_bytes_per_second(0)
        .create_if_missing(false)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1))
}

fn records(db: &Db) -> Result<Records, spinney_base::Error> {
    let mut all = Records::new();
    for keyspace in db.keyspaces() {
        let handle = db.existing_keyspace(&keyspace.name)?;
        let mut found = BTreeMap::new();
        for record in handle.iter() {
            let (key, value) = record?;
            found.insert(key.to_vec(), value.to_vec());
        }
        all.insert(keyspace.name, found);
    }
    Ok(all)
}

/// One database on a disk of its own, and what it holds.
struct Made {
    name: String,
    disk: SimDisk,
    directory: PathBuf,
    expected: Records,
}

fn fill(keyspace: &Keyspace, from: u32, to: u32) {
    for number in from..to {
        let value = vec![number as u8; 10 + (number % 50) as usize];
        keyspace.insert_with(number.to_be_bytes(), &value, Durability::Buffered).unwrap();
    }
}

impl Made {
    /// A database whose process was killed, or which was closed.
    fn new(name: String, disk: &SimDisk, directory: &str) -> Made {
        let disk = disk.kill();
        let directory = PathBuf::from(directory);
        let expected = records(&Db::open(&directory, options(&disk.kill())).unwrap()).unwrap();
        assert!(expected.values().map(BTreeMap::len).sum::<usize>() > 0, "{name} holds something");
        Made { name, disk, directory, expected }
    }

    /// Flips one byte and opens. Answers whether everything was there; otherwise the file was refused.
    fn flip(&self, file: &Path, at: u64) -> bool {
        let disk = self.disk.kill();
        let path = self.directory.join(file);
        disk.flip_bit(&path, at, (at % 8) as u8).unwrap();
        let context = || format!("{}: byte {at} of {}", self.name, file.display());
        let outcome = Db::open(&self.directory, options(&disk)).and_then(|db| {
            let found = records(&db)?;
            db.close()?;
            Ok(found)
        });
        match outcome {
            Ok(found) => {
                assert!(found == self.expected, "{}: other records than promised", context());
                let again = Db::open(&self.directory, options(&disk)).and_then(|db| records(&db));
                assert!(again.unwrap() == self.expected, "{}: later", context());
                true
            }
            Err(error) => {
                assert!(error.is_corruption(), "{}: {error}", context());
                let text = error.to_string();
                let named = text.contains(&*file.to_string_lossy()) && text.contains("offset");
                assert!(named || text.contains("needs those after"), "{}: {text}", context());
                false
            }
        }
    }
}

/// Databases of one engine, by how they came to be.
fn databases(engine: EngineKind, logged: bool) -> Vec<Made> {
    let disk = SimDisk::new(7);
    let kept = if logged { "logged" } else { "not logged" };
    let name = |what: &str| format!("{engine} {kept} {what}");
    let mut made = Vec::new();
    let keyspace_options = KeyspaceOptions::default().engine(engine).logged(logged);
    let db = Db::open("/made", options(&disk).create_if_missing(true)).unwrap();
    let main = db.keyspace("main", keyspace_options.clone()).unwrap();
    fill(&main, 0, 300);
    db.checkpoint().unwrap();
    made.push(Made::new(name("after one checkpoint"), &disk, "/made"));
    fill(&main, 200, 400);
    db.checkpoint().unwrap();
    if logged {
        fill(&main, 350, 450);
    }
    made.push(Made::new(name("killed"), &disk, "/made"));
    db.backup("/copied").unwrap();
    made.push(Made::new(name("copied"), &disk, "/copied"));
    drop((main, db));
    Db::restore("/copied", "/restored", options(&disk).create_if_missing(true)).unwrap();
    made.push(Made::new(name("restored"), &disk, "/restored"));
    Db::salvage("/copied", "/salvaged", options(&disk).create_if_missing(true)).unwrap();
    made.push(Made::new(name("salvaged"), &disk, "/salvaged"));

    let disk = SimDisk::new(8);
    let db = Db::open("/loaded", options(&disk).create_if_missing(true)).unwrap();
    let main = db.keyspace("main", keyspace_options).unwrap();
    let sorted = (0..300u32).map(|number| (number.to_be_bytes(), [7; 100]));
    main.bulk_load(sorted).unwrap();
    made.push(Made::new(name("bulk loaded"), &disk, "/loaded"));
    db.close().unwrap();
    made.push(Made::new(name("bulk loaded and closed"), &disk, "/loaded"));
    made
}

/// Opens with one read that ends early or fails: the answer is an error or what was promised, and what was
/// promised is there the next time.
fn miss_each_read(made: &Made) {
    let quiet = made.disk.kill();
    records(&Db::open(&made.directory, options(&quiet)).unwrap()).unwrap();
    for at in 1..=quiet.reads() {
        for fault in [Fault::ShortRead { at }, Fault::ReadError { at }] {
            let disk = made.disk.kill();
            disk.inject(fault.clone());
            let found = Db::open(&made.directory, options(&disk)).and_then(|db| records(&db));
            let context = format!("{}: {fault:?}", made.name);
            assert!(found.is_err() || found.unwrap() == made.expected, "{context}: other records");
            let again =
                Db::open(&made.directory, options(&disk.kill())).and_then(|db| records(&db));
            assert!(again.unwrap() == made.expected, "{context}: later");
        }
    }
}

/// A read that ends early says nothing of where the file ends.
#[test]
fn a1_p28_reads_that_miss_something_lose_nothing() {
    for engine in EngineKind::ALL {
        databases(engine, true).iter().for_each(miss_each_read);
        // The older superblock is that of a log that was closed, and knows of nothing written since.
        let disk = SimDisk::new(7);
        let kept = KeyspaceOptions::default().engine(engine);
        for round in 0..3 {
            let db = Db::open("/made", options(&disk).create_if_missing(true)).unwrap();
            let main = db.keyspace("main", kept.clone()).unwrap();
            fill(&main, round * 10, round * 10 + 10);
            db.flush().unwrap();
            miss_each_read(&Made::new(format!("{engine} killed in life {round}"), &disk, "/made"));
            drop(main);
            db.close().unwrap();
        }
    }
}

/// A database that a released program wrote, and the same after a checkpoint by this one.
fn released(version: &str) -> (Made, Made) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spinney/tests/golden").join(version);
    let disk = SimDisk::new(9);
    disk.create_dir(Path::new("/db")).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let path = Path::new("/db").join(entry.file_name());
        let file = disk.open(&path, OpenMode::CREATE.cached()).unwrap();
        let mut buf = AlignedBuf::new(bytes.len().div_ceil(PAGE_BYTES));
        buf.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        file.write_at(buf.bytes(), 0, Purpose::TOOL).unwrap();
        file.sync(Purpose::TOOL).unwrap();
    }
    disk.sync_dir(Path::new("/db")).unwrap();
    let released = Made::new(format!("released {version}"), &disk.crash(CrashMode::LoseAll), "/db");
    Db::open("/db", options(&disk)).unwrap().close().unwrap();
    (released, Made::new(format!("released {version}, with a checkpoint of today"), &disk, "/db"))
}

/// Flips bytes of one database. Only in files of which `may_refuse` says so may a byte make it unreadable.
fn flip_all(made: &Made, may_refuse: impl Fn(&str) -> bool) {
    let (mut flipped, mut right) = (0, 0);
    for path in made.disk.files() {
        if path.parent() != Some(&made.directory) {
            continue;
        }
        let file = PathBuf::from(path.file_name().unwrap());
        let name = file.to_string_lossy().into_owned();
        let length = made.disk.contents(&path).unwrap().len() as u64 / PAGE_BYTES as u64;
        let pages = match &*name {
            "wal" => SUPERBLOCKS,
            "wal-tail" | "MANIFEST" => 1,
            name if name.ends_with(".spn") => SLOT_PAGES,
            _ => continue,
        };
        for page in 0..pages.min(length) {
            // All fields of what the page holds, and a part of the rest.
            let step = tier::count(PAGE_BYTES as u64 / 20, 1);
            let fields = if tier::is_full() { 0..0 } else { 0..24 };
            let fields = fields.map(|field| field * 4 + page % 4);
            for at in fields.chain((0..PAGE_BYTES as u64).step_by(step as usize)) {
                let at = page * PAGE_BYTES as u64 + at;
                let is_right = made.flip(&file, at);
                assert!(is_right || may_refuse(&name), "{}: byte {at} of {name}", made.name);
                flipped += 1;
                right += u64::from(is_right);
            }
        }
    }
    println!("{}: {flipped} bytes flipped, {right} right, {} refused", made.name, flipped - right);
    assert!(flipped > 200 && right > 0);
}

/// The manifest stands once. Of all else there is a copy.
fn stands_once(file: &str) -> bool {
    file == "MANIFEST"
}

fn of_engine(engine: EngineKind) {
    for logged in [true, false] {
        for made in databases(engine, logged) {
            flip_all(&made, stands_once);
        }
    }
}

#[test]
fn a1_p28_flips_in_databases_of_treeline() {
    of_engine(EngineKind::TreeLine);
}

#[test]
fn a1_p28_flips_in_databases_of_turtle() {
    of_engine(EngineKind::Turtle);
}

/// Nothing beside their slots tells which of two counts, so a byte of either may refuse them, until
/// the first checkpoint by this version.
#[test]
fn a1_p28_flips_in_released_databases() {
    let all = ["turtle", "v2-log", "v1", "v2"];
    let versions = if tier::is_full() { &all[..] } else { &all[..2] };
    for version in versions {
        let (released, today) = released(version);
        flip_all(&released, |_| true);
        flip_all(&today, stands_once);
    }
}
