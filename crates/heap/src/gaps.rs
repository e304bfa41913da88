//! Gaps between keys: what scans and failed look-ups read, and inserts overwrite.
//!
//! ```text
//!   keys       a b d | f g h m | p q          fences cut the keys into ranges
//!   range      0     | 2       | 1            pstamp, readers, version, children
//!
//!   split of 0:   child 2 is listed in 0 -> marks of 0 are copied to 2 -> the fence f leads to 2
//!   handle of 0, made before:   visits 0, then its children since
//! ```
//!
//! A range has the gap stamps and the node version that a leaf has in `iot`. A scan notes each range
//! that it meets and the version of it, before it reads the index; an insert links the key into the
//! index, then raises the version. The scan commits only if the versions are the same, or if the
//! index has the same entries between the bounds that it read (see `seen`). Inserts that come later
//! find the scan by its bit or by pstamp.
//!
//! **Invariants**
//! 1. A range is listed among its parent's children before the parent's marks are copied. So a visit
//!    reaches both, or its effect is copied.
//! 2. `turn` is odd while a range is split. A handle is valid if `turn` was even and the same before
//!    and after it was made and used.
//! 3. An insert that was linked before a handle was made is in the index when its maker reads it.
//!
//! A bit that is copied while its reader clears it stays in the child. It can only make an eta
//! greater. Ranges are split and never joined: a queue of keys leaves a range of 64 bytes and a
//! fence behind for each 32 keys.
//!
//! **Differs from the paper**, which protects no ranges.

use std::ops::Bound;
use std::sync::OnceLock;

use spinney_art::{ArtMap, Direction};
use spinney_base::shim::atomic::{AtomicU32, AtomicU64, Ordering};
use spinney_base::shim::{Mutex, spin_hint, thread};
use spinney_ssn::{Marks, Readable, Stamp};

/// Keys of a range after which it is split: leaves of `iot` hold as many records of 200 bytes. With
/// more, scans and inserts that have nothing in common conflict; with fewer, scans note more ranges.
pub(crate) const KEYS_MAX: u64 = 64;

/// Ranges of the first chunk; each following one has as many as all before it.
const FIRST: usize = 64;
const CHUNKS: usize = 26;

const SPINS_BEFORE_YIELD: u32 = 64;

/// No range.
const NONE: u32 = u32::MAX;

/// A range of keys.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Range {
    pstamp: AtomicU64,
    readers: AtomicU64,
    /// One more for each key that was linked.
    version: AtomicU64,
    /// The version that it began with: that of its parent.
    first: AtomicU64,
    keys: AtomicU64,
    /// Number of splits.
    splits: AtomicU32,
    /// The child of the latest split, and the one before it of the same parent.
    child: AtomicU32,
    sibling: AtomicU32,
    /// The parent's number of splits with this one.
    birth: AtomicU32,
}

impl Default for Range {
    fn default() -> Self {
        Range {
            pstamp: AtomicU64::new(0),
            readers: AtomicU64::new(0),
            version: AtomicU64::new(0),
            first: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            splits: AtomicU32::new(0),
            child: AtomicU32::new(NONE),
            sibling: AtomicU32::new(NONE),
            birth: AtomicU32::new(0),
        }
    }
}

/// The ranges of a table. Thread-safe.
#[derive(Debug)]
pub(crate) struct Gaps {
    chunks: [OnceLock<Box<[Range]>>; CHUNKS],
    fences: ArtMap<u32>,
    turn: AtomicU64,
    splitting: Mutex<u32>,
}

/// Handle of a gap: a range, and the ranges that were split from it since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapRef<'a> {
    gaps: &'a Gaps,
    range: &'a Range,
    /// Splits of the range when the handle was made.
    born: u32,
}

impl<'a> GapRef<'a> {
    /// Returns the range and its version now.
    pub(crate) fn version(&self) -> (&'a Range, u64) {
        (self.range, self.range.version.load(Ordering::SeqCst))
    }

    pub(crate) fn is_of(&self, range: &Range) -> bool {
        std::ptr::eq(self.range, range)
    }

