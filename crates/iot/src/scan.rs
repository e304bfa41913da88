//! Ranges, in both directions: leaf by leaf, each as of one moment.
//!
//! ```text
//!   forward    from cat:   [ant .. (cat .. cow] [dog .. yak]    the next piece begins at the upper bound
//!   reverse    to dog:     [ant .. bee] [cat .. cow) dog        the next piece ends below the lower bound
//! ```
//!
//! A reader holds nothing between leaves (rule P24). What is split or joined meanwhile is found by its bounds, so no key
//! is missed that was there throughout. What it sees of a record its [`Eyes`] say: the newest value, or the one at a begin
//! stamp.

use std::ops::Bound;

use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Direction, OwnedValue, ScanRequest, overlay};

use crate::leaf::{Data, Leaf};
use crate::tree::Tree;

/// What a piece has come to.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    /// The range has ended.
    End,
    /// The chunk is full.
    Full,
    /// The range continues behind this bound of the leaf.
    On(Vec<u8>),
    /// Nowhere: a commit has to end before the leaf can be read.
    Wait,
}

/// What a reader sees of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum See {
    /// Nothing.
    Absent,
    /// What is in the leaf.
    Newest,
    /// What was there before.
    Older(Option<OwnedValue>),
    /// That is not known yet.
    Wait,
}

