//! Large values (rule P17), on the simulated disk: what a crash finds at every step, what becomes of
//! their extents, what readers see, and what happens when the disk is full or damaged.
#![cfg(not(feature = "shuttle"))]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::VALUE_BYTES_MAX;
use spinney_base::runtime::SplitMix;
use spinney_base::{ErrorKind, Runtime};
use spinney_db::{Batch, Db, Durability, Keyspace, KeyspaceOptions, Options};
use spinney_io::sim::{CrashMode, Fault, SimDisk};
use spinney_io::{AlignedBuf, Disk, OpenMode, Purpose};

const FILE: &str = "/db/keyspace-00000001.spn";

fn options(disk: &SimDisk) -> Options {
    Options::default()
        .memory(1 << 20)
        .log_bytes_max(2 << 20)
        .disk(Arc::new(disk.clone()))
        .runtime(Runtime::stepped(1))
}

fn open(disk: &SimDisk) -> Db {
    Db::open(Path::new("/db"), options(disk)).unwrap()
}

fn keyspace(db: &Db) -> Keyspace {
    db.keyspace("main", KeyspaceOptions::default()).unwrap()
}

/// A value of `length` bytes that no other seed has.
fn value(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SplitMix(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(keyspace: &Keyspace, model: &Model) {
    let found: Model = keyspace
        .iter()
        .map(|record| record.unwrap())
        .map(|(key, value)| (key, value.into()))
        .collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), model.keys().collect::<Vec<_>>());
    assert!(found == *model, "values differ");
    for (key, value) in model {
        assert!(keyspace.get(key).unwrap().unwrap() == **value, "{}", key.escape_ascii());
    }
}

/// Lengths on both sides of every boundary: inline, one page, two, an extent of each order.
#[test]
fn p17_values_of_all_lengths_come_back() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let main = keyspace(&db);
    let mut model = Model::new();
    let lengths =
        [0, 1, 3990, 3999, 4000, 4001, 4064, 4065, 8127, 8128, 8129, 30_000, 262_144, 1 << 20];
    for (number, length) in lengths.into_iter().enumerate() {
        let (key, value) = (key(number as u64), value(number as u64, length));
        main.insert(&key, &value).unwrap();
        model.insert(key, value);
    }
    check(&main, &model);
    let stats = main.stats();
    assert!(stats.large_values >= 9 && stats.large_bytes > 1 << 20, "{stats:?}");
    let keys: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
    for (found, value) in main.multi_get(&keys).unwrap().into_iter().zip(model.values()) {
        assert!(found.unwrap() == **value);
    }
    let backwards = main.iter().rev().map(|record| Vec::from(record.unwrap().1));
    assert!(backwards.eq(model.values().rev().cloned()));
    let last = main.last_key_value().unwrap().unwrap();
    assert!(last.1 == **model.values().next_back().unwrap());
    let read = disk.reads();
    assert!(main.contains_key(&key(13)).unwrap());
    assert_eq!(main.keys::<&[u8]>(..).count(), lengths.len());
    assert!(disk.reads() - read < 40, "keys alone read no large values");
    db.verify().unwrap();
    for disk in [disk.crash(CrashMode::LoseAll), disk.kill()] {
        let db = open(&disk);
        check(&keyspace(&db), &model);
        db.checkpoint().unwrap();
        assert_eq!(db.verify().unwrap().large_values, stats.large_values);
    }
    db.close().unwrap();
    let db = open(&disk);
    check(&keyspace(&db), &model);
    assert_eq!(keyspace(&db).stats().large_values, stats.large_values);
    assert_eq!(keyspace(&db).stats().large_bytes, stats.large_bytes);
}

