//! Golden files: databases that released formats wrote, opened by this version. `tests/golden/v1`
//! is never written again; a new format adds a directory beside it (`SPINNEY_WRITE_GOLDEN=DIR cargo
//! test -p spinney --test golden` writes one of today's).
//!
//! Each holds a clean checkpoint with a tail of the log above it, as a killed process leaves them:
//! opening replays.

use std::path::{Path, PathBuf};

use spinney::{Batch, Db, ErrorKind, KeyspaceOptions, Options};

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

fn write(directory: &Path) {
    let work = tempfile::tempdir().unwrap();
    let db = Db::open(work.path(), options().create_if_missing(true)).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    let cache = db.keyspace("cache: not logged", KeyspaceOptions::default().logged(false)).unwrap();
    db.keyspace("dropped", KeyspaceOptions::default()).unwrap();
    db.drop_keyspace("dropped").unwrap();
    for number in 0..600u32 {
        main.insert(&key(number), &value(number)).unwrap();
        cache.insert(&key(number), &value(number + 1)).unwrap();
    }
    db.checkpoint().unwrap();
    // More than the cache holds, and time for what splits because of it to be logged.
    for start in (0..2000).step_by(100) {
        let mut batch = Batch::new();
        for number in start..start + 100 {
            batch.insert(&main, tail(number), vec![7; 300]);
        }
        db.write(batch).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut batch = Batch::new();
    for number in 0..200 {
        batch.remove(&main, key(number * 3));
        batch.insert(&main, key(1000 + number), value(number));
    }
    db.write(batch).unwrap();
    main.insert(b"", b"the empty key").unwrap();
    // As a killed process leaves it: nothing is closed, and nothing runs any more.
    drop((main, cache, db));
    copy(work.path(), directory);
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

/// Checks what a database of version 1 holds.
fn check(db: &Db) {
    let names: Vec<String> = db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
    assert_eq!(names, ["main", "cache: not logged"]);
    let main = db.existing_keyspace("main").unwrap();
    let cache = db.existing_keyspace("cache: not logged").unwrap();
    for number in 0..600u32 {
        let expected = (!number.is_multiple_of(3)).then(|| value(number));
        assert_eq!(main.get(&key(number)).unwrap().as_deref(), expected.as_deref(), "{number}");
        assert_eq!(cache.get(&key(number)).unwrap().as_deref(), Some(&value(number + 1)[..]));
    }
    for number in 0..200 {
        assert_eq!(main.get(&key(1000 + number)).unwrap().as_deref(), Some(&value(number)[..]));
    }
    assert_eq!(main.get(b"").unwrap().unwrap(), b"the empty key");
    for number in 0..2000 {
        assert_eq!(main.get(&tail(number)).unwrap().as_deref(), Some(&[7; 300][..]));
    }
    assert_eq!(main.iter().count(), 2601);
}

#[test]
fn version_1_opens() {
    if let Some(directory) = std::env::var_os("SPINNEY_WRITE_GOLDEN") {
        write(Path::new(&directory));
    }
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
    Db::salvage(place("old"), place("new"), options().create_if_missing(true)).unwrap();
    check(&Db::open(place("new"), options()).unwrap());
    let db = Db::open(place("old"), options()).unwrap();
    db.backup(place("copy")).unwrap();
    check(&Db::open(place("copy"), options()).unwrap());
}

/// A directory of a later format is refused by a clear error, and nothing in it changes.
#[test]
fn an_unknown_version_is_refused() {
    let work = tempfile::tempdir().unwrap();
    copy(&golden("v1"), work.path());
    let manifest = work.path().join("MANIFEST");
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[8] = 2;
    std::fs::write(&manifest, &bytes).unwrap();
    let error = Db::open(work.path(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
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
