//! Sizes that users give are checked before anything is allocated, and what a large budget allows
//! is taken when the data needs it (fault B3).
#![cfg(not(feature = "shuttle"))]

use std::process::Command;
use std::sync::Arc;

use spinney_base::{ErrorKind, Runtime};
use spinney_db::{BackupOptions, Db, Durability, EngineKind, KeyspaceOptions, Options};
use spinney_io::machine_memory_bytes;
use spinney_io::sim::SimDisk;

const ENGINES: [EngineKind; EngineKind::ALL.len()] = EngineKind::ALL;

/// Names where a process works that was started for one test.
const CHILD: &str = "SPINNEY_TEST_CHILD";

fn options(disk: &SimDisk) -> Options {
    Options::default().disk(Arc::new(disk.clone())).runtime(Runtime::stepped(1))
}

fn kind(engine: EngineKind) -> KeyspaceOptions {
    KeyspaceOptions::default().engine(engine)
}

/// Peak memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A budget that the machine does not have is refused, wherever one is given, and nothing is made.
#[test]
fn b3_a_budget_beyond_the_machine() {
    let most = machine_memory_bytes();
    let disk = SimDisk::new(1);
    let db = Db::open("/db", options(&disk)).unwrap();
    for engine in ENGINES {
        db.keyspace(engine.name(), kind(engine)).unwrap().insert(b"k", b"v").unwrap();
    }
    let files = disk.files();
    for bytes in [most + 1, 1 << 47, 1 << 60, u64::MAX] {
        let beyond = || options(&disk).memory(bytes);
        for error in [Db::open("/new", beyond()).unwrap_err(), db.set_memory(bytes).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        }
        assert_eq!(disk.files(), files);
    }
    db.close().unwrap();
    for bytes in [most + 1, u64::MAX] {
        let beyond = || options(&disk).memory(bytes);
        for error in [
            Db::restore("/db", "/new", beyond()).unwrap_err(),
            Db::salvage("/db", "/new", beyond()).unwrap_err(),
            Db::open("/db", beyond()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
    assert!(!disk.files().iter().any(|file| file.starts_with("/new")));
}

/// All of the machine's memory as a budget, for 10 MB of data: the process stays small.
#[test]
fn b3_memory_follows_the_data() {
    for engine in ENGINES {
        let name = format!("a_large_budget_{}", engine.name());
        let place = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, place.path())
            .output()
            .unwrap();
        let (out, err) = (output.stdout.escape_ascii(), output.stderr.escape_ascii());
        assert!(output.status.success(), "{}: {out} {err}", output.status);
    }
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn a_large_budget_treeline() {
    a_large_budget(EngineKind::TreeLine);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn a_large_budget_turtle() {
    a_large_budget(EngineKind::Turtle);
}

fn a_large_budget(engine: EngineKind) {
    let Some(place) = std::env::var_os(CHILD) else { return };
    let options = || {
        let options = Options::default().memory(machine_memory_bytes());
        options.durability(Durability::Buffered).log_bytes_max(16 << 20)
    };
    let before = peak_bytes();
    for _ in 0..2 {
        let db = Db::open(&place, options()).unwrap();
        let keyspace = db.keyspace("main", kind(engine)).unwrap();
        for key in 0..100_000u64 {
            let key = key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            keyspace.insert(key, [7; 92]).unwrap();
        }
        for key in 0..100_000u64 {
            let key = key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
            assert!(keyspace.get(key).unwrap().is_some());
        }
        db.checkpoint().unwrap();
        assert_eq!(keyspace.iter().count(), 100_000);
        db.close().unwrap();
    }
    let taken = peak_bytes() - before;
    println!("{engine}: {} MiB at most", taken >> 20);
    assert!(taken < 160 << 20, "{engine}: {taken} bytes for 10 MB of data");
}

/// Every other number that can be given is taken or refused: none panics, overflows or takes memory
/// for nothing.
#[test]
fn b3_every_other_size() {
    const NUMBERS: [u64; 8] =
        [0, 1, 4095, 1 << 31, u32::MAX as u64 + 1, 1 << 47, i64::MAX as u64, u64::MAX];
    let refused = |error: &spinney_base::Error| error.kind() == ErrorKind::InvalidArgument;
    for engine in ENGINES {
        for number in NUMBERS {
            let disk = SimDisk::new(1);
            match Db::open("/log", options(&disk).log_bytes_max(number)) {
                Ok(db) => {
                    let keyspace = db.keyspace("k", kind(engine)).unwrap();
                    keyspace.insert(b"k", [1; 3000]).unwrap();
                    db.checkpoint().unwrap();
                    db.close().unwrap();
                    let db = Db::open("/log", options(&disk).log_bytes_max(number)).unwrap();
                    assert!(db.existing_keyspace("k").unwrap().get(b"k").unwrap().is_some());
                }
                Err(error) => assert!(refused(&error), "{error}"),
            }
            let runtime = Runtime::stepped(1);
            let all = options(&disk).runtime(runtime.clone()).scrub_bytes_per_second(number);
            let db = Db::open("/db", all).unwrap();
            let keyspace = db.keyspace("k", kind(engine)).unwrap();
            (0..200u32).for_each(|key| keyspace.insert(key.to_be_bytes(), [1; 900]).unwrap());
            let distance = keyspace.turtle().and_then(|it| it.set_checkpoint_distance(number));
            let named = |error: &spinney_base::Error| {
                refused(error) || error.kind() == ErrorKind::Unsupported
            };
            assert!(distance.as_ref().err().is_none_or(named), "{distance:?}");
            for _ in 0..50 {
                runtime.sleep(std::time::Duration::from_millis(200));
                runtime.step();
            }
            keyspace.insert(b"more", b"v").unwrap();
            let rate = BackupOptions::default().bytes_per_second(number.max(1 << 20));
            db.backup_with("/copy", &rate, |_| std::ops::ControlFlow::Continue(())).unwrap();
            let limit = usize::try_from(number).unwrap_or(usize::MAX);
            let read = keyspace.iter().take(limit).count();
            assert_eq!(read, limit.min(201));
            let empty: &[u8] = b"";
            let large = keyspace.insert_from(b"large", number, empty);
            assert!(number == 0 || large.is_err(), "{number}");
            for name in ["chi", "leaf", "filter-bits", "goal", "epsilon", "staging"] {
                for value in [number.to_string(), format!("{number}GiB"), format!("-{number}")] {
                    let set = kind(engine).set(name, &value);
                    assert!(set.as_ref().err().is_none_or(refused), "{set:?}");
                    if let Ok(set) = set {
                        let keyspace = db.keyspace("k", set).unwrap();
                        keyspace.insert(b"once more", [3; 900]).unwrap();
                        db.checkpoint().unwrap();
                    }
                }
            }
            db.close().unwrap();
        }
    }
}
