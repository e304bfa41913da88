//! The crash test: a simulated disk loses power in the middle of anything, and what is left must
//! keep every promise.
//!
//! ```text
//!   life 1: ops ... capture ... capture ... power cut        captures and the cut: images, each opened and checked
//!   life 2: open (capture ... cut ... open again) ops ...    crashes in recovery, and in the recovery after it
//! ```
//!
//! A run lives several lives on images of its own crashes. In each, the disk keeps images in the
//! middle of operations ([`SimDisk::capture_when`]): many crashes for the price of one run. Every
//! life ends with a real cut, so that the database also unwinds from failing I/O. The probes
//! ([`spinney_base::probe`]) of the thread that met a crash say in which state it struck; short
//! states are chosen more eagerly, so that rare ones are covered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, Runtime};
use spinney_io::sim::{Capture, CrashMode, SimDisk};

use crate::database::{Config, Database, Product, Promise};
use crate::ledger::Ledger;
use crate::model::Model;
use crate::ops::{Generator, Mix, Op};
use crate::play::{self, Snapshots, effect, play};
use crate::tier::{self, Random, trace};
use crate::watch::Watch;

/// What a crash test runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What operations are drawn from.
    pub mix: Mix,
    /// How the database is opened.
    pub config: Config,
    /// Operations of a life before its power is cut, at most.
    pub operations: usize,
    /// Lives of a run.
    pub lives: usize,
    /// Images to take per life, about.
    pub captures: usize,
    /// The disk that runs start from, and what the database on it holds; made when missing.
    pub start: Option<(SimDisk, Model)>,
}

/// How many crashes struck in each state. Thread-safe.
#[derive(Debug, Default)]
pub struct Tally {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    watched: (AtomicU64, AtomicU64, AtomicU64, AtomicU64),
    memory: (AtomicU64, AtomicU64),
}

/// The state of a crash that struck while the database opened after another.
pub const RECOVERY: &str = "recovery";
/// The state of a crash that struck while the database opened after a crash in [`RECOVERY`].
pub const SECOND_RECOVERY: &str = "second recovery";
/// The state of a crash that struck while the database closed.
pub const CLOSE: &str = "close";
/// The state of a crash that struck inside a salvage.
pub const SALVAGE: &str = "salvage";
/// Every crash.
pub const ALL: &str = "all";

impl Tally {
    fn add(&self, states: &[&'static str]) {
        let mut counts = self.counts.lock();
        *counts.entry(ALL).or_default() += 1;
        let mut states = states.to_vec();
        states.sort_unstable();
        states.dedup();
        for state in states {
            *counts.entry(state).or_default() += 1;
        }
    }

    /// How many crashes struck in `state`.
    #[must_use]
    pub fn count(&self, state: &str) -> u64 {
        self.counts.lock().get(state).copied().unwrap_or(0)
    }

    /// How many writes of data pages (P10), of structure records (P13), of records of large values
    /// (P17) and how many pages that slots name (P13) were checked.
    #[must_use]
    pub fn watched(&self) -> (u64, u64, u64, u64) {
        let (pages, records, large, roots) = &self.watched;
        (pages.load(Relaxed), records.load(Relaxed), large.load(Relaxed), roots.load(Relaxed))
    }

    /// How many lines lives wrote back to persistent memory, and how often they fenced.
    #[must_use]
    pub fn lines_and_fences(&self) -> (u64, u64) {
        (self.memory.0.load(Relaxed), self.memory.1.load(Relaxed))
    }

    /// All states and their counts.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().clone()
    }
}

/// How many times more eagerly than elsewhere an image is kept in `state`: rare states are short,
/// so they are met seldom. These are constants, not counts of what was struck, so that a seed
/// replays alone.
fn eagerness(state: &str) -> usize {
    match state {
        "file growth" | "publish structure" => 60,
        "trim" | "log growth" | "chi change" => 20,
        "keyspace create" | "keyspace drop" | "bulk load" => 10,
        "park" | "keyspace open" => 4,
        "stage merge" => 6,
        "reorganize" => 2,
        "checkpoint" | "checkpoint build" | "root publish" | "page free" => 2,
        "large value" => 3,
        _ => 1,
    }
}

/// One run.
struct Run<'a> {
    product: &'a dyn Product,
    plan: &'a Plan,
    tally: &'a Arc<Tally>,
    random: Random,
    mode: CrashMode,
    watches: Vec<Arc<Watch>>,
}

