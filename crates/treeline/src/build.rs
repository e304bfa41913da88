//! New segments from records: phases II and III of a reorganization (TreeLine, section 4.5),
//! without I/O.
//!
//! [`fit`](crate::fit) cuts the records into pieces that one linear model each can place in
//! consecutive pages. Here each piece becomes the pages of a segment. The records of a page share
//! the prefix of the segment's bounds. Each page names these bounds and its place
//! ([`origin`](crate::origin)), or one page of the segment does it for all if the bounds are long.

use std::ops::Range;

use spinney_base::limits::PAGE_BYTES;
use spinney_io::{BufferPool, Lent};
use spinney_page::{PageEditor, Put, SLOT_BYTES};

use crate::fit::{Fit, Piece, Sized};
use crate::merge::{CAPACITY, Records};
use crate::model::Model;
use crate::origin::{Bounds, ORIGIN_BYTES, ORIGIN_BYTES_MAX, Origin, origin_bytes};
use crate::policy::{self, FORECAST_RECORDS};
use crate::segment::common_prefix;

/// A segment to be, its pages one behind the other, unsealed.
#[derive(Debug)]
pub(crate) struct NewSegment<'p> {
    pub(crate) lower: Vec<u8>,
    pub(crate) order: u8,
    pub(crate) model: Option<Model>,
    pub(crate) pages: Lent<'p>,
}

impl NewSegment<'_> {
    pub(crate) fn page_count(&self) -> usize {
        1 << self.order
    }

    /// The bytes of all pages.
    pub(crate) fn blocks(&self) -> &[u8] {
        &self.pages.bytes()[..self.page_count() * PAGE_BYTES]
    }
}

/// All records of a range of keys, which new segments will hold.
#[derive(Clone, Copy)]
pub(crate) struct Region<'a> {
    pub(crate) lower: &'a [u8],
    /// `None` for a region that goes to the last key.
    pub(crate) upper: Option<&'a [u8]>,
    pub(crate) records: &'a Records<'a>,
}

