//! The bytes of a leaf: records of neighbouring keys in one block of words.
//!
//! ```text
//!  word 0        1                  2            3        7             heap              bounds
//! +--------+------------+-------------------+-------+------------+ ... +---------+-------+-------+
//! | counts | generation | lengths of bounds | hints | slots, by  |     | records | lower | upper |
//! |        | removals   | prefix, flags     |       | key ->     |     | <- heap |       |       |
//! +--------+------------+-------------------+-------+------------+ ... +---------+-------+-------+
//! ```
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 16 | number of records |
//! | 0 | 16 | first word of the heap, which grows down from the bounds |
//! | 0 | 16 | words of the heap that records use; the rest is reclaimed when the leaf is rewritten |
//! | 1 | 40 | generation of the bounds; 0 while the block is free |
//! | 1 | 24 | count of removals, which gap bits are set against |
//! | 2 | 16 | bytes of the lower bound |
//! | 2 | 16 | bytes of the upper bound, or [`NO_BOUND`] |
//! | 2 | 16 | bytes that all keys between the bounds share |
//! | 2 | 1 | gap bit of the leaf: no cold record lies between the lower bound and the first record |
//! | 2 | 1 | the hand comes soon |
//! | 3 to 6 | 32 each | heads of the first slots of the last eight ninths; all 0 with fewer than 18 records |
//!
//! A slot: offset in words (11 bits), bytes of the key's suffix (11), bytes of the value (14), flags
//! (5), and the first 23 bits of the suffix, so that heads order as suffixes do. A record is the suffix,
//! which is the key without what all keys of the leaf share, and then the value; it begins at a word.
//!
//! **Invariants**
//! 1. Only the holder of the leaf's latch stores words. Everybody else loads them one by one, and what
//!    was loaded means nothing until the latch's version is validated (rule P27); until then no value
//!    leads outside of the block.
//! 2. Suffixes ascend strictly, and all keys lie between the bounds.
//! 3. The bounds of a generation never change.
//! 4. A gap bit says that no cold record lies between its record and the next one in this leaf, or the
//!    upper bound if there is none (rule H8). It speaks of one leaf only, so one latch guards it.

use std::cmp::Ordering;

use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a word.
const WORD: usize = 8;
/// Hints that narrow a search: heads of some slots, in the same line of the processor's cache as the
/// counts.
const HINTS: usize = 8;
const HINT_WORDS: usize = HINTS / 2;
const HINTS_AT: usize = 3;
/// Fewest records for which there are hints.
const HINTED_MIN: usize = 2 * (HINTS + 1);
/// Words before the first slot.
pub(crate) const HEADER_WORDS: usize = HINTS_AT + HINT_WORDS;
/// Words of a block: 16 KiB. With less, long records leave more of a block unused; with more, rewriting
/// a leaf takes longer. Offsets have bits for as many. Models have less to do.
pub(crate) const BLOCK_WORDS: usize = if cfg!(feature = "shuttle") { 64 } else { 2048 };
/// Most records of a leaf: each takes a slot and a word.
pub(crate) const RECORDS_MAX: usize = (BLOCK_WORDS - HEADER_WORDS) / 2;
/// Length of an upper bound that is not there.
const NO_BOUND: usize = 0xFFFF;

const OFFSET_BITS: u32 = 11;
const SUFFIX_BITS: u32 = 11;
const VALUE_BITS: u32 = 14;
const FLAG_BITS: u32 = 5;
const SUFFIX_AT: u32 = OFFSET_BITS;
const VALUE_AT: u32 = SUFFIX_AT + SUFFIX_BITS;
const FLAGS_AT: u32 = VALUE_AT + VALUE_BITS;
const HEAD_AT: u32 = FLAGS_AT + FLAG_BITS;
const _: () = assert!(BLOCK_WORDS.is_power_of_two() && BLOCK_WORDS <= 1 << OFFSET_BITS);

/// The cold structure does not hold the record as it is here.
pub(crate) const DIRTY: u8 = 1;
/// A sweep has copied the record, and nothing changed it since.
pub(crate) const WRITING: u8 = 2;
/// The key has no value.
pub(crate) const REMOVED: u8 = 4;
/// The value is the pointer to a large one.
pub(crate) const LARGE: u8 = 8;
/// No cold record lies between this one and the next.
pub(crate) const GAP: u8 = 16;

