//! Where an image lies in the file: its first page, its generation and its order.

use spinney_base::{Generation, PageNumber};
use spinney_extent::{Extent, WIDE_ORDER_MAX};

/// Bytes of an encoded place.
pub(crate) const PLACE_BYTES: usize = 9;

/// Place of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) page: PageNumber,
    pub(crate) generation: Generation,
    /// Binary logarithm of its 4 KiB pages.
    pub(crate) order: u8,
}

impl Place {
    /// Returns page and generation in a word.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.generation.0) << 32 | u64::from(self.page.0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half of the word is 32 bits")]
    pub(crate) fn from_word(word: u64, order: u8) -> Place {
        Place { page: PageNumber(word as u32), generation: Generation((word >> 32) as u32), order }
    }

    /// Returns the extent, with its generation.
    pub(crate) fn owned(self) -> (Extent, Generation) {
        (Extent { page: self.page, order: self.order }, self.generation)
    }

    pub(crate) fn pages(self) -> u64 {
        1 << self.order
    }

    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.word().to_le_bytes());
        out.push(self.order);
    }

    /// Decodes a place; `None` if it is none.
    pub(crate) fn decode(bytes: &[u8; PLACE_BYTES]) -> Option<Place> {
        let (word, order) = bytes.split_first_chunk::<8>()?;
        let place = Place::from_word(u64::from_le_bytes(*word), order[0]);
        let is_right =
            place.order <= WIDE_ORDER_MAX && place.page.0.is_multiple_of(1 << place.order);
        is_right.then_some(place)
    }
}
