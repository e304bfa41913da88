//! The cost of the first read of a queue, early and late.
//!
//! A queue is inserted to at its tail and removed from at its head, so an engine that keeps removed
//! records passes more of them the longer it runs. Counts, unlike times, say so on any machine:
//! pages that a first read looks into, cached or not, records that it looks at and removed ones
//! among them.

use std::time::Duration;

use crate::driver::Scanned;

/// A window is this long, or a tenth of the measurement where that is less than ten of them.
const WINDOW: Duration = Duration::from_secs(60);

/// What was counted up to a moment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Duration,
    peeks: u64,
    scanned: Scanned,
}

/// What was counted window by window.
#[derive(Debug)]
pub(crate) struct Windows {
    length: Duration,
    marks: Vec<Mark>,
}

impl Windows {
    /// Of a measurement of this many seconds.
    pub(crate) fn new(seconds: f64) -> Windows {
        let tenth = Duration::try_from_secs_f64(seconds / 10.0).unwrap_or(WINDOW);
        Windows { length: WINDOW.min(tenth), marks: Vec::new() }
    }

    /// Whether a window ends now.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.marks.last().is_none_or(|last| now.saturating_sub(last.at) >= self.length)
    }

    /// Ends a window.
    pub(crate) fn mark(&mut self, at: Duration, peeks: u64, scanned: Scanned) {
        self.marks.push(Mark { at, peeks, scanned });
    }

    /// Pages, records and removed records for each first read of a window.
    #[expect(clippy::cast_precision_loss, reason = "ratios are shown with a few digits")]
    fn costs(&self, window: usize) -> Option<[f64; 3]> {
        let (from, to) = (self.marks.get(window)?, self.marks.get(window + 1)?);
        let peeks = to.peeks.checked_sub(from.peeks).filter(|peeks| *peeks > 0)?;
        let each = |of: fn(&Scanned) -> u64| {
            of(&to.scanned).saturating_sub(of(&from.scanned)) as f64 / peeks as f64
        };
        Some([each(|one| one.pages), each(|one| one.records), each(|one| one.tombstones)])
    }

    /// The second window beside the last, if there are three.
    pub(crate) fn note(&self) -> Option<String> {
        let last = self.marks.len().checked_sub(2).filter(|last| *last >= 2)?;
        let (early, late) = (self.costs(1)?, self.costs(last)?);
        let ratio = |index: usize| {
            let (early, late): (f64, f64) = (early[index], late[index]);
            // Less than a hundredth each is none.
            if late < 0.01 { 1.0 } else { late / early.max(0.01) }
        };
        Some(format!(
            "first reads in the second and the last of {} windows of {:.0} s: {:.2} and {:.2} pages visited ({:.2}x), \
             {:.2} and {:.2} records passed ({:.2}x), {:.2} and {:.2} removed ones among them ({:.2}x)",
            last + 1,
            self.length.as_secs_f64(),
            early[0],
            late[0],
            ratio(0),
            early[1],
            late[1],
            ratio(1),
            early[2],
            late[2],
            ratio(2)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_window_is_compared_with_the_last() {
        let mut windows = Windows::new(40.0);
        let second = Duration::from_secs;
        // What is read in the first window counts for nothing; from the third on it is twice the
        // second.
        for (at, peeks, pages) in
            [(0, 0, 0), (4, 10, 900), (8, 20, 920), (12, 30, 960), (16, 40, 1000)]
        {
            assert!(windows.is_due(second(at)) && (at == 0 || !windows.is_due(second(at - 1))));
            windows.mark(second(at), peeks, Scanned { pages, records: peeks, tombstones: 0 });
        }
        let note = windows.note().unwrap();
        assert!(note.contains("4 windows of 4 s: 2.00 and 4.00 pages visited (2.00x)"), "{note}");
        assert!(note.contains("1.00 and 1.00 records passed (1.00x)"), "{note}");
        assert!(note.contains("0.00 and 0.00 removed ones among them (1.00x)"), "{note}");
        windows.marks.truncate(3);
        assert_eq!(windows.note(), None);
    }
}
