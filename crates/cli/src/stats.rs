//! Output of `stats`, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use spinney::{
    IoSnapshot, KeyspaceMemory, KeyspaceStats, PagesByKind, PreImageStats, ScrubStats, Stats,
    TransactionStats, TurtleStats, purposes,
};
use spinney_base::size::display_bytes;

/// Formats all statistics as one JSON object.
pub(crate) fn to_json(stats: &Stats) -> Value {
    let accounts = stats.accounts.iter().map(|account| {
        json!({ "name": account.name, "used": account.used, "target": account.target, "worth": account.worth })
    });
    json!({
        "memory_bytes": stats.memory_bytes,
        "memory_used": stats.memory_used,
        "accounts": accounts.collect::<Value>(),
        "io_backend": stats.io_backend,
        "polls": stats.io.polls,
        "polls_in_vain": stats.io.polls_in_vain,
        "torn_writes": stats.torn_writes,
        "backup_bytes": stats.backup_bytes,
        "scrub": scrub(&stats.scrub),
        "log": {
            "bytes_used": stats.log.bytes_used,
            "bytes_max": stats.log.bytes_max,
            "segments": stats.log.segments,
            "commits": stats.log.commits,
            "flushes": stats.log.flushes,
            "syncs": stats.log.syncs,
            "memory": stats.log.memory,
            "lines": stats.log.lines,
            "fences": stats.log.fences,
            "durable_lsn": stats.log.durable_lsn,
            "last_lsn": stats.log.last_lsn,
        },
        "transactions": transactions(&stats.transactions),
        "stall_ns": stats.stall_ns,
        "longest_stall_ns": stats.longest_stall_ns,
        "io": io(&stats.io),
        "keyspaces": stats.keyspaces.iter().map(keyspace).collect::<Value>(),
    })
}

/// Formats the progress and the findings of the scrub.
fn scrub(stats: &ScrubStats) -> Value {
    let damaged = stats
        .damaged
        .iter()
        .map(|page| json!({ "file": page.file, "offset": page.offset, "what": page.what }));
    json!({
        "pages": stats.pages,
        "passes": stats.passes,
        "last_pass_seconds": stats.last_pass.map(|ago| ago.as_secs_f64()),
        "damaged_pages": stats.damaged_pages,
        "damaged": damaged.collect::<Value>(),
    })
}

/// Formats the I/O of each purpose, by its name.
fn io(stats: &IoSnapshot) -> Value {
    let by_name = purposes().map(|purpose| {
        let counts = &stats.by_purpose[purpose.index()];
        let counts = json!({
            "reads": counts.reads,
            "read_bytes": counts.read_bytes,
            "writes": counts.writes,
            "write_bytes": counts.write_bytes,
            "syncs": counts.syncs,
        });
        (purpose.name().to_owned(), counts)
    });
    by_name.collect()
}

/// Formats the statistics of a keyspace.
fn keyspace(one: &KeyspaceStats) -> Value {
    json!({
        "name": one.name,
        "engine": one.engine,
        "is_parked": one.is_parked,
        "cache_hits": one.cache_hits,
        "cache_misses": one.cache_misses,
        "records_cached": one.records_cached,
        "records_dirty": one.records_dirty,
        "pages": one.pages,
        "overflow_pages": one.overflow_pages,
        "staged_pages": one.staged_pages,
        "large_values": one.large_values,
        "large_bytes": one.large_bytes,
        "large_freed_bytes": one.large_freed_bytes,
        "free_pages": one.free_pages,
        "file_bytes": one.file_bytes,
        "hole_bytes": one.hole_bytes,
        "live_bytes": one.live_bytes,
        "dead_bytes": one.dead_bytes,
        "tombstones": one.tombstones,
        "scan_pages": one.scan_pages,
        "scan_records": one.scan_records,
        "scan_tombstones": one.scan_tombstones,
        "pre_images": pre_images(&one.pre_images),
        "segments": one.segments,
        "reorganizations": one.reorganizations,
        "reorganized_pages_in": one.reorganized_pages_in,
        "reorganized_pages_out": one.reorganized_pages_out,
        "inserts_forecast": one.inserts_forecast,
        "inserts_as_forecast": one.inserts_as_forecast,
        "forecast_errors": one.forecast_errors,
        "forecast_by_trend": one.forecast_by_trend,
        "pages_read": one.pages_read,
        "pages_written_back": one.pages_written_back,
        "records_written_back": one.records_written_back,
        "foreground_write_backs": one.foreground_write_backs,
        "cache_bytes": one.cache_bytes,
        "page_cache_bytes": one.page_cache_bytes,
        "page_cache_hits": one.page_cache_hits,
        "page_filter_bytes": one.page_filter_bytes,
        "page_filter_refusals": one.page_filter_refusals,
        "index_bytes": one.index_bytes,
        "checkpoints": one.checkpoints,
        "pages_restored": one.pages_restored,
        "turtle": one.turtle.as_ref().map(turtle),
        "memory": one.memory.as_ref().map(memory),
    })
}

