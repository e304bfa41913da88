//! Between the tree and the disk: what the tree asks of the store of leaves and nodes.
//!
//! A leaf and a segment have one format and one type. What was written is an object that owns its
//! pages: while anything in memory refers to it (a tree, a reader, a snapshot) they stay, and when
//! the last reference goes they are given back. The tree therefore counts nothing itself.
//!
//! **Threads**: all methods may be called from several threads; those that read and write leaves
//! are, by one update or checkpoint.

use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use spinney_base::{Result, ValueRef};
use spinney_engine::Direction;
use spinney_io::Purpose;

use crate::edit::Hit;
use crate::parallel;
use crate::policy;
use crate::run::Run;
use crate::runs::Runs;

/// Sizes that shape the tree. Fixed while a tree is in memory; may differ when it is opened again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most packed bytes of a leaf or segment ([`crate::edit::packed_bytes`]).
    pub(crate) leaf_bytes: u64,
    /// What is pending for a leaf when it is flushed at the latest, in percent of the leaf itself;
    /// none for a full leaf ([`Limits::flush_bytes`]). With less of it less lies beside leaves to
    /// overwrite them, and more is written.
    pub(crate) pending_percent: Option<u64>,
    /// By how much pivots differ in what may be pending for them, in percent of it, from the first
    /// of a node to its last. Keys come evenly often, and without that one batch would flush to all
    /// leaves of a node. Neighbours differ little, so they are flushed one after the other, and the
    /// segments that they share are gone soon.
    pub(crate) spread: u64,
    /// Bytes of segments that a merge of levels has in memory at once, packed. It has all of them
    /// if it may not write what it makes.
    pub(crate) merge_bytes: u64,
    /// Most packed bytes of one edit: a quarter of a leaf or less.
    pub(crate) edit_bytes_max: u64,
    /// Children of a node, 4 to [`PIVOTS_MAX`].
    pub(crate) pivots_max: usize,
    /// A node whose pivots take more of its page is split, in bytes: at least 16 times the longest
    /// key, so that halves are not so small that they are joined again.
    pub(crate) node_bytes: usize,
}

/// Batches that a child of a node with `pivots` pivots gets, of those that come to the node: at
/// most twice its share.
pub(crate) fn batches_below(batches: u64, pivots: usize) -> u64 {
    batches.saturating_mul(2).div_ceil(pivots as u64).min(batches)
}

/// Most children of a node: what a set of pivots in its page has room for.
pub(crate) const PIVOTS_MAX: usize = 64;

/// Most levels of a node's buffer: a node on disk that has more is damaged. Only a full disk leads to more than
/// [`Limits::levels`].
pub(crate) const LEVELS_MAX: usize = 16;

impl Limits {
    /// Levels of a node's buffer: sizes double from one to the next (section 3.1). There is one
    /// more where more than a leaf may be pending for a leaf.
    pub(crate) fn levels(&self, pivots: usize) -> usize {
        let more = self.pending_percent.is_some_and(|percent| percent > 100);
        pivots.max(2).next_power_of_two().trailing_zeros() as usize + usize::from(more)
    }

    /// Segments of a node's buffer.
    pub(crate) fn segments(&self, pivots: usize) -> usize {
        pivots.max(2) - 1
    }

    /// Bytes that are flushed at once at least, and about what a batch should have: that many
    /// batches fit into as many segments, wherever these are cut.
    pub(crate) fn flush_bytes(&self) -> u64 {
        self.leaf_bytes - self.edit_bytes_max
    }

    /// What is pending for a leaf of `leaf` bytes when it is flushed at the latest, before pivots
    /// are made to differ. It is a share of the leaf itself: then all leaves write the same for
    /// each byte that is flushed to them, which is least for the memory that is pending.
    fn leaf_pending_max(&self, leaf: u64) -> u64 {
        let share = |percent| leaf.clamp(self.leaf_bytes / 2, self.leaf_bytes) * percent / 100;
        self.pending_percent.map_or_else(|| self.flush_bytes(), share)
    }

