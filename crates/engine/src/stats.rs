//! Numbers that engines report.

/// Numbers about one keyspace. Counters count since the keyspace was opened; the rest is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Reads answered by the record cache, or by memtables.
    pub cache_hits: u64,
    /// Reads that went to pages, which may be in the page cache.
    pub cache_misses: u64,
    /// Records in the record cache.
    pub records_cached: u64,
    /// Records in the record cache that their pages do not hold yet.
    pub records_dirty: u64,
    /// Bytes of the record cache.
    pub cache_bytes: u64,
    /// Bytes of the page cache.
    pub page_cache_bytes: u64,
    /// Pages that a scan, a lookup or a write-back found there.
    pub page_cache_hits: u64,
    /// Bytes of the segment index.
    pub index_bytes: u64,
    /// Pages that hold data, without overflow pages.
    pub pages: u64,
    /// Overflow pages.
    pub overflow_pages: u64,
    /// Pages of new records that wait to be merged with the others of their segments.
    pub staged_pages: u64,
    /// Values that are kept outside of pages.
    pub large_values: u64,
    /// Bytes that they take in the file.
    pub large_bytes: u64,
    /// Bytes of such values that were overwritten or removed, until a checkpoint gives them back.
    pub large_freed_bytes: u64,
    /// Free pages of the file.
    pub free_pages: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of free pages that are known to take no room.
    pub hole_bytes: u64,
    /// Pages read to answer lookups.
    pub pages_read: u64,
    /// Pages rewritten to bring dirty records home.
    pub pages_written_back: u64,
    /// Dirty records brought home.
    pub records_written_back: u64,
    /// Times a writer had to bring records home itself.
    pub foreground_write_backs: u64,
    /// Time that writers spent on that, in nanoseconds.
    pub stall_ns: u64,
    /// The longest of those times, in nanoseconds.
    pub longest_stall_ns: u64,
    /// Segments by size: of 1, 2, 4, 8 and 16 pages.
    pub segments: [u64; 5],
    /// Reorganizations: full or half empty segments made anew.
    pub reorganizations: u64,
    /// Pages that reorganizations read.
    pub reorganized_pages_in: u64,
    /// Pages that reorganizations wrote.
    pub reorganized_pages_out: u64,
    /// Puts of keys not known to be there that came in epochs for which there was a forecast.
    pub inserts_forecast: u64,
    /// How many of those came where they were expected.
    pub inserts_as_forecast: u64,
    /// How far off the histogram and the trend were in the last epoch, in inserts: the mean over
    /// ranges of keys that took a 64th of the inserts each.
    pub forecast_errors: [u64; 2],
    /// Whether the trend answers, and not the histogram.
    pub forecast_by_trend: bool,
    /// Checkpoints published.
    pub checkpoints: u64,
    /// Torn pages restored when the keyspace was opened.
    pub pages_restored: u64,
    /// What only a turtle keyspace has.
    pub turtle: Option<TurtleStats>,
}

/// Numbers about the pipeline and the tree of a turtle keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurtleStats {
    /// The checkpoint distance, chi: so many batches gather before they are written.
    pub checkpoint_distance: u64,
    /// Memtables, the active one among them.
    pub memtables: u64,
    /// Bytes that they hold.
    pub memtable_bytes: u64,
    /// Batches applied to the tree since the last checkpoint.
    pub pending_batches: u64,
    /// Bytes of the tree that are not on disk.
    pub pending_bytes: u64,
    /// Memtables sealed.
    pub memtables_sealed: u64,
    /// Batches applied to the tree.
    pub batches_applied: u64,
    /// Pages written for the tree.
    pub tree_pages_written: u64,
    /// Of those, pages of nodes.
    pub node_pages_written: u64,
    /// Leaves and segments written.
    pub leaves_written: u64,
    /// Nodes written.
    pub nodes_written: u64,
    /// What was pending for a child of a node and was brought down to it, so many times.
    pub flushes: u64,
    /// Leaves made anew by that, in memory.
    pub leaves_made: u64,
    /// Buffers of nodes whose levels were merged because they had too many segments.
    pub merges: u64,
    /// Nodes split.
    pub splits: u64,
    /// Neighbours joined.
    pub joins: u64,
    /// Leaves and segments that were read whole, or a range of one, to be merged.
    pub loads: u64,
    /// Pages that this read from the file.
    pub pages_loaded: u64,
    /// Pages that lookups and scans read from the file.
    pub pages_read: PagesByKind,
    /// Pages that they found in the page cache.
    pub pages_cached: PagesByKind,
    /// Filters that lookups asked.
    pub filter_probes: u64,
    /// Those that said that the key is not there.
    pub filter_negatives: u64,
    /// Those that let a lookup pass although it was not there.
    pub filter_false_positives: u64,
    /// Those that could not say anything, because their page is damaged.
    pub filter_damaged: u64,
    /// Writes that were delayed because the pipeline was behind.
    pub writes_delayed: u64,
    /// Snapshots that there are.
    pub snapshots: u64,
    /// Bytes of memory that only they keep, at most.
    pub snapshot_bytes: u64,
    /// Snapshots that were written out to give their memory back.
    pub snapshots_written: u64,
    /// Snapshots that had to end.
    pub snapshots_ended: u64,
}

/// Pages of a turtle keyspace by what they hold. Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesByKind {
    /// Nodes, which are read when a keyspace is opened.
    pub node: u64,
    /// Filters of leaves and segments.
    pub filter: u64,
    /// Their indexes.
    pub index: u64,
    /// Their keys.
    pub keys: u64,
    /// Their values.
    pub values: u64,
}

impl PagesByKind {
    /// Those of leaves and segments, which lookups and scans read.
    #[must_use]
    pub fn leaf(&self) -> u64 {
        self.filter + self.index + self.keys + self.values
    }
}

/// What a verification saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Pages read and checked.
    pub pages: u64,
    /// Records in them.
    pub records: u64,
    /// Large values read and checked.
    pub large_values: u64,
    /// Pages that nobody owns.
    pub free_pages: u64,
    /// Most records of one page, overflow pages aside.
    pub page_records_max: u64,
}

impl std::ops::AddAssign for VerifyReport {
    fn add_assign(&mut self, other: Self) {
        self.pages += other.pages;
        self.records += other.records;
        self.large_values += other.large_values;
        self.free_pages += other.free_pages;
        self.page_records_max = self.page_records_max.max(other.page_records_max);
    }
}
