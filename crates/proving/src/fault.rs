//! The fault test: one thing goes wrong at one call, for every call of a run in turn.
//!
//! What is held to: a call answers rightly or with a clear error of the kind that the fault
//! explains; reads go on after anything, those of snapshots too (`fault_views`); a full disk changes nothing and poisons nothing; a write
//! that answered an error has an unknown outcome, all others keep their promises, in the process,
//! after a kill and after a power loss; and damage on the media is never taken for data.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result, Runtime};
use spinney_io::sim::{CrashMode, Fault, SimDisk};

use crate::database::{Bytes, Config, Database, Product, Promise, Write};
use crate::fault_views::Views;
use crate::model::{Model, show, show_value};
use crate::ops::{Generator, Mix, Op};
use crate::play::{Effect, effect};
use crate::tier::{self, Random};

/// What fault runs start from.
#[derive(Clone, Debug)]
pub struct Start {
    /// A disk with a database, closed.
    pub disk: SimDisk,
    /// What it holds.
    pub model: Model,
    /// What operations are drawn from.
    pub mix: Mix,
    /// How it is opened.
    pub config: Config,
}

/// How wrong things may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The database got an error for the fault: it must keep every promise.
    Told,
    /// The media hold something else than was written: errors are allowed, and values that a key
    /// once had.
    Silent,
}

const OPERATIONS: usize = 120;

/// What each key may hold, as far as the answers tell.
#[derive(Clone)]
pub(crate) struct Books {
    /// Values that a key may have now; a key that is not named has the start's.
    possible: BTreeMap<(String, Bytes), Vec<Option<Bytes>>>,
    /// Values that a key ever had.
    ever: BTreeMap<(String, Bytes), Vec<Option<Bytes>>>,
    /// What the database holds as far as acknowledged.
    believed: Model,
    start: Model,
    /// Keyspaces whose creation or drop failed.
    doubtful: Vec<String>,
    /// Whether a write may be kept, in memory and later in the log, that was answered with `Full`: the log was refused
    /// room that it had before.
    keeps_refused: bool,
}

impl Books {
    fn new(model: &Model) -> Self {
        Books {
            possible: BTreeMap::new(),
            ever: BTreeMap::new(),
            believed: model.clone(),
            start: model.clone(),
            doubtful: Vec::new(),
            keeps_refused: false,
        }
    }

    fn first(&self, keyspace: &str, key: &[u8]) -> Option<Bytes> {
        self.start.get(keyspace, key).map(<[u8]>::to_vec)
    }

    fn ended(&mut self, effect: &Effect, result: &Result<()>) {
        let unchanged = matches!(result, Err(error) if error.is_full() && !self.keeps_refused);
        match effect {
            Effect::None => {}
            // One that a failed drop left in doubt may still be there with all it held.
            Effect::Create(name, _) if self.doubtful.contains(name) => {}
            Effect::Create(name, _) | Effect::Drop(name) => match result {
                Ok(()) => {
                    effect.apply(&mut self.believed);
                    self.possible.retain(|(keyspace, _), _| keyspace != name);
                    self.start.keyspaces.remove(name);
                    effect.apply(&mut self.start);
                }
                Err(_) => {
                    self.doubtful.push(name.clone());
                    // Nothing more is done with it, whichever way it went.
                    self.believed.keyspaces.remove(name);
                }
            },
            Effect::Writes(writes) => {
                for write in writes {
                    let first = self.first(&write.keyspace, &write.key);
                    let place = (write.keyspace.clone(), write.key.clone());
                    let ever =
                        self.ever.entry(place.clone()).or_insert_with(|| vec![first.clone()]);
                    ever.push(write.value.clone());
                    let possible = self.possible.entry(place).or_insert_with(|| vec![first]);
                    match result {
                        Ok(()) => *possible = vec![write.value.clone()],
                        Err(_) if unchanged => {}
                        Err(_) => possible.push(write.value.clone()),
                    }
                }
                if result.is_ok() {
                    self.believed.apply(writes);
                }
            }
        }
    }

