//! The hot tier: single records in memory, in the order in which a cold structure keeps them
//! (Tiered-Indexing, 3.1 to 3.3).
//!
//! ```text
//!  index: lower bound -> leaf                 leaf: records of neighbouring keys
//!  "" -> 0   "cat" -> 7   "dog" -> 3   --->   [ants* | bee | bird | cab*]   * dirty
//! ```
//!
//! The hand goes through the leaves in the order of the keys, so the records that it takes together lie
//! together in the cold structure, and one page there is rewritten for many of them. The keys given
//! here are whatever orders records as the cold structure does.
//!
//! **Life of a record.** A put makes it *dirty*. A sweep copies it, which marks it *writing*, changes the
//! cold page, and then makes it clean or lets it leave, unless a put took the mark away meanwhile. A
//! removal is a record too, and clean it says that the key has no value. A clean record may leave
//! whenever the hand meets it.
//!
//! **Rules** (numbers of the design): a record leaves only after its cold page has it (H1) and only if
//! nothing changed it since it was copied (H2); a promoted copy enters only if its leaf is as at the look
//! that missed it (H3); dirty and value change in one step (H5); a removal is a dirty record (H7); gap
//! bits (H8).
//!
//! **Memory.** Leaves are blocks of 16 KiB. A record takes 8 bytes beside its own, up to 7 to the next
//! word, and its share of what the leaf leaves unused; keys lose what all keys of their leaf share. A put
//! never fails: room is reserved in bytes, and a split takes a block whether or not it was reserved.
//!
//! **Concurrency.** Everything may be called from any thread but [`HotTier::check`]. Lookups and ranges
//! take no latch: they validate the leaf's version. Writers latch one leaf, and its neighbours
//! where records move. **Crash**: all of it is in memory only.
//!
//! Read `leaf` first (the bytes), then `blocks`, `index`, `tier`, `shape` (which keys a leaf is for),
//! `hand`, `admission`.
//!
//! **Differs from the paper**, whose hot tier is a tree of the cold structure's kind with a bit a record:
//! leaves are found by an index of two levels, and reference bits lie outside of them, where readers
//! may set them without a latch.

#![forbid(unsafe_code)]

mod admission;
mod blocks;
mod hand;
mod index;
mod leaf;
mod records;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod shape;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
#[cfg(test)]
mod threads;
mod tier;

pub use admission::{Admission, Promotion};
pub use hand::{Hand, Passed};
pub use records::{Record, Records};
pub use tier::{Cached, Direction, HotTier, Piece, RECORD_BYTES_MAX, Refused, Replaced, Seen};
