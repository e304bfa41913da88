//! How long an open database may be used: until it is closed, its process forks, or a failure stops
//! it. Every operation asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spinney_base::{Error, ErrorKind, Poison, Process, Result};

use crate::reading::Reading;

static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// What decides whether an open database may be read and written.
#[derive(Debug)]
pub(crate) struct Life {
    /// Number that no other open database of this process has.
    pub(crate) owner: u64,
    /// Process that opened the database. A forked child has none of its threads.
    process: Process,
    closed: AtomicBool,
    pub(crate) poison: Arc<Poison>,
    /// Set when the database is open for reading: its directory is an overlay then.
    pub(crate) reading: Option<Reading>,
}

#[cold]
fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

impl Life {
    /// Begins the life of a database that is being opened.
    pub(crate) fn begin(reading: Option<Reading>) -> Result<Life> {
        Ok(Life {
            owner: NEXT_OWNER.fetch_add(1, Ordering::Relaxed),
            process: Process::current()?,
            closed: AtomicBool::new(false),
            poison: Arc::new(Poison::new()),
            reading,
        })
    }

    /// Passes while the database is open, in the process that opened it.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(closed());
        }
        self.check_process()
    }

    /// Passes while writes are allowed: open and not poisoned. A failure of the log poisons
    /// everything else, and vice versa (P21).
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_sound()?;
        self.reading.as_ref().map_or(Ok(()), |reading| Err(reading.refusal()))
    }

    /// Passes while the files can be relied upon: open and not poisoned.
    #[inline]
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.check_open()?;
        self.poison.check()
    }

    /// Passes in the process that opened the database.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// Returns whether this process opened the database.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the database. Returns whether it was closed already.
    pub(crate) fn close(&self) -> bool {
        self.closed.swap(true, Ordering::AcqRel)
    }
}
