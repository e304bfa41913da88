//! A leaf: records of neighbouring keys in a block of 16 KiB, which readers search while a writer changes it
//! (rule P27).
//!
//! ```text
//!  header | fences  | heads   places  | heads   places  |  ->   room   <-  | data data .. | bounds |
//!  1 line | 3 lines | 2 lines 2 lines | 4 lines         |                  | from the end down     |
//!
//!  data of a record:  cell | rest of the key, value
//!                     word
//! ```
//!
//! A *group* has the heads and places of 16 records, in the order of the keys. A place says where the record's data lies,
//! and how long its parts are. The data begins with the [cell](spinney_ssn::Cells) that has the record's stamps: 1 + its
//! index, or 0. A record without a value, which only its stamps need, is *absent*.
//!
//! The *fence* of a group is the upper half of its first head. A search reads the header and the fences, which are fetched
//! together, then mostly one group, and then data: three waits for memory, however many records there are (section 4.6).
//!
//! | word of the header | bits | field |
//! |---|---|---|
//! | 0 | 16 each | records; first word of data |
//! | 1 | 16 each | bytes of the lower bound; of the upper one, or `0xFFFF`; bytes that all keys share; words of data that nothing names |
//! | 2 | 64 | incarnation of the bounds, which no other leaf has had; 0 while the block is free |
//! | 3 | 32 each | page and generation of the newest image |
//! | 4 | 1 each | status: changed since the image; the image is of other bounds; from bit 8 on 1 + order of the image, 0 for none |
//! | 5 | 64 | [gap](crate::gaps): where those leave their marks who read ranges here |
//! | 6 | 64 | records that have a cell |
//! | 7 | 32 each | index of the record that was inserted last; how many before it came in ascending order, each behind the one before |
//!
//! A head has 8 bytes of the key, behind what all keys share, padded with zeros. A place has the offset of the data in
//! words, the bytes of the key behind what is shared, the bytes of the value, and flags, 16 bits each.
//!
//! **Invariants**
//! 1. The bounds of an incarnation never change.
//! 2. Heads ascend, and of equal ones the rests of the keys do.
//! 3. Only the holder of the leaf's latch stores. A reader concludes nothing before it has validated the latch.
//!
//! **Differs from the paper**, whose slots have a line each with the stamps of a version: they lie in cells, which only
//! records that were written lately have (decisions 0028 and 0032). So a record takes 24 bytes beside its own.

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

use std::cmp::Ordering;

use spinney_base::ValueRef;
use spinney_base::shim::atomic::Ordering::Relaxed;
use spinney_engine::Patch;
use spinney_leaf::{Bounds, Entry, Records};
use spinney_sync::prefetch;
use spinney_sync::racy::{self, WORD_BYTES, Word};

use crate::image::Encoder;
use crate::place::Place;

/// Words of a block: 16 KiB. With less, long records leave more of a block unused; with more, splits and images take
/// longer.
pub(crate) const BLOCK_WORDS: usize = 2048;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = BLOCK_WORDS * WORD_BYTES;

const LINE_WORDS: usize = 8;
const HEADER_WORDS: usize = LINE_WORDS;
/// Words of fences, two in each.
const FENCE_WORDS: usize = 3 * LINE_WORDS;
const GROUPS_AT: usize = HEADER_WORDS + FENCE_WORDS;
/// Records of a group. With more, a search fetches more lines of a group; with fewer, it fetches more of fences.
const GROUP: usize = 16;
const GROUP_WORDS: usize = 2 * GROUP;
/// Words of a record beside its bytes: head, place and cell.
const RECORD_WORDS: usize = 3;
/// More records than a leaf has.
const RECORDS_MAX: usize = 2 * FENCE_WORDS * GROUP;
const _: () = assert!((BLOCK_WORDS - GROUPS_AT) / RECORD_WORDS < RECORDS_MAX);

/// Bytes of a key in its head.
const HEAD_BYTES: usize = 8;
/// In place of the length of a bound that there is not.
const NO_BOUND: usize = 0xFFFF;

/// Inserts in ascending order after which a leaf is split where the next one belongs. With fewer, random inserts do that,
/// too; with more, short runs leave leaves half full.
const RUN: u64 = 8;

/// The value is the pointer to a large one.
pub(crate) const LARGE: u8 = 1;
/// There is no value.
pub(crate) const ABSENT: u8 = 2;

/// The image on disk lacks some changes.
const CHANGED: u64 = 1;
/// The image on disk is of other bounds, or there is none.
const FRESH: u64 = 2;
const ORDER_AT: u32 = 8;

