//! Bijections on integers: how an ordinal becomes a key, or a place in a shuffled order, without a
//! table.
//!
//! Multiplying by an odd number and folding high bits into low ones are both invertible modulo a
//! power of two, so any chain of them is a bijection on `bits`-bit numbers. [`Permutation`] walks
//! that bijection until it falls below `count` (cycle walking), which keeps it a bijection on
//! `0..count`; the domain is at most twice the count, so a walk has two steps on average.

/// Mixes the low `bits` bits of `x` bijectively; `seed` selects one of many bijections.
pub(crate) fn mix_bits(x: u64, bits: u32, seed: u64) -> u64 {
    debug_assert!((1..=64).contains(&bits), "a number has 1 to 64 bits");
    let mask = u64::MAX >> (64 - bits);
    let shift = (bits / 2).max(1);
    let mut x = x.wrapping_add(seed) & mask;
    for odd in [0x9E37_79B9_7F4A_7C15_u64, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
        if bits > 1 {
            x ^= x >> shift;
        }
        x = x.wrapping_mul(odd ^ (seed << 1)) & mask;
    }
    if bits > 1 {
        x ^= x >> shift;
    }
    x
}

/// A hash of one word, all 64 bits mixed (the finalizer of SplitMix64, itself a bijection).
pub(crate) fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A shuffled order of `0..count`, drawn from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    count: u64,
    bits: u32,
    seed: u64,
}

impl Permutation {
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let bits = (64 - count.saturating_sub(1).leading_zeros()).max(1);
        Permutation { count, bits, seed: mix64(seed) }
    }

    /// The place of `index`, which is below the count.
    pub(crate) fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.count, "an index is below the count");
        let mut place = mix_bits(index, self.bits, self.seed);
        while place >= self.count {
            place = mix_bits(place, self.bits, self.seed);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_once() {
        for count in [1_u64, 2, 3, 7, 8, 9, 1000, 4096, 100_003] {
            for seed in [0, 1, 77] {
                let permutation = Permutation::new(count, seed);
                let mut seen = vec![false; usize::try_from(count).unwrap()];
                for index in 0..count {
                    let place = usize::try_from(permutation.at(index)).unwrap();
                    assert!(!seen[place], "count {count} seed {seed} place {place} twice");
                    seen[place] = true;
                }
            }
        }
    }

    #[test]
    fn an_order_is_shuffled_and_depends_on_the_seed() {
        let count = 10_000;
        let one = Permutation::new(count, 1);
        let two = Permutation::new(count, 2);
        let ascents = (1..count).filter(|&i| one.at(i) > one.at(i - 1)).count();
        assert!((4_500..5_500).contains(&ascents), "{ascents} ascents of 10000");
        let same = (0..count).filter(|&i| one.at(i) == two.at(i)).count();
        assert!(same < 20, "{same} places agree");
    }
}
