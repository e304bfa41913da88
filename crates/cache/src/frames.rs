//! Frames: the memory of the pages, and the words that describe their content.
//!
//! A frame is of 2^order pages. Arenas of frames, each as long as all before it together, are
//! mapped when they are first needed and stay mapped, so that a reader that lost a race reads bytes
//! that mean nothing and never memory that is gone; what a frame held is given back to the system
//! page by page ([`Frames::give_memory_back`]).
//!
//! | word of a frame | meaning |
//! |---|---|
//! | 0 | the state word |
//! | 1 | file (high half) and page |
//! | 2 | generation (low half); number of the kind (3 bits); low bits of the version when the page came |
//! | 3 | how often the hand passes it before it goes; uses set it |
//!
//! **Invariants**
//! 1. Words 1 and 2 and the page's bytes are stored only by the exclusive holder of the frame; of
//!    pages of editable files, words 1 and 2 are stored by any thread that has locked the clock.
//! 2. A page's bytes are stored and, by optimistic readers, loaded as atomic words, by
//!    `spinney_sync::racy`; a plain borrow exists only under a pin (rule P27).

use std::ptr::NonNull;
use std::sync::OnceLock;

use memmap2::{MmapOptions, MmapRaw};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use spinney_base::{Generation, PageNumber};
use spinney_sync::ZeroedAtomics;
use spinney_sync::racy::{self, WORD_BYTES, Word};

use crate::page::{KINDS_MAX, Kind, PageId};
use crate::state::{Seen, State};
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

/// Key of a frame without a page: files are fewer.
const NO_PAGE: u64 = u64::MAX;

const KIND_SHIFT: u32 = 32;
const CAME_SHIFT: u32 = KIND_SHIFT + KINDS_MAX.ilog2();
const CAME_MODULUS: u64 = 1 << (64 - CAME_SHIFT);

/// All frames of a cache. Thread-safe; who may do what with a frame is [`State`]'s to say.
#[derive(Debug)]
pub(crate) struct Frames {
    arenas: [OnceLock<Arena>; ARENAS],
    /// A frame has 2^order pages.
    order: u32,
}

#[derive(Debug)]
struct Arena {
    words: ZeroedAtomics<AtomicU64>,
    memory: MmapRaw,
}

impl Frames {
    /// Makes no frame yet, of 2^`order` pages each.
    pub(crate) fn new(order: u32) -> Self {
        Frames { arenas: std::array::from_fn(|_| OnceLock::new()), order }
    }

    /// Returns the binary logarithm of the number of pages of a frame.
    #[inline]
    pub(crate) fn order(&self) -> u32 {
        self.order
    }

    /// Returns the entry of a page in its file's table: one for each unit of 2^order pages.
    #[inline]
    pub(crate) fn unit(&self, page: PageNumber) -> PageNumber {
        PageNumber(page.0 >> self.order)
    }

