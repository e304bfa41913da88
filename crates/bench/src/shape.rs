//! What an engine looks like inside after a workload, and what it did to itself meanwhile.
//!
//! Two kinds of numbers: those of *now* (segments, pages, index) and those that *count* since the engine was opened.
//! [`Shape::since`] leaves the first as they are and takes what an earlier moment had counted off the second.

use serde::{Deserialize, Serialize};
use spinney::EngineStats;
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
    /// Bytes of the segment index, now.
    pub index_bytes: u64,
    /// Segments made anew because they were full; counts.
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
}

impl From<&EngineStats> for Shape {
    fn from(stats: &EngineStats) -> Self {
        Shape {
            segments: stats.segments,
            pages: stats.pages,
            overflow_pages: stats.overflow_pages,
            index_bytes: stats.index_bytes,
            reorganizations: stats.reorganizations,
            pages_in: stats.reorganized_pages_in,
            pages_out: stats.reorganized_pages_out,
            inserts_forecast: stats.inserts_forecast,
            inserts_as_forecast: stats.inserts_as_forecast,
            forecast_by_trend: stats.forecast_by_trend,
        }
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
        let mut text = format!(
            "{:.2} pages a segment ({} segments of 1/2/4/8/16 pages), {} pages and {} overflow pages, index {}; \
             {} reorganizations read {} pages and wrote {}",
            self.pages_per_segment(),
            self.segments.map(|count| count.to_string()).join("/"),
            self.pages,
            self.overflow_pages,
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
    }
}
