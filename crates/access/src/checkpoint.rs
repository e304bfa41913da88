//! Taking a copy of the tree that a slot can name (rules H10 to H12).
//!
//! 1. Every leaf that is dirty is written back, without a lock, and so are leaves that are fresh, until few
//!    are left.
//! 2. The gate closes. Now no page comes to be named by another or moves; reads, and changes of records within
//!    a leaf, go on. Leaves that are still fresh are written. Inner nodes that are dirty, and all above them, get
//!    new places, from the bottom up, in memory; then they are copied. Whatever is let go from here on may be
//!    named by this copy.
//! 3. The gate opens, and the copies are written. The caller syncs, and publishes a slot that names the root.
//!
//! So a leaf that the root names holds at least what it held when the checkpoint began, and every page that
//! it names was written whole. If anything fails the tree in memory is right, and the slot before stays valid.

use std::collections::BTreeMap;

use spinney_base::{Error, ErrorKind, Result};
use spinney_cache::{Sight, Written};
use spinney_io::AlignedBuf;

use crate::btree::tree::BTree;
use crate::dirty::Dirty;
use crate::place::{Place, TreeRoot};
use crate::write_back::Moving;

/// Leaves that may be fresh when the gate closes. With more, splits wait longer; with fewer, rounds write
/// what is fresh for a moment only.
const FRESH_MAX: usize = 64;
/// Most rounds, in case splits are faster than the disk.
const ROUNDS_MAX: usize = 8;
/// Places allocated beyond those that were needed a moment ago.
const PLACES_MORE: usize = 32;

/// Inner nodes that were copied.
struct Copies {
    pages: Vec<(Dirty, Sight)>,
    buf: AlignedBuf,
}

impl BTree {
    /// Writes the tree so that a slot can name it, and calls `publish` with its root, which syncs and writes
    /// the slot. Every change that was merged before the call is in it.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Io` or `Corruption`, and what `publish` answers; the tree is as it was.
    pub fn checkpoint(&self, publish: impl FnOnce(TreeRoot) -> Result<()>) -> Result<()> {
        let _alone = self.writing.lock();
        self.write_leaves(false)?;
        for _ in 0..ROUNDS_MAX {
            if self.write_leaves(true)? <= FRESH_MAX {
                break;
            }
        }
        let mut places = Vec::new();
        let copied = self.copy_shape(&mut places);
        self.pages.release(places);
        let (root, copies) = copied?;
        let written = self.write_shape(copies).and_then(|()| publish(root));
        match &written {
            Ok(()) => self.pages.store().published(),
            Err(_) => self.pages.store().failed(),
        }
        written
    }

    /// Writes dirty leaves, or those that are fresh. Returns how many.
    fn write_leaves(&self, only_fresh: bool) -> Result<usize> {
        let mut leaves = self.pages.dirty();
        leaves.retain(|page| page.level == 0 && (page.is_fresh || !only_fresh));
        self.write_pages(&leaves, if only_fresh { Moving::ButFresh } else { Moving::All })
    }

    /// Closes the gate, and copies the inner nodes that are not on disk as they are.
    fn copy_shape(&self, places: &mut Vec<Place>) -> Result<(TreeRoot, Copies)> {
        for _ in 0..ROUNDS_MAX {
            let _closed = self.pages.gate.close();
            self.write_leaves(true)?;
            let mut nodes = self.changed_shape()?;
            let needed = nodes.iter().filter(|node| !node.is_fresh).count();
            if let Some(missing) = needed.checked_sub(places.len()).filter(|missing| *missing > 0) {
                drop(_closed);
                places.extend(self.pages.allocate(missing + PLACES_MORE)?);
                continue;
            }
            self.move_nodes(&mut nodes, places)?;
            self.pages.store().close_gate()?;
            let seen = self.root.see();
            let root = TreeRoot { place: seen.place, level: seen.level };
            return Ok((root, self.copy_nodes(nodes)?));
        }
        Err(Error::new(ErrorKind::Full, "inner nodes change faster than places are allocated"))
    }

