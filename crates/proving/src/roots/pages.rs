//! The pages of `access` that a slot reaches: a payload of `tiered`, and inner nodes and leaves of `leaf`, read here once
//! more and from the media alone.
//!
//! ```text
//!   payload: order, level | place of the root | extents of large values: live, freed | image, clean run: records, pieces
//!   page:    header | counts | level | bounds | 4 hints | slots ->   <- records: suffix of the key, place
//! ```

use spinney_base::Lsn;
use spinney_base::limits::PAGE_BYTES;
use spinney_extent::HEADER_BYTES;
use spinney_extent::header::{BlockHeader, BlockKind};

use super::{Fields, Walk, no_such};

/// A leaf.
pub(super) const LEAF: BlockKind = BlockKind::wide(8, "tree leaf");
/// A node above leaves.
pub(super) const NODE: BlockKind = BlockKind::wide(9, "inner node");

/// A page of an image.
pub(super) const IMAGE: BlockKind = BlockKind::new(12, "image");

/// Words of a page before its slots.
const SLOTS_AT: usize = 7;

impl Walk<'_, '_> {
    pub(super) fn payload_of_pages(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut left = Fields(payload);
        let parsed = (left.number::<1>(), left.number::<1>(), place(&mut left));
        let (Some(order), Some(level), Some(root)) = parsed else {
            return Err(no_such("a payload"));
        };
        for _ in 0..2 {
            // A count of eight bytes, whose upper half is 0 here.
            let count = left.number::<4>().filter(|_| left.number::<4>() == Some(0));
            for _ in 0..count.ok_or_else(|| no_such("a list of large values"))? {
                let all = (left.number::<4>(), left.number::<1>(), left.number::<4>());
                let (Some(first), Some(large), Some(generation)) = all else {
                    return Err(no_such("a large value"));
                };
                let pages = first..first + (1 << (large & 0x7f));
                self.own(pages, generation, BlockKind::LARGE, &mut Vec::new())?;
            }
        }
        // The image, and clean records, whose notes follow.
        for _ in 0..2 {
            let records = left.number::<4>().zip(left.number::<4>());
            let pieces = left.number::<4>().filter(|_| records.is_some());
            for _ in 0..pieces.ok_or_else(|| no_such("an image"))? {
                let all = (left.number::<4>(), left.number::<4>(), left.number::<4>());
                let (Some(first), Some(pages), Some(generation)) = all else {
                    return Err(no_such("a piece of an image"));
                };
                self.own(first..first.saturating_add(pages), generation, IMAGE, &mut Vec::new())?;
            }
        }
        self.page((root.0, root.1), level, order)
    }

    /// A page of a level, and all below it.
    fn page(
        &mut self,
        (first, generation): (u32, u32),
        level: u32,
        order: u32,
    ) -> Result<(), String> {
        let kind = if level == 0 { LEAF } else { NODE };
        let mut block = Vec::with_capacity(PAGE_BYTES << order);
        for number in first..first.saturating_add(1 << order) {
            if !self.pages.insert(number) {
                return Err(format!("reaches page {number} twice"));
            }
            let page = self.view.durable_page(self.path, u64::from(number) * PAGE_BYTES as u64);
            block.extend_from_slice(page.map_or(&[0; PAGE_BYTES], |page| page));
        }
        let header = BlockHeader::decode(&block).ok();
        let wanted = (kind, first, generation, self.keyspace);
        let found = header.map(|one| (one.kind, one.page.0, one.generation.0, one.keyspace));
        if found != Some(wanted) {
            return Err(format!(
                "needs page {first} of kind {kind:?} in generation {generation}, and the media hold {header:?}"
            ));
        }
        self.newest = self.newest.max(header.map_or(Lsn::ZERO, |header| header.lsn));
        let (of_level, children) =
            children(&block[HEADER_BYTES..]).ok_or_else(|| no_such("an inner node"))?;
        if of_level != u64::from(level) {
            return Err(format!("needs page {first} of level {level}, and it is of {of_level}"));
        }
        let Some(below) = level.checked_sub(1) else { return Ok(()) };
        children.into_iter().try_for_each(|child| self.page(child, below, order))
    }
}

/// A place: page and generation.
fn place(left: &mut Fields<'_>) -> Option<(u32, u32)> {
    Some((left.number::<4>()?, left.number::<4>()?))
}

/// The level of a page, and the places that its records name, if it is above leaves.
fn children(bytes: &[u8]) -> Option<(u64, Vec<(u32, u32)>)> {
    let words: Vec<u64> =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (counts, level) = (words.first()?, *words.get(1)?);
    let mut places = Vec::new();
    if level > 0 {
        for index in 0..usize::from((counts & 0xFFFF) as u16) {
            let slot = words.get(SLOTS_AT + index)?;
            let field = |at: u32, bits: u32| (slot >> at & ((1 << bits) - 1)) as usize;
            let (offset, suffix, value) = (field(0, 11), field(11, 11), field(22, 14));
            let begin = offset * 8 + suffix;
            let mut left = Fields(bytes.get(begin..begin + value)?);
            places.push(place(&mut left).filter(|_| value == 8)?);
        }
    }
    Some((level, places))
}
