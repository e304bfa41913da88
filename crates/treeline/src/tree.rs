//! The engine itself: opening, lookups, puts, and what the other modules share.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::{Mutex, RwLock, thread};
use spinney_base::{Error, ErrorKind, Lsn, Next, PageNumber, Result, Runtime};
use spinney_engine::{
    Bulk, Capabilities, Chunk, Compacted, Engine, EngineContext, EngineStats, Found, IDLE, Journal,
    KeyspaceBackup, Maintain, OwnedValue, Prepared, Resident, ScanRequest, Scrubbed, VerifyReport,
    Watch, Write,
};
use spinney_extent::values::LargeList;
use spinney_extent::{GiveBack, Store, Values};
use spinney_io::{AlignedBuf, BufferPool, Directory, Purpose, without_reserve};
use spinney_page::{PageView, RECORD_BYTES_MAX};

use crate::codec::{decode_change, decode_large, decode_segments};
use crate::counters::{AccessCounters, WriteCounters, add};
use crate::filters::PageFilters;
use crate::forecast::Forecaster;
use crate::index::SegmentIndex;
use crate::large::ByLog;
use crate::locks::{PageLocks, SegmentLocks, stripes_for};
use crate::lookup::found_in;
use crate::pages::PageCache;
use crate::reorganize::REGION_PAGES_MAX;
use crate::segment::{Located, PageRef};
use crate::stage::Novelty;
use crate::tidy::Tidying;
use crate::tuning::{Staging, Tuning};
use spinney_records::{
    Became, Cached, More, Prepared as Room, RecordCache, RecordId, Rules, Share, Side, Usage, Worth,
};
use spinney_sync::Gap;

/// Pages that one batch of background write-back brings up to date: what one half of a double-write
/// area protects.
pub(crate) const BATCH_PAGES: usize = spinney_extent::double_write::HALF_PAGES;

/// Pages that a writer brings up to date itself when it finds no clean record to evict, and segments that a
/// checkpoint with time does at once; a whole batch when each batch costs a sync.
pub(crate) const FEW_PAGES: usize = 8;

/// Pages, the second, have three quarters at most: new records need room whatever is read.
const SHARES: Rules = Rules { ratio: 2.0, step: 4, most: 12 };

/// Page filters, beside records and pages, have half at most: those of 64 byte records take a 20th of
/// what the pages take, so more would belong to data that no memory helps much.
const FILTER_SHARES: Rules = Rules { ratio: 2.0, step: 2, most: 8 };

/// Inserts of one epoch of forecasting, and how many epochs room is left for: more, and hot places that
/// moved on leave it unused (25 took 58 % more pages for `drift`, for the same reorganizations). What is hot must be
/// known when its first records come home, a thousand or so: then they get their room at once.
const FORECAST_EPOCH_INSERTS: u64 = 2_000;
const FORECAST_EPOCHS: u32 = 8;

/// Least memory of a keyspace whose inserts are forecast, in bytes: what forecasting keeps, about 88 KiB, would
/// be more than a third of less, and most of the floor of a small keyspace among many.
const FORECAST_MEMORY_MIN: u64 = 240 << 10;

/// Most pages of buffers that wait for the next batch: 2 MiB.
const BUFFER_PAGES_MAX: usize = 512;

/// Of a keyspace's memory such buffers take one in so many bytes at most.
const BUFFERS_SHARE: u64 = 32;

/// While much is written so many times as many pages wait, which are then of the I/O under way.
const BUFFERS_BURST: usize = 2;

/// The many small allocations of the index take so large a part more of the process than they ask for (measured: the
/// heap grew by 15.0 MiB while the index grew by 11.4).
const INDEX_HEAP_PART: u64 = 3;

/// Every so many entries a dirty list counts as long once more.
const LONG_LIST: usize = 1024;

/// Long lists that the background may be behind with before writers help.
const LONG_LISTS_MAX: usize = 2;

/// Segments that one writer may join for room whom a full disk refused.
const ROOM_STEPS_MAX: usize = 64;

