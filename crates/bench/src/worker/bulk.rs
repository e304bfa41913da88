//! A load through the engine's bulk load: one client hands over all records in key order.
//!
//! The time of an operation is the time between two records that the engine asks for.

use std::time::Duration;

use spinney_base::Result;
use spinney_base::shim::atomic::Ordering::Relaxed;

use crate::dataset::OrderedKeys;
use crate::driver::Loaded;
use crate::value;
use crate::worker::{Finish, Shared, Tally, Worker};

/// The records of one keyspace, as the engine takes them.
struct Records<'a> {
    shared: &'a Shared,
    keys: OrderedKeys,
    /// Counts; only of the last keyspace, since an operation writes a record to each of them.
    tally: Option<&'a mut Tally>,
    logical_bytes: i64,
    done: u64,
    last: Duration,
}

impl Worker {
    /// Loads all records.
    pub(crate) fn run_bulk_load(mut self) -> Tally {
        let _finish = Finish(self.shared.clone());
        let driven = self.shared.driven;
        for keyspace in 0..driven {
            if driven > 1 {
                self.session.turn_to(keyspace);
            }
            if let Err(error) = self.load_one(keyspace + 1 == driven) {
                self.tally.error(error.to_string());
                break;
            }
        }
        self.tally
    }

    fn load_one(&mut self, is_last: bool) -> Result<()> {
        let shared = self.shared.clone();
        let mut records = Records {
            shared: &shared,
            keys: OrderedKeys::new(shared.dataset.clone(), shared.records),
            tally: is_last.then_some(&mut self.tally),
            logical_bytes: 0,
            done: 0,
            last: shared.clock.now(),
        };
        let loaded = self.session.bulk_load(&mut records);
        let logical_bytes = records.logical_bytes;
        self.tally.logical_bytes += logical_bytes;
        loaded
    }
}

impl Iterator for Records<'_> {
    type Item = Loaded;

    fn next(&mut self) -> Option<Loaded> {
        let now = self.shared.clock.now();
        if let Some(tally) = self.tally.as_mut().filter(|_| self.done > 0) {
            let nanoseconds = u64::try_from((now - self.last).as_nanos()).unwrap_or(u64::MAX);
            tally.latencies.saturating_record(nanoseconds);
            tally.operations += 1;
            self.shared.done[0].store(self.done, Relaxed);
        }
        self.last = now;
        let mut key = Vec::new();
        if !self.keys.next_into(&mut key) {
            return None;
        }
        let (mut value, length) = (Vec::new(), self.shared.record_size.saturating_sub(key.len()));
        value::fill(&key, 0, length, &mut value);
        self.logical_bytes += i64::try_from(key.len() + value.len()).unwrap_or(i64::MAX);
        self.done += 1;
        if self.tally.is_some() && self.shared.inserts.take_below(0, self.shared.records).is_some()
        {
            self.shared.inserts.done(0);
        }
        Some((key, value))
    }
}
