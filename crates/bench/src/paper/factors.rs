//! Figures 8 and 10: what each technique gains where it should matter.
//!
//! A technique is switched off and on in turn, run after run, each in a process and on a database
//! of its own, so that what else happens on the machine meets both alike; medians are compared. The
//! paper's figure 8 is of its Amazon keys with records of 1 KiB and 16 threads, and switches
//! techniques off one after the other; it has no log and trusts the device with pages, as we do
//! here unless asked otherwise; its figure 10 is of taxi pickups, whose hot places move.

use std::io::Write;
use std::path::PathBuf;

use spinney_base::Result;

use crate::dataset::DatasetName;
use crate::distribution::{Distribution, Generator};
use crate::paper::{draw, say};
use crate::parent::{self, Interrupted, Measured, OwnDirectory};
use crate::plan::{Durability, LoadOrder, Plan, TornWrites, Workload};
use crate::row::Row;
use crate::table::grouped;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Factors {
    /// Records to load.
    pub records: u64,
    /// Bytes of key and value together.
    pub record_size: usize,
    /// Their keys.
    pub dataset: DatasetName,
    /// Runs with a technique, and as many without.
    pub runs: usize,
    /// Seconds of each workload but `drift`, which ends after twice as many operations as there are
    /// records.
    pub seconds: f64,
    /// Client threads.
    pub threads: usize,
    /// Memory budget in bytes.
    pub memory: u64,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Protection of pages written in place.
    pub torn_writes: TornWrites,
    /// Seed of keys and choices.
    pub seed: u64,
    /// Where to put databases: a directory of this run's own is made inside and removed at the end.
    pub directory: PathBuf,
    /// Arguments that make this program the child of a run.
    pub child_arguments: Vec<String>,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

/// A technique and where it should matter.
struct Technique {
    option: &'static str,
    distribution: Distribution,
    /// `load` first, whether it is shown or not.
    workloads: &'static [Workload],
    /// Workloads that are shown, with the ratio that the paper gives.
    shown: &'static [(Workload, &'static str)],
}

const FORECAST: Technique = Technique {
    option: "forecast",
    distribution: Distribution::Zipfian,
    workloads: &[Workload::Load, Workload::Drift],
    shown: &[(Workload::Drift, "1.22")],
};

const TECHNIQUES: [Technique; 4] = [
    Technique {
        option: "page-grouping",
        distribution: Distribution::Zipfian,
        workloads: &[Workload::Load, Workload::C, Workload::A, Workload::E, Workload::S],
        shown: &[
            (Workload::Load, "-"),
            (Workload::C, "-"),
            (Workload::A, "-"),
            (Workload::E, "1.87"),
            (Workload::S, "-"),
        ],
    },
    Technique {
        option: "record-cache",
        distribution: Distribution::Zipfian,
        workloads: &[Workload::Load, Workload::C, Workload::A],
        shown: &[(Workload::C, "up to 8.7"), (Workload::A, "8.7")],
    },
    Technique {
        option: "batch-writeout",
        distribution: Distribution::Uniform,
        workloads: &[Workload::Load, Workload::A],
        shown: &[(Workload::Load, "-"), (Workload::A, "-")],
    },
    FORECAST,
];

/// The names of all techniques, which are options of the engine.
#[must_use]
pub fn techniques() -> [&'static str; TECHNIQUES.len()] {
    TECHNIQUES.map(|technique| technique.option)
}

/// Figure 8: the techniques with these names, or all when none is named.
///
/// # Errors
/// `Io` when a child cannot be started; `Cancelled` when it was interrupted, after the table of the
/// techniques that were measured. A run that fails is named in the output and answers false.
pub fn run_techniques(how: &Factors, names: &[String], out: &mut dyn Write) -> Result<bool> {
    let is_wanted =
        |one: &Technique| names.is_empty() || names.iter().any(|name| name == one.option);
    let wanted: Vec<Technique> = TECHNIQUES.into_iter().filter(is_wanted).collect();
    run(how, &wanted, out).map(|(well, _)| well)
}

/// Figure 10: forecasting alone, with the reorganizations that it saves.
///
/// # Errors
/// As [`run_techniques`].
#[expect(clippy::cast_precision_loss, reason = "a percentage is shown")]
pub fn run_forecast(how: &Factors, out: &mut dyn Write) -> Result<bool> {
    let (well, medians) = run(how, &[FORECAST], out)?;
    for [on, off] in medians {
        let fewer = 100.0 * (1.0 - on.reorganizations as f64 / off.reorganizations.max(1) as f64);
        say(
            out,
            &format!(
                "{fewer:.0} % fewer reorganizations with forecasting (paper: 41 % on average, 63 % for 64 B); \
                 throughput {:.2}x (paper: 1.22x)",
                on.ops_per_second / off.ops_per_second.max(1e-9)
            ),
        )?;
    }
    Ok(well)
}

/// Medians of the runs with a technique, or of those without.
#[derive(Clone, Copy, Debug)]
struct Median {
    ops_per_second: f64,
    reads: f64,
    pages_read: f64,
    pages_written: f64,
    reorganizations: u64,
}

