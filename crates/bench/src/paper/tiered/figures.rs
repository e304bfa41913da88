//! What each figure runs and prints.
//!
//! Figures that need the same runs share them: tables 1 and 2 with figures 12 and 13, and figure 14
//! with figure 15.

use std::io::Write;

use spinney_base::Result;
use spinney_base::size::display_bytes;

use crate::distribution::Generator;
use crate::paper::tiered::arithmetic::{self, Cached, Model};
use crate::paper::tiered::published::{self, Published};
use crate::paper::tiered::runs::{PLACES, Ran, moved, reads, requests};
use crate::paper::tiered::{Figure, Tiered};
use crate::paper::{draw, say};
use crate::parent::OwnDirectory;
use crate::plan::{Durability, Plan, Workload};
use crate::table::grouped;

/// Sizes of records in figure 18.
const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 2048];
/// Exponents in figure 19.
const EXPONENTS: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.9, 1.1];
/// Threads in figure 20, its exponent, and its memory as a multiple of the data.
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const EXPONENT_OF_THREADS: f64 = 0.96;
const ALL_CACHED: u64 = 3;
/// The option of figure 21, and what it is set to: copies stay in the cold tier, or leave it.
const PROMOTION: (&str, [&str; 2]) = ("tiering", ["inclusive", "exclusive"]);

/// Runs of one figure: an engine, a budget, and what came of it.
type Grid = Vec<(String, u64, Option<Ran>)>;

/// Prints figures one after the other.
pub(super) struct Report<'a> {
    how: &'a Tiered,
    out: &'a mut dyn Write,
    directory: OwnDirectory,
    /// With the run's generator, then with the other one.
    models: Option<[Option<Model>; 2]>,
    well: bool,
}

/// A number with three digits, or nothing.
fn shown(number: Option<f64>) -> String {
    match number {
        Some(number) if number < 10.0 => format!("{number:.3}"),
        Some(number) => format!("{number:.1}"),
        None => "-".to_owned(),
    }
}

/// How many times the first is the second.
fn times(one: Option<f64>, other: Option<f64>) -> String {
    match one.zip(other) {
        Some((one, other)) if other > 0.0 => format!("{:.2}", one / other),
        _ => "-".to_owned(),
    }
}

/// What an engine caches, where that is known.
fn cached(engine: &str, page: u64) -> Option<Cached> {
    match engine {
        "btree" => Some(Cached::Pages(page)),
        "2btree" => Some(Cached::Tier),
        "treeline" => Some(Cached::Ring),
        _ => None,
    }
}

fn ran<'a>(grid: &'a Grid, engine: &str, memory: u64) -> Option<&'a Ran> {
    grid.iter().find(|one| one.0 == engine && one.1 == memory)?.2.as_ref()
}

impl<'a> Report<'a> {
    pub(super) fn new(how: &'a Tiered, out: &'a mut dyn Write) -> Result<Self> {
        let directory = OwnDirectory::create(&how.directory, false)?;
        Ok(Report { how, out, directory, models: None, well: true })
    }

    pub(super) fn run(mut self, figures: &[Figure]) -> Result<bool> {
        let has = |any: &[Figure]| any.iter().any(|figure| figures.contains(figure));
        let how = self.how;
        let headline = format!(
            "{} records of {} B, Zipf {} by the {} generator, {} threads, {} s after {} s",
            how.records,
            how.record_size,
            how.theta,
            how.zipf,
            how.threads,
            how.seconds[1],
            how.seconds[0]
        );
        say(self.out, &headline)?;
        self.without_log(&has)?;
        self.with_log(&has)?;
        if has(&[Figure::Fig16]) {
            let grid = self.grid(Durability::None, &[Workload::Load, Workload::Su])?;
            self.rates("fig16", &grid, Workload::Su)?;
        }
        for figure in figures {
            match figure {
                Figure::Fig17 => self.shift()?,
                Figure::Fig18 => self.sizes()?,
                Figure::Fig19 => self.exponents()?,
                Figure::Fig20 => self.threads()?,
                Figure::Fig21 => self.promotion()?,
                _ => {}
            }
        }
        Ok(self.well)
    }

