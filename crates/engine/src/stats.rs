//! Numbers that engines report.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Result, Stalls};
use spinney_extent::Values;

/// Numbers about one keyspace. Counters count since the keyspace was opened; the rest is now.
///
/// Some are of what only one engine has. On `turtle` those of overflow and staged pages, of write-backs by
/// pages and records, segments, reorganizations, forecasts and restored pages are always 0; what it
/// has in their place is in [`EngineStats::turtle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct EngineStats {
    /// Reads answered by the record cache. On `turtle` also those that memtables answered.
    pub cache_hits: u64,
    /// Reads that went to pages, which may be in the page cache. On `turtle` those that went to the tree, which
    /// has in memory what is pending.
    pub cache_misses: u64,
    /// Records in the record cache.
    pub records_cached: u64,
    /// Records in the record cache that their pages do not hold yet. On `turtle` edits in memtables and pending
    /// in the tree, removals among them.
    pub records_dirty: u64,
    /// Bytes of the record cache.
    pub cache_bytes: u64,
    /// Bytes of the page cache.
    pub page_cache_bytes: u64,
    /// Pages that a scan, a lookup or a write-back found there. On `turtle` those of leaves and segments.
    pub page_cache_hits: u64,
    /// Bytes of page filters: of pages that lookups read in vain, so that the next lookup of a key that is not there
    /// need not. `treeline` only, as is the next one; `turtle` keeps filters in pages
    /// ([`TurtleStats::filter_probes`]).
    pub page_filter_bytes: u64,
    /// Pages that lookups did not read because their filters said that the key is not there.
    pub page_filter_refusals: u64,
    /// Bytes of the segment index; on `turtle` of the tree's nodes in memory.
    pub index_bytes: u64,
    /// Pages that hold data, without overflow pages. On `turtle` those of leaves, segments and nodes, also where only
    /// a snapshot or the last checkpoint needs them.
    pub pages: u64,
    /// Overflow pages. `treeline` only.
    pub overflow_pages: u64,
    /// Pages of new records that wait to be merged with the others of their segments. `treeline` only.
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
    /// About how many bytes of keys and values the records take, large values included. On `treeline` as full as pages were
    /// that were read and written last; on `turtle` what memtables hold is not among them, and what is pending counts in
    /// full, though some of it overwrites what lies below.
    pub live_bytes: u64,
    /// About how many bytes in use hold nothing that is needed: a compaction gives back most of them. On
    /// `treeline` room in pages, which new records may fill; on `turtle` removed records, their tombstones and flushed
    /// parts of segments. On both large values that a checkpoint will free.
    pub dead_bytes: u64,
    /// Tombstones: removals that wait to be merged with the records that they remove. `turtle` only: `treeline` removes
    /// records from their pages ([`EngineStats::records_dirty`] counts removals that are not written back yet).
    pub tombstones: u64,
    /// Pages that ranges looked into, cached or not.
    pub scan_pages: u64,
    /// Records that ranges looked at: those that they delivered and those that they passed over, removed and overwritten ones
    /// included.
    pub scan_records: u64,
    /// Removed records that ranges passed over: on `treeline` those not written back yet, on `turtle` tombstones.
    pub scan_tombstones: u64,
    /// Pages read to answer lookups; on `turtle` lookups and scans.
    pub pages_read: u64,
    /// Pages rewritten to bring dirty records home. `treeline` only: no page of `turtle` is written twice; see
    /// [`TurtleStats::tree_pages_written`].
    pub pages_written_back: u64,
    /// Dirty records brought home. `treeline` only.
    pub records_written_back: u64,
    /// Times a writer had to bring records home itself. On `turtle` pieces of the pipeline's work that writers did
    /// themselves, because there was no room.
    pub foreground_write_backs: u64,
    /// Time that writers spent on that, in nanoseconds. On `turtle` also what they slept because the pipeline was behind
    /// ([`TurtleStats::writes_delayed`]).
    pub stall_ns: u64,
    /// The longest of those times, in nanoseconds. A sleep is asked for as 2.5 ms at most; work takes as long as it takes.
    pub longest_stall_ns: u64,
    /// Segments by size: of 1, 2, 4, 8 and 16 pages. `treeline` only: what `turtle` calls segments is something else.
    pub segments: [u64; 5],
    /// Reorganizations: full or half empty segments made anew. `treeline` only, as are the next two.
    pub reorganizations: u64,
    /// Pages that reorganizations read.
    pub reorganized_pages_in: u64,
    /// Pages that reorganizations wrote.
    pub reorganized_pages_out: u64,
    /// Puts of keys not known to be there that came in epochs for which there was a forecast. `treeline` only, as are the
    /// next three.
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
    /// Torn pages restored when the keyspace was opened. `treeline` only: no page of `turtle` is written in place.
    pub pages_restored: u64,
    /// What only a turtle keyspace has.
    pub turtle: Option<TurtleStats>,
}

impl EngineStats {
    /// What any keyspace knows by its store and its writers: large values, space and stalls.
    #[must_use]
    pub fn of(values: &Values, stalls: &Stalls) -> EngineStats {
        let (large, space) = (values.counts(), values.store().space());
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        EngineStats {
            large_values: large.values,
            large_bytes: bytes(large.live_pages),
            large_freed_bytes: bytes(large.freed_pages + large.ready_pages),
            free_pages: space.free_pages,
            file_bytes: bytes(space.end_page.into()),
            hole_bytes: bytes(space.hole_pages),
            stall_ns: stalls.ns(),
            longest_stall_ns: stalls.longest_ns(),
            ..EngineStats::default()
        }
    }
}

/// Numbers about the pipeline and the tree of a turtle keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TurtleStats {
    /// The checkpoint distance, chi: so many batches gather before they are written.
    pub checkpoint_distance: u64,
    /// Whether it sets itself.
    pub is_distance_automatic: bool,
    /// Most bytes of a leaf that is written now: what the option `leaf` says, or a sixteenth of the memory
    /// where that is less (but 16 KiB).
    pub leaf_bytes: u64,
    /// Bytes of a full memtable, which is a batch: as of a leaf (but 4 KiB where memory has no more).
    pub batch_bytes: u64,
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
    /// Times a writer was put to sleep because the pipeline was behind. The delays of many writes are slept at
    /// once, and those that a thread still owes are not in it.
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

/// Called with the number of pages that an operation has read since the last call; an error ends the operation.
pub type Watch<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// What a verification saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct VerifyReport {
    /// Pages read and checked.
    pub pages: u64,
    /// Records, as many as a scan would find: those that are only in the log and in memory so far are
    /// counted, removed and overwritten ones are not.
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
