//! When the background tidies: ranges have paid for it, or the keyspace is quiet.
//!
//! [`crate::tidy`] has the reasons and the goals, [`crate::steps`] makes the steps.

use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::policy::{self, QUIET};

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Tidying {
    /// Segments that ranges had looked into when all was tidy.
    tidied: AtomicU64,
    /// Tombstones that ranges had passed when there were none to flush for them.
    passed: AtomicU64,
    /// Tombstones that they will have passed when the price of flushing is computed again.
    passed_next: AtomicU64,
    /// Batches that had been applied when tombstones removed little enough.
    drained: AtomicU64,
    /// Whether more waits in buffers than should, because a full disk had no room for flushes.
    is_crowded: AtomicBool,
    last_write: Mutex<LastWrite>,
}

/// Since when nothing was written.
#[derive(Clone, Copy, Debug, Default)]
struct LastWrite {
    /// Number and bytes of the active memtable, as they were at the last look.
    seen: (u64, u64),
    since: Duration,
}

impl Default for Tidying {
    fn default() -> Self {
        Tidying {
            tidied: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            passed_next: AtomicU64::new(0),
            drained: AtomicU64::new(u64::MAX),
            is_crowded: AtomicBool::new(false),
            last_write: Mutex::default(),
        }
    }
}

impl Tidying {
    /// Whether nothing was written for [`QUIET`]. `active` is the number and the bytes of the
    /// active memtable.
    pub(crate) fn is_quiet(&self, active: (u64, u64), now: Duration) -> bool {
        let mut last = self.last_write.lock();
        if last.seen != active {
            *last = LastWrite { seen: active, since: now };
        }
        now.saturating_sub(last.since) >= QUIET
    }

    /// Has the keyspace count as written to now, so that what is due is tried again later.
    pub(crate) fn put_off(&self, now: Duration) {
        self.last_write.lock().since = now;
    }

    /// Whether a full disk has kept batches in the topmost levels.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded.load(SeqCst)
    }

    /// Sets whether a full disk keeps batches in the topmost levels.
    pub(crate) fn set_crowded(&self, crowded: bool) {
        self.is_crowded.store(crowded, SeqCst);
    }

    /// Whether batches came since tombstones removed little enough: `applied` were by now.
    pub(crate) fn may_drain(&self, applied: u64) -> bool {
        self.drained.load(Relaxed) != applied
    }

    /// Notes that tombstones remove little enough after `applied` batches.
    pub(crate) fn note_drained(&self, applied: u64) {
        self.drained.store(applied, Relaxed);
    }

    /// Whether ranges have passed as many tombstones as it costs to flush these: `all` by now, and
    /// flushing rebuilds `pages`.
    pub(crate) fn wants_fewer_tombstones(&self, all: u64, pages: impl FnOnce() -> u64) -> bool {
        if all < self.passed_next.load(Relaxed) {
            return false;
        }
        let passed = all - self.passed.load(Relaxed);
        let price = policy::price_in_tombstones(pages());
        let next = policy::tombstones_until_next_look(price, passed);
        self.passed_next.store(all + next, Relaxed);
        passed > price
    }

    /// Has the price computed again at once: a step was made, and what was passed has paid for all
    /// of them.
    pub(crate) fn look_again(&self) {
        self.passed_next.store(0, Relaxed);
    }

    /// Notes that there are no tombstones to flush for ranges that passed `all`.
    pub(crate) fn note_passed(&self, all: u64) {
        self.passed.store(all, Relaxed);
    }

    /// Whether ranges, which looked into `looks` segments by now, have paid for rebuilding `pages`.
    pub(crate) fn is_paid(&self, looks: u64, pages: impl FnOnce() -> u64) -> bool {
        policy::tidying_pays(looks - self.tidied.load(Relaxed), pages())
    }

    /// Notes that all is tidy for ranges that looked into `looks` segments.
    pub(crate) fn note_tidied(&self, looks: u64) {
        self.tidied.store(looks, Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_is_quiet_a_second_after_the_last_write() {
        let tidying = Tidying::default();
        let at = |active, millis| tidying.is_quiet(active, Duration::from_millis(millis));
        assert_eq!([at((1, 8), 5000), at((1, 8), 5999), at((1, 8), 6000)], [false, false, true]);
        assert_eq!([at((1, 9), 6001), at((2, 9), 7000), at((2, 9), 8000)], [false, false, true]);
        tidying.put_off(Duration::from_secs(9));
        assert_eq!([at((2, 9), 9999), at((2, 9), 10_000)], [false, true]);
    }

    #[test]
    fn ranges_pay_for_tombstones() {
        let tidying = Tidying::default();
        // Two pages cost 256 tombstones.
        assert!(!tidying.wants_fewer_tombstones(100, || 2));
        assert!(!tidying.wants_fewer_tombstones(246, || panic!("it is too early to look")));
        assert!(tidying.wants_fewer_tombstones(257, || 2));
        tidying.note_passed(257);
        assert!(!tidying.wants_fewer_tombstones(400, || 2));
        tidying.look_again();
        assert!(!tidying.wants_fewer_tombstones(385, || 1));
        assert!(tidying.is_paid(21, || 10) && !tidying.is_paid(20, || 10));
        tidying.note_tidied(21);
        assert!(!tidying.is_paid(41, || 10));
    }
}
