//! Pages of a file as memory.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memmap2::{MmapOptions, MmapRaw};

use crate::disk::Mapping;

const WORD_BYTES: usize = size_of::<u64>();

/// Number of words stored at once.
const GROUP_WORDS: usize = 4;

/// A shared mapping from the beginning of a file.
#[derive(Debug)]
pub(super) struct RealMapping {
    memory: MmapRaw,
}

impl RealMapping {
    /// Maps `bytes` bytes; `None` when the system refuses.
    pub(super) fn new(descriptor: RawFd, bytes: usize) -> Option<RealMapping> {
        let memory = MmapOptions::new().len(bytes).populate().map_raw(descriptor).ok()?;
        Some(RealMapping { memory })
    }

    /// Returns the mapping as words that any thread may store to at any time.
    #[expect(unsafe_code, reason = "mapped memory is taken as atomic words")]
    fn words(&self) -> &[AtomicU64] {
        let words = self.memory.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is writable, begins at a page, has at least so many words, and lives as long as `self`.
        // Every bit pattern is a valid word, and the bytes are reached as these words only, by
        // whatever thread.
        unsafe { std::slice::from_raw_parts(words, self.memory.len() / WORD_BYTES) }
    }
}

#[inline]
fn store(words: &[AtomicU64], bytes: &[[u8; WORD_BYTES]]) {
    for (word, bytes) in words.iter().zip(bytes) {
        word.store(u64::from_le_bytes(*bytes).to_le(), Relaxed);
    }
}

impl Mapping for RealMapping {
    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.is_multiple_of(WORD_BYTES), "stores are whole words");
        let place = offset / WORD_BYTES;
        let words = &self.words()[place..place + bytes.len().div_ceil(WORD_BYTES)];
        let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
        let (words, last) = words.split_at(whole.len());
        // Several at once, because compilers do not unroll loops of atomic stores.
        let (groups, words) = words.as_chunks::<GROUP_WORDS>();
        let (whole_groups, whole) = whole.as_chunks::<GROUP_WORDS>();
        for (words, group) in groups.iter().zip(whole_groups) {
            store(words, group);
        }
        store(words, whole);
        if let [last] = last {
            let mut word = [0; WORD_BYTES];
            word[..rest.len()].copy_from_slice(rest);
            store(std::slice::from_ref(last), &[word]);
        }
    }
}
