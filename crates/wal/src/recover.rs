//! Opening a log: which of its records count, and the start of a new life.
//!
//! 1. *Superblock*: the ruling slot says where the log starts, which life is current and where
//!    older lives were cut. When it says that the log was closed and holds nothing, all is known:
//!    nothing else is read, and the new life begins with the first append, so that an opening
//!    without writes writes nothing.
//! 2. *Map*: every segment of the file is assigned by the position in its first readable block; of
//!    two that claim one sequence the one of the later life is it. Segments below the start hold
//!    only what the start promises, and are not looked at further.
//! 3. *Walk*: runs are accepted from the start, each only whole: all blocks valid, of a life that
//!    counts and not older than the run before, at consecutive positions, first LSN after the last
//!    one. The first block that does not fit ends the log.
//! 4. *Verdict*: the highest durable watermark of any block that counts in these segments, the
//!    start, the cut and the last LSN of a closed log are promises. A log that ends below one has
//!    lost something: `Corruption`. Above them all, the end is the torn tail of a crash.
//! 5. *Tail*: what the [tail](crate::tail) has behind the kept runs is read.
//! 6. *New life*: the kept runs are synced first (rule P9), then a superblock with the next epoch,
//!    cut where the kept runs end (rule P8). Only then is anything appended: first the records of
//!    the tail, which are made durable before the tail of the new life begins. Then it is served.
//!
//! A crash anywhere in here leaves what it found: nothing is written before step 6, which writes no
//! block that an older superblock needs. Memory: one chunk of blocks, a few words per segment, and
//! what the tail has.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::AtomicBool;
use spinney_base::{Epoch, Error, ErrorKind, Lsn, Result};
use spinney_io::{Directory, File, OpenMode, Purpose};

use crate::block::{BlockHeader, Parsed, parse_record};
use crate::log::{Files, Log, open_tail, whole_segments};
use crate::options::LogOptions;
use crate::reader::BlockReader;
use crate::replay::Recovered;
use crate::room::{ReserveFor, blocks_for};
use crate::segments::{Extent, RunStart, SegmentTable, segment_offset};
use crate::superblock::Superblock;
use crate::tail::Kept;

impl Log {
    /// Opens the log `name`, decides which of its records count, makes these durable, and starts a
    /// new life after them. The log takes appends at once, also during the replay. Records that the
    /// [`Recovered`] holds are not trimmed.
    ///
    /// # Errors
    /// `NotFound`; `Corruption` when something that was promised is gone or the log is another
    /// database's; `Unsupported` for an unknown format; `Io` or `Full` from the disk. Another try
    /// finds the same.
    pub fn open(
        directory: &dyn Directory,
        name: &str,
        options: &LogOptions,
    ) -> Result<(Arc<Log>, Recovered)> {
        options.check()?;
        // The media first: after a failed sync, the page cache may hold what the disk never got.
        let reader = directory.open(name, OpenMode::EXISTING.read_only())?;
        let path = reader.path();
        let superblock = Superblock::load(&*reader)?;
        if superblock.tag != options.tag {
            return Err(Error::corruption(
                path.display(),
                0,
                format!("the log of database {:016x}", options.tag),
                format!("that of {:016x}", superblock.tag),
            ));
        }
        if superblock.is_closed_and_empty() {
            return Self::open_empty(directory, name, options, reader, &superblock);
        }
        let mut scan = Scan::new(&*reader, &superblock)?;
        let mapped = scan.map()?;
        let walk = scan.walk(&mapped)?;
        let promised = scan.promised(&walk, &mapped)?;
        let kept_to = Lsn(walk.table.head().first.0 - 1);
        if kept_to < promised {
            let stop = &walk.stop;
            return Err(Error::corruption(
                path.display(),
                stop.offset,
                format!("{}, because records up to {promised} were durable", stop.expected),
                &stop.found,
            ));
        }
        let file = directory.open(name, OpenMode::EXISTING.cached())?;
        let tail = open_tail(directory, name)?;
        let kept = Kept::read(&*tail, superblock.tag, superblock.epoch, kept_to)?;
        file.sync(Purpose::RECOVERY)?;
        let next = begin_life(&superblock, &walk, path)?;
        next.write(&*file, Purpose::RECOVERY)?;
        file.sync(Purpose::RECOVERY)?;
        let table = scan.finish(walk, &next);
        let start = RunStart { position: next.start, first: next.start_lsn };
        let files = Files { file, reader, tail };
        let blocks = blocks_for(kept.bytes());
        let mut log = Log::assemble(files, options, next, table, blocks);
        log.life.was_closed = superblock.closed.is_some();
        let log = Arc::new(log);
        log.take_in(&kept)?;
        let head = log.space.segments.lock().head();
        let recovered = Recovered::new(log.clone(), start, head);
        Ok((log, recovered))
    }

