//! TurtleKV behind the contract of engines.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, Lsn, Next, Result};
use spinney_engine::{
    Bulk, Capabilities, Chunk, ClosedGate, Compacted, Engine, EngineContext, EngineStats, Found,
    KeyspaceBackup, Maintain, OwnedValue, Prepared, Resident, ScanRequest, Scrubbed,
    SnapshotNumber, TurtleStats, Values, VerifyReport, Watch, Write,
};
use spinney_io::Directory;

use crate::backup::Copying;
use crate::bulk::Loading;
use crate::core::{Core, MEMTABLE_HITS, MISSES, RECORD_HITS};
use crate::files::Passed;
use crate::memtable::EDIT_BYTES;
use crate::options;
use crate::range::KeyRange;

/// A keyspace kept by TurtleKV.
#[derive(Debug)]
pub struct Turtle {
    core: Arc<Core>,
}

impl Turtle {
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
    pub fn create(context: EngineContext, redo: Lsn) -> Result<Turtle> {
        Core::create(context, redo).map(|core| Turtle { core: Arc::new(core) })
    }

    /// Opens a keyspace at its newest checkpoint.
    ///
    /// # Errors
    /// `Corruption`, `Unsupported` for a later version, or `Io`.
    pub fn open(context: EngineContext) -> Result<Turtle> {
        Core::open(context).map(|core| Turtle { core: Arc::new(core) })
    }
}

#[cfg(all(test, feature = "shuttle"))]
impl Turtle {
    /// Keeps records from here on.
    pub(crate) fn begin_records(&self) {
        self.core.begin_records(1 << 20);
    }

    /// As after a range that met many tombstones.
    pub(crate) fn passed_much(&self) {
        self.core.files.disk.gap.passed_much();
    }
}

/// What a write takes in a memtable, at most.
fn cost(write: &Write<'_>) -> u64 {
    let value = write.value.map_or(0, spinney_base::ValueRef::len);
    (write.key.len() + value) as u64 + EDIT_BYTES
}

impl Engine for Turtle {
    fn capabilities(&self) -> Capabilities {
        Self::CAPABILITIES
    }

    fn replays_in_bulk(&self) -> bool {
        true
    }

