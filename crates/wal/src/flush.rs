//! From the buffers to the disk: runs, group commit, and the watermark on an idle log.
//!
//! **Writing** is serialized by the writer lock. The thread that gets it steals all buffers and
//! writes one run. Threads that waited for the lock, at first by polling, then find their records
//! written. **Syncing** is done by one leader at a time, outside the writer lock. Appends and
//! writes continue meanwhile, and committers that arrive wait. When the leader is done, those it
//! did not cover elect the next leader, which takes everything that gathered. So any number of
//! committers share a sync.
//!
//! All syncs of the file go through `sync_file`, one at a time. A system reports a failed
//! write-back to one sync only, so a concurrent second one could succeed and acknowledge what is
//! lost.
//!
//! **Commits that wait only for the kernel** find their records in the [tail](crate::tail) and
//! write nothing. The next paragraph is for those that do not: where there is no tail, or a record
//! was too large for it. Where the tail is in persistent memory, this also holds for commits that
//! wait for stable storage. There a steal first waits until the run before it was synced: its areas
//! are stored over next, and their frames were the durable copy.
//!
//! **The open block.** A run of one block stays open until a sync begins. Later records that fit
//! are put behind those in it, and the whole page is given to the kernel again, in one write, with
//! every earlier byte where it was. So commits that wait only for the kernel share blocks even when
//! they come one at a time; a block for each would fill the log with padding and force frequent
//! checkpoints. This keeps the intent of rule P6. Nothing on stable storage is ever written again.
//! A commit that the kernel has is lost neither with the process nor with this write, because a
//! page goes into the page cache whole or not at all. A run of several blocks is never reopened:
//! their headers would have to change together.
//!
//! Invariants: (1) `durable` <= `written` <= the last LSN; both only grow. (2) A run begins with
//! the LSN after the run before. (3) A run's `durable` field was true when it was written. (4) No
//! record at or below `durable` is in the open block, nor in one that a running sync may cover:
//! sync_file closes it under the writer lock before it reads `written`. (5) `durable` is about runs
//! alone: a record in persistent memory may be on stable storage before `durable` reaches it.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use spinney_base::shim::{Condvar, Mutex, MutexGuard, spin_hint, thread};
use spinney_base::{Error, ErrorKind, Lsn, Result};
use spinney_io::{AlignedBuf, Purpose, without_reserve};

use crate::block::PAYLOAD_BYTES;
use crate::buffers::Stolen;
use crate::log::{Life, Log};
use crate::room::{Claim, ReserveFor, blocks_for};
use crate::run::{self, RunHead};
use crate::tail::{Shape, Tail};

/// A leader expects at most this many committers, yields at most this often, and stops after
/// [`GATHER_IDLE_MAX`] yields in a row without a new one.
const GROUP_MAX: u64 = 64;
const GATHER_YIELDS_MAX: usize = 128;
const GATHER_IDLE_MAX: usize = 4;

/// Number of polls of the writer lock before a waiting thread yields. They take some microseconds
/// together, about as long as a write into the page cache.
#[cfg(not(feature = "shuttle"))]
const WRITER_LOOKS: usize = 100;
#[cfg(feature = "shuttle")]
const WRITER_LOOKS: usize = 2;

/// State under the writer lock.
#[derive(Debug)]
pub(crate) struct Writer {
    stolen: Stolen,
    blocks: AlignedBuf,
    /// Watermark that the blocks and superblocks on disk promise. A reader of the file alone knows
    /// that it was durable.
    watermark: Lsn,
    /// The last run, while it can take more records; it is the first of `blocks`.
    open: Option<Open>,
    /// Whether the stolen records could not be written for lack of space. They are written before
    /// all later ones.
    refused: bool,
}

/// A run of one block that no sync covers.
#[derive(Clone, Copy, Debug)]
struct Open {
    run: RunHead,
    /// Bytes of its record stream.
    length: u64,
}

/// Bytes that buffers keep between flushes by default.
const SPARE_BYTES: usize = 1 << 20;

