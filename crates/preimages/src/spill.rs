//! Writing maps out as runs, and merging runs.

use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::vec::IntoIter;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::MutexGuard;
use spinney_base::shim::atomic::Ordering::SeqCst;
use spinney_base::{Error, ErrorKind, Result, ValueRef};
use spinney_engine::OwnedValue;
use spinney_sync::hash_key;

use crate::again::linked_before;
use crate::keep::PreImages;
use crate::run::{Run, RunWriter};
use crate::table::{Layer, Link, LinkMap, Table};

/// Runs of one table from which on some become one, once readers have read as many pages of runs as these
/// have. With more, readers look into more runs; with fewer, each link is written more often.
const RUNS_MAX: usize = 8;

/// Runs of one table from which on some become one, whether they are read or not. With more, a look-up
/// asks more filters; with fewer, writers pay for merges that no reader needs.
const RUNS_UNREAD_MAX: usize = 64;

/// Runs of one table that are merged before a snapshot ends for want of disk.
const SEVERAL: usize = 4;

/// A run is merged with newer ones that are together at least a fourth as long. So each link is written
/// a few times, however many runs there are.
const LENGTHS_MAX: u64 = 4;

/// Eighths of the bound past which maps are written out that fill no page. With fewer, runs are of a
/// page or two, where maps would grow; with more, less is left for what comes beside.
const SHORT_EIGHTHS: u64 = 6;

/// Bytes that a merge reads of one run at once.
const MERGED_BYTES: usize = 64 << 10;

pub(crate) const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// What became of a map.
enum Written {
    /// Its links are in this run, or all of them in older layers.
    Run(Option<Run>),
    /// Nothing: runs would take more than they may.
    NoRoom,
}

