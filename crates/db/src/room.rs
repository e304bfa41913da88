//! The room that a database keeps for itself on the disk (rule P29).
//!
//! A full disk must not keep a database from its recovery, from removals, from dropping a keyspace
//! and from one checkpoint. They take from the [`Reserve`](spinney_io::Reserve) when the disk is
//! full. Once they have, writes of values are `Full` until the reserve is there again.
//!
//! ```text
//!   log used     0 --------------> much
//!   reserve      0   2 x log + 1 MiB       while something is written
//!                0   at most 64 KiB + an eighth of the data, after a quiet while
//! ```
//!
//! An empty log needs no reserve: nothing is to be recovered. A writer that finds the disk full takes
//! a checkpoint first, which empties the log, and so the reserve may be smaller.

use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, Result};

use crate::state::{KeyspaceState, State};

/// What is kept for a recovery of the log as it is: so many times its bytes, for pages that are written
/// beside those they replace, and this much for double-write areas and the log itself. With less a
/// recovery on a full disk may find no room, and the database opens for reading only.
const PER_LOG_BYTE: u64 = 2;
const BASE_BYTES: u64 = 1 << 20;

/// What is kept at most after a quiet while: this much, and this part of the data.
const QUIET_BYTES: u64 = 64 << 10;
const QUIET_PART: u64 = 8;

impl State {
    /// How much room a recovery needs now.
    fn room_needed(&self, is_quiet: bool) -> u64 {
        let log = self.log.stats();
        if log.first_lsn > log.last_lsn {
            return 0;
        }
        let needed = BASE_BYTES + PER_LOG_BYTE * log.bytes_used;
        if !is_quiet {
            return needed;
        }
        let live = |keyspace: &KeyspaceState| {
            let stats = keyspace.engine.stats();
            stats.file_bytes.saturating_sub(stats.free_pages * PAGE_BYTES as u64)
        };
        let live: u64 = self.keyspaces().iter().map(|keyspace| live(keyspace)).sum();
        needed.min(QUIET_BYTES + live / QUIET_PART)
    }

    /// Makes the reserve follow the log. A disk without room for it is the next writer's to hear of.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn keep_room(&self, is_quiet: bool) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        let needed = self.room_needed(is_quiet);
        if !is_quiet && !reserve.is_short() {
            // While something is written it only grows, and by more than is needed now.
            if needed <= reserve.bytes() {
                return Ok(());
            }
            return full_is_fine(reserve.keep(needed + needed / 4));
        }
        full_is_fine(reserve.keep(needed))
    }

    /// Whether values are refused until there is room.
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_short())
    }

    /// Makes the room that a recovery would need, for who met a full disk: by a checkpoint, after which it is less.
    ///
    /// # Errors
    /// `Full` when there is none; what the checkpoint met.
    pub(crate) fn make_room(&self) -> Result<()> {
        let Some(reserve) = &self.reserve else { return Ok(()) };
        if reserve.keep(self.room_needed(false)).is_ok() {
            return Ok(());
        }
        let _one_at_a_time = self.hold_checkpoints();
        // Somebody else may have made it meanwhile.
        if reserve.keep(self.room_needed(false)).is_ok() {
            return Ok(());
        }
        if self.room_needed(false) > 0 {
            self.checkpoint_held()?;
        }
        if !self.backup_running.load(Ordering::Acquire) {
            self.log.give_back(0)?;
        }
        reserve.keep(self.room_needed(false)).map_err(|error| {
            error.wrap(
                ErrorKind::Full,
                "the disk is full: until there is room records can be read and removed, and no value is written",
            )
        })
    }
}

fn full_is_fine(result: Result<()>) -> Result<()> {
    result.or_else(|error| if error.is_full() { Ok(()) } else { Err(error) })
}
