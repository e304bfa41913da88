//! How a keyspace divides its memory between records and pages that are cached: by what the bytes
//! that each would give up first were worth.
//!
//! Every [`INTERVAL`] it is counted how many hits were on what would have been the next to leave,
//! for each byte of either cache. Where one side's bytes were worth twice the other's, a quarter of
//! the memory changes sides; in between everything stays, for moving costs a copy of the records.
//! Pages begin with a small probe and have three quarters at most: new records need room whatever is
//! read.
//!
//! Pure: what it is told decides.

use std::time::Duration;

/// Shortest time between two decisions.
const INTERVAL: Duration = Duration::from_millis(500);

/// Hits that a decision needs to go by.
const HITS_MIN: u64 = 64;

/// One side must be worth so many times as much as the other.
const RATIO: f64 = 2.0;

/// Quarters of the memory that pages may have.
const QUARTERS_MAX: u64 = 3;

/// Without a quarter pages have this share, to find out what they would be worth.
const PROBE_SHARE: u64 = 128;

/// What is known of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    /// Hits on what would have been the next to leave, counted since the start.
    pub(crate) worth: u64,
    /// Bytes that it takes.
    pub(crate) bytes: u64,
}

/// The division. Not thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Share {
    quarters: u64,
    since: Duration,
    records: u64,
    pages: u64,
}

impl Share {
    /// How many of `bytes` pages may take, after what was seen up to `now`.
    pub(crate) fn of_pages(
        &mut self,
        bytes: u64,
        records: Side,
        pages: Side,
        now: Duration,
    ) -> u64 {
        if now.saturating_sub(self.since) >= INTERVAL {
            self.decide(bytes, records, pages);
            self.since = now;
        }
        self.bytes(bytes)
    }

    fn bytes(&self, all: u64) -> u64 {
        match self.quarters {
            0 => all / PROBE_SHARE,
            quarters => all / 4 * quarters,
        }
    }

    fn decide(&mut self, bytes: u64, records: Side, pages: Side) {
        let new_records = records.worth.saturating_sub(self.records);
        let new_pages = pages.worth.saturating_sub(self.pages);
        if new_records + new_pages < HITS_MIN {
            // Too little is asked for to tell; it adds up.
            return;
        }
        (self.records, self.pages) = (records.worth, pages.worth);
        let of_records = per_byte(new_records, records.bytes);
        let of_pages = per_byte(new_pages, pages.bytes);
        // What it may have and does not fill would be no use to it.
        let filled = pages.bytes >= self.bytes(bytes) / 8 * 7;
        if of_pages > RATIO * of_records && filled {
            self.quarters = (self.quarters + 1).min(QUARTERS_MAX);
        } else if of_records > RATIO * of_pages {
            self.quarters = self.quarters.saturating_sub(1);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for a comparison")]
fn per_byte(hits: u64, bytes: u64) -> f64 {
    hits as f64 / bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 256 << 20;

    /// What pages get, step by step, while so many hits come every interval.
    fn shares(share: &mut Share, start: u64, hits: [u64; 2], steps: u64) -> Vec<u64> {
        let (mut of_records, mut of_pages) = (share.records, share.pages);
        let mut bytes = share.bytes(ALL);
        (1..=steps)
            .map(|step| {
                of_records += hits[0];
                of_pages += hits[1];
                let records = Side { worth: of_records, bytes: ALL - bytes };
                let pages = Side { worth: of_pages, bytes };
                let now = INTERVAL * u32::try_from(start + step).unwrap();
                bytes = share.of_pages(ALL, records, pages, now);
                bytes
            })
            .collect()
    }

    #[test]
    fn memory_goes_to_what_is_asked_for() {
        let share = &mut Share::default();
        let quarter = ALL / 4;
        assert_eq!(shares(share, 0, [5000, 0], 3), [ALL / PROBE_SHARE; 3], "lookups only");
        let scans = shares(share, 3, [0, 500], 4);
        assert_eq!(scans, [quarter, 2 * quarter, 3 * quarter, 3 * quarter], "scans only");
        let quiet = shares(share, 7, [10, 0], 5);
        assert_eq!(quiet, [3 * quarter; 5], "nothing is concluded from next to nothing");
        let lookups = shares(share, 12, [5000, 10], 4);
        let probe = ALL / PROBE_SHARE;
        assert_eq!(lookups, [2 * quarter, quarter, probe, probe], "lookups again");
    }

    #[test]
    fn nothing_moves_between_equals_or_too_early() {
        let share = &mut Share::default();
        shares(share, 0, [0, 500], 2);
        let half = ALL / 2;
        assert_eq!(
            shares(share, 2, [1000, 1500], 5),
            [half; 5],
            "neither is worth twice the other"
        );
        let far = Side { worth: 1 << 40, bytes: half };
        let now = INTERVAL * 7 + INTERVAL / 2;
        assert_eq!(share.of_pages(ALL, far, far, now), half, "half an interval tells nothing");
    }

    #[test]
    fn pages_get_no_more_than_they_fill() {
        let share = &mut Share::default();
        let records = Side { worth: 0, bytes: ALL };
        let mut pages = Side { worth: 0, bytes: 1 << 20 };
        for step in 1..10 {
            pages.worth += 1000;
            let given = share.of_pages(ALL, records, pages, INTERVAL * step);
            assert_eq!(given, ALL / PROBE_SHARE, "a megabyte is all that they need");
        }
    }
}
