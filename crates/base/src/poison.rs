//! Poison: one bit that stops all writing of a database after a failure that cannot be repaired
//! while it is open (rule P21).
//!
//! After a failed sync it is unknown what is durable, and a second sync proves nothing. After a
//! panic under a lock it is unknown what is half done. All page writes, publishing, trimming and
//! appending check [`Poison::check`] first; reads do not. Reopening recovers.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::shim::Mutex;
use crate::{Error, ErrorKind, Result};

/// The poison of one database, shared by everything that writes. Thread-safe.
#[derive(Debug, Default)]
pub struct Poison {
    set: AtomicBool,
    cause: Mutex<Option<Error>>,
}

impl Poison {
    /// Makes one that is not poisoned.
    #[must_use]
    pub fn new() -> Self {
        Poison { set: AtomicBool::new(false), cause: Mutex::new(None) }
    }

    /// Stops all writing because of `cause`. The first cause stays.
    pub fn set(&self, cause: Error) {
        let mut slot = self.cause.lock();
        if slot.is_none() {
            crate::events::stopped(&cause);
            *slot = Some(if cause.is_poisoned() {
                cause
            } else {
                cause.wrap(ErrorKind::Poisoned, "writing stopped until the database is reopened")
            });
        }
        self.set.store(true, Ordering::Release);
    }

    /// Returns whether writing has stopped.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Passes unless writing has stopped.
    ///
    /// # Errors
    /// `Poisoned` with the cause.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(self.cause()) } else { Ok(()) }
    }

    #[cold]
    fn cause(&self) -> Error {
        let cause = self.cause.lock().clone();
        cause.unwrap_or_else(|| Error::new(ErrorKind::Poisoned, "writing stopped"))
    }

    /// Returns `result`, and stops all writing if it is an error. It is for syncs.
    ///
    /// # Errors
    /// The error of `result`, as `Poisoned`.
    pub fn guard<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                self.set(error);
                Err(self.cause())
            }
        }
    }
}
