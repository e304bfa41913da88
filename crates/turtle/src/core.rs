//! The parts of one keyspace, and how it is created and opened.

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spinney_base::{Generation, Lsn, Result, Stalls};
use spinney_engine::EngineContext;
use spinney_extent::values::LargeList;
use spinney_extent::{Extent, Store, Values};
use spinney_sync::Stripes;

use crate::auto::Auto;
use crate::gate::Gate;
use crate::large::ByMemtable;
use crate::memory::Memory;
use crate::memtable::Memtable;
use crate::options::Tuning;
use crate::payload;
use crate::pinned::Snapshots;
use crate::policy::{Limits, memory_for_leaves};
use crate::progress::Progress;
use crate::records::Records;
use crate::residents::Residents;
use crate::tidying::Tidying;
use crate::version::{Files, MergedAway, RECORD_BYTES_MAX, Tree};
use crate::view::{Current, View};

/// One keyspace. Snapshots share it with the engine.
///
/// Its methods lie in the modules of what they do: `budget`, `pipeline`, `steps`, `snapshot`,
/// `background`, `verify`.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) context: EngineContext,
    pub(crate) tuning: Tuning,
    pub(crate) files: Arc<Files>,
    /// Writers are inside.
    pub(crate) gate: Gate,
    pub(crate) view: Current,
    pub(crate) large: Arc<Values>,
    pub(crate) residents: Residents,
    pub(crate) records: Records,
    pub(crate) snapshots: Snapshots,
    pub(crate) memory: Memory,
    pub(crate) progress: Progress,
    pub(crate) tidying: Tidying,
    pub(crate) auto: Auto,
    /// Whether the background is wanted before its next turn.
    pub(crate) wanted: AtomicBool,
    pub(crate) counters: Counters,
}

/// Lookups that memtables answered.
pub(crate) const MEMTABLE_HITS: usize = 0;
/// Lookups that kept records answered ([`crate::records`]).
pub(crate) const RECORD_HITS: usize = 1;
/// Lookups that went to the tree.
pub(crate) const MISSES: usize = 2;

/// Counters of events.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Lookups, by where they ended: [`MEMTABLE_HITS`] and the others.
    pub(crate) reads: Stripes<3>,
    pub(crate) seals: AtomicU64,
    pub(crate) applied: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) foreground_steps: AtomicU64,
    pub(crate) delays: AtomicU64,
    pub(crate) stalls: Stalls,
    pub(crate) snapshots_written: AtomicU64,
    pub(crate) snapshots_ended: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Core {
    /// Makes the file of a new keyspace, all of whose records come after `redo`.
    ///
    /// # Errors
    /// `Full` or `Io`.
    pub(crate) fn create(context: EngineContext, redo: Lsn) -> Result<Core> {
        let options = context.store_options();
        let store = Store::create(&*context.directory, &context.name, options, redo)?;
        Ok(Self::assemble(context, store, redo, Vec::new(), LargeList::default()))
    }

    /// Opens a keyspace at its newest checkpoint.
    ///
    /// # Errors
    /// `Corruption`, `Unsupported` or `Io`.
    pub(crate) fn open(context: EngineContext) -> Result<Core> {
        let options = context.store_options();
        let (store, checkpoint, payload) =
            Store::open(&*context.directory, &context.name, options)?;
        let decoded = payload::decode(&payload);
        let (root, large) = decoded.map_err(|error| error.context(context.path().display()))?;
        let large = LargeList { live: large, freed: Vec::new() };
        Ok(Self::assemble(context, store, checkpoint.redo, root.to_vec(), large))
    }

    fn assemble(
        context: EngineContext,
        store: Store,
        redo: Lsn,
        root: Vec<u8>,
        large: LargeList,
    ) -> Core {
        let tuning = Tuning::default();
        let batch = Limits::of(context.memory.target(), tuning.leaf_bytes()).batch;
        let active = Arc::new(Memtable::new(1, batch));
        let files = Files::new(store, &tuning, context.runtime.is_stepped());
        let tree = Tree::empty(&files);
        let store = Arc::clone(&files.store);
        let large = Values::new(store, RECORD_BYTES_MAX, Box::new(ByMemtable), large);
        Core {
            progress: Progress::new(redo, root, tree.clone()),
            view: Current::new(View::new(vec![active], tree)),
            context,
            tuning,
            files,
            gate: Gate::default(),
            large,
            residents: Residents::default(),
            records: Records::default(),
            snapshots: Snapshots::default(),
            memory: Memory::default(),
            tidying: Tidying::default(),
            auto: Auto::default(),
            wanted: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// Opens the tree, and tells the store which pages are owned: the rest is free.
    pub(crate) fn begin(&self) -> Result<()> {
        let root = self.progress.take_root();
        self.follow_limits();
        let tree = Tree::open(&self.files, &root)?;
        let mut owned = tree.owned();
        self.shape_as_it_is(&owned);
        owned.extend(self.large.owned());
        self.files.store.adopt(&owned)?;
        if !self.context.log.was_closed() {
            self.files.store.mend_slots()?;
        }
        self.progress.set_kept_pages(tree.pages_beside());
        self.progress.work.lock().published = tree.clone();
        self.view.replace(|view| View::new(view.tables.clone(), tree));
        self.follow_memory();
        Ok(())
    }

    /// Makes leaves as large as those of the file, which may have been written with more memory
    /// than the keyspace is opened with, as far as the budget allows.
    fn shape_as_it_is(&self, owned: &[(Extent, Generation)]) {
        // The largest piece of a leaf is more than half of it.
        let pages = owned.iter().map(|(extent, _)| extent.pages()).max().unwrap_or(0);
        let memory = memory_for_leaves(u64::from(pages) * PAGE_BYTES as u64 / 2 * 3);
        let now = self.context.runtime.now();
        self.memory.shape(memory.min(self.context.memory.most()), now);
        self.follow_limits();
    }

    /// Redo LSN of the newest checkpoint.
    pub(crate) fn redo(&self) -> Lsn {
        self.progress.redo()
    }

    /// Notes that newer edits replaced these pointers in the newest tree.
    pub(crate) fn note_merged_away(&self, pointers: &MergedAway) {
        pointers.iter().for_each(|pointer| self.large.superseded(pointer));
    }

    /// Runs a wait of a writer and counts it.
    pub(crate) fn stall<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.counters.stalls.during(&self.context.runtime, wait)
    }
}
