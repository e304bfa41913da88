//! Figures 3, 10, 12 and 13: records of ten columns.
//!
//! | figure | transactions |
//! |---|---|
//! | 3 | one thread of updates, one of scans |
//! | 10 | look-ups; updates; scans |
//! | 12 | look-ups and updates: 0, 10, 50, 90 and 100 % updates |
//! | 13 | 10, 50 and 90 % updates, by number of threads |

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use spinney_base::size::display_bytes;
use spinney_base::{Error, Result, Runtime};

use super::lines::{Line, Lines, ratio, say_profiler};
use super::plan::{Figure, IndexOrganized, LoadOrder, StoreName};
use super::published;
use crate::columns::run::{Measured, Round, Widths, Work, measure, measure_each};
use crate::columns::{ColumnStore, Load, Order, Shape, heap, own};
use crate::distribution::{Chooser, Distribution, Generator};
use crate::paper::say;

/// Most records of figure 3.
const HYBRID_RECORDS: u64 = 10_000;

/// Opens a store in a directory of its own.
pub(super) fn open(
    store: StoreName,
    shape: Shape,
    memory: u64,
    directory: &Path,
) -> Result<Box<dyn ColumnStore>> {
    std::fs::create_dir(directory)
        .map_err(|error| Error::io(format!("create {}", directory.display()), error))?;
    match store.layout() {
        Some(layout) => heap::open(layout, shape, memory, directory),
        None => own::open(shape, memory, directory),
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

    fn names(&self) -> Vec<String> {
        vec![
            self.order.to_string(),
            self.distribution.to_string(),
            self.work(),
            self.threads.to_string(),
        ]
    }

    fn paper(&self) -> &'static str {
        match (self.figure, self.work) {
            (Figure::Fig10, Work::Scans { .. }) => published::SCANS,
            (Figure::Fig13, Work::Points { updates: 90 }) => published::WRITE_INTENSIVE,
            _ => "",
        }
    }
}

fn works(how: &IndexOrganized, figure: Figure) -> Vec<Work> {
    let points = |updates: &u32| Work::Points { updates: *updates };
    match figure {
        Figure::Fig10 => {
            vec![points(&0), points(&100), Work::Scans { records: how.ycsb.scan }]
        }
        Figure::Fig12 => [100, 90, 50, 10, 0].iter().map(points).collect(),
        Figure::Fig13 => [10, 50, 90].iter().map(points).collect(),
        _ => Vec::new(),
    }
}

/// What is measured on the records of one load, in this order.
fn cases(how: &IndexOrganized, figures: &[Figure], order: LoadOrder) -> Vec<Case> {
    let mut cases = Vec::new();
    for figure in figures.iter().copied() {
        let all = if figure == Figure::Fig13 { &how.threads[..] } else { &how.threads[..1] };
        for distribution in how.ycsb.distributions.iter().copied() {
            for work in works(how, figure) {
                for threads in all.iter().copied() {
                    cases.push(Case { figure, order, distribution, work, threads });
                }
            }
        }
    }
    cases
}

fn round(how: &IndexOrganized, case: &Case, records: u64) -> Round {
    let chooser = Chooser::new(case.distribution, Generator::Exact, how.ycsb.theta, records);
    Round {
        work: case.work,
        chooser,
        threads: case.threads,
        operations: how.ycsb.operations,
        columns: how.ycsb.columns,
        times: how.seconds.map(Duration::from_secs_f64),
        seed: how.seed,
    }
}

/// Measures figures 10, 12 and 13, those that are among `figures`.
pub(super) fn run(
    how: &IndexOrganized,
    figures: &[Figure],
    directory: &Path,
    out: &mut dyn Write,
) -> Result<()> {
    let Widths { read, update, scan } = how.ycsb.columns;
    let records = how.ycsb.records;
    let of_data = display_bytes(records * Shape::TEN.record_bytes());
    say(
        out,
        &format!(
            "\n{records} records of ten columns of 100 B ({of_data}), memory {} each, buffered.\n\
             Transactions: {} operations, or one scan. Columns: look-up {read}, update {update}, scan {scan}.",
            display_bytes(how.memory),
            how.ycsb.operations,
        ),
    )?;
    let mut lines: Vec<(Case, Vec<Measured>)> = Vec::new();
    for order in how.ycsb.orders.iter().copied() {
        let first = lines.len();
        lines.extend(cases(how, figures, order).into_iter().map(|case| (case, Vec::new())));
        for name in how.stores.iter().copied() {
            let own = directory.join(format!("{name}-{order}"));
            let (clock, store) = (Runtime::threads(), open(name, Shape::TEN, how.memory, &own)?);
            let load_order = if order == LoadOrder::Key { Order::Key } else { Order::Random };
            store.load(Load { records, order: load_order, seed: how.seed })?;
            let loaded = clock.now().as_secs_f64();
            let before = store.used_bytes();
            for (case, measured) in &mut lines[first..] {
                let round = round(how, case, records);
                measured.push(measure(&*store, &round, how.interrupted)?);
            }
            let [before, after] = [before, store.used_bytes()].map(display_bytes);
            say(
                out,
                &format!(
                    "{name}: loaded in {order} order in {loaded:.1} s, {before}; {after} at the end"
                ),
            )?;
            store.close()?;
        }
    }
    for figure in [Figure::Fig10, Figure::Fig12, Figure::Fig13] {
        if figures.contains(&figure) {
            let of_figure = lines.iter().filter(|(case, _)| case.figure == figure);
            tell(how, figure, &of_figure.collect::<Vec<_>>(), out)?;
        }
    }
    Ok(())
}

