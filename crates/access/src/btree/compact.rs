//! Filling the leaves of a range, and laying them side by side: one region at a time.
//!
//! ```text
//!   before   parent [ a | c | f | k | m ]     after   parent [ a | g | m ]
//!              half full, anywhere                      full, in the order of their keys
//! ```
//!
//! A region is neighbouring leaves under one parent. Its records are spread over as few new leaves as
//! hold them, which are allocated together. Where that would be as many, and the old ones follow each other
//! in the file, the region stays as it is. Records do not change, so merges run beside it:
//! a leaf that changed meanwhile is found changed, and the region is read once more.

use spinney_base::Result;
use spinney_leaf::Image;

use crate::btree::descend::{entry_for, place_at};
use crate::btree::reshape::Reshaped;
use crate::btree::tree::BTree;
use crate::pages::{PageKind, leaf_of};
use crate::place::Place;

/// Leaves of a region at most: old and new ones are in memory together. With fewer, the last leaf of a region, which
/// is partly full, counts more.
const REGION_LEAVES: usize = 24;
/// How often a region is tried that others change.
const TRIES_MAX: usize = 8;

/// Result of a step of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Leaves that were looked at.
    pub leaves: u64,
    /// Lower bound of the leaf behind the last of them; `None` at the end of all keys.
    pub next: Option<Vec<u8>>,
}

/// Leaves that follow each other under one parent.
struct Region {
    old: Vec<(spinney_cache::Sight, Place)>,
    image: Image,
}

impl BTree {
    /// Fills the leaves from the one that `from` belongs to, as far as one step goes. Records and answers stay.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; the records are as they were.
    pub fn fill(&self, from: &[u8]) -> Result<Filled> {
        let (mut most, mut tries) = (REGION_LEAVES, 0);
        loop {
            if self.pages.is_crowded() {
                self.write_back(usize::MAX)?;
            }
            let Some(Region { old, image }) = self.region(from, most)? else { continue };
            let (leaves, next) = (old.len() as u64, image.upper.clone());
            let filled = Filled { leaves, next };
            tries += 1;
            if tries > TRIES_MAX || !self.pays(&old, &image) {
                return Ok(filled);
            }
            let key = image.lower.clone();
            match self.reshape(0, &old, image, &|| ()) {
                // A step that holds fewer pages may have room.
                Err(error) if error.is_full() && old.len() > 2 => most = old.len() / 2,
                Err(error) => return Err(error),
                // Of fewer leaves less changes, and more stay in memory.
                Ok(Reshaped::Again | Reshaped::NoFrame) => most = (old.len() / 2).max(2),
                Ok(Reshaped::Done) => {
                    self.join_sparse(&key, 1)?;
                    return Ok(filled);
                }
            }
        }
    }

    /// Whether new leaves are fewer than these, or lie in order where these do not.
    fn pays(&self, old: &[(spinney_cache::Sight, Place)], image: &Image) -> bool {
        let step = 1 << self.pages.order();
        let follows = |pair: &[(_, Place)]| pair[1].1.page.0 == pair[0].1.page.0 + step;
        self.leaves_of(image) < old.len() || !old.windows(2).all(follows)
    }

    /// The leaves of a region, as they were seen; `None` where something has changed meanwhile.
    fn region(&self, from: &[u8], most: usize) -> Result<Option<Region>> {
        let Some(parent) = self.descend(from, 1)? else {
            let node = self.descend(from, 0)?.expect("every tree has leaves");
            let image = Image::of(node.leaf(), |_| 0);
            let is_valid = self.pages.is_valid(node.look.sight());
            return Ok(is_valid.then(|| Region { old: vec![node.seen()], image }));
        };
        let (node, first) = (parent.leaf(), entry_for(parent.leaf(), from));
        let places: Vec<Place> =
            (first..node.len()).map_while(|at| place_at(node, at)).take(most).collect();
        if !self.pages.is_valid(parent.look.sight()) {
            return Ok(None);
        }
        let (mut old, mut image) = (Vec::with_capacity(places.len()), None::<Image>);
        for place in places {
            let looked = self.pages.look(place, PageKind::Leaf);
            // A place means something only if it is still named.
            if !self.pages.is_valid(parent.look.sight()) {
                return Ok(None);
            }
            let look = looked?;
            let leaf = leaf_of(look.words());
            match &mut image {
                None => image = Some(Image::of(leaf, |_| 0)),
                Some(image) => image.add(leaf, |_| 0),
            }
            if !self.pages.is_valid(look.sight()) {
                return Ok(None);
            }
            // What is in no frame cannot be taken.
            if !look.is_cached() {
                self.write_back(usize::MAX)?;
                return Ok(None);
            }
            old.push((look.sight(), place));
        }
        Ok(image.map(|image| Region { old, image }))
    }
}
