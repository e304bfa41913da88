//! Blocks that lie side by side in the file are written together.

use spinney_base::PageNumber;
use spinney_base::limits::PAGE_BYTES;

/// Returns the runs of adjacent blocks of 2^`order` pages, with their bytes, which lie in the same
/// order.
pub(crate) fn runs_of<'a>(
    pages: &[PageNumber],
    order: u8,
    bytes: &'a [u8],
) -> Vec<(PageNumber, &'a [u8])> {
    let mut left = bytes;
    pages
        .chunk_by(|one, next| one.0.checked_add(1 << order) == Some(next.0))
        .map(|run| {
            let (here, rest) = left.split_at(run.len() * (PAGE_BYTES << order));
            left = rest;
            (run[0], here)
        })
        .collect()
}
