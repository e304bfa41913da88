//! What an engine looks like inside after a workload, and what it did to itself meanwhile.
//!
//! Two kinds of numbers: those of *now* (segments, pages, index) and those that *count* since the
//! engine was opened. [`Shape::since`] leaves the first as they are and takes what an earlier
//! moment had counted off the second.

use serde::{Deserialize, Serialize};
use spinney::{EngineStats, TurtleStats};
use spinney_base::size::display_bytes;

/// Segments, pages and reorganizations of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Segments of 1, 2, 4, 8 and 16 pages, now.
    pub segments: [u64; 5],
    /// Pages that hold data now, overflow pages aside.
    pub pages: u64,
    /// Overflow pages, now.
    pub overflow_pages: u64,
    /// Pages of new records that wait to be merged with the others, now.
    pub staged_pages: u64,
    /// Records in memory, and those of them that their pages do not hold, now.
    pub records_cached: u64,
    /// See there.
    pub records_dirty: u64,
    /// Bytes of the segment index, now.
    pub index_bytes: u64,
    /// Reorganized segments, because they or their staged pages were full; counts.
    pub reorganizations: u64,
    /// Pages that reorganizations read; counts.
    pub pages_in: u64,
    /// Pages that reorganizations wrote; counts.
    pub pages_out: u64,
    /// Inserts that came in epochs with a forecast; counts.
    pub inserts_forecast: u64,
    /// How many of them came where they were expected; counts.
    pub inserts_as_forecast: u64,
    /// Whether the trend answers, and not the histogram, now.
    pub forecast_by_trend: bool,
    /// What only TurtleKV has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turtle: Option<Box<Pipeline>>,
}

/// The pipeline of TurtleKV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    /// Update batches between two checkpoints, now.
    pub checkpoint_distance: u64,
    /// Whether that adjusts itself, now.
    #[serde(default)]
    pub is_distance_automatic: bool,
    /// Bytes of a batch, now.
    #[serde(default)]
    pub batch_bytes: u64,
    /// Most bytes of a leaf, now.
    #[serde(default)]
    pub leaf_bytes: u64,
    /// Memtables, now.
    pub memtables: u64,
    /// Bytes that are in the tree and not on disk, now.
    pub pending_bytes: u64,
    /// Memtables that were sealed; counts.
    pub memtables_sealed: u64,
    /// Pages written for the tree; counts.
    pub tree_pages_written: u64,
    /// Checkpoints; counts.
    pub checkpoints: u64,
    /// Times a writer slept; counts.
    pub writes_delayed: u64,
    /// Of the pages written, those of nodes; counts.
    #[serde(default)]
    pub node_pages_written: u64,
    /// Leaves and segments written; counts.
    #[serde(default)]
    pub leaves_written: u64,
    /// Flushes of pending edits to a child of a node; counts.
    #[serde(default)]
    pub flushes: u64,
    /// Buffers of nodes that were merged; counts.
    #[serde(default)]
    pub merges: u64,
    /// Nodes split; counts.
    #[serde(default)]
    pub splits: u64,
    /// Neighbours joined; counts.
    #[serde(default)]
    pub joins: u64,
    /// Leaves and segments read to be merged; counts.
    #[serde(default)]
    pub loads: u64,
    /// Pages read for that; counts.
    #[serde(default)]
    pub pages_loaded: u64,
    /// Pages that lookups and scans read; counts.
    #[serde(default)]
    pub pages_read: Pages,
    /// Filters that lookups asked; counts.
    #[serde(default)]
    pub filter_probes: u64,
    /// Those that said no; counts.
    #[serde(default)]
    pub filter_negatives: u64,
    /// Those that said maybe for nothing; counts.
    #[serde(default)]
    pub filter_false_positives: u64,
}

/// Pages of leaves and segments by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Filters.
    pub filter: u64,
    /// Indexes.
    pub index: u64,
    /// Keys.
    pub keys: u64,
    /// Values.
    pub values: u64,
}

impl Pages {
    fn since(self, before: Pages) -> Pages {
        Pages {
            filter: self.filter.saturating_sub(before.filter),
            index: self.index.saturating_sub(before.index),
            keys: self.keys.saturating_sub(before.keys),
            values: self.values.saturating_sub(before.values),
        }
    }
}

