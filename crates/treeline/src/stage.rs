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
//! It pays where a page holds few records: each new one would cost the reading and the writing of a
//! page, and mostly an overflow page, and the fresh pages of a batch are written side by side. So it
//! is done where records are long and those that came home lately were new ([`Novelty`]); lookups do not pay for
//! it, for [`Marks`] in memory say which staged pages may have a key. Where records are short a page's dirty
//! records are many by the time they must go home. See `docs/decisions/0007`.
//!
//! **Invariants**
//! 1. Only inserted and changed inline records are staged, never removals and pointers.
//! 2. While a segment has staged pages its other pages are not edited
//!    ([`write_back`](crate::write_back) asks for the merge instead), so newer is always above.
//! 3. A staged page whose marks refuse a key does not have it. What a checkpoint or the log tells of is marked
//!    with everything.

use spinney_base::Result;
use spinney_io::Lent;
use spinney_page::{PageEditor, Put};
use spinney_sync::hash_key;

use crate::merge::{CAPACITY, Dirty};
use crate::origin::Origin;
use crate::reorganize::Why;
use crate::segment::{Located, PageRef, STAGED_MAX};
use crate::taken::{Bytes, Taken};
use crate::tree::TreeLine;
use crate::tuning::Staging;

/// Records are long if a page holds no more of them.
const LONG_PER_PAGE: usize = 8;

/// Where staging was asked for: fewest records that are worth a page of their own.
const RECORDS_MIN: usize = 12;

/// Where staging was asked for: a segment's share is brought home at once where it has more records for each of
/// the pages that it belongs to: then the reading of the page is paid for.
const PER_PAGE_MAX: usize = 20;

/// A share that takes more pages than one in so many of the segment's is merged at once.
const SHARE_OF_SEGMENT: usize = 2;

/// A page that is to be staged.
pub(crate) struct FilledPage<'p> {
    pub(crate) page: Lent<'p>,
    /// How many of the share's records are in it.
    pub(crate) records: usize,
    pub(crate) marks: Marks,
}

/// A staged page of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub(crate) at: PageRef,
    pub(crate) marks: Marks,
}

impl PartialEq for Staged {
    /// Marks are a hint: what the log tells of the same page has others.
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

/// A Bloom filter of one word over the keys of a staged page, by their hashes: of 3 keys it lets pass one other in
/// 1,000, of 12 one in 12, of 40 all but a few are let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks(u64);

impl Marks {
    /// Those of a page of which nothing is known.
    pub(crate) const ALL: Marks = Marks(u64::MAX);

    /// So many bits for each key.
    const BITS: u32 = 4;

    pub(crate) fn of(hashes: impl Iterator<Item = u64>) -> Self {
        Marks(hashes.fold(0, |marks, hash| marks | Self::bits(hash)))
    }

    /// Whether the page may have a key with this hash.
    pub(crate) fn may_have(self, hash: u64) -> bool {
        let bits = Self::bits(hash);
        self.0 & bits == bits
    }

    /// By six bits of the hash each.
    fn bits(hash: u64) -> u64 {
        (0..Self::BITS).fold(0, |bits, which| bits | 1 << (hash >> (40 + 6 * which) & 63))
    }
}

/// Whether what is written lately is new: of records that came home it is known, but what is staged tells only when
/// it is merged; of records that are put it is known that they are not, where the cache has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Novelty {
    home: ShareOfNew,
    put: ShareOfNew,
    /// Puts that were counted in all, and those that may have been of new keys.
    puts: (u64, u64),
}

impl Novelty {
    /// So many records came home, of which so many were new.
    pub(crate) fn came_home(&mut self, new: usize, all: usize) {
        self.home.note(new as u64, all as u64);
    }

    /// So many records have been put up to now, of which so many may have been of new keys.
    pub(crate) fn were_put(&mut self, all: u64, new: u64) {
        let before = std::mem::replace(&mut self.puts, (all, new));
        self.put.note(new.saturating_sub(before.1), all.saturating_sub(before.0));
    }

    pub(crate) fn is_high(self) -> bool {
        self.home.is_high() && self.put.is_high()
    }
}

/// What share of the records of late were new.
#[derive(Clone, Copy, Debug, Default)]
struct ShareOfNew {
    new: u64,
    all: u64,
}

impl ShareOfNew {
    /// So many records count, or the last that were noted; then both numbers are halved, so that old ones count
    /// less.
    const COUNTED_MAX: u64 = 4096;

    /// Of so few records nothing can be told.
    const COUNTED_MIN: u64 = 64;

