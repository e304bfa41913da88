//! Buffers in which records gather until a flush. There are a few, so that threads seldom meet at
//! one lock.
//!
//! Invariants: (1) a record's LSN is taken and its bytes are copied under one buffer lock, in one
//! step that cannot fail (rule P7). (2) A steal holds all buffer locks, so it sees every record
//! whose LSN is below the next LSN, and none is half copied. (3) `pending` is the bytes of all
//! buffers together; it changes under a buffer lock. (4) Every record above `unkept` is in the
//! [tail](crate::tail) or was written; both areas of a buffer belong to one `Shard` each, which a
//! steal exchanges.
//!
//! **Concurrency**: appends lock one buffer; a steal locks all, in order. Nothing else is locked
//! inside.

use std::ops::Range;
use std::sync::OnceLock;

use spinney_base::Lsn;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use spinney_base::shim::{Mutex, MutexGuard};

use crate::block::RecordKind;
use crate::options::LogOptions;
use crate::room::blocks_for;
use crate::tail::{Shape, Tail};

/// Number of buffers of a log. It is large enough that a dozen writers rarely collide, and small
/// enough that a steal, which takes all their locks, is quick. A commit that waits only for the
/// kernel often has one to itself.
#[cfg(not(feature = "shuttle"))]
const SHARDS: usize = 4;
#[cfg(feature = "shuttle")]
const SHARDS: usize = 2;

/// Records in the order of their LSNs, encoded.
#[derive(Debug, Default)]
struct Shard {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Its area of the tail, and the used bytes of that.
    area: usize,
    kept: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    lsn: u64,
    /// Where the record ends in `bytes`; it begins where the one before ends.
    end: usize,
}

impl Shard {
    fn of_area(area: usize) -> Shard {
        Shard { area, ..Shard::default() }
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }
}

/// The buffers of one log and the LSN counter that their locks guard.
#[derive(Debug)]
pub(crate) struct Buffers {
    shards: [Mutex<Shard>; SHARDS],
    next: AtomicU64,
    pending: AtomicU64,
    tail: OnceLock<Tail>,
    /// How the tail is divided.
    shape: Shape,
    /// Whether a thread made the tail or tried to.
    tail_is_made: AtomicBool,
    /// LSN of the last record that the tail does not have.
    unkept: AtomicU64,
    /// Under shuttle all threads look like one to thread-locals, so calls take turns.
    #[cfg(feature = "shuttle")]
    turn: std::sync::atomic::AtomicUsize,
}

/// Result of a steal: all records from `first` to `last`, in the buffers in which they gathered.
#[derive(Debug)]
pub(crate) struct Stolen {
    shards: [Shard; SHARDS],
    /// For each LSN from `first`, where its bytes are.
    order: Vec<(u8, Range<usize>)>,
    pub(crate) first: Lsn,
    pub(crate) last: Lsn,
    pub(crate) bytes: u64,
}

impl Buffers {
    /// Makes empty buffers whose first record gets LSN `next`.
    pub(crate) fn new(next: Lsn, options: &LogOptions) -> Self {
        const AREAS: u32 = 2 * SHARDS as u32;
        Buffers {
            shards: std::array::from_fn(|index| Mutex::new(Shard::of_area(2 * index))),
            next: AtomicU64::new(next.0),
            pending: AtomicU64::new(0),
            tail: OnceLock::new(),
            shape: Shape { areas: AREAS, pages: options.tail_pages(AREAS) },
            tail_is_made: AtomicBool::new(false),
            unkept: AtomicU64::new(next.0 - 1),
            #[cfg(feature = "shuttle")]
            turn: std::sync::atomic::AtomicUsize::new(0),
        }
    }

    /// Returns the counter that assigns LSNs.
    pub(crate) fn next(&self) -> &AtomicU64 {
        &self.next
    }

    /// Returns the LSN of the latest record.
    pub(crate) fn last(&self) -> Lsn {
        Lsn(self.next.load(SeqCst) - 1)
    }

