//! The disk space that a database keeps in reserve (rule P29).
//!
//! A full disk must not keep a database from its recovery, from removals, from dropping a keyspace
//! and from one checkpoint. When the disk is full, these take space from the
//! [`Reserve`](spinney_io::Reserve). After that, writes of values are `Full` until the reserve is
//! whole again.
//!
//! ```text
//!   log used     0 --------------> much
//!   reserve      0   6 x log + 1 MiB + what engines need     while something is written, of a log of 256 KiB
//!                    1.5 x log + 3 x memory + 1 MiB + ...    at least; for logs much larger than the memory,
//!                                                            which replay in parts
//!                0   at most 64 KiB + an eighth of the data, after a quiet while
//! ```
//!
//! An empty log needs no reserve, because there is nothing to recover. The reserve grows before a
//! value goes to the log. A writer that finds no space takes a checkpoint first: it empties the
//! log, and then a smaller reserve is enough.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use spinney_base::{Error, Result};
use spinney_io::Reserve;

use crate::keyspaces::Keyspaces;

/// Bytes that a recovery may need for each byte of the log, because pages are written beside those
/// they replace. With a factor of two, recoveries on a full disk found no space (test
/// `c1_a_restart_on_a_full_disk`), and the database then opens for reading only.
const PER_LOG_BYTE: u64 = 6;

/// Bytes that a recovery in parts, of a log larger than memory, needs for each byte of memory.
/// After each part the replaced pages are free.
const PER_MEMORY_BYTE: u64 = 3;

/// Most bytes that a recovery needs for each byte of data.
const PER_DATA_BYTE: u64 = 3;

/// Bytes beside that where there is little data: some steps of the log, and the first pages of
/// files.
const LITTLE_BYTES: u64 = 384 << 10;

/// Number of steps in which the fullness of the log that the reserve covers is searched.
const COVERED_STEPS: u32 = 64;
const COVERED_PARTS: f64 = 1024.0;

/// Covers no log, so that the next writer of a value checks the reserve.
const NOTHING_COVERED: u64 = (-1.0f64).to_bits();

/// Bytes beside that, for double-write areas and the log itself.
const BASE_BYTES: u64 = 1 << 20;

/// Most bytes that are kept after a quiet while: this many, and this part of the data.
const QUIET_BYTES: u64 = 64 << 10;
const QUIET_PART: u64 = 8;

/// Bytes for which a write beside the log counts at least: each may change a page of its own.
const BESIDE_LOG_BYTES: u64 = 512;

/// Bytes that the log keeps when space is made.
pub(crate) const LOG_KEPT_BYTES: u64 = 256 << 10;

/// The reserve, and what it must suffice for.
#[derive(Debug)]
pub(crate) struct Room {
    /// Disk space that recovery, removals and a checkpoint may take on a full disk; the directory
    /// of the database takes from it. `None` when the database is open for reading.
    pub(crate) reserve: Option<Arc<Reserve>>,
    /// Fullness of the log at which the reserve is checked again: the bits of an `f64`.
    covered: AtomicU64,
    /// Disk space that engines need beside the log's, at the last check.
    engines: AtomicU64,
    /// Disk space of the data, at the last check.
    data_bytes: AtomicU64,
    /// Bytes of the log when a checkpoint to shorten it found no space, or those to which it was
    /// trimmed since; 0 since a checkpoint to shorten it found space.
    log_without_room: AtomicU64,
    /// Bytes of removals that went to no log, on a full disk, since a checkpoint.
    beside_log: AtomicU64,
}

impl Room {
    pub(crate) fn new(reserve: Option<Arc<Reserve>>) -> Room {
        Room {
            reserve,
            covered: AtomicU64::new(NOTHING_COVERED),
            engines: AtomicU64::new(0),
            data_bytes: AtomicU64::new(0),
            log_without_room: AtomicU64::new(0),
            beside_log: AtomicU64::new(0),
        }
    }

    /// Disk space that the recovery of a log of `bytes` bytes may need.
    fn for_log(&self, bytes: u64, memory: u64) -> u64 {
        let in_parts = bytes + bytes / 2 + PER_MEMORY_BYTE * memory;
        let changed = BASE_BYTES + (PER_LOG_BYTE * bytes).min(in_parts);
        (self.engines.load(Relaxed) + changed).min(self.for_all(bytes))
    }

    /// Disk space that is kept while values are written. Removals fill a log of some length before
    /// their checkpoint, which needs space however short the log is now.
    pub(crate) fn for_values(&self, log: u64, memory: u64) -> u64 {
        self.for_log(log.max(LOG_KEPT_BYTES), memory).min(self.for_all(log))
    }

    /// Disk space that is enough for any operation on the present data.
    fn for_all(&self, log: u64) -> u64 {
        let all = self.data_bytes.load(Relaxed) + log;
        LITTLE_BYTES + self.engines.load(Relaxed) + PER_DATA_BYTE * all
    }

    /// Disk space that is kept after a quiet while: for a log of `log` bytes, and `live` bytes in
    /// pages that are in use.
    fn in_quiet(&self, log: u64, memory: u64, live: u64) -> u64 {
        self.for_log(log, memory).min(QUIET_BYTES + live / QUIET_PART)
    }

