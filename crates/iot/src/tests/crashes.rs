//! Power losses: what a slot names and a log above it lead to what was there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use spinney_base::runtime::SplitMix;
use spinney_base::shim::Mutex;
use spinney_base::{Lsn, ValueRef};
use spinney_engine::{Engine as _, OwnedValue};
use spinney_io::sim::{CrashMode, SimDisk};
use spinney_io::{Reserve, Reserved};

use super::{MUCH, Model, World, key};
use crate::engine::Iot;

/// A write as a log has it.
type Logged = (Lsn, Vec<u8>, Option<OwnedValue>);

fn draw(random: &mut SplitMix, most: u64) -> u64 {
    random.next_u64() % most
}

/// Writes something, and notes it.
fn write_one(world: &World, random: &mut SplitMix, log: &Mutex<Vec<Logged>>) {
    let key = key(draw(random, 900));
    let value = match draw(random, 12) {
        0..4 => None,
        4 => {
            let bytes = world.large(&vec![draw(random, 250) as u8; 6000]);
            Some(OwnedValue { bytes, large: true })
        }
        _ => {
            let bytes = vec![draw(random, 250) as u8; draw(random, 300) as usize];
            Some(OwnedValue { bytes, large: false })
        }
    };
    // Records are noted in the order of the log.
    let mut log = log.lock();
    let lsn = world.write(&key, value.as_ref().map(OwnedValue::as_value), 0).unwrap();
    log.push((lsn, key, value));
}

/// Opens a disk after a power loss, replays what a log has up to an LSN, and checks what is there then.
fn reopen(disk: SimDisk, log: &[Logged]) -> (World, Model) {
    let world = World::open(disk, MUCH, true).unwrap();
    let redo = world.engine.redo();
    let above = || log.iter().filter(|(lsn, ..)| *lsn > redo);
    for (.., value) in above() {
        if let Some(OwnedValue { bytes, large: true }) = value {
            world.engine.values.replay(bytes).unwrap();
        }
    }
    world.engine.end_structure_replay().unwrap();
    for (_, key, value) in above() {
        world.replay(key, value.as_ref().map(OwnedValue::as_value));
    }
    world.engine.end_replay().unwrap();
    let mut last: BTreeMap<&[u8], Option<ValueRef<'_>>> = BTreeMap::new();
    for (_, key, value) in log {
        last.insert(key, value.as_ref().map(OwnedValue::as_value));
    }
    let there = last.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let model = there.map(|(key, value)| (key.to_vec(), world.whole(value))).collect();
    world.check(&model);
    (world, model)
}

/// Takes checkpoints beside writers, cuts the power somewhere in the middle, and replays.
fn crash_beside_writers(seed: u64) -> usize {
    let world = World::on(SimDisk::new(seed), MUCH, true);
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut random = SplitMix(seed);
    for _ in 0..draw(&mut random, 3000) {
        write_one(&world, &mut random, &log);
    }
    if !seed.is_multiple_of(4) {
        world.checkpoint();
    }
    let is_done = AtomicBool::new(false);
    let mode = [CrashMode::Torn512, CrashMode::Torn4K, CrashMode::KeepAll, CrashMode::LoseAll];
    let (every, mode) = (1 + draw(&mut random, 9), mode[seed as usize % 4]);
    // How many records there were at a step. None was half applied then.
    let lengths = Arc::new(Mutex::new(BTreeMap::new()));
    let (of_log, of_steps) = (Arc::clone(&log), Arc::clone(&lengths));
    let policy = move |step: u64, states: &[&'static str]| {
        if !states.contains(&"test") || !step.is_multiple_of(every) {
            return None;
        }
        let length = of_log.try_lock()?.len();
        of_steps.lock().insert(step, length);
        Some(mode)
    };
    world.disk.capture_when(Arc::new(policy));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SplitMix(seed + 1000);
            while !is_done.load(SeqCst) {
                write_one(&world, &mut random, &log);
                std::thread::yield_now();
            }
        });
        let _inside = spinney_base::probe::enter("test");
        for _ in 0..6 {
            let _one_at_a_time = world.engine.publishing.lock();
            // All up to here is applied: writes are noted under the lock.
            let redo = { log.lock().last().map_or(Lsn::ZERO, |(lsn, ..)| *lsn) };
            world.engine.publish_all(redo, || ()).unwrap();
        }
        is_done.store(true, SeqCst);
    });
    let log = log.lock();
    let captures = world.disk.take_captures();
    let count = captures.len().min(6);
    for capture in captures.into_iter().take(6) {
        let length = lengths.lock()[&capture.step];
        let (world, model) = reopen(capture.image, &log[..length]);
        world.checkpoint();
        world.after_crash().check(&model);
    }
    let (world, model) = reopen(world.disk.crash(mode), &log);
    world.put(b"more", b"1");
    world.checkpoint();
    let mut model = model;
    model.insert(b"more".to_vec(), b"1".to_vec());
    world.check(&model);
    world.after_crash().check(&model);
    count
}

