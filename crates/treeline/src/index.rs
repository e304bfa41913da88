//! The segment index: from the lowest key of each segment to where it lies (TreeLine, section 4.3).
//!
//! In this shape every segment is one base page and at most one overflow page. The index is in
//! memory, whole; its bytes on disk are a checkpoint's payload and the structure records after it
//! (see [`codec`](crate::codec)). Beside its place, each segment keeps the ids of the cached
//! records that its pages do not hold yet: the dirty list. The list may name records twice, or
//! records that are clean again or belong elsewhere; whoever takes it looks each up and picks by
//! key. What it never does is miss a dirty record for good: a put lists a record right after making
//! it dirty, within the same write. Lists are in the order of becoming dirty, also after a split
//! has shared one out.
//!
//! **Invariants**
//! 1. The first segment's lower bound is the empty key, so every key has exactly one segment.
//! 2. [`SegmentIndex::version`] changes with every change of structure, so a place found before is
//!    still right if the version is.
//!
//! **Concurrency.** A reader-writer lock around a map; dirty lists have locks of their own. Pages
//! are protected by page locks, not here: a segment's place changes only under the exclusive page
//! lock of its base page.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use spinney_base::shim::{
    Mutex, RwLock,
    atomic::{AtomicU64, Ordering},
};
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};
use thin_vec::ThinVec;

use crate::cache::RecordId;

/// Longest key that the index keeps without an allocation of its own.
const INLINE_BYTES: usize = 22;

/// What a segment's dirty list takes on average: a handful of ids, a header, and the allocator's
/// own.
const DIRTY_LIST_BYTES: usize = 80;

/// A key of the index. Short ones take 24 bytes and nothing else.
#[derive(Clone)]
pub(crate) enum IndexKey {
    /// Length and bytes.
    Inline(u8, [u8; INLINE_BYTES]),
    /// Elsewhere.
    Heap(Box<[u8]>),
}

const _: () = assert!(size_of::<IndexKey>() == 24);

impl IndexKey {
    pub(crate) fn new(key: &[u8]) -> Self {
        match u8::try_from(key.len()) {
            Ok(length) if key.len() <= INLINE_BYTES => {
                let mut bytes = [0; INLINE_BYTES];
                bytes[..key.len()].copy_from_slice(key);
                IndexKey::Inline(length, bytes)
            }
            _ => IndexKey::Heap(key.into()),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            IndexKey::Inline(length, bytes) => &bytes[..usize::from(*length)],
            IndexKey::Heap(bytes) => bytes,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            IndexKey::Inline(..) => 0,
            IndexKey::Heap(bytes) => bytes.len() + 16,
        }
    }
}

impl Borrow<[u8]> for IndexKey {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for IndexKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for IndexKey {}

impl PartialOrd for IndexKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IndexKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl std::fmt::Debug for IndexKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}

/// A page and the allocation that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageRef {
    pub(crate) page: PageNumber,
    pub(crate) generation: Generation,
}

/// Where a segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) base: PageRef,
    pub(crate) overflow: Option<PageRef>,
}

impl Segment {
    /// The one segment of a keyspace that never held data: no page lies behind it yet.
    pub(crate) const VIRTUAL: Segment = Segment {
        base: PageRef { page: PageNumber::NONE, generation: Generation(0) },
        overflow: None,
    };

    /// Its pages that exist, base first.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageRef> + use<> {
        let base = (!self.is_virtual()).then_some(self.base);
        base.into_iter().chain(self.overflow)
    }

    /// Whether no page lies behind it.
    pub(crate) fn is_virtual(&self) -> bool {
        self.base.page == PageNumber::NONE
    }
}

/// A segment with its bounds, as it was at some version of the index.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) lower: IndexKey,
    /// The next segment's lower bound; `None` for the last segment.
    pub(crate) upper: Option<IndexKey>,
    pub(crate) segment: Segment,
}

impl Located {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        key >= self.lower.bytes() && self.upper.as_ref().is_none_or(|upper| key < upper.bytes())
    }

    /// What all keys of the segment begin with.
    pub(crate) fn prefix(&self) -> &[u8] {
        self.upper.as_ref().map_or(&[], |upper| common_prefix(self.lower.bytes(), upper.bytes()))
    }
}