    fn without_log(&mut self, has: &dyn Fn(&[Figure]) -> bool) -> Result<()> {
        let is_steady = has(&[Figure::Table2, Figure::Fig13]);
        if !is_steady && !has(&[Figure::Table1, Figure::Fig12]) {
            return Ok(());
        }
        let all = [Workload::Load, Workload::C, Workload::F];
        let grid = self.grid(Durability::None, if is_steady { &all } else { &all[..1] })?;
        if has(&[Figure::Table1]) {
            self.load_bytes(&grid)?;
        }
        if has(&[Figure::Fig12]) {
            self.rates("fig12", &grid, Workload::Load)?;
        }
        if has(&[Figure::Table2]) {
            self.requests(&grid)?;
        }
        if has(&[Figure::Fig13]) {
            self.rates("fig13", &grid, Workload::C)?;
            self.rates("fig13", &grid, Workload::F)?;
        }
        Ok(())
    }

    fn with_log(&mut self, has: &dyn Fn(&[Figure]) -> bool) -> Result<()> {
        let is_steady = has(&[Figure::Fig15]);
        if !is_steady && !has(&[Figure::Fig14]) {
            return Ok(());
        }
        let all = [Workload::Load, Workload::C, Workload::F];
        let grid = self.grid(Durability::Buffered, if is_steady { &all } else { &all[..1] })?;
        if has(&[Figure::Fig14]) {
            self.rates("fig14", &grid, Workload::Load)?;
        }
        if is_steady {
            self.rates("fig15", &grid, Workload::C)?;
            self.rates("fig15", &grid, Workload::F)?;
        }
        Ok(())
    }

    /// Runs a plan.
    fn one(&mut self, plan: Plan) -> Result<Option<Ran>> {
        let ran = self.how.measure(plan, &self.directory.path, self.out)?;
        self.well &= ran.is_some();
        Ok(ran)
    }

    /// Runs workloads on each engine with each budget.
    fn grid(&mut self, durability: Durability, workloads: &[Workload]) -> Result<Grid> {
        let mut grid = Grid::new();
        for &memory in &self.how.budgets {
            for engine in &self.how.engines {
                let plan = self.how.plan(engine, memory, durability);
                let ran = self.one(Plan { workloads: workloads.to_vec(), ..plan })?;
                grid.push((engine.clone(), memory, ran));
            }
        }
        Ok(grid)
    }

    /// Misses that arithmetic allows an engine, with the run's generator and with the other one.
    fn least(&mut self, engine: &str, memory: u64) -> [Option<f64>; 2] {
        let how = self.how;
        let models = self.models.get_or_insert_with(|| {
            let other = match how.zipf {
                Generator::Exact => Generator::Authors,
                Generator::Authors => Generator::Exact,
            };
            [how.zipf, other].map(|generator| {
                let is_possible = generator == Generator::Exact || how.theta < 1.0;
                let model = || Model::new(generator, how.theta, how.records, how.record_size);
                is_possible.then(model)
            })
        });
        let cached = cached(engine, how.page);
        models.each_ref().map(|model| Some(model.as_ref()?.misses(cached?, memory)))
    }

    fn print(
        &mut self,
        title: &str,
        header: &[&str],
        names: usize,
        rows: Vec<Vec<String>>,
    ) -> Result<()> {
        say(self.out, "")?;
        say(self.out, title)?;
        say(self.out, &draw(header, names, rows))
    }

