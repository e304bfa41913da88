//! Division of a keyspace's memory between two caches, of records and of pages, by the worth of the
//! bytes at the margin of either.
//!
//! Every [`INTERVAL`] it compares how many hits each of these bytes had, or would have had. If one
//! side's bytes were worth [`Rules::ratio`] times the other's, some sixteenths of the memory change
//! sides. Otherwise everything stays, because a move costs a copy of the records. The first side
//! begins with all memory but a small probe for the second, which never has more than
//! [`Rules::most`] sixteenths.
//!
//! It is a pure function of its arguments.

use std::time::Duration;

/// Shortest time between two decisions.
const INTERVAL: Duration = Duration::from_millis(500);

/// Hits that a decision needs.
const HITS_MIN: u64 = 64;

/// The unit that changes sides is one part in this many of the memory.
const PARTS: u64 = 16;

/// Without any such part, the second side has one part in this many, to measure what more would be
/// worth.
const PROBE_SHARE: u64 = 128;

/// Hits at a margin are divided by at least this many bytes.
const MARGIN_BYTES_MIN: u64 = 16 << 10;

/// Parameters of the division.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The bytes of one side must be worth this many times those of the other; at least 1.
    pub ratio: f64,
    /// Sixteenths of the memory that change sides at once; at least 1.
    pub step: u64,
    /// Most sixteenths for the second side; at most 15.
    pub most: u64,
}

/// State of one side.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    /// Hits at the margin since the start: on records that would have been evicted next, or ghost
    /// hits.
    pub worth: u64,
    /// Bytes of the margin.
    pub bytes: u64,
}

/// Use of another step for the second side, and for the first, which gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// None: the second side has not filled what it has.
    Idle,
    /// Both can use it.
    Wanted,
    /// The first side does not fill it.
    Spare,
}

/// A division. Not thread-safe.
#[derive(Debug)]
pub struct Share {
    rules: Rules,
    parts: u64,
    since: Duration,
    first: u64,
    second: u64,
}

impl Share {
    /// Makes a division in which the second side has its probe.
    #[must_use]
    pub fn new(rules: Rules) -> Share {
        Share { rules, parts: 0, since: Duration::ZERO, first: 0, second: 0 }
    }

    /// Returns whether it is time for a decision.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= INTERVAL
    }

    /// Decides again, if it is time, by what was counted up to `now`.
    pub fn follow(&mut self, first: Side, second: Side, more: More, now: Duration) {
        if self.is_due(now) {
            self.decide(first, second, more);
            self.since = now;
        }
    }

    /// Returns how many of `all` bytes the second side may have.
    #[must_use]
    pub fn of_second(&self, all: u64) -> u64 {
        of_parts(all, self.parts)
    }

    /// Returns how many it would have with another step, if it may.
    #[must_use]
    pub fn of_second_next(&self, all: u64) -> u64 {
        of_parts(all, self.next())
    }

    fn next(&self) -> u64 {
        (self.parts + self.rules.step).min(self.rules.most)
    }

    fn decide(&mut self, first: Side, second: Side, more: More) {
        let new_first = first.worth.saturating_sub(self.first);
        let new_second = second.worth.saturating_sub(self.second);
        if new_first + new_second < HITS_MIN {
            // Too little is asked for to tell; it adds up.
            return;
        }
        (self.first, self.second) = (first.worth, second.worth);
        let of_first = per_byte(new_first, first.bytes);
        let of_second = per_byte(new_second, second.bytes);
        let grows = match more {
            More::Idle => false,
            More::Wanted => of_second > self.rules.ratio * of_first,
            More::Spare => of_second > 0.0,
        };
        if grows {
            self.parts = self.next();
        } else if of_first > self.rules.ratio * of_second {
            self.parts = self.parts.saturating_sub(self.rules.step);
        }
    }
}

/// Worth of more memory for a keyspace, from the counts at the margins of its caches. Not
/// thread-safe.
#[derive(Debug, Default)]
pub struct Worth {
    seen: Vec<u64>,
    sum: f64,
}

