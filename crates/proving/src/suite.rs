//! The suite that every engine passes: one call of `suite!` per engine makes a test of each part.
//!
//! The sizes of the quick tier are chosen so that one engine's suite takes well under two minutes
//! on two cores.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};

use spinney_base::Runtime;
use spinney_io::RealDisk;
use spinney_io::sim::{Capture, CrashMode, SimDisk};
use xxhash_rust::xxh3::xxh3_64;

use crate::crash::{self, Plan, Tally};
use crate::database::{Config, Database, Product, Promise, Write};
use crate::fault;
use crate::ledger::Ledger;
use crate::model::Model;
use crate::ops::{Generator, KeyShape, Mix, Op, ValueLengths};
use crate::outage;
use crate::play::{self, Snapshots, agree_whole, effect, play};
use crate::product::EveryEngine;
use crate::threads::{self, Load};
use crate::tier::{self, Random};

/// Smallest budget of a database, which leaves one keyspace a quarter of it.
const MEMORY_BYTES_MIN: u64 = spinney_base::limits::MEMORY_BYTES_MIN;

/// Room for a handful of keyspaces.
const MEMORY_BYTES: u64 = 2 << 20;

/// A log small enough to be trimmed in every run.
const LOG_BYTES: u64 = 4 << 20;

/// Where a run keeps its files.
enum Place {
    Simulated(SimDisk),
    Real,
}

impl Place {
    fn open(&self, product: &dyn Product, config: &Config, runtime: &Runtime) -> Box<dyn Database> {
        let disk: Arc<dyn spinney_io::Disk> = match self {
            Place::Simulated(disk) => Arc::new(disk.clone()),
            Place::Real => Arc::new(RealDisk::new()),
        };
        product.open(disk, runtime.clone(), config).expect("nothing is wrong with the disk")
    }
}

impl Place {
    /// The disk as another process sees it.
    fn another(&self) -> Arc<dyn spinney_io::Disk> {
        match self {
            Place::Simulated(disk) => Arc::new(disk.kill()),
            Place::Real => Arc::new(RealDisk::new()),
        }
    }
}

/// Random operations beside a model, on the simulated disk.
///
/// # Panics
/// When an answer is not the model's.
pub fn model_on_simulated_disk(product: &dyn Product) {
    let config = crash::config(MEMORY_BYTES, LOG_BYTES);
    tier::for_each_seed(tier::count(8, 1000), |seed| {
        let mix = Mix::small(&mut Random::new(seed, 5));
        let disk = SimDisk::new(seed);
        tier::choose_medium(&disk, seed);
        model(product, Place::Simulated(disk), &config, (seed, mix), 1500);
    });
}

/// The same with logged keyspaces only, whose contents no kill leaves open, so that a mirror's two
/// must agree on them.
///
/// # Panics
/// When an answer is not the model's.
pub fn model_of_logged_keyspaces(product: &dyn Product) {
    let config = crash::config(MEMORY_BYTES, LOG_BYTES);
    tier::for_each_seed(tier::count(12, 500), |seed| {
        let mix = Mix { unlogged: false, ..Mix::small(&mut Random::new(seed, 5)) };
        let disk = SimDisk::new(seed);
        tier::choose_medium(&disk, seed);
        model(product, Place::Simulated(disk), &config, (seed, mix), 1500);
    });
}