    /// Panics unless `found` is a value that the key may have.
    pub(crate) fn check(
        &self,
        damage: Damage,
        keyspace: &str,
        key: &[u8],
        found: Option<&[u8]>,
        when: &str,
    ) {
        let place = (keyspace.to_owned(), key.to_vec());
        let values = if damage == Damage::Silent { &self.ever } else { &self.possible };
        let first = [self.first(keyspace, key)];
        let allowed = values.get(&place).map_or(&first[..], Vec::as_slice);
        assert!(
            allowed.iter().any(|value| value.as_deref() == found),
            "{when}: {keyspace} {} is {}, may be {}",
            show(key),
            show_value(found),
            allowed
                .iter()
                .map(|value| show_value(value.as_deref()))
                .collect::<Vec<_>>()
                .join(" or ")
        );
    }

    /// All keys of a keyspace that were ever there.
    pub(crate) fn keys(&self, keyspace: &str) -> Vec<Bytes> {
        let touched = self.ever.keys().filter(|(name, _)| name == keyspace);
        let keys = touched.map(|(_, key)| key.clone());
        let first = self.start.keyspaces.get(keyspace).into_iter();
        let first = first.flat_map(|keyspace| keyspace.records.keys().map(|key| key.to_vec()));
        keys.chain(first).collect()
    }

    /// Reads all keys and checks them, by point and by range.
    fn check_all(&self, database: &dyn Database, damage: Damage, when: &str) -> Vec<Error> {
        let mut errors = Vec::new();
        for (name, _) in database.keyspaces() {
            if !self.believed.keyspaces.contains_key(&name) {
                assert!(self.doubtful.contains(&name), "{when}: keyspace {name} came from nowhere");
                continue;
            }
            let mut all = BTreeMap::new();
            let mut whole = true;
            for item in database.range(&name, Bound::Unbounded, Bound::Unbounded) {
                match item {
                    Ok((key, value)) => {
                        self.check(damage, &name, &key, Some(&value), when);
                        all.insert(key, value);
                    }
                    Err(error) => {
                        errors.push(error);
                        whole = false;
                        break;
                    }
                }
            }
            for key in self.keys(&name) {
                if whole && damage == Damage::Told {
                    self.check(damage, &name, &key, all.get(&key).map(Vec::as_slice), when);
                }
                match database.get(&name, &key) {
                    Ok(found) => self.check(damage, &name, &key, found.as_deref(), when),
                    Err(error) => errors.push(error),
                }
            }
        }
        let there = database.keyspaces();
        for name in self.believed.keyspaces.keys() {
            assert!(
                there.iter().any(|(found, _)| found == name) || self.doubtful.contains(name),
                "{when}: keyspace {name} is gone"
            );
        }
        errors
    }
}