    /// What is pending for pivot number `pivot` of `pivots` when it is flushed, at the latest; its
    /// child is a leaf of `leaf` bytes, or a node.
    pub(crate) fn pending_max(&self, pivot: usize, pivots: usize, leaf: Option<u64>) -> u64 {
        let most = leaf.map_or_else(|| self.flush_bytes(), |leaf| self.leaf_pending_max(leaf));
        most - most / 100 * (self.spread * pivot as u64 / pivots as u64)
    }

    /// Whether a new leaf of `leaf` bytes, for which nothing is pending, will still be the same
    /// when `batches` more have come; see [`Limits::leaf_stays`].
    pub(crate) fn new_leaf_stays(&self, batches: u64, pivots: usize, leaf: u64) -> bool {
        // Its key is not known yet: the least that a pivot may have.
        let most = self.leaf_pending_max(leaf) * (100 - self.spread) / 100;
        self.leaf_stays(batches, pivots, 0, most)
    }

    /// Whether a leaf will still be the same when `batches` more have come, each about as large as
    /// a leaf, to a node of `pivots` pivots above it. `pending` is there for it already, and it is
    /// flushed to at `most`. Keys need not come evenly, so it is taken to get twice its share.
    pub(crate) fn leaf_stays(&self, batches: u64, pivots: usize, pending: u64, most: u64) -> bool {
        let share = (2 * self.leaf_bytes).saturating_mul(batches) / pivots as u64;
        batches == 0 || pending.saturating_add(share) < most
    }

    /// Segments that runs of `bytes` bytes need at most, however they are cut: never more than the
    /// pieces of them do.
    pub(crate) fn segments_of(&self, bytes: u64) -> usize {
        bytes.div_ceil(self.flush_bytes()) as usize
    }

    /// Bytes pending for a pivot from which a flush pays when reads are many and writes few,
    /// packed: what is pending is read beside the leaf, and a flush rewrites all of the leaf.
    pub(crate) fn tidy_bytes(&self) -> u64 {
        policy::tidy_bytes(self.leaf_bytes)
    }

    /// Below this a leaf is joined with a neighbour, in packed bytes.
    pub(crate) fn leaf_bytes_min(&self) -> u64 {
        policy::leaf_bytes_min(self.leaf_bytes)
    }
}

/// Counts of what a range looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Edits of any kind: those that it delivered, tombstones, and what is older than either.
    pub(crate) edits: u64,
    /// Tombstones that were the newest edits of their keys.
    pub(crate) tombstones: u64,
}

/// A range of a leaf that is to be read: from key `lower` on up to, not including, key `upper`.
#[derive(Debug)]
pub(crate) struct Load<'a, F: Files> {
    pub(crate) leaf: &'a F::Leaf,
    pub(crate) lower: &'a [u8],
    pub(crate) upper: Option<&'a [u8]>,
}

/// A key that will be looked up in a leaf.
#[derive(Debug)]
pub(crate) struct Lookup<'a, F: Files> {
    pub(crate) leaf: &'a F::Leaf,
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    /// Whether there is no older place that the key can be in.
    pub(crate) is_last: bool,
}

