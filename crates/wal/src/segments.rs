//! Where each part of the log is in the file: pure bookkeeping, without I/O.
//!
//! ```text
//! file:      [superblock 0][superblock 1][segment 0][segment 1][segment 2] ...      physical segments
//! the log:        ... trimmed | sequence 7 | sequence 8 | sequence 9 (head) | ...   position / blocks = sequence
//! ```
//!
//! Invariants: (1) `mapped[i]` is the physical segment of sequence `first + i`; a physical segment
//! is in `mapped`, `free` or `hollow`, never in two of them, or being punched. (2) The segments
//! that retained runs lie in are mapped. (3) `run_starts` holds, for every retained segment in
//! which a run begins, the first such run: the places where a trimmed log can start. (4) A segment
//! enters `free` only after the superblock that no longer needs it is durable.

use std::collections::{BTreeSet, VecDeque};

use spinney_base::Lsn;
use spinney_base::limits::PAGE_BYTES;

use crate::superblock::SUPERBLOCKS;

/// A position at which the log can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunStart {
    pub(crate) position: u64,
    pub(crate) first: Lsn,
}

/// Most adjacent segments in an extent after its first.
const EXTENT_SEGMENTS_MAX: usize = 16;

/// The segments of one log.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    /// Blocks of one segment.
    blocks: u64,
    first: u64,
    mapped: VecDeque<u32>,
    /// Segments without retained runs whose disk space is allocated.
    free: BTreeSet<u32>,
    /// Segments that may be holes: they must be made again before use.
    hollow: BTreeSet<u32>,
    /// Number of segments that the file is long enough for. The lowest free or hollow ones are used
    /// first, so that the file can be cut off.
    physical: u32,
    /// Position of the next run.
    head: RunStart,
    run_starts: VecDeque<RunStart>,
}

/// A piece of the file that holds consecutive positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Byte offset in the file.
    pub(crate) offset: u64,
    /// Blocks from there on that follow each other in the file.
    pub(crate) blocks: u64,
}

/// Byte offset of a physical segment.
pub(crate) fn segment_offset(physical: u32, blocks: u64) -> u64 {
    (SUPERBLOCKS + u64::from(physical) * blocks) * PAGE_BYTES as u64
}

impl SegmentTable {
    /// A table of `mapped` segments from sequence `first` on, with no run known yet.
    pub(crate) fn new(
        blocks: u64,
        first: u64,
        mapped: VecDeque<u32>,
        physical: u32,
        head: RunStart,
    ) -> Self {
        SegmentTable {
            blocks,
            first,
            mapped,
            free: BTreeSet::new(),
            hollow: BTreeSet::new(),
            physical,
            head,
            run_starts: VecDeque::new(),
        }
    }

    /// Returns where position `position` is, if its segment is mapped.
    pub(crate) fn locate(&self, position: u64) -> Option<Extent> {
        let index = usize::try_from((position / self.blocks).checked_sub(self.first)?).ok()?;
        let physical = *self.mapped.get(index)?;
        let within = position % self.blocks;
        let offset = segment_offset(physical, self.blocks) + within * PAGE_BYTES as u64;
        let behind = self.mapped.range(index + 1..).take(EXTENT_SEGMENTS_MAX);
        let adjacent =
            behind.zip(physical + 1..).take_while(|(next, adjacent)| **next == *adjacent);
        let segments = 1 + adjacent.count() as u64;
        Some(Extent { offset, blocks: segments * self.blocks - within })
    }

    /// Returns the first position of the oldest segment.
    pub(crate) fn begin(&self) -> u64 {
        self.first * self.blocks
    }

    /// Returns the first position after the mapped segments.
    pub(crate) fn ready(&self) -> u64 {
        (self.first + self.mapped.len() as u64) * self.blocks
    }

    /// Returns the first LSN of the oldest retained run, or of the next one.
    pub(crate) fn first_lsn(&self) -> Lsn {
        self.run_starts.front().unwrap_or(&self.head).first
    }

    pub(crate) fn head(&self) -> RunStart {
        self.head
    }

    /// Returns the number of segments in the file whose space is allocated.
    pub(crate) fn solid(&self) -> u32 {
        self.physical - u32::try_from(self.hollow.len()).expect("segments are counted in 32 bits")
    }

