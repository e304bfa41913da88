//! Golden files: databases that earlier versions wrote, opened by this one. None is ever written
//! again; whatever writes other bytes adds directories beside them (`SPINNEY_WRITE_GOLDEN=DIR cargo
//! test -p spinney --test golden` writes today's there).
//!
//! * `v1`: the first format: pages that do not say where they belong, and no large values.
//! * `v2`, `v2-log`: what pages, structure records and checkpoints have come to say since; the
//!   version of the whole, in the manifest, is still 1.
//! * `turtle`: keyspaces of that engine, as first released.
//! * `2btree`, `iot`: keyspaces of these engines; not released yet.
//! * `iot-patches`: the log has parts of values; not released yet.
//!
//! `v2` has segments of several pages with models of both kinds, overflow pages, staged pages, large
//! values, and a tail of the log with records of users; the tail of `v2-log` has changes of structure,
//! and large values that came and went.
//!
//! `turtle` has leaves below a node with a segment above them that overwrites and removes some of
//! what they have, large values, and a tail of the log that lies in `wal-tail`. `2btree` was given the same: leaves
//! below an inner node, and records above them in an image. `iot` has images of leaves.
//!
//! Each holds a clean checkpoint with a tail of the log above it, as a killed process leaves them:
//! opening replays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use spinney::{
    Batch, Db, Durability, EngineKind, ErrorKind, KeyspaceOptions, KeyspaceStats, Options,
};
use spinney_base::Runtime;

fn options() -> Options {
    Options::default().memory(2 << 20).log_bytes_max(4 << 20).create_if_missing(false)
}

