//! Random numbers and strings of TPC-C (clauses 2.1.6, 4.3.2 and 4.3.3).

use std::ops::RangeInclusive;

use spinney_base::runtime::SplitMix;

/// Parts of last names (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// Different last names.
pub const LAST_NAMES: u32 = 1000;

/// Constants C of the non-uniform distribution, one for each width A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// For last names (A = 255).
    pub last_name: u32,
    /// For customers (A = 1023).
    pub customer: u32,
    /// For items (A = 8191).
    pub item: u32,
}

impl Constants {
    /// Draws the constants of a load and those of the run on it. The distance of those for last
    /// names is what clause 2.1.6.1 asks for: 65 to 119, but neither 96 nor 112.
    #[must_use]
    pub fn draw(seed: u64) -> [Constants; 2] {
        let mut random = Random::new(seed, 1);
        let mut one = || Constants {
            last_name: random.number(0..=255),
            customer: random.number(0..=1023),
            item: random.number(0..=8191),
        };
        let (load, mut run) = (one(), one());
        let distance = loop {
            let distance = random.number(65..=119);
            if distance != 96 && distance != 112 {
                break distance;
            }
        };
        run.last_name = match load.last_name.checked_sub(distance) {
            Some(below) => below,
            None => load.last_name + distance,
        };
        [load, run]
    }
}

/// A generator with TPC-C's draws.
#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    /// A generator of its own for every seed and purpose.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut mix = SplitMix(seed ^ purpose.wrapping_mul(0xA076_1D64_78BD_642F));
        mix.next_u64();
        Random(mix)
    }

    /// A number of a range, each as likely as the others.
    pub fn number(&mut self, range: RangeInclusive<u32>) -> u32 {
        let width = u64::from(range.end() - range.start()) + 1;
        let offset = self.0.next_u64() % width;
        range.start() + u32::try_from(offset).expect("below the width of u32")
    }

    /// True `times` times in a hundred.
    pub fn percent(&mut self, times: u32) -> bool {
        self.number(1..=100) <= times
    }

    /// `NURand(a, x, y)` with its constant `c`, of a range that does not begin at `u32::MAX`.
    pub fn uneven(&mut self, a: u32, c: u32, range: RangeInclusive<u32>) -> u32 {
        let (x, y) = range.clone().into_inner();
        let both = u64::from(self.number(0..=a) | self.number(range));
        let folded = (both + u64::from(c)) % (u64::from(y - x) + 1);
        x + u32::try_from(folded).expect("below the width of u32")
    }

    /// Letters and digits, of a random length of a range.
    pub fn letters(&mut self, lengths: RangeInclusive<u32>) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789ab";
        let length = self.number(lengths);
        let mut text = String::with_capacity(length as usize);
        let mut bits = 0;
        for place in 0..length {
            if place % 10 == 0 {
                bits = self.0.next_u64();
            }
            text.push(char::from(LETTERS[usize::try_from(bits % 64).expect("below 64")]));
            bits /= 64;
        }
        text
    }

    /// Decimal digits.
    pub fn digits(&mut self, length: u32) -> String {
        (0..length).map(|_| char::from(b'0' + self.number(0..=9) as u8)).collect()
    }

    /// A zip code: four random digits and 11111.
    pub fn zip(&mut self) -> String {
        self.digits(4) + "11111"
    }

    /// Data of an item or of stock: one in ten holds `ORIGINAL`.
    pub fn data(&mut self) -> String {
        let mut data = self.letters(26..=50);
        if self.percent(10) {
            let last = u32::try_from(data.len() - ORIGINAL.len()).expect("at most 50");
            let at = self.number(0..=last) as usize;
            data.replace_range(at..at + ORIGINAL.len(), ORIGINAL);
        }
        data
    }

    /// The numbers of a range in random order.
    pub fn shuffled(&mut self, range: RangeInclusive<u32>) -> Vec<u32> {
        let mut all: Vec<u32> = range.collect();
        for place in (1..all.len()).rev() {
            all.swap(place, self.0.below(place + 1));
        }
        all
    }
}

/// The word in the data of one item in ten.
pub const ORIGINAL: &str = "ORIGINAL";

/// The last name of a number below [`LAST_NAMES`].
#[must_use]
pub fn last_name(number: u32) -> String {
    [number / 100 % 10, number / 10 % 10, number % 10]
        .map(|digit| SYLLABLES[digit as usize])
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_specification() {
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
        assert_eq!((0..LAST_NAMES).map(|number| last_name(number).len()).max(), Some(15));
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut random = Random::new(1, 2);
        for _ in 0..10_000 {
            assert!((5..=15).contains(&random.number(5..=15)));
            assert!((1..=3000).contains(&random.uneven(1023, 1023, 1..=3000)));
            assert!((0..=9).contains(&random.uneven(255, 200, 0..=9)));
            assert!((26..=50).contains(&random.data().len()));
        }
        assert_eq!(random.number(7..=7), 7);
        let zip = random.zip();
        assert!(zip.len() == 9 && zip.ends_with("11111"), "{zip}");
        let shuffled = random.shuffled(1..=100);
        assert_ne!(shuffled, (1..=100).collect::<Vec<_>>());
        let mut sorted = shuffled;
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=100).collect::<Vec<_>>());
    }

    /// Clause 2.1.6: some numbers come much more often than others, and which is set by C.
    #[test]
    fn the_distribution_is_uneven() {
        let mut random = Random::new(1, 2);
        let mut counts = vec![0_u32; 3001];
        for _ in 0..300_000 {
            counts[random.uneven(1023, 5, 1..=3000) as usize] += 1;
        }
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let hot: u32 = counts[..300].iter().sum();
        assert!((90_000..250_000).contains(&hot), "the hottest tenth got {hot} of 300000");
    }

    #[test]
    fn constants_are_as_far_apart_as_they_must_be() {
        for seed in 0..1000 {
            let [load, run] = Constants::draw(seed);
            let distance = load.last_name.abs_diff(run.last_name);
            assert!((65..=119).contains(&distance) && distance != 96 && distance != 112);
            assert!(run.last_name <= 255, "{run:?}");
        }
    }
}
