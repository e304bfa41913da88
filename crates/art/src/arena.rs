//! Memory that records are appended to, and that is given back whole.
//!
//! ```text
//!   chunk 0: what is expected         chunk 1: 256 KiB           chunk 2: twice as much ...
//!  +--------+--------+--------+      +--------+--------------
//!  | record | record | ...    |      | record | not touched yet
//!  +--------+--------+--------+      +--------+--------------
//!
//!   record   [ value length 4 | key length 2 | chunk 1 | tag 1 ] key value, padded to 8 bytes
//!   state    [ sealed 1 | copying 15 | chunk 8 | next free byte 40 ]
//! ```
//!
//! An allocator keeps books on every piece, so that each can be freed alone. Records that are freed
//! together need none: appending advances a number. Only replaced records are listed, by size, and
//! reused for a record of the same size; otherwise a few hot keys would fill an arena. Chunks are
//! mappings, of which only touched pages take memory. A leaf of the tree is a record's address.
//!
//! **Invariants**
//! 1. A record does not change while its leaf is in the tree, nor while any thread is pinned that was when it
//!    left. Its bytes are not given back before its chunk, which lives as long as the arena
//!    and every [`Chunk`] of it.
//! 2. Bytes are written only between the addition of one to `copying` and its subtraction; once
//!    sealed, nobody writes any.
//! 3. Two writers never have the same bytes: both chunk and place are in the one word that they
//!    compare and swap, and what is used again is taken from its list under a lock.
//!
//! **Concurrency.** Any number of threads append and read; a record is read by a thread that found
//! its leaf in the tree, which publishes it, and that is pinned since.
#![expect(unsafe_code, reason = "records are places in mappings that many threads fill")]

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crossbeam_epoch::Guard;
use spinney_base::mapping::Mapping;
use spinney_base::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use spinney_base::shim::thread::yield_now;

use crate::node::prefetch;
use crate::source::{KeySource, Parting};

const SEALED: u64 = 1 << 63;
const COPYING_SHIFT: u32 = 48;
const COPYING: u64 = 1 << COPYING_SHIFT;
const COPYING_MASK: u64 = SEALED - COPYING;
const CHUNK_SHIFT: u32 = 40;
const PLACE_MASK: u64 = (1 << CHUNK_SHIFT) - 1;

/// Bytes of the first chunk when nothing is known, and of the second; each one after is twice as
/// large as the one before.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Chunks beyond this size do not grow any more.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Most chunks. Together they hold 20 GiB; a larger budget needs more than one map.
const CHUNKS_MAX: usize = 32;

/// Bytes of a record before its key.
const HEADER_BYTES: usize = 8;
/// Records begin at multiples of it.
const ALIGN: usize = 8;

/// Where to append, and what was appended.
#[derive(Debug)]
pub(crate) struct Arena {
    state: AtomicU64,
    /// Bytes of chunks before the current one.
    full: AtomicUsize,
    chunks: Box<[OnceLock<Growing>]>,
    /// Bytes of the first one.
    expected: usize,
    unused: Arc<Unused>,
}

/// Records that no thread can see any more.
///
/// Its lock and its counters are those of the standard library, not the shim's. The thread that
/// advances the epoch lists records, under shuttle outside of any schedule. No thread waits for the
/// lock: one that does not get it appends, or leaves a record unlisted.
#[derive(Debug, Default)]
struct Unused {
    /// Leaves by what their records take.
    #[expect(clippy::disallowed_types, reason = "see above")]
    lists: std::sync::Mutex<BTreeMap<usize, Vec<u64>>>,
    listed: std::sync::atomic::AtomicUsize,
    /// Bytes of them, and of those that still may be seen.
    bytes: std::sync::atomic::AtomicUsize,
}

