//! The clock: one counter of begin and commit stamps for a database.
//!
//! ```text
//!   draw():  fetch_add(1) + 1      commit stamps and snapshots: unique
//!   now():   load                  begin stamps: a version with stamp <= begin is visible
//! ```
//!
//! **Invariants**
//! 1. Every stamp of a commit or a snapshot comes from the one counter, by one read-modify-write.
//! 2. So what a transaction did before its draw is visible to each that drew a greater stamp: the
//!    increments form one release sequence. All rules of this crate rest on that.
//!
//! Stamps are not LSNs: a stamp is drawn before the checks, and an LSN cannot be given back.

use spinney_base::shim::atomic::{AtomicU64, Ordering};

/// A moment of a database, counted from 1; 0 is before all of them. At most [`STAMP_MAX`].
pub type Stamp = u64;

/// Greatest stamp: the top bit of a word is left for a mark. At 10^9 draws a second it is reached
/// after 292 years.
pub const STAMP_MAX: Stamp = (1 << 63) - 1;

/// The pi of a transaction that nothing has to follow: above all stamps.
pub const NEVER: Stamp = Stamp::MAX;

/// The counter. Thread-safe.
///
/// ```
/// let clock = spinney_ssn::Clock::above(10);
/// assert_eq!(clock.now(), 10);
/// assert_eq!(clock.draw(), 11);
/// assert_eq!(clock.now(), 11);
/// ```
#[derive(Debug)]
pub struct Clock {
    last: AtomicU64,
}

impl Clock {
    /// Makes a clock whose first draw is `last + 1`: above all stamps that recovery has found.
    #[must_use]
    pub fn above(last: Stamp) -> Self {
        Clock { last: AtomicU64::new(last) }
    }

    /// Returns the stamp that was drawn last.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Stamp {
        self.last.load(Ordering::SeqCst)
    }

    /// Draws the next stamp.
    #[inline]
    #[must_use]
    pub fn draw(&self) -> Stamp {
        self.last.fetch_add(1, Ordering::AcqRel) + 1
    }
}
