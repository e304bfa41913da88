//! Runs: records of the tier on disk, in the order of their keys.
//!
//! ```text
//!   pieces    | page | page | .. |     | page | .. |      side by side as far as the store has room
//!   page      header | run | index | what | last | count | record | record | ..
//! ```
//!
//! | offset | size | field | meaning |
//! |---|---|---|---|
//! | 32 | 4 | run | generation of the run's first page; of two runs the later one has the greater |
//! | 36 | 4 | index | of the page in the run |
//! | 40 | 1 | what | 1: records that the root lacks; 2: records that the tree has, too |
//! | 41 | 1 | last | 1 in the last page of the run, else 0 |
//! | 42 | 2 | count | records of the page |
//!
//! Then follow the records: flags (1 byte: bit 0 the key has no value, bit 1 the value is the pointer to a large
//! one), length of the key (2), length of the value (2), key, value. No record lies in two pages, so a damaged page
//! loses its own records only. All integers are little-endian.
//!
//! In a payload a run is: number of its records (8), of its pieces (4), and each piece: first page, pages, generation
//! (4 each). A run of no records has no pieces.
//!
//! **Invariants**
//! 1. Keys of a run ascend strictly.
//! 2. A run is read only while a slot names it; what a slot names is whole.

use std::ops::Range;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, ErrorKind, Generation, Lsn, PageNumber, Result, ValueRef};
use spinney_extent::header::{Damage, u32_at};
use spinney_extent::{BlockHeader, BlockKind, Extent, HEADER_BYTES, PageRun, Store};
use spinney_io::{AlignedBuf, Purpose};

/// The kind of a run's pages.
pub(crate) const IMAGE: BlockKind = BlockKind::new(12, "image");

/// Pages that are written and read together. With more, a run takes more memory while it is written; with fewer, the
/// disk waits.
pub(crate) const TOGETHER: usize = 64;
/// Most pages that are allocated together: 16 MiB. Each time takes a generation, of which there are 2^32.
const ALLOCATED_MAX: u64 = 4096;

const RUN: usize = HEADER_BYTES;
const INDEX: usize = RUN + 4;
const WHAT: usize = INDEX + 4;
const LAST: usize = WHAT + 1;
const COUNT: usize = LAST + 1;
const RECORDS: usize = COUNT + 2;
/// Bytes of a record beside its key and its value.
const RECORD: usize = 5;

const REMOVED: u8 = 1;
const LARGE: u8 = 2;

/// What the records of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Newer than what the root has.
    Dirty = 1,
    /// The same as what the tree had when they were written.
    Clean = 2,
}

/// A run as a payload names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) records: u64,
    pub(crate) pieces: Vec<PageRun>,
}

impl Run {
    /// Returns the number of the run, as its pages have it; `None` where it has no records.
    pub(crate) fn number(&self) -> Option<Generation> {
        self.pieces.first().map(|piece| piece.generation)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.pages)).sum()
    }

    /// Returns the extents that it owns.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (Extent, Generation)> {
        self.pieces.iter().flat_map(PageRun::extents)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.records.to_le_bytes());
        let pieces = u32::try_from(self.pieces.len()).expect("pieces are pages of one file");
        out.extend(pieces.to_le_bytes());
        for piece in &self.pieces {
            for field in [piece.first.0, piece.pages, piece.generation.0] {
                out.extend(field.to_le_bytes());
            }
        }
    }

    /// Decodes the next run; `None` for bytes that [`Run::encode`] does not write.
    pub(crate) fn decode(left: &mut &[u8]) -> Option<Run> {
        let (records, rest) = left.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let bytes = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(12)?;
        let (fields, rest) = rest.split_at_checked(bytes)?;
        *left = rest;
        let piece = |fields: &[u8; 12]| {
            let piece = PageRun {
                first: PageNumber(u32_at(fields, 0)),
                pages: u32_at(fields, 4),
                generation: Generation(u32_at(fields, 8)),
            };
            let end = piece.first.0.checked_add(piece.pages);
            (piece.pages > 0 && end.is_some()).then_some(piece)
        };
        let pieces: Option<Vec<PageRun>> = fields.as_chunks().0.iter().map(piece).collect();
        let run = Run { records: u64::from_le_bytes(*records), pieces: pieces? };
        (run.pieces.is_empty() == (run.records == 0)).then_some(run)
    }

    /// Gives the pages back, which nothing names.
    pub(crate) fn release(&self, store: &Store) {
        self.pieces.iter().for_each(|piece| store.release_run(*piece));
    }
}

