//! The page cache: single 4 KiB pages out of extents of any size, under one budget of bytes.
//!
//! ```text
//!  file's table: page -> frame         frames
//! +----+----+----+----+----+      +-------+-----------------+-----+---------------------+
//! |  0 |  7 |  0 |  3 | .. | ---> | state | file, page, gen | use |  4096 bytes         |
//! +----+----+----+----+----+      +-------+-----------------+-----+---------------------+
//!   four bytes a page                 32 bytes a frame              mapped, given back
//! ```
//!
//! A caller names a page by file, number, generation and kind, and passes a closure that loads it
//! on a miss. A page of an extent of 16 MiB is cached alone. A reader of a whole extent takes
//! cached pages ([`CacheFile::peek`]) and adds none. There is no hash table: a file's table is an
//! array by page number, whose memory is touched only where pages are cached.
//!
//! **Two ways to read.** [`CacheFile::copy`] is optimistic: it copies bytes and then validates the
//! frame's version, writes nothing shared, and so costs the same on a page that all processors
//! read; 100 bytes of a warm page take two thirds of the time that pinning takes (example `hits`:
//! 39 against 56 ns on a busy machine). [`CacheFile::get`] pins the frame and lends the whole page
//! to be parsed where it lies.
//!
//! **What stays.** Frames are in two regions. Pages of kinds that are few and needed for all the
//! others (nodes, filters, indexes, keys) begin in the hot one, values in the cold one, which is
//! at least a sixteenth. A page of the cold region that was used again when the cold hand meets it
//! becomes hot, any other leaves the cache; when the hot region is over its share the hot hand
//! takes from each page's use count and moves the first that has none left to the cold region
//! (GCLOCK with a probation region). A use sets the count to the kind's priority. So a flood of
//! values used once passes through the cold region alone.
//!
//! **Invariants**
//! 1. Frames and tables together stay within the budget, at every moment, but for pages that were
//!    pinned or being loaded when it shrank; those go at the next miss after that, or when the
//!    budget is set again.
//! 2. A table's entry names a frame only while that frame holds the page or is being filled
//!    with it; each page is in one frame at most, so misses at the same time read it once.
//! 3. A frame's bytes change only while it is held exclusively and nobody has it pinned, and its
//!    version grows each time (rule P27): what an optimistic reader copied and validated is of one
//!    page.
//! 4. A load that failed leaves nothing behind.
//! 5. Hits take no lock and wait for nobody; a miss that finds every frame in use reads into a
//!    buffer of its own.
//!
//! **Concurrency.** Everything may be called from any thread. Locks, in order: the clock, the list
//! of files; neither is held during I/O. A thread waits only for a page that another is
//! loading, and never while it holds a frame that it has not filled.
//!
//! Read `state` first: it is the protocol. Then `frames`, `table`, `clock`; `cache` puts
//! them together.

mod batch;
mod cache;
mod clock;
mod counters;
mod editable;
mod frames;
mod guard;
mod handle;
mod page;
mod state;
mod table;
mod write_back;

pub use batch::Missing;
pub use cache::{Cache, CacheFile};
pub use counters::{CacheStats, KindCounts};
pub use editable::{Edit, EditableFile, Look, Sight};
pub use guard::PageRef;
pub use page::{KINDS_MAX, Kind, PageId};
pub use write_back::{DirtyHand, DirtyPage, Written};

/// Bytes that the budget is charged for one frame of one page, see [`frame_bytes`].
pub const FRAME_BYTES: u64 = frame_bytes(0);

/// Largest order of frames: they have up to 2^2 pages.
pub const ORDER_MAX: u32 = 2;

/// Returns the bytes that the budget is charged for one frame of 2^`order` pages: its pages, its
/// four words, and its places in the clock's lists.
#[must_use]
pub const fn frame_bytes(order: u32) -> u64 {
    (4096 << order) + 32 + 8
}
