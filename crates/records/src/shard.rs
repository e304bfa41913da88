//! One shard of the record cache: CLOCK as a ring.
//!
//! ```text
//!            tail (the hand)                       head
//!              |                                    |
//!   .. free .. | oldest ............ newest record  | .. free (some of it reserved) ..
//! ```
//!
//! New records go to the head. When room is short the hand takes the record at the tail: a dead one
//! is dropped, a clean one of priority 0 is evicted, any other is carried to the head with its
//! priority one lower: second chances, as CLOCK gives them, and no holes. Where head and tail meet,
//! what is carried stays where it is; so the gap between them, if it is too small for a record,
//! becomes a dead one. With records of one size nothing is copied but what a reservation lies
//! before. A dirty record of priority 0 is the eviction candidate that the paper would write out;
//! the hand continues past up to [`DIRTY_LOOK_AHEAD`] of them in search of a clean one before it
//! gives up and names the first for write-back.
//!
//! **Admission.** A record that was written is kept. One that was read is evicted as soon as the
//! hand passes, unless it was read again. Where most records that the hand meets were read since
//! its last pass ([`State::is_proved`]), a record that was read once is worth less than the one
//! that it would evict. Then only recently missed ids are admitted ([`Memory::was_missed`]), and
//! one in [`ENTERS_ANYWAY`] of the others, so that new favourites enter quickly. In a new cache, or
//! after favourites have changed, the hand meets unread records, and all are admitted.
//!
//! **Invariants**
//! 1. Records lie end to end from tail to head; `head - tail + reserved <= capacity`, so an apply
//!    after a prepare always fits.
//! 2. Every live record has exactly one bucket, every bucket a live record; per key there is at
//!    most one.
//! 3. A dirty record is never dropped.
//!
//! **Concurrency.** Writers hold `state`; whatever readers could see half-done is done under the
//! latch as well. Readers hold nothing: they validate the latch, and read again when it changed
//! (rule P27). Lock order: `state`, then the latch; nothing is locked and no I/O is done inside.

use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use spinney_base::ValueRef;
use spinney_base::shim::atomic::AtomicU32;
use spinney_base::shim::atomic::Ordering::{Acquire, Relaxed, Release};
use spinney_base::shim::{Mutex, MutexGuard};
use spinney_sync::VersionLatch;

use super::memory::{
    DIRTY, FIRST_BYTES, Header, LARGE, LIVE, Memory, PRIORITY_MAX, Place, RECORD_WORDS_MAX,
    SHARD_BYTES_MAX, SHARD_BYTES_MIN, SOON, Shape, TOMBSTONE, WRITING, record_words,
};
use super::{Became, Cached, RecordId, Scratch, Show, Usage};

/// Number of dirty records of priority 0 that the hand passes before a writer must write one back
/// itself (TreeLine, 4.2).
const DIRTY_LOOK_AHEAD: usize = 32;

/// Most records that the hand looks at to admit one that was read. Admission is optional.
const ADMISSION_STEPS: usize = 64;

/// Priority of a record that was written.
const PRIORITY_WRITTEN: u8 = 1;
/// Priority of a record that was read from its page.
const PRIORITY_READ: u8 = 0;

/// Of records that were read but not missed before, one in this many is admitted.
const ENTERS_ANYWAY: u32 = 8;

/// Length of the moving average over records that the hand met, in records.
const MET: u32 = 64;

/// The value of that average when all of them were read.
const ALL_MET: u32 = 1 << 20;

/// While less than this percentage of the records are dirty, none is written back for the hand's
/// sake, because it finds enough clean ones. A dirty record answers reads as well as a clean one,
/// and the longer it waits, the more others of its page are written back with it.
const DIRTY_PERCENT: usize = 75;

/// The hand must have passed this many words for each word of a gap that becomes a dead record. It
/// bounds the part of the ring that is lost to gaps.
const WORDS_PER_GAP_WORD: usize = 128;

/// Number of change counters of a shard. With one for all keys, a small cache would admit hardly
/// anything beside writers.
const CHANGES: usize = 16;

/// Words of an average record that a new shard expects.
const RECORD_WORDS_EXPECTED: usize = 9;

/// A shard that exceeds its limit by one part in this many has its dirty records written back, so
/// that it can shrink.
const OVER_PART: u64 = 16;

