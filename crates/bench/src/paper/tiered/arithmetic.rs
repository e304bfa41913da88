//! The least that arithmetic allows: misses of the best static choice of what is cached.
//!
//! ```text
//!  page   the pages with the highest sums of their records' shares    97 % of the memory
//!  tier   the records with the highest shares, 11 B beside each       0.9 of the memory, filled to 0.87
//!  ring   the same, 15 B beside each                                  97 % of the memory
//! ```
//!
//! Records lie in random key order. No policy does better than the best static choice while requests
//! are independent of each other, so a measured number below these is an error of the measurement.

use spinney_base::runtime::SplitMix;

use crate::distribution::Generator;
use crate::distribution::authors::Authors;

/// Bytes of a page that hold no records.
const PAGE_HEADER: f64 = 112.0;
/// Bytes beside a record in a page, in a tier and in a ring.
const BESIDE: [f64; 3] = [10.0, 11.0, 15.0];
/// Share of the memory for pages, and for a ring.
const SHARE: f64 = 0.97;
/// Share of the memory for a tier, and its fill.
const TIER: f64 = 0.9 * 0.87;
/// Fill of the pages of a tree after splits, and of one that was swept.
const FILL: f64 = 0.69;
const FILL_SWEPT: f64 = 0.9;

/// What caches a share of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    /// Whole pages of this many bytes, filled to 0.69.
    Pages(u64),
    /// Records in a tree.
    Tier,
    /// Records in a ring.
    Ring,
}

/// Records, and how likely each of them is asked for.
#[derive(Debug)]
pub(crate) struct Model {
    record_size: f64,
    /// Shares in the order of the keys.
    scattered: Vec<f64>,
    /// Sums of the highest shares: of one record, of two, and so on.
    sums: Vec<f64>,
}

fn sum_up(shares: &mut [f64]) {
    let mut sum = 0.0;
    for share in shares {
        sum += *share;
        *share = sum;
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts stay far below 2^53, and results have three digits"
)]
impl Model {
    pub(crate) fn new(generator: Generator, theta: f64, records: u64, record_size: usize) -> Self {
        let mut scattered: Vec<f64> = match generator {
            Generator::Exact => {
                let heights = (1..=records).map(|rank| (rank as f64).powf(-theta));
                let heights: Vec<f64> = heights.collect();
                let all: f64 = heights.iter().sum();
                heights.iter().map(|height| height / all).collect()
            }
            Generator::Authors => Authors::new(records, theta).shares().collect(),
        };
        let mut sums = scattered.clone();
        sums.sort_unstable_by(|a, b| b.total_cmp(a));
        sum_up(&mut sums);
        let mut random = SplitMix(1);
        for place in (1..scattered.len()).rev() {
            scattered.swap(place, random.below(place + 1));
        }
        Model { record_size: record_size as f64, scattered, sums }
    }

    /// Misses of a read with this many bytes of memory.
    pub(crate) fn misses(&self, cached: Cached, memory: u64) -> f64 {
        let memory = memory as f64;
        match cached {
            Cached::Pages(bytes) => self.page_misses(bytes as f64, memory * SHARE, FILL),
            Cached::Tier => self.record_misses(memory * TIER, BESIDE[1]),
            Cached::Ring => self.record_misses(memory * SHARE, BESIDE[2]),
        }
    }

    fn record_misses(&self, memory: f64, beside: f64) -> f64 {
        let count = (memory / (self.record_size + beside)) as usize;
        match count.checked_sub(1) {
            None => 1.0,
            Some(last) => self.sums.get(last).map_or(0.0, |sum| (1.0 - sum).max(0.0)),
        }
    }

    fn page_misses(&self, page: f64, memory: f64, fill: f64) -> f64 {
        let records = ((page - PAGE_HEADER) * fill / (self.record_size + BESIDE[0])).max(1.0);
        let pages = self.scattered.chunks(records as usize);
        let mut pages: Vec<f64> = pages.map(|page| page.iter().sum()).collect();
        pages.sort_unstable_by(|a, b| b.total_cmp(a));
        pages.iter().skip((memory / page) as usize).sum()
    }
}

