//! An engine's part in a backup (rule P26).
//!
//! The database drives it: it runs passes until little is left, then ends the copy, and takes the
//! log's cut after that. What users said between a keyspace's redo LSN and the cut is replayed over
//! the copy when it is opened, so pages may change in place while they are copied; where things lie
//! is as it was when the copy ended, and the log of a backup holds no structure records.

use std::fmt::Debug;

use spinney_base::Result;

/// The copy of one keyspace under construction. It belongs to one thread; reads and writes go on
/// beside it, but for a short while in [`KeyspaceBackup::finish`].
pub trait KeyspaceBackup: Debug {
    /// Looks at a bounded piece and answers the bytes that it copied; `None` says that the pass has
    /// seen everything, and the next call begins another, over what has moved since that pass
    /// began.
    ///
    /// # Errors
    /// `Corruption` naming the damage found in the original; `Io` or `Full`.
    fn copy(&mut self) -> Result<Option<u64>>;

    /// Copies what has moved since the last pass began, and completes the copy; everything is on
    /// stable storage then but the name of its file. Answers the bytes copied.
    ///
    /// # Errors
    /// As [`KeyspaceBackup::copy`].
    fn finish(&mut self) -> Result<u64>;
}
