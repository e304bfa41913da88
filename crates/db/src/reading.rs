//! Opening a database for reading: its files keep every byte (rule P29).
//!
//! The whole recovery runs over an [`Overlay`](spinney_io::Overlay): the new life of the log,
//! restored torn pages, and records that are replayed and written back all stay in memory. No job
//! runs, and writes answer `ReadOnly`. Any number of processes may read at once; each holds a
//! shared lock, which excludes a process that writes.
//!
//! **Memory.** Written pages take a part of the budget. A log that it cannot replay is `Full`, and
//! the message names a sufficient budget.
//!
//! A database whose recovery finds no space on the disk is opened like this too, and says so. Its
//! data can be read and copied elsewhere; the next opening uses space that has returned.

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::{Error, ErrorKind, KeyspaceId, Result};
use spinney_io::Overlay;
use spinney_wal::{RecordKind, Recovered};

use crate::record;

/// One part in this many of the budget is for written pages.
const PAGES_PART: u64 = 4;

/// A smaller budget is kept whole for caches, and written pages take this many bytes beside it,
/// which the documented 64 MiB cover.
const SMALL_BUDGET_BYTES: u64 = 16 << 20;
const PAGES_BYTES_MIN: u64 = 4 << 20;

/// A share must be this many times the bytes of the keyspace's log records for the replay to keep
/// them all in memory. The written pages may take this many times the bytes of the whole log.
const SHARE_PER_LOG_BYTE: u64 = 8;
const PAGES_PER_LOG_BYTE: u64 = 4;

/// A database that is open for reading.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) overlay: Arc<Overlay>,
    /// Why the database could not be opened for writing, if that was requested.
    pub(crate) because: Option<Error>,
    /// Bytes of the budget that are set aside for written pages.
    pub(crate) beside: u64,
}

impl Reading {
    /// Makes the error for a write.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        match &self.because {
            Some(error) => error.clone().wrap(
                error.kind(),
                "the database was opened for reading, because the disk has no room for its recovery",
            ),
            None => Error::new(ErrorKind::ReadOnly, "the database was opened for reading"),
        }
    }
}

/// Divides a budget into bytes for written pages and the rest.
pub(crate) fn divide(memory: u64) -> (u64, u64) {
    if memory < SMALL_BUDGET_BYTES {
        return (PAGES_BYTES_MIN, memory);
    }
    (memory / PAGES_PART, memory - memory / PAGES_PART)
}

/// Returns a budget that leaves this number of bytes beside those for written pages.
pub(crate) fn whole_of(rest: u64) -> u64 {
    if rest < SMALL_BUDGET_BYTES {
        return rest;
    }
    rest.saturating_mul(PAGES_PART).div_ceil(PAGES_PART - 1)
}

/// Makes `Full` for an opening whose budget is too small, naming a sufficient one.
pub(crate) fn too_small(error: Error, bytes: u64) -> Error {
    let text =
        format!("replaying the log in memory needs more than the budget: {bytes} bytes would do");
    error.wrap(ErrorKind::Full, text)
}

/// Returns the budget that opens a log of which only the length of its file is known.
pub(crate) fn budget_for_file(bytes: u64) -> u64 {
    let pages = bytes.saturating_mul(PAGES_PER_LOG_BYTE) + PAGES_BYTES_MIN;
    pages.saturating_mul(PAGES_PART) + SMALL_BUDGET_BYTES
}

/// Returns the budget that replays a log without writing more pages than allowed.
pub(crate) fn budget_for(recovered: &Recovered) -> Result<u64> {
    let mut bytes: BTreeMap<KeyspaceId, u64> = BTreeMap::new();
    let mut all = 0;
    recovered.replay(recovered.first_lsn(), |entry| {
        all += entry.payload.len() as u64;
        if entry.kind != RecordKind::User {
            return Ok(());
        }
        record::decode(entry.payload, entry.lsn, |id, key, change| {
            let value = change.value.map_or(0, spinney_base::ValueRef::len);
            *bytes.entry(id).or_default() += 64 + (key.len() + value) as u64;
            Ok(())
        })
    })?;
    let share = bytes.values().max().copied().unwrap_or(0).saturating_mul(SHARE_PER_LOG_BYTE);
    let rest = share.saturating_mul(bytes.len().max(1) as u64);
    let most = rest.saturating_mul(PAGES_PART).div_ceil(PAGES_PART - 1);
    Ok(most.saturating_add(SMALL_BUDGET_BYTES).max(budget_for_file(all)))
}
