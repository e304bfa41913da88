//! Older images: what a write leaves of a record in its [cell](spinney_ssn::Cells), and what readers find by it.
//!
//! ```text
//!   cell     put: the whole image      patch, or a put of as many bytes:      newest: in the leaf
//!                                      the bytes that it replaced
//!   reader   takes the whole one       lays them over                    <--  from here on
//! ```
//!
//! A reader takes the image in the leaf and those of the cell as of one moment: it validates the latch of the leaf
//! behind them, and images are kept under it.

use std::ops::Range;

use spinney_engine::{OlderImage, OwnedValue, Patch, UndoBytes};
use spinney_leaf::Entry;
use spinney_ssn::{Cells, Images};
use spinney_sync::racy::WORD_BYTES;

use crate::leaf::{Data, Leaf};

/// Returns a copy of a value, or of the pointer to it.
pub(crate) fn copy_of(leaf: Leaf<'_>, data: Data) -> OwnedValue {
    let mut bytes = Vec::with_capacity(data.value_bytes());
    leaf.value(data, &mut bytes);
    OwnedValue { bytes, large: data.is_large() }
}

fn whole(leaf: Leaf<'_>, data: Data) -> OlderImage {
    if data.is_absent() { OlderImage::Absent } else { OlderImage::Whole(copy_of(leaf, data)) }
}

/// Keeps the image of a record that is about to be replaced, if the owner of its cell publishes.
#[inline]
pub(crate) fn keep_image(cells: &Cells<OlderImage>, leaf: Leaf<'_>, index: usize) {
    let Some(cell) = leaf.cell(index) else { return };
    cells.keep_image(cell, |_| whole(leaf, leaf.data(index)));
}

/// Keeps the same where a value is put over it: if that has as many bytes, what leads back are those of them that differ.
/// They are often so few that they lie with the stamps, and nothing is allocated for them, nor freed by another thread.
pub(crate) fn keep_replaced(
    cells: &Cells<OlderImage>,
    leaf: Leaf<'_>,
    index: usize,
    new: Entry<'_>,
) {
    let Some(cell) = leaf.cell(index) else { return };
    cells.keep_image(cell, |is_whole| {
        let data = leaf.data(index);
        let is_as_long =
            data.is_inline() && new.flags == 0 && data.value_bytes() == new.value.len();
        let undo = if is_whole || !is_as_long { None } else { differing(leaf, data, new.value) };
        undo.map_or_else(|| whole(leaf, data), OlderImage::Undo)
    });
}

/// Returns the patch that leads from a value which is as long as that of a record to that one, if it is less than half of it.
fn differing(leaf: Leaf<'_>, data: Data, new: &[u8]) -> Option<UndoBytes> {
    let mut undo = UndoBytes::new();
    let mut keep = |part: Range<usize>| {
        undo.extend_from_slice(&Patch::header(part.start, part.len()));
        let begin = undo.len();
        undo.resize(begin + part.len(), 0);
        leaf.copy_part(data, part.start, &mut undo[begin..]);
        2 * undo.len() < new.len()
    };
    let mut part = 0..0;
    for (number, differ) in leaf.differing(data, new) {
        let zero_bytes = |bits: u32| bits as usize / 8;
        let start = number * WORD_BYTES + zero_bytes(differ.trailing_zeros());
        let end = (number + 1) * WORD_BYTES - zero_bytes(differ.leading_zeros());
        if part.is_empty() {
            part = start..end;
        } else if start <= part.end + Patch::PART_BYTES {
            part.end = end;
            if 2 * part.len() >= new.len() {
                return None;
            }
        } else if !keep(std::mem::replace(&mut part, start..end)) {
            return None;
        }
    }
    (part.is_empty() || keep(part)).then_some(undo)
}

/// Keeps what leads back to the image of a record whose value is about to be patched: the parts, if they are smaller
/// than half of it.
pub(crate) fn keep_undo(cells: &Cells<OlderImage>, leaf: Leaf<'_>, index: usize, patch: Patch<'_>) {
    let Some(cell) = leaf.cell(index) else { return };
    cells.keep_image(cell, |is_whole| {
        let data = leaf.data(index);
        let bytes = patch.bytes().len();
        if is_whole || 2 * bytes >= data.value_bytes() {
            return whole(leaf, data);
        }
        let mut undo = UndoBytes::from_slice(patch.bytes());
        patch.undo(&mut undo, |from, out| leaf.copy_part(data, from, out));
        OlderImage::Undo(undo)
    });
}

/// Returns the value that images of a cell lead to, from the one in the leaf or one that is whole.
pub(crate) fn follow(
    images: Images<'_, OlderImage>,
    leaf: Leaf<'_>,
    data: Data,
) -> Option<OwnedValue> {
    let mut value = None;
    for image in images {
        match image {
            OlderImage::Absent => value = None,
            OlderImage::Whole(whole) => value = Some(whole.clone()),
            OlderImage::Undo(undo) => {
                let value: &mut OwnedValue = value.get_or_insert_with(|| copy_of(leaf, data));
                // It fits, unless the leaf is changed meanwhile: then this is read again.
                _ = Patch::parse(undo).is_some_and(|undo| undo.lay_over(&mut value.bytes));
            }
        }
    }
    value
}