/// A run that is being written. Dropping it frees its pages.
#[derive(Debug)]
pub(crate) struct RunWriter<'a> {
    store: &'a Store,
    what: What,
    /// Of the log: no record above it is in the run.
    lsn: Lsn,
    purpose: Purpose,
    /// About how many pages it comes to have.
    expected: u64,
    written: u64,
    run: Run,
    /// Pages that are taken and not written.
    ready: Vec<PageNumber>,
    generation: Generation,
    buf: AlignedBuf,
    /// Full pages of the buffer, and what the one behind them has.
    full: usize,
    count: u16,
    used: usize,
}

impl<'a> RunWriter<'a> {
    /// Begins a run of about `expected` pages. `lsn` is the log's last one at the time of a record or later.
    pub(crate) fn new(
        store: &'a Store,
        what: What,
        (lsn, purpose): (Lsn, Purpose),
        expected: u64,
    ) -> RunWriter<'a> {
        let run = Run::default();
        let (ready, generation) = (Vec::new(), Generation(0));
        let buf = AlignedBuf::new(TOGETHER);
        let (full, count, used) = (0, 0, RECORDS);
        RunWriter {
            store,
            what,
            lsn,
            purpose,
            expected,
            written: 0,
            run,
            ready,
            generation,
            buf,
            full,
            count,
            used,
        }
    }

    /// Notes that later records may have an LSN up to this one.
    pub(crate) fn follow(&mut self, lsn: Lsn) {
        self.lsn = lsn;
    }

    /// Adds the next record.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn push(&mut self, key: &[u8], value: Option<ValueRef<'_>>) -> Result<()> {
        let (bytes, flags): (&[u8], u8) = match value {
            None => (&[], REMOVED),
            Some(ValueRef { bytes, large: true }) => (bytes, LARGE),
            Some(ValueRef { bytes, large: false }) => (bytes, 0),
        };
        let needed = RECORD + key.len() + bytes.len();
        if self.used + needed > PAGE_BYTES {
            self.end_page(false)?;
        }
        let lengths = (u16::try_from(key.len()), u16::try_from(bytes.len()));
        let (Ok(of_key), Ok(of_value), true) =
            (lengths.0, lengths.1, self.used + needed <= PAGE_BYTES)
        else {
            let text = format!("a record of {needed} bytes does not fit into a page of an image");
            return Err(Error::invalid(text));
        };
        let page = self.buf.page_mut(self.full);
        let mut at = self.used;
        let mut put = |bytes: &[u8]| {
            page[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&[flags]);
        put(&of_key.to_le_bytes());
        put(&of_value.to_le_bytes());
        put(key);
        put(bytes);
        self.used = at;
        self.count += 1;
        self.run.records += 1;
        Ok(())
    }

    /// Ends the page that is being filled.
    fn end_page(&mut self, is_last: bool) -> Result<()> {
        let page = self.buf.page_mut(self.full);
        page[self.used..].fill(0);
        page[WHAT] = self.what as u8;
        page[LAST] = u8::from(is_last);
        page[COUNT..RECORDS].copy_from_slice(&self.count.to_le_bytes());
        (self.count, self.used) = (0, RECORDS);
        self.full += 1;
        if self.full == TOGETHER || is_last { self.write() } else { Ok(()) }
    }

    /// Takes pages until there are some for all full ones.
    fn write(&mut self) -> Result<()> {
        let mut from = 0;
        while from < self.full {
            if self.ready.is_empty() {
                self.take()?;
            }
            let some = (self.full - from).min(self.ready.len());
            let pages: Vec<PageNumber> = self.ready.drain(..some).collect();
            let number = self.run.number().unwrap_or(self.generation);
            for (index, page) in pages.iter().enumerate() {
                let block = self.buf.page_mut(from + index);
                let place = u32::try_from(self.written).expect("a file has fewer pages");
                block[RUN..INDEX].copy_from_slice(&number.0.to_le_bytes());
                block[INDEX..WHAT].copy_from_slice(&place.to_le_bytes());
                let header = BlockHeader {
                    kind: IMAGE,
                    page: *page,
                    generation: self.generation,
                    keyspace: self.store.keyspace(),
                    lsn: self.lsn,
                };
                header.seal(block);
                self.written += 1;
                self.note(*page);
            }
            let bytes = &self.buf.bytes()[from * PAGE_BYTES..(from + some) * PAGE_BYTES];
            let mut left = bytes;
            let runs: Vec<(PageNumber, &[u8])> = (pages)
                .chunk_by(|one, next| one.0.checked_add(1) == Some(next.0))
                .map(|side| {
                    let (here, rest) = left.split_at(side.len() * PAGE_BYTES);
                    left = rest;
                    (side[0], here)
                })
                .collect();
            self.store.write_runs(&runs, self.purpose)?;
            from += some;
        }
        self.full = 0;
        Ok(())
    }

    /// Adds a page to the pieces of the run.
    fn note(&mut self, page: PageNumber) {
        let generation = self.generation;
        match self.run.pieces.last_mut() {
            Some(last)
                if last.generation == generation
                    && last.first.0.checked_add(last.pages) == Some(page.0) =>
            {
                last.pages += 1;
            }
            _ => self.run.pieces.push(PageRun { first: page, pages: 1, generation }),
        }
    }

    fn take(&mut self) -> Result<()> {
        let least = (self.full as u64).min(ALLOCATED_MAX);
        let count = self.expected.saturating_sub(self.written).clamp(least, ALLOCATED_MAX);
        let count = u32::try_from(count).expect("batches are short");
        (self.ready, self.generation) = self.store.allocate_batch(0, count)?;
        Ok(())
    }

    /// Writes the rest. Returns the run, whose pages belong to the caller now.
    ///
    /// # Errors
    /// As [`RunWriter::push`].
    pub(crate) fn finish(mut self) -> Result<Run> {
        if self.run.records > 0 {
            self.end_page(true)?;
        }
        Ok(std::mem::take(&mut self.run))
    }
}