impl Unused {
    fn list(&self, bytes: usize, leaf: u64) {
        if let Ok(mut lists) = self.lists.try_lock() {
            lists.entry(bytes).or_default().push(leaf);
            self.listed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: usize) -> Option<u64> {
        if self.listed.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let leaf = self.lists.try_lock().ok()?.get_mut(&bytes)?.pop()?;
        self.listed.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(leaf)
    }
}

/// A chunk that may not be full yet.
#[derive(Debug)]
struct Growing {
    bytes: NonNull<u8>,
    capacity: usize,
    /// How much of it was taken, once a later chunk is the current one.
    taken: AtomicUsize,
    mapping: Arc<Mapping>,
}

// SAFETY: it is an address in a mapping that it keeps; what threads do there is the arena's to order.
unsafe impl Send for Growing {}
// SAFETY: as above.
unsafe impl Sync for Growing {}

impl Growing {
    fn new(capacity: usize) -> Self {
        let mut mapping = Mapping::reused(capacity);
        // From here on the mapping is only kept, and its bytes are reached by this pointer.
        let bytes = NonNull::from(&mut *mapping).cast();
        Growing { bytes, capacity, taken: AtomicUsize::new(0), mapping: Arc::new(mapping) }
    }
}

/// Error: the arena takes no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed;

impl Arena {
    /// Makes an arena whose first chunk has `expected` bytes.
    pub(crate) fn new(expected: usize) -> Self {
        let chunks = (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect();
        Arena {
            state: AtomicU64::new(0),
            full: AtomicUsize::new(0),
            chunks,
            expected: expected.min(CHUNK_BYTES_MAX),
            unused: Arc::default(),
        }
    }

    /// Returns the bytes that were taken; none are given back before the arena is dropped.
    pub(crate) fn bytes(&self) -> usize {
        let (_, place) = parts(self.state.load(Ordering::Relaxed));
        self.full.load(Ordering::Relaxed) + place
    }

    /// Returns the bytes that the arena takes beside its records.
    pub(crate) fn own_bytes(&self) -> usize {
        size_of_val(&*self.chunks)
    }

    /// Returns the bytes of replaced records that were not reused.
    pub(crate) fn unused_bytes(&self) -> usize {
        self.unused.bytes.load(Ordering::Relaxed)
    }

    /// Makes a record that no other thread knows yet, and returns its leaf.
    ///
    /// # Panics
    /// When the key is 64 KiB or longer, or the value 4 GiB.
    pub(crate) fn append(&self, key: &[u8], tag: u8, value: &[u8]) -> Result<u64, Sealed> {
        let key_length = u16::try_from(key.len()).expect("keys are shorter than 64 KiB");
        let value_length = u32::try_from(value.len()).expect("values are shorter than 4 GiB");
        let bytes = record_bytes(key.len(), value.len());
        let (record, chunk) = match self.unused.take(bytes) {
            Some(leaf) => self.take_again(leaf)?,
            None => self.take(bytes)?,
        };
        let header = u64::from(value_length)
            | u64::from(key_length) << 32
            | (chunk as u64) << 48
            | u64::from(tag) << 56;
        // SAFETY: these bytes are this call's alone (invariant 3), and nobody reads them (invariant 1).
        // They are aligned, for mappings begin at pages and places are multiples of eight.
        unsafe { record.cast::<u64>().write(header) };
        // SAFETY: within what was taken.
        let to = unsafe { record.add(HEADER_BYTES) };
        // SAFETY: as above, and what was taken now overlaps nothing that the caller has.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len()) };
        // SAFETY: within what was taken.
        let to = unsafe { to.add(key.len()) };
        // SAFETY: as for the key.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(value).cast(), value.len()) };
        self.state.fetch_sub(COPYING, Ordering::Release);
        Ok(record.as_ptr().expose_provenance() as u64)
    }

    /// Lets the record of a leaf be reused once no thread can see it. The leaf is no longer in the
    /// tree, and the caller has removed it.
    pub(crate) fn retire(&self, leaf: u64, guard: &Guard) {
        let record = self.record(leaf);
        let bytes = record_bytes(record.key().len(), record.value().len());
        self.unused.bytes.fetch_add(bytes, Ordering::Relaxed);
        let unused = Arc::clone(&self.unused);
        guard.defer(move || unused.list(bytes, leaf));
    }

    /// Returns the bytes of a record that is reused, and the number of their chunk. The caller may
    /// write there until it subtracts one from `copying`.
    fn take_again(&self, leaf: u64) -> Result<(NonNull<u8>, usize), Sealed> {
        if self.state.fetch_add(COPYING, Ordering::Acquire) & SEALED != 0 {
            self.state.fetch_sub(COPYING, Ordering::Release);
            return Err(Sealed);
        }
        let record = self.record(leaf);
        Ok((record.0, record.chunk()))
    }

    /// Takes bytes of the current chunk, or of the next, and the number of the chunk; as
    /// [`Arena::take_again`].
    fn take(&self, bytes: usize) -> Result<(NonNull<u8>, usize), Sealed> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & SEALED != 0 {
                return Err(Sealed);
            }
            let (chunk, place) = parts(state);
            let growing = self.chunks[chunk].get();
            let Some(growing) = growing.filter(|growing| place + bytes <= growing.capacity) else {
                self.grow(chunk, place, bytes);
                state = self.state.load(Ordering::Acquire);
                continue;
            };
            // Fewer threads than this copy at once, so `copying` does not overflow.
            let next = state + COPYING + bytes as u64;
            match self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    // SAFETY: the place and what follows it are within the chunk.
                    return Ok((unsafe { growing.bytes.add(place) }, chunk));
                }
                Err(now) => state = now,
            }
        }
    }

    /// Makes sure that a chunk with space follows the one that was found full.
    #[cold]
    fn grow(&self, chunk: usize, place: usize, bytes: usize) {
        let Some(full) = self.chunks[chunk].get() else {
            self.chunks[chunk].get_or_init(|| Growing::new(self.expected.max(bytes)));
            return;
        };
        self.chunks[chunk + 1].get_or_init(|| Growing::new(capacity(chunk + 1, bytes)));
        // Of the threads that saw other positions, the one whose exchange succeeds saw the largest.
        full.taken.fetch_max(place, Ordering::Relaxed);
        let mut state = self.state.load(Ordering::Acquire);
        while parts(state) == (chunk, place) && state & SEALED == 0 {
            let flags = state & (SEALED | COPYING_MASK);
            let next = flags | (chunk as u64 + 1) << CHUNK_SHIFT;
            match self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    self.full.fetch_add(place, Ordering::Relaxed);
                    return;
                }
                Err(now) => state = now,
            }
        }
    }

    /// Takes no records from here on, and lends all that there are: what was taken of each chunk,
    /// by its number.
    pub(crate) fn seal(&self) -> Vec<Chunk> {
        let mut state = self.state.fetch_or(SEALED, Ordering::AcqRel);
        while state & COPYING_MASK != 0 {
            // A thread is copying a record.
            yield_now();
            state = self.state.load(Ordering::Acquire);
        }
        let (current, place) = parts(state);
        let chunks = self.chunks.iter().map_while(OnceLock::get).take(current + 1).enumerate();
        let chunks = chunks.map(|(number, chunk)| {
            let before = || chunk.taken.load(Ordering::Relaxed);
            let length = if number == current { place } else { before() };
            Chunk { bytes: chunk.bytes, length, mapping: Arc::clone(&chunk.mapping) }
        });
        chunks.collect()
    }

    /// The record of a leaf that is in a tree of this arena's, or was.
    pub(crate) fn record(&self, leaf: u64) -> Record<'_> {
        let address = usize::try_from(leaf).expect("it was an address");
        let record = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        Record(record.expect("it was the address of a record"), PhantomData)
    }

    /// Where the record's bytes lie: the chunk's number, and the place of the key in it.
    pub(crate) fn place(&self, record: Record<'_>) -> (usize, usize) {
        let chunk = record.chunk();
        let base = self.chunks[chunk].get().expect("the record lies in it").bytes;
        (chunk, record.0.addr().get() - base.addr().get() + HEADER_BYTES)
    }
}

