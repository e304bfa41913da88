//! Blind puts of cold keys, with and without a snapshot: pages that are read for each put.
//!
//! Two databases get the same puts, one of them under snapshots, because what a put reads changes with the
//! number of puts: on `turtle` it grows threefold until leaves have their shape. Puts come in rounds. Each
//! ends with a checkpoint, so reads that a write-back owes are counted with their puts; a snapshot is held
//! for a round and read at its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use spinney::{Snapshot, purposes};
use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::size::display_bytes;

use super::world::{ConflictsPlan, Finding, World, float, in_a_database};

/// Rounds of puts that are counted.
const ROUNDS: u64 = 3;

/// Records that are read from a snapshot at its end.
const LOOKS: u64 = 200;

/// What puts cost.
#[derive(Default)]
struct Cost {
    puts: u64,
    /// Bytes, by purpose.
    read: BTreeMap<&'static str, u64>,
    written: u64,
    seconds: f64,
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.puts += other.puts;
        for (purpose, bytes) in other.read {
            *self.read.entry(purpose).or_default() += bytes;
        }
        self.written += other.written;
        self.seconds += other.seconds;
    }

    fn pages_read(&self) -> f64 {
        self.pages(self.read.values().sum())
    }

    /// Pages for each put.
    fn pages(&self, bytes: u64) -> f64 {
        float(bytes) / PAGE_BYTES as f64 / float(self.puts.max(1))
    }

    fn text(&self) -> String {
        let by_purpose = self.read.iter().map(|(name, bytes)| (name, self.pages(*bytes)));
        let much = by_purpose.filter(|(_, pages)| *pages >= 0.0001);
        let purposes: Vec<String> =
            much.map(|(name, pages)| format!("{name} {pages:.4}")).collect();
        format!(
            "{:.4} pages read ({}) and {} written per put, {:.0} puts/s",
            self.pages_read(),
            purposes.join(", "),
            display_bytes(self.written / self.puts.max(1)),
            float(self.puts) / self.seconds.max(1e-9),
        )
    }
}

struct Puts<'a> {
    world: &'a World<'a>,
    /// Version of each record; only the thread of its key changes it.
    versions: Vec<AtomicU32>,
}

fn index(key: u64) -> usize {
    usize::try_from(key).expect("it fits in memory")
}

impl Puts<'_> {
    /// Puts random keys of one thread.
    fn put(&self, thread: u64, round: u64, puts: u64) -> Result<()> {
        let world = self.world;
        let threads = world.plan.threads as u64;
        let mine = world.plan.records / threads;
        let mut random = world.random(thread + (round << 16));
        for _ in 0..puts {
            world.go_on()?;
            let key = (random.next_u64() % mine) * threads + thread;
            let version = &self.versions[index(key)];
            let next = version.load(SeqCst) + 1;
            world.main.insert(key.to_be_bytes(), world.value(key, next.into()))?;
            version.store(next, SeqCst);
        }
        Ok(())
    }

    /// Runs a round. Returns what it cost, and whether the snapshot, if there was one, was right.
    fn round(&self, round: u64, puts: u64, with_snapshot: bool) -> Result<(Cost, bool)> {
        let world = self.world;
        let threads = world.plan.threads as u64;
        let snapshot = with_snapshot.then(|| world.main.snapshot()).transpose()?;
        let then: Vec<u32> = match snapshot {
            Some(_) => self.versions.iter().map(|version| version.load(SeqCst)).collect(),
            None => Vec::new(),
        };
        let (io, begun) = (world.db.stats().io, world.time.now());
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(move || self.put(thread, round, puts / threads)))
                .collect();
            writers
                .into_iter()
                .try_for_each(|writer| writer.join().expect("a writer did not panic"))
        })?;
        world.db.checkpoint()?;
        let after = world.db.stats().io;
        let mut cost = Cost {
            puts: puts / threads * threads,
            seconds: world.time.now().saturating_sub(begun).as_secs_f64(),
            ..Cost::default()
        };
        for purpose in purposes() {
            let [from, to] = [&io, &after].map(|io| io.by_purpose[purpose.index()]);
            *cost.read.entry(purpose.name()).or_default() += to.read_bytes - from.read_bytes;
            cost.written += to.write_bytes - from.write_bytes;
        }
        let is_right = match snapshot {
            Some(snapshot) => self.is_as_then(&snapshot, &then, round)?,
            None => true,
        };
        Ok((cost, is_right))
    }

    /// Whether records of a snapshot are what they were.
    fn is_as_then(&self, snapshot: &Snapshot, then: &[u32], round: u64) -> Result<bool> {
        let mut random = self.world.random((1 << 20) + round);
        for _ in 0..LOOKS {
            self.world.go_on()?;
            let key = random.next_u64() % self.world.plan.records;
            let expected = self.world.value(key, then[index(key)].into());
            if snapshot.get(key.to_be_bytes())?.is_none_or(|value| *value != *expected) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Loads, puts as many records as there are, and then counts the rounds one by one.
fn rounds(world: &World<'_>, with_snapshot: bool) -> Result<(Vec<Cost>, bool)> {
    world.load()?;
    let records = world.plan.records;
    let puts = Puts { world, versions: (0..records).map(|_| AtomicU32::new(0)).collect() };
    // Caches fill.
    puts.round(0, records, false)?;
    let (mut costs, mut is_right) = (Vec::new(), true);
    for round in 1..=ROUNDS {
        let (cost, was_right) = puts.round(round, records / 4, with_snapshot)?;
        costs.push(cost);
        is_right &= was_right;
    }
    Ok((costs, is_right))
}

fn sum(costs: Vec<Cost>) -> Cost {
    let mut all = Cost::default();
    costs.into_iter().for_each(|cost| all.add(cost));
    all
}

/// How much more the second is than the first, in percent.
fn more(none: &Cost, live: &Cost) -> String {
    format!("{:+.2} %", 100.0 * (live.pages_read() / none.pages_read().max(1e-9) - 1.0))
}

pub(super) fn run(plan: &ConflictsPlan) -> Result<Finding> {
    let bytes = plan.records * plan.record_size as u64;
    let memory = bytes / 4;
    let (none, _) = in_a_database(plan, memory, |world| rounds(world, false))?;
    let (live, is_right) = in_a_database(plan, memory, |world| rounds(world, true))?;
    let each: Vec<String> = none.iter().zip(&live).map(|(none, live)| more(none, live)).collect();
    let (none, live) = (sum(none), sum(live));
    let text = format!(
        "with one live snapshot {} pages read per put (rounds: {}); none: {}; one: {}; {} puts each, {} of records in {}",
        more(&none, &live),
        each.join(", "),
        none.text(),
        live.text(),
        none.puts,
        display_bytes(bytes),
        display_bytes(memory),
    );
    Ok(Finding { text, is_right })
}