/// Prints the tables of a figure.
fn tell(
    how: &IndexOrganized,
    figure: Figure,
    lines: &[&(Case, Vec<Measured>)],
    out: &mut dyn Write,
) -> Result<()> {
    let names = ["load", "chosen", "work", "threads"];
    let mut table = |title: &str, digits, with_paper: bool, of: &dyn Fn(&Measured) -> f64| {
        let line = |(case, measured): &&(Case, Vec<Measured>)| Line {
            names: case.names(),
            numbers: measured.iter().map(|one| Some(of(one))).collect(),
            paper: if with_paper { case.paper() } else { "" },
        };
        let lines = lines.iter().map(line).collect();
        Lines { title, names: &names, stores: &how.stores, digits, lines }.print(out)
    };
    let rates = format!("{figure}: thousand operations (scanned records) per second");
    table(&rates, 1, true, &|one| one.rate() / 1e3)?;
    table("Conflicts in percent of all runs", 2, false, &|one| 100.0 * one.aborts())?;
    table("p99 of transactions in microseconds", 0, false, &p99_us)
}

#[expect(clippy::cast_precision_loss, reason = "a latency with few digits")]
fn p99_us(one: &Measured) -> f64 {
    one.times.value_at_quantile(0.99) as f64 / 1e3
}

/// Measures figure 3.
pub(super) fn hybrid(how: &IndexOrganized, directory: &Path, out: &mut dyn Write) -> Result<()> {
    let records = how.ycsb.records.min(HYBRID_RECORDS);
    let scan = how.ycsb.scan.min(usize::try_from(records).unwrap_or(usize::MAX));
    let case = |work| Case {
        figure: Figure::Fig3,
        order: LoadOrder::Key,
        distribution: Distribution::Zipfian,
        work,
        threads: 1,
    };
    let cases = [Work::Points { updates: 100 }, Work::Scans { records: scan }].map(case);
    let rounds = cases.map(|case| round(how, &case, records));
    say(
        out,
        &format!(
            "\nfig3: {records} records of 1000 B, Zipf {}: a thread of updates beside one of scans. \
             The paper's figure is the time that its parts take; a profiler tells it while a store is measured:",
            how.ycsb.theta
        ),
    )?;
    let mut measured = Vec::new();
    for name in how.stores.iter().copied() {
        let own = directory.join(format!("{name}-hybrid"));
        let store = open(name, Shape::TEN, how.memory, &own)?;
        store.load(Load { records, order: Order::Key, seed: how.seed })?;
        say_profiler(out, name.name(), how.seconds)?;
        measured.push(measure_each(&*store, &rounds.each_ref(), how.interrupted)?);
        store.close()?;
    }
    let line = |at: usize, of: &dyn Fn(&Measured) -> f64| Line {
        names: vec![cases[at].work()],
        numbers: measured.iter().map(|each| each.get(at).map(of)).collect(),
        paper: "",
    };
    let mut table = |title, digits, of: &dyn Fn(&Measured) -> f64| {
        let lines = vec![line(0, of), line(1, of)];
        Lines { title, names: &["work"], stores: &how.stores, digits, lines }.print(out)
    };
    table("fig3: thousand operations (scanned records) per second", 1, &|one| one.rate() / 1e3)?;
    table("Conflicts in percent of all runs", 2, &|one| 100.0 * one.aborts())?;
    let at = |store| how.stores.iter().position(|one| *one == store);
    let rate = |store| Some(measured.get(at(store)?)?.get(1)?.rate());
    let (row, column) = (rate(StoreName::Row), rate(StoreName::Column));
    say_gap(out, "Scans, column / row", ratio(column, row), published::HYBRID_GAP)
}

/// Prints a ratio of two stores that are not `iot`, with the paper's.
pub(super) fn say_gap(
    out: &mut dyn Write,
    what: &str,
    ratio: Option<f64>,
    paper: &str,
) -> Result<()> {
    match ratio {
        Some(ratio) => say(out, &format!("{what}: {ratio:.2}; the paper: {paper}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::index_organized::plan::small;

    #[test]
    fn figures_are_measured_and_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        let how = small(directory.path());
        run(&how, &[Figure::Fig10, Figure::Fig13], directory.path(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for words in ["x row", "scans of 50", "90 % updates", "row+column: loaded in key order"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
    }

    #[test]
    fn one_updates_and_one_scans() {
        let directory = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        hybrid(&small(directory.path()), directory.path(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for words in ["1000 records", "iot: perf record", "| scans of 50", "Scans, column / row"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
    }
}
