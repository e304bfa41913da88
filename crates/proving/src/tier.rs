//! How much is run, and from which seeds.
//!
//! The quick tier is part of the test command; `SPINNEY_PROVING=full` runs the large counts.
//! `SPINNEY_SEED=n` runs seed `n` alone.

use std::ops::Range;

use spinney_base::runtime::SplitMix;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_io::sim::SimDisk;

/// Whether the full tier was asked for.
#[must_use]
pub fn is_full() -> bool {
    std::env::var("SPINNEY_PROVING").is_ok_and(|tier| tier == "full")
}

/// `quick` or `full`, by the tier.
#[must_use]
pub fn count(quick: u64, full: u64) -> u64 {
    if is_full() { full } else { quick }
}

/// The seeds to run: `0..count`, or the one that `SPINNEY_SEED` names.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    match std::env::var("SPINNEY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

/// Chooses by the seed with which of its two media the tail of a log is kept: mapped, or written.
pub fn choose_medium(disk: &SimDisk, seed: u64) {
    if seed % 2 == 1 {
        disk.refuse_mappings();
    }
}

/// Whether `SPINNEY_SEED` names one seed to run alone, so that counts over all seeds mean nothing.
#[must_use]
pub fn is_replay() -> bool {
    std::env::var("SPINNEY_SEED").is_ok()
}

/// Prints a line of a run's story when `SPINNEY_TRACE` is set.
pub fn trace(line: impl FnOnce() -> String) {
    if std::env::var_os("SPINNEY_TRACE").is_some() {
        eprintln!("{}", line());
    }
}

/// Says which seed failed, when dropped by a panic.
#[derive(Debug)]
pub struct Announce(pub u64);

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {0}: replay it with SPINNEY_SEED={0}", self.0);
        }
    }
}

/// Runs `test` for every seed of [`seeds`], on two threads.
///
/// # Panics
/// When a run panics; its seed is printed.
pub fn for_each_seed(count: u64, test: impl Fn(u64) + Sync) {
    let seeds = seeds(count);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                return;
            }
            let announce = Announce(seed);
            test(seed);
            drop(announce);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Draws with names, over the small generator.
#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    /// A generator of its own for every seed and purpose.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut mix = SplitMix(seed ^ purpose.wrapping_mul(0xA076_1D64_78BD_642F));
        mix.next_u64();
        Random(mix)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    /// A number of `range`, which is not empty.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.end - range.start)
    }

    /// True once in `times` on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
