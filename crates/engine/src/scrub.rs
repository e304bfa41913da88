//! An engine's part in the scrub: reading what is owned, a little at a time, for damage that nobody
//! has met.

use std::path::PathBuf;

/// What a piece of a scrub saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Pages read and checked.
    pub pages: u64,
    /// What was damaged among them.
    pub damaged: Vec<DamagedPage>,
    /// Where the next piece begins, for the engine alone to understand; `None` when everything was
    /// seen.
    pub next: Option<Vec<u8>>,
}

/// A page that does not read as what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPage {
    /// Its file.
    pub file: PathBuf,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// What was expected and found, or what the system answered.
    pub what: String,
}
