//! Marks for which no note was free, each with its key.
//!
//! There may be many, so a mark is small: a shard keeps its marks one behind the other, and a table of
//! where each begins.
//!
//! ```text
//!  entries   | number 4 | table 5 | key length 2 | key ... | number 4 | table 5 | ...
//!  places    { 0, 19, ... }       found by the hashes of the keys
//! ```
//!
//! **Invariants**
//! 1. A number is drawn once in a shard (until 2^32 later ones), so marks of one key differ (S9).
//! 2. Bytes of marks that were taken away are at most an eighth of a shard's, and some.

use hashbrown::HashTable;
use spinney_base::KeyspaceId;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};
use spinney_sync::hash_key;

use crate::marks::{Mark, OUTSIDE};

const SHARDS: usize = 64;

/// Bits of a hash that choose the shard. A shard's table takes the others first.
const SHARD_BITS: u32 = SHARDS.ilog2();

const NUMBER: usize = 4;
const TABLE: usize = 5;
const LENGTH: usize = 2;

/// Bytes of an entry before its key.
const HEAD: usize = NUMBER + TABLE + LENGTH;

/// What a mark takes beside its key, about: its head, its place in a table that is two thirds full, and a
/// share of what shards have free.
const MARK_BYTES: u64 = 22;

/// A shard may have one part in this many free, or taken by marks that are gone. With more parts it is
/// moved together more often, with fewer it wastes memory.
const FREE_PART: usize = 8;

/// Bytes that a shard may have free however few its marks are.
const FREE_BYTES_MIN: usize = 256;

fn write(mark: Mark, head: &mut [u8]) {
    head[..NUMBER].copy_from_slice(&mark.number.to_le_bytes());
    head[NUMBER..NUMBER + TABLE].copy_from_slice(&mark.table.to_le_bytes()[..TABLE]);
}

fn bytes_of(key: &[u8]) -> u64 {
    key.len() as u64 + MARK_BYTES
}

/// Entries of marks, and how many of their bytes nothing stands for.
#[derive(Debug, Default)]
struct Entries {
    bytes: Vec<u8>,
    free: usize,
}

impl Entries {
    fn key(&self, place: u32) -> &[u8] {
        let at = place as usize + HEAD;
        let length = [self.bytes[at - LENGTH], self.bytes[at - LENGTH + 1]];
        &self.bytes[at..at + usize::from(u16::from_le_bytes(length))]
    }

    fn mark(&self, place: u32) -> Mark {
        let head = &self.bytes[place as usize..place as usize + HEAD];
        let (mut number, mut table) = ([0; 4], [0; 8]);
        number.copy_from_slice(&head[..NUMBER]);
        table[..TABLE].copy_from_slice(&head[NUMBER..NUMBER + TABLE]);
        let (table, number) = (u64::from_le_bytes(table), u32::from_le_bytes(number));
        Mark { table, number, note: OUTSIDE }
    }

    fn push(&mut self, mark: Mark, key: &[u8]) -> u32 {
        let start = self.bytes.len();
        let more = HEAD + key.len();
        if self.bytes.capacity() - start < more {
            self.bytes.reserve_exact(more.max(start / FREE_PART).max(FREE_BYTES_MIN));
        }
        self.bytes.resize(start + HEAD, 0);
        write(mark, &mut self.bytes[start..]);
        let length = u16::try_from(key.len()).expect("keys are short");
        self.bytes[start + HEAD - LENGTH..].copy_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(key);
        u32::try_from(start).expect("marks take a part of the memory")
    }
}

#[derive(Debug, Default)]
struct Shard {
    places: HashTable<u32>,
    entries: Entries,
    /// The mark number drawn last.
    drawn: u32,
}

fn table_hash(hash: u64) -> u64 {
    hash.rotate_right(SHARD_BITS)
}

impl Shard {
    fn find(&self, key: &[u8], hash: u64) -> Option<u32> {
        self.places.find(table_hash(hash), |place| self.entries.key(*place) == key).copied()
    }

    /// Moves the entries together if too much is free between them.
    fn tidy(&mut self, hash_of: impl Fn(&[u8]) -> u64) {
        if self.entries.free <= (self.entries.bytes.len() / FREE_PART).max(FREE_BYTES_MIN) {
            return;
        }
        let mut moved = Entries::default();
        moved.bytes.reserve_exact(self.entries.bytes.len() - self.entries.free);
        for place in self.places.iter_mut() {
            *place = moved.push(self.entries.mark(*place), self.entries.key(*place));
        }
        self.entries = moved;
        if self.places.len() < self.places.capacity() / 4 {
            let entries = &self.entries;
            self.places.shrink_to_fit(|place| table_hash(hash_of(entries.key(*place))));
        }
    }
}