    /// Returns whether the only keys that were linked into the range, and into what was split from
    /// it, since it had this version are those that `own` counts.
    pub(crate) fn is_at(&self, version: u64, own: impl Fn(&Range) -> u64) -> bool {
        let mut is_same = true;
        self.each(&mut |range| {
            let is_child = !self.is_of(range);
            let first = if is_child { range.first.load(Ordering::SeqCst) } else { version };
            let expected = first.wrapping_add(own(range));
            is_same &= range.version.load(Ordering::SeqCst) == expected;
        });
        is_same
    }

    /// Calls `act` with the range and all that were split from it.
    fn each(&self, act: &mut dyn FnMut(&Range)) {
        act(self.range);
        if self.range.splits.load(Ordering::SeqCst) == self.born {
            return;
        }
        let mut child = self.range.child.load(Ordering::SeqCst);
        while child != NONE {
            let range = self.gaps.range(child);
            if range.birth.load(Ordering::SeqCst) <= self.born {
                break;
            }
            GapRef { range, born: 0, ..*self }.each(act);
            child = range.sibling.load(Ordering::SeqCst);
        }
    }

    /// Raises pstamp to that of an entry that leaves the index.
    pub(crate) fn follow(&self, pstamp: Stamp) {
        self.visit(&mut |marks| {
            marks.pstamp.fetch_max(pstamp, Ordering::SeqCst);
        });
    }
}

impl Readable for GapRef<'_> {
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        self.each(&mut |range| act(Marks { pstamp: &range.pstamp, readers: &range.readers }));
    }
}

fn chunk_of(range: usize) -> (usize, usize) {
    if range < FIRST {
        return (0, range);
    }
    let chunk = (range / FIRST).ilog2() as usize + 1;
    (chunk, range - (FIRST << (chunk - 1)))
}

impl Gaps {
    /// Makes one range of all keys.
    pub(crate) fn new() -> Gaps {
        let (chunks, fences) = ([const { OnceLock::new() }; CHUNKS], ArtMap::new());
        let gaps = Gaps { chunks, fences, turn: AtomicU64::new(0), splitting: Mutex::new(1) };
        gaps.make(0);
        gaps.fences.insert(&[], 0);
        gaps
    }

    fn range(&self, range: u32) -> &Range {
        let (chunk, at) = chunk_of(range as usize);
        &self.chunks[chunk].get().expect("a range that was made")[at]
    }

    fn make(&self, range: u32) -> &Range {
        let (chunk, at) = chunk_of(range as usize);
        let length = FIRST << chunk.saturating_sub(1);
        &self.chunks[chunk].get_or_init(|| (0..length).map(|_| Range::default()).collect())[at]
    }

