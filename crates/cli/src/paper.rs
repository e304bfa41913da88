//! `spinney bench paper`: the TreeLine paper's figures.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use spinney_bench::dataset::DatasetName;
use spinney_bench::paper::segments::{self, Segments};

use crate::args;
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;

/// Which figure.
#[derive(Debug, Subcommand)]
pub(crate) enum PaperCommand {
    /// Segments: what page grouping makes of sorted keys, and what the index saves
    ///
    /// Bulk-loads each data set with single pages, with the paper's page grouping (lines) and with ours (lines and steps), at the
    /// paper's goal and epsilon: 44 and 5 for records of 64 bytes, 2 and 0.5 for 1 KiB. Exits with 1 when a page holds more than goal + 2 epsilon records.
    #[command(name = "9")]
    Segments(SegmentsArguments),
}

#[derive(Debug, Args)]
pub(crate) struct SegmentsArguments {
    /// Records of 64 bytes to load, a sixteenth as many of 1 KiB; 20M take 2 GB of disk at a time and 1 GB of memory
    #[arg(long, default_value = "1M", value_parser = args::size)]
    records: u64,
    /// Keys: uniform, osm-like, amazon-like, words or file:PATH
    #[arg(long, value_delimiter = ',', default_value = "amazon-like,osm-like,uniform,words")]
    dataset: Vec<DatasetName>,
    /// Where to put databases; they are removed at the end
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
    let mut out = std::io::stdout().lock();
    let well = match command {
        PaperCommand::Segments(arguments) => segments::run(
            &Segments {
                records: arguments.records,
                datasets: arguments.dataset,
                seed: arguments.seed,
                directory: arguments.dir,
            },
            &mut out,
        )?,
    };
    Ok(if well { Outcome::Done } else { Outcome::Failed })
}
