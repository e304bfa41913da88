//! `spinney bench paper`: the TreeLine paper's figures.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use spinney_bench::dataset::DatasetName;
use spinney_bench::paper::factors::{self, Factors};
use spinney_bench::paper::segments::{self, Segments};
use spinney_bench::plan::{Durability, TornWrites};

use crate::bench::{self, CHILD_COMMAND};
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;
use crate::output::stdout;
use crate::{interrupt, sizes};

/// Which figure.
#[derive(Debug, Subcommand)]
pub(crate) enum PaperCommand {
    /// What each technique gains where it should matter
    ///
    /// Measures page grouping on load, c, a, e and s, the record cache on c and a, batched
    /// write-out on load and a with uniform keys, and forecasting on drift. Each is switched on and
    /// off in turn, and every run has a process and a database of its own.
    #[command(name = "8")]
    Techniques(TechniqueArguments),
    /// Insert forecasting: reorganizations and throughput of drift, on and off in turn
    #[command(name = "10")]
    Forecast(FactorArguments),
    /// Segments: how many page grouping makes from sorted keys, and what the index saves
    ///
    /// Bulk-loads each data set with single pages, with the paper's page grouping (lines) and with
    /// ours (lines and steps), at the paper's goal and epsilon: 44 and 5 for records of 64 bytes, 2
    /// and 0.5 for 1 KiB. Exits with 1 when a page holds more than goal + 2 epsilon records.
    #[command(name = "9")]
    Segments(SegmentsArguments),
}

#[derive(Debug, Args)]
pub(crate) struct TechniqueArguments {
    /// Techniques to measure: page-grouping, record-cache, batch-writeout, forecast [default: all]
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(factors::techniques()))]
    technique: Vec<String>,
    #[command(flatten)]
    common: FactorArguments,
}

#[derive(Debug, Args)]
pub(crate) struct FactorArguments {
    /// Number of records to load
    #[arg(long, default_value = "500K", value_parser = sizes::size)]
    records: u64,
    /// Bytes of key and value together
    #[arg(long, default_value = "64", value_parser = sizes::small_size)]
    record_size: usize,
    /// Keys: uniform, osm-like, amazon-like, words or file:PATH
    #[arg(long, default_value = "uniform")]
    dataset: DatasetName,
    /// Number of runs with a technique, and as many without; their medians are compared
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds of each workload, except drift, which ends after twice as many operations as records
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Client threads
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Memory budget
    #[arg(long, default_value = "16MiB", value_parser = sizes::size)]
    memory: u64,
    /// What a write survives: sync (power loss), buffered (death of the process) or none, as in the
    /// paper
    #[arg(long, default_value = "none")]
    durability: Durability,
    /// Protection of pages written in place: auto, double-write or assume-4k, as in the paper
    #[arg(long, default_value = "assume-4k")]
    torn_writes: TornWrites,
    /// Existing directory for databases, which are removed at the end, also after an interrupt
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of keys and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl From<FactorArguments> for Factors {
    fn from(arguments: FactorArguments) -> Self {
        Factors {
            records: arguments.records,
            record_size: arguments.record_size,
            dataset: arguments.dataset,
            runs: arguments.runs,
            seconds: arguments.seconds,
            threads: arguments.threads,
            memory: arguments.memory,
            durability: arguments.durability,
            torn_writes: arguments.torn_writes,
            seed: arguments.seed,
            directory: arguments.dir,
            child_arguments: vec![CHILD_COMMAND.to_owned()],
            interrupted: interrupt::is_set,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SegmentsArguments {
    /// Records of 64 bytes to load, and a sixteenth as many of 1 KiB; 20M take 2 GB of disk at a
    /// time and 1 GB of memory
    #[arg(long, default_value = "1M", value_parser = sizes::size)]
    records: u64,
    /// Keys: uniform, osm-like, amazon-like, words or file:PATH
    #[arg(long, value_delimiter = ',', default_value = "amazon-like,osm-like,uniform,words")]
    dataset: Vec<DatasetName>,
    /// Existing directory for databases, which are removed at the end, also after an interrupt
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(command: PaperCommand, knobs: &Knobs) -> Result<Outcome, Failure> {
    if let Some(engine) = knobs.keys().next() {
        return Err(Failure::usage(format!(
            "an option --{engine}.… is given, but a figure sets the engine's options itself"
        )));
    }
    let directory = match &command {
        PaperCommand::Techniques(arguments) => &arguments.common.dir,
        PaperCommand::Forecast(arguments) => &arguments.dir,
        PaperCommand::Segments(arguments) => &arguments.dir,
    };
    check_apart(directory)?;
    let mut out = stdout();
    let well = match command {
        PaperCommand::Techniques(TechniqueArguments { technique, common }) => {
            factors::run_techniques(&common.into(), &technique, &mut out)
        }
        PaperCommand::Forecast(arguments) => factors::run_forecast(&arguments.into(), &mut out),
        PaperCommand::Segments(arguments) => segments::run(
            &Segments {
                records: arguments.records,
                datasets: arguments.dataset,
                seed: arguments.seed,
                directory: arguments.dir,
                interrupted: interrupt::is_set,
            },
            &mut out,
        ),
    };
    bench::outcome(well)
}
