//! The applied watermark (rule P1): which records have certainly been applied.
//!
//! A writer announces a lower bound of the LSN it will get *before* it appends and withdraws it
//! *after* it applied. The applied watermark is one below the least of the next LSN and all
//! announced bounds.
//!
//! **Why it holds.** The scan reads the next LSN before the slots. If it does not see a writer's
//! announcement, the writer stored it after that read, and takes its LSN later still, so that LSN
//! is not below the next LSN that the scan read. All four accesses are sequentially consistent. A
//! bound may be lower than the LSN that follows; that only delays the watermark.
//!
//! **Concurrency**: any thread may announce; one announcement occupies one slot. With all slots
//! taken a writer yields until one is free, so announcements are short: no I/O inside, and no
//! announced writer needs what a waiting one holds (each has locked its stripes before).
//!
//! **Quiescing** ([`Announcements::quiesce`]) waits until each writer that is announced now has
//! left. A slot counts its turns, because a slot that is taken again looks as it did before. The
//! turn goes up before the slot is free: otherwise the next writer could pass for the one that left.

use spinney_base::Lsn;
use spinney_base::shim::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use spinney_base::shim::thread;

/// Number of slots: more than the threads that usually write at one moment. A scan reads them all.
#[cfg(not(feature = "shuttle"))]
const SLOTS: usize = 128;
#[cfg(feature = "shuttle")]
const SLOTS: usize = 3;

const FREE: u64 = 0;

/// A slot on a cache line of its own, so that writers do not slow each other down.
#[repr(align(64))]
#[derive(Debug)]
struct Slot {
    bound: AtomicU64,
    /// Changed by the writer in the slot alone.
    turn: AtomicU64,
}

/// The slots of one log.
#[derive(Debug)]
pub(crate) struct Announcements {
    slots: [Slot; SLOTS],
    /// The highest watermark ever computed. What was applied stays applied, so a stale bound must
    /// not take it back.
    applied: AtomicU64,
}

/// Keeps the applied watermark below the LSN that its thread appends, until it is dropped. Drop it
/// after applying.
#[derive(Debug)]
#[must_use = "the record must be applied before the announcement is dropped"]
pub struct Announcement<'a> {
    slot: &'a Slot,
}

impl Announcements {
    pub(crate) fn new() -> Self {
        let slots =
            std::array::from_fn(|_| Slot { bound: AtomicU64::new(FREE), turn: AtomicU64::new(0) });
        Announcements { slots, applied: AtomicU64::new(0) }
    }

    /// Announces a bound taken from `next`, the log's next LSN. `hint` spreads threads over the
    /// slots.
    pub(crate) fn announce(&self, next: &AtomicU64, hint: usize) -> Announcement<'_> {
        loop {
            for turn in 0..SLOTS {
                let slot = &self.slots[(hint + turn) % SLOTS];
                // A plain load first, because most slots that are passed over are taken by others.
                if slot.bound.load(SeqCst) == FREE {
                    let bound = next.load(SeqCst);
                    if slot.bound.compare_exchange(FREE, bound, SeqCst, SeqCst).is_ok() {
                        return Announcement { slot };
                    }
                }
            }
            thread::yield_now();
        }
    }

    /// Every record at or below the result has been applied.
    pub(crate) fn applied(&self, next: &AtomicU64) -> Lsn {
        let next = next.load(SeqCst);
        let least = self
            .slots
            .iter()
            .map(|slot| slot.bound.load(SeqCst))
            .filter(|&bound| bound != FREE)
            .fold(next, u64::min);
        let applied = least - 1;
        Lsn(self.applied.fetch_max(applied, SeqCst).max(applied))
    }

    /// Waits until every writer that is announced at this moment has left. Writers that announce
    /// themselves later are not waited for. The caller holds nothing that a writer needs.
    pub(crate) fn quiesce(&self) {
        for slot in &self.slots {
            let turn = slot.turn.load(SeqCst);
            while slot.bound.load(SeqCst) != FREE && slot.turn.load(SeqCst) == turn {
                thread::yield_now();
            }
        }
    }
}

impl Drop for Announcement<'_> {
    fn drop(&mut self) {
        self.slot.turn.store(self.slot.turn.load(Relaxed) + 1, SeqCst);
        self.slot.bound.store(FREE, SeqCst);
    }
}