/// Bits of a generation.
pub(crate) const GENERATION_BITS: u32 = 40;
const REMOVALS_MASK: u64 = (1 << (64 - GENERATION_BITS)) - 1;

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Returns the words that a record takes beside its slot.
pub(crate) fn record_words(suffix: usize, value: usize) -> usize {
    (suffix + value).div_ceil(WORD).max(1)
}

/// The slot whose head is a hint, among `count`.
#[inline]
fn hinted_slot(hint: usize, count: usize) -> usize {
    (hint + 1) * count / (HINTS + 1)
}

/// The first 23 bits of a suffix.
fn head_of(suffix: &[u8]) -> u64 {
    let mut bytes = [0; 4];
    let length = suffix.len().min(3);
    bytes[1..1 + length].copy_from_slice(&suffix[..length]);
    u64::from(u32::from_be_bytes(bytes) >> 1)
}

/// A slot, as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u64);

#[expect(clippy::cast_possible_truncation, reason = "fields of a few bits")]
impl Slot {
    fn new(offset: usize, suffix: &[u8], value: usize, flags: u8) -> Slot {
        debug_assert!(offset < BLOCK_WORDS && suffix.len() < 1 << SUFFIX_BITS);
        debug_assert!(value < 1 << VALUE_BITS && flags < 1 << FLAG_BITS);
        let lengths = (suffix.len() as u64) << SUFFIX_AT | (value as u64) << VALUE_AT;
        let flags = u64::from(flags) << FLAGS_AT;
        Slot(offset as u64 | lengths | flags | head_of(suffix) << HEAD_AT)
    }

    fn offset(self) -> usize {
        (self.0 & mask(OFFSET_BITS)) as usize
    }

    pub(crate) fn suffix_bytes(self) -> usize {
        (self.0 >> SUFFIX_AT & mask(SUFFIX_BITS)) as usize
    }

    pub(crate) fn value_bytes(self) -> usize {
        (self.0 >> VALUE_AT & mask(VALUE_BITS)) as usize
    }

    pub(crate) fn flags(self) -> u8 {
        (self.0 >> FLAGS_AT & mask(FLAG_BITS)) as u8
    }

    pub(crate) fn is(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }

    fn head(self) -> u64 {
        self.0 >> HEAD_AT
    }

    pub(crate) fn words(self) -> usize {
        record_words(self.suffix_bytes(), self.value_bytes())
    }

    #[must_use]
    pub(crate) fn with(self, flags: u8) -> Slot {
        Slot(self.0 & !(mask(FLAG_BITS) << FLAGS_AT) | u64::from(flags) << FLAGS_AT)
    }
}

/// A record that a leaf is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// The whole key.
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) flags: u8,
}

/// What a leaf is made of when all of it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    pub(crate) lower: &'a [u8],
    pub(crate) upper: Option<&'a [u8]>,
    pub(crate) generation: u64,
    /// The gap bit of the leaf.
    pub(crate) starts_gap: bool,
}

impl Bounds<'_> {
    /// Bytes that all keys between the bounds share.
    pub(crate) fn prefix(&self) -> usize {
        let Some(upper) = self.upper else { return 0 };
        self.lower.iter().zip(upper).take_while(|(one, other)| one == other).count()
    }

    /// Words that the header and the bounds take.
    pub(crate) fn words(&self) -> usize {
        let upper = self.upper.map_or(0, |upper| upper.len().div_ceil(WORD));
        HEADER_WORDS + self.lower.len().div_ceil(WORD) + upper
    }
}

