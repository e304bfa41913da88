//! What the parts of one keyspace share.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use spinney_base::{Generation, Lsn, Result, Stalls, mapping};
use spinney_engine::EngineContext;
use spinney_extent::values::LargeList;
use spinney_extent::{Extent, Store, Values};
use spinney_sync::Stripes;

use crate::auto::Auto;
use crate::crew::Crew;
use crate::gate::Gate;
use crate::large::ByMemtable;
use crate::memtable::Memtable;
use crate::options::Tuning;
use crate::payload;
use crate::pipeline::{BATCH_PARTS, Limits};
use crate::records::Records;
use crate::residents::Residents;
use crate::run::Run;
use crate::snapshot::Pinned;
use crate::tidy::LastWrite;
use crate::version::Files;
use crate::version::{MergedAway, RECORD_BYTES_MAX, Tree};
use crate::view::View;

/// One keyspace. Snapshots share it with the engine.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) context: EngineContext,
    pub(crate) files: Arc<Files>,
    /// Whoever writes is inside.
    pub(crate) gate: Gate,
    pub(crate) view: ArcSwap<View>,
    /// Held while another view is put in the place of the one there is.
    pub(crate) swapping: Mutex<()>,
    pub(crate) work: Mutex<Work>,
    /// Up to which LSN the log is in memtables up to a number, both ascending.
    pub(crate) marks: Mutex<VecDeque<Mark>>,
    pub(crate) large: Arc<Values>,
    pub(crate) residents: Residents,
    pub(crate) records: Records,
    /// Oldest first.
    pub(crate) snapshots: Mutex<Vec<Weak<Pinned>>>,
    /// Bytes that only snapshots keep.
    pub(crate) pinned: AtomicU64,
    pub(crate) tuning: Tuning,
    pub(crate) auto: Auto,
    /// What writes have held of late.
    pub(crate) room: Mutex<Room>,
    /// The memory that leaves are made for.
    pub(crate) shaped: Mutex<Shaped>,
    pub(crate) shaped_bytes: AtomicU64,
    /// As much for the mappings that they are held in.
    pub(crate) set_aside: mapping::SetAside,
    /// Threads for which memory is kept free.
    pub(crate) crew: Mutex<Crew>,
    /// What [`Core::release_idle`] goes by.
    idle: Mutex<IdleSeen>,
    /// Bytes that writers under way have reserved.
    pub(crate) reserved: AtomicU64,
    /// The newest checkpoint's redo LSN.
    pub(crate) redo: AtomicU64,
    /// Whether the log is being replayed: the end of the log says nothing of what was applied.
    pub(crate) replaying: AtomicBool,
    /// Whether the background is asked for.
    pub(crate) wanted: AtomicBool,
    /// Whether fewer batches are to gather than before: what has gathered is written at once.
    pub(crate) lowered: AtomicBool,
    /// [`Tree::pages_beside`] when the newest checkpoint was done: what snapshots keep, and nodes.
    pub(crate) kept_pages: AtomicU64,
    /// What ranges had looked into when all was tidy.
    pub(crate) tidied: AtomicU64,
    /// Tombstones that ranges had passed when there were none to flush for them.
    pub(crate) passed: AtomicU64,
    /// How many they will have passed when it is looked again what flushing costs.
    pub(crate) passed_next: AtomicU64,
    /// How many batches had been applied when tombstones removed little enough.
    pub(crate) drained: AtomicU64,
    pub(crate) last_write: Mutex<LastWrite>,
    /// Whether more waits in buffers than should, because a full disk had no room for what takes it down.
    pub(crate) is_crowded: AtomicBool,
    /// Batches applied since the last checkpoint.
    pub(crate) batches: AtomicU64,
    pub(crate) counters: Counters,
    /// The root of the checkpoint that was opened, until the replay of structure ends.
    root: Mutex<Option<Vec<u8>>>,
}

/// What one thread at a time does: apply, write, publish.
#[derive(Debug)]
pub(crate) struct Work {
    /// The tree of the newest durable checkpoint: nothing of it may be reused.
    pub(crate) published: Tree,
    /// The number of the newest memtable that is in the tree.
    pub(crate) applied: u64,
    /// The number of the newest memtable that is in the published one.
    pub(crate) published_memtable: u64,
    /// The batch of the next one to be applied, and its number: made while the one before it was applied.
    pub(crate) next: Option<(u64, Run)>,
}

