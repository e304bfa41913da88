//! The one write-ahead log of a database.
//!
//! It stores opaque records in LSN order. After a crash it gives back every record that it promised
//! and no other. Only the writer of a record knows its meaning: the database encodes batches, and
//! engines encode changes of structure. The log takes no checkpoint and knows no page; it reserves
//! space, appends, makes durable, trims and replays.
//!
//! A write is: [`Log::reserve`] (may fail, may do I/O) -> [`Log::announce`] -> [`Log::append`]
//! (cannot fail) -> the caller applies -> the announcement is dropped -> [`Log::commit`].
//!
//! Reading order: [`mod@block`] (the byte layout of runs), `superblock`, `segments`, `room` and
//! `space` (space), `buffers` and `run` (from records to a run), `tail` (what the kernel has before
//! a run does, or persistent memory), `flush` (group commit), `announce` (the applied watermark), `failure`, `log` (puts
//! them together), `recover` and `replay`, `follow` and `copy` (what a backup needs).

/// Fullness of the log, where 1 is full for users, at which its database asks for a checkpoint at
/// the latest.
pub const CHECKPOINT_FULLNESS: f64 = 0.5;

mod announce;
pub mod block;
mod buffers;
mod bytes;
mod copy;
mod failure;
mod flush;
mod follow;
mod log;
mod options;
mod reader;
mod recover;
mod replay;
mod room;
mod run;
mod segments;
mod space;
pub mod superblock;
mod tail;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

pub use announce::Announcement;
pub use block::{Record, RecordKind};
pub use copy::LogCopy;
pub use flush::Durability;
pub use follow::Follower;
pub use log::{Log, LogStats, tail_name};
pub use options::{LogMemory, LogOptions, RECORD_BYTES_MAX};
pub use replay::Recovered;
pub use room::{Reservation, ReserveFor};
