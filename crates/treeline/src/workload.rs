//! Workload: what is counted of a keyspace's use, and what it expects to come.

use std::sync::atomic::{AtomicBool, Ordering};

use spinney_base::Runtime;
use spinney_base::shim::Mutex;

use crate::counters::{AccessCounters, WriteCounters};
use crate::forecast::Forecaster;
use crate::novelty::Novelty;
use crate::policy;

/// Counters and forecasts of one keyspace.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) accesses: AccessCounters,
    pub(crate) writes: WriteCounters,
    /// Whether records that are written back are new.
    pub(crate) novelty: Mutex<Novelty>,
    pub(crate) forecaster: Forecaster,
    /// Whether inserts are forecast.
    forecasts: AtomicBool,
}

impl Workload {
    /// Nothing counted yet, of a keyspace with `memory` bytes.
    pub(crate) fn new(runtime: &Runtime, memory: u64) -> Self {
        let (inserts, epochs) = (policy::FORECAST_EPOCH_INSERTS, policy::FORECAST_EPOCHS);
        Workload {
            accesses: AccessCounters::default(),
            writes: WriteCounters::default(),
            novelty: Mutex::new(Novelty::default()),
            forecaster: Forecaster::new(runtime.random(), inserts, epochs),
            forecasts: AtomicBool::new(policy::has_memory_for_forecasts(memory)),
        }
    }

    /// Forecasts inserts, or forgets what it knows of them, by the memory that there is and by
    /// whether that was `chosen`.
    pub(crate) fn choose_forecasts(&self, memory: u64, chosen: bool) {
        let forecasts = policy::has_memory_for_forecasts(memory) && chosen;
        if self.forecasts.swap(forecasts, Ordering::Relaxed) && !forecasts {
            self.forecaster.forget();
        }
    }

    /// Counts a put, of a value or a removal. `may_be_new` says that the cache did not know the
    /// key.
    #[inline]
    pub(crate) fn put(&self, key: &[u8], is_value: bool, may_be_new: bool) {
        let inserts = may_be_new && is_value;
        self.accesses.put(inserts);
        if inserts && self.forecasts.load(Ordering::Relaxed) {
            self.forecaster.record(key);
        }
    }
}
