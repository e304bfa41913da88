//! Types for the ids that cross crates, so that they cannot be mixed up.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// Log sequence number: the position of a record in the order of the one log. The first record
    /// of a database has 1; 0 means "before everything".
    Lsn(u64)
}
id! {
    /// Number of a life of the log: every opening of a database starts a new epoch, from 1 (rule
    /// P8).
    Epoch(u32)
}
id! {
    /// Number of a keyspace in its database, from 1; never reused.
    KeyspaceId(u32)
}
id! {
    /// Number of a 4 KiB page in a store file. Its byte offset is the number times
    /// [`PAGE_BYTES`](crate::limits::PAGE_BYTES).
    PageNumber(u32)
}
id! {
    /// Number of the allocation that made a page, counted per keyspace from 1. A page whose
    /// generation is not the one its owner recorded is stale or misdirected.
    Generation(u32)
}

impl Lsn {
    /// The LSN before everything; no record has it.
    pub const ZERO: Lsn = Lsn(0);
    /// The LSN after everything.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Returns the LSN after this one.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

impl PageNumber {
    /// No page: the slots of a store file occupy pages 0 and 1, so page 0 never holds data.
    pub const NONE: PageNumber = PageNumber(0);

    /// Returns the offset of the page in its file, in bytes.
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.0) * crate::limits::PAGE_BYTES as u64
    }
}
