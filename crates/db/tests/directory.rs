//! One descriptor for the directory, and its lock: what becomes of names, working directories and
//! descriptors behind an open database (faults A2, A3 and B2).
//!
//! What changes a whole process, its working directory or its limits, runs in a process of its own:
//! [`in_a_process`] starts this test program again for one test.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use spinney_base::{ErrorKind, Runtime};
use spinney_db::{BackupOptions, Db, EngineKind, KeyspaceOptions, Options};
use spinney_io::sim::{Fault, SimDisk};

const ENGINES: [EngineKind; EngineKind::ALL.len()] = EngineKind::ALL;

/// Names the test that a process was started for, and where.
const CHILD: &str = "SPINNEY_TEST_CHILD";

fn options(disk: &SimDisk) -> Options {
    Options::default()
        .memory(4 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1))
}

fn kind(engine: EngineKind) -> KeyspaceOptions {
    KeyspaceOptions::default().engine(engine)
}

fn real() -> Options {
    Options::default().memory(64 << 20)
}

fn names(db: &Db) -> Vec<String> {
    db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect()
}

fn holds(db: &Db, keyspace: &str, key: &[u8], value: &[u8]) {
    let found = db.existing_keyspace(keyspace).unwrap().get(key).unwrap();
    assert_eq!(found.as_deref(), Some(value), "{keyspace}");
}

/// Runs `body` in a process of its own, in an empty directory.
fn in_a_process(test: &str, body: impl FnOnce(&Path)) {
    if let Some(place) = std::env::var_os(CHILD) {
        return body(Path::new(&place));
    }
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, place.path())
        .output()
        .unwrap();
    let (out, err) = (output.stdout.escape_ascii(), output.stderr.escape_ascii());
    assert!(output.status.success(), "{}: {out} {err}", output.status);
}

/// A database opened by a relative path stays where it was when the process goes elsewhere, though
/// there is another one of that name.
#[test]
fn a2_a_relative_path_is_resolved_once() {
    in_a_process("a2_a_relative_path_is_resolved_once", |place| {
        for engine in ENGINES {
            let [a, b] = ["a", "b"].map(|name| place.join(format!("{engine}-{name}")));
            for directory in [&a, &b] {
                std::fs::create_dir(directory).unwrap();
            }
            std::env::set_current_dir(&b).unwrap();
            let other = Db::open("db", real()).unwrap();
            other.keyspace("other", kind(engine)).unwrap().insert(b"k", b"0").unwrap();
            other.close().unwrap();
            std::env::set_current_dir(&a).unwrap();
            let db = Db::open("db", real()).unwrap();
            db.keyspace("one", kind(engine)).unwrap().insert(b"k", b"1").unwrap();
            std::env::set_current_dir(&b).unwrap();
            db.keyspace("two", kind(engine)).unwrap().insert(b"k", b"2").unwrap();
            db.drop_keyspace("one").unwrap();
            db.checkpoint().unwrap();
            db.backup("copy").unwrap();
            db.close().unwrap();
            let other = Db::open("db", real()).unwrap();
            assert_eq!(names(&other), ["other"]);
            holds(&other, "other", b"k", b"0");
            for path in [a.join("db"), b.join("copy")] {
                let db = Db::open(path, real()).unwrap();
                assert_eq!(names(&db), ["two"]);
                holds(&db, "two", b"k", b"2");
                db.verify().unwrap();
            }
        }
    });
}

/// The same on the simulated disk, with a crash.
#[test]
fn a2_a_working_directory_that_changes() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        for name in ["/a", "/b"] {
            disk.create_dir(Path::new(name)).unwrap();
            disk.set_working_directory(Path::new(name)).unwrap();
            let db = Db::open("db", options(&disk)).unwrap();
            db.keyspace(name, kind(engine)).unwrap().insert(b"k", name.as_bytes()).unwrap();
            db.close().unwrap();
        }
        disk.set_working_directory(Path::new("/a")).unwrap();
        let db = Db::open("db", options(&disk)).unwrap();
        disk.set_working_directory(Path::new("/b")).unwrap();
        db.keyspace("new", kind(engine)).unwrap().insert(b"k", b"new").unwrap();
        let image = disk.kill();
        drop(db);
        for disk in [image, disk] {
            let db = Db::open("/a/db", options(&disk)).unwrap();
            assert_eq!(names(&db), ["/a", "new"]);
            holds(&db, "new", b"k", b"new");
            let db = Db::open("/b/db", options(&disk)).unwrap();
            assert_eq!(names(&db), ["/b"]);
            holds(&db, "/b", b"k", b"/b");
        }
    }
}