/// Carries out an operation and checks a read's answer.
fn carry_out(
    database: &dyn Database,
    runtime: &Runtime,
    op: &Op,
    books: &Books,
    damage: Damage,
) -> Result<()> {
    let when = format!("{op:?}");
    match op {
        Op::Get { keyspace, key } | Op::Contains { keyspace, key } => {
            let found = database.get(keyspace, key)?;
            books.check(damage, keyspace, key, found.as_deref(), &when);
        }
        Op::MultiGet { keyspace, keys } => {
            let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (key, found) in keys.iter().zip(database.multi_get(keyspace, &slices)?) {
                books.check(damage, keyspace, key, found.as_deref(), &when);
            }
        }
        Op::Range { keyspace, from, to, .. } | Op::Keys { keyspace, from, to, .. } => {
            for item in database.range(keyspace, from.clone(), to.clone()).take(100) {
                let (key, value) = item?;
                books.check(damage, keyspace, &key, Some(&value), &when);
            }
        }
        Op::ReadOften { keyspace, times } => {
            for _ in 0..*times {
                for item in database.range(keyspace, Bound::Unbounded, Bound::Unbounded) {
                    let (key, value) = item?;
                    books.check(damage, keyspace, &key, Some(&value), &when);
                }
            }
            (0..6).for_each(|_| _ = runtime.step());
        }
        Op::Write { writes, .. } => database.write(writes, Promise::Sync)?,
        Op::CompareAndSwap { keyspace, key, expected, new } => {
            // Unconditional here: the books know sets of values, not one.
            let _ = expected;
            let write = Write { keyspace: keyspace.clone(), key: key.clone(), value: new.clone() };
            database.write(&[write], Promise::Sync)?;
        }
        Op::Flush => database.flush()?,
        Op::Checkpoint => database.checkpoint()?,
        Op::Compact { keyspace, from, to } => database.compact(keyspace, from, to)?,
        Op::Verify => database.verify()?,
        Op::SetMemory { bytes } => database.set_memory(*bytes)?,
        Op::BulkLoad { keyspace, records } => database.bulk_load(keyspace, records)?,
        Op::CreateKeyspace { name, logged } => database.create_keyspace(name, *logged)?,
        Op::DropKeyspace { name } => database.drop_keyspace(name)?,
        Op::Step { pieces, millis } => {
            for _ in 0..*pieces {
                runtime.sleep(Duration::from_millis(*millis));
                runtime.step();
            }
        }
        Op::SetDistance { keyspace, batches } => {
            database.set_checkpoint_distance(keyspace, *batches)?;
            (0..3).for_each(|_| _ = runtime.step());
        }
        // Of the first three `Views` knows.
        Op::TakeSnapshot { .. }
        | Op::ReadSnapshot { .. }
        | Op::DropSnapshot { .. }
        | Op::Update { .. }
        | Op::Prefix { .. }
        | Op::Ends { .. }
        | Op::Backup
        | Op::Salvage
        | Op::Reopen { .. } => {}
    }
    Ok(())
}

/// The writes of an operation as [`carry_out`] makes them.
fn effect_of(op: &Op, believed: &Model) -> Effect {
    match op {
        Op::CompareAndSwap { keyspace, key, new, .. } => {
            let (keyspace, key) = (keyspace.clone(), key.clone());
            Effect::Writes(vec![Write { keyspace, key, value: new.clone() }])
        }
        Op::Update { .. } => Effect::None,
        _ => effect(op, believed),
    }
}

fn is_read(op: &Op) -> bool {
    matches!(
        op,
        Op::Get { .. }
            | Op::Contains { .. }
            | Op::MultiGet { .. }
            | Op::Range { .. }
            | Op::ReadOften { .. }
            | Op::Keys { .. }
            | Op::ReadSnapshot { .. }
    )
}

/// What errors of reads are explained by that no operation made.
fn read_of_key() -> Op {
    Op::Get { keyspace: String::new(), key: Bytes::new() }
}

fn read_of_snapshot() -> Op {
    let (from, to) = (Bound::Unbounded, Bound::Unbounded);
    Op::ReadSnapshot { which: 0, keys: Vec::new(), from, to, pulls: Vec::new() }
}

/// Panics when the fault does not explain the error.
fn check_error(op: &Op, error: &Error, fault: &Fault, struck: bool) {
    let full = matches!(fault, Fault::NoSpace { .. });
    let in_place = matches!(fault, Fault::NoSpaceInPlace { .. });
    let media = matches!(fault, Fault::LostWrite { .. } | Fault::MisdirectedWrite { .. });
    let right = match error.kind() {
        ErrorKind::Full => full || in_place,
        ErrorKind::Io => !full && !in_place,
        ErrorKind::Corruption => media || matches!(fault, Fault::ShortRead { .. }),
        ErrorKind::Poisoned => {
            let told = matches!(fault, Fault::WriteError { .. } | Fault::SyncError { .. });
            (media || told) && !is_read(op)
        }
        // A write that was refused may be there, and what it was written to is not empty.
        ErrorKind::InvalidArgument => in_place && matches!(op, Op::BulkLoad { .. }),
        // A keyspace that a failed creation left in doubt.
        ErrorKind::NotFound => matches!(op, Op::DropKeyspace { .. }),
        // Its memory was needed, and it could not be written out.
        ErrorKind::SnapshotTooOld => matches!(op, Op::ReadSnapshot { .. }),
        _ => false,
    };
    assert!(right && struck, "{fault:?} does not explain that {op:?} answered {error:?}");
}