    /// Table 1.
    fn load_bytes(&mut self, grid: &Grid) -> Result<()> {
        let how = self.how;
        let mut rows = Vec::new();
        for (engine, memory, _) in grid {
            let ours = |engine: &str| Some(moved(ran(grid, engine, *memory)?.row(Workload::Load)?));
            let budget = published::budget(*memory, how.data());
            let paper = |engine| published::number(Published::LoadBytes, engine, budget);
            let load = |kind| arithmetic::load(kind, how.records, how.record_size, *memory);
            let base = &how.engines[0];
            rows.push(vec![
                display_bytes(*memory),
                engine.clone(),
                shown(ours(engine)),
                shown(paper(engine)),
                shown(cached(engine, how.page).and_then(load)),
                times(ours(base), ours(engine)),
                times(paper(base), paper(engine)),
            ]);
        }
        let header = ["memory", "engine", "ours", "paper", "least", "fewer", "paper"];
        self.print("table1: bytes moved for each byte that a load inserts", &header, 2, rows)
    }

    /// Table 2.
    fn requests(&mut self, grid: &Grid) -> Result<()> {
        let how = self.how;
        let mut rows = Vec::new();
        for (engine, memory, ran) in grid {
            let budget = published::budget(*memory, how.data());
            let row = |workload| ran.as_ref().and_then(|ran| ran.row(workload));
            let [least, other] = self.least(engine, *memory);
            rows.push(vec![
                display_bytes(*memory),
                engine.clone(),
                shown(row(Workload::C).map(requests)),
                shown(published::number(Published::Reads, engine, budget)),
                shown(least),
                shown(other),
                shown(row(Workload::F).map(requests)),
                shown(row(Workload::F).map(reads)),
                shown(published::number(Published::Updates, engine, budget)),
            ]);
        }
        let other = if how.zipf == Generator::Exact { "least, authors" } else { "least, exact" };
        let header = ["memory", "engine", "C", "paper", "least", other, "F", "F, reads", "paper"];
        self.print("table2: requests of an operation in steady state", &header, 2, rows)
    }

    /// Rates of a workload beside those of the base, and how many times fewer its misses are and
    /// could be.
    fn rates(&mut self, figure: &str, grid: &Grid, workload: Workload) -> Result<()> {
        let how = self.how;
        let base = &how.engines[0];
        let mut rows = Vec::new();
        for (engine, memory, _) in grid {
            let row = |engine: &str| ran(grid, engine, *memory)?.row(workload);
            let rate = |engine: &str| row(engine).map(|row| row.ops_per_second);
            let budget = published::budget(*memory, how.data());
            let most = match workload {
                Workload::Load => {
                    let least = |engine: &str| {
                        let cached = cached(engine, how.page)?;
                        arithmetic::load(cached, how.records, how.record_size, *memory)
                    };
                    times(least(base), least(engine))
                }
                Workload::Su => "-".to_owned(),
                _ => times(self.least(base, *memory)[0], self.least(engine, *memory)[0]),
            };
            let counted = if workload == Workload::Load { moved } else { requests };
            rows.push(vec![
                display_bytes(*memory),
                engine.clone(),
                rate(engine).map_or_else(|| "-".to_owned(), grouped),
                times(rate(engine), rate(base)),
                published::ratio(figure, workload.name(), engine, budget).to_owned(),
                times(row(base).map(counted), row(engine).map(counted)),
                most,
            ]);
        }
        let counted = if workload == Workload::Load { "fewer bytes" } else { "fewer requests" };
        let header = ["memory", "engine", "ops/s", "x base", "paper", counted, "most"];
        let title = format!("{figure}: {} ({})", workload, workload.meaning());
        self.print(&title, &header, 2, rows)
    }

