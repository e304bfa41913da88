//! What the checkpoint slots name of a keyspace that writes no page in place, for [`crate::watch`] (rules P13, P14 and
//! P16).
//!
//! ```text
//!   slot -> payload -> root -> node -> node -> leaf, segment      turtle, or (`pages`) `access`
//!              |
//!              +-----> extents of large values
//! ```
//!
//! * **P13**: when a slot is written, the media hold every page that can be reached from it: of the
//!   kind, in the generation and at the place that its owner says, owned by one alone.
//! * **P14**: a page that the newest durable slot reaches, or one written after it, is not written.
//! * **P16**: no page is written twice under one generation, in this life or an earlier one. Pages of `access` are,
//!   in one life: until a slot names one it may be written again where it is.
//!
//! **`PAGE_FREE`**. To free a page is a matter of memory alone: on the disk nothing tells it from a page that is owned
//! still, until somebody else's is written there. So this is the state that crashes strike: pages that an earlier slot
//! of this life named, and the newest does not, were given back and are being written over, whoever let them go last (the
//! checkpoint that was published, a snapshot, a reader), and no slot was made durable since. Whatever still
//! needs one of them shows in an image of that time.
//!
//! The layouts here are those of turtle's `payload`, `packed` and `leaf::format`, read once more and
//! from the media alone.

mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{KeyspaceId, Lsn, PageNumber};
use spinney_extent::header::{BlockHeader, BlockKind};
use spinney_extent::slot::SLOT_PAGES;
use spinney_extent::store::DATA_PAGE_FIRST;
use spinney_extent::{HEADER_BYTES, Slot};
use spinney_io::sim::SimView;

/// A page of a leaf or segment.
pub const LEAF: BlockKind = BlockKind::new(5, "leaf");
/// A page of a node.
pub const NODE: BlockKind = BlockKind::new(6, "node");

type Page = [u8; PAGE_BYTES];

/// A page and the allocation that made it.
type Made = (u32, u32);

/// A slot's generation and the pages that it reaches.
type Known = Option<(u64, BTreeSet<u32>)>;

const PAYLOAD: u32 = (PAGE_BYTES - HEADER_BYTES) as u32;
const FILTER_BLOCKS_OF_A_PAGE: u32 = PAYLOAD / 32;

/// The state in which pages that a checkpoint has let go are written over; see the module.
pub(crate) const PAGE_FREE: &str = "page free";

/// What payloads of slots and the pages below them look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As turtle writes them.
    Turtle,
    /// As `access` writes them.
    Pages,
}

impl Layout {
    /// Whether pages of a kind may be written before the log is durable that their LSN names.
    pub(crate) fn is_named_by_slots(kind: BlockKind) -> bool {
        kind == pages::IMAGE || Layout::is_moved(kind)
    }

    /// Whether pages of a kind may be written again where they are, until a slot names them.
    fn is_moved(kind: BlockKind) -> bool {
        [pages::LEAF, pages::NODE].contains(&kind)
    }
}

/// The files of one disk.
#[derive(Debug)]
pub(crate) struct Roots {
    layout: Layout,
    files: BTreeMap<PathBuf, Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// The newest slot on the media, and the pages that it reaches.
    durable: Known,
    /// One that was written after it and is not known to be on the media.
    written: Known,
    /// Pages written in this life.
    made: BTreeSet<Made>,
    /// Pages that slots before the newest reached, that it does not reach, and that nobody has written over.
    let_go: BTreeSet<u32>,
    /// Whether some were written over since the newest slot.
    is_reusing: bool,
}

impl Roots {
    pub(crate) fn new(layout: Layout) -> Roots {
        Roots { layout, files: BTreeMap::new() }
    }

    /// Whether a file is in the state [`PAGE_FREE`].
    pub(crate) fn is_reusing(&self) -> bool {
        self.files.values().any(|slots| slots.is_reusing)
    }

