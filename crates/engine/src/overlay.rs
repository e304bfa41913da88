//! Laying newer or older edits over a piece of a range.
//!
//! An engine reads a piece from where it keeps most records, and lays over it what other places know of
//! the same keys: memtables over a tree, or pre-images of a snapshot over what updates in place. Both
//! go through a range piece by piece:
//!
//! ```text
//!   near |-- piece --| beyond ................. far
//!        |  edits    |                              of the piece's part only, laid over it in order
//! ```

use std::cmp::Ordering;
use std::ops::Bound;

use spinney_base::ValueRef;

use crate::{Chunk, Direction, ScanRequest};

/// Edits of a part of a range, in the direction of the request, each key once.
pub trait Edits {
    /// Returns the next edit: a key and its value, or `None` where it has none.
    fn peek(&mut self) -> Option<(&[u8], Option<ValueRef<'_>>)>;

    /// Passes over the next edit.
    fn advance(&mut self);
}

/// Returns whether the chunk has what the request wants.
#[must_use]
pub fn is_full(request: &ScanRequest<'_>, chunk: &Chunk) -> bool {
    chunk.len() >= request.records_wanted.max(1).min(request.records_max.max(1))
        || (!chunk.is_empty() && chunk.bytes() >= request.bytes_max)
}

/// Returns where the part of a range begins that `piece` does not tell of, and takes that note from
/// it. `None` when the piece tells of all.
pub fn beyond(piece: &mut Chunk) -> Option<Bound<Vec<u8>>> {
    let resume = piece.resume.take();
    if std::mem::take(&mut piece.finished) {
        return None;
    }
    let last = piece.len().checked_sub(1).map(|last| piece.get(last).0);
    resume.or(last.map(|key| Bound::Excluded(key.to_vec())))
}

/// Returns the end of what lies before a bound at which a range continues.
#[must_use]
pub fn before(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Appends what is left of a piece when edits are laid over it. Returns whether the piece came to its
/// end. If not, the chunk says where it continues.
pub fn lay(
    edits: &mut impl Edits,
    piece: &Chunk,
    request: &ScanRequest<'_>,
    chunk: &mut Chunk,
) -> bool {
    let mut at = 0;
    loop {
        let under = (at < piece.len()).then(|| piece.get(at));
        let edit = edits.peek();
        let order = match (&edit, &under) {
            (None, None) => return true,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((edited, _)), Some((key, _))) => match request.direction {
                Direction::Forward => (*edited).cmp(key),
                Direction::Reverse => (*key).cmp(edited),
            },
        };
        if is_full(request, chunk) {
            // Everything before this key was looked at, and the chunk has a record.
            let next = edit.filter(|_| order != Ordering::Greater).map(|edit| edit.0);
            let next = next.or(under.map(|(key, _)| key)).unwrap_or_default();
            chunk.resume = Some(Bound::Included(next.to_vec()));
            return false;
        }
        let (key, value) = match (order, edit, under) {
            (Ordering::Greater, _, Some((key, value))) => (key, Some(value)),
            (_, Some(edit), _) => edit,
            _ => return true,
        };
        if let Some(value) = value {
            chunk.push(&[key], request.delivered(value));
        }
        at += usize::from(order != Ordering::Less);
        if order != Ordering::Greater {
            edits.advance();
        }
    }
}
