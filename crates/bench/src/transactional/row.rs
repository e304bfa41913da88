//! One line of results, with exactly the fields that `--json` promises, in their order.

use serde::{Deserialize, Serialize};

/// The result of one round of transactions on one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the names are the documented interface and say what they hold, units last"
)]
pub struct TransactionalRow {
    pub engine: String,
    pub workload: String,
    /// The workload's options, as in the headline.
    pub options: String,
    pub threads: usize,
    /// Null when the engine's memory could not be limited.
    pub memory_bytes: Option<u64>,
    pub durability: String,
    pub torn_writes: String,
    pub seed: u64,
    pub seconds: f64,
    pub committed: u64,
    pub committed_per_second: f64,
    pub rolled_back: u64,
    /// Runs after conflicts.
    pub retries: u64,
    /// By kind of transaction, in the order of the workload.
    pub kinds: Vec<KindRow>,
    /// Flushes of the log to stable storage; null where unknown.
    pub log_flushes: Option<u64>,
    /// Committed transactions per flush of the log; null where unknown.
    pub commits_per_sync: Option<f64>,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub space_bytes: u64,
    /// Bytes of keys and values that were loaded.
    pub loaded_bytes: u64,
    pub peak_rss_bytes: u64,
    /// What the check after the round and after reopening found; null when all holds.
    pub broken: Option<String>,
    pub unprotected: String,
    pub version: String,
}

/// One kind of transaction of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the names are the documented interface and say what they hold, units last"
)]
pub struct KindRow {
    pub name: String,
    pub committed: u64,
    pub rolled_back: u64,
    pub retries: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}
