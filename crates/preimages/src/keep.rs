//! The pre-images of a keyspace, and what writers and write-back do with them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use spinney_base::shim::{Mutex, MutexGuard, RwLock};
use spinney_base::{Error, ErrorKind, ValueRef};
use spinney_engine::{EngineContext, PreImageStats, SnapshotNumber, Store};

use crate::lives::Lives;
use crate::marks::{Mark, Marks, Notes};
use crate::room::Links;
use crate::run::{Pages, Run};
use crate::table::{Layer, LinkMap, Table};

/// Fewest bytes of memory that pre-images may take, however little the keyspace has.
const BOUND_BYTES_MIN: u64 = 64 << 10;
/// Bytes beyond the bound at which snapshots end, or a quarter of the bound if that is more. A batch or a
/// write-back may add some hundred KiB where nothing can be written out, and there is one in each thread.
const BEYOND_BYTES_MAX: u64 = 1 << 20;

/// What an engine's memory knows of a key before a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The key has a value, which was appended.
    Value,
    /// The key has a large value; the pointer was appended.
    Large,
    /// The key has no value.
    Absent,
    /// Only its page tells.
    Unknown,
}

/// The pre-images of one keyspace. Thread-safe.
#[derive(Debug)]
pub struct PreImages {
    pub(crate) context: EngineContext,
    /// Of runs.
    pub(crate) pages: Arc<Pages>,
    /// Ascending by number.
    pub(crate) tables: ArcSwap<Vec<Arc<Table>>>,
    /// How many tables there are, for those who ask often.
    count: AtomicUsize,
    pub(crate) marks: Marks,
    pub(crate) lives: Lives,
    /// Held while lists of tables and parts are changed.
    pub(crate) changing: Mutex<()>,
    /// Links that were made, and those to come.
    pub(crate) links: Links,
    /// Held by one thread that writes a map out.
    pub(crate) spilling: Mutex<()>,
    /// Held by one thread that merges runs.
    pub(crate) merging: Mutex<()>,
    /// Held shared while a link is made that no announced writer makes.
    pub(crate) linking: RwLock<()>,
    /// Most bytes of memory.
    bound: AtomicU64,
    /// Most bytes of runs.
    pub(crate) run_bytes_max: AtomicU64,
    /// Marks that were resolved. Counted between the link and the removal of the mark.
    pub(crate) resolved: AtomicU64,
    /// Maps that were written out.
    pub(crate) spilled: AtomicU64,
}

impl PreImages {
    /// Makes the pre-images of a keyspace whose runs lie in `store`, and whose marks are `notes`.
    #[must_use]
    pub fn new(context: EngineContext, store: Arc<Store>, notes: Arc<dyn Notes>) -> PreImages {
        Self::with(context, store, Some(notes))
    }

    /// Makes the pre-images of a keyspace whose records have no room for notes: each mark takes some
    /// memory, and [`PreImages::keep`] returns nothing that is to be put.
    #[must_use]
    pub fn without_notes(context: EngineContext, store: Arc<Store>) -> PreImages {
        Self::with(context, store, None)
    }

    fn with(context: EngineContext, store: Arc<Store>, notes: Option<Arc<dyn Notes>>) -> PreImages {
        PreImages {
            marks: Marks::new(context.keyspace, notes),
            context,
            pages: Pages::of(store),
            tables: ArcSwap::default(),
            count: AtomicUsize::new(0),
            lives: Lives::default(),
            changing: Mutex::new(()),
            links: Links::default(),
            spilling: Mutex::new(()),
            merging: Mutex::new(()),
            linking: RwLock::new(()),
            bound: AtomicU64::new(BOUND_BYTES_MIN),
            run_bytes_max: AtomicU64::new(u64::MAX),
            resolved: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
        }
    }

