//! Staging of pure writes (TreeLine, section 6, future work): while almost only new records come, a
//! segment's share of them is written as a sorted run of its own, a *staged page*, instead of being
//! brought into pages that would have to be read first.
//!
//! Staged pages belong to one segment ([`segment`](crate::segment)) and are added as overflow pages
//! are: fresh, synced before their structure record. Lookups, scans and recovery see them, newest
//! first. When a segment has as many as it may have, when its next share is no burst, or when there
//! is nothing else to do, they are merged with all pages of the segment by a reorganization, in the
//! order of keys: one read and one write of the segment for several shares.
//!
//! **Invariants**
//! 1. Only inserted and changed inline records are staged, never removals and pointers.
//! 2. While a segment has staged pages its other pages are not edited
//!    ([`write_back`](crate::write_back) asks for the merge instead), so newer is always above.
//!
//! Whether it pays is measured: see `docs/decisions/0007`. It is off unless asked for.

use spinney_base::Result;
use spinney_page::{PageEditor, Put};

use crate::merge::Dirty;
use crate::origin::Origin;
use crate::reorganize::Why;
use crate::segment::{Located, STAGED_MAX};
use crate::tree::TreeLine;
use crate::write_back::Missed;

/// Fewest records that are worth a page of their own.
const RECORDS_MIN: usize = 12;

/// A segment's share is brought home at once where it has more records for each of the pages that
/// it belongs to: then the reading of the page is paid for.
const PER_PAGE_MAX: usize = 20;

impl TreeLine {
    /// Whether the dirty records of a segment, which belong to `pages` of its pages, are to be
    /// staged.
    pub(crate) fn is_to_stage(&self, located: &Located, dirty: &[Dirty<'_>], pages: usize) -> bool {
        self.tuning.staging()
            && located.segment.staged.len() < STAGED_MAX
            && located.segment.overflows.is_empty()
            && (RECORDS_MIN..=PER_PAGE_MAX * pages).contains(&dirty.len())
            && dirty.iter().all(|(_, value)| value.is_some_and(|value| !value.large))
    }

    /// Makes a staged page of these records; says whether they fit.
    pub(crate) fn fill_staged(
        page: &mut [u8; spinney_base::limits::PAGE_BYTES],
        located: &Located,
        dirty: &[Dirty<'_>],
    ) -> bool {
        let (prefix, origin) = (located.prefix(), Origin::beside(located, 0, true));
        let mut editor = PageEditor::format(page, prefix, &origin);
        dirty.iter().all(|(key, value)| match value {
            Some(value) => editor.put(key, *value) == Put::Done,
            None => false,
        })
    }

    /// Notes that a segment has staged pages.
    pub(crate) fn note_staged(&self, lower: &[u8]) {
        self.staged.lock().insert(lower.to_vec());
    }

    /// Merges the staged pages of one segment, in the order of keys; says whether any waited.
    pub(crate) fn merge_staged(&self) -> Result<bool> {
        let next = {
            let mut staged = self.staged.lock();
            let mut last = self.last_merged.lock();
            let above = (std::ops::Bound::Excluded(last.clone()), std::ops::Bound::Unbounded);
            let next = staged.range(above).next().or_else(|| staged.first()).cloned();
            let Some(next) = next else { return Ok(false) };
            staged.remove(&next);
            last.clone_from(&next);
            next
        };
        let located = self.index.find(&next);
        if located.segment.staged.is_empty() {
            return Ok(true);
        }
        let _gate = self.gate.read();
        let merged = self.reorganize(&located, Why::Merge, &mut Missed::default());
        // Or others changed it first.
        if !matches!(merged, Ok(true)) {
            self.note_staged(&next);
        }
        merged.map(|_| true)
    }
}
