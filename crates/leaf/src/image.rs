//! All records of one leaf, or of neighbours, and how they are spread over other leaves: splits, shares
//! and joins are the same step with other numbers of leaves before and after.

use crate::layout::{Bounds, HEADER_WORDS, Leaf, WORD, record_words};
use crate::records::Records;

/// All of one leaf, or of several that follow each other.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Their records.
    pub records: Records,
    /// Lower bound of the first.
    pub lower: Vec<u8>,
    /// Upper bound of the last; `None` at the end of all keys.
    pub upper: Option<Vec<u8>>,
    /// Words of the block of one leaf.
    words: usize,
}

/// A record for which room is made.
#[derive(Clone, Copy, Debug)]
pub struct Coming<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Words that it takes at most, with its slot.
    pub words: usize,
}

impl Image {
    /// Copies a leaf. `about` tells what the owner keeps about a record.
    #[must_use]
    pub fn of(leaf: Leaf<'_>, about: impl Fn(usize) -> u64) -> Image {
        let words = leaf.block_words();
        // Room for two leaves and what their keys share.
        let records = Records::with_capacity(2 * leaf.len(), 5 * words * 4);
        let mut image = Image { records, words, ..Image::default() };
        leaf.lower(&mut image.lower);
        image.add(leaf, about);
        image
    }

    /// Makes one of records that lie in no leaf, for blocks of so many words.
    #[must_use]
    pub fn new(records: Records, bounds: Bounds<'_>, words: usize) -> Image {
        let (lower, upper) = (bounds.lower.to_vec(), bounds.upper.map(<[u8]>::to_vec));
        Image { records, lower, upper, words }
    }

    /// Adds the leaf that follows.
    pub fn add(&mut self, leaf: Leaf<'_>, about: impl Fn(usize) -> u64) {
        for index in 0..leaf.len() {
            let slot = leaf.slot(index);
            let about = (slot.flags(), about(index));
            self.records.push(about, |out| leaf.key(slot, out), |out| leaf.value(slot, out));
        }
        let mut upper = Vec::new();
        self.upper = leaf.upper(&mut upper).then_some(upper);
    }