    /// Keeps what a write of a batch with this number replaces. The engine calls it in its `apply`,
    /// before the put; `know` tells what its memory has of the key. Returns the note to put with the
    /// record ([`Notes`]).
    #[inline]
    #[must_use]
    pub fn keep(
        &self,
        newest: SnapshotNumber,
        (key, hash): (&[u8], u64),
        know: impl FnOnce(&mut Vec<u8>) -> Known,
    ) -> u8 {
        if newest == SnapshotNumber::NONE { 0 } else { self.keep_for(newest.0, (key, hash), know) }
    }

    #[inline(never)]
    fn keep_for(
        &self,
        newest: u64,
        (key, hash): (&[u8], u64),
        know: impl FnOnce(&mut Vec<u8>) -> Known,
    ) -> u8 {
        let tables = self.tables.load();
        let Some(table) = tables.iter().rev().find(|table| table.number <= newest) else {
            return 0;
        };
        if self.lives.has_ended(table.number) {
            return 0;
        }
        if self.marks.get(key, hash).is_some_and(|mark| mark.table == table.number)
            || table.parts.load().map.contains(key)
        {
            return 0;
        }
        if self.is_far_over() {
            // Nothing waits or is freed here; the flag is set before the put (S16).
            self.end_for_want_of_memory();
            return 0;
        }
        let mut old = Vec::new();
        let value = match know(&mut old) {
            Known::Value => Some(ValueRef::inline(&old)),
            Known::Large => Some(ValueRef::large(&old)),
            Known::Absent => None,
            Known::Unknown => return self.mark(table, key, hash),
        };
        self.link(table, key, value);
        0
    }

    fn mark(&self, table: &Table, key: &[u8], hash: u64) -> u8 {
        table.marks.fetch_add(1, SeqCst);
        let (note, before) = self.marks.set(key, hash, table.number);
        // One that is replaced is of a table that is gone: the snapshots that needed it are.
        if let Some(before) = before {
            self.unmarked(before);
        }
        note
    }

    /// Counts that a mark has gone.
    fn unmarked(&self, mark: Mark) {
        if let Some(table) = self.table(mark.table) {
            table.marks.fetch_sub(1, SeqCst);
        }
    }

    /// Adds a link to the map of a table, which may be sealed meanwhile.
    fn link(&self, table: &Table, key: &[u8], value: Option<ValueRef<'_>>) {
        loop {
            // A map is replaced before it is sealed.
            if let Some(bytes) = table.parts.load().map.link(key, value) {
                return self.links.note(bytes);
            }
        }
    }

    pub(crate) fn table(&self, number: u64) -> Option<Arc<Table>> {
        let tables = self.tables.load();
        let found = tables.binary_search_by_key(&number, |table| table.number).ok()?;
        Some(tables[found].clone())
    }

    /// Returns whether any key is marked.
    #[inline]
    #[must_use]
    pub fn has_marks(&self) -> bool {
        self.marks.len() > 0
    }

    /// Returns some marked keys, for the engine to write back, when marks that are no notes take more
    /// than half of the bound: nothing else makes them less.
    #[must_use]
    pub fn marked_too_many(&self, most: usize) -> Vec<Vec<u8>> {
        if self.marks.bytes() <= self.bound() / 2 {
            return Vec::new();
        }
        self.marks.some(most)
    }

    /// Returns whether a key is marked: its page must not be hidden by another one (S11).
    #[must_use]
    pub fn is_marked(&self, key: &[u8], hash: u64) -> bool {
        self.marks.get(key, hash).is_some()
    }

    /// Keeps what the page of a record holds that is about to be written there, if the key is
    /// marked. The caller excludes every other thread that would rewrite the page (S10).
    pub fn bring_home(&self, key: &[u8], hash: u64, old: Option<ValueRef<'_>>) {
        let Some(mark) = self.marks.get(key, hash) else { return };
        {
            let _linking = self.linking.read();
            if let Some(table) = self.table(mark.table)
                && !self.lives.has_ended(mark.table)
                && !table.parts.load().map.contains(key)
            {
                if self.is_far_over() {
                    self.end_for_want_of_memory();
                } else {
                    self.link(&table, key, old);
                }
            }
        }
        // While the mark is counted its table is not folded.
        self.resolved.fetch_add(1, SeqCst);
        if self.marks.remove(key, hash, mark) {
            self.unmarked(mark);
        }
    }

