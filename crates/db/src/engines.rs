//! The registry of engines: one row each. Everything in this crate and above it that depends on the
//! kind of an engine asks the row; nothing else names an engine.
//!
//! To add an engine, add a row to [`engines!`] below; `docs/adding-an-engine.md` says what it needs.

use std::fmt;
use std::str::FromStr;

use spinney_base::{Error, Result};
use spinney_engine::{BlockKind, Row};
use spinney_io::Purpose;

macro_rules! engines {
    ($($(#[$doc:meta])* $kind:ident = $row:expr,)+) => {
        /// Which engine keeps a keyspace.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum EngineKind {
            $($(#[$doc])* $kind,)+
        }

        impl EngineKind {
            /// All engines, in the order of their numbers in the manifest.
            pub const ALL: [EngineKind; ROWS.len()] = [$(EngineKind::$kind,)+];

            /// What is known of the engine.
            #[doc(hidden)]
            #[must_use]
            pub fn row(self) -> &'static Row {
                match self {
                    $(EngineKind::$kind => {
                        const ROW: &Row = &$row;
                        ROW
                    })+
                }
            }
        }

        const ROWS: &[Row] = &[$($row,)+];
    };
}

engines! {
    /// Update in place under a record cache: skewed reads and updates of data larger than memory.
    #[default]
    TreeLine = spinney_treeline::ROW,
    /// Batches that gather in memory over trees that are never changed in place: writes of data
    /// larger than memory, short ranges, snapshots.
    Turtle = spinney_turtle::ROW,
    /// Single records in memory over a B+tree of pages in the same order, which are written to new places: data
    /// much larger than memory, of which not even an index fits; short ranges of neighbours; large loads.
    TwoBTree = spinney_tiered::ROW,
    /// All records in memory, in leaves that are searched without a latch: tables that fit into memory and are written
    /// by many short transactions.
    Iot = spinney_iot::ROW,
}

impl EngineKind {
    /// The name that options and output use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The engine of a number in the manifest.
    pub(crate) fn of_number(number: u8) -> Option<EngineKind> {
        EngineKind::ALL.into_iter().find(|kind| kind.row().number == number)
    }

    /// The engine that writes blocks of a kind.
    pub(crate) fn of_block(block: BlockKind) -> Option<EngineKind> {
        EngineKind::ALL.into_iter().find(|kind| kind.row().blocks.contains(&block))
    }
}

/// What I/O is counted for: the purposes that all engines share, and those of each.
#[doc(hidden)]
pub fn purposes() -> impl Iterator<Item = Purpose> {
    let own = EngineKind::ALL.into_iter().flat_map(|kind| kind.row().purposes.iter().copied());
    Purpose::SHARED.into_iter().chain(own)
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        EngineKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<_> = EngineKind::ALL.iter().map(|kind| kind.name()).collect();
            Error::invalid(format!("{text:?} is not an engine; there are {}", names.join(", ")))
        })
    }
}

/// No two rows share a number, and the numbers ascend.
const _: () = {
    let mut at = 0;
    while at < ROWS.len() {
        assert!(ROWS[at].number > if at == 0 { 0 } else { ROWS[at - 1].number });
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_told_apart() {
        let mut names = BTreeSet::new();
        let mut blocks = Vec::new();
        for row in ROWS {
            assert!(names.insert(row.name), "two engines are called {}", row.name);
            for block in row.blocks {
                assert!(!blocks.contains(block), "{block:?} is of two engines");
                blocks.push(*block);
            }
            assert!(!row.blocks.is_empty(), "{}: nothing tells whose a file is", row.name);
        }
    }

    #[test]
    fn purposes_are_told_apart() {
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for purpose in purposes() {
            assert!(numbers.insert(purpose.index()), "{purpose:?} has another's number");
            assert!(names.insert(purpose.name()), "two purposes are called {purpose:?}");
        }
    }

    #[test]
    fn names_and_numbers_lead_back() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.name().parse::<EngineKind>().unwrap(), kind);
            assert_eq!(EngineKind::of_number(kind.row().number), Some(kind));
            assert_eq!(EngineKind::of_block(kind.row().blocks[0]), Some(kind));
        }
        assert_eq!(EngineKind::of_number(0), None);
        let error = "rocksdb".parse::<EngineKind>().unwrap_err();
        assert!(error.to_string().contains("treeline, turtle"), "{error}");
    }
}