impl Region<'_> {
    fn prefix(&self) -> usize {
        self.upper.map_or(0, |upper| common_prefix(self.lower, upper).len())
    }

    /// Bytes that a page of the region has for records and their slots.
    pub(crate) fn room(&self) -> usize {
        CAPACITY - self.prefix() - ORIGIN_BYTES
    }

    /// Bytes that a record takes of a page, slot included.
    pub(crate) fn record_bytes(&self, index: usize) -> usize {
        let (key, value) = self.records.get(index);
        key.len() - self.prefix() + value.len() + SLOT_BYTES
    }

    /// Bytes of all records.
    pub(crate) fn bytes(&self) -> usize {
        (0..self.records.len()).map(|index| self.record_bytes(index)).sum()
    }

    /// Cuts the records into segments. `expected` returns how many inserts are expected in a range
    /// of keys. Records there are cut as if they were larger, so that there is room.
    pub(crate) fn pieces(
        &self,
        fit: &Fit,
        expected: impl Fn(&[u8], Option<&[u8]>) -> f64,
    ) -> Vec<Piece> {
        let count = self.records.len();
        let mut records: Vec<Sized<'_>> = Vec::with_capacity(count);
        for from in (0..count).step_by(FORECAST_RECORDS) {
            let until = (from + FORECAST_RECORDS).min(count);
            let lower = if from == 0 { self.lower } else { self.records.get(from).0 };
            let upper = if until < count { Some(self.records.get(until).0) } else { self.upper };
            let times = policy::room_for(until - from, expected(lower, upper));
            records.extend((from..until).map(|index| {
                let bytes = self.record_bytes(index);
                let with_room = scaled(bytes, times).min(fit.goal_bytes).max(bytes);
                (self.records.get(index).0, with_room)
            }));
        }
        fit.pieces(self.lower, self.upper, &records)
    }

    /// Makes the pages of pieces of this region.
    pub(crate) fn build<'p>(
        &self,
        pool: &'p BufferPool,
        pieces: Vec<Piece>,
    ) -> Vec<NewSegment<'p>> {
        let mut segments = Vec::with_capacity(pieces.len());
        let mut left = pieces.into_iter().peekable();
        while let Some(piece) = left.next() {
            let upper = left.peek().map(|next| next.lower.as_slice()).or(self.upper);
            segments.push(self.segment(pool, piece, upper));
        }
        segments
    }

    fn segment<'p>(
        &self,
        pool: &'p BufferPool,
        piece: Piece,
        upper: Option<&[u8]>,
    ) -> NewSegment<'p> {
        let count = piece.pages() as usize;
        let mut pages = pool.lend(count);
        let prefix = upper.map_or(&[][..], |upper| common_prefix(&piece.lower, upper));
        let mut origin = Origin {
            overflow_of: None,
            staged: false,
            index: 0,
            order: piece.order,
            bounds: Some(Bounds {
                model: piece.model,
                lower: piece.lower.as_slice().into(),
                upper: upper.map(Into::into),
            }),
        };
        let spread = self.spread(&piece);
        // Long bounds take the room of records, so one page bears them for all.
        let long = origin_bytes(&piece.lower, upper, piece.model.is_some()) > ORIGIN_BYTES_MAX;
        let only = if long { self.emptiest(&spread) } else { None };
        let mut bytes = Vec::new();
        for (index, records) in spread.into_iter().enumerate() {
            origin.index = u8::try_from(index).expect("a segment has at most 16 pages");
            bytes.clear();
            origin.encode(prefix.len(), &mut bytes);
            let bears = only.is_none_or(|only| only == index);
            let page = pages.page_mut(index);
            let fits = bears && self.fill(page, prefix, &bytes, records.clone())
                || self.fill(page, prefix, &[], records);
            assert!(fits, "the pieces were made to fit");
        }
        NewSegment { lower: piece.lower, order: piece.order, model: piece.model, pages }
    }

    /// Which records go to each of a piece's pages.
    fn spread(&self, piece: &Piece) -> Vec<Range<usize>> {
        let mut next = piece.records.start;
        let mut spread = Vec::with_capacity(piece.pages() as usize);
        for index in 0..piece.pages() {
            let first = next;
            while next < piece.records.end && piece.page(self.records.get(next).0) == index {
                next += 1;
            }
            spread.push(first..next);
        }
        assert_eq!(next, piece.records.end, "pages are in the order of keys");
        spread
    }

    fn emptiest(&self, spread: &[Range<usize>]) -> Option<usize> {
        let bytes = |index: &usize| -> usize {
            spread[*index].clone().map(|record| self.record_bytes(record)).sum()
        };
        (0..spread.len()).min_by_key(bytes)
    }

    /// Formats a page and puts these records into it. Returns whether they fit.
    fn fill(
        &self,
        page: &mut [u8; PAGE_BYTES],
        prefix: &[u8],
        origin: &[u8],
        records: Range<usize>,
    ) -> bool {
        let mut editor = PageEditor::format(page, prefix, origin);
        records.into_iter().all(|record| {
            let (key, value) = self.records.get(record);
            editor.put(key, value) == Put::Done
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "both are small and positive"
)]
fn scaled(bytes: usize, times: f64) -> usize {
    (bytes as f64 * times) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::Fill;
    use crate::merge::Dirty;
    use spinney_base::ValueRef;

    /// Room is left where inserts are expected and nowhere else.
    #[test]
    fn pages_get_room_for_what_is_expected_in_them() {
        let keys: Vec<[u8; 8]> = (0..2000_u64).map(|key| (key << 20).to_be_bytes()).collect();
        let dirty: Vec<Dirty<'_>> =
            keys.iter().map(|key| (&key[..], Some(ValueRef::inline(&[7; 56])))).collect();
        let records = Records::merge(&[], &dirty);
        let region = Region { lower: &[], upper: None, records: &records };
        let fit = Fit::choose(Fill::Room, region.bytes() / records.len(), region.room());
        let pages = |expected: f64| {
            let hot = keys[1000];
            let pieces = region.pieces(&fit, |lower, upper| {
                // Evenly over the upper half.
                let upper = upper.unwrap_or(&[0xFF; 8]);
                if lower >= &hot[..] && upper > &hot[..] { expected } else { 0.0 }
            });
            assert_eq!(pieces.iter().map(|piece| piece.records.len()).sum::<usize>(), 2000);
            let mut places: Vec<(bool, usize, u32)> = Vec::new();
            for (at, piece) in pieces.iter().enumerate() {
                let of = |record: usize| (record >= 1000, at, piece.page(&keys[record]));
                places.extend(piece.records.clone().map(of));
            }
            places.dedup();
            let hot = places.iter().filter(|(hot, ..)| *hot).count();
            (places.len() - hot, hot)
        };
        let (cold, hot) = pages(0.0);
        assert!(cold.abs_diff(hot) <= 8, "{cold} {hot}");
        // As many again as there are.
        let (same, double) = pages(32.0);
        assert!(same.abs_diff(cold) <= 8 && double.abs_diff(2 * hot) <= 12, "{same} {double}");
        let (same, most) = pages(1e9);
        assert!(same.abs_diff(cold) <= 8, "{same}");
        assert!(most < policy::ROOM_TIMES_MAX as usize * (hot + 4), "{most}");
        assert_eq!(pages(f64::NAN), pages(0.0));
    }
}
