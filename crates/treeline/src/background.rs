//! Background: what foreground and background leave for each other to do.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use spinney_base::shim::Mutex;

use crate::policy;
use crate::tidying::Tidying;

/// Tasks of one keyspace that wait, and where those that go through it in turn continue.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// Whether the background is wanted before its next turn.
    wanted: AtomicBool,
    /// Which shard of the record cache the background looks at next.
    hand: AtomicUsize,
    /// Keys of segments whose dirty lists have grown long.
    long_lists: Mutex<Vec<Vec<u8>>>,
    long_lists_count: AtomicUsize,
    /// Lower bounds of segments with removals that scans met.
    removed: Mutex<BTreeSet<Vec<u8>>>,
    /// Lower bounds of segments that may take fewer pages.
    sparse: Mutex<BTreeSet<Vec<u8>>>,
    /// Where the merging of staged pages continues.
    pub(crate) last_merged: Mutex<Vec<u8>>,
    pub(crate) tidying: Mutex<Tidying>,
    /// Bulk loads under way: the background writes only what it must meanwhile.
    pub(crate) loads: AtomicUsize,
    /// Pages of bulk loads that are not installed yet.
    pub(crate) loading_pages: AtomicU64,
}

impl Background {
    /// Asks for the background's next turn.
    pub(crate) fn wish(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Begins a turn: wishes from before are met by it.
    pub(crate) fn begin(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// Takes the wish for a turn, if there is one.
    pub(crate) fn takes_wish(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed)
    }

    /// The next shard of the record cache to look at.
    pub(crate) fn next_shard(&self) -> usize {
        self.hand.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that the dirty list of the segment of a key has grown long.
    pub(crate) fn note_long_list(&self, key: &[u8]) {
        self.long_lists.lock().push(key.to_vec());
        self.long_lists_count.fetch_add(1, Ordering::Relaxed);
        self.wish();
    }

    /// Whether the background is behind with long lists, so that writers help.
    #[inline]
    pub(crate) fn has_many_long_lists(&self) -> bool {
        self.long_lists_count.load(Ordering::Relaxed) > policy::LONG_LISTS_MAX
    }

    /// Takes the key of a segment whose dirty list has grown long.
    pub(crate) fn take_long_list(&self) -> Option<Vec<u8>> {
        let key = self.long_lists.lock().pop()?;
        self.long_lists_count.fetch_sub(1, Ordering::Relaxed);
        Some(key)
    }

    /// Notes that a scan met many removals that are not written back yet, in the segment that
    /// begins at `lower`.
    pub(crate) fn note_removed(&self, lower: &[u8]) {
        if self.removed.lock().insert(lower.to_vec()) {
            self.wish();
        }
    }

    /// Takes the lower bounds of segments with removals that scans met.
    pub(crate) fn take_removed(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.removed.lock()).into_iter().collect()
    }

    /// Notes that the segment which begins at `lower` may take fewer pages.
    pub(crate) fn note_sparse(&self, lower: &[u8]) {
        let mut sparse = self.sparse.lock();
        if sparse.len() < policy::SPARSE_MAX {
            sparse.insert(lower.to_vec());
        }
    }

    /// Takes the lowest of the segments that may take fewer pages.
    pub(crate) fn take_sparse(&self) -> Option<Vec<u8>> {
        self.sparse.lock().pop_first()
    }

    /// Notes that something was written: tidying waits.
    pub(crate) fn disturb_tidying(&self) {
        self.tidying.lock().disturb();
    }
}
