//! Leaves: records of neighbouring keys in one block of words, which readers search while a writer
//! changes it (rule P27).
//!
//! ```text
//!  lower bound                                    upper bound
//!      |  ants = 3    bee = 8    cab = 1             |
//!      +---------------------------------------------+      slots ascend by key; keys lose what
//!         suffixes: nts, ee, ab ...                         all keys between the bounds share
//! ```
//!
//! One format for what is kept in memory only (the hot tier) and for pages of trees, whose blocks have a
//! header in front. [`layout`] has the bytes and what is done with one leaf, [`image`] spreads the records
//! of some neighbours over other leaves, [`records`] holds copies, [`check`] is for what comes from disk.
//!
//! **Concurrency.** The crate knows no latch. A reader takes what it loads for nothing until its owner has
//! validated the version of the block; a writer is alone. **Invariants** are those of [`layout`].
//!
//! ```
//! use spinney_leaf::{Bounds, Entry, Leaf};
//! use spinney_sync::racy::Word;
//!
//! let words: Vec<Word> = (0..512).map(|_| Word::new(0)).collect();
//! let leaf = Leaf::new(&words);
//! let bounds = Bounds { lower: b"a", upper: Some(b"b") };
//! leaf.write(bounds, 0, [Entry { key: b"ant", value: b"3", flags: 0 }].into_iter());
//! let index = leaf.search(b"ant").expect("it is there");
//! let mut value = Vec::new();
//! leaf.value(leaf.slot(index), &mut value);
//! assert_eq!(value, b"3");
//! assert_eq!(leaf.check(0, 0), Ok(()));
//! ```

#![forbid(unsafe_code)]

pub mod check;
pub mod image;
pub mod layout;
pub mod records;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use check::Wrong;
pub use image::{Coming, Image, separator};
pub use layout::{Bounds, Entry, HEADER_WORDS, Leaf, Slot, record_words, records_max};
pub use records::Records;
