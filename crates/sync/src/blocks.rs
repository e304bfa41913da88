//! Memory of leaves: blocks of words, each with what belongs to it.
//!
//! ```text
//!   chunk 0       16 blocks     | words ........................ | beside |
//!   chunk 1       16 blocks     | words ........................ | beside |
//!   chunk 2       32 blocks     ...
//! ```
//!
//! Chunks of blocks, each as long as all before it together, are mapped when they are first needed and
//! stay, so that a reader that lost a race reads words that mean nothing and never memory that is gone.
//! Memory of a free block that is not needed soon goes back to the system.
//!
//! What lies *beside* the blocks of a chunk is the user's: latches, for one. It is made with the chunk and
//! stays as it is when a block becomes free.

use std::fmt::Debug;
use std::sync::OnceLock;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ZeroedAtomics;
use crate::racy::Word;

/// Blocks of the first chunk.
const FIRST: usize = 16;
const CHUNKS: usize = 20;

/// Free blocks whose memory is kept: a rewrite takes two at most. With none, splits and merges would ask
/// the system each time.
const KEPT: usize = 4;

/// What belongs to the blocks of a chunk, beside their words.
pub trait Beside: Debug + Send + Sync {
    /// Makes what belongs to this many blocks.
    fn of(blocks: usize) -> Self;
}

#[derive(Debug)]
struct Chunk<B> {
    words: ZeroedAtomics<Word>,
    beside: B,
}

/// All blocks. Thread-safe.
#[derive(Debug)]
pub struct Blocks<B> {
    /// Words of a block.
    words: usize,
    chunks: [OnceLock<Chunk<B>>; CHUNKS],
    free: Mutex<Free>,
    /// Blocks that are taken.
    used: AtomicU64,
}

#[derive(Debug, Default)]
struct Free {
    /// First block that was never taken.
    end: usize,
    /// Blocks without memory, and with it.
    bare: Vec<u32>,
    backed: Vec<u32>,
}

/// Returns the chunk of a block and the position in it.
#[inline]
fn place(block: usize) -> (usize, usize) {
    if block < FIRST {
        return (0, block);
    }
    let chunk = (block / FIRST).ilog2() as usize + 1;
    (chunk, block - (FIRST << (chunk - 1)))
}

fn chunk_length(chunk: usize) -> usize {
    FIRST << chunk.saturating_sub(1)
}

impl<B: Beside> Blocks<B> {
    /// Makes no blocks yet, of `words` words each: a multiple of a page of the system.
    #[must_use]
    pub fn new(words: usize) -> Blocks<B> {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        Blocks { words, chunks, free: Mutex::default(), used: AtomicU64::new(0) }
    }

    /// Takes a free block, whose words may be anything.
    ///
    /// # Panics
    /// When the system has no memory, as all allocation does, or when there are 2^23 blocks.
    pub fn take(&self) -> u32 {
        self.used.fetch_add(1, Relaxed);
        let mut free = self.free.lock();
        let listed = free.backed.pop().or_else(|| free.bare.pop());
        if let Some(block) = listed {
            return block;
        }
        let block = free.end;
        let (chunk, _) = place(block);
        self.chunks[chunk].get_or_init(|| {
            let length = chunk_length(chunk);
            Chunk { words: ZeroedAtomics::new(length * self.words), beside: B::of(length) }
        });
        free.end += 1;
        u32::try_from(block).expect("blocks are fewer than 2^24")
    }

    /// Gives a block back that nothing leads to any more and whose latch nobody holds.
    pub fn give(&self, block: u32) {
        self.used.fetch_sub(1, Relaxed);
        let surplus = {
            let mut free = self.free.lock();
            free.backed.push(block);
            if free.backed.len() > KEPT { Some(free.backed.remove(0)) } else { None }
        };
        let Some(surplus) = surplus else { return };
        let (chunk, index) = self.chunk(surplus);
        chunk.words.give_back(index * self.words, self.words);
        self.free.lock().bare.push(surplus);
    }

    /// Returns the number of blocks that are taken.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn chunk(&self, block: u32) -> (&Chunk<B>, usize) {
        let (chunk, index) = place(block as usize);
        (self.chunks[chunk].get().expect("a block that was taken"), index)
    }

    /// Returns the words of a block that was taken, what lies beside its chunk, and its position there.
    ///
    /// # Panics
    /// When it never was.
    #[inline]
    #[must_use]
    pub fn block(&self, block: u32) -> (&[Word], &B, usize) {
        let (chunk, index) = self.chunk(block);
        (&chunk.words[index * self.words..][..self.words], &chunk.beside, index)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Numbers(usize);

    impl Beside for Numbers {
        fn of(blocks: usize) -> Numbers {
            Numbers(blocks)
        }
    }

    #[test]
    fn blocks_stay_blocks() {
        const WORDS: usize = 512;
        let blocks = Blocks::<Numbers>::new(WORDS);
        let taken: Vec<u32> = (0..200).map(|_| blocks.take()).collect();
        for block in &taken {
            let (words, beside, index) = blocks.block(*block);
            assert!(words.len() == WORDS && index < beside.0);
            words.iter().for_each(|word| word.store(u64::from(*block), Relaxed));
        }
        taken.iter().for_each(|block| {
            let (words, ..) = blocks.block(*block);
            assert!(words.iter().all(|word| word.load(Relaxed) == u64::from(*block)));
            blocks.give(*block);
        });
        assert_eq!(blocks.used(), 0);
        // A late reader finds a block there, whatever its words say.
        assert!(blocks.block(0).0.iter().all(|word| word.load(Relaxed) == 0));
        let again: std::collections::BTreeSet<u32> = (0..200).map(|_| blocks.take()).collect();
        assert!(again.len() == 200 && again.iter().all(|block| taken.contains(block)));
    }
}