impl Worth {
    /// Follows the caches, which are always the same in the same order. Returns how many hits the
    /// last mebibyte has given since the start: at each look, that of the cache where it gave most.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a sum of what is not negative, for comparisons"
    )]
    pub fn follow(&mut self, caches: &[Side]) -> u64 {
        self.seen.resize(caches.len(), 0);
        let new = caches.iter().zip(&mut self.seen).map(|(cache, seen)| {
            let hits = cache.worth.saturating_sub(std::mem::replace(seen, cache.worth));
            // Where next to nothing is cached a few hits say little.
            per_byte(hits, cache.bytes.max(MARGIN_BYTES_MIN)) * (1 << 20) as f64
        });
        self.sum += new.fold(0.0, f64::max);
        self.sum as u64
    }
}

fn of_parts(all: u64, parts: u64) -> u64 {
    match parts {
        0 => all / PROBE_SHARE,
        parts => all / PARTS * parts,
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
    const PROBE: u64 = ALL / PROBE_SHARE;
    const QUARTER: u64 = ALL / 4;

    fn share() -> Share {
        Share::new(Rules { ratio: 2.0, step: 4, most: 12 })
    }

    /// What the second side gets, step by step, while so many hits come every interval.
    fn shares(share: &mut Share, hits: [u64; 2], more: More, steps: u64) -> Vec<u64> {
        let (mut first, mut second) = (share.first, share.second);
        (1..=steps)
            .map(|_| {
                first += hits[0];
                second += hits[1];
                let bytes = share.of_second(ALL);
                let now = share.since + INTERVAL;
                share.follow(
                    Side { worth: first, bytes: ALL - bytes },
                    Side { worth: second, bytes },
                    more,
                    now,
                );
                share.of_second(ALL)
            })
            .collect()
    }

    #[test]
    fn memory_goes_to_what_is_asked_for() {
        let share = &mut share();
        let wanted = More::Wanted;
        assert_eq!(shares(share, [5000, 0], wanted, 3), [PROBE; 3], "the first only");
        let second = shares(share, [0, 500], wanted, 4);
        assert_eq!(second, [QUARTER, 2 * QUARTER, 3 * QUARTER, 3 * QUARTER], "the second only");
        let quiet = shares(share, [10, 0], wanted, 5);
        assert_eq!(quiet, [3 * QUARTER; 5], "nothing is concluded from next to nothing");
        let first = shares(share, [5000, 10], wanted, 4);
        assert_eq!(first, [2 * QUARTER, QUARTER, PROBE, PROBE], "the first again");
    }

    #[test]
    fn worth_is_of_the_last_mebibyte_where_it_gave_most() {
        let mut worth = Worth::default();
        let side = |worth, bytes| Side { worth, bytes };
        assert_eq!(worth.follow(&[side(100, 2 << 20), side(10, 1 << 20)]), 50);
        assert_eq!(worth.follow(&[side(100, 2 << 20), side(10, 1 << 20)]), 50, "nothing new");
        assert_eq!(worth.follow(&[side(110, 2 << 20), side(40, 1 << 20)]), 80);
        // Another cache counts from nothing.
        assert_eq!(worth.follow(&[side(0, 2 << 20), side(50, 1 << 20)]), 90);
        assert_eq!(worth.follow(&[side(64, 0), side(50, 1 << 20)]), 90 + 64 * 64);
    }

    #[test]
    fn nothing_moves_between_equals_or_too_early() {
        let share = &mut share();
        shares(share, [0, 500], More::Wanted, 2);
        let half = ALL / 2;
        assert_eq!(
            shares(share, [1000, 1500], More::Wanted, 5),
            [half; 5],
            "neither is worth twice the other"
        );
        let far = Side { worth: 1 << 40, bytes: half };
        let none = Side { worth: 0, bytes: half };
        share.follow(none, far, More::Wanted, share.since + INTERVAL / 2);
        assert_eq!(share.of_second(ALL), half, "half an interval tells nothing");
    }

    #[test]
    fn who_does_not_fill_gets_no_more_and_gives_freely() {
        let idle = &mut share();
        assert_eq!(shares(idle, [0, 1000], More::Idle, 9), [PROBE; 9]);
        let spare = &mut share();
        let shares = shares(spare, [1000, 100], More::Spare, 2);
        assert_eq!(shares, [QUARTER, 2 * QUARTER]);
    }
}
