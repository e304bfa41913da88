//! What the syncs of one file owe each other.
//!
//! The system tells an error of the disk to one sync of an open file, and what it was about counts as written then. So of
//! two syncs that run beside each other one may succeed though what was written before it is lost, while the other is yet
//! to stop all writing for it. Whoever goes by a sync's success therefore waits until those that ran beside it
//! have ended, and looks whether one of them failed.
//!
//! **Invariant**: a sync that fails sets the poison before it counts as ended.
//!
//! **Concurrency.** A sync that is under way takes no lock, so whoever has any may wait for it. Syncs that begin while
//! somebody waits are not waited for.

use spinney_base::shim::{Condvar, Mutex};
use spinney_base::{Poison, Result};

/// Syncs that are under way. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next one.
    next: u64,
    under_way: Vec<u64>,
}

/// One that is under way, until it is dropped.
struct UnderWay<'a>(&'a Syncs, u64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way.retain(|number| *number != self.1);
        self.0.ended.notify_all();
    }
}

impl Syncs {
    fn begin(&self) -> UnderWay<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.push(number);
        UnderWay(self, number)
    }

    /// Runs a sync. An error poisons.
    pub(crate) fn run(&self, poison: &Poison, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let _under_way = self.begin();
        poison.guard(sync())
    }

    /// Passes if a sync that has just succeeded may be gone by: none that ran beside it has failed.
    pub(crate) fn settle(&self, poison: &Poison) -> Result<()> {
        let mut state = self.state.lock();
        let bound = state.next;
        while state.under_way.iter().any(|number| *number < bound) {
            self.ended.wait(&mut state);
        }
        drop(state);
        poison.check()
    }
}
