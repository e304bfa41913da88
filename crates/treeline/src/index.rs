//! The segment index: from the lowest key of each segment to where it lies (TreeLine, section 4.3).
//!
//! The index is in memory, whole; its bytes on disk are a checkpoint's payload and the structure
//! records after it (see [`codec`](crate::codec)). Beside its place, each segment keeps the ids of the cached
//! records that its pages do not hold yet: the dirty list. The list may name records twice, or
//! records that are clean again or belong elsewhere; whoever takes it looks each up and picks by
//! key. What it never does is miss a dirty record for good: a put lists a record right after making
//! it dirty, within the same write.
//!
//! **Invariants**
//! 1. The first segment's lower bound is the empty key, so every key has exactly one segment.
//! 2. [`SegmentIndex::version`] changes with every change of structure, so a place found before is
//!    still right if the version is.
//! 3. A dirty list is in the order of becoming dirty, unless [`SegmentIndex::mixed`] says that long
//!    ones became one; what was taken and put back is at its front again.
//!
//! **Concurrency.** A reader-writer lock around a map; dirty lists have locks of their own. Pages
//! are protected by locks of segments and pages, not here ([`locks`](crate::locks)): a segment goes
//! only under its exclusive lock, and gets an overflow page only under the page's.

use std::collections::BTreeMap;
use std::ops::Bound;

use spinney_base::shim::{
    Mutex, RwLock,
    atomic::{AtomicU64, Ordering},
};
use spinney_base::{Error, ErrorKind, PageNumber, Result};
use thin_vec::ThinVec;

use crate::cache::RecordId;
use crate::codec::Segments;
use crate::segment::{
    Change, IndexKey, Located, Overflow, PageRef, Place, SEGMENT_ORDER_MAX, Segment,
};

/// A dirty list of at most so many entries is taken whole by every write-back.
pub(crate) const LONG_LIST: usize = 2048;

/// What a segment's dirty list takes on average: a handful of ids, a header, and the allocator's
/// own.
const DIRTY_LIST_BYTES: usize = 80;

#[derive(Debug)]
struct Entry {
    segment: Segment,
    dirty: Mutex<ThinVec<RecordId>>,
}

/// The index. Thread-safe.
#[derive(Debug)]
pub(crate) struct SegmentIndex {
    map: RwLock<Map>,
    version: AtomicU64,
    /// How often long dirty lists of several segments became one, so that its ids are not in the
    /// order of becoming dirty.
    mixed: AtomicU64,
}

#[derive(Debug, Default)]
struct Map {
    entries: BTreeMap<IndexKey, Entry>,
    /// Number of the last change of structure.
    sequence: u64,
    heap_bytes: usize,
    segments: [u64; SEGMENT_ORDER_MAX as usize + 1],
    overflow_pages: u64,
}

impl SegmentIndex {
    /// An index of these segments, which are the state after change number `sequence`; none means a
    /// keyspace that never held data.
    pub(crate) fn new(segments: Vec<(Vec<u8>, Segment)>, sequence: u64) -> Self {
        let map = Map::of(segments, sequence);
        SegmentIndex { map: RwLock::new(map), version: AtomicU64::new(0), mixed: AtomicU64::new(0) }
    }

    /// Changes with every change of structure.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Changes whenever long dirty lists of several segments become one.
    pub(crate) fn mixed(&self) -> u64 {
        self.mixed.load(Ordering::SeqCst)
    }

