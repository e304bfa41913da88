//! The record cache: the newest version of the records that are worth keeping in memory, dirty and
//! clean (TreeLine, section 4.2).
//!
//! The hash of the key chooses a shard; each shard is a hash table over a ring of records. Outside,
//! a record is known by its [`RecordId`], 28 bits of its key's hash, which stays the same wherever
//! the ring moves the record. Two keys may share an id, so a caller with an id gets all dirty
//! records that have it and picks by key.
//!
//! **Life of a record.** A put makes it *dirty*: its page does not hold it yet. Write-back marks it
//! *being written*, writes its page, and then makes it *clean*, unless a put changed it meanwhile,
//! which takes the mark away. Only clean records leave, so an entry leaves the cache only after its
//! page write completed (rule P23). A removal is a record too, a tombstone; clean, it says that the
//! key is known to be absent.
//!
//! **Writing through it.** A user that keeps its changes elsewhere (in a memtable) puts nothing
//! dirty here: it admits what it read, and reports changes. Between the two lies a race. A lookup
//! reads the old value, the key is changed, the cache has no record to change, and the lookup
//! admits the old value. So a lookup first takes a [`Ticket`], a count of changes of its shard and
//! some bits of the id. Its value is kept only if the count is still the same. A change updates the
//! count and the record in one step under the shard's lock, and admission checks the count under
//! that lock. If the change comes after the admission, it changes the admitted record. If it comes
//! before, either it was made before the ticket was taken, and the lookup has seen it, or the count
//! has grown.
//!
//! Read `memory` first (a record's bytes and the table), then `shard` (CLOCK, and who may do what
//! beside whom); `share` says how much memory such a cache should have.
//!
//! **Differs from the paper**: CLOCK runs over a ring in which the hand carries surviving records
//! forward, so records of any size need no allocator and cost 8 bytes and their share of the table
//! (about 7) beyond their own bytes; the paper's entries cost 96 and an index. And what was read
//! enters a cache full of what is asked for only where it was missed before (see `shard`); the
//! paper's takes each.

#![forbid(unsafe_code)]

mod memory;
mod shard;
mod share;
#[cfg(test)]
mod tests;

pub use shard::{Prepared, Visit};
pub use share::{More, Rules, Share, Side, Worth};

use memory::{SHARD_BYTES_MAX, SHARD_BYTES_MIN};
use shard::{Cause, Shard};
use spinney_base::ValueRef;

/// 28 bits of a key's hash. They find the shard, the bucket, and all records that may be meant.
/// Lists of records use the other four bits of a word, and a dirty record has a *note* there, a
/// number of its user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId(pub u32);

impl RecordId {
    /// Number of its bits.
    pub const BITS: u32 = 28;

    /// Returns the id of a key with this hash.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the id is of the low half; the high half chooses the stripe"
    )]
    pub fn of(hash: u64) -> Self {
        RecordId(hash as u32 & ((1 << Self::BITS) - 1))
    }
}

/// Receives a key and its value (`None` for a tombstone), and returns whether it takes the record.
pub type Show<'a> = &'a mut dyn FnMut(&[u8], Option<ValueRef<'_>>) -> bool;

/// Buffers for a key and a value while they are shown; they are reused.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Bytes of the key.
    pub key: Vec<u8>,
    /// Bytes of the value.
    pub value: Vec<u8>,
}

/// Receives the same with the id that led to the record.
pub type ShowWithId<'a> = &'a mut dyn FnMut(RecordId, &[u8], Option<ValueRef<'_>>) -> bool;

/// Result of a lookup in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// The key has a value, which was appended.
    Present,
    /// The key has a large value; the pointer was appended.
    Large,
    /// The key is known to be absent.
    Absent,
    /// Nothing is known of the key.
    Unknown,
}

/// Effect of a put on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Became {
    /// It is dirty and was not, or its older version is being written, so its page must be noted.
    pub dirty: bool,
    /// As far as the cache knows, the key had no value.
    pub may_be_new: bool,
}

/// Count of changes of keys with similar ids, when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u32);

/// Fewest bytes for which a cache pays beside others.
pub const CACHE_BYTES_MIN: u64 = 128 << 10;

