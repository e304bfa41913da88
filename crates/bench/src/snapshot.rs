//! A snapshot read whole beside writers: is it what was there when it was taken, what does it keep, and
//! how long does taking one last?
//!
//! A model knows the version of every record: each thread owns the keys that leave its number when
//! divided by the number of threads, and counts its updates of each. While the first snapshot is taken
//! the writers rest, so the versions of that moment are known; then all of them go on while it is read.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use hdrhistogram::Histogram;
use spinney::{Db, Durability, EngineKind, ErrorKind, Keyspace, Options, PreImageStats};
use spinney_base::limits::MEMORY_BYTES_MIN;
use spinney_base::runtime::SplitMix;
use spinney_base::shim::RwLock;
use spinney_base::size::display_bytes;
use spinney_base::{Error, Result, Runtime};

use crate::distribution::{Distribution, Zipf};
use crate::parent::{Interrupted, OwnDirectory, interrupted};

/// Bytes of a key.
const KEY_BYTES: usize = 8;

/// Longest time of a histogram: a minute.
const NANOS_MAX: u64 = 60_000_000_000;

/// Records that are read between two looks at the memory in use.
const LOOK_EVERY: u64 = 4096;

/// Poll interval for the end of a run that sleeps.
const NAP: Duration = Duration::from_millis(50);

/// What is run.
#[derive(Clone, Debug)]
pub struct SnapshotPlan {
    /// The engine.
    pub engine: EngineKind,
    /// Number of records.
    pub records: u64,
    /// Bytes of key and value, from 16.
    pub record_size: usize,
    /// Threads that write.
    pub threads: usize,
    /// The memory budget in bytes.
    pub memory: u64,
    /// Which records are updated: uniform or zipfian.
    pub distribution: Distribution,
    /// Exponent of the Zipf law.
    pub theta: f64,
    /// How many snapshots are taken for their times.
    pub takes: u64,
    /// Seconds of updates before each measurement, and of updates without a snapshot.
    pub seconds: f64,
    /// An existing directory for the files, which are removed at the end.
    pub directory: PathBuf,
    /// Seed of the random choices.
    pub seed: u64,
    /// Asked whether to end early.
    pub interrupted: Interrupted,
}

impl SnapshotPlan {
    /// Checks the numbers.
    ///
    /// # Errors
    /// `InvalidArgument` naming the one that is out of range.
    pub fn check(&self) -> Result<()> {
        let rules = [
            (self.directory.is_dir(), "--dir: there is no such directory"),
            ((1..=1024).contains(&self.threads), "--threads must be 1 to 1024"),
            (self.records >= self.threads as u64, "--records must be at least --threads"),
            // The version of each record is kept in memory.
            (self.records < 1 << 32, "--records must be below 2^32"),
            (
                (2 * KEY_BYTES..=1 << 20).contains(&self.record_size),
                "--record-size must be 16 bytes to 1MiB",
            ),
            (self.theta > 0.0 && self.theta <= 10.0, "--theta must be above 0 and at most 10"),
            (self.seconds > 0.0 && self.seconds < 1e6, "--seconds must be above 0"),
            (self.memory >= MEMORY_BYTES_MIN, "--memory must be at least 1MiB"),
            (
                self.distribution != Distribution::Latest,
                "--distribution of bench snapshot is uniform or zipfian",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }
}

struct World<'a> {
    plan: &'a SnapshotPlan,
    db: Db,
    main: Keyspace,
    versions: Vec<AtomicU32>,
    zipf: Zipf,
    /// Writers hold it shared for each update.
    resting: RwLock<()>,
    done: AtomicBool,
    updates: AtomicU64,
    time: Runtime,
}

/// The value of a version of a record.
fn fill(key: u64, version: u32, value: &mut [u8]) {
    let mut random = SplitMix(key ^ (u64::from(version) << 40));
    for word in value.chunks_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes()[..word.len()]);
    }
}

