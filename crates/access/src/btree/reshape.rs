//! Changes of which keys pages are for: splits, joins, and pages that fill up, all in one step.
//!
//! ```text
//!   before   parent [ a | f | m ]       after   parent [ a | d | h | m ]
//!                     |   |                              |   |   |
//!                    L1  L2   (+ changes)               N1  N2  N3        new pages of all of them
//! ```
//!
//! 1. The pages were copied, and what was seen of them is validated later.
//! 2. New pages are allocated and written in memory; this may fail, and nothing has changed (rule H20).
//! 3. Behind the gate, parent and old pages are taken as they were seen. If one has changed, all begins
//!    anew.
//! 4. The parent names the new pages; the old ones go, and their places are let go (rule H10).
//!
//! A reader in an old page finds it changed and begins anew, and so does one that comes from the parent.

use spinney_base::Result;
use spinney_cache::{Edit, Sight};
use spinney_leaf::{Coming, Entry, Image, Leaf};

use crate::btree::BTree;
use crate::btree::descend::{Node, place_at};
use crate::btree::root::{RootHeld, RootSeen};
use crate::pages::{Fresh, PageKind, leaf_of};
use crate::place::{PLACE_BYTES, Place};

/// Sixteenths of a page that are filled when records are spread. With more, the next records divide it;
/// with less, pages hold less.
const FILL_SIXTEENTHS: usize = 14;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Reshaped {
    Done,
    /// Something had changed; or the parent had no room, and has it now.
    Again,
}

/// What names the pages.
enum Naming<'a> {
    Root(RootSeen),
    Page(Node<'a>),
}

