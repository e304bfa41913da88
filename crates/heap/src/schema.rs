//! Columns of a table, and how they are grouped.
//!
//! ```text
//!   columns     a (4)  b (100)  c (8)  d (100)
//!   row         [a b c d]                        one group of all columns
//!   column      [a] [b] [c] [d]                  one group for each column
//!   row+column  [a b] [c] [d]                    the first half together, the others alone
//! ```
//!
//! Columns of a group lie side by side without padding, and a row of a group takes whole words: two
//! writers of neighbouring records never store to one word. A column of 4 bytes takes 8 in a group of
//! its own.
//!
//! **Differs from the paper**, which does not tell the groups of its row+column store. The code that
//! it was measured with puts the first hundredth of the columns together, which makes a column store
//! of every table with fewer than 200 columns.

use spinney_base::{Error, Result};
use spinney_sync::racy::WORD_BYTES;

/// Most columns of a table: a set of columns is one word.
pub const COLUMNS_MAX: usize = 64;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// Most bytes of a record. The old values of one update fit into a block of the largest size.
pub const ROW_BYTES_MAX: usize = 32 << 10;

/// A set of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns(pub u64);

impl Columns {
    /// No column.
    pub const NONE: Columns = Columns(0);

    /// The first `count` columns, at most [`COLUMNS_MAX`].
    ///
    /// ```
    /// use spinney_heap::Columns;
    /// assert_eq!(Columns::first(3), Columns(0b111));
    /// ```
    #[must_use]
    pub const fn first(count: usize) -> Columns {
        Columns(if count >= COLUMNS_MAX { u64::MAX } else { (1 << count) - 1 })
    }

    /// One column.
    #[must_use]
    pub const fn one(column: usize) -> Columns {
        Columns(1 << column)
    }

    /// Returns whether a column is in the set.
    #[inline]
    #[must_use]
    pub const fn has(self, column: usize) -> bool {
        self.0 >> column & 1 != 0
    }

    /// Returns the columns of both sets.
    #[must_use]
    pub const fn with(self, other: Columns) -> Columns {
        Columns(self.0 | other.0)
    }

    /// Numbers of the columns, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let column = left.trailing_zeros() as usize;
            let is_there = left != 0;
            left &= left.wrapping_sub(1);
            is_there.then_some(column)
        })
    }
}

/// How columns are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All columns of a record side by side.
    Row,
    /// Each column by itself.
    Column,
    /// The first half of the columns (rounded up) side by side, each other one by itself.
    RowColumn,
}

impl Layout {
    /// All layouts, in the order in which the paper names them.
    pub const ALL: [Layout; 3] = [Layout::Row, Layout::Column, Layout::RowColumn];

    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Row => "row",
            Layout::Column => "column",
            Layout::RowColumn => "row+column",
        }
    }

    /// Returns how many columns each group has.
    fn groups(self, columns: usize) -> Vec<usize> {
        let together = match self {
            Layout::Row => columns,
            Layout::Column => 0,
            Layout::RowColumn => columns.div_ceil(2),
        };
        let first = (together > 0).then_some(together);
        first.into_iter().chain(std::iter::repeat_n(1, columns - together)).collect()
    }
}

/// Where a column lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) group: usize,
    /// Bytes from the start of the group's row.
    pub(crate) offset: usize,
    pub(crate) width: usize,
}

/// A table: its longest key and the widths of its columns, all fixed.
#[derive(Clone, Debug)]
pub struct Schema {
    key_bytes: usize,
    widths: Vec<usize>,
}

impl Schema {
    /// Describes a table whose keys have at most `key_bytes` bytes.
    ///
    /// # Errors
    /// `InvalidArgument` for too many columns, a column of no width, or a record that is too long.
    pub fn new(key_bytes: usize, widths: &[usize]) -> Result<Schema> {
        if widths.len() > COLUMNS_MAX || widths.contains(&0) {
            return Err(Error::invalid("a table has at most 64 columns, each of 1 byte or more"));
        }
        if key_bytes > KEY_BYTES_MAX || widths.iter().sum::<usize>() > ROW_BYTES_MAX {
            return Err(Error::invalid("keys have at most 1 KiB, and records at most 32 KiB"));
        }
        Ok(Schema { key_bytes, widths: widths.to_vec() })
    }

    /// Returns the set of all columns.
    #[must_use]
    pub fn all(&self) -> Columns {
        Columns::first(self.widths.len())
    }

    /// Returns the bytes of some columns.
    #[inline]
    #[must_use]
    pub fn bytes_of(&self, columns: Columns) -> usize {
        if columns == self.all() {
            return self.widths.iter().sum();
        }
        columns.iter().map(|column| self.width(column)).sum()
    }

    /// Returns the width of a column.
    ///
    /// # Panics
    /// When there is no such column.
    #[inline]
    #[must_use]
    pub fn width(&self, column: usize) -> usize {
        self.widths[column]
    }

    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Returns the places of all columns, and the words of a row of each group.
    pub(crate) fn places(&self, layout: Layout) -> (Vec<Place>, Vec<usize>) {
        let (mut places, mut rows, mut next) = (Vec::new(), Vec::new(), 0);
        for (group, count) in layout.groups(self.widths.len()).into_iter().enumerate() {
            let mut offset = 0;
            for width in &self.widths[next..next + count] {
                places.push(Place { group, offset, width: *width });
                offset += width;
            }
            rows.push(offset.div_ceil(WORD_BYTES));
            next += count;
        }
        (places, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_grouped() {
        let schema = Schema::new(8, &[4, 100, 8, 100, 1]).unwrap();
        let groups = |layout| schema.places(layout).0.iter().map(|at| at.group).collect::<Vec<_>>();
        assert_eq!(groups(Layout::Row), [0; 5]);
        assert_eq!(groups(Layout::Column), [0, 1, 2, 3, 4]);
        assert_eq!(groups(Layout::RowColumn), [0, 0, 0, 1, 2]);
        let (places, rows) = schema.places(Layout::RowColumn);
        assert_eq!((places[2].offset, places[3].offset, rows), (104, 0, vec![14, 13, 1]));
        assert_eq!(schema.bytes_of(Columns(0b10101)), 13);
        assert!(Schema::new(8, &[]).unwrap().places(Layout::Row).0.is_empty());
        assert!(Schema::new(8, &[0]).is_err() && Schema::new(8, &[1; 65]).is_err());
    }
}