fn open(
    product: &dyn Product,
    disk: &SimDisk,
    config: &Config,
    seed: u64,
) -> (Result<Box<dyn Database>>, Runtime) {
    let runtime = Runtime::stepped(seed);
    (product.open(Arc::new(disk.clone()), runtime.clone(), config), runtime)
}

/// What every run does at a place, however it is drawn: the checkpoints that all are about, snapshots that outlive one,
/// and a distance at which batches gather, until it is lowered and they are written at once.
fn fixed_op(number: usize, has_snapshots: bool) -> Option<Op> {
    let keyspace = || "main".to_owned();
    match number {
        40 | 100 => Some(Op::Checkpoint),
        20 | 30 | 60 if has_snapshots => Some(Op::TakeSnapshot { keyspace: keyspace() }),
        45 if has_snapshots => Some(Op::SetDistance { keyspace: keyspace(), batches: 1000 }),
        70 if has_snapshots => Some(Op::SetDistance { keyspace: keyspace(), batches: 1 }),
        _ => None,
    }
}

/// Runs a seed with one fault; `None` is a run without, to count its calls.
fn run(product: &dyn Product, start: &Start, seed: u64, fault: Option<&Fault>) -> SimDisk {
    let disk = start.disk.kill();
    tier::choose_medium(&disk, seed);
    if let Some(fault) = fault {
        disk.inject(fault.clone());
    }
    let quiet = Fault::NoSpace { at: 0 };
    let told = fault.unwrap_or(&quiet);
    let damage = match told {
        Fault::LostWrite { .. } | Fault::MisdirectedWrite { .. } => Damage::Silent,
        _ => Damage::Told,
    };
    let mut books = Books::new(&start.model);
    books.keeps_refused = matches!(told, Fault::NoSpaceInPlace { .. });
    let (opened, runtime) = open(product, &disk, &start.config, seed);
    match opened {
        Ok(database) => {
            let mut generator = Generator::new(seed, start.mix.clone());
            let mut views = Views::new(damage == Damage::Silent && product.rewrites_pages());
            for number in 0..OPERATIONS {
                let op = fixed_op(number, start.mix.snapshots);
                let op = op.unwrap_or_else(|| generator.next(&books.believed));
                let effect = effect_of(&op, &books.believed);
                let play = |views: &mut Views| {
                    let played = views.play(&*database, &op, &books, damage);
                    played.and_then(|()| carry_out(&*database, &runtime, &op, &books, damage))
                };
                let mut result = play(&mut views);
                if let (Err(error), Fault::NoDescriptor { .. }) = (&result, told) {
                    check_error(&op, error, told, disk.faults_struck() > 0);
                    // An open that failed has changed nothing.
                    result = play(&mut views);
                    assert!(result.is_ok(), "{op:?} with descriptors again: {result:?}");
                }
                if let Err(error) = &result {
                    check_error(&op, error, told, disk.faults_struck() > 0);
                }
                books.ended(&effect, &result);
            }
            let struck = || disk.faults_struck() > 0;
            let errors = views.check_all(damage, "at the end");
            errors.iter().for_each(|one| check_error(&read_of_snapshot(), one, told, struck()));
            let errors = books.check_all(&*database, damage, "at the end");
            errors.iter().for_each(|one| check_error(&read_of_key(), one, told, struck()));
            drop(views);
            drop(database);
        }
        Err(error) => check_error(&Op::Flush, &error, told, disk.faults_struck() > 0),
    }
    if disk.faults_struck() > 0 {
        for (image, when) in
            [(disk.kill(), "after a kill"), (disk.crash(CrashMode::LoseAll), "after a power loss")]
        {
            match open(product, &image, &start.config, seed).0 {
                Ok(database) => {
                    let errors = books.check_all(&*database, damage, when);
                    assert!(
                        damage == Damage::Silent || errors.is_empty(),
                        "{when} on a good disk: {errors:?}"
                    );
                    let verified = database.verify();
                    assert!(damage == Damage::Silent || verified.is_ok(), "{when}: {verified:?}");
                }
                Err(error) => assert!(
                    damage == Damage::Silent && error.is_corruption(),
                    "{when} the database does not open: {error:?}"
                ),
            }
        }
    }
    disk
}

