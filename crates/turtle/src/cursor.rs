//! Reading a tree in order.
//!
//! ```text
//!   window: the range of one leaf         streams, newest first      order
//!   root  [.......|########|....]  -->    level 1 of the root        the stream with the next key
//!            node [..|####|..]     -->    level 2 of the root        first, among equals the newest
//!               leaf |####|        -->    levels of the node
//!                                         the leaf
//! ```
//!
//! A cursor reads one leaf's range after the other, merged with what the buffers on the path to the
//! leaf hold for the range. In a window each level is a stream of the few parts that can have live
//! edits there; what flushed edits a segment still holds lie outside of what the stream reads. A
//! part is opened when the stream comes to it, keys are compared by their heads first, and values
//! are read only of what is delivered.
//!
//! **Invariants**
//! 1. Among equal keys the stream of the newest level is first in the order; the others are passed
//!    over with it, and so are tombstones.
//! 2. A window's streams deliver no key outside of the window, so each key has one window.
//! 3. An error of any stream is the cursor's error: what cannot be read is never taken for absent.

use std::cmp::Ordering;
use std::ops::Bound;

use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Direction, ScanRequest};

use crate::files::{Files, Passed};
use crate::levels::{Key, pivot_of};
use crate::node::{Child, Node};
use crate::policy::EXPECTED_RECORDS_MAX;
use crate::range::KeyRange;
use crate::stream::Stream;
use crate::tree::Tree;

/// A place in a tree, or beyond the end of a range of it.
#[derive(Debug)]
pub(crate) struct Cursor<'a, F: Files> {
    tree: &'a Tree<F>,
    files: &'a F,
    direction: Direction,
    /// What lies behind this window.
    rest: Option<KeyRange<'a>>,
    /// Of this window, newest first.
    streams: Vec<Stream<'a, F>>,
    /// Streams that have a key, by it; among equals by age.
    order: Vec<usize>,
    /// About how many more records will be asked for; zero if that is not known.
    expected: usize,
    passed: Passed,
}

impl<F: Files> Drop for Cursor<'_, F> {
    fn drop(&mut self) {
        self.files.passed(self.passed);
    }
}

impl<F: Files> Tree<F> {
    /// A cursor at the first record of a range in a direction.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn cursor<'a>(
        &'a self,
        files: &'a F,
        lower: Bound<&'a [u8]>,
        upper: Bound<&'a [u8]>,
        direction: Direction,
    ) -> Result<Cursor<'a, F>> {
        self.cursor_of(files, lower, upper, direction, 0)
    }

    /// A cursor whose caller will ask for about `expected` records.
    fn cursor_of<'a>(
        &'a self,
        files: &'a F,
        lower: Bound<&'a [u8]>,
        upper: Bound<&'a [u8]>,
        direction: Direction,
        expected: usize,
    ) -> Result<Cursor<'a, F>> {
        let rest = Some(KeyRange { lower, upper }).filter(|range| !range.is_empty());
        let (streams, order) = (Vec::new(), Vec::new());
        let passed = Passed::default();
        let mut cursor =
            Cursor { tree: self, files, direction, rest, streams, order, expected, passed };
        cursor.settle()?;
        Ok(cursor)
    }

    /// Appends records of a range to the chunk until it has what was asked for; see
    /// [`ScanRequest`].
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn scan(
        &self,
        files: &F,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let wanted = request.records_wanted.min(request.records_max).max(1);
        let (lower, upper) = (request.lower, request.upper);
        // What is expected is read ahead: values.
        let expected = if request.keys_only { 0 } else { wanted };
        let mut cursor = self.cursor_of(files, lower, upper, request.direction, expected)?;
        loop {
            let record = if request.keys_only {
                cursor.key().map(|key| (key, ValueRef::EMPTY))
            } else {
                cursor.record()?
            };
            let Some((key, value)) = record else { break };
            chunk.push(&[key], value);
            // What lies behind the last record that is wanted is not looked for: it may cost I/O.
            if chunk.len() >= wanted || chunk.bytes() >= request.bytes_max {
                return Ok(());
            }
            if chunk.len() == 1 {
                let most = request.bytes_max / chunk.bytes().max(1);
                chunk.expect((wanted - 1).min(EXPECTED_RECORDS_MAX).min(most));
            }
            cursor.expected = cursor.expected.saturating_sub(1);
            cursor.advance()?;
        }
        chunk.finished = true;
        Ok(())
    }
}

