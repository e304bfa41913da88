//! A main-memory engine: all records of a keyspace are in memory, in leaves that readers search without a latch, and
//! checkpoints write images of the leaves that have changed.
//!
//! ```text
//!   put ----> index: lower bound -> leaf        [ant bee] [cat cow] [dog yak]      blocks of 16 KiB
//!                                                   |         |         |
//!                          a checkpoint writes ---> image     image     image     to new places
//!                                                   ^         ^         ^
//!   store file: slot -> payload: all images --------+---------+---------+
//! ```
//!
//! **Life of a write.** `prepare` reserves memory, and joins sparse leaves where there is none; where that does not help
//! it answers `Full` with the number of bytes that are needed. `apply` puts the record into its leaf, and splits that
//! if it is full. It may take one block more than was reserved, so it cannot fail.
//!
//! **Life of a read.** The index tells the leaf, which is searched and copied from while it may change; the version
//! of its latch says whether that counts (rule P27). No read does I/O, but for large values.
//!
//! **Checkpoint.** See `checkpoint`. Nothing is logged of splits and joins. Opening reads all images.
//!
//! **Snapshots** keep what writes replace ([`spinney_preimages`]).
//!
//! **Invariants**
//! 1. Leaves are for all keys, each key for one leaf. An incarnation of a leaf has one pair of bounds.
//! 2. A block stays a block of a leaf while the keyspace is open, so that a late reader reads words.
//! 3. No checkpoint is published while the log is replayed (P19).
//! 4. What a slot names, and what may still be read of large values, is not written again before another slot is durable.
//!
//! **Lock order**: `publishing`, then the store's locks, then `changing`, then latches of leaves, then the list of images
//! that are gone, and what the preface of `tree` says.
//!
//! Read `leaf` first, then `tree` and `shape`, `scan`, `engine` and `memory`, `image` and `checkpoint`, `read` and `loader`,
//! `bulk`, `kept` (snapshots), `versions` and `older`, `maintain`, `salvage`.
//!
//! **Versions** are kept of records that transactions touch, in cells beside the leaves: see `versions`.

#![forbid(unsafe_code)]

mod backup;
mod bulk;
mod checkpoint;
mod engine;
mod gaps;
mod image;
mod inner;
mod kept;
mod leaf;
mod loader;
mod maintain;
mod memory;
mod near;
mod older;
mod place;
mod read;
mod salvage;
mod scan;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod shape;
mod sight;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod tree;
mod versions;

pub use engine::{Iot, ROW};
