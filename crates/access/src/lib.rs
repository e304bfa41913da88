//! Cold structures: what a keyspace keeps on disk, under a tier of hot records.
//!
//! ```text
//!   place -> page and generation            pages  -> what changes in memory, where it comes to lie
//!   gate  -> who may change the shape       write_back -> to new places, side by side
//!   btree -> records in the order of keys   checkpoint -> a root that a slot can name
//! ```
//!
//! Nothing is written in place and nothing is logged: a changed page is written to a new place, and a
//! checkpoint's root names all places. A crash finds the tree of the last root whole.
//!
//! Read `pages` first, then `btree`, `write_back`, `checkpoint`.

#![forbid(unsafe_code)]

pub mod btree;
mod checkpoint;
mod dirty;
mod gate;
mod pages;
mod place;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod shape;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
#[cfg(test)]
mod world;
mod write_back;

pub use btree::{BTree, Change, Filled, Home, Keep, Merged, See, Walked};
pub use place::{Place, TreeRoot};
pub use shape::{RootPage, RootReader, is_leaf, parse, read};