/// How a reader sees. Its caller validates what it says.
pub(crate) trait Eyes {
    /// Comes to a leaf.
    fn enter(&mut self, _leaf: Leaf<'_>) {}
    /// Looks at a record.
    fn see(&mut self, leaf: Leaf<'_>, index: usize, data: Data) -> See;
    /// Waits for a commit.
    ///
    /// # Errors
    /// `Conflict` when the reader was ended.
    fn wait(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Sees the newest values.
#[derive(Debug)]
struct Newest;

impl Eyes for Newest {
    #[inline]
    fn see(&mut self, _: Leaf<'_>, _: usize, data: Data) -> See {
        if data.is_absent() { See::Absent } else { See::Newest }
    }
}

/// Buffers for a record.
#[derive(Debug, Default)]
struct Scratch {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Tree {
    /// Appends records of a range to the chunk until it is full, or the range ends.
    pub(crate) fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) {
        self.scan_by(request, &mut Newest, chunk).expect("it waits for nobody");
    }

    /// Does the same with what a reader sees.
    ///
    /// # Errors
    /// `Conflict` when it was ended.
    pub(crate) fn scan_by(
        &self,
        request: &ScanRequest<'_>,
        eyes: &mut impl Eyes,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let (mut scratch, direction) = (Scratch::default(), request.direction);
        let end = match direction {
            Direction::Forward => request.lower,
            Direction::Reverse => request.upper,
        };
        let mut at: Bound<Vec<u8>> = end.map(<[u8]>::to_vec);
        loop {
            let (before, bound) = (chunk.len(), at.as_ref().map(Vec::as_slice));
            let came = self.read(
                |index| match (direction, bound) {
                    (Direction::Reverse, _) => index.before(bound),
                    (_, Bound::Included(key) | Bound::Excluded(key)) => index.floor(key),
                    (_, Bound::Unbounded) => index.floor(&[]),
                },
                |leaf| {
                    chunk.truncate(before);
                    let reader = (request, &mut *eyes);
                    match direction {
                        Direction::Forward => forward(leaf, bound, reader, &mut scratch, chunk),
                        Direction::Reverse => reverse(leaf, bound, reader, &mut scratch, chunk),
                    }
                },
            );
            match came.unwrap_or(Came::End) {
                Came::End => {
                    chunk.finished = true;
                    return Ok(());
                }
                Came::Full => return Ok(()),
                Came::Wait => {
                    chunk.truncate(before);
                    eyes.wait()?;
                }
                Came::On(edge) => {
                    at = match direction {
                        Direction::Forward => Bound::Included(edge),
                        Direction::Reverse => Bound::Excluded(edge),
                    }
                }
            }
        }
    }
}

/// Appends what a leaf has from a bound on. The caller validates it.
fn forward(
    leaf: Leaf<'_>,
    from: Bound<&[u8]>,
    (request, eyes): (&ScanRequest<'_>, &mut impl Eyes),
    scratch: &mut Scratch,
    chunk: &mut Chunk,
) -> Came {
    eyes.enter(leaf);
    let first = match from {
        Bound::Included(key) => leaf.search(key).unwrap_or_else(|at| at),
        Bound::Excluded(key) => leaf.search(key).map_or_else(|at| at, |at| at + 1),
        Bound::Unbounded => 0,
    };
    for index in first..leaf.len() {
        scratch.key.clear();
        leaf.key(index, &mut scratch.key);
        if request.is_past_upper(&scratch.key) {
            return Came::End;
        }
        if overlay::is_full(request, chunk) {
            return Came::Full;
        }
        let data = leaf.data(index);
        match eyes.see(leaf, index, data) {
            See::Absent | See::Older(None) => {}
            See::Wait => return Came::Wait,
            see => push((leaf, data, see), request, scratch, chunk),
        }
    }
    let mut upper = Vec::new();
    let is_past = |upper: &[u8]| match request.upper {
        Bound::Included(last) => upper > last,
        Bound::Excluded(end) => upper >= end,
        Bound::Unbounded => false,
    };
    if !leaf.upper(&mut upper) || is_past(&upper) { Came::End } else { Came::On(upper) }
}

/// Appends what a leaf has below a bound. The caller validates it.
fn reverse(
    leaf: Leaf<'_>,
    to: Bound<&[u8]>,
    (request, eyes): (&ScanRequest<'_>, &mut impl Eyes),
    scratch: &mut Scratch,
    chunk: &mut Chunk,
) -> Came {
    eyes.enter(leaf);
    let mut lower = Vec::new();
    leaf.lower(&mut lower);
    // A bound behind the leaf's keys shares less with them than they do among each other.
    let mut upper = Vec::new();
    let is_within = |key: &[u8], upper: &[u8]| key >= &lower[..] && key < upper;
    let has_upper = leaf.upper(&mut upper);
    let is_inside = |key: &[u8]| !has_upper || is_within(key, &upper);
    let end = match to {
        Bound::Included(key) if is_inside(key) => {
            leaf.search(key).map_or_else(|at| at, |at| at + 1)
        }
        Bound::Excluded(key) if is_inside(key) => leaf.search(key).unwrap_or_else(|at| at),
        _ => leaf.len(),
    };
    let is_before = |key: &[u8]| match request.lower {
        Bound::Included(first) => key < first,
        Bound::Excluded(below) => key <= below,
        Bound::Unbounded => false,
    };
    for index in (0..end.min(leaf.len())).rev() {
        scratch.key.clear();
        leaf.key(index, &mut scratch.key);
        if is_before(&scratch.key) {
            return Came::End;
        }
        if overlay::is_full(request, chunk) {
            return Came::Full;
        }
        let data = leaf.data(index);
        match eyes.see(leaf, index, data) {
            See::Absent | See::Older(None) => {}
            See::Wait => return Came::Wait,
            see => push((leaf, data, see), request, scratch, chunk),
        }
    }
    if lower.is_empty() || is_before(&lower) { Came::End } else { Came::On(lower) }
}

fn push(
    (leaf, data, see): (Leaf<'_>, Data, See),
    request: &ScanRequest<'_>,
    scratch: &mut Scratch,
    chunk: &mut Chunk,
) {
    if let See::Older(Some(older)) = see {
        let bytes = if request.keys_only { &[][..] } else { &older.bytes };
        let value = ValueRef { bytes, large: older.large };
        return chunk.push(&[&scratch.key], request.delivered(value));
    }
    scratch.value.clear();
    if !request.keys_only {
        leaf.value(data, &mut scratch.value);
    }
    let value = ValueRef { bytes: &scratch.value, large: data.is_large() };
    chunk.push(&[&scratch.key], request.delivered(value));
}
