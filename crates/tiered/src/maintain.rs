//! Background work, checks, copies, loads, and room on the disk.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use spinney_access::{BTree, Change, Place, RootReader};
use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Generation, Next, Result, ValueRef, probe};
use spinney_engine::{
    Bulk, Chunk, Compacted, Engine as _, IDLE, KeyspaceBackup, Maintain, OwnedValue, ScanRequest,
    Scrubbed, SnapshotNumber, VerifyReport, Watch, not_ascending, scrub,
};
use spinney_extent::values::{LargeList, Loaded};
use spinney_extent::{Extent, GiveBack, Store, StoreCopy};
use spinney_io::{Directory, Purpose};

use crate::engine::Tiered;
use crate::image::Image;
use crate::images::note_named;
use crate::payload::Payload;
use crate::run::{RunReader, What};

/// Pages that a piece of a copy reads.
const PIECE_PAGES: usize = 64;
/// First byte of a place of the scrub: a key from which on leaves are read, or a page of the image or of the run of
/// clean records.
const OF_TREE: u8 = 0;
const OF_IMAGE: u8 = 1;
const OF_CLEAN: u8 = 2;
/// Records of a scan of a check.
const CHECKED_AT_ONCE: usize = 1000;
/// Bytes of records that a load gathers.
const LOADED_BYTES: usize = 256 << 10;

impl Tiered {
    /// Gives the pages back of trees that were replaced and that nobody reads any more.
    fn discard_replaced(&self) -> Result<()> {
        let all = std::mem::take(&mut *self.replaced.lock());
        for tree in all {
            match Arc::try_unwrap(tree) {
                Ok(tree) => tree.discard()?,
                Err(tree) => self.replaced.lock().push(tree),
            }
        }
        Ok(())
    }

    /// Calls `see` with each record there is, in the order of the keys, and `rest` now and then.
    fn each_record(
        &self,
        see: &mut dyn FnMut(&[u8], ValueRef<'_>) -> Result<()>,
        rest: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let (mut chunk, mut lower) = (Chunk::default(), Bound::Unbounded);
        loop {
            chunk.clear();
            let request = ScanRequest {
                lower: lower.as_ref().map(Vec::as_slice),
                records_wanted: CHECKED_AT_ONCE,
                records_max: CHECKED_AT_ONCE,
                bytes_max: usize::MAX,
                keys_only: false,
                ..ScanRequest::FIRST_KEY
            };
            self.scan(&request, &mut chunk)?;
            (0..chunk.len()).map(|index| chunk.get(index)).try_for_each(|(k, v)| see(k, v))?;
            rest()?;
            if chunk.finished {
                return Ok(());
            }
            let last = chunk.len().checked_sub(1).map(|last| chunk.get(last).0.to_vec());
            let next = chunk.resume.take().or(last.map(Bound::Excluded));
            lower = next.expect("a range that is not finished says where");
        }
    }
}

impl Maintain for Tiered {
    fn background(&self) -> Result<Next> {
        self.follow_memory();
        if self.context.poison.is_set() || self.is_replaying() {
            return Ok(Next::Wait(IDLE));
        }
        self.values.reuse();
        self.discard_replaced()?;
        let mut worked = self.tend_pre_images()?;
        worked |= self.sweep_removals()?;
        worked |= self.sweep_in_background()? || self.merge_in_quiet()?;
        worked |= self.step_in_background()?;
        worked |= self.tend_clean()?;
        if let (Some(cache), Some(tree)) = (self.pages.cache(), self.tree())
            && cache.is_dirty_beyond(2, 0)
        {
            worked |= tree.write_back(PIECE_PAGES)? > 0;
        }
        // What is free is soon written again while pages move, and reads wait while the file system makes holes.
        if !worked && self.is_quiet() {
            worked = self.store().give_back(GiveBack::Much)? > 0;
        }
        Ok(if worked { Next::Again } else { Next::Wait(IDLE) })
    }

    fn memory_floor(&self) -> u64 {
        self.floor()
    }

    fn takes_wish(&self) -> bool {
        false
    }

