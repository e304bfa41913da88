//! A shared value that is present while it is used and can be removed when it is not.
//!
//! ```text
//!   current ---> value            an entry:  entered + 1, load current,  use it,  left + 1
//!   cells:  [ entered | left ]    taking:    current = none; every cell: left == entered?
//!           [ entered | left ]               yes: nobody is inside, and nobody can come in
//!           ...                              no:  current = value, as before
//! ```
//!
//! A thread that enters holds the value for one operation and never waits here. A thread that
//! removes it does not wait either: it gives up when another is inside. To keep the value for
//! longer, a thread pins it ([`Entry::pin`]); the remover sees that by the count of the [`Arc`].
//!
//! **Invariants**
//! 1. The value is freed only after [`Parkable::take_idle`] has found `left` equal to `entered` in
//!    every cell, reading `left` first, while `current` was none. An entry adds to `entered` before
//!    it loads `current`, and all four accesses are sequentially consistent: so an entry that the
//!    taker did not count finds none.
//! 2. One thread at a time puts or takes; its caller has a lock for that.
//!
//! **Why not an `RwLock` or `arc-swap`.** A thread has cells of its own, as far as they go, so
//! readers share no cache line; and an entry is two additions and a load, where a lease of
//! `arc-swap` looks for a free debt slot.

#![expect(unsafe_code, reason = "the value is reached by a pointer that an Arc gave")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use spinney_base::shim::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

use crate::stripes::mine;

/// Number of cells; with more threads some share one. Eight, because there may be thousands of
/// values.
const CELLS: usize = 8;

/// See the module. Thread-safe.
pub struct Parkable<T> {
    /// The result of `Arc::into_raw`, or null.
    current: AtomicPtr<T>,
    cells: [Cell; CELLS],
    owns: PhantomData<Arc<T>>,
}

#[derive(Default)]
#[repr(align(64))]
struct Cell {
    entered: AtomicU64,
    left: AtomicU64,
}

/// The value, held for one operation.
pub struct Entry<'a, T> {
    value: &'a T,
    cell: &'a Cell,
}

impl<T> Default for Parkable<T> {
    fn default() -> Self {
        Parkable {
            current: AtomicPtr::new(ptr::null_mut()),
            cells: std::array::from_fn(|_| Cell::default()),
            owns: PhantomData,
        }
    }
}

impl<T> Parkable<T> {
    /// Enters the value, if it is present.
    #[inline]
    pub fn enter(&self) -> Option<Entry<'_, T>> {
        let cell = &self.cells[mine() % CELLS];
        cell.entered.fetch_add(1, SeqCst);
        let current = self.current.load(SeqCst);
        // SAFETY: the pointer is null or one of an `Arc` that `self` owns, and by invariant 1 `self`
        // owns it until this entry has left.
        match unsafe { current.as_ref() } {
            Some(value) => Some(Entry { value, cell }),
            None => {
                cell.left.fetch_add(1, SeqCst);
                None
            }
        }
    }

    /// Stores a value where there is none. The caller excludes concurrent calls of `put` and
    /// `take_idle`.
    ///
    /// # Panics
    /// When there is one.
    pub fn put(&self, value: Arc<T>) {
        let before = self.current.swap(Arc::into_raw(value).cast_mut(), SeqCst);
        assert!(before.is_null(), "a value is put where there is none");
    }

    /// Removes the value, unless a thread is inside or `keep` returns true; then nothing changes.
    /// `keep` runs while no thread is inside and none can enter. The caller excludes concurrent
    /// calls of `put` and `take_idle`.
    pub fn take_idle(&self, keep: impl FnOnce(&Arc<T>) -> bool) -> Option<Arc<T>> {
        let current = self.current.swap(ptr::null_mut(), SeqCst);
        if current.is_null() {
            return None;
        }
        let back = PutBack { current: &self.current, value: current };
        if !self.is_idle() {
            return None;
        }
        // SAFETY: the pointer is one that `put` got from `Arc::into_raw`; `self` gives its count to
        // this `Arc`, which below is handed out or turned into the pointer again.
        let value = std::mem::ManuallyDrop::new(unsafe { Arc::from_raw(current.cast_const()) });
        if keep(&value) {
            return None;
        }
        std::mem::forget(back);
        Some(std::mem::ManuallyDrop::into_inner(value))
    }

    /// Returns whether no thread was inside at some moment during the call.
    pub fn is_idle(&self) -> bool {
        self.cells.iter().all(|cell| {
            let left = cell.left.load(SeqCst);
            left == cell.entered.load(SeqCst)
        })
    }

    /// Returns how often a thread has entered, or tried to.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.cells.iter().map(|cell| cell.entered.load(SeqCst)).sum()
    }
}

