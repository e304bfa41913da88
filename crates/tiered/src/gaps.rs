//! Short ranges in memory: runs of records that lie together are kept singly, with gap bits between them.
//!
//! ```text
//!  request  ["cat:", "cat;")                 tier:   cat:(absent) = cat:1 = cat:2 = cat;(absent)   dog:9
//!  1st time: the tree is read                        "=" no cold record lies between
//!  then:     the tier alone answers
//! ```
//!
//! A gap bit says that the tree has no record between two of the tier (rule H8), so a range whose gaps are all closed
//! needs no page. A range begins and ends between records, and so do its gaps: the keys of its bounds come along,
//! as what the tree says of them, mostly *known to be absent*. Of a range without records only its bounds do. Ranges of
//! more than [`RUN_MAX`] records, or of more than about a page, promote nothing: as pages they take less memory.
//!
//! Everything enters under the moment of the one leaf of the tier that was looked at before the tree was read, and under
//! one latch: all of it, or nothing where there is no room, for a range that is there in part costs its page, too.
//! A range that is read again counts as a use of its bounds, so they stay as long as its records do.

use std::ops::Bound;

use spinney_base::ValueRef;
use spinney_engine::{Chunk, Direction, Resident, ScanRequest};
use spinney_hot::{Piece, RECORD_BYTES_MAX, Record, Refused};
use spinney_sync::hash_key;

use crate::engine::Tiered;

/// Most records of a range that promotes them.
const RUN_MAX: usize = 16;

/// The first records of a piece that need no look at the tree.
pub(crate) struct Covered<'a> {
    pub(crate) records: Vec<Record<'a>>,
    /// How many of the piece's it took, with the one that ends the range.
    pub(crate) used: usize,
    /// Where the range continues; `None` at its end.
    pub(crate) next: Option<Bound<Vec<u8>>>,
}

/// Finds out how far the tier alone answers an ascending range from `near` on.
pub(crate) fn covered<'a>(
    piece: &'a Piece,
    near: &Bound<Vec<u8>>,
    request: &ScanRequest<'_>,
) -> Covered<'a> {
    let mut is_closed = piece.starts_gap;
    let mut found = Covered { records: Vec::new(), used: 0, next: Some(near.clone()) };
    for record in piece.records.iter() {
        let is_first = found.records.is_empty()
            && matches!(near, Bound::Included(key) if key[..] == *record.key);
        if !is_closed && !is_first {
            return found;
        }
        found.used += 1;
        if request.is_past_upper(record.key) {
            found.next = None;
            return found;
        }
        found.records.push(record);
        found.next = Some(Bound::Excluded(record.key.to_vec()));
        is_closed = record.ends_gap;
    }
    if is_closed {
        found.next = piece
            .upper
            .as_ref()
            .filter(|upper| !request.is_past_upper(upper))
            .map(|upper| Bound::Included(upper.clone()));
    }
    found
}

/// What was read of the tree, of a range that ascends.
pub(crate) struct ReadRun<'a> {
    /// Where it began.
    pub(crate) near: &'a Bound<Vec<u8>>,
    /// Bounds of what was asked for.
    pub(crate) asked: ScanRequest<'a>,
    /// Where the tree stopped; `None` at the end of what was asked for.
    pub(crate) told: Option<&'a Bound<Vec<u8>>>,
    pub(crate) cold: &'a Chunk,
}

impl Tiered {
    /// Whether a range that was read may promote its records. Of one without any, bounds are promoted.
    pub(crate) fn is_run(&self, request: &ScanRequest<'_>, cold: &Chunk) -> bool {
        self.promotes()
            && request.direction == Direction::Forward
            && !request.keys_only
            && cold.len() <= RUN_MAX
    }

    /// Promotes all that a short range has read of the tree, or nothing, and closes the gaps between.
    pub(crate) fn promote_run(&self, piece: &Piece, read: &ReadRun<'_>) {
        let Some(seen) = piece.seen else { return };
        let has = |key: &[u8]| piece.records.iter().any(|record| record.key == key);
        let mut records = Vec::with_capacity(RUN_MAX + 2);
        // The begin itself, where it is no record.
        let first = (!read.cold.is_empty()).then(|| read.cold.get(0).0);
        if let Bound::Included(key) = read.near
            && first != Some(&key[..])
            && !key.is_empty()
            && is_short(key)
        {
            records.push((&key[..], None));
        }
        for index in 0..read.cold.len() {
            let (key, value) = read.cold.get(index);
            records.push((key, Some(value)));
        }
        let mut bound = Vec::new();
        let end = match (read.told, read.asked.upper) {
            (Some(Bound::Included(key)), _) => Some(key.clone()),
            (Some(Bound::Excluded(key)), _) => Some([&key[..], &[0]].concat()),
            (None, Bound::Included(key)) => Some([key, &[0]].concat()),
            (None, Bound::Excluded(key)) => {
                let is_in_leaf = piece.upper.as_ref().is_none_or(|upper| key < &upper[..]);
                if is_in_leaf && is_short(key) && !has(key) {
                    records.extend(self.told_of(key, &mut bound).map(|value| (key, value)));
                }
                Some(key.to_vec())
            }
            (Some(Bound::Unbounded), _) | (None, Bound::Unbounded) => piece.upper.clone(),
        };
        if let Some((new, _)) = records.iter().find(|(key, _)| !has(key))
            && !self.admits(hash_key(self.context.keyspace, first.unwrap_or(new)))
        {
            return;
        }
        let begin = read.near.as_ref().map(Vec::as_slice);
        match self.hot.admit_run(&records, (begin, end.as_deref()), seen) {
            Ok(entered) => self.images.count_promoted(entered),
            Err(Refused::Full) => self.refuse(),
            Err(Refused::Changed | Refused::Long) => {}
        }
    }

    /// What the tree says of a key, if its page is in memory.
    fn told_of<'b>(&self, key: &[u8], bytes: &'b mut Vec<u8>) -> Option<Option<ValueRef<'b>>> {
        let found = self.tree()?.get_resident(key, bytes);
        match found {
            Resident::Absent => Some(None),
            Resident::Present => Some(Some(ValueRef { bytes, large: false })),
            Resident::Large => Some(Some(ValueRef { bytes, large: true })),
            Resident::Unknown => None,
        }
    }
}

/// Whether the tier may have a record of this key without a value.
fn is_short(key: &[u8]) -> bool {
    key.len() <= RECORD_BYTES_MAX / 2
}
