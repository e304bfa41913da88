//! The right to take a checkpoint, and whether one is wanted.
//!
//! A checkpoint, a drop and a verification exclude each other: each holds `checkpointing`. A
//! checkpoint that takes its time ends at once when another thread waits for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use spinney_base::shim::{Mutex, MutexGuard};
use spinney_base::{Error, Runtime};

/// Pause of a thread that waits for `checkpointing` and gives up after a while.
const NAP: Duration = Duration::from_millis(1);

/// The checkpoints of an open database.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// One checkpoint, drop or verification at a time.
    checkpointing: Mutex<()>,
    /// Number of threads that wait for it.
    hurried: AtomicUsize,
    /// When the last checkpoint ended.
    last: Mutex<Duration>,
    /// Why the last background checkpoint failed, until any checkpoint succeeds.
    error: Mutex<Option<Error>>,
    wanted: AtomicBool,
}

impl Checkpoints {
    pub(crate) fn new(opened_at: Duration) -> Checkpoints {
        Checkpoints {
            checkpointing: Mutex::new(()),
            hurried: AtomicUsize::new(0),
            last: Mutex::new(opened_at),
            error: Mutex::new(None),
            wanted: AtomicBool::new(false),
        }
    }

    /// Excludes checkpoints, drops and verifications, and hurries a checkpoint that is running.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.hurried.fetch_add(1, Ordering::SeqCst);
        let held = self.checkpointing.lock();
        self.hurried.fetch_sub(1, Ordering::SeqCst);
        held
    }

    /// Does the same, unless another thread holds them now.
    pub(crate) fn try_hold(&self) -> Option<MutexGuard<'_, ()>> {
        self.checkpointing.try_lock()
    }

    /// Does the same as [`Checkpoints::hold`], and gives up after `patience`.
    pub(crate) fn hold_within(
        &self,
        runtime: &Runtime,
        patience: Duration,
    ) -> Option<MutexGuard<'_, ()>> {
        let until = runtime.now() + patience;
        self.hurried.fetch_add(1, Ordering::SeqCst);
        let held = loop {
            match self.checkpointing.try_lock() {
                // Where background work is stepped, this thread itself may hold it.
                None if !runtime.is_stepped() && runtime.now() < until => runtime.sleep(NAP),
                held => break held,
            }
        };
        self.hurried.fetch_sub(1, Ordering::SeqCst);
        held
    }

    /// Returns whether a checkpoint must not take its time.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::SeqCst) > 0 || self.is_wanted()
    }

    /// Asks for a checkpoint by the background. Returns whether nobody had asked before.
    pub(crate) fn want(&self) -> bool {
        !self.wanted.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Notes that the background has done what was wanted, or found that there is nothing to do.
    pub(crate) fn unwant(&self) {
        self.wanted.store(false, Ordering::Release);
    }

    /// Notes why a checkpoint of the background failed, or that any succeeded.
    pub(crate) fn set_error(&self, error: Option<Error>) {
        *self.error.lock() = error;
    }

    /// Returns why the last background checkpoint failed, until any succeeds.
    pub(crate) fn error(&self) -> Option<Error> {
        self.error.lock().clone()
    }

    /// Notes when a checkpoint ended.
    pub(crate) fn set_last(&self, now: Duration) {
        *self.last.lock() = now;
    }

    /// Returns when the last checkpoint ended.
    pub(crate) fn last(&self) -> Duration {
        *self.last.lock()
    }
}
