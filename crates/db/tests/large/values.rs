//! Values come back whole or as an error, with any writers and readers beside.

use super::*;

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
    let mut readers = main.iter().readers();
    for (index, expected) in model.iter().enumerate() {
        let (key, mut reader) = readers.next().unwrap().unwrap();
        assert_eq!((&key, reader.len()), (expected.0, expected.1.len() as u64));
        // Once in part and once whole.
        let mut found = Vec::new();
        reader.by_ref().take(index as u64 * 1000).read_to_end(&mut found).unwrap();
        assert!(expected.1.starts_with(&found));
        found.clear();
        reader.rewind();
        reader.read_to_end(&mut found).unwrap();
        assert!(found == *expected.1);
    }
    assert!(readers.next().is_none());
    assert!(main.iter().readers().rev().map(|one| one.unwrap().0).eq(model.keys().rev().cloned()));
    let read = disk.reads();
    assert!(main.contains_key(key(13)).unwrap());
    assert_eq!(main.keys(..).count(), lengths.len());
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

/// A flipped bit in a page of a large value is found by any thread that reads it, and by verification; keys
/// and other values are not touched.
#[test]
fn p17_damage_is_found() {
    let disk = SimDisk::new(10);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"a", value(1, 300_000)).unwrap();
    main.insert(b"b", value(2, 300_000)).unwrap();
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
    assert_eq!(main.keys(..).count(), 2);
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
    file.write_at(buf.bytes(), offset as u64, Purpose::TOOL).unwrap();
    file.sync(Purpose::TOOL).unwrap();
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
        main.insert(b"a", value(1, 20_000)).unwrap();
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

/// A change of a large value between the reading and the locking of a conditional write is noticed.
#[test]
fn p04_conditional_writes_see_every_large_value() {
    let disk = SimDisk::new(15);
    let db = open(&disk);
    let main = keyspace(&db);
    main.insert(b"k", value(1, 20_000)).unwrap();
    let mut seen = Vec::new();
    main.update(b"k", |old| {
        seen.push(old.unwrap().to_vec());
        if seen.len() == 1 {
            main.insert(b"k", value(2, 20_000)).unwrap();
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
                    return ControlFlow::Continue(());
                }
                write(1_000 + calls);
                if calls.is_multiple_of(3) {
                    db.checkpoint().unwrap();
                }
                ControlFlow::Continue(())
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

/// A large value that goes between the reading of its key and its own does not count for a limit.
#[test]
fn a_limit_counts_what_is_given() {
    let db = open(&SimDisk::new(1));
    let main = keyspace(&db);
    for number in 0..6 {
        main.insert(key(number), value(number, 6000)).unwrap();
    }
    let mut ahead = main.iter().limit(3);
    let mut back = main.iter().limit(3);
    assert_eq!(ahead.next().unwrap().unwrap().0, key(0));
    assert_eq!(back.next_back().unwrap().unwrap().0, key(5));
    main.remove(key(1)).unwrap();
    main.remove(key(4)).unwrap();
    let ahead: Vec<_> = ahead.map(|record| record.unwrap().0).collect();
    assert_eq!(ahead, [key(2), key(3)]);
    let back: Vec<_> = back.rev().map(|record| record.unwrap().0).collect();
    assert_eq!(back, [key(3), key(2)]);
}
