//! [`Log`]: all operations on a log except flushing (`flush`) and opening (`recover`).
//!
//! **Concurrency**: every method may be called from any thread. Lock order: superblock, growing,
//! writer, leader, buffers, segment table; the sync lock is taken with at most the superblock or
//! growing lock held. No caller's code runs under any of them.
//!
//! **Crash**: see `recover`. **Failure** (rule P21): a failed write or sync poisons the log for
//! good; the cause is handed to every later call on the writing side, nothing is tried again, and
//! what a failed call left is known only to the next recovery.

use std::fmt;
use std::sync::{Arc, OnceLock};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use spinney_base::{Epoch, Error, ErrorKind, Lsn, Result, probe};
use spinney_io::{AlignedBuf, Directory, File, OpenMode, Purpose};

use crate::announce::{Announcement, Announcements};
use crate::block::RecordKind;
use crate::buffers::Buffers;
use crate::failure::Failure;
use crate::flush::{GroupCommit, Runs};
use crate::options::{LogMemory, LogOptions, RECORD_BYTES_MAX};
use crate::room::{Claim, Reservation, ReserveFor, worst_blocks};
use crate::segments::{RunStart, SegmentTable, segment_offset};
use crate::space::Space;
use crate::superblock::{SUPERBLOCKS, Superblock};
use crate::tail::Tail;

/// Pending bytes from which on the next reservation writes the buffers out first. It bounds records
/// that no commit waits for (structure records).
const PENDING_BYTES_MAX: u64 = 1 << 20;

/// A checkpoint for fewer bytes of the log than this, or for fewer sixteenths of it than
/// [`CHECKPOINT_SIXTEENTHS_MIN`], costs more than it saves a recovery.
const CHECKPOINT_BYTES_MIN: u64 = 12 << 20;
const CHECKPOINT_SIXTEENTHS_MIN: u64 = 3;

/// Blocks of zeros written at once when segments are made.
const ZERO_BLOCKS: usize = 64;

/// The one log of a database. It is shared in an `Arc`.
pub struct Log {
    pub(crate) files: Files,
    pub(crate) life: Life,
    pub(crate) space: Space,
    pub(crate) buffers: Buffers,
    pub(crate) memory: Memory,
    pub(crate) announcements: Announcements,
    pub(crate) runs: Runs,
    pub(crate) group: GroupCommit,
    pub(crate) failure: Failure,
    pub(crate) counters: Counters,
}

/// Open files of a log.
pub(crate) struct Files {
    /// Handle through the page cache: a flush gives its bytes to the kernel, and a sync makes them
    /// durable.
    pub(crate) file: Arc<dyn File>,
    /// Handle past the page cache where possible, so that reads see what the media hold (rule P9).
    pub(crate) reader: Arc<dyn File>,
    /// File of the tail, through the page cache.
    pub(crate) tail: Arc<dyn File>,
}

/// The current life of a log.
pub(crate) struct Life {
    /// Identity of the database, in each block.
    pub(crate) tag: u64,
    pub(crate) epoch: Epoch,
    /// Whether the previous life was closed, or there was none.
    pub(crate) was_closed: bool,
    /// Whether the superblock of this life is on the disk. Nothing of the life is on the disk
    /// before it.
    pub(crate) is_begun: AtomicBool,
    /// Whether [`Log::close`] was called.
    closed: AtomicBool,
}

/// Persistent memory for the tail.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// What was chosen, if anything.
    chosen: OnceLock<LogMemory>,
    /// Whether the file of the tail is in persistent memory, once a commit asked.
    is_there: OnceLock<bool>,
}

impl Memory {
    pub(crate) fn chosen(&self) -> LogMemory {
        self.chosen.get().copied().unwrap_or_default()
    }