    /// Waits until no range is being split.
    fn even_turn(&self) -> u64 {
        let mut spins = 0;
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            if turn.is_multiple_of(2) {
                return turn;
            }
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { spin_hint() } else { thread::yield_now() }
        }
    }

    /// Returns the gap that a key lies in.
    pub(crate) fn find(&self, key: &[u8]) -> GapRef<'_> {
        loop {
            let turn = self.even_turn();
            let range = self.range(self.fences.floor_value(key).unwrap_or(0));
            let born = range.splits.load(Ordering::SeqCst);
            if self.turn.load(Ordering::SeqCst) == turn {
                return GapRef { gaps: self, range, born };
            }
        }
    }

    /// Returns the gap in which a scan begins, and replaces `edge` by the fence at which the gap
    /// ends. Returns whether there is one. Forward, a scan begins at `from`; backward, below it, or
    /// at the last key.
    pub(crate) fn find_from(
        &self,
        from: Bound<&[u8]>,
        direction: Direction,
        edge: &mut Vec<u8>,
    ) -> (GapRef<'_>, bool) {
        loop {
            let turn = self.even_turn();
            let (id, has_edge) = match (direction, from) {
                (Direction::Forward, Bound::Included(key) | Bound::Excluded(key)) => {
                    let id = self.fences.floor_value(key).unwrap_or(0);
                    (id, self.fence(Bound::Excluded(key), direction, edge).is_some())
                }
                (Direction::Forward, Bound::Unbounded) => {
                    (0, self.fence(Bound::Excluded(&[]), direction, edge).is_some())
                }
                (Direction::Backward, from) => {
                    (self.fence(from, direction, edge).unwrap_or(0), true)
                }
            };
            let range = self.range(id);
            let born = range.splits.load(Ordering::SeqCst);
            if self.turn.load(Ordering::SeqCst) == turn {
                return (GapRef { gaps: self, range, born }, has_edge);
            }
        }
    }

    fn fence(&self, from: Bound<&[u8]>, direction: Direction, edge: &mut Vec<u8>) -> Option<u32> {
        edge.clear();
        let (key, range) = self.fences.neighbour(from, direction)?;
        *edge = key;
        Some(range)
    }

    /// Raises the version of the range of a key that was just linked, and passes each range that it
    /// raised to `own`. Returns whether the range is to be split.
    pub(crate) fn linked<'a>(&'a self, key: &[u8], mut own: impl FnMut(&'a Range)) -> bool {
        loop {
            let turn = self.even_turn();
            let range = self.range(self.fences.floor_value(key).unwrap_or(0));
            range.version.fetch_add(1, Ordering::SeqCst);
            own(range);
            let is_full = range.keys.fetch_add(1, Ordering::Relaxed) + 1 >= KEYS_MAX;
            // If it was split meanwhile, the key may belong to the child.
            if self.turn.load(Ordering::SeqCst) == turn {
                return is_full;
            }
        }
    }

    /// Notes that a key left the index.
    pub(crate) fn unlinked(&self, key: &[u8]) {
        let keys = &self.find(key).range.keys;
        let _ = keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |keys| keys.checked_sub(1));
    }

    /// Splits the range of a key before the key that `middle` names: it gets the fence of the range
    /// and appends the key in the middle, if there is one. Does nothing while another is split.
    pub(crate) fn split(&self, key: &[u8], middle: impl FnOnce(&[u8], &mut Vec<u8>) -> bool) {
        let Some(mut next) = self.splitting.try_lock() else { return };
        let Some((fence, id)) = self.fences.floor(key) else { return };
        let (parent, mut at) = (self.range(id), Vec::new());
        let is_full = parent.keys.load(Ordering::Relaxed) >= KEYS_MAX;
        if !is_full || !middle(&fence, &mut at) || at <= fence {
            parent.keys.store(0, Ordering::Relaxed);
            return;
        }
        // Not into the next range, if others than the counted keys are there.
        if self.fences.floor_value(&at) != Some(id) {
            parent.keys.store(0, Ordering::Relaxed);
            return;
        }
        self.turn.fetch_add(1, Ordering::SeqCst);
        let child = self.make(*next);
        let splits = parent.splits.load(Ordering::SeqCst) + 1;
        child.birth.store(splits, Ordering::SeqCst);
        child.sibling.store(parent.child.load(Ordering::SeqCst), Ordering::SeqCst);
        parent.child.store(*next, Ordering::SeqCst);
        parent.splits.store(splits, Ordering::SeqCst);
        let version = parent.version.load(Ordering::SeqCst);
        child.first.store(version, Ordering::SeqCst);
        child.version.store(version, Ordering::SeqCst);
        child.readers.fetch_or(parent.readers.load(Ordering::SeqCst), Ordering::SeqCst);
        child.pstamp.fetch_max(parent.pstamp.load(Ordering::SeqCst), Ordering::SeqCst);
        let half = parent.keys.load(Ordering::Relaxed) / 2;
        child.keys.store(half, Ordering::Relaxed);
        parent.keys.store(half, Ordering::Relaxed);
        self.fences.insert(&at, *next);
        *next += 1;
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a range that begins with this key, behind all others. No other thread uses the table.
    pub(crate) fn append(&self, key: &[u8]) {
        let mut next = self.splitting.lock();
        self.make(*next);
        self.fences.insert(key, *next);
        *next += 1;
    }

    /// Bytes of ranges and fences.
    pub(crate) fn bytes(&self) -> u64 {
        let made = self.chunks.iter().filter_map(OnceLock::get).map(|chunk| chunk.len());
        (made.sum::<usize>() * size_of::<Range>() + self.fences.bytes()) as u64
    }
}