    /// Maps a free segment after the others; `false` when there is none.
    pub(crate) fn map_free(&mut self) -> bool {
        let Some(physical) = self.free.pop_first() else { return false };
        self.mapped.push_back(physical);
        true
    }

    /// Returns whether a ready segment is not mapped.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the next `count` segments to make: hollow ones first, then new ones.
    pub(crate) fn next_to_make(&self, count: u32) -> Vec<u32> {
        let hollow = self.hollow.iter().copied();
        hollow.chain(self.physical..=u32::MAX).take(count as usize).collect()
    }

    /// Notes that these segments were made.
    pub(crate) fn made(&mut self, segments: &[u32]) {
        for physical in segments {
            self.physical = self.physical.max(physical + 1);
            self.hollow.remove(physical);
            self.free.insert(*physical);
        }
    }

    /// Removes all free segments except `keep`, because their space is about to be given back.
    /// Returns those to be punched; the file is to be cut off after [`physical`](Self::physical).
    pub(crate) fn take_free(&mut self, keep: usize) -> Vec<u32> {
        let taken: Vec<u32> = self.free.iter().copied().skip(keep).collect();
        for physical in &taken {
            self.free.remove(physical);
            self.hollow.insert(*physical);
        }
        while self.physical > 0 && self.hollow.remove(&(self.physical - 1)) {
            self.physical -= 1;
        }
        taken.into_iter().filter(|physical| *physical < self.physical).collect()
    }

    /// Returns the number of segments that the file is long enough for.
    pub(crate) fn physical(&self) -> u32 {
        self.physical
    }

    /// Makes a removed segment free again.
    pub(crate) fn return_free(&mut self, physical: u32) {
        self.hollow.remove(&physical);
        self.free.insert(physical);
    }

    /// Notes that a run of `blocks` blocks with records up to `last` was written at the head.
    pub(crate) fn advance(&mut self, blocks: u64, last: Lsn) {
        let sequence = self.head.position / self.blocks;
        let known =
            self.run_starts.back().is_some_and(|run| run.position / self.blocks == sequence);
        if !known {
            self.run_starts.push_back(self.head);
        }
        self.head = RunStart { position: self.head.position + blocks, first: last.next() };
    }

    /// Notes that records up to `last` were added to the last run without another block.
    pub(crate) fn extend(&mut self, last: Lsn) {
        self.head.first = last.next();
    }

    /// Returns where a log that needs nothing up to `lsn` can start. `lsn` is durable.
    pub(crate) fn start_without(&self, lsn: Lsn) -> Option<RunStart> {
        if self.head.first <= lsn.next() {
            return Some(self.head);
        }
        self.run_starts.iter().rev().find(|run| run.first <= lsn.next()).copied()
    }

    /// Returns the start at or before the run that holds `lsn`.
    pub(crate) fn run_start_before(&self, lsn: Lsn) -> Option<RunStart> {
        self.run_starts
            .iter()
            .rev()
            .find(|run| run.first <= lsn)
            .or(self.run_starts.front())
            .copied()
    }

    /// Frees the segments below `start`.
    pub(crate) fn trim_to(&mut self, start: RunStart) {
        let sequence = start.position / self.blocks;
        while self.first < sequence {
            let Some(physical) = self.mapped.pop_front() else { break };
            self.free.insert(physical);
            self.first += 1;
        }
        self.first = self.first.max(sequence);
        while self.run_starts.front().is_some_and(|run| run.position < start.position) {
            self.run_starts.pop_front();
        }
        let begins_here = self.run_starts.front().is_some_and(|run| run.position == start.position);
        if start.position < self.head.position && !begins_here {
            self.run_starts.push_front(start);
        }
    }

    /// Restarts an empty log at `start`, a segment boundary.
    pub(crate) fn restart(&mut self, start: RunStart) {
        self.head = start;
        self.first = start.position / self.blocks;
        self.mapped.clear();
        self.run_starts.clear();
    }

    /// Treats every segment without a retained run as hollow, because its content was not examined.
    pub(crate) fn forget_rest(&mut self) {
        let retained = (self.head.position - self.begin()).div_ceil(self.blocks);
        self.mapped.truncate(usize::try_from(retained).expect("segments of a file are countable"));
        self.free.clear();
        self.hollow = (0..self.physical).collect();
        self.mapped.iter().for_each(|physical| _ = self.hollow.remove(physical));
    }
}