/// What writes have held of late: the most, which is forgotten bit by bit, so that memory does not go to
/// the cache after each checkpoint to be asked back with the next batches; and soon where none come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    bytes: u64,
    at: Duration,
    /// When the last batch came.
    came: Duration,
}

/// In this time most of it is forgotten while batches come,
const ROOM_LASTS: Duration = Duration::from_secs(8);
/// and in this time when none has come for twice as long.
const IDLE_ROOM_LASTS: Duration = Duration::from_secs(1);

impl Room {
    /// A batch came.
    pub(crate) fn batch(&mut self, now: Duration) {
        self.came = now;
    }

    /// What it is now that so much is held.
    pub(crate) fn follow(&mut self, held: u64, now: Duration) -> u64 {
        let is_idle = now.saturating_sub(self.came) > 2 * IDLE_ROOM_LASTS;
        let lasts = if is_idle { IDLE_ROOM_LASTS } else { ROOM_LASTS };
        let passed = now.saturating_sub(self.at).min(lasts);
        let over = self.bytes.saturating_sub(held);
        let part = passed.as_micros() * u128::from(over) / lasts.as_micros();
        let forgotten = u64::try_from(part).unwrap_or(over);
        *self = Room { bytes: held + over - forgotten, at: now, ..*self };
        self.bytes
    }
}

/// The memory that leaves are made for: it follows the target up at once and down slowly. A keyspace that
/// gives its memory to others for a while, or was opened a moment ago and has not got its own yet, would
/// otherwise cut its leaves into small ones with the first flush.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shaped {
    bytes: u64,
    /// When it was as much as the target last, or went down.
    at: Duration,
}

/// After so long with less memory it goes down to half, at most.
const SHAPE_LASTS: Duration = Duration::from_secs(30);

impl Shaped {
    /// What it is now that the target is so much.
    pub(crate) fn follow(&mut self, target: u64, now: Duration) -> u64 {
        if target >= self.bytes {
            *self = Shaped { bytes: target, at: now };
        } else if now.saturating_sub(self.at) >= SHAPE_LASTS {
            *self = Shaped { bytes: target.max(self.bytes / 2), at: now };
        }
        self.bytes
    }
}

/// What is left of flushes for the next ones ([`mapping::idle_moves`]): since when nothing came or went, and whether it was
/// given back since.
#[derive(Clone, Copy, Debug, Default)]
struct IdleSeen {
    moves: u64,
    since: Duration,
    is_released: bool,
}

/// So long it is left.
const IDLE_LASTS: Duration = Duration::from_secs(2);

/// Memtables up to a number hold exactly what the log has up to an LSN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) memtable: u64,
    pub(crate) redo: Lsn,
}

/// Lookups that memtables answered.
pub(crate) const MEMTABLE_HITS: usize = 0;
/// Those that records answered ([`crate::records`]).
pub(crate) const RECORD_HITS: usize = 1;
/// Those that went to the tree.
pub(crate) const MISSES: usize = 2;

