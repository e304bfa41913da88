//! The memory of one shard: a ring of words for records and a hash table of places in it.
//!
//! A record in the ring:
//!
//! ```text
//!  63  60 59      32 31    28 27         16 15          0
//! +------+----------+--------+-------------+-------------+
//! | note |    id    | flags  | key length  | value length|   one word
//! +------+----------+--------+-------------+-------------+
//! | key, padded with zeros to whole words               |
//! | value, padded with zeros to whole words             |
//! ```
//!
//! The highest bit of the value length says that the value is the pointer to a large one.
//!
//! A bucket is `0` when empty, else `tag << 24 | place + 1`: eight bits of the id and the record's
//! word index. Probing is linear; removal shifts back, so there are no tombstones among buckets.
//! Each bucket has a byte beside it:
//!
//! ```text
//!  7      5 4          0
//! +--------+------------+
//! |priority|displacement|
//! +--------+------------+
//! ```
//!
//! Behind these bytes there is one for every two buckets, with bits of an id that was missed
//! recently and not admitted ([`Memory::was_missed`]).
//!
//! Readers bump the priority without holding anything: an addition, which leaves the displacement
//! alone, and a bump that lands on the wrong record does no harm. The displacement says how many
//! buckets this one lies behind the one where its probing begins, or 31 for so many and more: so a
//! removal knows which buckets to shift without a look at their records, each of which would be a
//! miss of the processor's caches.
//!
//! **Invariant**: everything here is read and written as atomics, because optimistic readers race
//! with writers (rule P27); readers conclude nothing before the shard's latch validates.

use spinney_base::ValueRef;
use spinney_base::shim::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};
use spinney_sync::{RacyWords, ZeroedAtomics, prefetch};

use super::RecordId;

/// Bit of the value length: the value is the pointer to a large one.
pub(super) const LARGE: u64 = 1 << 15;
pub(super) const LIVE: u64 = 1 << 28;
pub(super) const DIRTY: u64 = 1 << 29;
pub(super) const WRITING: u64 = 1 << 30;
pub(super) const TOMBSTONE: u64 = 1 << 31;

/// Where the note of a record begins.
const NOTE_SHIFT: u32 = 32 + RecordId::BITS;

/// Highest priority of a record.
pub(super) const PRIORITY_MAX: u8 = 3;

/// Most words that a bucket can address.
const WORDS_MAX: usize = (1 << 24) - 2;

/// Smallest limit of a shard, in bytes: some twenty records of 64 bytes. A cache that may become
/// large has many shards while it is small, so this is the least for a keyspace with little memory.
/// Reservations beyond the limit, also for the largest record, make a shard grow past it until they
/// are written back.
pub(super) const SHARD_BYTES_MIN: usize = 2 << 10;

/// Bytes of a shard before it has records. It doubles up to its limit, so tables follow the data,
/// and a budget far above that costs nothing.
pub(super) const FIRST_BYTES: usize = 512;

/// Most memory of a shard: a bucket cannot address words beyond it.
pub(super) const SHARD_BYTES_MAX: usize = (WORDS_MAX - 1) * 8;

/// Words of an average record, at most, that the table is sized for.
pub(super) const RECORD_WORDS_MAX: usize = 64;

/// Buckets are filled up to this percentage: finding that a record is absent takes 9 steps, and
/// would take 23 at 85 percent.
const LOAD_PERCENT: usize = 75;

/// What one more of priority adds to a bucket's byte.
const PRIORITY_ONE: u8 = 1 << 5;

/// Displacement of this many buckets or more.
const FAR: u8 = PRIORITY_ONE - 1;

/// Buckets for each id that is remembered as missed. Fewer are remembered than the ring holds
/// records, because a record that is read again only after many others is not worth a place in it.
const BUCKETS_PER_MISSED: usize = 2;

/// The part of the ring that the hand reaches soon is one in this many.
pub(super) const SOON: usize = 8;

const BUCKET_BYTES: usize = size_of::<AtomicU32>() + size_of::<AtomicU8>();

