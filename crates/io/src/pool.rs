//! A bounded pool of aligned buffers, kept by page count, so that transfers do not allocate in the
//! steady state.
//!
//! **Invariants.** (1) The pages kept never exceed the bound that was given last; what does not fit
//! is freed. (2) A buffer handed out is owned by its taker alone.
//!
//! **Concurrency.** Any thread; one short lock around a push or a pop, never held while memory is
//! allocated or freed.

use std::collections::BTreeMap;

use spinney_base::shim::Mutex;

use crate::AlignedBuf;

/// Unused buffers, kept for reuse. Thread-safe.
#[derive(Debug)]
pub struct BufferPool {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    pages_max: usize,
    pages: usize,
    by_pages: BTreeMap<usize, Vec<AlignedBuf>>,
}

impl BufferPool {
    /// Makes a pool that keeps at most `pages_max` pages.
    #[must_use]
    pub fn new(pages_max: usize) -> Self {
        BufferPool { kept: Mutex::new(Kept { pages_max, ..Kept::default() }) }
    }

    /// Returns a buffer of exactly `pages` pages. Its bytes are those of its last user, or zeros.
    #[must_use]
    pub fn take(&self, pages: usize) -> AlignedBuf {
        let reused = {
            let mut kept = self.kept.lock();
            let reused = kept.by_pages.get_mut(&pages).and_then(Vec::pop);
            if reused.is_some() {
                kept.pages -= pages;
            }
            reused
        };
        reused.unwrap_or_else(|| AlignedBuf::new(pages))
    }

    /// Gives a buffer back; it is freed when the pool is full.
    pub fn give(&self, buffer: AlignedBuf) {
        let pages = buffer.pages();
        let mut kept = self.kept.lock();
        if kept.pages + pages <= kept.pages_max {
            kept.pages += pages;
            kept.by_pages.entry(pages).or_default().push(buffer);
            return;
        }
        drop(kept);
        drop(buffer);
    }

    /// Changes the bound. Buffers above it are freed by the next [`BufferPool::trim`].
    pub fn set_pages_max(&self, pages: usize) {
        self.kept.lock().pages_max = pages;
    }

    /// Frees buffers, the largest first, until at most `pages` are kept.
    pub fn trim(&self, pages: usize) {
        let mut freed = Vec::new();
        let mut kept = self.kept.lock();
        while kept.pages > pages {
            let Some(mut largest) = kept.by_pages.last_entry() else { break };
            let Some(buffer) = largest.get_mut().pop() else {
                largest.remove();
                continue;
            };
            kept.pages -= buffer.pages();
            freed.push(buffer);
        }
        drop(kept);
    }

    /// Lends a buffer of at least `pages` pages (the next power of two) until the result is
    /// dropped.
    #[must_use]
    pub fn lend(&self, pages: usize) -> Lent<'_> {
        Lent { pool: self, buffer: Some(self.take(pages.next_power_of_two())) }
    }

    /// Returns the number of pages in the pool.
    #[must_use]
    pub fn pages_kept(&self) -> usize {
        self.kept.lock().pages
    }
}

/// A buffer of a pool; dropping it gives it back.
#[derive(Debug)]
pub struct Lent<'a> {
    pool: &'a BufferPool,
    /// `None` only while it is dropped.
    buffer: Option<AlignedBuf>,
}

impl std::ops::Deref for Lent<'_> {
    type Target = AlignedBuf;

    fn deref(&self) -> &AlignedBuf {
        self.buffer.as_ref().expect("held until dropped")
    }
}

impl std::ops::DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut AlignedBuf {
        self.buffer.as_mut().expect("held until dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_by_size_and_within_the_bound() {
        let pool = BufferPool::new(5);
        let mut two = pool.take(2);
        two.bytes_mut()[0] = 7;
        let three = pool.take(3);
        let four = pool.take(4);
        pool.give(two);
        pool.give(three);
        pool.give(four);
        assert_eq!(pool.pages_kept(), 5);
        assert_eq!(pool.take(2).bytes()[0], 7);
        assert_eq!(pool.take(4).pages(), 4);
        assert_eq!(pool.pages_kept(), 3);
        pool.give(AlignedBuf::new(1));
        pool.give(AlignedBuf::new(1));
        pool.trim(4);
        assert_eq!(pool.pages_kept(), 2);
    }
}
