//! Runs: sorted links on disk.
//!
//! ```text
//!   pieces   | page | page | .. 64 |   | page | page | ..        slotted pages (crate `page`), no prefix
//!   fences     a      f      k           p      t                in memory: the first key of each page
//!   filter                                                       in memory: 10 bits a key
//! ```
//!
//! A page holds records as those of an engine do; a key that was absent has a pointer of no bytes.
//! Pages are of kind [`PAGES`], so salvage passes them by. No page, slot or log record names them:
//! they are free again after a crash, and when the last reader of a dropped run has gone.

use std::ops::Bound;
use std::sync::Arc;

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::atomic::{AtomicU64, Ordering::Relaxed};
use spinney_base::shim::{Mutex, MutexGuard};
use spinney_base::{Lsn, Result, ValueRef};
use spinney_engine::{BlockKind, OwnedValue, Store};
use spinney_extent::{BlockHeader, PageRun};
use spinney_filter::{BLOCK_BYTES, block_contains, block_count, block_of};
use spinney_io::{AlignedBuf, BufferPool, Purpose};
use spinney_page::{PageEditor, PageView, Put};

use crate::table::{Age, Link, Show};

/// The kind of a run's pages.
const PAGES: BlockKind = BlockKind::PRE_IMAGES;

/// Runs that are written and read.
const PURPOSE: Purpose = Purpose::PRE_IMAGES;

/// Pages that are allocated and written together.
const PIECE_PAGES: usize = 64;

/// Pages that a range reads together.
const READ_PAGES: usize = 16;

/// Pages of buffers that are kept for the next reads, as long as there are runs.
const BUFFER_PAGES: usize = READ_PAGES;

const FILTER_BITS: u32 = 10;

/// A pointer to no large value stands for absence.
const ABSENT: ValueRef<'static> = ValueRef { bytes: &[], large: true };

fn link_of(value: ValueRef<'_>) -> Option<ValueRef<'_>> {
    if value.large && value.bytes.is_empty() { None } else { Some(value) }
}

/// The pages of all runs of a keyspace, those that are being written among them.
#[derive(Debug)]
pub(crate) struct Pages {
    store: Arc<Store>,
    /// How many. Held while some are taken or given back, and while the pages of the file are counted.
    count: Mutex<u64>,
    /// Pages that were read since the last merge.
    looked: AtomicU64,
    /// To read into.
    buffers: BufferPool,
}

impl Pages {
    pub(crate) fn of(store: Arc<Store>) -> Arc<Pages> {
        Arc::new(Pages {
            store,
            count: Mutex::new(0),
            looked: AtomicU64::new(0),
            buffers: BufferPool::new(BUFFER_PAGES),
        })
    }

    /// Number of pages that were read since the last merge.
    pub(crate) fn looked(&self) -> u64 {
        self.looked.load(Relaxed)
    }

    /// Begins to count at 0.
    pub(crate) fn forget_looks(&self) {
        self.looked.store(0, Relaxed);
    }

    fn look(&self, pages: usize) {
        self.looked.fetch_add(pages as u64, Relaxed);
    }

    /// How many there are, until the guard is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, u64> {
        self.count.lock()
    }

    fn take(&self, pages: u32) -> Result<PageRun> {
        let mut count = self.count.lock();
        let piece = self.store.allocate_run(pages)?;
        *count += u64::from(pages);
        Ok(piece)
    }

    fn give_back(&self, piece: PageRun) {
        let mut count = self.count.lock();
        self.store.release_run(piece);
        *count -= u64::from(piece.pages);
        if *count == 0 {
            self.buffers.trim(0);
        }
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.buffers.pages_kept() * PAGE_BYTES) as u64
    }
}

/// Sorted links on disk.
#[derive(Debug)]
pub(crate) struct Run {
    of: Arc<Pages>,
    age: Age,
    pieces: Vec<PageRun>,
    /// The first key of each page.
    fences: Vec<Box<[u8]>>,
    /// Blocks of a filter.
    filter: Vec<[u8; BLOCK_BYTES]>,
    links: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.pieces.iter().for_each(|piece| self.of.give_back(*piece));
    }
}

