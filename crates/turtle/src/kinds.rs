//! What the pages of this engine are: kinds of block on disk, kinds of page in the cache, and
//! purposes of I/O. The numbers of blocks and purposes are among those of all engines, in the
//! registry's rows.

use spinney_cache::Kind;

/// Values of records in leaves and segments.
pub(crate) const VALUES: Kind = Kind::new(0, "values", 1);
/// Keys of records.
pub(crate) const KEYS: Kind = Kind::new(1, "keys", 2);
/// The index of a leaf or segment.
pub(crate) const INDEX: Kind = Kind::new(2, "index", 3);
/// The filter of a leaf or segment.
pub(crate) const FILTER: Kind = Kind::new(3, "filter", 4);
/// A node of the tree.
pub(crate) const NODE: Kind = Kind::new(4, "node", 5);

/// Kinds of block.
pub(crate) mod block {
    use spinney_extent::header::BlockKind;

    /// A page of a leaf or segment: index, filter, keys or values.
    pub(crate) const LEAF: BlockKind = BlockKind::new(5, "leaf");
    /// A page of a node.
    pub(crate) const NODE: BlockKind = BlockKind::new(6, "node");
}

/// Purposes of I/O.
pub(crate) mod purpose {
    use spinney_io::Purpose;

    /// Leaves that a flush made and wrote at once, because nothing will reach them before the
    /// checkpoint.
    pub(crate) const FLUSH: Purpose = Purpose::new(11, "flush");
    /// Leaves and segments that batches left alone for long enough to be written before the
    /// checkpoint.
    pub(crate) const EARLY: Purpose = Purpose::new(12, "early");
    /// Segments that a merge of more than memory takes wrote piece by piece.
    pub(crate) const MERGE: Purpose = Purpose::new(13, "merge");
    /// Leaves that were rewritten for ranges.
    pub(crate) const TIDY: Purpose = Purpose::new(14, "tidy");
    /// Leaves and segments that were in memory when their tree was written: by a checkpoint, a bulk
    /// load, or for a snapshot.
    pub(crate) const LEAF: Purpose = Purpose::new(15, "leaf");
    /// Nodes of such a tree.
    pub(crate) const NODE: Purpose = Purpose::new(16, "node");
}