    /// Returns the bytes that wait for a flush.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(SeqCst)
    }

    /// Returns a number that differs between threads, to spread them over buffers and slots.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn hint(&self) -> usize {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Relaxed);
        }
        NUMBER.with(|number| *number)
    }

    #[cfg(feature = "shuttle")]
    pub(crate) fn hint(&self) -> usize {
        self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// Assigns the next LSN and copies the record. Returns the LSN, and the number of blocks by
    /// which the next run grows.
    pub(crate) fn append(&self, kind: RecordKind, payload: &[u8]) -> (Lsn, u64) {
        let bytes = (kind.header_bytes() + payload.len()) as u64;
        let mut shard = self.shards[self.hint() % SHARDS].lock();
        let begin = shard.bytes.len();
        kind.encode(payload, &mut shard.bytes);
        let end = shard.bytes.len();
        let lsn = self.next.fetch_add(1, SeqCst);
        shard.entries.push(Entry { lsn, end });
        if let Some(tail) = self.tail.get() {
            let Shard { bytes, area, kept, .. } = &mut *shard;
            if !tail.keep(*area, kept, Lsn(lsn), &bytes[begin..end]) {
                self.unkept.fetch_max(lsn, SeqCst);
            }
        }
        let before = self.pending.fetch_add(bytes, SeqCst);
        (Lsn(lsn), blocks_for(before + bytes) - blocks_for(before))
    }

    /// Returns how the tail is to be divided to the first caller, which makes it; later ones get
    /// `None`.
    pub(crate) fn tail_to_make(&self) -> Option<Shape> {
        (!self.tail_is_made.swap(true, SeqCst)).then_some(self.shape)
    }

    /// Returns whether records are kept in the tail.
    #[cfg(test)]
    pub(crate) fn has_tail(&self) -> bool {
        self.tail.get().is_some()
    }

    /// Returns the tail, once there is one.
    pub(crate) fn tail(&self) -> Option<&Tail> {
        self.tail.get()
    }

    /// Returns whether records are kept in persistent memory.
    pub(crate) fn is_persistent(&self) -> bool {
        self.tail.get().is_some_and(Tail::is_persistent)
    }

    /// Keeps records in the tail as well, from now on.
    pub(crate) fn keep_in(&self, tail: Tail) {
        let _guards = self.lock_all();
        self.unkept.fetch_max(self.last().0, SeqCst);
        // There is none before: one thread makes it.
        let _ = self.tail.set(tail);
    }

    /// Returns whether the kernel has every record that was appended before this call, if it has
    /// those up to `written` from runs. With a tail in persistent memory: whether all these are
    /// durable, if those up to `written` are durable in runs.
    pub(crate) fn holds(&self, written: Lsn) -> bool {
        if self.tail.get().is_none() {
            return false;
        }
        // A thread with a lower LSN holds the lock of its buffer until its record is in the tail.
        self.shards.iter().for_each(|shard| drop(shard.lock()));
        self.unkept.load(SeqCst) <= written.0
    }

    /// In order of the array, as every steal does; appends hold only one.
    fn lock_all(&self) -> [MutexGuard<'_, Shard>; SHARDS] {
        std::array::from_fn(|index| self.shards[index].lock())
    }

    /// Returns the bytes of memory that the buffers hold.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tail = self.tail.get().map_or(0, Tail::memory_bytes);
        self.shards.iter().map(|shard| shard.lock().memory_bytes()).sum::<usize>() + tail
    }

    /// Takes everything since the last steal into `stolen`, whose records must have been written, and
    /// synced if their frames were promised to be durable: the areas of these are used again.
    pub(crate) fn steal(&self, stolen: &mut Stolen) {
        stolen.clear();
        {
            let mut guards = self.lock_all();
            stolen.last = self.last();
            stolen.bytes = self.pending.swap(0, SeqCst);
            for (guard, spare) in guards.iter_mut().zip(&mut stolen.shards) {
                std::mem::swap(&mut **guard, spare);
            }
        }
        stolen.sort();
    }
}

impl Stolen {
    /// Makes one without records, before the log's first record `next`.
    pub(crate) fn none(next: Lsn) -> Self {
        Stolen {
            shards: std::array::from_fn(|index| Shard::of_area(2 * index + 1)),
            order: Vec::new(),
            first: next,
            last: Lsn(next.0 - 1),
            bytes: 0,
        }
    }

    /// Returns whether no record was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.last < self.first
    }

    /// Returns the records' bytes, in LSN order.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.order
            .iter()
            .map(|(shard, range)| &self.shards[usize::from(*shard)].bytes[range.clone()])
    }

    /// Drops the records, which are written, and prepares for the LSNs after them.
    fn clear(&mut self) {
        self.first = self.last.next();
        self.release(usize::MAX);
    }

    /// Drops the records, which are written. Keeps at most `spare` bytes of their memory, and as
    /// much again of what orders them.
    pub(crate) fn release(&mut self, spare: usize) {
        self.order.clear();
        self.order.shrink_to(spare / size_of::<(u8, Range<usize>)>() / 2);
        let mut left = spare;
        for shard in &mut self.shards {
            shard.kept = 0;
            shard.bytes.clear();
            shard.bytes.shrink_to(left);
            shard.entries.clear();
            shard.entries.shrink_to(left / size_of::<Entry>() / 2);
            left -= shard.bytes.capacity().min(left);
        }
    }

    /// Returns the bytes of memory that it holds.
    pub(crate) fn memory_bytes(&self) -> usize {
        let order = self.order.capacity() * size_of::<(u8, Range<usize>)>();
        self.shards.iter().map(Shard::memory_bytes).sum::<usize>() + order
    }

    /// Finds the position of every LSN. LSNs are dense, so this is a distribution without
    /// comparisons.
    fn sort(&mut self) {
        let count = usize::try_from(self.last.0 + 1 - self.first.0)
            .expect("records in memory are countable");
        self.order.resize(count, (0, 0..0));
        let mut found = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            let mut begin = 0;
            for entry in &shard.entries {
                let place =
                    usize::try_from(entry.lsn - self.first.0).expect("an LSN of this steal");
                let number = u8::try_from(number).expect("few shards");
                self.order[place] = (number, begin..entry.end);
                begin = entry.end;
                found += 1;
            }
        }
        assert_eq!(found, count, "every LSN since the last steal is in exactly one buffer");
    }
}