/// Makes the flags of a value.
pub(crate) fn flags_of(value: ValueRef<'_>) -> u8 {
    if value.large { LARGE } else { 0 }
}

/// Returns the value that flags and bytes tell of.
pub(crate) fn value_of<'e>(entry: &Entry<'e>) -> ValueRef<'e> {
    ValueRef { bytes: entry.value, large: entry.flags & LARGE != 0 }
}

/// Returns the words of data of a record.
fn data_words(suffix: usize, value: usize) -> usize {
    1 + (suffix.saturating_sub(HEAD_BYTES) + value).div_ceil(WORD_BYTES)
}

/// Returns the bytes that a record takes at least: what is left of its last word comes to them.
pub(crate) fn least_bytes(suffix: usize, value: usize) -> usize {
    RECORD_WORDS * WORD_BYTES + suffix.saturating_sub(HEAD_BYTES) + value
}

/// Returns the words that a leaf takes that has these records.
pub(crate) fn words_of(bounds: Bounds<'_>, lengths: impl Iterator<Item = (usize, usize)>) -> usize {
    let (mut count, mut data) = (0, 0);
    let prefix = bounds.prefix();
    for (key, value) in lengths {
        count += 1;
        data += data_words(key - prefix, value);
    }
    GROUPS_AT + bound_words(bounds) + usize::div_ceil(count, GROUP) * GROUP_WORDS + data
}

fn bound_words(bounds: Bounds<'_>) -> usize {
    let upper = bounds.upper.map_or(0, |upper| upper.len().div_ceil(WORD_BYTES));
    bounds.lower.len().div_ceil(WORD_BYTES) + upper
}

/// Where the data of a record lies, and how long its parts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    /// The word of the cell.
    offset: usize,
    suffix: usize,
    value: usize,
    flags: u8,
}

impl Data {
    fn words(self) -> usize {
        data_words(self.suffix, self.value)
    }

    /// The word where the rest of the key begins.
    fn rest_at(self) -> usize {
        self.offset + 1
    }

    fn rest(self) -> usize {
        self.suffix.saturating_sub(HEAD_BYTES)
    }

    /// The byte of the block where the value begins.
    fn value_at(self) -> usize {
        self.rest_at() * WORD_BYTES + self.rest()
    }

    /// Bytes of the value.
    pub(crate) fn value_bytes(self) -> usize {
        self.value
    }

    /// Whether the value is a pointer.
    pub(crate) fn is_large(self) -> bool {
        self.flags & LARGE != 0
    }

    /// Whether the value is in the leaf.
    pub(crate) fn is_inline(self) -> bool {
        self.flags & (LARGE | ABSENT) == 0
    }

    /// Whether there is no value.
    #[inline]
    pub(crate) fn is_absent(self) -> bool {
        self.flags & ABSENT != 0
    }
}

/// A record with what [`Records::about`] says of it: its cell.
pub(crate) type Moved<'e> = (Entry<'e>, u64);

/// Some of the records that were copied, with their cells.
pub(crate) fn moved(
    records: &Records,
    which: std::ops::Range<usize>,
) -> impl Iterator<Item = Moved<'_>> {
    which.map(|index| (records.entry(index), records.about(index)))
}

/// A leaf in its block. The module says who may call what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf<'a> {
    words: &'a [Word],
}

