//! Pointers to large values: values in extents of their own (rule P17).
//!
//! ```text
//!  pointer (in a page, the cache, a log record)          store file
//! +--------+------+---+-----------------------+        +---------------------+
//! | length | hash | n | page, order, generation| ----> | kind 4 | 4064 bytes | 2^order pages,
//! +--------+------+---+-----------------------+        | kind 4 | 4064 bytes | in order
//!                     | page, order, generation| --+   +---------------------+
//!                     +-----------------------+   +--> ...
//! ```
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | length | bytes of the value, at least 1, at most [`VALUE_BYTES_MAX`] |
//! | 8 | 8 | hash | XXH3-64 of the value |
//! | 16 | 1 | extents | how many extents hold it, at most [`EXTENTS_MAX`] |
//! | 17 | 9 each | extents | page `u32`, order `u8`, generation `u32` |
//!
//! All integers are little-endian. The extents are as large as can be, up to 16 MiB: the binary
//! digits of the number of pages, so that a value takes no page more than it needs. Each page is a
//! block of kind 4 with its own page number and the generation of its extent, followed by the next
//! [`PIECE_BYTES`] bytes of the value; the rest of the last page is zero.
//!
//! **Invariant**: a decoded pointer's extents are aligned, do not overlap, and hold exactly the
//! pages that its length needs, so no byte of a pointer can make a reader leave them.
//!
//! Example: 5000 bytes with hash 42 in the two pages from 130 of generation 7: `88 13 00 00 00 00
//! 00 00  2a 00 00 00 00 00 00 00  01  82 00 00 00 01 07 00 00 00`.

use std::path::Path;

use spinney_base::limits::{PAGE_BYTES, VALUE_BYTES_MAX};
use spinney_base::{Error, ErrorKind, Generation, PageNumber};

use crate::free::{Extent, ORDER_MAX};
use crate::header::{Damage, HEADER_BYTES, u32_at, u64_at};

/// Bytes of a value in each of its pages.
pub const PIECE_BYTES: usize = PAGE_BYTES - HEADER_BYTES;

/// Largest extent of a value: 16 MiB. An extent begins at a multiple of its size, so a larger one
/// would make a file grow by much more than the value needs.
const VALUE_ORDER_MAX: u8 = 12;
const _: () = assert!(VALUE_ORDER_MAX <= ORDER_MAX);

/// Most extents of one value.
pub const EXTENTS_MAX: usize = 16;
const _: () = assert!(
    (VALUE_BYTES_MAX.div_ceil(PIECE_BYTES) >> VALUE_ORDER_MAX) + VALUE_ORDER_MAX as usize
        <= EXTENTS_MAX
);

const HASH: usize = 8;
const COUNT: usize = 16;
const EXTENTS: usize = 17;
const EXTENT_BYTES: usize = 9;

/// Longest encoded pointer, in bytes.
pub const POINTER_BYTES_MAX: usize = EXTENTS + EXTENTS_MAX * EXTENT_BYTES;

/// Pointer to a large value: its extents, length and hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargePointer {
    /// Length of the value, in bytes.
    pub length: u64,
    /// XXH3-64 of the value.
    pub hash: u64,
    /// Extents of the value, in order.
    pub extents: Vec<(Extent, Generation)>,
}

impl LargePointer {
    /// Returns the orders of the extents that a value of `length` bytes needs, largest first.
    pub fn orders(length: u64) -> impl Iterator<Item = u8> {
        let mut pages = length.div_ceil(PIECE_BYTES as u64);
        std::iter::from_fn(move || {
            let order = u8::try_from(pages.checked_ilog2()?)
                .map_or(VALUE_ORDER_MAX, |order| order.min(VALUE_ORDER_MAX));
            pages -= 1 << order;
            Some(order)
        })
    }

    /// Returns the bytes of the encoded pointer to a value of `length` bytes that was written at once.
    #[must_use]
    pub fn bytes_for(length: u64) -> u64 {
        (EXTENTS + Self::orders(length).count() * EXTENT_BYTES) as u64
    }

