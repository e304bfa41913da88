//! Tells a process from its forked children.
//!
//! A child of `fork` has the memory and the descriptors of its parent, but none of its threads. Its
//! locks may be held forever by threads that it does not have, and its writes would destroy the
//! parent's files. A [`Process`] is made where a resource is opened, and checked before the
//! resource is used.
//!
//! The C library counts forks in the child (`pthread_atfork`), so a check costs two loads and no
//! system call. A child that was made by the bare system call, without the C library, is not
//! noticed.
#![expect(unsafe_code, reason = "the C library takes a function to call in the child of a fork")]

use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use crate::{Error, ErrorKind, Result};

/// Number of forks between the first process that made a [`Process`] and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// A process, as of the time it opened something.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    forks: u32,
    id: u32,
}

impl Process {
    /// Returns this process.
    ///
    /// # Errors
    /// `Io` when the C library has no memory to watch for forks.
    pub fn current() -> Result<Process> {
        static REGISTERED: Once = Once::new();
        static ANSWER: AtomicI32 = AtomicI32::new(0);
        REGISTERED.call_once(|| {
            // SAFETY: the function lives as long as the program and does nothing but add to an atomic,
            // which is allowed in the child of a process with threads.
            let answer = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            ANSWER.store(answer, Relaxed);
        });
        match ANSWER.load(Relaxed) {
            0 => Ok(Process { forks: FORKS.load(Relaxed), id: std::process::id() }),
            errno => Err(Error::io("watch for forks", std::io::Error::from_raw_os_error(errno))),
        }
    }

    /// Returns whether this is still the same process, and not a forked child of it.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        FORKS.load(Relaxed) == self.forks
    }

    /// Passes in the process itself.
    ///
    /// # Errors
    /// `Closed` in a child that was forked from it.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!(
                "the database was opened by process {}, and this is process {}, which was forked from it: \
                 a child cannot use its parent's handles",
                self.id,
                std::process::id()
            ),
        )
    }
}
