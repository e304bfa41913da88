//! `spinney bench paper index-organized`: figures of Index-Organized.

use std::path::PathBuf;

use clap::Args;
use spinney_bench::columns::run::Widths;
use spinney_bench::distribution::Distribution;
use spinney_bench::paper::index_organized::{
    self, ChainFigure, Figure, IndexOrganized, InsertFigures, ListFigure, LoadOrder, StoreName,
    TpccFigures, WideFigure, YcsbFigures,
};

use crate::bench_engines;
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::output::stdout;
use crate::{interrupt, sizes};

#[derive(Debug, Args)]
struct YcsbArguments {
    /// fig3, fig10, fig12, fig13: records to load, of 1,008 bytes each; fig3 loads 10,000 at most
    #[arg(long, default_value = "400K", value_parser = sizes::size)]
    records: u64,
    /// fig10, fig12, fig13: orders in which records are loaded: random, key
    #[arg(long, value_delimiter = ',', default_value = "random,key")]
    order: Vec<LoadOrder>,
    /// fig10, fig12, fig13: which records are chosen: uniform, zipfian
    #[arg(long, value_delimiter = ',', default_value = "uniform,zipfian")]
    distribution: Vec<Distribution>,
    /// Exponent of the Zipf law
    #[arg(long, default_value_t = 0.9)]
    theta: f64,
    /// Look-ups and updates of a transaction; inserts of one in fig1
    #[arg(long, default_value_t = 10)]
    operations: usize,
    /// fig3, fig10: records of a scan
    #[arg(long, default_value_t = 100)]
    scan: usize,
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
struct OtherArguments {
    /// fig1: records of 500 attributes of 4 bytes to load, and as many to insert
    #[arg(long, default_value = "50K", value_parser = sizes::size)]
    wide_records: u64,
    /// fig1: attributes that a scan reads, of 500; 5 are a projectivity of 0.01
    #[arg(long, value_delimiter = ',', default_value = "5,500")]
    attributes: Vec<usize>,
    /// fig4: nodes of the list, each of which takes 8 KiB; payloads vary with the last number
    #[arg(long, value_delimiter = ',', default_value = "4096,8192,16384,32768,65536,131072", value_parser = sizes::small_size)]
    nodes: Vec<usize>,
    /// fig4: bytes of a payload; nodes vary with the first number
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024,2048")]
    payload: Vec<usize>,
    /// fig8: bytes of all versions, at least
    #[arg(long, default_value = "256MiB", value_parser = sizes::size)]
    versions: u64,
    /// fig8: versions of a chain
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,15,20,30")]
    chain: Vec<usize>,
    /// fig11, fig15: numbers of warehouses; fig14, fig16 and fig17 run with the last
    #[arg(long, value_delimiter = ',', default_value = "1,20")]
    warehouses: Vec<u16>,
    /// fig11, fig14 to fig17: divides items, and customers and orders of a district
    #[arg(long, default_value_t = 10)]
    scale: u32,
    /// fig18, table2: bytes of key and value of an insert
    #[arg(long, default_value = "100", value_parser = sizes::small_size)]
    insert_bytes: usize,
    /// fig18, table2: seconds from the first insert to each reading
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    durations: Vec<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct IndexOrganizedArguments {
    /// Figures: fig1, fig3, fig4, fig8, fig10 to fig18, table2 [default: all]
    figures: Vec<Figure>,
    /// Stores: row, column, row+column, iot
    #[arg(long, value_delimiter = ',', default_value = "row,column,row+column,iot")]
    stores: Vec<StoreName>,
    /// Memory budget of each store, and of the list of fig4
    #[arg(long, default_value = "1GiB", value_parser = sizes::size)]
    memory: u64,
    /// Client threads: fig13, fig14 and fig17 (of New-Order) run with each number, the others with
    /// the first
    #[arg(long, value_delimiter = ',', default_value = "4,1,2,8")]
    threads: Vec<usize>,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    #[command(flatten)]
    ycsb: YcsbArguments,
    #[command(flatten)]
    others: OtherArguments,
    /// Existing directory for logs and databases, which are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of orders and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl From<IndexOrganizedArguments> for IndexOrganized {
    fn from(arguments: IndexOrganizedArguments) -> Self {
        let IndexOrganizedArguments { ycsb, others, .. } = arguments;
        IndexOrganized {
            stores: arguments.stores,
            memory: arguments.memory,
            threads: arguments.threads,
            seconds: [arguments.warmup, arguments.seconds],
            ycsb: YcsbFigures {
                records: ycsb.records,
                orders: ycsb.order,
                distributions: ycsb.distribution,
                theta: ycsb.theta,
                operations: ycsb.operations,
                scan: ycsb.scan,
                columns: Widths {
                    read: ycsb.read_columns,
                    update: ycsb.update_columns,
                    scan: ycsb.scan_columns,
                },
            },
            wide: WideFigure { records: others.wide_records, attributes: others.attributes },
            list: ListFigure { nodes: others.nodes, payloads: others.payload },
            chains: ChainFigure { bytes: others.versions, lengths: others.chain },
            tpcc: TpccFigures { warehouses: others.warehouses, scale: others.scale },
            inserts: InsertFigures { bytes: others.insert_bytes, durations: others.durations },
            directory: arguments.dir,
            seed: arguments.seed,
            interrupted: interrupt::is_set,
        }
    }
}

pub(super) fn run(mut arguments: IndexOrganizedArguments) -> Result<Outcome, Failure> {
    check_apart(&arguments.dir)?;
    let figures = std::mem::take(&mut arguments.figures);
    bench_engines::outcome(index_organized::run(&arguments.into(), &figures, &mut stdout()))
}