/// Every fault that is reported, at every call of `rounds` runs.
///
/// # Panics
/// When a fault makes an answer wrong or loses what was acknowledged.
pub fn every_call(product: &dyn Product, start: &Start, rounds: u64) {
    for seed in tier::seeds(rounds) {
        let calm = run(product, start, seed, None);
        let mut faults = Vec::new();
        faults.extend(calls(calm.reads()).map(|at| Fault::ReadError { at }));
        faults.extend(calls(calm.reads()).step_by(3).map(|at| Fault::ShortRead { at }));
        faults.extend(calls(calm.writes()).map(|at| Fault::WriteError { at }));
        faults.extend(calls(calm.room_requests()).map(|at| Fault::NoSpace { at }));
        faults.extend(calls(calm.writes()).map(|at| Fault::NoSpaceInPlace { at }));
        faults.extend(calls(calm.syncs()).map(|at| Fault::SyncError { at }));
        faults.extend(calls(calm.opens()).map(|at| Fault::NoDescriptor { at }));
        for_each_fault(product, start, seed, &faults);
    }
}

/// Most calls of one sort that are struck in the quick tier; the full tier strikes all.
const CALLS_QUICK: u64 = 40;

/// The calls of one sort to strike, of so many.
fn calls(count: u64) -> impl Iterator<Item = u64> {
    let step = if tier::is_full() { 1 } else { count.div_ceil(CALLS_QUICK).max(1) };
    (1..=count).step_by(usize::try_from(step).unwrap_or(usize::MAX))
}

/// Every write of `rounds` runs lands elsewhere, in its own file or another.
///
/// # Panics
/// When damage is taken for data.
pub fn misdirect_every_write(product: &dyn Product, start: &Start, rounds: u64) {
    for seed in tier::seeds(rounds) {
        let calm = run(product, start, seed, None);
        let mut random = Random::new(seed, 8);
        let files = calm.files();
        let faults: Vec<Fault> = calls(calm.writes())
            .map(|at| {
                let path = random.one_in(2).then(|| random.pick(&files).clone());
                let offset = (random.below(40) * PAGE_BYTES) as u64;
                Fault::MisdirectedWrite { at, path, offset }
            })
            .collect();
        for_each_fault(product, start, seed, &faults);
    }
}

fn for_each_fault(product: &dyn Product, start: &Start, seed: u64, faults: &[Fault]) {
    let next = spinney_base::shim::atomic::AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, spinney_base::shim::atomic::Ordering::Relaxed);
            let Some(fault) = faults.get(index) else { return };
            let announce = AnnounceFault(seed, fault);
            run(product, start, seed, Some(fault));
            drop(announce);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

struct AnnounceFault<'a>(u64, &'a Fault);

impl Drop for AnnounceFault<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was {:?} with SPINNEY_SEED={}", self.1, self.0);
        }
    }
}

/// Every fault that is reported, at every call of making a database, its first keyspace and its first
/// record.
///
/// # Panics
/// When what is left does not open, or lacks what was acknowledged.
pub fn while_creating(product: &dyn Product, config: &Config) {
    let create = |fault: Option<&Fault>| {
        let disk = SimDisk::new(3);
        if let Some(fault) = fault {
            disk.inject(fault.clone());
        }
        let write = [Write {
            keyspace: "main".into(),
            key: b"key".to_vec(),
            value: Some(b"value".to_vec()),
        }];
        let result = open(product, &disk, config, 3).0.and_then(|database| {
            database.create_keyspace("main", true)?;
            database.write(&write, Promise::Sync)
        });
        if let (Err(error), Some(fault)) = (&result, fault) {
            check_error(&Op::Flush, error, fault, disk.faults_struck() > 0);
        }
        for image in [disk.kill(), disk.crash(CrashMode::LoseAll)] {
            let after = || format!("after {fault:?} and {result:?}");
            let database = open(product, &image, config, 4).0;
            let database = database.unwrap_or_else(|error| panic!("{}: {error:?}", after()));
            let named = database.keyspaces().len() == 1;
            let found = named.then(|| database.get("main", b"key").expect("a good disk")).flatten();
            let right = found.as_deref() == Some(b"value") || (result.is_err() && found.is_none());
            assert!(right, "{}: {found:?}", after());
            database.create_keyspace("main", true).expect("a good disk");
            database.write(&write, Promise::Sync).expect("a good disk");
            database.verify().expect("a good disk");
        }
        disk
    };
    let calm = create(None);
    let faults = (1..=calm.reads()).map(|at| Fault::ReadError { at });
    let faults = faults.chain((1..=calm.writes()).map(|at| Fault::WriteError { at }));
    let faults = faults.chain((1..=calm.writes()).map(|at| Fault::NoSpaceInPlace { at }));
    let faults = faults.chain((1..=calm.room_requests()).map(|at| Fault::NoSpace { at }));
    let faults = faults.chain((1..=calm.syncs()).map(|at| Fault::SyncError { at }));
    let faults = faults.chain((1..=calm.opens()).map(|at| Fault::NoDescriptor { at }));
    faults.for_each(|fault| drop(create(Some(&fault))));
}

