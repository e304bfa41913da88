//! Ranges over both tiers: the records of the tier are laid over what the tree has, piece by piece.
//!
//! Of each piece the tier is looked at first, and then the tree (rule H4): a record that leaves the tier
//! meanwhile is in its leaf by then.

use std::ops::Bound;

use spinney_base::{Result, ValueRef};
use spinney_engine::overlay::{self, Edits};
use spinney_engine::{Chunk, Direction, ScanRequest};
use spinney_hot::Direction::{Backward, Forward};
use spinney_hot::{Piece, Record};

use crate::engine::Tiered;
use crate::gaps::{ReadRun, covered};

/// Records of the tier that are laid over a piece, in the direction of the request.
struct OfTier<'a> {
    records: Vec<Record<'a>>,
    at: usize,
}

impl Edits for OfTier<'_> {
    fn peek(&mut self) -> Option<(&[u8], Option<ValueRef<'_>>)> {
        self.records.get(self.at).map(|record| (record.key, record.value))
    }

    fn advance(&mut self) {
        self.at += 1;
    }
}

/// Tells of a key whether a dirty record of it is passed over.
type Hidden<'h> = dyn Fn(&[u8]) -> bool + 'h;

/// The bound from which the tier looks on; `None` for the end of all keys.
fn from(near: &Bound<Vec<u8>>, is_forward: bool) -> Option<Vec<u8>> {
    match near {
        Bound::Unbounded => None,
        Bound::Included(key) if is_forward => Some(key.clone()),
        Bound::Excluded(key) if !is_forward => Some(key.clone()),
        // The first key above it.
        Bound::Included(key) | Bound::Excluded(key) => Some([key, &[0][..]].concat()),
    }
}

impl Tiered {
    /// Scans both tiers, past dirty records of the tier whose keys are `hidden`.
    pub(crate) fn scan_both(
        &self,
        request: &ScanRequest<'_>,
        hidden: Option<&Hidden<'_>>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let is_hidden = |key: &[u8]| hidden.is_some_and(|hidden| hidden(key));
        let is_forward = request.direction == Direction::Forward;
        let direction = if is_forward { Forward } else { Backward };
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let mut near = owned(if is_forward { request.lower } else { request.upper });
        let (mut piece, mut cold) = (Piece::default(), Chunk::default());
        let most = request.records_wanted.clamp(1, request.records_max.max(1)).saturating_add(64);
        loop {
            let (start, left) = (from(&near, is_forward), self.left_tree());
            let part = (start.as_deref(), key_of(request.upper));
            self.hot.range_to(part, direction, most, &mut piece);
            self.note_removals(&piece);
            if is_forward && hidden.is_none() && self.chosen.tuning.keeps_records() {
                match self.answer_alone(&piece, &mut near, request, chunk) {
                    Alone::All => return Ok(()),
                    Alone::Some => continue,
                    Alone::Nothing => {}
                }
            }
            // Before the tree is read: what is hidden by then lies in its page (S12).
            let mut shown: Vec<Record<'_>> =
                piece.records.iter().filter(|one| !(one.is_dirty && is_hidden(one.key))).collect();
            // How far the tier's piece goes.
            let end = match is_forward {
                true => piece.upper.clone().map(Bound::Excluded),
                false => (!piece.lower.is_empty()).then(|| Bound::Included(piece.lower.clone())),
            };
            let (part, is_clipped) = clipped(request, &near, end.as_ref(), is_forward);
            let clipped =
                ScanRequest { lower: bounds(&part).0, upper: bounds(&part).1, ..*request };
            cold.clear();
            match self.tree() {
                Some(tree) if !is_empty(&clipped) => {
                    tree.scan_part(&clipped, request, &mut cold)?
                }
                _ => cold.finished = true,
            }
            if self.left_tree() != left {
                // What has left the tree meanwhile may be in neither (rule H21).
                continue;
            }
            let told = overlay::beyond(&mut cold);
            let covers =
                |key: &[u8]| clipped.contains(key) && is_told(told.as_ref(), key, is_forward);
            shown.retain(|record| covers(record.key));
            if !is_forward {
                shown.reverse();
            }
            if hidden.is_none() && self.is_run(request, &cold) {
                let read =
                    ReadRun { near: &near, asked: clipped, told: told.as_ref(), cold: &cold };
                self.promote_run(&piece, &read);
            }
            if !overlay::lay(&mut OfTier { records: shown, at: 0 }, &cold, request, chunk) {
                return Ok(());
            }
            near = match (told, end) {
                (Some(bound), _) => bound,
                (None, Some(Bound::Excluded(key))) if is_clipped => Bound::Included(key),
                (None, Some(Bound::Included(key))) if is_clipped => Bound::Excluded(key),
                _ => {
                    chunk.finished = true;
                    return Ok(());
                }
            };
            if overlay::is_full(request, chunk) {
                chunk.resume = Some(near);
                return Ok(());
            }
        }
    }
}

