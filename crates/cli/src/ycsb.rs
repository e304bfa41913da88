//! `spinney bench ycsb`: its arguments, and the plans that they are.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spinney_bench::dataset::DatasetName;
use spinney_bench::distribution::{Distribution, Generator};
use spinney_bench::driver::Driver;
use spinney_bench::parent::{self, Run};
use spinney_bench::plan::{Durability, LoadOrder, Plan, TornWrites, Workload};
use spinney_bench::recovery::Kill;

use crate::bench_engines::{self, CHILD_COMMAND, PEERS};
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;
use crate::output::stdout;
use crate::{interrupt, sizes};

/// Bytes of memory that a record takes beside its own in an engine that keeps all of them there, about.
const BESIDE_RECORD: u64 = 64;

#[derive(Debug, Args)]
pub(crate) struct YcsbArguments {
    /// Engines to measure, in this order [default: all that are built in and have room in --memory]
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Workloads to run, in this order
    #[arg(long, value_delimiter = ',', default_value = "load,a,b,c,d,e,f")]
    workloads: Vec<Workload>,
    /// Number of records to load (500K, 16M)
    #[arg(long, default_value = "1M", value_parser = sizes::size)]
    records: u64,
    /// Bytes of key and value together
    #[arg(long, default_value = "64", value_parser = sizes::small_size)]
    record_size: usize,
    /// How to load: random, sorted (inserts in key order) or bulk (in key order past cache and log;
    /// engines without a bulk load of their own insert)
    #[arg(long, default_value = "random")]
    load: LoadOrder,
    /// Client threads
    #[arg(long, default_value_t = 4)]
    threads: usize,
    #[command(flatten)]
    length: LengthArguments,
    #[command(flatten)]
    operations: OperationArguments,
    #[command(flatten)]
    keyspaces: KeyspaceArguments,
    #[command(flatten)]
    keys: KeyArguments,
    #[command(flatten)]
    terms: TermArguments,
    #[command(flatten)]
    results: ResultArguments,
}

/// How long each workload runs.
#[derive(Debug, Args)]
struct LengthArguments {
    /// Seconds before each measurement
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// End each measurement after this many operations instead
    #[arg(long, value_parser = sizes::size)]
    operations: Option<u64>,
    /// Kill the engine's process after this many seconds of the last workload, and open the
    /// database again: prints the time to open, and from then to 90 % of the rate before, for which
    /// it waits up to --seconds
    #[arg(long)]
    kill_after: Option<f64>,
}

/// What single operations are.
#[derive(Debug, Args)]
struct OperationArguments {
    /// Number of records in every scan of e, s and su [default: 1 to 100 at random, 100 in su]
    #[arg(long)]
    scan_length: Option<usize>,
    /// Number of keys that each operation of m reads
    #[arg(long, default_value_t = 32)]
    multi_get: usize,
}

/// Several keyspaces.
#[derive(Debug, Args)]
struct KeyspaceArguments {
    /// Number of keyspaces of each engine; the driven ones hold all records, the others none
    #[arg(long, default_value_t = 1)]
    keyspaces: usize,
    /// Number of keyspaces that are driven at a time
    #[arg(long, default_value_t = 1)]
    busy: usize,
    /// Seconds after which other keyspaces are driven, in turn; 0 for never
    #[arg(long, default_value_t = 0.0)]
    turns: f64,
}

/// Keys, and which of them are chosen.
#[derive(Debug, Args)]
struct KeyArguments {
    /// Distribution of the keys: uniform, zipfian or latest
    #[arg(long, default_value = "zipfian")]
    distribution: Distribution,
    /// Exponent of the Zipf law
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// What draws from the Zipf law: exact, or authors for the generator of the authors of
    /// Tiered-Indexing, which is wrong: of 10M keys, 34 % get 90 % of the accesses at an exponent
    /// of 0.9, where the law says 43 %. For comparisons with published numbers
    #[arg(long, default_value = "exact")]
    zipf: Generator,
    /// Keys: uniform, osm-like, amazon-like, words, groups or file:PATH [default: groups with the
    /// workload of that name, else uniform]
    #[arg(long)]
    dataset: Option<DatasetName>,
    /// Seed of keys and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What the engines have, and what they promise.
#[derive(Debug, Args)]
struct TermArguments {
    /// Memory budget of each engine, at least 1MiB (85MiB)
    #[arg(long, default_value = "32MiB", value_parser = sizes::size)]
    memory: u64,
    /// What a write survives: sync (power loss), buffered (death of the process) or none
    #[arg(long, default_value = "buffered")]
    durability: Durability,
    /// Persistent memory for the log: emulate carries out its instructions (a write-back of each cache
    /// line and a fence) on an ordinary mapping, which promises what buffered does. For our own engines;
    /// every line of numbers says so
    #[arg(long)]
    pm: Option<PersistentMemory>,
    /// Protection of pages written in place: auto, double-write or assume-4k
    #[arg(long, default_value = "auto")]
    torn_writes: TornWrites,
}

/// What the log takes for persistent memory.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PersistentMemory {
    /// An ordinary mapping.
    Emulate,
}

