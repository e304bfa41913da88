//! Racy copies: bytes that optimistic readers may copy while a writer changes them (rule P27).
//!
//! Plain loads that race with stores are undefined behaviour in Rust, whatever is done with the
//! result. Here both sides go through relaxed atomic words, so a race yields some mixture of old
//! and new words, which the caller's [`VersionLatch`](crate::VersionLatch) then throws away. The
//! memory is never borrowed as a slice.
//!
//! [`RacyWords`] is a ring: word indexes wrap at its length, so a record may lie across the end.
//! Memory is zeroed lazily by the operating system, so what was never written costs nothing.
//!
//! [`store_bytes`], [`copy_bytes`] and their like do the same on words that lie elsewhere, in the order in
//! which the bytes would lie there, so that while nobody stores they may also be read plainly: the
//! frames of the page cache, which are lent under a pin.
//!
//! **Invariant**: every access to the words is an atomic load or store of a whole word.

use std::cmp::Ordering;

use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ZeroedAtomics;

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// A word that lies in memory as eight bytes. Never shuttle's: models are interrupted between
/// words, see [`store_bytes`].
pub type Word = std::sync::atomic::AtomicU64;

/// Stores bytes, a multiple of [`WORD_BYTES`], in the first words.
///
/// # Panics
/// When there are fewer words.
#[inline]
pub fn store_bytes(words: &[Word], bytes: &[u8]) {
    let (source, _) = bytes.as_chunks::<WORD_BYTES>();
    for (index, (word, bytes)) in words[..source.len()].iter().zip(source).enumerate() {
        interrupt(index, source.len());
        word.store(u64::from_le_bytes(*bytes).to_le(), Relaxed);
    }
}

