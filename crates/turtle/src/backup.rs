//! Copying a keyspace while it is written to (rule P26).
//!
//! The tree of the newest checkpoint never changes: while it is held its pages stay as they are,
//! and they are copied to the same places of the new file, once. What came since then is in the
//! log, which the database copies. Large values are copied after the tree: those that its
//! checkpoint lists, and those that the log may point to. None of them is reused meanwhile.

use std::sync::Arc;

use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;
use spinney_engine::KeyspaceBackup;
use spinney_extent::values::LargeExtent;
use spinney_extent::{BlockKind, PageRun, StoreCopy};
use spinney_io::{AlignedBuf, Directory, Purpose};

use crate::core::Core;
use crate::payload;
use crate::version::Tree;

/// Pages that are copied at once. With more, a piece holds the disk for longer; with fewer, a copy
/// takes more transfers.
const PIECE_PAGES: u32 = 64;

/// A copy of one keyspace under construction.
#[derive(Debug)]
pub(crate) struct Copying<'a> {
    core: &'a Core,
    copy: StoreCopy<'a>,
    tree: Tree,
    /// What the tree's checkpoint lists.
    large: Vec<LargeExtent>,
    /// Runs of the tree that are yet to be copied, of the last one from a page on.
    left: Vec<(PageRun, BlockKind)>,
    run_page: u32,
}

impl<'a> Copying<'a> {
    pub(crate) fn begin(
        core: &'a Arc<Core>,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Self> {
        let state = || {
            let work = core.progress.work.lock();
            // Nothing that it lists was settled since it was published, only freed.
            let large = core.large.listed(work.published_memtable);
            (core.redo(), (work.published.clone(), large))
        };
        let (copy, (tree, large)) = StoreCopy::begin(&core.large, directory, name, state)?;
        let left = tree.runs();
        Ok(Copying { core, copy, tree, large, left, run_page: 0 })
    }

    /// Copies a piece of the tree; `None` when all of it was.
    fn copy_run(&mut self) -> Result<Option<u64>> {
        let Some((run, kind)) = self.left.last() else { return Ok(None) };
        let pages = (run.pages - self.run_page).min(PIECE_PAGES);
        let mut buf = AlignedBuf::new(pages as usize);
        let store = &self.core.files.store;
        store.read_run(run, self.run_page, *kind, &mut buf, Purpose::TOOL)?;
        let target = self.copy.target();
        target.write_runs(&[(run.page(self.run_page), buf.bytes())], Purpose::TOOL)?;
        self.run_page += pages;
        if self.run_page == run.pages {
            self.left.pop();
            self.run_page = 0;
        }
        Ok(Some(u64::from(pages) * PAGE_BYTES as u64))
    }
}

impl KeyspaceBackup for Copying<'_> {
    fn copy(&mut self) -> Result<Option<u64>> {
        match self.copy_run()? {
            Some(bytes) => Ok(Some(bytes)),
            None => self.copy.copy_values(),
        }
    }

    fn finish(&mut self) -> Result<u64> {
        let mut bytes = 0;
        while let Some(copied) = self.copy_run()? {
            bytes += copied;
        }
        // The log finds the values that the checkpoint does not list.
        let payload = payload::encode(&self.tree.root()?, &self.large);
        Ok(bytes + self.copy.finish(self.tree.owned(), 0, &payload)?)
    }
}
