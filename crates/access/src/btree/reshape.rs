//! Changes of which keys pages are for: splits, joins, and pages that fill up, all in one step.
//!
//! ```text
//!   before   parent [ a | f | m ]       after   parent [ a | d | h | m ]
//!                     |   |                              |   |   |
//!                    L1  L2   (+ changes)               N1  N2  N3        new pages of all of them
//! ```
//!
//! 1. The pages were copied, and what was seen of them is validated later.
//! 2. New pages are allocated and written in memory; this may fail, and nothing has changed (rule H20). A
//!    parent without room for their separators is spread over new pages in the same way, up to one that has
//!    room, or to a new root.
//! 3. Behind the gate, all old pages are taken as they were seen, and so is what names the topmost. If one has
//!    changed, the step starts again.
//! 4. The topmost new pages are named; the old ones go, and their places are let go (rule H10).
//!
//! A reader in an old page finds it changed and starts again, and so does one that comes from above.

use spinney_base::{Result, probe};
use spinney_cache::{Edit, Sight};
use spinney_leaf::{Bounds, Coming, Entry, Image, Leaf, Records, record_words};

use crate::btree::descend::{Node, place_at};
use crate::btree::root::{RootHeld, RootSeen};
use crate::btree::tree::BTree;
use crate::pages::{Fresh, PageKind, leaf_of};
use crate::place::{PLACE_BYTES, Place};

/// Sixteenths of a page that are filled when records are spread. With more, the next records divide it;
/// with less, pages hold less.
const FILL_SIXTEENTHS: usize = 14;

/// Most rounds of write-back before new pages: one for each of the lowest levels.
const ROUNDS_MAX: usize = 3;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Reshaped {
    Done,
    /// Something had changed.
    Again,
    /// Nothing: frames are short, all changed pages were written.
    NoFrame,
}

/// An old page: what was seen of it, where it lies, and its level.
type Old = (Sight, Place, u8);

/// All new pages of a step, and what names the topmost.
struct Plan<'a> {
    fresh: Vec<Fresh<'a>>,
    old: Vec<Old>,
    naming: Naming<'a>,
}

/// What names the topmost new pages.
enum Naming<'a> {
    /// The root: its place and level then.
    Root(RootSeen, Place, u8),
    /// A page: so many old entries from this lower bound on become these.
    Page(Node<'a>, usize, Vec<(Vec<u8>, Place)>),
}

