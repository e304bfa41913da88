//! Opening: all images are read, and become leaves.

use std::collections::HashSet;
use std::num::NonZero;
use std::sync::mpsc::sync_channel;

use spinney_base::limits::KEY_BYTES_MAX;
use spinney_base::{Error, ErrorKind, Generation, PageNumber, Result};
use spinney_extent::LargePointer;
use spinney_extent::values::LargeExtent;
use spinney_io::Purpose;
use spinney_leaf::Entry;

use crate::engine::Iot;
use crate::image::Image;
use crate::inner::{Home, Index};
use crate::leaf::{BLOCK_WORDS, LARGE, moved, value_of, words_of};
use crate::place::Place;
use crate::read::{READ_AT_ONCE, read_images};

/// Large values that leaves name, by first page and generation.
type Named = Vec<(PageNumber, Generation)>;

/// Most threads that read images. With more, the disk is not faster.
const READERS_MAX: usize = 8;
/// Pieces that a reader is ahead. With more, opening takes more memory.
const PIECES_AHEAD: usize = 2;

/// A leaf that was built from an image, and is not in the index yet.
#[derive(Debug)]
struct Built {
    home: Home,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    named: Named,
}

impl Iot {
    /// Reads what the slot names: on all cores, each of which takes every nth piece.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub(crate) fn load(&self) -> Result<()> {
        let named = self.named.lock().clone();
        let mut owned: Vec<_> = self.values.owned().collect();
        let Some(payload) = &*named else { return self.store().adopt(&owned).map(drop) };
        owned.extend(payload.places.iter().map(|place| place.owned()));
        let pieces: Vec<&[Place]> = payload.places.chunks(READ_AT_ONCE).collect();
        let mut leaves = Leaves::new(self);
        match self.readers().min(pieces.len()) {
            0 | 1 => pieces.iter().try_for_each(|piece| leaves.enter(piece, self.build(piece)?))?,
            readers => self.load_beside(&pieces, readers, &mut leaves)?,
        }
        let Leaves { index, expected, of_leaves, .. } = leaves;
        if let Some(missing) = expected {
            return Err(self.is_no_neighbour(payload.places.last(), "the last leaf", &missing));
        }
        self.store().adopt(&owned)?;
        self.tree.replace(index);
        self.set_unread(0);
        if !self.context.logged {
            self.values.reconcile(&of_leaves);
        }
        self.follow_memory();
        Ok(())
    }

    /// How many threads read images.
    fn readers(&self) -> usize {
        if self.context.runtime.is_stepped() || cfg!(feature = "shuttle") {
            return 1;
        }
        std::thread::available_parallelism().map_or(1, NonZero::get).min(READERS_MAX)
    }

    fn load_beside(
        &self,
        pieces: &[&[Place]],
        readers: usize,
        leaves: &mut Leaves<'_>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let built: Vec<_> = (0..readers)
                .map(|reader| {
                    let (sender, receiver) = sync_channel(PIECES_AHEAD);
                    scope.spawn(move || {
                        let mine = pieces.iter().skip(reader).step_by(readers);
                        // Nobody takes more after an error.
                        for piece in mine {
                            if sender.send(self.build(piece)).is_err() {
                                break;
                            }
                        }
                    });
                    receiver
                })
                .collect();
            for (piece, receiver) in pieces.iter().zip(built.iter().cycle()) {
                let ended = || Error::new(ErrorKind::Poisoned, "a thread that reads images ended");
                leaves.enter(piece, receiver.recv().map_err(|_| ended())??)?;
            }
            Ok(())
        })
    }

    /// Builds leaves from the images of a piece.
    fn build(&self, piece: &[Place]) -> Result<Vec<Built>> {
        let images = read_images(self.store(), piece, Purpose::RECOVERY)?;
        piece.iter().zip(images).map(|(place, image)| self.build_one(*place, image)).collect()
    }

    fn build_one(&self, place: Place, image: Image) -> Result<Built> {
        let bounds = image.bounds();
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
        let records = moved(&image.records, 0..image.records.len());
        let home = self.tree.make(bounds, records, Some(place));
        let named = named_by(&image);
        Ok(Built { home, lower: image.lower, upper: image.upper, named })
    }

    fn is_no_neighbour(&self, place: Option<&Place>, expected: &str, found: &[u8]) -> Error {
        let offset = place.map_or(0, |place| place.page.offset());
        let found = format!("one that begins or ends at {found:?}");
        Error::corruption(self.store().path().display(), offset, expected, found)
    }
}

/// Leaves that were built, in order.
#[derive(Debug)]
struct Leaves<'a> {
    iot: &'a Iot,
    index: Index,
    /// Where the next one begins.
    expected: Option<Vec<u8>>,
    of_leaves: HashSet<(PageNumber, Generation)>,
}

impl<'a> Leaves<'a> {
    fn new(iot: &'a Iot) -> Self {
        let (index, of_leaves) = (Index::new(), HashSet::new());
        Leaves { iot, index, expected: Some(Vec::new()), of_leaves }
    }

    /// Enters those of a piece, each of which begins where the one before has ended.
    fn enter(&mut self, piece: &[Place], built: Vec<Built>) -> Result<()> {
        for (place, leaf) in piece.iter().zip(built) {
            if self.expected.as_deref() != Some(&leaf.lower) {
                let expected = "a leaf that follows";
                return Err(self.iot.is_no_neighbour(Some(place), expected, &leaf.lower));
            }
            self.index.insert(&leaf.lower, leaf.home);
            self.of_leaves.extend(leaf.named);
            self.expected = leaf.upper;
        }
        Ok(())
    }
}

fn named_by(image: &Image) -> Named {
    let mut named = Named::new();
    for entry in image.records.iter().filter(|entry| entry.flags & LARGE != 0) {
        if let Ok(pointer) = LargePointer::decode(entry.value) {
            let extents = LargeExtent::all_of(&pointer);
            named.extend(extents.map(|large| (large.extent.page, large.generation)));
        }
    }
    named
}