/// Counts of events.
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
            files,
            gate: Gate::default(),
            view: ArcSwap::from_pointee(View::new(vec![active], tree.clone())),
            swapping: Mutex::new(()),
            work: Mutex::new(Work {
                published: tree,
                applied: 0,
                published_memtable: 0,
                next: None,
            }),
            marks: Mutex::new(VecDeque::new()),
            large,
            residents: Residents::default(),
            records: Records::default(),
            snapshots: Mutex::new(Vec::new()),
            pinned: AtomicU64::new(0),
            tuning,
            auto: Auto::default(),
            room: Mutex::default(),
            shaped: Mutex::default(),
            shaped_bytes: AtomicU64::new(0),
            set_aside: mapping::SetAside::default(),
            crew: Mutex::default(),
            idle: Mutex::default(),
            reserved: AtomicU64::new(0),
            redo: AtomicU64::new(redo.0),
            replaying: AtomicBool::new(true),
            wanted: AtomicBool::new(false),
            lowered: AtomicBool::new(false),
            kept_pages: AtomicU64::new(0),
            tidied: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            passed_next: AtomicU64::new(0),
            drained: AtomicU64::new(u64::MAX),
            last_write: Mutex::default(),
            is_crowded: AtomicBool::new(false),
            batches: AtomicU64::new(0),
            counters: Counters::default(),
            root: Mutex::new(Some(root)),
            context,
        }
    }

    /// Opens the tree and says what is owned, so that the rest is free.
    pub(crate) fn begin(&self) -> Result<()> {
        let root = self.root.lock().take().unwrap_or_default();
        self.follow_limits();
        let tree = Tree::open(&self.files, &root)?;
        let mut owned = tree.owned();
        self.shape_as_it_is(&owned);
        owned.extend(self.large.owned());
        self.files.store.adopt(&owned)?;
        if !self.context.log.was_closed() {
            self.files.store.mend_slots()?;
        }
        self.kept_pages.store(tree.pages_beside(), Relaxed);
        self.work.lock().published = tree.clone();
        self.replace(|view| View::new(view.tables.clone(), tree));
        self.follow_memory();
        Ok(())
    }

    /// Goes on with leaves as large as those of the file, which may have been written with more memory than the
    /// keyspace is opened with, as far as the budget allows.
    fn shape_as_it_is(&self, owned: &[(Extent, Generation)]) {
        // The largest piece of a leaf is more than half of it.
        let pages = owned.iter().map(|(extent, _)| extent.pages()).max().unwrap_or(0);
        let leaf = u64::from(pages) * PAGE_BYTES as u64 / 2 * 3;
        let memory = leaf * 64 / BATCH_PARTS;
        let now = self.context.runtime.now();
        self.shaped.lock().follow(memory.min(self.context.memory.most()), now);
        self.follow_limits();
    }

    /// Puts another view in the place of the one there is.
    pub(crate) fn replace(&self, next: impl FnOnce(&View) -> View) {
        let _alone = self.swapping.lock();
        let next = next(&self.view.load());
        self.view.store(Arc::new(next));
    }

    pub(crate) fn redo(&self) -> Lsn {
        Lsn(self.redo.load(SeqCst))
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(SeqCst)
    }

    /// Says what the account holds.
    pub(crate) fn follow_memory(&self) {
        self.follow_limits();
        let view = self.view.load();
        let writes = view.memory_bytes() + self.pinned.load(Relaxed);
        let reads = view.tree.node_bytes() + self.files.cache.used() + self.records.bytes();
        let used = writes + reads + self.large.bytes();
        self.context.memory.set_used(used);
    }

    /// Gives the memory back that flushes have left for the next ones, once there are none: it is the caches' then. For the
    /// background.
    pub(crate) fn release_idle(&self) {
        let (moves, now) = (mapping::idle_moves(), self.context.runtime.now());
        let mut seen = self.idle.lock();
        if seen.moves != moves {
            *seen = IdleSeen { moves, since: now, is_released: false };
        } else if !seen.is_released && now.saturating_sub(seen.since) >= IDLE_LASTS {
            seen.is_released = true;
            mapping::release_idle();
        }
    }

    /// Newer edits took the place of these in the newest tree.
    pub(crate) fn note_merged_away(&self, pointers: &MergedAway) {
        pointers.iter().for_each(|pointer| self.large.superseded(pointer));
    }

    /// Runs a wait of a writer and counts it.
    pub(crate) fn stall<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.counters.stalls.during(&self.context.runtime, wait)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_made_for_less_memory_only_where_that_lasts() {
        let mut shaped = Shaped::default();
        let mut at = |target, seconds| shaped.follow(target, Duration::from_secs(seconds));
        assert_eq!(at(800, 1), 800);
        assert_eq!(at(100, 20), 800);
        assert_eq!(at(900, 25), 900);
        assert_eq!((at(100, 54), at(100, 55), at(100, 84)), (900, 450, 450));
        assert_eq!(at(300, 85), 300);
    }

    /// Between checkpoints what writes held is kept for them; where no batch comes it is soon the caches'.
    #[test]
    fn room_for_writes_goes_when_no_batch_comes() {
        let mut room = Room::default();
        let seconds = Duration::from_secs;
        room.batch(seconds(10));
        assert_eq!(room.follow(800, seconds(10)), 800);
        assert_eq!(room.follow(0, seconds(11)), 700, "an eighth of it a second");
        room.batch(seconds(12));
        assert_eq!(room.follow(0, seconds(13)), 525);
        assert_eq!(room.follow(600, seconds(13)), 600);
        assert_eq!(room.follow(100, seconds(15)), 100, "all of it where none came for so long");
    }
}
