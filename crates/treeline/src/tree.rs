//! The keyspace: its parts, and how they are built from a checkpoint.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{ErrorKind, Lsn, PageNumber, Result};
use spinney_engine::{Capabilities, EngineContext};
use spinney_extent::values::LargeList;
use spinney_extent::{BlockHeader, BlockKind, Extent, Store, Values};
use spinney_page::RECORD_BYTES_MAX;
use spinney_preimages::PreImages;
use spinney_records::RecordId;
use spinney_sync::hash_key;

use crate::background::Background;
use crate::by_log::ByLog;
use crate::codec::decode_segments;
use crate::index::SegmentIndex;
use crate::kept::CacheNotes;
use crate::memory::Memory;
use crate::policy::{BATCH_PAGES, FEW_PAGES};
use crate::segment::PageRef;
use crate::shape::Shape;
use crate::tuning::Tuning;
use crate::workload::Workload;

/// A keyspace kept by TreeLine.
#[derive(Debug)]
pub struct TreeLine {
    pub(crate) context: EngineContext,
    pub(crate) tuning: Tuning,
    /// Where records lie.
    pub(crate) shape: Shape,
    /// What is in memory.
    pub(crate) memory: Memory,
    /// Large values.
    pub(crate) large: Arc<Values>,
    /// What writes replaced while a snapshot lives.
    pub(crate) pre_images: PreImages,
    /// What is counted and expected.
    pub(crate) workload: Workload,
    /// What waits to be done.
    pub(crate) background: Background,
}

impl TreeLine {
    /// What the engine can do.
    pub const CAPABILITIES: Capabilities = {
        let mut it = Capabilities::LEAST;
        it.ordered = true;
        it.snapshots = true;
        it.transactions = true;
        it.larger_than_memory = true;
        it
    };

    /// Makes a new keyspace, empty, whose log records all come after `redo`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub fn create(context: EngineContext, redo: Lsn) -> Result<TreeLine> {
        let options = context.store_options();
        let store = Store::create(&*context.directory, &context.name, options, redo)?;
        let index = SegmentIndex::new(Vec::new(), 0);
        Ok(Self::assemble(context, store, index, LargeList::default(), redo))
    }

    /// Opens a keyspace at its newest checkpoint; structure records must be replayed before
    /// anything else.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn open(context: EngineContext) -> Result<TreeLine> {
        let options = context.store_options();
        let (store, checkpoint, payload) =
            Store::open(&*context.directory, &context.name, options)?;
        let (segments, large) = decode_segments(&payload)
            .map_err(|error| error.wrap(ErrorKind::Corruption, context.path().display()))?;
        let index = SegmentIndex::new(segments, checkpoint.structure);
        Ok(Self::assemble(context, store, index, large, checkpoint.redo))
    }

    fn assemble(
        context: EngineContext,
        store: Store,
        index: SegmentIndex,
        large: LargeList,
        redo: Lsn,
    ) -> TreeLine {
        let target = context.memory.target();
        // What is made once is sized by what the target may become.
        let most = context.memory.most();
        let store = Arc::new(store);
        let owner = Box::new(ByLog { context: context.clone(), store: Arc::clone(&store) });
        let shape = Shape::new(Arc::clone(&store), index, redo, most);
        // A value may be in the checkpoint's list although its record was not applied when the
        // power went, and without a log only the pages tell.
        shape.large_unsettled.store(!large.is_empty(), Ordering::Relaxed);
        let memory = Memory::new(target, most);
        let notes = Arc::new(CacheNotes(Arc::clone(&memory.cache)));
        TreeLine {
            tuning: Tuning::default(),
            shape,
            memory,
            pre_images: PreImages::new(context.clone(), Arc::clone(&store), notes),
            large: Values::new(store, RECORD_BYTES_MAX, owner, large),
            workload: Workload::new(&context.runtime, target),
            background: Background::default(),
            context,
        }
    }

    /// Pages or segments of a batch that should take little time.
    pub(crate) fn few_pages(&self) -> usize {
        let log = &self.context.log;
        let syncs = self.context.double_write
            || (self.context.logged && log.durable_lsn() < log.last_lsn());
        if syncs { BATCH_PAGES } else { FEW_PAGES }
    }

    /// The id of a key's record in the record cache.
    pub(crate) fn id_of(&self, key: &[u8]) -> RecordId {
        RecordId::of(hash_key(self.context.keyspace, key))
    }

    /// Allocates an extent of `1 << order` pages.
    pub(crate) fn allocate(&self, order: u8) -> Result<(Extent, spinney_base::Generation)> {
        self.shape.store.reclaim(self.context.log.durable_lsn());
        self.shape.store.allocate(order)
    }

    /// Seals a page that holds records up to `lsn`.
    pub(crate) fn seal(&self, page: PageRef, lsn: Lsn, block: &mut [u8; PAGE_BYTES]) {
        let PageRef { page, generation } = page;
        let keyspace = self.context.keyspace;
        BlockHeader { kind: BlockKind::DATA, page, generation, keyspace, lsn }.seal(block);
    }
}

const _: () = assert!(PageNumber::NONE.0 < spinney_extent::store::DATA_PAGE_FIRST);