/// Runs one seed.
///
/// # Panics
/// When a promise is broken.
pub fn run(product: &dyn Product, plan: &Plan, tally: &Arc<Tally>, seed: u64) {
    let mut random = Random::new(seed, 3);
    let assume_4k = random.one_in(3);
    let mut plan = plan.clone();
    plan.config.assume_4k = assume_4k;
    let mode = if assume_4k { CrashMode::Torn4K } else { CrashMode::Torn512 };
    let (mut disk, model) = match &plan.start {
        Some((disk, model)) => (disk.kill(), model.clone()),
        None => prepare(product, &plan.config, seed, &["main"], None),
    };
    if !disk.is_persistent() {
        tier::choose_medium(&disk, seed);
    }
    let mut run = Run { product, plan: &plan, tally, random, mode, watches: Vec::new() };
    let mut ledger = Ledger::new(model);
    let mut generator = Generator::new(seed, plan.mix.clone());
    for _ in 0..plan.lives {
        let states = run.live(&disk, &mut ledger, &mut generator);
        let (lines, fences) = disk.lines_and_fences();
        tally.memory.0.fetch_add(lines, Relaxed);
        tally.memory.1.fetch_add(fences, Relaxed);
        disk = run.come_back(&disk, &mut ledger, states);
        for watch in run.watches.drain(..) {
            watch.check();
            let (pages, records) = watch.checked();
            tally.watched.0.fetch_add(pages, Relaxed);
            tally.watched.1.fetch_add(records, Relaxed);
            tally.watched.2.fetch_add(watch.large_checked(), Relaxed);
            tally.watched.3.fetch_add(watch.roots_checked(), Relaxed);
        }
    }
}

/// Makes a disk with a database that holds these keyspaces and, for a `fill`, in the keyspace `main` a record for
/// every other of its keys.
///
/// # Panics
/// When the database refuses anything.
#[must_use]
pub fn prepare(
    product: &dyn Product,
    config: &Config,
    seed: u64,
    keyspaces: &[&str],
    fill: Option<&Mix>,
) -> (SimDisk, Model) {
    let disk = SimDisk::new(seed);
    let runtime = Runtime::stepped(seed);
    let database = product
        .open(Arc::new(disk.clone()), runtime.clone(), config)
        .expect("a new database opens");
    let mut model = Model::default();
    let mut carry_out = |op: &Op| {
        play(&*database, &runtime, op, &model).expect("nothing is wrong with the disk");
        runtime.step();
        effect(op, &model).apply(&mut model);
    };
    for name in keyspaces {
        carry_out(&Op::CreateKeyspace { name: (*name).into(), logged: true });
    }
    if let Some(mix) = fill {
        let mut generator = Generator::new(seed, mix.clone());
        for n in (0..mix.keys).step_by(2) {
            if mix.snapshots && n % 60 == 0 {
                // So that there is something in buffers on all levels as well as in leaves.
                let batches = [1, 1000, 2][n / 60 % 3];
                carry_out(&Op::SetDistance { keyspace: "main".into(), batches });
            }
            let key = Generator::key(mix.shape, n);
            let value = Some(generator.value());
            let write = crate::database::Write { keyspace: "main".into(), key, value };
            carry_out(&Op::Write { writes: vec![write], promise: Promise::Buffered });
        }
    }
    carry_out(&Op::Checkpoint);
    database.close().expect("nothing is wrong with the disk");
    (disk.crash(CrashMode::LoseAll), model)
}

