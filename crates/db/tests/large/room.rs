//! What becomes of the room of large values: reuse, readers, full disks, failures.

use super::*;

/// Values that are overwritten again and again give their room back, and until a checkpoint has
/// settled that, nothing that a crash could show again is written over.
#[test]
fn p17_reused_only_when_nothing_names_it() {
    let disk = SimDisk::new(5);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"k", value(0, 100_000)).unwrap();
    db.checkpoint().unwrap();
    let image = disk.contents(Path::new(FILE)).unwrap();
    for version in 1..5 {
        main.insert(b"k", value(version, 100_000)).unwrap();
    }
    // Neither the checkpoint's value nor any that the log has was touched.
    let later = disk.contents(Path::new(FILE)).unwrap();
    let pages = |bytes: &[u8]| bytes.chunks(4096).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let changed = pages(&image)[128..]
        .iter()
        .zip(&pages(&later)[128..])
        .filter(|(old, new)| old[8] == 4 && old != new)
        .count();
    assert_eq!(changed, 0, "a large value that the log may show was written over");
    assert!(main.stats().large_freed_bytes >= 400_000);
    for version in 5..200 {
        main.insert(b"k", value(version, 100_000)).unwrap();
        if version % 10 == 0 {
            db.checkpoint().unwrap();
        }
    }
    db.checkpoint().unwrap();
    let stats = main.stats();
    assert_eq!((stats.large_values, stats.large_freed_bytes), (1, 0));
    assert!(stats.file_bytes < 4 << 20, "{} bytes for one value", stats.file_bytes);
    db.verify().unwrap();
}

/// A reader reads the value that it found, though the key is overwritten, removed, and checkpoints
/// give room back meanwhile; and it does not hold the room for longer.
#[test]
fn p17_a_reader_keeps_what_it_reads() {
    let disk = SimDisk::new(7);
    let db = open(&disk);
    let main = keyspace(&db);
    let old = value(1, 1_000_000);
    main.insert(b"k", &old).unwrap();
    let mut reader = main.get_reader(b"k").unwrap().unwrap();
    assert_eq!(reader.len(), 1_000_000);
    let mut found = vec![0; 10_000];
    reader.read_exact(&mut found).unwrap();
    for version in 2..6 {
        main.insert(b"k", value(version, 1_000_000)).unwrap();
        db.checkpoint().unwrap();
        db.verify().unwrap();
    }
    // A reader that came later does not hold back what was freed before it.
    let later = main.get_reader(b"k").unwrap().unwrap();
    assert!(main.stats().large_freed_bytes >= 1_000_000);
    reader.read_to_end(&mut found).unwrap();
    assert!(found == old, "a mixture of two values");
    drop(reader);
    db.checkpoint().unwrap();
    main.insert(b"other", value(9, 1_000_000)).unwrap();
    assert_eq!(main.stats().large_freed_bytes, 0);
    drop(later);
    db.verify().unwrap();
    let mut reader = main.get_reader(b"k").unwrap().unwrap();
    let keyspace = main.clone();
    drop((db, main));
    let mut found = Vec::new();
    reader.read_to_end(&mut found).unwrap();
    assert!(found == value(5, 1_000_000));
    drop(keyspace);
}

/// A disk that fills up in the middle of a value: the write fails, nothing is lost, and the room
/// that was taken is given back.
#[test]
fn p17_a_full_disk_gives_everything_back() {
    let disk = SimDisk::new(8);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"small", b"1").unwrap();
    main.insert(b"large", value(1, 100_000)).unwrap();
    db.checkpoint().unwrap();
    let length = disk.contents(Path::new(FILE)).unwrap().len();
    let all: usize = disk.files().iter().map(|file| disk.contents(file).unwrap().len()).sum();
    disk.set_capacity(Some((all + 200_000) as u64));
    let error = main.insert(b"huge", value(2, 10 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(main.get(b"huge").unwrap(), None);
    db.verify().unwrap();
    // A write that meets a full disk in the middle, though room was taken before.
    for at in 0..4 {
        disk.set_capacity(None);
        let writes = disk.writes();
        disk.inject(Fault::NoSpaceInPlace { at: writes + 1 + at });
        match main.insert(b"huge", value(2, 1_000_000)) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full),
            // What was kept for a full disk was taken for it.
            Ok(()) => {
                main.remove(b"huge").unwrap();
                db.checkpoint().unwrap();
            }
        }
        db.verify().unwrap();
    }
    db.checkpoint().unwrap();
    assert_eq!(main.stats().large_values, 1);
    main.insert(b"huge", value(2, 1_000_000)).unwrap();
    assert!(length > 0 && main.get(b"huge").unwrap().unwrap() == *value(2, 1_000_000));
    // Room that only a checkpoint can give back is asked for before the disk counts as full.
    let all: usize = disk.files().iter().map(|file| disk.contents(file).unwrap().len()).sum();
    // Beside what is kept for a recovery.
    disk.set_capacity(Some(all as u64 + 1_500_000 + (2 << 20)));
    for version in 3..9 {
        main.insert(b"huge", value(version, 1_000_000)).unwrap();
    }
    db.verify().unwrap();
}

