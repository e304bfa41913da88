//! All images of a file, for when no slot can be read.
//!
//! ```text
//!   file    [ant..cat: 3] [bee..dog: 7] [cat..dog: 2] ...     bounds, and how old an image is
//!   keys     ant       bee          dog
//!            |-- of 3 --|--- of 7 ---|                        the newest decides a range
//! ```
//!
//! Images of all times lie in a file until their places are used again. An image says which keys it is for, so it decides that
//! those of them that it does not have were removed.
//!
//! **Newer and older.** The LSN of an image is that of the log when it was written, so of one that was written later it is
//! no lower; of equals the later allocation counts. The order fails where a crash took records from the log whose image
//! had been written: later ones have their LSNs again. Then the allocations tell otherwise, and all that was shown is named
//! as what may be older. So it is where a page is damaged: it may have been the newest image of any range.

use std::cmp::Reverse;

use spinney_base::{Generation, Lsn, Result};
use spinney_engine::covered::Covered;
use spinney_engine::{LostRange, Notes, SalvageFindings, Show, Span};
use spinney_extent::Store;
use spinney_io::Purpose;

use crate::image::{IMAGE, decode};
use crate::leaf::value_of;
use crate::place::Place;
use crate::read::read_images;

/// An image that was found.
#[derive(Debug)]
struct Found {
    lsn: Lsn,
    place: Place,
    range: LostRange,
}

impl Found {
    fn age(&self) -> (Lsn, Generation) {
        (self.lsn, self.place.generation)
    }
}

/// The images of a file.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// The newest first.
    found: Vec<Found>,
    /// Whether a damaged one, or a crash, may have been newer than what is shown.
    is_doubtful: bool,
}

/// Ranges that are lost, and ranges whose records may be older ones.
type Doubtful = (Vec<LostRange>, Vec<LostRange>);

impl Images {
    /// Reads the whole file.
    ///
    /// # Errors
    /// `Io` when its length cannot be read.
    pub(super) fn find(&mut self, store: &Store, findings: &mut SalvageFindings) -> Result<()> {
        let mut notes = Notes::default();
        store.show_blocks(|page, header, block| {
            let header = match header {
                Ok(header) if IMAGE.reads(header.kind) => header,
                Err(damage) if damage.is_of_written(block) => {
                    self.is_doubtful = true;
                    return notes.damaged(page, &damage);
                }
                _ => return,
            };
            match decode(block) {
                Ok(image) => {
                    let pages = block.len() / spinney_base::limits::PAGE_BYTES;
                    let order = u8::try_from(pages.ilog2()).expect("blocks are short");
                    let place = Place { page, generation: header.generation, order };
                    let range = LostRange { lower: image.lower, upper: image.upper };
                    self.found.push(Found { lsn: header.lsn, place, range });
                }
                Err(damage) => {
                    self.is_doubtful = true;
                    notes.damaged(page, &damage);
                }
            }
        })?;
        self.found.sort_unstable_by_key(|image| Reverse(image.age()));
        let generations = self.found.iter().map(|image| image.place.generation);
        self.is_doubtful |= !generations.is_sorted_by(|newer, older| newer >= older);
        notes.tell(store, findings);
        Ok(())
    }

    /// Shows the records of the newest image of each range.
    ///
    /// # Errors
    /// Errors of `show`.
    pub(super) fn show(&self, store: &Store, show: &mut Show<'_>) -> Result<Doubtful> {
        let (mut covered, mut older) = (Covered::default(), Vec::new());
        for Found { place, range, .. } in &self.found {
            let Span { lower, upper } = range.span();
            if covered.free(lower, upper).is_empty() {
                continue;
            }
            // It was sound a moment ago. Older ones may serve.
            let Ok(images) = read_images(store, &[*place], Purpose::TOOL) else {
                older.push(range.clone());
                continue;
            };
            for entry in images.iter().flat_map(|image| image.records.iter()) {
                if !covered.contains(entry.key) {
                    show(store, entry.key, Some(value_of(&entry)))?;
                }
            }
            covered.add(lower.to_vec(), upper.map(<[u8]>::to_vec));
        }
        if self.is_doubtful {
            older = vec![Span::ALL.to_range()];
        }
        Ok((covered.free(&[], None), older))
    }
}
