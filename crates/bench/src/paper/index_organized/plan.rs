//! Figures, stores and options.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spinney_base::limits::MEMORY_BYTES_MIN;
use spinney_base::{Error, Result};
use spinney_heap::Layout;

use crate::columns::COLUMNS;
use crate::columns::run::Widths;
use crate::distribution::Distribution;
use crate::parent::Interrupted;
use crate::plan::named;
use crate::tpcc::schema::Size;

/// Bytes from a node of a list to its payload, and to the next node in memory.
pub(super) const APART: usize = 4096;

/// Attributes of a wide record, of 4 bytes each.
pub(super) const ATTRIBUTES: usize = 500;

named! {
    /// A figure or a table.
    Figure, "figure" {
        /// Scans of a few of many columns, and inserts.
        Fig1 = "fig1",
        /// One updating and one scanning thread.
        Fig3 = "fig3",
        /// Traversal of a linked list.
        Fig4 = "fig4",
        /// Readers of chains of versions.
        Fig8 = "fig8",
        /// Look-ups, updates and scans.
        Fig10 = "fig10",
        /// New-Order.
        Fig11 = "fig11",
        /// Shares of updates.
        Fig12 = "fig12",
        /// Threads.
        Fig13 = "fig13",
        /// TPC-C RA, RB and RC by threads.
        Fig14 = "fig14",
        /// Query 2 by warehouses.
        Fig15 = "fig15",
        /// TPC-C RC over `iot`, for a profiler.
        Fig16 = "fig16",
        /// One Query 2 beside New-Order threads.
        Fig17 = "fig17",
        /// Inserts by what the log promises.
        Fig18 = "fig18",
        /// Bytes and cache lines of inserts.
        Table2 = "table2",
    }
}

named! {
    /// The order in which records are loaded.
    LoadOrder, "order" {
        /// Shuffled.
        Random = "random",
        /// By key.
        Key = "key",
    }
}

named! {
    /// A store.
    StoreName, "store" {
        /// All columns of a record side by side.
        Row = "row",
        /// Each column by itself.
        Column = "column",
        /// The first half of the columns side by side.
        RowColumn = "row+column",
        /// Our engine.
        Iot = "iot",
    }
}

