//! From the root down to the page for a key.

use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result};
use spinney_cache::{Look, Sight};
use spinney_leaf::Leaf;

use crate::btree::root::RootSeen;
use crate::btree::tree::BTree;
use crate::pages::{PageKind, leaf_of};
use crate::place::Place;

/// A page on the way of a key, as it was seen.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) look: Look<'a>,
    pub(crate) place: Place,
    pub(crate) level: u8,
}

impl Node<'_> {
    pub(crate) fn leaf(&self) -> Leaf<'_> {
        leaf_of(self.look.words())
    }

    pub(crate) fn seen(&self) -> (Sight, Place) {
        (self.look.sight(), self.place)
    }
}

/// What names a page, as it was seen.
#[derive(Clone, Copy, Debug)]
enum Parent {
    Root(RootSeen),
    Page(Sight),
}

/// Which page of a level.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Toward<'k> {
    /// The one that a key belongs to.
    Key(&'k [u8]),
    /// The last one that has keys below this.
    Below(&'k [u8]),
    /// The last one.
    End,
}

impl Toward<'_> {
    /// The entry of an inner node that leads there.
    #[inline]
    pub(crate) fn entry(self, node: Leaf<'_>) -> usize {
        match self {
            Toward::Key(key) => entry_for(node, key),
            Toward::Below(key) => node.search(key).unwrap_or_else(|at| at).saturating_sub(1),
            Toward::End => node.len().saturating_sub(1),
        }
    }
}

/// The entry of an inner node that leads to a key.
#[inline]
pub(crate) fn entry_for(node: Leaf<'_>, key: &[u8]) -> usize {
    match node.search(key) {
        Ok(index) => index,
        Err(index) => index.saturating_sub(1),
    }
}

/// The place that an entry names; `None` where there is none.
#[inline]
pub(crate) fn place_at(node: Leaf<'_>, index: usize) -> Option<Place> {
    let mut bytes = [0; 8];
    (index < node.len() && node.copy_value(node.slot(index), &mut bytes))
        .then(|| Place::decode(bytes))
}

impl BTree {
    /// Returns the page of a level for a key; `None` when the tree has no such level. It was named when
    /// it was seen; what it holds is validated by the caller.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[inline]
    pub(crate) fn descend(&self, key: &[u8], level: u8) -> Result<Option<Node<'_>>> {
        self.descend_to(Toward::Key(key), level)
    }

    /// The same for another page of the level.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[inline]
    pub(crate) fn descend_to(&self, to: Toward<'_>, level: u8) -> Result<Option<Node<'_>>> {
        loop {
            let root = self.root.see();
            if root.level < level {
                return Ok(None);
            }
            if let Some(node) = self.descend_from(root, to, level)? {
                return Ok(Some(node));
            }
            thread::yield_now();
        }
    }

    /// The same; `None` where something has changed meanwhile.
    #[inline]
    fn descend_from(&self, root: RootSeen, to: Toward<'_>, level: u8) -> Result<Option<Node<'_>>> {
        let (mut at, mut at_level, mut parent) = (root.place, root.level, Parent::Root(root));
        loop {
            let looked = self.pages.look(at, PageKind::of_level(at_level));
            // A place means something only if it is still named.
            if !self.is_valid(parent) {
                return Ok(None);
            }
            let look = looked?;
            if at_level == level {
                return Ok(Some(Node { look, place: at, level }));
            }
            let node = leaf_of(look.words());
            let child = place_at(node, to.entry(node));
            // A page that is in no frame cannot tell later whether it still names the child.
            if !self.pages.is_valid(look.sight()) || !look.is_cached() {
                return Ok(None);
            }
            let child = child.ok_or_else(|| self.damaged(at, "an entry for every key"))?;
            parent = Parent::Page(look.sight());
            (at, at_level) = (child, at_level - 1);
        }
    }

    /// Returns a leaf if all on its way is in memory, and nobody changes it.
    pub(crate) fn find(&self, to: Toward<'_>) -> Option<Node<'_>> {
        let root = self.root.see();
        let (mut at, mut at_level, mut parent) = (root.place, root.level, Parent::Root(root));
        loop {
            let look = self.pages.find(at, PageKind::of_level(at_level))?;
            if !self.is_valid(parent) {
                return None;
            }
            if at_level == 0 {
                return Some(Node { look, place: at, level: 0 });
            }
            let node = leaf_of(look.words());
            let child = place_at(node, to.entry(node));
            if !self.pages.is_valid(look.sight()) {
                return None;
            }
            parent = Parent::Page(look.sight());
            (at, at_level) = (child?, at_level - 1);
        }
    }

    /// Whether nothing has changed of a parent since it was seen.
    #[inline]
    fn is_valid(&self, parent: Parent) -> bool {
        match parent {
            Parent::Root(seen) => self.root.is_valid(seen),
            Parent::Page(sight) => self.pages.is_valid(sight),
        }
    }

    pub(crate) fn damaged(&self, at: Place, expected: &str) -> Error {
        let path = self.pages.store().path().display();
        let text = format!("page {} of {path} should have {expected}", at.page);
        Error::new(ErrorKind::Corruption, text)
    }
}