impl PreImages {
    /// Does what the background is to do: frees what has ended, writes the largest map out when much
    /// memory is taken, merges runs where there are many. Returns whether it did something.
    ///
    /// # Errors
    /// `Poisoned`. Where a run cannot be written or read, snapshots end.
    pub fn background(&self) -> Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        self.trim();
        // Both, or writers that fill maps all the time would leave no time to merge.
        let merged = self.merge_runs()?;
        // Else another thread is about it.
        let Some(alone) = self.spilling.try_lock() else { return Ok(merged) };
        Ok(self.is_over(1) && self.spill(&alone)? || merged)
    }

    /// Writes the largest map out if maps take half of theirs. From three quarters on it waits for
    /// another thread that is about it, so that writers do not outrun the disk. The caller has not
    /// announced a write and holds no lock of pages.
    ///
    /// # Errors
    /// As [`PreImages::background`].
    #[inline]
    pub fn relieve(&self) -> Result<()> {
        if !self.is_empty() && self.is_over(2) {
            self.spill_for_writer()?;
        }
        Ok(())
    }

    #[cold]
    fn spill_for_writer(&self) -> Result<()> {
        let alone = match self.spilling.try_lock() {
            Some(alone) => alone,
            None if self.is_over(3) => self.spilling.lock(),
            None => return Ok(()),
        };
        if self.is_over(2) {
            self.spill(&alone)?;
        }
        Ok(())
    }

    /// Writes the largest map out. Returns whether there was one that pays.
    ///
    /// # Errors
    /// As [`PreImages::background`].
    pub(crate) fn spill(&self, _alone: &MutexGuard<'_, ()>) -> Result<bool> {
        let maps = self.maps();
        let largest = maps.into_iter().max_by_key(|(_, map)| map.bytes());
        // A smaller one would fill no page. Where there are many, of as many snapshots, all the same.
        let is_short = self.is_over(SHORT_EIGHTHS);
        let pays = |map: &LinkMap| map.bytes() > PAGE_BYTES as u64 || is_short && map.len() > 0;
        let Some((table, map)) = largest.filter(|(_, map)| pays(map)) else { return Ok(false) };
        {
            let _changing = self.changing.lock();
            if Arc::ptr_eq(&table.parts.load().map, &map) {
                table.renew_map();
            }
        }
        map.seal();
        self.wait_for_late_links();
        match self.write_map(&table, &map) {
            Ok(Written::Run(run)) => {
                let written = run.map(|run| Layer::Run(Arc::new(run)));
                self.replace(&table, &[Layer::Map(map)], written);
                self.spilled.fetch_add(1, SeqCst);
                Ok(true)
            }
            // Tables that were folded may have links of one key in many runs.
            Ok(Written::NoRoom) if self.merge_longest()? || self.has_room(map.bytes()) => Ok(true),
            Ok(Written::NoRoom) => {
                let most = self.run_bytes_max.load(SeqCst);
                let text = format!("what it keeps of replaced values exceeds {most} bytes of disk");
                Ok(self.end_oldest(&Error::new(ErrorKind::Full, text)))
            }
            Err(error) => self.end_after(error, &table),
        }
    }

    /// Bytes of the runs that count. One that was merged away is there as long as a reader has it.
    fn run_bytes(&self) -> u64 {
        let mut pages = 0;
        self.each_run(|run| pages += run.page_count());
        pages * PAGE_BYTES as u64
    }

    /// Whether runs take less than half of what they may.
    fn has_room_for_half(&self) -> bool {
        self.run_bytes() <= self.run_bytes_max.load(SeqCst) / 2
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.run_bytes() + bytes <= self.run_bytes_max.load(SeqCst)
    }

    /// Ends snapshots because a run cannot be written or read: for want of room the oldest, else all that
    /// need the table. Nothing else of the keyspace is at fault. Returns whether there were any.
    ///
    /// # Errors
    /// `Poisoned`: nothing is written any more.
    fn end_after(&self, error: Error, table: &Table) -> Result<bool> {
        if error.is_poisoned() {
            return Err(error);
        }
        if error.is_full() {
            return Ok(self.end_oldest(&error));
        }
        self.lives.end(table.number, &error);
        self.trim();
        Ok(true)
    }

    /// Waits until nobody can add to a sealed map: a link that was appended before may not have been
    /// found in the tree yet (S13).
    fn wait_for_late_links(&self) {
        self.context.log.quiesce();
        drop(self.linking.write());
    }

    /// Writes those links of a sealed map that no older layer has.
    fn write_map(&self, table: &Table, map: &Arc<LinkMap>) -> Result<Written> {
        let hash = |key: &[u8]| hash_key(self.context.keyspace, key);
        // While there is room enough, such links are left to merges: looking for them reads.
        let older = if self.has_room_for_half() { Vec::new() } else { self.older(table, map) };
        let before = linked_before(map, &older, hash)?;
        let links = before.iter().filter(|before| !**before).count() as u64;
        if links == 0 {
            return Ok(Written::Run(None));
        }
        if !self.has_room(map.bytes() / map.len() * links) {
            return Ok(Written::NoRoom);
        }
        let mut writer = RunWriter::new(self.pages.clone(), map.age, links);
        let mut before = before.into_iter();
        map.each(ALL, true, &mut |key, value| {
            if before.next() == Some(false) {
                writer.push(key, hash(key), value)?;
            }
            Ok(true)
        })?;
        writer.finish().map(|run| Written::Run(Some(run)))
    }

    /// The layers of a map's table that are older than the map, wherever that is now.
    fn older(&self, table: &Table, map: &Arc<LinkMap>) -> Vec<Layer> {
        let wanted = Layer::Map(map.clone());
        for table in self.tables.load().iter().filter(|one| one.number >= table.number) {
            let parts = table.parts.load();
            if let Some(at) = parts.layers.iter().position(|layer| layer.is(&wanted)) {
                return parts.layers[..at].to_vec();
            }
        }
        Vec::new()
    }

    /// Replaces layers that follow each other by one, or by none, in whichever table they are: theirs may have been
    /// folded into the next, or freed.
    fn replace(&self, table: &Arc<Table>, before: &[Layer], after: Option<Layer>) {
        let _changing = self.changing.lock();
        let tables = self.tables.load_full();
        for table in tables.iter().filter(|one| one.number >= table.number) {
            let parts = table.parts.load_full();
            let at = parts.layers.windows(before.len()).position(|layers| {
                layers.iter().zip(before).all(|(layer, wanted)| layer.is(wanted))
            });
            if let Some(at) = at {
                let place = at..at + before.len();
                table.change_layers(|layers| _ = layers.splice(place, after));
                return;
            }
        }
    }

    /// Merges the newest runs of a table that has many: as many as are not much longer than all that are
    /// newer together. A merge spares readers, so it waits until they have read what it costs, or there
    /// are very many. Returns whether there was one.
    fn merge_runs(&self) -> Result<bool> {
        // Apart from spills: writers do not wait for it.
        let Some(_alone) = self.merging.try_lock() else { return Ok(false) };
        let tables = self.tables.load_full();
        for table in tables.iter() {
            let layers = runs_of(table);
            let is_many = layers.len() >= RUNS_UNREAD_MAX;
            let layers = &layers[first_merged(&layers)..];
            let pages: u64 = layers.iter().map(Layer::pages).sum();
            if layers.len() > 1 && (is_many || self.pages.looked() >= pages) {
                return self.merge_into_one(table, layers);
            }
        }
        Ok(false)
    }

    /// Merges all runs of the table that has the most, if they are several. Returns whether it did.
    fn merge_longest(&self) -> Result<bool> {
        let _alone = self.merging.lock();
        let tables = self.tables.load_full();
        let all = tables.iter().map(|table| (table, runs_of(table)));
        match all.max_by_key(|(_, layers)| layers.len()) {
            Some((table, layers)) if layers.len() >= SEVERAL => self.merge_into_one(table, &layers),
            _ => Ok(false),
        }
    }

    fn merge_into_one(&self, table: &Arc<Table>, layers: &[Layer]) -> Result<bool> {
        let merged = self.merge(layers);
        // Its own reads do not count.
        self.pages.forget_looks();
        match merged {
            Ok(run) => {
                self.replace(table, layers, Some(Layer::Run(Arc::new(run))));
                Ok(true)
            }
            Err(error) => self.end_after(error, table),
        }
    }

    /// Merges layers, oldest first; of one key the oldest link wins.
    fn merge(&self, layers: &[Layer]) -> Result<Run> {
        let age = layers[0].age();
        let links = layers.iter().map(Layer::len).sum();
        let mut writer = RunWriter::new(self.pages.clone(), age, links);
        let mut sources: Vec<Source<'_>> = layers.iter().map(Source::new).collect();
        loop {
            let mut least: Option<(usize, Vec<u8>)> = None;
            for (index, source) in sources.iter_mut().enumerate() {
                let Some((key, _)) = source.peek()? else { continue };
                if least.as_ref().is_none_or(|(_, least)| key < least) {
                    least = Some((index, key.clone()));
                }
            }
            let Some((oldest, key)) = least else { return writer.finish() };
            for (index, source) in sources.iter_mut().enumerate() {
                if source.peek()?.is_none_or(|(next, _)| *next != key) {
                    continue;
                }
                let (_, link) = source.next()?.expect("it was there");
                if index == oldest {
                    let value = link.as_ref().map(OwnedValue::as_value);
                    writer.push(&key, hash_key(self.context.keyspace, &key), value)?;
                }
            }
        }
    }
}

