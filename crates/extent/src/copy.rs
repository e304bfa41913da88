//! The copy of a store file that is being written (rule P26): its beginning, its large values, and
//! its end. The engine copies the pages of its tree.
//!
//! **Invariants**
//! 1. From before the redo LSN is read until the copy is dropped nothing that is freed is reused,
//!    so what a copied page or a record of the log names stays what it was.
//! 2. Bytes of large values never change, so each extent is copied once, to the same place.
//!
//! The double-write area is not copied: pages are read whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, PageNumber, Poison, Result};
use spinney_io::Directory;

use crate::free::Extent;
use crate::large_io::CALL_PAGES;
use crate::store::{Checkpoint, Hold, Store, StoreOptions};
use crate::values::{LargeExtent, Pin, Values};

/// A copy under construction.
#[derive(Debug)]
pub struct StoreCopy<'a> {
    values: &'a Arc<Values>,
    target: Store,
    redo: Lsn,
    /// Extents of large values that were copied, by first page and generation.
    copied: BTreeMap<(PageNumber, Generation), Extent>,
    /// Those that this pass has yet to copy, of the last one from `page` on; `None` between passes.
    left: Option<Vec<LargeExtent>>,
    page: u32,
    _pin: Pin,
    _hold: Hold<'a>,
}

fn key(large: &LargeExtent) -> (PageNumber, Generation) {
    (large.extent.page, large.generation)
}

impl<'a> StoreCopy<'a> {
    /// Begins to copy the file of these values into a new file `name` of a directory. `state`
    /// returns the redo LSN of the copy, and what else is as of this moment.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn begin<T>(
        values: &'a Arc<Values>,
        directory: &dyn Directory,
        name: &str,
        state: impl FnOnce() -> (Lsn, T),
    ) -> Result<(StoreCopy<'a>, T)> {
        let hold = values.store().hold();
        let pin = values.pin_everything();
        let (redo, state) = state();
        let options = StoreOptions {
            keyspace: values.store().keyspace(),
            double_write: false,
            // An error in the copy is no reason to stop writing to the original.
            poison: Arc::new(Poison::new()),
        };
        let target = Store::create(directory, name, options, redo)?;
        let (copied, left) = (BTreeMap::new(), None);
        let copy =
            StoreCopy { values, target, redo, copied, left, page: 0, _pin: pin, _hold: hold };
        Ok((copy, state))
    }

    /// Returns the store of the copy.
    #[must_use]
    pub fn target(&self) -> &Store {
        &self.target
    }

    /// Copies some pages of large values. A pass covers the values that had names when it began and
    /// that no earlier pass copied. Returns their bytes; `None` at the end of a pass.
    ///
    /// # Errors
    /// `Corruption` naming the damage found in the original; `Io` or `Full`.
    pub fn copy_values(&mut self) -> Result<Option<u64>> {
        let copied = &mut self.copied;
        let left = self.left.get_or_insert_with(|| {
            self.page = 0;
            let all = self.values.everything();
            let mut left: Vec<_> =
                all.all().filter(|one| !copied.contains_key(&key(one))).collect();
            left.sort_unstable();
            left
        });
        let mut pages = 0;
        while let Some(last) = left.last().copied()
            && pages < CALL_PAGES as u32
        {
            let extent = (last.extent, last.generation);
            let here = self.values.store().copy_large(extent, self.page, &self.target)?;
            pages += here;
            self.page += here;
            if self.page == last.extent.pages() {
                copied.insert(key(&last), last.extent);
                left.pop();
                self.page = 0;
            }
        }
        if pages == 0 {
            self.left = None;
            return Ok(None);
        }
        Ok(Some(u64::from(pages) * PAGE_BYTES as u64))
    }

    /// Copies the remaining large values and completes the copy: its tree owns the extents of
    /// `owned`, and its checkpoint has this payload. No value is put any more. Returns the bytes
    /// copied.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn finish(
        &mut self,
        mut owned: Vec<(Extent, Generation)>,
        structure: u64,
        payload: &[u8],
    ) -> Result<u64> {
        self.left = None;
        let mut bytes = 0;
        while let Some(copied) = self.copy_values()? {
            bytes += copied;
        }
        owned.extend(self.copied.iter().map(|((_, generation), extent)| (*extent, *generation)));
        self.target.adopt(&owned)?;
        self.target.publish(Checkpoint { redo: self.redo, structure }, payload, || Ok(()))?;
        Ok(bytes)
    }
}
