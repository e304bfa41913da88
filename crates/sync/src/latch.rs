//! The version latch: a lock for writers and a version for readers (optimistic lock coupling).
//!
//! ```text
//!  63                                   1   0
//! +---------------------------------------+---+
//! | version, one more after each unlock   | L |   L = a writer holds it
//! +---------------------------------------+---+
//! ```
//!
//! A reader takes the version, reads, and validates that the version is still the same; if it is
//! not, what it read is thrown away and it reads again. Readers write nothing, so a hot latch stays
//! in every core's cache.
//!
//! **Invariants**
//! 1. While L is set exactly one thread changes what the latch guards.
//! 2. A version never comes back: unlocking after a change adds one.
//!
//! **Concurrency.** What a reader reads between [`VersionLatch::version`] and
//! [`VersionLatch::validate`] may be half-changed, so it must be memory of
//! [`RacyWords`](crate::RacyWords) or atomics, and nothing may be concluded from it before
//! validation (rule P27). Waiting is bounded back-off: a few spins, then the processor is yielded,
//! for the holder may have been descheduled.

use spinney_base::shim::{
    atomic::{AtomicU64, Ordering, fence},
    spin_hint, thread,
};

const LOCKED: u64 = 1;
const VERSION_STEP: u64 = 2;
const SPINS_BEFORE_YIELD: u32 = 32;

/// The version that a reader saw before it read. See [`VersionLatch::validate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

/// The latch. Thread-safe; not fair; not reentrant.
#[derive(Debug, Default)]
pub struct VersionLatch {
    word: AtomicU64,
}

/// Exclusive lock of a latch; dropping it unlocks.
#[derive(Debug)]
#[must_use = "the latch is held until the guard is dropped"]
pub struct LatchGuard<'a> {
    latch: &'a VersionLatch,
    changed: bool,
}

impl VersionLatch {
    /// Makes an unlocked latch.
    #[must_use]
    pub fn new() -> Self {
        VersionLatch { word: AtomicU64::new(0) }
    }

    /// Returns the version to read under; waits while a writer holds the latch.
    #[inline]
    #[must_use]
    pub fn version(&self) -> Version {
        let word = self.word.load(Ordering::Acquire);
        if word & LOCKED == 0 { Version(word) } else { self.wait_unlocked() }
    }

    /// Returns the version to read under, or `None` while a writer holds the latch.
    #[inline]
    #[must_use]
    pub fn try_version(&self) -> Option<Version> {
        let word = self.word.load(Ordering::Acquire);
        (word & LOCKED == 0).then_some(Version(word))
    }

    /// Returns whether nothing changed since `version` was taken: everything read in between is of
    /// one moment.
    #[inline]
    #[must_use]
    pub fn validate(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == version.0
    }

    /// Returns, for the holder, whether nothing changed between `version` and the lock.
    #[inline]
    #[must_use]
    pub fn locked_since(&self, version: Version) -> bool {
        self.word.load(Ordering::Relaxed) == version.0 | LOCKED
    }

    /// Locks the latch, waiting with bounded back-off.
    #[inline]
    pub fn lock(&self) -> LatchGuard<'_> {
        loop {
            let version = self.version();
            if let Some(guard) = self.try_upgrade(version) {
                return guard;
            }
        }
    }

    /// Locks the latch only if nothing changed since `version` was taken.
    #[inline]
    pub fn try_upgrade(&self, version: Version) -> Option<LatchGuard<'_>> {
        self.word
            .compare_exchange(version.0, version.0 | LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // The data stores that follow must not be seen before the latch is seen locked.
        fence(Ordering::Release);
        Some(LatchGuard { latch: self, changed: true })
    }

    #[cold]
    fn wait_unlocked(&self) -> Version {
        let mut spins = 0;
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word & LOCKED == 0 {
                return Version(word);
            }
            if spins < SPINS_BEFORE_YIELD {
                spins += 1;
                spin_hint();
            } else {
                thread::yield_now();
            }
        }
    }
}

impl LatchGuard<'_> {
    /// Unlocks without a change, so that readers that began before stay valid.
    pub fn release_unchanged(mut self) {
        self.changed = false;
    }
}

impl Drop for LatchGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = self.latch.word.load(Ordering::Relaxed) & !LOCKED;
        let next = if self.changed { word.wrapping_add(VERSION_STEP) } else { word };
        self.latch.word.store(next, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_change() {
        let latch = VersionLatch::new();
        let before = latch.version();
        assert!(latch.validate(before));
        latch.lock().release_unchanged();
        assert!(latch.validate(before));
        drop(latch.lock());
        assert!(!latch.validate(before));
        assert!(latch.try_upgrade(before).is_none());
        let now = latch.version();
        let guard = latch.try_upgrade(now).unwrap();
        assert!(latch.try_version().is_none());
        drop(guard);
        assert_ne!(latch.version(), now);
    }
}