/// The runs of this life: the writer, and how far it has come.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) writer: Mutex<Writer>,
    /// Every record up to here was given to the kernel in a run.
    written: AtomicU64,
    /// Records of the last run, at most [`GROUP_MAX`].
    last_group: AtomicU64,
    /// Whether the writer holds records that did not fit on the disk.
    pub(crate) refused: AtomicBool,
    /// Bytes of memory that each kind of buffer keeps between flushes.
    pub(crate) spare_bytes: AtomicUsize,
    /// Bytes of memory that the writer holds now.
    pub(crate) memory_bytes: AtomicUsize,
}

impl Runs {
    /// Makes it for a log whose first run begins with `next`.
    pub(crate) fn new(next: Lsn) -> Self {
        Runs {
            writer: Mutex::new(Writer::new(next)),
            written: AtomicU64::new(next.0 - 1),
            last_group: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            spare_bytes: AtomicUsize::new(SPARE_BYTES),
            memory_bytes: AtomicUsize::new(0),
        }
    }

    /// Returns the LSN up to which the kernel has every record in a run.
    pub(crate) fn written(&self) -> Lsn {
        Lsn(self.written.load(SeqCst))
    }
}

/// Group commit: which thread syncs for all that wait, and how far syncs have come.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    /// Whether a thread leads; followers wait on `synced`.
    leading: Mutex<bool>,
    synced: Condvar,
    /// Held during a sync of the file.
    syncing: Mutex<()>,
    /// Every record up to here is on stable storage.
    durable: AtomicU64,
    /// The last record when the timer came last.
    ticked: Mutex<Lsn>,
}

impl GroupCommit {
    /// Makes it for a log whose records before `next` are durable.
    pub(crate) fn new(next: Lsn) -> Self {
        let last = next.0 - 1;
        GroupCommit {
            leading: Mutex::new(false),
            synced: Condvar::new(),
            syncing: Mutex::new(()),
            durable: AtomicU64::new(last),
            ticked: Mutex::new(Lsn(last)),
        }
    }

    /// Returns the LSN up to which every record is on stable storage.
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.durable.load(SeqCst))
    }

    /// Wakes all waiting threads after the log has failed.
    pub(crate) fn wake(&self) {
        // Taking the lock orders this after a waiter's last look at the failure.
        drop(self.leading.lock());
        self.synced.notify_all();
    }
}

impl Writer {
    /// Makes a writer whose first run begins with `next`.
    pub(crate) fn new(next: Lsn) -> Self {
        // The superblock promises everything before.
        let watermark = Lsn(next.0 - 1);
        Writer {
            stolen: Stolen::none(next),
            blocks: AlignedBuf::new(1),
            watermark,
            open: None,
            refused: false,
        }
    }

    /// Notes that a durable superblock promises everything up to `lsn`.
    pub(crate) fn promise(&mut self, lsn: Lsn) {
        self.watermark = self.watermark.max(lsn);
    }
}

/// When a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Once the record is on stable storage: it survives power loss. Many callers share one sync.
    #[default]
    Sync,
    /// Once the kernel has the record: it survives process kill, but not power loss (rule P10).
    Buffered,
}

impl Log {
    /// Waits until `lsn`, and with it every earlier record, is as durable as requested.
    ///
    /// # Errors
    /// `Full` when the disk has no room to write a record that was appended. The log keeps it and
    /// writes it, before any other, when room returns; until then nothing more is appended.
    /// `Poisoned`: whether the record survives is known only to the next recovery.
    pub fn commit(&self, lsn: Lsn, durability: Durability) -> Result<()> {
        self.counters.commits.fetch_add(1, SeqCst);
        match durability {
            Durability::Sync if self.is_in_memory(lsn) => self.check(),
            Durability::Sync => self.ensure_durable(lsn),
            Durability::Buffered => self.keep(lsn),
        }
    }

    /// Makes sure that the kernel has every record up to `lsn`: in the tail if possible, or in
    /// runs.
    fn keep(&self, lsn: Lsn) -> Result<()> {
        let written = self.written_lsn();
        if written >= lsn {
            return Ok(());
        }
        if self.buffers.holds(written) {
            return self.check();
        }
        if let Some(shape) = self.buffers.tail_to_make() {
            self.make_tail(shape);
        }
        self.write_out(lsn)
    }

