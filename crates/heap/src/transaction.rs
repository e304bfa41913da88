//! Reads of a transaction: by key, and of ranges in key order.
//!
//! ```text
//!   look -> copy the columns from the tiles -> the version is the same? -> note
//!   Older -> copy, then take back the updates of the chain that came after the begin stamp
//!   no entry -> note the gap -> look into the index again
//! ```
//!
//! **Invariants**
//! 1. A copy counts if entry and version were the same before and after it, and no one published.
//! 2. A gap and the version of its range are noted before the index is read.
//! 3. What a transaction has written it reads from its own values.
//!
//! Section 5.2 of the paper for the certification; the rest is what its baselines do.

use std::ops::{Bound, ControlFlow};
use std::task::Poll;

use spinney_art::Direction;
use spinney_base::shim::atomic::{Ordering, fence};
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result};
use spinney_ssn::{self as ssn, Image, Look, Stamp, Version};
use spinney_sync::racy::{self, WORD_BYTES};

use crate::gaps::GapRef;
use crate::heads::RecordRef;
use crate::heap::Heap;
use crate::schema::Columns;
use crate::seen::Seen;
use crate::session::Local;
use crate::table::Table;

/// Records of a scan whose tiles are prefetched before they are read. With 1, a scan waits for
/// them; from 2 on the number matters little.
const AHEAD: usize = 4;

/// Most records of a scan that are taken from the index at once.
const CHUNK: usize = 128;

/// A range to read, in key order.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The table.
    pub table: usize,
    /// The lowest key.
    pub from: &'a [u8],
    /// The key above the highest; `None` for no bound.
    pub to: Option<&'a [u8]>,
    /// From the highest key downwards.
    pub reverse: bool,
    /// Most records.
    pub limit: usize,
    /// The columns to read.
    pub columns: Columns,
}

/// Receives records: the key, and the values of the columns that were asked for, side by side.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A new version that is not published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending<'a> {
    pub(crate) record: RecordRef<'a>,
    pub(crate) table: u32,
    pub(crate) number: u32,
    pub(crate) image: Image,
    /// The columns that change.
    pub(crate) columns: Columns,
    /// Where their values begin in the session's buffer.
    pub(crate) at: usize,
}

/// A transaction: serializable, ranges included. Dropping it rolls it back.
#[derive(Debug)]
pub struct Transaction<'a> {
    pub(crate) heap: &'a Heap,
    pub(crate) local: &'a mut Local,
    pub(crate) ssn: ssn::Transaction<RecordRef<'a>>,
    pub(crate) ranges: Seen<'a>,
    pub(crate) writes: Vec<Pending<'a>>,
}

pub(crate) fn conflict(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, why)
}