    /// Publishes the table of a snapshot. Numbers ascend, and no batch has this one yet (S4).
    pub(crate) fn publish(&self, number: u64, is_live: bool) {
        let _alone = self.changing.lock();
        if is_live {
            self.lives.add(number);
        }
        let mut tables = Vec::clone(&self.tables.load());
        tables.push(Table::new(number));
        self.set_tables(tables);
    }

    /// Notes that a load with this number is about to come into the keyspace, which is empty: what
    /// tables before have nothing of was absent (S17). No write is under way, and nothing is marked.
    pub fn before_load(&self, number: SnapshotNumber) {
        let last = self.tables.load().last().cloned();
        if let Some(last) = last {
            last.is_rest_absent.store(true, SeqCst);
            self.publish(number.0, false);
        }
    }

    /// Notes that a snapshot has been dropped.
    pub(crate) fn drop_snapshot(&self, number: u64) {
        self.lives.remove(number);
        self.trim();
    }

    /// Frees the tables that no snapshot needs (S14), and folds neighbours that none tells apart
    /// (S15).
    pub fn trim(&self) {
        let mut freed = Vec::new();
        {
            let _alone = self.changing.lock();
            let tables = self.tables.load_full();
            if tables.is_empty() {
                return;
            }
            let least = self.lives.least();
            let is_needed = |table: &Arc<Table>| least.is_some_and(|least| table.number >= least);
            let mut kept: Vec<Arc<Table>> = Vec::with_capacity(tables.len());
            for table in tables.iter() {
                if is_needed(table) { kept.push(table.clone()) } else { freed.push(table.clone()) }
            }
            let is_folded = self.fold(&mut kept);
            if is_folded || !freed.is_empty() {
                self.set_tables(kept);
            }
            if least.is_none() {
                // A write that began before may set one more. It goes when its key is written back.
                self.marks.clear();
            }
        }
        // Maps and runs go here, unless a reader has them.
        drop(freed);
    }

    /// Puts the layers of a table before those of the next, where no snapshot tells the two apart.
    /// The caller holds `changing`. Every write that may have had the number of the first has been
    /// applied, because the snapshot of the second has been taken, and dropped.
    fn fold(&self, tables: &mut Vec<Arc<Table>>) -> bool {
        let mut is_folded = false;
        let mut index = 0;
        while index + 1 < tables.len() {
            let (first, second) = (&tables[index], &tables[index + 1]);
            let is_apart = self.lives.has_between(first.number, second.number)
                || first.is_rest_absent.load(SeqCst);
            // Nobody resolves a mark meanwhile, which would make a link in the first.
            let linking = (!is_apart).then(|| self.linking.write());
            if is_apart || first.marks.load(SeqCst) > 0 {
                index += 1;
                continue;
            }
            let parts = first.parts.load_full();
            let mut layers = parts.layers.clone();
            if parts.map.len() > 0 {
                layers.push(Layer::Map(parts.map.clone()));
            }
            second.change_layers(|next| {
                layers.append(next);
                *next = layers;
            });
            drop(linking);
            tables.remove(index);
            is_folded = true;
        }
        is_folded
    }

    /// Follows the memory of the keyspace, of which pre-images may take a quarter, and sets the most
    /// bytes of disk that their runs may take.
    pub fn follow(&self, memory: u64, run_bytes_max: u64) {
        self.bound.store((memory / 4).max(BOUND_BYTES_MIN), SeqCst);
        self.run_bytes_max.store(run_bytes_max, SeqCst);
    }