/// The same, held.
enum Held<'a> {
    Root(RootHeld<'a>),
    Page(Edit<'a>),
}

impl BTree {
    /// Spreads `image`, which is all that `old` hold with what is to be changed, over new pages. The old
    /// pages follow each other under one parent. `taken` is called while they are, and still named.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`; nothing has changed.
    pub(crate) fn reshape(
        &self,
        level: u8,
        old: &[(Sight, Place)],
        image: Image,
        taken: &dyn Fn(),
    ) -> Result<Reshaped> {
        let _inside = probe::enter("reshape");
        let old = old.iter().map(|(sight, place)| (*sight, *place, level)).collect();
        let plan = match self.plan(level, old, image)? {
            Ok(plan) => plan,
            Err(why) => return Ok(why),
        };
        let Plan { fresh, old, naming } = plan;
        let _shape = self.pages.gate.enter();
        let Some((mut above, held)) = self.take(&naming, &old) else { return Ok(Reshaped::Again) };
        taken();
        match (&mut above, &naming) {
            (Held::Root(root), Naming::Root(_, place, level)) => root.set(*place, *level),
            (Held::Page(parent), Naming::Page(_, count, entries)) => {
                rename(leaf_of(parent.words()), *count, entries);
                parent.mark_dirty();
            }
            _ => unreachable!("it was taken as it was planned"),
        }
        fresh.into_iter().for_each(Fresh::name);
        drop(above);
        for (edit, (_, place, level)) in held.into_iter().zip(&old) {
            self.pages.remove(edit, *place, *level);
        }
        Ok(Reshaped::Done)
    }

    /// Makes the new pages, up to what has room to name them. Where that fails, says how the step ended instead.
    fn plan(
        &self,
        level: u8,
        old: Vec<Old>,
        image: Image,
    ) -> Result<std::result::Result<Plan<'_>, Reshaped>> {
        let (mut level, mut image, mut fresh) = (level, image, Vec::new());
        let (root, mut all_old, mut old_here) = (self.root.see(), old.clone(), old);
        loop {
            let made = self.write_parts(level, &image)?;
            let entries: Vec<(Vec<u8>, Place)> =
                made.iter().map(|(lower, page)| (lower.clone(), page.place)).collect();
            fresh.extend(made.into_iter().map(|(_, page)| page));
            if level >= root.level {
                if level == root.level && root.place != old_here[0].1 {
                    return Ok(Err(Reshaped::Again));
                }
                if let [(_, place)] = entries[..] {
                    let naming = Naming::Root(root, place, level);
                    return Ok(Ok(Plan { fresh, old: all_old, naming }));
                }
                image = Image::new(records_of(&entries), image.bounds(), self.pages.leaf_words());
                level += 1;
                continue;
            }
            let Some(parent) = self.descend(&image.lower, level + 1)? else {
                return Ok(Err(Reshaped::Again));
            };
            if !parent.look.is_cached() {
                // All frames may be dirty, or those of this step.
                self.write_back(usize::MAX)?;
                return Ok(Err(Reshaped::NoFrame));
            }
            let places = old_here.iter().map(|(_, place, _)| *place);
            let Some(first) = first_entry(parent.leaf(), &image.lower, places) else {
                return Ok(Err(Reshaped::Again));
            };
            let count = old_here.len();
            if has_room(parent.leaf(), &entries[1..]) {
                let naming = Naming::Page(parent, count, entries);
                return Ok(Ok(Plan { fresh, old: all_old, naming }));
            }
            let of_parent = Image::of(parent.leaf(), |_| 0);
            if !self.pages.is_valid(parent.look.sight()) {
                return Ok(Err(Reshaped::Again));
            }
            let records = replaced(&of_parent.records, (first, count), &entries);
            image = Image::new(records, of_parent.bounds(), self.pages.leaf_words());
            level += 1;
            old_here = vec![(parent.look.sight(), parent.place, level)];
            all_old.extend(&old_here);
        }
    }

    /// Writes an image to new pages of a level. Returns each with its lower bound.
    fn write_parts(&self, level: u8, image: &Image) -> Result<Vec<(Vec<u8>, Fresh<'_>)>> {
        let (cuts, lowers) = match level {
            0 => self.leaf_parts(image),
            _ => self.node_parts(image),
        };
        let fresh = self.fresh(PageKind::of_level(level), cuts.len())?;
        for (part, page) in fresh.iter().enumerate() {
            let end = cuts.get(part + 1).copied().unwrap_or(image.records.len());
            let entries = (cuts[part]..end).map(|index| image.records.entry(index));
            let mut bounds = image.bounds_of(part, &lowers);
            if level > 0 {
                bounds = self.node_bounds(bounds.lower, bounds.upper);
            }
            page.leaf().set_owner(level.into());
            page.leaf().write(bounds, 0, entries);
        }
        Ok(lowers.into_iter().zip(fresh).collect())
    }

    /// Takes all that changes, if it is as it was seen.
    fn take<'a>(&'a self, naming: &Naming<'a>, old: &[Old]) -> Option<(Held<'a>, Vec<Edit<'a>>)> {
        let above = match naming {
            Naming::Root(seen, ..) => Held::Root(self.root.edit(*seen)?),
            Naming::Page(parent, ..) => Held::Page(self.pages.edit(parent.look.sight())?),
        };
        let mut held = Vec::with_capacity(old.len());
        for (sight, ..) in old {
            held.extend(self.pages.edit(*sight));
        }
        if held.len() == old.len() {
            return Some((above, held));
        }
        held.into_iter().for_each(Edit::release_unchanged);
        match above {
            Held::Root(root) => root.release_unchanged(),
            Held::Page(parent) => parent.release_unchanged(),
        }
        None
    }

    /// Words of records in a page behind which the last one begins: what comes in order comes behind it, so little
    /// is left for others.
    fn room_at_end(&self) -> usize {
        self.pages.leaf_words() * (2 * FILL_SIXTEENTHS + 2) / 32
    }

    /// Where new leaves begin, and their lower bounds. Those before the last leaf of all are full, others as full as
    /// each other.
    fn leaf_parts(&self, image: &Image) -> (Vec<usize>, Vec<Vec<u8>>) {
        let room = self.pages.leaf_words() * FILL_SIXTEENTHS / 16;
        let words = image.all_words();
        let full = || image.upper.is_none().then(|| image.full_cuts(self.room_at_end())).flatten();
        let cuts = if words <= room && image.fits(&[0], &[]) {
            vec![0]
        } else if let Some(cuts) = full() {
            cuts
        } else {
            let nothing = Coming { key: &[], words: 0 };
            let mut parts = words.div_ceil(room)..=image.records.len();
            // Few long keys of uneven records may lie in no number of pages evenly.
            parts
                .find_map(|parts| image.cuts(parts, nothing))
                .unwrap_or_else(|| image.packed_cuts())
        };
        let lowers = image.lowers(&cuts, &[]);
        (cuts, lowers)
    }

    /// Where new inner nodes begin. The lower bound of each is the key of its first entry: a shorter
    /// separator would lead keys there that belong to the child before.
    fn node_parts(&self, image: &Image) -> (Vec<usize>, Vec<Vec<u8>>) {
        let room = self.pages.leaf_words() * FILL_SIXTEENTHS / 16;
        let (count, words) = (image.records.len(), image.all_words());
        let each = match image.upper {
            Some(_) => words.div_ceil(words.div_ceil(room).max(1)),
            None => self.room_at_end(),
        };
        let mut cuts = vec![0];
        let mut of_part = 0;
        for index in 0..count {
            let begin = *cuts.last().expect("there is one");
            if index > begin && (of_part >= each || !self.node_fits(image, begin, index + 1)) {
                cuts.push(index);
                of_part = 0;
            }
            of_part += 1 + record_words(image.records.key(index).len(), PLACE_BYTES);
        }
        let lower = |cut: &usize| match cut {
            0 => image.lower.clone(),
            _ => image.records.key(*cut).to_vec(),
        };
        let lowers = cuts.iter().map(lower).collect();
        (cuts, lowers)
    }

    /// The number of new leaves that an image takes.
    pub(crate) fn leaves_of(&self, image: &Image) -> usize {
        self.leaf_parts(image).0.len()
    }

    /// Whether neighbours fit into one page, with room for more.
    pub(crate) fn is_one(&self, level: u8, image: &Image) -> bool {
        match level {
            0 => image.all_words() <= self.pages.leaf_words() / 4 * 3 && image.fits(&[0], &[]),
            _ => self.node_parts(image).0.len() == 1,
        }
    }

    /// Whether entries of an image fit into one node.
    fn node_fits(&self, image: &Image, begin: usize, end: usize) -> bool {
        let lower = if begin == 0 { &image.lower } else { image.records.key(begin) };
        let next = (end < image.records.len()).then(|| image.records.key(end));
        let bounds = self.node_bounds(lower, next.or(image.upper.as_deref()));
        let prefix = bounds.prefix();
        let words = |index| 1 + record_words(image.records.key(index).len() - prefix, PLACE_BYTES);
        bounds.words() + (begin..end).map(words).sum::<usize>() <= self.pages.leaf_words()
    }

    /// The bounds that an inner node keeps. Long ones would leave no room for two entries, so the upper one
    /// is left out: it only tells what all keys share.
    fn node_bounds<'b>(&self, lower: &'b [u8], upper: Option<&'b [u8]>) -> Bounds<'b> {
        let most = self.pages.page_bytes() / 8;
        Bounds { lower, upper: upper.filter(|upper| lower.len() + upper.len() <= most) }
    }

    /// Allocates new pages; where no frame is left, dirty pages are written first. Those above them, which
    /// name other places then, are written by the next round.
    fn fresh(&self, kind: PageKind, count: usize) -> Result<Vec<Fresh<'_>>> {
        for _ in 0..ROUNDS_MAX {
            match self.pages.fresh(kind, count) {
                Err(error) if error.is_full() => _ = self.write_back(usize::MAX)?,
                done => return done,
            }
        }
        self.pages.fresh(kind, count)
    }
}

