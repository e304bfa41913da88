//! Polling for reads instead of sleeping.
//!
//! A read of an NVMe device takes some 75 us. A thread that sleeps that long lets the processor
//! halt, and an interrupt wakes it. That takes 30 us more where a hypervisor has to bring the
//! processor back, and some time on any machine. A polling thread continues at once. It takes no
//! other thread's time: it yields after each poll, and a thread with use for the processor gets it.
//! It sleeps if the read does not end soon. After a poll in vain, or a read that ended while the
//! thread was away for long, it polls more seldom, until polling pays again ([`Patience`]).
//!
//! No thread polls where a control group limits processor time, because the time of an idle
//! processor is not free there.
#![expect(
    clippy::disallowed_methods,
    reason = "what is timed is the device and the scheduler of a real disk, which no simulation steps"
)]

use std::time::{Duration, Instant};

use rustix::thread::sched_getaffinity;
use spinney_base::shim::thread::yield_now;

/// Longest polling for one wait: longer than a read of a fast device, and shorter than one of any
/// other.
const WINDOW: Duration = Duration::from_micros(250);

/// A yield that took this long gave the processor to another process's work, which has it for
/// milliseconds each time. A sleeping thread would preempt that work when it wakes.
const LATE: Duration = Duration::from_millis(1);

/// Most batches without polling after polls in vain.
const PAUSE_MAX: u32 = 63;

/// Returns whether unused processor time of this process is free: no control group gives it less
/// than the processors that it may run on.
pub(super) fn is_free() -> bool {
    let Ok(given) = std::thread::available_parallelism() else { return false };
    sched_getaffinity(None).is_ok_and(|processors| processors.count() as usize <= given.get())
}

/// Result of polling for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The read has ended.
    Came,
    /// The read has ended, perhaps long ago: others had the processor.
    CameLate,
    /// The read has not ended.
    InVain,
}

/// Polls whether it `has_come` while the window is open.
pub(super) fn until(mut has_come: impl FnMut() -> bool) -> Ended {
    let begun = Instant::now();
    let mut elapsed = Duration::ZERO;
    while !has_come() {
        if elapsed > WINDOW {
            return Ended::InVain;
        }
        yield_now();
        elapsed = begun.elapsed();
    }
    if elapsed > LATE { Ended::CameLate } else { Ended::Came }
}

/// How often a thread polls: each time while it pays, and ever more seldom while it does not.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Batches that are not polled for after the next one in vain would be `2 * pause + 1`.
    pause: u32,
    /// Number of those batches that are still to come.
    left: u32,
}

impl Patience {
    /// Returns whether to poll for the next batch.
    pub(super) fn polls(&mut self) -> bool {
        let polls = self.left == 0;
        self.left = self.left.saturating_sub(1);
        polls
    }

    /// Notes the result of polling for a batch.
    pub(super) fn ended(&mut self, in_vain: bool) {
        self.pause = if in_vain { (2 * self.pause + 1).min(PAUSE_MAX) } else { self.pause / 2 };
        self.left = if in_vain { self.pause } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns for how many of `batches` batches a thread polls if every one is in vain, or none.
    fn polled(patience: &mut Patience, batches: usize, in_vain: bool) -> usize {
        (0..batches)
            .filter(|_| {
                let polls = patience.polls();
                if polls {
                    patience.ended(in_vain);
                }
                polls
            })
            .count()
    }

    #[test]
    fn polling_in_vain_becomes_rare_and_comes_back() {
        let mut patience = Patience::default();
        assert_eq!(polled(&mut patience, 100, false), 100);
        // After the first two with pauses of 1, 3, 7, 15, 31 and 63 batches, and of 63 from then
        // on.
        assert_eq!(polled(&mut patience, 1 + 1 + 1 + 3 + 1 + 7 + 1 + 15 + 1 + 31 + 1, true), 6);
        assert_eq!(polled(&mut patience, 6400, true), 100);
        // It pays again: at the latest after a pause, and each time from then on.
        assert!(polled(&mut patience, 164, false) >= 101);
        assert_eq!(polled(&mut patience, 100, false), 100);
        // Once in vain among many that were not costs one batch.
        assert_eq!(polled(&mut patience, 1, true), 1);
        assert_eq!(polled(&mut patience, 101, false), 100);
    }

    #[test]
    fn what_has_come_or_comes_is_seen_and_what_does_not_ends() {
        assert_eq!(until(|| true), Ended::Came);
        assert_eq!(until(|| false), Ended::InVain);
        let mut looks = 0;
        let seen = until(|| {
            looks += 1;
            looks == 2
        });
        assert_ne!(seen, Ended::InVain, "one yield, whatever it took, and a look after it");
        // As if the yield had taken so long.
        let mut looks = 0;
        let late = until(|| {
            std::thread::sleep(if looks == 0 { 2 * LATE } else { Duration::ZERO });
            looks += 1;
            looks == 2
        });
        assert_eq!(late, Ended::CameLate);
    }
}
