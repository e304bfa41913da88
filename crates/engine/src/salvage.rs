//! An engine's part in a salvage: what the pages of a keyspace's file alone tell (rule P22).

use std::fmt::Debug;

use spinney_base::{Lsn, Result, ValueRef};
use spinney_extent::Store;

use crate::scrub::DamagedPage;

/// Keys from one on and before another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LostRange {
    /// The first key.
    pub lower: Vec<u8>,
    /// The first key behind it; `None` for no end.
    pub upper: Option<Vec<u8>>,
}

/// Keys from one on and before another, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The first key.
    pub lower: &'a [u8],
    /// The first key behind it; `None` for no end.
    pub upper: Option<&'a [u8]>,
}

impl<'a> Span<'a> {
    /// All keys.
    pub const ALL: Span<'static> = Span { lower: b"", upper: None };

    /// What both have; `None` if that is nothing.
    #[must_use]
    pub fn meet(self, lower: &'a [u8], upper: Option<&'a [u8]>) -> Option<Span<'a>> {
        let lower = self.lower.max(lower);
        let upper = match (self.upper, upper) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        upper.is_none_or(|upper| lower < upper).then_some(Span { lower, upper })
    }

    /// A copy.
    #[must_use]
    pub fn to_range(self) -> LostRange {
        LostRange { lower: self.lower.to_vec(), upper: self.upper.map(<[u8]>::to_vec) }
    }
}

impl LostRange {
    /// The same, borrowed.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        Span { lower: &self.lower, upper: self.upper.as_deref() }
    }
}

/// What a salvage of one file met beside records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageFindings {
    /// Why the newest checkpoint cannot be read, if it cannot.
    pub checkpoint: Option<String>,
    /// Pages that are damaged and may have held records, or led to some.
    pub damaged: Vec<DamagedPage>,
    /// Ranges whose pages are gone: their records, if there were any, are lost.
    pub lost: Vec<LostRange>,
    /// Ranges whose newest pages are gone: their records are older ones.
    pub older: Vec<LostRange>,
}

/// Takes a key and what it has: a value, the pointer to one in extents of this store, or nothing any
/// more.
pub type Show<'a> = dyn FnMut(&Store, &[u8], Option<ValueRef<'_>>) -> Result<()> + 'a;

/// A keyspace's file that is being salvaged. Nothing is written to it.
pub trait KeyspaceSalvage: Debug {
    /// Takes in a structure record of this keyspace, in the order of the log.
    fn follow(&mut self, _payload: &[u8]) {}

    /// Says that the log is whole and holds the records from `first` to `last`, and that all
    /// structure records in it were followed.
    fn end_of_log(&mut self, first: Lsn, last: Lsn);

    /// Reads what has to be known before records are shown. What the log says was told before.
    ///
    /// # Errors
    /// `Io` when the file's length cannot be told; damage is none.
    fn read_pages(&mut self) -> Result<()>;

    /// Shows what can be saved, in no order of keys. What is shown of a key later takes the place of
    /// what was shown before.
    ///
    /// # Errors
    /// What `show` answers, which ends it.
    fn records(&mut self, show: &mut Show<'_>) -> Result<()>;

    /// Records of the log above this LSN are newer than what was shown, if that is known.
    fn redo(&self) -> Option<Lsn>;

    /// What was met so far; ranges are known once the records were shown.
    fn findings(&self) -> &SalvageFindings;

    /// Where the large values lie.
    fn store(&self) -> &Store;
}
