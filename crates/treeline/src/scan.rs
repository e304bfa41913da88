//! Reading many records: ranges in both directions, and batches of points.
//!
//! A range is read segment by segment under the shared lock of its page: first the segment's dirty
//! records are copied out of the cache, then its pages are read, then both are merged, newer over
//! older. In that order, and because a record leaves the cache only after its page was written
//! under the exclusive lock, a record can be in neither place at no time (P23). Nothing is held
//! between segments, let alone between chunks (P24): the scan goes on by key.

use std::ops::{Bound, Range};

use spinney_base::{Result, ValueRef};
use spinney_engine::{Chunk, Direction, OwnedValue, Record, ScanRequest};
use spinney_io::Purpose;
use spinney_page::PageView;

use crate::cache::{Cached, RecordId, Scratch, Visit};
use crate::index::Located;
use crate::merge::{Dirty, Pages, Records};
use crate::tree::TreeLine;

impl TreeLine {
    pub(crate) fn scan_chunk(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let mut bytes = 0;
        let mut next = Some(Position::start(request));
        while let Some(position) = next {
            let located = loop {
                match self.scan_segment(&position, request, chunk, &mut bytes)? {
                    Step::Changed => {}
                    Step::Full => return Ok(()),
                    Step::Done(located) => break located,
                }
            };
            next = Position::after(&located, request);
            let enough = chunk.records.len() >= request.records_max || bytes >= request.bytes_max;
            if let Some(position) = &next
                && enough
            {
                chunk.resume = Some(position.bound());
                return Ok(());
            }
        }
        chunk.finished = true;
        Ok(())
    }

    /// Appends the records of the segment at a position to the chunk, as far as it has room.
    fn scan_segment(
        &self,
        position: &Position,
        request: &ScanRequest<'_>,
        chunk: &mut Chunk,
        bytes: &mut usize,
    ) -> Result<Step> {
        let version = self.index.version();
        let located = match position {
            Position::At(key) => self.index.find(key),
            Position::Below(key) => match self.index.find_below(key.as_deref()) {
                Some(located) => located,
                None => self.index.find(&[]),
            },
        };
        let _lock = self.locks.read(located.segment.base.page);
        if self.index.version() != version {
            let again = self.index.find(located.lower.bytes());
            if again.segment != located.segment
                || again.lower != located.lower
                || again.upper != located.upper
            {
                return Ok(Step::Changed);
            }
        }
        let mut copies = DirtyCopies::default();
        self.copy_dirty(&located, &mut copies);
        let pages: Vec<_> = located.segment.pages().collect();
        let mut buf = self.buffers.lend(pages.len().max(1));
        self.read_pages(&pages, &mut buf, Purpose::Scan)?;
        let read: Vec<_> = (0..pages.len()).map(|index| buf.page(index)).collect();
        let records = Records::merge(&[Pages::new(&read)], &copies.records());
        for step in 0..records.len() {
            let index = match request.direction {
                Direction::Forward => step,
                Direction::Reverse => records.len() - 1 - step,
            };
            let (key, value) = records.get(index);
            if !request.contains(key) {
                continue;
            }
            // What was read is delivered to its end, so that the next chunk need not read it again.
            if request.records_max == 1 && !chunk.records.is_empty() {
                return Ok(Step::Full);
            }
            *bytes += key.len() + value.len();
            chunk.records.push(Record { key: key.to_vec(), value: value.into() });
        }
        Ok(Step::Done(located))
    }

    /// Copies the dirty records of a segment out of the cache.
    fn copy_dirty(&self, located: &Located, copies: &mut DirtyCopies) {
        let mut ids = self.index.dirty(located.lower.bytes());
        ids.sort_unstable();
        ids.dedup();
        let mut scratch = Scratch::default();
        for id in ids {
            self.cache.visit_dirty(id, Visit::Look, &mut scratch, &mut |key, value| {
                if located.contains(key) {
                    copies.push(key, value);
                }
                false
            });
        }
    }

