//! Loading sorted records into an empty keyspace, past memtables and log (rule P15).
//!
//! Records go in batches to a tree of the load's own, which is written whenever much of it is
//! pending. Installing it publishes it as the keyspace's checkpoint, with the log's end as its redo
//! LSN: from the slot's sync on everything is there, before it nothing is. No log record is needed.

use std::sync::Arc;

use spinney_base::{Error, Result, ValueRef};
use spinney_engine::{Bulk, Chunk, ScanRequest, SnapshotNumber, not_ascending};
use spinney_extent::values::Loaded;

use crate::core::Core;
use crate::edit::Edit;
use crate::policy::CREW_MAX;
use crate::run::RunBuilder;
use crate::version::Tree;

/// A load under way. Dropped, it gives back what it has.
#[derive(Debug)]
pub(crate) struct Loading<'a> {
    core: &'a Arc<Core>,
    tree: Tree,
    packer: RunBuilder,
    packed_bytes: u64,
    last: Option<Vec<u8>>,
    /// Large values that it has put and that nothing else names.
    large: Loaded,
}

impl<'a> Loading<'a> {
    pub(crate) fn begin(core: &'a Arc<Core>) -> Result<Self> {
        let loading = Loading {
            core,
            tree: Tree::empty(&core.files),
            packer: RunBuilder::default(),
            packed_bytes: 0,
            last: None,
            large: Loaded::new(&core.large),
        };
        loading.check_empty()?;
        Ok(loading)
    }

    fn check_empty(&self) -> Result<()> {
        let mut chunk = Chunk::default();
        self.core.view.load().scan(&ScanRequest::FIRST_KEY, &mut chunk)?;
        if chunk.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("a bulk load needs an empty keyspace"))
    }

    /// Applies what was packed; writes what is pending if that is much.
    fn apply(&mut self) -> Result<()> {
        self.packed_bytes = 0;
        self.core.call_crew(CREW_MAX);
        let batch = std::mem::take(&mut self.packer).finish()?;
        self.tree = self.tree.apply(batch, None, &mut Vec::new())?;
        if self.tree.pending().bytes >= self.core.limits().pending { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        // None of it is in the log.
        let lsn = self.core.redo();
        self.tree = self.tree.write(lsn, &mut Vec::new())?;
        Ok(())
    }
}

impl Bulk for Loading<'_> {
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        if self.last.as_ref().is_some_and(|last| key <= last) {
            return Err(not_ascending(self.last.as_deref().unwrap_or_default(), key));
        }
        if self.packed_bytes >= self.core.limits().batch {
            self.apply()?;
        }
        if value.large {
            self.large.push(value.bytes)?;
        }
        self.packed_bytes += (key.len() + value.len()) as u64;
        self.packer.push(Edit { key, value: Some(value) });
        self.last = Some(key.to_vec());
        Ok(())
    }

    fn install(mut self: Box<Self>, _number: SnapshotNumber) -> Result<()> {
        self.check_empty()?;
        self.apply()?;
        self.write()?;
        self.core.install(self.tree.clone(), &self.large)?;
        // They are the keyspace's.
        self.large.keep();
        Ok(())
    }
}