    /// A page of a store file is about to be written. Answers how many pages were looked at, and the
    /// newest LSN of those that may be written before the log is; or what rule is broken.
    pub(crate) fn before_write(
        &mut self,
        view: &SimView<'_>,
        path: &Path,
        number: u32,
        page: &Page,
    ) -> Result<(u64, Lsn), String> {
        let name = path.display();
        if !self.files.contains_key(path) {
            let durable = newest(self.layout, view, path)?;
            let slots = Slots { durable, ..Slots::default() };
            self.files.insert(path.to_owned(), slots);
        }
        let slots = self.files.get_mut(path).expect("it was just put there");
        if number < SLOT_PAGES {
            // A page of nothing but zeros makes a file longer.
            let Ok(header) = BlockHeader::decode(page) else { return Ok((0, Lsn::ZERO)) };
            let slot = Slot::decode(page, header.keyspace, PageNumber(number));
            let slot = slot.map_err(|damage| format!("P14: a slot of {name}: {damage:?}"))?;
            let (pages, newest) = reach(self.layout, view, path, header.keyspace, &slot)
                .map_err(|what| format!("P13: slot {} of {name} {what}", slot.generation))?;
            let looked_at = pages.len() as u64;
            slots.written = Some((slot.generation, pages));
            return Ok((looked_at, newest));
        }
        if number < DATA_PAGE_FIRST {
            return Ok((0, Lsn::ZERO));
        }
        for (generation, pages) in slots.durable.iter().chain(&slots.written) {
            if pages.contains(&number) {
                return Err(format!(
                    "P14: page {number} of {name} is written, and checkpoint {generation} needs it"
                ));
            }
        }
        slots.is_reusing |= slots.let_go.remove(&number);
        let Ok(header) = BlockHeader::decode(page) else { return Ok((0, Lsn::ZERO)) };
        let made = (number, header.generation.0);
        let durable = view.durable_page(path, u64::from(number) * PAGE_BYTES as u64);
        let durable = durable.and_then(|page| BlockHeader::decode(page).ok());
        let earlier = durable.is_some_and(|there| (there.page.0, there.generation.0) == made);
        let is_made = !slots.made.insert(made);
        let may_again = is_made && Layout::is_moved(header.kind);
        if (is_made || earlier) && !may_again {
            let when = if earlier { "is on the media" } else { "was written in this life" };
            let generation = header.generation;
            return Err(format!(
                "P16: page {number} of {name} is to be written in generation {generation}, in which it {when}"
            ));
        }
        Ok((0, Lsn::ZERO))
    }

    /// A store file was synced.
    pub(crate) fn after_sync(&mut self, view: &SimView<'_>, path: &Path) -> Result<(), String> {
        let Some(slots) = self.files.get_mut(path) else { return Ok(()) };
        let generation = newest_slot(view, path).map(|(_, slot)| slot.generation);
        let is_it = |known: &Known| known.as_ref().map(|(known, _)| *known) == generation;
        let written = slots.written.take();
        if is_it(&slots.durable) {
            return Ok(());
        }
        // What it reaches was on the media when it was written, and nobody may write there.
        let now = if is_it(&written) { written } else { newest(self.layout, view, path)? };
        let before = std::mem::replace(&mut slots.durable, now);
        let reached = slots.durable.as_ref().map(|(_, pages)| pages);
        let is_let_go = |page: &u32| reached.is_none_or(|reached| !reached.contains(page));
        slots.let_go.extend(before.into_iter().flat_map(|(_, pages)| pages).filter(is_let_go));
        slots.is_reusing = false;
        Ok(())
    }
}

/// The newest slot on the media.
fn newest_slot(view: &SimView<'_>, path: &Path) -> Option<(KeyspaceId, Slot)> {
    let slots = (0..SLOT_PAGES).filter_map(|number| {
        let page = view.durable_page(path, u64::from(number) * PAGE_BYTES as u64)?;
        let keyspace = BlockHeader::decode(page).ok()?.keyspace;
        Some((keyspace, Slot::decode(page, keyspace, PageNumber(number)).ok()?))
    });
    slots.max_by_key(|(_, slot)| slot.generation)
}

/// The same, with all that it reaches.
fn newest(layout: Layout, view: &SimView<'_>, path: &Path) -> Result<Known, String> {
    let Some((keyspace, slot)) = newest_slot(view, path) else { return Ok(None) };
    let (pages, _) = reach(layout, view, path, keyspace, &slot).map_err(|what| {
        format!(
            "P14: the newest slot of {} on the media, {}, {what}",
            path.display(),
            slot.generation
        )
    })?;
    Ok(Some((slot.generation, pages)))
}

/// All pages that a slot needs, every one of them on the media, and the newest LSN of those that may be
/// written before the log is.
fn reach(
    layout: Layout,
    view: &SimView<'_>,
    path: &Path,
    keyspace: KeyspaceId,
    slot: &Slot,
) -> Result<(BTreeSet<u32>, Lsn), String> {
    let (pages, leaves, newest) = (BTreeSet::new(), BTreeSet::new(), Lsn::ZERO);
    let mut walk = Walk { view, path, keyspace, pages, leaves, newest };
    let mut payload = Vec::new();
    for (extent, generation) in &slot.extents {
        let pages = extent.page.0..extent.page.0 + extent.pages();
        walk.own(pages, generation.0, BlockKind::CHECKPOINT, &mut payload)?;
    }
    payload.truncate(usize::try_from(slot.payload_length).unwrap_or(usize::MAX));
    if !payload.is_empty() {
        match layout {
            Layout::Turtle => walk.payload(&payload)?,
            Layout::Pages => walk.payload_of_pages(&payload)?,
        }
    }
    Ok((walk.pages, walk.newest))
}

struct Walk<'a, 'v> {
    view: &'a SimView<'v>,
    path: &'a Path,
    keyspace: KeyspaceId,
    pages: BTreeSet<u32>,
    /// Several nodes may have one segment.
    leaves: BTreeSet<Vec<u8>>,
    /// Newest LSN of pages that may be written before the log is.
    newest: Lsn,
}

fn no_such(what: &str) -> String {
    format!("names {what} that does not parse")
}

