//! The room that a database keeps for itself on the disk (rule P29).
//!
//! A full disk must not keep a database from its recovery, from removals, from dropping a keyspace
//! and from one checkpoint. They take from the [`Reserve`](spinney_io::Reserve) when the disk is
//! full. Once they have, writes of values are `Full` until the reserve is there again.
//!
//! ```text
//!   log used     0 --------------> much
//!   reserve      0   6 x log + 1 MiB       while something is written; for logs much larger than
//!                    1.5 x log + 3 x memory + 1 MiB      the memory, which replay in parts
//!                0   at most 64 KiB + an eighth of the data, after a quiet while
//! ```
//!
//! An empty log needs no reserve: nothing is to be recovered. The reserve grows before a value goes to
//! the log; a writer for whom there is no room takes a checkpoint first, which empties the log, and so
//! the reserve may be smaller.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, Result};

use spinney_wal::ReserveFor;

use crate::place::Place;
use crate::state::State;

/// What a recovery may need for each byte of the log: pages are written beside those they replace. With two
/// recoveries on a full disk found no room (test `c1_a_restart_on_a_full_disk`), and then the database
/// opens for reading only.
const PER_LOG_BYTE: u64 = 6;

/// What replays in parts, because it is more than memory, needs for each byte of memory: after each part
/// the pages that were replaced are free.
const PER_MEMORY_BYTE: u64 = 3;

/// Beside that, for double-write areas and the log itself.
const BASE_BYTES: u64 = 1 << 20;

/// What the log keeps when room is made, and what it has ready at least: what follows is written there.
const LOG_KEPT_BYTES: u64 = 256 << 10;
const LOG_READY_BYTES: usize = 16 << 10;

/// What is kept at most after a quiet while: this much, and this part of the data.
const QUIET_BYTES: u64 = 64 << 10;
const QUIET_PART: u64 = 8;

impl State {
    /// Whether a recovery would find records.
    pub(crate) fn has_records(&self) -> bool {
        let log = self.log.stats();
        log.first_lsn <= log.last_lsn
    }

    /// How much room the recovery of a log of so many bytes may need.
    fn room_for_log(&self, bytes: u64) -> u64 {
        let in_parts = bytes + bytes / 2 + PER_MEMORY_BYTE * self.budget.total();
        BASE_BYTES + (PER_LOG_BYTE * bytes).min(in_parts)
    }

    /// How much room is kept after a quiet while.
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

    /// Runs what must succeed on a full disk if anything can: a recovery, a checkpoint that was asked for, a drop.
    pub(crate) fn with_last_room<R>(&self, request: impl FnOnce() -> R) -> R {
        match &self.reserve {
            Some(reserve) => reserve.with_last_room(request),
            None => request(),
        }
    }

    /// Makes the reserve what a recovery would need after a quiet while. A disk without room for it is the next
    /// writer's to hear of.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn keep_room_in_quiet(&self) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        reserve.try_again();
        match reserve.keep(self.room_in_quiet()) {
            Err(error) if error.is_full() => Ok(()),
            kept => kept,
        }
    }

    /// Makes room for the recovery of the log before a value goes there.
    ///
    /// # Errors
    /// As [`State::make_room`].
    pub(crate) fn keep_room_for_values(&self, fullness: f64) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        let needed = self.room_for_log(self.log.bytes_at(fullness));
        if needed <= reserve.bytes() && !reserve.is_short() {
            return Ok(());
        }
        // More than is needed now, so that it does not grow with every write.
        match reserve.keep(needed + needed / 4) {
            Err(error) if error.is_full() => self.make_room(true),
            kept => kept,
        }
    }

    /// Makes room for who met a full disk, by a checkpoint, after which the log takes less and a recovery needs
    /// less. Values need the reserve as well; a removal does without.
    ///
    /// # Errors
    /// `Full` when there is none; what the checkpoint met.
    pub(crate) fn make_room(&self, for_values: bool) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        let keep = || {
            let log = self.log.bytes_at(self.log.fullness());
            reserve.keep(self.room_for_log(log))
        };
        let _one_at_a_time = self.hold_checkpoints();
        // Somebody else may have made it meanwhile.
        if for_values && keep().is_ok() {
            return Ok(());
        }
        // What files grew by on a full disk may be free by now.
        let give_back =
            || self.keyspaces().iter().try_for_each(|keyspace| keyspace.engine.give_back_room());
        give_back()?;
        if self.has_records() {
            match for_values {
                true => self.checkpoint_held()?,
                false => reserve.with_last_room(|| self.checkpoint_held())?,
            }
        }
        if !self.backup_running.load(Ordering::Acquire) {
            self.log.give_back(LOG_KEPT_BYTES)?;
        }
        if !for_values {
            return Ok(());
        }
        give_back()?;
        // The log first: without a segment that is ready what is kept would serve nobody.
        drop(self.log.reserve(LOG_READY_BYTES, ReserveFor::User));
        keep().map_err(|error| {
            error.wrap(
                ErrorKind::Full,
                "the disk is full: until there is room records can be read and removed, and no value is written",
            )
        })
    }
}