/// A directory that is moved, and another that takes its path: all that the database does is done
/// where it is, also by a backup that has begun.
#[test]
fn a2_a_directory_that_is_moved() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let other = Db::open("/other", options(&disk)).unwrap();
        other.keyspace("other", kind(engine)).unwrap().insert(b"k", b"0").unwrap();
        other.close().unwrap();
        let db = Db::open("/db", options(&disk)).unwrap();
        let one = db.keyspace("one", kind(engine)).unwrap();
        (0..200u32).for_each(|key| one.insert(key.to_be_bytes(), [7; 900]).unwrap());
        disk.move_directory(Path::new("/db"), Path::new("/moved")).unwrap();
        disk.move_directory(Path::new("/other"), Path::new("/db")).unwrap();
        db.keyspace("two", kind(engine)).unwrap().insert(b"k", b"2").unwrap();
        db.drop_keyspace("one").unwrap();
        let mut moved = false;
        db.backup_with("/copy", &BackupOptions::default(), |_| {
            if !moved {
                disk.move_directory(Path::new("/copy"), Path::new("/copied")).unwrap();
                disk.create_dir(Path::new("/copy")).unwrap();
                moved = true;
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        assert!(moved);
        db.close().unwrap();
        let at_copy = |path: &&std::path::PathBuf| path.starts_with("/copy");
        assert_eq!(disk.files().iter().filter(at_copy).count(), 0);
        for (path, keyspace, value) in
            [("/db", "other", b"0"), ("/moved", "two", b"2"), ("/copied", "two", b"2")]
        {
            let db = Db::open(path, options(&disk)).unwrap();
            assert_eq!(names(&db), [keyspace]);
            holds(&db, keyspace, b"k", value);
        }
    }
}

/// Another database's files come into the directory: its manifest is not replaced, nothing that it
/// names is removed, and writing to what is open continues.
#[test]
fn a2_a_manifest_of_another_is_not_replaced() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let make = |path: &str, seed| {
            let db = Db::open(path, options(&disk).runtime(Runtime::stepped(seed))).unwrap();
            db.keyspace("one", kind(engine)).unwrap().insert(b"k", path.as_bytes()).unwrap();
            db
        };
        let db = make("/db", 1);
        make("/other", 2).close().unwrap();
        let manifest = Path::new("/db/MANIFEST");
        let (mine, others) = (Path::new("/mine"), Path::new("/other/MANIFEST"));
        // What comes with it has the name of the next keyspace's file.
        let file = Path::new("/db/keyspace-00000002.spn");
        disk.rename(Path::new("/other/keyspace-00000001.spn"), file).unwrap();
        let bytes = [disk.contents(others).unwrap(), disk.contents(file).unwrap()];
        disk.rename(manifest, mine).unwrap();
        for is_gone in [false, true] {
            if !is_gone {
                disk.rename(others, manifest).unwrap();
            }
            let errors = [
                db.keyspace("two", kind(engine)).unwrap_err(),
                db.drop_keyspace("one").unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                assert!(error.to_string().contains("/db/MANIFEST"), "{error}");
            }
            db.existing_keyspace("one").unwrap().insert(b"k", b"more").unwrap();
            if !is_gone {
                disk.rename(manifest, others).unwrap();
            }
            assert!(!disk.files().contains(&manifest.to_owned()));
        }
        assert_eq!([disk.contents(others).unwrap(), disk.contents(file).unwrap()], bytes);
        disk.rename(file, Path::new("/other/keyspace-00000001.spn")).unwrap();
        disk.rename(mine, manifest).unwrap();
        db.keyspace("two", kind(engine)).unwrap().insert(b"k", b"2").unwrap();
        db.close().unwrap();
        for (path, value) in [("/db", &b"more"[..]), ("/other", b"/other")] {
            let db = Db::open(path, options(&disk)).unwrap();
            holds(&db, "one", b"k", value);
            db.verify().unwrap();
        }
    }
}

/// A directory with a log that has records and no manifest is no place for a new database.
#[test]
fn a2_a_log_of_a_lost_database_is_not_replaced() {
    let disk = SimDisk::new(1);
    let db = Db::open("/db", options(&disk)).unwrap();
    db.keyspace("one", kind(EngineKind::TreeLine)).unwrap().insert(b"k", b"1").unwrap();
    drop(db);
    disk.remove(Path::new("/db/MANIFEST")).unwrap();
    disk.remove(Path::new("/db/keyspace-00000001.spn")).unwrap();
    let before = disk.contents(Path::new("/db/wal")).unwrap();
    let error = Db::open("/db", options(&disk)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains("/db/wal"), "{error}");
    assert!(disk.contents(Path::new("/db/wal")).unwrap() == before);
}