#[test]
fn power_losses_beside_writers_lose_nothing() {
    let crashes: usize = (0..24).map(crash_beside_writers).sum();
    assert!(crashes > 48, "{crashes} crashes in the middle");
}

/// A checkpoint that replaces all images writes over none that the slot before names: wherever the power is lost, all is there
/// as of one of the two.
#[test]
fn what_a_slot_names_is_not_written_over() {
    for mode in [CrashMode::KeepAll, CrashMode::LoseAll, CrashMode::Torn4K] {
        let world = World::on(SimDisk::new(1), MUCH, false);
        let fill = |version: u8| -> Model {
            let records = (0..20_000).map(|number| (key(number), vec![version; 200]));
            let model: Model = records.collect();
            model.iter().for_each(|(key, value)| world.put(key, value));
            model
        };
        let before = fill(1);
        world.checkpoint();
        let after = fill(2);
        let is_inside = |states: &[&str]| states.contains(&"test");
        world.disk.capture_when(Arc::new(move |_, states| is_inside(states).then_some(mode)));
        {
            let _inside = spinney_base::probe::enter("test");
            world.checkpoint();
        }
        let captures = world.disk.take_captures();
        let (mut of_before, mut of_after) = (0, 0);
        for capture in captures {
            let world = World::open(capture.image, MUCH, false).unwrap();
            world.engine.end_structure_replay().unwrap();
            world.engine.end_replay().unwrap();
            let all = world.all();
            of_before += usize::from(all == before);
            of_after += usize::from(all == after);
            assert!(all == before || all == after, "{mode:?}: {} records", all.len());
        }
        // The last moment may be that before the slot is durable.
        assert!(
            of_before > 4 && (of_after > 0 || mode == CrashMode::LoseAll),
            "{of_before}, {of_after}"
        );
    }
}

/// What comes while a checkpoint is under way may be in it or not, and each page has one owner.
#[test]
fn changes_beside_a_checkpoint_without_a_log() {
    for seed in 0..20 {
        let world = World::on(SimDisk::new(seed), MUCH, false);
        let mut random = SplitMix(seed);
        let mut model = Model::new();
        for round in 0..6 {
            for _ in 0..400 {
                let (key, value) =
                    (key(draw(&mut random, 3000)), vec![round; draw(&mut random, 400) as usize]);
                world.put(&key, &value);
                model.insert(key, value);
            }
            let mut later = model.clone();
            let beside = || {
                for _ in 0..300 {
                    let key = key(draw(&mut random, 3000));
                    if draw(&mut random, 3) == 0 {
                        world.remove(&key);
                        later.remove(&key);
                    } else {
                        let value = vec![round + 100; draw(&mut random, 900) as usize];
                        world.put(&key, &value);
                        later.insert(key, value);
                    }
                }
            };
            world.checkpoint_beside(beside).unwrap();
            let opened = world.after_crash();
            let all = opened.all();
            assert_eq!(opened.verify().unwrap(), all.len() as u64);
            for (key, value) in &all {
                assert!(model.get(key) == Some(value) || later.get(key) == Some(value));
            }
            assert!(
                model
                    .keys()
                    .filter(|key| later.contains_key(*key))
                    .all(|key| all.contains_key(key))
            );
            world.check(&later);
            model = later;
        }
    }
}

