//! Figures 10, 12 and 13 of *Index-Organized storage model*: look-ups, updates and scans of records
//! with ten columns, over the three stores that the paper compares with and over our engine `iot`.
//!
//! All four run in one process, one after the other, on the same records and the same choices. The
//! paper's ratios have stores that go through an interpreter in the denominator; here they share
//! certifier, index and log with `iot` (see the crate `spinney-heap`), so ours are smaller.
//!
//! | figure | transactions |
//! |---|---|
//! | 10 | look-ups; updates; scans |
//! | 12 | look-ups and updates: 0, 10, 50, 90 and 100 % updates |
//! | 13 | 10, 50 and 90 % updates, by number of threads |

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spinney_base::size::display_bytes;
use spinney_base::{Error, Result, Runtime};
use spinney_heap::Layout;

use crate::columns::run::{Measured, Round, Widths, Work, measure};
use crate::columns::{COLUMNS, ColumnStore, Load, Order, RECORD_BYTES, heap, own};
use crate::distribution::{Chooser, Distribution, Generator};
use crate::parent::{Interrupted, OwnDirectory};
use crate::plan::named;

use super::{draw, say};

named! {
    /// A figure.
    Figure, "figure" {
        /// Look-ups, updates and scans.
        Fig10 = "fig10",
        /// Shares of updates.
        Fig12 = "fig12",
        /// Threads.
        Fig13 = "fig13",
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

/// How to measure.
#[derive(Clone, Debug)]
pub struct IndexOrganized {
    /// Records to load.
    pub records: u64,
    /// Memory budget of each store in bytes.
    pub memory: u64,
    /// Client threads of figures 10 and 12; figure 13 runs with each number.
    pub threads: Vec<usize>,
    /// Seconds before each measurement, and of each.
    pub seconds: [f64; 2],
    /// Orders of loading.
    pub orders: Vec<LoadOrder>,
    /// Which records are chosen.
    pub distributions: Vec<Distribution>,
    /// Exponent of the Zipf law.
    pub theta: f64,
    /// Look-ups and updates of a transaction.
    pub operations: usize,
    /// Records of a scan.
    pub scan: usize,
    /// Columns that operations touch.
    pub columns: Widths,
    /// An existing directory: one of this run's own is made inside and removed at the end.
    pub directory: PathBuf,
    /// Seed of orders and choices.
    pub seed: u64,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Heap(Layout),
    Own,
}

const STORES: [Kind; 4] =
    [Kind::Heap(Layout::Row), Kind::Heap(Layout::Column), Kind::Heap(Layout::RowColumn), Kind::Own];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Heap(layout) => layout.name(),
            Kind::Own => "iot",
        }
    }

    fn open(self, memory: u64, directory: &Path) -> Result<Box<dyn ColumnStore>> {
        match self {
            Kind::Heap(layout) => heap::open(layout, memory, directory),
            Kind::Own => own::open(memory, directory),
        }
    }
}

/// A line of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    figure: Figure,
    order: LoadOrder,
    distribution: Distribution,
    work: Work,
    threads: usize,
}

impl Case {
    fn work(&self) -> String {
        match self.work {
            Work::Points { updates: 0 } => "look-ups".to_owned(),
            Work::Points { updates: 100 } => "updates".to_owned(),
            Work::Points { updates } => format!("{updates} % updates"),
            Work::Scans { records } => format!("scans of {records}"),
        }
    }
}

