//! An engine's part in a backup (rule P26).
//!
//! The database drives the copy. It runs passes until little is left, then ends the copy, and takes
//! the cut of the log after that. When the copy is opened, user records between a keyspace's redo
//! LSN and the cut are replayed over it, so pages may change in place while they are copied. The
//! structure is that of the end of the copy: the log of a backup holds no structure records.

use std::fmt::Debug;

use spinney_base::Result;

/// The copy of one keyspace under construction. It belongs to one thread. Reads and writes continue
/// beside it, except for a short while in [`KeyspaceBackup::finish`].
pub trait KeyspaceBackup: Debug {
    /// Copies a bounded piece, and returns the number of bytes copied. `None` says that the pass
    /// has seen everything; the next call begins another pass, over what has changed since this
    /// pass began.
    ///
    /// # Errors
    /// `Corruption` naming the damage found in the original; `Io` or `Full`.
    fn copy(&mut self) -> Result<Option<u64>>;

    /// Copies what has changed since the last pass began, and completes the copy. Everything is
    /// then on stable storage except the name of its file. Returns the number of bytes copied.
    ///
    /// # Errors
    /// As [`KeyspaceBackup::copy`].
    fn finish(&mut self) -> Result<u64>;
}
