//! The byte layout of a log block and of the records inside it. This file is the format's one home.
//!
//! A flush writes one *run*: consecutive blocks of 4 KiB, each with a header and a piece of the
//! run's record stream. All numbers are little-endian. The last block of a run is padded with
//! zeros; all others are full.
//!
//! ```text
//! offset size field
//!      0    8 checksum   xxh3-64 of bytes 8..4096, seeded from the database's tag, `position` and `epoch`
//!      8    4 magic      "SPWB"; a zeroed block is never valid
//!     12    4 epoch      the life of the log that wrote it, from 1
//!     16    8 position   number of the block in the log's life, counted forever; its place is position modulo segments
//!     24    8 first      LSN of the run's first record
//!     32    8 last       LSN of the run's last record; `first - 1` in a run without records (a watermark block)
//!     40    8 durable    durable watermark when the run was written, below `first`
//!     48    4 index      of this block in the run, from 0
//!     52    4 count      blocks in the run, at least 1
//!     56    4 length     bytes of the record stream in this block, 4032 in all but the last
//!     60    4 reserved   zero
//!     64 4032 payload    the next `length` bytes of the run's record stream, then zeros
//! ```
//!
//! The record stream is the run's records one after the other, in LSN order and dense, so that LSNs
//! are not stored:
//!
//! ```text
//! size field
//!    1 kind      1 = what a user said, 2 = how an engine moved house
//!    4 length    of the payload in bytes
//!    4 keyspace  only in kind 2
//!    n payload   the writer's own encoding
//! ```
//!
//! A torn block fails its checksum, a block of a recycled segment has another position, a
//! misdirected one too, and a block of a life that recovery cut off is refused by its epoch (rule
//! P8). No block is written again once a sync began that may cover it (rule P6); until then records
//! may be put behind those of a run of one block, which moves `last`, `length` and the checksum and
//! no byte of what was there. What a later version changes gets a new magic.
//!
//! Worked example: tag 7, epoch 1, position 0, one user record `hi` with LSN 1 (checked by a test):
//!
//! ```text
//! 0000  ce 41 f2 fe a6 d5 1f 6e   53 50 57 42  01 00 00 00   checksum, "SPWB", epoch 1
//! 0010  00 00 00 00 00 00 00 00   01 00 00 00  00 00 00 00   position 0, first 1
//! 0020  01 00 00 00 00 00 00 00   00 00 00 00  00 00 00 00   last 1, durable 0
//! 0030  00 00 00 00 01 00 00 00   07 00 00 00  00 00 00 00   index 0, count 1, length 7, reserved
//! 0040  01 02 00 00 00 68 69                                 kind 1, length 2, "hi"; zeros up to 4096
//! ```

use std::fmt;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Epoch, KeyspaceId, Lsn};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

/// Bytes of a block header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the record stream in one block.
pub const PAYLOAD_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

const MAGIC: u32 = u32::from_le_bytes(*b"SPWB");

const CHECKSUM_AT: usize = 0;
const MAGIC_AT: usize = 8;
const EPOCH_AT: usize = 12;
const POSITION_AT: usize = 16;
const FIRST_AT: usize = 24;
const LAST_AT: usize = 32;
const DURABLE_AT: usize = 40;
const INDEX_AT: usize = 48;
const COUNT_AT: usize = 52;
const LENGTH_AT: usize = 56;
const RESERVED_AT: usize = 60;

const _: () = assert!(RESERVED_AT + 4 == HEADER_BYTES, "fields fill the header without a gap");

const KIND_USER: u8 = 1;
const KIND_STRUCTURE: u8 = 2;

/// Longest header of a record in the stream.
pub const RECORD_HEADER_BYTES_MAX: usize = 9;

/// A block of the log, as bytes.
pub type Block = [u8; PAGE_BYTES];

/// Fields of a block header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Life of the log that wrote the block.
    pub epoch: Epoch,
    /// Number of the block in the log's life.
    pub position: u64,
    /// First LSN of the run.
    pub first: Lsn,
    /// Last LSN of the run; one below `first` if it has no records.
    pub last: Lsn,
    /// Durable watermark when the run was written.
    pub durable: Lsn,
    /// Index of the block in its run.
    pub index: u32,
    /// Number of blocks in the run.
    pub count: u32,
    /// Bytes of the record stream in this block.
    pub length: u32,
}

/// Why bytes are not a block of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFault {
    /// Nothing, or something else, was written here.
    Magic,
    /// Torn, rotten, or of another database.
    Checksum,
    /// The checksum fits and the fields contradict each other.
    Fields,
}

impl fmt::Display for BlockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockFault::Magic => "no log block",
            BlockFault::Checksum => "a block whose checksum does not fit",
            BlockFault::Fields => "a block whose fields contradict each other",
        })
    }
}

impl BlockHeader {
    /// Writes the header and the checksum; the payload is already in place.
    pub fn seal(&self, tag: u64, block: &mut Block) {
        put_u32(block, MAGIC_AT, MAGIC);
        put_u32(block, EPOCH_AT, self.epoch.0);
        put_u64(block, POSITION_AT, self.position);
        put_u64(block, FIRST_AT, self.first.0);
        put_u64(block, LAST_AT, self.last.0);
        put_u64(block, DURABLE_AT, self.durable.0);
        put_u32(block, INDEX_AT, self.index);
        put_u32(block, COUNT_AT, self.count);
        put_u32(block, LENGTH_AT, self.length);
        put_u32(block, RESERVED_AT, 0);
        let checksum = xxh3_64_with_seed(&block[MAGIC_AT..], seed(tag, self.position, self.epoch));
        put_u64(block, CHECKSUM_AT, checksum);
        debug_assert_eq!(BlockHeader::decode(tag, block), Ok(*self), "what is written reads back");
    }