/// Copies the bytes from `offset` on. They are valid only once it is known that no thread stored
/// meanwhile.
///
/// # Panics
/// When the words end before.
#[inline]
pub fn copy_bytes(words: &[Word], offset: usize, out: &mut [u8]) {
    let words = &words[offset / WORD_BYTES..(offset + out.len()).div_ceil(WORD_BYTES)];
    let shift = 8 * (offset % WORD_BYTES);
    let load = |word: &Word| u64::from_le(word.load(Relaxed));
    let join = |low: u64, high: u64| low >> shift | high << (64 - shift);
    let (whole, rest) = out.as_chunks_mut::<WORD_BYTES>();
    let count = whole.len();
    if shift == 0 {
        for (index, (target, word)) in whole.iter_mut().zip(words).enumerate() {
            interrupt(index, count);
            *target = load(word).to_le_bytes();
        }
    } else {
        for (target, pair) in whole.iter_mut().zip(words.windows(2)) {
            *target = join(load(&pair[0]), load(&pair[1])).to_le_bytes();
        }
    }
    if !rest.is_empty() {
        let low = load(&words[count]);
        let high = words.get(count + 1).map_or(0, load);
        let word = if shift == 0 { low } else { join(low, high) };
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

/// Appends `length` bytes from `offset` on to `out`; zeros where a race leads beyond the words. They are
/// valid only once it is known that no thread stored meanwhile.
#[inline]
pub fn append_bytes(words: &[Word], offset: usize, length: usize, out: &mut Vec<u8>) {
    let begin = out.len();
    out.resize(begin + length, 0);
    let (first, skipped) = (offset / WORD_BYTES, offset % WORD_BYTES);
    let last = first + (skipped + length).div_ceil(WORD_BYTES);
    let Some(words) = words.get(first..last) else { return };
    if skipped == 0 {
        copy_whole(words, &mut out[begin..]);
        return;
    }
    let shift = 8 * skipped;
    let load = |word: Option<&Word>| word.map_or(0, |word| u64::from_le(word.load(Relaxed)));
    let join = |low: u64, high: u64| low >> shift | high << 1 << (63 - shift);
    let (whole, rest) = out[begin..].as_chunks_mut::<WORD_BYTES>();
    let count = whole.len();
    let mut low = load(words.first());
    for (index, (target, word)) in whole.iter_mut().zip(words.iter().skip(1)).enumerate() {
        interrupt(index, count);
        let high = load(Some(word));
        *target = join(low, high).to_le_bytes();
        low = high;
    }
    // The last whole one, where nothing follows, and what is less than a word.
    if count > 0 && words.len() == count {
        whole[count - 1] = low.to_le_bytes();
    }
    if !rest.is_empty() {
        let high = load(words.get(count + 1));
        rest.copy_from_slice(&join(low, high).to_le_bytes()[..rest.len()]);
    }
}

/// Copies the bytes of words, which are as many or up to seven more: without shifts, and a line at a time, for a loop over
/// atomics is not unrolled.
#[inline]
fn copy_whole(words: &[Word], out: &mut [u8]) {
    let load = |word: &Word| u64::from_le(word.load(Relaxed)).to_le_bytes();
    let (whole, rest) = out.as_chunks_mut::<WORD_BYTES>();
    let count = whole.len();
    let (lines, few) = whole.as_chunks_mut::<8>();
    let (line_words, words) = words.split_at(8 * lines.len());
    let in_lines = lines.len();
    for (index, (line, words)) in lines.iter_mut().zip(line_words.as_chunks::<8>().0).enumerate() {
        interrupt(index, in_lines);
        for (target, word) in line.iter_mut().zip(words) {
            *target = load(word);
        }
    }
    for (target, word) in few.iter_mut().zip(words) {
        *target = load(word);
    }
    if !rest.is_empty() {
        let last = words.get(count % 8).map_or([0; WORD_BYTES], load);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Returns the eight bytes from `offset` on, the first the lowest; zeros where a race leads beyond the words. They are
/// valid only once it is known that no thread stored meanwhile.
#[inline]
#[must_use]
pub fn word_at(words: &[Word], offset: usize) -> u64 {
    let (at, shift) = (offset / WORD_BYTES, 8 * (offset % WORD_BYTES));
    let load = |at: usize| words.get(at).map_or(0, |word| u64::from_le(word.load(Relaxed)));
    if shift == 0 { load(at) } else { load(at) >> shift | load(at + 1) << (64 - shift) }
}

/// Compares `length` bytes from `offset` on with others; what a race leads to beyond the words counts as
/// zeros. The answer is valid only once it is known that no thread stored meanwhile.
#[inline]
#[must_use]
pub fn compare_bytes(words: &[Word], offset: usize, length: usize, other: &[u8]) -> Ordering {
    let (mut at, shift) = (offset / WORD_BYTES, 8 * (offset % WORD_BYTES));
    let load = |at: usize| words.get(at).map_or(0, |word| u64::from_le(word.load(Relaxed)));
    let common = length.min(other.len());
    let mut low = load(at);
    for piece in other[..common].chunks(WORD_BYTES) {
        let high = load(at + 1);
        let mine = (low >> shift | high << 1 << (63 - shift)).to_le_bytes();
        let order = mine[..piece.len()].cmp(piece);
        if order != Ordering::Equal {
            return order;
        }
        (at, low) = (at + 1, high);
    }
    length.cmp(&other.len())
}

/// Stores two byte strings one behind the other from the first word on; the rest of the last word becomes
/// zero.
///
/// # Panics
/// When there are fewer words.
pub fn store_parts(words: &[Word], parts: [&[u8]; 2]) {
    let count = (parts[0].len() + parts[1].len()).div_ceil(WORD_BYTES);
    let words = &words[..count];
    let store = |index: usize, word: u64| {
        // Once, so that it does not keep step with a reader that is interrupted twice.
        if index == count / 2 {
            interrupt(index, count);
        }
        words[index].store(word.to_le(), Relaxed);
    };
    let (mut carry, mut filled, mut index) = (0_u64, 0, 0);
    for part in parts {
        let (whole, rest) = part.as_chunks::<WORD_BYTES>();
        for bytes in whole {
            let word = u64::from_le_bytes(*bytes);
            store(index, carry | word << filled);
            carry = word >> 1 >> (63 - filled);
            index += 1;
        }
        let mut bytes = [0; WORD_BYTES];
        bytes[..rest.len()].copy_from_slice(rest);
        let (word, bits) = (u64::from_le_bytes(bytes), 8 * rest.len());
        carry |= word << filled;
        if filled + bits >= 64 {
            store(index, carry);
            carry = word >> 1 >> (63 - filled);
            index += 1;
        }
        filled = (filled + bits) % 64;
    }
    if filled > 0 {
        store(index, carry);
    }
}

/// Stores bytes from `offset` on; the other bytes of the first and the last word stay. No other thread stores
/// meanwhile.
///
/// # Panics
/// When the words end before.
pub fn store_within(words: &[Word], offset: usize, bytes: &[u8]) {
    let (mut index, mut skipped) = (offset / WORD_BYTES, offset % WORD_BYTES);
    let mut left = bytes;
    while !left.is_empty() {
        let (piece, rest) = left.split_at(left.len().min(WORD_BYTES - skipped));
        let mut word = u64::from_le(words[index].load(Relaxed)).to_le_bytes();
        word[skipped..skipped + piece.len()].copy_from_slice(piece);
        words[index].store(u64::from_le_bytes(word).to_le(), Relaxed);
        interrupt(1, 1);
        (index, skipped, left) = (index + 1, 0, rest);
    }
}

/// In a model, lets another thread run in the middle of a copy.
#[inline]
fn interrupt(index: usize, count: usize) {
    #[cfg(feature = "shuttle")]
    if index == 1 || index == count / 2 {
        spinney_base::shim::step();
    }
    #[cfg(not(feature = "shuttle"))]
    let _ = (index, count);
}

/// A ring of words that may be read while they are written. Thread-safe; consistency is the
/// caller's.
#[derive(Debug)]
pub struct RacyWords {
    words: ZeroedAtomics<AtomicU64>,
}

impl RacyWords {
    /// Makes a ring of `length` zeroed words.
    #[must_use]
    pub fn new(length: usize) -> Self {
        RacyWords { words: ZeroedAtomics::new(length) }
    }

    /// Returns the number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the word at `index`, which wraps once at the end.
    #[inline]
    #[must_use]
    pub fn load(&self, index: usize) -> u64 {
        self.words[self.wrap(index)].load(Relaxed)
    }

    /// Stores the word at `index`, which wraps once at the end.
    #[inline]
    pub fn store(&self, index: usize, word: u64) {
        self.words[self.wrap(index)].store(word, Relaxed);
    }

    /// Prefetches the cache line of the word at `index`, which wraps.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        crate::prefetch(&self.words[self.wrap(index)]);
    }

    /// Appends `length` bytes from word `index` on to `out`. An absurd `length`, as a racing reader
    /// may have, copies no more than the ring.
    #[inline]
    pub fn read_into(&self, index: usize, length: usize, out: &mut Vec<u8>) {
        let length = length.min(self.len() * WORD_BYTES);
        let start = out.len();
        // Whole words, so that the loops have no conditions.
        let bytes = length.next_multiple_of(WORD_BYTES);
        // Memory of just the right size costs less than growing a vector that has none.
        if out.capacity() == 0 {
            *out = Vec::with_capacity(bytes);
        }
        out.resize(start + bytes, 0);
        let (targets, _) = out[start..].as_chunks_mut::<WORD_BYTES>();
        let (to_end, from_start) = self.pieces(index, targets.len());
        let (first, second) = targets.split_at_mut(to_end.len());
        let copy = |targets: &mut [[u8; WORD_BYTES]], words: &[AtomicU64]| {
            for (target, word) in targets.iter_mut().zip(words) {
                *target = word.load(Relaxed).to_le_bytes();
            }
        };
        copy(first, to_end);
        if !from_start.is_empty() {
            copy(second, from_start);
        }
        out.truncate(start + length);
    }

    /// Writes `bytes`, which are no more than the ring holds, from word `index` on; the rest of the
    /// last word becomes zero.
    #[inline]
    pub fn write_from(&self, index: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
        let (to_end, from_start) = self.pieces(index, whole.len());
        let (first, second) = whole.split_at(to_end.len());
        let copy = |bytes: &[[u8; WORD_BYTES]], words: &[AtomicU64]| {
            for (bytes, word) in bytes.iter().zip(words) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
        };
        copy(first, to_end);
        if !from_start.is_empty() {
            copy(second, from_start);
        }
        if !rest.is_empty() {
            self.store(index + whole.len(), last_word(rest));
        }
    }

    /// Whether `bytes`, which are no more than the ring holds, are what [`RacyWords::write_from`]
    /// wrote from word `index` on: the rest of the last word counts as well.
    #[inline]
    #[must_use]
    pub fn equals(&self, index: usize, bytes: &[u8]) -> bool {
        let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
        let (to_end, from_start) = self.pieces(index, whole.len());
        let (first, second) = whole.split_at(to_end.len());
        let are = |words: &[AtomicU64], bytes: &[[u8; WORD_BYTES]]| {
            words.iter().zip(bytes).all(|(word, bytes)| word.load(Relaxed).to_le_bytes() == *bytes)
        };
        are(to_end, first)
            && are(from_start, second)
            && (rest.is_empty() || self.load(index + whole.len()) == last_word(rest))
    }

    /// Copies `count` words from `source` to `target`, in ascending order; both wrap. They may
    /// overlap when `target` comes before `source` in ring order.
    pub fn copy_within(&self, source: usize, target: usize, count: usize) {
        for step in 0..count {
            self.store(target + step, self.load(source + step));
        }
    }

    /// The words from `index` on, at most `count`: up to the end of the ring, and from its start.
    #[inline]
    fn pieces(&self, index: usize, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let count = count.min(self.words.len());
        let (start, end) = self.words.split_at(self.wrap(index));
        let to_end = &end[..count.min(end.len())];
        (to_end, &start[..count - to_end.len()])
    }

    #[inline]
    fn wrap(&self, index: usize) -> usize {
        // An index past twice the length comes only from a racing reader; where it lands does not
        // matter, that it lands inside does.
        if index < self.words.len() {
            index
        } else if index < 2 * self.words.len() {
            index - self.words.len()
        } else {
            index % self.words.len()
        }
    }
}

/// The last word of what does not end with a whole one.
fn last_word(rest: &[u8]) -> u64 {
    let mut word = [0; WORD_BYTES];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn bytes_within_words_leave_the_others() {
        for offset in 0..12 {
            for length in 0..=28 - offset {
                let words: Vec<Word> = (0..4).map(|_| Word::new(u64::MAX)).collect();
                let bytes: Vec<u8> = (1..=length as u8).collect();
                store_within(&words, offset, &bytes);
                let mut expected = [0xFF; 32];
                expected[offset..offset + length].copy_from_slice(&bytes);
                let mut found = [0; 32];
                copy_bytes(&words, 0, &mut found);
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn bytes_wrap_around_the_end() {
        let words = RacyWords::new(4);
        let bytes = b"abcdefghijklm";
        for start in 0..4 {
            words.write_from(start, bytes);
            let mut out = Vec::new();
            words.read_into(start, bytes.len(), &mut out);
            assert_eq!(out, bytes);
            assert!(words.equals(start, bytes));
            assert!(!words.equals(start, b"abcdefgx"));
        }
    }

    #[test]
    fn words_elsewhere_are_copied_from_any_place() {
        let words: Vec<Word> = (0..20).map(|_| Word::new(0)).collect();
        let bytes: Vec<u8> = (0..160).collect();
        store_bytes(&words, &bytes);
        for offset in 0..=160 {
            for length in 0..=160 - offset {
                let mut out = vec![0; length];
                copy_bytes(&words, offset, &mut out);
                assert_eq!(out, bytes[offset..offset + length], "{offset} {length}");
            }
        }
    }

    #[test]
    fn parts_are_stored_appended_and_compared() {
        let words: Vec<Word> = (0..8).map(|_| Word::new(u64::MAX)).collect();
        let bytes: Vec<u8> = (1..=40).collect();
        for length in 0..=40 {
            for first in 0..=length {
                store_parts(&words, [&bytes[..first], &bytes[first..length]]);
                let mut out = vec![77];
                append_bytes(&words, first, length - first, &mut out);
                assert_eq!(out[1..], bytes[first..length]);
                let part = &bytes[first..length];
                assert_eq!(compare_bytes(&words, first, part.len(), part), Ordering::Equal);
                if let Some(shorter) = part.len().checked_sub(1) {
                    assert_eq!(compare_bytes(&words, first, shorter, part), Ordering::Less);
                    let more = [part, &[0]].concat();
                    assert_eq!(compare_bytes(&words, first, part.len(), &more), Ordering::Less);
                    let mut other = part.to_vec();
                    other[shorter] = 0;
                    assert_eq!(compare_bytes(&words, first, part.len(), &other), Ordering::Greater);
                }
            }
        }
        // Where a race leads out of the words there are zeros.
        let mut out = Vec::new();
        append_bytes(&words, 60, 9, &mut out);
        assert_eq!(out, [0; 9]);
        assert_eq!(compare_bytes(&words, 1 << 20, 3, &[0, 0, 0]), Ordering::Equal);
    }

    #[test]
    fn parts_of_many_lines_are_appended() {
        let bytes: Vec<u8> = (0..400).map(|at| (at % 251) as u8).collect();
        let words: Vec<Word> = (0..50).map(|_| Word::new(0)).collect();
        store_parts(&words, [&bytes, &[]]);
        for offset in (0..100).filter(|offset| offset % 8 < 2) {
            for length in 0..=400 - offset {
                let mut out = vec![7; 3];
                append_bytes(&words, offset, length, &mut out);
                assert_eq!(out[..3], [7; 3]);
                assert!(out[3..] == bytes[offset..offset + length], "{offset} {length}");
            }
        }
    }

    #[test]
    fn overlapping_copies_move_down() {
        let words = RacyWords::new(6);
        words.write_from(2, &[1; 24]);
        words.copy_within(2, 1, 3);
        assert!(words.equals(1, &[1; 24]));
    }

    #[test]
    fn absurd_lengths_stay_inside() {
        let words = RacyWords::new(2);
        let mut out = Vec::new();
        words.read_into(1_000_003, usize::MAX / 16, &mut out);
        assert_eq!(out.len(), 16);
    }
}
