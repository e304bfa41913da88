//! Plans of the figures, and what running them gave.

use std::io::Write;
use std::path::Path;

use spinney_base::Result;

use crate::dataset::DatasetName;
use crate::distribution::Distribution;
use crate::paper::say;
use crate::paper::tiered::Tiered;
use crate::parent::{self, Measured};
use crate::plan::{Durability, LoadOrder, Plan, TornWrites, Workload};
use crate::recovery::Points;
use crate::row::Row;

/// Multiple of `--seconds` that figure 17 takes: ten places of the hot set.
pub(super) const PLACES: u32 = 10;

impl Tiered {
    /// The plan of an engine with a budget, that is yet to be told what to run and where.
    pub(super) fn plan(&self, engine: &str, memory: u64, durability: Durability) -> Plan {
        Plan {
            engine: engine.to_owned(),
            workloads: vec![Workload::Load],
            records: self.records,
            load: LoadOrder::Random,
            record_size: self.record_size,
            threads: self.threads,
            warmup_seconds: self.seconds[0],
            seconds: self.seconds[1],
            operations: None,
            kill: None,
            distribution: Distribution::Zipfian,
            theta: self.theta,
            zipf: self.zipf,
            memory,
            durability,
            torn_writes: TornWrites::Assume4k,
            dataset: DatasetName::Uniform,
            scan_length: None,
            multi_get: 1,
            keyspaces: 1,
            busy: 1,
            turns: 0.0,
            directory: self.directory.clone(),
            seed: self.seed,
            knobs: self.knobs.get(engine).cloned().unwrap_or_default(),
        }
    }

    /// Runs a plan in the directory, unless it fails, which is printed.
    pub(super) fn measure(
        &self,
        plan: Plan,
        directory: &Path,
        out: &mut dyn Write,
    ) -> Result<Option<Ran>> {
        let plan = Plan { directory: directory.join("run"), ..plan };
        plan.check()?;
        match parent::measure_with_points(&plan, &self.child_arguments, self.interrupted)? {
            Ok((lines, points)) => Ok(Some(Ran { lines, points })),
            Err(why) => {
                say(out, &format!("{}: {why}", plan.engine))?;
                Ok(None)
            }
        }
    }
}

/// What a plan gave.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    lines: Vec<Measured>,
    /// The time series of the last workload.
    pub(super) points: Points,
}

impl Ran {
    pub(super) fn row(&self, workload: Workload) -> Option<&Row> {
        self.lines.iter().map(|line| &line.0).find(|row| row.workload == workload.name())
    }
}

/// Requests of an operation.
#[expect(clippy::cast_precision_loss, reason = "results have three digits")]
pub(super) fn requests(row: &Row) -> f64 {
    (row.read_ios + row.write_ios) as f64 / row.operations.max(1) as f64
}

/// Reads of an operation.
#[expect(clippy::cast_precision_loss, reason = "results have three digits")]
pub(super) fn reads(row: &Row) -> f64 {
    row.read_ios as f64 / row.operations.max(1) as f64
}

/// Bytes moved for each byte that an operation writes.
#[expect(clippy::cast_precision_loss, reason = "results have three digits")]
pub(super) fn moved(row: &Row) -> f64 {
    let bytes = row.operations.max(1) as f64 * row.record_size as f64;
    (row.read_bytes + row.write_bytes) as f64 / bytes
}
