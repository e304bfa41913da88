//! The bytes that TreeLine keeps beside its data pages: checkpoint payloads and structure records.
//! All integers are little-endian.
//!
//! A **segment**: base page `u32`, base generation `u32`, overflow page `u32` (0 for none),
//! overflow generation `u32` (0 for none).
//!
//! A **checkpoint payload**: version `u8` (1), number of segments `u64`, then for each, in
//! ascending order of lower bounds: bound length `u16`, bound, segment. The first bound is the
//! empty key. A keyspace without data has an empty payload.
//!
//! A **structure record**: version `u8` (1), kind `u8` (1: replace), sequence `u64`, number of
//! segments that go `u16`, then for each: bound length `u16`, lower bound, segment (all zero for the
//! one segment of a keyspace that has no page yet); number of segments that come `u16`, then the
//! same for each. Both are in ascending order and begin with the same bound.
//!
//! Example: the record of the first change of a keyspace, which makes its first page 128 of
//! generation 1:
//! `01 01  01 00 00 00 00 00 00 00  01 00  00 00  00×16  01 00  00 00  80 00 00 00 01 00 00 00 00×8`.

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};

use crate::index::{Change, PageRef, Segment};

const VERSION: u8 = 1;
const KIND_REPLACE: u8 = 1;

/// Encodes a checkpoint payload, segment by segment in order.
#[derive(Default)]
pub(crate) struct SegmentsEncoder {
    out: Vec<u8>,
    count: u64,
}

impl SegmentsEncoder {
    pub(crate) fn push(&mut self, lower: &[u8], segment: Segment) {
        if self.out.is_empty() {
            self.out.push(VERSION);
            self.out.extend_from_slice(&[0; 8]);
        }
        self.count += 1;
        put_bound(&mut self.out, lower);
        put_segment(&mut self.out, segment);
    }

    /// The payload; empty if there were no segments.
    pub(crate) fn finish(mut self) -> Vec<u8> {
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
pub(crate) fn decode_segments(payload: &[u8]) -> Result<Vec<(Vec<u8>, Segment)>> {
    if payload.is_empty() {
        return Ok(Vec::new());
    }
    let mut reader = Reader { left: payload };
    reader.version()?;
    let count = reader.u64()?;
    let mut segments: Vec<(Vec<u8>, Segment)> = Vec::new();
    for _ in 0..count {
        let lower = reader.bound()?;
        let ascending = segments.last().map_or(lower.is_empty(), |(before, _)| *before < lower);
        if !ascending {
            return Err(damaged("segments in ascending order"));
        }
        segments.push((lower, reader.some_segment()?));
    }
    reader.end()?;
    Ok(segments)
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
            put_segment(&mut out, *segment);
        }
    }
    out
}

/// Decodes a structure record into the change and its number.
///
/// # Errors
/// `Corruption` when it is not what [`encode_change`] makes.
pub(crate) fn decode_change(payload: &[u8]) -> Result<(Change, u64)> {
    let mut reader = Reader { left: payload };
    reader.version()?;
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

fn put_segment(out: &mut Vec<u8>, segment: Segment) {
    for page in [segment.base, segment.overflow.unwrap_or(Segment::VIRTUAL.base)] {
        out.extend_from_slice(&page.page.0.to_le_bytes());
        out.extend_from_slice(&page.generation.0.to_le_bytes());
    }
}

fn damaged(expected: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("TreeLine structure: expected {expected}"))
}

struct Reader<'a> {
    left: &'a [u8],
}

impl Reader<'_> {
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

    fn version(&mut self) -> Result<()> {
        if self.u8()? == VERSION { Ok(()) } else { Err(damaged("version 1")) }
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

    fn segment(&mut self) -> Result<Option<Segment>> {
        let (base, overflow) = (self.page()?, self.page()?);
        Ok(base.map(|base| Segment { base, overflow }))
    }

    fn some_segment(&mut self) -> Result<Segment> {
        self.segment()?.ok_or_else(|| damaged("a base page"))
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
            let segment = match self.segment()? {
                None if may_be_virtual => Segment::VIRTUAL,
                segment => segment.ok_or_else(|| damaged("a base page"))?,
            };
            segments.push((lower, segment));
        }
        if segments.is_empty() { Err(damaged("at least one segment")) } else { Ok(segments) }
    }

    fn end(&self) -> Result<()> {
        if self.left.is_empty() { Ok(()) } else { Err(damaged("no further bytes")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(page: u32) -> Segment {
        let page_ref = |page| PageRef { page: PageNumber(page), generation: Generation(page + 1) };
        Segment {
            base: page_ref(page),
            overflow: page.is_multiple_of(2).then(|| page_ref(page + 500)),
        }
    }

    #[test]
    fn golden_record() {
        let base = PageRef { page: PageNumber(128), generation: Generation(1) };
        let after = vec![(Vec::new(), Segment { base, overflow: None })];
        let before = vec![(Vec::new(), Segment::VIRTUAL)];
        let bytes = encode_change(&Change { before, after }, 1);
        let mut expected = vec![1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        expected.extend_from_slice(&[0; 16]);
        expected.extend_from_slice(&[1, 0, 0, 0, 0x80, 0, 0, 0, 1, 0, 0, 0]);
        expected.extend_from_slice(&[0; 8]);
        assert_eq!(bytes, expected);
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
                vec![(lower, Segment::VIRTUAL)]
            };
            let change = Change { before, after };
            prop_assert_eq!(decode_change(&encode_change(&change, sequence)).unwrap(), (change, sequence));
            bounds.insert(Vec::new());
            let segments: Vec<_> = bounds.into_iter().zip((first..).map(segment)).collect();
            let mut encoder = SegmentsEncoder::default();
            segments.iter().for_each(|(lower, segment)| encoder.push(lower, *segment));
            prop_assert_eq!(decode_segments(&encoder.finish()).unwrap(), segments);
        }

        /// No bytes make a decoder panic, truncated and changed ones included.
        #[test]
        fn nonsense_does_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..120, at in 0usize..120, byte in any::<u8>(),
        ) {
            let _ = decode_change(&bytes);
            let _ = decode_segments(&bytes);
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
