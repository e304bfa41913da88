//! The two superblock slots at the front of the log file: where the log starts, which life it is
//! in, and where the lives before were cut off. This file is the format's one home.
//!
//! ```text
//! offset size field
//!      0    8 page sum    xxh3-64 of bytes 8..4096, seeded with the slot's number: for programs that know version 1 only
//!      8    4 magic       "SPWS"
//!     12    4 version     of the whole file's format, 2
//!     16    8 tag         identity of the database
//!     24    8 generation  counts writes of superblocks, from 1; slot = generation modulo 2
//!     32    8 start       position of the first block that may still be needed; a run begins there
//!     40    8 start_lsn   first LSN of that run
//!     48    8 cut         position where the last recovery ended the log; a run of the current life begins there
//!     56    8 cut_lsn     last LSN that it kept; durable since this superblock is
//!     64    4 epoch       the current life
//!     68    4 segment     blocks of one segment
//!     72    8 closed      1 + the last LSN of a log that was closed; 0 while the log is open
//!     80   16 reserved    zero
//!     96    8 checksum    xxh3-64 of bytes 8..96, seeded with 2 + the slot's number
//!    104 1944 reserved    zero
//!   2048      the same once more: bytes 8..104, the checksum seeded with 4 + the slot's number
//! ```
//!
//! Version 1 has neither `closed` nor checksums of its own: the page sum covers it, and it stands
//! there once.
//!
//! Invariants: (1) the valid slot with the higher generation rules; a write goes to the other slot,
//! so a torn write leaves the older one. (2) A superblock with a new epoch is durable before a
//! block of that epoch is written, and one with a new start before a segment below it is reused.
//! (3) Below the cut every position holds a block that recovery kept, of any older life; from the
//! cut on only blocks of the current life count (rule P8). So one cut serves for all older lives:
//! what an older life wrote behind it is either overwritten by a kept block or refused by its
//! epoch. (4) A damaged byte leaves one of the two copies in a slot whole, so it hides no
//! superblock (rule P28). With a whole page gone the older superblock rules, and then a block or a
//! tail of a life that it does not know, a watermark above what it finds, or a keyspace whose redo
//! LSN lies outside what it finds is `Corruption`. Both slots bad is `Corruption`.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, Error, ErrorKind, Lsn, Result};
use spinney_io::{AlignedBuf, File, Purpose};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::block::{Block, BlockHeader};
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

/// Blocks before the first segment: the two slots.
pub(crate) const SUPERBLOCKS: u64 = 2;

const MAGIC: u32 = u32::from_le_bytes(*b"SPWS");
const VERSION: u32 = 2;
/// Version 1, with one copy in each slot.
const VERSION_RELEASED: u32 = 1;

const CHECKSUM_AT: usize = 0;
const MAGIC_AT: usize = 8;
const VERSION_AT: usize = 12;
const TAG_AT: usize = 16;
const GENERATION_AT: usize = 24;
const START_AT: usize = 32;
const START_LSN_AT: usize = 40;
const CUT_AT: usize = 48;
const CUT_LSN_AT: usize = 56;
const EPOCH_AT: usize = 64;
const SEGMENT_AT: usize = 68;
const CLOSED_AT: usize = 72;
const RESERVED_AT: usize = 80;
const COPY_CHECKSUM_AT: usize = 96;
const COPY_END: usize = 104;
/// Offsets of the two copies.
const COPIES_AT: [usize; 2] = [0, PAGE_BYTES / 2];
/// Offset from which on all bytes are zero in version 1.
const RESERVED_RELEASED_AT: usize = 72;

/// Most that a position or LSN can be. They count up for the whole life of a log; a start near the
/// end of 64 bits is damage, and below this limit no sum of this crate overflows.
const COUNTER_MAX: u64 = u64::MAX / 4;

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the database.
    pub tag: u64,
    /// Number of writes so far.
    pub generation: u64,
    /// Position where the log starts.
    pub start: u64,
    /// First LSN at the start.
    pub start_lsn: Lsn,
    /// Position where the current life begins.
    pub cut: u64,
    /// Last LSN of the lives before.
    pub cut_lsn: Lsn,
    /// Current life.
    pub epoch: Epoch,
    /// Blocks of one segment.
    pub segment_blocks: u32,
    /// Last LSN of a closed log. `None` while it is open, and after a crash.
    pub closed: Option<Lsn>,
}

