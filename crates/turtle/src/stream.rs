//! One level, or a leaf, read in order within a window.
//!
//! **Invariant**: pieces come in the order of the direction and do not overlap, so a stream's keys
//! are in order too.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use spinney_base::{Result, ValueRef};
use spinney_engine::Direction;

use crate::edit::head;
use crate::files::{Files, LeafCursor};
use crate::levels::{Key, Level, Part};
use crate::node::Leaf;
use crate::range::{KeyRange, next_index};
use crate::run::Run;

/// A part that is still to be read.
#[derive(Debug)]
enum Piece<'a, F: Files> {
    /// With which of its edits may be delivered.
    Run(&'a Run, Range<usize>),
    /// With what of it may be delivered.
    Leaf(&'a Arc<F::Leaf>, KeyRange<'a>),
}

/// A part that is being read, at a key.
#[derive(Debug)]
enum Place<'a, F: Files> {
    /// At an edit, with those that may be delivered after it.
    Run(&'a Run, usize, Range<usize>),
    /// With what of it may be delivered, and the head of that range's end in the direction.
    Leaf(Box<F::Cursor<'a>>, KeyRange<'a>, u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream<'a, F: Files> {
    /// The next one is the last.
    pieces: Vec<Piece<'a, F>>,
    place: Option<Place<'a, F>>,
    /// Of the key at the place.
    head: u64,
}

impl<'a, F: Files> Stream<'a, F> {
    /// What a level has live for a pivot in a window that lies within the pivot's range, if it has
    /// anything.
    pub(crate) fn of_level(
        level: &'a Level<F>,
        keys: &[Key],
        pivot: usize,
        window: KeyRange<'a>,
        direction: Direction,
    ) -> Option<Self> {
        let mut pieces = Vec::new();
        for part in level.parts_in(keys, &window) {
            match part {
                Part::Run(run) => push_run(&mut pieces, run, &window),
                Part::Segment(segment) if segment.is_active(pivot) => {
                    let range = window.within(&segment.lower, segment.upper.as_deref());
                    if !range.is_empty() {
                        pieces.push(Piece::Leaf(&segment.leaf, range));
                    }
                }
                Part::Segment(_) => {}
            }
        }
        (!pieces.is_empty()).then(|| Self::of_pieces(pieces, direction))
    }

    /// What a leaf has in a window.
    pub(crate) fn of_leaf(leaf: &'a Leaf<F>, window: KeyRange<'a>, direction: Direction) -> Self {
        let mut pieces = Vec::new();
        match leaf {
            Leaf::Memory(runs) => {
                runs.as_slice().iter().for_each(|run| push_run(&mut pieces, run, &window));
            }
            Leaf::Written(leaf) => pieces.push(Piece::Leaf(leaf, window)),
        }
        Self::of_pieces(pieces, direction)
    }

    fn of_pieces(mut pieces: Vec<Piece<'a, F>>, direction: Direction) -> Self {
        if direction == Direction::Forward {
            pieces.reverse();
        }
        Stream { pieces, place: None, head: 0 }
    }

    /// Whether it begins with a leaf or segment on disk. Before it is opened.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.pieces.last(), Some(Piece::Leaf(..)))
    }

    /// Goes to the first key.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn open(&mut self, files: &'a F, direction: Direction) -> Result<()> {
        while self.key().is_none()
            && let Some(piece) = self.pieces.pop()
        {
            self.place = match piece {
                Piece::Run(run, mut left) => {
                    next_index(&mut left, direction).map(|at| Place::Run(run, at, left))
                }
                Piece::Leaf(leaf, range) => {
                    let cursor = files.cursor(leaf, range.near(direction), direction)?;
                    let end = range.far_head(direction);
                    Some(Place::Leaf(Box::new(cursor), range, end))
                }
            };
            self.arrive(direction);
        }
        Ok(())
    }

    /// Leaves a piece behind whose end was passed.
    fn arrive(&mut self, direction: Direction) {
        self.head = self.key().map_or(0, head);
        let Some(Place::Leaf(cursor, range, end)) = &self.place else { return };
        // Mostly the heads say it.
        let is_near = match direction {
            Direction::Forward => self.head < *end,
            Direction::Reverse => self.head > *end,
        };
        let is_past = cursor.key().is_none_or(|key| !is_near && range.is_past(key, direction));
        if is_past {
            self.place = None;
            self.head = 0;
        }
    }

    /// Announces that about this many of its records will be asked for; returns the key of the last
    /// one, if it is known.
    pub(crate) fn expect(&mut self, records: usize) -> Option<Vec<u8>> {
        match &mut self.place {
            Some(Place::Leaf(cursor, ..)) => cursor.expect(records),
            _ => None,
        }
    }

    /// Announces that about all its records up to a key will be asked for.
    pub(crate) fn expect_up_to(&mut self, key: &[u8]) {
        if let Some(Place::Leaf(cursor, ..)) = &mut self.place {
            cursor.expect_up_to(key);
        }
    }

    /// The cursor of the leaf or segment that it reads.
    pub(crate) fn cursor(&self) -> Option<&F::Cursor<'a>> {
        match &self.place {
            Some(Place::Leaf(cursor, ..)) => Some(cursor),
            _ => None,
        }
    }

    /// Goes to the next key.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn advance(&mut self, files: &'a F, direction: Direction) -> Result<()> {
        match &mut self.place {
            Some(Place::Run(_, at, left)) => match next_index(left, direction) {
                Some(next) => *at = next,
                None => self.place = None,
            },
            Some(Place::Leaf(cursor, ..)) => cursor.advance()?,
            None => {}
        }
        self.arrive(direction);
        self.open(files, direction)
    }

    /// The key at the place; `None` beyond the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self.place.as_ref()? {
            Place::Run(run, at, _) => Some(run.key(*at)),
            Place::Leaf(cursor, ..) => cursor.key(),
        }
    }

    /// Whether a tombstone is at the place.
    pub(crate) fn is_tombstone(&self) -> bool {
        match &self.place {
            Some(Place::Run(run, at, _)) => run.items()[*at].is_tombstone(),
            Some(Place::Leaf(cursor, ..)) => cursor.is_tombstone(),
            None => false,
        }
    }

    /// Key and value at the place.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of the value.
    pub(crate) fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>> {
        match &mut self.place {
            Some(Place::Run(run, at, _)) => {
                let edit = run.edit(*at);
                Ok(edit.value.map(|value| (edit.key, value)))
            }
            Some(Place::Leaf(cursor, ..)) => cursor.record(),
            None => Ok(None),
        }
    }

    /// The order of two streams' keys. Both have one.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.key().cmp(&other.key()))
    }
}

fn push_run<'a, F: Files>(pieces: &mut Vec<Piece<'a, F>>, run: &'a Run, window: &KeyRange<'_>) {
    let inside = run.within(window);
    if !inside.is_empty() {
        pieces.push(Piece::Run(run, inside));
    }
}
