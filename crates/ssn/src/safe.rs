//! Safe snapshots: moments that a reader sees whole without tracking what it reads (rule T13).
//!
//! ```text
//!               63     62       0
//!   floor word  busy | newest s
//!
//!   snapshot    busy -> s := draw -> floor := s, no longer busy -> wait for all with c <= s
//!   writer      draw c -> load floor f, waiting while busy -> eta := max(eta, min(f, c - 1))
//! ```
//!
//! A snapshot at s counts as a reader of everything with commit stamp s. So each transaction W with
//! c(W) > s has s in its eta, and aborts if it must come before something that the snapshot saw
//! (pi(W) <= s). Then the snapshot has no part in any cycle: it tracks nothing, never aborts and
//! blocks nobody.
//!
//! **Invariants**
//! 1. A writer that drew c > s finds busy, or a floor of at least s. Busy is set before s is drawn.
//! 2. When a snapshot is handed out, each transaction with c <= s has published or aborted.
//! 3. A floor above c may hide an earlier one below c, so it counts as c - 1. A transaction with
//!    nothing to follow it (pi = c) is never refused: no plain write is.
//!
//! After ERMIA's safe snapshots; the paper has none, and tracks its analytic readers.

use std::task::{Poll, ready};

use spinney_base::shim::atomic::{AtomicU64, Ordering};

use crate::certify::{Certifier, Shared, wait};
use crate::clock::{STAMP_MAX, Stamp};
use crate::context::Fate;

const BUSY: u64 = 1 << 63;

/// The stamp of the newest snapshot, and whether one is being taken. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Floor(AtomicU64);

impl Floor {
    /// Returns the stamp of the newest snapshot; `Pending` while one is being taken. A writer asks
    /// after it drew c.
    pub(crate) fn poll(&self) -> Poll<Stamp> {
        let word = self.0.load(Ordering::Acquire);
        if word & BUSY == 0 { Poll::Ready(word) } else { Poll::Pending }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Lock,
    Draw,
    Raise,
    Wait(usize),
}

/// A safe snapshot that is being taken, one atomic step at a time. Polled until ready: between its
/// first step and the third all committing transactions of the database wait for it.
#[derive(Debug)]
pub(crate) struct Taking<'a> {
    certifier: &'a Certifier,
    step: Step,
    stamp: Stamp,
}

impl<'a> Taking<'a> {
    pub(crate) fn new(certifier: &'a Certifier) -> Self {
        Taking { certifier, step: Step::Lock, stamp: 0 }
    }

    /// Takes one step. Ready with the stamp of the snapshot after the last one.
    pub(crate) fn poll(&mut self) -> Poll<Stamp> {
        let Shared { clock, floor, contexts, .. } = &*self.certifier.shared;
        self.step = match self.step {
            Step::Lock => {
                let word = ready!(floor.poll());
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                if floor.0.compare_exchange(word, word | BUSY, success, failure).is_err() {
                    return Poll::Pending;
                }
                Step::Draw
            }
            Step::Draw => {
                self.stamp = clock.draw();
                Step::Raise
            }
            Step::Raise => {
                debug_assert!(self.stamp <= STAMP_MAX);
                floor.0.store(self.stamp, Ordering::Release);
                Step::Wait(0)
            }
            Step::Wait(index) if index < contexts.high() => {
                match ready!(contexts.fate(contexts.at(index), self.stamp)) {
                    // Decided: it publishes.
                    Fate::Committed { .. } => return Poll::Pending,
                    Fate::Later | Fate::Gone => Step::Wait(index + 1),
                }
            }
            Step::Wait(_) => return Poll::Ready(self.stamp),
        };
        Poll::Pending
    }
}

impl Certifier {
    /// Draws the stamp of a snapshot, and calls `note` with it before any transaction with a greater
    /// stamp certifies. The caller waits then until all that may have drawn a lesser stamp have
    /// published.
    pub fn mark(&self, note: impl FnOnce(Stamp)) {
        let mut taking = Taking::new(self);
        while !matches!(taking.step, Step::Raise) {
            if taking.poll().is_pending() && matches!(taking.step, Step::Lock) {
                spinney_base::shim::thread::yield_now();
            }
        }
        note(taking.stamp);
        let _ = taking.poll();
    }

    /// Takes a safe snapshot and returns its stamp s. A reader at s sees the newest version with a
    /// stamp of at most s of each slot, notes nothing and never aborts. Waits for transactions that
    /// are committing, and for no other. The caller sees to it, before the call, that versions
    /// which end after the clock's stamp are kept.
    ///
    /// ```
    /// let ssn = spinney_ssn::Certifier::above(10);
    /// assert_eq!(ssn.snapshot(), 11);
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Stamp {
        let mut taking = Taking::new(self);
        wait(|| taking.poll())
    }
}