#[test]
fn conditional_writes_and_batches_take_large_values() {
    let disk = SimDisk::new(2);
    let db = open(&disk);
    let main = keyspace(&db);
    let (a, b) = (value(1, 50_000), value(2, 60_000));
    main.insert(b"k", &a).unwrap();
    let swapped = main.compare_and_swap(b"k", Some(&b), Some(b"no")).unwrap();
    assert!(swapped.unwrap_err().current.unwrap() == *a);
    main.compare_and_swap(b"k", Some(&a), Some(&b)).unwrap().unwrap();
    assert!(main.get(b"k").unwrap().unwrap() == *b);
    let made = main.update(b"k", |old| Some([old.unwrap(), &a].concat())).unwrap();
    assert_eq!(made.unwrap().len(), 110_000);
    let other = db.keyspace("other", KeyspaceOptions::default()).unwrap();
    let mut batch = Batch::new();
    batch.insert(&main, *b"x", a.clone());
    batch.insert(&main, *b"k", b.clone());
    batch.insert(&other, *b"x", b.clone());
    batch.insert(&main, *b"small", *b"1");
    // More bytes than a batch may have, but not in pointers.
    batch.insert(&other, *b"y", value(9, 5 << 20));
    let syncs = disk.syncs();
    db.write(batch).unwrap();
    assert!(disk.syncs() - syncs <= 3, "values of one file share a sync");
    assert!(main.get(b"x").unwrap().unwrap() == *a && main.get(b"k").unwrap().unwrap() == *b);
    assert!(other.get(b"x").unwrap().unwrap() == *b);
    assert_eq!(other.get(b"y").unwrap().unwrap().len(), 5 << 20);
    main.remove(b"k").unwrap();
    assert_eq!(main.get(b"k").unwrap(), None);
    let too_long = main.insert_from(b"k", VALUE_BYTES_MAX as u64 + 1, std::io::empty());
    assert_eq!(too_long.unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.verify().unwrap();
}

/// One step of a life: what it does to the model, and the disk's steps while it did.
struct Lived {
    steps: std::ops::RangeInclusive<u64>,
    before: Model,
    after: Model,
}

/// Puts, overwrites and removes values large and small, with checkpoints and write-back between,
/// and keeps an image of every step.
fn live(seed: u64, mode: CrashMode, options: &KeyspaceOptions) {
    let disk = SimDisk::new(seed);
    let db = open(&disk);
    let main = db.keyspace("main", options.clone()).unwrap();
    let logged = db.keyspaces()[0].logged;
    let mut random = SplitMix(seed);
    let mut model = Model::new();
    let mut lived: Vec<Lived> = Vec::new();
    let every = 1 + random.below(3) as u64;
    disk.capture_when(Arc::new(move |step, _| (step % every == 0).then_some(mode)));
    for round in 0..60 {
        let before = model.clone();
        let first = disk.steps() + 1;
        let key = key(random.below(6) as u64);
        match random.below(9) {
            0 => db.checkpoint().unwrap(),
            1 => {
                main.remove(&key).unwrap();
                model.remove(&key);
            }
            2 => {
                let small = value(round, random.below(100));
                main.insert(&key, &small).unwrap();
                model.insert(key, small);
            }
            3 => {
                // A burst of new records, and a few over large ones: what may be staged.
                let mut batch = Batch::new();
                db.checkpoint().unwrap();
                for number in 0..15 {
                    let new = number < 13;
                    let number = if new { 10_000 * (round + 1) + number } else { number % 6 };
                    let (key, small) = (self::key(number), value(number, 30));
                    batch.insert(&main, key.clone(), small.clone());
                    model.insert(key, small);
                }
                db.write(batch).unwrap();
                if random.below(2) == 0 {
                    db.checkpoint().unwrap();
                }
            }
            4 => {
                let mut batch = Batch::new();
                for number in 0..3 {
                    let large = value(round * 10 + number, 4_000 + random.below(20_000));
                    batch.insert(&main, self::key(number), large.clone());
                    model.insert(self::key(number), large);
                }
                db.write(batch).unwrap();
            }
            _ => {
                let large = value(round, 4_000 + random.below(40_000));
                main.insert(&key, &large).unwrap();
                model.insert(key, large);
            }
        }
        lived.push(Lived { steps: first..=disk.steps() + 1, before, after: model.clone() });
    }
    disk.capture_when(Arc::new(|_, _| None));
    db.verify().unwrap();
    let captures = disk.take_captures();
    assert!(captures.len() > 50, "{}", captures.len());
    for capture in captures {
        let runtime = Runtime::stepped(seed);
        let db = Db::open(Path::new("/db"), self::options(&capture.image).runtime(runtime.clone()));
        let db = db.unwrap();
        let main = db.keyspace("main", options.clone()).unwrap();
        if logged {
            let now = lived.iter().find(|lived| lived.steps.contains(&capture.step)).unwrap();
            let found: Model =
                main.iter().map(|record| record.unwrap()).map(|(k, v)| (k, v.into())).collect();
            assert!(
                found == now.before || found == now.after,
                "seed {seed}, step {} in {:?}: neither before nor after",
                capture.step,
                capture.states
            );
        } else {
            // Some value that the key had, whole; which one, P11 does not say.
            for record in main.iter() {
                let (key, value) = record.unwrap();
                let had = lived.iter().any(|one| one.after.get(&key).is_some_and(|v| value == **v));
                assert!(had, "seed {seed}, step {}", capture.step);
            }
        }
        db.verify().unwrap();
        // And what the crash left is no leak: after a quiet while, in which staged records come home,
        // and a checkpoint only live values have pages.
        db.checkpoint().unwrap();
        for _ in 0..40 {
            runtime.sleep(std::time::Duration::from_millis(30));
            runtime.step();
        }
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        db.verify().unwrap();
        let large = main.iter().filter(|record| record.as_ref().unwrap().1.len() >= 4_000);
        assert_eq!(main.stats().large_values, large.count() as u64, "seed {seed}");
        assert_eq!(main.stats().large_freed_bytes, 0);
        db.close().unwrap();
    }
}

/// The power fails at every step of a life of large values, and all of it comes back.
#[test]
fn p17_written_and_synced_before_it_is_named() {
    for seed in 0..6 {
        let modes = [CrashMode::LoseAll, CrashMode::Torn512, CrashMode::KeepAll];
        live(seed, modes[seed as usize % 3], &KeyspaceOptions::default());
    }
}

/// The same in a keyspace whose data is not logged: every key has some value that it had.
#[test]
fn p17_unlogged_values_are_whole() {
    for seed in 10..16 {
        let modes = [CrashMode::LoseAll, CrashMode::Torn512, CrashMode::KeepAll];
        live(seed, modes[seed as usize % 3], &KeyspaceOptions::default().logged(false));
    }
}

/// The same where records are staged above pages that still name large values which they replace.
#[test]
fn p17_staged_records_replace_large_values() {
    for seed in 20..28 {
        let modes = [CrashMode::LoseAll, CrashMode::Torn512, CrashMode::KeepAll];
        let options = KeyspaceOptions::default().logged(seed % 4 > 0).set("staging", "on");
        live(seed, modes[seed as usize % 3], &options.unwrap());
    }
}

/// Values that are overwritten again and again give their room back, and until a checkpoint has
/// settled that, nothing that a crash could show again is written over.
#[test]
fn p17_reused_only_when_nothing_names_it() {
    let disk = SimDisk::new(5);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"k", &value(0, 100_000)).unwrap();
    db.checkpoint().unwrap();
    let image = disk.contents(Path::new(FILE)).unwrap();
    for version in 1..5 {
        main.insert(b"k", &value(version, 100_000)).unwrap();
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
        main.insert(b"k", &value(version, 100_000)).unwrap();
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

/// The log says more than memory holds: replay brings an older value home over a newer one that the
/// page has already, and then comes to the newer one again. It is live in the end, and its room stays
/// its own.
#[test]
fn p17_replay_passes_older_values_again() {
    let disk = SimDisk::new(14);
    let runtime = Runtime::stepped(1);
    let options = |disk| options(disk).log_bytes_max(64 << 20);
    let db = Db::open(Path::new("/db"), options(&disk).runtime(runtime.clone())).unwrap();
    let main = keyspace(&db);
    let mut number = 0;
    let mut crowd = || {
        let mut batch = Batch::new();
        for _ in 0..6_000 {
            number += 1;
            let key = format!("small{:06}", number * 7919 % 1_000_000);
            batch.insert(&main, key, vec![1; 300]);
            if number % 50 == 0 {
                db.write_with(std::mem::take(&mut batch), Durability::Buffered).unwrap();
            }
        }
        // A quiet second, in which structure is published, so that recovery finds the pages.
        for _ in 0..40 {
            runtime.sleep(std::time::Duration::from_millis(25));
            runtime.step();
        }
    };
    crowd();
    for version in 0..4 {
        main.insert(b"a", &value(version, 30_000 + version as usize)).unwrap();
        crowd();
    }
    assert_eq!(main.stats().checkpoints, 0);
    let image = disk.kill();
    let db = Db::open(Path::new("/db"), options(&image)).unwrap();
    let main = keyspace(&db);
    assert!(main.get(b"a").unwrap().unwrap() == *value(3, 30_003));
    for round in 0..8 {
        db.checkpoint().unwrap();
        main.insert(&key(round), &value(round + 10, 30_000)).unwrap();
        assert!(main.get(b"a").unwrap().unwrap() == *value(3, 30_003));
    }
    assert_eq!(main.stats().large_values, 9);
    db.verify().unwrap();
}

/// The power fails when the extent is written and synced, and the record not logged: nothing names
/// the extent, and the next open has its room again.
#[test]
fn p17_a_leak_is_returned_at_open() {
    let disk = SimDisk::new(6);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"warm", &value(1, 10_000)).unwrap();
    db.checkpoint().unwrap();
    disk.capture_when(Arc::new(|_, states| {
        states.contains(&"large value").then_some(CrashMode::KeepAll)
    }));
    main.insert(b"lost", &value(2, 500_000)).unwrap();
    disk.capture_when(Arc::new(|_, _| None));
    let last = disk.take_captures().pop().unwrap();
    let db = open(&last.image);
    let main = keyspace(&db);
    assert_eq!(main.get(b"lost").unwrap(), None);
    let before = main.stats();
    assert!(before.free_pages * 4096 >= 500_000, "{before:?}");
    db.verify().unwrap();
    main.insert(b"again", &value(3, 250_000)).unwrap();
    assert_eq!(main.stats().file_bytes, before.file_bytes, "the room was used again");
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
        main.insert(b"k", &value(version, 1_000_000)).unwrap();
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
    main.insert(b"other", &value(9, 1_000_000)).unwrap();
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
    main.insert(b"large", &value(1, 100_000)).unwrap();
    db.checkpoint().unwrap();
    let length = disk.contents(Path::new(FILE)).unwrap().len();
    let all: usize = disk.files().iter().map(|file| disk.contents(file).unwrap().len()).sum();
    disk.set_capacity(Some((all + 200_000) as u64));
    let error = main.insert(b"huge", &value(2, 10 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(main.get(b"huge").unwrap(), None);
    db.verify().unwrap();
    // A write that meets a full disk in the middle, though room was taken before.
    for at in 0..4 {
        disk.set_capacity(None);
        let writes = disk.writes();
        disk.inject(Fault::NoSpaceInPlace { at: writes + 1 + at });
        let error = main.insert(b"huge", &value(2, 1_000_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        db.verify().unwrap();
    }
    assert_eq!(main.stats().large_values, 1);
    main.insert(b"huge", &value(2, 1_000_000)).unwrap();
    assert!(length > 0 && main.get(b"huge").unwrap().unwrap() == *value(2, 1_000_000));
    // Room that only a checkpoint can give back is asked for before the disk counts as full.
    let all: usize = disk.files().iter().map(|file| disk.contents(file).unwrap().len()).sum();
    disk.set_capacity(Some(all as u64 + 1_500_000));
    for version in 3..20 {
        main.insert(b"huge", &value(version, 1_000_000)).unwrap();
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
    // A panic in the user's reader is not one under a stripe: writing goes on.
    let mut source = Failing(600_000);
    main.insert_from(b"k", 600_000, &mut source).unwrap();
    assert!(main.get(b"k").unwrap().unwrap() == vec![7u8; 600_000][..]);
    // What lies beyond the length is left in the reader.
    let mut source = &b"12345rest"[..];
    main.insert_from(b"k", 5, &mut source).unwrap();
    assert_eq!((source, &main.get(b"k").unwrap().unwrap()[..]), (&b"rest"[..], &b"12345"[..]));
}

/// A flipped bit in a page of a large value is found by whoever reads it, and by verification; keys
/// and other values are not touched.
#[test]
fn p17_damage_is_found() {
    let disk = SimDisk::new(10);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"a", &value(1, 300_000)).unwrap();
    main.insert(b"b", &value(2, 300_000)).unwrap();
    db.close().unwrap();
    let image = disk.contents(Path::new(FILE)).unwrap();
    let needle = &value(1, 300_000)[280_000..280_032];
    let at = image.windows(32).position(|window| window == needle).unwrap();
    disk.flip_bit(Path::new(FILE), at as u64, 3).unwrap();
    let db = open(&disk);
    let main = keyspace(&db);
    let error = main.get(b"a").unwrap_err();
    assert!(error.is_corruption());
    let offset = at / 4096 * 4096;
    let text = error.to_string();
    assert!(text.contains(FILE) && text.contains(&offset.to_string()), "{text}");
    let mut reader = main.get_reader(b"a").unwrap().unwrap();
    let mut part = vec![0; 1000];
    reader.read_exact(&mut part).unwrap();
    assert!(part == value(1, 1000));
    assert!(reader.read_to_end(&mut part).unwrap_err().to_string().contains("checksum"));
    assert!(main.get(b"b").unwrap().unwrap() == *value(2, 300_000));
    assert_eq!(main.keys::<&[u8]>(..).count(), 2);
    assert!(main.iter().next().unwrap().unwrap_err().is_corruption());
    assert!(db.verify().unwrap_err().is_corruption());
    main.remove(b"a").unwrap();
    db.checkpoint().unwrap();
    db.verify().unwrap();
}

/// Changes the page of the file that holds `needle`, and seals it again as the store does.
fn forge(disk: &SimDisk, needle: &[u8], change: impl FnOnce(&mut [u8])) {
    let image = disk.contents(Path::new(FILE)).unwrap();
    let at = image.windows(needle.len()).position(|window| window == needle).unwrap();
    let mut buf = AlignedBuf::new(1);
    let offset = at / 4096 * 4096;
    buf.bytes_mut().copy_from_slice(&image[offset..offset + 4096]);
    change(buf.bytes_mut());
    let checksum = xxhash_rust::xxh3::xxh3_64(&buf.bytes()[8..]);
    buf.bytes_mut()[..8].copy_from_slice(&checksum.to_le_bytes());
    let file = disk.open(Path::new(FILE), OpenMode::EXISTING).unwrap();
    file.write_at(buf.bytes(), offset as u64, Purpose::Tool).unwrap();
    file.sync(Purpose::Tool).unwrap();
}

/// Whole pages with right checksums, but of another generation, another kind, or with other bytes
/// than were written, are damage, never data.
#[test]
fn p17_pages_that_are_not_the_ones_meant_are_damage() {
    // What the error names, and a byte that is another then.
    for (what, at) in [("generation", 16), ("kind", 8), ("page", 12), ("hash", 100)] {
        let disk = SimDisk::new(11);
        let db = open(&disk);
        let main = keyspace(&db);
        main.insert(b"a", &value(1, 20_000)).unwrap();
        db.close().unwrap();
        forge(&disk, &value(1, 20_000)[9_000..9_032], |page| page[at] ^= 5);
        let db = open(&disk);
        let error = keyspace(&db).get(b"a").unwrap_err();
        assert!(error.is_corruption() && error.to_string().contains(what), "{what}: {error}");
        let mut reader = keyspace(&db).get_reader(b"a").unwrap().unwrap();
        assert!(reader.read_to_end(&mut Vec::new()).is_err());
        let error = db.verify().unwrap_err();
        assert!(error.is_corruption() && error.to_string().contains(what), "{what}: {error}");
    }
}

/// The longest value goes in and out in pieces.
#[test]
fn p17_the_longest_value_is_streamed() {
    struct Pattern {
        at: u64,
        largest: usize,
    }
    impl Read for Pattern {
        fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
            self.largest = self.largest.max(buf.len());
            for (byte, at) in buf.iter_mut().zip(self.at..) {
                *byte = ((at * 31) >> 3) as u8;
            }
            self.at += buf.len() as u64;
            Ok(buf.len())
        }
    }
    let disk = SimDisk::new(12);
    let db = open(&disk);
    let main = keyspace(&db);
    let length = VALUE_BYTES_MAX as u64;
    let mut source = Pattern { at: 0, largest: 0 };
    main.insert_from(b"k", length, &mut source).unwrap();
    assert!(source.largest <= 512 << 10, "asked for {} bytes at once", source.largest);
    assert!(main.stats().file_bytes < 96 << 20, "{}", main.stats().file_bytes);
    let db = open(&disk.kill());
    let main = keyspace(&db);
    let mut reader = main.get_reader(b"k").unwrap().unwrap();
    assert_eq!(reader.len(), length);
    let mut expected = Pattern { at: 0, largest: 0 };
    let (mut found, mut wanted) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    for _ in 0..length >> 16 {
        reader.read_exact(&mut found).unwrap();
        expected.read_exact(&mut wanted).unwrap();
        assert!(found == wanted);
    }
    assert_eq!(reader.read(&mut found).unwrap(), 0);
    main.remove(b"k").unwrap();
    db.checkpoint().unwrap();
    assert_eq!(main.stats().large_bytes, 0);
    db.verify().unwrap();
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

/// A backup has every value that its pages and its log name, whole, whatever is written, overwritten
/// and given back while it is taken (P26).
#[test]
fn p26_large_values_are_in_a_backup() {
    for seed in 0..8 {
        let disk = SimDisk::new(seed);
        let db = open(&disk);
        let logged = keyspace(&db);
        let other = db.keyspace("other", KeyspaceOptions::default().logged(false)).unwrap();
        let states = std::cell::RefCell::new(vec![Model::new()]);
        let write = |number: u64| {
            let mut model = states.borrow().last().unwrap().clone();
            let (key, large) =
                (key(number % 7), value(number, 3_000 + number as usize * 977 % 90_000));
            let mut batch = Batch::new();
            batch.insert(&logged, key.clone(), large.clone());
            batch.insert(&other, key.clone(), large.clone());
            if number.is_multiple_of(5) {
                batch.remove(&logged, self::key((number + 3) % 7));
                model.remove(&self::key((number + 3) % 7));
            }
            model.insert(key, large);
            // Small records move pages.
            for small in 0..20 {
                let key = format!("small{:06}", (number * 20 + small) * 7919 % 1_000_000);
                batch.insert(&logged, key.clone(), vec![1; 300]);
                model.insert(key.into(), vec![1; 300]);
            }
            db.write(batch).unwrap();
            states.borrow_mut().push(model);
        };
        (0..40 + seed * 5).for_each(write);
        let least = states.borrow().len() - 1;
        let mut calls = 0u64;
        let _report = db
            .backup_with("/copy", &spinney_db::BackupOptions::default(), |_| {
                calls += 1;
                // A writer faster than the copy would keep it busy for long.
                if calls > 60 {
                    return;
                }
                write(1_000 + calls);
                if calls.is_multiple_of(3) {
                    db.checkpoint().unwrap();
                }
            })
            .unwrap();
        assert!(calls > 3, "{calls}");
        let most = states.borrow().len() - 1;
        (5_000..5_040).for_each(write);
        db.checkpoint().unwrap();
        db.verify().unwrap();
        let copy = Db::open(Path::new("/copy"), options(&disk)).unwrap();
        copy.verify().unwrap();
        let main = copy.existing_keyspace("main").unwrap();
        let found: Model =
            main.iter().map(|record| record.unwrap()).map(|(k, v)| (k, v.into())).collect();
        let states = states.into_inner();
        let number = states.iter().position(|state| *state == found).unwrap();
        assert!((least..=most).contains(&number), "{number} of {least} to {most}");
        let other = copy.existing_keyspace("other").unwrap();
        for record in other.iter() {
            let (key, value) = record.unwrap();
            assert!(states.iter().any(|state| state.get(&key).is_some_and(|v| value == **v)));
        }
        copy.checkpoint().unwrap();
        copy.checkpoint().unwrap();
        copy.verify().unwrap();
        for keyspace in [&main, &other] {
            let large = keyspace.iter().filter(|record| record.as_ref().unwrap().1.len() >= 4_000);
            let stats = keyspace.stats();
            assert_eq!((stats.large_values, stats.large_freed_bytes), (large.count() as u64, 0));
        }
        copy.close().unwrap();
    }
}

/// A change of a large value between the reading and the locking of a conditional write is noticed.
#[test]
fn p04_conditional_writes_see_every_large_value() {
    let disk = SimDisk::new(15);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"k", &value(1, 20_000)).unwrap();
    let mut seen = Vec::new();
    main.update(b"k", |old| {
        seen.push(old.unwrap().to_vec());
        if seen.len() == 1 {
            main.insert(b"k", &value(2, 20_000)).unwrap();
        }
        Some(value(3, 20_000))
    })
    .unwrap();
    assert!(seen == [value(1, 20_000), value(2, 20_000)]);
    assert!(main.get(b"k").unwrap().unwrap() == *value(3, 20_000));
    // What was staged for the first attempt is given back.
    db.checkpoint().unwrap();
    assert_eq!((main.stats().large_values, main.stats().large_freed_bytes), (1, 0));
    db.verify().unwrap();
}