impl Drop for RunWriter<'_> {
    fn drop(&mut self) {
        self.run.release(self.store);
        let ready = self.ready.drain(..);
        ready.for_each(|page| self.store.release(Extent { page, order: 0 }));
    }
}

/// Where a record lies in a buffer.
#[derive(Clone, Debug)]
struct At {
    key: Range<usize>,
    value: Range<usize>,
    flags: u8,
}

/// What a page of a run says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) run: Generation,
    pub(crate) index: u32,
    pub(crate) what: u8,
    pub(crate) is_last: bool,
}

/// Parses the page at `from` of a buffer, whose header is right, and adds its records.
fn parse(buf: &[u8], from: usize, out: &mut Vec<At>) -> Result<Head, Damage> {
    let page = &buf[from..from + PAGE_BYTES];
    let wrong = |what: &str| Damage::new(what, "bytes that no run has");
    let number = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
    let begin = out.len();
    let mut at = RECORDS;
    for _ in 0..number(COUNT) {
        if at + RECORD > PAGE_BYTES {
            return Err(wrong("records within their page"));
        }
        let (flags, key) = (page[at], at + RECORD);
        let value = key + number(at + 1);
        let end = value + number(at + 3);
        let is_known = [0, REMOVED, LARGE].contains(&flags) && (flags != REMOVED || end == value);
        if end > PAGE_BYTES || !is_known {
            return Err(wrong("records within their page, of known flags"));
        }
        let record = At { key: from + key..from + value, value: from + value..from + end, flags };
        if out[begin..].last().is_some_and(|last| buf[last.key.clone()] >= buf[record.key.clone()])
        {
            return Err(wrong("keys that ascend"));
        }
        out.push(record);
        at = end;
    }
    if page[LAST] > 1 {
        return Err(wrong("a page that is the last one or not"));
    }
    Ok(Head {
        run: Generation(u32_at(page, RUN)),
        index: u32_at(page, INDEX),
        what: page[WHAT],
        is_last: page[LAST] == 1,
    })
}

/// Records of pages that were read, which are kept in one buffer.
#[derive(Debug)]
pub(crate) struct Pages {
    buf: AlignedBuf,
    records: Vec<At>,
}

impl Pages {
    /// Makes a buffer of `pages` pages.
    pub(crate) fn new(pages: usize) -> Pages {
        Pages { buf: AlignedBuf::new(pages), records: Vec::new() }
    }

    /// Takes a page whose header is right, and says which it is.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn copy(&mut self, block: &[u8; PAGE_BYTES]) -> Result<Head, Damage> {
        self.buf.page_mut(0).copy_from_slice(block);
        self.records.clear();
        parse(self.buf.bytes(), 0, &mut self.records)
    }

    /// Returns the records in order; `None` for a key that has no value.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&[u8], Option<ValueRef<'_>>)> {
        let buf = self.buf.bytes();
        self.records.iter().map(|At { key, value, flags }| {
            let value = ValueRef { bytes: &buf[value.clone()], large: flags & LARGE != 0 };
            (&buf[key.clone()], (flags & REMOVED == 0).then_some(value))
        })
    }
}

