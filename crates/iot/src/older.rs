//! Older images: what a write leaves of a record in its [cell](spinney_ssn::Cells), and what readers find by it.
//!
//! ```text
//!   cell     put: the whole image      patch: the bytes that it replaced      newest: in the leaf
//!   reader   takes the whole one       lays them over                    <--  from here on
//! ```
//!
//! A reader takes the image in the leaf and those of the cell as of one moment: it validates the latch of the leaf
//! behind them, and images are kept under it.

use spinney_engine::{OlderImage, OwnedValue, Patch, UndoBytes};
use spinney_ssn::{Cells, Images};

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