/// One seed does the same twice, to the byte: nothing in a simulated run depends on the machine.
/// Each run is a process of its own, as when somebody replays a seed: addresses and the keys of
/// hashes differ, and no other thread decides when memory is given back. `test` is the path of the
/// test that calls this, which these processes run.
///
/// # Panics
/// When two runs differ.
pub fn a_seed_replays(product: &dyn Product, test: &str) {
    const TELL: &str = "SPINNEY_REPLAY_TO";
    if let Some(path) = std::env::var_os(TELL) {
        let story = tier::seeds(1).map(|seed| replay(product, seed)).collect::<String>();
        return std::fs::write(path, story).expect("it can be written");
    }
    let (_, test) = test.split_once("::").expect("a crate has a name");
    let program = std::env::current_exe().expect("it runs");
    let directory = tempfile::tempdir().expect("there is room");
    tier::for_each_seed(tier::count(4, 40), |seed| {
        let tell = |run: u8| {
            let path = directory.path().join(format!("{seed}.{run}"));
            let mut command = std::process::Command::new(&program);
            command.args([test, "--exact"]).env(TELL, &path).env("SPINNEY_SEED", seed.to_string());
            let output = command.output().expect("it runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            std::fs::read_to_string(path).expect("the test has this path, and tells")
        };
        let (first, second) = (tell(1), tell(2));
        for (one, other) in first.lines().zip(second.lines()) {
            assert_eq!(one, other, "the runs part");
        }
        assert_eq!(first.len(), second.len());
    });
}

/// What happens in a run: after each step the counts of the disk and of memory, and in the end the
/// sums of all files.
fn replay(product: &dyn Product, seed: u64) -> String {
    let config = crash::config(MEMORY_BYTES, LOG_BYTES);
    let disk = SimDisk::new(seed);
    // Without reopening, so that the run ends on the disk it began on.
    let mix = crash_mix(600, 0..500);
    let mut generator = Generator::new(seed, mix);
    let runtime = Runtime::stepped(seed);
    let place = Place::Simulated(disk.clone());
    let database = place.open(product, &config, &runtime);
    let mut model = Model::default();
    let mut story = String::new();
    let mut tell = |what: &str, disk: &SimDisk| {
        let memory = database.memory();
        story += &format!("{what}: {} {} {memory:?}\n", disk.steps(), disk.reads());
    };
    for number in 0..800 {
        let op = match number {
            0 => Op::CreateKeyspace { name: "main".into(), logged: true },
            _ => generator.next(&model),
        };
        let effect = effect(&op, &model);
        play(&*database, &runtime, &op, &model).expect("nothing is wrong with the disk");
        effect.apply(&mut model);
        tell(&format!("{op:?}"), &disk);
    }
    let image = disk.crash(CrashMode::Torn512);
    let recovered = Place::Simulated(image.clone()).open(product, &config, &runtime);
    recovered.verify().expect("nothing is wrong with the disk");
    tell("recovery", &image);
    database.close().expect("nothing is wrong with the disk");
    for path in disk.files() {
        let bytes = disk.contents(&path).expect("it is there");
        story += &format!("{}: {} {:x}\n", path.display(), bytes.len(), xxh3_64(&bytes));
    }
    story
}

/// Random operations beside a model, on the real disk.
///
/// # Panics
/// When an answer is not the model's.
pub fn model_on_real_disk(product: &dyn Product) {
    tier::for_each_seed(tier::count(6, 100), |seed| {
        let place = tempfile::tempdir().expect("a temporary directory");
        let path = place.path().join("db");
        let config = Config { path, ..crash::config(MEMORY_BYTES, LOG_BYTES) };
        let mix = Mix::small(&mut Random::new(seed, 5));
        model(product, Place::Real, &config, (seed, mix), 600);
    });
}

/// How long memory may still be over its budget: caches follow a smaller budget, or a smaller share
/// in it, in the background.
struct Settling {
    /// Operations after which memory is within its budget.
    operations: u32,
    /// Keyspaces that were open after the last operation.
    open: usize,
}

impl Settling {
    /// Checks the memory of a database after `op`.
    fn check(&mut self, database: &dyn Database, op: &Op) {
        match op {
            Op::SetMemory { .. } | Op::CreateKeyspace { .. } | Op::Reopen { .. } => {
                self.operations = 100;
            }
            _ => self.operations = self.operations.saturating_sub(1),
        }
        // Shares are smaller, too, when a parked keyspace is used again.
        let open_before = std::mem::replace(&mut self.open, database.open_keyspaces());
        if self.open > open_before {
            self.operations = 100;
        }
        if self.operations == 0
            && let Some((used, budget)) = database.memory()
        {
            // What was made for good when the budget was larger may exceed it a little.
            let most = budget + budget / 64;
            assert!(used <= most, "{used} bytes of a budget of {budget} are in use after {op:?}");
        }
    }
}

fn model(
    product: &dyn Product,
    mut place: Place,
    config: &Config,
    (seed, mut mix): (u64, Mix),
    operations: usize,
) {
    let config = &Config { knobs: product.knobs(seed), ..config.clone() };
    mix.backup &= product.takes_backups();
    mix.snapshots = product.takes_snapshots();
    let mut random = Random::new(seed, 13);
    let mut generator = Generator::new(seed, mix);
    let mut runtime = Runtime::stepped(seed);
    let mut database = place.open(product, config, &runtime);
    let mut ledger = Ledger::new(Model::default());
    let mut snapshots = Snapshots::default();
    let mut settling = Settling { operations: 100, open: 0 };
    for number in 0..operations {
        let op = if number == 0 {
            Op::CreateKeyspace { name: "main".into(), logged: true }
        } else {
            generator.next(ledger.now())
        };
        let effect = effect(&op, ledger.now());
        ledger.begin(&effect);
        snapshots
            .play(&*database, &op, ledger.now())
            .and_then(|()| play(&*database, &runtime, &op, ledger.now()))
            .unwrap_or_else(|error| panic!("{op:?} failed on a good disk: {error:?}"));
        ledger.acknowledge(&effect, Promise::Sync);
        settling.check(&*database, &op);
        match op {
            Op::Checkpoint | Op::Compact { .. } => ledger.checkpointed(),
            Op::Backup => {
                database.backup(&config.backup_path()).expect("nothing is wrong with the disk");
                ledger.checkpointed();
                play::agree_with_backup(product, place.another(), config, ledger.now());
            }
            Op::Salvage => {
                if let Place::Simulated(disk) = &place {
                    salvage(product, &disk.kill(), config, &ledger);
                }
            }
            Op::Reopen { clean } => {
                if clean {
                    database.close().expect("nothing is wrong with the disk");
                    ledger.checkpointed();
                } else {
                    drop(database);
                    if let Place::Simulated(disk) = &place {
                        place = Place::Simulated(disk.kill());
                    }
                }
                runtime = Runtime::stepped(random.next_u64());
                database = place.open(product, config, &runtime);
                let found = ledger.check(&*database).expect("nothing is wrong with the disk");
                ledger = Ledger::new(found);
            }
            _ => {}
        }
    }
    snapshots.clear();
    agree_whole(&*database, ledger.now()).expect("nothing is wrong with the disk");
    database.verify().expect("nothing is wrong with the disk");
    database.close().expect("nothing is wrong with the disk");
}

/// Saves what a process that died would leave: all of it.
fn salvage(product: &dyn Product, disk: &SimDisk, config: &Config, ledger: &Ledger) {
    let to = config.salvage_path();
    let shared = Arc::new(disk.clone());
    let saved = product.salvage(shared.clone(), Runtime::stepped(9), config, &to);
    let Some(whole) = saved.expect("nothing is wrong with the disk") else { return };
    assert!(whole, "nothing is damaged, and something could not be saved");
    let new = Config { path: to, ..config.clone() };
    let database = product.open(shared, Runtime::stepped(10), &new).expect("what was saved opens");
    let found = ledger.check(&*database).expect("nothing is wrong with the disk");
    drop(found);
    database.verify().expect("nothing is wrong with the disk");
    database.close().expect("nothing is wrong with the disk");
}

fn crash_mix(keys: usize, value_bytes: std::ops::Range<usize>) -> Mix {
    Mix {
        shape: KeyShape::Numbers,
        keys,
        values: ValueLengths {
            most: value_bytes,
            large_one_in: 40,
            large: 1500,
            huge_one_in: 60,
            huge: 3_990..60_000,
        },
        memory_bytes: 2 << 20..3 << 20,
        reopen: false,
        buffered: true,
        rare_per_mille: 60,
        bulk: true,
        batches: false,
        removes_one_in: 4,
        keyspaces_max: 6,
        unlogged: true,
        backup: true,
        snapshots: false,
    }
}

/// Crashes anywhere in small databases that change quickly: everything is new, and keyspaces come
/// and go.
///
/// # Panics
/// When a promise is broken.
pub fn crash_small(product: &dyn Product) {
    let tally = Arc::new(Tally::default());
    tier::for_each_seed(tier::count(12, 700), |seed| {
        let mut random = Random::new(seed, 6);
        let mut mix = crash_mix(*random.pick(&[30, 400, 3000]), 0..300);
        mix.snapshots = product.takes_snapshots();
        mix.shape = *random.pick(&[KeyShape::Numbers, KeyShape::Paths, KeyShape::Wild]);
        let knobs = product.knobs(seed);
        let config = Config { knobs, ..crash::config(MEMORY_BYTES, LOG_BYTES) };
        if let Some((_, when)) = config.knobs.iter().find(|(name, _)| *name == "staging") {
            // Bursts of new records are what is staged, by itself long ones.
            (mix.keys, mix.removes_one_in) = (3000, 100);
            if *when == "auto" {
                mix.values.most = 600..1500;
            }
        }
        let plan = Plan { mix, config, operations: 400, lives: 3, captures: 4, start: None };
        crash::run(product, &plan, &tally, seed);
    });
    println!("crashes by state: {:#?}", tally.counts());
    if product.watch().is_some() && !tier::is_replay() {
        let each = if tier::is_full() { 100 } else { 1 };
        check_states(&tally, product.states()[0], each);
    }
}

/// Crashes anywhere in a database of ten times what its memory leaves for caching; in the full tier
/// with the counts that the whole is held to.
///
/// # Panics
/// When a promise is broken or a state was struck too seldom.
pub fn crash_large(product: &dyn Product) {
    let config = crash::config(MEMORY_BYTES_MIN, LOG_BYTES);
    let mut mix = crash_mix(9_000, 500..800);
    mix.memory_bytes = 1 << 20..1_300_000;
    mix.keyspaces_max = 2;
    let start = crash::prepare(product, &config, 1, &["main"], Some(&mix));
    let bytes: usize =
        start.1.records("main").iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(bytes as u64 >= 10 * MEMORY_BYTES_MIN / 4, "{bytes} bytes are too few");
    let captures = if tier::is_full() { 5 } else { 4 };
    let plan = Plan { mix, config, operations: 300, lives: 3, captures, start: Some(start) };
    let tally = Arc::new(Tally::default());
    tier::for_each_seed(tier::count(10, 700), |seed| {
        let mut plan = plan.clone();
        // Some runs checkpoint so seldom that recovery has much to replay.
        plan.mix.rare_per_mille = if seed % 2 == 0 { 15 } else { 60 };
        // And some have so large a log that pages go home for want of memory, not for a
        // checkpoint's sake.
        plan.config.log_bytes_max = if seed % 4 == 0 { 16 * LOG_BYTES } else { LOG_BYTES };
        plan.config.knobs = product.knobs(seed);
        plan.mix.snapshots = product.takes_snapshots();
        crash::run(product, &plan, &tally, seed);
    });
    println!("crashes by state: {:#?}", tally.counts());
    let (pages, records, large, roots) = tally.watched();
    println!(
        "watched {pages} data pages (P10), {records} structure records and {roots} pages that slots name (P13), {large} records of large values (P17)"
    );
    if tier::is_replay() {
        return;
    }
    let (all, each) = if tier::is_full() { (10_000, 100) } else { (200, 1) };
    assert!(
        product.watch().is_none()
            || (pages > 0
                && (if product.logs_structure() { records } else { roots }) > 0
                && large > 0),
        "nothing to watch"
    );
    assert!(tally.count(crash::ALL) >= all, "too few crashes");
    let common = [
        "checkpoint",
        "trim",
        "large value",
        "file growth",
        "keyspace create",
        "keyspace drop",
        "backup",
        "bulk load",
        crash::RECOVERY,
        crash::SECOND_RECOVERY,
    ];
    check_states(&tally, &common.map(|state| (state, 1)), each);
    check_states(&tally, product.states()[1], each);
}

/// Crashes anywhere in databases that lie in persistent memory, so that cache lines of the log's tail
/// are lost.
///
/// # Panics
/// When a promise is broken.
pub fn crash_in_persistent_memory(product: &dyn Product) {
    let tally = Arc::new(Tally::default());
    tier::for_each_seed(tier::count(4, 200), |seed| {
        let mut random = Random::new(seed, 8);
        let mut mix = crash_mix(*random.pick(&[30, 400, 3000]), 0..300);
        mix.snapshots = product.takes_snapshots();
        let config =
            Config { knobs: product.knobs(seed), ..crash::config(MEMORY_BYTES, LOG_BYTES) };
        let (disk, model) = crash::prepare(product, &config, seed, &["main"], None);
        disk.map_persistently(true);
        let start = Some((disk, model));
        let plan = Plan { mix, config, operations: 400, lives: 3, captures: 4, start };
        crash::run(product, &plan, &tally, seed);
    });
    let (lines, fences) = tally.lines_and_fences();
    println!("{lines} lines and {fences} fences; crashes by state: {:#?}", tally.counts());
    if !tier::is_replay() {
        assert!(tally.count(crash::ALL) >= 50, "too few crashes");
        assert!(fences > 500 && lines > fences, "the log was not in persistent memory");
    }
}

/// Crashes anywhere amid transactions over keyspaces of every engine: what was acknowledged is there, and each
/// transaction is whole.
///
/// # Panics
/// When a promise is broken, or too few transactions wrote into keyspaces of more than one engine.
pub fn crash_amid_transactions() {
    let product = EveryEngine::default();
    let tally = Arc::new(Tally::default());
    tier::for_each_seed(tier::count(6, 260), |seed| {
        let mut random = Random::new(seed, 6);
        let mut mix = crash_mix(*random.pick(&[30, 400, 3000]), 0..300);
        (mix.snapshots, mix.batches, mix.keyspaces_max) = (true, true, 4);
        mix.shape = *random.pick(&[KeyShape::Numbers, KeyShape::Paths, KeyShape::Wild]);
        let config = crash::config(MEMORY_BYTES, LOG_BYTES);
        let start = crash::prepare(&product, &config, seed, &["main", "second"], None);
        let plan = Plan { mix, config, operations: 400, lives: 3, captures: 4, start: Some(start) };
        crash::run(&product, &plan, &tally, seed);
    });
    let mixed = product.mixed.load(Relaxed);
    println!("{mixed} transactions over two engines; crashes by state: {:#?}", tally.counts());
    if !tier::is_replay() {
        let crashes = if tier::is_full() { 10_000 } else { 100 };
        assert!(tally.count(crash::ALL) >= crashes, "too few crashes");
        assert!(mixed >= crashes, "only {mixed} transactions over two engines");
    }
}

/// Checks that crashes struck in each of these states often enough.
fn check_states(tally: &Tally, states: &[(&'static str, u64)], each: u64) {
    for (state, times) in states {
        let struck = tally.count(state);
        assert!(struck >= times * each, "{state} was struck {struck} times");
    }
}

/// Power lost at every step of making a database and its first keyspace: what is left opens, and
/// can be made again.
///
/// # Panics
/// When it does not open.
pub fn crash_while_creating(product: &dyn Product) {
    let config = crash::config(MEMORY_BYTES, LOG_BYTES);
    let write = |value: &[u8]| {
        let (keyspace, key) = ("main".to_owned(), b"key".to_vec());
        [Write { keyspace, key, value: Some(value.to_vec()) }]
    };
    tier::for_each_seed(tier::count(20, 500), |seed| {
        let disk = SimDisk::new(seed);
        disk.capture_when(Arc::new(|_, _| Some(CrashMode::Torn512)));
        let runtime = Runtime::stepped(seed);
        let database = Place::Simulated(disk.clone()).open(product, &config, &runtime);
        database.create_keyspace("main", true).expect("a good disk");
        let created = disk.steps();
        database.write(&write(b"first"), Promise::Sync).expect("a good disk");
        let written = disk.steps();
        database.flush().expect("a good disk");
        runtime.sleep(std::time::Duration::from_secs(1));
        (0..8).for_each(|_| _ = runtime.step());
        disk.capture_when(Arc::new(|_, _| None));
        for Capture { step, image, .. } in disk.take_captures() {
            let runtime = Runtime::stepped(seed);
            let database = Place::Simulated(image).open(product, &config, &runtime);
            let there = database.keyspaces();
            assert!(step <= created || there.len() == 1, "step {step}: the keyspace is gone");
            database.create_keyspace("main", true).expect("a good disk");
            let found = database.get("main", b"key").expect("a good disk");
            let right = found.as_deref() == Some(b"first") || (step <= written && found.is_none());
            assert!(right, "step {step} of {created} and {written}: {found:?}");
            database.write(&write(b"second"), Promise::Sync).expect("a good disk");
            database.verify().expect("a good disk");
            database.close().expect("a good disk");
        }
    });
}

/// Power lost beside real threads.
///
/// # Panics
/// When a promise is broken.
pub fn crash_beside_threads(product: &dyn Product) {
    for seed in tier::seeds(tier::count(4, 200)) {
        let _announce = tier::Announce(seed);
        outage::run(product, &crash::config(MEMORY_BYTES, LOG_BYTES), 1200, seed);
    }
}

/// Faults beside real threads.
///
/// # Panics
/// When a thread waits forever, or something acknowledged is lost.
pub fn faults_beside_threads(product: &dyn Product) {
    for seed in tier::seeds(tier::count(8, 400)) {
        let _announce = tier::Announce(seed);
        outage::run_with_fault(product, &crash::config(MEMORY_BYTES, LOG_BYTES), 400, seed);
    }
}

/// A small database that faults start from; where the product has snapshots perhaps with smaller leaves than it would choose,
/// so that there are more of them, and more batches.
fn fault_start(product: &dyn Product, small_leaves: bool) -> fault::Start {
    let mut config = crash::config(MEMORY_BYTES, LOG_BYTES);
    let mut mix = crash_mix(800, 100..600);
    mix.shape = KeyShape::Paths;
    mix.snapshots = product.takes_snapshots();
    if mix.snapshots && small_leaves {
        config.knobs = product.knobs(1);
    }
    // Without a log a kill may take what is not checkpointed, fault or no fault.
    mix.unlogged = false;
    // What goes wrong in a copy is looked at elsewhere, call by call.
    mix.backup = false;
    let (disk, model) = crash::prepare(product, &config, 2, &["main"], Some(&mix));
    fault::Start { disk, model, mix, config }
}

/// EIO, ENOSPC, short reads and failed syncs at every call of a run in turn.
///
/// # Panics
/// When a fault makes an answer wrong or loses what was acknowledged.
pub fn faults_at_every_call(product: &dyn Product) {
    // There are twice as many calls with small leaves.
    let start = fault_start(product, tier::is_full());
    fault::every_call(product, &start, tier::count(1, 20));
}

/// The same while a database is made.
///
/// # Panics
/// When what is left does not open, or lacks what was acknowledged.
pub fn faults_while_creating(product: &dyn Product) {
    fault::while_creating(product, &crash::config(MEMORY_BYTES, LOG_BYTES));
}

/// A flipped bit in every block of every file.
///
/// # Panics
/// When damage is taken for data.
pub fn flipped_bits(product: &dyn Product) {
    let start = fault_start(product, true);
    fault::flip_every_block(product, &start, tier::count(1, 20));
}

/// Every write of a run in turn lands elsewhere.
///
/// # Panics
/// When damage is taken for data.
pub fn misdirected_writes(product: &dyn Product) {
    let start = fault_start(product, true);
    fault::misdirect_every_write(product, &start, tier::count(1, 20));
}

/// A disk that fills up and is given room again.
///
/// # Panics
/// When it loses something or does not recover.
pub fn full_disk(product: &dyn Product) {
    let start = fault_start(product, true);
    fault::fill_up(product, &start);
}

static REAL_DISK: LazyLock<Arc<RealDisk>> = LazyLock::new(|| Arc::new(RealDisk::new()));

fn on_real_disk(rounds: u64, run: impl Fn(Arc<RealDisk>, &Config, u64)) {
    for seed in tier::seeds(rounds) {
        let place = tempfile::tempdir().expect("a temporary directory");
        let path = place.path().join("db");
        let config = Config { path, ..crash::config(MEMORY_BYTES, 16 << 20) };
        let announce = tier::Announce(seed);
        run(REAL_DISK.clone(), &config, seed);
        drop(announce);
    }
}

/// Histories of threads are linearizable per key.
///
/// # Panics
/// When one is not.
pub fn linearizable(product: &dyn Product) {
    let load = Load { threads: 4, operations: 3000, keys: 6, ballast: 4000 };
    on_real_disk(tier::count(2, 40), |disk, config, seed| {
        threads::linearizable(product, disk, config, &load, seed);
    });
}

/// Readers see batches whole.
///
/// # Panics
/// When one sees half of one.
pub fn whole_batches(product: &dyn Product) {
    let load = Load { threads: 4, operations: 2000, keys: 4, ballast: 500 };
    on_real_disk(tier::count(2, 40), |disk, config, seed| {
        threads::whole_batches(product, disk, config, &load, seed);
    });
}

/// Makes a module of tests, one for each part of the suite, for one product.
#[macro_export]
macro_rules! suite {
    ($name:ident, $product:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn a_seed_replays() {
                let test = concat!(module_path!(), "::a_seed_replays");
                $crate::suite::a_seed_replays(&$product, test);
            }

            $crate::suite!(@tests $product;
                model_on_simulated_disk model_on_real_disk crash_small crash_large
                crash_while_creating crash_beside_threads faults_beside_threads faults_at_every_call
                faults_while_creating flipped_bits
                misdirected_writes full_disk linearizable whole_batches);
        }
    };
    (@tests $product:expr; $($test:ident)*) => {
        $(
            #[test]
            fn $test() {
                $crate::suite::$test(&$product);
            }
        )*
    };
}
