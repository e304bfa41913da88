//! The crew: how many threads flush, merge and build leaves at once, and so how much memory is kept
//! free for what they have under way.
//!
//! Each of them has a leaf and what is pending for it in memory, and what it makes of both. While
//! batches come faster than one thread flushes them to leaves, all are needed; while few come,
//! reads use the memory of the others better. So there are as many threads as sealed memtables
//! wait. They go one by one when they are not needed for [`CREW_LASTS`], because memory that goes
//! to the caches and is asked back with the next batch is worth nothing to either.
//!
//! Pure: the arguments decide.

use std::time::Duration;

use crate::policy::{CREW_LASTS, CREW_MAX};

/// See the module. No thread, at first.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    threads: usize,
    /// When this many were needed last, or one went.
    needed: Duration,
}

impl Crew {
    /// Returns how many there are, if `needed` are needed now.
    pub(crate) fn follow(&mut self, needed: usize, now: Duration) -> usize {
        let needed = needed.min(CREW_MAX);
        if needed >= self.threads {
            *self = Crew { threads: needed, needed: now };
        } else if now.saturating_sub(self.needed) >= CREW_LASTS {
            *self = Crew { threads: self.threads - 1, needed: now };
        }
        self.threads
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn they_come_at_once_and_go_one_by_one() {
        let mut crew = Crew::default();
        let mut at = |needed, millis| crew.follow(needed, Duration::from_millis(millis));
        assert_eq!(at(0, 100_000), 0);
        assert_eq!(at(3, 100_000), 3);
        assert_eq!(at(9, 100_100), CREW_MAX, "no more than these, however far behind it is");
        assert_eq!(at(1, 102_000), 4, "they were needed a moment ago");
        assert_eq!(at(1, 102_100), 3);
        assert_eq!(at(1, 104_000), 3);
        assert_eq!(at(3, 104_050), 3);
        assert_eq!(at(0, 106_040), 3, "needed again meanwhile");
        let idle: Vec<usize> = (0..5).map(|step| at(0, 106_050 + 2000 * step)).collect();
        assert_eq!(idle, [2, 1, 0, 0, 0]);
    }
}
