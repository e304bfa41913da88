//! The checkpoint distance that sets itself (the controller of the paper's outlook).
//!
//! Another batch that gathers before a checkpoint saves writes, and takes memory from the page
//! cache. Both are known at the margin, without a model of what users do:
//!
//! ```text
//!   saved by twice the distance =
//!       batches that came x pages of a leaf x SAVED x WORTH
//!       (section 3.4: each doubling saves about one level, whatever the distance is),
//!       and at most SAVED_OF_WRITTEN of the pages that are written for them
//!   lost by twice the distance =
//!       misses that a byte more would have spared pages (spinney_cache) or records
//!       (spinney_records), the larger of the two, x bytes of what gathers
//!     - lookups that what gathers has answered x share of misses x HELD
//!       (of what kept records do not answer)
//! ```
//!
//! Where the same keys are overwritten repeatedly, most edits vanish in memory, and less is written
//! for a batch than the batch itself: no level is left to be saved.
//!
//! Both are sums over some seconds of what each quarter of a second came to. What gathers falls to
//! nothing with each checkpoint, and so does what it has answered; what gathered for a load is no
//! loss to the reads that come after it. Records are worth something once some were evicted for
//! others: before, all are equally cold. What gathers is not lost for reads: it holds recent
//! writes, record by record, which are often read soon.
//!
//! Where more is saved than lost, chi doubles. Where less is saved, chi falls to half of the
//! batches that gather; if more have gathered already, the next step writes them. The first sum
//! does not depend on chi and the second grows with it, so chi settles where they meet. A keyspace
//! that is only loaded has no misses to regret and takes all that memory allows. When reads begin
//! that lose much by that, chi starts at [`CHI_READ`]. A keyspace that is only read gives back
//! everything.
//!
//! **Invariant**: chi lies between 1 and what memory and log allow (`Core::chi_max`), whatever is
//! measured.

use std::time::Duration;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

use crate::policy::{
    self, AMPLIFICATION_ASSUMED, CHI_PERIOD, CHI_READ, CHI_STEPS_APART, WRITTEN_BATCHES, part,
};

/// The checkpoint distance, and what was known at the last decision. Thread-safe.
#[derive(Debug)]
pub(crate) struct Auto {
    chi: AtomicU64,
    known: Mutex<Known>,
}

/// State of the last decision.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    seen: Seen,
    recent: Recent,
    amplification: Amplification,
    /// Most batches that gathered recently.
    gathered: u64,
    /// Whether reads come that need the memory.
    is_read: bool,
    /// When chi was raised or lowered last.
    changed: Duration,
}

/// Counts since the start, and what there is now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    pub(crate) batches: u64,
    pub(crate) written_pages: u64,
    /// Misses that `regret_bytes` more of cached pages would have spared.
    pub(crate) regretted: u64,
    pub(crate) regret_bytes: u64,
    /// Lookups that the coldest of the kept records answered, bytes of all of these, and whether it
    /// is known which ones are cold: none is before some were evicted.
    pub(crate) worth: u64,
    pub(crate) worth_bytes: u64,
    pub(crate) is_settled: bool,
    /// Lookups that were answered by what gathers; pages of values that other lookups needed, which
    /// kept records did not answer; and those of them that were not cached.
    pub(crate) answered: u64,
    pub(crate) looked: u64,
    pub(crate) missed: u64,
    /// Memory of what gathers.
    pub(crate) gathered_bytes: u64,
}

/// What a decision starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) seen: Seen,
    /// Pages of one batch.
    pub(crate) batch_pages: u64,
    /// Batches that gather now.
    pub(crate) gathered: u64,
    /// Largest distance that memory and log allow.
    pub(crate) chi_max: u64,
}

