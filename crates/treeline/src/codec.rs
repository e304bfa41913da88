//! The bytes that TreeLine keeps beside its data pages: checkpoint payloads and structure records.
//! All integers are little-endian.
//!
//! A **segment** (version 2): base page `u32`, base generation `u32`, order `u8` (the binary
//! logarithm of its pages, at most 4), its model if the order is above 0
//! ([`Model`](crate::model::Model), 26 bytes), number of overflow pages `u8`, then for each, in the
//! order of the pages that they belong to: index of that page `u8`, page `u32`, generation `u32`;
//! number of staged pages `u8`, then for each, oldest first: page `u32`, generation `u32`. All zero
//! (11 bytes) stands for the one segment of a keyspace that has no page yet.
//!
//! A segment of version 1, which is read and no longer written: base page `u32`, base generation
//! `u32`, overflow page `u32` (0 for none), overflow generation `u32`; it is one page.
//!
//! A **checkpoint payload**: version `u8` (2), number of segments `u64`, then for each, in
//! ascending order of lower bounds: bound length `u16`, bound, segment. The first bound is the
//! empty key. After the segments: number of live extents of large values `u64`, then each as
//! [`LargeExtent::encode`] writes it; then the same for extents whose values were superseded and
//! that may not be reused yet. Version 1 has neither. A keyspace without data has an empty payload.
//!
//! A **structure record**: version `u8` (2), kind `u8` (1: replace), sequence `u64`, number of
//! segments that go `u16`, then for each: bound length `u16`, lower bound, segment; number of
//! segments that come `u16`, then the same for each. Both are in ascending order and begin with the
//! same bound. Kind 2 (large values allocated, in a keyspace whose data is not logged) and kind 3
//! (large values that a page does not name any more): number of extents `u64`, then each as in a
//! payload; they have no sequence.
//!
//! Example: the record of the first change of a keyspace, which makes its first page 128 of
//! generation 1: `02 01  01 00 00 00 00 00 00 00  01 00  00 00  00×11  01 00  00 00  80 00 00 00 01
//! 00 00 00 00 00 00`.

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};
use spinney_extent::values::{LargeExtent, LargeList};

use crate::marks::Marks;
use crate::model::{MODEL_BYTES, Model};
use crate::segment::{Change, Overflow, PageRef, SEGMENT_ORDER_MAX, STAGED_MAX, Segment, Staged};

const VERSION: u8 = 2;
/// Read, not written: segments of one page, no large values.
const VERSION_SINGLE: u8 = 1;
const KIND_REPLACE: u8 = 1;
const KIND_ALLOCATED: u8 = 2;
const KIND_SUPERSEDED: u8 = 3;

/// Lower bounds and places, in order.
pub(crate) type Segments = Vec<(Vec<u8>, Segment)>;

/// Encodes a checkpoint payload, segment by segment in order.
#[derive(Default)]
pub(crate) struct SegmentsEncoder {
    out: Vec<u8>,
    count: u64,
}

impl SegmentsEncoder {
    pub(crate) fn push(&mut self, lower: &[u8], segment: &Segment) {
        self.begin();
        self.count += 1;
        put_bound(&mut self.out, lower);
        put_segment(&mut self.out, segment);
    }

    fn begin(&mut self) {
        if self.out.is_empty() {
            self.out.push(VERSION);
            self.out.extend_from_slice(&[0; 8]);
        }
    }

    /// The payload; empty if there were no segments and no large values.
    pub(crate) fn finish(mut self, large: &LargeList) -> Vec<u8> {
        if !large.is_empty() || self.count > 0 {
            self.begin();
            put_extents(&mut self.out, &large.live);
            put_extents(&mut self.out, &large.freed);
        }
        if let Some(count) = self.out.get_mut(1..9) {
            count.copy_from_slice(&self.count.to_le_bytes());
        }
        self.out
    }
}

/// Decodes a checkpoint payload.
///
/// # Errors
/// `Corruption` when it is not what [`SegmentsEncoder`] makes.
pub(crate) fn decode_segments(payload: &[u8]) -> Result<(Segments, LargeList)> {
    if payload.is_empty() {
        return Ok((Vec::new(), LargeList::default()));
    }
    let mut reader = Reader::new(payload)?;
    let count = reader.u64()?;
    let mut segments: Vec<(Vec<u8>, Segment)> = Vec::new();
    for _ in 0..count {
        let lower = reader.bound()?;
        let segment = reader.some_segment(&lower)?;
        let ascending = segments.last().map_or(lower.is_empty(), |(before, _)| *before < lower);
        if !ascending {
            return Err(damaged("segments in ascending order"));
        }
        segments.push((lower, segment));
    }
    let mut large = LargeList::default();
    if reader.version != VERSION_SINGLE {
        large = LargeList { live: reader.extents()?, freed: reader.extents()? };
    }
    reader.end()?;
    Ok((segments, large))
}

