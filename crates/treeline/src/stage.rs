//! Staging of pure writes (TreeLine, section 6, future work): while almost only new records come, a
//! segment's share of them is written as a sorted run of its own, a *staged page*, instead of being
//! brought into pages that would have to be read first.
//!
//! ```text
//!   segment    | page 0 | page 1 | page 2 | page 3 |    merged: one read, one write, in the order of keys
//!   staged     [ 7 c m ] <- [ b k ] <- [ 2 q x ]        marks of b and k: 64 bits, in memory only
//!                oldest                  newest
//! ```
//!
//! Staged pages belong to one segment ([`segment`](crate::segment)) and are added as overflow pages
//! are: fresh, synced before their structure record. Lookups, scans and recovery see them, newest
//! first. When a segment has as many as it may have, when its next share is no burst, or when there
//! is nothing else to do, they are merged with all pages of the segment by a reorganization, in the
//! order of keys: one read and one write of the segment for several shares.
//!
//! It pays where a page holds few records: each new one would cost reading and writing a page, and
//! mostly an overflow page, while the fresh pages of a batch are written side by side. So it is
//! done where records are long and those written back recently were new
//! ([`Novelty`](crate::novelty::Novelty)). Lookups do not pay for it: [`Marks`] in memory say which
//! staged pages may have a key. Where records are short, a page has many dirty records by the time
//! they must be written back. See `docs/decisions/0007`.
//!
//! **Invariants**
//! 1. Only inserted and changed inline records are staged, never removals and pointers.
//! 2. While a segment has staged pages its other pages are not edited
//!    ([`write_back`](crate::write_back) asks for the merge instead), so newer is always above.
//! 4. A record whose key has a mark of a snapshot is not staged (S11, [`kept`](crate::kept)).
//! 3. A staged page whose marks refuse a key does not have it. What a checkpoint or the log tells
//!    of is marked with everything.

use spinney_base::Result;
use spinney_io::Lent;
use spinney_page::{PageEditor, Put};
use spinney_sync::hash_key;

use crate::marks::Marks;
use crate::merge::{CAPACITY, Dirty};
use crate::origin::Origin;
use crate::policy;
use crate::reorganize::Why;
use crate::segment::{Located, STAGED_MAX};
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;
use crate::tuning::Staging;

/// A page that is to be staged.
pub(crate) struct FilledPage<'p> {
    pub(crate) page: Lent<'p>,
    /// How many of the share's records are in it.
    pub(crate) records: usize,
    pub(crate) marks: Marks,
}

impl TreeLine {
    /// Whether the dirty records of a segment are to be staged.
    pub(crate) fn is_to_stage(
        &self,
        located: &Located,
        bytes: &Bytes<'_>,
        dirty: &[Taken],
    ) -> bool {
        let records = || dirty.iter().map(|taken| bytes.dirty(taken));
        let pays = match self.tuning.staging() {
            Staging::Off => false,
            Staging::On => {
                let pages = dirty.chunk_by(|a, b| a.page() == b.page()).count();
                policy::is_burst(dirty.len(), pages)
            }
            Staging::Auto => {
                let value = |value: Option<_>| value.map_or(0, spinney_base::ValueRef::len);
                let bytes: usize = records().map(|(key, of)| key.len() + value(of)).sum();
                policy::are_long(bytes, dirty.len(), CAPACITY) && {
                    let (puts, new) = self.workload.accesses.puts();
                    let mut novelty = self.workload.novelty.lock();
                    novelty.were_put(puts, new);
                    novelty.is_high()
                }
            }
        };
        pays && located.segment.staged.len() < STAGED_MAX
            && !self.has_marked(bytes, dirty)
            && records().all(|(_, value)| value.is_some_and(|value| !value.large))
    }

    /// Fills staged pages with these records, as few as possible; `None` if they would be too many.
    pub(crate) fn fill_staged(
        &self,
        located: &Located,
        dirty: &[Dirty<'_>],
    ) -> Option<Vec<FilledPage<'_>>> {
        let segment = &located.segment;
        let worth = policy::staged_pages_max(segment.base_pages());
        let most = (STAGED_MAX - segment.staged.len()).min(worth);
        let (prefix, origin) = (located.prefix(), Origin::beside(located, 0, true));
        let mut left = dirty;
        let mut pages = Vec::with_capacity(most);
        while !left.is_empty() {
            if pages.len() == most {
                return None;
            }
            let mut page = self.memory.buffers.lend(1);
            let records = {
                let mut editor = PageEditor::format(page.page_mut(0), prefix, &origin);
                let put = |(key, value): &Dirty<'_>| {
                    value.is_some_and(|value| editor.put(key, value) == Put::Done)
                };
                left.iter().map(put).take_while(|fits| *fits).count()
            };
            let (here, behind) = left.split_at(records);
            let marks = Marks::of(here.iter().map(|(key, _)| hash_key(self.context.keyspace, key)));
            pages.push(FilledPage { page, records, marks });
            left = behind;
        }
        Some(pages)
    }

    /// Merges the staged pages of one segment, in the order of keys; says whether there was one.
    pub(crate) fn merge_staged(&self) -> Result<bool> {
        if self.shape.index.counts().staged_pages == 0 {
            return Ok(false);
        }
        let from = std::mem::take(&mut *self.background.last_merged.lock());
        let (found, next) = self.shape.index.segments_where(&from, 1, |one| !one.staged.is_empty());
        *self.background.last_merged.lock() = next.unwrap_or_default();
        let Some(located) = found.first() else { return Ok(true) };
        let _gate = self.shape.gate.read();
        self.reorganize(located, Why::Tidy).map(|_| true)
    }
}