    fn get(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Result<Found> {
        let core = &*self.core;
        let records = core.records.reader();
        let ticket = records.ticket(hash);
        let view = core.view.load();
        if let Some(found) = view.get_resident(key, hash, out) {
            core.counters.reads.add(MEMTABLE_HITS, 1);
            return Ok(found);
        }
        if records.get(key, hash, out) {
            core.counters.reads.add(RECORD_HITS, 1);
            return Ok(Found::Inline);
        }
        core.counters.reads.add(MISSES, 1);
        let start = out.len();
        let found = view.tree.get(key, hash, out)?;
        if found == Found::Inline {
            // Also what is pending: it is read where it lies no more once it is written.
            records.keep(key, hash, &out[start..], ticket);
        }
        Ok(found)
    }

    fn get_resident(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Resident {
        let view = self.core.view.load();
        match view.get_resident(key, hash, out) {
            Some(Found::Inline) => Resident::Present,
            Some(Found::Large) => Resident::Large,
            Some(Found::Absent) => Resident::Absent,
            None => match view.tree.get_resident(key, out) {
                Resident::Unknown => self.core.residents.get(key, out),
                known => known,
            },
        }
    }

    fn get_many(&self, keys: &[(&[u8], u64)]) -> Result<Vec<Option<OwnedValue>>> {
        let records = self.core.records.reader();
        let tickets: Vec<_> = keys.iter().map(|(_, hash)| records.ticket(*hash)).collect();
        let view = self.core.view.load();
        let (mut hits, mut missed) = (0, Vec::new());
        let values = view.get_many(keys, |place, out| {
            let (key, hash) = keys[place];
            let is_kept = records.get(key, hash, out);
            if is_kept {
                hits += 1
            } else {
                missed.push(place)
            }
            is_kept
        })?;
        let reads = &self.core.counters.reads;
        reads.add(MEMTABLE_HITS, (keys.len() - missed.len()) as u64 - hits);
        reads.add(RECORD_HITS, hits);
        reads.add(MISSES, missed.len() as u64);
        for place in missed {
            if let Some(value) = values[place].as_ref().filter(|value| !value.large) {
                let (key, hash) = keys[place];
                records.keep(key, hash, &value.bytes, tickets[place]);
            }
        }
        Ok(values)
    }

    fn enter(&self) -> Result<()> {
        self.core.enter()
    }

    fn leave(&self) {
        self.core.gate.leave();
    }

    fn prepare(&self, write: &Write<'_>) -> Result<Prepared> {
        self.core.context.poison.check()?;
        let bytes = cost(write);
        self.core.memory.reserve(bytes);
        Ok(Prepared([bytes, 0]))
    }

    fn cancel(&self, _write: &Write<'_>, Prepared([bytes, _]): Prepared) {
        self.core.memory.release(bytes);
    }

    fn apply(
        &self,
        write: &Write<'_>,
        Prepared([bytes, _]): Prepared,
        _lsn: Lsn,
        _newest: SnapshotNumber,
    ) {
        let core = &*self.core;
        // Nobody seals it while the writer is inside the gate.
        let view = core.view.load();
        let active = &view.tables[0];
        let pointer = write.value.filter(|value| value.large);
        if let Some(pointer) = pointer {
            core.large.applied(pointer.bytes, active.number());
        }
        let replaced = active.put(write.key, write.hash, write.value);
        if let Some(replaced) = replaced
            && pointer.is_none_or(|new| new.bytes != replaced)
        {
            core.large.superseded(&replaced);
        }
        core.residents.written(write.key);
        core.records.changed(write);
        core.memory.release(bytes);
        if write.value.is_some() {
            core.files.disk.gap.inserted(write.key);
        }
    }

    fn make_resident(&self, key: &[u8], hash: u64) -> Result<()> {
        let core = &self.core;
        core.residents.keep(key, |out| core.view.load().get(key, hash, out))
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        let gap = &self.core.files.disk.gap;
        let look = request.first_key_from().and_then(|from| gap.look(&from));
        let Some(look) = look else { return self.core.view.load().scan(request, chunk) };
        let request = ScanRequest { lower: Bound::Included(look.from()), ..*request };
        // The view is of a later moment than the look.
        let result = self.core.view.load().scan(&request, chunk);
        let found = (!chunk.is_empty()).then(|| chunk.get(0).0);
        gap.found(look, found.filter(|_| result.is_ok()), None);
        result
    }

    /// The redo LSN may come out above `redo`: nothing of this keyspace lies between.
    fn checkpoint(&self, _redo: Lsn) -> Result<()> {
        self.core.checkpoint()
    }

    fn is_dirty(&self) -> bool {
        let view = self.core.view.load();
        view.tree.pending().items > 0 || view.tables.iter().any(|table| !table.is_empty())
    }

    fn redo(&self) -> Lsn {
        self.core.redo()
    }

    fn values(&self) -> &Arc<Values> {
        &self.core.large
    }

    fn replay_structure(&self, lsn: Lsn, _payload: &[u8]) -> Result<()> {
        let path = self.core.context.path();
        let path = path.display();
        let found = format!("log record {lsn}");
        Err(Error::corruption(path, 0, "a keyspace that logs no changes of structure", found))
    }

    fn end_structure_replay(&self) -> Result<()> {
        self.core.begin()
    }

    fn end_replay(&self) -> Result<()> {
        self.core.end_replay();
        Ok(())
    }

    fn set_option(&self, name: &str, value: &str) -> Result<()> {
        match options::parse(name, value)? {
            options::Choice::Chi(chi) => _ = self.core.set_chi(chi),
            choice => self.core.tuning.set(choice),
        }
        Ok(())
    }

    fn has_gate(&self) -> bool {
        true
    }

    fn close_gate(&self, patience: Option<Duration>) -> Option<Box<dyn ClosedGate + '_>> {
        self.core.close_gate(patience)
    }

    fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let view = self.core.view.load();
        let in_tables = view.tables.iter().map(|table| table.bytes_between(lower, upper));
        view.tree.live_between(lower, upper) + in_tables.sum::<u64>()
    }

