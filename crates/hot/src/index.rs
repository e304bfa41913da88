//! The index: which leaf has a key, found by the leaves' lower bounds.
//!
//! ```text
//!   top                      chunks, each replaced as a whole
//!  +-------+-------+-----+      +-----------------------------+
//!  | ""    | "dog" | ... | ---> | "dog" -> 3   "elk" -> 12 .. |
//!  +-------+-------+-----+      +-----------------------------+
//! ```
//!
//! There is an entry for a hundred records, so it is small and changes seldom: a change copies one chunk,
//! and the top where a chunk splits or goes. Readers take no lock and see each chunk as of one moment.
//!
//! **Invariants**
//! 1. The bound of a chunk in the top is at most its first entry, and above all entries of the chunk
//!    before. The first one is empty.
//! 2. A lookup answers what one moment had for the key. Where the chunk has nothing at most the key, the
//!    answer is the last entry of the chunk before, if the chunk is still the same afterwards.

use std::mem::size_of;
use std::sync::Arc;

use arc_swap::ArcSwap;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tier::Home;

/// Most entries of a chunk. With more, changes copy more; with fewer, the top is longer and is copied
/// more often.
const CHUNK_MAX: usize = if cfg!(feature = "shuttle") { 4 } else { 64 };

/// Keys in ascending order.
#[derive(Clone, Debug, Default)]
struct Keys {
    /// First eight bytes of each, as numbers that order as keys do.
    heads: Vec<u64>,
    /// Where the bytes of each end.
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

/// The first eight bytes of a key, zeros behind a shorter one.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    if let Some(head) = key.first_chunk() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(head)
}

impl Keys {
    fn len(&self) -> usize {
        self.heads.len()
    }

    fn get(&self, index: usize) -> &[u8] {
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.bytes[begin..self.ends[index] as usize]
    }

    fn push(&mut self, key: &[u8]) {
        self.heads.push(head_of(key));
        self.bytes.extend_from_slice(key);
        self.ends.push(u32::try_from(self.bytes.len()).expect("a chunk's keys are short"));
    }

    /// Number of keys that are at most `key`.
    #[inline]
    fn at_most(&self, key: &[u8]) -> usize {
        let head = head_of(key);
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let found = self.heads[middle];
            let is_at_most = found < head || found == head && self.get(middle) <= key;
            if is_at_most {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Number of keys below `key`.
    fn below(&self, key: &[u8]) -> usize {
        let count = self.at_most(key);
        count - usize::from(count > 0 && self.get(count - 1) == key)
    }

    fn held_bytes(&self) -> usize {
        self.heads.len() * size_of::<u64>() + self.ends.len() * size_of::<u32>() + self.bytes.len()
    }
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    lowers: Keys,
    homes: Vec<Home>,
}

impl Chunk {
    fn of(entries: &[(&[u8], Home)]) -> Arc<Chunk> {
        let count = entries.len();
        let bytes = entries.iter().map(|(lower, _)| lower.len()).sum();
        let mut lowers = Keys {
            heads: Vec::with_capacity(count),
            ends: Vec::with_capacity(count),
            bytes: Vec::with_capacity(bytes),
        };
        entries.iter().for_each(|(lower, _)| lowers.push(lower));
        Arc::new(Chunk { lowers, homes: entries.iter().map(|(_, home)| *home).collect() })
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], Home)> {
        (0..self.homes.len()).map(|index| (self.lowers.get(index), self.homes[index]))
    }

    fn held_bytes(&self) -> u64 {
        // Its place in the top, with a short key, and two counts of owners.
        let about = size_of::<Chunk>() + size_of::<ArcSwap<Chunk>>() + 64;
        (self.lowers.held_bytes() + self.homes.len() * size_of::<Home>() + about) as u64
    }
}

#[derive(Debug, Default)]
struct Top {
    lowers: Keys,
    chunks: Vec<Arc<ArcSwap<Chunk>>>,
}

impl Top {
    fn of(chunks: Vec<(Vec<u8>, Arc<ArcSwap<Chunk>>)>) -> Top {
        let mut top = Top::default();
        for (lower, chunk) in chunks {
            top.lowers.push(&lower);
            top.chunks.push(chunk);
        }
        top
    }

    fn chunks(&self) -> Vec<(Vec<u8>, Arc<ArcSwap<Chunk>>)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.map(|(index, chunk)| (self.lowers.get(index).to_vec(), Arc::clone(chunk))).collect()
    }
}

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Index {
    top: ArcSwap<Top>,
    /// Held while it is changed.
    changing: Mutex<()>,
    bytes: AtomicU64,
}

