//! The tree: its pages, its root word, and lookups.

use std::sync::Arc;

use spinney_base::Result;
use spinney_base::shim::atomic::AtomicUsize;
use spinney_base::shim::{Mutex, MutexGuard};
use spinney_cache::Cache;
use spinney_engine::{Found, Resident};
use spinney_extent::Store;
use spinney_leaf::Bounds;
use spinney_wal::Log;

use crate::btree::descend::Toward;
use crate::btree::root::Root;
use crate::pages::{CowPages, LARGE, PageKind};
use crate::place::TreeRoot;

/// A B+tree. Thread-safe.
#[derive(Debug)]
pub struct BTree {
    pub(crate) pages: CowPages,
    pub(crate) root: Root,
    /// Held by one thread that writes pages back.
    pub(crate) writing: Mutex<()>,
    pub(crate) log: Arc<Log>,
    /// About the records of a leaf, as ranges have found; 0 before the first.
    pub(crate) leaf_records: AtomicUsize,
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
        Ok(BTree { pages, root, writing: Mutex::new(()), log, leaf_records: AtomicUsize::new(0) })
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
        BTree {
            pages,
            root: Root::new(root.place, root.level),
            writing: Mutex::new(()),
            log,
            leaf_records: AtomicUsize::new(0),
        }
    }

    /// Returns the binary logarithm of the 4 KiB pages of a page.
    #[must_use]
    pub fn order(&self) -> u8 {
        self.pages.order()
    }

    /// Keeps pages where they lie until the guard is dropped: none is written back.
    pub fn hold_places(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// Appends a key's value, or the pointer to a large one, and says which.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Found> {
        self.get_while(key, || true, out).map(|found| found.expect("nothing forbids it"))
    }

    /// As [`BTree::get`], if `holds` answers true while the leaf is as it was read: nobody changes it
    /// meanwhile. Returns `None` if it does not.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[inline]
    pub fn get_while(
        &self,
        key: &[u8],
        holds: impl Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<Found>> {
        let start = out.len();
        loop {
            let node = self.descend(key, 0)?.expect("every tree has leaves");
            let leaf = node.leaf();
            let slot = leaf.search(key).ok().map(|index| leaf.slot(index));
            if let Some(slot) = slot {
                leaf.value(slot, out);
            }
            let holds = holds();
            if self.pages.is_valid(node.look.sight()) {
                if !holds {
                    out.truncate(start);
                    return Ok(None);
                }
                return Ok(Some(match slot {
                    None => Found::Absent,
                    Some(slot) if slot.is(LARGE) => Found::Large,
                    Some(_) => Found::Inline,
                }));
            }
            out.truncate(start);
        }
    }

    /// The same from pages in memory only. It waits for nobody.
    pub fn get_resident(&self, key: &[u8], out: &mut Vec<u8>) -> Resident {
        let start = out.len();
        let Some(node) = self.find(Toward::Key(key)) else { return Resident::Unknown };
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
