//! Where a page lies.

use spinney_base::{Generation, PageNumber};

/// Bytes of a place in its parent.
pub(crate) const PLACE_BYTES: usize = 8;

/// Where a page lies: its number, and the allocation that it was written for. In its parent it takes
/// 8 bytes: page and generation, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// First of the 4 KiB pages that it takes.
    pub page: PageNumber,
    /// Allocation of these pages.
    pub generation: Generation,
}

impl Place {
    /// Returns the place as its parent has it.
    #[must_use]
    pub fn encode(self) -> [u8; PLACE_BYTES] {
        self.as_word().to_le_bytes()
    }

    /// Decodes one.
    #[must_use]
    pub fn decode(bytes: [u8; PLACE_BYTES]) -> Place {
        Place::from_word(u64::from_le_bytes(bytes))
    }

    pub(crate) fn as_word(self) -> u64 {
        u64::from(self.page.0) | u64::from(self.generation.0) << 32
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    pub(crate) fn from_word(word: u64) -> Place {
        Place { page: PageNumber(word as u32), generation: Generation((word >> 32) as u32) }
    }
}

/// The root of a tree, as a slot names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    /// Where the root lies.
    pub place: Place,
    /// Its level; leaves have 0.
    pub level: u8,
}

impl TreeRoot {
    /// Returns place and level, as [`RootReader::read`](crate::RootReader::read) takes them.
    #[must_use]
    pub fn page(self) -> (Place, u8) {
        (self.place, self.level)
    }
}