impl<'a> Transaction<'a> {
    pub(crate) fn begin(heap: &'a Heap, local: &'a mut Local) -> Result<Transaction<'a>> {
        local.values.clear();
        let ssn = heap.certifier.begin()?;
        Ok(Transaction { heap, local, ssn, ranges: Seen::default(), writes: Vec::new() })
    }

    pub(crate) fn table(&self, table: usize) -> &'a Table {
        &self.heap.tables[table]
    }

    /// Returns the begin stamp: the transaction sees what was committed at or before it.
    #[must_use]
    pub fn begin_stamp(&self) -> Stamp {
        self.ssn.begin_stamp()
    }

    /// Appends the values of some columns of a record, side by side in their order. Returns whether
    /// there is one.
    ///
    /// # Errors
    /// `Conflict`: nothing that it does will be committed; run it again.
    pub fn get(
        &mut self,
        table: usize,
        key: &[u8],
        columns: Columns,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        loop {
            let Some(number) = self.find_or_note(table, key)? else { return Ok(false) };
            let record = self.heap.record(table, number);
            // All columns are asked for before the first is waited for.
            self.table(table).store().tiles.prefetch(record.head.place(), columns);
            if let Some(is_there) = self.read(table, record, columns, out)? {
                return Ok(is_there);
            }
        }
    }

    /// Returns the record of a key, or notes that there is none.
    pub(crate) fn find_or_note(&mut self, table: usize, key: &[u8]) -> Result<Option<u32>> {
        let of = self.table(table);
        if let Some(number) = of.find(key) {
            return Ok(Some(number));
        }
        let gap = of.gaps.find(key);
        self.note_gap(gap)?;
        let found = of.find(key);
        if found.is_none() && self.heap.is_certified {
            let at = Bound::Included(key);
            self.ranges.span(table, (at, at), std::iter::empty());
        }
        Ok(found)
    }

    /// Notes a range, with the version that it has now.
    fn note_gap(&mut self, gap: GapRef<'a>) -> Result<()> {
        if self.heap.is_certified && !self.ranges.has(&gap) {
            self.ssn.note_gap(&gap)?;
            self.ranges.note(gap);
        }
        Ok(())
    }

    /// Notes a read of the version in a place.
    #[inline]
    pub(crate) fn note(&mut self, record: RecordRef<'a>, version: Version) -> Result<()> {
        if self.heap.is_certified { self.ssn.note(&record, version) } else { Ok(()) }
    }

    /// Reads some columns of an entry's record, and notes it. Returns whether it has a value; `None`
    /// if the entry has left the index.
    #[inline]
    fn read(
        &mut self,
        table: usize,
        record: RecordRef<'a>,
        columns: Columns,
        out: &mut Vec<u8>,
    ) -> Result<Option<bool>> {
        let (tiles, start) = (&self.table(table).store().tiles, out.len());
        loop {
            match self.ssn.look(&record) {
                Poll::Ready(look) => match look? {
                    Look::Own => return Ok(Some(self.read_own(table, record, columns, out))),
                    Look::Newest(version) => {
                        if !version.is_absent() {
                            tiles.append(record.head.place(), columns, out);
                            fence(Ordering::Acquire);
                            if record.head.version() != Some(version) {
                                out.truncate(start);
                                continue;
                            }
                        }
                        self.note(record, version)?;
                        let is_gone = version.is_absent() && record.head.is_gone();
                        return Ok((!is_gone).then_some(!version.is_absent()));
                    }
                    Look::Older if record.head.is_gone() => return Ok(None),
                    Look::Older => {
                        if let Some(is_there) = self.read_older(table, record, columns, out)? {
                            return Ok(Some(is_there));
                        }
                    }
                },
                Poll::Pending => thread::yield_now(),
            }
        }
    }

    /// Reads an older version. `None`: the record was published meanwhile.
    #[cold]
    fn read_older(
        &mut self,
        table: usize,
        record: RecordRef<'a>,
        columns: Columns,
        out: &mut Vec<u8>,
    ) -> Result<Option<bool>> {
        let (of, start, undo) = (self.table(table), out.len(), record.undo);
        let Some(mut version) = record.head.version() else { return Ok(None) };
        of.store().tiles.append(record.head.place(), columns, out);
        let mut at = record.head.older();
        fence(Ordering::Acquire);
        if record.head.version() != Some(version) {
            out.truncate(start);
            return Ok(None);
        }
        let begin = self.ssn.begin_stamp();
        while at != 0 {
            let block = undo.block(at);
            let (successor, next) = (block.successor(), block.next());
            if next != 0 {
                undo.block(next).prefetch();
            }
            if successor.end > version.stamp() {
                // Pushed after the version was looked at: for the one that is about to replace it.
                at = next;
                continue;
            }
            version = block.version();
            take_back(of, block.columns(), block.values(), columns, &mut out[start..]);
            if version.stamp() <= begin {
                if self.heap.is_certified {
                    self.ssn.note_older(successor)?;
                }
                if version.is_absent() {
                    out.truncate(start);
                }
                return Ok(Some(!version.is_absent()));
            }
            at = next;
        }
        Err(conflict("a version that the transaction sees is gone"))
    }

    /// Reads what the transaction has written.
    fn read_own(
        &self,
        table: usize,
        record: RecordRef<'a>,
        columns: Columns,
        out: &mut Vec<u8>,
    ) -> bool {
        let of = self.table(table);
        let place = record.head.place();
        let pending = self.writes.iter().rev().find(|write| write.record.head.is(record.head));
        let Some(pending) = pending else {
            // Owned by a write that failed: the transaction does not commit.
            return false;
        };
        if pending.image == Image::Tombstone {
            return false;
        }
        for column in columns.iter() {
            if pending.columns.has(column) {
                let before = Columns(pending.columns.0 & (Columns::one(column).0 - 1));
                let at = pending.at + of.schema.bytes_of(before);
                out.extend_from_slice(&self.local.values[at..at + of.schema.width(column)]);
            } else {
                of.store().tiles.append(place, Columns::one(column), out);
            }
        }
        true
    }

    /// Shows the records of a range in key order until the visitor breaks off.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn scan(&mut self, scan: Scan<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        let direction = if scan.reverse { Direction::Backward } else { Direction::Forward };
        let (mut left, mut edge, mut at) = (scan.limit, Vec::new(), Vec::new());
        let low = Bound::Included(scan.from);
        let high = scan.to.map_or(Bound::Unbounded, Bound::Excluded);
        let mut from = if scan.reverse { high } else { low };
        while left > 0 {
            let (gap, has_edge) = self.table(scan.table).gaps.find_from(from, direction, &mut edge);
            self.note_gap(gap)?;
            // The range ends at its fence, or before.
            let is_last = match (scan.reverse, scan.to) {
                (true, _) => edge.as_slice() <= scan.from,
                (false, Some(to)) => !has_edge || to <= edge.as_slice(),
                (false, None) => !has_edge,
            };
            let to = match (scan.reverse, is_last) {
                (true, true) => low,
                (true, false) => Bound::Included(edge.as_slice()),
                (false, true) => high,
                (false, false) => Bound::Excluded(edge.as_slice()),
            };
            let wanted = left.min(CHUNK);
            let (shown, taken) =
                self.scan_chunk(scan, (from, to, direction), (wanted, left), visit)?;
            let Some(shown) = shown else { return Ok(()) };
            left -= shown;
            if taken < wanted && is_last {
                return Ok(());
            }
            if taken < wanted {
                std::mem::swap(&mut at, &mut edge);
                from = if scan.reverse { Bound::Excluded(&at) } else { Bound::Included(&at) };
            } else {
                at.clear();
                let last = self.local.found.last().map_or(0, |(end, _)| *end);
                let before = self.local.found.iter().rev().nth(1).map_or(0, |(end, _)| *end);
                at.extend_from_slice(&self.local.keys[before..last]);
                from = Bound::Excluded(&at);
            }
        }
        Ok(())
    }

    /// Notes the entries that a scan has read of a chunk: up to the last one if it broke off.
    fn note_span(
        &mut self,
        table: usize,
        (from, to, direction): (Bound<&[u8]>, Bound<&[u8]>, Direction),
        keys: &[u8],
        (read, is_whole): (&[(usize, u32)], bool),
    ) {
        if !self.heap.is_certified {
            return;
        }
        let begin = read.iter().rev().nth(1).map_or(0, |(end, _)| *end);
        let last = read.last().map(|(end, _)| &keys[begin..*end]);
        let to = if is_whole { to } else { last.map_or(to, Bound::Included) };
        let bounds = if direction == Direction::Forward { (from, to) } else { (to, from) };
        self.ranges.span(table, bounds, read.iter().map(|(_, number)| *number));
    }

    /// Shows a part of a noted range. Returns how many records were shown, or `None` if the visitor
    /// broke off, and how many entries there were.
    fn scan_chunk(
        &mut self,
        scan: Scan<'_>,
        (from, to, direction): (Bound<&[u8]>, Bound<&[u8]>, Direction),
        (wanted, left): (usize, usize),
        visit: &mut Visitor<'_>,
    ) -> Result<(Option<usize>, usize)> {
        let store = self.table(scan.table).store();
        let (mut keys, mut found) =
            (std::mem::take(&mut self.local.keys), std::mem::take(&mut self.local.found));
        keys.clear();
        found.clear();
        let mut entries = self.table(scan.table).index.scan(from, to, direction).at_most(wanted);
        while let Some((key, leaf)) = entries.next() {
            keys.extend_from_slice(key);
            found.push((keys.len(), u32::try_from(leaf).unwrap_or(0)));
        }
        let (mut row, mut shown, mut begin) = (std::mem::take(&mut self.local.row), 0, 0);
        let ask = |number: u32| store.tiles.prefetch(store.head(number).place(), scan.columns);
        found.iter().take(AHEAD).for_each(|(_, number)| ask(*number));
        let mut is_over = false;
        let mut read = 0;
        for (index, (end, number)) in found.iter().enumerate() {
            read = index + 1;
            if let Some((_, ahead)) = found.get(index + AHEAD) {
                ask(*ahead);
            }
            row.clear();
            let record = self.heap.record(scan.table, *number);
            // An entry that has left the index has no value: the gap is noted.
            if self.read(scan.table, record, scan.columns, &mut row)? == Some(true) {
                shown += 1;
                is_over = visit(&keys[begin..*end], &row) == ControlFlow::Break(());
            }
            if is_over || shown == left {
                break;
            }
            begin = *end;
        }
        // A full chunk says nothing of what lies behind it.
        let is_whole = read == found.len() && read < wanted;
        self.note_span(scan.table, (from, to, direction), &keys, (&found[..read], is_whole));
        let taken = found.len();
        (self.local.keys, self.local.found, self.local.row) = (keys, found, row);
        Ok(((!is_over).then_some(shown), taken))
    }
}

/// Takes an update back: replaces those of the wanted values that a block has older ones of.
fn take_back(table: &Table, saved: u64, values: &[racy::Word], wanted: Columns, out: &mut [u8]) {
    let (mut at, mut target) = (0, 0);
    for column in Columns(saved | wanted.0).iter() {
        let width = table.schema.width(column);
        if Columns(saved).has(column) {
            if wanted.has(column) {
                racy::copy_bytes(values, at * WORD_BYTES, &mut out[target..target + width]);
            }
            at += width.div_ceil(WORD_BYTES);
        }
        if wanted.has(column) {
            target += width;
        }
    }
}
