//! Many atomics in memory straight from the system: the rings and tables of a cache, which come and
//! go as it follows its budget, from many threads, and are too long to be reused for anything else.
//!
//! A general allocator keeps such memory in pieces when it is freed: 20 MiB of the tables of a
//! cache of 340 MiB that met longer records than it had expected.
//!
//! **Invariant**: nobody reaches the bytes but through the atomics (rule P27).
#![cfg_attr(
    not(feature = "shuttle"),
    expect(unsafe_code, reason = "zeroed memory is taken from the system as atomics")
)]

use std::marker::PhantomData;

use spinney_base::shim::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Atomics for which zeroed bytes are the value 0.
pub trait ZeroedAtomic: sealed::Sealed {}

mod sealed {
    pub trait Sealed: Sized {
        /// The value 0, where there are no bytes to be zeroed.
        #[cfg(feature = "shuttle")]
        fn zero() -> Self;
        /// Stores it.
        #[cfg(feature = "shuttle")]
        fn set_zero(&self);
    }
}

macro_rules! zeroed {
    ($($atomic:ty),*) => {$(
        impl sealed::Sealed for $atomic {
            #[cfg(feature = "shuttle")]
            fn zero() -> Self {
                <$atomic>::new(0)
            }
            #[cfg(feature = "shuttle")]
            fn set_zero(&self) {
                self.store(0, spinney_base::shim::atomic::Ordering::Relaxed);
            }
        }
        impl ZeroedAtomic for $atomic {}
    )*};
}

zeroed!(AtomicU8, AtomicU32, AtomicU64);
// Words that are never shuttle's.
#[cfg(feature = "shuttle")]
zeroed!(crate::racy::Word);

/// A slice of atomics, each 0 at first. What was never touched costs no memory.
#[cfg(not(feature = "shuttle"))]
#[derive(Debug)]
pub struct ZeroedAtomics<A> {
    map: spinney_base::mapping::Mapping,
    length: usize,
    atomics: PhantomData<A>,
}

#[cfg(not(feature = "shuttle"))]
impl<A: ZeroedAtomic> ZeroedAtomics<A> {
    /// Makes `length` zeros.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let map = spinney_base::mapping::Mapping::zeroed(length * size_of::<A>());
        ZeroedAtomics { map, length, atomics: PhantomData }
    }

    /// Makes `count` atomics from `first` on 0 again, and gives their memory back. Loads and stores
    /// beside it find either.
    ///
    /// # Panics
    /// When these are not whole pages.
    pub fn give_back(&self, first: usize, count: usize) {
        let atomic = size_of::<A>();
        // SAFETY: nobody reaches the bytes but through atomics.
        unsafe { self.map.give_back(first * atomic, count * atomic) };
    }
}

#[cfg(not(feature = "shuttle"))]
impl<A: ZeroedAtomic> std::ops::Deref for ZeroedAtomics<A> {
    type Target = [A];

    #[inline]
    fn deref(&self) -> &[A] {
        const { assert!(align_of::<A>() <= 4096, "pages are aligned for atomics") };
        let first = self.map.as_ptr().cast::<A>();
        // SAFETY: the mapping is private, writable, zeroed, aligned to a page, at least `length` atomics
        // long, and lives as long as `self`. Every bit pattern is a valid integer (the trait is
        // sealed), and nobody reaches the bytes but through these atomics.
        unsafe { std::slice::from_raw_parts(first, self.length) }
    }
}

/// A slice of atomics, each 0 at first.
#[cfg(feature = "shuttle")]
#[derive(Debug)]
pub struct ZeroedAtomics<A>(Box<[A]>, PhantomData<A>);

#[cfg(feature = "shuttle")]
impl<A: ZeroedAtomic> ZeroedAtomics<A> {
    /// Makes `length` zeros.
    #[must_use]
    pub fn new(length: usize) -> Self {
        ZeroedAtomics((0..length).map(|_| A::zero()).collect(), PhantomData)
    }

    /// Makes `count` atomics from `first` on 0 again.
    pub fn give_back(&self, first: usize, count: usize) {
        self.0[first..first + count].iter().for_each(sealed::Sealed::set_zero);
    }
}

#[cfg(feature = "shuttle")]
impl<A: ZeroedAtomic> std::ops::Deref for ZeroedAtomics<A> {
    type Target = [A];

    fn deref(&self) -> &[A] {
        &self.0
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn all_are_zero_and_keep_what_is_stored() {
        let numbers = ZeroedAtomics::<AtomicU32>::new(5000);
        assert_eq!(numbers.len(), 5000);
        assert!(numbers.iter().all(|number| number.load(Relaxed) == 0));
        numbers[4999].store(7, Relaxed);
        assert_eq!(numbers[4999].load(Relaxed), 7);
        numbers[1023].store(8, Relaxed);
        numbers.give_back(1024, 1024);
        numbers.give_back(4096, 0);
        assert_eq!((numbers[1023].load(Relaxed), numbers[4999].load(Relaxed)), (8, 7));
        numbers[1500].store(9, Relaxed);
        numbers.give_back(1024, 1024);
        assert_eq!((numbers[1023].load(Relaxed), numbers[1500].load(Relaxed)), (8, 0));
        assert!(ZeroedAtomics::<AtomicU8>::new(0).is_empty());
    }
}
