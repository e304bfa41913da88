//! The row, column and row+column stores that the engine `iot` is compared with.
//!
//! ```text
//!   key --> index (`art`) --> indirection array --> tile groups      one table
//!                              stamps, place         row         | a b c d | a b c d | ..
//!                                  |                 column      | a a .. | b b .. | c c ..
//!                                  v                 row+column  | a b | a b | .. | c c .. |
//!                           older versions, new to old
//! ```
//!
//! Section 6 of *Index-Organized storage model* compares with three stores of PelotonDB. Here they
//! are one table with a grouping of columns, and share with `iot` what is no part of the storage
//! model: the certifier (`ssn`), the index (`art`), the log (`wal`), the mapped memory and its atomic words
//! (`sync`). So a ratio between them says what the storage model gains.
//!
//! Read [`schema`](Schema) (columns and groups), `heads` (the indirection array), `tiles`, `undo`
//! (older versions), `gaps` and `seen` (ranges), `table`, then `transaction`, `write`, `commit` and `collect`.
//!
//! ```
//! use spinney_heap::{Columns, Heap, Layout, Schema};
//! # fn main() -> spinney_base::Result<()> {
//! let heap = Heap::new(Layout::Column, &[Schema::new(8, &[4, 4])?], 1 << 30, None)?;
//! let mut session = heap.session();
//! let mut transaction = session.begin()?;
//! transaction.insert(0, b"key", b"abcdefgh")?;
//! transaction.update(0, b"key", Columns::one(1), b"EFGH")?;
//! transaction.commit()?;
//! let (mut transaction, mut out) = (session.begin()?, Vec::new());
//! assert!(transaction.get(0, b"key", Columns::first(2), &mut out)?);
//! assert_eq!(out, b"abcdEFGH");
//! # Ok(())
//! # }
//! ```
//!
//! **Invariants**
//! 1. A read copies columns between two looks at the record's stamps, and takes no lock. A look-up
//!    allocates nothing beside the certifier's notes.
//! 2. Nothing that is not committed is in a tile group.
//! 3. All memory is counted, and older versions go once the horizon has passed them.
//!
//! **Concurrency.** Any number of sessions, one thread each; transactions are strictly serializable,
//! ranges included. The lock of a record's chain comes before that of free blocks; no other two are
//! held at once. **Crash**: the log is written and never read; all is gone.
//!
//! **Differs from the paper**, each time in favour of these stores. An update changes the tiles in
//! place and saves the values of the columns that it changes, where the paper's copy the whole
//! record. The entry of the indirection array has the stamps and short keys, so one cache miss less
//! leads to a value. Scans ask for the tiles of records ahead. No checkpoint is written.

#![forbid(unsafe_code)]

mod collect;
mod commit;
mod gaps;
mod heads;
mod heap;
mod schema;
mod seen;
mod session;
mod table;
#[cfg(test)]
mod tests;
mod tiles;
mod transaction;
mod undo;
mod write;

pub use heap::{Chains, Heap, HeapMemory};
pub use schema::{COLUMNS_MAX, Columns, KEY_BYTES_MAX, Layout, ROW_BYTES_MAX, Schema};
pub use session::{Ran, Session};
pub use transaction::{Scan, Transaction, Visitor};
