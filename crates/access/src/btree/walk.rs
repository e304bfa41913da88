//! Going through all pages: which extents the tree owns, and whether all is as it should be.

use spinney_base::{Generation, Result};
use spinney_extent::Extent;
use spinney_leaf::{Image, Leaf};

use crate::btree::BTree;
use crate::btree::descend::place_at;
use crate::pages::{PageKind, leaf_of};
use crate::place::Place;

/// What a tree has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Leaves.
    pub leaves: u64,
    /// Inner nodes.
    pub nodes: u64,
    /// Records.
    pub records: u64,
    /// Words of leaves that records and their slots use.
    pub words: u64,
}

impl BTree {
    /// Calls `see` for each extent that the tree owns. It reads inner nodes only; nothing changes meanwhile.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn owned(&self, see: &mut dyn FnMut(Extent, Generation)) -> Result<()> {
        let root = self.root.see();
        self.owned_below(root.place, root.level, see)
    }

    fn owned_below(
        &self,
        at: Place,
        level: u8,
        see: &mut dyn FnMut(Extent, Generation),
    ) -> Result<()> {
        see(self.pages.extent(at), at.generation);
        if level == 0 {
            return Ok(());
        }
        let children = {
            let look = self.pages.look(at, PageKind::Inner)?;
            self.children(leaf_of(look.words()), at, level)?
        };
        children.into_iter().try_for_each(|child| self.owned_below(child, level - 1, see))
    }

    fn children(&self, node: Leaf<'_>, at: Place, level: u8) -> Result<Vec<Place>> {
        let children: Option<Vec<Place>> =
            (0..node.len()).map(|index| place_at(node, index)).collect();
        let is_right = node.owner() == u64::from(level) && !node.is_empty();
        children.filter(|_| is_right).ok_or_else(|| self.damaged(at, "places of its children"))
    }

    /// Checks every page: its level, its bounds, and what it holds. Nothing changes meanwhile. `see` gets the
    /// records in their order.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn walk(&self, see: &mut dyn FnMut(&[u8], &[u8], u8)) -> Result<Walked> {
        let (root, mut walked) = (self.root.see(), Walked::default());
        self.walk_below((root.place, root.level), (&[], None), see, &mut walked)?;
        Ok(walked)
    }

    fn walk_below(
        &self,
        (at, level): (Place, u8),
        (lower, upper): (&[u8], Option<&[u8]>),
        see: &mut dyn FnMut(&[u8], &[u8], u8),
        walked: &mut Walked,
    ) -> Result<()> {
        let (image, children) = {
            let look = self.pages.look(at, PageKind::of_level(level))?;
            let leaf = leaf_of(look.words());
            if leaf.owner() != u64::from(level) {
                return Err(self.damaged(at, &format!("level {level}")));
            }
            let children = if level > 0 { self.children(leaf, at, level)? } else { Vec::new() };
            walked.words += if level == 0 { (leaf.live() + leaf.len()) as u64 } else { 0 };
            leaf.check(crate::pages::LARGE, 0)
                .map_err(|wrong| self.damaged(at, &wrong.expected))?;
            (Image::of(leaf, |_| 0), children)
        };
        // Inner nodes leave long upper bounds out.
        let has_upper = level == 0 || image.upper.is_some();
        if image.lower != lower || has_upper && image.upper.as_deref() != upper {
            return Err(self.damaged(at, "the bounds that its parent says"));
        }
        if level == 0 {
            walked.leaves += 1;
            walked.records += image.records.len() as u64;
            image.records.iter().for_each(|one| see(one.key, one.value, one.flags));
            return Ok(());
        }
        walked.nodes += 1;
        if image.records.key(0) != lower {
            return Err(self.damaged(at, "its own lower bound as that of its first child"));
        }
        for (index, child) in children.into_iter().enumerate() {
            let begin = image.records.key(index);
            let end = (index + 1 < image.records.len()).then(|| image.records.key(index + 1));
            self.walk_below((child, level - 1), (begin, end.or(upper)), see, walked)?;
        }
        Ok(())
    }
}
