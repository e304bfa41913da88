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
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result};
use spinney_io::{Reserve, without_reserve};
use spinney_wal::ReserveFor;

use crate::place::Place;
use crate::state::State;

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
pub(crate) const NOTHING_COVERED: u64 = (-1.0f64).to_bits();

/// Bytes beside that, for double-write areas and the log itself.
const BASE_BYTES: u64 = 1 << 20;

/// Bytes that the log keeps when space is made, and least bytes that it has ready for later
/// records.
const LOG_KEPT_BYTES: u64 = 256 << 10;
const LOG_READY_BYTES: usize = 16 << 10;

/// Most bytes that are kept after a quiet while: this many, and this part of the data.
const QUIET_BYTES: u64 = 64 << 10;
const QUIET_PART: u64 = 8;

impl State {
    /// Returns whether a recovery would find records.
    pub(crate) fn has_records(&self) -> bool {
        let log = self.log.stats();
        log.first_lsn <= log.last_lsn
    }

    /// Disk space that the recovery of a log of `bytes` bytes may need.
    fn room_for_log(&self, bytes: u64) -> u64 {
        let in_parts = bytes + bytes / 2 + PER_MEMORY_BYTE * self.budget.total();
        let changed = BASE_BYTES + (PER_LOG_BYTE * bytes).min(in_parts);
        (self.engine_room.load(Relaxed) + changed).min(self.room_for_all(bytes))
    }

    /// Disk space that is kept while values are written. Removals fill a log of some length before
    /// their checkpoint, which needs space however short the log is now.
    fn room_for_values(&self, log: u64) -> u64 {
        self.room_for_log(log.max(LOG_KEPT_BYTES)).min(self.room_for_all(log))
    }

    /// Disk space that is enough for any operation on the present data.
    fn room_for_all(&self, log: u64) -> u64 {
        let all = self.data_bytes.load(Relaxed) + log;
        LITTLE_BYTES + self.engine_room.load(Relaxed) + PER_DATA_BYTE * all
    }

    /// Disk space that is kept after a quiet while.
    fn room_in_quiet(&self) -> u64 {
        if !self.has_records() {
            return 0;
        }
        let needed = self.room_for_log(self.log.stats().bytes_used);
        let live = |place: &Arc<Place>| {
            let stats = self.stats_of(place).0;
            stats.file_bytes.saturating_sub(stats.free_pages * PAGE_BYTES as u64)
        };
        let live: u64 = self.places().iter().map(live).sum();
        needed.min(QUIET_BYTES + live / QUIET_PART)
    }

    /// Reads the size of the data, and the space that the engines need: for everything that they
    /// hold in memory as pages, and for the largest of their smallest steps that free space.
    pub(crate) fn follow_engines(&self) {
        self.covered.store(NOTHING_COVERED, Relaxed);
        let keyspaces = self.keyspaces();
        let engines = || keyspaces.iter().map(|keyspace| &keyspace.engine);
        let unwritten: u64 = engines().map(|engine| engine.unwritten_bytes()).sum();
        let step = engines().map(|engine| engine.step_bytes()).max().unwrap_or(0);
        self.engine_room.store(unwritten + step, Relaxed);
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

    /// Sizes the reserve for a recovery after a quiet while. If the disk has no space for it, the
    /// next writer gets the error.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn keep_room_in_quiet(&self) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        reserve.try_again();
        let kept = reserve.keep(self.room_in_quiet());
        self.covered.store(NOTHING_COVERED, SeqCst);
        match kept {
            Err(error) if error.is_full() => Ok(()),
            kept => kept,
        }
    }

