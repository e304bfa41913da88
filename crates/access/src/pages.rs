//! Pages that change in memory and are written to new places.
//!
//! ```text
//!   parent          changed in memory        written, side by side with others       parent
//!  [.. p7 ..] ---> frame of p7 (leaf v2)  --->  block at p31  ---> one step: --->  [.. p31 ..]
//!                                                                  p7 is let go
//! ```
//!
//! A page is found by its [`Place`], which its parent has. In memory it is a frame of the page cache, whose
//! words readers search while it changes. Changed, it stays in memory until its words were written to a
//! place of their own; then its parent's pointer changes, and it is clean. So nothing is written in place,
//! nothing is logged, and no page can be torn: what the last root names is whole. A page that is new was
//! written nowhere yet, and is written where it was allocated.
//!
//! **Invariants**
//! 1. The words of a page are stored only under its [`Edit`]; a reader validates afterwards (rule P27).
//! 2. A page that a parent names is in the cache and changed, or its block at its place holds its words.
//! 3. A place is let go once nothing in memory names it, and reused only when no slot does (rule H11), and
//!    no write to it is under way ([`UnderWay`]).

use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::Mutex;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::{Error, ErrorKind, KeyspaceId, Lsn, PageNumber, Result};
use spinney_cache::{Cache, Edit, EditableFile, Kind, Look, PageId, Sight};
use spinney_extent::header::Damage;
use spinney_extent::{BlockHeader, BlockKind, Extent, Store};
use spinney_io::{AlignedBuf, Purpose};
use spinney_leaf::{Leaf, Wrong};
use spinney_sync::racy::Word;

use crate::dirty::Dirty;
use crate::gate::Gate;
use crate::place::Place;

/// Words of a block's header, in front of the leaf.
pub(crate) const HEADER_WORDS: usize = spinney_extent::HEADER_BYTES / 8;

/// A value in a leaf is the pointer to a large one.
pub(crate) const LARGE: u8 = 1;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// Records.
    Leaf,
    /// Places of pages of the level below, by their lower bounds.
    Inner,
}

impl PageKind {
    /// The kind of pages of a level.
    pub(crate) fn of_level(level: u8) -> PageKind {
        if level == 0 { PageKind::Leaf } else { PageKind::Inner }
    }

    pub(crate) fn block(self) -> BlockKind {
        match self {
            PageKind::Leaf => BlockKind::wide(8, "tree leaf"),
            PageKind::Inner => BlockKind::wide(9, "inner node"),
        }
    }

    fn in_cache(self) -> Kind {
        match self {
            PageKind::Leaf => Kind::new(0, "leaf", 2),
            PageKind::Inner => Kind::new(1, "node", 5),
        }
    }
}

/// The pages of one structure. Thread-safe.
#[derive(Debug)]
pub(crate) struct CowPages {
    store: Arc<Store>,
    file: EditableFile,
    keyspace: KeyspaceId,
    /// Binary logarithm of the 4 KiB pages of a page.
    order: u8,
    pub(crate) gate: Gate,
    under_way: Mutex<Places>,
    /// Pages that something names.
    count: AtomicU64,
    fill: Fill,
}

/// How full leaves are: a moving average over those that are written back, for estimates.
#[derive(Debug)]
struct Fill(AtomicU64);

impl Fill {
    /// A full leaf.
    const ALL: u64 = 1 << 16;
    /// Leaves over which the average is taken. With fewer, a few odd ones decide.
    const AVERAGED: u64 = 64;

    /// Notes can be lost where several threads note at once.
    fn note(&self, used: usize, of: usize) {
        let before = self.0.load(Relaxed);
        let now = (used * usize::try_from(Self::ALL).unwrap_or(0) / of) as u64;
        self.0.store((before * (Self::AVERAGED - 1) + now) / Self::AVERAGED, Relaxed);
    }
}

/// The words of a page that was read.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<Word> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| Word::new(u64::from_le_bytes(*word).to_le())).collect()
}

/// The error for a page whose records are wrong.
pub(crate) fn damaged_leaf(store: &Store, at: Place, wrong: Wrong) -> Error {
    Damage::new(wrong.expected, wrong.found).at(store.path(), at.page)
}

/// The leaf of a page that is looked at.
pub(crate) fn leaf_of(words: &[Word]) -> Leaf<'_> {
    Leaf::new(&words[HEADER_WORDS..])
}

