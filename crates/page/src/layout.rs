//! The bytes of a slotted page, after the block header (kind 1, see `spinney_extent::header`).
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 32 | 2 | count | number of records |
//! | 34 | 2 | heap start | lowest byte that the heap uses; it grows down from the end of the page |
//! | 36 | 2 | heap live | bytes of the heap that records, the origin and the prefix use; the rest is reclaimed by compaction |
//! | 38 | 2 | prefix length | bytes that all keys of this page's range share; stored in the last bytes of the page |
//! | 40 | 2 | origin length | bytes that say where the page comes from, which lie before the prefix; opaque here, 0 in pages of older databases |
//! | 42 | 6 | reserved | zero, and checked |
//! | 48 | 32 | hints | eight `u32` heads: that of slot (i + 1) * count / 9, or 0 when there are fewer than 18 records |
//! | 80 | 10 each | slots | sorted by key |
//!
//! A slot: heap offset `u16`, suffix length `u16`, value length `u16`, head `u32`. The record at
//! the offset is the key's suffix (what follows the prefix) and then the value. The highest bit of
//! the value length says that the value is the pointer to a large one (lengths in a page need 12
//! bits; pages from before there were large values have it clear). The head is the
//! suffix's first four bytes as a big-endian number, zero-padded, so heads order as suffixes do.
//! All integers are little-endian.
//!
//! **Invariants**, checked by [`PageView::parse`](crate::PageView::parse) before anything is used,
//! so that no byte of a page can cause a panic:
//! 1. slots end at or before the heap start, every record lies between the heap start and the
//!    origin;
//! 2. suffixes ascend strictly, heads match them;
//! 3. heap live is the sum of all record lengths, the origin and the prefix;
//! 4. hints are what the slots say.

use spinney_base::limits::PAGE_BYTES;
use spinney_extent::HEADER_BYTES;

pub(crate) const COUNT: usize = 32;
pub(crate) const HEAP_START: usize = 34;
pub(crate) const HEAP_LIVE: usize = 36;
pub(crate) const PREFIX_LENGTH: usize = 38;
pub(crate) const ORIGIN_LENGTH: usize = 40;
pub(crate) const RESERVED: usize = 42;
pub(crate) const HINTS: usize = 48;
pub(crate) const HINT_COUNT: usize = 8;
pub(crate) const SLOTS: usize = 80;

/// Offset of the slots; the bytes before it are headers.
pub const SLOTS_BEGIN: usize = SLOTS;
const _: () = assert!(COUNT == HEADER_BYTES);
const _: () = assert!(RESERVED + 6 == HINTS);
const _: () = assert!(HINTS + HINT_COUNT * 4 == SLOTS);

/// Bytes of one slot.
pub const SLOT_BYTES: usize = 10;

/// Longest key and value together in a page, in bytes. Any one record fits into an empty page
/// without an origin, whatever its prefix.
pub const RECORD_BYTES_MAX: usize = PAGE_BYTES - SLOTS - SLOT_BYTES;

/// Bit of a slot's value length that means "pointer to a large value".
pub(crate) const LARGE: usize = 1 << 15;
const _: () = assert!(RECORD_BYTES_MAX < LARGE);

/// Fewest records for which hints are kept.
pub(crate) const HINTED_COUNT_MIN: usize = 2 * (HINT_COUNT + 1);

pub(crate) type Page = [u8; PAGE_BYTES];

pub(crate) fn u16_at(page: &Page, at: usize) -> usize {
    usize::from(u16::from_le_bytes([page[at], page[at + 1]]))
}

pub(crate) fn set_u16(page: &mut Page, at: usize, value: usize) {
    let value = u16::try_from(value).expect("offsets and lengths inside a page fit 16 bits");
    page[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn u32_at(page: &Page, at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

pub(crate) fn slot_at(index: usize) -> usize {
    SLOTS + index * SLOT_BYTES
}

/// Returns the first four bytes of a suffix as a number that orders as suffixes do.
pub(crate) fn head_of(suffix: &[u8]) -> u32 {
    if let Some(head) = suffix.first_chunk() {
        return u32::from_be_bytes(*head);
    }
    let mut head = [0; 4];
    let length = suffix.len().min(4);
    head[..length].copy_from_slice(&suffix[..length]);
    u32::from_be_bytes(head)
}

/// Returns the slot whose head is hint `index` of a page with `count` records.
pub(crate) fn hinted_slot(index: usize, count: usize) -> usize {
    (index + 1) * count / (HINT_COUNT + 1)
}