/// One bit flipped in every page of every file of a closed database, a page at a time.
///
/// # Panics
/// When damage is taken for data, or is reported without its file, or when no damage at all is found.
pub fn flip_every_block(product: &dyn Product, start: &Start, rounds: u64) {
    for seed in tier::seeds(rounds) {
        let announce = tier::Announce(seed);
        let mut random = Random::new(seed, 11);
        let mut found: BTreeMap<PathBuf, (u64, u64)> = BTreeMap::new();
        for path in start.disk.files() {
            let bytes = start.disk.contents(&path).expect("the file is there");
            for page in 0..bytes.len().div_ceil(PAGE_BYTES) {
                let image = start.disk.kill();
                let within = random.below(PAGE_BYTES.min(bytes.len() - page * PAGE_BYTES));
                let offset = (page * PAGE_BYTES + within) as u64;
                let bit = u8::try_from(random.below(8)).expect("a small number");
                image.flip_bit(&path, offset, bit).expect("the file is there");
                let when = format!("bit {bit} of byte {offset} of {} flipped", path.display());
                let batches = [1, 1000][page % 2];
                let noticed = flipped(product, start, &image, (seed, batches), &when);
                let count = found.entry(path.clone()).or_default();
                count.0 += 1;
                count.1 += u64::from(noticed);
            }
        }
        println!("pages with a flipped bit, and noticed, by file: {found:#?}");
        assert!(found.values().any(|(_, noticed)| *noticed > 0));
        drop(announce);
    }
}

/// Opens and reads a damaged image, and writes to it at a checkpoint distance of this many batches. Answers whether the damage was
/// reported.
fn flipped(
    product: &dyn Product,
    start: &Start,
    image: &SimDisk,
    (seed, batches): (u64, u64),
    when: &str,
) -> bool {
    let books = Books::new(&start.model);
    let told = |error: &Error| {
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::Corruption | ErrorKind::Unsupported),
            "{when}: {error:?} is not what damage is called"
        );
    };
    let (opened, runtime) = open(product, image, &start.config, seed);
    match opened {
        Ok(database) => {
            let errors = books.check_all(&*database, Damage::Told, when);
            errors.iter().for_each(told);
            let verified = database.verify();
            verified.as_ref().err().into_iter().for_each(told);
            if !errors.is_empty() && verified.is_ok() {
                // The background may have remade a leaf whose index alone was damaged: it reads
                // what the index is made from. Then all is there again.
                let still = books.check_all(&*database, Damage::Told, when);
                assert!(still.is_empty(), "{when}: verify missed it: {still:?}");
            }
            if start.mix.snapshots {
                let errors = write_over(&*database, &runtime, start, (books, batches), when);
                errors.iter().for_each(told);
            }
            verified.is_err() || !errors.is_empty()
        }
        Err(error) => {
            told(&error);
            true
        }
    }
}

