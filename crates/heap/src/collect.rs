//! Collection: older versions, removed records and entries that nobody sees any more.
//!
//! ```text
//!   commit at c     -> (record, c)           chain: blocks that end at or below the horizon go
//!   removed record  -> the entry leaves the index, its pstamp goes to the gap
//!   left at s       -> (entry, s)            used again once the horizon is above s
//! ```
//!
//! Each session has a queue of what it ended, in the order of the stamps, and works off a part of it
//! at each commit: more than it adds, so the queue shrinks once the horizon moves. What a session
//! leaves behind, another takes.
//!
//! **Invariants**
//! 1. The horizon is read before the chain.
//! 2. An entry leaves the index while it is frozen. A reader that has set its bit, and then finds it
//!    frozen or gone, looks into the index again.
//! 3. The version of a range stays when a key leaves. A later scan began after the removal, and an
//!    insert of the key is a new link.
//!
//! With more than 63 transactions at once, a removed record that one of the others has read stays
//! until its key is put again: the shared reader bit does not tell when they have ended.

use spinney_ssn::{Stamp, Version};

use crate::heap::Heap;
use crate::session::Local;

/// Versions that a commit looks at, for each one that it ended.
const PER_WRITE: usize = 2;

/// Ended versions that a session keeps before it looks at the horizon: a look costs a cache line for
/// each running transaction.
const ENDED_MIN: usize = 32;

/// Free entries of a table that a session keeps for itself.
const FREE_MAX: usize = 256;

/// A version that ended, or an entry that may never have got a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) table: u32,
    pub(crate) record: u32,
    pub(crate) stamp: Stamp,
    is_retired: bool,
}

/// An entry that left the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    table: u32,
    record: u32,
    stamp: Stamp,
}

impl Ended {
    pub(crate) fn new(table: u32, record: u32, stamp: Stamp) -> Ended {
        Ended { table, record, stamp, is_retired: false }
    }
}

impl From<Retired> for Ended {
    fn from(retired: Retired) -> Ended {
        let Retired { table, record, stamp } = retired;
        Ended { table, record, stamp, is_retired: true }
    }
}

impl Local {
    /// Collects after a commit of this many writes.
    pub(crate) fn collect_some(&mut self, heap: &Heap, writes: usize) {
        if self.ended.len() >= ENDED_MIN {
            self.collect(heap, writes * PER_WRITE);
        }
    }

    /// Collects the first ended versions, `most` at most.
    pub(crate) fn collect(&mut self, heap: &Heap, most: usize) {
        let contexts = heap.certifier.contexts();
        self.horizon = contexts.horizon(heap.certifier.clock());
        if let Some(mut left) = heap.left.try_lock() {
            for ended in left.drain(..) {
                let Ended { table, record, stamp, is_retired } = ended;
                if is_retired {
                    self.retired.push_back(Retired { table, record, stamp });
                } else {
                    // Not in order: it waits a little longer.
                    self.ended.push_back(ended);
                }
            }
        }
        for _ in 0..most.min(self.ended.len()) {
            let Some(first) = self.ended.pop_front_if(|ended| ended.stamp <= self.horizon) else {
                break;
            };
            self.collect_one(heap, first);
        }
        while let Some(retired) = self.retired.pop_front_if(|retired| retired.stamp < self.horizon)
        {
            let free = &mut self.free[retired.table as usize];
            free.push(retired.record);
            if free.len() > FREE_MAX {
                let heads = &heap.tables[retired.table as usize].store().heads;
                heads.give(free.drain(FREE_MAX / 2..));
            }
        }
    }

    fn collect_one(&mut self, heap: &Heap, ended: Ended) {
        let Ended { table: number, record, .. } = ended;
        let table = &heap.tables[number as usize];
        let head = table.store().head(record);
        let (horizon, pool) = (self.horizon, &mut self.pool);
        if head.older() != 0 {
            head.with_older(|older| (heap.undo.trim(pool, older, horizon), ()));
        }
        let Some(version) = head.version() else { return };
        if !version.is_absent() || version.stamp() > horizon {
            return;
        }
        let Some(pstamp) = head.freeze(version) else {
            return self.ask_later(heap, ended, version);
        };
        let mut key = Vec::new();
        table.store().key(head, &mut key);
        table.gaps.find(&key).follow(pstamp.max(version.stamp()));
        let was_there = table.index.remove_if(&key, u64::from(record));
        debug_assert!(was_there, "an entry that is not gone is in the index");
        table.gaps.unlinked(&key);
        head.bury();
        let stamp = heap.certifier.clock().now();
        self.retired.push_back(Retired { table: number, record, stamp });
    }

    /// Asks again for an entry without a value that a transaction still reads or owns.
    fn ask_later(&mut self, heap: &Heap, ended: Ended, version: Version) {
        let head = heap.tables[ended.table as usize].store().head(ended.record);
        if head.is_gone() || head.is_read_by_many() || head.version() != Some(version) {
            return;
        }
        let stamp = heap.certifier.clock().now();
        self.ended.push_back(Ended { stamp, ..ended });
    }
}