    /// Reads and checks a header. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// Why the bytes are not a block of database `tag`.
    pub fn decode(tag: u64, block: &Block) -> Result<BlockHeader, BlockFault> {
        if u32_at(block, MAGIC_AT) != MAGIC {
            return Err(BlockFault::Magic);
        }
        let header = BlockHeader {
            epoch: Epoch(u32_at(block, EPOCH_AT)),
            position: u64_at(block, POSITION_AT),
            first: Lsn(u64_at(block, FIRST_AT)),
            last: Lsn(u64_at(block, LAST_AT)),
            durable: Lsn(u64_at(block, DURABLE_AT)),
            index: u32_at(block, INDEX_AT),
            count: u32_at(block, COUNT_AT),
            length: u32_at(block, LENGTH_AT),
        };
        let checksum =
            xxh3_64_with_seed(&block[MAGIC_AT..], seed(tag, header.position, header.epoch));
        if checksum != u64_at(block, CHECKSUM_AT) {
            return Err(BlockFault::Checksum);
        }
        if u32_at(block, RESERVED_AT) == 0 && header.is_consistent() {
            Ok(header)
        } else {
            Err(BlockFault::Fields)
        }
    }

    /// Returns whether the run has no records and only carries the watermark.
    #[must_use]
    pub fn is_watermark_only(&self) -> bool {
        self.last < self.first
    }

    /// Returns whether this is block `index` of the run that `head` begins.
    #[must_use]
    pub fn continues(&self, head: &BlockHeader, index: u32) -> bool {
        let expected = BlockHeader {
            position: head.position + u64::from(index),
            index,
            length: self.length,
            ..*head
        };
        *self == expected
    }

    fn is_consistent(&self) -> bool {
        let is_last = self.index.checked_add(1) == Some(self.count);
        let length = self.length as usize;
        self.epoch.0 > 0
            && self.first.0 > 0
            && self.last.0 < u64::MAX
            && self.last.0 >= self.first.0 - 1
            && self.durable < self.first
            && self.index < self.count
            && self.position.checked_add(u64::from(self.count)).is_some()
            && length <= PAYLOAD_BYTES
            && (is_last || length == PAYLOAD_BYTES)
            && (!self.is_watermark_only() || (self.count == 1 && length == 0))
    }
}

/// Mixes a block's identity into the checksum's seed, so that a misplaced block fails even where
/// its fields lie.
fn seed(tag: u64, position: u64, epoch: Epoch) -> u64 {
    tag ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ u64::from(epoch.0).wrapping_mul(0xC2B2_AE3D_27D4_EB4F)
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A user's batch, encoded by the database.
    User,
    /// A change of structure in this keyspace, encoded by its engine.
    Structure(KeyspaceId),
}

/// One record, as a replay delivers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Kind of the record.
    pub kind: RecordKind,
    /// The bytes that its writer stored.
    pub payload: &'a [u8],
}

impl RecordKind {
    /// Returns the bytes that a record of this kind has before its payload.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        match self {
            RecordKind::User => 5,
            RecordKind::Structure(_) => RECORD_HEADER_BYTES_MAX,
        }
    }

    /// Appends one record to a stream.
    pub(crate) fn encode(self, payload: &[u8], stream: &mut Vec<u8>) {
        let length =
            u32::try_from(payload.len()).expect("reserve refuses records past RECORD_BYTES_MAX");
        let mut header = [0; RECORD_HEADER_BYTES_MAX];
        header[1..5].copy_from_slice(&length.to_le_bytes());
        header[0] = match self {
            RecordKind::User => KIND_USER,
            RecordKind::Structure(keyspace) => {
                header[5..].copy_from_slice(&keyspace.0.to_le_bytes());
                KIND_STRUCTURE
            }
        };
        stream.extend_from_slice(&header[..self.header_bytes()]);
        stream.extend_from_slice(payload);
    }
}

/// Content of the front of a record stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole record: its kind, where its payload begins and where it ends.
    Record(RecordKind, usize, usize),
    /// A record that needs this many bytes of stream in all (at least; exact once its header is
    /// there).
    Needs(usize),
    /// Bytes that do not begin a record.
    Malformed,
}

/// Parses the front of a record stream. It never panics, whatever the bytes.
#[must_use]
pub fn parse_record(stream: &[u8]) -> Parsed {
    let Some(&kind) = stream.first() else { return Parsed::Needs(1) };
    let header = match kind {
        KIND_USER => RecordKind::User.header_bytes(),
        KIND_STRUCTURE => RECORD_HEADER_BYTES_MAX,
        _ => return Parsed::Malformed,
    };
    if stream.len() < header {
        return Parsed::Needs(header);
    }
    let Some(end) = header.checked_add(u32_at(stream, 1) as usize) else {
        return Parsed::Malformed;
    };
    if stream.len() < end {
        return Parsed::Needs(end);
    }
    let kind = if kind == KIND_USER {
        RecordKind::User
    } else {
        RecordKind::Structure(KeyspaceId(u32_at(stream, 5)))
    };
    Parsed::Record(kind, header, end)
}

/// Returns the part of the record stream in a decoded block.
#[must_use]
pub fn payload<'a>(block: &'a Block, header: &BlockHeader) -> &'a [u8] {
    &block[HEADER_BYTES..HEADER_BYTES + (header.length as usize).min(PAYLOAD_BYTES)]
}
