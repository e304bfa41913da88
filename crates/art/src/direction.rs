//! The two ways through the keys, and what is ahead in each.

use std::cmp::Ordering;
use std::ops::Bound;

use crate::layout::{FIRST, LAST, Position};

/// Which way to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To greater keys.
    Forward,
    /// To lesser keys.
    Backward,
}

impl Direction {
    /// The position from which a whole node lies ahead.
    pub(crate) fn start(self) -> Position {
        match self {
            Direction::Forward => FIRST,
            Direction::Backward => LAST,
        }
    }

    /// The position after this one.
    pub(crate) fn after(self, position: Position) -> Position {
        match self {
            Direction::Forward => position + 1,
            Direction::Backward => position - 1,
        }
    }

    /// The other way.
    pub(crate) fn back(self) -> Direction {
        match self {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        }
    }

    /// Whether a position comes before another.
    pub(crate) fn is_before(self, position: Position, other: Position) -> bool {
        other.cmp(&position) == self.ahead()
    }

    /// How a key compares to one that lies ahead of it.
    pub(crate) fn ahead(self) -> Ordering {
        match self {
            Direction::Forward => Ordering::Greater,
            Direction::Backward => Ordering::Less,
        }
    }

    /// Whether `key` lies past the end of a range.
    pub(crate) fn is_past(self, key: &[u8], end: Bound<&[u8]>) -> bool {
        match end {
            Bound::Unbounded => false,
            Bound::Included(end) => key.cmp(end) == self.ahead(),
            Bound::Excluded(end) => key.cmp(end) == self.ahead() || key == end,
        }
    }
}