    /// Opens a log that was closed and holds nothing, without writing.
    fn open_empty(
        directory: &dyn Directory,
        name: &str,
        options: &LogOptions,
        reader: Arc<dyn File>,
        superblock: &Superblock,
    ) -> Result<(Arc<Log>, Recovered)> {
        let file = directory.open(name, OpenMode::EXISTING.cached())?;
        let tail = open_tail(directory, name)?;
        let blocks = u64::from(superblock.segment_blocks);
        let mut next = superblock.clone();
        next.generation += 1;
        next.closed = None;
        next.epoch = next_epoch(superblock, reader.path())?;
        next.start = superblock.start.next_multiple_of(blocks);
        next.cut = next.start;
        next.cut_lsn = Lsn(next.start_lsn.0 - 1);
        let start = RunStart { position: next.start, first: next.start_lsn };
        let physical = whole_segments(reader.len()?, blocks);
        let mut table =
            SegmentTable::new(blocks, start.position / blocks, [].into(), physical, start);
        table.forget_rest();
        let mut log = Log::assemble(Files { file, reader, tail }, options, next, table, 0);
        log.life.was_closed = true;
        log.life.is_begun = AtomicBool::new(false);
        let log = Arc::new(log);
        let recovered = Recovered::new(log.clone(), start, start);
        Ok((log, recovered))
    }

    /// Appends the records in the previous life's tail, makes them durable, and ends that tail.
    fn take_in(&self, kept: &Kept) -> Result<()> {
        for record in &kept.records {
            let Parsed::Record(kind, begin, end) = parse_record(record) else {
                let path = self.files.tail.path().display();
                return Err(Error::corruption(path, 0, "a whole record in each frame", "another"));
            };
            let payload = &record[begin..end];
            let mut room = self.reserve(payload.len(), ReserveFor::Recovery)?.ok_or_else(|| {
                let message = "the log has no room for the records of its tail";
                Error::new(ErrorKind::Full, message)
            })?;
            self.append(&mut room, kind, payload);
        }
        self.ensure_durable(self.last_lsn())?;
        kept.renew(&*self.files.tail, self.life.tag, self.life.epoch)
    }
}

/// Makes the superblock of the life after `old`, which kept what `walk` accepted.
fn begin_life(old: &Superblock, walk: &Walk, path: &Path) -> Result<Superblock> {
    let mut next = old.clone();
    next.generation += 1;
    next.closed = None;
    next.epoch = next_epoch(old, path)?;
    if walk.life.is_none() {
        // An empty log continues in a fresh segment. The rest of the old one may hold blocks that
        // were cut off. A new segment is always written from its first block, which is how the next
        // recovery finds it.
        next.start = old.start.next_multiple_of(u64::from(old.segment_blocks));
    }
    let head = walk.table.head();
    next.cut = head.position.max(next.start);
    next.cut_lsn = Lsn(head.first.0 - 1);
    Ok(next)
}

