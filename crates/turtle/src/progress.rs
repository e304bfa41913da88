//! How far the records of a keyspace have come on their way from memtables to a checkpoint.
//!
//! **Invariants** ([`crate::pipeline`] keeps them)
//! 1. A mark pairs a memtable with an LSN: memtables up to this one hold exactly what the log has
//!    up to the LSN (P1). Marks ascend in both.
//! 2. Memtables that were sealed while the log was replayed have no mark, because the end of the
//!    log tells nothing of what was applied (P19).

use std::collections::VecDeque;

use spinney_base::Lsn;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::run::Run;
use crate::version::Tree;

/// See the module. Thread-safe.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Held by the one thread that applies, writes or publishes.
    pub(crate) work: Mutex<Work>,
    marks: Mutex<VecDeque<Mark>>,
    /// Redo LSN of the newest checkpoint.
    redo: AtomicU64,
    replaying: AtomicBool,
    /// Batches applied since the last checkpoint.
    batches: AtomicU64,
    /// Whether chi was lowered below what has gathered, which is written at once then.
    lowered: AtomicBool,
    /// [`Tree::pages_beside`] when the newest checkpoint was done: what snapshots keep, and nodes.
    kept_pages: AtomicU64,
    /// Root of the checkpoint that was opened, until the replay of structure ends.
    root: Mutex<Option<Vec<u8>>>,
}

/// State that one thread at a time changes.
#[derive(Debug)]
pub(crate) struct Work {
    /// The tree of the newest durable checkpoint: none of its pages may be reused.
    pub(crate) published: Tree,
    /// Number of the newest memtable that is in the tree.
    pub(crate) applied: u64,
    /// Number of the newest memtable that is in the published tree.
    pub(crate) published_memtable: u64,
    /// The next batch to be applied, and the number of its memtable: gathered while the one before
    /// it was applied.
    pub(crate) next: Option<(u64, Run)>,
}

/// See the invariants of the module.
#[derive(Clone, Copy, Debug)]
struct Mark {
    memtable: u64,
    redo: Lsn,
}

impl Progress {
    /// Progress of a keyspace that begins at a checkpoint with this redo LSN and root. `empty` is a
    /// tree without records.
    pub(crate) fn new(redo: Lsn, root: Vec<u8>, empty: Tree) -> Progress {
        let work = Work { published: empty, applied: 0, published_memtable: 0, next: None };
        Progress {
            work: Mutex::new(work),
            marks: Mutex::default(),
            redo: AtomicU64::new(redo.0),
            replaying: AtomicBool::new(true),
            batches: AtomicU64::new(0),
            lowered: AtomicBool::new(false),
            kept_pages: AtomicU64::new(0),
            root: Mutex::new(Some(root)),
        }
    }

    /// Takes the root of the checkpoint that was opened.
    pub(crate) fn take_root(&self) -> Vec<u8> {
        self.root.lock().take().unwrap_or_default()
    }

    /// Redo LSN of the newest checkpoint.
    pub(crate) fn redo(&self) -> Lsn {
        Lsn(self.redo.load(SeqCst))
    }

    /// Whether the log is being replayed.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(SeqCst)
    }

    /// Notes that the replay of the log is over.
    pub(crate) fn end_replay(&self) {
        self.replaying.store(false, SeqCst);
    }

    /// Marks that memtables up to `memtable` hold what the log has up to its end. For the thread
    /// that is between batches.
    pub(crate) fn mark(&self, memtable: u64, end_of_log: impl FnOnce() -> Lsn) {
        if !self.is_replaying() {
            let mut marks = self.marks.lock();
            marks.retain(|mark| mark.memtable < memtable);
            marks.push_back(Mark { memtable, redo: end_of_log() });
        }
    }

    /// The redo LSN of a checkpoint of the tree as it is, if it can have one.
    pub(crate) fn redo_of(&self, work: &Work) -> Option<Lsn> {
        let marks = self.marks.lock();
        let mark = marks.iter().find(|mark| mark.memtable == work.applied);
        let same = work.applied == work.published_memtable;
        mark.map(|mark| mark.redo).or(same.then(|| self.redo()))
    }

    /// Notes that the slot of a checkpoint of `tree` is durable.
    pub(crate) fn published(&self, work: &mut Work, tree: Tree, redo: Lsn) {
        self.redo.store(redo.0, SeqCst);
        self.marks.lock().retain(|mark| mark.memtable > work.applied);
        // Its pages are reused from here on, unless a reader has it.
        work.published = tree;
        work.published_memtable = work.applied;
    }

    /// Batches applied since the last checkpoint.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Relaxed)
    }

    /// Notes that a batch was applied.
    pub(crate) fn note_batch(&self) {
        self.batches.fetch_add(1, Relaxed);
    }

    /// Notes that all batches are in a checkpoint.
    pub(crate) fn forget_batches(&self) {
        self.batches.store(0, Relaxed);
    }

    /// Whether chi was lowered below what has gathered.
    pub(crate) fn is_lowered(&self) -> bool {
        self.lowered.load(SeqCst)
    }

    /// Sets whether chi was lowered below what has gathered.
    pub(crate) fn set_lowered(&self, lowered: bool) {
        self.lowered.store(lowered, SeqCst);
    }

    /// Pages beside the tree that were there when the newest checkpoint was done.
    pub(crate) fn kept_pages(&self) -> u64 {
        self.kept_pages.load(Relaxed)
    }

    /// Sets the pages beside the tree of a checkpoint that is done.
    pub(crate) fn set_kept_pages(&self, pages: u64) {
        self.kept_pages.store(pages, Relaxed);
    }
}
