//! Compaction of a keyspace or a range of keys, while reads and writes continue.
//!
//! ```text
//!   checkpoint --> piece --> piece --> ... --> checkpoint
//!   everything     its engine merges and      what was freed may be
//!   is in pages    packs some hundred pages   reused and given back
//! ```
//!
//! Engines compact a quiet keyspace by themselves where it pays. A caller of these methods wants
//! all of it compacted now. Nothing is held between two pieces, so a checkpoint, a drop or a close
//! waits for one piece at most.
//!
//! **Invariant**: a compaction changes no record and no answer, whenever it ends or fails.

use std::ops::{Bound, ControlFlow};

use spinney_base::Result;

use crate::database::go_on;
use crate::keyspace::Keyspace;
use crate::range::KeyRange;

/// Progress of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactProgress {
    /// Bytes of pages processed so far.
    pub bytes: u64,
    /// Bytes of pages in the range when the compaction began. Writes in between change it.
    pub bytes_expected: u64,
}

/// Result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactReport {
    /// Bytes of pages processed.
    pub bytes: u64,
    /// Bytes of disk space that the keyspace's file took before, for all its keys.
    pub bytes_before: u64,
    /// Bytes of disk space that it takes now, including pages that a reader or snapshot still
    /// holds. Free pages have gone back to the file system if it supports holes.
    pub bytes_after: u64,
}

impl Keyspace {
    /// Compacts the keyspace: frees the space of removed and overwritten records, and merges what
    /// is pending in memory and buffers into pages that are as full as possible. Reads and writes
    /// continue meanwhile.
    ///
    /// A quiet keyspace does this by itself where it pays. Call this only where space or ranges
    /// cannot wait. It writes at most as many bytes as the records take, and needs free space for a
    /// few pieces of the file.
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
    /// `Full`, `Io`, `Corruption` naming a page, `Poisoned` or `Closed`. The records are as they
    /// were.
    pub fn compact(&self) -> Result<CompactReport> {
        self.compact_range(..)
    }

    /// Compacts the records of a range. See [`Keyspace::compact`].
    ///
    /// # Errors
    /// As [`Keyspace::compact`].
    pub fn compact_range(&self, range: impl KeyRange) -> Result<CompactReport> {
        self.compact_with(range, |_| ControlFlow::Continue(()))
    }

    /// Compacts the records of a range, and calls `progress` after every piece; `Break` ends the
    /// compaction. `progress` runs on this thread while no lock is held, and may use the database.
    ///
    /// # Errors
    /// As [`Keyspace::compact`]; `Cancelled` when `progress` ended it. What was compacted stays
    /// compacted.
    pub fn compact_with(
        &self,
        range: impl KeyRange,
        mut progress: impl FnMut(CompactProgress) -> ControlFlow<()>,
    ) -> Result<CompactReport> {
        let state = &self.handle.state;
        state.life.check_writable()?;
        let keyspace = self.enter()?.pin();
        let from = match range.lower() {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        let upper = range.upper();
        let bytes_before = self.bytes_in_use();
        // Everything written before is in pages after this, where the engine finds it.
        state.checkpoint()?;
        let engine = &keyspace.engine;
        let bytes_expected = engine.compact_bytes(&from, upper);
        let mut bytes = 0;
        let mut next = Some(from);
        while let Some(from) = next {
            let piece = {
                // A drop or a close waits for the piece, which then finds the keyspace gone.
                let _no_change = state.checkpoints.hold();
                state.life.check_writable()?;
                keyspace.check_alive()?;
                engine.compact(&from, upper).inspect_err(|error| state.note(error))?
            };
            bytes += piece.bytes;
            next = piece.next;
            go_on(progress(CompactProgress { bytes, bytes_expected }), "the compaction")?;
            state.runtime.help();
        }
        // After this, pages that the pieces freed may be reused.
        state.checkpoint()?;
        engine.values().store().give_all_back()?;
        Ok(CompactReport { bytes, bytes_before, bytes_after: self.bytes_in_use() })
    }

    /// Bytes of disk space that the file takes.
    fn bytes_in_use(&self) -> u64 {
        let stats = self.stats();
        stats.file_bytes.saturating_sub(stats.hole_bytes)
    }
}
