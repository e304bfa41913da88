//! The tables and figures of Tiered-Indexing that concern B+trees, each with the paper's numbers and
//! with the least that arithmetic allows.
//!
//! The first engine is the base that the others are compared with. Every run has a process and a
//! database of its own. Data and budgets are a tenth of the paper's; its numbers stand
//! beside ours by their share of the data. Counted requests and bytes compare; the paper's machine
//! had 20 cores, so rates do not.

mod arithmetic;
mod figures;
mod published;
mod runs;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spinney_base::{Error, Result};

use crate::distribution::Generator;
use crate::driver::Knobs;
use crate::parent::Interrupted;
use crate::plan::{Durability, named};

named! {
    /// A table or a figure.
    Figure, "figure" {
        /// Bytes moved for each byte that a load inserts.
        Table1 = "table1",
        /// Requests of an operation in steady state.
        Table2 = "table2",
        /// Loads.
        Fig12 = "fig12",
        /// Steady state.
        Fig13 = "fig13",
        /// Loads with a log.
        Fig14 = "fig14",
        /// Steady state with a log.
        Fig15 = "fig15",
        /// Scans and updates.
        Fig16 = "fig16",
        /// Hot sets that jump.
        Fig17 = "fig17",
        /// Sizes of records.
        Fig18 = "fig18",
        /// Exponents of the Zipf law.
        Fig19 = "fig19",
        /// Threads.
        Fig20 = "fig20",
        /// Copies that stay in the cold tier, or leave it.
        Fig21 = "fig21",
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Tiered {
    /// The base, then what is compared with it.
    pub engines: Vec<String>,
    /// Records to load.
    pub records: u64,
    /// Bytes of key and value together.
    pub record_size: usize,
    /// Memory budgets in bytes. One budget is enough for figures 17 to 19: the one in the middle.
    pub budgets: Vec<u64>,
    /// Client threads.
    pub threads: usize,
    /// Seconds before each measurement, and of each.
    pub seconds: [f64; 2],
    /// Exponent of the Zipf law.
    pub theta: f64,
    /// What draws from it.
    pub zipf: Generator,
    /// Bytes of a page of the base, for the arithmetic.
    pub page: u64,
    /// Seed of keys and choices.
    pub seed: u64,
    /// Options by engine.
    pub knobs: BTreeMap<String, Knobs>,
    /// Where to put databases: a directory of this run's own is made inside and removed at the end.
    pub directory: PathBuf,
    /// Arguments that make this program the child of a run.
    pub child_arguments: Vec<String>,
    /// Whether it is to end early.
    pub interrupted: Interrupted,
}

impl Tiered {
    /// Checks what no single field can.
    ///
    /// # Errors
    /// `InvalidArgument` that names the option.
    pub fn check(&self) -> Result<()> {
        if self.engines.is_empty() || self.budgets.is_empty() {
            return Err(Error::invalid("--engines and --memory must name one at least"));
        }
        for engine in &self.engines {
            for memory in &self.budgets {
                self.plan(engine, *memory, Durability::None).check()?;
            }
        }
        Ok(())
    }

    /// Bytes of all records.
    fn data(&self) -> u64 {
        self.records.saturating_mul(self.record_size as u64)
    }

    /// The budget of figures that have one.
    fn budget(&self) -> u64 {
        self.budgets.get(self.budgets.len() / 2).copied().unwrap_or(0)
    }
}

/// The option of an engine that figure 21 sets, and its value.
#[must_use]
pub fn exclusive_promotion() -> (&'static str, &'static str) {
    figures::exclusive()
}

/// Measures figures and prints their tables; false when a run failed.
///
/// # Errors
/// `InvalidArgument` for a plan that cannot be; `Io` when a child cannot be started; `Cancelled` when
/// it was interrupted, after the tables that were finished.
pub fn run(how: &Tiered, figures: &[Figure], out: &mut dyn Write) -> Result<bool> {
    how.check()?;
    let figures = if figures.is_empty() { Figure::ALL } else { figures };
    figures::Report::new(how, out)?.run(figures)
}