    /// Makes the frame exist.
    pub(crate) fn reach(&self, frame: u32) {
        let (arena, _) = place(frame, FIRST);
        self.arenas[arena].get_or_init(|| {
            let length = chunk_length(arena, FIRST);
            let memory = MmapOptions::new()
                .len(length * (PAGE_BYTES << self.order))
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
        Self::hold(&arena.words[index * FRAME_WORDS..][..FRAME_WORDS], file, id)
    }

    /// Returns the state, the words and what the frame holds, at a state in which it is not held
    /// exclusively; `None` if it is.
    #[inline]
    pub(crate) fn see(&self, frame: u32, file: u32, id: PageId) -> Option<(Seen, &[Word], Holds)> {
        let (arena, index) = self.arena(frame);
        let about = &arena.words[index * FRAME_WORDS..][..FRAME_WORDS];
        let seen = State(&about[STATE]).see();
        if seen.is_exclusive() {
            return None;
        }
        Some((seen, arena.words_of(index, self.order), Self::hold(about, file, id)))
    }

    #[inline]
    fn hold(words: &[AtomicU64], file: u32, id: PageId) -> Holds {
        // `rename` stores this word last.
        if words[KEY].load(Acquire) != key(file, id.page) {
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

    /// Returns the file of a frame's page, and page, generation and number of the kind; `None` if
    /// the frame has no page. The caller has locked the clock.
    pub(crate) fn name(&self, frame: u32) -> Option<Name> {
        let key = self.word(frame, KEY).load(Relaxed);
        if key == NO_PAGE {
            return None;
        }
        let about = self.word(frame, ABOUT).load(Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "parts of a word")]
        let name = Name {
            file: (key >> 32) as u32,
            page: PageNumber(key as u32),
            generation: Generation(about as u32),
            kind: (about >> KIND_SHIFT) as usize % KINDS_MAX,
        };
        Some(name)
    }

    /// Notes that an exclusively held frame, or one that no table names any more, has no page.
    pub(crate) fn clear_name(&self, frame: u32) {
        self.word(frame, KEY).store(NO_PAGE, Relaxed);
    }

    /// Gives the page of a frame another name. The caller has locked the clock.
    pub(crate) fn rename(&self, frame: u32, file: u32, to: PageId) {
        let came = self.word(frame, ABOUT).load(Relaxed) >> CAME_SHIFT << CAME_SHIFT;
        self.word(frame, ABOUT).store(came | about(to), Relaxed);
        self.word(frame, KEY).store(key(file, to.page), Release);
    }

    /// Returns whether a frame has held the same page since it was seen.
    pub(crate) fn is_same_page(&self, frame: u32, seen: Seen) -> bool {
        let came = self.word(frame, ABOUT).load(Relaxed) >> CAME_SHIFT;
        let since = u64::from(seen.version()).wrapping_sub(came) % CAME_MODULUS;
        (1..CAME_MODULUS / 2).contains(&since)
    }

    /// Says what an exclusively held frame will hold.
    pub(crate) fn set_content(&self, frame: u32, file: u32, id: PageId) {
        let came = u64::from(self.state(frame).see().version()) % CAME_MODULUS;
        self.word(frame, KEY).store(key(file, id.page), Relaxed);
        self.word(frame, ABOUT).store(came << CAME_SHIFT | about(id), Relaxed);
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

    /// The page of a frame of one page.
    #[inline]
    fn page(&self, frame: u32) -> &[Word; PAGE_WORDS] {
        let (arena, index) = self.arena(frame);
        let [page] = arena.frame::<1>(index);
        page
    }

    /// The words of a frame of any size.
    #[inline]
    pub(crate) fn words(&self, frame: u32) -> &[Word] {
        let (arena, index) = self.arena(frame);
        arena.words_of(index, self.order)
    }

    /// Asks the processor for the words of a frame and for the bytes at an offset of its page.
    #[inline]
    pub(crate) fn prefetch(&self, frame: u32, offset: usize) {
        spinney_sync::prefetch(self.word(frame, STATE));
        spinney_sync::prefetch(&self.page(frame)[offset / WORD_BYTES % PAGE_WORDS]);
    }

    /// Fills an exclusively held frame with the bytes of its pages.
    pub(crate) fn store(&self, frame: u32, bytes: &[u8]) {
        racy::store_bytes(self.words(frame), bytes);
    }

    /// Fills an exclusively held frame with zeros.
    pub(crate) fn zero(&self, frame: u32) {
        self.words(frame).iter().for_each(|word| word.store(0, Relaxed));
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
        let bytes = PAGE_BYTES << self.order;
        // SAFETY: the frame is held exclusively, so there is no plain borrow of its page. An
        // optimistic reader of its words sees zeros and does not validate.
        let given = unsafe { arena.memory.unchecked_advise_range(advice, index * bytes, bytes) };
        debug_assert!(given.is_ok(), "whole pages of a private mapping");
    }
}

impl Arena {
    /// The words of a frame of 2^`order` pages, which is at most [`ORDER_MAX`](crate::ORDER_MAX).
    #[inline]
    fn words_of(&self, index: usize, order: u32) -> &[Word] {
        match order {
            0 => self.frame::<1>(index).as_flattened(),
            1 => self.frame::<2>(index).as_flattened(),
            _ => self.frame::<4>(index).as_flattened(),
        }
    }

    /// The pages of a frame, if all frames have `PAGES`.
    #[inline]
    #[expect(unsafe_code, reason = "mapped memory is taken as atomic words")]
    fn frame<const PAGES: usize>(&self, index: usize) -> &[[Word; PAGE_WORDS]; PAGES] {
        assert!((index + 1) * (PAGES * PAGE_BYTES) <= self.memory.len());
        let first = self.memory.as_mut_ptr().cast::<[[Word; PAGE_WORDS]; PAGES]>();
        let frame = first.wrapping_add(index);
        // SAFETY: the mapping is private and writable, begins at a page, has at least `index + 1`
        // times as many pages (asserted), and lives as long as `self`. Every bit pattern is a valid
        // word. Nobody has a unique borrow of the bytes: they are reached through these words, and
        // plainly only under a pin, when nobody stores.
        unsafe { &*frame }
    }
}

/// Name of a frame's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) file: u32,
    pub(crate) page: PageNumber,
    pub(crate) generation: Generation,
    /// Number of the kind.
    pub(crate) kind: usize,
}

impl Name {
    /// Returns whether it is the name of this page.
    pub(crate) fn is(self, file: u32, id: PageId) -> bool {
        (self.file, self.page, self.generation) == (file, id.page, id.generation)
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

fn about(id: PageId) -> u64 {
    (id.kind.index() as u64) << KIND_SHIFT | u64::from(id.generation.0)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_from_any_place() {
        let frames = Frames::new(0);
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

    #[test]
    fn a_wide_frame_has_words_of_its_own() {
        for order in 0..3 {
            let frames = Frames::new(order);
            (0..70).for_each(|frame| frames.reach(frame));
            let bytes = |frame: u32| vec![frame as u8 + 1; PAGE_BYTES << order];
            (0..70).for_each(|frame| frames.store(frame, &bytes(frame)));
            frames.give_memory_back(63);
            frames.zero(5);
            for frame in 0..70 {
                let mut out = bytes(200);
                assert_eq!(frames.words(frame).len(), PAGE_WORDS << order);
                racy::copy_bytes(frames.words(frame), 0, &mut out);
                let is_zero = [5, 63].contains(&frame);
                assert_eq!(out, if is_zero { vec![0; out.len()] } else { bytes(frame) });
            }
        }
    }

    #[test]
    fn a_name_tells_since_when_it_holds() {
        let frames = Frames::new(1);
        frames.reach(0);
        let id = |page, generation| PageId {
            page: PageNumber(page),
            generation: Generation(generation),
            kind: Kind::new(7, "kind", 2),
        };
        frames.state(0).hold_new();
        frames.set_content(0, 3, id(8, u32::MAX));
        let first = frames.state(0).release(true, false).unwrap().now;
        assert!(frames.name(0).unwrap().is(3, id(8, u32::MAX)) && frames.is_same_page(0, first));
        assert_eq!((frames.name(0).unwrap().kind, frames.unit(PageNumber(8)).0), (7, 4));
        assert!(frames.state(0).hold_as_seen(first));
        frames.rename(0, 3, id(10, 5));
        let second = frames.state(0).release(true, false).unwrap().now;
        assert!(frames.name(0).unwrap().is(3, id(10, 5)));
        assert!(frames.is_same_page(0, first) && frames.is_same_page(0, second));
        assert!(frames.state(0).hold());
        let _ = frames.state(0).give(crate::state::Give::Held);
        frames.set_content(0, 3, id(10, 5));
        assert!(!frames.is_same_page(0, first) && !frames.is_same_page(0, second));
        frames.clear_name(0);
        assert_eq!(frames.name(0), None);
    }
}
