//! Which segments there are, from the newest checkpoint and the structure records of a whole log,
//! as recovery would find out.
//!
//! **Invariant**: records are followed by their numbers, without gaps, and each must fit what is
//! there; after one that does not, nothing is known.

use std::collections::BTreeMap;

use spinney_base::Result;

use crate::codec::{Segments, decode_change, decode_large};
use crate::segment::{Change, Segment};

#[derive(Debug, Default)]
pub(super) struct Structure {
    segments: BTreeMap<Vec<u8>, Segment>,
    /// Number of the last change.
    sequence: u64,
    is_lost: bool,
}

impl Structure {
    /// What a checkpoint says, which is the state after change number `sequence`.
    pub(super) fn new(segments: &Segments, sequence: u64) -> Structure {
        let mut segments: BTreeMap<_, _> = segments.iter().cloned().collect();
        if segments.is_empty() {
            segments.insert(Vec::new(), Segment::virtual_one());
        }
        Structure { segments, sequence, is_lost: false }
    }

    /// Takes in the next structure record of the keyspace.
    pub(super) fn follow(&mut self, payload: &[u8]) {
        let followed = self.is_lost || self.try_to_follow(payload).unwrap_or(false);
        self.is_lost |= !followed;
    }

    fn try_to_follow(&mut self, payload: &[u8]) -> Result<bool> {
        if decode_large(payload)?.is_some() {
            return Ok(true);
        }
        let (Change { before, after }, sequence) = decode_change(payload)?;
        if sequence <= self.sequence {
            return Ok(true);
        }
        let fits = before.iter().all(|(lower, gone)| self.segments.get(lower) == Some(gone));
        if sequence != self.sequence + 1 || !fits {
            return Ok(false);
        }
        before.iter().for_each(|(lower, _)| _ = self.segments.remove(lower));
        self.segments.extend(after);
        self.sequence = sequence;
        Ok(true)
    }

    /// All segments in the end, if the log was `whole`.
    pub(super) fn end(self, whole: bool) -> Option<Segments> {
        (whole && !self.is_lost).then(|| self.segments.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::encode_change;
    use crate::segment::PageRef;
    use spinney_base::{Generation, PageNumber};

    fn segment(page: u32) -> Segment {
        let base = PageRef { page: PageNumber(page), generation: Generation(page) };
        Segment::new(base, 0, None)
    }

    fn at(lower: &str, page: u32) -> (Vec<u8>, Segment) {
        (lower.as_bytes().to_vec(), segment(page))
    }

    #[test]
    fn changes_are_followed_in_order_and_without_gaps() {
        let first =
            Change { before: vec![(vec![], Segment::virtual_one())], after: vec![at("", 1)] };
        let second = Change { before: vec![at("", 1)], after: vec![at("", 2), at("m", 3)] };
        let third = Change { before: vec![at("m", 3)], after: vec![at("m", 4)] };
        let all = [(&first, 1), (&second, 2), (&third, 3)];
        let all = all.map(|(change, sequence)| encode_change(change, sequence));
        let ends = |from: u64, segments: Segments, records: &[&Vec<u8>]| {
            let mut structure = Structure::new(&segments, from);
            records.iter().for_each(|record| structure.follow(record));
            structure.end(true)
        };
        let [one, two, three] = &all;
        let end = Some(vec![at("", 2), at("m", 4)]);
        assert_eq!(ends(0, vec![], &[one, two, three]), end);
        // What the checkpoint knows is passed over.
        assert_eq!(ends(1, vec![at("", 1)], &[one, two, three]), end);
        assert_eq!(ends(0, vec![], &[]), Some(vec![(vec![], Segment::virtual_one())]));
        assert_eq!(ends(0, vec![], &[one, three]), None);
        assert_eq!(ends(1, vec![at("", 9)], &[two]), None, "not what was there");
        assert_eq!(ends(0, vec![], &[&vec![9, 9, 9], one]), None);
    }
}