/// The entry of the first of these pages, if a node names all of them one behind the other.
fn first_entry(
    node: Leaf<'_>,
    lower: &[u8],
    mut places: impl Iterator<Item = Place>,
) -> Option<usize> {
    let first = node.search(lower).ok()?;
    let names_all = (first..).zip(&mut places).all(|(at, place)| place_at(node, at) == Some(place));
    names_all.then_some(first)
}

/// Whether a node has room for more entries.
fn has_room(node: Leaf<'_>, entries: &[(Vec<u8>, Place)]) -> bool {
    let words = entries.iter().map(|(lower, _)| node.words_for(lower.len(), PLACE_BYTES));
    node.spare_words() >= words.sum()
}

/// Lets a held node name new pages instead of `old` ones.
fn rename(node: Leaf<'_>, old: usize, entries: &[(Vec<u8>, Place)]) {
    let first = node.search(&entries[0].0).expect("it was looked for");
    (1..old).for_each(|_| node.take_out(first + 1));
    node.set_value(first, &entries[0].1.encode());
    for (part, (lower, place)) in entries.iter().enumerate().skip(1) {
        let entry = Entry { key: lower, value: &place.encode(), flags: 0 };
        if node.free_words() < node.words_for(lower.len(), PLACE_BYTES) {
            compact(node);
        }
        node.insert(first + part, entry);
    }
}

fn push(records: &mut Records, key: &[u8], value: &[u8]) {
    records.push((0, 0), |out| out.extend_from_slice(key), |out| out.extend_from_slice(value));
}

/// The entries of a node of these pages alone.
fn records_of(entries: &[(Vec<u8>, Place)]) -> Records {
    let mut records = Records::default();
    entries.iter().for_each(|(lower, place)| push(&mut records, lower, &place.encode()));
    records
}

/// Entries of a node of which some are replaced.
fn replaced(
    before: &Records,
    (first, count): (usize, usize),
    entries: &[(Vec<u8>, Place)],
) -> Records {
    let mut records = Records::default();
    let keep = |records: &mut Records, index| {
        let entry = before.entry(index);
        push(records, entry.key, entry.value);
    };
    (0..first).for_each(|index| keep(&mut records, index));
    entries.iter().for_each(|(lower, place)| push(&mut records, lower, &place.encode()));
    (first + count..before.len()).for_each(|index| keep(&mut records, index));
    records
}

/// Rewrites a held page, so that all of its unused words lie together.
pub(crate) fn compact(leaf: Leaf<'_>) {
    let image = Image::of(leaf, |_| 0);
    leaf.write(image.bounds(), leaf.notes(), image.records.iter());
}
