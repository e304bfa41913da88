//! Time that writers spent waiting for work that had to be done first.

use std::time::Duration;

use crate::runtime::Runtime;
use crate::shim::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of stalls. Thread-safe.
#[derive(Debug, Default)]
pub struct Stalls {
    ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Stalls {
    /// Runs a wait of a writer, and counts it.
    pub fn during<T>(&self, runtime: &Runtime, wait: impl FnOnce() -> T) -> T {
        let start = runtime.now();
        let result = wait();
        let stall: Duration = runtime.now().saturating_sub(start);
        let ns = u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX);
        self.ns.fetch_add(ns, Relaxed);
        self.longest_ns.fetch_max(ns, Relaxed);
        crate::events::stall(stall);
        result
    }

    /// Returns the time of all stalls, in nanoseconds.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.ns.load(Relaxed)
    }

    /// Returns the time of the longest stall, in nanoseconds.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns.load(Relaxed)
    }
}
