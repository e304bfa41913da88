//! The rules of the protocols, each by its number, through the public face; those that live inside the log, the store or an engine have
//! their tests beside them. Found failures stay here as scenarios.

use std::path::Path;
use std::sync::Arc;

use spinney::{Db, Durability, KeyspaceOptions, Options};
use spinney_base::Runtime;
use spinney_io::sim::{CrashMode, SimDisk};

fn open(disk: &SimDisk) -> Db {
    let options = Options::default()
        .memory(2 << 20)
        .log_bytes_max(4 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1));
    Db::open(Path::new("/db"), options).unwrap()
}

/// A keyspace was created at LSN 3, of which the crash kept 1; the next life's records 2 and 3 were taken for older than
/// the keyspace and never replayed.
#[test]
fn p20_a_keyspace_is_not_older_than_the_log() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let main = db.keyspace("main", KeyspaceOptions::default()).unwrap();
    main.insert(b"1", b"sync").unwrap();
    main.insert_with(b"2", b"buffered", Durability::Buffered).unwrap();
    main.insert_with(b"3", b"buffered", Durability::Buffered).unwrap();
    db.keyspace("late", KeyspaceOptions::default()).unwrap();
    let second = disk.crash(CrashMode::LoseAll);
    let db = open(&second);
    let late = db.existing_keyspace("late").unwrap();
    late.insert(b"a", b"sync").unwrap();
    let third = second.crash(CrashMode::LoseAll);
    let db = open(&third);
    let late = db.existing_keyspace("late").unwrap();
    assert_eq!(late.get(b"a").unwrap().as_deref(), Some(&b"sync"[..]));
}
