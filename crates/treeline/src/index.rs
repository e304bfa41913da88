//! The segment index: from the lowest key of each segment to where it lies (TreeLine, section 4.3).
//!
//! ```text
//!   version 42 (odd while segments change)
//!   radix tree --- "" ------> record: segment | dirty list | lower bound
//!              \-- "kiwi" --> record: segment | dirty list | lower bound
//! ```
//!
//! The whole index is in memory; its bytes on disk are a checkpoint's payload and the structure
//! records after it (see [`codec`](crate::codec)). Beside its place, each segment keeps the ids of
//! the cached records that its pages do not hold yet: the dirty list. The list may name records
//! twice, or records that are clean again or belong elsewhere: a write-back that takes the list
//! looks each record up and chooses by key. The list misses no dirty record for good: a put lists a
//! record right after making it dirty, within the same write. An entry also names the page of the
//! segment that the key belongs to, so that a scan need not look at the dirty records of all
//! sixteen pages.
//!
//! **Invariants**
//! 1. The first segment's lower bound is the empty key, so every key has exactly one segment, at
//!    any moment: its entry is replaced and never removed.
//! 2. [`SegmentIndex::version`] changes with every change of structure, so a place found before is
//!    still right if the version is.
//! 3. A dirty list is in the order of becoming dirty, but for what was taken and put back, which is
//!    at its front again, and for lists that became one. The first `due` entries of a list are
//!    *due*: an entry listed when a checkpoint began ([`SegmentIndex::mark_due`]) is due until it
//!    is taken, however segments split and join, and due again when it is put back. So a checkpoint
//!    has written everything back when nothing is due and no write-back runs (P14).
//! 4. An entry's segment and bounds never change. A change of them makes a new entry and leaves the
//!    old one without a list. So a put either lists its record with a segment of the index, or
//!    finds that the entry has no list and looks the segment up again.
//!
//! **Concurrency.** Lookups take no lock: they read the tree, which is consistent by itself, and
//! then check that no change of structure was under way, because in the middle of one the segments
//! do not fit together. Changes are made under one lock and keep the version odd. A lookup that
//! meets an odd version waits for the lock; one that was disturbed [`TRIES_MAX`] times takes it.
//! Dirty lists have locks of their own. Lock order: changes, then a list. Pages are protected by
//! locks of segments and pages, not here ([`locks`](crate::locks)): a segment leaves the index only
//! under its exclusive lock, and gets an overflow page only under the page's.
//!
//! It upholds P14 (no dirty record is passed over) and P23. **Differs from the paper**, which has a
//! latch around a B+ tree and names this as future work (4.8).

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, Range};

use spinney_art::{ArtMap, Direction, Entries, Pinned};
use spinney_base::shim::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use spinney_base::{Error, ErrorKind, PageNumber, Result};
use thin_vec::ThinVec;

use crate::codec::Segments;
use crate::segment::{Change, IndexKey, Located, PageRef, Place, SEGMENT_ORDER_MAX, Segment};
use spinney_records::RecordId;

mod listed;

pub(crate) use listed::Listed;

/// How often a lookup is tried before it keeps changes out.
const TRIES_MAX: usize = 4;

/// A dirty list.
#[derive(Debug, Default)]
struct DirtyList {
    entries: ThinVec<Listed>,
    /// Number of entries at the front that are due.
    due: usize,
}

#[derive(Debug)]
struct Entry {
    segment: Segment,
    /// `None` once the entry has left the index.
    dirty: Mutex<Option<DirtyList>>,
}

/// The index. Thread-safe.
#[derive(Debug)]
pub(crate) struct SegmentIndex {
    entries: ArtMap<Entry>,
    structure: Mutex<Structure>,
    /// Odd while a change is under way.
    version: AtomicU64,
    /// How many entries of all dirty lists are due.
    due: AtomicUsize,
    /// Bytes of all dirty lists and lists of overflow pages.
    list_bytes: AtomicUsize,
}

/// What only changes of structure change.
#[derive(Debug, Default)]
struct Structure {
    /// Number of the last change.
    sequence: u64,
    counts: Counts,
}

/// How many segments, overflow pages and staged pages there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// By the logarithm of their size in pages.
    pub(crate) segments: [u64; SEGMENT_ORDER_MAX as usize + 1],
    pub(crate) overflow_pages: u64,
    pub(crate) staged_pages: u64,
}

