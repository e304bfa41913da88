//! Copying a keyspace while it is written to (rule P26).
//!
//! The tree of the newest checkpoint never changes: while it is held its pages stay what they are,
//! and they are copied to the same places of the new file, once. What was said since then is in the log,
//! which the database copies. Large values are copied when the tree was: those that its checkpoint
//! lists, and those that the log may point to. None of them is reused meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Generation, Lsn, PageNumber, Poison, Result};
use spinney_engine::KeyspaceBackup;
use spinney_extent::{BlockKind, Checkpoint, Extent, Hold, PageRun, Store, StoreOptions};
use spinney_io::{AlignedBuf, Directory, Purpose};

use crate::core::Core;
use crate::large::LargeExtent;
use crate::payload;
use crate::version::Tree;

/// Pages that are copied at once.
const PIECE_PAGES: u32 = 64;

/// A copy of one keyspace under construction.
#[derive(Debug)]
pub(crate) struct Copying<'a> {
    core: &'a Arc<Core>,
    target: Store,
    tree: Tree,
    redo: Lsn,
    /// What the tree's checkpoint lists.
    large: Vec<LargeExtent>,
    /// Runs of the tree that are yet to be copied, of the last one from a page on.
    left: Vec<(PageRun, BlockKind)>,
    run_page: u32,
    /// Extents of large values that are yet to be copied, of the last one from this page on.
    large_left: Vec<LargeExtent>,
    page: u32,
    /// Those that were, by first page and generation.
    copied: BTreeMap<(PageNumber, Generation), Extent>,
    pin: u64,
    _hold: Hold<'a>,
}

impl<'a> Copying<'a> {
    pub(crate) fn begin(
        core: &'a Arc<Core>,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Self> {
        let hold = core.files.store.hold();
        let pin = core.large.pin_everything();
        let (tree, redo, large) = {
            let work = core.work.lock();
            // Nothing that it lists was settled since it was published, only freed.
            (work.published.clone(), core.redo(), core.large.published(work.published_memtable))
        };
        let options = StoreOptions {
            keyspace: core.context.keyspace,
            double_write: false,
            // What goes wrong in the copy is no reason to stop writing here.
            poison: Arc::new(Poison::new()),
        };
        let target =
            Store::create(directory, name, options, redo).inspect_err(|_| core.large.unpin(pin))?;
        let left = tree.runs();
        Ok(Copying {
            core,
            target,
            tree,
            redo,
            large,
            left,
            run_page: 0,
            large_left: Vec::new(),
            page: 0,
            copied: BTreeMap::new(),
            pin,
            _hold: hold,
        })
    }

    /// Copies a piece of the tree; `None` when all of it was.
    fn copy_run(&mut self) -> Result<Option<u64>> {
        let Some((run, kind)) = self.left.last() else { return Ok(None) };
        let pages = (run.pages - self.run_page).min(PIECE_PAGES);
        let mut buf = AlignedBuf::new(pages as usize);
        let store = &self.core.files.store;
        store.read_run(run, self.run_page, *kind, &mut buf, Purpose::Tool)?;
        self.target.write_runs(&[(run.page(self.run_page), buf.bytes())], Purpose::Tool)?;
        self.run_page += pages;
        if self.run_page == run.pages {
            self.left.pop();
            self.run_page = 0;
        }
        Ok(Some(u64::from(pages) * PAGE_BYTES as u64))
    }

    /// Copies a piece of a large value that was not copied; `None` when none is.
    fn copy_large(&mut self) -> Result<Option<u64>> {
        if self.large_left.is_empty() {
            let mut left = self.core.large.put();
            left.extend(&self.large);
            left.retain(|large| !self.copied.contains_key(&key(large)));
            left.sort_unstable_by_key(key);
            left.dedup();
            self.large_left = left;
        }
        let Some(next) = self.large_left.last().copied() else { return Ok(None) };
        let extent = (next.extent, next.generation);
        let pages = self.core.files.store.copy_large(extent, self.page, &self.target)?;
        self.page += pages;
        if self.page == next.extent.pages() {
            self.copied.insert(key(&next), next.extent);
            self.large_left.pop();
            self.page = 0;
        }
        Ok(Some(u64::from(pages) * PAGE_BYTES as u64))
    }
}

fn key(large: &LargeExtent) -> (PageNumber, Generation) {
    (large.extent.page, large.generation)
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.core.large.unpin(self.pin);
    }
}

impl KeyspaceBackup for Copying<'_> {
    fn copy(&mut self) -> Result<Option<u64>> {
        match self.copy_run()? {
            Some(bytes) => Ok(Some(bytes)),
            None => self.copy_large(),
        }
    }

    fn finish(&mut self) -> Result<u64> {
        let mut bytes = 0;
        while let Some(copied) = self.copy()? {
            bytes += copied;
        }
        let mut owned = self.tree.owned();
        // The log finds those that the checkpoint does not list.
        owned.extend(self.copied.iter().map(|((_, generation), extent)| (*extent, *generation)));
        self.target.adopt(&owned)?;
        let payload = payload::encode(&self.tree.root()?, &self.large);
        let checkpoint = Checkpoint { redo: self.redo, structure: 0 };
        self.target.publish(checkpoint, &payload, || Ok(()))?;
        Ok(bytes)
    }
}