/// Result of [`RecordCache::prepare`](crate::RecordCache::prepare).
#[derive(Debug, PartialEq, Eq)]
pub enum Prepared {
    /// This many words are reserved: [`put`](crate::RecordCache::put) takes them, or
    /// [`cancel`](crate::RecordCache::cancel).
    Ready(usize),
    /// The hand met only dirty records: write back this key's page and try again.
    Dirty(Vec<u8>),
    /// Others have reserved all space: try again.
    Busy,
}

/// What a visit does with the records that its caller accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Only reads.
    Look,
    /// Marks them as being written.
    BeginWrite,
}

/// Why a record that was not written is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It was looked up.
    Missed,
    /// It lay beside one that was, and the caller wants neighbours.
    Neighbour,
}

#[derive(Debug)]
pub(super) struct Shard {
    latch: VersionLatch,
    memory: ArcSwap<Memory>,
    state: Mutex<State>,
    /// Hits on records that the hand would evict soon, which a smaller cache would have missed
    /// first. Each is multiplied by the number of such parts in the ring: the hits that the whole
    /// ring would have if it were as cold.
    worth: AtomicU64,
    /// Number of changes of keys elsewhere, by bits of their ids. They grow under the state's lock.
    changes: [AtomicU32; CHANGES],
}

#[derive(Debug)]
struct State {
    /// Position of the head. Positions grow forever; a position modulo the capacity is a word of
    /// the ring.
    head: u64,
    tail: u64,
    records: usize,
    dirty: usize,
    reserved_words: usize,
    reserved_records: usize,
    /// Words of an average record, for which the table is sized.
    record_words: usize,
    /// Bytes that the memory was made for.
    bytes: u64,
    /// Bytes that it may grow to.
    limit: u64,
    /// Part of the records that the hand met recently that had been read or written since its last
    /// pass, in units of [`ALL_MET`].
    asked_for: u32,
    /// Records refused since one was admitted without a recent miss.
    refused: u32,
    /// Words that the hand has passed and that did not yet pay for a gap, at most those of one
    /// turn.
    gaps: usize,
}

/// What the hand did with one record.
enum Step {
    /// Dropped a dead record or evicted a clean one.
    Freed,
    /// Carried it forward.
    Kept,
    /// Carried a dirty record of priority 0 forward, to this position.
    KeptDirty(u64),
}

impl Shard {
    pub(super) fn new(limit: u64) -> Self {
        let limit = limit.clamp(SHARD_BYTES_MIN as u64, SHARD_BYTES_MAX as u64);
        let bytes = limit.min(FIRST_BYTES as u64);
        Shard {
            latch: VersionLatch::new(),
            worth: AtomicU64::new(0),
            changes: Default::default(),
            memory: ArcSwap::from_pointee(Memory::new(bytes, RECORD_WORDS_EXPECTED)),
            state: Mutex::new(State {
                head: 0,
                tail: 0,
                records: 0,
                dirty: 0,
                reserved_words: 0,
                reserved_records: 0,
                record_words: RECORD_WORDS_EXPECTED,
                bytes,
                limit,
                asked_for: 0,
                refused: 0,
                gaps: 0,
            }),
        }
    }

    pub(super) fn get(&self, id: RecordId, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.look::<true>(id, key, out)
    }

    pub(super) fn peek(&self, id: RecordId, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.look::<false>(id, key, out)
    }

    #[inline]
    fn look<const IS_USE: bool>(&self, id: RecordId, key: &[u8], out: &mut Vec<u8>) -> Cached {
        let start = out.len();
        loop {
            let version = self.latch.version();
            let memory = self.memory.load();
            let found = memory.find_key(id, key);
            let Some(Place { bucket, word, header }) = found else {
                if self.latch.validate(version) {
                    return Cached::Unknown;
                }
                continue;
            };
            if !header.has(TOMBSTONE) {
                memory.read_value(word, header, out);
            }
            if self.latch.validate(version) {
                if IS_USE && memory.bump_priority(bucket) && memory.is_before_hand(word) {
                    self.worth.fetch_add(SOON as u64, Relaxed);
                }
                return match header {
                    _ if header.has(TOMBSTONE) => Cached::Absent,
                    _ if header.has(LARGE) => Cached::Large,
                    _ => Cached::Present,
                };
            }
            out.truncate(start);
        }
    }

