//! What the pages of this engine are: kinds of block on disk, kinds of page in the cache, and purposes
//! of I/O. The numbers of blocks and purposes are among those of all engines, in the registry's rows.

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
