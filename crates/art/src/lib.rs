//! A concurrent ordered map from byte strings to the caller's records: an adaptive radix tree (Leis
//! et al., ICDE 2013) with optimistic lock coupling (Leis et al., DaMoN 2016).
//!
//! [`Art`] keeps for each key a 63-bit reference of the caller's, its *leaf*, and no copy of the
//! key: a [`KeySource`] tells the keys of leaves. [`ArtMap`] is a map that owns its keys, built on
//! it, and [`AppendedMap`] one whose keys and values go all at once. It does no I/O and knows no
//! engine.
//!
//! Read `source`, then `node` for the picture of the layout and its invariants, `layout`, `trail`
//! for how a reader finds its way, `tree` for writers and `scan` for neighbours and ranges; then
//! the maps: `record`, `map` and `entries`, or `arena` and `appended`.
//!
//! **Differs from the papers.** Nodes store no prefix, only how deep they are: the leaf's key is
//! compared in any case, so a prefix would be a second copy of what the leaf has, and a node need
//! not change when the edge above it is split or joined. A node has a place for the key that ends
//! at it, so no key needs a terminator. There are nodes of 8, 32 and 112 children between those of
//! 4, 16, 48 and 256: with them a million random keys of 8 bytes take 17 bytes each instead of 27.
//!
//! **Concurrency.** Everything but `clear` and `drop` takes `&self` from any number of threads.
//! Readers write nothing but their epoch. Lookups, writes and neighbours are linearizable; a range
//! is, chunk by chunk. **Crash**: all of it is in memory only. It upholds P24 and P27.

mod appended;
mod arena;
mod direction;
mod entries;
mod layout;
mod map;
mod memory;
mod node;
mod record;
mod scan;
mod source;
mod trail;
mod tree;

pub use appended::{Appended, AppendedMap, AppendedRange, Place};
pub use arena::{Chunk, Sealed};
pub use crossbeam_epoch::{Guard, pin};
pub use direction::Direction;
pub use entries::{Entries, Pinned};
pub use map::{ArtMap, Range};
pub use scan::Scan;
pub use source::{KeySource, LEAF_MAX, Parting};
pub use tree::{Art, Census};