/// What a structure record says of extents of large values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeChange {
    /// They are owned from here on.
    Allocated,
    /// A page is about to name them no more.
    Superseded,
}

/// Encodes a structure record about large values.
pub(crate) fn encode_large(change: LargeChange, extents: &[LargeExtent]) -> Vec<u8> {
    let kind = match change {
        LargeChange::Allocated => KIND_ALLOCATED,
        LargeChange::Superseded => KIND_SUPERSEDED,
    };
    let mut out = vec![VERSION, kind];
    put_extents(&mut out, extents);
    out
}

/// Decodes a structure record if it is about large values.
///
/// # Errors
/// `Corruption` when it is not what [`encode_large`] makes.
pub(crate) fn decode_large(payload: &[u8]) -> Result<Option<(LargeChange, Vec<LargeExtent>)>> {
    let (change, left) = match payload {
        [VERSION, KIND_ALLOCATED, left @ ..] => (LargeChange::Allocated, left),
        [VERSION, KIND_SUPERSEDED, left @ ..] => (LargeChange::Superseded, left),
        _ => return Ok(None),
    };
    let mut reader = Reader { version: VERSION, left };
    let extents = reader.extents()?;
    reader.end()?;
    Ok(Some((change, extents)))
}

/// Encodes the structure record of change number `sequence`.
pub(crate) fn encode_change(change: &Change, sequence: u64) -> Vec<u8> {
    let mut out = vec![VERSION, KIND_REPLACE];
    out.extend_from_slice(&sequence.to_le_bytes());
    for segments in [&change.before, &change.after] {
        let count = u16::try_from(segments.len()).expect("a few pages make or become a few");
        out.extend_from_slice(&count.to_le_bytes());
        for (lower, segment) in segments {
            put_bound(&mut out, lower);
            put_segment(&mut out, segment);
        }
    }
    out
}

/// Decodes a structure record into the change and its number.
///
/// # Errors
/// `Corruption` when it is not what [`encode_change`] makes.
pub(crate) fn decode_change(payload: &[u8]) -> Result<(Change, u64)> {
    let mut reader = Reader::new(payload)?;
    if reader.u8()? != KIND_REPLACE {
        return Err(damaged("a structure record of kind 1"));
    }
    let sequence = reader.u64()?;
    let before = reader.segments(true)?;
    let after = reader.segments(false)?;
    reader.end()?;
    if before.first().map(|(lower, _)| lower) != after.first().map(|(lower, _)| lower) {
        return Err(damaged("segments that begin where those before began"));
    }
    Ok((Change { before, after }, sequence))
}

fn put_bound(out: &mut Vec<u8>, bound: &[u8]) {
    let length = u16::try_from(bound.len()).expect("bounds are at most as long as keys");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bound);
}

fn put_segment(out: &mut Vec<u8>, segment: &Segment) {
    put_page(out, segment.base);
    out.push(segment.order);
    out.extend(segment.model.iter().flat_map(|model| model.to_bytes()));
    out.push(u8::try_from(segment.overflows.len()).expect("at most one for each of 16 pages"));
    for overflow in &segment.overflows {
        out.push(overflow.index);
        put_page(out, overflow.at);
    }
    out.push(u8::try_from(segment.staged.len()).expect("at most STAGED_MAX"));
    segment.staged.iter().for_each(|staged| put_page(out, staged.at));
}

fn put_extents(out: &mut Vec<u8>, extents: &[LargeExtent]) {
    out.extend_from_slice(&(extents.len() as u64).to_le_bytes());
    extents.iter().for_each(|large| large.encode(out));
}

fn put_page(out: &mut Vec<u8>, page: PageRef) {
    out.extend_from_slice(&page.page.0.to_le_bytes());
    out.extend_from_slice(&page.generation.0.to_le_bytes());
}

fn damaged(expected: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("TreeLine structure: expected {expected}"))
}