/// Restores the value, even if a panic unwinds.
struct PutBack<'a, T> {
    current: &'a AtomicPtr<T>,
    value: *mut T,
}

impl<T> Drop for PutBack<'_, T> {
    fn drop(&mut self) {
        self.current.store(self.value, SeqCst);
    }
}

impl<T> Drop for Parkable<T> {
    fn drop(&mut self) {
        let current = self.current.swap(ptr::null_mut(), SeqCst);
        if !current.is_null() {
            // SAFETY: the pointer is one that `put` got from `Arc::into_raw`, and entries borrow
            // `self`, so there are none.
            drop(unsafe { Arc::from_raw(current.cast_const()) });
        }
    }
}

impl<T> Entry<'_, T> {
    /// Keeps the value for longer: it is not removed before the result is dropped, if the remover
    /// checks the count.
    #[must_use]
    pub fn pin(&self) -> Arc<T> {
        let value: *const T = self.value;
        // SAFETY: the pointer came from `Arc::into_raw`, and while this entry lasts the count that
        // `Parkable` owns is there.
        unsafe { Arc::increment_strong_count(value) };
        // SAFETY: the count that was just added is this one's.
        unsafe { Arc::from_raw(value) }
    }
}

impl<T> Deref for Entry<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Drop for Entry<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.cell.left.fetch_add(1, SeqCst);
    }
}

impl<T> fmt::Debug for Parkable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_there = !self.current.load(SeqCst).is_null();
        f.write_str(if is_there { "Parkable(there)" } else { "Parkable(parked)" })
    }
}

impl<T: fmt::Debug> fmt::Debug for Entry<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_only_while_nobody_is_inside() {
        let parkable = Parkable::default();
        assert!(parkable.enter().is_none() && parkable.take_idle(|_| false).is_none());
        parkable.put(Arc::new(7));
        let entry = parkable.enter().unwrap();
        assert!(parkable.take_idle(|_| false).is_none());
        let pin = entry.pin();
        drop(entry);
        assert!(parkable.take_idle(|value| Arc::strong_count(value) > 1).is_none());
        assert_eq!(parkable.enter().as_deref(), Some(&7));
        drop(pin);
        let taken = parkable.take_idle(|value| Arc::strong_count(value) > 1).unwrap();
        assert_eq!((*taken, Arc::strong_count(&taken)), (7, 1));
        assert!(parkable.enter().is_none() && parkable.is_idle());
        parkable.put(taken);
        assert_eq!(parkable.enter().as_deref(), Some(&7));
    }

    #[test]
    fn many_threads_find_it_whole_or_not_at_all() {
        let parkable = Parkable::<Vec<u64>>::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if let Some(entry) = parkable.enter() {
                            assert_eq!(entry[0] + entry[1], 10);
                        }
                    }
                });
            }
            for number in 0..5_000 {
                parkable.put(Arc::new(vec![number % 11, 10 - number % 11]));
                while parkable.take_idle(|_| false).is_none() {
                    std::thread::yield_now();
                }
            }
        });
    }
}
