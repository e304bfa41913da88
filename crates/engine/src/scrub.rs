//! An engine's part in the scrub: reading what is owned, a little at a time, for damage that nobody
//! has met.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{PageNumber, Result};
use spinney_extent::Values;

/// Before an engine's own place in a place.
const OWN: u8 = 0;
/// Before the number of the first page that a large value not yet seen may have.
const VALUES: u8 = 1;

/// What a piece of a scrub saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Pages read and checked.
    pub pages: u64,
    /// What was damaged among them.
    pub damaged: Vec<DamagedPage>,
    /// Where the next piece begins, for the engine alone to understand; `None` when everything was
    /// seen.
    pub next: Option<Vec<u8>>,
}

impl Scrubbed {
    /// Notes what a page of a file is.
    pub fn note(&mut self, file: &Path, page: PageNumber, result: Result<()>) {
        self.pages += 1;
        if let Err(error) = result {
            let (file, what) = (file.to_owned(), error.to_string());
            self.damaged.push(DamagedPage { file, offset: page.offset(), what });
        }
    }
}

/// Reads the piece at a place: the newest checkpoint, with the first piece of what the engine itself
/// owns; then the rest of that; then large values. `own` reads a piece from a place of the engine's
/// own on, an empty one for the start, and returns where the next one begins.
pub fn scrub(
    values: &Arc<Values>,
    from: &[u8],
    own: impl FnOnce(&[u8], &mut Scrubbed) -> Option<Vec<u8>>,
) -> Scrubbed {
    let mut seen = Scrubbed::default();
    let (store, within) = (values.store(), from.get(1..).unwrap_or_default());
    if from.first() == Some(&VALUES) {
        let page = within.first_chunk().map_or(0, |page| u32::from_be_bytes(*page));
        let next = values.scrub(PageNumber(page), |page, result| {
            seen.note(store.path(), page, result);
        });
        seen.next = next.map(|next| [&[VALUES][..], &next.0.to_be_bytes()].concat());
        return seen;
    }
    if from.is_empty() {
        seen.note(store.path(), PageNumber(0), store.scrub_checkpoint());
    }
    let next = own(within, &mut seen);
    seen.next = Some(next.map_or(vec![VALUES], |next| [&[OWN][..], &next].concat()));
    seen
}

/// A page that does not read as what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DamagedPage {
    /// Its file.
    pub file: PathBuf,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// What was expected and found, or what the system answered.
    pub what: String,
}
