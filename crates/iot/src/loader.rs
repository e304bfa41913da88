//! Opening: all images are read, and become leaves.

use std::collections::HashSet;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Generation, PageNumber, Result};
use spinney_extent::values::LargeExtent;
use spinney_extent::{LargePointer, Store, WIDE_ORDER_MAX};
use spinney_io::{AlignedBuf, Purpose};

use crate::engine::Iot;
use crate::image::{IMAGE, Image, decode};
use crate::leaf::{LARGE, words_of};
use crate::place::Place;
use crate::tree::Index;

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

/// Large values that leaves name, by first page and generation.
type Named = HashSet<(PageNumber, Generation)>;

impl Iot {
    /// Reads what the slot names.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn load(&self) -> Result<()> {
        let named = self.named.lock().clone();
        let mut owned: Vec<_> = self.values.owned().collect();
        let Some(payload) = &*named else { return self.store().adopt(&owned).map(drop) };
        owned.extend(payload.places.iter().map(|place| place.owned()));
        let (index, mut expected, mut of_leaves) = (Index::new(), Some(Vec::new()), Named::new());
        for places in payload.places.chunks(READ_AT_ONCE) {
            let images = read_images(self.store(), places, Purpose::RECOVERY)?;
            for (place, image) in places.iter().zip(images) {
                self.load_image(*place, &image, &expected, &index)?;
                note_named(&image, &mut of_leaves);
                expected = image.upper;
            }
        }
        if let Some(missing) = expected {
            return Err(self.is_no_neighbour(payload.places.last(), "the last leaf", &missing));
        }
        self.store().adopt(&owned)?;
        self.tree.replace(index);
        if !self.context.logged {
            self.values.reconcile(&of_leaves);
        }
        self.follow_memory();
        Ok(())
    }

    /// Makes a leaf of an image that begins where the one before has ended.
    fn load_image(
        &self,
        place: Place,
        image: &Image,
        expected: &Option<Vec<u8>>,
        index: &Index,
    ) -> Result<()> {
        let bounds = image.bounds();
        if expected.as_deref() != Some(bounds.lower) {
            return Err(self.is_no_neighbour(Some(&place), "a leaf that follows", bounds.lower));
        }
        let lengths = (0..image.records.len()).map(|index| image.records.lengths(index));
        if words_of(bounds, lengths) > crate::leaf::BLOCK_WORDS {
            return Err(self.is_no_neighbour(Some(&place), "an image of one leaf", bounds.lower));
        }
        let home = self.tree.make(bounds, image.records.iter(), Some(place));
        index.insert(bounds.lower, home);
        Ok(())
    }

    fn is_no_neighbour(&self, place: Option<&Place>, expected: &str, found: &[u8]) -> Error {
        let offset = place.map_or(0, |place| place.page.offset());
        let found = format!("one that begins or ends at {found:?}");
        Error::corruption(self.store().path().display(), offset, expected, found)
    }
}

fn note_named(image: &Image, named: &mut Named) {
    for entry in image.records.iter().filter(|entry| entry.flags & LARGE != 0) {
        if let Ok(pointer) = LargePointer::decode(entry.value) {
            let extents = LargeExtent::all_of(&pointer);
            named.extend(extents.map(|large| (large.extent.page, large.generation)));
        }
    }
}
