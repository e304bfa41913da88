//! The bytes of a leaf: records of neighbouring keys in a block of words.
//!
//! ```text
//!  word 0        1        2                  3        7             heap              bounds
//! +--------+---------+-------------------+-------+------------+ ... +---------+-------+-------+
//! | counts | owner's | lengths of bounds | hints | slots, by  |     | records | lower | upper |
//! |        | word    | prefix, flags     |       | key ->     |     | <- heap |       |       |
//! +--------+---------+-------------------+-------+------------+ ... +---------+-------+-------+
//! ```
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 16 | number of records |
//! | 0 | 16 | first word of the heap, which grows down from the bounds |
//! | 0 | 16 | words of the heap that records use; the rest is reclaimed when the leaf is rewritten |
//! | 0 | 16 | 0 |
//! | 1 | 64 | what the owner keeps |
//! | 2 | 16 | bytes of the lower bound |
//! | 2 | 16 | bytes of the upper bound; 65,535 where there is none |
//! | 2 | 16 | bytes that all keys between the bounds share |
//! | 2 | 16 | what the owner notes of the leaf ([`Leaf::notes`]) |
//! | 3 to 6 | 32 each | heads of the first slots of the last eight ninths; all 0 with fewer than 18 records |
//!
//! A slot: offset in words (11 bits), bytes of the key's suffix (11), bytes of the value (14), the owner's
//! flags (5), and the first 23 bits of the suffix, so that heads order as suffixes do. A record is the
//! suffix, which is the key without what all keys of the leaf share, and then the value; it begins at a
//! word. A word lies on disk as eight bytes, the least first.
//!
//! **Invariants**
//! 1. Only the holder of the leaf's latch stores words. Everybody else loads them one by one, and what
//!    was loaded means nothing until the latch's version is validated (rule P27); until then no value
//!    leads outside of the block.
//! 2. Suffixes ascend strictly, and all keys lie between the bounds.
//! 3. A leaf that came from disk is used only after [`Leaf::check`].

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;

use spinney_sync::racy::{self, Word};

/// Bytes of a word.
pub const WORD: usize = 8;
/// Hints that narrow a search: heads of some slots, in the same line of the processor's cache as the
/// counts.
const HINTS: usize = 8;
const HINT_WORDS: usize = HINTS / 2;
const HINTS_AT: usize = 3;
/// Fewest records for which there are hints.
const HINTED_MIN: usize = 2 * (HINTS + 1);
/// Words before the first slot.
pub const HEADER_WORDS: usize = HINTS_AT + HINT_WORDS;
/// Most words of a block: offsets have bits for as many.
pub const WORDS_MAX: usize = 1 << OFFSET_BITS;
/// Longest key, in bytes: suffixes have bits for as many.
pub const KEY_BYTES_MAX: usize = (1 << SUFFIX_BITS) - 1;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = (1 << VALUE_BITS) - 1;