    /// Returns whether the tail, if there were one in `file`, would be in persistent memory.
    pub(crate) fn is_there(&self, file: &dyn File) -> bool {
        if let Some(is_there) = self.is_there.get() {
            return *is_there;
        }
        // Several threads may ask the system, which answers all the same.
        let is_there = self.chosen().writes_back(true) && file.is_persistent();
        *self.is_there.get_or_init(|| is_there)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

/// Statistics of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes from the oldest segment that is needed to the head.
    pub bytes_used: u64,
    /// Most bytes of segments.
    pub bytes_max: u64,
    /// Segments in the file, needed or ready for use.
    pub segments: u64,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Commits requested.
    pub commits: u64,
    /// Runs written.
    pub flushes: u64,
    /// Syncs of the file.
    pub syncs: u64,
    /// What the tail is in: `none`, while there is no tail; `written`, by calls; `mapped`;
    /// `persistent` memory; or `emulated`, for [`LogMemory::Emulated`].
    pub memory: &'static str,
    /// Cache lines written back to persistent memory, or to what emulates it.
    pub lines: u64,
    /// Fences that waited for them, one for each record.
    pub fences: u64,
    /// Current life of the log.
    pub epoch: Epoch,
    /// First LSN that the log still holds.
    pub first_lsn: Lsn,
    /// Every record up to here is on stable storage in runs.
    pub durable_lsn: Lsn,
    /// Every record up to here was given to the kernel in a run.
    pub written_lsn: Lsn,
    /// The latest record.
    pub last_lsn: Lsn,
}

impl Log {
    /// Creates a new, empty log named `name`, which is durable on return. It takes two blocks;
    /// segments are made when they are first needed. Remains of an unfinished creation are
    /// replaced.
    ///
    /// # Errors
    /// `InvalidArgument` for options out of range, `Corruption` when there is a log that has or had
    /// records, `Full` or `Io` from the disk.
    pub fn create(directory: &dyn Directory, name: &str, options: &LogOptions) -> Result<Arc<Log>> {
        options.check()?;
        let tail_name = tail_name(name);
        // An unfinished log has only its superblocks, and nothing in its tail.
        for (name, bytes_max) in [(name, SUPERBLOCKS * PAGE_BYTES as u64), (&*tail_name, 0)] {
            if directory.exists(name)? {
                let found = directory.open(name, OpenMode::EXISTING.cached().read_only())?;
                let (path, length) = (found.path().display(), found.len()?);
                if length > bytes_max {
                    let expected = "no log, because no database names it";
                    return Err(Error::corruption(path, 0, expected, format!("{length} bytes")));
                }
                directory.remove(name)?;
            }
        }
        let tail = directory.open(&tail_name, OpenMode::CREATE.cached())?;
        let file = directory.open(name, OpenMode::CREATE.cached())?;
        let segment_blocks =
            u32::try_from(options.segment_blocks()).expect("checked with the options");
        let mut superblock = Superblock {
            tag: options.tag,
            generation: 1,
            start: 0,
            start_lsn: Lsn(1),
            epoch: Epoch(1),
            segment_blocks,
            cut: 0,
            cut_lsn: Lsn::ZERO,
            closed: None,
        };
        superblock.write(&*file, Purpose::LOG)?;
        // The second slot too, so that both exist and damage to one leaves the other.
        superblock.generation = 2;
        superblock.write(&*file, Purpose::LOG)?;
        file.sync(Purpose::LOG)?;
        directory.sync()?;
        let reader = directory.open(name, OpenMode::EXISTING.read_only())?;
        let head = RunStart { position: 0, first: Lsn(1) };
        let table = SegmentTable::new(options.segment_blocks(), 0, [].into(), 0, head);
        let files = Files { file, reader, tail };
        let mut log = Log::assemble(files, options, superblock, table, 0);
        log.life.was_closed = true;
        Ok(Arc::new(log))
    }

    /// Assembles a log from consistent files and bookkeeping. `kept_blocks` blocks of records are
    /// not in it yet and must find space.
    pub(crate) fn assemble(
        files: Files,
        options: &LogOptions,
        superblock: Superblock,
        table: SegmentTable,
        kept_blocks: u64,
    ) -> Log {
        let next = table.head().first;
        let life = Life {
            tag: superblock.tag,
            epoch: superblock.epoch,
            was_closed: false,
            is_begun: AtomicBool::new(true),
            closed: AtomicBool::new(false),
        };
        Log {
            files,
            life,
            space: Space::new(options, superblock, table, kept_blocks),
            buffers: Buffers::new(next, options),
            memory: Memory::default(),
            announcements: Announcements::new(),
            runs: Runs::new(next),
            group: GroupCommit::new(next),
            failure: Failure::none(),
            counters: Counters::default(),
        }
    }

