//! The space of one log: which segments it has, how much of them is reserved, and which records
//! readers still need.

use spinney_base::Lsn;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};

use crate::options::LogOptions;
use crate::room::{ReserveFor, Room};
use crate::segments::{SegmentTable, segment_offset};
use crate::superblock::Superblock;

/// Most segments that are made ahead. A quarter of the present number is made ahead, and at least
/// two, so that one is ready when the disk is full.
const SEGMENTS_AHEAD_MAX: u32 = 32;
const SEGMENTS_AHEAD_MIN: u32 = 2;

/// The space of one log. Its locks are in the order of [`log`](crate::log).
#[derive(Debug)]
pub(crate) struct Space {
    /// Blocks of one segment.
    pub(crate) segment_blocks: u64,
    pub(crate) room: Room,
    pub(crate) segments: Mutex<SegmentTable>,
    /// Held while segments are made or given back.
    pub(crate) growing: Mutex<()>,
    /// The newest superblock. Held while the next one is written.
    pub(crate) superblock: Mutex<Superblock>,
    /// First LSN that a replay still needs, whatever is trimmed; `u64::MAX` when none does.
    pub(crate) held: AtomicU64,
    /// First LSN that a follower has not read, whatever is trimmed; `u64::MAX` when there is none.
    pub(crate) followed: AtomicU64,
}

impl Space {
    /// Makes the space of consistent bookkeeping. `kept_blocks` blocks of records are not in it yet
    /// and must find space.
    pub(crate) fn new(
        options: &LogOptions,
        superblock: Superblock,
        table: SegmentTable,
        kept_blocks: u64,
    ) -> Self {
        let segment_blocks = u64::from(superblock.segment_blocks);
        let head = table.head();
        let retained = (head.position - table.begin()).div_ceil(segment_blocks);
        // A log that is already larger than the option says (it was lowered, or crash followed
        // crash) still gets two segments, or a recovery that has to write could never succeed.
        let page = PAGE_BYTES as u64;
        let kept = kept_blocks.div_ceil(segment_blocks);
        let segments_max = (options.bytes_max / (segment_blocks * page)).max(retained + kept + 2);
        let blocks_max = segments_max * segment_blocks;
        Space {
            segment_blocks,
            room: Room::new(head.position, table.ready(), table.begin(), blocks_max),
            segments: Mutex::new(table),
            growing: Mutex::new(()),
            superblock: Mutex::new(superblock),
            held: AtomicU64::new(u64::MAX),
            followed: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns the most bytes that segments may take.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.room.span(ReserveFor::Recovery) * PAGE_BYTES as u64
    }

    /// Returns the last LSN that neither a replay nor a follower needs.
    pub(crate) fn unneeded(&self) -> Lsn {
        Lsn(self.held.load(SeqCst).min(self.followed.load(SeqCst)) - 1)
    }

    /// Returns how many segments are made ahead of the writers, within the log's maximum.
    pub(crate) fn ahead(&self, table: &SegmentTable) -> u32 {
        let most = self.room.span(ReserveFor::Recovery) / self.segment_blocks;
        let left = u32::try_from(most).unwrap_or(u32::MAX).saturating_sub(table.solid());
        (table.solid() / 4).clamp(SEGMENTS_AHEAD_MIN, SEGMENTS_AHEAD_MAX).min(left)
    }

    /// Returns where adjacent segments begin and end in the file.
    pub(crate) fn bytes_of(&self, adjacent: &[u32]) -> (u64, u64) {
        let begin = adjacent.first().map_or(0, |one| segment_offset(*one, self.segment_blocks));
        (begin, begin + adjacent.len() as u64 * self.segment_blocks * PAGE_BYTES as u64)
    }
}