impl<'a, F: Files> Cursor<'a, F> {
    /// The key at the place; `None` beyond the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.streams[*self.order.first()?].key()
    }

    /// The record at the place; `None` beyond the end.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of the value.
    pub(crate) fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>> {
        match self.order.first() {
            Some(first) => self.streams[*first].record(),
            None => Ok(None),
        }
    }

    /// Goes to the next record.
    ///
    /// # Errors
    /// `Corruption` or `Io`; the cursor is of no use any more.
    pub(crate) fn advance(&mut self) -> Result<()> {
        self.pass()?;
        self.settle()
    }

    /// Passes over the key at the place, in all streams.
    fn pass(&mut self) -> Result<()> {
        let Some((first, others)) = self.order.split_first() else { return Ok(()) };
        let first = &self.streams[*first];
        let same = |stream: &&usize| self.streams[**stream].compare(first) == Ordering::Equal;
        let equals = others.iter().take_while(same).count();
        self.passed.edits += 1 + equals as u64;
        for _ in 0..=equals {
            let stream = self.order.remove(0);
            self.streams[stream].advance(self.files, self.direction)?;
            self.insert(stream);
        }
        Ok(())
    }

    /// Puts a stream in its place in the order, if it has a key.
    fn insert(&mut self, number: usize) {
        let stream = &self.streams[number];
        if stream.key().is_none() {
            return;
        }
        let behind = |other: &&usize| {
            let order = stream.compare(&self.streams[**other]);
            let order = if self.direction == Direction::Reverse { order.reverse() } else { order };
            order.then(number.cmp(other)) == Ordering::Greater
        };
        let at = self.order.iter().take_while(behind).count();
        self.order.insert(at, number);
    }

    /// Advances to a record that is there: over tombstones, into the next window.
    fn settle(&mut self) -> Result<()> {
        loop {
            match self.order.first() {
                Some(first) if self.streams[*first].is_tombstone() => {
                    self.passed.tombstones += 1;
                    self.pass()?;
                }
                Some(_) => return Ok(()),
                None => match self.rest.take() {
                    Some(rest) => self.open_window(rest)?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// Opens the window at the near end of a range.
    fn open_window(&mut self, range: KeyRange<'a>) -> Result<()> {
        self.streams.clear();
        let Some(root) = &self.tree.root else { return Ok(()) };
        let mut path: Vec<(&'a Node<F>, usize)> = Vec::new();
        let mut edge: Option<&'a Key> = None;
        let mut child = root;
        while let Child::Node(node) = child {
            let pivot = near_pivot(&node.keys, &range, self.direction);
            let far = match self.direction {
                Direction::Forward => node.keys.get(pivot + 1),
                Direction::Reverse => node.keys.get(pivot).filter(|_| pivot > 0),
            };
            edge = far.or(edge);
            path.push((node, pivot));
            child = &node.children[pivot];
        }
        let (window, rest) = match edge {
            Some(edge) => range.cut(edge, self.direction),
            None => (range, None),
        };
        self.rest = rest;
        // What is pending right above the leaf delivers its part of the records.
        let pending = path.last().map_or(0, |(node, pivot)| node.pending[*pivot]);
        let levels: usize = path.iter().map(|(node, _)| node.levels.len()).sum();
        self.streams.reserve_exact(levels + 1);
        for (node, pivot) in path {
            for level in &node.levels {
                let stream = Stream::of_level(level, &node.keys, pivot, window, self.direction);
                self.streams.extend(stream);
            }
        }
        let mut of_leaf = 0;
        if let Child::Leaf(leaf) = child {
            self.streams.push(Stream::of_leaf(leaf, window, self.direction));
            let held = leaf.bytes(self.files);
            of_leaf = (self.expected as u64).saturating_mul(held) / (held + pending).max(1);
        }
        let on_disk = self.streams.iter().filter(|stream| stream.is_on_disk()).count();
        self.files.looks_beside(on_disk.saturating_sub(1));
        for number in 0..self.streams.len() {
            self.streams[number].open(self.files, self.direction)?;
            self.insert(number);
        }
        if self.expected > 0 {
            self.expect(of_leaf as usize);
        }
        Ok(())
    }

    /// Reads what the streams will deliver beside this many records of the leaf, together.
    fn expect(&mut self, of_leaf: usize) {
        let Some((leaf, above)) = self.streams.split_last_mut() else { return };
        let Some(last) = leaf.expect(of_leaf) else { return };
        above.iter_mut().for_each(|stream| stream.expect_up_to(&last));
        let cursors: Vec<&F::Cursor<'a>> = self.streams.iter().filter_map(Stream::cursor).collect();
        if cursors.len() > 1 {
            self.files.bring_in(&cursors);
        }
    }
}

/// The pivot that holds the near end of a range.
fn near_pivot(keys: &[Key], range: &KeyRange<'_>, direction: Direction) -> usize {
    match (direction, range.lower, range.upper) {
        (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => pivot_of(keys, key),
        (Direction::Forward, Bound::Unbounded, _) => 0,
        (Direction::Reverse, _, Bound::Included(key)) => pivot_of(keys, key),
        (Direction::Reverse, _, Bound::Excluded(key)) => {
            keys[1..].partition_point(|lower| lower[..] < key[..])
        }
        (Direction::Reverse, _, Bound::Unbounded) => keys.len() - 1,
    }
}