/// Returns the most records of a leaf in a block of `words` words: each takes a slot and a word.
#[must_use]
pub const fn records_max(words: usize) -> usize {
    (words - HEADER_WORDS) / 2
}

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

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Returns the words that a record takes beside its slot.
#[must_use]
pub fn record_words(suffix: usize, value: usize) -> usize {
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
pub struct Slot(u64);

#[expect(clippy::cast_possible_truncation, reason = "fields of a few bits")]
impl Slot {
    fn new(offset: usize, suffix: &[u8], value: usize, flags: u8) -> Slot {
        debug_assert!(offset < WORDS_MAX && suffix.len() <= KEY_BYTES_MAX);
        debug_assert!(value <= VALUE_BYTES_MAX && flags < 1 << FLAG_BITS);
        let lengths = (suffix.len() as u64) << SUFFIX_AT | (value as u64) << VALUE_AT;
        let flags = u64::from(flags) << FLAGS_AT;
        Slot(offset as u64 | lengths | flags | head_of(suffix) << HEAD_AT)
    }

    pub(crate) fn offset(self) -> usize {
        (self.0 & mask(OFFSET_BITS)) as usize
    }

    /// Returns the bytes of the key that are its own.
    #[must_use]
    pub fn suffix_bytes(self) -> usize {
        (self.0 >> SUFFIX_AT & mask(SUFFIX_BITS)) as usize
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn value_bytes(self) -> usize {
        (self.0 >> VALUE_AT & mask(VALUE_BITS)) as usize
    }

    /// Returns the owner's flags.
    #[must_use]
    pub fn flags(self) -> u8 {
        (self.0 >> FLAGS_AT & mask(FLAG_BITS)) as u8
    }

    /// Returns whether one of these flags is set.
    #[must_use]
    pub fn is(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }

    fn head(self) -> u64 {
        self.0 >> HEAD_AT
    }

    pub(crate) fn has_head_of(self, suffix: &[u8]) -> bool {
        self.head() == head_of(suffix)
    }

    /// Returns the words of the record, without its slot.
    #[must_use]
    pub fn words(self) -> usize {
        record_words(self.suffix_bytes(), self.value_bytes())
    }

    /// Returns the slot with other flags.
    #[must_use]
    pub fn with(self, flags: u8) -> Slot {
        Slot(self.0 & !(mask(FLAG_BITS) << FLAGS_AT) | u64::from(flags) << FLAGS_AT)
    }
}

/// A record that a leaf is to hold.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The whole key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The owner's flags: five bits.
    pub flags: u8,
}

/// Which keys a leaf is for.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// The least key.
    pub lower: &'a [u8],
    /// The first key behind it; `None` at the end of all keys.
    pub upper: Option<&'a [u8]>,
}

impl Bounds<'_> {
    /// Returns the bytes that all keys between the bounds share.
    #[must_use]
    pub fn prefix(&self) -> usize {
        let Some(upper) = self.upper else { return 0 };
        self.lower.iter().zip(upper).take_while(|(one, other)| one == other).count()
    }

    /// Returns the words that the header and the bounds take.
    #[must_use]
    pub fn words(&self) -> usize {
        let upper = self.upper.map_or(0, |upper| upper.len().div_ceil(WORD));
        HEADER_WORDS + self.lower.len().div_ceil(WORD) + upper
    }
}

/// A leaf in its block. See the module for who may call what.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    words: &'a [Word],
}

impl<'a> Leaf<'a> {
    /// Takes words for a leaf, at most [`WORDS_MAX`]. Before [`Leaf::write`] or [`Leaf::check`] they mean
    /// nothing.
    #[must_use]
    pub fn new(words: &'a [Word]) -> Leaf<'a> {
        debug_assert!((HEADER_WORDS..=WORDS_MAX).contains(&words.len()));
        Leaf { words }
    }

    /// Loads a word; 0 where a race leads out of the block.
    #[inline]
    fn load(&self, index: usize) -> u64 {
        interrupt();
        self.words.get(index).map_or(0, |word| u64::from_le(word.load(Relaxed)))
    }

    fn store(&self, index: usize, word: u64) {
        interrupt();
        self.words[index].store(word.to_le(), Relaxed);
    }

    fn field(&self, word: usize, index: u32) -> usize {
        (self.load(word) >> (16 * index) & 0xFFFF) as usize
    }

    fn set_field(&self, word: usize, index: u32, value: usize) {
        debug_assert!(value <= 0xFFFF);
        let cleared = self.load(word) & !(0xFFFF << (16 * index));
        self.store(word, cleared | (value as u64) << (16 * index));
    }

    /// Returns the number of words of the block.
    #[must_use]
    pub fn block_words(&self) -> usize {
        self.words.len()
    }

    /// Returns a sum of all words. It differs once the leaf has changed.
    #[must_use]
    pub fn sum(&self) -> u64 {
        (0..self.words.len()).fold(0, |sum: u64, index| sum.rotate_left(5) ^ self.load(index))
    }

    /// Number of records.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.field(0, 0).min(records_max(self.words.len()))
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn heap(&self) -> usize {
        self.field(0, 1)
    }

    /// Words of the heap that records use.
    pub fn live(&self) -> usize {
        self.field(0, 2)
    }

    /// Returns the owner's word.
    #[inline]
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.load(1)
    }

