//! `spinney bench paper index-organized`: figures of Index-Organized.

use std::path::PathBuf;

use clap::Args;
use spinney_bench::columns::run::Widths;
use spinney_bench::distribution::Distribution;
use spinney_bench::paper::index_organized::{self, Figure, IndexOrganized, LoadOrder};

use crate::bench_engines;
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::output::stdout;
use crate::{interrupt, sizes};

#[derive(Debug, Args)]
struct ColumnArguments {
    /// Columns that a look-up reads, of 10
    #[arg(long, default_value_t = 10)]
    read_columns: usize,
    /// Columns that an update changes, of 10
    #[arg(long, default_value_t = 1)]
    update_columns: usize,
    /// Columns that a scan reads, of 10
    #[arg(long, default_value_t = 10)]
    scan_columns: usize,
}

#[derive(Debug, Args)]
pub(crate) struct IndexOrganizedArguments {
    /// Figures: fig10, fig12, fig13 [default: all]
    figures: Vec<Figure>,
    /// Number of records to load, of 1,008 bytes each
    #[arg(long, default_value = "400K", value_parser = sizes::size)]
    records: u64,
    /// Memory budget of each store
    #[arg(long, default_value = "1GiB", value_parser = sizes::size)]
    memory: u64,
    /// Client threads: fig13 runs with each number, the others with the first
    #[arg(long, value_delimiter = ',', default_value = "4,1,2,8")]
    threads: Vec<usize>,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Orders in which records are loaded: random, key
    #[arg(long, value_delimiter = ',', default_value = "random,key")]
    order: Vec<LoadOrder>,
    /// Which records are chosen: uniform, zipfian
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipfian")]
    distribution: Vec<Distribution>,
    /// Exponent of the Zipf law
    #[arg(long, default_value_t = 0.9)]
    theta: f64,
    /// Look-ups and updates of a transaction
    #[arg(long, default_value_t = 10)]
    operations: usize,
    /// Records of a scan
    #[arg(long, default_value_t = 100)]
    scan: usize,
    #[command(flatten)]
    columns: ColumnArguments,
    /// Existing directory for logs and databases, which are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of orders and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn run(arguments: IndexOrganizedArguments) -> Result<Outcome, Failure> {
    check_apart(&arguments.dir)?;
    let ColumnArguments { read_columns: read, update_columns: update, scan_columns: scan } =
        arguments.columns;
    let columns = Widths { read, update, scan };
    let how = IndexOrganized {
        records: arguments.records,
        memory: arguments.memory,
        threads: arguments.threads,
        seconds: [arguments.warmup, arguments.seconds],
        orders: arguments.order,
        distributions: arguments.distribution,
        theta: arguments.theta,
        operations: arguments.operations,
        scan: arguments.scan,
        columns,
        directory: arguments.dir,
        seed: arguments.seed,
        interrupted: interrupt::is_set,
    };
    bench_engines::outcome(index_organized::run(&how, &arguments.figures, &mut stdout()))
}
