//! Ranges, in both directions: leaf by leaf, each as of one moment.
//!
//! ```text
//!   forward    from cat:   [ant .. (cat .. cow] [dog .. yak]    the next piece begins at the upper bound
//!   reverse    to dog:     [ant .. bee] [cat .. cow) dog        the next piece ends below the lower bound
//! ```
//!
//! A reader holds nothing between leaves (rule P24). What is split or joined meanwhile is found by its bounds, so no key
//! is missed that was there throughout.

use std::ops::Bound;

use spinney_base::ValueRef;
use spinney_engine::{Chunk, Direction, ScanRequest, overlay};

use crate::leaf::Leaf;
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
        match request.direction {
            Direction::Forward => self.scan_forward(request, chunk),
            Direction::Reverse => self.scan_reverse(request, chunk),
        }
    }

    fn scan_forward(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) {
        let mut scratch = Scratch::default();
        let mut from: Bound<Vec<u8>> = request.lower.map(<[u8]>::to_vec);
        loop {
            let key: &[u8] = match &from {
                Bound::Included(key) | Bound::Excluded(key) => key,
                Bound::Unbounded => &[],
            };
            let before = chunk.len();
            let came = self.read(
                |index| index.floor_value(key),
                |leaf| {
                    chunk.truncate(before);
                    forward(leaf, from.as_ref().map(Vec::as_slice), request, &mut scratch, chunk)
                },
            );
            match came.unwrap_or(Came::End) {
                Came::End => return chunk.finished = true,
                Came::Full => return,
                Came::On(upper) => from = Bound::Included(upper),
            }
        }
    }

    fn scan_reverse(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) {
        let mut scratch = Scratch::default();
        let mut to: Bound<Vec<u8>> = request.upper.map(<[u8]>::to_vec);
        loop {
            let before = chunk.len();
            let came = self.read(
                |index| Tree::before(index, to.as_ref().map(Vec::as_slice)),
                |leaf| {
                    chunk.truncate(before);
                    reverse(leaf, to.as_ref().map(Vec::as_slice), request, &mut scratch, chunk)
                },
            );
            match came.unwrap_or(Came::End) {
                Came::End => return chunk.finished = true,
                Came::Full => return,
                Came::On(lower) => to = Bound::Excluded(lower),
            }
        }
    }
}

/// Appends what a leaf has from a bound on. The caller validates it.
fn forward(
    leaf: Leaf<'_>,
    from: Bound<&[u8]>,
    request: &ScanRequest<'_>,
    scratch: &mut Scratch,
    chunk: &mut Chunk,
) -> Came {
    let first = match from {
        Bound::Included(key) => leaf.search(key).unwrap_or_else(|at| at),
        Bound::Excluded(key) => leaf.search(key).map_or_else(|at| at, |at| at + 1),
        Bound::Unbounded => 0,
    };
    for index in (first..leaf.len()).filter(|index| !leaf.data(*index).is_absent()) {
        scratch.key.clear();
        leaf.key(index, &mut scratch.key);
        if request.is_past_upper(&scratch.key) {
            return Came::End;
        }
        if overlay::is_full(request, chunk) {
            return Came::Full;
        }
        push(leaf, index, request, scratch, chunk);
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
    request: &ScanRequest<'_>,
    scratch: &mut Scratch,
    chunk: &mut Chunk,
) -> Came {
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
    let present = (0..end.min(leaf.len())).rev().filter(|index| !leaf.data(*index).is_absent());
    for index in present {
        scratch.key.clear();
        leaf.key(index, &mut scratch.key);
        if is_before(&scratch.key) {
            return Came::End;
        }
        if overlay::is_full(request, chunk) {
            return Came::Full;
        }
        push(leaf, index, request, scratch, chunk);
    }
    if lower.is_empty() || is_before(&lower) { Came::End } else { Came::On(lower) }
}

fn push(
    leaf: Leaf<'_>,
    index: usize,
    request: &ScanRequest<'_>,
    scratch: &mut Scratch,
    chunk: &mut Chunk,
) {
    let data = leaf.data(index);
    scratch.value.clear();
    if !request.keys_only {
        leaf.value(data, &mut scratch.value);
    }
    let value = ValueRef { bytes: &scratch.value, large: data.is_large() };
    chunk.push(&[&scratch.key], request.delivered(value));
}
