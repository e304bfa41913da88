//! The state word of a frame: its holder, the number of its pins, and the version of its
//! content.
//!
//! ```text
//!  63                 32 31        28 27            8 7       2   1   0
//! +---------------------+------------+---------------+---------+---+---+
//! | version             | unused     | pins          | unused  | W | X |
//! +---------------------+------------+---------------+---------+---+---+
//!   X  held exclusively: being filled, being emptied, or not in use     W  a thread waits for X to go
//! ```
//!
//! **Invariants**
//! 1. X is set only when nobody has the frame pinned, and no pin is taken while it is.
//! 2. A thread that clears X, or releases the frame while X stays, adds one to the version. A
//!    version does not come back while a reader copies a page: there are 2^32.
//!
//! An optimistic reader loads the word, gives up if X is set, copies, and validates that version
//! and X are what they were; pins that came and went do not matter.

use spinney_base::shim::atomic::{AtomicU64, Ordering, fence};

const EXCLUSIVE: u64 = 1;
const WAITED: u64 = 2;
const PIN: u64 = 1 << 8;
const PINS: u64 = ((1 << 20) - 1) << 8;
const VERSION: u64 = 1 << 32;

/// A state word, as a thread saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Returns whether the frame was held exclusively.
    #[inline]
    #[must_use]
    pub(crate) fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    /// Returns whether both have the same version, and both or neither are held exclusively.
    #[inline]
    fn is_same(self, other: Seen) -> bool {
        (self.0 ^ other.0) & !(PINS | WAITED) == 0
    }
}

/// How an exclusive holder releases a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Give {
    /// Filled; the holder keeps a pin.
    Pinned,
    /// Emptied; it stays held, by the list of free frames.
    Held,
}

/// The state word in its place. Thread-safe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State<'a>(pub(crate) &'a AtomicU64);

impl State<'_> {
    /// Returns the word now; later reads are not older.
    #[inline]
    #[must_use]
    pub(crate) fn see(self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Returns whether everything read since `seen` belongs to it: the frame was not held
    /// exclusively then, and has not been since.
    #[inline]
    #[must_use]
    pub(crate) fn validate(self, seen: Seen) -> bool {
        fence(Ordering::Acquire);
        !seen.is_exclusive() && seen.is_same(Seen(self.0.load(Ordering::Relaxed)))
    }

    /// Takes a pin.
    ///
    /// # Errors
    /// The word that was seen, when the frame is held exclusively or has the maximum of pins.
    #[inline]
    pub(crate) fn pin(self) -> Result<(), Seen> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & EXCLUSIVE != 0 || word & PINS == PINS {
                return Err(Seen(word));
            }
            match self.0.compare_exchange_weak(
                word,
                word + PIN,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Gives a pin back.
    #[inline]
    pub(crate) fn unpin(self) {
        let before = self.0.fetch_sub(PIN, Ordering::Release);
        debug_assert!(before & PINS != 0, "a pin is given back once");
    }

    /// Takes the frame exclusively, if it is neither held nor pinned.
    #[must_use]
    pub(crate) fn hold(self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        if word & (EXCLUSIVE | PINS) != 0 {
            return false;
        }
        let held = self
            .0
            .compare_exchange(word, word | EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        // The stores that follow must not be seen before the frame is seen held.
        fence(Ordering::Release);
        held
    }

    /// Makes a frame held that no other thread knows of.
    pub(crate) fn hold_new(self) {
        self.0.store(EXCLUSIVE, Ordering::Release);
    }

    /// Releases an exclusively held frame. Returns whether a thread waits and must be woken.
    #[must_use]
    pub(crate) fn give(self, how: Give) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & EXCLUSIVE != 0 && word & PINS == 0, "held by the giver");
        let next = (word & !(EXCLUSIVE | WAITED)).wrapping_add(VERSION);
        let next = next | if how == Give::Pinned { PIN } else { EXCLUSIVE };
        // Other threads change a held word only to say that they wait.
        self.0.swap(next, Ordering::AcqRel) & WAITED != 0
    }

    /// Notes that a thread waits for the holder that `seen` saw. Returns `false` if the holder has
    /// released the frame.
    #[must_use]
    pub(crate) fn ask_to_be_woken(self, seen: Seen) -> bool {
        let mut word = self.0.load(Ordering::Acquire);
        while seen.is_exclusive() && seen.is_same(Seen(word)) {
            if word & WAITED != 0 {
                return true;
            }
            match self.0.compare_exchange(word, word | WAITED, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_word_tells_who_has_the_frame() {
        let word = AtomicU64::new(0);
        let state = State(&word);
        state.hold_new();
        let held = state.see();
        assert!(held.is_exclusive() && state.pin().is_err() && !state.hold());
        assert!(!state.validate(held), "what is held is never valid");
        assert!(state.ask_to_be_woken(held));
        assert!(state.give(Give::Pinned), "somebody waits");
        assert!(!state.ask_to_be_woken(held));
        let filled = state.see();
        assert!(state.pin().is_ok());
        assert!(state.validate(filled), "pins do not matter");
        assert!(!state.hold(), "pinned");
        state.unpin();
        state.unpin();
        assert!(state.hold() && !state.validate(filled));
        assert!(!state.give(Give::Held));
        assert!(state.see().is_exclusive() && state.see() != held);
    }
}