impl Run<'_> {
    fn open(&mut self, disk: &SimDisk, runtime: &Runtime) -> Result<Box<dyn Database>, Error> {
        if let Some(watch) = self.product.watch() {
            disk.observe(watch.clone());
            self.watches.push(watch);
        }
        self.product.open(Arc::new(disk.clone()), runtime.clone(), &self.plan.config)
    }

    fn runtime(&mut self) -> Runtime {
        Runtime::stepped(self.random.next_u64())
    }

    /// Keeps one image in `one_in` steps, more in states that are rare.
    fn capture(&mut self, disk: &SimDisk, one_in: usize, state: &'static str) {
        let mode = self.mode;
        let random = Mutex::new(Random::new(self.random.next_u64(), 4));
        disk.capture_when(Arc::new(move |_, states| {
            let eager = states.iter().chain([&state]).map(|state| eagerness(state)).max();
            random.lock().one_in((one_in / eager.unwrap_or(1)).max(1)).then_some(mode)
        }));
    }

    /// Lives on `disk` until its power is cut. Answers the states that the cut struck.
    fn live(
        &mut self,
        disk: &SimDisk,
        ledger: &mut Ledger,
        generator: &mut Generator,
    ) -> Vec<&'static str> {
        let runtime = self.runtime();
        let database = self.open(disk, &runtime).expect("an image that was opened opens again");
        // About two steps an operation; the exact rate does not matter.
        let one_in = (self.plan.operations * 2 / self.plan.captures.max(1)).max(1);
        let last = self.random.within(1..self.plan.operations + self.plan.operations / 4);
        let mut snapshots = Snapshots::default();
        for number in 0..self.plan.operations {
            if number == last {
                disk.cut_power_at(disk.steps() + 1 + self.random.below(30) as u64);
            }
            let op = generator.next(ledger.now());
            let effect = effect(&op, ledger.now());
            ledger.begin(&effect);
            // Backups take as many steps as all else together, and compactions may.
            let is_long = matches!(op, Op::Backup | Op::Compact { .. });
            let rate = if is_long { one_in * 6 } else { one_in };
            self.capture(disk, rate, op_state(&op));
            trace(|| format!("{number} at step {}: {op:?}", disk.steps()));
            let before = database.states();
            let result = match &op {
                Op::Backup => database.backup(&self.plan.config.backup_path()),
                _ => snapshots
                    .play(&*database, &op, ledger.now())
                    .and_then(|()| play(&*database, &runtime, &op, ledger.now())),
            };
            for capture in disk.take_captures() {
                let states = [&capture.states[..], &[op_state(&op)], &before].concat();
                self.check_image(&capture.image, ledger, &states, 0);
            }
            match result.and_then(|()| power_is_on(disk)) {
                Ok(()) => {
                    acknowledge(&op, &effect, ledger);
                    if matches!(op, Op::Salvage) {
                        self.salvage(&disk.kill(), ledger);
                    }
                    if matches!(op, Op::Backup) {
                        // On a disk of its own, so that its steps are not those of this life.
                        let disk = Arc::new(disk.kill());
                        play::agree_with_backup(
                            self.product,
                            disk,
                            &self.plan.config,
                            ledger.now(),
                        );
                    }
                }
                Err(error) if disk.power_is_off() => {
                    drop(error);
                    let mut states = disk.states_at_power_cut();
                    states.push(op_state(&op));
                    states.extend(before);
                    return states;
                }
                Err(error) => panic!("{op:?} failed on a good disk: {error:?}"),
            }
        }
        snapshots.clear();
        // A life that met no cut ends by closing, and the power goes somewhere in that.
        disk.cut_power_at(disk.steps() + 1 + self.random.below(12) as u64);
        self.capture(disk, 10, CLOSE);
        let closed = database.close();
        for capture in disk.take_captures() {
            let states = [&capture.states[..], &[CLOSE]].concat();
            self.check_image(&capture.image, ledger, &states, 0);
        }
        match closed {
            Ok(()) => ledger.checkpointed(),
            Err(error) => assert!(disk.power_is_off(), "close failed on a good disk: {error:?}"),
        }
        let mut states = disk.states_at_power_cut();
        states.push(CLOSE);
        states
    }

    /// Salvages what a process that died would leave, and looks at crashes inside: the old database
    /// is as it was, and the new one whole, or it refuses to open.
    fn salvage(&mut self, disk: &SimDisk, ledger: &Ledger) {
        let (mode, random) = (self.mode, Mutex::new(Random::new(self.random.next_u64(), 7)));
        disk.capture_when(Arc::new(move |_, states| {
            let here = states.contains(&SALVAGE) && random.lock().one_in(3000);
            here.then_some(mode)
        }));
        let config = &self.plan.config;
        let to = config.salvage_path();
        let runtime = Runtime::stepped(self.random.next_u64());
        let saved = self.product.salvage(Arc::new(disk.clone()), runtime, config, &to);
        let Some(whole) = saved.expect("nothing is wrong with the disk") else { return };
        assert!(whole, "nothing is damaged, and something could not be saved");
        let captures = disk.take_captures();
        disk.capture_when(Arc::new(|_, _| None));
        let new = Config { path: to.clone(), ..config.clone() };
        let open = |disk: SimDisk| self.product.open(Arc::new(disk), Runtime::stepped(8), &new);
        drop(settled(ledger, &*open(disk.clone()).expect("what was saved opens")));
        for capture in &captures {
            let image = capture.image.kill();
            let begun = image.files().iter().any(|path| path.starts_with(&to));
            if begun && let Ok(database) = open(image) {
                drop(settled(ledger, &*database));
            }
        }
        for capture in captures {
            self.check_image(&capture.image, ledger, &capture.states, 1);
        }
    }

    /// Opens what the cut left, perhaps through more cuts, and settles the books on what is there.
    fn come_back(
        &mut self,
        disk: &SimDisk,
        ledger: &mut Ledger,
        states: Vec<&'static str>,
    ) -> SimDisk {
        self.tally.add(&states);
        // One in three is a process that dies: the next finds all that it wrote, none of which is
        // more durable than it was, and loses its power later.
        let dies = self.random.one_in(3);
        let mut image = if dies { disk.kill() } else { disk.crash(self.mode) };
        trace(|| format!("{} in {states:?}", if dies { "killed" } else { "power cut" }));
        let mut depth = 0;
        loop {
            if depth < 2 && self.random.one_in(2) {
                image.cut_power_at(1 + self.random.below(25) as u64);
            }
            let runtime = self.runtime();
            match self.open(&image, &runtime) {
                Ok(database) if !image.power_is_off() => {
                    image.cut_power_at(u64::MAX);
                    let model = settled(ledger, &*database);
                    // What recovery showed it must have made durable: nothing later may take it
                    // back.
                    let again = image.crash(CrashMode::LoseAll);
                    drop(database);
                    *ledger = if dies { ledger.after_kill(model) } else { Ledger::new(model) };
                    self.check_image(&again, ledger, &["after recovery"], 1);
                    return if dies { image.kill() } else { image.crash(CrashMode::KeepAll) };
                }
                Ok(_) => {}
                Err(error) if image.power_is_off() => drop(error),
                Err(error) => panic!("recovery failed on a good disk: {error:?}"),
            }
            self.tally.add(&recovery_states(image.states_at_power_cut(), depth));
            depth += 1;
            image = image.crash(self.mode);
        }
    }

    /// Opens an image and compares it with the promises; crashes of its recovery are checked as
    /// well.
    fn check_image(
        &mut self,
        image: &SimDisk,
        ledger: &Ledger,
        states: &[&'static str],
        depth: usize,
    ) {
        self.tally.add(states);
        trace(|| format!("check an image struck in {states:?}, depth {depth}"));
        if depth < 2 {
            let one_in = if depth == 0 { 60 } else { 30 };
            self.capture(image, one_in, RECOVERY);
        }
        let runtime = self.runtime();
        match self.open(image, &runtime) {
            Ok(database) => drop(settled(ledger, &*database)),
            Err(error) => panic!("recovery of {states:?} failed on a good disk: {error:?}"),
        }
        let captures = image.take_captures();
        for Capture { image, states, .. } in captures.into_iter().take(2) {
            self.check_image(&image, ledger, &recovery_states(states, depth), depth + 1);
        }
    }
}