    fn note(&mut self, new: u64, all: u64) {
        if all > Self::COUNTED_MAX {
            (self.new, self.all) = (0, 0);
        }
        self.new += new.min(all);
        self.all += all;
        if self.all > Self::COUNTED_MAX {
            (self.new, self.all) = (self.new / 2, self.all / 2);
        }
    }

    /// Whether all but one in eight were new.
    fn is_high(self) -> bool {
        self.all >= Self::COUNTED_MIN && 8 * (self.all - self.new) <= self.all
    }
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
                (RECORDS_MIN..=PER_PAGE_MAX * pages).contains(&dirty.len())
            }
            Staging::Auto => {
                let value = |value: Option<_>| value.map_or(0, spinney_base::ValueRef::len);
                let bytes: usize = records().map(|(key, of)| key.len() + value(of)).sum();
                bytes * LONG_PER_PAGE >= CAPACITY * dirty.len() && {
                    let (puts, new) = self.accesses.puts();
                    let mut novelty = self.novelty.lock();
                    novelty.were_put(puts, new);
                    novelty.is_high()
                }
            }
        };
        pays && located.segment.staged.len() < STAGED_MAX
            && records().all(|(_, value)| value.is_some_and(|value| !value.large))
    }

    /// Makes staged pages of these records, as few as can be; `None` if that were too many.
    pub(crate) fn fill_staged(
        &self,
        located: &Located,
        dirty: &[Dirty<'_>],
    ) -> Option<Vec<FilledPage<'_>>> {
        let segment = &located.segment;
        let worth = (segment.base_pages() / SHARE_OF_SEGMENT).max(1);
        let most = (STAGED_MAX - segment.staged.len()).min(worth);
        let (prefix, origin) = (located.prefix(), Origin::beside(located, 0, true));
        let mut left = dirty;
        let mut pages = Vec::with_capacity(most);
        while !left.is_empty() {
            if pages.len() == most {
                return None;
            }
            let mut page = self.buffers.lend(1);
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
        if self.index.counts().staged_pages == 0 {
            return Ok(false);
        }
        let from = std::mem::take(&mut *self.last_merged.lock());
        let (found, next) = self.index.segments_where(&from, 1, |one| !one.staged.is_empty());
        *self.last_merged.lock() = next.unwrap_or_default();
        let Some(located) = found.first() else { return Ok(true) };
        let _gate = self.gate.read();
        self.reorganize(located, Why::Tidy).map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_know_their_keys_and_refuse_most_others() {
        let hash = |key: u64| hash_key(spinney_base::KeyspaceId(1), &key.to_be_bytes());
        for (keys, passed_max) in [(1, 2), (3, 10), (12, 1200), (400, 10_000)] {
            let marks = Marks::of((0..keys).map(hash));
            assert!((0..keys).all(|key| marks.may_have(hash(key))));
            let passed = (1000..11_000).filter(|key| marks.may_have(hash(*key))).count();
            assert!(passed <= passed_max, "{passed} of 10,000 pass the marks of {keys}");
        }
        assert!((0..1000).all(|key| Marks::ALL.may_have(hash(key))));
        assert!(!Marks::of([].into_iter()).may_have(hash(1)));
    }

    #[test]
    fn novelty_forgets() {
        let mut share = ShareOfNew::default();
        assert!(!share.is_high(), "nothing is known");
        share.note(63, 63);
        assert!(!share.is_high(), "little is known");
        share.note(100, 100);
        assert!(share.is_high());
        share.note(0, 10_000);
        assert!(!share.is_high());
        (0..10).for_each(|_| share.note(4000, 4000));
        assert!(share.is_high());
        (0..10).for_each(|_| share.note(3400, 4000));
        assert!(!share.is_high(), "15 of 100 are not new");
    }

    /// What is staged is not known to be new or not before it is merged, but what is put again and again is in memory.
    #[test]
    fn novelty_ends_with_the_puts_that_are_updates() {
        let mut novelty = Novelty::default();
        novelty.came_home(1000, 1000);
        assert!(!novelty.is_high(), "who knows what is put");
        novelty.were_put(1000, 1000);
        assert!(novelty.is_high());
        novelty.were_put(2000, 1700);
        assert!(!novelty.is_high(), "three of the last ten were updates");
        novelty.were_put(2_000_000, 1_999_700);
        assert!(novelty.is_high());
        novelty.came_home(0, 1000);
        assert!(!novelty.is_high(), "what the cache did not know was there all the same");
    }
}
