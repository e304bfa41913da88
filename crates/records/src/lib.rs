//! The record cache: the newest version of the records that are worth keeping in memory, dirty and
//! clean (TreeLine, section 4.2).
//!
//! The cache is cut into shards by the hash of the key; each shard is a hash
//! table over a ring of records. A record is known outside by its [`RecordId`], 28 bits of its
//! key's hash, which stays the same wherever the ring moves the record; two keys may share one, so
//! whoever holds an id gets all dirty records that bear it and picks by key.
//!
//! **Life of a record.** A put makes it *dirty*: its page does not hold it yet. Write-back marks it
//! *being written*, writes its page, and then makes it *clean*, unless a put changed it meanwhile,
//! which takes the mark away. Only clean records leave, so an entry leaves the cache only after its
//! page write completed (rule P23). A removal is a record too, a tombstone; clean, it says that the
//! key is known to be absent.
//!
//! **Writing through it.** Who keeps changes elsewhere (a memtable) puts nothing dirty here: he admits what he
//! had to read, and says what changes. Between the two lies a race: a lookup reads the old value, the key is
//! changed, nothing is here that would become the new value, and the lookup admits the old one. So a lookup
//! takes a [`Ticket`] first, a count of changes of its shard and some bits of the id, and what it brings is kept only if the count is
//! the same still. The count grows, and what is here changes, in one step under the shard's lock, in which
//! what is admitted looks at the count. Either the change comes after what was admitted, and takes it; or before, and then it
//! was either made before the ticket was taken, so the lookup has seen it, or the count has grown.
//!
//! Read `memory` first (a record's bytes and the table), then `shard` (CLOCK, and who may do what beside
//! whom); `share` says how much memory such a cache should have.
//!
//! **Differs from the paper**: CLOCK runs over a ring in which the hand carries surviving records
//! forward, so records of any size need no allocator and cost 8 bytes and their share of the table
//! (about 7) beyond their own bytes; the paper's entries cost 96 and an index. And what was read enters a cache full of what is
//! asked for only where it was missed before (see `shard`); the paper's takes each.

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

/// 28 bits of a key's hash: finds the shard, the bucket, and all records that might be meant. The other
/// four of a word are for who lists records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId(pub u32);

impl RecordId {
    /// How many bits it has.
    pub const BITS: u32 = 28;

    /// The id of a key with this hash.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the id is of the low half; the high half chooses the stripe"
    )]
    pub fn of(hash: u64) -> Self {
        RecordId(hash as u32 & ((1 << Self::BITS) - 1))
    }
}

/// Is shown a key and its value (`None` for a tombstone), and says whether it takes the record.
pub type Show<'a> = &'a mut dyn FnMut(&[u8], Option<ValueRef<'_>>) -> bool;

/// Room for a key and a value while they are shown; used again and again.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The value's.
    pub value: Vec<u8>,
}

/// The same with the id that led to it.
pub type ShowWithId<'a> = &'a mut dyn FnMut(RecordId, &[u8], Option<ValueRef<'_>>) -> bool;

/// What the cache knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Its value was appended.
    Present,
    /// The pointer to its large value was appended.
    Large,
    /// It is known to be absent.
    Absent,
    /// Nothing is known.
    Unknown,
}

/// What a put made of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Became {
    /// It is dirty and was not, or is being written as it was before, so its page must be told.
    pub dirty: bool,
    /// For all that the cache knows, the key had no value.
    pub may_be_new: bool,
}

/// How often keys with an id like this one had changed when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u32);

/// Fewest bytes that are worth a cache beside others.
pub const CACHE_BYTES_MIN: u64 = 128 << 10;

/// One shard for each so many bytes that a cache may ever have, up to [`FEW_SHARDS`]; above that one for
/// each [`LARGE_SHARD_BYTES`], up to [`SHARDS_MAX`]. More are only made where a shard could not address
/// its part. Each is there from the start and takes half a kibibyte, so few do for a cache that may
/// stay small; too few, and writers wait for each other.
const SHARD_BYTES: u64 = 1 << 20;
const FEW_SHARDS: u64 = 16;
const LARGE_SHARD_BYTES: u64 = 4 << 20;
const SHARDS_MAX: u64 = 128;

/// How many shards a cache has that may have `most` bytes: a power of two.
fn shards_for(most: u64) -> u64 {
    let few = (most / SHARD_BYTES).clamp(1, FEW_SHARDS);
    let many = (most / LARGE_SHARD_BYTES).min(SHARDS_MAX);
    let needed = (most / (SHARD_BYTES_MAX as u64 / 2)).next_power_of_two();
    (1 << few.max(many).ilog2()).max(needed)
}

/// All shards. Thread-safe.
#[derive(Debug)]
pub struct RecordCache {
    shards: Box<[Shard]>,
}

impl RecordCache {
    /// An empty cache that may have about `bytes` bytes now, and up to about `most` later.
    pub fn new(bytes: u64, most: u64) -> Self {
        let shards = shards_for(most.max(bytes));
        let each = bytes / shards;
        RecordCache { shards: (0..shards).map(|_| Shard::new(each)).collect() }
    }

    /// The newest version of a key, if it is here.
    pub fn get(&self, id: RecordId, key: &[u8], out: &mut Vec<u8>) -> Cached {
        self.shard(id).get(id, key, out)
    }