    fn end_oldest_snapshot(&self, cause: &Error) -> bool {
        self.pre_images.run_pages() > 0 && self.pre_images.end_oldest(cause)
    }

    fn verify(&self, watch: &mut Watch<'_>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        {
            let _no_checkpoint = self.publishing.lock();
            let _no_sweep = self.sweeps.claims.all();
            report.pages = self.store().payload_pages() + self.image_pages();
            self.store().verify_checkpoint()?;
            self.verify_runs()?;
            let of_clean = self.clean_extents();
            let owned = self.image_extents().chain(of_clean).map(|(extent, _)| extent);
            let mut owned: Vec<Extent> = owned.collect();
            let tree = self.tree();
            let _no_write_back = tree.as_ref().map(|tree| tree.hold_places());
            if let Some(tree) = &tree {
                let mut unnamed = self.images.in_doubt();
                let walked = tree.walk(&mut |_, value, flags| {
                    if flags != 0 && !unnamed.is_empty() {
                        note_named(value, &mut unnamed);
                    }
                })?;
                self.images.set_in_doubt(BTreeSet::new());
                self.values.supersede(unnamed);
                let pages = (walked.leaves + walked.nodes) * tree.page_bytes();
                report.pages += pages / PAGE_BYTES as u64;
                tree.owned(&mut |extent, _| owned.push(extent))?;
            }
            let replaced = self.replaced.lock();
            for tree in replaced.iter() {
                tree.owned(&mut |extent, _| owned.push(extent))?;
            }
            let _still = self.values.still();
            owned.extend(self.values.owned().map(|(extent, _)| extent));
            let of_runs = self.pre_images.hold_run_pages();
            report.free_pages = self.store().audit(owned, *of_runs)?;
        }
        watch(report.pages)?;
        let _pin = self.values.pin();
        let (mut records, mut pointers) = (0, Vec::new());
        let mut see = |_: &[u8], value: ValueRef<'_>| {
            records += 1;
            if value.large {
                pointers.push(self.values.decode(value.bytes)?);
            }
            Ok(())
        };
        // Leaves are counted already; this is a chance to end.
        self.each_record(&mut see, &mut || watch(0))?;
        report.records = records;
        for pointer in pointers {
            self.values.check_owned(&pointer)?;
            watch(self.values.verify(&pointer)?)?;
            report.large_values += 1;
        }
        Ok(report)
    }

    fn bulk(&self) -> Result<Box<dyn Bulk + '_>> {
        self.context.poison.check()?;
        self.check_empty()?;
        let tree = match self.empty_tree() {
            // What was written before may fill the frames.
            Err(error) if error.is_full() => {
                let before = self.tree();
                before.map_or(Ok(0), |before| before.write_back(usize::MAX))?;
                self.empty_tree()?
            }
            made => made?,
        };
        let loaded = Loaded::new(&self.values);
        Ok(Box::new(Loading {
            keyspace: self,
            tree: Some(tree),
            some: Vec::new(),
            bytes: 0,
            loaded,
        }))
    }

    fn scrub(&self, from: &[u8]) -> Scrubbed {
        let path = self.store().path().to_owned();
        scrub(&self.values, from, |from, seen| {
            let from = match from.split_first() {
                Some((&OF_IMAGE, from)) => {
                    let next = self.scrub_run(What::Dirty, from, seen);
                    return Some(
                        next.map_or(vec![OF_CLEAN], |next| [&[OF_IMAGE][..], &next].concat()),
                    );
                }
                Some((&OF_CLEAN, from)) => {
                    let next = self.scrub_run(What::Clean, from, seen);
                    return next.map(|next| [&[OF_CLEAN][..], &next].concat());
                }
                from => from.map_or(&[][..], |(_, from)| from),
            };
            let read = self.tree().map_or(Ok(None), |tree| {
                tree.scrub(from, &mut |place: Place, result| {
                    seen.note(&path, place.page, result);
                })
            });
            let next = read.unwrap_or_else(|error| {
                seen.note(&path, spinney_base::PageNumber(0), Err(error));
                None
            });
            Some(next.map_or(vec![OF_IMAGE], |next| [&[OF_TREE][..], &next].concat()))
        })
    }

    fn compact(&self, from: &[u8], upper: Bound<&[u8]>) -> Result<Compacted> {
        self.context.poison.check()?;
        let Some(tree) = self.tree() else { return Ok(Compacted::default()) };
        let mut filled = tree.fill(from)?;
        if self.bring_range_home(from, filled.next.as_deref())? {
            filled = tree.fill(from)?;
        }
        let is_within = |next: &Vec<u8>| match upper {
            Bound::Included(upper) => &next[..] <= upper,
            Bound::Excluded(upper) => &next[..] < upper,
            Bound::Unbounded => true,
        };
        let bytes = filled.leaves * tree.page_bytes();
        Ok(Compacted { bytes, next: filled.next.filter(is_within) })
    }

    fn compact_bytes(&self, from: &[u8], upper: Bound<&[u8]>) -> u64 {
        let upper = match upper {
            Bound::Included(upper) | Bound::Excluded(upper) => Some(upper),
            Bound::Unbounded => None,
        };
        self.tree().map_or(0, |tree| tree.approximate_bytes(from, upper))
    }

    fn begin_backup(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Box<dyn KeyspaceBackup + '_>> {
        let state = || {
            let _no_checkpoint = self.publishing.lock();
            // Clean records are not copied: they are only worth reads.
            (self.redo(), self.named.lock().clone())
        };
        let (copy, named) = StoreCopy::begin(&self.values, directory, name, state)?;
        let left = named.iter().map(|payload| payload.root.page()).collect();
        let store = self.store().clone();
        let reader = RootReader::new(store.clone(), self.pages.order());
        Ok(Box::new(Copying { copy, store, named, reader, left, image: 0, owned: Vec::new() }))
    }

    fn data_bytes(&self) -> u64 {
        let of_tree = self.tree().map_or(0, |tree| tree.pages() * tree.page_bytes());
        let others = self.store().payload_pages() + self.image_pages() + self.values.live_pages();
        of_tree + others * PAGE_BYTES as u64
    }

    fn unwritten_bytes(&self) -> u64 {
        // A leaf for each dirty record, and what is dirty already, at most.
        let of_tree = |tree: &BTree| self.hot.dirty().min(tree.pages()) * tree.page_bytes();
        let leaves = self.tree().map_or(0, |tree| of_tree(&tree));
        let pages = self.pages.cache().map_or(0, |cache| cache.dirty_bytes());
        leaves + self.hot.bytes() + pages
    }

    fn step_bytes(&self) -> u64 {
        self.bytes_of_step()
    }

    fn make_room(&self) -> Result<()> {
        self.give_runs_up()
    }
}

