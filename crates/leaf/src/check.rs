//! Checks of leaves that came from disk: afterwards no index leads outside of what it should.

use std::fmt::Display;

use crate::layout::{HEADER_WORDS, Leaf, record_words, records_max};

/// What is wrong with a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What there should be.
    pub expected: String,
    /// What there is.
    pub found: String,
}

impl Wrong {
    fn new(expected: impl Display, found: impl Display) -> Wrong {
        Wrong { expected: expected.to_string(), found: found.to_string() }
    }
}

impl Leaf<'_> {
    /// Checks every invariant of the layout. Records may have no other flags than `flags`, and the leaf no
    /// other notes than `notes`. Nobody stores meanwhile.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn check(&self, flags: u8, notes: u16) -> Result<(), Wrong> {
        self.check_lengths(notes)?;
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        self.lower(&mut lower);
        let has_upper = self.upper(&mut upper);
        if has_upper && lower >= upper {
            return Err(Wrong::new("a lower bound below the upper one", "another order"));
        }
        if !has_upper && self.prefix_bytes() > 0 || !self.shares_prefix(&lower, &upper) {
            let found = format!("{} bytes", self.prefix_bytes());
            return Err(Wrong::new("what both bounds begin with as what all keys share", found));
        }
        let (mut before, mut key, mut live) = (Vec::new(), Vec::new(), 0);
        let (heap, end) = (self.heap(), self.bounds_at());
        for index in 0..self.len() {
            let slot = self.slot(index);
            let words = slot.words();
            if slot.offset() < heap || slot.offset() + words > end || slot.flags() & !flags != 0 {
                return Err(Wrong::new(
                    format!("record {index} inside the heap, from {heap} to {end}"),
                    format!("{words} words at {}, flags {}", slot.offset(), slot.flags()),
                ));
            }
            live += words;
            key.clear();
            self.key(slot, &mut key);
            let is_above = if index == 0 { key >= lower } else { key > before };
            if !is_above
                || has_upper && key >= upper
                || !slot.has_head_of(&key[self.prefix_bytes()..])
            {
                return Err(Wrong::new(format!("key {index} above the one before"), "another"));
            }
            std::mem::swap(&mut before, &mut key);
        }
        if live != self.live() {
            return Err(Wrong::new(format!("{live} words of records"), self.live()));
        }
        if !self.has_right_hints() {
            return Err(Wrong::new("heads of records as hints", "others"));
        }
        Ok(())
    }

    /// Whether counts and lengths lie within the block.
    fn check_lengths(&self, notes: u16) -> Result<(), Wrong> {
        let (count, most) = (self.count_as_stored(), records_max(self.block_words()));
        if count > most {
            return Err(Wrong::new(format!("at most {most} records"), count));
        }
        let (slots, heap, live) = (HEADER_WORDS + count, self.heap(), self.live());
        let bounds =
            self.lower_bytes().div_ceil(8) + self.upper_bytes().map_or(0, |u| u.div_ceil(8));
        let end = self.block_words().checked_sub(bounds);
        let Some(end) = end.filter(|end| slots <= heap && heap <= *end && live <= end - heap)
        else {
            return Err(Wrong::new(
                "slots, heap and bounds in this order",
                format!("slots to {slots}, heap from {heap} with {live}, {bounds} of bounds"),
            ));
        };
        debug_assert_eq!(end, self.bounds_at());
        if self.notes() & !notes != 0 || self.has_more_counts() {
            return Err(Wrong::new("zero in unused bits", "something else"));
        }
        // An empty record takes a word, too.
        debug_assert_eq!(record_words(0, 0), 1);
        Ok(())
    }

    fn shares_prefix(&self, lower: &[u8], upper: &[u8]) -> bool {
        let shared = lower.iter().zip(upper).take_while(|(one, other)| one == other).count();
        self.upper_bytes().is_none() || self.prefix_bytes() == shared
    }
}
