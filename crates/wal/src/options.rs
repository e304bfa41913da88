//! Options of a log, checked before anything changes.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Result};

/// Longest payload of one record, in bytes. A batch has at most 4 MiB of keys and values, and
/// larger values live in extents, so users never meet this limit. It guards against nonsense.
pub const RECORD_BYTES_MAX: usize = 128 << 20;

/// Fewest segments that a log may grow to: one being written, one being trimmed, and the share of
/// internal records.
const SEGMENTS_MIN: u64 = 4;

/// Bytes of a segment, which is the least that a log takes. Where many segments are used, many are
/// made at once.
const SEGMENT_BYTES: u64 = 64 << 10;

/// Fewest blocks of a segment. Tests use it to make every run span segments.
const SEGMENT_BLOCKS_MIN: u64 = 4;

/// The tail takes one part in this many of the log by default, but at most [`TAIL_BYTES_MAX`].
const TAIL_PART: u64 = 128;
const TAIL_BYTES_MAX: u64 = 2 << 20;

/// Whether the tail of a log is kept in persistent memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogMemory {
    /// If its file is in persistent memory: the file system gives direct access to it (DAX), and the
    /// kernel maps the file with `MAP_SYNC`. A [`Durability::Sync`](crate::Durability::Sync) commit
    /// then writes back the cache lines of its record, and no block.
    #[default]
    Automatic,
    /// Never: a `Sync` commit writes a run and syncs the file.
    Off,
    /// As `Automatic`, and where the file is not in persistent memory
    /// [`Durability::Buffered`](crate::Durability::Buffered) commits carry out the same instructions
    /// on an ordinary mapping. They promise no more than before. For measurements.
    Emulated,
}

impl LogMemory {
    /// Returns whether records in such a mapping are written back.
    pub(crate) fn writes_back(self, is_persistent: bool) -> bool {
        match self {
            LogMemory::Automatic => is_persistent,
            LogMemory::Off => false,
            LogMemory::Emulated => true,
        }
    }
}

/// Layout and maximum size of a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Identity of the database, in every block: a log of another database is refused, never
    /// replayed.
    pub tag: u64,
    /// Most bytes of segments. A log that is already larger when it is opened may grow by two
    /// segments more in that life, so that recovery can always proceed.
    pub bytes_max: u64,
    /// Bytes of one segment, whole blocks. Chosen when the log is created and kept for its life.
    pub segment_bytes: u64,
    /// Approximate bytes of memory and disk that the mapped tail takes, from some pages to 2 MiB.
    /// Records of [`Durability::Buffered`](crate::Durability::Buffered) commits, in persistent memory
    /// ([`LogMemory`]) those of all, are kept there, and written in runs when a part of it is full.
    pub tail_bytes: u64,
}

impl LogOptions {
    /// Options for a log of at most `bytes_max` for database `tag`, with segments of 64 KiB and a
    /// tail of a 128th of that.
    #[must_use]
    pub fn sized(tag: u64, bytes_max: u64) -> Self {
        let tail_bytes = (bytes_max / TAIL_PART).min(TAIL_BYTES_MAX);
        LogOptions { tag, bytes_max, segment_bytes: SEGMENT_BYTES, tail_bytes }
    }

    /// Returns the blocks of one segment.
    pub(crate) fn segment_blocks(&self) -> u64 {
        self.segment_bytes / PAGE_BYTES as u64
    }

    /// Returns the pages of each of `areas` areas of the tail, at least one.
    pub(crate) fn tail_pages(&self, areas: u32) -> u32 {
        let pages = self.tail_bytes.min(TAIL_BYTES_MAX) / (u64::from(areas) * PAGE_BYTES as u64);
        u32::try_from(pages).unwrap_or(1).max(1)
    }

    /// Checks the values.
    pub(crate) fn check(&self) -> Result<()> {
        let page = PAGE_BYTES as u64;
        if !self.segment_bytes.is_multiple_of(page)
            || self.segment_blocks() < SEGMENT_BLOCKS_MIN
            || u32::try_from(self.segment_blocks()).is_err()
        {
            return Err(Error::invalid(format!(
                "a log segment of {} bytes is not at least {SEGMENT_BLOCKS_MIN} whole blocks of {page} bytes",
                self.segment_bytes
            )));
        }
        if self.bytes_max / self.segment_bytes < SEGMENTS_MIN {
            return Err(Error::invalid(format!(
                "a log of at most {} bytes has no room for {SEGMENTS_MIN} segments of {} bytes",
                self.bytes_max, self.segment_bytes
            )));
        }
        Ok(())
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions::sized(0, 256 << 20)
    }
}
