//! An engine's part in a salvage: what the pages of a keyspace's file hold by themselves (rule
//! P22).

use std::fmt::Debug;

use spinney_base::{Lsn, Result, ValueRef};
use spinney_extent::Store;

use crate::scrub::DamagedPage;

/// Range of keys from `lower` up to `upper`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LostRange {
    /// First key of the range.
    pub lower: Vec<u8>,
    /// First key after the range; `None` for no end.
    pub upper: Option<Vec<u8>>,
}

/// Borrowed range of keys.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// First key of the range.
    pub lower: &'a [u8],
    /// First key after the range; `None` for no end.
    pub upper: Option<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// The range of all keys.
    pub const ALL: Span<'static> = Span { lower: b"", upper: None };

    /// Returns the intersection; `None` if it is empty.
    #[must_use]
    pub fn meet(self, lower: &'a [u8], upper: Option<&'a [u8]>) -> Option<Span<'a>> {
        let lower = self.lower.max(lower);
        let upper = match (self.upper, upper) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        upper.is_none_or(|upper| lower < upper).then_some(Span { lower, upper })
    }

    /// Returns an owned copy.
    #[must_use]
    pub fn to_range(self) -> LostRange {
        LostRange { lower: self.lower.to_vec(), upper: self.upper.map(<[u8]>::to_vec) }
    }
}

impl LostRange {
    /// Borrows the range.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        Span { lower: &self.lower, upper: self.upper.as_deref() }
    }
}

/// What the salvage of one file found beside records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageFindings {
    /// Why the newest checkpoint cannot be read, if so.
    pub checkpoint: Option<String>,
    /// Damaged pages that may have held records, or led to some.
    pub damaged: Vec<DamagedPage>,
    /// Ranges whose pages are lost, with all records in them.
    pub lost: Vec<LostRange>,
    /// Ranges whose newest pages are lost: records there are older versions.
    pub older: Vec<LostRange>,
}

/// Takes a key and its content: a value, the pointer to a large value in this store, or `None` for
/// a removed key.
pub type Show<'a> = dyn FnMut(&Store, &[u8], Option<ValueRef<'_>>) -> Result<()> + 'a;

/// A keyspace's file that is being salvaged. Nothing is written to it.
pub trait KeyspaceSalvage: Debug {
    /// Follows a structure record of this keyspace, in the order of the log.
    fn follow(&mut self, _payload: &[u8]) {}

    /// Notes that the log is whole and holds the records from `first` to `last`, and that all
    /// structure records in it were followed.
    fn end_of_log(&mut self, first: Lsn, last: Lsn);

    /// Reads what must be known before records are shown. The log was followed before.
    ///
    /// # Errors
    /// `Io` when the length of the file cannot be read. Damage is no error.
    fn read_pages(&mut self) -> Result<()>;

    /// Shows all records that can be saved, in no order of keys. A later record of a key replaces
    /// an earlier one.
    ///
    /// # Errors
    /// Errors of `show`, which end it.
    fn records(&mut self, show: &mut Show<'_>) -> Result<()>;

    /// Returns the LSN above which records of the log are newer than what was shown, if it is
    /// known.
    fn redo(&self) -> Option<Lsn>;

    /// Returns the findings so far; ranges are known once the records were shown.
    fn findings(&self) -> &SalvageFindings;

    /// Returns the store that holds the large values.
    fn store(&self) -> &Store;
}
