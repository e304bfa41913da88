//! Figures 11 and 14 to 17: TPC-C.
//!
//! | figure | threads run | by |
//! |---|---|---|
//! | 11 | New-Order | warehouses |
//! | 14 | RA, RB, RC | threads |
//! | 15 | RC | warehouses |
//! | 16 | RC, over `iot` alone | |
//! | 17 | one thread Query 2, the others New-Order | threads |
//!
//! Each measurement loads the tables of each store, and checks their consistency at the end.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use spinney_base::size::display_bytes;
use spinney_base::{Error, ErrorKind, Result, Runtime};

use super::lines::{Line, Lines, say_profiler};
use super::plan::{Figure, IndexOrganized, StoreName};
use super::published;
use crate::driver::{Knobs, OpenConfig};
use crate::paper::say;
use crate::parent::interrupted;
use crate::plan::{Durability, TornWrites};
use crate::tpcc::run::{Mix, NEW_ORDER, QUERY_2, TpccPlan};
use crate::tpcc::schema::{FIELDS, table};
use crate::transactional::plan::WorkloadPlan;
use crate::transactional::threads::{Measured, OfKind, Round, measure};
use crate::transactional::{Chains, TransactionalDriver, heap, own};

/// Share of a measurement after which versions are counted.
const COUNTED_AT: f64 = 0.5;

/// Order lines of a New-Order on the average, each of which writes a record of the stock.
const LINES: f64 = 10.0;

/// One line of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    figure: Figure,
    mix: Mix,
    warehouses: u16,
    threads: usize,
}

/// What one store did.
struct Ran {
    measured: Measured,
    /// Versions of the stock.
    chains: Option<Chains>,
    /// Records of the stock.
    stock: f64,
    /// Whether some threads ran Query 2.
    has_query: bool,
}

fn cases(how: &IndexOrganized, figure: Figure) -> Vec<Case> {
    let (threads, warehouses) = (&how.threads, &how.tpcc.warehouses);
    let last = warehouses.last().copied().unwrap_or(1);
    let case = |mix, warehouses, threads| Case { figure, mix, warehouses, threads };
    let by_warehouses = |mix| {
        let all = warehouses.iter();
        all.map(|warehouses| case(mix, *warehouses, threads[0])).collect()
    };
    let by_threads = |mix| threads.iter().map(move |threads| case(mix, last, *threads));
    match figure {
        Figure::Fig11 => by_warehouses(Mix::NewOrder),
        Figure::Fig14 => [Mix::Ra, Mix::Rb, Mix::Rc].into_iter().flat_map(by_threads).collect(),
        // One thread would run New-Order alone.
        Figure::Fig15 => {
            let two = |case: Case| Case { threads: case.threads.max(2), ..case };
            by_warehouses(Mix::Rc).into_iter().map(two).collect()
        }
        Figure::Fig16 => vec![case(Mix::Rc, last, threads[0].max(2))],
        Figure::Fig17 => {
            let one_more = |case: Case| Case { threads: case.threads + 1, ..case };
            by_threads(Mix::OneQuery).map(one_more).collect()
        }
        _ => Vec::new(),
    }
}