/// Leaves and nodes on disk.
pub(crate) trait Files: Debug + Send + Sync + 'static + Sized {
    /// A leaf or segment that was written. Dropped, it gives its pages back.
    type Leaf: Debug + Send + Sync;
    /// The pages of a node that was written. Dropped, it gives its pages back.
    type Pages: Debug + Send + Sync;
    /// Reads a leaf in order.
    type Cursor<'a>: LeafCursor
    where
        Self: 'a;

    fn limits(&self) -> Limits;

    /// How many threads may read and build leaves for one update or checkpoint at once.
    fn threads(&self) -> usize {
        1
    }

    /// Writes a leaf or segment that holds these edits, [`Limits::leaf_bytes`] at most; why is for
    /// the counters.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; nothing is owned then.
    fn write_leaf(&self, edits: &Runs, purpose: Purpose) -> Result<Arc<Self::Leaf>>;

    /// Packed bytes of all edits of a leaf, without I/O.
    fn leaf_bytes(&self, leaf: &Self::Leaf) -> u64;

    /// How many pages a leaf owns.
    fn leaf_pages(&self, leaf: &Self::Leaf) -> u64;

    /// How many edits a leaf has, without I/O.
    fn leaf_edits(&self, leaf: &Self::Leaf) -> u64;

    /// Reads the edits from key `lower` on up to, not including, key `upper`: all of the leaf in
    /// one transfer if they bound nothing.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn load(&self, leaf: &Self::Leaf, lower: &[u8], upper: Option<&[u8]>) -> Result<Run>;

    /// Reads ranges of several leaves, together where it can. The runs are in the order of the
    /// loads.
    ///
    /// # Errors
    /// `Corruption` or `Io`, of the first that failed.
    fn load_many(&self, loads: &[Load<'_, Self>]) -> Result<Vec<Run>> {
        loads.iter().map(|load| self.load(load.leaf, load.lower, load.upper)).collect()
    }

    /// Reads what lookups need into the cache, together (the parallel lookup of section 3.4). A
    /// hint: a lookup afterwards reads what is missing, and reports damage.
    fn warm(&self, _lookups: &[Lookup<'_, Self>]) {}

    /// Looks a key up, by filter and single pages. A value or pointer is appended to `out`.
    ///
    /// # Errors
    /// `Corruption` or `Io`; `out` is as it was.
    fn get(&self, lookup: &Lookup<'_, Self>, out: &mut Vec<u8>) -> Result<Option<Hit>>;

    /// Counts a lookup that was answered by what is pending in memory.
    fn answered_in_memory(&self) {}

    /// Counts that a range of a tree looks into `more` leaves and segments beside the one that
    /// would do.
    fn looks_beside(&self, _more: usize) {}

    /// Counts what a range of a tree passed, at its end or before its next leaf.
    fn passed(&self, _passed: Passed) {}

    /// A cursor at the first edit at or behind `from`, in the direction.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn cursor<'a>(
        &'a self,
        leaf: &'a Arc<Self::Leaf>,
        from: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Self::Cursor<'a>>;

    /// Reads what these cursors expect to be asked for into the cache, together; that of the leaf
    /// is the last. A hint, as [`Files::warm`].
    fn bring_in(&self, _cursors: &[&Self::Cursor<'_>]) {}

    /// Writes a node.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; nothing is owned then.
    fn write_node(&self, payload: &[u8]) -> Result<Arc<Self::Pages>>;

    /// Reads a node that [`Files::describe_node`] described, and owns its pages from here on.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn open_node(&self, description: &[u8]) -> Result<(Arc<Self::Pages>, Vec<u8>)>;

    /// Owns the leaf that [`Files::describe_leaf`] described, from here on; reads nothing.
    ///
    /// # Errors
    /// `Corruption`.
    fn open_leaf(&self, description: &[u8]) -> Result<Arc<Self::Leaf>>;

    /// Appends the bytes by which a node refers to a leaf, 255 at most. They are equal for one
    /// leaf, and different for different ones.
    fn describe_leaf(&self, leaf: &Self::Leaf, out: &mut Vec<u8>);

    /// Appends the bytes by which a node refers to a node.
    fn describe_node(&self, pages: &Self::Pages, out: &mut Vec<u8>);
}

/// A place in a leaf, or beyond its end.
pub(crate) trait LeafCursor: Debug {
    /// The key at the place; `None` beyond the end.
    fn key(&self) -> Option<&[u8]>;

    /// Whether a tombstone is there.
    fn is_tombstone(&self) -> bool;

    /// Key and value; `None` beyond the end and at a tombstone. Only this reads pages of values.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn record(&mut self) -> Result<Option<(&[u8], ValueRef<'_>)>>;

    /// Announces that about this many records from here on will be asked for: their values may be
    /// read together. Returns the key of the last one, as far as it is known without I/O.
    fn expect(&mut self, _records: usize) -> Option<Vec<u8>> {
        None
    }

    /// Announces that all records up to a key will be asked for.
    fn expect_up_to(&mut self, _key: &[u8]) {}

    /// Goes to the next place in the direction.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    fn advance(&mut self) -> Result<()>;
}

/// Writes leaves, in order; all or none.
pub(crate) fn write_parts<F: Files>(
    files: &F,
    parts: &[Runs],
    purpose: Purpose,
) -> Result<Vec<Arc<F::Leaf>>> {
    parallel::each(files.threads(), parts.len(), |part| files.write_leaf(&parts[part], purpose))
}