impl Seen {
    /// What a period came to that began at `before`, with batches of `batch_pages` pages.
    fn since(&self, before: &Seen, batch_pages: u64) -> Recent {
        let (missed, looked) = (self.missed - before.missed, self.looked - before.looked);
        // The cache of records may be a new one.
        let worth = if self.is_settled { self.worth.saturating_sub(before.worth) } else { 0 };
        let regretted = self.regretted - before.regretted;
        Recent {
            batch_pages: (self.batches - before.batches) * batch_pages,
            by_pages: part(regretted, self.gathered_bytes, self.regret_bytes).min(missed),
            by_records: part(worth, self.gathered_bytes, self.worth_bytes).min(missed),
            held: part(self.answered - before.answered, missed, looked),
        }
    }
}

/// What has happened recently: sums, of which a part is forgotten with each period.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Pages of batches that were applied.
    batch_pages: u64,
    /// Misses that as much memory again as has gathered would have spared, if pages had it, or
    /// records.
    by_pages: u64,
    by_records: u64,
    /// Lookups that what gathers has answered and that would have missed otherwise.
    held: u64,
}

impl Recent {
    /// Adds what a period came to.
    fn add(&mut self, period: &Recent) {
        let add = |sum: &mut u64, more: u64| *sum = policy::remembered(*sum, more);
        add(&mut self.batch_pages, period.batch_pages);
        add(&mut self.by_pages, period.by_pages);
        add(&mut self.by_records, period.by_records);
        add(&mut self.held, period.held);
    }
}

/// Pages written for each page of a batch: an average over the last [`WRITTEN_BATCHES`]. Before any
/// was written it is assumed that half of a batch can be saved.
#[derive(Clone, Copy, Debug)]
struct Amplification(f64);

impl Default for Amplification {
    fn default() -> Self {
        Amplification(AMPLIFICATION_ASSUMED)
    }
}

impl Amplification {
    /// Adds that `written` pages were written while `batches` batches of `batch_pages` pages came.
    #[expect(clippy::cast_precision_loss, reason = "an average")]
    fn follow(&mut self, written: u64, batches: u64, batch_pages: u64) {
        let forgotten = self.0 * batches.min(WRITTEN_BATCHES) as f64;
        self.0 += (written as f64 / batch_pages.max(1) as f64 - forgotten) / WRITTEN_BATCHES as f64;
    }

    /// Pages that twice the distance would save, of `batch_pages` pages of batches.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for a comparison of what is not negative"
    )]
    fn saved(self, batch_pages: u64) -> u64 {
        (batch_pages as f64 * policy::saved_percent(self.0) / 100.0) as u64
    }
}

impl Default for Auto {
    fn default() -> Self {
        // As much as memory allows, until something is known.
        Auto { chi: AtomicU64::new(u64::MAX), known: Mutex::default() }
    }
}

impl Auto {
    /// The checkpoint distance, if memory allows `most`.
    pub(crate) fn chi(&self, most: u64) -> u64 {
        self.chi.load(Relaxed).clamp(1, most)
    }

    /// Decides on the distance, if it is time. `look` tells what there is.
    pub(crate) fn follow(&self, now: Duration, look: impl FnOnce() -> Look) {
        let mut known = self.known.lock();
        let passed = now.saturating_sub(known.seen.at);
        if passed < CHI_PERIOD {
            return;
        }
        let Look { seen, batch_pages, gathered, chi_max } = look();
        let before = std::mem::replace(&mut known.seen, seen);
        let written = seen.written_pages.saturating_sub(before.written_pages);
        let batches = seen.batches - before.batches;
        known.amplification.follow(written, batches, batch_pages);
        known.recent.add(&seen.since(&before, batch_pages));
        known.gathered = policy::lessened(known.gathered).max(gathered);
        let chi = think_over(self.chi(chi_max), chi_max, &mut known, now);
        self.chi.store(chi, Relaxed);
    }
}

