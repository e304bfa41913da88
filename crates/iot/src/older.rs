//! Older images: what writes replace while transactions run.

use spinney_engine::{OlderImage, OwnedValue};
use spinney_ssn::Cells;

use crate::leaf::Leaf;

/// Bytes of memory of an older image, beside the vector of its cell.
pub(crate) fn bytes_of(image: &OlderImage) -> u64 {
    image.as_ref().map_or(0, |value| value.bytes.capacity() as u64)
}

/// Keeps the image of a record that is about to be replaced, if the owner of its cell publishes.
#[inline]
pub(crate) fn keep_image(cells: &Cells<OlderImage>, leaf: Leaf<'_>, index: usize) {
    let Some(cell) = leaf.cell(index) else { return };
    cells.keep_image(cell, || {
        let data = leaf.data(index);
        let mut bytes = Vec::with_capacity(data.value_bytes());
        leaf.value(data, &mut bytes);
        (!data.is_absent()).then_some(OwnedValue { bytes, large: data.is_large() })
    });
}