impl From<&EngineStats> for Shape {
    fn from(stats: &EngineStats) -> Self {
        Shape {
            segments: stats.segments,
            pages: stats.pages,
            overflow_pages: stats.overflow_pages,
            staged_pages: stats.staged_pages,
            records_cached: stats.records_cached,
            records_dirty: stats.records_dirty,
            index_bytes: stats.index_bytes,
            reorganizations: stats.reorganizations,
            pages_in: stats.reorganized_pages_in,
            pages_out: stats.reorganized_pages_out,
            inserts_forecast: stats.inserts_forecast,
            inserts_as_forecast: stats.inserts_as_forecast,
            forecast_by_trend: stats.forecast_by_trend,
            turtle: stats
                .turtle
                .as_ref()
                .map(|turtle| Box::new(Pipeline::of(turtle, stats.checkpoints))),
        }
    }
}

impl Pipeline {
    fn of(turtle: &TurtleStats, checkpoints: u64) -> Self {
        Pipeline {
            checkpoint_distance: turtle.checkpoint_distance,
            is_distance_automatic: turtle.is_distance_automatic,
            batch_bytes: turtle.batch_bytes,
            leaf_bytes: turtle.leaf_bytes,
            memtables: turtle.memtables,
            pending_bytes: turtle.pending_bytes,
            memtables_sealed: turtle.memtables_sealed,
            tree_pages_written: turtle.tree_pages_written,
            writes_delayed: turtle.writes_delayed,
            node_pages_written: turtle.node_pages_written,
            leaves_written: turtle.leaves_written,
            flushes: turtle.flushes,
            merges: turtle.merges,
            splits: turtle.splits,
            joins: turtle.joins,
            loads: turtle.loads,
            pages_loaded: turtle.pages_loaded,
            pages_read: Pages {
                filter: turtle.pages_read.filter,
                index: turtle.pages_read.index,
                keys: turtle.pages_read.keys,
                values: turtle.pages_read.values,
            },
            filter_probes: turtle.filter_probes,
            filter_negatives: turtle.filter_negatives,
            filter_false_positives: turtle.filter_false_positives,
            checkpoints,
        }
    }

    fn since(self, before: Pipeline) -> Pipeline {
        let since = |of: fn(&Pipeline) -> u64| of(&self).saturating_sub(of(&before));
        Pipeline {
            memtables_sealed: since(|one| one.memtables_sealed),
            tree_pages_written: since(|one| one.tree_pages_written),
            checkpoints: since(|one| one.checkpoints),
            writes_delayed: since(|one| one.writes_delayed),
            node_pages_written: since(|one| one.node_pages_written),
            leaves_written: since(|one| one.leaves_written),
            flushes: since(|one| one.flushes),
            merges: since(|one| one.merges),
            splits: since(|one| one.splits),
            joins: since(|one| one.joins),
            loads: since(|one| one.loads),
            pages_loaded: since(|one| one.pages_loaded),
            pages_read: self.pages_read.since(before.pages_read),
            filter_probes: since(|one| one.filter_probes),
            filter_negatives: since(|one| one.filter_negatives),
            filter_false_positives: since(|one| one.filter_false_positives),
            ..self
        }
    }

    fn note(&self, pages: u64) -> String {
        format!(
            "chi {}{} of {}, leaves of {}, {} memtables, {} pending, {pages} pages; {} sealed, {} checkpoints wrote {} pages of the tree, \
             {} writes delayed; {} leaves and {} pages of nodes by {} flushes and {} merges that read {} pages of {} leaves; \
             read {} pages of filters, {} of indexes, {} of keys, {} of values; {} of {} filters said no, {} maybe for nothing",
            self.checkpoint_distance,
            if self.is_distance_automatic { " (auto)" } else { "" },
            display_bytes(self.batch_bytes),
            display_bytes(self.leaf_bytes),
            self.memtables,
            display_bytes(self.pending_bytes),
            self.memtables_sealed,
            self.checkpoints,
            self.tree_pages_written,
            self.writes_delayed,
            self.leaves_written,
            self.node_pages_written,
            self.flushes,
            self.merges,
            self.pages_loaded,
            self.loads,
            self.pages_read.filter,
            self.pages_read.index,
            self.pages_read.keys,
            self.pages_read.values,
            self.filter_negatives,
            self.filter_probes,
            self.filter_false_positives
        )
    }
}