impl World<'_> {
    fn value_bytes(&self) -> usize {
        self.plan.record_size - KEY_BYTES
    }

    fn load(&self) -> Result<()> {
        let keys = (0..self.plan.records).take_while(|_| !(self.plan.interrupted)());
        let records = keys.map(|key| {
            let mut value = vec![0; self.value_bytes()];
            fill(key, 0, &mut value);
            (key.to_be_bytes(), value)
        });
        self.main.bulk_load(records)?;
        self.go_on()
    }

    /// Ends a run that was interrupted, or in which a writer failed: its error comes first.
    fn go_on(&self) -> Result<()> {
        let is_over = (self.plan.interrupted)() || self.done.load(SeqCst);
        if is_over { Err(interrupted("the run was interrupted")) } else { Ok(()) }
    }

    /// Sleeps in short pieces.
    fn sleep(&self, time: Duration) -> Result<()> {
        let end = self.time.now() + time;
        loop {
            self.go_on()?;
            let left = end.saturating_sub(self.time.now());
            if left.is_zero() {
                return Ok(());
            }
            self.time.sleep(left.min(NAP));
        }
    }

    /// Updates records of one thread until the run is done.
    fn write(&self, thread: u64) -> Result<()> {
        let mut random = SplitMix(self.plan.seed ^ (thread << 32));
        let threads = self.plan.threads as u64;
        let mine = self.plan.records / threads;
        let mut value = vec![0; self.value_bytes()];
        while !self.done.load(SeqCst) {
            let rank = match self.plan.distribution {
                Distribution::Zipfian => self.zipf.rank(&mut random) - 1,
                _ => random.next_u64() % mine,
            };
            // Favourites lie scattered.
            let place = rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % mine;
            let key = place * threads + thread;
            let _working = self.resting.read();
            let version = &self.versions[usize::try_from(key).expect("an index")];
            let next = version.load(SeqCst) + 1;
            fill(key, next, &mut value);
            self.main.insert(key.to_be_bytes(), &value)?;
            version.store(next, SeqCst);
            self.updates.fetch_add(1, SeqCst);
        }
        Ok(())
    }

    fn rest(&self) -> Result<()> {
        self.sleep(Duration::from_secs_f64(self.plan.seconds))
    }

    /// Updates in a second since `from`, which is a moment and the updates so far.
    #[expect(clippy::cast_precision_loss, reason = "a rate with three digits")]
    fn rate(&self, from: (Duration, u64)) -> f64 {
        let seconds = self.time.now().saturating_sub(from.0).as_secs_f64();
        (self.updates.load(SeqCst) - from.1) as f64 / seconds.max(1e-9)
    }

    fn mark(&self) -> (Duration, u64) {
        (self.time.now(), self.updates.load(SeqCst))
    }

    /// Reads a snapshot whole. Returns whether it is right: what was there, or ended at its bound.
    fn read_whole(&self, out: &mut dyn Write) -> Result<bool> {
        let (snapshot, then) = {
            let _nobody_writes = self.resting.write();
            let then: Vec<u32> = self.versions.iter().map(|one| one.load(SeqCst)).collect();
            (self.main.snapshot()?, then)
        };
        let begun = self.mark();
        let (mut count, mut memory, mut kept) = (0_u64, 0, PreImageStats::default());
        let mut expected = vec![0; self.value_bytes()];
        let mut ended = None;
        for record in &snapshot {
            let (key, value) = match record {
                Ok(record) => record,
                Err(error) if error.kind() == ErrorKind::SnapshotTooOld => {
                    ended = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            let version = then.get(usize::try_from(count).expect("an index")).copied();
            fill(count, version.unwrap_or_default(), &mut expected);
            if key != count.to_be_bytes() || *value != *expected {
                writeln!(out, "WRONG: record {count} is not what it was").map_err(write_error)?;
                return Ok(false);
            }
            count += 1;
            if count % LOOK_EVERY == 0 {
                self.go_on()?;
                memory = memory.max(self.db.stats().memory_used);
                kept = self.main.stats().pre_images;
            }
        }
        let seconds = self.time.now().saturating_sub(begun.0).as_secs_f64();
        let text = match &ended {
            None if count == self.plan.records => format!("all {count} records as they were"),
            None => format!("WRONG: {count} of {} records", self.plan.records),
            Some(error) => format!("ended after {count} records, all as they were: {error}"),
        };
        let PreImageStats { links, marks, memory_bytes, run_bytes, spills, resolved, .. } = kept;
        writeln!(
            out,
            "read whole in {seconds:.1} s: {text}\n  beside {:.0} updates/s; kept at the end: {links} values and {marks} marks in {}, {} on disk ({spills} spills, {resolved} read by write-backs)\n  most memory in use: {} of {}",
            self.rate(begun),
            display_bytes(memory_bytes),
            display_bytes(run_bytes),
            display_bytes(memory),
            display_bytes(self.plan.memory),
        )
        .map_err(write_error)?;
        Ok(ended.is_some() || count == self.plan.records)
    }

    /// Takes snapshots beside the writers, and drops each.
    fn take_many(&self, out: &mut dyn Write) -> Result<()> {
        let mut times: Histogram<u64> =
            Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("three digits");
        let pause = Duration::from_secs_f64(self.plan.seconds / self.plan.takes.max(1) as f64);
        for _ in 0..self.plan.takes {
            let begun = self.time.now();
            let snapshot = self.db.snapshot()?;
            let taken = self.time.now().saturating_sub(begun);
            times.saturating_record(u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX));
            self.sleep(pause)?;
            drop(snapshot);
        }
        let at = |quantile: f64| Duration::from_nanos(times.value_at_quantile(quantile));
        writeln!(
            out,
            "taken {} times: median {:?}, 99 in 100 within {:?}, longest {:?}",
            self.plan.takes,
            at(0.5),
            at(0.99),
            Duration::from_nanos(times.max()),
        )
        .map_err(write_error)
    }
}

