//! `spinney bench paper`: figures of papers.
//!
//! A figure of TreeLine has options of its own, so what follows the figures' names is parsed once for
//! each of them.

mod index_organized;
mod tiered;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use spinney_bench::dataset::DatasetName;
use spinney_bench::paper::factors::{self, Factors};
use spinney_bench::paper::segments::{self, Segments};
use spinney_bench::plan::{Durability, TornWrites};

use crate::bench_engines::{self, CHILD_COMMAND};
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;
use crate::output::stdout;
use crate::{interrupt, sizes};

/// Which paper; the bare numbers are figures of TreeLine.
#[derive(Debug, Subcommand)]
pub(crate) enum PaperCommand {
    /// TreeLine: figures 8, 9 and 10 [default: all], with the options of each
    ///
    /// `spinney bench paper treeline 8 --help` has the options of figure 8. Options that are given
    /// hold for all figures that are named.
    Treeline(TreelineArguments),
    /// TurtleKV: has no figure yet
    Turtle(NoFigures),
    /// Tiered-Indexing, as far as it is about B+trees
    ///
    /// table1 (bytes moved by a load), table2 (requests of an operation), fig12 and fig13 (rates of
    /// loads, and of c and f), fig14 and fig15 (the same with a log), fig16 (su), fig17 (time to
    /// 90 % of the rate after a jump of the hot set), fig18 (sizes of records), fig19 (exponents),
    /// fig20 (threads), fig21 (exclusive promotion). Prints the paper's numbers beside ours, and the
    /// least that arithmetic allows. Options of one engine are --<engine>.<option> VALUE.
    Tiered(tiered::TieredArguments),
    /// Index-Organized: iot beside a row, a column and a row+column store
    ///
    /// fig1 (scans of a few of many columns, and inserts), fig3 (an updating beside a scanning
    /// thread), fig4 (traversal of a linked list), fig8 (chains of versions), fig10 (look-ups,
    /// updates and scans), fig11 (New-Order), fig12 (shares of updates), fig13 (threads), fig14
    /// (TPC-C RA, RB and RC by threads), fig15 (Query 2 by warehouses), fig16 (RC over iot, for a
    /// profiler), fig17 (Query 2 beside New-Order threads), fig18 (inserts by what the log
    /// promises), table2 (what they write). Persistent memory is emulated. The stores are tables of
    /// this program with the certifier, the index and the log of iot. Prints the paper's ratios
    /// beside ours, where it states them.
    IndexOrganized(Box<index_organized::IndexOrganizedArguments>),
    /// Figure of TreeLine
    #[command(flatten)]
    Bare(TreelineFigure),
}

#[derive(Debug, Args)]
pub(crate) struct TreelineArguments {
    /// Figures, then their options
    #[arg(value_name = "FIGURE... OPTION...", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct NoFigures {
    /// Figures
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,
}

/// A figure as a command line of its own.
#[derive(Debug, Parser)]
#[command(name = "spinney bench paper treeline", max_term_width = 100)]
struct FigureLine {
    #[command(subcommand)]
    figure: TreelineFigure,
}

/// A figure of TreeLine.
#[derive(Debug, Subcommand)]
pub(crate) enum TreelineFigure {
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

pub(crate) fn run(command: PaperCommand, knobs: Knobs) -> Result<Outcome, Failure> {
    match command {
        PaperCommand::Treeline(TreelineArguments { words }) => {
            without_knobs(&knobs)?;
            let Some(figures) = figures(&words)? else { return Ok(Outcome::Done) };
            run_all(figures)
        }
        PaperCommand::Bare(figure) => {
            without_knobs(&knobs)?;
            run_all(vec![figure])
        }
        PaperCommand::Tiered(arguments) => tiered::run(arguments, knobs),
        PaperCommand::Turtle(none) => Err(no_figure("turtle", &none)),
        PaperCommand::IndexOrganized(arguments) => {
            without_knobs(&knobs)?;
            index_organized::run(*arguments)
        }
    }
}

fn no_figure(paper: &str, NoFigures { figures }: &NoFigures) -> Failure {
    let figures = if figures.is_empty() { "figure".to_owned() } else { figures.join(", ") };
    Failure::usage(format!(
        "this program measures no {figures} of {paper}: treeline, tiered and index-organized have figures"
    ))
}

fn without_knobs(knobs: &Knobs) -> Result<(), Failure> {
    match knobs.keys().next() {
        Some(engine) => Err(Failure::usage(format!(
            "an option --{engine}.… is given, but a figure of treeline or index-organized sets the engine's options itself"
        ))),
        None => Ok(()),
    }
}

/// Parses figures of TreeLine and their options; `None` if help was asked for, which is printed.
fn figures(words: &[OsString]) -> Result<Option<Vec<TreelineFigure>>, Failure> {
    let is_name = |word: &&OsString| !word.to_string_lossy().starts_with('-');
    let named: Vec<OsString> = words.iter().take_while(is_name).cloned().collect();
    let options = &words[named.len()..];
    let all = ["8", "9", "10"].map(OsString::from).to_vec();
    let names = if named.is_empty() { all } else { named };
    let mut figures = Vec::new();
    for name in names {
        let line = [&["paper".into(), name][..], options].concat();
        match FigureLine::try_parse_from(line) {
            Ok(line) => figures.push(line.figure),
            Err(error) if error.use_stderr() => {
                let text = error.to_string();
                let text = text.strip_prefix("error: ").unwrap_or(&text);
                return Err(Failure::usage(text.trim_end().to_owned()));
            }
            Err(help) => {
                write!(stdout(), "{}", help.render())?;
                return Ok(None);
            }
        }
    }
    Ok(Some(figures))
}

/// Checks all figures, then measures them one after the other.
fn run_all(figures: Vec<TreelineFigure>) -> Result<Outcome, Failure> {
    for figure in &figures {
        check_apart(match figure {
            TreelineFigure::Techniques(arguments) => &arguments.common.dir,
            TreelineFigure::Forecast(arguments) => &arguments.dir,
            TreelineFigure::Segments(arguments) => &arguments.dir,
        })?;
    }
    let mut all = Outcome::Done;
    for figure in figures {
        match bench_engines::outcome(run_one(figure))? {
            Outcome::Interrupted => return Ok(Outcome::Interrupted),
            Outcome::Done => {}
            failed => all = failed,
        }
    }
    Ok(all)
}

fn run_one(figure: TreelineFigure) -> spinney::Result<bool> {
    let mut out = stdout();
    match figure {
        TreelineFigure::Techniques(TechniqueArguments { technique, common }) => {
            factors::run_techniques(&common.into(), &technique, &mut out)
        }
        TreelineFigure::Forecast(arguments) => factors::run_forecast(&arguments.into(), &mut out),
        TreelineFigure::Segments(arguments) => segments::run(
            &Segments {
                records: arguments.records,
                datasets: arguments.dataset,
                seed: arguments.seed,
                directory: arguments.dir,
                interrupted: interrupt::is_set,
            },
            &mut out,
        ),
    }
}
