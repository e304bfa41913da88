//! Page locks: shared to read a segment's pages, exclusive to rewrite them or to change the
//! segment's place (TreeLine, 4.8).
//!
//! One lock covers a base page and its overflow page. Locks are striped by page number, so they
//! cost nothing per page. They are held
//! across I/O; so are the write-back gate and the publishing lock, and no other of the engine's.
//!
//! **Invariant**: who takes several takes them in ascending order of stripes, each once; who holds
//! one never waits for a record-cache reservation.

use spinney_base::PageNumber;
use spinney_base::shim::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const STRIPES: usize = 4096;

#[derive(Debug)]
pub(crate) struct PageLocks {
    stripes: Box<[RwLock<()>]>,
}

impl PageLocks {
    pub(crate) fn new() -> Self {
        PageLocks { stripes: (0..STRIPES).map(|_| RwLock::new(())).collect() }
    }

    /// Locks one page for reading.
    pub(crate) fn read(&self, page: PageNumber) -> RwLockReadGuard<'_, ()> {
        self.stripes[self.stripe(page)].read()
    }

    /// Locks many pages for reading.
    pub(crate) fn read_many(
        &self,
        pages: impl Iterator<Item = PageNumber>,
    ) -> Vec<RwLockReadGuard<'_, ()>> {
        self.ascending(pages).into_iter().map(|stripe| self.stripes[stripe].read()).collect()
    }

    /// Locks many pages for writing.
    pub(crate) fn write_many(
        &self,
        pages: impl Iterator<Item = PageNumber>,
    ) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.ascending(pages).into_iter().map(|stripe| self.stripes[stripe].write()).collect()
    }

    fn ascending(&self, pages: impl Iterator<Item = PageNumber>) -> Vec<usize> {
        let mut stripes: Vec<usize> = pages.map(|page| self.stripe(page)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes
    }

    fn stripe(&self, page: PageNumber) -> usize {
        page.0 as usize % self.stripes.len()
    }
}