    /// Reads the size of the data, and the space that the engines need: for everything that they
    /// hold in memory as pages, and for the largest of their smallest steps that free space.
    pub(crate) fn follow(&self, keyspaces: &Keyspaces) {
        self.covered.store(NOTHING_COVERED, Relaxed);
        let keyspaces = keyspaces.open();
        let engines = || keyspaces.iter().map(|keyspace| &keyspace.engine);
        let unwritten: u64 = engines().map(|engine| engine.unwritten_bytes()).sum();
        let step = engines().map(|engine| engine.step_bytes()).max().unwrap_or(0);
        self.engines.store(unwritten + step, Relaxed);
        self.data_bytes.store(engines().map(|engine| engine.data_bytes()).sum(), Relaxed);
    }

    /// Runs a request that must succeed on a full disk if possible: a recovery, a requested
    /// checkpoint, a drop.
    pub(crate) fn with_last_room<R>(&self, request: impl FnOnce() -> R) -> R {
        match &self.reserve {
            Some(reserve) => reserve.with_last_room(request),
            None => request(),
        }
    }

    /// Notes what the engine of one keyspace needs, after its job had a turn.
    pub(crate) fn note_need(&self, bytes: u64) {
        if self.engines.fetch_max(bytes, Relaxed) < bytes {
            self.covered.store(NOTHING_COVERED, Relaxed);
        }
    }

    /// Disk space that engines need beside the log's, at the last check.
    pub(crate) fn of_engines(&self) -> u64 {
        self.engines.load(Relaxed)
    }

    /// Returns the reserve, if it is less than it should be.
    pub(crate) fn short(&self) -> Option<&Reserve> {
        self.reserve.as_deref().filter(|reserve| reserve.is_short())
    }

    /// Returns whether the reserve is enough for the recovery of a log of this fullness.
    #[inline]
    pub(crate) fn covers(&self, reserve: &Reserve, fullness: f64) -> bool {
        fullness <= f64::from_bits(self.covered.load(Relaxed)) && !reserve.is_short()
    }

    /// Grows the reserve for a log of some fullness, of which `bytes_at` says the bytes. Notes how
    /// much fuller the log may become before the next check.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub(crate) fn cover(
        &self,
        reserve: &Reserve,
        fullness: f64,
        memory: u64,
        bytes_at: impl Fn(f64) -> u64,
    ) -> Result<()> {
        let needed = |fullness| self.for_values(bytes_at(fullness), memory);
        // More than is needed now, so that the reserve does not grow with every write.
        let least = needed(fullness);
        let kept = reserve.keep_between(least, least / 4 * 5);
        if kept.as_ref().is_err_and(Error::is_full) {
            return kept;
        }
        let bytes = reserve.bytes();
        let is_covered = |fullness: &f64| needed(*fullness) <= bytes;
        let further = (0..=COVERED_STEPS).rev();
        let further = further.map(|step| fullness + f64::from(step) / COVERED_PARTS);
        let covered = further.into_iter().find(is_covered).unwrap_or(fullness);
        self.covered.store(covered.to_bits(), SeqCst);
        // A change of the reserve stores this after it.
        if reserve.bytes() != bytes {
            self.covered.store(NOTHING_COVERED, SeqCst);
        }
        kept
    }

    /// Sizes the reserve for a recovery after a quiet while: of a log of `log` bytes, if it has
    /// any records. `live` counts the bytes in pages that are in use. If the disk has no space for
    /// the reserve, the next writer gets the error.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn keep_in_quiet(
        &self,
        log: Option<u64>,
        memory: u64,
        live: impl FnOnce() -> u64,
    ) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        reserve.try_again();
        let kept = reserve.keep(log.map_or(0, |log| self.in_quiet(log, memory, live())));
        self.covered.store(NOTHING_COVERED, SeqCst);
        match kept {
            Err(error) if error.is_full() => Ok(()),
            kept => kept,
        }
    }

    /// Counts bytes that go to no log while the disk is full. As those of a log, they take a checkpoint.
    pub(crate) fn note_beside_log(&self, bytes: usize) {
        if self.short().is_some() {
            self.beside_log.fetch_add(BESIDE_LOG_BYTES.max(bytes as u64), Relaxed);
        }
    }

    /// Returns how many those are.
    pub(crate) fn beside_log(&self) -> u64 {
        self.beside_log.load(Relaxed)
    }

    /// Begins to count again from 0.
    pub(crate) fn forget_beside_log(&self) {
        self.beside_log.store(0, Relaxed);
    }

    /// Returns whether the log has grown enough for a checkpoint to shorten it: since the last one
    /// that found no space, if it found none, or since it was trimmed after that.
    pub(crate) fn is_long(&self, log: u64) -> bool {
        log >= self.log_without_room.load(Relaxed) + LOG_KEPT_BYTES
    }

    /// Notes the bytes of the log when a checkpoint to shorten it found no space; 0 if it found
    /// some.
    pub(crate) fn set_without_room(&self, log: u64) {
        self.log_without_room.store(log, Relaxed);
    }

    /// Notes the bytes of the log after any trim. Otherwise a log that another checkpoint shortened
    /// could grow to where the last attempt failed, and removals would take the whole reserve.
    pub(crate) fn note_trim(&self, log: u64) {
        self.log_without_room.fetch_min(log, Relaxed);
    }
}
