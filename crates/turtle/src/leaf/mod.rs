//! Leaves and segments: sorted edits in consecutive pages, read by single pages through the cache
//! or whole (sections 2.2 and 4.1).
//!
//! ```text
//!   get      filter page -> index page(s) -> page of keys -> page(s) of values
//!   cursor                  index page(s) -> pages of keys -> only those of values it fills records from
//!   load                                     keys and values, in one transfer
//! ```
//!
//! `format` is the one home of the bytes; `index` orders the index; `build` writes; `read` looks
//! keys up, and `warm` reads what many lookups need; `load` reads whole leaves and `cursor` parts
//! of them. `blob` keeps nodes beside them.
//!
//! **Invariants**
//! 1. A leaf never changes. A [`Leaf`] owns its pages: when it is dropped the cache forgets them
//!    and the store has them back.
//! 2. A page that is not what it should be is `Corruption`, except one of the filter, which is a
//!    hint: without it every key may be there.
//!
//! **Differs from the paper.** Groups of keys never lie across pages and say where their values
//! are, so that a lookup reads one page of keys; the index is a binary search tree over every 16th
//! key (and over each page's first) with short separators, not a trie; it never needs every 32nd
//! key, since it takes a tenth of the keys' room, or less.

pub(crate) mod blob;
mod build;
pub(crate) mod cursor;
pub(crate) mod format;
mod index;
pub(crate) mod load;
pub(crate) mod read;
#[cfg(test)]
mod tests;
pub(crate) mod warm;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::{Error, Lsn, Result};
use spinney_cache::{CacheFile, Kind, PageId, PageRef};
use spinney_extent::header::Damage;
use spinney_extent::{HEADER_BYTES, PageRun, Store};
use spinney_io::Purpose;

use build::{Built, Edits};
use format::{Description, PAGE_BLOCKS, Section};

use crate::kinds;
use crate::kinds::block;

/// Where leaves lie: a keyspace's store, its part of the page cache, and what was counted.
#[derive(Debug)]
pub(crate) struct LeafStore {
    pub(crate) store: Arc<Store>,
    pub(crate) cache: CacheFile,
    pub(crate) counters: LeafCounters,
    /// Of keys that were looked up in the last leaf that could have them.
    absences: Absences,
}

/// Whether keys are often not in the last leaf that could have them. Mostly they are there, and
/// then its filter costs memory and tells nothing: it is asked only while more than one lookup of
/// nine ends in vain.
///
/// Most lookups find the score at an end of its range, where they leave it alone.
#[derive(Debug)]
struct Absences(AtomicU32);

impl Absences {
    const MOST: u32 = 128;
    /// Points of a lookup that ends in vain; one that finds its key takes one away.
    const WEIGHT: u32 = 8;

    #[inline]
    fn are_many(&self) -> bool {
        self.0.load(Relaxed) > Self::MOST / 2
    }

    /// A lookup has ended. What threads do at once may be lost: a hint.
    #[inline]
    fn note(&self, is_absent: bool) {
        let before = self.0.load(Relaxed);
        let now = if is_absent {
            (before + Self::WEIGHT).min(Self::MOST)
        } else {
            before.saturating_sub(1)
        };
        if now != before {
            self.0.store(now, Relaxed);
        }
    }
}

impl Default for Absences {
    fn default() -> Self {
        Absences(AtomicU32::new(Self::MOST))
    }
}

/// Counters of reading and writing leaves.
#[derive(Debug, Default)]
pub(crate) struct LeafCounters {
    /// Lookups that a filter could have ended.
    pub(crate) filter_probes: AtomicU64,
    /// Those that it did end.
    pub(crate) filter_negatives: AtomicU64,
    /// Those that it let pass although the key was not there.
    pub(crate) filter_false_positives: AtomicU64,
    /// Those that met a damaged page of a filter.
    pub(crate) filter_damaged: AtomicU64,
    /// Pages that lookups and scans read from the file, by [`Kind`]; those of nodes when a tree is
    /// opened.
    pub(crate) pages_read: [AtomicU64; 5],
    /// Pages that ranges looked into, cached or not.
    pub(crate) scan_pages: AtomicU64,
    /// Pages that loads read from the file.
    pub(crate) pages_loaded: AtomicU64,
    pub(crate) leaves_written: AtomicU64,
    pub(crate) nodes_written: AtomicU64,
    /// Pages of nodes, and of nodes and leaves.
    pub(crate) node_pages_written: AtomicU64,
    pub(crate) pages_written: AtomicU64,
    /// Pages that leaves and nodes own now.
    pub(crate) pages_owned: AtomicU64,
    /// Leaves that were read whole, or a range of one.
    pub(crate) loads: AtomicU64,
}

/// A leaf or segment on disk. Dropping it gives its pages back.
#[derive(Debug)]
pub(crate) struct Leaf {
    files: Arc<LeafStore>,
    description: Description,
    /// Where each section begins, as an index of its pages, and how many pages it has in all.
    starts: [u32; 5],
}

