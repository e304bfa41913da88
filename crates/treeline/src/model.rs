//! The model of a segment: from a key to the one page that holds it.
//!
//! ```text
//!   lower bound   https://a.org/x        key   https://a.org/kiwi
//!                 |--prefix--|                 |--prefix--|
//!   x     = the 8 bytes after the prefix, big-endian, zeros after the end of the key
//!   line:   page = floor((x - origin) * slope + intercept)        2 to 16 pages
//!   steps:  page = how many of three numbers are not above x      2 or 4 pages
//!   and in both the page is held between the first and the last
//! ```
//!
//! **Invariants** (each a test below)
//! 1. *Monotone*: of two keys of a segment the greater is never on a lower page. The prefix splits
//!    the keys from the lower bound on into those that begin with it and those above all of them,
//!    which belong to the last page. Among the first, `x` does not fall as the key rises, and no
//!    later step turns the order round: the conversion of an integer to `f64`, the product with a
//!    number that is not negative and the sum with a constant are the exact results rounded, and
//!    IEEE 754 rounding is monotone, as are `floor`, the conversion back and the clamp.
//! 2. *Total*: any key gives a page below `pages`. A finite factor and a finite summand give no NaN
//!    from a finite distance, and an infinite one is clamped.
//! 3. A model that was read from disk is one that could have been made: [`Model::from_bytes`].
//! 4. The model asks nothing of the segment's upper bound, so it stays right when that moves.
//!
//! Records are placed by this very function (notes 14: the same model and the same clamp), so a
//! prediction is never off.
//!
//! **Bytes** (26, little-endian): `u16` with the length of the prefix in its lower 15 bits and the
//! kind in its highest (0: line, 1: steps), then three `u64`. Of a line these are the origin and
//! the bits of two `f64`, slope and intercept, which count in pages; of steps the least `x` of the
//! second, third and fourth page, in ascending order, [`NO_STEP`] for pages that there are not.
//!
//! Paper: 3.2, 4.4. **Differs from the paper**: keys are byte strings; the authors' keys are
//! integers, and the model starts at the segment's first key. Steps are ours: text is seldom close
//! to a line even over two pages, and three numbers take no more room than a line.

use std::cmp::Ordering;
use std::fmt;

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, ErrorKind, Result};

/// Maps the keys of one segment to its pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Model {
    /// With [`STEPS`] or without.
    prefix: u16,
    words: [u64; 3],
}

/// Bytes of a model on disk.
pub(crate) const MODEL_BYTES: usize = 26;

/// The step of a page that there is not.
pub(crate) const NO_STEP: u64 = u64::MAX;

/// The bit of the prefix that tells steps from a line.
const STEPS: u16 = 1 << 15;

impl Model {
    /// A line for a segment whose lower bound begins with `prefix` bytes that its records share.
    ///
    /// # Errors
    /// `Corruption` when the slope is negative or either number is not finite, or when the prefix
    /// is longer than any key.
    pub(crate) fn line(prefix: u16, origin: u64, slope: f64, intercept: f64) -> Result<Model> {
        Model::checked(Model { prefix, words: [origin, slope.to_bits(), intercept.to_bits()] })
    }

    /// The least words of the second, third and fourth page.
    ///
    /// # Errors
    /// `Corruption` when they do not ascend, or when the prefix is longer than any key.
    pub(crate) fn steps(prefix: u16, steps: [u64; 3]) -> Result<Model> {
        Model::checked(Model { prefix: prefix | STEPS, words: steps })
    }

    fn checked(model: Model) -> Result<Model> {
        let [_, slope, intercept] = model.words;
        let (slope, intercept) = (f64::from_bits(slope), f64::from_bits(intercept));
        let sound = if model.is_steps() {
            model.words.is_sorted()
        } else {
            slope.is_finite() && slope >= 0.0 && intercept.is_finite()
        };
        if sound && model.prefix_length() <= KEY_BYTES_MAX {
            return Ok(model);
        }
        Err(Error::new(ErrorKind::Corruption, format!("a segment's model is {model:?}")))
    }

