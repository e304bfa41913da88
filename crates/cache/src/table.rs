//! The table of a file: which frame holds each of its pages.
//!
//! An array by page number (by unit of 2^order pages where frames are wider), in chunks of which each is as long as all before it together, so that
//! it grows without being copied. Chunks come zeroed from the system and take memory only where
//! they were written.
//!
//! | entry | meaning |
//! |---|---|
//! | 0 | not cached |
//! | 1 and more | cached, or being filled, in the frame of that number less one |
//! | highest bit set | had to leave as so many others had left before (modulo 2^31) |
//!
//! **Invariant**: a frame's number plus one is stored by [`Table::claim`], and only the holder of
//! that frame takes it away. In the table of an editable file entries change under the clock alone,
//! by [`Table::set`] too.

use std::sync::OnceLock;

use spinney_base::PageNumber;
use spinney_base::shim::atomic::{AtomicU32, Ordering};
use spinney_sync::ZeroedAtomics;

/// Pages of the first chunk.
const FIRST: u32 = 1 << 10;
const CHUNKS: usize = 32 - FIRST.ilog2() as usize + 1;

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: u64 = 4;

/// One file's table. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Table {
    chunks: [OnceLock<ZeroedAtomics<AtomicU32>>; CHUNKS],
}

/// Returns the chunk of an index and the position in it, where chunks double from `first`, a power
/// of two.
#[inline]
pub(crate) fn place(index: u32, first: u32) -> (usize, usize) {
    if index < first {
        return (0, index as usize);
    }
    let chunk = (index / first).ilog2() as usize + 1;
    (chunk, index as usize - ((first as usize) << (chunk - 1)))
}

/// Returns the length of a chunk.
pub(crate) fn chunk_length(chunk: usize, first: u32) -> usize {
    (first as usize) << chunk.saturating_sub(1)
}

impl Table {
    /// Returns the frame that holds a page or is being filled with it.
    #[inline]
    pub(crate) fn frame(&self, page: PageNumber) -> Option<u32> {
        let (chunk, index) = place(page.0, FIRST);
        let entries = self.chunks[chunk].get()?;
        let entry = entries[index].load(Ordering::Acquire);
        if entry & LEFT == 0 { entry.checked_sub(1) } else { None }
    }

    /// Names `frame` for a page that has none.
    pub(crate) fn claim(&self, page: PageNumber, frame: u32) -> Named {
        let entry = self.entry(page);
        let before = entry.load(Ordering::Relaxed);
        let vacant = before == 0 || before & LEFT != 0;
        let named = vacant
            && entry
                .compare_exchange(before, frame + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        match before {
            _ if !named => Named::Not,
            0 => Named::Anew,
            left => Named::Again(left & !LEFT),
        }
    }

    /// Stores the entry of a page: a frame, or none. The caller has locked the clock, and charged
    /// the entry.
    pub(crate) fn set(&self, page: PageNumber, frame: Option<u32>) {
        let entry = frame.map_or(0, |frame| frame + 1);
        self.entry(page).store(entry, Ordering::Release);
    }

    fn entry(&self, page: PageNumber) -> &AtomicU32 {
        let (chunk, index) = place(page.0, FIRST);
        let entries =
            self.chunks[chunk].get_or_init(|| ZeroedAtomics::new(chunk_length(chunk, FIRST)));
        &entries[index]
    }

    /// Removes the name of `frame`, which the caller holds, from its page. Notes how many pages
    /// were evicted before, if it is evicted for others.
    pub(crate) fn clear(&self, page: PageNumber, frame: u32, left: Option<u32>) {
        let (chunk, index) = place(page.0, FIRST);
        let Some(entries) = self.chunks[chunk].get() else { return };
        let after = left.map_or(0, |number| number | LEFT);
        let cleared =
            entries[index].compare_exchange(frame + 1, after, Ordering::AcqRel, Ordering::Relaxed);
        debug_assert!(cleared.is_ok(), "page {page} was in frame {frame}");
    }
}

/// Mark of a page that was evicted.
const LEFT: u32 = 1 << 31;

/// Result of [`Table::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The page already has a frame.
    Not,
    /// It had none before, as far as is known.
    Anew,
    /// It had one before, and was evicted as this number (modulo 2^31).
    Again(u32),
}

/// Returns the number of evictions between a noted number and the number now.
pub(crate) fn left_since(noted: u32, now: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "both are modulo 2^31")]
    let since = (now as u32).wrapping_sub(noted) & !LEFT;
    since
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_each_other() {
        let mut expected = (0, 0);
        for index in 0..100 {
            assert_eq!(place(index, 4), expected, "{index}");
            expected.1 += 1;
            if expected.1 == chunk_length(expected.0, 4) {
                expected = (expected.0 + 1, 0);
            }
        }
        let (chunk, index) = place(u32::MAX, FIRST);
        assert_eq!((chunk, index), (CHUNKS - 1, chunk_length(CHUNKS - 1, FIRST) - 1));
    }

    #[test]
    fn a_page_is_claimed_once() {
        let table = Table::default();
        for page in [0, 1023, 1024, 5000, 1_000_000].map(PageNumber) {
            assert_eq!(table.frame(page), None);
            assert_eq!((table.claim(page, 7), table.claim(page, 8)), (Named::Anew, Named::Not));
            assert_eq!(table.frame(page), Some(7));
            table.clear(page, 7, None);
            assert_eq!((table.frame(page), table.claim(page, 8)), (None, Named::Anew));
            table.clear(page, 8, Some(u32::MAX));
            assert_eq!((table.frame(page), table.claim(page, 9)), (None, Named::Again(!LEFT)));
            assert_eq!(table.frame(page), Some(9));
        }
        assert_eq!(left_since(!LEFT, 5 + (1 << 31)), 6);
        assert_eq!(left_since(3, 10), 7);
    }
}
