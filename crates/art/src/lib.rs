//! A concurrent ordered map from byte strings to the caller's records: an adaptive radix tree (Leis
//! et al., ICDE 2013) with optimistic lock coupling (Leis et al., DaMoN 2016).
//!
//! [`Art`] keeps for each key a 63-bit reference of the caller's, its *leaf*, and no copy of the
//! key: a [`KeySource`] tells the keys of leaves. [`ArtMap`] is a map that owns its keys, built on
//! it. It does no I/O and knows no engine.
//!
//! Read [`source`], then [`node`] for the layout and its invariants, [`layout`], [`trail`] for how
//! a reader finds its way, [`tree`] for writers and [`scan`] for neighbours and ranges.

mod direction;
mod layout;
mod map;
mod memory;
mod node;
mod record;
mod scan;
mod source;
mod trail;
mod tree;

pub use crossbeam_epoch::{Guard, pin};
pub use direction::Direction;
pub use map::{ArtMap, Range};
pub use scan::Scan;
pub use source::{KeySource, LEAF_MAX, Parting};
pub use tree::{Art, Census};