    pub(crate) fn to_bytes(self) -> [u8; MODEL_BYTES] {
        let mut bytes = [0; MODEL_BYTES];
        bytes[..2].copy_from_slice(&self.prefix.to_le_bytes());
        for (chunk, word) in bytes[2..].chunks_exact_mut(8).zip(self.words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The model that a segment with this lower bound was written with.
    ///
    /// # Errors
    /// `Corruption` when there is no such model.
    pub(crate) fn from_bytes(bytes: &[u8; MODEL_BYTES], lower: &[u8]) -> Result<Model> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let prefix = u16::from_le_bytes([bytes[0], bytes[1]]);
        let model = Model::checked(Model { prefix, words: [word(2), word(10), word(18)] })?;
        if model.prefix_length() > lower.len() {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("a segment with a bound of {} bytes has {model:?}", lower.len()),
            ));
        }
        Ok(model)
    }

    /// Whether it is steps and not a line.
    pub(crate) fn is_steps(&self) -> bool {
        self.prefix & STEPS != 0
    }

    fn prefix_length(&self) -> usize {
        usize::from(self.prefix & !STEPS)
    }

    /// What the records begin with: the beginning of the lower bound.
    fn prefix<'a>(&self, lower: &'a [u8]) -> &'a [u8] {
        &lower[..lower.len().min(self.prefix_length())]
    }

    /// The page of `key` in a segment of `pages` pages (at least 1) with this lower bound. A key
    /// below the bound, which is of another segment, gives any page.
    pub(crate) fn page(&self, lower: &[u8], key: &[u8], pages: u32) -> u32 {
        let prefix = self.prefix(lower);
        let head = key.get(..prefix.len()).unwrap_or(key);
        match head.cmp(prefix) {
            Ordering::Less => 0,
            Ordering::Greater => pages.saturating_sub(1),
            Ordering::Equal => self.page_of_word(word_after(key, prefix.len()), pages),
        }
    }

    fn page_of_word(&self, word: u64, pages: u32) -> u32 {
        let page = if self.is_steps() {
            self.words.iter().map(|step| u32::from(*step <= word)).sum()
        } else {
            let [origin, slope, intercept] = self.words;
            #[expect(clippy::cast_precision_loss, reason = "rounding is monotone, invariant 1")]
            let distance = word.saturating_sub(origin) as f64;
            let place = distance * f64::from_bits(slope) + f64::from_bits(intercept);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the floor; the conversion saturates: 0 from below, u32::MAX from above"
            )]
            let page = place as u32;
            page
        };
        page.min(pages.saturating_sub(1))
    }

    /// The least key of a segment with this lower bound that belongs to `page` or a later one, or
    /// `None` when there is no such key. `page` is below `pages`.
    ///
    /// It is searched for with [`Model::page`] itself: inverting the line would be off by rounding.
    pub(crate) fn first_key(&self, lower: &[u8], page: u32, pages: u32) -> Option<Vec<u8>> {
        if page == 0 {
            return Some(lower.to_vec());
        }
        let prefix = self.prefix(lower);
        if self.page_of_word(u64::MAX, pages) < page {
            return above_all(prefix);
        }
        // The least word of the page: `high` always belongs to it, all below `low` do not.
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.page_of_word(middle, pages) >= page {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let word = high.to_be_bytes();
        let length = word.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut key = prefix.to_vec();
        key.extend_from_slice(&word[..length]);
        Some(if key.as_slice() < lower { lower.to_vec() } else { key })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix_length();
        let [first, second, third] = self.words;
        if self.is_steps() {
            return write!(f, "steps at {first:x}, {second:x}, {third:x} after {prefix} bytes");
        }
        let (slope, intercept) = (f64::from_bits(second), f64::from_bits(third));
        write!(f, "a line from {first:x} with {slope:e} and {intercept:e} after {prefix} bytes")
    }
}

/// The 8 bytes of a key from `at` on as a number that orders like them; zeros stand for what the
/// key does not have.
pub(crate) fn word_after(key: &[u8], at: usize) -> u64 {
    let rest = key.get(at..).unwrap_or(&[]);
    if let Some(word) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*word);
    }
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(word)
}