/// The current chunk and the next free place in it.
fn parts(state: u64) -> (usize, usize) {
    let number = |bits: u64| usize::try_from(bits).expect("40 bits");
    (number((state & !(SEALED | COPYING_MASK)) >> CHUNK_SHIFT), number(state & PLACE_MASK))
}

/// The bytes of a chunk behind the first, whose first record is of so many.
fn capacity(chunk: usize, bytes: usize) -> usize {
    let doublings = u32::try_from(chunk.saturating_sub(1)).unwrap_or(u32::MAX);
    let grown = CHUNK_BYTES.checked_shl(doublings).unwrap_or(usize::MAX);
    grown.min(CHUNK_BYTES_MAX).max(bytes)
}

/// What a record takes.
pub(crate) fn record_bytes(key: usize, value: usize) -> usize {
    (HEADER_BYTES + key + value).next_multiple_of(ALIGN)
}

/// A record of an arena that lives for `'a`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a>(NonNull<u8>, PhantomData<&'a Arena>);

impl<'a> Record<'a> {
    #[inline]
    fn header(self) -> u64 {
        // SAFETY: a record begins with its header, which is aligned, and never changes (invariant 1).
        unsafe { self.0.cast::<u64>().read() }
    }

    fn chunk(self) -> usize {
        usize::from((self.header() >> 48) as u8)
    }

    pub(crate) fn tag(self) -> u8 {
        (self.header() >> 56) as u8
    }

    #[inline]
    fn key_length(self) -> usize {
        usize::from((self.header() >> 32) as u16)
    }

    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        // SAFETY: the key lies behind the header.
        let key = unsafe { self.0.add(HEADER_BYTES) };
        // SAFETY: it has that many bytes, which nobody writes any more (invariants 1 and 2).
        unsafe { std::slice::from_raw_parts(key.as_ptr(), self.key_length()) }
    }

    pub(crate) fn value(self) -> &'a [u8] {
        // SAFETY: the value lies behind the key.
        let value = unsafe { self.0.add(HEADER_BYTES + self.key_length()) };
        let length = (self.header() & u64::from(u32::MAX)) as usize;
        // SAFETY: as for the key.
        unsafe { std::slice::from_raw_parts(value.as_ptr(), length) }
    }
}

/// Records in one chunk of a sealed arena. It keeps the chunk, even if the arena is dropped.
#[derive(Clone, Debug)]
pub struct Chunk {
    bytes: NonNull<u8>,
    length: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: nobody writes the bytes any more (invariant 2), and the mapping is kept.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Returns the memory that it keeps, in bytes. All of it may be resident, because an earlier
    /// owner may have filled it.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.mapping.capacity()
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this many bytes of the chunk were taken. The arena was sealed, and no thread
        // copied any more when this was made, which the sealer saw by `copying` (acquire, release).
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.length) }
    }
}

impl KeySource for Arena {
    fn read_key(&self, leaf: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(self.record(leaf).key());
    }

    #[inline]
    fn prefetch(&self, leaf: u64) {
        prefetch(usize::try_from(leaf).expect("it was an address"));
    }

    #[inline]
    fn compare(&self, leaf: u64, key: &[u8]) -> Parting {
        Parting::of(self.record(leaf).key(), key)
    }

    #[inline]
    fn matches(&self, leaf: u64, key: &[u8]) -> bool {
        self.record(leaf).key() == key
    }
}
