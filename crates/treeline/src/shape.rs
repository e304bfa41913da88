//! Shape: where the records of a keyspace lie. It owns the file, the index over its segments, the
//! locks of both, and what makes their changes durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spinney_base::limits::PAGE_BYTES;
use spinney_base::shim::{Mutex, RwLock};
use spinney_base::{Error, Lsn, Result};
use spinney_engine::Journal;
use spinney_extent::Store;
use spinney_io::{AlignedBuf, Purpose};
use spinney_page::PageView;

use crate::index::SegmentIndex;
use crate::locks::{PageLocks, SegmentLocks};
use crate::policy;
use crate::segment::{Located, PageRef};

/// File, index and locks of one keyspace.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) store: Arc<Store>,
    pub(crate) index: SegmentIndex,
    pub(crate) segment_locks: SegmentLocks,
    pub(crate) page_locks: PageLocks,
    /// Held while dirty records are taken off a segment's list, for memory work only.
    pub(crate) taking: Mutex<()>,
    /// Held shared by every write-back, exclusively by code that must know that none is under way.
    pub(crate) gate: RwLock<()>,
    pub(crate) journal: Journal,
    /// Held while a checkpoint is made and its slot written.
    pub(crate) slots: Mutex<()>,
    /// Redo LSN of the newest checkpoint.
    pub(crate) redo: AtomicU64,
    /// Number of the last change of structure that the newest checkpoint covers.
    pub(crate) published: AtomicU64,
    /// Whether pages may hold what an earlier process wrote and no sync kept, until all that was
    /// replayed is written back.
    pub(crate) pages_in_doubt: AtomicBool,
    /// Whether only the pages can say which large values are live.
    pub(crate) large_unsettled: AtomicBool,
}

impl Shape {
    /// The shape of a keyspace that may get `memory_most` bytes of memory, as its checkpoint has
    /// it.
    pub(crate) fn new(store: Arc<Store>, index: SegmentIndex, redo: Lsn, memory_most: u64) -> Self {
        let stripes = policy::lock_stripes(memory_most);
        Shape {
            store,
            segment_locks: SegmentLocks::new(stripes),
            page_locks: PageLocks::new(stripes),
            taking: Mutex::new(()),
            gate: RwLock::new(()),
            journal: Journal::default(),
            slots: Mutex::new(()),
            redo: AtomicU64::new(redo.0),
            published: AtomicU64::new(index.sequence()),
            pages_in_doubt: AtomicBool::new(false),
            large_unsettled: AtomicBool::new(false),
            index,
        }
    }

    /// Redo LSN of the newest checkpoint.
    pub(crate) fn redo_lsn(&self) -> Lsn {
        Lsn(self.redo.load(Ordering::Acquire))
    }

    /// Bytes of memory that the locks take.
    pub(crate) fn lock_bytes(&self) -> u64 {
        self.segment_locks.bytes() + self.page_locks.bytes()
    }

    /// Reads and checks a page, its slotted layout included.
    pub(crate) fn read_page(
        &self,
        page: PageRef,
        buf: &mut [u8; PAGE_BYTES],
        purpose: Purpose,
    ) -> Result<()> {
        self.store.read(page.page, page.generation, buf, purpose)?;
        self.check_layout(page, buf).map(|_| ())
    }

    /// Reads and checks many pages into the pages of `buf`.
    pub(crate) fn read_pages(
        &self,
        pages: &[PageRef],
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let pages: Vec<_> = pages.iter().copied().enumerate().collect();
        self.read_some(&pages, buf, purpose)
    }

    /// Reads and checks many pages, each into the page of `buf` named; these ascend.
    pub(crate) fn read_some(
        &self,
        pages: &[(usize, PageRef)],
        buf: &mut AlignedBuf,
        purpose: Purpose,
    ) -> Result<()> {
        let places: Vec<_> =
            pages.iter().map(|(index, page)| (*index, page.page, page.generation)).collect();
        self.store.read_many(&places, buf, purpose, &mut |index, block| {
            let place = pages.binary_search_by_key(&index, |(index, _)| *index);
            let page = pages[place.expect("one of them was read")].1;
            self.check_layout(page, block).map(|_| ())
        })
    }

    /// Checks that a page holds keys of its segment only: code that changes the page relies on it.
    ///
    /// # Errors
    /// `Corruption` when its prefix or its keys are another segment's.
    pub(crate) fn check_bounds(
        &self,
        located: &Located,
        page: PageRef,
        block: &[u8; PAGE_BYTES],
    ) -> Result<()> {
        let view = PageView::trusted(block);
        // Keys ascend.
        let inside = [0, view.len().wrapping_sub(1)]
            .iter()
            .all(|index| *index >= view.len() || located.contains(&view.key(*index)));
        if located.prefix().starts_with(view.prefix()) && inside {
            return Ok(());
        }
        Err(Error::corruption(
            self.store.path().display(),
            page.page.offset(),
            format!("keys from {:?} up to {:?}", located.lower, located.upper),
            format!("prefix {} and {view:?}", view.prefix().escape_ascii()),
        ))
    }

    /// Checks the slotted layout of a page.
    pub(crate) fn check_layout<'a>(
        &self,
        page: PageRef,
        buf: &'a [u8; PAGE_BYTES],
    ) -> Result<PageView<'a>> {
        PageView::parse(buf).map_err(|damage| damage.at(self.store.path(), page.page))
    }
}
