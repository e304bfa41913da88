//! What the library answers about a database, by the numbers of users' reports: how many records a
//! verification counts (e1), files that are missing (e2), copies that are taken again (e6), and
//! handles in a child that was forked (e8).
#![cfg(not(feature = "shuttle"))]
#![expect(unsafe_code, reason = "a process is forked")]

#[path = "common/budget.rs"]
mod budget;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use spinney_base::Runtime;
use spinney_base::runtime::SplitMix;
use spinney_db::{
    BackupOptions, Batch, Db, EngineKind, ErrorKind, Keyspace, KeyspaceOptions, Options,
};
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_io::{AlignedBuf, OpenMode, Purpose};

use budget::with_records;

/// With that, most records are not in memory, but where an engine keeps all there.
const MEMORY: u64 = 2 << 20;

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    Options::default()
        .memory(MEMORY)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone())
}

fn open(disk: &SimDisk) -> Db {
    Db::open("/db", options(disk, &Runtime::stepped(1))).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key{:05}", number * 7919 % 100_000).into_bytes()
}

/// A verification counts what a scan finds.
fn counts(db: &Db, keyspaces: &[Keyspace]) -> u64 {
    let scanned: usize = keyspaces.iter().map(|one| one.iter().count()).sum();
    let verified = db.verify().unwrap().records;
    assert_eq!(verified, scanned as u64);
    verified
}

/// Records that are in the log and in memory only are counted, overwritten and removed ones are
/// not: while the database is open, after a crash, and after a clean end, with background work done
/// or not.
#[test]
fn e1_a_verification_counts_what_a_scan_finds() {
    for (engine, logged) in
        EngineKind::ALL.into_iter().flat_map(|engine| [(engine, true), (engine, false)])
    {
        for seed in 0..6 {
            let disk = SimDisk::new(seed);
            let runtime = Runtime::stepped(seed);
            let memory = with_records(engine, MEMORY);
            let db = Db::open("/db", options(&disk, &runtime).memory(memory)).unwrap();
            let made = KeyspaceOptions::default().engine(engine).logged(logged);
            let keyspaces = ["a", "b"].map(|name| db.keyspace(name, made.clone()).unwrap());
            let mut random = SplitMix(seed);
            assert_eq!(counts(&db, &keyspaces), 0);
            if seed % 2 == 1 {
                let mut keys: Vec<_> = (0..900).map(key).collect();
                keys.sort();
                keyspaces[1].bulk_load(keys.iter().map(|key| (key, b"loaded"))).unwrap();
                assert_eq!(counts(&db, &keyspaces), 900);
            }
            for round in 0..6 {
                for _ in 0..700 {
                    let number = random.next_u64();
                    let keyspace = &keyspaces[usize::try_from(number >> 32 & 1).unwrap()];
                    let key = key(number % 3000);
                    match number >> 40 & 3 {
                        0 => keyspace.remove(&key).unwrap(),
                        // Large, long and short.
                        1 if number >> 48 & 31 == 0 => keyspace.insert(&key, [1; 9000]).unwrap(),
                        1 => keyspace.insert(&key, [2; 900]).unwrap(),
                        _ => keyspace.insert(&key, [3; 60]).unwrap(),
                    }
                    if number >> 56 & 7 == 0 {
                        runtime.step();
                    }
                }
                counts(&db, &keyspaces);
                if round == 2 {
                    db.checkpoint().unwrap();
                    counts(&db, &keyspaces);
                }
            }
            let crashed = disk.kill();
            assert!(counts(&db, &keyspaces) > 500);
            drop((keyspaces, db));
            for _ in 0..2 {
                let options = options(&crashed, &Runtime::stepped(1)).memory(memory);
                let db = Db::open("/db", options).unwrap();
                let keyspaces = ["a", "b"].map(|name| db.existing_keyspace(name).unwrap());
                assert!(counts(&db, &keyspaces) > 500);
                db.close().unwrap();
            }
        }
    }
}

