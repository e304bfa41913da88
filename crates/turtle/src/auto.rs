//! The checkpoint distance that sets itself (the controller of the paper's outlook).
//!
//! Another batch that gathers before a checkpoint saves writes, and takes memory from the page cache. Both are
//! known at the margin, without a model of what users do:
//!
//! ```text
//!   saved by twice the distance    = batches that came x pages of a leaf x SAVED x WORTH    (section 3.4: each
//!                                    doubling saves about one level, whatever the distance is)
//!   lost by twice the distance     = misses that `regret_bytes` more of cache would have been spared
//!                                    x memory of what gathers / regret_bytes         (spinney_cache)
//!                                    - lookups that what gathers has answered x share of misses x HELD
//! ```
//!
//! All of it is averaged over some seconds: what gathers falls to nothing with each checkpoint, and what it has
//! answered with it. What gathers is not lost for reads: it holds what was written of late, record by record, which is often
//! read again. Where more is saved than lost, the distance doubles; where less, it is halved, and what has gathered
//! beyond it is written at once. As the first does not depend on the distance and the second grows with
//! it, there is a place where it stays. A keyspace that is only loaded has no misses to regret
//! and takes all that memory allows; one that is only read gives back everything.
//!
//! **Invariant**: it lies between 1 and what memory allows ([`Limits::chi_max`](crate::pipeline)), whatever is
//! measured.

use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_cache::Kind;

use crate::core::{Core, RECORD_HITS};

/// How often it is thought over.
const PERIOD: Duration = Duration::from_millis(250);

/// Of what was counted before, so much goes with each period: a few batches and checkpoints are always in it, for what
/// gathers and what it answers goes up and down with these.
const FORGOTTEN_PART: u64 = 8;

/// Of the pages of a batch, those that twice the distance saves to be written, in percent: what
/// `tests::amplification` shows from 8 to 128.
const SAVED_PERCENT: u64 = 50;

/// Twice as much that gathers answers so many more lookups, in percent of those that it answers: the older
/// half is asked less often.
const HELD_PERCENT: u64 = 50;

/// A page that is written counts as so many that are read alone. By time it would be a fourth (80,000 a second and
/// 1.2 GB/s on the drives that this is made for); but writing wears drives out.
const WRITE_WORTH: u64 = 1;

/// It is changed only if one is so much more than the other, in percent.
const MARGIN_PERCENT: u64 = 150;

/// The distance, and what was known when it was last thought over.
#[derive(Debug)]
pub(crate) struct Auto {
    chi: AtomicU64,
    last: Mutex<(Seen, Recent)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    at: Duration,
    batches: u64,
    regretted: u64,
    answered: u64,
    looked: u64,
    missed: u64,
}

/// What has happened of late: sums, of which a part is forgotten with each period.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Pages of batches that were applied.
    batch_pages: u64,
    /// Misses that `regret_bytes` more of cache would have been spared.
    regretted: u64,
    regret_bytes: u64,
    /// Lookups that were answered by what gathers; others that kept records or pages of values would answer,
    /// and pages of values that were not cached.
    answered: u64,
    looked: u64,
    missed: u64,
    /// Memory of what gathers.
    gathered_bytes: u64,
}

impl Recent {
    /// Adds what a period came to.
    fn add(&mut self, period: &Recent) {
        let add = |sum: &mut u64, more: u64| {
            *sum = (*sum - sum.div_ceil(FORGOTTEN_PART)).saturating_add(more);
        };
        add(&mut self.batch_pages, period.batch_pages);
        add(&mut self.regretted, period.regretted);
        add(&mut self.regret_bytes, period.regret_bytes);
        add(&mut self.answered, period.answered);
        add(&mut self.looked, period.looked);
        add(&mut self.missed, period.missed);
        add(&mut self.gathered_bytes, period.gathered_bytes);
    }
}

impl Default for Auto {
    fn default() -> Self {
        // As much as memory allows, until something is known.
        Auto { chi: AtomicU64::new(u64::MAX), last: Mutex::default() }
    }
}

impl Auto {
    /// The distance, if memory allows `most`.
    pub(crate) fn chi(&self, most: u64) -> u64 {
        self.chi.load(Relaxed).clamp(1, most)
    }
}

