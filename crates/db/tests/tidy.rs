//! Overflow pages go away when a keyspace is quiet, and then there is peace.
#![cfg(not(feature = "shuttle"))]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_db::{Db, Keyspace, KeyspaceOptions, Options};
use spinney_io::Purpose;
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
        main.insert(key(number), [7; 56]).unwrap();
    }
    db.checkpoint().unwrap();
    let before = main.stats();
    assert!(before.overflow_pages > 50, "{before:?}");
    pass_time(&runtime, Duration::from_secs(10));
    let after = main.stats();
    assert_eq!(after.overflow_pages, 0, "{after:?}");
    // A record takes its page; an absent one no second.
    for number in 0..RECORDS {
        assert_eq!(main.get(key(number)).unwrap().as_deref(), Some(&[7; 56][..]));
    }
    let before = main.stats();
    for number in RECORDS..RECORDS + 100 {
        assert_eq!(main.get(key(number)).unwrap(), None);
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

fn options(disk: &SimDisk, runtime: &Runtime) -> Options {
    // What a keyspace does in its quiet is looked at while it is open.
    let options = Options::default().memory(1 << 20).park_after(Duration::from_secs(3600));
    options.disk(Arc::new(disk.clone())).runtime(runtime.clone())
}

/// Records of 1 KiB, of which three fit a page, loaded in random order.
fn load_kilobytes(db: &Db, records: u64) -> Keyspace {
    let main = db.keyspace("main", KeyspaceOptions::default().logged(false)).unwrap();
    for number in 0..records {
        main.insert(key(number), [7; 1016]).unwrap();
    }
    db.checkpoint().unwrap();
    main
}

/// Base pages, overflow pages and staged pages.
fn pages(main: &Keyspace) -> u64 {
    let stats = main.stats();
    stats.pages + stats.overflow_pages + stats.staged_pages
}

#[test]
fn a_quiet_keyspace_is_packed_once() {
    let (disk, runtime) = (SimDisk::new(2), Runtime::stepped(2));
    let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
    let main = load_kilobytes(&db, 6000);
    let loaded = pages(&main);
    assert!(loaded > 2300, "{loaded}");
    pass_time(&runtime, Duration::from_secs(30));
    let packed = pages(&main);
    assert!(packed <= 2140, "{packed} of {loaded} pages, 3 records fit each");
    let written = main.stats().pages_written_back;
    pass_time(&runtime, Duration::from_secs(30));
    assert_eq!(main.stats().pages_written_back, written, "nothing is left to do");
    for number in 0..6000 {
        assert_eq!(main.get(key(number)).unwrap().as_deref(), Some(&[7; 1016][..]));
    }
    db.verify().unwrap();
    drop(main);
    db.close().unwrap();
    // The next life does not know that all is packed: it looks at a few pages, and is at peace.
    let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
    let main = db.keyspace("main", KeyspaceOptions::default().logged(false)).unwrap();
    let pages_read = || db.stats().io.by_purpose[Purpose::REORGANIZE.index()].read_bytes / 4096;
    let before = pages_read();
    pass_time(&runtime, Duration::from_secs(30));
    let read = pages_read() - before;
    assert!(read > 0 && read * 3 < packed, "{read} of {packed} pages read");
    assert_eq!(main.stats().pages_written_back, 0);
    db.verify().unwrap();
    db.close().unwrap();
}

/// While many inserts come and nobody scans, room stays where it is.
#[test]
fn room_stays_while_inserts_come_unless_scans_outweigh_them() {
    let pages_after = |inserts: u64, scans: bool| {
        let (disk, runtime) = (SimDisk::new(3), Runtime::stepped(3));
        let db = Db::open(Path::new("/db"), options(&disk, &runtime)).unwrap();
        let main = db.keyspace("main", KeyspaceOptions::default().logged(false)).unwrap();
        let mut next = 0;
        let mut insert = |many: u64| {
            for number in next..next + many {
                main.insert(key(number), [7; 56]).unwrap();
            }
            next += many;
            next
        };
        insert(RECORDS);
        db.checkpoint().unwrap();
        for _ in 0..40 {
            let records = insert(inserts);
            pass_time(&runtime, Duration::from_millis(500));
            if scans {
                assert_eq!(main.iter().map(Result::unwrap).count() as u64, records);
            }
        }
        db.checkpoint().unwrap();
        let pages = pages(&main);
        db.verify().unwrap();
        db.close().unwrap();
        pages
    };
    let (quiet, roomy, scanned) =
        (pages_after(0, false), pages_after(8, false), pages_after(8, true));
    assert!(quiet * 100 < roomy * 92, "{quiet} pages without inserts, {roomy} with some");
    assert!(scanned * 100 < roomy * 95, "{scanned} pages with scans, {roomy} without");
}
