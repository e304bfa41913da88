//! Memory: all records are in it, so a write for which there is none is refused.
//!
//! `prepare` reserves bytes, and answers `Full` with the number of bytes that are needed where they are not there after
//! leaves were joined that removals have left sparse. `apply` takes a block where it must, whether or not it was
//! reserved, so it cannot fail; it takes at most one block for a record. Removals are never refused, and
//! while the log is replayed nothing is: what it says was in memory before.

use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, Result};

use crate::engine::Iot;
use crate::leaf::BLOCK_BYTES;

/// Bytes that a record takes beside its own: its head, its place, its cell, and the rest of a word.
const RECORD_OVERHEAD: u64 = 32;
/// What leaves are full of on average is half of them or more, so a record takes twice its bytes at most.
const UNUSED: u64 = 2;
/// Bytes that a keyspace may have whatever its target is: some leaves, where more keyspaces are in use than the budget has
/// shares for.
const LEAST_BYTES: u64 = 4 * BLOCK_BYTES as u64;
/// One part in this many of the memory is left to what must not wait: splits of writes that were prepared.
const RESERVE_PART: u64 = 64;
/// Leaves are joined for want of memory once more records were removed than one for this number of leaves. With more, writers look at
/// all leaves more often; with less, memory stays unused.
const REMOVED_PART: u64 = 64;
/// Least bytes of disk that pre-images may take, however little the keyspace has.
const SNAPSHOT_BYTES_MIN: u64 = 64 << 20;

/// What a keyspace knows of its memory. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    reserved: AtomicU64,
    /// Bytes of what is no leaf, when the background looked last.
    others: AtomicU64,
    /// Records removed so far, and when leaves were joined last.
    removed: AtomicU64,
    joined_at: Mutex<u64>,
}

impl Memory {
    pub(crate) fn count_removed(&self) {
        self.removed.fetch_add(1, Relaxed);
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Relaxed);
    }
}

impl Iot {
    /// Bytes of memory that the keyspace takes.
    pub(crate) fn used(&self) -> u64 {
        self.tree.leaf_bytes() + self.memory.others.load(Relaxed)
    }

    /// Reserves memory for a record with this number of bytes. Returns the bytes that were reserved.
    ///
    /// # Errors
    /// `Full`, naming the bytes that are needed.
    pub(crate) fn reserve(&self, record: u64) -> Result<u64> {
        let bytes = UNUSED * (record + RECORD_OVERHEAD);
        let reserved = self.memory.reserved.fetch_add(bytes, Relaxed) + bytes;
        if self.has_room(reserved) || self.is_replaying() {
            return Ok(bytes);
        }
        if self.join_sparse() && self.has_room(reserved) {
            return Ok(bytes);
        }
        self.memory.release(bytes);
        // So that whoever divides memory knows at once.
        self.follow_memory();
        self.context.memory.set_full(true);
        self.context.memory.set_lacked(self.needed(reserved));
        let (needed, target) = (self.needed(reserved), self.context.memory.target());
        let path = self.context.path();
        let text = format!("{needed} bytes of memory are needed, and there are {target}");
        Err(Error::lacking_memory(format!("{}: {text}", path.display())))
    }

    /// Returns the bytes of memory with which the reserved ones are there.
    fn needed(&self, reserved: u64) -> u64 {
        let bytes = self.used() + reserved + BLOCK_BYTES as u64;
        bytes + bytes / (RESERVE_PART - 1)
    }

    fn has_room(&self, reserved: u64) -> bool {
        self.needed(reserved) <= self.context.memory.target().max(LEAST_BYTES)
    }

    /// Joins leaves that are not full, if enough records were removed since that was done last. Returns whether any were.
    fn join_sparse(&self) -> bool {
        let mut joined_at = self.memory.joined_at.lock();
        let removed = self.memory.removed.load(Relaxed);
        // All leaves are looked at, so that must pay.
        if removed - *joined_at <= self.tree.leaves() / REMOVED_PART {
            return false;
        }
        *joined_at = removed;
        self.tree.join_some(&[], usize::MAX).joined > 0
    }

    /// Counts what is used, and tells the account.
    pub(crate) fn follow_memory(&self) {
        let kept = self.pre_images.memory_bytes() + self.version_bytes();
        let others = self.tree.index_bytes() + self.values.bytes() + kept;
        self.memory.others.store(others, Relaxed);
        let (account, used) = (&self.context.memory, self.used());
        let target = account.target();
        let of_images = self.named_pages() * spinney_base::limits::PAGE_BYTES as u64;
        self.pre_images.follow(target, of_images.max(SNAPSHOT_BYTES_MIN));
        account.set_used(used);
        account.set_full(used >= target / 8 * 7);
    }

    /// Bytes of memory that others cannot have. What an opening has still to read counts.
    pub(crate) fn floor(&self) -> u64 {
        self.tree.bytes() + self.values.bytes() + self.unread() * BLOCK_BYTES as u64
    }
}
