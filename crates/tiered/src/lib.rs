//! Tiered-Indexing (sections 3.1 to 3.5 of the paper): single records in memory over a cold structure of pages
//! that lies in the same order.
//!
//! ```text
//!   put ----> tier: records, dirty or clean, in the order of the keys        [ants* bee cab* ...]
//!                |  a sweep goes through it, and merges changes of neighbours together
//!                v
//!             tree: pages in memory, changed or as on disk                    [leaf][leaf]...
//!                |  write-back, side by side, to new places
//!                v
//!             store file: slots -> root -> inner nodes -> leaves
//! ```
//!
//! **Life of a write.** `prepare` reserves room in the tier, and sweeps where there is none. `apply` puts a dirty
//! record. A sweep copies dirty records, changes their leaves ([`BTree::merge`](spinney_access::BTree::merge)),
//! and makes them clean, unless they were written again meanwhile (rules H1, H2). A lookup asks the tier, and
//! then the tree (H4).
//!
//! **Checkpoint.** All dirty records of the tier are written as one run, its `image`, then the tree is written, and a
//! slot names both. So everything up to the redo LSN is in root or image; later records may be there, too, and
//! replay applies them again. Where it changes few leaves, the records are merged instead. Opening loads the
//! image as dirty records, and then replays the log. Migration is never logged.
//!
//! **Large values.** A put over a dirty record of the tier supersedes what that names. What a clean record names
//! the tree names, too, and the merge that replaces it there supersedes it. What a sweep has copied comes to
//! the tree, or the sweep says that it was lost (rule H23). A value that was superseded before a checkpoint began is
//! not named by its root; one that was superseded later may be, and is listed.
//!
//! **Invariants**
//! 1. A key's newest value is in the tier, or in the tree and not in the tier, or the same in both.
//! 2. Sweeps beside each other have claimed ranges that are disjoint, so no two merge versions of one key (H17).
//! 3. No checkpoint is published while the log is replayed (P19).
//! 4. A promoted record enters under the moment of the tier's leaf at the look that missed it (H3).
//!
//! **Differs from the paper**: pages are never written in place; downward moves are not logged.
//!
//! **Two tiers** (the default). Records that were read from pages may be promoted (`promote`): they enter the
//! tier clean. The hand lets those leave that nobody asked for. Short ranges come along with what lies between
//! them, so that they end in memory (`gaps`).
//!
//! **One tier** (the option `tiers=1`; the paper's base) is a small one: it gathers writes, and keeps no record that
//! was only read.
//!
//! Read `engine` first, then `sweep`, `promote`, `gaps` and `scan`, `image` and `run`, `room` (steps), `memory`, `kept` (snapshots),
//! `maintain`.

#![forbid(unsafe_code)]

mod claims;
mod engine;
mod gaps;
mod image;
mod images;
mod kept;
mod loader;
mod maintain;
mod memory;
mod options;
mod pages;
mod payload;
mod promote;
mod room;
mod run;
mod salvage;
mod scan;
mod sweep;
#[cfg(test)]
mod tests;
mod warm;

pub use engine::{ROW, Tiered};
