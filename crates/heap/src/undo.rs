//! Older versions: blocks that say how to get from a version to the one before it.
//!
//! ```text
//!   0 version | 1 end | 2 pi | 3 next, older | 4 columns | 5 size class | 6.. old values
//!
//!   entry -- older --> [v2, end c3] -- next --> [v1, end c2] -- next --> 0
//!   image of c3   minus the values of v2 = image of v2   minus those of v1 = image of v1
//! ```
//!
//! A block holds the values of the columns that the update changed, in the order of the columns, each
//! from a whole word on. Blocks are taken from chunks by size: steps of 64 bytes up to 1 KiB, then
//! powers of two. Freed ones are used again for the same size.
//!
//! **Invariants**
//! 1. A block does not change after the entry leads to it, but for `next` becoming 0.
//! 2. Ends descend along a chain.
//! 3. A block is freed when its end is at or below the horizon. A running transaction began at or
//!    above the horizon, so it stops before such blocks.
//! 4. Memory of blocks stays memory of blocks, so a stale address is readable.
//!
//! **Differs from the paper**, whose baselines copy the whole record into the tile groups for each
//! version. In place, an update of one column of ten copies a tenth, and scans meet no old versions.

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering};
use spinney_ssn::{Stamp, Successor, Version};
use spinney_sync::blocks::{Beside, Blocks};
use spinney_sync::racy::{WORD_BYTES, Word};

/// Words of a chunk.
const CHUNK_WORDS: usize = 8192;

/// Words of the smallest size, a cache line.
const STEP: usize = 8;

/// Sizes in steps of a line: 1 to 16 lines.
const LINEAR: usize = 16;
/// And powers of two above: 32 to 1,024 lines.
const CLASSES: usize = LINEAR + 6;

/// Words before the old values.
pub(crate) const HEADER: usize = 6;

/// Free blocks of one size that a session keeps. With fewer, sessions meet at the shared lists.
const KEPT: usize = 1024;

/// Nothing lies beside the words.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Beside for Nothing {
    fn of(_: usize) -> Nothing {
        Nothing
    }
}

fn words_of(class: usize) -> usize {
    if class < LINEAR { (class + 1) * STEP } else { (LINEAR * STEP) << (class - LINEAR + 1) }
}

fn class_of(words: usize) -> usize {
    let lines = words.div_ceil(STEP).max(1);
    if lines <= LINEAR {
        return lines - 1;
    }
    LINEAR + (lines.next_power_of_two() / LINEAR).ilog2() as usize - 1
}

/// The blocks of all tables. Thread-safe.
#[derive(Debug)]
pub(crate) struct Undo {
    chunks: Blocks<Nothing>,
    free: Mutex<[Vec<u64>; CLASSES]>,
    /// Bytes of blocks that hold versions.
    used: AtomicU64,
}

/// Free blocks of a session.
#[derive(Debug)]
pub(crate) struct Pool {
    free: [Vec<u64>; CLASSES],
    /// The rest of a chunk: its first word, and the one behind its last.
    rest: (u64, u64),
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool { free: Default::default(), rest: (0, 0) }
    }
}

/// A block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a>(&'a [Word]);

impl<'a> Block<'a> {
    fn load(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Acquire)
    }

    pub(crate) fn version(self) -> Version {
        Version::from_word(self.load(0))
    }

    pub(crate) fn successor(self) -> Successor {
        Successor { end: self.load(1), pi: self.load(2) }
    }

    pub(crate) fn next(self) -> u64 {
        self.load(3)
    }

    pub(crate) fn columns(self) -> u64 {
        self.load(4)
    }

    /// Words from the first old value on.
    pub(crate) fn values(self) -> &'a [Word] {
        &self.0[HEADER..]
    }

    pub(crate) fn prefetch(self) {
        spinney_sync::prefetch(&self.0[0]);
    }

    /// Writes all but the values.
    pub(crate) fn begin(self, version: Version, successor: Successor, next: u64, columns: u64) {
        let words = [version.word(), successor.end, successor.pi, next, columns];
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
    }
}

impl Undo {
    pub(crate) fn new() -> Undo {
        let (chunks, free) = (Blocks::new(CHUNK_WORDS), Mutex::default());
        Undo { chunks, free, used: AtomicU64::new(0) }
    }