    /// Reserves room for a record with a key and a value of these lengths.
    pub(super) fn prepare(&self, key: usize, value: usize) -> Prepared {
        let words = record_words(key, value);
        let mut state = self.state.lock();
        if let Err(met) = self.make_room(&mut state, words, usize::MAX)
            && !self.grow_for_reserved(&mut state, words)
        {
            let memory = self.memory.load();
            let Some(position) = met.or_else(|| state.first_dirty(&memory)) else {
                return Prepared::Busy;
            };
            let word = state.word(&memory, position);
            let mut key = Vec::new();
            memory.read_key(word, memory.header(word), &mut key);
            return Prepared::Dirty(key);
        }
        state.reserved_words += words;
        state.reserved_records += 1;
        Prepared::Ready(words)
    }

    pub(super) fn cancel(&self, words: usize) {
        let mut state = self.state.lock();
        state.reserved_words -= words;
        state.reserved_records -= 1;
    }

    pub(super) fn put(
        &self,
        id: RecordId,
        key: &[u8],
        (value, note): (Option<ValueRef<'_>>, u8),
        reserved: usize,
        replaced: &mut Vec<u8>,
    ) -> Became {
        let flags = LIVE | DIRTY | if value.is_none() { TOMBSTONE } else { 0 };
        let value = value.unwrap_or(ValueRef::EMPTY);
        let bytes = value.bytes;
        let words = record_words(key.len(), bytes.len());
        let header = Header::new(id, key.len(), value, flags);
        debug_assert_eq!(reserved, words, "an equal write was prepared");
        let mut state = self.state.lock();
        state.reserved_words -= reserved;
        state.reserved_records -= 1;
        let memory = self.memory.load();
        let _latch = self.latch.lock();
        let Some(old) = memory.find_key(id, key) else {
            state.append(&memory, header.with_note(note), key, bytes, PRIORITY_WRITTEN);
            return Became { dirty: true, may_be_new: true };
        };
        let header = header.with_note(if old.header.has(DIRTY) { old.header.note() } else { note });
        memory.bump_priority(old.bucket);
        if old.header.has(LARGE) {
            memory.read_value(old.word, old.header, replaced);
        }
        if old.header.words() == words {
            memory.write(old.word, header, key, bytes);
        } else {
            memory.set_header(old.word, Header(old.header.0 & !LIVE));
            let word = state.head_word(&memory);
            memory.write(word, header, key, bytes);
            memory.set_place(old.bucket, id, word);
            state.head += words as u64;
        }
        if !old.header.has(DIRTY) {
            state.dirty += 1;
        }
        Became {
            dirty: !old.header.has(DIRTY) || old.header.has(WRITING),
            may_be_new: old.header.has(TOMBSTONE),
        }
    }

    pub(super) fn note(&self, id: RecordId, key: &[u8]) -> u8 {
        loop {
            let version = self.latch.version();
            let found = self.memory.load().find_key(id, key);
            if self.latch.validate(version) {
                return found.map_or(0, |place| place.header.note());
            }
        }
    }

    pub(super) fn clear_note(&self, id: RecordId, key: &[u8], note: u8) -> bool {
        let _state = self.state.lock();
        let memory = self.memory.load();
        let found = memory.find_key(id, key).filter(|place| place.header.note() == note);
        let Some(Place { word, header, .. }) = found else { return false };
        // Whoever finds it gone finds what its user did before.
        let _latch = self.latch.lock();
        memory.set_header(word, header.with_note(0));
        true
    }

    pub(super) fn admit(
        &self,
        id: RecordId,
        key: &[u8],
        value: Option<ValueRef<'_>>,
        cause: Cause,
    ) {
        self.admit_alone(&mut self.state.lock(), id, key, value, cause);
    }

    fn admit_alone(
        &self,
        state: &mut MutexGuard<'_, State>,
        id: RecordId,
        key: &[u8],
        value: Option<ValueRef<'_>>,
        cause: Cause,
    ) {
        let flags = LIVE | if value.is_none() { TOMBSTONE } else { 0 };
        let value = value.unwrap_or(ValueRef::EMPTY);
        let words = record_words(key.len(), value.len());
        {
            let memory = self.memory.load();
            if memory.find_key(id, key).is_some()
                || cause == Cause::Missed
                    && !state.has_room(&memory, words)
                    && !state.enters(&memory, id)
            {
                return;
            }
        }
        if self.make_room(state, words, ADMISSION_STEPS).is_err() {
            return;
        }
        // Making room may have rebuilt the memory.
        let memory = self.memory.load();
        let _latch = self.latch.lock();
        let header = Header::new(id, key.len(), value, flags);
        state.append(&memory, header, key, value.bytes, PRIORITY_READ);
    }

    /// How often keys with an id like this one were changed elsewhere.
    pub(super) fn changes(&self, id: RecordId) -> u32 {
        self.counter(id).load(Acquire)
    }

    fn counter(&self, id: RecordId) -> &AtomicU32 {
        // Bits that choose neither the shard nor the tag.
        &self.changes[(id.0 >> 24) as usize % CHANGES]
    }

    pub(super) fn admit_unchanged(
        &self,
        id: RecordId,
        key: &[u8],
        value: ValueRef<'_>,
        changes: u32,
    ) {
        let mut state = self.state.lock();
        if self.counter(id).load(Relaxed) == changes {
            self.admit_alone(&mut state, id, key, Some(value), Cause::Missed);
        }
    }

    pub(super) fn change(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) {
        let mut state = self.state.lock();
        self.counter(id).fetch_add(1, Release);
        let memory = self.memory.load();
        let Some(old) = memory.find_key(id, key) else { return };
        let _latch = self.latch.lock();
        match value {
            Some(value) if record_words(key.len(), value.len()) == old.header.words() => {
                let header = Header::new(id, key.len(), value, LIVE);
                memory.write(old.word, header, key, value.bytes);
            }
            _ => {
                memory.set_header(old.word, Header(old.header.0 & !LIVE));
                memory.remove(old.bucket);
                state.records -= 1;
            }
        }
    }

    /// Asks the processor for what finding `id` needs first.
    pub(super) fn prefetch_bucket(&self, id: RecordId) {
        self.memory.load().prefetch_bucket(id);
    }

    /// Asks the processor for the records that may bear `id`.
    pub(super) fn prefetch_records(&self, id: RecordId) {
        self.memory.load().prefetch_records(id);
    }

    pub(super) fn visit_dirty(
        &self,
        id: RecordId,
        visit: Visit,
        scratch: &mut Scratch,
        show: Show<'_>,
    ) {
        let Scratch { key, value } = scratch;
        let _state = self.state.lock();
        let memory = self.memory.load();
        memory.find(id, |word, header| {
            let wanted = header.has(DIRTY) && !(visit == Visit::BeginWrite && header.has(WRITING));
            if wanted {
                key.clear();
                value.clear();
                memory.read_key(word, header, key);
                memory.read_value(word, header, value);
                let found = ValueRef { bytes: value, large: header.has(LARGE) };
                let accepted = show(key, (!header.has(TOMBSTONE)).then_some(found));
                if accepted && visit == Visit::BeginWrite {
                    memory.set_header(word, Header(header.0 | WRITING));
                }
            }
            // Never the one: another key may bear the same id.
            false
        });
    }

    pub(super) fn end_write(&self, id: RecordId, key: &[u8], written: bool) {
        let mut state = self.state.lock();
        let memory = self.memory.load();
        let Some(place) = memory.find_key(id, key) else { return };
        if !place.header.has(WRITING) {
            return;
        }
        let kept = if written { !(DIRTY | WRITING) } else { !WRITING };
        memory.set_header(place.word, Header(place.header.0 & kept));
        if written {
            state.dirty -= 1;
        }
    }

    pub(super) fn soon_evicted(&self, most: usize, keys: &mut Vec<Vec<u8>>) {
        let state = self.state.lock();
        let memory = self.memory.load();
        let capacity = memory.capacity() as u64;
        let used = state.head - state.tail;
        // While ring and table have free space, or may grow, the hand will not pass.
        let is_over = state.is_over();
        let few_dirty = state.dirty * 100 < state.records * DIRTY_PERCENT;
        if !is_over && (state.next_bytes().is_some() || few_dirty) {
            return;
        }
        let average = used / state.records.max(1) as u64;
        let places = memory.records_max().saturating_sub(state.records) as u64;
        let free = (capacity - used).min(places * average);
        let window = if is_over { used } else { (capacity / SOON as u64).saturating_sub(free) };
        let mut position = state.tail;
        while position < state.tail + window && position < state.head && keys.len() < most {
            let word = state.word(&memory, position);
            let header = memory.header(word);
            if header.has(LIVE) && header.has(DIRTY) && !header.has(WRITING) {
                let place = memory.find(header.id(), |at, _| at == word);
                if place.is_some_and(|place| is_over || memory.priority(place.bucket) == 0) {
                    let mut key = Vec::with_capacity(header.key_length());
                    memory.read_key(word, header, &mut key);
                    keys.push(key);
                }
            }
            position += header.words() as u64;
        }
    }

    /// Drops all clean records.
    pub(super) fn forget_clean(&self) {
        let mut state = self.state.lock();
        let memory = self.memory.load();
        let _latch = self.latch.lock();
        let clean: Vec<_> = state.live(&memory).filter(|(_, header)| !header.has(DIRTY)).collect();
        for (word, header) in clean {
            if let Some(place) = memory.find(header.id(), |at, _| at == word) {
                memory.set_header(word, Header(header.0 & !LIVE));
                memory.remove(place.bucket);
                state.records -= 1;
            }
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let state = self.state.lock();
        let memory = self.memory.load();
        let bytes = state.limit.max(state.bytes);
        Usage {
            records: state.records as u64,
            dirty: state.dirty as u64,
            bytes: Shape::new(bytes, state.record_words).bytes(),
            held: state.head.min(memory.capacity() as u64) * 8 + memory.table_bytes(),
            filled: (state.head - state.tail) * 8,
            passed: state.tail * 8,
            worth: self.worth.load(Relaxed),
        }
    }

    /// Follows a new limit. Memory is taken when records come. While dirty records or reservations
    /// would not fit, the shard keeps its size: [`Shard::soon_evicted`] then names dirty records of
    /// any priority, and the next call tries again.
    pub(super) fn resize(&self, bytes: u64) {
        let bytes = bytes.clamp(SHARD_BYTES_MIN as u64, SHARD_BYTES_MAX as u64);
        let mut state = self.state.lock();
        let current = self.memory.load().bytes();
        state.limit = bytes;
        if current > bytes {
            // Rebuilding costs a copy of everything: what must be given up is given up together
            // with what will be soon.
            let follow = (bytes - bytes / 64).max(SHARD_BYTES_MIN as u64);
            let record_words = state.record_words;
            self.rebuild(&mut state, follow, record_words);
        }
    }

    /// Enlarges the ring, past its limit if necessary, where reservations take most of it: no
    /// write-back makes space for the other records of the same batch. Returns whether there is
    /// space for `words` now.
    fn grow_for_reserved(&self, state: &mut State, words: usize) -> bool {
        let record_words = state.record_words;
        loop {
            let memory = self.memory.load();
            let is_most = (state.reserved_words + words) * 2 > memory.capacity()
                || (state.reserved_records + 1) * 2 > memory.records_max();
            let bytes = 2 * state.bytes;
            if !is_most
                || bytes > SHARD_BYTES_MAX as u64
                || !self.rebuild(state, bytes, record_words)
            {
                return false;
            }
            if state.has_room(&self.memory.load(), words) {
                return true;
            }
        }
    }

    /// When ring or table is full, makes both larger, as far as they may be.
    fn grow(&self, state: &mut State) -> bool {
        let record_words = state.record_words;
        state.next_bytes().is_some_and(|bytes| self.rebuild(state, bytes, record_words))
    }

    /// Moves the hand until `words` are free, over at most `steps` records. The error is that they
    /// are not, with the position of the first dirty record of priority 0 that the hand met.
    fn make_room(
        &self,
        state: &mut MutexGuard<'_, State>,
        words: usize,
        steps: usize,
    ) -> Result<(), Option<u64>> {
        let mut memory = self.memory.load_full();
        if state.has_room(&memory, words) {
            return Ok(());
        }
        while self.grow(state) {
            memory = self.memory.load_full();
            if state.has_room(&memory, words) {
                return Ok(());
            }
        }
        let table_full = state.records + state.reserved_records >= memory.records_max();
        if if table_full { self.enlarge_table(state) } else { self.reduce_table(state) } {
            memory = self.memory.load_full();
        }
        let _latch = self.latch.lock();
        state.close_gap(&memory);
        let mut candidate = None;
        let mut passed = 0;
        // Each turn takes one from every priority, so after this many every clean record has gone.
        let end = state.tail + (u64::from(PRIORITY_MAX) + 2) * memory.capacity() as u64;
        for _ in 0..steps {
            if state.has_room(&memory, words) {
                return Ok(());
            }
            // A ring of few records: behind the first one met its place is not known any more.
            let is_round = candidate.is_some_and(|position| state.tail >= position);
            if passed > DIRTY_LOOK_AHEAD || is_round || state.tail == state.head || state.tail > end
            {
                break;
            }
            if let Step::KeptDirty(position) = state.step(&memory) {
                candidate.get_or_insert(position);
                passed += 1;
            }
        }
        Err(candidate)
    }

    /// When the table, not the ring, is what is full, the records are smaller than expected: makes
    /// a larger table beside a smaller ring.
    fn enlarge_table(&self, state: &mut State) -> bool {
        let memory = self.memory.load();
        let used = usize::try_from(state.head - state.tail).unwrap_or(usize::MAX);
        let average = used / state.records.max(1);
        if used > memory.capacity() / 4 * 3 || average >= state.record_words {
            return false;
        }
        let bytes = state.bytes;
        self.rebuild(state, bytes, average.max(2))
    }

    /// When the ring is full and its records are larger than expected by a fourth: makes a smaller
    /// table beside a larger ring.
    fn reduce_table(&self, state: &mut State) -> bool {
        let used = usize::try_from(state.head - state.tail).unwrap_or(usize::MAX);
        let average = used / state.records.max(1);
        if state.record_words >= RECORD_WORDS_MAX || average * 4 < state.record_words * 5 {
            return false;
        }
        let bytes = state.bytes;
        // Room for records that are a sixteenth smaller, so that the table is not what is full
        // next.
        self.rebuild(state, bytes, (average - average.div_ceil(16)).min(RECORD_WORDS_MAX))
    }

    /// Moves all records into new memory; the oldest clean ones stay behind if there is less room.
    fn rebuild(&self, state: &mut State, bytes: u64, record_words: usize) -> bool {
        let old = self.memory.load_full();
        let new = Memory::new(bytes, record_words);
        let live: Vec<(usize, Header)> = state.live(&old).collect();
        let total: usize = live.iter().map(|(_, header)| header.words()).sum();
        // What is reserved must find its room, even beside no record at all.
        let room = new.capacity().checked_sub(state.reserved_words);
        let places = new.records_max().checked_sub(state.reserved_records);
        let (Some(limit), Some(count_limit)) = (room, places) else { return false };
        let (mut words, mut count) = (total, live.len());
        let mut moved = Vec::with_capacity(live.len());
        for (word, header) in live {
            if (words > limit || count > count_limit) && !header.has(DIRTY) {
                words -= header.words();
                count -= 1;
            } else {
                moved.push((word, header));
            }
        }
        if words > limit || count > count_limit {
            return false;
        }
        let mut head = 0;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for (word, header) in moved {
            key.clear();
            value.clear();
            old.read_key(word, header, &mut key);
            old.read_value(word, header, &mut value);
            let bucket = old.find(header.id(), |at, _| at == word).map(|place| place.bucket);
            new.write(head, header, &key, &value);
            new.insert(header.id(), head, bucket.map_or(0, |bucket| old.priority(bucket)));
            head += header.words();
        }
        let _latch = self.latch.lock();
        self.memory.store(Arc::new(new));
        state.tail = 0;
        state.head = head as u64;
        state.records = count;
        state.record_words = record_words;
        state.bytes = bytes;
        true
    }
}

impl State {
    /// Returns the bytes for which the memory is made next, if it may grow: twice as many. The last
    /// step is worth its copy if it adds at least a 32nd.
    fn next_bytes(&self) -> Option<u64> {
        let bytes = (2 * self.bytes).min(self.limit);
        (bytes > self.bytes + self.bytes / 32).then_some(bytes)
    }

    /// Returns whether it takes clearly more than it may.
    fn is_over(&self) -> bool {
        self.bytes > self.limit + self.limit / OVER_PART
    }

    fn word(&self, memory: &Memory, position: u64) -> usize {
        let _ = self;
        #[expect(clippy::cast_possible_truncation, reason = "below the capacity")]
        let word = (position % memory.capacity() as u64) as usize;
        word
    }

    fn head_word(&self, memory: &Memory) -> usize {
        self.word(memory, self.head)
    }

    fn has_room(&self, memory: &Memory, words: usize) -> bool {
        let used = usize::try_from(self.head - self.tail).unwrap_or(usize::MAX);
        used + self.reserved_words + words <= memory.capacity()
            && self.records + self.reserved_records < memory.records_max()
    }

    /// Returns whether most records that the hand met recently had been read or written since its
    /// last pass.
    fn is_proved(&self) -> bool {
        self.asked_for > ALL_MET / 2
    }

    /// Returns whether a record that was looked up is admitted if another must be evicted for it.
    fn enters(&mut self, memory: &Memory, id: RecordId) -> bool {
        if !self.is_proved() || memory.was_missed(id) {
            return true;
        }
        self.refused = (self.refused + 1) % ENTERS_ANYWAY;
        self.refused == 0
    }

    fn append(&mut self, memory: &Memory, header: Header, key: &[u8], value: &[u8], priority: u8) {
        let word = self.head_word(memory);
        memory.write(word, header, key, value);
        memory.insert(header.id(), word, priority);
        self.head += header.words() as u64;
        self.records += 1;
        if header.has(DIRTY) {
            self.dirty += 1;
        }
    }

    /// Makes a dead record of the room between head and tail, which is too little for what is
    /// wanted (or of no use, while the table is what is full): the hand then leaves what it keeps
    /// where it is, and where it drops a record of the size that is wanted there is room again for
    /// just that one.
    fn close_gap(&mut self, memory: &Memory) {
        let used = self.head - self.tail;
        let gap = memory.capacity() - usize::try_from(used).unwrap_or(usize::MAX);
        let costs = gap * WORDS_PER_GAP_WORD;
        if gap > 0 && self.reserved_words == 0 && costs <= self.gaps {
            let Some(dead) = Header::dead(gap) else { return };
            self.gaps -= costs;
            memory.set_header(self.head_word(memory), dead);
            self.head += gap as u64;
        }
    }

    /// Moves the hand over one record.
    fn step(&mut self, memory: &Memory) -> Step {
        let word = self.word(memory, self.tail);
        let header = memory.header(word);
        let words = header.words();
        self.tail += words as u64;
        self.gaps = (self.gaps + words).min(memory.capacity());
        self.prefetch_next(memory);
        let place =
            header.has(LIVE).then(|| memory.find(header.id(), |at, _| at == word)).flatten();
        memory.set_hand(self.word(memory, self.tail));
        let Some(Place { bucket, .. }) = place else {
            return Step::Freed;
        };
        let priority = memory.priority(bucket);
        self.asked_for -= self.asked_for / MET;
        if priority > 0 {
            self.asked_for += ALL_MET / MET;
        }
        if priority == 0 && !header.has(DIRTY) {
            memory.remove(bucket);
            self.records -= 1;
            return Step::Freed;
        }
        memory.set_priority(bucket, priority.min(PRIORITY_MAX).saturating_sub(1));
        let target = self.head_word(memory);
        if target != word {
            // The free gap may be shorter than the record; the copy runs upwards from behind, so it
            // may overlap.
            memory.words.copy_within(word, target, words);
            memory.set_place(bucket, header.id(), target);
        }
        let position = self.head;
        self.head += words as u64;
        if priority == 0 { Step::KeptDirty(position) } else { Step::Kept }
    }

    /// Asks the processor for the bucket of the record at the tail, whose header was asked for one
    /// step ago, and for the header of the one behind it.
    fn prefetch_next(&self, memory: &Memory) {
        if self.tail < self.head {
            let header = memory.header(self.word(memory, self.tail));
            memory.prefetch_place(header.id());
            let behind = self.tail + header.words() as u64;
            memory.words.prefetch(self.word(memory, behind));
        }
    }

    fn live<'a>(&'a self, memory: &'a Memory) -> impl Iterator<Item = (usize, Header)> + 'a {
        let mut position = self.tail;
        std::iter::from_fn(move || {
            while position < self.head {
                let word = self.word(memory, position);
                let header = memory.header(word);
                position += header.words() as u64;
                if header.has(LIVE) {
                    return Some((word, header));
                }
            }
            None
        })
    }

    fn first_dirty(&self, memory: &Memory) -> Option<u64> {
        let mut position = self.tail;
        while position < self.head {
            let header = memory.header(self.word(memory, position));
            if header.has(LIVE) && header.has(DIRTY) && !header.has(WRITING) {
                return Some(position);
            }
            position += header.words() as u64;
        }
        None
    }
}
