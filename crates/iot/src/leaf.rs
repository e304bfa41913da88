//! A leaf: records of neighbouring keys in a block of 16 KiB, which readers search while a writer changes it
//! (rule P27).
//!
//! ```text
//!  header  | heads   slot slot .. slot | heads   slot .. slot |  ->   room   <-  | data data .. | bounds |
//!  1 line  | 1 line  8 lines           | 9 lines              |                  | from the end down     |
//! ```
//!
//! A *group* has the heads and slots of eight records. Heads lie in the order of the keys. Each names a slot of one
//! line, which stays where it is while the record is in the leaf.
//! A slot says where the rest of its key and its value lie, and in word 0 which [cell](spinney_ssn::Cells) has the
//! record's stamps: 1 + its index, or 0. A record without a value, which only its stamps need, is *absent*.
//!
//! | word of the header | bits | field |
//! |---|---|---|
//! | 0 | 16 each | records; slots that were ever used; first word of data; 1 + first free slot, 0 for none |
//! | 1 | 16 each | bytes of the lower bound; of the upper one, or `0xFFFF`; bytes that all keys share; words of data that nothing names |
//! | 2 | 64 | incarnation of the bounds, which no other leaf has had; 0 while the block is free |
//! | 3 | 32 each | page and generation of the newest image |
//! | 4 | 1 each | status: changed since the image; the image is of other bounds; from bit 8 on 1 + order of the image, 0 for none |
//! | 5 | 64 | [gap](crate::gaps): where those leave their marks who read ranges here |
//! | 6 | 64 | records that have a cell |
//! | 7 | 32 each | index of the record that was inserted last; how many before it came in ascending order, each behind the one before |
//!
//! A head has 7 bytes of the key, behind what all keys share, padded with zeros, and in its low byte the slot. Word 5
//! of a slot has the offset of the data in words, the bytes of the key behind what is shared, the bytes of the
//! value, and flags, 16 bits each. In a free slot the offset is 1 + the next free slot.
//!
//! **Invariants**
//! 1. The bounds of an incarnation never change.
//! 2. Heads ascend, and of equal ones the rests of the keys do.
//! 3. Only the holder of the leaf's latch stores. A reader concludes nothing before it has validated the latch.

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

const HEADER_WORDS: usize = 8;
/// Records of a group: the heads of a group are one line.
const GROUP: usize = 8;
const SLOT_WORDS: usize = 8;
const GROUP_WORDS: usize = GROUP + GROUP * SLOT_WORDS;
/// Most records of a leaf.
const RECORDS_MAX: usize = (BLOCK_WORDS - HEADER_WORDS) / GROUP_WORDS * GROUP;
// A slot has eight bits in a head.
const _: () = assert!(RECORDS_MAX <= 256);
/// Words of a slot: its cell, and where its data is.
const CELL: usize = 0;
const PLACE: usize = 5;

/// Bytes of a key in its head.
const HEAD_BYTES: usize = 7;
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
    (suffix.saturating_sub(HEAD_BYTES) + value).div_ceil(WORD_BYTES)
}

/// Returns the words that a leaf takes that has these records.
pub(crate) fn words_of(bounds: Bounds<'_>, lengths: impl Iterator<Item = (usize, usize)>) -> usize {
    let (mut count, mut data) = (0, 0);
    let prefix = bounds.prefix();
    for (key, value) in lengths {
        count += 1;
        data += data_words(key - prefix, value);
    }
    HEADER_WORDS + bound_words(bounds) + usize::div_ceil(count, GROUP) * GROUP_WORDS + data
}

fn bound_words(bounds: Bounds<'_>) -> usize {
    let upper = bounds.upper.map_or(0, |upper| upper.len().div_ceil(WORD_BYTES));
    bounds.lower.len().div_ceil(WORD_BYTES) + upper
}

/// Where the data of a record lies, and how long its parts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    slot: usize,
    offset: usize,
    suffix: usize,
    value: usize,
    flags: u8,
}

impl Data {
    fn words(self) -> usize {
        data_words(self.suffix, self.value)
    }

