//! The indirection array: an entry for each record, on a cache line of its own.
//!
//! ```text
//!   0 owner | 1 cstamp | 2 pstamp | 3 readers      what the certifier needs (see `ssn`)
//!   4 older     L | address of the newest of the older versions        L = being changed
//!   5 place     key length | place in the tile groups
//!   6, 7        key, if it has at most 16 bytes; longer keys are in the tile groups
//! ```
//!
//! The index leads to a record's number, the number to this entry, and the entry to the place. A key
//! of up to 16 bytes is compared without a look at the tile groups.
//!
//! **Invariants**
//! 1. Entries stay where they are while the table lives. An entry is used for another record once
//!    the horizon has passed the moment at which it left the index.
//! 2. `older` changes under its own lock bit, which is held for a few stores.
//! 3. An entry whose cstamp is [`DEAD`] has left the index.
//!
//! **Differs from the paper**, in whose baselines an entry has nothing but a place, and the stamps
//! are beside the tuple: with them here, a look-up has one cache miss less.

use std::sync::OnceLock;

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU32, AtomicU64, Ordering};
use spinney_base::shim::{spin_hint, thread};
use spinney_ssn::{Marks, Owner, Readable, STAMP_MAX, Stamps, Successor, Version, Words};
use spinney_sync::ZeroedAtomics;

use crate::gaps::GapRef;
use crate::undo::Undo;

/// Words of an entry.
const WORDS: usize = 8;
const OWNER: usize = 0;
const CSTAMP: usize = 1;
const PSTAMP: usize = 2;
const READERS: usize = 3;
const OLDER: usize = 4;
const PLACE: usize = 5;
const KEY: usize = 6;

/// Longest key that an entry holds itself, in bytes.
pub(crate) const KEY_INLINE_MAX: usize = 16;

/// Lock bit of `older`.
const LOCK: u64 = 1 << 63;

/// Owner word of an entry that enters or leaves the index: no transaction has this generation.
const FROZEN: u64 = u64::MAX - 1;

/// cstamp of an entry that has left the index.
const DEAD: u64 = 1 << 63 | STAMP_MAX;

/// Reader bit of all contexts that have none of their own.
const SHARED_BIT: u64 = 1 << 63;

/// Entries of the first chunk; each following one has as many as all before it.
const FIRST: usize = 1024;
const CHUNKS: usize = 22;

