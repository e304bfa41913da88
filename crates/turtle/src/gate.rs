//! The writers' gate. Batches pass it together; a thread that must separate earlier writes from
//! later ones closes it and waits until no batch is inside (rules P1 and P25).
//!
//! ```text
//!   state:  [ closed | batches inside ]        enter: + 1, and back if closed
//!                                              close: set the bit, wait for 0
//! ```
//!
//! **Invariant**: while a [`Closed`] lives, no thread is between [`Gate::enter`] and
//! [`Gate::leave`].
//!
//! **Concurrency.** Entering and leaving an open gate is one atomic addition each. The thread that
//! closes it waits for those inside, so a thread inside must not wait for one that closes it. In
//! the stepped runtime, where both may be one thread, [`Gate::try_close`] gives up instead.

use std::time::Duration;

use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_base::shim::{Condvar, Mutex, MutexGuard};

const CLOSED: u64 = 1 << 63;

/// The gate of one keyspace. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicU64,
    /// Held by the thread that closes it.
    closing: Mutex<()>,
    /// Held while a thread decides to wait, so that no signal is missed.
    waiting: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Goes in; waits while the gate is closed.
    pub(crate) fn enter(&self) {
        while self.state.fetch_add(1, SeqCst) & CLOSED != 0 {
            self.leave();
            let mut waiting = self.waiting.lock();
            while self.state.load(SeqCst) & CLOSED != 0 {
                self.changed.wait(&mut waiting);
            }
        }
    }

    /// Goes out.
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(1, SeqCst) == CLOSED + 1 {
            self.signal();
        }
    }

    fn signal(&self) {
        let _nobody_decides = self.waiting.lock();
        self.changed.notify_all();
    }

    /// Runs `body` while no batch is inside, waiting for those that are.
    pub(crate) fn closed<T>(&self, body: impl FnOnce() -> T) -> T {
        let _closed = self.close_within(None).expect("it waits for as long as it takes");
        body()
    }

    /// Runs `body` if no batch is inside now.
    pub(crate) fn try_closed<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        self.try_close().map(|_closed| body())
    }

    /// Closes the gate if no batch is inside now.
    pub(crate) fn try_close(&self) -> Option<Closed<'_>> {
        let alone = self.closing.try_lock()?;
        let open = self.close();
        (self.state.load(SeqCst) == CLOSED).then_some(Closed { _open: open, _alone: alone })
    }

    /// Closes the gate, and waits until no batch is inside: for `patience` at most, if that is given.
    pub(crate) fn close_within(&self, patience: Option<Duration>) -> Option<Closed<'_>> {
        let alone = self.closing.lock();
        let open = self.close();
        let mut waiting = self.waiting.lock();
        let mut is_late = false;
        while self.state.load(SeqCst) != CLOSED {
            if is_late {
                drop(waiting);
                return None;
            }
            match patience {
                Some(patience) => {
                    is_late = self.changed.wait_for(&mut waiting, patience).timed_out();
                }
                None => self.changed.wait(&mut waiting),
            }
        }
        drop(waiting);
        Some(Closed { _open: open, _alone: alone })
    }

    fn close(&self) -> Open<'_> {
        self.state.fetch_or(CLOSED, SeqCst);
        Open(self)
    }
}

/// A gate with no batch inside, until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a> {
    /// Dropped first.
    _open: Open<'a>,
    _alone: MutexGuard<'a, ()>,
}

/// Opens the gate again, even if a panic unwinds.
#[derive(Debug)]
struct Open<'a>(&'a Gate);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!CLOSED, SeqCst);
        self.0.signal();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_thread_inside_keeps_it_open() {
        let gate = Gate::default();
        gate.enter();
        assert_eq!(gate.try_closed(|| ()), None);
        gate.leave();
        assert_eq!(gate.try_closed(|| 1), Some(1));
        gate.enter();
        gate.leave();
        assert_eq!(gate.closed(|| 2), 2);
    }

    /// P1: the thread that closes the gate finds no batch half done.
    #[test]
    fn p01_nobody_is_inside_a_closed_gate() {
        let (gate, begun, ended) = (Gate::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        gate.enter();
                        begun.fetch_add(1, SeqCst);
                        ended.fetch_add(1, SeqCst);
                        gate.leave();
                    }
                });
            }
            scope.spawn(|| {
                for round in 0..2000 {
                    let look = || assert_eq!(begun.load(SeqCst), ended.load(SeqCst));
                    if round % 2 == 0 { gate.closed(look) } else { _ = gate.try_closed(look) }
                }
            });
        });
        assert_eq!(ended.load(SeqCst), 60_000);
    }
}