/// Formats the counts of transactions.
fn transactions(stats: &TransactionStats) -> Value {
    json!({
        "begun": stats.begun,
        "committed": stats.committed,
        "conflicts_changed": stats.conflicts_changed,
        "conflicts_busy": stats.conflicts_busy,
        "conflicts_loaded": stats.conflicts_loaded,
        "extensions": stats.extensions,
        "guards": stats.guards,
        "snapshots": stats.snapshots,
        "oldest_snapshot_ns": stats.oldest_snapshot_ns,
    })
}

/// Formats what snapshots keep of an engine that updates in place.
fn pre_images(stats: &PreImageStats) -> Value {
    json!({
        "snapshots": stats.snapshots,
        "links": stats.links,
        "marks": stats.marks,
        "memory_bytes": stats.memory_bytes,
        "run_bytes": stats.run_bytes,
        "spills": stats.spills,
        "resolved": stats.resolved,
        "ended": stats.ended,
    })
}

/// Formats the memory of an open keyspace.
fn memory(memory: &KeyspaceMemory) -> Value {
    json!({
        "used": memory.used,
        "target": memory.target,
        "floor": memory.floor,
        "worth": memory.worth,
        "why": memory.why,
    })
}

/// Formats the statistics of a turtle keyspace.
fn turtle(stats: &TurtleStats) -> Value {
    json!({
        "checkpoint_distance": stats.checkpoint_distance,
        "is_distance_automatic": stats.is_distance_automatic,
        "leaf_bytes": stats.leaf_bytes,
        "batch_bytes": stats.batch_bytes,
        "memtables": stats.memtables,
        "memtable_bytes": stats.memtable_bytes,
        "pending_batches": stats.pending_batches,
        "pending_bytes": stats.pending_bytes,
        "memtables_sealed": stats.memtables_sealed,
        "batches_applied": stats.batches_applied,
        "tree_pages_written": stats.tree_pages_written,
        "node_pages_written": stats.node_pages_written,
        "leaves_written": stats.leaves_written,
        "nodes_written": stats.nodes_written,
        "flushes": stats.flushes,
        "leaves_made": stats.leaves_made,
        "merges": stats.merges,
        "splits": stats.splits,
        "joins": stats.joins,
        "loads": stats.loads,
        "pages_loaded": stats.pages_loaded,
        "pages_read": pages(&stats.pages_read),
        "pages_cached": pages(&stats.pages_cached),
        "filter_probes": stats.filter_probes,
        "filter_negatives": stats.filter_negatives,
        "filter_false_positives": stats.filter_false_positives,
        "filter_damaged": stats.filter_damaged,
        "writes_delayed": stats.writes_delayed,
        "snapshots": stats.snapshots,
        "snapshot_bytes": stats.snapshot_bytes,
        "snapshots_written": stats.snapshots_written,
        "snapshots_ended": stats.snapshots_ended,
    })
}

fn pages(by_kind: &PagesByKind) -> Value {
    json!({
        "node": by_kind.node,
        "filter": by_kind.filter,
        "index": by_kind.index,
        "keys": by_kind.keys,
        "values": by_kind.values,
    })
}

