//! Which of the records that were read from the cold structure enter the tier (Tiered-Indexing, 3.4).
//!
//! * **A share**: the paper's promotion rate F. Each record enters with this probability.
//! * **By itself**: all of them enter while most records that the hand meets were not asked for again since it
//!   last came, as in a new tier, after a load, or after favourites have changed. Once most of them were, a record that
//!   was read once is worth less than the one that it would push out. Then only what was missed lately
//!   enters, and one in [`ENTERS_ANYWAY`] of the others, so that new favourites enter quickly.
//!
//! What was missed lately is a table of a byte for each record that the tier can have: a few bits of the
//! hash of the last one that was missed with this place.

use spinney_base::shim::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use spinney_sync::ZeroedAtomics;

use crate::hand::Passed;

/// Of records that were read but not missed before, one in this many is admitted. With fewer, new
/// favourites enter slowly; with more, they push out others.
const ENTERS_ANYWAY: u32 = 8;

/// What the moving average of the hand's meetings is when all records were asked for.
const ALL: u32 = 1 << 20;

/// Records over which the average is taken. With fewer, one leaf decides; with more, a change of
/// favourites is noticed late.
const AVERAGED: u64 = 4096;

/// Bytes of the tier for each place in the table of what was missed.
const BYTES_PER_PLACE: u64 = 256;

/// Fewest places.
const PLACES_MIN: usize = 64;

/// How records are promoted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promotion {
    /// As the hand meets what is asked for.
    Auto,
    /// With this probability, from 0 to 1.
    Share(f64),
}

/// Decides which records enter a tier. Thread-safe.
#[derive(Debug)]
pub struct Admission {
    promotion: Promotion,
    missed: ZeroedAtomics<AtomicU8>,
    /// Moving average of whether records that the hand met were asked for again.
    asked: AtomicU32,
    refused: AtomicU32,
}

impl Admission {
    /// For a tier of at most `bytes` bytes.
    #[must_use]
    pub fn new(promotion: Promotion, bytes: u64) -> Admission {
        let places = usize::try_from(bytes / BYTES_PER_PLACE).unwrap_or(usize::MAX).max(PLACES_MIN);
        Admission {
            promotion,
            missed: ZeroedAtomics::new(places),
            asked: AtomicU32::new(0),
            refused: AtomicU32::new(0),
        }
    }

    /// Returns whether it goes by this, and remembers about as much as suits a tier of `bytes` bytes.
    #[must_use]
    pub fn suits(&self, promotion: Promotion, bytes: u64) -> bool {
        let places = (bytes / BYTES_PER_PLACE).max(PLACES_MIN as u64);
        let have = self.missed.len() as u64;
        self.promotion == promotion && have <= places * 2 && places <= have * 2
    }

    /// Returns the bytes of memory that it takes at most.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.missed.len() as u64
    }

    /// Notes what the hand met. One thread calls it at a time, or counts of others are lost.
    pub fn note(&self, passed: Passed) {
        if passed.records == 0 {
            return;
        }
        let weight = passed.records.min(AVERAGED);
        let now = passed.again * u64::from(ALL) / passed.records;
        let before = u64::from(self.asked.load(Relaxed));
        let next = (before * (AVERAGED - weight) + now * weight) / AVERAGED;
        self.asked.store(u32::try_from(next).unwrap_or(ALL), Relaxed);
    }

    /// Returns whether most records that the hand met were asked for again.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.asked.load(Relaxed) > ALL / 2
    }

    /// Returns whether a record with this hash of its key enters, after a lookup that missed it. `draw`
    /// is a random number.
    #[must_use]
    pub fn admits(&self, hash: u64, draw: u64) -> bool {
        match self.promotion {
            Promotion::Share(share) => {
                #[expect(clippy::cast_precision_loss, reason = "a probability of 53 bits")]
                let drawn = (draw >> 11) as f64 / (1_u64 << 53) as f64;
                drawn < share
            }
            Promotion::Auto => {
                // The table learns also while all enter.
                let was_missed = self.was_missed(hash);
                !self.is_proved() || was_missed || self.enters_anyway()
            }
        }
    }

    fn enters_anyway(&self) -> bool {
        (self.refused.fetch_add(1, Relaxed) + 1).is_multiple_of(ENTERS_ANYWAY)
    }

    /// Whether this was missed lately. If not, it is remembered from now on, in place of another.
    fn was_missed(&self, hash: u64) -> bool {
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let places = self.missed.len() as u64;
        let place = usize::try_from(((mixed >> 32) * places) >> 32).expect("below the length");
        let [bits, ..] = mixed.to_le_bytes();
        let (bits, missed) = (bits | 1, &self.missed[place]);
        let was = missed.load(Relaxed) == bits;
        missed.store(if was { 0 } else { bits }, Relaxed);
        was
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use spinney_base::runtime::SplitMix;

    fn admitted(admission: &Admission, keys: std::ops::Range<u64>) -> u64 {
        let mut random = SplitMix(1);
        keys.filter(|key| admission.admits(SplitMix(*key).next_u64(), random.next_u64())).count()
            as u64
    }

    fn met(admission: &Admission, asked: u64) {
        (0..200).for_each(|_| {
            admission.note(Passed { records: 100, again: asked, ..Passed::default() })
        });
    }

    #[test]
    fn a_share_is_kept() {
        for (share, bounds) in [(0.0, 0..=0), (0.3, 2_800..=3_200), (1.0, 10_000..=10_000)] {
            let admission = Admission::new(Promotion::Share(share), 1 << 20);
            met(&admission, 100);
            let count = admitted(&admission, 0..10_000);
            assert!(bounds.contains(&count), "{share}: {count}");
        }
    }

    #[test]
    fn a_proved_tier_admits_what_was_missed_lately() {
        let admission = Admission::new(Promotion::Auto, 64 << 20);
        met(&admission, 40);
        assert_eq!(admitted(&admission, 0..1_000), 1_000, "the hand meets what nobody asked for");
        met(&admission, 60);
        assert!(admission.is_proved());
        let first = admitted(&admission, 10_000..11_000);
        assert!((100..=150).contains(&first), "{first}: one in eight of what is new");
        let again = admitted(&admission, 10_000..11_000);
        assert!(again > 950, "{again}: it was missed before");
        met(&admission, 0);
        assert_eq!(admitted(&admission, 20_000..21_000), 1_000, "favourites have changed");
    }
}