/// A leaf in its block. See the module for who may call what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Leaf<'a> {
    pub(crate) fn new(words: &'a [AtomicU64]) -> Leaf<'a> {
        debug_assert_eq!(words.len(), BLOCK_WORDS);
        Leaf { words }
    }

    /// Loads a word; an index that a race has made wraps.
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self.words[index & (BLOCK_WORDS - 1)].load(Relaxed)
    }

    fn store(&self, index: usize, word: u64) {
        self.words[index].store(word, Relaxed);
    }

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

    fn heap(&self) -> usize {
        self.field(0, 1)
    }

    /// Words of the heap that records use.
    pub(crate) fn live(&self) -> usize {
        self.field(0, 2)
    }

    /// Generation of the bounds.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.load(1) & mask(GENERATION_BITS)
    }

    /// Count of removals.
    pub(crate) fn removals(&self) -> u32 {
        (self.load(1) >> GENERATION_BITS) as u32
    }

    fn set_generation(&self, generation: u64) {
        self.store(1, self.load(1) & !mask(GENERATION_BITS) | generation);
    }

    /// Counts a removal, after which no gap bit may be set for what was read before.
    fn count_removal(&self) {
        let removals = (u64::from(self.removals()) + 1) & REMOVALS_MASK;
        self.store(1, self.generation() | removals << GENERATION_BITS);
    }

    /// Makes the block one that is no leaf.
    pub(crate) fn free(&self) {
        self.set_generation(0);
    }

    /// Returns the gap bit of the leaf.
    pub(crate) fn starts_gap(&self) -> bool {
        self.field(2, 3) & 1 != 0
    }

    pub(crate) fn set_starts_gap(&self, is_set: bool) {
        self.set_field(2, 3, self.field(2, 3) & !1 | usize::from(is_set));
    }

    /// Returns whether the hand comes soon, as far as is known: a leaf that is rewritten forgets it.
    #[inline]
    pub(crate) fn is_soon(&self) -> bool {
        self.field(2, 3) & 2 != 0
    }

    pub(crate) fn set_soon(&self, is_soon: bool) {
        self.set_field(2, 3, self.field(2, 3) & !2 | usize::from(is_soon) << 1);
    }

    #[inline]
    fn prefix_bytes(&self) -> usize {
        self.field(2, 2)
    }

    fn lower_bytes(&self) -> usize {
        self.field(2, 0)
    }

    fn upper_bytes(&self) -> Option<usize> {
        Some(self.field(2, 1)).filter(|bytes| *bytes != NO_BOUND)
    }

    /// First word behind the heap.
    fn bounds_at(&self) -> usize {
        let upper = self.upper_bytes().map_or(0, |bytes| bytes.div_ceil(WORD));
        BLOCK_WORDS.saturating_sub(self.lower_bytes().div_ceil(WORD) + upper)
    }

    /// Appends `bytes` bytes from byte `skip` of word `at` on; zeros where a race leads out of the block.
    #[inline]
    fn append(&self, at: usize, skip: usize, bytes: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + bytes, 0);
        let (first, skipped) = (at + skip / WORD, skip % WORD);
        let last = first + (skipped + bytes).div_ceil(WORD);
        let Some(words) = self.words.get(first..last) else { return };
        let shift = 8 * skipped;
        let join = |low: u64, high: u64| low >> shift | high << 1 << (63 - shift);
        let (whole, rest) = out[begin..].as_chunks_mut::<WORD>();
        let count = whole.len();
        let mut low = words.first().map_or(0, |word| word.load(Relaxed));
        for (target, word) in whole.iter_mut().zip(words.iter().skip(1)) {
            let high = word.load(Relaxed);
            *target = join(low, high).to_le_bytes();
            low = high;
        }
        // The last whole one, where nothing follows, and what is less than a word.
        if count > 0 && words.len() == count {
            whole[count - 1] = low.to_le_bytes();
        }
        if !rest.is_empty() {
            let high = words.get(count + 1).map_or(0, |word| word.load(Relaxed));
            rest.copy_from_slice(&join(low, high).to_le_bytes()[..rest.len()]);
        }
    }

    /// Stores two byte strings one behind the other from word `at` on.
    fn store_bytes(&self, at: usize, parts: [&[u8]; 2]) {
        let (mut carry, mut filled, mut index) = (0_u64, 0, at);
        for part in parts {
            let (whole, rest) = part.as_chunks::<WORD>();
            for bytes in whole {
                let word = u64::from_le_bytes(*bytes);
                self.store(index, carry | word << filled);
                carry = word >> 1 >> (63 - filled);
                index += 1;
            }
            let mut bytes = [0; WORD];
            bytes[..rest.len()].copy_from_slice(rest);
            let (word, bits) = (u64::from_le_bytes(bytes), 8 * rest.len());
            carry |= word << filled;
            if filled + bits >= 64 {
                self.store(index, carry);
                carry = word >> 1 >> (63 - filled);
                index += 1;
            }
            filled = (filled + bits) % 64;
        }
        if filled > 0 {
            self.store(index, carry);
        }
    }

    /// Appends the lower bound.
    pub(crate) fn lower(&self, out: &mut Vec<u8>) {
        self.append(self.bounds_at(), 0, self.lower_bytes(), out);
    }

    /// Appends the upper bound, and says whether there is one.
    pub(crate) fn upper(&self, out: &mut Vec<u8>) -> bool {
        let Some(bytes) = self.upper_bytes() else { return false };
        self.append(self.bounds_at() + self.lower_bytes().div_ceil(WORD), 0, bytes, out);
        true
    }

    /// Returns a slot.
    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot {
        Slot(self.load(HEADER_WORDS + index))
    }

    fn set_slot(&self, index: usize, slot: Slot) {
        self.store(HEADER_WORDS + index, slot.0);
    }

    pub(crate) fn set_flags(&self, index: usize, flags: u8) {
        self.set_slot(index, self.slot(index).with(flags));
    }

    /// Appends the key of a record.
    pub(crate) fn key(&self, slot: Slot, out: &mut Vec<u8>) {
        self.append(self.bounds_at(), 0, self.prefix_bytes(), out);
        self.append(slot.offset(), 0, slot.suffix_bytes(), out);
    }

    /// Appends the value of a record.
    #[inline]
    pub(crate) fn value(&self, slot: Slot, out: &mut Vec<u8>) {
        self.append(slot.offset(), slot.suffix_bytes(), slot.value_bytes(), out);
    }

    /// Returns the place of a key between the bounds.
    ///
    /// # Errors
    /// The place of the first greater key when it is absent.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        // A race may have made the prefix longer than the key.
        let Some(suffix) = key.get(self.prefix_bytes()..) else { return Err(0) };
        let head = head_of(suffix);
        let (mut low, mut high) = self.hinted(head);
        while low < high {
            let middle = usize::midpoint(low, high);
            let slot = self.slot(middle);
            match slot.head().cmp(&head).then_with(|| self.compare(slot, suffix)) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Where records with this head lie, or would lie.
    #[inline]
    fn hinted(&self, head: u64) -> (usize, usize) {
        let count = self.len();
        if count < HINTED_MIN {
            return (0, count);
        }
        let (mut below, mut at_most) = (0, 0);
        for word in 0..HINT_WORDS {
            let pair = self.load(HINTS_AT + word);
            for hint in [pair & 0xFFFF_FFFF, pair >> 32] {
                below += usize::from(hint < head);
                at_most += usize::from(hint <= head);
            }
        }
        let low = if below == 0 { 0 } else { hinted_slot(below - 1, count) };
        let high = if at_most == HINTS { count } else { hinted_slot(at_most, count) };
        (low, high)
    }

    /// Makes hints of what the slots are now.
    fn set_hints(&self) {
        let count = self.len();
        let hint = |index: usize| match count {
            HINTED_MIN.. => self.slot(hinted_slot(index, count)).head(),
            _ => 0,
        };
        for word in 0..HINT_WORDS {
            self.store(HINTS_AT + word, hint(2 * word) | hint(2 * word + 1) << 32);
        }
    }

    /// Compares the suffix of a record with another.
    #[inline]
    fn compare(&self, slot: Slot, suffix: &[u8]) -> Ordering {
        let bytes = slot.suffix_bytes();
        let common = bytes.min(suffix.len());
        let (whole, rest) = suffix[..common].as_chunks::<WORD>();
        let big = |bytes: [u8; WORD]| u64::from_be_bytes(bytes);
        for (index, chunk) in whole.iter().enumerate() {
            let order = big(self.load(slot.offset() + index).to_le_bytes()).cmp(&big(*chunk));
            if order.is_ne() {
                return order;
            }
        }
        if !rest.is_empty() {
            let word = self.load(slot.offset() + whole.len()).to_le_bytes();
            let order = word[..rest.len()].cmp(rest);
            if order.is_ne() {
                return order;
            }
        }
        bytes.cmp(&suffix.len())
    }

    /// Words between slots and heap.
    pub(crate) fn free_words(&self) -> usize {
        self.heap().saturating_sub(HEADER_WORDS + self.len())
    }

    /// Words that would be free after the leaf was rewritten.
    pub(crate) fn spare_words(&self) -> usize {
        self.bounds_at().saturating_sub(HEADER_WORDS + self.len() + self.live())
    }

    /// Words that a record with this key takes here, with its slot.
    pub(crate) fn words_for(&self, key: usize, value: usize) -> usize {
        1 + record_words(key - self.prefix_bytes(), value)
    }

    /// Replaces the value of a record where it lies, if it has room for it. The holder's.
    pub(crate) fn overwrite(&self, index: usize, entry: Entry<'_>) -> bool {
        let old = self.slot(index);
        let suffix = &entry.key[self.prefix_bytes()..];
        let words = record_words(suffix.len(), entry.value.len());
        if words > old.words() {
            return false;
        }
        self.store_bytes(old.offset(), [suffix, entry.value]);
        self.set_slot(index, Slot::new(old.offset(), suffix, entry.value.len(), entry.flags));
        self.set_field(0, 2, self.live() - old.words() + words);
        true
    }

    /// Puts a record at a place, for which there are words. The holder's.
    pub(crate) fn insert(&self, index: usize, entry: Entry<'_>) {
        let suffix = &entry.key[self.prefix_bytes()..];
        let words = record_words(suffix.len(), entry.value.len());
        debug_assert!(self.free_words() > words);
        let heap = self.heap() - words;
        self.store_bytes(heap, [suffix, entry.value]);
        let count = self.len();
        for place in (index..count).rev() {
            self.set_slot(place + 1, self.slot(place));
        }
        self.set_slot(index, Slot::new(heap, suffix, entry.value.len(), entry.flags));
        self.set_field(0, 0, count + 1);
        self.set_field(0, 1, heap);
        self.set_field(0, 2, self.live() + words);
        self.set_hints();
    }

    /// Takes a record out. The holder's. Gap bits are the caller's.
    pub(crate) fn take_out(&self, index: usize) {
        let (count, words) = (self.len(), self.slot(index).words());
        for place in index + 1..count {
            self.set_slot(place - 1, self.slot(place));
        }
        self.set_field(0, 0, count - 1);
        self.set_field(0, 2, self.live() - words);
        self.set_hints();
    }

    /// Notes that the record at a place leaves for the cold structure: nothing is known any more of
    /// what lies before it. The holder's.
    pub(crate) fn open_gap(&self, index: usize) {
        match index.checked_sub(1) {
            Some(before) => self.set_flags(before, self.slot(before).flags() & !GAP),
            None => self.set_starts_gap(false),
        }
        self.count_removal();
    }

    /// Writes all of the leaf. The holder's. Gap bits that are set stay, and none may be set for what
    /// was read before.
    pub(crate) fn write<'e>(
        &self,
        bounds: Bounds<'_>,
        entries: impl Iterator<Item = Entry<'e>>,
    ) -> usize {
        let prefix = bounds.prefix();
        self.store(2, 0);
        self.set_field(2, 0, bounds.lower.len());
        self.set_field(2, 1, bounds.upper.map_or(NO_BOUND, <[u8]>::len));
        self.set_field(2, 2, prefix);
        self.set_starts_gap(bounds.starts_gap);
        let end = self.bounds_at();
        self.store_bytes(end, [bounds.lower, &[]]);
        if let Some(upper) = bounds.upper {
            self.store_bytes(end + bounds.lower.len().div_ceil(WORD), [upper, &[]]);
        }
        let (mut heap, mut count) = (end, 0);
        for entry in entries {
            let suffix = &entry.key[prefix..];
            heap -= record_words(suffix.len(), entry.value.len());
            self.store_bytes(heap, [suffix, entry.value]);
            self.set_slot(count, Slot::new(heap, suffix, entry.value.len(), entry.flags));
            count += 1;
        }
        self.store(0, 0);
        self.set_field(0, 0, count);
        self.set_field(0, 1, heap);
        self.set_field(0, 2, end - heap);
        self.set_hints();
        self.set_generation(bounds.generation);
        self.count_removal();
        count
    }
}