    /// Figure 17, without what is about the LSM-tree.
    fn shift(&mut self) -> Result<()> {
        let how = self.how;
        let (memory, seconds) = (how.budget(), how.seconds[1] * f64::from(PLACES));
        let mut rows = Vec::new();
        for engine in &how.engines {
            let plan = how.plan(engine, memory, Durability::None);
            let workloads = vec![Workload::Load, Workload::C, Workload::Shift];
            let Some(ran) = self.one(Plan { workloads, seconds, ..plan })? else { continue };
            let Some(steady) = ran.row(Workload::C).map(|row| row.ops_per_second) else { continue };
            let place = |place: u32| f64::from(place) * how.seconds[1];
            let mut reached: Vec<f64> = (1..PLACES)
                .filter_map(|jump| ran.points.until(place(jump), place(jump + 1), steady))
                .collect();
            reached.sort_unstable_by(f64::total_cmp);
            rows.push(vec![
                engine.clone(),
                grouped(steady),
                grouped(ran.row(Workload::Shift).map_or(0.0, |row| row.ops_per_second)),
                format!("{} of {}", reached.len(), PLACES - 1),
                // Jumps after which it was never reached are the longest ones.
                shown(reached.get(PLACES as usize / 2 - 1).copied()),
            ]);
        }
        let header = ["engine", "c, ops/s", "shift, ops/s", "at 90 %", "s to 90 %, median"];
        let title = format!(
            "fig17: jumps of the hot set, {} of memory; the paper: 2btree steady 33 min after a load, \
             its base the fastest after a jump",
            display_bytes(memory)
        );
        self.print(&title, &header, 1, rows)
    }

    /// A row for each engine: its rate and reads beside the base's, and what arithmetic allows.
    fn beside_base(
        &mut self,
        label: &str,
        memory: u64,
        model: &Model,
        change: &dyn Fn(Plan) -> Plan,
        paper: &dyn Fn(&str, Workload) -> &'static str,
    ) -> Result<Vec<Vec<String>>> {
        let how = self.how;
        let mut runs = Vec::new();
        for engine in &how.engines {
            let plan = change(how.plan(engine, memory, Durability::None));
            let workloads = vec![Workload::Load, Workload::C, Workload::F];
            runs.push((engine, self.one(Plan { workloads, ..plan })?));
        }
        let least = |engine: &str| Some(model.misses(cached(engine, how.page)?, memory));
        let row = |place: usize, workload| {
            runs.get(place).and_then(|one| one.1.as_ref()).and_then(|ran| ran.row(workload))
        };
        let rate = |place, workload| row(place, workload).map(|row| row.ops_per_second);
        let rows = how.engines.iter().enumerate().map(|(place, engine)| {
            let mut cells = vec![label.to_owned(), engine.clone()];
            cells.push(shown(row(place, Workload::C).map(requests)));
            cells.push(shown(least(engine)));
            cells.push(times(least(&how.engines[0]), least(engine)));
            for workload in [Workload::C, Workload::F] {
                cells.push(times(rate(place, workload), rate(0, workload)));
                cells.push(paper(engine, workload).to_owned());
            }
            cells
        });
        Ok(rows.collect())
    }

    /// Figure 18: as many bytes in records of each size.
    fn sizes(&mut self) -> Result<()> {
        let (how, memory) = (self.how, self.how.budget());
        let mut rows = Vec::new();
        for size in SIZES {
            let records = (how.data() / size as u64).max(1);
            let model = Model::new(how.zipf, how.theta, records, size);
            let change = |plan| Plan { records, record_size: size, ..plan };
            let paper = |engine: &str, workload| match (engine, workload, size) {
                ("2btree", Workload::C, 64) => "5",
                ("2btree", Workload::C, 2048) => "3",
                _ => "-",
            };
            rows.extend(self.beside_base(&format!("{size} B"), memory, &model, &change, &paper)?);
        }
        let title = format!("fig18: sizes of records, {} of memory", display_bytes(memory));
        self.print(&title, &beside_base_header("record"), 2, rows)
    }

    /// Figure 19: exponents of the Zipf law, by the exact generator, as in the paper.
    fn exponents(&mut self) -> Result<()> {
        let (how, memory) = (self.how, self.how.budget());
        let mut rows = Vec::new();
        for theta in EXPONENTS {
            let model = Model::new(Generator::Exact, theta, how.records, how.record_size);
            let change = |plan| Plan { theta, zipf: Generator::Exact, ..plan };
            let paper = |engine: &str, workload| match (engine, workload) {
                ("2btree", _) if theta < 0.4 => "1",
                ("2btree", Workload::F) if theta > 1.0 => "4.5",
                _ => "-",
            };
            rows.extend(self.beside_base(&format!("{theta}"), memory, &model, &change, &paper)?);
        }
        let title = format!("fig19: exponents of the law, {} of memory", display_bytes(memory));
        self.print(&title, &beside_base_header("Zipf"), 2, rows)
    }

