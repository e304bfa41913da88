//! The engine: what a database calls, and what the background does in one turn.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Lsn, Next, Result, Runtime};
use spinney_engine::{
    Bulk, Capabilities, Chunk, Compacted, Engine, EngineSnapshot, EngineStats, Found, IDLE,
    KeyspaceBackup, Maintain, OwnedValue, Prepared, Resident, ScanRequest, Scrubbed,
    SnapshotNumber, VerifyReport, Watch, Write,
};
use spinney_extent::{GiveBack, Values};
use spinney_io::{Directory, without_reserve};
use spinney_records::{Became, Cached, Prepared as Room, RecordId};

use crate::codec::{decode_change, decode_large};
use crate::counters::add;
use crate::kept::known_in;
use crate::lookup::found_in;
use crate::policy::{self, BATCH_PAGES, REGION_PAGES_MAX};
use crate::tree::TreeLine;
use crate::tuning::Staging;

impl TreeLine {
    /// Gives room back to the file system if much is free; says whether it did.
    fn give_back_space(&self) -> Result<bool> {
        // An account of all pages, which holds the gate, must find them.
        let _gate = self.shape.gate.read();
        Ok(self.shape.store.give_back(GiveBack::Much)? > 0)
    }

    /// Writes back what the CLOCK hand will soon meet; says whether there was something.
    fn write_back_soon(&self) -> Result<bool> {
        let mut keys = Vec::new();
        for _ in 0..self.memory.cache.shards() {
            let shard = self.background.next_shard();
            self.memory.cache.soon_evicted(shard, BATCH_PAGES, &mut keys);
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

    /// Frees a place in the cache: writes back the page of `victim` and some that would be met
    /// next.
    fn write_back_for(&self, victim: Vec<u8>, hash: u64) -> Result<()> {
        add(&self.workload.writes.foreground_write_backs, 1);
        let mut keys = vec![victim];
        let shard = RecordId::of(hash).0 as usize;
        let pages = self.few_pages();
        for next in 0..self.memory.cache.shards() {
            if keys.len() >= pages {
                break;
            }
            self.memory.cache.soon_evicted(shard.wrapping_add(next), pages, &mut keys);
        }
        keys.truncate(pages);
        self.write_back(&keys)
    }

    /// Writes back the records of one segment whose dirty list is long; says whether there was one.
    /// Where keys arrive in order all of them belong to the last segment, which must not wait until
    /// the hand comes by.
    fn shorten_lists(&self) -> Result<bool> {
        let Some(key) = self.background.take_long_list() else { return Ok(false) };
        self.write_back(&[key])?;
        Ok(true)
    }

    /// Writes back removals that scans met; says whether there were any.
    fn write_back_removals(&self) -> Result<bool> {
        let removed = self.background.take_removed();
        if removed.is_empty() {
            return Ok(false);
        }
        self.write_back(&removed)?;
        Ok(true)
    }

    fn choose_forecasts(&self) {
        self.workload.choose_forecasts(self.context.memory.target(), self.tuning.forecast());
    }

    /// Follows the target of the keyspace's account.
    fn follow_memory(&self) {
        self.choose_forecasts();
        let known = self.workload.forecaster.bytes() + self.large.bytes();
        let data = self.shape.index.counts().pages() * PAGE_BYTES as u64;
        self.pre_images.follow(self.context.memory.target(), self.tuning.snapshot_bytes(data));
        let known = known + self.pre_images.memory_bytes();
        let rest = self.shape.lock_bytes() + known;
        self.memory.follow(&self.context, &self.tuning, self.shape.index.bytes(), rest);
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
        match found_in(self.memory.cache.get(RecordId::of(hash), key, out)) {
            Some(found) => {
                self.workload.accesses.hit();
                Ok(found)
            }
            None => self.read_through(key, hash, out, false),
        }
    }

    fn get_resident(&self, key: &[u8], hash: u64, out: &mut Vec<u8>) -> Resident {
        match self.memory.cache.get(RecordId::of(hash), key, out) {
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
        if self.background.has_many_long_lists() {
            self.shorten_lists()?;
        }
        self.relieve_pre_images()?;
        let mut busy = Busy::default();
        loop {
            match self.memory.cache.prepare(id, write.key, write.value) {
                Room::Ready(words) => return Ok(Prepared([words as u64, 0])),
                Room::Dirty(victim) => {
                    self.context.poison.check()?;
                    self.background.wish();
                    let work = || self.write_back_for(victim, write.hash);
                    self.workload.writes.stalls.during(&self.context.runtime, work)?;
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
        self.memory.cache.cancel(RecordId::of(write.hash), reserved(prepared));
    }

    fn apply(&self, write: &Write<'_>, prepared: Prepared, _lsn: Lsn, newest: SnapshotNumber) {
        let id = RecordId::of(write.hash);
        // Before the put: a reader that finds the new value finds this, too (S5).
        let note = self.pre_images.keep(newest, (write.key, write.hash), |old| {
            known_in(self.memory.cache.peek(id, write.key, old))
        });
        let pointer = write.value.filter(|value| value.large);
        if let Some(pointer) = pointer {
            self.large.applied(pointer.bytes, 0);
        }
        let mut replaced = Vec::new();
        let value = (write.value, note);
        let Became { dirty, may_be_new } =
            self.memory.cache.put(id, write.key, value, reserved(prepared), &mut replaced);
        self.workload.put(write.key, write.value.is_some(), may_be_new);
        if dirty && policy::is_long_list(self.shape.index.push_dirty(write.key, id)) {
            self.background.note_long_list(write.key);
        }
        // Only now, with the record on a dirty list: a checkpoint that begins after the old value
        // was freed must write the record back, since it lets the value go that the page still
        // names.
        if !replaced.is_empty() && pointer.is_none_or(|new| new.bytes != replaced) {
            self.large.superseded(&replaced);
        }
        // When scans find it.
        if write.value.is_some() {
            self.memory.gap.inserted(write.key);
        }
    }

    fn make_resident(&self, key: &[u8], hash: u64) -> Result<()> {
        let mut value = Vec::new();
        match self.memory.cache.get(RecordId::of(hash), key, &mut value) {
            Cached::Unknown => self.read_through(key, hash, &mut value, true).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn scan(&self, request: &ScanRequest<'_>, chunk: &mut Chunk) -> Result<()> {
        self.scan_chunk(request, chunk)
    }

    fn begin_snapshot(self: Arc<Self>, number: SnapshotNumber) -> Result<Box<dyn EngineSnapshot>> {
        Ok(spinney_preimages::begin(self, number))
    }

    fn checkpoint(&self, redo: Lsn) -> Result<()> {
        self.publish_checkpoint(redo, &mut |_| false)
    }

    fn checkpoint_slowly(&self, redo: Lsn, rest: &mut dyn FnMut(f64) -> bool) -> Result<()> {
        self.publish_checkpoint(redo, rest)
    }

    fn is_dirty(&self) -> bool {
        self.memory.cache.usage().dirty > 0
    }

    fn redo(&self) -> Lsn {
        self.shape.redo_lsn()
    }

    fn replay_structure(&self, lsn: Lsn, payload: &[u8]) -> Result<()> {
        let wrapped =
            |error: Error| error.wrap(ErrorKind::Corruption, self.context.path().display());
        if let Some((change, extents)) = decode_large(payload).map_err(wrapped)? {
            // The checkpoint knows what happened up to its redo LSN.
            if lsn > self.redo() {
                self.shape.large_unsettled.store(true, Ordering::Relaxed);
                self.replay_large_change(change, extents).map_err(wrapped)?;
            }
            return Ok(());
        }
        let (change, sequence) = decode_change(payload).map_err(wrapped)?;
        let done = self.shape.index.sequence();
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
        self.shape.index.apply(&change, |_| Vec::new(), |_| ())
    }

    fn end_structure_replay(&self) -> Result<()> {
        let mut owned = Vec::new();
        self.shape.index.for_each(|_, segment| owned.extend(segment.extents()));
        owned.extend(self.large.owned());
        let restored = self.shape.store.adopt(&owned)?;
        add(&self.workload.writes.pages_restored, restored);
        if !self.context.log.was_closed() {
            self.shape.pages_in_doubt.store(true, Ordering::Relaxed);
            self.shape.store.mend_slots()?;
        }
        if !self.context.logged && self.shape.large_unsettled.load(Ordering::Relaxed) {
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
        let pages = self.shape.index.pages_between(lower, upper);
        self.workload.accesses.filled_part(pages * PAGE_BYTES as u64)
    }

    fn stats(&self) -> EngineStats {
        let usage = self.memory.cache.usage();
        let counts = self.shape.index.counts();
        let forecast = self.workload.forecaster.stats();
        let (cache_hits, cache_misses, pages_read) = self.workload.accesses.sum();
        let mut stats = EngineStats::of(&self.large, &self.workload.writes.stalls);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bytes = counts.pages() * PAGE_BYTES as u64;
        let live = self.workload.accesses.filled_part(bytes);
        let (scan_records, scan_tombstones) = self.workload.accesses.looked_at();
        stats.pre_images = self.pre_images.stats();
        stats.cache_hits = cache_hits;
        stats.cache_misses = cache_misses;
        stats.records_cached = usage.records;
        stats.records_dirty = usage.dirty;
        stats.cache_bytes = usage.held;
        stats.page_cache_bytes = self.memory.pages.bytes();
        stats.page_cache_hits = self.memory.pages.hits().0;
        stats.page_filter_bytes = self.memory.filters.bytes();
        stats.page_filter_refusals = self.memory.filters.refused();
        stats.index_bytes = self.shape.index.bytes();
        stats.pages = counts.base_pages();
        stats.overflow_pages = counts.overflow_pages;
        stats.staged_pages = counts.staged_pages;
        stats.segments = counts.segments;
        stats.live_bytes = live + stats.large_bytes;
        stats.dead_bytes = bytes - live + stats.large_freed_bytes;
        stats.scan_pages = self.workload.accesses.pages_scanned();
        stats.scan_records = scan_records;
        stats.scan_tombstones = scan_tombstones;
        stats.pages_read = pages_read;
        stats.pages_written_back = load(&self.workload.writes.pages_written_back);
        stats.records_written_back = load(&self.workload.writes.records_written_back);
        stats.foreground_write_backs = load(&self.workload.writes.foreground_write_backs);
        stats.reorganizations = load(&self.workload.writes.reorganizations);
        stats.reorganized_pages_in = load(&self.workload.writes.reorganized_pages_in);
        stats.reorganized_pages_out = load(&self.workload.writes.reorganized_pages_out);
        stats.inserts_forecast = whole(forecast.forecast);
        stats.inserts_as_forecast = whole(forecast.came_as_forecast);
        stats.forecast_errors = [forecast.histogram_error, forecast.trend_error].map(whole);
        stats.forecast_by_trend = forecast.trend_answers;
        stats.checkpoints = load(&self.workload.writes.checkpoints);
        stats.pages_restored = load(&self.workload.writes.pages_restored);
        stats
    }
}

impl Maintain for TreeLine {
    fn background(&self) -> Result<Next> {
        self.background.begin();
        self.follow_memory();
        self.shape.store.reclaim(self.context.log.durable_lsn());
        self.large.reuse();
        if self.context.poison.is_set() {
            return Ok(Next::Wait(IDLE));
        }
        let loading = self.background.loads.load(Ordering::SeqCst) > 0;
        let wrote = self.tend_pre_images()?
            | self.shorten_lists()?
            | self.write_back_removals()?
            | self.write_back_soon()?
            | (!loading && if_room(|| self.shrink_some())?);
        // Where staging is on, bursts are merged as soon as they end.
        let merges = !wrote && !loading && self.tuning.staging() == Staging::On;
        let wrote = wrote || (merges && if_room(|| self.merge_staged())?);
        self.shape.journal.publish_if_due(&self.context, &self.shape.store, !wrote)?;
        if !wrote {
            self.memory.buffers.trim(policy::buffer_pages(self.context.memory.target()));
        }
        if wrote || loading {
            self.background.disturb_tidying();
        } else if let Some(rest) = without_reserve(|| self.tidy())? {
            return Ok(Next::Wait(rest));
        }
        let wrote = wrote || self.give_back_space()?;
        Ok(if wrote { Next::Again } else { Next::Wait(IDLE) })
    }

    fn memory_floor(&self) -> u64 {
        self.memory.floor()
    }

    fn takes_wish(&self) -> bool {
        self.background.takes_wish()
    }

    fn end_oldest_snapshot(&self, cause: &Error) -> bool {
        self.pre_images.run_pages() > 0 && self.pre_images.end_oldest(cause)
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
        (self.shape.index.counts().pages() + self.large.live_pages()) * PAGE_BYTES as u64
    }

    fn unwritten_bytes(&self) -> u64 {
        self.shape.store.payload_pages() * PAGE_BYTES as u64
    }

    fn step_bytes(&self) -> u64 {
        let pages = self.shape.index.counts().base_pages().min(REGION_PAGES_MAX as u64);
        pages * PAGE_BYTES as u64
    }

    fn make_room(&self) -> Result<()> {
        for _ in 0..policy::ROOM_STEPS_MAX {
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
    /// Gives up when that takes far longer than any write: then the caller's own batch has reserved
    /// what there is, and waiting does not help.
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

/// Runs what may wait: it takes nothing from the reserve, and a full disk makes it wait.
fn if_room(work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    match without_reserve(work) {
        Err(error) if error.is_full() => Ok(false),
        done => done,
    }
}
