//! The state word of a frame: its holder, the number of its pins, what is known of its page, and
//! the version of its content.
//!
//! ```text
//!  63        32 31    28 27     8     7    6   5   4   3   2   1   0
//! +------------+--------+--------+--------+---+---+---+---+---+---+---+
//! | version    | unused | pins   | unused | N | T | L | F | D | W | X |
//! +------------+--------+--------+--------+---+---+---+---+---+---+---+
//!   X  held exclusively: being filled, edited or emptied, or not in use
//!   W  a thread waits for X to go
//!   D  dirty: the page differs from what is on disk
//!   F  fresh: the page was never written at its place
//!   L  being loaded (only with X)
//!   T  thrown out while another thread held it; the holder frees it instead of releasing it
//!   N  new: fresh, and held by the thread that made it (only with X)
//! ```
//!
//! **Invariants**
//! 1. X is set only when nobody has the frame pinned, and no pin is taken while it is.
//! 2. A thread that clears X after it stored to the frame, or empties the frame while X stays, adds
//!    one to the version. A version does not come back while a reader copies a page: there are
//!    2^32.
//! 3. D, F, L, T and N are set for pages of editable files alone, which nobody pins. [`State::hold`]
//!    refuses a dirty frame, so the hand passes it.
//! 4. The bit T stays until its holder frees the frame. It is set and looked for by compare-exchange
//!    of the whole word, so a frame that was thrown out is never released.
//!
//! An optimistic reader loads the word, gives up if X is set, copies, and validates that version
//! and X are what they were; the other bits, and pins that came and went, do not matter.

use spinney_base::shim::atomic::{AtomicU64, Ordering, fence};

const EXCLUSIVE: u64 = 1;
const WAITED: u64 = 2;
const DIRTY: u64 = 1 << 2;
const FRESH: u64 = 1 << 3;
const LOADING: u64 = 1 << 4;
const THROWN_OUT: u64 = 1 << 5;
const NEW: u64 = 1 << 6;
const PIN: u64 = 1 << 8;
const PINS: u64 = ((1 << 20) - 1) << 8;
const VERSION: u64 = 1 << 32;
/// Bits of an empty frame's last page.
const OF_PAGE: u64 = DIRTY | FRESH | LOADING | THROWN_OUT | NEW;

