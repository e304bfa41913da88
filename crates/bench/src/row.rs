//! One line of results, with exactly the fields that `--json` promises, in their order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use spinney::purposes;
use spinney_io::{IoSnapshot, PurposeCounts};

/// The result of one workload on one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the names are the documented interface and say what they hold, units last"
)]
pub struct Row {
    pub engine: String,
    pub workload: String,
    pub dataset: String,
    pub distribution: String,
    pub theta: f64,
    pub records: u64,
    pub record_size: usize,
    pub threads: usize,
    /// Null when the engine's memory could not be limited.
    pub memory_bytes: Option<u64>,
    pub durability: String,
    pub torn_writes: String,
    pub seed: u64,
    pub operations: u64,
    pub seconds: f64,
    pub ops_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    pub read_ios: u64,
    pub read_bytes: u64,
    pub write_ios: u64,
    pub write_bytes: u64,
    pub io_by_purpose: Option<BTreeMap<String, PurposeRow>>,
    pub cache_hits: Option<u64>,
    pub cache_misses: Option<u64>,
    pub pages_read: Option<u64>,
    pub space_bytes: u64,
    pub logical_bytes: u64,
    pub peak_rss_bytes: u64,
    pub stall_ms: Option<f64>,
    pub errors: u64,
    pub version: String,
}

/// I/O of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the documented interface and say what they hold")]
pub struct PurposeRow {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub syncs: u64,
}

/// Returns the I/O of each purpose between two moments; purposes without any are left out.
#[must_use]
pub fn io_by_purpose(before: &IoSnapshot, after: &IoSnapshot) -> BTreeMap<String, PurposeRow> {
    let named = purposes().map(|purpose| {
        let [before, after] = [before, after].map(|one| &one.by_purpose[purpose.index()]);
        (purpose.name().to_owned(), difference(before, after))
    });
    named.filter(|(_, row)| *row != PurposeRow::default()).collect()
}

fn difference(before: &PurposeCounts, after: &PurposeCounts) -> PurposeRow {
    PurposeRow {
        reads: after.reads.saturating_sub(before.reads),
        read_bytes: after.read_bytes.saturating_sub(before.read_bytes),
        writes: after.writes.saturating_sub(before.writes),
        write_bytes: after.write_bytes.saturating_sub(before.write_bytes),
        syncs: after.syncs.saturating_sub(before.syncs),
    }
}

#[cfg(test)]
pub(crate) fn sample(engine: &str, workload: &str, ops_per_second: f64) -> Row {
    Row {
        engine: engine.to_owned(),
        workload: workload.to_owned(),
        dataset: "uniform".to_owned(),
        distribution: "zipfian".to_owned(),
        theta: 0.99,
        records: 1000,
        record_size: 64,
        threads: 4,
        memory_bytes: Some(1 << 20),
        durability: "none".to_owned(),
        torn_writes: "assume-4k".to_owned(),
        seed: 1,
        operations: 5000,
        seconds: 1.0,
        ops_per_second,
        p50_us: 1.0,
        p99_us: 2.0,
        p999_us: 3.0,
        max_us: 4.0,
        read_ios: 10,
        read_bytes: 40_960,
        write_ios: 20,
        write_bytes: 81_920,
        io_by_purpose: None,
        cache_hits: None,
        cache_misses: None,
        pages_read: None,
        space_bytes: 128_000,
        logical_bytes: 64_000,
        peak_rss_bytes: 10 << 20,
        stall_ms: None,
        errors: 0,
        version: "0.1.0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_exactly_the_promised_ones() {
        let promised = "engine workload dataset distribution theta records record_size threads memory_bytes durability \
            torn_writes seed operations seconds ops_per_second p50_us p99_us p999_us max_us read_ios read_bytes write_ios \
            write_bytes io_by_purpose cache_hits cache_misses pages_read space_bytes logical_bytes peak_rss_bytes stall_ms \
            errors version";
        let line = serde_json::to_string(&sample("treeline", "a", 1.0)).unwrap();
        let mut places = Vec::new();
        for field in promised.split_whitespace() {
            let place = line.find(&format!("\"{field}\":"));
            places.push(place.unwrap_or_else(|| panic!("{field} is missing from {line}")));
        }
        assert!(places.is_sorted(), "the order is the documented one: {line}");
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), promised.split_whitespace().count());
    }

    #[test]
    fn purposes_without_io_are_left_out() {
        let before = IoSnapshot::default();
        let mut after = before;
        after.by_purpose[1].reads = 3;
        after.by_purpose[1].read_bytes = 12_288;
        let rows = io_by_purpose(&before, &after);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows["lookup"].reads, 3);
    }
}