/// Returns the next distance.
fn think_over(chi: u64, most: u64, known: &mut Known, now: Duration) -> u64 {
    let recent = &known.recent;
    let saved = policy::worth_of_written(known.amplification.saved(recent.batch_pages));
    let spared = recent.by_pages.max(recent.by_records);
    let lost = spared.saturating_sub(policy::held_more(recent.held));
    let (raises, lowers) = (policy::is_more(saved, lost), policy::is_more(lost / 2, saved));
    let was_read = known.is_read;
    known.is_read = if was_read { policy::is_still_read(lost, saved) } else { lowers };
    if known.is_read && !was_read {
        known.changed = now;
        return chi.min(CHI_READ);
    }
    let is_early = now.saturating_sub(known.changed) < CHI_STEPS_APART;
    if (raises && lost > 0 || lowers && saved > 0) && is_early {
        return chi;
    }
    if raises {
        known.changed = now;
        (chi * 2).min(most)
    } else if lowers {
        // Half of what gathers gives half of it back.
        known.changed = now;
        (chi.min(known.gathered) / 2).max(1)
    } else {
        chi
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Where chi settles when each batch that gathers takes `batch_bytes` of memory and answers as
    /// many lookups, of which a tenth would miss otherwise.
    fn settled_with(batches: u64, regretted: u64, batch_bytes: u64, answered: u64) -> u64 {
        let mut chi: u64 = 16;
        let mut known = Known::default();
        for round in 1..=20 {
            known.recent = Recent {
                batch_pages: batches.saturating_mul(512),
                by_pages: part(regretted, chi.saturating_mul(batch_bytes), 16 * MIB),
                held: part(answered.saturating_mul(chi), 100, 1000),
                ..Recent::default()
            };
            chi = think_over(chi, 100, &mut known, CHI_STEPS_APART * round);
        }
        chi
    }

    fn settled(batches: u64, regretted: u64, batch_bytes: u64) -> u64 {
        settled_with(batches, regretted, batch_bytes, 0)
    }

    #[test]
    fn what_is_long_past_does_not_count() {
        let mut recent = Recent::default();
        let busy = Recent { batch_pages: 1000, by_pages: 10, by_records: 10, held: 10 };
        (0..100).for_each(|_| recent.add(&busy));
        let Recent { batch_pages, by_pages, by_records, held } = recent;
        assert!(7000 < batch_pages && batch_pages < 8100, "{batch_pages}");
        assert!([by_pages, by_records, held].iter().all(|sum| (60..=80).contains(sum)));
        (0..100).for_each(|_| recent.add(&Recent::default()));
        let Recent { batch_pages, by_pages, by_records, held } = recent;
        assert_eq!([batch_pages, by_pages, by_records, held], [0; 4]);
    }

    /// After a load, 160 MiB of which have gathered, lookups miss what it has driven out.
    #[test]
    fn what_gathered_before_is_no_loss_to_reads_that_come_after() {
        let mut recent = Recent::default();
        let load =
            Seen { batches: 1000, gathered_bytes: 160 * MIB, regret_bytes: MIB, ..Seen::default() };
        recent.add(&load.since(&Seen::default(), 512));
        let kept = Seen { worth: 1000, worth_bytes: MIB, ..load };
        let read = Seen { regretted: 1000, missed: 2000, looked: 2000, gathered_bytes: 0, ..kept };
        recent.add(&read.since(&load, 512));
        assert_eq!((recent.by_pages, recent.by_records), (0, 0));
        // While something gathers, it is; records only once it is known which ones are cold.
        let more = Seen {
            regretted: 1100,
            worth: 1200,
            missed: 2500,
            looked: 2500,
            gathered_bytes: 2 * MIB,
            ..read
        };
        recent.add(&more.since(&read, 512));
        assert_eq!((recent.by_pages, recent.by_records), (200, 0));
        let settled = Seen { worth: 1250, is_settled: true, missed: 3000, looked: 3000, ..more };
        assert_eq!(settled.since(&more, 512).by_records, 100);
        // Half of the lookups that went on missed; a new record cache counts from zero.
        let answered = Seen { worth: 7, answered: 60, looked: 3040, missed: 3020, ..settled };
        let period = answered.since(&settled, 512);
        assert_eq!((period.by_records, period.held), (0, 30));
        // More than all that missed cannot be spared.
        let few = Seen { regretted: 1200, worth: 9999, missed: 3030, ..answered };
        let period = few.since(&answered, 512);
        assert_eq!((period.by_pages, period.by_records), (10, 10));
    }

    #[test]
    fn it_follows_what_writes_save_and_reads_lose() {
        assert_eq!(settled(10, 0, 2 * MIB), 100, "nobody reads");
        assert_eq!(settled(0, 10, 2 * MIB), 1, "nobody writes");
        let much_read = settled(2, 320, 2 * MIB);
        let much_written = settled(8, 320, 2 * MIB);
        assert!(1 < much_read && much_read < much_written && much_written < 100);
        // What gathers answers lookups itself.
        assert!(settled_with(2, 320, 2 * MIB, 700) > much_read);
        assert_eq!(settled_with(2, 320, 2 * MIB, 4000), 100);
        // Neither, as when nothing is done: as it was.
        assert_eq!(settled(0, 0, 2 * MIB), 16);
        // Whatever is counted, it is a distance.
        assert!((1..=100).contains(&settled(u64::MAX, u64::MAX, u64::MAX / 1000)));
    }

    /// A batch came, and this many misses would have been spared.
    fn known(by_records: u64, by_pages: u64) -> Known {
        let recent = Recent { batch_pages: 512, by_pages, by_records, ..Recent::default() };
        Known { recent, gathered: 100, is_read: true, ..Known::default() }
    }

    #[test]
    fn records_count_where_they_are_worth_more_than_pages() {
        let at =
            |worth, regretted| think_over(8, 100, &mut known(worth, regretted), CHI_STEPS_APART);
        assert_eq!([at(10, 10), at(1000, 10), at(10, 1000), at(1000, 1000)], [16, 4, 4, 4]);
    }

    /// Reads that come after a load do not begin with its distance, and chi never falls below what
    /// gathers.
    #[test]
    fn it_begins_anew_when_reads_come_and_is_lowered_step_by_step() {
        let mut known = Known { recent: known(0, 0).recent, gathered: 60, ..Known::default() };
        let mut at = |chi, millis, by_pages| {
            known.recent.by_pages = by_pages;
            think_over(chi, 300, &mut known, Duration::from_millis(millis))
        };
        assert_eq!(
            [at(300, 10_000, 0), at(300, 10_250, 100), at(300, 10_375, 500)],
            [300; 3],
            "more is saved than lost, or not much less"
        );
        assert_eq!(at(300, 10_500, 2000), CHI_READ);
        assert_eq!(at(CHI_READ, 10_750, 2000), CHI_READ, "what it costs is not seen yet");
        assert_eq!(at(CHI_READ, 12_500, 2000), CHI_READ / 2);
        assert_eq!(at(200, 12_750, 2000), 200);
        assert_eq!(at(200, 14_500, 2000), 30, "half of the 60 that gather");
    }

    #[test]
    fn it_is_raised_step_by_step_where_something_is_lost() {
        let raised = |mut known: Known| {
            let mut chi = 1;
            for quarter in 8..24 {
                chi = think_over(chi, 100, &mut known, CHI_PERIOD * quarter);
            }
            chi
        };
        assert_eq!(raised(known(0, 1)), 4, "twice in four seconds");
        assert_eq!(raised(known(0, 0)), 100, "nobody reads");
    }

    #[test]
    fn what_vanishes_in_memory_is_not_saved_again() {
        let mut amplification = Amplification::default();
        assert_eq!(amplification.saved(1000), 500, "before anything is known");
        // Two pages are written for each of a batch, by a checkpoint after 100 of them.
        for batch in 1..=2000 {
            amplification.follow(if batch % 100 == 0 { 100 * 1024 } else { 0 }, 1, 512);
        }
        assert!((250..=500).contains(&amplification.saved(1000)), "{amplification:?}");
        // A fourth of each batch, as it comes.
        (0..2000).for_each(|_| amplification.follow(128, 1, 512));
        assert!((61..=63).contains(&amplification.saved(1000)), "{amplification:?}");
        // Nothing is written: as it was.
        (0..2000).for_each(|_| amplification.follow(0, 0, 512));
        assert!((61..=63).contains(&amplification.saved(1000)), "{amplification:?}");
    }
}