/// Bytes that a load in random order moves for each byte that it inserts.
///
/// Pages: each miss reads a page and writes one, and what is missed grows with the tree. Tier: a
/// sweep of a tier of `H` bytes over `C` bytes of pages moves `2 C / H` for each byte, and half of
/// that on average while `C` grows.
#[expect(clippy::cast_precision_loss, reason = "results have three digits")]
pub(crate) fn load(cached: Cached, records: u64, record_size: usize, memory: u64) -> Option<f64> {
    let (records, size, memory) = (records as f64, record_size as f64, memory as f64);
    match cached {
        Cached::Pages(page) => {
            let page = page as f64;
            let pages = records * (size + BESIDE[0]) / ((page - PAGE_HEADER) * FILL);
            let held = (memory * SHARE / page / pages).min(1.0);
            let missed = 1.0 - held + held * held.ln();
            Some(2.0 * page * missed / size)
        }
        Cached::Tier => {
            let cold = records * (size + BESIDE[0]) / FILL_SWEPT;
            let hot = memory * TIER;
            let swept = (1.0 - hot / (records * size)).max(0.0);
            Some(cold / hot * swept * (size + BESIDE[1]) / size)
        }
        Cached::Ring => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10M records of 128 B at an exponent of 0.9: numbers that a program of its own has computed.
    #[test]
    fn misses_are_the_computed_ones() {
        let near = |ours: f64, expected: f64| {
            assert!((ours - expected).abs() < 1.5e-3, "{ours:.4}, not {expected}");
        };
        let model = Model::new(Generator::Exact, 0.9, 10_000_000, 128);
        for (mib, page_16, page_4, tier, ring) in [
            (256, 0.502, 0.425, 0.212, 0.193),
            (512, 0.388, 0.322, 0.139, 0.118),
            (1024, 0.220, 0.183, 0.060, 0.038),
        ] {
            near(model.misses(Cached::Pages(16 << 10), mib << 20), page_16);
            near(model.misses(Cached::Pages(4 << 10), mib << 20), page_4);
            near(model.misses(Cached::Tier, mib << 20), tier);
            near(model.misses(Cached::Ring, mib << 20), ring);
        }
        let hot = model.sums.iter().position(|sum| *sum >= 0.9).unwrap();
        assert!((4_250_000..4_350_000).contains(&hot), "{hot} records have 90 %");
        drop(model);
        let authors = Model::new(Generator::Authors, 0.9, 10_000_000, 128);
        near(authors.misses(Cached::Pages(16 << 10), 512 << 20), 0.315);
        near(authors.misses(Cached::Pages(4 << 10), 512 << 20), 0.261);
        near(authors.misses(Cached::Tier, 512 << 20), 0.113);
        near(authors.misses(Cached::Ring, 512 << 20), 0.096);
        let hot = authors.sums.iter().position(|sum| *sum >= 0.9).unwrap();
        assert!((3_400_000..3_550_000).contains(&hot), "{hot} records have 90 %");
    }

    #[test]
    fn all_is_cached_when_it_fits() {
        let model = Model::new(Generator::Exact, 0.9, 1000, 128);
        for cached in [Cached::Pages(4096), Cached::Tier, Cached::Ring] {
            assert!(model.misses(cached, 1 << 20) < 1e-9, "{cached:?}");
            assert!(model.misses(cached, 0) > 0.999, "{cached:?}");
        }
        assert!(load(Cached::Pages(4096), 1000, 128, 1 << 30).unwrap().abs() < 1e-9);
        assert!(load(Cached::Tier, 1000, 128, 1 << 30).unwrap().abs() < 1e-9);
    }

    /// 19 KB for each record in pages of 16 KiB at 256 MiB, and a thirteenth to a sixteenth of it
    /// with a tier.
    #[test]
    fn a_sweep_moves_less_than_misses() {
        let of = |cached| 128.0 * load(cached, 10_000_000, 128, 256 << 20).unwrap();
        let (pages, tier) = (of(Cached::Pages(16 << 10)), of(Cached::Tier));
        assert!((19_000.0..20_500.0).contains(&pages), "{pages}");
        assert!((13.0..24.0).contains(&(pages / tier)), "{pages} {tier}");
    }
}
