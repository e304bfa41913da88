//! What happens while a lookup reads its page (rule P23), by a test that acts inside it: schedules
//! reach the same, but only now and then.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_base::shim::thread;
use spinney_db::{Db, KeyspaceOptions, Options};
use spinney_io::Purpose;
use spinney_io::sim::{Call, SimDisk};

/// While a lookup stands between reading its page and keeping what it found, the key is changed,
/// brought home and evicted, if the page's lock allows it. What was found must not come back.
#[test]
fn p23_a_late_lookup_keeps_nothing_old() {
    let disk = SimDisk::new(1);
    let options = Options::default()
        .memory(1 << 20)
        .log_bytes_max(1 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1));
    let db = Db::open(Path::new("/db"), options).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().logged(false)).unwrap();
    // More than the cache holds, in a place of their own, so that everything else leaves it.
    let evict = |keyspace: &spinney_db::Keyspace, turn: u8| {
        for number in 0..200u8 {
            keyspace.insert(&[b'x', turn, number], &[3; 3000]).unwrap();
        }
    };
    keyspace.insert(b"k", b"old").unwrap();
    db.checkpoint().unwrap();
    evict(&keyspace, 0);
    let (home, writer) = (db.clone(), keyspace.clone());
    let (threads, thread) = mpsc::channel();
    // When the lookup has read its page and has not looked at it yet.
    disk.act_inside(Call::Read(Purpose::Lookup), move || {
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
    let first = keyspace.get(b"k").unwrap().unwrap();
    let (thread, ended) = thread.try_recv().expect("the lookup read its page");
    thread.join().unwrap();
    assert_eq!(keyspace.get(b"k").unwrap().unwrap(), b"new", "{first:?} came back ({ended})");
    assert!(!ended, "the page changed under the lookup");
}