    /// Reserves room for one put.
    pub fn prepare(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) -> Prepared {
        self.shard(id).prepare(key.len(), value.map_or(0, ValueRef::len))
    }

    /// Gives back the words that were reserved for a record of this id.
    pub fn cancel(&self, id: RecordId, words: usize) {
        self.shard(id).cancel(words);
    }

    /// Puts a dirty record into the words that were reserved for it. If it replaces the pointer to a large value, that is
    /// appended to `replaced`.
    pub fn put(
        &self,
        id: RecordId,
        key: &[u8],
        value: Option<ValueRef<'_>>,
        words: usize,
        replaced: &mut Vec<u8>,
    ) -> Became {
        self.shard(id).put(id, key, value, words, replaced)
    }

    /// Keeps what was read from a page, if there is room without I/O, nothing newer is here, and nothing has to leave
    /// for it that is more likely to be asked for.
    pub fn admit(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) {
        self.shard(id).admit(id, key, value, Cause::Missed);
    }

    /// Keeps a neighbour of what was read, until the hand comes by if nobody asks for it.
    pub fn admit_neighbour(&self, id: RecordId, key: &[u8], value: ValueRef<'_>) {
        self.shard(id).admit(id, key, Some(value), Cause::Neighbour);
    }

    /// What [`RecordCache::admit_unchanged`] goes by; taken before the record is looked for.
    pub fn ticket(&self, id: RecordId) -> Ticket {
        Ticket(self.shard(id).changes(id))
    }

    /// Keeps what was found elsewhere, if there is room and the key has not changed since the ticket was
    /// taken.
    pub fn admit_unchanged(&self, id: RecordId, key: &[u8], value: ValueRef<'_>, ticket: Ticket) {
        self.shard(id).admit_unchanged(id, key, value, ticket.0);
    }

    /// The key has another value now, which is kept elsewhere too (`None` when it was removed): what is
    /// here becomes that or goes. For whoever writes through the cache; his change is visible already, and
    /// nobody else changes the key until this returns.
    pub fn change(&self, id: RecordId, key: &[u8], value: Option<ValueRef<'_>>) {
        self.shard(id).change(id, key, value);
    }

    /// Shows all dirty records that bear `id`; see [`Visit`].
    pub fn visit_dirty(&self, id: RecordId, visit: Visit, scratch: &mut Scratch, show: Show<'_>) {
        self.shard(id).visit_dirty(id, visit, scratch, show);
    }

    /// Shows all dirty records that bear any of these ids, each with the id; see [`Visit`].
    pub fn visit_all_dirty(&self, ids: &[RecordId], visit: Visit, show: ShowWithId<'_>) {
        // So many are asked of the processor before the first is needed.
        const TOGETHER: usize = 32;
        let mut scratch = Scratch::default();
        for ids in ids.chunks(TOGETHER) {
            self.prefetch(ids.iter().copied());
            for id in ids {
                self.visit_dirty(*id, visit, &mut scratch, &mut |key, value| show(*id, key, value));
            }
        }
    }

    /// Asks the processor for what finding these needs: found one after the other, each would be waited
    /// for twice.
    pub fn prefetch(&self, ids: impl Iterator<Item = RecordId> + Clone) {
        ids.clone().for_each(|id| self.shard(id).prefetch_bucket(id));
        ids.for_each(|id| self.shard(id).prefetch_records(id));
    }

    /// Ends the writing of a record: `written` makes it clean unless it was changed meanwhile;
    /// otherwise it stays dirty.
    pub fn end_write(&self, id: RecordId, key: &[u8], written: bool) {
        self.shard(id).end_write(id, key, written);
    }

    /// Appends keys of dirty records that the hand of shard `index` will meet soon and find worth
    /// nothing more, at most `most`.
    pub fn soon_evicted(&self, index: usize, most: usize, keys: &mut Vec<Vec<u8>>) {
        self.shards[index % self.shards.len()].soon_evicted(most, keys);
    }

    /// Drops all clean records: what is on disk was changed behind the cache.
    pub fn forget_clean(&self) {
        self.shards.iter().for_each(Shard::forget_clean);
    }

    /// Fewest bytes that it can work with.
    pub fn bytes_min(&self) -> u64 {
        (self.shards.len() * SHARD_BYTES_MIN) as u64
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Follows a new size in bytes, shard by shard; a shard whose dirty records would not fit keeps
    /// its size until they are written back, which [`RecordCache::soon_evicted`] asks for.
    pub fn resize(&self, bytes: u64) {
        let each = bytes / self.shards.len() as u64;
        self.shards.iter().for_each(|shard| shard.resize(each));
    }

    /// Records, dirty records and bytes held.
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

/// What a cache or shard holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// How many records.
    pub records: u64,
    /// How many of them are dirty.
    pub dirty: u64,
    /// Bytes of memory that rings and tables may take, or take if that is more.
    pub bytes: u64,
    /// Bytes of rings that records have reached, and of tables: what is taken now.
    pub held: u64,
    /// Bytes of rings that hold anything.
    pub filled: u64,
    /// Bytes that the hands have passed since the cache had this size.
    pub passed: u64,
    /// Hits on records that would have been the next to leave, each times the parts of a ring of which these are one: what
    /// all that is filled would have brought if it were as cold.
    pub worth: u64,
}