/// The same, held.
enum NamingHeld<'a> {
    Root(RootHeld<'a>),
    Page(Edit<'a>),
}

impl BTree {
    /// Spreads `image`, which is all that `old` hold with what is to be changed, over at least `parts_min`
    /// new pages. The old pages follow each other under one parent.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; nothing has changed.
    pub(crate) fn reshape(
        &self,
        level: u8,
        old: &[(Sight, Place)],
        image: &Image,
        parts_min: usize,
    ) -> Result<Reshaped> {
        let cuts = self.cuts_of(image, parts_min);
        let lowers = image.lowers(&cuts, &[]);
        let root = self.root.see();
        let naming = if root.level == level {
            Naming::Root(root)
        } else {
            let Some(parent) = self.descend(&image.lower, level + 1)? else {
                return Ok(Reshaped::Again);
            };
            if !parent.look.is_cached() {
                self.write_back(usize::MAX)?;
                return Ok(Reshaped::Again);
            }
            if !has_room(parent.leaf(), &lowers[1..]) {
                return self.divide(&parent).map(|_| Reshaped::Again);
            }
            Naming::Page(parent)
        };
        let mut fresh = self.fresh(PageKind::of_level(level), cuts.len())?;
        for (part, page) in fresh.iter().enumerate() {
            let end = cuts.get(part + 1).copied().unwrap_or(image.records.len());
            let entries = (cuts[part]..end).map(|index| image.records.entry(index));
            page.leaf().set_owner(level.into());
            page.leaf().write(image.bounds_of(part, &lowers), 0, entries);
        }
        let above = match naming {
            Naming::Root(_) if fresh.len() > 1 => Some(self.above(level, &fresh, &lowers, image)?),
            _ => None,
        };
        let _shape = self.pages.gate.enter();
        let Some((mut naming, held)) = self.take(naming, old, &image.lower) else {
            return Ok(Reshaped::Again);
        };
        match &mut naming {
            NamingHeld::Root(root) => match &above {
                Some(above) => root.set(above.place, level + 1),
                None => root.set(fresh[0].place, level),
            },
            NamingHeld::Page(parent) => {
                rename(leaf_of(parent.words()), old.len(), &fresh, &lowers);
                parent.mark_dirty();
            }
        }
        above.into_iter().chain(fresh.drain(..)).for_each(Fresh::is_named);
        drop(naming);
        for (edit, (_, place)) in held.into_iter().zip(old) {
            self.pages.remove(edit, *place, level);
        }
        Ok(Reshaped::Done)
    }

    /// Divides a page that has no room for what is to come.
    ///
    /// # Errors
    /// As [`BTree::reshape`].
    fn divide(&self, node: &Node<'_>) -> Result<Reshaped> {
        let image = Image::of(node.leaf(), |_| 0);
        if !self.pages.is_valid(node.look.sight()) {
            return Ok(Reshaped::Again);
        }
        self.reshape(node.level, &[node.seen()], &image, 2)
    }

    /// A root above pages that were one.
    fn above(
        &self,
        level: u8,
        pages: &[Fresh<'_>],
        lowers: &[Vec<u8>],
        image: &Image,
    ) -> Result<Fresh<'_>> {
        let above = self.fresh(PageKind::Inner, 1)?.pop().expect("one was asked for");
        let places: Vec<[u8; PLACE_BYTES]> = pages.iter().map(|page| page.place.encode()).collect();
        let entries = lowers.iter().zip(&places);
        let entries = entries.map(|(key, value)| Entry { key, value, flags: 0 });
        above.leaf().set_owner(u64::from(level) + 1);
        above.leaf().write(image.bounds(), 0, entries);
        Ok(above)
    }

    /// Takes all that changes, if it is as it was seen.
    fn take<'a>(
        &'a self,
        naming: Naming<'a>,
        old: &[(Sight, Place)],
        lower: &[u8],
    ) -> Option<(NamingHeld<'a>, Vec<Edit<'a>>)> {
        let naming = match naming {
            Naming::Root(seen) => {
                let held = self.root.edit(seen)?;
                if seen.place != old[0].1 {
                    held.release_unchanged();
                    return None;
                }
                NamingHeld::Root(held)
            }
            Naming::Page(parent) => {
                let edit = self.pages.edit(parent.look.sight())?;
                let (node, first) = (leaf_of(edit.words()), leaf_of(edit.words()).search(lower));
                let names = |(index, (_, place)): (usize, &(Sight, Place))| {
                    first.is_ok_and(|first| place_at(node, first + index) == Some(*place))
                };
                if !old.iter().enumerate().all(names) {
                    edit.release_unchanged();
                    return None;
                }
                NamingHeld::Page(edit)
            }
        };
        let mut held = Vec::with_capacity(old.len());
        for (sight, _) in old {
            if let Some(edit) = self.pages.edit(*sight) {
                held.push(edit);
            }
        }
        if held.len() == old.len() {
            return Some((naming, held));
        }
        held.into_iter().for_each(Edit::release_unchanged);
        match naming {
            NamingHeld::Root(root) => root.release_unchanged(),
            NamingHeld::Page(parent) => parent.release_unchanged(),
        }
        None
    }

    /// Where new pages begin.
    fn cuts_of(&self, image: &Image, parts_min: usize) -> Vec<usize> {
        let room = self.pages.leaf_words() * FILL_SIXTEENTHS / 16;
        let words = image.all_words();
        if parts_min <= 1 && words <= room && image.fits(&[0], &[]) {
            return vec![0];
        }
        let nothing = Coming { key: &[], words: 0 };
        let least = words.div_ceil(room).max(parts_min);
        let mut parts = least..=image.records.len();
        let cuts = parts.find_map(|parts| image.cuts(parts, nothing));
        cuts.expect("each record fits into a page of its own")
    }

    /// Allocates new pages; where no frame is left, changed pages are written first.
    fn fresh(&self, kind: PageKind, count: usize) -> Result<Vec<Fresh<'_>>> {
        match self.pages.fresh(kind, count) {
            Err(error) if error.is_full() => {
                self.write_back(usize::MAX)?;
                self.pages.fresh(kind, count)
            }
            done => done,
        }
    }
}

/// Whether a parent has room for entries of these keys, beside those that it has.
fn has_room(parent: Leaf<'_>, lowers: &[Vec<u8>]) -> bool {
    // Keys lose what all keys of the parent share. A reader that lost a race is told by its sight.
    let words = lowers.iter().map(|lower| parent.words_for(lower.len(), PLACE_BYTES));
    parent.spare_words() >= words.sum()
}

/// Lets a held parent name new pages instead of `old` ones.
fn rename(parent: Leaf<'_>, old: usize, fresh: &[Fresh<'_>], lowers: &[Vec<u8>]) {
    let first = parent.search(&lowers[0]).expect("it was looked for");
    (1..old).for_each(|_| parent.take_out(first + 1));
    let places: Vec<[u8; PLACE_BYTES]> = fresh.iter().map(|page| page.place.encode()).collect();
    let entry = |part: usize| Entry { key: &lowers[part], value: &places[part], flags: 0 };
    let is_done = parent.overwrite(first, entry(0));
    debug_assert!(is_done, "a place is as long as another");
    for part in 1..fresh.len() {
        let entry = entry(part);
        if parent.free_words() < parent.words_for(entry.key.len(), PLACE_BYTES) {
            compact(parent);
        }
        parent.insert(first + part, entry);
    }
}

/// Rewrites a held page, so that all of its unused words lie together.
pub(crate) fn compact(leaf: Leaf<'_>) {
    let image = Image::of(leaf, |_| 0);
    leaf.write(image.bounds(), leaf.notes(), image.records.iter());
}
