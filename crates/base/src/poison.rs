//! Poison: the one bit that stops all writing of a database after something that cannot be repaired
//! while it is open (rule P21).
//!
//! After a failed sync nobody knows what is durable, and a second sync proves nothing; after a
//! panic under a lock nobody knows what is half-done. All page writes, publishing, trimming and
//! appending ask [`Poison::check`] first; reads do not. Reopening recovers.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::shim::Mutex;
use crate::{Error, ErrorKind, Result};

/// Shared by everything of one database that writes. Thread-safe.
#[derive(Debug, Default)]
pub struct Poison {
    set: AtomicBool,
    cause: Mutex<Option<Error>>,
}

impl Poison {
    /// Not poisoned.
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

    /// Whether writing has stopped.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Passes while writing goes on.
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

    /// Passes a result on and stops all writing if it is an error: for syncs.
    ///
    /// # Errors
    /// The error given, as `Poisoned`.
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