    /// Reserves space for the recovery of the log before a value goes there.
    ///
    /// # Errors
    /// As [`State::make_room`].
    #[inline]
    pub(crate) fn keep_room_for_values(&self, fullness: f64) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        if fullness <= f64::from_bits(self.covered.load(Relaxed)) && !reserve.is_short() {
            return Ok(());
        }
        self.keep_more_room(reserve, fullness)
    }

    #[cold]
    fn keep_more_room(&self, reserve: &Reserve, fullness: f64) -> Result<()> {
        self.follow_engines();
        let needed = |fullness| self.room_for_values(self.log.bytes_at(fullness));
        // More than is needed now, so that the reserve does not grow with every write.
        match reserve.keep(needed(fullness) / 4 * 5) {
            Err(error) if error.is_full() => self.make_room(true),
            kept => {
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
        }
    }

    /// Keeps the log short while the disk is full. Otherwise records of removals would take the
    /// space of the checkpoint that they need. After a checkpoint that found no space, the next is
    /// tried once the log has grown by as much.
    ///
    /// # Errors
    /// What the checkpoint met, but for `Full`.
    pub(crate) fn keep_log_short(&self) -> Result<()> {
        let Some(reserve) = self.reserve.as_ref().filter(|reserve| reserve.is_short()) else {
            return Ok(());
        };
        let used = || self.log.bytes_at(self.log.fullness());
        let is_long = || used() >= self.log_without_room.load(Relaxed) + LOG_KEPT_BYTES;
        if !is_long() {
            return Ok(());
        }
        let _one_at_a_time = self.hold_checkpoints();
        // Another thread may have shortened it meanwhile.
        if !is_long() {
            return Ok(());
        }
        let made = self.make_room_held(reserve, false);
        let is_full = made.as_ref().is_err_and(Error::is_full);
        self.log_without_room.store(if is_full { used() } else { 0 }, Relaxed);
        if is_full { Ok(()) } else { made }
    }

    /// Makes space for a writer that met a full disk, by a checkpoint, after which log and recovery
    /// need less. Values need the reserve as well; a removal does not.
    ///
    /// # Errors
    /// `Full` when there is none; what the checkpoint met.
    pub(crate) fn make_room(&self, for_values: bool) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        let _one_at_a_time = self.hold_checkpoints();
        self.make_room_held(reserve, for_values)
    }

    /// Does the same; the caller holds `checkpointing`.
    fn make_room_held(&self, reserve: &Reserve, for_values: bool) -> Result<()> {
        let keep = || {
            self.follow_engines();
            let log = self.log.bytes_at(self.log.fullness());
            reserve.keep(self.room_for_values(log))
        };
        // A writer of values needs space in the log as well, beside the reserve.
        let log_ready = || without_reserve(|| self.log.reserve(LOG_READY_BYTES, ReserveFor::User));
        // Another thread may have made the space meanwhile.
        if for_values && keep().is_ok() && log_ready().is_ok() {
            return Ok(());
        }
        self.give_room_back()?;
        if self.has_records() {
            match for_values {
                true => self.checkpoint_for_values(reserve)?,
                false => {
                    let taken = reserve.with_last_room(|| self.checkpoint_held());
                    // A checkpoint that found no space has left free pages in its file.
                    taken.or_else(|error| self.give_room_back().and(Err(error)))?;
                }
            }
        }
        if !self.backup_running.load(Acquire) {
            self.log.give_back(LOG_KEPT_BYTES)?;
        }
        if !for_values {
            return Ok(());
        }
        if reserve.is_short() {
            self.make_room_by_steps(reserve)?;
        }
        self.give_room_back()?;
        // The log first: without a ready segment, a reserve would be of no use.
        drop(log_ready());
        keep().map_err(|error| {
            error.wrap(
                ErrorKind::Full,
                "the disk is full: until there is room records can be read and removed, and no value is written",
            )
        })
    }

    /// What files grew by on a full disk may be free by now.
    fn give_room_back(&self) -> Result<()> {
        self.keyspaces()
            .iter()
            .try_for_each(|keyspace| keyspace.engine.values().store().give_all_back())
    }

    /// Takes a checkpoint for the sake of values, without spending what removals will need. Large
    /// values that were removed before may have to be freed first.
    fn checkpoint_for_values(&self, reserve: &Reserve) -> Result<()> {
        let checkpoint = || reserve.with_floor(self.room_for_values(0), || self.checkpoint_held());
        match checkpoint() {
            Err(error) if error.is_full() => {
                self.make_room_by_steps(reserve)?;
                checkpoint()
            }
            taken => taken,
        }
    }

    /// Lets engines make space by steps that free more than they take.
    fn make_room_by_steps(&self, reserve: &Reserve) -> Result<()> {
        let left = self.room_for_values(0).saturating_sub(self.engine_room.load(Relaxed));
        let keyspaces = self.keyspaces();
        let mut steps = keyspaces.iter().map(|keyspace| keyspace.engine.make_room());
        reserve.with_floor(left, || steps.try_for_each(|made| made))?;
        self.give_room_back()?;
        // Trimming makes durable what the steps wrote, and so what they freed.
        self.trim()
    }
}