/// Formats the most important statistics as text.
pub(crate) fn to_text(stats: &Stats) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |words: String| {
        let _ = writeln!(text, "{words}");
    };
    line(format!(
        "memory       {} of {}",
        display_bytes(stats.memory_used),
        display_bytes(stats.memory_bytes)
    ));
    for account in &stats.accounts {
        line(format!(
            "  {}  {} of {}",
            account.name,
            display_bytes(account.used),
            display_bytes(account.target)
        ));
    }
    let log = &stats.log;
    line(format!(
        "log          {} of {} in {} segments, LSN {} durable of {}",
        display_bytes(log.bytes_used),
        display_bytes(log.bytes_max),
        log.segments,
        log.durable_lsn,
        log.last_lsn
    ));
    if log.fences > 0 {
        let (memory, lines, fences) = (log.memory, log.lines, log.fences);
        line(format!("log memory   {memory}: {lines} lines written back, {fences} fences"));
    }
    line(format!("I/O          {}; torn writes: {}", stats.io_backend, stats.torn_writes));
    if stats.io.polls > 0 {
        let (polls, in_vain) = (stats.io.polls, stats.io.polls_in_vain);
        line(format!("polled       for {polls} reads, for {in_vain} of them in vain"));
    }
    if let Some(bytes) = stats.backup_bytes {
        line(format!("backup       {} of pages copied so far", display_bytes(bytes)));
    }
    for page in &stats.scrub.damaged {
        line(format!("damaged      {} at {}: {}", page.file.display(), page.offset, page.what));
    }
    stats.keyspaces.iter().for_each(|one| keyspace_lines(one, &mut line));
    text
}

/// Formats the most important statistics of a keyspace.
fn keyspace_lines(one: &KeyspaceStats, line: &mut dyn FnMut(String)) {
    line(format!("keyspace     {} ({})", one.name, one.engine));
    if let Some(memory) = &one.memory {
        line(format!(
            "  {} of {} in memory ({}), at least {}; the last MiB gives {} hits a second",
            display_bytes(memory.used),
            display_bytes(memory.target),
            memory.why,
            display_bytes(memory.floor),
            memory.worth
        ));
    }
    line(format!(
        "  {} in {} pages, {} overflow pages, {} staged ones and {} free ones",
        display_bytes(one.file_bytes),
        one.pages,
        one.overflow_pages,
        one.staged_pages,
        one.free_pages
    ));
    line(format!(
        "  about {} of records, {} of removed records and unused space; {} tombstones",
        display_bytes(one.live_bytes),
        display_bytes(one.dead_bytes),
        one.tombstones
    ));
    if one.large_values > 0 || one.large_freed_bytes > 0 {
        line(format!(
            "  {} large values in {}; {} of overwritten ones",
            one.large_values,
            display_bytes(one.large_bytes),
            display_bytes(one.large_freed_bytes)
        ));
    }
    match &one.turtle {
        None => line(format!(
            "  {} records in memory, {} of them not yet in their pages; {} of filters spared {} pages",
            one.records_cached,
            one.records_dirty,
            display_bytes(one.page_filter_bytes),
            one.page_filter_refusals
        )),
        Some(turtle) => turtle_lines(one.records_dirty, turtle).into_iter().for_each(line),
    }
}

/// Formats the most important statistics of a turtle keyspace, with `edits` edits in memory alone.
fn turtle_lines(edits: u64, turtle: &TurtleStats) -> [String; 5] {
    let set = if turtle.is_distance_automatic { "set by itself" } else { "as it was set" };
    let read = &turtle.pages_read;
    [
        format!(
            "  {} edits not yet in their pages: {} in {} memtables, {} in {} batches of {}",
            edits,
            display_bytes(turtle.memtable_bytes),
            turtle.memtables,
            display_bytes(turtle.pending_bytes),
            turtle.pending_batches,
            turtle.checkpoint_distance
        ),
        format!(
            "  checkpoint distance {} ({set}), batches of {}, leaves of {}",
            turtle.checkpoint_distance,
            display_bytes(turtle.batch_bytes),
            display_bytes(turtle.leaf_bytes)
        ),
        format!(
            "  {} writes delayed; {} snapshots that keep {}, {} were written out and {} had to end",
            turtle.writes_delayed,
            turtle.snapshots,
            display_bytes(turtle.snapshot_bytes),
            turtle.snapshots_written,
            turtle.snapshots_ended
        ),
        format!(
            "  {} pages written in {} leaves and {} nodes, by {} flushes and {} merges; {} splits and {} joins",
            turtle.tree_pages_written,
            turtle.leaves_written,
            turtle.nodes_written,
            turtle.flushes,
            turtle.merges,
            turtle.splits,
            turtle.joins
        ),
        format!(
            "  {} pages read of filters, {} of indexes, {} of keys, {} of values; {} of {} filters asked said no, {} said maybe for nothing",
            read.filter,
            read.index,
            read.keys,
            read.values,
            turtle.filter_negatives,
            turtle.filter_probes,
            turtle.filter_false_positives
        ),
    ]
}
