//! A B+tree of copy-on-write pages: the cold structure of ordered keyspaces.
//!
//! ```text
//!  root word: place and level
//!      |
//!   [ "" -> p9 | "m" -> p4 ]            level 1: separators and places
//!       |            |
//!  [ants bee cab] [mole newt]           level 0: records; each leaf has its lower and upper bound
//! ```
//!
//! Leaves and inner nodes have the same layout (`spinney-leaf`); the level is in the owner's word. A key
//! belongs to the child with the greatest lower bound that is not above it. The first child of a node has the
//! node's own lower bound, so every key has one.
//!
//! **Reading** (optimistic lock coupling): the place of the child is read from the parent, the page found or
//! loaded, and the parent validated after that. A page that moved meanwhile may still lie intact where it was,
//! and would be read as if it were current; or its place has another owner, which is damage only if the
//! parent still names it.
//!
//! **Changing.** Records change in their leaf while they fit (`merge`). Everything else is one step
//! (`reshape`): the records of one page, or of neighbours, are spread over new pages, and the parent, which is
//! held with them, names these instead (rule H10). A parent without room is divided first.
//!
//! **Invariants**
//! 1. All leaves have the same depth; bounds of a child are those that its parent says.
//! 2. Whoever changes which pages a node names holds the gate shared, and the node.
//! 3. Pages are taken downwards, parent before child, and only tried: nobody waits for one while holding
//!    another.
//!
//! Paper: Tiered-Indexing, 3.2, whose tree writes pages in place.

pub(crate) mod descend;
mod merge;
mod reshape;
mod root;
mod scan;
mod walk;

use std::sync::Arc;

use spinney_base::Result;
use spinney_base::shim::Mutex;
use spinney_cache::Cache;
use spinney_engine::{Found, Resident};
use spinney_extent::Store;
use spinney_leaf::Bounds;
use spinney_wal::Log;

use crate::checkpoint::TreeRoot;
use crate::pages::{CowPages, LARGE, PageKind};
use root::Root;

pub use merge::{Change, Home, Merged};
pub use walk::{See, Walked};

/// A B+tree. Thread-safe.
#[derive(Debug)]
pub struct BTree {
    pub(crate) pages: CowPages,
    pub(crate) root: Root,
    /// Held by one thread that writes pages back.
    pub(crate) writing: Mutex<()>,
    pub(crate) log: Arc<Log>,
}

impl BTree {
    /// Makes an empty tree, of pages of 2^`order` pages of 4 KiB each.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub fn create(
        store: Arc<Store>,
        cache: &Arc<Cache>,
        order: u8,
        log: Arc<Log>,
    ) -> Result<BTree> {
        let pages = CowPages::new(store, cache, order);
        let root = {
            let fresh = pages.fresh(PageKind::Leaf, 1)?.pop().expect("one was asked for");
            fresh.leaf().set_owner(0);
            fresh.leaf().write(Bounds { lower: &[], upper: None }, 0, std::iter::empty());
            let place = fresh.place;
            fresh.name();
            Root::new(place, 0)
        };
        Ok(BTree { pages, root, writing: Mutex::new(()), log })
    }

    /// Opens a tree that a slot names. It reads nothing: the caller asks for the extents that the tree owns
    /// with [`BTree::owned`], and gives them to the store before anything is changed.
    #[must_use]
    pub fn open(
        store: Arc<Store>,
        cache: &Arc<Cache>,
        order: u8,
        log: Arc<Log>,
        root: TreeRoot,
    ) -> BTree {
        let pages = CowPages::new(store, cache, order);
        BTree { pages, root: Root::new(root.place, root.level), writing: Mutex::new(()), log }
    }

    /// Returns the binary logarithm of the 4 KiB pages of a page.
    #[must_use]
    pub fn order(&self) -> u8 {
        self.pages.order()
    }

    /// Returns the longest key and value together that a leaf takes: a quarter of it.
    #[must_use]
    pub fn record_bytes_max(&self) -> usize {
        self.pages.record_bytes_max()
    }

    /// Appends a key's value, or the pointer to a large one, and says which.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Found> {
        let start = out.len();
        loop {
            let node = self.descend(key, 0)?.expect("every tree has leaves");
            let leaf = node.leaf();
            let slot = leaf.search(key).ok().map(|index| leaf.slot(index));
            if let Some(slot) = slot {
                leaf.value(slot, out);
            }
            if self.pages.is_valid(node.look.sight()) {
                return Ok(match slot {
                    None => Found::Absent,
                    Some(slot) if slot.is(LARGE) => Found::Large,
                    Some(_) => Found::Inline,
                });
            }
            out.truncate(start);
        }
    }

    /// The same from pages in memory only. It waits for nobody.
    pub fn get_resident(&self, key: &[u8], out: &mut Vec<u8>) -> Resident {
        let start = out.len();
        let Some(node) = self.find(key) else { return Resident::Unknown };
        let leaf = node.leaf();
        let slot = leaf.search(key).ok().map(|index| leaf.slot(index));
        if let Some(slot) = slot {
            leaf.value(slot, out);
        }
        if !self.pages.is_valid(node.look.sight()) {
            out.truncate(start);
            return Resident::Unknown;
        }
        match slot {
            None => Resident::Absent,
            Some(slot) if slot.is(LARGE) => Resident::Large,
            Some(_) => Resident::Present,
        }
    }
}
