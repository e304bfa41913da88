//! Going through all pages: which extents the tree owns, and whether all is as it should be.

use std::sync::atomic::Ordering::Relaxed;

use spinney_base::{Generation, Result};
use spinney_extent::Extent;
use spinney_leaf::{Image, Leaf};
use spinney_sync::racy::Word;

use crate::btree::descend::place_at;
use crate::btree::tree::BTree;
use crate::pages::{PageKind, leaf_of};
use crate::place::Place;
use crate::shape::RootReader;

/// Gets a key, its value or the pointer to it, and the flags of the record.
pub type See<'s> = dyn FnMut(&[u8], &[u8], u8) + 's;

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
        let (root, mut count) = (self.root.see(), 0);
        self.owned_below(root.place, root.level, &mut |extent, generation| {
            count += 1;
            see(extent, generation);
        })?;
        self.pages.set_count(count);
        Ok(())
    }

    /// Lets all pages of a tree go that no slot names, and that nobody reads.
    ///
    /// # Errors
    /// `Corruption` or `Io`: some stay taken until the store is opened again.
    pub fn discard(self) -> Result<()> {
        let mut all = Vec::new();
        self.owned(&mut |extent, generation| all.push((extent, generation)))?;
        let store = self.pages.store().clone();
        drop(self);
        all.into_iter().for_each(|(extent, generation)| store.let_go(extent, generation));
        Ok(())
    }

    /// Returns the number of its pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.count()
    }

    /// Returns the bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.pages.page_bytes() as u64
    }

    /// Returns about how many bytes the leaves take for keys from `lower` to below `upper`, from what is in
    /// memory.
    #[must_use]
    pub fn approximate_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        if upper.is_some_and(|upper| lower >= upper) {
            return 0;
        }
        let root = self.root.see();
        let all = (self.pages.count() * self.page_bytes()) as f64 * self.pages.fill();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate")]
        let bytes = self.share_of((root.place, root.level), all, (lower, upper)) as u64;
        bytes
    }

    /// The bytes of a range below a page, all of which has `all`.
    fn share_of(&self, (at, level): (Place, u8), all: f64, range: (&[u8], Option<&[u8]>)) -> f64 {
        let half = all / 2.0;
        let Some(look) = self.pages.find(at, PageKind::of_level(level)) else { return half };
        let leaf = leaf_of(look.words());
        let place = |key: &[u8]| match leaf.search(key) {
            Ok(at) => at,
            Err(at) => at - usize::from(level > 0 && at > 0),
        };
        let last = leaf.len().saturating_sub(1);
        let first = place(range.0);
        let end = range.1.map_or(leaf.len(), |upper| leaf.search(upper).unwrap_or_else(|at| at));
        let each = all / leaf.len().max(1) as f64;
        let whole = |from: usize, to: usize| to.saturating_sub(from) as f64 * each;
        if level == 0 || range.0.is_empty() && range.1.is_none() {
            return whole(first, end);
        }
        let ends = [
            (first, place_at(leaf, first)),
            (end.saturating_sub(1), place_at(leaf, end.saturating_sub(1))),
        ];
        if !self.pages.is_valid(look.sight()) || first > last {
            return half;
        }
        let below = |(_, child): (usize, Option<Place>)| {
            child.map_or(each / 2.0, |child| self.share_of((child, level - 1), each, range))
        };
        match ends[1].0 <= ends[0].0 {
            true => below(ends[0]),
            false => below(ends[0]) + below(ends[1]) + whole(ends[0].0 + 1, ends[1].0),
        }
    }

    /// Reads leaves from disk and checks them: those of the inner node for a key. Returns where to go on;
    /// `None` at the end. `note` gets what damaged pages that are still named say.
    ///
    /// # Errors
    /// `Corruption` or `Io` of an inner node.
    pub fn scrub(
        &self,
        from: &[u8],
        note: &mut dyn FnMut(Place, Result<()>),
    ) -> Result<Option<Vec<u8>>> {
        let mut reader = RootReader::new(self.pages.store().clone(), self.pages.order());
        loop {
            let Some(node) = self.descend(from, 1)? else {
                let root = self.root.see();
                self.scrub_page(&mut reader, (root.place, 0), note);
                return Ok(None);
            };
            let (leaf, mut upper) = (node.leaf(), Vec::new());
            let children: Option<Vec<Place>> =
                (0..leaf.len()).map(|index| place_at(leaf, index)).collect();
            let last = leaf.len().checked_sub(1).map(|last| {
                let mut key = Vec::new();
                leaf.key(leaf.slot(last), &mut key);
                key
            });
            let has_upper = leaf.upper(&mut upper);
            let (Some(children), true) = (children, self.pages.is_valid(node.look.sight())) else {
                continue;
            };
            self.scrub_page(&mut reader, (node.place, 1), note);
            self.scrub_above(&mut reader, from, note)?;
            for child in children {
                self.scrub_page(&mut reader, (child, 0), note);
            }
            if has_upper {
                return Ok(Some(upper));
            }
            // A node without an upper bound may be the last one, or have left it out.
            let Some(last) = last else { return Ok(None) };
            loop {
                let leaf = self.descend(&last, 0)?.expect("every tree has leaves");
                upper.clear();
                let has_upper = leaf.leaf().upper(&mut upper);
                if self.pages.is_valid(leaf.look.sight()) {
                    return Ok(has_upper.then_some(upper));
                }
            }
        }
    }

    /// Reads the nodes above level 1 that begin with this key.
    fn scrub_above(
        &self,
        reader: &mut RootReader,
        from: &[u8],
        note: &mut dyn FnMut(Place, Result<()>),
    ) -> Result<()> {
        for level in 2..=self.root.see().level {
            let Some(node) = self.descend(from, level)? else { return Ok(()) };
            let mut lower = Vec::new();
            node.leaf().lower(&mut lower);
            if self.pages.is_valid(node.look.sight()) && lower == from {
                self.scrub_page(reader, (node.place, level), note);
            }
        }
        Ok(())
    }

    /// Reads a page from disk. One that is dirty may lie nowhere, or have moved meanwhile.
    fn scrub_page(
        &self,
        reader: &mut RootReader,
        (at, level): (Place, u8),
        note: &mut dyn FnMut(Place, Result<()>),
    ) {
        let result = reader.read(at, level).map(drop);
        if result.is_err() {
            let is_dirty = self.pages.dirty().iter().any(|page| page.place() == at);
            let is_gone = self.pages.store().is_free(at.page);
            if is_dirty || is_gone {
                return;
            }
        }
        note(at, result);
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
        let words = self.copied(at, level)?;
        let children = self.children(leaf_of(&words), at, level)?;
        children.into_iter().try_for_each(|child| self.owned_below(child, level - 1, see))
    }

    /// Copies a page that stays where it is. Its frame may be given to another page meanwhile, so the copy counts if the page is
    /// still there afterwards (rule P27); only then is anything said of it.
    fn copied(&self, at: Place, level: u8) -> Result<Box<[Word]>> {
        loop {
            let look = self.pages.look(at, PageKind::of_level(level))?;
            let copy = look.words().iter().map(|word| Word::new(word.load(Relaxed))).collect();
            if self.pages.is_valid(look.sight()) {
                return Ok(copy);
            }
        }
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
    pub fn walk(&self, see: &mut See<'_>) -> Result<Walked> {
        let (root, mut walked) = (self.root.see(), Walked::default());
        self.walk_below((root.place, root.level), (&[], None), see, &mut walked)?;
        Ok(walked)
    }

    fn walk_below(
        &self,
        (at, level): (Place, u8),
        (lower, upper): (&[u8], Option<&[u8]>),
        see: &mut See<'_>,
        walked: &mut Walked,
    ) -> Result<()> {
        let words = self.copied(at, level)?;
        let leaf = leaf_of(&words);
        if leaf.owner() != u64::from(level) {
            return Err(self.damaged(at, &format!("level {level}")));
        }
        let children = if level > 0 { self.children(leaf, at, level)? } else { Vec::new() };
        walked.words += if level == 0 { (leaf.live() + leaf.len()) as u64 } else { 0 };
        leaf.check(crate::pages::LARGE, 0).map_err(|wrong| self.damaged(at, &wrong.expected))?;
        let image = Image::of(leaf, |_| 0);
        drop(words);
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