/// Persistent memory does not say that the power is off, so an answer after that is none.
fn power_is_on(disk: &SimDisk) -> Result<(), Error> {
    if disk.power_is_off() { Err(SimDisk::power_cut()) } else { Ok(()) }
}

/// Checks an opened image and answers what it holds.
fn settled(ledger: &Ledger, database: &dyn Database) -> Model {
    let model = ledger.check(database).expect("nothing is wrong with the disk");
    database.verify().expect("nothing is wrong with the disk");
    model
}

fn recovery_states(mut states: Vec<&'static str>, depth: usize) -> Vec<&'static str> {
    states.push(if depth == 0 { RECOVERY } else { SECOND_RECOVERY });
    states
}

/// The state that an operation is by itself.
fn op_state(op: &Op) -> &'static str {
    match op {
        Op::CreateKeyspace { .. } => "keyspace create",
        Op::DropKeyspace { .. } => "keyspace drop",
        Op::Checkpoint => "explicit checkpoint",
        Op::Backup => "backup",
        Op::Compact { .. } => "compact",
        Op::BulkLoad { .. } => "bulk load",
        // "chi change" is what the engine does about it.
        Op::SetDistance { .. } => "set distance",
        Op::TakeSnapshot { .. } => "snapshot",
        Op::Step { .. } => "background",
        Op::SetMemory { .. } => "set memory",
        Op::Flush => "flush",
        _ => "operation",
    }
}

fn acknowledge(op: &Op, effect: &play::Effect, ledger: &mut Ledger) {
    let promise = match op {
        Op::Write { promise, .. } => *promise,
        _ => Promise::Sync,
    };
    ledger.acknowledge(effect, promise);
    match op {
        Op::Flush => ledger.flushed(),
        Op::Checkpoint | Op::Backup | Op::Compact { .. } => ledger.checkpointed(),
        _ => {}
    }
}

/// A configuration for simulated disks.
#[must_use]
pub fn config(memory_bytes: u64, log_bytes_max: u64) -> Config {
    let path = PathBuf::from("/db");
    Config { path, memory_bytes, log_bytes_max, assume_4k: false, knobs: &[] }
}
