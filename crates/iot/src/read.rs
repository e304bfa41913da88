//! Reading images from the file, some together.

use spinney_base::Result;
use spinney_base::limits::PAGE_BYTES;
use spinney_extent::{Store, WIDE_ORDER_MAX};
use spinney_io::{AlignedBuf, Purpose};

use crate::image::{IMAGE, Image, decode};
use crate::place::Place;

/// Images that are read together: at most 1 MiB. With more, opening takes more memory; with fewer, the disk waits.
pub(crate) const READ_AT_ONCE: usize = 64;

/// Reads and checks images, in the order of the places.
///
/// # Errors
/// `Corruption` or `Io`.
pub(crate) fn read_images(store: &Store, places: &[Place], purpose: Purpose) -> Result<Vec<Image>> {
    let mut images: Vec<Option<Image>> = places.iter().map(|_| None).collect();
    for order in 0..=WIDE_ORDER_MAX {
        let mut some: Vec<usize> =
            (0..places.len()).filter(|index| places[*index].order == order).collect();
        some.sort_unstable_by_key(|index| places[*index].page);
        let mut buf = AlignedBuf::new(some.len() << order);
        let block =
            |(at, index): (usize, &usize)| (at, places[*index].page, places[*index].generation);
        let blocks: Vec<_> = some.iter().enumerate().map(block).collect();
        store.read_many_wide(&blocks, order, IMAGE, &mut buf, purpose, &mut |at, block| {
            let page = places[some[at]].page;
            let image = decode(block).map_err(|damage| damage.at(store.path(), page))?;
            images[some[at]] = Some(image);
            Ok(())
        })?;
    }
    Ok(images.into_iter().map(|image| image.expect("each was read")).collect())
}

/// Reads the block at a place, as it is on disk.
///
/// # Errors
/// `Corruption` or `Io`.
pub(crate) fn read_block(store: &Store, place: Place, buf: &mut AlignedBuf) -> Result<()> {
    let bytes = &mut buf.bytes_mut()[..PAGE_BYTES << place.order];
    let Place { page, generation, order } = place;
    store.read_wide(page, order, generation, IMAGE, bytes, Purpose::TOOL).map(drop)
}