impl LeafStore {
    /// Counts pages of a section that were read from the file.
    fn count_read(&self, section: Section, pages: usize, purpose: Purpose) {
        let counters = &self.counters;
        let counter = if purpose == Purpose::REORGANIZE {
            &counters.pages_loaded
        } else {
            &counters.pages_read[kind(section).index()]
        };
        counter.fetch_add(pages as u64, Relaxed);
    }

    pub(crate) fn new(store: Arc<Store>, cache: CacheFile) -> Arc<LeafStore> {
        Arc::new(LeafStore {
            store,
            cache,
            counters: LeafCounters::default(),
            absences: Absences::default(),
        })
    }
}

impl Leaf {
    /// Writes a leaf of sorted edits, no record above `lsn` among them. Index and keys are in the
    /// cache afterwards, and filter and values if it has room. The leaf is durable after
    /// [`Store::sync`].
    ///
    /// # Errors
    /// `InvalidArgument` for what no leaf can hold; `Full`, `Poisoned` or `Io`; nothing is owned
    /// then.
    pub(crate) fn write(
        files: &Arc<LeafStore>,
        edits: &impl Edits,
        filter_bits: u32,
        lsn: Lsn,
        purpose: Purpose,
    ) -> Result<Leaf> {
        let store = &files.store;
        let mut built = build::build(edits, store.keyspace(), filter_bits)?;
        let run = store.allocate_run(built.description.run().pages)?;
        let (first, generation) = (run.first, run.generation);
        // From here on it owns its pages: an error gives them back.
        let description = Description { first, generation, ..built.description };
        let leaf = Leaf::own(files, description);
        built.set_place(description);
        let front_pages = run.pages - built.body.pages() as u32;
        store.seal_run(&run, 0, block::LEAF, &mut built.front, lsn);
        store.seal_run(&run, front_pages, block::LEAF, &mut built.body, lsn);
        let body = (run.page(front_pages), built.body.bytes());
        store.write_runs(&[(first, built.front.bytes()), body], purpose)?;
        leaf.keep(&built);
        files.counters.leaves_written.fetch_add(1, Relaxed);
        files.counters.pages_written.fetch_add(u64::from(run.pages), Relaxed);
        Ok(leaf)
    }

    /// Puts pages that were just written into the cache: those that every lookup needs, and the
    /// others if there is free room. A filter comes when it is first asked; that of a leaf below
    /// all segments is mostly not asked.
    fn keep(&self, built: &Built) {
        let cache = self.files.cache.cache();
        let has_room = cache.used() + built.body.bytes().len() as u64 <= cache.bytes();
        for section in [Section::Index, Section::Keys, Section::Filter, Section::Values] {
            let (first, count) = self.section(section);
            if section == Section::Filter && !has_room {
                return;
            }
            for page in 0..count {
                let index = (first + page) as usize;
                let of_body = index.checked_sub(built.front.pages());
                let bytes =
                    of_body.map_or_else(|| built.front.page(index), |it| built.body.page(it));
                self.files.cache.insert(self.page_id(section, page), bytes);
            }
        }
    }

    /// Owns, from here on, the pages of the leaf that [`Leaf::describe`] described. Reads nothing.
    ///
    /// # Errors
    /// `Corruption` when nothing can be described so.
    pub(crate) fn open(files: &Arc<LeafStore>, description: &[u8]) -> Result<Leaf> {
        let description = Description::decode(description)
            .map_err(|damage| damage.at(files.store.path(), spinney_base::PageNumber::NONE))?;
        Ok(Leaf::own(files, description))
    }

    fn own(files: &Arc<LeafStore>, description: Description) -> Leaf {
        let mut starts = [0; 5];
        for (section, pages) in description.section_pages().iter().enumerate() {
            starts[section + 1] = starts[section] + pages;
        }
        files.counters.pages_owned.fetch_add(u64::from(starts[4]), Relaxed);
        Leaf { files: Arc::clone(files), description, starts }
    }

    /// Where a section begins, as an index of the leaf's pages, and how many pages it has.
    #[inline]
    fn section(&self, section: Section) -> (u32, u32) {
        let section = section as usize;
        (self.starts[section], self.starts[section + 1] - self.starts[section])
    }

    /// Its pages.
    #[inline]
    pub(crate) fn run(&self) -> PageRun {
        let Description { first, generation, .. } = self.description;
        PageRun { first, pages: self.starts[4], generation }
    }

    /// What has to be remembered of it.
    pub(crate) fn describe(&self) -> [u8; Description::BYTES] {
        self.description.encode()
    }

    /// Its pages, sizes and counts.
    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    /// The damage of a page as an error with its place.
    fn damaged(&self, section: Section, page: u32, damage: Damage) -> Error {
        damage.at(self.files.store.path(), self.page_id(section, page).page)
    }

