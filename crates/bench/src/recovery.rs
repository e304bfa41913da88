//! What a killed engine costs: the time until it is open again, and until it is as fast as before.
//!
//! ```text
//!  child 1   load | ... | last workload -------x killed            rate before: its last quarter
//!  child 2                                     | open | same workload, no warm-up ------|
//!                                              0    open s          first second at 90 % of the rate
//! ```
//!
//! The second child ends as soon as it is fast enough, at the latest after `--seconds`. It checks
//! every value, as all runs do.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::table::grouped;

/// Share of the rate before that has to be reached again.
const SHARE: f64 = 0.9;
/// Length of the time over which a rate is taken: a shorter one is reached by chance.
const WINDOW: Duration = Duration::from_secs(1);

/// A kill in the plan of a child.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kill {
    /// The child is killed in its last workload, which does not end before.
    Comes,
    /// The child opens what a killed one left, which had this rate.
    Came {
        /// Operations a second.
        ops_per_second: f64,
    },
}

/// A moment, and the operations that were done until then.
type Tick = (Duration, u64);

/// Waits until an engine is as fast as before.
#[derive(Debug)]
pub(crate) struct Recovery {
    goal: f64,
    /// When the engine was open.
    opened: Duration,
    ticks: Vec<Tick>,
    /// The first tick of the last window.
    first: usize,
    reached: Option<Duration>,
}

impl Recovery {
    pub(crate) fn new(ops_per_second: f64, opened: Duration) -> Self {
        let goal = SHARE * ops_per_second;
        Recovery { goal, opened, ticks: Vec::new(), first: 0, reached: None }
    }

    /// Notes how far the operations are; whether they are fast enough.
    pub(crate) fn tick(&mut self, now: Duration, operations: u64) -> bool {
        self.ticks.push((now, operations));
        while self.ticks.get(self.first + 1).is_some_and(|next| now >= next.0 + WINDOW) {
            self.first += 1;
        }
        let (from, before) = self.ticks[self.first];
        if self.reached.is_none() && now >= from + WINDOW {
            let fast = rate(operations - before, now - from) >= self.goal;
            self.reached = fast.then(|| from.saturating_sub(self.opened));
        }
        self.reached.is_some()
    }

    /// Seconds from the opening to the first second that was fast enough.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.reached.map(|reached| reached.as_secs_f64())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
fn rate(operations: u64, time: Duration) -> f64 {
    operations as f64 / time.as_secs_f64().max(1e-9)
}

/// Points of a time series: seconds since the beginning, and the operations since the point before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Points(Vec<(f64, u64)>);

impl Points {
    /// Adds a point; one that is earlier than the last begins another series.
    pub(crate) fn push(&mut self, second: f64, operations: u64) {
        if self.0.last().is_some_and(|last| last.0 >= second) {
            self.0.clear();
        }
        self.0.push((second, operations));
    }

    /// Operations a second from one second to another.
    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
    pub(crate) fn rate(&self, from: f64, to: f64) -> f64 {
        let (mut operations, mut seconds, mut last) = (0, 0.0, 0.0);
        for (second, count) in &self.0 {
            // A point belongs to where its middle is.
            let middle = f64::midpoint(last, *second);
            if middle >= from && middle < to {
                operations += count;
                seconds += second - last;
            }
            last = *second;
        }
        if seconds > 0.0 { operations as f64 / seconds } else { 0.0 }
    }

    /// Operations a second of the last quarter.
    pub(crate) fn last_rate(&self) -> f64 {
        let end = self.0.last().map_or(0.0, |last| last.0);
        self.rate(0.75 * end, f64::INFINITY)
    }

    /// Seconds from `from` until the first point, before `to`, at 90 % of a rate.
    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
    pub(crate) fn until(&self, from: f64, to: f64, ops_per_second: f64) -> Option<f64> {
        let mut last = 0.0;
        for (second, count) in &self.0 {
            let is_fast = *count as f64 >= SHARE * ops_per_second * (second - last);
            if last >= from && last < to && is_fast {
                return Some(last - from);
            }
            last = *second;
        }
        None
    }
}

/// What a kill cost one engine.
#[derive(Clone, Debug)]
pub(crate) struct Killed {
    pub(crate) engine: String,
    pub(crate) workload: String,
    /// Operations a second before.
    pub(crate) before: f64,
    /// Seconds that opening took.
    pub(crate) open_seconds: f64,
    /// Seconds from then to 90 % of the rate before; `None` if it was not reached in `waited`.
    pub(crate) seconds: Option<f64>,
    pub(crate) waited: f64,
}

/// Draws a line for each kill.
pub(crate) fn draw(kills: &[Killed]) -> String {
    let mut table = Table::new();
    let header = ["killed in", "engine", "ops/s before", "s to open", "s to 90 %"];
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for kill in kills {
        let reached = match kill.seconds {
            Some(seconds) => format!("{seconds:.2}"),
            None => format!("over {:.0}", kill.waited),
        };
        table.add_row([
            kill.workload.clone(),
            kill.engine.clone(),
            grouped(kill.before),
            format!("{:.2}", kill.open_seconds),
            reached,
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks of 100 ms; the rate is 1,000 a second, and half of that for the first `slow` ticks.
    fn recovery(slow: u64, ticks: u64) -> Option<f64> {
        let mut recovery = Recovery::new(1000.0, Duration::from_millis(500));
        let mut done = 0;
        for tick in 0..ticks {
            let now = Duration::from_millis(500 + 100 * tick);
            if recovery.tick(now, done) {
                break;
            }
            done += if tick < slow { 50 } else { 100 };
        }
        recovery.seconds()
    }

    #[test]
    fn a_second_at_nine_tenths_counts() {
        assert_eq!(recovery(0, 30), Some(0.0));
        // A window with two slow ticks of ten has 90 %.
        assert_eq!(recovery(20, 60), Some(1.8));
        assert_eq!(recovery(20, 25), None);
        assert_eq!(recovery(0, 10), None, "a second has not passed");
    }

    #[test]
    fn points_are_rates() {
        let mut points = Points::default();
        for second in 1..=8_u32 {
            points.push(f64::from(second), if second <= 6 { 100 } else { 200 });
        }
        assert_eq!(points.last_rate(), 200.0);
        assert_eq!(points.rate(0.0, 6.0), 100.0);
        assert_eq!(points.until(0.0, 8.0, 110.0), Some(0.0));
        assert_eq!(points.until(4.0, 8.0, 200.0), Some(2.0));
        assert_eq!(points.until(0.0, 5.0, 200.0), None);
        assert_eq!(Points::default().last_rate(), 0.0);
    }

    #[test]
    fn what_was_not_reached_is_said() {
        let kill = |seconds| Killed {
            engine: "treeline".to_owned(),
            workload: "c".to_owned(),
            before: 12_345.0,
            open_seconds: 0.5,
            seconds,
            waited: 30.0,
        };
        let table = draw(&[kill(Some(3.1366)), kill(None)]);
        for words in ["12 345", "0.50", " 3.14 ", "over 30"] {
            assert!(table.contains(words), "{table}");
        }
    }
}
