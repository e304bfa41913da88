//! A dirty page, as it is listed to be written.

use spinney_cache::PageId;

use crate::place::Place;

/// A dirty page that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct Dirty {
    pub(crate) level: u8,
    pub(crate) lower: Vec<u8>,
    pub(crate) is_fresh: bool,
    pub(crate) id: PageId,
}

impl Dirty {
    pub(crate) fn place(&self) -> Place {
        Place { page: self.id.page, generation: self.id.generation }
    }
}