impl Run {
    pub(crate) fn age(&self) -> Age {
        self.age
    }

    /// Number of its links.
    pub(crate) fn len(&self) -> u64 {
        self.links
    }

    /// Number of its pages.
    pub(crate) fn page_count(&self) -> u64 {
        self.fences.len() as u64
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let fences = self.fences.iter().map(|key| key.len() + size_of::<Box<[u8]>>());
        (fences.sum::<usize>() + size_of_val(&*self.filter)) as u64
    }

    fn block_of(&self, hash: u64) -> usize {
        let blocks = u32::try_from(self.filter.len()).expect("it was one");
        block_of(hash, blocks) as usize
    }

    /// The page that may have a key: the last that does not begin behind it.
    fn page_of(&self, key: &[u8]) -> Option<usize> {
        self.fences.partition_point(|first| **first <= *key).checked_sub(1)
    }

    /// Pages that may have keys between these bounds.
    fn pages_of(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> std::ops::Range<usize> {
        let start = match lower {
            Bound::Included(key) | Bound::Excluded(key) => self.page_of(key).unwrap_or(0),
            Bound::Unbounded => 0,
        };
        let end = match upper {
            Bound::Included(key) => self.fences.partition_point(|first| **first <= *key),
            Bound::Excluded(key) => self.fences.partition_point(|first| **first < *key),
            Bound::Unbounded => self.fences.len(),
        };
        start..end.max(start)
    }

    /// The one page that may have a key.
    pub(crate) fn page_that_may_have(&self, key: &[u8], hash: u64) -> Option<usize> {
        let may = block_contains(&self.filter[self.block_of(hash)], hash);
        may.then(|| self.page_of(key)).flatten()
    }

    /// The piece that a page lies in, and which of its pages it is.
    fn place_of(&self, index: usize) -> (PageRun, u32) {
        let place = u32::try_from(index % PIECE_PAGES).expect("a piece is small");
        (self.pieces[index / PIECE_PAGES], place)
    }

    pub(crate) fn get(&self, key: &[u8], hash: u64) -> Result<Option<Link>> {
        let Some(index) = self.page_that_may_have(key, hash) else { return Ok(None) };
        let mut buf = self.of.buffers.lend(1);
        let (piece, place) = self.place_of(index);
        self.of.look(1);
        self.of.store.read_run_page(&piece, place, PAGES, buf.page_mut(0), PURPOSE)?;
        let found = self.view(index, buf.page(0))?.find(key);
        Ok(found.map(|value| link_of(value).map(OwnedValue::from)))
    }

    fn view<'a>(&self, index: usize, page: &'a [u8; PAGE_BYTES]) -> Result<PageView<'a>> {
        let (piece, place) = self.place_of(index);
        let path = self.of.store.path();
        PageView::parse(page).map_err(|damage| damage.at(path, piece.page(place)))
    }

    /// Shows links from one bound to another until `show` returns false. Backward, `from` is the
    /// greater bound.
    pub(crate) fn each(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        forward: bool,
        show: Show<'_>,
    ) -> Result<()> {
        let (lower, upper) = if forward { (from, to) } else { (to, from) };
        let mut left = self.pages_of(lower, upper);
        // Few at first: many ranges are short.
        let mut together = 1;
        while !left.is_empty() {
            let count = left.len().min(together);
            together = (2 * together).min(READ_PAGES);
            let some =
                if forward { left.start..left.start + count } else { left.end - count..left.end };
            left = if forward { some.end..left.end } else { left.start..some.start };
            let mut buf = self.of.buffers.lend(count);
            let pages: Vec<_> = some.clone().map(|index| self.place_of(index)).collect();
            self.of.look(count);
            self.of.store.read_run_pages(&pages, PAGES, &mut buf, PURPOSE)?;
            for step in 0..count {
                let place = if forward { step } else { count - 1 - step };
                let view = self.view(some.start + place, buf.page(place))?;
                let records = view.range(lower, upper);
                for step in 0..records.len() {
                    let index = if forward { records.start + step } else { records.end - 1 - step };
                    if !show(view.suffix(index), link_of(view.value(index)))? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads pages of runs of one keyspace side by side, and shows each with its place in the list.
pub(crate) fn see_pages(
    pages: &[(&Run, usize)],
    see: &mut dyn FnMut(usize, &PageView<'_>),
) -> Result<()> {
    let Some((first, _)) = pages.first() else { return Ok(()) };
    let mut buf = first.of.buffers.lend(pages.len());
    let places: Vec<_> = pages.iter().map(|(run, index)| run.place_of(*index)).collect();
    first.of.store.read_run_pages(&places, PAGES, &mut buf, PURPOSE)?;
    for (place, (run, index)) in pages.iter().enumerate() {
        see(place, &run.view(*index, buf.page(place))?);
    }
    Ok(())
}

/// A run that is being written; dropping it frees its pages.
#[derive(Debug)]
pub(crate) struct RunWriter {
    run: Run,
    /// Filled pages of the piece that is not written yet, and the one that is being filled.
    buf: AlignedBuf,
    filled: usize,
    is_open: bool,
}

impl RunWriter {
    /// A run of at most `links` links.
    pub(crate) fn new(of: Arc<Pages>, age: Age, links: u64) -> RunWriter {
        let keys = usize::try_from(links).unwrap_or(usize::MAX);
        let blocks = block_count(keys, FILTER_BITS).max(1) as usize;
        let (pieces, fences, filter) = (Vec::new(), Vec::new(), vec![[0; BLOCK_BYTES]; blocks]);
        RunWriter {
            run: Run { of, age, pieces, fences, filter, links: 0 },
            buf: AlignedBuf::new(PIECE_PAGES),
            filled: 0,
            is_open: false,
        }
    }

    /// Adds the next link. Keys ascend.
    ///
    /// # Errors
    /// `Full`, `Poisoned` or `Io`.
    pub(crate) fn push(&mut self, key: &[u8], hash: u64, link: Option<ValueRef<'_>>) -> Result<()> {
        let value = link.unwrap_or(ABSENT);
        let block = self.run.block_of(hash);
        spinney_filter::insert(&mut self.run.filter[block], hash);
        self.run.links += 1;
        if self.is_open {
            let page = self.buf.page_mut(self.filled);
            if PageEditor::edit(page).put(key, value) == Put::Done {
                return Ok(());
            }
            self.filled += 1;
        }
        if self.filled == PIECE_PAGES {
            self.write_piece()?;
        }
        self.run.fences.push(key.into());
        let page = self.buf.page_mut(self.filled);
        page.fill(0);
        let put = PageEditor::format(page, &[], &[]).put(key, value);
        assert!(put == Put::Done, "a page has room for any record of an engine's pages");
        self.is_open = true;
        Ok(())
    }

    fn write_piece(&mut self) -> Result<()> {
        let store = &self.run.of.store;
        let pages = u32::try_from(self.filled).expect("a piece is small");
        let piece = self.run.of.take(pages)?;
        // Freed with the run, also when writing fails.
        self.run.pieces.push(piece);
        for index in 0..pages {
            let header = BlockHeader {
                kind: PAGES,
                page: piece.page(index),
                generation: piece.generation,
                keyspace: store.keyspace(),
                lsn: Lsn::ZERO,
            };
            header.seal(self.buf.page_mut(index as usize));
        }
        let bytes = &self.buf.bytes()[..self.filled * PAGE_BYTES];
        store.write_runs(&[(piece.first, bytes)], PURPOSE)?;
        self.filled = 0;
        self.is_open = false;
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// As [`RunWriter::push`].
    pub(crate) fn finish(mut self) -> Result<Run> {
        if self.is_open {
            self.filled += 1;
            self.write_piece()?;
        }
        Ok(self.run)
    }
}