/// Another database comes into the directory of a backup that runs: the backup fails and removes
/// nothing.
#[test]
fn a2_a_database_that_comes_into_a_copy_stays() {
    for at_end in [false, true] {
        let disk = SimDisk::new(1);
        let other = Db::open("/other", options(&disk)).unwrap();
        other.keyspace("one", kind(EngineKind::Turtle)).unwrap().insert(b"k", b"0").unwrap();
        other.close().unwrap();
        let db = Db::open("/db", options(&disk)).unwrap();
        let one = db.keyspace("one", kind(EngineKind::Turtle)).unwrap();
        (0..200u32).for_each(|key| one.insert(key.to_be_bytes(), [7; 900]).unwrap());
        let mut moved = false;
        let manifest = Path::new("/other/MANIFEST");
        let result = db.backup_with("/copy", &BackupOptions::default(), |_| {
            if !moved {
                disk.rename(manifest, Path::new("/copy/MANIFEST")).unwrap();
                moved = true;
                if !at_end {
                    disk.inject(Fault::WriteError { at: disk.writes() + 1 });
                }
            }
            std::ops::ControlFlow::Continue(())
        });
        let kind = if at_end { ErrorKind::Corruption } else { ErrorKind::Io };
        assert_eq!(result.unwrap_err().kind(), kind);
        disk.rename(Path::new("/copy/MANIFEST"), manifest).unwrap();
        holds(&Db::open("/other", options(&disk)).unwrap(), "one", b"k", b"0");
    }
}

/// Files that somebody unlinks stay until they are closed, and what is dropped then is gone.
#[test]
fn a2_files_unlinked_behind_a_database() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let db = Db::open("/db", options(&disk)).unwrap();
        let one = db.keyspace("one", kind(engine)).unwrap();
        disk.remove(Path::new("/db/keyspace-00000001.spn")).unwrap();
        one.insert(b"k", b"1").unwrap();
        db.checkpoint().unwrap();
        holds(&db, "one", b"k", b"1");
        db.drop_keyspace("one").unwrap();
        db.keyspace("one", kind(engine)).unwrap().insert(b"k", b"2").unwrap();
        db.close().unwrap();
        holds(&Db::open("/db", options(&disk)).unwrap(), "one", b"k", b"2");
        // The whole directory: nothing new can be made, and what is open continues.
        let db = Db::open("/db", options(&disk)).unwrap();
        holds(&db, "one", b"k", b"2");
        disk.remove_directory(Path::new("/db")).unwrap();
        assert!(db.keyspace("two", kind(engine)).is_err());
        db.existing_keyspace("one").unwrap().insert(b"k", b"3").unwrap();
        holds(&db, "one", b"k", b"3");
        db.close().unwrap();
        assert!(disk.files().is_empty());
    }
}

