//! Ranges from either end, leaf by leaf.
//!
//! A scan continues by key, from the bound of the leaf that it read: what lies behind may have moved meanwhile
//! (rule H4). It holds nothing between two leaves. A leaf that is not in memory is read together with those that follow it.

use std::ops::{Bound, Range};

use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Direction, ScanRequest, overlay};
use spinney_leaf::Leaf;

use crate::btree::descend::Toward;
use crate::btree::tree::BTree;
use crate::pages::LARGE;

impl BTree {
    /// Appends records of a range to the chunk, as an engine does.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.scan_part(request, request, chunk)
    }

    /// As [`BTree::scan`], for a request that is a part of a `range`, of which more is asked for next.
    ///
    /// # Errors
    /// As [`BTree::scan`].
    pub fn scan_part(
        &self,
        request: &ScanRequest<'_>,
        range: &ScanRequest<'_>,
        chunk: &mut Chunk,
    ) -> Result<()> {
        let is_forward = request.direction == Direction::Forward;
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let mut near = owned(if is_forward { request.lower } else { request.upper });
        let (mut key, mut passed) = (Vec::new(), Vec::new());
        loop {
            let bound = near.as_ref().map(Vec::as_slice);
            let (lower, upper) =
                if is_forward { (bound, request.upper) } else { (request.lower, bound) };
            let part = ScanRequest { lower, upper, ..*request };
            let at = match (is_forward, bound) {
                (true, Bound::Unbounded) => Toward::Key(&[]),
                (true, Bound::Excluded(key)) | (_, Bound::Included(key)) => Toward::Key(key),
                (false, Bound::Excluded(key)) => Toward::Below(key),
                (false, Bound::Unbounded) => Toward::End,
            };
            let node = match self.find(at) {
                Some(node) => node,
                None => {
                    let records = request.records_wanted.min(request.records_max);
                    self.read_range_ahead(at, records.saturating_sub(chunk.len()), range);
                    self.descend_to(at, 0)?.expect("every tree has leaves")
                }
            };
            let (leaf, before) = (node.leaf(), chunk.len());
            passed.clear();
            let is_end = if is_forward {
                !leaf.upper(&mut passed)
            } else {
                leaf.lower(&mut passed);
                passed.is_empty()
            };
            let is_stopped = take(leaf, &part, chunk, &mut key);
            if !self.pages.is_valid(node.look.sight()) {
                chunk.truncate(before);
                continue;
            }
            self.note_records(leaf.len());
            if is_stopped {
                return Ok(());
            }
            let is_past = match is_forward {
                true => part.is_past_upper(&passed),
                false => is_not_above(&part, &passed),
            };
            if is_end || is_past {
                chunk.finished = true;
                return Ok(());
            }
            let bound = std::mem::take(&mut passed);
            near = if is_forward { Bound::Included(bound) } else { Bound::Excluded(bound) };
            if overlay::is_full(request, chunk) {
                chunk.resume = Some(near);
                return Ok(());
            }
        }
    }
}

impl BTree {
    /// Notes the number of records of a leaf, unless it is about what was noted.
    fn note_records(&self, count: usize) {
        let noted = self.leaf_records.load(Relaxed);
        if count > noted * 2 || count * 2 < noted {
            self.leaf_records.store(count, Relaxed);
        }
    }
}

/// Whether nothing of a range lies below a key.
pub(crate) fn is_not_above(request: &ScanRequest<'_>, key: &[u8]) -> bool {
    match request.lower {
        Bound::Included(lower) | Bound::Excluded(lower) => key <= lower,
        Bound::Unbounded => false,
    }
}

/// Appends what a leaf has of a range. Returns whether it stopped because the chunk has what is wanted.
fn take(leaf: Leaf<'_>, request: &ScanRequest<'_>, chunk: &mut Chunk, key: &mut Vec<u8>) -> bool {
    let places = places(leaf, request);
    let (mut value, count) = (Vec::new(), places.len());
    for step in 0..count {
        let index = match request.direction {
            Direction::Forward => places.start + step,
            Direction::Reverse => places.end - 1 - step,
        };
        if overlay::is_full(request, chunk) {
            return true;
        }
        let slot = leaf.slot(index);
        key.clear();
        leaf.key(slot, key);
        value.clear();
        if !request.keys_only {
            leaf.value(slot, &mut value);
        }
        let large = slot.is(LARGE) && !request.keys_only;
        chunk.push(&[key], ValueRef { bytes: &value, large });
    }
    false
}

/// Places of the records of a leaf that lie in a range. What a race has made is cut to what there is.
fn places(leaf: Leaf<'_>, request: &ScanRequest<'_>) -> Range<usize> {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    leaf.lower(&mut lower);
    let has_upper = leaf.upper(&mut upper);
    // A key outside of the leaf's bounds may not begin as its keys do.
    let at = |key: &[u8], after: bool| {
        if key < &lower[..] {
            return 0;
        }
        if has_upper && key >= &upper[..] {
            return leaf.len();
        }
        match leaf.search(key) {
            Ok(index) => index + usize::from(after),
            Err(index) => index,
        }
    };
    let start = match request.lower {
        Bound::Included(key) => at(key, false),
        Bound::Excluded(key) => at(key, true),
        Bound::Unbounded => 0,
    };
    let end = match request.upper {
        Bound::Included(key) => at(key, true),
        Bound::Excluded(key) => at(key, false),
        Bound::Unbounded => leaf.len(),
    };
    start.min(end)..end
}
