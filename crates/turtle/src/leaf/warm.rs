//! Reading what many lookups or cursors need into the cache, together: the segments that one key
//! may be in, or the leaves of many keys (the parallel lookups of section 3.4).
//!
//! Each lookup is tried on what is cached. The pages at which lookups stop are read in one batch,
//! as deep as the disk can, and those that stopped are tried again. A lookup stops at its filter,
//! its index, its keys and its value, so a few batches suffice, however many lookups there are. Of
//! the leaves that one key may be in, only filters are read together: mostly one has the key, and
//! older ones are not needed then. What cursors of one range expect to be asked for comes in one
//! batch, too. All of this is a hint: a lookup afterwards reads what is missing, and reports
//! damage.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use spinney_base::{Error, Result};
use spinney_cache::{PageId, PageRef};
use spinney_extent::PageRun;
use spinney_io::Purpose;

use super::cursor::LeafCursor;
use super::format::Section;
use super::{Leaf, LeafStore, Reach};

use crate::kinds::block;

/// More batches than a lookup needs: filter, two pages of the index, keys, value, and its end.
const BATCHES_MAX: usize = 7;

/// Most pages in one batch, which bounds its buffer: 1 MiB.
const BATCH_PAGES_MAX: usize = 256;

/// A key that will be looked up in a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup<'a> {
    pub(crate) leaf: &'a Leaf,
    pub(crate) key: &'a [u8],
    /// The key's, of this keyspace.
    pub(crate) hash: u64,
    /// Whether there is no older leaf that the key can be in.
    pub(crate) is_last: bool,
}

/// A page of a leaf: its name, the leaf's pages, and which of them it is.
type Page = (PageId, PageRun, u32);

/// It goes no further than what is cached.
struct Cached;

/// Why a lookup went no further.
enum Stop {
    Missing {
        id: PageId,
        run: PageRun,
        index: u32,
    },
    /// The lookup itself reports why.
    Failed,
}

impl From<Error> for Stop {
    fn from(_: Error) -> Stop {
        Stop::Failed
    }
}

impl Reach for Cached {
    type Stop = Stop;
    const COUNTS: bool = false;

    fn page<'a>(&self, leaf: &'a Leaf, section: Section, page: u32) -> Result<PageRef<'a>, Stop> {
        let id = leaf.page_id(section, leaf.check_page(section, page)?);
        let (first, _) = leaf.section(section);
        let missing = Stop::Missing { id, run: leaf.run(), index: first + page };
        leaf.files.cache.find(id).ok_or(missing)
    }

    fn expect(&self, _: &Leaf, _: Range<u64>) {}

    fn is_corruption(_: &Stop) -> bool {
        false
    }
}

