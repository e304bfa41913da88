//! Pages of a file as memory.
//!
//! ```text
//!   map    MAP_SHARED_VALIDATE | MAP_SYNC   the file is memory (DAX): persistent
//!          MAP_SHARED                       pages of the page cache: everywhere else
//! ```
//!
//! The kernel refuses `MAP_SYNC` except where stores reach the medium itself. There it promises that
//! a page that can be stored to keeps its place in the file over a power loss, so a line that is
//! written back and fenced needs no `fdatasync`.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::lines::Instruction;
use crate::disk::{LINE_BYTES, Mapping};

const WORD_BYTES: usize = size_of::<u64>();

/// Number of words stored at once.
const GROUP_WORDS: usize = 4;

/// A shared mapping from the beginning of a file.
#[derive(Debug)]
pub(super) struct RealMapping {
    memory: Memory,
    /// What writes lines back, if this processor has something.
    instruction: Option<Instruction>,
    is_persistent: bool,
}

/// Pages that the kernel mapped, until it is dropped.
#[derive(Debug)]
struct Memory {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the pages belong to the process, not to a thread.
#[expect(unsafe_code, reason = "a pointer to pages that any thread may reach")]
unsafe impl Send for Memory {}
// SAFETY: they are reached as atomic words only.
#[expect(unsafe_code, reason = "a pointer to pages that any thread may reach")]
unsafe impl Sync for Memory {}

impl Memory {
    #[expect(unsafe_code, reason = "mapping a file")]
    fn map(file: BorrowedFd<'_>, bytes: usize, flags: MapFlags) -> Option<Memory> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no mapping of anybody is replaced.
        let start = unsafe { mmap(null_mut(), bytes, rights, flags, file, 0) };
        Some(Memory { start: NonNull::new(start.ok()?)?, bytes })
    }
}

impl Drop for Memory {
    #[expect(unsafe_code, reason = "a mapping ends with its owner")]
    fn drop(&mut self) {
        // SAFETY: these pages were mapped by `Memory::map`, and borrows of them end before their
        // owner.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of its own");
    }
}

/// Returns whether a mapping of this file is persistent memory, by mapping a page of it and touching
/// none.
pub(super) fn is_persistent(file: BorrowedFd<'_>) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    Instruction::of_this_processor().is_some() && Memory::map(file, WORD_BYTES, flags).is_some()
}

impl RealMapping {
    /// Maps `bytes` bytes; `None` when the system refuses.
    pub(super) fn new(file: BorrowedFd<'_>, bytes: usize) -> Option<RealMapping> {
        let instruction = Instruction::of_this_processor();
        let persistent = MapFlags::SHARED_VALIDATE | MapFlags::SYNC | MapFlags::POPULATE;
        // Without an instruction nobody could say when a line is on the medium.
        if instruction.is_some()
            && let Some(memory) = Memory::map(file, bytes, persistent)
        {
            return Some(RealMapping { memory, instruction, is_persistent: true });
        }
        let memory = Memory::map(file, bytes, MapFlags::SHARED | MapFlags::POPULATE)?;
        Some(RealMapping { memory, instruction, is_persistent: false })
    }

    /// Returns the mapping as words that any thread may store to at any time.
    #[expect(unsafe_code, reason = "mapped memory is taken as atomic words")]
    fn words(&self) -> &[AtomicU64] {
        let words = self.memory.start.as_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is writable, begins at a page, has at least so many words, and lives as long as `self`.
        // Every bit pattern is a valid word, and the bytes are reached as these words only, by
        // whatever thread.
        unsafe { std::slice::from_raw_parts(words, self.memory.bytes / WORD_BYTES) }
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

    fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    fn write_back(&self, range: Range<usize>) {
        let Some(instruction) = self.instruction else { return };
        let first = range.start / LINE_BYTES * LINE_BYTES;
        instruction.write_back(&self.words()[first / WORD_BYTES..range.end.div_ceil(WORD_BYTES)]);
    }

    fn fence(&self) {
        if let Some(instruction) = self.instruction {
            instruction.fence();
        }
    }
}
