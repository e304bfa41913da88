//! Compaction of a keyspace or a range of keys, while everybody else goes on.
//!
//! ```text
//!   checkpoint --> piece --> piece --> ... --> checkpoint
//!   everything     its engine merges and      what was freed may be
//!   is in pages    packs some hundred pages   reused and given back
//! ```
//!
//! Engines compact by themselves what is worth it when a keyspace is quiet; a caller who compacts wants all of it, and
//! now. Between two pieces nothing is held, so checkpoints, drops and a close wait for one piece at most.
//!
//! **Invariant**: a compaction changes no record and no answer, whenever it ends or fails.

use std::ops::{Bound, ControlFlow};

use spinney_base::Result;

use crate::database::go_on;
use crate::keyspace::Keyspace;
use crate::range::KeyRange;

/// How far a compaction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactProgress {
    /// Bytes of pages gone through so far.
    pub bytes: u64,
    /// Bytes of the pages of the range when it began. Writes meanwhile make it more or fewer.
    pub bytes_expected: u64,
}

/// What a compaction came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Bytes of pages gone through.
    pub bytes: u64,
    /// Bytes of room that the keyspace's file took before, for all its keys.
    pub bytes_before: u64,
    /// Bytes that it takes now, those among them that a reader or snapshot still holds. What is free has gone back to
    /// the file system, if that knows holes.
    pub bytes_after: u64,
}

impl Keyspace {
    /// Compacts the keyspace: removed and overwritten records give up their room, and what is pending in
    /// memory and buffers is merged into pages as full as may be. Reads and writes go on meanwhile.
    ///
    /// A quiet keyspace does this by itself where it is worth it, so call this only where space or ranges
    /// cannot wait. It writes as many bytes as the records take, or less, and needs room for some pieces of the file
    /// beside what is there.
    ///
    /// ```
    /// # fn main() -> spinney_db::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # use spinney_db::{Db, KeyspaceOptions, Options};
    /// # let db = Db::open(directory.path(), Options::default())?;
    /// let events = db.keyspace("events", KeyspaceOptions::default())?;
    /// # (0..100u8).try_for_each(|n| events.insert(&[n], b"event"))?;
    /// for key in events.keys(..=[89]) {
    ///     events.remove(&key?)?;
    /// }
    /// let report = events.compact()?;
    /// println!("{} bytes of {} are left", report.bytes_after, report.bytes_before);
    /// assert_eq!(events.iter().count(), 10);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Full`, `Io`, `Corruption` naming a page, `Poisoned` or `Closed`. The records are as they were.
    pub fn compact(&self) -> Result<CompactReport> {
        self.compact_range(..)
    }

    /// Compacts the records of a range; see [`Keyspace::compact`].
    ///
    /// # Errors
    /// As [`Keyspace::compact`].
    pub fn compact_range(&self, range: impl KeyRange) -> Result<CompactReport> {
        self.compact_with(range, |_| ControlFlow::Continue(()))
    }

    /// Compacts the records of a range, and tells `progress` after every piece how far it is, which may end
    /// it; that runs on this thread, holds nothing, and may use the database.
    ///
    /// # Errors
    /// As [`Keyspace::compact`]; `Cancelled` when `progress` ended it: what was compacted stays.
    pub fn compact_with(
        &self,
        range: impl KeyRange,
        mut progress: impl FnMut(CompactProgress) -> ControlFlow<()>,
    ) -> Result<CompactReport> {
        let state = &self.handle.state;
        state.check_writable()?;
        let keyspace = self.enter()?.pin();
        let from = match range.lower() {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        let upper = range.upper();
        let bytes_before = self.bytes_in_use();
        // What was written before is in pages then, where the engine finds it.
        state.checkpoint()?;
        let engine = &keyspace.engine;
        let bytes_expected = engine.compact_bytes(&from, upper);
        let mut bytes = 0;
        let mut next = Some(from);
        while let Some(from) = next {
            let piece = {
                // A drop or a close waits for the piece, which then finds the keyspace gone.
                let _no_change = state.hold_checkpoints();
                state.check_writable()?;
                keyspace.check_alive()?;
                engine.compact(&from, upper).inspect_err(|error| state.note(error))?
            };
            bytes += piece.bytes;
            next = piece.next;
            go_on(progress(CompactProgress { bytes, bytes_expected }), "the compaction")?;
            state.runtime.help();
        }
        // What the pieces freed may be reused behind it.
        state.checkpoint()?;
        engine.values().store().give_all_back()?;
        Ok(CompactReport { bytes, bytes_before, bytes_after: self.bytes_in_use() })
    }

    /// Bytes of room that its file takes.
    fn bytes_in_use(&self) -> u64 {
        let stats = self.stats();
        stats.file_bytes.saturating_sub(stats.hole_bytes)
    }
}