impl<'a> Leaf<'a> {
    #[inline]
    pub(crate) fn new(words: &'a [Word]) -> Leaf<'a> {
        debug_assert_eq!(words.len(), BLOCK_WORDS);
        Leaf { words }
    }

    /// Loads a word; 0 where a race leads out of the block.
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| u64::from_le(word.load(Relaxed)))
    }

    fn store(&self, index: usize, word: u64) {
        self.words[index].store(word.to_le(), Relaxed);
    }

    #[inline]
    fn field(&self, word: usize, index: u32) -> usize {
        (self.load(word) >> (16 * index) & 0xFFFF) as usize
    }

    fn set_field(&self, word: usize, index: u32, value: usize) {
        debug_assert!(value <= 0xFFFF);
        let cleared = self.load(word) & !(0xFFFF << (16 * index));
        self.store(word, cleared | (value as u64) << (16 * index));
    }

    /// Number of records.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.field(0, 0).min(RECORDS_MAX)
    }

    fn data_at(&self) -> usize {
        self.field(0, 1)
    }

    fn waste(&self) -> usize {
        self.field(1, 3)
    }

    #[inline]
    pub(crate) fn incarnation(&self) -> u64 {
        self.load(2)
    }

    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.store(2, incarnation);
    }

    /// Returns the gap that all keys of the leaf lie in.
    #[inline]
    pub(crate) fn gap(&self) -> u64 {
        self.load(5)
    }

    pub(crate) fn set_gap(&self, gap: u64) {
        self.store(5, gap);
    }

    /// Number of records that have a cell.
    #[inline]
    pub(crate) fn cells(&self) -> u64 {
        self.load(6)
    }

    /// Whether records come in ascending order, each behind the one before, and the next would have this index.
    pub(crate) fn is_run(&self, index: usize) -> bool {
        let (last, run) = (self.load(7) & 0xFFFF_FFFF, self.load(7) >> 32);
        run >= RUN && index as u64 == last + 1
    }

    /// Notes that a run goes on behind this record.
    pub(crate) fn set_run(&self, index: usize) {
        self.store(7, index as u64 | RUN << 32);
    }

    fn note_insert(&self, index: usize) {
        let (last, run) = (self.load(7) & 0xFFFF_FFFF, self.load(7) >> 32);
        let run = if index as u64 == last + 1 { (run + 1).min(RUN) } else { 0 };
        self.store(7, index as u64 | run << 32);
    }

    fn count_cell(&self, before: bool, after: bool) {
        self.store(6, self.cells() + u64::from(after) - u64::from(before));
    }

    /// Whether the image on disk lacks changes.
    pub(crate) fn is_changed(&self) -> bool {
        self.load(4) & CHANGED != 0
    }

    /// Whether no image has the bounds of the leaf.
    pub(crate) fn is_fresh(&self) -> bool {
        self.load(4) & FRESH != 0
    }

    pub(crate) fn set_changed(&self, is_changed: bool) {
        self.store(4, self.load(4) & !CHANGED | if is_changed { CHANGED } else { 0 });
    }

    pub(crate) fn set_fresh(&self) {
        self.store(4, self.load(4) | FRESH);
    }

    /// Where the newest image lies, of these bounds or, in a fresh leaf, others.
    pub(crate) fn image(&self) -> Option<Place> {
        let order = u8::try_from(self.load(4) >> ORDER_AT & 0xFF).ok()?.checked_sub(1)?;
        Some(Place::from_word(self.load(3), order))
    }

    /// Sets the image, which is of these bounds; without one the leaf is fresh.
    pub(crate) fn set_image(&self, place: Option<Place>) {
        let order = place.map_or(0, |place| u64::from(place.order) + 1);
        self.store(3, place.map_or(0, Place::word));
        let fresh = if place.is_none() { FRESH } else { 0 };
        self.store(4, self.load(4) & CHANGED | fresh | order << ORDER_AT);
    }

    fn lower_bytes(&self) -> usize {
        self.field(1, 0)
    }

    fn upper_bytes(&self) -> Option<usize> {
        Some(self.field(1, 1)).filter(|bytes| *bytes != NO_BOUND)
    }

    #[inline]
    fn prefix_bytes(&self) -> usize {
        self.field(1, 2)
    }

    /// First word behind the data.
    #[inline]
    fn bounds_at(&self) -> usize {
        let upper = self.upper_bytes().map_or(0, |bytes| bytes.div_ceil(WORD_BYTES));
        BLOCK_WORDS.saturating_sub(self.lower_bytes().div_ceil(WORD_BYTES) + upper)
    }

    fn append(&self, word: usize, skip: usize, bytes: usize, out: &mut Vec<u8>) {
        racy::append_bytes(self.words, word * WORD_BYTES + skip, bytes, out);
    }

    /// Appends the lower bound.
    pub(crate) fn lower(&self, out: &mut Vec<u8>) {
        self.append(self.bounds_at(), 0, self.lower_bytes(), out);
    }

    /// Appends the upper bound, and says whether there is one.
    pub(crate) fn upper(&self, out: &mut Vec<u8>) -> bool {
        let Some(bytes) = self.upper_bytes() else { return false };
        let at = self.bounds_at() + self.lower_bytes().div_ceil(WORD_BYTES);
        self.append(at, 0, bytes, out);
        true
    }

    #[inline]
    fn head_at(index: usize) -> usize {
        GROUPS_AT + index / GROUP * GROUP_WORDS + index % GROUP
    }

    #[inline]
    fn place_at(index: usize) -> usize {
        Self::head_at(index) + GROUP
    }

    fn head_of(suffix: &[u8]) -> u64 {
        if let Some(head) = suffix.first_chunk() {
            return u64::from_be_bytes(*head);
        }
        let mut bytes = [0; HEAD_BYTES];
        bytes[..suffix.len()].copy_from_slice(suffix);
        u64::from_be_bytes(bytes)
    }

    #[inline]
    fn head(&self, index: usize) -> u64 {
        self.load(Self::head_at(index))
    }

    fn fence_of(head: u64) -> u32 {
        (head >> 32) as u32
    }

    #[inline]
    fn fence(&self, group: usize) -> u32 {
        (self.load(HEADER_WORDS + group / 2) >> (32 * (group % 2))) as u32
    }

    /// Sets head and place of a record.
    fn set_record(&self, index: usize, head: u64, place: u64) {
        self.store(Self::head_at(index), head);
        self.store(Self::place_at(index), place);
        if index.is_multiple_of(GROUP) {
            let (group, fence) = (index / GROUP, Self::fence_of(head));
            let (at, shift) = (HEADER_WORDS + group / 2, 32 * (group % 2));
            let cleared = self.load(at) & !(0xFFFF_FFFF << shift);
            self.store(at, cleared | u64::from(fence) << shift);
        }
    }

    /// Returns the cell of a record.
    pub(crate) fn cell(&self, index: usize) -> Option<u32> {
        u32::try_from(self.about(index)).ok()?.checked_sub(1)
    }

    /// What [`Records::about`] says of it.
    pub(crate) fn about(&self, index: usize) -> u64 {
        self.load(self.data(index).offset)
    }

    pub(crate) fn set_cell(&self, index: usize, cell: Option<u32>) {
        let offset = self.data(index).offset;
        self.count_cell(self.load(offset) != 0, cell.is_some());
        self.store(offset, cell.map_or(0, |cell| u64::from(cell) + 1));
    }

    /// Number of records that have a value.
    pub(crate) fn present(&self) -> usize {
        (0..self.len()).filter(|index| !self.data(*index).is_absent()).count()
    }

    /// Returns where the data of a record is.
    #[inline]
    pub(crate) fn data(&self, index: usize) -> Data {
        let word = self.load(Self::place_at(index));
        let field = |index: u32| (word >> (16 * index) & 0xFFFF) as usize;
        let flags = (word >> 48 & 0xFF) as u8;
        Data { offset: field(0), suffix: field(1), value: field(2), flags }
    }

    fn place_of(data: Data) -> u64 {
        let fields = [data.offset, data.suffix, data.value, usize::from(data.flags)];
        fields.iter().rev().fold(0, |word, field| word << 16 | *field as u64)
    }

    /// Returns the records among which the first is whose head is not less, or else it is the next one behind them. None
    /// behind them has this head. Lets the processor fetch them all at once.
    #[inline]
    fn candidates(&self, head: u64) -> (usize, usize) {
        let (count, fence) = (self.len(), Self::fence_of(head));
        let groups = count.div_ceil(GROUP);
        // The last group whose fence is less, or the first: without branches, which nobody could foresee.
        let (mut first, mut size) = (0, groups);
        while size > 1 {
            let half = size / 2;
            let middle = first + half;
            first = if self.fence(middle) < fence { middle } else { first };
            size -= half;
        }
        // Mostly no group begins with this fence.
        let mut end = first + 1;
        while end < groups && self.fence(end) == fence {
            end += 1;
        }
        let lines = (Self::head_at(first * GROUP)..Self::head_at(end * GROUP)).step_by(LINE_WORDS);
        lines.filter_map(|line| self.words.get(line)).for_each(prefetch);
        (first * GROUP, count.min(end * GROUP))
    }

    /// Searches a key that lies between the bounds. Returns its index, or the one that it would have.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let suffix = key.get(self.prefix_bytes()..).unwrap_or_default();
        let (head, rest) = (Self::head_of(suffix), suffix.get(HEAD_BYTES..).unwrap_or_default());
        let (mut low, end) = self.candidates(head);
        let mut size = end - low;
        if size == 0 {
            return Err(0);
        }
        // The first head that is not less, without branches.
        while size > 1 {
            let half = size / 2;
            let middle = low + half;
            low = if self.head(middle) < head { middle } else { low };
            size -= half;
        }
        low += usize::from(self.head(low) < head);
        // Mostly one key has this head, or none.
        let mut high = low;
        while high < end && self.head(high) == head {
            high += 1;
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            let data = self.data(middle);
            let at = data.rest_at() * WORD_BYTES;
            let order = racy::compare_bytes(self.words, at, data.rest(), rest);
            match order.then(data.suffix.cmp(&suffix.len())) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Whether a key lies between the bounds, for the holder of the latch.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        let (lower, at) = (self.lower_bytes(), self.bounds_at() * WORD_BYTES);
        let behind = at + lower.next_multiple_of(WORD_BYTES);
        let is_below = |upper| racy::compare_bytes(self.words, behind, upper, key).is_gt();
        racy::compare_bytes(self.words, at, lower, key).is_le()
            && self.upper_bytes().is_none_or(is_below)
    }

    /// Lets the processor fetch the header.
    pub(crate) fn fetch_header(&self) {
        self.words.first().into_iter().for_each(prefetch);
    }

    /// Lets it fetch the fences that most leaves have, which a search reads behind the header.
    #[inline]
    pub(crate) fn fetch_fences(&self) {
        self.words.get(HEADER_WORDS).into_iter().for_each(prefetch);
    }

    /// Lets it fetch what [`Leaf::cell`] reads first of a record, which may have moved.
    pub(crate) fn fetch_place(&self, index: usize) {
        self.fetch_header();
        self.words.get(Self::place_at(index)).into_iter().for_each(prefetch);
    }

    /// Lets it fetch what is read next.
    #[inline]
    pub(crate) fn fetch_data(&self, index: usize) {
        if index < self.len() {
            self.words.get(self.data(index).offset).into_iter().for_each(prefetch);
        }
    }

    /// Whether a key that lies between the bounds has this index.
    pub(crate) fn is_at(&self, index: usize, key: &[u8]) -> bool {
        let suffix = key.get(self.prefix_bytes()..).unwrap_or_default();
        if index >= self.len() || self.head(index) != Self::head_of(suffix) {
            return false;
        }
        let data = self.data(index);
        let at = data.rest_at() * WORD_BYTES;
        let rest = suffix.get(HEAD_BYTES..).unwrap_or_default();
        data.suffix == suffix.len()
            && racy::compare_bytes(self.words, at, data.rest(), rest).is_eq()
    }

    /// Returns the bytes of a key and of its value.
    pub(crate) fn lengths(&self, index: usize) -> (usize, usize) {
        let data = self.data(index);
        (self.prefix_bytes() + data.suffix, data.value)
    }

    /// Appends what all keys share.
    pub(crate) fn prefix(&self, out: &mut Vec<u8>) {
        self.append(self.bounds_at(), 0, self.prefix_bytes(), out);
    }

    /// Appends a key.
    pub(crate) fn key(&self, index: usize, out: &mut Vec<u8>) {
        self.prefix(out);
        self.suffix(index, out);
    }

    /// Appends a key behind what all share.
    #[inline]
    pub(crate) fn suffix(&self, index: usize, out: &mut Vec<u8>) {
        let (head, data) = (self.head(index), self.data(index));
        out.extend_from_slice(&head.to_be_bytes()[..data.suffix.min(HEAD_BYTES)]);
        if data.rest() > 0 {
            self.append(data.rest_at(), 0, data.rest(), out);
        }
    }

    /// Appends a value.
    #[inline]
    pub(crate) fn value(&self, data: Data, out: &mut Vec<u8>) {
        self.append(data.rest_at(), data.rest(), data.value, out);
    }

    /// Returns the words in which a value differs from one that is as long, each with its number and the bits that differ,
    /// the first byte the lowest. For the holder of the latch.
    #[inline]
    pub(crate) fn differing<'n>(
        &self,
        data: Data,
        new: &'n [u8],
    ) -> impl Iterator<Item = (usize, u64)> + use<'a, 'n> {
        let (words, at) = (self.words, data.value_at());
        let (whole, rest) = new.as_chunks::<WORD_BYTES>();
        let mut last = [0; WORD_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        let (first, shift) = (at / WORD_BYTES, 8 * (at % WORD_BYTES));
        let load =
            move |index: usize| words.get(first + index).map_or(0, |word| word.load(Relaxed));
        let whole = whole.iter().enumerate().map(move |(number, bytes)| {
            // Mostly they lie at words.
            let low = u64::from_le(load(number)) >> shift;
            let high = if shift == 0 { 0 } else { u64::from_le(load(number + 1)) << (64 - shift) };
            (number, (low | high) ^ u64::from_le_bytes(*bytes))
        });
        // Bytes behind the value are those of something else.
        let behind = 8 * (WORD_BYTES - rest.len());
        let number = new.len() / WORD_BYTES;
        let last = (!rest.is_empty()).then(|| {
            let old = racy::word_at(words, at + number * WORD_BYTES) << behind >> behind;
            (number, old ^ u64::from_le_bytes(last))
        });
        whole.chain(last).filter(|(_, differ)| *differ != 0)
    }

    /// Copies a part of a value, for the holder of the latch.
    pub(crate) fn copy_part(&self, data: Data, from: usize, out: &mut [u8]) {
        racy::copy_bytes(self.words, data.value_at() + from, out);
    }

    /// Words that everything takes, once it lies together.
    pub(crate) fn live_words(&self) -> usize {
        self.live_with(self.len())
    }

    /// Words of data that records take.
    fn taken_words(&self) -> usize {
        self.bounds_at().saturating_sub(self.data_at()).saturating_sub(self.waste())
    }

    /// Returns the bytes that the records take in an image, or more.
    pub(crate) fn image_bytes(&self) -> usize {
        (self.len() * RECORD_WORDS + self.taken_words()) * WORD_BYTES
    }

    /// Returns about how many bytes the keys and values take: as many a word of data as those of the first group. For a
    /// reader that does not validate it.
    pub(crate) fn approximate_bytes(&self) -> u64 {
        let (mut bytes, mut words) = (0, 0);
        for data in (0..self.len().min(GROUP)).map(|index| self.data(index)) {
            bytes += self.prefix_bytes() + data.suffix + data.value;
            words += data.words();
        }
        (self.taken_words() * bytes / words.max(1)) as u64
    }

    fn live_with(&self, records: usize) -> usize {
        let data = BLOCK_WORDS.saturating_sub(self.data_at()).saturating_sub(self.waste());
        GROUPS_AT + records.div_ceil(GROUP) * GROUP_WORDS + data
    }

    /// Copies all records, absent ones too, each with its cell.
    pub(crate) fn copy(&self, records: &mut Records) {
        for index in 0..self.len() {
            let data = self.data(index);
            let about = (data.flags, self.about(index));
            records.push(about, |out| self.key(index, out), |out| self.value(data, out));
        }
    }

    /// Adds the records that have a value to an image with the same bounds.
    pub(crate) fn encode_present(&self, image: &mut Encoder) {
        for index in 0..self.len() {
            let (head, data) = (self.head(index), self.data(index));
            if data.is_absent() {
                continue;
            }
            image.push(data.flags, (data.suffix, data.value), |out| {
                out.extend_from_slice(&head.to_be_bytes()[..data.suffix.min(HEAD_BYTES)]);
                // The rest of the key and the value lie side by side.
                self.append(data.rest_at(), 0, data.rest() + data.value, out);
            });
        }
    }
}

