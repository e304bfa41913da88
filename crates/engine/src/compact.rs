//! An engine's part in compaction: a range of keys, a piece at a time.

/// Result of one piece of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of the pages that its records took before, whether they were rewritten or not.
    pub bytes: u64,
    /// Key at which the next piece begins; `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}
