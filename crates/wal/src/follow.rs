//! Reading a log that is being written, for a backup (rule P26).
//!
//! A [`Follower`] protects every record that it has not delivered from trimming, and no other. So a
//! backup that copies the log as it grows never makes writers wait for space, however long it
//! takes.
//!
//! Invariants: (1) `followed` is the first LSN that the follower still needs, and no trim passes
//! it. (2) Only durable records are delivered, so a copy never holds more than a crash of the
//! original leaves.
//!
//! **Concurrency**: a follower belongs to one thread; appends, flushes and trims continue beside
//! it.

use std::sync::Arc;

use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_base::{Error, ErrorKind, Lsn, Result};

use crate::block::Record;
use crate::log::Log;
use crate::replay::read_runs;
use crate::segments::RunStart;

/// Delivers the records of a log in use, each once and in order. A log has at most one follower.
#[derive(Debug)]
pub struct Follower {
    log: Arc<Log>,
    /// The first record that was not handed out.
    next: Lsn,
    /// Where the run begins that holds it, as far as it is known.
    at: Option<RunStart>,
}

impl Log {
    /// Begins to follow the log with the first record after `after`. No trim takes a record from
    /// the follower.
    ///
    /// # Errors
    /// `Locked` when the log has a follower already; `InvalidArgument` when the log was trimmed
    /// beyond `after`.
    pub fn follow(self: &Arc<Self>, after: Lsn) -> Result<Follower> {
        let next = after.next();
        if self.space.followed.compare_exchange(u64::MAX, next.0, SeqCst, SeqCst).is_err() {
            return Err(Error::new(ErrorKind::Locked, "somebody follows the log already"));
        }
        let follower = Follower { log: self.clone(), next, at: None };
        // Waits for a running trim that began before it could see the follower.
        drop(self.space.superblock.lock());
        let first = self.space.segments.lock().first_lsn();
        if next < first {
            return Err(Error::invalid(format!(
                "the log begins at record {first}, after record {next}"
            )));
        }
        Ok(follower)
    }
}

impl Follower {
    /// Delivers the durable records up to `to` that were not delivered yet, and releases them.
    ///
    /// # Errors
    /// `Corruption` or `Io` when the log cannot be read as it was written; errors of `visit`, which
    /// end the reading. Nothing is released then.
    pub fn read(&mut self, to: Lsn, visit: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        let to = to.min(self.log.durable_lsn());
        if to < self.next {
            return Ok(());
        }
        let (begin, end) = {
            let table = self.log.space.segments.lock();
            // A run that was read to its end may have been trimmed since.
            let at = self.at.filter(|at| table.locate(at.position).is_some());
            (at.or_else(|| table.run_start_before(self.next)), table.head().position)
        };
        let begin = begin.ok_or_else(|| {
            let path = self.log.files.reader.path().display();
            Error::corruption(path, 0, format!("a run with record {}", self.next), "none")
        })?;
        self.at = Some(read_runs(&self.log, begin, end, self.next..=to, visit)?);
        self.next = to.next();
        self.log.space.followed.store(self.next.0, SeqCst);
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.log.space.followed.store(u64::MAX, SeqCst);
    }
}
