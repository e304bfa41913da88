//! Opening: all images are read, and become leaves.

use std::collections::HashSet;

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, Generation, PageNumber, Result};
use spinney_extent::LargePointer;
use spinney_extent::values::LargeExtent;
use spinney_io::Purpose;
use spinney_leaf::Entry;

use crate::engine::Iot;
use crate::image::Image;
use crate::inner::Index;
use crate::leaf::{BLOCK_WORDS, LARGE, moved, value_of, words_of};
use crate::place::Place;
use crate::read::{READ_AT_ONCE, read_images};

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
        self.check_memory(payload.places.len() as u64)?;
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

    /// Builds a leaf from an image, which begins where the one before has ended.
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
        let is_record = |entry: Entry<'_>| {
            let is_key = entry.key.len() <= KEY_BYTES_MAX;
            is_key && self.values.check(entry.key.len(), value_of(&entry)).is_ok()
        };
        let are_bounds = [bounds.lower, bounds.upper.unwrap_or_default()]
            .iter()
            .all(|bound| bound.len() <= KEY_BYTES_MAX);
        // Else the leaf could not be split later.
        let is_leaf = are_bounds && image.records.iter().all(is_record);
        if !is_leaf || words_of(bounds, lengths) > BLOCK_WORDS {
            return Err(self.is_no_neighbour(Some(&place), "an image of one leaf", bounds.lower));
        }
        let home =
            self.tree.make(bounds, moved(&image.records, 0..image.records.len()), Some(place));
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