    /// Figure 20: threads, with everything in memory.
    fn threads(&mut self) -> Result<()> {
        let (how, memory) = (self.how, self.how.data().saturating_mul(ALL_CACHED));
        let mut rows = Vec::new();
        for engine in &how.engines {
            let mut single = [None; 2];
            for threads in THREADS {
                let plan = how.plan(engine, memory, Durability::None);
                let workloads = vec![Workload::Load, Workload::C, Workload::F];
                let plan = Plan { workloads, threads, theta: EXPONENT_OF_THREADS, ..plan };
                let ran = self.one(plan)?;
                let mut cells = vec![threads.to_string(), engine.clone()];
                for (place, workload) in [Workload::C, Workload::F].into_iter().enumerate() {
                    let row = ran.as_ref().and_then(|ran| ran.row(workload));
                    let rate = row.map(|row| row.ops_per_second);
                    single[place] = single[place].or(rate);
                    cells.push(rate.map_or_else(|| "-".to_owned(), grouped));
                    cells.push(times(rate, single[place]));
                }
                rows.push(cells);
            }
        }
        let header = ["threads", "engine", "c, ops/s", "x one", "f, ops/s", "x one"];
        let title = "fig20: threads, everything in memory, Zipf 0.96; the paper compares two ways to lock, \
                     of which ours has the optimistic one: there 1.78 (C) and 2.2 (F) times the other";
        self.print(title, &header, 2, rows)
    }

    /// Figure 21: the last engine with copies that stay in the cold tier, and that leave it.
    fn promotion(&mut self) -> Result<()> {
        let how = self.how;
        let Some(engine) = how.engines.last() else { return Ok(()) };
        let mut rows = Vec::new();
        for &memory in &how.budgets {
            let mut ran = Vec::new();
            for value in PROMOTION.1 {
                let mut plan = how.plan(engine, memory, Durability::None);
                plan.workloads = vec![Workload::Load, Workload::C, Workload::F];
                plan.knobs.insert(PROMOTION.0.to_owned(), value.to_owned());
                ran.push(self.one(plan)?);
            }
            let row = |place: usize, workload| {
                ran.get(place).and_then(Option::as_ref).and_then(|ran| ran.row(workload))
            };
            let rate = |place, workload| row(place, workload).map(|row| row.ops_per_second);
            rows.push(vec![
                display_bytes(memory),
                engine.clone(),
                times(rate(0, Workload::C), rate(1, Workload::C)),
                "up to 1.7".to_owned(),
                shown(row(0, Workload::C).map(requests)),
                shown(row(1, Workload::C).map(requests)),
                shown(self.least(engine, memory)[0]),
                times(rate(0, Workload::F), rate(1, Workload::F)),
            ]);
        }
        let header = ["memory", "engine", "C", "paper", "requests", "exclusive", "least", "F"];
        self.print("fig21: rates with inclusive over exclusive promotion", &header, 2, rows)
    }
}

fn beside_base_header(first: &'static str) -> [&'static str; 9] {
    [first, "engine", "C requests", "least", "most", "C x base", "paper", "F x base", "paper"]
}

/// The option and the value that figure 21 sets beside the default.
pub(super) fn exclusive() -> (&'static str, &'static str) {
    (PROMOTION.0, PROMOTION.1[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_three_digits() {
        assert_eq!([Some(0.1234), Some(151.0), None].map(shown), ["0.123", "151.0", "-"]);
        assert_eq!(times(Some(3.0), Some(2.0)), "1.50");
        assert_eq!([times(None, Some(2.0)), times(Some(1.0), Some(0.0))], ["-", "-"]);
    }
}
