//! Replay of the records that recovery kept, in LSN order, repeatedly and in bounded memory.

use std::ops::RangeInclusive;
use std::sync::Arc;

use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_base::{Error, Lsn, Result};

use crate::block::{BlockHeader, PAYLOAD_BYTES, Parsed, Record, parse_record, payload};
use crate::log::Log;
use crate::reader::BlockReader;
use crate::segments::RunStart;

/// The records that recovery kept. They are protected from trimming until they are released or this
/// is dropped, when the replay is complete. A log has at most one.
#[derive(Debug)]
pub struct Recovered {
    log: Arc<Log>,
    start: RunStart,
    end: RunStart,
}

impl Recovered {
    /// Makes it for the records from `start` up to `end`, all of which recovery has checked.
    pub(crate) fn new(log: Arc<Log>, start: RunStart, end: RunStart) -> Self {
        log.space.held.store(start.first.0, SeqCst);
        Recovered { log, start, end }
    }

    /// Returns the first LSN that the log still holds, if it holds any.
    #[must_use]
    pub fn first_lsn(&self) -> Lsn {
        self.start.first
    }

    /// Returns the last LSN that was kept; everything up to it is durable.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.end.first.0 - 1)
    }

    /// Returns whether no record was kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.first == self.start.first
    }

    /// Releases the records up to `lsn`: a checkpoint in the middle of the replay has written them
    /// back, so [`Log::trim`] may free them. This lets a replay continue that fills the log with
    /// structure records. `lsn` lies below the record that the replay has reached.
    pub fn release(&self, lsn: Lsn) {
        self.log.space.held.fetch_max(lsn.min(self.last_lsn()).next().0, SeqCst);
    }

    /// Delivers every kept record from `from` on that was not released, in order. Records appended
    /// meanwhile are not delivered. It holds one chunk of blocks and the largest record in memory.
    ///
    /// # Errors
    /// `Corruption` when the media no longer give what recovery read; errors of `visit`, which end
    /// the replay.
    pub fn replay(&self, from: Lsn, visit: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        let from = from.max(Lsn(self.log.space.held.load(SeqCst)));
        if self.is_empty() || from > self.last_lsn() {
            return Ok(());
        }
        let begin = self.log.space.segments.lock().run_start_before(from);
        let Some(begin) = begin.filter(|run| run.position < self.end.position) else {
            return Ok(());
        };
        let wanted = from..=self.last_lsn();
        read_runs(&self.log, begin, self.end.position, wanted, visit).map(|_| ())
    }
}

impl Drop for Recovered {
    fn drop(&mut self) {
        self.log.space.held.store(u64::MAX, SeqCst);
    }
}

/// Delivers the wanted records of the runs from `begin` up to position `end`, or until a run begins
/// after them. Returns where the first run begins that was not read to its end.
pub(crate) fn read_runs(
    log: &Log,
    begin: RunStart,
    end: u64,
    wanted: RangeInclusive<Lsn>,
    mut visit: impl FnMut(Record<'_>) -> Result<()>,
) -> Result<RunStart> {
    let lost = |offset: u64, expected: &str, found: &dyn std::fmt::Display| {
        Error::corruption(log.files.reader.path().display(), offset, expected, found)
    };
    let mut next = begin;
    let mut stream = RunStream { next: begin.first, carry: Vec::new(), left: 0 };
    let mut reader = BlockReader::new(&*log.files.reader);
    for position in begin.position..end {
        let extent = log.space.segments.lock().locate(position);
        let extent = extent.ok_or_else(|| lost(0, "a mapped segment", &"none"))?;
        let block = reader.block(extent)?;
        let header = BlockHeader::decode(log.life.tag, block)
            .map_err(|fault| lost(extent.offset, "the block that was written", &fault))?;
        if header.position != position {
            return Err(lost(extent.offset, "the block that was written", &"another"));
        }
        if header.index == 0 && header.first > *wanted.end() {
            break;
        }
        stream.enter(&header).map_err(|found| lost(extent.offset, "whole records", &found))?;
        let mut deliver = |record: Record<'_>| {
            if wanted.contains(&record.lsn) { visit(record) } else { Ok(()) }
        };
        stream.feed(payload(block, &header), &header, &mut deliver).map_err(
            |fault| match fault {
                Fault::Visitor(error) => error,
                Fault::Stream(found) => lost(extent.offset, "whole records", &found),
            },
        )?;
        if stream.left == 0 && header.last <= *wanted.end() {
            next = RunStart { position: position + 1, first: header.last.next() };
        }
    }
    Ok(next)
}

/// Why the payload of a block could not be delivered.
enum Fault {
    Visitor(Error),
    Stream(&'static str),
}

/// Assembles the records of a run from its blocks.
struct RunStream {
    /// LSN of the next record.
    next: Lsn,
    /// Front of a record that continues in the next block.
    carry: Vec<u8>,
    /// Number of blocks of the run that are still to come.
    left: u32,
}

impl RunStream {
    /// Checks a block against the run so far.
    fn enter(&mut self, header: &BlockHeader) -> Result<(), &'static str> {
        if header.index == 0 {
            if self.left > 0 || !self.carry.is_empty() {
                return Err("a run that ends early");
            }
            if header.first != self.next {
                return Err("a run that does not follow the one before");
            }
            self.left = header.count;
        }
        if self.left == 0 || header.index != header.count - self.left {
            return Err("a block out of its run's order");
        }
        self.left -= 1;
        Ok(())
    }

    /// Delivers the records that end in this block.
    fn feed(
        &mut self,
        bytes: &[u8],
        header: &BlockHeader,
        deliver: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<(), Fault> {
        let carried = !self.carry.is_empty();
        let mut whole = std::mem::take(&mut self.carry);
        if carried {
            whole.extend_from_slice(bytes);
        }
        let mut rest = if carried { whole.as_slice() } else { bytes };
        while !rest.is_empty() {
            match parse_record(rest) {
                Parsed::Record(kind, begin, end) => {
                    if self.next > header.last {
                        return Err(Fault::Stream("more records than the run has"));
                    }
                    let record = Record { lsn: self.next, kind, payload: &rest[begin..end] };
                    deliver(record).map_err(Fault::Visitor)?;
                    self.next = self.next.next();
                    rest = &rest[end..];
                }
                Parsed::Needs(bytes)
                    if bytes - rest.len() <= self.left as usize * PAYLOAD_BYTES =>
                {
                    break;
                }
                Parsed::Needs(_) => return Err(Fault::Stream("a record longer than its run")),
                Parsed::Malformed => return Err(Fault::Stream("no record")),
            }
        }
        if self.left == 0 && self.next != header.last.next() {
            return Err(Fault::Stream("fewer records than the run has"));
        }
        if !rest.is_empty() {
            // Keeps the buffer of the carried record, because its front is already there.
            let consumed = whole.len().saturating_sub(rest.len());
            if carried {
                whole.drain(..consumed);
                self.carry = whole;
            } else {
                self.carry = rest.to_vec();
            }
        }
        Ok(())
    }
}
