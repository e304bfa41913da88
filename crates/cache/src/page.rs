//! What a page is called, what kinds there are, and a page that is lent.

use std::ops::Deref;
use std::ptr::NonNull;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, PageNumber};
use spinney_io::AlignedBuf;

use crate::cache::Cache;

/// What a page is for, which decides how long it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Values of records.
    Values = 0,
    /// Keys of records.
    Keys = 1,
    /// A part of an index within an extent.
    Index = 2,
    /// A part of a membership filter.
    Filter = 3,
    /// A node of a tree.
    Node = 4,
}

/// All kinds, in the order of their counters.
pub(crate) const KINDS: [Kind; 5] =
    [Kind::Values, Kind::Keys, Kind::Index, Kind::Filter, Kind::Node];

impl Kind {
    /// How often the hand passes a page of this kind after it was last used.
    #[must_use]
    pub(crate) const fn priority(self) -> u64 {
        match self {
            Kind::Values => 1,
            Kind::Keys => 2,
            Kind::Index => 3,
            Kind::Filter => 4,
            Kind::Node => 5,
        }
    }

    /// Whether pages of this kind begin in the hot region.
    #[must_use]
    pub(crate) const fn begins_hot(self) -> bool {
        !matches!(self, Kind::Values)
    }

    /// A short stable name, for statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Values => "values",
            Kind::Keys => "keys",
            Kind::Index => "index",
            Kind::Filter => "filter",
            Kind::Node => "node",
        }
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
