//! The slotted page: records of any size in one 4 KiB page, sorted by slots, stored in the order
//! they came (TreeLine, section 4.4).
//!
//! ```text
//!  0            32                80      prefix               heap start                 4096
//! +--------------+-----------------+------+-------------------+---------------------------+
//! | block header | slotted header  | slots →                  |  ← heap: records  | prefix |
//! +--------------+-----------------+------+-------------------+---------------------------+
//! ```
//!
//! [`layout`] is the one home of the bytes; [`PageView`] reads a page that was checked once;
//! [`PageEditor`] changes one. Keys share the prefix of their page's bounds, which is stored once,
//! and each slot keeps the first four bytes of what follows it (the head), so most comparisons
//! touch no record. Hints are every n-th head, to narrow the search.

mod edit;
pub mod layout;
mod view;

pub use edit::{PageEditor, Put};
pub use layout::{RECORD_BYTES_MAX, SLOT_BYTES};
pub use view::PageView;