/// A bulk load under way.
#[derive(Debug)]
struct Loading<'a> {
    keyspace: &'a Tiered,
    /// `None` once it is installed.
    tree: Option<BTree>,
    /// Records that are not in the tree yet.
    some: Vec<(Vec<u8>, OwnedValue)>,
    bytes: usize,
    loaded: Loaded,
}

impl Tiered {
    /// Passes if there is no record.
    fn check_empty(&self) -> Result<()> {
        let mut chunk = Chunk::default();
        self.scan(&ScanRequest::FIRST_KEY, &mut chunk)?;
        if chunk.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("a bulk load needs an empty keyspace"))
    }
}

impl Loading<'_> {
    fn merge(&mut self) -> Result<()> {
        let changes: Vec<Change<'_>> = (self.some.iter())
            .map(|(key, value)| Change { key, value: Some(value.as_value()) })
            .collect();
        let tree = self.tree.as_ref().expect("it is not installed");
        tree.merge(&changes, &mut |_, _| {})?;
        self.some.drain(..self.some.len().saturating_sub(1));
        self.bytes = 0;
        Ok(())
    }
}

impl Bulk for Loading<'_> {
    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<()> {
        self.keyspace.values.check(key.len(), value)?;
        if let Some((last, _)) = self.some.last().filter(|(last, _)| **last >= *key) {
            return Err(not_ascending(last, key));
        }
        if value.large {
            self.loaded.push(value.bytes)?;
        }
        self.bytes += key.len() + value.len();
        self.some.push((key.to_vec(), value.into()));
        if self.bytes >= LOADED_BYTES { self.merge() } else { Ok(()) }
    }

    fn install(mut self: Box<Self>, number: SnapshotNumber) -> Result<()> {
        let keyspace = self.keyspace;
        let _inside = probe::enter("bulk load");
        self.merge()?;
        let _one_at_a_time = keyspace.publishing.lock();
        self.keyspace.check_empty()?;
        // What is left of the records before are removals.
        keyspace.bring_all_home()?;
        let _no_sweep = keyspace.sweeps.claims.all();
        let redo = keyspace.context.log.last_lsn();
        let tree = Arc::new(self.tree.take().expect("it is not installed"));
        let live = self.loaded.extents();
        keyspace.give_up_clean();
        let published = keyspace.publish(&tree, redo, Image::none(keyspace.store()), || {
            LargeList { live, ..LargeList::default() }
        });
        if let Err(error) = published {
            self.tree = Arc::into_inner(tree);
            return Err(error);
        }
        keyspace.pre_images.before_load(number);
        keyspace.values.supersede_all();
        self.loaded.apply(0);
        self.loaded.keep();
        keyspace.set_tree_to(tree);
        keyspace.hot.let_all_leave();
        keyspace.values.settle(&keyspace.values.cut(redo.0));
        Ok(())
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if let Some(tree) = self.tree.take() {
            // What cannot be read stays taken until the store is opened again.
            tree.discard().ok();
        }
    }
}