    /// Dirty inner nodes and all above them, from the bottom up. The gate is closed.
    fn changed_shape(&self) -> Result<Vec<Dirty>> {
        let root = self.root.see();
        let mut nodes: BTreeMap<(u8, Vec<u8>), Dirty> = BTreeMap::new();
        for page in self.pages.dirty().into_iter().filter(|page| page.level > 0) {
            nodes.insert((page.level, page.lower.clone()), page);
        }
        let dirty: Vec<(u8, Vec<u8>)> = nodes.keys().cloned().collect();
        for (level, lower) in dirty {
            for above in level + 1..=root.level {
                let (place, key) = self.node_above(&lower, above)?;
                let id = self.pages.id_of(place, above);
                let page = Dirty { level: above, lower: key.clone(), is_fresh: false, id };
                nodes.entry((above, key)).or_insert(page);
            }
        }
        Ok(nodes.into_values().collect())
    }

    /// Where the node of a level above a page lies, and its lower bound. The gate is closed, but its frame may be given to another
    /// page while it is read (rule P27).
    fn node_above(&self, lower: &[u8], level: u8) -> Result<(Place, Vec<u8>)> {
        loop {
            let node = self.descend(lower, level)?;
            let node = node.ok_or_else(|| self.damaged(self.root.see().place, "a child"))?;
            let mut key = Vec::new();
            node.leaf().lower(&mut key);
            if self.pages.is_valid(node.look.sight()) {
                return Ok((node.place, key));
            }
        }
    }

    /// Gives nodes new places, from the bottom up. The gate is closed, so nobody else takes inner nodes.
    fn move_nodes(&self, nodes: &mut [Dirty], places: &mut Vec<Place>) -> Result<()> {
        for node in nodes {
            if node.is_fresh {
                continue;
            }
            let (from, to) = (node.place(), *places.last().expect("as many were allocated"));
            let seen = self.root.see();
            if seen.level == node.level {
                let root = self.root.edit(seen).expect("the gate is closed");
                self.pages.rename(node, to);
                root.set(to, seen.level);
            } else {
                let parent = self.descend(&node.lower, node.level + 1)?;
                let edit = parent.and_then(|parent| self.pages.edit(parent.look.sight()));
                let no_frame =
                    || Error::new(ErrorKind::Full, "an inner node has no room in memory");
                let mut edit = edit.ok_or_else(no_frame)?;
                if !self.name_anew(&edit, node, to) {
                    return Err(self.damaged(from, "a parent that names it"));
                }
                edit.mark_dirty();
            }
            places.pop();
            self.pages.let_go(from);
            node.id = self.pages.id_of(to, node.level);
        }
        Ok(())
    }

    fn copy_nodes(&self, nodes: Vec<Dirty>) -> Result<Copies> {
        let (mut buf, bytes) = (self.pages.buffer(nodes.len()), self.pages.page_bytes());
        let mut pages = Vec::with_capacity(nodes.len());
        for (node, block) in nodes.into_iter().zip(buf.bytes_mut().chunks_mut(bytes)) {
            let gone = || self.damaged(node.place(), "stayed in memory");
            let sight = self.pages.copy(node.id, block).ok_or_else(gone)?;
            pages.push((node, sight));
        }
        Ok(Copies { pages, buf })
    }

    /// Writes copied nodes to the places that they have.
    fn write_shape(&self, mut copies: Copies) -> Result<()> {
        let places: Vec<Place> = copies.pages.iter().map(|(node, _)| node.place()).collect();
        let pages: Vec<(&Dirty, Sight)> =
            copies.pages.iter().map(|(node, sight)| (node, *sight)).collect();
        self.write_copies(&pages, &places, &mut copies.buf)?;
        for (_, sight) in &pages {
            self.pages.file().written_back(*sight, Written::InPlace);
        }
        Ok(())
    }
}
