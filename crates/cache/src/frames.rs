//! Frames: the memory of the pages, and the words that describe their content.
//!
//! Arenas of frames, each as long as all before it together, are mapped when they are first needed
//! and stay mapped, so that a reader that lost a race reads bytes that mean nothing and never
//! memory that is gone; what a frame held is given back to the system page by page
//! ([`Frames::give_memory_back`]).
//!
//! | word of a frame | meaning |
//! |---|---|
//! | 0 | the state word |
//! | 1 | file (high half) and page |
//! | 2 | generation (low half) |
//! | 3 | how often the hand passes it before it goes; uses set it |
//!
//! **Invariants**
//! 1. Words 1 and 2 and the page's bytes are stored only by the exclusive holder of the frame.
//! 2. A page's bytes are stored and, by optimistic readers, loaded as atomic words, by
//!    `spinney_sync::racy`; a plain borrow exists only under a pin (rule P27).

use std::ptr::NonNull;
use std::sync::OnceLock;

use memmap2::{MmapOptions, MmapRaw};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Generation, PageNumber};
use spinney_sync::ZeroedAtomics;
use spinney_sync::racy::{self, WORD_BYTES, Word};

use crate::page::{Kind, PageId};
use crate::state::State;
use crate::table::{chunk_length, place};

/// Frames of the first arena.
const FIRST: u32 = 64;
const ARENAS: usize = 32 - FIRST.ilog2() as usize + 1;

const PAGE_WORDS: usize = PAGE_BYTES / WORD_BYTES;
const FRAME_WORDS: usize = 4;
const STATE: usize = 0;
const KEY: usize = 1;
const ABOUT: usize = 2;
const USES: usize = 3;

/// All frames of a cache. Thread-safe; who may do what with a frame is [`State`]'s to say.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    arenas: [OnceLock<Arena>; ARENAS],
}

#[derive(Debug)]
struct Arena {
    words: ZeroedAtomics<AtomicU64>,
    memory: MmapRaw,
}

impl Frames {
    /// Makes the frame exist.
    pub(crate) fn reach(&self, frame: u32) {
        let (arena, _) = place(frame, FIRST);
        self.arenas[arena].get_or_init(|| {
            let length = chunk_length(arena, FIRST);
            let memory = MmapOptions::new()
                .len(length * PAGE_BYTES)
                .no_reserve_swap()
                .map_anon()
                .expect("there is address space");
            Arena { words: ZeroedAtomics::new(length * FRAME_WORDS), memory: memory.into() }
        });
    }

    #[inline]
    fn arena(&self, frame: u32) -> (&Arena, usize) {
        let (arena, index) = place(frame, FIRST);
        (self.arenas[arena].get().expect("a frame that was reached"), index)
    }

    #[inline]
    fn word(&self, frame: u32, word: usize) -> &AtomicU64 {
        let (arena, index) = self.arena(frame);
        &arena.words[index * FRAME_WORDS + word]
    }