/// A keyspace kept by TreeLine.
#[derive(Debug)]
pub struct TreeLine {
    pub(crate) context: EngineContext,
    pub(crate) store: Arc<Store>,
    pub(crate) index: SegmentIndex,
    pub(crate) cache: RecordCache,
    pub(crate) segment_locks: SegmentLocks,
    pub(crate) page_locks: PageLocks,
    pub(crate) large: Arc<Values>,
    /// Whether pages may hold what a process before wrote and no sync kept, until all that was replayed is home.
    pub(crate) pages_in_doubt: AtomicBool,
    /// Whether only the pages can say which large values are live.
    large_unsettled: AtomicBool,
    /// Held while dirty records are taken off a segment's list, for memory work only.
    pub(crate) taking: Mutex<()>,
    /// Held shared by every write-back, exclusively by who must know that none is under way.
    pub(crate) gate: RwLock<()>,
    pub(crate) journal: Journal,
    /// Held while a checkpoint is made and its slot written.
    pub(crate) slots: Mutex<()>,
    /// The newest checkpoint's redo LSN and the number of the last change of structure that it
    /// covers.
    pub(crate) redo: AtomicU64,
    pub(crate) published: AtomicU64,
    /// Buffers of batches.
    pub(crate) buffers: BufferPool,
    /// Bytes that it keeps though others want its memory.
    floor: AtomicU64,
    worth: Mutex<Worth>,
    /// Most bytes that the index has had.
    index_bytes_most: AtomicU64,
    /// Bulk loads under way: nothing is written meanwhile that need not be.
    pub(crate) loads: AtomicUsize,
    /// Pages of bulk loads that are not installed yet.
    pub(crate) loading_pages: AtomicU64,
    pub(crate) tuning: Tuning,
    pub(crate) forecaster: Forecaster,
    /// Whether there is memory for it.
    forecasts: AtomicBool,
    pub(crate) accesses: AccessCounters,
    pub(crate) writes: WriteCounters,
    /// Which shard the background looks at next.
    hand: AtomicUsize,
    wanted: AtomicBool,
    /// Whether records that come home are new.
    pub(crate) novelty: Mutex<Novelty>,
    /// Where the merging of staged pages goes on.
    pub(crate) last_merged: Mutex<Vec<u8>>,
    /// Lower bounds of segments that may take fewer pages.
    pub(crate) sparse: Mutex<BTreeSet<Vec<u8>>>,
    /// Lower bounds of segments with removals that scans met.
    removed: Mutex<BTreeSet<Vec<u8>>>,
    pub(crate) tidying: Mutex<Tidying>,
    pub(crate) pages: PageCache,
    share: Mutex<Share>,
    pub(crate) filters: PageFilters,
    filter_share: Mutex<Share>,
    pub(crate) gap: Gap,
    /// Keys of segments whose dirty lists have grown long.
    long_lists: Mutex<Vec<Vec<u8>>>,
    long_lists_count: AtomicUsize,
}