/// Bytes per shard: a cache has one shard for each this many bytes that it may ever have, up to
/// [`FEW_SHARDS`]. Above that it has one for each [`LARGE_SHARD_BYTES`], up to [`SHARDS_MAX`], and
/// more only where a shard could not address its part. All shards exist from the start and take
/// half a kibibyte each. So a cache that may stay small has few; with too few, writers wait for
/// each other.
const SHARD_BYTES: u64 = 1 << 20;
const FEW_SHARDS: u64 = 16;
const LARGE_SHARD_BYTES: u64 = 4 << 20;
const SHARDS_MAX: u64 = 128;

/// Returns the number of shards of a cache that may have `most` bytes: a power of two.
fn shards_for(most: u64) -> u64 {
    let few = (most / SHARD_BYTES).clamp(1, FEW_SHARDS);
    let many = (most / LARGE_SHARD_BYTES).min(SHARDS_MAX);
    let needed = (most / (SHARD_BYTES_MAX as u64 / 2)).next_power_of_two();
    (1 << few.max(many).ilog2()).max(needed)
}

/// The record cache: all shards. Thread-safe.
#[derive(Debug)]
pub struct RecordCache {
    shards: Box<[Shard]>,
}

impl RecordCache {
    /// Makes an empty cache that may have about `bytes` bytes now, and up to about `most` later.
    pub fn new(bytes: u64, most: u64) -> Self {
        let shards = shards_for(most.max(bytes));
        let each = bytes / shards;
        RecordCache { shards: (0..shards).map(|_| Shard::new(each)).collect() }
    }

    /// Looks up the newest version of a key.
    pub fn get(&self, id: RecordId, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.shard(id).get(id, key, out)
    }

    /// Looks up a key as [`RecordCache::get`] does, without making it more likely to stay.
    pub fn peek(&self, id: RecordId, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.shard(id).peek(id, key, out)
    }

    /// Reserves space for one put.
    pub fn prepare(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) -> Prepared {
        self.shard(id).prepare(key.len(), value.map_or(0, ValueRef::len))
    }

    /// Releases words that were reserved for a record with this id.
    pub fn cancel(&self, id: RecordId, words: usize) {
        self.shard(id).cancel(words);
    }