    /// Answers many gets with as few and as parallel reads as can be.
    pub(crate) fn lookup_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        let mut answers: Vec<Option<OwnedValue>> = vec![None; keys.len()];
        let mut missing: Vec<usize> = Vec::new();
        for (index, (key, hash)) in keys.iter().enumerate() {
            if !self.lookup_cached(key, *hash, &mut answers[index]) {
                missing.push(index);
            }
        }
        while !missing.is_empty() {
            missing = self.lookup_on_pages(keys, missing, &mut answers)?;
        }
        Ok(answers)
    }

    fn lookup_cached(&self, key: &[u8], hash: u64, answer: &mut Option<OwnedValue>) -> bool {
        let mut bytes = Vec::new();
        match self.cache.get(RecordId::of(hash), key, &mut bytes) {
            Cached::Present => *answer = Some(OwnedValue { bytes, large: false }),
            Cached::Large => *answer = Some(OwnedValue { bytes, large: true }),
            Cached::Absent => *answer = None,
            Cached::Unknown => return false,
        }
        self.reads.hit();
        true
    }

    /// One round: reads the pages of all missing keys in one batch; returns the keys whose segments
    /// changed meanwhile.
    fn lookup_on_pages(
        &self,
        keys: &[(&[u8], u64)],
        missing: Vec<usize>,
        answers: &mut [Option<OwnedValue>],
    ) -> Result<Vec<usize>> {
        /// Keys per round, which bounds the buffer.
        const ROUND: usize = 64;
        let (round, later) = missing.split_at(missing.len().min(ROUND));
        let places: Vec<_> =
            round.iter().map(|index| self.index.find_place(keys[*index].0)).collect();
        let _locks = self.locks.read_many(places.iter().map(|(segment, _)| segment.base.page));
        let mut again = later.to_vec();
        let mut wanted = Vec::new();
        let mut pages = Vec::new();
        for (index, (segment, version)) in round.iter().zip(&places) {
            let (key, hash) = keys[*index];
            if !self.is_still(key, *segment, *version) {
                again.push(*index);
            } else if !self.lookup_cached(key, hash, &mut answers[*index]) {
                let first = pages.len();
                pages.extend(segment.pages());
                wanted.push((*index, first..pages.len()));
            }
        }
        let mut buf = self.buffers.lend(pages.len().max(1));
        self.read_pages(&pages, &mut buf, Purpose::Lookup)?;
        for (index, range) in wanted {
            let (key, hash) = keys[index];
            self.reads.miss(range.len() as u64);
            let value = range.clone().find_map(|page| PageView::trusted(buf.page(page)).find(key));
            answers[index] = value.map(OwnedValue::from);
            self.cache.admit(RecordId::of(hash), key, value);
        }
        Ok(again)
    }
}

/// How the reading of one segment ended.
enum Step {
    /// It was not locked before it changed: look again.
    Changed,
    /// The chunk is full.
    Full,
    /// All of it that the request wants is in the chunk.
    Done(Located),
}

/// Where a value is, and whether it is the pointer to a large one.
type ValuePlace = (Range<usize>, bool);

/// Copies of dirty records, in one piece of memory.
#[derive(Default)]
struct DirtyCopies {
    bytes: Vec<u8>,
    places: Vec<(Range<usize>, Option<ValuePlace>)>,
}

impl DirtyCopies {
    fn push(&mut self, key: &[u8], value: Option<ValueRef<'_>>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or(ValueRef::EMPTY).bytes);
        let value = value.map(|value| (middle..self.bytes.len(), value.large));
        self.places.push((start..middle, value));
    }

    fn records(&self) -> Vec<Dirty<'_>> {
        let place = |range: &Range<usize>| &self.bytes[range.clone()];
        let value = |(range, large): &ValuePlace| ValueRef { bytes: place(range), large: *large };
        self.places.iter().map(|(key, found)| (place(key), found.as_ref().map(value))).collect()
    }
}

/// Which segment a scan reads next.
enum Position {
    /// The one that a key belongs to.
    At(Vec<u8>),
    /// The one with the greatest lower bound below a key, or the last one.
    Below(Option<Vec<u8>>),
}

impl Position {
    fn start(request: &ScanRequest<'_>) -> Self {
        match (request.direction, request.lower, request.upper) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => {
                Position::At(key.to_vec())
            }
            (Direction::Forward, Bound::Unbounded, _) => Position::At(Vec::new()),
            (Direction::Reverse, _, Bound::Included(key)) => Position::At(key.to_vec()),
            (Direction::Reverse, _, Bound::Excluded(key)) => Position::Below(Some(key.to_vec())),
            (Direction::Reverse, _, Bound::Unbounded) => Position::Below(None),
        }
    }

    /// Where the part of the range that was not read begins, or in reverse ends.
    fn bound(&self) -> Bound<Vec<u8>> {
        match self {
            Position::At(key) => Bound::Included(key.clone()),
            Position::Below(Some(key)) => Bound::Excluded(key.clone()),
            Position::Below(None) => Bound::Unbounded,
        }
    }

    fn after(located: &Located, request: &ScanRequest<'_>) -> Option<Self> {
        match request.direction {
            Direction::Forward => {
                let upper = located.upper.as_ref()?.bytes();
                (!request.is_past_upper(upper)).then(|| Position::At(upper.to_vec()))
            }
            Direction::Reverse => {
                let lower = located.lower.bytes();
                let past = match request.lower {
                    Bound::Included(bound) | Bound::Excluded(bound) => lower <= bound,
                    Bound::Unbounded => lower.is_empty(),
                };
                (!past).then(|| Position::Below(Some(lower.to_vec())))
            }
        }
    }
}