/// Header word of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header(pub(super) u64);

impl Header {
    pub(super) fn new(id: RecordId, key: usize, value: ValueRef<'_>, flags: u64) -> Self {
        debug_assert!(key < 1 << 12 && value.len() < 1 << 15, "lengths were checked at the door");
        let large = if value.large { LARGE } else { 0 };
        Header(u64::from(id.0) << 32 | flags | (key as u64) << 16 | large | value.len() as u64)
    }

    /// Makes the header of a dead record of `words` words, if one can be that large.
    pub(super) fn dead(words: usize) -> Option<Self> {
        let value = (words - 1) * 8;
        (value < LARGE as usize).then_some(Header(value as u64))
    }

    pub(super) fn id(self) -> RecordId {
        RecordId((self.0 >> 32) as u32 & ((1 << RecordId::BITS) - 1))
    }

    /// The note of a dirty record.
    pub(super) fn note(self) -> u8 {
        if self.has(DIRTY) { (self.0 >> NOTE_SHIFT) as u8 } else { 0 }
    }

    pub(super) fn with_note(self, note: u8) -> Self {
        Header(self.0 & !(15 << NOTE_SHIFT) | u64::from(note) << NOTE_SHIFT)
    }

    pub(super) fn key_length(self) -> usize {
        (self.0 >> 16) as usize & 0xfff
    }

    pub(super) fn value_length(self) -> usize {
        self.0 as usize & 0x7fff
    }

    pub(super) fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// Words of the whole record.
    pub(super) fn words(self) -> usize {
        record_words(self.key_length(), self.value_length())
    }
}

/// Words of a record with a key and a value of these lengths.
pub(super) fn record_words(key: usize, value: usize) -> usize {
    1 + key.div_ceil(8) + value.div_ceil(8)
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) bucket: usize,
    pub(super) word: usize,
    pub(super) header: Header,
}

/// How long ring and table are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    words: usize,
    buckets: usize,
    notes: usize,
}

impl Shape {
    /// Of about `bytes` bytes for records of about `record` words.
    pub(super) fn new(bytes: u64, record: usize) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(FIRST_BYTES);
        let bytes = bytes.min(SHARD_BYTES_MAX);
        let record = record.clamp(2, RECORD_WORDS_MAX);
        let buckets = bytes / (record * 8 * LOAD_PERCENT / 100 + BUCKET_BYTES) + 16;
        let notes = buckets + buckets / BUCKETS_PER_MISSED;
        let words = bytes.saturating_sub(buckets * size_of::<AtomicU32>() + notes) / 8;
        Shape { words, buckets, notes }
    }

    pub(super) fn bytes(self) -> u64 {
        (self.words * 8 + self.buckets * size_of::<AtomicU32>() + self.notes) as u64
    }
}

/// Ring and table of one shard.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) words: RacyWords,
    buckets: ZeroedAtomics<AtomicU32>,
    /// Priorities and displacements; behind them bits of ids that were missed, where 0 is none.
    notes: ZeroedAtomics<AtomicU8>,
    /// The word behind the one where the hand was last, for readers; 0 before it has moved.
    hand: AtomicUsize,
}

impl Memory {
    /// Memory of about `bytes` bytes for records of about `record` words.
    pub(super) fn new(bytes: u64, record: usize) -> Self {
        let Shape { words, buckets, notes } = Shape::new(bytes, record);
        Memory {
            words: RacyWords::new(words),
            buckets: ZeroedAtomics::new(buckets),
            notes: ZeroedAtomics::new(notes),
            hand: AtomicUsize::new(0),
        }
    }

    /// Bytes of ring and table.
    pub(super) fn bytes(&self) -> u64 {
        (self.words.len() * 8 + self.buckets.len() * size_of::<AtomicU32>() + self.notes.len())
            as u64
    }

    /// Bytes of the table alone.
    pub(super) fn table_bytes(&self) -> u64 {
        (self.buckets.len() * size_of::<AtomicU32>() + self.notes.len()) as u64
    }