    /// Reserves space for one record of at most `bytes` payload. `None` means that the log is too
    /// full for this purpose: trim it (after a checkpoint) and ask again. This call never waits for
    /// space. It may write to the disk, so no lock may be held.
    ///
    /// # Errors
    /// `InvalidArgument` when no log of this size could ever hold the record, `Full` when the disk
    /// has no room for another segment (nothing changed; it goes away when room returns),
    /// `Poisoned`, `Closed`.
    pub fn reserve(&self, bytes: usize, purpose: ReserveFor) -> Result<Option<Reservation<'_>>> {
        self.reserve_records(1, bytes, purpose)
    }

    /// Reserves space for up to `records` records of together at most `bytes` payload. Otherwise as
    /// [`Log::reserve`].
    ///
    /// # Errors
    /// As [`Log::reserve`].
    pub fn reserve_records(
        &self,
        records: usize,
        bytes: usize,
        purpose: ReserveFor,
    ) -> Result<Option<Reservation<'_>>> {
        self.check()?;
        if self.life.closed.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the log is closed"));
        }
        let blocks = worst_blocks(records, bytes);
        // A trimmed log may still begin almost a segment before its head.
        let fits =
            blocks.saturating_add(self.space.segment_blocks) <= self.space.room.span(purpose);
        if bytes > RECORD_BYTES_MAX || !fits {
            return Err(Error::invalid(format!(
                "{records} log records of together {bytes} bytes do not fit a log of at most {} bytes",
                self.space.bytes_max()
            )));
        }
        if self.runs.refused.load(Relaxed) || self.buffers.pending() > PENDING_BYTES_MAX {
            self.write_out(self.last_lsn())?;
        }
        loop {
            match self.space.room.claim(blocks, purpose) {
                Claim::Granted => return Ok(Some(self.space.room.reservation(blocks))),
                Claim::NeedRoom => return Ok(None),
                Claim::NotReady(end) => self.grow(end)?,
            }
        }
    }

    /// Appends one record: assigns its LSN and copies it, which cannot fail. It is neither written
    /// nor durable until a commit.
    ///
    /// # Panics
    /// When the reservation does not hold the record; then nothing was appended.
    pub fn append(
        &self,
        reservation: &mut Reservation<'_>,
        kind: RecordKind,
        payload: &[u8],
    ) -> Lsn {
        let bytes = kind.header_bytes() + payload.len();
        assert!(reservation.holds(bytes as u64), "room is reserved before a record is appended");
        let (lsn, blocks) = self.buffers.append(kind, payload);
        reservation.consume(blocks);
        lsn
    }

    /// Announces that this thread will append. The applied watermark stays below its record until
    /// the result is dropped (rule P1).
    pub fn announce(&self) -> Announcement<'_> {
        self.announcements.announce(self.buffers.next(), self.buffers.hint())
    }

    /// Returns the LSN up to which every record has been applied by the thread that appended it, if
    /// all threads announce.
    #[must_use]
    pub fn applied_watermark(&self) -> Lsn {
        self.announcements.applied(self.buffers.next())
    }

    /// Waits until every writer that is announced at this moment has applied what it appended. The
    /// caller holds nothing that a writer needs.
    pub fn quiesce(&self) {
        self.announcements.quiesce();
    }

    /// Returns the LSN of the latest record; 0 before the first.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        self.buffers.last()
    }

    /// Returns the LSN up to which every record is on stable storage in runs. Later ones may be so in
    /// persistent memory.
    #[must_use]
    pub fn durable_lsn(&self) -> Lsn {
        self.group.durable()
    }

    /// Returns the LSN up to which the kernel has every record in a run. Later records that were
    /// acknowledged are in the tail.
    #[must_use]
    pub fn written_lsn(&self) -> Lsn {
        self.runs.written()
    }

    /// Returns how full the log is for users: from 1 on, their reservations are refused. A database
    /// slows writers as it nears 1, and forces checkpoints before.
    #[must_use]
    pub fn fullness(&self) -> f64 {
        self.space.room.fullness()
    }

    /// Returns the bytes of records at this fullness, where 1 is full for users.
    #[must_use]
    pub fn bytes_at(&self, fullness: f64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a hint; of what is not negative"
        )]
        let blocks = (self.space.room.span(ReserveFor::User) as f64 * fullness) as u64;
        blocks * PAGE_BYTES as u64
    }

    /// Returns the fullness at `bytes` bytes of records, or at the fewest for which a checkpoint
    /// pays.
    #[must_use]
    pub fn fullness_of(&self, bytes: u64) -> f64 {
        let least = self.space.bytes_max() / 16 * CHECKPOINT_SIXTEENTHS_MIN;
        let blocks = bytes.max(least.min(CHECKPOINT_BYTES_MIN)) / PAGE_BYTES as u64;
        #[expect(clippy::cast_precision_loss, reason = "a hint")]
        let fullness = blocks as f64 / self.space.room.span(ReserveFor::User) as f64;
        fullness
    }

    /// Returns the statistics of the log.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let page = PAGE_BYTES as u64;
        let (lines, fences) = self.buffers.tail().map_or((0, 0), Tail::lines_and_fences);
        let (used, segments, first_lsn) = {
            let table = self.space.segments.lock();
            let used = table.head().position - table.begin();
            (used, u64::from(table.solid()), table.first_lsn())
        };
        LogStats {
            bytes_used: used * page,
            bytes_max: self.space.bytes_max(),
            segments,
            segment_bytes: self.space.segment_blocks * page,
            commits: self.counters.commits.load(SeqCst),
            flushes: self.counters.flushes.load(SeqCst),
            syncs: self.counters.syncs.load(SeqCst),
            memory: self.buffers.tail().map_or("none", Tail::memory),
            lines,
            fences,
            epoch: self.life.epoch,
            first_lsn,
            durable_lsn: self.durable_lsn(),
            written_lsn: self.written_lsn(),
            last_lsn: self.last_lsn(),
        }
    }

    /// Chooses whether the tail is kept in persistent memory. Only the first call counts, and only
    /// before the first commit; without one, it is [`LogMemory::Automatic`].
    pub fn keep_tail_in(&self, memory: LogMemory) {
        let _ = self.memory.chosen.set(memory);
    }

    /// Limits the memory that buffers keep between flushes, each kind of them to `bytes` bytes (1
    /// MiB by default). Records that gather between two flushes take what they need.
    pub fn keep_spare(&self, bytes: usize) {
        self.runs.spare_bytes.store(bytes, Relaxed);
    }

    /// Returns the bytes of memory that the buffers hold now.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (self.buffers.memory_bytes() + self.runs.memory_bytes.load(Relaxed)) as u64
    }

    /// Allows all records up to `lsn` to be freed. Records that are not durable in the log, or held
    /// for a replay ([`Recovered`](crate::Recovered)) or by a [`Follower`](crate::Follower), stay.
    /// Frees whole segments, and first writes and syncs a superblock that does not need them.
    ///
    /// # Errors
    /// `Full` when the disk has no room to write the superblock in place, or `Poisoned`; nothing
    /// was freed.
    pub fn trim(&self, lsn: Lsn) -> Result<()> {
        self.check()?;
        let _inside = probe::enter("trim");
        let mut superblock = self.space.superblock.lock();
        let held = self.space.unneeded();
        let (start, head) = {
            let table = self.space.segments.lock();
            (table.start_without(lsn.min(held).min(self.durable_lsn())), table.head())
        };
        let Some(start) = start.filter(|start| start.position > superblock.start) else {
            return Ok(());
        };
        let frees = start.position / self.space.segment_blocks
            > superblock.start / self.space.segment_blocks;
        // A start inside the same segment frees nothing; it is worth a write only if it makes the
        // log empty.
        if !frees && start.position < head.position {
            return Ok(());
        }
        let mut next = superblock.clone();
        next.generation += 1;
        next.start = start.position;
        next.start_lsn = start.first;
        // For lack of space the slot is unchanged.
        next.write(&*self.files.file, Purpose::LOG)
            .map_err(|error| self.fail_unless_full(error))?;
        self.sync_file()?;
        *superblock = next;
        self.runs.writer.lock().promise(Lsn(start.first.0 - 1));
        let mut table = self.space.segments.lock();
        table.trim_to(start);
        self.space.room.begin_at(table.begin());
        Ok(())
    }

    /// Prepares segments up to position `end`, trimmed ones first, and some more where many are
    /// used.
    fn grow(&self, end: u64) -> Result<()> {
        let _one_at_a_time = self.space.growing.lock();
        self.begin()?;
        while self.space.room.ready() < end {
            let new = {
                let mut table = self.space.segments.lock();
                if table.map_free() {
                    self.space.room.ready_to(table.ready());
                    continue;
                }
                let missing = (end - table.ready()).div_ceil(self.space.segment_blocks);
                let missing = u32::try_from(missing).unwrap_or(u32::MAX);
                (table.next_to_make(missing.max(self.space.ahead(&table))), missing)
            };
            let (new, missing) = new;
            let result = self.make_segments(&new);
            let made = match result {
                // The segments that are needed may still fit.
                Err(error) if error.is_full() && new.len() > missing as usize => {
                    let fewer = &new[..missing as usize];
                    self.make_segments(fewer).map(|()| fewer)
                }
                result => result.map(|()| &*new),
            };
            self.space.segments.lock().made(made?);
        }
        // One segment stays ready for a full disk. If the disk is full already, the next writer
        // that needs it gets the error.
        let next = {
            let table = self.space.segments.lock();
            if table.has_free() { Vec::new() } else { table.next_to_make(self.space.ahead(&table)) }
        };
        match self.make_segments(&next) {
            Ok(()) => self.space.segments.lock().made(&next),
            Err(error) if error.is_full() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the superblock of this life durable, if it is not yet: the life begins with the first
    /// record. `Full` if the file system has no space for it; the next try may succeed.
    fn begin(&self) -> Result<()> {
        if self.life.is_begun.load(SeqCst) {
            return Ok(());
        }
        let superblock = self.space.superblock.lock();
        match superblock.write(&*self.files.file, Purpose::LOG) {
            Err(error) if error.is_full() => return Err(error),
            written => written.map_err(|error| self.fail(error))?,
        }
        self.sync_file()?;
        self.life.is_begun.store(true, SeqCst);
        Ok(())
    }

    /// Writes segments of zeros, in ascending order, so that later flushes change no metadata and
    /// never lack room.
    fn make_segments(&self, segments: &[u32]) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        let _inside = probe::enter("log growth");
        let zeros = AlignedBuf::new(ZERO_BLOCKS);
        for adjacent in segments.chunk_by(|one, next| one + 1 == *next) {
            let (mut offset, end) = self.space.bytes_of(adjacent);
            self.files.file.allocate(end)?;
            while offset < end {
                let bytes = usize::try_from(end - offset)
                    .map_or(zeros.bytes().len(), |rest| rest.min(zeros.bytes().len()));
                self.files.file.write_at(&zeros.bytes()[..bytes], offset, Purpose::LOG)?;
                offset += bytes as u64;
            }
        }
        self.sync_file()
    }

    /// Prepares segments ahead of the writers when few are ready. [`Log::tick`] calls it.
    pub(crate) fn grow_ahead(&self) -> Result<()> {
        let ready = self.space.room.ready();
        let ahead =
            u64::from(self.space.ahead(&self.space.segments.lock())) * self.space.segment_blocks;
        let short = self.space.room.claimed() + ahead / 4 > ready;
        let end = ready + ahead;
        let used = self.counters.flushes.load(SeqCst) > 0;
        if used && short && end <= self.space.room.limit(ReserveFor::Internal) {
            // The next writer gets the error of a full disk, if there is still no space then.
            return self
                .grow(end)
                .or_else(|error| if error.is_full() { Ok(()) } else { Err(error) });
        }
        Ok(())
    }

    /// Gives the space of unneeded segments back to the file system, except `keep` bytes of it, in
    /// whole segments. Call it with 0 when nothing was written for a while. The file is cut off
    /// behind the last needed segment. Segments are made again when they are needed; a full disk is
    /// then an error until space returns, as for any growth of the log.
    ///
    /// # Errors
    /// `Poisoned` or `Io`.
    pub fn give_back(&self, keep: u64) -> Result<()> {
        self.check()?;
        let _one_at_a_time = self.space.growing.lock();
        let keep = keep.div_ceil(self.space.segment_blocks * PAGE_BYTES as u64);
        let (taken, physical) = {
            let mut table = self.space.segments.lock();
            let taken = table.take_free(usize::try_from(keep).unwrap_or(usize::MAX));
            (taken, table.physical())
        };
        self.files.file.truncate(segment_offset(physical, self.space.segment_blocks))?;
        for adjacent in taken.chunk_by(|one, next| one + 1 == *next) {
            let (begin, end) = self.space.bytes_of(adjacent);
            if !self.files.file.punch_hole(begin, end - begin)? {
                let mut table = self.space.segments.lock();
                adjacent.iter().for_each(|physical| table.return_free(*physical));
            }
        }
        Ok(())
    }

    /// Returns whether the previous life ended with [`Log::close`], or there was none. After a
    /// crash it did not.
    #[must_use]
    pub fn was_closed(&self) -> bool {
        self.life.was_closed
    }

    /// Closes the log: flushes everything, makes it durable, records that in the superblock (rule
    /// P7), and refuses reservations from then on. The files are cut off behind what is needed.
    /// Writers must have stopped.
    ///
    /// # Errors
    /// `Poisoned`: what was not durable before has an unknown outcome. `Full` where that word finds
    /// no room: all is durable, and the next opening recovers.
    pub fn close(&self) -> Result<()> {
        self.life.closed.store(true, SeqCst);
        self.check()?;
        if !self.life.is_begun.load(SeqCst) {
            return Ok(());
        }
        self.ensure_durable(self.last_lsn())?;
        let mut superblock = self.space.superblock.lock();
        let mut next = superblock.clone();
        next.generation += 1;
        next.closed = Some(self.last_lsn());
        next.write(&*self.files.file, Purpose::LOG)
            .map_err(|error| self.fail_unless_full(error))?;
        self.sync_file()?;
        let is_empty = next.is_closed_and_empty();
        *superblock = next;
        drop(superblock);
        // The rest is unneeded; whether its space can be given back changes nothing.
        if is_empty {
            let _ = self.files.file.truncate(segment_offset(0, self.space.segment_blocks));
        } else {
            let _ = self.give_back(0);
        }
        let _ = self.files.tail.truncate(0);
        let _ = self.files.file.sync(Purpose::LOG);
        Ok(())
    }

    /// Stops the writing side, unless the disk only lacks space.
    pub(crate) fn fail_unless_full(&self, cause: Error) -> Error {
        if cause.is_full() { cause } else { self.fail(cause) }
    }

    /// Stops the writing side for good, because something that the log depends on failed (rule
    /// P21).
    pub fn poison(&self, cause: Error) {
        self.fail(cause);
    }

    /// Returns the error that stopped the writing side, if any.
    #[must_use]
    pub fn poisoned(&self) -> Option<Error> {
        self.check().err()
    }

    /// Fails once the log is poisoned.
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.check()
    }

    /// Poisons the log with the first cause, wakes all waiting threads, and returns the error that
    /// they get.
    pub(crate) fn fail(&self, cause: Error) -> Error {
        let error = self.failure.set(cause);
        self.group.wake();
        error
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("path", &self.files.file.path())
            .field("epoch", &self.life.epoch)
            .field("last", &self.last_lsn())
            .field("written", &self.written_lsn())
            .field("durable", &self.durable_lsn())
            .field("failed", &self.failure.is_set())
            .finish_non_exhaustive()
    }
}

/// Returns the name of the file with the tail of the log `name`, in the same directory.
#[must_use]
pub fn tail_name(name: &str) -> String {
    format!("{name}-tail")
}

/// Opens the tail of the log `name`, and makes one if it is missing. Its name is durable then, because
/// records may soon be durable in it.
pub(crate) fn open_tail(directory: &dyn Directory, name: &str) -> Result<Arc<dyn File>> {
    let name = tail_name(name);
    let is_missing = !directory.exists(&name)?;
    let tail = directory.open(&name, OpenMode::CREATE.cached())?;
    if is_missing {
        directory.sync()?;
    }
    Ok(tail)
}

/// Returns the number of whole segments in a file of `bytes`.
pub(crate) fn whole_segments(bytes: u64, segment_blocks: u64) -> u32 {
    let blocks = (bytes / PAGE_BYTES as u64).saturating_sub(SUPERBLOCKS);
    u32::try_from(blocks / segment_blocks).unwrap_or(u32::MAX)
}