    /// Returns whether record `lsn` is durable because persistent memory has it, and every earlier one
    /// that no synced run has. Starts to use such memory, if there is some.
    fn is_in_memory(&self, lsn: Lsn) -> bool {
        let durable = self.durable_lsn();
        if durable >= lsn {
            return false;
        }
        if self.buffers.tail().is_none() {
            if self.memory.is_there(&*self.files.tail)
                && let Some(shape) = self.buffers.tail_to_make()
            {
                self.make_tail(shape);
            }
            return false;
        }
        self.buffers.is_persistent() && self.buffers.holds(durable)
    }

    /// Starts to keep records in the tail, if there is space. Runs are enough without one.
    fn make_tail(&self, shape: Shape) {
        // The tail takes nothing of the reserve for removals and recoveries, because it is
        // optional.
        let Life { tag, epoch, .. } = self.life;
        let memory = self.memory.chosen();
        let made = without_reserve(|| Tail::make(&self.files.tail, (tag, epoch), shape, memory));
        if let Ok(tail) = made {
            self.buffers.keep_in(tail);
        }
    }

    /// Makes every record up to `lsn` durable in runs. Writers of pages call it before they write what
    /// the record says (rule P10).
    ///
    /// # Errors
    /// As [`Log::commit`].
    pub fn ensure_durable(&self, lsn: Lsn) -> Result<()> {
        debug_assert!(lsn <= self.last_lsn(), "only what was appended can become durable");
        if self.durable_lsn() >= lsn {
            return Ok(());
        }
        let mut leading = self.group.leading.lock();
        loop {
            if self.durable_lsn() >= lsn {
                return Ok(());
            }
            self.check()?;
            if !*leading {
                break;
            }
            self.group.synced.wait(&mut leading);
        }
        *leading = true;
        drop(leading);
        let _lead = Lead { log: self };
        let _guard = PoisonOnPanic::new(self);
        self.gather();
        self.write_out(self.last_lsn())?;
        self.sync_file()
    }

    /// Lets committers that the last sync woke append again before the next sync. Otherwise it
    /// would cover only the first of them, and the others would wait for two syncs each. A lone
    /// committer waits for no other.
    fn gather(&self) {
        let expected = self.runs.last_group.load(SeqCst);
        let mut before = 0;
        let mut idle = 0;
        for _ in 0..GATHER_YIELDS_MAX {
            // In this order, because everything written was appended before.
            let written = self.written_lsn();
            let pending = self.last_lsn().0 - written.0;
            idle = if pending > before { 0 } else { idle + 1 };
            if expected <= 1 || pending >= expected || idle > GATHER_IDLE_MAX {
                return;
            }
            before = pending;
            thread::yield_now();
        }
    }

    /// Gives every record up to `lsn` to the kernel.
    pub(crate) fn write_out(&self, lsn: Lsn) -> Result<()> {
        loop {
            let Some(mut writer) = self.lock_unless_written(lsn) else {
                return Ok(());
            };
            self.check()?;
            let _guard = PoisonOnPanic::new(self);
            if writer.refused {
                self.write_run(&mut writer)?;
                if self.written_lsn() >= lsn {
                    return Ok(());
                }
            }
            if self.buffers.is_persistent() && self.durable_lsn() < self.written_lsn() {
                // The steal would give away areas whose frames are all that is durable of the last
                // run.
                drop(writer);
                self.sync_file()?;
                continue;
            }
            let Writer { stolen, .. } = &mut *writer;
            self.buffers.steal(stolen);
            return if stolen.is_empty() { Ok(()) } else { self.write_run(&mut writer) };
        }
    }

