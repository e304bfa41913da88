//! The pages of a root as they lie on disk: for copies, salvage and the scrub, which do not go through memory.
//!
//! What a slot names stays as it is while it is held, so all that is read here is of one moment.

use std::sync::Arc;

use spinney_base::{Generation, Result};
use spinney_extent::{BlockHeader, Extent, Store};
use spinney_io::{AlignedBuf, Purpose};
use spinney_leaf::{Image, Leaf};

use crate::pages::{HEADER_WORDS, LARGE, PageKind, damaged_leaf, words_of};
use crate::place::Place;

/// A page of a root that was read.
#[derive(Debug)]
pub struct RootPage {
    /// Where it lies.
    pub place: Place,
    /// Its level; leaves have 0.
    pub level: u8,
    /// Its records, or the places of its children by their lower bounds.
    pub image: Image,
}

impl RootPage {
    /// Returns a record: key, value or pointer, and whether it is a pointer.
    #[must_use]
    pub fn record(&self, index: usize) -> (&[u8], &[u8], bool) {
        let entry = self.image.records.entry(index);
        (entry.key, entry.value, entry.flags & LARGE != 0)
    }

    /// Returns the place of a child and the keys that it is for; `None` where there is no place.
    #[must_use]
    pub fn child(&self, index: usize) -> Option<(Place, Vec<u8>, Option<Vec<u8>>)> {
        let entry = self.image.records.entry(index);
        let place = Place::decode(entry.value.try_into().ok()?);
        let next =
            (index + 1 < self.image.records.len()).then(|| self.image.records.key(index + 1));
        let upper = next.or(self.image.upper.as_deref()).map(<[u8]>::to_vec);
        Some((place, entry.key.to_vec(), upper))
    }
}

/// Reads pages of trees of one store. It has a buffer of a page.
#[derive(Debug)]
pub struct RootReader {
    store: Arc<Store>,
    order: u8,
    buf: AlignedBuf,
}

impl RootReader {
    /// Makes a reader of pages of 2^`order` pages of 4 KiB each.
    #[must_use]
    pub fn new(store: Arc<Store>, order: u8) -> RootReader {
        RootReader { store, order, buf: AlignedBuf::new(1 << order) }
    }

    /// Reads and checks a page.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    pub fn read(&mut self, place: Place, level: u8) -> Result<RootPage> {
        read(&self.store, self.order, &mut self.buf, (place, level))
    }

    /// Returns the bytes of the page that was read last.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buf.bytes()
    }

    /// Returns the extent and the generation of a page.
    #[must_use]
    pub fn extent(&self, place: Place) -> (Extent, Generation) {
        (Extent { page: place.page, order: self.order }, place.generation)
    }
}

/// Reads and checks a page of a store into a buffer.
///
/// # Errors
/// `Corruption` or `Io`.
pub fn read(
    store: &Store,
    order: u8,
    buf: &mut AlignedBuf,
    (place, level): (Place, u8),
) -> Result<RootPage> {
    let kind = PageKind::of_level(level).block();
    store.read_wide(place.page, order, place.generation, kind, buf.bytes_mut(), Purpose::TOOL)?;
    parse(store, buf.bytes(), (place, level))
}

/// Returns whether blocks with this header are leaves.
#[must_use]
pub fn is_leaf(header: &BlockHeader) -> bool {
    PageKind::Leaf.block().reads(header.kind)
}

/// Checks a page whose header is right.
///
/// # Errors
/// `Corruption`.
pub fn parse(store: &Store, block: &[u8], (place, level): (Place, u8)) -> Result<RootPage> {
    let words = words_of(block);
    let leaf = Leaf::new(&words[HEADER_WORDS..]);
    leaf.check(LARGE, 0).map_err(|wrong| damaged_leaf(store, place, wrong))?;
    let image = Image::of(leaf, |_| 0);
    let is_right = leaf.owner() == u64::from(level) && (level == 0 || !leaf.is_empty());
    let page = RootPage { place, level, image };
    let children = level == 0 || (0..page.image.records.len()).all(|at| page.child(at).is_some());
    if !is_right || !children {
        let wrong = spinney_leaf::Wrong {
            expected: format!("a page of level {level}"),
            found: "another".to_owned(),
        };
        return Err(damaged_leaf(store, place, wrong));
    }
    Ok(page)
}
