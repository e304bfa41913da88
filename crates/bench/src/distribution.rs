//! Which record next: uniform, zipfian (scattered as YCSB does) and latest.
//!
//! Zipf ranks are drawn by rejection-inversion (Hörmann and Derflinger 1996): exact for every
//! exponent and count, with no sum over the records. YCSB's own sampler (Gray et al.) is an
//! approximation of the same law that is a few percent off on the first ranks. [`authors`] is one
//! with an error, kept to compare with what was published.

pub mod authors;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spinney_base::runtime::SplitMix;
use spinney_base::{Error, Result};

use crate::distribution::authors::Authors;

/// What draws ranks from the Zipf law.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generator {
    /// [`Zipf`], which follows the law.
    #[default]
    Exact,
    /// [`Authors`], which does not.
    Authors,
}

impl Generator {
    /// The name used in options and rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Generator::Exact => "exact",
            Generator::Authors => "authors",
        }
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Generator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "exact" => Ok(Generator::Exact),
            "authors" => Ok(Generator::Authors),
            _ => Err(Error::invalid(format!("unknown generator {text:?}: exact or authors"))),
        }
    }
}

/// How records are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every record is as likely as any other.
    Uniform,
    /// The record of rank `r` (from 1) is chosen in proportion to `r^-theta`; ranks are scattered
    /// over the records.
    Zipfian,
    /// As zipfian, where rank 1 is the record inserted last.
    Latest,
}

impl Distribution {
    /// The name used in options and rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
            Distribution::Latest => "latest",
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Distribution {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "uniform" => Ok(Distribution::Uniform),
            "zipfian" => Ok(Distribution::Zipfian),
            "latest" => Ok(Distribution::Latest),
            _ => Err(Error::invalid(format!(
                "unknown distribution {text:?}: uniform, zipfian or latest"
            ))),
        }
    }
}

/// A fraction in `0..1`, of 53 random bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
fn fraction(random: &mut SplitMix) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Draws Zipf ranks `1..=count` with exponent `theta`.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: f64,
    theta: f64,
    area_first: f64,
    area_last: f64,
    squeeze: f64,
}

impl Zipf {
    /// Ranks `1..=count`; `theta` is positive.
    ///
    /// # Panics
    /// When `count` is 0 or `theta` is not positive.
    #[must_use]
    pub fn new(count: u64, theta: f64) -> Self {
        assert!(count > 0 && theta > 0.0, "a Zipf law needs a rank and a positive exponent");
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let count = count as f64;
        let mut zipf = Zipf { count, theta, area_first: 0.0, area_last: 0.0, squeeze: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(count + 0.5);
        zipf.squeeze = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    /// The density at `x`, not normalized.
    fn height(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// The integral of the density from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let flat = 1.0 - self.theta;
        if flat.abs() < 1e-9 { x.ln() } else { (flat * x.ln()).exp_m1() / flat }
    }

    /// The `x` whose area is `area`.
    fn area_inverse(&self, area: f64) -> f64 {
        let flat = 1.0 - self.theta;
        if flat.abs() < 1e-9 { area.exp() } else { ((area * flat).ln_1p() / flat).exp() }
    }

    /// The next rank, from 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the rank is a whole number from 1 to the count"
    )]
    pub fn rank(&self, random: &mut SplitMix) -> u64 {
        loop {
            let area = self.area_last + fraction(random) * (self.area_first - self.area_last);
            let x = self.area_inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            // The first test accepts most draws without another logarithm; the second is the exact
            // one.
            if rank - x <= self.squeeze || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u64;
            }
        }
    }
}

/// The 64-bit FNV-1a hash of the eight bytes of `number`, as YCSB scatters ranks with.
#[must_use]
pub fn fnv64(number: u64) -> u64 {
    let hash = number.to_le_bytes().iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    // YCSB takes the absolute value of a signed number.
    #[expect(clippy::cast_possible_wrap, reason = "the wrap is the sign that is dropped")]
    let signed = hash as i64;
    signed.unsigned_abs()
}

/// Chooses ordinals of records by a distribution.
#[derive(Clone, Debug)]
pub struct Chooser {
    count: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Scattered(Ranks),
    Latest(Ranks),
}

/// Ranks by the law, or nearly.
#[derive(Clone, Debug)]
enum Ranks {
    Exact(Zipf),
    Authors(Authors),
}

impl Ranks {
    fn rank(&self, random: &mut SplitMix) -> u64 {
        match self {
            Ranks::Exact(zipf) => zipf.rank(random),
            Ranks::Authors(authors) => authors.rank(fraction(random)),
        }
    }
}