    /// Appends the encoded pointer to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.push(u8::try_from(self.extents.len()).expect("at most EXTENTS_MAX"));
        for (extent, generation) in &self.extents {
            out.extend_from_slice(&extent.page.0.to_le_bytes());
            out.push(extent.order);
            out.extend_from_slice(&generation.0.to_le_bytes());
        }
    }

    /// Decodes a pointer.
    ///
    /// # Errors
    /// What was expected and found.
    pub fn decode(bytes: &[u8]) -> Result<LargePointer, Damage> {
        let count = bytes.get(COUNT).copied().map_or(0, usize::from);
        if count == 0 || bytes.len() != EXTENTS + count * EXTENT_BYTES {
            return Err(Damage::new(
                "a pointer to a large value",
                format!("{} bytes", bytes.len()),
            ));
        }
        let (length, hash) = (u64_at(bytes, 0), u64_at(bytes, HASH));
        if length == 0 || length > VALUE_BYTES_MAX as u64 {
            return Err(Damage::new(format!("a length of 1 to {VALUE_BYTES_MAX}"), length));
        }
        let mut extents: Vec<(Extent, Generation)> = Vec::with_capacity(count);
        for index in 0..count {
            let at = EXTENTS + index * EXTENT_BYTES;
            let extent = Extent { page: PageNumber(u32_at(bytes, at)), order: bytes[at + 4] };
            if !extent.is_aligned() || extents.iter().any(|(other, _)| overlap(*other, extent)) {
                return Err(Damage::new("aligned extents of their own", format!("{extent:?}")));
            }
            extents.push((extent, Generation(u32_at(bytes, at + 5))));
        }
        if !LargePointer::orders(length).eq(extents.iter().map(|(extent, _)| extent.order)) {
            return Err(Damage::new(format!("extents for {length} bytes"), format!("{extents:?}")));
        }
        Ok(LargePointer { length, hash, extents })
    }

    /// Decodes a pointer from a file, or from the log beside it.
    ///
    /// # Errors
    /// `Corruption` naming the file, and what was expected and found.
    pub fn decode_in(file: &Path, bytes: &[u8]) -> Result<LargePointer, Error> {
        LargePointer::decode(bytes).map_err(|Damage { expected, found }| {
            let text = format!("{}: expected {expected}, found {found}", file.display());
            Error::new(ErrorKind::Corruption, text)
        })
    }

    /// Returns the number of pages of the value.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.extents.iter().map(|(extent, _)| u64::from(extent.pages())).sum()
    }
}

fn overlap(a: Extent, b: Extent) -> bool {
    a.page.0 < b.page.0 + b.pages() && b.page.0 < a.page.0 + a.pages()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pointer(length: u64) -> LargePointer {
        let mut page = 1 << 16;
        let mut extents = Vec::new();
        for order in LargePointer::orders(length) {
            extents.push((Extent { page: PageNumber(page), order }, Generation(page + 7)));
            page += 1 << order;
        }
        LargePointer { length, hash: length ^ 99, extents }
    }

    #[test]
    fn golden_bytes() {
        let extents = vec![(Extent { page: PageNumber(130), order: 1 }, Generation(7))];
        let mut out = Vec::new();
        LargePointer { length: 5000, hash: 42, extents }.encode(&mut out);
        let mut expected = vec![0x88, 0x13, 0, 0, 0, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 1];
        expected.extend_from_slice(&[0x82, 0, 0, 0, 1, 7, 0, 0, 0]);
        assert_eq!(out, expected);
    }

    #[test]
    fn the_largest_value_has_a_short_pointer() {
        for length in [1, 4064, 4065, VALUE_BYTES_MAX as u64, (1 << 14) * 4064 - 1] {
            let pointer = pointer(length);
            assert_eq!(pointer.pages(), length.div_ceil(PIECE_BYTES as u64));
            let mut out = Vec::new();
            pointer.encode(&mut out);
            assert!(out.len() <= POINTER_BYTES_MAX && POINTER_BYTES_MAX < 200);
            assert_eq!(LargePointer::decode(&out).unwrap(), pointer);
        }
    }

    proptest! {
        /// Any change of a pointer's bytes is refused or leaves a pointer that keeps the invariant.
        #[test]
        fn nonsense_does_not_panic(
            length in 1u64..=VALUE_BYTES_MAX as u64, at in any::<prop::sample::Index>(), byte in any::<u8>(),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = LargePointer::decode(&bytes);
            let mut out = Vec::new();
            pointer(length).encode(&mut out);
            let at = at.index(out.len());
            out[at] = byte;
            if let Ok(pointer) = LargePointer::decode(&out) {
                prop_assert_eq!(pointer.pages(), pointer.length.div_ceil(PIECE_BYTES as u64));
            }
            prop_assert!(LargePointer::decode(&out[..out.len() - 1]).is_err());
        }
    }
}
