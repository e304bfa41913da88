//! The block header: the first 32 bytes of every block of a store file.
//!
//! A block is one page, or of a *wide* kind 2^k pages side by side with k up to
//! [`WIDE_ORDER_MAX`], which begin at a multiple of 2^k:
//!
//! ```text
//! page     128       129       130       131
//!        +-header--+---------+---------+---------+
//!        | 32 B    |                             |    order 2: one header, and one checksum
//!        +---------+---------+---------+---------+    over all 16 KiB
//! ```
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | checksum | XXH3-64 of bytes 8 to the end of the block |
//! | 8 | 1 | kind | [`BlockKind`]; 0 is invalid, so a zeroed page is never taken for a block |
//! | 9 | 1 | version | layout version of the kind: 1; 1 and 2 for slots ([`slot`](crate::slot)); 2 for wide kinds |
//! | 10 | 2 | batch | in version 1 zero, and checked; in a copy in the double-write area the number of its batch ([`double_write`](crate::double_write)) |
//! | | | order | in version 2 the order k of the block, and checked. No block of version 2 is copied to the double-write area |
//! | 12 | 4 | page | the page's own number |
//! | 16 | 4 | generation | the allocation that made this page |
//! | 20 | 4 | keyspace | the keyspace whose file this is |
//! | 24 | 8 | lsn | no record above it is in the page; the log was durable up to it before the page was written (P10) |
//!
//! All integers are little-endian. The checksum covers where the block belongs, so a misdirected
//! block or one of an older generation is caught as well as a damaged one: [`BlockHeader::check`]
//! compares all three, and the order. A torn write leaves a mixture of pages, or within a page, that
//! fails the checksum.
//!
//! Worked example: a data page (kind 1) of keyspace 3, page 128, generation 7, LSN 513 has bytes
//! 8..32 `01 01 00 00  80 00 00 00  07 00 00 00  03 00 00 00  01 02 00 00 00 00 00 00`. Of a wide
//! kind 9 and 16 KiB these bytes begin with `09 02 02 00`.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Generation, KeyspaceId, Lsn, PageNumber, Result};

/// Size of the header, in bytes.
pub const HEADER_BYTES: usize = 32;

/// Largest order of a wide block: 4 pages, 16 KiB. Readers of a single record read all of a block,
/// so larger ones cost more than they gain; the order is two bytes on disk.
pub const WIDE_ORDER_MAX: u8 = 2;

/// Layout version of wide blocks.
const WIDE_VERSION: u8 = 2;

const CHECKSUM: usize = 0;
const KIND: usize = 8;
const VERSION_AT: usize = 9;
/// Batch in version 1, order in version 2.
const BATCH: usize = 10;
const PAGE: usize = 12;
const GENERATION: usize = 16;
const KEYSPACE: usize = 20;
const LSN: usize = 24;
const _: () = assert!(LSN + 8 == HEADER_BYTES);
const _: () = assert!(HEADER_BYTES.is_multiple_of(8));

/// What a block holds: a number on disk, the versions of its layout, and a name for messages. This
/// crate knows the kinds that it writes itself; an engine makes its own with [`BlockKind::new`] or
/// [`BlockKind::wide`] and lists them in its registry row. Two kinds are equal when their numbers
/// are.
#[derive(Clone, Copy)]
pub struct BlockKind {
    number: u8,
    /// Oldest and newest version.
    oldest: u8,
    version: u8,
    name: &'static str,
}

impl BlockKind {
    /// Records, in the slotted layout.
    pub const DATA: BlockKind = BlockKind::new(1, "data");
    /// One of the two checkpoint slots. Version 2 has a copy of the slot.
    pub const SLOT: BlockKind = BlockKind { version: 2, ..BlockKind::new(2, "slot") };
    /// A piece of what a checkpoint slot points to.
    pub const CHECKPOINT: BlockKind = BlockKind::new(3, "checkpoint");
    /// A piece of a large value.
    pub const LARGE: BlockKind = BlockKind::new(4, "large value");
    /// What writes replaced while a snapshot lived. Nothing durable names such a block.
    pub const PRE_IMAGES: BlockKind = BlockKind::new(7, "pre-images");
    /// The kinds that files of all engines may have.
    const SHARED: [BlockKind; 4] =
        [BlockKind::SLOT, BlockKind::CHECKPOINT, BlockKind::LARGE, BlockKind::PRE_IMAGES];

    /// Makes a kind with a number above 0, whose layout has version 1.
    ///
    /// # Panics
    /// For number 0: a zeroed page must not be taken for a block.
    #[must_use]
    pub const fn new(number: u8, name: &'static str) -> BlockKind {
        assert!(number > 0);
        BlockKind { number, oldest: 1, version: 1, name }
    }