    /// Words of the ring.
    pub(super) fn capacity(&self) -> usize {
        self.words.len()
    }

    /// Most records that the table takes.
    pub(super) fn records_max(&self) -> usize {
        self.buckets.len() * LOAD_PERCENT / 100
    }

    pub(super) fn header(&self, word: usize) -> Header {
        Header(self.words.load(word))
    }

    pub(super) fn set_header(&self, word: usize, header: Header) {
        self.words.store(word, header.0);
    }

    pub(super) fn key_is(&self, word: usize, header: Header, key: &[u8]) -> bool {
        header.key_length() == key.len() && self.words.equals(word + 1, key)
    }

    pub(super) fn read_key(&self, word: usize, header: Header, out: &mut Vec<u8>) {
        self.words.read_into(word + 1, header.key_length(), out);
    }

    pub(super) fn read_value(&self, word: usize, header: Header, out: &mut Vec<u8>) {
        let value = word + 1 + header.key_length().div_ceil(8);
        self.words.read_into(value, header.value_length(), out);
    }

    pub(super) fn write(&self, word: usize, header: Header, key: &[u8], value: &[u8]) {
        self.set_header(word, header);
        self.words.write_from(word + 1, key);
        self.words.write_from(word + 1 + key.len().div_ceil(8), value);
    }

    /// Finds the record that `accept` takes among those that bear `id`. Safe under races: it ends,
    /// and stays inside.
    pub(super) fn find(
        &self,
        id: RecordId,
        mut accept: impl FnMut(usize, Header) -> bool,
    ) -> Option<Place> {
        let tag = tag(id);
        let mut bucket = self.home(id);
        for _ in 0..self.buckets.len() {
            let entry = self.buckets[bucket].load(Relaxed);
            if entry == 0 {
                return None;
            }
            if entry >> 24 == tag {
                let word = place(entry);
                let header = self.header(word);
                if header.id() == id && accept(word, header) {
                    return Some(Place { bucket, word, header });
                }
            }
            bucket = self.next(bucket);
        }
        None
    }

    pub(super) fn find_key(&self, id: RecordId, key: &[u8]) -> Option<Place> {
        // Its priority is most likely there, and wanted when the record has been waited for.
        prefetch(&self.notes[self.home(id)]);
        self.find(id, |word, header| self.key_is(word, header, key))
    }

