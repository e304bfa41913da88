//! The [`TransactionalPlan`] of a run, which the parent passes to the child process of one engine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spinney_base::limits::MEMORY_BYTES_MIN;
use spinney_base::{Error, Result};

use super::workload::TransactionalWorkload;
use crate::driver::Knobs;
use crate::fields::TableFields;
use crate::plan::{Durability, TornWrites};
use crate::smallbank::{self, SmallBank, SmallBankPlan};
use crate::tpcc;
use crate::tpcc::run::{Tpcc, TpccPlan};

/// Everything the child process of one engine needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransactionalPlan {
    /// Bare name of the engine.
    pub engine: String,
    /// What is run.
    pub workload: WorkloadPlan,
    /// Client threads of each round, one after the other on the same tables.
    pub threads: Vec<usize>,
    /// Reads every record by its key before each round, so that memory holds what fits.
    pub warm: bool,
    /// Seconds before each measurement.
    pub warmup_seconds: f64,
    /// Seconds of each measurement, unless `operations` is given.
    pub seconds: f64,
    /// Ends each measurement after this many transactions instead.
    pub operations: Option<u64>,
    /// The memory budget, in bytes.
    pub memory: u64,
    /// What an acknowledged transaction survives: `sync` or `buffered`.
    pub durability: Durability,
    /// Protection of pages written in place.
    pub torn_writes: TornWrites,
    /// A directory of this engine's own; it exists and is empty.
    pub directory: PathBuf,
    /// The seed of records and choices.
    pub seed: u64,
    /// Engine options given as `--<engine>.<option>`.
    pub knobs: Knobs,
}

/// A workload and its own options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadPlan {
    /// TPC-C.
    Tpcc(TpccPlan),
    /// SmallBank.
    SmallBank(SmallBankPlan),
}

impl WorkloadPlan {
    /// Makes the workload.
    #[must_use]
    pub fn make(&self, seed: u64) -> Box<dyn TransactionalWorkload> {
        match self {
            WorkloadPlan::Tpcc(plan) => Box::new(Tpcc::new(*plan, seed)),
            WorkloadPlan::SmallBank(plan) => Box::new(SmallBank::new(*plan, seed)),
        }
    }

    /// Tables that `mixed` keeps on the engine that gathers inserts.
    #[must_use]
    pub fn gathered(&self) -> &'static [&'static str] {
        match self {
            WorkloadPlan::Tpcc(_) => tpcc::schema::GATHERED,
            WorkloadPlan::SmallBank(_) => smallbank::GATHERED,
        }
    }

    /// Fields of the tables, for stores with columns.
    #[must_use]
    pub fn fields(&self) -> &'static [TableFields] {
        match self {
            WorkloadPlan::Tpcc(_) => tpcc::schema::FIELDS,
            WorkloadPlan::SmallBank(_) => smallbank::FIELDS,
        }
    }

    /// The name of the workload in rows.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            WorkloadPlan::Tpcc(plan) => format!("tpcc {}", plan.mix),
            WorkloadPlan::SmallBank(_) => "smallbank".to_owned(),
        }
    }

    /// The options, for the headline.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            WorkloadPlan::Tpcc(plan) => plan.describe(),
            WorkloadPlan::SmallBank(plan) => plan.describe(),
        }
    }

    fn check(&self) -> Result<()> {
        match self {
            WorkloadPlan::Tpcc(plan) => plan.size().check(),
            WorkloadPlan::SmallBank(plan) => plan.check(),
        }
    }
}

impl TransactionalPlan {
    /// Checks what no single field can.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(&self) -> Result<()> {
        self.workload.check()?;
        let rules = [
            (!self.threads.is_empty(), "--threads names no number"),
            (
                self.threads.iter().all(|threads| (1..=1024).contains(threads)),
                "--threads must be 1 to 1024",
            ),
            (self.seconds > 0.0 && self.seconds < 1e6, "--seconds must be above 0"),
            ((0.0..1e6).contains(&self.warmup_seconds), "--warmup must be 0 or more seconds"),
            (self.operations != Some(0), "--operations must be at least 1"),
            (self.memory >= MEMORY_BYTES_MIN, "--memory must be at least 1MiB"),
            (
                self.durability != Durability::None,
                "--durability of transactions is sync or buffered",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, message)) => Err(Error::invalid(*message)),
            None => Ok(()),
        }
    }
}