/// The most layers of a table that follow each other and are runs: a map of a folded table may lie
/// between.
fn runs_of(table: &Table) -> Vec<Layer> {
    let parts = table.parts.load_full();
    let is_run = |layer: &Layer| matches!(layer, Layer::Run(_));
    let neighbours = parts.layers.chunk_by(|one, next| is_run(one) && is_run(next));
    let runs = neighbours.filter(|layers| layers.iter().all(is_run));
    runs.max_by_key(|layers| layers.len()).map_or_else(Vec::new, <[Layer]>::to_vec)
}

/// The first of the runs that are merged, oldest first; behind the last where there are few.
fn first_merged(layers: &[Layer]) -> usize {
    if layers.len() < RUNS_MAX {
        return layers.len();
    }
    let mut newer = 0;
    let mut first = layers.len();
    for (index, layer) in layers.iter().enumerate().rev() {
        if newer > 0 && layer.len() <= LENGTHS_MAX * newer {
            first = index;
        }
        newer += layer.len();
    }
    first
}

/// A layer that is read from its beginning to its end, some links at a time.
struct Source<'a> {
    layer: &'a Layer,
    some: Peekable<IntoIter<(Vec<u8>, Link)>>,
    last: Option<Vec<u8>>,
    has_more: bool,
}

impl<'a> Source<'a> {
    fn new(layer: &'a Layer) -> Source<'a> {
        Source { layer, some: Vec::new().into_iter().peekable(), last: None, has_more: true }
    }

    fn peek(&mut self) -> Result<Option<&(Vec<u8>, Link)>> {
        if self.some.peek().is_none() && self.has_more {
            let last = self.last.take();
            let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (mut some, mut bytes) = (Vec::new(), 0);
            self.layer.each((from, Bound::Unbounded), true, &mut |key, value| {
                bytes += key.len() + value.map_or(0, ValueRef::len);
                some.push((key.to_vec(), value.map(OwnedValue::from)));
                Ok(bytes < MERGED_BYTES)
            })?;
            self.has_more = bytes >= MERGED_BYTES;
            self.last = some.last().map(|(key, _)| key.clone());
            self.some = some.into_iter().peekable();
        }
        Ok(self.some.peek())
    }

    fn next(&mut self) -> Result<Option<(Vec<u8>, Link)>> {
        self.peek()?;
        Ok(self.some.next())
    }
}