    /// The state word.
    #[inline]
    pub(crate) fn state(&self, frame: u32) -> State<'_> {
        State(self.word(frame, STATE))
    }

    /// Whether the frame holds this page; nothing is known before the state was validated or
    /// pinned.
    #[inline]
    pub(crate) fn holds(&self, frame: u32, file: u32, id: PageId) -> Holds {
        let (arena, index) = self.arena(frame);
        let words = &arena.words[index * FRAME_WORDS..][..FRAME_WORDS];
        if words[KEY].load(Relaxed) != key(file, id.page) {
            return Holds::Another;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        let generation = Generation(words[ABOUT].load(Relaxed) as u32);
        if generation == id.generation { Holds::It } else { Holds::AnotherGeneration }
    }

    /// What an exclusively held frame holds: its file and page.
    pub(crate) fn content(&self, frame: u32) -> (u32, PageNumber) {
        let key = self.word(frame, KEY).load(Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
        let (file, page) = ((key >> 32) as u32, PageNumber(key as u32));
        (file, page)
    }

    /// Says what an exclusively held frame will hold.
    pub(crate) fn set_content(&self, frame: u32, file: u32, id: PageId) {
        self.word(frame, KEY).store(key(file, id.page), Relaxed);
        self.word(frame, ABOUT).store(u64::from(id.generation.0), Relaxed);
        self.word(frame, USES)
            .store(if id.kind.begins_hot() { id.kind.priority() } else { 0 }, Relaxed);
    }

    /// The page was used. Most uses of a page in use store nothing.
    #[inline]
    pub(crate) fn touch(&self, frame: u32, kind: Kind) {
        let uses = self.word(frame, USES);
        if uses.load(Relaxed) < kind.priority() {
            uses.store(kind.priority(), Relaxed);
        }
    }

    /// How often the hand will still pass.
    #[inline]
    pub(crate) fn uses(&self, frame: u32) -> u64 {
        self.word(frame, USES).load(Relaxed)
    }

    /// The hand has passed.
    pub(crate) fn set_uses(&self, frame: u32, uses: u64) {
        self.word(frame, USES).store(uses, Relaxed);
    }

    /// Where the page's bytes lie, to be read under a pin.
    #[inline]
    pub(crate) fn bytes(&self, frame: u32) -> NonNull<[u8; PAGE_BYTES]> {
        NonNull::from(self.page(frame)).cast()
    }

    #[inline]
    #[expect(unsafe_code, reason = "mapped memory is taken as atomic words")]
    fn page(&self, frame: u32) -> &[Word; PAGE_WORDS] {
        let (arena, index) = self.arena(frame);
        assert!((index + 1) * PAGE_BYTES <= arena.memory.len());
        let page = arena.memory.as_mut_ptr().cast::<[Word; PAGE_WORDS]>().wrapping_add(index);
        // SAFETY: the mapping is private and writable, begins at a page, has at least `index + 1`
        // pages (asserted), and lives as long as `self`. Every bit pattern is a valid word. Nobody
        // has a unique borrow of the bytes: they are reached through these words, and plainly only
        // under a pin, when nobody stores.
        unsafe { &*page }
    }

    /// Asks the processor for the words of a frame and for the bytes at an offset of its page.
    #[inline]
    pub(crate) fn prefetch(&self, frame: u32, offset: usize) {
        spinney_sync::prefetch(self.word(frame, STATE));
        spinney_sync::prefetch(&self.page(frame)[offset / WORD_BYTES % PAGE_WORDS]);
    }

    /// Fills an exclusively held frame.
    pub(crate) fn store(&self, frame: u32, bytes: &[u8; PAGE_BYTES]) {
        racy::store_bytes(self.page(frame), bytes);
    }

    /// Copies bytes from `offset` of the page; they mean something only once the state was
    /// validated. `offset` and the length lie within a page.
    #[inline]
    pub(crate) fn copy(&self, frame: u32, offset: usize, out: &mut [u8]) {
        racy::copy_bytes(self.page(frame), offset, out);
    }

    /// Gives the memory of an exclusively held frame back to the system.
    #[expect(unsafe_code, reason = "the system drops a page's bytes")]
    pub(crate) fn give_memory_back(&self, frame: u32) {
        let (arena, index) = self.arena(frame);
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the frame is held exclusively, so there is no plain borrow of its page. An
        // optimistic reader of its words sees zeros and does not validate.
        let given =
            unsafe { arena.memory.unchecked_advise_range(advice, index * PAGE_BYTES, PAGE_BYTES) };
        debug_assert!(given.is_ok(), "a whole page of a private mapping");
    }
}

/// Content of a frame, as seen by a lookup of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    It,
    AnotherGeneration,
    Another,
}

fn key(file: u32, page: PageNumber) -> u64 {
    u64::from(file) << 32 | u64::from(page.0)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_from_any_place() {
        let frames = Frames::default();
        frames.reach(70);
        let mut bytes = [0; PAGE_BYTES];
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        frames.store(69, &bytes);
        for offset in (0..40).chain(PAGE_BYTES - 40..PAGE_BYTES) {
            for length in 0..(PAGE_BYTES - offset).min(40) {
                let mut out = vec![0; length];
                frames.copy(69, offset, &mut out);
                assert_eq!(out, bytes[offset..offset + length], "{offset} {length}");
            }
        }
        let mut out = [0; PAGE_BYTES];
        frames.copy(69, 0, &mut out);
        assert_eq!(out, bytes);
        frames.give_memory_back(69);
        frames.copy(69, 0, &mut out);
        assert_eq!(out, [0; PAGE_BYTES]);
    }
}