impl Chooser {
    /// Chooses among `count` records, at least one.
    #[must_use]
    pub fn new(distribution: Distribution, generator: Generator, theta: f64, count: u64) -> Self {
        let ranks = || match generator {
            Generator::Exact => Ranks::Exact(Zipf::new(count, theta)),
            Generator::Authors => Ranks::Authors(Authors::new(count, theta)),
        };
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipfian => Kind::Scattered(ranks()),
            Distribution::Latest => Kind::Latest(ranks()),
        };
        Chooser { count, kind }
    }

    /// Number of ordinals that it chooses among.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next ordinal. `limit` says where the inserted records end now, at least the count; only
    /// `Latest` asks. `salt` moves the hot set of the scattered law somewhere else; 0 is YCSB's
    /// place.
    pub fn next(&self, random: &mut SplitMix, limit: impl FnOnce() -> u64, salt: u64) -> u64 {
        match &self.kind {
            Kind::Uniform => random.next_u64() % self.count,
            Kind::Scattered(zipf) => fnv64((zipf.rank(random) - 1) ^ salt) % self.count,
            Kind::Latest(zipf) => limit() - zipf.rank(random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form: the share of rank `r` is `r^-theta` over the generalized harmonic number.
    #[test]
    #[expect(clippy::cast_precision_loss, reason = "test counts are small")]
    fn zipf_frequencies_follow_the_closed_form() {
        const DRAWS: u32 = 2_000_000;
        for (count, theta) in [
            (1000_u64, 0.99),
            (1000, 0.5),
            (50, 1.0),
            (10_000, 0.9),
            (1000, 1.4),
            (1, 0.99),
            (2, 0.99),
        ] {
            let zipf = Zipf::new(count, theta);
            let mut random = SplitMix(42);
            let mut seen = vec![0_u32; usize::try_from(count).unwrap() + 1];
            for _ in 0..DRAWS {
                seen[usize::try_from(zipf.rank(&mut random)).unwrap()] += 1;
            }
            let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-theta)).sum();
            let mut chi_square = 0.0;
            for (rank, &observed) in seen.iter().enumerate().skip(1) {
                let share = (rank as f64).powf(-theta) / zeta;
                let expected = share * f64::from(DRAWS);
                chi_square += (f64::from(observed) - expected).powi(2) / expected;
                if rank <= 20 {
                    let sigma = (expected * (1.0 - share)).sqrt();
                    assert!(
                        (f64::from(observed) - expected).abs() <= 5.0 * sigma + 1e-9,
                        "count {count} theta {theta} rank {rank}: {observed} for {expected}"
                    );
                }
            }
            // Chi-square has mean count-1 and variance 2(count-1): five sigmas.
            let freedom = count as f64 - 1.0;
            assert!(
                chi_square <= freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9,
                "count {count} theta {theta}: chi-square {chi_square}"
            );
        }
    }

    #[test]
    fn scattering_is_fnv_1a() {
        // FNV-1a of eight zero bytes, and of the byte 1 and seven zeros, worked out by hand from
        // the definition.
        let by_hand = |bytes: [u8; 8]| {
            let mut hash = 14_695_981_039_346_656_037_u64;
            for byte in bytes {
                hash ^= u64::from(byte);
                hash = hash.wrapping_mul(1_099_511_628_211);
            }
            i64::from_le_bytes(hash.to_le_bytes()).unsigned_abs()
        };
        assert_eq!(fnv64(0), by_hand([0; 8]));
        assert_eq!(fnv64(1), by_hand([1, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn choices_stay_among_the_records() {
        let mut random = SplitMix(7);
        let distributions = [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest];
        let generators = [Generator::Exact, Generator::Authors];
        for (distribution, generator) in
            distributions.iter().flat_map(|one| generators.map(|generator| (*one, generator)))
        {
            for count in [1, 2, 1000] {
                let chooser = Chooser::new(distribution, generator, 0.99, count);
                for _ in 0..2000 {
                    let ordinal = chooser.next(&mut random, || count + 5, 0);
                    assert!(ordinal < count + 5);
                    assert!(distribution != Distribution::Latest || ordinal >= 5);
                }
            }
        }
    }

    #[test]
    fn a_salt_moves_the_hot_set() {
        let chooser = Chooser::new(Distribution::Zipfian, Generator::Exact, 0.99, 1_000_000);
        let hot = |salt| {
            let mut random = SplitMix(1);
            let mut counts = std::collections::HashMap::new();
            for _ in 0..10_000 {
                *counts.entry(chooser.next(&mut random, || 1_000_000, salt)).or_insert(0) += 1;
            }
            counts.into_iter().max_by_key(|&(_, count)| count).unwrap().0
        };
        assert_eq!(hot(0), fnv64(0) % 1_000_000);
        assert_ne!(hot(0), hot(1 << 40));
    }
}
