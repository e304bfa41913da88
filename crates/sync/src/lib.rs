//! Synchronization that storage engines need and the standard library lacks: [`VersionLatch`] for
//! optimistic reads, the [`LockTable`] that orders writers of a key, [`racy`], the only way to copy
//! memory while it changes, [`Stripes`], counters that threads do not share, [`Parkable`], a value
//! that is taken away while nobody uses it, [`Gap`], which remembers where nothing is, and [`Blocks`],
//! memory of leaves that stays memory of leaves.
//!
//! It does no I/O. Read [`latch`] first; [`racy`] says why racing copies are sound here; [`table`]
//! is the order of writes.

pub mod blocks;
pub mod gap;
pub mod latch;
mod parkable;
mod prefetch;
pub mod racy;
mod stripes;
pub mod table;
mod zeroed;

pub use blocks::{Beside, Blocks};
pub use gap::{Gap, Look};
pub use latch::{LatchGuard, Version, VersionLatch};
pub use parkable::{Entry, Parkable};
pub use prefetch::{prefetch, prefetch_to_write};
pub use racy::RacyWords;
pub use stripes::Stripes;
pub use table::{LockTable, Moment, Stamp, Stripe, StripeGuards, hash_key};
pub use zeroed::{ZeroedAtomic, ZeroedAtomics};