fn key(number: u32) -> Vec<u8> {
    format!("key/{number:05}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    let length = (number * 37 % 300) as usize;
    vec![(number % 251) as u8; length]
}

fn tail(number: u32) -> Vec<u8> {
    format!("tail/{:05}", number * 7919 % 100_000).into_bytes()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "lock" {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn golden(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version)
}

/// Checks what the database of version 1 holds.
fn check(db: &Db) {
    let names: Vec<String> = db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
    assert_eq!(names, ["main", "cache: not logged"]);
    let main = db.existing_keyspace("main").unwrap();
    let cache = db.existing_keyspace("cache: not logged").unwrap();
    for number in 0..600u32 {
        let expected = (!number.is_multiple_of(3)).then(|| value(number));
        assert_eq!(main.get(key(number)).unwrap().as_deref(), expected.as_deref(), "{number}");
        assert_eq!(cache.get(key(number)).unwrap().as_deref(), Some(&value(number + 1)[..]));
    }
    for number in 0..200 {
        assert_eq!(main.get(key(1000 + number)).unwrap().as_deref(), Some(&value(number)[..]));
    }
    assert_eq!(main.get(b"").unwrap().unwrap(), b"the empty key");
    for number in 0..2000 {
        assert_eq!(main.get(tail(number)).unwrap().as_deref(), Some(&[7; 300][..]));
    }
    assert_eq!(main.iter().count(), 2601);
}

#[test]
fn version_1_opens() {
    let work = tempfile::tempdir().unwrap();
    copy(&golden("v1"), work.path());
    for _ in 0..2 {
        let db = Db::open(work.path(), options()).unwrap();
        check(&db);
        db.verify().unwrap();
        db.close().unwrap();
    }
}

/// Pages of version 1 do not say where they belong; checkpoint and log do.
#[test]
fn version_1_is_copied_and_salvaged() {
    let work = tempfile::tempdir().unwrap();
    let place = |name: &str| work.path().join(name);
    copy(&golden("v1"), &place("old"));
    let report =
        Db::salvage(place("old"), place("new"), options().create_if_missing(true)).unwrap();
    assert!(report.is_whole(), "{report:#?}");
    check(&Db::open(place("new"), options()).unwrap());
    let db = Db::open(place("old"), options()).unwrap();
    db.backup(place("copy")).unwrap();
    check(&Db::open(place("copy"), options()).unwrap());
}

/// What the second set of databases was given, one keyspace after the other, checkpoint by
/// checkpoint; what comes after the last is in the log alone. Nothing for a value: the key is
/// removed.
type Told = Vec<(usize, Vec<u8>, Option<Vec<u8>>)>;

const KEYSPACES: [&str; 2] = ["main", "words: not logged"];

fn number(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Keys that no line is close to: clusters of many sizes.
fn word(number: u32) -> Vec<u8> {
    let cluster = (number / 40).wrapping_mul(0x9E37_79B1) >> (8 + number / 40 % 4);
    format!("{cluster:08x}{:02}", number % 40).into_bytes()
}

fn long(group: u8, number: u8) -> Vec<u8> {
    [&[b'm' + group; 700][..], &[number]].concat()
}

fn large(version: u8, pages: usize) -> Option<Vec<u8>> {
    Some(vec![version; pages * 4096 + usize::from(version)])
}

fn main_records(keys: impl Iterator<Item = u64>, length: usize) -> Told {
    let fill = |key: u64| (key % 251) as u8;
    keys.map(|key| (0, number(key), Some(vec![fill(key); length]))).collect()
}

/// The writes of the keyspaces of later engines.
fn told_turtle() -> Vec<Told> {
    let mut base = main_records((0..900).map(|key| key * 1000), 100);
    base.extend((0..400).map(|key| (1, word(key), Some(vec![7; (key % 90) as usize]))));
    base.extend((1..4).map(|key| (0, vec![b'l', key], large(key, 2))));
    // Little for each leaf, so it stays above them: new records, others instead of old ones, removals.
    let mut edited = main_records((0..900).step_by(11).map(|key| key * 1000), 40);
    edited.extend(main_records((0..900).step_by(30).map(|key| key * 1000 + 1), 70));
    edited.extend((0..900).step_by(7).map(|key| (0, number(key * 1000), None)));
    edited.extend((0..400).step_by(9).map(|key| (1, word(key), None)));
    edited.push((0, b"l\x01".to_vec(), large(9, 3)));
    edited.push((0, b"l\x02".to_vec(), None));
    let mut log = main_records((0..40).map(|key| key * 1000 + 700), 60);
    log.push((0, number(5000), None));
    log.push((0, number(11_000), None));
    log.push((0, b"l\x03".to_vec(), large(10, 1)));
    log.push((0, Vec::new(), Some(b"the empty key".to_vec())));
    vec![base, edited, log]
}

/// Whether it has keyspaces of an engine that came after the first.
fn is_of_later_engine(version: &str) -> bool {
    ["turtle", "2btree", "iot"].contains(&version)
}

fn told(version: &str) -> Vec<Told> {
    if is_of_later_engine(version) {
        return told_turtle();
    }
    let mut base = main_records((0..1500).map(|key| key * 1000), 100);
    base.extend((0..1200).map(|key| (1, word(key), Some(vec![7; (key % 90) as usize]))));
    base.extend((1..5).map(|key| (0, vec![b'l', key], large(key, 4))));
    // Pages with bounds so long that others than the first leave them out.
    base.extend((0..84).map(|key| (0, long(key / 7, 10 * (key % 7)), Some(vec![key; 40]))));
    if version == "v2-log" {
        let mut log = main_records(1_500_000..1_502_000, 60);
        log.extend((0..300).map(|key| (0, number(key * 1000), None)));
        log.push((0, b"l\x01".to_vec(), large(9, 6)));
        log.push((0, b"l\x02".to_vec(), None));
        return vec![base, log];
    }
    // A page that overflows, removals, room of a large value that is somebody else's.
    let mut edited = main_records(300_001..300_026, 100);
    edited.extend((1000..1500).step_by(7).map(|key| (0, number(key * 1000), None)));
    edited.extend((61..64).map(|key| (0, long(6, key), Some(vec![key; 40]))));
    edited.push((0, b"l\x01".to_vec(), large(9, 3)));
    edited.push((0, b"l\x02".to_vec(), None));
    let staged = main_records((600..900).step_by(6).map(|key| key * 1000 + 500), 50);
    let mut log = main_records((0..100).map(|key| key * 1000 + 700), 100);
    log.push((0, number(5000), None));
    log.push((0, number(600_500), None));
    log.push((0, b"l\x03".to_vec(), large(10, 2)));
    log.push((0, Vec::new(), Some(b"the empty key".to_vec())));
    vec![base, edited, staged, log]
}

fn write(version: &str, directory: &Path) {
    let work = tempfile::tempdir().unwrap();
    // Nothing is tidied up behind our back.
    let runtime = Runtime::stepped(1);
    let options = options().create_if_missing(true).runtime(runtime.clone());
    let db = Db::open(work.path(), options).unwrap();
    let [main, other] = if version == "turtle" {
        let turtle = KeyspaceOptions::default().engine(EngineKind::Turtle);
        let turtle = turtle.set("leaf", "16KiB").unwrap();
        [turtle.clone(), turtle]
    } else if version == "2btree" {
        [EngineKind::TwoBTree; 2].map(|engine| KeyspaceOptions::default().engine(engine))
    } else if version == "iot" {
        [EngineKind::Iot; 2].map(|engine| KeyspaceOptions::default().engine(engine))
    } else {
        let treeline = KeyspaceOptions::default();
        [treeline.clone().set("staging", "on").unwrap(), treeline]
    };
    let keyspaces = [
        db.keyspace(KEYSPACES[0], main).unwrap(),
        db.keyspace(KEYSPACES[1], other.logged(false)).unwrap(),
    ];
    let told = told(version);
    for (round, records) in told.iter().enumerate() {
        let is_tail = is_of_later_engine(version) && round + 1 == told.len();
        // Small enough for the mapped tail of the log.
        let (length, durability) =
            if is_tail { (4, Durability::Buffered) } else { (500, Durability::Sync) };
        for records in records.chunks(length) {
            let mut batch = Batch::new();
            for (keyspace, key, value) in records {
                match value {
                    Some(value) => batch.insert(&keyspaces[*keyspace], key.clone(), value.clone()),
                    None => batch.remove(&keyspaces[*keyspace], key.clone()),
                };
            }
            db.write_with(batch, durability).unwrap();
        }
        if round + 1 < told.len() {
            db.checkpoint().unwrap();
        }
    }
    if version == "v2-log" {
        (0..1000).for_each(|_| _ = runtime.step());
        db.flush().unwrap();
    }
    drop((keyspaces, db));
    copy(work.path(), directory);
}

/// Checks what a database of the second set holds.
fn check_told(db: &Db, version: &str) {
    let mut expected = [BTreeMap::new(), BTreeMap::new()];
    for (keyspace, key, value) in told(version).concat() {
        match value {
            Some(value) => expected[keyspace].insert(key, value),
            None => expected[keyspace].remove(&key),
        };
    }
    for (name, expected) in KEYSPACES.into_iter().zip(expected) {
        let keyspace = db.existing_keyspace(name).unwrap();
        let found = keyspace.iter().map(|record| record.unwrap());
        let found: BTreeMap<_, _> = found.map(|(key, value)| (key, value.to_vec())).collect();
        assert!(found == expected, "{version}, {name}: {} records", found.len());
        for (key, value) in expected {
            assert!(
                keyspace.get(&key).unwrap().as_deref() == Some(&value[..]),
                "{version}, {name}"
            );
        }
    }
}

/// What data pages in a file say of their segments: how many have a line, steps, or no bounds.
fn origins(file: &Path) -> [usize; 3] {
    let mut found = [0; 3];
    for page in std::fs::read(file).unwrap().chunks_exact(4096) {
        let short = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
        let (is_data, prefix, origin) = (page[8] == 1, short(38), short(40));
        let begin = 4096_usize.saturating_sub(prefix + origin);
        if !is_data || origin == 0 {
            continue;
        }
        let (version, flags) = (page[begin], page[begin + 1]);
        if version == 2 {
            found[2] += 1;
        } else if flags & 1 == 0 && flags & 4 != 0 {
            // A page of the extent itself, so the model comes next, and its kind with it.
            found[usize::from(page[begin + 5] >> 7)] += 1;
        }
    }
    found
}

#[test]
fn version_2_opens() {
    for version in ["v2", "v2-log"] {
        let mut from = golden(version);
        if let Some(directory) = std::env::var_os("SPINNEY_WRITE_GOLDEN") {
            from = Path::new(&directory).join(version);
            write(version, &from);
        }
        let work = tempfile::tempdir().unwrap();
        copy(&from, work.path());
        let [lines, _, unbounded] = origins(&work.path().join("keyspace-00000001.spn"));
        let [_, steps, _] = origins(&work.path().join("keyspace-00000002.spn"));
        assert!(lines > 0 && steps > 0, "{version}: {lines} pages of lines, {steps} of steps");
        assert!(unbounded > 0 || version == "v2-log", "no page leaves its bounds out");
        // At first nothing is tidied up behind our back, then everything.
        for runtime in [Runtime::stepped(1), Runtime::threads()] {
            let db = Db::open(work.path(), options().runtime(runtime.clone())).unwrap();
            check_told(&db, version);
            let verified = db.verify().unwrap();
            let stats = db.stats();
            let sum = |count: fn(&KeyspaceStats) -> u64| stats.keyspaces.iter().map(count).sum();
            let (pages, overflows): (u64, u64) =
                (sum(|one| one.pages), sum(|one| one.overflow_pages));
            if runtime.is_stepped() {
                let staged = verified.pages - pages - overflows;
                let several: u64 = sum(|one| one.segments[1..].iter().sum());
                let large: u64 = sum(|one| one.large_values);
                assert!(several > 0 && large > 0, "{version}: {stats:?}");
                if version == "v2" {
                    assert!(overflows > 0 && staged > 0, "{overflows} {staged} {stats:?}");
                } else {
                    // The checkpoint has no more than half as many.
                    assert!(pages > 100, "changes of structure were replayed: {stats:?}");
                }
            }
            db.close().unwrap();
        }
    }
}

/// How many pages of a file are of these kinds.
fn pages_of<const N: usize>(file: &Path, kinds: [u8; N]) -> [usize; N] {
    let bytes = std::fs::read(file).unwrap();
    kinds.map(|kind| bytes.chunks_exact(4096).filter(|page| page[8] == kind).count())
}

/// Opens the files of an engine whose leaves are blocks of the first kind, and nodes of the others.
fn opens<const N: usize>(version: &str, kinds: [u8; N]) {
    let mut from = golden(version);
    if let Some(directory) = std::env::var_os("SPINNEY_WRITE_GOLDEN") {
        from = Path::new(&directory).join(version);
        write(version, &from);
    }
    let work = tempfile::tempdir().unwrap();
    copy(&from, work.path());
    for file in ["keyspace-00000001.spn", "keyspace-00000002.spn"] {
        let found = pages_of(&work.path().join(file), kinds);
        assert!(found[0] > 5 && !found.contains(&0), "{file}: {found:?} pages of leaves and nodes");
    }
    for runtime in [Runtime::stepped(1), Runtime::threads()] {
        let db = Db::open(work.path(), options().runtime(runtime)).unwrap();
        check_told(&db, version);
        let (verified, stats) = (db.verify().unwrap(), db.stats());
        let is_turtle = |one: &KeyspaceStats| one.turtle.is_some();
        assert!(stats.keyspaces.iter().all(|one| is_turtle(one) == (version == "turtle")));
        let large: u64 = stats.keyspaces.iter().map(|one| one.large_values).sum();
        assert!(verified.records > 1000 && large >= 2, "{verified:?} {stats:?}");
        let snapshot = db.existing_keyspace(KEYSPACES[0]).unwrap().snapshot().unwrap();
        assert_eq!(snapshot.get(b"").unwrap().unwrap(), b"the empty key");
        assert_eq!(snapshot.get(number(7000)).unwrap(), None, "it was removed");
        drop(snapshot);
        db.close().unwrap();
    }
}

#[test]
fn turtle_opens() {
    opens("turtle", [5, 6]);
}

#[test]
fn two_btree_opens() {
    opens("2btree", [8, 9]);
    let [image] = pages_of(&golden("2btree").join("keyspace-00000001.spn"), [12]);
    assert!(image > 0, "no image of the tier");
}

#[test]
fn iot_opens() {
    opens("iot", [13]);
}

/// What the keyspace with patches holds: at its checkpoint, and with the log.
fn patched(with_log: bool) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records: BTreeMap<_, _> = (0..60).map(|at| (key(at), value(at))).collect();
    for number in (0..60).filter(|number| with_log && value(*number).len() >= 100) {
        let value = records.get_mut(&key(number)).unwrap();
        value[3..10].copy_from_slice(b"patched");
        if number % 2 == 0 {
            value[60..65].copy_from_slice(b"twice");
        }
    }
    records
}

fn write_patches(directory: &Path) {
    let work = tempfile::tempdir().unwrap();
    let options = options().create_if_missing(true).runtime(Runtime::stepped(1));
    let db = Db::open(work.path(), options.durability(Durability::Buffered)).unwrap();
    let main = db.keyspace("main", EngineKind::Iot).unwrap();
    for (key, value) in patched(false) {
        main.insert(key, value).unwrap();
    }
    db.checkpoint().unwrap();
    for number in (0..60).filter(|number| value(*number).len() >= 100) {
        if number % 2 == 1 {
            assert!(main.patch(key(number), 3, "patched").unwrap());
            continue;
        }
        let mut transaction = db.begin().unwrap();
        assert!(transaction.patch(&main, key(number), 60, "twice").unwrap());
        assert!(transaction.patch(&main, key(number), 3, "patched").unwrap());
        transaction.commit().unwrap();
    }
    drop((main, db));
    copy(work.path(), directory);
}

#[test]
fn patches_open() {
    let mut from = golden("iot-patches");
    if let Some(directory) = std::env::var_os("SPINNEY_WRITE_GOLDEN") {
        from = Path::new(&directory).join("iot-patches");
        write_patches(&from);
    }
    let work = tempfile::tempdir().unwrap();
    let place = |name: &str| work.path().join(name);
    copy(&from, &place("old"));
    Db::salvage(place("old"), place("new"), options().create_if_missing(true)).unwrap();
    for name in ["old", "old", "new"] {
        let db = Db::open(place(name), options()).unwrap();
        let main = db.existing_keyspace("main").unwrap();
        let found = main.iter().map(|record| record.unwrap());
        let found: BTreeMap<_, _> = found.map(|(key, value)| (key, value.to_vec())).collect();
        assert!(found == patched(true), "{name}");
        db.verify().unwrap();
        db.close().unwrap();
    }
}

#[test]
fn later_ones_are_copied_and_salvaged() {
    for version in ["v2", "v2-log", "turtle", "2btree", "iot"] {
        let work = tempfile::tempdir().unwrap();
        let place = |name: &str| work.path().join(name);
        copy(&golden(version), &place("old"));
        Db::salvage(place("old"), place("new"), options().create_if_missing(true)).unwrap();
        check_told(&Db::open(place("new"), options()).unwrap(), version);
        let db = Db::open(place("old"), options()).unwrap();
        db.backup(place("copy")).unwrap();
        check_told(&Db::open(place("copy"), options()).unwrap(), version);
    }
}

/// A directory of a later format is refused by a clear error, and nothing in it changes.
#[test]
fn an_unknown_version_is_refused() {
    let work = tempfile::tempdir().unwrap();
    copy(&golden("v1"), work.path());
    let manifest = work.path().join("MANIFEST");
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[8] = 3;
    // Every version has its checksum at the same place.
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let summed = [&bytes[..16], &bytes[24..24 + length]].concat();
    bytes[16..24].copy_from_slice(&xxhash_rust::xxh3::xxh3_64(&summed).to_le_bytes());
    std::fs::write(&manifest, &bytes).unwrap();
    let error = Db::open(work.path(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 3"), "{error}");
    assert_eq!(std::fs::read(&manifest).unwrap(), bytes);
}

/// A manifest that is gone or damaged is an error, never an empty database.
#[test]
fn a_lost_manifest_is_noticed() {
    let work = tempfile::tempdir().unwrap();
    copy(&golden("v1"), work.path());
    let manifest = work.path().join("MANIFEST");
    let bytes = std::fs::read(&manifest).unwrap();
    std::fs::remove_file(&manifest).unwrap();
    let error = Db::open(work.path(), options().create_if_missing(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    for at in [0, 12, 20, 30] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&manifest, &damaged).unwrap();
        let error = Db::open(work.path(), options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "byte {at}: {error}");
    }
}

/// D4: the slots of an earlier format have no copies, so nothing but the log tells that they are current. A
/// keyspace gets its proof before the log is trimmed of what it needs, also one that the log does not name.
#[test]
fn d4_released_formats_are_proven_before_they_are_parked() {
    for version in ["v1", "v2", "v2-log", "turtle"] {
        let place = tempfile::tempdir().unwrap();
        copy(&golden(version), place.path());
        for _ in 0..2 {
            let runtime = Runtime::stepped(1);
            let db = Db::open(place.path(), options().runtime(runtime.clone())).unwrap();
            let new = db.keyspace("one more", KeyspaceOptions::default()).unwrap();
            for number in 0..300u32 {
                new.insert(key(number), [1; 2000]).unwrap();
            }
            db.checkpoint().unwrap();
            while runtime.now() < std::time::Duration::from_secs(30) {
                runtime.step();
            }
            db.checkpoint().unwrap();
            drop(db);
        }
        Db::open(place.path(), options()).unwrap().verify().unwrap();
    }
}