impl Walk<'_, '_> {
    /// Takes pages for one owner and appends what they hold.
    fn own(
        &mut self,
        numbers: std::ops::Range<u32>,
        generation: u32,
        kind: BlockKind,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        for number in numbers {
            if !self.pages.insert(number) {
                return Err(format!("reaches page {number} twice"));
            }
            let block = self.view.durable_page(self.path, u64::from(number) * PAGE_BYTES as u64);
            let header = block.and_then(|block| BlockHeader::decode(block).ok());
            let is_there = header.is_some_and(|header| {
                (header.kind, header.page.0, header.generation.0, header.keyspace)
                    == (kind, number, generation, self.keyspace)
            });
            let Some(block) = block.filter(|_| is_there) else {
                return Err(format!(
                    "needs page {number} of kind {kind:?} in generation {generation}, and the media hold {header:?}"
                ));
            };
            if kind == pages::IMAGE {
                self.newest = self.newest.max(header.map_or(Lsn::ZERO, |header| header.lsn));
            }
            out.extend_from_slice(&block[HEADER_BYTES..]);
        }
        Ok(())
    }

    fn payload(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut left = Fields(payload);
        let mut parse = || {
            (left.number::<1>()? == 1).then_some(())?;
            let length = left.number::<4>()? as usize;
            let root = left.bytes(length)?;
            let count = left.number::<4>()? as usize;
            (left.0.len() == count * 9).then_some((root, left.0))
        };
        let (root, large) = parse().ok_or_else(|| no_such("a payload"))?;
        match root.split_first() {
            None | Some((0, _)) => {}
            Some((1, leaf)) => self.leaf(leaf)?,
            Some((2, node)) => self.node(node)?,
            Some(_) => return Err(no_such("a root")),
        }
        for extent in large.chunks_exact(9) {
            let mut fields = Fields(extent);
            let all = (fields.number::<4>(), fields.number::<1>(), fields.number::<4>());
            let (Some(first), Some(order), Some(generation)) = all else { continue };
            let pages = first..first + (1 << (order & 0x7f));
            self.own(pages, generation, BlockKind::LARGE, &mut Vec::new())?;
        }
        Ok(())
    }

    fn node(&mut self, description: &[u8]) -> Result<(), String> {
        let mut fields = Fields(description);
        let all = (fields.number::<4>(), fields.number::<4>(), fields.number::<4>());
        let (Some(first), Some(generation), Some(length)) = all else {
            return Err(no_such("a node"));
        };
        let mut payload = Vec::new();
        let pages = first..first.saturating_add(length.div_ceil(PAYLOAD));
        self.own(pages, generation, NODE, &mut payload)?;
        payload.truncate(length as usize);
        let (height, children, segments) =
            parse_node(&payload).ok_or_else(|| no_such("a node's payload"))?;
        for child in children {
            if height == 1 { self.leaf(child)? } else { self.node(child)? }
        }
        segments.into_iter().try_for_each(|leaf| self.leaf(leaf))
    }

    fn leaf(&mut self, description: &[u8]) -> Result<(), String> {
        if !self.leaves.insert(description.to_vec()) {
            return Ok(());
        }
        let fields: Vec<u32> =
            description.as_chunks().0.iter().map(|field| u32::from_le_bytes(*field)).collect();
        let [first, generation, _, index, blocks, keys, values, _] = fields[..] else {
            return Err(no_such("a leaf"));
        };
        let pages = index.div_ceil(PAYLOAD)
            + blocks.div_ceil(FILTER_BLOCKS_OF_A_PAGE)
            + keys
            + values.div_ceil(PAYLOAD);
        self.own(first..first + pages, generation, LEAF, &mut Vec::new())
    }
}

/// Height, children and segments of a node.
type Node<'a> = (u32, Vec<&'a [u8]>, Vec<&'a [u8]>);

fn parse_node(payload: &[u8]) -> Option<Node<'_>> {
    let mut left = Fields(payload);
    let (version, height) = (left.number::<1>()?, left.number::<1>()?);
    let (pivots, levels) = (left.number::<1>()?, left.number::<1>()?);
    (matches!(version, 1 | 2) && height > 0).then_some(())?;
    // Bytes pending, and since version 2 how many tombstones are among them.
    let pending = if version == 1 { 8 } else { 12 };
    let (mut children, mut segments) = (Vec::new(), Vec::new());
    for _ in 0..pivots {
        let bound = left.number::<2>()? as usize;
        left.bytes(bound + pending)?;
        let length = left.number::<1>()? as usize;
        children.push(left.bytes(length)?);
    }
    for _ in 0..levels {
        for _ in 0..left.number::<1>()? {
            left.bytes(8)?;
            let lower = left.number::<2>()? as usize;
            left.bytes(lower)?;
            if left.number::<1>()? == 1 {
                let upper = left.number::<2>()? as usize;
                left.bytes(upper)?;
            }
            let length = left.number::<1>()? as usize;
            segments.push(left.bytes(length)?);
        }
    }
    left.0.is_empty().then_some((height, children, segments))
}

/// Bytes that are still to be taken apart.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A little-endian number of this many bytes, four at most.
    fn number<const N: usize>(&mut self) -> Option<u32> {
        let bytes = self.bytes(N)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }
}