impl CowPages {
    /// Makes the pages of a store, of 2^`order` pages of 4 KiB each, which are cached in `cache`.
    pub(crate) fn new(store: Arc<Store>, cache: &Arc<Cache>, order: u8) -> CowPages {
        let keyspace = store.keyspace();
        CowPages {
            store,
            file: cache.editable_file(),
            keyspace,
            order,
            gate: Gate::default(),
            under_way: Mutex::default(),
            count: AtomicU64::new(0),
            // What random insertions come to, until something is known.
            fill: Fill(AtomicU64::new(Fill::ALL / 100 * 72)),
        }
    }

    /// Notes how full a leaf is, as if it kept whole keys.
    pub(crate) fn note_fill(&self, leaf: Leaf<'_>) {
        let prefixes = leaf.len() * leaf.prefix_bytes() / 8;
        self.fill.note(leaf.live() + leaf.len() + prefixes, leaf.block_words());
    }

    /// Returns about how full leaves are. With whole keys it may be above 1.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn fill(&self) -> f64 {
        self.fill.0.load(Relaxed) as f64 / Fill::ALL as f64
    }

    /// Returns the store.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn order(&self) -> u8 {
        self.order
    }

    /// Returns the words that a leaf has.
    pub(crate) fn leaf_words(&self) -> usize {
        (PAGE_BYTES << self.order) / 8 - HEADER_WORDS
    }

    /// Returns the bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        PAGE_BYTES << self.order
    }

    pub(crate) fn id_of(&self, at: Place, level: u8) -> PageId {
        Self::id(at, PageKind::of_level(level))
    }

    fn id(at: Place, kind: PageKind) -> PageId {
        PageId { page: at.page, generation: at.generation, kind: kind.in_cache() }
    }

    pub(crate) fn extent(&self, at: Place) -> Extent {
        Extent { page: at.page, order: self.order }
    }

    /// Returns a page, and reads it if it is not in memory. The caller validates what named the place
    /// afterwards; only then an error is one.
    ///
    /// # Errors
    /// `Corruption` or `Io`.
    #[inline]
    pub(crate) fn look(&self, at: Place, kind: PageKind) -> Result<Look<'_>> {
        self.file.look(Self::id(at, kind), |bytes| self.load(at, kind, bytes))
    }

    /// Returns a page if it is in memory and nobody loads or changes it.
    pub(crate) fn find(&self, at: Place, kind: PageKind) -> Option<Look<'_>> {
        self.file.find(Self::id(at, kind))
    }

    /// Reads and checks a page.
    fn load(&self, at: Place, kind: PageKind, bytes: &mut [u8]) -> Result<()> {
        let block = kind.block();
        self.store.read_wide(at.page, self.order, at.generation, block, bytes, Purpose::LOOKUP)?;
        self.check(at, bytes)
    }

    /// Checks the records of a page whose header is right.
    pub(crate) fn check(&self, at: Place, bytes: &[u8]) -> Result<()> {
        let words = words_of(bytes);
        leaf_of(&words).check(LARGE, 0).map_err(|wrong| damaged_leaf(&self.store, at, wrong))
    }

    /// Whether nothing has changed of a page since it was looked at.
    #[inline]
    pub(crate) fn is_valid(&self, sight: Sight) -> bool {
        self.file.is_valid(sight)
    }

    /// Takes a page to change it, if nothing has changed since it was looked at.
    pub(crate) fn edit(&self, sight: Sight) -> Option<Edit<'_>> {
        self.file.edit(sight)
    }

    /// Allocates new pages, which are empty and changed, and held. It may grow the file, and writes
    /// changed pages of others where no frame is left.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`; nothing has changed.
    pub(crate) fn fresh(&self, kind: PageKind, count: usize) -> Result<Vec<Fresh<'_>>> {
        let no_frames = || Error::new(ErrorKind::Full, "too many pages in memory are dirty");
        if self.is_crowded_with(count) {
            return Err(no_frames());
        }
        let mut all = Vec::with_capacity(count);
        for place in self.allocate(count)? {
            match self.file.fresh(Self::id(place, kind)) {
                Some(edit) => all.push(Fresh { pages: self, kind, place, edit: Some(edit) }),
                None => self.release([place]),
            }
        }
        if all.len() < count {
            return Err(no_frames());
        }
        Ok(all)
    }

    /// Notes that nothing names a page any more, which is gone from memory.
    pub(crate) fn let_go(&self, at: Place) {
        let mut under_way = self.under_way.lock();
        if under_way.written.contains(&at) {
            return under_way.gone.push(at);
        }
        drop(under_way);
        self.store.let_go(self.extent(at), at.generation);
    }

    /// Notes that fresh pages are about to be copied and written to their own places. The caller is the
    /// one that writes back.
    pub(crate) fn begin_write(&self, fresh: impl Iterator<Item = Place>) -> UnderWay<'_> {
        self.under_way.lock().written.extend(fresh);
        UnderWay(self)
    }

    /// Allocates places that lie side by side, as far as may be.
    ///
    /// # Errors
    /// As [`CowPages::fresh`].
    pub(crate) fn allocate(&self, count: usize) -> Result<Vec<Place>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let count = u32::try_from(count).expect("batches are short");
        let (pages, generation) = self.store.allocate_batch(self.order, count)?;
        Ok(pages.into_iter().map(|page| Place { page, generation }).collect())
    }

    /// Gives places back that nothing has ever named.
    pub(crate) fn release(&self, places: impl IntoIterator<Item = Place>) {
        places.into_iter().for_each(|place| self.store.release(self.extent(place)));
    }

    /// Notes that a page lies at another place. The caller holds what names it.
    pub(crate) fn rename(&self, page: &Dirty, to: Place) {
        let is_cached = self.file.rename(page.id, Self::id(to, PageKind::of_level(page.level)));
        debug_assert!(is_cached, "a dirty page is in memory");
    }

    /// Returns a buffer for this number of pages.
    pub(crate) fn buffer(&self, pages: usize) -> AlignedBuf {
        AlignedBuf::new(pages << self.order)
    }

    /// Writes sealed pages, which lie one behind the other in `buf`. Those that follow each other on the disk as well
    /// are written together.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn write(&self, places: &[Place], buf: &AlignedBuf, purpose: Purpose) -> Result<()> {
        let pages: Vec<PageNumber> = places.iter().map(|place| place.page).collect();
        self.store.write_adjacent(&pages, self.order, buf, purpose)
    }

    /// Returns the number of pages that something names.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Notes the pages of a tree that was opened.
    pub(crate) fn set_count(&self, count: u64) {
        self.count.store(count, Relaxed);
    }

    /// Whether pages have to be written before others become dirty: more than three quarters are. What
    /// is left is for reads, and for the inner nodes above dirty pages (rule H19).
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded_with(0)
    }

    /// Whether it would be, with this number of pages more.
    fn is_crowded_with(&self, pages: usize) -> bool {
        self.file.cache().is_dirty_beyond(3, pages as u64)
    }

    /// Removes a page from memory that was taken to be changed, and that nothing names any more.
    pub(crate) fn remove(&self, edit: Edit<'_>, at: Place, level: u8) {
        self.count.fetch_sub(1, Relaxed);
        self.file.forget(Self::id(at, PageKind::of_level(level)));
        drop(edit);
        self.let_go(at);
    }

    pub(crate) fn file(&self) -> &EditableFile {
        &self.file
    }

    /// Seals a page that is about to be written to a place.
    pub(crate) fn seal(&self, at: Place, kind: PageKind, lsn: Lsn, bytes: &mut [u8]) {
        let header = BlockHeader {
            kind: kind.block(),
            page: at.page,
            generation: at.generation,
            keyspace: self.keyspace,
            lsn,
        };
        header.seal(bytes);
    }
}