/// Measures one of the figures. Returns whether the tables are consistent.
pub(super) fn run(
    how: &IndexOrganized,
    figure: Figure,
    directory: &Path,
    out: &mut dyn Write,
) -> Result<bool> {
    let stores = if figure == Figure::Fig16 { &[StoreName::Iot][..] } else { &how.stores };
    let cases = cases(how, figure);
    let scale = how.tpcc.scale;
    say(
        out,
        &format!(
            "\n{figure}: TPC-C at scale 1/{scale}, memory {} each, buffered",
            display_bytes(how.memory)
        ),
    )?;
    if figure == Figure::Fig16 {
        say(out, &format!("The paper's shares of time: {}.", published::BREAKDOWN))?;
        say(
            out,
            "A profiler tells ours while the store is measured; perf report --no-children shows them:",
        )?;
    }
    let (mut lines, mut all_hold) = (Vec::new(), true);
    for case in cases {
        let mut each = Vec::new();
        for store in stores.iter().copied() {
            let own = directory.join(format!("{store}-tpcc"));
            let ran = match run_one(how, &case, store, &own, out) {
                Ok((ran, broken)) => {
                    if let Some(broken) = broken {
                        all_hold = false;
                        say(out, &format!("{store}: broken: {broken}"))?;
                    }
                    Some(ran)
                }
                Err(error) if error.kind() == ErrorKind::Full => {
                    say(out, &format!("{store}: no numbers: {error}"))?;
                    None
                }
                Err(error) => return Err(error),
            };
            each.push(ran);
            // The next store finds the disk as this one did. What is left goes with the directory.
            let _ = std::fs::remove_dir_all(&own);
        }
        lines.push((case, each));
    }
    tell(figure, stores, &lines, out)?;
    Ok(all_hold)
}

fn driver_of(store: StoreName) -> Result<Box<dyn TransactionalDriver>> {
    let mut all = heap::drivers(FIELDS).into_iter().chain(own::drivers(&[]));
    let missing = || Error::new(ErrorKind::NotFound, format!("no store is named {store}"));
    all.find(|driver| driver.name() == store.name()).ok_or_else(missing)
}

/// Loads, measures and checks one store. Returns what it did, and what is wrong with its tables.
fn run_one(
    how: &IndexOrganized,
    case: &Case,
    name: StoreName,
    directory: &Path,
    out: &mut dyn Write,
) -> Result<(Ran, Option<String>)> {
    std::fs::create_dir(directory)
        .map_err(|error| Error::io(format!("create {}", directory.display()), error))?;
    let Case { figure, mix, warehouses, threads } = *case;
    let plan = TpccPlan { mix, warehouses, scale: how.tpcc.scale };
    let workload = WorkloadPlan::Tpcc(plan).make(how.seed);
    let config = OpenConfig {
        directory: directory.to_owned(),
        memory: how.memory,
        durability: Durability::Buffered,
        torn_writes: TornWrites::Auto,
        threads,
        keyspaces: workload.tables().len(),
        knobs: Knobs::new(),
    };
    let driver = driver_of(name)?;
    let (store, clock) = (driver.open(&config, workload.tables())?, Runtime::threads());
    let (_, bytes) = workload.load(&*store)?;
    let (loaded, bytes) = (clock.now().as_secs_f64(), display_bytes(bytes));
    // As `bench tpcc` does: the measurement begins on tables that were opened.
    store.close()?;
    let store = driver.open(&config, workload.tables())?;
    say(
        out,
        &format!(
            "{figure}, {mix}, warehouses: {warehouses}, threads: {threads}, {name}: loaded {bytes} in {loaded:.1} s"
        ),
    )?;
    if figure == Figure::Fig16 {
        say_profiler(out, name.name(), how.seconds)?;
    }
    let [warmup, time] = how.seconds.map(Duration::from_secs_f64);
    let round = Round { number: 0, threads, warmup, time, operations: None };
    let mut chains = None;
    let measured = measure(&*store, &*workload, round, &mut |part, _| {
        if (how.interrupted)() {
            return Err(interrupted("the run was interrupted"));
        }
        if figure == Figure::Fig17 && part >= COUNTED_AT && chains.is_none() {
            chains = store.chains(table::STOCK);
        }
        Ok(())
    })?;
    let broken = workload.check(&mut *store.session()?)?;
    store.close()?;
    let stock = f64::from(warehouses) * f64::from(plan.size().items());
    let has_query = match mix {
        Mix::Rc => threads > 1,
        mix => mix == Mix::OneQuery,
    };
    Ok((Ran { measured, chains, stock, has_query }, broken))
}