impl Median {
    #[expect(clippy::cast_precision_loss, reason = "numbers are shown with a few digits")]
    fn of(runs: &[Measured]) -> Median {
        let page = spinney_base::limits::PAGE_BYTES as f64;
        let per_operation = |row: &Row, count: u64| count as f64 / row.operations.max(1) as f64;
        let of = |number: &dyn Fn(&Measured) -> f64| median(runs.iter().map(number).collect());
        let reorganizations =
            |one: &Measured| one.1.as_ref().map_or(0.0, |shape| shape.reorganizations as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count is small and positive"
        )]
        Median {
            ops_per_second: of(&|one| one.0.ops_per_second),
            reads: of(&|one| per_operation(&one.0, one.0.read_ios)),
            pages_read: of(&|one| per_operation(&one.0, one.0.read_bytes) / page),
            pages_written: of(&|one| per_operation(&one.0, one.0.write_bytes) / page),
            reorganizations: of(&reorganizations) as u64,
        }
    }
}

/// The middle one; of an even number the upper of both in the middle; 0 of none.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

fn run(
    how: &Factors,
    techniques: &[Technique],
    out: &mut dyn Write,
) -> Result<(bool, Vec<[Median; 2]>)> {
    let directory = OwnDirectory::create(&how.directory, false)?;
    let (mut rows, mut medians, mut well) = (Vec::new(), Vec::new(), true);
    let mut ended = Ok(());
    for technique in techniques {
        let mut measured: [Vec<Vec<Measured>>; 2] = [Vec::new(), Vec::new()];
        let runs = (0..how.runs).flat_map(|_| [(0, "on"), (1, "off")]);
        ended = runs.into_iter().try_for_each(|(of, switch)| {
            let plan = plan(how, technique, switch, directory.path.join("run"));
            match parent::measure(&plan, &how.child_arguments, how.interrupted)? {
                Ok(lines) => measured[of].push(lines),
                Err(why) => {
                    well = false;
                    say(out, &format!("{} {switch}: {why}", technique.option))?;
                }
            }
            Ok(())
        });
        if ended.is_err() {
            break;
        }
        for (workload, paper) in technique.shown {
            let [on, off] = measured.each_ref().map(|runs| {
                let of = |one: &&Measured| one.0.workload == workload.name();
                let found: Vec<Measured> = runs.iter().flatten().filter(of).cloned().collect();
                Median::of(&found)
            });
            rows.push(row(technique.option, *workload, on, off, paper));
            medians.push([on, off]);
        }
    }
    say(
        out,
        &format!(
            "{} records of {} B, keys {}, {} threads, {} of memory, durability {}, torn writes {}; medians of {} runs with and as many without, in turn",
            how.records,
            how.record_size,
            how.dataset,
            how.threads,
            spinney_base::size::display_bytes(how.memory),
            how.durability,
            how.torn_writes,
            how.runs
        ),
    )?;
    if !rows.is_empty() {
        say(out, &draw(&HEADER, 2, rows))?;
    }
    ended.map(|()| (well, medians))
}

const HEADER: [&str; 14] = [
    "technique",
    "workload",
    "ops/s on",
    "ops/s off",
    "on/off",
    "paper",
    "reads/op on",
    "off",
    "pages read/op on",
    "off",
    "pages written/op on",
    "off",
    "reorganizations on",
    "off",
];

fn row(option: &str, workload: Workload, on: Median, off: Median, paper: &str) -> Vec<String> {
    vec![
        option.to_owned(),
        workload.name().to_owned(),
        grouped(on.ops_per_second),
        grouped(off.ops_per_second),
        format!("{:.2}", on.ops_per_second / off.ops_per_second.max(1e-9)),
        paper.to_owned(),
        format!("{:.3}", on.reads),
        format!("{:.3}", off.reads),
        format!("{:.3}", on.pages_read),
        format!("{:.3}", off.pages_read),
        format!("{:.3}", on.pages_written),
        format!("{:.3}", off.pages_written),
        on.reorganizations.to_string(),
        off.reorganizations.to_string(),
    ]
}

fn plan(how: &Factors, technique: &Technique, switch: &str, directory: PathBuf) -> Plan {
    let drifts = technique.workloads.contains(&Workload::Drift);
    Plan {
        engine: "treeline".to_owned(),
        workloads: technique.workloads.to_vec(),
        records: how.records,
        load: LoadOrder::Random,
        record_size: how.record_size,
        threads: how.threads,
        warmup_seconds: if drifts { 0.0 } else { how.seconds / 4.0 },
        seconds: how.seconds,
        // Half of them insert, so that every place is hot once.
        operations: drifts.then_some(2 * how.records),
        kill: None,
        distribution: technique.distribution,
        theta: 0.99,
        zipf: Generator::Exact,
        memory: how.memory,
        durability: how.durability,
        torn_writes: how.torn_writes,
        dataset: how.dataset.clone(),
        scan_length: None,
        multi_get: 1,
        keyspaces: 1,
        busy: 1,
        turns: 0.0,
        directory,
        seed: how.seed,
        knobs: [(technique.option.to_owned(), switch.to_owned())].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_plans() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![]), 0.0);
        for technique in &TECHNIQUES {
            assert_eq!(technique.workloads[0], Workload::Load);
            let all = |(workload, _): &(Workload, _)| technique.workloads.contains(workload);
            assert!(technique.shown.iter().all(all));
            spinney::KeyspaceOptions::default().set(technique.option, "off").unwrap();
        }
    }
}