impl TreeLine {
    /// What the engine can do.
    pub const CAPABILITIES: Capabilities = Capabilities {
        ordered: true,
        snapshots: false,
        transactions: false,
        larger_than_memory: true,
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
        let published = AtomicU64::new(index.sequence());
        let memory = context.memory.target();
        // What is made for good goes by what the target may become.
        let most = context.memory.most();
        let stripes = stripes_for(most);
        let (segment_locks, page_locks) = (SegmentLocks::new(stripes), PageLocks::new(stripes));
        let forecaster =
            Forecaster::new(context.runtime.random(), FORECAST_EPOCH_INSERTS, FORECAST_EPOCHS);
        let store = Arc::new(store);
        let owner = Box::new(ByLog { context: context.clone(), store: Arc::clone(&store) });
        TreeLine {
            context,
            index,
            cache: RecordCache::new(memory, most),
            segment_locks,
            page_locks,
            pages_in_doubt: AtomicBool::new(false),
            // A value may be in the checkpoint's list though its record was not applied when the
            // power went, and without a log only the pages tell.
            large_unsettled: AtomicBool::new(!large.is_empty()),
            large: Values::new(Arc::clone(&store), RECORD_BYTES_MAX, owner, large),
            store,
            taking: Mutex::new(()),
            gate: RwLock::new(()),
            journal: Journal::default(),
            slots: Mutex::new(()),
            redo: AtomicU64::new(redo.0),
            published,
            buffers: BufferPool::new(BUFFERS_BURST * buffer_pages_for(memory)),
            floor: AtomicU64::new(0),
            worth: Mutex::default(),
            index_bytes_most: AtomicU64::new(0),
            loads: AtomicUsize::new(0),
            loading_pages: AtomicU64::new(0),
            tuning: Tuning::default(),
            forecaster,
            forecasts: AtomicBool::new(memory >= FORECAST_MEMORY_MIN),
            accesses: AccessCounters::default(),
            writes: WriteCounters::default(),
            hand: AtomicUsize::new(0),
            wanted: AtomicBool::new(false),
            novelty: Mutex::new(Novelty::default()),
            last_merged: Mutex::new(Vec::new()),
            sparse: Mutex::new(BTreeSet::new()),
            removed: Mutex::new(BTreeSet::new()),
            tidying: Mutex::new(Tidying::default()),
            pages: PageCache::new(most),
            share: Mutex::new(Share::new(SHARES)),
            filters: PageFilters::new(memory),
            filter_share: Mutex::new(Share::new(FILTER_SHARES)),
            gap: Gap::default(),
            long_lists: Mutex::new(Vec::new()),
            long_lists_count: AtomicUsize::new(0),
        }
    }

    /// Gives room back to the file system if much is free; says whether it did.
    fn give_back_space(&self) -> Result<bool> {
        // So that who accounts for all pages finds them.
        let _gate = self.gate.read();
        Ok(self.store.give_back(GiveBack::Much)? > 0)
    }

    /// Reads and checks a page, its slotted layout included.
    pub(crate) fn read_page(
        &self,
        page: PageRef,
        buf: &mut [u8; PAGE_BYTES],
        purpose: Purpose,
    ) -> Result<()> {
        self.store.read(page.page, page.generation, buf, purpose)?;
        self.check_layout(page, buf).map(|_| ())
    }

    /// Reads and checks many pages into the pages of `buf`.
    pub(crate) fn read_pages(
        &self,
        pages: &[PageRef],
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let pages: Vec<_> = pages.iter().copied().enumerate().collect();
        self.read_some(&pages, buf, purpose)
    }

    /// Reads and checks many pages, each into the page of `buf` that is said, which ascend.
    pub(crate) fn read_some(
        &self,
        pages: &[(usize, PageRef)],
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let places: Vec<_> =
            pages.iter().map(|(index, page)| (*index, page.page, page.generation)).collect();
        self.store.read_many(&places, buf, purpose, &mut |index, block| {
            let place = pages.binary_search_by_key(&index, |(index, _)| *index);
            let page = pages[place.expect("one of them was read")].1;
            self.check_layout(page, block).map(|_| ())
        })
    }

    /// Copies those of the pages, which the caller has locked, that are cached into the pages of
    /// `buf`, and says where the others belong.
    pub(crate) fn missing_pages(
        &self,
        pages: &[PageRef],
        buf: &mut AlignedBuf,
    ) -> Vec<(usize, PageRef)> {
        let pages = pages.iter().copied().enumerate();
        pages.filter(|(index, page)| !self.pages.get(*page, buf.page_mut(*index))).collect()
    }

