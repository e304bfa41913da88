//! Tile groups: the values of all records, in the order in which they were inserted.
//!
//! ```text
//!   tile group 0                                    tile group 1
//!   keys      | tile 0: rows of columns a b | tile 1: rows of column c |   ...
//!   512 times   512 times                     512 times
//! ```
//!
//! A place is the number of a row over all tile groups. Long keys, of which the entry has no copy,
//! have a tile of their own.
//!
//! **Invariants**
//! 1. Each value is copied by atomic words (rule P27). Whether a copy is whole is the reader's to
//!    know, by the version before and after it.
//! 2. Only the owner of a record stores its values, and rows of two records share no word.

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::AtomicU64;
use spinney_base::shim::atomic::Ordering::{Acquire, Relaxed, Release};
use spinney_sync::blocks::Blocks;
use spinney_sync::prefetch;
use spinney_sync::racy::{self, WORD_BYTES, Word};

use crate::heads::{BATCH, KEY_INLINE_MAX};
use crate::schema::{Columns, Layout, Place, Schema};
use crate::undo::Nothing;

/// Records of a tile group. The code that the paper was measured with has 1,000.
const RECORDS: usize = 512;
const _: () = assert!(RECORDS.is_multiple_of(BATCH as usize));

/// Words of a page of the system, of which a block is a multiple.
const PAGE_WORDS: usize = 512;

/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// Most lines of a run of columns that are prefetched: 1 KiB. With 4, a copy of ten columns of 100
/// bytes waits for the rest of its lines; with more, a long run takes the place of the next one.
const PREFETCHED_LINES: usize = 16;

/// The tile groups of a table. Thread-safe.
#[derive(Debug)]
pub(crate) struct Tiles {
    blocks: Blocks<Nothing>,
    block_words: usize,
    /// Words of a long key, 0 if keys are short.
    key_words: usize,
    columns: Vec<Place>,
    /// First word and words of a row, for each column group.
    groups: Vec<(usize, usize)>,
    growing: Mutex<()>,
    /// Tile groups that are there.
    made: AtomicU64,
}

/// Columns that lie side by side in one row, and that are read at once.
#[derive(Clone, Copy, Debug)]
struct Run {
    group: usize,
    offset: usize,
    width: usize,
}

impl Tiles {
    pub(crate) fn new(schema: &Schema, layout: Layout) -> Tiles {
        let (columns, rows) = schema.places(layout);
        let key_bytes = schema.key_bytes();
        let is_long = key_bytes > KEY_INLINE_MAX;
        let key_words = if is_long { key_bytes.div_ceil(WORD_BYTES) } else { 0 };
        let mut next = RECORDS * key_words;
        let mut groups = Vec::new();
        for words in rows {
            groups.push((next, words));
            next += RECORDS * words;
        }
        let block_words = next.max(1).next_multiple_of(PAGE_WORDS);
        let (blocks, growing) = (Blocks::new(block_words), Mutex::new(()));
        let made = AtomicU64::new(0);
        Tiles { blocks, block_words, key_words, columns, groups, growing, made }
    }

    /// Makes the tile group of a place, if it is not there.
    pub(crate) fn reach(&self, place: u32) {
        let group = u64::from(place) / RECORDS as u64;
        if self.made.load(Acquire) > group {
            return;
        }
        let _one_at_a_time = self.growing.lock();
        while self.made.load(Acquire) <= group {
            self.blocks.take();
            // The block is there before anybody counts on it.
            self.made.fetch_add(1, Release);
        }
    }

    #[inline]
    fn row(&self, place: usize, (first, words): (usize, usize)) -> &[Word] {
        let block = u32::try_from(place / RECORDS).unwrap_or(u32::MAX);
        let (block, ..) = self.blocks.block(block);
        &block[first + place % RECORDS * words..][..words]
    }

    /// Returns the words of a long key.
    #[inline]
    pub(crate) fn key(&self, place: usize) -> &[Word] {
        self.row(place, (0, self.key_words))
    }

    pub(crate) fn store_key(&self, place: usize, key: &[u8]) {
        if self.key_words > 0 {
            racy::store_parts(self.key(place), [key, &[]]);
        }
    }

