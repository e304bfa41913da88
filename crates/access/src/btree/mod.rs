//! A B+tree of copy-on-write pages: the cold structure of ordered keyspaces.
//!
//! ```text
//!  root word: place and level
//!      |
//!   [ "" -> p9 | "m" -> p4 ]            level 1: separators and places
//!       |            |
//!  [ants bee cab] [mole newt]           level 0: records; each leaf has its lower and upper bound
//! ```
//!
//! Leaves and inner nodes have the same layout (`spinney-leaf`); the level is in the owner's word. A key
//! belongs to the child with the greatest lower bound that is not above it. The first child of a node has the
//! node's own lower bound, so every key has one.
//!
//! **Reading** (optimistic lock coupling): the place of the child is read from the parent, the page found or
//! loaded, and the parent validated after that. A page that moved meanwhile may still lie intact where it was,
//! and would be read as if it were current; or its place has another owner, which is damage only if the
//! parent still names it.
//!
//! **Changing.** Records change in their leaf while they fit (`merge`). Everything else is one step
//! (`reshape`): the records of one page, or of neighbours, are spread over new pages, and the parent, which is
//! held with them, names these instead (rule H10). A parent without room is divided first.
//!
//! **Invariants**
//! 1. All leaves have the same depth; bounds of a child are those that its parent says.
//! 2. Whoever changes which pages a node names holds the gate shared, and the node.
//! 3. Pages are taken downwards, parent before child, and only tried: nobody waits for one while holding
//!    another.
//!
//! Paper: Tiered-Indexing, 3.2, whose tree writes pages in place.

mod ahead;
mod compact;
pub(crate) mod descend;
mod merge;
mod reshape;
pub(crate) mod root;
mod scan;
pub(crate) mod tree;
mod walk;

pub use compact::Filled;
pub use merge::{Change, Home, Keep, Merged};
pub use tree::BTree;
pub use walk::{See, Walked};