impl Index {
    /// The index of one leaf, for all keys.
    pub(crate) fn new(home: Home) -> Index {
        let chunk = Chunk::of(&[(&[], home)]);
        let bytes = AtomicU64::new(chunk.held_bytes());
        let top = Top::of(vec![(Vec::new(), Arc::new(ArcSwap::new(chunk)))]);
        Index { top: ArcSwap::from_pointee(top), changing: Mutex::new(()), bytes }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns the leaf whose lower bound is the greatest that is at most `key`.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Home {
        let top = self.top.load();
        let place = top.lowers.at_most(key) - 1;
        let chunk = top.chunks[place].load();
        match chunk.lowers.at_most(key).checked_sub(1) {
            Some(found) => chunk.homes[found],
            None => self.before(key, true).expect("the first leaf begins before all keys").1,
        }
    }

    /// Returns the last leaf that begins below `key`, or at it where `or_at`.
    #[cold]
    pub(crate) fn before(&self, key: &[u8], or_at: bool) -> Option<(Vec<u8>, Home)> {
        let count = |keys: &Keys| if or_at { keys.at_most(key) } else { keys.below(key) };
        'again: loop {
            let top = self.top.load();
            let mut place = count(&top.lowers);
            let mut passed = Vec::new();
            while let Some(next) = place.checked_sub(1) {
                let chunk = top.chunks[next].load_full();
                let found = count(&chunk.lowers).checked_sub(1);
                let answer = found.map(|at| (chunk.lowers.get(at).to_vec(), chunk.homes[at]));
                if answer.is_some() {
                    let is_same = |(place, chunk): &(usize, Arc<Chunk>)| {
                        Arc::ptr_eq(&top.chunks[*place].load(), chunk)
                    };
                    if passed.iter().all(is_same) {
                        return answer;
                    }
                    continue 'again;
                }
                passed.push((next, chunk));
                place = next;
            }
            return None;
        }
    }

    /// Returns the last leaf.
    pub(crate) fn last(&self) -> Home {
        loop {
            let top = self.top.load();
            for chunk in top.chunks.iter().rev() {
                if let Some(home) = chunk.load().homes.last() {
                    return *home;
                }
            }
        }
    }

    /// Returns the leaf with exactly this lower bound.
    pub(crate) fn get(&self, lower: &[u8]) -> Option<Home> {
        let (found, home) = self.before(lower, true)?;
        (found == lower).then_some(home)
    }

    /// Takes a leaf out.
    pub(crate) fn remove(&self, lower: &[u8]) {
        self.change(lower, None);
    }

    /// Enters a leaf, in place of one with this lower bound if there is one.
    pub(crate) fn insert(&self, lower: &[u8], home: Home) {
        self.change(lower, Some(home));
    }

    fn change(&self, lower: &[u8], home: Option<Home>) {
        let _alone = self.changing.lock();
        let top = self.top.load_full();
        let place = top.lowers.at_most(lower) - 1;
        let old = top.chunks[place].load_full();
        let at = old.lowers.below(lower);
        let behind = old.lowers.at_most(lower);
        let before = old.entries().take(at);
        let after = old.entries().skip(behind);
        let entries: Vec<_> = before.chain(home.map(|home| (lower, home))).chain(after).collect();
        self.bytes.fetch_sub(old.held_bytes(), Relaxed);
        if entries.is_empty() && place > 0 {
            let mut chunks = top.chunks();
            chunks.remove(place);
            self.top.store(Arc::new(Top::of(chunks)));
            // A reader that has the old top finds nothing here, and looks again.
            top.chunks[place].store(Chunk::of(&[]));
            return;
        }
        if entries.len() <= CHUNK_MAX {
            let chunk = Chunk::of(&entries);
            self.bytes.fetch_add(chunk.held_bytes(), Relaxed);
            top.chunks[place].store(chunk);
            return;
        }
        let middle = entries.len() / 2;
        let mut chunks = top.chunks();
        let halves = [&entries[..middle], &entries[middle..]].map(|half| {
            let chunk = Chunk::of(half);
            self.bytes.fetch_add(chunk.held_bytes(), Relaxed);
            Arc::new(ArcSwap::new(chunk))
        });
        let [left, right] = halves;
        chunks[place].1 = left;
        chunks.insert(place + 1, (entries[middle].0.to_vec(), right));
        self.top.store(Arc::new(Top::of(chunks)));
    }

    /// Returns the number of leaves that begin in a range, and of all.
    pub(crate) fn count(&self, lower: &[u8], upper: Option<&[u8]>) -> (usize, usize) {
        let top = self.top.load();
        let (mut within, mut all) = (0, 0);
        for chunk in &top.chunks {
            let chunk = chunk.load();
            let end = upper.map_or(chunk.lowers.len(), |upper| chunk.lowers.below(upper));
            within += end.saturating_sub(chunk.lowers.below(lower));
            all += chunk.lowers.len();
        }
        (within, all)
    }

    /// Returns all leaves in order. Nobody changes it meanwhile.
    pub(crate) fn all(&self) -> Vec<(Vec<u8>, Home)> {
        let top = self.top.load();
        let chunks = top.chunks.iter().map(|chunk| chunk.load_full());
        let entries = |chunk: Arc<Chunk>| {
            chunk.entries().map(|(lower, home)| (lower.to_vec(), home)).collect::<Vec<_>>()
        };
        chunks.flat_map(entries).collect()
    }
}
