//! What a database does on a full disk (rule P29): it sizes the reserve, keeps the log short, and
//! makes space for writers. [`Room`](crate::room::Room) computes how much.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Result};
use spinney_io::{Reserve, without_reserve};
use spinney_wal::ReserveFor;

use crate::room::LOG_KEPT_BYTES;
use crate::state::State;

/// Least bytes that the log has ready for later records when space is made.
const LOG_READY_BYTES: usize = 16 << 10;

impl State {
    /// Returns whether a recovery would find records.
    pub(crate) fn has_records(&self) -> bool {
        let log = self.log.stats();
        log.first_lsn <= log.last_lsn
    }

    /// Disk space that is kept while values are written, at this length of the log.
    fn room_for_values(&self, log: u64) -> u64 {
        self.room.for_values(log, self.memory.budget.total())
    }

    /// Reads the size of the data, and the space that the engines need.
    pub(crate) fn follow_engines(&self) {
        self.room.follow(&self.keyspaces);
    }

    /// Sizes the reserve for a recovery after a quiet while. If the disk has no space for it, the
    /// next writer gets the error.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn keep_room_in_quiet(&self) -> Result<()> {
        let log = self.has_records().then(|| self.log.stats().bytes_used);
        let live = |stats: spinney_engine::EngineStats| {
            stats.file_bytes.saturating_sub(stats.free_pages * PAGE_BYTES as u64)
        };
        let places = || self.keyspaces.places();
        let all_live = || places().iter().map(|place| live(self.keyspaces.stats_of(place).0)).sum();
        self.room.keep_in_quiet(log, self.memory.budget.total(), all_live)
    }

    /// Reserves space for the recovery of the log before a value goes there.
    ///
    /// # Errors
    /// As [`State::make_room`].
    #[inline]
    pub(crate) fn keep_room_for_values(&self, fullness: f64) -> Result<()> {
        let Some(reserve) = &self.room.reserve else { return Ok(()) };
        if self.room.covers(reserve, fullness) {
            return Ok(());
        }
        self.keep_more_room(reserve, fullness)
    }

    #[cold]
    fn keep_more_room(&self, reserve: &Reserve, fullness: f64) -> Result<()> {
        match self.cover(reserve, fullness) {
            Err(error) if error.is_full() => self.make_room(true, 0),
            kept => kept,
        }
    }

    /// Grows the reserve for a log of this fullness.
    fn cover(&self, reserve: &Reserve, fullness: f64) -> Result<()> {
        self.follow_engines();
        let memory = self.memory.budget.total();
        self.room.cover(reserve, fullness, memory, |fullness| self.log.bytes_at(fullness))
    }

    /// Reserves the same space before a removal goes to the log, if the disk has it; the log is kept
    /// short where it has not. Otherwise removals after an opening, when nothing is reserved, would
    /// take what is left of the disk, and then no checkpoint could give any back.
    ///
    /// # Errors
    /// As [`State::keep_log_short`].
    #[inline]
    pub(crate) fn keep_room_for_removals(&self, fullness: f64) -> Result<()> {
        let Some(reserve) = &self.room.reserve else { return Ok(()) };
        if self.room.covers(reserve, fullness) {
            return Ok(());
        }
        if !reserve.is_short() {
            match self.cover(reserve, fullness) {
                Err(error) if error.is_full() => {}
                kept => return kept,
            }
        }
        self.keep_log_short()
    }

    /// Keeps the log short while the disk is full. Otherwise records of removals would take the
    /// space of the checkpoint that they need. After a checkpoint that found no space, the next is
    /// tried once the log has grown by as much.
    ///
    /// # Errors
    /// What the checkpoint met, but for `Full`.
    fn keep_log_short(&self) -> Result<()> {
        let Some(reserve) = self.room.short() else { return Ok(()) };
        let used = || self.log.bytes_at(self.log.fullness()) + self.room.beside_log();
        let is_long = || self.room.is_long(used());
        if !is_long() {
            return Ok(());
        }
        let _one_at_a_time = self.checkpoints.hold();
        // Another thread may have shortened it meanwhile.
        if !is_long() {
            return Ok(());
        }
        let made = self.make_room_held(reserve, false, 0);
        self.room.forget_beside_log();
        let is_full = made.as_ref().is_err_and(Error::is_full);
        self.room.set_without_room(if is_full { used() } else { 0 });
        if is_full { Ok(()) } else { made }
    }

    /// Makes space for a writer that met a full disk, by a checkpoint, after which log and recovery
    /// need less. Values need the reserve as well, and space for `bytes` bytes in the log; a removal
    /// does not.
    ///
    /// # Errors
    /// `Full` when there is none; what the checkpoint met.
    pub(crate) fn make_room(&self, for_values: bool, bytes: usize) -> Result<()> {
        let Some(reserve) = &self.room.reserve else { return Ok(()) };
        let _one_at_a_time = self.checkpoints.hold();
        self.make_room_held(reserve, for_values, bytes)
    }

    /// Does the same; the caller holds `checkpointing`.
    fn make_room_held(&self, reserve: &Reserve, for_values: bool, bytes: usize) -> Result<()> {
        let keep = || {
            self.follow_engines();
            let log = self.log.bytes_at(self.log.fullness());
            reserve.keep(self.room_for_values(log))
        };
        // A writer of values needs space in the log as well, beside the reserve.
        let bytes = bytes.max(LOG_READY_BYTES);
        let log_ready = || without_reserve(|| self.log.reserve(bytes, ReserveFor::User));
        // Another thread may have made the space meanwhile.
        let is_ready = || log_ready().is_ok_and(|room| room.is_some());
        if for_values && keep().is_ok() && is_ready() {
            return Ok(());
        }
        self.give_room_back()?;
        if self.has_records() || self.room.beside_log() > 0 {
            match for_values {
                true => self.checkpoint_for_values(reserve)?,
                false => {
                    let taken = reserve.with_last_room(|| self.checkpoint_held());
                    // A checkpoint that found no space has left free pages in its file.
                    taken.or_else(|error| self.give_room_back().and(Err(error)))?;
                }
            }
        }
        if !self.backups.is_running() {
            self.log.give_back(LOG_KEPT_BYTES)?;
        }
        // Removals as well, or their records would take all of the disk in engines that gather them.
        if reserve.is_short() && (for_values || keep().is_err()) {
            self.make_room_by_steps(reserve)?;
        }
        if !for_values {
            return Ok(());
        }
        self.give_room_back()?;
        // The log first: without a ready segment, a reserve would be of no use.
        drop(log_ready());
        let mut kept = keep();
        while kept.as_ref().is_err_and(|error| error.is_full() && self.end_a_snapshot(error)) {
            self.give_room_back()?;
            kept = keep();
        }
        kept.map_err(|error| {
            error.wrap(
                ErrorKind::Full,
                "the disk is full: until there is room records can be read and removed, and no value is written",
            )
        })
    }

    /// Ends a snapshot that keeps disk space. Returns whether there was one.
    fn end_a_snapshot(&self, cause: &Error) -> bool {
        self.keyspaces.open().iter().any(|keyspace| keyspace.engine.end_oldest_snapshot(cause))
    }

    /// What files grew by on a full disk may be free by now.
    fn give_room_back(&self) -> Result<()> {
        self.keyspaces
            .open()
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
        let left = self.room_for_values(0).saturating_sub(self.room.of_engines());
        let keyspaces = self.keyspaces.open();
        let mut steps = keyspaces.iter().map(|keyspace| keyspace.engine.make_room());
        reserve.with_floor(left, || steps.try_for_each(|made| made))?;
        self.give_room_back()?;
        // Trimming makes durable what the steps wrote, and so what they freed.
        self.trim()
    }
}