fn next_epoch(old: &Superblock, path: &Path) -> Result<Epoch> {
    old.epoch.0.checked_add(1).map(Epoch).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("{} has been opened 2^32 times", path.display()))
    })
}

/// Reads a log file under one superblock.
struct Scan<'a> {
    file: &'a dyn File,
    superblock: &'a Superblock,
    blocks: u64,
    physical: u32,
    /// Highest watermark of a block that counts.
    durable: Lsn,
}

/// Result of the walk: what it accepted, and why it ended.
struct Walk {
    /// The head is the end of the log.
    table: SegmentTable,
    /// The life of the last run, if any was accepted.
    life: Option<Epoch>,
    stop: Stop,
}

/// Why the log ends where it does, in the words of an error.
struct Stop {
    offset: u64,
    expected: String,
    found: String,
}

impl<'a> Scan<'a> {
    fn new(file: &'a dyn File, superblock: &'a Superblock) -> Result<Scan<'a>> {
        let blocks = u64::from(superblock.segment_blocks);
        let physical = whole_segments(file.len()?, blocks);
        Ok(Scan { file, superblock, blocks, physical, durable: Lsn::ZERO })
    }

    /// Returns where block `index` of a physical segment is.
    fn place(&self, physical: u32, index: u64) -> Extent {
        let offset = segment_offset(physical, self.blocks) + index * PAGE_BYTES as u64;
        Extent { offset, blocks: self.blocks - index }
    }

    /// Reads a block; `None` if it is not a block of this log. A block of a life that the
    /// superblock does not know was written under a later superblock, which is lost.
    fn header(
        &self,
        reader: &mut BlockReader<'_>,
        extent: Extent,
    ) -> Result<Result<BlockHeader, String>> {
        let block = reader.block(extent)?;
        match BlockHeader::decode(self.superblock.tag, block) {
            Ok(header) if header.epoch > self.superblock.epoch => Err(Error::corruption(
                self.file.path().display(),
                extent.offset,
                format!(
                    "no block later than life {} of the newest superblock",
                    self.superblock.epoch
                ),
                format!("one of life {}", header.epoch),
            )),
            Ok(header) => Ok(Ok(header)),
            Err(fault) => Ok(Err(fault.to_string())),
        }
    }

    /// Finds which physical segment holds which sequence, among those that are not trimmed.
    fn map(&self) -> Result<BTreeMap<u64, u32>> {
        let oldest = self.superblock.start / self.blocks;
        let mut claims: BTreeMap<u64, (Epoch, u32)> = BTreeMap::new();
        let mut reader = BlockReader::new(self.file);
        for physical in 0..self.physical {
            for index in 0..self.blocks {
                let mut place = self.place(physical, index);
                if index == 0 {
                    // The first block is usually enough, and no other block is read.
                    place.blocks = 1;
                }
                let Ok(header) = self.header(&mut reader, place)? else {
                    continue;
                };
                if header.position % self.blocks != index {
                    // A misdirected block does not show where its segment belongs.
                    continue;
                }
                let sequence = header.position / self.blocks;
                let claim = (header.epoch, physical);
                if sequence >= oldest {
                    claims
                        .entry(sequence)
                        .and_modify(|best| *best = claim.max(*best))
                        .or_insert(claim);
                }
                break;
            }
        }
        Ok(claims.into_iter().map(|(sequence, (_, physical))| (sequence, physical)).collect())
    }

    /// Accepts runs from the start until one does not fit.
    fn walk(&mut self, mapped: &BTreeMap<u64, u32>) -> Result<Walk> {
        let first = self.superblock.start / self.blocks;
        let mut retained = VecDeque::new();
        while let Some(&physical) = mapped.get(&(first + retained.len() as u64)) {
            retained.push_back(physical);
        }
        let head = RunStart { position: self.superblock.start, first: self.superblock.start_lsn };
        let mut table = SegmentTable::new(self.blocks, first, retained, self.physical, head);
        let mut life = None;
        let mut reader = BlockReader::new(self.file);
        loop {
            let stop = match self.run(&mut reader, &table, life)? {
                Ok(run) => {
                    self.durable = self.durable.max(run.durable);
                    life = Some(run.epoch);
                    table.advance(u64::from(run.count), run.last);
                    continue;
                }
                Err(stop) => stop,
            };
            return Ok(Walk { table, life, stop });
        }
    }

    /// Reads the run at the table's head: the header of its first block if all of it fits, else why
    /// not.
    fn run(
        &self,
        reader: &mut BlockReader<'_>,
        table: &SegmentTable,
        life: Option<Epoch>,
    ) -> Result<Result<BlockHeader, Stop>> {
        let head = table.head();
        let mut first: Option<BlockHeader> = None;
        let mut index = 0;
        loop {
            let position = head.position + u64::from(index);
            let expected =
                || format!("block {index} of the run that begins with record {}", head.first);
            let Some(extent) = table.locate(position) else {
                return Ok(Err(stop(self.file.len()?, expected(), "no segment with its position")));
            };
            let header = match self.header(reader, extent)? {
                Ok(header) => header,
                Err(fault) => return Ok(Err(stop(extent.offset, expected(), fault))),
            };
            let fits = match &first {
                None => self.begins_run(&header, head, life),
                Some(first) => header.continues(first, index),
            };
            if !fits {
                let found = format!(
                    "block {} of records {} to {}, position {}, life {}",
                    header.index, header.first, header.last, header.position, header.epoch
                );
                return Ok(Err(stop(extent.offset, expected(), found)));
            }
            let run = *first.get_or_insert(header);
            index += 1;
            if index == run.count {
                return Ok(Ok(run));
            }
        }
    }

    /// Returns whether a block can be the first of the next run.
    fn begins_run(&self, header: &BlockHeader, head: RunStart, life: Option<Epoch>) -> bool {
        self.superblock.admits(header)
            && life.is_none_or(|life| life <= header.epoch)
            && header.index == 0
            && header.position == head.position
            && header.first == head.first
    }

    /// Returns the highest LSN that was promised. It reads every block of the `mapped` segments,
    /// including those that the walk did not accept and those before the start.
    fn promised(&self, walk: &Walk, mapped: &BTreeMap<u64, u32>) -> Result<Lsn> {
        let (start, end) = (self.superblock.start, walk.table.head().position);
        let accepted: BTreeMap<u64, Range<u64>> = (start / self.blocks..=end / self.blocks)
            .filter_map(|sequence| {
                let begin = sequence * self.blocks;
                let extent = walk.table.locate(begin)?;
                let index = |position: u64| position.saturating_sub(begin).min(self.blocks);
                Some((extent.offset, index(start)..index(end)))
            })
            .collect();
        let mut promised = self.durable.max(self.superblock.promised());
        let mut reader = BlockReader::new(self.file);
        for physical in mapped.values().copied() {
            let accepted = accepted.get(&self.place(physical, 0).offset).cloned().unwrap_or(0..0);
            for index in (0..accepted.start).chain(accepted.end..self.blocks) {
                let header = self.header(&mut reader, self.place(physical, index))?;
                if let Some(header) = header.ok().filter(|header| self.superblock.admits(header)) {
                    promised = promised.max(header.durable);
                }
            }
        }
        Ok(promised)
    }

    /// The table of the new life: the segments of the kept runs stay.
    fn finish(&self, walk: Walk, next: &Superblock) -> SegmentTable {
        let Walk { mut table, life, .. } = walk;
        if life.is_none() {
            table.restart(RunStart { position: next.start, first: next.start_lsn });
        }
        table.forget_rest();
        table
    }
}

fn stop(offset: u64, expected: String, found: impl Display) -> Stop {
    Stop { offset, expected, found: found.to_string() }
}