/// Marks of a keyspace that have their keys beside them.
#[derive(Debug)]
pub(crate) struct Outside {
    keyspace: KeyspaceId,
    shards: Box<[Mutex<Shard>]>,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Outside {
    pub(crate) fn new(keyspace: KeyspaceId) -> Outside {
        Outside {
            keyspace,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[hash as usize % SHARDS]
    }

    fn hash_of(&self, key: &[u8]) -> u64 {
        hash_key(self.keyspace, key)
    }

    /// Number of marks.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Option<Mark> {
        if self.len() == 0 {
            return None;
        }
        let shard = self.shard(hash).lock();
        shard.find(key, hash).map(|place| shard.entries.mark(place))
    }

    /// Marks a key. Returns the mark that it had, which counts no more.
    pub(crate) fn set(&self, key: &[u8], hash: u64, table: u64) -> Option<Mark> {
        let mut guard = self.shard(hash).lock();
        let shard = &mut *guard;
        shard.drawn = shard.drawn.wrapping_add(1);
        let mark = Mark { table, number: shard.drawn, note: OUTSIDE };
        if let Some(place) = shard.find(key, hash) {
            let before = shard.entries.mark(place);
            write(mark, &mut shard.entries.bytes[place as usize..]);
            return Some(before);
        }
        // Before a reader can meet what the mark stands for.
        self.count.fetch_add(1, SeqCst);
        self.bytes.fetch_add(bytes_of(key), SeqCst);
        let place = shard.entries.push(mark, key);
        let entries = &shard.entries;
        shard.places.insert_unique(table_hash(hash), place, |place| {
            table_hash(self.hash_of(entries.key(*place)))
        });
        None
    }

    /// Takes a mark away, if the key still has this one. Returns whether it had.
    pub(crate) fn remove(&self, key: &[u8], hash: u64, mark: Mark) -> bool {
        let mut guard = self.shard(hash).lock();
        let shard = &mut *guard;
        let entries = &shard.entries;
        let is_it = |place: &u32| entries.key(*place) == key && entries.mark(*place) == mark;
        let Ok(entry) = shard.places.find_entry(table_hash(hash), is_it) else { return false };
        entry.remove();
        shard.entries.free += HEAD + key.len();
        shard.tidy(|key| self.hash_of(key));
        self.bytes.fetch_sub(bytes_of(key), SeqCst);
        self.count.fetch_sub(1, SeqCst);
        true
    }

    /// Some of the marked keys.
    pub(crate) fn some(&self, most: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let places = shard.places.iter().take(most - keys.len());
            keys.extend(places.map(|place| shard.entries.key(*place).to_vec()));
            if keys.len() == most {
                break;
            }
        }
        keys
    }

    /// Takes all marks away.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.count.fetch_sub(shard.places.len() as u64, SeqCst);
            let bytes = shard.places.iter().map(|place| bytes_of(shard.entries.key(*place))).sum();
            self.bytes.fetch_sub(bytes, SeqCst);
            let drawn = shard.drawn;
            *shard = Shard { drawn, ..Shard::default() };
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn taken(marks: &Outside) -> usize {
        let of_shard = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.entries.bytes.capacity() + shard.places.allocation_size()
        };
        marks.shards.iter().map(of_shard).sum()
    }

    /// What marks take beside their keys decides how many records of a page wait for one write-back of
    /// it.
    #[test]
    fn marks_are_small_and_are_what_they_were_set_to() {
        let marks = Outside::new(KeyspaceId(3));
        let mut random = spinney_base::runtime::SplitMix(5);
        let mut model: HashMap<[u8; 8], Mark> = HashMap::new();
        for turn in 0..200_000_u64 {
            // Up to 50,000 marks that come and go, and then a few that stay.
            let number = random.next_u64() % if turn < 150_000 { 60_000 } else { 100_000 };
            let key = number.to_be_bytes();
            let hash = marks.hash_of(&key);
            assert_eq!(marks.get(&key, hash), model.get(&key).copied());
            let goes = if turn < 150_000 { number.is_multiple_of(6) } else { number > 300 };
            match model.get(&key).copied() {
                Some(mark) if goes => {
                    assert!(marks.remove(&key, hash, mark) && !marks.remove(&key, hash, mark));
                    model.remove(&key);
                }
                before => {
                    assert_eq!(marks.set(&key, hash, turn << 8), before);
                    let mark = marks.get(&key, hash).expect("it was set");
                    assert!(mark.table == turn << 8 && Some(mark) != before);
                    model.insert(key, mark);
                }
            }
            if turn % 10_000 == 9_999 && model.len() > 10_000 {
                let (taken, counted) = (taken(&marks) as u64, marks.bytes());
                let most = 34 * marks.len();
                assert!(taken <= counted * 5 / 4 && taken <= most, "{taken} for {counted}, {most}");
            }
        }
        assert_eq!(marks.len(), model.len() as u64);
        let some = marks.some(100);
        assert!(some.len() == 100 && some.iter().all(|key| model.contains_key(&key[..])));
        marks.clear();
        assert_eq!((marks.len(), marks.bytes(), taken(&marks)), (0, 0, 0));
    }
}