    /// Checks that a page may hold what its segment does: whoever is to change it relies on that.
    ///
    /// # Errors
    /// `Corruption` when its prefix or its keys are another segment's.
    pub(crate) fn check_bounds(
        &self,
        located: &Located,
        page: PageRef,
        block: &[u8; PAGE_BYTES],
    ) -> Result<()> {
        let view = PageView::trusted(block);
        // Keys ascend.
        let inside = [0, view.len().wrapping_sub(1)]
            .iter()
            .all(|index| *index >= view.len() || located.contains(&view.key(*index)));
        if located.prefix().starts_with(view.prefix()) && inside {
            return Ok(());
        }
        Err(Error::corruption(
            self.store.path().display(),
            page.page.offset(),
            format!("keys from {:?} up to {:?}", located.lower, located.upper),
            format!("prefix {} and {view:?}", view.prefix().escape_ascii()),
        ))
    }

    pub(crate) fn check_layout<'a>(
        &self,
        page: PageRef,
        buf: &'a [u8; PAGE_BYTES],
    ) -> Result<PageView<'a>> {
        PageView::parse(buf).map_err(|damage| damage.at(self.store.path(), page.page))
    }

    /// Brings home what the hand will soon meet, if there is something.
    fn write_back_soon(&self) -> Result<bool> {
        let mut keys = Vec::new();
        for _ in 0..self.cache.shards() {
            let shard = self.hand.fetch_add(1, Ordering::Relaxed);
            self.cache.soon_evicted(shard, BATCH_PAGES, &mut keys);
            if keys.len() >= BATCH_PAGES {
                break;
            }
        }
        keys.truncate(BATCH_PAGES);
        if keys.is_empty() {
            return Ok(false);
        }
        self.write_back(&keys)?;
        Ok(true)
    }

    /// Frees a place in the cache by bringing home the page of `victim` and some that would be met
    /// next.
    fn write_back_for(&self, victim: Vec<u8>, hash: u64) -> Result<()> {
        add(&self.writes.foreground_write_backs, 1);
        let mut keys = vec![victim];
        let shard = RecordId::of(hash).0 as usize;
        let pages = self.few_pages();
        for next in 0..self.cache.shards() {
            if keys.len() >= pages {
                break;
            }
            self.cache.soon_evicted(shard.wrapping_add(next), pages, &mut keys);
        }
        keys.truncate(pages);
        self.write_back(&keys)
    }

    /// Of how many pages or segments a batch is that should take little time.
    pub(crate) fn few_pages(&self) -> usize {
        let log = &self.context.log;
        let syncs = self.context.double_write
            || (self.context.logged && log.durable_lsn() < log.last_lsn());
        if syncs { BATCH_PAGES } else { FEW_PAGES }
    }

    /// Brings home the records of one segment whose dirty list is long; says whether there was one.
    /// Where keys arrive in order all of them belong to the last segment, which must not wait until
    /// the hand comes by.
    fn shorten_lists(&self) -> Result<bool> {
        let Some(key) = self.long_lists.lock().pop() else { return Ok(false) };
        self.long_lists_count.fetch_sub(1, Ordering::Relaxed);
        self.write_back(&[key])?;
        Ok(true)
    }

    /// Notes that a scan met many removals that are not home in the segment that begins at `lower`.
    pub(crate) fn note_removed(&self, lower: &[u8]) {
        if self.removed.lock().insert(lower.to_vec()) {
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Brings home removals that scans met; says whether there were any.
    fn bring_removals_home(&self) -> Result<bool> {
        let removed: Vec<Vec<u8>> = std::mem::take(&mut *self.removed.lock()).into_iter().collect();
        if removed.is_empty() {
            return Ok(false);
        }
        self.write_back(&removed)?;
        Ok(true)
    }

    /// Pages of buffers that are kept when nothing is written.
    fn buffer_pages_max(&self) -> usize {
        buffer_pages_for(self.context.memory.target())
    }

    /// Forecasts inserts, or forgets what it knows of them, by the memory that there is and what was chosen.
    fn choose_forecasts(&self) {
        let has_memory = self.context.memory.target() >= FORECAST_MEMORY_MIN;
        let forecasts = has_memory && self.tuning.forecast();
        if self.forecasts.swap(forecasts, Ordering::Relaxed) && !forecasts {
            self.forecaster.forget();
        }
    }

    /// Gives the cache what all else leaves of the keyspace's memory.
    fn follow_memory(&self) {
        self.choose_forecasts();
        let locks = self.segment_locks.bytes() + self.page_locks.bytes();
        let known = self.forecaster.bytes() + self.large.bytes();
        let index = self.index.bytes();
        let held = index + locks + known;
        // The general allocator keeps most of what the dirty lists of the index gave back, and more with it.
        let index_most = self.index_bytes_most.fetch_max(index, Ordering::Relaxed).max(index);
        let index_taken = index_most + index_most / INDEX_HEAP_PART;
        let (account, pages_max) = (&self.context.memory, self.buffer_pages_max());
        self.buffers.set_pages_max(BUFFERS_BURST * pages_max);
        let taken = held - index + index_taken + (pages_max * PAGE_BYTES) as u64;
        let left = account.target().saturating_sub(taken).max(self.cache.bytes_min());
        let usage = self.share_memory(left);
        let buffers = self.buffers.pages_kept().min(pages_max) * PAGE_BYTES;
        let pages = self.pages.bytes();
        let cached = usage.held + pages + self.filters.bytes();
        account.set_used(held + buffers as u64 + cached);
        account.set_full(cached >= left / 8 * 7);
        let records = Side { worth: usage.worth, bytes: usage.filled };
        let of_pages = Side { worth: self.pages.hits().1, bytes: pages };
        account.set_worth(self.worth.lock().follow(&[records, of_pages]));
        let least = self.cache.bytes_min().min(usage.held) + self.pages.bytes_min().min(pages);
        self.floor.store(held - index + index_taken + least, Ordering::Relaxed);
    }
}

impl TreeLine {
    /// Divides so many bytes between cached records, cached pages and page filters.
    fn share_memory(&self, bytes: u64) -> Usage {
        let usage = self.cache.usage();
        let records = Side { worth: usage.worth, bytes: usage.bytes };
        let of_filters = self.share_of_filters(bytes, records);
        let bytes = bytes - of_filters;
        let pages = Side { worth: self.pages.hits().1, bytes: self.pages.bytes() };
        let now = self.context.runtime.now();
        let of_pages = {
            let mut share = self.share.lock();
            let is_filled = pages.bytes >= share.of_second(bytes) / 8 * 7;
            let more = if is_filled { More::Wanted } else { More::Idle };
            share.follow(records, pages, more, now);
            share.of_second(bytes)
        };
        let of_pages = if self.tuning.page_cache() { of_pages } else { 0 };
        // Who gives gives first. Who does not is not cut to what it has: its shards are not equally full.
        if of_pages < pages.bytes {
            self.pages.resize(of_pages);
        }
        if of_filters < self.filters.bytes() {
            self.filters.resize(of_filters);
        }
        let of_records = if self.tuning.record_cache() { bytes - of_pages } else { 0 };
        self.cache.resize(of_records.max(self.cache.bytes_min()));
        let usage = self.cache.usage();
        // Dirty records that have to wait may keep more.
        let of_pages = of_pages.min(bytes.saturating_sub(usage.bytes));
        self.pages.resize(of_pages);
        self.filters
            .resize(of_filters.min((bytes + of_filters).saturating_sub(usage.bytes + of_pages)));
        usage
    }

    /// How many of so many bytes page filters may have beside these records.
    fn share_of_filters(&self, bytes: u64, records: Side) -> u64 {
        if !self.filters.are_wanted() || !self.tuning.page_filters() {
            return 0;
        }
        // Records keep what they cannot do without.
        let bytes = bytes.saturating_sub(self.cache.bytes_min());
        let filters = Side { worth: self.filters.refused(), bytes: self.filters.bytes() };
        let mut share = self.filter_share.lock();
        let is_filled = filters.bytes >= share.of_second(bytes) / 8 * 7;
        let more = if is_filled { More::Wanted } else { More::Idle };
        share.follow(records, filters, more, self.context.runtime.now());
        share.of_second(bytes)
    }
}

/// The words of the record cache that a write has reserved.
fn reserved(prepared: Prepared) -> usize {
    usize::try_from(prepared.0[0]).expect("it was one")
}

impl Engine for TreeLine {
    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        match found_in(self.cache.get(RecordId::of(hash), key, out)) {
            Some(found) => {
                self.accesses.hit();
                Ok(found)
            }
            None => self.read_through(key, hash, out, false),
        }
    }

    fn get_resident(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Resident {
        match self.cache.get(RecordId::of(hash), key, out) {
            Cached::Present => Resident::Present,
            Cached::Large => Resident::Large,
            Cached::Absent => Resident::Absent,
            Cached::Unknown => Resident::Unknown,
        }
    }

    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        self.lookup_many(keys)
    }

    fn prepare(&self, write: &Write<'_>) -> Result<Prepared> {
        let id = RecordId::of(write.hash);
        if self.long_lists_count.load(Ordering::Relaxed) > LONG_LISTS_MAX {
            self.shorten_lists()?;
        }
        let mut busy = Busy::default();
        loop {
            match self.cache.prepare(id, write.key, write.value) {
                Room::Ready(words) => return Ok(Prepared([words as u64, 0])),
                Room::Dirty(victim) => {
                    self.context.poison.check()?;
                    self.wanted.store(true, Ordering::Relaxed);
                    let work = || self.write_back_for(victim, write.hash);
                    self.writes.stalls.during(&self.context.runtime, work)?;
                }
                Room::Busy => {
                    busy.wait(&self.context.runtime)?;
                    if !self.context.runtime.help() {
                        thread::yield_now();
                    }
                }
            }
        }
    }

    fn cancel(&self, write: &Write<'_>, prepared: Prepared) {
        self.cache.cancel(RecordId::of(write.hash), reserved(prepared));
    }

    fn apply(&self, write: &Write<'_>, prepared: Prepared, _lsn: Lsn) {
        let id = RecordId::of(write.hash);
        let pointer = write.value.filter(|value| value.large);
        if let Some(pointer) = pointer {
            self.large.applied(pointer.bytes, 0);
        }
        let mut replaced = Vec::new();
        let Became { dirty, may_be_new } =
            self.cache.put(id, write.key, write.value, reserved(prepared), &mut replaced);
        self.accesses.put(may_be_new && write.value.is_some());
        if may_be_new && write.value.is_some() && self.forecasts.load(Ordering::Relaxed) {
            self.forecaster.record(write.key);
        }
        if dirty && self.index.push_dirty(write.key, id).is_multiple_of(LONG_LIST) {
            self.long_lists.lock().push(write.key.to_vec());
            self.long_lists_count.fetch_add(1, Ordering::Relaxed);
            self.wanted.store(true, Ordering::Relaxed);
        }
        // Only now, with the record on a dirty list: a checkpoint that begins after the old value was
        // freed must write the record back, since it lets the value go that the page still names.
        if !replaced.is_empty() && pointer.is_none_or(|new| new.bytes != replaced) {
            self.large.superseded(&replaced);
        }
        // When scans find it.
        if write.value.is_some() {
            self.gap.inserted(write.key);
        }
    }

    fn make_resident(&self, key: &[u8], hash: u64) -> Result<()> {
        let mut value = Vec::new();
        match self.cache.get(RecordId::of(hash), key, &mut value) {
            Cached::Unknown => self.read_through(key, hash, &mut value, true).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.scan_chunk(request, chunk)
    }

    fn checkpoint(&self, redo: Lsn) -> Result<()> {
        self.publish_checkpoint(redo, &mut |_| false)
    }

    fn checkpoint_slowly(&self, redo: Lsn, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        self.publish_checkpoint(redo, rest)
    }

    fn is_dirty(&self) -> bool {
        self.cache.usage().dirty > 0
    }

    fn redo(&self) -> Lsn {
        Lsn(self.redo.load(Ordering::Acquire))
    }

    fn replay_structure(&self, lsn: Lsn, payload: &[u8]) -> Result<()> {
        let wrapped =
            |error: Error| error.wrap(ErrorKind::Corruption, self.context.path().display());
        if let Some((change, extents)) = decode_large(payload).map_err(wrapped)? {
            // The checkpoint knows what happened up to its redo LSN.
            if lsn > self.redo() {
                self.large_unsettled.store(true, Ordering::Relaxed);
                self.replay_large_change(change, extents).map_err(wrapped)?;
            }
            return Ok(());
        }
        let (change, sequence) = decode_change(payload).map_err(wrapped)?;
        let done = self.index.sequence();
        if sequence <= done {
            // The checkpoint was taken after this change, though its redo LSN lies before the
            // record.
            return Ok(());
        }
        if sequence != done + 1 {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!(
                    "{}: structure change {} is missing from the log",
                    self.context.path().display(),
                    done + 1
                ),
            ));
        }
        self.index.apply(&change, |_| Vec::new(), |_| ())
    }

    fn end_structure_replay(&self) -> Result<()> {
        let mut owned = Vec::new();
        self.index.for_each(|_, segment| owned.extend(segment.extents()));
        owned.extend(self.large.owned());
        let restored = self.store.adopt(&owned)?;
        add(&self.writes.pages_restored, restored);
        if !self.context.log.was_closed() {
            self.pages_in_doubt.store(true, Ordering::Relaxed);
            self.store.mend_slots()?;
        }
        if !self.context.logged && self.large_unsettled.load(Ordering::Relaxed) {
            self.reconcile_large()?;
        }
        self.follow_memory();
        Ok(())
    }

    fn values(&self) -> &Arc<Values> {
        &self.large
    }

    fn set_option(&self, name: &str, value: &str) -> Result<()> {
        self.tuning.set(name, value)?;
        self.choose_forecasts();
        Ok(())
    }

    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let pages = self.index.pages_between(lower, upper);
        self.accesses.filled_part(pages * PAGE_BYTES as u64)
    }

    fn stats(&self) -> EngineStats {
        let usage = self.cache.usage();
        let counts = self.index.counts();
        let forecast = self.forecaster.stats();
        let (cache_hits, cache_misses, pages_read) = self.accesses.sum();
        let common = EngineStats::of(&self.large, &self.writes.stalls);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bytes = counts.pages() * PAGE_BYTES as u64;
        let live = self.accesses.filled_part(bytes);
        let (scan_records, scan_tombstones) = self.accesses.looked_at();
        EngineStats {
            cache_hits,
            cache_misses,
            records_cached: usage.records,
            records_dirty: usage.dirty,
            cache_bytes: usage.held,
            page_cache_bytes: self.pages.bytes(),
            page_cache_hits: self.pages.hits().0,
            page_filter_bytes: self.filters.bytes(),
            page_filter_refusals: self.filters.refused(),
            index_bytes: self.index.bytes(),
            pages: counts.base_pages(),
            overflow_pages: counts.overflow_pages,
            staged_pages: counts.staged_pages,
            segments: counts.segments,
            live_bytes: live + common.large_bytes,
            dead_bytes: bytes - live + common.large_freed_bytes,
            scan_pages: self.accesses.pages_scanned(),
            scan_records,
            scan_tombstones,
            pages_read,
            pages_written_back: load(&self.writes.pages_written_back),
            records_written_back: load(&self.writes.records_written_back),
            foreground_write_backs: load(&self.writes.foreground_write_backs),
            reorganizations: load(&self.writes.reorganizations),
            reorganized_pages_in: load(&self.writes.reorganized_pages_in),
            reorganized_pages_out: load(&self.writes.reorganized_pages_out),
            inserts_forecast: whole(forecast.forecast),
            inserts_as_forecast: whole(forecast.came_as_forecast),
            forecast_errors: [forecast.histogram_error, forecast.trend_error].map(whole),
            forecast_by_trend: forecast.trend_answers,
            checkpoints: load(&self.writes.checkpoints),
            pages_restored: load(&self.writes.pages_restored),
            ..common
        }
    }
}

