//! Copies of the dirty records that a write-back has taken, in one piece of memory.
//!
//! ```text
//!   bytes   | key | value | key | value | ..          a buffer of the keyspace's pool
//!             ^             ^
//!   taken   (start, lengths, page), (..), ..
//! ```
//!
//! 16 threads may write back at once, each with some hundred KiB. The general allocator would keep
//! that much in the arena of every thread. So the bytes are in buffers like those of pages, which
//! the pool keeps, counts and frees.
//!
//! **Invariant**: a pushed record stays whole and in its place until all are dropped.

use spinney_base::ValueRef;
use spinney_base::limits::PAGE_BYTES;
use spinney_io::{BufferPool, Lent};

use crate::merge::Dirty;

/// Pages of the first buffer: dirty records of a batch seldom take less.
const PAGES_FIRST: usize = 16;

/// Stands for the value's length in a removal.
const REMOVED: u32 = u32::MAX;

/// A dirty record, by its place in the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    start: u32,
    value: u32,
    key: u16,
    /// Which page of its segment it belongs to.
    page: u8,
    /// Whether the value is the pointer to a large one.
    pub(crate) large: bool,
}

impl Taken {
    /// Which page of its segment it belongs to.
    pub(crate) fn page(&self) -> usize {
        usize::from(self.page)
    }
}

/// Copies of records, end to end.
#[derive(Debug)]
pub(crate) struct Bytes<'p> {
    pool: &'p BufferPool,
    buffer: Option<Lent<'p>>,
    length: usize,
}

impl<'p> Bytes<'p> {
    /// No bytes; buffers come from `pool`.
    pub(crate) fn new(pool: &'p BufferPool) -> Self {
        Bytes { pool, buffer: None, length: 0 }
    }

    /// Copies a record that belongs to page `page` of its segment.
    pub(crate) fn push(&mut self, key: &[u8], value: Option<ValueRef<'_>>, page: usize) -> Taken {
        let start = self.length;
        let large = value.is_some_and(|value| value.large);
        let length = |bytes: usize| u32::try_from(bytes).expect("batches are bounded");
        let taken = Taken {
            start: length(start),
            value: value.map_or(REMOVED, |value| length(value.len())),
            key: u16::try_from(key.len()).expect("keys are bounded"),
            page: u8::try_from(page).expect("a segment has at most 16 pages"),
            large,
        };
        let value = value.unwrap_or(ValueRef::EMPTY).bytes;
        let (middle, end) = (start + key.len(), start + key.len() + value.len());
        let bytes = self.room_for(end);
        bytes[start..middle].copy_from_slice(key);
        bytes[middle..end].copy_from_slice(value);
        self.length = end;
        taken
    }

    /// The whole buffer, once it is so long.
    fn room_for(&mut self, end: usize) -> &mut [u8] {
        let pages = self.buffer.as_ref().map_or(0, |buffer| buffer.pages());
        if pages * PAGE_BYTES < end || pages == 0 {
            let more = end.div_ceil(PAGE_BYTES).max(2 * pages).max(PAGES_FIRST);
            let mut larger = self.pool.lend(more);
            if let Some(old) = &self.buffer {
                larger.bytes_mut()[..self.length].copy_from_slice(&old.bytes()[..self.length]);
            }
            self.buffer = Some(larger);
        }
        self.buffer.as_mut().expect("it was made above").bytes_mut()
    }

    fn all(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| buffer.bytes())
    }

    pub(crate) fn key(&self, taken: &Taken) -> &[u8] {
        let start = taken.start as usize;
        &self.all()[start..start + usize::from(taken.key)]
    }

    pub(crate) fn dirty(&self, taken: &Taken) -> Dirty<'_> {
        let start = taken.start as usize + usize::from(taken.key);
        let value = (taken.value != REMOVED).then(|| ValueRef {
            bytes: &self.all()[start..start + taken.value as usize],
            large: taken.large,
        });
        (self.key(taken), value)
    }

    pub(crate) fn sort(&self, taken: &mut [Taken]) {
        taken.sort_unstable_by(|a, b| self.key(a).cmp(self.key(b)));
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also when the buffer grows between two records, and when one is longer than the first
    /// buffer.
    #[test]
    fn what_was_pushed_stays_whole_and_buffers_go_back() {
        let pool = BufferPool::new(1 << 10);
        let mut bytes = Bytes::new(&pool);
        let lengths = [0, 1, 4000, 100_000, 7, 30_000, 0, 65_536];
        let records: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..200_u8)
            .map(|number| {
                let length = lengths[usize::from(number) % lengths.len()];
                (
                    vec![number; usize::from(number) % 9],
                    (number % 5 > 0).then(|| vec![number; length]),
                )
            })
            .collect();
        fn value(value: &Option<Vec<u8>>, large: bool) -> Option<ValueRef<'_>> {
            value.as_ref().map(|bytes| ValueRef { bytes, large })
        }
        let taken: Vec<Taken> = (0_usize..)
            .zip(&records)
            .map(|(number, (key, bytes_of))| {
                bytes.push(key, value(bytes_of, number % 2 == 0), number % 16)
            })
            .collect();
        for (number, (taken, (key, bytes_of))) in taken.iter().zip(&records).enumerate() {
            assert_eq!(bytes.dirty(taken), (&key[..], value(bytes_of, number % 2 == 0)));
            assert_eq!(taken.page(), number % 16);
        }
        assert!(pool.pages_kept() > 0, "smaller buffers went back");
        assert_eq!(size_of::<Taken>(), 12);
    }
}
