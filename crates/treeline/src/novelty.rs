//! The share of written records that are new, by which [`stage`](crate::stage) decides.

use crate::policy::{self, NOVELTY_COUNTED_MAX};

/// Whether recently written records are of new keys, seen from two sides. A write-back knows it of
/// its records, but of staged ones only when they are merged. A put knows that its key is not new
/// if the cache has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Novelty {
    written_back: ShareOfNew,
    put: ShareOfNew,
    /// Puts that were counted in all, and those that may have been of new keys.
    puts: (u64, u64),
}

impl Novelty {
    /// Counts `all` records that were written back, `new` of them new.
    pub(crate) fn were_written_back(&mut self, new: usize, all: usize) {
        self.written_back.note(new as u64, all as u64);
    }

    /// Notes how many records have been put in all, and how many of them may have been of new keys.
    pub(crate) fn were_put(&mut self, all: u64, new: u64) {
        let before = std::mem::replace(&mut self.puts, (all, new));
        self.put.note(new.saturating_sub(before.1), all.saturating_sub(before.0));
    }

    pub(crate) fn is_high(self) -> bool {
        self.written_back.is_high() && self.put.is_high()
    }
}

/// The share of recent records that were new.
#[derive(Clone, Copy, Debug, Default)]
struct ShareOfNew {
    new: u64,
    all: u64,
}

impl ShareOfNew {
    fn note(&mut self, new: u64, all: u64) {
        if all > NOVELTY_COUNTED_MAX {
            (self.new, self.all) = (0, 0);
        }
        self.new += new.min(all);
        self.all += all;
        if self.all > NOVELTY_COUNTED_MAX {
            (self.new, self.all) = (self.new / 2, self.all / 2);
        }
    }

    /// Whether all but one in eight were new.
    fn is_high(self) -> bool {
        policy::are_new(self.new, self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn novelty_forgets() {
        let mut share = ShareOfNew::default();
        assert!(!share.is_high(), "nothing is known");
        share.note(63, 63);
        assert!(!share.is_high(), "little is known");
        share.note(100, 100);
        assert!(share.is_high());
        share.note(0, 10_000);
        assert!(!share.is_high());
        (0..10).for_each(|_| share.note(4000, 4000));
        assert!(share.is_high());
        (0..10).for_each(|_| share.note(3400, 4000));
        assert!(!share.is_high(), "15 of 100 are not new");
    }

    /// Before staged records are merged it is unknown whether they are new, but a key that is put
    /// again and again is in memory.
    #[test]
    fn novelty_ends_with_the_puts_that_are_updates() {
        let mut novelty = Novelty::default();
        novelty.were_written_back(1000, 1000);
        assert!(!novelty.is_high(), "nothing is known of puts");
        novelty.were_put(1000, 1000);
        assert!(novelty.is_high());
        novelty.were_put(2000, 1700);
        assert!(!novelty.is_high(), "three of the last ten were updates");
        novelty.were_put(2_000_000, 1_999_700);
        assert!(novelty.is_high());
        novelty.were_written_back(0, 1000);
        assert!(!novelty.is_high(), "what the cache did not know was there all the same");
    }
}