    fn rest(self) -> usize {
        self.suffix.saturating_sub(HEAD_BYTES)
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

    fn slots(&self) -> usize {
        self.field(0, 1)
    }

    fn data_at(&self) -> usize {
        self.field(0, 2)
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
        HEADER_WORDS + index / GROUP * GROUP_WORDS + index % GROUP
    }

    #[inline]
    fn slot_at(slot: usize) -> usize {
        HEADER_WORDS + slot / GROUP * GROUP_WORDS + GROUP + slot % GROUP * SLOT_WORDS
    }

    fn head_of(suffix: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        let count = suffix.len().min(HEAD_BYTES);
        bytes[..count].copy_from_slice(&suffix[..count]);
        u64::from_be_bytes(bytes)
    }

    #[inline]
    fn head(&self, index: usize) -> u64 {
        self.load(Self::head_at(index))
    }

    #[inline]
    fn data_of(&self, slot: usize) -> Data {
        let word = self.load(Self::slot_at(slot) + PLACE);
        let field = |index: u32| (word >> (16 * index) & 0xFFFF) as usize;
        let flags = (word >> 48 & 0xFF) as u8;
        Data { slot, offset: field(0), suffix: field(1), value: field(2), flags }
    }

    /// Returns the cell of a record.
    pub(crate) fn cell(&self, index: usize) -> Option<u32> {
        let slot = (self.head(index) & 0xFF) as usize;
        let word = self.load(Self::slot_at(slot) + CELL);
        u32::try_from(word).ok()?.checked_sub(1)
    }

    /// What [`Records::about`] says of it.
    pub(crate) fn about(&self, index: usize) -> u64 {
        self.cell(index).map_or(0, |cell| u64::from(cell) + 1)
    }

    pub(crate) fn set_cell(&self, index: usize, cell: Option<u32>) {
        self.count_cell(self.cell(index).is_some(), cell.is_some());
        let slot = (self.head(index) & 0xFF) as usize;
        self.store(Self::slot_at(slot) + CELL, cell.map_or(0, |cell| u64::from(cell) + 1));
    }

    /// Number of records that have a value.
    pub(crate) fn present(&self) -> usize {
        (0..self.len()).filter(|index| !self.data(*index).is_absent()).count()
    }

    /// Returns where the data of a record is.
    #[inline]
    pub(crate) fn data(&self, index: usize) -> Data {
        self.data_of((self.head(index) & 0xFF) as usize)
    }

    fn set_data(&self, data: Data) {
        let fields = [data.offset, data.suffix, data.value, usize::from(data.flags)];
        let word = fields.iter().rev().fold(0, |word, field| word << 16 | *field as u64);
        self.store(Self::slot_at(data.slot) + PLACE, word);
    }

    /// Searches a key that lies between the bounds. Returns its index, or the one that it would have.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let suffix = key.get(self.prefix_bytes()..).unwrap_or_default();
        let (head, rest) = (Self::head_of(suffix), suffix.get(HEAD_BYTES..).unwrap_or_default());
        let count = self.len();
        // All lines of heads at once: a search waits for one of them, and not for each that it looks at (section 4.6).
        for group in (GROUP..count).step_by(GROUP) {
            if let Some(line) = self.words.get(Self::head_at(group)) {
                prefetch(line);
            }
        }
        // The first head that is not less: without branches, which nobody could foresee.
        let (mut low, mut size) = (0, count);
        while size > 1 {
            let half = size / 2;
            let middle = low + half;
            low = if self.head(middle) & !0xFF < head { middle } else { low };
            size -= half;
        }
        low += usize::from(count > 0 && self.head(low) & !0xFF < head);
        // Mostly one key has this head, or none.
        let mut high = low;
        while high < count && self.head(high) & !0xFF == head {
            high += 1;
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            let data = self.data_of((self.head(middle) & 0xFF) as usize);
            let at = data.offset * WORD_BYTES;
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

    /// Lets it fetch what [`Leaf::cell`] reads first of a record, which may have moved.
    pub(crate) fn fetch_head(&self, index: usize) {
        self.fetch_header();
        self.words.get(Self::head_at(index)).into_iter().for_each(prefetch);
    }

    /// Lets it fetch what is read next.
    pub(crate) fn fetch_slot(&self, index: usize) {
        if index < self.len() {
            let slot = (self.head(index) & 0xFF) as usize;
            self.words.get(Self::slot_at(slot)).into_iter().for_each(prefetch);
        }
    }

    /// Whether a key that lies between the bounds has this index.
    pub(crate) fn is_at(&self, index: usize, key: &[u8]) -> bool {
        let suffix = key.get(self.prefix_bytes()..).unwrap_or_default();
        if index >= self.len() || self.head(index) & !0xFF != Self::head_of(suffix) {
            return false;
        }
        let data = self.data(index);
        let (at, rest) = (data.offset * WORD_BYTES, suffix.get(HEAD_BYTES..).unwrap_or_default());
        data.suffix == suffix.len()
            && racy::compare_bytes(self.words, at, data.rest(), rest).is_eq()
    }

    /// Returns the bytes of a key and of its value.
    pub(crate) fn lengths(&self, index: usize) -> (usize, usize) {
        let data = self.data(index);
        (self.prefix_bytes() + data.suffix, data.value)
    }

    /// Appends a key.
    pub(crate) fn key(&self, index: usize, out: &mut Vec<u8>) {
        let head = self.head(index);
        let data = self.data_of((head & 0xFF) as usize);
        self.append(self.bounds_at(), 0, self.prefix_bytes(), out);
        out.extend_from_slice(&head.to_be_bytes()[..data.suffix.min(HEAD_BYTES)]);
        self.append(data.offset, 0, data.rest(), out);
    }

    /// Appends a value.
    #[inline]
    pub(crate) fn value(&self, data: Data, out: &mut Vec<u8>) {
        self.append(data.offset, data.rest(), data.value, out);
    }

    /// Returns a word of a value, the first byte the lowest, for the holder of the latch. Its last bytes may lie behind the
    /// value.
    #[inline]
    pub(crate) fn value_word(&self, data: Data, number: usize) -> u64 {
        racy::word_at(self.words, (data.offset + number) * WORD_BYTES + data.rest())
    }

    /// Copies a part of a value, for the holder of the latch.
    pub(crate) fn copy_part(&self, data: Data, from: usize, out: &mut [u8]) {
        racy::copy_bytes(self.words, data.offset * WORD_BYTES + data.rest() + from, out);
    }

    /// Words that heads, slots, data and bounds take, once they lie together.
    pub(crate) fn live_words(&self) -> usize {
        self.live_with(self.len())
    }

    /// Words that records take, with their heads and slots.
    pub(crate) fn record_words(&self) -> usize {
        let data = self.bounds_at().saturating_sub(self.data_at()).saturating_sub(self.waste());
        self.len() * (1 + SLOT_WORDS) + data
    }

    fn live_with(&self, records: usize) -> usize {
        let data = BLOCK_WORDS.saturating_sub(self.data_at()).saturating_sub(self.waste());
        HEADER_WORDS + records.div_ceil(GROUP) * GROUP_WORDS + data
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
            let head = self.head(index);
            let data = self.data_of((head & 0xFF) as usize);
            if data.is_absent() {
                continue;
            }
            image.push(data.flags, (data.suffix, data.value), |out| {
                out.extend_from_slice(&head.to_be_bytes()[..data.suffix.min(HEAD_BYTES)]);
                // The rest of the key and the value lie side by side.
                self.append(data.offset, 0, data.rest() + data.value, out);
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
        let head = source.head(at);
        let from = (head & 0xFF) as usize;
        let before = source.data_of(from);
        let data = Data { suffix: before.suffix - more, ..before };
        let (slot, offset) = (self.take_slot(), self.take(data.words()));
        // So many bytes of the rest of the key are in the head now, or shared.
        let skipped = before.rest() - data.rest();
        let begin = before.offset * WORD_BYTES + skipped;
        for (index, to) in self.words[offset..offset + data.words()].iter().enumerate() {
            let word = racy::word_at(source.words, begin + index * WORD_BYTES);
            to.store(word.to_le(), Relaxed);
        }
        self.set_data(Data { slot, offset, ..data });
        let about = source.load(Self::slot_at(from) + CELL);
        self.store(Self::slot_at(slot) + CELL, about);
        self.count_cell(false, about != 0);
        let head = if more == 0 { head & !0xFF } else { source.head_behind(head, before, more) };
        self.store(Self::head_at(index), head | slot as u64);
        self.set_field(0, 0, index + 1);
    }

    /// Returns the head that a record has once all keys share `more` bytes more.
    fn head_behind(&self, head: u64, data: Data, more: usize) -> u64 {
        let bytes = (data.suffix - more).min(HEAD_BYTES);
        if bytes == 0 {
            return 0;
        }
        let rest = data.offset * WORD_BYTES;
        let behind = |skipped: usize| racy::word_at(self.words, rest + skipped).swap_bytes();
        let head = match more.checked_sub(HEAD_BYTES) {
            Some(skipped) => behind(skipped),
            // The end of the head, then the rest.
            None => (head & !0xFF) << (8 * more) | behind(0) >> (8 * (HEAD_BYTES - more)),
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
        self.store(0, (bounds_at as u64) << 32);
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

    /// Words between slots and data.
    fn room(&self) -> usize {
        let end = HEADER_WORDS + self.slots().div_ceil(GROUP) * GROUP_WORDS;
        self.data_at().saturating_sub(end)
    }

    /// Takes room for data at the low end of it.
    fn take(&self, words: usize) -> usize {
        let at = self.data_at() - words;
        self.set_field(0, 2, at);
        at
    }

    fn waste_more(&self, words: usize) {
        self.set_field(1, 3, self.waste() + words);
    }

    /// Takes a slot; there is room for it.
    fn take_slot(&self) -> usize {
        match self.field(0, 3).checked_sub(1) {
            Some(slot) => {
                self.set_field(0, 3, self.data_of(slot).offset);
                slot
            }
            None => {
                let slot = self.slots();
                self.set_field(0, 1, slot + 1);
                slot
            }
        }
    }

    /// Adds a record that would have this index. Returns whether there was room in one piece.
    fn insert(&self, index: usize, (entry, about): Moved<'_>) -> bool {
        let suffix = &entry.key[self.prefix_bytes()..];
        let words = data_words(suffix.len(), entry.value.len());
        let needs_group = self.field(0, 3) == 0 && self.slots().is_multiple_of(GROUP);
        if self.room() < words + if needs_group { GROUP_WORDS } else { 0 } {
            return false;
        }
        let slot = self.take_slot();
        let offset = self.take(words);
        let rest = suffix.get(HEAD_BYTES..).unwrap_or_default();
        racy::store_parts(&self.words[offset..], [rest, entry.value]);
        let (suffix_bytes, value) = (suffix.len(), entry.value.len());
        self.set_data(Data { slot, offset, suffix: suffix_bytes, value, flags: entry.flags });
        self.store(Self::slot_at(slot) + CELL, about);
        self.count_cell(false, about != 0);
        let count = self.len();
        self.part_heads(index, count);
        self.store(Self::head_at(index), Self::head_of(suffix) | slot as u64);
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
            self.waste_more(before.words());
        } else {
            self.waste_more(before.words() - after.words());
        }
        let suffix = &entry.key[self.prefix_bytes()..];
        let rest = suffix.get(HEAD_BYTES..).unwrap_or_default();
        racy::store_parts(&self.words[after.offset..], [rest, entry.value]);
        self.set_data(after);
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
        let value_at = data.offset * WORD_BYTES + data.rest();
        for (offset, bytes) in patch.parts() {
            racy::store_within(self.words, value_at + offset, bytes);
        }
    }

    /// Takes a record out.
    pub(crate) fn remove(&self, index: usize) {
        let data = self.data(index);
        self.count_cell(self.cell(index).is_some(), false);
        self.waste_more(data.words());
        let next = self.field(0, 3);
        self.set_data(Data { offset: next, suffix: 0, value: 0, flags: 0, ..data });
        self.set_field(0, 3, data.slot + 1);
        let count = self.len();
        self.close_heads(index, count);
        self.set_field(0, 0, count - 1);
    }

    /// Returns the words of the heads of a group, from the group of an index on.
    fn group_of(&self, index: usize) -> &[Word] {
        let at = Self::head_at(index / GROUP * GROUP);
        &self.words[at..at + GROUP]
    }

    /// Moves the heads from an index on behind, so that it is free.
    fn part_heads(&self, index: usize, count: usize) {
        // The place that is free, from the end on down.
        let mut free = count;
        while free > index {
            let (heads, within) = (self.group_of(free), free % GROUP);
            let least = index.max(free - within) % GROUP;
            for at in (least..within).rev() {
                heads[at + 1].store(heads[at].load(Relaxed), Relaxed);
            }
            free -= within - least;
            if free > index {
                self.store(Self::head_at(free), self.head(free - 1));
                free -= 1;
            }
        }
    }

    /// Moves the heads behind an index, which nobody needs, in front.
    fn close_heads(&self, index: usize, count: usize) {
        let mut free = index;
        while free + 1 < count {
            let (heads, within) = (self.group_of(free), free % GROUP);
            let last = (count - 1 - (free - within)).min(GROUP - 1);
            for at in within..last {
                heads[at].store(heads[at + 1].load(Relaxed), Relaxed);
            }
            free += last - within;
            if free + 1 < count {
                self.store(Self::head_at(free), self.head(free + 1));
                free += 1;
            }
        }
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