struct Reader<'a> {
    version: u8,
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of what follows the version.
    fn new(payload: &'a [u8]) -> Result<Self> {
        match payload.split_first() {
            Some((&version @ (VERSION | VERSION_SINGLE), left)) => Ok(Reader { version, left }),
            _ => Err(damaged("version 1 or 2")),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, left) = self.left.split_first_chunk().ok_or_else(|| damaged("more bytes"))?;
        self.left = left;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bound(&mut self) -> Result<Vec<u8>> {
        let length = usize::from(self.u16()?);
        if length > KEY_BYTES_MAX || length > self.left.len() {
            return Err(damaged("a bound no longer than a key"));
        }
        let (bound, left) = self.left.split_at(length);
        self.left = left;
        Ok(bound.to_vec())
    }

    fn page(&mut self) -> Result<Option<PageRef>> {
        let page = PageNumber(self.u32()?);
        let generation = Generation(self.u32()?);
        Ok((page != PageNumber::NONE).then_some(PageRef { page, generation }))
    }

    fn segment(&mut self, lower: &[u8]) -> Result<Option<Segment>> {
        let base = self.page()?;
        if self.version == VERSION_SINGLE {
            let overflow = self.page()?.map(|at| Overflow { index: 0, at });
            return Ok(base.map(|base| {
                let segment = Segment::new(base, 0, None);
                overflow.iter().fold(segment, |segment, overflow| segment.with_overflow(*overflow))
            }));
        }
        let order = self.u8()?;
        if order > SEGMENT_ORDER_MAX {
            return Err(damaged("a segment of at most 16 pages"));
        }
        let model = if order == 0 { None } else { Some(self.model(lower)?) };
        let mut segment = Segment::new(base.unwrap_or(Segment::virtual_one().base), order, model);
        for _ in 0..self.u8()? {
            let index = self.u8()?;
            let at = self.page()?.ok_or_else(|| damaged("an overflow page"))?;
            let ascending = segment.overflows.last().is_none_or(|last| last.index < index);
            if !ascending || usize::from(index) >= segment.base_pages() {
                return Err(damaged("one overflow page for each page, in their order"));
            }
            segment.overflows.push(Overflow { index, at });
        }
        for _ in 0..self.u8()? {
            let at = self.page()?.ok_or_else(|| damaged("a staged page"))?;
            if segment.staged.len() == STAGED_MAX || base.is_none() {
                return Err(damaged("few staged pages, of a segment that has others"));
            }
            segment.staged.push(Staged { at, marks: Marks::ALL });
        }
        let last = u64::from(segment.base.page.0) + segment.base_pages() as u64;
        if base.is_some() && (!segment.base.page.0.is_multiple_of(1 << order) || last > 1 << 32) {
            return Err(damaged("an aligned extent"));
        }
        if base.is_none() && order > 0 {
            return Err(damaged("a base page"));
        }
        Ok(base.map(|_| segment))
    }

    fn model(&mut self, lower: &[u8]) -> Result<Model> {
        let bytes: [u8; MODEL_BYTES] = self.take()?;
        Model::from_bytes(&bytes, lower)
    }

    fn some_segment(&mut self, lower: &[u8]) -> Result<Segment> {
        self.segment(lower)?.ok_or_else(|| damaged("a base page"))
    }

    /// Segments in ascending order, at least one.
    fn segments(&mut self, may_be_virtual: bool) -> Result<Vec<(Vec<u8>, Segment)>> {
        let count = self.u16()?;
        let mut segments: Vec<(Vec<u8>, Segment)> = Vec::new();
        for _ in 0..count {
            let lower = self.bound()?;
            if segments.last().is_some_and(|(last, _)| *last >= lower) {
                return Err(damaged("segments in ascending order"));
            }
            let segment = match self.segment(&lower)? {
                None if may_be_virtual => Segment::virtual_one(),
                segment => segment.ok_or_else(|| damaged("a base page"))?,
            };
            segments.push((lower, segment));
        }
        if segments.is_empty() { Err(damaged("at least one segment")) } else { Ok(segments) }
    }

    fn extents(&mut self) -> Result<Vec<LargeExtent>> {
        let count = self.u64()?;
        let extents = LargeExtent::decode(&mut self.left, count);
        extents.ok_or_else(|| damaged("aligned extents of large values"))
    }

    fn end(&self) -> Result<()> {
        if self.left.is_empty() { Ok(()) } else { Err(damaged("no further bytes")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spinney_extent::Extent;

    fn segment(page: u32) -> Segment {
        let page_ref = |page| PageRef { page: PageNumber(page), generation: Generation(page + 1) };
        let order = u8::try_from(page % 4).unwrap();
        let model = (order > 0).then(|| Model::line(0, 77, 0.5, f64::from(page)).unwrap());
        let segment = Segment::new(page_ref(page << order), order, model);
        let overflow = |index: u8| Overflow { index, at: page_ref(page + 500 + u32::from(index)) };
        match page % 3 {
            0 => segment,
            1 => segment
                .with_overflow(overflow(0))
                .with_staged(Staged { at: page_ref(page + 900), marks: Marks::ALL })
                .unwrap(),
            _ => (0..1 << order)
                .fold(segment, |segment, index| segment.with_overflow(overflow(index))),
        }
    }

    #[test]
    fn golden_record() {
        let base = PageRef { page: PageNumber(128), generation: Generation(1) };
        let after = vec![(Vec::new(), Segment::new(base, 0, None))];
        let before = vec![(Vec::new(), Segment::virtual_one())];
        let bytes = encode_change(&Change { before, after }, 1);
        let mut expected = vec![2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        expected.extend_from_slice(&[0; 11]);
        expected.extend_from_slice(&[1, 0, 0, 0, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn version_1_is_read() {
        let mut bytes = vec![1, 1, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        bytes.extend_from_slice(&[0; 16]);
        bytes
            .extend_from_slice(&[1, 0, 0, 0, 0x80, 0, 0, 0, 1, 0, 0, 0, 0x81, 0, 0, 0, 2, 0, 0, 0]);
        let (change, sequence) = decode_change(&bytes).unwrap();
        assert_eq!(sequence, 9);
        let page_ref = |page, generation| PageRef {
            page: PageNumber(page),
            generation: Generation(generation),
        };
        assert_eq!(change.before, vec![(Vec::new(), Segment::virtual_one())]);
        let overflow = Overflow { index: 0, at: page_ref(0x81, 2) };
        let segment = Segment::new(page_ref(0x80, 1), 0, None).with_overflow(overflow);
        assert_eq!(change.after, vec![(Vec::new(), segment)]);
    }

    proptest! {
        #[test]
        fn changes_and_segments_come_back(
            mut bounds in proptest::collection::btree_set(proptest::collection::vec(any::<u8>(), 0..40), 1..20),
            sequence in any::<u64>(), first in 1u32..1000,
        ) {
            let lower = bounds.first().cloned().unwrap();
            let after: Vec<_> = bounds.iter().cloned().zip((first..).map(segment)).collect();
            let before = if first > 500 {
                vec![(lower.clone(), segment(first)), ([lower.as_slice(), b"x"].concat(), segment(7))]
            } else {
                vec![(lower, Segment::virtual_one())]
            };
            let change = Change { before, after };
            prop_assert_eq!(decode_change(&encode_change(&change, sequence)).unwrap(), (change, sequence));
            bounds.insert(Vec::new());
            let segments: Vec<_> = bounds.into_iter().zip((first..).map(segment)).collect();
            let mut encoder = SegmentsEncoder::default();
            segments.iter().for_each(|(lower, segment)| encoder.push(lower, segment));
            let extents = |orders: std::ops::Range<u8>| {
                orders.map(|order| LargeExtent {
                    extent: Extent { page: PageNumber(first << order), order },
                    generation: Generation(first),
                    first: order == 3,
                })
            };
            let large = match first % 3 {
                0 => LargeList::default(),
                _ => LargeList { live: extents(3..9).collect(), freed: extents(0..2).collect() },
            };
            let payload = encoder.finish(&large);
            for change in [LargeChange::Allocated, LargeChange::Superseded] {
                let record = encode_large(change, &large.live);
                prop_assert_eq!(decode_large(&record).unwrap(), Some((change, large.live.clone())));
                prop_assert!(decode_change(&record).is_err());
            }
            prop_assert_eq!(decode_segments(&payload).unwrap(), (segments, large));
        }

        /// No bytes make a decoder panic, truncated and changed ones included.
        #[test]
        fn nonsense_does_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..120, at in 0usize..120, byte in any::<u8>(),
        ) {
            let _ = decode_change(&bytes);
            let _ = (decode_segments(&bytes), decode_large(&bytes));
            let after = vec![(b"a".to_vec(), segment(3)), (b"b".to_vec(), segment(4))];
            let before = vec![(b"a".to_vec(), segment(1))];
            let mut whole = encode_change(&Change { before, after }, 9);
            let at = at.min(whole.len() - 1);
            whole[at] = byte;
            let _ = decode_change(&whole);
            let _ = decode_change(&whole[..cut.min(whole.len())]);
        }
    }
}