const SPINS_BEFORE_YIELD: u32 = 64;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a>(&'a [AtomicU64; WORDS]);

impl<'a> Head<'a> {
    /// Returns whether both are the same entry.
    pub(crate) fn is(self, other: Head<'_>) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    /// Returns the version in the place, or `None` while it is being replaced. A copy of the image
    /// is whole if this is the same before and after it.
    #[inline]
    pub(crate) fn version(self) -> Option<Version> {
        let owner = Owner::from_word(self.0[OWNER].load(Ordering::Acquire));
        let version = Version::from_word(self.0[CSTAMP].load(Ordering::Acquire));
        (!owner.is_publishing()).then_some(version)
    }

    /// Returns the version in the place, to its owner.
    pub(crate) fn own_version(self) -> Version {
        Version::from_word(self.0[CSTAMP].load(Ordering::Acquire))
    }

    /// Returns the address of the newest of the older versions, 0 for none.
    pub(crate) fn older(self) -> u64 {
        self.0[OLDER].load(Ordering::Acquire) & !LOCK
    }

    /// Returns the place in the tile groups.
    #[inline]
    pub(crate) fn place(self) -> usize {
        (self.0[PLACE].load(Ordering::Relaxed) & 0xFFFF_FFFF) as usize
    }

    #[inline]
    pub(crate) fn key_length(self) -> usize {
        (self.0[PLACE].load(Ordering::Relaxed) >> 32) as usize
    }

    pub(crate) fn prefetch(self) {
        spinney_sync::prefetch(&self.0[0]);
    }

    /// Returns the bytes of a short key, with zeros behind.
    #[inline]
    pub(crate) fn short_key(self) -> [u8; KEY_INLINE_MAX] {
        let word = |at: usize| u128::from(self.0[at].load(Ordering::Relaxed));
        (word(KEY) | word(KEY + 1) << 64).to_le_bytes()
    }

    /// Makes the entry of a record that nobody knows, frozen until it is in the index: an entry of
    /// the same number may have been there before, and be looked at for collection.
    pub(crate) fn begin(self, version: Version, key: &[u8], place: u32) {
        self.0[OWNER].store(FROZEN, Ordering::SeqCst);
        let mut bytes = [0; KEY_INLINE_MAX];
        if key.len() <= KEY_INLINE_MAX {
            bytes[..key.len()].copy_from_slice(key);
        }
        let (low, high) = bytes.split_at(8);
        for (at, half) in [(KEY, low), (KEY + 1, high)] {
            let word = half.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
            self.0[at].store(word, Ordering::Relaxed);
        }
        self.0[PLACE].store((key.len() as u64) << 32 | u64::from(place), Ordering::Relaxed);
        self.0[OLDER].store(0, Ordering::Relaxed);
        self.0[PSTAMP].store(version.stamp(), Ordering::Relaxed);
        self.0[READERS].store(0, Ordering::Relaxed);
        self.0[CSTAMP].store(version.word(), Ordering::Release);
    }

    /// Lets transactions have an entry that is in the index.
    pub(crate) fn thaw(self) {
        self.0[OWNER].store(0, Ordering::Release);
    }

    /// Changes `older` under its lock.
    pub(crate) fn with_older<T>(self, change: impl FnOnce(u64) -> (u64, T)) -> T {
        let mut spins = 0;
        let older = loop {
            let word = self.0[OLDER].load(Ordering::Relaxed);
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if word & LOCK == 0
                && self.0[OLDER].compare_exchange(word, word | LOCK, success, failure).is_ok()
            {
                break word;
            }
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { spin_hint() } else { thread::yield_now() }
        };
        let (older, result) = change(older);
        self.0[OLDER].store(older, Ordering::Release);
        result
    }

    /// Keeps transactions off an entry without a value, if none has read or owns it. Returns its
    /// pstamp. The reader's order is the other one: bit, then a look at the owner.
    pub(crate) fn freeze(self, version: Version) -> Option<u64> {
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        self.0[OWNER].compare_exchange(0, FROZEN, success, failure).ok()?;
        let is_idle = self.0[READERS].load(Ordering::SeqCst) == 0;
        let is_same = self.0[CSTAMP].load(Ordering::Acquire) == version.word();
        if is_idle && is_same && self.older() == 0 {
            return Some(self.0[PSTAMP].load(Ordering::SeqCst));
        }
        self.0[OWNER].store(0, Ordering::Release);
        None
    }

    /// Returns whether a transaction without a reader bit of its own has read the version.
    pub(crate) fn is_read_by_many(self) -> bool {
        self.0[READERS].load(Ordering::SeqCst) & SHARED_BIT != 0
    }

    /// Marks a frozen entry that has left the index.
    pub(crate) fn bury(self) {
        self.0[CSTAMP].store(DEAD, Ordering::SeqCst);
        self.0[OWNER].store(0, Ordering::Release);
    }

    /// Returns whether the entry leaves the index or has left it. A reader asks after it has set its
    /// bit.
    #[inline]
    pub(crate) fn is_gone(self) -> bool {
        self.0[OWNER].load(Ordering::SeqCst) == FROZEN
            || self.0[CSTAMP].load(Ordering::SeqCst) == DEAD
    }
}

/// The array. Thread-safe.
#[derive(Debug)]
pub(crate) struct Heads {
    chunks: [OnceLock<ZeroedAtomics<AtomicU64>>; CHUNKS],
    /// First entry that was never given to a session.
    next: AtomicU32,
    /// Entries that may be used again, and how many there are.
    free: Mutex<Vec<u32>>,
    listed: AtomicU32,
}

/// Entries that a session takes at once. They lie in one tile group, because its size is a multiple.
pub(crate) const BATCH: u32 = 64;

fn chunk_of(record: usize) -> (usize, usize) {
    if record < FIRST {
        return (0, record);
    }
    let chunk = (record / FIRST).ilog2() as usize + 1;
    (chunk, record - (FIRST << (chunk - 1)))
}

impl Heads {
    pub(crate) fn new() -> Heads {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        Heads { chunks, next: AtomicU32::new(0), free: Mutex::default(), listed: AtomicU32::new(0) }
    }

    /// Returns the entry of a record that was taken.
    #[inline]
    pub(crate) fn head(&self, record: u32) -> Head<'_> {
        let (chunk, at) = chunk_of(record as usize);
        let words = self.chunks[chunk].get().expect("a record that was taken");
        let (heads, _) = words.as_chunks::<WORDS>();
        Head(&heads[at])
    }

    /// Takes a batch of entries: the first one, and the one behind the last.
    ///
    /// # Panics
    /// When there are 2^31 records.
    pub(crate) fn take(&self) -> (u32, u32) {
        let first = self.next.fetch_add(BATCH, Ordering::Relaxed);
        let (chunk, _) = chunk_of(first as usize);
        let length = FIRST << chunk.saturating_sub(1);
        self.chunks[chunk].get_or_init(|| ZeroedAtomics::new(length * WORDS));
        (first, first + BATCH)
    }

    /// Takes some entries that were used before.
    pub(crate) fn reuse(&self, out: &mut Vec<u32>) {
        if self.listed.load(Ordering::Relaxed) > 0 {
            let mut free = self.free.lock();
            let stay = free.len() - free.len().min(BATCH as usize);
            out.extend(free.drain(stay..));
            self.list(&free);
        }
    }

    /// Gives entries back that no transaction can know any more.
    pub(crate) fn give(&self, records: impl Iterator<Item = u32>) {
        let mut free = self.free.lock();
        free.extend(records);
        self.list(&free);
    }

    fn list(&self, free: &[u32]) {
        self.listed.store(u32::try_from(free.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Bytes of entries that were given out.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.next.load(Ordering::Relaxed)) * (WORDS * size_of::<u64>()) as u64
    }
}

/// Handle of a record, for the certifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRef<'a> {
    pub(crate) head: Head<'a>,
    pub(crate) undo: &'a Undo,
}

impl Readable for RecordRef<'_> {
    fn visit(&self, act: &mut dyn FnMut(Marks<'_>)) {
        let words = self.head.0;
        act(Marks { pstamp: &words[PSTAMP], readers: &words[READERS] });
    }
}

impl<'a> Stamps for RecordRef<'a> {
    type Gap = GapRef<'a>;

    fn visit_slot(&self, act: &mut dyn FnMut(Words<'_>)) {
        let words = self.head.0;
        let marks = Marks { pstamp: &words[PSTAMP], readers: &words[READERS] };
        act(Words { owner: &words[OWNER], cstamp: &words[CSTAMP], marks });
    }

    /// Nothing: the installation, which follows under the publishing mark, keeps version and image
    /// at once.
    fn keep(&self, _: Version, _: Successor) {}

    fn successor(&self, version: Version) -> Successor {
        if self.head.0[CSTAMP].load(Ordering::Acquire) == DEAD {
            // It was absent to its end.
            return Successor { end: STAMP_MAX, pi: STAMP_MAX };
        }
        let found = self.undo.find(self.head.older(), version);
        // What is gone is below the horizon, and nobody asks for it.
        found.unwrap_or(Successor { end: 0, pi: 0 })
    }
}
