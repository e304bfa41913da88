//! What a transaction has read of ranges, and the test that nobody added to it.
//!
//! ```text
//!   ranges   0 at version 7 | 4 at version 2        same versions: nobody linked a key
//!   spans    [b, f) entries 3 9 | [k, k] none       else: the same entries between these bounds
//! ```
//!
//! The versions are the quick test: an insert into a range that a scan has read a part of fails it.
//! Then the index is read again between the bounds of each scan and failed look-up. So a scan of the
//! latest orders does not conflict with the next one, which lies in the same range.
//!
//! **Invariants**
//! 1. The test comes after the commit stamp is drawn. An insert that is linked later draws a greater
//!    one, and finds the reader's bits.
//! 2. An entry that a transaction has noted stays in the index until that has ended. Numbers are used
//!    again after that only, so entries of the same numbers are the same.

use std::ops::{Bound, Range as Bytes};

use spinney_art::Direction;

use crate::gaps::{GapRef, Range};
use crate::table::Table;

/// Bounds of keys, which lie in [`Seen::keys`], and the entries between them.
#[derive(Clone, Debug)]
struct Span {
    table: usize,
    low: Bound<Bytes<usize>>,
    high: Bound<Bytes<usize>>,
    entries: u64,
}

/// Ranges and spans, and what the transaction itself linked.
#[derive(Debug, Default)]
pub(crate) struct Seen<'a> {
    /// Each with the version that it would have without own links.
    ranges: Vec<(GapRef<'a>, u64)>,
    spans: Vec<Span>,
    keys: Vec<u8>,
    /// Ranges that the transaction linked keys into, and how many.
    own: Vec<(&'a Range, u64)>,
    /// Table and number of entries that it linked.
    linked: Vec<(usize, u32)>,
}

/// A number that tells a set of entries, by the sum of these.
fn mark(number: u32) -> u64 {
    let x = (u64::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 32)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

impl<'a> Seen<'a> {
    /// Returns whether a range was noted. Only the latest are looked at: a range may be noted twice.
    pub(crate) fn has(&self, gap: &GapRef<'_>) -> bool {
        const LOOKED_AT: usize = 32;
        let (range, _) = gap.version();
        self.ranges.iter().rev().take(LOOKED_AT).any(|(noted, _)| noted.is_of(range))
    }

    /// Notes a range, with the version that it has now.
    pub(crate) fn note(&mut self, gap: GapRef<'a>) {
        let (range, version) = gap.version();
        self.ranges.push((gap, version.wrapping_sub(self.own_of(range))));
    }

    /// Notes the entries that were read between two bounds of noted ranges.
    pub(crate) fn span(
        &mut self,
        table: usize,
        (low, high): (Bound<&[u8]>, Bound<&[u8]>),
        entries: impl Iterator<Item = u32>,
    ) {
        let keys = &mut self.keys;
        let mut keep = |key: &[u8]| {
            let begin = keys.len();
            keys.extend_from_slice(key);
            begin..keys.len()
        };
        let (low, high) = (low.map(&mut keep), high.map(&mut keep));
        let entries = self.sum(table, entries);
        self.spans.push(Span { table, low, high, entries });
    }

    fn sum(&self, table: usize, entries: impl Iterator<Item = u32>) -> u64 {
        let others = entries.filter(|number| !self.linked.contains(&(table, *number)));
        others.map(mark).fold(0, u64::wrapping_add)
    }

    fn own_of(&self, range: &Range) -> u64 {
        let found = self.own.iter().rev().find(|(own, _)| std::ptr::eq(*own, range));
        found.map_or(0, |(_, count)| *count)
    }

    /// Counts a version that the transaction raised.
    pub(crate) fn count_own(&mut self, range: &'a Range) {
        match self.own.iter_mut().rev().find(|(own, _)| std::ptr::eq(*own, range)) {
            Some((_, count)) => *count += 1,
            None => self.own.push((range, 1)),
        }
    }

    /// Notes an entry that the transaction linked.
    pub(crate) fn link(&mut self, table: usize, number: u32) {
        self.linked.push((table, number));
    }

    /// Returns whether nobody else added a key to what was read.
    pub(crate) fn is_current(&self, tables: &[Table]) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.all(|(gap, version)| gap.is_at(*version, |range| self.own_of(range)))
            || self.spans.iter().all(|span| self.is_same(span, &tables[span.table]))
    }

    #[cold]
    fn is_same(&self, span: &Span, table: &Table) -> bool {
        let bound = |bound: &Bound<Bytes<usize>>| bound.clone().map(|at| &self.keys[at]);
        let (low, high) = (bound(&span.low), bound(&span.high));
        let mut scan = table.index.scan(low, high, Direction::Forward);
        let entries = std::iter::from_fn(|| scan.next().map(|(_, leaf)| leaf));
        let numbers = entries.map(|leaf| u32::try_from(leaf).unwrap_or(0));
        self.sum(span.table, numbers) == span.entries
    }
}
