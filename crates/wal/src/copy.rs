//! Writing a log file from records alone: the log that a backup leaves for recovery to replay (rule
//! P26).
//!
//! The copy is a log in its first life whose records keep their LSNs: it starts at the first LSN
//! that is needed, its runs follow each other from position 0, and its segments lie in the file in
//! their order. Its last block is a watermark, so that damage to any run is found and never taken
//! for a torn tail.
//!
//! **Crash**: nothing is durable before [`LogCopy::finish`] returns, and the superblocks are
//! written last: a copy that was not finished is no log. The directory entry is the caller's to
//! sync.

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, Lsn, Result};
use spinney_io::{AlignedBuf, Directory, File, OpenMode, Purpose};

use crate::block::RecordKind;
use crate::run::{self, RunHead};
use crate::segments::segment_offset;
use crate::superblock::Superblock;

/// Bytes of records in one run.
const RUN_BYTES: usize = 1 << 20;

/// The only life of a copy.
const EPOCH: Epoch = Epoch(1);

/// A log file under construction. It belongs to one thread.
#[derive(Debug)]
pub struct LogCopy {
    file: Arc<dyn File>,
    tag: u64,
    segment_blocks: u32,
    /// The first LSN of the log.
    start: Lsn,
    /// Position of the next run, and its first LSN.
    position: u64,
    first: Lsn,
    /// The LSN of the next record.
    next: Lsn,
    /// Records that are in no run yet.
    stream: Vec<u8>,
    blocks: AlignedBuf,
}

impl LogCopy {
    /// Begins a log for database `tag` named `name`, where there is no file, whose first record
    /// will have LSN `start`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    ///
    /// # Panics
    /// When a segment has 2^32 blocks or more, which no log has.
    pub fn create(
        directory: &dyn Directory,
        name: &str,
        tag: u64,
        segment_bytes: u64,
        start: Lsn,
    ) -> Result<LogCopy> {
        let file = directory.open(name, OpenMode::CREATE.cached())?;
        let segment_blocks = u32::try_from(segment_bytes / PAGE_BYTES as u64)
            .expect("the options of the original were checked");
        Ok(LogCopy {
            file,
            tag,
            segment_blocks,
            start,
            position: 0,
            first: start,
            next: start,
            stream: Vec::new(),
            blocks: AlignedBuf::new(1),
        })
    }

    /// Appends the record with the next LSN.
    ///
    /// # Errors
    /// `Full` or `Io`; the copy is then unusable.
    pub fn append(&mut self, kind: RecordKind, payload: &[u8]) -> Result<()> {
        kind.encode(payload, &mut self.stream);
        self.next = self.next.next();
        if self.stream.len() < RUN_BYTES {
            return Ok(());
        }
        self.write_run()
    }

    /// Writes what was appended as one run; without records, a run of the watermark alone.
    fn write_run(&mut self) -> Result<()> {
        let last = Lsn(self.next.0 - 1);
        let head = RunHead {
            tag: self.tag,
            epoch: EPOCH,
            position: self.position,
            first: self.first,
            last,
            // All of the copy is durable before anyone can open it.
            durable: Lsn(self.first.0 - 1),
        };
        let bytes = self.stream.len() as u64;
        let records = (bytes > 0).then_some(self.stream.as_slice());
        let count = run::encode(head, bytes, records.into_iter(), &mut self.blocks);
        let written = &self.blocks.bytes()[..count as usize * PAGE_BYTES];
        let offset = segment_offset(0, 1) + self.position * PAGE_BYTES as u64;
        self.file.write_at(written, offset, Purpose::TOOL)?;
        self.position += u64::from(count);
        self.first = self.next;
        self.stream.clear();
        Ok(())
    }

    /// Writes what is left, the watermark and the superblocks, and makes the file durable. Returns
    /// its size in bytes.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn finish(mut self) -> Result<u64> {
        if !self.stream.is_empty() {
            self.write_run()?;
        }
        if self.position > 0 {
            self.write_run()?;
        }
        // A recovery reads only whole segments.
        let blocks = u64::from(self.segment_blocks);
        let segments = u32::try_from(self.position.div_ceil(blocks)).unwrap_or(u32::MAX);
        self.file.allocate(segment_offset(segments, blocks))?;
        // Both slots, so that damage to one leaves the other.
        for generation in [1, 2] {
            let superblock = Superblock {
                tag: self.tag,
                generation,
                start: 0,
                start_lsn: self.start,
                cut: 0,
                cut_lsn: Lsn(self.start.0 - 1),
                epoch: EPOCH,
                segment_blocks: self.segment_blocks,
                closed: Some(Lsn(self.first.0 - 1)),
            };
            superblock.write(&*self.file, Purpose::TOOL)?;
        }
        self.file.sync(Purpose::TOOL)?;
        self.file.len()
    }
}