    /// Where a key belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Located {
        let map = self.map.read();
        let (lower, entry) = map.floor(key);
        map.located(lower, entry)
    }

    /// Where a key's pages are, without its bounds, and the version that this is true of.
    pub(crate) fn find_place(&self, key: &[u8]) -> (Place, u64) {
        let map = self.map.read();
        let (lower, entry) = map.floor(key);
        (entry.segment.place(lower.bytes(), key), self.version())
    }

    /// The segment with the greatest lower bound that is less than `key`, or the last of all.
    pub(crate) fn find_below(&self, key: Option<&[u8]>) -> Option<Located> {
        let map = self.map.read();
        let upper = key.map_or(Bound::Unbounded, Bound::Excluded);
        let (lower, entry) = map.entries.range::<[u8], _>((Bound::Unbounded, upper)).next_back()?;
        Some(map.located(lower, entry))
    }

    /// Tells the key's segment that the record `id` is dirty; returns how long its list is now.
    pub(crate) fn push_dirty(&self, key: &[u8], id: RecordId) -> usize {
        let map = self.map.read();
        let mut dirty = map.floor(key).1.dirty.lock();
        dirty.push(id);
        dirty.len()
    }

    /// Ids of records that may be dirty in the segment with this lower bound.
    pub(crate) fn dirty(&self, lower: &[u8]) -> Vec<RecordId> {
        let map = self.map.read();
        map.entries.get(lower).map_or_else(Vec::new, |entry| entry.dirty.lock().to_vec())
    }

    /// Takes the oldest entries of the dirty list of the segment with this lower bound, at most
    /// `most`.
    pub(crate) fn take_dirty(&self, lower: &[u8], most: usize) -> Vec<RecordId> {
        let map = self.map.read();
        let Some(entry) = map.entries.get(lower) else { return Vec::new() };
        let mut dirty = entry.dirty.lock();
        if dirty.len() <= most {
            return std::mem::take(&mut *dirty).to_vec();
        }
        dirty.drain(..most).collect()
    }

    /// Puts ids that were taken back to the front of the list, where they came from.
    pub(crate) fn return_dirty(&self, lower: &[u8], ids: &[RecordId]) {
        if ids.is_empty() {
            return;
        }
        let map = self.map.read();
        let mut dirty = map.floor(lower).1.dirty.lock();
        let later = std::mem::take(&mut *dirty);
        dirty.extend(ids.iter().copied().chain(later));
    }

    /// Length of the longest dirty list.
    pub(crate) fn longest_dirty(&self) -> usize {
        self.map.read().entries.values().map(|entry| entry.dirty.lock().len()).max().unwrap_or(0)
    }

    /// At most `most` segments with a dirty list, from the one that `from` belongs to on; and where
    /// to go on, unless all were seen. A segment that was joined with the one below it since `from`
    /// was told is found by its part of that one.
    pub(crate) fn dirty_segments(
        &self,
        from: &[u8],
        most: usize,
    ) -> (Vec<Located>, Option<Vec<u8>>) {
        // So many segments are looked at under one lock, so that writers of the index wait little.
        const LOOK_MAX: usize = 4096;
        let map = self.map.read();
        let first = map.floor(from).0.bytes();
        let here = map.entries.range::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        let mut found = Vec::new();
        for (looked, (lower, entry)) in here.enumerate() {
            if found.len() == most || looked == LOOK_MAX {
                return (found, Some(lower.bytes().to_vec()));
            }
            if !entry.dirty.lock().is_empty() {
                found.push(map.located(lower, entry));
            }
        }
        (found, None)
    }

    /// Makes a change of structure and gives it its number; `recorded` is called before anybody can
    /// see it. Dirty ids that are left go to the segments that came instead: `keys` tells which
    /// keys an id stands for.
    ///
    /// # Errors
    /// `Corruption` when the segments that go are not there as the change says.
    pub(crate) fn apply(
        &self,
        change: &Change,
        keys: impl Fn(RecordId) -> Vec<Vec<u8>>,
        recorded: impl FnOnce(u64),
    ) -> Result<()> {
        let mut map = self.map.write();
        map.check_neighbours(&change.before)?;
        let mut dirty = ThinVec::new();
        for (lower, _) in &change.before {
            let entry = map.entries.remove(lower.as_slice()).expect("checked above");
            map.heap_bytes -= IndexKey::new(lower).heap_bytes();
            map.count(&entry.segment, u64::wrapping_sub);
            dirty.append(&mut entry.dirty.into_inner());
        }
        if change.before.len() > 1 && dirty.len() > LONG_LIST {
            self.mixed.fetch_add(1, Ordering::SeqCst);
        }
        for (lower, segment) in &change.after {
            map.insert(lower, segment.clone(), ThinVec::new());
        }
        if let [(lower, _)] = change.after.as_slice() {
            *map.floor(lower).1.dirty.lock() = dirty;
        } else {
            for id in dirty {
                for key in keys(id) {
                    // A key of another segment that shares the id is listed there already; once
                    // more does no harm.
                    map.floor(&key).1.dirty.lock().push(id);
                }
            }
        }
        map.sequence += 1;
        recorded(map.sequence);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Gives a page of the segment that begins at `lower` in extent `base` an overflow page: a
    /// change of structure like any other, made up here because others may add overflow pages to
    /// the same segment at the same time.
    ///
    /// # Errors
    /// `Corruption` when the segment is not there.
    pub(crate) fn add_overflow(
        &self,
        lower: &[u8],
        base: PageRef,
        overflow: Overflow,
        recorded: impl FnOnce(u64, Change),
    ) -> Result<()> {
        let mut map = self.map.write();
        let entry = map.entries.get_mut(lower).filter(|entry| entry.segment.base == base);
        let Some(entry) = entry else {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("an overflow page of a segment at {base:?}, which is not there"),
            ));
        };
        let after = entry.segment.with_overflow(overflow);
        let before = std::mem::replace(&mut entry.segment, after.clone());
        map.overflow_pages += 1;
        map.sequence += 1;
        let change =
            Change { before: vec![(lower.to_vec(), before)], after: vec![(lower.to_vec(), after)] };
        recorded(map.sequence, change);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Puts segments in the place of all there are, which are returned, without a number: only a
    /// checkpoint tells of it. Nobody else changes the structure meanwhile, and nothing is dirty.
    pub(crate) fn replace_all(&self, segments: Vec<(Vec<u8>, Segment)>) -> Segments {
        let mut map = self.map.write();
        let sequence = map.sequence;
        let before = std::mem::replace(&mut *map, Map::of(segments, sequence));
        self.version.fetch_add(1, Ordering::Release);
        let entries = before.entries.into_iter();
        entries.map(|(lower, entry)| (lower.bytes().to_vec(), entry.segment)).collect()
    }

    /// Shows the first page of every segment.
    pub(crate) fn for_each_place(&self, mut show: impl FnMut(PageNumber)) {
        let map = self.map.read();
        map.entries.values().for_each(|entry| show(entry.segment.base.page));
    }

    /// Number of the last change.
    pub(crate) fn sequence(&self) -> u64 {
        self.map.read().sequence
    }

    /// Shows all segments that have pages, in order, as they are after the change whose number is
    /// returned. Nothing changes meanwhile.
    pub(crate) fn for_each(&self, mut show: impl FnMut(&[u8], &Segment)) -> u64 {
        let map = self.map.read();
        let entries = map.entries.iter().filter(|(_, entry)| !entry.segment.is_virtual());
        entries.for_each(|(lower, entry)| show(lower.bytes(), &entry.segment));
        map.sequence
    }

    /// Bytes held, as well as the map's own overhead is known: entries at the average fill of its
    /// nodes.
    pub(crate) fn bytes(&self) -> u64 {
        let map = self.map.read();
        let entry = size_of::<IndexKey>() + size_of::<Entry>();
        (map.entries.len() * (entry * 10 / 7 + DIRTY_LIST_BYTES) + map.heap_bytes) as u64
    }

    /// Segments by order, and overflow pages.
    pub(crate) fn counts(&self) -> Counts {
        let map = self.map.read();
        Counts { segments: map.segments, overflow_pages: map.overflow_pages }
    }
}

