//! Overflow pages go away when a keyspace is quiet, and then there is peace.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_db::{Db, KeyspaceOptions, Options};
use spinney_io::sim::SimDisk;

const RECORDS: u64 = 30_000;

fn key(number: u64) -> Vec<u8> {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_be_bytes().to_vec()
}

fn pass_time(runtime: &Runtime, time: Duration) {
    let end = runtime.now() + time;
    while runtime.now() < end {
        runtime.step();
    }
}

#[test]
fn a_quiet_keyspace_loses_its_overflow_pages() {
    let (disk, runtime) = (SimDisk::new(1), Runtime::stepped(1));
    let options =
        Options::default().memory(1 << 20).disk(Arc::new(disk.clone())).runtime(runtime.clone());
    let db = Db::open(Path::new("/db"), options).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default().logged(false)).unwrap();
    for number in 0..RECORDS {
        main.insert(&key(number), &[7; 56]).unwrap();
    }
    db.checkpoint().unwrap();
    let before = main.stats();
    assert!(before.overflow_pages > 50, "{before:?}");
    pass_time(&runtime, Duration::from_secs(10));
    let after = main.stats();
    assert_eq!(after.overflow_pages, 0, "{after:?}");
    // A record takes its page; an absent one no second.
    for number in 0..RECORDS {
        assert_eq!(main.get(&key(number)).unwrap().as_deref(), Some(&[7; 56][..]));
    }
    let before = main.stats();
    for number in RECORDS..RECORDS + 100 {
        assert_eq!(main.get(&key(number)).unwrap(), None);
    }
    let looked = main.stats();
    assert!(looked.pages_read - before.pages_read <= 100, "{before:?} {looked:?}");
    pass_time(&runtime, Duration::from_secs(10));
    let written = main.stats().pages_written_back;
    pass_time(&runtime, Duration::from_secs(10));
    assert_eq!(main.stats().pages_written_back, written, "nothing is left to do");
    db.verify().unwrap();
    db.close().unwrap();
}
