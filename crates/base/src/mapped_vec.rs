//! Vectors of plain values that are memory mappings once they are long.
//!
//! Long vectors that come and go, from many threads and in no order, leave a general allocator with
//! holes that it keeps. A mapping goes back to the system whole.
//!
//! **Invariants**
//! 1. The first `length` values were written.
//! 2. A mapping lends the bytes of `capacity` values.
#![expect(unsafe_code, reason = "bytes of a mapping are values of any plain type")]

use std::marker::PhantomData;
use std::ops::Deref;

use crate::mapping::Mapping;

/// Length in bytes from which on a vector is a mapping. A mapping takes whole pages.
pub const MAPPED_BYTES_MIN: usize = 64 << 10;

/// A vector that the allocator keeps while it is short, and that is a mapping of its own when it is
/// long. Capacity beyond the length of a mapping costs no memory.
///
/// ```
/// use spinney_base::mapped_vec::MappedVec;
///
/// let mut squares = MappedVec::with_capacity(1000);
/// (0..1000u64).for_each(|number| squares.push(number * number));
/// assert_eq!(squares[999], 998_001);
/// ```
#[derive(Debug)]
pub struct MappedVec<T>(Memory<T>);

#[derive(Debug)]
enum Memory<T> {
    Allocated(Vec<T>),
    /// With room for `capacity` values.
    Mapped {
        map: Mapping,
        length: usize,
        capacity: usize,
        values: PhantomData<T>,
    },
}

impl<T: Copy> MappedVec<T> {
    /// Makes an empty vector with capacity for `capacity` values.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096, "pages are aligned for it") };
        let bytes = capacity.checked_mul(size_of::<T>()).expect("it is shorter than memory");
        MappedVec(if bytes < MAPPED_BYTES_MIN {
            Memory::Allocated(Vec::with_capacity(capacity))
        } else {
            let mut map = Mapping::reused(bytes);
            // All of the mapping is lent from here on: its pointers may go as far.
            let bytes = map.capacity();
            map.set_length(bytes);
            let capacity = bytes / size_of::<T>();
            Memory::Mapped { map, length: 0, capacity, values: PhantomData }
        })
    }

    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T) {
        match &mut self.0 {
            Memory::Allocated(values) if values.len() < values.capacity() => values.push(value),
            Memory::Mapped { map, length, capacity, .. } if *length < *capacity => {
                let end = map.as_mut_ptr().cast::<T>().wrapping_add(*length);
                // SAFETY: the mapping is private, writable, aligned to a page, and lends the bytes of more
                // than `length` values.
                unsafe { end.write(value) };
                *length += 1;
            }
            _ => {
                self.grow(1);
                self.push(value);
            }
        }
    }

    /// Appends all values of `more`.
    pub fn extend_from_slice(&mut self, more: &[T]) {
        if self.capacity() - self.len() < more.len() {
            self.grow(more.len());
        }
        match &mut self.0 {
            Memory::Allocated(values) => values.extend_from_slice(more),
            Memory::Mapped { map, length, .. } => {
                let end = map.as_mut_ptr().cast::<T>().wrapping_add(*length);
                // SAFETY: as above, for so many values; nobody else has the mapping, so they are not in it.
                unsafe { end.copy_from_nonoverlapping(more.as_ptr(), more.len()) };
                *length += more.len();
            }
        }
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        let capacity = (self.len() + more).max(2 * self.len()).max(16);
        let mut larger = MappedVec::with_capacity(capacity);
        larger.extend_from_slice(self);
        *self = larger;
    }

    /// Gives unused capacity back, unless it is small.
    pub fn shrink_to_fit(&mut self) {
        if let Memory::Allocated(values) = &mut self.0 {
            return values.shrink_to_fit();
        }
        let is_short = self.len() * size_of::<T>() < MAPPED_BYTES_MIN;
        if is_short || self.capacity() > self.len() / 4 * 5 {
            let mut fitting = MappedVec::with_capacity(self.len());
            fitting.extend_from_slice(self);
            *self = fitting;
        }
    }

    /// Returns the number of values that fit without growing.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Memory::Allocated(values) => values.capacity(),
            Memory::Mapped { capacity, .. } => *capacity,
        }
    }

    /// Returns the bytes of memory that the vector takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Memory::Allocated(values) => values.capacity() * size_of::<T>(),
            Memory::Mapped { length, .. } => length * size_of::<T>(),
        }
    }
}

impl<T: Copy> Deref for MappedVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Memory::Allocated(values) => values,
            Memory::Mapped { map, length, .. } => {
                // SAFETY: the mapping is aligned to a page, lives as long as `self`, which lends it for
                // reading alone, and its first `length` values were written.
                unsafe { std::slice::from_raw_parts(map.as_ptr().cast::<T>(), *length) }
            }
        }
    }
}

impl<T: Copy> Default for MappedVec<T> {
    fn default() -> Self {
        MappedVec::with_capacity(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_ones_keep_what_is_pushed() {
        for count in [0, 1, 17, 5_000, 20_000] {
            let mut values = MappedVec::default();
            (0..count).for_each(|number: u64| values.push(number));
            values.extend_from_slice(&[7, 8, 9]);
            assert!(values.iter().copied().eq((0..count).chain([7, 8, 9])));
            assert!(values.capacity() >= values.len());
            values.shrink_to_fit();
            assert!(values.iter().copied().eq((0..count).chain([7, 8, 9])));
            let bytes = values.len() * 8;
            assert!((bytes..=bytes / 4 * 5 + 24).contains(&values.memory_bytes()));
        }
    }

    #[test]
    fn room_beyond_the_length_is_given_back_when_it_is_much() {
        let mut values = MappedVec::with_capacity(1 << 20);
        values.extend_from_slice(&[1u64; 10_000]);
        assert_eq!((values.capacity(), values.memory_bytes()), (1 << 20, 80_000));
        values.shrink_to_fit();
        assert!(values.capacity() < 12_500 && values[..] == [1; 10_000]);
        let mut values = MappedVec::with_capacity(1 << 20);
        values.push(1u8);
        values.shrink_to_fit();
        assert_eq!((values.memory_bytes(), &values[..]), (1, &[1][..]));
    }

    #[test]
    fn what_is_written_lies_in_what_the_mapping_lends() {
        for capacity in [MAPPED_BYTES_MIN / 8, 10_001, 100_000] {
            let mut values: MappedVec<u64> = MappedVec::with_capacity(capacity);
            let Memory::Mapped { map, capacity, .. } = &values.0 else { panic!("it is long") };
            let capacity = *capacity;
            assert!(map.len() >= capacity * 8, "{} bytes for {capacity} values", map.len());
            (0..capacity as u64).for_each(|number| values.push(number));
            let Memory::Mapped { map, length, .. } = &values.0 else { panic!("it is longer") };
            assert!(*length == capacity && map.len() >= capacity * 8);
        }
    }
}
