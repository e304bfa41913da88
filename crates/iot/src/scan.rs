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

use std::ops::{Bound, Range};

use spinney_base::Result;
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

/// Records whose data is fetched ahead of the one that is copied: they lie in no order. With more, those that are fetched
/// first may be gone again; with fewer, each is waited for.
const FETCHED_AHEAD: usize = 8;

/// Sees the newest values.
#[derive(Debug)]
struct Newest;

impl Eyes for Newest {
    #[inline]
    fn see(&mut self, _: Leaf<'_>, _: usize, data: Data) -> See {
        if data.is_absent() { See::Absent } else { See::Newest }
    }
}

/// Buffers for a leaf.
#[derive(Debug, Default)]
struct Scratch {
    lower: Vec<u8>,
    upper: Vec<u8>,
    prefix: Vec<u8>,
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
        if is_empty(request.lower, request.upper) {
            chunk.finished = true;
            return Ok(());
        }
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

/// Whether no key lies between bounds, for the lower one is above the upper one.
fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    use Bound::{Excluded, Included, Unbounded};
    match (lower, upper) {
        (Unbounded, _) | (_, Unbounded) => false,
        (Included(first) | Excluded(first), Included(last) | Excluded(last)) => first > last,
    }
}

/// Returns the index of the first record behind a bound.
pub(crate) fn behind(leaf: Leaf<'_>, lower: Bound<&[u8]>) -> usize {
    match lower {
        Bound::Included(key) => leaf.search(key).unwrap_or_else(|at| at),
        Bound::Excluded(key) => leaf.search(key).map_or_else(|at| at, |at| at + 1),
        Bound::Unbounded => 0,
    }
}

/// Returns how many records lie before a bound.
fn before(leaf: Leaf<'_>, upper: Bound<&[u8]>) -> usize {
    match upper {
        Bound::Included(key) => leaf.search(key).map_or_else(|at| at, |at| at + 1),
        Bound::Excluded(key) => leaf.search(key).unwrap_or_else(|at| at),
        Bound::Unbounded => leaf.len(),
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
    scratch.upper.clear();
    let has_upper = leaf.upper(&mut scratch.upper);
    let upper = &scratch.upper[..];
    // Whether the range ends before the leaf does.
    let is_last = match request.upper {
        Bound::Included(last) => has_upper && upper > last,
        Bound::Excluded(end) => has_upper && upper >= end,
        Bound::Unbounded => false,
    };
    let end = if is_last || !has_upper { before(leaf, request.upper) } else { leaf.len() };
    let some = behind(leaf, from)..end;
    match copy(leaf, (some, Direction::Forward), (request, eyes), &mut scratch.prefix, chunk) {
        Some(came) => came,
        None if is_last || !has_upper => Came::End,
        None => Came::On(upper.to_vec()),
    }
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
    scratch.lower.clear();
    leaf.lower(&mut scratch.lower);
    scratch.upper.clear();
    let has_upper = leaf.upper(&mut scratch.upper);
    let (lower, upper) = (&scratch.lower[..], &scratch.upper[..]);
    // A bound behind the leaf's keys shares less with them than they do among each other.
    let end = match to {
        Bound::Included(key) | Bound::Excluded(key)
            if !has_upper || (lower <= key && key < upper) =>
        {
            before(leaf, to)
        }
        _ => leaf.len(),
    };
    let is_last = lower.is_empty()
        || match request.lower {
            Bound::Included(first) => lower <= first,
            Bound::Excluded(below) => lower <= below,
            Bound::Unbounded => false,
        };
    let first = if is_last { behind(leaf, request.lower) } else { 0 };
    let some = first..end;
    match copy(leaf, (some, Direction::Reverse), (request, eyes), &mut scratch.prefix, chunk) {
        Some(came) => came,
        None if is_last => Came::End,
        None => Came::On(lower.to_vec()),
    }
}

/// Appends records of a leaf. `None` when all of them were looked at.
fn copy(
    leaf: Leaf<'_>,
    (some, direction): (Range<usize>, Direction),
    (request, eyes): (&ScanRequest<'_>, &mut impl Eyes),
    prefix: &mut Vec<u8>,
    chunk: &mut Chunk,
) -> Option<Came> {
    prefix.clear();
    leaf.prefix(prefix);
    let count = some.len();
    let index_of = |number: usize| match direction {
        Direction::Forward => some.start + number,
        Direction::Reverse => some.start + (count - 1 - number),
    };
    let ahead = request.records_wanted.min(FETCHED_AHEAD);
    (0..ahead.min(count)).for_each(|number| leaf.fetch_data(index_of(number)));
    for number in 0..count {
        if overlay::is_full(request, chunk) {
            return Some(Came::Full);
        }
        if number + ahead < count {
            leaf.fetch_data(index_of(number + ahead));
        }
        let index = index_of(number);
        let data = leaf.data(index);
        let see = eyes.see(leaf, index, data);
        let key = |out: &mut Vec<u8>| {
            out.extend_from_slice(prefix);
            leaf.suffix(index, out);
        };
        match see {
            See::Absent | See::Older(None) => {}
            See::Wait => return Some(Came::Wait),
            _ if request.keys_only => chunk.push_by(key, |_| {}, false),
            See::Newest => chunk.push_by(key, |out| leaf.value(data, out), data.is_large()),
            See::Older(Some(older)) => {
                chunk.push_by(key, |out| out.extend_from_slice(&older.bytes), older.large);
            }
        }
    }
    None
}