/// Places of fresh pages that are being written, and those of them that were let go meanwhile.
#[derive(Debug, Default)]
struct Places {
    written: Vec<Place>,
    gone: Vec<Place>,
}

/// A write of fresh pages to their own places. Nothing names them on disk, so a merge that replaces one would
/// free its place at once, and the late write would lie upon what another had written there: places that are
/// let go meanwhile are let go when this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a CowPages);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Places { gone, .. } = std::mem::take(&mut *self.0.under_way.lock());
        gone.into_iter().for_each(|place| self.0.let_go(place));
    }
}

/// A new page that nothing names yet. Dropping it frees it.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    pages: &'a CowPages,
    kind: PageKind,
    pub(crate) place: Place,
    edit: Option<Edit<'a>>,
}

impl Fresh<'_> {
    pub(crate) fn leaf(&self) -> Leaf<'_> {
        leaf_of(self.edit.as_ref().expect("held until it is named").words())
    }

    /// Lets readers have it: something names it now.
    pub(crate) fn name(mut self) {
        self.pages.count.fetch_add(1, Relaxed);
        drop(self.edit.take());
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(edit) = self.edit.take() {
            self.pages.file.forget(CowPages::id(self.place, self.kind));
            drop(edit);
            self.pages.release([self.place]);
        }
    }
}