    /// A page of a section, which has it.
    fn page_id(&self, section: Section, page: u32) -> PageId {
        let (first, _) = self.section(section);
        let run = self.run();
        PageId { page: run.page(first + page), generation: run.generation, kind: kind(section) }
    }

    /// A page of a section through the cache.
    ///
    /// # Errors
    /// `Corruption`, also when the section has no such page; `Io`.
    #[inline]
    fn page(&self, section: Section, page: u32, purpose: Purpose) -> Result<PageRef<'_>> {
        let id = self.page_id(section, self.check_page(section, page)?);
        self.files.cache.get(id, |buf: &mut [u8; PAGE_BYTES]| {
            let index = self.section(section).0 + page;
            let run = self.run();
            self.files.count_read(section, 1, purpose);
            self.files.store.read_run_page(&run, index, block::LEAF, buf, purpose)
        })
    }

    /// The page, if the section has it.
    #[inline]
    fn check_page(&self, section: Section, page: u32) -> Result<u32> {
        let pages = self.section(section).1;
        if page < pages {
            return Ok(page);
        }
        let damage = Damage::new(format!("{pages} pages of {section:?}"), format!("page {page}"));
        Err(damage.at(self.files.store.path(), self.description.first))
    }

    /// The page of the filter that has the key's block, and the block's place in it; `None` without
    /// a filter.
    #[inline]
    fn filter_place(&self, hash: u64) -> Option<(u32, usize)> {
        let blocks = self.description.filter_blocks;
        let block = (blocks > 0).then(|| spinney_filter::block_of(hash, blocks))?;
        let before = (block % PAGE_BLOCKS) as usize * spinney_filter::BLOCK_BYTES;
        Some((block / PAGE_BLOCKS, HEADER_BYTES + before))
    }

    /// Whether the key may be there, by its block of the filter.
    fn may_contain<R: Reach>(&self, hash: u64, reach: &R) -> Result<bool, R::Stop> {
        let Some((page, at)) = self.filter_place(hash) else { return Ok(true) };
        let mut bytes = [0; spinney_filter::BLOCK_BYTES];
        if !self.files.cache.copy(self.page_id(Section::Filter, page), at, &mut bytes) {
            match reach.page(self, Section::Filter, page) {
                Ok(page) => bytes.copy_from_slice(&page[at..at + spinney_filter::BLOCK_BYTES]),
                Err(stop) if R::is_corruption(&stop) => {
                    self.files.counters.filter_damaged.fetch_add(1, Relaxed);
                    return Ok(true);
                }
                Err(stop) => return Err(stop),
            }
        }
        let may = spinney_filter::block_contains(&bytes, hash);
        if R::COUNTS {
            self.files.counters.filter_probes.fetch_add(1, Relaxed);
            self.files.counters.filter_negatives.fetch_add(u64::from(!may), Relaxed);
        }
        Ok(may)
    }
}

/// How far a lookup goes for a page.
trait Reach {
    /// Why it goes no further.
    type Stop: From<Error>;
    /// Whether what it finds is counted.
    const COUNTS: bool;

    /// A page of a section.
    fn page<'a>(
        &self,
        leaf: &'a Leaf,
        section: Section,
        page: u32,
    ) -> Result<PageRef<'a>, Self::Stop>;

    /// Some pages of values will be asked for, one after the other.
    fn expect(&self, leaf: &Leaf, pages: Range<u64>);

    /// Whether it stopped at a damaged page.
    fn is_corruption(stop: &Self::Stop) -> bool;
}

/// It loads what is not cached.
struct Loading;

impl Reach for Loading {
    type Stop = Error;
    const COUNTS: bool = true;

    #[inline]
    fn page<'a>(&self, leaf: &'a Leaf, section: Section, page: u32) -> Result<PageRef<'a>> {
        leaf.page(section, page, Purpose::LOOKUP)
    }

    /// One request for all pages together.
    fn expect(&self, leaf: &Leaf, pages: Range<u64>) {
        let page = |page| u32::try_from(page).unwrap_or(u32::MAX);
        leaf.bring_in(Section::Values, page(pages.start)..page(pages.end), Purpose::LOOKUP);
    }

    fn is_corruption(stop: &Error) -> bool {
        stop.is_corruption()
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        let run = self.run();
        self.files.cache.forget(run.first, run.pages);
        self.files.store.release_run(run);
        self.files.counters.pages_owned.fetch_sub(u64::from(run.pages), Relaxed);
    }
}

/// As what the cache keeps pages of a section.
#[inline]
fn kind(section: Section) -> Kind {
    match section {
        Section::Index => kinds::INDEX,
        Section::Filter => kinds::FILTER,
        Section::Keys => kinds::KEYS,
        Section::Values => kinds::VALUES,
    }
}

/// What a page holds behind its header.
fn payload(page: &[u8; PAGE_BYTES]) -> &[u8] {
    &page[HEADER_BYTES..]
}