/// Why a slot is not a superblock of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFault {
    /// Torn, rotten or never written.
    Damaged,
    /// Written by a version with this number.
    Version(u32),
}

impl Superblock {
    /// Returns the slot of this generation.
    fn slot(&self) -> u64 {
        self.generation % SUPERBLOCKS
    }

    /// Encodes the superblock for `slot`.
    pub fn encode(&self, slot: u64, block: &mut Block) {
        block.fill(0);
        for (copy, at) in (0..).zip(COPIES_AT) {
            let block = &mut block[at..at + COPY_END];
            put_u32(block, MAGIC_AT, MAGIC);
            put_u32(block, VERSION_AT, VERSION);
            put_u64(block, TAG_AT, self.tag);
            put_u64(block, GENERATION_AT, self.generation);
            put_u64(block, START_AT, self.start);
            put_u64(block, START_LSN_AT, self.start_lsn.0);
            put_u64(block, CUT_AT, self.cut);
            put_u64(block, CUT_LSN_AT, self.cut_lsn.0);
            put_u32(block, EPOCH_AT, self.epoch.0);
            put_u32(block, SEGMENT_AT, self.segment_blocks);
            put_u64(block, CLOSED_AT, self.closed.map_or(0, |last| last.0 + 1));
            let checksum = copy_checksum(block, slot, copy);
            put_u64(block, COPY_CHECKSUM_AT, checksum);
        }
        let checksum = xxh3_64_with_seed(&block[MAGIC_AT..], slot);
        put_u64(block, CHECKSUM_AT, checksum);
        debug_assert_eq!(
            Superblock::decode(slot, block).as_ref(),
            Ok(self),
            "what is written reads back"
        );
    }

    /// Reads and checks a slot. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// Why the bytes are not a superblock.
    pub fn decode(slot: u64, block: &Block) -> Result<Superblock, SlotFault> {
        let mut best: Option<Superblock> = None;
        let mut fault = None;
        for (copy, at) in (0..).zip(COPIES_AT) {
            let block = &block[at..at + COPY_END];
            if copy_checksum(block, slot, copy) != u64_at(block, COPY_CHECKSUM_AT)
                || u32_at(block, MAGIC_AT) != MAGIC
            {
                continue;
            }
            match u32_at(block, VERSION_AT) {
                VERSION => {}
                version => {
                    fault = Some(SlotFault::Version(version));
                    continue;
                }
            }
            let reserved = block[RESERVED_AT..COPY_CHECKSUM_AT].iter().all(|&byte| byte == 0);
            let found = Self::parse(slot, block).filter(|_| reserved);
            // A torn write may leave two valid copies.
            if let Some(found) = found
                && best.as_ref().is_none_or(|best| found.generation > best.generation)
            {
                best = Some(found);
            }
        }
        match (best, fault) {
            (_, Some(fault)) => Err(fault),
            (Some(best), None) => Ok(best),
            (None, None) => Self::decode_released(slot, block),
        }
    }

    fn decode_released(slot: u64, block: &Block) -> Result<Superblock, SlotFault> {
        let checksum = xxh3_64_with_seed(&block[MAGIC_AT..], slot);
        if checksum != u64_at(block, CHECKSUM_AT) || u32_at(block, MAGIC_AT) != MAGIC {
            return Err(SlotFault::Damaged);
        }
        match u32_at(block, VERSION_AT) {
            VERSION_RELEASED => {}
            // Its copies would have been read.
            VERSION => return Err(SlotFault::Damaged),
            version => return Err(SlotFault::Version(version)),
        }
        let reserved = block[RESERVED_RELEASED_AT..].iter().all(|&byte| byte == 0);
        Self::parse(slot, block).filter(|_| reserved).ok_or(SlotFault::Damaged)
    }

