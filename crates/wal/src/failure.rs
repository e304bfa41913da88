//! The failure that stops the writing side of a log for good (rule P21).

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, Ordering::SeqCst};
use spinney_base::{Error, ErrorKind, Result};

/// The first failure of a log, if there was one. Thread-safe.
#[derive(Debug)]
pub(crate) struct Failure {
    is_set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Failure {
    pub(crate) fn none() -> Self {
        Failure { is_set: AtomicBool::new(false), error: Mutex::new(None) }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(SeqCst)
    }

    /// Fails once there was a failure.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    /// Sets the failure, unless there was one before, and returns the error that callers get.
    pub(crate) fn set(&self, cause: Error) -> Error {
        let first = {
            let mut error = self.error.lock();
            let first = error.get_or_insert_with(|| {
                cause.wrap(ErrorKind::Poisoned, "writing stopped after an earlier failure")
            });
            first.clone()
        };
        self.is_set.store(true, SeqCst);
        first
    }
}