/// A progress function hears of every page and may end the verification.
#[test]
fn e1_a_verification_tells_how_far_it_is() {
    for engine in EngineKind::ALL {
        let disk = SimDisk::new(1);
        let options = options(&disk, &Runtime::stepped(1));
        let db = Db::open("/db", options.memory(with_records(engine, MEMORY))).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        (0..3000).for_each(|number| keyspace.insert(key(number), [1; 300]).unwrap());
        db.checkpoint().unwrap();
        let mut last = 0;
        let report = db
            .verify_with(|progress| {
                assert!(progress.pages >= last && progress.pages_expected > 100);
                last = progress.pages;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(report.pages, last);
        let mut calls = 0;
        let ended = db.verify_with(|_| {
            calls += 1;
            if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((ended.unwrap_err().kind(), calls), (ErrorKind::Cancelled, 3));
        db.verify().unwrap();
        // Nothing is held after that.
        keyspace.insert(b"key", b"value").unwrap();
        db.checkpoint().unwrap();
    }
}

/// A database whose log or file is missing is damaged, not missing. Looking for a database
/// leaves no file behind.
#[test]
fn e2_missing_files_are_damage() {
    for (lost, kind) in [
        (&["wal"][..], ErrorKind::Corruption),
        (&["keyspace-00000001.spn"], ErrorKind::Corruption),
        (&["MANIFEST"], ErrorKind::Corruption),
        (&["MANIFEST", "keyspace-00000001.spn"], ErrorKind::NotFound),
        (&["MANIFEST", "keyspace-00000001.spn", "wal"], ErrorKind::NotFound),
    ] {
        let disk = SimDisk::new(1);
        let db = open(&disk);
        db.keyspace("k", KeyspaceOptions::default()).unwrap().insert(b"k", b"v").unwrap();
        db.close().unwrap();
        for name in lost {
            disk.remove(&Path::new("/db").join(name)).unwrap();
        }
        let looked = || options(&disk, &Runtime::stepped(2)).create_if_missing(false);
        let files = disk.files();
        let error = Db::open("/db", looked()).unwrap_err();
        assert_eq!(error.kind(), kind, "{lost:?}: {error}");
        let restored = Db::restore("/db", "/back", looked()).unwrap_err();
        assert_eq!(restored.kind(), kind, "{lost:?}: {restored}");
        assert_eq!(disk.files(), files, "{lost:?}");
        if kind == ErrorKind::NotFound {
            let salvaged = Db::salvage("/db", "/saved", looked()).unwrap_err();
            assert_eq!(salvaged.kind(), kind, "{lost:?}: {salvaged}");
        }
        assert_eq!(disk.files(), files, "{lost:?}");
    }
}

/// On a real directory, where a lock is a file.
#[test]
fn e2_looking_for_a_database_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let looked = || Options::default().create_if_missing(false);
    let there = directory.path();
    assert_eq!(Db::open(there, looked()).unwrap_err().kind(), ErrorKind::NotFound);
    let back = there.join("back");
    assert_eq!(Db::restore(there, &back, looked()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Db::salvage(there, &back, looked()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(there).unwrap().count(), 0);
}

#[test]
fn e7_the_keyspaces_that_are_there_are_named() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let told = || db.existing_keyspace("nobody").unwrap_err().to_string();
    assert_eq!(told(), "there is no keyspace \"nobody\"; the database has none");
    db.keyspace("a", KeyspaceOptions::default()).unwrap();
    assert_eq!(told(), "there is no keyspace \"nobody\"; there is only \"a\"");
    db.keyspace("b\"", KeyspaceOptions::default()).unwrap();
    assert_eq!(told(), r#"there is no keyspace "nobody"; there are "a", "b\"""#);
    assert_eq!(db.drop_keyspace("nobody").unwrap_err().to_string(), told());
    db.set_memory(16 << 20).unwrap();
    for number in 0..9 {
        db.keyspace(&format!("c{number}"), KeyspaceOptions::default()).unwrap();
    }
    assert!(told().ends_with("\"c5\" and 3 more"), "{}", told());
}

/// A crash anywhere in a backup, a restore or a salvage leaves what the next one removes; what is
/// no file of a database stays, and is in the way.
#[test]
fn e6_what_was_left_unfinished_can_be_made_again() {
    type Again = fn(&SimDisk) -> spinney_db::Result<()>;
    let again: [Again; 3] = [
        |disk| {
            let db = Db::open("/db", options(disk, &Runtime::stepped(1)))?;
            db.backup("/to").map(|_| ())
        },
        |disk| Db::restore("/db", "/to", options(disk, &Runtime::stepped(5))).map(|_| ()),
        |disk| Db::salvage("/db", "/to", options(disk, &Runtime::stepped(5))).map(|_| ()),
    ];
    let disk = SimDisk::new(9);
    let db = open(&disk);
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    (0..300).for_each(|number| keyspace.insert(key(number), [1; 100]).unwrap());
    drop(keyspace);
    db.close().unwrap();
    for (which, make) in again.into_iter().enumerate() {
        let whole = disk.kill();
        let begun = whole.steps();
        make(&whole).unwrap();
        let mut unfinished = 0;
        for step in (begun + 1..whole.steps()).step_by(3) {
            let broken = disk.kill();
            broken.cut_power_at(step);
            let Err(_) = make(&broken) else { continue };
            let left = broken.crash(CrashMode::Torn512);
            let files = |disk: &SimDisk| -> Vec<String> {
                let names = disk.files().into_iter().filter(|path| path.starts_with("/to"));
                names.map(|path| path.display().to_string()).collect()
            };
            let is_marked = files(&left)
                .iter()
                .any(|name| name.ends_with("UNFINISHED") || name.ends_with("SALVAGING"));
            let is_whole = files(&left).iter().any(|name| name.ends_with("MANIFEST"))
                && !files(&left).iter().any(|name| name.ends_with("SALVAGING"));
            if is_marked && !is_whole {
                unfinished += 1;
                // Something of the user's own is in the way, and stays.
                let place = Path::new("/to/wallpaper.png");
                let file = left.open(place, OpenMode::CREATE).unwrap();
                file.write_at(AlignedBuf::new(1).bytes(), 0, Purpose::TOOL).unwrap();
                let error = make(&left).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains("wallpaper.png"), "{error}");
                left.remove(place).unwrap();
            }
            if is_whole {
                assert_eq!(make(&left).unwrap_err().kind(), ErrorKind::InvalidArgument);
            } else {
                // What one kind of copy left another may remove.
                let next = again[(which + unfinished) % 3];
                next(&left).unwrap_or_else(|error| panic!("{error}: {:?}", files(&left)));
            }
            let copy =
                Db::open("/to", options(&left, &Runtime::stepped(7)).create_if_missing(false));
            let copy = copy.unwrap();
            assert_eq!(copy.existing_keyspace("k").unwrap().iter().count(), 300);
        }
        assert!(unfinished > 3, "{unfinished} of {which}");
    }
}

/// Nothing is put together inside the directory of a database, whatever path leads there.
#[test]
fn e6_no_copy_inside_a_database() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let db = Db::open(place("db"), Options::default()).unwrap();
    db.keyspace("k", KeyspaceOptions::default()).unwrap().insert(b"k", b"v").unwrap();
    std::fs::create_dir_all(place("db/sub/deep")).unwrap();
    std::os::unix::fs::symlink(place("db/sub"), place("link")).unwrap();
    // A file of that name alone is no database.
    std::fs::write(place("MANIFEST"), b"of a package").unwrap();
    let inside = ["db", "db/bk", "db/a/b/c", "db/sub", "db/sub/deep/x", "link", "link/x"];
    for to in inside {
        let error = db.backup(place(to)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{to}: {error}");
    }
    db.backup(place("bk")).unwrap();
    db.close().unwrap();
    for to in inside {
        for made in [
            Db::restore(place("bk"), place(to), Options::default()).map(|_| ()),
            Db::salvage(place("bk"), place(to), Options::default()).map(|_| ()),
        ] {
            let error = made.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{to}: {error}");
        }
    }
    assert_eq!(std::fs::read_dir(place("db/sub/deep")).unwrap().count(), 0);
    Db::restore(place("bk"), place("elsewhere"), Options::default()).unwrap();
}

/// What a progress function ends leaves nothing, and says so.
#[test]
fn e4_copies_can_be_ended() {
    let disk = SimDisk::new(9);
    let runtime = Runtime::stepped(1);
    let db = Db::open("/db", options(&disk, &runtime)).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default()).unwrap();
    (0..3000).for_each(|number| keyspace.insert(key(number), [1; 100]).unwrap());
    let left = || disk.files().iter().filter(|path| path.starts_with("/to")).count();
    let ended = |result: spinney_db::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(left(), 0);
    };
    let options = || options(&disk, &Runtime::stepped(3));
    ended(db.backup_with("/to", &BackupOptions::default(), |_| ControlFlow::Break(())).map(|_| ()));
    db.backup("/bk").unwrap();
    db.close().unwrap();
    for last in [1, 2, 3] {
        let mut calls = 0;
        let mut after = move || {
            calls += 1;
            if calls < last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        ended(Db::restore_with("/bk", "/to", options(), |_| after()).map(|_| ()));
        ended(Db::salvage_with("/bk", "/to", options(), |_| after()).map(|_| ()));
    }
    Db::salvage("/bk", "/to", options()).unwrap();
}

/// In a child every call answers an error that says why, whatever the parent's threads hold, and
/// dropping handles there harms nobody.
#[test]
fn e8_a_child_cannot_use_its_parents_handles() {
    let directory = tempfile::tempdir().unwrap();
    for engine in EngineKind::ALL {
        let place = directory.path().join(engine.name());
        let db = Db::open(&place, Options::default()).unwrap();
        let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(engine)).unwrap();
        keyspace.insert(b"key", b"value").unwrap();
        let mut cursor = keyspace.iter();
        let snapshot = keyspace.snapshot().ok();
        // SAFETY: the child calls functions of the C library that work after a fork of a process with
        // threads (it allocates), and ends without running anything of its parent's.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let answers = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut batch = Batch::new();
                batch.insert(&keyspace, *b"k", *b"v");
                let errors = [
                    keyspace.get(b"key").map(|_| ()),
                    keyspace.multi_get([b"key"]).map(|_| ()),
                    keyspace.insert(b"key", b"other"),
                    keyspace.remove(b"key"),
                    keyspace.update(b"key", |_| None).map(|_| ()),
                    keyspace.snapshot().map(|_| ()),
                    keyspace.first_key_value().map(|_| ()),
                    cursor.next().unwrap().map(|_| ()),
                    keyspace.bulk_load([(b"a", b"b")]).map(|_| ()),
                    snapshot.as_ref().map_or_else(|| db.flush(), |it| it.get(b"key").map(|_| ())),
                    db.write(batch),
                    db.flush(),
                    db.checkpoint(),
                    db.verify().map(|_| ()),
                    db.set_memory(32 << 20),
                    db.keyspace("k", KeyspaceOptions::default().engine(engine)).map(|_| ()),
                    db.existing_keyspace("k").map(|_| ()),
                    db.drop_keyspace("k"),
                    db.backup(directory.path().join("copy")).map(|_| ()),
                    db.clone().close(),
                ];
                let told = |result: &spinney_db::Result<()>| {
                    result.as_ref().is_err_and(|error| {
                        error.kind() == ErrorKind::Closed && error.to_string().contains("forked")
                    })
                };
                let first_wrong = errors.iter().position(|result| !told(result));
                drop((cursor, snapshot, keyspace, db));
                first_wrong.map_or(0, |place| 10 + i32::try_from(place).unwrap())
            }));
            // SAFETY: this ends the child at once.
            unsafe { libc::_exit(answers.unwrap_or(1)) };
        }
        let mut status = 0;
        // SAFETY: the status is written to a place of ours.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(ended, child);
        assert!(libc::WIFEXITED(status), "status {status}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "{engine}");
        // The parent continues, holds its lock, and lets go of it.
        assert_eq!(cursor.next().unwrap().unwrap().0, b"key");
        keyspace.insert(b"key", b"newer").unwrap();
        assert_eq!(Db::open(&place, Options::default()).unwrap_err().kind(), ErrorKind::Locked);
        drop((cursor, snapshot, keyspace));
        db.close().unwrap();
        let db = Db::open(&place, Options::default()).unwrap();
        assert_eq!(
            db.existing_keyspace("k").unwrap().get(b"key").unwrap().as_deref(),
            Some(&b"newer"[..])
        );
        db.verify().unwrap();
    }
}