/// The least key above all that begin with `prefix`; `None` when those go to the end of all keys.
pub(crate) fn above_all(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut key = prefix[..=last].to_vec();
    key[last] += 1;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few different bytes, so that keys often share prefixes.
    fn keys() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0_u8), Just(1), Just(b'a'), Just(254), Just(255), any::<u8>()];
        prop::collection::vec(byte, 0..14)
    }

    fn numbers() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>(), -1e3..1e3, Just(0.0), 1e-20..1e-10, Just(f64::MAX)]
    }

    fn models() -> impl Strategy<Value = Model> {
        let word = prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)];
        let line = (0_u16..9, word.clone(), numbers(), numbers());
        let steps = (0_u16..9, [word.clone(), word.clone(), word]);
        prop_oneof![
            line.prop_filter_map("refused", |(prefix, origin, a, b)| {
                Model::line(prefix, origin, a, b).ok()
            }),
            steps.prop_map(|(prefix, mut steps)| {
                steps.sort_unstable();
                Model::steps(prefix, steps).unwrap()
            }),
        ]
    }

    proptest! {
        #[test]
        fn pages_rise_with_the_keys(
            model in models(), lower in keys(), mut all in prop::collection::vec(keys(), 1..40),
            pages in 1_u32..17,
        ) {
            all.retain(|key| *key >= lower);
            all.sort();
            let found: Vec<u32> = all.iter().map(|key| model.page(&lower, key, pages)).collect();
            prop_assert!(found.is_sorted());
            prop_assert!(found.iter().all(|page| *page < pages));
        }

        #[test]
        fn any_key_has_a_page(
            model in models(), lower in keys(), key in keys(), pages in 0_u32..9,
        ) {
            prop_assert!(model.page(&lower, &key, pages) < pages.max(1));
        }

        #[test]
        fn bytes_come_back(model in models(), lower in prop::collection::vec(any::<u8>(), 9)) {
            prop_assert_eq!(Model::from_bytes(&model.to_bytes(), &lower).unwrap(), model);
        }

        #[test]
        fn any_bytes_are_a_model_or_refused(
            bytes: [u8; MODEL_BYTES], lower in keys(), key in keys(),
        ) {
            if let Ok(model) = Model::from_bytes(&bytes, &lower) {
                prop_assert!(model.page(&lower, &key, 16) < 16);
                prop_assert_eq!(model.to_bytes(), bytes);
            }
        }

        #[test]
        fn the_first_key_of_a_page_is_the_least(
            model in models(), lower in keys(), all in prop::collection::vec(keys(), 0..40),
            pages in 1_u32..17,
        ) {
            for page in 0..pages {
                let first = model.first_key(&lower, page, pages);
                if let Some(first) = &first {
                    prop_assert!(*first >= lower);
                    prop_assert!(model.page(&lower, first, pages) >= page);
                }
                for key in all.iter().filter(|key| **key >= lower) {
                    let from = first.as_ref().is_some_and(|first| key >= first);
                    prop_assert_eq!(from, model.page(&lower, key, pages) >= page);
                }
            }
        }
    }

    #[test]
    fn keys_beyond_the_prefix_belong_to_the_last_page() {
        let model = Model::line(2, 0, 0.0, 1.0).unwrap();
        assert_eq!(model.page(b"ab", b"ab", 4), 1);
        assert_eq!(model.page(b"abc", b"abzz", 4), 1);
        assert_eq!(model.page(b"ab", b"ac", 4), 3);
        assert_eq!(model.page(b"ab", b"b", 4), 3);
        assert_eq!(model.first_key(b"ab", 3, 4), Some(b"ac".to_vec()));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for (slope, intercept) in [
            (-1.0, 0.0),
            (f64::NAN, 0.0),
            (f64::INFINITY, 0.0),
            (1.0, f64::NAN),
            (1.0, f64::INFINITY),
        ] {
            let refused = Model::line(0, 0, slope, intercept).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corruption);
        }
        assert_eq!(Model::steps(0, [1, 3, 2]).unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(Model::steps(1025, [1, 2, 3]).unwrap_err().kind(), ErrorKind::Corruption);
        let long = Model::line(3, 0, 1.0, 0.0).unwrap().to_bytes();
        assert_eq!(Model::from_bytes(&long, b"ab").unwrap_err().kind(), ErrorKind::Corruption);
    }
}