    fn parse(slot: u64, block: &[u8]) -> Option<Superblock> {
        let superblock = Superblock {
            tag: u64_at(block, TAG_AT),
            generation: u64_at(block, GENERATION_AT),
            start: u64_at(block, START_AT),
            start_lsn: Lsn(u64_at(block, START_LSN_AT)),
            cut: u64_at(block, CUT_AT),
            cut_lsn: Lsn(u64_at(block, CUT_LSN_AT)),
            epoch: Epoch(u32_at(block, EPOCH_AT)),
            segment_blocks: u32_at(block, SEGMENT_AT),
            closed: u64_at(block, CLOSED_AT).checked_sub(1).map(Lsn),
        };
        (superblock.is_consistent() && superblock.slot() == slot).then_some(superblock)
    }

    /// Returns whether a block counts, by its life and position (rule P8). The walk decides whether
    /// its run fits.
    #[must_use]
    pub fn admits(&self, header: &BlockHeader) -> bool {
        if header.position < self.cut {
            header.epoch < self.epoch && header.last <= self.cut_lsn
        } else {
            header.epoch == self.epoch
        }
    }

    /// Returns the LSN up to which the superblock itself promised everything.
    #[must_use]
    pub fn promised(&self) -> Lsn {
        let closed = self.closed.unwrap_or(Lsn::ZERO);
        self.cut_lsn.max(Lsn(self.start_lsn.0 - 1)).max(closed)
    }

    /// Returns whether the log was closed when it needed no record any more.
    pub(crate) fn is_closed_and_empty(&self) -> bool {
        self.closed.is_some_and(|last| last.next() == self.start_lsn)
    }

    fn is_consistent(&self) -> bool {
        self.epoch.0 > 0
            && self.start_lsn.0 > 0
            && self.segment_blocks > 0
            && self.generation > 0
            && self.start < COUNTER_MAX
            && self.start_lsn.0 < COUNTER_MAX
            && self.cut < COUNTER_MAX
            && self.cut_lsn.0 < COUNTER_MAX
            && self.closed.is_none_or(|last| last.0 < COUNTER_MAX)
    }

    /// Writes the superblock to its slot; durable after a sync of the file.
    pub(crate) fn write(&self, file: &dyn File, purpose: Purpose) -> Result<()> {
        let mut buf = AlignedBuf::new(1);
        self.encode(self.slot(), buf.page_mut(0));
        file.write_at(buf.bytes(), self.slot() * PAGE_BYTES as u64, purpose)
    }

    /// Reads the ruling superblock.
    pub(crate) fn load(file: &dyn File) -> Result<Superblock> {
        let mut best: Option<Superblock> = None;
        let mut version = None;
        for slot in 0..SUPERBLOCKS {
            let mut buf = AlignedBuf::new(1);
            let end = (slot + 1) * PAGE_BYTES as u64;
            match file.read_at(buf.bytes_mut(), slot * PAGE_BYTES as u64, Purpose::RECOVERY) {
                Ok(()) => {}
                // The file ends inside its own superblocks. Any other failed read is an error: the
                // other superblock may be older than records that were promised.
                Err(error) if error.is_corruption() && file.len()? < end => continue,
                Err(error) => return Err(error),
            }
            match Superblock::decode(slot, buf.page(0)) {
                Ok(found) => {
                    if best.as_ref().is_none_or(|best| found.generation > best.generation) {
                        best = Some(found);
                    }
                }
                Err(SlotFault::Version(found)) => version = Some(found),
                Err(SlotFault::Damaged) => {}
            }
        }
        let name = file.path().display();
        if let Some(version) = version {
            let message =
                format!("{name} has format version {version}, this program reads {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        best.ok_or_else(|| {
            Error::corruption(
                name,
                0,
                "a superblock in one of the first two blocks",
                "two damaged ones",
            )
        })
    }
}

/// The checksum of one of the two copies in a slot.
fn copy_checksum(block: &[u8], slot: u64, copy: u64) -> u64 {
    xxh3_64_with_seed(&block[MAGIC_AT..COPY_CHECKSUM_AT], 2 * (copy + 1) + slot)
}
