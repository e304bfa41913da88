//! The generator that the authors of Tiered-Indexing measured with, which is not Zipf's law.
//!
//! Gray's sampler needs `zeta(n)`, the sum of `i^-theta` over `i` from 1 to `n`. The authors add
//! `n^-theta` in each of the `n` steps instead, and so get `n^(1 - theta)`. What remains of the
//! sampler, for `u` in `0..1`:
//!
//! ```text
//!  u < 1 / n^(1 - theta)                  rank 1
//!  u < (1 + 2^-theta) / n^(1 - theta)     rank 2
//!  otherwise                              1 + n * u^(1 / (1 - theta)), rounded down
//! ```
//!
//! At an exponent of 0.9 rank 1 gets 20 % of the draws of 10M records and not 2 %, some ranks after
//! the second get none, and 34 % of the records get 90 % of the draws, where the law says 43 %. It is
//! here so that numbers can be laid beside the published ones.

/// Draws ranks `1..=count` as the authors do.
#[derive(Clone, Debug)]
pub struct Authors {
    count: f64,
    exponent: f64,
    /// Rank 1 below this, rank 2 below the second.
    ends: [f64; 2],
}

impl Authors {
    /// Ranks `1..=count`; `theta` is positive and below 1.
    ///
    /// # Panics
    /// When `count` is 0 or `theta` out of range.
    #[must_use]
    pub fn new(count: u64, theta: f64) -> Self {
        assert!(count > 0 && theta > 0.0 && theta < 1.0, "a rank and an exponent below 1");
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let count = count as f64;
        let zeta = count.powf(1.0 - theta);
        let ends = [1.0 / zeta, (1.0 + 0.5_f64.powf(theta)) / zeta];
        Authors { count, exponent: 1.0 / (1.0 - theta), ends }
    }

    /// The rank of a fraction, from 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the rank is from 1 to the count"
    )]
    pub fn rank(&self, fraction: f64) -> u64 {
        let rank = match self.ends.iter().position(|end| fraction < *end) {
            Some(0) => 1.0,
            Some(_) => 2.0,
            None => 1.0 + (self.count * fraction.powf(self.exponent)).floor(),
        };
        rank.min(self.count) as u64
    }

    /// Probability of each rank, from the first on.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn shares(&self) -> impl Iterator<Item = f64> + use<'_> {
        let flat = 1.0 / self.exponent;
        let [first, second] = self.ends.map(|end| end.min(1.0));
        let below = move |rank: u64| (rank as f64 / self.count).powf(flat).clamp(second, 1.0);
        let count = self.rank(1.0);
        (1..=count).map(move |rank| {
            let special = match rank {
                1 => first,
                2 => second - first,
                _ => 0.0,
            };
            special + below(rank) - below(rank - 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that others have found by running the authors' code.
    #[test]
    fn the_error_is_the_known_one() {
        let authors = Authors::new(100_000_000, 0.9);
        assert!((authors.ends[0] - 0.158).abs() < 1e-3, "{:?}", authors.ends);
        assert!((authors.ends[1] - authors.ends[0] - 0.085).abs() < 1e-3, "{:?}", authors.ends);
        assert_eq!(authors.rank(authors.ends[0] - 1e-9), 1);
        assert_eq!(authors.rank(authors.ends[1] - 1e-9), 2);
        assert_eq!(authors.rank(authors.ends[1]), 74, "ranks 3 to 73 are never drawn");
        assert_eq!(authors.rank(1.0 - 1e-16), 100_000_000);
    }

    #[test]
    fn draws_follow_the_shares() {
        const DRAWS: u32 = 1_000_000;
        for (count, theta) in [(1000, 0.9), (50, 0.5), (2, 0.9), (1, 0.3)] {
            let authors = Authors::new(count, theta);
            let shares: Vec<f64> = authors.shares().collect();
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{count} {theta}");
            let mut seen = vec![0_u32; shares.len()];
            for draw in 0..DRAWS {
                let rank = authors.rank((f64::from(draw) + 0.5) / f64::from(DRAWS));
                seen[usize::try_from(rank - 1).unwrap()] += 1;
            }
            for (rank, (seen, share)) in seen.iter().zip(shares).enumerate() {
                let drawn = f64::from(*seen) / f64::from(DRAWS);
                assert!((drawn - share).abs() < 3e-6, "{count} {theta} {rank}: {drawn} {share}");
            }
        }
    }
}