impl Counts {
    /// Pages without overflow pages.
    pub(crate) fn base_pages(&self) -> u64 {
        self.segments.iter().enumerate().map(|(order, count)| count << order).sum()
    }

    /// All pages.
    pub(crate) fn pages(&self) -> u64 {
        self.base_pages() + self.overflow_pages + self.staged_pages
    }

    fn change(&mut self, segment: &Segment, operation: fn(u64, u64) -> u64) {
        let overflows = segment.overflows.len() as u64;
        self.overflow_pages = operation(self.overflow_pages, overflows);
        self.staged_pages = operation(self.staged_pages, segment.staged.len() as u64);
        if !segment.is_virtual() {
            let count = &mut self.segments[usize::from(segment.order)];
            *count = operation(*count, 1);
        }
    }
}

impl SegmentIndex {
    /// An index of these segments, which are the state after change number `sequence`; none means a
    /// keyspace that never held data.
    pub(crate) fn new(segments: Segments, sequence: u64) -> Self {
        let index = SegmentIndex {
            entries: ArtMap::new(),
            structure: Mutex::new(Structure { sequence, ..Structure::default() }),
            version: AtomicU64::new(0),
            due: AtomicUsize::new(0),
            list_bytes: AtomicUsize::new(0),
        };
        index.insert_all(&mut index.structure.lock(), segments);
        index
    }

