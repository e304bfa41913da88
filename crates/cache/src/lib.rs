//! The page cache: pages of 4, 8 or 16 KiB, under one budget of bytes: single ones out of extents
//! of any size, which nobody changes, or those of a copy-on-write tree, which are changed in
//! memory.
//!
//! ```text
//!  file's table: page -> frame         frames
//! +----+----+----+----+----+      +-------+-----------------+-----+---------------------+
//! |  0 |  7 |  0 |  3 | .. | ---> | state | file, page, gen | use |  4096 bytes         |
//! +----+----+----+----+----+      +-------+-----------------+-----+---------------------+
//!   four bytes a page                 32 bytes a frame              mapped, given back
//! ```
//!
//! The frames of a cache have 1, 2 or 4 pages of 4 KiB ([`Cache::with_frames`]). With wider frames
//! a table has one entry for each unit of 2 or 4 pages, and extents are aligned to units. A page
//! below is what a frame holds.
//!
//! A caller names a page by file, number, generation and kind, and passes a closure that loads it
//! on a miss. A page of an extent of 16 MiB is cached alone. A reader of a whole extent takes
//! cached pages ([`CacheFile::peek`]) and adds none. There is no hash table: a file's table is an
//! array by page number, whose memory is touched only where pages are cached.
//!
//! **Two sorts of files.** The pages of a [`CacheFile`] are written once and then only read, in
//! frames of one page. Those of an [`EditableFile`] are edited in their frames beside optimistic
//! readers, and written back by their owner. All files of a cache are of one sort.
//!
//! **Two ways to read** a `CacheFile`. [`CacheFile::copy`] is optimistic: it copies bytes and then
//! validates the frame's version, writes nothing shared, and so costs the same on a page that all
//! processors read; 100 bytes of a warm page take two thirds of the time that pinning takes
//! (example `hits`: 39 against 56 ns on a busy machine). [`CacheFile::get`] pins the frame and
//! lends the whole page to be parsed where it lies.
//!
//! **Reading and editing** an `EditableFile`. A [`Look`] lends the words of a page, and a [`Sight`]
//! says which version they are of: what was read means nothing until
//! [`EditableFile::is_valid`]. [`EditableFile::edit`] holds the page if it is still as it was seen.
//! No page is pinned.
//!
//! ```text
//!   reader                         editor                              its owner's write-back
//!   look  -> state: version 7      look  -> version 7                  dirty_pages -> ids
//!   load words                     edit  -> held, if still version 7   snapshot -> copy, version 8
//!   is_valid: still 7?             store words, mark_dirty             writes the copy
//!                                  drop  -> version 8, dirty           rename, to where it lies now
//!                                                                      written_back: still 8? clean
//! ```
//!
//! A page that a thread made dirty stays until it was written back ([`EditableFile::written_back`])
//! or is freed ([`EditableFile::forget`]). A page's number may get another owner while a reader with
//! an old pointer loads what lay there: [`EditableFile::fresh`] and [`EditableFile::rename`] throw
//! such a load out. A dirty page that is not fresh must be written to a new place, since a reader
//! without a frame may be reading the old one.
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
//!    pinned, dirty or held when it shrank, and a third as many as were dirty, for the pages that
//!    lead to them; those go at the next miss after that, or when the budget is set again.
//! 2. A table's entry names a frame only while that frame holds the page or is being filled
//!    with it; each page is in one frame at most, so misses at the same time read it once. While a
//!    page is renamed, two entries name its frame.
//! 3. A frame's bytes change only while it is held exclusively and nobody has it pinned, and its
//!    version grows each time (rule P27): what an optimistic reader copied and validated is of one
//!    page.
//! 4. A load that failed leaves nothing behind.
//! 5. Hits take no lock and wait for nobody; a miss that finds every frame in use or dirty reads
//!    into memory of its own.
//! 6. A dirty page is neither evicted nor thrown out by a reader. It becomes clean only by
//!    [`EditableFile::written_back`] with a copy of the version that it has.
//! 7. In editable files, names of frames and entries of tables are stored under the clock alone. So
//!    a thread that has locked it knows which frame has which page, even if another holds the frame.
//!
//! **Concurrency.** Everything may be called from any thread. Locks, in order: the clock, the list
//! of files, a lock for waiting threads; none is held during I/O. A thread waits only for a page
//! that another is loading or editing, and never while it holds a frame that it has not filled.
//!
//! Read `state` first: it is the protocol. Then `frames`, `table`, `clock`, `handle`; `cache` has
//! the cache and its pinned pages; `editable` and `write_back` have the pages that change.

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
