//! One sync for all who wait for one.
//!
//! Who has written takes a number, and then the lock. Whoever has the lock syncs for all numbers
//! taken before he begins; those who waited for it meanwhile find theirs done, or one of them syncs
//! for all the others. So however many threads put large values, no more than two of their syncs
//! are wanted at any time.
//!
//! **Invariant**: the number that counts as synced was taken before the sync began that covers it,
//! and so after its owner's writes.
//!
//! **Concurrency.** The lock is held across the sync, and nothing else is taken under it.

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
    /// Makes durable what the caller has written, by `sync` or by somebody else's.
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