impl Maintain for TreeLine {
    fn background(&self) -> Result<Next> {
        self.wanted.store(false, Ordering::Relaxed);
        self.follow_memory();
        self.store.reclaim(self.context.log.durable_lsn());
        self.large.reuse();
        if self.context.poison.is_set() {
            return Ok(Next::Wait(IDLE));
        }
        let loading = self.loads.load(Ordering::SeqCst) > 0;
        let wrote = self.shorten_lists()?
            | self.bring_removals_home()?
            | self.write_back_soon()?
            | (!loading && if_room(|| self.shrink_some())?);
        // Who asked for bursts to be staged wants them merged as soon as they end.
        let merges = !wrote && !loading && self.tuning.staging() == Staging::On;
        let wrote = wrote || (merges && if_room(|| self.merge_staged())?);
        self.journal.publish_if_due(&self.context, &self.store, !wrote)?;
        if !wrote {
            self.buffers.trim(self.buffer_pages_max());
        }
        if wrote || loading {
            self.disturb_tidying();
        } else if let Some(rest) = without_reserve(|| self.tidy())? {
            return Ok(Next::Wait(rest));
        }
        let wrote = wrote || self.give_back_space()?;
        Ok(if wrote { Next::Again } else { Next::Wait(IDLE) })
    }

