//! What a page is called, what kinds there are, and a page that is lent.

use std::ops::Deref;
use std::ptr::NonNull;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, PageNumber};
use spinney_io::AlignedBuf;

use crate::cache::Cache;

/// What a page is for, which decides how long it stays. Each user of a cache makes the kinds of its
/// pages with [`Kind::new`]; the numbers of one cache's kinds differ.
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

    /// A kind of a number below [`KINDS_MAX`] that the CLOCK hand passes `priority` times after the
    /// last use of a page, 1 to [`Kind::PRIORITY_MAX`]. Pages of a priority above 1 begin in the hot
    /// region.
    ///
    /// # Panics
    /// For other numbers.
    #[must_use]
    pub const fn new(number: u8, name: &'static str, priority: u8) -> Kind {
        assert!((number as usize) < KINDS_MAX);
        assert!(priority >= 1 && priority <= Self::PRIORITY_MAX);
        Kind { number, priority, name }
    }

    /// Where its counts are in [`CacheStats::by_kind`](crate::CacheStats::by_kind).
    #[must_use]
    pub const fn index(self) -> usize {
        self.number as usize
    }

    /// How often the hand passes a page of this kind after it was last used.
    #[must_use]
    pub(crate) const fn priority(self) -> u64 {
        self.priority as u64
    }

    /// Whether pages of this kind begin in the hot region.
    #[must_use]
    pub(crate) const fn begins_hot(self) -> bool {
        self.priority > 1
    }

    /// A short stable name, for statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// A page of a file: where it lies, which allocation made it, what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId {
    /// Its number.
    pub page: PageNumber,
    /// The allocation that made it: a page of another one is not this page.
    pub generation: Generation,
    /// What it is for.
    pub kind: Kind,
}

/// A page that is lent until this is dropped: pinned in its frame, or, when no frame was to be had,
/// in a buffer of its own. Keep it briefly: what is pinned cannot leave.
#[derive(Debug)]
pub struct PageRef<'a> {
    cache: &'a Cache,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Frame(u32, NonNull<[u8; PAGE_BYTES]>),
    /// Empty only while it is dropped.
    Private(Option<AlignedBuf>),
}

impl<'a> PageRef<'a> {
    /// The page of a frame that the caller has pinned; the pin is handed over.
    #[inline]
    pub(crate) fn pinned(cache: &'a Cache, frame: u32) -> Self {
        PageRef { cache, place: Place::Frame(frame, cache.frames.bytes(frame)) }
    }

    /// A page in a buffer of its own.
    pub(crate) fn private(cache: &'a Cache, buffer: AlignedBuf) -> Self {
        PageRef { cache, place: Place::Private(Some(buffer)) }
    }

    /// The frame it is pinned in.
    #[inline]
    pub(crate) fn frame(&self) -> Option<u32> {
        match self.place {
            Place::Frame(frame, _) => Some(frame),
            Place::Private(_) => None,
        }
    }

    /// Whether it is in the cache.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        matches!(self.place, Place::Frame(..))
    }
}

#[expect(unsafe_code, reason = "a pinned frame's bytes are lent where they lie")]
impl Deref for PageRef<'_> {
    type Target = [u8; PAGE_BYTES];

    #[inline]
    fn deref(&self) -> &[u8; PAGE_BYTES] {
        match &self.place {
            // SAFETY: the pointer is to a page of a mapping that lives as long as the cache, which
            // `self` borrows. While `self` has the frame pinned nobody stores to it (invariant 1 of
            // `state`); other readers load from it, atomically or plainly, which is no race.
            Place::Frame(_, bytes) => unsafe { bytes.as_ref() },
            Place::Private(buffer) => buffer.as_ref().expect("held until dropped").page(0),
        }
    }
}

impl Drop for PageRef<'_> {
    #[inline]
    fn drop(&mut self) {
        match &mut self.place {
            Place::Frame(frame, _) => self.cache.frames.state(*frame).unpin(),
            Place::Private(buffer) => {
                if let Some(buffer) = buffer.take() {
                    self.cache.buffers.give(buffer);
                }
            }
        }
    }
}