#[expect(clippy::cast_precision_loss, reason = "numbers with few digits")]
impl Ran {
    /// Transactions that committed in a second; of one kind or of all.
    fn rate(&self, kind: Option<usize>) -> f64 {
        let of = |(at, one): (usize, &OfKind)| {
            if kind.is_none_or(|kind| kind == at) { one.committed } else { 0 }
        };
        let committed: u64 = self.measured.kinds.iter().enumerate().map(of).sum();
        committed as f64 / self.measured.seconds.max(1e-9)
    }

    /// Runs that ended by a conflict, in percent of all.
    fn aborts(&self) -> f64 {
        let sum = |of: fn(&OfKind) -> u64| -> u64 { self.measured.kinds.iter().map(of).sum() };
        let (retries, ended) = (sum(|one| one.retries), sum(|one| one.committed + one.rolled_back));
        100.0 * retries as f64 / (retries + ended).max(1) as f64
    }

    /// Mean latency of Query 2 in milliseconds, if any has ended.
    fn query_ms(&self) -> Option<f64> {
        let times = &self.measured.kinds.get(QUERY_2)?.times;
        (!times.is_empty()).then(|| times.mean() / 1e6)
    }

    /// Versions of a record of the stock.
    fn versions(&self) -> Option<f64> {
        let chains = self.chains?;
        Some(1.0 + chains.older as f64 / chains.records.max(1) as f64)
    }

    /// Versions of a record of the stock that has older ones.
    fn versions_of_changed(&self) -> Option<f64> {
        let chains = self.chains.filter(|chains| chains.with_older > 0)?;
        Some(1.0 + chains.older as f64 / chains.with_older as f64)
    }

    /// New versions of a record of the stock while a query runs.
    fn written_meanwhile(&self) -> Option<f64> {
        let lines = self.rate(Some(NEW_ORDER)) * LINES;
        Some(lines * self.query_ms()? / 1e3 / self.stock)
    }
}