    fn memory_floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    fn takes_wish(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed)
    }

    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        self.verify_all(watch)
    }

    fn bulk(&self) -> Result<Box<dyn Bulk + '_>> {
        self.context.poison.check()?;
        Ok(Box::new(self.begin_bulk()?))
    }

    fn scrub(&self, from: &[u8]) -> Scrubbed {
        self.scrub_piece(from)
    }

    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        self.compact_region(from, upper)
    }

    fn data_bytes(&self) -> u64 {
        (self.index.counts().pages() + self.large.live_pages()) * PAGE_BYTES as u64
    }

    fn unwritten_bytes(&self) -> u64 {
        self.store.payload_pages() * PAGE_BYTES as u64
    }

    fn step_bytes(&self) -> u64 {
        let pages = self.index.counts().base_pages().min(REGION_PAGES_MAX as u64);
        pages * PAGE_BYTES as u64
    }

    fn make_room(&self) -> Result<()> {
        for _ in 0..ROOM_STEPS_MAX {
            match self.shrink_sparse() {
                Ok(true) => {}
                Err(error) if !error.is_full() => return Err(error),
                Ok(false) | Err(_) => break,
            }
        }
        Ok(())
    }

    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64 {
        self.bytes_of_range(from, upper)
    }

    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>> {
        Ok(Box::new(self.copy_to(directory, name)?))
    }
}