/// A state word, as a thread saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// What is seen of a page that has no frame.
    pub(crate) const NONE: Seen = Seen(0);

    /// Returns whether the frame was held exclusively.
    #[inline]
    #[must_use]
    pub(crate) fn is_exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }

    /// Returns whether the page was dirty.
    #[must_use]
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Returns whether the page was never written at its place.
    #[must_use]
    pub(crate) fn is_fresh(self) -> bool {
        self.0 & FRESH != 0
    }

    /// Returns whether nobody had seen the page but the thread that made it.
    #[must_use]
    pub(crate) fn is_new(self) -> bool {
        self.0 & NEW != 0
    }

    /// Returns whether the page was being loaded.
    #[must_use]
    pub(crate) fn is_loading(self) -> bool {
        self.0 & LOADING != 0
    }

    /// Returns the version, modulo 2^32.
    #[must_use]
    pub(crate) fn version(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns whether both have the same version, and both or neither are held exclusively.
    #[inline]
    fn is_same(self, other: Seen) -> bool {
        (self.0 ^ other.0) & !(PINS | WAITED | OF_PAGE) == 0
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

/// What a thread that releases a frame has to do about others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// A thread waits and must be woken.
    pub(crate) is_waited_for: bool,
    /// The page was dirty before.
    pub(crate) was_dirty: bool,
    /// The word afterwards.
    pub(crate) now: Seen,
}

/// What became of a frame that is thrown out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Out {
    /// The caller holds it.
    Held,
    /// Its holder will free it.
    Later,
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

    /// Takes the frame exclusively, if it is neither held nor pinned nor dirty.
    #[must_use]
    pub(crate) fn hold(self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        if word & (EXCLUSIVE | PINS | DIRTY) != 0 {
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

    /// Takes the frame exclusively, if nothing changed since it was seen.
    #[must_use]
    pub(crate) fn hold_as_seen(self, seen: Seen) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & (EXCLUSIVE | PINS) == 0 && seen.is_same(Seen(word)) {
            match self.0.compare_exchange_weak(
                word,
                word | EXCLUSIVE,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    // The stores that follow must not be seen before the frame is seen held.
                    fence(Ordering::Release);
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Takes an unpinned frame exclusively, dirty or not; or, if another thread holds it, has that
    /// thread free it.
    #[must_use]
    pub(crate) fn throw_out(self) -> Out {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert_eq!(word & PINS, 0, "pages of editable files are not pinned");
            let (next, out) = if word & EXCLUSIVE == 0 {
                (word | EXCLUSIVE, Out::Held)
            } else {
                (word | THROWN_OUT, Out::Later)
            };
            match self.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    fence(Ordering::Release);
                    return out;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Notes that the holder loads a page into the frame.
    pub(crate) fn begin_load(self) {
        self.0.fetch_or(LOADING, Ordering::Release);
    }

    /// Notes that the holder has a page in the frame that was never written.
    pub(crate) fn begin_fresh(self) {
        self.0.fetch_or(DIRTY | FRESH | NEW, Ordering::Release);
    }

    /// Releases an exclusively held frame of an editable file: with another version if the holder
    /// stored to it, and as dirty if it says so.
    ///
    /// # Errors
    /// The frame was thrown out: the holder still holds it, and must free it.
    pub(crate) fn release(self, is_changed: bool, is_dirty: bool) -> Result<Given, ()> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(word & EXCLUSIVE != 0, "held by the giver");
            if word & THROWN_OUT != 0 {
                return Err(());
            }
            let next = (word & !(EXCLUSIVE | WAITED | LOADING | NEW)).wrapping_add(if is_changed {
                VERSION
            } else {
                0
            });
            let next = next | if is_dirty { DIRTY } else { 0 };
            match self.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    return Ok(Given {
                        is_waited_for: word & WAITED != 0,
                        was_dirty: word & DIRTY != 0,
                        now: Seen(next),
                    });
                }
                Err(now) => word = now,
            }
        }
    }

    /// Marks the page clean, if nothing changed since it was seen and nobody holds it. Returns
    /// whether it was dirty, or `None` if it stays what it is.
    pub(crate) fn mark_clean(self, seen: Seen) -> Option<bool> {
        let mut word = self.0.load(Ordering::Relaxed);
        while !seen.is_exclusive() && seen.is_same(Seen(word)) {
            let next = word & !(DIRTY | FRESH);
            match self.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(word & DIRTY != 0),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Notes that the page has been written at its place, if `is_it` says of the word before that
    /// it is still the same page.
    pub(crate) fn mark_written(self, is_it: impl Fn(Seen) -> bool) {
        let mut word = self.0.load(Ordering::Acquire);
        while word & FRESH != 0 && is_it(Seen(word)) {
            match self.0.compare_exchange(word, word & !FRESH, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Makes a frame held that no other thread knows of.
    pub(crate) fn hold_new(self) {
        self.0.store(EXCLUSIVE, Ordering::Release);
    }

    /// Releases an exclusively held frame of a file whose pages are pinned, or any frame to the
    /// list of free ones.
    #[must_use]
    pub(crate) fn give(self, how: Give) -> Given {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & EXCLUSIVE != 0 && word & PINS == 0, "held by the giver");
        let next = (word & !(EXCLUSIVE | WAITED | OF_PAGE)).wrapping_add(VERSION);
        let next = next | if how == Give::Pinned { PIN } else { EXCLUSIVE };
        // Other threads change a held word only to say that they wait, or that it is to be freed.
        let before = self.0.swap(next, Ordering::AcqRel);
        Given {
            is_waited_for: before & WAITED != 0,
            was_dirty: before & DIRTY != 0,
            now: Seen(next),
        }
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
        assert!(state.give(Give::Pinned).is_waited_for);
        assert!(!state.ask_to_be_woken(held));
        let filled = state.see();
        assert!(state.pin().is_ok());
        assert!(state.validate(filled), "pins do not matter");
        assert!(!state.hold(), "pinned");
        state.unpin();
        state.unpin();
        assert!(state.hold() && !state.validate(filled));
        assert!(!state.give(Give::Held).is_waited_for);
        assert!(state.see().is_exclusive() && state.see() != held);
    }

    #[test]
    fn the_word_tells_what_became_of_an_edit() {
        let word = AtomicU64::new(0);
        let state = State(&word);
        state.hold_new();
        state.begin_fresh();
        let fresh = state.release(true, false).unwrap();
        assert!(fresh.was_dirty && fresh.now == state.see());
        assert!(fresh.now.is_dirty() && fresh.now.is_fresh() && !fresh.now.is_exclusive());
        assert!(!state.hold(), "a dirty frame is not evicted");

        assert!(state.hold_as_seen(fresh.now));
        assert!(!state.hold_as_seen(fresh.now) && state.mark_clean(fresh.now).is_none());
        let same = state.release(false, false).unwrap();
        assert_eq!(same.now, fresh.now);
        assert!(state.hold_as_seen(fresh.now));
        let edited = state.release(true, true).unwrap();
        assert!(!state.validate(fresh.now) && !state.hold_as_seen(fresh.now));

        assert_eq!(state.mark_clean(fresh.now), None, "it was edited since");
        state.mark_written(|_| false);
        assert!(state.see().is_fresh());
        state.mark_written(|now| now == edited.now);
        assert!(state.see().is_dirty() && !state.see().is_fresh());
        assert_eq!(state.mark_clean(edited.now), Some(true));
        assert!(state.validate(edited.now), "bits of the page do not matter");

        assert!(state.hold_as_seen(edited.now));
        assert_eq!(state.throw_out(), Out::Later);
        assert_eq!(state.release(true, true), Err(()), "it was thrown out");
        assert!(!state.give(Give::Held).was_dirty);
        assert_eq!(state.throw_out(), Out::Later, "free frames are held");
    }
}