    /// Makes a kind with a number above 0, whose blocks have one page or more.
    ///
    /// # Panics
    /// For number 0: a zeroed page must not be taken for a block.
    #[must_use]
    pub const fn wide(number: u8, name: &'static str) -> BlockKind {
        BlockKind { oldest: WIDE_VERSION, version: WIDE_VERSION, ..BlockKind::new(number, name) }
    }

    /// Returns whether blocks of this kind may have more than one page. A decoded kind does not
    /// know.
    fn is_wide(self) -> bool {
        self.oldest == WIDE_VERSION
    }

    /// Returns the number on disk.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.number
    }

    /// Returns whether only engines write blocks of this kind, for their records or to lead to
    /// them.
    #[must_use]
    pub fn is_of_engine(self) -> bool {
        !Self::SHARED.contains(&self)
    }

    /// Returns whether a block with the kind `found` is of this kind and of a known version.
    #[must_use]
    pub fn reads(self, found: BlockKind) -> bool {
        self == found && (self.oldest..=self.version).contains(&found.version)
    }
}

impl PartialEq for BlockKind {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for BlockKind {}

impl fmt::Debug for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of version {}", self.number, self.version)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " ({})", self.name) }
    }
}

/// The decoded header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Kind of the block. A decoded kind has the version in the block, and no name.
    pub kind: BlockKind,
    /// Page where the block belongs.
    pub page: PageNumber,
    /// Allocation of the page.
    pub generation: Generation,
    /// Keyspace whose file the block belongs to.
    pub keyspace: KeyspaceId,
    /// No record above this LSN is in the block.
    pub lsn: Lsn,
}

impl BlockHeader {
    /// Writes the header and seals the block: computes the checksum over everything else. The
    /// order of the block is that of its bytes.
    ///
    /// # Panics
    /// When these are no block of this kind: one page, or 2^k of a wide kind.
    pub fn seal(&self, block: &mut [u8]) {
        let order = order_of(block);
        assert!(order == 0 || self.kind.is_wide(), "a block of kind {:?} has one page", self.kind);
        block[KIND] = self.kind.number;
        block[VERSION_AT] = self.kind.version;
        block[BATCH..BATCH + 2].copy_from_slice(&u16::from(order).to_le_bytes());
        block[PAGE..PAGE + 4].copy_from_slice(&self.page.0.to_le_bytes());
        block[GENERATION..GENERATION + 4].copy_from_slice(&self.generation.0.to_le_bytes());
        block[KEYSPACE..KEYSPACE + 4].copy_from_slice(&self.keyspace.0.to_le_bytes());
        block[LSN..LSN + 8].copy_from_slice(&self.lsn.0.to_le_bytes());
        sum(block);
    }

    /// Marks a sealed block as a copy in the double-write area, with the number of its batch; 0
    /// restores it.
    pub(crate) fn name_batch(block: &mut [u8; PAGE_BYTES], batch: u16) {
        debug_assert_eq!(block[VERSION_AT], 1, "the version whose blocks name a batch");
        block[BATCH..BATCH + 2].copy_from_slice(&batch.to_le_bytes());
        sum(block);
    }

    /// Returns the layout version in a block, checked or not.
    pub(crate) fn version(block: &[u8]) -> u8 {
        block[VERSION_AT]
    }

    /// Returns the generation in a header that may be damaged.
    pub(crate) fn stored_generation(block: &[u8; PAGE_BYTES]) -> Generation {
        Generation(u32_at(block, GENERATION))
    }

    /// Returns the order in a header that may be damaged, if there are such blocks, else 0.
    pub(crate) fn stored_order(block: &[u8]) -> u8 {
        let order = match block[VERSION_AT] {
            WIDE_VERSION => u16_at(block, BATCH),
            _ => 0,
        };
        u8::try_from(order).ok().filter(|order| *order <= WIDE_ORDER_MAX).unwrap_or(0)
    }

    /// Returns whether a header that may be damaged says that the block belongs to this page.
    pub(crate) fn says_page(block: &[u8], page: PageNumber, keyspace: KeyspaceId) -> bool {
        (u32_at(block, PAGE), u32_at(block, KEYSPACE)) == (page.0, keyspace.0)
    }

    /// Decodes the header of a block whose checksum holds, or says what is wrong. `block` has all
    /// bytes of the block: its order must be theirs.
    ///
    /// # Errors
    /// What was expected and what was found, for a message.
    ///
    /// # Panics
    /// When the bytes are not 2^k pages, k at most [`WIDE_ORDER_MAX`].
    pub fn decode(block: &[u8]) -> Result<BlockHeader, Damage> {
        match Self::decode_copy(block)? {
            (header, 0) => Ok(header),
            (_, batch) => {
                Err(Damage::new("a block that is no copy", format!("one of batch {batch}")))
            }
        }
    }

