//! Calls and bytes counted by purpose: the numbers behind `stats` and every claim about I/O.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a transfer was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Purpose {
    /// Records appended to the log, and its superblock.
    Log = 0,
    /// A page read for a lookup.
    Lookup = 1,
    /// Pages read for a range scan.
    Scan = 2,
    /// Pages read or written to bring changed records home.
    WriteBack = 3,
    /// Pages read or written because a structure changed shape.
    Reorganize = 4,
    /// Checkpoint slots and what they point to.
    Checkpoint = 5,
    /// The double-write area.
    DoubleWrite = 6,
    /// The manifest.
    Manifest = 7,
    /// Anything read or written while a database opens.
    Recovery = 8,
    /// Verification, the scrub and other tools.
    Tool = 9,
    /// The bytes of large values.
    LargeValue = 10,
    /// Leaves that a flush made anew and wrote at once, because nothing will reach them before the checkpoint.
    Flush = 11,
    /// Leaves and segments that a batch left alone for so long that they were written before the checkpoint.
    Early = 12,
    /// Segments that a merge of more than memory takes wrote piece by piece.
    Merge = 13,
    /// Leaves that were made anew for those who read ranges.
    Tidy = 14,
    /// Leaves and segments that were in memory when their tree was written: by a checkpoint, a bulk load, or for a snapshot.
    Leaf = 15,
    /// Nodes of such a tree.
    Node = 16,
}

/// All purposes, in the order of their counters.
pub const PURPOSES: [Purpose; 17] = [
    Purpose::Log,
    Purpose::Lookup,
    Purpose::Scan,
    Purpose::WriteBack,
    Purpose::Reorganize,
    Purpose::Checkpoint,
    Purpose::DoubleWrite,
    Purpose::Manifest,
    Purpose::Recovery,
    Purpose::Tool,
    Purpose::LargeValue,
    Purpose::Flush,
    Purpose::Early,
    Purpose::Merge,
    Purpose::Tidy,
    Purpose::Leaf,
    Purpose::Node,
];

impl Purpose {
    /// A short stable name, used in `stats` and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Log => "log",
            Purpose::Lookup => "lookup",
            Purpose::Scan => "scan",
            Purpose::WriteBack => "write-back",
            Purpose::Reorganize => "reorganize",
            Purpose::Checkpoint => "checkpoint",
            Purpose::DoubleWrite => "double-write",
            Purpose::Manifest => "manifest",
            Purpose::Recovery => "recovery",
            Purpose::Tool => "tool",
            Purpose::LargeValue => "large-value",
            Purpose::Flush => "flush",
            Purpose::Early => "early",
            Purpose::Merge => "merge",
            Purpose::Tidy => "tidy",
            Purpose::Leaf => "leaf",
            Purpose::Node => "node",
        }
    }

    /// Whether somebody waits for what is read, be it a caller or work that callers will wait for. Nobody waits
    /// for the scrub, which reads all the time.
    #[must_use]
    pub fn is_waited_for(self) -> bool {
        self != Purpose::Tool
    }
}

/// Counters of one disk, shared by all its files. Thread-safe.
#[derive(Debug, Default)]
pub struct IoCounters {
    cells: [Cell; PURPOSES.len()],
    polls: AtomicU64,
    polls_in_vain: AtomicU64,
}

#[derive(Debug, Default)]
struct Cell {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    syncs: AtomicU64,
}

/// What one purpose cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurposeCounts {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Syncs.
    pub syncs: u64,
}

/// All counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoSnapshot {
    /// One entry per purpose, in the order of [`PURPOSES`].
    pub by_purpose: [PurposeCounts; PURPOSES.len()],
    /// Batches of reads, or reads, whose end a thread polled for.
    pub polls: u64,
    /// Of those, the ones that it went to sleep for all the same, or whose end came while others had its processor for long.
    pub polls_in_vain: u64,
}

impl IoCounters {
    /// Counts one read request of `bytes`.
    pub fn read(&self, purpose: Purpose, bytes: usize) {
        let cell = &self.cells[purpose as usize];
        cell.reads.fetch_add(1, Relaxed);
        cell.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts one write request of `bytes`.
    pub fn write(&self, purpose: Purpose, bytes: usize) {
        let cell = &self.cells[purpose as usize];
        cell.writes.fetch_add(1, Relaxed);
        cell.write_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts one sync.
    pub fn sync(&self, purpose: Purpose) {
        self.cells[purpose as usize].syncs.fetch_add(1, Relaxed);
    }

    /// Counts a batch of reads that was polled for.
    pub fn polled(&self, in_vain: bool) {
        self.polls.fetch_add(1, Relaxed);
        self.polls_in_vain.fetch_add(u64::from(in_vain), Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub fn snapshot(&self) -> IoSnapshot {
        let mut snapshot = IoSnapshot {
            polls: self.polls.load(Relaxed),
            polls_in_vain: self.polls_in_vain.load(Relaxed),
            ..IoSnapshot::default()
        };
        for (counts, cell) in snapshot.by_purpose.iter_mut().zip(&self.cells) {
            *counts = PurposeCounts {
                reads: cell.reads.load(Relaxed),
                read_bytes: cell.read_bytes.load(Relaxed),
                writes: cell.writes.load(Relaxed),
                write_bytes: cell.write_bytes.load(Relaxed),
                syncs: cell.syncs.load(Relaxed),
            };
        }
        snapshot
    }
}

impl IoSnapshot {
    /// All purposes together.
    #[must_use]
    pub fn total(&self) -> PurposeCounts {
        self.by_purpose.iter().fold(PurposeCounts::default(), |sum, one| PurposeCounts {
            reads: sum.reads + one.reads,
            read_bytes: sum.read_bytes + one.read_bytes,
            writes: sum.writes + one.writes,
            write_bytes: sum.write_bytes + one.write_bytes,
            syncs: sum.syncs + one.syncs,
        })
    }
}