impl Shape {
    /// This shape with only what was counted after `before`.
    #[must_use]
    pub fn since(&self, before: &Shape) -> Shape {
        let since = |after: u64, before: u64| after.saturating_sub(before);
        Shape {
            reorganizations: since(self.reorganizations, before.reorganizations),
            pages_in: since(self.pages_in, before.pages_in),
            pages_out: since(self.pages_out, before.pages_out),
            inserts_forecast: since(self.inserts_forecast, before.inserts_forecast),
            inserts_as_forecast: since(self.inserts_as_forecast, before.inserts_as_forecast),
            turtle: self.turtle.as_ref().map(|turtle| {
                let before = before.turtle.as_deref().copied().unwrap_or_default();
                Box::new(turtle.since(before))
            }),
            ..self.clone()
        }
    }

    /// How many segments there are.
    #[must_use]
    pub fn segment_count(&self) -> u64 {
        self.segments.iter().sum()
    }

    /// Pages of an average segment; 0 without segments.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio is shown with two digits")]
    pub fn pages_per_segment(&self) -> f64 {
        self.pages as f64 / self.segment_count().max(1) as f64
    }

    /// One line for a reader of the table.
    #[must_use]
    pub fn note(&self) -> String {
        if let Some(turtle) = &self.turtle {
            return turtle.note(self.pages);
        }
        let mut text = format!(
            "{:.2} pages a segment ({} segments of 1/2/4/8/16 pages), {} pages, {} overflow pages and {} staged ones, \
             {} records in memory, {} of them dirty, index {}; \
             {} reorganizations read {} pages and wrote {}",
            self.pages_per_segment(),
            self.segments.map(|count| count.to_string()).join("/"),
            self.pages,
            self.overflow_pages,
            self.staged_pages,
            self.records_cached,
            self.records_dirty,
            display_bytes(self.index_bytes),
            self.reorganizations,
            self.pages_in,
            self.pages_out,
        );
        if self.inserts_forecast > 0 {
            let forecaster = if self.forecast_by_trend { "trend" } else { "histogram" };
            #[expect(clippy::cast_precision_loss, reason = "a percentage is shown")]
            let percent = 100.0 * self.inserts_as_forecast as f64 / self.inserts_forecast as f64;
            text.push_str(&format!(
                "; {percent:.0} % of {} inserts came as forecast, the {forecaster} answers",
                self.inserts_forecast
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_differences_and_the_rest_is_now() {
        let before = Shape { segments: [9, 0, 0, 0, 0], reorganizations: 3, ..Shape::default() };
        let after = Shape {
            segments: [1, 1, 0, 0, 1],
            pages: 19,
            reorganizations: 10,
            pages_in: 7,
            inserts_forecast: 200,
            inserts_as_forecast: 50,
            ..Shape::default()
        };
        let shape = after.since(&before);
        assert_eq!((shape.reorganizations, shape.pages_in, shape.segments), (7, 7, after.segments));
        let note = shape.note();
        assert!(note.contains("6.33 pages a segment (1/1/0/0/1 segments"), "{note}");
        assert!(note.contains("25 % of 200 inserts"), "{note}");
        assert!(note.contains("7 reorganizations"), "{note}");
        let turtle = |sealed| {
            let turtle = Pipeline {
                checkpoint_distance: 7,
                is_distance_automatic: true,
                batch_bytes: 64 << 10,
                leaf_bytes: 64 << 10,
                memtables_sealed: sealed,
                memtables: 2,
                ..Pipeline::default()
            };
            Shape { turtle: Some(Box::new(turtle)), ..Shape::default() }
        };
        let note = turtle(9).since(&turtle(4)).note();
        assert!(note.contains("2 memtables") && note.contains("5 sealed"), "{note}");
        assert!(note.contains("chi 7 (auto) of 64.0KiB, leaves of 64.0KiB"), "{note}");
    }
}