/// What two keys both begin with.
pub(crate) fn common_prefix<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    let length = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    &a[..length]
}

#[derive(Debug)]
struct Entry {
    segment: Segment,
    dirty: Mutex<ThinVec<RecordId>>,
}

/// One change of structure: neighbouring segments give way to others in their place (a split, a new
/// overflow page, two pages becoming one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The segments that go: lower bounds and places, in order, at least one.
    pub(crate) before: Vec<(Vec<u8>, Segment)>,
    /// What comes instead, in order, at least one; the first has the bound of the first that goes.
    pub(crate) after: Vec<(Vec<u8>, Segment)>,
}

impl Change {
    /// Pages that nobody owns any more after it.
    pub(crate) fn freed(&self) -> Vec<PageRef> {
        let kept: Vec<PageRef> =
            self.after.iter().flat_map(|(_, segment)| segment.pages()).collect();
        let before = self.before.iter().flat_map(|(_, segment)| segment.pages());
        before.filter(|page| !kept.contains(page)).collect()
    }
}

/// The index. Thread-safe.
#[derive(Debug)]
pub(crate) struct SegmentIndex {
    map: RwLock<Map>,
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct Map {
    entries: BTreeMap<IndexKey, Entry>,
    /// Number of the last change of structure.
    sequence: u64,
    heap_bytes: usize,
    overflow_pages: u64,
}

impl SegmentIndex {
    /// An index of these segments, which are the state after change number `sequence`; none means a
    /// keyspace that never held data.
    pub(crate) fn new(segments: Vec<(Vec<u8>, Segment)>, sequence: u64) -> Self {
        let mut map = Map { sequence, ..Map::default() };
        if segments.is_empty() {
            map.insert(&[], Segment::VIRTUAL, ThinVec::new());
        }
        for (lower, segment) in segments {
            map.insert(&lower, segment, ThinVec::new());
        }
        SegmentIndex { map: RwLock::new(map), version: AtomicU64::new(0) }
    }

    /// Changes with every change of structure.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Where a key belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Located {
        let map = self.map.read();
        let (lower, entry) = map.floor(key);
        map.located(lower, entry)
    }

    /// Where a key's pages are, without its bounds, and the version that this is true of.
    pub(crate) fn find_place(&self, key: &[u8]) -> (Segment, u64) {
        let map = self.map.read();
        (map.floor(key).1.segment, self.version())
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
            map.overflow_pages -= u64::from(entry.segment.overflow.is_some());
            dirty.append(&mut entry.dirty.into_inner());
        }
        for (lower, segment) in &change.after {
            map.insert(lower, *segment, ThinVec::new());
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

    /// Number of the last change.
    pub(crate) fn sequence(&self) -> u64 {
        self.map.read().sequence
    }

    /// Shows all segments that have pages, in order, as they are after the change whose number is
    /// returned. Nothing changes meanwhile.
    pub(crate) fn for_each(&self, mut show: impl FnMut(&[u8], Segment)) -> u64 {
        let map = self.map.read();
        let entries = map.entries.iter().filter(|(_, entry)| !entry.segment.is_virtual());
        entries.for_each(|(lower, entry)| show(lower.bytes(), entry.segment));
        map.sequence
    }

    /// Bytes held, as well as the map's own overhead is known: entries at the average fill of its
    /// nodes.
    pub(crate) fn bytes(&self) -> u64 {
        let map = self.map.read();
        let entry = size_of::<IndexKey>() + size_of::<Entry>();
        (map.entries.len() * (entry * 10 / 7 + DIRTY_LIST_BYTES) + map.heap_bytes) as u64
    }

    /// Segments and overflow pages.
    pub(crate) fn pages(&self) -> (u64, u64) {
        let map = self.map.read();
        (map.entries.len() as u64, map.overflow_pages)
    }
}

impl Map {
    fn insert(&mut self, lower: &[u8], segment: Segment, dirty: ThinVec<RecordId>) {
        let key = IndexKey::new(lower);
        self.heap_bytes += key.heap_bytes();
        self.overflow_pages += u64::from(segment.overflow.is_some());
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
        Located { lower: lower.clone(), upper, segment: entry.segment }
    }
}