/// Without the file `lock` the directory is held all the same, by whichever process.
#[test]
fn a3_the_lock_file_is_taken_away() {
    if let Some(place) = std::env::var_os(CHILD) {
        let error = Db::open(Path::new(&place).join("db"), real()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        let parent = std::env::var("PARENT").unwrap();
        let named = format!("is open in process {parent}");
        assert!(error.to_string().ends_with(&named), "{error}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    let db = Db::open(&path, real()).unwrap();
    let one = db.keyspace("one", KeyspaceOptions::default()).unwrap();
    for is_there in [true, false] {
        if !is_there {
            std::fs::remove_file(path.join("lock")).unwrap();
        }
        let error = Db::open(&path, real()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        let named = "is open through another handle of this process";
        assert!(error.to_string().ends_with(named), "{error}");
        for refused in [
            Db::restore(&path, place.path().join("new"), real()).unwrap_err(),
            Db::salvage(&path, place.path().join("new"), real()).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Locked);
        }
        // For its files, before its lock is checked.
        assert_eq!(db.backup(&path).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["a3_the_lock_file_is_taken_away", "--exact", "--nocapture"])
            .env(CHILD, place.path())
            .env("PARENT", std::process::id().to_string())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(child.success());
        one.insert(b"k", b"1").unwrap();
    }
    // Where the file cannot be made: it is another directory's name.
    std::fs::create_dir(path.join("lock")).unwrap();
    db.close().unwrap();
    std::fs::remove_dir(path.join("lock")).unwrap();
    holds(&Db::open(&path, real()).unwrap(), "one", b"k", b"1");
}

/// An earlier version locks the file alone; it is kept out, and keeps this one out.
#[test]
fn a3_earlier_versions_are_kept_out() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db");
    Db::open(&path, real()).unwrap().close().unwrap();
    let file = std::fs::File::open(path.join("lock")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, exclusive).unwrap();
    assert_eq!(Db::open(&path, real()).unwrap_err().kind(), ErrorKind::Locked);
    drop(file);
    let db = Db::open(&path, real()).unwrap();
    let file = std::fs::File::open(path.join("lock")).unwrap();
    assert!(rustix::fs::flock(&file, exclusive).is_err());
    db.close().unwrap();
    rustix::fs::flock(&file, exclusive).unwrap();
}

/// With few descriptors `keyspace` parks others or answers an error, whatever it lacked one for;
/// nothing else is stopped, and it works when some are free again.
#[test]
fn b2_out_of_descriptors() {
    in_a_process("b2_out_of_descriptors", |place| {
        use rustix::process::{Resource, getrlimit, setrlimit};
        for engine in ENGINES {
            let path = place.join(engine.to_string());
            let db = Db::open(&path, real()).unwrap();
            let one = db.keyspace("one", kind(engine)).unwrap();
            one.insert(b"k", b"1").unwrap();
            let limit = getrlimit(Resource::Nofile);
            // The one that lists them is not counted.
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
            let mut made = vec!["one".to_owned()];
            for free in 0..12 {
                let fewer = rustix::process::Rlimit { current: Some(open + free), ..limit };
                setrlimit(Resource::Nofile, fewer).unwrap();
                let name = format!("with {free}");
                let result = db.keyspace(&name, kind(engine));
                match result {
                    Ok(keyspace) => {
                        keyspace.insert(b"k", b"2").unwrap();
                        made.push(name);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        assert!(error.to_string().contains("Too many open files"), "{error}");
                    }
                }
                one.insert(b"k", b"3").unwrap();
                db.checkpoint().unwrap();
                holds(&db, "one", b"k", b"3");
            }
            setrlimit(Resource::Nofile, limit).unwrap();
            // Keyspaces that are not used give up theirs.
            assert!(made.len() > 1, "{made:?}");
            db.keyspace("last", kind(engine)).unwrap();
            made.push("last".to_owned());
            let files = std::fs::read_dir(&path).unwrap();
            let names_of = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            let stores = names_of.filter(|name| name.ends_with(".spn")).count();
            assert_eq!(stores, made.len());
            assert_eq!(names(&db), made);
            db.close().unwrap();
            let db = Db::open(&path, real()).unwrap();
            assert_eq!(names(&db), made);
            holds(&db, "one", b"k", b"3");
            db.verify().unwrap();
        }
    });
}

/// The same with each open in turn: opening a database, making keyspaces, backup, restore and
/// salvage answer errors that change nothing.
#[test]
fn b2_every_open_fails() {
    for engine in ENGINES {
        let start = SimDisk::new(1);
        let db = Db::open("/db", options(&start)).unwrap();
        db.keyspace("old", kind(engine)).unwrap().insert(b"k", b"0").unwrap();
        drop(db);
        for at in 1.. {
            let disk = start.kill();
            disk.inject(Fault::NoDescriptor { at });
            let result = (|| {
                let db = Db::open("/db", options(&disk))?;
                let one = match db.keyspace("one", kind(engine)) {
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        assert_eq!(names(&db), ["old"]);
                        db.keyspace("one", kind(engine)).unwrap()
                    }
                    Ok(one) => one,
                };
                one.insert(b"k", b"1").unwrap();
                db.checkpoint().unwrap();
                let copied = db.backup("/copy");
                one.insert(b"k", b"2").unwrap();
                holds(&db, "old", b"k", b"0");
                db.close().unwrap();
                copied?;
                Db::restore("/copy", "/new", options(&disk))?;
                Db::salvage("/db", "/saved", options(&disk)).map(drop)
            })();
            if disk.faults_struck() == 0 {
                assert!(at > 20, "{at} opens");
                result.unwrap();
                break;
            }
            if let Err(error) = result {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            }
            assert_eq!(disk.descriptors(), 0);
            let db = Db::open("/db", options(&disk)).unwrap();
            holds(&db, "old", b"k", b"0");
            db.verify().unwrap();
        }
    }
}

/// A database needs its directory, the lock, the log and its tail, and one file a keyspace; what it
/// has open is enough for everything but making keyspaces and copies.
#[test]
fn b2_a_database_runs_on_what_it_has_open() {
    for engine in ENGINES {
        let disk = SimDisk::new(1);
        let db = Db::open("/db", options(&disk)).unwrap();
        for name in ["one", "two"] {
            db.keyspace(name, kind(engine)).unwrap();
        }
        assert_eq!(disk.descriptors(), 2 + 3 + 2);
        disk.limit_descriptors(Some(0));
        let one = db.existing_keyspace("one").unwrap();
        for key in 0..2000u32 {
            one.insert(key.to_be_bytes(), [9; 300]).unwrap();
        }
        one.insert(b"large", vec![1; 100_000]).unwrap();
        db.checkpoint().unwrap();
        assert_eq!(one.iter().count(), 2001);
        db.verify().unwrap();
        db.keyspace("three", kind(engine)).unwrap_err();
        // Dropping looks at the manifest first.
        db.drop_keyspace("two").unwrap_err();
        disk.limit_descriptors(Some(disk.descriptors() + 1));
        db.drop_keyspace("two").unwrap();
        db.close().unwrap();
    }
}
