//! Bringing in what many lookups need, together: the segments that one key may be in, or the leaves
//! of many keys (the parallel lookups of section 3.4).
//!
//! Each lookup is tried on what is cached; the pages at which they stop are read in one batch, as
//! deep as the disk can, and those that stopped are tried again. A lookup stops at its filter, its
//! index, its keys and its value, so a few batches do, however many lookups there are. All of this
//! is a hint: whoever looks up afterwards loads what is missing, and hears of damage.

use spinney_base::{Error, Result};
use spinney_cache::{PageId, PageRef};
use spinney_extent::{BlockKind, PageRun};
use spinney_io::Purpose;

use super::format::Section;
use super::{Leaf, LeafStore, Reach};

/// More batches than a lookup needs: filter, two pages of the index, keys, value, and its end.
const BATCHES_MAX: usize = 7;

/// Most pages in one batch, which bounds its buffer: 1 MiB.
const BATCH_PAGES_MAX: usize = 256;

/// A key that will be looked up in a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup<'a> {
    pub(crate) leaf: &'a Leaf,
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
}

/// How much of a lookup is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The filter, which will mostly say that the key is not there.
    Filter,
    /// All.
    Value,
}

/// It goes no further than what is cached.
struct Cached;

/// Why a lookup went no further.
enum Stop {
    Missing { id: PageId, run: PageRun, index: u32 },
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
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

    fn is_corruption(_: &Stop) -> bool {
        false
    }
}

impl LeafStore {
    /// Brings in what these lookups need, as far as the cache has room. The leaves are this store's.
    pub(crate) fn warm(&self, lookups: &[Lookup<'_>], until: Until) {
        let mut waiting: Vec<Lookup<'_>> = lookups.to_vec();
        let mut scratch = Vec::new();
        for _ in 0..BATCHES_MAX {
            let mut wanted: Vec<(PageId, PageRun, u32)> = Vec::new();
            waiting.retain(|lookup| {
                scratch.clear();
                let tried = match until {
                    Until::Filter => lookup.leaf.may_contain(lookup.hash, &Cached).map(drop),
                    Until::Value => {
                        let Lookup { leaf, key, hash } = *lookup;
                        leaf.get_within(key, hash, &mut scratch, &Cached).map(drop)
                    }
                };
                let Err(Stop::Missing { id, run, index }) = tried else { return false };
                wanted.push((id, run, index));
                true
            });
            wanted.sort_unstable_by_key(|(id, ..)| id.page);
            wanted.dedup_by_key(|(id, ..)| id.page);
            wanted.truncate(BATCH_PAGES_MAX);
            // Whoever looks up hears of an error.
            if wanted.is_empty() || self.read_in(&wanted).is_err() {
                return;
            }
        }
    }

    fn read_in(&self, wanted: &[(PageId, PageRun, u32)]) -> Result<usize> {
        let ids: Vec<PageId> = wanted.iter().map(|(id, ..)| *id).collect();
        self.cache.prefetch_many(&ids, |missing, buf| {
            let place = |id: PageId| {
                let at = wanted.binary_search_by_key(&id.page, |(id, ..)| id.page);
                at.map(|at| (wanted[at].1, wanted[at].2))
            };
            let pages: Vec<_> = missing.iter().filter_map(|it| place(it.id).ok()).collect();
            self.store.read_run_pages(&pages, BlockKind::Leaf, buf, Purpose::Lookup)
        })
    }
}