    /// Returns the block at an address, which reaches to the end of its chunk.
    pub(crate) fn block(&self, address: u64) -> Block<'_> {
        let (chunk, at) = (address as usize / CHUNK_WORDS, address as usize % CHUNK_WORDS);
        let (words, ..) = self.chunks.block(u32::try_from(chunk).unwrap_or(u32::MAX));
        Block(&words[at..])
    }

    /// Takes a block with room for this many words of values.
    pub(crate) fn take(&self, pool: &mut Pool, words: usize) -> u64 {
        let class = class_of(HEADER + words);
        let length = words_of(class) as u64;
        self.used.fetch_add(length * WORD_BYTES as u64, Ordering::Relaxed);
        let address = pool.free[class].pop().unwrap_or_else(|| self.refill(pool, class, length));
        self.block(address).0[5].store(class as u64, Ordering::Release);
        address
    }

    #[cold]
    fn refill(&self, pool: &mut Pool, class: usize, length: u64) -> u64 {
        {
            let mut free = self.free.lock();
            let shared = &mut free[class];
            let stay = shared.len() - shared.len().min(KEPT / 2);
            pool.free[class].extend(shared.drain(stay..));
        }
        if let Some(address) = pool.free[class].pop() {
            return address;
        }
        while pool.rest.1 - pool.rest.0 < length {
            // What is left of the old one serves small sizes.
            while pool.rest.1 > pool.rest.0 {
                let lines = (pool.rest.1 - pool.rest.0) as usize / STEP;
                let class = lines.min(LINEAR) - 1;
                pool.free[class].push(pool.rest.0);
                pool.rest.0 += words_of(class) as u64;
            }
            let first = u64::from(self.chunks.take()) * CHUNK_WORDS as u64;
            // Address 0 is none.
            let skipped = if first == 0 { STEP as u64 } else { 0 };
            pool.rest = (first + skipped, first + CHUNK_WORDS as u64);
        }
        let address = pool.rest.0;
        pool.rest.0 += length;
        address
    }

    /// Frees a block that nothing leads to.
    fn give(&self, pool: &mut Pool, address: u64) {
        let class = (self.block(address).load(5) as usize).min(CLASSES - 1);
        self.used.fetch_sub((words_of(class) * WORD_BYTES) as u64, Ordering::Relaxed);
        let free = &mut pool.free[class];
        free.push(address);
        if free.len() > KEPT {
            self.free.lock()[class].extend(free.drain(KEPT / 2..));
        }
    }

    /// Gives all free blocks of a session to the others.
    pub(crate) fn empty(&self, pool: &mut Pool) {
        let mut free = self.free.lock();
        for (shared, own) in free.iter_mut().zip(&mut pool.free) {
            shared.append(own);
        }
        while pool.rest.1 > pool.rest.0 {
            let class = ((pool.rest.1 - pool.rest.0) as usize / STEP).min(LINEAR) - 1;
            free[class].push(pool.rest.0);
            pool.rest.0 += words_of(class) as u64;
        }
    }

    /// Frees the blocks of a chain that end at or below the horizon. Returns where it begins now.
    /// The caller holds the lock of the entry.
    pub(crate) fn trim(&self, pool: &mut Pool, first: u64, horizon: Stamp) -> u64 {
        let (mut last_kept, mut at) = (0, first);
        while at != 0 && self.block(at).successor().end > horizon {
            last_kept = at;
            at = self.block(at).next();
        }
        if at == 0 {
            return first;
        }
        if last_kept != 0 {
            self.block(last_kept).0[3].store(0, Ordering::Release);
        }
        while at != 0 {
            let next = self.block(at).next();
            self.give(pool, at);
            at = next;
        }
        if last_kept == 0 { 0 } else { first }
    }

    /// Returns what is known of the overwriter of a version, if the chain still has it.
    pub(crate) fn find(&self, first: u64, version: Version) -> Option<Successor> {
        let (mut at, mut last) = (first, Stamp::MAX);
        while at != 0 {
            let block = self.block(at);
            let successor = block.successor();
            if block.version() == version {
                return Some(successor);
            }
            if successor.end >= last {
                break;
            }
            last = successor.end;
            at = block.next();
        }
        None
    }

    /// Counts the versions of a chain, which may be changed meanwhile.
    pub(crate) fn length(&self, first: u64) -> u64 {
        let (mut at, mut last, mut count) = (first, Stamp::MAX, 0);
        while at != 0 {
            let block = self.block(at);
            let end = block.successor().end;
            // Else it was freed, and is of another chain.
            if end >= last {
                break;
            }
            (last, at, count) = (end, block.next(), count + 1);
        }
        count
    }

    /// Bytes of blocks that hold versions.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of all chunks.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.used() * (CHUNK_WORDS * WORD_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hold_what_they_are_for() {
        for words in 1..CHUNK_WORDS {
            let class = class_of(words);
            assert!(words_of(class) >= words && (class == 0 || words_of(class - 1) < words));
        }
    }

    #[test]
    fn freed_blocks_are_used_again() {
        let (undo, mut pool) = (Undo::new(), Pool::new());
        for round in 0..1000 {
            let addresses: Vec<u64> = (0..100).map(|_| undo.take(&mut pool, 13)).collect();
            let mut first = 0;
            for (at, address) in addresses.iter().enumerate() {
                let successor = Successor { end: at as u64 + 1, pi: 0 };
                undo.block(*address).begin(Version::present(at as u64), successor, first, 0);
                first = *address;
            }
            assert_eq!(undo.length(first), 100);
            assert_eq!(undo.trim(&mut pool, first, 50), first);
            assert_eq!(undo.length(first), 50);
            assert_eq!(undo.find(first, Version::present(70)).unwrap().end, 71);
            assert_eq!(undo.find(first, Version::present(20)), None);
            assert_eq!(undo.trim(&mut pool, first, 100), 0, "round {round}");
        }
        assert_eq!((undo.used_bytes(), undo.bytes()), (0, 64 << 10));
        undo.empty(&mut pool);
        let mut other = Pool::new();
        assert!((0..100).all(|_| undo.take(&mut other, 13) > 0));
        assert_eq!(undo.bytes(), 64 << 10);
    }
}
