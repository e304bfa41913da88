//! What the text of the paper says in numbers: ratios of `iot` to the other stores if nothing else is
//! said. Most of its figures are curves without numbers.

/// Figure 1: scans, column store to row store.
pub(super) const WIDE_SCANS: &str = "up to 1.6";
/// Figure 1: inserts, row store to column store.
pub(super) const WIDE_INSERTS: &str = "up to 1.2";
/// Figure 3: the gap between row store and column store.
pub(super) const HYBRID_GAP: &str = "a gap below 1.2";
/// Figure 10: scans.
pub(super) const SCANS: &str = "3";
/// Figure 11: throughput of New-Order.
pub(super) const NEW_ORDER: &str = "up to 2";
/// Figure 13: throughput of the write-intensive workload.
pub(super) const WRITE_INTENSIVE: &str = "1.5";
/// Figure 14: throughput with many threads.
pub(super) const HYBRID_THROUGHPUT: &str = "up to 1.6";
/// Figure 14: abort rate with many threads.
pub(super) const HYBRID_ABORTS: &str = "0.6";
/// Figure 15: latency with 36 warehouses.
pub(super) const QUERY_LATENCY: &str = "almost 1/3";
/// Figure 16: shares of time of the parts of the paper's store.
pub(super) const BREAKDOWN: &str = "tree index 71 % (inner nodes 20 %, leaves 51 %), mapping table 18.5 %, \
     version chains 10.5 %; of the leaves record metadata 15.4 %, search of the version 35.6 %";
/// Figure 17: latency of the other stores as chains grow.
pub(super) const CHAINS: &str = "the other stores slow down by an order of magnitude";

/// A line of table 2.
pub(super) struct Counted {
    pub(super) seconds: f64,
    pub(super) l2_hits: &'static str,
    pub(super) l3_hits: &'static str,
    pub(super) dram_bytes: u64,
    pub(super) pm_bytes: u64,
}

/// Table 2, counted by the hardware.
pub(super) const TABLE_2: [Counted; 5] = [
    line(5.0, "0.74", "0.90", 27_975_517_312, 109_719_168),
    line(10.0, "0.76", "0.89", 65_096_697_088, 498_359_552),
    line(15.0, "0.76", "0.90", 95_974_431_744, 1_901_509_120),
    line(20.0, "0.75", "0.90", 127_873_320_192, 3_732_100_224),
    line(25.0, "0.75", "0.89", 160_037_408_896, 5_578_359_936),
];

const fn line(
    seconds: f64,
    l2_hits: &'static str,
    l3_hits: &'static str,
    dram_bytes: u64,
    pm_bytes: u64,
) -> Counted {
    Counted { seconds, l2_hits, l3_hits, dram_bytes, pm_bytes }
}