    /// Sets it. The holder's.
    pub fn set_owner(&self, word: u64) {
        self.store(1, word);
    }

    /// Returns what the owner notes of the leaf.
    #[inline]
    #[must_use]
    pub fn notes(&self) -> u16 {
        (self.load(2) >> 48) as u16
    }

    /// Sets it. The holder's.
    pub fn set_notes(&self, notes: u16) {
        self.set_field(2, 3, usize::from(notes));
    }

    /// Returns the bytes that all keys of the leaf share, which it keeps once.
    #[inline]
    #[must_use]
    pub fn prefix_bytes(&self) -> usize {
        self.field(2, 2)
    }

    pub(crate) fn lower_bytes(&self) -> usize {
        self.field(2, 0)
    }

    pub(crate) fn upper_bytes(&self) -> Option<usize> {
        Some(self.field(2, 1)).filter(|bytes| *bytes != NO_BOUND)
    }

    /// First word behind the heap.
    pub(crate) fn bounds_at(&self) -> usize {
        let upper = self.upper_bytes().map_or(0, |bytes| bytes.div_ceil(WORD));
        self.words.len().saturating_sub(self.lower_bytes().div_ceil(WORD) + upper)
    }

    /// Appends `bytes` bytes from byte `skip` of word `at` on; zeros where a race leads out of the block.
    #[inline]
    fn append(&self, at: usize, skip: usize, bytes: usize, out: &mut Vec<u8>) {
        racy::append_bytes(self.words, at * WORD + skip, bytes, out);
    }

    /// Stores two byte strings one behind the other from word `at` on.
    fn store_bytes(&self, at: usize, parts: [&[u8]; 2]) {
        racy::store_parts(&self.words[at..], parts);
    }

    /// Appends the lower bound.
    pub fn lower(&self, out: &mut Vec<u8>) {
        self.append(self.bounds_at(), 0, self.lower_bytes(), out);
    }

    /// Appends the upper bound, and says whether there is one.
    pub fn upper(&self, out: &mut Vec<u8>) -> bool {
        let Some(bytes) = self.upper_bytes() else { return false };
        self.append(self.bounds_at() + self.lower_bytes().div_ceil(WORD), 0, bytes, out);
        true
    }

    /// Returns a slot.
    #[inline]
    pub fn slot(&self, index: usize) -> Slot {
        Slot(self.load(HEADER_WORDS + index))
    }

    fn set_slot(&self, index: usize, slot: Slot) {
        self.store(HEADER_WORDS + index, slot.0);
    }

    /// Sets the owner's flags of a record. The holder's.
    pub fn set_flags(&self, index: usize, flags: u8) {
        self.set_slot(index, self.slot(index).with(flags));
    }

    /// Appends the key of a record.
    pub fn key(&self, slot: Slot, out: &mut Vec<u8>) {
        self.append(self.bounds_at(), 0, self.prefix_bytes(), out);
        self.append(slot.offset(), 0, slot.suffix_bytes(), out);
    }

    /// Appends the value of a record.
    #[inline]
    pub fn value(&self, slot: Slot, out: &mut Vec<u8>) {
        self.append(slot.offset(), slot.suffix_bytes(), slot.value_bytes(), out);
    }

    /// Copies the value of a record, if it has just this length.
    #[inline]
    pub fn copy_value(&self, slot: Slot, out: &mut [u8]) -> bool {
        if slot.value_bytes() != out.len() {
            return false;
        }
        let (first, skip) =
            (slot.offset() + slot.suffix_bytes() / WORD, slot.suffix_bytes() % WORD);
        let mut word = self.load(first) >> (8 * skip);
        for (index, bytes) in out.chunks_mut(WORD).enumerate() {
            let next = if skip == 0 { 0 } else { self.load(first + index + 1) };
            let whole = if skip == 0 { word } else { word | next << (64 - 8 * skip) };
            bytes.copy_from_slice(&whole.to_le_bytes()[..bytes.len()]);
            word = if skip == 0 { self.load(first + index + 1) } else { next >> (8 * skip) };
        }
        true
    }