    /// Changes with every change of structure; odd while one is under way.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Where a key belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Located {
        let find = || {
            let pinned = Pinned::new();
            self.located(self.floor(key, &pinned), &pinned)
        };
        self.at_one_version(find).0
    }

    /// Where the pages of a key with this hash are, without its bounds, and the version that this
    /// is true of.
    pub(crate) fn find_place(&self, key: &[u8], hash: u64) -> (Place, u64) {
        self.at_one_version(|| {
            let pinned = Pinned::new();
            let (lower, entry) = self.floor(key, &pinned);
            entry.segment.place(lower, key, hash)
        })
    }

    /// The segment with the greatest lower bound that is less than `key`, or the last of all.
    pub(crate) fn find_below(&self, key: Option<&[u8]>) -> Option<Located> {
        let upper = key.map_or(Bound::Unbounded, Bound::Excluded);
        let find = || {
            let pinned = Pinned::new();
            let found = self.entries.lend_neighbour(upper, Direction::Backward, &pinned)?;
            Some(self.located(found, &pinned))
        };
        self.at_one_version(find).0
    }

    /// Tells the key's segment that the record `id` is dirty; returns how long its list is now.
    pub(crate) fn push_dirty(&self, key: &[u8], id: RecordId) -> usize {
        self.with_floor(key, |lower, segment, list| {
            list.entries.push(Listed::new(lower, segment, key, id));
            list.entries.len()
        })
    }

    /// Ids of records that may be dirty in these pages of the segment with this lower bound.
    pub(crate) fn dirty(&self, lower: &[u8], pages: &Range<usize>) -> Vec<RecordId> {
        let here = |list: &mut DirtyList| {
            let here = list.entries.iter().filter(|listed| pages.contains(&listed.page()));
            here.map(|listed| listed.id()).collect()
        };
        self.with_list_at(lower, here).unwrap_or_default()
    }

    /// Number of entries of the dirty list of the segment with this lower bound.
    pub(crate) fn dirty_len(&self, lower: &[u8]) -> usize {
        self.with_list_at(lower, |list| list.entries.len()).unwrap_or_default()
    }

    /// The oldest entries of the dirty list of the segment with this lower bound, at most `most`.
    /// They stay listed: a reader of the segment must find them meanwhile.
    pub(crate) fn oldest_dirty(&self, lower: &[u8], most: usize) -> Vec<Listed> {
        let oldest = |list: &mut DirtyList| list.entries[..list.entries.len().min(most)].to_vec();
        self.with_list_at(lower, oldest).unwrap_or_default()
    }

    /// Takes entries off the list, each as often as [`SegmentIndex::oldest_dirty`] showed it,
    /// except the ids of `keep`. Entries that were listed since stay.
    pub(crate) fn forget_dirty(&self, lower: &[u8], shown: &[Listed], keep: &[RecordId]) {
        let mut left: HashMap<Listed, usize> = HashMap::with_capacity(shown.len());
        for listed in shown.iter().filter(|listed| !keep.contains(&listed.id())) {
            *left.entry(*listed).or_default() += 1;
        }
        let mut is_to_stay = |listed: &Listed| match left.get_mut(listed) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        };
        self.with_list_at(lower, |list| {
            let (mut place, mut due) = (0, list.due);
            list.entries.retain(|listed| {
                let stays = is_to_stay(listed);
                due -= usize::from(!stays && place < list.due);
                place += 1;
                stays
            });
            list.due = due;
            if list.entries.is_empty() {
                // And its memory with it.
                *list = DirtyList::default();
            }
        });
    }

    /// Both at once.
    #[cfg(test)]
    pub(crate) fn take_dirty(&self, lower: &[u8], most: usize) -> Vec<Listed> {
        let shown = self.oldest_dirty(lower, most);
        self.forget_dirty(lower, &shown, &[]);
        shown
    }

    /// Puts records that were taken back to the front of the list of the segment with this lower
    /// bound, where they came from. They are due: nobody knows any more whether they were.
    pub(crate) fn return_dirty<'k>(
        &self,
        lower: &[u8],
        taken: impl Iterator<Item = (&'k [u8], RecordId)> + Clone,
    ) {
        self.with_floor(lower, |lower, segment, list| {
            let later = std::mem::take(&mut list.entries);
            let taken = taken.clone().map(|(key, id)| Listed::new(lower, segment, key, id));
            list.due += taken.clone().count();
            list.entries.extend(taken.chain(later));
        });
    }

    /// Makes everything due that is listed now.
    pub(crate) fn mark_due(&self) {
        let _structure = self.structure.lock();
        let pinned = Pinned::new();
        for (_, entry) in self.from(Bound::Unbounded, &pinned) {
            self.with_list(entry, |list| list.due = list.entries.len());
        }
    }

    /// Whether anything is due.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::SeqCst) > 0
    }

    /// At most `most` segments of whose dirty lists something is due, from the one that `from`
    /// belongs to on; and where to go on, unless all were seen. Adds to `looked` how many segments
    /// it looked at.
    pub(crate) fn due_segments(
        &self,
        from: &[u8],
        most: usize,
        looked: &mut usize,
    ) -> (Vec<Located>, Option<Vec<u8>>) {
        let count = Cell::new(0);
        let is_due = |entry: &Entry| {
            count.set(count.get() + 1);
            entry.dirty.lock().as_ref().is_some_and(|list| list.due > 0)
        };
        let found = self.entries_where(from, most, is_due);
        *looked += count.get();
        found
    }

    /// The same of segments that are as they are asked for.
    pub(crate) fn segments_where(
        &self,
        from: &[u8],
        most: usize,
        is_wanted: impl Fn(&Segment) -> bool,
    ) -> (Vec<Located>, Option<Vec<u8>>) {
        self.entries_where(from, most, |entry| is_wanted(&entry.segment))
    }

    /// Pages of the segments from `lower` to below `upper`; half of a segment that a bound cuts.
    pub(crate) fn pages_between(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        const SEGMENTS_AT_ONCE: usize = 1024;
        let (mut halves, mut next) = (0, Some(lower.to_vec()));
        while let Some(from) = next.take() {
            let (segments, more) = self.segments_where(&from, SEGMENTS_AT_ONCE, |_| true);
            for one in segments {
                if upper.is_some_and(|upper| one.lower.bytes() >= upper) {
                    return halves / 2;
                }
                let is_cut = one.lower.bytes() < lower
                    || upper.is_some_and(|upper| {
                        one.upper.as_ref().is_none_or(|end| end.bytes() > upper)
                    });
                halves += one.segment.pages() as u64 * if is_cut { 1 } else { 2 };
            }
            next = more;
        }
        halves / 2
    }

    /// Makes a change of structure and gives it its number; `recorded` is called before anybody can
    /// see it. Dirty ids that are left go to the segments that came instead: `keys` tells which
    /// keys an id stands for. Neither may look into the index.
    ///
    /// # Errors
    /// `Corruption` when the segments that go are not there as the change says.
    pub(crate) fn apply(
        &self,
        change: &Change,
        keys: impl Fn(RecordId) -> Vec<Vec<u8>>,
        recorded: impl FnOnce(u64),
    ) -> Result<()> {
        let mut structure = self.structure.lock();
        self.check_neighbours(&change.before)?;
        let (mut due, mut later) = (ThinVec::new(), ThinVec::new());
        self.change(&mut structure, |structure| {
            let pinned = Pinned::new();
            for (lower, _) in &change.before {
                let entry = self.entries.lend(lower, &pinned).expect("checked above");
                let mut list = self.retire(structure, entry);
                later.extend(list.entries.drain(list.due..));
                due.append(&mut list.entries);
            }
            for (lower, segment) in &change.after {
                self.insert(structure, lower, segment.clone(), DirtyList::default());
            }
            for (lower, _) in &change.before {
                if !change.after.iter().any(|(bound, _)| bound == lower) {
                    self.entries.take(lower, &pinned);
                }
            }
            let again = |id: RecordId, add: &dyn Fn(&mut DirtyList, Listed)| {
                for key in keys(id) {
                    // A key of another segment that shares the id is listed there already; once
                    // more does no harm.
                    let (lower, entry) = self.floor(&key, &pinned);
                    let listed = Listed::new(lower, &entry.segment, &key, id);
                    self.with_list(entry, |list| add(list, listed));
                }
            };
            // Each id once: one stands for all its keys. Two of them in a list would become four, and four
            // eight with the next change.
            let mut seen = HashSet::new();
            // What is due goes in front of all that is not, there too.
            for listed in due {
                if seen.insert(listed.id().0) {
                    again(listed.id(), &|list, listed| {
                        list.entries.insert(list.due, listed);
                        list.due += 1;
                    });
                }
            }
            for listed in later {
                if seen.insert(listed.id().0) {
                    again(listed.id(), &|list, listed| list.entries.push(listed));
                }
            }
            structure.sequence += 1;
            recorded(structure.sequence);
        });
        Ok(())
    }

    /// Gives the segment that begins at `lower` in extent `base` one more page, overflow or staged:
    /// a change of structure like any other, made up here because others may add pages to the same
    /// segment at the same time. Says whether `with` found room for it.
    ///
    /// # Errors
    /// `Corruption` when the segment is not there.
    pub(crate) fn add_page(
        &self,
        lower: &[u8],
        base: PageRef,
        with: impl FnOnce(&Segment) -> Option<Segment>,
        recorded: impl FnOnce(u64, Change),
    ) -> Result<bool> {
        let mut structure = self.structure.lock();
        let pinned = Pinned::new();
        let entry = self.entries.lend(lower, &pinned);
        let Some(entry) = entry.filter(|entry| entry.segment.base == base) else {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("an overflow page of a segment at {base:?}, which is not there"),
            ));
        };
        let before = entry.segment.clone();
        let Some(after) = with(&before) else { return Ok(false) };
        self.change(&mut structure, |structure| {
            let list = self.retire(structure, entry);
            self.insert(structure, lower, after.clone(), list);
            let change = Change {
                before: vec![(lower.to_vec(), before)],
                after: vec![(lower.to_vec(), after)],
            };
            structure.sequence += 1;
            recorded(structure.sequence, change);
        });
        Ok(true)
    }

    /// Replaces all segments by these and returns the old ones. The change gets no number: only a
    /// checkpoint tells of it. Nobody else changes the structure meanwhile, and nothing is dirty.
    pub(crate) fn replace_all(&self, segments: Segments) -> Segments {
        let mut structure = self.structure.lock();
        let mut before = Vec::new();
        self.change(&mut structure, |structure| {
            let pinned = Pinned::new();
            for (lower, entry) in self.from(Bound::Unbounded, &pinned) {
                self.retire(structure, entry);
                before.push((lower.to_vec(), entry.segment.clone()));
            }
            let stays = |lower: &[u8]| {
                lower.is_empty()
                    || segments.binary_search_by(|(bound, _)| bound.as_slice().cmp(lower)).is_ok()
            };
            let gone: Vec<&[u8]> =
                before.iter().map(|(lower, _)| lower.as_slice()).filter(|at| !stays(at)).collect();
            self.insert_all(structure, segments);
            for lower in gone {
                self.entries.take(lower, &pinned);
            }
        });
        before
    }

    /// Shows the first page of every segment.
    pub(crate) fn for_each_place(&self, mut show: impl FnMut(PageNumber)) {
        let _structure = self.structure.lock();
        let pinned = Pinned::new();
        let entries = self.from(Bound::Unbounded, &pinned);
        entries.for_each(|(_, entry)| show(entry.segment.base.page));
    }

    /// Number of the last change.
    pub(crate) fn sequence(&self) -> u64 {
        self.structure.lock().sequence
    }

    /// Shows all segments that have pages, in order, as they are after the change whose number is
    /// returned. Nothing changes meanwhile.
    pub(crate) fn for_each(&self, mut show: impl FnMut(&[u8], &Segment)) -> u64 {
        let structure = self.structure.lock();
        let pinned = Pinned::new();
        let entries = self.from(Bound::Unbounded, &pinned);
        entries
            .filter(|(_, entry)| !entry.segment.is_virtual())
            .for_each(|(lower, entry)| show(lower, &entry.segment));
        structure.sequence
    }

    /// Bytes held, to the byte as they were asked of the allocator, but for what was removed and
    /// waits for readers: how long that takes is not for a simulation to depend on.
    pub(crate) fn bytes(&self) -> u64 {
        (self.entries.bytes() + self.list_bytes.load(Ordering::SeqCst)) as u64
    }

    /// Segments by order, and overflow pages.
    pub(crate) fn counts(&self) -> Counts {
        self.structure.lock().counts
    }
}

