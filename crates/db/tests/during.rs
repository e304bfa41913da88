//! What happens while a lookup reads its page (rule P23), by a test that acts inside it: schedules
//! reach the same, but only now and then.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_base::shim::thread;
use spinney_db::{Db, Keyspace, KeyspaceOptions, Options, Value};
use spinney_io::Purpose;
use spinney_io::sim::{Call, SimDisk};

/// A database that does nothing by itself, and a keyspace of it with little memory.
fn database(disk: &SimDisk) -> (Db, Keyspace, Runtime) {
    let runtime = Runtime::stepped(1);
    let options = Options::default()
        .memory(1 << 20)
        .log_bytes_max(1 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(runtime.clone());
    let db = Db::open(Path::new("/db"), options).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(false)).unwrap();
    (db, keyspace, runtime)
}

/// Writes more than the cache holds, in a place of its own, so that everything else leaves it.
fn evict(keyspace: &Keyspace, turn: u8) {
    for number in 0..200u8 {
        keyspace.insert([b'x', turn, number], [3; 3000]).unwrap();
    }
}

/// Looks a key up; when the lookup has read its page and has not looked at it yet, another thread
/// writes the key, writes it back and evicts it, if the page's lock allows it. Returns what the
/// lookup found, and whether the other ended before it.
fn look_up_while_it_is_written(
    disk: &SimDisk,
    db: &Db,
    keyspace: &Keyspace,
) -> (Option<Value>, bool) {
    let (home, writer) = (db.clone(), keyspace.clone());
    let (threads, thread) = mpsc::channel();
    disk.act_inside(Call::Read(Purpose::LOOKUP), move || {
        let (ends, end) = mpsc::channel();
        let thread = thread::spawn("writer", move || {
            writer.insert(b"k", b"new").unwrap();
            home.checkpoint().unwrap();
            evict(&writer, 1);
            // Nobody waits any more, if the lock did its work.
            let _ = ends.send(());
        })
        .unwrap();
        // The page's lock keeps it from ending before this lookup has ended.
        let ended = end.recv_timeout(Duration::from_millis(500)).is_ok();
        threads.send((thread, ended)).unwrap();
    });
    let found = keyspace.get(b"k").unwrap();
    let (thread, ended) = thread.try_recv().expect("the lookup read its page");
    thread.join().unwrap();
    (found, ended)
}

/// What a lookup found does not come back after the key was changed.
#[test]
fn p23_a_late_lookup_keeps_nothing_old() {
    let disk = SimDisk::new(1);
    let (db, keyspace, _) = database(&disk);
    keyspace.insert(b"k", b"old").unwrap();
    db.checkpoint().unwrap();
    evict(&keyspace, 0);
    let (first, ended) = look_up_while_it_is_written(&disk, &db, &keyspace);
    assert_eq!(keyspace.get(b"k").unwrap().unwrap(), b"new", "{first:?} came back ({ended})");
    assert!(!ended, "the page changed under the lookup");
}

/// The filter that a lookup in vain leaves of its page refuses no key that came to the page
/// meanwhile.
#[test]
fn p23_a_late_lookup_leaves_no_old_filter() {
    let disk = SimDisk::new(1);
    let (db, keyspace, runtime) = database(&disk);
    keyspace.insert(b"j", b"beside it").unwrap();
    db.checkpoint().unwrap();
    evict(&keyspace, 0);
    // Lookups in vain get memory for filters.
    assert_eq!(keyspace.get(b"i").unwrap(), None);
    (0..20).for_each(|_| _ = runtime.step());
    let (_, ended) = look_up_while_it_is_written(&disk, &db, &keyspace);
    // Neither is in the cache any more, the record and that it was absent.
    evict(&keyspace, 2);
    assert_eq!(keyspace.get(b"k").unwrap().as_deref(), Some(&b"new"[..]), "({ended})");
    assert_eq!(keyspace.get(b"h").unwrap(), None);
    assert!(keyspace.stats().page_filter_bytes > 0, "lookups in vain leave filters here");
}