/// Files, and what is shown.
#[derive(Debug, Args)]
struct ResultArguments {
    /// Existing directory for the engines' files, which are removed at the end, also after an
    /// interrupt
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Keep the engines' files
    #[arg(long)]
    keep: bool,
    /// Show what the engines did inside, too: pages, writes by purpose, merges, checkpoints
    #[arg(long)]
    explain: bool,
    /// File for results, one JSON object per line
    #[arg(long)]
    json: Option<PathBuf>,
    /// File for write operations over time, as CSV
    #[arg(long)]
    series: Option<PathBuf>,
}

pub(crate) fn run(arguments: YcsbArguments, knobs: Knobs) -> Result<Outcome, Failure> {
    let run = plan(arguments, knobs, &bench_engines::drivers())?;
    bench_engines::outcome(parent::run(&run, &mut stdout()))
}

impl YcsbArguments {
    fn dataset(&self) -> DatasetName {
        let has_groups = self.workloads.contains(&Workload::Groups);
        let usual = if has_groups { DatasetName::Groups } else { DatasetName::Uniform };
        self.keys.dataset.clone().unwrap_or(usual)
    }

    /// The plan of an engine.
    fn plan_of(&self, engine: &str, knobs: &mut Knobs) -> Plan {
        let YcsbArguments { length, operations, keyspaces, keys, terms, .. } = self;
        Plan {
            engine: engine.to_owned(),
            workloads: self.workloads.clone(),
            records: self.records,
            load: self.load,
            record_size: self.record_size,
            threads: self.threads,
            warmup_seconds: length.warmup,
            seconds: length.seconds,
            operations: length.operations,
            kill: length.kill_after.map(|_| Kill::Comes),
            distribution: keys.distribution,
            theta: keys.theta,
            zipf: keys.zipf,
            memory: terms.memory,
            durability: terms.durability,
            torn_writes: terms.torn_writes,
            dataset: self.dataset(),
            scan_length: operations.scan_length,
            multi_get: operations.multi_get,
            keyspaces: keyspaces.keyspaces,
            busy: keyspaces.busy,
            turns: keyspaces.turns,
            directory: PathBuf::new(),
            seed: keys.seed,
            knobs: knobs.remove(engine).unwrap_or_default(),
        }
    }
}

fn plan(
    arguments: YcsbArguments,
    mut knobs: Knobs,
    drivers: &[Box<dyn Driver>],
) -> Result<Run, Failure> {
    let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
    let (mut plans, mut notes) = (Vec::new(), Vec::new());
    for place in bench_engines::chosen(&arguments.engines, &names, &PEERS)? {
        let (driver, engine) = (&drivers[place], names[place]);
        let mut plan = arguments.plan_of(engine, &mut knobs);
        let is_named = !arguments.engines.is_empty() || !plan.knobs.is_empty();
        let each = (plan.record_size as u64).saturating_add(BESIDE_RECORD);
        let needed = plan.records.saturating_mul(each);
        if !is_named && driver.keeps_all_in_memory() && needed > plan.memory {
            notes.push(format!(
                "{engine} is left out: it keeps all records in memory, which take about {} MiB (--memory)",
                needed >> 20
            ));
            continue;
        }
        if let Some(PersistentMemory::Emulate) = arguments.terms.pm {
            if driver.is_peer() {
                return Err(Failure::usage(format!(
                    "--pm is for our own engines, not for {engine}"
                )));
            }
            plan.emulate_memory();
        }
        plan.check()?;
        if plan.keyspaces > 1 && driver.is_peer() {
            return Err(Failure::usage(format!(
                "--keyspaces is for our own engines, not for {engine}"
            )));
        }
        if plan.kill.is_some() && !driver.reopens() {
            return Err(Failure::usage(format!(
                "--kill-after: {engine} does not find again what it wrote"
            )));
        }
        driver.check_knobs(&plan.knobs).map_err(|error| error.context(format!("--{engine}")))?;
        plans.push(plan);
    }
    bench_engines::check_used(&knobs)?;
    let kill_after = arguments.length.kill_after;
    if kill_after.is_some_and(|seconds| !(seconds > 0.0 && seconds < 1e6)) {
        return Err(Failure::usage("--kill-after must be above 0".to_owned()));
    }
    let ResultArguments { dir, keep, explain, json, series } = arguments.results;
    let to_write = [Some(&dir), json.as_ref(), series.as_ref()];
    to_write.into_iter().flatten().try_for_each(|path| check_apart(path))?;
    let peers =
        drivers.iter().filter(|driver| driver.is_peer()).map(|driver| driver.name().to_owned());
    Ok(Run {
        plans,
        peers: peers.collect(),
        directory: dir,
        keep,
        explain,
        json,
        series,
        kill_after,
        child_arguments: vec![CHILD_COMMAND.to_owned()],
        notes,
        interrupted: interrupt::is_set,
    })
}
