//! Index-SSN: the certifier that makes snapshot isolation serializable.
//!
//! ```text
//!   engine: keys, trees, images, log
//!      | look, note, own              | certify, decide, publish, finish
//!      v                              v
//!   transaction -------------------> certify         pi and eta, reads and writes of one attempt
//!      |                              |
//!   stamps, readers   context        safe            clock
//!   four words of     1,024 times    floor of        one counter
//!   one slot          state, c, pi   snapshots       of stamps
//! ```
//!
//! Snapshot isolation shows a transaction the newest versions at its begin stamp, and lets the
//! first of two concurrent updaters win. It admits cycles of dependencies. SSN (the serial safety
//! net) refuses them by two stamps of each transaction T with commit stamp c(T):
//!
//! * eta(T): the greatest c of transactions that must come before T and committed earlier;
//! * pi(T): the least pi of transactions that committed earlier but must come after T, or c(T).
//!
//! T commits only if eta(T) < pi(T). No cycle passes this test, but some harmless histories fail
//! it.
//!
//! **Invariants**
//! 1. A transaction enters COMMITTING before it draws c, and waits only for transactions with a
//!    smaller c, or with none yet. So no two wait for each other.
//! 2. A reader is found by its bit or by the version's pstamp: it raises pstamp before it clears
//!    the bit, and an overwriter looks at the bits first.
//! 3. What a transaction read as absent is a version, too. Gaps between keys have a stamp of their
//!    own.
//!
//! **What it is not.** It knows no key, tree or log. The engine finds slots, keeps images and old
//! versions, validates node sets, and calls the steps in the order that [`Transaction`] tells.
//!
//! **Differs from the paper.** Algorithm 1 of *Index-Organized storage model* exchanges the initial
//! values of pi and eta, never folds c into pi, takes the latest instead of the immediate
//! overwriter, and forgets readers before the pending version. It admits histories that are not
//! serializable. The rules here are those of *The Serial Safety Net* (Wang, Johnson, Fekete,
//! Pandis; VLDB Journal 26, 2017) with its latch-free parallel commit, and absent versions and gap
//! stamps.
//!
//! Read `clock`, `context`, `stamps`, `readers`, `transaction`, `certify`, then `safe`, `cells` and `board`.

#![forbid(unsafe_code)]

mod board;
mod cells;
mod certify;
mod clock;
mod context;
#[cfg(test)]
mod graph;
mod readers;
mod safe;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
mod stamps;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
mod transaction;
#[cfg(test)]
mod world;

pub use cells::{CellRef, Cells, Images, Kept, Sees};
pub use certify::{Certifier, Image, reads_are_current};
pub use clock::{Clock, NEVER, STAMP_MAX, Stamp};
pub use context::{CONTEXTS, Contexts, Fate, Owner, Running};
pub use stamps::{Gap, Marks, Readable, Slot, Stamps, Successor, Version, Words};
pub use transaction::{Look, Sight, Transaction};
