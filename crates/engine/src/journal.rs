//! The journal of an engine's changes of structure: from memory to the log.
//!
//! A change of structure is visible in memory at once and *pending* on disk: its new pages are
//! written but perhaps not synced, and the pages it frees are untouched. A later step syncs the
//! file once for all pending changes, appends their records, and lets the freed pages be reused
//! when those records are durable (P13, P16). A crash before that finds the old structure whole.
//!
//! **Invariants**
//! 1. Records are appended in the order of their numbers, without gaps.
//! 2. A record names only pages that were synced before it was appended.
//! 3. A freed page is reused only when its record, or a checkpoint that covers the change, is
//!    durable.
//!
//! **Concurrency.** One caller at a time appends and lets go, and holds that lock across I/O; the
//! list of pending changes has a lock of its own, for memory work only.

use std::collections::VecDeque;
use std::time::Duration;

use spinney_base::shim::{Mutex, MutexGuard};
use spinney_base::{Error, ErrorKind, Lsn, Result, probe};
use spinney_extent::{Extent, Store};
use spinney_io::Purpose;
use spinney_wal::{RecordKind, ReserveFor};

use crate::context::EngineContext;

/// Publish once this many changes are pending, even if other work waits.
const PENDING_MAX: usize = 256;

/// Publish pending changes after this time if there is no other work.
const PENDING_TIME: Duration = Duration::from_millis(200);

/// Changes of structure that are in memory and not yet in the log, in the order of their numbers.
#[derive(Debug, Default)]
pub struct Journal {
    pending: Mutex<Pending>,
    appending: Mutex<()>,
}

#[derive(Debug, Default)]
struct Pending {
    changes: VecDeque<Change>,
    /// When the background job first saw the oldest one.
    since: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Change {
    sequence: u64,
    record: Vec<u8>,
    freed: Vec<Extent>,
}

impl Journal {
    /// Adds a change: its number, its record, and the extents that are unowned after it.
    pub fn push(&self, sequence: u64, record: Vec<u8>, freed: Vec<Extent>) {
        self.pending.lock().changes.push_back(Change { sequence, record, freed });
    }

    /// Returns the number of pages that pending changes free.
    #[must_use]
    pub fn freed_pages(&self) -> u64 {
        let pending = self.pending.lock();
        let freed = pending.changes.iter().flat_map(|change| &change.freed);
        freed.map(|extent| u64::from(extent.pages())).sum()
    }

    /// Keeps records from being appended, and pages from being freed, while the result lives.
    pub fn still(&self) -> MutexGuard<'_, ()> {
        self.appending.lock()
    }

    /// Publishes pending changes when there are many, or when the oldest has waited and the caller
    /// is `idle`.
    ///
    /// # Errors
    /// As [`Journal::publish`].
    pub fn publish_if_due(&self, context: &EngineContext, store: &Store, idle: bool) -> Result<()> {
        let now = context.runtime.now();
        let due = {
            let mut pending = self.pending.lock();
            if pending.changes.is_empty() {
                return Ok(());
            }
            let since = *pending.since.get_or_insert(now);
            pending.changes.len() >= PENDING_MAX
                || (idle && now.saturating_sub(since) >= PENDING_TIME)
        };
        if due { self.publish(context, store) } else { Ok(()) }
    }

    /// Syncs the pages of all pending changes and appends their records.
    ///
    /// # Errors
    /// `Full` when the log must be trimmed first (the changes stay pending; a checkpoint covers
    /// them), `Poisoned`, `Io`.
    pub fn publish(&self, context: &EngineContext, store: &Store) -> Result<()> {
        let _inside = probe::enter("publish structure");
        let _in_order = self.appending.lock();
        let last = match self.pending.lock().changes.back() {
            Some(change) => change.sequence,
            None => return Ok(()),
        };
        store.sync(Purpose::REORGANIZE)?;
        loop {
            let Change { sequence, record, freed } = match self.pending.lock().changes.front() {
                Some(change) if change.sequence <= last => change.clone(),
                _ => return Ok(()),
            };
            let lsn = context.log_structure(&record, || ())?.ok_or_else(log_is_full)?;
            store.retire(freed, lsn);
            self.take_up_to(sequence);
        }
    }

    /// Drops the changes up to a number: a durable checkpoint covers them, so they need no record.
    pub fn cover(&self, sequence: u64, store: &Store) {
        let _in_order = self.appending.lock();
        let freed = self.take_up_to(sequence).into_iter().flat_map(|change| change.freed);
        freed.for_each(|extent| store.release(extent));
    }

    fn take_up_to(&self, sequence: u64) -> Vec<Change> {
        let mut pending = self.pending.lock();
        let count = pending.changes.partition_point(|change| change.sequence <= sequence);
        if count == pending.changes.len() {
            pending.since = None;
        }
        pending.changes.drain(..count).collect()
    }
}

impl EngineContext {
    /// Appends a structure record of the keyspace. Returns `None` when the log has no space for it
    /// until it is trimmed. If there is space, calls `before` before the record gets its LSN.
    ///
    /// # Errors
    /// `Poisoned` or `Io`.
    pub fn log_structure(&self, record: &[u8], before: impl FnOnce()) -> Result<Option<Lsn>> {
        let Some(mut room) = self.log.reserve(record.len(), ReserveFor::Internal)? else {
            return Ok(None);
        };
        before();
        Ok(Some(self.log.append(&mut room, RecordKind::Structure(self.keyspace), record)))
    }
}

/// Makes the error for a structure record that does not fit into the log.
#[must_use]
pub fn log_is_full() -> Error {
    Error::new(ErrorKind::Full, "the log is full until the next checkpoint")
}