    /// Decodes a block that may be a copy in the double-write area, with the number of its batch.
    ///
    /// # Errors
    /// As [`BlockHeader::decode`].
    ///
    /// # Panics
    /// As [`BlockHeader::decode`].
    pub fn decode_copy(block: &[u8]) -> Result<(BlockHeader, u16), Damage> {
        let order = order_of(block);
        let stored = u64_at(block, CHECKSUM);
        let computed = xxh3_64(&block[KIND..]);
        if stored != computed {
            return Err(Self::not_summed(block, order, stored, computed));
        }
        if block[KIND] == 0 {
            return Err(Damage::new("a block of a kind above 0", 0));
        }
        let version = block[VERSION_AT];
        let (named, batch) = match u16_at(block, BATCH) {
            batch if version < WIDE_VERSION => (0, batch),
            order => (order, 0),
        };
        if named != u16::from(order) {
            return Err(Damage::new(block_of(order.into()), block_of(named)));
        }
        let kind = BlockKind { number: block[KIND], oldest: version, version, name: "" };
        let header = BlockHeader {
            kind,
            page: PageNumber(u32_at(block, PAGE)),
            generation: Generation(u32_at(block, GENERATION)),
            keyspace: KeyspaceId(u32_at(block, KEYSPACE)),
            lsn: Lsn(u64_at(block, LSN)),
        };
        Ok((header, batch))
    }

    /// Returns what is wrong with a block whose checksum does not hold. It may be one of another
    /// order.
    #[cold]
    fn not_summed(block: &[u8], order: u8, stored: u64, computed: u64) -> Damage {
        let named = Self::stored_order(block);
        let expected = format!("checksum {computed:016x}");
        if named == order || named == 0 && block[VERSION_AT] != WIDE_VERSION {
            return Damage { expected, found: format!("{stored:016x}") };
        }
        if named < order && Self::decode(&block[..PAGE_BYTES << named]).is_ok() {
            return Damage::new(block_of(order.into()), block_of(named.into()));
        }
        Damage::new(
            format!("{}, with {expected}", block_of(order.into())),
            format!("{stored:016x}, in a header of {}", block_of(named.into())),
        )
    }

    /// Decodes the header of a block that must be `kind`, at `page`, of `generation` in
    /// `keyspace`'s file, and of the order of its bytes.
    ///
    /// # Errors
    /// `Corruption` naming `file`, the offset, and what was expected and found.
    ///
    /// # Panics
    /// As [`BlockHeader::decode`].
    pub fn check(
        block: &[u8],
        file: &std::path::Path,
        kind: BlockKind,
        keyspace: KeyspaceId,
        page: PageNumber,
        generation: Generation,
    ) -> Result<BlockHeader> {
        let damage = match BlockHeader::decode(block) {
            Err(damage) => damage,
            Ok(header) if !kind.reads(header.kind) => {
                Damage::new(format!("a block of kind {kind:?}"), format!("kind {:?}", header.kind))
            }
            Ok(header) if header.page != page => {
                Damage::new(format!("page {page}"), format!("page {} (misdirected)", header.page))
            }
            Ok(header) if header.keyspace != keyspace => Damage::new(
                format!("keyspace {keyspace}"),
                format!("keyspace {} (misdirected)", header.keyspace),
            ),
            Ok(header) if header.generation != generation => Damage::new(
                format!("generation {generation}"),
                format!("generation {} (lost or stale write)", header.generation),
            ),
            Ok(header) => return Ok(header),
        };
        Err(Error::corruption(file.display(), page.offset(), damage.expected, damage.found))
    }
}

/// Returns the order of a block of these bytes.
fn order_of(block: &[u8]) -> u8 {
    let orders = 0..=WIDE_ORDER_MAX;
    let order = { orders }.find(|order| block.len() == PAGE_BYTES << order);
    order.unwrap_or_else(|| panic!("{} bytes are no block", block.len()))
}

fn block_of(order: u16) -> String {
    format!("a block of order {order}")
}

fn sum(block: &mut [u8]) {
    let checksum = xxh3_64(&block[KIND..]);
    block[CHECKSUM..CHECKSUM + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// What a decoder expected and found; the caller adds the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl Damage {
    /// Makes the damage from what was expected and found.
    pub fn new(expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Self {
        Damage { expected: expected.to_string(), found: found.to_string() }
    }

    /// Returns the damage as an error with its position.
    #[must_use]
    pub fn at(self, file: &std::path::Path, page: PageNumber) -> Error {
        Error::corruption(file.display(), page.offset(), self.expected, self.found)
    }

    /// Returns whether a block with this damage was written or cannot be read. A block of zeros was
    /// never written, or was given back.
    #[must_use]
    pub fn is_of_written(&self, block: &[u8]) -> bool {
        self.expected.starts_with("a page") || block.iter().any(|byte| *byte != 0)
    }
}

/// Returns the little-endian `u16` at `at`.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the little-endian `u32` at `at`.
///
/// # Panics
/// When fewer than four bytes follow `at`.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the little-endian `u64` at `at`.
///
/// # Panics
/// When fewer than eight bytes follow `at`.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
