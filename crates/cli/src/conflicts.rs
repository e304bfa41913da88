//! `spinney bench conflicts`: conflicts of transactions, counted case by case.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use spinney::EngineKind;
use spinney_bench::conflicts::{self, ConflictsPlan};

use crate::bench_engines::outcome;
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::output::stdout;
use crate::sizes;

#[derive(Debug, Args)]
pub(crate) struct ConflictsArguments {
    /// Engines to measure, in this order [default: all of ours]
    #[arg(long, value_delimiter = ',')]
    engines: Vec<EngineKind>,
    /// Number of records to load, at least 100K (500K, 16M)
    #[arg(long, default_value = "1M", value_parser = sizes::size)]
    records: u64,
    /// Bytes of key and value together
    #[arg(long, default_value = "108", value_parser = sizes::small_size)]
    record_size: usize,
    /// Threads that run transactions or write
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Memory budget, at least 1MiB (85MiB); the puts of cold keys have a quarter of the records' bytes
    #[arg(long, default_value = "32MiB", value_parser = sizes::size)]
    memory: u64,
    /// Seconds of each case but the puts of cold keys, which are seven for every four records, twice
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Writes a second of all threads together beside a range or the head of a queue
    #[arg(long, default_value = "100K", value_parser = sizes::size)]
    writes_per_second: u64,
    /// Existing directory for the files, which are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the cases for each engine.
pub(crate) fn run(arguments: ConflictsArguments) -> Result<Outcome, Failure> {
    check_apart(&arguments.dir)?;
    let engines =
        if arguments.engines.is_empty() { EngineKind::ALL.to_vec() } else { arguments.engines };
    let mut out = stdout();
    let mut is_right = true;
    for engine in engines {
        let plan = ConflictsPlan {
            engine,
            records: arguments.records,
            record_size: arguments.record_size,
            threads: arguments.threads,
            memory: arguments.memory,
            seconds: arguments.seconds,
            writes_per_second: arguments.writes_per_second,
            directory: arguments.dir.clone(),
            seed: arguments.seed,
            interrupted: interrupt::is_set,
        };
        plan.check()?;
        writeln!(out, "{engine}").map_err(Failure::from)?;
        match outcome(conflicts::run(&plan, &mut out))? {
            Outcome::Interrupted => return Ok(Outcome::Interrupted),
            ended => is_right &= ended == Outcome::Done,
        }
    }
    outcome(Ok(is_right))
}
