//! What the head of a queue costs, counted.

use spinney_db::Keyspace;

/// What a read of the first record looks at: pages, cached or not, records, and removed records.
pub(crate) fn first_read(main: &Keyspace, from: impl AsRef<[u8]>) -> (Option<Vec<u8>>, [u64; 3]) {
    let counts = |main: &Keyspace| {
        let stats = main.stats();
        [stats.scan_pages, stats.scan_records, stats.scan_tombstones]
    };
    let before = counts(main);
    // As of a queue among others, not of all there is.
    let first = main.range(from.as_ref()..).limit(1).next().map(|record| record.unwrap().0);
    let after = counts(main);
    (first, std::array::from_fn(|index| after[index] - before[index]))
}
