//! Calls and bytes, counted by purpose: the numbers behind `stats`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Purpose of a transfer.
#[derive(Clone, Copy)]
pub struct Purpose {
    number: u8,
    name: &'static str,
}

/// Most purposes; their numbers are below this.
pub const PURPOSES_MAX: usize = 32;

impl Purpose {
    /// Records appended to the log, and its superblock.
    pub const LOG: Purpose = Purpose::new(0, "log");
    /// A page read for a lookup.
    pub const LOOKUP: Purpose = Purpose::new(1, "lookup");
    /// Pages read for a range scan.
    pub const SCAN: Purpose = Purpose::new(2, "scan");
    /// Pages read or written to write back dirty records in place.
    pub const WRITE_BACK: Purpose = Purpose::new(3, "write-back");
    /// Pages read or written because a structure changed shape.
    pub const REORGANIZE: Purpose = Purpose::new(4, "reorganize");
    /// Checkpoint slots and what they point to.
    pub const CHECKPOINT: Purpose = Purpose::new(5, "checkpoint");
    /// The double-write area.
    pub const DOUBLE_WRITE: Purpose = Purpose::new(6, "double-write");
    /// The manifest.
    pub const MANIFEST: Purpose = Purpose::new(7, "manifest");
    /// Anything read or written while a database opens.
    pub const RECOVERY: Purpose = Purpose::new(8, "recovery");
    /// Verification, the scrub and other tools.
    pub const TOOL: Purpose = Purpose::new(9, "tool");
    /// The bytes of large values.
    pub const LARGE_VALUE: Purpose = Purpose::new(10, "large-value");

    /// Runs of pre-images, of engines that update in place.
    pub const PRE_IMAGES: Purpose = Purpose::new(17, "pre-images");

    /// The purposes that all engines share. Those of one engine are in its registry row.
    pub const SHARED: [Purpose; 12] = [
        Purpose::LOG,
        Purpose::LOOKUP,
        Purpose::SCAN,
        Purpose::WRITE_BACK,
        Purpose::REORGANIZE,
        Purpose::CHECKPOINT,
        Purpose::DOUBLE_WRITE,
        Purpose::MANIFEST,
        Purpose::RECOVERY,
        Purpose::TOOL,
        Purpose::LARGE_VALUE,
        Purpose::PRE_IMAGES,
    ];

    /// Makes a purpose with a number of its own below [`PURPOSES_MAX`].
    ///
    /// # Panics
    /// For a larger number.
    #[must_use]
    pub const fn new(number: u8, name: &'static str) -> Purpose {
        assert!((number as usize) < PURPOSES_MAX);
        Purpose { number, name }
    }

    /// Returns the index of its counters in [`IoSnapshot::by_purpose`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.number as usize
    }

    /// Returns a short stable name, used in `stats` and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns whether a caller waits for such reads, or for work that depends on them. Nothing
    /// waits for the scrub, which reads all the time.
    #[must_use]
    pub fn is_waited_for(self) -> bool {
        self != Purpose::TOOL
    }
}

impl PartialEq for Purpose {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Purpose {}

impl std::fmt::Debug for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Counters of one disk, shared by all its files. Thread-safe.
#[derive(Debug, Default)]
pub struct IoCounters {
    cells: [Cell; PURPOSES_MAX],
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

/// Counters of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct IoSnapshot {
    /// The counts of each purpose at its [`Purpose::index`].
    pub by_purpose: [PurposeCounts; PURPOSES_MAX],
    /// Batches of reads, or single reads, for which a thread polled.
    pub polls: u64,
    /// Those of them for which the thread slept all the same, or that ended while others had its
    /// processor for long.
    pub polls_in_vain: u64,
}

impl IoCounters {
    /// Counts one read request of `bytes`.
    pub fn read(&self, purpose: Purpose, bytes: usize) {
        let cell = &self.cells[purpose.index()];
        cell.reads.fetch_add(1, Relaxed);
        cell.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts one write request of `bytes`.
    pub fn write(&self, purpose: Purpose, bytes: usize) {
        let cell = &self.cells[purpose.index()];
        cell.writes.fetch_add(1, Relaxed);
        cell.write_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts one sync.
    pub fn sync(&self, purpose: Purpose) {
        self.cells[purpose.index()].syncs.fetch_add(1, Relaxed);
    }

    /// Counts a batch of reads for which a thread polled.
    pub fn polled(&self, in_vain: bool) {
        self.polls.fetch_add(1, Relaxed);
        self.polls_in_vain.fetch_add(u64::from(in_vain), Relaxed);
    }

    /// Returns all counters now.
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
    /// Returns the sum over all purposes.
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