/// Reads a run from its first page on, some pages at a time, and checks everything.
#[derive(Debug)]
pub(crate) struct RunReader<'a> {
    store: &'a Store,
    run: &'a Run,
    what: What,
    purpose: Purpose,
    pages: Pages,
    /// The piece that is read next, and which of its pages; how many pages lie before.
    next: (usize, u32, u32),
    seen: u64,
    last: Option<Vec<u8>>,
}

impl<'a> RunReader<'a> {
    pub(crate) fn new(store: &'a Store, run: &'a Run, what: What, purpose: Purpose) -> Self {
        let pages = Pages::new(TOGETHER);
        RunReader { store, run, what, purpose, pages, next: (0, 0, 0), seen: 0, last: None }
    }

    /// Goes to the page with this index.
    pub(crate) fn skip_to(&mut self, index: u32) {
        let mut left = index;
        for (place, piece) in self.run.pieces.iter().enumerate() {
            if left < piece.pages {
                self.next = (place, left, index);
                return;
            }
            left -= piece.pages;
        }
        self.next = (self.run.pieces.len(), 0, index);
    }

    /// Reads up to `most` pages that lie side by side. Returns where they lie; `None` at the end.
    ///
    /// # Errors
    /// `Corruption` or `Io`. The next call reads what follows.
    pub(crate) fn read(&mut self, most: usize) -> Result<Option<PageRun>> {
        let (place, within, index) = self.next;
        let Some(piece) = self.run.pieces.get(place) else { return Ok(None) };
        let most = u32::try_from(most.min(TOGETHER)).expect("few pages");
        let pages = (piece.pages - within).min(most);
        let is_end = within + pages == piece.pages;
        self.next = if is_end {
            (place + 1, 0, index + pages)
        } else {
            (place, within + pages, index + pages)
        };
        self.pages.records.clear();
        let part = PageRun { first: piece.page(within), pages, ..*piece };
        let bytes = &mut self.pages.buf.bytes_mut()[..pages as usize * PAGE_BYTES];
        self.store.read_runs(&mut [(part, 0, bytes)], IMAGE, self.purpose)?;
        for number in 0..pages {
            let head = parse(
                self.pages.buf.bytes(),
                number as usize * PAGE_BYTES,
                &mut self.pages.records,
            );
            let is_last = u64::from(index + number) + 1 == self.run.pages();
            let wanted = Head {
                run: self.run.number().expect("it has pieces"),
                index: index + number,
                what: self.what as u8,
                is_last,
            };
            let checked = head.and_then(|head| match head == wanted {
                true => Ok(()),
                false => Err(Damage::new(format!("{wanted:?}"), format!("{head:?}"))),
            });
            checked.map_err(|damage| damage.at(self.store.path(), part.page(number)))?;
        }
        Ok(Some(part))
    }

    /// Reads the next pages, which follow all before. Returns `false` at the end.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn next(&mut self) -> Result<bool> {
        if self.read(TOGETHER)?.is_none() {
            let (seen, records) = (self.seen, self.run.records);
            if seen == records {
                return Ok(false);
            }
            return Err(self.damaged(&format!("a run of {records} records"), &seen.to_string()));
        }
        self.seen += self.pages.records.len() as u64;
        let buf = self.pages.buf.bytes();
        for At { key, .. } in &self.pages.records {
            let key = &buf[key.clone()];
            if self.last.as_deref().is_some_and(|last| last >= key) {
                return Err(self.damaged("keys of a run that ascend", "others"));
            }
            let last = self.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
        }
        Ok(true)
    }

    /// Returns the page that is read next; `None` at the end.
    pub(crate) fn place(&self) -> Option<PageNumber> {
        let (place, within, _) = self.next;
        self.run.pieces.get(place).map(|piece| piece.page(within))
    }

    /// Returns its index in the run.
    pub(crate) fn index(&self) -> u32 {
        self.next.2
    }

    fn damaged(&self, expected: &str, found: &str) -> Error {
        let path = self.store.path().display();
        let text = format!("{path}: an image: expected {expected}, found {found}");
        Error::new(ErrorKind::Corruption, text)
    }

    /// Returns the records of the pages that were read last.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&[u8], Option<ValueRef<'_>>)> {
        self.pages.records()
    }

    /// Returns the bytes of the pages that were read last, and more behind them.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.pages.buf.bytes()
    }
}