/// Prints the tables of a figure.
fn tell(
    figure: Figure,
    stores: &[StoreName],
    lines: &[(Case, Vec<Option<Ran>>)],
    out: &mut dyn Write,
) -> Result<()> {
    let mut print = |title: &str, digits, paper, of: &dyn Fn(&Ran) -> Option<f64>| {
        let line = |(case, each): &(Case, Vec<Option<Ran>>)| {
            // The one that reads is not among the threads of figure 17.
            let threads = case.threads - usize::from(figure == Figure::Fig17);
            let names = [case.mix.to_string(), case.warehouses.to_string(), threads.to_string()];
            Line {
                names: names.to_vec(),
                numbers: each.iter().map(|ran| ran.as_ref().and_then(of)).collect(),
                paper,
            }
        };
        let title = format!("{figure}: {title}");
        let threads = if figure == Figure::Fig17 { "New-Order threads" } else { "threads" };
        let names = ["mix", "warehouses", threads];
        let lines = lines.iter().map(line).collect();
        Lines { title: &title, names: &names, stores, digits, lines }.print(out)
    };
    let query = "mean latency of Query 2 in milliseconds";
    let (throughput, aborts, latency) = match figure {
        Figure::Fig11 => (published::NEW_ORDER, "", ""),
        Figure::Fig14 => (published::HYBRID_THROUGHPUT, published::HYBRID_ABORTS, ""),
        Figure::Fig15 => ("", "", published::QUERY_LATENCY),
        _ => ("", "", ""),
    };
    if [Figure::Fig15, Figure::Fig17].contains(&figure) {
        print(query, 2, latency, &Ran::query_ms)?;
    }
    print("transactions per second", 0, throughput, &|ran| Some(ran.rate(None)))?;
    if figure != Figure::Fig11 {
        let queries = |ran: &Ran| ran.has_query.then(|| ran.rate(Some(QUERY_2)));
        print("Query 2 among them", 2, "", &queries)?;
    }
    let conflicts = "conflicts in percent of all runs of transactions that ended in time";
    print(conflicts, 2, aborts, &|ran| Some(ran.aborts()))?;
    match figure {
        Figure::Fig14 => say(
            out,
            "The paper's ratios are those of many threads. One thread of rc runs New-Order alone.",
        ),
        Figure::Fig15 => say(
            out,
            "The paper's latency is the median of three runs, its ratio that with 36 warehouses.",
        ),
        Figure::Fig17 => {
            print("versions of a record of the stock, counted", 2, "", &Ran::versions)?;
            let changed = "versions of a record of the stock that has older ones, counted";
            print(changed, 2, "", &Ran::versions_of_changed)?;
            let meanwhile = "versions that a record of the stock gets during a query, computed \
                             from rate and latency";
            print(meanwhile, 3, "", &Ran::written_meanwhile)?;
            say(out, "iot counts no versions.")?;
            say(out, &format!("The paper: {}.", published::CHAINS))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::index_organized::plan::small;

    #[test]
    fn each_figure_has_its_cases() {
        let how = small(Path::new("."));
        let count = |figure| cases(&how, figure).len();
        let figures = [Figure::Fig11, Figure::Fig14, Figure::Fig15, Figure::Fig16, Figure::Fig17];
        assert_eq!(figures.map(count), [2, 6, 2, 1, 2]);
        let last = cases(&how, Figure::Fig17)[1];
        assert_eq!((last.mix, last.warehouses, last.threads), (Mix::OneQuery, 2, 2));
    }

    fn text_of(figure: Figure, seconds: f64) -> String {
        let directory = tempfile::tempdir().unwrap();
        let mut how = small(directory.path());
        how.seconds = [0.0, seconds];
        how.tpcc.warehouses = vec![1];
        how.threads = vec![2];
        let mut out = Vec::new();
        let holds = run(&how, figure, directory.path(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(holds, "{text}");
        text
    }

    #[test]
    fn new_order_is_measured_on_all_stores() {
        let text = text_of(Figure::Fig11, 0.02);
        for words in ["x row+column", "| new-order", "row+column: loaded", "conflicts in percent"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
    }

    #[test]
    fn mixes_are_measured_on_all_stores() {
        let text = text_of(Figure::Fig14, 0.02);
        for words in ["| ra ", "| rb ", "| rc ", "| up to 1.6 |", " 0.6 |"] {
            assert!(text.contains(words), "{words} is not in:\n{text}");
        }
    }

    #[test]
    fn a_store_without_room_has_no_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let mut how = small(directory.path());
        (how.memory, how.tpcc.scale) = (4 << 20, 10);
        (how.tpcc.warehouses, how.stores) = (vec![1], vec![StoreName::Row, StoreName::Iot]);
        let mut out = Vec::new();
        assert!(run(&how, Figure::Fig11, directory.path(), &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("row: no numbers") && text.contains("iot: no numbers"), "{text}");
    }

    #[test]
    fn a_profiler_may_be_attached() {
        let text = text_of(Figure::Fig16, 0.02);
        assert!(text.contains("iot: perf record") && !text.contains("row"), "{text}");
    }

    #[test]
    fn queries_have_latencies_and_chains_lengths() {
        let text = text_of(Figure::Fig15, 0.3);
        assert!(text.contains("mean latency of Query 2"), "{text}");
        let text = text_of(Figure::Fig17, 0.3);
        assert!(text.contains("iot counts no versions"), "{text}");
        // One table of the heap's stores has lengths, which are 1 at least.
        let counted = text.split("older ones, counted").nth(1).unwrap();
        let line = counted.lines().find(|line| line.starts_with("| one-query")).unwrap();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert!(cells[4].parse::<f64>().is_ok_and(|length| length >= 1.0), "{line}");
        assert_eq!(cells[7], "-", "{line}");
    }
}
