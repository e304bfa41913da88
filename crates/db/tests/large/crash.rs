//! What a crash finds at every step, and what recovery makes of it.

use super::*;

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
        // And what the crash left is no leak: after a quiet while, in which staged records are written back,
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

/// The log says more than memory holds: replay writes an older value back over a newer one that the
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
        main.insert(b"a", value(version, 30_000 + version as usize)).unwrap();
        crowd();
    }
    assert_eq!(main.stats().checkpoints, 0);
    let image = disk.kill();
    let db = Db::open(Path::new("/db"), options(&image)).unwrap();
    let main = keyspace(&db);
    assert!(main.get(b"a").unwrap().unwrap() == *value(3, 30_003));
    for round in 0..8 {
        db.checkpoint().unwrap();
        main.insert(key(round), value(round + 10, 30_000)).unwrap();
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
    main.insert(b"warm", value(1, 10_000)).unwrap();
    db.checkpoint().unwrap();
    disk.capture_when(Arc::new(|_, states| {
        states.contains(&"large value").then_some(CrashMode::KeepAll)
    }));
    main.insert(b"lost", value(2, 500_000)).unwrap();
    disk.capture_when(Arc::new(|_, _| None));
    let last = disk.take_captures().pop().unwrap();
    let db = open(&last.image);
    let main = keyspace(&db);
    assert_eq!(main.get(b"lost").unwrap(), None);
    let before = main.stats();
    assert!(before.free_pages * 4096 >= 500_000, "{before:?}");
    db.verify().unwrap();
    main.insert(b"again", value(3, 250_000)).unwrap();
    assert_eq!(main.stats().file_bytes, before.file_bytes, "the room was used again");
    db.verify().unwrap();
}