/// Large values that are replaced beside a checkpoint are those of the slot or later ones after a crash: none is
/// written over, and none is left behind.
#[test]
fn large_values_beside_a_checkpoint_without_a_log() {
    for seed in 0..8 {
        let mut world = World::on(SimDisk::new(seed), MUCH, false);
        let mut random = SplitMix(seed);
        let mut model = Model::new();
        for round in 0..10_u8 {
            let mut put = |model: &mut Model, byte: u8| {
                for _ in 0..12 {
                    let (key, value) = (key(draw(&mut random, 24)), vec![byte; 9000]);
                    match draw(&mut random, 6) {
                        0 => {
                            world.remove(&key);
                            model.remove(&key);
                        }
                        1 => {
                            world.put(&key, &value[..30]);
                            model.insert(key, value[..30].to_vec());
                        }
                        _ => {
                            world.put_large(&key, &value);
                            model.insert(key, value);
                        }
                    }
                }
            };
            put(&mut model, round);
            let mut later = model.clone();
            world.checkpoint_beside(|| put(&mut later, round + 100)).unwrap();
            world.check(&later);
            world = world.after_crash();
            let all = world.all();
            let is_right = |(key, value): (&Vec<u8>, &Vec<u8>)| {
                model.get(key) == Some(value) || later.get(key) == Some(value)
            };
            assert!(all.iter().all(is_right));
            // What is written now takes places that nothing names.
            (0..12).for_each(|at| world.put_large(&[at], &[255; 9000]));
            (0..12).for_each(|at| world.remove(&[at]));
            world.checkpoint();
            world.check(&all);
            let large = all.values().filter(|value| value.len() == 9000).count() as u64;
            assert_eq!(world.engine.stats().large_values, large);
            model = all;
        }
        assert!(world.engine.stats().file_bytes < 3 << 20, "{}", world.engine.stats().file_bytes);
    }
}

/// Leaves are listed some together, and written some together; the lists are longer than what is written.
#[test]
fn a_checkpoint_of_many_leaves_has_all_of_them() {
    let world = World::on(SimDisk::new(1), MUCH, false);
    let mut model = Model::new();
    for (round, every) in [(1, 1), (2, 3), (3, 700), (4, 5)] {
        for number in (0..10_000).step_by(every) {
            let value = vec![round; 2000 + number as usize % 300];
            world.put(&key(number), &value);
            model.insert(key(number), value);
        }
        assert!(world.engine.tree.leaves() > 1200);
        world.checkpoint();
        world.check(&model);
        world.after_crash().check(&model);
    }
    world.verify().unwrap();
}

/// A checkpoint that takes its time holds nothing while it rests, and has all that was before it.
#[test]
fn a_slow_checkpoint_has_all_that_was_before() {
    for seed in 0..10 {
        let world = World::on(SimDisk::new(seed), MUCH, false);
        let (mut random, mut model) = (SplitMix(seed), Model::new());
        for round in 0..3_u8 {
            for number in 0..20_000 {
                let value = vec![round; draw(&mut random, 150) as usize];
                world.put(&key(number), &value);
                model.insert(key(number), value);
            }
            let (mut rests, mut later) = (0, model.clone());
            let mut rest = |share: f64| {
                rests += 1;
                assert!((0.0..=1.0).contains(&share));
                for _ in 0..300 {
                    let (key, value) = (key(draw(&mut random, 9000)), vec![round + 100; 90]);
                    world.put(&key, &value);
                    later.insert(key, value);
                }
                if draw(&mut random, 3) == 0 {
                    // Another one, and a check, as nothing is held.
                    world.checkpoint();
                    world.verify().unwrap();
                }
                draw(&mut random, 20) > 0
            };
            world.engine.checkpoint_slowly(Lsn::ZERO, &mut rest).unwrap();
            assert!(rests > 0);
            let all = world.after_crash().all();
            let is_right = |(key, value): (&Vec<u8>, &Vec<u8>)| {
                model.get(key) == Some(value) || later.get(key) == Some(value)
            };
            assert!(all.iter().all(is_right) && model.keys().all(|key| all.contains_key(key)));
            world.check(&later);
            model = later;
        }
    }
}