    /// Puts a dirty record into the words that were reserved for it. If it replaces the pointer to
    /// a large value, that is appended to `replaced`. A record that was dirty keeps its note; any
    /// other gets `note`, below 16.
    pub fn put(
        &self,
        id: RecordId,
        key: &[u8],
        (value, note): (Option<ValueRef<'_>>, u8),
        words: usize,
        replaced: &mut Vec<u8>,
    ) -> Became {
        self.shard(id).put(id, key, (value, note), words, replaced)
    }

    /// Returns the note of a key's dirty record; 0 if there is none.
    pub fn note(&self, id: RecordId, key: &[u8]) -> u8 {
        self.shard(id).note(id, key)
    }

    /// Sets a note to 0, if the key's dirty record has this one. Returns whether it had.
    pub fn clear_note(&self, id: RecordId, key: &[u8], note: u8) -> bool {
        self.shard(id).clear_note(id, key, note)
    }

    /// Admits a record that was read from a page, if there is space without I/O, no newer version
    /// is cached, and no record that is more likely to be read would be evicted.
    pub fn admit(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) {
        self.shard(id).admit(id, key, value, Cause::Missed);
    }

    /// Admits a neighbour of a record that was read, until the hand passes unless it is read.
    pub fn admit_neighbour(&self, id: RecordId, key: &[u8], value: ValueRef<'_>) {
        self.shard(id).admit(id, key, Some(value), Cause::Neighbour);
    }

    /// Returns the ticket for [`RecordCache::admit_unchanged`]; it is taken before the record is
    /// looked up.
    pub fn ticket(&self, id: RecordId) -> Ticket {
        Ticket(self.shard(id).changes(id))
    }

    /// Admits a record that was found elsewhere, if there is space and the key has not changed
    /// since the ticket was taken.
    pub fn admit_unchanged(&self, id: RecordId, key: &[u8], value: ValueRef<'_>, ticket: Ticket) {
        self.shard(id).admit_unchanged(id, key, value, ticket.0);
    }

    /// Notes that the key has another value, which is also kept elsewhere (`None` when it was
    /// removed): the cached record gets it or is dropped. It is for a user that writes through the
    /// cache. Its change is visible already, and no other thread changes the key until this
    /// returns.
    pub fn change(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) {
        self.shard(id).change(id, key, value);
    }

    /// Shows all dirty records with the id `id`. See [`Visit`].
    pub fn visit_dirty(&self, id: RecordId, visit: Visit, scratch: &mut Scratch, show: Show<'_>) {
        self.shard(id).visit_dirty(id, visit, scratch, show);
    }

    /// Shows all dirty records with any of these ids, each with the id. See [`Visit`].
    pub fn visit_all_dirty(&self, ids: &[RecordId], visit: Visit, show: ShowWithId<'_>) {
        // Number of ids that are prefetched before the first is needed.
        const TOGETHER: usize = 32;
        let mut scratch = Scratch::default();
        for ids in ids.chunks(TOGETHER) {
            self.prefetch(ids.iter().copied());
            for id in ids {
                self.visit_dirty(*id, visit, &mut scratch, &mut |key, value| show(*id, key, value));
            }
        }
    }

    /// Prefetches what finding these ids needs. Without it each would wait for memory twice.
    pub fn prefetch(&self, ids: impl Iterator<Item = RecordId> + Clone) {
        ids.clone().for_each(|id| self.shard(id).prefetch_bucket(id));
        ids.for_each(|id| self.shard(id).prefetch_records(id));
    }

    /// Ends the writing of a record: `written` makes it clean, unless it was changed meanwhile;
    /// otherwise it stays dirty.
    pub fn end_write(&self, id: RecordId, key: &[u8], written: bool) {
        self.shard(id).end_write(id, key, written);
    }

    /// Appends keys of dirty records of priority 0 that the hand of shard `index` will meet soon,
    /// at most `most`.
    pub fn soon_evicted(&self, index: usize, most: usize, keys: &mut Vec<Vec<u8>>) {
        self.shards[index % self.shards.len()].soon_evicted(most, keys);
    }

    /// Drops all clean records, because the disk was changed behind the cache.
    pub fn forget_clean(&self) {
        self.shards.iter().for_each(Shard::forget_clean);
    }

    /// Returns the fewest bytes with which it can work.
    pub fn bytes_min(&self) -> u64 {
        (self.shards.len() * SHARD_BYTES_MIN) as u64
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Follows a new size in bytes, shard by shard. A shard whose dirty records would not fit keeps
    /// its size until they are written back, which [`RecordCache::soon_evicted`] asks for.
    pub fn resize(&self, bytes: u64) {
        let each = bytes / self.shards.len() as u64;
        self.shards.iter().for_each(|shard| shard.resize(each));
    }

    /// Returns the numbers of records and dirty records, and the bytes held.
    pub fn usage(&self) -> Usage {
        self.shards.iter().map(Shard::usage).fold(Usage::default(), |sum, one| Usage {
            records: sum.records + one.records,
            dirty: sum.dirty + one.dirty,
            bytes: sum.bytes + one.bytes,
            held: sum.held + one.held,
            filled: sum.filled + one.filled,
            passed: sum.passed + one.passed,
            worth: sum.worth + one.worth,
        })
    }

    fn shard(&self, id: RecordId) -> &Shard {
        &self.shards[id.0 as usize & (self.shards.len() - 1)]
    }
}

/// Content of a cache or shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Number of records.
    pub records: u64,
    /// Number of dirty records.
    pub dirty: u64,
    /// Bytes of memory that rings and tables may take, or do take if that is more.
    pub bytes: u64,
    /// Bytes of rings that records have reached, and of tables: the memory taken now.
    pub held: u64,
    /// Bytes of rings in use.
    pub filled: u64,
    /// Bytes that the hands have passed since the cache had this size.
    pub passed: u64,
    /// Hits on records that would have been evicted next, each multiplied by the number of such
    /// parts in a ring: the hits that the whole ring would have if it were as cold.
    pub worth: u64,
}