    pub(super) fn set_place(&self, bucket: usize, id: RecordId, word: usize) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the ring has at most WORDS_MAX words"
        )]
        self.buckets[bucket].store(tag(id) << 24 | (word as u32 + 1), Relaxed);
    }

    /// Adds a record that is not there. The table is never full: the shard keeps to `records_max`.
    pub(super) fn insert(&self, id: RecordId, word: usize, priority: u8) {
        let mut bucket = self.home(id);
        while self.buckets[bucket].load(Relaxed) != 0 {
            bucket = self.next(bucket);
        }
        self.set_place(bucket, id, word);
        self.note(bucket, priority, self.distance(self.home(id), bucket));
    }

    /// Takes a bucket out and closes the gap.
    pub(super) fn remove(&self, bucket: usize) {
        let mut hole = bucket;
        let mut probe = self.next(hole);
        loop {
            let entry = self.buckets[probe].load(Relaxed);
            if entry == 0 {
                break;
            }
            let from_home = match self.notes[probe].load(Relaxed) & FAR {
                FAR => self.distance(self.home(self.header(place(entry)).id()), probe),
                displacement => usize::from(displacement),
            };
            // Where its probing begins behind the hole, it must stay.
            let from_hole = self.distance(hole, probe);
            if from_home >= from_hole {
                self.buckets[hole].store(entry, Relaxed);
                self.note(hole, self.priority(probe), from_home - from_hole);
                hole = probe;
            }
            probe = self.next(probe);
        }
        self.buckets[hole].store(0, Relaxed);
    }

    pub(super) fn priority(&self, bucket: usize) -> u8 {
        self.notes[bucket].load(Relaxed) / PRIORITY_ONE
    }

    pub(super) fn set_priority(&self, bucket: usize, priority: u8) {
        let displacement = self.notes[bucket].load(Relaxed) & FAR;
        self.notes[bucket].store((priority * PRIORITY_ONE) | displacement, Relaxed);
    }

    /// Writes the byte beside a bucket that lies `distance` behind the one where its probing
    /// begins.
    fn note(&self, bucket: usize, priority: u8, distance: usize) {
        let displacement = u8::try_from(distance).map_or(FAR, |distance| distance.min(FAR));
        self.notes[bucket].store((priority * PRIORITY_ONE) | displacement, Relaxed);
    }

    /// Counts an access: one more, up to the highest. A hot record is not written to. Says whether
    /// the record was among those that the hand would take next.
    pub(super) fn bump_priority(&self, bucket: usize) -> bool {
        let priority = self.priority(bucket);
        if priority < PRIORITY_MAX {
            // If others were faster it may pass the highest, which the hand takes for that.
            self.notes[bucket].fetch_add(PRIORITY_ONE, Relaxed);
        }
        priority == 0
    }

    /// Tells readers where the hand is.
    pub(super) fn set_hand(&self, word: usize) {
        self.hand.store(word + 1, Relaxed);
    }

    /// Returns whether this word lies in the part of the ring that the hand reaches [`SOON`]. None
    /// does before the hand has moved.
    pub(super) fn is_before_hand(&self, word: usize) -> bool {
        self.hand.load(Relaxed).checked_sub(1).is_some_and(|hand| {
            let ahead = if word >= hand { word - hand } else { word + self.capacity() - hand };
            ahead < self.capacity() / SOON
        })
    }

    /// Returns whether `id` was missed recently, as far as its bits say. If not, it is remembered
    /// from now on and replaces another.
    #[expect(clippy::cast_possible_truncation, reason = "below the length, and some bits")]
    pub(super) fn was_missed(&self, id: RecordId) -> bool {
        let mixed = u64::from(id.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let missed = &self.notes[self.buckets.len()..];
        let missed = &missed[(((mixed >> 32) * missed.len() as u64) >> 32) as usize];
        let bits = (mixed >> 8) as u8 | 1;
        let was = missed.load(Relaxed) == bits;
        missed.store(if was { 0 } else { bits }, Relaxed);
        was
    }

    fn home(&self, id: RecordId) -> usize {
        let mixed = id.0.wrapping_mul(0x9E37_79B1);
        ((u64::from(mixed) * self.buckets.len() as u64) >> 32) as usize
    }

    /// How many buckets `to` lies behind `from`, around the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.buckets.len() - from }
    }

    /// Asks the processor for the bucket where the probing for `id` begins.
    pub(super) fn prefetch_bucket(&self, id: RecordId) {
        prefetch(&self.buckets[self.home(id)]);
    }

    /// Asks the processor for the bucket where the probing for `id` begins, and for what is noted
    /// beside it.
    pub(super) fn prefetch_place(&self, id: RecordId) {
        let home = self.home(id);
        prefetch(&self.buckets[home]);
        prefetch(&self.notes[home]);
    }

    /// Asks the processor for the records that may bear `id`, once the buckets are there.
    pub(super) fn prefetch_records(&self, id: RecordId) {
        let (tag, mut bucket) = (tag(id), self.home(id));
        for _ in 0..self.buckets.len() {
            let entry = self.buckets[bucket].load(Relaxed);
            if entry == 0 {
                return;
            }
            if entry >> 24 == tag {
                self.words.prefetch(place(entry));
            }
            bucket = self.next(bucket);
        }
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }
}

fn tag(id: RecordId) -> u32 {
    id.0 >> 16 & 0xff
}

fn place(entry: u32) -> usize {
    ((entry & 0x00ff_ffff) as usize).wrapping_sub(1) & 0x00ff_ffff
}
