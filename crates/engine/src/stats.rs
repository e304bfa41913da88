//! Statistics of engines.

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Result, Stalls};
use spinney_extent::Values;

/// Statistics of one keyspace. Counters count since the keyspace was opened; all others are present
/// values.
///
/// Some belong to one engine only. On `turtle`, those of overflow and staged pages, of write-backs,
/// segments, reorganizations, forecasts and restored pages are always 0; its own are in
/// [`EngineStats::turtle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EngineStats {
    /// Reads answered by the record cache. On `turtle` also reads answered by memtables.
    pub cache_hits: u64,
    /// Reads that went to pages, which may be in the page cache. On `turtle` reads that went to the
    /// tree, which holds pending edits in memory.
    pub cache_misses: u64,
    /// Number of records in the record cache.
    pub records_cached: u64,
    /// Number of dirty records in the record cache. On `turtle` the number of edits in memtables
    /// and pending in the tree, including removals.
    pub records_dirty: u64,
    /// Bytes of the record cache.
    pub cache_bytes: u64,
    /// Bytes of the page cache.
    pub page_cache_bytes: u64,
    /// Pages that a scan, a lookup or a write-back found in the page cache. On `turtle` pages of
    /// leaves and segments.
    pub page_cache_hits: u64,
    /// Bytes of page filters. A filter belongs to a page that a lookup read in vain, and spares the
    /// next such read. `treeline` only, as is the next field; `turtle` keeps filters in pages
    /// ([`TurtleStats::filter_probes`]).
    pub page_filter_bytes: u64,
    /// Pages that lookups did not read, because their filters excluded the key.
    pub page_filter_refusals: u64,
    /// Bytes of the segment index; on `turtle` bytes of the tree's nodes in memory.
    pub index_bytes: u64,
    /// Pages that hold data, without overflow pages. On `turtle` pages of leaves, segments and
    /// nodes, including those that only a snapshot or the last checkpoint needs.
    pub pages: u64,
    /// Overflow pages. `treeline` only.
    pub overflow_pages: u64,
    /// Staged pages: new records that wait to be merged with their segments. `treeline` only.
    pub staged_pages: u64,
    /// Number of large values, which are kept outside of pages.
    pub large_values: u64,
    /// Bytes of the file that they take.
    pub large_bytes: u64,
    /// Bytes of large values that were overwritten or removed; a checkpoint frees them.
    pub large_freed_bytes: u64,
    /// Free pages of the file.
    pub free_pages: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of free pages that are known to be holes, and so take no disk space.
    pub hole_bytes: u64,
    /// Approximate bytes of keys and values of all records, large values included. On `treeline` an
    /// estimate from the fullness of the pages read and written last. On `turtle` without the
    /// memtables, and with all pending edits, although some of them overwrite records below.
    pub live_bytes: u64,
    /// Approximate bytes in use that hold no live data; a compaction frees most of them. On
    /// `treeline` free space in pages, which new records may fill. On `turtle` removed records,
    /// their tombstones and flushed parts of segments. On both, large values that a checkpoint will
    /// free.
    pub dead_bytes: u64,
    /// Number of tombstones: removals that wait to be merged with the records that they remove.
    /// `turtle` only: `treeline` removes records from their pages, and counts removals that are not
    /// written back yet in [`EngineStats::records_dirty`].
    pub tombstones: u64,
    /// Pages that ranges read, cached or not.
    pub scan_pages: u64,
    /// Records that ranges read: those that they delivered, and those that they skipped, including
    /// removed and overwritten ones.
    pub scan_records: u64,
    /// Removed records that ranges skipped: on `treeline` removals that are not written back yet,
    /// on `turtle` tombstones.
    pub scan_tombstones: u64,
    /// Pages read to answer lookups; on `turtle` lookups and scans.
    pub pages_read: u64,
    /// Pages rewritten to write back dirty records. `treeline` only: no page of `turtle` is written
    /// twice; see [`TurtleStats::tree_pages_written`].
    pub pages_written_back: u64,
    /// Dirty records written back. `treeline` only.
    pub records_written_back: u64,
    /// Times a writer had to write back records itself. On `turtle` pieces of the pipeline's work
    /// that writers did themselves, because memory was full.
    pub foreground_write_backs: u64,
    /// Time that writers spent on that, in nanoseconds. On `turtle` also their sleep because the
    /// pipeline was behind ([`TurtleStats::writes_delayed`]).
    pub stall_ns: u64,
    /// Longest of those times, in nanoseconds. A sleep lasts 2.5 ms at most as requested; the
    /// duration of work has no limit.
    pub longest_stall_ns: u64,
    /// What snapshots keep, where the engine updates in place.
    pub pre_images: PreImageStats,
    /// Number of segments of 1, 2, 4, 8 and 16 pages. `treeline` only: a segment of `turtle` is
    /// something else.
    pub segments: [u64; 5],
    /// Number of reorganizations: full or half-empty segments that were rewritten. `treeline` only,
    /// as are the next two fields.
    pub reorganizations: u64,
    /// Pages that reorganizations read.
    pub reorganized_pages_in: u64,
    /// Pages that reorganizations wrote.
    pub reorganized_pages_out: u64,
    /// Puts of keys not known to exist, in epochs with a forecast. `treeline` only, as are the next
    /// three fields.
    pub inserts_forecast: u64,
    /// How many of those came where they were forecast.
    pub inserts_as_forecast: u64,
    /// Error of the histogram and of the trend in the last epoch, in inserts: the mean over key
    /// ranges that took a 64th of the inserts each.
    pub forecast_errors: [u64; 2],
    /// Whether the trend makes the forecasts; otherwise the histogram does.
    pub forecast_by_trend: bool,
    /// Checkpoints published.
    pub checkpoints: u64,
    /// Torn pages restored when the keyspace was opened. `treeline` only: no page of `turtle` is
    /// written in place.
    pub pages_restored: u64,
    /// Statistics that only a turtle keyspace has.
    pub turtle: Option<TurtleStats>,
}

