//! One sync for all threads that wait for one.
//!
//! A thread that has written takes a number, and then the lock. The holder of the lock syncs for
//! all numbers taken before its sync begins. Threads that waited for the lock find their numbers
//! done, or one of them syncs for all the others. So however many threads put large values, at most
//! two of their syncs are pending at any time.
//!
//! **Invariant**: a number that counts as synced was taken before the sync began that covers it,
//! and so after its owner's writes.
//!
//! **Concurrency.** The lock is held across the sync, and no other lock is taken under it.

use spinney_base::Result;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::SeqCst};

/// Shares syncs of one file.
#[derive(Debug, Default)]
pub struct SharedSync {
    /// The last number taken.
    taken: AtomicU64,
    /// Numbers up to this one are synced.
    synced: Mutex<u64>,
}

impl SharedSync {
    /// Makes durable what the caller has written, by `sync` or by that of another thread.
    ///
    /// # Errors
    /// Those of `sync`.
    pub fn join(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let mine = self.taken.fetch_add(1, SeqCst) + 1;
        let mut synced = self.synced.lock();
        if *synced >= mine {
            return Ok(());
        }
        let covered = self.taken.load(SeqCst);
        sync()?;
        *synced = covered;
        Ok(())
    }
}
