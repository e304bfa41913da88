//! Syncs that no checkpoint waits for.
//!
//! A checkpoint syncs all that was written since the one before, up to several times what memory
//! holds, and while the disk writes it nothing is applied: a fifth of a load. So whenever
//! [`ahead_pages`](crate::policy::ahead_pages) more pages were written, a thread syncs them while
//! others are written, and the checkpoint's own sync finds little.
//!
//! **Invariant**: one thread at a time, and none once the [`SyncAhead`] was dropped. Nothing relies
//! on what it did: a sync that fails poisons the keyspace, as every sync does.

use std::sync::Arc;

use spinney_base::probe;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use spinney_base::shim::{Mutex, thread};
use spinney_extent::Store;
use spinney_io::Purpose;

/// See the module. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct SyncAhead {
    /// Pages that had been written when the last one began.
    begun: AtomicU64,
    is_busy: Arc<AtomicBool>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl SyncAhead {
    /// Syncs if enough pages were written: `pages_written` to the store by now, in all. `worth_it`
    /// is [`ahead_pages`](crate::policy::ahead_pages).
    pub(crate) fn follow(&self, store: &Arc<Store>, pages_written: u64, worth_it: u64) {
        let ahead = pages_written.saturating_sub(self.begun.load(Relaxed));
        if ahead < worth_it || self.is_busy.swap(true, SeqCst) {
            return;
        }
        self.begun.store(pages_written, Relaxed);
        let (store, is_busy) = (Arc::clone(store), Arc::clone(&self.is_busy));
        let started = thread::spawn("spinney-sync", move || {
            let _inside = probe::enter("sync ahead");
            // The next write reports an error.
            let _ = store.sync(Purpose::CHECKPOINT);
            is_busy.store(false, SeqCst);
        });
        if started.is_err() {
            self.is_busy.store(false, SeqCst);
        }
        self.end(started.ok());
    }

    /// Replaces the thread by the next one, once it has ended.
    fn end(&self, next: Option<thread::JoinHandle<()>>) {
        let before = std::mem::replace(&mut *self.thread.lock(), next);
        if let Some(before) = before {
            // It does not panic.
            let _ = before.join();
        }
    }
}

impl Drop for SyncAhead {
    fn drop(&mut self) {
        self.end(None);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {

    use spinney_base::{KeyspaceId, Lsn, Poison};
    use spinney_extent::StoreOptions;
    use spinney_io::sim::{Fault, SimDisk};

    use super::*;

    const WORTH_IT: u64 = 100;

    fn store(disk: &SimDisk, poison: &Arc<Poison>) -> Arc<Store> {
        let (keyspace, poison) = (KeyspaceId(1), Arc::clone(poison));
        let options = StoreOptions { keyspace, double_write: false, poison };
        Arc::new(Store::create(&*disk.at(""), "store", options, Lsn::ZERO).unwrap())
    }

    #[test]
    fn so_many_pages_are_one_sync() {
        let (disk, poison) = (SimDisk::new(1), Arc::new(Poison::new()));
        let store = store(&disk, &poison);
        let before = disk.syncs();
        let ahead = SyncAhead::default();
        ahead.follow(&store, WORTH_IT - 1, WORTH_IT);
        assert_eq!(disk.syncs(), before);
        for round in 1..4 {
            let pages = round * WORTH_IT;
            ahead.follow(&store, pages, WORTH_IT);
            // While it runs, and after it, these are no reason for another.
            ahead.follow(&store, pages + WORTH_IT - 1, WORTH_IT);
            ahead.end(None);
            ahead.follow(&store, pages + WORTH_IT - 1, WORTH_IT);
            ahead.end(None);
            assert_eq!(disk.syncs() - before, round);
        }
        ahead.follow(&store, 4 * WORTH_IT, WORTH_IT);
        drop(ahead);
        assert_eq!(disk.syncs() - before, 4, "who drops it waits for it");
        assert!(!poison.is_set());
    }

    #[test]
    fn one_that_fails_poisons() {
        let (disk, poison) = (SimDisk::new(1), Arc::new(Poison::new()));
        let store = store(&disk, &poison);
        disk.inject(Fault::SyncError { at: disk.syncs() + 1 });
        let ahead = SyncAhead::default();
        ahead.follow(&store, WORTH_IT, WORTH_IT);
        drop(ahead);
        assert!(poison.is_set());
    }
}
