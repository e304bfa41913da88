//! Pre-images: snapshots of an engine that updates in place, by keeping what writes replace.
//!
//! ```text
//!   write, before its put                         table 3 (snapshot 3)    table 7 (snapshot 7)
//!     newest table <= its number                    runs on disk            runs on disk
//!     record in the cache: link a copy      ----->  sealed maps             sealed maps
//!     else: mark the key, read nothing              map: key -> pre-image   map: key -> pre-image
//!                                                     ^
//!   write-back, which reads the page anyway           |     marks: notes in the records' headers,
//!     link what the page holds for marked keys  ------'            which name the table
//! ```
//!
//! A batch bears the number of the newest snapshot that it follows. Its writes go to the newest table
//! with at most that number, and only the first write of a key to a table counts: what it replaces is
//! the key's value between this table's snapshot and the next. So the value at snapshot k is the oldest
//! entry of the key in tables k and later, and what the engine has where there is none.
//!
//! **The page is the pre-image until it is rewritten.** A record that the engine has in memory is
//! copied. Of any other the page still holds the value, and it stays there until the record is written
//! back; a *mark* says that the page counts, and not the dirty record over it. So a write reads nothing,
//! and write-back reads no page that it would not read anyway.
//!
//! **Invariants** (S4 to S18 of the rules)
//! 1. A link is made before the put that replaces what it holds, and before the mark that it stands for
//!    goes. The first link of a key in a table stays; where one comes again after the map was sealed,
//!    the older layer counts, and the later link need not be written out.
//! 2. Entries move from mark to map to layer and are made in the order of tables. A reader that looks
//!    from the newest table to the oldest, in each at the mark, the map and then the layers from the
//!    newest to the oldest, therefore passes none over.
//! 3. A marked key is dirty in the engine's memory, so it has one mark at most. A mark is
//!    resolved, its page's value linked, before the page is rewritten, under the page's exclusive lock.
//! 4. A snapshot that has ended says so: the flag is set before the put whose pre-image is not kept, and
//!    looked at after the read.
//! 5. Nothing here is durable or named by anything durable: pages of runs are free after a crash.
//!
//! **Memory.** Marks take none, unless many tables have some; such marks, and maps, have half of the bound
//! each. From a quarter of theirs on the background writes the largest map out as a run, from half on
//! writers do, and from three quarters on they wait for that. A write-back takes [room](LinkRoom) for its
//! links first. When the half of marks is full, writers write marked records back. Far past the bound,
//! where none of it helps, all snapshots of the keyspace end.
//!
//! **Concurrency.** Everything may be called from any thread. Writers of one key are ordered by its
//! stripe. Locks, first to last: `turn`, all locks of the engine, `spilling`, `merging`, `changing`,
//! `linking`, a shard of marks outside. Nothing waits or does I/O under the last two.
//!
//! Read `table`, then `keep` (writers), `room` (write-back), `find` and `overlay` (readers), `spill` and `run`.

#![forbid(unsafe_code)]

mod again;
mod find;
mod keep;
mod lives;
mod marks;
mod outside;
mod overlay;
mod room;
mod run;
#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(test)]
mod small;
mod snapshot;
mod spill;
mod table;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use keep::{Known, PreImages};
pub use marks::Notes;
pub use room::LinkRoom;
pub use snapshot::{InPlace, begin};
