//! The snapshots of a keyspace: their views, and the memory that only they keep.

use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use spinney_base::Error;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_engine::Pin;

use crate::runs::Kept;
use crate::version::Tree;
use crate::view::View;

/// The state of one snapshot, shared by its handle and the list of the keyspace.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// Number of the newest memtable in it.
    pub(crate) memtable: u64,
    /// None once it has ended.
    pub(crate) view: ArcSwapOption<View>,
    /// Why it ended; set before the view goes.
    pub(crate) ended: OnceLock<Error>,
    /// Of large values.
    pub(crate) _pin: Pin,
}

/// The snapshots of one keyspace. Thread-safe.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// Oldest first.
    list: Mutex<Vec<Weak<Pinned>>>,
    /// Bytes that only snapshots keep.
    bytes: AtomicU64,
}

impl Snapshots {
    /// Adds a snapshot that was just taken.
    pub(crate) fn add(&self, pinned: &Arc<Pinned>) {
        self.list.lock().push(Arc::downgrade(pinned));
    }

    /// All snapshots, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Pinned>> {
        let mut list = self.list.lock();
        list.retain(|one| one.strong_count() > 0);
        list.iter().filter_map(Weak::upgrade).collect()
    }

    /// Bytes that only snapshots keep.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Gives snapshots of the moment in which `memtable` was the newest sealed one a version of the
    /// tree that has all memtables up to it and no others.
    pub(crate) fn upgrade(&self, memtable: u64, tree: &Tree, now: &View) {
        if self.list.lock().is_empty() {
            return;
        }
        for one in self.all().iter().filter(|one| one.memtable == memtable) {
            if one.view.load().is_some() {
                let view = View::new(Vec::new(), tree.clone());
                one.view.store(Some(Arc::new(view)));
            }
        }
        self.count(now);
    }

    /// Counts the bytes that only snapshots keep, beside the view of now. What several of them share
    /// counts once.
    pub(crate) fn count(&self, now: &View) {
        let views = self.all().into_iter().filter_map(|one| one.view.load_full());
        let others: Vec<_> = views.filter(|view| !view.tree.is(&now.tree)).collect();
        let mut kept = Kept::default();
        if !others.is_empty() {
            now.add_kept(&mut kept);
        }
        let of_now = kept.bytes();
        others.iter().for_each(|view| view.add_kept(&mut kept));
        self.bytes.store(kept.bytes() - of_now, Relaxed);
    }
}
