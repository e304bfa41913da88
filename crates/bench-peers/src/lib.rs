//! Benchmark drivers for other storage engines: RocksDB and LMDB. Never built by default, because RocksDB is a long C++ build.
//!
//! Each is set up as its users would under the same memory budget and the same promises: see `rocks` and `lmdb`.

mod cgroup;
mod lmdb;
mod rocks;

pub use lmdb::Lmdb;
pub use rocks::Rocks;

use std::collections::BTreeMap;

use spinney_base::{Error, Result};
use spinney_bench::Driver;

/// All peers, in the order in which they are measured by default.
#[must_use]
pub fn drivers() -> Vec<Box<dyn Driver>> {
    vec![Box::new(Rocks), Box::new(Lmdb)]
}

/// Peers have no options but those named: their settings are what the comparison is about.
fn refuse_knobs(engine: &str, knobs: &BTreeMap<String, String>, known: &[&str]) -> Result<()> {
    match knobs.keys().find(|knob| !known.contains(&knob.as_str())) {
        Some(knob) if known.is_empty() => {
            Err(Error::invalid(format!("{engine} has no options, so none named {knob:?}")))
        }
        Some(knob) => Err(Error::invalid(format!(
            "{engine} has no option {knob:?}; it has {}",
            known.join(", ")
        ))),
        None => Ok(()),
    }
}
