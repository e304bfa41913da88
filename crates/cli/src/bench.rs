//! `spinney bench`: engines side by side, each in a process of its own.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use spinney::EngineKind;
use spinney_bench::append::work::Work;
use spinney_bench::append::{self, AppendPlan};
use spinney_bench::distribution::Distribution;
use spinney_bench::parent;
use spinney_bench::snapshot::{self, SnapshotPlan};

use crate::bench_engines::{drivers, outcome};
use crate::bench_transactions::{self, ChildOf, SmallBankArguments, TpccArguments};
use crate::conflicts::{self, ConflictsArguments};
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::knobs::Knobs;
use crate::output::stdout;
use crate::paper::{self, PaperCommand};
use crate::sizes;
use crate::ycsb::{self, YcsbArguments};

/// What can be measured.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Runs YCSB's workloads and some more
    ///
    /// Loads records and runs the workloads in the order given, each on the state before it, and
    /// prints a table. Every engine runs in a process of its own. Options of one engine are
    /// --<engine>.<option> VALUE, and hold for the run.
    ///
    /// Workloads: load (insert all in shuffled order, then flush), a (half reads, half updates), b
    /// (95 % reads), c (reads), d (95 % reads of the latest, 5 % inserts), e (95 % scans of 1-100
    /// records, 5 % inserts), f (half reads, half read-modify-writes), s (scans), m (reads of many
    /// keys at once), su (95 % scans of 100 records, 5 % read-modify-writes), groups (prefix reads
    /// of groups of 2 to 10 records that lie together), absent (reads of keys that are not there),
    /// queue (insert at the tail, remove at the head, read the first), drift (half inserts at hot
    /// places that move), shift (reads whose hot set jumps).
    Ycsb(YcsbArguments),
    /// Reads a snapshot whole beside writers, and compares it with what was there
    ///
    /// Loads records, updates them by all threads, and takes a snapshot while they rest. Then all go on
    /// while it is read: each record must be what it was. Prints what the snapshot kept in memory and on
    /// disk, and how long it lasts to take one beside the writers. Exits with 1 when a record is wrong.
    Snapshot(SnapshotArguments),
    /// Runs TPC-C's five transactions, and checks its consistency conditions
    ///
    /// Loads the warehouses and runs client threads without pauses. After each run, and again after the
    /// database was reopened, the twelve consistency conditions are checked, with two more for indexes
    /// and stock. Prints committed transactions per second, in ratio to peers where they are built in.
    /// Exits with 1 when a condition does not hold. mixed has the history and the indexes on turtle, and
    /// all other tables on treeline.
    Tpcc(TpccArguments),
    /// Runs SmallBank's short transactions on accounts, some of them hot, and audits them
    ///
    /// Balance, DepositChecking, TransactSavings, Amalgamate and WriteCheck are 15 % each, SendPayment
    /// 25 %. After each run, and again after the database was reopened, each customer must have what
    /// the committed transactions left, and no money may have come or gone. Exits with 1 otherwise.
    /// mixed has the savings accounts on turtle, and all others on treeline.
    Smallbank(SmallBankArguments),
    /// Runs list-append transactions and writes their history for Elle
    ///
    /// Values are lists of numbers. Each transaction appends new numbers to some lists and reads
    /// others, by random choice. The history has a line of EDN for the beginning and the end of each
    /// transaction: Elle and other checkers decide from it whether the transactions were strictly
    /// serializable. It stays in memory until the end. Prints how many transactions committed and
    /// how many met a conflict.
    Append(AppendArguments),
    /// Counts conflicts of transactions that touch nothing in common, and what snapshots and open
    /// transactions cost puts
    ///
    /// Runs the cases one after the other, each in a database of its own: transactions on disjoint keys;
    /// scans of 1,000 records beside writes outside of them, as a bounded range and as a limited one; the
    /// head of a queue taken beside pushes; blind puts of cold keys with and without a snapshot; puts beside
    /// and among ranges that 256 abandoned transactions have read. Prints a line of counts for each. Exits with
    /// 1 when a transaction or a value is wrong.
    Conflicts(ConflictsArguments),
    /// Reruns figures of a paper at a size that fits this machine, with the paper's numbers beside
    /// ours
    #[command(subcommand)]
    Paper(PaperCommand),
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    /// Engines to measure, in this order [default: all of ours]
    #[arg(long, value_delimiter = ',')]
    engines: Vec<EngineKind>,
    /// Number of records to load (500K, 16M)
    #[arg(long, default_value = "1M", value_parser = sizes::size)]
    records: u64,
    /// Bytes of key and value together
    #[arg(long, default_value = "108", value_parser = sizes::small_size)]
    record_size: usize,
    /// Threads that write
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// Distribution of the updates: uniform or zipfian
    #[arg(long, default_value = "zipfian")]
    distribution: Distribution,
    /// Exponent of the Zipf law
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Memory budget, at least 1MiB (85MiB)
    #[arg(long, default_value = "32MiB", value_parser = sizes::size)]
    memory: u64,
    /// Number of snapshots that are taken for their times
    #[arg(long, default_value_t = 1000)]
    takes: u64,
    /// Seconds of updates before the first snapshot, and of snapshots that are taken
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Existing directory for the files, which are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the snapshots of each engine.
fn snapshots(arguments: SnapshotArguments) -> Result<Outcome, Failure> {
    check_apart(&arguments.dir)?;
    let engines =
        if arguments.engines.is_empty() { EngineKind::ALL.to_vec() } else { arguments.engines };
    let mut out = stdout();
    let mut is_right = true;
    for engine in engines {
        let plan = SnapshotPlan {
            engine,
            records: arguments.records,
            record_size: arguments.record_size,
            threads: arguments.threads,
            memory: arguments.memory,
            distribution: arguments.distribution,
            theta: arguments.theta,
            takes: arguments.takes,
            seconds: arguments.seconds,
            directory: arguments.dir.clone(),
            seed: arguments.seed,
            interrupted: interrupt::is_set,
        };
        plan.check()?;
        writeln!(out, "{engine}").map_err(Failure::from)?;
        match outcome(snapshot::run(&plan, &mut out))? {
            Outcome::Interrupted => return Ok(Outcome::Interrupted),
            ended => is_right &= ended == Outcome::Done,
        }
    }
    outcome(Ok(is_right))
}