/// A reader of the user's that fails or ends too early changes nothing.
#[test]
fn p17_a_reader_that_fails_gives_everything_back() {
    struct Failing(u64);
    impl Read for Failing {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::Error::other("the source broke"));
            }
            let read = buf.len().min(self.0 as usize);
            buf[..read].fill(7);
            self.0 -= read as u64;
            Ok(read)
        }
    }
    let disk = SimDisk::new(9);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"k", b"before").unwrap();
    let error = main.insert_from(b"k", 600_000, &mut Failing(400_000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("the source broke"), "{error}");
    let free = main.stats().free_pages;
    assert!(free * 4096 >= 600_000, "the room of the value is not free again");
    let error = main.insert_from(b"k", 600_000, &value(1, 599_999)[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = main.insert_from(b"k", 10, &b"too short"[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        struct Panicking;
        impl Read for Panicking {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                panic!("the source panics")
            }
        }
        main.insert_from(b"k", 600_000, Panicking)
    }));
    assert!(panicked.is_err());
    assert_eq!(main.get(b"k").unwrap().unwrap(), b"before");
    let stats = main.stats();
    assert_eq!((stats.large_values, stats.large_freed_bytes, stats.free_pages), (0, 0, free));
    db.verify().unwrap();
    // A panic in the user's reader is not one under a stripe: writing continues.
    let mut source = Failing(600_000);
    main.insert_from(b"k", 600_000, &mut source).unwrap();
    assert!(main.get(b"k").unwrap().unwrap() == vec![7u8; 600_000][..]);
    // What lies beyond the length is left in the reader.
    let mut source = &b"12345rest"[..];
    main.insert_from(b"k", 5, &mut source).unwrap();
    assert_eq!((source, &main.get(b"k").unwrap().unwrap()[..]), (&b"rest"[..], &b"12345"[..]));
}

/// Background work alone gives back the room of values that were overwritten.
#[test]
fn p17_overwritten_values_ask_for_a_checkpoint() {
    let disk = SimDisk::new(13);
    let runtime = Runtime::stepped(1);
    let db = Db::open(Path::new("/db"), options(&disk).runtime(runtime.clone())).unwrap();
    let main = keyspace(&db);
    for version in 0..60 {
        let durability = Durability::Buffered;
        let mut batch = Batch::new();
        batch.insert(&main, *b"k", value(version, 2 << 20));
        db.write_with(batch, durability).unwrap();
        runtime.sleep(std::time::Duration::from_millis(30));
        runtime.step();
    }
    let stats = main.stats();
    assert!(stats.file_bytes < 80 << 20, "{} bytes for a value of 2 MiB", stats.file_bytes);
}

/// A database that was closed holds no room for values that are gone, and one without a log need not
/// ask its pages when it is opened again.
#[test]
fn p17_closing_gives_everything_back() {
    for logged in [true, false] {
        let disk = SimDisk::new(16);
        let db = open(&disk);
        let options = || KeyspaceOptions::default().logged(logged);
        let main = db.keyspace("main", options()).unwrap();
        for version in 0..5 {
            for number in 0..5 {
                main.insert(key(number), value(version * 10 + number, 20_000)).unwrap();
            }
            if version == 2 {
                db.checkpoint().unwrap();
            }
        }
        main.remove(key(0)).unwrap();
        db.close().unwrap();
        let db = open(&disk);
        let stats = db.keyspace("main", options()).unwrap().stats();
        assert_eq!((stats.large_values, stats.large_freed_bytes), (4, 0));
        db.verify().unwrap();
    }
}