    /// Calls `act` with runs of columns side by side, in the order of the columns.
    #[inline]
    fn runs(&self, columns: Columns, mut act: impl FnMut(Run)) {
        let mut run: Option<Run> = None;
        for column in columns.iter() {
            let Place { group, offset, width } = self.columns[column];
            match &mut run {
                Some(run) if run.group == group && run.offset + run.width == offset => {
                    run.width += width;
                }
                _ => {
                    if let Some(run) = run.replace(Run { group, offset, width }) {
                        act(run);
                    }
                }
            }
        }
        if let Some(run) = run {
            act(run);
        }
    }

    /// Appends the values of some columns, in their order.
    #[inline]
    pub(crate) fn append(&self, place: usize, columns: Columns, out: &mut Vec<u8>) {
        self.runs(columns, |run| {
            let row = self.row(place, self.groups[run.group]);
            racy::append_bytes(row, run.offset, run.width, out);
        });
    }

    /// Prefetches the values of some columns.
    pub(crate) fn prefetch(&self, place: usize, columns: Columns) {
        self.runs(columns, |run| {
            let row = self.row(place, self.groups[run.group]);
            let words = run.offset / WORD_BYTES..(run.offset + run.width).div_ceil(WORD_BYTES);
            let lines = row[words].iter().step_by(LINE_WORDS);
            lines.take(PREFETCHED_LINES).for_each(prefetch);
        });
    }

    /// Stores the value of a column.
    pub(crate) fn store(&self, place: usize, column: usize, value: &[u8]) {
        let Place { group, offset, width } = self.columns[column];
        debug_assert_eq!(value.len(), width);
        store_at(self.row(place, self.groups[group]), offset, value);
    }

    /// Copies the values of columns to a block, each from a whole word on.
    pub(crate) fn save(&self, place: usize, columns: Columns, block: &[Word], bytes: &mut Vec<u8>) {
        let mut at = 0;
        for column in columns.iter() {
            bytes.clear();
            self.append(place, Columns::one(column), bytes);
            racy::store_parts(&block[at..], [bytes, &[]]);
            at += bytes.len().div_ceil(WORD_BYTES);
        }
    }

    /// Words that [`save`](Tiles::save) needs.
    pub(crate) fn saved_words(&self, columns: Columns) -> usize {
        columns.iter().map(|column| self.columns[column].width.div_ceil(WORD_BYTES)).sum()
    }

    /// Bytes of all tile groups.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.used() * (self.block_words * WORD_BYTES) as u64
    }
}

/// Stores bytes from an offset on. The words are the caller's alone to store to.
fn store_at(words: &[Word], offset: usize, mut bytes: &[u8]) {
    let (mut at, mut skipped) = (offset / WORD_BYTES, offset % WORD_BYTES);
    while !bytes.is_empty() {
        let (now, rest) = bytes.split_at(bytes.len().min(WORD_BYTES - skipped));
        let mut word = u64::from_le(words[at].load(Relaxed)).to_le_bytes();
        word[skipped..skipped + now.len()].copy_from_slice(now);
        words[at].store(u64::from_le_bytes(word).to_le(), Relaxed);
        (at, skipped, bytes) = (at + 1, 0, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_in_each_layout() {
        let widths = [4, 100, 8, 1, 3, 24];
        let schema = Schema::new(40, &widths).unwrap();
        for layout in Layout::ALL {
            let tiles = Tiles::new(&schema, layout);
            tiles.reach(1023);
            for (column, width) in widths.iter().enumerate() {
                for place in [5, 6, 1023] {
                    tiles.store(place, column, &vec![(place + column) as u8; *width]);
                }
            }
            tiles.store_key(6, b"a key of more than 16 bytes");
            let mut out = Vec::new();
            tiles.append(6, Columns(0b11010), &mut out);
            assert_eq!(out, [vec![7; 100], vec![9], vec![10; 3]].concat(), "{layout:?}");
            out.clear();
            tiles.append(1023, schema.all(), &mut out);
            assert_eq!((out.len(), out[0], out[139]), (140, 255, 4), "{layout:?}");
            assert_eq!(tiles.bytes() % 4096, 0);
        }
    }
}