    /// Notes that the stolen records could not be written. For lack of space they are kept and
    /// tried again: in the open block, which gets the same bytes once more, or as a run of their
    /// own, if a sync has closed that block meanwhile. Any other error stops writing.
    fn not_written(&self, writer: &mut Writer, error: Error) -> Error {
        if !error.is_full() {
            return self.fail(error);
        }
        writer.refused = true;
        self.runs.refused.store(true, SeqCst);
        error.context("what was written last is kept in memory until the log has room for it")
    }

    /// Returns the writer lock, or `None` once every record up to `lsn` is written. A holder keeps
    /// the lock for about as long as yielding the processor takes, so a waiting thread polls a few
    /// times first.
    fn lock_unless_written(&self, lsn: Lsn) -> Option<MutexGuard<'_, Writer>> {
        let mut looks = 0..WRITER_LOOKS;
        let writer = loop {
            if self.written_lsn() >= lsn {
                return None;
            }
            if let Some(writer) = self.runs.writer.try_lock() {
                break writer;
            }
            if looks.next().is_none() {
                break self.runs.writer.lock();
            }
            spin_hint();
        };
        // It may have been written between the last poll and the lock.
        (self.written_lsn() < lsn).then_some(writer)
    }

    /// Writes what the writer stole: into the open block if it fits, else as one run at the head.
    fn write_run(&self, writer: &mut Writer) -> Result<()> {
        let Writer { stolen, blocks: out, watermark, open, .. } = writer;
        let fits = |open: &Open| open.length + stolen.bytes <= PAYLOAD_BYTES as u64;
        if let Some(open) = open.as_mut().filter(|open| fits(open)) {
            let extended = RunHead { last: stolen.last, ..open.run };
            run::extend(extended, open.length, stolen.records(), out);
            if let Err(error) = self.write_blocks(extended.position, 1, out) {
                return Err(self.not_written(writer, error));
            }
            // Only now, so that after a lack of space the retry goes to the same place.
            *open = Open { run: extended, length: open.length + stolen.bytes };
            self.space.segments.lock().extend(stolen.last);
            self.space.room.give_back(blocks_for(stolen.bytes));
        } else {
            let durable = self.durable_lsn();
            let head = self.space.segments.lock().head();
            assert_eq!(head.first, stolen.first, "runs follow each other without a gap");
            let run = RunHead {
                tag: self.life.tag,
                epoch: self.life.epoch,
                position: head.position,
                first: stolen.first,
                last: stolen.last,
                durable,
            };
            let count = u64::from(run::encode(run, stolen.bytes, stolen.records(), out));
            if let Err(error) = self.write_blocks(head.position, count, out) {
                return Err(self.not_written(writer, error));
            }
            self.space.segments.lock().advance(count, stolen.last);
            *watermark = durable.max(*watermark);
            *open = (count == 1).then_some(Open { run, length: stolen.bytes });
        }
        self.counters.flushes.fetch_add(1, SeqCst);
        self.runs.last_group.store((stolen.last.0 + 1 - stolen.first.0).min(GROUP_MAX), SeqCst);
        self.runs.written.store(stolen.last.0, SeqCst);
        let spare = self.runs.spare_bytes.load(Relaxed);
        stolen.release(spare);
        if out.pages() > 1 && out.pages() * PAGE_BYTES > spare {
            let mut first = AlignedBuf::new(1);
            first.page_mut(0).copy_from_slice(out.page(0));
            *out = first;
        }
        let held = stolen.memory_bytes() + out.pages() * PAGE_BYTES;
        self.runs.memory_bytes.store(held, Relaxed);
        if std::mem::take(&mut writer.refused) {
            self.runs.refused.store(false, SeqCst);
        }
        Ok(())
    }

    /// Writes the first `count` blocks of `blocks` at `position`, segment by segment in order.
    fn write_blocks(&self, position: u64, count: u64, blocks: &AlignedBuf) -> Result<()> {
        let page = spinney_base::limits::PAGE_BYTES;
        let mut done = 0;
        while done < count {
            let extent = self.space.segments.lock().locate(position + done);
            let extent = extent.expect("claimed room lies in ready segments");
            let now = extent.blocks.min(count - done);
            let range = |blocks: u64| usize::try_from(blocks).expect("a run in memory") * page;
            let bytes = &blocks.bytes()[range(done)..range(done + now)];
            self.files.file.write_at(bytes, extent.offset, Purpose::LOG)?;
            done += now;
        }
        Ok(())
    }

    /// Syncs the file: everything written before is durable afterwards. Threads that wait for it
    /// have a leader that wakes them.
    pub(crate) fn sync_file(&self) -> Result<()> {
        let _one_at_a_time = self.group.syncing.lock();
        self.check()?;
        let written = {
            let mut writer = self.runs.writer.lock();
            writer.open = None;
            self.written_lsn()
        };
        self.files.file.sync(Purpose::LOG).map_err(|error| self.fail(error))?;
        self.counters.syncs.fetch_add(1, SeqCst);
        self.group.durable.fetch_max(written.0, SeqCst);
        Ok(())
    }

    /// Must be called by a timer. It syncs what was already appended one whole tick ago and is not
    /// durable yet (rule P10). On an idle log it writes a block with the watermark (rule P7). It
    /// prepares a segment ahead of the writers.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn tick(&self) -> Result<()> {
        self.check()?;
        let last = self.last_lsn();
        let before = std::mem::replace(&mut *self.group.ticked.lock(), last);
        if self.durable_lsn() < before {
            self.ensure_durable(before)?;
        } else if before == last && self.durable_lsn() == last {
            self.write_watermark()?;
        }
        self.grow_ahead()
    }

    /// Writes and syncs a run without records that carries the watermark, if the newest one on disk
    /// is lower and there is room.
    pub(crate) fn write_watermark(&self) -> Result<()> {
        if self.runs.writer.lock().watermark >= self.durable_lsn() {
            return Ok(());
        }
        let blocks = match self.space.room.claim(1, ReserveFor::Recovery) {
            Claim::Granted => self.space.room.reservation(1),
            // Not worth a segment, nor an error: without it, only rot in the very last run looks
            // like a tear.
            Claim::NotReady(_) | Claim::NeedRoom => return Ok(()),
        };
        {
            let mut writer = self.runs.writer.lock();
            self.check()?;
            match self.write_watermark_run(&mut writer, blocks) {
                // No more than where the log has no room.
                Err(error) if error.is_full() => return Ok(()),
                written => written?,
            }
        }
        self.sync_file()
    }

    fn write_watermark_run(
        &self,
        writer: &mut Writer,
        mut room: crate::room::Reservation<'_>,
    ) -> Result<()> {
        let head = self.space.segments.lock().head();
        let last = Lsn(head.first.0 - 1);
        let durable = self.durable_lsn();
        if writer.watermark >= durable {
            return Ok(());
        }
        let Writer { blocks: out, watermark, open, .. } = writer;
        *open = None;
        let run = RunHead {
            tag: self.life.tag,
            epoch: self.life.epoch,
            position: head.position,
            first: head.first,
            last,
            durable,
        };
        run::encode(run, 0, std::iter::empty(), out);
        self.write_blocks(head.position, 1, out).map_err(|error| self.fail_unless_full(error))?;
        self.space.segments.lock().advance(1, last);
        room.consume(1);
        *watermark = durable;
        self.counters.flushes.fetch_add(1, SeqCst);
        Ok(())
    }
}

/// Ends a leader's term, whatever happened, and wakes the waiting threads.
struct Lead<'a> {
    log: &'a Log,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        *self.log.group.leading.lock() = false;
        self.log.group.synced.notify_all();
    }
}

/// A panic between stealing records and writing them would lose them silently, so it poisons (rule
/// P21).
struct PoisonOnPanic<'a> {
    log: &'a Log,
    /// Whether the caller is a destructor that runs because of a panic of its own: that is none of the log's.
    was_panicking: bool,
}

impl<'a> PoisonOnPanic<'a> {
    fn new(log: &'a Log) -> Self {
        PoisonOnPanic { log, was_panicking: std::thread::panicking() }
    }
}

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            let cause =
                Error::new(ErrorKind::Poisoned, "a thread panicked while it flushed the log");
            self.log.fail(cause);
        }
    }
}