#[derive(Debug, Args)]
pub(crate) struct AppendArguments {
    /// File for the history
    #[arg(long)]
    history: PathBuf,
    /// Engines: keys are spread over a keyspace of each, in one database [default: all of ours]
    #[arg(long, value_delimiter = ',')]
    engines: Vec<EngineKind>,
    /// Threads that run transactions
    #[arg(long, default_value_t = 8)]
    threads: u64,
    /// Number of transactions (500K, 16M); some more read the last lists at the end
    #[arg(long, default_value = "10K", value_parser = sizes::size)]
    transactions: u64,
    /// Number of keys in use at a time
    #[arg(long, default_value_t = 16)]
    keys: u64,
    /// Number of appends that a key takes before another takes its turn
    #[arg(long, default_value_t = 64)]
    appends: u64,
    /// Most operations of a transaction
    #[arg(long, default_value_t = 5)]
    longest: u64,
    /// Memory budget, at least 1MiB (85MiB)
    #[arg(long, default_value = "32MiB", value_parser = sizes::size)]
    memory: u64,
    /// Existing directory for the database, which is removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs list-append transactions.
fn append(arguments: AppendArguments) -> Result<Outcome, Failure> {
    check_apart(&arguments.dir)?;
    check_apart(&arguments.history)?;
    let engines =
        if arguments.engines.is_empty() { EngineKind::ALL.to_vec() } else { arguments.engines };
    let plan = AppendPlan {
        engines,
        work: Work {
            threads: arguments.threads,
            transactions: arguments.transactions,
            keys: arguments.keys,
            appends: arguments.appends,
            longest: arguments.longest,
            seed: arguments.seed,
        },
        memory: arguments.memory,
        history: arguments.history,
        directory: arguments.dir,
        interrupted: interrupt::is_set,
    };
    outcome(append::run(&plan, &mut stdout()).map(|()| true))
}

pub(crate) fn run(arguments: BenchArguments, knobs: Knobs) -> Result<Outcome, Failure> {
    interrupt::watch()?;
    let arguments = match arguments.command {
        BenchCommand::Ycsb(arguments) => arguments,
        BenchCommand::Tpcc(arguments) => return bench_transactions::tpcc(arguments, knobs),
        BenchCommand::Smallbank(arguments) => {
            return bench_transactions::smallbank(arguments, knobs);
        }
        BenchCommand::Snapshot(arguments) => {
            return without(&knobs, "snapshot").and_then(|()| snapshots(arguments));
        }
        BenchCommand::Append(arguments) => {
            return without(&knobs, "append").and_then(|()| append(arguments));
        }
        BenchCommand::Conflicts(arguments) => {
            return without(&knobs, "conflicts").and_then(|()| conflicts::run(arguments));
        }
        BenchCommand::Paper(command) => return paper::run(command, knobs),
    };
    ycsb::run(arguments, knobs)
}

/// Refuses options of engines for a benchmark that has none.
fn without(knobs: &Knobs, bench: &str) -> Result<(), Failure> {
    match knobs.keys().next() {
        Some(engine) => {
            Err(Failure::usage(format!("bench {bench} takes no options of engines (--{engine}.…)")))
        }
        None => Ok(()),
    }
}

/// Runs one engine as a child process.
pub(crate) fn child(of: ChildOf) -> Result<Outcome, Failure> {
    if matches!(of, ChildOf::Transactions) {
        return bench_transactions::child();
    }
    let mut input = std::io::stdin().lock();
    let mut output = stdout();
    let well = parent::child(&drivers(), &mut input, &mut output)?;
    Ok(if well { Outcome::Done } else { Outcome::Failed })
}
