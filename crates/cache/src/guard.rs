//! Guards of pages that are lent.

use std::ops::Deref;
use std::ptr::NonNull;

use spinney_base::limits::PAGE_BYTES;
use spinney_io::AlignedBuf;

use crate::cache::Cache;

/// Page guard: a page that is lent until this is dropped. It is pinned in its frame or, when no
/// frame was available, in a buffer of its own. Keep it briefly, because a pinned page cannot be
/// evicted.
#[derive(Debug)]
pub struct PageRef<'a> {
    cache: &'a Cache,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Frame(u32, NonNull<[u8; PAGE_BYTES]>),
    /// `None` only while it is dropped.
    Private(Option<AlignedBuf>),
}

impl<'a> PageRef<'a> {
    /// Makes a guard for the page of a frame that the caller has pinned. It takes over the pin.
    #[inline]
    pub(crate) fn pinned(cache: &'a Cache, frame: u32) -> Self {
        PageRef { cache, place: Place::Frame(frame, cache.frames.bytes(frame)) }
    }

    /// Makes a guard for a page in a buffer of its own.
    pub(crate) fn private(cache: &'a Cache, buffer: AlignedBuf) -> Self {
        PageRef { cache, place: Place::Private(Some(buffer)) }
    }

    /// Returns the frame in which it is pinned.
    #[inline]
    pub(crate) fn frame(&self) -> Option<u32> {
        match self.place {
            Place::Frame(frame, _) => Some(frame),
            Place::Private(_) => None,
        }
    }

    /// Returns whether the page is in the cache.
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