    /// Returns the place of a key between the bounds.
    ///
    /// # Errors
    /// The place of the first greater key when it is absent.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
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

    /// What a word of hints should be.
    fn hints_of(&self, word: usize) -> u64 {
        let count = self.len();
        let hint = |index: usize| match count {
            HINTED_MIN.. => self.slot(hinted_slot(index, count)).head(),
            _ => 0,
        };
        hint(2 * word) | hint(2 * word + 1) << 32
    }

    /// Makes hints of what the slots are now.
    fn set_hints(&self) {
        for word in 0..HINT_WORDS {
            self.store(HINTS_AT + word, self.hints_of(word));
        }
    }

    pub(crate) fn has_right_hints(&self) -> bool {
        (0..HINT_WORDS).all(|word| self.load(HINTS_AT + word) == self.hints_of(word))
    }

    /// The number of records as the block says it, which may be too many.
    pub(crate) fn count_as_stored(&self) -> usize {
        self.field(0, 0)
    }

    /// Whether the unused field of the counts is used.
    pub(crate) fn has_more_counts(&self) -> bool {
        self.field(0, 3) != 0
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
    pub fn free_words(&self) -> usize {
        self.heap().saturating_sub(HEADER_WORDS + self.len())
    }

    /// Words that would be free after the leaf was rewritten.
    pub fn spare_words(&self) -> usize {
        self.bounds_at().saturating_sub(HEADER_WORDS + self.len() + self.live())
    }

    /// Words that a record with this key takes here, with its slot.
    pub fn words_for(&self, key: usize, value: usize) -> usize {
        1 + record_words(key - self.prefix_bytes(), value)
    }

    /// Replaces the value of a record where it lies, if it has room for it. The holder's.
    pub fn overwrite(&self, index: usize, entry: Entry<'_>) -> bool {
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

    /// Replaces the value of a record by one of the same length, where it lies. The holder's.
    ///
    /// # Panics
    /// When its length differs.
    pub fn set_value(&self, index: usize, value: &[u8]) {
        let slot = self.slot(index);
        assert_eq!(slot.value_bytes(), value.len(), "another length");
        let mut suffix = Vec::with_capacity(slot.suffix_bytes());
        self.append(slot.offset(), 0, slot.suffix_bytes(), &mut suffix);
        self.store_bytes(slot.offset(), [&suffix, value]);
    }

    /// Puts a record at a place, for which there are words. The holder's.
    pub fn insert(&self, index: usize, entry: Entry<'_>) {
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
    pub fn take_out(&self, index: usize) {
        let (count, words) = (self.len(), self.slot(index).words());
        for place in index + 1..count {
            self.set_slot(place - 1, self.slot(place));
        }
        self.set_field(0, 0, count - 1);
        self.set_field(0, 2, self.live() - words);
        self.set_hints();
    }

    /// Writes all of the leaf but the owner's word. The holder's. Returns the number of records.
    ///
    /// # Panics
    /// When they do not fit, or a key does not begin as all keys between the bounds do.
    pub fn write<'e>(
        &self,
        bounds: Bounds<'_>,
        notes: u16,
        entries: impl Iterator<Item = Entry<'e>>,
    ) -> usize {
        let prefix = bounds.prefix();
        self.store(2, 0);
        self.set_field(2, 0, bounds.lower.len());
        self.set_field(2, 1, bounds.upper.map_or(NO_BOUND, <[u8]>::len));
        self.set_field(2, 2, prefix);
        self.set_notes(notes);
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
        count
    }
}

/// In a model, lets another thread run between two words.
#[inline]
fn interrupt() {
    #[cfg(feature = "shuttle")]
    spinney_base::shim::atomic::AtomicU8::new(0).load(Relaxed);
}
