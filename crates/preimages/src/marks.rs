//! Marks: keys whose pages hold their pre-images.

use hashbrown::HashTable;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};

const SHARDS: usize = 64;

/// What a mark takes beside its key, about.
const MARK_BYTES: u64 = 56;

fn bytes_of(key: &[u8]) -> u64 {
    key.len() as u64 + MARK_BYTES
}

/// Says for which table the page of a key counts. The number tells marks of one key apart (S9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) table: u64,
    number: u64,
}

#[derive(Debug)]
struct Marked {
    hash: u64,
    key: Box<[u8]>,
    mark: Mark,
}

type Shard = Mutex<HashTable<Marked>>;

/// The marks of a keyspace.
#[derive(Debug)]
pub(crate) struct Marks {
    shards: Box<[Shard]>,
    count: AtomicU64,
    bytes: AtomicU64,
    /// The mark number drawn last.
    drawn: AtomicU64,
}

impl Default for Marks {
    fn default() -> Self {
        Marks {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
        }
    }
}

impl Marks {
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[hash as usize % SHARDS]
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
        shard.find(hash, |one| *one.key == *key).map(|one| one.mark)
    }

    /// Marks a key. Returns the mark that it had, which counts no more.
    pub(crate) fn set(&self, key: &[u8], hash: u64, table: u64) -> Option<Mark> {
        let number = self.drawn.fetch_add(1, SeqCst);
        let mark = Mark { table, number };
        let mut shard = self.shard(hash).lock();
        if let Some(one) = shard.find_mut(hash, |one| *one.key == *key) {
            return Some(std::mem::replace(&mut one.mark, mark));
        }
        // Before a reader can meet what the mark stands for.
        self.count.fetch_add(1, SeqCst);
        self.bytes.fetch_add(bytes_of(key), SeqCst);
        shard.insert_unique(hash, Marked { hash, key: key.into(), mark }, |one| one.hash);
        None
    }

    /// Takes a mark away, if the key still has this one. Returns whether it had.
    pub(crate) fn remove(&self, key: &[u8], hash: u64, mark: Mark) -> bool {
        let mut shard = self.shard(hash).lock();
        let found = shard.find_entry(hash, |one| *one.key == *key && one.mark == mark);
        let Ok(entry) = found else { return false };
        entry.remove();
        self.bytes.fetch_sub(bytes_of(key), SeqCst);
        self.count.fetch_sub(1, SeqCst);
        true
    }

    /// Some of the marked keys.
    pub(crate) fn some(&self, most: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            keys.extend(shard.iter().take(most - keys.len()).map(|one| one.key.to_vec()));
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
            self.count.fetch_sub(shard.len() as u64, SeqCst);
            let bytes = shard.iter().map(|one| bytes_of(&one.key)).sum();
            self.bytes.fetch_sub(bytes, SeqCst);
            *shard = HashTable::new();
        }
    }
}