    fn stats(&self) -> EngineStats {
        let core = &self.core;
        let view = core.view.load();
        let pending = view.tree.pending();
        let mut stats = EngineStats::of(&core.large, &core.counters.stalls);
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let counters = &core.counters;
        let mut in_tables = Passed::default();
        for table in &view.tables {
            in_tables.edits += table.len();
            in_tables.tombstones += table.tombstones().min(table.len());
        }
        let limits = core.limits();
        let mut turtle = TurtleStats::default();
        turtle.checkpoint_distance = core.chi();
        turtle.is_distance_automatic = core.tuning.chi().is_none();
        turtle.leaf_bytes = core.leaf_bytes();
        turtle.batch_bytes = limits.batch;
        turtle.memtables = view.tables.len() as u64;
        turtle.memtable_bytes = view.tables.iter().map(|table| table.bytes()).sum();
        turtle.pending_batches = core.progress.batches();
        turtle.pending_bytes = pending.bytes;
        turtle.memtables_sealed = load(&counters.seals);
        turtle.batches_applied = load(&counters.applied);
        turtle.writes_delayed = load(&counters.delays);
        turtle.snapshots = core.snapshots.all().len() as u64;
        turtle.snapshot_bytes = core.snapshots.bytes();
        turtle.snapshots_written = load(&counters.snapshots_written);
        turtle.snapshots_ended = load(&counters.snapshots_ended);
        core.files.count_into(&mut turtle);
        let (totals, passed) = (view.tree.totals(), core.files.disk.all_passed());
        stats.cache_hits = counters.reads.sum(MEMTABLE_HITS) + counters.reads.sum(RECORD_HITS);
        stats.cache_misses = counters.reads.sum(MISSES);
        stats.records_cached = core.records.usage().records;
        stats.cache_bytes = core.records.bytes();
        stats.records_dirty = in_tables.edits + pending.items;
        stats.page_cache_bytes = core.files.cache.used();
        stats.page_cache_hits = turtle.pages_cached.leaf();
        stats.page_filter_bytes = 0;
        stats.page_filter_refusals = 0;
        stats.pages = core.files.pages();
        stats.pages_read = turtle.pages_read.leaf();
        stats.live_bytes = totals.live() + stats.large_bytes;
        stats.dead_bytes = totals.dead() + stats.large_freed_bytes;
        stats.tombstones = totals.tombstones + in_tables.tombstones;
        stats.scan_pages = core.files.scan_pages();
        stats.scan_records = passed.edits;
        stats.scan_tombstones = passed.tombstones;
        stats.index_bytes = view.tree.node_bytes();
        stats.foreground_write_backs = load(&counters.foreground_steps);
        stats.checkpoints = load(&counters.checkpoints);
        stats.turtle = Some(turtle);
        stats
    }
}

impl Maintain for Turtle {
    fn background(&self) -> Result<Next> {
        self.core.background()
    }

    fn memory_floor(&self) -> u64 {
        self.core.memory_floor()
    }

    fn takes_wish(&self) -> bool {
        self.core.wanted.load(Relaxed) && self.core.wanted.swap(false, Relaxed)
    }

    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        self.core.verify_all(watch)
    }

    fn bulk(&self) -> Result<Box<dyn Bulk + '_>> {
        self.core.context.poison.check()?;
        Ok(Box::new(Loading::begin(&self.core)?))
    }

    fn scrub(&self, from: &[u8]) -> Scrubbed {
        self.core.scrub_piece(from)
    }

    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        self.core.compact(from, upper)
    }

    fn data_bytes(&self) -> u64 {
        let core = &self.core;
        (core.files.pages() + core.large.live_pages()) * PAGE_BYTES as u64
    }

    fn unwritten_bytes(&self) -> u64 {
        self.core.view.load().tree.pending().bytes
    }

    fn step_bytes(&self) -> u64 {
        2 * self.core.leaf_bytes().min(self.core.files.pages() * PAGE_BYTES as u64)
    }

    fn make_room(&self) -> Result<()> {
        self.core.make_room_on_disk()
    }

    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64 {
        let range = KeyRange { lower: Bound::Included(from), upper };
        self.core.view.load().tree.pages_in(&range) * PAGE_BYTES as u64
    }

    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>> {
        Ok(Box::new(Copying::begin(&self.core, directory, name)?))
    }
}