/// `number * a / b`.
fn part(number: u64, a: u64, b: u64) -> u64 {
    let part = u128::from(number) * u128::from(a) / u128::from(b.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The next distance.
fn think_over(chi: u64, most: u64, recent: &Recent) -> u64 {
    let saved = part(recent.batch_pages, SAVED_PERCENT * WRITE_WORTH, 100);
    let spared = part(recent.regretted, recent.gathered_bytes, recent.regret_bytes);
    let held = part(part(recent.answered, recent.missed, recent.looked), HELD_PERCENT, 100);
    let lost = spared.saturating_sub(held);
    let more = |a: u64, b: u64| a.saturating_mul(100) > b.saturating_mul(MARGIN_PERCENT);
    if more(saved, lost) {
        (chi * 2).min(most)
    } else if more(lost / 2, saved) {
        // Half of the distance gives half of it back.
        (chi / 2).max(1)
    } else {
        chi
    }
}

impl Core {
    /// Thinks the distance over, if it is time. For the background.
    pub(crate) fn follow_chi(&self) {
        let now = self.context.runtime.now();
        let (last, recent) = &mut *self.auto.last.lock();
        let passed = now.saturating_sub(last.at);
        if passed < PERIOD {
            return;
        }
        let cache = self.files.cache.stats();
        // Nearly all misses are of values.
        let values = cache.of(Kind::Values);
        let seen = Seen {
            at: now,
            batches: self.counters.applied.load(Relaxed),
            regretted: cache.regretted,
            answered: self.files.disk.in_memory(),
            looked: values.hits + values.misses + self.counters.reads.sum(RECORD_HITS),
            missed: values.misses,
        };
        let before = std::mem::replace(last, seen);
        let limits = self.limits();
        recent.add(&Recent {
            batch_pages: (seen.batches - before.batches) * (limits.batch / PAGE_BYTES as u64),
            regretted: seen.regretted - before.regretted,
            regret_bytes: cache.regret_bytes,
            answered: seen.answered - before.answered,
            looked: seen.looked - before.looked,
            missed: seen.missed - before.missed,
            gathered_bytes: self.view.load().tree.pending().bytes,
        });
        let most = limits.chi_max();
        self.auto.chi.store(think_over(self.auto.chi(most), most, recent), Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Where it stays when each batch that gathers takes `batch_bytes` of memory and answers as many
    /// lookups, of which a tenth would miss otherwise.
    fn settled_with(batches: u64, regretted: u64, batch_bytes: u64, answered: u64) -> u64 {
        let mut chi = 16;
        for _ in 0..20 {
            let recent = Recent {
                batch_pages: batches.saturating_mul(512),
                regretted,
                regret_bytes: 16 * MIB,
                answered: answered.saturating_mul(chi),
                looked: 1000,
                missed: 100,
                gathered_bytes: chi.saturating_mul(batch_bytes),
            };
            chi = think_over(chi, 100, &recent);
        }
        chi
    }

    fn settled(batches: u64, regretted: u64, batch_bytes: u64) -> u64 {
        settled_with(batches, regretted, batch_bytes, 0)
    }

    #[test]
    fn what_is_long_past_does_not_count() {
        let mut recent = Recent::default();
        let busy = Recent { batch_pages: 1000, missed: 10, ..Recent::default() };
        (0..100).for_each(|_| recent.add(&busy));
        let full = u64::from(7000 < recent.batch_pages && recent.batch_pages < 8100);
        assert_eq!((full, recent.missed.clamp(60, 80)), (1, recent.missed));
        (0..100).for_each(|_| recent.add(&Recent::default()));
        assert_eq!((recent.batch_pages, recent.missed), (0, 0));
    }

    #[test]
    fn it_follows_what_writes_save_and_reads_lose() {
        assert_eq!(settled(10, 0, 2 * MIB), 100, "nobody reads");
        assert_eq!(settled(0, 10, 2 * MIB), 1, "nobody writes");
        let much_read = settled(2, 320, 2 * MIB);
        let much_written = settled(8, 320, 2 * MIB);
        assert!(1 < much_read && much_read < much_written && much_written < 100);
        // What gathers answers lookups itself.
        assert!(settled_with(2, 320, 2 * MIB, 400) > much_read);
        assert_eq!(settled_with(2, 320, 2 * MIB, 4000), 100);
        // Neither, as when nothing is done: as it was.
        assert_eq!(settled(0, 0, 2 * MIB), 16);
        // Whatever is counted, it is a distance.
        assert!((1..=100).contains(&settled(u64::MAX, u64::MAX, u64::MAX / 1000)));
    }
}