/// Writes to a damaged database, at a short or a long checkpoint distance, so that what is damaged is merged with it at
/// once or later; beside a snapshot of before. Answers the errors.
fn write_over(
    database: &dyn Database,
    runtime: &Runtime,
    start: &Start,
    (mut books, batches): (Books, u64),
    when: &str,
) -> Vec<Error> {
    let mut views = Views::new(false);
    let mut errors = Vec::new();
    errors.extend(views.take(database, "main", &books).err());
    errors.extend(database.set_checkpoint_distance("main", batches).err());
    for number in (0..start.mix.keys).step_by(40) {
        let key = Generator::key(start.mix.shape, number);
        let value = (number % 3 > 0).then(|| vec![b'n'; 300]);
        let writes = vec![Write { keyspace: "main".into(), key, value }];
        let result = database.write(&writes, Promise::Buffered);
        books.ended(&Effect::Writes(writes), &result);
        errors.extend(result.err());
    }
    (0..10).for_each(|_| _ = runtime.step());
    errors.extend(database.set_checkpoint_distance("main", 1).err());
    (0..10).for_each(|_| _ = runtime.step());
    errors.extend(books.check_all(database, Damage::Told, when));
    errors.extend(views.check_all(Damage::Told, when));
    errors.extend(database.checkpoint().err());
    errors.extend(books.check_all(database, Damage::Told, when));
    errors.extend(views.check_all(Damage::Told, when));
    errors
}

/// The disk fills up: writes say so and change nothing, reads and removals go on, and writes go on
/// when room returns.
///
/// # Panics
/// When something is lost or writing does not come back.
pub fn fill_up(product: &dyn Product, start: &Start) {
    let disk = start.disk.kill();
    let used: usize =
        disk.files().iter().map(|path| disk.contents(path).expect("it is there").len()).sum();
    disk.set_capacity(Some(used as u64 + (1 << 20)));
    let mut books = Books::new(&start.model);
    let (opened, runtime) = open(product, &disk, &start.config, 1);
    let mut database = opened.expect("there is room for a little");
    let mut generator = Generator::new(1, start.mix.clone());
    let mut put = |database: &dyn Database, books: &mut Books, number: usize| {
        let key = format!("fill-{number:06}").into_bytes();
        let mut value = generator.value();
        value.resize(1000, b'.');
        let write = Write { keyspace: "main".into(), key, value: Some(value) };
        let result = database.write(std::slice::from_ref(&write), Promise::Sync);
        runtime.step();
        books.ended(&Effect::Writes(vec![write]), &result);
        result
    };
    let (mut fulls, mut views) = (0, Views::new(false));
    for number in 0..4000 {
        if start.mix.snapshots && number % 90 == 50 {
            views.take(&*database, "main", &books).expect("it needs no room");
            let batches = [1, 1000][number % 4 / 2];
            database.set_checkpoint_distance("main", batches).expect("it has one");
        }
        match put(&*database, &mut books, number) {
            Ok(()) => {}
            Err(error) => {
                assert!(error.is_full(), "a full disk is {error:?}");
                fulls += 1;
                if fulls == 50 {
                    break;
                }
            }
        }
    }
    assert!(fulls == 50, "the disk never filled up");
    assert!(books.check_all(&*database, Damage::Told, "on a full disk").is_empty());
    let ended = views.check_all(Damage::Told, "on a full disk");
    let named = |error: &Error| error.kind() == ErrorKind::SnapshotTooOld;
    assert!(ended.iter().all(named), "a snapshot on a full disk is {ended:?}");
    drop(views);
    drop(database);
    let image = disk.kill();
    let (opened, runtime) = open(product, &image, &start.config, 2);
    database = opened.expect("a full disk opens");
    assert!(books.check_all(&*database, Damage::Told, "reopened on a full disk").is_empty());
    image.set_capacity(None);
    for number in 5000..5100 {
        let key = format!("fill-{number:06}").into_bytes();
        let write = Write { keyspace: "main".into(), key, value: Some(vec![b'x'; 500]) };
        let result = database.write(std::slice::from_ref(&write), Promise::Sync);
        runtime.step();
        books.ended(&Effect::Writes(vec![write]), &result);
        result.expect("room has returned");
    }
    database.checkpoint().expect("room has returned");
    assert!(books.check_all(&*database, Damage::Told, "with room again").is_empty());
    database.verify().expect("room has returned");
}