/// What the holder of the latch does.
impl Leaf<'_> {
    /// Writes all of the leaf, which has room for it. Incarnation, status, image and gap stay.
    pub(crate) fn write<'e>(&self, bounds: Bounds<'_>, entries: impl Iterator<Item = Moved<'e>>) {
        self.clear(bounds);
        for (index, moved) in entries.enumerate() {
            let is_in = self.insert(index, moved);
            assert!(is_in, "a leaf is written with what fits into it");
        }
    }

    /// Does the same with records of another one, each picked by its index, and one that is new where none is picked.
    pub(crate) fn write_picked(
        &self,
        bounds: Bounds<'_>,
        source: Leaf<'_>,
        picks: impl Iterator<Item = Option<usize>>,
        new: Moved<'_>,
    ) {
        self.clear(bounds);
        let more = bounds.prefix().checked_sub(source.prefix_bytes());
        let more = more.expect("the bounds of a part share as much as those of all");
        for (index, pick) in picks.enumerate() {
            if let Some(at) = pick {
                self.push_copy(index, source, (at, more));
            } else {
                let is_in = self.insert(index, new);
                assert!(is_in, "a leaf is written with what fits into it");
            }
        }
    }

    /// Appends a record of another leaf, in which all keys share `more` bytes less: word by word.
    fn push_copy(&self, index: usize, source: Leaf<'_>, (at, more): (usize, usize)) {
        let (head, before) = (source.head(at), source.data(at));
        let data = Data { suffix: before.suffix - more, ..before };
        let data = Data { offset: self.take(data.words()), ..data };
        // So many bytes of the rest of the key are in the head now, or shared.
        let skipped = before.rest() - data.rest();
        let begin = before.rest_at() * WORD_BYTES + skipped;
        let about = source.load(before.offset);
        self.store(data.offset, about);
        self.count_cell(false, about != 0);
        let rest = &self.words[data.rest_at()..data.offset + data.words()];
        for (index, to) in rest.iter().enumerate() {
            let word = racy::word_at(source.words, begin + index * WORD_BYTES);
            to.store(word.to_le(), Relaxed);
        }
        let head = if more == 0 { head } else { source.head_behind(head, before, more) };
        self.set_record(index, head, Self::place_of(data));
        self.set_field(0, 0, index + 1);
    }

    /// Returns the head that a record has once all keys share `more` bytes more.
    fn head_behind(&self, head: u64, data: Data, more: usize) -> u64 {
        let bytes = (data.suffix - more).min(HEAD_BYTES);
        if bytes == 0 {
            return 0;
        }
        let rest = data.rest_at() * WORD_BYTES;
        let behind = |skipped: usize| racy::word_at(self.words, rest + skipped).swap_bytes();
        let head = match more.checked_sub(HEAD_BYTES) {
            Some(skipped) => behind(skipped),
            // The end of the head, then the rest.
            None => head << (8 * more) | behind(0) >> (8 * (HEAD_BYTES - more)),
        };
        // Zeros behind the end of the key.
        head & (u64::MAX << (64 - 8 * bytes))
    }

    /// Returns a copy of all words.
    pub(crate) fn scratch(&self) -> Vec<Word> {
        self.words.iter().map(|word| Word::new(word.load(Relaxed))).collect()
    }

    /// Takes out all records, and gives the leaf bounds.
    fn clear(&self, bounds: Bounds<'_>) {
        let lower = bounds.lower.len().div_ceil(WORD_BYTES);
        let bounds_at = BLOCK_WORDS - bound_words(bounds);
        racy::store_parts(&self.words[bounds_at..], [bounds.lower, &[]]);
        if let Some(upper) = bounds.upper {
            racy::store_parts(&self.words[bounds_at + lower..], [upper, &[]]);
        }
        self.store(0, (bounds_at as u64) << 16);
        self.store(6, 0);
        let upper = bounds.upper.map_or(NO_BOUND, <[u8]>::len);
        let fields = [bounds.lower.len(), upper, bounds.prefix(), 0];
        self.store(1, fields.iter().rev().fold(0, |word, field| word << 16 | *field as u64));
        self.store(7, 0);
    }

    /// Moves everything together, so that all of the room lies in one piece.
    fn compact(&self) {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        self.lower(&mut lower);
        let has_upper = self.upper(&mut upper);
        let bounds = Bounds { lower: &lower, upper: has_upper.then_some(&upper[..]) };
        let scratch = self.scratch();
        let source = Leaf::new(&scratch);
        let none = (Entry { key: &[], value: &[], flags: 0 }, 0);
        self.write_picked(bounds, source, (0..source.len()).map(Some), none);
    }

    /// Words between groups and data.
    fn room(&self) -> usize {
        let end = GROUPS_AT + self.len().div_ceil(GROUP) * GROUP_WORDS;
        self.data_at().saturating_sub(end)
    }

    /// Takes room for data at the low end of it.
    fn take(&self, words: usize) -> usize {
        let at = self.data_at() - words;
        self.set_field(0, 1, at);
        at
    }

    fn waste_more(&self, words: usize) {
        self.set_field(1, 3, self.waste() + words);
    }

    /// Adds a record that would have this index. Returns whether there was room in one piece.
    fn insert(&self, index: usize, (entry, about): Moved<'_>) -> bool {
        let suffix = &entry.key[self.prefix_bytes()..];
        let (count, value) = (self.len(), entry.value.len());
        let words = data_words(suffix.len(), value);
        if self.room() < words + if count.is_multiple_of(GROUP) { GROUP_WORDS } else { 0 } {
            return false;
        }
        let offset = self.take(words);
        let data = Data { offset, suffix: suffix.len(), value, flags: entry.flags };
        let rest = suffix.get(HEAD_BYTES..).unwrap_or_default();
        self.store(offset, about);
        racy::store_parts(&self.words[data.rest_at()..], [rest, entry.value]);
        self.count_cell(false, about != 0);
        self.part_groups(index, count);
        self.set_record(index, Self::head_of(suffix), Self::place_of(data));
        self.set_field(0, 0, count + 1);
        true
    }

    /// Gives a record another value. Returns whether there was room in one piece.
    fn replace(&self, index: usize, entry: Entry<'_>) -> bool {
        let before = self.data(index);
        let mut after = Data { value: entry.value.len(), flags: entry.flags, ..before };
        let more = after.words() > before.words();
        if more && self.room() < after.words() {
            return false;
        }
        if more {
            after.offset = self.take(after.words());
            self.store(after.offset, self.load(before.offset));
            self.waste_more(before.words());
        } else {
            self.waste_more(before.words() - after.words());
        }
        let suffix = &entry.key[self.prefix_bytes()..];
        let rest = suffix.get(HEAD_BYTES..).unwrap_or_default();
        racy::store_parts(&self.words[after.rest_at()..], [rest, entry.value]);
        self.store(Self::place_at(index), Self::place_of(after));
        true
    }

    /// Puts a record: at its index, or where it would be. Returns whether it fits; if not, nothing has changed but
    /// where things lie.
    pub(crate) fn put(&self, index: Result<usize, usize>, entry: Entry<'_>) -> bool {
        let put = || match index {
            Ok(index) => self.replace(index, entry),
            Err(index) => {
                let is_in = self.insert(index, (entry, 0));
                if is_in {
                    self.note_insert(index);
                }
                is_in
            }
        };
        if put() {
            return true;
        }
        let words = data_words(entry.key.len() - self.prefix_bytes(), entry.value.len());
        let (records, before) = match index {
            Ok(index) => (self.len(), self.data(index).words()),
            Err(_) => (self.len() + 1, 0),
        };
        if self.live_with(records) - before + words > BLOCK_WORDS {
            return false;
        }
        let mut about = 0;
        if let Ok(index) = index {
            about = self.about(index);
            // The room of the old value counts.
            self.remove(index);
        }
        let run = self.load(7);
        self.compact();
        self.store(7, run);
        if let Err(index) = index {
            self.note_insert(index);
        }
        let (Ok(index) | Err(index)) = index;
        let is_in = self.insert(index, (entry, about));
        assert!(is_in, "there is room once it lies together");
        true
    }

    /// Replaces parts of a value, which the patch fits.
    pub(crate) fn patch(&self, data: Data, patch: Patch<'_>) {
        for (offset, bytes) in patch.parts() {
            racy::store_within(self.words, data.value_at() + offset, bytes);
        }
    }

    /// Takes a record out.
    pub(crate) fn remove(&self, index: usize) {
        self.count_cell(self.cell(index).is_some(), false);
        self.waste_more(self.data(index).words());
        let count = self.len();
        self.close_groups(index, count);
        self.set_field(0, 0, count - 1);
    }

    /// Returns the heads of the group of an index, and its places.
    fn group_of(&self, index: usize) -> [&[Word]; 2] {
        let at = Self::head_at(index / GROUP * GROUP);
        let (heads, places) = self.words[at..at + GROUP_WORDS].split_at(GROUP);
        [heads, places]
    }

    /// Moves the records from an index on behind, so that it is free.
    fn part_groups(&self, index: usize, count: usize) {
        // The place that is free, from the end on down.
        let mut free = count;
        while free > index {
            let within = free % GROUP;
            let least = index.max(free - within) % GROUP;
            for words in self.group_of(free) {
                for at in (least..within).rev() {
                    words[at + 1].store(words[at].load(Relaxed), Relaxed);
                }
            }
            free -= within - least;
            if free > index {
                self.move_one(free - 1, free);
                free -= 1;
            }
        }
    }

    /// Moves the records behind an index, which nobody needs, in front.
    fn close_groups(&self, index: usize, count: usize) {
        let mut free = index;
        while free + 1 < count {
            let within = free % GROUP;
            let last = (count - 1 - (free - within)).min(GROUP - 1);
            if within == 0 {
                // It has the fence.
                self.move_one(free + 1, free);
            }
            for words in self.group_of(free) {
                for at in within.max(1)..last {
                    words[at].store(words[at + 1].load(Relaxed), Relaxed);
                }
            }
            free += last - within;
            if free + 1 < count {
                self.move_one(free + 1, free);
                free += 1;
            }
        }
    }

    fn move_one(&self, from: usize, to: usize) {
        self.set_record(to, self.head(from), self.load(Self::place_at(from)));
    }

    /// Checks the leaf.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        self.lower(&mut lower);
        let has_upper = self.upper(&mut upper);
        let (mut last, mut words): (Option<Vec<u8>>, usize) = (None, 0);
        for index in 0..self.len() {
            let (data, mut key) = (self.data(index), Vec::new());
            self.key(index, &mut key);
            let is_inside = key >= lower && (!has_upper || key < upper);
            if !is_inside || last.as_ref().is_some_and(|last| *last >= key) {
                return Err(format!("key {key:?} at {index}, of {lower:?} to {upper:?}"));
            }
            if data.offset < self.data_at() || data.offset + data.words() > self.bounds_at() {
                return Err(format!("data of {key:?} at {data:?}"));
            }
            let fence = Self::fence_of(self.head(index / GROUP * GROUP));
            if self.fence(index / GROUP) != fence {
                return Err(format!("fence of {key:?} at {index}"));
            }
            words += data.words();
            last = Some(key);
        }
        let cells = (0..self.len()).filter(|index| self.cell(*index).is_some()).count() as u64;
        if cells != self.cells() {
            return Err(format!("{cells} records with cells, and {} counted", self.cells()));
        }
        let taken = self.bounds_at() - self.data_at();
        if words + self.waste() != taken {
            return Err(format!("{taken} words of data, of which {words} have owners"));
        }
        Ok(())
    }
}
