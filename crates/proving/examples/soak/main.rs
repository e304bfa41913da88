//! A soak: random faults of every kind at once on small databases, world after world, until the time
//! is over.
//!
//! ```text
//!   cargo run --release -p spinney-proving --example soak -- SECONDS [SEED]
//!   cargo run --release -p spinney-proving --example soak -- 0 SEED      # one world, for a replay
//! ```
//!
//! A world is one seed: a simulated disk, a stepped runtime, and one database that lives several
//! lives. Operations are drawn in `world`, faults are thrown and taken back between and inside of
//! them, and `books` know what each key may hold. A world that fails prints its seed, and the
//! program ends with 1. `SPINNEY_TRACE=1` tells the story of a world.
//!
//! What is thrown:
//! * room: the disk is cut to what is used and a few KiB, some are disks that copy on write;
//! * descriptors: the n-th open fails;
//! * kills and power losses, between operations, inside of them and inside of recoveries;
//! * flipped bits: in one copy of a pair, in other pages, in the log;
//! * a read, a write or a sync that fails once.

mod books;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::Runtime;
use spinney_base::runtime::Next;
use spinney_base::shim::Mutex;

use world::World;

/// Seconds without an argument.
const SECONDS: u64 = 60;
/// After so many worlds every kind of fault must have been thrown.
const ENOUGH_WORLDS: u64 = 100;
/// A world that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(180);

/// How often each kind of fault was thrown, and how often somebody noticed.
#[derive(Default)]
pub(crate) struct Tally {
    faults: BTreeMap<&'static str, (u64, u64)>,
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn throw(&mut self, kind: &'static str) {
        self.faults.entry(kind).or_default().0 += 1;
    }

    pub(crate) fn notice(&mut self, kind: &'static str) {
        self.faults.entry(kind).or_default().1 += 1;
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn print(&self, worlds: u64) {
        println!("\n{:28} {:>9} {:>9}", "fault", "thrown", "noticed");
        for (kind, (thrown, noticed)) in &self.faults {
            println!("{kind:28} {thrown:9} {noticed:9}");
        }
        println!("\n{:28} {worlds:9}", "worlds");
        for (what, count) in &self.counts {
            println!("{what:28} {count:9}");
        }
    }
}

/// Ends the program when a world hangs: what waits in a stepped runtime without helping waits forever.
fn watch(clock: &Runtime, current: &Arc<Mutex<(u64, Duration)>>) -> Result<(), spinney::Error> {
    let (clock, current) = (clock.clone(), current.clone());
    let watching = clock.clone();
    watching.spawn_alone("watchdog", move || {
        let (seed, since) = *current.lock();
        if clock.now() > since + LONGEST {
            eprintln!("world {seed} hangs: replay it with `soak 0 {seed}`");
            std::process::exit(1);
        }
        Next::Wait(Duration::from_secs(1))
    })?;
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Ok(seconds), first) = (arguments.next().unwrap_or(Ok(SECONDS)), arguments.next()) else {
        eprintln!("soak [SECONDS] [SEED]");
        return ExitCode::from(2);
    };
    let clock = Runtime::threads();
    let first = match first {
        Some(Ok(seed)) => seed,
        Some(Err(error)) => {
            eprintln!("the seed: {error}");
            return ExitCode::from(2);
        }
        None => clock.random() % 1_000_000_000,
    };
    let current = Arc::new(Mutex::new((first, clock.now())));
    if let Err(error) = watch(&clock, &current) {
        eprintln!("{error}");
        return ExitCode::from(2);
    }
    let mut tally = Tally::default();
    for kind in world::KINDS {
        tally.faults.insert(kind, (0, 0));
    }
    let end = clock.now() + Duration::from_secs(seconds);
    let mut worlds = 0;
    for seed in first.. {
        *current.lock() = (seed, clock.now());
        let ran = catch_unwind(AssertUnwindSafe(|| World::new(seed, &mut tally).run()));
        worlds += 1;
        match ran {
            Ok(told) => println!("world {seed}: {told}"),
            Err(_) => {
                tally.print(worlds);
                println!("world {seed} failed: replay it with `soak 0 {seed}`");
                return ExitCode::FAILURE;
            }
        }
        if clock.now() >= end {
            break;
        }
    }
    tally.print(worlds);
    let never = tally.faults.iter().filter(|(_, (thrown, _))| *thrown == 0).map(|(kind, _)| *kind);
    let never: Vec<_> = never.collect();
    if worlds >= ENOUGH_WORLDS && !never.is_empty() {
        println!("never thrown in {worlds} worlds: {}", never.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