/// How many segments and overflow pages there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// By the logarithm of their size in pages.
    pub(crate) segments: [u64; SEGMENT_ORDER_MAX as usize + 1],
    pub(crate) overflow_pages: u64,
}

impl Counts {
    /// Pages without overflow pages.
    pub(crate) fn base_pages(&self) -> u64 {
        self.segments.iter().enumerate().map(|(order, count)| count << order).sum()
    }
}

impl Map {
    fn of(segments: Segments, sequence: u64) -> Self {
        let mut map = Map { sequence, ..Map::default() };
        if segments.is_empty() {
            map.insert(&[], Segment::virtual_one(), ThinVec::new());
        }
        for (lower, segment) in segments {
            map.insert(&lower, segment, ThinVec::new());
        }
        map
    }

    fn count(&mut self, segment: &Segment, operation: fn(u64, u64) -> u64) {
        let overflows = segment.overflows.len() as u64;
        self.overflow_pages = operation(self.overflow_pages, overflows);
        if !segment.is_virtual() {
            let count = &mut self.segments[usize::from(segment.order)];
            *count = operation(*count, 1);
        }
    }

    fn insert(&mut self, lower: &[u8], segment: Segment, dirty: ThinVec<RecordId>) {
        let key = IndexKey::new(lower);
        self.heap_bytes += key.heap_bytes();
        self.count(&segment, u64::wrapping_add);
        self.entries.insert(key, Entry { segment, dirty: Mutex::new(dirty) });
    }

    /// Checks that these segments are here, one right after the other.
    fn check_neighbours(&self, segments: &[(Vec<u8>, Segment)]) -> Result<()> {
        let first = segments.first().map_or(&[][..], |(lower, _)| lower.as_slice());
        let here = self.entries.range::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        let same = here
            .zip(segments)
            .take_while(|((lower, entry), (bound, segment))| {
                lower.bytes() == bound.as_slice() && entry.segment == *segment
            })
            .count();
        if segments.is_empty() || same != segments.len() {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("a structure change replaces {segments:?}, which are not there"),
            ));
        }
        Ok(())
    }

    fn floor(&self, key: &[u8]) -> (&IndexKey, &Entry) {
        let below = (Bound::Unbounded, Bound::Included(key));
        self.entries.range::<[u8], _>(below).next_back().expect("the first bound is the empty key")
    }

    fn located(&self, lower: &IndexKey, entry: &Entry) -> Located {
        let above = (Bound::Excluded(lower.bytes()), Bound::Unbounded);
        let upper = self.entries.range::<[u8], _>(above).next().map(|(upper, _)| upper.clone());
        Located { lower: lower.clone(), upper, segment: entry.segment.clone() }
    }
}