/// A copy under construction: the pages of the newest root, which stay as they are while it is held.
#[derive(Debug)]
struct Copying<'a> {
    copy: StoreCopy<'a>,
    store: Arc<Store>,
    named: Option<Payload>,
    reader: RootReader,
    /// Pages of the tree that are yet to be copied.
    left: Vec<(Place, u8)>,
    /// Pages of the image that were copied.
    image: u32,
    owned: Vec<(Extent, Generation)>,
}

impl Copying<'_> {
    /// Copies some pages; `None` when all of them were.
    fn copy_pages(&mut self) -> Result<Option<u64>> {
        let mut bytes = 0;
        for _ in 0..PIECE_PAGES {
            let Some((place, level)) = self.left.pop() else { break };
            let page = self.reader.read(place, level)?;
            let block = self.reader.bytes();
            self.copy.target().write_runs(&[(place.page, block)], Purpose::TOOL)?;
            bytes += block.len() as u64;
            self.owned.push(self.reader.extent(place));
            if let Some(below) = level.checked_sub(1) {
                let children = (0..page.image.records.len()).filter_map(|index| page.child(index));
                self.left.extend(children.map(|(child, ..)| (child, below)));
            }
        }
        if bytes > 0 { Ok(Some(bytes)) } else { self.copy_image() }
    }

    /// Copies some pages of the image; `None` when all of them were.
    fn copy_image(&mut self) -> Result<Option<u64>> {
        let Some(named) = &self.named else { return Ok(None) };
        let mut reader = RunReader::new(&self.store, &named.dirty, What::Dirty, Purpose::TOOL);
        reader.skip_to(self.image);
        let Some(part) = reader.read(PIECE_PAGES)? else { return Ok(None) };
        let bytes = &reader.bytes()[..part.pages as usize * PAGE_BYTES];
        self.copy.target().write_runs(&[(part.first, bytes)], Purpose::TOOL)?;
        self.image += part.pages;
        self.owned.extend(part.extents());
        Ok(Some(bytes.len() as u64))
    }
}

impl KeyspaceBackup for Copying<'_> {
    fn copy(&mut self) -> Result<Option<u64>> {
        match self.copy_pages()? {
            Some(bytes) => Ok(Some(bytes)),
            None => self.copy.copy_values(),
        }
    }

    fn finish(&mut self) -> Result<u64> {
        let mut bytes = 0;
        while let Some(copied) = self.copy_pages()? {
            bytes += copied;
        }
        let owned = std::mem::take(&mut self.owned);
        let payload = self.named.as_ref().map_or_else(Vec::new, Payload::encode);
        Ok(bytes + self.copy.finish(owned, 0, &payload)?)
    }
}