impl IndexOrganized {
    /// Checks what no single field can.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(&self) -> Result<()> {
        let Widths { read, update, scan } = self.columns;
        let is_width = |columns: usize| (1..=COLUMNS).contains(&columns);
        let rules = [
            (!self.threads.is_empty(), "--threads names no number"),
            (
                self.threads.iter().all(|threads| (1..=512).contains(threads)),
                "--threads must be 1 to 512",
            ),
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
            (
                self.seconds[1] > 0.0 && self.seconds.iter().all(|it| (0.0..1e6).contains(it)),
                "--seconds must be above 0, and --warmup 0 or more",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }

    fn works(&self, figure: Figure) -> Vec<Work> {
        let points = |updates: &u32| Work::Points { updates: *updates };
        match figure {
            Figure::Fig10 => {
                vec![points(&0), points(&100), Work::Scans { records: self.scan }]
            }
            Figure::Fig12 => [100, 90, 50, 10, 0].iter().map(points).collect(),
            Figure::Fig13 => [10, 50, 90].iter().map(points).collect(),
        }
    }

    /// What is measured on the records of one load, in this order.
    fn cases(&self, figures: &[Figure], order: LoadOrder) -> Vec<Case> {
        let mut cases = Vec::new();
        for figure in figures.iter().copied() {
            let all = if figure == Figure::Fig13 { &self.threads[..] } else { &self.threads[..1] };
            for distribution in self.distributions.iter().copied() {
                for work in self.works(figure) {
                    for threads in all.iter().copied() {
                        cases.push(Case { figure, order, distribution, work, threads });
                    }
                }
            }
        }
        cases
    }

    fn round(&self, case: &Case) -> Round {
        Round {
            work: case.work,
            chooser: Chooser::new(case.distribution, Generator::Exact, self.theta, self.records),
            threads: case.threads,
            operations: self.operations,
            columns: self.columns,
            times: self.seconds.map(Duration::from_secs_f64),
            seed: self.seed,
        }
    }
}

/// Measures figures and prints their tables.
///
/// # Errors
/// `InvalidArgument` for a plan that cannot be; `Full` when the records have no room in the budget;
/// `Corruption` for a wrong answer; `Cancelled`.
pub fn run(how: &IndexOrganized, figures: &[Figure], out: &mut dyn Write) -> Result<bool> {
    how.check()?;
    let figures = if figures.is_empty() { Figure::ALL } else { figures };
    let directory = OwnDirectory::create(&how.directory, false)?;
    let Widths { read, update, scan } = how.columns;
    let of_data = display_bytes(how.records * RECORD_BYTES);
    say(
        out,
        &format!(
            "{} records of ten columns of 100 B ({of_data}), memory {} each, buffered.\n\
             Transactions: {} operations, or one scan. Columns: look-up {read}, update {update}, scan {scan}.",
            how.records,
            display_bytes(how.memory),
            how.operations,
        ),
    )?;
    let mut lines: Vec<(Case, Vec<Measured>)> = Vec::new();
    for order in how.orders.iter().copied() {
        let first = lines.len();
        lines.extend(how.cases(figures, order).into_iter().map(|case| (case, Vec::new())));
        for kind in STORES {
            let own = directory.path.join(format!("{}-{order}", kind.name()));
            std::fs::create_dir(&own)
                .map_err(|error| Error::io(format!("create {}", own.display()), error))?;
            let (clock, store) = (Runtime::threads(), kind.open(how.memory, &own)?);
            let load_order = if order == LoadOrder::Key { Order::Key } else { Order::Random };
            store.load(Load { records: how.records, order: load_order, seed: how.seed })?;
            let loaded = clock.now().as_secs_f64();
            let before = store.used_bytes();
            for (case, measured) in &mut lines[first..] {
                measured.push(measure(&*store, &how.round(case), how.interrupted)?);
            }
            let after = display_bytes(store.used_bytes());
            let before = display_bytes(before);
            let name = kind.name();
            say(
                out,
                &format!(
                    "{name}: loaded in {order} order in {loaded:.1} s, {before}; {after} at the end"
                ),
            )?;
            store.close()?;
        }
    }
    for figure in figures {
        let of_figure = lines.iter().filter(|(case, _)| case.figure == *figure);
        let of_figure: Vec<_> = of_figure.collect();
        say(out, &format!("\n{figure}: thousand operations (scanned records) per second"))?;
        say(out, &draw(&RATES, 4, of_figure.iter().map(|(case, of)| rates(case, of)).collect()))?;
        say(out, "\nConflicts in percent of all runs, and p99 of transactions in microseconds")?;
        say(out, &draw(&MORE, 4, of_figure.iter().map(|(case, of)| more(case, of)).collect()))?;
    }
    Ok(true)
}

const RATES: [&str; 11] = [
    "load", "chosen", "work", "threads", "row", "column", "row+col", "iot", "x row", "x column",
    "x r+c",
];

const MORE: [&str; 12] = [
    "load", "chosen", "work", "threads", "row", "column", "row+col", "iot", "p99 row", "column",
    "row+col", "iot",
];

fn names(case: &Case) -> Vec<String> {
    vec![
        case.order.to_string(),
        case.distribution.to_string(),
        case.work(),
        case.threads.to_string(),
    ]
}

fn rates(case: &Case, of: &[Measured]) -> Vec<String> {
    let mut cells = names(case);
    cells.extend(of.iter().map(|one| format!("{:.1}", one.rate() / 1e3)));
    let own = of.last().map_or(0.0, Measured::rate);
    let baselines = &of[..of.len().saturating_sub(1)];
    cells.extend(baselines.iter().map(|one| format!("{:.2}", own / one.rate().max(1e-9))));
    cells
}

fn more(case: &Case, of: &[Measured]) -> Vec<String> {
    let mut cells = names(case);
    cells.extend(of.iter().map(|one| format!("{:.2}", 100.0 * one.aborts())));
    #[expect(clippy::cast_precision_loss, reason = "a latency with few digits")]
    let us = |one: &Measured| one.times.value_at_quantile(0.99) as f64 / 1e3;
    cells.extend(of.iter().map(|one| format!("{:.0}", us(one))));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_measured_and_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let how = IndexOrganized {
            records: 1_000,
            memory: 256 << 20,
            threads: vec![2, 1],
            seconds: [0.0, 0.02],
            orders: LoadOrder::ALL.to_vec(),
            distributions: vec![Distribution::Uniform],
            theta: 0.9,
            operations: 5,
            scan: 50,
            columns: Widths { read: 10, update: 1, scan: 10 },
            directory: directory.path().to_owned(),
            seed: 1,
            interrupted: || false,
        };
        let mut out = Vec::new();
        assert!(run(&how, &[Figure::Fig10, Figure::Fig13], &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        for words in ["x row", "scans of 50", "90 % updates", "row+column: loaded in key order"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
        let wide = IndexOrganized { columns: Widths { read: 11, update: 1, scan: 1 }, ..how };
        assert!(wide.check().is_err());
    }
}