fn write_error(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

/// Runs the plan and prints what was found. Returns whether the snapshot was right.
///
/// # Errors
/// Of the database, and of `out`.
pub fn run(plan: &SnapshotPlan, out: &mut dyn Write) -> Result<bool> {
    plan.check()?;
    let directory = OwnDirectory::create(&plan.directory, false)?;
    let options = Options::default().memory(plan.memory).durability(Durability::Buffered);
    let db = Db::open(directory.path.join("db"), options)?;
    let main = db.keyspace("main", plan.engine)?;
    let world = World {
        plan,
        db,
        main,
        versions: (0..plan.records).map(|_| AtomicU32::new(0)).collect(),
        zipf: Zipf::new(plan.records / plan.threads as u64, plan.theta),
        resting: RwLock::new(()),
        done: AtomicBool::new(false),
        updates: AtomicU64::new(0),
        time: Runtime::threads(),
    };
    drive(&world, out)
}

fn drive(world: &World<'_>, out: &mut dyn Write) -> Result<bool> {
    world.load()?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..world.plan.threads as u64)
            .map(|thread| {
                scope.spawn(move || {
                    world.write(thread).inspect_err(|_| world.done.store(true, SeqCst))
                })
            })
            .collect();
        let measure = |out: &mut dyn Write| {
            world.rest()?;
            let begun = world.mark();
            world.rest()?;
            writeln!(out, "no snapshot: {:.0} updates/s", world.rate(begun))
                .map_err(write_error)?;
            let right = world.read_whole(out)?;
            world.take_many(out)?;
            Ok(right)
        };
        let right = measure(out);
        world.done.store(true, SeqCst);
        for writer in writers {
            writer.join().expect("a writer did not panic")?;
        }
        right
    })
}