/// Pages of buffers that a keyspace of so much memory keeps when nothing is written.
fn buffer_pages_for(memory: u64) -> usize {
    let pages = usize::try_from(memory / BUFFERS_SHARE).unwrap_or(usize::MAX) / PAGE_BYTES;
    pages.min(BUFFER_PAGES_MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Room in the cache that others have reserved, and are about to use.
#[derive(Default)]
struct Busy {
    times: u32,
    since: Option<Duration>,
}

impl Busy {
    /// Gives up when that takes far longer than any write: then it is one's own batch that has
    /// reserved what there is, and no waiting helps.
    fn wait(&mut self, runtime: &Runtime) -> Result<()> {
        const TIMES: u32 = 2000;
        const TIME: Duration = Duration::from_secs(2);
        self.times += 1;
        let now = runtime.now();
        let since = *self.since.get_or_insert(now);
        if self.times > TIMES && now.saturating_sub(since) > TIME {
            let text = "the writes under way need more memory than the record cache has";
            return Err(Error::new(ErrorKind::Full, text));
        }
        Ok(())
    }
}

const _: () = assert!(PageNumber::NONE.0 < spinney_extent::store::DATA_PAGE_FIRST);

/// Runs what may wait: it takes nothing from the reserve, and a full disk makes it wait.
fn if_room(work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    match without_reserve(work) {
        Err(error) if error.is_full() => Ok(false),
        done => done,
    }
}
