//! Benchmark drivers for other storage engines: RocksDB, LMDB, redb, fjall and Bf-tree, and for workloads of transactions
//! ([`transactional`]) canopydb and SQLite, too, each a feature. Never built by default, because RocksDB is a long C++ build.
//!
//! Each is set up as its users would under the same memory budget and the same promises: see
//! `rocks`, `lmdb`, `redb`, `fjall` and `bftree`.

#[cfg(feature = "bf-tree")]
mod bftree;
#[cfg(any(feature = "bf-tree", feature = "fjall", feature = "lmdb", feature = "redb"))]
mod cgroup;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;
pub mod transactional;

#[cfg(feature = "bf-tree")]
pub use bftree::BfTreeDriver;
#[cfg(feature = "fjall")]
pub use fjall::Fjall;
#[cfg(feature = "lmdb")]
pub use lmdb::Lmdb;
#[cfg(feature = "redb")]
pub use redb::Redb;
#[cfg(feature = "rocksdb")]
pub use rocks::Rocks;

use spinney_base::{Error, Result};
use spinney_bench::Driver;
use spinney_bench::driver::Knobs;

/// All peers, in the order in which they are measured by default.
#[must_use]
pub fn drivers() -> Vec<Box<dyn Driver>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(Rocks::BLOCKS),
        #[cfg(feature = "rocksdb")]
        Box::new(Rocks::ROWS),
        #[cfg(feature = "lmdb")]
        Box::new(Lmdb),
        #[cfg(feature = "redb")]
        Box::new(Redb),
        #[cfg(feature = "fjall")]
        Box::new(Fjall),
        #[cfg(feature = "bf-tree")]
        Box::new(BfTreeDriver),
    ]
}

/// Peers have no options but those named: their settings are what the comparison is about.
/// Each is on or off.
fn refuse_knobs(engine: &str, knobs: &Knobs, known: &[&str]) -> Result<()> {
    if let Some((knob, value)) = knobs.iter().find(|(_, value)| *value != "on" && *value != "off")
        && known.contains(&knob.as_str())
    {
        return Err(Error::invalid(format!("{engine}.{knob} is on or off, not {value:?}")));
    }
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