/// A checkpoint that meets a full disk leaves the one before, or goes in steps, and the next one has all.
#[test]
fn a_checkpoint_without_room_goes_in_steps() {
    let (mut refused, mut steps) = (0, 0);
    for room in 0..24 {
        let world = World::on(SimDisk::new(room), MUCH, false);
        let mut model = Model::new();
        let put = |model: &mut Model, numbers: Range<u64>, version: u64| {
            for number in numbers {
                let value = super::value(number, version);
                world.put(&key(number), &value);
                model.insert(key(number), value);
            }
        };
        put(&mut model, 0..12_000, 1);
        world.checkpoint();
        let before = model.clone();
        put(&mut model, 0..12_000, 2);
        // Some leaves are split.
        put(&mut model, 12_000..12_000 + room * 3, 2);
        (0..room / 6).for_each(|at| {
            world.put(&[&key(at * 50)[..], b"+"].concat(), &[7; 200]);
            model.insert([&key(at * 50)[..], b"+"].concat(), vec![7; 200]);
        });
        // First what is free in the file is taken.
        let taken: Vec<_> = std::iter::from_fn(|| {
            let is_free = world.engine.store().space().free_pages > room * 6;
            is_free.then(|| world.engine.store().allocate(0).unwrap().0)
        })
        .collect();
        world.disk.set_capacity(Some(world.disk.used() + room / 4 * 16_000));
        let checkpoints = world.engine.stats().checkpoints;
        let result = world.checkpoint_beside(|| ());
        assert!(result.as_ref().err().is_none_or(spinney_base::Error::is_full));
        refused += u64::from(result.is_err());
        steps += world.engine.stats().checkpoints - checkpoints;
        taken.into_iter().for_each(|extent| world.engine.store().release(extent));
        world.check(&model);
        let opened = world.after_crash().all();
        let is_either =
            |(key, value)| before.get(key) == Some(value) || model.get(key) == Some(value);
        assert!(opened.len() >= 12_000 && opened.iter().all(is_either));
        world.disk.set_capacity(None);
        world.checkpoint();
        world.check(&model);
        world.after_crash().check(&model);
    }
    assert!(refused > 0 && refused < 20 && steps > 50, "{refused} were refused, {steps} steps");
}

/// A keyspace of many leaves on a disk without any room but a reserve of this many bytes.
fn on_a_reserve(bytes: u64, had_checkpoint: bool) -> (World, Arc<Reserve>, Model) {
    let disk = SimDisk::new(bytes);
    let mut context = super::context(&disk, MUCH, false);
    let reserve = Arc::new(Reserve::open(context.directory.clone()).unwrap());
    context.directory = Arc::new(Reserved::new(reserve.clone()));
    let world = World::made(disk, Iot::create(context, Lsn::ZERO).unwrap(), false);
    let mut model = Model::new();
    for version in [1].into_iter().chain(had_checkpoint.then_some(2)) {
        for number in 0..20_000 {
            let value = super::value(number, version);
            world.put(&key(number), &value);
            model.insert(key(number), value);
        }
        if had_checkpoint && version == 1 {
            world.checkpoint();
        }
    }
    reserve.keep(bytes).unwrap();
    // Nor is there any in the file.
    let store = world.engine.store().clone();
    while store.space().free_pages > 0 {
        store.allocate(0).unwrap();
    }
    world.disk.set_capacity(Some(world.disk.used()));
    (world, reserve, model)
}

/// While a backup runs, what images have left is not free.
#[test]
fn p29_a_checkpoint_takes_the_reserve_where_steps_free_nothing() {
    let (world, reserve, model) = on_a_reserve(8 << 20, true);
    {
        let _nothing_is_free = world.engine.store().hold();
        world.checkpoint();
    }
    assert!(reserve.bytes() < 6 << 20);
    world.after_crash().check(&model);
}

/// Images take the reserve, but leave what a step takes that frees those they replace.
#[test]
fn p29_a_checkpoint_leaves_room_for_its_steps() {
    for bytes in [256 << 10, 512 << 10, 768 << 10] {
        let (world, reserve, model) = on_a_reserve(bytes, true);
        let checkpoints = world.engine.stats().checkpoints;
        world.checkpoint();
        let steps = world.engine.stats().checkpoints - checkpoints;
        assert!(steps > 2, "{steps} steps with a reserve of {bytes}");
        assert!(reserve.bytes() < bytes);
        world.after_crash().check(&model);
    }
}
