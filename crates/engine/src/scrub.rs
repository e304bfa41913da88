//! An engine's part in the scrub: reads owned pages in small pieces, to find damage before a reader
//! does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinney_base::{PageNumber, Result};
use spinney_extent::Values;

/// Prefix of a place inside the engine's own pages.
const OWN: u8 = 0;
/// Prefix of the first page number of a large value that was not read yet.
const VALUES: u8 = 1;

/// Result of one piece of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Pages read and checked.
    pub pages: u64,
    /// Damaged pages among them.
    pub damaged: Vec<DamagedPage>,
    /// Where the next piece begins, in a form that only the engine understands; `None` at the end.
    pub next: Option<Vec<u8>>,
}

impl Scrubbed {
    /// Notes whether a page of a file is sound.
    pub fn note(&mut self, file: &Path, page: PageNumber, result: Result<()>) {
        self.pages += 1;
        if let Err(error) = result {
            let (file, what) = (file.to_owned(), error.to_string());
            self.damaged.push(DamagedPage { file, offset: page.offset(), what });
        }
    }
}

/// Reads one piece: first the newest checkpoint with the first piece of the engine's own pages,
/// then the rest of these, then large values. `own` reads a piece from a place of the engine's own;
/// an empty place is the start. It returns the next place.
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

/// A page that does not read as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DamagedPage {
    /// File of the page.
    pub file: PathBuf,
    /// Offset of the page in the file, in bytes.
    pub offset: u64,
    /// What was expected and found, or the error of the system.
    pub what: String,
}

impl DamagedPage {
    /// Describes a damaged page at `offset` of `file`.
    #[must_use]
    pub fn new(file: PathBuf, offset: u64, what: String) -> DamagedPage {
        DamagedPage { file, offset, what }
    }
}
