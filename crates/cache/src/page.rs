//! Ids and kinds of pages.

use spinney_base::{Generation, PageNumber};

/// Kind of a page, which decides how long it stays. Each user of a cache makes the kinds of its
/// pages with [`Kind::new`]; the kinds of one cache have different numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    number: u8,
    priority: u8,
    name: &'static str,
}

/// Most kinds of pages that one cache counts: their numbers are below.
pub const KINDS_MAX: usize = 8;

impl Kind {
    /// Largest priority of a kind.
    pub const PRIORITY_MAX: u8 = 5;

    /// Makes a kind with a number below [`KINDS_MAX`]. The CLOCK hand passes a page of it
    /// `priority` times after its last use, 1 to [`Kind::PRIORITY_MAX`]. Pages of a priority above
    /// 1 begin in the hot region.
    ///
    /// # Panics
    /// For other numbers.
    #[must_use]
    pub const fn new(number: u8, name: &'static str, priority: u8) -> Kind {
        assert!((number as usize) < KINDS_MAX);
        assert!(priority >= 1 && priority <= Self::PRIORITY_MAX);
        Kind { number, priority, name }
    }

    /// Returns the index of its counts in [`CacheStats::by_kind`](crate::CacheStats::by_kind).
    #[must_use]
    pub const fn index(self) -> usize {
        self.number as usize
    }

    /// Returns how often the hand passes a page of this kind after its last use.
    #[must_use]
    pub(crate) const fn priority(self) -> u64 {
        self.priority as u64
    }

    /// Returns whether pages of this kind begin in the hot region.
    #[must_use]
    pub(crate) const fn begins_hot(self) -> bool {
        self.priority > 1
    }

    /// Returns a short stable name, for statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// Id of a page: position in its file, allocation and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId {
    /// Number of the page.
    pub page: PageNumber,
    /// Allocation of the page. The same page of another allocation is another page.
    pub generation: Generation,
    /// Kind of the page.
    pub kind: Kind,
}