/// What the snapshots of a keyspace keep whose engine updates in place: values that later writes
/// replaced. `treeline` only; [`TurtleStats`] has its own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PreImageStats {
    /// Number of snapshots that live.
    pub snapshots: u64,
    /// Number of replaced values kept in memory.
    pub links: u64,
    /// Number of keys whose pages hold the replaced values.
    pub marks: u64,
    /// Bytes of memory that both take, and the index of what is on disk.
    pub memory_bytes: u64,
    /// Bytes of disk that replaced values take.
    pub run_bytes: u64,
    /// Times that replaced values in memory were written to disk.
    pub spills: u64,
    /// Number of replaced values that write-backs read from pages.
    pub resolved: u64,
    /// Number of snapshots that ended before they were dropped, because they kept too much.
    pub ended: u64,
}

impl EngineStats {
    /// Fills in the statistics that every keyspace has by its store and its writers: large values,
    /// space and stalls.
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

/// Statistics of the pipeline and the tree of a turtle keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TurtleStats {
    /// Checkpoint distance, chi: the number of update batches between two checkpoints.
    pub checkpoint_distance: u64,
    /// Whether the distance adjusts itself.
    pub is_distance_automatic: bool,
    /// Most bytes of a leaf that is written now: the value of the option `leaf`, or a sixteenth of
    /// the memory if that is less (but at least 16 KiB).
    pub leaf_bytes: u64,
    /// Bytes of a full memtable, which is an update batch: those of a leaf (but at least 4 KiB
    /// where memory is short).
    pub batch_bytes: u64,
    /// Number of memtables, including the active one.
    pub memtables: u64,
    /// Bytes of all memtables.
    pub memtable_bytes: u64,
    /// Update batches applied to the tree since the last checkpoint.
    pub pending_batches: u64,
    /// Bytes of the tree that are not on disk.
    pub pending_bytes: u64,
    /// Memtables sealed.
    pub memtables_sealed: u64,
    /// Update batches applied to the tree.
    pub batches_applied: u64,
    /// Pages written for the tree.
    pub tree_pages_written: u64,
    /// Of those, pages of nodes.
    pub node_pages_written: u64,
    /// Leaves and segments written.
    pub leaves_written: u64,
    /// Nodes written.
    pub nodes_written: u64,
    /// Number of flushes of a node's pending edits to a child.
    pub flushes: u64,
    /// Leaves rebuilt in memory by flushes.
    pub leaves_made: u64,
    /// Buffers of nodes whose levels were merged because they had too many segments.
    pub merges: u64,
    /// Nodes split.
    pub splits: u64,
    /// Joins of neighbouring nodes.
    pub joins: u64,
    /// Leaves and segments that were read, whole or in part, to be merged.
    pub loads: u64,
    /// Pages that these loads read from the file.
    pub pages_loaded: u64,
    /// Pages that lookups and scans read from the file.
    pub pages_read: PagesByKind,
    /// Pages that lookups and scans found in the page cache.
    pub pages_cached: PagesByKind,
    /// Filters that lookups probed.
    pub filter_probes: u64,
    /// Probes that excluded the key.
    pub filter_negatives: u64,
    /// Probes that let a lookup pass although the key was absent.
    pub filter_false_positives: u64,
    /// Probes without an answer, because the page of the filter is damaged.
    pub filter_damaged: u64,
    /// Times a writer slept because the pipeline was behind. Delays of many writes are slept at
    /// once; delays that a thread still has to sleep are not counted.
    pub writes_delayed: u64,
    /// Number of live snapshots.
    pub snapshots: u64,
    /// Most bytes of memory that only snapshots keep.
    pub snapshot_bytes: u64,
    /// Snapshots that were written out to give their memory back.
    pub snapshots_written: u64,
    /// Snapshots that had to end.
    pub snapshots_ended: u64,
}

/// Number of pages of a turtle keyspace, by their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
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
    /// Pages of leaves and segments, which lookups and scans read.
    #[must_use]
    pub fn leaf(&self) -> u64 {
        self.filter + self.index + self.keys + self.values
    }
}

/// Called with the number of pages that an operation has read since the last call. An error ends
/// the operation.
pub type Watch<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Result of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct VerifyReport {
    /// Pages read and checked.
    pub pages: u64,
    /// Number of records that a scan would find. It includes records that are only in the log and
    /// in memory, but no removed or overwritten ones.
    pub records: u64,
    /// Large values read and checked.
    pub large_values: u64,
    /// Number of free pages.
    pub free_pages: u64,
    /// Most records in one page, without overflow pages.
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