/// What the above is made of.
impl SegmentIndex {
    /// What `look` finds while nothing changes, and the version that it is true of.
    fn at_one_version<R>(&self, look: impl Fn() -> R) -> (R, u64) {
        for _ in 0..TRIES_MAX {
            let version = self.version();
            if !version.is_multiple_of(2) {
                // The thread that changes the structure holds the lock until it is done.
                drop(self.structure.lock());
                continue;
            }
            let found = look();
            if self.version() == version {
                return (found, version);
            }
        }
        let _structure = self.structure.lock();
        (look(), self.version())
    }

    /// The entry whose segment a key belongs to; any entry in the middle of a change.
    fn floor<'a>(&'a self, key: &[u8], pinned: &'a Pinned) -> (&'a [u8], &'a Entry) {
        self.entries.lend_floor(key, pinned).expect("the first bound is the empty key")
    }

    /// The entries from a bound on.
    fn from<'a>(&'a self, from: Bound<&[u8]>, pinned: &'a Pinned) -> Entries<'a, Entry> {
        self.entries.lend_range(from, Bound::Unbounded, Direction::Forward, pinned)
    }

    fn located(&self, (lower, entry): (&[u8], &Entry), pinned: &Pinned) -> Located {
        let above = Bound::Excluded(lower);
        let upper = self.entries.lend_neighbour(above, Direction::Forward, pinned);
        Located {
            lower: IndexKey::new(lower),
            upper: upper.map(|(upper, _)| IndexKey::new(upper)),
            segment: entry.segment.clone(),
        }
    }

    /// Changes an entry's dirty list; `None` when the entry is not of the index any more.
    fn with_list<R>(&self, entry: &Entry, change: impl FnOnce(&mut DirtyList) -> R) -> Option<R> {
        let mut dirty = entry.dirty.lock();
        let list = dirty.as_mut()?;
        let (bytes, due) = (list_bytes(&list.entries), list.due);
        let result = change(list);
        let more = list_bytes(&list.entries).wrapping_sub(bytes);
        if more != 0 {
            self.list_bytes.fetch_add(more, Ordering::SeqCst);
        }
        let more = list.due.wrapping_sub(due);
        if more != 0 {
            self.due.fetch_add(more, Ordering::SeqCst);
        }
        Some(result)
    }

    /// Changes the dirty list of the segment that a key belongs to.
    fn with_floor<R>(
        &self,
        key: &[u8],
        mut change: impl FnMut(&[u8], &Segment, &mut DirtyList) -> R,
    ) -> R {
        loop {
            let pinned = Pinned::new();
            let (lower, entry) = self.at_one_version(|| self.floor(key, &pinned)).0;
            // A list that is still there is of the segment that was found: an entry never changes
            // its bounds.
            let change = |list: &mut DirtyList| change(lower, &entry.segment, list);
            if let Some(result) = self.with_list(entry, change) {
                return result;
            }
        }
    }

    /// Changes the dirty list of the segment with this lower bound, if there is such a segment.
    fn with_list_at<R>(
        &self,
        lower: &[u8],
        mut change: impl FnMut(&mut DirtyList) -> R,
    ) -> Option<R> {
        loop {
            let pinned = Pinned::new();
            let entry = self.at_one_version(|| self.entries.lend(lower, &pinned)).0?;
            if let Some(result) = self.with_list(entry, &mut change) {
                return Some(result);
            }
        }
    }

    /// At most `most` wanted segments, from the one that `from` belongs to on, and the key from
    /// which to continue, unless all were seen. If the segment that began at `from` was joined with
    /// the one below it meanwhile, the joined one is found.
    fn entries_where(
        &self,
        from: &[u8],
        most: usize,
        is_wanted: impl Fn(&Entry) -> bool,
    ) -> (Vec<Located>, Option<Vec<u8>>) {
        // Segments that are looked at in one go: few enough that changes seldom interrupt it.
        const LOOK_MAX: usize = 4096;
        let look = || {
            let pinned = Pinned::new();
            let first = Bound::Included(self.floor(from, &pinned).0);
            let mut found = Vec::new();
            for (looked, (lower, entry)) in self.from(first, &pinned).enumerate() {
                if found.len() == most || looked == LOOK_MAX {
                    return (found, Some(lower.to_vec()));
                }
                if is_wanted(entry) {
                    found.push(self.located((lower, entry), &pinned));
                }
            }
            (found, None)
        };
        self.at_one_version(look).0
    }

    /// Makes a change, and keeps lookups out.
    fn change(
        &self,
        structure: &mut MutexGuard<'_, Structure>,
        change: impl FnOnce(&mut Structure),
    ) {
        self.version.fetch_add(1, Ordering::SeqCst);
        change(&mut *structure);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Inserts entries for these segments, or for the virtual one of a keyspace without data.
    fn insert_all(&self, structure: &mut Structure, segments: Segments) {
        if segments.is_empty() {
            self.insert(structure, &[], Segment::virtual_one(), DirtyList::default());
        }
        for (lower, segment) in segments {
            self.insert(structure, &lower, segment, DirtyList::default());
        }
    }

    /// Inserts an entry, and replaces the one with the same bound, which was retired.
    fn insert(&self, structure: &mut Structure, lower: &[u8], segment: Segment, dirty: DirtyList) {
        structure.counts.change(&segment, u64::wrapping_add);
        let bytes = list_bytes(&segment.overflows) + list_bytes(&dirty.entries);
        self.list_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.due.fetch_add(dirty.due, Ordering::SeqCst);
        let entry = Entry { segment, dirty: Mutex::new(Some(dirty)) };
        self.entries.put(lower, entry, &Pinned::new());
    }

    /// Takes an entry's list away for good: it is about to go from the index.
    fn retire(&self, structure: &mut Structure, entry: &Entry) -> DirtyList {
        structure.counts.change(&entry.segment, u64::wrapping_sub);
        let dirty = entry.dirty.lock().take().unwrap_or_default();
        let bytes = list_bytes(&entry.segment.overflows) + list_bytes(&dirty.entries);
        self.list_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.due.fetch_sub(dirty.due, Ordering::SeqCst);
        dirty
    }

    /// Checks that these segments are here, one right after the other. Nothing changes meanwhile.
    fn check_neighbours(&self, segments: &[(Vec<u8>, Segment)]) -> Result<()> {
        let first = segments.first().map_or(&[][..], |(lower, _)| lower.as_slice());
        let pinned = Pinned::new();
        let here = self.from(Bound::Included(first), &pinned).at_most(segments.len());
        let same = here
            .zip(segments)
            .take_while(|((lower, entry), (bound, segment))| {
                *lower == bound.as_slice() && entry.segment == *segment
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
}

/// What a list takes beside the word that points to it: its header and its room.
fn list_bytes<T>(list: &ThinVec<T>) -> usize {
    match list.capacity() {
        0 => 0,
        room => 2 * size_of::<usize>() + room * size_of::<T>(),
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod schedules;
#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
