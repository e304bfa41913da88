//! Copies by the program: what a failed one leaves, and what it does to where it reads.

mod common;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{database, errors, expect, lines, names, nap, scan, shell, start};

/// What a copy makes that fails goes away again, directories and the lock's file included; what was there
/// before stays; and the next try is not in its way.
#[test]
fn e6_a_failed_copy_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (db, damaged) = (&place("db"), &place("damaged"));
    expect(0, &["import", db], &lines(0, 5000, 300));
    expect(0, &["backup", db, damaged], b"");
    let file =
        std::fs::OpenOptions::new().write(true).open(format!("{damaged}/keyspace-00000001.spn"));
    let file = file.unwrap();
    let length = file.metadata().unwrap().len();
    for page in 16..length / 4096 {
        std::os::unix::fs::FileExt::write_all_at(&file, b"rotten", page * 4096 + 2000).unwrap();
    }
    drop(file);
    std::fs::create_dir(place("empty")).unwrap();
    std::fs::create_dir(place("locked")).unwrap();
    std::fs::write(place("locked/lock"), "mine").unwrap();
    let before = names(directory.path());
    for (code, arguments) in [
        (4, ["restore", damaged]),
        (2, ["restore --memory 900K", db]),
        (2, ["salvage --memory 900K", db]),
        (6, ["backup", db]),
        (6, ["restore", db]),
        (6, ["salvage", db]),
    ] {
        for to in ["new", "a/b/c", "empty", "locked"] {
            let limit = if code == 6 { "ulimit -f 200; " } else { "" };
            let [command, from] = arguments;
            let line = format!("{limit}exec \"$0\" {command} {from} {}", place(to));
            let (ended, error) = shell(&line);
            assert_eq!(ended, Some(code), "{line}: {error}");
            assert_eq!(names(directory.path()), before, "{line}");
            assert_eq!(names(place("empty")), [] as [&str; 0], "{line}");
            assert_eq!(names(place("locked")), ["lock"], "{line}");
            assert_eq!(std::fs::read(place("locked/lock")).unwrap(), b"mine");
        }
    }
    // A making that fails leaves as much.
    for to in ["new", "a/b/c", "empty", "locked"] {
        for command in ["put", "import", "keyspaces create"] {
            let line = format!("ulimit -f 8; echo | \"$0\" {command} {} k v", place(to));
            let (ended, error) = shell(&line);
            assert_ne!(ended, Some(0), "{line}: {error}");
            assert_eq!(names(directory.path()), before, "{line}");
            assert_eq!(names(place("empty")), [] as [&str; 0], "{line}");
            assert_eq!(names(place("locked")), ["lock"], "{line}");
        }
    }
    for to in ["new", "a/b/c", "empty", "locked"] {
        expect(0, &["restore", db, &place(to)], b"");
    }
}

/// Every file in a directory: its name, its bytes, and when they were written.
fn contents(directory: &str) -> Vec<(String, Vec<u8>, std::time::SystemTime)> {
    let of = |name: String| {
        let path = Path::new(directory).join(&name);
        let modified = path.metadata().unwrap().modified().unwrap();
        (name, std::fs::read(path).unwrap(), modified)
    };
    names(directory).into_iter().map(of).collect()
}

/// Salvage and restore read a database that was killed, whole or damaged, without the right to write it; not a byte
/// of it changes.
#[test]
fn e8_a_copy_writes_nothing_where_it_reads() {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    /// A user without files, for tests that run as root, which may write everywhere.
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let db = &database(directory.path());
    expect(0, &["import", db], &lines(0, 3000, 300));
    // Records that only the log has, of a process that was killed.
    let mut import = start(&["import", db]);
    let mut input = import.stdin.take().unwrap();
    input.write_all(&lines(3000, 3000, 300)).unwrap();
    nap(1500);
    import.kill().unwrap();
    import.wait().unwrap();
    std::fs::create_dir(place("damaged")).unwrap();
    for name in names(db) {
        std::fs::copy(format!("{db}/{name}"), format!("{}/{name}", place("damaged"))).unwrap();
    }
    let file = format!("{}/keyspace-00000001.spn", place("damaged"));
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(b"rotten", 20 * 4096 + 2000).unwrap();
    file.write_all_at(b"rotten", 2000).unwrap();
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    std::fs::create_dir(place("new")).unwrap();
    // Where that user finds it.
    std::fs::copy(env!("CARGO_BIN_EXE_spinney"), place("program")).unwrap();
    mode(directory.path().to_str().unwrap(), 0o755);
    mode(&place("new"), 0o777);
    for from in ["db", "damaged"] {
        names(place(from)).iter().for_each(|name| mode(&format!("{}/{name}", place(from)), 0o444));
        mode(&place(from), 0o555);
        let before = contents(&place(from));
        let mut saved = 0;
        for command in ["salvage", "restore"] {
            let to = place(&format!("new/{from}-{command}"));
            let mut program = Command::new(place("program"));
            program.args([command, &place(from), &to]);
            if rustix::process::geteuid().is_root() {
                program.uid(NOBODY).gid(NOBODY);
            }
            let output = program.output().unwrap();
            let code = output.status.code();
            let is_right = match (command, from) {
                (_, "db") => code == Some(0),
                ("salvage", _) => code == Some(0) || code == Some(8),
                _ => code == Some(4) || code == Some(0),
            };
            assert!(is_right, "{command} {from}: {code:?} {}", errors(&output));
            assert!(contents(&place(from)) == before, "{command} has changed {from}");
            if code == Some(0) || command == "salvage" {
                saved = saved.max(scan(&to).lines().count());
            }
        }
        assert!(saved > 3000, "{from}: {saved}");
        mode(&place(from), 0o755);
    }
}
