//! `spinney bench tpcc` and `spinney bench smallbank`: workloads of transactions, each engine in a process of its own.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spinney_bench::plan::{Durability, TornWrites};
use spinney_bench::smallbank::SmallBankPlan;
use spinney_bench::tpcc::run::{Mix, TpccPlan};
use spinney_bench::transactional::parent::{self, TransactionalRun};
use spinney_bench::transactional::plan::{TransactionalPlan, WorkloadPlan};
use spinney_bench::transactional::{self, TransactionalDriver, heap, own};

use crate::bench_engines::{CHILD_COMMAND, check_used, chosen, outcome};
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::knobs::Knobs;
use crate::output::stdout;
use crate::sizes;

/// What a child process runs.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ChildOf {
    /// Single operations.
    #[default]
    Operations,
    /// Transactions.
    Transactions,
}

/// Engines that the feature `peers` adds for transactions.
const PEERS: [&str; 5] = ["rocksdb", "fjall", "redb", "canopydb", "sqlite"];

#[derive(Debug, Args)]
pub(crate) struct TpccArguments {
    /// Transactions: full (45 % New-Order, 43 % Payment, 4 % of each other), new-order, ra (90 %
    /// New-Order, 10 % Stock-Level), rb (50 % of both), rc (Query 2 of the CH-benCHmark in every
    /// other thread, New-Order in the others) or one-query (Query 2 in the first thread, New-Order
    /// in the others)
    #[arg(long, default_value = "full")]
    mix: Mix,
    /// Number of warehouses
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    warehouses: u16,
    /// Divide the numbers of items (100,000) and of customers and first orders of a district (3,000)
    #[arg(long, default_value_t = 1)]
    scale: u32,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SmallBankArguments {
    /// Number of customers, each with two accounts (500K, 16M)
    #[arg(long, default_value = "1M", value_parser = sizes::count)]
    accounts: u32,
    /// Number of customers that are hot
    #[arg(long, default_value = "100", value_parser = sizes::count)]
    hot_accounts: u32,
    /// Probability that a transaction chooses a hot customer, 0 to 1
    #[arg(long, default_value_t = 0.25)]
    hot_share: f64,
    #[command(flatten)]
    common: CommonArguments,
}

/// Options of all workloads of transactions.
#[derive(Debug, Args)]
struct CommonArguments {
    /// Engines to measure, in this order [default: all that are built in]; row, column and
    /// row+column are stores in main memory that iot is compared with
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Client threads; of several numbers one after the other, on the same tables
    #[arg(long, value_delimiter = ',', default_value = "4")]
    threads: Vec<usize>,
    /// Read every record by its key before each run, so that memory holds what fits
    #[arg(long)]
    warm: bool,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 2.0)]
    warmup: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// End each measurement after this many transactions instead
    #[arg(long, value_parser = sizes::size)]
    operations: Option<u64>,
    /// Memory budget of each engine, at least 1MiB (85MiB)
    #[arg(long, default_value = "1GiB", value_parser = sizes::size)]
    memory: u64,
    /// What an acknowledged transaction survives: sync (power loss) or buffered (death of the
    /// process)
    #[arg(long, default_value = "buffered")]
    durability: Durability,
    /// Protection of pages written in place: auto, double-write or assume-4k
    #[arg(long, default_value = "auto")]
    torn_writes: TornWrites,
    /// Existing directory for the engines' files, which are removed at the end, also after an
    /// interrupt
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Keep the engines' files
    #[arg(long)]
    keep: bool,
    /// Show the latencies of each kind of transaction, too
    #[arg(long)]
    explain: bool,
    /// Seed of records and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for results, one JSON object per line
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Every engine in this build that has transactions, ours first.
fn drivers(workload: &WorkloadPlan) -> Vec<Box<dyn TransactionalDriver>> {
    let mut drivers = own::drivers(workload.gathered());
    #[cfg(feature = "peers")]
    drivers.extend(spinney_bench_peers::transactional::drivers());
    drivers.extend(heap::drivers(workload.fields()));
    drivers
}

/// Runs TPC-C.
pub(crate) fn tpcc(arguments: TpccArguments, knobs: Knobs) -> Result<Outcome, Failure> {
    let TpccArguments { mix, warehouses, scale, common } = arguments;
    run(&WorkloadPlan::Tpcc(TpccPlan { mix, warehouses, scale }), common, knobs)
}

/// Runs SmallBank.
pub(crate) fn smallbank(arguments: SmallBankArguments, knobs: Knobs) -> Result<Outcome, Failure> {
    let SmallBankArguments { accounts, hot_accounts, hot_share, common } = arguments;
    let plan = SmallBankPlan { accounts, hot_accounts, hot_share };
    run(&WorkloadPlan::SmallBank(plan), common, knobs)
}

fn run(
    workload: &WorkloadPlan,
    arguments: CommonArguments,
    knobs: Knobs,
) -> Result<Outcome, Failure> {
    let run = plan(workload, arguments, knobs, &drivers(workload))?;
    outcome(parent::run(&run, &mut stdout()))
}

fn plan(
    workload: &WorkloadPlan,
    arguments: CommonArguments,
    mut knobs: Knobs,
    drivers: &[Box<dyn TransactionalDriver>],
) -> Result<TransactionalRun, Failure> {
    let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
    let mut plans = Vec::new();
    let is_named = !arguments.engines.is_empty();
    for place in chosen(&arguments.engines, &names, &PEERS)? {
        if drivers[place].is_baseline() && !is_named {
            continue;
        }
        let (driver, engine) = (&drivers[place], names[place]);
        let plan = TransactionalPlan {
            engine: engine.to_owned(),
            workload: workload.clone(),
            threads: arguments.threads.clone(),
            warm: arguments.warm,
            warmup_seconds: arguments.warmup,
            seconds: arguments.seconds,
            operations: arguments.operations,
            memory: arguments.memory,
            durability: arguments.durability,
            torn_writes: arguments.torn_writes,
            directory: PathBuf::new(),
            seed: arguments.seed,
            knobs: knobs.remove(engine).unwrap_or_default(),
        };
        plan.check()?;
        driver.check_knobs(&plan.knobs).map_err(|error| error.context(format!("--{engine}")))?;
        plans.push(plan);
    }
    check_used(&knobs)?;
    let to_write = [Some(&arguments.dir), arguments.json.as_ref()];
    to_write.into_iter().flatten().try_for_each(|path| check_apart(path))?;
    let is_compared = |driver: &dyn TransactionalDriver| driver.is_peer() || driver.is_baseline();
    let peers = drivers
        .iter()
        .filter(|driver| is_compared(&***driver))
        .map(|driver| driver.name().to_owned());
    Ok(TransactionalRun {
        plans,
        peers: peers.collect(),
        directory: arguments.dir,
        keep: arguments.keep,
        explain: arguments.explain,
        json: arguments.json,
        child_arguments: vec![CHILD_COMMAND.to_owned(), "transactions".to_owned()],
        interrupted: interrupt::is_set,
    })
}

/// Runs one engine as a child process.
pub(crate) fn child() -> Result<Outcome, Failure> {
    let mut input = std::io::stdin().lock();
    let mut output = stdout();
    let drivers = |plan: &TransactionalPlan| drivers(&plan.workload);
    let well = transactional::child::child(drivers, &mut input, &mut output)?;
    Ok(if well { Outcome::Done } else { Outcome::Failed })
}