    /// Returns the bytes of memory that maps, marks, runs and their buffers hold.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let mut of_runs = 0;
        self.each_run(|run| of_runs += run.memory_bytes());
        self.link_bytes() + self.marks.bytes() + of_runs + self.pages.memory_bytes()
    }

    /// Bytes of maps.
    pub(crate) fn link_bytes(&self) -> u64 {
        let of_table = |table: &Arc<Table>| {
            let parts = table.parts.load();
            let layers = parts.layers.iter().map(|layer| match layer {
                Layer::Map(map) => map.bytes(),
                Layer::Run(_) => 0,
            });
            parts.map.bytes() + layers.sum::<u64>()
        };
        self.tables.load().iter().map(of_table).sum()
    }

    /// Returns the pages that runs take.
    #[must_use]
    pub fn run_pages(&self) -> u64 {
        *self.pages.hold()
    }

    /// Returns the same, which stay so many until the guard is dropped.
    pub fn hold_run_pages(&self) -> MutexGuard<'_, u64> {
        self.pages.hold()
    }

    /// Returns the numbers of what it keeps.
    #[must_use]
    pub fn stats(&self) -> PreImageStats {
        let mut stats = PreImageStats::default();
        stats.snapshots = self.lives.len();
        stats.links = self.maps().iter().map(|(_, map)| map.len()).sum();
        // Those of tables that are gone stand for nothing.
        stats.marks = if self.is_empty() { 0 } else { self.marks.len() };
        stats.memory_bytes = self.memory_bytes();
        stats.run_bytes = self.run_pages() * PAGE_BYTES as u64;
        stats.spills = self.spilled.load(SeqCst);
        stats.resolved = self.resolved.load(SeqCst);
        stats.ended = self.lives.ended_count();
        stats
    }

    pub(crate) fn each_run(&self, mut see: impl FnMut(&Arc<Run>)) {
        for table in self.tables.load().iter() {
            for layer in &table.parts.load().layers {
                if let Layer::Run(run) = layer {
                    see(run);
                }
            }
        }
    }

    /// Returns whether no snapshot needs anything here.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Replaces the list of tables. The caller holds `changing`.
    fn set_tables(&self, tables: Vec<Arc<Table>>) {
        self.count.store(tables.len(), Relaxed);
        self.tables.store(Arc::new(tables));
    }

    /// Most bytes of memory.
    pub(crate) fn bound(&self) -> u64 {
        self.bound.load(SeqCst)
    }

    /// Whether maps take more than so many eighths of the bound. Their half is four.
    pub(crate) fn is_over(&self, eighths: u64) -> bool {
        self.is_over_with(0, eighths)
    }

    /// The same, with so many bytes more.
    pub(crate) fn is_over_with(&self, bytes: u64, eighths: u64) -> bool {
        self.link_bytes() + bytes > self.bound() / 8 * eighths
    }

    fn is_far_over(&self) -> bool {
        let bound = self.bound();
        self.link_bytes() + self.marks.bytes() > bound + BEYOND_BYTES_MAX.max(bound / 4)
    }

    #[cold]
    fn end_for_want_of_memory(&self) {
        let bound = self.bound();
        let text = format!(
            "what it keeps of replaced values exceeds {bound} bytes, a quarter of the keyspace's memory, by far"
        );
        let last = self.tables.load().last().map(|table| table.number);
        if let Some(last) = last {
            self.lives.end(last, &Error::new(ErrorKind::Full, text));
        }
    }

    /// Ends the oldest snapshot of the keyspace because of `cause`. Returns whether there was one.
    pub fn end_oldest(&self, cause: &Error) -> bool {
        let Some(oldest) = self.lives.least() else { return false };
        self.lives.end(oldest, cause);
        self.trim();
        true
    }

    /// Maps of all tables, each with its table.
    pub(crate) fn maps(&self) -> Vec<(Arc<Table>, Arc<LinkMap>)> {
        let tables = self.tables.load_full();
        let mut maps = Vec::new();
        for table in tables.iter() {
            let parts = table.parts.load_full();
            for layer in &parts.layers {
                if let Layer::Map(map) = layer {
                    maps.push((table.clone(), map.clone()));
                }
            }
            maps.push((table.clone(), parts.map.clone()));
        }
        maps
    }
}