    /// Returns the bounds of all of it.
    #[must_use]
    pub fn bounds(&self) -> Bounds<'_> {
        Bounds { lower: &self.lower, upper: self.upper.as_deref() }
    }

    /// Words that a record takes in a leaf, at most, where keys share `prefix` bytes.
    fn words(&self, index: usize, prefix: usize) -> usize {
        let (key, value) = self.records.lengths(index);
        1 + record_words(key - prefix, value)
    }

    /// Returns the words that all records take at most, with their slots.
    #[must_use]
    pub fn all_words(&self) -> usize {
        // No part of it shares fewer bytes.
        let prefix = self.bounds().prefix();
        (0..self.records.len()).map(|index| self.words(index, prefix)).sum()
    }

    /// Returns where `parts` parts of about the same size begin, so that `coming` fits into its part;
    /// `None` where one would not fit into a leaf.
    #[must_use]
    pub fn cuts(&self, parts: usize, coming: Coming<'_>) -> Option<Vec<usize>> {
        let place = (0..self.records.len()).position(|index| self.records.key(index) >= coming.key);
        let place = place.unwrap_or(self.records.len());
        let (total, prefix) = (self.all_words() + coming.words, self.bounds().prefix());
        let words_of = |key: &[u8]| key.len().div_ceil(WORD);
        let upper = self.upper.as_deref().map_or(0, words_of);
        let mut cuts = vec![0];
        let mut lower = words_of(&self.lower);
        let (mut words, mut of_part, mut expected) = (0, 0, 0);
        for index in 0..self.records.len() {
            let (key, more) = (self.records.key(index), self.words(index, prefix));
            if cuts.len() < parts && words + more / 2 >= total * cuts.len() / parts {
                cuts.push(index);
                (lower, of_part, expected) = (words_of(key), 0, 0);
            }
            (words, of_part) = (words + more, of_part + more);
            words += if index == place { coming.words } else { 0 };
            // Between two parts it may come to either.
            if index == place || index + 1 == place {
                expected = coming.words;
            }
            // A separator is at most a byte longer than the key below it.
            let bounds = lower + upper.max(words_of(key) + 1);
            if of_part + expected + bounds + HEADER_WORDS > self.words {
                return None;
            }
        }
        (cuts.len() == parts).then_some(cuts)
    }

    /// Returns where parts begin that each take what surely fits into a leaf, and one record at least.
    #[must_use]
    pub fn packed_cuts(&self) -> Vec<usize> {
        let prefix = self.bounds().prefix();
        let words_of = |key: &[u8]| key.len().div_ceil(WORD);
        let upper = self.upper.as_deref().map_or(0, words_of);
        let (mut cuts, mut lower, mut of_part) = (vec![0], words_of(&self.lower), 0);
        for index in 0..self.records.len() {
            let (key, more) = (self.records.key(index), self.words(index, prefix));
            // A separator is at most a byte longer than the key below it.
            let bounds = lower + upper.max(words_of(key) + 1);
            if of_part > 0 && of_part + more + bounds + HEADER_WORDS > self.words {
                cuts.push(index);
                (lower, of_part) = (words_of(key), 0);
            }
            of_part += more;
        }
        cuts
    }

    /// Returns where two parts begin of which the first has at most `most` words; one part, if all fits
    /// there. `None` where a part would not fit into a leaf.
    #[must_use]
    pub fn filled(&self, most: usize) -> Option<Vec<usize>> {
        let prefix = self.bounds().prefix();
        let most = most.checked_sub(HEADER_WORDS + self.lower.len().div_ceil(WORD))?;
        let mut words = 0;
        let end = (0..self.records.len()).position(|index| {
            words += self.words(index, prefix);
            words > most
        });
        let cuts = end.map_or(vec![0], |end| vec![0, end]);
        (end != Some(0) && self.fits(&cuts, &[])).then_some(cuts)
    }

    /// Returns where parts begin of which each but the last takes about `most` words, and no more. `None` where a part would
    /// not fit into a leaf.
    #[must_use]
    pub fn full_cuts(&self, most: usize) -> Option<Vec<usize>> {
        let common =
            |one: &[u8], key: &[u8]| one.iter().zip(key).take_while(|(a, b)| a == b).count();
        let (mut cuts, mut lower) = (vec![0], self.lower.clone());
        let (mut words, mut prefix) = (0, usize::MAX);
        for index in 0..self.records.len() {
            let (begin, key) = (cuts[cuts.len() - 1], self.records.key(index));
            // What all keys of the part share, if the next one begins here.
            let shared = common(&lower, key);
            if shared < prefix {
                prefix = shared;
                words = (begin..index).map(|index| self.words(index, prefix)).sum();
            }
            words += self.words(index, prefix);
            if words > most && index > begin {
                cuts.push(index);
                lower = separator(self.records.key(index - 1), key);
                prefix = common(&lower, key);
                words = self.words(index, prefix);
            }
        }
        self.fits(&cuts, &[]).then_some(cuts)
    }

    /// Returns the lower bounds of parts that begin at `cuts`. `key` decides where one without records
    /// begins.
    #[must_use]
    pub fn lowers(&self, cuts: &[usize], key: &[u8]) -> Vec<Vec<u8>> {
        let mut lowers = vec![self.lower.clone()];
        for cut in &cuts[1..] {
            let above = if *cut < self.records.len() { self.records.key(*cut) } else { key };
            let below =
                cut.checked_sub(1).map_or(&self.lower[..], |before| self.records.key(before));
            lowers.push(separator(below, above));
        }
        lowers
    }

    /// Returns whether each of these parts fits into a leaf.
    #[must_use]
    pub fn fits(&self, cuts: &[usize], key: &[u8]) -> bool {
        self.fits_between(cuts, &self.lowers(cuts, key))
    }

    /// Returns the same for parts with these lower bounds.
    #[must_use]
    pub fn fits_between(&self, cuts: &[usize], lowers: &[Vec<u8>]) -> bool {
        (0..cuts.len()).all(|part| {
            let bounds = self.bounds_of(part, lowers);
            let end = cuts.get(part + 1).copied().unwrap_or(self.records.len());
            let prefix = bounds.prefix();
            let records: usize = (cuts[part]..end).map(|index| self.words(index, prefix)).sum();
            records + bounds.words() <= self.words
        })
    }

    /// Returns the bounds of a part whose lower bound is one of these.
    #[must_use]
    pub fn bounds_of<'b>(&'b self, part: usize, lowers: &'b [Vec<u8>]) -> Bounds<'b> {
        let upper = lowers.get(part + 1).map(Vec::as_slice).or(self.upper.as_deref());
        Bounds { lower: &lowers[part], upper }
    }
}

/// Returns the shortest key that is above `below` and at most `above`.
#[must_use]
pub fn separator(below: &[u8], above: &[u8]) -> Vec<u8> {
    let common = below.iter().zip(above).take_while(|(one, other)| one == other).count();
    above[..above.len().min(common + 1)].to_vec()
}