impl LeafStore {
    /// Reads what these lookups need into the cache, as far as it has room. The leaves are this
    /// store's. Lookups of one key follow each other, the newest leaf first: an older one does not
    /// matter when a newer one has the key.
    pub(crate) fn warm(&self, lookups: &[Lookup<'_>]) {
        let mut keys: Vec<&[Lookup<'_>]> =
            lookups.chunk_by(|one, next| one.hash == next.hash && one.key == next.key).collect();
        for _ in 0..BATCHES_MAX {
            let mut wanted: Vec<Page> = Vec::new();
            // One key alone waits for its filters together; from then on it takes one page after
            // another.
            let is_alone = keys.len() == 1;
            keys.retain(|of_key| {
                let before = wanted.len();
                if is_alone {
                    want_filters(of_key, &mut wanted)
                } else {
                    want(of_key, &mut wanted)
                }
                wanted.len() > before
            });
            if is_alone && wanted.len() == 1 {
                return;
            }
            wanted.sort_unstable_by_key(|(id, ..)| id.page);
            wanted.dedup_by_key(|(id, ..)| id.page);
            wanted.truncate(BATCH_PAGES_MAX);
            // The lookup itself reports an error.
            if wanted.is_empty() || self.read_in(&wanted, Purpose::LOOKUP).is_err() {
                return;
            }
        }
    }

    /// Reads the values that these cursors expect to be asked for, together, if there are several
    /// pages. Returns how many pages were missing of all but the last cursor.
    pub(crate) fn bring_in(&self, cursors: &[&LeafCursor<'_>]) -> usize {
        let missing = |cursors: &[&LeafCursor<'_>]| -> Vec<Page> {
            let expected = cursors.iter().filter_map(|cursor| cursor.expected_pages());
            expected.flat_map(|(leaf, pages)| leaf.missing(Section::Values, pages)).collect()
        };
        let Some((last, others)) = cursors.split_last() else { return 0 };
        let mut wanted = missing(others);
        let of_others = wanted.len();
        wanted.extend(missing(&[last]));
        wanted.sort_unstable_by_key(|(id, ..)| id.page);
        wanted.dedup_by_key(|(id, ..)| id.page);
        wanted.truncate(BATCH_PAGES_MAX);
        if wanted.len() > 1 {
            // The cursor that reads them reports an error.
            let _ = self.read_in(&wanted, Purpose::SCAN);
        }
        of_others
    }

    fn read_in(&self, wanted: &[Page], purpose: Purpose) -> Result<usize> {
        let ids: Vec<PageId> = wanted.iter().map(|(id, ..)| *id).collect();
        self.cache.prefetch_many(&ids, |missing, buf| {
            let place = |id: PageId| {
                let at = wanted.binary_search_by_key(&id.page, |(id, ..)| id.page);
                at.map(|at| (wanted[at].1, wanted[at].2))
            };
            let pages: Vec<_> = missing.iter().filter_map(|it| place(it.id).ok()).collect();
            for page in missing {
                self.counters.pages_read[page.id.kind.index()].fetch_add(1, Relaxed);
            }
            self.store.read_run_pages(&pages, block::LEAF, buf, purpose)
        })
    }
}

impl Leaf {
    /// Reads those of some pages of a section that are not cached, if there are several. A hint, as
    /// all of this.
    pub(super) fn bring_in(&self, section: Section, pages: Range<u32>, purpose: Purpose) {
        let wanted: Vec<Page> = self.missing(section, pages).collect();
        if wanted.len() > 1 {
            // The cursor that reads them reports an error.
            let _ = self.files.read_in(&wanted, purpose);
        }
    }

    /// Those of some pages of a section that it has and that are not cached.
    fn missing(&self, section: Section, pages: Range<u32>) -> impl Iterator<Item = Page> {
        let (first, count) = self.section(section);
        let place = move |page: u32| (self.page_id(section, page), self.run(), first + page);
        let missing = |(id, ..): &Page| !self.files.cache.prefetch(*id, 0);
        (pages.start..pages.end.min(count)).map(place).filter(missing)
    }
}

/// Collects the pages that the lookups of one key miss next: where the first stops, and the filters
/// of those behind it.
fn want(of_key: &[Lookup<'_>], wanted: &mut Vec<Page>) {
    let mut scratch = Vec::new();
    for (at, lookup) in of_key.iter().enumerate() {
        match lookup.get_within(&mut scratch, &Cached) {
            Ok(None) => {}
            Ok(Some(_)) | Err(Stop::Failed) => return,
            Err(Stop::Missing { id, run, index }) => {
                wanted.push((id, run, index));
                return want_filters(&of_key[at + 1..], wanted);
            }
        }
    }
}

/// Collects the pages of filters that are missing, and asks the processor for those that are there.
fn want_filters(of_key: &[Lookup<'_>], wanted: &mut Vec<Page>) {
    for Lookup { leaf, hash, .. } in of_key.iter().filter(|lookup| lookup.asks_filter()) {
        if let Some((page, offset)) = leaf.filter_place(*hash) {
            let id = leaf.page_id(Section::Filter, page);
            if !leaf.files.cache.prefetch(id, offset) {
                wanted.push((id, leaf.run(), leaf.section(Section::Filter).0 + page));
            }
        }
    }
}