/// Returns the key of a bound, if it has one.
fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn bounds(of: &OwnedBounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (of.0.as_ref().map(Vec::as_slice), of.1.as_ref().map(Vec::as_slice))
}

/// How far the tier has answered a range without the tree.
enum Alone {
    All,
    Some,
    Nothing,
}

/// Whether the tree has told of a key, which has gone as far as `told`.
fn is_told(told: Option<&Bound<Vec<u8>>>, key: &[u8], is_forward: bool) -> bool {
    match told {
        None | Some(Bound::Unbounded) => true,
        Some(Bound::Included(next)) if is_forward => key < &next[..],
        Some(Bound::Included(next)) => key > &next[..],
        Some(Bound::Excluded(next)) if is_forward => key <= &next[..],
        Some(Bound::Excluded(next)) => key >= &next[..],
    }
}

/// Removals of a piece from which on they are merged for the sake of ranges. With fewer, each costs a merge; with
/// more, the first record of a queue costs all of them.
const REMOVALS_MAX: usize = 32;

impl Tiered {
    /// Appends what the tier alone knows of an ascending range, and moves `near` behind that.
    fn answer_alone(
        &self,
        piece: &Piece,
        near: &mut Bound<Vec<u8>>,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> Alone {
        let covered = covered(piece, near, request);
        let count = covered.records.len();
        if count == 0 && covered.next.as_ref() == Some(near) {
            return Alone::Nothing;
        }
        self.hot.touch(piece, spinney_hot::Direction::Forward, covered.used);
        let mut records = OfTier { records: covered.records, at: 0 };
        if !overlay::lay(&mut records, &Chunk::default(), request, chunk) {
            return Alone::All;
        }
        let Some(next) = covered.next else {
            chunk.finished = true;
            return Alone::All;
        };
        *near = next;
        if overlay::is_full(request, chunk) {
            chunk.resume = Some(near.clone());
            return Alone::All;
        }
        Alone::Some
    }

    /// Notes where a piece of the tier has many removals that are to be merged.
    fn note_removals(&self, piece: &Piece) {
        let mut removed = piece.records.iter().filter(|one| one.is_dirty && one.value.is_none());
        if let Some(record) = removed.nth(REMOVALS_MAX) {
            self.met_removals(record.key);
        }
    }
}

/// The part of a range from `near` on that the tier's piece covers, and whether the range goes on behind it.
fn clipped(
    request: &ScanRequest<'_>,
    near: &Bound<Vec<u8>>,
    end: Option<&Bound<Vec<u8>>>,
    is_forward: bool,
) -> (OwnedBounds, bool) {
    let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
    let far = owned(if is_forward { request.upper } else { request.lower });
    let is_before = |end: &Bound<Vec<u8>>| match (end, &far) {
        (_, Bound::Unbounded) => true,
        // Forward: the piece ends before this key.
        (Bound::Excluded(end), Bound::Included(far)) => end <= far,
        (Bound::Excluded(end), Bound::Excluded(far)) => end < far,
        // Backward: it has this key, and what lies below does not belong to it.
        (Bound::Included(end), Bound::Included(far) | Bound::Excluded(far)) => end > far,
        (Bound::Unbounded, _) => false,
    };
    let cut = end.filter(|end| is_before(end));
    let (is_clipped, far) = (cut.is_some(), cut.cloned().unwrap_or(far));
    let both = if is_forward { (near.clone(), far) } else { (far, near.clone()) };
    (both, is_clipped)
}

/// Whether no key lies between the bounds.
fn is_empty(request: &ScanRequest<'_>) -> bool {
    match (request.lower, request.upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
        _ => false,
    }
}