impl StoreName {
    /// Returns the layout of a store that `iot` is compared with.
    pub(super) fn layout(self) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.name() == self.name())
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct IndexOrganized {
    /// Stores, each once.
    pub stores: Vec<StoreName>,
    /// Memory budget of each store in bytes, and most bytes of a list.
    pub memory: u64,
    /// Client threads. Figures 13, 14 and 17 run with each number, the others with the first.
    pub threads: Vec<usize>,
    /// Seconds before each measurement, and of each.
    pub seconds: [f64; 2],
    /// Figures 3, 10, 12 and 13.
    pub ycsb: YcsbFigures,
    /// Figure 1.
    pub wide: WideFigure,
    /// Figure 4.
    pub list: ListFigure,
    /// Figure 8.
    pub chains: ChainFigure,
    /// Figures 11 and 14 to 17.
    pub tpcc: TpccFigures,
    /// Figure 18 and table 2.
    pub inserts: InsertFigures,
    /// An existing directory: one of this run's own is made inside and removed at the end.
    pub directory: PathBuf,
    /// Seed of orders and choices.
    pub seed: u64,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

/// Records of ten columns.
#[derive(Clone, Debug)]
pub struct YcsbFigures {
    /// Records to load; figure 3 has 10,000 at most.
    pub records: u64,
    /// Orders of loading.
    pub orders: Vec<LoadOrder>,
    /// Which records are chosen; figure 3 has the Zipf law.
    pub distributions: Vec<Distribution>,
    /// Exponent of the Zipf law.
    pub theta: f64,
    /// Look-ups and updates of a transaction, and inserts of one in figure 1.
    pub operations: usize,
    /// Records of a scan.
    pub scan: usize,
    /// Columns that operations touch.
    pub columns: Widths,
}

/// Records of 500 attributes of 4 bytes.
#[derive(Clone, Debug)]
pub struct WideFigure {
    /// Records to load, and to insert then.
    pub records: u64,
    /// Numbers of attributes that a scan reads.
    pub attributes: Vec<usize>,
}

/// A linked list.
#[derive(Clone, Debug)]
pub struct ListFigure {
    /// Numbers of nodes; payloads vary with the last.
    pub nodes: Vec<usize>,
    /// Bytes of a payload; nodes vary with the first.
    pub payloads: Vec<usize>,
}

/// Chains of versions.
#[derive(Clone, Debug)]
pub struct ChainFigure {
    /// Bytes of all versions, at least.
    pub bytes: u64,
    /// Versions of a chain.
    pub lengths: Vec<usize>,
}

/// TPC-C.
#[derive(Clone, Debug)]
pub struct TpccFigures {
    /// Numbers of warehouses. Figures 11 and 15 run with each, the others with the last.
    pub warehouses: Vec<u16>,
    /// Divides items, and customers and orders of a district.
    pub scale: u32,
}

/// Inserts alone.
#[derive(Clone, Debug)]
pub struct InsertFigures {
    /// Bytes of key and value together.
    pub bytes: usize,
    /// Seconds from the first insert to each reading, ascending.
    pub durations: Vec<f64>,
}

/// What must hold, and the message if it does not.
type Rules = Vec<(bool, &'static str)>;

impl IndexOrganized {
    /// Checks what no single field can, for these figures.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(&self, figures: &[Figure]) -> Result<()> {
        let rules = [self.general(), self.ycsb.rules(), self.others(), self.rooms(figures)];
        let rules = rules.concat();
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }

    fn general(&self) -> Rules {
        let times = |store| self.stores.iter().filter(|one| *one == store).count();
        vec![
            (!self.stores.is_empty(), "--stores names none"),
            (self.stores.iter().all(|store| times(store) == 1), "--stores names a store twice"),
            (self.memory >= MEMORY_BYTES_MIN, "--memory must be at least 1MiB"),
            (!self.threads.is_empty(), "--threads names no number"),
            (
                self.threads.iter().all(|threads| (1..=512).contains(threads)),
                "--threads must be 1 to 512",
            ),
            (
                self.seconds[1] > 0.0 && self.seconds.iter().all(|it| (0.0..1e6).contains(it)),
                "--seconds must be above 0, and --warmup 0 or more",
            ),
        ]
    }

    /// What has to fit into the memory of those figures that are measured.
    fn rooms(&self, figures: &[Figure]) -> Rules {
        let nodes = self.list.nodes.iter().max().map_or(0, |most| *most as u64);
        let list = nodes.saturating_mul(2 * APART as u64);
        vec![
            (
                !figures.contains(&Figure::Fig4) || list <= self.memory,
                "--nodes take 8 KiB of --memory each, and it has no room for them",
            ),
            (
                !figures.contains(&Figure::Fig8) || self.chains.bytes <= self.memory / 2,
                "--versions must be at most half of --memory",
            ),
        ]
    }

    fn others(&self) -> Rules {
        let IndexOrganized { wide, list, chains, tpcc, inserts, .. } = self;
        let scale = 1..=Size::DIVISOR_MAX;
        vec![
            ((1..1 << 31).contains(&wide.records), "--wide-records must be 1 to 2^31 - 1"),
            (!wide.attributes.is_empty(), "--attributes names no number"),
            (
                wide.attributes.iter().all(|count| (1..=ATTRIBUTES).contains(count)),
                "--attributes must be 1 to 500",
            ),
            (!list.nodes.is_empty() && !list.nodes.contains(&0), "--nodes must be at least 1"),
            (!list.payloads.is_empty(), "--payload names no number"),
            (
                list.payloads.iter().all(|it| (8..=APART).contains(it) && it.is_multiple_of(8)),
                "--payload must be 8 to 4096 bytes, in steps of 8",
            ),
            (!chains.lengths.is_empty(), "--chain names no length"),
            (
                chains.lengths.iter().all(|length| (1..=1000).contains(length)),
                "--chain must be 1 to 1000",
            ),
            (
                !tpcc.warehouses.is_empty() && !tpcc.warehouses.contains(&0),
                "--warehouses must be at least 1",
            ),
            (scale.contains(&tpcc.scale), "--scale must be 1 to 300"),
            (
                (8..=1 << 20).contains(&inserts.bytes),
                "--insert-bytes must be 8, the size of a key, to 1 MiB",
            ),
            (
                !inserts.durations.is_empty()
                    && inserts.durations[0] > 0.0
                    && inserts.durations.is_sorted_by(|one, next| one < next)
                    && inserts.durations.iter().all(|it| *it < 1e6),
                "--durations must be above 0, and ascend",
            ),
        ]
    }
}

impl YcsbFigures {
    fn rules(&self) -> Rules {
        let Widths { read, update, scan } = self.columns;
        let is_width = |columns: usize| (1..=COLUMNS).contains(&columns);
        vec![
            (self.records >= self.scan as u64, "--records must be at least --scan"),
            (self.records < 1 << 31, "--records must be below 2^31"),
            (self.scan > 0, "--scan must be at least 1"),
            (self.operations > 0, "--operations must be at least 1"),
            ([read, update, scan].into_iter().all(is_width), "columns are 1 to 10"),
            (!self.orders.is_empty(), "--order names none"),
            (!self.distributions.is_empty(), "--distribution names none"),
            (
                !self.distributions.contains(&Distribution::Latest),
                "--distribution is uniform or zipfian",
            ),
            (self.theta > 0.0 && self.theta <= 10.0, "--theta must be above 0 and at most 10"),
        ]
    }
}

/// Returns small plans for tests.
#[cfg(test)]
pub(super) fn small(directory: &std::path::Path) -> IndexOrganized {
    IndexOrganized {
        stores: StoreName::ALL.to_vec(),
        memory: 256 << 20,
        threads: vec![2, 1],
        seconds: [0.0, 0.02],
        ycsb: YcsbFigures {
            records: 1_000,
            orders: LoadOrder::ALL.to_vec(),
            distributions: vec![Distribution::Uniform],
            theta: 0.9,
            operations: 5,
            scan: 50,
            columns: Widths { read: 10, update: 1, scan: 10 },
        },
        wide: WideFigure { records: 300, attributes: vec![5, 500] },
        list: ListFigure { nodes: vec![16, 64], payloads: vec![64, 2048] },
        chains: ChainFigure { bytes: 64 << 10, lengths: vec![1, 2, 15, 30, 50] },
        tpcc: TpccFigures { warehouses: vec![1, 2], scale: 300 },
        inserts: InsertFigures { bytes: 64, durations: vec![0.02, 0.04] },
        directory: directory.to_owned(),
        seed: 1,
        interrupted: || false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_checked() {
        let good = small(std::path::Path::new("."));
        good.check(Figure::ALL).unwrap();
        let bad = |word: &str, spoil: &dyn Fn(&mut IndexOrganized)| {
            let mut plan = good.clone();
            spoil(&mut plan);
            let text = plan.check(Figure::ALL).unwrap_err().to_string();
            assert!(text.contains(word), "{word} is not in {text}");
        };
        bad("--stores", &|plan| plan.stores.push(StoreName::Row));
        bad("--memory", &|plan| plan.memory = 1000);
        bad("--threads", &|plan| plan.threads.clear());
        bad("columns", &|plan| plan.ycsb.columns.read = 11);
        bad("--wide-records", &|plan| plan.wide.records = 0);
        bad("--attributes", &|plan| plan.wide.attributes = vec![501]);
        bad("--nodes", &|plan| plan.list.nodes = vec![1 << 20]);
        let mut other = good.clone();
        other.list.nodes = vec![1 << 20];
        other.check(&[Figure::Fig10]).unwrap();
        bad("--payload", &|plan| plan.list.payloads = vec![4104]);
        bad("--chain", &|plan| plan.chains.lengths = vec![0]);
        bad("--versions", &|plan| plan.chains.bytes = 1 << 40);
        bad("--warehouses", &|plan| plan.tpcc.warehouses = vec![0]);
        bad("--scale", &|plan| plan.tpcc.scale = 301);
        bad("--insert-bytes", &|plan| plan.inserts.bytes = 7);
        bad("--durations", &|plan| plan.inserts.durations = vec![2.0, 1.0]);
    }
}
