//! What a dirty list is made of.

use crate::segment::{SEGMENT_ORDER_MAX, Segment};
use spinney_records::RecordId;

/// An entry of a dirty list: the id of a record, and in the high bits which page of the segment its
/// key belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Listed(u32);

const _: () = assert!(1 << (u32::BITS - RecordId::BITS) == 1 << SEGMENT_ORDER_MAX);

impl Listed {
    pub(super) fn new(lower: &[u8], segment: &Segment, key: &[u8], id: RecordId) -> Self {
        let page = u32::try_from(segment.page_of(lower, key)).expect("of at most 16 pages");
        Listed(page << RecordId::BITS | id.0)
    }

    pub(crate) fn id(self) -> RecordId {
        RecordId(self.0 & ((1 << RecordId::BITS) - 1))
    }

    pub(super) fn page(self) -> usize {
        (self.0 >> RecordId::BITS) as usize
    }
}
